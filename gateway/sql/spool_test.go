package sql

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trestledb/trestle/engine/query/types"
)

// closing are rows that tell when they are closed.
type closing struct{ closed bool }

func (*closing) Next(context.Context) (*types.Batch, error) { return nil, io.EOF }
func (*closing) Position() []byte                           { return nil }
func (c *closing) Close() error                             { c.closed = true; return nil }

// TestSpoolGoesAfterFailedTake: a spool whose last client was gone before it had the turn
// is dropped like any other.
func TestSpoolGoesAfterFailedTake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{Dir: t.TempDir(), HoldFor: time.Minute})
		defer s.Close()
		rows := &closing{}
		run, stop := context.WithCancel(t.Context())
		sp, err := s.spools.add(run, s, hash{1}, time.Now(), rows, stop)
		if err != nil {
			t.Fatal(err)
		}
		s.spools.leave(sp, true, s.o.HoldFor)
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		// The turn is free and the client is gone: take goes by either.
		for {
			got, err := s.spools.take(gone, sp.id, hash{1}, s.o.HoldFor)
			if err != nil {
				break
			}
			if got == nil {
				t.Fatal("the spool is gone at once")
			}
			s.spools.leave(got, true, s.o.HoldFor)
		}
		time.Sleep(s.o.HoldFor - time.Second)
		synctest.Wait()
		if rows.closed {
			t.Error("the spool is not kept for its time")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if !rows.closed || run.Err() == nil || len(s.spools.byID) > 0 {
			t.Errorf("the spool is still there: closed %v, %v, %d", rows.closed, run.Err(), len(s.spools.byID))
		}
	})
}
