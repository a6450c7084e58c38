package backend

import (
	"context"

	"github.com/trestledb/trestle/engine/scan"
)

// A HotTablet is a tablet with its share of what its server does.
type HotTablet = scan.HotTablet

// HotTabletLister is what a Backend that measures its tablets' load implements
// beside Backend.
type HotTabletLister interface {
	// HotTablets returns the tablets with load of the tables whose names start
	// with parent + "/tables/", the busiest first. A "/clusters/..." at the end of
	// parent is left out of account.
	HotTablets(ctx context.Context, parent string) ([]HotTablet, error)
}
