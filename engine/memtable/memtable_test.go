package memtable

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/trestledb/trestle/engine/cell"
)

func collect(it cell.Iterator, ok bool) []cell.Entry {
	var out []cell.Entry
	for ; ok; ok = it.Next() {
		out = append(out, *it.Entry())
	}
	return out
}

func equal(a, b []cell.Entry) bool {
	return slices.EqualFunc(a, b, func(a, b cell.Entry) bool {
		return bytes.Equal(a.Key, b.Key) && bytes.Equal(a.Value, b.Value) && a.Seq == b.Seq && a.Kind == b.Kind
	})
}

func TestEmpty(t *testing.T) {
	m := New()
	if !m.Empty() || m.Count() != 0 || m.Bytes() != 0 || m.MinSeq() != 0 || m.MaxSeq() != 0 {
		t.Errorf("a new memtable has %d entries, %d bytes, sequence numbers %d to %d", m.Count(), m.Bytes(), m.MinSeq(), m.MaxSeq())
	}
	it := m.Iterator(cell.MaxSeq)
	defer it.Close()
	if it.First() || it.SeekGE(nil) || it.SeekRow([]byte{0, 1}) || it.SeekLT([]byte("z")) || it.Error() != nil {
		t.Error("an iterator over nothing found something")
	}
}

// TestModel compares every operation with a sorted slice.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := New()
		var model []cell.Entry
		part := rapid.SliceOfN(rapid.ByteRange(0, 3), 0, 4)
		key := func(label string) []byte {
			return cell.AppendCell(cell.AppendRow(nil, part.Draw(t, label+" row")), 1, part.Draw(t, label+" column"), 7)
		}
		seqs := rapid.Permutation(rng(200)).Draw(t, "seqs")
		visible := func(seq cell.Seq) []cell.Entry {
			return slices.DeleteFunc(slices.Clone(model), func(e cell.Entry) bool { return e.Seq > seq })
		}
		// One iterator lives through all the adds.
		long := m.Iterator(cell.MaxSeq)
		defer long.Close()
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				if len(seqs) == 0 {
					t.Skip("no sequence numbers left")
				}
				n := rapid.SampledFrom([]int{0, 1, 9, 1000, 30_000, 200_000}).Draw(t, "value length")
				e := cell.Entry{Key: key("add"), Value: bytes.Repeat([]byte{byte(n)}, n), Seq: cell.Seq(seqs[0]),
					Kind: cell.Kind(rapid.IntRange(0, 1).Draw(t, "kind"))}
				seqs = seqs[1:]
				if rapid.Bool().Draw(t, "in parts") {
					i := rapid.IntRange(0, len(e.Key)).Draw(t, "split")
					m.AddParts(e.Key[:i], e.Key[i:], e.Value, e.Seq, e.Kind)
				} else {
					arg := e
					arg.Key, arg.Value = bytes.Clone(e.Key), bytes.Clone(e.Value)
					m.Add(&arg)
					clear(arg.Key)
					clear(arg.Value)
				}
				i, _ := slices.BinarySearchFunc(model, e, func(a, b cell.Entry) int { return cell.Compare(&a, &b) })
				model = slices.Insert(model, i, e)
			},
			"scan": func(t *rapid.T) {
				seq := cell.Seq(rapid.IntRange(0, 201).Draw(t, "seq"))
				it := m.Iterator(seq)
				defer it.Close()
				if got, want := collect(it, it.First()), visible(seq); !equal(got, want) {
					t.Fatalf("scan at %d gives %d entries, want %d", seq, len(got), len(want))
				}
				if got := collect(long, long.First()); !equal(got, model) {
					t.Fatalf("scan by an old iterator gives %d entries, want %d", len(got), len(model))
				}
			},
			"seek": func(t *rapid.T) {
				seq := cell.Seq(rapid.IntRange(0, 201).Draw(t, "seq"))
				k := key("seek")
				k = k[:rapid.IntRange(0, len(k)).Draw(t, "cut")]
				want := visible(seq)
				it := m.Iterator(seq)
				defer it.Close()
				i, _ := slices.BinarySearchFunc(want, k, func(a cell.Entry, k []byte) int { return bytes.Compare(a.Key, k) })
				if got := collect(it, it.SeekGE(k)); !equal(got, want[i:]) {
					t.Fatalf("SeekGE(%x) at %d gives %d entries, want %d", k, seq, len(got), len(want)-i)
				}
				if ok := it.SeekLT(k); ok != (i > 0) || ok && !bytes.Equal(it.Entry().Key, want[i-1].Key) {
					t.Fatalf("SeekLT(%x) at %d: %v, want %v", k, seq, ok, i > 0)
				} else if ok && !slices.ContainsFunc(want, func(e cell.Entry) bool { return equal([]cell.Entry{e}, []cell.Entry{*it.Entry()}) }) {
					t.Fatalf("SeekLT(%x) at %d gives an entry that is not visible", k, seq)
				}
				row := k[:cell.RowPrefixLen(k)]
				inRow := func(es []cell.Entry) []cell.Entry {
					for i := range es {
						if !bytes.HasPrefix(es[i].Key, row) {
							return es[:i]
						}
					}
					return es
				}
				i, _ = slices.BinarySearchFunc(want, row, func(a cell.Entry, k []byte) int { return bytes.Compare(a.Key, k) })
				if got := inRow(collect(it, it.SeekRow(row))); !equal(got, inRow(want[i:])) {
					t.Fatalf("SeekRow(%x) at %d gives %d entries", row, seq, len(got))
				}
			},
			"": func(t *rapid.T) {
				if m.Count() != len(model) || m.Empty() != (len(model) == 0) {
					t.Fatalf("count is %d, want %d", m.Count(), len(model))
				}
				var lo, hi cell.Seq
				size := int64(0)
				for i, e := range model {
					if i == 0 || e.Seq < lo {
						lo = e.Seq
					}
					hi = max(hi, e.Seq)
					size += int64(len(e.Key) + len(e.Value))
				}
				if m.MinSeq() != lo || m.MaxSeq() != hi {
					t.Fatalf("sequence numbers %d to %d, want %d to %d", m.MinSeq(), m.MaxSeq(), lo, hi)
				}
				if m.Bytes() < size {
					t.Fatalf("%d bytes hold %d bytes of keys and values", m.Bytes(), size)
				}
			},
		})
	})
}

func rng(n int) []int {
	s := make([]int, n)
	for i := range s {
		s[i] = i + 1
	}
	return s
}

func TestSequentialAndReverse(t *testing.T) {
	const n = 20_000
	for _, reverse := range []bool{false, true} {
		m := New()
		for i := range n {
			k := i
			if reverse {
				k = n - 1 - i
			}
			m.AddParts([]byte("row"), binary.BigEndian.AppendUint32(nil, uint32(k)), nil, cell.Seq(i+1), cell.Set)
		}
		it := m.Iterator(cell.MaxSeq)
		got := collect(it, it.First())
		it.Close()
		if len(got) != n || !slices.IsSortedFunc(got, func(a, b cell.Entry) int { return cell.Compare(&a, &b) }) {
			t.Errorf("reverse %v: %d entries, sorted wrongly", reverse, len(got))
		}
	}
}

// TestSample: a sample ascends, has about as many keys as asked for, and parts of about one size.
func TestSample(t *testing.T) {
	m := New()
	if keys := m.Sample(10); len(keys) != 0 {
		t.Errorf("a sample of nothing: %x", keys)
	}
	const n = 30000
	for i, k := range rand.New(rand.NewPCG(1, 2)).Perm(n) {
		m.Add(&cell.Entry{Key: binary.BigEndian.AppendUint32(nil, uint32(k)), Seq: cell.Seq(i + 1)})
		if i == 4 {
			if keys := m.Sample(10); len(keys) != 5 {
				t.Errorf("a sample of five entries: %x", keys)
			}
		}
	}
	const parts = 8
	keys := m.Sample(64 * parts)
	if len(keys) < 64*parts || len(keys) > 5*64*parts {
		t.Errorf("%d keys for %d", len(keys), 64*parts)
	}
	last := -1
	for i, k := range keys {
		at := int(binary.BigEndian.Uint32(k))
		if want := i * n / len(keys); at <= last || at < want-n/parts || at > want+n/parts {
			t.Errorf("key %d of %d is %d of %d, behind %d", i, len(keys), at, n, last)
		}
		last = at
	}
}

func TestMemory(t *testing.T) {
	m := New()
	m.Add(&cell.Entry{Key: []byte("k"), Seq: 1, Kind: cell.Set})
	if m.Bytes() != firstChunk {
		t.Errorf("a memtable of one small entry takes %d bytes, want %d", m.Bytes(), firstChunk)
	}
	big := make([]byte, 100<<20)
	m.Add(&cell.Entry{Key: []byte("big"), Value: big, Seq: 2, Kind: cell.Set})
	if extra := m.Bytes() - firstChunk - int64(len(big)); extra < 0 || extra > 1024 {
		t.Errorf("a value of its own chunk costs %d bytes more than its length", extra)
	}
	before := m.Bytes()
	const n, size = 10_000, 1000
	for i := range n {
		m.Add(&cell.Entry{Key: binary.BigEndian.AppendUint32(nil, uint32(i)), Value: make([]byte, size), Seq: cell.Seq(i + 3), Kind: cell.Set})
	}
	if used := m.Bytes() - before; used > n*(size+64)+chunkSize {
		t.Errorf("%d entries of %d bytes take %d bytes", n, size, used)
	}
}

func TestSameVersionTwicePanics(t *testing.T) {
	m := New()
	e := &cell.Entry{Key: []byte("k"), Seq: 1, Kind: cell.Set}
	m.Add(e)
	defer func() {
		if recover() == nil {
			t.Error("the same key and sequence number were added twice")
		}
	}()
	m.Add(e)
}

// TestEntriesOutliveMemtable checks that what an iterator returned is not
// freed or reused while it is referred to.
func TestEntriesOutliveMemtable(t *testing.T) {
	var kept []cell.Entry
	func() {
		m := New()
		for i := range 5000 {
			m.Add(&cell.Entry{Key: fmt.Appendf(nil, "key%04d", i), Value: fmt.Appendf(nil, "value%d", i), Seq: cell.Seq(i + 1), Kind: cell.Set})
		}
		it := m.Iterator(cell.MaxSeq)
		defer it.Close()
		kept = collect(it, it.First())
	}()
	runtime.GC()
	for i := range 50 { // reuse freed memory, if any was
		m := New()
		m.Add(&cell.Entry{Key: []byte("x"), Value: bytes.Repeat([]byte("x"), 100<<10), Seq: cell.Seq(i + 1), Kind: cell.Set})
	}
	for i, e := range kept {
		if string(e.Key) != fmt.Sprintf("key%04d", i) || string(e.Value) != fmt.Sprintf("value%d", i) {
			t.Fatalf("entry %d became %q = %q", i, e.Key, e.Value)
		}
	}
}

// TestConcurrentReaders lets readers run while entries are added. Sequence
// number s adds the keys s%rows and s%rows+rows together, then becomes visible;
// so at any visible number both halves of a pair have the same newest version.
func TestConcurrentReaders(t *testing.T) {
	const rows, writes, readers = 50, 20_000, 3
	m := New()
	key := func(i int) []byte { return cell.AppendRow(nil, fmt.Appendf(nil, "%04d", i)) }
	var visible atomic.Uint64
	var done atomic.Bool
	var wg sync.WaitGroup
	for r := range readers {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(r), 1))
			for !done.Load() {
				seq := cell.Seq(visible.Load())
				it := m.Iterator(seq)
				i := rnd.IntN(rows)
				newest := func(i int) cell.Seq {
					if !it.SeekRow(key(i)) {
						return 0
					}
					e := it.Entry()
					if e.Seq > seq || binary.BigEndian.Uint64(e.Value) != uint64(e.Seq) {
						t.Errorf("at %d row %d has an entry of %d with value %x", seq, i, e.Seq, e.Value)
					}
					return e.Seq
				}
				if a, b := newest(i), newest(i+rows); a != b {
					t.Errorf("at %d row %d is of %d and row %d of %d", seq, i, a, i+rows, b)
				}
				if want := min(int(seq), 2*rows); rnd.IntN(100) == 0 {
					n, distinct := 0, 0
					var last cell.Entry
					for ok := it.First(); ok; ok = it.Next() {
						e := *it.Entry()
						if n > 0 && cell.Compare(&last, &e) >= 0 {
							t.Errorf("at %d %x@%d comes before %x@%d", seq, last.Key, last.Seq, e.Key, e.Seq)
						}
						if !bytes.Equal(last.Key, e.Key) {
							distinct++
						}
						last, n = e, n+1
					}
					if n != 2*int(seq) || seq > 2*rows && distinct != want {
						t.Errorf("at %d there are %d entries of %d keys", seq, n, distinct)
					}
				}
				if it.SeekLT(key(i+1)) && it.Entry().Seq > seq {
					t.Errorf("at %d SeekLT gives an entry of %d", seq, it.Entry().Seq)
				}
				it.Close()
			}
		})
	}
	for s := 1; s <= writes && !t.Failed(); s++ {
		value := binary.BigEndian.AppendUint64(nil, uint64(s))
		m.AddParts(key(s%rows), nil, value, cell.Seq(s), cell.Set)
		m.AddParts(nil, key(s%rows+rows), value, cell.Seq(s), cell.Set)
		visible.Store(uint64(s))
	}
	done.Store(true)
	wg.Wait()
}

func TestNoAllocations(t *testing.T) {
	m := New()
	for i := range 1000 {
		m.Add(&cell.Entry{Key: cell.AppendRow(nil, fmt.Appendf(nil, "%04d", i)), Seq: cell.Seq(i + 1), Kind: cell.Set})
	}
	it := m.Iterator(cell.MaxSeq)
	defer it.Close()
	k := cell.AppendRow(nil, []byte("0500"))
	if n := testing.AllocsPerRun(100, func() {
		for ok := it.SeekGE(k); ok; ok = it.Next() {
			_ = it.Entry()
		}
		it.SeekRow(k)
		it.SeekLT(k)
	}); n != 0 {
		t.Errorf("iterating allocates %v times", n)
	}
}

// benchKey is a key of 100 million rows, as a one-cell row has it.
func benchKey(dst []byte, i uint64) []byte {
	var row [16]byte
	copy(row[:], "user")
	for j := 15; j >= 4; j-- {
		row[j] = '0' + byte(i%10)
		i /= 10
	}
	return cell.AppendCell(cell.AppendRow(dst[:0], row[:]), 1, []byte("q"), 1_700_000_000_000_000)
}

const benchLimit = 64 << 20

func benchmarkAdd(b *testing.B, valueSize int, next func(i int) uint64) {
	value := make([]byte, valueSize)
	m := New()
	var key []byte
	b.SetBytes(int64(valueSize))
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		if m.Bytes() >= benchLimit {
			m = New()
		}
		i++
		key = benchKey(key, next(i))
		m.AddParts(key, nil, value, cell.Seq(i), cell.Set)
	}
}

func BenchmarkAdd(b *testing.B) {
	rnd := rand.New(rand.NewPCG(1, 2))
	random := func(int) uint64 { return rnd.Uint64N(1e8) }
	sequential := func(i int) uint64 { return uint64(i) }
	for _, size := range []int{100, 1024} {
		b.Run(fmt.Sprintf("random/value=%d", size), func(b *testing.B) { benchmarkAdd(b, size, random) })
		b.Run(fmt.Sprintf("sequential/value=%d", size), func(b *testing.B) { benchmarkAdd(b, size, sequential) })
	}
}

func benchTable(size int) *Memtable {
	rnd := rand.New(rand.NewPCG(1, 2))
	m := New()
	value := make([]byte, size)
	for i := 1; m.Bytes() < benchLimit; i++ {
		m.AddParts(benchKey(nil, rnd.Uint64N(1e8)), nil, value, cell.Seq(i), cell.Set)
	}
	return m
}

func BenchmarkNext(b *testing.B) {
	for _, size := range []int{100, 1024} {
		m := benchTable(size)
		b.Run(fmt.Sprintf("value=%d", size), func(b *testing.B) {
			it := m.Iterator(cell.MaxSeq)
			defer it.Close()
			ok := it.First()
			for b.Loop() {
				if ok = ok && it.Next(); !ok {
					ok = it.First()
				}
			}
		})
	}
}

func BenchmarkSeekGE(b *testing.B) {
	for _, size := range []int{100, 1024} {
		m := benchTable(size)
		b.Run(fmt.Sprintf("value=%d", size), func(b *testing.B) {
			rnd := rand.New(rand.NewPCG(3, 4))
			var key []byte
			b.ReportAllocs()
			for b.Loop() {
				it := m.Iterator(cell.MaxSeq)
				key = benchKey(key, rnd.Uint64N(1e8))
				it.SeekGE(key)
				it.Close()
			}
		})
	}
}

// TestRecordingMemory: to keep the order of commit takes 64 bytes of a memtable at most, and none
// of an entry but those of the marks.
func TestRecordingMemory(t *testing.T) {
	allocated := func(do func()) int64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		do()
		runtime.ReadMemStats(&after)
		return int64(after.TotalAlloc - before.TotalAlloc)
	}
	const many = 1000
	kept := make([]*Memtable, many)
	each := func(create func() *Memtable) int64 {
		return allocated(func() {
			for i := range kept {
				kept[i] = create()
			}
		}) / many
	}
	plain := each(New)
	if n := each(NewRecording) - plain; n > 64 {
		t.Errorf("an empty memtable that records takes %d bytes more", n)
	} else {
		t.Logf("an empty memtable that records takes %d bytes more, of %d", n, plain+n)
	}
	fill := func(m *Memtable) int64 {
		key := cell.AppendCell(cell.AppendRow(nil, []byte("row")), 1, []byte("q"), 7)
		return allocated(func() {
			for i := range 100 * many {
				m.BeginRecord()
				m.AddParts(key, nil, nil, cell.Seq(i+1), cell.Set)
			}
		})
	}
	a, b := New(), NewRecording()
	without, with := fill(a), fill(b)
	if a.Bytes() != b.Bytes() {
		t.Errorf("%d bytes hold the entries, and %d with their order", a.Bytes(), b.Bytes())
	}
	t.Logf("%d bytes were allocated for %d records, and %d with their order", without, 100*many, with)
}

// TestCommits compares the order of commit with a plain list, from every place.
func TestCommits(t *testing.T) {
	type op struct {
		e      cell.Entry
		begins bool
	}
	rnd := rand.New(rand.NewPCG(7, 8))
	m, plain := NewRecording(), New()
	var want []op
	var starts []cell.Seq
	seq := cell.Seq(1 << 50)
	check := func(after, through cell.Seq) {
		t.Helper()
		it := m.Commits(after, through)
		var got []op
		for it.Next() {
			got = append(got, op{*it.Entry(), it.Begins()})
		}
		if it.Next() {
			t.Fatalf("after %d there is more behind the end", after)
		}
		var expect []op
		begun := false
		for _, o := range want {
			if begun = begun || o.begins && o.e.Seq > after; begun && o.e.Seq <= through {
				expect = append(expect, o)
			}
		}
		if !slices.EqualFunc(got, expect, func(a, b op) bool {
			return a.begins == b.begins && equal([]cell.Entry{a.e}, []cell.Entry{b.e})
		}) {
			t.Fatalf("after %d through %d there are %d operations, want %d", after, through, len(got), len(expect))
		}
	}
	check(0, cell.MaxSeq)
	for range 5000 {
		m.BeginRecord()
		plain.BeginRecord()
		row := cell.AppendRow(nil, fmt.Appendf(nil, "%03d", rnd.IntN(300)))
		for i := range 1 + rnd.IntN(3) {
			seq += 32 * cell.Seq(1+rnd.IntN(3))
			e := cell.Entry{Key: cell.AppendCell(slices.Clone(row), 1, []byte{byte(i)}, 7), Value: make([]byte, rnd.IntN(50)), Seq: seq, Kind: cell.Set}
			if rnd.IntN(4) == 0 {
				e.Kind = cell.Recorded
			}
			m.Add(&e)
			plain.Add(&e)
			want = append(want, op{e, i == 0})
		}
		starts = append(starts, seq)
	}
	check(0, cell.MaxSeq)
	check(seq, cell.MaxSeq)
	for range 50 {
		after := starts[rnd.IntN(len(starts))] + cell.Seq(rnd.IntN(3)) - 1
		check(after, after+cell.Seq(rnd.IntN(10_000)))
	}
	// What is recorded only is in no order of keys, and costs others nothing.
	a, b := m.Iterator(cell.MaxSeq), plain.Iterator(cell.MaxSeq)
	defer a.Close()
	defer b.Close()
	if x, y := collect(a, a.First()), collect(b, b.First()); !equal(x, y) || len(x) != m.Count() || len(x) >= len(want) {
		t.Errorf("%d and %d entries, counted %d", len(x), len(y), m.Count())
	}
	if m.MaxSeq() != seq {
		t.Errorf("the largest number is %d, want %d", m.MaxSeq(), seq)
	}
	// One that waits at the end sees what comes.
	it := m.Commits(seq, cell.MaxSeq)
	if it.Next() {
		t.Error("there is something at the end")
	}
	m.BeginRecord()
	m.Add(&cell.Entry{Key: []byte("k"), Seq: seq + 32, Kind: cell.Set})
	if it := m.Commits(seq, cell.MaxSeq); !it.Next() || it.Entry().Seq != seq+32 || !it.Begins() || it.Next() {
		t.Error("what comes is not seen")
	}
}

// TestSeekAgain: an iterator finds what a new one does, wherever it was before, also among
// entries that were added since.
func TestSeekAgain(t *testing.T) {
	m := New()
	rnd := rand.New(rand.NewPCG(1, 2))
	it := m.Iterator(cell.MaxSeq)
	defer it.Close()
	at := 0
	for i := range 20_000 {
		if i%2 == 0 {
			m.Add(&cell.Entry{Key: binary.BigEndian.AppendUint32(nil, uint32(rnd.IntN(1<<20))), Seq: cell.Seq(i + 1), Kind: cell.Set})
		}
		switch rnd.IntN(10) {
		case 0: // anywhere
			at = rnd.IntN(1 << 20)
		case 1: // far ahead
			at += rnd.IntN(1 << 16)
		case 2: // back
			at -= min(at, rnd.IntN(200))
		default:
			at += rnd.IntN(200)
		}
		key := binary.BigEndian.AppendUint32(nil, uint32(at))
		fresh := m.Iterator(cell.MaxSeq)
		seek := [](func(cell.Iterator) bool){
			func(x cell.Iterator) bool { return x.SeekGE(key) },
			func(x cell.Iterator) bool { return x.SeekLT(key) },
			func(x cell.Iterator) bool { return x.SeekRow(key) },
		}[rnd.IntN(3)]
		got, want := seek(it), seek(fresh)
		if got != want || got && !bytes.Equal(it.Entry().Key, fresh.Entry().Key) {
			t.Fatalf("seek %d: %v %x, a new iterator finds %v %x", i, got, it.Entry().Key, want, fresh.Entry().Key)
		}
		fresh.Close()
	}
}
