package exec

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
)

// ratios has 3 groups of 3 rows: k, a, and b, which is 0 in one row of group 1 and in all of
// group 2.
func ratios(copies int) tables {
	c := tables{}
	var rows [][]types.Value
	for k := range int64(3 * copies) {
		for i := range int64(3) {
			b := int64(2)
			if k%3 == 1 && i == 1 || k%3 == 2 {
				b = 0
			}
			rows = append(rows, []types.Value{types.NewInt(k), types.NewInt(i + 1), types.NewInt(b)})
		}
	}
	c.add("t", rows, algebra.TableColumn{Name: "k", Type: types.Int64Type}, algebra.TableColumn{Name: "a", Type: types.Int64Type},
		algebra.TableColumn{Name: "b", Type: types.Int64Type})
	return c
}

// TestDeferred: an error in the rows of an aggregate is raised where its value is asked
// for, and for its group.
func TestDeferred(t *testing.T) {
	const overflow = "9223372036854775807"
	for _, tt := range []struct{ query, want string }{
		{"SELECT IFERROR(SUM(DIV(a, b)), -1) FROM t GROUP BY k ORDER BY k", "2 -1 -1"},
		{"SELECT IF(MAX(b) = 0, NULL, SUM(DIV(a, NULLIF(b, 0)))) FROM t GROUP BY k ORDER BY k", "2 1 NULL"},
		{"SELECT IF(MIN(b) = 0, -2, SUM(DIV(a, b))) FROM t GROUP BY k ORDER BY k", "2 -2 -2"},
		{"SELECT CASE WHEN k = 0 THEN MIN(DIV(a, b)) ELSE 7 END FROM t GROUP BY k ORDER BY k", "0 7 7"},
		{"SELECT COALESCE(1, SUM(DIV(a, 0))) FROM t", "1"},
		{"SELECT IFERROR(ARRAY_AGG(DIV(a, b) ORDER BY a)[OFFSET(2)], -1) FROM t GROUP BY k ORDER BY k", "1 -1 -1"},
		{"SELECT IFERROR(SUM(DISTINCT DIV(a, b)), -1) FROM t GROUP BY k ORDER BY k", "1 -1 -1"},
		{"SELECT IFERROR(SUM(DIV(a, b) + " + overflow + " - 1), -1) FROM t GROUP BY k ORDER BY k", "-1 -1 -1"},
		{"SELECT IFERROR(COUNT(* ), -1) + IFERROR(SUM(b), -1) FROM t GROUP BY k ORDER BY k", "9 7 3"},
		{"SELECT IFERROR(SUM(a WHERE DIV(a, b) > 0), -1) FROM t GROUP BY k ORDER BY k", "5 -1 -1"},
		{"SELECT IFERROR(SUM(MAX(DIV(a, b)) GROUP BY a), -1) FROM t GROUP BY k ORDER BY k", "2 -1 -1"},
		{"SELECT k FROM t GROUP BY k HAVING IFERROR(SUM(DIV(a, b)), -1) > 0", "0"},
		{"SELECT IF(k >= 0, SUM(DIV(a, b)), 0) FROM t GROUP BY k", "!division by zero"},
		{"SELECT SUM(DIV(a, b)) FROM t GROUP BY k", "!division by zero"},
		{"SELECT IFERROR(1, 2) + SUM(DIV(a, b)) FROM t GROUP BY k", "!division by zero"},
	} {
		r, err := run(t, prepare(t, ratios(1), tt.query, false), Limits{})
		if want, ok := strings.CutPrefix(tt.want, "!"); ok {
			if !errors.Is(err, fault.OutOfRange) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %s", tt.query, err, want)
			}
			continue
		}
		var got []string
		for _, row := range r.rows {
			if !row[0].Valid {
				got = append(got, "NULL")
				continue
			}
			got = append(got, fmt.Sprint(row[0].Int))
		}
		if s := strings.Join(got, " "); err != nil || s != tt.want {
			t.Errorf("%s: %s, %v, want %s", tt.query, s, err, tt.want)
		}
	}
}

// TestDeferredSpill: errors of groups survive temporary files.
func TestDeferredSpill(t *testing.T) {
	for _, call := range []string{"SUM(DIV(a, b))", "BIT_OR(DIV(a, b))"} {
		stmt := prepare(t, ratios(20_000), "SELECT k, IFERROR("+call+", -1) FROM t GROUP BY k", false)
		r, err := run(t, stmt, Limits{Query: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		if r.spilled == 0 || len(r.rows) != 60_000 {
			t.Errorf("%s: %d groups, %d bytes were spilled", call, len(r.rows), r.spilled)
		}
		for _, row := range r.rows {
			if failed := row[1].Int == -1; failed != (row[0].Int%3 != 0) {
				t.Fatalf("%s of group %d is %d", call, row[0].Int, row[1].Int)
			}
		}
	}
}
