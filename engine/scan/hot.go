package scan

import (
	"bytes"
	"cmp"
	"slices"
	"time"

	"github.com/trestledb/trestle/engine/row"
)

// A HotTablet is a tablet with its share of what its server does.
type HotTablet struct {
	Table string
	// Rows is the tablet's range.
	Rows row.Range
	// CPUFraction is the estimated part of the server's processors that the
	// tablet keeps busy, between 0 and 1.
	CPUFraction float64
	// From and To are when that was measured.
	From, To time.Time
}

// SortHot sorts tablets, the busiest first.
func SortHot(list []HotTablet) {
	slices.SortFunc(list, func(a, b HotTablet) int {
		return cmp.Or(cmp.Compare(b.CPUFraction, a.CPUFraction), cmp.Compare(a.Table, b.Table), bytes.Compare(a.Rows.Start, b.Rows.Start))
	})
}
