package sstable

import (
	"container/list"
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"golang.org/x/sync/semaphore"

	"github.com/trestledb/trestle/engine/budget"
	"github.com/trestledb/trestle/engine/fault"
)

// A Cache holds blocks of files in memory and bounds the number of open files.
// One Cache serves all tablets of a process.
//
// Of the files only those read lately are open. Opening one more than the limit
// closes another that was not used since the clock's hand last passed (second
// chance), as soon as no iterator is in it. Cached blocks of a closed file
// stay.
//
// One read of many rows, or of a large one, fills in no more than a part of the
// Cache. What it reads beyond that is looked up, but left out as long as the Cache
// is full: Pebble's clock would keep most of the blocks that are read again and
// again, but by no means all. What is scanned again and again comes in part by
// part.
//
// Of the blocks that other reads bring, a full Cache takes one in four. What is read
// often soon comes in all the same. Where more is read than has room, the others would
// displace what is as likely to be read. The price is memory that has to be allocated,
// cleared and collected each time.
//
// Buffers for reading ahead take up to a thirty-second of its size beside it; what finds no
// room is read block by block.
type Cache struct {
	blocks  *pebble.Cache
	fill    uint64                // how much one read may fill in
	tight   atomic.Bool           // it was full lately
	ahead   *budget.Budget        // of buffers that blocks are read ahead into
	options sstable.ReaderOptions // as every file is opened; holds the cache handle

	reserved                atomic.Int64
	held                    *budget.Budget      // of large blocks: see hold
	turns                   *semaphore.Weighted // of reading what may be one
	bloomSkips, bloomPasses atomic.Int64
	opens                   atomic.Int64
	// lookedHits and lookedMisses count lookups for the sake of reading ahead.
	lookedHits, lookedMisses atomic.Int64

	mu struct {
		sync.Mutex
		lastNum uint64
		byName  map[string]*Reader
		open    list.List // of *table, in the order the clock's hand visits
		maxOpen int
	}
}

// Metrics are counts since the Cache was made, and sizes as of now.
type Metrics struct {
	// Hits and Misses count lookups of blocks.
	Hits, Misses int64
	// Blocks and Bytes are what the Cache holds.
	Blocks, Bytes int64
	// Opens counts openings of files, OpenFiles the files open now.
	Opens     int64
	OpenFiles int
	// BloomSkips counts lookups of rows that a Bloom filter ended, BloomPasses
	// those that it let through.
	BloomSkips, BloomPasses int64
}

// NewCache returns a Cache of blockBytes bytes of blocks and at most maxOpen
// open files; zero means 256 MiB and 500 files. Close releases it.
func NewCache(blockBytes int64, maxOpen int) *Cache {
	if blockBytes == 0 {
		blockBytes = 256 << 20
	}
	if maxOpen == 0 {
		maxOpen = 500
	}
	c := &Cache{blocks: pebble.NewCache(blockBytes), fill: uint64(max(blockBytes/64, 1<<20)), ahead: budget.New(max(blockBytes/32, 4*stretchBytes)),
		turns: semaphore.NewWeighted(turns)}
	c.options.CacheOpts.CacheHandle = c.blocks.NewHandle()
	c.options.Comparer = comparer
	c.options.KeySchemas = sstable.MakeKeySchemas(&keySchema)
	c.mu.byName = map[string]*Reader{}
	c.mu.maxOpen = max(maxOpen, 1)
	return c
}

// Close releases the memory. All Readers must be closed.
func (c *Cache) Close() {
	c.options.CacheOpts.CacheHandle.Close()
	c.blocks.Unref()
}

// Full tells whether blocks displace others. That is taken to begin at seven
// eighths, as the parts of the Cache fill unevenly.
func (c *Cache) Full() bool {
	room := c.blocks.MaxSize() - c.reserved.Load()
	return c.blocks.Size() >= room-room/8
}

// leaveOut tells whether a block that a read brings is to be left out.
func (c *Cache) leaveOut() bool {
	r := rand.Uint32()
	if r%64 == 0 {
		c.tight.Store(c.Full())
	}
	return r>>30 != 0 && c.tight.Load()
}

// Reserve sets n of the Cache's bytes aside, until the function that it returns
// is called.
func (c *Cache) Reserve(n int) func() {
	giveBack := c.blocks.Reserve(n)
	c.reserved.Add(int64(n))
	return func() {
		c.reserved.Add(-int64(n))
		giveBack()
	}
}

const (
	// largeBlock is the length from which on a block counts that an iterator is in:
	// a cell that is longer than a block should be. An iterator of each run of each
	// read has one, beside the Cache or, once that has dropped it, beyond it.
	largeBlock = 256 << 10
	// longStored is the stored length from which on a block may be large, and is
	// read in turn: how long it is is known when it is decompressed only.
	longStored = 64 << 10
	// turns is how many such blocks are read at a time.
	turns = 4
)

var errHeld = budget.ReadsBusy("large cells that are being read")

// BoundLarge bounds what large blocks may have that iterators are in, in bytes:
// a read that needs more fails with Unavailable, a compaction does not. It is
// called before the Cache is used; without it there is no bound.
func (c *Cache) BoundLarge(bytes int64) { c.held = budget.New(bytes) }

// hold sets n bytes of the Cache aside for large blocks that iterators are in,
// until release is called. ok is false if there is no room.
func (c *Cache) hold(n int64) (release func(), ok bool) {
	if !c.held.Try(n) {
		return nil, false
	}
	giveBack := c.Reserve(int(n))
	return func() {
		giveBack()
		c.held.Release(n)
	}, true
}

// Hold sets n bytes more aside for a row that is read, and needs total bytes by
// now, until release is called. The error is Unavailable if others have them, and
// Exhausted if no row can have so many.
func (c *Cache) Hold(n, total int64) (release func(), err error) {
	release, ok := c.hold(n)
	switch {
	case ok:
		return release, nil
	case total > c.held.Limit():
		return nil, fault.New(fault.Exhausted,
			"The row needs more than the %d bytes of memory for large cells and rows; see --memory. It needs none if its families were made in the order of their names, and no condition of a filter holds it back", c.held.Limit())
	}
	return nil, errHeld
}

// Metrics returns the counts.
func (c *Cache) Metrics() Metrics {
	b := c.blocks.Metrics()
	c.mu.Lock()
	n := c.mu.open.Len()
	c.mu.Unlock()
	return Metrics{
		Hits: b.Hits - c.lookedHits.Load(), Misses: b.Misses - c.lookedMisses.Load(), Blocks: b.Count, Bytes: b.Size,
		Opens: c.opens.Load(), OpenFiles: n,
		BloomSkips: c.bloomSkips.Load(), BloomPasses: c.bloomPasses.Load(),
	}
}

// An OpenFunc opens the finished file of that name.
type OpenFunc func(ctx context.Context, name string) (Readable, error)

// Acquire returns the Reader of the file of that name. It calls open when the
// file is first read, and again whenever it is read after the Cache closed it.
// It does no I/O. A name means one file for as long as the Cache lives: all its
// users share a Reader. Each Acquire needs a Close of the Reader.
func (c *Cache) Acquire(name string, open OpenFunc) *Reader {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.mu.byName[name]
	if r == nil {
		c.mu.lastNum++
		r = &Reader{cache: c, name: name, num: c.mu.lastNum, open: open}
		c.mu.byName[name] = r
	}
	r.refs++
	return r
}

// Open returns a Reader of f alone, which stays open until the Reader is
// closed. When Open fails it closes f. The name is for messages.
func Open(ctx context.Context, c *Cache, f Readable, name string) (*Reader, error) {
	c.mu.Lock()
	c.mu.lastNum++
	r := &Reader{cache: c, name: name, num: c.mu.lastNum, refs: 1}
	c.mu.Unlock()
	t, err := r.load(ctx, f)
	if err != nil {
		return nil, err
	}
	r.table.Store(t)
	return r, nil
}

// admit adds an open file and closes others if there are too many now.
func (c *Cache) admit(t *table) {
	var victims []*table
	c.mu.Lock()
	if t.r.refs == 0 { // its Reader was closed meanwhile
		if t.r.table.CompareAndSwap(t, nil) {
			victims = append(victims, t)
		}
	} else {
		t.elem = c.mu.open.PushBack(t)
	}
	for hops := c.mu.open.Len(); c.mu.open.Len() > c.mu.maxOpen; {
		v := c.mu.open.Front().Value.(*table)
		if v == t || hops > 0 && v.used.Swap(false) {
			hops--
			c.mu.open.MoveToBack(v.elem)
			continue
		}
		if v.r.table.CompareAndSwap(v, nil) {
			victims = append(victims, v)
		}
		c.removeLocked(v)
	}
	c.mu.Unlock()
	for _, v := range victims {
		v.unpin()
	}
}

func (c *Cache) removeLocked(t *table) {
	if t.elem != nil {
		c.mu.open.Remove(t.elem)
		t.elem = nil
	}
}

// evict drops the blocks of a file that will not be read again.
func (c *Cache) evict(num uint64) {
	o := c.options.CacheOpts
	setNum(&o.FileNum, num)
	o.CacheHandle.EvictFile(o.FileNum)
}

// setNum assigns to a field whose type Pebble keeps internal.
func setNum[T ~uint64](dst *T, n uint64) { *dst = T(n) }
