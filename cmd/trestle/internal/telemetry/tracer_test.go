package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	spb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"

	"github.com/trestledb/trestle/engine/fault"
)

// A sink is a collector that keeps what it gets.
type sink struct {
	collector.UnimplementedTraceServiceServer
	mu    sync.Mutex
	spans []*spb.Span
}

func (s *sink) Export(_ context.Context, r *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range r.GetResourceSpans() {
		for _, in := range of.GetScopeSpans() {
			s.spans = append(s.spans, in.GetSpans()...)
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

func collect(t *testing.T) (*sink, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, g := &sink{}, grpc.NewServer()
	collector.RegisterTraceServiceServer(g, s)
	go func() { _ = g.Serve(l) }()
	t.Cleanup(g.Stop)
	return s, "http://" + l.Addr().String()
}

const parent = "00-0102030405060708090a0b0c0d0e0f10-1112131415161718-01"

// A trace that began elsewhere goes on here and in another process, and arrives with its
// parts. What failed has its code, and not its text.
func TestTracesArrive(t *testing.T) {
	s, endpoint := collect(t)
	tr, err := New(t.Context(), Options{Endpoint: endpoint, Role: "test", Version: "1", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	of := tr.Sample("/google.bigtable.v2.Bigtable/ReadRows", parent)
	of.Int("trestle.rows_seen", 3)
	call := of.Child("call tablet server")
	there := tr.Remote(call.Context(), "tablet server")
	there.End(fault.New(fault.NotFound, "no row secret"))
	call.End(nil)
	of.End(nil)
	if err := tr.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	byName := map[string]*spb.Span{}
	for _, sp := range s.spans {
		byName[sp.GetName()] = sp
		if fmt.Sprintf("%x", sp.GetTraceId()) != parent[3:35] {
			t.Errorf("%s is in trace %x", sp.GetName(), sp.GetTraceId())
		}
	}
	root, c, r := byName["google.bigtable.v2.Bigtable/ReadRows"], byName["call tablet server"], byName["tablet server"]
	if root == nil || c == nil || r == nil {
		t.Fatalf("spans %v", byName)
	}
	if fmt.Sprintf("%x", root.GetParentSpanId()) != parent[36:52] || string(c.GetParentSpanId()) != string(root.GetSpanId()) || string(r.GetParentSpanId()) != string(c.GetSpanId()) {
		t.Error("the spans are not in one another")
	}
	if r.GetStatus().GetMessage() != "NotFound" || strings.Contains(r.String(), "secret") {
		t.Errorf("status %v", r.GetStatus())
	}
}

// What comes without a trace is sampled; what comes with one is as its caller says.
func TestSampling(t *testing.T) {
	_, endpoint := collect(t)
	for _, c := range []struct {
		sample float64
		parent string
		want   float64
	}{
		{0, "", 0}, {1, "", 1}, {0.1, "", 0.1}, {0, parent, 1}, {1, parent[:53] + "00", 0},
		// What is no traceparent counts for nothing.
		{1, "00-" + strings.Repeat("0", 32) + parent[35:], 1}, {0, "x" + parent[1:], 0}, {0, strings.ToUpper(parent), 0}, {0, parent + "-more", 0}, {0, "ff" + parent[2:], 0},
		{0, "01" + parent[2:] + "-more", 1}, {0, strings.Repeat("é", 30), 0},
	} {
		tr, err := New(t.Context(), Options{Endpoint: endpoint, Sample: c.sample, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for range 1000 {
			if s := tr.Sample("/s/M", c.parent); s != nil {
				n++
			}
		}
		if got := float64(n) / 1000; got < 0.6*c.want || got > 1.4*c.want {
			t.Errorf("of %v with %q %v are traced, want %v", c.sample, c.parent, got, c.want)
		}
		if err := tr.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// A collector that is not there costs spans, and holds nobody up.
func TestCollectorGone(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	_ = l.Close()
	tr, err := New(t.Context(), Options{Endpoint: "http://" + at, Sample: 1, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	for range 10_000 {
		s := tr.Sample("/s/M", "")
		s.Child("x").End(nil)
		s.End(errors.New("failed"))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_ = tr.Close(ctx)
	if d := time.Since(start); d > time.Minute {
		t.Errorf("10,000 requests and the end took %v", d)
	}
}

func BenchmarkSample(b *testing.B) {
	for _, sample := range []float64{0, 0.01, 1} {
		b.Run(fmt.Sprint(sample), func(b *testing.B) {
			tr, err := New(b.Context(), Options{Endpoint: "http://127.0.0.1:1", Sample: sample, Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if s := tr.Sample("/google.bigtable.v2.Bigtable/ReadRows", ""); s != nil {
					s.Child("tablet").End(nil)
					s.End(nil)
				}
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
			defer cancel()
			_ = tr.Close(ctx)
		})
	}
}
