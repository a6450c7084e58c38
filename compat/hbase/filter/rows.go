package filter

import (
	"bytes"
	"math/rand/v2"
)

// rowFilter is RowFilter.
type rowFilter struct {
	base
	compare
	out bool
}

func (f *rowFilter) reset() { f.out = false }

func (f *rowFilter) rowKey(row []byte) bool {
	if f.excludes(row) {
		f.out = true
	}
	return f.out
}

func (f *rowFilter) cell(*Cell) code {
	if f.out {
		return nextRow
	}
	return include
}

func (f *rowFilter) row() bool { return f.out }

// prefixFilter is PrefixFilter.
type prefixFilter struct {
	base
	prefix                []byte
	passed, out, tooEarly bool
}

func newPrefixFilter(prefix []byte) *prefixFilter { return &prefixFilter{prefix: prefix, out: true} }

func (f *prefixFilter) reset()             { f.out = true }
func (f *prefixFilter) allRemaining() bool { return f.passed }
func (f *prefixFilter) hinting() bool      { return true }

func (f *prefixFilter) rowKey(row []byte) bool {
	if f.prefix == nil || f.passed {
		return true
	}
	n := bytes.Compare(row[:min(len(row), len(f.prefix))], f.prefix)
	f.passed = f.passed || n != 0 && (n > 0) != f.reversed
	f.out = n != 0
	f.tooEarly = n != 0 && (n < 0) != f.reversed
	return f.passed
}

func (f *prefixFilter) cell(*Cell) code {
	switch {
	case f.tooEarly:
		return seek
	case f.out:
		return nextRow
	}
	return include
}

func (f *prefixFilter) row() bool { return f.out }

func (f *prefixFilter) hint(*Cell) (hint, bool) {
	if !f.reversed {
		return atRow(f.prefix), true
	}
	s := successor(f.prefix)
	return atRow(s), s != nil
}

// inclusiveStopFilter is InclusiveStopFilter.
type inclusiveStopFilter struct {
	base
	stop []byte
	done bool
}

func (f *inclusiveStopFilter) allRemaining() bool { return f.done }

func (f *inclusiveStopFilter) rowKey(row []byte) bool {
	if !f.done {
		n := bytes.Compare(row, f.stop)
		f.done = n != 0 && (n > 0) != f.reversed
	}
	return f.done
}

func (f *inclusiveStopFilter) cell(*Cell) code {
	if f.done {
		return nextRow
	}
	return include
}

// pageFilter is PageFilter: it counts the rows that all other filters accept.
type pageFilter struct {
	base
	size, accepted int64
}

func (f *pageFilter) allRemaining() bool { return f.accepted >= f.size }
func (f *pageFilter) rowKey([]byte) bool { return f.allRemaining() }
func (f *pageFilter) hasRow() bool       { return true }

func (f *pageFilter) row() bool {
	f.accepted++
	return f.accepted > f.size
}

// randomRowFilter is RandomRowFilter.
type randomRowFilter struct {
	base
	chance float32
	out    bool
}

func (f *randomRowFilter) reset()       { f.out = false }
func (f *randomRowFilter) hasRow() bool { return true }
func (f *randomRowFilter) row() bool    { return f.out }

func (f *randomRowFilter) rowKey([]byte) bool {
	f.out = !(rand.Float32() < f.chance)
	return f.out
}

func (f *randomRowFilter) cell(*Cell) code {
	if f.out {
		return nextRow
	}
	return include
}

// A rowRange is a range of a MultiRowRangeFilter; an empty stop is the end of
// the table.
type rowRange struct {
	start, stop          []byte
	startOpen, stopShuts bool // start is not in it; stop is in it
}

func (r rowRange) after(row []byte) bool {
	n := bytes.Compare(row, r.start)
	return n < 0 || n == 0 && r.startOpen
}

func (r rowRange) ahead(row []byte) bool {
	if len(r.stop) == 0 {
		return false
	}
	n := bytes.Compare(row, r.stop)
	return n > 0 || n == 0 && !r.stopShuts
}

// multiRowRangeFilter is MultiRowRangeFilter.
type multiRowRangeFilter struct {
	base
	ranges []rowRange // sorted, disjoint
	asked  bool       // about a row key
	answer code
	next   []byte // where to go on if answer is seek
	done   bool
}

func (f *multiRowRangeFilter) allRemaining() bool { return f.done }
func (f *multiRowRangeFilter) hinting() bool      { return true }

func (f *multiRowRangeFilter) rowKey(row []byte) bool {
	if f.done {
		return true
	}
	f.asked = true
	// Find the first range, in the direction of the scan, that the row has not
	// passed. Rows come in order, but a scan may begin anywhere.
	lo, hi := 0, len(f.ranges)
	for lo < hi {
		m := (lo + hi) / 2
		r := f.ranges[m]
		if f.reversed {
			r = f.ranges[len(f.ranges)-1-m]
		}
		if f.reversed && r.after(row) || !f.reversed && r.ahead(row) {
			lo = m + 1
		} else {
			hi = m
		}
	}
	if lo == len(f.ranges) {
		f.done, f.answer = true, nextRow
		return false
	}
	r := f.ranges[lo]
	if f.reversed {
		r = f.ranges[len(f.ranges)-1-lo]
	}
	switch {
	case !r.after(row) && !r.ahead(row):
		f.answer = include
	case f.reversed:
		f.answer, f.next = seek, r.stop
		if bytes.Equal(row, r.stop) {
			f.answer = nextRow
		}
	default:
		f.answer, f.next = seek, r.start
		if bytes.Equal(row, r.start) {
			f.answer = nextRow
		}
	}
	return false
}

func (f *multiRowRangeFilter) cell(*Cell) code {
	if !f.asked {
		fail("MultiRowRangeFilter: a SkipFilter around it keeps row keys from it")
	}
	return f.answer
}

func (f *multiRowRangeFilter) hint(*Cell) (hint, bool) { return atRow(f.next), true }
