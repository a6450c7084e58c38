package wire

import (
	"bytes"
	"fmt"
	"math"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// compareSession checks that a message that the generated code reads is read
// alike. What it does not read must only do no harm: fields that nobody uses
// are not looked into.
func compareSession(b []byte, r *SessionRequest) error {
	r.Release()
	if err := r.DecodeWire(mem.BufferSlice{mem.SliceBuffer(b)}, mem.NopBufferPool{}, nil); err != nil {
		return err
	}
	want := new(bigtablepb.SessionRequest)
	if proto.Unmarshal(b, want) != nil {
		return nil
	}
	switch p := want.Payload.(type) {
	case nil:
		if r.Payload != NoSessionPayload || r.Malformed() != nil {
			return fmt.Errorf("payload %d, %w", r.Payload, r.Malformed())
		}
	case *bigtablepb.SessionRequest_CloseSession:
		if r.Payload != CloseSession || r.Malformed() != nil {
			return fmt.Errorf("payload %d, %w", r.Payload, r.Malformed())
		}
	case *bigtablepb.SessionRequest_OpenSession:
		open := new(bigtablepb.OpenTableRequest)
		err := proto.Unmarshal(p.OpenSession.Payload, open)
		if r.Payload != OpenSession || (err != nil) != (r.Malformed() != nil) {
			return fmt.Errorf("payload %d, %w instead of %w", r.Payload, r.Malformed(), err)
		}
		if err == nil && (r.Name != open.TableName || r.Profile != open.AppProfileId || r.Permission != open.Permission) {
			return fmt.Errorf("opens %q, %q, %v instead of %v", r.Name, r.Profile, r.Permission, open)
		}
	case *bigtablepb.SessionRequest_VirtualRpc:
		v := p.VirtualRpc
		if r.Payload != VirtualCall || r.ID != v.RpcId || r.HasTimeout != (v.Deadline != nil) || r.Attempt != v.Metadata.GetAttemptNumber() {
			return fmt.Errorf("call %d, %v, %v instead of %v", r.ID, r.HasTimeout, r.Attempt, v)
		}
		if s := v.Deadline.GetSeconds(); s > -1e9 && s < 1e9 && r.Timeout != time.Duration(s)*time.Second+time.Duration(v.Deadline.GetNanos()) {
			return fmt.Errorf("timeout %v instead of %v", r.Timeout, v.Deadline)
		}
		return compareVirtual(r, v.Payload)
	}
	return nil
}

func compareVirtual(r *SessionRequest, payload []byte) error {
	want := new(bigtablepb.TableRequest)
	if proto.Unmarshal(payload, want) != nil {
		return nil
	}
	switch p := want.Payload.(type) {
	case nil:
		if r.Op != NoVirtualOp || r.Check() == nil {
			return fmt.Errorf("operation %d of an empty payload, %w", r.Op, r.Check())
		}
	case *bigtablepb.TableRequest_ReadRow:
		in := readOf(&bigtablepb.ReadRowsRequest{Filter: p.ReadRow.Filter, Rows: &bigtablepb.RowSet{RowKeys: [][]byte{p.ReadRow.Key}}})
		if r.Op != VirtualReadRow || (r.Check() == nil) != (in.Check() == nil) {
			return fmt.Errorf("read %d, %w instead of %w", r.Op, r.Check(), in.Check())
		}
		if r.Check() == nil && (!bytes.Equal(r.Key, p.ReadRow.Key) || fmt.Sprint(r.Filter) != fmt.Sprint(in.Filter)) {
			return fmt.Errorf("read of %q with %v instead of %v", r.Key, r.Filter, p.ReadRow)
		}
	case *bigtablepb.TableRequest_MutateRow:
		_, e, refused := mutateRowOf(&bigtablepb.MutateRowRequest{RowKey: p.MutateRow.Key, Mutations: p.MutateRow.Mutations})
		if r.Op != VirtualMutateRow || (r.Check() == nil) != (refused == nil) {
			return fmt.Errorf("mutation %d, %w instead of %w", r.Op, r.Check(), refused)
		}
		if refused == nil {
			return sameEntry(&r.Entry, &e)
		}
	}
	return nil
}

func sessionSeeds() (out [][]byte) {
	add := func(m *bigtablepb.SessionRequest) { out = append(out, marshal(m)) }
	open := func(p []byte) *bigtablepb.SessionRequest {
		return &bigtablepb.SessionRequest{Payload: &bigtablepb.SessionRequest_OpenSession{OpenSession: &bigtablepb.OpenSessionRequest{
			ProtocolVersion: 1, Flags: &bigtablepb.FeatureFlags{PeerInfo: true}, Payload: p}}}
	}
	add(open(nil))
	add(open(marshal(&bigtablepb.OpenTableRequest{TableName: "projects/p/instances/i/tables/t", AppProfileId: "a", Permission: bigtablepb.OpenTableRequest_PERMISSION_WRITE})))
	add(&bigtablepb.SessionRequest{Payload: &bigtablepb.SessionRequest_CloseSession{CloseSession: &bigtablepb.CloseSessionRequest{Description: "bye"}}})
	call := func(p *bigtablepb.TableRequest) {
		add(&bigtablepb.SessionRequest{Payload: &bigtablepb.SessionRequest_VirtualRpc{VirtualRpc: &bigtablepb.VirtualRpcRequest{
			RpcId: 300, Deadline: durationpb.New(1500 * time.Millisecond), Payload: marshal(p),
			Metadata: &bigtablepb.VirtualRpcRequest_Metadata{AttemptNumber: 2, AttemptStart: timestamppb.New(time.Unix(1, 2)), Traceparent: "t"}}}})
	}
	call(&bigtablepb.TableRequest{})
	call(&bigtablepb.TableRequest{Payload: &bigtablepb.TableRequest_ReadRow{ReadRow: &bigtablepb.SessionReadRowRequest{Key: []byte("k"),
		Filter: &bigtablepb.RowFilter{Filter: &bigtablepb.RowFilter_FamilyNameRegexFilter{FamilyNameRegexFilter: "cf"}}}}})
	for _, m := range samples() {
		call(&bigtablepb.TableRequest{Payload: &bigtablepb.TableRequest_MutateRow{MutateRow: &bigtablepb.SessionMutateRowRequest{Key: []byte("k"), Mutations: []*bigtablepb.Mutation{m, m}}}})
	}
	return append(out, nil, []byte{0x0a, 0x7f}, []byte{3<<3 | 2, 2, 0x0a, 0x7f})
}

func TestSessionSamples(t *testing.T) {
	r := new(SessionRequest) // reused, so that nothing of one message is left for the next
	for range 2 {
		for i, b := range sessionSeeds() {
			if err := compareSession(b, r); err != nil {
				t.Errorf("%d: %v", i, err)
			}
		}
	}
	for s, want := range map[int64]time.Duration{math.MaxInt64: 200 * 365 * 24 * time.Hour, math.MinInt64: -200 * 365 * 24 * time.Hour} {
		b := marshal(&bigtablepb.SessionRequest{Payload: &bigtablepb.SessionRequest_VirtualRpc{VirtualRpc: &bigtablepb.VirtualRpcRequest{Deadline: &durationpb.Duration{Seconds: s}}}})
		if err := compareSession(b, r); err != nil || want > 0 && r.Timeout < want || want < 0 && r.Timeout > want {
			t.Errorf("a timeout of %d s is %v, %v", s, r.Timeout, err)
		}
	}
}

func FuzzSessionRequest(f *testing.F) {
	for _, b := range sessionSeeds() {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := compareSession(b, new(SessionRequest)); err != nil {
			t.Error(err)
		}
	})
}

func BenchmarkDecodeSessionMutateRow1KB(b *testing.B) {
	data := marshal(&bigtablepb.SessionRequest{Payload: &bigtablepb.SessionRequest_VirtualRpc{VirtualRpc: &bigtablepb.VirtualRpcRequest{
		RpcId: 300, Deadline: durationpb.New(time.Second), Payload: marshal(&bigtablepb.TableRequest{Payload: &bigtablepb.TableRequest_MutateRow{
			MutateRow: &bigtablepb.SessionMutateRowRequest{Key: []byte("row-0001"), Mutations: []*bigtablepb.Mutation{set("cf", "q", 1000, string(make([]byte, 1000)))}}}})}}})
	r := new(SessionRequest)
	b.ReportAllocs()
	for b.Loop() {
		r.Release()
		if r.DecodeWire(mem.BufferSlice{mem.SliceBuffer(data)}, mem.NopBufferPool{}, nil) != nil || r.Check() != nil {
			b.Fatal("not decoded")
		}
	}
}
