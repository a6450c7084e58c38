package sstable

import (
	"bytes"
	"context"
	"math"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/objstorage"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/sstable/block"
	"github.com/cockroachdb/pebble/v2/sstable/block/blockkind"
	"github.com/cockroachdb/pebble/v2/sstable/colblk"

	"github.com/trestledb/trestle/engine/cell"
)

// IterOptions say what an Iterator shows.
type IterOptions struct {
	// MaxSeq hides entries with larger sequence numbers. Zero hides nothing.
	MaxSeq cell.Seq
	// Times allows to hide blocks none of whose cells has a timestamp within
	// it. Cells outside may still show; tombstones always do. Nil hides nothing.
	Times *cell.TimeRange
	// OneColumn says that SeekColumn is asked for a column, whose cells are all
	// that is wanted: the filter can tell that the file has none.
	OneColumn bool
	// Blocks, if set, counts the blocks that are read. Once as much had to come
	// from storage as the cache lets one read fill in, further blocks are left out
	// of a cache that is full: see Cache.
	Blocks *BlockStats
	// Bloom, if set, counts what Bloom filters were asked.
	Bloom *BloomStats
}

// BloomStats counts lookups that a Bloom filter ended, and those that it let through.
type BloomStats struct{ Skips, Passes int64 }

// BlockStats counts index and data blocks: BlockBytes is their length in the
// file, BlockBytesInCache that of those which were in the cache.
type BlockStats = pebble.InternalIteratorStats

// An Iterator is a cell.Iterator over one file. It reads blocks and columns
// itself: Pebble's iterator puts together what a general key-value store needs, at
// twice the cost of an entry. It reads nothing until it is first moved to
// somewhere the file may have entries.
type Iterator struct {
	ctx     context.Context
	t       *table
	entry   cell.Entry
	cur     cursor // in a data block
	maxSeq  cell.Seq
	bloom   *BloomStats // may be nil
	inRow   bool        // since SeekRow
	compact bool
	column  bool   // SeekColumn's key is all that is wanted
	open    bool   // the top of the index is there
	here    bool   // cur is in the block that index is at
	row     []byte // of SeekRow; the capacity is kept
	err     error

	// index is in the index block that has the current data block; top, if the
	// index has two levels, in the block that has that one.
	index, top colblk.IndexIter
	data       objstorage.ReadHandle
	env        block.ReadEnv // its pool is for a compaction or a long read
	useTimes   bool
	times      sstable.BlockIntervalFilter
	// fillUntil is how much may come from storage before it is asked whether
	// blocks still go to the cache.
	fillUntil uint64
	// aside has the blocks of single rows that are left out of the cache, the
	// longest of which had so many bytes.
	aside   *block.BufferPool
	longest int
	// held is the length of the longest block so far, if that is large, and
	// releases give it back to the Cache.
	held     int
	releases []func()
}

var _ cell.Iterator = (*Iterator)(nil)

var iterators = sync.Pool{New: func() any { return new(Iterator) }}

// Iterator returns an iterator over the file, positioned nowhere. It reads with
// ctx until it is closed. Its entries' slices alias a cached block, and are
// valid until the next positioning call.
func (r *Reader) Iterator(ctx context.Context, o IterOptions) (*Iterator, error) {
	t, err := r.pin(ctx)
	if err != nil {
		return nil, err
	}
	i := iterators.Get().(*Iterator)
	i.ctx, i.t, i.maxSeq, i.env.Stats, i.cur.plain = ctx, t, o.MaxSeq, o.Blocks, t.plain
	i.column = o.OneColumn && t.info.FilterColumns
	i.fillUntil = math.MaxUint64
	i.bloom = o.Bloom
	if o.Blocks != nil {
		i.fillUntil = r.cache.fill
	}
	if o.MaxSeq == 0 {
		i.maxSeq = cell.MaxSeq
	}
	if o.Times != nil && *o.Times != cell.AllTime && t.timesID >= 0 {
		lo, hi := rangeInterval(*o.Times)
		// The filter of an empty range would pass nothing, not even tombstones.
		if i.useTimes = lo < hi; i.useTimes {
			i.times.Init(timesProperty, lo, hi, nil)
		}
	}
	return i, nil
}

// CompactionIterator returns an iterator over all entries of the file, for
// reading it from First, or a SeekGE, onwards. It reads storage in long
// stretches and leaves the block cache alone.
func (r *Reader) CompactionIterator(ctx context.Context) (*Iterator, error) {
	t, err := r.pin(ctx)
	if err != nil {
		return nil, err
	}
	i := iterators.Get().(*Iterator)
	i.ctx, i.t, i.maxSeq, i.cur.plain, i.compact, i.fillUntil = ctx, t, cell.MaxSeq, t.plain, true, math.MaxUint64
	i.usePool()
	return i, nil
}

func (i *Iterator) usePool() {
	i.env.BufferPool = new(block.BufferPool)
	i.env.BufferPool.Init(5)
}

// start forgets how the last positioning ended and makes sure that the index is
// there. It returns false if there is nothing to see, or on failure.
func (i *Iterator) start() bool {
	i.err, i.inRow = nil, false
	if i.open {
		return true
	}
	if i.t == nil {
		return false
	}
	if i.useTimes {
		if ok, err := i.times.Intersects(i.t.times); err != nil || !ok {
			i.fail(err)
			return false
		}
	}
	in := &i.index
	if i.t.twoLevel {
		in = &i.top
	}
	i.open = i.readIndex(in, i.t.indexBH)
	return i.open
}

// readIndex puts in into an index block.
func (i *Iterator) readIndex(in *colblk.IndexIter, bh block.Handle) bool {
	h, err := i.t.sst.BlockReader().Read(i.ctx, i.env, nil, bh, blockkind.SSTableIndex, colblk.InitIndexBlockMetadata)
	if err == nil {
		err = in.InitHandle(comparer, h, sstable.NoTransforms)
	}
	i.fail(err)
	return err == nil
}

// at returns the block that an index is at; ok is false if nothing that is looked
// for is in it, or on failure.
func (i *Iterator) at(in *colblk.IndexIter) (bh block.Handle, ok bool) {
	p, err := in.BlockHandleWithProperties()
	if err == nil && i.useTimes {
		var times []byte
		if times, err = blockProperty(p.Props, i.t.timesID); err == nil {
			ok, err = i.times.Intersects(times)
		}
		if err != nil || !ok {
			i.fail(err)
			return bh, false
		}
	}
	i.fail(err)
	return p.Handle, err == nil
}

// enterIndex puts index into the block that top is at, if the index has two
// levels. It returns false if there is nothing to see in it, or on failure.
func (i *Iterator) enterIndex() bool {
	if !i.t.twoLevel {
		return true
	}
	if bh, ok := i.at(&i.top); ok && i.readIndex(&i.index, bh) {
		return true
	}
	i.index.Invalidate() // it may be in the block before
	return false
}

// enter puts cur into the block that index is at. It returns false if there is
// nothing to see in it, or on failure.
func (i *Iterator) enter() bool {
	bh, ok := i.at(&i.index)
	if !ok {
		return false
	}
	if s := i.env.Stats; s != nil && s.BlockBytes-s.BlockBytesInCache >= i.fillUntil {
		i.stopFilling()
	}
	if i.data == nil {
		i.data = i.t.f.NewReadHandle(objstorage.NoReadBefore)
		if i.compact {
			i.data.SetupForCompaction()
		}
	}
	env := i.env
	if env.BufferPool == nil && i.inRow && i.t.r.cache.leaveOut() {
		if i.aside == nil {
			i.aside = i.t.r.cache.pool()
		}
		env.BufferPool = i.aside
	}
	if env.BufferPool != nil {
		i.cur.leave() // the next block may have the buffer
	}
	if bh.Length >= longStored && !i.compact {
		turns := i.t.r.cache.turns
		if err := turns.Acquire(i.ctx, 1); err != nil {
			i.fail(err)
			return false
		}
		defer turns.Release(1)
	}
	h, err := i.t.sst.BlockReader().Read(i.ctx, env, i.data, bh, blockkind.SSTableData, initColumns)
	if err != nil {
		i.fail(err)
		return false
	}
	i.cur.enter(h)
	n := len(h.BlockData())
	if i.aside != nil {
		i.longest = max(i.longest, n)
	}
	i.here = n < largeBlock || i.compact || i.hold(n)
	return i.here
}

// hold has the Cache count a block of n bytes that the iterator is in, until it
// is closed: a pool keeps the buffer. It returns false if there is no room.
func (i *Iterator) hold(n int) bool {
	if n <= i.held {
		return true
	}
	release, ok := i.t.r.cache.hold(int64(n - i.held))
	if !ok {
		i.cur.leave()
		i.err = errHeld
		return false
	}
	i.held, i.releases = n, append(i.releases, release)
	return true
}

// stopFilling makes a pool for the blocks to come if they are to be kept out of
// the cache.
func (i *Iterator) stopFilling() {
	if !i.t.r.cache.Full() {
		i.fillUntil += i.t.r.cache.fill // ask again later
		return
	}
	i.fillUntil = math.MaxUint64
	i.usePool()
}

func (i *Iterator) fail(err error) {
	if err != nil {
		i.err = readFailure(i.t.r.name, err)
	}
}

// nextBlock moves to the next data block that there is something to see in.
func (i *Iterator) nextBlock() bool {
	i.here = false
	for i.err == nil {
		for i.index.Next() {
			if i.enter() {
				return true
			}
			if i.err != nil {
				return false
			}
		}
		if !i.t.twoLevel || !i.top.Next() {
			return false
		}
		if i.enterIndex() && i.index.First() && i.enter() {
			return true
		}
	}
	return false
}

// previousBlock is nextBlock backwards.
func (i *Iterator) previousBlock() bool {
	i.here = false
	for i.err == nil {
		for i.index.Prev() {
			if i.enter() {
				return true
			}
			if i.err != nil {
				return false
			}
		}
		if !i.t.twoLevel || !i.top.Prev() {
			return false
		}
		if i.enterIndex() && i.index.Last() && i.enter() {
			return true
		}
	}
	return false
}

// forward makes the first visible entry from n on the current one.
func (i *Iterator) forward(n int) bool {
	for {
		for ; n < i.cur.c.rows; n++ {
			if k := i.cur.c.trailers.At(n); seq(k) <= i.maxSeq {
				i.cur.take(n, k, &i.entry)
				return true
			}
		}
		if !i.nextBlock() {
			return i.end()
		}
		n = 0
	}
}

// end is what a positioning method returns when there is no entry.
func (i *Iterator) end() bool {
	i.here = false
	i.cur.leave()
	return i.miss()
}

// miss is what SeekColumn returns when there is no entry of the row. The iterator stays in its
// block: the next row that is asked for may be in it.
func (i *Iterator) miss() bool {
	i.entry = cell.Entry{}
	return false
}

// First implements cell.Iterator.
func (i *Iterator) First() bool {
	i.here = false
	if !i.start() || i.t.twoLevel && !i.top.First() {
		return i.end()
	}
	if !(i.enterIndex() && i.index.First() && i.enter()) && !i.nextBlock() {
		return i.end()
	}
	return i.forward(0)
}

// SeekGE implements cell.Iterator.
func (i *Iterator) SeekGE(key []byte) bool { return i.start() && i.seekGE(key) }

func (i *Iterator) seekGE(key []byte) bool {
	if i.here {
		// Rows of a sorted batch are often in the same block. At an end of the block the
		// place may be in another.
		if n := i.cur.c.search(key); n > 0 && n < i.cur.c.rows {
			return i.forward(n)
		}
		i.here = false
	}
	if i.t.twoLevel && !i.top.SeekGE(key) {
		return i.end()
	}
	if i.enterIndex() && i.index.SeekGE(key) && i.enter() {
		return i.forward(i.cur.c.search(key))
	}
	if !i.nextBlock() {
		return i.end()
	}
	return i.forward(0)
}

// SeekRow implements cell.Iterator.
func (i *Iterator) SeekRow(row []byte) bool { return i.SeekColumn(row, row) }

// SeekColumn implements merge.ColumnSeeker for a file without markers. With
// IterOptions.OneColumn, a key that is not the row itself is a column's.
func (i *Iterator) SeekColumn(row, key []byte) bool {
	i.err = nil
	if !i.compact {
		var column []byte
		if i.column && len(key) > len(row) {
			column = key
		}
		if ok, err := i.t.mayHave(i.ctx, row, column, i.bloom); err != nil || !ok {
			i.fail(err)
			return i.miss()
		}
	}
	if !i.start() {
		return i.end()
	}
	i.inRow = true
	i.row = append(i.row[:0], row...)
	return i.seekGE(key) && i.stayInRow()
}

// stayInRow ends the iteration if the current entry is not in the row of SeekRow.
func (i *Iterator) stayInRow() bool { return bytes.HasPrefix(i.entry.Key, i.row) || i.miss() }

// Next implements cell.Iterator.
func (i *Iterator) Next() bool {
	return i.forward(i.cur.at+1) && (!i.inRow || i.stayInRow())
}

// SeekLT implements cell.Iterator.
func (i *Iterator) SeekLT(key []byte) bool {
	i.here = false
	if !i.start() {
		return i.end()
	}
	if i.t.twoLevel && !i.top.SeekGE(key) && !i.top.Last() {
		return i.end()
	}
	n := 0
	if i.enterIndex() && (i.index.SeekGE(key) || i.index.Last()) && i.enter() {
		n = i.cur.c.search(key)
	} else if !i.previousBlock() {
		return i.end()
	} else {
		n = i.cur.c.rows
	}
	for {
		for n--; n >= 0; n-- {
			if k := i.cur.c.trailers.At(n); seq(k) <= i.maxSeq {
				i.cur.take(n, k, &i.entry)
				return true
			}
		}
		if !i.previousBlock() {
			return i.end()
		}
		n = i.cur.c.rows
	}
}

// Entry implements cell.Iterator.
func (i *Iterator) Entry() *cell.Entry { return &i.entry }

// Error implements cell.Iterator.
func (i *Iterator) Error() error { return i.err }

// Close implements cell.Iterator. The Iterator must not be used again.
func (i *Iterator) Close() error {
	if i.t == nil {
		return nil
	}
	i.cur.leave()
	_, _ = i.index.Close(), i.top.Close() // which cannot fail
	if i.data != nil {
		_ = i.data.Close() // it has nothing to report
	}
	if p := i.env.BufferPool; p != nil {
		p.Release()
	}
	if i.aside != nil {
		i.t.r.cache.keep(i.aside, i.longest)
		i.aside, i.longest = nil, 0
	}
	for _, release := range i.releases {
		release()
	}
	i.held, i.releases = 0, nil
	i.t.unpin()
	i.ctx, i.t, i.data, i.err = nil, nil, nil, nil
	i.entry, i.env = cell.Entry{}, block.ReadEnv{}
	i.inRow, i.compact, i.column, i.open, i.here, i.useTimes = false, false, false, false, false, false
	iterators.Put(i)
	return nil
}
