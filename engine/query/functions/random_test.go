package functions

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/trestledb/trestle/engine/query/types"
)

// randomValues draws values of any type, extreme ones among them.
type randomValues struct{ *rand.Rand }

func oneOf[T any](r randomValues, list ...T) T { return list[r.IntN(len(list))] }

func (r randomValues) value(t *types.Type) types.Value {
	if r.IntN(8) == 0 {
		return types.Null
	}
	switch t.Kind {
	case types.Bool:
		return types.NewBool(r.IntN(2) == 0)
	case types.Float32, types.Float64:
		return types.NewFloat(oneOf(r, 0, math.Copysign(0, -1), 1, -1, 0.5, 2.5, 1e308, -1e308, 5e-324, inf, -inf, nan, 1e17, 123456.789))
	case types.String, types.Bytes:
		return types.NewString(oneOf(r, "", "a", "UTC", "%Y-%m-%d %H:%M:%E*S%Ez", "2020-01-01", "2020-01-01 01:02:03.5+01", "America/Los_Angeles",
			"FIRST", "LAST", "PAD", "\x00\x00\x00\x00\x00\x00\x00\x01", "%c%G%g%J%j%U%V%W%u%w%s%Q", "+14", "é"))
	case types.Date:
		return types.NewInt(oneOf[int64](r, minDate, maxDate, 0, -1, r.Int64N(maxDate-minDate)+minDate))
	case types.Timestamp:
		return types.NewInt(oneOf[int64](r, minTimestamp, maxTimestamp, 0, -1, r.Int64N(maxTimestamp-minTimestamp)+minTimestamp))
	case types.Array, types.Struct, types.Map:
		list := []types.Value{}
		switch t.Kind {
		case types.Array:
			for range r.IntN(20) {
				list = append(list, r.value(t.Elem))
			}
		case types.Struct:
			for _, f := range t.Fields {
				list = append(list, r.value(f.Type))
			}
		default:
			for range r.IntN(10) {
				list = append(list, r.value(t.Key), r.value(t.Elem))
			}
			list = types.SortMap(t.Key, list)
		}
		return types.NewList(list)
	}
	return types.NewInt(oneOf[int64](r, 0, 1, -1, 2, 7, 100, 16000, maxDate+1, 1_000_000_000_000_000, math.MaxInt64, math.MinInt64))
}

// concrete returns a type that a template takes.
func (r randomValues) concrete(t *Template, bound map[string]*types.Type) *types.Type {
	switch {
	case t.Type != nil:
		return t.Type
	case t.Any != "":
		if bound[t.Any] == nil {
			bound[t.Any] = oneOf(r, types.BoolType, types.Int64Type, types.Float32Type, types.Float64Type, types.StringType, types.BytesType,
				types.DateType, types.TimestampType, types.StructOf(types.Field{Type: types.Int64Type}, types.Field{Type: types.StringType}))
		}
		return bound[t.Any]
	case t.Kind == types.Array:
		return types.ArrayOf(r.concrete(t.Elem, bound))
	case t.Kind == types.Map:
		return types.MapOf(r.concrete(t.Key, bound), r.concrete(t.Elem, bound))
	}
	return types.StructOf(types.Field{Type: types.StringType}, types.Field{Type: types.Int64Type})
}

// arguments draws arguments of a signature.
func (r randomValues) arguments(s *Signature, bound map[string]*types.Type) []typed {
	var out []typed
	part := func() typed {
		return tPart(oneOf(r, "DAY", "WEEK", "WEEK(TUESDAY)", "MONTH", "QUARTER", "YEAR", "ISOYEAR", "ISOWEEK", "HOUR", "MINUTE", "SECOND",
			"MILLISECOND", "MICROSECOND", "NANOSECOND", "DAYOFWEEK", "DAYOFYEAR"))
	}
	for i := range s.Args {
		a := &s.Args[i]
		if a.Optional && r.IntN(2) == 0 {
			break
		}
		times := 1
		if a.Repeated {
			times = r.IntN(3)
		}
		for range times {
			switch {
			case a.Type.Interval:
				out = append(out, typed{t: types.Int64Type, v: r.value(types.Int64Type)}, part())
			case a.Type.Part:
				out = append(out, part())
			case a.Type.Lambda != nil:
				t := r.concrete(a.Type.Result, bound)
				out = append(out, typed{t: t, lambda: func([]types.Value) (types.Value, error) { return r.value(t), nil }})
			default:
				t := r.concrete(&a.Type, bound)
				out = append(out, typed{t: t, v: r.value(t)})
			}
		}
	}
	return out
}

// TestRandomArguments calls functions with arguments of their types. None may panic, and
// Kernels say what Eval says.
func TestRandomArguments(t *testing.T) {
	r := randomValues{rand.New(rand.NewPCG(5, 6))}
	categories := map[string]bool{"Array": true, "Map": true, "Date": true, "Timestamp": true, "Mathematical": true, "Bigtable": true}
	calls := 0
	for name, f := range All {
		if !categories[f.Category] || f.Kind != Scalar || f.Name != name {
			continue
		}
		for i, s := range f.Signatures {
			for range 40 {
				bound := map[string]*types.Type{}
				args := r.arguments(s, bound)
				list, values, null := make([]*types.Type, len(args)), make([]types.Value, len(args)), false
				for k, a := range args {
					list[k], values[k] = a.t, a.v
					null = null || !a.v.Valid && a.lambda == nil
				}
				if s.Check != nil && s.Check(list) != "" {
					continue
				}
				result := r.concrete(&s.Result, bound)
				if s.ResultOf != nil {
					result = s.ResultOf(list)
				}
				calls++
				got, err := types.Null, error(nil)
				if s.Nulls || !null {
					got, err = s.Eval(newCall(list, result, args), values)
				}
				if s.Kernel == nil {
					continue
				}
				vecs := make([]*types.Vector, len(args))
				for k := range args {
					vecs[k] = types.NewConst(list[k], values[k])
					if k == 0 {
						vecs[k] = types.NewVector(list[k], 3)
						vecs[k].Set(2, values[k])
					}
				}
				out := types.NewVector(result, 3)
				kernelErr := s.Kernel(newCall(list, result, args), vecs, out, []int32{2}, 3)
				switch {
				case (kernelErr != nil) != (err != nil):
					t.Errorf("%s, signature %d, of %v: Eval has error %v, Kernel %v", name, i, values, err, kernelErr)
				case err == nil && fmt.Sprint(got) != fmt.Sprint(out.Value(2)):
					t.Errorf("%s, signature %d, of %v: Eval returns %v, Kernel %v", name, i, values, got, out.Value(2))
				}
			}
		}
	}
	if calls < 4000 {
		t.Errorf("only %d calls", calls)
	}
}
