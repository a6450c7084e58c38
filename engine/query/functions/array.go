package functions

import (
	"math/big"
	"math/bits"
	"strings"

	"github.com/trestledb/trestle/engine/query/types"
)

// valueSize is what a Value in a list takes, in bytes, without its string.
const valueSize = 64

// growList asks for room for a list of n values.
func growList(c *Call, n int) error {
	if n < 64 || c.Grow == nil {
		return nil
	}
	return c.Grow(int64(n) * valueSize)
}

// hasArg tells whether the optional argument i of a call was written.
func hasArg(c *Call, args []types.Value, i int) bool {
	return i < len(args) && (i >= len(c.Types) || c.Types[i] != nil)
}

// elemType returns the type of the elements of argument i, which is an array.
func elemType(c *Call, i int) *types.Type { return c.Types[i].Elem }

// needEquality and its siblings are Checks of an array in the first argument.
func needEquality(args []*types.Type) string {
	if t := args[0]; t != nil && t.Kind == types.Array && !t.Elem.SupportsEquality() {
		return "Equality is not defined for arguments of type " + t.Elem.String()
	}
	return ""
}

func needGrouping(args []*types.Type) string {
	if t := args[0]; t != nil && t.Kind == types.Array && !t.Elem.SupportsGrouping() {
		return "Array elements of type " + t.Elem.String() + " cannot be grouped"
	}
	return ""
}

func needOrder(function string) func(args []*types.Type) string {
	return func(args []*types.Type) string {
		if t := args[0]; t != nil && t.Kind == types.Array && !t.Elem.SupportsOrder() {
			return function + " cannot be used on argument of type " + t.String() + " because the array's element type does not support ordering"
		}
		return ""
	}
}

// isEqual tells whether a = b is TRUE in SQL, for two values of type t: neither NULL
// nor NaN is equal to anything.
func isEqual(t *types.Type, a, b types.Value) bool {
	if !a.Valid || !b.Valid {
		return false
	}
	switch t.Kind {
	case types.Float32, types.Float64:
		return a.Float == b.Float
	case types.String, types.Bytes, types.Proto:
		return a.Str == b.Str
	case types.Array, types.Struct:
		if len(a.List) != len(b.List) {
			return false
		}
		for i := range a.List {
			e := t.Elem
			if t.Kind == types.Struct {
				e = t.Fields[i].Type
			}
			if !isEqual(e, a.List[i], b.List[i]) {
				return false
			}
		}
		return true
	}
	return a.Int == b.Int
}

// includes tells whether some element of list is equal to x, which is not NULL.
func includes(t *types.Type, list []types.Value, x types.Value) bool {
	switch t.Kind {
	case types.String, types.Bytes:
		for i := range list {
			if e := &list[i]; len(e.Str) == len(x.Str) && e.Str == x.Str && e.Valid {
				return true
			}
		}
	case types.Float32, types.Float64, types.Array, types.Struct, types.Proto, types.Map:
		for i := range list {
			if isEqual(t, list[i], x) {
				return true
			}
		}
	default:
		for i := range list {
			if e := &list[i]; e.Int == x.Int && e.Valid {
				return true
			}
		}
	}
	return false
}

// A valueSet answers whether a list has a value. Short lists are searched, long
// ones of plain values are hashed.
type valueSet struct {
	t    *types.Type
	list []types.Value
	keys map[string]struct{}
	buf  []byte
}

func newValueSet(t *types.Type, list []types.Value, lookups int) *valueSet {
	s := &valueSet{t: t, list: list}
	if len(list) < 16 || lookups < 16 || t.Kind == types.Array || t.Kind == types.Struct {
		return s
	}
	s.keys = make(map[string]struct{}, len(list))
	for _, v := range list {
		if isEqual(t, v, v) {
			s.buf = types.AppendKey(s.buf[:0], t, v)
			s.keys[string(s.buf)] = struct{}{}
		}
	}
	return s
}

func (s *valueSet) has(v types.Value) bool {
	if !isEqual(s.t, v, v) {
		return false
	}
	if s.keys == nil {
		return includes(s.t, s.list, v)
	}
	s.buf = types.AppendKey(s.buf[:0], s.t, v)
	_, ok := s.keys[string(s.buf)]
	return ok
}

// checkCtx looks every 256th time whether the query has ended.
func checkCtx(c *Call, i int) error {
	if i&255 == 255 && c.Ctx != nil {
		return c.Ctx.Err()
	}
	return nil
}

func init() {
	elem, array := AnyT("T"), ArrayT(AnyT("T"))
	integer := T(types.Int64Type)
	at := func(name, sql string, base int64, safe bool) *Function {
		return &Function{
			Name: name, SQL: sql, Category: "Array", Doc: "Returns the element at a position of an array.",
			Signatures: []*Signature{{
				Args: []Arg{{Type: array}, {Type: integer}}, Result: elem,
				Eval: func(_ *Call, args []types.Value) (types.Value, error) {
					return elementAt(args[0].List, args[1].Int, base, safe)
				},
			}},
		}
	}
	register(
		at("$array_at_offset", "Array element access with array[OFFSET(INT64)]", 0, false),
		at("$array_at_ordinal", "Array element access with array[ORDINAL(INT64)]", 1, false),
		at("$safe_array_at_offset", "Array element access with array[SAFE_OFFSET(INT64)]", 0, true),
		at("$safe_array_at_ordinal", "Array element access with array[SAFE_ORDINAL(INT64)]", 1, true),
		&Function{
			Name: "ARRAY_LENGTH", Category: "Array", Doc: "Returns the number of elements of an array.",
			Signatures: []*Signature{{
				Args: []Arg{{Type: array}}, Result: integer,
				Eval: func(_ *Call, args []types.Value) (types.Value, error) {
					return types.NewInt(int64(len(args[0].List))), nil
				},
				Kernel: lengthKernel,
			}},
		},
		&Function{
			Name: "ARRAY_CONCAT", Category: "Array", Doc: "Joins arrays into one.",
			Signatures: []*Signature{{Args: []Arg{{Type: array}, {Type: array, Repeated: true}}, Result: array, Eval: arrayConcat}},
		},
		&Function{
			Name: "ARRAY_REVERSE", Category: "Array", Doc: "Returns an array with its elements in reverse order.",
			Signatures: []*Signature{{Args: []Arg{{Type: array}}, Result: array, Eval: arrayReverse}},
		},
		&Function{
			Name: "ARRAY_TO_STRING", Category: "Array", Doc: "Joins the elements of an array with a delimiter between them.",
			Signatures: []*Signature{
				{
					Args:   []Arg{{Type: T(types.ArrayOf(types.StringType))}, {Type: T(types.StringType)}, {Type: T(types.StringType), Optional: true}},
					Result: T(types.StringType), Eval: arrayToString,
				},
				{
					Args:   []Arg{{Type: T(types.ArrayOf(types.BytesType))}, {Type: T(types.BytesType)}, {Type: T(types.BytesType), Optional: true}},
					Result: T(types.BytesType), Eval: arrayToString,
				},
			},
		},
		&Function{
			Name: "ARRAY_FIRST", Category: "Array", Doc: "Returns the first element of an array.",
			Signatures: []*Signature{{
				Args: []Arg{{Type: array}}, Result: elem,
				Eval: func(_ *Call, args []types.Value) (types.Value, error) {
					if len(args[0].List) == 0 {
						return types.Null, Errorf("ARRAY_FIRST cannot get the first element of an empty array")
					}
					return args[0].List[0], nil
				},
			}},
		},
		&Function{
			Name: "ARRAY_LAST", Category: "Array", Doc: "Returns the last element of an array.",
			Signatures: []*Signature{{
				Args: []Arg{{Type: array}}, Result: elem,
				Eval: func(_ *Call, args []types.Value) (types.Value, error) {
					list := args[0].List
					if len(list) == 0 {
						return types.Null, Errorf("ARRAY_LAST cannot get the last element of an empty array")
					}
					return list[len(list)-1], nil
				},
			}},
		},
		&Function{
			Name: "ARRAY_FIRST_N", Category: "Array", Doc: "Returns the first n elements of an array.",
			Signatures: []*Signature{{
				Args: []Arg{{Type: array}, {Type: integer}}, Result: array,
				Eval: func(_ *Call, args []types.Value) (types.Value, error) {
					list, n := args[0].List, args[1].Int
					if n < 0 {
						return types.Null, Errorf("The n argument to ARRAY_FIRST_N must not be negative.")
					}
					return types.NewList(list[:min(n, int64(len(list)))]), nil
				},
			}},
		},
		&Function{
			Name: "ARRAY_LAST_N", Category: "Array", Doc: "Returns the last n elements of an array.",
			Signatures: []*Signature{{
				Args: []Arg{{Type: array}, {Type: integer}}, Result: array,
				Eval: func(_ *Call, args []types.Value) (types.Value, error) {
					list, n := args[0].List, args[1].Int
					if n < 0 {
						return types.Null, Errorf("The n argument to ARRAY_LAST_N must not be negative.")
					}
					return types.NewList(list[int64(len(list))-min(n, int64(len(list))):]), nil
				},
			}},
		},
		&Function{
			Name: "ARRAY_SLICE", Category: "Array", Doc: "Returns the elements between two positions of an array, both included; negative positions count from the end.",
			Signatures: []*Signature{{Args: []Arg{{Type: array}, {Type: integer}, {Type: integer}}, Result: array, Eval: arraySlice}},
		},
		&Function{
			Name: "ARRAY_IS_DISTINCT", Category: "Array", Doc: "Tells whether no two elements of an array are the same.",
			Signatures: []*Signature{{Args: []Arg{{Type: array}}, Check: needGrouping, Result: T(types.BoolType), Eval: arrayIsDistinct}},
		},
		&Function{
			Name: "ARRAY_MIN", Category: "Array", Doc: "Returns the smallest element of an array, without regard to NULLs.",
			Signatures: []*Signature{{Args: []Arg{{Type: array}}, Check: needOrder("ARRAY_MIN"), Result: elem, Eval: arrayExtreme(-1)}},
		},
		&Function{
			Name: "ARRAY_MAX", Category: "Array", Doc: "Returns the largest element of an array, without regard to NULLs.",
			Signatures: []*Signature{{Args: []Arg{{Type: array}}, Check: needOrder("ARRAY_MAX"), Result: elem, Eval: arrayExtreme(1)}},
		},
		&Function{
			Name: "ARRAY_SUM", Category: "Array", Doc: "Returns the sum of the elements of an array, without regard to NULLs.",
			Signatures: []*Signature{
				{Args: []Arg{{Type: T(types.ArrayOf(types.Float32Type))}}, Result: T(types.Float64Type), Eval: arraySumFloat},
				{Args: []Arg{{Type: T(types.ArrayOf(types.Int64Type))}}, Result: integer, Eval: arraySumInt},
				{Args: []Arg{{Type: T(types.ArrayOf(types.Float64Type))}}, Result: T(types.Float64Type), Eval: arraySumFloat},
			},
		},
		&Function{
			Name: "ARRAY_AVG", Category: "Array", Doc: "Returns the average of the elements of an array, without regard to NULLs.",
			Signatures: []*Signature{
				{Args: []Arg{{Type: T(types.ArrayOf(types.Int64Type))}}, Result: T(types.Float64Type), Eval: arrayAvgInt},
				{Args: []Arg{{Type: T(types.ArrayOf(types.Float32Type))}}, Result: T(types.Float64Type), Eval: arrayAvgFloat},
				{Args: []Arg{{Type: T(types.ArrayOf(types.Float64Type))}}, Result: T(types.Float64Type), Eval: arrayAvgFloat},
			},
		},
	)
}

// elementAt returns the element at position i of list, the first of which has the
// position base.
func elementAt(list []types.Value, i, base int64, safe bool) (types.Value, error) {
	if i >= base && i-base < int64(len(list)) {
		return list[i-base], nil
	}
	if safe {
		return types.Null, nil
	}
	return types.Null, Errorf("Array index %d is out of bounds", i)
}

// lengthKernel is the Kernel of ARRAY_LENGTH.
func lengthKernel(_ *Call, args []*types.Vector, out *types.Vector, sel []int32, n int) error {
	a := args[0]
	return eachRow(sel, n, func(i int) error {
		if a.IsNull(i) {
			out.SetNull(i)
		} else {
			out.Ints[i] = int64(len(a.Lists[a.At(i)]))
		}
		return nil
	})
}

// eachRow calls f for the rows of sel, or for all n.
func eachRow(sel []int32, n int, f func(i int) error) error {
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

func arrayConcat(c *Call, args []types.Value) (types.Value, error) {
	n := 0
	for _, a := range args {
		n += len(a.List)
	}
	if err := growList(c, n); err != nil {
		return types.Null, err
	}
	out := make([]types.Value, 0, n)
	for _, a := range args {
		out = append(out, a.List...)
	}
	return types.NewList(out), nil
}

func arrayReverse(c *Call, args []types.Value) (types.Value, error) {
	list := args[0].List
	if err := growList(c, len(list)); err != nil {
		return types.Null, err
	}
	out := make([]types.Value, len(list))
	for i, v := range list {
		out[len(list)-1-i] = v
	}
	return types.NewList(out), nil
}

func arrayToString(c *Call, args []types.Value) (types.Value, error) {
	list, delimiter := args[0].List, args[1].Str
	null, withNull := "", hasArg(c, args, 2)
	if withNull {
		null = args[2].Str
	}
	parts, size := 0, 0
	for i := range list {
		if list[i].Valid {
			size += len(list[i].Str)
		} else if withNull {
			size += len(null)
		} else {
			continue
		}
		parts++
	}
	if parts > 1 {
		size += (parts - 1) * len(delimiter)
	}
	if size > 4096 && c.Grow != nil {
		if err := c.Grow(int64(size)); err != nil {
			return types.Null, err
		}
	}
	var b strings.Builder
	b.Grow(size)
	parts = 0
	for i := range list {
		s := list[i].Str
		if !list[i].Valid {
			if !withNull {
				continue
			}
			s = null
		}
		if parts > 0 {
			b.WriteString(delimiter)
		}
		b.WriteString(s)
		parts++
	}
	return types.NewString(b.String()), nil
}

func arraySlice(_ *Call, args []types.Value) (types.Value, error) {
	list, from, to := args[0].List, args[1].Int, args[2].Int
	n := int64(len(list))
	if from < 0 {
		from = max(from+n, 0)
	}
	if to < 0 {
		to += n
	}
	to = min(to, n-1)
	if from > to {
		return types.NewList([]types.Value{}), nil
	}
	return types.NewList(list[from : to+1 : to+1]), nil
}

func arrayIsDistinct(c *Call, args []types.Value) (types.Value, error) {
	t, list := elemType(c, 0), args[0].List
	if len(list) <= 8 {
		for i := range list {
			for j := range i {
				if types.SameGroup(t, list[i], list[j]) {
					return types.NewBool(false), nil
				}
			}
		}
		return types.NewBool(true), nil
	}
	if err := growList(c, len(list)); err != nil {
		return types.Null, err
	}
	seen := make(map[string]struct{}, len(list))
	var key []byte
	for _, v := range list {
		key = types.AppendKey(key[:0], t, v)
		if _, ok := seen[string(key)]; ok {
			return types.NewBool(false), nil
		}
		seen[string(key)] = struct{}{}
	}
	return types.NewBool(true), nil
}

// arrayExtreme returns the Eval of ARRAY_MIN (sign -1) or ARRAY_MAX (sign 1). NaN wins
// over every number.
func arrayExtreme(sign int) func(*Call, []types.Value) (types.Value, error) {
	return func(c *Call, args []types.Value) (types.Value, error) {
		t, best := elemType(c, 0), types.Null
		for _, v := range args[0].List {
			if !v.Valid {
				continue
			}
			if t.IsFloat() && v.Float != v.Float {
				return v, nil
			}
			if !best.Valid || types.Compare(t, v, best)*sign > 0 {
				best = v
			}
		}
		return best, nil
	}
}

func arraySumInt(_ *Call, args []types.Value) (types.Value, error) {
	hi, lo, n := sum128(args[0].List)
	if n == 0 {
		return types.Null, nil
	}
	if hi != int64(lo)>>63 {
		return types.Null, Errorf("int64 overflow")
	}
	return types.NewInt(int64(lo)), nil
}

// sum128 returns the sum of the integers of list that are not NULL, as two halves of
// an integer of 128 bits, and how many those are.
func sum128(list []types.Value) (hi int64, lo uint64, n int) {
	for i := range list {
		if !list[i].Valid {
			continue
		}
		var carry uint64
		lo, carry = bits.Add64(lo, uint64(list[i].Int), 0)
		hi += list[i].Int>>63 + int64(carry)
		n++
	}
	return hi, lo, n
}

// longPrecision is the precision in which GoogleSQL averages an array: that of
// x86's 80-bit numbers.
const longPrecision = 64

func newLong() *big.Float { return new(big.Float).SetPrec(longPrecision) }

func arrayAvgInt(_ *Call, args []types.Value) (types.Value, error) {
	return average(args[0].List, func(x *big.Float, v *types.Value) { x.SetFloat64(float64(v.Int)) })
}

func arrayAvgFloat(_ *Call, args []types.Value) (types.Value, error) {
	for i := range args[0].List {
		if !isFinite(args[0].List[i].Float) {
			return averageOfInfinite(args[0].List)
		}
	}
	return average(args[0].List, func(x *big.Float, v *types.Value) { x.SetFloat64(v.Float) })
}

// average keeps the average of the elements so far: it is exact to the last bits, and
// the sum need not fit a number.
func average(list []types.Value, set func(x *big.Float, v *types.Value)) (types.Value, error) {
	mean, x, count := newLong(), newLong(), newLong()
	n := int64(0)
	for i := range list {
		if !list[i].Valid {
			continue
		}
		n++
		set(x, &list[i])
		x.Sub(x, mean)
		x.Quo(x, count.SetInt64(n))
		mean.Add(mean, x)
	}
	if n == 0 {
		return types.Null, nil
	}
	f, _ := mean.Float64()
	return types.NewFloat(f), nil
}

// averageOfInfinite is average of elements that are not all finite. An infinity before
// another element makes it NaN.
func averageOfInfinite(list []types.Value) (types.Value, error) {
	mean, n := 0.0, 0
	for i := range list {
		if list[i].Valid {
			n++
			mean += (list[i].Float - mean) / float64(n)
		}
	}
	return types.NewFloat(mean), nil
}

// arraySumFloat adds up as SUM does.
func arraySumFloat(_ *Call, args []types.Value) (types.Value, error) {
	sum := floatSums{s: make([]floatSum, 1)}
	for i := range args[0].List {
		if e := &args[0].List[i]; e.Valid {
			sum.s[0].add(e.Float)
		}
	}
	return sum.value(0)
}
