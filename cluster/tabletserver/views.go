package tabletserver

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/cluster/views"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/matview"
	"github.com/trestledb/trestle/engine/plan"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/tablet"
)

// viewWorkers are the workers of the tablets of views' contributions that are served here.
type viewWorkers struct {
	wake chan struct{} // has one when tablets or schemas have changed

	mu       sync.Mutex
	byID     map[*served]*viewWorker
	counters map[string]*views.Counters // by view
}

type viewWorker struct {
	*views.Worker
	stop context.CancelFunc
}

// progress tells how far the worker of a tablet is, nil if it has none.
func (w *viewWorkers) progress(t *served) *rpc.ViewProgress {
	w.mu.Lock()
	x := w.byID[t]
	w.mu.Unlock()
	if x == nil {
		return nil
	}
	p := x.Progress()
	return &p
}

// FollowViews keeps materialized views up to date as far as this server has the tablets of
// their contributions, from now on until the server ends. It is called once.
func (s *Server) FollowViews(o views.Options) {
	if o.Log == nil {
		o.Log = s.o.Log
	}
	if o.Now == nil {
		o.Now = s.o.Now
	}
	o = o.WithDefaults()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return
	}
	s.views.byID, s.views.counters = map[*served]*viewWorker{}, map[string]*views.Counters{}
	s.running.Go(func() {
		for {
			s.startViews(&o)
			select {
			case <-s.views.wake:
			case <-s.ctx.Done():
				return
			}
		}
	})
}

// ViewStats is what the tablets of this server are of a materialized view at one moment. The
// counts are from the server's start.
type ViewStats struct {
	View                 string
	Lag                  time.Duration
	RowBytes, StateBytes int64
	Failed, Errors       int64
}

// Views returns the materialized views that the server has tablets of, by name.
func (s *Server) Views() []ViewStats {
	by := map[string]*ViewStats{}
	for _, t := range s.allTablets() {
		v := t.table.Schema().View
		if v == nil {
			continue
		}
		x := by[v.Name]
		if x == nil {
			x = &ViewStats{View: v.Name}
			by[v.Name] = x
		}
		if !v.State {
			x.RowBytes += t.Bytes()
			continue
		}
		x.StateBytes += t.Bytes()
		if p := s.views.progress(t); p != nil {
			x.Lag = max(x.Lag, p.Lag)
		}
	}
	s.views.mu.Lock()
	defer s.views.mu.Unlock()
	out := make([]ViewStats, 0, len(by))
	for _, name := range slices.Sorted(maps.Keys(by)) {
		x := by[name]
		if c := s.views.counters[name]; c != nil {
			x.Failed, x.Errors = c.Failed.Load(), c.Errors.Load()
		}
		out = append(out, *x)
	}
	return out
}

// startViews starts the workers of tablets that have none, and stops those that are not
// needed any more.
func (s *Server) startViews(o *views.Options) {
	wanted := map[*served]bool{}
	for _, t := range s.allTablets() {
		sch := t.table.Schema()
		if sch.View == nil || !sch.View.State || t.table.Pending() {
			continue
		}
		if _, err := s.schemas.ByID(sch.ID); err == nil {
			wanted[t] = true
		}
	}
	w := &s.views
	w.mu.Lock()
	defer w.mu.Unlock()
	for t, x := range maps.Clone(w.byID) {
		if !wanted[t] {
			x.stop()
			delete(w.byID, t)
		}
	}
	for t := range wanted {
		if w.byID[t] != nil {
			continue
		}
		ctx, stop := context.WithCancel(s.ctx)
		name := t.table.Schema().View.Name
		if w.counters[name] == nil {
			w.counters[name] = new(views.Counters)
		}
		x := &viewWorker{views.New(o, t.Tablet, t.table, s.schemas, w.counters[name]), stop}
		w.byID[t] = x
		s.running.Go(func() { // startViews runs within running too
			defer stop()
			x.Run(ctx)
		})
	}
}

// ApplyView implements rpc.Data.
func (s *Server) ApplyView(ctx context.Context, at rpc.Target, rows []rpc.ViewRow) error {
	t, err := s.lookup(ctx, at)
	if err != nil {
		return err
	}
	sch := t.table.Schema()
	if sch.View == nil || sch.View.State {
		return fault.New(fault.FailedPrecondition, "table %s does not have the rows of a materialized view", sch.Name)
	}
	wait, err := s.applyView(ctx, t, sch, rows)
	if err != nil {
		return unknownOutcome(err)
	}
	return unknownOutcome(wait())
}

// applyView applies updates, and returns a function that waits until they are durable.
func (s *Server) applyView(ctx context.Context, t *served, sch *schema.Table, rows []rpc.ViewRow) (wait func() error, err error) {
	now := s.o.Now()
	t.view.Lock()
	defer t.view.Unlock()
	// Earlier updates are in the memtable, durable or not. Nobody else writes these rows.
	target := matview.NewTarget(sch.View)
	entries := make([]row.Entry, 0, len(rows))
	for i := range rows {
		if !t.Bounds().Contains(rows[i].Key) {
			return nil, rpc.ErrNotServing
		}
		r := &viewRowReader{sch: sch, view: t.Latest(ctx, rows[i].Key)}
		muts, err := target.Apply(r, rows[i].Updates, now)
		if err != nil {
			return nil, err
		}
		if len(muts) > 0 {
			entries = append(entries, row.Entry{Key: rows[i].Key, Mutations: cloneMutations(muts)})
		}
	}
	p := plan.New(sch, now)
	planned, err := p.Rows(entries, now)
	if err != nil {
		return nil, err
	}
	if err := planned.Apply(ctx, t.Tablet); err != nil {
		return nil, err
	}
	return func() error {
		// What was left out, since it had come before, is durable too.
		if err := t.Update(ctx, rows[0].Key, func(*tablet.View, *tablet.Batch) error { return nil }); err != nil {
			return err
		}
		for i := range entries {
			if err := planned.Wait(ctx, i, t.Wait); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

func cloneMutations(muts []row.Mutation) []row.Mutation {
	out := make([]row.Mutation, len(muts))
	for i, m := range muts {
		m.Qualifier, m.Value = append([]byte(nil), m.Qualifier...), append([]byte(nil), m.Value...)
		out[i] = m
	}
	return out
}

// A viewRowReader is the matview.Reader of a row.
type viewRowReader struct {
	sch  *schema.Table
	view *tablet.View
}

// Cell implements matview.Reader.
func (r *viewRowReader) Cell(family string, qualifier []byte) ([]byte, error) {
	f, ok := r.sch.Families[family]
	if !ok {
		return nil, fault.New(fault.Corruption, "table %s has no column family %s", r.sch.Name, family)
	}
	_, value, ok, err := r.view.Newest(nil, f.ID, qualifier)
	if !ok {
		value = nil
	}
	return value, err
}

// firstCells is how many cells are read at first: nearly always the first says it all.
const firstCells = 4

// Cells implements matview.Reader.
func (r *viewRowReader) Cells(from []byte, visit func(qualifier, value []byte) bool) error {
	for n := int32(firstCells); ; n = min(4*n, 4096) {
		q, err := tablet.NewQuery(r.sch, &filter.Node{Op: filter.Chain, Children: []*filter.Node{
			{Op: filter.ColumnRange, Family: matview.CountsFamily, Start: filter.Bound{Key: from, Set: true}},
			{Op: filter.CellsPerColumnLimit, N: 1},
			{Op: filter.CellsPerRowLimit, N: n},
		}}, false)
		if err != nil {
			return err
		}
		var got []row.Cell
		if err := r.view.Read(q, func(c *row.Cell) { got = append(got, c.Clone()) }); err != nil {
			return err
		}
		for i := range got {
			if !visit(got[i].Qualifier, got[i].Value) {
				return nil
			}
		}
		if len(got) < int(n) {
			return nil
		}
		from = row.Successor(got[len(got)-1].Qualifier)
	}
}
