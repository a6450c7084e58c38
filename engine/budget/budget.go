package budget

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trestledb/trestle/engine/fault"
)

// patience is how long a caller without a deadline waits.
const patience = time.Minute

// RetryAfter is when to try again what found no room.
const RetryAfter = time.Second

// A Budget is a number of bytes. A nil Budget has no bound. It is safe for
// concurrent use.
type Budget struct {
	limit   int64
	used    atomic.Int64
	queue   atomic.Int32 // len(waiting)
	refused atomic.Int64 // when Try found no room for the last time, Unix nanoseconds

	mu      sync.Mutex
	waiting []*waiter // first come, first served
}

type waiter struct {
	n     int64
	given chan struct{}
}

// New returns a Budget of limit bytes.
func New(limit int64) *Budget { return &Budget{limit: limit} }

// Limit returns all bytes of the budget.
func (b *Budget) Limit() int64 { return b.limit }

// Used returns the bytes that are taken.
func (b *Budget) Used() int64 { return b.used.Load() }

// Try takes n bytes if they are there. While others wait it takes them from a
// quarter of the budget only: small answers go on, and the first in the queue has
// its turn.
func (b *Budget) Try(n int64) bool {
	if b == nil {
		return true
	}
	most := b.limit
	if b.queue.Load() > 0 {
		most /= 4
	}
	if b.take(n, most) {
		return true
	}
	b.refused.Store(time.Now().UnixNano())
	return false
}

// Short tells whether bytes are wanted that are not there: callers wait, or one was refused
// within two seconds, in which it may have tried again.
func (b *Budget) Short() bool {
	return b != nil && (b.queue.Load() > 0 || time.Since(time.Unix(0, b.refused.Load())) < 2*RetryAfter)
}

func (b *Budget) take(n, most int64) bool {
	for {
		used := b.used.Load()
		if used+n > most {
			return false
		}
		if b.used.CompareAndSwap(used, used+n) {
			return true
		}
	}
}

// Acquire takes n bytes, and waits for them until ctx is done, a minute at most.
// Callers that hold bytes of the budget use Try. The error is Exhausted; if the
// budget can never have n bytes it comes at once, and without a time to retry.
func (b *Budget) Acquire(ctx context.Context, n int64) error {
	if b == nil {
		return nil
	}
	if n > b.limit {
		return fault.New(fault.Exhausted, "The request needs %d bytes of memory, of %d that requests have; see --memory", n, b.limit)
	}
	b.mu.Lock()
	w := &waiter{n: n, given: make(chan struct{})}
	b.waiting = append(b.waiting, w)
	b.give() // to this one too, if it is the first
	b.mu.Unlock()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	select {
	case <-w.given:
		return nil
	case <-ctx.Done():
	case <-timeout.C:
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.Index(b.waiting, w); i >= 0 {
		b.waiting = slices.Delete(b.waiting, i, i+1)
	} else { // it was given meanwhile
		b.used.Add(-n)
	}
	b.give() // a smaller one may be next
	if err := ctx.Err(); err != nil {
		return err
	}
	return Busy()
}

// Release gives n bytes back.
func (b *Budget) Release(n int64) {
	if b == nil || n == 0 {
		return
	}
	// A caller that begins to wait says so before it looks for room for the last time:
	// either it sees these bytes, or this sees it.
	b.used.Add(-n)
	if b.queue.Load() > 0 {
		b.mu.Lock()
		b.give()
		b.mu.Unlock()
	}
}

// give serves the callers that wait. mu is held.
func (b *Budget) give() {
	b.queue.Store(int32(len(b.waiting)))
	for len(b.waiting) > 0 && b.take(b.waiting[0].n, b.limit) {
		w := b.waiting[0]
		b.waiting = slices.Delete(b.waiting, 0, 1)
		b.queue.Store(int32(len(b.waiting)))
		close(w.given)
	}
}

// Busy returns the error of a call that found no room.
func Busy() error {
	return &fault.Error{Kind: fault.Exhausted, Reason: "REQUEST_MEMORY_EXHAUSTED", RetryAfter: RetryAfter,
		Msg: "The memory for requests and answers is in use, try again"}
}

// ReadsBusy returns the error of a read that found no room for what. The caller
// resumes after the last row it got.
func ReadsBusy(what string) error {
	return &fault.Error{Kind: fault.Unavailable, Reason: "READ_BUFFERS_EXHAUSTED", RetryAfter: RetryAfter,
		Msg: "The memory for " + what + " is in use, try again"}
}
