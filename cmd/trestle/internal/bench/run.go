package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trestledb/trestle/engine/cputime"
)

// The labels of the servers in a report.
const (
	labelA       = "A"
	labelB       = "B"
	labelCeiling = "ceiling"
)

// A run is one workload on one server.
type run struct {
	t     *target
	wl    *workload
	s     *state
	shape *shape // of the echo server
	// samples gathers answers for it, while the server warms up.
	samples *samples

	hist       Histogram
	rows       uint64
	elapsed    time.Duration
	unary      traffic
	streams    traffic
	errors     map[codes.Code]uint64
	firstError error
	wrong      error
	serverCPU  time.Duration
	clientCPU  time.Duration
	sliceOps   []float64 // operations per second of each slice
	load       time.Duration
}

// Run measures o's workloads. The report holds what was measured until an
// error; wrong answers are no error but stand in the report, see Report.Err.
func Run(ctx context.Context, o Options) (*Report, error) {
	o = o.WithDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	selected, err := selectWorkloads(o.Workloads)
	if err != nil {
		return nil, err
	}
	var targets []*target
	defer func() {
		for _, t := range targets {
			_ = t.close()
		}
	}()
	for _, e := range []struct {
		label, addr string
		pids        []int
	}{{labelA, o.Endpoint, o.PIDs}, {labelB, o.Against, o.AgainstPIDs}, {labelCeiling, o.Ceiling, o.CeilingPIDs}} {
		if e.addr == "" {
			continue
		}
		t, err := openTarget(&o, e.label, e.addr, e.pids)
		if err != nil {
			return nil, err
		}
		targets = append(targets, t)
	}
	rep := newReport(&o)
	for _, wl := range selected {
		runs, err := runWorkload(ctx, &o, wl, targets)
		rep.add(runs)
		if err != nil {
			return rep, fmt.Errorf("%s: %w", wl.name, err)
		}
	}
	for _, t := range targets {
		if err := t.leave(ctx); err != nil {
			return rep, err
		}
	}
	return rep, nil
}

// runWorkload measures wl on every target, in turns.
func runWorkload(ctx context.Context, o *Options, wl *workload, targets []*target) (runs []*run, err error) {
	var a *run
	defer func() {
		for _, r := range runs {
			r.s.close()
		}
	}()
	for _, t := range targets {
		r := &run{t: t, wl: wl, errors: map[codes.Code]uint64{}, s: &state{o: o}}
		if t.echo {
			// The first server's warm-up tells the sizes of messages.
			r.shape = &shape{unary: a.unary, stream: a.streams, ops: a.hist.Count(), samples: a.samples}
		} else if err := r.prepare(ctx); err != nil {
			return runs, err
		}
		runs = append(runs, r)
		if t.label == labelA {
			r.samples = new(samples)
		}
		fmt.Fprintf(o.Progress, "%s: warm up %s\n", wl.name, t.label)
		if err := r.slice(ctx, o.Warmup, 0); err != nil {
			return runs, err
		}
		if t.label == labelA {
			a = r
		}
	}
	for _, r := range runs {
		r.forget()
	}
	for i := range o.Slices {
		for _, r := range runs {
			fmt.Fprintf(o.Progress, "%s: slice %d of %d on %s\n", wl.name, i+1, o.Slices, r.t.label)
			// Operations are spread over the slices, the first ones get the rest.
			ops := (o.Ops + uint64(o.Slices-1-i)) / uint64(o.Slices)
			if o.Ops > 0 && ops == 0 {
				continue
			}
			if err := r.slice(ctx, o.Duration/time.Duration(o.Slices), ops); err != nil {
				return runs, err
			}
		}
	}
	for _, r := range runs {
		if r.t.echo {
			continue
		}
		r.s.close()
		if wl.writes && !o.SkipFinalCheck && r.wrong == nil {
			fmt.Fprintf(o.Progress, "%s: read back %s\n", wl.name, r.t.label)
			if err := r.s.d.verify(ctx, r.t); errors.Is(err, errWrong) {
				r.wrong = err
			} else if err != nil {
				return runs, fmt.Errorf("read back %s: %w", r.t.label, err)
			}
		}
		r.t.loaded = r.s.d
		if wl.writes {
			if err := r.t.leave(ctx); err != nil {
				return runs, err
			}
		}
	}
	return runs, nil
}

// prepare makes and fills the table, unless the workload before has left one like it.
func (r *run) prepare(ctx context.Context) error {
	o := r.s.o
	d := r.wl.data(o)
	if r.wl.group == "ycsb" {
		r.s.zipf = newZipf(d.loaded)
	}
	if l := r.t.loaded; l != nil && !r.wl.follow && l.like(d) {
		l.mutable = r.wl.writes
		r.s.d, r.t.loaded = l, nil
		return nil
	}
	if err := r.t.leave(ctx); err != nil {
		return err
	}
	d.init()
	d.mutable = r.wl.writes
	r.s.d = d
	table := "bench-" + r.wl.name
	if r.t.sessions || r.t.changes {
		table += "-s" // B may be the same server
	}
	r.s.begun = time.Now()
	if err := r.t.create(ctx, table, d); err != nil {
		return err
	}
	if d.loaded > 0 {
		fmt.Fprintf(o.Progress, "%s: load %d rows into %s\n", r.wl.name, d.loaded, r.t.label)
	}
	start := time.Now()
	if err := d.load(ctx, r.t); err != nil {
		return fmt.Errorf("load %s: %w", d.name, err)
	}
	r.load = time.Since(start)
	if r.wl.follow {
		var err error
		r.s.deliveries, err = followWrites(ctx, r.t.conns[0], d, r.s.begun)
		return err
	}
	return nil
}

// forget drops what the warm-up counted, but not what it found wrong.
func (r *run) forget() {
	*r = run{t: r.t, wl: r.wl, s: r.s, shape: r.shape, load: r.load, wrong: r.wrong, errors: map[codes.Code]uint64{}}
}

// slice lets all workers work for d, or for the given number of operations if
// that is not 0. A wrong answer ends it and is kept; the error is ctx's.
func (r *run) slice(ctx context.Context, d time.Duration, ops uint64) error {
	o := r.s.o
	if r.wrong != nil {
		return nil
	}
	// A server that never answers must not hold the run up for ever.
	sliceCtx, cancel := context.WithTimeoutCause(ctx, d+time.Minute, errors.New("no answer within a minute"))
	defer cancel()
	var left atomic.Int64
	left.Store(int64(ops))
	r.s.round++ // another seed for each slice
	serverCPU, clientCPU := processorTime(r.t.pids), cputime.Used()
	start := time.Now()
	deadline := start.Add(d)
	var wrongOnce sync.Once
	workers := make([]*worker, o.Concurrency)
	var wg sync.WaitGroup
	for i := range workers {
		w := newWorker(r.t.conns[i%len(r.t.conns)], o.Seed<<32|r.s.round, uint64(i))
		w.sessions = r.t.sessions && r.shape == nil
		if i == 0 {
			w.samples = r.samples
		}
		workers[i] = w
		wg.Go(func() {
			defer w.closeSession()
			interval := time.Duration(0)
			due := start
			if o.Rate > 0 {
				interval = time.Duration(float64(time.Second) * float64(o.Concurrency) / o.Rate)
				due = start.Add(interval * time.Duration(i) / time.Duration(o.Concurrency))
			}
			for sliceCtx.Err() == nil {
				if ops > 0 && left.Add(-1) < 0 {
					return
				}
				begin := time.Now()
				if interval > 0 {
					time.Sleep(due.Sub(begin))
					begin = due
					due = due.Add(interval)
				}
				if begin.After(deadline) {
					return
				}
				var err error
				if r.shape != nil {
					err = r.shape.op(sliceCtx, w)
				} else {
					err = r.wl.op(sliceCtx, w, r.s)
				}
				end := time.Now()
				switch {
				case err == nil:
					w.hist.Record(end.Sub(begin))
				case errors.Is(err, errWrong) || errors.Is(err, errMessage):
					wrongOnce.Do(func() { r.wrong = err })
					cancel()
					return
				case sliceCtx.Err() != nil && errors.Is(context.Cause(sliceCtx), context.Canceled):
					return // another worker ended the slice
				default:
					w.errors[status.Code(err)]++
					if w.firstError == nil {
						w.firstError = err
					}
					time.Sleep(5 * time.Millisecond) // a server that refuses is not to be flooded
				}
				if end.After(deadline) {
					return
				}
			}
		})
	}
	wg.Wait()
	elapsed := time.Since(start)
	r.serverCPU += processorTime(r.t.pids) - serverCPU
	r.clientCPU += cputime.Used() - clientCPU
	r.elapsed += elapsed
	done := uint64(0)
	for _, w := range workers {
		done += w.hist.Count()
		r.hist.Merge(&w.hist)
		r.rows += w.rows
		r.unary.add(w.unaryTraffic)
		r.streams.add(w.streamTraffic)
		for c, n := range w.errors {
			r.errors[c] += n
		}
		if r.firstError == nil {
			r.firstError = w.firstError
		}
	}
	r.sliceOps = append(r.sliceOps, float64(done)/elapsed.Seconds())
	return ctx.Err()
}

// median returns the middle of v, 0 if it is empty.
func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}
