package analyze

import (
	"strings"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/syntax"
	"github.com/trestledb/trestle/engine/query/types"
)

// tableRef analyzes a name in FROM: of a WITH query, of a table or view, or of an array
// of outer.
func (a *analyzer) tableRef(t *syntax.TableRef, list *names, outer *scope) (algebra.Rel, *names) {
	name := joined(t.Path.Names)
	alias := t.Path.Names[len(t.Path.Names)-1].Name
	if t.Alias != nil {
		alias = t.Alias.Name
	}
	if len(t.Path.Names) == 1 {
		if rel, names := a.withRef(t, name, alias); rel != nil {
			return rel, names
		}
	}
	s := &scope{list: list, outer: outer}
	if a.isArray(t, s) {
		return a.array(t, s)
	}
	if t.Offset != nil {
		a.fail(t.At(), "WITH OFFSET can only be used with array scans")
	}
	if rel, names := a.arrayOfTable(t); rel != nil {
		return rel, names
	}
	return a.scan(a.mustTable(name, t.Path.At()), alias, nil, t.Path.At())
}

// arrayOfTable analyzes a path that leads from a table to an array in its rows, if it is
// one: FROM table.array is FROM table, table.array without the table's columns.
func (a *analyzer) arrayOfTable(t *syntax.TableRef) (algebra.Rel, *names) {
	path := t.Path.Names
	if len(path) < 2 || a.known(joined(path)) {
		return nil, nil
	}
	for n := len(path) - 1; n > 0; n-- {
		name := joined(path[:n])
		head := &syntax.TableRef{Pos: t.Pos, Path: &syntax.Path{Pos: t.Path.Pos, Names: path[:n]}}
		rel, list := a.withRef(head, name, path[n-1].Name)
		if n > 1 || rel == nil {
			if !a.known(name) {
				continue
			}
			rel, list = a.scan(a.mustTable(name, t.Path.At()), path[n-1].Name, nil, t.Path.At())
		}
		array := *t
		array.Path = &syntax.Path{Pos: t.Path.Pos, Names: path[n-1:]}
		u, names := a.array(&array, &scope{list: list})
		u.Input = rel
		return u, names
	}
	return nil, nil
}

// mustTable returns the table called name.
func (a *analyzer) mustTable(name string, pos syntax.Pos) *algebra.Table {
	t := a.table(name)
	if t == nil {
		a.fail(pos, "Table not found: %s%s", quotePath(name), suggest(name, a.tableNames))
	}
	return t
}

// tableNames calls yield for each name that may stand in FROM.
func (a *analyzer) tableNames(yield func(string)) {
	list, err := a.catalog.Tables(a.ctx)
	if err != nil {
		return
	}
	for _, n := range list {
		yield(n)
	}
}

// withRef analyzes a reference to a WITH query, if there is one called name.
func (a *analyzer) withRef(t *syntax.TableRef, name, alias string) (algebra.Rel, *names) {
	for w := a.with; w != nil; w = w.outer {
		if !strings.EqualFold(w.name, name) {
			continue
		}
		if w.open != "" {
			a.fail(t.At(), w.open, types.QuoteIdentifier(name))
		}
		*w.used = true
		ref := &algebra.Ref{Name: w.def}
		r := &relation{value: w.value}
		for _, c := range w.cols {
			col := a.column(c.name, c.col.Type)
			ref.Cols = append(ref.Cols, col)
			r.cols = append(r.cols, output{name: c.name, col: col})
		}
		return ref, r.names(alias)
	}
	return nil, nil
}

// scan reads a table, or expands a view.
func (a *analyzer) scan(t *algebra.Table, alias string, h *algebra.History, pos syntax.Pos) (algebra.Rel, *names) {
	if t.View != nil {
		if h != nil {
			a.fail(pos, "View %s has no history", types.QuoteIdentifier(t.Name))
		}
		return a.view(t, alias, pos)
	}
	if a.definer != "" && t.Schema != nil && t.Definer != a.definer {
		own := *t
		own.Definer = a.definer
		t = &own
	}
	scan := &algebra.Scan{Table: t, Alias: alias, History: h}
	src := &source{scan: scan, used: make([]bool, len(t.Columns))}
	list := &names{cols: make([]column, 0, len(t.Columns)+1)}
	for i := range t.Columns {
		tc := &t.Columns[i]
		typ := tc.Type
		if tc.Kind == algebra.FamilyColumn && h != nil && h.WithHistory && !h.Unpack {
			typ = historyType(typ)
		}
		list.cols = append(list.cols, column{name: tc.Name, col: a.column(tc.Name, typ), pseudo: tc.Pseudo, src: src, index: i, value: t.ValueTable})
	}
	if h != nil && h.Unpack {
		src.timestamp = true
		src.used = append(src.used, false)
		list.cols = append(list.cols, column{name: "_timestamp", col: a.column("_timestamp", types.TimestampType), src: src, index: len(t.Columns)})
	}
	v := rangeVar{name: alias, cols: list.cols}
	if t.ValueTable && len(list.cols) == 1 {
		list.cols[0].name = alias
		v.cols, v.whole = nil, &list.cols[0]
	}
	list.vars = []rangeVar{v}
	return scan, list
}

// historyType returns the type of a family with history: of each qualifier all cells,
// newest first.
func historyType(m *types.Type) *types.Type {
	return types.MapOf(m.Key, types.ArrayOf(types.StructOf(types.Field{Name: "timestamp", Type: types.TimestampType}, types.Field{Name: "value", Type: m.Elem})))
}

// view expands a logical view.
func (a *analyzer) view(t *algebra.Table, alias string, pos syntax.Pos) (algebra.Rel, *names) {
	for _, v := range a.views {
		if strings.EqualFold(v, t.Name) {
			a.fail(pos, "View %s refers to itself", types.QuoteIdentifier(t.Name))
		}
	}
	if len(a.views) >= maxViews {
		a.fail(pos, "Views refer to views more than %d levels deep", maxViews)
	}
	if a.expanded++; a.expanded > maxExpansions {
		a.fail(pos, "The statement refers to views more than %d times", maxExpansions)
	}
	q, err := syntax.ParseQuery(t.View.Query)
	if err != nil {
		a.fail(pos, "Invalid view %s: %s", types.QuoteIdentifier(t.Name), err)
	}
	text, around, definer, declared, refs := a.text, a.with, a.definer, a.declared, a.refs
	a.text, a.with, a.definer, a.declared, a.refs = t.View.Query, nil, t.View.Definer, nil, nil
	catalog := a.catalog
	if t.View.Catalog != nil {
		a.catalog = t.View.Catalog // with the definer's rights
	}
	a.views = append(a.views, t.Name)
	r := a.query(q, nil)
	a.views = a.views[:len(a.views)-1]
	a.catalog = catalog
	a.text, a.with, a.definer, a.declared, a.refs = text, around, definer, declared, refs
	return keep(r), r.names(alias)
}

// tableFunction analyzes t(with_history => TRUE, …).
func (a *analyzer) tableFunction(t *syntax.TableFunction, alias *syntax.Identifier, unpack bool) (algebra.Rel, *names) {
	name := joined(t.Name.Names)
	table := a.table(name)
	if table == nil {
		a.fail(t.Name.At(), "Table-valued function not found: %s%s", types.QuoteIdentifier(name), suggest(name, a.tableNames))
	}
	if table.Schema == nil && table.View == nil {
		a.fail(t.Name.At(), "Table %s has no history", types.QuoteIdentifier(name))
	}
	h := a.history(t, name)
	h.Unpack = unpack
	if unpack && !h.WithHistory {
		a.fail(t.At(), "UNPACK requires a table with history: %s(with_history => TRUE)", name)
	}
	as := t.Name.Names[len(t.Name.Names)-1].Name
	if alias != nil {
		as = alias.Name
	}
	return a.scan(table, as, h, t.Name.At())
}

// history analyzes the arguments of a table function.
func (a *analyzer) history(t *syntax.TableFunction, table string) *algebra.History {
	h := &algebra.History{}
	seen := map[string]syntax.Pos{}
	for i := range t.Args {
		arg := &t.Args[i]
		if arg.Name == nil {
			a.fail(arg.X.At(), "Table function %s takes named arguments only: with_history, after, after_or_equal, before, before_or_equal, latest_n, as_of", table)
		}
		name := strings.ToLower(arg.Name.Name)
		if _, ok := seen[name]; ok {
			a.fail(arg.Name.At(), "Duplicate named argument `%s` found in call to function %s", name, table)
		}
		seen[name] = arg.Name.At()
		switch name {
		case "with_history":
			x := a.constant(arg.X, types.BoolType, name)
			l, ok := x.(*algebra.Literal)
			if !ok || !l.Value.Valid {
				a.fail(arg.X.At(), "Argument with_history must be TRUE or FALSE")
			}
			h.WithHistory = l.Value.Bool()
		case "after":
			h.After = a.constant(arg.X, types.TimestampType, name)
		case "after_or_equal":
			h.AfterOrEqual = a.constant(arg.X, types.TimestampType, name)
		case "before":
			h.Before = a.constant(arg.X, types.TimestampType, name)
		case "before_or_equal":
			h.BeforeOrEqual = a.constant(arg.X, types.TimestampType, name)
		case "as_of":
			h.AsOf = a.constant(arg.X, types.TimestampType, name)
		case "latest_n":
			h.LatestN = a.constant(arg.X, types.Int64Type, name)
			if l, ok := h.LatestN.(*algebra.Literal); ok && l.Value.Int < 1 {
				a.fail(arg.X.At(), "Argument latest_n must be at least 1")
			}
		default:
			a.fail(arg.Name.At(), "Named argument `%s` not found in signature for call to function %s", arg.Name.Name, table)
		}
	}
	if h.AsOf != nil && h.WithHistory {
		a.fail(seen["as_of"], "Argument as_of must not be combined with with_history => TRUE")
	}
	for _, name := range []string{"after", "after_or_equal", "before", "before_or_equal", "latest_n"} {
		if pos, ok := seen[name]; ok && !h.WithHistory {
			a.fail(pos, "Argument %s requires with_history => TRUE", name)
		}
	}
	if h.After != nil && h.AfterOrEqual != nil {
		a.fail(seen["after_or_equal"], "Arguments after and after_or_equal must not be combined")
	}
	if h.Before != nil && h.BeforeOrEqual != nil {
		a.fail(seen["before_or_equal"], "Arguments before and before_or_equal must not be combined")
	}
	return h
}

// constant analyzes the argument called name of a table function: it depends on no
// row.
func (a *analyzer) constant(e syntax.Expr, t *types.Type, name string) algebra.Expr {
	x := a.expr(e, &env{clause: "arguments of a table function"})
	if _, ok := a.convertible(x, t); !ok {
		a.fail(e.At(), "Argument %s must be of type %s, but is %s", name, t, x.Type())
	}
	if isNull(x) {
		a.fail(e.At(), "Argument %s must not be NULL", name)
	}
	algebra.Walk(x, func(x algebra.Expr) bool {
		if _, ok := x.(*algebra.Subquery); ok {
			a.fail(e.At(), "Argument %s must be constant", name)
		}
		return true
	})
	return a.fold(a.coerce(x, t, e.At()))
}

// unpack analyzes UNPACK.
func (a *analyzer) unpack(t *syntax.Unpack, outer *scope) (algebra.Rel, *names) {
	switch in := t.Input.(type) {
	case *syntax.TableFunction:
		alias := t.Alias
		if alias == nil {
			alias = in.Alias
		}
		return a.tableFunction(in, alias, true)
	case *syntax.SubqueryTable:
		r := a.query(in.Query, outer)
		alias := ""
		if t.Alias != nil {
			alias = t.Alias.Name
		} else if in.Alias != nil {
			alias = in.Alias.Name
		}
		if r.value {
			a.fail(in.At(), "UNPACK does not take a value table")
		}
		a.unpackQuery(r, t.At())
		return r.rel, r.names(alias)
	}
	a.fail(t.Input.At(), "UNPACK requires a table with history, or a query of one in parentheses")
	return nil, nil
}

// isHistory tells whether t is the history of a column: an array of timestamps and
// values.
func isHistory(t *types.Type) bool {
	return t.Kind == types.Array && t.Elem.Kind == types.Struct && len(t.Elem.Fields) == 2 &&
		strings.EqualFold(t.Elem.Fields[0].Name, "timestamp") && t.Elem.Fields[0].Type.Kind == types.Timestamp && strings.EqualFold(t.Elem.Fields[1].Name, "value")
}

// unpackQuery makes a row for each timestamp that the histories in a row of r have. In
// it, each history is the value of that timestamp, NULL if there is none.
func (a *analyzer) unpackQuery(r *relation, pos syntax.Pos) {
	var arrays []algebra.Expr // arrays of structs with a timestamp
	entries := map[int]algebra.Expr{}
	for i, c := range r.cols {
		x := &algebra.ColumnRef{Column: c.col}
		switch t := c.col.Type; {
		case isHistory(t):
			arrays = append(arrays, x)
		case t.Kind == types.Map && isHistory(t.Elem):
			e := a.operator("MAP_ENTRIES", pos, argument{pos: pos, expr: x})
			entries[i] = e
			arrays = append(arrays, e)
		}
	}
	if len(arrays) == 0 {
		a.fail(pos, "UNPACK requires a column with history")
	}
	// The timestamps: SELECT DISTINCT timestamp FROM (… UNION ALL …) ORDER BY timestamp DESC.
	set := &algebra.SetOperation{All: true}
	for _, x := range arrays {
		elem := a.column("element", x.Type().Elem)
		var rel algebra.Rel = &algebra.Unnest{Input: &algebra.OneRow{}, Arrays: []algebra.Expr{x}, Elems: []algebra.Column{elem}}
		if !isHistory(x.Type()) {
			inner := a.column("cell", elem.Type.Fields[1].Type.Elem)
			rel = &algebra.Unnest{Input: rel, Arrays: []algebra.Expr{&algebra.GetField{X: &algebra.ColumnRef{Column: elem}, Index: 1, T: elem.Type.Fields[1].Type}}, Elems: []algebra.Column{inner}}
			elem = inner
		}
		ts := a.column("timestamp", types.TimestampType)
		rel = &algebra.Project{Input: rel, Computed: []algebra.Computed{{Column: ts, Expr: &algebra.GetField{X: &algebra.ColumnRef{Column: elem}, Index: 0, T: types.TimestampType}}}}
		set.Inputs = append(set.Inputs, rel)
		set.InputCols = append(set.InputCols, []algebra.ColumnID{ts.ID})
	}
	all := a.column("timestamp", types.TimestampType)
	set.Cols = []algebra.Column{all}
	each := a.column("timestamp", types.TimestampType)
	var stamps algebra.Rel = &algebra.Aggregate{Input: set, Keys: []algebra.Computed{{Column: each, Expr: &algebra.ColumnRef{Column: all}}}, Distinct: true}
	stamps = &algebra.Sort{Input: stamps, Keys: []algebra.SortKey{{Expr: &algebra.ColumnRef{Column: each}, Descending: true, NullsLast: true}}}
	list := &algebra.Subquery{Kind: algebra.ArrayQuery, Query: &algebra.Keep{Input: stamps, Cols: []algebra.Column{each}}, Column: each.ID, Ordered: true, T: types.ArrayOf(types.TimestampType)}
	list.Outer = freeColumns(list.Query)
	stamp := a.column("_timestamp", types.TimestampType)
	var rel algebra.Rel = &algebra.Unnest{Input: r.rel, Arrays: []algebra.Expr{list}, Elems: []algebra.Column{stamp}}
	var computed []algebra.Computed
	for i := range r.cols {
		c := &r.cols[i]
		var x algebra.Expr
		switch t := c.col.Type; {
		case isHistory(t):
			x = a.valueAt(&algebra.ColumnRef{Column: c.col}, stamp, pos)
		case entries[i] != nil:
			x = a.mapAt(entries[i], stamp, pos)
		default:
			continue
		}
		col := a.column(c.name, x.Type())
		computed = append(computed, algebra.Computed{Column: col, Expr: x})
		c.col, c.lit = col, nil
	}
	rel = &algebra.Project{Input: rel, Computed: computed}
	r.cols = append(r.cols, output{name: "_timestamp", col: stamp})
	r.rel = rel
	r.rel = keep(r)
	r.ordered = false
}

// valueAt returns the value that the history x has at a timestamp.
func (a *analyzer) valueAt(x algebra.Expr, stamp algebra.Column, pos syntax.Pos) algebra.Expr {
	elem := a.column("element", x.Type().Elem)
	ref := &algebra.ColumnRef{Column: elem}
	var rel algebra.Rel = &algebra.Unnest{Input: &algebra.OneRow{}, Arrays: []algebra.Expr{x}, Elems: []algebra.Column{elem}}
	ts := &algebra.GetField{X: ref, Index: 0, T: types.TimestampType}
	rel = &algebra.Filter{Input: rel, Cond: a.operator("$equal", pos, argument{pos: pos, expr: ts}, argument{pos: pos, expr: &algebra.ColumnRef{Column: stamp}})}
	value := a.column("value", elem.Type.Fields[1].Type)
	rel = &algebra.Project{Input: rel, Computed: []algebra.Computed{{Column: value, Expr: &algebra.GetField{X: ref, Index: 1, T: value.Type}}}}
	rel = &algebra.Limit{Input: rel, Count: &algebra.Literal{Value: types.NewInt(1), T: types.Int64Type}}
	out := &algebra.Subquery{Kind: algebra.ScalarQuery, Query: &algebra.Keep{Input: rel, Cols: []algebra.Column{value}}, Column: value.ID, T: value.Type}
	out.Outer = freeColumns(out.Query)
	return out
}

// mapAt returns the map of the values that the histories of a map, of which entries
// are given, have at a timestamp.
func (a *analyzer) mapAt(entries algebra.Expr, stamp algebra.Column, pos syntax.Pos) algebra.Expr {
	entry := a.column("entry", entries.Type().Elem)
	ref := &algebra.ColumnRef{Column: entry}
	var rel algebra.Rel = &algebra.Unnest{Input: &algebra.OneRow{}, Arrays: []algebra.Expr{entries}, Elems: []algebra.Column{entry}}
	cells := &algebra.GetField{X: ref, Index: 1, T: entry.Type.Fields[1].Type}
	cell := a.column("cell", cells.T.Elem)
	rel = &algebra.Unnest{Input: rel, Arrays: []algebra.Expr{cells}, Elems: []algebra.Column{cell}}
	cellRef := &algebra.ColumnRef{Column: cell}
	ts := &algebra.GetField{X: cellRef, Index: 0, T: types.TimestampType}
	rel = &algebra.Filter{Input: rel, Cond: a.operator("$equal", pos, argument{pos: pos, expr: ts}, argument{pos: pos, expr: &algebra.ColumnRef{Column: stamp}})}
	key, value := entry.Type.Fields[0].Type, cell.Type.Fields[1].Type
	pair := &algebra.MakeStruct{
		Fields: []algebra.Expr{&algebra.GetField{X: ref, Index: 0, T: key}, &algebra.GetField{X: cellRef, Index: 1, T: value}},
		T:      types.StructOf(types.Field{Name: "key", Type: key}, types.Field{Name: "value", Type: value}),
	}
	out := a.column("pair", pair.T)
	rel = &algebra.Project{Input: rel, Computed: []algebra.Computed{{Column: out, Expr: pair}}}
	list := &algebra.Subquery{Kind: algebra.ArrayQuery, Query: &algebra.Keep{Input: rel, Cols: []algebra.Column{out}}, Column: out.ID, T: types.ArrayOf(pair.T)}
	list.Outer = freeColumns(list.Query)
	return a.operator("MAP_FROM_ARRAY", pos, argument{pos: pos, expr: list})
}
