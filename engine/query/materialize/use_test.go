package materialize_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/trestledb/trestle/engine/query"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/materialize"
	"github.com/trestledb/trestle/engine/query/types"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

// using is a catalog with materialized views of t. Each is read by a query over t itself,
// which leaves out what a view does: rows whose key has a NULL.
type using struct {
	catalog
	defs []*schema.View
}

func (u using) Views(context.Context, *algebra.Table) ([]*schema.View, error) { return u.defs, nil }

func TestUse(t *testing.T) {
	b, c := source(t)
	rnd := rand.New(rand.NewPCG(1, 1))
	for i := range 200 {
		muts := []row.Mutation{set("m", "x", "y")}
		if rnd.IntN(4) > 0 {
			muts = append(muts, set("f", "a", fmt.Sprint("a", rnd.IntN(5))))
		}
		if rnd.IntN(4) > 0 {
			muts = append(muts, set("f", "b", fmt.Sprint("b", rnd.IntN(5))))
		}
		muts = append(muts, row.Mutation{Op: row.AddToCell, Family: "n", Qualifier: []byte("x"), Input: row.Input{Kind: row.IntInput, Int: rnd.Int64N(50)}})
		if err := b.MutateRow(t.Context(), instance+"/tables/t", &row.Entry{Key: fmt.Appendf(nil, "k%03d", i), Mutations: muts}); err != nil {
			t.Fatal(err)
		}
	}
	u := using{catalog: c}
	c["t"].Schema = c["t"].Schema.Clone()
	c["t"].Schema.Views = []schema.ViewOf{{Name: "x"}}
	for name, q := range map[string][2]string{
		"byab": {"SELECT f['a'] AS a, f['b'] AS b, COUNT(*) AS n, SUM(n['x']) AS s FROM t GROUP BY a, b",
			"SELECT f['a'] AS a, f['b'] AS b, COUNT(*) AS n, SUM(n['x']) AS s FROM t WHERE f['a'] IS NOT NULL AND f['b'] IS NOT NULL GROUP BY a, b"},
		"bigkey": {"SELECT _key, MAX(n['x']) AS hi FROM t WHERE n['x'] > 10 GROUP BY _key", ""},
		"ix": {"SELECT f['b'] AS b, _key, n['x'] AS x, f['a'] AS a FROM t ORDER BY b, _key",
			"SELECT f['b'] AS b, _key, n['x'] AS x, f['a'] AS a FROM t WHERE f['b'] IS NOT NULL"},
		"lossy": {"SELECT f['a'] AS a, n['x'] AS x FROM t ORDER BY a", ""},
	} {
		v, err := materialize.Compile(t.Context(), c, q[0])
		if err != nil {
			t.Fatal(err)
		}
		v.Definition.Name = instance + "/materializedViews/" + name
		u.defs = append(u.defs, v.Definition)
		text := q[1]
		if text == "" {
			text = strings.Split(q[0], " ORDER BY")[0]
		}
		c[name] = &algebra.Table{Name: name, FullName: v.Definition.Name, View: &algebra.View{Query: text}}
	}
	slices.SortFunc(u.defs, func(a, b *schema.View) int { return strings.Compare(a.Name, b.Name) })
	e := query.New(b, query.Options{Dir: t.TempDir()})
	run := func(text string) (*query.Prepared, []string) {
		t.Helper()
		p, err := e.Prepare(t.Context(), u, text, map[string]*types.Type{"p": types.BytesType})
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		rows, err := e.Execute(t.Context(), p, query.Request{Params: algebra.Params{Values: map[string]types.Value{"p": types.NewString("b2")}}})
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		defer rows.Close()
		var out []string
		for {
			batch, err := rows.Next(t.Context())
			if errors.Is(err, io.EOF) {
				return p, out
			}
			if err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			for k := range batch.Rows() {
				i := k
				if batch.Sel != nil {
					i = int(batch.Sel[k])
				}
				var cols []string
				for j, v := range batch.Cols {
					cols = append(cols, algebra.FormatValue(p.Columns()[j].Type, v.Value(i)))
				}
				out = append(out, strings.Join(cols, "|"))
			}
		}
	}
	const notNull = " WHERE f['a'] IS NOT NULL AND f['b'] IS NOT NULL"
	for _, q := range []struct{ text, by string }{
		{"SELECT f['a'] AS a, f['b'] AS b, COUNT(*) AS n FROM t" + notNull + " GROUP BY a, b", "byab"},
		{"SELECT COUNT(*) + SUM(n['x']), f['b'] AS b FROM t" + notNull + " GROUP BY b, f['a'] HAVING COUNT(*) > 1 ORDER BY 1 DESC", "byab"},
		{"SELECT SUM(n['x']) AS s FROM t AS z WHERE f['a'] = b'a1' AND f['b'] IN (b'b1', @p) GROUP BY f['a'], f['b']", "byab"},
		{"SELECT MAX(s) FROM (SELECT SUM(n['x']) AS s FROM t" + notNull + " GROUP BY f['a'], f['b'])", "byab"},
		{"SELECT f['a'] AS a, f['b'] AS b, COUNT(*) AS n FROM t GROUP BY a, b", ""},                                       // groups of NULL
		{"SELECT f['a'] AS a, f['b'] AS b, COUNT(*) AS n FROM t" + notNull + " AND n['x'] > 3 GROUP BY a, b", ""},         // not about keys
		{"SELECT f['a'] AS a, f['b'] AS b, MAX(n['x']) AS n FROM t" + notNull + " GROUP BY a, b", ""},                     // another aggregate
		{"SELECT f['a'] AS a, COUNT(*) AS n FROM t" + notNull + " GROUP BY a", ""},                                        // other keys
		{"SELECT f['a'] AS a, f['b'] AS b, COUNT(*) AS n FROM t" + notNull + " GROUP BY ROLLUP(a, b)", ""},                // several groupings
		{"SELECT f['a'] AS a, f['b'] AS b, COUNT(*) AS n FROM t(with_history => FALSE)" + notNull + " GROUP BY a, b", ""}, // other cells, perhaps
		{"SELECT _key, MAX(n['x']) FROM t WHERE n['x'] > 10 GROUP BY _key", "bigkey"},
		{"SELECT _key, MAX(n['x']) FROM t WHERE n['x'] > 10 AND _key < b'k100' GROUP BY _key", "bigkey"},
		{"SELECT _key, MAX(n['x']) FROM t GROUP BY _key", ""},
		{"SELECT _key FROM t WHERE f['b'] = b'b3'", "ix"},
		{"SELECT _key, n['x'], f['a'] FROM t WHERE f['b'] = @p AND n['x'] > 3 ORDER BY n['x'] LIMIT 5", "ix"},
		{"SELECT COUNT(*) FROM t WHERE f['b'] BETWEEN b'b1' AND b'b2'", "ix"},
		{"SELECT _key FROM t WHERE f['b'] != b'b3'", ""},                 // no range
		{"SELECT _key, m['x'] FROM t WHERE f['b'] = b'b3'", ""},          // a column that the index lacks
		{"SELECT _key, f FROM t WHERE f['b'] = b'b3'", ""},               // all of a family
		{"SELECT f['a'], n['x'] FROM t WHERE f['a'] = b'a3'", ""},        // rows that the index has once
		{"SELECT _key FROM t WHERE f['b'] = b'b3' OR n['x'] = 3", ""},    // no condition of all rows
		{"SELECT _key FROM t WHERE COALESCE(f['b'], b'b3') = b'b3'", ""}, // of rows without one, too
	} {
		p, want := run(q.text)
		if len(p.Statement.Views) > 0 {
			t.Errorf("%s: uses %s without being asked", q.text, p.Statement.Views)
		}
		p, got := run("@{use_materialized_views=true} " + q.text)
		if by := strings.Join(p.Statement.Views, ","); by != q.by {
			t.Errorf("%s: answered by %q, want %q", q.text, by, q.by)
		}
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) || len(got) == 0 {
			t.Errorf("%s:\n%q\nwant\n%q", q.text, got, want)
		}
		_, lines := run("EXPLAIN " + q.text)
		if has := strings.Contains(lines[0], `"Materialized views"|"`+q.by); has != (q.by != "") && q.by != "" || q.by == "" && strings.Contains(lines[0], "Materialized") {
			t.Errorf("EXPLAIN %s: %s", q.text, lines[0])
		}
		if q.by != "" {
			if _, lines = run("EXPLAIN @{use_materialized_views=true} " + q.text); !strings.Contains(lines[0], "answered by "+q.by) {
				t.Errorf("EXPLAIN with the hint %s: %s", q.text, lines[0])
			}
		}
	}
	if _, err := e.Prepare(t.Context(), u, "@{use_materialized_views=1} SELECT 1", nil); err == nil || !strings.Contains(err.Error(), "must be TRUE or FALSE [at 1:26]") {
		t.Errorf("a hint that is no BOOL: %v", err)
	}
}
