package backend

import (
	"context"

	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/row"
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

// A RowUpdater is a Backend that lets its caller decide, with the row locked,
// what to make of a row. What HBase's clients ask for is more than
// CheckAndMutateRow and ReadModifyWriteRow can say.
type RowUpdater interface {
	// UpdateRow gives decide the cells of a row that read leaves (all, if it is
	// nil), in read order, and applies the mutations that it returns, atomically.
	// decide may keep the cells, may be called again, and must not call the
	// Backend; its error is returned as it is, and then nothing was changed. When
	// UpdateRow returns nil, what the last call saw and did is durable.
	//
	// A token, unless it is empty, is kept with the row for schema.TokenWindow
	// once mutations were applied with it. An update of the row with the same
	// token does nothing then, from any caller, and repeated is true. It is
	// schema.MinTokenBytes long at least.
	UpdateRow(ctx context.Context, table string, key, token []byte, read *filter.Node, decide func([]row.Cell) ([]row.Mutation, error)) (repeated bool, err error)
}

// A ChangeStreamer is a Backend that keeps the changes of tables that have a
// schema.Stream.
type ChangeStreamer interface {
	// StreamPartitions returns the ranges in which the changes of a table are best
	// read at present: ascending, disjoint, together the whole key space.
	StreamPartitions(ctx context.Context, table string) ([]row.Range, error)
	// ReadChanges gives the changes of req to w. It returns when ctx is done, with
	// its error; after req.Until; when the range is to be read in other partitions,
	// with a Close; or with the error of w as it is. A range that moves to another
	// server is read on without the caller's knowledge. An error whose Reason is
	// changes.ExpiredReason says that req.From is older than what is kept.
	ReadChanges(ctx context.Context, req *changes.Request, w changes.Writer) (*changes.Close, error)
}
