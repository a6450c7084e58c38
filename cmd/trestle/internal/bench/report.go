package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"text/tabwriter"
	"time"
)

// A Report is what a run measured. It is the form of the JSON output.
type Report struct {
	Time        time.Time `json:"time"`
	Processors  int       `json:"processors"`
	Rows        uint64    `json:"rows"`
	ValueBytes  int       `json:"value_bytes"`
	Concurrency int       `json:"concurrency"`
	Connections int       `json:"connections"`
	Results     []Result  `json:"results"`
	Ratios      []Ratio   `json:"ratios,omitempty"`
}

// A Result is one workload on one server. Rates count successful operations.
type Result struct {
	Workload string `json:"workload"`
	Server   string `json:"server"` // A, B or ceiling
	Endpoint string `json:"endpoint"`

	Seconds     float64   `json:"seconds"`
	Operations  uint64    `json:"operations"`
	Rows        uint64    `json:"rows"`
	OpsPerSec   float64   `json:"ops_per_second"`
	RowsPerSec  float64   `json:"rows_per_second"`
	MBPerSec    float64   `json:"mb_per_second"` // 10^6 bytes of messages, both ways
	SliceOps    []float64 `json:"slice_ops_per_second"`
	LoadSeconds float64   `json:"load_seconds"`

	MeanMicros float64 `json:"mean_us"`
	P50Micros  float64 `json:"p50_us"`
	P95Micros  float64 `json:"p95_us"`
	P99Micros  float64 `json:"p99_us"`
	P999Micros float64 `json:"p99_9_us"`
	MaxMicros  float64 `json:"max_us"`

	// Processor time per operation; 0 if the server's process is not known.
	ServerCPUMicros float64 `json:"server_cpu_us_per_op"`
	ClientCPUMicros float64 `json:"client_cpu_us_per_op"`

	Errors     map[string]uint64 `json:"errors,omitempty"` // by gRPC code
	FirstError string            `json:"first_error,omitempty"`
	// Wrong is the first answer that cannot be right; empty if all were.
	Wrong string `json:"wrong,omitempty"`
}

// A Ratio compares two servers on one workload.
type Ratio struct {
	Workload string `json:"workload"`
	Of       string `json:"of"` // "A/B" or "A/ceiling"
	// Throughput is the median, over the slices, of the ratio of two neighbours:
	// above 1, A is faster.
	Throughput float64 `json:"throughput"`
	// P50 and P99 are ratios of latencies: below 1, A is faster.
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	// ServerCPU is the ratio of processor times per operation, which other load
	// on the machine disturbs least; 0 if one is not known.
	ServerCPU float64 `json:"server_cpu"`
}

func newReport(o *Options) *Report {
	return &Report{Time: time.Now().UTC().Truncate(time.Second), Processors: runtime.NumCPU(), Rows: o.Rows, ValueBytes: o.ValueBytes, Concurrency: o.Concurrency, Connections: o.Connections}
}

func us(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

// add appends the runs of one workload and their ratios.
func (p *Report) add(runs []*run) {
	for _, r := range runs {
		n := float64(max(r.hist.Count(), 1))
		seconds := max(r.elapsed.Seconds(), 1e-9)
		res := Result{
			Workload: r.wl.name, Server: r.t.label, Endpoint: r.t.addr,
			Seconds: r.elapsed.Seconds(), Operations: r.hist.Count(), Rows: r.rows,
			OpsPerSec: float64(r.hist.Count()) / seconds, RowsPerSec: float64(r.rows) / seconds,
			MBPerSec: float64(r.unary.sentBytes+r.unary.recvdBytes+r.streams.sentBytes+r.streams.recvdBytes) / 1e6 / seconds,
			SliceOps: r.sliceOps, LoadSeconds: r.load.Seconds(),
			MeanMicros: us(r.hist.Mean()), P50Micros: us(r.hist.Quantile(.5)), P95Micros: us(r.hist.Quantile(.95)),
			P99Micros: us(r.hist.Quantile(.99)), P999Micros: us(r.hist.Quantile(.999)), MaxMicros: us(r.hist.Max()),
			ServerCPUMicros: us(r.serverCPU) / n, ClientCPUMicros: us(r.clientCPU) / n,
		}
		for c, count := range r.errors {
			if res.Errors == nil {
				res.Errors = map[string]uint64{}
			}
			res.Errors[c.String()] = count
		}
		if r.firstError != nil {
			res.FirstError = r.firstError.Error()
		}
		if r.wrong != nil {
			res.Wrong = r.wrong.Error()
		}
		p.Results = append(p.Results, res)
	}
	if len(runs) == 0 {
		return
	}
	a := runs[0]
	for _, b := range runs[1:] {
		var pairs []float64
		for i := range min(len(a.sliceOps), len(b.sliceOps)) {
			if b.sliceOps[i] > 0 {
				pairs = append(pairs, a.sliceOps[i]/b.sliceOps[i])
			}
		}
		if len(pairs) == 0 {
			continue
		}
		quotient := func(q float64) float64 {
			return float64(a.hist.Quantile(q)) / float64(max(b.hist.Quantile(q), 1))
		}
		cpu := 0.0
		if b.serverCPU > 0 && a.hist.Count() > 0 {
			cpu = float64(a.serverCPU) / float64(b.serverCPU) * float64(b.hist.Count()) / float64(a.hist.Count())
		}
		p.Ratios = append(p.Ratios, Ratio{Workload: a.wl.name, Of: a.t.label + "/" + b.t.label,
			Throughput: median(pairs), P50: quotient(.5), P99: quotient(.99), ServerCPU: cpu})
	}
}

// Err returns what makes the report a failure: wrong answers, and workloads
// without a single successful operation.
func (p *Report) Err() error {
	var errs []error
	for i := range p.Results {
		r := &p.Results[i]
		switch {
		case r.Wrong != "":
			errs = append(errs, fmt.Errorf("%s on %s: %s", r.Workload, r.Endpoint, r.Wrong))
		case r.Operations == 0:
			errs = append(errs, fmt.Errorf("%s on %s: no operation succeeded: %s", r.Workload, r.Endpoint, r.FirstError))
		}
	}
	return errors.Join(errs...)
}

// WriteJSON writes the report as one JSON object.
func (p *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(p)
}

// WriteText writes the report as a table for people.
func (p *Report) WriteText(w io.Writer) error {
	fmt.Fprintf(w, "%d processors, %d workers, %d connections, %d rows, values of %d bytes\n\n",
		p.Processors, p.Concurrency, p.Connections, p.Rows, p.ValueBytes)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "workload\tserver\tops/s\trows/s\tMB/s\tp50\tp95\tp99\tp99.9\tmax\tserver µs\tclient µs\terrors\t\n")
	for i := range p.Results {
		r := &p.Results[i]
		failed := uint64(0)
		for _, n := range r.Errors {
			failed += n
		}
		verdict := fmt.Sprint(failed)
		if r.Wrong != "" {
			verdict = "WRONG"
		}
		cpu := "-"
		if r.ServerCPUMicros > 0 {
			cpu = fmt.Sprintf("%.1f", r.ServerCPUMicros)
		}
		fmt.Fprintf(t, "%s\t%s\t%.0f\t%.0f\t%.1f\t%s\t%s\t%s\t%s\t%s\t%s\t%.1f\t%s\t\n", r.Workload, r.Server,
			r.OpsPerSec, r.RowsPerSec, r.MBPerSec, latency(r.P50Micros), latency(r.P95Micros), latency(r.P99Micros), latency(r.P999Micros), latency(r.MaxMicros), cpu, r.ClientCPUMicros, verdict)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if len(p.Ratios) > 0 {
		fmt.Fprintln(w)
		fmt.Fprint(t, "workload\tratio\tthroughput\tp50\tp99\tserver µs\t\n")
		for _, r := range p.Ratios {
			fmt.Fprintf(t, "%s\t%s\t%.2f\t%.2f\t%.2f\t%.2f\t\n", r.Workload, r.Of, r.Throughput, r.P50, r.P99, r.ServerCPU)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	for i := range p.Results {
		r := &p.Results[i]
		if r.FirstError != "" {
			fmt.Fprintf(w, "\n%s on %s: %v; the first: %s\n", r.Workload, r.Server, r.Errors, r.FirstError)
		}
		if r.Wrong != "" {
			fmt.Fprintf(w, "\n%s on %s: %s\n", r.Workload, r.Server, r.Wrong)
		}
	}
	return nil
}

// latency writes microseconds with three digits.
func latency(us float64) string {
	switch {
	case us < 1000:
		return fmt.Sprintf("%.0fµs", us)
	case us < 10e3:
		return fmt.Sprintf("%.2fms", us/1e3)
	case us < 100e3:
		return fmt.Sprintf("%.1fms", us/1e3)
	case us < 10e6:
		return fmt.Sprintf("%.0fms", us/1e3)
	}
	return fmt.Sprintf("%.1fs", us/1e6)
}
