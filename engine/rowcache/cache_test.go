package rowcache

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/trestledb/trestle/engine/cell"
)

func key(n int) Key {
	return Key{Tablet: 1, State: 1, Row: cell.AppendRow(nil, fmt.Appendf(nil, "row%06d", n))}
}

// entry returns a row with one cell of size bytes.
func entry(k Key, size int) *Entry {
	var b Builder
	b.Add(&cell.Entry{Key: cell.AppendCell(append([]byte(nil), k.Row...), 1, []byte("q"), 7), Value: make([]byte, size), Seq: 9})
	return b.Entry()
}

// ask reads a row through the Cache and tells whether it was there.
func ask(c *Cache, k Key, size int) bool {
	e, want := c.Get(k)
	if want {
		c.Put(k, entry(k, size))
	}
	return e != nil
}

func TestEntry(t *testing.T) {
	k := key(1)
	var b Builder
	var keys [][]byte
	for i := range 20 {
		at := cell.AppendCell(append([]byte(nil), k.Row...), 1, []byte{byte(2 * i)}, 7)
		keys = append(keys, at)
		b.Add(&cell.Entry{Key: at, Value: []byte{byte(i)}, Seq: cell.MaxSeq - cell.Seq(i), Kind: cell.Kind(i % 2)})
	}
	c := New(1<<20, nil)
	c.Put(k, b.Entry())
	e, _ := c.Get(k)
	var it Iterator
	it.Reset(e)
	n := 0
	for ok := it.SeekRow(k.Row); ok; ok = it.Next() {
		if g := it.Entry(); string(g.Key) != string(keys[n]) || len(g.Value) != 1 || g.Value[0] != byte(n) || g.Seq != cell.MaxSeq-cell.Seq(n) || g.Kind != cell.Kind(n%2) {
			t.Fatalf("cell %d is %+v", n, g)
		}
		n++
	}
	if n != 20 {
		t.Errorf("%d cells", n)
	}
	if it.SeekRow(key(2).Row) {
		t.Error("found another row")
	}
	for i, at := range keys {
		if !it.SeekGE(at) || it.Entry().Value[0] != byte(i) {
			t.Errorf("sought cell %d", i)
		}
		if ok := it.SeekLT(at); ok != (i > 0) || ok && it.Entry().Value[0] != byte(i-1) {
			t.Errorf("sought before cell %d", i)
		}
	}
	if it.SeekGE(append(keys[19], 0)) {
		t.Error("found something behind the row")
	}
}

// A row is found in the state in which it was put and in no other; an entry of
// an old state does not displace that of a newer one.
func TestStates(t *testing.T) {
	c := New(1<<20, nil)
	k := key(1)
	k.State = 5
	c.Put(k, entry(k, 10))
	for state, want := range map[uint64]bool{4: false, 5: true, 6: false} {
		k.State = state
		if e, _ := c.Get(k); (e != nil) != want {
			t.Errorf("state %d: found %v", state, e != nil)
		}
	}
	k.State = 4
	c.Put(k, entry(k, 10))
	if e, _ := c.Get(k); e != nil {
		t.Error("an old state displaced a newer one")
	}
	k.State = 6
	c.Put(k, entry(k, 10))
	if e, _ := c.Get(k); e == nil {
		t.Error("a newer state did not displace an old one")
	}
	k.Tablet = 2
	if e, _ := c.Get(k); e != nil {
		t.Error("found in another tablet")
	}
	k.Tablet, k.Part = 1, 2
	if e, _ := c.Get(k); e != nil {
		t.Error("found in another part")
	}
	if c.Rows() != 1 {
		t.Errorf("%d rows", c.Rows())
	}
}

// Rows that are read once, however many, displace none that are read often.
func TestScanDoesNotFlush(t *testing.T) {
	c := New(4<<20, nil)
	const hot = 1500
	for range 4 {
		for n := range hot {
			ask(c, key(n), 1000)
		}
	}
	for n := range 200_000 {
		ask(c, key(1_000_000+n), 1000)
		if n%10 == 0 { // the hot ones are read meanwhile
			ask(c, key(n/10%hot), 1000)
		}
	}
	hits := 0
	for n := range hot {
		if ask(c, key(n), 1000) {
			hits++
		}
	}
	if hits < hot*95/100 {
		t.Errorf("%d of %d hot rows are left", hits, hot)
	}
}

// What is hot changes, and the Cache follows.
func TestHotRowsChange(t *testing.T) {
	c := New(2<<20, nil)
	r := rand.New(rand.NewPCG(1, 1))
	for phase := range 3 {
		hits, asked := 0, 0
		for n := range 100_000 {
			if ask(c, key(phase*1_000_000+r.IntN(1000)), 1000) && n >= 50_000 {
				hits++
			}
			if n >= 50_000 {
				asked++
			}
		}
		if hits < asked*9/10 {
			t.Errorf("phase %d: %d hits of %d", phase, hits, asked)
		}
	}
}

// A lender counts what it has lent.
type lender struct {
	held atomic.Int64
	full bool
}

func (l *lender) Reserve(n int) func() {
	l.held.Add(int64(n))
	return func() { l.held.Add(int64(-n)) }
}

func (l *lender) Full() bool { return l.full }

// A Cache that finds next to nothing leaves its memory to a lender that could use
// it, and has it again when there is something to find.
func TestUselessCacheShrinks(t *testing.T) {
	const limit = 16 << 20
	for name, full := range map[string]bool{"lender is full": true, "lender has room": false} {
		t.Run(name, func(t *testing.T) {
			l := &lender{full: full}
			c := New(limit, l)
			r := rand.New(rand.NewPCG(1, 1))
			for range 500_000 {
				ask(c, key(r.IntN(2_000_000/5)), 100)
			}
			if small := c.Bytes() <= limit/8 && l.held.Load() <= limit/4; small != full {
				t.Errorf("it has %d bytes, set aside are %d, of %d", c.Bytes(), l.held.Load(), limit)
			}
			hits := 0
			for n := range 400_000 {
				if ask(c, key(int(r.ExpFloat64()*10_000)), 100) && n >= 300_000 {
					hits++
				}
			}
			if c.Bytes() < limit/4 || hits < 60_000 {
				t.Errorf("of 100,000 reads of few rows %d are hits, in %d bytes", hits, c.Bytes())
			}
			if c.Close(); l.held.Load() != 0 {
				t.Errorf("%d bytes were not given back", l.held.Load())
			}
		})
	}
}

// The Cache stays within its limit and has set aside what it uses.
func TestBudget(t *testing.T) {
	const limit = 8 << 20
	var l lender
	c := New(limit, &l)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 2))
			for range 30_000 {
				k := key(int(r.ExpFloat64() * 3000))
				k.State = 1 + uint64(r.IntN(2))
				e, want := c.Get(k)
				if e != nil {
					var it Iterator
					it.Reset(e)
					if !it.SeekRow(k.Row) {
						t.Error("the entry is of another row")
					}
				}
				if want {
					c.Put(k, entry(k, r.IntN(5000)))
				}
			}
		})
	}
	wg.Wait()
	var sum, rows int64
	for i := range c.shards {
		s := &c.shards[i]
		var n int64
		for _, e := range s.ring {
			n += e.size()
		}
		if n != s.bytes || len(s.ring) != len(s.byHash) {
			t.Errorf("shard %d says %d bytes, has %d, in %d and %d places", i, s.bytes, n, len(s.ring), len(s.byHash))
		}
		sum, rows = sum+n, rows+int64(len(s.ring))
	}
	if c.Bytes() != sum || c.Rows() != rows || sum > limit || sum < limit/2 {
		t.Errorf("%d bytes of %d rows, says %d and %d", sum, rows, c.Bytes(), c.Rows())
	}
	if held := l.held.Load(); held < sum || held > limit+budgetStep {
		t.Errorf("%d bytes are set aside for %d", held, sum)
	}
	if c.Close(); l.held.Load() != 0 {
		t.Errorf("%d bytes were not given back", l.held.Load())
	}
}

func BenchmarkGet(b *testing.B) {
	c := New(64<<20, nil)
	keys := make([]Key, 10_000)
	for i := range keys {
		keys[i] = key(i)
		c.Put(keys[i], entry(keys[i], 1000))
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		r := rand.New(rand.NewPCG(rand.Uint64(), 1))
		for pb.Next() {
			c.Get(keys[r.IntN(len(keys))])
		}
	})
}
