package syntax

import (
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/trestledb/trestle/engine/cputime"
	"github.com/trestledb/trestle/engine/fault"
)

// FuzzParse wants no panic, errors with a place, and bounds of time and memory: a
// second of processor and 64 MiB, and 4 KiB more for each byte.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"SELECT _key, f['q'] FROM t WHERE _key = @k LIMIT 10",
		"WITH a AS (SELECT 1 x UNION ALL SELECT 2) SELECT SUM(x) OVER (ORDER BY x ROWS 1 PRECEDING) FROM a JOIN b ON a.x = b.x ON c",
		"SELECT CAST(a AS ARRAY<STRUCT<b INT64>>), CASE WHEN a THEN r'''b''' END, f((x, y) -> x), [1, 2][OFFSET(0)], @@v, INTERVAL 1 DAY",
		"INSERT INTO t (_key, f['q']) VALUES ('a', DEFAULT)", "UPDATE t SET f['q'] = 1 WHERE TRUE", "DELETE t WHERE a",
		"EXPLAIN SELECT * EXCEPT (a) REPLACE (1 AS b) FROM UNNEST([1]) WITH OFFSET, ((SELECT 1) UNION ALL (SELECT 2))",
		"SELECT 1 FROM a-b-1c.d, UNPACK((SELECT 1)) GROUP BY GROUPING SETS ((a), ROLLUP (b)) QUALIFY a WINDOW w AS (b)",
		"SELECT '\\x4", "SELECT `", "SELECT /*", "SELECT\r\n\t\xff", "SELECT $", "(((", "SELECT 1a", "@{a=1}SELECT@1 1",
		"SELECT a.", "SELECT STRUCT<>>", "SELECT ARRAY<ARRAY<a>>", "SELECT f(->", "SELECT a.1.b[", "SELECT 1 FROM a-", "SELECT a IS NOT",
		"SELECT " + strings.Repeat("(", 200), "SELECT " + strings.Repeat("a[", 100), "SELECT 1" + strings.Repeat("+1", 300),
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		start := cputime.Used()
		_, err := Parse(text)
		if took := cputime.Used() - start; took > time.Second {
			t.Errorf("%d bytes took %v of processor", len(text), took)
		}
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; used > 64<<20+4096*uint64(len(text)) {
			t.Errorf("%d bytes took %d bytes of memory", len(text), used)
		}
		if err == nil {
			return
		}
		if !errors.Is(err, fault.Invalid) {
			t.Errorf("kind of %v", err)
		}
		if s := err.Error(); len(text) <= MaxText && (!strings.Contains(s, " [at ") || !strings.HasSuffix(s, "]")) {
			t.Errorf("%q has no place", s)
		}
	})
}
