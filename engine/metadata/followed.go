package metadata

import "github.com/trestledb/trestle/engine/cell"

// Followed says up to where the changes of a table are known to a tablet of a materialized
// view.
type Followed struct {
	// Life is that of the table's schema.Stream.
	Life uint64
	// Through says that all changes with stamps up to it are known, of the rows between
	// the tablet's Start and End.
	Through cell.Seq
}

// MergeFollowed returns what two tablets together have seen.
func MergeFollowed(a, b *Followed) *Followed {
	if a == nil || b == nil || a.Life != b.Life {
		return nil
	}
	return &Followed{Life: a.Life, Through: min(a.Through, b.Through)}
}
