package merge

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/row"
)

// Every key finds what a look at each tombstone finds.
func TestRangesModel(t *testing.T) {
	key := rapid.SliceOfN(rapid.SampledFrom([]byte{0, 'a', 'b', 0xFF}), 0, 3)
	rapid.Check(t, func(t *rapid.T) {
		var ts []RangeTombstone
		for i := range rapid.IntRange(0, 12).Draw(t, "n") {
			// Also empty ranges, and several of one sequence number.
			ts = append(ts, RangeTombstone{row.Range{Start: key.Draw(t, "start"), End: key.Draw(t, "end")},
				cell.Seq(rapid.IntRange(1, 8).Draw(t, fmt.Sprint(i)))})
		}
		r := NewRanges(ts)
		if r.Empty() && len(ts) > 0 {
			for _, d := range ts {
				if !d.Rows.Empty() {
					t.Fatalf("%v makes nothing", ts)
				}
			}
		}
		for range 20 {
			k := key.Draw(t, "key")
			var want cell.Seq
			for _, d := range ts {
				if d.Rows.Contains(k) {
					want = max(want, d.Seq)
				}
			}
			if got := r.Newest(k); got != want {
				t.Fatalf("%x: %d, want %d of %v", k, got, want, ts)
			}
		}
	})
}

func BenchmarkRanges(b *testing.B) {
	for _, n := range []int{1, 100, 10_000} {
		ts := make([]RangeTombstone, n)
		for i := range ts {
			ts[i] = RangeTombstone{row.Prefix(fmt.Appendf(nil, "tenant%08d#", i)), cell.Seq(i + 1)}
		}
		b.Run(fmt.Sprintf("newest/%d", n), func(b *testing.B) {
			r := NewRanges(ts)
			k := []byte("tenant00000000#row")
			for b.Loop() {
				r.Newest(k)
			}
		})
		b.Run(fmt.Sprintf("new/%d", n), func(b *testing.B) {
			for b.Loop() {
				NewRanges(ts)
			}
		})
	}
}
