package functions

import (
	"context"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/types"
)

// A typed is an argument of a function in a test.
type typed struct {
	t      *types.Type
	v      types.Value
	part   bool
	lambda func(args []types.Value) (types.Value, error)
}

func tInt(i int64) typed     { return typed{t: types.Int64Type, v: types.NewInt(i)} }
func tFloat(f float64) typed { return typed{t: types.Float64Type, v: types.NewFloat(f)} }
func tText(s string) typed   { return typed{t: types.StringType, v: types.NewString(s)} }
func tRaw(s string) typed    { return typed{t: types.BytesType, v: types.NewString(s)} }
func tTruth(b bool) typed    { return typed{t: types.BoolType, v: types.NewBool(b)} }
func tPart(s string) typed   { return typed{t: types.StringType, v: types.NewString(s), part: true} }
func tNull(t *types.Type) typed {
	return typed{t: t}
}

func tSingle(f float64) typed {
	return typed{t: types.Float32Type, v: types.NewFloat(float64(float32(f)))}
}

func tDay(s string) typed {
	d, err := parseDate(s)
	if err != nil {
		panic(err)
	}
	return typed{t: types.DateType, v: types.NewInt(d)}
}

func tTime(s string) typed {
	m, err := parseTimestamp(s, nil)
	if err != nil {
		panic(err)
	}
	return typed{t: types.TimestampType, v: types.NewInt(m)}
}

func tList(elems ...typed) typed {
	list := make([]types.Value, len(elems))
	t := types.Int64Type
	for i, e := range elems {
		list[i], t = e.v, e.t
	}
	return typed{t: types.ArrayOf(t), v: types.NewList(list)}
}

func tInts(xs ...int64) typed {
	out := make([]typed, len(xs))
	for i, x := range xs {
		out[i] = tInt(x)
	}
	return tList(out...)
}

func tFloats(xs ...float64) typed {
	list := make([]types.Value, len(xs))
	for i, x := range xs {
		list[i] = types.NewFloat(x)
	}
	return typed{t: types.ArrayOf(types.Float64Type), v: types.NewList(list)}
}

// tTexts makes an array of strings, of which "-" is NULL.
func tTexts(xs ...string) typed {
	list := make([]types.Value, len(xs))
	for i, x := range xs {
		if x != "-" {
			list[i] = types.NewString(x)
		}
	}
	return typed{t: types.ArrayOf(types.StringType), v: types.NewList(list)}
}

func tRow(fields ...typed) typed {
	var list []types.Value
	t := types.StructOf()
	for _, f := range fields {
		list = append(list, f.v)
		t.Fields = append(t.Fields, types.Field{Type: f.t})
	}
	return typed{t: t, v: types.NewList(list)}
}

// tMap makes a map of strings to integers.
func tMap(entries ...any) typed {
	var list []types.Value
	for i := 0; i < len(entries); i += 2 {
		list = append(list, types.NewString(entries[i].(string)), types.NewInt(int64(entries[i+1].(int))))
	}
	return typed{t: types.MapOf(types.StringType, types.Int64Type), v: types.NewList(types.SortMap(types.StringType, list))}
}

func tLambda(f func(args []types.Value) types.Value) typed {
	return typed{lambda: func(args []types.Value) (types.Value, error) { return f(args), nil }}
}

// showValue writes a value for comparison.
func showValue(t *types.Type, v types.Value) string {
	if !v.Valid {
		return "NULL"
	}
	switch t.Kind {
	case types.Bool:
		return strconv.FormatBool(v.Bool())
	case types.Float32:
		return strconv.FormatFloat(v.Float, 'g', 8, 32)
	case types.Float64:
		return strconv.FormatFloat(v.Float, 'g', 15, 64)
	case types.String, types.Proto:
		return v.Str
	case types.Bytes:
		return "b" + strconv.QuoteToASCII(v.Str)
	case types.Date:
		return dateString(v.Int)
	case types.Timestamp:
		return timestampString(v.Int, nil)
	case types.Array, types.Struct, types.Map:
		var parts []string
		for i, e := range v.List {
			u := t.Elem
			if t.Kind == types.Struct {
				u = t.Fields[i].Type
			} else if t.Kind == types.Map && i%2 == 0 {
				u = t.Key
			}
			parts = append(parts, showValue(u, e))
		}
		if t.Kind == types.Struct {
			return "{" + strings.Join(parts, ", ") + "}"
		}
		return "[" + strings.Join(parts, ", ") + "]"
	}
	return strconv.FormatInt(v.Int, 10)
}

// fits tells whether an argument has the form of a template, and binds names.
func fits(tmpl *Template, a typed, bound map[string]*types.Type) bool {
	switch {
	case tmpl.Part || tmpl.Interval:
		return a.part == tmpl.Part
	case tmpl.Lambda != nil:
		return a.lambda != nil
	case a.lambda != nil || a.part:
		return false
	case tmpl.Type != nil:
		return tmpl.Type.Equivalent(a.t)
	case tmpl.Arbitrary:
		return true
	}
	return bind(tmpl, a.t, bound)
}

func bind(tmpl *Template, t *types.Type, bound map[string]*types.Type) bool {
	switch {
	case tmpl.Type != nil:
		return tmpl.Type.Equivalent(t)
	case tmpl.Any != "":
		if b := bound[tmpl.Any]; b != nil {
			return b.Equivalent(t)
		}
		bound[tmpl.Any] = t
		return true
	case tmpl.Kind != t.Kind:
		return false
	case tmpl.Kind == types.Array && tmpl.Elem != nil:
		return bind(tmpl.Elem, t.Elem, bound)
	case tmpl.Kind == types.Map:
		return bind(tmpl.Key, t.Key, bound) && bind(tmpl.Elem, t.Elem, bound)
	}
	return true
}

func resultType(tmpl *Template, bound map[string]*types.Type) *types.Type {
	switch {
	case tmpl.Type != nil:
		return tmpl.Type
	case tmpl.Any != "":
		if bound[tmpl.Any] == nil {
			return types.Int64Type
		}
		return bound[tmpl.Any]
	case tmpl.Kind == types.Array:
		return types.ArrayOf(resultType(tmpl.Elem, bound))
	case tmpl.Kind == types.Map:
		return types.MapOf(resultType(tmpl.Key, bound), resultType(tmpl.Elem, bound))
	}
	return &types.Type{Kind: tmpl.Kind}
}

// choose finds the signature of a function that takes args, as written.
func chooseSignature(t testing.TB, name string, args []typed) (*Signature, *types.Type, []*types.Type) {
	t.Helper()
	f := Lookup(name)
	if f == nil {
		t.Fatalf("no function %s", name)
	}
next:
	for _, s := range f.Signatures {
		bound := map[string]*types.Type{}
		i := 0
		for j := 0; j < len(s.Args); j++ {
			a := &s.Args[j]
			if i == len(args) {
				if a.Optional || a.Repeated {
					continue
				}
				continue next
			}
			if a.Type.Interval {
				if i+1 >= len(args) || args[i].t != types.Int64Type || !args[i+1].part {
					if a.Optional {
						continue
					}
					continue next
				}
				i += 2
				continue
			}
			if !fits(&a.Type, args[i], bound) {
				if a.Optional {
					continue
				}
				continue next
			}
			i++
			if a.Repeated {
				j--
			}
		}
		if i < len(args) {
			continue
		}
		list := make([]*types.Type, len(args))
		for k, a := range args {
			list[k] = a.t
			if a.lambda != nil {
				list[k] = types.Int64Type
			}
		}
		if s.Check != nil && s.Check(list) != "" {
			continue
		}
		result := resultType(&s.Result, bound)
		if s.ResultOf != nil {
			result = s.ResultOf(list)
		}
		return s, result, list
	}
	t.Fatalf("%s has no signature for %d arguments", name, len(args))
	return nil, nil, nil
}

const testNow = 1764000000 * 1_000_000 // 2025-11-24 16:00:00 UTC

func newCall(list []*types.Type, result *types.Type, args []typed) *Call {
	c := &Call{Ctx: context.Background(), Types: list, Result: result, Now: testNow, Grow: func(int64) error { return nil }}
	for i, a := range args {
		if a.lambda != nil {
			if c.Lambdas == nil {
				c.Lambdas = make([]func([]types.Value) (types.Value, error), len(args))
			}
			c.Lambdas[i] = a.lambda
		}
	}
	return c
}

// evalScalar calls a function as exec does. If it has a Kernel, that must say the same.
func evalScalar(t testing.TB, name string, args []typed) (string, error) {
	t.Helper()
	s, result, list := chooseSignature(t, name, args)
	c := newCall(list, result, args)
	values := make([]types.Value, len(args))
	null := false
	for i, a := range args {
		values[i] = a.v
		null = null || !a.v.Valid && a.lambda == nil
	}
	got, err := types.Null, error(nil)
	if s.Nulls || !null {
		got, err = s.Eval(c, values)
	}
	text := showValue(result, got)
	if s.Kernel != nil {
		for _, sel := range [][]int32{nil, {1, 3}} {
			vecs := make([]*types.Vector, len(args))
			for i, a := range args {
				v := types.NewVector(a.t, 4)
				for k := range 4 {
					v.Set(k, a.v)
				}
				if i > 0 || a.part {
					v = types.NewConst(a.t, a.v)
				}
				vecs[i] = v
			}
			out := types.NewVector(result, 4)
			kernelErr := s.Kernel(newCall(list, result, args), vecs, out, sel, 4)
			if (kernelErr != nil) != (err != nil) {
				t.Errorf("%s: Eval has error %v, Kernel %v", name, err, kernelErr)
			} else if kernelText := showValue(result, out.Value(3)); err == nil && kernelText != text {
				t.Errorf("%s: Eval returns %s, Kernel %s", name, text, kernelText)
			}
		}
	}
	return text, err
}

// A scalarCase is a call of a function and what it returns; a want that begins with
// "!" is an error.
type scalarCase struct {
	name string
	args []typed
	want string
}

func checkScalars(t *testing.T, cases []scalarCase) {
	t.Helper()
	for _, c := range cases {
		got, err := evalScalar(t, c.name, c.args)
		if err != nil {
			got = "!" + strings.TrimPrefix(err.Error(), fault.KindOf(err).Error()+": ")
		}
		if got != c.want {
			var args []string
			for _, a := range c.args {
				if a.lambda != nil {
					args = append(args, "lambda")
				} else {
					args = append(args, showValue(a.t, a.v))
				}
			}
			t.Errorf("%s(%s) = %s, want %s", c.name, strings.Join(args, ", "), got, c.want)
		}
	}
}

func list(args ...typed) []typed { return args }

var inf, nan, negativeZero = math.Inf(1), math.NaN(), math.Copysign(0, -1)
