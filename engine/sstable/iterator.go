package sstable

import (
	"bytes"
	"context"
	"math"
	"sync"

	"github.com/cockroachdb/pebble/v2"
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
	// Before is what had to come from storage for earlier parts of the same read.
	Before uint64
	// Ahead, if set, is what the owner will probably read in order. Rows that SeekRow
	// finds do not count.
	Ahead *Ahead
	// Bloom, if set, counts what Bloom filters were asked.
	Bloom *BloomStats
}

// An Ahead is what an owner of Iterators, one at a time, will probably read: they take
// off what they have read, and what is left may be read at once.
type Ahead struct {
	// Bytes is the length of keys and values.
	Bytes int64
	// End is the key that they come before; nil means no bound.
	End []byte

	begun bool
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
	data       *stretch
	env        block.ReadEnv // its pool is for the index blocks of a compaction
	useTimes   bool
	times      sstable.BlockIntervalFilter
	// fillUntil is how much may come from storage, beside before, until it is asked
	// whether blocks still go to the cache; past says that they do not.
	fillUntil, before uint64
	past              bool
	// inOrder is how many blocks were entered one after the other before the current
	// one, which ends at behind.
	inOrder int
	behind  int64
	expect  *Ahead // may be nil
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
	i.fillUntil, i.before, i.expect = math.MaxUint64, o.Before, o.Ahead
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
	i.ctx, i.t, i.maxSeq, i.cur.plain, i.compact, i.past = ctx, t, cell.MaxSeq, t.plain, true, true
	i.env.BufferPool = new(block.BufferPool)
	i.env.BufferPool.Init(2) // for the levels of the index
	return i, nil
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
	bh, ok, err := i.look(in)
	i.fail(err)
	return bh, ok
}

func (i *Iterator) look(in *colblk.IndexIter) (bh block.Handle, ok bool, err error) {
	p, err := in.BlockHandleWithProperties()
	ok = err == nil
	if ok && i.useTimes {
		var times []byte
		if times, err = blockProperty(p.Props, i.t.timesID); err == nil {
			ok, err = i.times.Intersects(times)
		}
	}
	return p.Handle, ok && err == nil, err
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
	i.follow(bh)
	if i.data == nil {
		i.data = stretches.Get().(*stretch)
		i.data.of = i
	}
	i.cur.leave() // the next block may have the buffer
	if bh.Length >= longStored && !i.compact {
		turns := i.t.r.cache.turns
		if err := turns.Acquire(i.ctx, 1); err != nil {
			i.fail(err)
			return false
		}
		defer turns.Release(1)
	}
	n, err := i.read(bh)
	if err != nil {
		i.fail(err)
		return false
	}
	i.took(bh)
	i.here = n < largeBlock || i.compact || i.hold(n)
	return i.here
}

// follow notes which block is entered.
func (i *Iterator) follow(bh block.Handle) {
	if int64(bh.Offset) == i.behind {
		i.inOrder++
	} else {
		i.inOrder = 0
	}
	if e := i.expect; e != nil && !i.inRow {
		if e.begun && i.inOrder == 0 && i.behind > 0 {
			e.Bytes = 0 // the owner passes over what was expected
		}
		e.begun = true
	}
	i.behind = int64(bh.Offset+bh.Length) + block.TrailerLen
}

// read puts cur into a block, and returns how long that is.
func (i *Iterator) read(bh block.Handle) (int, error) {
	r := i.t.sst.BlockReader()
	i.data.at = bh
	if !i.leaveOut() {
		h, err := r.Read(i.ctx, i.env, i.data, bh, blockkind.SSTableData, initColumns)
		if err != nil {
			return 0, err
		}
		i.cur.enter(h)
		return len(h.BlockData()), nil
	}
	if v := r.GetFromCache(bh); v != nil {
		h := block.CacheBufferHandle(v)
		i.env.BlockServedFromCache(bh.Length)
		i.cur.enter(h)
		return len(h.BlockData()), nil
	}
	data, err := i.data.block(i.ctx, bh)
	if err != nil {
		return 0, err
	}
	if s := i.env.Stats; s != nil {
		s.BlockBytes += bh.Length
	}
	i.cur.enterColumns(&i.data.cols)
	return len(data), nil
}

// leaveOut tells whether the next block is to be left out of the cache, if it is not
// in it.
func (i *Iterator) leaveOut() bool {
	if s := i.env.Stats; !i.past && s != nil {
		read := s.BlockBytes - s.BlockBytesInCache
		if !i.inRow {
			read += i.before
		}
		if read >= i.fillUntil {
			i.past = i.t.r.cache.Full()
			i.fillUntil = read + i.t.r.cache.fill // ask again later
		}
	}
	return i.past || i.t.r.cache.leaveOut()
}

// took notes that a block was read that may have been expected.
func (i *Iterator) took(bh block.Handle) {
	if e := i.expect; e != nil && !i.inRow && e.Bytes > 0 {
		if e.Bytes -= i.share(bh); e.Bytes <= 0 {
			i.inOrder = 0 // little more is wanted, if anything
		}
	}
}

// share estimates the length of the keys and values that the owner wants of a block:
// the first is entered in its middle, on average.
func (i *Iterator) share(bh block.Handle) int64 {
	n := int64(float64(bh.Length) * i.t.rawPerByte)
	if i.inOrder == 0 {
		n /= 2
	}
	return n
}

// ahead returns how many bytes to read from the begin of a block that has to come from
// storage, so that others that follow it are there, too.
func (i *Iterator) ahead(bh block.Handle) int64 {
	most := int64(scanAheadBytes)
	want := int64(math.MaxInt64)
	var until []byte
	switch {
	case i.compact:
		most = aheadBytes
	case i.expect != nil && i.expect.Bytes > 0 && !i.inRow:
		want, until = i.expect.Bytes, i.expect.End
	case i.inOrder < 3:
		return 0
	default:
		most = min(most, 32<<10<<min(i.inOrder-2, 8))
	}
	first := int64(bh.Length) + block.TrailerLen
	n := first
	want -= i.share(bh)
	for in := i.index; want > 0 && n < most; {
		if until != nil && bytes.Compare(in.Separator(), until) >= 0 || !in.Next() {
			break
		}
		next, ok, err := i.look(&in)
		if err != nil || !ok || next.Offset != bh.Offset+uint64(n) || int64(next.Length) > most-n+blockRoom ||
			!i.compact && i.t.cached(next) {
			break
		}
		n += int64(next.Length) + block.TrailerLen
		want -= int64(float64(next.Length) * i.t.rawPerByte)
	}
	if n > first && !i.compact && !i.data.lend() {
		return 0
	}
	return n
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
		i.data.free()
	}
	if p := i.env.BufferPool; p != nil {
		p.Release()
	}
	for _, release := range i.releases {
		release()
	}
	i.held, i.releases = 0, nil
	i.t.unpin()
	i.ctx, i.t, i.data, i.err = nil, nil, nil, nil
	i.entry, i.env = cell.Entry{}, block.ReadEnv{}
	i.inRow, i.compact, i.column, i.open, i.here, i.useTimes = false, false, false, false, false, false
	i.past, i.inOrder, i.behind, i.expect = false, 0, 0, nil
	iterators.Put(i)
	return nil
}
