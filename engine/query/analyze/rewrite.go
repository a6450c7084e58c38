package analyze

import (
	"slices"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
)

// rewrite returns e with parts replaced: f is called for each expression from the
// outside in, and returns what stands in its place, or nil to go on inside. e itself
// does not change.
func rewrite(e algebra.Expr, f func(algebra.Expr) algebra.Expr) algebra.Expr {
	if e == nil {
		return nil
	}
	if r := f(e); r != nil {
		return r
	}
	if s, ok := e.(*algebra.Subquery); ok {
		out := *s
		out.X, out.Compare = rewrite(s.X, f), rewrite(s.Compare, f)
		if len(s.Outer) > 0 {
			out.Query = rewriteRel(s.Query, f)
			out.Outer = freeColumns(out.Query)
		}
		return &out
	}
	return mapParts(e, func(x algebra.Expr) algebra.Expr { return rewrite(x, f) })
}

// mapParts returns e with each expression directly in it, nil ones left out, replaced by
// what f returns. e itself does not change. Those of a Subquery are not touched.
func mapParts(e algebra.Expr, f func(algebra.Expr) algebra.Expr) algebra.Expr {
	switch e := e.(type) {
	case *algebra.Call:
		if args, changed := mapList(e.Args, f); changed {
			out := *e
			out.Args = args
			return &out
		}
	case *algebra.Lambda:
		if body := f(e.Body); body != e.Body {
			return &algebra.Lambda{Params: e.Params, Body: body}
		}
	case *algebra.Cast:
		x, format, zone := f(e.X), e.Format, e.Zone
		if format != nil {
			format = f(format)
		}
		if zone != nil {
			zone = f(zone)
		}
		if x != e.X || format != e.Format || zone != e.Zone {
			out := *e
			out.X, out.Format, out.Zone = x, format, zone
			return &out
		}
	case *algebra.GetField:
		if x := f(e.X); x != e.X {
			out := *e
			out.X = x
			return &out
		}
	case *algebra.GetProtoField:
		if x := f(e.X); x != e.X {
			out := *e
			out.X = x
			return &out
		}
	case *algebra.MakeStruct:
		if fields, changed := mapList(e.Fields, f); changed {
			return &algebra.MakeStruct{Fields: fields, T: e.T}
		}
	case *algebra.MakeArray:
		if elems, changed := mapList(e.Elems, f); changed {
			return &algebra.MakeArray{Elems: elems, T: e.T}
		}
	case *algebra.Let:
		vars, changed := e.Vars, false
		for i := range e.Vars {
			if x := f(e.Vars[i].Expr); x != e.Vars[i].Expr {
				if !changed {
					vars, changed = slices.Clone(e.Vars), true
				}
				vars[i].Expr = x
			}
		}
		if body := f(e.Body); changed || body != e.Body {
			return &algebra.Let{Vars: vars, Body: body}
		}
	}
	return e
}

func mapList(list []algebra.Expr, f func(algebra.Expr) algebra.Expr) ([]algebra.Expr, bool) {
	var out []algebra.Expr
	for i, e := range list {
		if e == nil {
			continue
		}
		r := f(e)
		if r != e && out == nil {
			out = slices.Clone(list)
		}
		if out != nil {
			out[i] = r
		}
	}
	if out == nil {
		return list, false
	}
	return out, true
}

func rewriteList(list []algebra.Expr, f func(algebra.Expr) algebra.Expr) ([]algebra.Expr, bool) {
	return mapList(list, func(e algebra.Expr) algebra.Expr { return rewrite(e, f) })
}

func rewriteKeys(keys []algebra.SortKey, f func(algebra.Expr) algebra.Expr) []algebra.SortKey {
	out := slices.Clone(keys)
	for i := range out {
		out[i].Expr = rewrite(out[i].Expr, f)
	}
	return out
}

func rewriteComputed(list []algebra.Computed, f func(algebra.Expr) algebra.Expr) []algebra.Computed {
	out := slices.Clone(list)
	for i := range out {
		out[i].Expr = rewrite(out[i].Expr, f)
	}
	return out
}

func rewriteAggregate(c algebra.AggregateCall, f func(algebra.Expr) algebra.Expr) algebra.AggregateCall {
	c.Args, _ = rewriteList(c.Args, f)
	c.Where, c.HavingMax, c.HavingMin, c.Limit = rewrite(c.Where, f), rewrite(c.HavingMax, f), rewrite(c.HavingMin, f), rewrite(c.Limit, f)
	c.Having, c.OrderBy = rewrite(c.Having, f), rewriteKeys(c.OrderBy, f)
	if c.Inner != nil {
		inner := *c.Inner
		inner.Keys = rewriteComputed(inner.Keys, f)
		inner.Aggs = slices.Clone(inner.Aggs)
		for i := range inner.Aggs {
			inner.Aggs[i] = rewriteAggregate(inner.Aggs[i], f)
		}
		c.Inner = &inner
	}
	return c
}

// rewriteRel returns r with the expressions in it rewritten.
func rewriteRel(r algebra.Rel, f func(algebra.Expr) algebra.Expr) algebra.Rel {
	switch r := r.(type) {
	case *algebra.Filter:
		return &algebra.Filter{Input: rewriteRel(r.Input, f), Cond: rewrite(r.Cond, f)}
	case *algebra.Project:
		return &algebra.Project{Input: rewriteRel(r.Input, f), Computed: rewriteComputed(r.Computed, f)}
	case *algebra.Keep:
		return &algebra.Keep{Input: rewriteRel(r.Input, f), Cols: r.Cols}
	case *algebra.Join:
		out := *r
		out.Left, out.Right, out.On = rewriteRel(r.Left, f), rewriteRel(r.Right, f), rewrite(r.On, f)
		return &out
	case *algebra.Unnest:
		out := *r
		out.Input, out.On, out.Mode = rewriteRel(r.Input, f), rewrite(r.On, f), rewrite(r.Mode, f)
		out.Arrays, _ = rewriteList(r.Arrays, f)
		return &out
	case *algebra.Aggregate:
		out := *r
		out.Input, out.Keys = rewriteRel(r.Input, f), rewriteComputed(r.Keys, f)
		out.Aggs = slices.Clone(r.Aggs)
		for i := range out.Aggs {
			out.Aggs[i] = rewriteAggregate(out.Aggs[i], f)
		}
		return &out
	case *algebra.Sort:
		return &algebra.Sort{Input: rewriteRel(r.Input, f), Keys: rewriteKeys(r.Keys, f)}
	case *algebra.Limit:
		return &algebra.Limit{Input: rewriteRel(r.Input, f), Count: rewrite(r.Count, f), Offset: rewrite(r.Offset, f)}
	case *algebra.SetOperation:
		out := *r
		out.Inputs = slices.Clone(r.Inputs)
		for i := range out.Inputs {
			out.Inputs[i] = rewriteRel(out.Inputs[i], f)
		}
		return &out
	case *algebra.Window:
		out := &algebra.Window{Input: rewriteRel(r.Input, f), Calls: slices.Clone(r.Calls)}
		for i := range out.Calls {
			c := &out.Calls[i]
			c.AggregateCall = rewriteAggregate(c.AggregateCall, f)
			c.PartitionBy, _ = rewriteList(c.PartitionBy, f)
			c.Order = rewriteKeys(c.Order, f)
		}
		return out
	case *algebra.With:
		out := &algebra.With{Defs: slices.Clone(r.Defs), Body: rewriteRel(r.Body, f)}
		for i := range out.Defs {
			out.Defs[i].Rel = rewriteRel(out.Defs[i].Rel, f)
		}
		return out
	}
	return r
}

// freeColumns returns the columns that r refers to and does not compute itself.
func freeColumns(r algebra.Rel) []algebra.ColumnID {
	var used []algebra.ColumnID
	made := map[algebra.ColumnID]bool{}
	var note func(e algebra.Expr) algebra.Expr
	var see func(r algebra.Rel)
	note = func(e algebra.Expr) algebra.Expr {
		switch e := e.(type) {
		case *algebra.ColumnRef:
			used = append(used, e.ID)
		case *algebra.Lambda:
			for _, p := range e.Params {
				made[p.ID] = true
			}
		case *algebra.Let:
			for _, v := range e.Vars {
				made[v.ID] = true
			}
		case *algebra.Subquery:
			used = append(used, e.Outer...)
			if e.Compare != nil {
				made[e.Column] = true
			}
		}
		return nil
	}
	see = func(r algebra.Rel) {
		for _, c := range r.Columns() {
			made[c.ID] = true
		}
		for _, in := range inputs(r) {
			see(in)
		}
		if u, ok := r.(*algebra.Aggregate); ok {
			for i := range u.Aggs {
				if in := u.Aggs[i].Inner; in != nil {
					for _, k := range in.Keys {
						made[k.ID] = true
					}
					for j := range in.Aggs {
						made[in.Aggs[j].ID] = true
					}
				}
			}
		}
	}
	see(r)
	rewriteRel(r, func(e algebra.Expr) algebra.Expr {
		note(e)
		if s, ok := e.(*algebra.Subquery); ok {
			// Its own query is judged by Outer.
			for _, x := range []algebra.Expr{s.X, s.Compare} {
				rewrite(x, note)
			}
			return e
		}
		return nil
	})
	var free []algebra.ColumnID
	for _, id := range used {
		if !made[id] && !slices.Contains(free, id) {
			free = append(free, id)
		}
	}
	return free
}

// inputs returns the relations directly under r.
func inputs(r algebra.Rel) []algebra.Rel {
	switch r := r.(type) {
	case *algebra.Filter:
		return []algebra.Rel{r.Input}
	case *algebra.Project:
		return []algebra.Rel{r.Input}
	case *algebra.Keep:
		return []algebra.Rel{r.Input}
	case *algebra.Join:
		return []algebra.Rel{r.Left, r.Right}
	case *algebra.Unnest:
		return []algebra.Rel{r.Input}
	case *algebra.Aggregate:
		return []algebra.Rel{r.Input}
	case *algebra.Sort:
		return []algebra.Rel{r.Input}
	case *algebra.Limit:
		return []algebra.Rel{r.Input}
	case *algebra.SetOperation:
		return r.Inputs
	case *algebra.Window:
		return []algebra.Rel{r.Input}
	case *algebra.With:
		list := []algebra.Rel{r.Body}
		for _, d := range r.Defs {
			list = append(list, d.Rel)
		}
		return list
	}
	return nil
}

// same tells whether two expressions are the same: they have the same value in every
// row.
func same(a, b algebra.Expr) bool {
	if a == b {
		return true
	}
	if a == nil || b == nil {
		return false
	}
	switch a := a.(type) {
	case *algebra.Literal:
		b, ok := b.(*algebra.Literal)
		return ok && a.T.Equal(b.T) && a.Value.Valid == b.Value.Valid && types.Compare(a.T, a.Value, b.Value) == 0
	case *algebra.Param:
		b, ok := b.(*algebra.Param)
		return ok && a.Name == b.Name
	case *algebra.ColumnRef:
		b, ok := b.(*algebra.ColumnRef)
		return ok && a.ID == b.ID
	case *algebra.Call:
		b, ok := b.(*algebra.Call)
		return ok && a.Function == b.Function && !a.Function.Volatile && a.Signature == b.Signature && a.Safe == b.Safe && a.T.Equal(b.T) && sameList(a.Args, b.Args)
	case *algebra.Cast:
		b, ok := b.(*algebra.Cast)
		return ok && a.Safe == b.Safe && a.T.Equal(b.T) && same(a.X, b.X) && same(a.Format, b.Format) && same(a.Zone, b.Zone)
	case *algebra.GetField:
		b, ok := b.(*algebra.GetField)
		return ok && a.Index == b.Index && same(a.X, b.X)
	case *algebra.GetProtoField:
		b, ok := b.(*algebra.GetProtoField)
		return ok && a.Field == b.Field && a.Has == b.Has && same(a.X, b.X)
	case *algebra.MakeStruct:
		b, ok := b.(*algebra.MakeStruct)
		return ok && a.T.Equal(b.T) && sameList(a.Fields, b.Fields)
	case *algebra.MakeArray:
		b, ok := b.(*algebra.MakeArray)
		return ok && a.T.Equal(b.T) && sameList(a.Elems, b.Elems)
	}
	return false
}

func sameList(a, b []algebra.Expr) bool { return slices.EqualFunc(a, b, same) }

func sameKeys(a, b []algebra.SortKey) bool {
	return slices.EqualFunc(a, b, func(x, y algebra.SortKey) bool {
		return x.Descending == y.Descending && x.NullsLast == y.NullsLast && same(x.Expr, y.Expr)
	})
}

// sameAggregate tells whether two aggregates give the same result.
func sameAggregate(a, b *algebra.AggregateCall) bool {
	return a.Function == b.Function && !a.Function.Volatile && a.Signature == b.Signature && a.Distinct == b.Distinct && a.IgnoreNulls == b.IgnoreNulls &&
		a.Safe == b.Safe && a.Deferred == b.Deferred && a.Inner == nil && b.Inner == nil && sameList(a.Args, b.Args) && same(a.Where, b.Where) && same(a.HavingMax, b.HavingMax) &&
		same(a.HavingMin, b.HavingMin) && same(a.Limit, b.Limit) && sameKeys(a.OrderBy, b.OrderBy)
}
