package standalone

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/cluster/views"
	"github.com/trestledb/trestle/cluster/views/viewstest"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/tablet"
)

// A troubled is the cluster of workers with some trouble.
type troubled struct{ views.Cluster }

func (t *troubled) wrap(c views.Cluster) { t.Cluster = c }

// expiring is the cluster of workers, and says once that changes are kept no longer: in the
// midst of a pass over rows, of which some are evaluated and not stored.
type expiring struct {
	troubled
	armed  atomic.Bool
	full   atomic.Bool // the ends that were read last are of as many rows as go together
	expire chan struct{}
	taken  atomic.Int64 // records that workers have taken
}

// counting is a writer that counts the records that it has passed on.
type counting struct {
	changes.Writer
	taken *atomic.Int64
}

func (c *counting) Record(r *changes.Record, at changes.Position) (full bool, err error) {
	defer c.taken.Add(1)
	return c.Writer.Record(r, at)
}

func (e *expiring) ReadChanges(ctx context.Context, req *changes.Request, w changes.Writer) (*changes.Close, error) {
	read, stop := context.WithCancel(ctx)
	defer stop()
	expired := make(chan bool, 1)
	go func() {
		select {
		case <-e.expire:
			expired <- true
			stop()
		case <-read.Done():
			expired <- false
		}
	}()
	closed, err := e.Cluster.ReadChanges(read, req, &counting{w, &e.taken})
	if stop(); <-expired {
		return nil, &fault.Error{Kind: fault.OutOfRange, Reason: changes.ExpiredReason, Msg: "changes are kept no longer"}
	}
	return closed, err
}

func (e *expiring) ReadRows(ctx context.Context, req *scan.Request, w scan.Writer) (scan.Stats, error) {
	if req.Filter != nil && req.Filter.Op == filter.Ends {
		if e.full.Load() && e.armed.CompareAndSwap(true, false) {
			e.expire <- struct{}{}
			<-ctx.Done()
		}
		e.full.Store(len(req.Ranges) == 500)
	}
	return e.Cluster.ReadRows(ctx, req, w)
}

// TestViewExpires: a view that falls behind what is kept of changes counts no row twice of
// those it was about to store.
func TestViewExpires(t *testing.T) {
	var hold atomic.Bool
	e := &expiring{expire: make(chan struct{})}
	w := newViewWorld(t, views.Options{Cluster: e, Step: func(_ *tablet.Tablet, step string) error {
		for step == "changes taken" && hold.Load() {
			time.Sleep(time.Millisecond)
		}
		return nil
	}})
	defer w.close()
	w.create()
	w.check()
	w.crash() // the worker follows from a position that it has
	w.check()
	hold.Store(true)
	e.taken.Store(0)
	entries := make([]row.Entry, 2000)
	for i := range entries {
		entries[i] = row.Entry{Key: fmt.Appendf(nil, "row%05d", i), Mutations: []row.Mutation{w.set(viewstest.Group, fmt.Appendf(nil, "group%d", i%7))}}
	}
	if err := w.s.MutateRows(t.Context(), table, entries, func(i int, err error) {
		if err != nil {
			t.Errorf("row %d: %v", i, err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	for limit := time.Now().Add(time.Minute); e.taken.Load() < int64(len(entries)); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("the intake takes %d rows of %d", e.taken.Load(), len(entries))
		}
	}
	e.armed.Store(true)
	hold.Store(false)
	w.check()
	if e.armed.Load() {
		t.Error("no changes have expired")
	}
}

// failing is the cluster of workers, in which a tablet of the source has failed for a time.
type failing struct {
	troubled
	n atomic.Int64 // calls that fail
}

func (f *failing) ReadRows(ctx context.Context, req *scan.Request, w scan.Writer) (scan.Stats, error) {
	if f.n.Add(-1) >= 0 {
		return scan.Stats{}, &fault.Error{Kind: fault.Internal, Reason: "TABLET_FAILED", Msg: "a tablet of another server failed"}
	}
	return f.Cluster.ReadRows(ctx, req, w)
}

// TestViewSourceFails: a view goes on once a tablet of its source that has failed is served
// again, be it by another server.
func TestViewSourceFails(t *testing.T) {
	f := &failing{}
	outlives(t, f, &f.n)
}

// outlives checks that a view is right after two calls of its workers' cluster have failed: c
// fails calls while n is not negative.
func outlives(t *testing.T, c views.Cluster, n *atomic.Int64) {
	t.Helper()
	w := newViewWorld(t, views.Options{Cluster: c})
	defer w.close()
	w.create()
	w.check()
	n.Store(2)
	w.changeAll()
	w.check()
	if n.Load() >= 0 {
		t.Error("nothing has failed")
	}
}

// TestViewScansWait: a look at all rows that waits for memory has no position yet, which
// would grow old meanwhile.
func TestViewScansWait(t *testing.T) {
	var looking atomic.Int64
	w := newViewWorld(t, views.Options{Memory: views.NewMemory(1 << 20), Step: func(_ *tablet.Tablet, step string) error {
		switch step {
		case "position taken":
			if looking.Add(1) > 1 {
				t.Error("two views have a position, of which one looks at all rows")
			}
			time.Sleep(50 * time.Millisecond)
		case "scanned":
			looking.Add(-1)
		}
		return nil
	}})
	defer w.close()
	source, err := w.s.Table(t.Context(), table)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{viewName, viewName + "2"} {
		if _, err := w.s.CreateView(t.Context(), viewstest.Groups(name, source), nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{viewName, viewName + "2"} {
		if err := w.s.WaitView(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
}

// stuck is the cluster of workers, in which a view cannot be written to for a time.
type stuck struct {
	troubled
	now atomic.Bool
}

func (s *stuck) ApplyView(ctx context.Context, view string, life uint64, rows []rpc.ViewRow) error {
	if s.now.Load() {
		return fault.New(fault.Unavailable, "not now")
	}
	return s.Cluster.ApplyView(ctx, view, life, rows)
}

// TestViewStuck: a worker whose view cannot be written to does not go on with all rows that it
// has taken: what they mean to the view waits in memory.
func TestViewStuck(t *testing.T) {
	var hold atomic.Bool
	var stored atomic.Int64
	s := &stuck{}
	w := newViewWorld(t, views.Options{Cluster: s, Step: func(_ *tablet.Tablet, step string) error {
		for step == "changes taken" && hold.Load() {
			time.Sleep(time.Millisecond)
		}
		if step == "stored" {
			stored.Add(1)
		}
		return nil
	}})
	defer w.close()
	w.create()
	w.check()
	hold.Store(true)
	s.now.Store(true)
	entries := make([]row.Entry, 3000)
	for i := range entries {
		entries[i] = row.Entry{Key: fmt.Appendf(nil, "row%05d", i), Mutations: []row.Mutation{w.set(viewstest.Group, fmt.Appendf(nil, "group%04000d", i))}}
	}
	if err := w.s.MutateRows(t.Context(), table, entries, func(i int, err error) {
		if err != nil {
			t.Errorf("row %d: %v", i, err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(200 * time.Millisecond) // the intake takes all rows
	stored.Store(0)
	hold.Store(false)
	time.Sleep(time.Second)
	if n := stored.Load(); n > 40 {
		t.Errorf("%d batches of half a MiB are stored, and wait", n)
	} else {
		t.Logf("%d batches wait", n)
	}
	s.now.Store(false)
	w.check()
}
