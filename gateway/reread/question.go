package reread

import (
	"context"
	"sync"
	"time"
)

const (
	// pause is from one asking to the next. An asking lasts no longer either.
	pause = time.Second
	// wait is how long callers wait for an answer.
	wait = 250 * time.Millisecond
	// silence is for how long after an asking without an answer only the one that asks
	// next waits.
	silence = 4 * time.Second
)

// A Question is asked by one caller at a time, and once a second at most. It belongs to
// what is known, which an answer replaces. Its zero value was never asked.
type Question[T any] struct {
	mu   sync.Mutex
	last *asking[T]
}

// An asking is one reading that is on its way, or has ended.
type asking[T any] struct {
	at, began time.Time // by the caller's clock and by ours
	// silent says that the asking before had no answer, and not long ago.
	silent bool
	done   chan struct{} // closed once v and err are set
	v      T
	err    error
}

// Ask returns what read returns. It is not ok if there is no answer in time: then the
// caller goes on with what it knows. One caller asks and waits; if patient, others wait
// for it, unless there was no answer lately either. The only error is that of ctx.
func (q *Question[T]) Ask(ctx context.Context, now time.Time, patient bool, read func(context.Context) (T, error)) (v T, ok bool, err error) {
	a, mine := q.ask(ctx, now, read)
	if mine || patient && !a.silent {
		timer := time.NewTimer(wait - time.Since(a.began))
		defer timer.Stop()
		select {
		case <-a.done:
		case <-timer.C:
		case <-ctx.Done():
			return v, false, context.Cause(ctx)
		}
	}
	select {
	case <-a.done:
		return a.v, a.err == nil, nil
	default:
		return v, false, nil
	}
}

// ask returns the asking that counts at now, and whether it began just now.
func (q *Question[T]) ask(ctx context.Context, now time.Time, read func(context.Context) (T, error)) (a *asking[T], mine bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	a = &asking[T]{at: now, began: time.Now(), done: make(chan struct{})}
	if last := q.last; last != nil {
		select {
		case <-last.done:
			if now.Sub(last.at) < pause {
				return last, false
			}
			a.silent = last.err != nil && now.Sub(last.at) < silence
		default:
			return last, false
		}
	}
	q.last = a
	go func() {
		defer close(a.done)
		one, cancel := context.WithTimeout(context.WithoutCancel(ctx), pause)
		defer cancel()
		a.v, a.err = read(one)
	}()
	return a, true
}
