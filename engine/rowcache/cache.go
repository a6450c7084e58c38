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
type Cache struct {
	seed   maphash.Seed
	limit  int64 // of a shard, in bytes
	shards [shards]shard

	bytes, rows atomic.Int64
	budget      budget
}

const shards = 16

// budget takes memory from another cache as it is needed, in steps, since
// taking is not cheap. It is given back in the end only.
type budget struct {
	sync.Mutex
	take  func(n int) (giveBack func())
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
	sketch sketch
}

// New returns a Cache of at most limit bytes, which it gets from take as it
// grows: take(n) sets n bytes aside until the function that it returns is
// called. Nil means that the bytes are the Cache's anyway.
func New(limit int64, take func(n int) (giveBack func())) *Cache {
	c := &Cache{seed: maphash.MakeSeed(), limit: limit / shards}
	c.budget.take = take
	for i := range c.shards {
		s := &c.shards[i]
		s.byHash = map[uint64]*Entry{}
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
	n := s.sketch.add(h)
	if e := s.byHash[h]; e != nil && e.is(k) && e.state == k.State {
		e.used = true
		return e, false
	}
	return nil, n >= 2
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
	if size > c.limit/4 || !c.makeRoom(s, h, size) {
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
	for s.bytes+size > c.limit {
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
	if b.take == nil || n <= b.held.Load() {
		return
	}
	b.Lock()
	defer b.Unlock()
	for b.held.Load() < n {
		b.gives = append(b.gives, b.take(budgetStep))
		b.held.Add(budgetStep)
	}
}

// A sketch counts, approximately and never too little, how often hashes were
// added lately. After a quarter as many additions as there are counters it
// halves all of them: until then one hash in seven that was never added counts
// as one that was, and about ten times as many rows have been asked for as there
// are in a shard of usual rows.
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
