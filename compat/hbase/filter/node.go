package filter

import "bytes"

// A node is a filter with its state. Methods are HBase's by similar names.
type node interface {
	reset()
	allRemaining() bool
	// rowKey tells whether the row is dropped unread.
	rowKey(row []byte) bool
	cell(c *Cell) code
	// hint is asked for after cell has answered seek, or by a list that looks
	// for the nearest; false means none.
	hint(c *Cell) (hint, bool)
	transform(c *Cell)
	// rowCells returns the cells of a row that stay; it may reuse the slice.
	rowCells(cells []Cell) []Cell
	// hasRow tells whether rowCells or row must see whole rows.
	hasRow() bool
	// row tells whether the row is dropped after all.
	row() bool
	// essential tells whether the filter must see the family before it can decide
	// about a row.
	essential(family []byte) bool
	setReversed(bool)
	// hinting marks the filters that a list asks even after another member has
	// refused a cell, since they may allow for a longer step.
	hinting() bool
}

// base is a filter that lets everything pass.
type base struct{ reversed bool }

func (*base) reset()                       {}
func (*base) allRemaining() bool           { return false }
func (*base) rowKey([]byte) bool           { return false }
func (*base) cell(*Cell) code              { return include }
func (*base) hint(*Cell) (hint, bool)      { return hint{}, false }
func (*base) transform(*Cell)              {}
func (*base) rowCells(cells []Cell) []Cell { return cells }
func (*base) hasRow() bool                 { return false }
func (*base) row() bool                    { return false }
func (*base) essential([]byte) bool        { return true }
func (b *base) setReversed(r bool)         { b.reversed = r }
func (*base) hinting() bool                { return false }

// A column is a family and a qualifier; nil is as good as empty.
type column struct{ family, qualifier []byte }

func (k column) has(c *Cell) bool {
	return bytes.Equal(c.Qualifier, k.qualifier) && bytes.Equal(c.Family, k.family)
}

// successor returns the first key after all that begin with prefix; nil if
// there is none.
func successor(prefix []byte) []byte {
	for i := len(prefix) - 1; i >= 0; i-- {
		if prefix[i] != 0xff {
			s := bytes.Clone(prefix[:i+1])
			s[i]++
			return s
		}
	}
	return nil
}
