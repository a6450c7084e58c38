package standalone

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/trestledb/trestle/cluster/views"
	"github.com/trestledb/trestle/cluster/views/viewstest"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/tablet"
)

// severed is the cluster of workers, in which no changes can be read for a time, and are kept
// no longer after that.
type severed struct {
	troubled
	now, expired atomic.Bool
}

func (s *severed) ReadChanges(ctx context.Context, req *changes.Request, w changes.Writer) (*changes.Close, error) {
	if s.now.Load() {
		return nil, fault.New(fault.Unavailable, "not now")
	}
	if s.expired.CompareAndSwap(true, false) {
		return nil, &fault.Error{Kind: fault.OutOfRange, Reason: changes.ExpiredReason, Msg: "changes are kept no longer"}
	}
	return s.Cluster.ReadChanges(ctx, req, w)
}

// TestViewLookForgetsInTurns: a look that finds rows gone, whose contributions are many, has
// several turns.
func TestViewLookForgetsInTurns(t *testing.T) {
	s := &severed{}
	var between atomic.Int64 // positions within a look
	w := newViewWorld(t, views.Options{Cluster: s, Turn: time.Nanosecond, Step: func(t *tablet.Tablet, step string) error {
		if f := t.Followed(); step == "position noted" && f != nil && len(f.Before) > 0 {
			between.Add(1)
		}
		return nil
	}})
	defer func() { w.close() }()
	w.put(3500, func(i int) row.Mutation { return w.set(viewstest.Group, fmt.Appendf(nil, "group%d", i%7)) })
	w.create()
	w.check()
	s.now.Store(true)
	w.crash() // nothing is read any more
	if err := w.s.DropRowRange(t.Context(), table, []byte("row")); err != nil {
		t.Fatal(err)
	}
	between.Store(0)
	s.expired.Store(true)
	s.now.Store(false)
	w.check()
	if s.expired.Load() || between.Load() < 2 {
		t.Errorf("the look has noted %d positions before its end", between.Load())
	}
}

// TestViewLookReadsEndsInTurns: a look that finds many rows with cells that end looks at those
// whose ends it has stored before it goes on with others.
func TestViewLookReadsEndsInTurns(t *testing.T) {
	var run, most atomic.Int64 // how many parts of ends were stored in a row
	w := newViewWorld(t, views.Options{Turn: time.Nanosecond, Step: func(_ *tablet.Tablet, step string) error {
		switch step {
		case "ends stored":
			most.Store(max(most.Load(), run.Add(1)))
		case "stored":
			run.Store(0)
		}
		return nil
	}})
	defer func() { w.close() }()
	until := time.Now().Add(time.Hour).UnixMicro()
	w.put(3500, func(i int) row.Mutation {
		m := w.set(viewstest.Group, fmt.Appendf(nil, "group%d", i%7))
		m.Until = until
		return m
	})
	w.create()
	w.check()
	if most.Load() != 1 {
		t.Errorf("%d parts of ends were stored in a row", most.Load())
	}
}
