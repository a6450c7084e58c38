package tablet

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/trestledb/trestle/engine/fault"
)

// Who waits until a compaction ends does so, while others look in vain for one
// more that could begin.
func TestJobsWait(t *testing.T) {
	var j jobs
	under, thought := new(work), new(work)
	j.add(under)
	ended, n := j.wait()
	if n != 1 {
		t.Errorf("%d compactions are under way", n)
	}
	j.add(thought)
	j.remove(thought, true)
	select {
	case <-ended:
		t.Error("a compaction that was only thought of has ended")
	default:
	}
	j.remove(under, false)
	select {
	case <-ended:
	default:
		t.Error("nobody is told that a compaction has ended")
	}
}

// until waits for something that is to be so within a minute.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for start := time.Now(); !is(); time.Sleep(time.Millisecond) {
		if time.Since(start) > time.Minute {
			t.Fatal(what + ": not within a minute")
		}
	}
}

// blocked is requestHook.before that waits for release at the first SSTable that is created, which it
// tells by closing reached.
func blocked(reached chan<- struct{}, release <-chan struct{}) func(string) error {
	var first atomic.Bool
	return func(what string) error {
		if do, object, _ := strings.Cut(what, " "); do == "create" && strings.HasSuffix(object, ".sst") && !first.Swap(true) {
			close(reached)
			<-release
		}
		return nil
	}
}

// TestCompactBesideStill: while a caller waits for a compaction to end, so that none is under way,
// others that look for one do not wait, and are told when they may again.
func TestCompactBesideStill(t *testing.T) {
	one := stored(t)
	for range 8 {
		b := NewBatch([]byte("row"))
		b.Set(0, []byte("q"), 1, nil)
		if err := applyAndWait(t.Context(), one, b); err != nil {
			t.Fatal(err)
		}
		b.Free()
		flushed(t, one)
	}
	reached, release := make(chan struct{}), make(chan struct{})
	one.env.Objects = &requestHook{one.env.Objects, blocked(reached, release)}
	var works atomic.Int64
	one.env.Work = func(*Tablet) { works.Add(1) }
	var all sync.WaitGroup
	all.Go(func() {
		if more, err := one.Compact(t.Context()); err != nil || !more {
			t.Error(more, err)
		}
	})
	<-reached
	all.Go(func() {
		if _, err := one.DropDamaged(t.Context(), "none"); fault.KindOf(err) != fault.NotFound {
			t.Error(err)
		}
	})
	until(t, "a caller waits for the compaction", func() bool { return one.jobs.still.Load() > 0 })
	var declined atomic.Bool
	all.Go(func() {
		if more, err := one.Compact(t.Context()); err != nil || more {
			t.Error(more, err)
		}
		declined.Store(true)
	})
	all.Go(func() {
		if err := one.CompactMajor(t.Context()); err != nil {
			t.Error(err)
		}
	})
	func() {
		defer all.Wait()
		defer close(release)
		until(t, "nothing to compact is found", declined.Load)
		if works.Load() > 0 {
			t.Error("work is asked for while none may be done")
		}
	}()
	if works.Load() == 0 || one.Runs() != 1 {
		t.Errorf("work was asked for %d times, and %d runs are left", works.Load(), one.Runs())
	}
}
