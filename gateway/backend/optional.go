package backend

import (
	"context"
	"time"

	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/matview"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
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

// A TimeRestorer is a ChangeStreamer that brings what it restores to a time.
type TimeRestorer interface {
	// RestorableAt returns the error that RestoreTableAt would begin with, nil if there is
	// none.
	RestorableAt(ctx context.Context, backup string, at time.Time) error
	// RestoreTableAt is Backups.RestoreTable of the backup and of the changes that its
	// table has had since, up to and with those whose commit time is at, to the
	// microsecond. The families are those of the backup, and those that came since.
	// Nobody sees the table before it is complete, and what is left of a call that
	// fails is removed. OutOfRange if backup and changes do not cover the time,
	// FailedPrecondition if no changes are kept, or if those of a family cannot be given
	// back because it is no more; the message says what can be had. It costs as much as
	// writing the changes once more.
	RestoreTableAt(ctx context.Context, backup, name string, at time.Time, change func(*schema.Table) error) (*schema.Table, error)
}

// MaterializedViews is a Backend that keeps materialized views. A view's rows are those of
// a table that has the view's name: Data reads them by it, and SampleRowKeys works. Its
// hidden families (matview.Hidden) are the caller's to leave out. Tables.Table knows a view
// by its name too, with its schema.View; Tables.ListTables leaves views out.
type MaterializedViews interface {
	// CreateView makes a view of v, whose Life it gives, and returns the table of its
	// rows. v has a Name that no table has, and the Source and SourceID that Query was
	// compiled with. set, unless it is nil, may set DeletionProtection and Extra of
	// that table. The view is not complete before WaitView has returned. AlreadyExists
	// if there is a view of the name, NotFound if there is no such source,
	// FailedPrecondition if it is another table by now or lacks a family of v.
	CreateView(ctx context.Context, v *schema.View, set func(*schema.Table)) (*schema.Table, error)
	// UpdateView changes DeletionProtection and Extra of the table of a view's rows.
	UpdateView(ctx context.Context, name string, change func(*schema.Table) error) (*schema.Table, error)
	// DeleteView deletes a view at once, also one that is not complete. A view with
	// DeletionProtection is FailedPrecondition.
	DeleteView(ctx context.Context, name string) error
	// ListViews returns the tables of the rows of the views of an instance, by name.
	ListViews(ctx context.Context, instance string) ([]*schema.Table, error)
	// WaitView returns once the view shows everything that was acknowledged of its source
	// before the call: first that its rows have all been looked at. NotFound if it
	// is deleted meanwhile.
	WaitView(ctx context.Context, name string) error
	// ViewStatus tells how far a view is.
	ViewStatus(ctx context.Context, name string) (*ViewStatus, error)
}

// A ViewStatus tells how far a materialized view is.
type ViewStatus = matview.Status
