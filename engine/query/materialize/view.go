package materialize

import (
	"context"
	"regexp"
	"slices"
	"strings"

	"github.com/trestledb/trestle/engine/aggregate"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/matview"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/analyze"
	"github.com/trestledb/trestle/engine/query/functions"
	"github.com/trestledb/trestle/engine/query/plan"
	"github.com/trestledb/trestle/engine/query/syntax"
	"github.com/trestledb/trestle/engine/query/types"
	"github.com/trestledb/trestle/engine/schema"
)

// The bounds of a view: of the columns of its key, and of others.
const (
	maxKeyColumns = 16
	maxColumns    = 100
)

// A View is a query that is allowed of a materialized view, analyzed.
type View struct {
	// Definition has everything but Name and Life.
	Definition *schema.View
	// Source is the table that the query reads.
	Source *algebra.Table
	// derived, planned, gives for each row of the source what it contributes: its key, the
	// columns of the view's key, and arguments.
	derived *algebra.Statement
	key     algebra.ColumnID // of the source, in the Scan of derived

	// input is what the query reads, and keys, and values of an index or aggs of groups, in
	// the order of Definition, what it makes of it.
	input  input
	keys   []algebra.Expr
	values []algebra.Expr
	aggs   []algebra.AggregateCall
}

// Compile analyzes the query of a view, whose table is one of cat. A query that is not
// allowed is fault.Invalid, with the reason and the position.
func Compile(ctx context.Context, cat algebra.Catalog, text string) (v *View, err error) {
	tree, err := syntax.Parse(text)
	if err != nil {
		return nil, err
	}
	c := &compiler{text: text}
	defer func() {
		if r := recover(); r != nil {
			b, ok := r.(refusal)
			if !ok {
				panic(r)
			}
			v, err = nil, b.err
		}
	}()
	c.syntax(tree)
	st, err := analyze.Statement(ctx, cat, tree, text, nil)
	if err != nil {
		return nil, err
	}
	c.tables(st)
	v = &View{Source: c.source, Definition: &schema.View{Source: c.source.FullName, SourceID: c.source.Schema.ID, Query: text, Index: c.query.OrderBy != nil}}
	if v.Definition.Index {
		c.index(v, st)
	} else {
		c.groups(v, st)
	}
	c.families(v)
	return v, nil
}

// A refusal carries an error up to Compile.
type refusal struct{ err error }

type compiler struct {
	text   string
	query  *syntax.Query
	sel    *syntax.Select
	source *algebra.Table
	from   syntax.Pos // of the table
}

// refuse ends Compile with the reason why the query is not allowed.
func (c *compiler) refuse(pos syntax.Pos, format string, args ...any) {
	line, column := syntax.Location(c.text, pos)
	panic(refusal{fault.New(fault.Invalid, format+" [at %d:%d]", append(args, line, column)...)})
}

const inView = "in the query of a materialized view"

// syntax refuses what can be told from the text.
func (c *compiler) syntax(tree syntax.Statement) {
	st, ok := tree.(*syntax.QueryStatement)
	if !ok {
		c.refuse(tree.At(), "A materialized view is made of a query, SELECT … FROM …")
	}
	q := st.Query
	c.query = q
	if len(q.With) > 0 {
		c.refuse(q.At(), "WITH is not allowed %s", inView)
	}
	sel, ok := q.Body.(*syntax.Select)
	if !ok {
		if s, ok := q.Body.(*syntax.SetOperation); ok {
			c.refuse(s.At(), "UNION, INTERSECT and EXCEPT are not allowed %s", inView)
		}
		c.refuse(q.Body.At(), "A query in parentheses is not allowed as %s", "the query of a materialized view")
	}
	c.sel = sel
	switch {
	case q.Limit != nil:
		c.refuse(q.Limit.At(), "LIMIT is not allowed %s", inView)
	case q.Offset != nil:
		c.refuse(q.Offset.At(), "OFFSET is not allowed %s", inView)
	case sel.Distinct:
		c.refuse(sel.At(), "SELECT DISTINCT is not allowed %s: use GROUP BY", inView)
	case sel.As != "" || sel.AsType != nil:
		c.refuse(sel.At(), "SELECT AS is not allowed %s", inView)
	case sel.Having != nil:
		c.refuse(sel.Having.At(), "HAVING is not allowed %s", inView)
	case sel.Qualify != nil:
		c.refuse(sel.Qualify.At(), "QUALIFY is not allowed %s", inView)
	case len(sel.Windows) > 0:
		c.refuse(sel.Windows[0].Name.At(), "WINDOW is not allowed %s", inView)
	case sel.From == nil:
		c.refuse(sel.At(), "The query of a materialized view must read a table: FROM is missing")
	}
	for i := range sel.Items {
		if sel.Items[i].Star != nil {
			c.refuse(sel.Items[i].At(), "SELECT * is not allowed %s: name its columns", inView)
		}
	}
	c.fromClause(sel.From)
	c.nodes(sel)
	for i := range q.OrderBy {
		o := &q.OrderBy[i]
		switch {
		case o.Descending:
			c.refuse(o.Expr.At(), "DESC is not allowed %s: its rows ascend", inView)
		case o.Nulls == syntax.NullsLast:
			c.refuse(o.Expr.At(), "NULLS LAST is not allowed %s", inView)
		}
	}
	c.nodes(q.OrderBy)
	switch {
	case sel.GroupBy != nil && len(q.OrderBy) > 0:
		c.refuse(q.OrderBy[0].Expr.At(), "The query of a materialized view has GROUP BY or ORDER BY, not both")
	case sel.GroupBy != nil:
		for _, g := range sel.GroupBy.Items {
			if g.Kind != syntax.GroupExpr {
				c.refuse(g.At(), "ROLLUP, CUBE and GROUPING SETS are not allowed %s", inView)
			}
		}
	}
}

// fromClause refuses a FROM clause of anything but a table and arrays of its rows.
func (c *compiler) fromClause(t syntax.TableExpr) {
	switch t := t.(type) {
	case *syntax.TableRef:
		c.from = t.At()
		c.nodes(t)
	case *syntax.TableFunction:
		c.from = t.At()
		c.nodes(t)
	case *syntax.ParenJoin:
		c.fromClause(t.Join)
	case *syntax.Join:
		u, ok := t.Right.(*syntax.Unnest)
		if !ok || t.Kind == syntax.RightJoin || t.Kind == syntax.FullJoin {
			c.refuse(t.At(), "JOIN is not allowed %s, except with UNNEST of an array of the row", inView)
		}
		c.fromClause(t.Left)
		c.nodes(u)
		c.nodes(t.On)
	case *syntax.SubqueryTable:
		c.refuse(t.At(), "Subqueries are not allowed %s", inView)
	case *syntax.Unpack:
		c.refuse(t.At(), "UNPACK is not allowed %s", inView)
	default:
		c.refuse(t.At(), "The query of a materialized view must read a table")
	}
}

// nodes refuses expressions below n that are not allowed anywhere.
func (c *compiler) nodes(n any) {
	eachNode(n, func(n syntax.Node) {
		switch e := n.(type) {
		case *syntax.Subquery:
			c.refuse(e.At(), "Subqueries are not allowed %s", inView)
		case *syntax.Query:
			c.refuse(e.At(), "Subqueries are not allowed %s", inView)
		case *syntax.Parameter:
			c.refuse(e.At(), "Query parameters are not allowed %s", inView)
		case *syntax.Name:
			if f := functions.Lookup(e.Name); f != nil && f.Stable && !e.Quoted {
				c.volatile(e.At(), e.Name)
			}
		case *syntax.Call:
			c.call(e)
		}
	})
}

func (c *compiler) volatile(pos syntax.Pos, name string) {
	c.refuse(pos, "Function %s is not allowed %s: it is not deterministic", strings.ToUpper(name), inView)
}

func (c *compiler) call(e *syntax.Call) {
	if e.Name == nil {
		return
	}
	var parts []string
	for _, n := range e.Name.Names {
		parts = append(parts, n.Name)
	}
	if len(parts) > 1 && strings.EqualFold(parts[0], "SAFE") {
		parts = parts[1:]
	}
	name := strings.Join(parts, ".")
	if strings.EqualFold(name, "VIEW_PARAMETERS") {
		c.volatile(e.At(), name)
	}
	f := functions.Lookup(name)
	if f == nil {
		return // the analysis says so
	}
	switch {
	case f.Volatile || f.Stable:
		c.volatile(e.At(), name)
	case e.Over != nil:
		c.refuse(e.At(), "OVER is not allowed %s", inView)
	case e.Distinct:
		c.refuse(e.At(), "DISTINCT in an aggregate is not allowed %s; HLL_COUNT.INIT counts distinct values", inView)
	case e.GroupBy != nil:
		c.refuse(e.At(), "A nested GROUP BY is not allowed %s", inView)
	case f.Kind == functions.Aggregate && (e.Where != nil || e.Having != nil || len(e.OrderBy) > 0 || e.Limit != nil || e.Nulls != ""):
		c.refuse(e.At(), "Modifiers of an aggregate, such as HAVING and ORDER BY, are not allowed %s", inView)
	case f.Kind == functions.Aggregate && aggregateOf(f.Name) == 0:
		c.refuse(e.At(), "Aggregate function %s is not allowed %s", strings.ToUpper(name), inView)
	}
}

// tables refuses sources that are no table.
func (c *compiler) tables(st *algebra.Statement) {
	for _, t := range st.Tables {
		if t.View != nil {
			c.refuse(c.from, "A materialized view of the view %s is not allowed: name the table that it reads", types.QuoteIdentifier(t.Name))
		}
	}
	if len(st.Tables) != 1 || st.Tables[0].Schema == nil {
		c.refuse(c.from, "The query of a materialized view must read one table")
	}
	if st.Tables[0].Schema.View != nil {
		c.refuse(c.from, "A materialized view of the materialized view %s is not allowed", types.QuoteIdentifier(st.Tables[0].Name))
	}
	if st.Volatile {
		c.refuse(0, "Functions that are not deterministic are not allowed %s", inView)
	}
	c.source = st.Tables[0]
}

// aggregateOf returns what a function is in a view, 0 if it is not allowed.
func aggregateOf(name string) schema.ViewAggregate {
	switch strings.ToUpper(name) {
	case "$COUNT_STAR":
		return schema.ViewCountRows
	case "COUNT":
		return schema.ViewCount
	case "SUM":
		return schema.ViewSum
	case "AVG":
		return schema.ViewAvg
	case "MIN":
		return schema.ViewMin
	case "MAX":
		return schema.ViewMax
	case "ANY_VALUE":
		return schema.ViewAny
	case "BIT_AND":
		return schema.ViewBitAnd
	case "BIT_OR":
		return schema.ViewBitOr
	case "BIT_XOR":
		return schema.ViewBitXor
	case "HLL_COUNT.INIT":
		return schema.ViewSketch
	case "HLL_COUNT.MERGE":
		return schema.ViewMerge
	case "HLL_COUNT.MERGE_PARTIAL":
		return schema.ViewMergeSketch
	}
	return 0
}

// typeOf returns the type of a value of a view, 0 if it can have none.
func typeOf(t *types.Type) schema.ViewType {
	switch t.Kind {
	case types.Bytes:
		return schema.ViewBytes
	case types.String:
		return schema.ViewString
	case types.Int64:
		return schema.ViewInt
	case types.Timestamp:
		return schema.ViewTimestamp
	case types.Float64:
		return schema.ViewFloat
	case types.Float32:
		return schema.ViewFloat32
	case types.Bool:
		return schema.ViewBool
	}
	return 0
}

// unwrap takes the operators that only name the output off r: what is left, and the
// expressions of columns that they compute.
func unwrap(r algebra.Rel) (algebra.Rel, map[algebra.ColumnID]algebra.Expr) {
	made := map[algebra.ColumnID]algebra.Expr{}
	for {
		switch t := r.(type) {
		case *algebra.Keep:
			r = t.Input
		case *algebra.Project:
			for _, p := range t.Computed {
				made[p.ID] = p.Expr
			}
			r = t.Input
		default:
			return r, made
		}
	}
}

// resolve returns the column of the relation below that column id is, 0 if it is another
// expression.
func resolve(made map[algebra.ColumnID]algebra.Expr, id algebra.ColumnID) algebra.ColumnID {
	for {
		e, ok := made[id]
		if !ok {
			return id
		}
		ref, ok := e.(*algebra.ColumnRef)
		if !ok {
			return 0
		}
		id = ref.ID
	}
}

// groups makes the view of a query with GROUP BY.
func (c *compiler) groups(v *View, st *algebra.Statement) {
	rel, made := unwrap(st.Query)
	g, ok := rel.(*algebra.Aggregate)
	if !ok {
		c.refuse(c.sel.At(), "The query of a materialized view needs GROUP BY, or ORDER BY")
	}
	if len(g.Keys) == 0 {
		c.refuse(c.sel.At(), "A materialized view of one group needs a key of its row: SELECT '*' AS _key, … GROUP BY _key")
	}
	d := v.Definition
	names := make([]string, len(g.Keys))
	pos := make([]syntax.Pos, len(g.Keys))
	for i, k := range g.Keys {
		names[i], pos[i] = k.Name, c.sel.GroupBy.At()
		if !c.sel.GroupBy.All && i < len(c.sel.GroupBy.Items) {
			pos[i] = c.sel.GroupBy.Items[i].At()
		}
	}
	var args []algebra.Computed
	for i, o := range st.Columns {
		at := c.sel.Items[i].At()
		id := resolve(made, o.Column)
		if k := slices.IndexFunc(g.Keys, func(k algebra.Computed) bool { return k.ID == id }); k >= 0 {
			names[k], pos[k] = c.name(o, at), at
			continue
		}
		a := slices.IndexFunc(g.Aggs, func(a algebra.AggregateCall) bool { return a.ID == id })
		if a < 0 {
			c.refuse(at, "Each column of a materialized view with GROUP BY must be an expression of GROUP BY, or one aggregate function")
		}
		col, arg := c.aggregate(&g.Aggs[a], at)
		col.Name = c.name(o, at)
		col.Type = typeOf(o.Type)
		c.place(d, &col, at)
		args = append(args, algebra.Computed{Expr: arg})
		v.aggs, v.values = append(v.aggs, g.Aggs[a]), append(v.values, nil)
	}
	v.input = inputOf(g.Input)
	for i := range v.aggs {
		v.aggs[i].Args = slices.Clone(v.aggs[i].Args)
		for j, x := range v.aggs[i].Args {
			v.aggs[i].Args[j] = v.input.expand(x)
		}
	}
	keys := make([]algebra.Computed, len(g.Keys))
	for i, k := range g.Keys {
		keys[i].Expr = k.Expr
		v.keys = append(v.keys, v.input.expand(k.Expr))
		c.keyColumn(d, names[i], k.Type, pos[i])
	}
	c.derive(v, st, g.Input, keys, args)
}

// index makes the view of a query with ORDER BY.
func (c *compiler) index(v *View, st *algebra.Statement) {
	top, over := unwrap(st.Query)
	s, ok := top.(*algebra.Sort)
	if !ok {
		c.refuse(c.sel.At(), "The query of a materialized view needs GROUP BY, or ORDER BY")
	}
	if rel, _ := unwrap(s.Input); isAggregate(rel) {
		c.refuse(c.query.OrderBy[0].Expr.At(), "The query of a materialized view has aggregate functions or ORDER BY, not both")
	}
	d := v.Definition
	var keys, args []algebra.Computed
	isKey := map[algebra.ColumnID]bool{}
	for i, k := range s.Keys {
		at := c.query.OrderBy[i].Expr.At()
		ref, ok := k.Expr.(*algebra.ColumnRef)
		if !ok {
			c.refuse(at, "Each expression of ORDER BY must be a column of the SELECT list")
		}
		if isKey[ref.ID] {
			continue
		}
		name := ref.Name
		for j, o := range st.Columns {
			if resolve(over, o.Column) == ref.ID && o.Name != "" {
				name = c.name(o, c.sel.Items[j].At())
			}
		}
		isKey[ref.ID] = true
		keys = append(keys, algebra.Computed{Expr: k.Expr})
		c.keyColumn(d, name, ref.Type(), at)
	}
	for i, o := range st.Columns {
		id := resolve(over, o.Column)
		if isKey[id] {
			continue
		}
		at := c.sel.Items[i].At()
		col := schema.ViewColumn{Name: c.name(o, at), Type: typeOf(o.Type)}
		if o.Type.Kind == types.Map {
			col.Map, col.Type = true, typeOf(o.Type.Elem)
			if o.Type.Key.Kind != types.Bytes || col.Type == 0 {
				c.refuse(at, "A column of type %s is not allowed in a materialized view", o.Type)
			}
		}
		c.place(d, &col, at)
		args = append(args, algebra.Computed{Expr: &algebra.ColumnRef{Column: algebra.Column{ID: o.Column, Name: o.Name, Type: o.Type}}})
	}
	v.input = inputOf(s.Input)
	for _, k := range keys {
		v.keys = append(v.keys, v.input.expand(k.Expr))
	}
	for _, a := range args {
		v.values = append(v.values, v.input.expand(a.Expr))
	}
	c.derive(v, st, s.Input, keys, args)
}

func isAggregate(r algebra.Rel) bool {
	_, ok := r.(*algebra.Aggregate)
	return ok
}

// name returns the name of a column, which it must have.
func (c *compiler) name(o algebra.OutputColumn, at syntax.Pos) string {
	if o.Name == "" {
		c.refuse(at, "Each column of a materialized view needs a name: expression AS name")
	}
	return o.Name
}

// keyColumn adds a column of the view's key.
func (c *compiler) keyColumn(d *schema.View, name string, t *types.Type, at syntax.Pos) {
	if name == "" {
		c.refuse(at, "Each column of the key of a materialized view needs a name: expression AS name")
	}
	k := schema.ViewColumn{Name: name, Type: typeOf(t)}
	switch k.Type {
	case schema.ViewBytes, schema.ViewString, schema.ViewInt, schema.ViewTimestamp:
	default:
		c.refuse(at, "A column of type %s cannot be in the key of a materialized view: BYTES, STRING, INT64 and TIMESTAMP can", t)
	}
	c.unique(d, name, at)
	if len(d.Key) == maxKeyColumns {
		c.refuse(at, "The key of a materialized view has more than %d columns", maxKeyColumns)
	}
	d.Key = append(d.Key, k)
	d.RawKey = len(d.Key) == 1 && strings.EqualFold(name, "_key")
	if d.RawKey && k.Type != schema.ViewBytes && k.Type != schema.ViewString {
		c.refuse(at, "A column _key that is the row key of a materialized view is BYTES or STRING, not %s", t)
	}
}

func (c *compiler) unique(d *schema.View, name string, at syntax.Pos) {
	same := func(o schema.ViewColumn) bool { return strings.EqualFold(o.Name, name) }
	if slices.ContainsFunc(d.Key, same) || slices.ContainsFunc(d.Columns, same) {
		c.refuse(at, "Two columns of the materialized view have the name %s", types.QuoteIdentifier(name))
	}
}

var familyName = regexp.MustCompile(`^[-_.a-zA-Z0-9]{1,64}$`)

// defaultFamily is the family of columns whose names have no dot.
const defaultFamily = "default"

// place adds a column that is not in the key: f.q is column q of family f.
func (c *compiler) place(d *schema.View, col *schema.ViewColumn, at syntax.Pos) {
	c.unique(d, col.Name, at)
	if len(d.Columns) == maxColumns {
		c.refuse(at, "A materialized view has more than %d columns outside of its key", maxColumns)
	}
	if col.Type == 0 {
		c.refuse(at, "The type of column %s is not allowed in a materialized view: BYTES, STRING, INT64, FLOAT64, FLOAT32, BOOL and TIMESTAMP are", types.QuoteIdentifier(col.Name))
	}
	if strings.EqualFold(col.Name, "_key") {
		c.refuse(at, "Column _key of a materialized view must be in its key")
	}
	if family, qualifier, ok := strings.Cut(col.Name, "."); ok && !col.Map {
		col.Family, col.Qualifier = family, qualifier
	} else {
		col.Family, col.Qualifier = defaultFamily, col.Name
	}
	if col.Map {
		col.Family, col.Qualifier = col.Name, ""
	}
	switch {
	case !familyName.MatchString(col.Family) || col.Map && strings.Contains(col.Family, "."):
		c.refuse(at, "Column %s of a materialized view would be in family %s, whose name is not allowed: use up to %d letters, digits, - and _",
			types.QuoteIdentifier(col.Name), types.QuoteIdentifier(col.Family), schema.MaxFamilyName)
	case !col.Map && col.Qualifier == "":
		c.refuse(at, "Column %s of a materialized view has no qualifier behind the dot", types.QuoteIdentifier(col.Name))
	case col.Map && col.Family == defaultFamily:
		c.refuse(at, "A whole family of a materialized view cannot be named default: other cells are there")
	}
	for _, o := range d.Columns {
		if o.Family == col.Family && (o.Map || col.Map) {
			c.refuse(at, "Columns %s and %s of the materialized view would share the family %s, which one of them fills", types.QuoteIdentifier(o.Name), types.QuoteIdentifier(col.Name), types.QuoteIdentifier(col.Family))
		}
	}
	d.Columns = append(d.Columns, *col)
}

// aggregate returns the column of an aggregate, and the expression of its argument, nil
// if it has none.
func (c *compiler) aggregate(a *algebra.AggregateCall, at syntax.Pos) (col schema.ViewColumn, arg algebra.Expr) {
	col.Aggregate = aggregateOf(a.Function.Name)
	name := a.Function.Name
	if a.Distinct || a.Where != nil || a.HavingMax != nil || a.HavingMin != nil || a.Inner != nil || a.Limit != nil || len(a.OrderBy) > 0 || a.Safe || a.Deferred {
		c.refuse(at, "Modifiers of an aggregate, such as SAFE., are not allowed %s", inView)
	}
	if col.Aggregate == 0 {
		c.refuse(at, "Aggregate function %s is not allowed %s", name, inView)
	}
	if col.Aggregate == schema.ViewCountRows {
		return col, nil
	}
	arg = a.Args[0]
	col.Arg = typeOf(arg.Type())
	ok := true
	switch col.Aggregate {
	case schema.ViewCount:
		// Of any type: only whether it is NULL counts.
		arg = isNotNull(arg)
		col.Arg = schema.ViewBool
	case schema.ViewSum, schema.ViewAvg:
		ok = col.Arg == schema.ViewInt || col.Arg == schema.ViewFloat
	case schema.ViewBitAnd, schema.ViewBitOr, schema.ViewBitXor:
		ok = col.Arg == schema.ViewInt
	case schema.ViewSketch:
		ok = col.Arg == schema.ViewInt || col.Arg == schema.ViewString || col.Arg == schema.ViewBytes
		col.Precision = aggregate.DefaultPrecision
		if len(a.Args) > 1 && a.Args[1] != nil {
			l, isLiteral := a.Args[1].(*algebra.Literal)
			if !isLiteral || !l.Value.Valid || l.Value.Int > matview.MaxPrecision || l.Value.Int < aggregate.MinPrecision {
				c.refuse(at, "The precision of HLL_COUNT.INIT in a materialized view is a number from %d to %d", aggregate.MinPrecision, matview.MaxPrecision)
			}
			col.Precision = int(l.Value.Int)
		}
	default:
		ok = col.Arg != 0
	}
	if !ok {
		c.refuse(at, "Aggregate function %s of %s is not allowed %s", name, arg.Type(), inView)
	}
	return col, arg
}

// isNotNull returns TRUE if x is not NULL, else NULL.
func isNotNull(x algebra.Expr) algebra.Expr {
	null := functions.Lookup("$is_null")
	cond := &algebra.Call{Function: null, Signature: null.Signatures[0], Args: []algebra.Expr{x}, T: types.BoolType}
	iff := functions.Lookup("IF")
	return &algebra.Call{Function: iff, Signature: iff.Signatures[0], T: types.BoolType, Args: []algebra.Expr{
		cond, &algebra.Literal{T: types.BoolType}, &algebra.Literal{T: types.BoolType, Value: types.NewBool(true)}}}
}

// derive makes the statement that gives, of each row of rel, the key of the source's row,
// keys and args.
func (c *compiler) derive(v *View, st *algebra.Statement, rel algebra.Rel, keys, args []algebra.Computed) {
	next := st.NextColumn
	column := func(name string, t *types.Type) algebra.Column {
		col := algebra.Column{ID: next, Name: name, Type: t}
		next++
		return col
	}
	key := column("_key", types.BytesType)
	rel = c.withKey(rel, &key)
	p := &algebra.Project{Input: rel}
	out := &algebra.Statement{Tables: st.Tables}
	cols := []algebra.Column{key}
	for _, list := range [][]algebra.Computed{keys, args} {
		for _, x := range list {
			if x.Expr == nil { // of COUNT(*)
				x.Expr = &algebra.Literal{T: types.BoolType}
			}
			x.Column = column("", x.Expr.Type())
			p.Computed = append(p.Computed, x)
			cols = append(cols, x.Column)
		}
	}
	for _, col := range cols {
		out.Columns = append(out.Columns, algebra.OutputColumn{Column: col.ID, Type: col.Type})
	}
	out.Query = &algebra.Keep{Input: p, Cols: cols}
	out.NextColumn = next
	v.derived = plan.Make(out, plan.Options{})
	v.key = v.derived.Columns[0].Column
}

// withKey returns rel, in which there is a single Scan, with the key of the row as a
// column. If the Scan has it, *key becomes that.
func (c *compiler) withKey(rel algebra.Rel, key *algebra.Column) algebra.Rel {
	switch r := rel.(type) {
	case *algebra.Scan:
		at := slices.IndexFunc(r.Table.Columns, func(t algebra.TableColumn) bool { return t.Kind == algebra.RowKeyColumn })
		for _, u := range r.Uses {
			if u.Index == at {
				*key = u.Column
				return r
			}
		}
		s := *r
		s.Uses = append(slices.Clone(r.Uses), algebra.ScanColumn{Column: *key, Index: at})
		return &s
	case *algebra.Filter:
		f := *r
		f.Input = c.withKey(r.Input, key)
		return &f
	case *algebra.Project:
		p := *r
		p.Input = c.withKey(r.Input, key)
		return &p
	case *algebra.Keep:
		k := *r
		k.Input = c.withKey(r.Input, key)
		if !slices.ContainsFunc(k.Cols, func(o algebra.Column) bool { return o.ID == key.ID }) {
			k.Cols = append(slices.Clone(k.Cols), *key)
		}
		return &k
	case *algebra.Unnest:
		u := *r
		u.Input = c.withKey(r.Input, key)
		return &u
	}
	c.refuse(c.from, "The query of a materialized view must read one table, and arrays of its rows")
	return nil
}

// families notes which families of the source the query reads.
func (c *compiler) families(v *View) {
	var walk func(r algebra.Rel)
	walk = func(r algebra.Rel) {
		switch r := r.(type) {
		case *algebra.Scan:
			for _, u := range r.Uses {
				if u.Index >= 0 && r.Table.Columns[u.Index].Kind == algebra.FamilyColumn {
					v.Definition.Families = append(v.Definition.Families, r.Table.Columns[u.Index].Family)
				}
			}
		case *algebra.Filter:
			walk(r.Input)
		case *algebra.Project:
			walk(r.Input)
		case *algebra.Keep:
			walk(r.Input)
		case *algebra.Unnest:
			walk(r.Input)
		}
	}
	walk(v.derived.Query)
	slices.Sort(v.Definition.Families)
	v.Definition.Families = slices.Compact(v.Definition.Families)
}
