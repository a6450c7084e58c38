package exec

import (
	"context"
	"errors"
	"io"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
	"github.com/trestledb/trestle/engine/varint"
)

// newSetOperation returns the operator of UNION, INTERSECT or EXCEPT. All but UNION ALL
// group the rows of all inputs: INTERSECT and EXCEPT count how many rows of each input a
// group has, and give out as many as that asks for.
func newSetOperation(x *execution, r *algebra.SetOperation, outer *frame) (Operator, error) {
	if r.Op == algebra.Union && !r.All {
		all := *r
		all.All = true
		distinct := &algebra.Aggregate{Input: &all, Distinct: true}
		for _, c := range r.Cols {
			distinct.Keys = append(distinct.Keys, algebra.Computed{Column: c, Expr: &algebra.ColumnRef{Column: c}})
		}
		op, err := newAggregate(x, distinct, outer)
		if a, ok := op.(*aggregate); ok {
			a.stats = x.statsOf(r)
			a.share.stats = a.stats
		}
		return op, err
	}
	c := &concat{tagged: r.Op != algebra.Union}
	for i, in := range r.Inputs {
		op, s, err := x.build(in, outer)
		if err != nil {
			return nil, err
		}
		var slots []int
		for _, id := range r.InputCols[i] {
			slot, ok := s.slots.of(id)
			if !ok {
				return nil, fault.New(fault.Internal, "column %d is not there", id)
			}
			slots = append(slots, slot)
		}
		c.inputs, c.slots = append(c.inputs, op), append(c.slots, slots)
		c.tags = append(c.tags, types.NewConst(types.Int64Type, types.NewInt(int64(i))))
	}
	if r.Op == algebra.Union {
		return c, nil
	}
	a := &aggregate{x: x, rel: &algebra.Aggregate{}, in: c, share: x.share("a set operation"), stats: x.statsOf(r)}
	set := &aggSet{cols: make([]*types.Vector, len(r.Cols))}
	for i, col := range r.Cols {
		a.keys = append(a.keys, slotRef(i))
		a.nulls = append(a.nulls, types.NewConst(col.Type, types.Null))
		set.keys = append(set.keys, i)
		set.types = append(set.types, col.Type)
	}
	set.table = newGroupTable(set.types[:len(r.Cols):len(r.Cols)])
	set.types = append(set.types, types.BytesType)
	a.sets = []*aggSet{set}
	a.vecs = make([]*types.Vector, len(a.keys))
	count := &algebra.AggregateCall{Column: algebra.Column{Type: types.Int64Type}}
	a.calls = []*aggCall{{call: count, exprs: []evaluator{slotRef(len(r.Cols))}, types: []*types.Type{types.Int64Type}, vecs: make([]*types.Vector, 1),
		newState: func() aggState { return &inputCounts{op: r.Op, all: r.All, inputs: len(r.Inputs)} }}}
	a.results = []*types.Vector{{Type: types.Int64Type}}
	a.out.Cols = make([]*types.Vector, len(r.Cols)+1)
	return &repeat{in: a, out: types.Batch{Cols: newVectors(columnTypes(r.Cols))}}, nil
}

// concat gives the rows of one input after the other. If it is tagged, a last column has
// the input's number.
type concat struct {
	inputs []Operator
	slots  [][]int
	tags   []*types.Vector
	tagged bool
	at     int
	opened bool
	out    types.Batch
}

func (c *concat) Open(context.Context) error {
	c.at, c.opened = 0, false
	return nil
}

func (c *concat) Close() error {
	var err error
	for _, in := range c.inputs {
		if e := in.Close(); err == nil {
			err = e
		}
	}
	return err
}

func (c *concat) Next(ctx context.Context) (*types.Batch, error) {
	for c.at < len(c.inputs) {
		in := c.inputs[c.at]
		if !c.opened {
			if err := in.Open(ctx); err != nil {
				return nil, err
			}
			c.opened = true
		}
		b, err := in.Next(ctx)
		if errors.Is(err, io.EOF) {
			if err := in.Close(); err != nil {
				return nil, err
			}
			c.at++
			c.opened = false
			continue
		}
		if err != nil {
			return nil, err
		}
		c.out.Len, c.out.Sel, c.out.Cols = b.Len, b.Sel, c.out.Cols[:0]
		for _, s := range c.slots[c.at] {
			c.out.Cols = append(c.out.Cols, b.Cols[s])
		}
		if c.tagged {
			c.out.Cols = append(c.out.Cols, c.tags[c.at])
		}
		return &c.out, nil
	}
	return nil, io.EOF
}

// inputCounts counts the rows of each group by input. Its result is how often the group is
// given out.
type inputCounts struct {
	op     algebra.SetOp
	all    bool
	inputs int
	counts []int64 // inputs for each group
}

func (s *inputCounts) resize(groups int) {
	if n := groups*s.inputs - len(s.counts); n > 0 {
		s.counts = append(s.counts, make([]int64, n)...)
	}
}

func (s *inputCounts) add(groups []int32, args []*types.Vector, sel []int32, n int) error {
	// A batch comes of one input.
	input := int(args[0].Value(0).Int)
	for _, g := range groups {
		s.counts[int(g)*s.inputs+input]++
	}
	return nil
}

func (s *inputCounts) results(first int, out *types.Vector, n int) error {
	out.Resize(n)
	for k := range n {
		counts := s.counts[(first+k)*s.inputs : (first+k+1)*s.inputs]
		have := counts[0]
		for _, c := range counts[1:] {
			switch {
			case s.op == algebra.Intersect:
				have = min(have, c)
			case s.all:
				have = max(0, have-c)
			case c > 0:
				have = 0
			}
		}
		if !s.all {
			have = min(have, 1)
		}
		out.Ints[k] = have
	}
	return nil
}

func (s *inputCounts) appendState(group int, dst []byte) []byte {
	for _, c := range s.counts[group*s.inputs : (group+1)*s.inputs] {
		dst = appendPlain(dst, types.Int64Type, types.NewInt(c))
	}
	return dst
}

func (s *inputCounts) merge(group int, state []byte) error {
	d := varint.Of(state)
	for i := range s.inputs {
		s.counts[group*s.inputs+i] += d.Varint()
	}
	if d.Bad() || d.Len() > 0 {
		return errDamaged("counts have another length")
	}
	return nil
}

func (s *inputCounts) size() int64 { return 8 * int64(cap(s.counts)) }

// repeat gives each row as often as its last column says, without that column.
type repeat struct {
	in    Operator
	batch *types.Batch
	k     int
	given int64
	ids   []int32
	out   types.Batch
}

func (r *repeat) Open(ctx context.Context) error {
	r.batch = nil
	return r.in.Open(ctx)
}

func (r *repeat) Close() error { return r.in.Close() }

func (r *repeat) Next(ctx context.Context) (*types.Batch, error) {
	for {
		if r.batch == nil {
			b, err := r.in.Next(ctx)
			if err != nil {
				return nil, err
			}
			r.batch, r.k, r.given = b, 0, 0
		}
		counts := r.batch.Cols[len(r.batch.Cols)-1].Ints
		r.ids = r.ids[:0]
		for r.k < r.batch.Len && len(r.ids) < types.BatchRows {
			if r.given == counts[r.k] {
				r.k++
				r.given = 0
				continue
			}
			r.ids = append(r.ids, int32(r.k))
			r.given++
		}
		b := r.batch
		if r.k == b.Len {
			r.batch = nil
		}
		if len(r.ids) == 0 {
			continue
		}
		r.out.Len = len(r.ids)
		for c, v := range r.out.Cols {
			pick(v, b.Cols[c], r.ids)
		}
		return &r.out, nil
	}
}
