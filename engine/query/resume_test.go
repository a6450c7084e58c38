package query

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/trestledb/trestle/engine/query/exec"
	"github.com/trestledb/trestle/engine/query/plan"
	"github.com/trestledb/trestle/engine/row"
)

// TestResumeAnywhere goes on from each position that a query gives out, with rows from
// here and from a server that runs fragments, and wants the rest of the rows each time.
func TestResumeAnywhere(t *testing.T) {
	src, cat := stored(t)
	far := &remote{counting: src, pool: exec.NewPool(exec.Limits{})}
	streams := 0
	for _, q := range append([]string{
		"SELECT _key FROM t WHERE f['a'] > '2'",
		"SELECT _key, f['a'] FROM t WHERE f['a'] > '2' ORDER BY _key DESC",
		"SELECT _key, f['a'] FROM t WHERE f['a'] > '2' LIMIT 40 OFFSET 3",
		"SELECT _key, CONCAT(f['a'], '!') FROM t WHERE g['q1'] IS NULL AND _key > 'r02'",
	}, pushdownQueries...) {
		p, err := prepare(t, cat, q, plan.Options{})
		if err != nil {
			t.Fatal(q, err)
		}
		if !p.Streams() {
			continue
		}
		streams++
		for where, e := range map[string]*Engine{"here": New(src, Options{}), "there": New(far, Options{})} {
			all, err := result(t, e, p)
			if err != nil {
				t.Errorf("%s: %v", q, err)
				continue
			}
			// In every run some rows are read, and then another run begins.
			var got []string
			r := request()
			for step := 0; ; step++ {
				rows, err := e.Execute(t.Context(), p, r)
				if err != nil {
					t.Fatal(q, err)
				}
				done := false
				for range 1 + step%2 {
					b, err := rows.Next(t.Context())
					if err == io.EOF {
						done = true
						break
					}
					if err != nil {
						t.Fatal(q, err)
					}
					got = append(got, batchText(p, b)...)
				}
				if r.Resume = slices.Clone(rows.Position()); r.Resume == nil {
					t.Fatalf("%s: no position", q)
				}
				if err := rows.Close(); err != nil {
					t.Error(err)
				}
				if done || step > 500 {
					break
				}
			}
			if !slices.Equal(got, all) {
				t.Errorf("%s, rows from %s: got %d rows, want %d\n got %.300q\nwant %.300q", q, where, len(got), len(all), got, all)
			}
		}
	}
	if streams < 20 {
		t.Errorf("only %d queries can be resumed", streams)
	}
}

// TestResumeAfterChanges changes the rows that a query has given out, before it goes on
// behind them: what follows is still the rest of the rows, once each.
func TestResumeAfterChanges(t *testing.T) {
	const n = 5000
	for _, c := range []struct {
		q     string
		every int  // batches at most from one place with a key to the next
		far   bool // also of rows from a server that runs fragments
		rows  int
	}{
		{"SELECT _key, f['a'] FROM t WHERE f['a'] = 'new'", 1, true, n},
		{"SELECT CONCAT(_key, '!') FROM t WHERE f['a'] = 'new'", 1, false, n},
		{"SELECT _key FROM t WHERE f['a'] = 'new' ORDER BY _key DESC", 1, true, n},
		{"SELECT _key FROM t WHERE f['a'] = 'new' LIMIT 4000 OFFSET 20", 1, true, 4000},
		{"SELECT _key, e FROM t, UNNEST([1, 2]) AS e WHERE f['a'] = 'new'", 2, true, 2 * n},
		{"SELECT _key, e FROM t LEFT JOIN UNNEST([1, 2]) AS e WHERE f['a'] = 'new' AND e = 2", 2, false, n},
		{"SELECT _key, e.value FROM t, UNNEST(MAP_ENTRIES(f)) AS e WHERE e.value = 'new'", 2, false, n},
	} {
		for _, far := range []bool{false, true} {
			if far && !c.far {
				continue
			}
			src, cat := stored(t)
			name := cat["t"].FullName
			set := func(key, value string) {
				err := src.MutateRow(t.Context(), name, &row.Entry{Key: []byte(key), Mutations: []row.Mutation{
					{Op: row.SetCell, Family: "f", Qualifier: []byte("a"), Timestamp: 1000, Value: []byte(value)}}})
				if err != nil {
					t.Fatal(err)
				}
			}
			for i := range n {
				set(fmt.Sprintf("x%04d", i), "new")
			}
			e := New(src, Options{})
			if far {
				e = New(&remote{counting: src, pool: exec.NewPool(exec.Limits{})}, Options{})
			}
			p, err := prepare(t, cat, c.q, plan.Options{})
			if err != nil {
				t.Fatal(c.q, err)
			}
			all, err := result(t, e, p)
			if err != nil || len(all) != c.rows {
				t.Fatal(c.q, len(all), err)
			}
			var got []string
			r := request()
			for done := false; !done; {
				rows, err := e.Execute(t.Context(), p, r)
				if err != nil {
					t.Fatal(c.q, err)
				}
				from := len(got)
				for batches := 1; ; batches++ {
					b, err := rows.Next(t.Context())
					if done = err == io.EOF; done {
						break
					}
					if err != nil {
						t.Fatal(c.q, err)
					}
					got = append(got, batchText(p, b)...)
					r.Resume = slices.Clone(rows.Position())
					if r.Resume[1] == 0 { // rows behind the key
						break
					}
					if batches == c.every {
						t.Fatalf("%s, far %v: no key after %d batches", c.q, far, batches)
					}
				}
				if err := rows.Close(); err != nil {
					t.Error(err)
				}
				for _, g := range got[from:] {
					if _, key, _ := strings.Cut(g, `"`); len(key) >= 5 {
						set(key[:5], "done")
					}
				}
			}
			if !slices.Equal(got, all) {
				t.Errorf("%s, far %v: got %d rows, want %d", c.q, far, len(got), len(all))
			}
		}
	}
}
