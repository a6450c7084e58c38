package exec

import (
	"context"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/functions"
	"github.com/trestledb/trestle/engine/query/types"
)

// unnest makes a row of each element of arrays.
type unnest struct {
	in     Operator
	left   bool
	arrays []evaluator
	mode   evaluator // nil for PAD
	on     []evaluator
	offset bool
	inputs int // how many columns the input has

	batch   *types.Batch
	vecs    []*types.Vector
	modes   *types.Vector
	k       int // the row of the batch in work, and its next element
	elem    int
	ids     []int32 // of the rows of out: the input row
	elems   []int32 // and the element, -1 for NULLs
	matched []bool
	rest    bool // rows without a match are to be given out
	out     types.Batch
	sel     []int32
	given   types.Batch
}

func newUnnest(x *execution, r *algebra.Unnest, outer *frame) (Operator, error) {
	in, s, err := x.build(r.Input, outer)
	if err != nil {
		return nil, err
	}
	u := &unnest{in: in, left: r.Left, offset: r.Offset != nil, inputs: len(s.slots.ids)}
	if u.arrays, err = compileAll(r.Arrays, s); err != nil {
		return nil, err
	}
	if r.Mode != nil && len(r.Arrays) > 1 {
		if u.mode, err = compile(r.Mode, s); err != nil {
			return nil, err
		}
	}
	if u.on, err = compileAll(conjuncts(r.On, nil), newScope(x, r.Columns(), outer)); err != nil {
		return nil, err
	}
	u.vecs = make([]*types.Vector, len(u.arrays))
	u.out.Cols = newVectors(columnTypes(r.Columns()))
	if st := x.stream; st != nil {
		if _, ok := st.unnests[r]; ok {
			st.unnests[r] = u
		}
	}
	return u, nil
}

// within tells whether more may come of the batch in work.
func (u *unnest) within() bool {
	return u.batch != nil && (u.k < u.batch.Rows() || u.left && len(u.on) > 0)
}

func (u *unnest) Open(ctx context.Context) error {
	u.batch = nil
	return u.in.Open(ctx)
}

func (u *unnest) Close() error {
	u.batch = nil
	return u.in.Close()
}

// The modes of arrays of different lengths.
const (
	zipPad = iota
	zipTruncate
	zipStrict
)

// length returns how many rows the arrays of input row i make.
func (u *unnest) length(i int) (int, error) {
	mode := int64(zipPad)
	if u.modes != nil {
		m := u.modes.Value(i)
		if !m.Valid {
			return 0, functions.Errorf("UNNEST does not allow NULL mode argument")
		}
		mode = m.Int
	}
	n := -1
	for _, v := range u.vecs {
		have := len(v.Value(i).List)
		switch {
		case n < 0:
			n = have
		case n == have:
		case mode == zipStrict:
			return 0, functions.Errorf("Unnested arrays under STRICT mode must have equal lengths")
		case mode == zipTruncate:
			n = min(n, have)
		default:
			n = max(n, have)
		}
	}
	return n, nil
}

func (u *unnest) Next(ctx context.Context) (*types.Batch, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if u.batch == nil {
			if err := u.begin(ctx); err != nil {
				return nil, err
			}
		}
		if u.rest {
			b := u.batch
			u.batch, u.rest = nil, false
			u.ids, u.elems = u.ids[:0], u.elems[:0]
			for k := range b.Rows() {
				i := rowOf(b, k)
				if !u.matched[i] {
					u.ids, u.elems = append(u.ids, int32(i)), append(u.elems, -1)
				}
			}
			if len(u.ids) > 0 {
				u.fill(b)
				return &u.out, nil
			}
			continue
		}
		b := u.batch
		if err := u.collect(); err != nil {
			return nil, err
		}
		if len(u.ids) == 0 {
			if u.rest = u.left && len(u.on) > 0; !u.rest {
				u.batch = nil
			}
			continue
		}
		u.fill(b)
		if len(u.on) == 0 {
			return &u.out, nil
		}
		sel, err := holds(u.on, &u.out, nil, &u.sel)
		if err != nil {
			return nil, err
		}
		if u.left {
			for k := range count(&u.out, sel) {
				p := k
				if sel != nil {
					p = int(sel[k])
				}
				u.matched[u.ids[p]] = true
			}
		}
		if sel != nil && len(sel) == 0 {
			continue
		}
		u.given = types.Batch{Len: u.out.Len, Sel: sel, Cols: u.out.Cols}
		return &u.given, nil
	}
}

// rowOf returns the k'th row of b that counts.
func rowOf(b *types.Batch, k int) int {
	if b.Sel != nil {
		return int(b.Sel[k])
	}
	return k
}

// begin takes the next batch of the input.
func (u *unnest) begin(ctx context.Context) error {
	b, err := u.in.Next(ctx)
	if err != nil {
		return err
	}
	for i, a := range u.arrays {
		if u.vecs[i], err = a.eval(b, b.Sel); err != nil {
			return err
		}
	}
	if u.mode != nil {
		if u.modes, err = u.mode.eval(b, b.Sel); err != nil {
			return err
		}
	}
	u.batch, u.k, u.elem, u.rest = b, 0, 0, false
	if u.left && len(u.on) > 0 {
		if cap(u.matched) < b.Len {
			u.matched = make([]bool, types.BatchRows)
		}
		u.matched = u.matched[:b.Len]
		clear(u.matched)
	}
	return nil
}

// collect lists the next rows: pairs of an input row and an element.
func (u *unnest) collect() error {
	u.ids, u.elems = u.ids[:0], u.elems[:0]
	for ; u.k < u.batch.Rows() && len(u.ids) < types.BatchRows; u.k++ {
		i := rowOf(u.batch, u.k)
		n, err := u.length(i)
		if err != nil {
			return err
		}
		if n == 0 && u.left && len(u.on) == 0 {
			u.ids, u.elems = append(u.ids, int32(i)), append(u.elems, -1)
		}
		for u.elem < n && len(u.ids) < types.BatchRows {
			u.ids, u.elems = append(u.ids, int32(i)), append(u.elems, int32(u.elem))
			u.elem++
		}
		if u.elem < n {
			return nil
		}
		u.elem = 0
	}
	return nil
}

// fill sets out to the rows that collect listed.
func (u *unnest) fill(b *types.Batch) {
	u.out.Len = len(u.ids)
	for c := range u.inputs {
		pick(u.out.Cols[c], b.Cols[c], u.ids)
	}
	for a, v := range u.vecs {
		out := u.out.Cols[u.inputs+a]
		out.Resize(len(u.ids))
		for k, i := range u.ids {
			list := v.Value(int(i)).List
			if e := int(u.elems[k]); e >= 0 && e < len(list) {
				out.Set(k, list[e])
			} else {
				out.SetNull(k)
			}
		}
	}
	if u.offset {
		out := u.out.Cols[len(u.out.Cols)-1]
		out.Resize(len(u.ids))
		for k, e := range u.elems {
			if e < 0 {
				out.SetNull(k)
			} else {
				out.Ints[k] = int64(e)
			}
		}
	}
}
