package scan

import (
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/row"
)

// A Request asks for rows of one table.
type Request struct {
	// Table is the full resource name.
	Table string
	// Ranges are sorted and disjoint, as row.Union leaves them. Empty means
	// none; the caller writes row.All for the whole table.
	Ranges []row.Range
	// Limit is the number of rows that may be returned; 0 means no limit. Rows
	// in which the filter leaves no cell do not count.
	Limit int64
	// Reversed returns rows in descending order. Cells keep their order.
	Reversed bool
	// Filter is nil to return every cell. It has been checked by
	// filter.(*Node).Validate.
	Filter *filter.Node
}

// A Writer takes the rows of a read, in order:
//
//	(StartRow Cell* EndRow | Scanned)* with Flush in between
//
// The reader holds nothing (no lock, block or memtable) while Flush runs, so a
// client that does not read costs only what the Writer has buffered.
type Writer interface {
	// StartRow begins a row. key is valid during the call only.
	StartRow(key []byte)
	// Cell adds a cell: family names ascending, within one family qualifiers
	// ascending, within a column timestamps descending. c and all it points to
	// are valid during the call only.
	Cell(c *row.Cell)
	// EndRow ends the row; one without a Cell is not returned to the client.
	// When full is true the reader calls Flush before it starts another row.
	EndRow() (full bool, err error)
	// Scanned tells that every row up to key (down to it in a reversed read) is
	// behind the reader. It comes between rows, now and then.
	Scanned(key []byte)
	// Flush sends what is buffered. It may block for as long as the client
	// pleases.
	Flush() error
}

// A SpaceWriter is a Writer that says how much it takes until it is full.
type SpaceWriter interface {
	Writer
	// Space returns about how many bytes of rows that is, 0 if it does not know.
	Space() int
}

// Space returns what w says of its space, 0 if it says nothing.
func Space(w Writer) int {
	if s, ok := w.(SpaceWriter); ok {
		return s.Space()
	}
	return 0
}

// Stats counts what a read saw (google.bigtable.v2.ReadIterationStats).
type Stats struct {
	RowsSeen, RowsReturned   int64
	CellsSeen, CellsReturned int64
}

// MinCutBytes is the size of a tablet, compressed, from which on it pays to read parts of it
// at a time. To read as much takes a millisecond at least, and to begin 20 µs.
const MinCutBytes = 256 << 10

// A Sample is a position in a table.
type Sample struct {
	// Key need not exist. It is empty for the end of the table.
	Key []byte
	// Offset is the approximate number of bytes in rows before Key.
	Offset int64
}
