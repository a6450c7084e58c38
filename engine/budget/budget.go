package budget

import (
	"context"
	"slices"
	"sync"
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
	limit int64

	mu      sync.Mutex
	used    int64
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
func (b *Budget) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// Try takes n bytes if they are there. While others wait it takes them from a
// quarter of the budget only: small answers go on, and who waits has his turn.
func (b *Budget) Try(n int64) bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	most := b.limit
	if len(b.waiting) > 0 {
		most /= 4
	}
	if b.used+n > most {
		return false
	}
	b.used += n
	return true
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
	if len(b.waiting) == 0 && b.used+n <= b.limit {
		b.used += n
		b.mu.Unlock()
		return nil
	}
	w := &waiter{n: n, given: make(chan struct{})}
	b.waiting = append(b.waiting, w)
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
		b.used -= n
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
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n
	b.give()
}

// give serves those who wait. mu is held.
func (b *Budget) give() {
	for len(b.waiting) > 0 && b.used+b.waiting[0].n <= b.limit {
		w := b.waiting[0]
		b.waiting = slices.Delete(b.waiting, 0, 1)
		b.used += w.n
		close(w.given)
	}
}

// Busy returns the error of a call that found no room.
func Busy() error {
	return &fault.Error{Kind: fault.Exhausted, Reason: "REQUEST_MEMORY_EXHAUSTED", RetryAfter: RetryAfter,
		Msg: "The memory for requests and answers is in use, try again"}
}
