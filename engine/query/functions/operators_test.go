package functions

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/trestledb/trestle/engine/query/types"
)

func args(list ...typed) []typed { return list }

func TestArithmetic(t *testing.T) {
	const maxInt, minInt = math.MaxInt64, math.MinInt64
	checkScalars(t, []scalarCase{
		{"$add", args(tInt(1), tInt(2)), "3"},
		{"$add", args(tInt(maxInt), tInt(1)), "!int64 overflow: 9223372036854775807 + 1"},
		{"$add", args(tInt(minInt), tInt(-1)), "!int64 overflow: -9223372036854775808 + -1"},
		{"$add", args(tInt(1), tNull(types.Int64Type)), "NULL"},
		{"$add", args(tFloat(3), tFloat(5.7)), "8.7"},
		{"$add", args(tFloat(1e308), tFloat(1e308)), "!double overflow: 1e+308 + 1e+308"},
		{"$add", args(tFloat(math.Inf(1)), tFloat(1)), "+Inf"},
		{"$add", args(tDay("2024-02-28"), tInt(2)), "2024-03-01"},
		{"$add", args(tInt(1), tDay("2023-12-31")), "2024-01-01"},
		{"$add", args(tDay("9999-12-31"), tInt(1)), "!Adding 1 DAY to date 9999-12-31 causes overflow"},
		{"$subtract", args(tInt(1), tInt(2)), "-1"},
		{"$subtract", args(tInt(minInt), tInt(1)), "!int64 overflow: -9223372036854775808 - 1"},
		{"$subtract", args(tInt(0), tInt(minInt)), "!int64 overflow: 0 - -9223372036854775808"},
		{"$subtract", args(tDay("2024-03-01"), tInt(1)), "2024-02-29"},
		{"$subtract", args(tDay("0001-01-01"), tInt(1)), "!Subtracting 1 DAY from date 0001-01-01 causes overflow"},
		{"$multiply", args(tInt(-3), tInt(7)), "-21"},
		{"$multiply", args(tInt(minInt), tInt(-1)), "!int64 overflow: -9223372036854775808 * -1"},
		{"$multiply", args(tInt(-1), tInt(minInt)), "!int64 overflow: -1 * -9223372036854775808"},
		{"$multiply", args(tInt(minInt), tInt(1)), "-9223372036854775808"},
		{"$multiply", args(tInt(1<<32), tInt(1<<31)), "!int64 overflow: 4294967296 * 2147483648"},
		{"$multiply", args(tFloat(3), tFloat(5.7)), "17.1"},
		{"$divide", args(tFloat(1), tFloat(2)), "0.5"},
		{"$divide", args(tFloat(1), tFloat(0)), "!division by zero: 1 / 0"},
		{"$divide", args(tFloat(1), tFloat(math.Copysign(0, -1))), "!division by zero: 1 / -0"},
		{"$divide", args(tFloat(0), tFloat(0)), "!division by zero: 0 / 0"},
		{"$divide", args(tFloat(1e300), tFloat(1e-300)), "!double overflow: 1e+300 / 1e-300"},
		{"$unary_minus", args(tInt(5)), "-5"},
		{"$unary_minus", args(tInt(minInt)), "!int64 overflow: --9223372036854775808"},
		{"$unary_minus", args(tSingle(1.5)), "-1.5"},
	})
}

func TestBits(t *testing.T) {
	checkScalars(t, []scalarCase{
		{"$bitwise_not", args(tInt(0)), "-1"},
		{"$bitwise_not", args(tRaw("\x0f")), `b"\xf0"`},
		{"$bitwise_and", args(tInt(12), tInt(10)), "8"},
		{"$bitwise_or", args(tRaw("\x0c"), tRaw("\x0a")), `b"\x0e"`},
		{"$bitwise_xor", args(tInt(12), tInt(10)), "6"},
		{"$bitwise_xor", args(tRaw("ab"), tRaw("a")), "!Bitwise binary operator for BYTES requires equal length of the inputs. Got 2 bytes on the left hand side and 1 bytes on the right hand side."},
		{"$left_shift", args(tInt(1), tInt(63)), "-9223372036854775808"},
		{"$left_shift", args(tInt(1), tInt(64)), "0"},
		{"$right_shift", args(tInt(-1), tInt(1)), "9223372036854775807"},
		{"$right_shift", args(tInt(1), tInt(-1)), "!Bitwise shift by negative offset."},
		{"$left_shift", args(tRaw("\x01\x02"), tInt(9)), `b"\x04\x00"`},
		{"$left_shift", args(tRaw("\xff\x80"), tInt(1)), `b"\xff\x00"`},
		{"$right_shift", args(tRaw("\x01\x02"), tInt(1)), `b"\x00\x81"`},
		{"$right_shift", args(tRaw("\x01\x02"), tInt(8)), `b"\x00\x01"`},
		{"$right_shift", args(tRaw("\x01\x02"), tInt(100)), `b"\x00\x00"`},
		{"BIT_COUNT", args(tInt(-1)), "64"},
		{"BIT_COUNT", args(tRaw("\x0f\x01")), "5"},
	})
}

func TestComparison(t *testing.T) {
	nan, null := tFloat(math.NaN()), tNull(types.Int64Type)
	checkScalars(t, []scalarCase{
		{"$equal", args(tInt(1), tInt(1)), "true"},
		{"$equal", args(tText("a"), tText("A")), "false"},
		{"$equal", args(nan, nan), "false"},
		{"$not_equal", args(nan, nan), "true"},
		{"$equal", args(tFloat(0), tFloat(math.Copysign(0, -1))), "true"},
		{"$less", args(tText("ab"), tText("aB")), "false"},
		{"$less", args(nan, tFloat(1)), "false"},
		{"$greater_or_equal", args(nan, tFloat(1)), "false"},
		{"$less_or_equal", args(tRaw(""), tRaw("")), "true"},
		{"$greater", args(tTime("2014-02-02 18:30:00 America/New_York"), tTime("2014-02-02 18:30:12 America/New_York")), "false"},
		{"$less", args(tTruth(false), tTruth(true)), "true"},
		{"$equal", args(tInt(1), null), "NULL"},
		{"$equal", args(tRow(tInt(1), tText("a")), tRow(tInt(1), tText("a"))), "true"},
		{"$equal", args(tRow(tInt(1), null), tRow(tInt(1), tInt(2))), "NULL"},
		{"$equal", args(tRow(tInt(1), null), tRow(tInt(2), tInt(2))), "false"},
		{"$not_equal", args(tRow(tInt(1), null), tRow(tInt(2), tInt(2))), "true"},
		{"$equal", args(tInts(1, 2), tInts(1, 2)), "true"},
		{"$equal", args(tInts(1, 2), tInts(1)), "false"},
		{"$not_equal", args(tList(tInt(1), null), tInts(1, 2)), "NULL"},

		{"$is_distinct_from", args(null, tInt(1)), "true"},
		{"$is_distinct_from", args(null, null), "false"},
		{"$is_not_distinct_from", args(nan, nan), "true"},

		{"$between", args(tInt(5), tInt(1), tInt(10)), "true"},
		{"$between", args(tInt(10), tInt(1), tInt(10)), "true"},
		{"$between", args(tInt(10), null, tInt(5)), "false"},
		{"$between", args(tInt(-5), tInt(1), null), "false"},
		{"$between", args(tInt(5), tInt(1), null), "NULL"},
		{"$between", args(null, tInt(10), tInt(1)), "NULL"},
		{"$between", args(nan, tFloat(0), tFloat(1)), "false"},
		{"$between", args(tText("b"), tText("a"), tText("c")), "true"},

		{"$is_null", args(null), "true"},
		{"$is_null", args(tText("")), "false"},
		{"$is_true", args(tNull(types.BoolType)), "false"},
		{"$is_false", args(tTruth(false)), "true"},
		{"$is_false", args(tNull(types.BoolType)), "false"},
		{"$not", args(tTruth(false)), "true"},
		{"$not", args(tNull(types.BoolType)), "NULL"},
	})
}

func TestIn(t *testing.T) {
	null, text := tNull(types.Int64Type), tNull(types.StringType)
	many := args(tInt(7))
	for i := range 20 {
		many = append(many, tInt(int64(i)))
	}
	checkScalars(t, []scalarCase{
		{"$in", args(tText("a"), tText("b")), "false"},
		{"$in", args(tText("c"), tText("a"), tText("b"), tText("c")), "true"},
		{"$in", args(text, tText("a"), text), "NULL"},
		{"$in", args(tInt(1), tInt(2), null), "NULL"},
		{"$in", args(tInt(2), tInt(2), null), "true"},
		{"$in", many, "true"},
		{"$in", args(tFloat(math.NaN()), tFloat(math.NaN())), "false"},
		{"$in", args(tRow(tInt(1), tInt(2)), tRow(tInt(1), null), tRow(tInt(3), tInt(4))), "NULL"},
		{"$in_array", args(tInt(1), tInts(1, 2, 3)), "true"},
		{"$in_array", args(tInt(1), tInts()), "false"},
		{"$in_array", args(null, tInts()), "false"},
		{"$in_array", args(null, tNull(types.ArrayOf(types.Int64Type))), "false"},
		{"$in_array", args(tInt(1), tList(null)), "NULL"},
		{"$in_array", args(tText("a"), tTexts("-", "b", "-")), "NULL"},

		{"$equal_any", args(tInt(5), tInt(4), tInt(5)), "true"},
		{"$equal_any", args(tInt(2), tInt(1), null), "NULL"},
		{"$equal_any_array", args(tInt(1), tNull(types.ArrayOf(types.Int64Type))), "false"},
		{"$equal_all_array", args(tInt(1), tNull(types.ArrayOf(types.Int64Type))), "true"},
		{"$equal_all_array", args(tInt(2), tList(tInt(1), null)), "false"},
		{"$equal_all_array", args(null, tInts(1)), "NULL"},
		{"$greater_all_array", args(tInt(5), tInts(4, 5, 6)), "false"},
		{"$less_any_array", args(tFloat(1), tFloats(0, math.NaN())), "false"},
		{"$not_equal_any", args(tInt(1), tInt(1), tInt(2)), "true"},
		{"$greater_or_equal_all", args(tInt(6), tInt(4), tInt(6)), "true"},
	})
}

func TestLike(t *testing.T) {
	null := tNull(types.StringType)
	checkScalars(t, []scalarCase{
		{"$like", args(tText("abc"), tText("abc")), "true"},
		{"$like", args(tText("abc"), tText("a%")), "true"},
		{"$like", args(tText("abc"), tText("%c")), "true"},
		{"$like", args(tText("abc"), tText("%b%")), "true"},
		{"$like", args(tText("abc"), tText("%")), "true"},
		{"$like", args(tText(""), tText("%%%")), "true"},
		{"$like", args(tText(""), tText("")), "true"},
		{"$like", args(tText("a"), tText("")), "false"},
		{"$like", args(tText("abc"), tText("a_c")), "true"},
		{"$like", args(tText("SeattleKirkland"), tText("Seattle_")), "false"},
		{"$like", args(tText("First\nSeattle\nLine"), tText("F%Seattle%Line")), "true"},
		{"$like", args(tText("aXbXc"), tText("a%X%Xc")), "true"},
		{"$like", args(tText("aXc"), tText("a%X%Xc")), "false"},
		{"$like", args(tText("ab"), tText("ab%b")), "false"},
		{"$like", args(tText("ёжик"), tText("_ж__")), "true"},
		{"$like", args(tText("aёжик"), tText("%ж__")), "true"},
		{"$like", args(tText("ёж"), tText("%_ё_%")), "false"},
		{"$like", args(tText("xёж"), tText("%_ё_%")), "true"},
		{"$like", args(tRaw("ё"), tRaw("__")), "true"},
		{"$like", args(tRaw("xxё"), tRaw("%__")), "true"},
		{"$like", args(tText("100%"), tText(`100\%`)), "true"},
		{"$like", args(tText("100x"), tText(`100\%`)), "false"},
		{"$like", args(tText(`C:\U`), tText(`C:\\_`)), "true"},
		{"$like", args(tText("a"), tText(`a\`)), "!LIKE pattern ends with a backslash"},
		{"$like", args(null, tText("a")), "NULL"},

		{"$like_any", args(tText("abc"), tText("x"), tText("%b%")), "true"},
		{"$like_any", args(tText("abc"), tText("x"), null), "NULL"},
		{"$like_any", args(null, tText("x")), "NULL"},
		{"$not_like_any", args(tText("abc"), tText("abc"), tText("%z%")), "true"},
		{"$not_like_any", args(tText("abc"), tText("abc"), tText("%b%")), "false"},
		{"$like_any_array", args(null, tTexts()), "false"},
		{"$like_all_array", args(null, tTexts()), "true"},
		{"$like_all_array", args(tText("Value2"), tTexts("Value1", "-")), "false"},
		{"$like_all_array", args(tText("Value1"), tTexts("Value1", "-")), "NULL"},
		{"$not_like_all", args(tText("abc"), tText("x"), tText("%y%")), "true"},
		{"$not_like_all_array", args(tText("abc"), tTexts("x", "%b%")), "false"},
		{"$like_any", args(tText("abc"), tText(`\`)), "!LIKE pattern ends with a backslash"},
	})
}

// likeReference is LIKE by trying everything.
func likeReference(s, pattern []rune) bool {
	if len(pattern) == 0 {
		return len(s) == 0
	}
	switch pattern[0] {
	case '%':
		return likeReference(s, pattern[1:]) || len(s) > 0 && likeReference(s[1:], pattern)
	case '_':
		return len(s) > 0 && likeReference(s[1:], pattern[1:])
	}
	return len(s) > 0 && s[0] == pattern[0] && likeReference(s[1:], pattern[1:])
}

func TestLikeRandom(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	letters := []rune("ab%_ё")
	text := func(n int, from []rune) string {
		var b strings.Builder
		for range rng.IntN(n) {
			b.WriteRune(from[rng.IntN(len(from))])
		}
		return b.String()
	}
	for range 20000 {
		s, pattern := text(9, []rune("abё")), text(7, letters)
		p, err := compileLike(pattern, false)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := p.match(s), likeReference([]rune(s), []rune(pattern)); got != want {
			t.Fatalf("%q LIKE %q: got %v", s, pattern, got)
		}
	}
}

// TestKernelsRandom compares each Kernel of the comparisons and of arithmetic with Eval:
// with NULLs, constants on either side and selections.
func TestKernelsRandom(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	const n = 40
	draw := func(ty *types.Type) types.Value {
		if rng.IntN(6) == 0 {
			return types.Null
		}
		switch ty.Kind {
		case types.Float64:
			return types.NewFloat([]float64{0, 1, -1, math.NaN(), math.Inf(1), 1e308, math.Copysign(0, -1)}[rng.IntN(7)])
		case types.String:
			return types.NewString([]string{"", "a", "ab", "b", "ba"}[rng.IntN(5)])
		case types.Bool:
			return types.NewBool(rng.IntN(2) == 0)
		}
		return types.NewInt([]int64{0, 1, -1, 2, math.MaxInt64, math.MinInt64}[rng.IntN(6)])
	}
	for name, f := range All {
		for _, s := range f.Signatures {
			if s.Kernel == nil || s.Eval == nil || !strings.HasPrefix(name, "$") {
				continue
			}
			for _, ty := range []*types.Type{types.Int64Type, types.Float64Type, types.StringType, types.BoolType} {
				ts := make([]*types.Type, 0, len(s.Args))
				for _, a := range s.Args {
					arg := a.Type.Type
					if a.Type.Any != "" {
						arg = ty
					}
					ts = append(ts, arg)
				}
				if s.Args[len(s.Args)-1].Repeated {
					ts = append(ts, ts[len(ts)-1], ts[len(ts)-1], ts[len(ts)-1])
				}
				if strings.Contains(fmt.Sprint(ts), "INVALID") {
					continue // arrays
				}
				result := s.Result.Type
				if result == nil {
					continue
				}
				for range 30 {
					compareKernel(t, rng, name, s, ts, result, n, draw)
				}
			}
		}
	}
}

func compareKernel(t *testing.T, rng *rand.Rand, name string, s *Signature, ts []*types.Type, result *types.Type, n int, draw func(*types.Type) types.Value) {
	t.Helper()
	vecs := make([]*types.Vector, len(ts))
	for i, ty := range ts {
		if rng.IntN(3) == 0 {
			vecs[i] = types.NewConst(ty, draw(ty))
			continue
		}
		vecs[i] = types.NewVector(ty, n)
		nulls := rng.IntN(2) == 0
		for k := range n {
			v := draw(ty)
			for !v.Valid && !nulls {
				v = draw(ty)
			}
			vecs[i].Set(k, v)
		}
	}
	var sel []int32
	if rng.IntN(2) == 0 {
		sel = []int32{}
		for k := range n {
			if rng.IntN(2) == 0 {
				sel = append(sel, int32(k))
			}
		}
	}
	out := types.NewVector(result, n)
	kernelErr := s.Kernel(&Call{Types: ts, Result: result}, vecs, out, sel, n)
	rows := sel
	if sel == nil {
		for k := range n {
			rows = append(rows, int32(k))
		}
	}
	c := &Call{Types: ts, Result: result}
	for _, k := range rows {
		values := make([]types.Value, len(ts))
		null := false
		for i, v := range vecs {
			values[i] = v.Value(int(k))
			null = null || !values[i].Valid
		}
		want, err := types.Null, error(nil)
		if s.Nulls || !null {
			want, err = s.Eval(c, values)
		}
		if err != nil {
			if kernelErr == nil {
				t.Fatalf("%s: Eval has error %v, Kernel none", name, err)
			}
			return
		}
		if kernelErr != nil {
			continue
		}
		if got := out.Value(int(k)); showValue(result, got) != showValue(result, want) {
			var shown []string
			for i, v := range values {
				shown = append(shown, showValue(ts[i], v))
			}
			t.Fatalf("%s(%s): Kernel %s, Eval %s", name, strings.Join(shown, ", "), showValue(result, got), showValue(result, want))
		}
	}
	if kernelErr != nil {
		t.Fatalf("%s: Kernel has error %v, Eval none", name, kernelErr)
	}
}

func TestOperatorTable(t *testing.T) {
	for _, name := range []string{
		"$and", "$or", "$case_no_value", "$case_with_value", "if", "ifnull", "nullif", "coalesce", "iferror", "iserror", "nulliferror",
	} {
		if f := Lookup(name); f == nil || f.Kind != Lazy {
			t.Errorf("%s is no lazy function", name)
		}
	}
	if got := equal.check([]*types.Type{types.MapOf(types.BytesType, types.BytesType)}); got != "Equality is not defined for arguments of type MAP<BYTES, BYTES>" {
		t.Errorf("got %q", got)
	}
	if got := less.check([]*types.Type{types.StructOf()}); got != "Less than is not defined for arguments of type STRUCT<>" {
		t.Errorf("got %q", got)
	}
	if got := equal.check([]*types.Type{types.ArrayOf(types.Int64Type)}); got != "" {
		t.Errorf("got %q", got)
	}
}
