package algebra

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/trestledb/trestle/engine/query/functions"
	"github.com/trestledb/trestle/engine/query/types"
)

// Print returns r as text, an operator a line, inputs indented under what reads
// them. EXPLAIN and tests show it; nothing reads it.
func Print(r Rel) string {
	var p printer
	p.rel(r, 0)
	return strings.TrimSuffix(p.String(), "\n")
}

// FormatLiteral returns the value of l as SQL writes it.
func FormatLiteral(l *Literal) string { return FormatValue(l.T, l.Value) }

// FormatValue returns a value of type t as SQL writes it.
func FormatValue(t *types.Type, v types.Value) string {
	if !v.Valid {
		return "NULL"
	}
	switch t.Kind {
	case types.Bool:
		return strings.ToUpper(strconv.FormatBool(v.Bool()))
	case types.Float32:
		return strconv.FormatFloat(v.Float, 'g', -1, 32)
	case types.Float64:
		return strconv.FormatFloat(v.Float, 'g', -1, 64)
	case types.String:
		return strconv.Quote(v.Str)
	case types.Bytes, types.Proto:
		return "b" + quoteBytes(v.Str)
	case types.Date:
		return "DATE " + strconv.Quote(time.Unix(v.Int*24*60*60, 0).UTC().Format("2006-01-02"))
	case types.Timestamp:
		return "TIMESTAMP " + strconv.Quote(time.UnixMicro(v.Int).UTC().Format("2006-01-02 15:04:05.999999+00"))
	case types.Enum:
		for _, e := range t.Enumeration.Values {
			if int64(e.Number) == v.Int {
				return e.Name
			}
		}
	case types.Array:
		parts := make([]string, len(v.List))
		for i, e := range v.List {
			parts[i] = FormatValue(t.Elem, e)
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case types.Struct:
		parts := make([]string, len(v.List))
		for i, e := range v.List {
			parts[i] = FormatValue(t.Fields[i].Type, e)
		}
		return "(" + strings.Join(parts, ", ") + ")"
	case types.Map:
		parts := make([]string, 0, len(v.List)/2)
		for i := 0; i+1 < len(v.List); i += 2 {
			parts = append(parts, FormatValue(t.Key, v.List[i])+": "+FormatValue(t.Elem, v.List[i+1]))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	}
	return strconv.FormatInt(v.Int, 10)
}

func quoteBytes(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, c := range []byte(s) {
		switch {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c < ' ' || c > '~':
			fmt.Fprintf(&b, `\x%02x`, c)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// A printer writes operators and expressions.
type printer struct {
	strings.Builder
	subqueries []*Subquery // whose queries are still to be printed, under the operator
}

func (p *printer) line(depth int, format string, args ...any) {
	p.WriteString(strings.Repeat("  ", depth))
	fmt.Fprintf(p, format, args...)
}

// end ends an operator's line, and prints the queries of its subqueries.
func (p *printer) end(depth int) {
	p.WriteByte('\n')
	list := p.subqueries
	p.subqueries = nil
	for _, s := range list {
		p.line(depth+1, "subquery")
		if len(s.Outer) > 0 {
			p.WriteString(" of")
			for _, id := range s.Outer {
				fmt.Fprintf(p, " #%d", id)
			}
		}
		p.WriteByte('\n')
		p.rel(s.Query, depth+2)
	}
}

func (p *printer) rel(r Rel, depth int) {
	switch r := r.(type) {
	case *OneRow:
		p.line(depth, "OneRow")
		p.end(depth)
	case *Scan:
		p.line(depth, "Scan %s", r.Table.Name)
		if r.Alias != "" && r.Alias != r.Table.Name {
			p.WriteString(" AS " + r.Alias)
		}
		p.history(r.History)
		for i, u := range r.Uses {
			p.separate(i, ": ")
			p.column(u.Column)
			if u.Qualifier != nil {
				fmt.Fprintf(p, "=[%q]", *u.Qualifier)
			}
			if u.Existence {
				p.WriteString(" existence")
			}
			if u.WriteTime {
				p.WriteString(" write time")
			}
		}
		p.end(depth)
	case *Filter:
		p.line(depth, "Filter ")
		p.expr(r.Cond)
		p.end(depth)
		p.rel(r.Input, depth+1)
	case *Project:
		p.line(depth, "Project ")
		p.computed(r.Computed)
		p.end(depth)
		p.rel(r.Input, depth+1)
	case *Keep:
		p.line(depth, "Keep ")
		p.columns(r.Cols)
		p.end(depth)
		p.rel(r.Input, depth+1)
	case *Join:
		p.line(depth, "%s join", [...]string{"Inner", "Left", "Full", "Semi", "Anti"}[r.Kind])
		if r.Lateral {
			p.WriteString(" lateral")
		}
		if r.On != nil {
			p.WriteString(" on ")
			p.expr(r.On)
		}
		p.end(depth)
		p.rel(r.Left, depth+1)
		p.rel(r.Right, depth+1)
	case *Unnest:
		p.line(depth, "Unnest")
		if r.Left {
			p.WriteString(" left")
		}
		for i, x := range r.Arrays {
			p.separate(i, " ")
			p.column(r.Elems[i])
			p.WriteString("=")
			p.expr(x)
		}
		if r.Offset != nil {
			p.WriteString(" offset ")
			p.column(*r.Offset)
		}
		if r.Mode != nil {
			p.WriteString(" mode ")
			p.expr(r.Mode)
		}
		if r.On != nil {
			p.WriteString(" on ")
			p.expr(r.On)
		}
		p.end(depth)
		p.rel(r.Input, depth+1)
	case *Aggregate:
		p.line(depth, "Aggregate")
		if r.Distinct {
			p.WriteString(" distinct")
		}
		p.groups(r)
		p.end(depth)
		p.rel(r.Input, depth+1)
	case *Sort:
		p.line(depth, "Sort ")
		p.keys(r.Keys)
		p.end(depth)
		p.rel(r.Input, depth+1)
	case *Limit:
		p.line(depth, "Limit")
		if r.Count != nil {
			p.WriteByte(' ')
			p.expr(r.Count)
		}
		if r.Offset != nil {
			p.WriteString(" offset ")
			p.expr(r.Offset)
		}
		p.end(depth)
		p.rel(r.Input, depth+1)
	case *SetOperation:
		p.line(depth, "%s", [...]string{"Union", "Intersect", "Except"}[r.Op])
		if r.All {
			p.WriteString(" all")
		}
		p.WriteString(" ")
		p.columns(r.Cols)
		p.end(depth)
		for i, in := range r.Inputs {
			p.line(depth+1, "input")
			for _, id := range r.InputCols[i] {
				fmt.Fprintf(p, " #%d", id)
			}
			p.WriteByte('\n')
			p.rel(in, depth+2)
		}
	case *Window:
		p.line(depth, "Window")
		for i := range r.Calls {
			p.separate(i, " ")
			p.window(&r.Calls[i])
		}
		p.end(depth)
		p.rel(r.Input, depth+1)
	case *With:
		p.line(depth, "With")
		p.end(depth)
		for _, d := range r.Defs {
			p.line(depth+1, "%s", d.Name)
			if d.Recursive {
				p.WriteString(" recursive")
			}
			p.WriteByte('\n')
			p.rel(d.Rel, depth+2)
		}
		p.rel(r.Body, depth+1)
	case *Ref:
		p.line(depth, "Ref %s ", r.Name)
		p.columns(r.Cols)
		p.end(depth)
	default:
		p.line(depth, "%T", r)
		p.end(depth)
	}
}

func (p *printer) separate(i int, first string) {
	if i == 0 {
		p.WriteString(first)
	} else {
		p.WriteString(", ")
	}
}

func (p *printer) column(c Column) {
	p.WriteString(c.Name)
	p.WriteByte('#')
	p.WriteString(strconv.Itoa(int(c.ID)))
}

func (p *printer) columns(list []Column) {
	for i, c := range list {
		p.separate(i, "")
		p.column(c)
	}
}

func (p *printer) computed(list []Computed) {
	for i, c := range list {
		p.separate(i, "")
		p.column(c.Column)
		p.WriteByte('=')
		p.expr(c.Expr)
	}
}

func (p *printer) history(h *History) {
	if h == nil {
		return
	}
	if h.Unpack {
		p.WriteString(" unpack")
	}
	if h.WithHistory {
		p.WriteString(" with_history")
	}
	for _, o := range []struct {
		name string
		e    Expr
	}{{"after", h.After}, {"after_or_equal", h.AfterOrEqual}, {"before", h.Before}, {"before_or_equal", h.BeforeOrEqual}, {"latest_n", h.LatestN}, {"as_of", h.AsOf}} {
		if o.e != nil {
			p.WriteString(" " + o.name + "=")
			p.expr(o.e)
		}
	}
}

func (p *printer) groups(r *Aggregate) {
	for i, k := range r.Keys {
		p.separate(i, " by ")
		p.column(k.Column)
		p.WriteByte('=')
		p.expr(k.Expr)
	}
	if r.Sets != nil {
		fmt.Fprintf(p, " sets %v", r.Sets)
	}
	for i := range r.Aggs {
		p.separate(i, ": ")
		p.aggregate(&r.Aggs[i])
	}
	for _, g := range r.Grouping {
		p.WriteString(" grouping ")
		p.column(g.Column)
		p.WriteByte('=')
		p.column(r.Keys[g.Key].Column)
	}
}

func (p *printer) keys(list []SortKey) {
	for i, k := range list {
		p.separate(i, "")
		p.expr(k.Expr)
		if k.Descending {
			p.WriteString(" DESC")
		}
		if k.NullsLast != k.Descending {
			if k.NullsLast {
				p.WriteString(" NULLS LAST")
			} else {
				p.WriteString(" NULLS FIRST")
			}
		}
	}
}

func (p *printer) aggregate(c *AggregateCall) {
	p.column(c.Column)
	p.WriteByte('=')
	if c.Safe {
		p.WriteString("SAFE.")
	}
	p.WriteString(c.Function.Name)
	p.WriteByte('(')
	if c.Distinct {
		p.WriteString("DISTINCT ")
	}
	p.list(c.Args)
	if c.IgnoreNulls && c.Function.Nulls {
		p.WriteString(" IGNORE NULLS")
	}
	if c.Where != nil {
		p.WriteString(" WHERE ")
		p.expr(c.Where)
	}
	if c.HavingMax != nil {
		p.WriteString(" HAVING MAX ")
		p.expr(c.HavingMax)
	}
	if c.HavingMin != nil {
		p.WriteString(" HAVING MIN ")
		p.expr(c.HavingMin)
	}
	if c.Inner != nil {
		p.WriteString(" GROUP")
		p.groups(c.Inner)
		if c.Having != nil {
			p.WriteString(" HAVING ")
			p.expr(c.Having)
		}
	}
	if len(c.OrderBy) > 0 {
		p.WriteString(" ORDER BY ")
		p.keys(c.OrderBy)
	}
	if c.Limit != nil {
		p.WriteString(" LIMIT ")
		p.expr(c.Limit)
	}
	p.WriteByte(')')
}

func (p *printer) window(c *WindowCall) {
	p.aggregate(&c.AggregateCall)
	p.WriteString(" OVER (")
	if len(c.PartitionBy) > 0 {
		p.WriteString("PARTITION BY ")
		p.list(c.PartitionBy)
		p.WriteByte(' ')
	}
	if len(c.Order) > 0 {
		p.WriteString("ORDER BY ")
		p.keys(c.Order)
		p.WriteByte(' ')
	}
	if c.Frame.Rows {
		p.WriteString("ROWS ")
	} else {
		p.WriteString("RANGE ")
	}
	p.bound(c.Frame.Start)
	p.WriteString(" TO ")
	p.bound(c.Frame.End)
	p.WriteByte(')')
}

func (p *printer) bound(b Bound) {
	if b.Offset != nil {
		p.expr(b.Offset)
		p.WriteByte(' ')
	}
	p.WriteString([...]string{"UNBOUNDED PRECEDING", "PRECEDING", "CURRENT ROW", "FOLLOWING", "UNBOUNDED FOLLOWING"}[b.Kind])
}

func (p *printer) list(list []Expr) {
	first := true
	for _, e := range list {
		if e == nil {
			continue
		}
		if !first {
			p.WriteString(", ")
		}
		first = false
		p.expr(e)
	}
}

func (p *printer) expr(e Expr) {
	switch e := e.(type) {
	case nil:
	case *Literal:
		p.WriteString(FormatLiteral(e))
	case *Param:
		p.WriteString("@" + e.Name)
	case *ColumnRef:
		p.column(e.Column)
	case *Call:
		p.call(e)
	case *Lambda:
		p.WriteByte('(')
		p.columns(e.Params)
		p.WriteString(") -> ")
		p.expr(e.Body)
	case *Cast:
		if e.Safe {
			p.WriteString("SAFE_")
		}
		p.WriteString("CAST(")
		p.expr(e.X)
		p.WriteString(" AS " + e.T.String())
		if e.Format != nil {
			p.WriteString(" FORMAT ")
			p.expr(e.Format)
		}
		if e.Zone != nil {
			p.WriteString(" AT TIME ZONE ")
			p.expr(e.Zone)
		}
		p.WriteByte(')')
	case *GetField:
		p.expr(e.X)
		p.WriteByte('.')
		if f := e.X.Type().Fields; e.Index < len(f) && f[e.Index].Name != "" {
			p.WriteString(f[e.Index].Name)
		} else {
			p.WriteString(strconv.Itoa(e.Index))
		}
	case *GetProtoField:
		p.expr(e.X)
		p.WriteByte('.')
		if e.Has {
			p.WriteString("has_")
		}
		p.WriteString(e.Field.Name)
	case *MakeStruct:
		p.WriteString("STRUCT(")
		p.list(e.Fields)
		p.WriteByte(')')
	case *MakeArray:
		p.WriteByte('[')
		p.list(e.Elems)
		p.WriteByte(']')
	case *Subquery:
		p.subqueries = append(p.subqueries, e)
		switch e.Kind {
		case ScalarQuery:
			p.WriteString("(subquery)")
		case ArrayQuery:
			p.WriteString("ARRAY(subquery)")
		case ExistsQuery:
			p.WriteString("EXISTS(subquery)")
		default:
			p.WriteString([...]string{InQuery: "IN", AnyQuery: "ANY", AllQuery: "ALL"}[e.Kind])
			p.WriteString("(subquery: ")
			p.expr(e.Compare)
			p.WriteByte(')')
		}
	case *Let:
		p.WriteString("WITH(")
		p.computed(e.Vars)
		p.WriteString(", ")
		p.expr(e.Body)
		p.WriteByte(')')
	case *ViewParameters:
		p.WriteString("VIEW_PARAMETERS()")
	default:
		fmt.Fprintf(p, "%T", e)
	}
}

func (p *printer) call(e *Call) {
	if e.Safe {
		p.WriteString("SAFE.")
	}
	if op := infix(e.Function); op != "" && len(e.Args) > 1 {
		p.WriteByte('(')
		for i, x := range e.Args {
			if i > 0 {
				p.WriteString(" " + op + " ")
			}
			p.expr(x)
		}
		p.WriteByte(')')
		return
	}
	p.WriteString(e.Function.Name)
	p.WriteByte('(')
	p.list(e.Args)
	p.WriteByte(')')
}

// infix returns how an operator is written between its operands, "" if it is not.
func infix(f *functions.Function) string {
	if !strings.HasPrefix(f.Name, "$") {
		return ""
	}
	switch f.SQL {
	case "+", "-", "*", "/", "||", "<<", ">>", "&", "^", "|", "=", "!=", "<", "<=", ">", ">=", "AND", "OR", "LIKE":
		return f.SQL
	}
	return ""
}
