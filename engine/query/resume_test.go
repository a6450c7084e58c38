package query

import (
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/trestledb/trestle/engine/query/exec"
	"github.com/trestledb/trestle/engine/query/plan"
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
					for i := range b.Len {
						if b.Sel != nil && !slices.Contains(b.Sel, int32(i)) {
							continue
						}
						var cols []string
						for k, v := range b.Cols {
							cols = append(cols, valueText(p.Columns()[k].Type, v.Value(i)))
						}
						got = append(got, strings.Join(cols, " | "))
					}
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
