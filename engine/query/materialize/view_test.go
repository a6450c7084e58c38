package materialize_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trestledb/trestle/conformance/model"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/matview"
	"github.com/trestledb/trestle/engine/query"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/materialize"
	"github.com/trestledb/trestle/engine/query/types"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
)

// TestRefused has a query for each rule, the reason, and where it is.
func TestRefused(t *testing.T) {
	_, c := source(t)
	for _, q := range []struct{ text, want string }{
		{"SELECT * FROM t GROUP BY _key", "SELECT * is not allowed in the query of a materialized view: name its columns [at 1:8]"},
		{"SELECT _key, t.* FROM t GROUP BY _key", "SELECT * is not allowed in the query of a materialized view: name its columns [at 1:14]"},
		{"SELECT DISTINCT _key FROM t ORDER BY _key", "SELECT DISTINCT is not allowed in the query of a materialized view: use GROUP BY [at 1:1]"},
		{"SELECT _key, COUNT(*) AS n FROM t GROUP BY _key LIMIT 3", "LIMIT is not allowed in the query of a materialized view [at 1:55]"},
		{"SELECT _key FROM t ORDER BY _key LIMIT 3 OFFSET 1", "LIMIT is not allowed in the query of a materialized view [at 1:40]"},
		{"SELECT f['x'] AS x FROM t ORDER BY x DESC", "DESC is not allowed in the query of a materialized view: its rows ascend [at 1:36]"},
		{"SELECT f['x'] AS x FROM t ORDER BY x NULLS LAST", "NULLS LAST is not allowed in the query of a materialized view [at 1:36]"},
		{"SELECT _key, ARRAY_AGG(f['x']) AS a FROM t GROUP BY _key", "Aggregate function ARRAY_AGG is not allowed in the query of a materialized view [at 1:14]"},
		{"SELECT _key, ARRAY_CONCAT_AGG([f['x']]) AS a FROM t GROUP BY _key", "Aggregate function ARRAY_CONCAT_AGG is not allowed in the query of a materialized view [at 1:14]"},
		{"SELECT _key, COUNTIF(TRUE) AS a FROM t GROUP BY _key", "Aggregate function COUNTIF is not allowed in the query of a materialized view [at 1:14]"},
		{"SELECT _key, COUNT(DISTINCT f['x']) AS a FROM t GROUP BY _key", "DISTINCT in an aggregate is not allowed in the query of a materialized view; HLL_COUNT.INIT counts distinct values [at 1:14]"},
		{"SELECT _key, [f['x']] AS a FROM t ORDER BY _key", "The type of column a is not allowed in a materialized view: BYTES, STRING, INT64, FLOAT64, FLOAT32, BOOL and TIMESTAMP are [at 1:14]"},
		{"SELECT _key, STRUCT(1) AS a FROM t ORDER BY _key", "The type of column a is not allowed in a materialized view: BYTES, STRING, INT64, FLOAT64, FLOAT32, BOOL and TIMESTAMP are [at 1:14]"},
		{"SELECT _key, DATE '2020-01-01' AS a FROM t ORDER BY _key", "The type of column a is not allowed in a materialized view: BYTES, STRING, INT64, FLOAT64, FLOAT32, BOOL and TIMESTAMP are [at 1:14]"},
		{"SELECT _key, MAX(DATE '2020-01-01') AS a FROM t GROUP BY _key", "Aggregate function MAX of DATE is not allowed in the query of a materialized view [at 1:14]"},
		{"SELECT DATE_FROM_UNIX_DATE(n['x']) AS d, _key FROM t ORDER BY d", "A column of type DATE cannot be in the key of a materialized view: BYTES, STRING, INT64 and TIMESTAMP can [at 1:63]"},
		{"SELECT f['x'] AS x, COUNT(*) OVER () AS n FROM t ORDER BY x", "OVER is not allowed in the query of a materialized view [at 1:21]"},
		{"SELECT _key, SUM(n['x'] GROUP BY n['x']) AS n FROM t GROUP BY _key", "A nested GROUP BY is not allowed in the query of a materialized view [at 1:14]"},
		{"SELECT _key, f FROM t GROUP BY _key, f", "Grouping by expressions of type MAP is not allowed [at 1:38]"},
		{"SELECT _key, ANY_VALUE(f) AS f FROM t GROUP BY _key", "Aggregate function ANY_VALUE of MAP<BYTES, BYTES> is not allowed in the query of a materialized view [at 1:14]"},
		{"SELECT _key, RAND() AS r FROM t ORDER BY _key", "Function RAND is not allowed in the query of a materialized view: it is not deterministic [at 1:14]"},
		{"SELECT _key, CURRENT_TIMESTAMP() AS r FROM t ORDER BY _key", "Function CURRENT_TIMESTAMP is not allowed in the query of a materialized view: it is not deterministic [at 1:14]"},
		{"SELECT _key, CURRENT_TIMESTAMP AS r FROM t ORDER BY _key", "Function CURRENT_TIMESTAMP is not allowed in the query of a materialized view: it is not deterministic [at 1:14]"},
		{"SELECT _key, COUNT(*) AS n FROM t WHERE n['x'] > UNIX_MICROS(CURRENT_TIMESTAMP()) GROUP BY _key", "Function CURRENT_TIMESTAMP is not allowed in the query of a materialized view: it is not deterministic [at 1:62]"},
		{"SELECT _key, (SELECT 1) AS x FROM t ORDER BY _key", "Subqueries are not allowed in the query of a materialized view [at 1:14]"},
		{"SELECT _key FROM t WHERE EXISTS (SELECT 1 FROM other) ORDER BY _key", "Subqueries are not allowed in the query of a materialized view [at 1:26]"},
		{"SELECT _key FROM (SELECT _key FROM t) ORDER BY _key", "Subqueries are not allowed in the query of a materialized view [at 1:18]"},
		{"WITH x AS (SELECT 1 AS a) SELECT _key FROM t ORDER BY _key", "WITH is not allowed in the query of a materialized view [at 1:1]"},
		{"SELECT _key FROM t UNION ALL SELECT _key FROM t", "UNION, INTERSECT and EXCEPT are not allowed in the query of a materialized view [at 1:20]"},
		{"SELECT t._key FROM t JOIN other USING (_key) ORDER BY _key", "JOIN is not allowed in the query of a materialized view, except with UNNEST of an array of the row [at 1:22]"},
		{"SELECT _key, COUNT(*) AS n FROM t GROUP BY _key ORDER BY _key", "The query of a materialized view has GROUP BY or ORDER BY, not both [at 1:58]"},
		{"SELECT COUNT(*) AS n FROM t", "A materialized view of one group needs a key of its row: SELECT '*' AS _key, … GROUP BY _key [at 1:1]"},
		{"SELECT COUNT(*) AS n FROM t ORDER BY 1", "The query of a materialized view has aggregate functions or ORDER BY, not both [at 1:38]"},
		{"SELECT _key FROM t", "The query of a materialized view needs GROUP BY, or ORDER BY [at 1:1]"},
		{"SELECT 1 AS x", "The query of a materialized view must read a table: FROM is missing [at 1:1]"},
		{"SELECT x FROM UNNEST([1]) AS x ORDER BY x", "The query of a materialized view must read a table [at 1:15]"},
		{"SELECT _key, COUNT(*) AS n FROM lv GROUP BY _key", "A materialized view of the view lv is not allowed: name the table that it reads [at 1:33]"},
		{"SELECT _key, COUNT(*) AS n FROM mv GROUP BY _key", "A materialized view of the materialized view mv is not allowed [at 1:33]"},
		{"SELECT _key, COUNT(*) AS n FROM nowhere GROUP BY _key", "Table not found: nowhere; Did you mean other? [at 1:33]"},
		{"SELECT _key, COUNT(*) FROM t GROUP BY _key", "Each column of a materialized view needs a name: expression AS name [at 1:14]"},
		{"SELECT _key, COUNT(*) AS n, SUM(n['x']) AS N FROM t GROUP BY _key", "Two columns of the materialized view have the name N [at 1:29]"},
		{"SELECT _key, COUNT(*) + 1 AS n FROM t GROUP BY _key", "Each column of a materialized view with GROUP BY must be an expression of GROUP BY, or one aggregate function [at 1:14]"},
		{"SELECT _key, COUNT(*) AS n FROM t GROUP BY _key HAVING n > 1", "HAVING is not allowed in the query of a materialized view [at 1:56]"},
		{"SELECT _key, COUNT(*) AS n FROM t GROUP BY ROLLUP(_key)", "ROLLUP, CUBE and GROUPING SETS are not allowed in the query of a materialized view [at 1:44]"},
		{"SELECT 1.5 AS x, COUNT(*) AS n FROM t GROUP BY x", "A column of type FLOAT64 cannot be in the key of a materialized view: BYTES, STRING, INT64 and TIMESTAMP can [at 1:8]"},
		{"SELECT n['x'] AS _key, COUNT(*) AS n FROM t GROUP BY _key", "A column _key that is the row key of a materialized view is BYTES or STRING, not INT64 [at 1:8]"},
		{"SELECT _key, COUNT(*) AS `a b.c` FROM t GROUP BY _key", "Column `a b.c` of a materialized view would be in family `a b`, whose name is not allowed: use up to 64 letters, digits, - and _ [at 1:14]"},
		{"SELECT _key, COUNT(*) AS `a.` FROM t GROUP BY _key", "Column `a.` of a materialized view has no qualifier behind the dot [at 1:14]"},
		{"SELECT _key, f AS `default` FROM t ORDER BY _key", "A whole family of a materialized view cannot be named default: other cells are there [at 1:14]"},
		{"SELECT _key, f AS x, f['a'] AS `x.a` FROM t ORDER BY _key", "Columns x and `x.a` of the materialized view would share the family x, which one of them fills [at 1:22]"},
		{"SELECT _key, BIT_AND(f['x']) AS x FROM t GROUP BY _key", "Aggregate function BIT_AND of BYTES is not allowed in the query of a materialized view [at 1:14]"},
		{"SELECT _key, HLL_COUNT.INIT(f['x'], 24) AS x FROM t GROUP BY _key", "The precision of HLL_COUNT.INIT in a materialized view is a number from 10 to 18 [at 1:14]"},
		{"SELECT _key, ANY_VALUE(f['x'] HAVING MAX n['x']) AS x FROM t GROUP BY _key", "Modifiers of an aggregate, such as HAVING and ORDER BY, are not allowed in the query of a materialized view [at 1:14]"},
		{"SELECT _key, SAFE.SUM(n['x']) AS x FROM t GROUP BY _key", "Modifiers of an aggregate, such as SAFE., are not allowed in the query of a materialized view [at 1:14]"},
		{"SELECT _key FROM t WHERE f['x'] = @p ORDER BY _key", "Query parameters are not allowed in the query of a materialized view [at 1:35]"},
		{"SELECT _key, f['x'] AS x FROM t ORDER BY CONCAT(x, b'a')", "Each expression of ORDER BY must be a column of the SELECT list [at 1:42]"},
		{"SELECT _key FROM UNPACK(t(with_history => TRUE)) ORDER BY _key", "UNPACK is not allowed in the query of a materialized view [at 1:18]"},
		{"EXPLAIN SELECT _key FROM t ORDER BY _key", "A materialized view is made of a query, SELECT … FROM … [at 1:1]"},
		{"DELETE FROM t WHERE TRUE", "A materialized view is made of a query, SELECT … FROM … [at 1:1]"},
		{"SELECT", "Syntax error: Unexpected end of statement [at 1:7]"},
		{"SELECT _key,\n  f['x'] || 1 AS x\nFROM t ORDER BY _key", "No matching signature for operator ||"},
	} {
		_, err := materialize.Compile(t.Context(), c, q.text)
		if fault.KindOf(err) != fault.Invalid || !strings.HasPrefix(err.Error(), q.want) {
			t.Errorf("%s:\n%v\nwant %s", q.text, err, q.want)
		}
	}
}

// The views that the tests keep up to date.
var views = []string{
	"SELECT '*' AS _key, COUNT(*) AS n FROM t GROUP BY _key",
	"SELECT _key, COUNT(f['a']) AS `result.count` FROM `t` GROUP BY _key",
	"SELECT _key, MAX(f['a']) AS x FROM t GROUP BY _key",
	"SELECT f['a'] AS a, COUNT(*) AS n, COUNT(f['b']) AS b, SUM(n['x']) AS s, AVG(n['x']) AS avg, MIN(f['b']) AS lo, MAX(f['b']) AS hi, " +
		"BIT_AND(n['x']) AS ba, BIT_OR(n['x']) AS bo, BIT_XOR(n['x']) AS bx, HLL_COUNT.INIT(f['b']) AS h, HLL_COUNT.INIT(n['x'], 10) AS hn " +
		"FROM t GROUP BY a",
	"SELECT CAST(f['a'] AS STRING) AS a, n['x'] AS x, SUM(CAST(n['x'] AS FLOAT64) / 10) AS s, MIN(CAST(f['b'] AS STRING)) AS m FROM t WHERE _key >= b'k2' GROUP BY a, x",
	"SELECT f['a'] AS a, COUNT(*) AS n FROM t WHERE CAST(CAST(f['b'] AS STRING) AS INT64) > 3 GROUP BY 1",
	"SELECT f['b'] AS b, _key, f['a'] AS `g.a`, n['x'] AS x, TIMESTAMP_MICROS(n['x']) AS ts, n['x'] > 3 AS big, n['x'] / 2 AS half FROM t ORDER BY b, _key",
	"SELECT f['a'] AS a, m AS mm, _key AS original FROM t ORDER BY a",
	"SELECT e.key AS q, _key AS k, e.value AS v FROM t CROSS JOIN UNNEST(MAP_ENTRIES(m)) AS e ORDER BY q",
	"SELECT e.key AS q, COUNT(*) AS n, MIN(e.value) AS v FROM t, UNNEST(MAP_ENTRIES(m)) AS e WHERE e.value != b'2' GROUP BY q",
	"SELECT ARRAY_LENGTH(f['a']) AS n, COUNT(*) AS c FROM t(with_history => TRUE) GROUP BY n",
	"SELECT n['x'] AS x FROM t ORDER BY x",
}

// expected runs a view's query and returns the rows that the view must have.
func expected(t *testing.T, b query.Source, c catalog, v *materialize.View) map[string]map[string]string {
	t.Helper()
	e := query.New(b, query.Options{Dir: t.TempDir()})
	text := v.Definition.Query
	failing := strings.Contains(text, "AS INT64)")
	if failing { // rows that cannot be evaluated are left out
		text = strings.ReplaceAll(text, "CAST(CAST", "SAFE_CAST(CAST")
	}
	p, err := e.Prepare(t.Context(), c, text, nil)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := e.Execute(t.Context(), p, query.Request{})
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	d := v.Definition
	ks := materialize.KeySchema(d)
	out := map[string]map[string]string{}
	for {
		batch, err := rows.Next(t.Context())
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
	next:
		for k := range batch.Rows() {
			i := k
			if batch.Sel != nil {
				i = int(batch.Sel[k])
			}
			byName := map[string]types.Value{}
			for j, col := range p.Columns() {
				byName[col.Name] = batch.Cols[j].Value(i).Clone()
			}
			var fields []types.Value
			for _, kc := range d.Key {
				x, ok := byName[kc.Name]
				if !ok {
					t.Fatalf("no column %s", kc.Name)
				}
				if !x.Valid {
					continue next
				}
				fields = append(fields, x)
			}
			key := []byte(fields[0].Str)
			if !d.RawKey {
				key, _ = ks.Encode(nil, fields)
			}
			if out[string(key)] != nil {
				continue // the order of rows of one index key is that of their keys
			}
			cells := map[string]string{"default:": ""}
			for _, vc := range d.Columns {
				x := byName[vc.Name]
				switch {
				case vc.Map:
					for m := 0; m+1 < len(x.List); m += 2 {
						cells[vc.Family+":"+x.List[m].Str] = x.List[m+1].Str
					}
				case x.Valid:
					cells[vc.Family+":"+vc.Qualifier] = string(matview.AppendValue(nil, vc.Type, &matview.Arg{Int: x.Int, Float: x.Float, Text: x.Str}))
				}
			}
			out[string(key)] = cells
		}
	}
}

// TestViews keeps views by what evaluations of changed rows, and of ranges, give, and
// compares them with their queries.
func TestViews(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	b, c := source(t)
	ev := materialize.New(materialize.Options{Source: b, Catalog: func(context.Context, *schema.View) (algebra.Catalog, error) { return c, nil }})
	type kept struct {
		*materialize.View
		e      matview.Evaluator
		stored map[string][]byte
		deltas *matview.Deltas
		target *matview.Target
		rows   map[string]viewRow
		failed int
	}
	var all []*kept
	for _, text := range views {
		v, err := materialize.Compile(t.Context(), c, text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		v.Definition.Name = "v"
		e, err := ev.Evaluator(t.Context(), v.Definition)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		all = append(all, &kept{View: v, e: e, stored: map[string][]byte{}, deltas: matview.NewDeltas(v.Definition), target: matview.NewTarget(v.Definition), rows: map[string]viewRow{}})
	}
	seq := uint64(0)
	table := instance + "/tables/t"
	rounds := 40
	if testing.Short() {
		rounds = 12
	}
	for round := range rounds {
		changed := map[string]bool{}
		for range rnd.IntN(40) {
			key := fmt.Sprintf("k%d", rnd.IntN(60))
			changed[key] = true
			var muts []row.Mutation
			value := func() string { return []string{"", "1", "2", "5", "30", "x", "a\x00b"}[rnd.IntN(7)] }
			switch rnd.IntN(8) {
			case 0:
				muts = append(muts, row.Mutation{Op: row.DeleteRow})
			case 1:
				muts = append(muts, row.Mutation{Op: row.DeleteFamily, Family: []string{"f", "m", "n"}[rnd.IntN(3)]})
			case 2:
				muts = append(muts, row.Mutation{Op: row.DeleteColumn, Family: "f", Qualifier: []byte("a"), Times: cell.AllTime})
			case 3:
				muts = append(muts, row.Mutation{Op: row.AddToCell, Family: "n", Qualifier: []byte("x"), Input: row.Input{Kind: row.IntInput, Int: rnd.Int64N(9) - 3}})
			case 4:
				muts = append(muts, set("m", value(), value()), set("m", "q"+value(), value()))
			default:
				m := set("f", []string{"a", "b"}[rnd.IntN(2)], value())
				m.Timestamp = rnd.Int64N(3) * 1000
				muts = append(muts, m)
			}
			if err := b.MutateRow(t.Context(), table, &row.Entry{Key: []byte(key), Mutations: muts}); err != nil {
				t.Fatal(err)
			}
		}
		seq++
		for _, v := range all {
			var got map[string]matview.Row
			keys := slices.Sorted(maps.Keys(changed))
			if round%3 == 0 {
				got = collect(t, func(emit func(*matview.Row) error) error {
					return v.e.Range(t.Context(), row.Range{Start: []byte("k1"), End: []byte("k5")}, emit)
				})
				for k := range got {
					if k < "k1" || k >= "k5" {
						t.Fatalf("row %q is not in the range", k)
					}
				}
				got = collect(t, func(emit func(*matview.Row) error) error { return v.e.Range(t.Context(), row.All, emit) })
				keys = nil
				for i := range 60 {
					keys = append(keys, fmt.Sprintf("k%d", i))
				}
			} else {
				var list [][]byte
				for _, k := range keys {
					list = append(list, []byte(k))
				}
				got = collect(t, func(emit func(*matview.Row) error) error { return v.e.Keys(t.Context(), list, emit) })
			}
			v.deltas.Reset()
			for _, k := range keys {
				if got[k].Err != nil {
					v.failed++
				}
				if err := v.deltas.Change([]byte(k), v.stored[k], got[k].Contribution); err != nil {
					t.Fatal(err)
				}
				v.stored[k] = got[k].Contribution
				delete(got, k)
			}
			if len(got) > 0 {
				t.Fatalf("rows that were not asked for: %v", got)
			}
			err := v.deltas.Each(func(key, payload []byte) error {
				r := v.rows[string(key)]
				if r == nil {
					r = viewRow{}
					v.rows[string(key)] = r
				}
				muts, err := v.target.Apply(r, []matview.Update{{Shard: 1, Seq: seq, Payload: payload}}, time.Now())
				r.apply(muts)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			want := expected(t, b, c, v.View)
			for key, r := range v.rows {
				if got, exp := r.visible(), want[key]; !maps.Equal(got, exp) && len(got)+len(exp) > 0 {
					t.Fatalf("%s\nrow %q is %q\nwant %q", v.Definition.Query, key, got, exp)
				}
				delete(want, key)
			}
			if len(want) > 0 {
				t.Fatalf("%s\nrows %q are missing", v.Definition.Query, want)
			}
		}
	}
	for i, v := range all {
		if len(v.rows) == 0 {
			t.Errorf("%s: has no rows", v.Definition.Query)
		}
		if (v.failed > 0) != (i == 5) {
			t.Errorf("%s: %d rows failed", v.Definition.Query, v.failed)
		}
	}
}

func TestSourceChanged(t *testing.T) {
	b, c := source(t)
	v, err := materialize.Compile(t.Context(), c, views[3])
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(v.Definition.Families); got != "[f n]" {
		t.Errorf("families %s", got)
	}
	ev := materialize.New(materialize.Options{Source: b, Catalog: func(context.Context, *schema.View) (algebra.Catalog, error) { return c, nil }})
	other := v.Definition.Clone()
	other.SourceID++
	if _, err := ev.Evaluator(t.Context(), other); fault.KindOf(err) != fault.FailedPrecondition {
		t.Errorf("another table: %v", err)
	}
	c["t"].Columns = c["t"].Columns[:2]
	if _, err := ev.Evaluator(t.Context(), v.Definition); fault.KindOf(err) != fault.FailedPrecondition {
		t.Errorf("a family is gone: %v", err)
	}
}

// evaluator returns the evaluator of a query over the tables of a catalog.
func evaluator(t *testing.T, c catalog, o materialize.Options, query string) matview.Evaluator {
	t.Helper()
	o.Catalog = func(context.Context, *schema.View) (algebra.Catalog, error) { return c, nil }
	v, err := materialize.Compile(t.Context(), c, query)
	if err != nil {
		t.Fatal(err)
	}
	v.Definition.Name = "v"
	e, err := materialize.New(o).Evaluator(t.Context(), v.Definition)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestLargeRows: a row that has no room in the memory of an evaluation is given as one that
// could not be evaluated, and all others as they are, by keys and in a range; several that
// have no room together are evaluated one by one.
func TestLargeRows(t *testing.T) {
	b, c := source(t)
	const memory = 16 << 20
	e := evaluator(t, c, materialize.Options{Source: b, Memory: memory}, "SELECT LENGTH(f['v']) AS n, COUNT(*) AS c FROM t WHERE f['v'] IS NOT NULL GROUP BY n")
	large := map[string]int{"k007": memory, "k050": memory, "k051": memory, "k099": memory, "k020": memory / 10, "k021": memory / 10, "k022": memory / 10, "k023": memory / 10}
	var keys [][]byte
	for i := range 100 {
		key := fmt.Sprintf("k%03d", i)
		keys = append(keys, []byte(key))
		if err := b.MutateRow(t.Context(), instance+"/tables/t", &row.Entry{Key: []byte(key), Mutations: []row.Mutation{set("f", "v", strings.Repeat("v", max(1, large[key])))}}); err != nil {
			t.Fatal(err)
		}
	}
	for what, got := range map[string]map[string]matview.Row{
		"keys":  collect(t, func(emit func(*matview.Row) error) error { return e.Keys(t.Context(), keys, emit) }),
		"range": collect(t, func(emit func(*matview.Row) error) error { return e.Range(t.Context(), row.All, emit) }),
		"part": collect(t, func(emit func(*matview.Row) error) error {
			return e.Range(t.Context(), row.Range{Start: []byte("k"), End: []byte("z")}, emit)
		}),
	} {
		if len(got) != 100 {
			t.Errorf("%s: %d rows", what, len(got))
		}
		for key, r := range got {
			if failed := large[key] == memory; (r.Err != nil) != failed || (len(r.Contribution) == 0) != failed {
				t.Errorf("%s: row %s: %v, %d bytes", what, key, r.Err, len(r.Contribution))
			}
		}
	}
	// What the caller says of a row is not taken for one that has no room.
	full := fault.New(fault.Exhausted, "the disk is full")
	for what, do := range map[string]func(emit func(*matview.Row) error) error{
		"keys":  func(emit func(*matview.Row) error) error { return e.Keys(t.Context(), keys, emit) },
		"range": func(emit func(*matview.Row) error) error { return e.Range(t.Context(), row.All, emit) },
	} {
		n := 0
		err := do(func(*matview.Row) error {
			if n++; n == 5 {
				return full
			}
			return nil
		})
		if !errors.Is(err, full) || n != 5 {
			t.Errorf("%s: %v after %d rows", what, err, n)
		}
	}
}

// TestLargeRowFarAway: a row that has no room, behind many that the query leaves out, does not
// have these read again for each few of them.
func TestLargeRowFarAway(t *testing.T) {
	b, c := source(t)
	const memory, rows = 16 << 20, 5000
	from := &counted{Backend: b}
	e := evaluator(t, c, materialize.Options{Source: from, Memory: memory, Tell: time.Hour}, "SELECT LENGTH(f['v']) AS n, COUNT(*) AS c FROM t WHERE f['v'] > 'm' GROUP BY n")
	put := func(key, value string) {
		t.Helper()
		if err := b.MutateRow(t.Context(), instance+"/tables/t", &row.Entry{Key: []byte(key), Mutations: []row.Mutation{set("f", "v", value)}}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range rows {
		put(fmt.Sprintf("k%04d", i), "left out")
	}
	put("large", strings.Repeat("v", memory))
	put("last", "value")
	got := collect(t, func(emit func(*matview.Row) error) error { return e.Range(t.Context(), row.All, emit) })
	if r := got["large"]; r.Err == nil || len(got["last"].Contribution) == 0 {
		t.Errorf("%v, %v", r.Err, got["last"])
	}
	if from.parts < 2 || from.parts > 12 {
		t.Errorf("ranges were read %d times", from.parts)
	}
}

// TestLargeRowLongKeys: however long the keys of the rows before it are, those that are held of
// them have a bound.
func TestLargeRowLongKeys(t *testing.T) {
	b, c := source(t)
	const memory, rows = 16 << 20, 1000
	from := &counted{Backend: b}
	e := evaluator(t, c, materialize.Options{Source: from, Memory: memory, Tell: time.Hour}, "SELECT LENGTH(f['v']) AS n, COUNT(*) AS c FROM t WHERE f['v'] > 'm' GROUP BY n")
	for i := range rows {
		if err := b.MutateRow(t.Context(), instance+"/tables/t", &row.Entry{Key: fmt.Appendf(nil, "k%04000d", i), Mutations: []row.Mutation{set("f", "v", "left out")}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.MutateRow(t.Context(), instance+"/tables/t", &row.Entry{Key: []byte("large"), Mutations: []row.Mutation{set("f", "v", strings.Repeat("v", memory))}}); err != nil {
		t.Fatal(err)
	}
	got := collect(t, func(emit func(*matview.Row) error) error { return e.Range(t.Context(), row.All, emit) })
	if got["large"].Err == nil {
		t.Error("the row that has no room was evaluated")
	}
	if from.keyBytes == 0 || from.keyBytes > 1<<20 {
		t.Errorf("keys of %d bytes were held", from.keyBytes)
	}
}

// counted counts how often ranges of rows are read with their cells. keyBytes is how many bytes
// of keys a read by keys asks for at most.
type counted struct {
	*model.Backend
	parts, keyBytes int
}

func (c *counted) ReadRows(ctx context.Context, req *scan.Request, w scan.Writer) (scan.Stats, error) {
	if len(req.Ranges) == 1 && !req.Ranges[0].IsSingle() && req.Limit == 0 {
		c.parts++
	}
	n := 0
	for _, r := range req.Ranges {
		if r.IsSingle() {
			n += len(r.Start)
		}
	}
	c.keyBytes = max(c.keyBytes, n)
	return c.Backend.ReadRows(ctx, req, w)
}

// TestRangeTells: Range tells where it is though no row contributes anything, and what does
// contribute is given once, and in order.
func TestRangeTells(t *testing.T) {
	b, c := source(t)
	told, few := 0, 1000
	for _, tell := range []time.Duration{time.Hour, time.Nanosecond} {
		e := evaluator(t, c, materialize.Options{Source: yielding{b}, Tell: tell}, "SELECT f['v'] AS v, COUNT(*) AS c FROM t WHERE f['v'] > 'k5' GROUP BY v")
		for i := range 1000 {
			family := "m" // that the view does not read
			if i%100 < 10 {
				family = "f"
			}
			key := fmt.Sprintf("k%03d", i)
			if err := b.MutateRow(t.Context(), instance+"/tables/t", &row.Entry{Key: []byte(key), Mutations: []row.Mutation{set(family, "v", key)}}); err != nil {
				t.Fatal(err)
			}
		}
		n := 0
		told = 0
		for key, r := range collect(t, func(emit func(*matview.Row) error) error { return e.Range(t.Context(), row.All, emit) }) {
			if r.Err != nil {
				t.Errorf("%s: %v", key, r.Err)
			}
			if len(r.Contribution) > 0 {
				n++
			} else {
				told++
			}
		}
		if n != 50 {
			t.Errorf("%d rows contribute something", n)
		}
		few = min(few, told)
	}
	// With batches, and where none is read.
	if few == 0 || told < few+50 {
		t.Errorf("told of %d rows that contribute nothing, and of %d in an hour", told, few)
	}
}

// yielding reads as a tablet does, which gives way after some rows without a result.
type yielding struct{ *model.Backend }

func (y yielding) ReadRows(ctx context.Context, req *scan.Request, w scan.Writer) (scan.Stats, error) {
	p := &yielder{Writer: w}
	st, err := y.Backend.ReadRows(ctx, req, p)
	if p.err != nil {
		err = p.err
	}
	return st, err
}

type yielder struct {
	scan.Writer
	n   int
	err error
}

func (y *yielder) Scanned(key []byte) {
	if y.n++; y.n%7 == 0 && y.err == nil {
		y.Writer.Scanned(key)
		y.err = y.Writer.Flush()
	}
}

func (y *yielder) StartRow(key []byte) {
	if y.err == nil {
		y.Writer.StartRow(key)
	}
}

func (y *yielder) Cell(c *row.Cell) {
	if y.err == nil {
		y.Writer.Cell(c)
	}
}

func (y *yielder) EndRow() (bool, error) {
	if y.err != nil {
		return false, y.err
	}
	return y.Writer.EndRow()
}
