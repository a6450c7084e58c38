package rpc

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"math/rand/v2"
	"time"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/matview"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

// A Target says which tablet a call is for.
type Target struct {
	// Tablet is the id. Its range of rows never changes.
	Tablet metadata.TabletID
	// Schema is the version of the table's schema that the caller knows: the
	// server judges by that or a later one.
	Schema uint64
}

// An Updater is a TabletServer in the caller's process: it can ask the caller while it
// holds the row.
type Updater interface {
	// Update is backend.RowUpdater's for a row of a tablet: nothing changes the row
	// between what decide sees of it and what it decides.
	Update(ctx context.Context, at Target, key, token []byte, read *filter.Node, decide func([]row.Cell) ([]row.Mutation, error)) (repeated bool, err error)
}

// ErrNotServing is returned, before anything is done, by a server that does not
// serve the tablet: the caller looks its row up again.
var ErrNotServing = &fault.Error{Kind: fault.Unavailable, Reason: "NOT_SERVING", Msg: "this server does not serve the tablet"}

// ErrUnknown is wrapped by the error of a call that changes something and whose answer was
// lost. The change may or may not have been made.
var ErrUnknown = &fault.Error{Kind: fault.Unavailable, Reason: "OUTCOME_UNKNOWN", Msg: "the answer of the tablet server was lost: the change may or may not have been made"}

// A TabletServer serves tablets. Errors wrap a fault.Kind or are the context's,
// as those of gateway/backend do.
type TabletServer interface {
	Data
	Control
	Operate
}

// Data reads and writes the rows of one tablet. A call is refused with
// ErrNotServing as a whole.
type Data interface {
	// ReadRows gives the rows of ranges, which are within the tablet, to w. It ends early
	// when w is full, and returns the ranges left to read then.
	ReadRows(ctx context.Context, at Target, req *Read, w scan.Writer) (rest []row.Range, stats scan.Stats, err error)
	// MutateRow applies an entry.
	MutateRow(ctx context.Context, at Target, e *row.Entry) error
	// MutateRows applies entries, each atomically, and returns their errors.
	// With an error of its own, nothing was applied.
	MutateRows(ctx context.Context, at Target, entries []row.Entry) ([]error, error)
	// CheckAndMutateRow is that of gateway/backend.
	CheckAndMutateRow(ctx context.Context, at Target, key []byte, predicate *filter.Node, then, otherwise []row.Mutation) (matched bool, err error)
	// ReadModifyWriteRow is that of gateway/backend.
	ReadModifyWriteRow(ctx context.Context, at Target, key []byte, rules []row.Rule) ([]row.Cell, error)
	// UpdateRow returns the cells of a row that read leaves (all, if it is nil),
	// once they are durable. But if seen is their Digest it applies muts,
	// atomically with that, and returns Done. If muts were applied with the same
	// token before, unless it is empty, it does nothing and returns AppliedBefore: see
	// backend.RowUpdater.
	UpdateRow(ctx context.Context, at Target, key, token []byte, read *filter.Node, seen []byte, muts []row.Mutation) (cells []row.Cell, became UpdateOutcome, err error)
	// DropRange deletes the rows of r, which is within the tablet.
	DropRange(ctx context.Context, at Target, r row.Range) error
	// ApplyView applies updates to rows of a materialized view, which are in the tablet,
	// ascending: all of a row or nothing, and nothing twice. It returns once they are durable.
	// On an error some may have been applied; the caller comes again with the same.
	ApplyView(ctx context.Context, at Target, rows []ViewRow) error
	// ReadChanges gives the changes of req to w, as backend.ChangeStreamer does, until the
	// tablet is served no longer: that is ErrNotServing, also after something was given.
	// It returns nil once all up to req.Until was given. What w has taken counts, whatever
	// the error is. A read that is to end where it begins gives nothing, and has all other
	// readers of the tablet told at once up to where there is nothing.
	ReadChanges(ctx context.Context, at Target, req *ChangesRead, w changes.Writer) error
}

// A ChangesRead asks for the changes of rows of one tablet. Its fields are those of
// changes.Request. Within may be more than the tablet has.
type ChangesRead struct {
	Life   uint64
	Within row.Range
	From   changes.Position
	Until  cell.Seq
	Every  time.Duration
	Rows   bool // records may lack their Changes
	// Untold says that the caller is of a version that does not tell Rows: it is that of a
	// view if clients have no stream.
	Untold bool
}

// A ViewRow has updates of a row of a materialized view, those of a shard in order.
type ViewRow struct {
	Key     []byte
	Updates []matview.Update
}

// UpdateOutcome says what became of an update.
type UpdateOutcome uint8

const (
	// NotApplied says that the caller has to see the row first, or that it is not what the
	// caller saw.
	NotApplied UpdateOutcome = iota
	// Applied says that it was made.
	Applied
	// AppliedBefore says that it was made before.
	AppliedBefore
)

// Digest returns what tells cells from all others.
func Digest(cells []row.Cell) []byte {
	h := sha256.New()
	var b []byte
	piece := func(p []byte) {
		b = binary.AppendUvarint(b[:0], uint64(len(p)))
		_, _ = h.Write(b)
		_, _ = h.Write(p)
	}
	for i := range cells {
		c := &cells[i]
		piece([]byte(c.Family))
		piece(c.Qualifier)
		b = binary.AppendVarint(b[:0], c.Timestamp)
		b = binary.AppendUvarint(b, uint64(len(c.Labels)))
		_, _ = h.Write(b)
		for _, l := range c.Labels {
			piece([]byte(l))
		}
		piece(c.Value)
	}
	return h.Sum(nil)
}

// A Read describes rows to read in one tablet. Its fields are those of scan.Request.
type Read struct {
	Ranges   []row.Range
	Limit    int64
	Reversed bool
	Filter   *filter.Node
}

// A TabletKey names a METADATA row: of the tablet of a table that ends at End.
type TabletKey struct {
	Table uint64
	End   []byte
}

// Control has the calls of the master and of operators. Each call is a hint: the METADATA
// rows decide.
type Control interface {
	// Load opens the tablets whose METADATA rows name this server. Those that it
	// serves already are no error. It waits for those that another call is opening.
	Load(ctx context.Context, keys []TabletKey) error
	// Unload writes everything of the tablets to the store and gives them up,
	// cleanly.
	Unload(ctx context.Context, tablets []metadata.TabletID) error
	// Split splits a tablet, at the key or, if that is empty, where it thinks
	// best.
	Split(ctx context.Context, tablet metadata.TabletID, at []byte) error
	// Merge merges two neighbours, both on this server.
	Merge(ctx context.Context, left, right metadata.TabletID) error
	// Flush writes the memtables of the tablets to SSTables.
	Flush(ctx context.Context, tablets []metadata.TabletID) error
	// Compact does a major compaction of the tablets, until ctx ends.
	Compact(ctx context.Context, tablets []metadata.TabletID) error
	// Pause holds up the writes of tablets, and changes of their METADATA rows, until Cut
	// or Resume is called with the same number. It lasts hold at most. The number is the
	// caller's own. ErrNotServing, and nothing is paused, if one of the tablets is not
	// served here.
	Pause(ctx context.Context, number uint64, tablets []metadata.TabletID, hold time.Duration) error
	// Cut ends a pause and returns what the tablets held during it: METADATA rows
	// of version 0 without an Assignment, ascending. Aborted if the pause is over.
	// Tablets, also of several servers, that were all paused when the first was
	// cut are cut at one instant. Nothing but the rows keeps their objects from
	// being swept: see the master's sweeper.
	Cut(ctx context.Context, number uint64) ([]*metadata.Row, error)
	// Resume ends a pause, if it is not over.
	Resume(ctx context.Context, number uint64) error
	// Needed returns those of objects that the server reads or may read, and those in the
	// METADATA rows of tablets that it serves. It also returns those that it has written,
	// or is writing, for such a row. It will not name any other.
	Needed(ctx context.Context, objects []string) ([]string, error)
	// Attend tells the server, if its incarnation is this one, that the master of an epoch
	// attends to it. It returns a reading of the server's clock, which only the server can
	// judge. echo is the one that the call before returned, 0 at first. It waits for
	// nothing. See catalog.Promise. FailedPrecondition from a server of another
	// incarnation, or one that knows a later master.
	Attend(ctx context.Context, incarnation uint64, epoch int64, echo time.Duration) (reading time.Duration, err error)
	// Status describes the server and the tablets that it serves.
	Status(ctx context.Context) (*Status, error)
}

// Status describes a tablet server.
type Status struct {
	Server      string
	Incarnation uint64
	// SplitBytes, MetadataSplitBytes and SplitRate are limits beyond which the server
	// splits a tablet by itself. They are the size of a tablet, of one of METADATA, and
	// the rows read and written per second. 0 means never.
	SplitBytes, MetadataSplitBytes int64
	SplitRate                      float64
	// Copy is the number of the newest copy of the lock service that the server knows of
	// (catalog.RollbackGuard). The server has looked into the store; its callers perhaps
	// cannot.
	Copy    uint64
	Tablets []TabletStatus
}

// TabletStatus describes a tablet that is served.
type TabletStatus struct {
	Tablet     metadata.TabletID
	Table      uint64
	Start, End []byte
	Epoch      uint64
	// Bytes is the size of its SSTables and memtables.
	Bytes int64
	// Reads and Writes are rows per second, lately; CPU is the part of the
	// server's processors that the tablet keeps busy, as estimated from those.
	Reads, Writes, CPU float64
	Runs               int
	Since              time.Time
	// Changes is, of a table whose changes are kept, the stamp of tablet.ChangesBegin.
	Changes cell.Seq `json:",omitempty"`
	// View is, of a tablet of a materialized view's contributions, how far it is; nil if
	// nothing works on it.
	View *ViewProgress `json:",omitempty"`
}

// ViewProgress says how far a tablet of a materialized view's contributions is.
type ViewProgress struct {
	// Through is the stamp up to which the view's rows show all changes of the source's rows
	// that the tablet knows; 0 while it looks at all rows. Life is the schema.Table.ViewLife
	// that it is of.
	Through cell.Seq `json:",omitempty"`
	Life    uint64   `json:",omitempty"`
	// Lag is for how long the oldest change has waited that the view does not show.
	Lag time.Duration `json:",omitempty"`
	// Failed counts evaluations that failed, Errors what is tried again.
	Failed      int64  `json:",omitempty"`
	LastFailure string `json:",omitempty"`
	Errors      int64  `json:",omitempty"`
	LastError   string `json:",omitempty"`
	// Stopped says that nothing is done before another try.
	Stopped bool `json:",omitempty"`
}

// A Dialer reaches tablet servers by the address in their METADATA rows. A call
// to a server that cannot be reached is Unavailable.
type Dialer interface {
	Dial(addr string) TabletServer
}

// ErrEnded is fault.Unavailable of a process whose tablet server, the only one
// there is, has ended.
var ErrEnded = fault.New(fault.Unavailable, "the tablet server has ended")

// Backoff waits before a call is made again: hardly before the second attempt, longer each
// time, up to about most. It returns why ctx has ended, if it has, and ErrEnded once
// ended, which may be nil, is closed: no server is left to answer.
func Backoff(ctx context.Context, ended <-chan struct{}, attempt int, most time.Duration) error {
	d := min(time.Millisecond<<min(attempt, 10), most)
	select {
	case <-time.After(d/2 + rand.N(d)):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-ended:
		return ErrEnded
	}
}
