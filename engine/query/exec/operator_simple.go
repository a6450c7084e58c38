package exec

import (
	"context"
	"io"
	"math"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/functions"
	"github.com/trestledb/trestle/engine/query/types"
)

// filterOp passes the rows for which all conditions are TRUE.
type filterOp struct {
	Operator
	conds []evaluator
	out   types.Batch
	sel   []int32
}

func newFilter(x *execution, r *algebra.Filter, outer *frame) (Operator, error) {
	if op, err := newIndexedFilter(x, r, outer); op != nil || err != nil {
		return op, err
	}
	in, s, err := x.build(r.Input, outer)
	if err != nil {
		return nil, err
	}
	conds, err := compileConditions(conjuncts(r.Cond, nil), s)
	return &filterOp{Operator: in, conds: conds}, err
}

// conjuncts appends the parts of a condition that all have to be TRUE.
func conjuncts(e algebra.Expr, to []algebra.Expr) []algebra.Expr {
	if c, ok := e.(*algebra.Call); ok && c.Function.Kind == functions.Lazy && c.Function.Name == "$and" {
		for _, a := range c.Args {
			to = conjuncts(a, to)
		}
		return to
	}
	if e == nil {
		return to
	}
	return append(to, e)
}

func (f *filterOp) Next(ctx context.Context) (*types.Batch, error) {
	for {
		b, err := f.Operator.Next(ctx)
		if err != nil {
			return nil, err
		}
		sel, err := holds(f.conds, b, b.Sel, &f.sel)
		if err != nil {
			return nil, err
		}
		if sel != nil && len(sel) == 0 {
			continue
		}
		f.out = types.Batch{Len: b.Len, Sel: sel, Cols: b.Cols}
		return &f.out, nil
	}
}

// holds returns the rows of sel for which all conds are TRUE, in *room: nil if
// those are all rows of b.
func holds(conds []evaluator, b *types.Batch, sel []int32, room *[]int32) ([]int32, error) {
	for _, c := range conds {
		if sel != nil && len(sel) == 0 {
			break
		}
		v, err := c.eval(b, sel)
		if err != nil {
			return nil, err
		}
		if v.Const {
			if !isTrue(v, 0) {
				return noRows, nil
			}
			continue
		}
		if cap(*room) < b.Len {
			*room = make([]int32, types.BatchRows)
		}
		out := (*room)[:b.Len]
		// A row is written, and then kept or not: no branch to mispredict.
		k := 0
		switch {
		case sel == nil && v.Null == nil:
			for i, x := range v.Ints[:b.Len] {
				out[k] = int32(i)
				k += int(x & 1)
			}
		case sel == nil:
			for i, x := range v.Ints[:b.Len] {
				if x != 0 && !v.Null[i] {
					out[k] = int32(i)
					k++
				}
			}
		case v.Null == nil:
			for _, i := range sel {
				out[k] = i
				k += int(v.Ints[i] & 1)
			}
		default:
			for _, i := range sel {
				if v.Ints[i] != 0 && !v.Null[i] {
					out[k] = i
					k++
				}
			}
		}
		if sel == nil && k == b.Len {
			continue
		}
		sel = out[:k:k]
	}
	return sel, nil
}

// noRows is the selection of no row, as nil is that of all.
var noRows = make([]int32, 0)

// project adds computed columns to those of its input.
type project struct {
	Operator
	exprs []evaluator
	out   types.Batch
}

func newProject(x *execution, r *algebra.Project, outer *frame) (Operator, error) {
	in, s, err := x.build(r.Input, outer)
	if err != nil {
		return nil, err
	}
	p := &project{Operator: in}
	for _, c := range r.Computed {
		e, err := compile(c.Expr, s)
		if err != nil {
			return nil, err
		}
		p.exprs = append(p.exprs, e)
		s.slots.add(c.ID)
	}
	return p, nil
}

func (p *project) Next(ctx context.Context) (*types.Batch, error) {
	b, err := p.Operator.Next(ctx)
	if err != nil {
		return nil, err
	}
	p.out.Len, p.out.Sel = b.Len, b.Sel
	p.out.Cols = append(p.out.Cols[:0], b.Cols...)
	for _, e := range p.exprs {
		v, err := e.eval(&p.out, b.Sel)
		if err != nil {
			return nil, err
		}
		p.out.Cols = append(p.out.Cols, v)
	}
	return &p.out, nil
}

// keep passes some columns on.
type keep struct {
	Operator
	slots []int
	out   types.Batch
}

func newKeep(x *execution, r *algebra.Keep, outer *frame) (Operator, error) {
	if sorted, ok := r.Input.(*algebra.Sort); ok && len(r.Cols) > 0 {
		// Columns that are only sorted by need not be kept.
		stats := x.statsOf(sorted)
		op, err := newSort(x, sorted, outer, nil, nil, r.Cols)
		return &measured{op: op, stats: stats, timed: x.Measure}, err
	}
	in, s, err := x.build(r.Input, outer)
	if err != nil {
		return nil, err
	}
	slots, err := s.find(r.Cols)
	return &keep{Operator: in, slots: slots, out: types.Batch{Cols: make([]*types.Vector, len(slots))}}, err
}

func (k *keep) Next(ctx context.Context) (*types.Batch, error) {
	b, err := k.Operator.Next(ctx)
	if err != nil {
		return nil, err
	}
	k.out.Len, k.out.Sel = b.Len, b.Sel
	for i, s := range k.slots {
		k.out.Cols[i] = b.Cols[s]
	}
	return &k.out, nil
}

// limit passes count rows after it has skipped offset.
type limit struct {
	Operator
	count, offset evaluator // count is nil for all
	left, skip    int64
	stream        *stream // set if rows were given out before
	out           types.Batch
	sel           []int32
}

func newLimit(x *execution, r *algebra.Limit, outer *frame) (Operator, error) {
	s := newScope(x, nil, outer)
	l := &limit{}
	var err error
	if r.Count != nil {
		if l.count, err = compile(r.Count, s); err != nil {
			return nil, err
		}
	}
	if r.Offset != nil {
		if l.offset, err = compile(r.Offset, s); err != nil {
			return nil, err
		}
	}
	if sorted, ok := r.Input.(*algebra.Sort); ok && l.count != nil {
		// Sort keeps no more rows than are passed.
		stats := x.statsOf(sorted)
		op, err := newSort(x, sorted, outer, l.count, l.offset, nil)
		l.Operator = &measured{op: op, stats: stats, timed: x.Measure}
		return l, err
	}
	l.Operator, _, err = x.build(r.Input, outer)
	if s := x.stream; s != nil && s.limit == r {
		s.limiter, l.stream = l, s
		l.Operator = &skipRows{Operator: l.Operator, s: s}
	}
	return l, err
}

// limits returns the values of LIMIT and OFFSET.
func limits(count, offset evaluator) (n, skip int64, err error) {
	n = math.MaxInt64
	for _, part := range []struct {
		e  evaluator
		to *int64
	}{{count, &n}, {offset, &skip}} {
		if part.e == nil {
			continue
		}
		v, err := evalOnce(part.e)
		if err != nil {
			return 0, 0, err
		}
		if !v.Valid {
			return 0, 0, functions.Errorf("Limit requires non-null count and offset")
		}
		if v.Int < 0 {
			return 0, 0, functions.Errorf("Limit requires non-negative count and offset")
		}
		*part.to = v.Int
	}
	return n, skip, nil
}

func (l *limit) Open(ctx context.Context) (err error) {
	if l.left, l.skip, err = limits(l.count, l.offset); err != nil {
		return err
	}
	if l.stream != nil && l.stream.from.resumed {
		l.left, l.skip = l.stream.from.left, l.stream.from.skip
	}
	return l.Operator.Open(ctx)
}

func (l *limit) Next(ctx context.Context) (*types.Batch, error) {
	for l.left > 0 {
		b, err := l.Operator.Next(ctx)
		if err != nil {
			return nil, err
		}
		n := int64(b.Rows())
		if n <= l.skip {
			l.skip -= n
			continue
		}
		if l.skip == 0 && n <= l.left {
			l.left -= n
			return b, nil
		}
		take := min(l.left, n-l.skip)
		l.out = types.Batch{Len: b.Len, Cols: b.Cols}
		if b.Sel != nil {
			l.out.Sel = b.Sel[l.skip : l.skip+take]
		} else {
			l.sel = l.sel[:0]
			for i := l.skip; i < l.skip+take; i++ {
				l.sel = append(l.sel, int32(i))
			}
			l.out.Sel = l.sel
		}
		l.skip = 0
		l.left -= take
		return &l.out, nil
	}
	return nil, io.EOF
}
