package bench

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Options say what to measure. The zero value of a field means its default.
type Options struct {
	// Endpoint is the HOST:PORT of the server, called A in the report.
	Endpoint string
	// Against is a second server, B, measured in turns with A. Optional.
	Against string
	// Ceiling is the HOST:PORT of a server run by ServeEcho, measured in turns
	// with A. Optional.
	Ceiling string
	// PIDs, AgainstPIDs and CeilingPIDs are the servers' processes on this machine,
	// to report their processor time per operation, all of a server together. Empty means
	// unknown.
	PIDs, AgainstPIDs, CeilingPIDs []int

	// Sessions sends A's MutateRow and reads of one row through sessions, one of
	// each worker. With Against the same server, both ways are compared.
	Sessions bool

	// ChangeStream gives A's tables a change stream, which nobody reads. With Against
	// the same server, tables with and without are compared.
	ChangeStream bool

	// Workloads are names or groups; see Names. Default "paper".
	Workloads []string

	// Duration of each workload on each server, spread over Slices. Default 5 s.
	Duration time.Duration
	// Ops ends a workload earlier, after so many operations. 0: no such end.
	Ops uint64
	// Warmup is not measured. Default 500 ms.
	Warmup time.Duration
	// Slices is how many turns each server gets. Default 1, or 5 if there is
	// more than one server.
	Slices int
	// Concurrency is the number of workers, each with one call at a time.
	// Default 32.
	Concurrency int
	// Connections is shared by the workers. Default 4.
	Connections int
	// Rate is the number of operations started per second, by all workers
	// together; latency then counts from when an operation should have
	// started. 0: as many as the server answers.
	Rate float64

	// Rows is the size of the tables. Default 100,000.
	Rows uint64
	// ValueBytes is the size of a value, at least 16. Default 1,000.
	ValueBytes int
	// Batch is the number of rows of a MutateRows request. Default 100.
	Batch int
	// ScanRows is the number of rows that one scan reads. Default 1,000.
	ScanRows uint64
	// Splits is the number of tablets that tables are created with. Default 1.
	Splits int
	// Seed makes another run. Default 1.
	Seed uint64

	// Project and Instance hold the tables. Default "bench" and "benchmark"; the
	// instance is created if the server says that it is not there.
	Project, Instance string
	// Keep leaves the tables behind.
	Keep bool
	// SkipFinalCheck leaves out reading everything back after a workload that
	// writes.
	SkipFinalCheck bool

	// Progress gets a line for each step. Default: nothing.
	Progress io.Writer
}

// WithDefaults returns o with defaults for what is zero.
func (o Options) WithDefaults() Options {
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	if len(o.Workloads) == 0 {
		o.Workloads = []string{"paper"}
	}
	if o.Duration == 0 {
		o.Duration = 5 * time.Second
	}
	if o.Warmup == 0 {
		o.Warmup = 500 * time.Millisecond
	}
	if o.Against != "" || o.Ceiling != "" {
		def(&o.Slices, 5)
	}
	def(&o.Slices, 1)
	def(&o.Concurrency, 32)
	def(&o.Connections, 4)
	def(&o.ValueBytes, 1000)
	def(&o.Batch, 100)
	def(&o.Splits, 1)
	if o.Rows == 0 {
		o.Rows = 100_000
	}
	if o.ScanRows == 0 {
		o.ScanRows = 1000
	}
	if o.Seed == 0 {
		o.Seed = 1
	}
	if o.Project == "" {
		o.Project = "bench"
	}
	if o.Instance == "" {
		o.Instance = "benchmark"
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	return o
}

// Validate returns everything that is wrong with o, after WithDefaults.
func (o *Options) Validate() error {
	var errs []error
	bad := func(when bool, format string, args ...any) {
		if when {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	bad(o.Endpoint == "", "no endpoint to measure")
	bad(o.ValueBytes < minValue || o.ValueBytes > 10<<20, "a value of %d bytes: must be %d bytes to 10 MiB", o.ValueBytes, minValue)
	bad(o.Rows < 1 || o.Rows > 1<<32, "%d rows: must be 1 to 2^32", o.Rows)
	bad(o.ScanRows < 1, "scans of %d rows", o.ScanRows)
	bad(o.Concurrency < 1 || o.Connections < 1 || o.Slices < 1 || o.Splits < 1, "concurrency %d, connections %d, slices %d, splits %d: each must be at least 1", o.Concurrency, o.Connections, o.Slices, o.Splits)
	bad(o.Batch < 1 || o.Batch > 100_000, "a batch of %d rows: must be 1 to 100,000", o.Batch)
	bad(o.Duration < 0 || o.Warmup < 0 || o.Rate < 0, "duration %v, warm-up %v and rate %v must not be negative", o.Duration, o.Warmup, o.Rate)
	if _, err := selectWorkloads(o.Workloads); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// selectWorkloads resolves names and groups, in the given order, each once.
func selectWorkloads(names []string) ([]*workload, error) {
	var out []*workload
	var errs []error
	for _, name := range names {
		found := false
		for i := range workloads {
			w := &workloads[i]
			if name == w.name || name == w.group || name == "all" {
				found = true
				if !slices.Contains(out, w) {
					out = append(out, w)
				}
			}
		}
		if !found {
			errs = append(errs, fmt.Errorf("%q is not a workload; there are %s", name, strings.Join(Names(), ", ")))
		}
	}
	return out, errors.Join(errs...)
}

// Names returns the workloads and groups.
func Names() []string {
	out := []string{"all"}
	for i := range workloads {
		if g := workloads[i].group; !slices.Contains(out, g) {
			out = append(out, g)
		}
	}
	for i := range workloads {
		out = append(out, workloads[i].name)
	}
	return out
}

// Help describes the workloads, in lines of 80 characters. wrap breaks text into lines.
func Help(wrap func(text string, width int) []string) string {
	var b strings.Builder
	name, group := 0, 0
	for i := range workloads {
		name, group = max(name, len(workloads[i].name)), max(group, len(workloads[i].group))
	}
	for i := range workloads {
		w := workloads[i]
		for _, line := range wrap(w.help, 80-name-group-6) {
			fmt.Fprintf(&b, "  %-*s  %-*s  %s\n", name, w.name, group, w.group, line)
			w.name, w.group = "", ""
		}
	}
	return b.String()
}
