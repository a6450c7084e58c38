package views

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/budget"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/stamp"
)

// maxKeys is how many changed rows wait to be evaluated at most, and maxKeyBytes how many
// bytes their keys have.
const (
	maxKeys     = 8000
	maxKeyBytes = 1 << 20
	keyBytes    = 64 // that a key takes besides its own
)

// A Worker lingers again, up to maxLingers in all, if so many rows have come that lingerEach
// times as many fill the intake. The more rows a batch has, the less each costs: the view's
// rows are written once a batch.
const (
	lingerEach = 40
	maxLingers = 8
)

// An intake takes the changes of rows, several partitions beside each other, and keeps which
// rows they are of.
type intake struct {
	mu    sync.Mutex
	keys  *rowSet
	spare *rowSet  // empty, to be used next; nil: none
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
	return &intake{memory: memory, keys: newRowSet(), at: map[*reading]cell.Seq{}, room: make(chan struct{}), wake: make(chan struct{}, 1)}
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
func (in *intake) take() (keys *rowSet, through, first cell.Seq) {
	in.mu.Lock()
	defer in.mu.Unlock()
	keys, through, first = in.keys, cell.MaxSeq, in.first
	for _, at := range in.at {
		through = min(through, at)
	}
	if in.keys, in.spare = in.spare, nil; in.keys == nil {
		in.keys = newRowSet()
	}
	in.first = 0
	in.memory.Release(in.held)
	in.held, in.short = 0, false
	close(in.room)
	in.room = make(chan struct{})
	return keys, through, first
}

// reuse gives back what take gave out.
func (in *intake) reuse(keys *rowSet) {
	keys.reset()
	in.mu.Lock()
	defer in.mu.Unlock()
	in.spare = keys
}

// size tells how many rows wait, and whether no more are taken.
func (in *intake) size() (n int, full bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	return len(in.keys.list), in.full()
}

func (in *intake) full() bool {
	return in.short || len(in.keys.list) >= maxKeys || in.keys.bytes >= maxKeyBytes
}

// A rowSet is a set of row keys.
type rowSet struct {
	has   map[string]struct{} // of what is in list
	list  [][]byte
	room  Room
	bytes int // of all keys
}

func newRowSet() *rowSet { return &rowSet{has: map[string]struct{}{}} }

// add adds a key, which it copies. It tells whether the key was not there.
func (s *rowSet) add(key []byte) bool {
	if _, ok := s.has[string(key)]; ok {
		return false
	}
	kept := s.room.Keep(key)
	s.has[unsafe.String(unsafe.SliceData(kept), len(kept))] = struct{}{} // kept does not change
	s.list, s.bytes = append(s.list, kept), s.bytes+len(key)
	return true
}

// sorted returns the keys, ascending. They are valid until reset.
func (s *rowSet) sorted() [][]byte {
	slices.SortFunc(s.list, bytes.Compare)
	return s.list
}

// reset empties s.
func (s *rowSet) reset() {
	clear(s.has)
	clear(s.list)
	s.list, s.bytes = s.list[:0], 0
	s.room.Reset()
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
	if in.keys.add(r.Key) {
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
	if len(in.keys.list) == 1 {
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
	err := r.evaluateChanges(ctx, in, &readers)
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
	req := &changes.Request{Table: r.source.Name, Life: r.source.Stream.Life, Within: p.rows, Partition: &p.partition,
		From: changes.Position{Through: at, Born: p.born}, Every: r.o.Watermark, Rows: true}
	closed, err := r.o.Cluster.ReadChanges(ctx, req, &taker{in: in, p: p, ctx: ctx})
	if err != nil {
		failed(err)
		return
	}
	for _, next := range in.replace(p, closed) {
		readers.Go(func() { r.read(ctx, readers, in, next, failed) })
	}
}

// evaluateChanges evaluates the rows of an intake until ctx ends, and between them those of a
// look. It starts goroutines of others, which end with ctx.
func (r *run) evaluateChanges(ctx context.Context, in *intake, others *sync.WaitGroup) error {
	saved := time.Now()
	var turn chan func() // of the look, if it waits for one
	tick := time.NewTicker(max(r.o.Watermark, 10*time.Millisecond))
	defer tick.Stop()
	for {
		var ended <-chan time.Time
		if due := r.ended.due(r.o.Now()); due < time.Hour {
			ended = time.After(due)
		}
		if r.look != nil && turn == nil {
			// Changes first: those that wait grow old.
			if _, full := in.size(); !full {
				next := make(chan func())
				turn = next
				others.Go(func() { r.waitTurn(ctx, next) })
			}
		}
		select {
		case <-in.wake:
		case <-r.out.arrived:
		case <-tick.C:
		case release := <-turn:
			turn = nil
			err := r.lookOn(ctx)
			if release(); err != nil {
				return err
			}
			if r.look == nil {
				saved = time.Time{} // now
			}
			in.signal()
			continue
		case <-ended:
			if err := r.sweep(ctx); err != nil {
				return err
			}
			continue
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := r.again(); err != nil {
			return err
		}
		if err := r.linger(ctx, in); err != nil {
			return err
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
		all := keys.sorted()
		changed := r.look.looked(all)
		if err := r.endsAhead(ctx, all[len(changed):]); err != nil {
			return err
		}
		if len(changed) > 0 {
			if err := r.evaluate(ctx, changed, first, stamp.Time(first)); err != nil {
				return err
			}
		} else if r.out.done() {
			if err := r.clean(ctx); err != nil {
				return err
			}
		}
		in.reuse(keys)
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

// linger waits for more changes, if there are some, but not many.
func (r *run) linger(ctx context.Context, in *intake) error {
	n, full := in.size()
	if n == 0 {
		return nil
	}
	for range maxLingers {
		if full || n >= maxKeys/2 {
			return nil
		}
		select {
		case <-time.After(r.o.Linger):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		before := n
		if n, full = in.size(); n-before < maxKeys/lingerEach {
			return nil
		}
	}
	return nil
}

// followed notes that all changes up to a stamp are stored, of rows that were looked at.
func (r *run) followed(through cell.Seq) {
	f := &metadata.Followed{Life: r.life, Through: through}
	if r.look != nil {
		if f.Before = r.look.at; bytes.Equal(f.Before, r.t.Bounds().Start) {
			f = nil
		}
		r.t.Follow(f)
		return
	}
	r.t.Follow(f)
	r.out.mark(through, func(shown cell.Seq) {
		r.note(func(p *rpc.ViewProgress) { p.Through = max(p.Through, shown) })
	})
}
