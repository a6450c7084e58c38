package changes

import "github.com/trestledb/trestle/engine/cell"

// An Op is what one operation of a Record does.
type Op uint8

// The operations. Their numbers are those of the format.
const (
	SetCell      Op = iota + 1 // Family, Qualifier, Timestamp, Value
	DeleteColumn               // Family, Qualifier, Times
	DeleteFamily               // Family
	DeleteRow                  // nothing: the whole row
	AddToCell                  // Family, Qualifier, Timestamp, Value: the input as it was sent
	MergeToCell                // Family, Qualifier, Timestamp, Value: the input as it was sent
)

// A Change is one operation of a Record.
type Change struct {
	Op        Op
	Family    cell.FamilyID
	Qualifier []byte
	// Timestamp is in microseconds.
	Timestamp int64
	Value     []byte
	// Times is the range that DeleteColumn covers; zero bounds are open.
	Times cell.TimeRange
}

// A Record is what one call changed in one row, or what a compaction collected of
// it. Its slices belong to the function that passes it on.
type Record struct {
	// Stamp is the sequence number of its first operation: the commit time (see
	// engine/stamp).
	Stamp cell.Seq
	// Key is the row key.
	Key []byte
	// Collected says that garbage collection made the change.
	Collected bool
	// Changes are none of a record that is for views: that the row changed is all it says.
	Changes []Change
	// Through and ChunkEnd are those of the chunk that it was read from, as Position has
	// them; 0 if it was read in the order of commit.
	Through, ChunkEnd cell.Seq
}

// After returns the position behind the record. Its Row is the record's Key.
func (r *Record) After() Position {
	if r.ChunkEnd == 0 {
		return Position{Through: r.Stamp}
	}
	return Position{Through: r.Through, ChunkEnd: r.ChunkEnd, Row: r.Key, Stamp: r.Stamp}
}

// Watermark returns the stamp up to which there is no later record behind this one.
func (r *Record) Watermark() cell.Seq { return r.After().Through }

// A Position is a place in the changes of a key range, independent of the tablets and
// files in which they are. All records with a stamp up to Through have been read.
// Within a chunk, which is sorted by row, records up to ChunkEnd are being read: those
// of rows before Row, and of Row those up to Stamp, have been too.
type Position struct {
	Through  cell.Seq
	ChunkEnd cell.Seq // 0: not within a chunk
	Row      []byte
	Stamp    cell.Seq
	// Born is the stamp of the split or merge that made the partition that is read; 0 if it
	// is not known. Earlier ones may have ended a partition with the same rows, and do not
	// end this one.
	Born cell.Seq
}
