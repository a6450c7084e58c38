package analyze

import (
	"slices"
	"strings"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/syntax"
	"github.com/trestledb/trestle/engine/query/types"
)

// groupBy analyzes GROUP BY: it fills sel.keys, and returns the grouping sets, nil for
// the one of all keys.
func (a *analyzer) groupBy(g *syntax.GroupBy, sel *selection, items []item) [][]int {
	if g.All {
		for i := range items {
			a.groupAll(sel, &items[i])
		}
		return nil
	}
	plain := true
	for i := range g.Items {
		plain = plain && g.Items[i].Kind == syntax.GroupExpr
	}
	sets := [][]int{{}}
	for i := range g.Items {
		part := a.groupItem(&g.Items[i], sel, items)
		if plain {
			continue
		}
		if len(sets)*len(part) > maxSets {
			a.fail(g.Items[i].At(), "At most %d grouping sets are allowed, but %d were provided", maxSets, len(sets)*len(part))
		}
		var product [][]int
		for _, s := range sets {
			for _, p := range part {
				product = append(product, union(s, p))
			}
		}
		sets = product
	}
	if plain {
		return nil
	}
	return sets
}

func union(a, b []int) []int {
	out := slices.Clone(a)
	for _, x := range b {
		if !slices.Contains(out, x) {
			out = append(out, x)
		}
	}
	return out
}

// groupItem returns the grouping sets of one element of GROUP BY.
func (a *analyzer) groupItem(g *syntax.GroupItem, sel *selection, items []item) [][]int {
	a.enter(g.At())
	defer a.leave()
	list := func(exprs []syntax.Expr) []int {
		var out []int
		for _, e := range exprs {
			if k := a.groupKey(e, nil, sel, items); !slices.Contains(out, k) {
				out = append(out, k)
			}
		}
		return out
	}
	switch g.Kind {
	case syntax.GroupRollup:
		if len(g.Sets) > maxKeys {
			a.fail(g.At(), "ROLLUP can not have more than %d elements", maxKeys)
		}
		sets := [][]int{}
		prefix := []int{}
		for _, s := range g.Sets {
			sets = append(sets, prefix)
			prefix = union(prefix, list(s))
		}
		sets = append(sets, prefix)
		slices.Reverse(sets)
		return sets
	case syntax.GroupCube:
		if len(g.Sets) > 12 {
			a.fail(g.At(), "CUBE can not have more than 12 elements")
		}
		parts := make([][]int, len(g.Sets))
		for i, s := range g.Sets {
			parts[i] = list(s)
		}
		var sets [][]int
		for mask := 1<<len(parts) - 1; mask >= 0; mask-- {
			set := []int{}
			for i, p := range parts {
				if mask>>(len(parts)-1-i)&1 == 1 {
					set = union(set, p)
				}
			}
			sets = append(sets, set)
		}
		return sets
	case syntax.GroupSets:
		var sets [][]int
		for _, s := range g.Sets {
			set := list(s)
			if set == nil {
				set = []int{}
			}
			sets = append(sets, set)
		}
		for i := range g.Items {
			sets = append(sets, a.groupItem(&g.Items[i], sel, items)...)
		}
		return sets
	}
	return [][]int{{a.groupKey(g.Expr, g.Alias, sel, items)}}
}

// groupKey returns the index of a key.
func (a *analyzer) groupKey(e syntax.Expr, alias *syntax.Identifier, sel *selection, items []item) int {
	var x algebra.Expr
	name := aliasOf(e)
	switch e := e.(type) {
	case *syntax.IntLiteral:
		n, _ := a.integer(e.Text, false, e.At()).(*algebra.Literal)
		if n.Value.Int < 1 || n.Value.Int > int64(len(items)) {
			a.fail(e.At(), "GROUP BY is out of SELECT column number range: %d", n.Value.Int)
		}
		it := &items[n.Value.Int-1]
		x, name = it.expr, it.name
		a.noAggregates(x, sel, e, text(e, it.name))
	case *syntax.Name:
		// An alias of the select list hides columns of FROM.
		for i := range items {
			if strings.EqualFold(items[i].name, e.Name) {
				if x != nil && !same(x, items[i].expr) {
					a.fail(e.At(), "Name %s in GROUP BY clause is ambiguous; it may refer to multiple columns in the SELECT-list", types.QuoteIdentifier(e.Name))
				}
				x = items[i].expr
			}
		}
		if x != nil {
			a.noAggregates(x, sel, e, e.Name)
		}
	}
	if x == nil {
		x = a.expr(e, &env{scope: sel.from, clause: "GROUP BY"})
		if l, ok := x.(*algebra.Literal); ok && l.T.Kind == types.Int64 && l.Value.Valid {
			a.fail(e.At(), "GROUP BY is out of SELECT column number range: %d", l.Value.Int)
		}
		if isLiteral(x) {
			a.fail(e.At(), "Cannot GROUP BY literal values")
		}
	}
	if alias != nil {
		name = alias.Name
	}
	a.groupable(x, e.At())
	for i := range sel.keys {
		if same(sel.keys[i].Expr, x) {
			return i
		}
	}
	if len(sel.keys) == maxKeys {
		a.fail(e.At(), "GROUP BY has more than %d keys", maxKeys)
	}
	c := a.column(name, x.Type())
	if c.Type == untypedNull {
		c.Type = types.Int64Type
	}
	sel.keys = append(sel.keys, algebra.Computed{Column: c, Expr: x})
	if alias != nil {
		sel.post.list.cols = append(sel.post.list.cols, column{name: alias.Name, expr: x})
	}
	return len(sel.keys) - 1
}

func text(e *syntax.IntLiteral, name string) string {
	if name != "" {
		return name
	}
	return e.Text
}

func (a *analyzer) groupable(x algebra.Expr, pos syntax.Pos) {
	if t := x.Type(); !t.SupportsGrouping() {
		a.fail(pos, "Grouping by expressions of type %s is not allowed", t.Kind)
	}
}

// noAggregates refuses x as a key of the groups if it has an aggregate or a window
// function in it.
func (a *analyzer) noAggregates(x algebra.Expr, sel *selection, e syntax.Expr, name string) {
	if !a.computes(x, sel) {
		return
	}
	what := "an aggregation"
	rewrite(x, func(e algebra.Expr) algebra.Expr {
		if r, ok := e.(*algebra.ColumnRef); ok {
			for i := range sel.calls {
				if sel.calls[i].ID == r.ID {
					what = "an analytic"
				}
			}
		}
		return nil
	})
	a.fail(e.At(), "Column %s contains %s function, which is not allowed in GROUP BY", name, what)
}

// computes tells whether x has an aggregate or a window function in it.
func (a *analyzer) computes(x algebra.Expr, sel *selection) bool {
	found := false
	rewrite(x, func(e algebra.Expr) algebra.Expr {
		r, ok := e.(*algebra.ColumnRef)
		if !ok {
			return nil
		}
		for i := range sel.aggs {
			found = found || sel.aggs[i].ID == r.ID
		}
		for i := range sel.calls {
			found = found || sel.calls[i].ID == r.ID
		}
		for i := range sel.groupings {
			found = found || sel.groupings[i].col.ID == r.ID
		}
		return nil
	})
	return found
}

// groupAll adds to the keys what GROUP BY ALL takes of an item: all of it, if it has no
// aggregate and depends on FROM; otherwise the columns in it that no aggregate hides.
func (a *analyzer) groupAll(sel *selection, it *item) {
	add := func(x algebra.Expr, name string) {
		a.groupable(x, it.pos)
		for i := range sel.keys {
			if same(sel.keys[i].Expr, x) {
				return
			}
		}
		if len(sel.keys) == maxKeys {
			a.fail(it.pos, "GROUP BY ALL has more than %d keys", maxKeys)
		}
		sel.keys = append(sel.keys, algebra.Computed{Column: a.column(name, x.Type()), Expr: x})
	}
	depends := false
	rewrite(it.expr, func(e algebra.Expr) algebra.Expr {
		if r, ok := e.(*algebra.ColumnRef); ok && r.ID >= sel.low && r.ID < sel.high {
			depends = true
		}
		return nil
	})
	if !a.computes(it.expr, sel) {
		if depends {
			add(it.expr, it.name)
		}
		return
	}
	// Paths of fields within the item are keys as a whole.
	rewrite(it.expr, func(e algebra.Expr) algebra.Expr {
		switch x := e.(type) {
		case *algebra.ColumnRef:
			if x.ID >= sel.low && x.ID < sel.high {
				add(x, x.Name)
			}
		case *algebra.GetField:
			for b := x.X; ; {
				switch y := b.(type) {
				case *algebra.GetField:
					b = y.X
					continue
				case *algebra.ColumnRef:
					if y.ID >= sel.low && y.ID < sel.high {
						add(x, "")
						return e
					}
				}
				break
			}
		}
		return nil
	})
}

// grouping analyzes GROUPING(x).
func (a *analyzer) grouping(e *syntax.Call, args []syntax.Argument, v *env) algebra.Expr {
	if len(args) != 1 {
		a.fail(e.At(), "No matching signature for aggregate function GROUPING\n  Signature: GROUPING(T1)\n    Signature requires exactly 1 argument, found %d arguments", len(args))
	}
	if v.sel == nil || v.inAggregate {
		a.fail(e.At(), "Aggregate function GROUPING not allowed in %s", v.clause)
	}
	inner := *v
	inner.inAggregate = true
	x := a.expr(args[0].X, &inner)
	col := a.column("grouping", types.Int64Type)
	v.sel.grouped = true
	v.sel.groupings = append(v.sel.groupings, groupingCall{col: col, x: x, pos: e.At()})
	return &algebra.ColumnRef{Column: col}
}

// group puts rows into groups, and rewrites what is computed of them.
func (a *analyzer) group(rel algebra.Rel, sel *selection, sets [][]int, items []item, having, qualify *algebra.Expr, keys []algebra.SortKey) algebra.Rel {
	for i := range items {
		a.deferErrors(sel, items[i].expr)
	}
	for i := range keys {
		a.deferErrors(sel, keys[i].Expr)
	}
	a.deferErrors(sel, *having, *qualify)
	g := &algebra.Aggregate{Input: rel, Keys: sel.keys, Aggs: sel.aggs, Sets: sets}
	for _, c := range sel.groupings {
		at := slices.IndexFunc(sel.keys, func(k algebra.Computed) bool { return same(k.Expr, c.x) })
		if at < 0 {
			a.fail(c.pos, "GROUPING must have an argument that exists within the group-by expression list.")
		}
		g.Grouping = append(g.Grouping, algebra.GroupingColumn{Column: c.col, Key: at})
	}
	to := func(what string) func(algebra.Expr) algebra.Expr { return a.toGroups(sel, what) }
	for i := range items {
		before := items[i].expr
		items[i].expr = rewrite(before, to("SELECT list expression"))
	}
	if *having != nil {
		*having = rewrite(*having, to("HAVING clause expression"))
		rel = &algebra.Filter{Input: g, Cond: *having}
	} else {
		rel = g
	}
	if *qualify != nil {
		*qualify = rewrite(*qualify, to("QUALIFY clause expression"))
	}
	for i := range keys {
		keys[i].Expr = rewrite(keys[i].Expr, to(orderExpression))
	}
	for i := range sel.calls {
		c := &sel.calls[i]
		f := to("SELECT list expression")
		c.AggregateCall = rewriteAggregate(c.AggregateCall, f)
		c.PartitionBy, _ = rewriteList(c.PartitionBy, to("PARTITION BY expression"))
		c.Order = rewriteKeys(c.Order, to("Window ORDER BY expression"))
	}
	return rel
}

// orderExpression is what messages call a key of ORDER BY.
const orderExpression = "ORDER BY clause expression"

// toGroups returns what to do with an expression above the groups: keys are columns
// of the groups, and other columns of FROM are refused.
func (a *analyzer) toGroups(sel *selection, what string) func(algebra.Expr) algebra.Expr {
	return func(e algebra.Expr) algebra.Expr {
		for i := range sel.keys {
			if same(sel.keys[i].Expr, e) {
				ref := &algebra.ColumnRef{Column: sel.keys[i].Column}
				if old, ok := e.(*algebra.ColumnRef); ok && what == orderExpression {
					// DISTINCT may refuse it.
					n := a.whereNamed(old)
					n.expr = ref
					a.refs = append(a.refs, n)
				}
				return ref
			}
		}
		r, ok := e.(*algebra.ColumnRef)
		if !ok {
			return nil
		}
		if r.ID >= sel.low && r.ID < sel.high {
			n := a.whereNamed(r)
			clause := what
			switch {
			case n.star:
				clause = "Star expansion expression"
			case n.bare && what == "SELECT list expression":
				clause = bareSelect + " expression"
			}
			a.fail(n.pos, "%s references %s which is neither grouped nor aggregated", clause, n.text)
		}
		if sel.deferred != nil {
			for i := range sel.aggs {
				if c := &sel.aggs[i]; c.ID == r.ID && c.Deferred {
					return &algebra.Call{Function: sel.deferred, Signature: sel.deferred.Signatures[0], Args: []algebra.Expr{&algebra.ColumnRef{Column: c.Column}}, T: r.Type()}
				}
			}
		}
		return nil
	}
}
