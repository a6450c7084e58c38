package ops

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// ViewStats is what the tablets of a process are of a materialized view at one moment.
type ViewStats struct {
	View string
	// MaxDelay is for how long the oldest change has waited that the view does not show.
	MaxDelay time.Duration
	// Storage is the size of its rows, Intermediate that of what is known of the source's.
	Storage, Intermediate int64
	// UserErrors counts rows that could not be evaluated, SystemErrors what is tried again.
	UserErrors, SystemErrors int64
}

// A viewCollector gives one reading of ViewStats per scrape.
type viewCollector struct {
	read                                      func() []ViewStats
	delay, storage, intermediate, user, other *prometheus.Desc
}

// ObserveViews adds the metrics of materialized views, called as Cloud Bigtable's are; read is
// called at each scrape.
func (m *Metrics) ObserveViews(read func() []ViewStats) {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, []string{"view"}, nil)
	}
	m.Registry.MustRegister(&viewCollector{read: read,
		delay:        desc("bigtable_materialized_view_max_delay_seconds", "For how long the oldest change of the source has waited that a materialized view does not show; 0 if there is none."),
		storage:      desc("bigtable_materialized_view_storage_bytes", "Bytes of the rows of a materialized view, with their hidden state."),
		intermediate: desc("bigtable_materialized_view_intermediate_storage_bytes", "Bytes of what is kept of the source's rows for a materialized view."),
		user:         desc("bigtable_materialized_view_user_errors_total", "Evaluations of rows for a materialized view that failed: such a row is left out."),
		other:        desc("bigtable_materialized_view_system_errors_total", "Attempts to keep a materialized view up to date that failed and are made again."),
	})
}

// Describe implements prometheus.Collector.
func (c *viewCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.delay, c.storage, c.intermediate, c.user, c.other} {
		out <- d
	}
}

// Collect implements prometheus.Collector. Views beyond the first 100 are left out.
func (c *viewCollector) Collect(out chan<- prometheus.Metric) {
	all := c.read()
	for i := range all[:min(len(all), maxTables)] {
		v := &all[i]
		emit := func(d *prometheus.Desc, kind prometheus.ValueType, x float64) {
			out <- prometheus.MustNewConstMetric(d, kind, x, v.View)
		}
		emit(c.delay, gauge, v.MaxDelay.Seconds())
		emit(c.storage, gauge, float64(v.Storage))
		emit(c.intermediate, gauge, float64(v.Intermediate))
		emit(c.user, counter, float64(v.UserErrors))
		emit(c.other, counter, float64(v.SystemErrors))
	}
}
