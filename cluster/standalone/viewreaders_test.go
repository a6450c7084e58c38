package standalone

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/cluster/views"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

// told counts the records that a reader gets: those that say what was changed, and others.
type told struct {
	changes, rows int
	mark          chan struct{} // gets something at each watermark, if there is room
}

func (w *told) Record(r *changes.Record, _ changes.Position) (bool, error) {
	if len(r.Changes) > 0 {
		w.changes++
	} else {
		w.rows++
	}
	return false, nil
}

func (w *told) Flush() error { return nil }

func (w *told) Watermark(changes.Position) error {
	select {
	case w.mark <- struct{}{}:
	default:
	}
	return nil
}

// TestReadersOfRows: what is kept for views is given to views, and to nobody else. A reader of a
// version that does not say what it is is a view's if clients have no stream, from its begin on.
func TestReadersOfRows(t *testing.T) {
	w := newViewWorld(t, views.Options{})
	defer func() { w.close() }()
	ctx := t.Context()
	w.create()
	enable := func(on bool) {
		t.Helper()
		if _, err := w.s.UpdateTable(ctx, table, func(t *schema.Table) error {
			if t.DisableStream(); on {
				t.EnableStream(time.Hour, time.Now())
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	written := func() {
		t.Helper()
		w.changeAll()
		if err := w.s.FlushTablets(ctx, table, row.All); err != nil {
			t.Fatal(err)
		}
	}
	written()
	tablets, err := w.s.Tablets(ctx, table)
	if err != nil {
		t.Fatal(err)
	}
	of, err := w.s.RowOf(ctx, tablets[0].Tablet)
	if err != nil {
		t.Fatal(err)
	}
	from, until := changes.Position{Through: of.Stream.Since}, of.MaxSeq
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	read := func(req rpc.ChangesRead, from changes.Position, until cell.Seq, w *told, s *Server) error {
		req.Life, req.From, req.Until, req.Every = of.Stream.Life, from, until, 10*time.Millisecond
		return s.TabletServer().ReadChanges(ctx, rpc.Target{Tablet: of.Tablet}, &req, w)
	}
	const sees, isRefused, isLate = "", "failed precondition", changes.ExpiredReason
	for _, c := range []struct {
		clients              bool // have a stream
		view, untold, client string
	}{{false, sees, sees, isRefused}, {true, sees, isLate, isLate}} {
		enable(c.clients)
		for want, req := range map[*string]rpc.ChangesRead{&c.view: {Rows: true}, &c.untold: {Untold: true}, &c.client: {}} {
			got := &told{}
			err := read(req, from, until, got, w.s)
			is := ""
			var f *fault.Error
			if errors.As(err, &f) {
				is = f.Reason
			}
			if fault.KindOf(err) == fault.FailedPrecondition {
				is = isRefused
			}
			if is != *want || got.changes > 0 || (got.rows > 0) != (*want == sees) || is == "" && err != nil {
				t.Errorf("clients have a stream: %t; %+v: %v, %d records of rows and %d of changes", c.clients, req, err, got.rows, got.changes)
			}
		}
	}
	// Clients lose their stream while they read.
	for _, req := range []rpc.ChangesRead{{Untold: true}, {}} {
		enable(true)
		written()
		if of, err = w.s.RowOf(ctx, of.Tablet); err != nil {
			t.Fatal(err)
		}
		w.changeAll()
		got, ended := &told{mark: make(chan struct{}, 1)}, make(chan error, 1)
		s := w.s
		go func() { ended <- read(req, changes.Position{Through: of.MaxSeq}, 0, got, s) }()
		<-got.mark
		enable(false)
		written()
		if err := <-ended; fault.KindOf(err) != fault.FailedPrecondition || got.changes == 0 || got.rows > 0 {
			t.Errorf("%+v: %v, %d records of rows and %d of changes", req, err, got.rows, got.changes)
		}
	}
	w.check()
}
