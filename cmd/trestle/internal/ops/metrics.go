package ops

import (
	"cmp"
	"context"
	"encoding/hex"
	"maps"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"google.golang.org/grpc/codes"

	measured "github.com/trestledb/trestle/engine/request"
	"github.com/trestledb/trestle/engine/scan"
)

// Metrics counts requests. Its methods are safe for concurrent use and do not
// block.
type Metrics struct {
	Registry *prometheus.Registry
	// Tracer and Slow are what else is told of requests, if not nil. They are set before
	// there are any.
	Tracer measured.Tracer
	Slow   *SlowLog

	sessions   prometheus.Gauge
	panics     prometheus.Counter
	loads      *tableLoads
	principals *principals

	commits, records, logBytes, writing prometheus.Counter
	syncs                               prometheus.Histogram

	// Of a process of a cluster; nil otherwise.
	held   *prometheus.HistogramVec
	waited prometheus.Histogram

	tablets tabletsPage

	methods    atomic.Pointer[map[string]*fullMethod] // by full name
	addMethods sync.Mutex
	// lately has methods at the slots of their names, so that most requests hash none.
	lately [recentSlots]atomic.Pointer[fullMethod]
}

// method is what requests of one method have in common.
type method struct {
	name      string
	exemplars [measured.Faces]exemplars
}

// A fullMethod is a method by one of its full names.
type fullMethod struct {
	full string
	*method
}

// recentSlots is how many names are found without a hash of all their bytes: it is that of
// a name's length and last bytes which is remembered.
const recentSlots = 64

func recentSlot(name string) int {
	n := len(name)
	if n < 2 {
		return 0
	}
	return (n + 7*int(name[n-1]) + 31*int(name[n-2])) % recentSlots
}

// requestBuckets are in seconds. Most answers come from memory, hence the
// buckets below a millisecond.
var requestBuckets = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}

// NewMetrics returns Metrics in a registry of their own, beside those of the Go
// runtime and the process.
func NewMetrics() *Metrics {
	m := &Metrics{
		Registry:   prometheus.NewRegistry(),
		loads:      newTableLoads(),
		principals: newPrincipals(),
		sessions: prometheus.NewGauge(prometheus.GaugeOpts{Name: "bigtable_server_sessions",
			Help: "Open sessions. The requests that they carry are counted as methods SessionReadRow and SessionMutateRow."}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{Name: "bigtable_panics_recovered_total",
			Help: "Requests that ended in a panic and were answered INTERNAL. Each is a bug."}),
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
		Help: "Time of a sync of the commit log.", Buckets: requestBuckets,
		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160, NativeHistogramMinResetDuration: time.Hour})
	v, goVersion, revision := BuildInfo()
	info := prometheus.NewGauge(prometheus.GaugeOpts{Name: "bigtable_build_info", Help: "Always 1; the labels tell the build.",
		ConstLabels: prometheus.Labels{"version": v, "go_version": goVersion, "revision": revision}})
	info.Set(1)
	start := prometheus.NewGauge(prometheus.GaugeOpts{Name: "bigtable_start_time_seconds", Help: "Unix time at which the process started to serve."})
	start.SetToCurrentTime()
	m.Registry.MustRegister(m.loads, m.sessions, m.panics,
		m.commits, m.records, m.logBytes, m.writing, m.syncs, info, start,
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
	slot := &m.lately[recentSlot(full)]
	l := slot.Load()
	if l != nil && l.full == full {
		return l.method
	}
	v := m.lookUpMethod(full)
	if takesSlot(l == nil) {
		slot.Store(v)
	}
	return v.method
}

// takesSlot tells whether a name that was not at its slot is put there. Two that share a slot
// would otherwise write to it with each request.
func takesSlot(free bool) bool { return free || rand.Uint32()%64 == 0 }

func (m *Metrics) lookUpMethod(full string) *fullMethod {
	if all := m.methods.Load(); all != nil {
		if v := (*all)[full]; v != nil {
			return v
		}
	}
	m.addMethods.Lock()
	defer m.addMethods.Unlock()
	now := map[string]*fullMethod{}
	if all := m.methods.Load(); all != nil {
		now = maps.Clone(*all)
	}
	if v := now[full]; v != nil {
		return v
	}
	full = strings.Clone(full)
	v := &fullMethod{full, &method{name: full[strings.LastIndexByte(full, '/')+1:]}}
	for _, same := range now {
		if same.name == v.name {
			v.method = same.method // of another service; a series can be there once only
		}
	}
	now[full] = v
	m.methods.Store(&now)
	return v
}

// RPCStarted counts a request that is being worked on until RPCDone.
func (m *Metrics) RPCStarted(*measured.Record) { m.loads.started.Add(1) }

// RPCDone counts an answered request: what is known of it, its status, the time it took,
// and the bytes of its messages.
func (m *Metrics) RPCDone(r *measured.Record, code codes.Code, elapsed time.Duration, received, sent int64) {
	of := m.method(r.Method)
	if r.Principal != "" {
		m.principals.add(r.Principal)
	}
	if code > codes.Unauthenticated {
		code = codes.Unknown
	}
	m.loads.of(r).kind(seriesKey{of, r.Profile, r.Face}).done(code, elapsed, received, sent)
	if r.Span != nil {
		trace := r.Span.Context().Trace
		of.exemplars[r.Face].note(elapsed, hex.EncodeToString(trace[:]))
	}
}

// SessionOpened counts a session as open until SessionClosed.
func (m *Metrics) SessionOpened() { m.sessions.Inc() }

// SessionClosed is the other end of SessionOpened.
func (m *Metrics) SessionClosed() { m.sessions.Dec() }

// FirstMessage notes how long a ReadRows took to its first message.
func (m *Metrics) FirstMessage(r *measured.Record, elapsed time.Duration) {
	if strings.HasSuffix(r.Method, "/ReadRows") {
		m.loads.firstRow.observe(elapsed)
	}
}

// named tells the record of the request of ctx which table it is of. A table is known
// from its first request that did not fail.
func (m *Metrics) named(ctx context.Context, table string, key []byte, err error) (*measured.Record, *tableSeries) {
	r := measured.From(ctx)
	r.NoteKey(key)
	t := m.loads.table(table, err == nil)
	if t == nil {
		return r, m.loads.none
	}
	r.SetTable(t, t.name)
	return r, t.series.Load()
}

// RowsRead counts what a read of a table, which ended with err, looked at and gave back. key
// is the first that was asked for.
func (m *Metrics) RowsRead(ctx context.Context, table string, key []byte, s scan.Stats, err error) {
	r, t := m.named(ctx, table, key, err)
	// A read that ended early has not said what it looked at.
	seen, cells := max(s.RowsSeen, s.RowsReturned), max(s.CellsSeen, s.CellsReturned)
	addUnlessZero(&t.returned, s.RowsReturned)
	addUnlessZero(&t.cellsReturned, s.CellsReturned)
	addUnlessZero(&t.skipped, seen-s.RowsReturned)
	addUnlessZero(&t.cellsSkipped, cells-s.CellsReturned)
	if r != nil {
		r.Work.RowsReturned.Add(s.RowsReturned)
		r.Work.CellsReturned.Add(s.CellsReturned)
		r.Work.RowsSeen.Add(seen)
		r.Work.CellsSeen.Add(cells)
	}
}

// RowsModified counts rows of a table that were changed by a call that ended with err. key is
// the first that was to be.
func (m *Metrics) RowsModified(ctx context.Context, table string, key []byte, n int, err error) {
	r, t := m.named(ctx, table, key, err)
	if n > 0 {
		t.written.Add(int64(n))
		if r != nil {
			r.Work.RowsWritten.Add(int64(n))
		}
	}
}

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
