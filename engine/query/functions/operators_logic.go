package functions

import (
	"github.com/trestledb/trestle/engine/query/types"
)

func evalIsNull(_ *Call, args []types.Value) (types.Value, error) {
	return types.NewBool(!args[0].Valid), nil
}

func isNull(_ *Call, args []*types.Vector, out *types.Vector, sel []int32, n int) error {
	a := args[0]
	switch {
	case a.Null == nil:
		fillInts(out.Ints, 0, sel, n)
	case a.Const:
		fillInts(out.Ints, boolInt(a.Null[0]), sel, n)
	case sel == nil:
		for i, x := range a.Null[:n] {
			out.Ints[i] = boolInt(x)
		}
	default:
		for _, i := range sel {
			out.Ints[i] = boolInt(a.Null[i])
		}
	}
	return nil
}

func evalIsTrue(_ *Call, args []types.Value) (types.Value, error) {
	return types.NewBool(args[0].Valid && args[0].Bool()), nil
}

func evalIsFalse(_ *Call, args []types.Value) (types.Value, error) {
	return types.NewBool(args[0].Valid && !args[0].Bool()), nil
}

func isTrue(_ *Call, args []*types.Vector, out *types.Vector, sel []int32, n int) error {
	isBool(args[0], out, sel, n, 1)
	return nil
}

func isFalse(_ *Call, args []*types.Vector, out *types.Vector, sel []int32, n int) error {
	isBool(args[0], out, sel, n, 0)
	return nil
}

func isBool(a, out *types.Vector, sel []int32, n int, want int64) {
	switch {
	case a.Const:
		fillInts(out.Ints, boolInt(!a.IsNull(0) && a.Ints[0] == want), sel, n)
	case sel == nil && a.Null == nil:
		for i, x := range a.Ints[:n] {
			out.Ints[i] = boolInt(x == want)
		}
	case sel == nil:
		for i, x := range a.Ints[:n] {
			out.Ints[i] = boolInt(x == want && !a.Null[i])
		}
	default:
		for _, i := range sel {
			out.Ints[i] = boolInt(a.Ints[i] == want && (a.Null == nil || !a.Null[i]))
		}
	}
}

func evalNot(_ *Call, args []types.Value) (types.Value, error) {
	return types.NewBool(!args[0].Bool()), nil
}

func not(_ *Call, args []*types.Vector, out *types.Vector, sel []int32, n int) error {
	a := args[0]
	if mergeNulls(out, sel, n, a) == allNulls {
		return nil
	}
	switch {
	case a.Const:
		fillInts(out.Ints, a.Ints[0]^1, sel, n)
	case sel == nil:
		for i, x := range a.Ints[:n] {
			out.Ints[i] = x ^ 1
		}
	default:
		for _, i := range sel {
			out.Ints[i] = a.Ints[i] ^ 1
		}
	}
	return nil
}

// A logic is a value of three-valued logic.
type logic uint8

const (
	logicFalse logic = iota
	logicTrue
	logicNull
)

func logicOf(b bool) logic {
	if b {
		return logicTrue
	}
	return logicFalse
}

// value returns l as a BOOL.
func (l logic) value() types.Value {
	if l == logicNull {
		return types.Null
	}
	return types.Value{Valid: true, Int: int64(l)}
}

// not returns NOT l.
func (l logic) not() logic {
	if l == logicNull {
		return l
	}
	return l ^ 1
}
