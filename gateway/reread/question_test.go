package reread

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A source answers with its value, or is silent until no caller listens any more.
type source struct {
	value, asked atomic.Int64
	silent       atomic.Bool
}

func (s *source) read(ctx context.Context) (int64, error) {
	if s.asked.Add(1); s.silent.Load() {
		<-ctx.Done()
		return 0, context.Cause(ctx)
	}
	return s.value.Load(), nil
}

// TestSilent: one asks in a second, and none waits for longer than wait, not even all
// that come together.
func TestSilent(t *testing.T) {
	var s source
	s.silent.Store(true)
	var q Question[int64]
	now := time.Now()
	start := time.Now()
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			for range 100 {
				if v, ok, err := q.Ask(t.Context(), now, i%2 == 0, s.read); ok || err != nil {
					t.Error(v, ok, err)
				}
			}
		})
	}
	wg.Wait()
	if n, d := s.asked.Load(), time.Since(start); n != 1 || d > 20*wait {
		t.Errorf("asked %d times in %v", n, d)
	}
	<-q.last.done
	// A caller that comes soon afterwards does not wait.
	now = now.Add(pause)
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		_, _, _ = q.Ask(t.Context(), now, true, s.read)
	}()
	for s.asked.Load() == 1 {
		time.Sleep(time.Millisecond)
	}
	if a, mine := q.ask(t.Context(), now, s.read); mine || !a.silent {
		t.Errorf("mine %v, silent %v", mine, a.silent)
	}
	<-asked
	<-q.last.done
	if a, mine := q.ask(t.Context(), now.Add(silence), s.read); !mine || a.silent {
		t.Errorf("long afterwards: mine %v, silent %v", mine, a.silent)
	}
}

// TestAnswer: the patient have the answer of the one that asks, and a caller that is gone
// ends no question.
func TestAnswer(t *testing.T) {
	var s source
	s.value.Store(7)
	var q Question[int64]
	now := time.Now()
	gone, cancel := context.WithCancel(t.Context())
	begun, answer := make(chan struct{}), make(chan struct{})
	first := make(chan error, 1)
	go func() {
		_, _, err := q.Ask(gone, now, false, func(ctx context.Context) (int64, error) {
			close(begun)
			<-answer
			return s.read(ctx)
		})
		first <- err
	}()
	<-begun
	if _, ok, err := q.Ask(t.Context(), now, false, s.read); ok || err != nil {
		t.Errorf("answered %v, %v", ok, err)
	}
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	close(answer)
	if v, ok, err := q.Ask(t.Context(), now, true, s.read); v != 7 || !ok || err != nil {
		t.Errorf("%d, %v, %v", v, ok, err)
	}
	s.value.Store(8)
	if v, ok, err := q.Ask(t.Context(), now.Add(pause), false, s.read); v != 8 || !ok || err != nil {
		t.Errorf("%d, %v, %v, a second later", v, ok, err)
	}
	if n := s.asked.Load(); n != 2 {
		t.Errorf("asked %d times", n)
	}
}
