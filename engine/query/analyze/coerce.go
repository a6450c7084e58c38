package analyze

import (
	"slices"
	"strings"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/functions"
	"github.com/trestledb/trestle/engine/query/syntax"
	"github.com/trestledb/trestle/engine/query/types"
)

// The types of NULL and [] as long as nothing says what type they have. They are
// told from INT64 and ARRAY<INT64>, which they are equal to, by their addresses.
var (
	untypedNull  = &types.Type{Kind: types.Int64}
	untypedArray = types.ArrayOf(types.Int64Type)
)

// isNull tells whether e is NULL, and isUntyped whether it takes any type: NULL, or
// a call of ERROR.
func isNull(e algebra.Expr) bool {
	l, ok := e.(*algebra.Literal)
	return ok && !l.Value.Valid
}

func isUntyped(e algebra.Expr) bool { return e.Type() == untypedNull && isFree(e) }

// isFree tells whether the type of e can be chosen: e is no column.
func isFree(e algebra.Expr) bool {
	switch e.(type) {
	case *algebra.Literal, *algebra.Call:
		return true
	}
	return false
}

// isEmptyArray tells whether e is [] without a type.
func isEmptyArray(e algebra.Expr) bool {
	_, ok := e.(*algebra.MakeArray)
	return ok && e.Type() == untypedArray
}

// isLiteral tells whether e is a literal, whose type yields to those of others.
func isLiteral(e algebra.Expr) bool {
	switch e := e.(type) {
	case *algebra.Literal:
		return true
	case *algebra.MakeArray:
		return (len(e.Elems) > 0 || isEmptyArray(e)) && allLiterals(e.Elems)
	case *algebra.MakeStruct:
		return allLiterals(e.Fields)
	}
	return isUntyped(e)
}

func allLiterals(list []algebra.Expr) bool {
	for _, e := range list {
		if !isLiteral(e) {
			return false
		}
	}
	return true
}

// literalParts returns e, of which at is the value, with its literals as they are and
// fields of at in place of what has to be computed: nil if it has no literals. So STRUCT(NULL, x)
// takes a type for NULL where x is known already.
func literalParts(e, at algebra.Expr) algebra.Expr {
	if isLiteral(e) {
		return e
	}
	s, ok := e.(*algebra.MakeStruct)
	if !ok {
		return nil
	}
	out := &algebra.MakeStruct{T: s.T, Fields: make([]algebra.Expr, len(s.Fields))}
	some := false
	for i, f := range s.Fields {
		field := &algebra.GetField{X: at, Index: i, T: s.T.Fields[i].Type}
		if out.Fields[i] = literalParts(f, field); out.Fields[i] == nil {
			out.Fields[i] = field
			continue
		}
		some = true
	}
	if !some {
		return nil
	}
	return out
}

// A cost is how far arguments are from what a signature wants: what costs more of an
// earlier part is worse.
type cost struct{ values, valueDistance, literals, literalDistance int }

func (c cost) less(d cost) bool {
	switch {
	case c.values != d.values:
		return c.values < d.values
	case c.valueDistance != d.valueDistance:
		return c.valueDistance < d.valueDistance
	case c.literals != d.literals:
		return c.literals < d.literals
	}
	return c.literalDistance < d.literalDistance
}

func (c *cost) add(d cost) {
	c.values += d.values
	c.valueDistance += d.valueDistance
	c.literals += d.literals
	c.literalDistance += d.literalDistance
}

// convertible tells whether e is converted to t without a CAST, and at what cost.
func (a *analyzer) convertible(e algebra.Expr, t *types.Type) (cost, bool) {
	from := e.Type()
	if from == t && t != untypedNull {
		return cost{}, true
	}
	if isUntyped(e) {
		if t.Kind == types.Int64 {
			return cost{}, true
		}
		return cost{literals: 1, literalDistance: 1 + kindDistance(types.Int64, t.Kind)}, true
	}
	switch e := e.(type) {
	case *algebra.Literal:
		if from.Equivalent(t) {
			return cost{}, true
		}
		if d := literalDistance(e, t); d > 0 {
			return cost{literals: 1, literalDistance: d}, true
		}
		return cost{}, false
	case *algebra.MakeArray:
		if isEmptyArray(e) {
			// It takes any type, as NULL does; that it is no scalar is said in coerce.
			if t.Kind != types.Array {
				return cost{literals: 1, literalDistance: 100}, true
			}
			return cost{literals: 1}, true
		}
		if t.Kind != types.Array {
			return cost{}, false
		}
		if from.Equivalent(t) {
			return cost{}, true
		}
		if len(e.Elems) == 0 { // ARRAY<t>[]
			return cost{}, false
		}
		var sum cost
		for _, x := range e.Elems {
			c, ok := a.convertible(x, t.Elem)
			if !ok || c.values > 0 {
				return cost{}, false
			}
			sum.add(c)
		}
		return sum, true
	case *algebra.MakeStruct:
		if t.Kind != types.Struct || len(e.Fields) != len(t.Fields) {
			return cost{}, false
		}
		var sum cost
		for i, x := range e.Fields {
			c, ok := a.convertible(x, t.Fields[i].Type)
			if !ok {
				return cost{}, false
			}
			sum.add(c)
		}
		return sum, true
	}
	if d := typeDistance(from, t); d >= 0 {
		if d == 0 {
			return cost{}, true
		}
		return cost{values: 1, valueDistance: d}, true
	}
	return cost{}, false
}

// typeDistance returns 0 if from is to but for names of fields, a positive number
// if values are converted without a CAST, and -1 otherwise.
func typeDistance(from, to *types.Type) int {
	if from.Equivalent(to) {
		return 0
	}
	switch {
	case from.Kind == types.Int64 && to.Kind == types.Float64, from.Kind == types.Float32 && to.Kind == types.Float64:
		return kindDistance(from.Kind, to.Kind)
	case from.Kind == types.Struct && to.Kind == types.Struct && len(from.Fields) == len(to.Fields):
		sum := 0
		for i := range from.Fields {
			d := typeDistance(from.Fields[i].Type, to.Fields[i].Type)
			if d < 0 {
				return -1
			}
			sum += d
		}
		return sum
	}
	return -1
}

// kindDistance orders conversions: FLOAT64 is nearer to INT64 than FLOAT32.
func kindDistance(from, to types.Kind) int {
	switch {
	case from == to:
		return 0
	case from == types.Int64 && to == types.Float64:
		return 2
	case from == types.Int64 && to == types.Float32:
		return 3
	case from == types.Float32 && to == types.Float64, from == types.Float64 && to == types.Float32:
		return 1
	case to == types.String:
		return 4
	case to == types.Bytes:
		return 6
	}
	return 5
}

// literalDistance returns how far a literal is from type t, 0 if it is not converted
// to it.
func literalDistance(l *algebra.Literal, t *types.Type) int {
	ok := false
	switch l.T.Kind {
	case types.Int64:
		ok = t.IsFloat() || t.Kind == types.Enum
	case types.Float64:
		ok = t.Kind == types.Float32
	case types.Float32:
		ok = t.Kind == types.Float64
	case types.String:
		ok = t.Kind == types.Bytes || t.Kind == types.Date || t.Kind == types.Timestamp || t.Kind == types.Enum || t.Kind == types.Proto
	case types.Bytes:
		ok = t.Kind == types.Proto
	}
	if !ok {
		return 0
	}
	return kindDistance(l.T.Kind, t.Kind)
}

// coerce returns e as a value of type t, to which it is convertible. What a literal
// stands for must fit: pos is where an error is reported.
func (a *analyzer) coerce(e algebra.Expr, t *types.Type, pos syntax.Pos) algebra.Expr {
	from := e.Type()
	if from == t {
		return e
	}
	if isUntyped(e) {
		if c, ok := e.(*algebra.Call); ok {
			out := *c
			out.T = t
			return &out
		}
		return &algebra.Literal{T: t}
	}
	switch x := e.(type) {
	case *algebra.Literal:
		return a.coerceLiteral(x, t, pos)
	case *algebra.MakeArray:
		if t.Kind != types.Array && isEmptyArray(e) {
			a.fail(pos, "Could not cast literal [] to type %s", t)
		}
		if t.Kind == types.Array && (isEmptyArray(e) || !from.Equal(t)) {
			out := &algebra.MakeArray{T: t, Elems: make([]algebra.Expr, len(x.Elems))}
			for i, elem := range x.Elems {
				out.Elems[i] = a.coerce(elem, t.Elem, pos)
			}
			return out
		}
	case *algebra.MakeStruct:
		if t.Kind == types.Struct && len(t.Fields) == len(x.Fields) {
			out := &algebra.MakeStruct{T: t, Fields: make([]algebra.Expr, len(x.Fields))}
			for i, f := range x.Fields {
				out.Fields[i] = a.coerce(f, t.Fields[i].Type, pos)
			}
			return out
		}
	}
	if from.Equal(t) {
		return e
	}
	return &algebra.Cast{X: e, T: t}
}

func (a *analyzer) coerceLiteral(l *algebra.Literal, t *types.Type, pos syntax.Pos) algebra.Expr {
	out := &algebra.Literal{Value: l.Value, T: t}
	if !l.Value.Valid || l.T.Equivalent(t) {
		return out
	}
	switch {
	case l.T.Kind == types.Int64 && t.Kind == types.Float64:
		out.Value = types.NewFloat(float64(l.Value.Int))
		return out
	case l.T.Kind == types.String && t.Kind == types.Bytes:
		return out
	}
	v, err := functions.CastValue(nil, l.T, t, l.Value, nil, nil)
	if err != nil {
		a.fail(pos, "Could not cast literal %s to type %s", quoteLiteral(l), t)
	}
	out.Value = v
	return out
}

// quoteLiteral returns l as messages write it.
func quoteLiteral(l *algebra.Literal) string {
	switch l.T.Kind {
	case types.String:
		if strings.Contains(l.Value.Str, `"`) && !strings.Contains(l.Value.Str, `'`) {
			return "'" + l.Value.Str + "'"
		}
		return `"` + strings.ReplaceAll(l.Value.Str, `"`, `\"`) + `"`
	}
	return algebra.FormatLiteral(l)
}

// supertype returns the type that all of list can have, or nil. Its fields have the
// names of the first type with fields.
func (a *analyzer) supertype(list []algebra.Expr) *types.Type {
	t := a.commonType(list)
	if t == nil || t.Kind != types.Struct && (t.Kind != types.Array || t.Elem.Kind != types.Struct) {
		return t
	}
	for _, e := range list {
		if u := e.Type(); u.Kind == t.Kind && !isUntyped(e) && !isEmptyArray(e) {
			return withNames(t, u)
		}
	}
	return t
}

// withNames returns t with the names of u's fields.
func withNames(t, u *types.Type) *types.Type {
	switch {
	case t == u || t.Kind != u.Kind:
		return t
	case t.Kind == types.Array:
		if e := withNames(t.Elem, u.Elem); e != t.Elem {
			return types.ArrayOf(e)
		}
	case t.Kind == types.Struct && len(t.Fields) == len(u.Fields):
		out := &types.Type{Kind: types.Struct, Fields: make([]types.Field, len(t.Fields))}
		changed := false
		for i, f := range t.Fields {
			g := types.Field{Name: u.Fields[i].Name, Type: withNames(f.Type, u.Fields[i].Type)}
			changed = changed || g != f
			out.Fields[i] = g
		}
		if changed {
			return out
		}
	}
	return t
}

func (a *analyzer) commonType(list []algebra.Expr) *types.Type {
	if t, ok := a.structType(list); ok {
		return t
	}
	var values, all *types.Type // of what is no literal, and of everything
	empty, fail := false, false
	for _, e := range list {
		switch {
		case isUntyped(e):
		case isEmptyArray(e):
			empty = true
		default:
			t := e.Type()
			if !isLiteral(e) {
				if values = super(values, t); values == nil {
					return nil
				}
			}
			if !fail {
				all = super(all, t)
				fail = all == nil
			}
		}
	}
	if all == nil && !fail {
		if empty {
			return untypedArray
		}
		return untypedNull
	}
	fits := func(t *types.Type) bool {
		for _, e := range list {
			if _, ok := a.convertible(e, t); !ok {
				return false
			}
		}
		return true
	}
	if values != nil && fits(values) {
		return values
	}
	if !fail && fits(all) {
		return all
	}
	var tried []*types.Type
	for _, e := range list {
		t := e.Type()
		if isUntyped(e) || isEmptyArray(e) || slices.ContainsFunc(tried, t.Equal) {
			continue
		}
		if fits(t) {
			return t
		}
		if tried = append(tried, t); len(tried) == 16 {
			break
		}
	}
	return nil
}

// structType returns the type that structs of list can have, nil if there is none, field
// by field. ok is false if not all are structs that have as many fields, or none is made
// by a constructor.
func (a *analyzer) structType(list []algebra.Expr) (t *types.Type, ok bool) {
	var structs []algebra.Expr
	made := false
	for _, e := range list {
		if isUntyped(e) {
			continue
		}
		u := e.Type()
		if u.Kind != types.Struct || len(structs) > 0 && len(u.Fields) != len(structs[0].Type().Fields) {
			return nil, false
		}
		_, isMade := e.(*algebra.MakeStruct)
		made = made || isMade
		structs = append(structs, e)
	}
	if !made {
		return nil, false
	}
	out := &types.Type{Kind: types.Struct, Fields: slices.Clone(structs[0].Type().Fields)}
	fields := make([]algebra.Expr, len(structs))
	for i := range out.Fields {
		for j, e := range structs {
			if s, ok := e.(*algebra.MakeStruct); ok {
				fields[j] = s.Fields[i]
			} else {
				fields[j] = typed(e.Type().Fields[i].Type)
			}
		}
		if isUntyped(fields[0]) && scalarLiterals(fields) {
			// Of literals the first decides, even if it is NULL.
			fields[0] = &algebra.Literal{T: types.Int64Type}
		}
		f := a.commonType(fields)
		if f == nil {
			return nil, true
		}
		switch f {
		case untypedNull:
			f = types.Int64Type
		case untypedArray:
			f = types.ArrayOf(types.Int64Type)
		}
		out.Fields[i].Type = f
	}
	return out, true
}

func scalarLiterals(list []algebra.Expr) bool {
	for _, e := range list {
		if _, ok := e.(*algebra.Literal); !ok {
			return false
		}
	}
	return true
}

// super returns the type to which values of both types are converted, or nil. A nil
// argument is no type yet.
func super(t, u *types.Type) *types.Type {
	switch {
	case t == nil || t == untypedNull:
		return u
	case u == untypedNull || t == u:
		return t
	case t.IsNumeric() && u.IsNumeric():
		if t.Kind == u.Kind {
			return t
		}
		return types.Float64Type
	case t.Kind != u.Kind:
		return nil
	case t.Kind == types.Struct:
		if len(t.Fields) != len(u.Fields) {
			return nil
		}
		out := &types.Type{Kind: types.Struct, Fields: make([]types.Field, len(t.Fields))}
		same := true
		for i, f := range t.Fields {
			g := super(f.Type, u.Fields[i].Type)
			if g == nil {
				return nil
			}
			same = same && g == f.Type
			out.Fields[i] = types.Field{Name: f.Name, Type: g}
		}
		if same {
			return t
		}
		return out
	case t.Kind == types.Array:
		if t == untypedArray {
			return u
		}
		if u == untypedArray || t.Equivalent(u) {
			return t
		}
		if e := super(t.Elem, u.Elem); e != nil {
			return types.ArrayOf(e)
		}
		return nil
	case t.Equal(u):
		return t
	}
	return nil
}
