package worker

import (
	"sync"

	"github.com/trestledb/trestle/engine/tablet"
)

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
