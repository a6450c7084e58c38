package functions

import (
	"math"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/trestledb/trestle/engine/query/types"
)

func protoBytes(number protowire.Number, s string) string {
	return string(protowire.AppendString(protowire.AppendTag(nil, number, protowire.BytesType), s))
}

func protoInt(number protowire.Number, u uint64) string {
	return string(protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), u))
}

func TestProtoFieldValue(t *testing.T) {
	message := &types.Type{Kind: types.Proto, Message: &types.Message{Name: "M"}}
	closed := &types.Type{Kind: types.Enum, Enumeration: &types.Enumeration{Name: "E", Values: []types.EnumValue{{Name: "A", Number: 0}, {Name: "B", Number: 2}}}}
	open := &types.Type{Kind: types.Enum, Enumeration: &types.Enumeration{Name: "E", Open: true}}
	one := func(wire types.ProtoWire, t *types.Type) *types.ProtoField {
		f := &types.ProtoField{Name: "f", Number: 7, Wire: wire, HasPresence: true, Type: t, Default: types.NewInt(-5)}
		switch t.Kind {
		case types.String, types.Bytes:
			f.Default = types.NewString("none")
		case types.Proto:
			f.Default = types.Null
		case types.Float32, types.Float64:
			f.Default = types.NewFloat(0.5)
		}
		return f
	}
	many := func(wire types.ProtoWire, t *types.Type) *types.ProtoField {
		return &types.ProtoField{Name: "f", Number: 7, Wire: wire, Repeated: true, Type: types.ArrayOf(t)}
	}
	fixed32 := func(u uint32) string {
		return string(protowire.AppendFixed32(protowire.AppendTag(nil, 7, protowire.Fixed32Type), u))
	}
	fixed64 := func(u uint64) string {
		return string(protowire.AppendFixed64(protowire.AppendTag(nil, 7, protowire.Fixed64Type), u))
	}
	group := func(number protowire.Number, s string) string {
		b := append(protowire.AppendTag(nil, number, protowire.StartGroupType), s...)
		return string(protowire.AppendTag(b, number, protowire.EndGroupType))
	}
	minus := int64(-3)
	for _, c := range []struct {
		name string
		m    string
		f    *types.ProtoField
		want string
	}{
		{"int64", protoInt(7, 42), one(types.WireVarint, types.Int64Type), "42"},
		{"negative", protoInt(7, uint64(minus)), one(types.WireVarint, types.Int64Type), "-3"},
		{"last wins", protoInt(7, 1) + protoInt(8, 3) + protoInt(7, 2), one(types.WireVarint, types.Int64Type), "2"},
		{"default", protoInt(8, 1), one(types.WireVarint, types.Int64Type), "-5"},
		{"empty", "", one(types.WireBytes, types.StringType), "none"},
		{"zigzag", protoInt(7, 5), one(types.WireZigZag, types.Int64Type), "-3"},
		{"uint32", protoInt(7, 1<<32-1), one(types.WireUnsigned32, types.Int64Type), "4294967295"},
		{"bool", protoInt(7, 300), one(types.WireVarint, types.BoolType), "true"},
		{"sfixed32", fixed32(math.MaxUint32), one(types.WireFixed32, types.Int64Type), "-1"},
		{"sfixed64", fixed64(math.MaxUint64), one(types.WireFixed64, types.Int64Type), "-1"},
		{"float", fixed32(math.Float32bits(1.5)), one(types.WireFloat, types.Float32Type), "1.5"},
		{"double", fixed64(math.Float64bits(-2.25)), one(types.WireDouble, types.Float64Type), "-2.25"},
		{"string", protoBytes(7, "héllo"), one(types.WireBytes, types.StringType), "héllo"},
		{"bad string", protoBytes(7, "\xff"), one(types.WireBytes, types.StringType), "!"},
		{"bytes", protoBytes(7, "\xff"), one(types.WireBytes, types.BytesType), `b"\xff"`},
		{"message", protoBytes(7, "ab"), one(types.WireBytes, message), "ab"},
		{"merged message", protoBytes(7, "ab") + protoInt(1, 1) + protoBytes(7, "cd") + protoBytes(7, "e"), one(types.WireBytes, message), "abcde"},
		{"no message", protoInt(1, 1), one(types.WireBytes, message), "NULL"},
		{"group", group(7, protoInt(1, 2)), one(types.WireGroup, message), protoInt(1, 2)},
		{"group in group", group(9, group(7, "")+protoInt(7, 1)), one(types.WireGroup, message), "NULL"},
		{"group not ended", group(7, "")[:1], one(types.WireGroup, message), "!"},
		{"group ended by another", string(protowire.AppendTag([]byte(group(7, "")[:1]), 6, protowire.EndGroupType)), one(types.WireGroup, message), "!"},
		{"group ended only", string(protowire.AppendTag(nil, 7, protowire.EndGroupType)), one(types.WireGroup, message), "!"},
		{"enum", protoInt(7, 2), one(types.WireVarint, closed), "2"},
		{"closed enum", protoInt(7, 7), one(types.WireVarint, closed), "-5"},
		{"open enum", protoInt(7, 7), one(types.WireVarint, open), "7"},
		{"other type", fixed32(7), one(types.WireVarint, types.Int64Type), "-5"},
		{"repeated", protoInt(7, 1) + protoInt(7, 2), many(types.WireVarint, types.Int64Type), "[1, 2]"},
		{"packed", protoBytes(7, "\x01\x02") + protoInt(7, 3), many(types.WireVarint, types.Int64Type), "[1, 2, 3]"},
		{"packed fixed", protoBytes(7, "\x01\x00\x00\x00\x02\x00\x00\x00"), many(types.WireFixed32, types.Int64Type), "[1, 2]"},
		{"packed, cut off", protoBytes(7, "\x01\x00\x00\x00\x02"), many(types.WireFixed32, types.Int64Type), "!"},
		{"packed closed enum", protoBytes(7, "\x02\x07\x00"), many(types.WireVarint, closed), "[2, 0]"},
		{"repeated none", "", many(types.WireVarint, types.Int64Type), "[]"},
		{"repeated string", protoBytes(7, "a") + protoBytes(7, ""), many(types.WireBytes, types.StringType), "[a, ]"},
		{"cut off", protoBytes(7, "abc")[:3], one(types.WireBytes, types.StringType), "!"},
		{"cut off later", protoInt(7, 1) + "\x3a\x05a", one(types.WireVarint, types.Int64Type), "!"},
		{"field 0", "\x00\x01", one(types.WireVarint, types.Int64Type), "!"},
		{"wire type 6", "\x3e\x01", one(types.WireVarint, types.Int64Type), "!"},
		{"long varint", "\x38\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", one(types.WireVarint, types.Int64Type), "!"},
	} {
		v, err := ProtoFieldValue(nil, c.m, c.f, false)
		got := showValue(c.f.Type, v)
		if err != nil {
			got = "!"
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
		if c.want == "!" {
			continue
		}
		v, err = ProtoFieldValue(nil, c.m, c.f, true)
		has := c.want != "NULL" && c.want != "[]" && c.want != "-5" && c.want != "none"
		if err != nil || v.Bool() != has {
			t.Errorf("%s: has_f is %t, %v", c.name, v.Bool(), err)
		}
	}
}

func FuzzProtoFieldValue(f *testing.F) {
	f.Add(protoInt(7, 1)+protoBytes(7, "abc"), uint8(1), false)
	f.Add("\x3b\x3c", uint8(8), true)
	f.Fuzz(func(t *testing.T, m string, wire uint8, repeated bool) {
		elem := &types.Type{Kind: types.Proto, Message: &types.Message{}}
		field := &types.ProtoField{Name: "f", Number: 7, Wire: types.ProtoWire(wire%9) + 1, Repeated: repeated, Type: elem}
		switch field.Wire {
		case types.WireBytes, types.WireGroup:
		case types.WireFloat, types.WireDouble:
			field.Type = types.Float64Type
		default:
			field.Type = types.Int64Type
		}
		if repeated {
			field.Type = types.ArrayOf(field.Type)
		}
		_, err := ProtoFieldValue(nil, m, field, false)
		// What protowire takes for a message, this does.
		rest := []byte(m)
		valid := true
		for len(rest) > 0 && valid {
			number, wire, n := protowire.ConsumeField(rest)
			if n < 0 || wire == protowire.EndGroupType {
				valid = false
				break
			}
			_ = number
			rest = rest[n:]
		}
		if err == nil && !valid {
			t.Errorf("%q is no message", m)
		}
	})
}
