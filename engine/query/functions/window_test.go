package functions

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/types"
)

// testPartition has rows whose first column is the order, or with frame the frame
// that many rows to each side.
type testPartition struct {
	args  [][]types.Value
	order []int
	frame int
}

func (p *testPartition) Rows() int                    { return len(p.args) }
func (p *testPartition) Arg(row, arg int) types.Value { return p.args[row][arg] }
func (p *testPartition) Peers(row int) (start, end int) {
	if p.order == nil {
		return 0, len(p.args)
	}
	start, end = row, row+1
	for start > 0 && p.order[start-1] == p.order[row] {
		start--
	}
	for end < len(p.order) && p.order[end] == p.order[row] {
		end++
	}
	return start, end
}
func (p *testPartition) Frame(row int) (start, end int) {
	return max(0, row-p.frame), min(len(p.args), row+p.frame+1)
}

func TestWindow(t *testing.T) {
	none := make([][]types.Value, 5)
	of := []int{1, 2, 2, 3, 3}
	numbers := func(more ...any) [][]types.Value {
		var rows [][]types.Value
		for _, x := range []any{10, nil, 30, 40, nil} {
			rows = append(rows, sqlValue(append([]any{x}, more...)).List)
		}
		return rows
	}
	decimals := func(q any) [][]types.Value {
		return rowsOf([]any{0.0, q}, []any{3.0, q}, []any{nil, q}, []any{1.0, q}, []any{2.0, q})
	}
	discrete := func(q any) [][]types.Value {
		return rowsOf([]any{"c", q}, []any{nil, q}, []any{"b", q}, []any{"a", q})
	}
	ints := func(n int) []*types.Type { return []*types.Type{types.Int64Type, types.Int64Type, types.Int64Type}[:n] }
	float2 := []*types.Type{types.Float64Type, types.Float64Type}
	text2 := []*types.Type{types.StringType, types.Float64Type}
	for _, tt := range []struct {
		function string
		args     []*types.Type
		rows     [][]types.Value
		order    []int
		ignore   bool
		want     string
	}{
		{"ROW_NUMBER", nil, none, nil, false, "1 2 3 4 5"},
		{"RANK", nil, none, of, false, "1 2 2 4 4"},
		{"DENSE_RANK", nil, none, of, false, "1 2 2 3 3"},
		{"PERCENT_RANK", nil, none, of, false, "0 0.25 0.25 0.75 0.75"},
		{"PERCENT_RANK", nil, none[:1], of[:1], false, "0"},
		{"CUME_DIST", nil, none, of, false, "0.2 0.6 0.6 1 1"},
		{"NTILE", ints(1), columnOf(2, 2, 2, 2, 2), of, false, "1 1 1 2 2"},
		{"NTILE", ints(1), columnOf(9, 9, 9), of[:3], false, "1 2 3"},
		{"NTILE", ints(1), columnOf(0), of[:1], false, "!The N value (number of buckets) for the NTILE function must be positive"},
		{"NTILE", ints(1), columnOf(nil), of[:1], false, "!The N value (number of buckets) for the NTILE function must not be NULL"},
		{"LAG", ints(1), numbers(), of, false, "NULL 10 NULL 30 40"},
		{"LEAD", ints(1), numbers(), of, false, "NULL 30 40 NULL NULL"},
		{"LEAD", ints(2), numbers(0), of, false, "10 NULL 30 40 NULL"},
		{"LEAD", ints(3), numbers(3, 7), of, false, "40 NULL 7 7 7"},
		{"LAG", ints(2), numbers(1 << 62), of, false, "NULL NULL NULL NULL NULL"},
		{"LAG", ints(2), numbers(-1), of, false, "!The offset to the function LAG must not be negative"},
		{"LAG", ints(2), numbers(nil), of, false, "!The offset to the function LAG must not be null"},
		{"FIRST_VALUE", ints(1), numbers(), of, false, "10 10 NULL 30 40"},
		{"FIRST_VALUE", ints(1), numbers(), of, true, "10 10 30 30 40"},
		{"LAST_VALUE", ints(1), numbers(), of, false, "NULL 30 40 NULL NULL"},
		{"LAST_VALUE", ints(1), numbers(), of, true, "10 30 40 40 40"},
		{"NTH_VALUE", ints(2), numbers(2), of, false, "NULL NULL 30 40 NULL"},
		{"NTH_VALUE", ints(2), numbers(2), of, true, "NULL 30 40 40 NULL"},
		{"NTH_VALUE", ints(2), numbers(1 << 62), of, false, "NULL NULL NULL NULL NULL"},
		{"NTH_VALUE", ints(2), numbers(0), of, false, "!The N value for the NthValue function must be positive"},
		{"NTH_VALUE", ints(2), numbers(nil), of, false, "!The N value for the NthValue function must not be NULL"},
		{"PERCENTILE_CONT", float2, decimals(0.0), nil, true, "0 0 0 0 0"},
		{"PERCENTILE_CONT", float2, decimals(0.01), nil, true, "0.03 0.03 0.03 0.03 0.03"},
		{"PERCENTILE_CONT", float2, decimals(0.5), nil, true, "1.5 1.5 1.5 1.5 1.5"},
		{"PERCENTILE_CONT", float2, decimals(0.9), nil, true, "2.7 2.7 2.7 2.7 2.7"},
		{"PERCENTILE_CONT", float2, decimals(1.0), nil, true, "3 3 3 3 3"},
		{"PERCENTILE_CONT", float2, rowsOf([]any{5.0, 0.9}, []any{5.0, 0.9}, []any{5.0, 0.9}, []any{5.0, 0.9}, []any{5.0, 0.9}, []any{100.0, 0.9}), nil, true,
			"52.500000000000014 52.500000000000014 52.500000000000014 52.500000000000014 52.500000000000014 52.500000000000014"},
		{"PERCENTILE_CONT", float2, decimals(0.0), nil, false, "NULL NULL NULL NULL NULL"},
		{"PERCENTILE_CONT", float2, decimals(0.125), nil, false, "0 0 0 0 0"},
		{"PERCENTILE_CONT", float2, decimals(1.5), nil, false, "!The second argument to the function PERCENTILE_CONT must be in [0, 1]; got 1.5"},
		{"PERCENTILE_CONT", float2, decimals(nil), nil, false, "!The second argument to the function PERCENTILE_CONT must not be null"},
		{"PERCENTILE_DISC", text2, discrete(0.0), nil, true, `"a" "a" "a" "a"`},
		{"PERCENTILE_DISC", text2, discrete(0.5), nil, true, `"b" "b" "b" "b"`},
		{"PERCENTILE_DISC", text2, discrete(1.0), nil, true, `"c" "c" "c" "c"`},
		{"PERCENTILE_DISC", text2, discrete(0.25), nil, false, "NULL NULL NULL NULL"},
		{"PERCENTILE_DISC", text2, discrete(0.5), nil, false, `"a" "a" "a" "a"`},
		{"PERCENTILE_DISC", text2, rowsOf([]any{nil, 0.5}), nil, true, "NULL"},
	} {
		_, s := aggregateSignature(t, tt.function, tt.args)
		result := aggregateResultOf(s, tt.args)
		out := make([]types.Value, len(tt.rows))
		err := s.Window(&Call{Types: tt.args, Result: result, IgnoreNulls: tt.ignore}, &testPartition{tt.rows, tt.order, 1}, out)
		got := ""
		if err != nil {
			got = "!" + err.Error()
			if !errors.Is(err, fault.OutOfRange) && !errors.Is(err, fault.Invalid) {
				t.Errorf("%s: the error is %v", tt.function, err)
			}
		} else {
			var parts []string
			for _, v := range out {
				parts = append(parts, valueText(result, v))
			}
			got = strings.Join(parts, " ")
		}
		if got != tt.want {
			t.Errorf("%s (ignore nulls %v) of %v:\n got %s\nwant %s", tt.function, tt.ignore, tt.rows, got, tt.want)
		}
		if err := s.Window(&Call{Types: tt.args, Result: result}, &testPartition{}, nil); err != nil {
			t.Errorf("%s of no rows: %v", tt.function, err)
		}
	}
}

// aggregateResultOf is aggregateResult for functions without arguments, too.
func aggregateResultOf(s *Signature, args []*types.Type) *types.Type {
	if len(args) == 0 {
		return s.Result.Type
	}
	return aggregateResult(s, args)
}

// TestPercentileExact: the product of a percentile and the number of rows counts as
// it is, not as it is rounded.
func TestPercentileExact(t *testing.T) {
	rows := make([][]types.Value, 10)
	for i := range rows {
		rows[i] = []types.Value{sqlValue(fmt.Sprint(i)), sqlValue(0.1)} // 0.1 is a little more than a tenth
	}
	_, s := aggregateSignature(t, "PERCENTILE_DISC", []*types.Type{types.StringType, types.Float64Type})
	out := make([]types.Value, len(rows))
	if err := s.Window(&Call{Types: []*types.Type{types.StringType}}, &testPartition{args: rows}, out); err != nil {
		t.Fatal(err)
	}
	if out[0].Str != "1" {
		t.Errorf("a tenth and a little of 10 rows is row %s, want 1", out[0].Str)
	}
}
