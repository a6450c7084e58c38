package commitlog

import (
	"cmp"
	"context"
	"fmt"
)

// An ID names a log in its segment-object form: the incarnation of the server
// that writes it, which is never used again. The append form has no names; its
// positions have ID 0.
type ID uint64

// String returns the ID as it appears in the names of objects.
func (id ID) String() string { return fmt.Sprintf("%016x", uint64(id)) }

// A Pos is a place in a log: that of a record, or an end. It orders records as
// they were appended; those of a server's later incarnation come after those of
// an earlier one. The zero Pos is before every record.
type Pos struct {
	Log     ID `json:",omitempty"`
	Segment uint64
	// Offset is that of the record in the segment: in bytes in the append form,
	// in records in the segment-object form.
	Offset uint32
}

// Compare returns -1, 0 or +1 as p is before, at or after q.
func (p Pos) Compare(q Pos) int {
	return cmp.Or(cmp.Compare(p.Log, q.Log), cmp.Compare(p.Segment, q.Segment), cmp.Compare(p.Offset, q.Offset))
}

// Less reports whether p is before q.
func (p Pos) Less(q Pos) bool { return p.Compare(q) < 0 }

// String returns "segment:offset", in the segment-object form with "log/" in
// front.
func (p Pos) String() string {
	if p.Log == 0 {
		return fmt.Sprintf("%d:%d", p.Segment, p.Offset)
	}
	return fmt.Sprintf("%v/%d:%d", p.Log, p.Segment, p.Offset)
}

// A Record is one record as replayed. Payload is valid during the call only.
type Record struct {
	Tablet   uint64
	FirstSeq uint64 // the first of N sequence numbers, stamp.Step apart
	N        int
	Payload  []byte
	Pos      Pos
}

// Records are what one Append adds: consecutive records of one tablet.
type Records interface {
	// Records returns how many there are, at least one.
	Records() int
	// AppendRecord appends the payload of record i to dst and returns the result,
	// and how many sequence numbers the record takes. It is called for each in
	// order, inside the log's lock, so it should do nothing else, and must not keep
	// dst.
	AppendRecord(dst []byte, i int) (payload []byte, n int)
}

// A Writer appends to a log, in either form. It is safe for concurrent use.
//
// A failed writer acknowledges nothing any more. If Err is fault.Fenced,
// another server has sealed the log and replays it: the process must stop
// serving at once, and may not trim.
type Writer interface {
	// Reserve makes room for one Append of records whose payloads, with RecordBytes
	// for each record but the first, take at most n bytes. Call it before anything
	// of the write is visible: after it succeeded, Append cannot fail for lack of
	// space. It waits while more than Options.PendingBytes are not written yet.
	//
	// It fails with fault.Exhausted if the disk or store is full, with
	// fault.Invalid if n exceeds MaxRecordBytes, with the error of ctx, and with
	// Err.
	Reserve(ctx context.Context, n int) (Reservation, error)

	// Release gives a reservation back unused.
	Release(r Reservation)

	// Append adds records of tablet, whose sequence numbers begin with firstSeq,
	// and returns the position of the first. They take at most what r was made
	// for. They share one group commit, so a crash leaves all of them or none.
	// Append never waits for the disk.
	//
	// Records are written and acknowledged in the order of the calls, and those of one
	// tablet are replayed in it. So the calls of one tablet must be made in the order of
	// its sequence numbers. When the records are durable, sink (if not nil) is told and
	// Wait returns nil. If the writer failed the records are lost, which Wait reports.
	Append(r Reservation, tablet, firstSeq uint64, recs Records, sink Sink) Pos

	// Wait returns nil once the records that Append returned pos for, or the one that was
	// replayed at pos, are durable. A context error means that it may or may not become
	// so. Any other error means that the writer failed, and that the record may or may not
	// be found when the log is replayed.
	Wait(ctx context.Context, pos Pos) error

	// WaitSynced returns nil once all that Wait has answered nil for survives a power cut.
	// With Sync it does at once. METADATA, which is synced, must not say what a log that
	// loses its end would contradict. Errors are those of Wait.
	WaitSynced(ctx context.Context) error

	// Failed is closed when the writer has failed. Nothing is acknowledged after
	// it.
	Failed() <-chan struct{}

	// Err returns why the writer failed, with fault.Unavailable or fault.Fenced,
	// or nil.
	Err() error

	// End returns the position that the next record will have, or one before it.
	End() Pos

	// Bytes returns how much log is kept: what a replay of all of it would read.
	Bytes() int64

	// Trim removes what lies wholly before a redo point: no record at or after it
	// is touched. Every redo point that a METADATA row names must be at or after
	// before, or a recovery from it finds a hole.
	Trim(before Pos) error

	// Close writes what was appended and returns when all is closed. Reserve and
	// Append must not be running.
	Close() error
}

// A Sink learns which records of one tablet are durable. Durable is called by the log's
// flusher, in append order and before any waiter of those records wakes. Every record of
// the sink up to lastSeq is durable. It must be quick and must not call the Writer. Sinks
// are compared with ==.
type Sink interface {
	Durable(lastSeq uint64)
}

// A Reservation is room in the log. It is spent by exactly one
// Append, or given back by Release.
type Reservation uint64

var _ Writer = (*FileWriter)(nil)
