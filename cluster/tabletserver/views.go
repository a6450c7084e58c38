package tabletserver

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/cluster/views"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/matview"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/tablet"
)

// viewWorkers are the workers of the tablets of views' contributions that are served here.
type viewWorkers struct {
	wake     chan struct{} // has one when tablets or schemas have changed
	active   atomic.Bool   // there are some
	requests atomic.Int64  // calls of clients' requests that the server has had since

	mu       sync.Mutex
	byID     map[*served]*viewWorker
	counters map[string]*views.Counters // by view
}

type viewWorker struct {
	*views.Worker
	stop    context.CancelFunc
	stopped bool          // stop was called
	ended   chan struct{} // closed when Run has returned
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
	if o.Requests == nil {
		o.Requests = s.views.requests.Load
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

// wakeViews has workers begin and end if tablets of a table, some of which came or went, have
// any. To look at all tablets for each that is opened took a third of the time of a server that
// was opening 100,000.
func (s *Server) wakeViews(table *catalog.Table) {
	if v := table.Schema().View; v != nil && v.State {
		wake(s.views.wake)
	}
}

// startViews starts the workers of tablets that have none, and stops those that are not
// needed any more. A tablet has one at a time: the next begins when the one before has ended.
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
			x.stopped = true
		}
		if !x.stopped {
			continue
		}
		select {
		case <-x.ended:
			delete(w.byID, t)
		default: // it wakes this then
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
		x := &viewWorker{Worker: views.New(o, t.Tablet, t.table, s.schemas, w.counters[name]), stop: stop, ended: make(chan struct{})}
		w.byID[t] = x
		s.running.Go(func() { // startViews runs within running too
			defer wake(w.wake)
			defer close(x.ended)
			defer stop()
			x.Run(ctx)
		})
	}
	w.active.Store(len(w.byID) > 0)
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
	if len(rows) == 0 {
		return nil
	}
	wait, err := s.applyView(ctx, t, sch, rows)
	if err != nil {
		return unknownOutcome(err)
	}
	return unknownOutcome(wait())
}

// viewBatchBytes is about how many bytes are put into a tablet of a view at once, and how many
// are read of its hidden states before that.
const viewBatchBytes = 256 << 10

// applyView applies updates, and returns a function that waits until they are durable.
func (s *Server) applyView(ctx context.Context, t *served, sch *schema.Table, rows []rpc.ViewRow) (wait func() error, err error) {
	ranges := make([]row.Range, len(rows))
	for i := range rows {
		if !t.Bounds().Contains(rows[i].Key) {
			return nil, rpc.ErrNotServing
		}
		if i > 0 && bytes.Compare(rows[i-1].Key, rows[i].Key) >= 0 {
			return nil, fault.New(fault.Invalid, "rows[%d]: the rows of an update of a materialized view must ascend", i)
		}
		ranges[i] = row.Single(rows[i].Key)
	}
	q, err := t.queries.For(sch, hiddenStates, false)
	if err != nil {
		return nil, err
	}
	t.view.Lock()
	defer t.view.Unlock()
	// Earlier updates are in the memtable, durable or not. Nobody else writes these rows.
	a := viewApplier{t: t, sch: sch, now: s.o.Now(), target: matview.NewTarget(sch.View)}
	defer a.free()
	first := rows[0].Key
	var states stateReader
	var stats scan.Stats
	for len(rows) > 0 {
		states.reset()
		rest, _, err := t.ReadLatest(ctx, q, ranges, &states, &stats)
		if err != nil {
			return nil, err
		}
		n := len(ranges) - len(rest)
		for i := range rows[:n] {
			if err := a.row(ctx, &rows[i], states.of(rows[i].Key)); err != nil {
				return nil, err
			}
		}
		rows, ranges = rows[n:], rest
	}
	if err := a.flush(ctx); err != nil {
		return nil, err
	}
	if a.applied {
		return func() error { return t.Wait(ctx, a.pos) }, nil
	}
	// All had come before, and may not be durable yet.
	return func() error {
		return t.Update(ctx, first, func(*tablet.View, *tablet.Batch) error { return nil })
	}, nil
}

// hiddenStates leaves what rows of a view know of themselves.
var hiddenStates = &filter.Node{Op: filter.FamilyRegex, Pattern: []byte(matview.StateFamily + "|" + matview.GoneFamily), Kept: true}

// A viewApplier puts what updates make of rows into the tablet, many rows at a time.
type viewApplier struct {
	t       *served
	sch     *schema.Table
	now     time.Time
	target  *matview.Target
	reader  viewRowReader
	b       *tablet.Batch // nil: nothing is to be applied
	values  views.Room    // of b
	pos     commitlog.Pos // of what was applied last
	applied bool
	// families are those that were asked for.
	families []viewFamily
}

type viewFamily struct {
	name string
	id   cell.FamilyID
}

// row takes the updates of a row, whose hidden state is given.
func (a *viewApplier) row(ctx context.Context, r *rpc.ViewRow, was hiddenState) error {
	a.reader = viewRowReader{ctx: ctx, t: a.t, sch: a.sch, key: r.Key, was: was, last: a.reader.last}
	muts, err := a.target.Apply(&a.reader, r.Updates, a.now)
	if cerr := a.reader.close(); err == nil {
		err = cerr
	}
	if err != nil || len(muts) == 0 {
		return err
	}
	if a.b == nil {
		a.b = tablet.NewBatch(r.Key)
	} else {
		a.b.Row(r.Key)
	}
	for i := range muts {
		m := &muts[i]
		f, err := a.family(m.Family)
		if err != nil {
			return err
		}
		switch m.Op {
		case row.SetCell:
			a.b.Set(f, m.Qualifier, m.Timestamp, a.values.Keep(m.Value))
		case row.DeleteColumn:
			a.b.DeleteColumn(f, m.Qualifier, m.Times)
		case row.DeleteFamily:
			a.b.DeleteFamily(f)
		default:
			return fault.New(fault.Internal, "a row of a materialized view is changed by a mutation of kind %d", m.Op)
		}
	}
	if a.b.Size() >= viewBatchBytes {
		return a.flush(ctx)
	}
	return nil
}

// family returns the id of a family. There are few, so those that were asked for are found
// sooner than in the schema's map.
func (a *viewApplier) family(name string) (cell.FamilyID, error) {
	for i := range a.families {
		if f := &a.families[i]; f.name == name {
			return f.id, nil
		}
	}
	f, ok := a.sch.Families[name]
	if !ok {
		return 0, fault.New(fault.Corruption, "table %s has no column family %s", a.sch.Name, name)
	}
	a.families = append(a.families, viewFamily{name, f.ID})
	return f.ID, nil
}

// flush applies what there is.
func (a *viewApplier) flush(ctx context.Context) error {
	if a.b == nil {
		return nil
	}
	pos, err := a.t.ApplyAsync(ctx, a.b)
	if err != nil {
		return err
	}
	a.free()
	a.pos, a.applied = pos, true
	return nil
}

func (a *viewApplier) free() {
	if a.b != nil {
		a.b.Free()
		a.b = nil
	}
	a.values.Reset()
}

// A hiddenState is what a row of a view knows of itself: the values of the cells of
// matview.StateFamily and matview.GoneFamily, nil if they are not there.
type hiddenState struct{ state, gone []byte }

// A stateReader takes the hidden states of rows, ascending.
type stateReader struct {
	room   views.Room
	keys   [][]byte
	states []hiddenState
	bytes  int
}

var _ scan.Writer = (*stateReader)(nil)

func (r *stateReader) reset() {
	r.room.Reset()
	r.keys, r.states, r.bytes = r.keys[:0], r.states[:0], 0
}

// of returns the state of a row. Rows are asked for in order.
func (r *stateReader) of(key []byte) (s hiddenState) {
	if len(r.keys) > 0 && bytes.Equal(r.keys[0], key) {
		s, r.keys, r.states = r.states[0], r.keys[1:], r.states[1:]
	}
	return s
}

// StartRow implements scan.Writer.
func (r *stateReader) StartRow(key []byte) {
	r.keys, r.states = append(r.keys, r.room.Keep(key)), append(r.states, hiddenState{})
}

// Cell implements scan.Writer.
func (r *stateReader) Cell(c *row.Cell) {
	at := &r.states[len(r.states)-1].state
	if c.Family == matview.GoneFamily {
		at = &r.states[len(r.states)-1].gone
	}
	if *at == nil { // the newest comes first
		*at = r.room.Keep(c.Value)
		r.bytes += len(c.Value)
	}
}

// EndRow implements scan.Writer.
func (r *stateReader) EndRow() (full bool, err error) { return r.bytes >= viewBatchBytes, nil }

// Scanned implements scan.Writer.
func (*stateReader) Scanned([]byte) {}

// Flush implements scan.Writer.
func (*stateReader) Flush() error { return nil }

// A viewRowReader is the matview.Reader of a row.
type viewRowReader struct {
	ctx  context.Context
	t    *served
	sch  *schema.Table
	key  []byte
	was  hiddenState
	view *tablet.View // nil: nothing was read yet
	// column reads those of a family, nil if none is open, and last is the one it read last.
	// Apply asks for counts in ascending order, hundreds of thousands of a row with as many
	// distinct values.
	column *tablet.ColumnReader
	family string
	last   []byte
}

// open makes view the row.
func (r *viewRowReader) open() *tablet.View {
	if r.view == nil {
		r.view = r.t.Latest(r.ctx, r.key)
	}
	return r.view
}

// close ends what is open.
func (r *viewRowReader) close() error {
	c := r.column
	if r.column = nil; c == nil {
		return nil
	}
	return c.Close()
}

// Cell implements matview.Reader.
func (r *viewRowReader) Cell(family string, qualifier []byte) ([]byte, error) {
	switch {
	case family == matview.StateFamily:
		return r.was.state, nil
	case family == matview.GoneFamily:
		return r.was.gone, nil
	case r.sch.View.Index && r.was.state == nil && r.was.gone == nil:
		// A row of an index counts something as long as it has a state: as many source
		// rows in all as that says.
		return nil, nil
	}
	if r.column == nil || r.family != family || bytes.Compare(qualifier, r.last) <= 0 {
		if err := r.close(); err != nil {
			return nil, err
		}
		f, ok := r.sch.Families[family]
		if !ok {
			return nil, fault.New(fault.Corruption, "table %s has no column family %s", r.sch.Name, family)
		}
		var err error
		if r.column, err = r.open().Family(f.ID); err != nil {
			return nil, err
		}
		r.family = family
	}
	r.last = append(r.last[:0], qualifier...)
	return r.column.Newest(qualifier)
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
		if err := r.open().Read(q, func(c *row.Cell) { got = append(got, c.Clone()) }); err != nil {
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
