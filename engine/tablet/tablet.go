package tablet

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/mutex"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/request"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/rowcache"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/sstable"
	"github.com/trestledb/trestle/engine/stamp"
)

// Options are the settings of tablets. The zero value of a field stands for
// its default.
type Options struct {
	// MemtableBytes starts a minor compaction when a memtable reaches it.
	// Default 64 MiB.
	MemtableBytes int64
	// FileBytes is the size at which a compaction begins a new SSTable, at the
	// next row. Default 64 MiB.
	FileBytes int64
	// MaxRuns is the number of runs at which writers are held up until
	// compactions have caught up. Default 24.
	MaxRuns int
	// TargetRuns is the number of runs that compactions aim at. Default 6.
	TargetRuns int
	// CompactionShare is the part of one processor's time that a compaction may
	// take while there are requests and few runs. From 1 on it is not held back.
	// Default 0.25.
	CompactionShare float64
	// MajorInterval is the age at which a tablet with anything to collect gets a
	// major compaction. Default 24 h.
	MajorInterval time.Duration
	// ChangeFiles is how many change files a METADATA row names itself: if there are more, all
	// but the newest quarter go to an index object. An index object is written anew with more
	// until it has 16 times as many, or changes.MaxIndexFiles. Default 64: of 100,000 files a
	// row names 98 index objects of up to 60 KB, and has 35 KB.
	ChangeFiles int
	// Table are the settings of SSTables.
	Table sstable.Options
}

// WithDefaults returns o with every zero field set.
func (o Options) WithDefaults() Options {
	set := func(v *int64, d int64) {
		if *v == 0 {
			*v = d
		}
	}
	set(&o.MemtableBytes, 64<<20)
	set(&o.FileBytes, 64<<20)
	if o.MaxRuns == 0 {
		o.MaxRuns = 24
	}
	if o.TargetRuns == 0 {
		o.TargetRuns = 6
	}
	if o.ChangeFiles == 0 {
		o.ChangeFiles = 64
	}
	if o.CompactionShare == 0 {
		o.CompactionShare = 0.25
	}
	if o.MajorInterval == 0 {
		o.MajorInterval = 24 * time.Hour
	}
	return o
}

// An Env is what the tablets of a server share.
type Env struct {
	Options Options
	Commit  commitlog.Writer
	Meta    metadata.Store
	Objects objectstore.Store
	Cache   *sstable.Cache
	Memory  *Memory
	// Rows is the cache of rows that are read often, or nil.
	Rows *rowcache.Cache
	// InMemoryBytes bounds the SSTables that locality groups keep in memory.
	InMemoryBytes int64
	Log           *slog.Logger
	// Now is the clock.
	Now func() time.Time
	// NewID returns an object id that was never used.
	NewID func() uint64
	// Remove deletes an object that no row refers to any more. It does not wait. It is not
	// told of change files of index objects: who deletes them looks into those.
	Remove func(object string)
	// Work asks for flushes and compactions of t, soon. It does not wait.
	Work func(t *Tablet)
	// Fatal is told of a broken invariant or a lost tablet. The process must
	// not serve on.
	Fatal func(error)
	// Held, if set, is told how long the writes of a tablet were held up for what.
	Held func(why string, d time.Duration)
	// Clock guards commit times, and what is collected by age, against a clock that is set
	// forward; nil: nothing does.
	Clock *stamp.Clock

	Stats Stats
	// Pace holds back the compactions of all tablets.
	Pace Pace

	objects objects
	indexes indexCache
	damages damages
	states  atomic.Uint64 // the last one of any version
	jumped  atomic.Bool   // the log says that the clock was set forward
	reads   tableReads
	// readable counts the versions that a reader may still use.
	readable sync.WaitGroup
}

// now returns the time that what cannot be undone goes by, such as the collection of cells: a
// clock that is set forward is not followed.
func (e *Env) now() time.Time {
	now, _ := e.Clock.Read(e.Now())
	return now
}

// next returns the sequence number that follows last: the time, if that is later.
func (e *Env) next(last cell.Seq) cell.Seq {
	now, ahead := e.Clock.Read(e.Now())
	if (ahead > 0) != e.jumped.Load() && e.jumped.CompareAndSwap(ahead == 0, ahead > 0) {
		if ahead > 0 {
			e.Log.Error("the clock was set forward; commit times do not follow it until it is right or the process starts again", "ahead", ahead)
		} else {
			e.Log.Info("the clock is followed again")
		}
	}
	return stamp.Next(last, now)
}

// Stats counts what the tablets of a server did.
type Stats struct {
	FlushBytes, CompactionIn, CompactionOut atomic.Int64
	Flushes, Compactions, Collected         atomic.Int64
	Moved                                   atomic.Int64 // files carried over without a copy
	Corruptions                             atomic.Int64
	// Stalled is how long, in nanoseconds, writers have waited for compactions.
	Stalled atomic.Int64
	// ReadBytes is what was read of SSTables from storage.
	ReadBytes atomic.Int64
}

// stripes is the number of row locks.
const stripes = 256

// A stripeSet is a set of row locks.
type stripeSet [stripes / 64]uint64

func (s *stripeSet) add(i uint64)      { s[i/64] |= 1 << (i % 64) }
func (s *stripeSet) remove(i uint64)   { s[i/64] &^= 1 << (i % 64) }
func (s *stripeSet) has(i uint64) bool { return s[i/64]>>(i%64)&1 != 0 }

// meets tells whether there is one that is in both.
func (s *stripeSet) meets(o *stripeSet) bool {
	var both uint64
	for i := range s {
		both |= s[i] & o[i]
	}
	return both != 0
}

// A Tablet serves the rows of one range.
type Tablet struct {
	env    *Env
	id     metadata.TabletID
	bounds row.Range
	schema func() *schema.Table

	// started says that nothing is replayed any more.
	started atomic.Bool
	// visible is the sequence number up to which everything is durable and in
	// the memtables.
	visible atomic.Uint64
	// ready is closed when there may be more changes to read; nil if no reader waits.
	ready atomic.Pointer[chan struct{}]

	// rows are the row locks: a row's is the one its key hashes to. A write of a
	// row by what it holds has its lock from before it looks until the change is in
	// the memtable. Others only wait for that: they need it if it is in
	// write.deciding.
	rows [stripes]mutex.Mutex
	seed maphash.Seed

	// write orders mutations.
	write struct {
		mutex.Mutex
		seq    cell.Seq // the last one given out
		logged cell.Seq // the last one of a record that was queued for the log
		// gate, if it is not 0, is a stamp that no reader of changes comes to: what has it
		// is not in files yet.
		gate   cell.Seq
		last   commitlog.Pos
		mem    *mem
		closed bool
		// deciding are the row locks of writes that read a row to change it. A write
		// that adds or removes one holds it.
		deciding stripeSet
	}

	// mu guards the current version, which is nil once the tablet is closed.
	mu struct {
		sync.Mutex
		version *version
		row     *metadata.Row // of the last version
		// stopped holds the SSTables of a tablet that has failed, until it is closed,
		// and redo is its redo point.
		stopped *version
		redo    *commitlog.Pos
	}
	// failure says that the tablet has failed.
	failure atomic.Pointer[fault.Error]

	// change is held during a change of the METADATA row.
	change mutex.Mutex
	// pauses is how many Paused hold the change lock, or wait for it.
	pauses atomic.Int32
	jobs   jobs
	// replaced says that the tablet was split or merged.
	replaced atomic.Bool
	majors   majors
	// layouts caches the layout of the current schema.
	layouts atomic.Pointer[layout]

	// followed is what Follow noted, nil if it was not called.
	followed atomic.Pointer[*metadata.Followed]

	load load
	// slow delays writers while compactions are behind.
	slow bucket
	// delayed is how many writers compactions keep waiting.
	delayed atomic.Int64
}

// Open returns the tablet of a METADATA row. Its memtable is empty: Replay
// gives it the log records that are not in the row's files, then Start lets it
// serve. table returns the current schema.
func Open(env *Env, r *metadata.Row, table func() *schema.Table) *Tablet {
	t := &Tablet{env: env, id: r.Tablet, bounds: row.Range{Start: r.Start, End: r.End}, schema: table, seed: maphash.MakeSeed()}
	t.write.seq = max(r.MaxSeq, r.FlushedSeq)
	// What is to be replayed is behind the redo point.
	t.write.mem = t.newMem(r.FlushedSeq)
	if s := table().Stream; s != nil && (r.Stream == nil || r.Stream.Life != s.Life) {
		t.write.seq = t.sinceOf(s, t.write.seq)
		t.write.mem.since = min(t.write.seq, t.sinceOf(s, r.FlushedSeq))
	} else if s != nil {
		// By the clock of the gateway that enabled the stream: ours may not be there yet.
		t.write.seq = max(t.write.seq, r.Stream.Since)
	}
	t.mu.version, t.mu.row = newVersion(env, r, []*mem{t.write.mem}), r
	env.Memory.add(t.write.mem.Bytes())
	return t
}

// ID returns the tablet's id.
func (t *Tablet) ID() metadata.TabletID { return t.id }

// Name tells an operator which tablet it is.
func (t *Tablet) Name() metadata.TabletName {
	return metadata.TabletName{Table: t.schema().Name, Tablet: t.id, Start: t.bounds.Start, End: t.bounds.End}
}

// Bounds returns the tablet's row range.
func (t *Tablet) Bounds() row.Range { return t.bounds }

// Row returns the METADATA row as it is now.
func (t *Tablet) Row() *metadata.Row {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.row
}

// Bytes returns the size of the tablet's SSTables and memtables.
func (t *Tablet) Bytes() int64 {
	v := t.pin()
	if v == nil {
		return 0
	}
	defer v.release()
	return v.bytes()
}

// Replay applies a log record again. Records that are in the SSTables already
// are skipped, so replaying twice does no harm.
func (t *Tablet) Replay(rec *commitlog.Record) error {
	first := cell.Seq(rec.FirstSeq)
	end := stamp.Last(first, rec.N)
	t.write.Lock()
	defer t.write.Unlock()
	t.mu.Lock()
	flushed := t.mu.row.FlushedSeq
	t.mu.Unlock()
	if end <= flushed {
		return nil
	}
	if first <= flushed {
		return fault.New(fault.Corruption, "%v: log record %d to %d straddles the redo point %d", t.Name(), first, end, flushed)
	}
	m := t.write.mem
	if !m.Empty() && first <= m.MaxSeq() {
		return fault.New(fault.Corruption, "%v: log record %d follows %d", t.Name(), first, m.MaxSeq())
	}
	before := m.Bytes()
	if err := DecodeRecord(rec.Payload, first, rec.N, m); err != nil {
		return err
	}
	t.note(m, rec.Pos, before)
	t.write.seq = max(t.write.seq, end)
	return nil
}

// note records that m grew by a record at pos.
func (t *Tablet) note(m *mem, pos commitlog.Pos, before int64) {
	if m.first.Load() == nil {
		m.first.Store(&pos)
	}
	m.last = pos
	t.write.last = pos
	t.env.Memory.add(m.Bytes() - before)
	if m.Bytes() >= t.env.Options.MemtableBytes {
		t.rotateLocked()
	}
}

// Start makes everything replayed visible.
func (t *Tablet) Start() {
	t.started.Store(true)
	t.visible.Store(uint64(t.write.seq))
	if slices.ContainsFunc(t.schema().Groups, func(g schema.Group) bool { return g.InMemory }) {
		t.env.Work(t)
	}
}

// Durable implements commitlog.Sink.
func (t *Tablet) Durable(seq uint64) {
	t.visible.Store(seq)
	t.wake()
}

// pin returns the current version, which the caller releases; nil if the
// tablet is closed.
func (t *Tablet) pin() *version {
	t.mu.Lock()
	defer t.mu.Unlock()
	v := t.mu.version
	if v != nil {
		v.refs.Add(1)
	}
	return v
}

// install replaces the current version by the one that next makes of it. The
// tablet is not closed: its write lock or its change lock is held.
func (t *Tablet) install(next func(old *version) *version) {
	t.mu.Lock()
	old := t.mu.version
	t.mu.version = next(old)
	t.mu.row = t.mu.version.row
	t.mu.Unlock()
	old.release()
}

// stripe returns the lock of a row.
func (t *Tablet) stripe(key []byte) uint64 { return maphash.Bytes(t.seed, key) % stripes }

// admit waits until memtables and runs have room for more. When there is little
// it returns the rate, in bytes per second, that writers are held to: they slow
// down bit by bit, so that they need not be stopped. Each gives what it has
// written to t.slow. No rate means none.
func (t *Tablet) admit(ctx context.Context) (float64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err // no client waits for the answer
	}
	full, err := t.env.Memory.wait(ctx)
	if err != nil {
		return 0, err
	}
	runs, o := t.Runs(), &t.env.Options
	slow := o.TargetRuns + (o.MaxRuns-o.TargetRuns)/4
	debt := max(float64(runs-slow)/float64(max(1, o.MaxRuns-slow)), 4*full-3, t.heldDebt())
	if debt <= 0 {
		return 0, nil
	}
	start := time.Now()
	t.delayed.Add(1)
	defer func() {
		t.delayed.Add(-1)
		t.env.Stats.Stalled.Add(int64(time.Since(start)))
		request.From(ctx).AddCompactionWait(time.Since(start))
	}()
	if d := min(t.slow.wait(), slowLimit); d > 0 {
		if err := sleep(ctx, d); err != nil {
			return 0, err
		}
	}
	for delay := time.Millisecond; t.Runs() >= o.MaxRuns || t.heldDebt() >= 1; delay = min(2*delay, 10*time.Millisecond) {
		if time.Since(start) > stallLimit {
			return 0, &fault.Error{Kind: fault.Exhausted, RetryAfter: time.Second, Reason: "TOO_MANY_RUNS",
				Msg: "compacting the tablet's SSTables does not keep up"}
		}
		t.env.Work(t)
		if err := sleep(ctx, delay); err != nil {
			return 0, err
		}
	}
	left := max(0, 1-debt)
	return max(slowRate*left*left, slowRate/64), nil
}

const (
	// slowRate is what writers of a tablet are held to, in bytes per second, when
	// holding them back begins: no more than compactions manage at their best. It
	// falls with the square of what is left until they are stopped.
	slowRate = 256 << 20
	// slowLimit is how long one write is delayed at most.
	slowLimit = time.Second
)

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Runs returns the number of runs that a read of one locality group looks into
// at most.
func (t *Tablet) Runs() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.version == nil {
		return 0
	}
	return t.mu.version.depth
}

// reserve makes room for b in the commit log. It comes before the memtable has
// anything of it: then there is no way back.
func (t *Tablet) reserve(ctx context.Context, b *Batch) (commitlog.Reservation, error) {
	return t.env.Commit.Reserve(ctx, b.size)
}

// commitLocked gives b its sequence numbers, puts it into the memtable and queues
// it for the commit log, where there is room for it. It returns the position to
// wait for. The caller holds the write lock, and no other write decides on a change
// of one of the rows.
func (t *Tablet) commitLocked(room commitlog.Reservation, b *Batch) (commitlog.Pos, error) {
	if t.write.closed {
		t.env.Commit.Release(room)
		return commitlog.Pos{}, t.gone()
	}
	if b.Len() == 0 {
		t.env.Commit.Release(room)
		return t.write.last, nil
	}
	t.recordLocked()
	m := t.write.mem
	first, before := t.env.next(t.write.seq), m.Bytes()
	b.insert(m, first)
	t.write.seq = max(t.write.seq, stamp.Last(first, b.Len()))
	t.write.logged = t.write.seq
	pos := t.env.Commit.Append(room, uint64(t.id), uint64(first), b, t)
	t.note(m, pos, before)
	t.load.wrote(b)
	return pos, nil
}

// ErrClosed is returned by a tablet that was closed.
var ErrClosed = &fault.Error{Kind: fault.Unavailable, Msg: "the tablet is closed"}

// ErrReplaced is returned, before anything is done, by a tablet whose rows
// others serve now: it was split or merged.
var ErrReplaced = &fault.Error{Kind: fault.Unavailable, Msg: "the tablet was split or merged"}

// gone returns the error of a tablet that is closed.
func (t *Tablet) gone() error {
	if err := t.Failure(); err != nil {
		return err
	}
	if t.replaced.Load() {
		return ErrReplaced
	}
	return ErrClosed
}

// ApplyAsync applies b, whose rows are all the tablet's. On an error nothing was
// applied. Else the caller gives the returned position to Wait; when that returns
// nil the changes are durable and visible, and on a context error they may or may
// not be.
func (t *Tablet) ApplyAsync(ctx context.Context, b *Batch) (commitlog.Pos, error) {
	rate, err := t.admit(ctx)
	if err != nil {
		return commitlog.Pos{}, err
	}
	if rate > 0 {
		t.slow.take(int64(b.size), rate)
	}
	room, err := t.reserve(ctx, b)
	if err != nil {
		return commitlog.Pos{}, err
	}
	var rows stripeSet
	for i := range b.rows {
		rows.add(t.stripe(b.rows[i].key))
	}
	t.write.Lock()
	if t.write.deciding.meets(&rows) {
		t.write.Unlock()
		for i := range uint64(stripes) {
			if rows.has(i) {
				t.rows[i].Lock()
				defer t.rows[i].Unlock()
			}
		}
		t.write.Lock()
	}
	defer t.write.Unlock()
	return t.commitLocked(room, b)
}

// Update changes the row key by what decide makes of its present state:
// decide fills b, which may stay empty. decide sees every earlier change of the
// row, durable or not, through the View; Update returns once what it saw and
// did is durable.
func (t *Tablet) Update(ctx context.Context, key []byte, decide func(v *View, b *Batch) error) error {
	pos, err := t.UpdateAsync(ctx, key, decide)
	if err != nil {
		return err
	}
	wait := request.From(ctx).BeginLogWait()
	err = t.Wait(ctx, pos)
	wait.End(err)
	return err
}

// Wait returns nil once what ApplyAsync or UpdateAsync returned pos for is
// durable and visible.
func (t *Tablet) Wait(ctx context.Context, pos commitlog.Pos) error {
	if pos == (commitlog.Pos{}) {
		return nil // nothing was ever written since the tablet was opened
	}
	return t.env.Commit.Wait(ctx, pos)
}

// UpdateAsync is Update that does not wait: the caller waits for the returned
// position.
func (t *Tablet) UpdateAsync(ctx context.Context, key []byte, decide func(v *View, b *Batch) error) (commitlog.Pos, error) {
	rate, err := t.admit(ctx)
	if err != nil {
		return commitlog.Pos{}, err
	}
	b := NewBatch(key)
	defer b.Free()
	pos, err := t.update(ctx, key, b, decide)
	if rate > 0 {
		t.slow.take(int64(b.size), rate)
	}
	if err == nil || pos == (commitlog.Pos{}) {
		return pos, err
	}
	// What decide objects to must not be something that a crash takes back.
	if werr := t.Wait(ctx, pos); werr != nil {
		err = werr
	}
	return commitlog.Pos{}, err
}

// update returns the position to wait for also when decide fails.
func (t *Tablet) update(ctx context.Context, key []byte, b *Batch, decide func(v *View, b *Batch) error) (commitlog.Pos, error) {
	s := t.stripe(key)
	t.rows[s].Lock()
	defer t.rows[s].Unlock()
	t.write.Lock()
	t.write.deciding.add(s)
	t.write.Unlock()
	err := decide(&View{t: t, ctx: ctx, key: key, seq: cell.MaxSeq}, b)
	var room commitlog.Reservation
	nothing := err != nil || b.Len() == 0
	if !nothing {
		room, err = t.reserve(ctx, b)
	}
	t.write.Lock()
	defer t.write.Unlock()
	t.write.deciding.remove(s)
	switch {
	case nothing:
		return t.write.last, err
	case err != nil:
		return commitlog.Pos{}, err
	}
	return t.commitLocked(room, b)
}

// rotateLocked makes the memtable immutable, to be flushed, and begins a new
// one. The caller holds the write lock.
func (t *Tablet) rotateLocked() {
	if t.started.Load() {
		t.write.mem.instant = metadata.Instant{Time: t.env.now().UnixMicro(), Schema: t.schema().Version}
	}
	old := t.write.mem
	m := t.newMem(t.write.seq)
	if m.life == old.life {
		// What is replayed may be below a stamp that METADATA has.
		m.since = max(old.since, old.MaxSeq())
	}
	t.write.mem = m
	t.env.Memory.add(m.Bytes())
	t.install(func(old *version) *version {
		v := newVersion(t.env, old.row, append([]*mem{m}, old.mems...))
		v.state = old.state // it has the same files
		return v
	})
	t.env.Work(t)
}

// Rotate makes what is in the memtable ready to be flushed and tells whether
// there was anything.
func (t *Tablet) Rotate() bool {
	t.write.Lock()
	defer t.write.Unlock()
	if t.write.mem.Empty() || t.write.closed {
		return false
	}
	t.rotateLocked()
	return true
}

// MemtableBytes returns the size of the memtable that takes the writes, 0 if
// it is empty or the tablet is closed. It does not wait while writes are held up.
func (t *Tablet) MemtableBytes() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if v := t.mu.version; v != nil && !v.mems[0].Empty() {
		return v.mems[0].Bytes()
	}
	return 0
}

// RedoPoint returns the position of the oldest log record that is in no
// SSTable yet; ok is false if there is none.
func (t *Tablet) RedoPoint() (pos commitlog.Pos, ok bool) {
	t.write.Lock()
	defer t.write.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	first := t.mu.redo
	if t.mu.version != nil {
		first = t.mu.version.redo()
	}
	if first == nil {
		return pos, false
	}
	return *first, true
}

// Close stops the tablet: writes and reads that begin later are refused, reads
// that are under way end in peace. It does not flush.
func (t *Tablet) Close() {
	t.change.Lock()
	defer t.change.Unlock()
	t.write.Lock()
	defer t.write.Unlock()
	t.closeLocked()
	t.mu.Lock()
	stopped := t.mu.stopped
	t.mu.stopped, t.mu.redo = nil, nil
	t.mu.Unlock()
	if stopped != nil {
		stopped.release()
	}
}

func (t *Tablet) closeLocked() {
	if t.write.closed {
		return
	}
	t.write.closed = true
	t.mu.Lock()
	v := t.mu.version
	t.mu.version = nil
	t.mu.Unlock()
	for _, m := range v.mems {
		t.env.Memory.add(-m.Bytes())
	}
	v.release()
	t.wake()
}

// fatal reports an error after which the tablet cannot be trusted.
func (t *Tablet) fatal(err error) error {
	if errors.Is(err, fault.Fenced) || errors.Is(err, fault.Corruption) {
		t.env.Fatal(fmt.Errorf("%v: %w", t.Name(), err))
	}
	return err
}
