package exec

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
)

// modelRow is a row of the model: nil is NULL.
type modelRow []any

func value(x any) types.Value {
	switch x := x.(type) {
	case nil:
		return types.Null
	case int:
		return types.NewInt(int64(x))
	case int64:
		return types.NewInt(x)
	case bool:
		return types.NewBool(x)
	case float64:
		return types.NewFloat(x)
	case string:
		return types.NewString(x)
	}
	panic(fmt.Sprintf("no value of %T", x))
}

func values(rows []modelRow) [][]types.Value {
	var out [][]types.Value
	for _, r := range rows {
		var list []types.Value
		for _, x := range r {
			list = append(list, value(x))
		}
		out = append(out, list)
	}
	return out
}

// randomTables returns l(id, a, b, f) and r(id, a, c): a is an INT64, b a STRING, f a FLOAT64
// with NaN, all with NULLs and duplicates; id is the number of the row.
func randomTables(seed uint64, nl, nr int) (l, r []modelRow) {
	rnd := rand.New(rand.NewPCG(seed, 7))
	keys := max(2, (nl+nr)/4)
	number := func() any {
		if rnd.IntN(10) == 0 {
			return nil
		}
		return int64(rnd.IntN(keys))
	}
	for i := range nl {
		var b, f any
		if rnd.IntN(8) > 0 {
			b = strings.Repeat(string(rune('a'+rnd.IntN(4))), rnd.IntN(3))
		}
		switch rnd.IntN(8) {
		case 0:
		case 1:
			f = math.NaN()
		case 2:
			f = math.Copysign(0, -1)
		default:
			f = float64(rnd.IntN(6)) - 2
		}
		l = append(l, modelRow{int64(i), number(), b, f})
	}
	for i := range nr {
		r = append(r, modelRow{int64(i), number(), int64(rnd.IntN(5))})
	}
	return l, r
}

func modelTables(l, r []modelRow) tables {
	c := tables{}
	id, a := algebra.TableColumn{Name: "id", Type: types.Int64Type}, algebra.TableColumn{Name: "a", Type: types.Int64Type}
	c.add("l", values(l), id, a, algebra.TableColumn{Name: "b", Type: types.StringType}, algebra.TableColumn{Name: "f", Type: types.Float64Type})
	c.add("r", values(r), id, a, algebra.TableColumn{Name: "c", Type: types.Int64Type})
	return c
}

// compare orders values as ORDER BY does.
func compare(x, y any) int {
	switch {
	case x == nil && y == nil:
		return 0
	case x == nil:
		return -1
	case y == nil:
		return 1
	}
	switch x := x.(type) {
	case int64:
		return cmp.Compare(x, y.(int64))
	case float64:
		return cmp.Compare(x, y.(float64))
	case string:
		return cmp.Compare(x, y.(string))
	}
	panic("compare")
}

func key(list ...any) string {
	var b strings.Builder
	for _, x := range list {
		if f, ok := x.(float64); ok && f == 0 {
			x = 0.0
		}
		fmt.Fprintf(&b, "%T %v|", x, x)
	}
	return b.String()
}

// group groups rows by some columns, in the order of their first rows.
func group(rows []modelRow, cols ...int) [][]modelRow {
	at := map[string]int{}
	var out [][]modelRow
	for _, r := range rows {
		var list []any
		for _, c := range cols {
			list = append(list, r[c])
		}
		k := key(list...)
		i, ok := at[k]
		if !ok {
			i = len(out)
			at[k] = i
			out = append(out, nil)
		}
		out[i] = append(out[i], r)
	}
	return out
}

func sum(rows []modelRow, col int) any {
	var total int64
	some := false
	for _, r := range rows {
		if r[col] != nil {
			total += r[col].(int64)
			some = true
		}
	}
	if !some {
		return nil
	}
	return total
}

func join(l, r []modelRow, kind string, on func(x, y modelRow) bool) (out []modelRow) {
	found := make([]bool, len(r))
	for _, x := range l {
		some := false
		for j, y := range r {
			if !on(x, y) {
				continue
			}
			some, found[j] = true, true
			if kind != "semi" && kind != "anti" {
				out = append(out, append(slices.Clone(x), y...))
			}
		}
		switch {
		case kind == "semi" && some, kind == "anti" && !some:
			out = append(out, x)
		case !some && (kind == "left" || kind == "full"):
			out = append(out, append(slices.Clone(x), nil, nil, nil))
		}
	}
	if kind == "full" {
		for j, y := range r {
			if !found[j] {
				out = append(out, append(modelRow{nil, nil, nil, nil}, y...))
			}
		}
	}
	return out
}

// A modelCase is a query and what its rows should be.
type modelCase struct {
	sql     string
	ordered bool
	want    func(l, r []modelRow) []modelRow
}

func onA(x, y modelRow) bool { return x[1] != nil && y[1] != nil && x[1] == y[1] }

// shifted holds for no equality: the join looks at all pairs.
func shifted(x, y modelRow) bool {
	return x[1] != nil && y[1] != nil && x[1].(int64)+1 < y[1].(int64) && y[2] == int64(3)
}

func residual(x, y modelRow) bool { return onA(x, y) && x[0].(int64)%2 == y[0].(int64)%2 }

var modelCases = []modelCase{
	{"SELECT * FROM l JOIN r ON l.a = r.a", false, func(l, r []modelRow) []modelRow { return join(l, r, "inner", onA) }},
	{"SELECT * FROM l LEFT JOIN r ON l.a = r.a", false, func(l, r []modelRow) []modelRow { return join(l, r, "left", onA) }},
	{"SELECT * FROM l FULL JOIN r ON l.a = r.a", false, func(l, r []modelRow) []modelRow { return join(l, r, "full", onA) }},
	{"SELECT * FROM l LEFT JOIN r ON l.a = r.a AND MOD(l.id, 2) = MOD(r.id, 2) AND l.id >= r.id - 100000000", false,
		func(l, r []modelRow) []modelRow { return join(l, r, "left", residual) }},
	{"SELECT * FROM l FULL JOIN r ON l.a = r.a AND MOD(l.id, 2) = MOD(r.id, 2) AND l.id >= r.id - 100000000", false,
		func(l, r []modelRow) []modelRow { return join(l, r, "full", residual) }},
	{"SELECT * FROM l JOIN r ON l.a + 1 < r.a AND r.c = 3", false, func(l, r []modelRow) []modelRow { return join(l, r, "inner", shifted) }},
	{"SELECT * FROM l FULL JOIN r ON l.a + 1 < r.a AND r.c = 3", false, func(l, r []modelRow) []modelRow { return join(l, r, "full", shifted) }},
	{"SELECT * FROM l WHERE EXISTS (SELECT 1 FROM r WHERE r.a = l.a)", false, func(l, r []modelRow) []modelRow { return join(l, r, "semi", onA) }},
	{"SELECT * FROM l WHERE NOT EXISTS (SELECT 1 FROM r WHERE r.a = l.a)", false, func(l, r []modelRow) []modelRow { return join(l, r, "anti", onA) }},
	{"SELECT * FROM l WHERE EXISTS (SELECT 1 FROM r WHERE l.a + 1 < r.a AND r.c = 3)", false,
		func(l, r []modelRow) []modelRow { return join(l, r, "semi", shifted) }},
	{"SELECT * FROM l WHERE a IN (SELECT a FROM r WHERE a IS NOT NULL)", false, func(l, r []modelRow) []modelRow { return join(l, r, "semi", onA) }},
	{"SELECT * FROM l WHERE a NOT IN (SELECT a FROM r)", false, func(l, r []modelRow) []modelRow {
		for _, y := range r {
			if y[1] == nil {
				return nil
			}
		}
		return join(l, r, "anti", func(x, y modelRow) bool { return x[1] == nil || x[1] == y[1] })
	}},
	{"SELECT id, (SELECT SUM(c) FROM r WHERE r.a = l.a) FROM l", false, func(l, r []modelRow) (out []modelRow) {
		for _, x := range l {
			out = append(out, modelRow{x[0], sum(join([]modelRow{x}, r, "inner", onA), 6)})
		}
		return out
	}},
	{"SELECT a, COUNT(*), SUM(id) FROM l GROUP BY a", false, func(l, _ []modelRow) (out []modelRow) {
		for _, g := range group(l, 1) {
			out = append(out, modelRow{g[0][1], len(g), sum(g, 0)})
		}
		return out
	}},
	{"SELECT b, f, COUNT(a), SUM(a), MAX(b) FROM l GROUP BY b, f", false, func(l, _ []modelRow) (out []modelRow) {
		for _, g := range group(l, 2, 3) {
			n := 0
			for _, r := range g {
				if r[1] != nil {
					n++
				}
			}
			out = append(out, modelRow{g[0][2], g[0][3], n, sum(g, 1), g[0][2]})
		}
		return out
	}},
	{"SELECT a, COUNT(DISTINCT b), STRING_AGG(b, ',' ORDER BY id DESC LIMIT 3) FROM l GROUP BY a", false, func(l, _ []modelRow) (out []modelRow) {
		for _, g := range group(l, 1) {
			seen := map[any]bool{}
			var list []string
			for i := len(g) - 1; i >= 0; i-- {
				if b := g[i][2]; b != nil {
					seen[b] = true
					if len(list) < 3 {
						list = append(list, b.(string))
					}
				}
			}
			var all any
			if list != nil {
				all = strings.Join(list, ",")
			}
			out = append(out, modelRow{g[0][1], len(seen), all})
		}
		return out
	}},
	{"SELECT b, SUM(id) FROM l GROUP BY ROLLUP(b)", false, func(l, _ []modelRow) (out []modelRow) {
		for _, g := range group(l, 2) {
			out = append(out, modelRow{g[0][2], sum(g, 0)})
		}
		if len(l) == 0 {
			return nil // GoogleSQL gives no row for the set () of no rows
		}
		return append(out, modelRow{nil, sum(l, 0)})
	}},
	{"SELECT DISTINCT a, b FROM l", false, func(l, _ []modelRow) (out []modelRow) {
		for _, g := range group(l, 1, 2) {
			out = append(out, modelRow{g[0][1], g[0][2]})
		}
		return out
	}},
	{"SELECT a FROM l UNION DISTINCT SELECT a FROM r", false, func(l, r []modelRow) (out []modelRow) {
		for _, g := range group(append(slices.Clone(l), r...), 1) {
			out = append(out, modelRow{g[0][1]})
		}
		return out
	}},
	{"SELECT a FROM l INTERSECT ALL SELECT a FROM r", false, func(l, r []modelRow) []modelRow {
		return combine(l, r, func(a, b int) int { return min(a, b) })
	}},
	{"SELECT a FROM l EXCEPT ALL SELECT a FROM r", false, func(l, r []modelRow) []modelRow {
		return combine(l, r, func(a, b int) int { return max(0, a-b) })
	}},
	{"SELECT a FROM l EXCEPT DISTINCT SELECT a FROM r", false, func(l, r []modelRow) []modelRow {
		return combine(l, r, func(a, b int) int {
			if b > 0 {
				return 0
			}
			return min(a, 1)
		})
	}},
	{"SELECT f, b, id FROM l ORDER BY f DESC, b, id", true, func(l, _ []modelRow) (out []modelRow) {
		for _, r := range l {
			out = append(out, modelRow{r[3], r[2], r[0]})
		}
		slices.SortStableFunc(out, func(x, y modelRow) int {
			return cmp.Or(-compare(x[0], y[0]), compare(x[1], y[1]), compare(x[2], y[2]))
		})
		return out
	}},
	{"SELECT a, id FROM l ORDER BY a DESC NULLS FIRST, id LIMIT 40 OFFSET 5", true, func(l, _ []modelRow) (out []modelRow) {
		for _, r := range l {
			out = append(out, modelRow{r[1], r[0]})
		}
		slices.SortStableFunc(out, func(x, y modelRow) int {
			if (x[0] == nil) != (y[0] == nil) {
				return compare(x[0], y[0])
			}
			return cmp.Or(-compare(x[0], y[0]), compare(x[1], y[1]))
		})
		return out[min(5, len(out)):min(45, len(out))]
	}},
	{"SELECT id, SUM(id) OVER (PARTITION BY a ORDER BY id ROWS BETWEEN 2 PRECEDING AND 1 FOLLOWING), ROW_NUMBER() OVER (PARTITION BY a ORDER BY id), " +
		"RANK() OVER (ORDER BY b), COUNT(*) OVER (PARTITION BY b) FROM l", false, func(l, _ []modelRow) (out []modelRow) {
		for _, x := range l {
			var part []modelRow
			at, rank, same := 0, 1, 0
			for _, y := range l {
				if compare(x[1], y[1]) == 0 {
					if y[0] == x[0] {
						at = len(part)
					}
					part = append(part, y)
				}
				switch c := compare(y[2], x[2]); {
				case c < 0:
					rank++
				case c == 0:
					same++
				}
			}
			out = append(out, modelRow{x[0], sum(part[max(0, at-2):min(len(part), at+2)], 0), at + 1, rank, same})
		}
		return out
	}},
	{"SELECT id, COUNT(*) OVER (ORDER BY a RANGE BETWEEN 1 PRECEDING AND 2 FOLLOWING) FROM l WHERE a IS NOT NULL", false, func(l, _ []modelRow) (out []modelRow) {
		for _, x := range l {
			if x[1] == nil {
				continue
			}
			n := 0
			for _, y := range l {
				if y[1] != nil && y[1].(int64) >= x[1].(int64)-1 && y[1].(int64) <= x[1].(int64)+2 {
					n++
				}
			}
			out = append(out, modelRow{x[0], n})
		}
		return out
	}},
	{"WITH w AS (SELECT a, COUNT(*) AS n FROM l GROUP BY a) SELECT x.a, y.n FROM w x JOIN w y ON x.a = y.a", false, func(l, _ []modelRow) (out []modelRow) {
		for _, g := range group(l, 1) {
			if g[0][1] != nil {
				out = append(out, modelRow{g[0][1], len(g)})
			}
		}
		return out
	}},
	{"SELECT id, e, o FROM l, UNNEST(SPLIT(b, '')) AS e WITH OFFSET o WHERE o < 2", false, func(l, _ []modelRow) (out []modelRow) {
		for _, r := range l {
			if r[2] == nil {
				continue
			}
			parts := strings.Split(r[2].(string), "")
			if len(parts) == 0 {
				parts = []string{""}
			}
			for i, p := range parts[:min(2, len(parts))] {
				out = append(out, modelRow{r[0], p, i})
			}
		}
		return out
	}},
	{"SELECT id, IF(a > 3, b, CAST(a AS STRING)), CASE WHEN a = 1 THEN 'one' WHEN b = 'a' THEN b END, COALESCE(b, 'none'), NULLIF(a, 2) FROM l", false,
		func(l, _ []modelRow) (out []modelRow) {
			for _, r := range l {
				first, second, third, fourth := any(nil), any(nil), any("none"), r[1]
				if r[1] != nil && r[1].(int64) > 3 {
					first = r[2]
				} else if r[1] != nil {
					first = fmt.Sprint(r[1])
				}
				if r[1] == int64(1) {
					second = "one"
				} else if r[2] == "a" {
					second = "a"
				}
				if r[2] != nil {
					third = r[2]
				}
				if r[1] == int64(2) {
					fourth = nil
				}
				out = append(out, modelRow{r[0], first, second, third, fourth})
			}
			return out
		}},
}

// combine returns the values of a column as often as f says, given how often each side has
// them.
func combine(l, r []modelRow, f func(a, b int) int) (out []modelRow) {
	count := map[string]int{}
	for _, y := range r {
		count[key(y[1])]++
	}
	for _, g := range group(l, 1) {
		for range f(len(g), count[key(g[0][1])]) {
			out = append(out, modelRow{g[0][1]})
		}
	}
	return out
}

// TestModel runs queries over random rows, with and without a plan, with much memory and
// with next to none, and compares with a model that looks at one row at a time.
func TestModel(t *testing.T) {
	for _, size := range []struct{ l, r int }{{0, 0}, {0, 5}, {7, 0}, {40, 30}, {450, 250}} {
		l, r := randomTables(uint64(size.l), size.l, size.r)
		c := modelTables(l, r)
		for _, q := range modelCases {
			t.Run(fmt.Sprintf("%d/%s", size.l, q.sql), func(t *testing.T) {
				want := values(q.want(l, r))
				for _, plain := range []bool{true, false} {
					stmt := prepare(t, c, q.sql, plain)
					for _, memory := range []int64{64 << 20, 1} {
						got, err := run(t, stmt, Limits{Query: memory, Memory: 1 << 30})
						if err != nil {
							t.Fatalf("plain %v, %d bytes: %v", plain, memory, err)
						}
						a, b := text(stmt, got.rows), text(stmt, want)
						if !q.ordered {
							slices.Sort(a)
							slices.Sort(b)
						}
						if !slices.Equal(a, b) {
							t.Fatalf("plain %v, %d bytes: %d rows, want %d", plain, memory, len(a), len(b))
						}
					}
				}
			})
		}
	}
}
