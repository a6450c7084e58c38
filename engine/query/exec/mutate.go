package exec

import (
	"context"
	"errors"
	"io"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/functions"
	"github.com/trestledb/trestle/engine/query/types"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
)

// What DML sends at a time.
const (
	mutateRows  = 1000
	mutateBytes = 4 << 20
)

// mutation runs DML: each row is written as a whole or not at all, and rows that were
// written stay when a later one fails.
type mutation struct {
	x       *execution
	m       *algebra.Mutation
	key     int
	values  []int // of each target, -1 if it is deleted
	quals   []int // of each target, -1 for the whole family
	entries []row.Entry
	bytes   int
	// inserted has the keys of the rows of an INSERT so far.
	inserted *byteTable
	share    *share
	affected int64
}

// Mutate runs m and returns how many rows it wrote. Stats are those of its input.
func Mutate(ctx context.Context, c Config, m *algebra.Mutation) (affected int64, stats func(algebra.Rel) *algebra.Stats, err error) {
	x, cancel := newExecution(ctx, c)
	defer x.close()
	defer cancel(context.Canceled)
	stats = func(r algebra.Rel) *algebra.Stats { return x.stats[r] }
	if m.Table.Schema == nil {
		return 0, stats, fault.New(fault.Invalid, "Table %s cannot be written", m.Table.Name)
	}
	op, s, err := x.build(m.Input, nil)
	if err != nil {
		return 0, stats, err
	}
	defer op.Close()
	w := &mutation{x: x, m: m, inserted: newByteTable(), share: x.share("INSERT")}
	find := func(id algebra.ColumnID) (int, error) {
		slot, ok := s.slots.of(id)
		if !ok {
			return 0, fault.New(fault.Internal, "column %d is not there", id)
		}
		return slot, nil
	}
	if w.key, err = find(m.Key); err != nil {
		return 0, stats, err
	}
	for _, t := range m.Targets {
		v, q := -1, -1
		if !t.Delete {
			if v, err = find(t.Value); err != nil {
				return 0, stats, err
			}
		}
		if t.Qualifier != nil {
			if q, err = find(*t.Qualifier); err != nil {
				return 0, stats, err
			}
		}
		w.values, w.quals = append(w.values, v), append(w.quals, q)
		if f, ok := m.Table.Schema.Families[t.Family]; ok && f.Aggregate != schema.NotAggregate {
			return 0, stats, fault.New(fault.Invalid, "Family %s aggregates, and cannot be written by DML", t.Family)
		}
	}
	err = w.run(op, columnTypes(m.Input.Columns()))
	if err != nil && x.ctx.Err() != nil {
		err = context.Cause(x.ctx)
	}
	return w.affected, stats, err
}

func (w *mutation) run(op Operator, ts []*types.Type) error {
	if err := op.Open(w.x.ctx); err != nil {
		return err
	}
	var from batchSource = operatorSource{w.x.ctx, op}
	if w.m.Kind == algebra.InsertRows {
		// An INSERT may read the table that it writes: it reads all before.
		kept := newSpool(w.x, w.x.share("INSERT"), w.x.statsOf(w.m.Input), ts)
		defer kept.close()
		if err := kept.fill(from); err != nil {
			return err
		}
		from = kept.reader()
	}
	for {
		b, err := from.next()
		if errors.Is(err, io.EOF) {
			return w.flush()
		}
		if err != nil {
			return err
		}
		for k := range b.Rows() {
			if err := w.add(b, rowOf(b, k)); err != nil {
				return err
			}
			if len(w.entries) >= mutateRows || w.bytes >= mutateBytes {
				if err := w.flush(); err != nil {
					return err
				}
			}
		}
	}
}

// add makes the mutations of one row.
func (w *mutation) add(b *types.Batch, i int) error {
	key := valueOf(b, w.key, i)
	if !key.Valid {
		return functions.Errorf("The _key of a row cannot be NULL")
	}
	e := row.Entry{Key: []byte(key.Str)}
	insert := w.m.Kind == algebra.InsertRows
	if insert {
		before := w.inserted.bytes()
		_, fresh := w.inserted.find(e.Key)
		if err := w.share.need(w.inserted.bytes() - before); err != nil {
			return err
		}
		if !fresh {
			switch w.m.Mode {
			case "":
				return fault.New(fault.AlreadyExists, "INSERT has two rows with the _key %s", row.Escape(e.Key))
			case "IGNORE":
				return nil
			}
		}
	}
	switch {
	case w.m.Kind == algebra.DeleteRows && len(w.m.Targets) == 0, insert && w.m.Mode == "REPLACE":
		e.Mutations = append(e.Mutations, row.Mutation{Op: row.DeleteRow})
	}
	cells := 0
	for t := range w.m.Targets {
		list, err := w.target(e.Mutations, b, i, t, insert)
		if err != nil {
			return err
		}
		cells += len(list) - len(e.Mutations)
		e.Mutations = list
	}
	if insert && cells == 0 {
		return functions.Errorf("INSERT of a row without cells: all its values are NULL")
	}
	if err := checkEntry(&e, insert); err != nil {
		return err
	}
	for _, m := range e.Mutations {
		w.bytes += len(m.Value) + len(m.Qualifier) + 64
	}
	w.entries = append(w.entries, e)
	return nil
}

// checkEntry holds a row to the limits of Bigtable, which not every Source checks: HBase's are
// others. The key of a row that is there is taken as it is. A value is far below its limit,
// as it was in the memory of the query.
func checkEntry(e *row.Entry, insert bool) error {
	switch {
	case insert && len(e.Key) == 0:
		return functions.Errorf("The _key of a row cannot be empty")
	case insert && len(e.Key) > schema.MaxRowKey:
		return functions.Errorf("The _key of a row must be at most %d bytes, but has %d", schema.MaxRowKey, len(e.Key))
	}
	for _, m := range e.Mutations {
		if len(m.Qualifier) > schema.MaxQualifier {
			return functions.Errorf("The qualifier of a column of %s must be at most %d bytes, but has %d", m.Family, schema.MaxQualifier, len(m.Qualifier))
		}
	}
	return nil
}

// target appends what is written of one target.
func (w *mutation) target(to []row.Mutation, b *types.Batch, i, t int, insert bool) ([]row.Mutation, error) {
	family := w.m.Targets[t].Family
	var v types.Value
	if w.values[t] >= 0 {
		v = valueOf(b, w.values[t], i)
	}
	if w.quals[t] >= 0 {
		q := valueOf(b, w.quals[t], i)
		if !q.Valid {
			return nil, functions.Errorf("The qualifier of a column of %s cannot be NULL", family)
		}
		switch {
		case v.Valid:
			return append(to, setCell(family, q.Str, v.Str)), nil
		case insert:
			return to, nil
		}
		return append(to, row.Mutation{Op: row.DeleteColumn, Family: family, Qualifier: []byte(q.Str), Times: cell.AllTime}), nil
	}
	if !insert {
		to = append(to, row.Mutation{Op: row.DeleteFamily, Family: family})
	}
	for k := 0; k+1 < len(v.List); k += 2 {
		if v.List[k+1].Valid {
			to = append(to, setCell(family, v.List[k].Str, v.List[k+1].Str))
		}
	}
	return to, nil
}

func setCell(family, qualifier, value string) row.Mutation {
	return row.Mutation{Op: row.SetCell, Family: family, Qualifier: []byte(qualifier), Timestamp: row.ServerTime, Value: []byte(value)}
}

// flush writes the entries.
func (w *mutation) flush() error {
	if len(w.entries) == 0 {
		return nil
	}
	entries := w.entries
	w.entries, w.bytes = nil, 0
	if w.m.Kind == algebra.InsertRows && (w.m.Mode == "" || w.m.Mode == "IGNORE") {
		there, err := w.existing(entries)
		if err != nil {
			return err
		}
		kept := entries[:0]
		for _, e := range entries {
			if !there[string(e.Key)] {
				kept = append(kept, e)
			} else if w.m.Mode == "" {
				return fault.New(fault.AlreadyExists, "INSERT of a row that exists: %s", row.Escape(e.Key))
			}
		}
		if entries = kept; len(entries) == 0 {
			return nil
		}
	}
	var first error
	err := w.x.Source.MutateRows(w.x.ctx, w.m.Table.FullName, entries, func(i int, err error) {
		switch {
		case err == nil:
			w.affected++
		case first == nil:
			first = err
		}
	})
	if err == nil {
		err = first
	}
	return err
}

// existing returns which of the rows exist.
func (w *mutation) existing(entries []row.Entry) (map[string]bool, error) {
	ranges := make([]row.Range, len(entries))
	for i, e := range entries {
		ranges[i] = row.Single(e.Key)
	}
	found := keySet{}
	_, err := w.x.Source.ReadRows(w.x.ctx, &scan.Request{Table: w.m.Table.FullName, Ranges: row.Union(ranges),
		Filter: &filter.Node{Op: filter.Chain, Children: []*filter.Node{{Op: filter.CellsPerRowLimit, N: 1}, {Op: filter.StripValue}}}}, &found)
	return found.keys, err
}

// keySet collects the keys of rows. It is a scan.Writer.
type keySet struct {
	keys map[string]bool
	key  []byte
	some bool
}

func (s *keySet) StartRow(key []byte) { s.key, s.some = append(s.key[:0], key...), false }
func (s *keySet) Cell(*row.Cell)      { s.some = true }
func (s *keySet) Scanned([]byte)      {}
func (s *keySet) Flush() error        { return nil }
func (s *keySet) EndRow() (bool, error) {
	if s.some {
		if s.keys == nil {
			s.keys = map[string]bool{}
		}
		s.keys[string(s.key)] = true
	}
	return false, nil
}
