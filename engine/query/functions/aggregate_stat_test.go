package functions

import (
	"math"
	"math/big"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/trestledb/trestle/engine/query/types"
)

// TestStatisticsAreExact: of values whose mean is much larger than their spread, in
// one state and merged from three, variance and covariance are the rational numbers
// that they should be, rounded once.
func TestStatisticsAreExact(t *testing.T) {
	random := rand.New(rand.NewPCG(11, 12))
	for range 50 {
		n := 2 + random.IntN(100)
		center := math.Ldexp(random.Float64()-0.5, random.IntN(40))
		var rows [][]types.Value
		var sx, sy, sxx, sxy big.Rat
		for range n {
			x, y := center+random.Float64(), 3*center-random.NormFloat64()
			rows = append(rows, []types.Value{sqlValue(x), sqlValue(y)})
			var rx, ry, p big.Rat
			rx.SetFloat64(x)
			ry.SetFloat64(y)
			sx.Add(&sx, &rx)
			sy.Add(&sy, &ry)
			sxx.Add(&sxx, p.Mul(&rx, &rx))
			sxy.Add(&sxy, p.Mul(&rx, &ry))
		}
		// moment returns (sum of products - product of sums / n) / by.
		moment := func(products, b *big.Rat, by int) string {
			var out, p big.Rat
			p.Mul(&sx, b)
			p.Quo(&p, big.NewRat(int64(n), 1))
			out.Sub(products, &p)
			out.Quo(&out, big.NewRat(int64(by), 1))
			f, _ := out.Float64()
			return strconv.FormatFloat(f, 'g', -1, 64)
		}
		first := make([][]types.Value, n)
		for i, row := range rows {
			first[i] = row[:1]
		}
		pairs := []*types.Type{types.Float64Type, types.Float64Type}
		for _, tt := range []struct {
			function string
			args     []*types.Type
			rows     [][]types.Value
			want     string
		}{
			{"VAR_POP", floatsArg, first, moment(&sxx, &sx, n)},
			{"VAR_SAMP", floatsArg, first, moment(&sxx, &sx, n-1)},
			{"COVAR_POP", pairs, rows, moment(&sxy, &sy, n)},
			{"COVAR_SAMP", pairs, rows, moment(&sxy, &sy, n-1)},
		} {
			for _, parts := range []int{1, 3} {
				got, err := aggregateRows(t, tt.function, tt.args, tt.rows, parts)
				if got != tt.want || err != nil {
					t.Errorf("%s of %d rows around %v in %d parts is %s, %v, want %s", tt.function, n, center, parts, got, err, tt.want)
				}
			}
		}
	}
}
