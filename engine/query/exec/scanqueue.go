package exec

import (
	"context"
	"io"
	"sync"
)

// aheadBatches and aheadBytes are how far a reading goroutine may be ahead of the
// consumer. The engine lets go of its blocks, and seeks anew, whenever it waits.
// That costs some 10 µs, so it is not done for each batch.
const (
	aheadBatches = 6
	aheadBytes   = 1 << 20
)

// A scanQueue takes batches from the goroutines that read to the consumer.
type scanQueue struct {
	mu sync.Mutex
	// filled wakes the consumer, and emptied those that read.
	filled, emptied sync.Cond
	ready           []*scanBatch
	bytes           int // in ready
	free            []*scanBatch
	left            []*scanBatch // what goroutines had that ended
	running         int          // goroutines that read
	waiting         bool
	err             error
	stopped         bool
}

func newScanQueue() *scanQueue {
	q := &scanQueue{}
	q.filled.L, q.emptied.L = &q.mu, &q.mu
	return q
}

// crowded tells whether readers are to wait. The caller has the lock.
func (q *scanQueue) crowded() bool { return len(q.ready) >= aheadBatches || q.bytes >= aheadBytes }

// put hands a batch over. It returns one to go on with, nil if there is none free, and
// whether the reader should pause when it can.
func (q *scanQueue) put(b *scanBatch) (next *scanBatch, full bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ready = append(q.ready, b)
	q.bytes += b.size()
	if q.waiting {
		q.filled.Signal()
	}
	if n := len(q.free); n > 0 {
		next, q.free = q.free[n-1], q.free[:n-1]
	}
	return next, q.crowded() || q.stopped
}

// starving tells whether the consumer waits and there is nothing for it.
func (q *scanQueue) starving() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waiting && len(q.ready) == 0
}

// wait returns when there is room for more.
func (q *scanQueue) wait(ctx context.Context) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.crowded() && !q.stopped && q.err == nil {
		q.emptied.Wait()
	}
	switch {
	case q.err != nil:
		return q.err
	case q.stopped:
		return context.Cause(ctx)
	}
	return nil
}

// get returns the next batch, io.EOF at the end. done is the batch that the consumer
// has finished with, nil for none.
func (q *scanQueue) get(ctx context.Context, done *scanBatch) (*scanBatch, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if done != nil && done.piece == nil {
		q.free = append(q.free, done)
	}
	for len(q.ready) == 0 && q.err == nil && q.running > 0 && !q.stopped {
		q.waiting = true
		q.filled.Wait()
		q.waiting = false
	}
	switch {
	case q.stopped:
		return nil, context.Cause(ctx)
	case len(q.ready) > 0 && q.err == nil:
		b := q.ready[0]
		q.ready = append(q.ready[:0], q.ready[1:]...)
		q.bytes -= b.size()
		if !q.crowded() {
			q.emptied.Broadcast()
		}
		return b, nil
	case q.err != nil:
		return nil, q.err
	}
	return nil, io.EOF
}

// end notes that a goroutine has ended, with a batch that it did not hand over.
func (q *scanQueue) end(err error, left *scanBatch) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.running--
	q.left = append(q.left, left)
	if err != nil && q.err == nil {
		q.err = err
		q.emptied.Broadcast()
	}
	q.filled.Signal()
}

// take returns a batch that is free, nil if there is none.
func (q *scanQueue) take() *scanBatch {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := len(q.free)
	if n == 0 {
		return nil
	}
	b := q.free[n-1]
	q.free = q.free[:n-1]
	return b
}

// stop ends all waiting: the context has ended.
func (q *scanQueue) stop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stopped = true
	q.filled.Broadcast()
	q.emptied.Broadcast()
}
