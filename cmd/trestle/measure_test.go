package main

import (
	"context"
	"encoding/json"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"

	"github.com/trestledb/trestle/engine/request"
)

// A spanSink is a collector of traces that keeps their names.
type spanSink struct {
	collector.UnimplementedTraceServiceServer
	mu    sync.Mutex
	names map[string]int
	texts strings.Builder
}

func (s *spanSink) Export(_ context.Context, r *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range r.GetResourceSpans() {
		for _, in := range of.GetScopeSpans() {
			for _, sp := range in.GetSpans() {
				s.names[sp.GetName()]++
			}
		}
	}
	s.texts.WriteString(r.String())
	return &collector.ExportTraceServiceResponse{}, nil
}

// What a server measures of its requests arrives where it is asked for: tables in the
// metrics, slow requests in the admin service, spans at the collector. A row key is nowhere
// but in slow requests, and there if it was asked for.
func TestMeasuredRequests(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	sink, g := &spanSink{names: map[string]int{}}, grpc.NewServer()
	collector.RegisterTraceServiceServer(g, sink)
	go func() { _ = g.Serve(l) }()
	defer g.Stop()
	for _, keys := range []string{"--slow-keys=false", "--slow-keys=true"} {
		p := startTrestle(t, "real", t.TempDir(), "serve", "--emulator", "--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0", "--memory=64MiB",
			"--slow-request=1ms", "--slow-log", keys, "--otlp-endpoint=http://"+l.Addr().String(), "--trace-sample=100%")
		url := strings.Fields(p.line("metrics and health"))[0]
		admin, client := clients(t, p.line("export BIGTABLE_EMULATOR_HOST="))
		if err := admin.CreateTable(t.Context(), "measured"); err != nil {
			t.Fatal(err)
		}
		if err := admin.CreateColumnFamily(t.Context(), "measured", "f"); err != nil {
			t.Fatal(err)
		}
		tbl := client.Open("measured")
		const key = "row-secret"
		for range 50 {
			set(t, tbl, key, "value-secret")
		}
		if got := value(t, tbl, key); got != "value-secret" {
			t.Errorf("%q", got)
		}
		metrics := httpGet(t, url)
		for _, want := range []string{`method="MutateRow",table="projects/`, `/tables/measured"} 50`, `bigtable_table_tablets{table="projects/`, `bigtable_table_memtable_bytes{table="projects/`} {
			if !strings.Contains(metrics, want) {
				t.Errorf("the metrics lack %q", want)
			}
		}
		// Writes are under way while the process stands still.
		ctx, cancel := context.WithCancel(t.Context())
		var writers sync.WaitGroup
		for range 4 {
			writers.Go(func() {
				m := bigtable.NewMutation()
				m.Set("f", "q", 1000, []byte("value-secret"))
				for ctx.Err() == nil {
					_ = tbl.Apply(ctx, key, m)
				}
			})
		}
		for range 5 {
			time.Sleep(20 * time.Millisecond)
			p.signal(syscall.SIGSTOP)
			time.Sleep(20 * time.Millisecond)
			p.signal(syscall.SIGCONT)
		}
		cancel()
		writers.Wait()
		var slow struct {
			Requests []request.Slow `json:"requests"`
		}
		body := httpGet(t, strings.TrimSuffix(url, "/metrics")+"/admin/slow")
		if err := json.Unmarshal([]byte(body), &slow); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		found := false
		for _, s := range slow.Requests {
			if s.Method != "MutateRow" || s.Code != "OK" { // the last were cancelled
				continue
			}
			found = true
			if s.RowsWritten != 1 || s.Tablets < 1 || s.LogWait <= 0 || s.LogWait > s.Seconds || !strings.HasSuffix(s.Table, "/tables/measured") || s.Trace == "" || (s.Key == key) != (keys == "--slow-keys=true") {
				t.Errorf("%+v", s)
			}
		}
		if !found {
			t.Errorf("no write is there: %s", body)
		}
		p.signal(syscall.SIGTERM)
		p.exit()
		logged := p.stderr.String()
		if !strings.Contains(logged, "slow request") || strings.Contains(logged, key) != (keys == "--slow-keys=true") {
			t.Errorf("the log:\n%s", logged)
		}
		if strings.Contains(metrics, "secret") || strings.Contains(body, "value-secret") {
			t.Error("a value is told")
		}
	}
	sink.mu.Lock()
	defer sink.mu.Unlock()
	for _, name := range []string{"google.bigtable.v2.Bigtable/MutateRow", "google.bigtable.v2.Bigtable/ReadRows", "tablet", "commit log"} {
		if sink.names[name] == 0 {
			t.Errorf("no span %q among %v", name, sink.names)
		}
	}
	if strings.Contains(sink.texts.String(), "secret") {
		t.Error("a span has a row key or a value")
	}
}
