package filter

import (
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/row"
)

// An Op names a kind of filter, after the fields of google.bigtable.v2.RowFilter.
type Op uint8

// The filters.
const (
	PassAll             Op = iota + 1 //
	BlockAll                          //
	Chain                             // Children, at least two
	Interleave                        // Children, at least two
	Condition                         // Children: predicate, then, else; each may be nil
	Sink                              //
	RowKeyRegex                       // Pattern
	RowSample                         // P
	FamilyRegex                       // Pattern
	QualifierRegex                    // Pattern
	ColumnRange                       // Family, Start, End
	TimestampRange                    // Times
	ValueRegex                        // Pattern
	ValueRange                        // Start, End
	ValueBitmask                      // Pattern is the mask
	CellsPerRowOffset                 // N
	CellsPerRowLimit                  // N
	CellsPerColumnLimit               // N
	StripValue                        //
	ApplyLabel                        // Label

	// Columns is no filter of clients: it stands around a client's filter, its
	// only child, and leaves that filter nothing but what is in Node.Columns. It
	// does not count against the limits of filters, and names no family: see
	// LiteralFamilies.
	Columns

	// Ends is no filter of clients, and the root if it is anywhere. It leaves the cells that
	// come to an end of their own (row.Mutation.Until), and puts in the place of the value
	// when, in eight bytes, big-endian, of microseconds since the epoch. Tablets know it;
	// Compile does not.
	Ends
)

// A Node is a filter as the client sent it. Which fields count depends on Op.
// A nil *Node passes everything.
type Node struct {
	Op       Op
	Children []*Node
	Pattern  []byte
	Family   string
	Start    Bound
	End      Bound
	// Times is half-open; an End of math.MaxInt64 is no end.
	Times cell.TimeRange
	N     int32
	P     float64
	Label string
	// Columns are qualifiers by family, as row.Union leaves ranges.
	Columns map[string][]row.Range
	// Kept says of the root of a filter that it is the same one for many reads and that
	// nothing in it changes any more. What is worked out for it is worth keeping.
	Kept bool
}

// A Bound is one end of a range of byte strings. The zero Bound is unbounded.
type Bound struct {
	Key  []byte
	Set  bool
	Open bool // Key itself is outside
}
