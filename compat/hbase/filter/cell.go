package filter

import (
	"bytes"
	"cmp"
	"math"
)

// A Cell is what filters see of a cell. Its slices are read only.
type Cell struct {
	Row, Family, Qualifier, Value []byte
	// Timestamp is HBase's, newest first within a column.
	Timestamp int64
	// Type is HBase's code of a cell's kind: 4 for a put, others for the delete
	// markers of a raw scan. No filter looks at it.
	Type uint8
}

// A code is a filter's answer to a cell.
type code uint8

const (
	include code = iota
	includeNextColumn
	includeNextRow // "row" means the row's cells in the same family, as in HBase
	skip
	nextColumn
	nextRow
	seek // to the filter's hint
)

func (c code) includes() bool { return c <= includeNextRow }

// A hint is a place in the order of cells: before every cell of its column at
// or below its timestamp, or after all of them if last is set.
type hint struct {
	row, family, qualifier []byte
	timestamp              int64
	last                   bool
}

// atRow is before all cells of row.
func atRow(row []byte) hint { return hint{row: row, timestamp: math.MaxInt64} }

// atColumn is before all cells of a column of c's row and family.
func atColumn(c *Cell, qualifier []byte) hint {
	return hint{row: c.Row, family: c.Family, qualifier: qualifier, timestamp: math.MaxInt64}
}

func compareHints(a, b hint) int {
	if n := bytes.Compare(a.row, b.row); n != 0 {
		return n
	}
	if n := bytes.Compare(a.family, b.family); n != 0 {
		return n
	}
	if n := bytes.Compare(a.qualifier, b.qualifier); n != 0 {
		return n
	}
	switch {
	case a.last && b.last:
		return 0
	case a.last:
		return 1
	case b.last:
		return -1
	}
	return cmp.Compare(b.timestamp, a.timestamp)
}

// before tells whether c comes before h.
func (h hint) before(c *Cell) bool {
	if n := bytes.Compare(c.Row, h.row); n != 0 {
		return n < 0
	}
	if n := bytes.Compare(c.Family, h.family); n != 0 {
		return n < 0
	}
	if n := bytes.Compare(c.Qualifier, h.qualifier); n != 0 {
		return n < 0
	}
	return h.last || c.Timestamp > h.timestamp
}
