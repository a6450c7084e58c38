package functions

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/trestledb/trestle/engine/query/types"
)

func TestMath(t *testing.T) {
	row := func(i int64, f float64) typed { return tRow(tInt(i), tFloat(f)) }
	named := func(s string, f float64) typed { return tRow(tText(s), tFloat(f)) }
	checkScalars(t, []scalarCase{
		{"ABS", list(tInt(-25)), "25"},
		{"ABS", list(tInt(math.MinInt64)), "!int64 overflow: --9223372036854775808"},
		{"ABS", list(tFloat(-inf)), "+Inf"},
		{"ABS", list(tFloat(math.Copysign(0, -1))), "0"},
		{"ABS", list(tSingle(-1.5)), "1.5"},
		{"ABS", list(tNull(types.Int64Type)), "NULL"},
		{"SIGN", list(tInt(-25)), "-1"},
		{"SIGN", list(tInt(math.MinInt64)), "-1"},
		{"SIGN", list(tInt(0)), "0"},
		{"SIGN", list(tInt(9)), "1"},
		{"SIGN", list(tFloat(nan)), "NaN"},
		{"SIGN", list(tFloat(-0.5)), "-1"},
		{"IS_INF", list(tFloat(-inf)), "true"},
		{"IS_INF", list(tFloat(25)), "false"},
		{"IS_NAN", list(tFloat(nan)), "true"},
		{"IEEE_DIVIDE", list(tFloat(20), tFloat(4)), "5"},
		{"IEEE_DIVIDE", list(tFloat(25), tFloat(0)), "+Inf"},
		{"IEEE_DIVIDE", list(tFloat(1), tFloat(math.Copysign(0, -1))), "-Inf"},
		{"IEEE_DIVIDE", list(tFloat(0), tFloat(0)), "NaN"},
		{"SQRT", list(tFloat(25)), "5"},
		{"SQRT", list(tFloat(-25)), "!Argument to SQRT cannot be negative: -25"},
		{"CBRT", list(tFloat(-27)), "-3"},
		{"POW", list(tFloat(2), tFloat(3)), "8"},
		{"POWER", list(tFloat(-1), tFloat(inf)), "1"},
		{"POW", list(tFloat(0), tFloat(-1)), "!Floating point error in function: POW(0, -1)"},
		{"POW", list(tFloat(-2), tFloat(0.5)), "!Floating point error in function: POW(-2, 0.5)"},
		{"EXP", list(tFloat(0)), "1"},
		{"EXP", list(tFloat(1000)), "!Floating point error in function: EXP(1000)"},
		{"EXP", list(tFloat(-inf)), "0"},
		{"LN", list(tFloat(1)), "0"},
		{"LN", list(tFloat(0)), "!Floating point error in function: LN(0)"},
		{"LOG", list(tFloat(100), tFloat(10)), "2"},
		{"LOG", list(tFloat(100), tFloat(1)), "!Floating point error in function: LOG(100, 1)"},
		{"LOG", list(tFloat(-inf), tFloat(10)), "NaN"},
		{"LOG10", list(tFloat(1e20)), "20"},
		{"LOG10", list(tFloat(5e-324)), "-323.306215343116"},
		{"LN", list(tFloat(5e-324)), "-744.440071921381"},
		{"LOG", list(tFloat(2.5), tFloat(5e-324)), "-0.00123084552596589"},
		{"POW", list(tFloat(5e-324), tFloat(0.5)), "2.22275874948508e-162"},
		{"L1_NORM", list(tFloats(1, inf)), "+Inf"},
		{"ACOS", list(tFloat(2)), "!Floating point error in function: ACOS(2)"},
		{"ATANH", list(tFloat(1)), "!Floating point error in function: ATANH(1)"},
		{"COSH", list(tFloat(1000)), "!Floating point overflow in function: COSH(1000)"},
		{"SIN", list(tFloat(inf)), "NaN"},
		{"COT", list(tFloat(0)), "!Floating point error in function: COT(0)"},
		{"CSC", list(tFloat(100)), "-1.9748575314241"},
		{"CSC", list(tFloat(0)), "!Floating point error in function: CSC(0)"},
		{"SEC", list(tFloat(100)), "1.15966382290469"},
		{"CSCH", list(tFloat(0.5)), "1.91903475133494"},
		{"SECH", list(tFloat(0.5)), "0.886818883970074"},
		{"COTH", list(tFloat(1)), "1.31303528549933"},
		{"ATAN2", list(tFloat(2), tFloat(3)), "0.588002603547568"},
		{"ACOS", list(tFloat(1)), "0"},
		{"ACOSH", list(tFloat(1)), "0"},
		{"ACOSH", list(tFloat(0.5)), "!Floating point error in function: ACOSH(0.5)"},
		{"ASIN", list(tFloat(1)), "1.5707963267949"},
		{"ASIN", list(tFloat(-1.5)), "!Floating point error in function: ASIN(-1.5)"},
		{"ASINH", list(tFloat(1)), "0.881373587019543"},
		{"ATAN", list(tFloat(inf)), "1.5707963267949"},
		{"ATANH", list(tFloat(0.5)), "0.549306144334055"},
		{"COS", list(tFloat(0)), "1"},
		{"COSH", list(tFloat(-inf)), "+Inf"},
		{"SIN", list(tFloat(0)), "0"},
		{"SINH", list(tFloat(-1000)), "!Floating point overflow in function: SINH(-1000)"},
		{"TAN", list(tFloat(1)), "1.5574077246549"},
		{"TANH", list(tFloat(1000)), "1"},
		{"RADIANS", list(tFloat(180)), "3.14159265358979"},
		{"DEGREES", list(tFloat(math.Pi)), "180"},
		{"SAFE_ADD", list(tFloat(1.5), tFloat(2)), "3.5"},
		{"SAFE_SUBTRACT", list(tInt(5), tInt(4)), "1"},
		{"SAFE_MULTIPLY", list(tInt(20), tInt(4)), "80"},
		{"SAFE_MULTIPLY", list(tInt(math.MinInt64), tInt(-1)), "NULL"},
		{"PI", nil, "3.14159265358979"},
		{"DIV", list(tInt(20), tInt(4)), "5"},
		{"DIV", list(tInt(12), tInt(-7)), "-1"},
		{"DIV", list(tInt(20), tInt(0)), "!division by zero: 20 / 0"},
		{"DIV", list(tInt(math.MinInt64), tInt(-1)), "!int64 overflow: --9223372036854775808"},
		{"MOD", list(tInt(25), tInt(12)), "1"},
		{"MOD", list(tInt(-7), tInt(4)), "-3"},
		{"MOD", list(tInt(math.MinInt64), tInt(-1)), "0"},
		{"MOD", list(tInt(25), tInt(0)), "!division by zero: MOD(25, 0)"},
		{"SAFE_ADD", list(tInt(5), tInt(4)), "9"},
		{"SAFE_ADD", list(tInt(math.MaxInt64), tInt(1)), "NULL"},
		{"SAFE_SUBTRACT", list(tInt(math.MinInt64), tInt(1)), "NULL"},
		{"SAFE_MULTIPLY", list(tFloat(1e300), tFloat(1e300)), "NULL"},
		{"SAFE_NEGATE", list(tInt(math.MinInt64)), "NULL"},
		{"SAFE_NEGATE", list(tInt(1)), "-1"},
		{"SAFE_DIVIDE", list(tFloat(20), tFloat(4)), "5"},
		{"SAFE_DIVIDE", list(tFloat(20), tFloat(0)), "NULL"},
		{"SAFE_DIVIDE", list(tFloat(1e300), tFloat(1e-300)), "NULL"},
		{"SAFE_DIVIDE", list(tFloat(inf), tFloat(2)), "+Inf"},
		{"GREATEST", list(tInt(3), tInt(5), tInt(1)), "5"},
		{"GREATEST", list(tInt(3), tNull(types.Int64Type)), "NULL"},
		{"GREATEST", list(tFloat(3), tFloat(nan), tFloat(7)), "NaN"},
		{"GREATEST", list(tText("a"), tText("b")), "b"},
		{"LEAST", list(tInt(3), tInt(5), tInt(1)), "1"},
		{"LEAST", list(tFloat(3), tFloat(nan), tFloat(7)), "NaN"},
		{"LEAST", list(tDay("2020-01-02"), tDay("2020-01-01")), "2020-01-01"},
		{"LEAST", list(tText("b"), tText("a"), tText("c")), "a"},
		{"CEIL", list(tFloat(2.3)), "3"},
		{"CEILING", list(tFloat(-2.8)), "-2"},
		{"FLOOR", list(tFloat(-2.3)), "-3"},
		{"TRUNC", list(tFloat(-2.8)), "-2"},
		{"TRUNC", list(tFloat(2.35), tInt(1)), "2.3"},
		{"TRUNC", list(tFloat(1234.56), tInt(-2)), "1200"},
		{"TRUNC", list(tFloat(-0.0051), tInt(3)), "-0.005"},
		{"ROUND", list(tFloat(2.5)), "3"},
		{"ROUND", list(tFloat(-2.5)), "-3"},
		{"ROUND", list(tFloat(2.35), tInt(1)), "2.4"},
		{"ROUND", list(tFloat(123.7), tInt(-1)), "120"},
		{"ROUND", list(tFloat(125), tInt(-1)), "130"},
		{"ROUND", list(tFloat(-1.235), tInt(2)), "-1.24"},
		{"ROUND", list(tFloat(1.235), tInt(-1000000000)), "0"},
		{"ROUND", list(tFloat(1.235), tInt(1000000000)), "1.235"},
		{"ROUND", list(tFloat(1e300), tInt(300)), "1e+300"},
		{"ROUND", list(tFloat(math.MaxFloat64), tInt(-308)), "!Floating point overflow in function: ROUND(1.79769e+308, 308)"},
		{"ROUND", list(tFloat(nan), tInt(2)), "NaN"},
		{"ROUND", list(tFloat(-inf), tInt(2)), "-Inf"},
		{"ROUND", list(tFloat(5e-324), tInt(323)), "0"},
		{"ROUND", list(tFloat(12345e-30), tInt(27)), "1.2e-26"},
		{"ROUND", list(tFloat(95e28), tInt(-29)), "1e+30"},
		{"ROUND", list(tFloat(95e28), tInt(-31)), "0"},
		{"ROUND", list(tSingle(2.35), tInt(1)), "2.3"},
		{"RANGE_BUCKET", list(tInt(20), tInts(0, 10, 20, 30, 40)), "3"},
		{"RANGE_BUCKET", list(tInt(20), tInts(0, 10, 20, 20, 40, 40)), "4"},
		{"RANGE_BUCKET", list(tInt(25), tInts(0, 10, 20, 30, 40)), "3"},
		{"RANGE_BUCKET", list(tInt(-10), tInts(5, 10, 20, 30, 40)), "0"},
		{"RANGE_BUCKET", list(tInt(80), tInts(0, 10, 20, 30, 40)), "5"},
		{"RANGE_BUCKET", list(tInt(80), tInts()), "0"},
		{"RANGE_BUCKET", list(tFloat(nan), tFloats(1, 2)), "NULL"},
		{"RANGE_BUCKET", list(tInt(30), tInts(10, 30, 20, 40, 50)), "!Elements in input array to RANGE_BUCKET must be in ascending order. Nonconforming elements found at position 2 and 3"},
		{"COSINE_DISTANCE", list(tFloats(1, 2), tFloats(3, 4)), "0.0161300899000926"},
		{"COSINE_DISTANCE", list(tList(row(1, 1), row(2, 2)), tList(row(2, 4), row(1, 3))), "0.0161300899000926"},
		{"COSINE_DISTANCE", list(tList(named("a", 1), named("b", 2)), tList(named("b", 4), named("a", 3))), "0.0161300899000926"},
		{"COSINE_DISTANCE", list(tFloats(0, 0), tFloats(3, 4)), "!Cannot compute cosine distance against zero vector"},
		{"COSINE_DISTANCE", list(tFloats(1), tFloats(3, 4)), "!Array length mismatch: 1 and 2"},
		{"COSINE_DISTANCE", list(tList(row(1, 1), row(1, 2)), tList(row(2, 4))), "!Duplicate index 1 found in the input array"},
		{"EUCLIDEAN_DISTANCE", list(tFloats(1, 2), tFloats(3, 4)), "2.82842712474619"},
		{"EUCLIDEAN_DISTANCE", list(tList(named("a", 10), named("b", 30), named("d", 40)), tList(named("a", 10), named("b", 30), named("d", 40))), "0"},
		{"EUCLIDEAN_DISTANCE", list(tList(row(1, 3)), tList(row(2, 4))), "5"},
		{"EUCLIDEAN_DISTANCE", list(tList(tFloat(1), tNull(types.Float64Type)), tFloats(3, 4)), "!NULL array element in first argument"},
		{"MANHATTAN_DISTANCE", list(tInts(1, 2), tInts(3, -4)), "8"},
		{"DOT_PRODUCT", list(tInts(1, 2), tInts(3, 4)), "11"},
		{"DOT_PRODUCT", list(tFloats(1e200), tFloats(1e200)), "!double overflow: 1e+200 * 1e+200"},
		{"L1_NORM", list(tInts(3, -4)), "7"},
		{"DOT_PRODUCT", list(tInts(1), tInts(1, 2)), "!Array arguments to DOT_PRODUCT must have equal length. The given arrays have lengths of 1 and 2"},
		{"L1_NORM", list(tList(tFloat(1), tNull(types.Float64Type))), "!Cannot compute L1_NORM with a NULL element, since it is unclear if NULLs should be ignored, counted as a zero value, or another interpretation. The NULL element was found in the array argument at OFFSET 1"},
		{"RANGE_BUCKET", list(tFloat(1), tFloats(nan, 1)), "!Elements in input array to RANGE_BUCKET cannot be NaN. NaN element found at position 1"},
		{"L2_NORM", list(tFloats(3, 4)), "5"},
	})
	for range 1000 {
		v, err := Lookup("RAND").Signatures[0].Eval(nil, nil)
		if err != nil || v.Float < 0 || v.Float >= 1 {
			t.Fatalf("RAND() = %v, %v", v.Float, err)
		}
	}
}

// TestRoundExact compares ROUND and TRUNC with rational arithmetic.
func TestRoundExact(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		x := math.Float64frombits(r.Uint64())
		if r.IntN(2) == 0 {
			x = float64(r.IntN(2_000_001)-1_000_000) / 1000
		}
		digits := int64(r.IntN(60) - 30)
		if !isFinite(x) {
			continue
		}
		exact := new(big.Rat).SetFloat64(x)
		scale := new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(max(digits, -digits)), nil))
		if digits < 0 {
			scale.Inv(scale)
		}
		exact.Mul(exact, scale)
		cut := new(big.Int).Quo(exact.Num(), exact.Denom())
		half := new(big.Rat).Sub(exact, new(big.Rat).SetInt(cut))
		near := new(big.Int).Set(cut)
		if half.Abs(half).Cmp(big.NewRat(1, 2)) >= 0 {
			near.Add(near, big.NewInt(int64(exact.Sign())))
		}
		for name, c := range map[string]struct {
			f    func(float64, int64) (float64, error)
			want *big.Int
		}{"ROUND": {roundDigits, near}, "TRUNC": {truncDigits, cut}} {
			got, err := c.f(x, digits)
			want, _ := new(big.Rat).Quo(new(big.Rat).SetInt(c.want), scale).Float64()
			if err != nil || got != want {
				t.Fatalf("%s(%v, %d) = %v, %v, want %v", name, x, digits, got, err, want)
			}
		}
	}
}
