package memory

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/lock/locktest"
)

func TestSuite(t *testing.T) {
	const ttl = 2 * time.Second
	locktest.Run(t, func(*testing.T) lock.Service { return New().Client(nil, nil) }, ttl, func(t *testing.T, test func(*testing.T)) {
		synctest.Test(t, func(t *testing.T) {
			test(t)
			time.Sleep(ttl) // the service forgets its sessions
		})
	})
}

// TestCutOff: a session whose holder does not reach the service ends, for the
// holder no later than for the service.
func TestCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New()
		var cut atomic.Bool
		near := s.Client(nil, nil)
		far := s.Client(func(_ context.Context, _ string, do func()) error {
			if cut.Load() {
				return errors.New("cut off")
			}
			do()
			return nil
		}, nil)
		session, err := far.NewSession(t.Context(), 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := session.Hold(t.Context(), "k", nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		cut.Store(true)
		start := time.Now()
		_, revision, err := near.List(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		gone := errors.New("gone")
		if err := near.Watch(t.Context(), "k", revision, func(lock.Event) error { return gone }); err != gone {
			t.Fatal(err)
		}
		<-session.Done()
		if d := time.Since(start); d < 6*time.Second || d > 11*time.Second {
			t.Errorf("the session ended after %v", d)
		}
		if session.Deadline().After(time.Now()) {
			t.Error("the holder believes in a session that has ended")
		}
	})
}

// A drift is a clock that runs at a rate.
type drift struct {
	start time.Time
	rate  float64
}

func (d drift) Reading() time.Duration {
	return time.Duration(d.rate * float64(time.Since(d.start)))
}

func (d drift) After(t time.Duration) <-chan time.Time {
	return time.After(time.Duration(float64(t)/d.rate) + time.Microsecond)
}

// TestDrift: how long a holder believes in its session is by its own clock; how
// long it has it, by that of the service.
func TestDrift(t *testing.T) {
	for _, rate := range []float64{0.5, 1, 2} {
		synctest.Test(t, func(t *testing.T) {
			var cut atomic.Bool
			session, err := New().Client(func(_ context.Context, _ string, do func()) error {
				if cut.Load() {
					return errors.New("cut off")
				}
				do()
				return nil
			}, drift{time.Now(), rate}).NewSession(t.Context(), 10*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			select {
			case <-session.Done():
				t.Fatalf("at rate %v the session ended", rate)
			default:
			}
			cut.Store(true)
			start := time.Now()
			<-session.Done()
			if d := time.Since(start).Seconds() * rate; d < 6 || d > 11 {
				t.Errorf("at rate %v the session ended after %v s by the holder's clock", rate, d)
			}
			time.Sleep(time.Minute)
		})
	}
}
