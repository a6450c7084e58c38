package worker

import (
	"container/heap"
	"sync"

	"github.com/trestledb/trestle/engine/tablet"
)

// A queue holds each tablet at most once, the most urgent first, and gives each
// to so many goroutines at a time.
type queue struct {
	most int
	// urgency ranks tablets; those of the same come in the order of put.
	urgency func(*tablet.Tablet) int

	mu     sync.Mutex
	ready  sync.Cond
	order  items
	queued map[*tablet.Tablet]*item
	taken  map[*tablet.Tablet]*taken
	last   uint64
	closed bool
}

// taken is a tablet that goroutines got and are not done with.
type taken struct {
	by    int
	again bool // it was put when no more were to have it
}

type item struct {
	t       *tablet.Tablet
	urgency int
	seq     uint64
	at      int // in items
}

func newQueue(most int, urgency func(*tablet.Tablet) int) *queue {
	q := &queue{most: most, urgency: urgency, queued: map[*tablet.Tablet]*item{}, taken: map[*tablet.Tablet]*taken{}}
	q.ready.L = &q.mu
	return q
}

func (q *queue) put(t *tablet.Tablet) {
	urgency := q.urgency(t)
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	if k := q.taken[t]; k != nil && k.by == q.most {
		k.again = true
		return
	}
	q.putLocked(t, urgency)
}

func (q *queue) putLocked(t *tablet.Tablet, urgency int) {
	if it := q.queued[t]; it != nil {
		if it.urgency != urgency {
			it.urgency = urgency
			heap.Fix(&q.order, it.at)
		}
		return
	}
	q.last++
	it := &item{t: t, urgency: urgency, seq: q.last}
	q.queued[t] = it
	heap.Push(&q.order, it)
	q.ready.Signal()
}

// get waits for a tablet, which the caller gives to done.
func (q *queue) get() (*tablet.Tablet, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.order) == 0 && !q.closed {
		q.ready.Wait()
	}
	if q.closed {
		return nil, false
	}
	t := heap.Pop(&q.order).(*item).t
	delete(q.queued, t)
	if q.taken[t] == nil {
		q.taken[t] = new(taken)
	}
	q.taken[t].by++
	return t, true
}

func (q *queue) done(t *tablet.Tablet) {
	urgency := q.urgency(t)
	q.mu.Lock()
	defer q.mu.Unlock()
	k := q.taken[t]
	if k.by--; k.by == 0 {
		delete(q.taken, t)
	}
	if k.again && !q.closed {
		k.again = false
		q.putLocked(t, urgency)
	}
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.ready.Broadcast()
}

// items implements heap.Interface.
type items []*item

func (s items) Len() int { return len(s) }
func (s items) Less(i, j int) bool {
	if s[i].urgency != s[j].urgency {
		return s[i].urgency > s[j].urgency
	}
	return s[i].seq < s[j].seq
}
func (s items) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].at, s[j].at = i, j
}
func (s *items) Push(x any) {
	it := x.(*item)
	it.at = len(*s)
	*s = append(*s, it)
}
func (s *items) Pop() any {
	old := *s
	it := old[len(old)-1]
	old[len(old)-1] = nil
	*s = old[:len(old)-1]
	return it
}
