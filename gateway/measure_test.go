package gateway

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/trestledb/trestle/engine/request"
)

// traces is a tracer that remembers what it was asked for.
type traces struct {
	mu      sync.Mutex
	parents []string
	ended   []string
	strings map[string]string
}

func (t *traces) Sample(method, parent string) request.Span {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.parents = append(t.parents, parent)
	if parent == "" {
		return nil
	}
	return &oneSpan{t: t, name: method}
}

func (t *traces) Remote(request.SpanContext, string) request.Span { return nil }

type oneSpan struct {
	t    *traces
	name string
}

func (s *oneSpan) Child(name string) request.Span { return &oneSpan{s.t, name} }
func (s *oneSpan) Int(string, int64)              {}
func (s *oneSpan) String(name, v string) {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	if s.t.strings == nil {
		s.t.strings = map[string]string{}
	}
	s.t.strings[name] = v
}
func (s *oneSpan) Context() request.SpanContext { return request.SpanContext{Trace: [16]byte{7}} }
func (s *oneSpan) End(error) {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	s.t.ended = append(s.t.ended, s.name)
}

// A request has one id: in its error, in the log of slow requests and in its trace.
func TestSlowRequestsAndTraces(t *testing.T) {
	var mu sync.Mutex
	var slow []request.Slow
	tr := &traces{}
	f := newFixture(t, Options{Tracer: tr, Slow: time.Nanosecond, SlowRequest: func(s request.Slow) {
		mu.Lock()
		defer mu.Unlock()
		slow = append(slow, s)
	}})
	const parent = "00-0102030405060708090a0b0c0d0e0f10-0102030405060708-01"
	ctx := metadata.AppendToOutgoingContext(context.Background(), "traceparent", parent)
	if err := f.table().Apply(ctx, "row-secret", func() *bigtable.Mutation { m := bigtable.NewMutation(); m.Set("cf", "q", 0, nil); return m }()); err != nil {
		t.Fatal(err)
	}
	_, err := f.raw.MutateRow(ctx, &bigtablepb.MutateRowRequest{TableName: "projects/p/instances/inst-1/tables/none", RowKey: []byte("row-secret"),
		Mutations: []*bigtablepb.Mutation{{Mutation: &bigtablepb.Mutation_DeleteFromRow_{DeleteFromRow: &bigtablepb.Mutation_DeleteFromRow{}}}}})
	var info *errdetails.RequestInfo
	for _, d := range status.Convert(err).Details() {
		if i, ok := d.(*errdetails.RequestInfo); ok {
			info = i
		}
	}
	if info == nil || len(info.GetRequestId()) != 16 {
		t.Fatalf("no request id: %v", err)
	}
	eventually(t, "both are told", func() bool { mu.Lock(); defer mu.Unlock(); return len(slow) == 2 })
	mu.Lock()
	defer mu.Unlock()
	s := slow[1]
	if s.RequestID != info.GetRequestId() || s.Code != "NotFound" || s.Method != "MutateRow" || s.Face != "bigtable" || s.Profile != "default" || !strings.HasPrefix(s.Trace, "07") {
		t.Errorf("%+v", s)
	}
	tr.mu.Lock()
	if !slices.Contains(tr.parents, parent) || len(tr.ended) != 2 || tr.strings["trestle.request_id"] != info.GetRequestId() {
		t.Errorf("parents %q, ended %q, %v", tr.parents, tr.ended, tr.strings)
	}
	tr.mu.Unlock()
}
