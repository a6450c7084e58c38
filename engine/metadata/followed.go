package metadata

import (
	"bytes"

	"github.com/trestledb/trestle/engine/cell"
)

// Followed says up to where the changes of a table are known to a tablet of a materialized
// view.
type Followed struct {
	// Life is the schema.Table.ViewLife of the table.
	Life uint64
	// Through says that all changes with stamps up to it are known, of the rows between
	// the tablet's Start and End.
	Through cell.Seq
	// Before says, if it is not empty, that this is so of rows before it only: the others are
	// still to be looked at.
	Before []byte `json:",omitempty"`
}

// clip returns what f says of the rows from start to end; an empty end means no end.
func (f *Followed) clip(start, end []byte) *Followed {
	switch {
	case f == nil || len(f.Before) == 0:
		return f
	case bytes.Compare(f.Before, start) <= 0:
		return nil
	case len(end) > 0 && bytes.Compare(f.Before, end) >= 0:
		return &Followed{Life: f.Life, Through: f.Through}
	}
	return f
}

// merge returns what two neighbouring tablets together have seen; f is of the left one.
func (f *Followed) merge(right *Followed, border []byte) *Followed {
	switch {
	case f == nil:
		return nil
	case len(f.Before) > 0:
		return f
	case right == nil || right.Life != f.Life:
		return &Followed{Life: f.Life, Through: f.Through, Before: border}
	}
	return &Followed{Life: f.Life, Through: min(f.Through, right.Through), Before: right.Before}
}

// Follows returns what the row says of the changes that are known: Followed or Partly.
func (r *Row) Follows() *Followed {
	if r.Partly != nil {
		return r.Partly
	}
	return r.Followed
}

// SetFollows makes f what the row says.
func (r *Row) SetFollows(f *Followed) {
	if r.Followed, r.Partly = f, nil; f != nil && len(f.Before) > 0 {
		r.Followed, r.Partly = nil, f
	}
}

// ClipFollows leaves out what the row says of rows that are not its own.
func (r *Row) ClipFollows() { r.SetFollows(r.Follows().clip(r.Start, r.End)) }

// MergeFollows makes the row say what the tablets of left and right, its neighbour, have
// seen together.
func (r *Row) MergeFollows(left, right *Row) {
	r.SetFollows(left.Follows().merge(right.Follows(), left.End))
}
