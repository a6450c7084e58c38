package sql

import (
	"bytes"
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/trestledb/trestle/conformance/target"
	"github.com/trestledb/trestle/conformance/views"
)

var (
	serversRows  = flag.Int("sql.servers.rows", 0, "rows of TestServers, which is skipped if there are none")
	serversTurns = flag.Int("sql.servers.turns", 7, "how often TestServers asks each query")
)

// TestServers asks the same queries of the same rows of one tablet server that has one
// processor and of one that has two, and of one and of three that have one each. A gateway
// of its own is before each. It tells how long they take, what processor time each process
// has, and how many bytes the gateway reads: all that the servers send.
//
// On a machine with other work times by the clock say nothing. What two processors can give
// there is the processor time of the one server, in parts of what its successors need: half of
// all their time, or that of the busiest.
func TestServers(t *testing.T) {
	if *serversRows == 0 || os.Getenv(target.BinaryEnv) == "" {
		t.Skip("-sql.servers.rows or " + target.BinaryEnv + " is not set")
	}
	queries := aggregates(*serversRows)
	const processors = 2
	type figures struct{ clock, whole, busiest time.Duration }
	setups := []struct{ servers, processors, tablets int }{ // each second one is compared with the one before
		{1, 1, processors}, {1, processors, processors}, {1, 1, 6}, {3, 1, 6},
	}
	got := make([][]figures, len(setups))
	for n, setup := range setups {
		servers := setup.servers
		t.Run(fmt.Sprintf("%d servers with %d processors have %d tablets", servers, setup.processors, setup.tablets), func(t *testing.T) {
			t.Setenv("GOMAXPROCS", fmt.Sprint(setup.processors))
			c := target.ServeCluster(t, target.ClusterOptions{Servers: servers, Gateways: 1, TTL: target.Patience})
			client, admin := dial(t, c.Addrs[servers])
			size := load(t, client, admin, *serversRows, setup.tablets)
			for _, q := range queries {
				var times []time.Duration
				var read []int
				before := make([]time.Duration, servers+1)
				for turn := range *serversTurns + 2 {
					if turn == 2 { // the first two warm the servers
						for i := range before {
							before[i] = used(c.Pid(i))
						}
					}
					bytes, began := received(c.Pid(servers)), time.Now()
					if err := views.Rows(t.Context(), client, q, func(string) {}); err != nil {
						t.Fatal(err)
					}
					if turn >= 2 {
						times, read = append(times, time.Since(began)), append(read, received(c.Pid(servers))-bytes)
					}
				}
				slices.Sort(times)
				slices.Sort(read)
				mid := len(times) / 2
				f := figures{clock: times[mid]}
				var cpu []string
				for i := range before {
					own := (used(c.Pid(i)) - before[i]) / time.Duration(*serversTurns)
					cpu = append(cpu, own.Round(time.Millisecond).String())
					f.whole += own
					f.busiest = max(f.busiest, own/time.Duration(setup.processors))
				}
				got[n] = append(got[n], f)
				t.Logf("%s: %v; processor time of each server and the gateway %s; the gateway read %d bytes, %.3f %% of the table's %d",
					q, times[mid].Round(time.Millisecond), strings.Join(cpu, ", "), read[mid], 100*float64(read[mid])/float64(size), size)
				if read[mid] <= 0 || read[mid]*100 > size {
					t.Errorf("the gateway read %d bytes of a table of %d", read[mid], size)
				}
			}
		})
	}
	if t.Failed() {
		return
	}
	for i, q := range queries {
		for n := 1; n < len(setups); n += 2 {
			setup, one, f := setups[n], got[n-1][i], got[n][i]
			t.Logf("%s: %d servers with %d processors are %.2f times as fast as one with one, and can be %.2f times by their processor time", q, setup.servers, setup.processors,
				float64(one.clock)/float64(f.clock), float64(one.busiest)/float64(max(f.busiest, f.whole/processors)))
		}
	}
}

// aggregates returns the queries that are timed, over rows of load.
func aggregates(rows int) []string {
	return []string{
		"SELECT COUNT(*) FROM t",
		fmt.Sprintf("SELECT f['g'], COUNT(*), SUM(TO_INT64(f['n'])) FROM t WHERE TO_INT64(f['n']) < %d GROUP BY 1", rows/2),
	}
}

// load writes rows of 100 bytes in so many tablets, and returns how many bytes keys and
// values have.
func load(t testing.TB, client *bigtable.Client, admin *bigtable.AdminClient, rows, tablets int) (size int) {
	t.Helper()
	conf := &bigtable.TableConf{TableID: "t", ColumnFamilies: map[string]bigtable.Family{"f": {}}}
	key := func(i int) string { return fmt.Sprintf("row%09d", i) }
	for i := 1; i < tablets; i++ {
		conf.SplitKeys = append(conf.SplitKeys, key(i*rows/tablets))
	}
	if err := admin.CreateTableFromConf(t.Context(), conf); err != nil {
		t.Fatal(err)
	}
	payload := make([]byte, 68<<10)
	r := rand.NewChaCha8([32]byte{})
	_, _ = r.Read(payload)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	var wg sync.WaitGroup
	next := make(chan int)
	for range 4 {
		wg.Go(func() {
			for from := range next {
				var keys []string
				var muts []*bigtable.Mutation
				for i := from; i < min(from+5000, rows); i++ {
					m := bigtable.NewMutation()
					m.Set("f", "g", 1000, fmt.Append(nil, "group ", i%10))
					m.Set("f", "n", 1000, binary.BigEndian.AppendUint64(nil, uint64(i)))
					m.Set("f", "p", 1000, payload[i%(67<<10):][:68])
					keys, muts = append(keys, key(i)), append(muts, m)
				}
				if errs, err := client.Open("t").ApplyBulk(ctx, keys, muts); err != nil || errs != nil {
					cancel(fmt.Errorf("write rows: %w %v", err, errs))
				}
			}
		})
	}
	for from := 0; from < rows; from += 5000 {
		next <- from
	}
	close(next)
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		t.Fatal(err)
	}
	return rows * (12 + 7 + 8 + 68)
}

// used returns the processor time that a process has had.
func used(pid int) time.Duration {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 13 {
		return 0
	}
	var user, system int64 // in hundredths of a second
	_, _ = fmt.Sscan(f[11]+" "+f[12], &user, &system)
	return time.Duration(user+system) * 10 * time.Millisecond
}

// received returns how many bytes a process has read, from sockets too.
func received(pid int) (n int) {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	_, _ = fmt.Sscanf(string(b), "rchar: %d", &n)
	return n
}
