package analyze

import (
	"cmp"
	"strings"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/functions"
	"github.com/trestledb/trestle/engine/query/syntax"
	"github.com/trestledb/trestle/engine/query/types"
)

// subscript returns an element of an array, or the value of a key of a map.
func (a *analyzer) subscript(e *syntax.Subscript, v *env) algebra.Expr {
	x := a.arg(e.Base, v)
	how, index := "", e.Index
	if c, ok := index.(*syntax.Call); ok && len(c.Name.Names) == 1 && len(c.Args) == 1 && c.Over == nil && c.Base == nil {
		switch name := strings.ToUpper(c.Name.Names[0].Name); name {
		case "OFFSET", "ORDINAL", "SAFE_OFFSET", "SAFE_ORDINAL", "KEY", "SAFE_KEY":
			how, index = name, c.Args[0].X
		}
	} else if ok && len(c.Name.Names) == 1 && x.expr.Type().Kind == types.Struct {
		switch name := strings.ToUpper(c.Name.Names[0].Name); name {
		case "OFFSET", "ORDINAL", "SAFE_OFFSET", "SAFE_ORDINAL":
			a.fail(e.Index.At(), "Subscript access using [%s()] on structs only supports one argument", name)
		}
	}
	i := a.arg(index, v)
	name := ""
	switch t := x.expr.Type(); {
	case t.Kind == types.Map && how == "", t.Kind == types.Map && how == "SAFE_KEY":
		name = "$map_subscript"
	case t.Kind == types.Map && how == "KEY":
		name = "$map_subscript_with_key"
	case t.Kind == types.Array || isUntyped(x.expr):
		if _, ok := a.convertible(i.expr, types.Int64Type); !ok && how != "KEY" && how != "SAFE_KEY" {
			a.fail(i.pos, "Array position in [] must be coercible to INT64 type, but has type %s", i.expr.Type())
		}
		switch how {
		case "", "OFFSET":
			name = "$array_at_offset"
		case "ORDINAL":
			name = "$array_at_ordinal"
		case "SAFE_OFFSET":
			name = "$safe_array_at_offset"
		case "SAFE_ORDINAL":
			name = "$safe_array_at_ordinal"
		}
	case t.Kind == types.Struct && how != "KEY" && how != "SAFE_KEY":
		if l, ok := i.expr.(*algebra.Literal); ok && l.T.Kind == types.Int64 && l.Value.Valid {
			at := l.Value.Int
			if how == "ORDINAL" || how == "SAFE_ORDINAL" {
				at--
			}
			if at >= 0 && at < int64(len(t.Fields)) {
				return &algebra.GetField{X: x.expr, Index: int(at), T: t.Fields[at].Type}
			}
			a.fail(e.Index.At(), "Field %s %d is out of bounds in %s", strings.ToLower(cmp.Or(how, "OFFSET")), l.Value.Int, t)
		}
		a.fail(e.Index.At(), "Field element access is only supported for literal integer positions")
	}
	if name == "" {
		if how == "" {
			a.fail(e.Index.At(), "Subscript access using [%s] is not supported on values of type %s", i.expr.Type(), x.expr.Type())
		}
		a.fail(e.Index.At(), "Subscript access using [%s(%s)] is not supported on values of type %s", how, i.expr.Type(), x.expr.Type())
	}
	return a.operator(name, e.Bracket, x, i)
}

// operator calls the operator called name.
func (a *analyzer) operator(name string, pos syntax.Pos, args ...argument) algebra.Expr {
	f := functions.Lookup(name)
	if f == nil {
		a.fail(pos, "Operator %s is not supported", strings.TrimPrefix(name, "$"))
	}
	return a.invoke(f, args, pos, false)
}

// invoke calls f, which is no aggregate.
func (a *analyzer) invoke(f *functions.Function, args []argument, pos syntax.Pos, safe bool) algebra.Expr {
	sig, list, t := a.resolve(f, args, pos)
	if sig.Part != nil {
		for _, arg := range args {
			if p, ok := arg.part.(*algebra.Literal); ok {
				if refused := sig.Part(p.Value.Str); refused != "" {
					a.fail(pos, "%s", refused)
				}
			}
		}
	}
	if sig.Pattern != nil {
		if l, ok := list[0].(*algebra.Literal); ok && l.Value.Valid {
			types := make([]*types.Type, len(list)-1)
			for i, x := range list[1:] {
				types[i] = x.Type()
			}
			if refused := sig.Pattern(l.Value.Str, types); refused != "" {
				a.fail(pos, "%s", refused)
			}
		}
	}
	if f.Name == "ERROR" {
		t = untypedNull
	}
	if f.Volatile && f.Name != "ERROR" {
		a.st.Volatile = true
	}
	return &algebra.Call{Function: f, Signature: sig, Args: list, Safe: safe, T: t}
}

// negate returns NOT x, or x.
func (a *analyzer) negate(not bool, pos syntax.Pos, x algebra.Expr) algebra.Expr {
	if !not {
		return x
	}
	return a.operator("$not", pos, argument{pos: pos, expr: x})
}

func (a *analyzer) unary(e *syntax.Unary, v *env) algebra.Expr {
	inner := e.X
	switch e.Op {
	case "-":
		switch x := inner.(type) {
		case *syntax.IntLiteral:
			return a.integer(x.Text, true, e.At())
		case *syntax.FloatLiteral:
			return a.float("-"+x.Text, e.At())
		}
		return a.operator("$unary_minus", e.At(), a.arg(inner, v))
	case "+":
		x := a.expr(inner, v)
		if isUntyped(x) {
			return x
		}
		if !x.Type().IsNumeric() {
			a.fail(inner.At(), "Operands of + must be numeric type but was %s", x.Type())
		}
		return x
	case "~":
		return a.operator("$bitwise_not", e.At(), a.arg(inner, v))
	}
	return a.operator("$not", e.At(), a.arg(inner, v))
}

// The operators of two operands, by how they are written.
var binaries = map[string]string{
	"+": "$add", "-": "$subtract", "*": "$multiply", "/": "$divide", "||": "$concat_op", "<<": "$left_shift", ">>": "$right_shift",
	"&": "$bitwise_and", "^": "$bitwise_xor", "|": "$bitwise_or",
	"=": "$equal", "!=": "$not_equal", "<": "$less", "<=": "$less_or_equal", ">": "$greater", ">=": "$greater_or_equal",
}

func (a *analyzer) binary(e *syntax.Binary, v *env) algebra.Expr {
	if e.Op == "AND" || e.Op == "OR" {
		name := "$and"
		if e.Op == "OR" {
			name = "$or"
		}
		return a.operator(name, e.At(), a.operands(e, v)...)
	}
	x := a.arg(e.X, v)
	pos := e.At()
	if e.Op == "<<" || e.Op == ">>" {
		pos = e.OpPos
	}
	return a.operator(binaries[e.Op], pos, x, a.binaryRight(e, v))
}

func (a *analyzer) binaryRight(e *syntax.Binary, v *env) argument {
	if (e.Op == "+" || e.Op == "-") && e.Y != nil {
		if i, ok := e.Y.(*syntax.IntervalExpr); ok {
			return a.interval(i, v)
		}
	}
	return a.arg(e.Y, v)
}

// operands returns the operands of a chain of ANDs, or of ORs, which may be long: it
// does not recurse along the chain.
func (a *analyzer) operands(e *syntax.Binary, v *env) []argument {
	var chain []syntax.Expr
	x := syntax.Expr(e)
	for {
		b, ok := x.(*syntax.Binary)
		if !ok || b.Op != e.Op {
			break
		}
		chain = append(chain, b.Y)
		x = b.X
	}
	args := make([]argument, 0, len(chain)+1)
	args = append(args, a.arg(x, v))
	for i := len(chain) - 1; i >= 0; i-- {
		args = append(args, a.arg(chain[i], v))
	}
	return args
}

func (a *analyzer) is(e *syntax.Is, v *env) algebra.Expr {
	x := a.arg(e.X, v)
	switch e.What {
	case "DISTINCT FROM":
		name := "$is_distinct_from"
		if e.Not {
			name = "$is_not_distinct_from"
		}
		return a.operator(name, e.At(), x, a.arg(e.Y, v))
	case "TRUE":
		return a.negate(e.Not, e.At(), a.operator("$is_true", e.At(), x))
	case "FALSE":
		return a.negate(e.Not, e.At(), a.operator("$is_false", e.At(), x))
	case "UNKNOWN":
		if _, ok := a.convertible(x.expr, types.BoolType); !ok {
			not := ""
			if e.Not {
				not = "NOT "
			}
			a.fail(e.At(), "Operand of IS %sUNKNOWN must be coercible to BOOL, but has type %s", not, x.expr.Type())
		}
		x.expr = a.coerce(x.expr, types.BoolType, x.pos)
	}
	return a.negate(e.Not, e.At(), a.operator("$is_null", e.At(), x))
}

func (a *analyzer) in(e *syntax.In, v *env) algebra.Expr {
	x := a.arg(e.X, v)
	var out algebra.Expr
	switch {
	case e.Query != nil:
		out = a.compareSubquery(x, "$equal", algebra.InQuery, e.Query, v, e.At())
	case e.Array != nil:
		y := argument{pos: e.Array.At(), expr: a.path(e.Array, v)}
		if t := y.expr.Type(); t.Kind != types.Array && !isUntyped(y.expr) {
			a.fail(e.OpPos, "Second argument of IN UNNEST must be an array but was %s", t)
		}
		out = a.operator("$in_array", e.OpPos, x, y)
	default:
		args := make([]argument, 1, len(e.List)+1)
		args[0] = x
		for _, y := range e.List {
			args = append(args, a.arg(y, v))
		}
		out = a.operator("$in", e.OpPos, args...)
	}
	return a.negate(e.Not, e.OpPos, out)
}

// arrayOf analyzes the argument of an UNNEST that is no table.
func (a *analyzer) arrayOf(e syntax.Expr, v *env) argument {
	x := argument{pos: e.At(), expr: a.path(e, v)}
	if x.expr.Type().Kind != types.Array && !isUntyped(x.expr) {
		a.fail(x.pos, "Values referenced in UNNEST must be arrays. UNNEST contains expression of type %s", x.expr.Type())
	}
	return x
}

func (a *analyzer) quantified(e *syntax.Quantified, v *env) algebra.Expr {
	x := a.arg(e.X, v)
	name := "$like"
	if e.Op != "LIKE" {
		name = binaries[e.Op]
	}
	if e.Query != nil {
		kind := algebra.AnyQuery
		if e.All {
			kind = algebra.AllQuery
		}
		if e.Not {
			// x NOT LIKE ANY (…) is: x NOT LIKE p for one of them.
			s := a.compareSubquery(x, name, kind, e.Query, v, e.OpPos).(*algebra.Subquery)
			s.Compare = a.negate(true, e.OpPos, s.Compare)
			return s
		}
		return a.compareSubquery(x, name, kind, e.Query, v, e.OpPos)
	}
	if e.Not {
		name = "$not_like"
	}
	name += "_any"
	if e.All {
		name = strings.TrimSuffix(name, "any") + "all"
	}
	if e.Array != nil {
		return a.operator(name+"_array", e.OpPos, x, a.arrayOf(e.Array, v))
	}
	args := []argument{x}
	for _, y := range e.List {
		args = append(args, a.arg(y, v))
	}
	return a.operator(name, e.OpPos, args...)
}

func (a *analyzer) caseExpr(e *syntax.Case, v *env) algebra.Expr {
	name := "$case_no_value"
	args := make([]argument, 0, 2*len(e.Whens)+2)
	if e.X != nil {
		name = "$case_with_value"
		args = append(args, a.arg(e.X, v))
	}
	for _, w := range e.Whens {
		args = append(args, a.arg(w.Cond, v), a.arg(w.Then, v))
	}
	if e.Else != nil {
		args = append(args, a.arg(e.Else, v))
	}
	return a.operator(name, e.At(), args...)
}
