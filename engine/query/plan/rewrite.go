package plan

import (
	"slices"

	"github.com/trestledb/trestle/engine/query/algebra"
)

// rewrite returns e with parts replaced. f is called from the outside in; it
// returns what stands in place of an expression, or nil to go on inside. The
// queries of subqueries are rewritten by rel. e itself does not change.
func rewrite(e algebra.Expr, f func(algebra.Expr) algebra.Expr, rel func(algebra.Rel) algebra.Rel) algebra.Expr {
	if e == nil {
		return nil
	}
	if r := f(e); r != nil {
		return r
	}
	again := func(e algebra.Expr) algebra.Expr { return rewrite(e, f, rel) }
	all := func(list []algebra.Expr) []algebra.Expr {
		out := make([]algebra.Expr, len(list))
		for i, e := range list {
			out[i] = again(e)
		}
		return out
	}
	switch e := e.(type) {
	case *algebra.Call:
		out := *e
		out.Args = all(e.Args)
		return &out
	case *algebra.Lambda:
		return &algebra.Lambda{Params: e.Params, Body: again(e.Body)}
	case *algebra.Cast:
		out := *e
		out.X, out.Format, out.Zone = again(e.X), again(e.Format), again(e.Zone)
		return &out
	case *algebra.GetField:
		out := *e
		out.X = again(e.X)
		return &out
	case *algebra.GetProtoField:
		out := *e
		out.X = again(e.X)
		return &out
	case *algebra.MakeStruct:
		return &algebra.MakeStruct{Fields: all(e.Fields), T: e.T}
	case *algebra.MakeArray:
		return &algebra.MakeArray{Elems: all(e.Elems), T: e.T}
	case *algebra.Subquery:
		out := *e
		out.X, out.Compare = again(e.X), again(e.Compare)
		out.Query = rel(e.Query)
		return &out
	case *algebra.Let:
		out := &algebra.Let{Vars: slices.Clone(e.Vars), Body: again(e.Body)}
		for i := range out.Vars {
			out.Vars[i].Expr = again(e.Vars[i].Expr)
		}
		return out
	}
	return e
}

// mapRel returns a copy of r with f applied to its expressions, and rel to its inputs.
// Expressions that were nil stay so.
func mapRel(r algebra.Rel, f func(algebra.Expr) algebra.Expr, rel func(algebra.Rel) algebra.Rel) algebra.Rel {
	expr := func(e algebra.Expr) algebra.Expr {
		if e == nil {
			return nil
		}
		return f(e)
	}
	list := func(list []algebra.Expr) []algebra.Expr {
		out := make([]algebra.Expr, len(list))
		for i, e := range list {
			out[i] = expr(e)
		}
		return out
	}
	computed := func(list []algebra.Computed) []algebra.Computed {
		out := slices.Clone(list)
		for i := range out {
			out[i].Expr = expr(out[i].Expr)
		}
		return out
	}
	keys := func(list []algebra.SortKey) []algebra.SortKey {
		out := slices.Clone(list)
		for i := range out {
			out[i].Expr = expr(out[i].Expr)
		}
		return out
	}
	var aggregate func(c algebra.AggregateCall) algebra.AggregateCall
	aggregate = func(c algebra.AggregateCall) algebra.AggregateCall {
		c.Args, c.OrderBy = list(c.Args), keys(c.OrderBy)
		c.Where, c.HavingMax, c.HavingMin, c.Limit = expr(c.Where), expr(c.HavingMax), expr(c.HavingMin), expr(c.Limit)
		if c.Inner != nil {
			inner := *c.Inner
			inner.Keys, inner.Aggs = computed(inner.Keys), slices.Clone(inner.Aggs)
			for i := range inner.Aggs {
				inner.Aggs[i] = aggregate(inner.Aggs[i])
			}
			c.Inner = &inner
		}
		return c
	}
	switch r := r.(type) {
	case *algebra.Scan:
		out := *r
		if h := r.History; h != nil {
			c := *h
			c.After, c.AfterOrEqual, c.Before, c.BeforeOrEqual = expr(h.After), expr(h.AfterOrEqual), expr(h.Before), expr(h.BeforeOrEqual)
			c.LatestN, c.AsOf = expr(h.LatestN), expr(h.AsOf)
			out.History = &c
		}
		if a := r.Access; a != nil {
			c := *a
			c.Limit, c.Offset = expr(a.Limit), expr(a.Offset)
			var keys func(k *algebra.KeyCondition) *algebra.KeyCondition
			keys = func(k *algebra.KeyCondition) *algebra.KeyCondition {
				if k == nil {
					return nil
				}
				c := *k
				c.Values, c.Of = list(k.Values), slices.Clone(k.Of)
				for i := range c.Of {
					c.Of[i] = keys(c.Of[i])
				}
				return &c
			}
			c.Keys = keys(a.Keys)
			out.Access = &c
		}
		return &out
	case *algebra.Filter:
		return &algebra.Filter{Input: rel(r.Input), Cond: expr(r.Cond)}
	case *algebra.Project:
		return &algebra.Project{Input: rel(r.Input), Computed: computed(r.Computed)}
	case *algebra.Keep:
		return &algebra.Keep{Input: rel(r.Input), Cols: r.Cols}
	case *algebra.Join:
		out := *r
		out.Left, out.Right, out.On = rel(r.Left), rel(r.Right), expr(r.On)
		return &out
	case *algebra.Unnest:
		out := *r
		out.Input, out.Arrays, out.On, out.Mode = rel(r.Input), list(r.Arrays), expr(r.On), expr(r.Mode)
		return &out
	case *algebra.Aggregate:
		out := *r
		out.Input, out.Keys, out.Aggs = rel(r.Input), computed(r.Keys), slices.Clone(r.Aggs)
		for i := range out.Aggs {
			out.Aggs[i] = aggregate(out.Aggs[i])
		}
		return &out
	case *algebra.Sort:
		return &algebra.Sort{Input: rel(r.Input), Keys: keys(r.Keys)}
	case *algebra.Limit:
		return &algebra.Limit{Input: rel(r.Input), Count: expr(r.Count), Offset: expr(r.Offset)}
	case *algebra.SetOperation:
		out := *r
		out.Inputs = slices.Clone(r.Inputs)
		for i := range out.Inputs {
			out.Inputs[i] = rel(out.Inputs[i])
		}
		return &out
	case *algebra.Window:
		out := &algebra.Window{Input: rel(r.Input), Calls: slices.Clone(r.Calls)}
		for i := range out.Calls {
			c := &out.Calls[i]
			c.AggregateCall, c.PartitionBy, c.Order = aggregate(c.AggregateCall), list(c.PartitionBy), keys(c.Order)
			c.Frame.Start.Offset, c.Frame.End.Offset = expr(c.Frame.Start.Offset), expr(c.Frame.End.Offset)
		}
		return out
	case *algebra.With:
		out := &algebra.With{Defs: slices.Clone(r.Defs)}
		for i := range out.Defs {
			out.Defs[i].Rel = rel(out.Defs[i].Rel)
		}
		out.Body = rel(r.Body)
		return out
	}
	return r
}

// rewriteAll rewrites all expressions of r and of what is below it, in subqueries too.
func rewriteAll(r algebra.Rel, f func(algebra.Expr) algebra.Expr) algebra.Rel {
	rel := func(r algebra.Rel) algebra.Rel { return rewriteAll(r, f) }
	return mapRel(r, func(e algebra.Expr) algebra.Expr { return rewrite(e, f, rel) }, rel)
}

// RewriteRel returns r with parts of its expressions replaced, those of what is below it and
// of subqueries included: f returns what stands in the place of one, or nil to go on inside.
func RewriteRel(r algebra.Rel, f func(algebra.Expr) algebra.Expr) algebra.Rel {
	return rewriteAll(r, f)
}

// ReplaceRel returns r with relations replaced: f returns what stands in the place of one,
// or nil to go on below it. Subqueries stay.
func ReplaceRel(r algebra.Rel, f func(algebra.Rel) algebra.Rel) algebra.Rel {
	if out := f(r); out != nil {
		return out
	}
	return mapRel(r, func(e algebra.Expr) algebra.Expr { return e }, func(in algebra.Rel) algebra.Rel { return ReplaceRel(in, f) })
}

// walkExprs calls f for each expression that stands in r itself, not in its inputs.
func walkExprs(r algebra.Rel, f func(algebra.Expr)) {
	same := func(r algebra.Rel) algebra.Rel { return r }
	mapRel(r, func(e algebra.Expr) algebra.Expr { f(e); return e }, same)
}

// inputs returns the relations directly under r.
func inputs(r algebra.Rel) []algebra.Rel {
	var out []algebra.Rel
	mapRel(r, func(e algebra.Expr) algebra.Expr { return e }, func(in algebra.Rel) algebra.Rel { out = append(out, in); return in })
	return out
}

// A columnSet is a set of columns.
type columnSet map[algebra.ColumnID]bool

func columnsOf(r algebra.Rel) columnSet {
	s := columnSet{}
	for _, c := range r.Columns() {
		s[c.ID] = true
	}
	return s
}

func (s columnSet) addAll(t columnSet) {
	for id := range t {
		s[id] = true
	}
}

// addUsed adds the columns that e refers to, those of the rows around subqueries in it
// too.
func (s columnSet) addUsed(e algebra.Expr) {
	algebra.Walk(e, func(e algebra.Expr) bool {
		switch e := e.(type) {
		case *algebra.ColumnRef:
			s[e.ID] = true
		case *algebra.Subquery:
			for _, id := range e.Outer {
				s[id] = true
			}
		}
		return true
	})
}

// uses returns the columns that e refers to.
func uses(e algebra.Expr) columnSet {
	s := columnSet{}
	s.addUsed(e)
	return s
}

// within tells whether all of s are in t.
func (s columnSet) within(t columnSet) bool {
	for id := range s {
		if !t[id] {
			return false
		}
	}
	return true
}

// meets tells whether s and t have a column in common.
func (s columnSet) meets(t columnSet) bool {
	for id := range s {
		if t[id] {
			return true
		}
	}
	return false
}

// freeColumns returns the columns that r refers to and does not have itself, in order.
func freeColumns(r algebra.Rel) []algebra.ColumnID {
	used, made := columnSet{}, columnSet{}
	var see func(r algebra.Rel)
	see = func(r algebra.Rel) {
		for _, c := range r.Columns() {
			made[c.ID] = true
		}
		walkExprs(r, func(e algebra.Expr) {
			algebra.Walk(e, func(e algebra.Expr) bool {
				switch e := e.(type) {
				case *algebra.ColumnRef:
					used[e.ID] = true
				case *algebra.Lambda:
					for _, p := range e.Params {
						made[p.ID] = true
					}
				case *algebra.Let:
					for _, v := range e.Vars {
						made[v.ID] = true
					}
				case *algebra.Subquery:
					for _, id := range e.Outer {
						used[id] = true
					}
					if e.Compare != nil {
						made[e.Column] = true
					}
				}
				return true
			})
		})
		switch r := r.(type) {
		case *algebra.Aggregate:
			for i := range r.Aggs {
				madeInside(&r.Aggs[i], made)
			}
		case *algebra.Window:
			for i := range r.Calls {
				madeInside(&r.Calls[i].AggregateCall, made)
			}
		case *algebra.SetOperation:
			for _, list := range r.InputCols {
				for _, id := range list {
					used[id] = true
				}
			}
		}
		for _, in := range inputs(r) {
			see(in)
		}
	}
	see(r)
	var out []algebra.ColumnID
	for id := range used {
		if !made[id] {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// madeInside adds the columns of the inner levels of c to made.
func madeInside(c *algebra.AggregateCall, made columnSet) {
	if c.Inner == nil {
		return
	}
	for _, k := range c.Inner.Keys {
		made[k.ID] = true
	}
	for i := range c.Inner.Aggs {
		made[c.Inner.Aggs[i].ID] = true
		madeInside(&c.Inner.Aggs[i], made)
	}
}
