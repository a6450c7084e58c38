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
		w := New(Options{Failed: func() error { return nil }, Log: slog.New(slog.DiscardHandler)})
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
