package functions

import (
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/trestledb/trestle/engine/query/types"
)

// TestSliding: a frame that rows enter and leave has at each moment the aggregate of
// the rows in it, to the last bit.
func TestSliding(t *testing.T) {
	random := rand.New(rand.NewPCG(13, 14))
	for _, tt := range []struct {
		function string
		args     []*types.Type
	}{
		{"COUNT", int64sArg}, {"SUM", int64sArg}, {"SUM", floatsArg}, {"AVG", floatsArg}, {"MIN", int64sArg}, {"MAX", floatsArg},
		{"MAX", textsArg}, {"STDDEV", floatsArg}, {"CORR", []*types.Type{types.Float64Type, types.Float64Type}},
	} {
		_, s := aggregateSignature(t, tt.function, tt.args)
		call := &Call{Types: tt.args, Result: aggregateResult(s, tt.args)}
		a, ok := NewSliding(s, call).(Remover)
		if !ok {
			t.Errorf("rows cannot leave %s", tt.function)
			continue
		}
		var rows [][]types.Value
		for step := range 400 {
			if len(rows) > 0 && random.IntN(5) < 2 {
				if err := a.Remove(rows[0]); err != nil {
					t.Fatal(err)
				}
				rows = rows[1:]
			} else {
				var row []types.Value
				for _, t := range tt.args {
					n := random.IntN(1000)
					switch {
					case t.Kind == types.Int64:
						row = append(row, sqlValue(n))
					case t.Kind == types.String:
						row = append(row, sqlValue(strconv.Itoa(n)))
					case n == 0:
						row = append(row, sqlValue(1e300)) // after which nothing may be left of it
					default:
						row = append(row, sqlValue(float64(n)/10))
					}
				}
				rows = append(rows, row)
				if err := a.Add(row); err != nil {
					t.Fatal(err)
				}
			}
			want, err := aggregateRows(t, tt.function, tt.args, rows, 1)
			if err != nil {
				t.Fatal(err)
			}
			v, err := a.Result()
			if got := valueText(call.Result, v); got != want || err != nil {
				t.Fatalf("%s of %d rows after %d steps is %s, %v, want %s", tt.function, len(rows), step, got, err, want)
			}
		}
	}
	if _, ok := NewSliding(Lookup("ARRAY_AGG").Signatures[0], &Call{Types: int64sArg}).(Remover); ok {
		t.Error("ARRAY_AGG has an inverse")
	}
}
