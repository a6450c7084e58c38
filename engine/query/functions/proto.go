package functions

import (
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/trestledb/trestle/engine/query/types"
)

// maxProtoDepth is how deep groups may be nested, as protobuf's own parsers have it.
const maxProtoDepth = 100

// ProtoFieldValue returns a field of m, an encoded message: the field's default, NULL
// for a message, if m does not have it. If has is set, it returns whether m has it.
// Of a field that comes several times the last counts; messages are merged. Bytes
// that are no message are an error.
//
// Strings of the result share their memory with m.
func ProtoFieldValue(c *Call, m string, f *types.ProtoField, has bool) (types.Value, error) {
	elem := f.Type
	if f.Repeated && elem != nil && elem.Kind == types.Array {
		elem = elem.Elem
	}
	want := fieldWire(f.Wire)
	isMessage := elem != nil && elem.Kind == types.Proto
	var found types.Value
	var parts, list []types.Value
	for rest := m; rest != ""; {
		number, wire, n := protoTag(rest)
		if n <= 0 {
			return types.Null, badProto(f)
		}
		rest = rest[n:]
		size := protoSize(number, wire, rest, 0)
		if size < 0 {
			return types.Null, badProto(f)
		}
		value := rest[:size]
		rest = rest[size:]
		if int32(number) != f.Number {
			continue
		}
		if f.Repeated && wire == protowire.BytesType && want != protowire.BytesType && want != protowire.StartGroupType {
			_, n := protoVarint(value)
			for packed := value[n:]; packed != ""; {
				size := protoSize(number, want, packed, 0)
				if size <= 0 {
					return types.Null, badProto(f)
				}
				v, ok, err := protoValue(f, elem, want, packed[:size])
				if err != nil {
					return types.Null, err
				}
				packed = packed[size:]
				if !ok {
					continue
				}
				if list, err = appendProto(c, list, v); err != nil {
					return types.Null, err
				}
			}
			continue
		}
		if wire != want {
			continue // an unknown field: the schema has another type
		}
		v, ok, err := protoValue(f, elem, wire, value)
		switch {
		case err != nil:
			return types.Null, err
		case !ok:
		case f.Repeated:
			if list, err = appendProto(c, list, v); err != nil {
				return types.Null, err
			}
		case isMessage && found.Valid:
			if parts == nil {
				parts = append(parts, found)
			}
			parts = append(parts, v)
		default:
			found = v
		}
	}
	switch {
	case has:
		return types.NewBool(found.Valid || len(list) > 0), nil
	case f.Repeated:
		if list == nil {
			list = []types.Value{}
		}
		return types.NewList(list), nil
	case parts != nil:
		// One message is written after the other to merge them.
		return joinParts(c, parts)
	case found.Valid:
		return found, nil
	}
	return f.Default, nil
}

func badProto(f *types.ProtoField) error {
	return Errorf("Corrupted protocol buffer: failed to read field %s", f.Name)
}

func appendProto(c *Call, list []types.Value, v types.Value) ([]types.Value, error) {
	if len(list) == cap(list) && c != nil {
		if err := growList(c, 2*len(list)); err != nil {
			return nil, err
		}
	}
	return append(list, v), nil
}

func joinParts(c *Call, parts []types.Value) (types.Value, error) {
	size := 0
	for _, p := range parts {
		size += len(p.Str)
	}
	if err := grow(c, size); err != nil {
		return types.Null, err
	}
	var b strings.Builder
	b.Grow(size)
	for _, p := range parts {
		b.WriteString(p.Str)
	}
	return types.NewString(b.String()), nil
}

// fieldWire returns the wire type of a field's values.
func fieldWire(w types.ProtoWire) protowire.Type {
	switch w {
	case types.WireFixed32, types.WireUnsignedFixed32, types.WireFloat:
		return protowire.Fixed32Type
	case types.WireFixed64, types.WireDouble:
		return protowire.Fixed64Type
	case types.WireBytes:
		return protowire.BytesType
	case types.WireGroup:
		return protowire.StartGroupType
	}
	return protowire.VarintType
}

// protoValue decodes one value, which has the right size. It returns false for a number
// that a closed enum does not have: such a field counts as unknown.
func protoValue(f *types.ProtoField, elem *types.Type, wire protowire.Type, s string) (v types.Value, ok bool, err error) {
	switch wire {
	case protowire.VarintType:
		u, _ := protoVarint(s)
		switch {
		case f.Wire == types.WireZigZag:
			return types.NewInt(protowire.DecodeZigZag(u)), true, nil
		case f.Wire == types.WireUnsigned32:
			return types.NewInt(int64(uint32(u))), true, nil
		case elem != nil && elem.Kind == types.Bool:
			return types.NewBool(u != 0), true, nil
		case elem != nil && elem.Kind == types.Enum:
			n := int32(u)
			known := elem.Enumeration.Open || slices.ContainsFunc(elem.Enumeration.Values, func(e types.EnumValue) bool { return e.Number == n })
			return types.NewInt(int64(n)), known, nil
		}
		return types.NewInt(int64(u)), true, nil
	case protowire.Fixed32Type:
		u := uint32(s[0]) | uint32(s[1])<<8 | uint32(s[2])<<16 | uint32(s[3])<<24
		if f.Wire == types.WireFloat {
			return types.NewFloat(float64(math.Float32frombits(u))), true, nil
		}
		if f.Wire == types.WireUnsignedFixed32 {
			return types.NewInt(int64(u)), true, nil
		}
		return types.NewInt(int64(int32(u))), true, nil
	case protowire.Fixed64Type:
		u := uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
			uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
		if f.Wire == types.WireDouble {
			return types.NewFloat(math.Float64frombits(u)), true, nil
		}
		return types.NewInt(int64(u)), true, nil
	case protowire.StartGroupType:
		// Without the tag that ends the group.
		return types.NewString(s[:len(s)-protowire.SizeTag(protowire.Number(f.Number))]), true, nil
	}
	_, n := protoVarint(s)
	s = s[n:]
	if elem != nil && elem.Kind == types.String && !utf8.ValidString(s) {
		return types.Null, false, Errorf("Corrupted protocol buffer: field %s is not valid UTF-8", f.Name)
	}
	return types.NewString(s), true, nil
}

// protoVarint reads a varint, and returns its length: not positive if there is none.
func protoVarint(s string) (u uint64, n int) {
	for i := 0; i < len(s) && i < 10; i++ {
		b := s[i]
		if i == 9 && b > 1 {
			return 0, -1
		}
		u |= uint64(b&0x7f) << (7 * i)
		if b < 0x80 {
			return u, i + 1
		}
	}
	return 0, -1
}

func protoTag(s string) (protowire.Number, protowire.Type, int) {
	u, n := protoVarint(s)
	if n <= 0 || u>>3 == 0 || u>>3 > uint64(protowire.MaxValidNumber) {
		return 0, 0, -1
	}
	return protowire.Number(u >> 3), protowire.Type(u & 7), n
}

// protoSize returns the length of the value at the start of s: with its prefix for
// bytes, with the tag that ends it for a group. It is negative if there is none.
func protoSize(number protowire.Number, wire protowire.Type, s string, depth int) int {
	switch wire {
	case protowire.VarintType:
		_, n := protoVarint(s)
		return n
	case protowire.Fixed32Type:
		if len(s) >= 4 {
			return 4
		}
	case protowire.Fixed64Type:
		if len(s) >= 8 {
			return 8
		}
	case protowire.BytesType:
		u, n := protoVarint(s)
		if n > 0 && u <= uint64(len(s)-n) {
			return n + int(u)
		}
	case protowire.StartGroupType:
		if depth >= maxProtoDepth {
			return -1
		}
		for at := 0; ; {
			inner, wire, n := protoTag(s[at:])
			if n <= 0 {
				return -1
			}
			at += n
			if wire == protowire.EndGroupType {
				if inner != number || n != protowire.SizeTag(number) {
					return -1
				}
				return at
			}
			size := protoSize(inner, wire, s[at:], depth+1)
			if size < 0 {
				return -1
			}
			at += size
		}
	}
	return -1
}
