package functions

import (
	"errors"
	"math"
	"math/bits"
	"strconv"

	"github.com/trestledb/trestle/engine/query/types"
)

// errRow makes exec evaluate a batch row by row, so that the first row that fails
// gives the message.
var errRow = errors.New("a row of the batch fails")

// shortFloat writes f with six digits, as messages do.
func shortFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	return strconv.FormatFloat(f, 'g', 6, 64)
}

func isFinite(f float64) bool { return f-f == 0 }

func intOverflow(x int64, op string, y int64) error {
	return Errorf("int64 overflow: %d %s %d", x, op, y)
}

// floatResult returns r, or an error if r overflowed: a finite x and y have a result
// that is not finite.
func floatResult(r, x float64, op string, y float64) (types.Value, error) {
	if !isFinite(r) && isFinite(x) && isFinite(y) {
		return types.Null, Errorf("double overflow: %s %s %s", shortFloat(x), op, shortFloat(y))
	}
	return types.NewFloat(r), nil
}

func evalAddInts(_ *Call, args []types.Value) (types.Value, error) {
	x, y := args[0].Int, args[1].Int
	s := x + y
	if (x^s)&(y^s) < 0 {
		return types.Null, intOverflow(x, "+", y)
	}
	return types.NewInt(s), nil
}

func evalSubtractInts(_ *Call, args []types.Value) (types.Value, error) {
	x, y := args[0].Int, args[1].Int
	d := x - y
	if (x^y)&(x^d) < 0 {
		return types.Null, intOverflow(x, "-", y)
	}
	return types.NewInt(d), nil
}

func evalMultiplyInts(_ *Call, args []types.Value) (types.Value, error) {
	x, y := args[0].Int, args[1].Int
	p, ok := multiplyInt64(x, y)
	if !ok {
		return types.Null, intOverflow(x, "*", y)
	}
	return types.NewInt(p), nil
}

// multiplyInt64 returns x*y and whether it fits.
func multiplyInt64(x, y int64) (int64, bool) {
	hi, lo := bits.Mul64(uint64(x), uint64(y))
	// The signed high word is the unsigned one less a correction for each negative factor.
	signed := int64(hi) - (x>>63)&y - (y>>63)&x
	return int64(lo), signed == int64(lo)>>63
}

func evalAddFloats(_ *Call, args []types.Value) (types.Value, error) {
	x, y := args[0].Float, args[1].Float
	return floatResult(x+y, x, "+", y)
}

func evalSubtractFloats(_ *Call, args []types.Value) (types.Value, error) {
	x, y := args[0].Float, args[1].Float
	return floatResult(x-y, x, "-", y)
}

func evalMultiplyFloats(_ *Call, args []types.Value) (types.Value, error) {
	x, y := args[0].Float, args[1].Float
	return floatResult(x*y, x, "*", y)
}

func evalDivide(_ *Call, args []types.Value) (types.Value, error) {
	x, y := args[0].Float, args[1].Float
	if y == 0 {
		return types.Null, Errorf("division by zero: %s / %s", shortFloat(x), shortFloat(y))
	}
	return floatResult(x/y, x, "/", y)
}

func evalNegateInt(_ *Call, args []types.Value) (types.Value, error) {
	if args[0].Int == math.MinInt64 {
		return types.Null, Errorf("int64 overflow: -%d", args[0].Int)
	}
	return types.NewInt(-args[0].Int), nil
}

func evalNegateFloat(_ *Call, args []types.Value) (types.Value, error) {
	return types.NewFloat(-args[0].Float), nil
}

// addDays returns day+delta, where sign is the word of the message.
func addDays(day, delta int64, verb string) (types.Value, error) {
	sum := day + delta
	if delta > maxDate-minDate || delta < minDate-maxDate || sum < minDate || sum > maxDate {
		if verb == "Subtracting" {
			return types.Null, Errorf("Subtracting %d DAY from date %s causes overflow", -delta, dateString(day))
		}
		return types.Null, Errorf("Adding %d DAY to date %s causes overflow", delta, dateString(day))
	}
	return types.NewInt(sum), nil
}

func evalAddDays(_ *Call, args []types.Value) (types.Value, error) {
	return addDays(args[0].Int, args[1].Int, "Adding")
}

func evalDaysAdd(_ *Call, args []types.Value) (types.Value, error) {
	return addDays(args[1].Int, args[0].Int, "Adding")
}

func evalSubtractDays(_ *Call, args []types.Value) (types.Value, error) {
	if args[1].Int == math.MinInt64 {
		return types.Null, Errorf("Subtracting %d DAY from date %s causes overflow", args[1].Int, dateString(args[0].Int))
	}
	return addDays(args[0].Int, -args[1].Int, "Subtracting")
}

// Kernels. Each has a loop for the case without NULLs, constants and selection; the
// others take a row at a time.

func addInts(_ *Call, args []*types.Vector, out *types.Vector, sel []int32, n int) error {
	state := mergeNulls(out, sel, n, args...)
	if state == allNulls {
		return nil
	}
	a, b := args[0], args[1]
	if a.Const {
		a, b = b, a
	}
	var overflow int64
	switch {
	case sel == nil && state == noNulls && !a.Const && b.Const:
		y := b.Ints[0]
		dst := out.Ints[:n]
		for i, x := range a.Ints[:n] {
			s := x + y
			overflow |= (x ^ s) & (y ^ s)
			dst[i] = s
		}
	case sel == nil && state == noNulls && !a.Const:
		dst, ys := out.Ints[:n], b.Ints[:n]
		for i, x := range a.Ints[:n] {
			y := ys[i]
			s := x + y
			overflow |= (x ^ s) & (y ^ s)
			dst[i] = s
		}
	default:
		return arithmeticRows(a.Ints, b.Ints, a.Const, b.Const, out.Ints, out.Null, sel, n, func(x, y int64) (int64, bool) {
			s := x + y
			return s, (x^s)&(y^s) >= 0
		})
	}
	if overflow < 0 {
		return errRow
	}
	return nil
}

func subtractInts(_ *Call, args []*types.Vector, out *types.Vector, sel []int32, n int) error {
	state := mergeNulls(out, sel, n, args...)
	if state == allNulls {
		return nil
	}
	a, b := args[0], args[1]
	var overflow int64
	switch {
	case sel == nil && state == noNulls && !a.Const && b.Const:
		y := b.Ints[0]
		dst := out.Ints[:n]
		for i, x := range a.Ints[:n] {
			d := x - y
			overflow |= (x ^ y) & (x ^ d)
			dst[i] = d
		}
	case sel == nil && state == noNulls && !a.Const:
		dst, ys := out.Ints[:n], b.Ints[:n]
		for i, x := range a.Ints[:n] {
			y := ys[i]
			d := x - y
			overflow |= (x ^ y) & (x ^ d)
			dst[i] = d
		}
	default:
		return arithmeticRows(a.Ints, b.Ints, a.Const, b.Const, out.Ints, out.Null, sel, n, func(x, y int64) (int64, bool) {
			d := x - y
			return d, (x^y)&(x^d) >= 0
		})
	}
	if overflow < 0 {
		return errRow
	}
	return nil
}

func multiplyInts(_ *Call, args []*types.Vector, out *types.Vector, sel []int32, n int) error {
	if mergeNulls(out, sel, n, args...) == allNulls {
		return nil
	}
	a, b := args[0], args[1]
	return arithmeticRows(a.Ints, b.Ints, a.Const, b.Const, out.Ints, out.Null, sel, n, multiplyInt64)
}

// arithmeticRows computes f for each row that is not NULL, and returns errRow if one
// does not fit.
func arithmeticRows[T int64 | float64](a, b []T, aConst, bConst bool, out []T, null []bool, sel []int32, n int, f func(x, y T) (T, bool)) error {
	row := func(i int) bool {
		if null != nil && null[i] {
			return true
		}
		x, y := i, i
		if aConst {
			x = 0
		}
		if bConst {
			y = 0
		}
		r, ok := f(a[x], b[y])
		out[i] = r
		return ok
	}
	if sel == nil {
		for i := range n {
			if !row(i) {
				return errRow
			}
		}
		return nil
	}
	for _, i := range sel {
		if !row(int(i)) {
			return errRow
		}
	}
	return nil
}

func addFloats(_ *Call, args []*types.Vector, out *types.Vector, sel []int32, n int) error {
	return floatRows(args, out, sel, n, func(x, y float64) (float64, bool) {
		r := x + y
		return r, isFinite(r) || !isFinite(x) || !isFinite(y)
	}, func(dst, xs, ys []float64) (bad bool) {
		for i, x := range xs {
			r := x + ys[i]
			dst[i] = r
			bad = bad || r-r != 0
		}
		return bad
	})
}

func subtractFloats(_ *Call, args []*types.Vector, out *types.Vector, sel []int32, n int) error {
	return floatRows(args, out, sel, n, func(x, y float64) (float64, bool) {
		r := x - y
		return r, isFinite(r) || !isFinite(x) || !isFinite(y)
	}, func(dst, xs, ys []float64) (bad bool) {
		for i, x := range xs {
			r := x - ys[i]
			dst[i] = r
			bad = bad || r-r != 0
		}
		return bad
	})
}

func multiplyFloats(_ *Call, args []*types.Vector, out *types.Vector, sel []int32, n int) error {
	return floatRows(args, out, sel, n, func(x, y float64) (float64, bool) {
		r := x * y
		return r, isFinite(r) || !isFinite(x) || !isFinite(y)
	}, func(dst, xs, ys []float64) (bad bool) {
		for i, x := range xs {
			r := x * ys[i]
			dst[i] = r
			bad = bad || r-r != 0
		}
		return bad
	})
}

func divideFloats(_ *Call, args []*types.Vector, out *types.Vector, sel []int32, n int) error {
	return floatRows(args, out, sel, n, func(x, y float64) (float64, bool) {
		r := x / y
		return r, y != 0 && (isFinite(r) || !isFinite(x) || !isFinite(y))
	}, func(dst, xs, ys []float64) (bad bool) {
		for i, x := range xs {
			r := x / ys[i] // of a zero it is not finite
			dst[i] = r
			bad = bad || r-r != 0
		}
		return bad
	})
}

// floatRows computes a function of two floats: with dense where neither NULLs nor
// constants are, and again with f, which tells errors from infinities that the arguments
// brought along, where dense meets a result that is not finite.
func floatRows(args []*types.Vector, out *types.Vector, sel []int32, n int, f func(x, y float64) (float64, bool), dense func(dst, xs, ys []float64) bool) error {
	state := mergeNulls(out, sel, n, args...)
	if state == allNulls {
		return nil
	}
	a, b := args[0], args[1]
	if sel == nil && state == noNulls && !a.Const && !b.Const && !dense(out.Floats[:n], a.Floats[:n], b.Floats[:n]) {
		return nil
	}
	return arithmeticRows(a.Floats, b.Floats, a.Const, b.Const, out.Floats, out.Null, sel, n, f)
}

// Operators on bits.

func evalNotInt(_ *Call, args []types.Value) (types.Value, error) {
	return types.NewInt(^args[0].Int), nil
}

func evalNotBytes(c *Call, args []types.Value) (types.Value, error) {
	b, err := growBytes(c, len(args[0].Str))
	if err != nil {
		return types.Null, err
	}
	for i := range b {
		b[i] = ^args[0].Str[i]
	}
	return types.NewString(string(b)), nil
}

func bitwiseInts(f func(x, y int64) int64) evalFunc {
	return func(_ *Call, args []types.Value) (types.Value, error) {
		return types.NewInt(f(args[0].Int, args[1].Int)), nil
	}
}

func bitwiseBytes(f func(x, y byte) byte) evalFunc {
	return func(c *Call, args []types.Value) (types.Value, error) {
		x, y := args[0].Str, args[1].Str
		if len(x) != len(y) {
			return types.Null, Errorf("Bitwise binary operator for BYTES requires equal length of the inputs. "+
				"Got %d bytes on the left hand side and %d bytes on the right hand side.", len(x), len(y))
		}
		b, err := growBytes(c, len(x))
		if err != nil {
			return types.Null, err
		}
		for i := range b {
			b[i] = f(x[i], y[i])
		}
		return types.NewString(string(b)), nil
	}
}

func checkShift(by int64) error {
	if by < 0 {
		return Errorf("Bitwise shift by negative offset.")
	}
	return nil
}

func evalShiftLeftInt(_ *Call, args []types.Value) (types.Value, error) {
	return types.NewInt(int64(uint64(args[0].Int) << uint64(args[1].Int))), checkShift(args[1].Int)
}

func evalShiftRightInt(_ *Call, args []types.Value) (types.Value, error) {
	return types.NewInt(int64(uint64(args[0].Int) >> uint64(args[1].Int))), checkShift(args[1].Int)
}

func evalShiftLeftBytes(c *Call, args []types.Value) (types.Value, error) {
	s, by := args[0].Str, args[1].Int
	if err := checkShift(by); err != nil {
		return types.Null, err
	}
	out, err := growBytes(c, len(s))
	if err != nil {
		return types.Null, err
	}
	if by/8 < int64(len(s)) {
		whole, rest := int(by/8), uint(by%8)
		for i := whole; i < len(s); i++ {
			w := uint16(s[i]) << 8
			if i+1 < len(s) {
				w |= uint16(s[i+1])
			}
			out[i-whole] = byte(w << rest >> 8)
		}
	}
	return types.NewString(string(out)), nil
}

func evalShiftRightBytes(c *Call, args []types.Value) (types.Value, error) {
	s, by := args[0].Str, args[1].Int
	if err := checkShift(by); err != nil {
		return types.Null, err
	}
	out, err := growBytes(c, len(s))
	if err != nil {
		return types.Null, err
	}
	if by/8 < int64(len(s)) {
		whole, rest := int(by/8), uint(by%8)
		for i := 0; i+whole < len(s); i++ {
			w := uint16(s[i])
			if i > 0 {
				w |= uint16(s[i-1]) << 8
			}
			out[i+whole] = byte(w >> rest)
		}
	}
	return types.NewString(string(out)), nil
}
