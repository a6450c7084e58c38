package plan

import (
	"github.com/trestledb/trestle/engine/query/algebra"
)

// unnestQueries makes joins of subqueries that stand as conditions: of EXISTS and IN a
// semi join, of NOT EXISTS an anti join. NOT IN stays as it is, since a NULL on either
// side makes it NULL.
func (p *planner) unnestQueries(r algebra.Rel) algebra.Rel {
	r = mapRel(r, func(e algebra.Expr) algebra.Expr {
		return rewrite(e, func(algebra.Expr) algebra.Expr { return nil }, p.unnestQueries)
	}, p.unnestQueries)
	f, ok := r.(*algebra.Filter)
	if !ok {
		return r
	}
	in := f.Input
	var rest []algebra.Expr
	for _, e := range conjuncts(nil, f.Cond) {
		// The rows that a condition before this one drops do not reach it, should it fail.
		if j := semiJoin(filterRows(in, rest), e); j != nil {
			in, rest = j, nil
		} else {
			rest = append(rest, e)
		}
	}
	return filterRows(in, rest)
}

// semiJoin returns the rows of in for which e is TRUE, as a join; nil if e is no subquery
// of which one can be made.
func semiJoin(in algebra.Rel, e algebra.Expr) algebra.Rel {
	kind := algebra.SemiJoin
	if c, ok := isFunction(e, "$not"); ok {
		e, kind = c.Args[0], algebra.AntiJoin
	}
	s, ok := e.(*algebra.Subquery)
	if !ok {
		return nil
	}
	switch s.Kind {
	case algebra.ExistsQuery:
		if len(s.Outer) == 0 {
			return nil // it is computed once
		}
		right, on := pullConditions(s.Query, columnsOf(in))
		if right == nil {
			return nil
		}
		return &algebra.Join{Kind: kind, Left: in, Right: right, On: and(on)}
	case algebra.InQuery:
		c, ok := isFunction(s.Compare, "$equal")
		if kind == algebra.AntiJoin || !ok || len(s.Outer) > 0 || hasSubquery(s.X) || volatile(s.X) || !uses(s.X).meets(columnsOf(in)) {
			return nil
		}
		return &algebra.Join{Kind: kind, Left: in, Right: s.Query, On: c}
	}
	return nil
}

// pullConditions takes the conditions that refer to the rows around, of which outer are
// the columns, out of r. It returns nil if r refers to them elsewhere, or if none of
// them is an equality by which a join could look rows up. Of r counts only whether it
// has a row.
func pullConditions(r algebra.Rel, outer columnSet) (algebra.Rel, []algebra.Expr) {
	for {
		switch in := r.(type) {
		case *algebra.Keep:
			r = in.Input
			continue
		case *algebra.Project:
			r = in.Input
			continue
		}
		break
	}
	f, ok := r.(*algebra.Filter)
	if !ok || len(freeColumns(f.Input)) > 0 {
		return nil, nil
	}
	local := columnsOf(f.Input)
	both := columnSet{}
	both.addAll(local)
	both.addAll(outer)
	var inner, on []algebra.Expr
	equality := false
	for _, e := range conjuncts(nil, f.Cond) {
		u := uses(e)
		switch {
		case u.within(local) && !hasSubquery(e):
			inner = append(inner, e)
			continue
		case hasSubquery(e) || volatile(e) || !u.within(both):
			return nil, nil
		}
		on = append(on, e)
		if c, ok := isFunction(e, "$equal"); ok {
			a, b := uses(c.Args[0]), uses(c.Args[1])
			equality = equality || a.meets(local) && !a.meets(outer) && b.meets(outer) && !b.meets(local) ||
				b.meets(local) && !b.meets(outer) && a.meets(outer) && !a.meets(local)
		}
	}
	if !equality {
		return nil, nil
	}
	return filterRows(f.Input, inner), on
}
