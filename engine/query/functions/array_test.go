package functions

import (
	"testing"

	"github.com/trestledb/trestle/engine/query/types"
)

func TestArrays(t *testing.T) {
	ints, texts := types.ArrayOf(types.Int64Type), types.ArrayOf(types.StringType)
	checkScalars(t, []scalarCase{
		{"$array_at_offset", list(tInts(10, 11), tInt(0)), "10"},
		{"$array_at_offset", list(tInts(10, 11), tInt(-1)), "!Array index -1 is out of bounds"},
		{"$array_at_offset", list(tInts(10, 11), tInt(2)), "!Array index 2 is out of bounds"},
		{"$array_at_offset", list(tNull(ints), tInt(-1)), "NULL"},
		{"$array_at_ordinal", list(tTexts("foo", "bar"), tInt(2)), "bar"},
		{"$array_at_ordinal", list(tInts(1, 2, 3), tInt(0)), "!Array index 0 is out of bounds"},
		{"$array_at_ordinal", list(tInts(1, 2, 3), tInt(-9223372036854775808)), "!Array index -9223372036854775808 is out of bounds"},
		{"$safe_array_at_offset", list(tInts(1, 2, 3), tInt(-1)), "NULL"},
		{"$safe_array_at_offset", list(tInts(1, 2, 3), tInt(1)), "2"},
		{"$safe_array_at_ordinal", list(tInts(1, 2, 3), tInt(0)), "NULL"},
		{"ARRAY_LENGTH", list(tTexts("coffee", "-", "milk")), "3"},
		{"ARRAY_LENGTH", list(tNull(ints)), "NULL"},
		{"ARRAY_CONCAT", list(tInts(1, 2), tInts(3, 4), tInts(5, 6)), "[1, 2, 3, 4, 5, 6]"},
		{"ARRAY_CONCAT", list(tInts(1, 2)), "[1, 2]"},
		{"ARRAY_CONCAT", list(tInts(1, 2), tNull(ints)), "NULL"},
		{"ARRAY_REVERSE", list(tInts(1, 2, 3)), "[3, 2, 1]"},
		{"ARRAY_TO_STRING", list(tTexts("coffee", "tea", "milk"), tText("--")), "coffee--tea--milk"},
		{"ARRAY_TO_STRING", list(tTexts("cake", "pie", "-"), tText("--")), "cake--pie"},
		{"ARRAY_TO_STRING", list(tTexts("cake", "pie", "-"), tText("--"), tText("MISSING")), "cake--pie--MISSING"},
		{"ARRAY_TO_STRING", list(tTexts("-", "a"), tText("--"), tText("")), "--a"},
		{"ARRAY_TO_STRING", list(tTexts("a"), tText(","), tNull(types.StringType)), "NULL"},
		{"ARRAY_TO_STRING", list(tTexts(), tText(",")), ""},
		{"ARRAY_FIRST", list(tTexts("a", "b", "c", "d")), "a"},
		{"ARRAY_FIRST", list(tInts()), "!ARRAY_FIRST cannot get the first element of an empty array"},
		{"ARRAY_LAST", list(tTexts("a", "b", "c", "d")), "d"},
		{"ARRAY_LAST", list(tInts()), "!ARRAY_LAST cannot get the last element of an empty array"},
		{"ARRAY_FIRST_N", list(tTexts("a", "b", "c", "d", "e"), tInt(3)), "[a, b, c]"},
		{"ARRAY_FIRST_N", list(tTexts("a", "b"), tInt(30)), "[a, b]"},
		{"ARRAY_FIRST_N", list(tInts(1, 4, 5), tInt(-3)), "!The n argument to ARRAY_FIRST_N must not be negative."},
		{"ARRAY_LAST_N", list(tTexts("a", "b", "c", "d", "e"), tInt(3)), "[c, d, e]"},
		{"ARRAY_LAST_N", list(tTexts("a", "b"), tInt(9223372036854775807)), "[a, b]"},
		{"ARRAY_LAST_N", list(tInts(1), tInt(-1)), "!The n argument to ARRAY_LAST_N must not be negative."},
		{"ARRAY_SLICE", list(tTexts("a", "b", "c", "d", "e"), tInt(1), tInt(3)), "[b, c, d]"},
		{"ARRAY_SLICE", list(tTexts("a", "b", "c", "d", "e"), tInt(-1), tInt(3)), "[]"},
		{"ARRAY_SLICE", list(tTexts("a", "b", "c", "d", "e"), tInt(1), tInt(-3)), "[b, c]"},
		{"ARRAY_SLICE", list(tTexts("a", "b", "c", "d", "e"), tInt(-1), tInt(-3)), "[]"},
		{"ARRAY_SLICE", list(tTexts("a", "b", "c", "d", "e"), tInt(-3), tInt(-1)), "[c, d, e]"},
		{"ARRAY_SLICE", list(tTexts("a", "b", "c", "d", "e"), tInt(3), tInt(3)), "[d]"},
		{"ARRAY_SLICE", list(tTexts("a", "b", "c", "d", "e"), tInt(1), tInt(30)), "[b, c, d, e]"},
		{"ARRAY_SLICE", list(tTexts("a", "b", "c", "d", "e"), tInt(1), tInt(-30)), "[]"},
		{"ARRAY_SLICE", list(tTexts("a", "b", "c", "d", "e"), tInt(-30), tInt(30)), "[a, b, c, d, e]"},
		{"ARRAY_SLICE", list(tTexts("a", "b", "c", "d", "e"), tInt(-30), tInt(-5)), "[a]"},
		{"ARRAY_SLICE", list(tInts(1, 2), tInt(-8869911617074265235), tInt(-4)), "[]"},
		{"ARRAY_SLICE", list(tTexts("a", "b"), tNull(types.Int64Type), tInt(1)), "NULL"},
		{"ARRAY_SLICE", list(tTexts("a", "-", "c"), tInt(0), tInt(1)), "[a, NULL]"},
		{"ARRAY_IS_DISTINCT", list(tInts(1, 2, 3)), "true"},
		{"ARRAY_IS_DISTINCT", list(tInts(1, 1, 1)), "false"},
		{"ARRAY_IS_DISTINCT", list(tTexts("-", "a")), "true"},
		{"ARRAY_IS_DISTINCT", list(tTexts("-", "a", "-")), "false"},
		{"ARRAY_IS_DISTINCT", list(tInts(1, 2, 3, 4, 5, 6, 7, 8, 9, 1)), "false"},
		{"ARRAY_IS_DISTINCT", list(tFloats(nan, nan)), "false"},
		{"ARRAY_MIN", list(tInts(8, 37, 4)), "4"},
		{"ARRAY_MAX", list(tTexts("a", "-", "c", "b")), "c"},
		{"ARRAY_MAX", list(tFloats(1, nan, 3)), "NaN"},
		{"ARRAY_MAX", list(tInts()), "NULL"},
		{"ARRAY_SUM", list(tInts(1, 2, 3, 4)), "10"},
		{"ARRAY_SUM", list(tInts(9223372036854775807, 1)), "!int64 overflow"},
		{"ARRAY_SUM", list(tInts(9223372036854775807, 1, -1)), "9223372036854775807"},
		{"ARRAY_SUM", list(tFloats(1.5, 2)), "3.5"},
		{"ARRAY_SUM", list(tFloats(1e308, 1e308)), "!double overflow"},
		{"ARRAY_SUM", list(tFloats(1e308, 1e308, -1e308)), "1e+308"},
		{"ARRAY_SUM", list(tFloats(1, inf)), "+Inf"},
		{"ARRAY_AVG", list(tInts(1, 9223372036854775807, -9223372036854775807)), "0.5"},
		{"ARRAY_AVG", list(tInts(1, 2, 4)), "2.33333333333333"},
		{"ARRAY_AVG", list(tInts(9223372036854775807, 9223372036854775807)), "9.22337203685478e+18"},
		{"ARRAY_AVG", list(tInts(-9223372036854775808, -9223372036854775808)), "-9.22337203685478e+18"},
		{"ARRAY_AVG", list(tFloats(1e308, 1e308)), "1e+308"},
		{"ARRAY_AVG", list(tFloats(1e308, -1e308)), "0"},
		{"ARRAY_AVG", list(tFloats(0, inf)), "+Inf"},
		{"ARRAY_AVG", list(tFloats(0, inf, 0.1)), "NaN"},
		{"ARRAY_INCLUDES", list(tTexts("a", "b", "-"), tText("a")), "true"},
		{"ARRAY_INCLUDES", list(tTexts("a", "b", "-"), tText("c")), "false"},
		{"ARRAY_INCLUDES", list(tTexts("a", "-"), tNull(types.StringType)), "NULL"},
		{"ARRAY_INCLUDES", list(tFloats(nan, negativeZero), tFloat(nan)), "false"},
		{"ARRAY_INCLUDES", list(tFloats(nan, negativeZero), tFloat(0)), "true"},
		{"ARRAY_INCLUDES", list(tList(tRow(tInt(1), tText("x"))), tRow(tInt(1), tText("x"))), "true"},
		{"ARRAY_INCLUDES", list(tList(tRow(tInt(1), tNull(types.StringType))), tRow(tInt(1), tNull(types.StringType))), "false"},
		{"ARRAY_INCLUDES_ANY", list(tInts(1, 2, 3), tInts(3, 4, 5)), "true"},
		{"ARRAY_INCLUDES_ANY", list(tInts(1, 2, 3), tInts(4, 5)), "false"},
		{"ARRAY_INCLUDES_ANY", list(tTexts("a", "-"), tTexts("-")), "false"},
		{"ARRAY_INCLUDES_ANY", list(tInts(1), tNull(ints)), "NULL"},
		{"ARRAY_INCLUDES_ALL", list(tInts(1, 2, 3, 4, 5), tInts(3, 4, 5)), "true"},
		{"ARRAY_INCLUDES_ALL", list(tInts(1, 2, 3, 4, 5), tInts(4, 5, 6)), "false"},
		{"ARRAY_INCLUDES_ALL", list(tTexts("a", "b", "-"), tTexts("a", "-")), "false"},
		{"ARRAY_INCLUDES_ALL", list(tInts(), tInts()), "true"},
		{"ARRAY_FIND", list(tTexts("a", "b"), tText("b")), "b"},
		{"ARRAY_FIND", list(tTexts("a", "b"), tNull(types.StringType)), "NULL"},
		{"ARRAY_FIND_ALL", list(tTexts("a", "b", "a", "-"), tText("a")), "[a, a]"},
		{"ARRAY_FIND_ALL", list(tTexts("a", "b", "a", "-"), tText("c")), "[]"},
		{"ARRAY_FIND_ALL", list(tTexts("a"), tNull(types.StringType)), "NULL"},
		{"ARRAY_OFFSET", list(tTexts("a", "b", "b"), tText("b")), "1"},
		{"ARRAY_OFFSET", list(tTexts("a", "b", "b"), tText("b"), tText("LAST")), "2"},
		{"ARRAY_OFFSET", list(tTexts("a", "b", "b"), tText("b"), tText("first")), "!Invalid array find mode: first; it is FIRST or LAST"},
		{"ARRAY_OFFSET", list(tTexts("a", "b", "b"), tText("b"), tNull(types.StringType)), "NULL"},
		{"ARRAY_OFFSETS", list(tTexts("a", "b", "a"), tText("a")), "[0, 2]"},
		{"ARRAY_OFFSETS", list(tNull(texts), tText("a")), "NULL"},
		{"ARRAY_ZIP", list(tInts(1, 2), tTexts("a", "b")), "[{1, a}, {2, b}]"},
		{"ARRAY_ZIP", list(tInts(1, 2, 3), tTexts("a", "b"), tText("PAD")), "[{1, a}, {2, b}, {3, NULL}]"},
		{"ARRAY_ZIP", list(tInts(1, 2, 3), tTexts("a", "b"), tText("TRUNCATE")), "[{1, a}, {2, b}]"},
		{"ARRAY_ZIP", list(tInts(1, 2, 3), tTexts("a", "b")), "!Unequal array length in ARRAY_ZIP using STRICT mode"},
		{"ARRAY_ZIP", list(tInts(1), tInts(2), tInts(3), tInts(4)), "[{1, 2, 3, 4}]"},
		{"GENERATE_ARRAY", list(tInt(1), tInt(5)), "[1, 2, 3, 4, 5]"},
		{"GENERATE_ARRAY", list(tInt(0), tInt(10), tInt(3)), "[0, 3, 6, 9]"},
		{"GENERATE_ARRAY", list(tInt(10), tInt(0), tInt(-3)), "[10, 7, 4, 1]"},
		{"GENERATE_ARRAY", list(tInt(4), tInt(4), tInt(10)), "[4]"},
		{"GENERATE_ARRAY", list(tInt(10), tInt(0), tInt(3)), "[]"},
		{"GENERATE_ARRAY", list(tInt(1), tInt(2), tInt(0)), "!Sequence step cannot be 0."},
		{"GENERATE_ARRAY", list(tInt(1), tInt(100000)), "!Cannot generate arrays with more than 16000 elements."},
		{"GENERATE_ARRAY", list(tInt(9223372036854775806), tInt(9223372036854775807), tInt(1)), "[9223372036854775806, 9223372036854775807]"},
		{"GENERATE_ARRAY", list(tFloat(0), tFloat(1), tFloat(0.25)), "[0, 0.25, 0.5, 0.75, 1]"},
		{"GENERATE_ARRAY", list(tFloat(0), tFloat(nan), tFloat(1)), "!Sequence start, end, and step cannot be NaN."},
		{"GENERATE_ARRAY", list(tFloat(0), tFloat(1), tFloat(inf)), "!Sequence step cannot be +/-inf."},
	})
}

func TestLambdas(t *testing.T) {
	above := func(limit int64) typed {
		return tLambda(func(a []types.Value) types.Value {
			if !a[0].Valid {
				return types.Null
			}
			return types.NewBool(a[0].Int > limit)
		})
	}
	withNull := tList(tInt(1), tInt(2), tNull(types.Int64Type), tInt(3))
	checkScalars(t, []scalarCase{
		{"ARRAY_FILTER", list(withNull, above(1)), "[2, 3]"},
		{"ARRAY_FILTER", list(tInts(), above(1)), "[]"},
		{"ARRAY_FILTER", list(tNull(types.ArrayOf(types.Int64Type)), above(1)), "NULL"},
		{"ARRAY_FIND", list(withNull, above(1)), "2"},
		{"ARRAY_FIND", list(withNull, above(1), tText("LAST")), "3"},
		{"ARRAY_FIND", list(withNull, above(5)), "NULL"},
		{"ARRAY_FIND_ALL", list(withNull, above(1)), "[2, 3]"},
		{"ARRAY_OFFSET", list(withNull, above(1)), "1"},
		{"ARRAY_OFFSETS", list(withNull, above(1)), "[1, 3]"},
		{"ARRAY_INCLUDES", list(withNull, above(2)), "true"},
		{"ARRAY_INCLUDES", list(withNull, above(3)), "false"},
		{"ARRAY_INCLUDES", list(tNull(types.ArrayOf(types.Int64Type)), above(3)), "NULL"},
	})
	s := Lookup("ARRAY_TRANSFORM").Signatures
	c := newCall([]*types.Type{types.ArrayOf(types.Int64Type), types.Int64Type}, types.ArrayOf(types.Int64Type), []typed{
		tInts(10, 10, 10), tLambda(func(a []types.Value) types.Value {
			if len(a) == 1 {
				return types.NewInt(a[0].Int + 1)
			}
			return types.NewInt(a[0].Int + a[1].Int)
		}),
	})
	for i, want := range []string{"[11, 11, 11]", "[10, 11, 12]"} {
		v, err := s[i].Eval(c, []types.Value{tInts(10, 10, 10).v, types.Null})
		if got := showValue(c.Result, v); err != nil || got != want {
			t.Errorf("ARRAY_TRANSFORM = %s, %v, want %s", got, err, want)
		}
	}
	v, err := arrayFilterOffset(&Call{Lambdas: []func([]types.Value) (types.Value, error){nil, func(a []types.Value) (types.Value, error) {
		return types.NewBool(a[0].Int > a[1].Int), nil
	}}}, []types.Value{tInts(1, 1, 3).v, types.Null})
	if got := showValue(types.ArrayOf(types.Int64Type), v); err != nil || got != "[1, 3]" {
		t.Errorf("ARRAY_FILTER with position = %s, %v", got, err)
	}
}

func TestArrayErrorsOfLambdas(t *testing.T) {
	fail := typed{lambda: func([]types.Value) (types.Value, error) { return types.Null, Errorf("no") }}
	for _, name := range []string{"ARRAY_FILTER", "ARRAY_FIND", "ARRAY_FIND_ALL", "ARRAY_OFFSET", "ARRAY_OFFSETS", "ARRAY_INCLUDES"} {
		if _, err := evalScalar(t, name, list(tInts(1), fail)); err == nil {
			t.Errorf("%s hides the error of its lambda", name)
		}
	}
}

func TestIncludesManyHashed(t *testing.T) {
	var a, b []int64
	for i := range int64(100) {
		a, b = append(a, i), append(b, 2*i)
	}
	checkScalars(t, []scalarCase{
		{"ARRAY_INCLUDES_ALL", list(tInts(a...), tInts(a...)), "true"},
		{"ARRAY_INCLUDES_ALL", list(tInts(a...), tInts(b...)), "false"},
		{"ARRAY_INCLUDES_ANY", list(tInts(a...), tInts(b...)), "true"},
	})
	floats := make([]float64, 50)
	for i := range floats {
		floats[i] = nan
	}
	checkScalars(t, []scalarCase{{"ARRAY_INCLUDES_ANY", list(tFloats(floats...), tFloats(floats...)), "false"}})
}
