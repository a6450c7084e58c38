package query

import (
	"io"
	"strings"
	"testing"

	"github.com/trestledb/trestle/engine/query/plan"
)

func TestExplain(t *testing.T) {
	src, cat := stored(t)
	e := New(src, Options{})
	for _, c := range []struct{ query, want string }{
		{"EXPLAIN SELECT f['a'] FROM t WHERE _key = @k", "\n  Scan t|f[\"a\"]|'r03#7'|1|default, other|"},
		{"EXPLAIN SELECT COUNT(*) FROM t WHERE f['a'] > '3'", "Aggregate|COUNT(*)"},
		{"EXPLAIN SELECT _key FROM t WHERE _key < 'b' AND _key > 'c'", "|none|0|"},
		{"EXPLAIN SELECT _key FROM t", "full table scan"},
		{"EXPLAIN SELECT _key FROM t WHERE _key LIKE 'r0%'", "['r0', 'r1')|3|"},
	} {
		p, err := prepare(t, cat, c.query, plan.Options{})
		if err != nil {
			t.Fatalf("%s: %v", c.query, err)
		}
		rows, err := e.Execute(t.Context(), p, request())
		if err != nil {
			t.Fatalf("%s: %v", c.query, err)
		}
		b, err := rows.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var lines []string
		for i := range b.Len {
			var cols []string
			for k := range 6 {
				v := b.Cols[k].Value(i)
				switch {
				case k == 3 && v.Valid:
					cols = append(cols, valueText(p.Columns()[k].Type, v))
				case k == 3:
					cols = append(cols, "NULL")
				default:
					cols = append(cols, v.Str)
				}
			}
			lines = append(lines, strings.Join(cols, "|"))
		}
		if got := strings.Join(lines, "\n"); !strings.Contains(got, c.want) {
			t.Errorf("%s: got\n%s\nwithout %s", c.query, got, c.want)
		}
		if _, err := rows.Next(t.Context()); err != io.EOF {
			t.Errorf("%s: the second batch is %v", c.query, err)
		}
	}
	// What ran has figures.
	p, err := prepare(t, cat, "EXPLAIN ANALYZE SELECT COUNT(*) FROM t WHERE f['a'] > '3'", plan.Options{})
	if err != nil {
		t.Fatal(err)
	}
	rows, err := e.Execute(t.Context(), p, request())
	if err != nil {
		t.Fatal(err)
	}
	b, err := rows.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	last := b.Len - 1
	if b.Cols[7].IsNull(last) || b.Cols[7].Value(last).Int != 120 {
		t.Errorf("the scan has read %v rows, not 120", b.Cols[7].Value(last))
	}
	// 108 of them have the column: each is counted once, though the scan stands for a
	// fragment too.
	if n := b.Cols[6].Value(last); n.Int != 108 {
		t.Errorf("the scan gave out %d rows, not 108", n.Int)
	}
	if n := b.Cols[6].Value(0); n.Int != 1 {
		t.Errorf("%d rows came out, not 1", n.Int)
	}
}
