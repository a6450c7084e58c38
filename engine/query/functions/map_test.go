package functions

import (
	"math"
	"strings"
	"testing"

	"github.com/trestledb/trestle/engine/query/types"
)

func TestMaps(t *testing.T) {
	m := tMap("b", 2, "a", 1, "c", 3)
	null := tNull(m.t)
	checkScalars(t, []scalarCase{
		{"$map_subscript", list(m, tText("b")), "2"},
		{"$map_subscript", list(m, tText("x")), "NULL"},
		{"$map_subscript", list(m, tNull(types.StringType)), "NULL"},
		{"$map_subscript", list(null, tText("b")), "NULL"},
		{"$map_subscript_with_key", list(m, tText("c")), "3"},
		{"$map_subscript_with_key", list(m, tText("x")), "!Key not found in map: \"x\""},
		{"MAP_CONTAINS_KEY", list(m, tText("a")), "true"},
		{"MAP_CONTAINS_KEY", list(m, tText("d")), "false"},
		{"MAP_CONTAINS_KEY", list(null, tText("d")), "NULL"},
		{"MAP_EMPTY", list(m), "false"},
		{"MAP_EMPTY", list(tMap()), "true"},
		{"MAP_EMPTY", list(null), "NULL"},
		{"MAP_KEYS", list(m), "[a, b, c]"},
		{"MAP_KEYS", list(tMap()), "[]"},
		{"MAP_VALUES", list(m), "[1, 2, 3]"},
		{"MAP_VALUES", list(null), "NULL"},
		{"MAP_ENTRIES", list(m), "[{a, 1}, {b, 2}, {c, 3}]"},
		{"MAP_FROM_ARRAY", list(tList(tRow(tText("b"), tInt(2)), tRow(tText("a"), tInt(1)))), "[a, 1, b, 2]"},
		{"MAP_FROM_ARRAY", list(tList(tRow(tText("b"), tInt(2)), tRow(tText("a"), tInt(1)), tRow(tText("b"), tInt(3)))),
			"!Duplicate map keys are not allowed, but got multiple instances of key: \"b\""},
		{"MAP_FROM_ARRAY", list(tList(tRow(tInt(2), tInt(2)), tRow(tInt(2), tInt(1)))),
			"!Duplicate map keys are not allowed, but got multiple instances of key: 2"},
		{"MAP_FROM_ARRAY", list(tList(tNull(types.StructOf(types.Field{Type: types.Int64Type}, types.Field{Type: types.Int64Type})))),
			"!Struct element in MAP_FROM_ARRAY must not be NULL"},
	})
	if got := entryType(m.t).String(); got != "STRUCT<key STRING, value INT64>" {
		t.Errorf("entries are %s", got)
	}
}

func TestBigtable(t *testing.T) {
	wrap := func(s string) []typed { return list(tRaw(s)) }
	checkScalars(t, []scalarCase{
		{"TO_INT64", wrap("\x00\x00\x00\x00\x00\x00\x01\x02"), "258"},
		{"TO_INT64", wrap("\xff\xff\xff\xff\xff\xff\xff\xfe"), "-2"},
		{"TO_INT64", wrap("123"), "!Invalid argument to TO_INT64: a big-endian INT64 takes 8 bytes, found 3"},
		{"TO_INT64", list(tNull(types.BytesType)), "NULL"},
		{"TO_FLOAT64", wrap("\x3f\xf8\x00\x00\x00\x00\x00\x00"), "1.5"},
		{"TO_FLOAT64", wrap(""), "!Invalid argument to TO_FLOAT64: a big-endian FLOAT64 takes 8 bytes, found 0"},
		{"TO_FLOAT32", wrap("\x3f\xc0\x00\x00"), "1.5"},
		{"TO_FLOAT32", wrap("\x3f\xc0\x00\x00\x00"), "!Invalid argument to TO_FLOAT32: a big-endian FLOAT32 takes 4 bytes, found 5"},
		{"TO_VECTOR32", wrap("\x3f\xc0\x00\x00\xbf\xc0\x00\x00"), "[1.5, -1.5]"},
		{"TO_VECTOR32", wrap("\x3f\xc0\x00"), "!Invalid argument to TO_VECTOR32: a vector takes a multiple of 4 bytes, found 3"},
		{"TO_VECTOR64", wrap("\x3f\xf8\x00\x00\x00\x00\x00\x00"), "[1.5]"},
	})
	v := types.NewVector(types.BytesType, 2)
	v.Set(0, types.NewString("\x00\x00\x00\x00\x00\x00\x00\x07"))
	v.SetNull(1)
	out := types.NewVector(types.Int64Type, 2)
	if err := toInt64Kernel(nil, []*types.Vector{v}, out, nil, 2); err != nil || out.Ints[0] != 7 || !out.IsNull(1) {
		t.Errorf("TO_INT64 of a batch: %v, %v", out.Ints, err)
	}
	if _, err := Lookup("WRITE_TIMESTAMP").Signatures[0].Eval(nil, nil); err == nil || !strings.Contains(err.Error(), "not planned") {
		t.Errorf("WRITE_TIMESTAMP that was not planned: %v", err)
	}
}

// BenchmarkIncludesValues measures ARRAY_INCLUDES(MAP_VALUES(f), x) for maps of ten
// entries.
func BenchmarkIncludesValues(b *testing.B) {
	const rows = 1024
	var entries []types.Value
	for i := range 10 {
		entries = append(entries, types.NewString(string(rune('a'+i))), types.NewString(strings.Repeat(string(rune('a'+i)), 8)))
	}
	mapType := types.MapOf(types.BytesType, types.BytesType)
	arrayType := types.ArrayOf(types.BytesType)
	v := types.NewVector(mapType, rows)
	for i := range rows {
		v.Lists[i] = entries
	}
	x := types.NewConst(types.BytesType, types.NewString("jjjjjjjj"))
	values, found := types.NewVector(arrayType, rows), types.NewVector(types.BoolType, rows)
	toValues, test := Lookup("MAP_VALUES").Signatures[0], Lookup("ARRAY_INCLUDES").Signatures[0]
	c := &Call{Types: []*types.Type{mapType}, Result: arrayType}
	b.ReportAllocs()
	for b.Loop() {
		if err := toValues.Kernel(c, []*types.Vector{v}, values, nil, rows); err != nil {
			b.Fatal(err)
		}
		if err := test.Kernel(nil, []*types.Vector{values, x}, found, nil, rows); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*rows), "ns/row")
}

func BenchmarkToInt64(b *testing.B) {
	const rows = 1024
	v, out := types.NewVector(types.BytesType, rows), types.NewVector(types.Int64Type, rows)
	for i := range rows {
		v.Strs[i] = "\x00\x00\x00\x00\x00\x00\x00\x07"
	}
	for b.Loop() {
		if err := toInt64Kernel(nil, []*types.Vector{v}, out, nil, rows); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*rows), "ns/row")
}

func BenchmarkMapSubscript(b *testing.B) {
	const rows = 1024
	var entries []types.Value
	for i := range 10 {
		entries = append(entries, types.NewString("qualifier"+string(rune('a'+i))), types.NewString("v"))
	}
	v, out := types.NewVector(types.MapOf(types.BytesType, types.BytesType), rows), types.NewVector(types.BytesType, rows)
	for i := range rows {
		v.Lists[i] = entries
	}
	k := types.NewConst(types.BytesType, types.NewString("qualifierj"))
	for b.Loop() {
		if err := mapSubscriptKernel(nil, []*types.Vector{v, k}, out, nil, rows); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*rows), "ns/row")
}

func BenchmarkExtractYear(b *testing.B) {
	const rows = 1024
	v, out := types.NewVector(types.TimestampType, rows), types.NewVector(types.Int64Type, rows)
	for i := range rows {
		v.Ints[i] = int64(i) * 1e12
	}
	part := types.NewConst(types.StringType, types.NewString("YEAR"))
	extract := Lookup("$extract").Signatures[1].Kernel
	for b.Loop() {
		if err := extract(nil, []*types.Vector{v, part}, out, nil, rows); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*rows), "ns/row")
}

func BenchmarkRound(b *testing.B) {
	x := math.Pi
	for b.Loop() {
		y, _ := roundDigits(x, 2)
		x = y + 1e-3
	}
}
