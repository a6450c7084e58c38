package plan

import (
	"slices"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
)

// filter returns the rows of r for which all of conds are TRUE.
func filterRows(r algebra.Rel, conds []algebra.Expr) algebra.Rel {
	if len(conds) == 0 {
		return r
	}
	return &algebra.Filter{Input: r, Cond: and(conds)}
}

// push returns the rows of r for which all of conds are TRUE, and moves conditions as
// far down as they may go. They are evaluated in their order. One that can fail is not
// evaluated for rows for which it would not have been where it stood.
func (p *planner) push(r algebra.Rel, conds []algebra.Expr) algebra.Rel {
	queries := func(e algebra.Expr) algebra.Expr {
		return rewrite(e, func(algebra.Expr) algebra.Expr { return nil }, func(q algebra.Rel) algebra.Rel { return p.push(q, nil) })
	}
	if f, ok := r.(*algebra.Filter); ok {
		var own []algebra.Expr
		for _, c := range conjuncts(nil, queries(f.Cond)) {
			if l, ok := c.(*algebra.Literal); ok && l.T.Kind == types.Bool && l.Value.Bool() {
				continue
			}
			own = append(own, c)
		}
		return p.push(f.Input, append(own, conds...))
	}
	r = mapRel(r, queries, func(in algebra.Rel) algebra.Rel { return in })
	switch r := r.(type) {
	case *algebra.Project:
		made := map[algebra.ColumnID]algebra.Expr{}
		for _, c := range r.Computed {
			made[c.ID] = c.Expr
		}
		moved, stay := split(conds, false, func(e algebra.Expr) algebra.Expr { return substitute(e, made) })
		return filterRows(&algebra.Project{Input: p.push(r.Input, moved), Computed: r.Computed}, stay)
	case *algebra.Keep:
		return &algebra.Keep{Input: p.push(r.Input, conds), Cols: r.Cols}
	case *algebra.Sort:
		return &algebra.Sort{Input: p.push(r.Input, conds), Keys: r.Keys}
	case *algebra.Aggregate:
		return p.pushAggregate(r, conds)
	case *algebra.Join:
		return p.pushJoin(r, conds)
	case *algebra.Unnest:
		in := columnsOf(r.Input)
		made := columnsOf(r)
		for id := range in {
			delete(made, id)
		}
		moved, stay := split(conds, true, func(e algebra.Expr) algebra.Expr {
			if uses(e).meets(made) {
				return nil
			}
			return e
		})
		out := *r
		out.Input = p.push(r.Input, moved)
		return filterRows(&out, stay)
	case *algebra.SetOperation:
		return p.pushSet(r, conds)
	case *algebra.With:
		out := &algebra.With{Defs: slices.Clone(r.Defs), Body: p.push(r.Body, conds)}
		for i := range out.Defs {
			out.Defs[i].Rel = p.push(out.Defs[i].Rel, nil)
		}
		return out
	}
	// A Scan, or what conditions cannot pass.
	return filterRows(mapRel(r, func(e algebra.Expr) algebra.Expr { return e }, func(in algebra.Rel) algebra.Rel { return p.push(in, nil) }), conds)
}

// split asks move for each condition what it is further down, nil if it stays. Where
// other rows may be seen further down, only conditions that cannot fail are moved; so
// it is with those behind one that stays.
func split(conds []algebra.Expr, otherRows bool, move func(algebra.Expr) algebra.Expr) (moved, stay []algebra.Expr) {
	for _, e := range conds {
		if (otherRows || len(stay) > 0) && !safe(e) {
			stay = append(stay, e)
			continue
		}
		if m := move(e); m != nil {
			moved = append(moved, m)
		} else {
			stay = append(stay, e)
		}
	}
	return moved, stay
}

// maxSubstitute is how large an expression may be, in nodes, that is evaluated twice so
// that a condition on it can move down.
const maxSubstitute = 8

// substitute returns e with the columns of made replaced by what computes them, nil if
// that should not be.
func substitute(e algebra.Expr, made map[algebra.ColumnID]algebra.Expr) algebra.Expr {
	any, ok := false, true
	for id := range uses(e) {
		if x := made[id]; x != nil {
			any = true
			n := 0
			algebra.Walk(x, func(algebra.Expr) bool { n++; return true })
			ok = ok && n <= maxSubstitute && !volatile(x) && !hasSubquery(x)
		}
	}
	if !any {
		return e
	}
	if !ok || hasSubquery(e) {
		return nil
	}
	return rewrite(e, func(e algebra.Expr) algebra.Expr {
		if c, ok := e.(*algebra.ColumnRef); ok && made[c.ID] != nil {
			return made[c.ID]
		}
		return nil
	}, nil)
}

// pushAggregate moves conditions on keys down: they drop groups as a whole.
func (p *planner) pushAggregate(r *algebra.Aggregate, conds []algebra.Expr) algebra.Rel {
	made := map[algebra.ColumnID]algebra.Expr{}
	other := columnsOf(r)
	for _, k := range r.Keys {
		made[k.ID] = k.Expr
		delete(other, k.ID)
	}
	moved, stay := split(conds, true, func(e algebra.Expr) algebra.Expr {
		if len(r.Keys) == 0 || r.Sets != nil || hasSubquery(e) || uses(e).meets(other) {
			return nil
		}
		return substitute(e, made)
	})
	out := *r
	out.Input = p.push(r.Input, moved)
	return filterRows(&out, stay)
}

// pushSet moves conditions into the inputs.
func (p *planner) pushSet(r *algebra.SetOperation, conds []algebra.Expr) algebra.Rel {
	own := columnsOf(r)
	moved, stay := split(conds, true, func(e algebra.Expr) algebra.Expr {
		if hasSubquery(e) || !uses(e).meets(own) {
			return nil
		}
		return e
	})
	out := *r
	out.Inputs = slices.Clone(r.Inputs)
	for i := range out.Inputs {
		cols := map[algebra.ColumnID]algebra.Column{}
		for _, c := range out.Inputs[i].Columns() {
			cols[c.ID] = c
		}
		to := map[algebra.ColumnID]algebra.Expr{}
		for k, c := range r.Cols {
			to[c.ID] = &algebra.ColumnRef{Column: cols[r.InputCols[i][k]]}
		}
		var list []algebra.Expr
		for _, e := range moved {
			list = append(list, substitute(e, to))
		}
		out.Inputs[i] = p.push(out.Inputs[i], list)
	}
	return filterRows(&out, stay)
}

// pushJoin moves conditions, and parts of the join's own, to the side that they are
// about, and those about both into the join, where they may be equalities.
func (p *planner) pushJoin(r *algebra.Join, conds []algebra.Expr) algebra.Rel {
	out := *r
	left, right := columnsOf(r.Left), columnsOf(r.Right)
	if out.Kind == algebra.LeftJoin && slices.ContainsFunc(conds, func(e algebra.Expr) bool { return notTrueWhen(e, right) }) {
		out.Kind = algebra.InnerJoin
	}
	var toLeft, toRight, on []algebra.Expr
	var stay []algebra.Expr
	for _, e := range conds {
		u := uses(e)
		switch {
		case !safe(e), out.Kind == algebra.FullJoin:
			stay = append(stay, e)
		case !u.meets(right):
			toLeft = append(toLeft, e)
		case out.Kind != algebra.InnerJoin:
			stay = append(stay, e)
		case !u.meets(left):
			toRight = append(toRight, e)
		default:
			on = append(on, e)
		}
	}
	for _, e := range conjuncts(nil, r.On) {
		u := uses(e)
		switch {
		case !safe(e), out.Kind == algebra.FullJoin:
			on = append(on, e)
		case u.meets(right) && !u.meets(left) && !out.Lateral:
			toRight = append(toRight, e)
		case u.meets(left) && !u.meets(right) && (out.Kind == algebra.InnerJoin || out.Kind == algebra.SemiJoin):
			toLeft = append(toLeft, e)
		default:
			on = append(on, e)
		}
	}
	out.Left, out.Right, out.On = p.push(r.Left, toLeft), p.push(r.Right, toRight), and(on)
	return filterRows(&out, stay)
}
