package algebra

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/trestledb/trestle/engine/query/types"
)

var (
	textField  = KeyField{Name: "s", Type: types.StringType, Encoding: UTF8}
	bytesField = KeyField{Name: "b", Type: types.BytesType, Encoding: RawBytes}
	intField   = KeyField{Name: "n", Type: types.Int64Type, Encoding: OrderedInt}
	fixedField = KeyField{Name: "x", Type: types.Int64Type, Encoding: BigEndian}
	timeField  = KeyField{Name: "t", Type: types.TimestampType, Encoding: OrderedInt}
)

func fieldsText(k *KeySchema, v []types.Value) string {
	s := ""
	for i, f := range k.Fields {
		if f.Type.Kind == types.Int64 || f.Type.Kind == types.Timestamp {
			s += fmt.Sprintf("%d;", v[i].Int)
		} else {
			s += fmt.Sprintf("%q;", v[i].Str)
		}
	}
	return s
}

// TestOrderedCode has the examples of google.bigtable.admin.v2.Type.Struct.Encoding.
func TestOrderedCode(t *testing.T) {
	for _, c := range []struct {
		fields []string
		want   string
	}{
		{[]string{""}, "\x00\x00"},
		{[]string{"", ""}, "\x00\x00"},
		{[]string{"", "B"}, "\x00\x00\x00\x01B"},
		{[]string{"A", ""}, "A"},
		{[]string{"", "B", ""}, "\x00\x00\x00\x01B"},
		{[]string{"A", "", "C"}, "A\x00\x01\x00\x00\x00\x01C"},
		{[]string{"A\x00", "\x01"}, "A\x00\xff\x00\x01\x01"},
	} {
		k := &KeySchema{Encoding: OrderedCode}
		var v []types.Value
		for _, f := range c.fields {
			k.Fields = append(k.Fields, bytesField)
			v = append(v, types.NewString(f))
		}
		got, ok := k.Encode(nil, v)
		if !ok || string(got) != c.want {
			t.Errorf("%q: got %q, want %q", c.fields, got, c.want)
		}
		back := make([]types.Value, len(v))
		if _, err := k.Decode(back, got, nil); err != nil || fieldsText(k, back) != fieldsText(k, v) {
			t.Errorf("%q: decoded %s, %v", c.fields, fieldsText(k, back), err)
		}
	}
}

func TestOrderedInt(t *testing.T) {
	list := []int64{math.MinInt64, math.MinInt64 + 1, math.MaxInt64, math.MaxInt64 - 1, 0, -1, 63, 64, -64, -65}
	for b := range 63 {
		list = append(list, 1<<b, 1<<b-1, -1<<b, -1<<b-1)
	}
	r := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		list = append(list, int64(r.Uint64())>>r.IntN(64))
	}
	slices.Sort(list)
	var last []byte
	for i, n := range list {
		b := appendOrderedInt(nil, n)
		if got, k := decodeOrderedInt(b); got != n || k != len(b) {
			t.Errorf("%d is %x, which is read as %d of %d bytes", n, b, got, k)
		}
		if i > 0 && list[i-1] < n && bytes.Compare(last, b) >= 0 {
			t.Errorf("%d sorts before %d: %x, %x", n, list[i-1], b, last)
		}
		last = b
	}
	for n, want := range map[int64]string{0: "80", 1: "81", -1: "7f", 63: "bf", 64: "c040", -64: "40", -65: "3fbf", 8191: "dfff", 8192: "e02000",
		math.MaxInt64: "ffc07fffffffffffffff", math.MinInt64: "003f8000000000000000"} {
		if got := fmt.Sprintf("%x", appendOrderedInt(nil, n)); got != want {
			t.Errorf("%d is %s, want %s", n, got, want)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	ordered := func(f ...KeyField) *KeySchema { return &KeySchema{Encoding: OrderedCode, Fields: f} }
	delimited := func(f ...KeyField) *KeySchema { return &KeySchema{Encoding: Delimited, Delimiter: "#", Fields: f} }
	for _, c := range []struct {
		k   *KeySchema
		key string
	}{
		{ordered(bytesField), "a\x00\x01b"},
		{ordered(bytesField), "a\x00"},
		{ordered(bytesField), "a\x00\x02"},
		{ordered(bytesField, bytesField), "\x00\x01b"},
		{ordered(bytesField, bytesField), "a\x00\x01"},
		{ordered(bytesField, bytesField), "a\x00\x01\x00\x00"},
		{ordered(bytesField, bytesField), "\x00\x00b"},
		{ordered(textField), "\xff"},
		{ordered(intField), "a\x01"},
		{ordered(intField, bytesField), "\x00\x00"},
		{ordered(timeField), "\xff\xc0\x7f\xff\xff\xff\xff\xff\xff\xff"},
		{delimited(textField, textField), "a"},
		{delimited(textField, textField), "a#b#c"},
		{&KeySchema{Fields: []KeyField{fixedField}}, "1234567"},
		{&KeySchema{Fields: []KeyField{{Name: "h", Type: types.BytesType, Encoding: HexBytes}}}, "0g"},
	} {
		dst := make([]types.Value, len(c.k.Fields))
		if _, err := c.k.Decode(dst, []byte(c.key), nil); err == nil {
			t.Errorf("%q is read as %s", c.key, fieldsText(c.k, dst))
		}
	}
}

// randomFields returns values for k.
func randomFields(r *rand.Rand, k *KeySchema) []types.Value {
	var out []types.Value
	for _, f := range k.Fields {
		switch f.Encoding {
		case OrderedInt, BigEndian:
			n := int64(r.Uint64()) >> (12 + r.IntN(52))
			out = append(out, types.NewInt(n))
		default:
			b := make([]byte, r.IntN(3))
			for i := range b {
				b[i] = "\x00\x01ab\x7f"[r.IntN(5)]
			}
			out = append(out, types.NewString(string(b)))
		}
	}
	return out
}

// TestKeysRoundTrip encodes and decodes random fields, and compares the order of keys
// with that of fields.
func TestKeysRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	k := &KeySchema{Encoding: OrderedCode, Fields: []KeyField{textField, intField, bytesField, timeField, bytesField}}
	type pair struct {
		fields []types.Value
		key    []byte
	}
	var list []pair
	for range 2000 {
		v := randomFields(r, k)
		key, ok := k.Encode(nil, v)
		back := make([]types.Value, len(v))
		if _, err := k.Decode(back, key, nil); !ok || err != nil || fieldsText(k, back) != fieldsText(k, v) {
			t.Fatalf("%s is %q, which is read as %s, %v", fieldsText(k, v), key, fieldsText(k, back), err)
		}
		list = append(list, pair{v, key})
	}
	for i := range list[1:] {
		a, b := list[i], list[i+1]
		want := 0
		for f := range k.Fields {
			if want == 0 {
				want = types.Compare(k.Fields[f].Type, a.fields[f], b.fields[f])
			}
		}
		if got := bytes.Compare(a.key, b.key); got != want {
			t.Fatalf("%s and %s compare %d, their keys %q and %q compare %d", fieldsText(k, a.fields), fieldsText(k, b.fields), want, a.key, b.key, got)
		}
	}
}

func FuzzDecodeKey(f *testing.F) {
	for _, s := range []string{"", "a", "\x00\x00", "a\x00\x01\x80\x00\x01b", "\x00\xff\x00\x01\x00\x00\x00\x01c", "a#b#c", "12345678"} {
		f.Add([]byte(s))
	}
	schemas := []*KeySchema{
		{Encoding: OrderedCode, Fields: []KeyField{textField, intField, bytesField}},
		{Encoding: OrderedCode, Fields: []KeyField{bytesField, timeField}},
		{Encoding: Delimited, Delimiter: "#", Fields: []KeyField{textField, bytesField}},
		{Fields: []KeyField{intField}},
		{Fields: []KeyField{fixedField}},
	}
	f.Fuzz(func(t *testing.T, key []byte) {
		for _, k := range schemas {
			v := make([]types.Value, len(k.Fields))
			if _, err := k.Decode(v, key, nil); err != nil {
				continue
			}
			// What is read has one encoding only.
			if back, ok := k.Encode(nil, v); !ok && k.Encoding != Delimited || ok && !bytes.Equal(back, key) {
				t.Errorf("%q is read as %s, which is %q", key, fieldsText(k, v), back)
			}
		}
	})
}
