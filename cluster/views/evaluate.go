package views

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/matview"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/tablet"
)

// together is how many rows are evaluated, and read, at a time; commitBytes is about how
// many bytes a batch has at most.
const (
	together    = 1000
	commitBytes = 512 << 10
	// portionBytes is about how many bytes of contributions are read ahead.
	portionBytes = 512 << 10
)

// A pass compares what is evaluated with what is stored, in the order of rows, and stores
// the difference.
type pass struct {
	*run
	// stored are contributions that were read ahead, in storedRoom. rest are the ranges of
	// those that are not read yet, all after stored.
	stored     []contribution
	storedRoom Room
	rest       []row.Range
	// within is, of a turn of a look, what it looks at: the look takes from it what it has
	// seen. until is when the turn has taken its time, and over says that it is to end.
	within *row.Range
	until  time.Time
	over   bool
	// looked is how many rows of the look were seen since the time since, when it last gave way.
	looked    int
	since     time.Time
	changed   []contribution
	changedIn Room
	bytes     int
	keyBytes  int      // of changed
	oldest    cell.Seq // of the changes that it is about
	// applied, if it is not nil, is the entry of a batch that durable waits for: see finishBatch.
	applied *entry
	durable func(context.Context) error
}

type contribution struct{ key, value []byte }

// evaluate evaluates rows, which ascend, and stores what has changed of their contributions.
// oldest is the stamp of the first change, 0 if nothing was written, and since when they have
// waited.
func (r *run) evaluate(ctx context.Context, keys [][]byte, oldest cell.Seq, since time.Time) error {
	for len(keys) > 0 {
		n, err := r.evaluateFirst(ctx, keys, oldest, since)
		if err != nil {
			return err
		}
		keys = keys[n:]
	}
	return nil
}

// evaluateFirst is evaluate of the first n rows: all, unless the outbox is full before.
func (r *run) evaluateFirst(ctx context.Context, keys [][]byte, oldest cell.Seq, since time.Time) (n int, err error) {
	if err := r.out.admit(ctx); err != nil {
		return 0, err
	}
	release, err := hold(ctx, r.o.Memory.passes)
	if err != nil {
		return 0, err
	}
	defer release()
	p := &pass{run: r, oldest: oldest}
	ranges := make([]row.Range, 0, min(len(keys), evaluateTogether))
	for part := range slices.Chunk(keys, evaluateTogether) {
		began := time.Now()
		ranges = ranges[:0]
		for _, k := range part {
			ranges = append(ranges, row.Single(k))
		}
		ends, later, err := p.ends(ctx, ranges)
		if err != nil {
			return 0, err
		}
		p.rest = ranges
		err = r.eval.Keys(ctx, part, func(x *matview.Row) error { return p.row(ctx, x) })
		if err != nil {
			return 0, err
		}
		if err := p.upTo(ctx, nil); err != nil {
			return 0, err
		}
		if len(ends) > 0 {
			// Contributions first: until then an end says that the row is to be evaluated.
			if err := p.end(ctx); err != nil {
				return 0, err
			}
			if err := r.endsAgain(ctx, later, ends); err != nil {
				return 0, err
			}
			if err := r.storeEnds(ctx, ends); err != nil {
				return 0, err
			}
		}
		took := time.Since(began)
		last := n+len(part) == len(keys) || r.out.full()
		if last {
			// What is there to be shown does not wait for the turn of others.
			if err := p.end(ctx); err != nil {
				return 0, err
			}
		}
		if err := r.o.keys.spend(ctx, len(part), took, share(r.o.Now().Sub(since))); err != nil {
			return 0, err
		}
		if n += len(part); last {
			break
		}
	}
	return n, nil
}

// upTo sees to it that stored has everything up to key, or, if that is nil, that all has passed.
// A look's turn that is over before ends with errTurn.
func (p *pass) upTo(ctx context.Context, key []byte) (err error) {
	for len(p.rest) > 0 && (key == nil || bytes.Compare(p.rest[0].Start, key) <= 0) {
		// All that is stored is before key, and contributes nothing any more.
		gone := len(p.stored)
		if err := p.passed(ctx, nil); err != nil {
			return err
		}
		if err := p.saw(ctx, gone); err != nil {
			return err
		}
		if p.within != nil && bytes.Compare(p.rest[0].Start, p.within.Start) > 0 {
			if p.over = p.over || time.Now().After(p.until); p.over {
				p.within.Start = p.rest[0].Start
				return errTurn
			}
		}
		p.stored = p.stored[:0]
		p.storedRoom.Reset()
		if p.rest, err = p.store.portion(ctx, p.store.contributions, p.rest, together, func(key []byte, c *row.Cell) error {
			p.stored = append(p.stored, contribution{p.storedRoom.Keep(key), p.storedRoom.Keep(c.Value)})
			return nil
		}); err != nil {
			return err
		}
	}
	if key == nil {
		return p.passed(ctx, nil)
	}
	return nil
}

// saw says that a look has seen n more rows. It gives way after each evaluateTogether of them.
func (p *pass) saw(ctx context.Context, n int) error {
	if p.looked += n; p.within == nil || p.looked < evaluateTogether {
		return nil
	}
	return p.giveWay(ctx)
}

// giveWay has a look wait for its turn, for what it has seen since it did so last.
func (p *pass) giveWay(ctx context.Context) error {
	err := p.o.scans.spend(ctx, p.looked, time.Since(p.since), scanShare)
	p.looked, p.since = 0, time.Now()
	p.over = p.over || time.Now().After(p.until)
	return err
}

// row takes what was evaluated of a row.
func (p *pass) row(ctx context.Context, x *matview.Row) error {
	if err := p.upTo(ctx, x.Key); err != nil {
		return err
	}
	if err := p.passed(ctx, x.Key); err != nil {
		return err
	}
	now := x.Contribution
	if x.Err != nil {
		now = nil
		p.count.Failed.Add(1)
		p.note(func(s *rpc.ViewProgress) {
			s.Failed++
			s.LastFailure = x.Err.Error()
		})
	}
	var before []byte
	if len(p.stored) > 0 && bytes.Equal(p.stored[0].key, x.Key) {
		before, p.stored = p.stored[0].value, p.stored[1:]
	}
	return p.change(ctx, x.Key, before, now)
}

// passed takes away the contributions of rows before key, all if it is nil: those rows were
// evaluated and have none.
func (p *pass) passed(ctx context.Context, key []byte) error {
	for len(p.stored) > 0 && (key == nil || bytes.Compare(p.stored[0].key, key) < 0) {
		c := p.stored[0]
		p.stored = p.stored[1:]
		if err := p.change(ctx, c.key, c.value, nil); err != nil {
			return err
		}
	}
	return nil
}

// change notes that a row's contribution was one thing and is another.
func (p *pass) change(ctx context.Context, key, before, now []byte) error {
	if bytes.Equal(before, now) {
		return nil
	}
	if err := p.deltas.Change(key, before, now); err != nil {
		return err
	}
	p.changed = append(p.changed, contribution{p.changedIn.Keep(key), p.changedIn.Keep(now)})
	p.bytes += len(key) + len(now) + 64
	p.keyBytes += len(key)
	if p.bytes+p.deltas.Size() >= commitBytes {
		return p.commit(ctx)
	}
	return nil
}

// end stores what has changed, and waits until all is durable.
func (p *pass) end(ctx context.Context) error {
	if err := p.commit(ctx); err != nil {
		return err
	}
	return p.finishBatch(ctx)
}

// finishBatch waits until the batch that was applied last is durable, and has its entry sent. Other
// rows are evaluated meanwhile.
func (p *pass) finishBatch(ctx context.Context) error {
	e := p.applied
	if e == nil {
		return nil
	}
	p.applied = nil
	if err := p.durable(ctx); err != nil {
		return err
	}
	if len(e.value) > 0 && p.o.Mistake != LosesOutbox {
		p.out.add(e)
	}
	return p.step("stored")
}

// commit stores what has changed, and what that means to rows of the view, in one batch. The
// batch before is durable then.
func (p *pass) commit(ctx context.Context) error {
	if len(p.changed) == 0 {
		return nil
	}
	number := p.t.Visible()
	if err := p.finishBatch(ctx); err != nil {
		return err
	}
	if p.o.Mistake != NumberTooEarly {
		// It is greater than those of all entries before: they are visible.
		number = p.t.Visible()
	}
	if number < p.next {
		return fault.New(fault.Internal, "an entry of the outbox of %v would have number %d, and the one before it has %d", p.t.Name(), number, p.next-1)
	}
	p.next = number + 1
	if err := p.step("evaluated"); err != nil {
		return err
	}
	start := p.t.Bounds().Start
	e := &entry{row: start, shard: uint64(p.t.ID()), seq: uint64(number), oldest: p.oldest, look: p.within != nil}
	if err := p.deltas.Each(func(key, payload []byte) error {
		e.value = appendDelta(e.value, key, payload)
		return nil
	}); err != nil {
		return err
	}
	p.deltas.Reset()
	// It does not wait for room in the outbox: it holds what others wait for.
	p.over = p.over || p.out.full() || time.Now().After(p.until)
	b := tablet.NewBatch(p.changed[0].key)
	defer b.Free()
	b.Grow(len(p.changed)+1, p.keyBytes+len(e.row)) // the entry of the outbox, too
	for i := range p.changed {
		c := &p.changed[i]
		if i > 0 {
			b.Row(c.key)
		}
		if len(c.value) > 0 {
			b.Set(p.store.contribution, nil, 0, c.value)
		} else {
			b.DeleteFamily(p.store.contribution)
		}
	}
	if len(e.value) > 0 && p.o.Mistake != LosesOutbox {
		b.Row(e.row)
		b.Set(p.store.outbox, e.qualifier(), 0, e.value)
	}
	sent := p.out.takeSent()
	p.forget(b, sent)
	pos, err := p.t.ApplyAsync(ctx, b)
	if err != nil {
		return err
	}
	p.applied, p.durable = e, func(ctx context.Context) error { return p.t.Wait(ctx, pos) }
	p.changed, p.bytes, p.keyBytes = p.changed[:0], 0, 0
	p.changedIn.Reset()
	return nil
}

// forget adds the deletion of entries that have arrived to a batch.
func (r *run) forget(b *tablet.Batch, sent []*entry) {
	for _, e := range sent {
		if b.Len() > 0 { // else the row is the batch's first: none is without an operation
			b.Row(e.row)
		}
		b.DeleteColumn(r.store.outbox, e.qualifier(), cell.AllTime)
	}
}

// clean deletes entries that have arrived, if there are any.
func (r *run) clean(ctx context.Context) error {
	sent := r.out.takeSent()
	if len(sent) == 0 {
		return nil
	}
	b := tablet.NewBatch(sent[0].row)
	defer b.Free()
	r.forget(b, sent)
	if err := r.apply(ctx, b); err != nil {
		return err
	}
	return r.step("outbox cleaned")
}

// apply applies a batch and waits until it is durable.
func (r *run) apply(ctx context.Context, b *tablet.Batch) error {
	pos, err := r.t.ApplyAsync(ctx, b)
	if err != nil {
		return err
	}
	return r.t.Wait(ctx, pos)
}
