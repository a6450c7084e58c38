package rowcache

import (
	"bytes"
	"hash/maphash"
	"sync"
	"sync/atomic"
)

// A Key names a row in one state of its tablet's SSTables.
type Key struct {
	Tablet uint64
	// State is a number that the tablet never had for other contents. Newer
	// states have larger ones.
	State uint64
	// Part is which of the SSTables the row is of, 0 for all of them. Numbers may
	// mean something else in another state.
	Part uint64
	// Row is the row's prefix, as cell.AppendRow makes it.
	Row []byte
}

// A Cache holds rows. It is safe for concurrent use.
//
// How much it may take follows from what that is good for: see shard.fit.
type Cache struct {
	seed   maphash.Seed
	limit  int64 // of a shard, in bytes
	shards [shards]shard

	bytes, rows atomic.Int64
	budget      budget
}

const shards = 16

// A Lender is a cache that another one gets memory from.
type Lender interface {
	// Reserve sets n bytes aside until the function that it returns is called.
	Reserve(n int) (giveBack func())
	// Full tells whether the lender could use more memory than it has.
	Full() bool
}

// budget takes memory from another cache as it is needed, in steps, since
// taking is not cheap.
type budget struct {
	sync.Mutex
	from  Lender
	held  atomic.Int64
	gives []func()
}

const budgetStep = 1 << 20

// A shard is a clock (second chance) of the entries whose hash says so.
type shard struct {
	mu     sync.Mutex
	byHash map[uint64]*Entry
	ring   []*Entry
	hand   int
	bytes  int64
	limit  int64
	sketch sketch
	// looked counts the lookups since fit, found those of them that found
	// something.
	looked, found int
}

// New returns a Cache of at most limit bytes, which it gets from another as it
// grows. Nil means that the bytes are the Cache's anyway.
func New(limit int64, from Lender) *Cache {
	c := &Cache{seed: maphash.MakeSeed(), limit: limit / shards}
	c.budget.from = from
	for i := range c.shards {
		s := &c.shards[i]
		s.byHash, s.limit = map[uint64]*Entry{}, c.limit
		s.sketch.init(c.limit / 32)
	}
	return c
}

// Close gives back the memory. The Cache is not used any more.
func (c *Cache) Close() {
	for _, give := range c.budget.gives {
		give()
	}
}

// Bytes returns how much memory the entries take, and Rows how many there are.
func (c *Cache) Bytes() int64 { return c.bytes.Load() }

// Rows returns the number of entries.
func (c *Cache) Rows() int64 { return c.rows.Load() }

// hash is of what mostly stays the same from state to state.
func (c *Cache) hash(k Key) uint64 {
	return maphash.Bytes(c.seed, k.Row) ^ (k.Tablet+k.Part<<32)*0x9e3779b97f4a7c15
}

// Get returns the entry of k, or nil. want tells that the row has been asked for
// often enough that Put is worth its while; it is false if there is an entry.
func (c *Cache) Get(k Key) (e *Entry, want bool) {
	h := c.hash(k)
	s := &c.shards[h%shards]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.looked++; s.looked >= fitEvery {
		c.fit(s)
	}
	n := s.sketch.add(h)
	e = s.byHash[h]
	if e != nil && e.is(k) && e.state == k.State {
		e.used = true
		s.found++
		return e, false
	}
	return nil, n >= 2 && (e != nil || s.admits(n))
}

const (
	// fitEvery is after how many lookups the size of a shard is thought over.
	fitEvery = 1024
	// worthwhile is the part of the lookups that all of the Cache's memory should
	// answer.
	worthwhile = 0.125
	// leastPart is what a shard keeps whatever its use, to see when that changes.
	leastPart = 1.0 / 16
)

// fit halves a shard that is full if its memory answers fewer lookups than it
// should, by the byte, while the lender is short of it. It doubles one that
// answers more. Where all rows are read alike, a block answers for several
// times as many of them as the same memory here. Where few are read most, those
// few stay.
func (c *Cache) fit(s *shard) {
	found := float64(s.found) / float64(s.looked)
	s.looked, s.found = 0, 0
	enough := worthwhile * float64(s.limit) / float64(c.limit)
	switch {
	case c.budget.from == nil || s.bytes < s.limit/4*3:
	case found >= enough:
		s.limit = min(2*s.limit, c.limit)
	case s.limit/2 >= int64(leastPart*float64(c.limit)) && c.budget.from.Full():
		s.limit /= 2
		for s.bytes > s.limit {
			if s.hand >= len(s.ring) {
				s.hand = 0
			}
			if e := s.ring[s.hand]; e.used {
				e.used = false
				s.hand++
			} else {
				c.remove(s, e)
			}
		}
		c.release()
	}
}

// admits tells whether a row that was asked for n times would find a place. It
// tries the next ones in the ring, so that what is asked again finds others.
func (s *shard) admits(n uint8) bool {
	if s.bytes+2*entryBytes <= s.limit || len(s.ring) == 0 {
		return true
	}
	for range 4 {
		if s.hand >= len(s.ring) {
			s.hand = 0
		}
		victim := s.ring[s.hand]
		if !victim.used && s.sketch.count(victim.hash) < n {
			return true
		}
		victim.used = false
		s.hand++
	}
	return false
}

// Put adds e, the entry of k, unless there are rows in its place that are read
// more often.
func (c *Cache) Put(k Key, e *Entry) {
	h := c.hash(k)
	s := &c.shards[h%shards]
	e.hash, e.tablet, e.state, e.part, e.row = h, k.Tablet, k.State, k.Part, bytes.Clone(k.Row)
	size := e.size()
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.byHash[h]; old != nil {
		if old.is(k) && old.state >= k.State {
			return
		}
		c.remove(s, old)
	}
	if size > s.limit/4 || !c.makeRoom(s, h, size) {
		return
	}
	s.byHash[h] = e
	e.at = len(s.ring)
	s.ring = append(s.ring, e)
	s.bytes += size
	c.rows.Add(1)
	c.hold(c.bytes.Add(size))
}

// makeRoom evicts entries that are asked for less often than that of hash h
// until there is room for size bytes. It gives up at the first that is not.
func (c *Cache) makeRoom(s *shard, h uint64, size int64) bool {
	for s.bytes+size > s.limit {
		if s.hand >= len(s.ring) {
			s.hand = 0
		}
		victim := s.ring[s.hand]
		if victim.used {
			victim.used = false
			s.hand++
			continue
		}
		if s.sketch.count(victim.hash) >= s.sketch.count(h) {
			s.hand++
			return false
		}
		c.remove(s, victim)
	}
	return true
}

// remove takes e out of s. The last of the ring takes its place.
func (c *Cache) remove(s *shard, e *Entry) {
	delete(s.byHash, e.hash)
	last := len(s.ring) - 1
	s.ring[e.at] = s.ring[last]
	s.ring[e.at].at = e.at
	s.ring[last] = nil
	s.ring = s.ring[:last]
	s.bytes -= e.size()
	c.rows.Add(-1)
	c.bytes.Add(-e.size())
}

// hold sees to it that n bytes are set aside.
func (c *Cache) hold(n int64) {
	b := &c.budget
	if b.from == nil || n <= b.held.Load() {
		return
	}
	b.Lock()
	defer b.Unlock()
	for b.held.Load() < n {
		b.gives = append(b.gives, b.from.Reserve(budgetStep))
		b.held.Add(budgetStep)
	}
}

// release gives back what is not needed.
func (c *Cache) release() {
	b := &c.budget
	b.Lock()
	defer b.Unlock()
	for b.held.Load()-2*budgetStep >= c.bytes.Load() {
		last := len(b.gives) - 1
		b.gives[last]()
		b.gives = b.gives[:last]
		b.held.Add(-budgetStep)
	}
}

// A sketch counts, approximately and never too little, how often hashes were
// added lately. After a quarter as many additions as there are counters it
// halves all of them. Until then one hash in seven that was never added counts
// as one that was. By then about ten times as many rows have been asked for as
// there are in a shard of usual rows.
type sketch struct {
	counts []uint8 // a power of two of them
	adds   int
}

const maxCount = 15

func (s *sketch) init(counters int64) {
	n := int64(256)
	for n < counters && n < 1<<20 {
		n *= 2
	}
	s.counts = make([]uint8, n)
}

// places returns the two counters of h. The low bits chose the shard.
func (s *sketch) places(h uint64) (a, b *uint8) {
	mask := uint64(len(s.counts) - 1)
	return &s.counts[h>>8&mask], &s.counts[h>>36&mask]
}

// add counts h once more and returns the count.
func (s *sketch) add(h uint64) uint8 {
	a, b := s.places(h)
	n := min(*a, *b)
	if n < maxCount {
		n++
		*a, *b = max(*a, n), max(*b, n)
	}
	if s.adds++; s.adds >= len(s.counts)/4 {
		s.adds = 0
		for i := range s.counts {
			s.counts[i] /= 2
		}
	}
	return n
}

func (s *sketch) count(h uint64) uint8 {
	a, b := s.places(h)
	return min(*a, *b)
}
