package analyze

import (
	"slices"
	"strings"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/syntax"
	"github.com/trestledb/trestle/engine/query/types"
)

// An item is a column of a select list.
type item struct {
	name string
	expr algebra.Expr
	col  algebra.Column
	pos  syntax.Pos
}

// selectQuery analyzes a SELECT with the ORDER BY that belongs to it.
func (a *analyzer) selectQuery(s *syntax.Select, order []syntax.OrderItem, outer *scope) *relation {
	a.enter(s.At())
	defer a.leave()
	sel := &selection{windows: s.Windows, low: a.next}
	var rel algebra.Rel = &algebra.OneRow{}
	list := &names{}
	if s.From != nil {
		rel, list = a.from(s.From, outer)
	}
	sel.high = a.next
	sel.from = &scope{list: list, outer: outer}
	if s.From == nil {
		a.withoutFrom(s, order)
	}
	if s.Where != nil {
		rel = &algebra.Filter{Input: rel, Cond: a.condition(s.Where, &env{scope: sel.from, clause: "WHERE clause"}, "WHERE")}
	}
	v := &env{scope: sel.from, clause: "SELECT list", sel: sel}
	if s.From == nil {
		v.clause, v.sel = bareSelect, nil
	}
	items := a.selectList(s, list, v)
	if len(items) > 0 || s.GroupBy != nil {
		aliases := &names{}
		for i := range items {
			if items[i].name != "" {
				aliases.cols = append(aliases.cols, column{name: items[i].name, expr: items[i].expr})
			}
		}
		sel.post = &scope{list: aliases, outer: sel.from}
	}
	var sets [][]int
	if s.GroupBy != nil {
		sel.grouped = true
		sets = a.groupBy(s.GroupBy, sel, items)
	}
	var having, qualify algebra.Expr
	if s.Having != nil {
		w := &env{scope: sel.post, clause: "HAVING clause", sel: sel, noWindow: true}
		having = a.condition(s.Having, w, "HAVING")
		if !sel.grouped {
			a.fail(s.Having.At(), "The HAVING clause requires GROUP BY or aggregation to be present")
		}
	}
	if s.Qualify != nil {
		before := len(sel.calls)
		qualify = a.condition(s.Qualify, &env{scope: sel.post, clause: "QUALIFY clause", sel: sel}, "QUALIFY")
		if before == 0 && len(sel.calls) == 0 {
			a.fail(s.Qualify.At(), "The QUALIFY clause requires analytic function to be present")
		}
	}
	var keys []algebra.SortKey
	if len(order) > maxKeys {
		a.fail(order[maxKeys].Expr.At(), "ORDER BY has more than %d keys", maxKeys)
	}
	grouped := sel.grouped
	for i := range order {
		o := &order[i]
		x := a.ordinal(o.Expr, len(items), func(n int) algebra.Expr { return items[n].expr })
		if x == nil || len(items) == 0 {
			w := &env{scope: sel.post, clause: "ORDER BY clause", sel: sel}
			if s.Distinct {
				w.clause = "ORDER BY clause after SELECT DISTINCT"
			}
			x = a.expr(o.Expr, w)
			if isLiteral(x) {
				a.fail(o.Expr.At(), "Cannot ORDER BY literal values")
			}
		}
		keys = append(keys, a.sortKey(o, x))
		if sel.grouped && !grouped {
			a.fail(a.keyword("ORDER", order[0].Expr.At()), "The ORDER BY clause only allows aggregation if GROUP BY or SELECT list aggregation is present")
		}
	}
	if sel.grouped {
		rel = a.group(rel, sel, sets, items, &having, &qualify, keys)
	} else if having != nil {
		rel = &algebra.Filter{Input: rel, Cond: having}
	}
	if len(sel.calls) > 0 {
		rel = &algebra.Window{Input: rel, Calls: sel.calls}
	}
	if qualify != nil {
		rel = &algebra.Filter{Input: rel, Cond: qualify}
	}
	return a.output(s, rel, items, keys)
}

// withoutFrom refuses what a SELECT without FROM cannot have.
func (a *analyzer) withoutFrom(s *syntax.Select, order []syntax.OrderItem) {
	switch {
	case s.Distinct:
		a.fail(s.At(), "Query without FROM clause cannot use SELECT DISTINCT")
	case s.Where != nil:
		a.fail(a.keyword("WHERE", s.Where.At()), "Query without FROM clause cannot have a WHERE clause")
	case s.GroupBy != nil:
		a.fail(s.GroupBy.At(), "Query without FROM clause cannot have a GROUP BY clause")
	case s.Having != nil:
		a.fail(a.keyword("HAVING", s.Having.At()), "Query without FROM clause cannot have a HAVING clause")
	case s.Qualify != nil:
		a.fail(a.keyword("QUALIFY", s.Qualify.At()), "Query without FROM clause cannot have a QUALIFY clause")
	case len(order) > 0:
		a.fail(a.keyword("ORDER", order[0].Expr.At()), "Query without FROM clause cannot have an ORDER BY clause")
	}
}

// output makes the columns of the select list, and does what comes behind: DISTINCT
// and ORDER BY.
func (a *analyzer) output(s *syntax.Select, rel algebra.Rel, items []item, keys []algebra.SortKey) *relation {
	out := &relation{}
	if s.As != "" {
		items = a.asValue(s, items)
		out.value = true
	}
	var computed []algebra.Computed
	for i := range items {
		it := &items[i]
		if r, ok := it.expr.(*algebra.ColumnRef); ok && !outside(rel, r) {
			it.col = r.Column
		} else {
			it.col = a.column(it.name, it.expr.Type())
			if it.col.Type == untypedNull {
				it.col.Type = types.Int64Type
			}
			computed = append(computed, algebra.Computed{Column: it.col, Expr: it.expr})
		}
		out.cols = append(out.cols, output{name: it.name, col: it.col, pos: it.pos})
	}
	if len(computed) > 0 {
		rel = &algebra.Project{Input: rel, Computed: computed}
	}
	toItem := func(e algebra.Expr) algebra.Expr {
		for i := range items {
			if e == items[i].expr || same(e, items[i].expr) {
				return &algebra.ColumnRef{Column: items[i].col}
			}
		}
		return nil
	}
	if s.Distinct {
		g := &algebra.Aggregate{Input: rel, Distinct: true}
		moved := map[algebra.ColumnID]algebra.Column{}
		for i := range items {
			it := &items[i]
			if !it.col.Type.SupportsGrouping() {
				if it.name == "" {
					a.fail(it.pos, "Column of type %s cannot be used in SELECT DISTINCT", it.col.Type.Kind)
				}
				a.fail(it.pos, "Column %s of type %s cannot be used in SELECT DISTINCT", types.QuoteIdentifier(it.name), it.col.Type.Kind)
			}
			c, ok := moved[it.col.ID]
			if !ok {
				c = a.column(it.name, it.col.Type)
				g.Keys = append(g.Keys, algebra.Computed{Column: c, Expr: &algebra.ColumnRef{Column: it.col}})
				moved[it.col.ID] = c
			}
			it.col = c
			out.cols[i].col = c
		}
		rel = g
		for i := range keys {
			keys[i].Expr = rewrite(keys[i].Expr, toItem)
			a.noneBut(keys[i].Expr, g, "ORDER BY clause expression references %s which is not visible after SELECT DISTINCT")
		}
	} else {
		for i := range keys {
			keys[i].Expr = rewrite(keys[i].Expr, toItem)
		}
	}
	for i := range items {
		if s.As == "STRUCT" {
			break // it is no literal, even of literals
		}
		out.cols[i].lit = literalParts(items[i].expr, &algebra.ColumnRef{Column: items[i].col})
	}
	if len(keys) > 0 {
		rel = &algebra.Sort{Input: rel, Keys: keys}
		out.ordered = true
	}
	out.rel = rel
	return out
}

// outside tells whether r is no column of rel but one of the query around it.
func outside(rel algebra.Rel, r *algebra.ColumnRef) bool {
	for _, c := range rel.Columns() {
		if c.ID == r.ID {
			return false
		}
	}
	return true
}

// noneBut refuses columns in e that are neither of g nor of queries around it.
func (a *analyzer) noneBut(e algebra.Expr, g *algebra.Aggregate, format string) {
	under := map[algebra.ColumnID]bool{}
	for _, c := range g.Input.Columns() {
		under[c.ID] = true
	}
	rewrite(e, func(e algebra.Expr) algebra.Expr {
		if r, ok := e.(*algebra.ColumnRef); ok && under[r.ID] {
			n := a.whereNamed(r)
			a.fail(n.pos, format, n.text)
		}
		return nil
	})
}

// whereNamed returns the name with which r was written, and where.
func (a *analyzer) whereNamed(r *algebra.ColumnRef) reference {
	for _, n := range a.refs {
		if n.expr == r {
			return n
		}
	}
	for i := len(a.refs) - 1; i >= 0; i-- {
		if n := a.refs[i]; n.expr.ID == r.ID {
			return n
		}
	}
	return reference{text: "column " + types.QuoteIdentifier(r.Name)}
}

// asValue makes the one column of SELECT AS STRUCT and SELECT AS VALUE.
func (a *analyzer) asValue(s *syntax.Select, items []item) []item {
	if s.As == "VALUE" {
		if len(items) != 1 {
			a.fail(a.keyword("AS", a.keyword("VALUE", s.Items[0].At())), "SELECT AS VALUE query must have exactly one column")
		}
		items[0].name = ""
		return items
	}
	x := &algebra.MakeStruct{T: &types.Type{Kind: types.Struct}}
	for i := range items {
		t := items[i].expr.Type()
		x.Fields = append(x.Fields, items[i].expr)
		x.T.Fields = append(x.T.Fields, types.Field{Name: items[i].name, Type: t})
	}
	return []item{{expr: x, pos: s.At()}}
}

// selectList analyzes the select list.
func (a *analyzer) selectList(s *syntax.Select, list *names, v *env) []item {
	if s.AsType != nil {
		a.fail(s.AsType.At(), "SELECT AS with a protocol buffer type is not supported")
	}
	items := make([]item, 0, len(s.Items))
	for i := range s.Items {
		it := &s.Items[i]
		if len(items) > maxColumns {
			a.fail(it.At(), "SELECT list has more than %d columns", maxColumns)
		}
		if it.Star != nil {
			items = a.star(s, it, list, v, items)
			continue
		}
		name := aliasOf(it.Expr)
		if it.Alias != nil {
			name = it.Alias.Name
		}
		x := a.expr(it.Expr, v)
		if c, ok := x.(*algebra.Call); ok && it.Alias == nil && strings.EqualFold(c.Function.Name, name) {
			name = "" // CURRENT_DATE without parentheses
		}
		items = append(items, item{name: name, expr: x, pos: it.Expr.At()})
	}
	return items
}

// star adds the columns of *, t.* or x.* to items.
func (a *analyzer) star(s *syntax.Select, it *syntax.SelectItem, list *names, v *env, items []item) []item {
	var got []item
	add := func(c *column, h *hit) {
		if c.pseudo {
			return
		}
		x := a.ref(c, h, it.At())
		a.refs[len(a.refs)-1].star = true
		if c.value {
			all := a.fields(x, c.name, it.At(), nil)
			got = append(got, slices.DeleteFunc(all, func(f item) bool { return c.hides(f.name) })...)
			return
		}
		got = append(got, item{name: c.name, expr: x, pos: it.At()})
	}
	switch it.Expr {
	case nil:
		if s.From == nil {
			a.fail(it.At(), "SELECT * must have a FROM clause")
		}
		for i := range list.cols {
			add(&list.cols[i], nil)
		}
		if len(got) == 0 {
			a.fail(it.At(), "SELECT * would expand to zero columns")
		}
	default:
		if n, ok := it.Expr.(*syntax.Name); ok {
			h, found := a.find(v.scope, n.Identifier)
			if found && h.table != nil {
				for i := range h.table.cols {
					add(&h.table.cols[i], &h)
				}
				break
			}
		}
		x := a.expr(it.Expr, v)
		if k := x.Type().Kind; k != types.Struct && k != types.Proto {
			a.fail(it.Expr.At(), "Dot-star is not supported for type %s", x.Type())
		}
		got = a.fields(x, "", it.At(), got)
	}
	for i, name := range it.Star.Except {
		for _, other := range it.Star.Except[:min(i, maxKeys)] {
			if strings.EqualFold(other.Name, name.Name) {
				a.fail(name.At(), "Duplicate column %s in SELECT * EXCEPT list", types.QuoteIdentifier(name.Name))
			}
		}
		kept := got[:0:0]
		for _, g := range got {
			if !strings.EqualFold(g.name, name.Name) {
				kept = append(kept, g)
			}
		}
		if len(kept) == len(got) {
			a.fail(name.At(), "Column %s in SELECT * EXCEPT list does not exist", types.QuoteIdentifier(name.Name))
		}
		got = kept
	}
	if len(it.Star.Except) > 0 && len(got) == 0 {
		a.fail(it.At(), "SELECT * expands to zero columns after applying EXCEPT")
	}
	for i := range it.Star.Replace {
		r := &it.Star.Replace[i]
		if r.Alias == nil {
			a.fail(r.At(), "SELECT * REPLACE needs a name for each expression")
		}
		for _, name := range it.Star.Except {
			if strings.EqualFold(name.Name, r.Alias.Name) {
				a.fail(r.Alias.At(), "Column %s cannot occur in both SELECT * EXCEPT and REPLACE", types.QuoteIdentifier(name.Name))
			}
		}
		found := -1
		for j := range got {
			if strings.EqualFold(got[j].name, r.Alias.Name) {
				if found >= 0 {
					a.fail(r.Alias.At(), "Column %s in SELECT * REPLACE list is ambiguous", types.QuoteIdentifier(r.Alias.Name))
				}
				found = j
			}
		}
		if found < 0 {
			a.fail(r.Alias.At(), "Column %s in SELECT * REPLACE list does not exist", types.QuoteIdentifier(r.Alias.Name))
		}
		got[found].expr = a.expr(r.Expr, v)
	}
	return append(items, got...)
}

// fields adds the fields of the row x of a value table to items, or x itself if it has
// none.
func (a *analyzer) fields(x algebra.Expr, name string, pos syntax.Pos, items []item) []item {
	switch t := x.Type(); t.Kind {
	case types.Struct:
		for i, f := range t.Fields {
			items = append(items, item{name: f.Name, expr: &algebra.GetField{X: x, Index: i, T: f.Type}, pos: pos})
		}
	case types.Proto:
		for i := range t.Message.Fields {
			if f := &t.Message.Fields[i]; f.Type != nil {
				items = append(items, item{name: f.Name, expr: &algebra.GetProtoField{X: x, Field: f, T: f.Type}, pos: pos})
			}
		}
	default:
		items = append(items, item{name: name, expr: x, pos: pos})
	}
	return items
}
