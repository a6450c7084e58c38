package ops

import (
	"cmp"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"google.golang.org/grpc/codes"
)

// Metrics counts requests. Its methods are safe for concurrent use and do not
// block.
type Metrics struct {
	Registry *prometheus.Registry

	requests  *prometheus.CounterVec
	seconds   *prometheus.HistogramVec
	firstRow  prometheus.Histogram
	received  *prometheus.CounterVec
	sent      *prometheus.CounterVec
	inflight  prometheus.Gauge
	sessions  prometheus.Gauge
	panics    prometheus.Counter
	returned  prometheus.Counter
	modified  prometheus.Counter
	scanned   prometheus.Counter
	cellsRead prometheus.Counter

	commits, records, logBytes, writing prometheus.Counter
	syncs                               prometheus.Histogram

	// Of a process of a cluster; nil otherwise.
	held   *prometheus.HistogramVec
	waited prometheus.Histogram

	tablets tabletsPage

	methods sync.Map // full method name to *method
}

// method is what every request of one method needs, looked up once: a labelled
// counter costs a hash and a lock each time.
type method struct {
	name           string
	byCode         [codes.Unauthenticated + 1]atomic.Pointer[prometheus.Counter]
	seconds        prometheus.Observer
	received, sent prometheus.Counter
}

// requestBuckets are in seconds. Most answers come from memory, hence the
// buckets below a millisecond.
var requestBuckets = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}

// NewMetrics returns Metrics in a registry of their own, beside those of the Go
// runtime and the process.
func NewMetrics() *Metrics {
	m := &Metrics{
		Registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "bigtable_server_requests_total",
			Help: "Requests answered, by method and gRPC status code."}, []string{"method", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "bigtable_server_request_seconds",
			Help: "Time from the arrival of a request to the end of its answer.", Buckets: requestBuckets}, []string{"method"}),
		firstRow: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "bigtable_server_first_row_seconds",
			Help: "Time from the arrival of a ReadRows request to its first message.", Buckets: requestBuckets}),
		received: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "bigtable_server_received_bytes_total",
			Help: "Bytes of request messages."}, []string{"method"}),
		sent: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "bigtable_server_sent_bytes_total",
			Help: "Bytes of response messages."}, []string{"method"}),
		inflight: prometheus.NewGauge(prometheus.GaugeOpts{Name: "bigtable_server_inflight_requests",
			Help: "Requests being worked on."}),
		sessions: prometheus.NewGauge(prometheus.GaugeOpts{Name: "bigtable_server_sessions",
			Help: "Open sessions. The requests that they carry are counted as methods SessionReadRow and SessionMutateRow."}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{Name: "bigtable_panics_recovered_total",
			Help: "Requests that ended in a panic and were answered INTERNAL. Each is a bug."}),
		returned: prometheus.NewCounter(prometheus.CounterOpts{Name: "bigtable_server_rows_returned_total",
			Help: "Rows sent to clients."}),
		modified: prometheus.NewCounter(prometheus.CounterOpts{Name: "bigtable_server_rows_modified_total",
			Help: "Rows changed for clients."}),
		scanned: prometheus.NewCounter(prometheus.CounterOpts{Name: "bigtable_server_rows_scanned_total",
			Help: "Rows looked at by reads, whether a filter let them through or not."}),
		cellsRead: prometheus.NewCounter(prometheus.CounterOpts{Name: "bigtable_server_cells_scanned_total",
			Help: "Cells looked at by reads, whether a filter let them through or not."}),
	}
	m.commits = prometheus.NewCounter(prometheus.CounterOpts{Name: "bigtable_wal_commits_total",
		Help: "Group commits of the commit log."})
	m.records = prometheus.NewCounter(prometheus.CounterOpts{Name: "bigtable_wal_records_total",
		Help: "Records appended to the commit log."})
	m.logBytes = prometheus.NewCounter(prometheus.CounterOpts{Name: "bigtable_wal_bytes_total",
		Help: "Bytes appended to the commit log."})
	m.writing = prometheus.NewCounter(prometheus.CounterOpts{Name: "bigtable_wal_write_seconds_total",
		Help: "Time spent writing the commit log, syncs not included."})
	m.syncs = prometheus.NewHistogram(prometheus.HistogramOpts{Name: "bigtable_wal_sync_seconds",
		Help: "Time of a sync of the commit log.", Buckets: requestBuckets})
	v, goVersion, revision := BuildInfo()
	info := prometheus.NewGauge(prometheus.GaugeOpts{Name: "bigtable_build_info", Help: "Always 1; the labels tell the build.",
		ConstLabels: prometheus.Labels{"version": v, "go_version": goVersion, "revision": revision}})
	info.Set(1)
	start := prometheus.NewGauge(prometheus.GaugeOpts{Name: "bigtable_start_time_seconds", Help: "Unix time at which the process started to serve."})
	start.SetToCurrentTime()
	m.Registry.MustRegister(m.requests, m.seconds, m.firstRow, m.received, m.sent, m.inflight, m.sessions, m.panics,
		m.returned, m.modified, m.scanned, m.cellsRead, m.commits, m.records, m.logBytes, m.writing, m.syncs, info, start,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// stampedVersion and stampedRevision are set by the linker in what is released,
// which is built of an archive of the source too: -ldflags "-X …".
var stampedVersion, stampedRevision string

// BuildInfo returns the program's version, the Go version and the revision of
// the source, as far as the binary knows them.
func BuildInfo() (version, goVersion, revision string) {
	version, goVersion, revision = "devel", runtime.Version(), "unknown"
	if stampedVersion != "" {
		return stampedVersion, goVersion, cmp.Or(stampedRevision, revision)
	}
	bi, ok := debug.ReadBuildInfo()
	if !ok {
		return
	}
	if v := bi.Main.Version; v != "" && v != "(devel)" {
		version = v
	}
	dirty := ""
	for _, s := range bi.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "+dirty"
		}
	}
	return version, goVersion, revision + dirty
}

// method returns what is kept for a full method name such as
// "/google.bigtable.v2.Bigtable/ReadRows". Callers pass registered names only,
// so the number of label values is bounded.
func (m *Metrics) method(full string) *method {
	if v, ok := m.methods.Load(full); ok {
		return v.(*method)
	}
	name := full[strings.LastIndexByte(full, '/')+1:]
	v, _ := m.methods.LoadOrStore(full, &method{
		name: name, seconds: m.seconds.WithLabelValues(name),
		received: m.received.WithLabelValues(name), sent: m.sent.WithLabelValues(name),
	})
	return v.(*method)
}

// RPCStarted counts a request that is being worked on until RPCDone.
func (m *Metrics) RPCStarted(fullMethod string) { m.inflight.Inc() }

// RPCDone counts an answered request: its full method name, status, the time it
// took, and the bytes of its messages.
func (m *Metrics) RPCDone(fullMethod string, code codes.Code, elapsed time.Duration, received, sent int64) {
	m.inflight.Dec()
	s := m.method(fullMethod)
	if int(code) >= len(s.byCode) {
		code = codes.Unknown
	}
	c := s.byCode[code].Load()
	if c == nil {
		n := m.requests.WithLabelValues(s.name, code.String())
		c = &n
		s.byCode[code].Store(c)
	}
	(*c).Inc()
	s.seconds.Observe(elapsed.Seconds())
	s.received.Add(float64(received))
	s.sent.Add(float64(sent))
}

// SessionOpened counts a session as open until SessionClosed.
func (m *Metrics) SessionOpened() { m.sessions.Inc() }

// SessionClosed is the other end of SessionOpened.
func (m *Metrics) SessionClosed() { m.sessions.Dec() }

// FirstRow notes how long a ReadRows took to its first message.
func (m *Metrics) FirstRow(elapsed time.Duration) { m.firstRow.Observe(elapsed.Seconds()) }

// RowsRead counts what a read looked at and gave back.
func (m *Metrics) RowsRead(returned, scanned, cells int64) {
	m.returned.Add(float64(returned))
	m.scanned.Add(float64(scanned))
	m.cellsRead.Add(float64(cells))
}

// RowsModified counts rows that were changed.
func (m *Metrics) RowsModified(n int) { m.modified.Add(float64(n)) }

// Panicked counts a recovered panic.
func (m *Metrics) Panicked(fullMethod string) { m.panics.Inc() }

// Committed notes a group commit of the commit log. sync is zero if it was not
// synced.
func (m *Metrics) Committed(records, bytes int, write, sync time.Duration) {
	m.commits.Inc()
	m.records.Add(float64(records))
	m.logBytes.Add(float64(bytes))
	m.writing.Add(write.Seconds())
	if sync > 0 {
		m.syncs.Observe(sync.Seconds())
	}
}

// heldBuckets are in seconds.
var heldBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}

// InCluster adds the metrics of how long tablets are not served. It is to be
// called before Held and Waited are.
func (m *Metrics) InCluster() {
	m.held = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "bigtable_tablet_held_seconds",
		Help: "Time that writes of a tablet waited for a split, or until it was given up (unload), and that a tablet which was to be served took until it was (load).", Buckets: heldBuckets}, []string{"why"})
	m.waited = prometheus.NewHistogram(prometheus.HistogramOpts{Name: "bigtable_cluster_wait_seconds",
		Help: "Time that requests waited for a tablet that was not served when they came. Requests that did not wait are not in it.", Buckets: heldBuckets})
	m.Registry.MustRegister(m.held, m.waited)
}

// Held notes how long a tablet was held up for what.
func (m *Metrics) Held(why string, d time.Duration) { m.held.WithLabelValues(why).Observe(d.Seconds()) }

// Waited notes how long a request waited for a tablet.
func (m *Metrics) Waited(d time.Duration) { m.waited.Observe(d.Seconds()) }
