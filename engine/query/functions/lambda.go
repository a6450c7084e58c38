package functions

import (
	"github.com/trestledb/trestle/engine/query/types"
)

// Functions that search an array by a value or by a condition, which is a lambda.

// A matcher tells whether an element of an array matches: whether it is equal to
// a value, or a lambda is TRUE of it.
type matcher func(i int, e types.Value) (bool, error)

// newMatcher returns the matcher of argument i, and false if that is a value that is
// NULL, which matches nothing.
func newMatcher(c *Call, args []types.Value, i int) (matcher, bool) {
	if i < len(c.Lambdas) && c.Lambdas[i] != nil {
		f := c.Lambdas[i]
		params := [1]types.Value{}
		return func(_ int, e types.Value) (bool, error) {
			params[0] = e
			v, err := f(params[:])
			return v.Valid && v.Int != 0, err
		}, true
	}
	t, x := elemType(c, 0), args[i]
	return func(_ int, e types.Value) (bool, error) { return isEqual(t, e, x), nil }, x.Valid
}

// find returns the index of the first element of list that matches, or of the last,
// or -1.
func find(c *Call, list []types.Value, last bool, match matcher) (int, error) {
	for n := range list {
		i := n
		if last {
			i = len(list) - 1 - n
		}
		if err := checkCtx(c, n); err != nil {
			return -1, err
		}
		ok, err := match(i, list[i])
		if err != nil {
			return -1, err
		}
		if ok {
			return i, nil
		}
	}
	return -1, nil
}

// findMode reads the argument that says whether the first match is wanted or the
// last. It returns false if that is NULL.
func findMode(c *Call, args []types.Value, i int) (last, ok bool, err error) {
	if !hasArg(c, args, i) {
		return false, true, nil
	}
	switch {
	case !args[i].Valid:
		return false, false, nil
	case args[i].Str == "FIRST":
		return false, true, nil
	case args[i].Str == "LAST":
		return true, true, nil
	}
	return false, false, Errorf("Invalid array find mode: %s; it is FIRST or LAST", args[i].Str)
}

// arrayFindOne returns the Eval of ARRAY_FIND, or of ARRAY_OFFSET.
func arrayFindOne(offset bool) func(*Call, []types.Value) (types.Value, error) {
	return func(c *Call, args []types.Value) (types.Value, error) {
		last, ok, err := findMode(c, args, 2)
		match, known := newMatcher(c, args, 1)
		if err != nil || !ok || !known || !args[0].Valid {
			return types.Null, err
		}
		list := args[0].List
		i, err := find(c, list, last, match)
		if err != nil || i < 0 {
			return types.Null, err
		}
		if offset {
			return types.NewInt(int64(i)), nil
		}
		return list[i], nil
	}
}

// arrayFindAll returns the Eval of ARRAY_FIND_ALL and ARRAY_FILTER, or of
// ARRAY_OFFSETS.
func arrayFindAll(offsets bool) func(*Call, []types.Value) (types.Value, error) {
	return func(c *Call, args []types.Value) (types.Value, error) {
		match, known := newMatcher(c, args, 1)
		if !known || !args[0].Valid {
			return types.Null, nil
		}
		return filterArray(c, args[0].List, offsets, match)
	}
}

func filterArray(c *Call, list []types.Value, offsets bool, match matcher) (types.Value, error) {
	out := []types.Value{}
	for i, e := range list {
		if err := checkCtx(c, i); err != nil {
			return types.Null, err
		}
		ok, err := match(i, e)
		if err != nil {
			return types.Null, err
		}
		if !ok {
			continue
		}
		if len(out) == cap(out) {
			if err := growList(c, 2*len(out)); err != nil {
				return types.Null, err
			}
		}
		if offsets {
			e = types.NewInt(int64(i))
		}
		out = append(out, e)
	}
	return types.NewList(out), nil
}

// arrayFilterOffset is ARRAY_FILTER with a lambda of an element and its position.
func arrayFilterOffset(c *Call, args []types.Value) (types.Value, error) {
	if !args[0].Valid {
		return types.Null, nil
	}
	var params [2]types.Value
	return filterArray(c, args[0].List, false, func(i int, e types.Value) (bool, error) {
		params[0], params[1] = e, types.NewInt(int64(i))
		v, err := c.Lambdas[1](params[:])
		return v.Valid && v.Int != 0, err
	})
}

// arrayTransform returns the Eval of ARRAY_TRANSFORM, with a lambda of an element or of
// an element and its position.
func arrayTransform(withOffset bool) func(*Call, []types.Value) (types.Value, error) {
	return func(c *Call, args []types.Value) (types.Value, error) {
		if !args[0].Valid {
			return types.Null, nil
		}
		list, f := args[0].List, c.Lambdas[1]
		if err := growList(c, len(list)); err != nil {
			return types.Null, err
		}
		out := make([]types.Value, len(list))
		var params [2]types.Value
		n := 1
		if withOffset {
			n = 2
		}
		for i, e := range list {
			if err := checkCtx(c, i); err != nil {
				return types.Null, err
			}
			params[0], params[1] = e, types.NewInt(int64(i))
			v, err := f(params[:n])
			if err != nil {
				return types.Null, err
			}
			out[i] = v
		}
		return types.NewList(out), nil
	}
}

func arrayIncludesLambda(c *Call, args []types.Value) (types.Value, error) {
	if !args[0].Valid {
		return types.Null, nil
	}
	match, _ := newMatcher(c, args, 1)
	i, err := find(c, args[0].List, false, match)
	return types.NewBool(i >= 0), err
}

func arrayIncludes(c *Call, args []types.Value) (types.Value, error) {
	return types.NewBool(includes(elemType(c, 0), args[0].List, args[1])), nil
}

// arrayIncludesKernel is the Kernel of ARRAY_INCLUDES(array, value).
func arrayIncludesKernel(_ *Call, args []*types.Vector, out *types.Vector, sel []int32, n int) error {
	a, x, t := args[0], args[1], args[0].Type.Elem
	return eachRow(sel, n, func(i int) error {
		if a.IsNull(i) || x.IsNull(i) {
			out.SetNull(i)
			return nil
		}
		out.Ints[i] = types.NewBool(includes(t, a.Lists[a.At(i)], x.Value(i))).Int
		return nil
	})
}

// arrayIncludesMany returns the Eval of ARRAY_INCLUDES_ANY or ARRAY_INCLUDES_ALL.
func arrayIncludesMany(all bool) func(*Call, []types.Value) (types.Value, error) {
	return func(c *Call, args []types.Value) (types.Value, error) {
		if err := growList(c, len(args[0].List)); err != nil {
			return types.Null, err
		}
		set := newValueSet(elemType(c, 0), args[0].List, len(args[1].List))
		for i, v := range args[1].List {
			if err := checkCtx(c, i|len(args[0].List)>>8); err != nil {
				return types.Null, err
			}
			if set.has(v) != all {
				return types.NewBool(!all), nil
			}
		}
		return types.NewBool(all), nil
	}
}

// zipModes are how ARRAY_ZIP treats arrays of different lengths.
const (
	zipStrict   = "STRICT"
	zipPad      = "PAD"
	zipTruncate = "TRUNCATE"
)

// arrayZip returns the Eval of ARRAY_ZIP of n arrays, with a lambda behind them or
// without. The mode comes last.
func arrayZip(n int, lambda bool) func(*Call, []types.Value) (types.Value, error) {
	return func(c *Call, args []types.Value) (types.Value, error) {
		at := n
		if lambda {
			at++
		}
		mode := zipStrict
		if hasArg(c, args, at) {
			if !args[at].Valid {
				return types.Null, nil
			}
			mode = args[at].Str
		}
		long, short := 0, -1
		for _, a := range args[:n] {
			if !a.Valid {
				return types.Null, nil
			}
			long = max(long, len(a.List))
			if short < 0 || len(a.List) < short {
				short = len(a.List)
			}
		}
		switch mode {
		case zipStrict:
			if long != short {
				return types.Null, Errorf("Unequal array length in ARRAY_ZIP using STRICT mode")
			}
		case zipTruncate:
			long = short
		case zipPad:
		default:
			return types.Null, Errorf("Invalid array zip mode: %s; it is PAD, TRUNCATE or STRICT", mode)
		}
		if err := growList(c, long*(n+1)); err != nil {
			return types.Null, err
		}
		out, fields := make([]types.Value, long), make([]types.Value, long*n)
		for i := range out {
			if err := checkCtx(c, i); err != nil {
				return types.Null, err
			}
			row := fields[i*n : i*n+n : i*n+n]
			for j := range row {
				if i < len(args[j].List) {
					row[j] = args[j].List[i]
				}
			}
			if !lambda {
				out[i] = types.NewList(row)
				continue
			}
			v, err := c.Lambdas[n](row)
			if err != nil {
				return types.Null, err
			}
			out[i] = v
		}
		return types.NewList(out), nil
	}
}

// zipSignatures are those of ARRAY_ZIP: two to four arrays.
func zipSignatures() []*Signature {
	var plain, lambdas []*Signature
	for n := 2; n <= 4; n++ {
		args := make([]Arg, n)
		params := make([]Template, n)
		for i := range n {
			name := "T" + string(rune('1'+i))
			args[i].Type, params[i] = ArrayT(AnyT(name)), AnyT(name)
		}
		mode := Arg{Name: "mode", Type: T(types.StringType), Optional: true, NamedOnly: true}
		plain = append(plain, &Signature{
			Args: append(args[:n:n], mode), Nulls: true, Eval: arrayZip(n, false),
			Result: ArrayT(Template{Kind: types.Struct}),
			ResultOf: func(args []*types.Type) *types.Type {
				fields := make([]types.Field, n)
				for i := range n {
					fields[i].Type = args[i].Elem
				}
				return types.ArrayOf(types.StructOf(fields...))
			},
		})
		lambdas = append(lambdas, &Signature{
			Args:  append(args[:n:n], Arg{Name: "transformation", Type: LambdaT(AnyT("R"), params...)}, mode),
			Nulls: true, Eval: arrayZip(n, true), Result: ArrayT(AnyT("R")),
		})
	}
	return append(plain, lambdas...)
}

func init() {
	elem, array := AnyT("T"), ArrayT(AnyT("T"))
	boolean, integer, text := T(types.BoolType), T(types.Int64Type), T(types.StringType)
	condition := LambdaT(boolean, elem)
	// search returns the signatures of a function that takes a value or a condition.
	search := func(result Template, mode bool, eval func(*Call, []types.Value) (types.Value, error)) []*Signature {
		var out []*Signature
		for _, what := range []Template{elem, condition} {
			s := &Signature{Args: []Arg{{Type: array}, {Type: what}}, Result: result, Nulls: true, Eval: eval}
			if what.Lambda == nil {
				s.Check = needEquality
			}
			if mode {
				s.Args = append(s.Args, Arg{Name: "find_mode", Type: text, Optional: true})
			}
			out = append(out, s)
		}
		return out
	}
	register(
		&Function{
			Name: "ARRAY_FIND", Category: "Array", Doc: "Returns the first or the last element of an array that is equal to a value or meets a condition.",
			Signatures: search(elem, true, arrayFindOne(false)),
		},
		&Function{
			Name: "ARRAY_FIND_ALL", Category: "Array", Doc: "Returns all elements of an array that are equal to a value or meet a condition.",
			Signatures: search(array, false, arrayFindAll(false)),
		},
		&Function{
			Name: "ARRAY_OFFSET", Category: "Array", Doc: "Returns the position, from 0, of the first or the last element of an array that is equal to a value or meets a condition.",
			Signatures: search(integer, true, arrayFindOne(true)),
		},
		&Function{
			Name: "ARRAY_OFFSETS", Category: "Array", Doc: "Returns the positions, from 0, of all elements of an array that are equal to a value or meet a condition.",
			Signatures: search(ArrayT(integer), false, arrayFindAll(true)),
		},
		&Function{
			Name: "ARRAY_FILTER", Category: "Array", Doc: "Returns the elements of an array that meet a condition.",
			Signatures: []*Signature{
				{Args: []Arg{{Type: array}, {Type: condition}}, Result: array, Nulls: true, Eval: arrayFindAll(false)},
				{Args: []Arg{{Type: array}, {Type: LambdaT(boolean, elem, integer)}}, Result: array, Nulls: true, Eval: arrayFilterOffset},
			},
		},
		&Function{
			Name: "ARRAY_TRANSFORM", Category: "Array", Doc: "Returns an array of what a lambda makes of each element.",
			Signatures: []*Signature{
				{Args: []Arg{{Type: array}, {Type: LambdaT(AnyT("R"), elem)}}, Result: ArrayT(AnyT("R")), Nulls: true, Eval: arrayTransform(false)},
				{Args: []Arg{{Type: array}, {Type: LambdaT(AnyT("R"), elem, integer)}}, Result: ArrayT(AnyT("R")), Nulls: true, Eval: arrayTransform(true)},
			},
		},
		&Function{
			Name: "ARRAY_INCLUDES", Category: "Array", Doc: "Tells whether an array has an element that is equal to a value or meets a condition.",
			Signatures: []*Signature{
				{Args: []Arg{{Type: array}, {Type: elem}}, Check: needEquality, Result: boolean, Eval: arrayIncludes, Kernel: arrayIncludesKernel},
				{Args: []Arg{{Type: array}, {Type: condition}}, Result: boolean, Nulls: true, Eval: arrayIncludesLambda},
			},
		},
		&Function{
			Name: "ARRAY_INCLUDES_ANY", Category: "Array", Doc: "Tells whether an array has one of the elements of another.",
			Signatures: []*Signature{{Args: []Arg{{Type: array}, {Type: array}}, Check: needEquality, Result: boolean, Eval: arrayIncludesMany(false)}},
		},
		&Function{
			Name: "ARRAY_INCLUDES_ALL", Category: "Array", Doc: "Tells whether an array has all elements of another.",
			Signatures: []*Signature{{Args: []Arg{{Type: array}, {Type: array}}, Check: needEquality, Result: boolean, Eval: arrayIncludesMany(true)}},
		},
		&Function{
			Name: "ARRAY_ZIP", Category: "Array", Doc: "Joins arrays element by element into an array of structs, or of what a lambda makes of them.",
			Signatures: zipSignatures(),
		},
	)
}
