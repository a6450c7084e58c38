package analyze

import (
	"slices"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/functions"
	"github.com/trestledb/trestle/engine/query/syntax"
	"github.com/trestledb/trestle/engine/query/types"
)

func (a *analyzer) cast(e *syntax.Cast, v *env) algebra.Expr {
	t := a.typeOf(e.Type)
	out := &algebra.Cast{T: t, Safe: e.Safe}
	x := a.expr(e.X, v)
	if e.Format != nil {
		out.Format = a.asType(e.Format, v, types.StringType, "FORMAT expression")
		if e.Zone != nil {
			out.Zone = a.asType(e.Zone, v, types.StringType, "AT TIME ZONE expression")
		}
	} else if e.Zone != nil {
		a.fail(e.Zone.At(), "AT TIME ZONE stands with FORMAT only")
	}
	if isUntyped(x) && out.Format != nil {
		if ok, _ := functions.CanFormat(types.Int64Type, t); !ok {
			a.fail(a.keyword("FORMAT", e.Format.At()), "FORMAT is not allowed for cast from INT64 to %s", t)
		}
	}
	if isUntyped(x) || isEmptyArray(x) && t.Kind == types.Array {
		return &algebra.Cast{X: a.coerce(x, t, at(e.X)), T: t, Safe: e.Safe}
	}
	x = a.withoutNulls(x, t, at(e.X))
	if out.Format != nil {
		format, zone := functions.CanFormat(x.Type(), t)
		if !format {
			a.fail(a.keyword("FORMAT", e.Format.At()), "FORMAT is not allowed for cast from %s to %s", x.Type(), t)
		}
		if out.Zone != nil && !zone {
			a.fail(e.Zone.At(), "AT TIME ZONE is not allowed for cast from %s to %s", x.Type(), t)
		}
	}
	if !functions.CanCast(x.Type(), t) {
		prefix := ""
		if x.Type().Kind == types.Array && t.Kind == types.Array {
			prefix = "Casting between arrays with incompatible element types is not supported: "
		}
		a.fail(at(e.X), "%sInvalid cast from %s to %s", prefix, x.Type(), t)
	}
	out.X = x
	return out
}

// withoutNulls returns x, which is cast to t, with the NULLs among its fields as those
// of t.
func (a *analyzer) withoutNulls(x algebra.Expr, t *types.Type, pos syntax.Pos) algebra.Expr {
	s, ok := x.(*algebra.MakeStruct)
	if !ok || t.Kind != types.Struct || len(s.Fields) != len(t.Fields) {
		return x
	}
	out := &algebra.MakeStruct{Fields: make([]algebra.Expr, len(s.Fields)), T: &types.Type{Kind: types.Struct, Fields: slices.Clone(s.T.Fields)}}
	for i, f := range s.Fields {
		if isUntyped(f) {
			f = a.coerce(f, t.Fields[i].Type, pos)
		} else {
			f = a.withoutNulls(f, t.Fields[i].Type, pos)
		}
		out.Fields[i], out.T.Fields[i].Type = f, f.Type()
	}
	return out
}

// asType analyzes e, which what demands to be of type t.
func (a *analyzer) asType(e syntax.Expr, v *env, t *types.Type, what string) algebra.Expr {
	x := a.expr(e, v)
	if _, ok := a.convertible(x, t); !ok {
		a.fail(at(e), "%s should return type %s, but returns %s", what, t, x.Type())
	}
	return a.coerce(x, t, e.At())
}

func (a *analyzer) arrayLiteral(e *syntax.ArrayLiteral, v *env) algebra.Expr {
	elems := make([]algebra.Expr, len(e.Elems))
	for i, x := range e.Elems {
		elems[i] = a.expr(x, v)
		if t := elems[i].Type(); t.Kind == types.Array {
			a.fail(at(x), "Cannot construct array with element type %s because nested arrays are not supported", t)
		}
	}
	if e.Elem != nil {
		t := a.typeOf(e.Elem)
		if t.Kind == types.Array {
			a.fail(e.At(), "Arrays of arrays are not supported")
		}
		for i, x := range elems {
			if _, ok := a.convertible(x, t); !ok {
				a.fail(at(e.Elems[i]), "Array element type %s does not coerce to %s", x.Type(), t)
			}
			elems[i] = a.coerce(x, t, at(e.Elems[i]))
		}
		out := &algebra.MakeArray{Elems: elems, T: types.ArrayOf(t)}
		if allLiterals(elems) {
			// With a type of its own, it is no literal that takes another.
			return &algebra.Cast{X: out, T: out.T}
		}
		return out
	}
	if len(elems) == 0 {
		return &algebra.MakeArray{T: untypedArray}
	}
	t := a.supertype(elems)
	if t == nil {
		a.fail(e.At(), "Array elements of types {%s} do not have a common supertype", typeSet(elems, true))
	}
	if t == untypedNull { // NULLs alone are INT64
		t = types.Int64Type
	}
	for i, x := range elems {
		elems[i] = a.coerce(x, t, at(e.Elems[i]))
	}
	return &algebra.MakeArray{Elems: elems, T: types.ArrayOf(t)}
}

func (a *analyzer) structLiteral(e *syntax.StructLiteral, v *env) algebra.Expr {
	out := &algebra.MakeStruct{Fields: make([]algebra.Expr, len(e.Values)), T: &types.Type{Kind: types.Struct, Fields: make([]types.Field, len(e.Values))}}
	if e.Type != nil {
		out.T = a.typeOf(e.Type)
		if len(out.T.Fields) != len(e.Values) {
			a.fail(e.At(), "STRUCT type has %d fields but constructor call has %d fields", len(out.T.Fields), len(e.Values))
		}
	}
	for i, f := range e.Values {
		x := a.expr(f.X, v)
		if e.Type != nil {
			if f.Alias != nil {
				a.fail(f.Alias.At(), "STRUCT constructors cannot specify both an explicit type and field names with AS")
			}
			t := out.T.Fields[i].Type
			if _, ok := a.convertible(x, t); !ok {
				a.fail(at(f.X), "Struct field %d has type %s which does not coerce to %s", i+1, x.Type(), t)
			}
			out.Fields[i] = a.coerce(x, t, at(f.X))
			continue
		}
		name := ""
		if f.Alias != nil {
			name = f.Alias.Name
		} else if !e.Tuple {
			name = aliasOf(f.X)
		}
		t := x.Type()
		switch {
		case isUntyped(x):
			t = types.Int64Type
		case isEmptyArray(x):
			t = types.ArrayOf(types.Int64Type)
		}
		out.Fields[i] = x
		out.T.Fields[i] = types.Field{Name: name, Type: t}
	}
	switch {
	case e.Type != nil:
		if literalParts(out, out) != nil {
			// With a type of its own, it is no literal that takes another.
			return &algebra.Cast{X: out, T: out.T}
		}
	case allLiterals(out.Fields):
		// NULL stays one that other types take, but [] does so only beside what is no literal.
		for i, x := range out.Fields {
			if isEmptyArray(x) {
				out.Fields[i] = &algebra.MakeArray{T: out.T.Fields[i].Type}
			}
		}
	}
	return out
}

// aliasOf returns the name that an expression has without AS.
func aliasOf(e syntax.Expr) string {
	switch e := e.(type) {
	case *syntax.Name:
		return e.Name
	case *syntax.Dot:
		return e.Name.Name
	}
	return ""
}

func (a *analyzer) let(e *syntax.WithExpr, v *env) algebra.Expr {
	out := &algebra.Let{}
	scoped := v
	for _, w := range e.Vars {
		if w.Alias == nil {
			a.fail(w.At(), "A variable of WITH needs a name")
		}
		x := a.expr(w.X, scoped)
		c := a.column(w.Alias.Name, x.Type())
		out.Vars = append(out.Vars, algebra.Computed{Column: c, Expr: x})
		scoped = scoped.within(&scope{list: &names{cols: []column{{name: c.Name, col: c}}}, outer: scoped.scope})
	}
	out.Body = a.expr(e.Result, scoped)
	return out
}
