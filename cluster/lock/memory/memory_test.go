package memory

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/lock/locktest"
)

func TestSuite(t *testing.T) {
	locktest.Run(t, func(*testing.T) lock.Service { return New().Client(nil) }, 300*time.Millisecond)
}

// TestCutOff: a session whose holder does not reach the service ends, for the
// holder no later than for the service.
func TestCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New()
		cut := false
		near := s.Client(nil)
		far := s.Client(func(context.Context) error {
			if cut {
				return errors.New("cut off")
			}
			return nil
		})
		session, err := far.NewSession(t.Context(), 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := session.Hold(t.Context(), "k", nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		cut = true
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
