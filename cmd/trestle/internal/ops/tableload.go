package ops

import (
	"cmp"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	measured "github.com/trestledb/trestle/engine/request"
)

const (
	// maxTables is how many tables have metrics of their own; the others share those
	// of otherTables.
	maxTables   = 200
	otherTables = "other"
	// maxKnown bounds the tables whose load is known, so that they can be among those.
	maxKnown = 20_000
	// maxSeries bounds the combinations of method, app profile and face of one table.
	maxSeries = 128
	// rankEvery is how often the tables with most load are looked for, at most. Who counts
	// keeps no pointer to a table's counts for as long.
	rankEvery = time.Minute
	// shards spread the tables, so that one more costs the copy of few.
	shards = 256
)

// tableLoads counts requests by table. A table that has metrics of its own loses them to one
// that has twice its load. Its counts go to otherTables then, and what otherTables has of a
// table stays there: no count ever falls, and the sum over tables is that of the process.
type tableLoads struct {
	seed  maphash.Seed
	known [shards]atomic.Pointer[map[string]*tableLoad]
	// lately has tables with metrics of their own, at the slots of their names.
	lately [recentSlots]atomic.Pointer[tableLoad]
	none   *tableSeries // requests of no table, or of one that is not known
	other  *tableSeries

	started  atomic.Int64 // requests
	firstRow timings

	mu      sync.Mutex // of what follows, and of changes of known
	tables  []*tableLoad
	named   int
	retired []retiredSeries
	ranked  time.Time

	inflight, all, first                             *prometheus.Desc
	requests, seconds, received, sent                *prometheus.Desc
	returned, cellsReturned, scanned, cells, written *prometheus.Desc
}

// A tableLoad is what is known of a table.
type tableLoad struct {
	name string
	// requests were made while the table had no metrics of its own, or before those that it
	// has. With what is in those, before were made at the last ranking.
	requests atomic.Int64
	before   int64
	load     int64 // between the last two rankings
	series   atomic.Pointer[tableSeries]
}

// A tableSeries has the counts of a table.
type tableSeries struct {
	instance, table string
	// What reads looked at is what they returned and what they skipped: most skip nothing.
	returned, cellsReturned, skipped, cellsSkipped, written atomic.Int64

	by atomic.Pointer[[]*requestSeries] // few, so quicker than a map
	mu sync.Mutex                       // of changes of by
}

type seriesKey struct {
	method  *method
	profile string
	face    measured.Face
}

// A requestSeries has the counts of requests of one kind. A request that succeeded takes the
// additions of times and of bytes.
type requestSeries struct {
	key            seriesKey
	times          timings // of those that succeeded, whose number is in it
	failed         atomic.Pointer[failures]
	received, sent atomic.Int64
}

// failures has the counts of requests that failed.
type failures struct {
	codes [codes.Unauthenticated + 1]atomic.Int64
	times timings
}

type retiredSeries struct {
	*tableSeries
	at time.Time
}

func newTableLoads() *tableLoads {
	labels := []string{"instance", "table"}
	full := append(labels, "app_profile", "face", "method")
	desc := func(name, help string, labels []string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	l := &tableLoads{
		seed: maphash.MakeSeed(), none: new(tableSeries), other: &tableSeries{instance: otherTables, table: otherTables}, ranked: time.Now(),
		requests: desc("bigtable_server_requests_total", "Requests answered, by instance, table, app profile, face, method and gRPC status code.", append(full[:len(full):len(full)], "code")),
		seconds: desc("bigtable_server_table_request_seconds", "Time from the arrival of a request to the end of its answer, by table. "+
			"The buckets are a native histogram's.", full),
		received:      desc("bigtable_server_received_bytes_total", "Bytes of request messages.", full),
		sent:          desc("bigtable_server_sent_bytes_total", "Bytes of response messages.", full),
		returned:      desc("bigtable_server_rows_returned_total", "Rows sent to clients.", labels),
		cellsReturned: desc("bigtable_server_cells_returned_total", "Cells sent to clients.", labels),
		scanned:       desc("bigtable_server_rows_scanned_total", "Rows looked at by reads, whether a filter let them through or not.", labels),
		cells:         desc("bigtable_server_cells_scanned_total", "Cells looked at by reads, whether a filter let them through or not.", labels),
		written:       desc("bigtable_server_rows_modified_total", "Rows changed for clients.", labels),
		inflight:      desc("bigtable_server_inflight_requests", "Requests being worked on.", nil),
		all:           desc("bigtable_server_request_seconds", "Time from the arrival of a request to the end of its answer.", []string{"face", "method"}),
		first:         desc("bigtable_server_first_row_seconds", "Time from the arrival of a ReadRows request to its first message.", nil),
	}
	for i := range l.known {
		l.known[i].Store(&map[string]*tableLoad{})
	}
	return l
}

// table returns what is kept for a table, or nil if it is not known. A table that is there
// becomes known, unless too many are.
func (l *tableLoads) table(name string, there bool) *tableLoad {
	slot := &l.lately[recentSlot(name)]
	// A table that shares metrics may be forgotten meanwhile, others are not.
	last := slot.Load()
	if last != nil && last.name == name && last.series.Load() != l.other {
		return last
	}
	t := l.lookUp(name, there)
	if t != nil && t != last && t.series.Load() != l.other && takesSlot(last == nil) {
		slot.Store(t)
	}
	return t
}

func (l *tableLoads) lookUp(name string, there bool) *tableLoad {
	shard := &l.known[maphash.String(l.seed, name)%shards]
	if t := (*shard.Load())[name]; t != nil || !there {
		return t
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	was := *shard.Load()
	if t := was[name]; t != nil || len(l.tables) >= maxKnown {
		return t
	}
	t := &tableLoad{name: strings.Clone(name)}
	t.series.Store(l.other)
	if l.named < maxTables {
		l.name(t)
	}
	l.tables = append(l.tables, t)
	now := maps.Clone(was)
	now[t.name] = t
	shard.Store(&now)
	return t
}

// name gives a table metrics of its own. It is called with the lock.
func (l *tableLoads) name(t *tableLoad) {
	instance, _, _ := strings.Cut(t.name, "/tables/")
	t.series.Store(&tableSeries{instance: instance, table: t.name})
	l.named++
}

// of returns the counts of a request.
func (l *tableLoads) of(r *measured.Record) *tableSeries {
	t, _ := r.Table.(*tableLoad)
	if t == nil {
		return l.none
	}
	s := t.series.Load()
	if s == l.other {
		t.requests.Add(1)
	}
	return s
}

// kind returns the counts of requests of one kind.
func (s *tableSeries) kind(k seriesKey) *requestSeries {
	if r := s.find(&k); r != nil {
		return r
	}
	return s.addKind(k)
}

func (s *tableSeries) find(k *seriesKey) *requestSeries {
	if by := s.by.Load(); by != nil {
		for _, r := range *by {
			if r.key.method == k.method && r.key.face == k.face && r.key.profile == k.profile {
				return r
			}
		}
	}
	return nil
}

func (s *tableSeries) addKind(k seriesKey) *requestSeries {
	s.mu.Lock()
	defer s.mu.Unlock()
	var now []*requestSeries
	if by := s.by.Load(); by != nil {
		now = slices.Clone(*by)
	}
	if len(now) >= maxSeries || s.table == otherTables && k.profile != "" {
		k.profile = otherTables
	}
	if r := s.find(&k); r != nil {
		return r
	}
	k.profile = strings.Clone(k.profile)
	r := &requestSeries{key: k}
	now = append(now, r)
	s.by.Store(&now)
	return r
}

// done counts a request.
func (r *requestSeries) done(code codes.Code, elapsed time.Duration, received, sent int64) {
	if code == codes.OK {
		r.times.observe(elapsed)
	} else {
		f := r.failures()
		f.codes[code].Add(1)
		f.times.observe(elapsed)
	}
	addUnlessZero(&r.received, received)
	addUnlessZero(&r.sent, sent)
}

func (r *requestSeries) failures() *failures {
	if f := r.failed.Load(); f != nil {
		return f
	}
	r.failed.CompareAndSwap(nil, new(failures))
	return r.failed.Load()
}

func addUnlessZero(to *atomic.Int64, v int64) {
	if v != 0 {
		to.Add(v)
	}
}

// count returns how many requests s has.
func (s *tableSeries) count() (n int64) {
	var times timingsRead
	if by := s.by.Load(); by != nil {
		for _, r := range *by {
			n += r.read(&times)
		}
	}
	return n
}

// read adds the times of all requests, and returns how many they are.
func (r *requestSeries) read(times *timingsRead) int64 {
	n := times.read(&r.times)
	if f := r.failed.Load(); f != nil {
		n += times.read(&f.times)
	}
	return n
}

// add adds the counts of another, which nobody changes any more.
func (s *tableSeries) add(from *tableSeries) {
	s.returned.Add(from.returned.Load())
	s.cellsReturned.Add(from.cellsReturned.Load())
	s.skipped.Add(from.skipped.Load())
	s.cellsSkipped.Add(from.cellsSkipped.Load())
	s.written.Add(from.written.Load())
	by := from.by.Load()
	if by == nil {
		return
	}
	for _, r := range *by {
		to := s.kind(r.key)
		to.times.add(&r.times)
		if f := r.failed.Load(); f != nil {
			all := to.failures()
			for c := range f.codes {
				addUnlessZero(&all.codes[c], f.codes[c].Load())
			}
			all.times.add(&f.times)
		}
		to.received.Add(r.received.Load())
		to.sent.Add(r.sent.Load())
	}
}

// rank gives metrics of their own to the tables with most load since the last time. It is
// called with the lock.
func (l *tableLoads) rank(now time.Time) {
	l.ranked = now
	l.retired = slices.DeleteFunc(l.retired, func(r retiredSeries) bool {
		old := now.Sub(r.at) >= rankEvery
		if old {
			l.other.add(r.tableSeries)
		}
		return old
	})
	var named, others []*tableLoad
	crowded := len(l.tables) > maxKnown/2
	for _, t := range l.tables {
		n := t.requests.Load()
		if s := t.series.Load(); s != l.other {
			n += s.count()
			named = append(named, t)
		} else {
			others = append(others, t)
		}
		t.load, t.before = n-t.before, n
	}
	slices.SortFunc(named, func(a, b *tableLoad) int { return cmp.Compare(a.load, b.load) })
	slices.SortFunc(others, func(a, b *tableLoad) int { return cmp.Compare(b.load, a.load) })
	for i, t := range others {
		if i >= len(named) || t.load <= 2*named[i].load {
			break
		}
		was := named[i].series.Swap(l.other)
		named[i].requests.Add(was.count())
		l.retired = append(l.retired, retiredSeries{was, now})
		l.named--
		l.name(t)
	}
	if crowded {
		l.forget()
	}
}

// forget makes room for tables that are new, in place of those without load, of which many are
// there no more. What is forgotten is known again at its next request. It is called with the
// lock.
func (l *tableLoads) forget() {
	idle := func(t *tableLoad) bool { return t.load == 0 && t.series.Load() == l.other }
	l.tables = slices.DeleteFunc(l.tables, idle)
	for i := range l.known {
		now := maps.Clone(*l.known[i].Load())
		maps.DeleteFunc(now, func(_ string, t *tableLoad) bool { return idle(t) })
		l.known[i].Store(&now)
	}
}

// names returns the tables that have metrics of their own.
func (l *tableLoads) names() map[string]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	names := make(map[string]bool, l.named)
	for _, t := range l.tables {
		if s := t.series.Load(); s != l.other {
			names[s.table] = true
		}
	}
	return names
}

// Describe implements prometheus.Collector.
func (l *tableLoads) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{l.inflight, l.all, l.first, l.requests, l.seconds, l.received, l.sent, l.returned, l.cellsReturned, l.scanned, l.cells, l.written} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (l *tableLoads) Collect(out chan<- prometheus.Metric) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); now.Sub(l.ranked) >= rankEvery {
		l.rank(now)
	}
	all := map[processKey]*timingsRead{}
	l.collect(out, l.none, all)
	rest := &tableSeries{instance: otherTables, table: otherTables}
	rest.add(l.other)
	for _, r := range l.retired {
		rest.add(r.tableSeries)
	}
	if len(l.tables) > l.named || len(l.retired) > 0 {
		l.collect(out, rest, all)
	}
	for _, t := range l.tables {
		if s := t.series.Load(); s != l.other {
			l.collect(out, s, all)
		}
	}
	var done int64
	for k, s := range all {
		s.send(out, l.all, true, &k.method.exemplars[k.face], k.face.String(), k.method.name)
		for _, v := range s.slots {
			done += v
		}
	}
	// What is done is read before what was started, so that there are never less than none.
	out <- prometheus.MustNewConstMetric(l.inflight, gauge, n(l.started.Load()-done))
	var first timingsRead
	first.read(&l.firstRow)
	first.send(out, l.first, true, nil)
}

// A processKey is what requests of a process are told apart by, whatever their table.
type processKey struct {
	method *method
	face   measured.Face
}

// collect gives a scrape the metrics of s, and adds its times to all.
func (l *tableLoads) collect(out chan<- prometheus.Metric, s *tableSeries, all map[processKey]*timingsRead) {
	returned, cellsReturned := s.returned.Load(), s.cellsReturned.Load()
	for _, c := range []struct {
		desc *prometheus.Desc
		n    int64
	}{{l.returned, returned}, {l.cellsReturned, cellsReturned}, {l.scanned, returned + s.skipped.Load()}, {l.cells, cellsReturned + s.cellsSkipped.Load()}, {l.written, s.written.Load()}} {
		out <- prometheus.MustNewConstMetric(c.desc, counter, n(c.n), s.instance, s.table)
	}
	by := s.by.Load()
	if by == nil {
		return
	}
	for _, r := range *by {
		k := r.key
		face := k.face.String()
		out <- prometheus.MustNewConstMetric(l.received, counter, n(r.received.Load()), s.instance, s.table, k.profile, face, k.method.name)
		out <- prometheus.MustNewConstMetric(l.sent, counter, n(r.sent.Load()), s.instance, s.table, k.profile, face, k.method.name)
		send := func(code codes.Code, v int64) {
			if v > 0 {
				out <- prometheus.MustNewConstMetric(l.requests, counter, n(v), s.instance, s.table, k.profile, face, k.method.name, code.String())
			}
		}
		var times timingsRead
		send(codes.OK, times.read(&r.times))
		if f := r.failed.Load(); f != nil {
			times.read(&f.times)
			for code := range f.codes {
				send(codes.Code(code), f.codes[code].Load())
			}
		}
		times.send(out, l.seconds, false, nil, s.instance, s.table, k.profile, face, k.method.name)
		of := processKey{k.method, k.face}
		if all[of] == nil {
			all[of] = new(timingsRead)
		}
		all[of].add(&times)
	}
}
