package tablet

import (
	"bytes"
	"fmt"
	"math"
	"testing"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/cputime"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/memtable"
)

// collected is what an adder was given.
type collected []string

func (c *collected) AddParts(prefix, suffix, value []byte, seq cell.Seq, kind cell.Kind) {
	*c = append(*c, fmt.Sprintf("%x %x %d %d %x", prefix, suffix, seq, kind, value))
}

func exampleBatch() *Batch {
	b := NewBatch([]byte("row\x00key"))
	b.Set(1, []byte("q"), 1000, []byte("value"))
	b.DeleteRow()
	b.DeleteFamily(2)
	b.DeleteColumn(3, []byte("q\x00"), cell.TimeRange{Start: 1, End: math.MaxInt64})
	b.SetToken([]byte("a token"), 77)
	b.Set(0, nil, 0, nil)
	return b
}

func TestRecord(t *testing.T) {
	b := exampleBatch()
	payload, _ := b.AppendRecord(nil, 0)
	if len(payload) > b.size {
		t.Errorf("%d bytes, reserved for %d", len(payload), b.size)
	}
	var want, got collected
	b.insert(&want, 5)
	if len(want) != 6 {
		t.Errorf("%d operations", len(want))
	}
	if err := DecodeRecord(payload, 5, b.Len(), &got); err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	for n := range b.Len() + 1 {
		var rest collected
		b.insertFrom(n, &rest, 5)
		if fmt.Sprint(rest) != fmt.Sprint(want[n:]) {
			t.Errorf("from %d: %v", n, rest)
		}
	}
	// A record is taken whole or not at all.
	for i := range payload {
		var none collected
		if err := DecodeRecord(payload[:i], 5, b.Len(), &none); fault.KindOf(err) != fault.Corruption || len(none) > 0 {
			t.Errorf("cut to %d: %v, %d operations", i, err, len(none))
		}
	}
	for _, n := range []int{-1, b.Len() - 1, b.Len() + 1, math.MaxInt32} {
		var none collected
		if err := DecodeRecord(payload, 5, n, &none); fault.KindOf(err) != fault.Corruption || len(none) > 0 {
			t.Errorf("%d operations: %v", n, err)
		}
	}
	for _, first := range []cell.Seq{cell.MaxSeq, cell.MaxSeq + 1, math.MaxUint64} {
		if err := DecodeRecord(payload, first, b.Len(), memtable.New()); fault.KindOf(err) != fault.Corruption {
			t.Errorf("sequence number %d: %v", first, err)
		}
	}
	b.Free()
	again := NewBatch([]byte("other"))
	defer again.Free()
	if payload, _ := again.AppendRecord(nil, 0); again.Len() != 0 || bytes.Contains(payload, []byte("row")) {
		t.Error("a batch remembers an earlier one")
	}
}

// TestNothingApplied: a batch without operations takes no stamp and no record. Readers would
// see what later writes with that stamp are about to do, and no replay takes such a record.
func TestNothingApplied(t *testing.T) {
	one := lone(t)
	b := NewBatch([]byte("row"))
	defer b.Free()
	end := one.env.Commit.End()
	if err := applyAndWait(t.Context(), one, b); err != nil {
		t.Error(err)
	}
	if visible := one.visible.Load(); visible > uint64(one.write.seq) || one.env.Commit.End() != end {
		t.Errorf("%d is visible, the last stamp is %d; the log ends at %v, not %v", visible, one.write.seq, one.env.Commit.End(), end)
	}
}

func FuzzDecodeRecord(f *testing.F) {
	b := exampleBatch()
	payload, _ := b.AppendRecord(nil, 0)
	f.Add(payload, uint64(1), b.Len())
	f.Add([]byte{}, uint64(0), 0)
	f.Fuzz(func(t *testing.T, payload []byte, first uint64, n int) {
		m := memtable.New()
		err := DecodeRecord(payload, cell.Seq(first), n, m)
		if err != nil {
			if fault.KindOf(err) != fault.Corruption {
				t.Fatalf("%v", err)
			}
			if !m.Empty() {
				t.Fatalf("%d operations of a malformed record", m.Count())
			}
			return
		}
		if m.Count() != n {
			t.Fatalf("%d operations, want %d", m.Count(), n)
		}
		// Whatever was accepted can be read and flushed.
		it := m.Iterator(cell.MaxSeq)
		defer it.Close()
		for ok := it.First(); ok; ok = it.Next() {
			k := it.Entry().Key
			if p := cell.EscapedLen(k); p < 0 {
				t.Fatalf("key %x has no row", k)
			} else if _, err := cell.ParseSuffix(k[p:]); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// BenchmarkBatchOfMany makes a batch of 5,000 rows, and one that has its size from the start.
// cpu-ns/row is processor time.
func BenchmarkBatchOfMany(b *testing.B) {
	const rows = 5000
	keys := make([][]byte, rows)
	for i := range keys {
		keys[i] = fmt.Appendf(nil, "row%08d", i)
	}
	value := make([]byte, 24)
	for _, sized := range []bool{false, true} {
		b.Run(fmt.Sprintf("sized=%t", sized), func(b *testing.B) {
			b.ReportAllocs()
			begin := cputime.Used()
			for b.Loop() {
				t := NewBatch(keys[0])
				if sized {
					t.Grow(rows, rows*len(keys[0]))
				}
				for i, k := range keys {
					if i > 0 {
						t.Row(k)
					}
					t.Set(1, nil, 0, value)
				}
				t.Free()
			}
			b.ReportMetric(float64(cputime.Used()-begin)/float64(b.N*rows), "cpu-ns/row")
		})
	}
}

func BenchmarkBatch(b *testing.B) {
	key, value := []byte("user0000000000000001"), make([]byte, 1000)
	var payload []byte
	b.ReportAllocs()
	for b.Loop() {
		t := NewBatch(key)
		t.Set(1, []byte("field0"), 1_700_000_000_000_000, value)
		payload, _ = t.AppendRecord(payload[:0], 0)
		t.Free()
	}
}
