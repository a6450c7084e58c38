package functions

import (
	"strings"

	"github.com/trestledb/trestle/engine/query/types"
)

// concat returns the strings one after the other.
func concat(c *Call, args []types.Value) (string, error) {
	if len(args) == 1 {
		return args[0].Str, nil
	}
	n := 0
	for _, a := range args {
		n += len(a.Str)
	}
	if err := grow(c, n); err != nil {
		return "", err
	}
	if len(args) == 2 {
		return args[0].Str + args[1].Str, nil
	}
	var b strings.Builder
	b.Grow(n)
	for _, a := range args {
		b.WriteString(a.Str)
	}
	return b.String(), nil
}

func evalConcat(c *Call, args []types.Value) (types.Value, error) {
	s, err := concat(c, args)
	return types.NewString(s), err
}

// concatStrings is the Kernel of || and CONCAT. All results of a batch lie in one
// allocation.
func concatStrings(c *Call, args []*types.Vector, out *types.Vector, sel []int32, n int) error {
	if mergeNulls(out, sel, n, args...) == allNulls {
		return nil
	}
	total := 0
	_ = each(sel, n, func(i int) error {
		if out.Null == nil || !out.Null[i] {
			for _, a := range args {
				total += len(a.Strs[a.At(i)])
			}
		}
		return nil
	})
	if err := grow(c, total); err != nil {
		return err
	}
	var b strings.Builder
	b.Grow(total)
	return each(sel, n, func(i int) error {
		if out.Null != nil && out.Null[i] {
			return nil
		}
		start := b.Len()
		for _, a := range args {
			b.WriteString(a.Strs[a.At(i)])
		}
		// The builder has room for all: what it returns now stays where it is.
		out.Strs[i] = b.String()[start:]
		return nil
	})
}

func evalConcatArrays(c *Call, args []types.Value) (types.Value, error) {
	x, y := args[0].List, args[1].List
	if err := grow(c, valueSize*(len(x)+len(y))); err != nil {
		return types.Null, err
	}
	return types.NewList(append(append(make([]types.Value, 0, len(x)+len(y)), x...), y...)), nil
}
