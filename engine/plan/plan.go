package plan

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/trestledb/trestle/engine/aggregate"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/tablet"
)

// A Planner turns the mutations of one request into operations of a tablet.
type Planner struct {
	table *schema.Table
	now   int64 // microseconds, on the table's grid
}

// New returns a Planner for a request that is judged by a schema and carried out
// now.
func New(table *schema.Table, now time.Time) Planner {
	us := now.UnixMicro()
	return Planner{table, us - us%table.Granularity}
}

// Check reports what is wrong with muts under the schema: first that it is not
// sound (schema.Table.CheckSound), then what makes them Invalid, then a family that is NotFound. reads tells that planning them takes
// the present state of the row. path is that of the list in the request.
func (p *Planner) Check(key []byte, muts []row.Mutation, path string) (reads bool, err error) {
	if err := p.table.CheckSound(); err != nil {
		return false, err
	}
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
		case row.DeleteColumn, row.DeleteFamily:
			reads = reads || p.tellsColumns(m)
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
				if _, err := Combine(f.Aggregate, nil, m); err != nil {
					return false, invalid(path, i, op+".input", "%v", err)
				}
			}
		}
	}
	if missing >= 0 {
		e := p.noFamily(key, muts[missing].Family)
		e.Field = fmt.Sprintf("%s[%d]", path, missing)
		return reads, e
	}
	return reads, nil
}

func (p *Planner) noFamily(key []byte, family string) *fault.Error {
	return schema.NoFamily(family, "Error while mutating the row '%s' (%s) : Requested column family not found.", key, p.table.Name)
}

func invalid(path string, i int, field, format string, args ...any) error {
	return fault.InvalidField(fmt.Sprintf("%s[%d].%s", path, i, field), "Error in field '%s' : Error in element #%d : %s",
		path, i, fmt.Sprintf(format, args...))
}

func (p *Planner) offGrid(path string, i int, field string, ts int64) error {
	grid := "MILLIS"
	if p.table.Granularity == 1 {
		grid = "MICROS"
	}
	return invalid(path, i, field, "Timestamp granularity mismatch: timestamp %d is not a multiple of %d microseconds, as required by the table's %s granularity",
		ts, p.table.Granularity, grid)
}

func (p *Planner) timestamp(m *row.Mutation) int64 {
	if m.Op == row.SetCell && m.Timestamp == row.ServerTime {
		return p.now
	}
	return m.Timestamp - m.Timestamp%p.table.Granularity
}

// Combine returns what an aggregate cell holds after m; nil if it is to stay
// as it is.
func Combine(kind schema.Aggregate, state []byte, m *row.Mutation) ([]byte, error) {
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
func (p *Planner) fill(v *tablet.View, b *tablet.Batch, muts []row.Mutation) error {
	// The accumulators that this batch has changed: several inputs of one cell
	// compound, and only the last state is stored.
	var sums map[string][]byte
	var told toldColumns
	dirty := false // b deletes or sets something, so that a View must look through it
	for i := range muts {
		m := &muts[i]
		f := p.table.Families[m.Family]
		switch m.Op {
		case row.SetCell:
			if m.Until != 0 {
				b.SetUntil(f.ID, m.Qualifier, p.timestamp(m), m.Value, m.Until)
			} else {
				b.Set(f.ID, m.Qualifier, p.timestamp(m), m.Value)
			}
		case row.DeleteColumn:
			b.CoverColumn(f.ID, m.Qualifier, m.Times, m.Sticky)
		case row.DeleteFamily:
			if m.Times == (cell.TimeRange{}) {
				b.DeleteFamily(f.ID)
			} else {
				if p.tellsColumns(m) {
					if err := p.tellColumns(v, b, f, m.Times, &told); err != nil {
						return err
					}
				}
				b.CoverFamily(f.ID, m.Times, m.Sticky)
			}
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
			next, err := Combine(f.Aggregate, state, m)
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
			if p.table.Stream != nil {
				op := changes.AddToCell
				if m.Op == row.MergeToCell {
					op = changes.MergeToCell
				}
				b.Input(op, f.ID, m.Qualifier, ts, changes.AppendInput(nil, m.Input))
			}
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

// tellsColumns tells whether readers of changes are to know which columns m deletes from. It
// is so of a family up to a time, which only HBase's clients delete: the record of changes has
// no such operation. One that is kept for views only may bring a backup to a time.
func (p *Planner) tellsColumns(m *row.Mutation) bool {
	return m.Op == row.DeleteFamily && m.Times != (cell.TimeRange{}) && m.Times != cell.AllTime && p.table.Stream != nil
}

const (
	// maxToldBytes bounds the qualifiers of the columns that the deletions of families up to a
	// time are told as, of all mutations of a row. There are at most schema.MaxMutations of them.
	maxToldBytes = 16 << 20
	// maxLookedThrough bounds the entries that further deletions of the same families look
	// through, with the row locked: some 0.3 s of processor time. To find the family in each
	// run is as much work as findEntries.
	maxLookedThrough, findEntries = 1_000_000, 64
)

// toldColumns are how many columns, and bytes of their qualifiers, earlier mutations were told as.
type toldColumns struct {
	n, bytes int
	// families are those that were looked through, and looked the entries of further times.
	families map[cell.FamilyID]bool
	looked   int
}

// tellColumns notes in b what a deletion of a family leaves out, if it does: the columns that
// it deletes from, in place of all of the family.
func (p *Planner) tellColumns(v *tablet.View, b *tablet.Batch, f schema.Family, times cell.TimeRange, told *toldColumns) error {
	var columns [][]byte
	n, size := told.n, told.bytes
	// Once for each family is work that grows with the row only.
	again, most := told.families[f.ID], math.MaxInt
	if again {
		told.looked += findEntries
		most = maxLookedThrough - told.looked
	} else if told.families == nil {
		told.families = map[cell.FamilyID]bool{}
	}
	told.families[f.ID] = true
	others, looked, err := v.Columns(b, f.ID, times, most, func(qualifier []byte) {
		if n, size = n+1, size+len(qualifier); n > schema.MaxMutations || size > maxToldBytes {
			columns = nil // only if there are no others
			return
		}
		columns = append(columns, qualifier)
	})
	if again {
		told.looked += looked
	}
	switch {
	case err != nil:
		return err
	case looked > most:
		return fault.New(fault.FailedPrecondition, "Deletions of family %s up to a time, after the first of the request, look through more than %d entries of the row, since its changes are told. "+
			"Delete up to the latest of the times only, or in several requests", f.Name, maxLookedThrough)
	case !others:
		return nil
	case n > schema.MaxMutations || size > maxToldBytes:
		return fault.New(fault.FailedPrecondition, "The row has %d columns of %d bytes, the last in family %s, to be deleted in part: a change stream tells at most %d columns of %d bytes of a deletion up to a time. "+
			"Delete the columns in several requests, or the family without a time", n, size, f.Name, schema.MaxMutations, maxToldBytes)
	}
	told.n, told.bytes = n, size
	b.Covered(f.ID, columns, times)
	return nil
}

// Apply puts an entry that has passed Check, which also said whether it reads,
// into the log's queue of its tablet and returns what to wait for.
func (p *Planner) Apply(ctx context.Context, t *tablet.Tablet, e *row.Entry, reads bool) (commitlog.Pos, error) {
	if !reads && len(e.Token.Token) == 0 {
		b := tablet.NewBatch(e.Key)
		defer b.Free()
		if err := p.fill(nil, b, e.Mutations); err != nil {
			return commitlog.Pos{}, err
		}
		return t.ApplyAsync(ctx, b)
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

// CheckToken reports a token that is too short, or a mutation that is too old
// at the time now to know whether it was applied before.
func CheckToken(k row.Token, now time.Time) error {
	switch {
	case len(k.Token) == 0:
		return nil
	case len(k.Token) < schema.MinTokenBytes:
		return fault.InvalidField("idempotency.token", "Idempotency token of %d bytes; at least %d are needed", len(k.Token), schema.MinTokenBytes)
	case !k.Start.IsZero() && now.Sub(k.Start) > schema.TokenWindow:
		e := fault.New(fault.FailedPrecondition, "Idempotency start_time is older than %v", schema.TokenWindow)
		e.Field = "idempotency.start_time"
		return e
	}
	return nil
}

// InEntry says of an error in which entry of a MutateRows it is.
func InEntry(err error, i int) error {
	var f *fault.Error
	if !errors.As(err, &f) {
		return err
	}
	return f.In("entries", i)
}

// A Condition is what a CheckAndMutateRow asks and does.
type Condition struct {
	query           *tablet.Query
	then, otherwise []row.Mutation
}

// Condition checks a CheckAndMutateRow of a row.
func (p *Planner) Condition(key []byte, predicate *filter.Node, then, otherwise []row.Mutation) (*Condition, error) {
	q, err := tablet.NewQuery(p.table, predicate, false)
	if err != nil {
		return nil, err
	}
	if _, err := p.Check(key, then, "true_mutations"); err != nil {
		return nil, err
	}
	if _, err := p.Check(key, otherwise, "false_mutations"); err != nil {
		return nil, err
	}
	return &Condition{q, then, otherwise}, nil
}

// CheckAndMutate carries out a Condition that was made for the row key, and
// waits until it is durable.
func (p *Planner) CheckAndMutate(ctx context.Context, t *tablet.Tablet, key []byte, c *Condition) (matched bool, err error) {
	err = t.Update(ctx, key, func(v *tablet.View, b *tablet.Batch) error {
		var err error
		if matched, err = v.Matches(c.query); err != nil {
			return err
		}
		if matched {
			return p.fill(v, b, c.then)
		}
		return p.fill(v, b, c.otherwise)
	})
	return matched, err
}

// Update gives decide the cells of a row that a query leaves, and carries out
// the mutations that it returns. It waits until what decide saw and did is
// durable. decide may keep the cells. Of updates of a row with one token,
// unless that is empty, only the first is made that has mutations. The result
// repeated says that this is a later one, for which decide is not asked.
func (p *Planner) Update(ctx context.Context, t *tablet.Tablet, key, token []byte, q *tablet.Query, decide func([]row.Cell) ([]row.Mutation, error)) (repeated bool, err error) {
	if err := CheckToken(row.Token{Token: token}, time.UnixMicro(p.now)); err != nil {
		return false, err
	}
	err = t.Update(ctx, key, func(v *tablet.View, b *tablet.Batch) error {
		if len(token) > 0 {
			if repeated, err = v.HasToken(token, p.now-int64(schema.TokenWindow/time.Microsecond)); err != nil || repeated {
				return err
			}
		}
		var cells []row.Cell
		if err := v.Read(q, func(c *row.Cell) { cells = append(cells, c.Clone()) }); err != nil {
			return err
		}
		muts, err := decide(cells)
		if err != nil {
			return err
		}
		if _, err := p.Check(key, muts, "mutations"); err != nil {
			return err
		}
		if len(muts) > 0 && len(token) > 0 {
			b.SetToken(token, p.now)
		}
		return p.fill(v, b, muts)
	})
	return repeated, err
}

// CheckRules reports what is wrong with the rules of a ReadModifyWriteRow.
func (p *Planner) CheckRules(key []byte, rules []row.Rule) error {
	if err := p.table.CheckSound(); err != nil {
		return err
	}
	for i := range rules {
		f, ok := p.table.Families[rules[i].Family]
		if !ok {
			e := p.noFamily(key, rules[i].Family)
			e.Field = fmt.Sprintf("rules[%d].family_name", i)
			return e
		}
		if f.Aggregate != schema.NotAggregate {
			return invalid("rules", i, "family_name", "ReadModifyWriteRow is not allowed in the aggregate column family %s", f.Name)
		}
	}
	return nil
}

// ReadModifyWrite carries out rules that have passed CheckRules, waits until
// their effect is durable and returns the new cells.
func (p *Planner) ReadModifyWrite(ctx context.Context, t *tablet.Tablet, key []byte, rules []row.Rule) ([]row.Cell, error) {
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
			if out[k].Value, err = Modify(out[k].Value, r); err != nil {
				return err
			}
		}
		for i := range out {
			c := &out[i]
			b.Set(p.table.Families[c.Family].ID, c.Qualifier, c.Timestamp, c.Value)
		}
		return nil
	}
	if err := t.Update(ctx, key, decide); err != nil {
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

// Modify returns what a rule makes of a column's newest value; nil is none.
func Modify(old []byte, r *row.Rule) ([]byte, error) {
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
