package ops

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// ageBuckets are in seconds: how old changes are when they are sent. Those of a reader that
// catches up are days old.
var ageBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60, 600, 3600, 86400, 7 * 86400}

// Streams counts what change streams deliver, and why they end. It is a
// gateway/data.StreamObserver.
type Streams struct {
	age  prometheus.Histogram
	ends *prometheus.CounterVec
}

// NewStreams adds the metrics of change streams, of which reasons are all ends.
func (m *Metrics) NewStreams(reasons []string) *Streams {
	s := &Streams{
		age: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "bigtable_change_stream_delivery_seconds",
			Help: "Time from the commit of the last change in a message of a change stream until the message was sent.", Buckets: ageBuckets}),
		ends: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "bigtable_change_stream_ends_total",
			Help: "Change streams that ended, by reason."}, []string{"reason"}),
	}
	for _, r := range reasons {
		s.ends.WithLabelValues(r)
	}
	m.Registry.MustRegister(s.age, s.ends)
	return s
}

// ChangesSent implements data.StreamObserver.
func (s *Streams) ChangesSent(age time.Duration) { s.age.Observe(max(0, age.Seconds())) }

// StreamEnded implements data.StreamObserver.
func (s *Streams) StreamEnded(why string) { s.ends.WithLabelValues(why).Inc() }

// ObserveReaders adds what is read of change streams at a moment: how many streams, and by how
// much the one that is farthest behind is. read is called at each scrape.
func (m *Metrics) ObserveReaders(read func() (streams int64, lag time.Duration)) {
	m.Registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "bigtable_change_stream_readers", Help: "Change streams that are read."},
			func() float64 { n, _ := read(); return float64(n) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "bigtable_change_stream_watermark_lag_seconds", Help: "How far the watermark of the change stream that is farthest behind is behind the clock."},
			func() float64 { _, lag := read(); return lag.Seconds() }))
}

// ChangeStats is what a process keeps of changes at one moment.
type ChangeStats struct {
	Tables []TableChanges
	// Max is the most that is kept, 0 for no bound. Dropped counts the bytes that went for it.
	Max, Dropped int64
	// ClockAhead is by how much the clock was set forward and is not followed.
	ClockAhead time.Duration
}

// TableChanges is what is kept of the changes of a table.
type TableChanges struct {
	Table         string
	Files, Bytes  int64
	Since, Newest time.Time
}

// A changeCollector gives one reading of ChangeStats per scrape.
type changeCollector struct {
	read                         func() ChangeStats
	bytes, files, oldest, newest *prometheus.Desc // of a table
	max, dropped, ahead          *prometheus.Desc
}

// ObserveChanges adds the metrics of ChangeStats; read is called at each scrape. Tables beyond
// the first 100 are counted together as "other".
func (m *Metrics) ObserveChanges(read func() ChangeStats) {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	m.Registry.MustRegister(&changeCollector{read: read,
		bytes:   desc("bigtable_change_stream_bytes", "Bytes of change files, per table.", "table"),
		files:   desc("bigtable_change_stream_files", "Change files, per table.", "table"),
		oldest:  desc("bigtable_change_stream_oldest_commit_seconds", "Unix time of the commit from which on changes are kept, per table.", "table"),
		newest:  desc("bigtable_change_stream_newest_commit_seconds", "Unix time of the last commit in a change file, per table; 0 if there is none.", "table"),
		max:     desc("bigtable_change_stream_limit_bytes", "Bytes of change files that are kept at most (change-stream-max); 0 for no limit."),
		dropped: desc("bigtable_change_stream_dropped_bytes_total", "Bytes of change files that were dropped before their retention ended, for change-stream-max. If it grows, readers lose changes."),
		ahead:   desc("bigtable_clock_ahead_seconds", "By how much the clock was set forward, if commit times do not follow it. If it is not 0, correct the clock."),
	})
}

// Describe implements prometheus.Collector.
func (c *changeCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.bytes, c.files, c.oldest, c.newest, c.max, c.dropped, c.ahead} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *changeCollector) Collect(out chan<- prometheus.Metric) {
	s := c.read()
	emit := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	emit(c.max, gauge, float64(s.Max))
	emit(c.dropped, counter, float64(s.Dropped))
	emit(c.ahead, gauge, s.ClockAhead.Seconds())
	for _, t := range boundedChanges(s.Tables) {
		emit(c.bytes, gauge, float64(t.Bytes), t.Table)
		emit(c.files, gauge, float64(t.Files), t.Table)
		emit(c.oldest, gauge, unix(t.Since), t.Table)
		emit(c.newest, gauge, unix(t.Newest), t.Table)
	}
}

// boundedChanges returns no more than maxTables of tables and the sum of the others.
func boundedChanges(tables []TableChanges) []TableChanges {
	if len(tables) <= maxTables {
		return tables
	}
	out := append([]TableChanges(nil), tables[:maxTables]...)
	other := TableChanges{Table: otherTables}
	for _, t := range tables[maxTables:] {
		other.Files += t.Files
		other.Bytes += t.Bytes
		if other.Since.IsZero() || t.Since.Before(other.Since) {
			other.Since = t.Since
		}
		if t.Newest.After(other.Newest) {
			other.Newest = t.Newest
		}
	}
	return append(out, other)
}

func unix(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMicro()) / 1e6
}
