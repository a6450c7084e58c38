package main

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/trestledb/trestle/conformance/target"
)

// A testCluster is etcd in this process and the other processes of a cluster.
type testCluster struct {
	t         *testing.T
	dir       string
	etcd      string
	closeEtcd func()
	ttl       time.Duration
	store     string
	extra     func(server string) []string // more flags of a tablet server; may be nil
	secure    []string                     // more flags of every process
	servers   map[string]*proc
	masters   map[string]*proc
	// masterHTTP are the addresses of metrics and health of masters that have some.
	masterHTTP map[string]string
	addrs      map[string]string // of the Bigtable API, by server
	addrsHTTP  map[string]string // of metrics and health, of servers that extra gives an http-listen
}

// newCluster returns a cluster of which nothing runs yet. A busy machine outlives its ttl.
func newCluster(t *testing.T) *testCluster {
	c := &testCluster{t: t, dir: t.TempDir(), ttl: target.Patience, servers: map[string]*proc{}, masters: map[string]*proc{}, addrs: map[string]string{}, addrsHTTP: map[string]string{}}
	c.store = "file://" + filepath.Join(c.dir, "store")
	return c
}

// mortal is for a cluster whose processes are killed: tests wait for the end of their sessions.
func mortal(c *testCluster) { c.ttl = 6 * time.Second }

// startCluster runs masters and n servers, which change may give other settings.
func startCluster(t *testing.T, n int, change ...func(*testCluster)) *testCluster {
	t.Helper()
	c := newCluster(t)
	for _, f := range change {
		f(c)
	}
	e, err := startEtcd(filepath.Join(c.dir, "etcd"), "127.0.0.1:0", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c.closeEtcd = sync.OnceFunc(e.Close)
	t.Cleanup(c.closeEtcd)
	c.etcd = "http://" + e.Clients[0].Addr().String()
	for i := range 2 {
		c.startMaster(fmt.Sprintf("master-%d", i+1))
	}
	for i := range n {
		c.launch(fmt.Sprintf("server-%d", i+1))
	}
	for i := range n {
		c.ready(fmt.Sprintf("server-%d", i+1))
	}
	return c
}

// logs shows what the processes have to say.
func (c *testCluster) logs() {
	for _, m := range []map[string]*proc{c.masters, c.servers} {
		for name, p := range m {
			c.t.Logf("%s:\n%s", name, p.stderr)
		}
	}
}

func (c *testCluster) args(args ...string) []string {
	return append(append(args, c.secure...), "--etcd="+c.etcd, "--cluster=test", "--ttl="+c.ttl.String(), "--memory=128MiB")
}

func (c *testCluster) startMaster(name string) {
	c.t.Helper()
	c.masters[name] = startTrestle(c.t, "real", c.dir, c.args("master", "--name="+name, "--http-listen="+cmp.Or(c.masterHTTP[name], "off"), "--store="+c.store)...)
}

func (c *testCluster) launch(name string) {
	c.t.Helper()
	args := c.args("tabletserver", "--name="+name, "--emulator", "--listen=127.0.0.1:0", "--http-listen=off",
		"--cluster-listen=127.0.0.1:0", "--store="+c.store, "--data-dir="+filepath.Join(c.dir, name))
	if c.extra != nil {
		args = append(args, c.extra(name)...)
	}
	c.servers[name] = startTrestle(c.t, "real", c.dir, args...)
}

func (c *testCluster) ready(name string) {
	c.t.Helper()
	c.addrs[name] = c.servers[name].line(announcedAPI)
	if c.extra != nil && slices.ContainsFunc(c.extra(name), func(arg string) bool { return strings.HasPrefix(arg, "--http-listen") }) {
		c.addrsHTTP[name] = c.servers[name].line("metrics and health   ")
	}
}

// run runs a command that asks the cluster, which has to work, and returns what it
// prints.
func (c *testCluster) run(args ...string) string {
	c.t.Helper()
	p := startTrestle(c.t, "real", c.dir, append(slices.Clone(args), "--etcd="+c.etcd, "--cluster=test")...)
	out, code, _ := p.exit()
	if code != 0 {
		c.t.Fatalf("%v: exit code %d\n%s%s", args, code, out, p.stderr)
	}
	return out
}

// A workload writes rows and reads them back: each writer has rows of its own,
// each with two cells that are always written together.
type workload struct {
	t    *testing.T
	tbl  *bigtable.Table
	stop chan struct{}
	done sync.WaitGroup

	failed atomic.Int64
	mu     sync.Mutex
	first  error
	acked  map[string]int64 // newest acknowledged value of a row
	tried  map[string]int64 // newest that was sent
	ops    atomic.Int64
}

const workers, rowsEach = 6, 8

func startWorkload(t *testing.T, tbl *bigtable.Table) *workload {
	w := &workload{t: t, tbl: tbl, stop: make(chan struct{}), acked: map[string]int64{}, tried: map[string]int64{}}
	for n := range workers {
		w.done.Go(func() { w.run(n) })
	}
	return w
}

func rowKey(worker, i int) string { return fmt.Sprintf("%c-%d-%d", 'a'+byte(i*3), worker, i) }

func (w *workload) run(n int) {
	for i := 1; ; i++ {
		select {
		case <-w.stop:
			return
		default:
		}
		key := rowKey(n, i%rowsEach)
		w.mu.Lock()
		w.tried[key] = int64(i)
		want := w.acked[key]
		w.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		err := w.write(ctx, key, int64(i))
		if err == nil {
			w.mu.Lock()
			w.acked[key] = int64(i)
			w.mu.Unlock()
			want = int64(i)
			w.ops.Add(1)
		} else {
			w.fail(fmt.Errorf("write %s: %w", key, err))
		}
		got, rerr := w.read(ctx, key)
		switch {
		case rerr != nil:
			w.fail(fmt.Errorf("read %s: %w", key, rerr))
		case got < want || got > int64(i):
			w.t.Errorf("row %s has %d, acknowledged was %d, sent %d", key, got, want, i)
		}
		cancel()
	}
}

func (w *workload) fail(err error) {
	w.failed.Add(1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.first == nil {
		w.first = err
	}
}

func (w *workload) write(ctx context.Context, key string, v int64) error {
	m := bigtable.NewMutation()
	text := []byte(strconv.FormatInt(v, 10))
	m.Set("f", "a", bigtable.Timestamp(v*1000), text)
	m.Set("f", "b", bigtable.Timestamp(v*1000), text)
	return w.tbl.Apply(ctx, key, m)
}

// read returns the value of a row, which is whole.
func (w *workload) read(ctx context.Context, key string) (int64, error) {
	r, err := w.tbl.ReadRow(ctx, key, bigtable.RowFilter(bigtable.LatestNFilter(1)))
	if err != nil {
		return 0, err
	}
	cells := r["f"]
	if len(cells) == 0 {
		return 0, nil
	}
	if len(cells) != 2 || string(cells[0].Value) != string(cells[1].Value) {
		return 0, fmt.Errorf("the row is torn: %v", cells)
	}
	return strconv.ParseInt(string(cells[0].Value), 10, 64)
}

// end stops the writers and reads all rows back with a scan.
func (w *workload) end() {
	w.t.Helper()
	close(w.stop)
	w.done.Wait()
	found := map[string]int64{}
	err := w.tbl.ReadRows(context.Background(), bigtable.InfiniteRange(""), func(r bigtable.Row) bool {
		cells := r["f"]
		if len(cells) != 2 || string(cells[0].Value) != string(cells[1].Value) {
			w.t.Errorf("row %s is torn: %v", r.Key(), cells)
			return true
		}
		v, err := strconv.ParseInt(string(cells[0].Value), 10, 64)
		if err != nil {
			w.t.Error(err)
		}
		found[r.Key()] = v
		return true
	}, bigtable.RowFilter(bigtable.LatestNFilter(1)))
	if err != nil {
		w.t.Error(err)
	}
	for key, want := range w.acked {
		if got := found[key]; got < want || got > w.tried[key] {
			w.t.Errorf("row %s has %d in the end, acknowledged was %d, sent %d", key, got, want, w.tried[key])
		}
	}
}

// progress waits until each worker has written all its rows again.
func (w *workload) progress() {
	w.t.Helper()
	start := w.ops.Load()
	for limit := time.Now().Add(60 * time.Second); w.ops.Load() < start+3*workers*rowsEach; {
		if time.Now().After(limit) {
			w.t.Fatalf("the writers do not get on: %d writes, first error %v", w.ops.Load()-start, w.first)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// table makes a table whose rows are on all servers.
func (c *testCluster) table(addr string) *bigtable.Table {
	c.t.Helper()
	admin, client := clients(c.t, addr)
	err := admin.CreateTableFromConf(c.t.Context(), &bigtable.TableConf{TableID: "table-of-test", SplitKeys: []string{"d", "g", "j", "m", "p", "s", "v"},
		Families: map[string]bigtable.GCPolicy{"f": bigtable.MaxVersionsPolicy(3)}})
	if err != nil {
		c.t.Fatal(err)
	}
	return client.Open("table-of-test")
}

// TestClusterCommands: splits, merges, flushes, compactions and the refusals.
func TestClusterCommands(t *testing.T) {
	if testing.Short() {
		t.Skip("starts six processes")
	}
	c := startCluster(t, 2)
	tbl := c.table(c.addrs["server-1"])
	w := startWorkload(t, tbl)
	w.progress()
	tablets := func() (ids []string) {
		for _, line := range strings.Split(c.run("cluster", "status", "--tablets"), "\n") {
			if f := strings.Fields(line); len(f) > 4 && slices.Contains(f, "open") && f[0] != "TABLE" {
				ids = append(ids, f[0])
			}
		}
		return ids[1:] // the first is METADATA's
	}
	before := tablets()
	if len(before) != 8 {
		t.Fatalf("tablets %v", before)
	}
	c.run("tablet", "split", before[0], "--key", "b")
	if n := len(tablets()); n != 9 {
		t.Errorf("%d tablets after a split", n)
	}
	c.run("tablet", "merge", before[2])
	c.run("tablet", "merge", tablets()[0])
	if n := len(tablets()); n != 7 {
		t.Errorf("%d tablets after two merges", n)
	}
	c.run("tablet", "flush", "--table=table-of-test", "--all")
	c.run("tablet", "compact", tablets()[0])
	w.progress()
	w.end()
	if n := w.failed.Load(); n > 0 {
		t.Errorf("%d calls failed, the first: %v", n, w.first)
	}
	for _, args := range [][]string{{"server", "drain", "no name"}, {"server", "drain", "typo"}, {"server", "undrain", "typo"}, {"tablet", "move", "1", "server-1"},
		{"tablet", "move", before[0], "server-9"}, {"tablet", "split"}, {"tablet", "dance"}, {"tablet", "merge", "zz"}} {
		p := startTrestle(t, "real", c.dir, append(args, "--etcd="+c.etcd, "--cluster=test")...)
		if out, code, _ := p.exit(); code == 0 || p.stderr.String() == "" {
			t.Errorf("%v: exit code %d\n%s%s", args, code, out, p.stderr)
		}
	}
}
