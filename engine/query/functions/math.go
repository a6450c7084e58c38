package functions

import (
	"math"
	"math/rand/v2"

	"github.com/trestledb/trestle/engine/query/types"
)

// floatFunc computes a function of one number.
type floatFunc = func(x float64) (float64, error)

// floatError is the error of a function that has no value at finite arguments.
func floatError(name string, args ...float64) error {
	return Errorf("Floating point error in function: %s", callText(name, args))
}

func floatOverflow(name string, args ...float64) error {
	return Errorf("Floating point overflow in function: %s", callText(name, args))
}

func callText(name string, args []float64) string {
	b := append([]byte(name), '(')
	for i, x := range args {
		if i > 0 {
			b = append(b, ", "...)
		}
		b = append(b, shortFloat(x)...)
	}
	return string(append(b, ')'))
}

// total makes a floatFunc of a function that has a value everywhere.
func total(f func(float64) float64) floatFunc {
	return func(x float64) (float64, error) { return f(x), nil }
}

// checked makes a floatFunc of a function that has no finite value at some finite
// arguments, which is an error.
func checked(name string, f func(float64) float64) floatFunc {
	return func(x float64) (float64, error) {
		y := f(x)
		if !isFinite(y) && isFinite(x) {
			return 0, floatError(name, x)
		}
		return y, nil
	}
}

// overflowing is checked for functions that grow beyond all bounds.
func overflowing(name string, f func(float64) float64) floatFunc {
	return func(x float64) (float64, error) {
		y := f(x)
		if !isFinite(y) && isFinite(x) {
			return 0, floatOverflow(name, x)
		}
		return y, nil
	}
}

func floatEval(f floatFunc) evalFunc {
	return func(_ *Call, args []types.Value) (types.Value, error) {
		y, err := f(args[0].Float)
		if err != nil {
			return types.Null, err
		}
		return types.NewFloat(y), nil
	}
}

func floatUnaryKernel(f floatFunc) kernelFunc {
	return func(_ *Call, args []*types.Vector, out *types.Vector, sel []int32, n int) error {
		a := args[0]
		return eachRow(sel, n, func(i int) (err error) {
			if a.IsNull(i) {
				out.SetNull(i)
				return nil
			}
			out.Floats[i], err = f(a.Floats[a.At(i)])
			return err
		})
	}
}

// float32Func rounds what f returns to a FLOAT32.
func float32Func(f floatFunc) floatFunc {
	return func(x float64) (float64, error) {
		y, err := f(x)
		return float64(float32(y)), err
	}
}

// binaryFloat returns the Eval of a function of two numbers.
func binaryFloat(f func(x, y float64) (float64, error)) evalFunc {
	return func(_ *Call, args []types.Value) (types.Value, error) {
		z, err := f(args[0].Float, args[1].Float)
		if err != nil {
			return types.Null, err
		}
		return types.NewFloat(z), nil
	}
}

func sqrt(x float64) (float64, error) {
	if x < 0 {
		return 0, Errorf("Argument to SQRT cannot be negative: %s", shortFloat(x))
	}
	return math.Sqrt(x), nil
}

func power(x, y float64) (float64, error) {
	z := math.Pow(x, y)
	if a := math.Abs(x); a > 0 && a < smallest && isFinite(y) {
		z = math.Pow(x*scaleUp, y) * math.Exp2(-scaleLog*y)
	}
	if !isFinite(z) && isFinite(x) && isFinite(y) {
		return 0, floatError("POW", x, y)
	}
	return z, nil
}

// Below smallest, the least number of full precision, package math has wrong
// logarithms on some processors: such numbers are scaled up first.
const (
	smallest = 0x1p-1022
	scaleUp  = 0x1p64
	scaleLog = 64
)

func naturalLog(x float64) float64 {
	if x > 0 && x < smallest {
		return math.Log(x*scaleUp) - scaleLog*math.Ln2
	}
	return math.Log(x)
}

// decimalLog computes in two parts, as math.Log10 is off by one in the last
// digit for every fifth number.
func decimalLog(x float64) float64 {
	const (
		log2hi, log2lo = 0x1.34413509f6p-2, 3.69423907715893078616e-13 // log10(2)
		invhi, invlo   = 0.4342944819032518, 1.098319650216765e-17     // 1/ln(10)
	)
	if !(x > 0) || math.IsInf(x, 1) {
		return math.Log10(x)
	}
	m, e := math.Frexp(x)
	if m < math.Sqrt2/2 {
		m *= 2
		e--
	}
	l, k := math.Log(m), float64(e)
	product := l * invhi
	rest := math.FMA(l, invhi, -product) + l*invlo + k*log2lo
	whole := k * log2hi
	sum := whole + product
	b := sum - whole
	rest += (whole - (sum - b)) + (product - b)
	return sum + rest
}

func logBase(x, base float64) (float64, error) {
	z := math.NaN()
	if isFinite(base) && base > 0 {
		z = naturalLog(x) / naturalLog(base)
	}
	if !isFinite(z) && isFinite(x) && isFinite(base) {
		return 0, floatError("LOG", x, base)
	}
	return z, nil
}

func sign(x float64) float64 {
	switch {
	case x > 0:
		return 1
	case x < 0:
		return -1
	case x == 0:
		return 0
	}
	return x
}

func absInt(_ *Call, args []types.Value) (types.Value, error) {
	x := args[0].Int
	if x == math.MinInt64 {
		return types.Null, Errorf("int64 overflow: -%d", x)
	}
	return types.NewInt(max(x, -x)), nil
}

// intUnaryKernel returns the Kernel of a function of one integer: f returns false if the
// result does not fit.
func intUnaryKernel(f func(x int64) (int64, bool)) kernelFunc {
	return func(_ *Call, args []*types.Vector, out *types.Vector, sel []int32, n int) error {
		a := args[0]
		return eachRow(sel, n, func(i int) error {
			if a.IsNull(i) {
				out.SetNull(i)
				return nil
			}
			y, ok := f(a.Ints[a.At(i)])
			if !ok {
				return errRow
			}
			out.Ints[i] = y
			return nil
		})
	}
}

// intBinaryKernel is the same for two integers.
func intBinaryKernel(f func(x, y int64) (int64, bool)) kernelFunc {
	return func(_ *Call, args []*types.Vector, out *types.Vector, sel []int32, n int) error {
		a, b := args[0], args[1]
		return eachRow(sel, n, func(i int) error {
			if a.IsNull(i) || b.IsNull(i) {
				out.SetNull(i)
				return nil
			}
			z, ok := f(a.Ints[a.At(i)], b.Ints[b.At(i)])
			if !ok {
				return errRow
			}
			out.Ints[i] = z
			return nil
		})
	}
}

func modulo(_ *Call, args []types.Value) (types.Value, error) {
	x, y := args[0].Int, args[1].Int
	if y == 0 {
		return types.Null, Errorf("division by zero: MOD(%d, %d)", x, y)
	}
	return types.NewInt(x % y), nil
}

func divide(_ *Call, args []types.Value) (types.Value, error) {
	x, y := args[0].Int, args[1].Int
	switch {
	case y == 0:
		return types.Null, Errorf("division by zero: %d / %d", x, y)
	case y == -1 && x == math.MinInt64:
		return types.Null, Errorf("int64 overflow: -%d", x)
	}
	return types.NewInt(x / y), nil
}

// safely returns an Eval that is NULL where eval has an error of its value.
func safely(eval evalFunc) evalFunc {
	return func(c *Call, args []types.Value) (types.Value, error) {
		v, err := eval(c, args)
		if err != nil {
			return types.Null, nil
		}
		return v, nil
	}
}

func safeDivide(_ *Call, args []types.Value) (types.Value, error) {
	x, y := args[0].Float, args[1].Float
	z := x / y
	if y == 0 || !isFinite(z) && isFinite(x) && isFinite(y) {
		return types.Null, nil
	}
	return types.NewFloat(z), nil
}

// extreme returns the Eval of GREATEST (sign 1) or LEAST (sign -1). NaN wins over every
// number.
func extreme(sign int) evalFunc {
	return func(c *Call, args []types.Value) (types.Value, error) {
		t, best := c.Result, args[0]
		for _, v := range args {
			if t.IsFloat() && v.Float != v.Float {
				return v, nil
			}
			if types.Compare(t, v, best)*sign > 0 {
				best = v
			}
		}
		return best, nil
	}
}

func extremeKernel(sign int) kernelFunc {
	eval := extreme(sign)
	return func(c *Call, args []*types.Vector, out *types.Vector, sel []int32, n int) error {
		kind := c.Result.Kind
		row := make([]types.Value, len(args))
		return eachRow(sel, n, func(i int) error {
			for _, a := range args {
				if a.IsNull(i) {
					out.SetNull(i)
					return nil
				}
			}
			switch kind {
			case types.Int64, types.Date, types.Timestamp, types.Bool, types.Enum:
				best := args[0].Ints[args[0].At(i)]
				for _, a := range args[1:] {
					if x := a.Ints[a.At(i)]; x > best == (sign > 0) {
						best = x
					}
				}
				out.Ints[i] = best
			case types.Float32, types.Float64:
				best := args[0].Floats[args[0].At(i)]
				for _, a := range args[1:] {
					x := a.Floats[a.At(i)]
					if x != x || (x > best) == (sign > 0) && x != best && best == best {
						best = x
					}
				}
				out.Floats[i] = best
			default:
				for j, a := range args {
					row[j] = a.Value(i)
				}
				best, err := eval(c, row)
				if err != nil {
					return err
				}
				out.Set(i, best)
			}
			return nil
		})
	}
}

// rangeBucket returns how many elements of an ascending array are not above a point:
// RANGE_BUCKET.
func rangeBucket(c *Call, args []types.Value) (types.Value, error) {
	t, point, list := c.Types[0], args[0], args[1].List
	if t.IsFloat() && point.Float != point.Float {
		return types.Null, nil
	}
	for i, v := range list {
		switch {
		case i > 0 && types.Compare(t, list[i-1], v) > 0:
			return types.Null, Errorf("Elements in input array to RANGE_BUCKET must be in ascending order. Nonconforming elements found at position %d and %d", i, i+1)
		case !v.Valid:
			return types.Null, Errorf("Elements in input array to RANGE_BUCKET cannot be null. Null element found at position %d", i+1)
		case t.IsFloat() && v.Float != v.Float:
			return types.Null, Errorf("Elements in input array to RANGE_BUCKET cannot be NaN. NaN element found at position %d", i+1)
		}
	}
	low, high := 0, len(list)
	for low < high {
		mid := int(uint(low+high) / 2)
		if types.Compare(t, list[mid], point) <= 0 {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return types.NewInt(int64(low)), nil
}

func init() {
	unary := func(name, doc string, f floatFunc) *Function {
		return &Function{
			Name: name, Category: "Mathematical", Doc: doc,
			Signatures: []*Signature{signature(tFloat64, floatEval(f), floatUnaryKernel(f), tFloat64)},
		}
	}
	// both is unary for functions that have a FLOAT32 for a FLOAT32, too.
	both := func(name, doc string, f floatFunc) *Function {
		fn, g := unary(name, doc, f), float32Func(f)
		fn.Signatures = append([]*Signature{signature(tFloat32, floatEval(g), floatUnaryKernel(g), tFloat32)}, fn.Signatures...)
		return fn
	}
	binary := func(name, doc string, f func(x, y float64) (float64, error)) *Function {
		return &Function{Name: name, Category: "Mathematical", Doc: doc, Signatures: []*Signature{signature(tFloat64, binaryFloat(f), nil, tFloat64, tFloat64)}}
	}
	test := func(name, doc string, f func(x float64) bool) *Function {
		eval := func(_ *Call, args []types.Value) (types.Value, error) { return types.NewBool(f(args[0].Float)), nil }
		return &Function{
			Name: name, Category: "Mathematical", Doc: doc,
			Signatures: []*Signature{signature(tBool, eval, nil, tFloat64)},
		}
	}
	safe := func(name, doc string, list ...*Signature) *Function {
		return &Function{Name: name, Category: "Mathematical", Doc: doc, Signatures: list}
	}
	// reciprocal is the error-checked 1/f.
	reciprocal := func(name string, f func(float64) float64) floatFunc {
		return checked(name, func(x float64) float64 { return 1 / f(x) })
	}
	abs := both("ABS", "Returns the absolute value.", total(math.Abs))
	abs.Signatures = append([]*Signature{signature(tInt64, absInt, intUnaryKernel(func(x int64) (int64, bool) { return max(x, -x), x != math.MinInt64 }), tInt64)}, abs.Signatures...)
	signFunction := both("SIGN", "Returns -1, 0 or 1 for negative numbers, zero and positive ones.", total(sign))
	signFunction.Signatures = append([]*Signature{signature(tInt64, func(_ *Call, args []types.Value) (types.Value, error) {
		return types.NewInt(args[0].Int>>63 | int64(uint64(-args[0].Int)>>63)), nil
	}, nil, tInt64)}, signFunction.Signatures...)
	ln, log := floatEval(checked("LN", naturalLog)), binaryFloat(logBase)
	logarithm := &Function{
		Name: "LOG", Category: "Mathematical", Doc: "Returns the natural logarithm, or that of a base.",
		Signatures: []*Signature{{
			Args: []Arg{{Type: tFloat64}, {Type: tFloat64, Optional: true}}, Result: tFloat64,
			Eval: func(c *Call, args []types.Value) (types.Value, error) {
				if hasArg(c, args, 1) {
					return log(c, args)
				}
				return ln(c, args)
			},
		}},
	}
	ceiling := both("CEIL", "Returns the smallest whole number that is not smaller.", total(math.Ceil))
	ceiling.Aliases = []string{"CEILING"}
	pow := binary("POW", "Returns the first argument raised to the power of the second.", power)
	pow.Aliases = []string{"POWER"}
	ieee := binary("IEEE_DIVIDE", "Returns the quotient as IEEE 754 has it: without errors.", func(x, y float64) (float64, error) { return x / y, nil })
	ieee.Signatures = append(ieee.Signatures, signature(tFloat32, binaryFloat(func(x, y float64) (float64, error) {
		return float64(float32(x) / float32(y)), nil
	}), nil, tFloat32, tFloat32))
	value := AnyT("T")
	choose := func(name, doc string, sign int) *Function {
		refuse := func(args []*types.Type) string {
			for _, t := range args {
				if t != nil && !t.SupportsOrder() {
					return name + " is not defined for arguments of type " + t.String()
				}
			}
			return ""
		}
		return &Function{Name: name, Category: "Mathematical", Doc: doc, Refuse: refuse, Signatures: []*Signature{{
			Args: []Arg{{Type: value}, {Type: value, Repeated: true}}, Result: value, Eval: extreme(sign), Kernel: extremeKernel(sign),
		}}}
	}
	register(
		abs, signFunction, logarithm, ceiling, pow, ieee,
		both("FLOOR", "Returns the largest whole number that is not larger.", total(math.Floor)),
		unary("SQRT", "Returns the square root.", sqrt),
		unary("CBRT", "Returns the cube root.", total(math.Cbrt)),
		unary("EXP", "Returns e raised to a power.", checked("EXP", math.Exp)),
		unary("LN", "Returns the natural logarithm.", checked("LN", naturalLog)),
		unary("LOG10", "Returns the logarithm to base 10.", checked("LOG10", decimalLog)),
		unary("COS", "Returns the cosine.", total(math.Cos)),
		unary("COSH", "Returns the hyperbolic cosine.", overflowing("COSH", math.Cosh)),
		unary("ACOS", "Returns the inverse of the cosine.", checked("ACOS", math.Acos)),
		unary("ACOSH", "Returns the inverse of the hyperbolic cosine.", checked("ACOSH", math.Acosh)),
		unary("COT", "Returns the cotangent.", reciprocal("COT", math.Tan)),
		unary("COTH", "Returns the hyperbolic cotangent.", reciprocal("COTH", math.Tanh)),
		unary("CSC", "Returns the cosecant.", reciprocal("CSC", math.Sin)),
		unary("CSCH", "Returns the hyperbolic cosecant.", reciprocal("CSCH", math.Sinh)),
		unary("SEC", "Returns the secant.", reciprocal("SEC", math.Cos)),
		unary("SECH", "Returns the hyperbolic secant.", reciprocal("SECH", math.Cosh)),
		unary("SIN", "Returns the sine.", total(math.Sin)),
		unary("SINH", "Returns the hyperbolic sine.", overflowing("SINH", math.Sinh)),
		unary("ASIN", "Returns the inverse of the sine.", checked("ASIN", math.Asin)),
		unary("ASINH", "Returns the inverse of the hyperbolic sine.", checked("ASINH", math.Asinh)),
		unary("TAN", "Returns the tangent.", overflowing("TAN", math.Tan)),
		unary("TANH", "Returns the hyperbolic tangent.", total(math.Tanh)),
		unary("ATAN", "Returns the inverse of the tangent.", total(math.Atan)),
		unary("ATANH", "Returns the inverse of the hyperbolic tangent.", checked("ATANH", math.Atanh)),
		unary("RADIANS", "Returns degrees as radians.", overflowing("RADIANS", func(x float64) float64 { return x * math.Pi / 180 })),
		unary("DEGREES", "Returns radians as degrees.", overflowing("DEGREES", func(x float64) float64 { return x * 180 / math.Pi })),
		binary("ATAN2", "Returns the angle of a point, from its y and x.", func(y, x float64) (float64, error) { return math.Atan2(y, x), nil }),
		test("IS_INF", "Tells whether a number is infinite.", func(x float64) bool { return math.IsInf(x, 0) }),
		test("IS_NAN", "Tells whether a number is NaN.", func(x float64) bool { return x != x }),
		&Function{
			Name: "PI", Category: "Mathematical", Doc: "Returns π.",
			Signatures: []*Signature{{Result: tFloat64, Eval: func(*Call, []types.Value) (types.Value, error) { return types.NewFloat(math.Pi), nil }}},
		},
		&Function{
			Name: "RAND", Category: "Mathematical", Doc: "Returns a random number from 0 to 1, without 1.", Volatile: true,
			Signatures: []*Signature{{Result: tFloat64, Eval: func(*Call, []types.Value) (types.Value, error) { return types.NewFloat(rand.Float64()), nil }}},
		},
		&Function{
			Name: "MOD", Category: "Mathematical", Doc: "Returns the remainder of a division, with the sign of the dividend.",
			Signatures: []*Signature{signature(tInt64, modulo, intBinaryKernel(func(x, y int64) (int64, bool) {
				if y == 0 {
					return 0, false
				}
				return x % y, true
			}), tInt64, tInt64)},
		},
		&Function{
			Name: "DIV", Category: "Mathematical", Doc: "Returns the quotient of two integers, cut to a whole number.",
			Signatures: []*Signature{signature(tInt64, divide, intBinaryKernel(func(x, y int64) (int64, bool) {
				if y == 0 || y == -1 && x == math.MinInt64 {
					return 0, false
				}
				return x / y, true
			}), tInt64, tInt64)},
		},
		safe("SAFE_ADD", "Returns the sum, NULL if it overflows.",
			signature(tInt64, safely(evalAddInts), nil, tInt64, tInt64), signature(tFloat64, safely(evalAddFloats), nil, tFloat64, tFloat64)),
		safe("SAFE_SUBTRACT", "Returns the difference, NULL if it overflows.",
			signature(tInt64, safely(evalSubtractInts), nil, tInt64, tInt64), signature(tFloat64, safely(evalSubtractFloats), nil, tFloat64, tFloat64)),
		safe("SAFE_MULTIPLY", "Returns the product, NULL if it overflows.",
			signature(tInt64, safely(evalMultiplyInts), nil, tInt64, tInt64), signature(tFloat64, safely(evalMultiplyFloats), nil, tFloat64, tFloat64)),
		safe("SAFE_NEGATE", "Returns the negative, NULL if it overflows.",
			signature(tInt64, safely(evalNegateInt), nil, tInt64), signature(tFloat32, evalNegateFloat, nil, tFloat32), signature(tFloat64, evalNegateFloat, nil, tFloat64)),
		safe("SAFE_DIVIDE", "Returns the quotient, NULL if it overflows or the divisor is zero.",
			signature(tFloat64, safeDivide, nil, tFloat64, tFloat64)),
		choose("GREATEST", "Returns the largest argument, NULL if one is NULL.", 1),
		choose("LEAST", "Returns the smallest argument, NULL if one is NULL.", -1),
		&Function{
			Name: "RANGE_BUCKET", Category: "Mathematical", Doc: "Returns how many elements of an ascending array are not above a point.",
			Signatures: []*Signature{{Args: []Arg{{Type: value}, {Type: ArrayT(value)}}, Check: ordered1, Result: tInt64, Eval: rangeBucket}},
		},
	)
}

// ordered1 is the Check of RANGE_BUCKET.
func ordered1(args []*types.Type) string {
	if t := args[0]; t != nil && !t.SupportsOrder() {
		return "First argument to RANGE_BUCKET of type " + t.String() + " does not support ordering"
	}
	return ""
}
