package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/cockroachdb/pebble/v2/vfs"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/trestledb/trestle/cluster/catalog"
	trestlelock "github.com/trestledb/trestle/cluster/lock"
	lock "github.com/trestledb/trestle/cluster/lock/etcd"
	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/engine/objectstore"
)

// kill ends all processes but etcd as kill -9 does.
func (c *testCluster) kill() {
	c.t.Helper()
	for _, m := range []map[string]*proc{c.masters, c.servers} {
		for name, p := range m {
			p.signal(os.Kill)
			p.exit()
			delete(m, name)
		}
	}
}

// again starts etcd on a directory, and what was killed.
func (c *testCluster) again(dir string, servers ...string) {
	c.t.Helper()
	e, err := startEtcd(dir, "127.0.0.1:0", "127.0.0.1:0")
	if err != nil {
		c.t.Fatal(err)
	}
	c.closeEtcd = sync.OnceFunc(e.Close)
	c.t.Cleanup(c.closeEtcd)
	c.etcd = "http://" + e.Clients[0].Addr().String()
	if len(servers) == 0 {
		return
	}
	c.startMaster("master-1")
	for _, name := range servers {
		c.launch(name)
	}
	for _, name := range servers {
		c.ready(name)
	}
}

// gateway starts one.
func (c *testCluster) gateway(etcd string) *proc {
	c.t.Helper()
	return startTrestle(c.t, "real", c.dir, "gateway", "--etcd="+etcd, "--cluster=test", "--emulator", "--listen=127.0.0.1:0", "--http-listen=off",
		"--memory=64MiB", "--data-dir="+filepath.Join(c.dir, "gateway"))
}

// refused waits until a process has ended because of the lock service's age.
func refused(t *testing.T, who string, p *proc, why string) {
	t.Helper()
	if out, code, _ := p.exit(); code != 1 || !strings.Contains(p.stderr.String(), why) {
		t.Fatalf("%s: exit code %d\n%s%s", who, code, out, p.stderr)
	}
}

// TestClusterRecover: an etcd that was restored from an older snapshot, or is
// empty, is noticed: nothing starts on it. `trestle cluster recover` gives it
// what the store knows, and every acknowledged row is there.
func TestClusterRecover(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a dozen processes")
	}
	c := startCluster(t, 2, mortal)
	acked := map[string]map[string]string{}
	write := func(tbl *bigtable.Table, name, value string) {
		t.Helper()
		if acked[name] == nil {
			acked[name] = map[string]string{}
		}
		for i := range 60 {
			key := fmt.Sprintf("%c%02d", 'a'+i%26, i)
			m := bigtable.NewMutation()
			m.Set("f", "q", bigtable.Now(), []byte(value))
			if err := tbl.Apply(t.Context(), key, m); err != nil {
				t.Fatal(err)
			}
			acked[name][key] = value
		}
	}
	read := func(client *bigtable.Client) {
		t.Helper()
		for name, want := range acked {
			got := map[string]string{}
			err := client.Open(name).ReadRows(t.Context(), bigtable.InfiniteRange(""), func(r bigtable.Row) bool {
				got[r.Key()] = string(r["f"][0].Value)
				return true
			}, bigtable.RowFilter(bigtable.LatestNFilter(1)))
			if err != nil {
				t.Fatal(err)
			}
			for k, v := range want {
				if got[k] != v {
					t.Fatalf("row %s of %s holds %q, %q was acknowledged", k, name, got[k], v)
				}
			}
		}
	}
	write(c.table(c.addrs["server-1"]), "table-of-test", "1")
	etcd, snapshot := filepath.Join(c.dir, "etcd"), filepath.Join(c.dir, "snapshot")
	c.kill()
	c.closeEtcd()
	if err := os.CopyFS(snapshot, os.DirFS(etcd)); err != nil {
		t.Fatal(err)
	}
	// What the snapshot does not know: new servers and their logs, a table, a
	// column family, splits, what was flushed and trimmed.
	c.again(etcd, "server-1", "server-2")
	admin, client := clients(t, c.addrs["server-1"])
	write(client.Open("table-of-test"), "table-of-test", "2")
	if err := admin.CreateTableFromConf(t.Context(), &bigtable.TableConf{TableID: "later", Families: map[string]bigtable.GCPolicy{"f": bigtable.NoGcPolicy()}}); err != nil {
		t.Fatal(err)
	}
	write(client.Open("later"), "later", "1")
	if err := admin.CreateColumnFamily(t.Context(), "table-of-test", "g"); err != nil {
		t.Fatal(err)
	}
	c.run("tablet", "flush", "--table=table-of-test", "--all")
	// Until the store has a copy of what it cannot tell itself.
	copied := func() {
		t.Helper()
		cl, err := clientv3.New(clientv3.Config{Endpoints: []string{c.etcd}, Logger: zap.NewNop()})
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		store, err := objectstore.OpenLocal(vfs.Default, strings.TrimPrefix(c.store, "file://"), objectstore.LocalOptions{Owner: "test"})
		if err != nil {
			t.Fatal(err)
		}
		copier := &catalog.Copier{Lock: lock.New([]*clientv3.Client{cl}, "trestle/test/"), Store: objectstore.Sub(store, "etcd")}
		for range 600 {
			time.Sleep(100 * time.Millisecond)
			items, _, err := copier.Lock.List(t.Context(), "")
			if err != nil {
				continue
			}
			cp, err := copier.Newest(t.Context())
			if err == nil && !slices.ContainsFunc(items, func(i trestlelock.Item) bool {
				return (strings.HasPrefix(i.Key, metastore.RootPrefix) || strings.HasPrefix(i.Key, catalog.TablesPrefix)) && !bytes.Equal(cp.Items[i.Key], i.Value)
			}) {
				return
			}
		}
		t.Fatal("the lock service is not copied")
	}
	copied()
	// A gateway has no store: of an etcd that leads to a server, but is older, the
	// server tells.
	old, err := startEtcd(filepath.Join(c.dir, "old"), "127.0.0.1:0", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	lockAt := func(etcd string) trestlelock.Service {
		cl, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd}, Logger: zap.NewNop()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cl.Close() })
		return lock.New([]*clientv3.Client{cl}, "trestle/test/")
	}
	oldURL := "http://" + old.Clients[0].Addr().String()
	items, _, err := lockAt(c.etcd).List(t.Context(), metastore.RootPrefix)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range items {
		if _, err := lockAt(oldURL).Put(t.Context(), i.Key, i.Value, 0); err != nil {
			t.Fatal(err)
		}
	}
	refused(t, "a gateway of an older etcd", c.gateway(oldURL), "is older than the store")
	old.Close()
	write(client.Open("later"), "later", "2")
	write(client.Open("table-of-test"), "table-of-test", "3")

	for i, restored := range []string{snapshot, filepath.Join(c.dir, "empty")} {
		c.kill()
		c.closeEtcd()
		c.again(restored)
		c.launch("server-1")
		refused(t, "a server", c.servers["server-1"], "is older than the store")
		delete(c.servers, "server-1")
		c.startMaster("master-1")
		refused(t, "a master", c.masters["master-1"], "is older than the store")
		delete(c.masters, "master-1")
		// Nobody tells this one, and nobody serves it.
		gateway := c.gateway(c.etcd)
		gateway.line("export BIGTABLE_EMULATOR_HOST=")
		store := "--store=" + c.store
		for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
			// The sessions of the snapshot go on for a while.
			out, code := c.try("cluster", "recover", store)
			if code == 1 && strings.Contains(out, "Give --yes") {
				break
			}
			if code != 1 || !strings.Contains(out, "is registered") || time.Now().After(deadline) {
				t.Fatalf("recover: exit code %d\n%s", code, out)
			}
		}
		if out, code := c.try("cluster", "recover", "--yes", store); code != 0 {
			t.Fatalf("recover: exit code %d\n%s", code, out)
		}
		if out, code := c.try("cluster", "recover", "--yes", store); code != 0 || !strings.Contains(out, "nothing to recover") {
			t.Fatalf("recover again: exit code %d\n%s", code, out)
		}
		refused(t, "a gateway that has seen etcd before", gateway, "was recovered")
		c.startMaster("master-1")
		for _, name := range []string{"server-1", "server-2"} {
			c.launch(name)
		}
		c.ready("server-1")
		c.ready("server-2")
		admin, client = clients(t, c.addrs["server-1"])
		read(client)
		write(client.Open("table-of-test"), "table-of-test", fmt.Sprint("again ", i))
		write(client.Open("later"), "later", fmt.Sprint("again ", i))
		if err := admin.CreateColumnFamily(t.Context(), "later", fmt.Sprint("h", i)); err != nil {
			t.Fatal(err)
		}
		read(client)
		copied()
		if out, code := c.check("--blocks", "--rate=0", store); code != 0 {
			t.Fatalf("check: exit code %d\n%s", code, out)
		}
	}
}

// TestClusterGivenAway: no process of a cluster goes on when its tables are served at
// another place, a tablet server as little as a gateway or a master.
func TestClusterGivenAway(t *testing.T) {
	if testing.Short() {
		t.Skip("starts four processes")
	}
	c := startCluster(t, 1)
	gateway := c.gateway(c.etcd)
	gateway.line("export BIGTABLE_EMULATOR_HOST=")
	cl, err := clientv3.New(clientv3.Config{Endpoints: []string{c.etcd}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	given := catalog.Transfer{ID: "x", Source: true, State: catalog.TransferComplete, Peer: "a directory", Command: "trestle cluster release"}
	if _, err := catalog.WriteTransfer(t.Context(), lock.New([]*clientv3.Client{cl}, "trestle/test/"), given, 0); err != nil {
		t.Fatal(err)
	}
	const why = "cluster test is not served: it was copied to a directory"
	refused(t, "a gateway", gateway, why)
	refused(t, "a tablet server", c.servers["server-1"], why)
	for name, p := range c.masters {
		refused(t, name, p, why)
	}
}
