package exec

import (
	"slices"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
)

// newJoin returns the operator of a join: by hash if its condition says that something
// of the left side equals something of the right one, else row by row.
func newJoin(x *execution, r *algebra.Join, outer *frame) (Operator, error) {
	left, leftScope, err := x.build(r.Left, outer)
	if err != nil {
		return nil, err
	}
	if r.Lateral {
		return newLateralJoin(x, r, left, leftScope, outer)
	}
	right, rightScope, err := x.build(r.Right, outer)
	if err != nil {
		return nil, err
	}
	j := joinBase{x: x, kind: r.Kind, left: left, right: right, share: x.share("JOIN"), stats: x.statsOf(r),
		leftTypes: columnTypes(r.Left.Columns()), rightTypes: columnTypes(r.Right.Columns())}
	j.pairs.Cols = newVectors(append(slices.Clip(slices.Clone(j.leftTypes)), j.rightTypes...))
	keys, rest := joinKeys(r)
	both := newScope(x, append(slices.Clip(slices.Clone(r.Left.Columns())), r.Right.Columns()...), outer)
	if j.residual, err = compileAll(rest, both); err != nil {
		return nil, err
	}
	if len(keys) == 0 {
		return &loopJoin{joinBase: j}, nil
	}
	h := &hashJoin{joinBase: j}
	for _, k := range keys {
		l, err := compile(k.left, leftScope)
		if err != nil {
			return nil, err
		}
		r, err := compile(k.right, rightScope)
		if err != nil {
			return nil, err
		}
		h.leftKeys, h.rightKeys = append(h.leftKeys, l), append(h.rightKeys, r)
		h.keyTypes = append(h.keyTypes, k.left.Type())
		h.nullSafe = append(h.nullSafe, k.nullSafe)
	}
	h.vecs = make([]*types.Vector, len(keys))
	return h, nil
}

// joinKey is a condition that both sides are equal. nullSafe takes NULL for equal to
// NULL.
type joinKey struct {
	left, right algebra.Expr
	nullSafe    bool
}

// joinKeys divides the condition of a join into keys and the rest.
func joinKeys(r *algebra.Join) (keys []joinKey, rest []algebra.Expr) {
	left, right := columnSet(r.Left.Columns()), columnSet(r.Right.Columns())
	for _, e := range conjuncts(r.On, nil) {
		a, b, nullSafe, ok := equality(e)
		if !ok {
			rest = append(rest, e)
			continue
		}
		al, ar := touches(a, left), touches(a, right)
		bl, br := touches(b, left), touches(b, right)
		switch {
		case al && !ar && br && !bl:
			keys = append(keys, joinKey{a, b, nullSafe})
		case bl && !br && ar && !al:
			keys = append(keys, joinKey{b, a, nullSafe})
		default:
			rest = append(rest, e)
		}
	}
	return keys, rest
}

func columnSet(cols []algebra.Column) map[algebra.ColumnID]bool {
	out := make(map[algebra.ColumnID]bool, len(cols))
	for _, c := range cols {
		out[c.ID] = true
	}
	return out
}

// equality returns the sides of a condition that compares two scalar values of one
// type.
func equality(e algebra.Expr) (a, b algebra.Expr, nullSafe, ok bool) {
	c, isCall := e.(*algebra.Call)
	if !isCall || c.Safe || len(c.Args) != 2 {
		return nil, nil, false, false
	}
	switch c.Function.Name {
	case "$equal":
	case "$is_not_distinct_from":
		nullSafe = true
	default:
		return nil, nil, false, false
	}
	a, b = c.Args[0], c.Args[1]
	t := a.Type()
	switch t.Kind {
	case types.Array, types.Struct, types.Map, types.Proto, types.Invalid:
		return nil, nil, false, false
	}
	return a, b, nullSafe, t.Equal(b.Type())
}

// touches tells whether e refers to one of cols. A subquery may, a volatile function is
// taken to: neither can be computed on one side.
func touches(e algebra.Expr, cols map[algebra.ColumnID]bool) bool {
	found := false
	algebra.Walk(e, func(e algebra.Expr) bool {
		switch e := e.(type) {
		case *algebra.ColumnRef:
			found = found || cols[e.ID]
		case *algebra.Subquery:
			found = true
		case *algebra.Call:
			found = found || e.Function.Volatile
		}
		return !found
	})
	return found
}

// joinBase is what joins of two independent sides have in common.
type joinBase struct {
	x                     *execution
	kind                  algebra.JoinKind
	left, right           Operator
	leftTypes, rightTypes []*types.Type
	residual              []evaluator
	share                 *share
	stats                 *algebra.Stats
	// pairs are candidates: rows leftIDs of the left batch beside rows of the right side.
	pairs    types.Batch
	leftIDs  []int32
	rightIDs []int32
	out      types.Batch
	sel      []int32
	// matched says which rows of the left batch have a match.
	matched []bool
}

// semi tells whether only rows of the left side are given out.
func (j *joinBase) semi() bool { return j.kind == algebra.SemiJoin || j.kind == algebra.AntiJoin }

// keepsLeft tells whether rows of the left side without a match are given out.
func (j *joinBase) keepsLeft() bool { return j.kind == algebra.LeftJoin || j.kind == algebra.FullJoin }

// unmatched returns the rows of b without a match, or with one, as a batch of the output.
// Nil if there are none.
func (j *joinBase) unmatched(b *types.Batch, want bool) *types.Batch {
	j.sel = j.sel[:0]
	for k := range b.Rows() {
		i := int32(k)
		if b.Sel != nil {
			i = b.Sel[k]
		}
		if j.matched[i] == want {
			j.sel = append(j.sel, i)
		}
	}
	if len(j.sel) == 0 {
		return nil
	}
	j.out.Len, j.out.Sel = b.Len, j.sel
	j.out.Cols = append(j.out.Cols[:0], b.Cols...)
	if !j.semi() {
		for _, t := range j.rightTypes {
			j.out.Cols = append(j.out.Cols, types.NewConst(t, types.Null))
		}
	}
	return &j.out
}

// rightOnly returns n rows of the right side beside NULLs; fill sets their columns.
func (j *joinBase) rightOnly(n int, fill func(c int, v *types.Vector)) *types.Batch {
	j.out.Len, j.out.Sel, j.out.Cols = n, nil, j.out.Cols[:0]
	for _, t := range j.leftTypes {
		j.out.Cols = append(j.out.Cols, types.NewConst(t, types.Null))
	}
	for c := range j.rightTypes {
		v := j.pairs.Cols[len(j.leftTypes)+c]
		fill(c, v)
		j.out.Cols = append(j.out.Cols, v)
	}
	return &j.out
}

func (j *joinBase) clearMatched(n int) {
	if cap(j.matched) < n {
		j.matched = make([]bool, max(n, types.BatchRows))
	}
	j.matched = j.matched[:n]
	clear(j.matched)
}
