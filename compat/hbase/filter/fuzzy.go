package filter

import (
	"bytes"
	"container/heap"
	"slices"

	"github.com/trestledb/trestle/compat/hbase/pb"
)

// A fuzzyKey is a pattern: a byte of a row must be that of key where fixed is
// set. A row that is shorter is held against the beginning of the pattern, and
// what comes after the pattern does not matter.
type fuzzyKey struct {
	key   []byte
	fixed []bool
}

func (k fuzzyKey) matches(row []byte) bool {
	for i := range min(len(row), len(k.key)) {
		if k.fixed[i] && row[i] != k.key[i] {
			return false
		}
	}
	return true
}

// next returns a place in the direction of the scan that no matching row as
// long as the pattern comes before; false if there is no such row. row itself
// does not match.
func (k fuzzyKey) next(row []byte, reversed bool) ([]byte, bool) {
	free := func(i int) bool { return i >= len(k.key) || !k.fixed[i] }
	last, step, first := byte(0xff), byte(1), byte(0)
	if reversed {
		last, step, first = 0, 0xff, 0xff
	}
	out := make([]byte, max(len(row), len(k.key)))
	copy(out, k.key)
	for i := range k.key {
		if free(i) {
			out[i] = first
		}
	}
	// A row that does not match differs at a fixed place, at the latest before
	// its own end.
	grown, grow := false, -1
	for i := range len(row) {
		if free(i) {
			out[i] = row[i]
			if row[i] != last {
				grow = i
			}
			continue
		}
		if row[i] != k.key[i] {
			grown = (row[i] < k.key[i]) != reversed
			break
		}
	}
	if !grown {
		if grow < 0 {
			return nil, false
		}
		out[grow] += step
		for i := grow + 1; i < len(out); i++ {
			if free(i) {
				out[i] = first
			}
		}
	}
	// Short of the fixed part nothing needs to be said.
	end := 0
	for i := range k.key {
		if k.fixed[i] {
			end = i + 1
		}
	}
	out = out[:max(end, grow+1)]
	if !reversed {
		return out, true
	}
	// Rows that go on after out come before it in a reversed scan.
	if s := successor(out); s != nil {
		return s, true
	}
	return row, true
}

// fuzzyRowFilter is FuzzyRowFilter.
type fuzzyRowFilter struct {
	base
	keys []fuzzyKey
	// found is the pattern that matched last; the next row likely has it too.
	found     int
	out, done bool
	nexts     fuzzyHeap
	started   bool
}

// newFuzzyRowFilter reads the masks of all versions of HBase. A user's 0 is
// sent as 0 or -1 and means fixed; a user's 1 is sent as 1 or 2. In the first
// form that was ever sent it is a 0 among nothing but 0 and -1.
func newFuzzyRowFilter(p *pb.FuzzyRowFilter) (node, error) {
	f := &fuzzyRowFilter{}
	if len(p.GetFuzzyKeysData()) == 0 {
		return nil, invalid("a FuzzyRowFilter without keys")
	}
	wildcard := byte(0)
	if p.GetIsMaskV2() {
		wildcard = 2
	}
	for _, pair := range p.GetFuzzyKeysData() {
		key, mask := bytes.Clone(pair.GetFirst()), pair.GetSecond()
		if len(key) != len(mask) {
			return nil, invalid("Fuzzy pair lengths do not match: %q, %q", key, mask)
		}
		sent := !slices.ContainsFunc(mask, func(b byte) bool { return b != 0xff && b != wildcard })
		k := fuzzyKey{key, make([]bool, len(key))}
		for i, m := range mask {
			k.fixed[i] = m == 0xff || m == 0 && !sent
		}
		f.keys = append(f.keys, k)
	}
	return f, nil
}

func (f *fuzzyRowFilter) reset()             { f.out = false }
func (f *fuzzyRowFilter) allRemaining() bool { return f.done }
func (f *fuzzyRowFilter) rowKey([]byte) bool { return f.done }
func (f *fuzzyRowFilter) row() bool          { return f.out }
func (f *fuzzyRowFilter) hinting() bool      { return true }

func (f *fuzzyRowFilter) cell(c *Cell) code {
	for i := range f.keys {
		if j := (f.found + i) % len(f.keys); f.keys[j].matches(c.Row) {
			f.found = j
			return include
		}
	}
	f.found, f.out = 0, true
	return seek
}

// hint returns the nearest place of all patterns. Those that are known to be
// further ahead are not looked at again.
func (f *fuzzyRowFilter) hint(c *Cell) (hint, bool) {
	f.nexts.reversed = f.reversed
	add := func(key int) {
		if next, ok := f.keys[key].next(c.Row, f.reversed); ok {
			heap.Push(&f.nexts, fuzzyNext{bytes.Clone(next), key})
		}
	}
	if !f.started {
		f.started = true
		for i := range f.keys {
			add(i)
		}
	} else {
		var again []int
		for len(f.nexts.list) > 0 {
			if n := bytes.Compare(c.Row, f.nexts.list[0].row); n != 0 && (n < 0) != f.reversed {
				break
			}
			again = append(again, heap.Pop(&f.nexts).(fuzzyNext).key)
		}
		for _, key := range again {
			add(key)
		}
	}
	if len(f.nexts.list) == 0 {
		f.done = true
		return hint{}, false
	}
	return atRow(f.nexts.list[0].row), true
}

type fuzzyNext struct {
	row []byte
	key int // of the filter's keys
}

type fuzzyHeap struct {
	list     []fuzzyNext
	reversed bool
}

func (h *fuzzyHeap) Len() int { return len(h.list) }
func (h *fuzzyHeap) Less(i, j int) bool {
	return (bytes.Compare(h.list[i].row, h.list[j].row) < 0) != h.reversed
}
func (h *fuzzyHeap) Swap(i, j int) { h.list[i], h.list[j] = h.list[j], h.list[i] }
func (h *fuzzyHeap) Push(x any)    { h.list = append(h.list, x.(fuzzyNext)) }
func (h *fuzzyHeap) Pop() any {
	last := h.list[len(h.list)-1]
	h.list = h.list[:len(h.list)-1]
	return last
}
