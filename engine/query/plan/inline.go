package plan

import (
	"slices"

	"github.com/trestledb/trestle/engine/query/algebra"
)

// inline puts the query of a WITH in place of its name if it is named once, so that
// conditions and needs reach it. One that is named where it would be run many times
// stays.
func inline(r algebra.Rel) algebra.Rel {
	counts := map[string]int{}
	var count func(r algebra.Rel, often bool)
	count = func(r algebra.Rel, often bool) {
		if ref, ok := r.(*algebra.Ref); ok {
			counts[ref.Name]++
			if often {
				counts[ref.Name]++
			}
		}
		walkExprs(r, func(e algebra.Expr) {
			algebra.Walk(e, func(e algebra.Expr) bool {
				if s, ok := e.(*algebra.Subquery); ok {
					count(s.Query, true)
				}
				return true
			})
		})
		if j, ok := r.(*algebra.Join); ok && j.Lateral {
			count(j.Left, often)
			count(j.Right, true)
			return
		}
		for _, in := range inputs(r) {
			count(in, often)
		}
	}
	count(r, false)
	defs := map[string]*algebra.Definition{}
	var replace func(r algebra.Rel) algebra.Rel
	replace = func(r algebra.Rel) algebra.Rel {
		switch r := r.(type) {
		case *algebra.With:
			out := &algebra.With{}
			for i := range r.Defs {
				d := r.Defs[i]
				d.Rel = replace(d.Rel)
				if !d.Recursive && counts[d.Name] == 1 {
					defs[d.Name] = &d
				} else {
					out.Defs = append(out.Defs, d)
				}
			}
			out.Body = replace(r.Body)
			if len(out.Defs) == 0 {
				return out.Body
			}
			return out
		case *algebra.Ref:
			d := defs[r.Name]
			if d == nil {
				return r
			}
			cols := map[algebra.ColumnID]algebra.Column{}
			for _, c := range d.Rel.Columns() {
				cols[c.ID] = c
			}
			out := &algebra.Project{Input: d.Rel}
			for i, c := range r.Cols {
				out.Computed = append(out.Computed, algebra.Computed{Column: c, Expr: &algebra.ColumnRef{Column: cols[d.Cols[i]]}})
			}
			return &algebra.Keep{Input: out, Cols: r.Cols}
		}
		return mapRel(r, func(e algebra.Expr) algebra.Expr {
			return rewrite(e, func(algebra.Expr) algebra.Expr { return nil }, replace)
		}, replace)
	}
	return replace(r)
}

// copies makes what are copies of columns these columns themselves. It returns the
// column of which each is a copy. cells are columns that are there where their families
// are.
func copies(r algebra.Rel, cells map[algebra.ColumnID]*cellColumn) (algebra.Rel, map[algebra.ColumnID]algebra.Column) {
	of := map[algebra.ColumnID]algebra.Column{}
	var find func(r algebra.Rel)
	find = func(r algebra.Rel) {
		walkExprs(r, func(e algebra.Expr) {
			algebra.Walk(e, func(e algebra.Expr) bool {
				if s, ok := e.(*algebra.Subquery); ok {
					find(s.Query)
				}
				return true
			})
		})
		for _, in := range inputs(r) {
			find(in)
		}
		if p, ok := r.(*algebra.Project); ok {
			there := columnsOf(p.Input)
			for _, c := range p.Computed {
				// The names of a type's fields go with the column.
				e, ok := c.Expr.(*algebra.ColumnRef)
				if !ok || !e.Type().Equal(c.Type) {
					continue
				}
				if cell := cells[e.ID]; there[e.ID] || cell != nil && there[cell.base] {
					of[c.ID] = e.Column
				}
			}
		}
	}
	find(r)
	if len(of) == 0 {
		return r, of
	}
	for id, c := range of {
		for {
			d, ok := of[c.ID]
			if !ok {
				break
			}
			c = d
		}
		of[id] = c
	}
	origin := func(id algebra.ColumnID) algebra.ColumnID {
		if c, ok := of[id]; ok {
			return c.ID
		}
		return id
	}
	ids := func(list []algebra.ColumnID) []algebra.ColumnID {
		out := make([]algebra.ColumnID, len(list))
		for i, id := range list {
			out[i] = origin(id)
		}
		return out
	}
	var rel func(r algebra.Rel) algebra.Rel
	expr := func(e algebra.Expr) algebra.Expr {
		return rewrite(e, func(e algebra.Expr) algebra.Expr {
			if c, ok := e.(*algebra.ColumnRef); ok {
				if to, ok := of[c.ID]; ok {
					return &algebra.ColumnRef{Column: to}
				}
			}
			return nil
		}, func(r algebra.Rel) algebra.Rel { return rel(r) })
	}
	fixSubqueries := func(r algebra.Rel) {
		walkExprs(r, func(e algebra.Expr) {
			algebra.Walk(e, func(e algebra.Expr) bool {
				if s, ok := e.(*algebra.Subquery); ok {
					s.Column, s.Outer = origin(s.Column), unique(ids(s.Outer))
				}
				return true
			})
		})
	}
	rel = func(r algebra.Rel) algebra.Rel {
		out := mapRel(r, expr, rel)
		fixSubqueries(out)
		switch out := out.(type) {
		case *algebra.Project:
			out.Computed = slices.DeleteFunc(out.Computed, func(c algebra.Computed) bool { _, ok := of[c.ID]; return ok })
			if len(out.Computed) == 0 {
				return out.Input
			}
		case *algebra.Keep:
			var cols []algebra.Column
			seen := columnSet{}
			for _, c := range out.Cols {
				if to, ok := of[c.ID]; ok {
					c = to
				}
				if !seen[c.ID] {
					seen[c.ID] = true
					cols = append(cols, c)
				}
			}
			out.Cols = cols
		case *algebra.SetOperation:
			out.InputCols = slices.Clone(out.InputCols)
			for i := range out.InputCols {
				out.InputCols[i] = ids(out.InputCols[i])
			}
		case *algebra.With:
			for i := range out.Defs {
				out.Defs[i].Cols = ids(out.Defs[i].Cols)
			}
		case *algebra.Join:
			out.Outer = unique(ids(out.Outer))
		}
		return out
	}
	return rel(r), of
}

func unique(list []algebra.ColumnID) []algebra.ColumnID {
	slices.Sort(list)
	return slices.Compact(list)
}
