package rpc

import (
	"context"
	"time"

	"github.com/trestledb/trestle/engine/metadata"
)

// Operate is what operators ask about the tablets that a server has.
type Operate interface {
	// Describe describes the tablets of a table that are served here, in any
	// order; of all tables if it is AllTables. Of one table it tells of locality groups
	// too, if groups is set.
	Describe(ctx context.Context, table uint64, groups bool) ([]TabletDetail, error)
	// Sum adds up the tablets that Describe describes, for much less. Unimplemented if the
	// server is of an earlier version.
	Sum(ctx context.Context, table uint64) (*TabletSum, error)
	// SplitKey returns a row that cuts a tablet into about two halves; ok is false
	// if there is none.
	SplitKey(ctx context.Context, tablet metadata.TabletID) (key []byte, ok bool, err error)
	// Cuts returns rows, ascending, that cut a tablet into up to 8 parts of about one size.
	Cuts(ctx context.Context, tablet metadata.TabletID) ([][]byte, error)
	// Verify reads all SSTables of a tablet from the store, past all caches, and
	// returns what their checksums say. It ends with ctx.
	Verify(ctx context.Context, tablet metadata.TabletID) ([]Verified, error)
	// DropDamaged makes a tablet forget a damaged SSTable. NotFound if it has no
	// such SSTable, FailedPrecondition if that is not damaged.
	DropDamaged(ctx context.Context, tablet metadata.TabletID, object string) (*Loss, error)
	// Ask asks the server's process about itself, or about what was recorded of the tables'
	// load. What of, and the question and the answer in JSON, are between the processes'
	// admin services. Unimplemented if the process does not know what is asked.
	Ask(ctx context.Context, what string, question []byte) ([]byte, error)
}

// AllTables is no table's id.
const AllTables uint64 = 0

// TabletDetail describes a tablet to an operator.
type TabletDetail struct {
	TabletStatus
	MemtableBytes int64
	Files         int
	LastMajor     time.Time // zero if there was none
	// Redo is the place in the server's commit log from which a recovery would replay for
	// it, empty if it would replay nothing.
	Redo string
	// ReadCalls and BytesRate are calls that read, and bytes of the values read and
	// of the changes written, per second, lately.
	ReadCalls, BytesRate float64
	// Done and Total are the bytes of keys and values that compactions which are
	// under way have read, and will have; and the bytes of SSTables, of a verification.
	Done, Total int64
	// Groups are the locality groups by id, if they were asked for. Earlier are SSTables
	// written when other families were in the groups.
	Groups  map[uint16]GroupState
	Earlier GroupState
	// Kept is what is kept of the tablet's changes. It is nil if the server is of a version
	// that does not tell.
	Kept *Kept `json:",omitempty"`
}

// A TabletSum is what tablets of a server add up to.
type TabletSum struct {
	Tablets int
	Bytes   int64
	// Reads and Writes are rows per second, lately.
	Reads, Writes float64
	// Groups and Earlier are those of one table's tablets; Runs is the most of any.
	Groups  map[uint16]GroupState `json:",omitempty"`
	Earlier GroupState
}

// Add adds others.
func (s *TabletSum) Add(o *TabletSum) {
	s.Tablets += o.Tablets
	s.Bytes += o.Bytes
	s.Reads += o.Reads
	s.Writes += o.Writes
	s.Earlier.Add(o.Earlier)
	for id, g := range o.Groups {
		s.AddGroup(id, g)
	}
}

// AddGroup adds the state of a locality group.
func (s *TabletSum) AddGroup(id uint16, g GroupState) {
	if s.Groups == nil {
		s.Groups = map[uint16]GroupState{}
	}
	sum := s.Groups[id]
	sum.Add(g)
	s.Groups[id] = sum
}

// Add adds the state of the same group of others.
func (s *GroupState) Add(o GroupState) {
	s.Bytes += o.Bytes
	s.Resident += o.Resident
	s.Files += o.Files
	s.Runs = max(s.Runs, o.Runs)
}

// Kept is what is kept of a tablet's changes. The fields are those of engine/tablet.Kept.
type Kept struct {
	Files         int
	Bytes         int64
	Since, Newest time.Time
}

// GroupState is the state of a locality group in a tablet. The fields are those of
// engine/tablet.GroupState.
type GroupState struct {
	Bytes, Resident int64
	Runs, Files     int
}

// Verified is an SSTable that was read; Error is the damage found, empty if there is none.
type Verified struct {
	Object string
	Bytes  int64
	Error  string
}

// Loss describes an SSTable that was forgotten: entries of the rows from First to Last,
// both included.
type Loss struct {
	First, Last []byte
	Entries     uint64
	Bytes       int64
}
