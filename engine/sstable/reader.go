package sstable

import (
	"bytes"
	"container/list"
	"context"
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/sstable/block"
	"github.com/cockroachdb/pebble/v2/sstable/block/blockkind"
	"github.com/cockroachdb/pebble/v2/sstable/colblk"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/mutex"
)

// tableFormat is what a Writer writes. Its footer has a checksum; the formats
// before version 6 have none.
const tableFormat = sstable.TableFormatPebblev7

// The end of a file of tableFormat.
const (
	footerMagic   = "\xf0\x9f\xaa\xb3\xf0\x9f\xaa\xb3"
	footerVersion = 7
	footerLen     = 61
)

// bloomPolicy reads filters of any size; the number matters to writers only.
const bloomPolicy = bloom.FilterPolicy(10)

// A Reader reads one file. It is safe for concurrent use.
type Reader struct {
	cache *Cache
	name  string
	num   uint64   // the file's number in the block cache
	open  OpenFunc // nil if the file is open for good
	refs  int      // guarded by cache.mu

	// table is the open file, nil if it is closed.
	table atomic.Pointer[table]
	// opening is held while the file is being opened.
	opening mutex.Mutex
	closed  atomic.Bool
}

// A table is an open file. It closes when the last reference goes.
type table struct {
	r        *Reader
	sst      *sstable.Reader
	f        *file
	info     Info
	filterBH block.Handle // zero if the file has no Bloom filter
	indexBH  block.Handle // of the index, or of its top level
	twoLevel bool
	// times is what the block property timesProperty says of the file, timesID
	// the number that it has in the index, -1 if there is none.
	times   []byte
	timesID int
	// plain is -1 if no row prefix is escaped, else 0.
	plain int32
	// rawPerByte is the length of keys and values in a byte of the file.
	rawPerByte float64

	// refs counts the iterators in the file, plus one while it is in r.table.
	refs atomic.Int64
	// used tells the clock's hand to pass.
	used atomic.Bool
	// elem is guarded by cache.mu.
	elem *list.Element
}

// Name returns the name the Reader was made with.
func (r *Reader) Name() string { return r.name }

// Close gives up one Acquire or Open. After the last one no read uses the file
// any more: its blocks leave the cache, and it is closed when the last iterator
// in it is.
func (r *Reader) Close() error {
	c := r.cache
	c.mu.Lock()
	r.refs--
	if r.refs > 0 {
		c.mu.Unlock()
		return nil
	}
	if r.refs < 0 {
		c.mu.Unlock()
		panic("sstable: Reader " + r.name + " closed twice")
	}
	if c.mu.byName[r.name] == r {
		delete(c.mu.byName, r.name)
	}
	r.closed.Store(true)
	t := r.table.Swap(nil)
	if t != nil {
		c.removeLocked(t)
	}
	c.mu.Unlock()
	if t != nil {
		t.unpin()
	} else {
		c.evict(r.num)
	}
	return nil
}

// pin returns the open file with a reference for the caller.
func (r *Reader) pin(ctx context.Context) (*table, error) {
	if t := r.table.Load(); t != nil && t.tryPin() {
		return t, nil
	}
	return r.pinSlow(ctx)
}

func (r *Reader) pinSlow(ctx context.Context) (*table, error) {
	r.opening.Lock()
	defer r.opening.Unlock()
	if t := r.table.Load(); t != nil && t.tryPin() {
		return t, nil
	}
	if r.closed.Load() || r.open == nil {
		return nil, fault.New(fault.Internal, "read sstable %s: it is closed", r.name)
	}
	f, err := r.open(ctx, r.name)
	if err != nil {
		return nil, fmt.Errorf("open sstable %s: %w", r.name, err)
	}
	t, err := r.load(ctx, f)
	if err != nil {
		return nil, err
	}
	t.refs.Add(1) // the caller's, beside r.table's
	r.table.Store(t)
	r.cache.admit(t)
	return t, nil
}

func (t *table) tryPin() bool {
	for {
		n := t.refs.Load()
		if n == 0 {
			return false
		}
		if t.refs.CompareAndSwap(n, n+1) {
			if !t.used.Load() {
				t.used.Store(true)
			}
			return true
		}
	}
}

func (t *table) unpin() {
	if t.refs.Add(-1) > 0 {
		return
	}
	// What Close of a file open for reading reports changes nothing for anyone.
	_ = t.sst.Close()
	if t.r.closed.Load() {
		t.r.cache.evict(t.r.num)
	}
}

// load opens f, or closes it.
func (r *Reader) load(ctx context.Context, f Readable) (t *table, err error) {
	defer func() {
		// Pebble panics on a file whose footer is sound and whose properties
		// name a key schema it was not told of: an SSTable, but not ours.
		if p := recover(); p != nil {
			t, err = nil, fmt.Errorf("open sstable %s: %w: %v", r.name, fault.Corruption, p)
		}
		if err != nil {
			_ = f.Close()
		}
	}()
	size := f.Size()
	if size < footerLen {
		return nil, fmt.Errorf("open sstable %s: %w: it has only %d bytes", r.name, fault.Corruption, size)
	}
	t = &table{r: r, f: &file{r: f}}
	t.refs.Store(1)
	t.used.Store(true)
	tail := make([]byte, min(size, tailBytes))
	if err := t.f.read(ctx, tail, size-int64(len(tail))); err != nil {
		return nil, readFailure(r.name, err)
	}
	t.f.tail = tail
	footer := tail[len(tail)-footerLen:]
	version := binary.LittleEndian.Uint32(footer[footerLen-12:])
	if string(footer[footerLen-8:]) != footerMagic || version != footerVersion {
		return nil, fmt.Errorf("open sstable %s: %w: it does not end as an SSTable of version %d does", r.name, fault.Corruption, footerVersion)
	}
	o := r.cache.options
	setNum(&o.CacheOpts.FileNum, r.num)
	if t.sst, err = sstable.NewReader(ctx, t.f, o); err != nil {
		return nil, readFailure(r.name, err)
	}
	if t.sst.Attributes.Has(sstable.AttributeValueBlocks) || t.sst.Attributes.Has(sstable.AttributeBlobValues) {
		return nil, fmt.Errorf("open sstable %s: %w: it has values apart from keys", r.name, fault.Corruption)
	}
	p := t.sst.UserProperties[infoProperty]
	if len(p) == 0 {
		return nil, fmt.Errorf("open sstable %s: %w: property %s is missing", r.name, fault.Corruption, infoProperty)
	}
	if t.info, err = decodeInfo([]byte(p[1:])); err != nil { // p[0] is Pebble's
		return nil, fmt.Errorf("open sstable %s: %w: property %s: %w", r.name, fault.Corruption, infoProperty, err)
	}
	t.info.Size = size
	t.rawPerByte = 1
	if t.info.RawBytes > 0 {
		t.rawPerByte = float64(t.info.RawBytes) / float64(size)
	}
	if t.info.PlainRows {
		t.plain = -1
	}
	if err := t.findBlocks(ctx, footer); err != nil {
		return nil, readFailure(r.name, err)
	}
	t.twoLevel, t.timesID = t.sst.Attributes.Has(sstable.AttributeTwoLevelIndex), -1
	if p := t.sst.UserProperties[timesProperty]; len(p) > 0 {
		t.timesID, t.times = int(p[0]), []byte(p[1:])
	}
	t.f.tail = nil
	r.cache.opens.Add(1)
	return t, nil
}

// cached tells whether a block is in the cache.
func (t *table) cached(bh block.Handle) bool {
	v := t.sst.BlockReader().GetFromCache(bh)
	if v == nil {
		t.r.cache.lookedMisses.Add(1)
		return false
	}
	v.Release()
	t.r.cache.lookedHits.Add(1)
	return true
}

func noMetadata(*block.Metadata, []byte) error { return nil }

// findBlocks finds the Bloom filter and the index. Pebble's Reader knows where
// they are, but checks the one only after setting up an iterator, and keeps the
// other to itself. The footer's checksum has been verified.
func (t *table) findBlocks(ctx context.Context, footer []byte) error {
	meta, n := block.DecodeHandle(footer[1:])
	if n == 0 {
		return fmt.Errorf("bad metaindex handle")
	}
	if t.indexBH, n = block.DecodeHandle(footer[1+n:]); n == 0 {
		return fmt.Errorf("bad index handle")
	}
	var pool block.BufferPool
	pool.Init(2)
	defer pool.Release()
	h, err := t.sst.BlockReader().Read(ctx, block.ReadEnv{BufferPool: &pool}, nil, meta, blockkind.Metadata, noMetadata)
	if err != nil {
		return err
	}
	defer h.Release()
	var d colblk.KeyValueBlockDecoder
	d.Init(h.BlockData())
	for k, v := range d.All() {
		if string(k) == "fullfilter."+bloomPolicy.Name() {
			if t.filterBH, n = block.DecodeHandle(v); n != len(v) {
				return fmt.Errorf("bad filter handle")
			}
		}
	}
	return nil
}

// mayHave tells whether the file may have entries of a row prefix, and of a
// column if that is not nil. It counts in bloom too, unless that is nil.
func (t *table) mayHave(ctx context.Context, row, column []byte, bloom *BloomStats) (bool, error) {
	if bytes.Compare(row, t.info.Lo) < 0 || bytes.Compare(row, t.info.Hi) > 0 {
		return false, nil
	}
	if t.filterBH.Length == 0 {
		return true, nil
	}
	h, err := t.sst.BlockReader().Read(ctx, block.NoReadEnv, nil, t.filterBH, blockkind.Filter, noMetadata)
	if err != nil {
		return false, err
	}
	ok := bloomPolicy.MayContain(sstable.TableFilter, h.BlockData(), row) &&
		(column == nil || bloomPolicy.MayContain(sstable.TableFilter, h.BlockData(), column))
	h.Release()
	if bloom == nil {
		bloom = new(BloomStats)
	}
	if ok {
		t.r.cache.bloomPasses.Add(1)
		bloom.Passes++
	} else {
		t.r.cache.bloomSkips.Add(1)
		bloom.Skips++
	}
	return ok, nil
}

// Info returns what the file says of itself.
func (r *Reader) Info(ctx context.Context) (Info, error) {
	t, err := r.pin(ctx)
	if err != nil {
		return Info{}, err
	}
	defer t.unpin()
	return t.info, nil
}

// ApproximateBytes returns about how many bytes of the file belong to rows
// whose prefixes are in [lo, hi); nil means no bound. It reads index blocks
// only.
func (r *Reader) ApproximateBytes(ctx context.Context, lo, hi []byte) (int64, error) {
	t, err := r.pin(ctx)
	if err != nil {
		return 0, err
	}
	defer t.unpin()
	if lo != nil && bytes.Compare(lo, t.info.Hi) > 0 || hi != nil && bytes.Compare(hi, t.info.Lo) <= 0 {
		return 0, nil
	}
	if (lo == nil || bytes.Compare(lo, t.info.Lo) <= 0) && (hi == nil || bytes.Compare(hi, t.info.Hi) > 0) {
		return t.info.Size, nil
	}
	var within, total int64
	err = t.eachBlock(ctx, func(b dataBlock) bool {
		total = b.of
		switch {
		case lo != nil && bytes.Compare(b.sep, lo) < 0:
		case hi == nil || bytes.Compare(b.sep, hi) < 0:
			within += b.size
		default:
			// The block that hi is in counts half.
			within += b.size / 2
			return false
		}
		return true
	})
	if err != nil || total == 0 {
		return 0, readFailure(r.name, err)
	}
	// Index and filter belong to rows as well.
	return int64(float64(within) / float64(total) * float64(t.info.Size)), nil
}

// A dataBlock is what the index says of one.
type dataBlock struct {
	sep  []byte // a key from the last of the block on, before the first of the next
	end  int64  // offset of the block's end
	size int64
	of   int64 // all data blocks together
}

// eachBlock calls fn for the data blocks in order until fn returns false. The
// separator is valid during the call.
func (t *table) eachBlock(ctx context.Context, fn func(dataBlock) bool) error {
	l, err := t.sst.Layout()
	if err != nil {
		return err
	}
	var b dataBlock
	for _, bh := range l.Data {
		b.of += int64(bh.Length + block.TrailerLen)
	}
	for _, bh := range l.Index {
		more, err := t.eachInIndex(ctx, bh, &b, fn)
		if err != nil || !more {
			return err
		}
	}
	return nil
}

func (t *table) eachInIndex(ctx context.Context, bh block.Handle, b *dataBlock, fn func(dataBlock) bool) (bool, error) {
	h, err := t.sst.BlockReader().Read(ctx, block.NoReadEnv, nil, bh, blockkind.Index, colblk.InitIndexBlockMetadata)
	if err != nil {
		return false, err
	}
	defer h.Release()
	var it colblk.IndexIter
	if err := it.Init(comparer, h.BlockData(), sstable.NoTransforms); err != nil {
		return false, err
	}
	for ok := it.First(); ok; ok = it.Next() {
		data, err := it.BlockHandleWithProperties()
		if err != nil {
			return false, err
		}
		b.sep = it.Separator()
		b.size = int64(data.Length + block.TrailerLen)
		b.end += b.size
		if !fn(*b) {
			return false, nil
		}
	}
	return true, nil
}

// A Mark is a place in a file.
type Mark struct {
	// Row is a row prefix, of a row that the file need not have.
	Row []byte
	// Bytes is about how many bytes of the file come before Row.
	Bytes int64
}

// eachPlace calls fn, in order, for places in (Lo, Hi] and the bytes of data
// before them, until fn returns false. The row is fn's to keep.
func (t *table) eachPlace(ctx context.Context, fn func(row []byte, before, of int64) bool) error {
	last := t.info.Lo
	return t.eachBlock(ctx, func(b dataBlock) bool {
		at := b.end
		if n := cell.EscapedLen(b.sep); n >= 0 {
			// The block ends inside a row, or right before one. If the block
			// before did not, this is where the row begins.
			at = b.end - b.size
			if bytes.Equal(b.sep[:n], last) {
				return true
			}
		}
		row := rowAtOrBefore(b.sep)
		if bytes.Compare(row, last) <= 0 {
			return true
		}
		last = row
		return bytes.Compare(row, t.info.Hi) <= 0 && fn(row, at, b.of)
	})
}

// Marks returns places inside the file, ascending, after its first row and not
// after its last, about every step bytes. It reads index blocks only.
func (r *Reader) Marks(ctx context.Context, step int64) ([]Mark, error) {
	t, err := r.pin(ctx)
	if err != nil {
		return nil, err
	}
	defer t.unpin()
	var marks []Mark
	next := max(step, 1)
	err = t.eachPlace(ctx, func(row []byte, before, of int64) bool {
		pos := int64(float64(before) / float64(of) * float64(t.info.Size))
		if pos >= next {
			marks = append(marks, Mark{Row: row, Bytes: pos})
			next = pos + max(step, 1)
		}
		return true
	})
	if err != nil {
		return nil, readFailure(r.name, err)
	}
	return marks, nil
}

// rowAtOrBefore returns the row prefix made of as much of key as forms one. A
// key that the index made by shortening may end, or go wrong, anywhere.
func rowAtOrBefore(key []byte) []byte {
	if n := cell.EscapedLen(key); n >= 0 {
		return bytes.Clone(key[:n])
	}
	end := 0
	for end < len(key) {
		i := bytes.IndexByte(key[end:], 0x00)
		if i < 0 {
			end = len(key)
			break
		}
		if end+i+1 >= len(key) || key[end+i+1] != 0xFF {
			end += i
			break
		}
		end += i + 2
	}
	row, err := cell.RowOf(nil, append(bytes.Clone(key[:end]), 0x00, 0x01))
	if err != nil {
		panic(err) // escapes were just checked
	}
	return cell.AppendRow(nil, row)
}

// LargestRow returns the prefix of the row with most bytes of the file, and about how many
// they are. It reads index blocks only, so it does not tell apart rows that share a block.
func (r *Reader) LargestRow(ctx context.Context) (row []byte, size int64, err error) {
	t, err := r.pin(ctx)
	if err != nil {
		return nil, 0, err
	}
	defer t.unpin()
	last, from, all := t.info.Lo, int64(0), int64(0)
	note := func(to int64) {
		if to-from > size {
			row, size = last, to-from
		}
	}
	err = t.eachPlace(ctx, func(place []byte, before, of int64) bool {
		note(before)
		last, from, all = place, before, of
		return true
	})
	if err != nil {
		return nil, 0, readFailure(r.name, err)
	}
	if all == 0 { // there is one row, or one block
		return last, t.info.Size, nil
	}
	note(all)
	return row, int64(float64(size) / float64(all) * float64(t.info.Size)), nil
}

// MidRow returns a row prefix that parts what the file has of the rows between lo
// and hi into two about equal halves, the second beginning with that row. lo and
// hi are row prefixes; empty ones are before and behind all. It returns nil if one
// row is most of that and no such place exists.
func (r *Reader) MidRow(ctx context.Context, lo, hi []byte) ([]byte, error) {
	t, err := r.pin(ctx)
	if err != nil {
		return nil, err
	}
	defer t.unpin()
	inside := func(row []byte) bool {
		return bytes.Compare(row, lo) > 0 && (len(hi) == 0 || bytes.Compare(row, hi) < 0)
	}
	var from, to int64 // how many bytes come before lo, and before hi
	err = t.eachPlace(ctx, func(row []byte, before, of int64) bool {
		if bytes.Compare(row, lo) <= 0 {
			from = before
		}
		if to = of; len(hi) > 0 && bytes.Compare(row, hi) >= 0 {
			to = before
			return false
		}
		return true
	})
	var best []byte
	bestOff := int64(-1)
	if err == nil {
		mid := from + (to-from)/2
		err = t.eachPlace(ctx, func(row []byte, before, _ int64) bool {
			if off := max(before-mid, mid-before); inside(row) && (bestOff < 0 || off < bestOff) {
				best, bestOff = row, off
			}
			return before < mid
		})
	}
	if err != nil {
		return nil, readFailure(r.name, err)
	}
	if best == nil && !bytes.Equal(t.info.Lo, t.info.Hi) && inside(t.info.Hi) {
		return bytes.Clone(t.info.Hi), nil
	}
	return best, nil
}

// VerifyChecksums reads the whole file from storage, past the cache, and checks
// every block. An error that wraps fault.Corruption tells of the first bad one.
func (r *Reader) VerifyChecksums(ctx context.Context) error {
	t, err := r.pin(ctx)
	if err != nil {
		return err
	}
	defer t.unpin()
	o := r.cache.options
	o.CacheOpts.CacheHandle = nil
	// The Readable remains t's: it must not be closed here, so the second
	// reader on it is left to the garbage collector.
	sst, err := sstable.NewReader(ctx, &file{r: ctxReadable{t.f.r, ctx}}, o)
	if err != nil {
		return readFailure(r.name, err)
	}
	return readFailure(r.name, sst.ValidateBlockChecksums())
}

// ctxReadable gives reads a context where Pebble takes none.
type ctxReadable struct {
	Readable
	ctx context.Context
}

func (r ctxReadable) ReadAt(_ context.Context, p []byte, off int64) error {
	if err := r.ctx.Err(); err != nil {
		return err
	}
	return r.Readable.ReadAt(r.ctx, p, off)
}
