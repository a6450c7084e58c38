package merge

import (
	"bytes"
	"container/heap"
	"slices"
	"sort"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/row"
)

// A RangeTombstone deletes every entry of the rows in Rows whose sequence
// number is below Seq, tokens included.
type RangeTombstone struct {
	Rows row.Range
	Seq  cell.Seq
}

// Ranges are range tombstones arranged so that a row finds the newest one that
// covers it in the logarithm of their number. The zero Ranges has none.
type Ranges struct {
	flat []RangeTombstone // disjoint, ascending
}

// NewRanges arranges tombstones, which may overlap in any way.
func NewRanges(ts []RangeTombstone) Ranges {
	if len(ts) == 0 {
		return Ranges{}
	}
	ts = slices.Clone(ts)
	slices.SortFunc(ts, func(a, b RangeTombstone) int { return bytes.Compare(a.Rows.Start, b.Rows.Start) })
	cuts := make([][]byte, 0, 2*len(ts))
	for _, t := range ts {
		cuts = append(cuts, t.Rows.Start)
		if len(t.Rows.End) > 0 {
			cuts = append(cuts, t.Rows.End)
		}
	}
	slices.SortFunc(cuts, bytes.Compare)
	cuts = slices.CompactFunc(cuts, bytes.Equal)
	// Between two cuts the same tombstones cover everything. Of those, open has
	// the newest on top, and below it some that have ended already.
	var flat []RangeTombstone
	var open newestFirst
	for i, at := range cuts {
		for len(ts) > 0 && bytes.Equal(ts[0].Rows.Start, at) {
			heap.Push(&open, ts[0])
			ts = ts[1:]
		}
		for len(open) > 0 && len(open[0].Rows.End) > 0 && bytes.Compare(open[0].Rows.End, at) <= 0 {
			heap.Pop(&open)
		}
		if len(open) == 0 {
			continue
		}
		part := RangeTombstone{Rows: row.Range{Start: at}, Seq: open[0].Seq}
		if i+1 < len(cuts) {
			part.Rows.End = cuts[i+1]
		}
		if n := len(flat); n > 0 && flat[n-1].Seq == part.Seq && bytes.Equal(flat[n-1].Rows.End, at) {
			flat[n-1].Rows.End = part.Rows.End
			continue
		}
		flat = append(flat, part)
	}
	return Ranges{flat}
}

// Newest returns the largest sequence number of a tombstone that covers the
// row key, 0 if none does.
func (r Ranges) Newest(key []byte) cell.Seq {
	i := sort.Search(len(r.flat), func(i int) bool { return bytes.Compare(r.flat[i].Rows.Start, key) > 0 })
	if i == 0 || !r.flat[i-1].Rows.Contains(key) {
		return 0
	}
	return r.flat[i-1].Seq
}

// Empty tells whether there is no tombstone.
func (r Ranges) Empty() bool { return len(r.flat) == 0 }

// newestFirst is a heap with the largest sequence number on top.
type newestFirst []RangeTombstone

func (h newestFirst) Len() int           { return len(h) }
func (h newestFirst) Less(i, j int) bool { return h[i].Seq > h[j].Seq }
func (h newestFirst) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *newestFirst) Push(x any)        { *h = append(*h, x.(RangeTombstone)) }
func (h *newestFirst) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}
