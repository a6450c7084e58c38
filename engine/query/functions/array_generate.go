package functions

import (
	"math"

	"github.com/trestledb/trestle/engine/query/types"
)

func generateInts(c *Call, args []types.Value) (types.Value, error) {
	start, step := args[0].Int, int64(1)
	if hasArg(c, args, 2) {
		step = args[2].Int
	}
	return generate(c, start, args[1].Int, step, func(n int, _ int64) (int64, bool) {
		p, ok := multiplyInt64(int64(n), step)
		s := start + p
		return s, ok && (start^s)&(p^s) >= 0
	})
}

func generateFloats(c *Call, args []types.Value) (types.Value, error) {
	start, end, step := args[0].Float, args[1].Float, 1.0
	if hasArg(c, args, 2) {
		step = args[2].Float
	}
	switch {
	case step == 0:
		return types.Null, Errorf("Sequence step cannot be 0.")
	case start != start || end != end || step != step:
		return types.Null, Errorf("Sequence start, end, and step cannot be NaN.")
	case math.IsInf(step, 0):
		return types.Null, Errorf("Sequence step cannot be +/-inf.")
	}
	out := []types.Value{}
	if start < end && step < 0 || start > end && step > 0 {
		return types.NewList(out), nil
	}
	if start == end {
		return types.NewList(append(out, types.NewFloat(start))), nil
	}
	for x := start; start <= end && x <= end || start > end && x >= end; {
		if len(out) >= maxGenerated {
			return types.Null, Errorf("Cannot generate arrays with more than %d elements.", maxGenerated)
		}
		if len(out) == cap(out) {
			if err := growList(c, 2*len(out)); err != nil {
				return types.Null, err
			}
		}
		out = append(out, types.NewFloat(x))
		// Each element is computed anew, so that errors do not add up.
		x = start + float64(len(out))*step
		if !isFinite(x) && isFinite(start) {
			break
		}
	}
	return types.NewList(out), nil
}

func init() {
	register(&Function{
		Name: "GENERATE_ARRAY", Category: "Array", Doc: "Returns an array of the numbers from one to another, in steps.",
		Signatures: []*Signature{
			{Args: []Arg{{Type: tInt64}, {Type: tInt64}, {Type: tInt64, Optional: true}}, Result: ArrayT(tInt64), Eval: generateInts},
			{Args: []Arg{{Type: tFloat64}, {Type: tFloat64}, {Type: tFloat64, Optional: true}}, Result: ArrayT(tFloat64), Eval: generateFloats},
		},
	})
}
