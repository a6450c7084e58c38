package sstable

import (
	"bytes"
	"context"
	"math"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/sstable/block"

	"github.com/trestledb/trestle/engine/cell"
)

// IterOptions say what an Iterator shows.
type IterOptions struct {
	// MaxSeq hides entries with larger sequence numbers. Zero hides nothing.
	MaxSeq cell.Seq
	// Times allows to hide blocks none of whose cells has a timestamp within
	// it. Cells outside may still show; tombstones always do. Nil hides nothing.
	Times *cell.TimeRange
	// Blocks, if set, counts the blocks that are read. Once as much had to come
	// from storage as the cache lets one read fill in, further blocks are left out
	// of a cache that is full: see Cache.
	Blocks *BlockStats
}

// BlockStats counts index and data blocks: BlockBytes is their length in the
// file, BlockBytesInCache that of those which were in the cache.
type BlockStats = pebble.InternalIteratorStats

// iterator is a cell.Iterator over one file. It sets Pebble's iterator up only
// when it is first moved to somewhere the file may have entries.
type iterator struct {
	ctx     context.Context
	t       *table
	it      sstable.Iterator // nil until needed
	maxSeq  cell.Seq
	none    bool // no block intersects Times
	inRow   bool // since SeekRow
	compact bool
	entry   cell.Entry
	row     []byte // of SeekRow; the capacity is kept
	err     error

	blocks   *BlockStats
	useTimes bool
	times    sstable.BlockIntervalFilter
	filters  [1]sstable.BlockPropertyFilter
	pool     *block.BufferPool // of a compaction or a long read
	// fillUntil is how much may come from storage before it is asked whether
	// blocks still go to the cache.
	fillUntil uint64
	resume    []byte // scratch
}

var _ cell.Iterator = (*iterator)(nil)

var iterators = sync.Pool{New: func() any { return new(iterator) }}

// Iterator returns an iterator over the file, positioned nowhere. It reads with
// ctx until it is closed. Its entries' slices alias a cached block, and are
// valid until the next positioning call.
func (r *Reader) Iterator(ctx context.Context, o IterOptions) (cell.Iterator, error) {
	t, err := r.pin(ctx)
	if err != nil {
		return nil, err
	}
	i := iterators.Get().(*iterator)
	*i = iterator{ctx: ctx, t: t, row: i.row[:0], resume: i.resume[:0], maxSeq: o.MaxSeq, blocks: o.Blocks}
	i.fillUntil = math.MaxUint64
	if o.Blocks != nil {
		i.fillUntil = r.cache.fill
	}
	if o.MaxSeq == 0 {
		i.maxSeq = cell.MaxSeq
	}
	if o.Times != nil && *o.Times != cell.AllTime {
		lo, hi := rangeInterval(*o.Times)
		// Pebble's filter of an empty range would pass nothing, not even
		// tombstones.
		if i.useTimes = lo < hi; i.useTimes {
			i.times.Init(timesProperty, lo, hi, nil)
		}
	}
	return i, nil
}

// CompactionIterator returns an iterator over all entries of the file, for
// reading it from First, or a SeekGE, onwards: it reads storage in long
// stretches and leaves the block cache alone.
func (r *Reader) CompactionIterator(ctx context.Context) (cell.Iterator, error) {
	t, err := r.pin(ctx)
	if err != nil {
		return nil, err
	}
	i := iterators.Get().(*iterator)
	*i = iterator{ctx: ctx, t: t, row: i.row[:0], maxSeq: cell.MaxSeq, compact: true}
	return i, nil
}

// ready sets Pebble's iterator up. It returns false if there is nothing to
// iterate over.
func (i *iterator) ready() bool {
	if i.it != nil {
		return true
	}
	if i.none || i.err != nil || i.t == nil {
		return false
	}
	var err error
	if i.compact {
		i.pool = new(block.BufferPool)
		i.pool.Init(5)
		env := sstable.ReadEnv{Block: block.ReadEnv{BufferPool: i.pool}}
		i.it, err = i.t.sst.NewCompactionIter(sstable.NoTransforms, env,
			sstable.MakeTrivialReaderProvider(i.t.sst), sstable.AssertNoBlobHandles)
		if err == nil {
			i.it.SetContext(i.ctx)
		}
	} else {
		i.openPoint()
		return i.it != nil
	}
	if err != nil {
		i.it = nil
		i.fail(err)
		return false
	}
	return true
}

// openPoint sets up Pebble's iterator for reads, which puts blocks into the
// cache unless there is a pool for them. It stays nil if there is nothing to see,
// or on failure.
func (i *iterator) openPoint() {
	if i.filled() {
		i.stopFilling()
	}
	var filterer *sstable.BlockPropertiesFilterer
	var err error
	if i.useTimes {
		i.filters[0] = &i.times
		filterer, err = sstable.IntersectsTable(i.filters[:], nil, i.t.sst.UserProperties, nil)
		if err == nil && filterer == nil {
			i.none = true
			return
		}
	}
	var it sstable.Iterator
	if err == nil {
		it, err = i.t.sst.NewPointIter(i.ctx, sstable.IterOptions{
			Transforms: sstable.NoTransforms,
			Filterer:   filterer,
			Env:        sstable.ReadEnv{Block: block.ReadEnv{Stats: i.blocks, BufferPool: i.pool}},
			// mayHaveRow asks the filter, before it comes to this.
			FilterBlockSizeLimit: sstable.NeverUseFilterBlock,
			ReaderProvider:       sstable.MakeTrivialReaderProvider(i.t.sst),
			BlobContext:          sstable.AssertNoBlobHandles,
		})
	}
	if err != nil {
		i.fail(err)
		return
	}
	i.it = it
}

func (i *iterator) filled() bool {
	return i.blocks != nil && i.blocks.BlockBytes-i.blocks.BlockBytesInCache >= i.fillUntil
}

// stopFilling makes a pool for the blocks to come if they are to be kept out of
// the cache, and tells whether it did.
func (i *iterator) stopFilling() bool {
	if i.pool != nil || i.compact {
		return false
	}
	if !i.t.r.cache.full() {
		i.fillUntil += i.t.r.cache.fill // ask again later
		return false
	}
	i.fillUntil = math.MaxUint64
	i.pool = new(block.BufferPool)
	i.pool.Init(5)
	return true
}

// leaveCache puts an iterator that leaves the cache alone in the place of
// Pebble's, which is at the current entry, and moves to the next one.
func (i *iterator) leaveCache() bool {
	i.resume = append(i.resume[:0], i.entry.Key...)
	seq := i.entry.Seq
	err := i.it.Close()
	i.it = nil
	if err != nil {
		i.fail(err)
		return i.end()
	}
	if i.openPoint(); i.it == nil {
		return i.end()
	}
	for kv := i.it.SeekGE(i.resume, 0); kv != nil; kv = i.it.Next() {
		if cell.Seq(kv.K.SeqNum()) >= seq && bytes.Equal(kv.K.UserKey, i.resume) {
			continue
		}
		if i.inRow && !bytes.HasPrefix(kv.K.UserKey, i.row) {
			i.entry = cell.Entry{}
			return false
		}
		if i.take(&kv.K, kv.InPlaceValue()) {
			return true
		}
	}
	return i.end()
}

func (i *iterator) fail(err error) { i.err = readFailure(i.t.r.name, err) }

// take makes Pebble's entry the current one, unless MaxSeq hides it.
func (i *iterator) take(k *sstable.InternalKey, v []byte) bool {
	seq := cell.Seq(k.SeqNum())
	if seq > i.maxSeq {
		return false
	}
	i.entry = cell.Entry{Key: k.UserKey, Value: v, Seq: seq, Kind: cell.Kind(k.Kind())}
	return true
}

// end is what a positioning method returns when Pebble's iterator is out of
// entries.
func (i *iterator) end() bool {
	i.entry = cell.Entry{}
	if i.it == nil {
		return false // which err or none explains
	}
	if err := i.it.Error(); err != nil {
		i.fail(err)
	}
	return false
}

func (i *iterator) start() bool {
	i.err = nil
	i.inRow = false
	return i.ready()
}

func (i *iterator) First() bool {
	if !i.start() {
		return false
	}
	kv := i.it.First()
	for ; kv != nil; kv = i.it.Next() {
		if i.take(&kv.K, kv.InPlaceValue()) {
			return true
		}
	}
	return i.end()
}

func (i *iterator) SeekGE(key []byte) bool {
	if !i.start() {
		return false
	}
	kv := i.it.SeekGE(key, 0)
	for ; kv != nil; kv = i.it.Next() {
		if i.take(&kv.K, kv.InPlaceValue()) {
			return true
		}
	}
	return i.end()
}

func (i *iterator) SeekRow(row []byte) bool { return i.SeekColumn(row, row) }

// SeekColumn implements merge.ColumnSeeker for a file without markers.
func (i *iterator) SeekColumn(row, key []byte) bool {
	i.err = nil
	if !i.compact {
		ok, err := i.t.mayHaveRow(i.ctx, row)
		if err != nil {
			i.fail(err)
			return false
		}
		if !ok {
			i.entry = cell.Entry{}
			return false
		}
	}
	if !i.start() {
		return false
	}
	i.inRow = true
	i.row = append(i.row[:0], row...)
	kv := i.it.SeekGE(key, 0)
	for ; kv != nil; kv = i.it.Next() {
		if !bytes.HasPrefix(kv.K.UserKey, i.row) {
			i.entry = cell.Entry{}
			return false
		}
		if i.take(&kv.K, kv.InPlaceValue()) {
			return true
		}
	}
	return i.end()
}

func (i *iterator) Next() bool {
	if i.filled() && i.stopFilling() {
		return i.leaveCache()
	}
	for kv := i.it.Next(); kv != nil; kv = i.it.Next() {
		if i.inRow && !bytes.HasPrefix(kv.K.UserKey, i.row) {
			i.entry = cell.Entry{}
			return false
		}
		if i.take(&kv.K, kv.InPlaceValue()) {
			return true
		}
	}
	return i.end()
}

func (i *iterator) SeekLT(key []byte) bool {
	if !i.start() {
		return false
	}
	kv := i.it.SeekLT(key, 0)
	for ; kv != nil; kv = i.it.Prev() {
		if i.take(&kv.K, kv.InPlaceValue()) {
			return true
		}
	}
	return i.end()
}

func (i *iterator) Entry() *cell.Entry { return &i.entry }
func (i *iterator) Error() error       { return i.err }

func (i *iterator) Close() error {
	if i.t == nil {
		return nil
	}
	var err error
	if i.it != nil {
		err = readFailure(i.t.r.name, i.it.Close())
	}
	if i.pool != nil {
		i.pool.Release()
	}
	i.t.unpin()
	*i = iterator{row: i.row[:0], resume: i.resume[:0]}
	iterators.Put(i)
	return err
}
