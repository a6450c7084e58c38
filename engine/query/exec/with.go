package exec

import (
	"context"
	"errors"
	"io"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
)

// definition is one query of a WITH. Its rows are kept when they are first read.
type definition struct {
	x     *execution
	name  string
	op    Operator // of one that is not recursive
	slots []int
	types []*types.Type
	share *share
	stats *algebra.Stats
	kept  *spool
	ready bool
	// Of a recursive one:
	recursive *recursion
}

// recursion is a definition that refers to itself: base gives the first rows, and step
// makes further ones of those that came last, delta.
type recursion struct {
	base, step []Operator
	baseSlots  [][]int
	stepSlots  [][]int
	distinct   bool
	delta      *spool
	seen       *byteTable
	running    bool
}

// withOp is the body of a WITH, whose definitions begin anew with it.
type withOp struct {
	Operator
	defs   []*definition
	x      *execution
	opened bool
}

func newWith(x *execution, r *algebra.With, outer *frame) (Operator, error) {
	w := &withOp{x: x}
	for i := range r.Defs {
		d, err := newDefinition(x, &r.Defs[i], outer)
		if err != nil {
			return nil, err
		}
		w.defs = append(w.defs, d)
	}
	var err error
	w.Operator, _, err = x.build(r.Body, outer)
	return w, err
}

func newDefinition(x *execution, def *algebra.Definition, outer *frame) (*definition, error) {
	d := &definition{x: x, name: def.Name, share: x.share("WITH " + def.Name), stats: x.statsOf(def.Rel)}
	if x.defs == nil {
		x.defs = map[string]*definition{}
	}
	x.defs[def.Name] = d
	byID := map[algebra.ColumnID]int{}
	cols := def.Rel.Columns()
	for i, c := range cols {
		byID[c.ID] = i
	}
	for _, id := range def.Cols {
		i, ok := byID[id]
		if !ok {
			return nil, fault.New(fault.Internal, "WITH %s has no column %d", def.Name, id)
		}
		d.slots = append(d.slots, i)
		d.types = append(d.types, cols[i].Type)
	}
	if def.Recursive {
		return d, d.buildRecursion(def, outer)
	}
	var err error
	d.op, _, err = x.build(def.Rel, outer)
	return d, err
}

// buildRecursion finds the UNION of a recursive definition, which stands alone or under
// operators that keep columns.
func (d *definition) buildRecursion(def *algebra.Definition, outer *frame) error {
	rel := def.Rel
	for {
		keep, ok := rel.(*algebra.Keep)
		if !ok {
			break
		}
		rel = keep.Input
	}
	set, ok := rel.(*algebra.SetOperation)
	if !ok || set.Op != algebra.Union {
		return fault.New(fault.Internal, "WITH RECURSIVE %s is no UNION", def.Name)
	}
	// Where each column of the definition is found among those of the UNION.
	byID := map[algebra.ColumnID]int{}
	for i, c := range set.Cols {
		byID[c.ID] = i
	}
	r := &recursion{distinct: !set.All}
	d.recursive = r
	for i, in := range set.Inputs {
		op, s, err := d.x.build(in, outer)
		if err != nil {
			return err
		}
		var slots []int
		for _, id := range def.Cols {
			at, ok := byID[id]
			if !ok {
				return fault.New(fault.Internal, "WITH RECURSIVE %s has no column %d", def.Name, id)
			}
			slot, ok := s.slots.of(set.InputCols[i][at])
			if !ok {
				return fault.New(fault.Internal, "WITH RECURSIVE %s has no column %d", def.Name, id)
			}
			slots = append(slots, slot)
		}
		if i == 0 {
			r.base, r.baseSlots = append(r.base, op), append(r.baseSlots, slots)
		} else {
			r.step, r.stepSlots = append(r.step, op), append(r.stepSlots, slots)
		}
	}
	return nil
}

func (w *withOp) Open(ctx context.Context) error {
	for _, d := range w.defs {
		d.forget()
	}
	if w.opened {
		w.x.generation++
	}
	w.opened = true
	return w.Operator.Open(ctx)
}

func (w *withOp) Close() error {
	err := w.Operator.Close()
	for _, d := range w.defs {
		d.forget()
	}
	return err
}

func (d *definition) forget() {
	if d.kept != nil {
		d.kept.close()
		d.kept = nil
	}
	if r := d.recursive; r != nil {
		if r.delta != nil {
			r.delta.close()
		}
		r.delta, r.seen, r.running = nil, nil, false
	}
	d.ready = false
	d.share.free()
}

// prepare computes the rows of d, unless that was done.
func (d *definition) prepare(ctx context.Context) error {
	if d.ready || d.recursive != nil && d.recursive.running {
		return nil
	}
	d.kept = newSpool(d.x, d.share, d.stats, d.types)
	if d.recursive != nil {
		if err := d.recurse(ctx); err != nil {
			return err
		}
	} else if err := d.collect(ctx, d.op, d.slots, d.kept); err != nil {
		return err
	}
	d.ready = true
	return d.kept.finish()
}

// collect adds the rows of op to each of to.
func (d *definition) collect(ctx context.Context, op Operator, slots []int, to ...*spool) error {
	if err := op.Open(ctx); err != nil {
		return err
	}
	out := types.Batch{Cols: make([]*types.Vector, len(slots))}
	var buf []byte
	var sel []int32
	for {
		b, err := op.Next(ctx)
		if errors.Is(err, io.EOF) {
			return op.Close()
		}
		if err != nil {
			return err
		}
		out.Len, out.Sel = b.Len, b.Sel
		for i, s := range slots {
			out.Cols[i] = b.Cols[s]
		}
		if r := d.recursive; r != nil && r.distinct {
			sel = sel[:0]
			before := r.seen.bytes()
			for k := range b.Rows() {
				i := rowOf(b, k)
				buf = buf[:0]
				for c, v := range out.Cols {
					buf = types.AppendKey(buf, d.types[c], v.Value(i))
				}
				if _, fresh := r.seen.find(buf); fresh {
					sel = append(sel, int32(i))
				}
			}
			if err := d.share.need(r.seen.bytes() - before); err != nil {
				return err
			}
			if len(sel) == 0 {
				continue
			}
			out.Sel = sel
		}
		for _, s := range to {
			if err := s.append(&out); err != nil {
				return err
			}
		}
	}
}

// maxRounds is how often a recursive definition is computed from its last rows. One that
// does not end would go on until a disk is full. BigQuery has 500.
const maxRounds = 10_000

// recurse computes the rows of a recursive definition.
func (d *definition) recurse(ctx context.Context) error {
	r := d.recursive
	r.seen = newByteTable()
	r.running = true
	defer func() { r.running, r.seen = false, nil }()
	round := func(ops []Operator, slots [][]int) (*spool, error) {
		next := newSpool(d.x, d.share, d.stats, d.types)
		for i, op := range ops {
			if err := d.collect(ctx, op, slots[i], d.kept, next); err != nil {
				next.close()
				return nil, err
			}
		}
		return next, next.finish()
	}
	next, err := round(r.base, r.baseSlots)
	if err != nil {
		return err
	}
	for n := 1; next.n > 0; n++ {
		if n > maxRounds {
			next.close()
			return fault.New(fault.Exhausted, "WITH RECURSIVE %s has not ended after %d rounds. Add a condition that some round does not meet", d.name, maxRounds)
		}
		if r.delta != nil {
			r.delta.close()
		}
		r.delta = next
		d.x.generation++
		if next, err = round(r.step, r.stepSlots); err != nil {
			return err
		}
	}
	next.close()
	if r.delta != nil {
		r.delta.close()
		r.delta = nil
	}
	return nil
}

// ref gives the rows of a definition.
type ref struct {
	def    *definition
	reader *spoolReader
	out    types.Batch
}

func newRef(x *execution, r *algebra.Ref) (Operator, error) {
	d := x.defs[r.Name]
	if d == nil {
		return nil, fault.New(fault.Internal, "WITH %s is not there", r.Name)
	}
	return &ref{def: d}, nil
}

func (r *ref) Open(ctx context.Context) error {
	r.reader = nil
	return r.def.prepare(ctx)
}

func (r *ref) Close() error {
	r.reader = nil
	return nil
}

func (r *ref) Next(context.Context) (*types.Batch, error) {
	if r.reader == nil {
		from := r.def.kept
		if rec := r.def.recursive; rec != nil && rec.running {
			from = rec.delta
		}
		r.reader = from.reader()
	}
	b, err := r.reader.next()
	if err != nil {
		return nil, err
	}
	// A batch of its own: what is kept is read by others, too.
	r.out = types.Batch{Len: b.Len, Cols: append(r.out.Cols[:0], b.Cols...)}
	return &r.out, nil
}
