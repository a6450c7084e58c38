package engine

import (
	"bytes"
	"context"
	"errors"
	"sort"

	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/plan"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/tablet"
)

// ReadRows implements backend.Data.
func (s *Store) ReadRows(ctx context.Context, req *scan.Request, w scan.Writer) (scan.Stats, error) {
	var stats scan.Stats
	t, err := s.table(req.Table)
	if err != nil {
		return stats, err
	}
	q, err := t.queries.For(t.schema.Load(), req.Filter, req.Reversed)
	if err != nil {
		return stats, err
	}
	if err := ctx.Err(); err != nil || len(req.Ranges) == 0 {
		return stats, err
	}
	// A tablet is given at once all ranges that begin (or, reversed, end) in it.
	// Which tablet that is is asked anew each time: it may be split meanwhile.
	var one [1]row.Range
	for rest := append(one[:0], req.Ranges...); len(rest) > 0; {
		list := t.list()
		at := index(list, rest[0].Start)
		if req.Reversed {
			if at = len(list) - 1; len(rest[len(rest)-1].End) > 0 {
				// The last key before End is in the tablet that ends at or after it.
				end := rest[len(rest)-1].End
				at = sort.Search(len(list), func(i int) bool {
					e := list[i].Bounds().End
					return len(e) == 0 || bytes.Compare(e, end) >= 0
				})
			}
		}
		mine, other := plan.Cut(rest, list[at].Bounds(), req.Reversed)
		for len(mine) > 0 {
			limit := int64(0)
			if req.Limit > 0 {
				limit = req.Limit - stats.RowsReturned
			}
			var full bool
			mine, full, err = list[at].Read(ctx, q, mine, limit, w, &stats)
			if errors.Is(err, tablet.ErrReplaced) {
				break // what is left is for others
			}
			if err != nil {
				return stats, err
			}
			if req.Limit > 0 && stats.RowsReturned >= req.Limit {
				return stats, nil
			}
			if full {
				if err := w.Flush(); err != nil {
					return stats, err
				}
			}
		}
		if req.Reversed {
			rest = append(other, mine...)
		} else {
			rest = append(mine, other...)
		}
	}
	return stats, nil
}

// wait returns nil once what is at pos in the commit log is durable and
// visible.
func (s *Store) wait(ctx context.Context, pos commitlog.Pos) error {
	if pos == (commitlog.Pos{}) {
		return nil // the row is as it was when the store was opened
	}
	return s.env.Commit.Wait(ctx, pos)
}

// apply puts an entry into the log's queue and returns what to wait for.
func apply(ctx context.Context, p *plan.Planner, t *table, e *row.Entry, reads bool) (pos commitlog.Pos, err error) {
	err = t.serve(e.Key, func(tt *tablet.Tablet) error {
		var err error
		pos, err = p.Apply(ctx, tt, e, reads)
		return err
	})
	return pos, err
}

// MutateRow implements backend.Data.
func (s *Store) MutateRow(ctx context.Context, name string, e *row.Entry) error {
	t, err := s.table(name)
	if err != nil {
		return err
	}
	now := s.o.Now()
	if err := plan.CheckToken(e.Token, now); err != nil {
		return err
	}
	p := plan.New(t.schema.Load(), now)
	reads, err := p.Check(e.Key, e.Mutations, "mutations")
	if err != nil {
		return err
	}
	pos, err := apply(ctx, &p, t, e, reads)
	if err != nil {
		return err
	}
	return s.wait(ctx, pos)
}

// MutateRows implements backend.Data. Entries are applied in the order of their
// keys and share group commits.
func (s *Store) MutateRows(ctx context.Context, name string, entries []row.Entry, done func(i int, err error)) error {
	t, err := s.table(name)
	if err != nil {
		return err
	}
	now := s.o.Now()
	p := plan.New(t.schema.Load(), now)
	rows, err := p.Rows(entries, now)
	if err != nil {
		return err
	}
	for key, more := rows.Next(); more; key, more = rows.Next() {
		if err := t.serve(key, func(tt *tablet.Tablet) error { return rows.Apply(ctx, tt) }); err != nil {
			return err // never: Apply returns only what serve goes on after
		}
	}
	for i := range entries {
		done(i, rows.Wait(ctx, i, s.wait))
	}
	return nil
}

// CheckAndMutateRow implements backend.Data.
func (s *Store) CheckAndMutateRow(ctx context.Context, name string, key []byte, predicate *filter.Node, then, otherwise []row.Mutation) (bool, error) {
	t, err := s.table(name)
	if err != nil {
		return false, err
	}
	p := plan.New(t.schema.Load(), s.o.Now())
	c, err := p.Condition(key, predicate, then, otherwise)
	if err != nil {
		return false, err
	}
	var matched bool
	err = t.serve(key, func(tt *tablet.Tablet) error {
		var err error
		matched, err = p.CheckAndMutate(ctx, tt, key, c)
		return err
	})
	return matched, err
}

// UpdateRow implements backend.RowUpdater.
func (s *Store) UpdateRow(ctx context.Context, name string, key, token []byte, read *filter.Node, decide func([]row.Cell) ([]row.Mutation, error)) (repeated bool, err error) {
	t, err := s.table(name)
	if err != nil {
		return false, err
	}
	p := plan.New(t.schema.Load(), s.o.Now())
	q, err := tablet.NewQuery(t.schema.Load(), read, false)
	if err != nil {
		return false, err
	}
	err = t.serve(key, func(tt *tablet.Tablet) error {
		repeated, err = p.Update(ctx, tt, key, token, q, decide)
		return err
	})
	return repeated, err
}

// ReadModifyWriteRow implements backend.Data.
func (s *Store) ReadModifyWriteRow(ctx context.Context, name string, key []byte, rules []row.Rule) ([]row.Cell, error) {
	t, err := s.table(name)
	if err != nil {
		return nil, err
	}
	p := plan.New(t.schema.Load(), s.o.Now())
	if err := p.CheckRules(key, rules); err != nil {
		return nil, err
	}
	var out []row.Cell
	err = t.serve(key, func(tt *tablet.Tablet) error {
		var err error
		out, err = p.ReadModifyWrite(ctx, tt, key, rules)
		return err
	})
	return out, err
}

// SampleRowKeys implements backend.Data: the tablet boundaries.
func (s *Store) SampleRowKeys(_ context.Context, name string, within row.Range, emit func(scan.Sample) error) error {
	t, err := s.table(name)
	if err != nil {
		return err
	}
	var offset int64
	for _, tt := range t.list() {
		b := tt.Bounds()
		offset += tt.Bytes()
		if len(b.End) > 0 && bytes.Compare(b.End, within.Start) <= 0 {
			continue
		}
		if len(b.End) == 0 || len(within.End) > 0 && bytes.Compare(b.End, within.End) >= 0 {
			break
		}
		if err := emit(scan.Sample{Key: b.End, Offset: offset}); err != nil {
			return err
		}
	}
	return emit(scan.Sample{Key: within.End, Offset: offset})
}
