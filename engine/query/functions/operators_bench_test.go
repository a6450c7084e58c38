package functions

import (
	"fmt"
	"testing"

	"github.com/trestledb/trestle/engine/query/types"
)

// BenchmarkKernels measures the operators that filters are made of, over whole batches:
// ns/value is what counts.
func BenchmarkKernels(b *testing.B) {
	const n = types.BatchRows
	ints, more := types.NewVector(types.Int64Type, n), types.NewVector(types.Int64Type, n)
	floats, strs, bools := types.NewVector(types.Float64Type, n), types.NewVector(types.StringType, n), types.NewVector(types.BoolType, n)
	for i := range n {
		ints.Ints[i], more.Ints[i], floats.Floats[i] = int64(i*7%n), int64(i), float64(i)+1
		strs.Strs[i] = fmt.Sprintf("sensor#%06d#temperature", i*7%n)
		bools.Ints[i] = int64(i & 1)
	}
	text := func(s string) *types.Vector { return types.NewConst(types.StringType, types.NewString(s)) }
	integer := func(i int64) *types.Vector { return types.NewConst(types.Int64Type, types.NewInt(i)) }
	few, many, names := []*types.Vector{ints}, []*types.Vector{ints}, []*types.Vector{strs}
	for i := range 100 {
		if i < 3 {
			few = append(few, integer(int64(i)))
		}
		many = append(many, integer(int64(i)))
		names = append(names, text(fmt.Sprintf("sensor#%06d#temperature", i)))
	}
	half := make([]int32, 0, n)
	for i := 0; i < n; i += 2 {
		half = append(half, int32(i))
	}
	for _, bench := range []struct {
		name     string
		function string
		args     []*types.Vector
		sel      []int32
	}{
		{"less/int/const", "$less", []*types.Vector{ints, integer(500)}, nil},
		{"less/int", "$less", []*types.Vector{ints, more}, nil},
		{"less/int/const/half", "$less", []*types.Vector{ints, integer(500)}, half},
		{"less/float", "$less", []*types.Vector{floats, floats}, nil},
		{"equal/string/const", "$equal", []*types.Vector{strs, text("sensor#000500#temperature")}, nil},
		{"less/string/const", "$less", []*types.Vector{strs, text("sensor#000500#temperature")}, nil},
		{"between/string", "$between", []*types.Vector{strs, text("sensor#000100"), text("sensor#000500")}, nil},
		{"between/int", "$between", []*types.Vector{ints, integer(100), integer(500)}, nil},
		{"add/int", "$add", []*types.Vector{ints, more}, nil},
		{"add/int/const", "$add", []*types.Vector{ints, integer(1)}, nil},
		{"multiply/int", "$multiply", []*types.Vector{ints, more}, nil},
		{"add/float", "$add", []*types.Vector{floats, floats}, nil},
		{"divide/float", "$divide", []*types.Vector{floats, floats}, nil},
		{"like/prefix", "$like", []*types.Vector{strs, text("sensor#0005%")}, nil},
		{"like/suffix", "$like", []*types.Vector{strs, text("%ature")}, nil},
		{"like/contains", "$like", []*types.Vector{strs, text("%0500%")}, nil},
		{"like/general", "$like", []*types.Vector{strs, text("sensor#%5_0#%")}, nil},
		{"in/3", "$in", few, nil},
		{"in/100", "$in", many, nil},
		{"in/100/string", "$in", names, nil},
		{"not", "$not", []*types.Vector{bools}, nil},
		{"is_null", "$is_null", []*types.Vector{ints}, nil},
		{"STARTS_WITH", "STARTS_WITH", []*types.Vector{strs, text("sensor#0005")}, nil},
		{"LENGTH", "LENGTH", []*types.Vector{strs}, nil},
		{"BYTE_LENGTH", "BYTE_LENGTH", []*types.Vector{strs}, nil},
		{"CONCAT", "CONCAT", []*types.Vector{strs, text("#"), strs}, nil},
		{"REGEXP_CONTAINS/literal", "REGEXP_CONTAINS", []*types.Vector{strs, text("0500")}, nil},
		{"REGEXP_CONTAINS", "REGEXP_CONTAINS", []*types.Vector{strs, text("^sensor#0005[0-9]+")}, nil},
	} {
		b.Run(bench.name, func(b *testing.B) {
			f := Lookup(bench.function)
			var s *Signature
			for _, x := range f.Signatures {
				if t := x.Args[0].Type.Type; t == nil || t == bench.args[0].Type {
					s = x
					break
				}
			}
			c := &Call{}
			for _, a := range bench.args {
				c.Types = append(c.Types, a.Type)
			}
			out := types.NewVector(s.Result.Type, n)
			rows := n
			if bench.sel != nil {
				rows = len(bench.sel)
			}
			b.ReportAllocs()
			for b.Loop() {
				out.Resize(n)
				if err := s.Kernel(c, bench.args, out, bench.sel, n); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(rows), "ns/value")
		})
	}
}
