package ops

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/trestledb/trestle/engine/fault"
)

const (
	historyStep   = time.Minute
	historyPoints = int(24 * time.Hour / historyStep)
	// historySeries bounds the series, and with them the memory: 2.3 MB.
	historySeries = 200
)

// A historyKey is a series: a name and the method and quantile that it is of.
type historyKey struct{ name, method, quantile string }

// historyUnits has the series of a History, and their units.
var historyUnits = map[string]string{
	"requests": "1/s", "latency": "s", "received": "B/s", "sent": "B/s", "compaction": "B/s", "log": "B/s",
	"memory": "B", "memtables": "B", "block_cache": "B", "stored": "B", "disk_used": "B", "disk_free": "B", "open_files": "1",
}

// counted and gauged say of which metrics the others are, summed over their labels.
var counted = map[string]string{
	"bigtable_server_received_bytes_total": "received", "bigtable_server_sent_bytes_total": "sent",
	"bigtable_compaction_bytes_total": "compaction", "bigtable_wal_bytes_total": "log",
}

var gauged = map[string]string{
	"process_resident_memory_bytes": "memory", "bigtable_memtable_bytes": "memtables", "bigtable_block_cache_bytes": "block_cache",
	"bigtable_tablet_bytes": "stored", "bigtable_disk_used_bytes": "disk_used", "bigtable_disk_free_bytes": "disk_free", "process_open_fds": "open_files",
}

const requestSecondsName = "bigtable_server_request_seconds"

// A History keeps what a process did in the last 24 hours, a point a minute, in memory.
type History struct {
	m *Metrics

	mu     sync.Mutex
	series map[historyKey]*[historyPoints]float32 // NaN: nothing was recorded
	times  [historyPoints]int64                   // Unix seconds, 0 where there is none
	next   int
	counts map[historyKey]float64 // at the last point
	hists  map[string]map[float64]uint64
	at     time.Time
}

// NewHistory returns the history of the process of m, which has nothing yet.
func NewHistory(m *Metrics) *History {
	return &History{m: m, series: map[historyKey]*[historyPoints]float32{}}
}

// Run records until ctx ends.
func (h *History) Run(ctx context.Context) {
	t := time.NewTicker(historyStep)
	defer t.Stop()
	h.record(time.Now())
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			h.record(now)
		}
	}
}

// record adds a point of now.
func (h *History) record(now time.Time) {
	h.m.principals.tick(now)
	families, err := h.m.Registry.Gather()
	if err != nil && len(families) == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	values, counts := map[historyKey]float64{}, map[historyKey]float64{}
	hists := map[string]map[float64]uint64{}
	for _, f := range families {
		name := f.GetName()
		if to := gauged[name]; to != "" {
			for _, m := range f.GetMetric() {
				values[historyKey{name: to}] += m.GetGauge().GetValue()
			}
		}
		if to := counted[name]; to != "" {
			for _, m := range f.GetMetric() {
				counts[historyKey{name: to}] += m.GetCounter().GetValue()
			}
		}
		if name != requestSecondsName {
			continue
		}
		for _, m := range f.GetMetric() {
			method := ""
			for _, l := range m.GetLabel() {
				if l.GetName() == "method" {
					method = l.GetValue()
				}
			}
			counts[historyKey{name: "requests", method: method}] += float64(m.GetHistogram().GetSampleCount())
			if hists[method] == nil {
				hists[method] = map[float64]uint64{}
			}
			for _, b := range m.GetHistogram().GetBucket() {
				hists[method][b.GetUpperBound()] += b.GetCumulativeCount()
			}
			hists[method][math.Inf(1)] += m.GetHistogram().GetSampleCount()
		}
	}
	dt := now.Sub(h.at).Seconds()
	if h.counts != nil && dt > 0 {
		for k, n := range counts {
			values[k] = max(0, n-h.counts[k]) / dt
		}
		for method, now := range hists {
			for _, q := range []struct {
				name string
				of   float64
			}{{"0.5", 0.5}, {"0.99", 0.99}} {
				if v, ok := quantile(q.of, h.hists[method], now); ok {
					values[historyKey{"latency", method, q.name}] = v
				}
			}
		}
	}
	h.counts, h.hists, h.at = counts, hists, now
	for k := range values {
		if h.series[k] == nil && len(h.series) < historySeries {
			s := new([historyPoints]float32)
			for i := range s {
				s[i] = float32(math.NaN())
			}
			h.series[k] = s
		}
	}
	for k, s := range h.series {
		s[h.next] = float32(math.NaN())
		if v, ok := values[k]; ok {
			s[h.next] = float32(v)
		}
	}
	h.times[h.next] = now.Unix()
	h.next = (h.next + 1) % historyPoints
}

// quantile returns a quantile of what a histogram has got since before, by its cumulative
// buckets; false if that is nothing.
func quantile(q float64, before, now map[float64]uint64) (float64, bool) {
	total := now[math.Inf(1)] - before[math.Inf(1)]
	if total == 0 {
		return 0, false
	}
	rank, below, low := q*float64(total), 0.0, 0.0
	for _, upper := range slices.Sorted(maps.Keys(now)) {
		n := float64(now[upper] - before[upper])
		if n >= rank {
			if math.IsInf(upper, 1) {
				return low, true // it is not known by how much more
			}
			return low + (upper-low)*(rank-below)/(n-below), true
		}
		below, low = n, upper
	}
	return low, true
}

// HistorySeries is a series of GET /admin/history.
type HistorySeries struct {
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels"`
	// Unit is that of the values: 1/s, s, B/s, B or 1.
	Unit string `json:"unit"`
	// Points are Unix seconds and values, oldest first.
	Points [][2]float64 `json:"points"`
}

// HistoryList is the answer of GET /admin/history.
type HistoryList struct {
	Series []HistorySeries `json:"series"`
}

// read returns the series of names, all if there are none, with the points from from up
// to to.
func (h *History) read(names []string, from, to time.Time) HistoryList {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := HistoryList{[]HistorySeries{}}
	for k, s := range h.series {
		if len(names) > 0 && !slices.Contains(names, k.name) {
			continue
		}
		x := HistorySeries{Name: k.name, Labels: map[string]string{}, Unit: historyUnits[k.name], Points: [][2]float64{}}
		if k.method != "" {
			x.Labels["method"] = k.method
		}
		if k.quantile != "" {
			x.Labels["quantile"] = k.quantile
		}
		for i := range historyPoints {
			at := (h.next + i) % historyPoints
			if t := h.times[at]; t >= from.Unix() && t <= to.Unix() && !math.IsNaN(float64(s[at])) {
				x.Points = append(x.Points, [2]float64{float64(t), float64(s[at])})
			}
		}
		out.Series = append(out.Series, x)
	}
	slices.SortFunc(out.Series, func(a, b HistorySeries) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Labels["method"], b.Labels["method"]), cmp.Compare(a.Labels["quantile"], b.Labels["quantile"]))
	})
	return out
}

// ShowHistory makes the service answer with h.
func (a *Admin) ShowHistory(h *History) { a.history.Store(h) }

// listHistory answers with what the process did in the last 24 hours.
func (a *Admin) listHistory(q *request) (any, error) {
	if err := q.onServers(); err != nil {
		return nil, err
	}
	v := q.URL.Query()
	var names []string
	if s := v.Get("names"); s != "" {
		names = strings.Split(s, ",")
	}
	for _, n := range names {
		if historyUnits[n] == "" {
			return nil, fault.New(fault.Invalid, "names: there is no series %q, but %s", n, strings.Join(slices.Sorted(maps.Keys(historyUnits)), ", "))
		}
	}
	to := time.Now()
	from, err := timeOf(v.Get("from"), "from", to.Add(-24*time.Hour))
	if err != nil {
		return nil, err
	}
	if to, err = timeOf(v.Get("to"), "to", to); err != nil {
		return nil, err
	}
	h := a.history.Load()
	if h == nil {
		return nil, fault.New(fault.FailedPrecondition, "this process records no history")
	}
	return h.read(names, from, to), nil
}

// timeOf parses a time of a request, or returns otherwise if there is none.
func timeOf(s, name string, otherwise time.Time) (time.Time, error) {
	if s == "" {
		return otherwise, nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return t, fault.New(fault.Invalid, "%s %q is no time: give it as 2026-01-02T15:04:05Z", name, s)
	}
	return t, nil
}
