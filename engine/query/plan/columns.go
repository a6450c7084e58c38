package plan

import (
	"slices"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
)

// A source is a column of a Scan: use is its place there.
type source struct {
	scan *algebra.Scan
	use  int
}

// A cellColumn is a column that takes the place of an expression over a family:
// family['qualifier'], or the time when that was written.
type cellColumn struct {
	base algebra.ColumnID // the family
	use  algebra.ScanColumn
}

// narrowing makes families of which only some columns are used into these columns.
type narrowing struct {
	p       *planner
	sources map[algebra.ColumnID]source
	cells   map[algebra.ColumnID]*cellColumn
	byName  map[cellName]algebra.ColumnID
	values  columnSet
	outer   bool // there are joins that make NULLs of columns
}

type cellName struct {
	base      algebra.ColumnID
	qualifier string
	time      bool
}

func newNarrowing(p *planner) *narrowing {
	return &narrowing{p: p, sources: map[algebra.ColumnID]source{}, cells: map[algebra.ColumnID]*cellColumn{}, byName: map[cellName]algebra.ColumnID{}}
}

// collect finds the families that are read from stored tables.
func (n *narrowing) collect(r algebra.Rel) {
	switch r := r.(type) {
	case *algebra.Scan:
		if r.Table.Schema != nil {
			for i, u := range r.Uses {
				n.sources[u.ID] = source{r, i}
			}
		}
	case *algebra.Join:
		n.outer = n.outer || r.Kind == algebra.LeftJoin || r.Kind == algebra.FullJoin
	case *algebra.Unnest:
		n.outer = n.outer || r.Left
	}
	eachRel(r, n.collect)
}

// eachRel calls f for the inputs of r and for the queries of its subqueries.
func eachRel(r algebra.Rel, f func(algebra.Rel)) {
	walkExprs(r, func(e algebra.Expr) {
		algebra.Walk(e, func(e algebra.Expr) bool {
			if s, ok := e.(*algebra.Subquery); ok {
				f(s.Query)
			}
			return true
		})
	})
	for _, in := range inputs(r) {
		f(in)
	}
}

func isFunction(e algebra.Expr, name string) (*algebra.Call, bool) {
	c, ok := e.(*algebra.Call)
	return c, ok && c.Function != nil && c.Function.Name == name
}

// lookup returns the family and the qualifier of a call whose arguments they are.
func (n *narrowing) lookup(c *algebra.Call) (algebra.ScanColumn, string, bool) {
	if len(c.Args) != 2 {
		return algebra.ScanColumn{}, "", false
	}
	ref, ok := c.Args[0].(*algebra.ColumnRef)
	if !ok {
		return algebra.ScanColumn{}, "", false
	}
	src, ok := n.sources[ref.ID]
	if !ok || src.scan.Uses[src.use].Index < 0 {
		return algebra.ScanColumn{}, "", false
	}
	u := src.scan.Uses[src.use]
	l, ok := c.Args[1].(*algebra.Literal)
	if !ok || !l.Value.Valid || l.T.Kind != types.Bytes || u.Qualifier != nil || src.scan.Table.Columns[u.Index].Kind != algebra.FamilyColumn {
		return algebra.ScanColumn{}, "", false
	}
	return u, l.Value.Str, true
}

// column returns the column that has a cell of family u.
func (n *narrowing) column(u algebra.ScanColumn, qualifier string, t *types.Type, time bool) *algebra.ColumnRef {
	name := cellName{u.ID, qualifier, time}
	id, ok := n.byName[name]
	if !ok {
		id = n.p.next
		n.p.next++
		n.byName[name] = id
		c := algebra.Column{ID: id, Name: u.Name + "[" + quote(qualifier) + "]", Type: t}
		if time {
			c.Name = "WRITE_TIMESTAMP(" + u.Name + ", " + quote(qualifier) + ")"
		}
		n.cells[id] = &cellColumn{u.ID, algebra.ScanColumn{Column: c, Index: u.Index, Qualifier: &qualifier, WriteTime: time}}
	}
	return &algebra.ColumnRef{Column: n.cells[id].use.Column}
}

// replace puts columns in place of what is looked up in families.
func (n *narrowing) replace(r algebra.Rel) algebra.Rel {
	r = rewriteAll(r, func(e algebra.Expr) algebra.Expr {
		c, ok := e.(*algebra.Call)
		if !ok {
			return nil
		}
		switch c.Function.Name {
		case "$map_subscript":
			if u, q, ok := n.lookup(c); ok {
				return n.column(u, q, c.T, false)
			}
		case "WRITE_TIMESTAMP":
			if u, q, ok := n.lookup(c); ok {
				return n.column(u, q, c.T, true)
			}
		case "MAP_CONTAINS_KEY":
			// Of a map that a join made NULL, the result would be NULL.
			if u, q, ok := n.lookup(c); ok && !n.outer {
				return not(isNull(n.column(u, q, u.Type.Elem, false)))
			}
		}
		return nil
	})
	return n.outerColumns(r)
}

// outerColumns makes right again which columns of the rows around are used in subqueries
// and on the right side of lateral joins.
func (n *narrowing) outerColumns(r algebra.Rel) algebra.Rel {
	out := mapRel(r, func(e algebra.Expr) algebra.Expr {
		return rewrite(e, func(algebra.Expr) algebra.Expr { return nil }, n.outerColumns)
	}, n.outerColumns)
	walkExprs(out, func(e algebra.Expr) {
		algebra.Walk(e, func(e algebra.Expr) bool {
			if s, ok := e.(*algebra.Subquery); ok && len(s.Outer) > 0 {
				s.Outer = freeColumns(s.Query)
			}
			return true
		})
	})
	if j, ok := out.(*algebra.Join); ok && j.Lateral {
		j.Outer = freeColumns(j.Right)
	}
	return out
}

// valuesOf returns the columns of which the values matter, not only whether they are
// NULL.
func (n *narrowing) valuesOf(r algebra.Rel, need columnSet) columnSet {
	values := columnSet{}
	values.addAll(need)
	expr := func(e algebra.Expr) {
		algebra.Walk(e, func(e algebra.Expr) bool {
			switch e := e.(type) {
			case *algebra.ColumnRef:
				values[e.ID] = true
			case *algebra.Subquery:
				values[e.Column] = true
			case *algebra.Call:
				if e.Function.Name == "$is_null" {
					if _, ok := e.Args[0].(*algebra.ColumnRef); ok {
						return false
					}
				}
			}
			return true
		})
	}
	var see func(r algebra.Rel)
	see = func(r algebra.Rel) {
		switch r := r.(type) {
		case *algebra.Aggregate:
			walkExprs(&algebra.Aggregate{Input: &algebra.OneRow{}, Keys: r.Keys, Aggs: countsOnly(r.Aggs)}, expr)
		case *algebra.SetOperation:
			for _, list := range r.InputCols {
				for _, id := range list {
					values[id] = true
				}
			}
		case *algebra.With:
			for _, d := range r.Defs {
				for _, id := range d.Cols {
					values[id] = true
				}
			}
		default:
			walkExprs(r, expr)
		}
		eachRel(r, see)
	}
	see(r)
	return values
}

// countsOnly returns aggs without the arguments of COUNT that are columns.
func countsOnly(aggs []algebra.AggregateCall) []algebra.AggregateCall {
	out := slices.Clone(aggs)
	for i := range out {
		a := &out[i]
		if a.Function.Name == "COUNT" && !a.Distinct && len(a.Args) == 1 {
			if _, ok := a.Args[0].(*algebra.ColumnRef); ok {
				a.Args = nil
			}
		}
	}
	return out
}

// prune ends columns that are not in need, and reads those that took the place of
// others.
func (n *narrowing) prune(r algebra.Rel, need columnSet) algebra.Rel {
	r = n.pruneQueries(r)
	down := columnSet{}
	down.addAll(need)
	walkExprs(r, func(e algebra.Expr) {
		if _, ok := r.(*algebra.Project); !ok {
			down.addUsed(e)
		}
	})
	switch r := r.(type) {
	case *algebra.Scan:
		return n.pruneScan(r, need)
	case *algebra.Project:
		var kept []algebra.Computed
		for _, c := range slices.Backward(r.Computed) {
			if down[c.ID] {
				kept = append(kept, c)
				down.addUsed(c.Expr)
			}
		}
		if len(kept) == 0 {
			return n.prune(r.Input, down)
		}
		slices.Reverse(kept)
		return &algebra.Project{Input: n.prune(r.Input, down), Computed: kept}
	case *algebra.Keep:
		in := n.prune(r.Input, need)
		return &algebra.Keep{Input: in, Cols: n.kept(r.Cols, need, columnsOf(in))}
	case *algebra.Join:
		out := *r
		out.Left = n.prune(r.Left, withOuter(down, r))
		out.Right = n.prune(r.Right, down)
		return &out
	case *algebra.Aggregate:
		out := *r
		out.Aggs = slices.DeleteFunc(slices.Clone(r.Aggs), func(c algebra.AggregateCall) bool { return !need[c.ID] })
		if len(out.Aggs) == 0 && len(r.Keys) == 0 {
			out.Aggs = r.Aggs[:min(1, len(r.Aggs))]
		}
		down = columnSet{}
		walkExprs(&out, down.addUsed)
		out.Input = n.prune(r.Input, down)
		return &out
	case *algebra.Window:
		out := &algebra.Window{Calls: slices.DeleteFunc(slices.Clone(r.Calls), func(c algebra.WindowCall) bool { return !need[c.ID] })}
		if len(out.Calls) == 0 {
			return n.prune(r.Input, need)
		}
		down = columnSet{}
		down.addAll(need)
		out.Input = &algebra.OneRow{}
		walkExprs(out, down.addUsed)
		out.Input = n.prune(r.Input, down)
		return out
	case *algebra.SetOperation:
		return n.pruneSet(r, need)
	case *algebra.With:
		out := &algebra.With{Defs: slices.Clone(r.Defs), Body: n.prune(r.Body, need)}
		for i := range out.Defs {
			out.Defs[i].Rel = n.prune(out.Defs[i].Rel, setOf(out.Defs[i].Cols))
		}
		return out
	}
	return mapRel(r, func(e algebra.Expr) algebra.Expr { return e }, func(in algebra.Rel) algebra.Rel { return n.prune(in, down) })
}

func setOf(list []algebra.ColumnID) columnSet {
	s := columnSet{}
	for _, id := range list {
		s[id] = true
	}
	return s
}

func withOuter(s columnSet, j *algebra.Join) columnSet {
	for _, id := range j.Outer {
		s[id] = true
	}
	return s
}

// pruneQueries prunes the subqueries in the expressions of r.
func (n *narrowing) pruneQueries(r algebra.Rel) algebra.Rel {
	return mapRel(r, func(e algebra.Expr) algebra.Expr { return n.pruneExpr(e) }, func(in algebra.Rel) algebra.Rel { return in })
}

func (n *narrowing) pruneExpr(e algebra.Expr) algebra.Expr {
	same := func(r algebra.Rel) algebra.Rel { return r }
	return rewrite(e, func(e algebra.Expr) algebra.Expr {
		s, ok := e.(*algebra.Subquery)
		if !ok {
			return nil
		}
		out := *s
		out.X, out.Compare = n.pruneExpr(s.X), n.pruneExpr(s.Compare)
		need := columnSet{}
		if s.Kind != algebra.ExistsQuery {
			need[s.Column] = true
		}
		out.Query = n.prune(s.Query, need)
		if len(s.Outer) > 0 {
			out.Outer = freeColumns(out.Query)
		}
		return &out
	}, same)
}

// kept returns those of cols that are in need, and those that took the place of
// others of them.
func (n *narrowing) kept(cols []algebra.Column, need, there columnSet) []algebra.Column {
	var out []algebra.Column
	bases := columnSet{}
	for _, c := range cols {
		bases[c.ID] = true
		if need[c.ID] {
			out = append(out, c)
		}
	}
	for _, id := range sorted(need) {
		if c := n.cells[id]; c != nil && bases[c.base] && there[id] {
			out = append(out, c.use.Column)
		}
	}
	return out
}

func sorted(s columnSet) []algebra.ColumnID {
	out := make([]algebra.ColumnID, 0, len(s))
	for id := range s {
		out = append(out, id)
	}
	slices.Sort(out)
	return out
}

func (n *narrowing) pruneScan(r *algebra.Scan, need columnSet) algebra.Rel {
	out := *r
	out.Uses = nil
	there := columnSet{}
	for _, u := range r.Uses {
		there[u.ID] = true
		if need[u.ID] {
			u.Existence = r.Table.Schema != nil && !n.values[u.ID] && !u.WriteTime
			out.Uses = append(out.Uses, u)
		}
	}
	for _, id := range sorted(need) {
		if c := n.cells[id]; c != nil && there[c.base] && !there[id] {
			u := c.use
			u.Existence = !n.values[id] && !u.WriteTime
			out.Uses = append(out.Uses, u)
		}
	}
	return &out
}

// pruneSet ends columns of a UNION ALL only: other operations compare all of them.
func (n *narrowing) pruneSet(r *algebra.SetOperation, need columnSet) algebra.Rel {
	out := *r
	out.Inputs, out.InputCols = slices.Clone(r.Inputs), slices.Clone(r.InputCols)
	if r.Op == algebra.Union && r.All {
		out.Cols = nil
		for i := range out.InputCols {
			out.InputCols[i] = nil
		}
		for k, c := range r.Cols {
			if need[c.ID] {
				out.Cols = append(out.Cols, c)
				for i := range r.InputCols {
					out.InputCols[i] = append(out.InputCols[i], r.InputCols[i][k])
				}
			}
		}
	}
	for i := range out.Inputs {
		out.Inputs[i] = n.prune(r.Inputs[i], setOf(out.InputCols[i]))
	}
	return &out
}
