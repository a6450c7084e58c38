package views

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/trestledb/trestle/conformance/target"
)

var manyViews = flag.Int("views.many", 0, "how many views TestMany makes; 0 leaves it out")

// manyTables is how many tables the views of TestMany are of.
const manyTables = 10

// TestMany makes many views of some tables, and measures how long each takes to create, and
// what the server costs with them: at rest, and for a row that is in a view of each.
func TestMany(t *testing.T) {
	if *manyViews == 0 || os.Getenv(target.BinaryEnv) == "" {
		t.Skip("-views.many is 0, or there is no program")
	}
	ctx := t.Context()
	s, conn, admin, c := emulator(t, "many")
	const instance = "projects/p/instances/many"
	for i := range manyTables {
		if err := admin.CreateTableFromConf(ctx, &bigtable.TableConf{TableID: fmt.Sprintf("t%d", i), Families: map[string]bigtable.GCPolicy{"f": bigtable.MaxVersionsPolicy(1)}}); err != nil {
			t.Fatal(err)
		}
	}
	var views []View
	var took []time.Duration
	began, cpu := time.Now(), processor(t, s.Pid)
	for i := range *manyViews {
		v := View{ID: fmt.Sprintf("v%d", i), Columns: "_key, n", Query: fmt.Sprintf("SELECT f['group'] AS _key, COUNT(*) AS n FROM t%d WHERE f['group'] IS NOT NULL GROUP BY _key", i%manyTables)}
		start := time.Now()
		if err := v.Create(ctx, conn, instance); err != nil {
			t.Fatalf("view %d: %v", i, err)
		}
		views, took = append(views, v), append(took, time.Since(start))
		if n := i + 1; n%100 == 0 {
			now := processor(t, s.Pid)
			last := slices.Sorted(slices.Values(took[n-100:]))
			t.Logf("views %d to %d: %v each, p50 %v, p99 %v; %v of processor each; %d MiB", n-99, n, time.Since(began)/100, last[50], last[99], (now-cpu)/100, resident(t, s.Pid)>>20)
			began, cpu = time.Now(), now
		}
	}
	time.Sleep(10 * time.Second)
	const rest = 20 * time.Second
	before := processor(t, s.Pid)
	time.Sleep(rest)
	t.Logf("at rest: %.3f of a processor; %d MiB", (processor(t, s.Pid)-before).Seconds()/rest.Seconds(), resident(t, s.Pid)>>20)
	before = processor(t, s.Pid)
	const rows = 1000
	for i := range manyTables {
		var keys []string
		var muts []*bigtable.Mutation
		for k := range rows {
			m := bigtable.NewMutation()
			m.Set("f", "group", bigtable.Now(), fmt.Appendf(nil, "group%d", k%100))
			keys, muts = append(keys, fmt.Sprintf("%08d", k)), append(muts, m)
		}
		if failed, err := c.Open(fmt.Sprintf("t%d", i)).ApplyBulk(ctx, keys, muts); err != nil || len(failed) > 0 {
			t.Fatal(failed, err)
		}
	}
	begin := time.Now()
	for i := range views {
		if err := views[i].Wait(ctx, strings.TrimSuffix(strings.TrimPrefix(s.REST, "http://"), "/v2/"), instance); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d rows in each table: all views have them after %v, and %v of processor", rows, time.Since(begin), processor(t, s.Pid)-before)
	for i := 0; i < len(views); i += max(1, len(views)/20) {
		if _, err := views[i].Check(ctx, c); err != nil {
			t.Error(err)
		}
	}
}

// resident returns the bytes of memory that a process has.
func resident(t *testing.T, pid int) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.ParseInt(string(bytes.Fields(b)[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}
