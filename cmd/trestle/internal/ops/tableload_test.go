package ops

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc/codes"

	measured "github.com/trestledb/trestle/engine/request"
	"github.com/trestledb/trestle/engine/scan"
)

// ask counts a read of n rows of a table, as a gateway does.
func ask(m *Metrics, table, method, profile string, n int64, err error) {
	r := &measured.Record{Method: "/s/" + method, Profile: profile}
	m.RPCStarted(r)
	m.RowsRead(measured.With(context.Background(), r), table, nil, scan.Stats{RowsSeen: 2 * n, RowsReturned: n, CellsSeen: 5 * n, CellsReturned: 3 * n}, err)
	code := codes.OK
	if err != nil {
		code = codes.NotFound
	}
	m.RPCDone(r, code, time.Millisecond, 10, 100)
}

func tableName(i int) string {
	return fmt.Sprintf("projects/project/instances/instance-1/tables/table-%04d", i)
}

// sum adds the series of a family whose labels have all of parts.
func sum(t *testing.T, page map[string]string, family string, parts ...string) (total float64, series int) {
	t.Helper()
next:
	for s, v := range page {
		if !strings.HasPrefix(s, family+"{") {
			continue
		}
		for _, p := range parts {
			if !strings.Contains(s, p) {
				continue next
			}
		}
		f, err := strconv.ParseFloat(v, 64)
		if err != nil {
			t.Fatal(err)
		}
		total, series = total+f, series+1
	}
	return total, series
}

// metricsOf returns the metrics of a server of so many tables.
func metricsOf(tables int) *Metrics {
	m := NewMetrics()
	m.ObserveStats(func() Stats {
		s := Stats{Reads: make([]TableReads, tables)}
		for i := range s.Reads {
			s.Reads[i] = TableReads{Table: tableName(i), RowHits: 3, Bytes: int64(i), RawBytes: int64(3 * i), BlockBytes: 7, Tablets: 1}
		}
		return s
	})
	return m
}

// The page of a thousand tables is small, names those with most load, and loses
// nothing of what it counts when others come to have more.
func TestThousandTables(t *testing.T) {
	const tables = 1000
	m := metricsOf(tables)
	var asked, rows float64
	load := func(i, n int) {
		for range n {
			ask(m, tableName(i), "ReadRows", "default", 4, nil)
			ask(m, tableName(i), "MutateRow", "batch", 0, nil)
			asked, rows = asked+2, rows+4
		}
	}
	check := func() map[string]string {
		t.Helper()
		page := scrape(t, m)
		if n, _ := sum(t, page, "bigtable_server_requests_total"); n != asked {
			t.Errorf("%v requests, want %v", n, asked)
		}
		if n, series := sum(t, page, "bigtable_server_rows_returned_total"); n != rows || series > maxTables+2 {
			t.Errorf("%v rows in %d series, want %v", n, series, rows)
		}
		if n, _ := sum(t, page, "bigtable_server_table_request_seconds_count"); n != asked {
			t.Errorf("%v times, want %v", n, asked)
		}
		return page
	}
	for i := range tables {
		load(i, 1)
	}
	page := check()
	// Now the last ones have the load.
	rank := func() {
		m.loads.mu.Lock()
		defer m.loads.mu.Unlock()
		m.loads.ranked = m.loads.ranked.Add(-2 * rankEvery)
		for i := range m.loads.retired {
			m.loads.retired[i].at = m.loads.retired[i].at.Add(-2 * rankEvery)
		}
	}
	other := func(page map[string]string) float64 {
		n, _ := sum(t, page, "bigtable_server_requests_total", `table="other"`)
		return n
	}
	was := other(page)
	rank()
	check()
	for range 3 {
		for i := tables - 100; i < tables; i++ {
			load(i, 5)
		}
		rank()
		page = check()
		if now := other(page); now < was {
			t.Errorf("the counts of other tables fell from %v to %v", was, now)
		} else {
			was = now
		}
	}
	if n, _ := sum(t, page, "bigtable_server_requests_total", `table="`+tableName(tables-1)+`"`); n < 10 {
		t.Errorf("a table with load has %v requests of its own", n)
	}
	if _, n := sum(t, page, "bigtable_table_bytes"); n != maxTables+1 {
		t.Errorf("%d tables with bytes", n)
	}
	if _, body := get(t, Gate{}.Handler(Routes(m, new(Health))), "/metrics"); len(body) > 2<<20 {
		t.Errorf("the page has %d bytes", len(body))
	}
}

// BenchmarkThousandTables is a scrape of the page of a thousand tables with load.
func BenchmarkThousandTables(b *testing.B) {
	const tables = 1000
	m := metricsOf(tables)
	for i := range tables {
		ask(m, tableName(i), "ReadRows", "default", 4, nil)
		ask(m, tableName(i), "MutateRow", "batch", 0, nil)
	}
	h := Gate{}.Handler(Routes(m, new(Health)))
	for b.Loop() {
		if code, body := get(b, h, "/metrics"); code != 200 {
			b.Fatal(code, body)
		}
	}
}

// What is not there makes no labels, whatever callers ask for.
func TestUnknownTables(t *testing.T) {
	m := NewMetrics()
	const guesses = 100_000
	for i := range guesses {
		ask(m, "projects/p/instances/i/tables/guess-"+strconv.Itoa(i), "ReadRows", "", 0, errors.New("no table"))
	}
	page := scrape(t, m)
	if n, series := sum(t, page, "bigtable_server_requests_total"); n != guesses || series != 1 {
		t.Errorf("%v requests in %d series", n, series)
	}
	if n := len(m.loads.tables); n != 0 {
		t.Errorf("%d tables are known", n)
	}
	for s := range page {
		if strings.Contains(s, "guess") {
			t.Error(s)
		}
	}
	// So many app profiles that one table cannot have a series for each.
	for i := range 3 * maxSeries {
		ask(m, tableName(1), "ReadRows", "profile-"+strconv.Itoa(i), 1, nil)
	}
	if n, series := sum(t, scrape(t, m), "bigtable_server_requests_total", `table="`+tableName(1)); n != 3*maxSeries || series > maxSeries+1 {
		t.Errorf("%v requests in %d series", n, series)
	}
}

// Tables that come and go do not keep others from being known.
func TestTablesComeAndGo(t *testing.T) {
	m := NewMetrics()
	asked := 0
	for i := range 3 * maxKnown {
		ask(m, tableName(i), "ReadRows", "", 1, nil)
		if asked++; i%(maxKnown/4) == 0 {
			m.loads.mu.Lock()
			m.loads.rank(time.Now())
			known := 0
			for s := range m.loads.known {
				known += len(*m.loads.known[s].Load())
			}
			if n := len(m.loads.tables); n != known || n > maxKnown {
				t.Errorf("%d tables, %d of them known", n, known)
			}
			m.loads.mu.Unlock()
		}
	}
	last := tableName(3*maxKnown - 1)
	if m.loads.table(last, false) == nil {
		t.Error("a new table is not known")
	}
	for range 100 {
		ask(m, last, "ReadRows", "", 1, nil)
		asked++
	}
	m.loads.mu.Lock()
	m.loads.rank(time.Now())
	m.loads.mu.Unlock()
	ask(m, last, "ReadRows", "", 1, nil)
	page := scrape(t, m)
	if n, _ := sum(t, page, "bigtable_server_requests_total", last); n != 1 {
		t.Errorf("a new table with load has %v requests of its own", n)
	}
	if n, _ := sum(t, page, "bigtable_server_requests_total"); n != float64(asked+1) {
		t.Errorf("%v requests, want %d", n, asked+1)
	}
}

// Methods of two services may have one name: GetIamPolicy does.
func TestMethodsOfOneName(t *testing.T) {
	m := NewMetrics()
	for _, method := range []string{"/a/GetIamPolicy", "/b/GetIamPolicy"} {
		m.RPCStarted(nil)
		m.RPCDone(&measured.Record{Method: method}, codes.OK, time.Millisecond, 1, 1)
	}
	if _, err := m.Registry.Gather(); err != nil {
		t.Error(err)
	}
	if n, series := sum(t, scrape(t, m), "bigtable_server_requests_total", `method="GetIamPolicy"`); n != 2 || series != 1 {
		t.Errorf("%v requests in %d series", n, series)
	}
}

// Parts of a request run at the same time, as the gets of HBase's Multi do, and a scrape
// meanwhile. Counters do not fall, and what is in flight is not negative.
func TestPartsAtOnce(t *testing.T) {
	m := NewMetrics()
	var wg, parts sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		was := map[string]float64{}
		for {
			select {
			case <-stop:
				return
			default:
			}
			for s, v := range scrape(t, m) {
				f, err := strconv.ParseFloat(v, 64)
				switch {
				case err != nil || !strings.HasPrefix(s, "bigtable_server"):
				case s == "bigtable_server_inflight_requests":
					if f < 0 {
						t.Errorf("%v requests in flight", f)
					}
				case f < was[s]:
					t.Errorf("%s fell from %v to %v", s, was[s], f)
				default:
					was[s] = f
				}
			}
			m.loads.mu.Lock()
			m.loads.rank(time.Now())
			m.loads.mu.Unlock()
		}
	})
	for range 100 {
		r := &measured.Record{Method: "/s/Multi", Face: measured.HBase, Keys: true}
		ctx := measured.With(t.Context(), r)
		m.RPCStarted(r)
		for i := range 8 {
			parts.Go(func() {
				m.RowsRead(ctx, tableName(i), []byte{byte('a' + i)}, scan.Stats{RowsSeen: 2, RowsReturned: 1, CellsSeen: 1}, nil)
				m.RowsModified(ctx, tableName(i), []byte{byte('a' + i)}, 1, nil)
			})
		}
		parts.Wait()
		if len(r.Key) != 1 || r.TableName == "" || r.Work.RowsSeen.Load() != 16 || r.Work.RowsWritten.Load() != 8 {
			t.Fatalf("%q of %q: %d rows seen", r.Key, r.TableName, r.Work.RowsSeen.Load())
		}
		for _, code := range []codes.Code{codes.OK, codes.NotFound} {
			if code != codes.OK {
				m.RPCStarted(r)
			}
			m.RPCDone(r, code, time.Millisecond, 1, 1)
		}
	}
	close(stop)
	wg.Wait()
	page := scrape(t, m)
	for family, want := range map[string]float64{"bigtable_server_requests_total": 200, "bigtable_server_rows_scanned_total": 1600, "bigtable_server_rows_returned_total": 800,
		"bigtable_server_cells_scanned_total": 800, "bigtable_server_rows_modified_total": 800, "bigtable_server_request_seconds_count": 200} {
		if n, _ := sum(t, page, family); n != want {
			t.Errorf("%s is %v, want %v", family, n, want)
		}
	}
	if n, _ := sum(t, page, "bigtable_server_requests_total", `code="NotFound"`); n != 100 || page["bigtable_server_inflight_requests"] != "0" {
		t.Errorf("%v failed, %s in flight", n, page["bigtable_server_inflight_requests"])
	}
}

// A time is in the slot, and so in the classic and the native bucket, that ends next.
func TestBuckets(t *testing.T) {
	for _, end := range slotEnds {
		for _, n := range []int64{end - 1, end, end + 1} {
			if i := slotOf(time.Duration(n)); i != slotFrom(n) {
				t.Errorf("%d ns are in slot %d, want %d", n, i, slotFrom(n))
			}
		}
	}
	for d, want := range map[time.Duration]int{-1: 0, 0: 0, time.Hour: timeSlots - 1, math.MaxInt64: timeSlots - 1} {
		if i := slotOf(d); i != want {
			t.Errorf("%v is in slot %d, want %d", d, i, want)
		}
	}
}

// tracedSpan is a span whose trace is known.
type tracedSpan struct{ measured.Span }

func (tracedSpan) Context() measured.SpanContext {
	return measured.SpanContext{Trace: [16]byte{0xAB, 15: 1}}
}

// Classic and native buckets are there, and the exemplar of a request that is traced.
func TestNativeHistogramsAndExemplars(t *testing.T) {
	m := NewMetrics()
	r := &measured.Record{Method: "/s/M", Span: tracedSpan{}}
	m.RPCStarted(r)
	m.RPCDone(r, codes.OK, 3*time.Millisecond, 0, 0)
	families, err := m.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]*dto.Histogram{}
	for _, f := range families {
		if h := f.GetMetric()[0].GetHistogram(); h != nil {
			found[f.GetName()] = h
		}
	}
	h := found["bigtable_server_request_seconds"]
	if h == nil || len(h.Bucket) != len(requestBuckets) || len(h.PositiveSpan) != 1 || h.GetSchema() != nativeSchema || len(h.Exemplars) != 1 {
		t.Fatalf("no classic and native buckets: %v", h)
	}
	for _, b := range h.Bucket {
		if want := b.GetUpperBound() >= 0.003; (b.GetCumulativeCount() == 1) != want {
			t.Errorf("%d up to %v s", b.GetCumulativeCount(), b.GetUpperBound())
		}
	}
	if i := float64(h.PositiveSpan[0].GetOffset()); math.Exp2(i/4) < 0.003 || math.Exp2((i-1)/4) >= 0.003 {
		t.Errorf("the native bucket %v has 3 ms", i)
	}
	if h := found["bigtable_server_table_request_seconds"]; h == nil || h.GetSampleCount() != 1 || len(h.PositiveSpan) != 1 {
		t.Errorf("no native buckets of tables: %v", h)
	}
	w := httptest.NewRecorder()
	q := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	q.Header.Set("Accept", "application/openmetrics-text;version=1.0.0")
	Gate{}.Handler(Routes(m, new(Health))).ServeHTTP(w, q)
	body, _ := io.ReadAll(w.Result().Body)
	if !strings.Contains(string(body), `# {trace_id="ab000000000000000000000000000001"} 0.003`) {
		t.Error("no exemplar")
	}
}

// Counting costs no memory.
func TestCountingAllocatesNothing(t *testing.T) {
	m := NewMetrics()
	r := &measured.Record{Method: "/s/M", Profile: "default"}
	ctx, table := measured.With(context.Background(), r), tableName(1)
	if n := testing.AllocsPerRun(100, func() {
		m.RPCStarted(r)
		m.RowsRead(ctx, table, nil, scan.Stats{RowsSeen: 1}, nil)
		m.RowsModified(ctx, table, nil, 1, nil)
		m.RPCDone(r, codes.OK, time.Millisecond, 1, 1)
	}); n > 0 {
		t.Errorf("%v allocations for a request", n)
	}
}

// The block cache is told to be of those who brought something.
func TestCacheShares(t *testing.T) {
	var c cacheShares
	reads := func(a, b int64) []TableReads {
		return []TableReads{{Table: "a", BlockBytes: a}, {Table: "b", BlockBytes: b}}
	}
	r := reads(300, 100)
	c.estimate(r, 400)
	if r[0].CacheBytes != 300 || r[1].CacheBytes != 100 {
		t.Errorf("%+v", r)
	}
	r = reads(300, 900) // b brought twice the cache
	c.estimate(r, 400)
	if r[0].CacheBytes != 0 || r[1].CacheBytes != 400 {
		t.Errorf("%+v", r)
	}
}

// The log of slow requests keeps the last.
func TestSlowLog(t *testing.T) {
	var lines strings.Builder
	l := NewSlowLog(slog.New(slog.NewTextHandler(&lines, nil)))
	for i := range slowKept + 7 {
		l.Add(measured.Slow{RequestID: strconv.Itoa(i), Method: "ReadRows", Key: "secret"})
	}
	kept := l.list()
	if len(kept) != slowKept || kept[0].RequestID != strconv.Itoa(slowKept+6) || kept[slowKept-1].RequestID != "7" {
		t.Errorf("%d kept, %s to %s", len(kept), kept[0].RequestID, kept[len(kept)-1].RequestID)
	}
	{
		quiet := NewSlowLog(nil)
		quiet.Add(measured.Slow{RequestID: "1"})
		if len(quiet.list()) != 1 {
			t.Error("without a log nothing is kept")
		}
	}
	if n := strings.Count(lines.String(), "slow request"); n < slowLines || n > 3*slowLines {
		t.Errorf("%d lines", n)
	}
}

// A table that loses its metrics to another keeps what is known of its load, and the others
// get all of its counts.
func TestNamesChange(t *testing.T) {
	l := newTableLoads()
	old := l.table("old", true)
	old.series.Load().kind(seriesKey{method: &method{name: "M"}}).done(codes.NotFound, 5*time.Millisecond, 1, 2)
	old.series.Load().skipped.Add(3)
	l.rank(time.Now())
	if old.load != 1 {
		t.Errorf("the load of a table with metrics of its own is %d", old.load)
	}
	l.table("new", true).series.Store(l.other)
	l.table("new", true).requests.Add(9)
	now := time.Now()
	l.rank(now)
	if old.series.Load() != l.other || old.requests.Load() != 1 {
		t.Errorf("it has %d requests", old.requests.Load())
	}
	l.rank(now.Add(rankEvery))
	r := (*l.other.by.Load())[0]
	if f := r.failed.Load(); l.other.skipped.Load() != 3 || f == nil || f.codes[codes.NotFound].Load() != 1 || r.received.Load() != 1 || r.sent.Load() != 2 {
		t.Error("counts are lost")
	}
	var s timingsRead
	if n := r.read(&s); n != 1 || s.nanos != int64(5*time.Millisecond) {
		t.Errorf("%d times, %d ns", n, s.nanos)
	}
	// A time at the end of a classic bucket is in it.
	out := new(dto.Metric)
	c := make(chan prometheus.Metric, 1)
	s.send(c, l.first, true, nil)
	if err := (<-c).Write(out); err != nil {
		t.Fatal(err)
	}
	for _, b := range out.Histogram.Bucket {
		if want := b.GetUpperBound() >= 0.005; (b.GetCumulativeCount() == 1) != want {
			t.Errorf("%d up to %v s", b.GetCumulativeCount(), b.GetUpperBound())
		}
	}
}
