package backend

import (
	"context"

	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
)

// A Backend stores tables. All methods are safe for concurrent use.
//
// Errors wrap a fault.Kind, or are the context's. A context error of a method
// that changes something means that the change may or may not have been made;
// any other error means that it was not.
type Backend interface {
	Tables
	Data
	Records
	Backups
}

// Tables keeps schemas. Names are full resource names.
type Tables interface {
	// CreateTable makes a table with t's Name, Families, Granularity,
	// DeletionProtection and Extra; it sets ID, family ids and CreateTime. Its
	// tablets are cut at splits, which are sorted, distinct and not empty.
	// AlreadyExists if the name is taken.
	CreateTable(ctx context.Context, t *schema.Table, splits [][]byte) (*schema.Table, error)
	// Table returns a live table, or NotFound.
	Table(ctx context.Context, name string) (*schema.Table, error)
	// ListTables returns the live tables whose names start with parent + "/", sorted
	// by name: those of an instance, of a project, or all of "projects".
	ListTables(ctx context.Context, parent string) ([]*schema.Table, error)
	// TableIDs returns the ids of all tables, deleted ones that can be undeleted
	// included, in any order.
	TableIDs(ctx context.Context) ([]uint64, error)
	// UpdateTable applies change to a copy of the table's schema and stores the
	// copy, atomically and durably; an error of change is returned as it is and
	// stores nothing. Family ids come from schema.(*Table).AddFamily. The cells
	// of a family that is gone afterwards are gone too, also if a family of that
	// name is added later.
	UpdateTable(ctx context.Context, name string, change func(*schema.Table) error) (*schema.Table, error)
	// DeleteTable deletes softly: see schema.Table.DeleteTime.
	DeleteTable(ctx context.Context, name string) error
	// UndeleteTable brings back the newest deleted table of that name, with its
	// rows. NotFound if there is none, AlreadyExists if the name is taken.
	UndeleteTable(ctx context.Context, name string) (*schema.Table, error)
	// DropRowRange deletes the rows whose keys start with prefix, all rows if it
	// is empty. Its cost does not depend on how many there are.
	DropRowRange(ctx context.Context, name string, prefix []byte) error
	// TableBytes returns the approximate size of a table's data.
	TableBytes(ctx context.Context, name string) (int64, error)
}

// Data reads and writes rows.
type Data interface {
	// ReadRows gives the rows of req to w. The last rows may still be in w's
	// buffer when it returns: the caller flushes.
	// Each row is read at one instant; a scan as a whole is not.
	ReadRows(ctx context.Context, req *scan.Request, w scan.Writer) (scan.Stats, error)
	// MutateRow applies an entry. When it returns nil the change is durable and
	// every later read sees it. It may not keep e.
	MutateRow(ctx context.Context, table string, e *row.Entry) error
	// MutateRows applies entries, each atomically. It returns an error, and has
	// applied nothing, if any entry could never be applied as written (Invalid)
	// or the table is not there. Else it calls done once for each entry, in any
	// order but never two at a time.
	MutateRows(ctx context.Context, table string, entries []row.Entry, done func(i int, err error)) error
	// CheckAndMutateRow applies then if predicate leaves a cell of the row, else
	// otherwise, atomically. Both are checked first. An empty list changes
	// nothing.
	CheckAndMutateRow(ctx context.Context, table string, key []byte, predicate *filter.Node, then, otherwise []row.Mutation) (matched bool, err error)
	// ReadModifyWriteRow applies rules in order, atomically, and returns each
	// changed column's new cell once, in read order.
	ReadModifyWriteRow(ctx context.Context, table string, key []byte, rules []row.Rule) ([]row.Cell, error)
	// SampleRowKeys calls emit with tablet boundaries inside within, ascending,
	// the last being the end of within (an empty key for the end of the table).
	SampleRowKeys(ctx context.Context, table string, within row.Range, emit func(scan.Sample) error) error
	// TabletCuts returns rows inside within, ascending, that cut large tablets into parts of
	// about one size: a caller may read those at a time. There are none where that is not
	// known.
	TabletCuts(ctx context.Context, table string, within row.Range) ([][]byte, error)
}

// Records is a small durable map for what the gateway itself must remember:
// instances, app profiles, policies, long-running operations. Those below
// "secrets/" are made anew if they are gone, which may happen at any time.
type Records interface {
	// GetRecord returns a value and its version, which is at least 1. NotFound
	// if there is none.
	GetRecord(ctx context.Context, key string) (value []byte, version uint64, err error)
	// PutRecord stores value if the record's version is still version (0: it
	// must be absent) and returns the new version; else Aborted.
	PutRecord(ctx context.Context, key string, value []byte, version uint64) (uint64, error)
	// DeleteRecord removes the record if its version is still version; else
	// Aborted.
	DeleteRecord(ctx context.Context, key string, version uint64) error
	// ListRecords calls emit for each record whose key starts with prefix, in
	// ascending order.
	ListRecords(ctx context.Context, prefix string, emit func(key string, value []byte, version uint64) error) error
}
