package filter

import (
	"bytes"
	"encoding/binary"
	"slices"
)

// familyFilter is FamilyFilter.
type familyFilter struct {
	base
	compare
}

func (f *familyFilter) cell(c *Cell) code {
	if len(c.Family) > 0 && f.excludes(c.Family) {
		return nextRow
	}
	return include
}

// qualifierFilter is QualifierFilter.
type qualifierFilter struct {
	base
	compare
}

func (f *qualifierFilter) cell(c *Cell) code {
	if f.excludes(c.Qualifier) {
		return skip
	}
	return include
}

// valueFilter is ValueFilter.
type valueFilter struct {
	base
	compare
}

func (f *valueFilter) cell(c *Cell) code {
	if f.excludes(c.Value) {
		return skip
	}
	return include
}

// dependentColumnFilter is DependentColumnFilter: what stays has the timestamp
// of a cell of the column.
type dependentColumnFilter struct {
	base
	compare
	column
	drop   bool // the column itself
	stamps []int64
}

func (f *dependentColumnFilter) reset()       { f.stamps = f.stamps[:0] }
func (f *dependentColumnFilter) hasRow() bool { return true }

func (f *dependentColumnFilter) cell(c *Cell) code {
	if !f.has(c) {
		return include
	}
	if f.comparator != nil && f.excludes(c.Value) {
		return skip
	}
	f.stamps = append(f.stamps, c.Timestamp)
	if f.drop {
		return skip
	}
	return include
}

func (f *dependentColumnFilter) rowCells(cells []Cell) []Cell {
	slices.Sort(f.stamps)
	return slices.DeleteFunc(cells, func(c Cell) bool {
		_, found := slices.BinarySearch(f.stamps, c.Timestamp)
		return !found
	})
}

// singleColumnValueFilter is SingleColumnValueFilter and, with exclude,
// SingleColumnValueExcludeFilter.
type singleColumnValueFilter struct {
	base
	compare
	column
	ifMissing, latestOnly, exclude bool
	found, matched                 bool
}

func (f *singleColumnValueFilter) reset()       { f.found, f.matched = false, false }
func (f *singleColumnValueFilter) hasRow() bool { return true }

func (f *singleColumnValueFilter) cell(c *Cell) code {
	switch {
	case f.matched:
		return include
	case f.latestOnly && f.found:
		return nextRow
	case !f.has(c):
		return include
	}
	f.found = true
	if f.excludes(c.Value) {
		if f.latestOnly {
			return nextRow
		}
		return include
	}
	f.matched = true
	return include
}

func (f *singleColumnValueFilter) row() bool {
	if f.found {
		return !f.matched
	}
	return f.ifMissing
}

func (f *singleColumnValueFilter) rowCells(cells []Cell) []Cell {
	if !f.exclude {
		return cells
	}
	return slices.DeleteFunc(cells, func(c Cell) bool { return f.has(&c) })
}

func (f *singleColumnValueFilter) essential(family []byte) bool {
	return !f.ifMissing || bytes.Equal(family, f.family)
}

// columnValueFilter is ColumnValueFilter.
type columnValueFilter struct {
	base
	compare
	column
	found bool
}

func (f *columnValueFilter) reset() { f.found = false }

func (f *columnValueFilter) cell(c *Cell) code {
	if !f.has(c) {
		if f.found {
			return nextRow
		}
		return nextColumn
	}
	f.found = true
	if f.excludes(c.Value) {
		return skip
	}
	return include
}

func (f *columnValueFilter) essential(family []byte) bool { return bytes.Equal(family, f.family) }

// columnCountGetFilter is ColumnCountGetFilter.
type columnCountGetFilter struct {
	base
	limit, count int64
}

func (f *columnCountGetFilter) reset()             { f.count = 0 }
func (f *columnCountGetFilter) allRemaining() bool { return f.count > f.limit }
func (f *columnCountGetFilter) rowKey([]byte) bool { return f.allRemaining() }

func (f *columnCountGetFilter) cell(*Cell) code {
	f.count++
	if f.allRemaining() {
		return nextColumn
	}
	return includeNextColumn
}

// columnPaginationFilter is ColumnPaginationFilter. Its offset is a number or,
// if from is not nil, a qualifier.
type columnPaginationFilter struct {
	base
	limit, offset, count int64
	from                 []byte
}

func (f *columnPaginationFilter) reset() { f.count = 0 }

func (f *columnPaginationFilter) cell(c *Cell) code {
	if f.from != nil {
		switch {
		case f.count >= f.limit:
			return nextRow
		case f.count == 0 && bytes.Compare(c.Qualifier, f.from) < 0:
			return seek
		}
		f.count++
		return includeNextColumn
	}
	if f.count >= f.offset+f.limit {
		return nextRow
	}
	f.count++
	if f.count <= f.offset {
		return nextColumn
	}
	return includeNextColumn
}

func (f *columnPaginationFilter) hint(c *Cell) (hint, bool) {
	return atColumn(c, f.from), f.from != nil
}

// columnPrefixFilter is ColumnPrefixFilter.
type columnPrefixFilter struct {
	base
	prefix []byte
}

func (f *columnPrefixFilter) hinting() bool { return true }

func (f *columnPrefixFilter) cell(c *Cell) code {
	switch n := bytes.Compare(c.Qualifier[:min(len(c.Qualifier), len(f.prefix))], f.prefix); {
	case n < 0:
		return seek
	case n > 0:
		return nextRow
	}
	return include
}

func (f *columnPrefixFilter) hint(c *Cell) (hint, bool) { return atColumn(c, f.prefix), true }

// multipleColumnPrefixFilter is MultipleColumnPrefixFilter.
type multipleColumnPrefixFilter struct {
	base
	prefixes [][]byte // sorted, distinct
	next     []byte
}

func (f *multipleColumnPrefixFilter) hinting() bool { return true }

func (f *multipleColumnPrefixFilter) cell(c *Cell) code {
	if len(f.prefixes) == 0 {
		return include
	}
	i, found := slices.BinarySearchFunc(f.prefixes, c.Qualifier, bytes.Compare)
	// Only the largest prefix that is not above the qualifier is looked at, as
	// in HBase: with the prefixes "a" and "ab", "ac" does not pass.
	if found || i > 0 && bytes.HasPrefix(c.Qualifier, f.prefixes[i-1]) {
		return include
	}
	if i == len(f.prefixes) {
		return nextRow
	}
	f.next = f.prefixes[i]
	return seek
}

func (f *multipleColumnPrefixFilter) hint(c *Cell) (hint, bool) {
	return atColumn(c, f.next), f.next != nil
}

// columnRangeFilter is ColumnRangeFilter; nil bounds are open.
type columnRangeFilter struct {
	base
	low, high         []byte
	lowShut, highShut bool // the bound itself passes
}

func (f *columnRangeFilter) hinting() bool { return true }

func (f *columnRangeFilter) cell(c *Cell) code {
	if f.low != nil {
		n := bytes.Compare(c.Qualifier, f.low)
		if n < 0 {
			return seek
		}
		if n == 0 && !f.lowShut {
			return nextColumn
		}
	}
	if f.high != nil {
		if n := bytes.Compare(c.Qualifier, f.high); n > 0 || n == 0 && !f.highShut {
			return nextRow
		}
	}
	return include
}

func (f *columnRangeFilter) hint(c *Cell) (hint, bool) { return atColumn(c, f.low), true }

// firstKeyOnlyFilter is FirstKeyOnlyFilter and, with matching qualifiers,
// FirstKeyValueMatchingQualifiersFilter.
type firstKeyOnlyFilter struct {
	base
	matching   bool
	qualifiers [][]byte // sorted
	found      bool
}

func (f *firstKeyOnlyFilter) reset() { f.found = false }

func (f *firstKeyOnlyFilter) cell(c *Cell) code {
	if f.found {
		return nextRow
	}
	f.found = true
	if f.matching {
		_, f.found = slices.BinarySearchFunc(f.qualifiers, c.Qualifier, bytes.Compare)
	}
	return include
}

// keyOnlyFilter is KeyOnlyFilter.
type keyOnlyFilter struct {
	base
	length bool
}

func (f *keyOnlyFilter) transform(c *Cell) {
	if f.length {
		c.Value = binary.BigEndian.AppendUint32(nil, uint32(len(c.Value)))
	} else {
		c.Value = nil
	}
}

// timestampsFilter is TimestampsFilter.
type timestampsFilter struct {
	base
	stamps []int64 // sorted, distinct
	hints  bool
}

func (f *timestampsFilter) hinting() bool { return true }

func (f *timestampsFilter) cell(c *Cell) code {
	_, found := slices.BinarySearch(f.stamps, c.Timestamp)
	switch {
	case found:
		return include
	case len(f.stamps) == 0 || c.Timestamp < f.stamps[0]:
		return nextColumn
	case f.hints:
		return seek
	}
	return skip
}

func (f *timestampsFilter) hint(c *Cell) (hint, bool) {
	h := hint{row: c.Row, family: c.Family, qualifier: c.Qualifier}
	if i, _ := slices.BinarySearch(f.stamps, c.Timestamp); i > 0 {
		h.timestamp = f.stamps[i-1]
	} else {
		h.last = true
	}
	return h, f.hints
}
