package ops

import "github.com/prometheus/client_golang/prometheus"

// A healthCollector has the checks of /readyz, and the ends of certificates.
type healthCollector struct {
	health       *Health
	certificates []string
	check, end   *prometheus.Desc
}

// ObserveHealth adds the metrics of /readyz, and of the end of certificates, PEM files that
// the process shows to others. All of them are looked at with each scrape.
func (m *Metrics) ObserveHealth(h *Health, certificates []string) {
	m.Registry.MustRegister(&healthCollector{h, certificates,
		prometheus.NewDesc("bigtable_ready_check", "1 for each check of /readyz that passes, 0 for each that keeps the process from being ready.", []string{"check"}, nil),
		prometheus.NewDesc("bigtable_certificate_end_seconds", "Unix time at which a certificate that the process shows to others ends; 0 if it cannot be read.", []string{"file"}, nil)})
}

// Describe implements prometheus.Collector.
func (c *healthCollector) Describe(out chan<- *prometheus.Desc) {
	out <- c.check
	out <- c.end
}

// Collect implements prometheus.Collector.
func (c *healthCollector) Collect(out chan<- prometheus.Metric) {
	for _, x := range c.health.all() {
		v := 1.0
		if x.fn() != nil {
			v = 0
		}
		out <- prometheus.MustNewConstMetric(c.check, gauge, v, x.name)
	}
	for _, file := range c.certificates {
		end := 0.0
		if x := certificate(file); x.Error == "" {
			end = n(x.NotAfter.Unix())
		}
		out <- prometheus.MustNewConstMetric(c.end, gauge, end, file)
	}
}
