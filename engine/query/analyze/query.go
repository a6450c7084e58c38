package analyze

import (
	"fmt"
	"slices"
	"strings"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/syntax"
	"github.com/trestledb/trestle/engine/query/types"
)

// A relation is what a query gives.
type relation struct {
	rel  algebra.Rel
	cols []output
	// value is set of a value table: its one column is the row.
	value bool
	// ordered is set if the order was asked for.
	ordered bool
	pos     syntax.Pos
}

// An output is a column of a query.
type output struct {
	name string
	col  algebra.Column
	// lit, if it is set, is the column's value once more, of parts that are literals:
	// their types yield to those of other queries of a set operation. See literalParts.
	lit algebra.Expr
	pos syntax.Pos
}

// keep returns the rows of r without any other columns.
func keep(r *relation) algebra.Rel {
	cols := make([]algebra.Column, len(r.cols))
	for i, c := range r.cols {
		cols[i] = c.col
		cols[i].Name = c.name
	}
	if k, ok := r.rel.(*algebra.Keep); ok && slices.EqualFunc(k.Cols, cols, func(x, y algebra.Column) bool { return x.ID == y.ID }) {
		return k
	}
	return &algebra.Keep{Input: r.rel, Cols: cols}
}

// names returns the columns of r as a FROM clause makes them known, under alias if
// it is not "".
func (r *relation) names(alias string) *names {
	n := &names{}
	if r.value {
		c := column{name: alias, col: r.cols[0].col, value: true}
		n.cols = append(n.cols, c)
		if alias != "" {
			n.vars = append(n.vars, rangeVar{name: alias, whole: &c})
		}
		return n
	}
	for _, c := range r.cols {
		n.cols = append(n.cols, column{name: c.name, col: c.col})
	}
	if alias != "" {
		n.vars = append(n.vars, rangeVar{name: alias, cols: n.cols})
	}
	return n
}

// A with is the WITH clauses that a query stands in.
type with struct {
	name  string // as it was written
	def   string // the name of the Definition
	cols  []output
	value bool
	outer *with
	// used is set when the definition is referred to.
	used *bool
	// open is set while the query itself is analyzed, if it may not refer to itself; its
	// text is what a reference is refused with.
	open string
}

// query analyzes q, whose expressions may refer to outer.
func (a *analyzer) query(q *syntax.Query, outer *scope) *relation {
	a.enter(q.At())
	defer a.leave()
	around := a.with
	defs := a.ctes(q)
	var r *relation
	order := q.OrderBy
	switch body := q.Body.(type) {
	case *syntax.Select:
		r = a.selectQuery(body, order, outer)
	default:
		r = a.body(body, outer)
		a.order(r, order)
	}
	a.limits(r, q)
	a.with = around
	if len(defs) > 0 {
		r.rel = &algebra.With{Defs: defs, Body: keep(r)}
	}
	return r
}

// body analyzes a body that is no SELECT with an ORDER BY of its own.
func (a *analyzer) body(b syntax.QueryBody, outer *scope) *relation {
	switch b := b.(type) {
	case *syntax.Select:
		return a.selectQuery(b, nil, outer)
	case *syntax.SetOperation:
		a.enter(b.At())
		defer a.leave()
		return a.setOperation(b, outer, nil)
	case *syntax.Query:
		r := a.query(b, outer)
		r.pos = b.At()
		return r
	}
	a.fail(b.At(), "Query not supported: %T", b)
	return nil
}

// order sorts a set operation, or a query in parentheses: only its columns are known.
func (a *analyzer) order(r *relation, items []syntax.OrderItem) {
	if len(items) == 0 {
		return
	}
	list := r.names("")
	v := &env{scope: &scope{list: list}, clause: "ORDER BY clause after set operation"}
	s := &algebra.Sort{Input: r.rel}
	if len(items) > maxKeys {
		a.fail(items[maxKeys].Expr.At(), "ORDER BY has more than %d keys", maxKeys)
	}
	for i := range items {
		o := &items[i]
		x := a.ordinal(o.Expr, len(r.cols), func(n int) algebra.Expr { return &algebra.ColumnRef{Column: r.cols[n].col} })
		if x == nil {
			x = a.expr(o.Expr, v)
		}
		s.Keys = append(s.Keys, a.sortKey(o, x))
	}
	r.rel, r.ordered = s, true
}

// ordinal returns what at says of the column that an integer literal in ORDER BY
// counts out, or nil if e is none.
func (a *analyzer) ordinal(e syntax.Expr, n int, at func(int) algebra.Expr) algebra.Expr {
	i, ok := e.(*syntax.IntLiteral)
	if !ok {
		if u, ok := e.(*syntax.Unary); ok && u.Op == "-" {
			if i, ok := u.X.(*syntax.IntLiteral); ok {
				a.fail(e.At(), "ORDER BY column number item is out of range. Column numbers must be greater than or equal to one. Found : -%s", i.Text)
			}
		}
		switch e.(type) {
		case *syntax.StringLiteral, *syntax.BytesLiteral, *syntax.FloatLiteral, *syntax.BoolLiteral, *syntax.Null:
			a.fail(e.At(), "Cannot ORDER BY literal values")
		}
		return nil
	}
	var number int64
	if l, ok := a.integer(i.Text, false, i.At()).(*algebra.Literal); ok {
		number = l.Value.Int
	}
	if number < 1 {
		a.fail(e.At(), "ORDER BY column number item is out of range. Column numbers must be greater than or equal to one. Found : %d", number)
	}
	if number > int64(n) {
		a.fail(e.At(), "ORDER BY is out of SELECT column number range: %d", number)
	}
	return at(int(number - 1))
}

// limits applies LIMIT and OFFSET.
func (a *analyzer) limits(r *relation, q *syntax.Query) {
	if q.Limit == nil && q.Offset == nil {
		return
	}
	l := &algebra.Limit{Input: r.rel}
	if q.Limit != nil {
		if _, all := q.Limit.(*syntax.Null); !all {
			l.Count = a.limit(q.Limit, "LIMIT")
		}
	}
	if q.Offset != nil {
		l.Offset = a.limit(q.Offset, "OFFSET")
	}
	r.rel = l
}

// ctes analyzes the WITH clause of q, and makes its names known.
func (a *analyzer) ctes(q *syntax.Query) []algebra.Definition {
	if len(q.With) == 0 {
		return nil
	}
	var defs []algebra.Definition
	for i := range q.With {
		c := &q.With[i]
		for j := range min(i, maxKeys) {
			if strings.EqualFold(q.With[j].Name.Name, c.Name.Name) {
				a.fail(c.Name.At(), "Duplicate alias %s for WITH subquery", types.QuoteIdentifier(c.Name.Name))
			}
		}
		d := algebra.Definition{Name: a.unique(c.Name.Name)}
		var r *relation
		if q.Recursive {
			r = a.recursive(c, &d)
		} else {
			r = a.query(c.Query, nil)
		}
		d.Rel = keep(r)
		for _, o := range r.cols {
			d.Cols = append(d.Cols, o.col.ID)
		}
		a.with = &with{name: c.Name.Name, def: d.Name, cols: r.cols, value: r.value, outer: a.with, used: new(bool)}
		defs = append(defs, d)
	}
	return defs
}

// recursive analyzes c, which may refer to itself: then it is a UNION of a query
// that does not and of others that do.
func (a *analyzer) recursive(c *syntax.CTE, d *algebra.Definition) *relation {
	around := a.with
	defer func() { a.with = around }()
	body := c.Query.Body
	for {
		inner, ok := body.(*syntax.Query)
		if !ok || len(inner.With) > 0 || len(inner.OrderBy) > 0 || inner.Limit != nil {
			break
		}
		body = inner.Body
	}
	set, ok := body.(*syntax.SetOperation)
	if !ok || set.Op != syntax.Union || len(c.Query.With) > 0 || len(c.Query.OrderBy) > 0 || c.Query.Limit != nil || set.ByName || set.Corresponding {
		a.with = &with{name: c.Name.Name, outer: around, open: "Recursive query %s does not have the form <non-recursive-term> UNION [ALL|DISTINCT] <recursive-term>", used: new(bool)}
		return a.query(c.Query, nil)
	}
	a.enter(set.At())
	defer a.leave()
	a.with = &with{name: c.Name.Name, outer: around, open: "Recursive reference to %s is not allowed in the first query of the UNION", used: new(bool)}
	used := new(bool)
	r := a.setOperation(set, nil, func(first *relation) {
		a.with = &with{name: c.Name.Name, def: d.Name, cols: first.cols, value: first.value, outer: around, used: used}
	})
	d.Recursive = *used
	return r
}

// setOperation analyzes inputs combined. If self is set, it is called with the first
// of them, whose types are those of the result, and others may refer to it.
func (a *analyzer) setOperation(s *syntax.SetOperation, outer *scope, self func(*relation)) *relation {
	title := [...]string{"UNION", "INTERSECT", "EXCEPT"}[s.Op]
	if s.All {
		title += " ALL"
	} else {
		title += " DISTINCT"
	}
	inputs := make([]*relation, len(s.Inputs))
	for i, b := range s.Inputs {
		inputs[i] = a.body(b, outer)
		if inputs[i].pos == 0 {
			inputs[i].pos = b.At()
		}
		if i == 0 && self != nil {
			// The columns that later inputs see are those of the result.
			first := *inputs[0]
			first.cols = slices.Clone(first.cols)
			for j := range first.cols {
				first.cols[j].lit = nil
				if first.cols[j].col.Type == untypedNull {
					first.cols[j].col.Type = types.Int64Type
				}
			}
			inputs[0] = &first
			self(&first)
		}
	}
	if s.ByName || s.Corresponding {
		a.align(s, title, inputs)
	}
	first := inputs[0]
	for i, in := range inputs[1:] {
		if len(in.cols) != len(first.cols) {
			a.fail(in.pos, "Queries in %s have mismatched column count; query 1 has %s, query %d has %s", title, columns(len(first.cols)), i+2, columns(len(in.cols)))
		}
	}
	op := &algebra.SetOperation{Op: algebra.SetOp(s.Op), All: s.All}
	out := &relation{value: first.value}
	exprs := make([]algebra.Expr, len(inputs))
	for j, c := range first.cols {
		for i, in := range inputs {
			o := &in.cols[j]
			if exprs[i] = o.lit; o.lit == nil {
				exprs[i] = typed(o.col.Type)
			}
		}
		t := a.supertype(exprs)
		if self != nil {
			t = c.col.Type
			for i, x := range exprs {
				if _, ok := a.convertible(x, t); !ok {
					a.fail(inputs[i].pos, "Cannot coerce type (%s) of column %d in the recursive term to type (%s) of column %d in non-recursive term", x.Type(), j+1, t, j+1)
				}
			}
		}
		if t == nil {
			column := fmt.Sprint(j + 1)
			if s.ByName || s.Corresponding {
				column = c.name
			}
			a.fail(inputs[1].pos, "Column %s in %s has incompatible types: %s", column, title, typeList(exprs))
		}
		if t == untypedNull {
			t = types.Int64Type
		}
		if !s.All || s.Op != syntax.Union {
			if !t.SupportsGrouping() {
				a.fail(s.At(), "Column %d in %s has type that does not support set operation comparisons: %s", j+1, title, t)
			}
		}
		col := a.column(c.name, t)
		op.Cols = append(op.Cols, col)
		out.cols = append(out.cols, output{name: c.name, col: col, pos: c.pos})
	}
	for _, in := range inputs {
		ids := make([]algebra.ColumnID, len(in.cols))
		var conversions []algebra.Computed
		for j := range in.cols {
			o := &in.cols[j]
			t := op.Cols[j].Type
			ids[j] = o.col.ID
			if o.col.Type.Equal(t) {
				continue
			}
			var x algebra.Expr = &algebra.ColumnRef{Column: o.col}
			pos := in.pos
			if o.lit != nil {
				x, pos = o.lit, o.pos
			}
			c := a.column(o.name, t)
			conversions = append(conversions, algebra.Computed{Column: c, Expr: a.coerce(x, t, pos)})
			ids[j] = c.ID
		}
		rel := in.rel
		if len(conversions) > 0 {
			rel = &algebra.Project{Input: rel, Computed: conversions}
		}
		op.Inputs = append(op.Inputs, rel)
		op.InputCols = append(op.InputCols, ids)
	}
	out.rel = op
	return out
}

func columns(n int) string {
	if n == 1 {
		return "1 column"
	}
	return fmt.Sprintf("%d columns", n)
}

func typeList(list []algebra.Expr) string {
	parts := make([]string, len(list))
	for i, e := range list {
		switch {
		case isUntyped(e):
			parts[i] = "NULL"
		case isEmptyArray(e):
			parts[i] = "[]"
		default:
			parts[i] = internalName(e.Type())
		}
	}
	return strings.Join(parts, ", ")
}

// align gives inputs the columns of a set operation that matches them by name.
func (a *analyzer) align(s *syntax.SetOperation, title string, inputs []*relation) {
	var list []string
	how := "CORRESPONDING"
	if s.ByName {
		how = "BY NAME"
	}
	has := func(list []string, name string) bool {
		return slices.ContainsFunc(list, func(n string) bool { return strings.EqualFold(n, name) })
	}
	for i, in := range inputs {
		var seen []string
		for j, c := range in.cols {
			if c.name == "" {
				a.fail(in.pos, "Anonymous columns are not allowed in set operations when %s is used: query %d, column %d", how, i+1, j+1)
			}
			if has(seen, c.name) {
				a.fail(in.pos, "Duplicate columns found when using %s in set operations: %s in query %d", how, c.name, i+1)
			}
			seen = append(seen, c.name)
		}
	}
	named := func(in *relation) string {
		list := make([]string, len(in.cols))
		for i, c := range in.cols {
			list[i] = c.name
		}
		return "[" + strings.Join(list, ", ") + "]"
	}
	find := func(in *relation, name string) int {
		return slices.IndexFunc(in.cols, func(c output) bool { return strings.EqualFold(c.name, name) })
	}
	mode := s.OuterMode
	switch {
	case len(s.By) > 0:
		for _, id := range s.By {
			if has(list, id.Name) {
				a.fail(id.At(), "Duplicate column name %s in the column list of %s", id.Name, title)
			}
			list = append(list, id.Name)
			for i, in := range inputs {
				if find(in, id.Name) < 0 && (mode == "" || mode == "STRICT") {
					a.fail(id.At(), "Column %s does not exist in query %d of %s", id.Name, i+1, title)
				}
			}
		}
	case mode == "FULL":
		for _, in := range inputs {
			for _, c := range in.cols {
				if !has(list, c.name) {
					list = append(list, c.name)
				}
			}
		}
	case mode == "LEFT":
		for _, c := range inputs[0].cols {
			list = append(list, c.name)
		}
		for i, in := range inputs[1:] {
			if !slices.ContainsFunc(in.cols, func(c output) bool { return has(list, c.name) }) {
				a.fail(in.pos, "Query %d of %s has no column in common with the first query", i+2, title)
			}
		}
	case mode == "STRICT" || s.ByName && mode == "":
		for _, c := range inputs[0].cols {
			list = append(list, c.name)
		}
		for i, in := range inputs[1:] {
			for _, c := range inputs[0].cols {
				if find(in, c.name) < 0 {
					a.fail(s.At(), "%s requires all input queries to have identical column names, but query 1 has %s and query %d has %s", how, named(inputs[0]), i+2, named(in))
				}
			}
			for _, c := range in.cols {
				if !has(list, c.name) {
					a.fail(s.At(), "%s requires all input queries to have identical column names, but query 1 has %s and query %d has %s", how, named(inputs[0]), i+2, named(in))
				}
			}
		}
	default: // INNER
		for _, c := range inputs[0].cols {
			common := true
			for _, in := range inputs[1:] {
				common = common && find(in, c.name) >= 0
			}
			if common {
				list = append(list, c.name)
			}
		}
		if len(list) == 0 {
			a.fail(s.At(), "Queries of the set operation using %s do not have any columns in common", how)
		}
	}
	for i, in := range inputs {
		out := *in
		out.cols = nil
		var nulls []algebra.Computed
		for _, name := range list {
			if at := find(in, name); at >= 0 {
				c := in.cols[at]
				c.name = name
				out.cols = append(out.cols, c)
				continue
			}
			null := &algebra.Literal{T: untypedNull}
			c := a.column(name, types.Int64Type)
			nulls = append(nulls, algebra.Computed{Column: c, Expr: null})
			out.cols = append(out.cols, output{name: name, col: c, lit: null})
		}
		if len(nulls) > 0 {
			out.rel = &algebra.Project{Input: in.rel, Computed: nulls}
		}
		inputs[i] = &out
	}
}
