package types

import (
	"cmp"
	"math"
	"strings"
)

// A Value is one value of a type that is known elsewhere. The zero Value is
// NULL. A Value may share its string and its list with a Vector: it lives as
// long as that, and Clone makes one that lives on.
type Value struct {
	// Valid is false for NULL. All else is zero then.
	Valid bool
	// Int is the value of a BOOL (0 or 1), an INT64, a DATE, a TIMESTAMP or an ENUM.
	Int int64
	// Float is the value of a FLOAT64 or a FLOAT32, which is rounded to 32 bits.
	Float float64
	// Str is the value of a STRING (valid UTF-8), BYTES, or an encoded PROTO.
	Str string
	// List has the elements of an ARRAY, the fields of a STRUCT, or the entries of a
	// MAP: key, value, key, value, sorted by key without duplicates.
	List []Value
}

// Null is NULL of any type.
var Null Value

// NewBool returns a BOOL.
func NewBool(b bool) Value {
	v := Value{Valid: true}
	if b {
		v.Int = 1
	}
	return v
}

// NewInt returns an INT64, DATE, TIMESTAMP or ENUM.
func NewInt(i int64) Value { return Value{Valid: true, Int: i} }

// NewFloat returns a FLOAT64, or a FLOAT32 if f has been rounded to one.
func NewFloat(f float64) Value { return Value{Valid: true, Float: f} }

// NewString returns a STRING, BYTES or PROTO.
func NewString(s string) Value { return Value{Valid: true, Str: s} }

// NewList returns an ARRAY, STRUCT or MAP, which owns list. A MAP's list is
// sorted by key already: see SortMap.
func NewList(list []Value) Value { return Value{Valid: true, List: list} }

// Bool returns whether v is TRUE. NULL is not.
func (v Value) Bool() bool { return v.Int != 0 }

// Clone returns a Value that shares nothing with v.
func (v Value) Clone() Value {
	v.Str = strings.Clone(v.Str)
	if v.List != nil {
		list := make([]Value, len(v.List))
		for i, e := range v.List {
			list[i] = e.Clone()
		}
		v.List = list
	}
	return v
}

// Compare orders two values of type t as ORDER BY does: NULL first, NaN before
// all other numbers, -0 as 0. Arrays, structs and maps are compared element by
// element, for what needs some order of them.
func Compare(t *Type, a, b Value) int {
	if !a.Valid || !b.Valid {
		switch {
		case a.Valid:
			return 1
		case b.Valid:
			return -1
		}
		return 0
	}
	switch t.Kind {
	case Float32, Float64:
		return cmp.Compare(a.Float, b.Float)
	case String, Bytes, Proto:
		return strings.Compare(a.Str, b.Str)
	case Array, Struct, Map:
		for i := range min(len(a.List), len(b.List)) {
			if c := Compare(t.at(i), a.List[i], b.List[i]); c != 0 {
				return c
			}
		}
		return cmp.Compare(len(a.List), len(b.List))
	}
	return cmp.Compare(a.Int, b.Int)
}

// at returns the type of the i'th element of a list of type t.
func (t *Type) at(i int) *Type {
	switch t.Kind {
	case Struct:
		return t.Fields[i].Type
	case Map:
		if i%2 == 0 {
			return t.Key
		}
	}
	return t.Elem
}

// SameGroup tells whether GROUP BY and DISTINCT take a and b for one value: NULL
// is NULL, NaN is NaN, -0 is 0.
func SameGroup(t *Type, a, b Value) bool { return Compare(t, a, b) == 0 }

// AppendKey appends an encoding of v to dst: equal for two values exactly if
// they are the same group, and none a prefix of another. The bytes sort as
// Compare does.
func AppendKey(dst []byte, t *Type, v Value) []byte {
	if !v.Valid {
		return append(dst, 0)
	}
	dst = append(dst, 1)
	switch t.Kind {
	case Bool:
		return append(dst, byte(v.Int))
	case Float32, Float64:
		u := math.Float64bits(v.Float)
		switch {
		case v.Float != v.Float:
			u = 0
		case v.Float == 0:
			u = 1 << 63
		case u>>63 == 0:
			u |= 1 << 63
		default:
			u = ^u
		}
		return appendUint64(dst, u)
	case String, Bytes, Proto:
		for s := v.Str; ; {
			i := strings.IndexByte(s, 0)
			if i < 0 {
				return append(append(dst, s...), 0, 0)
			}
			dst = append(append(dst, s[:i]...), 0, 1)
			s = s[i+1:]
		}
	case Array, Struct, Map:
		for i, e := range v.List {
			dst = AppendKey(append(dst, 1), t.at(i), e)
		}
		return append(dst, 0)
	}
	return appendUint64(dst, uint64(v.Int)^1<<63)
}

func appendUint64(dst []byte, u uint64) []byte {
	return append(dst, byte(u>>56), byte(u>>48), byte(u>>40), byte(u>>32), byte(u>>24), byte(u>>16), byte(u>>8), byte(u))
}
