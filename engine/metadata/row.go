package metadata

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/sstable"
)

// A TabletID names a tablet. It belongs to one row range for ever; the
// tablets that a split or merge makes get ids of their own.
type TabletID uint64

// ObjectName returns the name of the SSTable with an id. Its writer is known by it.
func ObjectName(id uint64) string { return fmt.Sprintf("%016x.sst", id) }

// A FileRef is an SSTable of a tablet.
type FileRef struct {
	// Object is the name in the object store; ID identifies it in caches.
	Object string
	ID     uint64
	// Run orders the files: of two entries of one key the one in the larger run
	// is newer. Files of one run and one group do not overlap.
	Run uint64
	// Group is the locality group and Layout the assignment of families to
	// groups (schema.Table.Layout) under which the file was written. It holds
	// cells of the families that were in Group then, and of no others.
	Group  uint16
	Layout uint64 `json:",omitempty"`
	// Schema is the version of the table's schema under which the file was written,
	// 0 of one from before that was kept.
	Schema uint64 `json:",omitempty"`
	// Cleared says that the file holds nothing that range tombstones with
	// sequence numbers up to it delete.
	Cleared cell.Seq `json:",omitempty"`
	// Instant is when the run and all older ones were everything that the tablet
	// held. All files of a run have the same.
	Instant Instant
	// Info is what the file holds, as its writer counted.
	sstable.Info
}

// An Instant is a time at which a tablet held certain entries and no others. Its
// zero value is not known.
type Instant struct {
	// Time is in microseconds, Schema the version of the table's schema.
	Time   int64  `json:",omitempty"`
	Schema uint64 `json:",omitempty"`
}

// A RangeTombstone deletes the rows in [Start, End) written before Seq. An
// empty End means no end.
type RangeTombstone struct {
	Start, End []byte
	Seq        cell.Seq
}

// An OpKind is a change of several METADATA rows.
type OpKind uint8

// The kinds.
const (
	// Split of this row's tablet at At into Left and Right. It has happened once
	// the row of Left exists.
	Split OpKind = iota + 1
	// Merge of the tablet Left, which had the rows [Start, At), into this one. It
	// has happened; the row of Left is to be deleted.
	Merge
	// Leave says that this row's tablet is about to be merged into Right, the one
	// after it. That has happened once the row of Right says Merge; a reader that wants
	// the tablet for itself must make sure first that it can no longer happen.
	Leave
)

// An Op says in a row what is to become of it and of a second one. The server
// that finds it after a crash can finish or forget it.
type Op struct {
	Kind        OpKind
	Start, At   []byte
	Left, Right TabletID
	// Version is, of a Split, the version that the key of Left's row had before.
	// The server that adds that row adds it to this version, so at most one
	// does.
	Version uint64 `json:",omitempty"`
}

// A Row describes one tablet. Rows that were handed out are shared: change a
// Clone.
type Row struct {
	// Version grows by one with every change; 0 means not stored yet.
	Version uint64
	Table   uint64
	Tablet  TabletID
	// Start and End bound the row keys [Start, End); an empty End means no end.
	Start, End []byte
	// Files are all SSTables: newest run first, within a run by group, and within
	// that in key order.
	Files []FileRef `json:",omitempty"`
	// NextRun is the number that the next run gets.
	NextRun uint64
	// FlushedSeq is the redo point by sequence number: every entry up to it is in
	// Files, and replay skips it.
	FlushedSeq cell.Seq
	// Redo is the position of the first log record that replay may need.
	Redo commitlog.Pos
	// MaxSeq is at least the sequence number of every entry and tombstone that
	// Files and RangeDel hold.
	MaxSeq   cell.Seq
	RangeDel []RangeTombstone `json:",omitempty"`
	// Stream is what is kept of the tablet's changes, nil if nothing is.
	Stream *StreamState `json:",omitempty"`
	// Followed is, of a tablet that knows what a materialized view makes of rows of its
	// source, up to where it has seen their changes; nil if it has not seen all rows. Partly
	// is the same of one that has seen some. They are shared by clones: see SetFollows.
	Followed *Followed `json:",omitempty"`
	Partly   *Followed `json:",omitempty"`
	// Op is a change of several rows that is under way, nil if there is none.
	Op *Op `json:",omitempty"`
	// MajorTime is when the last major compaction of the default locality group
	// ended, in seconds since the epoch, or when its first SSTable was written.
	// GroupMajors is the same of the others. See Major.
	MajorTime   int64            `json:",omitempty"`
	GroupMajors map[uint16]int64 `json:",omitempty"`
	// Assignment says which server of a cluster serves the tablet; nil in a
	// process of its own. It is shared by clones: replace it whole.
	Assignment *Assignment `json:",omitempty"`
}

// Major returns when the last major compaction of a locality group ended, in
// seconds since the epoch.
func (r *Row) Major(group uint16) int64 {
	if at, ok := r.GroupMajors[group]; ok && group != 0 {
		return at
	}
	return r.MajorTime
}

// SetMajor notes that a major compaction of a locality group ended.
func (r *Row) SetMajor(group uint16, at int64) {
	if group == 0 {
		r.MajorTime = at
		return
	}
	if r.GroupMajors == nil {
		r.GroupMajors = map[uint16]int64{}
	}
	r.GroupMajors[group] = at
}

// SortFiles puts files in the order that Row.Files has.
func SortFiles(files []FileRef) {
	slices.SortStableFunc(files, func(a, b FileRef) int {
		return cmp.Or(cmp.Compare(b.Run, a.Run), cmp.Compare(a.Group, b.Group), bytes.Compare(a.Lo, b.Lo))
	})
}

// A State is that of a tablet in a cluster.
type State uint8

// The states.
const (
	// Unassigned: no server serves the tablet.
	Unassigned State = iota
	// Opening: the master wants the server to serve the tablet.
	Opening
	// Open: the server serves it, until the row says otherwise or its session has
	// ended.
	Open
)

// String returns the state's name.
func (s State) String() string {
	switch s {
	case Unassigned:
		return "unassigned"
	case Opening:
		return "opening"
	case Open:
		return "open"
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// An Assignment is a tablet's place in a cluster.
type Assignment struct {
	State State
	// Epoch grows whenever the tablet changes hands.
	Epoch uint64
	// Server, Addr and Incarnation are those of the owner; of an Unassigned tablet
	// none.
	Server, Addr string `json:",omitempty"`
	Incarnation  uint64 `json:",omitempty"`
	// Log is the commit log that may hold records of the tablet that are in no
	// SSTable. It is the owner's, or the one of a former owner that has not been
	// replayed yet. 0 if there are no such records.
	Log uint64 `json:",omitempty"`
	// Master is the epoch of the last master that changed the row. A master with
	// an earlier one was deposed.
	Master int64 `json:",omitempty"`
}

// Clone returns a copy whose lists can be changed.
func (r *Row) Clone() *Row {
	c := *r
	c.Files = slices.Clone(r.Files)
	c.RangeDel = slices.Clone(r.RangeDel)
	c.GroupMajors = maps.Clone(r.GroupMajors)
	c.Stream = r.Stream.Clone()
	return &c
}

// Objects calls f with the name of each object that the row refers to. Those that
// Stream.Indexes name are not among them.
func (r *Row) Objects(f func(object string)) {
	for i := range r.Files {
		f(r.Files[i].Object)
	}
	if r.Stream != nil {
		for i := range r.Stream.Files {
			f(r.Stream.Files[i].Object)
		}
		for i := range r.Stream.Indexes {
			f(r.Stream.Indexes[i].Object)
		}
	}
}

// Tile tells whether rows, ascending, are those of all tablets of a table: there
// is no gap between them, and no overlap.
func Tile(rows []*Row) bool {
	var end []byte
	for i, r := range rows {
		if i > 0 && len(end) == 0 || !bytes.Equal(r.Start, end) {
			return false
		}
		end = r.End
	}
	return len(rows) > 0 && len(end) == 0
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Marshal encodes a row: a CRC-32C of the rest, then JSON, so that a person
// can read it.
func (r *Row) Marshal() []byte { return EncodeChecked(r) }

// EncodeChecked returns v as JSON behind a checksum. No field of v can fail to
// encode.
func EncodeChecked(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	out := binary.BigEndian.AppendUint32(make([]byte, 0, len(b)+4), crc32.Checksum(b, castagnoli))
	return append(out, b...)
}

// DecodeChecked decodes what EncodeChecked returned into v. It fails with
// fault.Corruption, calling it what.
func DecodeChecked(b []byte, what string, v any) error {
	if len(b) < 4 || binary.BigEndian.Uint32(b) != crc32.Checksum(b[4:], castagnoli) {
		return fault.New(fault.Corruption, "%s of %d bytes has a wrong checksum", what, len(b))
	}
	if err := json.Unmarshal(b[4:], v); err != nil {
		return fault.New(fault.Corruption, "decode %s: %w", what, err)
	}
	return nil
}

// Unmarshal decodes what Marshal wrote. A checksum that does not fit, or a row
// that cannot be, is fault.Corruption.
func Unmarshal(b []byte) (*Row, error) {
	r := new(Row)
	if err := DecodeChecked(b, "METADATA row", r); err != nil {
		return nil, err
	}
	if err := r.Check(); err != nil {
		return nil, err
	}
	return r, nil
}

// Check reports what no sound row has: files out of order or overlapping in a
// run, or beyond the sequence numbers that the row admits to.
func (r *Row) Check() error {
	bad := func(format string, args ...any) error {
		return fault.New(fault.Corruption, "METADATA row of tablet %v: %s", r.Tablet, fmt.Sprintf(format, args...))
	}
	for i, f := range r.Files {
		switch {
		case f.Run >= r.NextRun:
			return bad("file %s has run %d, the next is %d", f.Object, f.Run, r.NextRun)
		case f.MaxSeq > r.MaxSeq:
			return bad("file %s has sequence number %d, the largest is %d", f.Object, f.MaxSeq, r.MaxSeq)
		case string(f.Lo) > string(f.Hi):
			return bad("file %s has inverted bounds", f.Object)
		}
		if i == 0 {
			continue
		}
		p := r.Files[i-1]
		switch {
		case p.Run > f.Run || p.Run == f.Run && p.Group < f.Group:
		case p.Run < f.Run || p.Group > f.Group || string(p.Hi) >= string(f.Lo):
			return bad("files %s and %s are out of order", p.Object, f.Object)
		case p.Layout != f.Layout:
			return bad("files %s and %s of one run are of different layouts", p.Object, f.Object)
		}
	}
	for _, d := range r.RangeDel {
		if d.Seq > r.MaxSeq {
			return bad("a range tombstone has sequence number %d, the largest is %d", d.Seq, r.MaxSeq)
		}
	}
	if r.Stream != nil {
		if what := r.Stream.check(r); what != "" {
			return bad("%s", what)
		}
	}
	if r.FlushedSeq > r.MaxSeq {
		return bad("flushed up to %d, the largest is %d", r.FlushedSeq, r.MaxSeq)
	}
	return nil
}

// A Store keeps the METADATA rows of tablets.
type Store interface {
	// CAS replaces the row of r.Tablet if its version is still r.Version (0: it
	// must not exist) and sets r.Version to the new version. It returns once the
	// change is durable. fault.Fenced if another server changed the row: the
	// caller no longer owns the tablet.
	CAS(ctx context.Context, r *Row) error
}

// A Retirer is a Store in which the version of a row's key outlives the row.
type Retirer interface {
	// RetiredVersion returns the version with which a row that ends at end can be
	// added: 0 if there never was one.
	RetiredVersion(ctx context.Context, table uint64, end []byte) (uint64, error)
}

// ErrNotApplied is wrapped by an error of CAS when the row is certain not to
// have changed.
var ErrNotApplied = errors.New("the METADATA row is unchanged")
