package wire

import (
	"errors"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trestledb/trestle/engine/budget"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
)

// maxChangeRequest bounds a ReadChangeStreamRequest in bytes, MaxStreamTokens the
// tokens in it: one from each of the partitions that were merged.
const (
	maxChangeRequest = 4 << 20
	MaxStreamTokens  = 1000
)

// The bounds of heartbeat_duration, beyond which it is cut, and what it is if it is
// not set.
const (
	minHeartbeat     = 100 * time.Millisecond
	maxHeartbeat     = time.Hour
	defaultHeartbeat = 5 * time.Second
)

// A ReadChangeStreamRequest is the message of that name. Nothing in it aliases the
// receive buffer.
type ReadChangeStreamRequest struct {
	Target
	Partition row.Range
	// Start and End are in whole microseconds, zero if they are not set.
	Start, End time.Time
	// Tokens are nil if the client gave a start time, or nothing.
	Tokens    []StreamToken
	Heartbeat time.Duration

	refusal
	received
}

// A StreamToken is a place in the changes of a partition.
type StreamToken struct {
	Partition row.Range
	Token     string
}

// DecodeWire implements Decoder.
func (r *ReadChangeStreamRequest) DecodeWire(data mem.BufferSlice, pool mem.BufferPool, memory *budget.Budget) error {
	b, err := r.keep(data, pool, memory)
	if err != nil {
		return err
	}
	r.size = len(b)
	p := new(bigtablepb.ReadChangeStreamRequest)
	if len(b) > maxChangeRequest {
		r.refuse(fault.InvalidField("continuation_tokens", "A ReadChangeStreamRequest must be at most %d bytes, but got %d", maxChangeRequest, len(b)))
		// What it is about is still to be authorized.
		for len(b) > 0 {
			f, rest, err := nextField(b)
			if err != nil {
				return err
			}
			if b = rest; f.typ == protowire.BytesType && f.num == 1 && len(f.bytes) <= maxChangeRequest/4 {
				r.Table = string(f.bytes)
			}
		}
		return nil
	}
	if err := r.unmarshal(b, p); err != nil {
		return err
	}
	r.Table, r.Profile = p.GetTableName(), p.GetAppProfileId()
	if err := r.check(p); err != nil {
		r.refuse(err)
	}
	return nil
}

// check takes over what p says, or returns why it must be refused.
func (r *ReadChangeStreamRequest) check(p *bigtablepb.ReadChangeStreamRequest) *fault.Error {
	var err *fault.Error
	if r.Partition, err = partition(p.GetPartition()); err != nil {
		return err.In("partition", -1)
	}
	switch from := p.GetStartFrom().(type) {
	case *bigtablepb.ReadChangeStreamRequest_StartTime:
		if r.Start, err = micros("start_time", from.StartTime); err != nil {
			return err
		}
	case *bigtablepb.ReadChangeStreamRequest_ContinuationTokens:
		ts := from.ContinuationTokens.GetTokens()
		switch {
		case len(ts) == 0:
			return inField("continuation_tokens", "At least one token must be given")
		case len(ts) > MaxStreamTokens:
			return inField("continuation_tokens", "At most %d tokens are allowed, but found %d", MaxStreamTokens, len(ts))
		}
		for i, t := range ts {
			in, err := partition(t.GetPartition())
			if err != nil {
				return err.In("tokens", i).In("continuation_tokens", -1)
			}
			r.Tokens = append(r.Tokens, StreamToken{in, t.GetToken()})
		}
	}
	if p.EndTime != nil {
		if r.End, err = micros("end_time", p.EndTime); err != nil {
			return err
		}
		if r.End.Before(r.Start) {
			return inField("end_time", "Must not be before start_time %s, but found %s", r.Start.Format(time.RFC3339Nano), r.End.Format(time.RFC3339Nano))
		}
	}
	r.Heartbeat = defaultHeartbeat
	if d := p.HeartbeatDuration; d != nil {
		if e := d.CheckValid(); e != nil {
			return inField("heartbeat_duration", "%v", e)
		}
		if d.AsDuration() < 0 {
			return inField("heartbeat_duration", "Must not be negative, but found %v", d.AsDuration())
		}
		r.Heartbeat = min(max(d.AsDuration(), minHeartbeat), maxHeartbeat)
	}
	return nil
}

// micros returns a time, cut to whole microseconds. It is never the zero Time.
func micros(field string, t *timestamppb.Timestamp) (time.Time, *fault.Error) {
	if err := t.CheckValid(); err != nil {
		return time.Time{}, inField(field, "%v", err)
	}
	at := t.AsTime().Truncate(time.Microsecond)
	if at.IsZero() {
		at = at.Add(time.Microsecond)
	}
	return at, nil
}

// partition returns the rows of p, all if there is none.
func partition(p *bigtablepb.StreamPartition) (row.Range, *fault.Error) {
	r, err := RowRange(p.GetRowRange())
	if err != nil {
		var f *fault.Error
		if errors.As(err, &f) {
			return r, f
		}
		return r, inField("row_range", "%v", err)
	}
	if r.Empty() {
		return r, inField("row_range", "The range has no rows: its start %q is not before its end %q", r.Start, r.End)
	}
	return r, nil
}

// StreamPartition returns the rows of r as a message, with both ends even where
// there is none: clients look for both.
func StreamPartition(r row.Range) *bigtablepb.StreamPartition {
	return &bigtablepb.StreamPartition{RowRange: &bigtablepb.RowRange{
		StartKey: &bigtablepb.RowRange_StartKeyClosed{StartKeyClosed: r.Start},
		EndKey:   &bigtablepb.RowRange_EndKeyOpen{EndKeyOpen: r.End},
	}}
}

// Release makes r ready for the next request.
func (r *ReadChangeStreamRequest) Release() {
	r.received.release()
	*r = ReadChangeStreamRequest{}
}
