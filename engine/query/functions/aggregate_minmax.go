package functions

import (
	"encoding/binary"
	"math"

	"github.com/trestledb/trestle/engine/query/types"
)

func init() {
	register(
		&Function{
			Name: "MIN", Category: aggregateCategory, Kind: Aggregate, IgnoreNulls: true,
			Doc:        "Returns the smallest value that is not NULL, NaN if there is one; NULL if there are none.",
			Signatures: []*Signature{extremeSignature(false)}, Refuse: orderCheck("MIN"),
		},
		&Function{
			Name: "MAX", Category: aggregateCategory, Kind: Aggregate, IgnoreNulls: true,
			Doc:        "Returns the largest value that is not NULL, NaN if there is one; NULL if there are none.",
			Signatures: []*Signature{extremeSignature(true)}, Refuse: orderCheck("MAX"),
		},
	)
}

// orderCheck refuses a first argument whose values cannot be ordered.
func orderCheck(name string) func(args []*types.Type) string {
	return func(args []*types.Type) string {
		if len(args) > 0 && args[0] != nil && !args[0].SupportsOrder() {
			return name + " is not defined for arguments of type " + args[0].String()
		}
		return ""
	}
}

func extremeSignature(largest bool) *Signature {
	return grouped(&Signature{
		Args: []Arg{{Type: AnyT("T1")}}, Result: AnyT("T1"),
	}, func(c *Call) cells {
		switch c.Types[0].Kind {
		case types.Float32, types.Float64:
			return &floatExtremes{largest: largest}
		case types.String, types.Bytes:
			return &stringExtremes{largest: largest}
		case types.Array:
			return &listExtremes{t: c.Types[0], largest: largest}
		}
		return &intExtremes{largest: largest}
	})
}

func extremeName(largest bool) string {
	if largest {
		return "MAX"
	}
	return "MIN"
}

// An intExtreme is the smallest or largest of integers.
type intExtreme struct {
	v    int64
	some bool
}

// intExtremes are the states of MIN and MAX of types whose values are Ints.
type intExtremes struct {
	s       []intExtreme
	largest bool
}

func (s *intExtreme) add(v int64, largest bool) {
	if !s.some || (v > s.v) == largest && v != s.v {
		s.v, s.some = v, true
	}
}

func (c *intExtremes) Resize(groups int) { c.s = resizeCells(c.s, groups) }

func (c *intExtremes) Size() int { return 16 * cap(c.s) }

func (c *intExtremes) AddBatch(groups []int32, args []*types.Vector, sel []int32, n int) error {
	x := args[0]
	groups, n = groupsOf(groups, sel, n)
	if x.Const {
		return addConst(c, groups, args)
	}
	s, ints, null, largest := c.s, x.Ints, x.Null, c.largest
	if sel == nil {
		for k, v := range ints[:n] {
			if null == nil || !null[k] {
				s[groups[k]].add(v, largest)
			}
		}
		return nil
	}
	for k, i := range sel {
		if null == nil || !null[i] {
			s[groups[k]].add(ints[i], largest)
		}
	}
	return nil
}

func (c *intExtremes) addRow(group int, args []types.Value) error {
	if args[0].Valid {
		c.s[group].add(args[0].Int, c.largest)
	}
	return nil
}

func (c *intExtremes) value(group int) (types.Value, error) {
	if s := c.s[group]; s.some {
		return types.NewInt(s.v), nil
	}
	return types.Null, nil
}

func (c *intExtremes) Results(first int, out *types.Vector, n int) error {
	return cellResults(c, first, out, n)
}

func (c *intExtremes) AppendState(group int, dst []byte) []byte {
	dst = append(dst, formMinMaxInt)
	if s := c.s[group]; s.some {
		return binary.AppendVarint(append(dst, 1), s.v)
	}
	return append(dst, 0)
}

func (c *intExtremes) MergeState(group int, state []byte) error {
	r := readState(state, formMinMaxInt)
	some, v := r.Bool(), int64(0)
	if some {
		v = r.Varint()
	}
	if err := r.done(extremeName(c.largest)); err != nil || !some {
		return err
	}
	c.s[group].add(v, c.largest)
	return nil
}

// A floatExtreme is the smallest or largest of floats: NaN if one is.
type floatExtreme struct {
	v    float64
	some bool
}

// floatExtremes are the states of MIN and MAX of floats.
type floatExtremes struct {
	s       []floatExtreme
	largest bool
}

func (s *floatExtreme) add(v float64, largest bool) {
	switch {
	case !s.some || v != v:
		s.v, s.some = v, true
	case largest && v > s.v, !largest && v < s.v: // never if s.v is NaN
		s.v = v
	}
}

func (c *floatExtremes) Resize(groups int) { c.s = resizeCells(c.s, groups) }

func (c *floatExtremes) Size() int { return 16 * cap(c.s) }

func (c *floatExtremes) AddBatch(groups []int32, args []*types.Vector, sel []int32, n int) error {
	x := args[0]
	groups, n = groupsOf(groups, sel, n)
	if x.Const {
		return addConst(c, groups, args)
	}
	s, floats, null, largest := c.s, x.Floats, x.Null, c.largest
	if sel == nil {
		for k, v := range floats[:n] {
			if null == nil || !null[k] {
				s[groups[k]].add(v, largest)
			}
		}
		return nil
	}
	for k, i := range sel {
		if null == nil || !null[i] {
			s[groups[k]].add(floats[i], largest)
		}
	}
	return nil
}

func (c *floatExtremes) addRow(group int, args []types.Value) error {
	if args[0].Valid {
		c.s[group].add(args[0].Float, c.largest)
	}
	return nil
}

func (c *floatExtremes) value(group int) (types.Value, error) {
	if s := c.s[group]; s.some {
		return types.NewFloat(s.v), nil
	}
	return types.Null, nil
}

func (c *floatExtremes) Results(first int, out *types.Vector, n int) error {
	return cellResults(c, first, out, n)
}

func (c *floatExtremes) AppendState(group int, dst []byte) []byte {
	dst = append(dst, formMinMaxFloat)
	if s := c.s[group]; s.some {
		return appendStateFloat(append(dst, 1), s.v)
	}
	return append(dst, 0)
}

func (c *floatExtremes) MergeState(group int, state []byte) error {
	r := readState(state, formMinMaxFloat)
	some, v := r.Bool(), 0.0
	if some {
		v = r.float()
	}
	if err := r.done(extremeName(c.largest)); err != nil || !some {
		return err
	}
	if v != v {
		v = math.NaN() // one NaN is as good as another
	}
	c.s[group].add(v, c.largest)
	return nil
}

// stringExtremes are the states of MIN and MAX of STRING and BYTES. The bytes of a
// state are its own, and are used again for the next value: nil before the first.
type stringExtremes struct {
	s       [][]byte
	size    int // of the bytes
	largest bool
}

func (c *stringExtremes) add(group int32, v string) {
	s := &c.s[group]
	switch {
	case *s == nil:
	case c.largest && v <= string(*s), !c.largest && v >= string(*s):
		return
	}
	before := cap(*s)
	if *s == nil {
		*s = make([]byte, 0, max(16, len(v)))
	}
	*s = append((*s)[:0], v...)
	c.size += cap(*s) - before
}

func (c *stringExtremes) Resize(groups int) { c.s = resizeCells(c.s, groups) }

func (c *stringExtremes) Size() int { return 24*cap(c.s) + c.size }

func (c *stringExtremes) AddBatch(groups []int32, args []*types.Vector, sel []int32, n int) error {
	x := args[0]
	groups, n = groupsOf(groups, sel, n)
	if x.Const {
		return addConst(c, groups, args)
	}
	strs, null := x.Strs, x.Null
	if sel == nil {
		for k, v := range strs[:n] {
			if null == nil || !null[k] {
				c.add(groups[k], v)
			}
		}
		return nil
	}
	for k, i := range sel {
		if null == nil || !null[i] {
			c.add(groups[k], strs[i])
		}
	}
	return nil
}

func (c *stringExtremes) addRow(group int, args []types.Value) error {
	if args[0].Valid {
		c.add(int32(group), args[0].Str)
	}
	return nil
}

func (c *stringExtremes) value(group int) (types.Value, error) {
	if s := c.s[group]; s != nil {
		return types.NewString(string(s)), nil
	}
	return types.Null, nil
}

func (c *stringExtremes) Results(first int, out *types.Vector, n int) error {
	return cellResults(c, first, out, n)
}

func (c *stringExtremes) AppendState(group int, dst []byte) []byte {
	dst = append(dst, formMinMaxString)
	if s := c.s[group]; s != nil {
		return append(append(dst, 1), s...)
	}
	return append(dst, 0)
}

func (c *stringExtremes) MergeState(group int, state []byte) error {
	r := readState(state, formMinMaxString)
	some, v := r.Bool(), r.Rest()
	if !r.Bad() && some {
		c.add(int32(group), string(v))
		return nil
	}
	return r.done(extremeName(c.largest))
}
