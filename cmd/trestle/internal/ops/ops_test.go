package ops

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/trestledb/trestle/engine/metadata"
	measured "github.com/trestledb/trestle/engine/request"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/tablet"
	"google.golang.org/grpc/codes"
)

func get(t testing.TB, h http.Handler, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	b, err := io.ReadAll(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	return w.Code, string(b)
}

func TestReadiness(t *testing.T) {
	var health Health
	h := Gate{}.Handler(Routes(NewMetrics(), &health))
	health.Set("start", func() error { return errors.New("opening the data directory") })
	health.Set("disk", func() error { return nil })
	if code, body := get(t, h, "/readyz"); code != 503 || body != "[-] start: opening the data directory\n[+] disk: ok\nnot ready\n" {
		t.Errorf("%d %q", code, body)
	}
	if code, body := get(t, h, "/livez"); code != 200 || body != "ok\n" {
		t.Errorf("livez while starting: %d %q", code, body)
	}
	health.Set("start", func() error { return nil })
	if code, body := get(t, h, "/readyz"); code != 200 || body != "[+] start: ok\n[+] disk: ok\nready\n" {
		t.Errorf("%d %q", code, body)
	}
	if code, _ := get(t, h, "/debug/pprof/"); code != 404 {
		t.Errorf("the profiler answers %d beside the metrics", code)
	}
	if code, _ := get(t, Gate{Insecure: true}.Handler(DebugRoutes()), "/debug/pprof/goroutine?debug=1"); code != 200 {
		t.Errorf("profiler: %d", code)
	}
}

// scrape returns the page of /metrics as a map from series to value.
func scrape(t *testing.T, m *Metrics) map[string]string {
	t.Helper()
	code, body := get(t, Gate{}.Handler(Routes(m, new(Health))), "/metrics")
	if code != 200 {
		t.Fatalf("/metrics: %d\n%s", code, body)
	}
	out := map[string]string{}
	for line := range strings.Lines(body) {
		if i := strings.LastIndexByte(line, ' '); i > 0 && line[0] != '#' {
			out[line[:i]] = strings.TrimSpace(line[i:])
		}
	}
	return out
}

func TestRequests(t *testing.T) {
	m := NewMetrics()
	const method = "/google.bigtable.v2.Bigtable/ReadRows"
	m.RPCStarted(new(measured.Record))
	m.RPCStarted(new(measured.Record))
	m.RPCStarted(new(measured.Record))
	m.RPCDone(&measured.Record{Method: method}, codes.OK, 3*time.Millisecond, 10, 2000)
	// A code that gRPC does not know must not make labels without bound.
	m.RPCDone(&measured.Record{Method: method}, codes.Code(1234), time.Second, 0, 0)
	got := scrape(t, m)
	for series, want := range map[string]string{
		`bigtable_server_inflight_requests`: "1",
		`bigtable_server_requests_total{app_profile="",code="OK",face="bigtable",instance="",method="ReadRows",table=""}`:      "1",
		`bigtable_server_requests_total{app_profile="",code="Unknown",face="bigtable",instance="",method="ReadRows",table=""}`: "1",
		`bigtable_server_sent_bytes_total{app_profile="",face="bigtable",instance="",method="ReadRows",table=""}`:              "2000",
		`bigtable_server_request_seconds_bucket{face="bigtable",method="ReadRows",le="0.0025"}`:                                "0",
		`bigtable_server_request_seconds_bucket{face="bigtable",method="ReadRows",le="0.005"}`:                                 "1",
	} {
		if got[series] != want {
			t.Errorf("%s = %q, want %s", series, got[series], want)
		}
	}
}

func TestConcurrentRequests(t *testing.T) {
	m := NewMetrics()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 1000 {
				m.RPCStarted(new(measured.Record))
				m.RPCDone(&measured.Record{Method: "/s/M"}, codes.Code(i%17), time.Microsecond, 1, 1)
			}
		})
	}
	wg.Wait()
	sum := 0
	for series, v := range scrape(t, m) {
		if strings.HasPrefix(series, "bigtable_server_requests_total{") {
			n, err := strconv.Atoi(v)
			if err != nil {
				t.Fatal(err)
			}
			sum += n
		}
	}
	if sum != 8000 {
		t.Errorf("%d requests counted, want 8000", sum)
	}
}

// What is on the scrape page obeys Prometheus's naming rules, is documented,
// and is enough to run a server by.
func TestScrape(t *testing.T) {
	m := NewMetrics()
	m.ObserveStats(func() Stats { return Stats{Tables: 3, RecoverySeconds: 1.5} })
	m.Committed(1, 2, time.Millisecond, time.Millisecond)
	m.Panicked("/s/M")
	m.RPCStarted(new(measured.Record))
	m.RPCDone(&measured.Record{Method: "/s/M"}, codes.OK, time.Second, 1, 1)
	code, body := get(t, Gate{}.Handler(Routes(m, new(Health))), "/metrics")
	if code != 200 || !strings.Contains(body, "bigtable_tables 3\n") || !strings.Contains(body, "bigtable_recovery_seconds 1.5\n") {
		t.Fatalf("%d\n%s", code, body)
	}
	own := 0
	for line := range strings.Lines(body) {
		f := strings.Fields(line)
		if len(f) < 4 || f[1] != "TYPE" || !strings.HasPrefix(f[2], "bigtable_") {
			continue
		}
		own++
		if name := f[2]; strings.HasSuffix(name, "_total") != (f[3] == "counter") {
			t.Errorf("%s is a %s: counters, and only they, end in _total", name, f[3])
		}
	}
	if own < 40 {
		t.Errorf("%d metrics of our own, want at least 40", own)
	}
}

func BenchmarkRPC(b *testing.B) {
	m := NewMetrics()
	ctx := measured.With(b.Context(), new(measured.Record))
	m.RowsRead(ctx, "projects/p/instances/i/tables/t", nil, scan.Stats{}, nil)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		r := measured.Record{Method: "/google.bigtable.v2.Bigtable/ReadRows", Profile: "default"}
		ctx := measured.With(b.Context(), &r)
		for pb.Next() {
			m.RPCStarted(&r)
			m.RowsRead(ctx, "projects/p/instances/i/tables/t", nil, scan.Stats{RowsSeen: 1, RowsReturned: 1, CellsSeen: 3, CellsReturned: 3}, nil)
			m.RPCDone(&r, codes.OK, time.Millisecond, 100, 1000)
		}
	})
}

// However many tables there are, the scrape page has a bounded number of them,
// and loses none of what they count.
func TestTablesAreBounded(t *testing.T) {
	m := NewMetrics()
	m.ObserveStats(func() Stats {
		s := Stats{Reads: make([]TableReads, maxTables+10)}
		for i := range s.Reads {
			s.Reads[i] = TableReads{Table: fmt.Sprintf("t%d", i), RowHits: 3, RowMisses: 5, BlockBytes: 7, CachedBytes: 9}
		}
		return s
	})
	_, body := get(t, Gate{}.Handler(Routes(m, new(Health))), "/metrics")
	if n := strings.Count(body, "\nbigtable_row_cache_hits_total{"); n != maxTables+1 {
		t.Errorf("%d tables", n)
	}
	for _, want := range []string{
		fmt.Sprintf(`bigtable_row_cache_hits_total{table="t%d"} 3`, maxTables-1), `bigtable_row_cache_hits_total{table="other"} 30`,
		`bigtable_row_cache_misses_total{table="other"} 50`, `bigtable_read_block_bytes_total{table="other"} 70`,
		`bigtable_read_block_cached_bytes_total{table="other"} 90`,
	} {
		if !strings.Contains(body, want+"\n") {
			t.Errorf("there is no %s", want)
		}
	}
}

// TestBusiestTablets: the metrics of a process have the busiest tablets, the page
// of tablets all of them.
func TestBusiestTablets(t *testing.T) {
	m := NewMetrics()
	h := Gate{}.Handler(Routes(m, new(Health)))
	get := func(path string) (int, string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w.Code, w.Body.String()
	}
	if code, _ := get("/metrics/tablets"); code != http.StatusNotFound {
		t.Errorf("without tablets: %d", code)
	}
	m.ObserveTablets(func() (out []tablet.Info) {
		for i := range 50 {
			out = append(out, tablet.Info{Table: "t", Tablet: metadata.TabletID(0x100 + i), State: tablet.State{Bytes: int64(i), Runs: 3}, Load: tablet.Load{RowsRead: float64(i % 10)}})
		}
		return out
	})
	_, some := get("/metrics")
	if n := strings.Count(some, "\nbigtable_tablet_runs{"); n != busiest {
		t.Errorf("%d tablets of their own", n)
	}
	for _, want := range []string{`bigtable_tablet_rows_read_rate{table="t",tablet="131"} 9`, `bigtable_tablet_size_bytes{table="t",tablet="130"} 48`} {
		if !strings.Contains(some, want) {
			t.Errorf("no %s", want)
		}
	}
	if strings.Contains(some, `tablet="100"`) {
		t.Error("an idle tablet is among the busiest")
	}
	if _, all := get("/metrics/tablets"); strings.Count(all, "\nbigtable_tablet_runs{") != 50 || strings.Contains(all, "go_goroutines") {
		t.Errorf("the page of tablets:\n%s", all)
	}
}
