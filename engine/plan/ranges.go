package plan

import (
	"bytes"

	"github.com/trestledb/trestle/engine/row"
)

// Cut divides ranges into the parts within bounds, and those that come later
// in the direction of the read.
func Cut(ranges []row.Range, bounds row.Range, reversed bool) (mine, other []row.Range) {
	if len(ranges) == 0 {
		return nil, nil
	}
	if end := ranges[len(ranges)-1].End; bytes.Compare(ranges[0].Start, bounds.Start) >= 0 &&
		(len(bounds.End) == 0 || len(end) > 0 && bytes.Compare(end, bounds.End) <= 0) {
		return ranges, nil // all are within
	}
	for i, r := range ranges {
		if part := r.Intersect(bounds); !part.Empty() {
			mine = append(mine, part)
		}
		if reversed {
			if r.End = minEnd(r.End, bounds.Start); len(bounds.Start) > 0 && !r.Empty() {
				other = append(other, r)
			}
			continue
		}
		if len(bounds.End) == 0 {
			continue
		}
		if bytes.Compare(r.Start, bounds.End) >= 0 {
			return mine, append(other, ranges[i:]...)
		}
		if r.Start = bounds.End; !r.Empty() {
			other = append(other, r)
		}
	}
	return mine, other
}

func minEnd(a, b []byte) []byte {
	if len(a) == 0 || len(b) > 0 && bytes.Compare(b, a) < 0 {
		return b
	}
	return a
}
