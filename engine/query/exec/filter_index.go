package exec

import (
	"context"
	"errors"
	"io"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
)

// indexedFilter is a Filter in a subquery that compares something of its rows with
// something of the row around. Its input does not depend on that row, so it is read once
// and kept by what is compared: each further run of the subquery looks its rows up. If they
// do not fit into memory, it runs as a plain filter.
type indexedFilter struct {
	x          *execution
	plain      Operator // the filter without an index
	input      Operator
	inner      []evaluator // the keys of a row
	outer      []evaluator // what they have to be
	types      []*types.Type
	conds      []evaluator // the other conditions
	share      *share
	rows       rows
	table      *byteTable
	head, tail []int32
	next       []int32
	built      bool
	usePlain   bool
	generation int

	row int32 // the next row of the present run, -1 if there is none
	ids []int32
	out types.Batch
	buf []byte
	sel []int32
	rel types.Batch
}

// newIndexedFilter returns nil if r is no such filter.
func newIndexedFilter(x *execution, r *algebra.Filter, outer *frame) (Operator, error) {
	if outer == nil {
		return nil, nil
	}
	cols := columnSet(r.Input.Columns())
	var inner, around, rest []algebra.Expr
	for _, e := range conjuncts(r.Cond, nil) {
		a, b, nullSafe, ok := equality(e)
		switch {
		case !ok || nullSafe:
			rest = append(rest, e)
		case touches(a, cols) && !touches(b, cols) && outside(b) && inside(a, cols):
			inner, around = append(inner, a), append(around, b)
		case touches(b, cols) && !touches(a, cols) && outside(a) && inside(b, cols):
			inner, around = append(inner, b), append(around, a)
		default:
			rest = append(rest, e)
		}
	}
	if len(inner) == 0 || !fixedRel(r.Input) {
		return nil, nil
	}
	// A frame of its own tells whether the input depends on the row around.
	own := newFrame(newScope(x, nil, outer))
	in, s, err := x.build(r.Input, own)
	if err != nil {
		return nil, err
	}
	if len(own.captured) > 0 {
		in = &framed{Operator: in, frame: own}
	}
	s.outer = outer
	conds, err := compileAll(conjuncts(r.Cond, nil), s)
	if err != nil {
		return nil, err
	}
	plain := &filterOp{Operator: in, conds: conds}
	if len(own.captured) > 0 {
		return plain, nil
	}
	f := &indexedFilter{x: x, plain: plain, input: in, share: x.share("a subquery")}
	if f.inner, err = compileAll(inner, s); err != nil {
		return nil, err
	}
	if f.outer, err = compileAll(around, newScope(x, nil, outer)); err != nil {
		return nil, err
	}
	if f.conds, err = compileAll(rest, s); err != nil {
		return nil, err
	}
	for _, e := range inner {
		f.types = append(f.types, e.Type())
	}
	f.rows.types = columnTypes(r.Input.Columns())
	f.out.Cols = newVectors(f.rows.types)
	return f, nil
}

// framed loads a frame before an operator in it starts.
type framed struct {
	Operator
	frame *frame
}

func (f *framed) Open(ctx context.Context) error {
	if err := f.frame.load(oneRowBatch, nil); err != nil {
		return err
	}
	f.frame.row(0)
	return f.Operator.Open(ctx)
}

// outside tells whether e refers to some column.
func outside(e algebra.Expr) bool {
	found := false
	algebra.Walk(e, func(e algebra.Expr) bool {
		if _, ok := e.(*algebra.ColumnRef); ok {
			found = true
		}
		return !found
	})
	return found
}

// inside tells whether e refers to cols only, and has no part that needs more than a
// row.
func inside(e algebra.Expr, cols map[algebra.ColumnID]bool) bool {
	ok := true
	algebra.Walk(e, func(e algebra.Expr) bool {
		switch e := e.(type) {
		case *algebra.ColumnRef:
			ok = ok && cols[e.ID]
		case *algebra.Subquery, *algebra.Lambda, *algebra.Let:
			ok = false
		case *algebra.Call:
			ok = ok && !e.Function.Volatile
		}
		return ok
	})
	return ok
}

// fixedRel tells whether r gives the same rows each time: it is made of operators
// without volatile functions. Others than the most common are taken not to be.
func fixedRel(r algebra.Rel) bool {
	switch r := r.(type) {
	case *algebra.OneRow, *algebra.Scan, *algebra.Ref:
		return true
	case *algebra.Filter:
		return fixedExpr(r.Cond) && fixedRel(r.Input)
	case *algebra.Project:
		for _, c := range r.Computed {
			if !fixedExpr(c.Expr) {
				return false
			}
		}
		return fixedRel(r.Input)
	case *algebra.Keep:
		return fixedRel(r.Input)
	case *algebra.Join:
		return fixedExpr(r.On) && fixedRel(r.Left) && fixedRel(r.Right)
	case *algebra.Aggregate:
		for _, k := range r.Keys {
			if !fixedExpr(k.Expr) {
				return false
			}
		}
		for i := range r.Aggs {
			c := &r.Aggs[i]
			if c.Inner != nil || c.Function.Volatile {
				return false
			}
			for _, a := range c.Args {
				if !fixedExpr(a) {
					return false
				}
			}
		}
		return fixedRel(r.Input)
	}
	return false
}

func fixedExpr(e algebra.Expr) bool {
	ok := true
	algebra.Walk(e, func(e algebra.Expr) bool {
		switch e := e.(type) {
		case *algebra.Subquery:
			ok = false
		case *algebra.Call:
			ok = ok && !e.Function.Volatile
		}
		return ok
	})
	return ok
}

func (f *indexedFilter) Open(ctx context.Context) error {
	if !f.built || f.generation != f.x.generation {
		f.generation = f.x.generation
		f.built = true
		if err := f.index(ctx); err != nil {
			return err
		}
	}
	if f.usePlain {
		return f.plain.Open(ctx)
	}
	f.row = -1
	f.buf = f.buf[:0]
	for i, e := range f.outer {
		v, err := evalOnce(e)
		if err != nil {
			return err
		}
		if !v.Valid || v.Float != v.Float {
			return nil
		}
		f.buf = types.AppendKey(f.buf, f.types[i], v)
	}
	if g := f.table.lookup(f.buf); g >= 0 {
		f.row = f.head[g]
	}
	return nil
}

// index reads the input.
func (f *indexedFilter) index(ctx context.Context) error {
	f.forget()
	if err := f.input.Open(ctx); err != nil {
		return err
	}
	vecs := make([]*types.Vector, len(f.inner))
	for {
		b, err := f.input.Next(ctx)
		if errors.Is(err, io.EOF) {
			return f.input.Close()
		}
		if err != nil {
			return err
		}
		for i, e := range f.inner {
			if vecs[i], err = e.eval(b, b.Sel); err != nil {
				return err
			}
		}
		if !f.share.grow(batchBytes(b.Cols, b.Sel, b.Len) + 64*int64(b.Rows())) {
			f.forget()
			f.usePlain = true
			return f.input.Close()
		}
		f.add(b, vecs)
	}
}

func (f *indexedFilter) add(b *types.Batch, vecs []*types.Vector) {
	f.sel = f.sel[:0]
	base := int32(f.rows.n)
rows:
	for k := range b.Rows() {
		i := rowOf(b, k)
		f.buf = f.buf[:0]
		for c, v := range vecs {
			x := v.Value(i)
			if !x.Valid || x.Float != x.Float {
				continue rows
			}
			f.buf = types.AppendKey(f.buf, f.types[c], x)
		}
		r := base + int32(len(f.sel))
		f.sel = append(f.sel, int32(i))
		f.next = append(f.next, -1)
		g, fresh := f.table.find(f.buf)
		if fresh {
			f.head, f.tail = append(f.head, r), append(f.tail, r)
			continue
		}
		f.next[f.tail[g]] = r
		f.tail[g] = r
	}
	if len(f.sel) > 0 { // none selected would be all
		f.rows.append(b.Cols, f.sel, b.Len)
	}
}

func (f *indexedFilter) forget() {
	f.rows.reset()
	f.table, f.head, f.tail, f.next, f.usePlain = newByteTable(), nil, nil, nil, false
	f.share.free()
}

func (f *indexedFilter) Next(ctx context.Context) (*types.Batch, error) {
	if f.usePlain {
		return f.plain.Next(ctx)
	}
	for f.row >= 0 {
		f.ids = f.ids[:0]
		for ; f.row >= 0 && len(f.ids) < types.BatchRows; f.row = f.next[f.row] {
			f.ids = append(f.ids, f.row)
		}
		f.out.Len, f.out.Sel = len(f.ids), nil
		for c, v := range f.out.Cols {
			f.rows.gather(v, c, f.ids)
		}
		sel, err := holds(f.conds, &f.out, nil, &f.sel)
		if err != nil {
			return nil, err
		}
		if sel != nil && len(sel) == 0 {
			continue
		}
		f.rel = types.Batch{Len: f.out.Len, Sel: sel, Cols: f.out.Cols}
		return &f.rel, nil
	}
	return nil, io.EOF
}

// Close keeps the rows for the next run: they go with the statement.
func (f *indexedFilter) Close() error {
	if f.usePlain {
		return f.plain.Close()
	}
	return nil
}
