package model

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/trestledb/trestle/engine/aggregate"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

// serverTime is the clock in microseconds, on the table's grid.
func (t *table) serverTime(now time.Time) int64 {
	us := now.UnixMicro()
	return us - us%t.schema.Granularity
}

func (t *table) onGrid(ts int64) error {
	if ts%t.schema.Granularity == 0 {
		return nil
	}
	return fault.New(fault.Invalid, "Timestamp granularity mismatch: timestamp %d is not a multiple of %d microseconds, "+
		"as required by the table's MILLIS granularity", ts, t.schema.Granularity)
}

func (t *table) noFamily(key []byte, family string) error {
	return schema.NoFamily(family, "Error while mutating the row '%s' (%s) : Requested column family not found.", key, t.schema.Name)
}

// check tells whether muts could ever be applied to key as written (Invalid if
// not) and then whether their families are there (NotFound if not).
func (t *table) check(key []byte, muts []row.Mutation) error {
	if err := checkKey(key); err != nil {
		return err
	}
	if len(muts) > schema.MaxMutations {
		return fault.New(fault.Invalid, "Too many mutations: %d provided; limit %d", len(muts), schema.MaxMutations)
	}
	missing := -1
	for i := range muts {
		m := &muts[i]
		f, ok := t.schema.Families[m.Family]
		if m.Op != row.DeleteRow && !ok && missing < 0 {
			missing = i
		}
		if err := t.checkOne(m, f.Aggregate, ok); err != nil {
			return fault.New(fault.KindOf(err), "Error in field 'mutations' : Error in element #%d : %w", i, err)
		}
	}
	if missing >= 0 {
		return t.noFamily(key, muts[missing].Family)
	}
	return nil
}

func checkKey(key []byte) error {
	switch {
	case len(key) == 0:
		return fault.New(fault.Invalid, "Row keys must be non-empty")
	case len(key) > schema.MaxRowKey:
		return fault.New(fault.Invalid, "Row key of %d bytes; limit %d", len(key), schema.MaxRowKey)
	}
	return nil
}

func checkQualifier(q []byte) error {
	if len(q) > schema.MaxQualifier {
		return fault.New(fault.Invalid, "Column qualifier of %d bytes; limit %d", len(q), schema.MaxQualifier)
	}
	return nil
}

func (t *table) checkOne(m *row.Mutation, agg schema.Aggregate, known bool) error {
	if err := checkQualifier(m.Qualifier); err != nil {
		return err
	}
	switch m.Op {
	case row.DeleteRow, row.DeleteFamily:
		return nil
	case row.DeleteColumn:
		if m.Times.Start >= m.Times.End {
			return fault.New(fault.Invalid, "inverted or invalid timestamp range [%d, %d]", m.Times.Start, m.Times.End)
		}
		for _, ts := range []int64{m.Times.Start, m.Times.End} {
			if ts != math.MinInt64 && ts != math.MaxInt64 {
				if err := t.onGrid(ts); err != nil {
					return err
				}
			}
		}
		return nil
	case row.SetCell:
		if known && agg != schema.NotAggregate {
			return fault.New(fault.Invalid, "SetCell is not allowed in the aggregate column family %s", m.Family)
		}
		if len(m.Value) > schema.MaxValue {
			return fault.New(fault.Invalid, "Value of %d bytes; limit %d", len(m.Value), schema.MaxValue)
		}
		if m.Timestamp == row.ServerTime {
			return nil
		}
	case row.AddToCell, row.MergeToCell:
		if known {
			if _, err := combine(m, agg, nil); err != nil {
				return err
			}
		}
	default:
		return fault.New(fault.Invalid, "Mutation of unknown kind %d", m.Op)
	}
	if m.Timestamp < 0 {
		return fault.New(fault.Invalid, "Timestamps must be >= -1, but got %d", m.Timestamp)
	}
	if m.Truncate {
		return nil
	}
	return t.onGrid(m.Timestamp)
}

// combine returns the state of an aggregate cell after m; nil means no cell.
// The integers are done here by the contract's words, sketches by the package
// that knows their bytes.
func combine(m *row.Mutation, agg schema.Aggregate, state []byte) ([]byte, error) {
	switch agg {
	case schema.NotAggregate:
		return nil, fault.New(fault.Invalid, "Column family %s is not an aggregate", m.Family)
	case schema.HLL:
		if m.Op == row.AddToCell {
			return aggregate.Add(agg, state, m.Input)
		}
		return aggregate.MergeInput(agg, state, m.Input)
	}
	switch k := m.Input.Kind; {
	case k == row.NullInput:
		return state, nil
	case k == row.IntInput && m.Op == row.AddToCell:
		return accumulate(agg, state, m.Input.Int), nil
	case k == row.RawInput || k == row.BytesInput && m.Op == row.MergeToCell:
		if len(m.Input.Bytes) != 8 {
			return nil, fault.New(fault.Invalid, "Input of %d bytes for an Int64 aggregate; it takes 8", len(m.Input.Bytes))
		}
		return accumulate(agg, state, int64(binary.BigEndian.Uint64(m.Input.Bytes))), nil
	}
	return nil, fault.New(fault.Invalid, "Input does not match the type of the aggregate column family %s", m.Family)
}

// apply changes c, which nobody else sees yet: after an error it is dropped.
// muts have passed check.
func (t *table) apply(c cells, muts []row.Mutation, now time.Time) error {
	for i := range muts {
		m := &muts[i]
		f := t.schema.Families[m.Family]
		col := column{family: f.ID, qualifier: string(m.Qualifier)}
		ts := t.timestamp(m, now)
		switch m.Op {
		case row.SetCell:
			c.put(col, ts, bytes.Clone(m.Value))
		case row.AddToCell, row.MergeToCell:
			state, err := combine(m, f.Aggregate, c[col][ts])
			if err != nil {
				return err
			}
			if state != nil {
				c.put(col, ts, state)
			}
		case row.DeleteColumn:
			for ts := range c[col] {
				if m.Times.Contains(ts) {
					delete(c[col], ts)
				}
			}
			if len(c[col]) == 0 {
				delete(c, col)
			}
		case row.DeleteFamily:
			for col := range c {
				if col.family == f.ID {
					delete(c, col)
				}
			}
		case row.DeleteRow:
			clear(c)
		}
	}
	return nil
}

// timestamp returns that of a cell that m sets at now.
func (t *table) timestamp(m *row.Mutation, now time.Time) int64 {
	if m.Timestamp == row.ServerTime {
		return t.serverTime(now)
	}
	if m.Truncate {
		return m.Timestamp - m.Timestamp%t.schema.Granularity
	}
	return m.Timestamp
}

func (c cells) put(col column, ts int64, value []byte) {
	if c[col] == nil {
		c[col] = versions{}
	}
	c[col][ts] = value
}

// accumulate returns the state after n: a 64-bit big-endian integer. Sums wrap.
func accumulate(agg schema.Aggregate, state []byte, n int64) []byte {
	if state != nil {
		old := int64(binary.BigEndian.Uint64(state))
		switch agg {
		case schema.Sum:
			n += old
		case schema.Min:
			n = min(n, old)
		case schema.Max:
			n = max(n, old)
		}
	}
	return binary.BigEndian.AppendUint64(nil, uint64(n))
}

func (t *table) checkToken(k row.Token, now time.Time) error {
	switch {
	case len(k.Token) == 0:
		return nil
	case len(k.Token) < schema.MinTokenBytes:
		return fault.New(fault.Invalid, "Idempotency token of %d bytes; at least %d are needed", len(k.Token), schema.MinTokenBytes)
	case !k.Start.IsZero() && now.Sub(k.Start) > schema.TokenWindow:
		return fault.New(fault.FailedPrecondition, "Idempotency start_time is older than %v", schema.TokenWindow)
	}
	return nil
}

// spent tells whether token was used on the row within the window.
func (t *table) spent(key, token []byte, now time.Time) bool {
	at, ok := t.tokens[string(key)][string(token)]
	return ok && now.Sub(at) <= schema.TokenWindow
}

// spend remembers token, if there is one.
func (t *table) spend(key, token []byte, now time.Time) {
	if len(token) == 0 {
		return
	}
	if t.tokens[string(key)] == nil {
		t.tokens[string(key)] = map[string]time.Time{}
	}
	t.tokens[string(key)][string(token)] = now
}

// modify applies the rules of a ReadModifyWriteRow to c and returns the
// columns that changed.
func (t *table) modify(c cells, key []byte, rules []row.Rule, now time.Time) (map[column]int64, error) {
	changed := map[column]int64{}
	for _, r := range rules {
		col := column{family: t.schema.Families[r.Family].ID, qualifier: string(r.Qualifier)}
		newest := int64(math.MinInt64)
		for ts := range c[col] {
			newest = max(newest, ts)
		}
		old := c[col][newest]
		var value []byte
		switch {
		case r.IsAppend:
			value = append(bytes.Clone(old), r.Append...)
		case len(old) != 0 && len(old) != 8 || len(old) == 0 && newest != math.MinInt64:
			return nil, fault.New(fault.FailedPrecondition,
				"Cannot increment value '%s' (family=%s, qualifier=%s). The increment operation can only be performed on 64-bit values",
				old, r.Family, r.Qualifier)
		default:
			n := r.Increment
			if len(old) == 8 {
				n += int64(binary.BigEndian.Uint64(old))
			}
			value = binary.BigEndian.AppendUint64(nil, uint64(n))
		}
		if len(value) > schema.MaxValue {
			return nil, fault.New(fault.Invalid, "Value of %d bytes; limit %d", len(value), schema.MaxValue)
		}
		ts := max(t.serverTime(now), newest)
		c.put(col, ts, value)
		changed[col] = ts
	}
	return changed, nil
}

func (t *table) checkRules(key []byte, rules []row.Rule) error {
	if err := checkKey(key); err != nil {
		return err
	}
	missing := -1
	for i, r := range rules {
		if err := checkQualifier(r.Qualifier); err != nil {
			return fault.New(fault.KindOf(err), "Error in field 'rules' : Error in element #%d : %w", i, err)
		}
		f, ok := t.schema.Families[r.Family]
		if !ok && missing < 0 {
			missing = i
		}
		if ok && f.Aggregate != schema.NotAggregate {
			return fault.New(fault.Invalid, "ReadModifyWriteRow is not allowed in the aggregate column family %s", r.Family)
		}
	}
	if missing >= 0 {
		return t.noFamily(key, rules[missing].Family)
	}
	return nil
}

// cellsOf returns a row's cells as a client reads them.
func (t *table) cellsOf(c cells) []row.Cell {
	names := map[cell.FamilyID]string{}
	for n, f := range t.schema.Families {
		names[f.ID] = n
	}
	var out []row.Cell
	for col, vs := range c {
		for ts, v := range vs {
			out = append(out, row.Cell{Family: names[col.family], Qualifier: []byte(col.qualifier), Timestamp: ts, Value: v})
		}
	}
	slices.SortFunc(out, compareCells)
	return out
}

func compareCells(a, b row.Cell) int {
	if c := strings.Compare(a.Family, b.Family); c != 0 {
		return c
	}
	if c := bytes.Compare(a.Qualifier, b.Qualifier); c != 0 {
		return c
	}
	switch {
	case a.Timestamp > b.Timestamp:
		return -1
	case a.Timestamp < b.Timestamp:
		return 1
	}
	return 0
}
