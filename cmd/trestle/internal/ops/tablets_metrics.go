package ops

import (
	"github.com/prometheus/client_golang/prometheus"
)

// damageCollector tells which SSTables are damaged and which tablets failed. There is a time series for
// each that reads found damaged and that is still in use, so normally none.
type damageCollector struct {
	a               *Admin
	corrupt, failed *prometheus.Desc
}

// ObserveDamage adds the metric of damaged SSTables.
func (m *Metrics) ObserveDamage(a *Admin) {
	m.Registry.MustRegister(&damageCollector{a, prometheus.NewDesc("bigtable_corrupt_sstable_reads_total",
		"Reads that met bytes of an SSTable that were not what was written, by SSTable. bigtable_corruption_total counts all.",
		[]string{"table", "tablet", "object"}, nil),
		prometheus.NewDesc("bigtable_failed_tablet", "1 for each tablet that refuses all calls because its background work panicked.",
			[]string{"table", "tablet"}, nil)})
}

func (c *damageCollector) Describe(out chan<- *prometheus.Desc) {
	out <- c.corrupt
	out <- c.failed
}

func (c *damageCollector) Collect(out chan<- prometheus.Metric) {
	o := c.a.open.Load()
	if o == nil {
		return
	}
	for _, d := range o.op.Damage() {
		if d.Failed {
			out <- prometheus.MustNewConstMetric(c.failed, prometheus.GaugeValue, 1, d.Table, d.Tablet.String())
			continue
		}
		out <- prometheus.MustNewConstMetric(c.corrupt, prometheus.CounterValue, float64(d.Reads), d.Table, d.Tablet.String(), d.Object)
	}
}
