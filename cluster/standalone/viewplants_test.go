package standalone

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/cluster/views"
	"github.com/trestledb/trestle/cluster/views/viewstest"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/tablet"
)

var errStopped = errors.New("the worker was stopped")

// TestViewSteps: a view is right whichever step its workers are stopped after, and shows that
// it is not when a mistake is planted.
func TestViewSteps(t *testing.T) {
	run := func(t *testing.T, o views.Options, long int) error {
		var n, every atomic.Int64
		every.Store(7)
		var w *viewWorld
		o.Step = func(_ *tablet.Tablet, step string) error {
			if step == "scanned" {
				// What is written behind the scan is among the changes.
				late := row.Mutation{Op: row.SetCell, Family: viewstest.Family, Qualifier: viewstest.Group, Timestamp: 9000, Value: []byte("late")}
				if err := w.client.Load().MutateRow(context.Background(), table, &row.Entry{Key: []byte("row"), Mutations: []row.Mutation{late}}); err != nil {
					return err
				}
			}
			if e := every.Load(); e > 0 && n.Add(1)%e == 0 {
				return errStopped
			}
			return nil
		}
		w = newViewWorld(t, o)
		w.long = long
		defer w.close()
		for range 100 {
			w.change()
		}
		w.create()
		var diff error
		for round := range 8 {
			every.Store(int64(2 + w.rnd.IntN(9)))
			for range 60 {
				w.change()
			}
			if long > 0 {
				w.changeAll()
			}
			if round%2 == 1 {
				w.operate()
			}
			if round == 5 {
				w.crash()
			}
			every.Store(0)
			if diff = w.diff(); diff != nil {
				break
			}
		}
		return diff
	}
	t.Run("right", func(t *testing.T) {
		if err := run(t, views.Options{}, 0); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("batches", func(t *testing.T) {
		if err := run(t, views.Options{}, 4000); err != nil {
			t.Fatal(err)
		}
	})
	for _, m := range []views.Mistake{views.LosesOutbox, views.CountsTwice, views.PositionAfterScan, views.PositionTooEarly} {
		t.Run(string(m), func(t *testing.T) {
			for try := range 10 {
				if err := run(t, views.Options{Mistake: m}, 0); err != nil {
					t.Logf("found at try %d: %v", try, err)
					return
				}
			}
			t.Error("the mistake was not found")
		})
	}
}

// TestViewScansAgain: a look at all rows that begins anew has what the one before has stored,
// also of more rows than are read ahead.
func TestViewScansAgain(t *testing.T) {
	var scans atomic.Int64
	w := newViewWorld(t, views.Options{Step: func(_ *tablet.Tablet, step string) error {
		if step == "scanned" && scans.Add(1) == 1 {
			return errStopped
		}
		return nil
	}})
	defer w.close()
	w.put(2500, func(i int) row.Mutation { return w.set(viewstest.Group, fmt.Appendf(nil, "group%d", i%7)) })
	w.create()
	w.check()
	if scans.Load() != 2 {
		t.Errorf("%d looks at all rows", scans.Load())
	}
}

// lossy is the cluster of workers, with answers that get lost.
type lossy struct {
	views.Cluster
	n atomic.Int64
}

func (l *lossy) ApplyView(ctx context.Context, view string, life uint64, rows []rpc.ViewRow) error {
	err := l.Cluster.ApplyView(ctx, view, life, rows)
	if err == nil && l.n.Add(1)%3 == 0 {
		return fault.New(fault.Unavailable, "the answer was lost")
	}
	return err
}
