package views

import (
	"context"
	"math"
	"runtime"
	"runtime/metrics"
	"sync"
	"time"
)

// A pace bounds what part of the processors the Workers of a process take for something while
// there are requests, and goroutines wait for processors.
type pace struct {
	requests func() int64 // Options.Requests
	// wall says that the time counts in which a Worker has waited for a processor. So the
	// part is one of what the process gets, if other processes take the rest.
	wall bool

	mu sync.Mutex
	// free is when all that was done is paid for.
	free time.Time
	cost time.Duration // of a row, about
	busy bool          // requests wait for processors
	// looked is when busy was found out, from asked, how many requests there had been by
	// then, and waits: how many goroutines had waited how long.
	looked time.Time
	asked  int64
	waits  []metrics.Sample
	counts []uint64
}

const (
	// leastShare is the part of the processors that Workers have for changed rows without
	// lag, and fullLag is the lag with which they may have all of them.
	leastShare = 1. / 32
	fullLag    = time.Minute
	// scanShare is the part that looks at all rows have.
	scanShare = 1. / 10
	// lookEvery is how often it is found out whether requests wait for processors: they do
	// if there were some, and a part waitShare of all goroutines that became ready waited for
	// longWait. Without requests a look at all rows keeps itself waiting.
	lookEvery = 50 * time.Millisecond
	longWait  = 100 * time.Microsecond
	waitShare = 0.03
	// evaluateTogether is how many rows are evaluated before others have their turn.
	evaluateTogether = 500
)

func processors() int { return runtime.GOMAXPROCS(0) }

// share returns the part of the processors that Workers with a lag may have for changed rows.
// It grows with the square of the lag: writers that are faster for some seconds hardly notice, and
// a view catches up at any load that lasts.
func share(lag time.Duration) float64 {
	part := max(0, lag.Seconds()) / fullLag.Seconds()
	return min(1, leastShare+part*part)
}

// spend says that a Worker has evaluated n rows in some time, and waits until it may go on, if
// all may have a part of the processors. It waits no longer than others do for processors.
func (p *pace) spend(ctx context.Context, n int, took time.Duration, part float64) error {
	now := time.Now()
	due := now.Add(p.charge(now, n, took, part))
	for ; now.Before(due) && p.isBusy(now); now = time.Now() {
		select {
		case <-time.After(min(due.Sub(now), lookEvery)):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// isBusy tells whether requests wait for processors.
func (p *pace) isBusy(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.look(now)
	return p.busy
}

// charge returns how long a Worker is to wait that has evaluated n rows.
func (p *pace) charge(now time.Time, n int, took time.Duration, part float64) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	// Time includes that of waiting for a processor. What a row costs is what it took when
	// there was little of that; it is believed for some time.
	one := took / time.Duration(n)
	if p.wall || p.cost == 0 {
		p.cost = one
	}
	p.cost = min(one, p.cost+p.cost/64+1)
	p.look(now)
	if !p.busy {
		p.free = now
		return 0
	}
	if p.free.Before(now) {
		p.free = now
	}
	p.free = p.free.Add(time.Duration(float64(p.cost) * float64(n) / (part * float64(processors()))))
	return p.free.Sub(now)
}

// look finds out whether requests wait for processors.
func (p *pace) look(now time.Time) {
	if now.Sub(p.looked) < lookEvery {
		return
	}
	p.looked = now
	if p.waits == nil {
		p.waits = []metrics.Sample{{Name: "/sched/latencies:seconds"}}
	}
	metrics.Read(p.waits)
	if p.waits[0].Value.Kind() != metrics.KindFloat64Histogram {
		return
	}
	h := p.waits[0].Value.Float64Histogram()
	if len(p.counts) != len(h.Counts) {
		p.counts = make([]uint64, len(h.Counts))
	}
	var all, long uint64
	for i, c := range h.Counts {
		n := c - p.counts[i]
		if all += n; h.Buckets[i] >= longWait.Seconds() && !math.IsInf(h.Buckets[i], -1) {
			long += n
		}
		p.counts[i] = c
	}
	p.busy = p.hadRequests() && all > 0 && float64(long) > waitShare*float64(all)
}

// hadRequests tells whether there were requests since it was called last.
func (p *pace) hadRequests() bool {
	if p.requests == nil {
		return true
	}
	before := p.asked
	p.asked = p.requests()
	return p.asked != before
}
