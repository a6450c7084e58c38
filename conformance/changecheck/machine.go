package changecheck

import (
	"errors"
	"fmt"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

// A Record is a record of a stream, put together of its messages.
type Record struct {
	Key []byte
	// Collected says that garbage collection made the change, Cluster which cluster
	// took it else.
	Collected  bool
	Cluster    string
	Commit     time.Time
	Tiebreaker int32
	Mutations  []*bigtablepb.Mutation
	Token      string
	Watermark  time.Time
	Messages   int // of which it came
}

// An Event is what a message ended: exactly one field is set, none if a record goes
// on in the next message.
type Event struct {
	Record    *Record
	Heartbeat *bigtablepb.ReadChangeStreamResponse_Heartbeat
	Close     *bigtablepb.ReadChangeStreamResponse_CloseStream
}

// A Machine puts the messages of one stream together, as strictly as the official
// clients do. Its zero value is at the start of a stream.
type Machine struct {
	record *Record
	value  struct { // of a SetCell that comes in parts
		set  *bigtablepb.Mutation_SetCell
		size int32
	}
	closed bool
}

// Take takes the next message. An error says what is wrong with it.
func (m *Machine) Take(resp *bigtablepb.ReadChangeStreamResponse) (Event, error) {
	if m.closed {
		return Event{}, errors.New("a message after CloseStream")
	}
	switch r := resp.GetStreamRecord().(type) {
	case *bigtablepb.ReadChangeStreamResponse_DataChange_:
		done, err := m.data(r.DataChange)
		if err != nil || !done {
			return Event{}, err
		}
		rec := m.record
		m.record = nil
		return Event{Record: rec}, nil
	case *bigtablepb.ReadChangeStreamResponse_Heartbeat_:
		if m.record != nil {
			return Event{}, errors.New("a heartbeat within a record")
		}
		h := r.Heartbeat
		if h.GetContinuationToken().GetToken() == "" || h.GetContinuationToken().GetPartition().GetRowRange() == nil || h.GetEstimatedLowWatermark() == nil {
			return Event{}, fmt.Errorf("an incomplete heartbeat: %v", h)
		}
		return Event{Heartbeat: h}, nil
	case *bigtablepb.ReadChangeStreamResponse_CloseStream_:
		if m.record != nil {
			return Event{}, errors.New("a close within a record")
		}
		m.closed = true
		return Event{Close: r.CloseStream}, checkClose(r.CloseStream)
	}
	return Event{}, fmt.Errorf("an empty message: %v", resp)
}

func checkClose(c *bigtablepb.ReadChangeStreamResponse_CloseStream) error {
	tokens, parts := c.GetContinuationTokens(), c.GetNewPartitions()
	switch {
	case c.GetStatus() == nil:
		return errors.New("a close without status")
	case codes.Code(c.GetStatus().GetCode()) == codes.OK:
		if len(tokens)+len(parts) > 0 {
			return errors.New("a close of status OK with tokens or partitions")
		}
		return nil
	case codes.Code(c.GetStatus().GetCode()) != codes.OutOfRange:
		return fmt.Errorf("a close of status %v", c.GetStatus())
	case len(tokens) == 0, len(parts) != 0 && len(parts) != len(tokens):
		return fmt.Errorf("a close with %d tokens and %d partitions", len(tokens), len(parts))
	}
	return nil
}

func (m *Machine) data(d *bigtablepb.ReadChangeStreamResponse_DataChange) (done bool, err error) {
	if len(d.GetChunks()) == 0 {
		return false, errors.New("a data change without chunks")
	}
	if m.record == nil {
		if err := m.first(d); err != nil {
			return false, err
		}
	} else if d.GetType() != bigtablepb.ReadChangeStreamResponse_DataChange_CONTINUATION || len(d.GetRowKey()) > 0 || d.GetCommitTimestamp() != nil || d.GetSourceClusterId() != "" || d.GetTiebreaker() != 0 {
		return false, fmt.Errorf("a continuation says more than chunks: %v", head(d))
	}
	m.record.Messages++
	for i, c := range d.GetChunks() {
		if err := m.chunk(c, i, len(d.GetChunks())); err != nil {
			return false, fmt.Errorf("chunk %d: %w", i, err)
		}
	}
	if !d.GetDone() {
		if d.GetToken() != "" || d.GetEstimatedLowWatermark() != nil {
			return false, errors.New("a token or watermark before the end of a record")
		}
		return false, nil
	}
	switch {
	case m.value.set != nil:
		return false, errors.New("done within a value")
	case d.GetToken() == "":
		return false, errors.New("done without a token")
	case d.GetEstimatedLowWatermark() == nil:
		return false, errors.New("done without a watermark")
	}
	m.record.Token, m.record.Watermark = d.GetToken(), d.GetEstimatedLowWatermark().AsTime()
	return true, nil
}

// head returns d without its chunks, to be shown.
func head(d *bigtablepb.ReadChangeStreamResponse_DataChange) proto.Message {
	h := proto.Clone(d).(*bigtablepb.ReadChangeStreamResponse_DataChange)
	h.Chunks = nil
	return h
}

func (m *Machine) first(d *bigtablepb.ReadChangeStreamResponse_DataChange) error {
	r := &Record{Key: d.GetRowKey(), Cluster: d.GetSourceClusterId(), Commit: d.GetCommitTimestamp().AsTime(), Tiebreaker: d.GetTiebreaker()}
	switch d.GetType() {
	case bigtablepb.ReadChangeStreamResponse_DataChange_USER:
		if r.Cluster == "" {
			return errors.New("a change of a user without a cluster")
		}
	case bigtablepb.ReadChangeStreamResponse_DataChange_GARBAGE_COLLECTION:
		if r.Collected = true; r.Cluster != "" {
			return errors.New("garbage collection with a cluster")
		}
	default:
		return fmt.Errorf("a record begins with type %v", d.GetType())
	}
	if len(r.Key) == 0 || d.GetCommitTimestamp() == nil {
		return errors.New("a record without row key or commit timestamp")
	}
	m.record = r
	return nil
}

func (m *Machine) chunk(c *bigtablepb.ReadChangeStreamResponse_MutationChunk, i, n int) error {
	mut, info := c.GetMutation(), c.GetChunkInfo()
	if m.value.set != nil {
		set := mut.GetSetCell()
		switch {
		case i > 0:
			return errors.New("a value goes on that is not the first of its message")
		case set == nil:
			return errors.New("a value does not go on")
		case info.GetChunkedValueSize() != m.value.size:
			return fmt.Errorf("the size of a value changes from %d to %d", m.value.size, info.GetChunkedValueSize())
		case int(info.GetChunkedValueOffset()) != len(m.value.set.Value):
			return fmt.Errorf("offset %d after %d bytes", info.GetChunkedValueOffset(), len(m.value.set.Value))
		case set.GetFamilyName() != "" || len(set.GetColumnQualifier()) > 0 || set.GetTimestampMicros() != 0:
			return errors.New("a later part of a value says where it goes")
		}
		m.value.set.Value = append(m.value.set.Value, set.GetValue()...)
		return m.part(info, i, n)
	}
	switch mut.GetMutation().(type) {
	case *bigtablepb.Mutation_SetCell_:
		m.record.Mutations = append(m.record.Mutations, proto.Clone(mut).(*bigtablepb.Mutation))
		if info != nil {
			if info.GetChunkedValueSize() <= 0 || info.GetChunkedValueOffset() != 0 || info.GetLastChunk() {
				return fmt.Errorf("a value begins with %v", info)
			}
			m.value.set = m.record.Mutations[len(m.record.Mutations)-1].GetSetCell()
			m.value.size = info.GetChunkedValueSize()
			return m.part(info, i, n)
		}
		return nil
	case *bigtablepb.Mutation_DeleteFromColumn_:
		if mut.GetDeleteFromColumn().GetTimeRange() == nil {
			return errors.New("DeleteFromColumn without a time range")
		}
	case *bigtablepb.Mutation_DeleteFromFamily_, *bigtablepb.Mutation_AddToCell_, *bigtablepb.Mutation_MergeToCell_:
	default:
		return fmt.Errorf("unknown mod type %T", mut.GetMutation())
	}
	if info != nil {
		return fmt.Errorf("%T with %v", mut.GetMutation(), info)
	}
	m.record.Mutations = append(m.record.Mutations, mut)
	return nil
}

// part ends the part of a value that is chunk i of n in its message.
func (m *Machine) part(info *bigtablepb.ReadChangeStreamResponse_MutationChunk_ChunkInfo, i, n int) error {
	have := len(m.value.set.Value)
	if !info.GetLastChunk() {
		if i != n-1 {
			return errors.New("a value that goes on is not the last of its message")
		}
		if have >= int(m.value.size) {
			return fmt.Errorf("%d bytes of a value of %d, and no end", have, m.value.size)
		}
		return nil
	}
	if have != int(m.value.size) {
		return fmt.Errorf("a value of %d bytes ends after %d", m.value.size, have)
	}
	m.value.set = nil
	return nil
}
