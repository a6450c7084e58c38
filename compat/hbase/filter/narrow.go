package filter

import (
	"bytes"
	"slices"

	"github.com/trestledb/trestle/compat/hbase/pb"
)

// A Range is a range of rows, [Start, End); an empty End is the table's.
type Range struct{ Start, End []byte }

// Rows returns ranges, sorted and disjoint, outside of which no row passes and
// that the scan may be narrowed to; ok is false if there is nothing to narrow.
// No ranges mean that nothing passes.
func (f *Filter) Rows() (ranges []Range, ok bool) {
	if ends(f.root) {
		return nil, false
	}
	list, ok := rowsOf(f.root)
	if !ok {
		return nil, false
	}
	ranges = []Range{}
	for _, r := range list {
		ranges = append(ranges, Range{r.start, r.stop})
	}
	return ranges, true
}

// ends tells whether there is a filter inside that the first row it refuses
// ends: the rows that Rows leaves out matter to it.
func ends(n node) bool {
	switch n := n.(type) {
	case *whileMatchFilter:
		return true
	case *skipFilter:
		return ends(n.in)
	case *all:
		return slices.ContainsFunc(n.members, ends)
	case *one:
		return slices.ContainsFunc(n.members, ends)
	}
	return false
}

// rowsOf returns half-open ranges as rowRanges.
func rowsOf(n node) ([]rowRange, bool) {
	halfOpen := func(start, stop []byte) ([]rowRange, bool) {
		if len(stop) > 0 && bytes.Compare(start, stop) >= 0 {
			return nil, true
		}
		return []rowRange{{start: start, stop: stop}}, true
	}
	switch n := n.(type) {
	case *prefixFilter:
		return halfOpen(n.prefix, successor(n.prefix))
	case *inclusiveStopFilter:
		if n.reversed {
			return halfOpen(n.stop, nil)
		}
		return halfOpen(nil, after(n.stop))
	case *multiRowRangeFilter:
		out := make([]rowRange, 0, len(n.ranges))
		for _, r := range n.ranges {
			if r.startOpen {
				r.start = after(r.start)
			}
			if r.stopShuts && len(r.stop) > 0 {
				r.stop = after(r.stop)
			}
			out = append(out, rowRange{start: r.start, stop: r.stop})
		}
		return union(out), true
	case *rowFilter:
		switch c := n.comparator.(type) {
		case binaryComparator:
			switch n.op {
			case pb.CompareType_EQUAL:
				return halfOpen(c, after(c))
			case pb.CompareType_GREATER_OR_EQUAL:
				return halfOpen(c, nil)
			case pb.CompareType_GREATER:
				return halfOpen(after(c), nil)
			case pb.CompareType_LESS:
				if len(c) == 0 {
					return nil, true
				}
				return halfOpen(nil, c)
			case pb.CompareType_LESS_OR_EQUAL:
				return halfOpen(nil, after(c))
			}
		case binaryPrefixComparator:
			if n.op == pb.CompareType_EQUAL {
				return halfOpen(c, successor(c))
			}
		}
	case *all:
		var out []rowRange
		narrow := false
		for _, m := range n.members {
			list, ok := rowsOf(m)
			if !ok {
				continue
			}
			if narrow {
				list = intersect(out, list)
			}
			out, narrow = list, true
		}
		return out, narrow
	case *one:
		var out []rowRange
		for _, m := range n.members {
			list, ok := rowsOf(m)
			if !ok {
				return nil, false
			}
			out = append(out, list...)
		}
		return union(out), len(n.members) > 0
	}
	return nil, false
}

// after returns the first key after key.
func after(key []byte) []byte { return append(bytes.Clone(key), 0) }

// intersect of half-open ranges.
func intersect(a, b []rowRange) []rowRange {
	var out []rowRange
	for i, j := 0, 0; i < len(a) && j < len(b); {
		r := rowRange{start: a[i].start, stop: a[i].stop}
		if bytes.Compare(b[j].start, r.start) > 0 {
			r.start = b[j].start
		}
		bFirst := len(b[j].stop) > 0 && (len(r.stop) == 0 || bytes.Compare(b[j].stop, r.stop) < 0)
		if bFirst {
			r.stop = b[j].stop
		}
		if len(r.stop) == 0 || bytes.Compare(r.start, r.stop) < 0 {
			out = append(out, r)
		}
		if bFirst {
			j++
		} else {
			i++
		}
	}
	return out
}

// Family tells whether the filter needs to see a family; the cells of the
// others can be left out.
func (f *Filter) Family(family []byte) bool {
	for _, m := range perCell(f.root) {
		if m, ok := m.(*familyFilter); ok {
			if refused, err := m.refuses(family); err == nil && refused {
				return false
			}
		}
	}
	return true
}

func (f *familyFilter) refuses(family []byte) (refused bool, err error) {
	defer recovered(&err)
	return f.cell(&Cell{Family: family}) == nextRow, nil
}

// Qualifiers returns the range [start, end) of qualifiers that the filter needs
// to see in every family; the cells of the others can be left out. An empty end
// is open.
func (f *Filter) Qualifiers() (start, end []byte) {
	list := []rowRange{{}}
	for _, m := range perCell(f.root) {
		var r rowRange
		switch m := m.(type) {
		case *columnPrefixFilter:
			r.start, r.stop = m.prefix, successor(m.prefix)
		case *columnRangeFilter:
			if r.start = m.low; m.low != nil && !m.lowShut {
				r.start = after(m.low)
			}
			if r.stop = m.high; m.high != nil && (m.highShut || len(m.high) == 0) {
				r.stop = after(m.high) // an empty one would be open
			}
		case *multipleColumnPrefixFilter:
			if len(m.prefixes) > 0 {
				r.start, r.stop = m.prefixes[0], successor(m.prefixes[len(m.prefixes)-1])
			}
		case *qualifierFilter:
			if c, ok := m.comparator.(binaryComparator); ok && m.op == pb.CompareType_EQUAL {
				r.start, r.stop = c, after(c)
			} else if c, ok := m.comparator.(binaryPrefixComparator); ok && m.op == pb.CompareType_EQUAL {
				r.start, r.stop = c, successor(c)
			}
		}
		if next := intersect(list, []rowRange{r}); len(next) > 0 {
			list = next // else: nothing passes, which the filter itself will say
		}
	}
	return list[0].start, list[0].stop
}

// perCell returns the filters, all of which a cell must pass, before anything
// else that could notice that a cell is missing.
func perCell(n node) []node {
	switch n := n.(type) {
	case *familyFilter, *qualifierFilter, *columnPrefixFilter, *columnRangeFilter, *multipleColumnPrefixFilter:
		return []node{n}
	case *all:
		var out []node
		for _, m := range n.members {
			switch m.(type) {
			case *familyFilter, *qualifierFilter, *columnPrefixFilter, *columnRangeFilter, *multipleColumnPrefixFilter,
				*valueFilter, *keyOnlyFilter, *timestampsFilter, *rowFilter, *prefixFilter, *inclusiveStopFilter,
				*multiRowRangeFilter, *randomRowFilter, *pageFilter:
				out = append(out, m)
			default:
				return out
			}
		}
		return out
	}
	return nil
}
