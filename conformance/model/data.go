package model

import (
	"bytes"
	"context"
	"slices"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

// ReadRows implements backend.Data. It holds the lock while it looks for the
// next row, and not while it talks to w.
func (b *Backend) ReadRows(ctx context.Context, req *scan.Request, w scan.Writer) (st scan.Stats, err error) {
	_, unlock, err := b.lockedTable(ctx, req.Table)
	if err != nil {
		return st, err
	}
	unlock()
	full := false
	ranges := slices.Clone(req.Ranges)
	if req.Reversed {
		slices.Reverse(ranges)
	}
	for _, r := range ranges {
		for {
			key, in, err := b.next(ctx, req.Table, r, req.Reversed)
			if err != nil {
				return st, err
			}
			if key == nil {
				break
			}
			st.RowsSeen++
			st.CellsSeen += int64(len(in))
			out, err := Filter(req.Filter, key, in)
			if err != nil {
				return st, err
			}
			if len(out) > 0 {
				if full {
					if err := w.Flush(); err != nil {
						return st, err
					}
				}
				w.StartRow(key)
				for i := range out {
					w.Cell(&out[i])
				}
				if full, err = w.EndRow(); err != nil {
					return st, err
				}
				st.RowsReturned++
				st.CellsReturned += int64(len(out))
				if st.RowsReturned == req.Limit {
					return st, nil
				}
			}
			w.Scanned(key)
			if req.Reversed {
				r.End = key
			} else {
				r.Start = row.Successor(key)
			}
		}
	}
	return st, nil
}

// next returns the first row in r, or the last one.
func (b *Backend) next(ctx context.Context, name string, r row.Range, last bool) ([]byte, []row.Cell, error) {
	t, unlock, err := b.lockedTable(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	defer unlock()
	i, _ := slices.BinarySearch(t.keys, string(r.Start))
	if last {
		i = len(t.keys)
		if len(r.End) > 0 {
			i, _ = slices.BinarySearch(t.keys, string(r.End))
		}
		i--
	}
	if i < 0 || i >= len(t.keys) || !r.Contains([]byte(t.keys[i])) {
		return nil, nil, nil
	}
	return []byte(t.keys[i]), t.cellsOf(t.rows[t.keys[i]]), nil
}

// MutateRow implements backend.Data.
func (b *Backend) MutateRow(ctx context.Context, name string, e *row.Entry) error {
	t, unlock, err := b.lockedTable(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	return b.mutateLocked(t, e)
}

func (b *Backend) mutateLocked(t *table, e *row.Entry) error {
	now := b.now()
	if err := t.checkToken(e.Token, now); err != nil {
		return err
	}
	if err := t.check(e.Key, e.Mutations); err != nil {
		return err
	}
	if t.spent(e.Key, e.Token.Token, now) {
		return nil
	}
	c := t.rows[string(e.Key)].clone()
	if err := t.apply(c, e.Mutations, now); err != nil {
		return err
	}
	t.spend(e.Key, e.Token.Token, now)
	t.set(string(e.Key), c)
	t.log(e.Key, t.changesOf(e.Mutations, now), now)
	return nil
}

// MutateRows implements backend.Data.
func (b *Backend) MutateRows(ctx context.Context, name string, entries []row.Entry, done func(int, error)) error {
	t, unlock, err := b.lockedTable(ctx, name)
	if err != nil {
		return err
	}
	for i := range entries {
		if err := t.check(entries[i].Key, entries[i].Mutations); fault.KindOf(err) == fault.Invalid {
			unlock()
			return err
		}
	}
	errs := make([]error, len(entries))
	for i := range entries {
		errs[i] = b.mutateLocked(t, &entries[i])
	}
	unlock()
	for i, err := range errs {
		done(i, err)
	}
	return nil
}

// CheckAndMutateRow implements backend.Data.
func (b *Backend) CheckAndMutateRow(ctx context.Context, name string, key []byte, predicate *filter.Node, then, otherwise []row.Mutation) (bool, error) {
	t, unlock, err := b.lockedTable(ctx, name)
	if err != nil {
		return false, err
	}
	defer unlock()
	for _, muts := range [][]row.Mutation{then, otherwise} {
		if err := t.check(key, muts); err != nil {
			return false, err
		}
	}
	left, err := Filter(predicate, key, t.cellsOf(t.rows[string(key)]))
	if err != nil {
		return false, err
	}
	muts := then
	if len(left) == 0 {
		muts = otherwise
	}
	c := t.rows[string(key)].clone()
	now := b.now()
	if err := t.apply(c, muts, now); err != nil {
		return false, err
	}
	t.set(string(key), c)
	t.log(key, t.changesOf(muts, now), now)
	return len(left) > 0, nil
}

// ReadModifyWriteRow implements backend.Data.
func (b *Backend) ReadModifyWriteRow(ctx context.Context, name string, key []byte, rules []row.Rule) ([]row.Cell, error) {
	t, unlock, err := b.lockedTable(ctx, name)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := t.checkRules(key, rules); err != nil {
		return nil, err
	}
	c := t.rows[string(key)].clone()
	now := b.now()
	changed, err := t.modify(c, key, rules, now)
	if err != nil {
		return nil, err
	}
	t.set(string(key), c)
	only := cells{}
	for col, ts := range changed {
		only.put(col, ts, bytes.Clone(c[col][ts]))
	}
	out := t.cellsOf(only)
	var set []row.Mutation
	for _, c := range out {
		set = append(set, row.Mutation{Op: row.SetCell, Family: c.Family, Qualifier: c.Qualifier, Timestamp: c.Timestamp, Value: c.Value})
	}
	t.log(key, t.changesOf(set, now), now)
	return out, nil
}

// TabletCuts implements backend.Data.
func (b *Backend) TabletCuts(context.Context, string, row.Range) ([][]byte, error) { return nil, nil }

// SampleRowKeys implements backend.Data. The boundaries are the splits that
// the table was created with.
func (b *Backend) SampleRowKeys(ctx context.Context, name string, within row.Range, emit func(scan.Sample) error) error {
	t, unlock, err := b.lockedTable(ctx, name)
	if err != nil {
		return err
	}
	var samples []scan.Sample
	add := func(key []byte) {
		var n int64
		for _, k := range t.keys {
			if len(key) == 0 || k < string(key) {
				n += t.bytes(k)
			}
		}
		samples = append(samples, scan.Sample{Key: key, Offset: n})
	}
	for _, s := range t.splits {
		if s > string(within.Start) && within.Contains([]byte(s)) {
			add([]byte(s))
		}
	}
	add(within.End)
	unlock()
	for _, s := range samples {
		if err := emit(s); err != nil {
			return err
		}
	}
	return nil
}
