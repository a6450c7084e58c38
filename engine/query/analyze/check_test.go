package analyze

import (
	"fmt"
	"maps"

	"github.com/trestledb/trestle/engine/query/algebra"
)

// A checker looks whether every expression of a relation refers to columns that are
// there.
type checker struct {
	defs     map[string]int // columns of definitions
	problems []string
}

// check returns what is wrong with r.
func check(r algebra.Rel) []string {
	c := &checker{defs: map[string]int{}}
	c.rel(r, columnSet{})
	return c.problems
}

type columnSet map[algebra.ColumnID]bool

func (s columnSet) with(r algebra.Rel) columnSet {
	out := maps.Clone(s)
	for _, c := range r.Columns() {
		out[c.ID] = true
	}
	return out
}

func (c *checker) report(format string, args ...any) {
	c.problems = append(c.problems, fmt.Sprintf(format, args...))
}

func (c *checker) expr(e algebra.Expr, has columnSet, where algebra.Rel) {
	algebra.Walk(e, func(e algebra.Expr) bool {
		switch e := e.(type) {
		case *algebra.ColumnRef:
			if !has[e.ID] {
				c.report("%T: column %s#%d is not there", where, e.Name, e.ID)
			}
		case *algebra.Lambda:
			inner := maps.Clone(has)
			for _, p := range e.Params {
				inner[p.ID] = true
			}
			c.expr(e.Body, inner, where)
			return false
		case *algebra.Let:
			inner := maps.Clone(has)
			for _, v := range e.Vars {
				c.expr(v.Expr, inner, where)
				inner[v.ID] = true
			}
			c.expr(e.Body, inner, where)
			return false
		case *algebra.Subquery:
			c.expr(e.X, has, where)
			outer := columnSet{}
			for _, id := range e.Outer {
				if !has[id] {
					c.report("%T: outer column %d of a subquery is not there", where, id)
				}
				outer[id] = true
			}
			c.rel(e.Query, outer)
			if e.Compare != nil {
				inner := maps.Clone(has)
				inner[e.Column] = true
				c.expr(e.Compare, inner, where)
			}
			return false
		}
		return true
	})
}

func (c *checker) aggregate(a *algebra.AggregateCall, has columnSet, where algebra.Rel) {
	c.expr(a.Where, has, where)
	if a.Inner != nil {
		inner := columnSet{}
		for _, k := range a.Inner.Keys {
			c.expr(k.Expr, has, where)
			inner[k.ID] = true
		}
		for i := range a.Inner.Aggs {
			c.aggregate(&a.Inner.Aggs[i], has, where)
			inner[a.Inner.Aggs[i].ID] = true
		}
		has = inner
	}
	c.expr(a.Having, has, where)
	for _, e := range a.Args {
		c.expr(e, has, where)
	}
	c.expr(a.HavingMax, has, where)
	c.expr(a.HavingMin, has, where)
	for _, k := range a.OrderBy {
		c.expr(k.Expr, has, where)
	}
}

// rel checks r, which may refer to outer.
func (c *checker) rel(r algebra.Rel, outer columnSet) {
	switch r := r.(type) {
	case *algebra.Filter:
		c.rel(r.Input, outer)
		c.expr(r.Cond, outer.with(r.Input), r)
	case *algebra.Project:
		c.rel(r.Input, outer)
		has := outer.with(r.Input)
		for _, p := range r.Computed {
			c.expr(p.Expr, has, r)
			if !p.Expr.Type().Equal(p.Type) {
				c.report("Project: column %d has type %s, its expression %s", p.ID, p.Type, p.Expr.Type())
			}
		}
	case *algebra.Keep:
		c.rel(r.Input, outer)
		has := columnSet{}.with(r.Input)
		for _, k := range r.Cols {
			if !has[k.ID] {
				c.report("Keep: column %s#%d is not there", k.Name, k.ID)
			}
		}
	case *algebra.Join:
		c.rel(r.Left, outer)
		right := outer
		if r.Lateral {
			right = maps.Clone(outer)
			for _, id := range r.Outer {
				right[id] = true
			}
		}
		c.rel(r.Right, right)
		c.expr(r.On, outer.with(r.Left).with(r.Right), r)
	case *algebra.Unnest:
		c.rel(r.Input, outer)
		for _, x := range r.Arrays {
			c.expr(x, outer.with(r.Input), r)
		}
		c.expr(r.On, outer.with(r), r)
		c.expr(r.Mode, outer.with(r.Input), r)
	case *algebra.Aggregate:
		c.rel(r.Input, outer)
		has := outer.with(r.Input)
		for _, k := range r.Keys {
			c.expr(k.Expr, has, r)
		}
		for i := range r.Aggs {
			c.aggregate(&r.Aggs[i], has, r)
		}
	case *algebra.Sort:
		c.rel(r.Input, outer)
		for _, k := range r.Keys {
			c.expr(k.Expr, outer.with(r.Input), r)
		}
	case *algebra.Limit:
		c.rel(r.Input, outer)
		c.expr(r.Count, columnSet{}, r)
		c.expr(r.Offset, columnSet{}, r)
	case *algebra.SetOperation:
		for i, in := range r.Inputs {
			c.rel(in, outer)
			has := map[algebra.ColumnID]algebra.Column{}
			for _, col := range in.Columns() {
				has[col.ID] = col
			}
			for j, id := range r.InputCols[i] {
				if col, ok := has[id]; !ok || !col.Type.Equal(r.Cols[j].Type) {
					c.report("SetOperation: column %d of input %d is not there, or of type %s instead of %s", j, i, col.Type, r.Cols[j].Type)
				}
			}
		}
	case *algebra.Window:
		c.rel(r.Input, outer)
		has := outer.with(r.Input)
		for i := range r.Calls {
			w := &r.Calls[i]
			c.aggregate(&w.AggregateCall, has, r)
			for _, e := range w.PartitionBy {
				c.expr(e, has, r)
			}
			for _, k := range w.Order {
				c.expr(k.Expr, has, r)
			}
		}
	case *algebra.With:
		for _, d := range r.Defs {
			c.defs[d.Name] = len(d.Cols)
			c.rel(d.Rel, outer)
			has := columnSet{}.with(d.Rel)
			for _, id := range d.Cols {
				if !has[id] {
					c.report("With %s: column %d is not there", d.Name, id)
				}
			}
		}
		c.rel(r.Body, outer)
	case *algebra.Ref:
		if n, ok := c.defs[r.Name]; !ok || n != len(r.Cols) {
			c.report("Ref: no definition %s of %d columns", r.Name, len(r.Cols))
		}
	}
}
