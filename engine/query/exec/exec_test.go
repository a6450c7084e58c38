package exec

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trestledb/trestle/engine/cputime"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/functions"
	"github.com/trestledb/trestle/engine/query/types"
)

// showValue returns a value as the tests write it.
func showValue(t *types.Type, v types.Value) string {
	if !v.Valid {
		return "NULL"
	}
	switch t.Kind {
	case types.Bool:
		return fmt.Sprint(v.Bool())
	case types.Float32, types.Float64:
		return fmt.Sprint(v.Float)
	case types.String, types.Bytes:
		return v.Str
	case types.Array, types.Struct:
		var parts []string
		for i, e := range v.List {
			parts = append(parts, showValue(elementType(t, i), e))
		}
		return "[" + strings.Join(parts, " ") + "]"
	}
	return fmt.Sprint(v.Int)
}

func TestResults(t *testing.T) {
	c := tables{}
	c.add("n", values([]modelRow{{1, 10}, {2, nil}, {3, 30}}), algebra.TableColumn{Name: "i", Type: types.Int64Type},
		algebra.TableColumn{Name: "x", Type: types.Int64Type})
	for _, q := range []struct{ sql, want string }{
		{"SELECT 1, 'a', NULL", "1,a,NULL"},
		{"SELECT i FROM n WHERE false", ""},
		{"SELECT COUNT(*), SUM(x), AVG(x) FROM n", "3,40,20"},
		{"SELECT COUNT(*), SUM(x) FROM n WHERE false", "0,NULL"},
		{"SELECT i FROM n ORDER BY x DESC", "3;1;2"},
		{"SELECT i FROM n ORDER BY x NULLS LAST LIMIT 2 OFFSET 1", "3;2"},
		{"SELECT i FROM n LIMIT 0", ""},
		{"SELECT i FROM n LIMIT -1", "Limit requires non-negative count and offset"},
		// Lazy functions do not touch what they do not need.
		{"SELECT IF(i = 2, 0, DIV(6, i - 2)) FROM n", "-6;0;6"},
		{"SELECT i != 2 AND DIV(6, i - 2) > 0 FROM n", "false;false;true"},
		{"SELECT i = 2 OR DIV(6, i - 2) > 0 FROM n", "false;true;true"},
		{"SELECT COALESCE(x, DIV(1, i - 2)) FROM n WHERE x IS NOT NULL", "10;30"},
		{"SELECT IFERROR(DIV(6, i - 2), -1), ISERROR(DIV(6, i - 2)), NULLIFERROR(DIV(6, i - 2)), SAFE.DIV(6, i - 2) FROM n", "-6,false,-6,-6;-1,true,NULL,NULL;6,false,6,6"},
		{"SELECT IFERROR(IF(DIV(6, i - 2) != 0, MAP_KEYS(MAP_FROM_ARRAY([(i, x)])), NULL), [0]), NULLIFERROR(MAP_VALUES(MAP_FROM_ARRAY([(1, DIV(6, i - 2))]))) FROM n", "[1],[-6];[0],NULL;[3],[6]"},
		{"SELECT IFERROR([(DIV(6, MOD(i, 2) - 1), i)], MAP_ENTRIES(MAP_FROM_ARRAY([(i, x)]))) FROM n", "[[1 10]];[[-6 2]];[[3 30]]"},
		{"SELECT DIV(6, i - 2) FROM n", "division by zero: 6 / 0"},
		{"SELECT CASE i WHEN 1 THEN 'a' WHEN 2 THEN 'b' END, NULLIF(i, 3), IFNULL(x, 0) FROM n", "a,1,10;b,2,0;NULL,NULL,30"},
		// Three-valued logic.
		{"SELECT NULL AND false, NULL AND true, NULL OR true, NULL OR false, NOT CAST(NULL AS BOOL)", "false,NULL,true,NULL,NULL"},
		{"SELECT 1 IN (SELECT x FROM n), 10 IN (SELECT x FROM n), CAST(NULL AS INT64) IN (SELECT x FROM n WHERE false), CAST(NULL AS INT64) IN (SELECT x FROM n)", "NULL,true,false,NULL"},
		{"SELECT i FROM n WHERE i NOT IN (SELECT x FROM n)", ""},
		{"SELECT NULL IN (SELECT 1), NULL IN (SELECT x FROM n), NULL NOT IN (SELECT x FROM n WHERE false), NULL IN (SELECT NULL)", "NULL,NULL,true,NULL"},
		{"SELECT 'a' NOT IN (SELECT NULL), 1 IN (SELECT NULL FROM n), 1.5 NOT IN (SELECT NULL FROM n WHERE false)", "NULL,NULL,true"},
		{"SELECT i FROM n WHERE i IN (SELECT NULL FROM n) OR NULL IN (SELECT i)", ""},
		{"SELECT i FROM n WHERE i IN (SELECT NULL FROM n)", ""},
		{"SELECT i FROM n WHERE NULL IN (SELECT x FROM n)", ""},
		{"SELECT COUNT(*) FROM n WHERE i NOT IN (SELECT NULL FROM n WHERE false)", "3"},
		{"SELECT (SELECT i FROM n)", "More than one element"},
		{"SELECT (SELECT i FROM n WHERE false), EXISTS(SELECT 1 FROM n), ARRAY(SELECT i FROM n ORDER BY i DESC)", "NULL,true,[3 2 1]"},
		{"SELECT i, (SELECT SUM(m.i) FROM n m WHERE m.i <= n.i) FROM n", "1,1;2,3;3,6"},
		{"SELECT i, ARRAY(SELECT e + n.i FROM UNNEST([1, 2]) e) FROM n", "1,[2 3];2,[3 4];3,[4 5]"},
		// Structs, arrays, lambdas.
		{"SELECT CASE CAST(i AS FLOAT64) WHEN 1.0 THEN 'a' ELSE 'b' END, NULLIF(CAST('nan' AS FLOAT64), CAST('nan' AS FLOAT64)) FROM n LIMIT 1", "a,NaN"},
		{"SELECT CAST(x AS STRING), SAFE_CAST(CAST(x AS STRING) AS BOOL), CAST(TIMESTAMP_SECONDS(i) AS STRING FORMAT 'YYYY' AT TIME ZONE 'UTC') FROM n", "10,NULL,1970;NULL,NULL,1970;30,NULL,1970"},
		{"SELECT STRUCT(i AS a, x AS b).b, [i, x][SAFE_OFFSET(1)] FROM n", "10,10;NULL,NULL;30,30"},
		{"SELECT ARRAY_TRANSFORM([1, 2], e -> e * i), ARRAY_FILTER([1, 2, 3], e -> e > i) FROM n", "[1 2],[2 3];[2 4],[3];[3 6],[]"},
		{"SELECT WITH(a AS i * 2, b AS a + 1, b * b) FROM n", "9;25;49"},
		// Joins.
		{"SELECT a.i, b.i FROM n a LEFT JOIN n b ON a.i = b.i + 1 ORDER BY 1", "1,NULL;2,1;3,2"},
		{"SELECT a.i, b.i FROM n a FULL JOIN n b ON a.i = b.i + 1 ORDER BY 1, 2", "NULL,3;1,NULL;2,1;3,2"},
		{"SELECT COUNT(*) FROM n, n b", "9"},
		{"SELECT a.x IS NOT DISTINCT FROM b.x FROM n a JOIN n b ON a.i = b.i", "true;true;true"},
		{"SELECT n.i, e FROM n, UNNEST([n.i, n.x]) e WHERE e IS NOT NULL", "1,1;1,10;2,2;3,3;3,30"},
		{"SELECT n.i, e, o FROM n LEFT JOIN UNNEST(IF(n.i = 2, [], [n.x])) e WITH OFFSET o ORDER BY 1", "1,10,0;2,NULL,NULL;3,30,0"},
		// Aggregates.
		{"SELECT MOD(i, 2), COUNT(*), ARRAY_AGG(i ORDER BY i DESC) FROM n GROUP BY 1 ORDER BY 1", "0,1,[2];1,2,[3 1]"},
		{"SELECT COUNT(DISTINCT MOD(i, 2)), ANY_VALUE(i HAVING MAX x), ANY_VALUE(i HAVING MIN x) FROM n", "2,3,1"},
		{"SELECT ARRAY_AGG(x IGNORE NULLS ORDER BY x LIMIT 1) FROM n", "[10]"},
		{"SELECT ARRAY_AGG(x LIMIT 2), ARRAY_AGG(x IGNORE NULLS LIMIT 2), STRING_AGG(CAST(x AS STRING) LIMIT 1), ARRAY_AGG(x LIMIT 0) FROM n", "[10 NULL],[10 30],10,NULL"},
		{"SELECT e > 0, ARRAY_AGG(e LIMIT 2) FROM UNNEST([-1, 1, -2, 2, -3, 3]) e GROUP BY 1 ORDER BY 1", "false,[-1 -2];true,[1 2]"},
		{"SELECT SUM(COUNT(*) GROUP BY MOD(i, 2) HAVING COUNT(*) > 1), MAX(SUM(x) GROUP BY MOD(i, 2)) FROM n", "2,40"},
		{"SELECT i, GROUPING(i), SUM(x) FROM n GROUP BY ROLLUP(i) ORDER BY 2, 1", "1,0,10;2,0,NULL;3,0,30;NULL,1,40"},
		{"SELECT SUM(x) FROM n HAVING SUM(x) > 100", ""},
		{"SELECT COUNT(*) FROM n WHERE i > 9 GROUP BY ROLLUP(i)", ""},
		{"SELECT COUNT(*) FROM n WHERE i > 9 GROUP BY ()", "0"},
		// Arrays are ordered by the first elements that differ; a NULL before that makes NULL.
		{"SELECT [1] < [1, 2], [1, NULL] < [1, 2], [1, NULL] < [2], [NULL] < [], [1, 2] <= [1, NULL], [2] BETWEEN [1] AND [2, 0]", "true,NULL,true,false,NULL,true"},
		{"SELECT MIN(a), MAX(a), MAX(a) IS NULL FROM (SELECT [x, i] AS a FROM n)", "[NULL 2],[30 3],false"},
		{"SELECT i, MAX([-i]) OVER (ORDER BY i ROWS 1 PRECEDING) FROM n ORDER BY [x, i] DESC", "3,[-2];1,[-1];2,[-1]"},
		// Windows.
		{"SELECT i, SUM(i) OVER (ORDER BY i), LAG(i) OVER (ORDER BY i), FIRST_VALUE(x) OVER (ORDER BY i DESC) FROM n ORDER BY i", "1,1,NULL,30;2,3,1,30;3,6,2,30"},
		// The first batch of the right side has no key that is not NULL.
		{"SELECT a.x, b.x FROM (SELECT 1 AS x) a LEFT JOIN (SELECT NULL AS x UNION ALL SELECT 1) b ON a.x = b.x", "1,1"},
		{"SELECT a, (SELECT COUNT(*) FROM (SELECT NULL AS x UNION ALL SELECT 1) b WHERE b.x = a LIMIT 5) FROM UNNEST([1, 2]) a", "1,1;2,0"},
		{"SELECT i, COUNT(*) OVER (), MAX(i) OVER (ORDER BY i ROWS BETWEEN 1 FOLLOWING AND 2 FOLLOWING) FROM n ORDER BY i", "1,3,3;2,3,3;3,3,NULL"},
		// Set operations.
		{"SELECT 1 UNION ALL SELECT 1", "1;1"},
		{"(SELECT 1 UNION ALL SELECT 1 UNION ALL SELECT 2) INTERSECT DISTINCT SELECT 1", "1"},
		{"(SELECT 1 UNION ALL SELECT 1 UNION ALL SELECT 2) EXCEPT ALL SELECT 1", "1;2"},
		// NULL and [] in a STRUCT have the types that other queries give them, beside what is computed too.
		{"SELECT STRUCT(NULL, STRUCT(i, NULL)) FROM n WHERE i = 1 UNION ALL SELECT STRUCT(i > 1, STRUCT(2, CAST(i AS STRING))) FROM n WHERE i = 3", "[NULL [1 NULL]];[true [2 3]]"},
		{"SELECT DISTINCT STRUCT('a', x) FROM n UNION ALL SELECT STRUCT(NULL, COUNT(*)) FROM n", "[a 10];[a NULL];[a 30];[NULL 3]"},
		{"SELECT STRUCT([], i) FROM n WHERE i = 1 UNION ALL SELECT STRUCT(['b'], 2)", "[[] 1];[[b] 2]"},
		// WITH.
		{"WITH w AS (SELECT i FROM n) SELECT a.i + b.i FROM w a, w b WHERE a.i < b.i ORDER BY 1", "3;4;5"},
		{"WITH RECURSIVE w AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM w WHERE i < 4) SELECT i FROM w", "1;2;3;4"},
		{"WITH RECURSIVE w AS (SELECT 1 AS i UNION DISTINCT SELECT MOD(i + 1, 3) FROM w) SELECT i FROM w ORDER BY i", "0;1;2"},
		{"SELECT i, (WITH w AS (SELECT 1 AS j) SELECT (SELECT j FROM w) + j + n.i FROM w) FROM n", "1,3;2,4;3,5"},
		{"SELECT CURRENT_TIMESTAMP()", "1700000000000000"},
	} {
		for _, plain := range []bool{true, false} {
			stmt := prepare(t, c, q.sql, plain)
			got, err := run(t, stmt, Limits{})
			var rows []string
			for _, r := range got.rows {
				var cols []string
				for i, v := range r {
					cols = append(cols, showValue(stmt.Columns[i].Type, v))
				}
				rows = append(rows, strings.Join(cols, ","))
			}
			have := strings.Join(rows, ";")
			if err != nil {
				have = err.Error()
				if fault.KindOf(err) != fault.OutOfRange {
					t.Errorf("%s: kind of %v", q.sql, err)
				}
			}
			if have != q.want {
				t.Errorf("%s: %s, want %s (plain %v)", q.sql, have, q.want, plain)
			}
		}
	}
}

// TestManyConditions looks at a condition of very many parts.
func TestManyConditions(t *testing.T) {
	c := numbers(3000)
	for _, word := range []string{" OR ", " AND "} {
		var parts []string
		for i := range 10000 {
			if word == " OR " {
				parts = append(parts, fmt.Sprintf("i * 1 = %d", 2*i))
			} else {
				parts = append(parts, fmt.Sprintf("i != %d", 2*i))
			}
		}
		got, err := run(t, prepare(t, c, "SELECT COUNT(*) FROM t WHERE "+strings.Join(parts[:4000], word), true), Limits{})
		if err != nil || got.rows[0][0].Int != 1500 {
			t.Errorf("4000 parts with%s: %v, %v", word, got.rows, err)
		}
		got, err = run(t, prepare(t, c, "SELECT IF("+strings.Join(parts, word)+", 1, 0) FROM t WHERE i = 4", true), Limits{})
		if word == " OR " {
			// The products take a vector each.
			if fault.KindOf(err) != fault.Exhausted {
				t.Errorf("10000 products: %v", err)
			}
		} else if err != nil || got.rows[0][0].Int != 0 {
			t.Errorf("10000 parts with%s: %v, %v", word, got.rows, err)
		}
	}
}

// TestTop takes the first rows of many, of which only a few are ever kept.
func TestTop(t *testing.T) {
	c := numbers(9000)
	for _, order := range []string{"s", "s DESC", "MOD(i, 10), s", "MOD(i, 3)", "MOD(i, 3) DESC, i"} {
		all, err := run(t, prepare(t, c, "SELECT i FROM t ORDER BY "+order, false), Limits{})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []int{0, 1, 30, 700, 5000} {
			stmt := prepare(t, c, fmt.Sprintf("SELECT i FROM t ORDER BY %s LIMIT %d OFFSET 3", order, n), false)
			got, err := run(t, stmt, Limits{})
			if err != nil {
				t.Fatal(err)
			}
			// Equal rows stay in order, too.
			if !slices.Equal(text(stmt, got.rows), text(stmt, all.rows[3:3+n])) {
				t.Errorf("ORDER BY %s LIMIT %d: other rows than the first of all", order, n)
			}
			if n < 100 && got.peak > 1<<20 {
				t.Errorf("ORDER BY %s LIMIT %d: took %d bytes", order, n, got.peak)
			}
		}
	}
}

// TestLateral joins each row with rows that are made of it.
func TestLateral(t *testing.T) {
	col := func(id int) algebra.Column { return algebra.Column{ID: algebra.ColumnID(id), Type: types.Int64Type} }
	left := &batchRel{cols: []algebra.Column{col(1)}, batches: []*types.Batch{{Len: 4, Sel: []int32{0, 2, 3},
		Cols: []*types.Vector{{Type: types.Int64Type, Ints: []int64{2, 9, 0, 1}}}}}}
	// Those of 1, 2 and 3 that are at most the left row's number.
	right := func() algebra.Rel {
		rel := &batchRel{cols: []algebra.Column{col(2)}, batches: []*types.Batch{{Len: 3, Cols: []*types.Vector{{Type: types.Int64Type, Ints: []int64{1, 2, 3}}}}}}
		le := functions.Lookup("$less_or_equal")
		return &algebra.Filter{Input: rel, Cond: &algebra.Call{Function: le, Signature: le.Signatures[0], T: types.BoolType,
			Args: []algebra.Expr{&algebra.ColumnRef{Column: col(2)}, &algebra.ColumnRef{Column: col(1)}}}}
	}
	for kind, want := range map[algebra.JoinKind]string{
		algebra.InnerJoin: "2,1;2,2;1,1", algebra.LeftJoin: "2,1;2,2;0,NULL;1,1", algebra.SemiJoin: "2;1", algebra.AntiJoin: "0",
	} {
		stmt := &algebra.Statement{Query: &algebra.Join{Kind: kind, Left: left, Right: right(), Lateral: true, Outer: []algebra.ColumnID{1}}}
		for _, c := range stmt.Query.Columns() {
			stmt.Columns = append(stmt.Columns, algebra.OutputColumn{Column: c.ID, Type: c.Type})
		}
		got, err := run(t, stmt, Limits{})
		if err != nil {
			t.Fatal(err)
		}
		var rows []string
		for _, r := range got.rows {
			var cols []string
			for _, v := range r {
				cols = append(cols, showValue(types.Int64Type, v))
			}
			rows = append(rows, strings.Join(cols, ","))
		}
		if s := strings.Join(rows, ";"); s != want {
			t.Errorf("join %d: %s, want %s", kind, s, want)
		}
	}
}

// numbers returns a table of n rows: i from 0, and s of 40 bytes.
func numbers(n int) tables {
	c := tables{}
	var rows [][]types.Value
	for i := range n {
		rows = append(rows, []types.Value{types.NewInt(int64(i)), types.NewString(fmt.Sprintf("%040d", (i*7919)%n))})
	}
	c.add("t", rows, algebra.TableColumn{Name: "i", Type: types.Int64Type}, algebra.TableColumn{Name: "s", Type: types.StringType})
	return c
}

// TestSpill runs queries whose rows take several times the memory that they may.
func TestSpill(t *testing.T) {
	c := numbers(6000)
	const memory = 64 << 10
	for _, sql := range []string{
		"SELECT i, s FROM t ORDER BY s",
		"SELECT s, COUNT(*), SUM(i), ARRAY_AGG(i), COUNT(DISTINCT i) FROM t GROUP BY s",
		"SELECT DISTINCT s FROM t",
		"SELECT COUNT(DISTINCT s), COUNT(DISTINCT i), COUNT(*), SUM(DISTINCT MOD(i, 4000)) FROM t",
		"SELECT i < 10, COUNT(DISTINCT s), SUM(DISTINCT i), COUNT(*) FROM t GROUP BY 1",
		"SELECT a.i, b.s FROM t a JOIN t b ON a.s = b.s",
		"SELECT a.s, b.s FROM t a FULL JOIN t b ON a.i = b.i + 3000",
		"SELECT a.i, b.s FROM (SELECT i FROM t WHERE i < 100) a LEFT JOIN t b ON a.i > b.i + 50",
		"SELECT s FROM t INTERSECT ALL SELECT s FROM t",
		"SELECT i, SUM(i) OVER (PARTITION BY MOD(i, 1000) ORDER BY s) FROM t",
		"WITH w AS (SELECT i, s FROM t) SELECT a.i, b.s FROM w a JOIN w b ON a.i = b.i",
	} {
		stmt := prepare(t, c, sql, false)
		want, err := run(t, stmt, Limits{})
		if err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		got, err := run(t, stmt, Limits{Query: memory})
		if err != nil {
			t.Errorf("%s: %v", sql, err)
			continue
		}
		a, b := text(stmt, got.rows), text(stmt, want.rows)
		if !stmt.Ordered {
			slices.Sort(a)
			slices.Sort(b)
		}
		if !slices.Equal(a, b) {
			t.Errorf("%s: %d rows differ from %d", sql, len(a), len(b))
		}
		if got.spilled == 0 || want.spilled != 0 {
			t.Errorf("%s: spilled %d bytes with little memory, and %d with much", sql, got.spilled, want.spilled)
		}
		// What operators may always hold comes on top.
		if got.peak > memory+3*leastNeed {
			t.Errorf("%s: took %d bytes, and may take %d", sql, got.peak, memory)
		}
		if _, err := run(t, stmt, Limits{Query: memory, Spill: 1000}); fault.KindOf(err) != fault.Exhausted {
			t.Errorf("%s: without disk: %v", sql, err)
		}
		free := Limits{Query: memory, Free: func() int64 { return 1 << 20 }, KeepFree: 1 << 20}
		if _, err := run(t, stmt, free); fault.KindOf(err) != fault.Exhausted {
			t.Errorf("%s: on a disk that is full: %v", sql, err)
		}
	}
}

// TestWindowStream computes windows over partitions that do not fit into memory.
func TestWindowStream(t *testing.T) {
	c := numbers(7000)
	for n, sql := range []string{
		"SELECT i, ROW_NUMBER() OVER (ORDER BY s), SUM(i) OVER (ORDER BY s), COUNT(*) OVER (ORDER BY s ROWS UNBOUNDED PRECEDING) FROM t",
		"SELECT i, RANK() OVER (ORDER BY DIV(i, 7)), DENSE_RANK() OVER (ORDER BY DIV(i, 7)), SUM(i) OVER (ORDER BY DIV(i, 7)), MAX(s) OVER (ORDER BY i) FROM t",
		"SELECT i, s, SUM(i) OVER (PARTITION BY i < 100 ORDER BY DIV(i, 5)), COUNT(IF(MOD(i, 3) = 0, s, NULL)) OVER (PARTITION BY i < 100), MAX(i) OVER () FROM t",
		"SELECT i, SAFE.SUM(IF(i > 4000, 9223372036854775807, i)) OVER (ORDER BY i), SUM(i WHERE MOD(i, 2) = 0) OVER (ORDER BY i) FROM t",
		"SELECT i, LENGTH(a), LENGTH(b) FROM (SELECT i, STRING_AGG(IF(i < 250, 'x', NULL)) OVER (ORDER BY i) AS a, STRING_AGG(IF(i < 250, 'x', NULL)) OVER (ORDER BY DIV(i, 9)) AS b FROM t)",
	} {
		stmt := prepare(t, c, sql, false)
		want, err := run(t, stmt, Limits{})
		if err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		for _, memory := range []int64{64 << 10, 3 << 20}[:1+(n+1)%2] {
			got, err := run(t, stmt, Limits{Query: memory})
			if err != nil {
				t.Errorf("%s with %d bytes: %v", sql, memory, err)
				continue
			}
			a, b := text(stmt, got.rows), text(stmt, want.rows)
			slices.Sort(a)
			slices.Sort(b)
			if !slices.Equal(a, b) {
				t.Errorf("%s with %d bytes: %d rows differ from %d", sql, memory, len(a), len(b))
			}
		}
	}
	stmt := prepare(t, c, "SELECT NTILE(3) OVER (ORDER BY s) FROM t", false)
	if _, err := run(t, stmt, Limits{Query: 64 << 10}); fault.KindOf(err) != fault.Exhausted {
		t.Errorf("a function that cannot be streamed: %v", err)
	}
}

// TestMemoryOfStates has one state, or what is made of it for each row, take more than
// there is before a batch is over.
func TestMemoryOfStates(t *testing.T) {
	c := numbers(3000)
	for _, sql := range []string{
		"SELECT MAX(LENGTH(x)) FROM (SELECT STRING_AGG(REPEAT('x', 1000)) OVER (ORDER BY i) AS x FROM t)",
		"SELECT MAX(LENGTH(x)) FROM (SELECT STRING_AGG(REPEAT('x', 1000)) OVER (ORDER BY i ROWS UNBOUNDED PRECEDING) AS x FROM t)",
		"SELECT MAX(LENGTH(x)) FROM (SELECT STRING_AGG(REPEAT('x', 1000)) OVER () AS x FROM t)",
		"SELECT LENGTH(STRING_AGG(REPEAT('x', 500000))) FROM t",
		"SELECT ARRAY_LENGTH(ARRAY_CONCAT_AGG(GENERATE_ARRAY(1, 10000))) FROM t",
	} {
		stmt := prepare(t, c, sql, false)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := run(t, stmt, Limits{Query: 1 << 20})
		runtime.ReadMemStats(&after)
		if fault.KindOf(err) != fault.Exhausted {
			t.Errorf("%s: %v", sql, err)
		}
		if n := (after.TotalAlloc - before.TotalAlloc) >> 20; n > 1500 || !strings.Contains(sql, "ORDER") && n > 64 {
			t.Errorf("%s: %d MiB were allocated", sql, n)
		}
	}
}

// TestDistinctIntegers counts more integers than fit into memory. What it spills is
// small enough to stay there.
func TestDistinctIntegers(t *testing.T) {
	stmt := prepare(t, numbers(6000), "SELECT COUNT(DISTINCT i), COUNT(DISTINCT IF(i < 3000, NULL, i)), BIT_XOR(DISTINCT i), COUNT(DISTINCT IF(i < 5, i, NULL)) FROM t", false)
	for _, memory := range []int64{0, 64 << 10} {
		got, err := run(t, stmt, Limits{Query: memory})
		if err != nil {
			t.Fatal(err)
		}
		want := []int64{6000, 3000, 0, 5}
		for i := range int64(6000) {
			want[2] ^= i
		}
		for c, v := range got.rows[0] {
			if v.Int != want[c] {
				t.Errorf("column %d with %d bytes: %d, want %d", c, memory, v.Int, want[c])
			}
		}
	}
}

// TestReserve has one operator take all that it can. Another that cannot spill is not
// refused what a scan needs.
func TestReserve(t *testing.T) {
	for _, query := range []int64{8 << 20, 64 << 20} {
		a := account{pool: NewPool(Limits{Query: query})}
		sort, scan := share{account: &a, name: "Sort"}, share{account: &a, name: "Scan"}
		for sort.grow(64 << 10) {
		}
		if sort.held < query*3/4-64<<10 {
			t.Errorf("of %d bytes a sort may take only %d", query, sort.held)
		}
		for range 2 << 20 / (64 << 10) {
			if err := scan.need(64 << 10); err != nil {
				t.Fatalf("of %d bytes: %v", query, err)
			}
		}
		scan.free()
		sort.free()
		if used, _ := a.pool.Used(); used != 0 {
			t.Errorf("%d bytes are not given back", used)
		}
	}
}

// TestSharedMemory lets one query find that others hold all memory.
func TestSharedMemory(t *testing.T) {
	pool := NewPool(Limits{Query: 1 << 20, Memory: 1 << 20, Dir: t.TempDir()})
	other := account{pool: pool}
	if !other.take(1<<20, true) {
		t.Fatal("no memory in a new pool")
	}
	stmt := prepare(t, numbers(20000), "SELECT i FROM t ORDER BY s DESC", false)
	r, err := Query(t.Context(), Config{Pool: pool}, stmt.Query, stmt.Columns)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, spilled := pool.Used(); spilled == 0 {
		t.Error("nothing was spilled")
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	other.release(1 << 20)
	if m, s := pool.Used(); m != 0 || s != 0 {
		t.Errorf("%d and %d bytes were not given back", m, s)
	}
}

func TestEndlessRecursion(t *testing.T) {
	for _, union := range []string{"ALL", "DISTINCT"} {
		stmt := prepare(t, nil, "WITH RECURSIVE w AS (SELECT 1 AS i UNION "+union+" SELECT i + 1 FROM w) SELECT COUNT(*) FROM w", false)
		_, err := run(t, stmt, Limits{})
		if fault.KindOf(err) != fault.Exhausted || !strings.Contains(err.Error(), "WITH RECURSIVE w ") {
			t.Errorf("%s: %v", union, err)
		}
	}
}

func TestCancel(t *testing.T) {
	c := numbers(5000)
	for _, sql := range []string{
		"SELECT COUNT(*) FROM t a, t b, t c WHERE a.i + b.i + c.i < 0",
		"SELECT COUNT(*) FROM t a WHERE (SELECT COUNT(*) FROM t b WHERE b.i > a.i) > 10000",
		"SELECT SUM(x) FROM (SELECT BIT_AND(i) OVER (ORDER BY i ROWS BETWEEN 4000 PRECEDING AND 10 PRECEDING) AS x FROM t)",
		"WITH RECURSIVE w AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM w WHERE (SELECT COUNT(*) FROM t WHERE t.i < w.i) < 10000) SELECT COUNT(*) FROM w",
		"SELECT COUNT(*) FROM t, t b, UNNEST(GENERATE_ARRAY(1, 16000)) e WHERE e < 0",
		"SELECT a.i FROM t a, t b ORDER BY a.i * b.i DESC",
		"SELECT a.i, b.i, COUNT(*) FROM t a, t b GROUP BY a.i, b.i",
		"SELECT COUNT(*) FROM t a JOIN (SELECT x.i FROM t x, t y) b ON a.i = b.i",
	} {
		stmt := prepare(t, c, sql, false)
		ctx, cancel := context.WithCancel(t.Context())
		pool := NewPool(Limits{Dir: t.TempDir()})
		r, err := Query(ctx, Config{Pool: pool}, stmt.Query, stmt.Columns)
		if err != nil {
			t.Fatal(err)
		}
		var ended time.Duration
		time.AfterFunc(30*time.Millisecond, func() { ended = cputime.Used(); cancel() })
		_, err = r.Next(ctx)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", sql, err)
		} else if d := cputime.Used() - ended; d > 5*time.Second { // 100 ms on a machine of its own
			t.Errorf("%s: went on for %v of processor", sql, d)
		} else {
			t.Logf("%s: went on for %v of processor", sql, d)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if m, s := pool.Used(); m != 0 || s != 0 {
			t.Errorf("%s: %d and %d bytes were not given back", sql, m, s)
		}
	}
}

func TestSpillFiles(t *testing.T) {
	dir := t.TempDir()
	x, cancel := newExecution(t.Context(), Config{Pool: NewPool(Limits{Dir: dir})})
	defer cancel(nil)
	ts := []*types.Type{types.Int64Type, types.StringType, types.ArrayOf(types.StructOf(types.Field{Type: types.Float64Type}, types.Field{Type: types.BoolType}))}
	s := x.newSpill("test", &algebra.Stats{}, ts)
	b := &types.Batch{Len: 3, Cols: newVectors(ts)}
	list := types.NewList([]types.Value{types.NewList([]types.Value{types.NewFloat(math.Inf(1)), types.Null}), types.Null})
	rows := [][]types.Value{{types.NewInt(-5), types.NewString(strings.Repeat("x", 70000)), list}, {types.Null, types.NewString(""), types.Null},
		{types.NewInt(math.MaxInt64), types.Null, types.NewList(nil)}}
	for c, v := range b.Cols {
		v.Resize(3)
		for i := range rows {
			v.Set(i, rows[i][c])
		}
	}
	for range 3 {
		if err := s.append(b.Cols, nil, b.Len); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.append(b.Cols, []int32{2}, b.Len); err != nil {
		t.Fatal(err)
	}
	if err := s.finish(); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("the directory has %v, %v", entries, err)
	}
	want := slices.Concat(rows, rows, rows, rows[2:])
	r := s.reader()
	n := 0
	for {
		b, err := r.next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		for i := range b.Len {
			for c, v := range b.Cols {
				if types.Compare(ts[c], v.Value(i), want[n][c]) != 0 || v.IsNull(i) == want[n][c].Valid {
					t.Errorf("row %d column %d: %v, want %v", n, c, v.Value(i), want[n][c])
				}
			}
			n++
		}
	}
	if n != len(want) || s.n != int64(n) {
		t.Errorf("%d rows, want %d", n, len(want))
	}
	// One bit makes the checksum wrong.
	if _, err := s.file.WriteAt([]byte{1}, 30); err != nil {
		t.Fatal(err)
	}
	if _, err := s.reader().next(); fault.KindOf(err) != fault.Corruption {
		t.Errorf("a damaged file: %v", err)
	}
	s.close()
	x.close()
}

// fuzzTypes are the types of FuzzDecode's batches.
var fuzzTypes = []*types.Type{types.Int64Type, types.StringType, types.Float64Type, types.ArrayOf(types.Int64Type),
	types.StructOf(types.Field{Type: types.BoolType}, types.Field{Type: types.StringType}), types.MapOf(types.StringType, types.Int64Type)}

func FuzzDecode(f *testing.F) {
	b := &types.Batch{Len: 2, Cols: newVectors(fuzzTypes)}
	for _, v := range b.Cols {
		v.Resize(2)
	}
	b.Cols[0].Ints[0], b.Cols[1].Strs[1] = -77, "text"
	b.Cols[3].Lists[0] = []types.Value{types.NewInt(1), types.Null}
	b.Cols[4].Lists[0] = []types.Value{types.NewBool(true), types.NewString("x")}
	b.Cols[4].Lists[1] = []types.Value{types.Null, types.Null}
	b.Cols[2].SetNull(1)
	f.Add(appendBatch(nil, fuzzTypes, b.Cols, nil, 0, 2))
	f.Add([]byte{})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, in []byte) {
		got := &types.Batch{Cols: newVectors(fuzzTypes)}
		if decodeBatch(string(in), fuzzTypes, got) != nil {
			return
		}
		// What was read can be written, and read again.
		again := appendBatch(nil, fuzzTypes, got.Cols, nil, 0, got.Len)
		second := &types.Batch{Cols: newVectors(fuzzTypes)}
		if err := decodeBatch(string(again), fuzzTypes, second); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(again, appendBatch(nil, fuzzTypes, second.Cols, nil, 0, second.Len)) {
			t.Fatal("a batch changes when it is written again")
		}
	})
}

func FuzzFrame(f *testing.F) {
	f.Add([]byte{4, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, in []byte) {
		var offset int64
		var room []byte
		for offset < int64(len(in)) {
			before := offset
			if _, err := readFrame(bytes.NewReader(in), &offset, int64(len(in)), &room); err != nil {
				return
			}
			if offset <= before {
				t.Fatal("a frame of no length")
			}
		}
	})
}

func FuzzPosition(f *testing.F) {
	p := position{key: []byte("row"), set: true, rows: 3, left: 100, skip: 7}
	f.Add(p.appendTo(nil))
	f.Fuzz(func(t *testing.T, in []byte) {
		p, err := parsePosition(in)
		if err != nil {
			return
		}
		if q, err := parsePosition(p.appendTo(nil)); err != nil || !bytes.Equal(q.key, p.key) || q.rows != p.rows || q.left != p.left {
			t.Fatalf("%+v became %+v, %v", p, q, err)
		}
	})
}

// TestLongConstantKeys: a constant of 300 KB is one value in a batch, and one for each row as
// the keys of its groups.
func TestLongConstantKeys(t *testing.T) {
	const budget, most = 16 << 20, 120 << 20
	for _, sql := range []string{
		"SELECT DISTINCT REPEAT('x', 300000) AS s, n FROM UNNEST(GENERATE_ARRAY(1, 1000)) AS n",
		"SELECT REPEAT('x', 300000) AS s, n FROM UNNEST(GENERATE_ARRAY(1, 500)) AS n UNION DISTINCT SELECT 'y', n FROM UNNEST(GENERATE_ARRAY(1, 500)) AS n",
	} {
		runtime.GC()
		var before runtime.MemStats
		runtime.ReadMemStats(&before)
		done, peak := make(chan struct{}), make(chan uint64)
		go func() {
			var most uint64
			for {
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				most = max(most, m.HeapAlloc-min(m.HeapAlloc, before.HeapAlloc))
				select {
				case <-done:
					peak <- most
					return
				case <-time.After(time.Millisecond):
				}
			}
		}()
		r, err := Query(t.Context(), Config{Pool: NewPool(Limits{Query: budget, Memory: budget, Dir: t.TempDir()})}, prepare(t, nil, sql, false).Query, nil)
		if err != nil {
			t.Fatal(err)
		}
		rows := 0
		for {
			b, err := r.Next(t.Context())
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			rows += b.Rows()
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		close(done)
		if p := <-peak; p > most {
			t.Errorf("%s: %d rows took %d MiB of memory, of %d", sql, rows, p>>20, budget>>20)
		} else {
			t.Logf("%d rows, %d MiB", rows, p>>20)
		}
		if rows != 1000 {
			t.Errorf("%s: %d rows", sql, rows)
		}
	}
}
