package functions

import (
	"cmp"
	"slices"

	"github.com/trestledb/trestle/engine/query/types"
)

// A comparison is one of the six comparison operators.
type comparison uint8

const (
	equal comparison = iota
	notEqual
	less
	lessOrEqual
	greater
	greaterOrEqual
)

// comparisons has, for each, the operator's name in the table, what messages call it,
// and how they begin when a type has no such operator.
var comparisons = [...]struct{ name, sql, refusal, doc string }{
	equal:          {"$equal", "=", "Equality", "Returns whether both are equal."},
	notEqual:       {"$not_equal", "!=", "Inequality", "Returns whether both differ."},
	less:           {"$less", "<", "Less than", "Returns whether the left operand is less."},
	lessOrEqual:    {"$less_or_equal", "<=", "Less than or equal", "Returns whether the left operand is less or equal."},
	greater:        {"$greater", ">", "Greater than", "Returns whether the left operand is greater."},
	greaterOrEqual: {"$greater_or_equal", ">=", "Greater than or equal", "Returns whether the left operand is greater or equal."},
}

// check refuses types that op cannot compare.
func (op comparison) check(args []*types.Type) string {
	supports := (*types.Type).SupportsOrder
	if op <= notEqual {
		supports = (*types.Type).SupportsEquality
	}
	if len(args) > 0 && !supports(args[0]) {
		return comparisons[op].refusal + " is not defined for arguments of type " + args[0].String()
	}
	return ""
}

// holds compares two values of type t that are not NULL.
func (op comparison) holds(t *types.Type, a, b types.Value) logic {
	switch t.Kind {
	case types.Float32, types.Float64:
		return logicOf(holds(op, a.Float, b.Float))
	case types.String, types.Bytes, types.Proto:
		return logicOf(holds(op, a.Str, b.Str))
	case types.Array, types.Struct, types.Map:
		switch op {
		case equal:
			return equalLists(t, a, b)
		case notEqual:
			return equalLists(t, a, b).not()
		}
		return op.holdsLists(t, a, b)
	}
	return logicOf(holds(op, a.Int, b.Int))
}

// verdict compares two values of type t, of which one may be NULL.
func (op comparison) verdict(t *types.Type, a, b types.Value) logic {
	if !a.Valid || !b.Valid {
		return logicNull
	}
	return op.holds(t, a, b)
}

func holds[T cmp.Ordered](op comparison, a, b T) bool {
	switch op {
	case equal:
		return a == b
	case notEqual:
		return a != b
	case less:
		return a < b
	case lessOrEqual:
		return a <= b
	case greater:
		return a > b
	}
	return a >= b
}

// equalLists compares arrays, structs and maps: FALSE if one pair of elements differs,
// NULL if none does but one holds a NULL.
func equalLists(t *types.Type, a, b types.Value) logic {
	if len(a.List) != len(b.List) {
		return logicFalse
	}
	result := logicTrue
	for i, x := range a.List {
		switch equal.verdict(elementType(t, i), x, b.List[i]) {
		case logicFalse:
			return logicFalse
		case logicNull:
			result = logicNull
		}
	}
	return result
}

// holdsLists orders arrays: the first pair of elements that are not equal decides. A
// NULL before it makes the result NULL. An array that begins another one is less.
func (op comparison) holdsLists(t *types.Type, a, b types.Value) logic {
	for i := range min(len(a.List), len(b.List)) {
		switch equal.verdict(t.Elem, a.List[i], b.List[i]) {
		case logicFalse:
			return op.holds(t.Elem, a.List[i], b.List[i])
		case logicNull:
			return logicNull
		}
	}
	return logicOf(holds(op, len(a.List), len(b.List)))
}

// elementType returns the type of the i'th element of a value of type t.
func elementType(t *types.Type, i int) *types.Type {
	switch t.Kind {
	case types.Struct:
		return t.Fields[i].Type
	case types.Map:
		if i%2 == 0 {
			return t.Key
		}
	}
	return t.Elem
}

func (op comparison) eval(c *Call, args []types.Value) (types.Value, error) {
	return op.holds(c.Types[0], args[0], args[1]).value(), nil
}

func (op comparison) kernel(c *Call, args []*types.Vector, out *types.Vector, sel []int32, n int) error {
	if mergeNulls(out, sel, n, args...) == allNulls {
		return nil
	}
	a, b := args[0], args[1]
	switch a.Type.Kind {
	case types.Float32, types.Float64:
		compareColumns(op, a.Floats, b.Floats, a.Const, b.Const, out.Ints, sel, n)
	case types.String, types.Bytes, types.Proto:
		compareColumns(op, a.Strs, b.Strs, a.Const, b.Const, out.Ints, sel, n)
	case types.Array, types.Struct, types.Map:
		return each(sel, n, func(i int) error {
			out.Set(i, op.verdict(a.Type, a.Value(i), b.Value(i)).value())
			return nil
		})
	default:
		compareColumns(op, a.Ints, b.Ints, a.Const, b.Const, out.Ints, sel, n)
	}
	return nil
}

// compareColumns compares row by row. Rows that are NULL get some value.
func compareColumns[T cmp.Ordered](op comparison, a, b []T, aConst, bConst bool, out []int64, sel []int32, n int) {
	switch {
	case aConst && bConst:
		fillInts(out, boolInt(holds(op, a[0], b[0])), sel, n)
		return
	case aConst:
		// A constant stands on the right: c < x is x > c.
		op = [...]comparison{equal, notEqual, greater, greaterOrEqual, less, lessOrEqual}[op]
		a, b, bConst = b, a, true
	}
	if bConst {
		compareToConst(op, a, b[0], out, sel, n)
		return
	}
	switch op {
	case greater:
		op, a, b = less, b, a
	case greaterOrEqual:
		op, a, b = lessOrEqual, b, a
	}
	if sel != nil {
		for _, i := range sel {
			out[i] = boolInt(holds(op, a[i], b[i]))
		}
		return
	}
	a, b, out = a[:n], b[:n], out[:n]
	switch op {
	case equal:
		for i, x := range a {
			out[i] = boolInt(x == b[i])
		}
	case notEqual:
		for i, x := range a {
			out[i] = boolInt(x != b[i])
		}
	case less:
		for i, x := range a {
			out[i] = boolInt(x < b[i])
		}
	default:
		for i, x := range a {
			out[i] = boolInt(x <= b[i])
		}
	}
}

func compareToConst[T cmp.Ordered](op comparison, a []T, c T, out []int64, sel []int32, n int) {
	if sel != nil {
		for _, i := range sel {
			out[i] = boolInt(holds(op, a[i], c))
		}
		return
	}
	a, out = a[:n], out[:n]
	switch op {
	case equal:
		for i, x := range a {
			out[i] = boolInt(x == c)
		}
	case notEqual:
		for i, x := range a {
			out[i] = boolInt(x != c)
		}
	case less:
		for i, x := range a {
			out[i] = boolInt(x < c)
		}
	case lessOrEqual:
		for i, x := range a {
			out[i] = boolInt(x <= c)
		}
	case greater:
		for i, x := range a {
			out[i] = boolInt(x > c)
		}
	default:
		for i, x := range a {
			out[i] = boolInt(x >= c)
		}
	}
}

// IS [NOT] DISTINCT FROM.

func evalIsDistinct(c *Call, args []types.Value) (types.Value, error) {
	return types.NewBool(!types.SameGroup(c.Types[0], args[0], args[1])), nil
}

func evalIsNotDistinct(c *Call, args []types.Value) (types.Value, error) {
	return types.NewBool(types.SameGroup(c.Types[0], args[0], args[1])), nil
}

func checkDistinct(args []*types.Type) string {
	if len(args) > 0 && !args[0].SupportsGrouping() {
		return "IS DISTINCT FROM is not defined for arguments of type " + args[0].String()
	}
	return ""
}

// BETWEEN is x >= low AND x <= high, so that FALSE wins over NULL.

func evalBetween(c *Call, args []types.Value) (types.Value, error) {
	return inBounds(c.Types[0], args[0], args[1], args[2]).value(), nil
}

func inBounds(t *types.Type, x, low, high types.Value) logic {
	l := greaterOrEqual.verdict(t, x, low)
	if l == logicFalse {
		return l
	}
	if h := lessOrEqual.verdict(t, x, high); h != logicTrue {
		return h
	}
	return l
}

func betweenKernel(_ *Call, args []*types.Vector, out *types.Vector, sel []int32, n int) error {
	x, low, high := args[0], args[1], args[2]
	if x.Const || !low.Const || !high.Const || low.IsNull(0) || high.IsNull(0) || x.Type.Kind == types.Array {
		return each(sel, n, func(i int) error {
			out.Set(i, inBounds(x.Type, x.Value(i), low.Value(i), high.Value(i)).value())
			return nil
		})
	}
	mergeNulls(out, sel, n, x)
	switch x.Type.Kind {
	case types.Float32, types.Float64:
		betweenConst(x.Floats, low.Floats[0], high.Floats[0], out.Ints, sel, n)
	case types.String, types.Bytes:
		betweenConst(x.Strs, low.Strs[0], high.Strs[0], out.Ints, sel, n)
	default:
		betweenConst(x.Ints, low.Ints[0], high.Ints[0], out.Ints, sel, n)
	}
	return nil
}

func betweenConst[T cmp.Ordered](a []T, low, high T, out []int64, sel []int32, n int) {
	if sel == nil {
		for i, x := range a[:n] {
			out[i] = boolInt(x >= low && x <= high)
		}
		return
	}
	for _, i := range sel {
		out[i] = boolInt(a[i] >= low && a[i] <= high)
	}
}

// IN and the quantified comparisons: x = ANY (list) is x IN (list).

// quantified returns the Eval of x op ANY|ALL (…): of a list of arguments, or of one
// array, of which NULL counts as empty.
func quantified(op comparison, all, array bool) evalFunc {
	return func(c *Call, args []types.Value) (types.Value, error) {
		list := args[1:]
		if array {
			list = args[1].List
		}
		return quantify(op, all, c.Types[0], args[0], list).value(), nil
	}
}

func quantify(op comparison, all bool, t *types.Type, x types.Value, list []types.Value) logic {
	decides := logicTrue
	if all {
		decides = logicFalse
	}
	result := decides.not()
	for _, v := range list {
		switch l := op.verdict(t, x, v); l {
		case decides:
			return l
		case logicNull:
			result = l
		}
	}
	return result
}

// A constantSet is what IN keeps of a list of constants.
type constantSet struct {
	list    []types.Value
	null    bool // a member is NULL
	ints    map[int64]struct{}
	floats  map[float64]struct{}
	strings map[string]struct{}
}

// smallSet is up to how many members a loop is faster than a map: measured with strings
// of 16 bytes and with integers.
const smallSet = 4

func newConstantSet(t *types.Type, list []types.Value) *constantSet {
	s := &constantSet{}
	for _, v := range list {
		v = v.Clone()
		s.list = append(s.list, v)
		s.null = s.null || !v.Valid
	}
	if len(list) <= smallSet {
		return s
	}
	switch t.Kind {
	case types.Float32, types.Float64:
		s.floats = make(map[float64]struct{}, len(list))
		for _, v := range list {
			if v.Valid {
				s.floats[v.Float] = struct{}{}
			}
		}
	case types.String, types.Bytes:
		s.strings = make(map[string]struct{}, len(list))
		for _, v := range s.list {
			if v.Valid {
				s.strings[v.Str] = struct{}{}
			}
		}
	default:
		s.ints = make(map[int64]struct{}, len(list))
		for _, v := range list {
			if v.Valid {
				s.ints[v.Int] = struct{}{}
			}
		}
	}
	return s
}

// constants returns the set of list, from the Call's State if it is the same list.
func constants(c *Call, t *types.Type, list []types.Value) *constantSet {
	s, ok := c.State.(*constantSet)
	if !ok || !slices.EqualFunc(s.list, list, func(a, b types.Value) bool { return types.SameGroup(t, a, b) }) {
		s = newConstantSet(t, list)
		c.State = s
	}
	return s
}

func inKernel(c *Call, args []*types.Vector, out *types.Vector, sel []int32, n int) error {
	list := make([]types.Value, 0, len(args)-1)
	for _, a := range args[1:] {
		if !a.Const {
			return inRows(args, out, sel, n)
		}
		list = append(list, a.Value(0))
	}
	return inConstants(c, args[0], list, out, sel, n)
}

func inArrayKernel(c *Call, args []*types.Vector, out *types.Vector, sel []int32, n int) error {
	x, array := args[0], args[1]
	if array.Const {
		return inConstants(c, x, array.Value(0).List, out, sel, n)
	}
	return each(sel, n, func(i int) error {
		out.Set(i, quantify(equal, false, x.Type, x.Value(i), array.Value(i).List).value())
		return nil
	})
}

func inRows(args []*types.Vector, out *types.Vector, sel []int32, n int) error {
	list := make([]types.Value, len(args)-1)
	t := args[0].Type
	return each(sel, n, func(i int) error {
		for j, a := range args[1:] {
			list[j] = a.Value(i)
		}
		out.Set(i, quantify(equal, false, t, args[0].Value(i), list).value())
		return nil
	})
}

// inConstants finds each x in a list that is the same for all rows.
func inConstants(c *Call, x *types.Vector, list []types.Value, out *types.Vector, sel []int32, n int) error {
	if len(list) == 0 {
		fillInts(out.Ints, 0, sel, n)
		return nil
	}
	switch x.Type.Kind {
	case types.Array, types.Struct, types.Map, types.Proto:
		return each(sel, n, func(i int) error {
			out.Set(i, quantify(equal, false, x.Type, x.Value(i), list).value())
			return nil
		})
	}
	if mergeNulls(out, sel, n, x) == allNulls {
		return nil
	}
	set := constants(c, x.Type, list)
	switch x.Type.Kind {
	case types.Float32, types.Float64:
		memberRows(set.floats, set.list, floatOf, x.Floats, x.Const, out.Ints, sel, n)
	case types.String, types.Bytes:
		memberRows(set.strings, set.list, stringOf, x.Strs, x.Const, out.Ints, sel, n)
	default:
		memberRows(set.ints, set.list, intOf, x.Ints, x.Const, out.Ints, sel, n)
	}
	if set.null {
		// Not found among NULLs is NULL.
		return each(sel, n, func(i int) error {
			if out.Ints[i] == 0 {
				out.SetNull(i)
			}
			return nil
		})
	}
	return nil
}

func intOf(v types.Value) int64     { return v.Int }
func floatOf(v types.Value) float64 { return v.Float }
func stringOf(v types.Value) string { return v.Str }

// memberRows looks the rows of a up in set, or in list if set is nil: it is small then.
func memberRows[T int64 | float64 | string](set map[T]struct{}, list []types.Value, of func(types.Value) T, a []T, isConst bool, out []int64, sel []int32, n int) {
	var few [smallSet]T
	members := few[:0]
	if set == nil {
		for _, v := range list {
			if v.Valid {
				members = append(members, of(v))
			}
		}
	}
	found := func(x T) int64 {
		if set != nil {
			_, ok := set[x]
			return boolInt(ok)
		}
		for _, m := range members {
			if m == x {
				return 1
			}
		}
		return 0
	}
	switch {
	case isConst:
		fillInts(out, found(a[0]), sel, n)
	case sel == nil:
		for i, x := range a[:n] {
			out[i] = found(x)
		}
	default:
		for _, i := range sel {
			out[i] = found(a[i])
		}
	}
}

func init() {
	any1 := AnyT("T1")
	for i, x := range comparisons {
		op := comparison(i)
		register(operator(x.name, x.sql, x.doc,
			&Signature{Args: positional(any1, any1), Result: tBool, Check: op.check, Eval: op.eval, Kernel: op.kernel}))
		for _, all := range []bool{false, true} {
			name, sql, doc := x.name+"_any", x.sql+" ANY", "Returns whether the comparison holds for an element of the list or array."
			if all {
				name, sql, doc = x.name+"_all", x.sql+" ALL", "Returns whether the comparison holds for all elements of the list or array."
			}
			list := &Signature{
				Args: []Arg{{Type: any1}, {Type: any1, Repeated: true}}, Result: tBool, Check: op.check, Nulls: true,
				Eval: quantified(op, all, false),
			}
			array := &Signature{
				Args: positional(any1, ArrayT(any1)), Result: tBool, Check: op.check, Nulls: true,
				Eval: quantified(op, all, true),
			}
			if op == equal && !all {
				list.Kernel, array.Kernel = inKernel, inArrayKernel
			}
			register(operator(name, sql, doc, list), operator(name+"_array", sql, doc, array))
		}
	}
	register(
		operator("$is_distinct_from", "IS DISTINCT FROM", "Returns whether both differ, taking NULL for a value that equals NULL.",
			&Signature{Args: positional(any1, any1), Result: tBool, Check: checkDistinct, Nulls: true, Eval: evalIsDistinct}),
		operator("$is_not_distinct_from", "IS NOT DISTINCT FROM", "Returns whether both are the same, taking NULL for a value that equals NULL.",
			&Signature{Args: positional(any1, any1), Result: tBool, Check: checkDistinct, Nulls: true, Eval: evalIsNotDistinct}),
		operator("$between", "BETWEEN", "Returns whether the value lies between both bounds, or equals one.",
			&Signature{Args: positional(any1, any1, any1), Result: tBool, Check: checkBetween, Nulls: true, Eval: evalBetween, Kernel: betweenKernel}),
		operator("$in", "IN", "Returns whether the value equals an element of the list.",
			&Signature{
				Args: []Arg{{Type: any1}, {Type: any1, Repeated: true}}, Result: tBool, Check: equal.check, Nulls: true,
				Eval: quantified(equal, false, false), Kernel: inKernel,
			}),
		operator("$in_array", "IN UNNEST", "Returns whether the value equals an element of the array.",
			&Signature{
				Args: positional(any1, ArrayT(any1)), Result: tBool, Check: equal.check, Nulls: true,
				Eval: quantified(equal, false, true), Kernel: inArrayKernel,
			}),
	)
}

func checkBetween(args []*types.Type) string {
	if len(args) > 0 && !args[0].SupportsOrder() {
		return "BETWEEN is not defined for arguments of type " + args[0].String()
	}
	return ""
}
