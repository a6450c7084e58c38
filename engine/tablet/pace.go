package tablet

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A Pace makes background work give way to requests. While there are requests,
// the work takes a part of one processor's (and the disk's) time only, which
// grows with the debt. What is left undone makes every read dearer, and in the
// end stops writes. With a debt of 1, or without requests, nothing is held
// back, so the work never falls behind for good. Of several compactions those
// that end first go first. The zero Pace holds nothing back.
type Pace struct {
	// Look returns how many requests there have been, and the debt, 0 to 1.
	Look func() (requests int64, debt float64)

	mu struct {
		sync.Mutex
		at       time.Time // of the last look
		requests int64
		busy     bool
		debt     float64
		// compactions are those that are under way, and long the number of long
		// ones.
		compactions []*pacer
		long        int
	}
	yielded atomic.Int64
}

// processors is how many compactions have a processor of their own.
func processors() int { return max(1, runtime.GOMAXPROCS(0)/2) }

// behindShare is what a compaction takes of the time that it could have while
// others, which will end sooner, have the processors.
const behindShare = 0.25

const (
	// paceLook is how often requests and debt are looked at.
	paceLook = 20 * time.Millisecond
	// paceStep is how many bytes of entries are worked on between two chances to
	// give way: some 200 µs of work.
	paceStep = 64 << 10
	// paceSleep is the least sleep: timers are coarse.
	paceSleep = time.Millisecond
)

// beginLong gives a long compaction its place. It returns false to a polite one
// if there are enough of them: short ones, which keep runs few, always find a
// goroutine.
func (p *Pace) beginLong(polite bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if polite && p.mu.long >= processors() {
		return false
	}
	p.mu.long++
	return true
}

func (p *Pace) endLong() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.long--
}

// Yielded returns how long background work has waited for requests.
func (p *Pace) Yielded() time.Duration { return time.Duration(p.yielded.Load()) }

// share returns the part of the time that w may take now.
func (p *Pace) share(w *pacer) float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	part := 1.0
	if w.progress != nil {
		sooner, left := 0, w.progress.left()
		for _, other := range p.mu.compactions {
			if other != w && other.progress.left() < left {
				sooner++
			}
		}
		if sooner >= processors() {
			part = behindShare
		}
	}
	if now := time.Now(); now.Sub(p.mu.at) >= paceLook {
		requests, debt := p.Look()
		p.mu.busy = !p.mu.at.IsZero() && requests != p.mu.requests
		p.mu.at, p.mu.requests, p.mu.debt = now, requests, min(max(debt, 0), 1)
	}
	if !p.mu.busy {
		return part
	}
	return part * (w.least + (1-w.least)*p.mu.debt)
}

// A pacer holds back one piece of work. A nil pacer does not.
type pacer struct {
	p        *Pace
	least    float64   // its share while there are requests and no debt
	progress *progress // of a compaction
	done     int64     // bytes since the last step
	since    time.Time // the end of the last step
	owed     time.Duration
}

// pacer returns one for work that may take least of a processor's time at the
// least; with 1 it only lets goroutines go first that are ready to run.
func (p *Pace) pacer(least float64) *pacer {
	if p.Look == nil {
		return nil
	}
	return &pacer{p: p, least: least, since: time.Now()}
}

// compaction returns a pacer for a compaction, until end.
func (p *Pace) compaction(least float64, progress *progress) *pacer {
	w := p.pacer(least)
	if w != nil {
		w.progress = progress
		p.mu.Lock()
		defer p.mu.Unlock()
		p.mu.compactions = append(p.mu.compactions, w)
	}
	return w
}

func (w *pacer) end() {
	if w == nil {
		return
	}
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	w.p.mu.compactions = slices.DeleteFunc(w.p.mu.compactions, func(x *pacer) bool { return x == w })
}

// worked notes that n bytes of entries were worked on, and gives way if it is
// time. An error is that of ctx.
func (w *pacer) worked(ctx context.Context, n int64) error {
	if w == nil {
		return nil
	}
	if w.done += n; w.done < paceStep {
		return nil
	}
	w.done = 0
	share := w.p.share(w)
	w.owed += time.Duration(float64(time.Since(w.since)) * (1/share - 1))
	if share >= 1 {
		w.owed = 0
	}
	// Goroutines that wait for the processor go first; without this they wait until the
	// scheduler preempts, after 10 ms.
	runtime.Gosched()
	w.since = time.Now()
	if w.owed < paceSleep {
		return nil
	}
	asleep := w.since
	// A step that took long, because the disk did, is not paid for all at once.
	sleep := time.NewTimer(min(w.owed, 100*paceSleep))
	defer sleep.Stop()
	select {
	case <-sleep.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	w.since = time.Now()
	slept := w.since.Sub(asleep)
	w.p.yielded.Add(int64(slept))
	w.owed = max(0, min(w.owed-slept, 100*paceSleep))
	return nil
}

// A bucket delays writers, so that together they keep to a rate.
type bucket struct {
	mu   sync.Mutex
	free time.Time // when what was taken so far is paid for
}

// take takes n bytes of what comes at rate bytes per second.
func (b *bucket) take(n int64, rate float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if b.free.Before(now) {
		b.free = now
	}
	b.free = b.free.Add(time.Duration(float64(n) / rate * float64(time.Second)))
}

// wait returns how long to wait until everything is paid for.
func (b *bucket) wait() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return time.Until(b.free)
}
