package functions

import (
	"unicode/utf8"

	"github.com/trestledb/trestle/engine/query/types"
)

// A Coercion says where a value of one type may stand for one of another. Each
// allows what those before it do.
type Coercion uint8

const (
	// NoCast says that not even CAST converts it.
	NoCast Coercion = iota
	// ExplicitCast says that CAST does.
	ExplicitCast
	// LiteralCoercion says that a literal needs no CAST, either.
	LiteralCoercion
	// ParameterCoercion says that neither does a query parameter.
	ParameterCoercion
	// ImplicitCoercion says that no expression needs one.
	ImplicitCoercion
)

// coercions has the pairs of scalar types. Those of PROTO and ENUM hold for any
// message or enumeration.
var coercions = map[[2]types.Kind]Coercion{
	{types.Bool, types.Int64}:  ExplicitCast,
	{types.Bool, types.String}: ExplicitCast,

	{types.Int64, types.Bool}:    ExplicitCast,
	{types.Int64, types.Float32}: LiteralCoercion,
	{types.Int64, types.Float64}: ImplicitCoercion,
	{types.Int64, types.String}:  ExplicitCast,
	{types.Int64, types.Enum}:    ParameterCoercion,

	{types.Float32, types.Int64}:   ExplicitCast,
	{types.Float32, types.Float64}: ImplicitCoercion,
	{types.Float32, types.String}:  ExplicitCast,

	{types.Float64, types.Int64}:   ExplicitCast,
	{types.Float64, types.Float32}: LiteralCoercion,
	{types.Float64, types.String}:  ExplicitCast,

	{types.String, types.Bool}:    ExplicitCast,
	{types.String, types.Int64}:   ExplicitCast,
	{types.String, types.Float32}: ExplicitCast,
	{types.String, types.Float64}: ExplicitCast,
	// Bigtable's own: _key = 'a'. GoogleSQL wants b'a'.
	{types.String, types.Bytes}:     LiteralCoercion,
	{types.String, types.Date}:      ParameterCoercion,
	{types.String, types.Timestamp}: ParameterCoercion,
	{types.String, types.Enum}:      ParameterCoercion,
	{types.String, types.Proto}:     ParameterCoercion,

	{types.Bytes, types.String}: ExplicitCast,
	{types.Bytes, types.Proto}:  ParameterCoercion,

	{types.Date, types.Timestamp}: ExplicitCast,
	{types.Date, types.String}:    ExplicitCast,

	{types.Timestamp, types.Date}:   ExplicitCast,
	{types.Timestamp, types.String}: ExplicitCast,

	{types.Enum, types.String}: ExplicitCast,
	{types.Enum, types.Int64}:  ExplicitCast,

	{types.Proto, types.String}: ExplicitCast,
	{types.Proto, types.Bytes}:  ExplicitCast,
}

// CoercionOf returns how a value of type from becomes one of type to. Structs go
// field by field, whatever the fields' names, and arrays and maps element by element;
// an array or map of other elements is a literal at most.
func CoercionOf(from, to *types.Type) Coercion {
	if from.Equal(to) {
		return ImplicitCoercion
	}
	if from.Kind != to.Kind {
		return coercions[[2]types.Kind{from.Kind, to.Kind}]
	}
	switch from.Kind {
	case types.Array:
		if from.Elem.Equivalent(to.Elem) {
			return ImplicitCoercion
		}
		return min(CoercionOf(from.Elem, to.Elem), LiteralCoercion)
	case types.Map:
		return min(CoercionOf(from.Key, to.Key), CoercionOf(from.Elem, to.Elem), ExplicitCast)
	case types.Struct:
		if len(from.Fields) != len(to.Fields) {
			return NoCast
		}
		c := ImplicitCoercion
		for i, f := range from.Fields {
			c = min(c, CoercionOf(f.Type, to.Fields[i].Type))
		}
		return c
	case types.Proto, types.Enum:
		return NoCast
	}
	return ImplicitCoercion
}

// CanCast tells whether CAST converts from to to.
func CanCast(from, to *types.Type) bool { return CoercionOf(from, to) != NoCast }

// CanFormat tells whether CAST from one type to another takes FORMAT; zone whether it
// takes AT TIME ZONE, too.
func CanFormat(from, to *types.Type) (format, zone bool) {
	switch {
	case from.Kind == types.String:
		return to.Kind == types.Bytes || to.Kind == types.Date || to.Kind == types.Timestamp, to.Kind == types.Timestamp
	case to.Kind == types.String:
		return from.IsNumeric() || from.Kind == types.Bytes || from.Kind == types.Date || from.Kind == types.Timestamp, from.Kind == types.Timestamp
	}
	return false, false
}

// CastValue converts v from one type to another, which CanCast allows. Format and zone
// are those of CAST(… FORMAT … AT TIME ZONE …), nil if they were not written. The
// result of NULL, also of a NULL format or zone, is NULL. Of c it uses Now, Grow and
// State, in which it keeps the format. Without Now, dates are not read by a format: it
// gives what they leave out. A nil c is as good for one value. The result may share
// memory with v.
func CastValue(c *Call, from, to *types.Type, v types.Value, format, zone *types.Value) (types.Value, error) {
	if !v.Valid || format != nil && !format.Valid || zone != nil && !zone.Valid {
		return types.Null, nil
	}
	if format != nil {
		return castFormat(c, from, to, v, format.Str, zone)
	}
	if zone != nil {
		z, err := loadZone(zone.Str)
		if err != nil {
			return types.Null, err
		}
		return castScalar(c, from, to, v, z)
	}
	return castIn(c, from, to, v, nil, 0)
}

// maxCastDepth bounds how deep types nest: nothing that the analyzer lets through is as
// deep.
const maxCastDepth = 100

func castIn(c *Call, from, to *types.Type, v types.Value, z *timeZone, depth int) (types.Value, error) {
	if !v.Valid || from.Equivalent(to) {
		return v, nil
	}
	if depth > maxCastDepth {
		return types.Null, Errorf("Types nest too deep to cast from %s to %s", from, to)
	}
	if from.Kind == to.Kind {
		switch from.Kind {
		case types.Array, types.Struct, types.Map:
			return castList(c, from, to, v, z, depth)
		}
	}
	return castScalar(c, from, to, v, z)
}

func castList(c *Call, from, to *types.Type, v types.Value, z *timeZone, depth int) (types.Value, error) {
	if from.Kind == types.Struct && len(from.Fields) != len(to.Fields) {
		return types.Null, Errorf("Unsupported cast from %s to %s", from, to)
	}
	if err := grow(c, len(v.List)*valueSize); err != nil {
		return types.Null, err
	}
	list := make([]types.Value, len(v.List))
	for i, x := range v.List {
		var err error
		if list[i], err = castIn(c, elementType(from, i), elementType(to, i), x, z, depth+1); err != nil {
			if from.Kind == types.Array {
				err = Errorf("Error casting element at index %d in ARRAY: %w", i, err)
			}
			return types.Null, err
		}
	}
	if from.Kind == types.Map {
		return castMap(to, list)
	}
	return types.NewList(list), nil
}

// castScalar converts a value of one scalar type to another. Timestamps are read and
// written in zone z.
func castScalar(c *Call, from, to *types.Type, v types.Value, z *timeZone) (types.Value, error) {
	switch to.Kind {
	case types.Bool:
		switch from.Kind {
		case types.Int64:
			return types.NewBool(v.Int != 0), nil
		case types.String:
			return parseBool(v.Str)
		}
	case types.Int64:
		switch from.Kind {
		case types.Bool, types.Enum:
			return types.NewInt(v.Int), nil
		case types.Float32, types.Float64:
			return floatToInt(v.Float)
		case types.String:
			return parseInt64(v.Str)
		}
	case types.Float32:
		switch from.Kind {
		case types.Int64:
			return types.NewFloat(float64(float32(v.Int))), nil
		case types.Float64:
			return toFloat32Value(v.Float)
		case types.String:
			return parseFloat(v.Str, 32)
		}
	case types.Float64:
		switch from.Kind {
		case types.Int64:
			return types.NewFloat(float64(v.Int)), nil
		case types.Float32:
			return v, nil
		case types.String:
			return parseFloat(v.Str, 64)
		}
	case types.String:
		return castToString(c, from, v, z)
	case types.Bytes:
		switch from.Kind {
		case types.String, types.Proto:
			return v, nil
		}
	case types.Date:
		switch from.Kind {
		case types.String:
			d, err := parseDate(v.Str)
			return types.NewInt(d), err
		case types.Timestamp:
			return types.NewInt(floorDiv(z.local(v.Int), microsPerDay)), nil
		}
	case types.Timestamp:
		switch from.Kind {
		case types.String:
			t, err := parseTimestamp(v.Str, z)
			return types.NewInt(t), err
		case types.Date:
			return dateToTimestamp(v.Int, z)
		}
	case types.Enum:
		return castToEnum(from, to, v)
	case types.Proto:
		switch from.Kind {
		case types.Bytes:
			return v, nil
		case types.String:
			return parseMessage(c, to, v.Str)
		}
	}
	if from.Kind == to.Kind {
		return v, nil
	}
	return types.Null, Errorf("Unsupported cast from %s to %s", from, to)
}

func castToString(c *Call, from *types.Type, v types.Value, z *timeZone) (types.Value, error) {
	var buf [40]byte
	switch from.Kind {
	case types.Bool:
		if v.Bool() {
			return types.NewString("true"), nil
		}
		return types.NewString("false"), nil
	case types.Int64:
		return types.NewString(string(appendInt(buf[:0], v.Int))), nil
	case types.Float32:
		return types.NewString(string(appendFloat(buf[:0], unsigned(v.Float), 32))), nil
	case types.Float64:
		return types.NewString(string(appendFloat(buf[:0], unsigned(v.Float), 64))), nil
	case types.String:
		return v, nil
	case types.Bytes:
		if !utf8.ValidString(v.Str) {
			return types.Null, Errorf("Invalid cast of bytes to UTF8 string")
		}
		return v, nil
	case types.Date:
		return types.NewString(string(appendDate(buf[:0], v.Int))), nil
	case types.Timestamp:
		return types.NewString(string(appendTimestamp(buf[:0], v.Int, z))), nil
	case types.Enum:
		return types.NewString(enumName(from, v.Int)), nil
	case types.Proto:
		return formatMessage(c, from, v.Str)
	}
	return types.Null, Errorf("Unsupported cast from %s to STRING", from)
}

// CastKernel returns the form of CastValue for a batch, without format and zone, with the
// same contract as Signature.Kernel: args holds the one vector. It is nil for pairs of
// types that have none.
func CastKernel(from, to *types.Type) func(c *Call, args []*types.Vector, out *types.Vector, sel []int32, n int) error {
	switch [2]types.Kind{from.Kind, to.Kind} {
	case [2]types.Kind{types.Int64, types.Float64}:
		return intsToFloats
	case [2]types.Kind{types.Bytes, types.String}:
		return bytesToStrings
	case [2]types.Kind{types.String, types.Bytes}, [2]types.Kind{types.Bytes, types.Proto}, [2]types.Kind{types.Proto, types.Bytes}:
		return sameStrings
	}
	return nil
}

func intsToFloats(_ *Call, args []*types.Vector, out *types.Vector, sel []int32, n int) error {
	a := args[0]
	switch {
	case mergeNulls(out, sel, n, a) == allNulls:
	case sel == nil && !a.Const:
		for i, x := range a.Ints[:n] {
			out.Floats[i] = float64(x)
		}
	default:
		return each(sel, n, func(i int) error {
			out.Floats[i] = float64(a.Ints[a.At(i)])
			return nil
		})
	}
	return nil
}

func sameStrings(_ *Call, args []*types.Vector, out *types.Vector, sel []int32, n int) error {
	a := args[0]
	switch {
	case mergeNulls(out, sel, n, a) == allNulls:
	case sel == nil && !a.Const:
		copy(out.Strs[:n], a.Strs[:n])
	default:
		return each(sel, n, func(i int) error {
			out.Strs[i] = a.Strs[a.At(i)]
			return nil
		})
	}
	return nil
}

func bytesToStrings(c *Call, args []*types.Vector, out *types.Vector, sel []int32, n int) error {
	if err := sameStrings(c, args, out, sel, n); err != nil {
		return err
	}
	return each(sel, n, func(i int) error {
		if (out.Null == nil || !out.Null[i]) && !utf8.ValidString(out.Strs[i]) {
			return errRow
		}
		return nil
	})
}
