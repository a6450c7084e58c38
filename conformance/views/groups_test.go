package views

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/trestledb/trestle/conformance/target"
	"github.com/trestledb/trestle/engine/loopback"
	"github.com/trestledb/trestle/engine/matview"
)

var manyGroups = flag.Int("views.groups", 0, "how many groups the view of TestGroups has; 0 leaves it out")

// TestGroups makes a view of as many groups as its source has rows, and tells what that takes:
// live memory while it is made and afterwards, without and with it, and state.
func TestGroups(t *testing.T) {
	if *manyGroups == 0 || os.Getenv(target.BinaryEnv) == "" {
		t.Skip("-views.groups is 0, or there is no program")
	}
	ctx := t.Context()
	profiler := loopback.Addr(t)
	s, conn, admin, c := emulator(t, "groups", "--debug-listen="+profiler)
	const instance = "projects/p/instances/groups"
	if err := admin.CreateTableFromConf(ctx, &bigtable.TableConf{TableID: "source", Families: map[string]bigtable.GCPolicy{"f": bigtable.MaxVersionsPolicy(1)}}); err != nil {
		t.Fatal(err)
	}
	const batch, clients = 1000, 4
	var wg sync.WaitGroup
	for w := range clients {
		wg.Go(func() {
			for at := w * batch; at < *manyGroups; at += clients * batch {
				var keys []string
				var muts []*bigtable.Mutation
				for k := at; k < min(at+batch, *manyGroups); k++ {
					m := bigtable.NewMutation()
					m.Set("f", "group", bigtable.Now(), fmt.Appendf(nil, "group%08d", k))
					keys, muts = append(keys, fmt.Sprintf("%08d", k)), append(muts, m)
				}
				if failed, err := c.Open("source").ApplyBulk(ctx, keys, muts); err != nil || len(failed) > 0 {
					t.Error(failed, err)
					return
				}
			}
		})
	}
	wg.Wait()
	// heap returns the bytes of memory that live after a garbage collection.
	heap := func() int64 {
		text := fetch(t, "http://"+profiler+"/debug/pprof/heap?gc=1&debug=1")
		_, text, _ = strings.Cut(text, "# HeapAlloc = ")
		text, _, _ = strings.Cut(text, "\n")
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	v := View{ID: "groups", Columns: "_key, n", Query: "SELECT f['group'] AS _key, COUNT(*) AS n FROM source WHERE f['group'] IS NOT NULL GROUP BY _key"}
	before, begin, cpu := heap(), time.Now(), processor(t, s.Pid)
	built := make(chan error, 1)
	go func() { built <- v.Create(ctx, conn, instance) }()
	most := int64(0)
	for done := false; !done; {
		select {
		case err := <-built:
			if err != nil {
				t.Fatal(err)
			}
			done = true
		case <-time.After(time.Second):
		}
		most = max(most, heap())
	}
	t.Logf("%d groups: backfill in %v, %.1f µs of processor a row, a garbage collection each second included", *manyGroups,
		time.Since(begin).Round(time.Millisecond), float64((processor(t, s.Pid)-cpu).Microseconds())/float64(*manyGroups))
	// What memtables hold is in SSTables then.
	for _, table := range []string{"/materializedViews/groups", matview.StateName("/materializedViews/groups")} {
		compact := exec.CommandContext(ctx, os.Getenv(target.BinaryEnv), "tablet", "compact", "--all", "--table="+instance+table, "--admin="+strings.TrimSuffix(s.REST, "/v2/"))
		if out, err := compact.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	t.Logf("live memory: %d MiB before, %d MiB more at most while it was made, memtables included, %d MiB more after a compaction", before>>20, (most-before)>>20, (heap()-before)>>20)
	status := fetch(t, strings.TrimSuffix(s.REST, "/v2/")+"/admin/views")
	_, after, ok := strings.Cut(status, `"state_bytes":`)
	if !ok {
		t.Fatalf("no state_bytes: %s", status)
	}
	var state int64
	if _, err := fmt.Sscan(after, &state); err != nil {
		t.Fatal(err)
	}
	// The keys of row and group, a byte for each of version and two lengths.
	contributions := int64(*manyGroups) * (8 + 13 + 3)
	t.Logf("state of %d bytes for contributions of %d: %.2f", state, contributions, float64(state)/float64(contributions))
	if n, err := v.Check(ctx, c); err != nil || n != *manyGroups {
		t.Errorf("%d groups, %v", n, err)
	}
}
