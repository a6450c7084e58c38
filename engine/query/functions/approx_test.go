package functions

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/types"
)

func TestApproximate(t *testing.T) {
	with := func(more []any, xs ...any) [][]types.Value {
		var rows [][]types.Value
		for _, x := range xs {
			rows = append(rows, sqlValue(append([]any{x}, more...)).List)
		}
		return rows
	}
	n := func(n any) []any { return []any{n} }
	numbers := []*types.Type{types.Int64Type, types.Int64Type}
	words := []*types.Type{types.StringType, types.Int64Type}
	sums := []*types.Type{types.StringType, types.Int64Type, types.Int64Type}
	floatSums := []*types.Type{types.StringType, types.Float64Type, types.Int64Type}
	fruit := []any{"apple", "apple", "pear", "pear", "pear", "banana"}
	const huge = math.MaxInt64
	for _, tt := range []struct {
		function string
		args     []*types.Type
		rows     [][]types.Value
		want     string
	}{
		{"APPROX_QUANTILES", numbers, nil, "NULL"},
		{"APPROX_QUANTILES", numbers, with(n(1), nil, nil), "NULL"},
		{"APPROX_QUANTILES", numbers, with(n(2), 1, 1, 1, 4, 5, 6, 7, 8, 9, 10), "[1 5 10]"},
		{"APPROX_QUANTILES", numbers, with(n(10), 5, 1, 1, 4, 1, 6, 7, 8, 9, 10), "[1 1 1 1 4 5 6 7 8 9 10]"},
		{"APPROX_QUANTILES", numbers, with(n(2), nil, 1, 1, 1, 4, 5, 6, 7, 8, 9, 10, nil), "[1 5 10]"},
		{"APPROX_QUANTILES", words, with(n(3), "foo", "foo"), `["foo" "foo" "foo" "foo"]`},
		{"APPROX_QUANTILES", words, with(n(0), "a"), "!The second argument to APPROX_QUANTILES function must be positive"},
		{"APPROX_QUANTILES", words, with(n(-1), "a"), "!The second argument to APPROX_QUANTILES function must be positive"},
		{"APPROX_QUANTILES", words, with(n(nil), "a"), "!The second argument to APPROX_QUANTILES function must not be NULL"},
		{"APPROX_QUANTILES", words, with(n(100_001), "a"), "!The second argument to APPROX_QUANTILES function cannot be greater than 100000"},
		{"APPROX_TOP_COUNT", words, nil, "NULL"},
		{"APPROX_TOP_COUNT", words, with(n(2), fruit...), `[["pear" 3] ["apple" 2]]`},
		{"APPROX_TOP_COUNT", words, with(n(9), fruit...), `[["pear" 3] ["apple" 2] ["banana" 1]]`},
		{"APPROX_TOP_COUNT", words, with(n(1), nil, "pear", nil), `[[NULL 2]]`},
		{"APPROX_TOP_COUNT", words, with(n(0), "pear"), "!The second argument to APPROX_TOP_COUNT function must be positive"},
		{"APPROX_TOP_SUM", sums, rowsOf([]any{"apple", 3, 2}, []any{"pear", 2, 2}, []any{"apple", 0, 2}, []any{"banana", 5, 2}, []any{"pear", 4, 2}),
			`[["pear" 6] ["banana" 5]]`},
		{"APPROX_TOP_SUM", sums, rowsOf([]any{"apples", nil, 2}, []any{"pears", 0, 2}, []any{"pears", nil, 2}), `[["pears" 0] ["apples" NULL]]`},
		{"APPROX_TOP_SUM", sums, rowsOf([]any{nil, nil, 2}, []any{nil, nil, 2}), `[[NULL NULL]]`},
		{"APPROX_TOP_SUM", floatSums, rowsOf([]any{"a", 0.25, 1}, []any{"a", 1e9, 1}), `[["a" 1.00000000025e+09]]`},
		{"APPROX_TOP_SUM", sums, rowsOf([]any{"a", -2, 1}), "!APPROX_TOP_SUM does not support negative or NaN weights in the second argument; got -2"},
		{"APPROX_TOP_SUM", floatSums, rowsOf([]any{"a", math.Inf(-1), 1}), "!APPROX_TOP_SUM does not support negative or NaN weights in the second argument; got -inf"},
		{"APPROX_TOP_SUM", floatSums, rowsOf([]any{"a", math.NaN(), 1}), "!APPROX_TOP_SUM does not support negative or NaN weights in the second argument; got nan"},
		{"APPROX_TOP_SUM", sums, rowsOf([]any{"", huge, 1}, []any{"", 1, 1}), "!int64 overflow: 9223372036854775807 + 1"},
		{"APPROX_TOP_SUM", sums, rowsOf([]any{"", 1, nil}), "!The third argument to APPROX_TOP_SUM function must not be NULL"},
		{"APPROX_TOP_SUM", floatSums, rowsOf([]any{"", 1.5e308, 1}, []any{"", 1.5e308, 1}), "!double overflow: 1.5e+308 + 1.5e+308"},
	} {
		for _, parts := range []int{1, 2} {
			got, err := aggregateRows(t, tt.function, tt.args, tt.rows, parts)
			if err != nil {
				got = "!" + err.Error()
			}
			if got != tt.want && !(parts > 1 && strings.Contains(got, "overflow") && strings.Contains(tt.want, "overflow")) {
				t.Errorf("%s of %v in %d parts is %s, want %s", tt.function, tt.rows, parts, got, tt.want)
			}
			if err != nil && !errors.Is(err, fault.OutOfRange) {
				t.Errorf("%s: the error is %v", tt.function, err)
			}
		}
	}
}

// TestQuantilesAreClose: of 100,000 rows, in one state or merged from many, each
// percentile is at most 0.2 % of the rows away from its place, and the state is small.
func TestQuantilesAreClose(t *testing.T) {
	const rows = 100_000
	order := rand.New(rand.NewPCG(5, 6)).Perm(rows)
	args := []*types.Type{types.Int64Type, types.Int64Type}
	_, s := aggregateSignature(t, "APPROX_QUANTILES", args)
	for _, parts := range []int{1, 20} {
		for _, sorted := range []bool{false, true} {
			all := s.New(&Call{Types: args})
			for p := range parts {
				part := s.New(&Call{Types: args})
				for i := p; i < rows; i += parts {
					v := order[i]
					if sorted {
						v = i
					}
					if err := part.Add([]types.Value{sqlValue(v), sqlValue(100)}); err != nil {
						t.Fatal(err)
					}
				}
				if err := all.MergeState(part.AppendState(nil)); err != nil {
					t.Fatal(err)
				}
			}
			v, err := all.Result()
			if err != nil {
				t.Fatal(err)
			}
			for i, q := range v.List {
				if off := math.Abs(float64(q.Int) - float64(i)*rows/100); off > 0.002*rows {
					t.Errorf("%d parts: percentile %d of 0..%d is %d", parts, i, rows-1, q.Int)
				}
			}
			if v.List[0].Int != 0 || v.List[100].Int != rows-1 {
				t.Errorf("the extremes are %d and %d", v.List[0].Int, v.List[100].Int)
			}
			if size := all.Size(); size > 4*quantileBuffer*64 {
				t.Errorf("the state takes %d bytes", size)
			}
		}
	}
}

// TestTopIsClose: of 100,000 distinct values of which few are frequent, those are found,
// in one state and merged, with counts no further off than the sketch says.
func TestTopIsClose(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	args := []*types.Type{types.StringType, types.Int64Type}
	_, s := aggregateSignature(t, "APPROX_TOP_COUNT", args)
	var rows []string
	for i := range 100_000 {
		rows = append(rows, fmt.Sprint("rare ", i))
	}
	counts := map[string]int64{}
	for i := range 10 {
		name := fmt.Sprint("frequent ", i)
		counts[name] = int64(1000 * (i + 1))
		for range counts[name] {
			rows = append(rows, name)
		}
	}
	random.Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
	for _, parts := range []int{1, 7} {
		all := s.New(&Call{Types: args})
		for p := range parts {
			part := s.New(&Call{Types: args})
			for i := p; i < len(rows); i += parts {
				if err := part.Add([]types.Value{sqlValue(rows[i]), sqlValue(10)}); err != nil {
					t.Fatal(err)
				}
			}
			if err := all.MergeState(part.AppendState(nil)); err != nil {
				t.Fatal(err)
			}
		}
		v, err := all.Result()
		if err != nil {
			t.Fatal(err)
		}
		limit := int64(len(rows) / topBuffer)
		for _, e := range v.List {
			name, count := e.List[0].Str, e.List[1].Int
			if want := counts[name]; want == 0 || count < want-limit || count > want+limit {
				t.Errorf("%d parts: %s counts %d, want %d", parts, name, count, counts[name])
			}
		}
		if !slices.IsSortedFunc(v.List, func(a, b types.Value) int { return cmp.Compare(b.List[1].Int, a.List[1].Int) }) || len(v.List) != 10 {
			t.Errorf("%d parts: %v", parts, v.List)
		}
		if size := all.Size(); size > 600*topBuffer {
			t.Errorf("the state takes %d bytes", size)
		}
	}
}

func TestHLL(t *testing.T) {
	hll := func(function string, args []*types.Type, rows [][]types.Value) types.Value {
		t.Helper()
		f, s := aggregateSignature(t, function, args)
		a := s.New(&Call{Types: args})
		for _, row := range notIgnored(f, s, rows) {
			if err := a.Add(row); err != nil {
				t.Fatal(err)
			}
		}
		v, err := a.Result()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	_, extract := aggregateSignature(t, "HLL_COUNT.EXTRACT", blobsArg)
	check := func(v types.Value, want int64) {
		t.Helper()
		n, err := extract.Eval(nil, []types.Value{v})
		if err != nil || n.Int != want {
			t.Errorf("the sketch counts %d, %v, want %d", n.Int, err, want)
		}
	}
	numbers := hll("HLL_COUNT.INIT", int64sArg, columnOf(111, 222, nil, 222))
	more := hll("HLL_COUNT.INIT", []*types.Type{types.Int64Type, types.Int64Type}, rowsOf([]any{222, 12}, []any{333, 12}))
	words := hll("HLL_COUNT.INIT", textsArg, columnOf("foo", "bar"))
	check(numbers, 2)
	check(words, 2)
	check(types.Null, 0)
	check(hll("HLL_COUNT.MERGE_PARTIAL", blobsArg, columnOf(numbers, nil, more)), 3)
	if v := hll("HLL_COUNT.INIT", textsArg, columnOf(nil)); v.Valid {
		t.Errorf("the sketch of no rows is %x", v.Str)
	}
	if v := hll("HLL_COUNT.MERGE_PARTIAL", blobsArg, columnOf(nil)); v.Valid {
		t.Errorf("the sketch of no sketches is %x", v.Str)
	}
	if v := hll("HLL_COUNT.MERGE", blobsArg, columnOf(numbers, more)); v.Int != 3 {
		t.Errorf("sketches count %d together, want 3", v.Int)
	}
	if v := hll("HLL_COUNT.MERGE", blobsArg, nil); !v.Valid || v.Int != 0 {
		t.Errorf("no sketches count %v together", v)
	}

	for _, tt := range []struct {
		function, want string
		args           []*types.Type
		rows           [][]types.Value
	}{
		{"HLL_COUNT.MERGE_PARTIAL", "Invalid or incompatible sketch in HLL_COUNT.MERGE_PARTIAL", blobsArg, columnOf(numbers, words)},
		{"HLL_COUNT.MERGE", "Invalid or incompatible sketch in HLL_COUNT.MERGE", blobsArg, columnOf("")},
		{"HLL_COUNT.INIT", "The second argument to HLL_COUNT.INIT must be between 10 and 24; got 9", []*types.Type{types.Int64Type, types.Int64Type}, rowsOf([]any{1, 9})},
		{"HLL_COUNT.INIT", "The second argument to HLL_COUNT.INIT must not be NULL", []*types.Type{types.Int64Type, types.Int64Type}, rowsOf([]any{1, nil})},
	} {
		if _, err := aggregateRows(t, tt.function, tt.args, tt.rows, 1); err == nil || err.Error() != tt.want || !errors.Is(err, fault.OutOfRange) {
			t.Errorf("%s: %v, want %s", tt.function, err, tt.want)
		}
	}
	if _, err := extract.Eval(nil, []types.Value{sqlValue("")}); err == nil || err.Error() != "Invalid sketch in HLL_COUNT.EXTRACT" {
		t.Errorf("EXTRACT of nothing: %v", err)
	}
}

// BenchmarkApproximate is the time of one row of 1,000,000 different ones.
func BenchmarkApproximate(b *testing.B) {
	for _, tt := range []struct {
		function string
		more     []types.Value
	}{
		{"APPROX_COUNT_DISTINCT", nil}, {"HLL_COUNT.INIT", nil},
		{"APPROX_QUANTILES", []types.Value{sqlValue(10)}}, {"APPROX_TOP_COUNT", []types.Value{sqlValue(10)}},
	} {
		b.Run(tt.function, func(b *testing.B) {
			args := []*types.Type{types.Int64Type, types.Int64Type}[:1+len(tt.more)]
			_, s := aggregateSignature(b, tt.function, args)
			a := s.New(&Call{Types: args})
			row := append([]types.Value{{Valid: true}}, tt.more...)
			for i := int64(0); b.Loop(); i++ {
				row[0].Int = i * 7919 % 1_000_000
				if err := a.Add(row); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
