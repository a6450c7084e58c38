package exec

import (
	"math"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/types"
)

func protoMessage() []byte {
	var b []byte
	b = protowire.AppendTag(b, 1, protowire.VarintType)
	b = protowire.AppendVarint(b, uint64(math.MaxUint64)) // -1
	b = protowire.AppendTag(b, 2, protowire.BytesType)
	b = protowire.AppendString(b, "first")
	b = protowire.AppendTag(b, 2, protowire.BytesType)
	b = protowire.AppendString(b, "last")
	b = protowire.AppendTag(b, 3, protowire.BytesType) // packed
	b = protowire.AppendBytes(b, []byte{2, 1, 4})
	b = protowire.AppendTag(b, 3, protowire.VarintType)
	b = protowire.AppendVarint(b, 5)
	b = protowire.AppendTag(b, 4, protowire.Fixed64Type)
	b = protowire.AppendFixed64(b, math.Float64bits(2.5))
	b = protowire.AppendTag(b, 5, protowire.BytesType)
	b = protowire.AppendBytes(b, []byte{8, 1})
	b = protowire.AppendTag(b, 5, protowire.BytesType)
	b = protowire.AppendBytes(b, []byte{16, 2})
	b = protowire.AppendTag(b, 6, protowire.Fixed32Type)
	b = protowire.AppendFixed32(b, math.Float32bits(0.5))
	return b
}

func TestProtoField(t *testing.T) {
	message := types.NewString(string(protoMessage()))
	inner := &types.Type{Kind: types.Proto, Message: &types.Message{}}
	list := func(v ...int64) types.Value {
		out := types.NewList([]types.Value{})
		for _, x := range v {
			out.List = append(out.List, types.NewInt(x))
		}
		return out
	}
	for _, f := range []struct {
		field types.ProtoField
		want  types.Value
		has   bool
	}{
		{types.ProtoField{Number: 1, Wire: types.WireVarint, Type: types.Int64Type}, types.NewInt(-1), true},
		{types.ProtoField{Number: 1, Wire: types.WireUnsigned32, Type: types.Int64Type}, types.NewInt(math.MaxUint32), true},
		{types.ProtoField{Number: 1, Wire: types.WireVarint, Type: types.BoolType}, types.NewBool(true), true},
		{types.ProtoField{Number: 2, Wire: types.WireBytes, Type: types.StringType}, types.NewString("last"), true},
		{types.ProtoField{Number: 3, Wire: types.WireZigZag, Repeated: true, Type: types.ArrayOf(types.Int64Type)}, list(1, -1, 2, -3), true},
		{types.ProtoField{Number: 4, Wire: types.WireDouble, Type: types.Float64Type}, types.NewFloat(2.5), true},
		{types.ProtoField{Number: 5, Wire: types.WireBytes, Type: inner}, types.NewString("\x08\x01\x10\x02"), true},
		{types.ProtoField{Number: 6, Wire: types.WireFloat, Type: types.Float32Type}, types.NewFloat(0.5), true},
		// Another type than the schema's is no value.
		{types.ProtoField{Number: 4, Wire: types.WireVarint, Type: types.Int64Type, Default: types.NewInt(7)}, types.NewInt(7), false},
		{types.ProtoField{Number: 9, Wire: types.WireBytes, Type: inner}, types.Null, false},
		{types.ProtoField{Number: 9, Wire: types.WireVarint, Repeated: true, Type: types.ArrayOf(types.Int64Type)}, list(), false},
	} {
		p := &protoField{field: &f.field}
		got, err := p.get(message)
		if err != nil || got.Valid != f.want.Valid || types.Compare(f.field.Type, got, f.want) != 0 {
			t.Errorf("%+v: %v, %v, want %v", f.field, got, err, f.want)
		}
		p.has = true
		if got, err := p.get(message); err != nil || got.Bool() != f.has {
			t.Errorf("%+v: is there: %v, %v", f.field, got, err)
		}
		if got, err := p.get(types.Null); err != nil || got.Valid {
			t.Errorf("%+v of NULL: %v, %v", f.field, got, err)
		}
	}
	p := &protoField{field: &types.ProtoField{Number: 1, Wire: types.WireVarint, Type: types.Int64Type}}
	if _, err := p.get(types.NewString("\x08")); fault.KindOf(err) != fault.OutOfRange {
		t.Errorf("a message that is cut off: %v", err)
	}
}

func FuzzProtoField(f *testing.F) {
	f.Add(protoMessage(), uint8(3), uint8(types.WireZigZag), true)
	f.Add([]byte{0x0b, 0x0c}, uint8(1), uint8(types.WireGroup), false)
	f.Fuzz(func(t *testing.T, in []byte, number, wire uint8, repeated bool) {
		field := &types.ProtoField{Number: int32(number), Wire: types.ProtoWire(wire), Repeated: repeated, Type: types.Int64Type}
		if repeated {
			field.Type = types.ArrayOf(types.Int64Type)
		}
		p := &protoField{field: field}
		v, err := p.get(types.NewString(string(in)))
		if err == nil && len(v.List) > len(in) {
			t.Fatalf("%d elements of %d bytes", len(v.List), len(in))
		}
	})
}
