package plan

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/tablet"
)

// togetherBytes bounds what is put into a tablet at once: other writers of the
// tablet wait meanwhile, some 300 µs.
const togetherBytes = 256 << 10

// Rows are the entries of a MutateRows on their way into tablets. They go in the
// order of their keys, those of one row in the order in which they were given.
type Rows struct {
	p       *Planner
	entries []row.Entry
	states  []entryState
	todo    []int32 // places of entries that are in no tablet yet, in order
}

// An entryState is what has become of an entry.
type entryState struct {
	pos   commitlog.Pos
	err   error
	reads bool
}

// Rows checks the entries of a MutateRows that is carried out now. It fails if one
// of them can never be applied as it is: then the others must not be either.
func (p *Planner) Rows(entries []row.Entry, now time.Time) (*Rows, error) {
	r := &Rows{p: p, entries: entries, states: make([]entryState, len(entries)), todo: make([]int32, 0, len(entries))}
	sorted := true
	for i := range entries {
		e, s := &entries[i], &r.states[i]
		if s.reads, s.err = p.Check(e.Key, e.Mutations, "mutations"); s.err == nil {
			s.err = CheckToken(e.Token, now)
		}
		if s.err != nil {
			if fault.KindOf(s.err) == fault.Invalid {
				return nil, InEntry(s.err, i)
			}
			continue
		}
		if n := len(r.todo); n > 0 && sorted {
			sorted = bytes.Compare(entries[r.todo[n-1]].Key, e.Key) <= 0
		}
		r.todo = append(r.todo, int32(i))
	}
	if !sorted {
		slices.SortStableFunc(r.todo, func(a, b int32) int { return bytes.Compare(entries[a].Key, entries[b].Key) })
	}
	return r, nil
}

// Apply puts the entries of the tablet's rows that are in no tablet yet into the
// log's queue. It returns tablet.ErrReplaced, and nothing else, if others serve
// what is left of them.
func (r *Rows) Apply(ctx context.Context, t *tablet.Tablet) error {
	end := t.Bounds().End
	for len(r.todo) > 0 {
		if key := r.entries[r.todo[0]].Key; len(end) > 0 && bytes.Compare(key, end) >= 0 {
			return nil
		}
		n, pos, err := r.some(ctx, t, end)
		if errors.Is(err, tablet.ErrReplaced) {
			return err
		}
		for _, i := range r.todo[:n] {
			r.states[i].pos, r.states[i].err = pos, err
		}
		r.todo = r.todo[n:]
	}
	return nil
}

// some applies the first n of the entries that are left, at least one.
func (r *Rows) some(ctx context.Context, t *tablet.Tablet, end []byte) (n int, pos commitlog.Pos, err error) {
	first := r.todo[0]
	if r.alone(first) {
		pos, err = r.p.Apply(ctx, t, &r.entries[first], r.states[first].reads)
		return 1, pos, err
	}
	b := tablet.NewBatch(r.entries[first].Key)
	defer b.Free()
	for {
		e := &r.entries[r.todo[n]]
		if n++; n > 1 {
			b.Row(e.Key)
		}
		if err := r.p.fill(nil, b, e.Mutations); err != nil {
			return n, pos, err
		}
		if n == len(r.todo) || b.Size() >= togetherBytes {
			break
		}
		next := r.todo[n]
		if r.alone(next) || len(end) > 0 && bytes.Compare(r.entries[next].Key, end) >= 0 {
			break
		}
	}
	pos, err = t.ApplyAsync(ctx, b)
	return n, pos, err
}

// alone tells whether an entry is not applied together with others, because it
// takes the present state of its row.
func (r *Rows) alone(i int32) bool { return r.states[i].reads || len(r.entries[i].Token.Token) > 0 }

// Refuse makes err the outcome of all that is in no tablet yet.
func (r *Rows) Refuse(err error) {
	for _, i := range r.todo {
		r.states[i].err = err
	}
	r.todo = nil
}

// Wait returns the outcome of entry i of those that were given. wait is called
// with the position to wait for, unless it was not applied.
func (r *Rows) Wait(ctx context.Context, i int, wait func(context.Context, commitlog.Pos) error) error {
	if s := &r.states[i]; s.err != nil {
		return s.err
	}
	return wait(ctx, r.states[i].pos)
}
