package budget

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/trestledb/trestle/engine/fault"
)

// Whoever waits is served in order, the budget is never exceeded, and all of it
// is there in the end.
func TestBudget(t *testing.T) {
	b := New(100)
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			for j := range 100 {
				n := int64((i*j)%100 + 1)
				if err := b.Acquire(t.Context(), n); err != nil {
					t.Error(err)
					return
				}
				if used := b.Used(); used > 100 || used < n {
					t.Errorf("%d bytes are used, %d of them here", used, n)
				}
				b.Release(n)
			}
		})
	}
	wg.Wait()
	if used := b.Used(); used != 0 {
		t.Errorf("%d bytes are used in the end", used)
	}
}

func TestBudgetRefuses(t *testing.T) {
	b := New(100)
	var f *fault.Error
	if b.Short() {
		t.Error("short, with no caller")
	}
	if err := b.Acquire(t.Context(), 101); !errors.As(err, &f) || f.Kind != fault.Exhausted || f.RetryAfter != 0 {
		t.Errorf("more than there is: %v", err)
	}
	if !b.Try(80) || b.Try(21) {
		t.Error("Try goes by something else than the room")
	}
	if !b.Short() {
		t.Error("not short, with a caller refused")
	}
	if b.refused.Add(-int64(2 * RetryAfter)); b.Short() {
		t.Error("short, with no caller for two seconds")
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- b.Acquire(ctx, 90) }()
	for waits := false; !waits; {
		b.mu.Lock()
		waits = len(b.waiting) == 1
		b.mu.Unlock()
	}
	if !b.Short() {
		t.Error("not short, with a caller that waits")
	}
	if b.Try(1) {
		t.Error("Try passes somebody who waits, with more than a quarter in use")
	}
	small := make(chan error)
	go func() { small <- b.Acquire(t.Context(), 20) }() // behind the other
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("a canceled caller: %v", err)
	}
	if err := <-small; err != nil {
		t.Error(err)
	}
	b.Release(100)
	if b.Used() != 0 {
		t.Errorf("%d bytes are used in the end", b.Used())
	}
}
