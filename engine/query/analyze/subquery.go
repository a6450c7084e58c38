package analyze

import (
	"slices"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/syntax"
	"github.com/trestledb/trestle/engine/query/types"
)

// inner analyzes a query within an expression. It returns the columns around it that
// it uses.
func (a *analyzer) inner(q *syntax.Query, v *env) (*relation, []algebra.ColumnID) {
	var captured []algebra.ColumnID
	r := a.query(q, &scope{outer: v.scope, captured: &captured})
	return r, slices.Clip(captured)
}

// subquery analyzes a query as a value.
func (a *analyzer) subquery(e *syntax.Subquery, v *env) algebra.Expr {
	r, outer := a.inner(e.Query, v)
	s := &algebra.Subquery{Outer: outer, Query: keep(r)}
	switch e.Kind {
	case syntax.ExistsSubquery:
		s.Kind, s.T = algebra.ExistsQuery, types.BoolType
		return s
	case syntax.ArraySubquery:
		if len(r.cols) != 1 {
			a.fail(e.At(), "ARRAY subquery cannot have more than one column unless using SELECT AS STRUCT to build STRUCT values")
		}
		t := r.cols[0].col.Type
		if t.Kind == types.Array {
			a.fail(e.At(), "Cannot use array subquery with column of type %s because nested arrays are not supported", t)
		}
		s.Kind, s.Column, s.Ordered, s.T = algebra.ArrayQuery, r.cols[0].col.ID, r.ordered, types.ArrayOf(t)
		return s
	}
	if len(r.cols) != 1 {
		a.fail(e.At(), "Scalar subquery cannot have more than one column unless using SELECT AS STRUCT to build STRUCT values")
	}
	s.Kind, s.Column, s.T = algebra.ScalarQuery, r.cols[0].col.ID, r.cols[0].col.Type
	return s
}

// compareSubquery analyzes x IN (query), x = ANY (query) and their like.
func (a *analyzer) compareSubquery(x argument, operator string, kind algebra.SubqueryKind, q *syntax.Query, v *env, pos syntax.Pos) algebra.Expr {
	r, outer := a.inner(q, v)
	if len(r.cols) != 1 {
		what := "IN"
		if kind != algebra.InQuery {
			what = "quantified comparison"
		}
		a.fail(q.At(), "Subquery of type %s must have only one output column", what)
	}
	c := &r.cols[0]
	y := argument{pos: q.At(), expr: &algebra.ColumnRef{Column: c.col}}
	if c.lit != nil && isUntyped(c.lit) {
		y.expr = c.lit
	}
	if kind == algebra.InQuery {
		t := a.supertype([]algebra.Expr{x.expr, y.expr})
		if t == nil {
			a.fail(pos, "Cannot execute IN subquery with uncomparable types %s and %s", x.expr.Type(), y.expr.Type())
		}
		if t == untypedNull {
			t = types.Int64Type
		}
		// A NULL on either side is one of the other's type; = itself would refuse it.
		for _, side := range []*argument{&x, &y} {
			if isUntyped(side.expr) {
				side.expr = a.coerce(side.expr, t, side.pos)
			}
		}
	}
	cond := a.operator(operator, pos, x, y)
	return &algebra.Subquery{Kind: kind, Query: keep(r), Column: c.col.ID, Outer: outer, X: x.expr, Compare: cond, T: types.BoolType}
}
