package views

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/matview"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/stamp"
	"github.com/trestledb/trestle/engine/tablet"
)

// A Cluster is what a Worker needs of the tables of its cluster.
type Cluster interface {
	// ReadChanges is backend.ChangeStreamer's.
	ReadChanges(ctx context.Context, req *changes.Request, w changes.Writer) (*changes.Close, error)
	// ChangesBegin returns the tablets of a table that have rows of within, ascending. From
	// the stamp of each on ReadChanges gives all changes that a read does not see which
	// begins now.
	ChangesBegin(ctx context.Context, table string, within row.Range) ([]Begin, error)
	// ReadRows is backend.Data's.
	ReadRows(ctx context.Context, req *scan.Request, w scan.Writer) (scan.Stats, error)
	// ApplyView is rpc.Data's, of rows in any tablets of the view's table. NotFound if there
	// is no view of the name and life.
	ApplyView(ctx context.Context, view string, life uint64, rows []rpc.ViewRow) error
}

// A Begin is where to begin to read the changes of rows.
type Begin struct {
	Rows  row.Range
	Stamp cell.Seq
}

// Options are what Workers share. Cluster and Evaluators are needed.
type Options struct {
	Cluster    Cluster
	Evaluators matview.Evaluators
	// Memory bounds what Workers hold. Default: no bound.
	Memory *Memory
	// Requests returns how many requests of clients there have been: Workers give way to
	// them. Nil: it is not known, and they give way to whatever waits.
	Requests func() int64
	// Now is the clock. Default time.Now.
	Now func() time.Time
	// Linger is how long to wait for more changes after the first. Default 20 ms.
	Linger time.Duration
	// Watermark is how often a source is to say up to where there is nothing. Default 500 ms.
	Watermark time.Duration
	// SaveEvery is how often the position is stored if nothing else stores it.
	// Default 2 min.
	SaveEvery time.Duration
	// Turn is for how long a Worker looks at rows of its source before it sees to changes
	// again. Default 5 s.
	Turn time.Duration
	// Log takes what happens. Default: nothing.
	Log *slog.Logger
	// Step, if set, is called between the steps of a Worker; an error of it ends the
	// Worker's attempt there, as if its server had stopped. For tests.
	Step func(t *tablet.Tablet, step string) error
	// Mistake has the Worker make a mistake. For tests, which must notice.
	Mistake Mistake

	keys, scans *pace // of changed rows, and of looks at all rows
}

// A Mistake is one that tests plant.
type Mistake string

// The mistakes.
const (
	NoMistake         Mistake = ""
	LosesOutbox       Mistake = "a contribution is stored without its outbox entry"
	CountsTwice       Mistake = "an entry of the outbox is sent under a new number when it is sent again"
	SplitLosesOutbox  Mistake = "what the outbox has from before a split is left there"
	PositionAfterScan Mistake = "the position of a backfill is taken after the scan"
	PositionTooEarly  Mistake = "a position is noted before its changes are stored"
	MergeLosesShard   Mistake = "what the outbox has of the right one of two merged tablets is left there"
	SplitBeginsAnew   Mistake = "a child of a split sends its parent's entries as its own, those that arrived too"
	NumberTooEarly    Mistake = "the number of an outbox entry is taken before the entry before it is visible"
	ForgetsEnds       Mistake = "it is forgotten when cells come to an end of their own"
)

// WithDefaults returns o with every zero field set that has a default.
func (o Options) WithDefaults() Options {
	set := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	set(&o.Linger, 20*time.Millisecond)
	set(&o.Watermark, 500*time.Millisecond)
	set(&o.SaveEvery, 2*time.Minute)
	set(&o.Turn, 5*time.Second)
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Memory == nil {
		o.Memory = new(Memory)
	}
	if o.keys == nil {
		o.keys, o.scans = &pace{requests: o.Requests}, &pace{requests: o.Requests, wall: true}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// A Worker keeps what a view shows of the rows of one tablet up to date. Nobody else writes
// to the tablet.
type Worker struct {
	o     *Options
	t     *tablet.Tablet
	table *catalog.Table // of contributions
	all   *catalog.Schemas
	count *Counters

	mu       sync.Mutex
	progress rpc.ViewProgress
	// oldest is the stamp of the oldest change that the view does not show, of those that
	// were taken from the intake; 0: none.
	oldest cell.Seq
	in     *intake // of the attempt that runs; nil: none
	out    *outbox
}

// Counters count what failed in the Workers of a view on a server.
type Counters struct {
	// Failed counts rows that could not be evaluated, Errors what was tried again.
	Failed, Errors atomic.Int64
}

// New returns the Worker of a tablet of a table of contributions. o has its defaults.
func New(o *Options, t *tablet.Tablet, table *catalog.Table, all *catalog.Schemas, count *Counters) *Worker {
	return &Worker{o: o, t: t, table: table, all: all, count: count, progress: rpc.ViewProgress{Stopped: true}}
}

// errGone ends an attempt: there is no view any more.
var errGone = errors.New("the materialized view is gone")

// errAgain ends an attempt: the next one looks at all rows of the source again.
var errAgain = errors.New("the source of the materialized view has lost cells of which no change tells")

// Run works until ctx ends, or the tablet is closed.
func (w *Worker) Run(ctx context.Context) {
	for attempt := 0; ctx.Err() == nil; attempt++ {
		before := w.t.Followed()
		err := w.attempt(ctx)
		w.note(func(p *rpc.ViewProgress) { p.Stopped = true })
		switch {
		// A tablet of the source, or of the view, may have failed too: it is served again.
		case ctx.Err() != nil, errors.Is(err, tablet.ErrClosed), errors.Is(err, tablet.ErrReplaced), w.t.Failure() != nil:
			return
		case errors.Is(err, errGone):
			// So it seems. If it is, the tablet goes too.
		case errors.Is(err, errAgain):
		default:
			w.failed(err)
		}
		if now := w.t.Followed(); now != nil && (before == nil || now.Through > before.Through) {
			attempt = 0
		}
		if rpc.Backoff(ctx, nil, attempt+3, 5*time.Second) != nil {
			return
		}
	}
}

// failed notes an error after which something is tried again.
func (w *Worker) failed(err error) {
	first := false
	w.count.Errors.Add(1)
	w.note(func(p *rpc.ViewProgress) {
		p.Errors++
		first, p.LastError = p.LastError != err.Error(), err.Error()
	})
	if first {
		w.o.Log.Warn("a materialized view waits", "view", w.table.Schema().View.Name, "tablet", w.t.Name(), "error", err)
	}
}

func (w *Worker) note(change func(*rpc.ViewProgress)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(&w.progress)
}

// Progress tells how far the Worker is.
func (w *Worker) Progress() rpc.ViewProgress {
	w.mu.Lock()
	p, oldest, in, out := w.progress, w.oldest, w.in, w.out
	w.mu.Unlock()
	older := func(s cell.Seq) {
		if s != 0 && (oldest == 0 || s < oldest) {
			oldest = s
		}
	}
	if in != nil {
		older(in.oldest())
	}
	if out != nil {
		older(out.oldest())
	}
	if oldest != 0 {
		p.Lag = max(0, w.o.Now().Sub(stamp.Time(oldest)))
	}
	return p
}

func (w *Worker) step(name string) error {
	if w.o.Step == nil {
		return nil
	}
	return w.o.Step(w.t, name)
}

// source returns the schema of the view's source: errGone if it is not what the view is
// of.
func (w *Worker) source(ctx context.Context) (*schema.Table, error) {
	v := w.table.Schema().View
	t, err := w.all.Named(ctx, v.Source)
	if err != nil {
		if fault.KindOf(err) == fault.NotFound {
			return nil, fault.New(fault.Unavailable, "the source of materialized view %s is not there: %w", v.Name, err)
		}
		return nil, err
	}
	s := t.Schema()
	if s.ID != v.SourceID {
		return nil, errGone
	}
	if s.Stream == nil {
		return nil, fault.New(fault.Unavailable, "no changes are kept of table %s", s.Name)
	}
	return s, nil
}

// attempt works until something fails.
func (w *Worker) attempt(ctx context.Context) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	sch := w.table.Schema()
	if sch.View == nil || !sch.DeleteTime.IsZero() {
		return errGone
	}
	source, err := w.source(ctx)
	if err != nil {
		return err
	}
	eval, err := w.o.Evaluators.Evaluator(ctx, sch.View)
	if err != nil {
		return err
	}
	st, err := openStore(ctx, w.t, sch, w.o.Mistake)
	if err != nil {
		return err
	}
	out := newOutbox(st.entries, w.o.Memory.entries)
	defer out.close()
	r := &run{Worker: w, sch: sch, view: sch.View, source: source, eval: eval, store: st, ended: newSweeper(), out: out, deltas: matview.NewDeltas(sch.View), life: source.ViewLife()}
	w.mu.Lock()
	w.out, w.oldest = out, 0
	w.progress.Stopped = false
	w.progress.Life, w.progress.Through = r.life, 0
	w.mu.Unlock()
	var shipping sync.WaitGroup
	shipping.Go(func() {
		if err := r.ship(ctx); err != nil {
			cancel(err)
		}
	})
	defer shipping.Wait()
	defer cancel(nil)
	defer func() {
		// The cause is what ended it, if that was something else.
		if err != nil && ctx.Err() != nil {
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
		}
		w.mu.Lock()
		w.in, w.out, w.oldest = nil, nil, 0
		w.mu.Unlock()
	}()
	return r.work(ctx)
}

// A run is an attempt of a Worker.
type run struct {
	*Worker
	sch    *schema.Table
	view   *schema.View
	source *schema.Table
	eval   matview.Evaluator
	store  *store
	ended  sweeper
	out    *outbox
	deltas *matview.Deltas
	life   uint64   // schema.Table.ViewLife of source
	look   *look    // at all rows; nil: that was done
	next   cell.Seq // the least number of the next entry of the outbox
}

// work evaluates all rows, unless that was done, and follows the changes meanwhile and from
// there on.
func (r *run) work(ctx context.Context) error {
	var from []Begin
	if f := r.t.Followed(); f != nil && f.Life == r.life {
		from = []Begin{{Rows: r.t.Bounds(), Stamp: f.Through}}
		if len(f.Before) > 0 {
			if err := r.resume(ctx, f.Before); err != nil {
				return err
			}
		}
	} else {
		r.t.Follow(nil)
		var err error
		if from, err = r.reconcile(ctx); err != nil {
			return err
		}
		r.followed(least(from))
		if err := r.t.SaveFollowed(ctx); err != nil {
			return err
		}
	}
	err := r.follow(ctx, from)
	if isExpired(err) {
		r.o.Log.Warn("a materialized view looks at all rows of its source again: it was further behind than changes are kept", "view", r.view.Name, "tablet", r.t.Name())
		// Another attempt does so. This one may have deltas of rows that it has not stored, and a
		// batch that is stored and has no place in the outbox.
		r.t.Follow(nil)
	}
	return err
}

// again ends the attempt if all rows of the source are to be looked at again.
func (r *run) again() error {
	t, err := r.all.ByID(r.source.ID)
	if err != nil || t.Schema().ViewLife() == r.life {
		return nil // what reads changes finds out whether the table is gone
	}
	r.o.Log.Info("a materialized view looks at all rows of its source again: a column family was dropped, or changes are kept anew", "view", r.view.Name, "tablet", r.t.Name())
	return errAgain
}

func least(from []Begin) cell.Seq {
	s := cell.MaxSeq
	for i := range from {
		s = min(s, from[i].Stamp)
	}
	return s
}

// isExpired tells whether an error says that changes are kept no longer.
func isExpired(err error) bool {
	var f *fault.Error
	return errors.As(err, &f) && f.Reason == changes.ExpiredReason
}
