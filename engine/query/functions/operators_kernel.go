package functions

import (
	"github.com/trestledb/trestle/engine/query/types"
)

// boolInt is the value that a Vector has for b. The compiler makes a SETcc of it.
func boolInt(b bool) int64 {
	var i int64
	if b {
		i = 1
	}
	return i
}

// A nullity says which rows of a result are NULL because an argument is.
type nullity uint8

const (
	noNulls nullity = iota
	someNulls
	allNulls
)

// mergeNulls makes those rows of out NULL for which one of args is.
func mergeNulls(out *types.Vector, sel []int32, n int, args ...*types.Vector) nullity {
	state := noNulls
	for _, a := range args {
		switch {
		case a.Null == nil:
		case a.Const:
			if a.Null[0] {
				setAllNull(out, n)
				return allNulls
			}
		default:
			if out.Null == nil {
				out.Null = make([]bool, max(n, out.Cap()))
			}
			state = someNulls
			null, from := out.Null[:n], a.Null[:n]
			if sel == nil {
				for i, x := range from {
					if x {
						null[i] = true
					}
				}
				continue
			}
			for _, i := range sel {
				if from[i] {
					null[i] = true
				}
			}
		}
	}
	return state
}

func setAllNull(out *types.Vector, n int) {
	if out.Null == nil {
		out.Null = make([]bool, max(n, out.Cap()))
	}
	for i := range out.Null[:n] {
		out.Null[i] = true
	}
}

// each calls f for the rows of sel, or for all n rows if it is nil.
func each(sel []int32, n int, f func(i int) error) error {
	if sel == nil {
		for i := range n {
			if err := f(i); err != nil {
				return err
			}
		}
		return nil
	}
	for _, i := range sel {
		if err := f(int(i)); err != nil {
			return err
		}
	}
	return nil
}

// fillInts sets the rows of sel, or all n rows, to x.
func fillInts(out []int64, x int64, sel []int32, n int) {
	if sel == nil {
		for i := range out[:n] {
			out[i] = x
		}
		return
	}
	for _, i := range sel {
		out[i] = x
	}
}

// unaryStrings is the Kernel of a function of a STRING or BYTES whose result lies in
// Vector.Ints. f does not see NULLs.
func unaryStrings(f func(s string) int64) kernelFunc {
	return func(_ *Call, args []*types.Vector, out *types.Vector, sel []int32, n int) error {
		a := args[0]
		state := mergeNulls(out, sel, n, a)
		switch {
		case state == allNulls:
		case a.Const:
			fillInts(out.Ints, f(a.Strs[0]), sel, n)
		case state == someNulls:
			return each(sel, n, func(i int) error {
				if !out.Null[i] {
					out.Ints[i] = f(a.Strs[i])
				}
				return nil
			})
		case sel == nil:
			for i, s := range a.Strs[:n] {
				out.Ints[i] = f(s)
			}
		default:
			for _, i := range sel {
				out.Ints[i] = f(a.Strs[i])
			}
		}
		return nil
	}
}
