package matview

import "time"

// A Status tells how far a materialized view is.
type Status struct {
	// Tablets is the number of parts, by key range of the source, in which the view is
	// kept up to date. Building are those that look at all their rows, Behind those that
	// nobody works on at present: while they are moved, or after an error.
	Tablets, Building, Behind int
	// Lag is for how long the oldest change has waited that the view does not show.
	Lag time.Duration
	// Failed counts the evaluations of rows that failed since the servers started:
	// such a row contributes nothing. LastFailure is why the last one did, without the row.
	Failed      int64
	LastFailure string
	// Errors counts what else failed and is tried again; LastError is the last.
	Errors    int64
	LastError string
	// RowBytes is the size of the view's rows with their hidden state, StateBytes that of
	// what is known of the source's rows.
	RowBytes, StateBytes int64
}
