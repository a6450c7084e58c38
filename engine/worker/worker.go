package worker

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/tablet"
)

// Options are what a Worker works with. All are needed, except where said.
type Options struct {
	// Tablets returns the tablets on the log, in any order.
	Tablets func() []*tablet.Tablet
	// LogBytes is the size of the commit log at which the tablet that holds it
	// back is flushed.
	LogBytes int64
	// MajorCheck is how often idle tablets are looked at for something to
	// collect.
	MajorCheck time.Duration
	// Failed returns why the tablets are of no use any more, nil if they are.
	Failed func() error
	Log    *slog.Logger
}

// A Worker flushes and compacts the tablets on one commit log: one goroutine
// flushes, others compact. A flush waits while there are as many runs as there
// should be at most and compactions leave fewer, unless room is short: in memory,
// or in the commit log. There is always a goroutine for short compactions; those
// that end first have half of the processors, the others little time. None waits for
// a tablet that is paused: the others' memtables would fill up.
type Worker struct {
	o   Options
	env *tablet.Env

	ctx    context.Context
	cancel context.CancelFunc
	done   sync.WaitGroup

	flushes, compactions *queue
	pressed              chan struct{}
	debt                 debt // of look alone
}

// New returns a Worker of the tablets that share env, to which it gives Work and
// Memory: of memory bytes. It does nothing until it is started.
func New(o Options, env *tablet.Env, memory int64) *Worker {
	w := &Worker{o: o, env: env, pressed: make(chan struct{}, 1)}
	w.flushes, w.compactions = newQueue(1, func(*tablet.Tablet) int { return 0 }), newQueue(2, w.excess)
	w.ctx, w.cancel = context.WithCancel(context.Background())
	env.Work, env.Memory = w.Add, tablet.NewMemory(memory, w.Press)
	return w
}

// excess returns how many runs t has, or would have if its flushes did not wait,
// beyond what compactions aim at.
func (w *Worker) excess(t *tablet.Tablet) int {
	if w.env == nil {
		return 0
	}
	return max(0, t.Behind()-w.env.Options.TargetRuns)
}

// look returns how many requests the tablets have had, and the debt of the
// compactions. Pace calls it from one goroutine at a time.
func (w *Worker) look() (requests int64, debt float64) {
	most, written, delayed := 0, int64(0), false
	for _, t := range w.o.Tablets() {
		requests += t.Requests()
		written += t.RowsWritten()
		delayed = delayed || t.Delayed()
		most = max(most, t.Behind())
	}
	return requests, w.debt.look(time.Now(), written, delayed, most-w.env.Options.TargetRuns)
}

// A debt is what compactions owe to writers.
type debt struct {
	written int64 // rows, at the last look
	at      time.Time
}

// calm is for how long there are no writes before nobody will have to wait for compactions.
const calm = time.Second

// look returns the debt at now, when so many rows have been written, writers wait for
// compactions if delayed, and a tablet has so many runs more than those aim at. It is 0 two
// runs below that, 1 when flushes wait for them, for soon writers have to as well. Without
// writes it is 0: nothing is added to it, and compactions that took a whole processor after a
// load left scans a third of their speed.
func (d *debt) look(now time.Time, written int64, delayed bool, excess int) float64 {
	if delayed || written != d.written {
		d.written, d.at = written, now
	}
	if now.Sub(d.at) >= calm {
		return 0
	}
	return float64(excess+2) / 3
}

// Add asks for work on t.
func (w *Worker) Add(t *tablet.Tablet) {
	w.flushes.put(t)
	w.compactions.put(t)
}

// Press asks for room in the memory of memtables. Writers call it with locks
// held.
func (w *Worker) Press() {
	select {
	case w.pressed <- struct{}{}:
	default:
	}
}

// relieve makes the largest memtable flush, unless enough is being flushed
// already.
func (w *Worker) relieve() {
	var largest *tablet.Tablet
	var size, active int64
	for _, t := range w.o.Tablets() {
		n := t.MemtableBytes()
		active += n
		if n > size {
			largest, size = t, n
		}
	}
	if active > w.env.Memory.Limit()/2 {
		largest.Rotate()
	}
	if w.short() {
		for _, t := range w.o.Tablets() {
			if t.Held() {
				w.flushes.put(t)
			}
		}
	}
}

// Start begins the work, and whatever else is to go on until Stop.
func (w *Worker) Start(others ...func(context.Context)) {
	for _, other := range others {
		w.done.Go(func() { other(w.ctx) })
	}
	w.env.Pace.Look = w.look
	w.done.Go(w.relieveAlways)
	w.done.Go(func() { w.every(time.Second, w.Trim) })
	w.done.Go(func() { w.every(w.o.MajorCheck, w.check) })
	w.done.Add(1)
	go w.loop(w.flushes, w.flush)
	// As many as there may be long compactions, and one more.
	for range max(1, runtime.GOMAXPROCS(0)/2) + 1 {
		w.done.Add(1)
		go w.loop(w.compactions, w.compact)
	}
}

// Stop ends the work and waits until it has ended. A Worker that was not started
// may be stopped too.
func (w *Worker) Stop() {
	w.cancel()
	w.flushes.close()
	w.compactions.close()
	w.done.Wait()
}

// retryDelay is how long a tablet whose work failed is left alone.
const retryDelay = time.Second

// damagedDelay is the same for work that met corruption and could not tell in
// which SSTable, so that the next time will not leave that out. It will meet it
// again, after reading as much.
const damagedDelay = time.Minute

func (w *Worker) loop(q *queue, work func(*tablet.Tablet) error) {
	defer w.done.Done()
	for {
		t, ok := q.get()
		if !ok {
			return
		}
		err := work(t)
		q.done(t)
		if err == nil || w.ctx.Err() != nil || w.o.Failed() != nil || t.Failure() != nil {
			continue
		}
		level := w.o.Log.Error
		if errors.Is(err, fault.Exhausted) {
			level = w.o.Log.Warn // a full disk: it heals when there is room
		}
		level("background work failed, will try again", "tablet", uint64(t.ID()), "error", err)
		// Others need not wait for it.
		delay := retryDelay
		if errors.Is(err, fault.Corruption) && len(t.Quarantined()) == 0 {
			delay = damagedDelay
		}
		time.AfterFunc(delay, func() { q.put(t) })
	}
}

func (w *Worker) flush(t *tablet.Tablet) error {
	for {
		if t.Paused() {
			return nil // others need not wait for it
		}
		if !t.Room() && !w.short() {
			w.compactions.put(t)
			return nil
		}
		more, err := t.Flush(w.ctx)
		if err != nil || !more {
			return ignoreClosed(err)
		}
		w.compactions.put(t)
		w.Trim()
	}
}

// short tells whether memtables take so much room that none should wait.
func (w *Worker) short() bool {
	used, _ := w.env.Memory.Used()
	return used > w.env.Memory.Limit()/4*3 || w.env.Commit.Bytes() > w.o.LogBytes
}

func (w *Worker) compact(t *tablet.Tablet) error {
	if t.Paused() {
		return nil
	}
	more, err := t.Compact(w.ctx)
	if more {
		w.compactions.put(t)
		for _, t := range w.o.Tablets() {
			if t.Later() {
				w.compactions.put(t)
			}
		}
	}
	if more || err != nil || t.Room() {
		w.flushes.put(t) // it may have waited
	}
	return ignoreClosed(err)
}

// ignoreClosed drops the error of work on a tablet that was closed meanwhile.
func ignoreClosed(err error) error {
	if errors.Is(err, tablet.ErrClosed) || errors.Is(err, tablet.ErrReplaced) {
		return nil
	}
	return err
}

// Trim deletes the part of the commit log that no tablet needs, and makes the
// tablet that needs the oldest part flush when the log is too long.
func (w *Worker) Trim() {
	redo := w.env.Commit.End()
	var oldest *tablet.Tablet
	for _, t := range w.o.Tablets() {
		if pos, ok := t.RedoPoint(); ok && pos.Less(redo) {
			redo, oldest = pos, t
		}
	}
	if oldest != nil && oldest.Failure() != nil {
		oldest = nil // it cannot be flushed, and the log is kept for it
	}
	if err := w.env.Commit.Trim(redo); err != nil {
		w.o.Log.Warn("trim commit log", "before", redo, "error", err)
	}
	if w.env.Commit.Bytes() > w.o.LogBytes && oldest != nil {
		oldest.Rotate()
		w.flushes.put(oldest)
	}
}

// relieveAlways relieves when it is pressed. It does nothing else: what waits for a tablet, or
// for METADATA, must not keep the writers of all others waiting for memory.
func (w *Worker) relieveAlways() {
	for {
		select {
		case <-w.ctx.Done():
			return
		case <-w.pressed:
			w.relieve()
		}
	}
}

// every calls do once in each period.
func (w *Worker) every(period time.Duration, do func()) {
	ticks := time.NewTicker(period)
	defer ticks.Stop()
	for {
		select {
		case <-w.ctx.Done():
			return
		case <-ticks.C:
			do()
		}
	}
}

// check looks at every tablet: a rule by age makes garbage of cells without any write, and
// retention of changes.
func (w *Worker) check() {
	for _, t := range w.o.Tablets() {
		w.compactions.put(t)
		if err := ignoreClosed(t.TrimStream(w.ctx)); err != nil && w.ctx.Err() == nil && w.o.Failed() == nil {
			w.o.Log.Warn("let go of old changes", "tablet", t.Name(), "error", err)
		}
	}
}
