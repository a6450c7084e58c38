package analyze

import (
	"math"
	"strconv"
	"strings"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/functions"
	"github.com/trestledb/trestle/engine/query/syntax"
	"github.com/trestledb/trestle/engine/query/types"
)

// bareSelect is the clause of expressions in a SELECT without FROM.
const bareSelect = "SELECT without FROM clause"

// An env is where an expression stands.
type env struct {
	scope *scope
	// clause is what messages call the place: "WHERE clause".
	clause string
	// sel takes the aggregates and window functions of the expression. Nil means that
	// neither may stand here.
	sel *selection
	// inAggregate is set within the arguments of an aggregate, inWindow within those of a
	// window function.
	inAggregate, inWindow bool
	noWindow              bool
	// aggregateAt is where the aggregate of inAggregate stands.
	aggregateAt syntax.Pos
}

// within returns v with another scope.
func (v *env) within(s *scope) *env {
	out := *v
	out.scope = s
	return &out
}

// expr analyzes e.
func (a *analyzer) expr(e syntax.Expr, v *env) algebra.Expr {
	a.enter(e.At())
	defer a.leave()
	switch e := e.(type) {
	case *syntax.Null:
		return &algebra.Literal{T: untypedNull}
	case *syntax.BoolLiteral:
		return &algebra.Literal{Value: types.NewBool(e.Value), T: types.BoolType}
	case *syntax.IntLiteral:
		return a.integer(e.Text, false, e.At())
	case *syntax.FloatLiteral:
		return a.float(e.Text, e.At())
	case *syntax.StringLiteral:
		return &algebra.Literal{Value: types.NewString(e.Value), T: types.StringType}
	case *syntax.BytesLiteral:
		return &algebra.Literal{Value: types.NewString(e.Value), T: types.BytesType}
	case *syntax.TypedLiteral:
		return a.typedLiteral(e)
	case *syntax.IntervalExpr:
		a.fail(e.At(), "Type INTERVAL is not supported; INTERVAL stands only as an argument of functions such as DATE_ADD")
	case *syntax.Parameter:
		return a.parameter(e)
	case *syntax.SystemVariable:
		a.fail(e.At(), "Unrecognized name: @@%s", typePath(e.Path.Names))
	case *syntax.Name:
		return a.name(e, v)
	case *syntax.Dot:
		return a.dot(e, v)
	case *syntax.Extension:
		a.fail(e.At(), "Protocol buffer extensions are not supported")
	case *syntax.Subscript:
		return a.subscript(e, v)
	case *syntax.Unary:
		return a.unary(e, v)
	case *syntax.Binary:
		return a.binary(e, v)
	case *syntax.Is:
		return a.is(e, v)
	case *syntax.Between:
		return a.negate(e.Not, e.OpPos, a.operator("$between", e.OpPos, a.arg(e.X, v), a.arg(e.Low, v), a.arg(e.High, v)))
	case *syntax.In:
		return a.in(e, v)
	case *syntax.Like:
		return a.negate(e.Not, e.At(), a.operator("$like", e.At(), a.arg(e.X, v), a.arg(e.Pattern, v)))
	case *syntax.Quantified:
		return a.quantified(e, v)
	case *syntax.Case:
		return a.caseExpr(e, v)
	case *syntax.Cast:
		return a.cast(e, v)
	case *syntax.Extract:
		return a.extract(e, v)
	case *syntax.Call:
		return a.call(e, v)
	case *syntax.Lambda:
		a.fail(e.At(), "Lambda is not supported here")
	case *syntax.ArrayLiteral:
		return a.arrayLiteral(e, v)
	case *syntax.StructLiteral:
		return a.structLiteral(e, v)
	case *syntax.NewMessage:
		a.fail(e.At(), "NEW is not supported")
	case *syntax.Subquery:
		return a.subquery(e, v)
	case *syntax.WithExpr:
		return a.let(e, v)
	case *syntax.DefaultValue:
		a.fail(e.At(), "Unexpected keyword DEFAULT")
	case *syntax.Paren:
		return a.expr(e.X, v)
	}
	a.fail(e.At(), "Expression not supported: %T", e)
	return nil
}

// arg analyzes e as an argument.
func (a *analyzer) arg(e syntax.Expr, v *env) argument {
	return argument{pos: at(e), expr: a.expr(e, v)}
}

// at returns where messages say that e stands: within its parentheses.
func at(e syntax.Expr) syntax.Pos {
	for {
		p, ok := e.(*syntax.Paren)
		if !ok {
			return e.At()
		}
		e = p.X
	}
}

// integer reads an INT64 literal, of a negative number if minus is set.
func (a *analyzer) integer(text string, minus bool, pos syntax.Pos) algebra.Expr {
	signed := text
	if minus {
		signed = "-" + text
	}
	base := 10
	if len(text) > 2 && text[1]|0x20 == 'x' {
		base = 16
		signed = strings.Replace(signed, text[:2], "", 1)
	}
	i, err := strconv.ParseInt(signed, base, 64)
	if err != nil {
		if minus {
			text = "-" + text
		}
		a.fail(pos, "Invalid integer literal: %s", text)
	}
	return &algebra.Literal{Value: types.NewInt(i), T: types.Int64Type}
}

func (a *analyzer) float(text string, pos syntax.Pos) algebra.Expr {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil && !math.IsInf(f, 0) { // out of range is infinite
		a.fail(pos, "Invalid floating point literal: %s", text)
	}
	return &algebra.Literal{Value: types.NewFloat(f), T: types.Float64Type}
}

func (a *analyzer) typedLiteral(e *syntax.TypedLiteral) algebra.Expr {
	var t *types.Type
	switch e.Type {
	case "DATE":
		t = types.DateType
	case "TIMESTAMP":
		t = types.TimestampType
	default:
		a.fail(e.At(), "%s literals are not supported", e.Type)
	}
	v, err := functions.CastValue(nil, types.StringType, t, types.NewString(e.Value.Value), nil, nil)
	if err != nil {
		a.fail(e.At(), "Invalid %s literal", e.Type)
	}
	return &algebra.Literal{Value: v, T: t}
}

func (a *analyzer) parameter(e *syntax.Parameter) algebra.Expr {
	if e.Name == "" {
		a.fail(e.At(), "Positional parameters are not supported")
	}
	name := strings.ToLower(e.Name)
	t := a.declared[name]
	if t == nil {
		a.fail(e.At(), "Query parameter '%s' not found%s", e.Name, suggest(e.Name, func(yield func(string)) {
			for n := range a.declared {
				yield(n)
			}
		}))
	}
	if a.st.Params == nil {
		a.st.Params = map[string]*types.Type{}
	}
	a.st.Params[name] = t
	return &algebra.Param{Name: name, T: t}
}

// name returns the value of a column, or the row of a table.
func (a *analyzer) name(e *syntax.Name, v *env) algebra.Expr {
	h, ok := a.find(v.scope, e.Identifier)
	if ok {
		if h.col.expr != nil && v.inAggregate && v.sel != nil && a.computes(h.col.expr, v.sel) {
			a.fail(e.At(), "Aggregations of aggregations are not allowed")
		}
		n := len(a.refs)
		x := a.hit(&h, e.At())
		a.noted(n, v)
		return x
	}
	switch strings.ToUpper(e.Name) {
	case "CURRENT_DATE", "CURRENT_TIMESTAMP":
		if !e.Quoted {
			return a.invoke(functions.Lookup(e.Name), nil, e.At(), false)
		}
	}
	a.fail(e.At(), "Unrecognized name: %s%s", types.QuoteIdentifier(e.Name), suggest(e.Name, v.scope.all))
	return nil
}

// noted completes the references from number n on: of those in v, it is known whether
// there is a FROM.
func (a *analyzer) noted(n int, v *env) {
	if v.clause == bareSelect {
		for i := n; i < len(a.refs); i++ {
			a.refs[i].bare = true
		}
	}
}

// hit returns the value of what a name means.
func (a *analyzer) hit(h *hit, pos syntax.Pos) algebra.Expr {
	if h.table != nil {
		return a.wholeRow(h, pos)
	}
	if h.col.expr != nil {
		if len(h.captures) > 0 {
			rewrite(h.col.expr, func(e algebra.Expr) algebra.Expr {
				if r, ok := e.(*algebra.ColumnRef); ok {
					h.capture(r.ID)
				}
				return nil
			})
		}
		return h.col.expr
	}
	x := a.ref(&h.col, h, pos)
	if h.field < 0 {
		return x
	}
	if t := h.col.col.Type; t.Kind == types.Proto {
		f := &t.Message.Fields[h.field]
		return &algebra.GetProtoField{X: x, Field: f, T: f.Type}
	}
	return &algebra.GetField{X: x, Index: h.field, T: h.col.col.Type.Fields[h.field].Type}
}

// wholeRow returns the row of a table as a STRUCT.
func (a *analyzer) wholeRow(h *hit, pos syntax.Pos) algebra.Expr {
	out := &algebra.MakeStruct{T: &types.Type{Kind: types.Struct}}
	for i := range h.table.cols {
		c := &h.table.cols[i]
		if c.pseudo {
			continue
		}
		out.Fields = append(out.Fields, a.ref(c, h, pos))
		out.T.Fields = append(out.T.Fields, types.Field{Name: c.name, Type: c.col.Type})
	}
	return out
}

// dot returns a column of a table, or a field of a value.
func (a *analyzer) dot(e *syntax.Dot, v *env) algebra.Expr {
	n := len(a.refs)
	x := a.dotted(e, v)
	if len(a.refs) == n+1 {
		if path := pathText(e); path != "" {
			a.refs[n].text = path
		}
	}
	a.noted(n, v)
	return x
}

// pathText returns names joined by dots as messages write them, "" if e is no such path.
func pathText(e syntax.Expr) string {
	switch e := e.(type) {
	case *syntax.Name:
		return types.QuoteIdentifier(e.Name)
	case *syntax.Dot:
		if base := pathText(e.Base); base != "" {
			return base + "." + types.QuoteIdentifier(e.Name.Name)
		}
	}
	return ""
}

func (a *analyzer) dotted(e *syntax.Dot, v *env) algebra.Expr {
	if base, ok := e.Base.(*syntax.Name); ok {
		h, ok := a.find(v.scope, base.Identifier)
		if !ok {
			a.fail(base.At(), "Unrecognized name: %s%s", types.QuoteIdentifier(base.Name), suggest(base.Name, v.scope.all))
		}
		if h.table != nil {
			return a.inTable(&h, base.Name, e.Name, base.At())
		}
		return a.field(a.hit(&h, base.At()), e.Name)
	}
	return a.field(a.expr(e.Base, v), e.Name)
}

// inTable returns the column called name of a table in FROM.
func (a *analyzer) inTable(h *hit, table string, name syntax.Identifier, pos syntax.Pos) algebra.Expr {
	var found *column
	for i := range h.table.cols {
		if c := &h.table.cols[i]; strings.EqualFold(c.name, name.Name) && c.name != "" {
			if found != nil {
				a.fail(name.At(), "Name %s is ambiguous inside %s", types.QuoteIdentifier(name.Name), types.QuoteIdentifier(table))
			}
			found = c
		}
	}
	if found == nil {
		a.fail(name.At(), "Name %s not found inside %s", types.QuoteIdentifier(name.Name), types.QuoteIdentifier(table))
	}
	return a.ref(found, h, pos)
}

// field returns a field of x.
func (a *analyzer) field(x algebra.Expr, name syntax.Identifier) algebra.Expr {
	t := x.Type()
	switch t.Kind {
	case types.Struct:
		found := -1
		for i, f := range t.Fields {
			if strings.EqualFold(f.Name, name.Name) {
				if found >= 0 {
					a.fail(name.At(), "Struct field name %s is ambiguous", types.QuoteIdentifier(name.Name))
				}
				found = i
			}
		}
		if found < 0 {
			a.fail(name.At(), "Field name %s does not exist in %s%s", types.QuoteIdentifier(name.Name), t, suggest(name.Name, func(yield func(string)) {
				for _, f := range t.Fields {
					yield(f.Name)
				}
			}))
		}
		return &algebra.GetField{X: x, Index: found, T: t.Fields[found].Type}
	case types.Proto:
		return a.protoField(x, name)
	case types.Array:
		a.fail(name.At(), "Cannot access field %s on a value with type %s. You may need an explicit call to FLATTEN, and the flattened argument may only contain 'dot' after the first array", types.QuoteIdentifier(name.Name), t)
	}
	a.fail(name.At(), "Cannot access field %s on a value with type %s", types.QuoteIdentifier(name.Name), t)
	return nil
}

func (a *analyzer) protoField(x algebra.Expr, name syntax.Identifier) algebra.Expr {
	m := x.Type().Message
	for i := range m.Fields {
		f := &m.Fields[i]
		if strings.EqualFold(f.Name, name.Name) {
			if f.Type == nil {
				a.fail(name.At(), "Field %s of protocol buffer %s has a type that is not supported", f.Name, m.Name)
			}
			return &algebra.GetProtoField{X: x, Field: f, T: f.Type}
		}
	}
	if len(name.Name) > 4 && strings.EqualFold(name.Name[:4], "has_") {
		for i := range m.Fields {
			f := &m.Fields[i]
			if !strings.EqualFold(f.Name, name.Name[4:]) {
				continue
			}
			if f.Repeated {
				a.fail(name.At(), "Protocol buffer %s field %s is repeated, so %s is not allowed", m.Name, f.Name, name.Name)
			}
			if !f.HasPresence {
				a.fail(name.At(), "Field %s in message %s does not support presence, so %s is not allowed", f.Name, m.Name, name.Name)
			}
			return &algebra.GetProtoField{X: x, Field: f, Has: true, T: types.BoolType}
		}
	}
	a.fail(name.At(), "Protocol buffer %s does not have a field called %s", m.Name, types.QuoteIdentifier(name.Name))
	return nil
}
