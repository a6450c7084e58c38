package plan

import (
	"fmt"
	"strings"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
	"github.com/trestledb/trestle/engine/row"
)

// ExplainColumns are the columns of EXPLAIN. Those from rows on are NULL unless the
// statement was run. Operators are indented by two spaces for each level.
var ExplainColumns = []algebra.OutputColumn{
	{Name: "operator", Type: types.StringType},
	{Name: "detail", Type: types.StringType},
	{Name: "row_ranges", Type: types.StringType},
	{Name: "tablets", Type: types.Int64Type},
	{Name: "locality_groups", Type: types.StringType},
	{Name: "warning", Type: types.StringType},
	{Name: "rows", Type: types.Int64Type},
	{Name: "rows_read", Type: types.Int64Type},
	{Name: "cells_read", Type: types.Int64Type},
	{Name: "time_ms", Type: types.Float64Type},
	{Name: "memory_bytes", Type: types.Int64Type},
	{Name: "spilled_bytes", Type: types.Int64Type},
}

// An Explanation is what Explain knows besides the plan. Each may be nil.
type Explanation struct {
	// Eval evaluates constants, so that ranges are known.
	Eval Eval
	// Tablets returns how many tablets of a table have rows in ranges.
	Tablets func(table string, ranges []row.Range) (int, error)
	// Stats returns what an operator did, nil if it did nothing.
	Stats func(algebra.Rel) *algebra.Stats
}

// Explain returns the rows that describe a statement of Make, in the order of
// ExplainColumns.
func Explain(stmt *algebra.Statement, x Explanation) ([][]types.Value, error) {
	e := &explainer{Explanation: x}
	if m := stmt.Mutation; m != nil {
		e.add(0, []string{algebra.InsertRows: "Insert", algebra.UpdateRows: "Update", algebra.DeleteRows: "Delete"}[m.Kind], m.Table.Name)
		return e.rows, e.rel(m.Input, 1, "")
	}
	if len(stmt.Views) > 0 {
		detail := strings.Join(stmt.Views, ", ") + " could answer a part: @{use_materialized_views=true}"
		if stmt.UseViews {
			detail = "answered by " + strings.Join(stmt.Views, ", ")
		}
		e.add(0, "Materialized views", detail)
	}
	return e.rows, e.rel(stmt.Query, 0, "")
}

type explainer struct {
	Explanation
	rows [][]types.Value
}

// add adds a row and returns it.
func (e *explainer) add(depth int, operator, detail string) []types.Value {
	r := make([]types.Value, len(ExplainColumns))
	r[0] = types.NewString(strings.Repeat("  ", min(depth, 100)) + operator)
	if detail != "" {
		r[1] = types.NewString(detail)
	}
	e.rows = append(e.rows, r)
	return r
}

// rel adds the rows of r, in which role it stands, and of what is below it.
func (e *explainer) rel(r algebra.Rel, depth int, role string) error {
	name, detail := describe(r)
	if role != "" {
		name = role + ": " + name
	}
	line := e.add(depth, name, detail)
	if s, ok := r.(*algebra.Scan); ok && s.Table.Schema != nil {
		if err := e.scan(s, line); err != nil {
			return err
		}
	}
	if e.Stats != nil {
		if st := e.Stats(r); st != nil {
			line[6] = types.NewInt(st.Rows)
			if _, ok := r.(*algebra.Scan); ok {
				line[7], line[8] = types.NewInt(st.RowsSeen), types.NewInt(st.CellsSeen)
			}
			line[9] = types.NewFloat(float64(st.Wall.Microseconds()) / 1000)
			line[10], line[11] = types.NewInt(st.MemoryPeak), types.NewInt(st.Spilled)
		}
	}
	var err error
	sub := func(in algebra.Rel, role string) {
		if err == nil {
			err = e.rel(in, depth+1, role)
		}
	}
	switch r := r.(type) {
	case *algebra.Join:
		sub(r.Left, "")
		sub(r.Right, "")
	case *algebra.With:
		for _, d := range r.Defs {
			sub(d.Rel, d.Name)
		}
		sub(r.Body, "")
	default:
		for _, in := range inputs(r) {
			sub(in, "")
		}
	}
	walkExprs(r, func(x algebra.Expr) {
		algebra.Walk(x, func(x algebra.Expr) bool {
			if s, ok := x.(*algebra.Subquery); ok {
				role := "subquery"
				if len(s.Outer) > 0 {
					role = "subquery for each row"
				}
				sub(s.Query, role)
			}
			return true
		})
	})
	return err
}

// scan adds to line what a table is asked for.
func (e *explainer) scan(s *algebra.Scan, line []types.Value) error {
	var groups []string
	all := s.Table.Schema.AllGroups()
	for _, g := range all {
		for name, f := range s.Table.Schema.Families {
			if f.Group == g.ID && needsFamily(s, name) {
				groups = append(groups, g.Name)
				break
			}
		}
	}
	line[4] = types.NewString(strings.Join(groups, ", "))
	if e.Eval == nil {
		return nil
	}
	r, err := Bind(s, e.Eval)
	if err != nil {
		line[2] = types.NewString("known for each row only")
		return nil
	}
	full := len(r.Ranges) == 1 && len(r.Ranges[0].Start) == 0 && len(r.Ranges[0].End) == 0
	line[2] = types.NewString(rangesText(r.Ranges))
	switch {
	case full && r.Limit == 0:
		line[5] = types.NewString("full table scan: no condition restricts the row key")
	case full:
		line[2] = types.NewString(fmt.Sprintf("all, first %d rows", r.Limit))
	}
	if e.Tablets != nil {
		n := 0
		if len(r.Ranges) > 0 {
			if n, err = e.Tablets(s.Table.FullName, r.Ranges); err != nil {
				return err
			}
		}
		line[3] = types.NewInt(int64(n))
	}
	return nil
}

// needsFamily tells whether a read of s looks at a family. If rows count that have none
// of its columns, it has to look at all.
func needsFamily(s *algebra.Scan, family string) bool {
	any := false
	for _, u := range s.Uses {
		if u.Index >= 0 && s.Table.Columns[u.Index].Kind == algebra.FamilyColumn {
			any = true
			if s.Table.Columns[u.Index].Family == family {
				return true
			}
		}
	}
	return !any || s.Access == nil || !s.Access.Present
}

// shownRanges is how many ranges a line shows.
const shownRanges = 5

func rangesText(list []row.Range) string {
	if len(list) == 0 {
		return "none"
	}
	var out []string
	for i, r := range list {
		if i == shownRanges {
			out = append(out, fmt.Sprintf("… %d more", len(list)-i))
			break
		}
		start, end := row.Escape(r.Start), row.Escape(r.End)
		switch {
		case r.IsSingle():
			out = append(out, "'"+start+"'")
		case len(r.Start) == 0 && len(r.End) == 0:
			out = append(out, "all")
		case len(r.End) == 0:
			out = append(out, "['"+start+"', end)")
		default:
			out = append(out, "['"+start+"', '"+end+"')")
		}
	}
	return strings.Join(out, ", ")
}

// describe returns the name of an operator and what it does.
func describe(r algebra.Rel) (name, detail string) {
	switch r := r.(type) {
	case *algebra.OneRow:
		return "One row", ""
	case *algebra.Scan:
		return describeScan(r)
	case *algebra.Filter:
		return "Filter", Text(r.Cond)
	case *algebra.Project:
		var list []string
		for _, c := range r.Computed {
			list = append(list, named(c.Column, Text(c.Expr)))
		}
		return "Project", short(strings.Join(list, ", "))
	case *algebra.Keep:
		return "Output", short(columnsText(r.Cols))
	case *algebra.Join:
		name := map[algebra.JoinKind]string{algebra.InnerJoin: "Inner join", algebra.LeftJoin: "Left join", algebra.FullJoin: "Full join",
			algebra.SemiJoin: "Semi join", algebra.AntiJoin: "Anti join"}[r.Kind]
		if r.Lateral {
			name += ", for each row"
		}
		return name, Text(r.On)
	case *algebra.Unnest:
		return "Unnest", texts(r.Arrays)
	case *algebra.Aggregate:
		return describeAggregate(r)
	case *algebra.Sort:
		return "Sort", keysText(r.Keys)
	case *algebra.Limit:
		detail := Text(r.Count)
		if r.Offset != nil {
			detail += " OFFSET " + Text(r.Offset)
		}
		return "Limit", strings.TrimSpace(detail)
	case *algebra.SetOperation:
		name := []string{"Union", "Intersect", "Except"}[r.Op]
		if r.All {
			name += " all"
		}
		return name, ""
	case *algebra.Window:
		var list []string
		for i := range r.Calls {
			c := &r.Calls[i]
			over := ""
			if len(c.PartitionBy) > 0 {
				over = "PARTITION BY " + texts(c.PartitionBy)
			}
			if len(c.Order) > 0 {
				over = strings.TrimSpace(over + " ORDER BY " + keysText(c.Order))
			}
			list = append(list, aggregateText(&c.AggregateCall)+" OVER ("+over+")")
		}
		return "Window", short(strings.Join(list, ", "))
	case *algebra.With:
		return "With", ""
	case *algebra.Ref:
		return "Read " + r.Name, ""
	}
	return fmt.Sprintf("%T", r), ""
}

func describeScan(s *algebra.Scan) (name, detail string) {
	name = "Scan " + s.Table.Name
	if s.Table.Schema == nil {
		return name, short(columnsText(s.Columns()))
	}
	var notes []string
	if a := s.Access; a != nil {
		if a.Reversed {
			notes = append(notes, "in descending order of keys")
		}
		if a.Unordered {
			notes = append(notes, "tablets at the same time")
		}
		if a.Present {
			notes = append(notes, "only rows with these columns")
		}
		if a.Limit != nil {
			notes = append(notes, "LIMIT "+Text(a.Limit))
		}
	}
	var cols []string
	for _, u := range s.Uses {
		c := u.Column.Name
		if u.Existence {
			c += " (existence)"
		}
		cols = append(cols, c)
	}
	if len(cols) == 0 {
		cols = []string{"row existence"}
	}
	return name, short(strings.Join(append(cols, notes...), "; "))
}

func describeAggregate(r *algebra.Aggregate) (name, detail string) {
	name = "Aggregate"
	if r.Distinct {
		name = "Distinct"
	}
	var keys, aggs []string
	for _, k := range r.Keys {
		keys = append(keys, Text(k.Expr))
	}
	for i := range r.Aggs {
		aggs = append(aggs, aggregateText(&r.Aggs[i]))
	}
	detail = strings.Join(aggs, ", ")
	if len(keys) > 0 {
		detail = strings.TrimSpace(detail + " GROUP BY " + strings.Join(keys, ", "))
	}
	return name, short(detail)
}

func aggregateText(c *algebra.AggregateCall) string {
	distinct := ""
	if c.Distinct {
		distinct = "DISTINCT "
	}
	if c.Function.Name == "$count_star" {
		return "COUNT(*)"
	}
	return c.Function.Name + "(" + distinct + texts(c.Args) + ")"
}

func columnsText(cols []algebra.Column) string {
	var list []string
	for _, c := range cols {
		list = append(list, columnText(c))
	}
	return strings.Join(list, ", ")
}

func columnText(c algebra.Column) string {
	if c.Name == "" {
		return fmt.Sprintf("$%d", c.ID)
	}
	return c.Name
}

func named(c algebra.Column, text string) string { return columnText(c) + " := " + text }

func keysText(keys []algebra.SortKey) string {
	var list []string
	for _, k := range keys {
		t := Text(k.Expr)
		if k.Descending {
			t += " DESC"
		}
		list = append(list, t)
	}
	return short(strings.Join(list, ", "))
}

func texts(list []algebra.Expr) string {
	var out []string
	for _, e := range list {
		if e != nil {
			out = append(out, Text(e))
		}
	}
	return strings.Join(out, ", ")
}

// maxText is the length of what a line says of expressions.
const maxText = 400

func short(s string) string {
	if len(s) <= maxText {
		return s
	}
	return strings.ToValidUTF8(s[:maxText], "") + "…"
}

// Text returns e about as SQL writes it, shortened.
func Text(e algebra.Expr) string {
	w := &textWriter{}
	w.expr(e, 0)
	return short(w.b.String())
}

type textWriter struct{ b strings.Builder }

func (w *textWriter) put(s string) { w.b.WriteString(s) }

// infix are operators that stand between their operands.
var infix = map[string]string{
	"$equal": "=", "$not_equal": "!=", "$less": "<", "$less_or_equal": "<=", "$greater": ">", "$greater_or_equal": ">=",
	"$add": "+", "$subtract": "-", "$multiply": "*", "$divide": "/", "$concat_op": "||", "$and": "AND", "$or": "OR", "$like": "LIKE",
	"$bitwise_and": "&", "$bitwise_or": "|", "$bitwise_xor": "^", "$left_shift": "<<", "$right_shift": ">>",
}

func (w *textWriter) list(list []algebra.Expr, separator string, depth int) {
	first := true
	for _, e := range list {
		if e == nil {
			continue
		}
		if !first {
			w.b.WriteString(separator)
		}
		first = false
		w.expr(e, depth+1)
	}
}

func (w *textWriter) expr(e algebra.Expr, depth int) {
	if w.b.Len() > maxText {
		return
	}
	if depth > 50 {
		w.b.WriteString("…")
		return
	}
	put := w.put
	switch e := e.(type) {
	case nil:
	case *algebra.Literal:
		put(valueText(e.T, e.Value))
	case *algebra.Param:
		put("@" + e.Name)
	case *algebra.ColumnRef:
		put(columnText(e.Column))
	case *algebra.Call:
		w.call(e, depth)
	case *algebra.Lambda:
		put("(" + columnsText(e.Params) + ") -> ")
		w.expr(e.Body, depth+1)
	case *algebra.Cast:
		if e.Safe {
			put("SAFE_")
		}
		put("CAST(")
		w.expr(e.X, depth+1)
		put(" AS " + e.T.String() + ")")
	case *algebra.GetField:
		w.expr(e.X, depth+1)
		name := ""
		if t := e.X.Type(); e.Index < len(t.Fields) {
			name = t.Fields[e.Index].Name
		}
		put("." + name)
	case *algebra.GetProtoField:
		w.expr(e.X, depth+1)
		put("." + e.Field.Name)
	case *algebra.MakeStruct:
		put("STRUCT(")
		w.list(e.Fields, ", ", depth)
		put(")")
	case *algebra.MakeArray:
		put("[")
		w.list(e.Elems, ", ", depth)
		put("]")
	case *algebra.Subquery:
		put([]string{"(subquery)", "ARRAY(subquery)", "EXISTS(subquery)", "IN (subquery)", "ANY (subquery)", "ALL (subquery)"}[e.Kind])
	case *algebra.Let:
		put("WITH(…, ")
		w.expr(e.Body, depth+1)
		put(")")
	case *algebra.ViewParameters:
		put("VIEW_PARAMETERS()")
	}
}

func (w *textWriter) call(c *algebra.Call, depth int) {
	put := w.put
	name := c.Function.Name
	if op, ok := infix[name]; ok {
		if depth > 0 {
			put("(")
		}
		w.list(c.Args, " "+op+" ", depth)
		if depth > 0 {
			put(")")
		}
		return
	}
	switch name {
	case "$is_null", "$is_true", "$is_false":
		w.expr(c.Args[0], depth+1)
		put(" " + c.Function.SQL)
		return
	case "$not":
		put("NOT ")
		w.expr(c.Args[0], depth+1)
		return
	case "$in":
		w.expr(c.Args[0], depth+1)
		put(" IN (")
		w.list(c.Args[1:], ", ", depth)
		put(")")
		return
	case "$between":
		w.expr(c.Args[0], depth+1)
		put(" BETWEEN ")
		w.list(c.Args[1:], " AND ", depth)
		return
	case "$map_subscript":
		w.expr(c.Args[0], depth+1)
		put("[")
		w.expr(c.Args[1], depth+1)
		put("]")
		return
	}
	if c.Function.SQL != "" {
		name = c.Function.SQL
	}
	put(name + "(")
	w.list(c.Args, ", ", depth)
	put(")")
}

// valueText returns a literal.
func valueText(t *types.Type, v types.Value) string {
	if !v.Valid {
		return "NULL"
	}
	switch t.Kind {
	case types.Bool:
		return strings.ToUpper(fmt.Sprint(v.Bool()))
	case types.String:
		return quote(v.Str[:min(len(v.Str), maxText)])
	case types.Bytes:
		return "b" + quote(v.Str[:min(len(v.Str), maxText)])
	case types.Float32, types.Float64:
		return fmt.Sprint(v.Float)
	case types.Int64:
		return fmt.Sprint(v.Int)
	case types.Array:
		var list []string
		for _, e := range v.List[:min(len(v.List), 20)] {
			list = append(list, valueText(t.Elem, e))
		}
		return "[" + strings.Join(list, ", ") + "]"
	}
	return strings.ToUpper(t.Kind.String()) + " literal"
}
