package views

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/budget"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
)

// maxKeys is how many changed rows wait to be evaluated at most, and maxKeyBytes how many
// bytes their keys have.
const (
	maxKeys     = 4000
	maxKeyBytes = 1 << 20
	keyBytes    = 64 // that a key takes besides its own
)

// An intake takes the changes of rows, several partitions beside each other, and keeps which
// rows they are of.
type intake struct {
	mu    sync.Mutex
	keys  map[string]struct{} // of rows
	bytes int
	first cell.Seq // the least stamp of what is in keys; 0: none
	at    map[*reading]cell.Seq
	// held is what keys have of memory, which is short if short is set.
	memory *budget.Budget
	held   int64
	short  bool
	room   chan struct{} // closed and replaced when keys is emptied
	wake   chan struct{} // has one when there is something to take
}

// A reading is a partition that is read, as far as its rows are the tablet's.
type reading struct {
	partition, rows row.Range
	born            cell.Seq // changes.Position.Born
}

func newIntake(memory *budget.Budget) *intake {
	return &intake{memory: memory, keys: map[string]struct{}{}, at: map[*reading]cell.Seq{}, room: make(chan struct{}), wake: make(chan struct{}, 1)}
}

func (in *intake) oldest() cell.Seq {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.first
}

func (in *intake) signal() {
	select {
	case in.wake <- struct{}{}:
	default:
	}
}

// begin adds a partition of which everything up to a stamp is known.
func (in *intake) begin(partition, rows row.Range, at cell.Seq) *reading {
	p := &reading{partition: partition, rows: rows}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.at[p] = at
	return p
}

// replace puts others in the place of a partition that has ended.
func (in *intake) replace(p *reading, by *changes.Close) []*reading {
	in.mu.Lock()
	defer in.mu.Unlock()
	var out []*reading
	for _, next := range by.Partitions {
		if rows := next.Intersect(p.rows); !rows.Empty() {
			c := &reading{next, rows, by.At.Born}
			in.at[c] = max(in.at[p], by.At.Through)
			out = append(out, c)
		}
	}
	delete(in.at, p)
	return out
}

// take returns the rows that have changed, and the stamp up to which all changes are of those,
// or of rows that were taken before. first is the least stamp of a change.
func (in *intake) take() (keys map[string]struct{}, through, first cell.Seq) {
	in.mu.Lock()
	defer in.mu.Unlock()
	keys, through, first = in.keys, cell.MaxSeq, in.first
	for _, at := range in.at {
		through = min(through, at)
	}
	in.keys, in.first, in.bytes = make(map[string]struct{}, len(keys)), 0, 0
	in.memory.Release(in.held)
	in.held, in.short = 0, false
	close(in.room)
	in.room = make(chan struct{})
	return keys, through, first
}

func (in *intake) size() int {
	in.mu.Lock()
	defer in.mu.Unlock()
	return len(in.keys)
}

func (in *intake) full() bool {
	return in.short || len(in.keys) >= maxKeys || in.bytes >= maxKeyBytes
}

// A taker is the Writer of one partition.
type taker struct {
	in  *intake
	p   *reading
	ctx context.Context
}

var _ changes.Writer = (*taker)(nil)

// Record implements changes.Writer.
func (t *taker) Record(r *changes.Record, at changes.Position) (bool, error) {
	in := t.in
	in.mu.Lock()
	defer in.mu.Unlock()
	if _, ok := in.keys[string(r.Key)]; !ok {
		in.keys[string(r.Key)] = struct{}{}
		in.bytes += len(r.Key)
		if n := int64(len(r.Key) + keyBytes); in.memory.Try(n) {
			in.held += n
		} else {
			in.short = true
		}
	}
	if in.first == 0 || r.Stamp < in.first {
		in.first = r.Stamp
	}
	in.at[t.p] = max(in.at[t.p], at.Through)
	if len(in.keys) == 1 {
		in.signal()
	}
	return in.full(), nil
}

// Flush implements changes.Writer.
func (t *taker) Flush() error {
	for {
		t.in.mu.Lock()
		full, room := t.in.full(), t.in.room
		t.in.mu.Unlock()
		t.in.signal()
		if !full {
			return nil
		}
		select {
		case <-room:
		case <-t.ctx.Done():
			return context.Cause(t.ctx)
		}
	}
}

// Watermark implements changes.Writer.
func (t *taker) Watermark(at changes.Position) error {
	t.in.mu.Lock()
	t.in.at[t.p] = max(t.in.at[t.p], at.Through)
	t.in.mu.Unlock()
	t.in.signal()
	return t.ctx.Err()
}

// follow reads changes from some positions on, and evaluates the rows.
func (r *run) follow(ctx context.Context, from []Begin) error {
	ctx, cancel := context.WithCancelCause(ctx)
	in := newIntake(r.o.Memory.keys)
	defer in.take()
	r.mu.Lock()
	r.in = in
	r.mu.Unlock()
	var readers sync.WaitGroup
	defer readers.Wait()
	defer cancel(nil)
	for _, b := range from {
		p := in.begin(b.Rows, b.Rows.Intersect(r.t.Bounds()), b.Stamp)
		readers.Go(func() { r.read(ctx, &readers, in, p, cancel) })
	}
	in.signal() // that nothing is to be evaluated, so far, is worth to be noted
	err := r.evaluateChanges(ctx, in)
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, context.Canceled) {
		err = cause
	}
	return err
}

// read reads the changes of a partition, and of those that it is split into or merged to.
func (r *run) read(ctx context.Context, readers *sync.WaitGroup, in *intake, p *reading, failed context.CancelCauseFunc) {
	in.mu.Lock()
	at := in.at[p]
	in.mu.Unlock()
	req := &changes.Request{Table: r.source.Name, Life: r.life, Within: p.rows, Partition: &p.partition,
		From: changes.Position{Through: at, Born: p.born}, Every: r.o.Watermark}
	closed, err := r.o.Cluster.ReadChanges(ctx, req, &taker{in: in, p: p, ctx: ctx})
	if err != nil {
		failed(err)
		return
	}
	for _, next := range in.replace(p, closed) {
		readers.Go(func() { r.read(ctx, readers, in, next, failed) })
	}
}

// evaluateChanges evaluates the rows of an intake until ctx ends.
func (r *run) evaluateChanges(ctx context.Context, in *intake) error {
	saved := time.Now()
	tick := time.NewTicker(max(r.o.Watermark, 10*time.Millisecond))
	defer tick.Stop()
	for {
		var ended <-chan time.Time
		if due := r.ended.due(r.o.Now()); due < time.Hour {
			ended = time.After(due)
		}
		select {
		case <-in.wake:
		case <-r.out.arrived:
		case <-tick.C:
		case <-ended:
			if err := r.sweep(ctx); err != nil {
				return err
			}
			continue
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if n := in.size(); n > 0 && n < maxKeys/2 {
			select {
			case <-time.After(r.o.Linger):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		keys, through, first := in.take()
		r.mu.Lock()
		r.oldest = first
		r.mu.Unlock()
		if r.o.Mistake == PositionTooEarly {
			r.followed(through)
			if err := r.t.SaveFollowed(ctx); err != nil {
				return err
			}
		}
		if err := r.step("changes taken"); err != nil {
			return err
		}
		if len(keys) > 0 {
			if err := r.evaluate(ctx, sorted(keys), first); err != nil {
				return err
			}
		} else if r.out.done() {
			if err := r.clean(ctx); err != nil {
				return err
			}
		}
		r.mu.Lock()
		r.oldest = 0
		r.mu.Unlock()
		r.followed(through)
		if err := r.step("position noted"); err != nil {
			return err
		}
		if time.Since(saved) > r.o.SaveEvery {
			if err := r.t.SaveFollowed(ctx); err != nil {
				return err
			}
			saved = time.Now()
		}
	}
}

// followed notes that all changes up to a stamp are stored.
func (r *run) followed(through cell.Seq) {
	r.t.Follow(&metadata.Followed{Life: r.life, Through: through})
	r.out.mark(through, func(shown cell.Seq) {
		r.note(func(p *rpc.ViewProgress) { p.Through = max(p.Through, shown) })
	})
}
