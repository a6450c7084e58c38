package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/tsuna/gohbase"
	"github.com/tsuna/gohbase/filter"
	"github.com/tsuna/gohbase/hrpc"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/lock/memory"
	"github.com/trestledb/trestle/cluster/node"
	"github.com/trestledb/trestle/compat/hbase/model"
	"github.com/trestledb/trestle/engine/loopback"
)

// TestHBaseServersForgotten: a process that serves HBase clients deletes the items of such
// processes that no session holds, and those of living ones stay.
func TestHBaseServersForgotten(t *testing.T) {
	ctx := t.Context()
	l := memory.New().Client(nil, nil)
	item := func(start uint64, port uint32) (string, []byte) {
		p := model.Place{Server: model.Server{Host: "h", Port: port, StartCode: start}}
		value, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		return catalog.HBasePrefix + p.String(), value
	}
	gone, value := item(1, 1)
	if _, err := l.Put(ctx, gone, value, 0); err != nil {
		t.Fatal(err)
	}
	session, err := l.NewSession(ctx, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close(context.WithoutCancel(ctx))
	living, value := item(2, 2)
	if _, err := session.Hold(ctx, living, value); err != nil {
		t.Fatal(err)
	}
	var got []model.Place
	join := joinHBase(&node.Node{Lock: l}, "", time.Minute, slog.New(slog.DiscardHandler))
	leave, err := join(ctx, model.Server{Host: "h", Port: 3, StartCode: 3}, func(places []model.Place) { got = places })
	if err != nil {
		t.Fatal(err)
	}
	defer leave()
	if len(got) != 2 || got[0].Port != 2 || got[1].Port != 3 {
		t.Errorf("the servers are %v", got)
	}
}

// hbaseMeta returns where the regions of a table are, as hbase:meta has it, and
// how many each server has.
func hbaseMeta(ctx context.Context, c gohbase.Client, table string) (map[string]int, error) {
	s, err := hrpc.NewScanRangeStr(ctx, "hbase:meta", table+",", table+"-")
	if err != nil {
		return nil, err
	}
	at := map[string]int{}
	rows := c.Scan(s)
	defer rows.Close()
	for {
		r, err := rows.Next()
		if errors.Is(err, io.EOF) {
			return at, nil
		}
		if err != nil {
			return nil, err
		}
		for _, cell := range r.Cells {
			if string(cell.Qualifier) == "server" {
				at[string(cell.Value)]++
			}
		}
	}
}

// hbaseCalls makes calls of each kind on rows of several servers.
func hbaseCalls(ctx context.Context, t *testing.T, c gohbase.Client) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	cell := func(v string) map[string]map[string][]byte {
		return map[string]map[string][]byte{"f": {"q": []byte(v)}}
	}
	get := func(key string) string {
		t.Helper()
		g, err := hrpc.NewGetStr(ctx, "t", key)
		must(err)
		r, err := c.Get(g)
		must(err)
		if len(r.Cells) == 0 {
			return ""
		}
		return string(r.Cells[0].Value)
	}
	for i := range 8 {
		key := fmt.Sprintf("%d-calls", i)
		inc, err := hrpc.NewIncStrSingle(ctx, "t", key, "f", "n", 5)
		must(err)
		n, err := c.Increment(inc)
		must(err)
		if n != 5 {
			t.Errorf("increment: %d", n)
		}
		p, err := hrpc.NewPutStr(ctx, "t", key, cell("b"))
		must(err)
		for _, want := range []bool{true, false} { // as long as there is no such cell
			ok, err := c.CheckAndPut(p, "f", "q", nil)
			must(err)
			if ok != want {
				t.Errorf("check and put: %v, want %v", ok, want)
			}
		}
		app, err := hrpc.NewAppStr(ctx, "t", key, cell("c"))
		must(err)
		if _, err := c.Append(app); err != nil {
			t.Fatal(err)
		}
		d, err := hrpc.NewDelStr(ctx, "t", key, map[string]map[string][]byte{"f": {"n": nil}})
		must(err)
		if _, err := c.Delete(d); err != nil {
			t.Fatal(err)
		}
		if got := get(key); got != "bc" {
			t.Errorf("%s holds %q", key, got)
		}
	}
	s, err := hrpc.NewScanRangeStr(ctx, "t", "", "", hrpc.Filters(filter.NewPrefixFilter([]byte("5"))))
	must(err)
	rows := c.Scan(s)
	if r, err := rows.Next(); err != nil || string(r.Cells[0].Row) != "5-calls" {
		t.Errorf("scan: %v, %v", r, err)
	}
	must(rows.Close())
	for i := range 8 {
		d, err := hrpc.NewDelStr(ctx, "t", fmt.Sprintf("%d-calls", i), nil)
		must(err)
		if _, err := c.Delete(d); err != nil {
			t.Fatal(err)
		}
	}
}

// TestClusterHBase: HBase clients of a cluster find its servers, and others when
// one dies.
func TestClusterHBase(t *testing.T) {
	if testing.Short() {
		t.Skip("starts seven processes")
	}
	logrus.SetOutput(io.Discard)
	addrs := map[string][2]string{}
	flags := func(name string) []string {
		return []string{"--hbase-listen=" + addrs[name][0], "--hbase-zookeeper-listen=" + addrs[name][1], "--hbase-instance=project/instance"}
	}
	var quorum []string
	for _, name := range []string{"server-1", "server-2", "server-3", "gateway-1"} {
		addrs[name] = [2]string{loopback.Addr(t), loopback.Addr(t)}
		quorum = append(quorum, addrs[name][1])
	}
	c := startCluster(t, 3, mortal, func(c *testCluster) { c.extra = flags })
	gateway := startTrestle(t, "real", c.dir, c.args(append([]string{"gateway", "--emulator", "--listen=127.0.0.1:0", "--http-listen=off",
		"--data-dir=" + c.dir + "/gateway-1"}, flags("gateway-1")...)...)...)
	gateway.line("export BIGTABLE_EMULATOR_HOST=")

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	admin := gohbase.NewAdminClient(quorum[3])
	var splits [][]byte
	for i := 1; i < 8; i++ {
		splits = append(splits, fmt.Appendf(nil, "%d", i))
	}
	if err := admin.CreateTable(hrpc.NewCreateTable(ctx, []byte("t"), map[string]map[string]string{"f": nil}, hrpc.SplitKeys(splits))); err != nil {
		t.Fatal(err)
	}
	client := gohbase.NewClient(strings.Join(quorum, ","))
	defer client.Close()

	address := func(name string) string { return addrs[name][0] }
	// Regions are where their tablets are, when all of these are open.
	var at map[string]int
	for limit := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
		var err error
		if at, err = hbaseMeta(ctx, client, "t"); err != nil {
			t.Fatal(err)
		}
		if at[address("server-1")] > 0 && at[address("server-2")] > 0 && at[address("server-3")] > 0 && at[address("gateway-1")] == 0 {
			break
		}
		if time.Now().After(limit) {
			t.Fatalf("the regions are at %v", at)
		}
	}

	t.Logf("the regions are at %v", at)
	hbaseCalls(ctx, t, client)

	const writers = 4
	var acked [writers]atomic.Int64
	var slowest [writers]atomic.Int64
	stop := make(chan struct{})
	var done sync.WaitGroup
	for w := range writers {
		done.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				start := time.Now()
				key := fmt.Sprintf("%d-%d-%d", i%8, w, i)
				p, err := hrpc.NewPutStr(ctx, "t", key, map[string]map[string][]byte{"f": {"q": []byte(key)}})
				if err == nil {
					_, err = client.Put(p)
				}
				if err != nil {
					t.Errorf("put %s: %v", key, err)
					return
				}
				g, err := hrpc.NewGetStr(ctx, "t", key)
				if err != nil {
					t.Error(err)
					return
				}
				r, err := client.Get(g)
				if err != nil || len(r.Cells) != 1 || string(r.Cells[0].Value) != key {
					t.Errorf("get %s: %v, %v", key, r, err)
					return
				}
				acked[w].Store(int64(i + 1))
				slowest[w].Store(max(slowest[w].Load(), int64(time.Since(start))))
			}
		})
	}
	progress := func() {
		t.Helper()
		for w := range acked {
			start := acked[w].Load()
			for limit := time.Now().Add(time.Minute); acked[w].Load() < start+40; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(limit) || t.Failed() {
					c.logs()
					t.Fatalf("the writers do not get on")
				}
			}
		}
	}
	progress()
	for _, name := range []string{"server-2", "server-1"} {
		for w := range slowest {
			slowest[w].Store(0)
		}
		c.servers[name].signal(syscall.SIGKILL)
		c.servers[name].exit()
		progress()
		longest := time.Duration(0)
		for w := range slowest {
			longest = max(longest, time.Duration(slowest[w].Load()))
		}
		t.Logf("after kill -9 of %s a put and a get took %v at most", name, longest)
		at, err := hbaseMeta(ctx, client, "t")
		if err != nil || at[address(name)] > 0 {
			t.Errorf("the regions are at %v, %v: the server at %s is dead", at, err, address(name))
		}
		c.launch(name)
		c.ready(name)
		progress()
	}
	// The gateway is one of those that answer, and goes in order.
	gateway.signal(syscall.SIGTERM)
	if _, code, _ := gateway.exit(); code != 0 {
		t.Errorf("gateway: exit code %d\n%s", code, gateway.stderr)
	}
	progress()
	close(stop)
	done.Wait()
	want := 0
	for w := range acked {
		want += int(acked[w].Load())
	}
	s, err := hrpc.NewScanStr(ctx, "t")
	if err != nil {
		t.Fatal(err)
	}
	rows, n := client.Scan(s), 0
	for {
		r, err := rows.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if string(r.Cells[0].Row) != string(r.Cells[0].Value) {
			t.Errorf("row %s holds %s", r.Cells[0].Row, r.Cells[0].Value)
		}
		n++
	}
	if n < want {
		t.Errorf("%d rows, %d were acknowledged", n, want)
	}
	t.Logf("%d rows", n)
}
