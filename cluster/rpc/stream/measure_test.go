package stream

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/request"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

// spans remembers the names of spans, with the trace that they are in.
type spans struct {
	mu    sync.Mutex
	begun []string
	ended int
}

type namedSpan struct {
	of    *spans
	name  string
	trace byte
}

func (s *spans) add(name string, trace byte) request.Span {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun = append(s.begun, fmt.Sprintf("%s in %d", name, trace))
	return &namedSpan{s, name, trace}
}

func (s *spans) Sample(string, string) request.Span { return nil }
func (s *spans) Remote(of request.SpanContext, name string) request.Span {
	return s.add(name, of.Trace[0])
}

func (s *namedSpan) Child(name string) request.Span { return s.of.add(name, s.trace) }
func (s *namedSpan) Int(string, int64)              {}
func (s *namedSpan) String(string, string)          {}
func (s *namedSpan) Context() request.SpanContext {
	return request.SpanContext{Trace: [16]byte{s.trace}, Span: [8]byte{1}, Flags: 1}
}
func (s *namedSpan) End(error) {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.of.ended++
}

// What another process did of a request is counted in its record, and in its trace; the other
// knows the request's id.
func TestMeasuredCalls(t *testing.T) {
	var there spans
	var ids sync.Map
	work := func(ctx context.Context) {
		r := request.From(ctx)
		if r == nil {
			return
		}
		ids.Store(r.ID(), true)
		r.BeginTablet(5).End()
		r.AddRead(2, 100, 40)
	}
	read := rows(40, 10)
	f := &fake{
		read: func(ctx context.Context, at rpc.Target, req *rpc.Read, w scan.Writer) ([]row.Range, scan.Stats, error) {
			work(ctx)
			return read(ctx, at, req, w)
		},
		mutate: func(ctx context.Context, _ rpc.Target, _ *row.Entry) error { work(ctx); return nil },
	}
	for _, grpcOnly := range []bool{false, true} {
		_, s, _ := serveAs(t, f, Options{}, ServerOptions{Tracer: &there}, func(s *Server) { s.grpcScansOnly = grpcOnly })
		var here spans
		r := &request.Record{Span: here.add("request", 9)}
		ctx := request.With(t.Context(), r)
		check := func(what string, calls int64) {
			t.Helper()
			if got := r.Work.Tablets.Load(); got != calls {
				t.Errorf("%s: %d calls of tablets, want %d", what, got, calls)
			}
			if got := r.Work.BlockBytes.Load() - r.Work.CachedBytes.Load(); got != 60*calls {
				t.Errorf("%s: %d bytes from disk", what, got)
			}
		}
		if err := s.MutateRow(ctx, rpc.Target{}, &row.Entry{Key: []byte("k")}); err != nil {
			t.Fatal(err)
		}
		check("write", 1)
		large := make([]byte, 2*smallBytes)
		if err := s.MutateRow(ctx, rpc.Target{}, &row.Entry{Key: large}); err != nil {
			t.Fatal(err)
		}
		check("large write", 2)
		c := new(collect)
		if _, _, err := s.ReadRows(ctx, rpc.Target{}, &rpc.Read{Ranges: []row.Range{row.Single([]byte("000039"))}, Limit: 1}, c); err != nil {
			t.Fatal(err)
		}
		check("read", 3)
		if _, _, err := s.ReadRows(ctx, rpc.Target{}, &rpc.Read{Ranges: []row.Range{{Start: []byte("000000")}}}, c); err != nil {
			t.Fatal(err)
		}
		if !grpcOnly { // servers of earlier versions only
			check("scan", 4)
			if _, ok := ids.Load(r.ID()); !ok {
				t.Error("the id is not known there")
			}
			there.mu.Lock()
			if len(there.begun) < 4 || there.begun[0] != "tablet server in 9" {
				t.Errorf("spans there: %q", there.begun)
			}
			there.mu.Unlock()
		}
		if _, _, err := s.ReadRows(t.Context(), rpc.Target{}, &rpc.Read{Ranges: []row.Range{{Start: []byte("000000")}}}, c); err != nil {
			t.Error("of no request:", err)
		}
	}
}
