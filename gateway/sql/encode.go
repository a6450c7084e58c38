package sql

import (
	"encoding/binary"
	"math"
	"math/bits"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/trestledb/trestle/engine/query/types"
)

// The tags of what a batch is made of: ProtoRows.values, and the members of
// Value. Each is one byte.
const (
	tagValue     = 2<<3 | byte(protowire.BytesType)
	tagBytes     = 2<<3 | byte(protowire.BytesType)
	tagString    = 3<<3 | byte(protowire.BytesType)
	tagArray     = 4<<3 | byte(protowire.BytesType)
	tagInt       = 6<<3 | byte(protowire.VarintType)
	tagBool      = 10<<3 | byte(protowire.VarintType)
	tagFloat     = 11<<3 | byte(protowire.Fixed64Type)
	tagTimestamp = 12<<3 | byte(protowire.BytesType)
	tagDate      = 13<<3 | byte(protowire.BytesType)
	tagElement   = 1<<3 | byte(protowire.BytesType) // ArrayValue.values
	tagFirst     = 1<<3 | byte(protowire.VarintType)
	tagSecond    = 2<<3 | byte(protowire.VarintType)
	tagThird     = 3<<3 | byte(protowire.VarintType)
)

// appendRow appends row i of a batch: a value of ProtoRows for each column.
func appendRow(dst []byte, cols []*types.Vector, i int) []byte {
	for _, c := range cols {
		at := i
		if c.Const {
			at = 0
		}
		if c.Null != nil && c.Null[at] {
			dst = append(dst, tagValue, 0)
			continue
		}
		switch c.Type.Kind {
		case types.Bytes, types.Proto:
			dst = appendTextValue(dst, tagBytes, c.Strs[at])
		case types.String:
			dst = appendTextValue(dst, tagString, c.Strs[at])
		case types.Int64, types.Enum:
			u := uint64(c.Ints[at])
			dst = protowire.AppendVarint(append(dst, tagValue, byte(1+varintLen(u)), tagInt), u)
		case types.Float64, types.Float32:
			dst = binary.LittleEndian.AppendUint64(append(dst, tagValue, 9, tagFloat), math.Float64bits(c.Floats[at]))
		case types.Bool:
			dst = append(dst, tagValue, 2, tagBool, byte(c.Ints[at]))
		default:
			dst = appendValue(append(dst, tagValue), c.Type, c.Value(at))
		}
	}
	return dst
}

func varintLen(u uint64) int { return (bits.Len64(u|1) + 6) / 7 }

// appendTextValue appends a value of ProtoRows that is text. Nearly all are short enough
// for lengths of one or two bytes.
func appendTextValue(dst []byte, tag byte, s string) []byte {
	n := len(s)
	switch {
	case n+2 < 1<<7:
		dst = append(dst, tagValue, byte(n+2), tag, byte(n))
	case n >= 1<<7 && n+3 < 1<<14:
		dst = append(dst, tagValue, byte(n+3)|0x80, byte((n+3)>>7), tag, byte(n)|0x80, byte(n>>7))
	default:
		return appendText(append(dst, tagValue), tag, s)
	}
	return append(dst, s...)
}

// appendText appends the length of a Value of text, and the Value.
func appendText(dst []byte, tag byte, s string) []byte {
	n := uint64(len(s))
	dst = protowire.AppendVarint(dst, 1+uint64(varintLen(n))+n)
	dst = protowire.AppendVarint(append(dst, tag), n)
	return append(dst, s...)
}

// appendValue appends the length of a Value, and the Value: a member of its
// oneof is there even if it is zero, and none is NULL.
func appendValue(dst []byte, t *types.Type, v types.Value) []byte {
	if !v.Valid {
		return append(dst, 0)
	}
	switch t.Kind {
	case types.Bytes, types.Proto:
		return appendText(dst, tagBytes, v.Str)
	case types.String:
		return appendText(dst, tagString, v.Str)
	case types.Float64, types.Float32:
		return binary.LittleEndian.AppendUint64(append(dst, 9, tagFloat), math.Float64bits(v.Float))
	case types.Bool:
		return append(dst, 2, tagBool, byte(v.Int))
	case types.Timestamp:
		var b [24]byte
		m := appendTimestamp(b[:0], v.Int)
		return append(append(dst, byte(2+len(m)), tagTimestamp, byte(len(m))), m...)
	case types.Date:
		var b [12]byte
		m := appendDate(b[:0], v.Int)
		return append(append(dst, byte(2+len(m)), tagDate, byte(len(m))), m...)
	case types.Array, types.Struct, types.Map:
		n := uint64(listLen(t, v.List))
		dst = protowire.AppendVarint(dst, 1+uint64(varintLen(n))+n)
		dst = protowire.AppendVarint(append(dst, tagArray), n)
		return appendList(dst, t, v.List)
	}
	u := uint64(v.Int)
	return protowire.AppendVarint(append(dst, byte(1+varintLen(u)), tagInt), u)
}

// appendList appends the elements of an ArrayValue. A map is an array of arrays
// of a key and a value.
func appendList(dst []byte, t *types.Type, list []types.Value) []byte {
	if t.Kind == types.Map {
		for i := 0; i+1 < len(list); i += 2 {
			n := uint64(elementLen(t.Key, list[i]) + elementLen(t.Elem, list[i+1]))
			dst = protowire.AppendVarint(append(dst, tagElement), 1+uint64(varintLen(n))+n)
			dst = protowire.AppendVarint(append(dst, tagArray), n)
			dst = appendValue(append(dst, tagElement), t.Key, list[i])
			dst = appendValue(append(dst, tagElement), t.Elem, list[i+1])
		}
		return dst
	}
	for i := range list {
		dst = appendValue(append(dst, tagElement), fieldType(t, i), list[i])
	}
	return dst
}

func fieldType(t *types.Type, i int) *types.Type {
	if t.Kind == types.Struct {
		return t.Fields[i].Type
	}
	return t.Elem
}

// listLen returns how many bytes appendList appends.
func listLen(t *types.Type, list []types.Value) (n int) {
	if t.Kind == types.Map {
		for i := 0; i+1 < len(list); i += 2 {
			m := elementLen(t.Key, list[i]) + elementLen(t.Elem, list[i+1])
			m += 1 + varintLen(uint64(m))
			n += 1 + varintLen(uint64(m)) + m
		}
		return n
	}
	for i := range list {
		n += elementLen(fieldType(t, i), list[i])
	}
	return n
}

// elementLen returns the length of a Value with its tag and length.
func elementLen(t *types.Type, v types.Value) int {
	n := valueLen(t, v)
	return 1 + varintLen(uint64(n)) + n
}

// valueLen returns the length of a Value.
func valueLen(t *types.Type, v types.Value) int {
	if !v.Valid {
		return 0
	}
	n := 0
	switch t.Kind {
	case types.Bytes, types.Proto, types.String:
		n = len(v.Str)
	case types.Float64, types.Float32:
		return 9
	case types.Bool:
		return 2
	case types.Timestamp:
		var b [24]byte
		n = len(appendTimestamp(b[:0], v.Int))
	case types.Date:
		var b [12]byte
		n = len(appendDate(b[:0], v.Int))
	case types.Array, types.Struct, types.Map:
		n = listLen(t, v.List)
	default:
		return 1 + varintLen(uint64(v.Int))
	}
	return 1 + varintLen(uint64(n)) + n
}

// appendTimestamp appends a google.protobuf.Timestamp.
func appendTimestamp(dst []byte, micros int64) []byte {
	seconds, rest := micros/1_000_000, micros%1_000_000
	if rest < 0 {
		seconds, rest = seconds-1, rest+1_000_000
	}
	if seconds != 0 {
		dst = protowire.AppendVarint(append(dst, tagFirst), uint64(seconds))
	}
	if rest != 0 {
		dst = protowire.AppendVarint(append(dst, tagSecond), uint64(rest)*1000)
	}
	return dst
}

// appendDate appends a google.type.Date. Days count from 1970-01-01.
func appendDate(dst []byte, days int64) []byte {
	y, m, d := civil(days)
	dst = protowire.AppendVarint(append(dst, tagFirst), uint64(y))
	return append(dst, tagSecond, byte(m), tagThird, byte(d))
}

// civil returns the day of the Gregorian calendar that is days after
// 1970-01-01. Years begin in March here, so that a leap day is the last.
func civil(days int64) (year, month, day int64) {
	z := days + 719468
	era := z / 146097
	if z < 0 {
		era = (z - 146096) / 146097
	}
	doe := z - era*146097
	yoe := (doe - doe/1460 + doe/36524 - doe/146096) / 365
	doy := doe - (365*yoe + yoe/4 - yoe/100)
	mp := (5*doy + 2) / 153
	day = doy - (153*mp+2)/5 + 1
	month = mp + 3
	if mp >= 10 {
		month = mp - 9
	}
	year = yoe + era*400
	if month <= 2 {
		year++
	}
	return year, month, day
}
