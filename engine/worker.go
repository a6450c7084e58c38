package engine

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/tablet"
)

// A worker flushes and compacts the tablets on one commit log: one goroutine
// flushes, so that a long compaction never keeps a memtable waiting, another
// compacts.
type worker struct {
	s       *Store
	env     *tablet.Env
	tablets func() []*tablet.Tablet

	ctx    context.Context
	cancel context.CancelFunc
	done   sync.WaitGroup

	flushes, compactions *queue
	pressed              chan struct{}
}

func newWorker(s *Store) *worker {
	w := &worker{s: s, flushes: newQueue(), compactions: newQueue(), pressed: make(chan struct{}, 1)}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	return w
}

// add asks for work on t.
func (w *worker) add(t *tablet.Tablet) {
	w.flushes.put(t)
	w.compactions.put(t)
}

// press asks for room in the memory of memtables. Writers call it with locks
// held.
func (w *worker) press() {
	select {
	case w.pressed <- struct{}{}:
	default:
	}
}

// relieve makes the largest memtable flush, unless enough is being flushed
// already.
func (w *worker) relieve() {
	var largest *tablet.Tablet
	var size, active int64
	for _, t := range w.tablets() {
		n := t.MemtableBytes()
		active += n
		if n > size {
			largest, size = t, n
		}
	}
	if active > w.env.Memory.Limit()/2 {
		largest.Rotate()
	}
}

func (w *worker) start() {
	w.done.Add(4)
	go w.split()
	go w.loop(w.flushes, w.flush)
	go w.loop(w.compactions, w.compact)
	go w.tick()
}

func (w *worker) stop() {
	w.cancel()
	w.flushes.close()
	w.compactions.close()
	w.done.Wait()
}

// retryDelay is how long a tablet whose work failed is left alone.
const retryDelay = time.Second

// damagedDelay is the same for work that met corruption: it will again, after
// reading as much, until somebody has done something about it.
const damagedDelay = time.Minute

func (w *worker) loop(q *queue, work func(*tablet.Tablet) error) {
	defer w.done.Done()
	for {
		t, ok := q.get()
		if !ok {
			return
		}
		err := work(t)
		if err == nil || w.ctx.Err() != nil || w.s.Err() != nil {
			continue
		}
		level := w.s.o.Log.Error
		if errors.Is(err, fault.Exhausted) {
			level = w.s.o.Log.Warn // a full disk: it heals when there is room
		}
		level("background work failed, will try again", "tablet", uint64(t.ID()), "error", err)
		// Others need not wait for it.
		delay := retryDelay
		if errors.Is(err, fault.Corruption) {
			delay = damagedDelay
		}
		time.AfterFunc(delay, func() { q.put(t) })
	}
}

func (w *worker) flush(t *tablet.Tablet) error {
	for {
		more, err := t.Flush(w.ctx)
		if err != nil || !more {
			return ignoreClosed(err)
		}
		w.compactions.put(t)
		w.trim()
	}
}

func (w *worker) compact(t *tablet.Tablet) error {
	more, err := t.Compact(w.ctx)
	if more {
		w.compactions.put(t)
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

// trim deletes the part of the commit log that no tablet needs, and makes the
// tablet that needs the oldest part flush when the log is too long.
func (w *worker) trim() {
	redo := w.env.Commit.End()
	var oldest *tablet.Tablet
	for _, t := range w.tablets() {
		if pos, ok := t.RedoPoint(); ok && pos.Less(redo) {
			redo, oldest = pos, t
		}
	}
	if err := w.env.Commit.Trim(redo); err != nil {
		w.s.o.Log.Warn("trim commit log", "before", redo, "error", err)
	}
	if w.env.Commit.Bytes() > w.s.o.LogBytes && oldest != nil {
		oldest.Rotate()
	}
}

// tick looks at every tablet now and then: a rule by age makes garbage of
// cells without any write. It also purges deleted tables and bounds the log.
func (w *worker) tick() {
	defer w.done.Done()
	majors := time.NewTicker(w.s.o.MajorCheck)
	defer majors.Stop()
	trims := time.NewTicker(time.Second)
	defer trims.Stop()
	for {
		select {
		case <-w.ctx.Done():
			return
		case <-w.pressed:
			w.relieve()
		case <-trims.C:
			w.trim()
		case <-majors.C:
			for _, t := range w.tablets() {
				w.compactions.put(t)
			}
			if w == w.s.work {
				w.s.purge(w.ctx)
			}
		}
	}
}

// split splits tablets that have grown too large, or take too much of the load.
func (w *worker) split() {
	defer w.done.Done()
	if w != w.s.work {
		return // the METADATA tablet stays whole
	}
	hot := map[*tablet.Tablet]time.Time{}
	checks := time.NewTicker(w.s.o.SplitCheck)
	defer checks.Stop()
	for {
		select {
		case <-w.ctx.Done():
			return
		case <-checks.C:
			w.s.splitLarge(w.ctx)
			w.s.splitHot(w.ctx, hot)
		}
	}
}

// A queue holds each tablet at most once.
type queue struct {
	mu     sync.Mutex
	ready  sync.Cond
	order  []*tablet.Tablet
	queued map[*tablet.Tablet]bool
	closed bool
}

func newQueue() *queue {
	q := &queue{queued: map[*tablet.Tablet]bool{}}
	q.ready.L = &q.mu
	return q
}

func (q *queue) put(t *tablet.Tablet) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || q.queued[t] {
		return
	}
	q.queued[t] = true
	q.order = append(q.order, t)
	q.ready.Signal()
}

func (q *queue) get() (*tablet.Tablet, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.order) == 0 && !q.closed {
		q.ready.Wait()
	}
	if q.closed {
		return nil, false
	}
	t := q.order[0]
	q.order = q.order[1:]
	delete(q.queued, t)
	return t, true
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.ready.Broadcast()
}
