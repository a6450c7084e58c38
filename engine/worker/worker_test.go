package worker

import (
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trestledb/trestle/engine/tablet"
)

// TestWorkerRetries: a tablet whose work fails is tried again later, and holds
// up no other.
func TestWorkerRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := New(Options{Failed: func() error { return nil }, Log: slog.New(slog.DiscardHandler)}, new(tablet.Env), 1)
		var bad, good tablet.Tablet
		start := time.Now()
		done := map[*tablet.Tablet][]time.Duration{}
		w.done.Add(1)
		go w.loop(w.flushes, func(tt *tablet.Tablet) error {
			done[tt] = append(done[tt], time.Since(start))
			if tt == &bad && len(done[tt]) < 3 {
				return errors.New("broken")
			}
			return nil
		})
		w.flushes.put(&bad)
		w.flushes.put(&good)
		time.Sleep(time.Minute)
		w.Stop()
		if len(done[&good]) != 1 || done[&good][0] != 0 {
			t.Errorf("the good tablet's work was done after %v", done[&good])
		}
		if len(done[&bad]) != 3 || done[&bad][2] != 2*retryDelay {
			t.Errorf("the bad tablet's work was tried after %v", done[&bad])
		}
	})
}

// TestQueue: the most urgent first, each once, and none to two goroutines.
func TestQueue(t *testing.T) {
	ts := make([]tablet.Tablet, 4)
	rank := map[*tablet.Tablet]int{&ts[2]: 5}
	q := newQueue(1, func(t *tablet.Tablet) int { return rank[t] })
	place := func(got *tablet.Tablet) int {
		for i := range ts {
			if got == &ts[i] {
				return i
			}
		}
		return -1
	}
	get := func(want int) *tablet.Tablet {
		t.Helper()
		got, ok := q.get()
		if !ok || place(got) != want {
			t.Fatalf("got tablet %d, %v, want %d", place(got), ok, want)
		}
		return got
	}
	for i := range 3 {
		q.put(&ts[i])
		q.put(&ts[i])
	}
	rank[&ts[1]] = 7
	q.put(&ts[1]) // has become urgent
	a := get(1)
	q.put(a) // while it is worked on
	get(2)
	get(0)
	if len(q.order) != 0 {
		t.Fatalf("%d are left", len(q.order))
	}
	q.done(a)
	q.done(get(1))
	q.close()
	if _, ok := q.get(); ok {
		t.Error("a closed queue gives a tablet")
	}
}

// TestDebt: what compactions owe grows with the runs while there are writes, and is nothing
// a second after the last.
func TestDebt(t *testing.T) {
	var d debt
	now := time.Now()
	for _, c := range []struct {
		after   time.Duration
		written int64
		delayed bool
		excess  int
		want    float64
	}{
		{0, 0, false, 3, 0}, // nothing was written yet
		{time.Hour, 1, false, -2, 0},
		{time.Millisecond, 2, false, -1, 1. / 3},
		{time.Millisecond, 3, false, 1, 1},
		{calm - time.Millisecond, 3, false, 1, 1},
		{time.Millisecond, 3, false, 1, 0},
		{time.Hour, 3, false, 1, 0},
		{time.Millisecond, 4, false, 1, 1},
		{calm, 4, true, 1, 1}, // all writers wait
		{time.Hour, 4, true, 1, 1},
		{calm, 4, false, 1, 0},
		{calm, 2, false, 1, 1}, // a tablet that was written to was closed
		{calm, 2, false, 1, 0},
	} {
		now = now.Add(c.after)
		if got := d.look(now, c.written, c.delayed, c.excess); got != c.want {
			t.Errorf("%+v: debt %v", c, got)
		}
	}
}
