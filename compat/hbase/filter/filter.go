package filter

import (
	"bytes"
	"slices"

	"github.com/trestledb/trestle/compat/hbase/pb"
)

// Options say how a Filter's scan reads.
type Options struct {
	// Reversed is set for a scan from the last row to the first.
	Reversed bool
	// Versions returns how many cells of a column the scan wants of a family:
	// the smaller of the scan's and the family's number. HBase counts them after
	// the filter. Nil means all.
	Versions func(family []byte) int
	// StoreOffset and StoreLimit are the scan's paging within each family of a
	// row: cells to leave out, and cells to return after that if it is not zero.
	StoreOffset, StoreLimit int
	// Eager is set for scans that told not to load families on demand. Otherwise
	// families that the filter does not need for its decision about a row are
	// looked at after that decision, which is HBase's default for scans that are
	// not reversed.
	Eager bool
	// Take, if it is set, is asked for the memory of each part before the part is
	// decoded. Its error is New's.
	Take func(bytes int64) error
}

// A Filter evaluates a filter over the rows of one scan, or of one get. It has
// state, and is not safe for concurrent use.
type Filter struct {
	o    Options
	root node
	d    decoder

	done   bool
	seek   []byte
	seeks  bool
	cells  []Cell   // of the row at hand, that are left
	closed [][]byte // families in which a cell came when no later one could pass
	column column   // of the last cell that was included, and how many were
	count  int
}

// New returns the filter of a message. An *Error says what HBase says to a
// filter that it cannot read.
func New(m *pb.Filter, o Options) (*Filter, error) {
	f := &Filter{o: o, d: decoder{take: o.Take}}
	var err error
	if f.root, err = f.d.filter(m, 0); err != nil {
		return nil, err
	}
	f.o.Take, f.d.take = nil, nil // what they are of may end before the filter
	f.root.setReversed(o.Reversed)
	f.done = f.root.allRemaining()
	return f, nil
}

// Bytes returns about what the filter takes in memory, which Options.Take was asked for.
func (f *Filter) Bytes() int64 { return f.d.taken }

// HasRow tells whether the filter must see whole rows, so that neither a batch
// nor a partial row can be cut before it has.
func (f *Filter) HasRow() bool { return f.root.hasRow() }

// Done tells that no row from here on passes: the scan is at its end.
func (f *Filter) Done() bool { return f.done }

// Seek returns where the scan can go on after a row that was dropped: no row
// between that one and the returned one passes. In a reversed scan the rows
// above the returned one do not.
func (f *Filter) Seek() ([]byte, bool) { return f.seek, f.seeks }

// Row returns what is left of a row. cells are those of the requested columns
// and times that their family's versions and age let through, in HBase's order:
// by family, qualifier and falling timestamp. Rows come in the order of the
// scan. The result is valid until the next call; its slices are those of cells.
// An *Error ends the scan.
func (f *Filter) Row(cells []Cell) (out []Cell, err error) {
	f.seek, f.seeks = nil, false
	if f.done || len(cells) == 0 {
		return nil, nil
	}
	defer recovered(&err)
	n := f.root
	if !f.comesBy(cells) {
		return nil, nil
	}
	if n.allRemaining() || n.rowKey(cells[0].Row) {
		f.end()
		return nil, nil
	}
	f.cells = f.cells[:0]
	later := f.families(cells, true)
	empty := len(f.cells) == 0
	whole := n.hasRow()
	drop := empty
	if whole {
		f.cells = n.rowCells(f.cells)
		drop = empty || len(f.cells) > 0 && n.row()
	} else if !empty {
		drop = n.row()
	}
	if drop {
		f.end()
		return nil, nil
	}
	f.seek, f.seeks = nil, false
	if later {
		f.families(cells, false)
		f.seek, f.seeks = nil, false
		slices.SortStableFunc(f.cells, func(a, b Cell) int { return bytes.Compare(a.Family, b.Family) })
	}
	f.end()
	return f.cells, nil
}

// end is what happens after each row.
func (f *Filter) end() {
	f.root.reset()
	f.done = f.root.allRemaining()
}

// comesBy tells whether HBase's scanner looks at the row at all: whether it
// has cells in a family that is read for the decision.
func (f *Filter) comesBy(cells []Cell) bool {
	for i := range cells {
		if (i == 0 || !bytes.Equal(cells[i].Family, cells[i-1].Family)) && f.reads(cells[i].Family, true) {
			return true
		}
	}
	return false
}

// reads tells whether a family is one of the essential or of the others, and
// still read.
func (f *Filter) reads(family []byte, essential bool) bool {
	return (f.o.Eager || f.o.Reversed || f.root.essential(family)) == essential && !f.isClosed(family)
}

func (f *Filter) isClosed(family []byte) bool {
	return len(f.closed) > 0 && slices.ContainsFunc(f.closed, func(c []byte) bool { return bytes.Equal(c, family) })
}

// families filters the cells of the families that are essential, or those of
// the others, and tells whether there are others.
func (f *Filter) families(cells []Cell, essential bool) (others bool) {
	for i := 0; i < len(cells); {
		j := i + 1
		for j < len(cells) && bytes.Equal(cells[j].Family, cells[i].Family) {
			j++
		}
		if f.reads(cells[i].Family, essential) {
			f.family(cells[i:j])
		} else if essential && f.reads(cells[i].Family, false) {
			others = true
		}
		i = j
	}
	return others
}

// family filters a row's cells of one family as HBase's store scanner does.
func (f *Filter) family(cells []Cell) {
	n := f.root
	versions := int(^uint(0) >> 1)
	if f.o.Versions != nil {
		versions = f.o.Versions(cells[0].Family)
	}
	included := 0
	for i := 0; ; {
		if n.allRemaining() {
			// In HBase this ends the scan of the family, even for a filter that
			// begins anew with the next row (ColumnCountGetFilter, made for gets).
			f.closed = append(f.closed, bytes.Clone(cells[0].Family))
			break
		}
		if i == len(cells) {
			break
		}
		c := &cells[i]
		answer := n.cell(c)
		if answer.includes() {
			if f.count == 0 || !f.column.has(c) {
				f.column, f.count = column{c.Family, c.Qualifier}, 0
			}
			if f.count++; f.count > versions {
				if answer == includeNextRow {
					answer = nextRow
				} else {
					answer = nextColumn
				}
			}
		}
		if answer.includes() {
			if included++; included > f.o.StoreOffset {
				f.cells = append(f.cells, *c)
				n.transform(&f.cells[len(f.cells)-1])
				if f.o.StoreLimit > 0 && included >= f.o.StoreOffset+f.o.StoreLimit {
					break
				}
			}
		}
		switch answer {
		case include, skip:
			i++
		case includeNextColumn, nextColumn:
			for i++; i < len(cells) && bytes.Equal(cells[i].Qualifier, c.Qualifier); {
				i++
			}
		case includeNextRow, nextRow:
			i = len(cells)
		case seek:
			i = f.follow(cells, i)
		}
	}
	f.column, f.count = column{}, 0
}

// follow returns the next cell to look at after one that was answered seek. A
// hint that points backwards is a skip.
func (f *Filter) follow(cells []Cell, i int) int {
	c := &cells[i]
	h, ok := f.root.hint(c)
	if !ok {
		return i + 1
	}
	rows := bytes.Compare(h.row, c.Row)
	switch {
	case rows == 0 && f.o.Reversed:
		return i + 1
	case rows == 0:
		if !h.before(c) {
			return i + 1
		}
		for i++; i < len(cells) && h.before(&cells[i]); {
			i++
		}
		return i
	case (rows > 0) == f.o.Reversed:
		return i + 1
	}
	// Each family could go on at its own place; the nearest holds for all.
	if n := bytes.Compare(h.row, f.seek); !f.seeks || n != 0 && (n < 0) != f.o.Reversed {
		f.seek, f.seeks = bytes.Clone(h.row), true
	}
	return len(cells)
}
