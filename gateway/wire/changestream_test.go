package wire

import (
	"bytes"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
)

func changeStreamRequest(t testing.TB, b []byte) (*ReadChangeStreamRequest, error) {
	r := new(ReadChangeStreamRequest)
	err := r.DecodeWire(mem.BufferSlice{mem.SliceBuffer(b)}, mem.NopBufferPool{}, nil)
	t.Cleanup(r.Release)
	return r, err
}

func TestReadChangeStreamRequest(t *testing.T) {
	decode := func(p *bigtablepb.ReadChangeStreamRequest) *ReadChangeStreamRequest {
		t.Helper()
		b, err := proto.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		r, err := changeStreamRequest(t, b)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 678_901_234, time.UTC)
	r := decode(&bigtablepb.ReadChangeStreamRequest{TableName: "t", AppProfileId: "p", Partition: StreamPartition(row.Range{Start: []byte("a"), End: []byte("b")}),
		StartFrom: &bigtablepb.ReadChangeStreamRequest_StartTime{StartTime: timestamppb.New(at)}, EndTime: timestamppb.New(at.Add(time.Second))})
	if r.Check() != nil || r.Table != "t" || r.Profile != "p" || string(r.Partition.Start) != "a" || string(r.Partition.End) != "b" ||
		r.Start.Nanosecond() != 678_901_000 || r.End.Sub(r.Start) != time.Second || r.Heartbeat != 5*time.Second || r.Tokens != nil {
		t.Errorf("%+v", r)
	}
	for in, want := range map[time.Duration]time.Duration{0: 100 * time.Millisecond, time.Second: time.Second, 48 * time.Hour: time.Hour} {
		if r := decode(&bigtablepb.ReadChangeStreamRequest{HeartbeatDuration: durationpb.New(in)}); r.Heartbeat != want || r.Check() != nil {
			t.Errorf("heartbeat of %v is %v, %v", in, r.Heartbeat, r.Check())
		}
	}
	// Every row, also of a single key's range, and what of it is set or not.
	if r := decode(&bigtablepb.ReadChangeStreamRequest{}); r.Check() != nil || len(r.Partition.Start)+len(r.Partition.End) > 0 || !r.Start.IsZero() || !r.End.IsZero() {
		t.Errorf("%+v, %v", r, r.Check())
	}
	many := &bigtablepb.StreamContinuationTokens{}
	for range MaxStreamTokens + 1 {
		many.Tokens = append(many.Tokens, new(bigtablepb.StreamContinuationToken))
	}
	r = decode(&bigtablepb.ReadChangeStreamRequest{StartFrom: &bigtablepb.ReadChangeStreamRequest_ContinuationTokens{ContinuationTokens: many}})
	if fault.KindOf(r.Check()) != fault.Invalid {
		t.Error(r.Check())
	}
	// One that is too large is not decoded, but for what it is about.
	b, err := proto.Marshal(&bigtablepb.ReadChangeStreamRequest{TableName: "t", StartFrom: &bigtablepb.ReadChangeStreamRequest_ContinuationTokens{
		ContinuationTokens: &bigtablepb.StreamContinuationTokens{Tokens: []*bigtablepb.StreamContinuationToken{{Token: string(bytes.Repeat([]byte("x"), maxChangeRequest))}}}}})
	if err != nil {
		t.Fatal(err)
	}
	if r, err = changeStreamRequest(t, b); err != nil || fault.KindOf(r.Check()) != fault.Invalid || r.Table != "t" || r.Tokens != nil {
		t.Errorf("%v, %v", r.Check(), err)
	}
}

func FuzzReadChangeStreamRequest(f *testing.F) {
	at := timestamppb.New(time.Unix(1e9, 5))
	for _, p := range []*bigtablepb.ReadChangeStreamRequest{
		{}, {TableName: "t", StartFrom: &bigtablepb.ReadChangeStreamRequest_StartTime{StartTime: at}, EndTime: at, HeartbeatDuration: durationpb.New(1)},
		{Partition: StreamPartition(row.Range{Start: []byte("a"), End: []byte("b")}), StartFrom: &bigtablepb.ReadChangeStreamRequest_ContinuationTokens{
			ContinuationTokens: &bigtablepb.StreamContinuationTokens{Tokens: []*bigtablepb.StreamContinuationToken{{Partition: StreamPartition(row.All), Token: "x"}}}}},
	} {
		b, err := proto.Marshal(p)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := changeStreamRequest(t, b)
		p := new(bigtablepb.ReadChangeStreamRequest)
		if perr := proto.Unmarshal(b, p); (err != nil) != (perr != nil) {
			t.Fatalf("%v, but the generated code says %v", err, perr)
		}
		if err != nil {
			return
		}
		if err := r.Check(); err != nil {
			if fault.KindOf(err) != fault.Invalid {
				t.Error(err)
			}
			return
		}
		if r.Partition.Empty() || r.Heartbeat < minHeartbeat || r.Heartbeat > maxHeartbeat || r.Tokens != nil && !r.Start.IsZero() || !r.End.IsZero() && r.End.Before(r.Start) {
			t.Errorf("accepted %+v", r)
		}
	})
}
