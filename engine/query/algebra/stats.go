package algebra

import "time"

// Stats are what one operator did while a statement ran. Package exec fills them
// batch by batch; EXPLAIN ANALYZE shows them.
type Stats struct {
	// Opens is how often the operator was started: once, or for each row of the query
	// around it.
	Opens int64
	// Rows and Batches are what it gave out.
	Rows, Batches int64
	// Wall is the time spent in it and in its inputs.
	Wall time.Duration
	// MemoryPeak is the most that it held at a time, and Spilled what it wrote to
	// temporary files, in bytes.
	MemoryPeak, Spilled int64
	// Scan is what a Scan read: rows and cells that the source looked at.
	RowsSeen, CellsSeen int64
}
