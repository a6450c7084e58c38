package request

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"
)

// A Face is the protocol by which a request came.
type Face uint8

const (
	// Bigtable is gRPC.
	Bigtable Face = iota
	// HBase is the RPC protocol of HBase.
	HBase
	// REST is JSON over HTTP.
	REST
	// Faces is how many there are.
	Faces = iota
)

// String returns the value of the label face.
func (f Face) String() string {
	switch f {
	case HBase:
		return "hbase"
	case REST:
		return "rest"
	}
	return "bigtable"
}

// A Record is what is measured of one request. The zero value is ready. Fields are of the
// goroutine that serves the request; methods are safe for concurrent use. What methods set is
// read when the request's goroutines have ended. All methods do nothing on a nil Record, which
// a context without one gives.
type Record struct {
	// Method is the full name of the method, such as
	// "/google.bigtable.v2.Bigtable/ReadRows".
	Method string
	Face   Face
	// Profile is the id of the app profile, empty if the request has none.
	Profile string
	// Principal is who makes the request, as policies write it: the same over all faces.
	// It is empty if nobody has logged in; of an HBase client it is then what that says, unproved.
	Principal string
	// Span is the request's, nil if it is not traced.
	Span Span
	// Table is what the observer of requests keeps for the table that the request is of,
	// nil as long as that is not known: see SetTable.
	Table any
	// TableName is the table's full resource name.
	TableName string
	// Keys says that row keys may be kept for the log of slow requests, Key is the first.
	Keys bool
	Key  string

	hasTable, hasKey atomic.Bool

	id atomic.Uint64
	// Work is what the request cost.
	Work Work
}

// Work is what a request cost. The layers add to it while the request is served; a part
// done by another process is added when its answer comes.
type Work struct {
	// RowsSeen and CellsSeen are what reads looked at, RowsReturned and CellsReturned what
	// a filter let through, RowsWritten the rows that were changed.
	RowsSeen, CellsSeen, RowsReturned, CellsReturned, RowsWritten atomic.Int64
	// Tablets counts the calls of tablets, SSTables the files of those that were read.
	Tablets, SSTables atomic.Int64
	// BlockBytes are the bytes of blocks that were read, CachedBytes those of them that
	// were in the block cache.
	BlockBytes, CachedBytes atomic.Int64
	// Times in nanoseconds: waited for memtables to have room, for compactions, and for the
	// commit log.
	MemoryWait, CompactionWait, LogWait atomic.Int64
}

// parts are what one process tells another of the work that it did for it, in this order.
func (w *Work) parts() [7]*atomic.Int64 {
	return [...]*atomic.Int64{&w.Tablets, &w.SSTables, &w.BlockBytes, &w.CachedBytes, &w.MemoryWait, &w.CompactionWait, &w.LogWait}
}

// ID returns the request's id, which is made when it is first asked for.
func (r *Record) ID() uint64 {
	if r == nil {
		return 0
	}
	for {
		if id := r.id.Load(); id != 0 {
			return id
		}
		r.id.CompareAndSwap(0, rand.Uint64())
	}
}

// SetFace says by which protocol the request came.
func (r *Record) SetFace(f Face) {
	if r != nil {
		r.Face = f
	}
}

// SetID gives the request the id that it has in another process.
func (r *Record) SetID(id uint64) { r.id.Store(id) }

// IDString returns an id as it is shown: 16 hexadecimal digits.
func IDString(id uint64) string {
	s := strconv.FormatUint(id, 16)
	return "0000000000000000"[len(s):] + s
}

// NoteKey keeps the first row key, if keys are kept.
func (r *Record) NoteKey(key []byte) {
	if r != nil && r.Keys && len(key) > 0 && r.hasKey.CompareAndSwap(false, true) {
		r.Key = string(key)
	}
}

// SetTable sets the fields Table and TableName to those of the first table that the request
// turns out to be of. Parts of it may do so at the same time.
func (r *Record) SetTable(t any, name string) {
	if r != nil && !r.hasTable.Load() && r.hasTable.CompareAndSwap(false, true) {
		r.Table, r.TableName = t, name
	}
}

// AddMemoryWait adds to the time that the request waited for memtables.
func (r *Record) AddMemoryWait(d time.Duration) {
	if r != nil {
		r.Work.MemoryWait.Add(int64(d))
	}
}

// AddCompactionWait adds to the time that the request waited for compactions.
func (r *Record) AddCompactionWait(d time.Duration) {
	if r != nil {
		r.Work.CompactionWait.Add(int64(d))
	}
}

// AddRead adds what the read of a tablet took: files is the number of SSTables.
func (r *Record) AddRead(files int, blockBytes, cachedBytes int64) {
	if r != nil {
		addUnlessZero(&r.Work.SSTables, int64(files)) // a row of the row cache takes none
		addUnlessZero(&r.Work.BlockBytes, blockBytes)
		addUnlessZero(&r.Work.CachedBytes, cachedBytes)
	}
}

// BytesFromStorage returns the length of the blocks that were read so far and were not in
// the block cache.
func (r *Record) BytesFromStorage() int64 {
	if r == nil {
		return 0
	}
	return r.Work.BlockBytes.Load() - r.Work.CachedBytes.Load()
}

// A LogWait is a wait for the commit log.
type LogWait struct {
	r     *Record
	start time.Time
	span  Span
}

// BeginLogWait begins a wait for the commit log.
func (r *Record) BeginLogWait() LogWait {
	if r == nil {
		return LogWait{}
	}
	return LogWait{r, time.Now(), r.StartSpan("commit log")}
}

// End ends the wait; err is why it failed.
func (w LogWait) End(err error) {
	if w.r != nil {
		w.r.Work.LogWait.Add(int64(time.Since(w.start)))
		End(w.span, err)
	}
}

// A TabletCall is the part of a request that one tablet does.
type TabletCall struct {
	r                      *Record
	span                   Span
	tables, blocks, cached int64
}

// BeginTablet begins the part of the request that a tablet does.
func (r *Record) BeginTablet(id uint64) TabletCall {
	if r == nil {
		return TabletCall{}
	}
	r.Work.Tablets.Add(1)
	if r.Span == nil {
		return TabletCall{}
	}
	c := TabletCall{r, r.Span.Child("tablet"), r.Work.SSTables.Load(), r.Work.BlockBytes.Load(), r.Work.CachedBytes.Load()}
	c.span.String("trestle.tablet", strconv.FormatUint(id, 16))
	return c
}

// End ends the part. What the request read meanwhile is taken to be the tablet's.
func (c TabletCall) End() {
	if c.span == nil {
		return
	}
	w := &c.r.Work
	c.span.Int("trestle.sstables", w.SSTables.Load()-c.tables)
	c.span.Int("trestle.block_bytes", w.BlockBytes.Load()-c.blocks)
	c.span.Int("trestle.block_cached_bytes", w.CachedBytes.Load()-c.cached)
	c.span.End(nil)
}

// StartSpan begins a part of the request. It returns nil, which is good for End, if the
// request is not traced.
func (r *Record) StartSpan(name string) Span {
	if r == nil || r.Span == nil {
		return nil
	}
	return r.Span.Child(name)
}

// With returns a context of the request of r.
func With(ctx context.Context, r *Record) context.Context { return context.WithValue(ctx, key{}, r) }

type key struct{}

// From returns the Record of the request that ctx is of, or nil.
func From(ctx context.Context) *Record {
	r, _ := ctx.Value(key{}).(*Record)
	return r
}

// IsKey tells whether k is what From asks a context for. Contexts that have a Record
// answer it with theirs.
func IsKey(k any) bool {
	_, ok := k.(key)
	return ok
}
