package views

import (
	"bytes"
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/trestledb/trestle/conformance/target"
	"github.com/trestledb/trestle/engine/loopback"
)

var figureTime = flag.Duration("views.figures", 0, "how long TestFigures measures each way; 0 leaves it out")

// processor returns the processor time that a process has used.
func processor(t *testing.T, pid int) time.Duration {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	user, _ := strconv.Atoi(f[11])
	system, _ := strconv.Atoi(f[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

// emulator starts a server with more flags, and returns a connection and the clients of an instance.
func emulator(t *testing.T, instance string, flags ...string) (*target.Server, *grpc.ClientConn, *bigtable.AdminClient, *bigtable.Client) {
	t.Helper()
	ctx := t.Context()
	s, err := target.Start(ctx, target.Process{Binary: os.Getenv(target.BinaryEnv), Dir: t.TempDir(), HTTP: loopback.Addr(t), Args: append(flags, "--emulator")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Kill() })
	conn, err := grpc.NewClient(s.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	admin, err := bigtable.NewAdminClient(ctx, "p", instance, option.WithGRPCConn(conn))
	if err != nil {
		t.Fatal(err)
	}
	c, err := bigtable.NewClientWithConfig(ctx, "p", instance, bigtable.ClientConfig{MetricsProvider: bigtable.NoopMetricsProvider{}}, option.WithGRPCConn(conn))
	if err != nil {
		t.Fatal(err)
	}
	return s, conn, admin, c
}

// TestFigures measures, in turns, writes to a table with one aggregate view and to one
// without, then the view's lag, a backfill, and reads of a group and of a row.
func TestFigures(t *testing.T) {
	if *figureTime == 0 || os.Getenv(target.BinaryEnv) == "" {
		t.Skip("-views.figures is 0, or there is no program")
	}
	ctx := t.Context()
	s, conn, admin, c := emulator(t, "figures")
	const instance = "projects/p/instances/figures"
	query := func(table string) string {
		return "SELECT f['group'] AS _key, COUNT(*) AS n, SUM(TO_INT64(f['value'])) AS total FROM " + table + " WHERE f['group'] IS NOT NULL GROUP BY _key"
	}
	for _, name := range []string{"plain", "viewed"} {
		if err := admin.CreateTableFromConf(ctx, &bigtable.TableConf{TableID: name, Families: map[string]bigtable.GCPolicy{"f": bigtable.MaxVersionsPolicy(1)}}); err != nil {
			t.Fatal(err)
		}
	}
	of := View{ID: "live", Columns: "_key, n, total", Query: query("viewed")}
	if err := of.Create(ctx, conn, instance); err != nil {
		t.Fatal(err)
	}
	padding := bytes.Repeat([]byte("0123456789"), 10)
	// write writes rows in requests of a size, until d is over, or so many a second.
	write := func(table string, d time.Duration, clients, batch, rate int) (rows int, calls []time.Duration) {
		var mu sync.Mutex
		var wg sync.WaitGroup
		begin := time.Now()
		for w := range clients {
			wg.Go(func() {
				n := 0
				var mine []time.Duration
				for ; time.Since(begin) < d; n += batch {
					if rate > 0 {
						time.Sleep(time.Until(begin.Add(time.Duration(n) * time.Second * time.Duration(clients) / time.Duration(rate))))
					}
					var keys []string
					var muts []*bigtable.Mutation
					for i := range batch {
						m := bigtable.NewMutation()
						k := n + i
						m.Set("f", "group", bigtable.Now(), fmt.Appendf(nil, "group%d", k%100))
						m.Set("f", "value", bigtable.Now(), binary.BigEndian.AppendUint64(nil, uint64(k)))
						m.Set("f", "rest", bigtable.Now(), padding)
						keys, muts = append(keys, fmt.Sprintf("%02d-%08d", w, k)), append(muts, m)
					}
					start := time.Now()
					if failed, err := c.Open(table).ApplyBulk(ctx, keys, muts); err != nil || len(failed) > 0 {
						t.Error(failed, err)
						return
					}
					mine = append(mine, time.Since(start))
				}
				mu.Lock()
				defer mu.Unlock()
				rows, calls = rows+n, append(calls, mine...)
			})
		}
		wg.Wait()
		slices.Sort(calls)
		return rows, calls
	}
	caughtUp := func(v *View) {
		t.Helper()
		if err := v.Wait(ctx, strings.TrimSuffix(strings.TrimPrefix(s.REST, "http://"), "/v2/"), instance); err != nil {
			t.Fatal(err)
		}
	}
	at := func(d []time.Duration, p float64) time.Duration { return d[min(int(p*float64(len(d))), len(d)-1)] }
	for turn := range 3 {
		for _, name := range []string{"plain", "viewed"} {
			before := processor(t, s.Pid)
			rows, calls := write(name, *figureTime, 8, 100, 0)
			acked := processor(t, s.Pid) - before
			caughtUp(&of)
			all := processor(t, s.Pid) - before
			t.Logf("turn %d, %s: %.0f rows/s; p50 %v, p99 %v; %.1f µs of processor a row until acknowledged, %.1f until the view had caught up", turn+1, name,
				float64(rows)/figureTime.Seconds(), at(calls, 0.5), at(calls, 0.99), float64(acked.Microseconds())/float64(rows), float64(all.Microseconds())/float64(rows))
		}
	}
	for _, rate := range []int{5000, 20_000} {
		done, stop := context.WithCancel(ctx)
		var lags []time.Duration
		var wg sync.WaitGroup
		wg.Go(func() {
			for done.Err() == nil {
				lags = append(lags, lag(t, s.REST))
				time.Sleep(20 * time.Millisecond)
			}
		})
		rows, _ := write("viewed", *figureTime, 8, 50, rate)
		stop()
		wg.Wait()
		slices.Sort(lags)
		t.Logf("%.0f rows/s of %d asked for: lag p50 %v, p99 %v, max %v (%d looks)", float64(rows)/figureTime.Seconds(), rate, at(lags, 0.5), at(lags, 0.99), lags[len(lags)-1], len(lags))
	}
	caughtUp(&of)
	if n, err := of.Check(ctx, c); err != nil || n != 100 {
		t.Errorf("%d groups, %v", n, err)
	}
	total := 0
	if err := Rows(ctx, c, "SELECT COUNT(*) FROM plain", func(r string) { total, _ = strconv.Atoi(r) }); err != nil {
		t.Fatal(err)
	}
	late := View{ID: "late", Columns: "_key, n, total", Query: query("plain")}
	index := View{ID: "index", Query: "SELECT f['group'] AS g, _key, f['value'] AS v FROM plain ORDER BY g, _key"}
	sketch := View{ID: "sketch", Query: "SELECT f['group'] AS _key, HLL_COUNT.INIT(f['value']) AS n FROM plain GROUP BY _key"}
	for _, v := range []*View{&index, &sketch, &late} {
		before, begin := processor(t, s.Pid), time.Now()
		if err := v.Create(ctx, conn, instance); err != nil {
			t.Fatal(err)
		}
		t.Logf("backfill, %s: %d rows, %.0f rows/s; %.2f µs of processor a row", v.ID, total, float64(total)/time.Since(begin).Seconds(), float64((processor(t, s.Pid)-before).Microseconds())/float64(total))
		if v == &late {
			break
		}
		if _, err := adminpb.NewBigtableInstanceAdminClient(conn).DeleteMaterializedView(ctx, &adminpb.DeleteMaterializedViewRequest{Name: instance + "/materializedViews/" + v.ID}); err != nil {
			t.Fatal(err)
		}
	}
	// Writers and readers of the source, without and with a second view that is being made.
	read := func(_ string, d time.Duration, clients, _, _ int) (n int, calls []time.Duration) {
		var mu sync.Mutex
		var wg sync.WaitGroup
		begin := time.Now()
		for w := range clients {
			wg.Go(func() {
				var mine []time.Duration
				for i := w; time.Since(begin) < d; i += 17 {
					start := time.Now()
					if r, err := c.Open("plain").ReadRow(ctx, fmt.Sprintf("%02d-%08d", w, i%5000)); err != nil || len(r) == 0 {
						t.Error(r, err)
						return
					}
					mine = append(mine, time.Since(start))
				}
				mu.Lock()
				defer mu.Unlock()
				n, calls = n+len(mine), append(calls, mine...)
			})
		}
		wg.Wait()
		slices.Sort(calls)
		return n, calls
	}
	for what, load := range map[string]func(string, time.Duration, int, int, int) (int, []time.Duration){"rows written": write, "rows read": read} {
		n, calls := load("plain", *figureTime, 8, 100, 0)
		t.Logf("before a backfill: %.0f %s/s; p50 %v, p99 %v", float64(n)/figureTime.Seconds(), what, at(calls, 0.5), at(calls, 0.99))
		caughtUp(&late)
		built := make(chan error)
		begin := time.Now()
		another := View{ID: "another-" + what[5:], Columns: "_key, n, total", Query: query("plain")}
		go func() { built <- another.Create(ctx, conn, instance) }()
		n, calls = 0, nil
		for done := false; !done; {
			m, more := load("plain", 200*time.Millisecond, 8, 100, 0)
			n, calls = n+m, append(calls, more...)
			select {
			case err := <-built:
				if done = true; err != nil {
					t.Fatal(err)
				}
			default:
			}
		}
		slices.Sort(calls)
		took := time.Since(begin)
		t.Logf("beside a backfill of %v: %.0f %s/s; p50 %v, p99 %v", took.Round(time.Millisecond), float64(n)/took.Seconds(), what, at(calls, 0.5), at(calls, 0.99))
	}
	for turn := range 2 {
		for what, read := range map[string]func() (bigtable.Row, error){
			"a group": func() (bigtable.Row, error) { return c.OpenMaterializedView("live").ReadRow(ctx, "group7") },
			"a row":   func() (bigtable.Row, error) { return c.Open("plain").ReadRow(ctx, "01-00000007") },
		} {
			const n = 2000
			before := processor(t, s.Pid)
			for range n {
				if r, err := read(); err != nil || len(r) == 0 {
					t.Fatal(r, err)
				}
			}
			t.Logf("turn %d: ReadRow of %s: %.1f µs of processor", turn+1, what, float64((processor(t, s.Pid)-before).Microseconds())/n)
		}
	}
	t.Log(fetch(t, strings.TrimSuffix(s.REST, "/v2/")+"/admin/views"))
}

func fetch(t *testing.T, url string) string {
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func lag(t *testing.T, rest string) time.Duration {
	_, after, _ := strings.Cut(fetch(t, strings.TrimSuffix(rest, "/v2/")+"/admin/views"), `"lag_seconds":`)
	n, _ := strconv.ParseFloat(strings.TrimSpace(after[:strings.IndexAny(after, ",}")]), 64)
	return time.Duration(n * float64(time.Second))
}
