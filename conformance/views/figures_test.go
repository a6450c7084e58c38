package views

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
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

var (
	figureTime     = flag.Duration("views.figures", 0, "how long TestFigures measures each way; 0 leaves it out")
	figureTurns    = flag.Int("views.turns", 4, "how often TestFigures measures what it compares")
	figureProfiler = flag.String("views.profiler", "", "loopback `HOST:PORT` of the profiler of TestFigures' servers")
)

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
	return serve(t, instance, false, flags...)
}

// serve is emulator, of a cluster of processes if that is asked for.
func serve(t *testing.T, instance string, cluster bool, flags ...string) (*target.Server, *grpc.ClientConn, *bigtable.AdminClient, *bigtable.Client) {
	t.Helper()
	ctx := t.Context()
	p := target.Process{Binary: os.Getenv(target.BinaryEnv), Dir: t.TempDir(), Cluster: cluster, Args: append(flags, "--emulator")}
	if !cluster {
		p.HTTP = loopback.Addr(t)
	}
	s, err := target.Start(ctx, p)
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

// TestFigures measures what views cost: writers of their source, their lag, backfills, what
// goes on beside those, and reads.
func TestFigures(t *testing.T) {
	if *figureTime == 0 || os.Getenv(target.BinaryEnv) == "" {
		t.Skip("-views.figures is 0, or there is no program")
	}
	bulk, single := load{clients: 8, batch: 100}, load{clients: 64, batch: 1}
	moderate := bulk
	moderate.rate = 50_000
	t.Run("writes", func(t *testing.T) { figuresOfWrites(t, bulk, false) })
	t.Run("overwrites", func(t *testing.T) { figuresOfWrites(t, bulk, true) })
	t.Run("singleWrites", func(t *testing.T) { figuresOfWrites(t, single, false) })
	t.Run("singleOverwrites", func(t *testing.T) { figuresOfWrites(t, single, true) })
	t.Run("moderateWrites", func(t *testing.T) { figuresOfWrites(t, moderate, false) })
	t.Run("moderateOverwrites", func(t *testing.T) { figuresOfWrites(t, moderate, true) })
	t.Run("lag", func(t *testing.T) { figuresOfLag(t, newFigures(t, false)) })
	t.Run("lagInCluster", func(t *testing.T) { figuresOfLag(t, newFigures(t, true)) })
	t.Run("backfill", figuresOfBackfills)
	t.Run("beside", figuresBesideBackfills)
	t.Run("reads", figuresOfReads)
}

// figures are a server and what measures it.
type figures struct {
	s     *target.Server
	conn  *grpc.ClientConn
	admin *bigtable.AdminClient
	c     *bigtable.Client
}

const figuresInstance = "projects/p/instances/figures"

func newFigures(t *testing.T, cluster bool) *figures {
	var flags []string
	if *figureProfiler != "" && !cluster {
		flags = append(flags, "--debug-listen="+*figureProfiler)
	}
	s, conn, admin, c := serve(t, "figures", cluster, flags...)
	return &figures{s, conn, admin, c}
}

// table creates a table.
func (f *figures) table(t *testing.T, name string, splits ...string) {
	t.Helper()
	if err := f.admin.CreateTableFromConf(t.Context(), &bigtable.TableConf{TableID: name, SplitKeys: splits, Families: map[string]bigtable.GCPolicy{"f": bigtable.MaxVersionsPolicy(1)}}); err != nil {
		t.Fatal(err)
	}
}

// groups is a view that counts and sums by group.
func groups(id, table string) *View {
	return &View{ID: id, Columns: "_key, n, total", Query: "SELECT f['group'] AS _key, COUNT(*) AS n, SUM(TO_INT64(f['value'])) AS total FROM " + table + " WHERE f['group'] IS NOT NULL GROUP BY _key"}
}

func (f *figures) create(t *testing.T, v *View) {
	t.Helper()
	if err := v.Create(t.Context(), f.conn, figuresInstance); err != nil {
		t.Fatal(err)
	}
}

// caughtUp returns when a view shows all that was written.
func (f *figures) caughtUp(t *testing.T, v *View) {
	t.Helper()
	if err := v.Wait(t.Context(), strings.TrimSuffix(strings.TrimPrefix(f.s.REST, "http://"), "/v2/"), figuresInstance); err != nil {
		t.Fatal(err)
	}
}

// rest returns when the server has nothing left to do, which may take a minute.
func (f *figures) rest(t *testing.T) {
	end := time.Now().Add(time.Minute)
	for before, idle := processor(t, f.s.Pid), 0; idle < 3; {
		if time.Now().After(end) {
			t.Fatal("the server has been busy for a minute, with nothing to do")
		}
		time.Sleep(100 * time.Millisecond)
		now := processor(t, f.s.Pid)
		if idle++; now-before > 10*time.Millisecond {
			idle = 0
		}
		before = now
	}
}

// A load is what clients do until d is over, or until they have done rows, whichever is not 0.
type load struct {
	table          string
	d              time.Duration
	rows           int
	clients, batch int
	rate           int // rows a second; 0: no bound
	first          int // of each client's rows
	version        int // what is written depends on it
}

// run has clients call until the load is done, and returns how many rows that were, how
// long it took, and how long each call, ascending.
func (l load) run(call func(client, n int) error) (rows int, took time.Duration, calls []time.Duration, err error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	begin := time.Now()
	for w := range l.clients {
		wg.Go(func() {
			n := 0
			var mine []time.Duration
			var failed error
			for ; failed == nil && (l.d == 0 || time.Since(begin) < l.d) && (l.rows == 0 || n < l.rows/l.clients); n += l.batch {
				if l.rate > 0 {
					time.Sleep(time.Until(begin.Add(time.Duration(n*l.clients+w*l.batch) * time.Second / time.Duration(l.rate))))
				}
				start := time.Now()
				failed = call(w, n)
				mine = append(mine, time.Since(start))
			}
			mu.Lock()
			defer mu.Unlock()
			rows, calls, err = rows+n, append(calls, mine...), errors.Join(err, failed)
		})
	}
	wg.Wait()
	slices.Sort(calls)
	return rows, time.Since(begin), calls, err
}

var padding = bytes.Repeat([]byte("0123456789"), 10)

// write writes rows.
func (f *figures) write(t *testing.T, l load) (rows int, took time.Duration, calls []time.Duration) {
	t.Helper()
	rows, took, calls, err := l.run(func(client, n int) error {
		keys, muts := make([]string, l.batch), make([]*bigtable.Mutation, l.batch)
		for i := range keys {
			k := l.first + n + i
			m := bigtable.NewMutation()
			m.Set("f", "group", bigtable.Now(), fmt.Appendf(nil, "group%d", k%100))
			m.Set("f", "value", bigtable.Now(), binary.BigEndian.AppendUint64(nil, uint64(k+l.version)))
			m.Set("f", "rest", bigtable.Now(), padding)
			keys[i], muts[i] = fmt.Sprintf("%02d-%08d", client, k), m
		}
		if l.batch == 1 {
			return f.c.Open(l.table).Apply(t.Context(), keys[0], muts[0])
		}
		failed, err := f.c.Open(l.table).ApplyBulk(t.Context(), keys, muts)
		return errors.Join(append(failed, err)...)
	})
	if err != nil {
		t.Fatal(err)
	}
	return rows, took, calls
}

// read reads rows that write has written, one a call.
func (f *figures) read(t *testing.T, l load) (rows int, took time.Duration, calls []time.Duration) {
	t.Helper()
	rows, took, calls, err := l.run(func(client, n int) error {
		r, err := f.c.Open(l.table).ReadRow(t.Context(), fmt.Sprintf("%02d-%08d", client, (client+17*n)%5000))
		if err == nil && len(r) == 0 {
			err = errors.New("there is no row")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return rows, took, calls
}

// at returns a quantile of times, which ascend.
func at(d []time.Duration, p float64) time.Duration {
	return d[min(int(p*float64(len(d))), len(d)-1)]
}

// middle returns the median of values, which ascend.
func middle(v []float64) float64 { return (v[(len(v)-1)/2] + v[len(v)/2]) / 2 }

// figuresOfWrites writes to a table with one aggregate view and to one without, in turns that begin
// when the server is at rest. What is done first in a turn is second in the next. Each turn has
// new rows, or changes those of the turns before and goes on with new ones.
func figuresOfWrites(t *testing.T, l load, again bool) {
	f := newFigures(t, false)
	f.table(t, "plain")
	f.table(t, "viewed")
	v := groups("live", "viewed")
	f.create(t, v)
	var rates, tails []float64 // of the viewed table's, of each turn, of the other's
	for turn := range *figureTurns {
		first := 0
		if !again {
			first = turn * 10_000_000
		}
		names := []string{"plain", "viewed"}
		if turn%2 == 1 {
			slices.Reverse(names)
		}
		rate, tail := map[string]float64{}, map[string]float64{}
		for _, name := range names {
			f.rest(t)
			before := processor(t, f.s.Pid)
			l.table, l.d, l.first, l.version = name, *figureTime, first, turn
			rows, took, c := f.write(t, l)
			acked := processor(t, f.s.Pid) - before
			f.caughtUp(t, v)
			all := processor(t, f.s.Pid) - before
			rate[name], tail[name] = float64(rows)/took.Seconds(), at(c, 0.99).Seconds()
			t.Logf("turn %d, %s: %.0f rows/s; p50 %v, p99 %v; %.1f µs of processor a row until acknowledged, %.1f until the view had caught up", turn+1, name,
				rate[name], at(c, 0.5), at(c, 0.99), float64(acked.Microseconds())/float64(rows), float64(all.Microseconds())/float64(rows))
		}
		rates, tails = append(rates, rate["viewed"]/rate["plain"]), append(tails, tail["viewed"]/tail["plain"])
	}
	slices.Sort(rates)
	slices.Sort(tails)
	t.Logf("with a view, of the turns without: rows %.2f, p99 %.2f; medians %.2f and %.2f", rates, tails, middle(rates), middle(tails))
	if n, err := v.Check(t.Context(), f.c); err != nil || n != 100 {
		t.Errorf("%d groups, %v", n, err)
	}
}

// figuresOfLag measures the lag of a view at two rates of writes, and without a bound.
func figuresOfLag(t *testing.T, f *figures) {
	f.table(t, "viewed", "02", "04", "06")
	v := groups("live", "viewed")
	f.create(t, v)
	for i, rate := range []int{5000, 20_000, 0} {
		f.rest(t)
		done, stop := context.WithCancel(t.Context())
		var lags []time.Duration
		var wg sync.WaitGroup
		wg.Go(func() {
			for done.Err() == nil {
				lags = append(lags, lag(t, f.s.REST))
				time.Sleep(20 * time.Millisecond)
			}
		})
		rows, took, calls := f.write(t, load{table: "viewed", d: *figureTime, clients: 8, batch: 50, rate: rate, version: i})
		stop()
		wg.Wait()
		slices.Sort(lags)
		t.Logf("%.0f rows/s of %d asked for, p99 %v: lag p50 %v, p99 %v, max %v (%d looks)", float64(rows)/took.Seconds(), rate, at(calls, 0.99), at(lags, 0.5), at(lags, 0.99), lags[len(lags)-1], len(lags))
		f.caughtUp(t, v)
	}
	if n, err := v.Check(t.Context(), f.c); err != nil || n != 100 {
		t.Errorf("%d groups, %v", n, err)
	}
}

// figureRows is of how many rows backfills are.
const figureRows = 1_000_000

// figuresOfBackfills makes views of each form of rows that are there, each three times.
func figuresOfBackfills(t *testing.T) {
	f := newFigures(t, false)
	f.table(t, "plain")
	f.write(t, load{table: "plain", rows: figureRows, clients: 8, batch: 100})
	for _, v := range []*View{
		groups("late", "plain"),
		{ID: "sketch", Query: "SELECT f['group'] AS _key, HLL_COUNT.INIT(f['value']) AS n FROM plain GROUP BY _key"},
		{ID: "index", Query: "SELECT f['group'] AS g, _key, f['value'] AS v FROM plain ORDER BY g, _key"},
	} {
		for range 3 {
			f.rest(t)
			before, begin := processor(t, f.s.Pid), time.Now()
			f.create(t, v)
			t.Logf("backfill, %s: %.0f rows/s; %.2f µs of processor a row", v.ID, figureRows/time.Since(begin).Seconds(), float64((processor(t, f.s.Pid)-before).Microseconds())/figureRows)
			if _, err := adminpb.NewBigtableInstanceAdminClient(f.conn).DeleteMaterializedView(t.Context(), &adminpb.DeleteMaterializedViewRequest{Name: figuresInstance + "/materializedViews/" + v.ID}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// figuresBesideBackfills writes and reads rows of a source, without and with views that are made
// meanwhile, one after another.
func figuresBesideBackfills(t *testing.T) {
	f := newFigures(t, false)
	f.table(t, "plain")
	f.write(t, load{table: "plain", rows: figureRows, clients: 8, batch: 100})
	for _, what := range []string{"rows written", "rows read"} {
		do, l := f.write, load{table: "plain", d: *figureTime, clients: 8, batch: 100}
		if what == "rows read" {
			do, l.batch = f.read, 1
		}
		f.rest(t)
		n, took, calls := do(t, l)
		before := float64(n) / took.Seconds()
		t.Logf("before a backfill: %.0f %s/s; p50 %v, p99 %v", before, what, at(calls, 0.5), at(calls, 0.99))
		f.rest(t)
		made, stop := 0, make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				v := groups(fmt.Sprintf("%s-%d", what[5:], made), "plain")
				if err := v.Create(t.Context(), f.conn, figuresInstance); err != nil {
					t.Error(err)
					return
				}
				made++
				if _, err := adminpb.NewBigtableInstanceAdminClient(f.conn).DeleteMaterializedView(t.Context(), &adminpb.DeleteMaterializedViewRequest{Name: figuresInstance + "/materializedViews/" + v.ID}); err != nil {
					t.Error(err)
					return
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		})
		n, took, calls = do(t, l)
		close(stop)
		wg.Wait()
		t.Logf("beside backfills, %d meanwhile: %.0f %s/s, %.2f of before; p50 %v, p99 %v", made, float64(n)/took.Seconds(), what, float64(n)/took.Seconds()/before, at(calls, 0.5), at(calls, 0.99))
	}
}

// figuresOfReads reads a group of a view and a row of its source, in turns.
func figuresOfReads(t *testing.T) {
	f := newFigures(t, false)
	f.table(t, "plain")
	f.create(t, groups("live", "plain"))
	f.write(t, load{table: "plain", rows: figureRows / 10, clients: 8, batch: 100})
	f.rest(t)
	for turn := range *figureTurns {
		for what, read := range map[string]func() (bigtable.Row, error){
			"a group": func() (bigtable.Row, error) {
				return f.c.OpenMaterializedView("live").ReadRow(t.Context(), "group7")
			},
			"a row": func() (bigtable.Row, error) { return f.c.Open("plain").ReadRow(t.Context(), "01-00000007") },
		} {
			const n = 2000
			before := processor(t, f.s.Pid)
			for range n {
				if r, err := read(); err != nil || len(r) == 0 {
					t.Fatal(r, err)
				}
			}
			t.Logf("turn %d: ReadRow of %s: %.1f µs of processor", turn+1, what, float64((processor(t, f.s.Pid)-before).Microseconds())/n)
		}
	}
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
