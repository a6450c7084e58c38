package analyze

import (
	"context"
	"testing"

	"github.com/trestledb/trestle/engine/query/syntax"
	"github.com/trestledb/trestle/engine/query/types"
)

func BenchmarkStatement(b *testing.B) {
	tables := testCatalog()
	params := map[string]*types.Type{"k": types.BytesType}
	for _, c := range []struct{ name, sql string }{
		{"point", "SELECT * FROM t WHERE _key = @k"},
		{"cells", "SELECT _key, cf1['a'] AS a, cf1['b'] AS b FROM t WHERE _key LIKE 'p%' AND cf1['c'] = 'x' LIMIT 10"},
		{"group", "SELECT cf1['a'] AS a, COUNT(*) AS n, SUM(TO_INT64(cf1['b'])) AS s FROM t GROUP BY a HAVING n > 3 ORDER BY s DESC"},
	} {
		stmt, err := syntax.Parse(c.sql)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Statement(context.Background(), tables, stmt, c.sql, params); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
