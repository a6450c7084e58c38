package ops

import (
	"cmp"
	"net/http"
	"slices"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/trestledb/trestle/engine/tablet"
)

// busiest is how many tablets have metrics of their own beside those of the
// process. All of them have on the page of ObserveTablets.
const busiest = 20

// tabletRow is one metric of a tablet, a gauge.
type tabletRow struct {
	name, help string
	get        func(*tablet.Info) float64
}

var tabletRows = []tabletRow{
	{"bigtable_tablet_rows_read_rate", "Rows of a tablet that reads looked at, per second, lately.", func(t *tablet.Info) float64 { return t.Load.RowsRead }},
	{"bigtable_tablet_rows_written_rate", "Rows of a tablet that were changed, per second, lately.", func(t *tablet.Info) float64 { return t.Load.RowsWritten }},
	{"bigtable_tablet_size_bytes", "Bytes of a tablet's SSTables and memtables.", func(t *tablet.Info) float64 { return float64(t.Bytes) }},
	{"bigtable_tablet_memory_bytes", "Bytes of a tablet's memtables.", func(t *tablet.Info) float64 { return float64(t.MemtableBytes) }},
	{"bigtable_tablet_runs", "Sorted runs that a read of a tablet merges.", func(t *tablet.Info) float64 { return float64(t.Runs) }},
}

// tabletCollector gives the metrics of up to most tablets, the busiest.
type tabletCollector struct {
	read  func() []tablet.Info
	most  int // 0: all
	descs []*prometheus.Desc
}

func newTabletCollector(read func() []tablet.Info, most int) *tabletCollector {
	c := &tabletCollector{read: read, most: most}
	for _, r := range tabletRows {
		c.descs = append(c.descs, prometheus.NewDesc(r.name, r.help, []string{"table", "tablet"}, nil))
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *tabletCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *tabletCollector) Collect(out chan<- prometheus.Metric) {
	infos := c.read()
	if c.most > 0 && len(infos) > c.most {
		slices.SortFunc(infos, func(a, b tablet.Info) int {
			return cmp.Or(cmp.Compare(b.Load.Rows(), a.Load.Rows()), cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Tablet, b.Tablet))
		})
		infos = infos[:c.most]
	}
	for i := range infos {
		id := infos[i].Tablet.String()
		for k, r := range tabletRows {
			out <- prometheus.MustNewConstMetric(c.descs[k], prometheus.GaugeValue, r.get(&infos[i]), infos[i].Table, id)
		}
	}
}

// tabletsPage serves the metrics of all tablets of the process.
type tabletsPage struct{ h atomic.Pointer[http.Handler] }

// ServeHTTP implements http.Handler.
func (p *tabletsPage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h := p.h.Load(); h != nil {
		(*h).ServeHTTP(w, r)
		return
	}
	http.Error(w, "this process has no tablets, or is not ready yet", http.StatusNotFound)
}

// ObserveTablets adds the metrics of the busiest tablets, and makes those of all
// a page of their own; read is called at each scrape.
func (m *Metrics) ObserveTablets(read func() []tablet.Info) {
	m.Registry.MustRegister(newTabletCollector(read, busiest))
	all := prometheus.NewRegistry()
	all.MustRegister(newTabletCollector(read, 0))
	h := promhttp.HandlerFor(all, promhttp.HandlerOpts{MaxRequestsInFlight: 2})
	m.tablets.h.Store(&h)
}
