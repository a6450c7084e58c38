package engine

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/trestledb/trestle/engine/aggregate"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/tablet"
)

// ReadRows implements backend.Data.
func (s *Store) ReadRows(ctx context.Context, req *scan.Request, w scan.Writer) (scan.Stats, error) {
	var stats scan.Stats
	t, err := s.table(req.Table)
	if err != nil {
		return stats, err
	}
	q, err := tablet.NewQuery(t.schema.Load(), req.Filter, req.Reversed)
	if err != nil {
		return stats, err
	}
	if err := ctx.Err(); err != nil || len(req.Ranges) == 0 {
		return stats, err
	}
	// A tablet is given at once all ranges that begin (or, reversed, end) in it.
	// Which tablet that is is asked anew each time: it may be split meanwhile.
	for rest := slices.Clone(req.Ranges); len(rest) > 0; {
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
		mine, other := cut(rest, list[at].Bounds(), req.Reversed)
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

// cut divides ranges into the parts within bounds, and those that come later
// in the direction of the read.
func cut(ranges []row.Range, bounds row.Range, reversed bool) (mine, other []row.Range) {
	for i, r := range ranges {
		if part := r.Intersect(bounds); !part.Empty() {
			mine = append(mine, part)
		}
		if reversed {
			if r.End = minEnd(r.End, bounds.Start); len(bounds.Start) > 0 && !r.Empty() {
				other = append(other, r)
			}
			continue
		}
		if len(bounds.End) == 0 {
			continue
		}
		if bytes.Compare(r.Start, bounds.End) >= 0 {
			return mine, append(other, ranges[i:]...)
		}
		if r.Start = bounds.End; !r.Empty() {
			other = append(other, r)
		}
	}
	return mine, other
}

func minEnd(a, b []byte) []byte {
	if len(a) == 0 || len(b) > 0 && bytes.Compare(b, a) < 0 {
		return b
	}
	return a
}

// A planner turns mutations into the operations of a batch. It is made for one
// request and one schema.
type planner struct {
	table *schema.Table
	now   int64 // microseconds, on the table's grid
}

func (s *Store) planner(t *table) planner {
	sch := t.schema.Load()
	now := s.o.Now().UnixMicro()
	return planner{sch, now - now%sch.Granularity}
}

// check reports what is wrong with muts under the schema: first what makes them
// Invalid, then a family that is NotFound. reads tells that planning them takes
// the present state of the row. path is that of the list in the request.
func (p *planner) check(key []byte, muts []row.Mutation, path string) (reads bool, err error) {
	missing := -1
	for i := range muts {
		m := &muts[i]
		if m.Op == row.DeleteRow {
			continue
		}
		f, ok := p.table.Families[m.Family]
		if !ok && missing < 0 {
			missing = i
		}
		switch m.Op {
		case row.SetCell:
			if ok && f.Aggregate != schema.NotAggregate {
				return false, invalid(path, i, "set_cell.family_name", "SetCell is not allowed in the aggregate column family %s", m.Family)
			}
			if m.Timestamp != row.ServerTime && !m.Truncate && m.Timestamp%p.table.Granularity != 0 {
				return false, p.offGrid(path, i, "set_cell.timestamp_micros", m.Timestamp)
			}
		case row.DeleteColumn:
			for _, ts := range [2]int64{m.Times.Start, m.Times.End} {
				if ts%p.table.Granularity != 0 && ts != math.MinInt64 && ts != math.MaxInt64 {
					return false, p.offGrid(path, i, "delete_from_column.time_range", ts)
				}
			}
		case row.AddToCell, row.MergeToCell:
			reads = true
			op := "add_to_cell"
			if m.Op == row.MergeToCell {
				op = "merge_to_cell"
			}
			if ok && f.Aggregate == schema.NotAggregate {
				return false, invalid(path, i, op+".family_name", "Column family %s is not an aggregate", m.Family)
			}
			if m.Timestamp%p.table.Granularity != 0 && !m.Truncate {
				return false, p.offGrid(path, i, op+".timestamp", m.Timestamp)
			}
			if ok {
				if _, err := combine(f.Aggregate, nil, m); err != nil {
					return false, invalid(path, i, op+".input", "%v", err)
				}
			}
		}
	}
	if missing >= 0 {
		e := fault.New(fault.NotFound, "Error while mutating the row '%s' (%s) : Requested column family not found.", key, p.table.Name)
		e.Field = fmt.Sprintf("%s[%d]", path, missing)
		return reads, e
	}
	return reads, nil
}

func invalid(path string, i int, field, format string, args ...any) error {
	return fault.InvalidField(fmt.Sprintf("%s[%d].%s", path, i, field), "Error in field '%s' : Error in element #%d : %s",
		path, i, fmt.Sprintf(format, args...))
}

func (p *planner) offGrid(path string, i int, field string, ts int64) error {
	grid := "MILLIS"
	if p.table.Granularity == 1 {
		grid = "MICROS"
	}
	return invalid(path, i, field, "Timestamp granularity mismatch: timestamp %d is not a multiple of %d microseconds, as required by the table's %s granularity",
		ts, p.table.Granularity, grid)
}

func (p *planner) timestamp(m *row.Mutation) int64 {
	if m.Op == row.SetCell && m.Timestamp == row.ServerTime {
		return p.now
	}
	return m.Timestamp - m.Timestamp%p.table.Granularity
}

// combine returns what an aggregate cell holds after m; nil if it is to stay
// as it is.
func combine(kind schema.Aggregate, state []byte, m *row.Mutation) ([]byte, error) {
	if m.Input.Kind == row.NullInput {
		return nil, nil
	}
	if m.Op == row.AddToCell {
		return aggregate.Add(kind, state, m.Input)
	}
	return aggregate.MergeInput(kind, state, m.Input)
}

// fill adds muts, which have passed check, to b. v is needed only if check said
// so.
func (p *planner) fill(v *tablet.View, b *tablet.Batch, muts []row.Mutation) error {
	// The accumulators that this batch has changed: several inputs of one cell
	// compound, and only the last state is stored.
	var sums map[string][]byte
	dirty := false // b deletes or sets something, so that a View must look through it
	for i := range muts {
		m := &muts[i]
		f := p.table.Families[m.Family]
		switch m.Op {
		case row.SetCell:
			b.Set(f.ID, m.Qualifier, p.timestamp(m), m.Value)
		case row.DeleteColumn:
			b.DeleteColumn(f.ID, m.Qualifier, m.Times)
		case row.DeleteFamily:
			b.DeleteFamily(f.ID)
		case row.DeleteRow:
			b.DeleteRow()
		case row.AddToCell, row.MergeToCell:
			ts := p.timestamp(m)
			at := string(cell.AppendCell(nil, f.ID, m.Qualifier, ts))
			state, ok := sums[at]
			if !ok {
				overlay := b
				if !dirty {
					overlay = nil
				}
				var err error
				if state, _, err = v.Cell(overlay, f.ID, m.Qualifier, ts); err != nil {
					return err
				}
			}
			next, err := combine(f.Aggregate, state, m)
			if err != nil {
				return err
			}
			if next == nil {
				continue
			}
			if len(next) > schema.MaxValue {
				return fault.New(fault.Invalid, "Value of %d bytes; limit %d", len(next), schema.MaxValue)
			}
			if sums == nil {
				sums = map[string][]byte{}
			}
			sums[at] = next
			b.Set(f.ID, m.Qualifier, ts, next)
			continue
		}
		if m.Op != row.SetCell {
			dirty = true
			sums = nil
		}
	}
	return nil
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
func (p *planner) apply(ctx context.Context, t *table, e *row.Entry, reads bool) (pos commitlog.Pos, err error) {
	err = t.serve(e.Key, func(tt *tablet.Tablet) error {
		var err error
		pos, err = p.applyTo(ctx, tt, e, reads)
		return err
	})
	return pos, err
}

func (p *planner) applyTo(ctx context.Context, t *tablet.Tablet, e *row.Entry, reads bool) (commitlog.Pos, error) {
	if !reads && len(e.Token.Token) == 0 {
		b := tablet.NewBatch(e.Key)
		defer b.Free()
		if err := p.fill(nil, b, e.Mutations); err != nil {
			return commitlog.Pos{}, err
		}
		return t.ApplyAsync(ctx, e.Key, b)
	}
	return t.UpdateAsync(ctx, e.Key, func(v *tablet.View, b *tablet.Batch) error {
		if tok := e.Token.Token; len(tok) > 0 {
			seen, err := v.HasToken(tok, p.now-int64(schema.TokenWindow/time.Microsecond))
			if err != nil || seen {
				return err
			}
			if err := p.fill(v, b, e.Mutations); err != nil {
				return err
			}
			b.SetToken(tok, p.now)
			return nil
		}
		return p.fill(v, b, e.Mutations)
	})
}

// checkToken reports a token that is too short, or a mutation that is too old
// to know whether it was applied before.
func (s *Store) checkToken(k row.Token) error {
	switch {
	case len(k.Token) == 0:
		return nil
	case len(k.Token) < schema.MinTokenBytes:
		return fault.InvalidField("idempotency.token", "Idempotency token of %d bytes; at least %d are needed", len(k.Token), schema.MinTokenBytes)
	case !k.Start.IsZero() && s.o.Now().Sub(k.Start) > schema.TokenWindow:
		e := fault.New(fault.FailedPrecondition, "Idempotency start_time is older than %v", schema.TokenWindow)
		e.Field = "idempotency.start_time"
		return e
	}
	return nil
}

// MutateRow implements backend.Data.
func (s *Store) MutateRow(ctx context.Context, name string, e *row.Entry) error {
	t, err := s.table(name)
	if err != nil {
		return err
	}
	if err := s.checkToken(e.Token); err != nil {
		return err
	}
	p := s.planner(t)
	reads, err := p.check(e.Key, e.Mutations, "mutations")
	if err != nil {
		return err
	}
	pos, err := p.apply(ctx, t, e, reads)
	if err != nil {
		return err
	}
	return s.wait(ctx, pos)
}

// MutateRows implements backend.Data. Entries are applied in order and share
// group commits.
func (s *Store) MutateRows(ctx context.Context, name string, entries []row.Entry, done func(i int, err error)) error {
	t, err := s.table(name)
	if err != nil {
		return err
	}
	p := s.planner(t)
	type planned struct {
		reads bool
		err   error
		pos   commitlog.Pos
	}
	plan := make([]planned, len(entries))
	for i := range entries {
		e := &entries[i]
		if plan[i].reads, plan[i].err = p.check(e.Key, e.Mutations, "mutations"); plan[i].err == nil {
			plan[i].err = s.checkToken(e.Token)
		}
		if err := plan[i].err; fault.KindOf(err) == fault.Invalid {
			return inEntry(err, i)
		}
	}
	for i := range entries {
		if e := &entries[i]; plan[i].err == nil {
			plan[i].pos, plan[i].err = p.apply(ctx, t, e, plan[i].reads)
		}
	}
	// Positions ascend, so all but the first wait are short.
	for i := range entries {
		if plan[i].err == nil {
			plan[i].err = s.wait(ctx, plan[i].pos)
		}
		done(i, plan[i].err)
	}
	return nil
}

// inEntry says of an error in which entry of a MutateRows it is.
func inEntry(err error, i int) error {
	var f *fault.Error
	if !errors.As(err, &f) {
		return err
	}
	return f.In("entries", i)
}

// CheckAndMutateRow implements backend.Data.
func (s *Store) CheckAndMutateRow(ctx context.Context, name string, key []byte, predicate *filter.Node, then, otherwise []row.Mutation) (bool, error) {
	t, err := s.table(name)
	if err != nil {
		return false, err
	}
	p := s.planner(t)
	q, err := tablet.NewQuery(p.table, predicate, false)
	if err != nil {
		return false, err
	}
	if _, err := p.check(key, then, "true_mutations"); err != nil {
		return false, err
	}
	if _, err := p.check(key, otherwise, "false_mutations"); err != nil {
		return false, err
	}
	var matched bool
	err = t.serve(key, func(tt *tablet.Tablet) error {
		return tt.Update(ctx, key, func(v *tablet.View, b *tablet.Batch) error {
			var err error
			if matched, err = v.Matches(q); err != nil {
				return err
			}
			if matched {
				return p.fill(v, b, then)
			}
			return p.fill(v, b, otherwise)
		})
	})
	return matched, err
}

// ReadModifyWriteRow implements backend.Data.
func (s *Store) ReadModifyWriteRow(ctx context.Context, name string, key []byte, rules []row.Rule) ([]row.Cell, error) {
	t, err := s.table(name)
	if err != nil {
		return nil, err
	}
	p := s.planner(t)
	for i := range rules {
		f, ok := p.table.Families[rules[i].Family]
		if !ok {
			e := fault.New(fault.NotFound, "Error while mutating the row '%s' (%s) : Requested column family not found.", key, p.table.Name)
			e.Field = fmt.Sprintf("rules[%d].family_name", i)
			return nil, e
		}
		if f.Aggregate != schema.NotAggregate {
			return nil, invalid("rules", i, "family_name", "ReadModifyWriteRow is not allowed in the aggregate column family %s", f.Name)
		}
	}
	var out []row.Cell
	decide := func(v *tablet.View, b *tablet.Batch) error {
		out = out[:0]
		changed := make(map[string]int, len(rules))
		for i := range rules {
			r := &rules[i]
			f := p.table.Families[r.Family]
			at := string(cell.AppendColumn(nil, f.ID, r.Qualifier))
			k, again := changed[at]
			if !again {
				ts, value, ok, err := v.Newest(nil, f.ID, r.Qualifier)
				if err != nil {
					return err
				}
				if !ok {
					ts, value = math.MinInt64, nil
				}
				k = len(out)
				changed[at] = k
				out = append(out, row.Cell{Family: r.Family, Qualifier: r.Qualifier, Timestamp: max(p.now, ts), Value: value})
			}
			var err error
			if out[k].Value, err = modify(out[k].Value, r); err != nil {
				return err
			}
		}
		for i := range out {
			c := &out[i]
			b.Set(p.table.Families[c.Family].ID, c.Qualifier, c.Timestamp, c.Value)
		}
		return nil
	}
	if err := t.serve(key, func(tt *tablet.Tablet) error { return tt.Update(ctx, key, decide) }); err != nil {
		return nil, err
	}
	slices.SortFunc(out, func(a, b row.Cell) int {
		if c := strings.Compare(a.Family, b.Family); c != 0 {
			return c
		}
		return bytes.Compare(a.Qualifier, b.Qualifier)
	})
	return out, nil
}

// modify returns what a rule makes of a column's newest value; nil is none.
func modify(old []byte, r *row.Rule) ([]byte, error) {
	if r.IsAppend {
		if n := len(old) + len(r.Append); n > schema.MaxValue {
			return nil, fault.New(fault.Invalid, "Value of %d bytes; limit %d", n, schema.MaxValue)
		}
		// Never nil, which would be a missing cell.
		return append(append(make([]byte, 0, len(old)+len(r.Append)), old...), r.Append...), nil
	}
	if old != nil && len(old) != 8 {
		shown := old
		if len(shown) > 64 {
			shown = shown[:64]
		}
		return nil, fault.New(fault.FailedPrecondition,
			"Cannot increment value '%s' (family=%s, qualifier=%s). The increment operation can only be performed on 64-bit values",
			shown, r.Family, r.Qualifier)
	}
	n := r.Increment
	if old != nil {
		n += int64(binary.BigEndian.Uint64(old))
	}
	return binary.BigEndian.AppendUint64(nil, uint64(n)), nil
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
