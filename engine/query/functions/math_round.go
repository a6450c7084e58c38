package functions

import (
	"math"
	"strconv"

	"github.com/trestledb/trestle/engine/query/types"
)

// exactPowers is the largest exponent of ten that a float64 holds exactly.
const exactPowers = 22

// roundDigits rounds x, half away from zero, to that many digits behind the point: in
// front of it if digits is negative. The tie is that of the number that x is exactly.
func roundDigits(x float64, digits int64) (float64, error) { return cutDigits(x, digits, false) }

// truncDigits is roundDigits towards zero.
func truncDigits(x float64, digits int64) (float64, error) { return cutDigits(x, digits, true) }

func cutDigits(x float64, digits int64, toZero bool) (float64, error) {
	switch {
	case digits < -308 && isFinite(x):
		return 0, nil
	case digits > 323 || x == 0 || !isFinite(x):
		return x, nil
	case digits >= 0 && math.Abs(x) >= 1<<52:
		return x, nil // a whole number
	case digits > exactPowers || digits < -exactPowers:
		return roundFar(x, int(digits), toZero)
	}
	whole, rest, scale, ok := split(x, digits)
	if !ok {
		return roundFar(x, int(digits), toZero)
	}
	switch {
	case toZero && x > 0 && rest < 0, !toZero && rest <= -0.5:
		whole--
	case toZero && x < 0 && rest > 0, !toZero && rest >= 0.5:
		whole++
	}
	return unscale(x, whole, scale, digits), nil
}

// split returns x times ten to the digits, as a whole number and what it lacks, which is
// exact up to the last bit. It returns false if a float64 cannot hold them.
func split(x float64, digits int64) (whole, rest, scale float64, ok bool) {
	var p, e float64
	if digits >= 0 {
		scale = math.Pow10(int(digits))
		p = x * scale
		e = math.FMA(x, scale, -p)
	} else {
		scale = math.Pow10(int(-digits))
		p = x / scale
		e = math.FMA(-p, scale, x) / scale
	}
	if !isFinite(p) || math.Abs(p) >= 1<<53 {
		return 0, 0, 0, false
	}
	whole = math.Trunc(p)
	return whole, p - whole + e, scale, true
}

func unscale(x, whole, scale float64, digits int64) float64 {
	if digits >= 0 {
		whole /= scale
	} else {
		whole *= scale
	}
	return math.Copysign(whole, x)
}

// roundFar rounds, or cuts, x by its decimal digits, for digits that lie far from
// the point.
func roundFar(x float64, digits int, cut bool) (float64, error) {
	// x = d.ddd × 10^exponent: exponent+digits digits behind its point stay.
	text := strconv.FormatFloat(math.Abs(x), 'e', 766, 64)
	at := 0
	for text[at] != 'e' {
		at++
	}
	exponent, _ := strconv.Atoi(text[at+1:])
	keep := exponent + digits + 1 // digits of the mantissa
	if keep < 0 {
		return math.Copysign(0, x), nil
	}
	mantissa := text[:1] + text[2:at]
	if keep >= len(mantissa) {
		return x, nil
	}
	number := "0" + mantissa[:keep]
	up := !cut && mantissa[keep] >= '5'
	y, err := strconv.ParseFloat(number+"e"+strconv.Itoa(-digits), 64)
	if up {
		b := []byte(number)
		i := len(b) - 1
		for b[i] == '9' {
			b[i] = '0'
			i--
		}
		b[i]++
		y, err = strconv.ParseFloat(string(b)+"e"+strconv.Itoa(-digits), 64)
	}
	if err != nil {
		return 0, floatOverflow("ROUND", x, float64(-digits))
	}
	return math.Copysign(y, x), nil
}

// roundDigits32 rounds a FLOAT32, in the arithmetic of FLOAT64.
func roundDigits32(x float64, digits int64) (float64, error) {
	switch {
	case digits < -38 && isFinite(x):
		return 0, nil
	case digits > 44 || x == 0 || !isFinite(x):
		return x, nil
	}
	scale := math.Pow10(int(-digits))
	y := float64(float32(math.Round(x/scale) * scale))
	if !isFinite(y) {
		return 0, floatOverflow("ROUND", x, float64(-digits))
	}
	return y, nil
}

func truncDigits32(x float64, digits int64) (float64, error) {
	switch {
	case digits < -38 && isFinite(x):
		return 0, nil
	case digits > 44 || x == 0 || !isFinite(x):
		return x, nil
	}
	scale := math.Pow10(int(-digits))
	return float64(float32(math.Trunc(x/scale) * scale)), nil
}

func init() {
	digitsEval := func(f func(x float64, digits int64) (float64, error)) evalFunc {
		return func(_ *Call, args []types.Value) (types.Value, error) {
			y, err := f(args[0].Float, args[1].Int)
			if err != nil {
				return types.Null, err
			}
			return types.NewFloat(y), nil
		}
	}
	digitsKernel := func(f func(x float64, digits int64) (float64, error)) kernelFunc {
		return func(_ *Call, args []*types.Vector, out *types.Vector, sel []int32, n int) error {
			a, b := args[0], args[1]
			return eachRow(sel, n, func(i int) (err error) {
				if a.IsNull(i) || b.IsNull(i) {
					out.SetNull(i)
					return nil
				}
				out.Floats[i], err = f(a.Floats[a.At(i)], b.Ints[b.At(i)])
				return err
			})
		}
	}
	function := func(name, doc string, whole func(float64) float64, wide, narrow func(x float64, digits int64) (float64, error)) *Function {
		f := total(whole)
		return &Function{
			Name: name, Category: "Mathematical", Doc: doc,
			Signatures: []*Signature{
				signature(tFloat32, floatEval(f), floatUnaryKernel(f), tFloat32),
				signature(tFloat64, floatEval(f), floatUnaryKernel(f), tFloat64),
				signature(tFloat32, digitsEval(narrow), digitsKernel(narrow), tFloat32, tInt64),
				signature(tFloat64, digitsEval(wide), digitsKernel(wide), tFloat64, tInt64),
			},
		}
	}
	register(
		function("ROUND", "Rounds to a whole number, or to a number of digits, halves away from zero.", math.Round, roundDigits, roundDigits32),
		function("TRUNC", "Cuts to a whole number, or to a number of digits, towards zero.", math.Trunc, truncDigits, truncDigits32),
	)
}
