package node

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/lock/etcd"
	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
)

var quiet = slog.New(slog.DiscardHandler)

// startEtcd runs a real etcd in this process and returns its URL.
func startEtcd(t *testing.T) string {
	t.Helper()
	c := embed.NewConfig()
	c.Dir, c.LogLevel = t.TempDir(), "fatal"
	local := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{local}, []url.URL{local}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{local}, []url.URL{local}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	e, err := embed.StartEtcd(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	select {
	case <-e.Server.ReadyNotify():
	case <-time.After(time.Minute):
		t.Fatal("etcd does not get ready")
	}
	return "http://" + e.Clients[0].Addr().String()
}

// join joins cluster "c".
func join(t *testing.T, at string) *Node {
	t.Helper()
	n, err := Join(t.Context(), Options{Cluster: "c", Etcd: []string{at}, TTL: time.Second, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	return n
}

func put(t *testing.T, l lock.Service, key, value string) {
	t.Helper()
	i, err := l.Get(t.Context(), key)
	if err == nil || errors.Is(err, fault.NotFound) {
		_, err = l.Put(t.Context(), key, []byte(value), i.Version)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func wantFailure(t *testing.T, n *Node, why string) {
	t.Helper()
	select {
	case <-n.Failed():
	case <-time.After(time.Minute):
		t.Fatalf("the node goes on, and should have found that %s", why)
	}
	if err := n.Err(); fault.KindOf(err) != fault.FailedPrecondition || !strings.Contains(err.Error(), why) {
		t.Errorf("the node has failed with %v, want %s", err, why)
	}
}

// check returns what a check says, once it says what is wanted.
func check(t *testing.T, n *Node, name, want string) {
	t.Helper()
	for _, c := range n.Checks() {
		if c.Name != name {
			continue
		}
		for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			err := c.Err()
			if want == "" && err == nil || want != "" && err != nil && strings.Contains(err.Error(), want) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("check %s says %v, want %q", name, err, want)
			}
		}
	}
	t.Fatalf("there is no check %s", name)
}

// TestRolledBack: a node does not go on with a lock service whose copies have a lower
// number than it has seen, or that was recovered, or whose tables were transferred.
func TestRolledBack(t *testing.T) {
	t.Parallel()
	at := startEtcd(t)
	n := join(t, at)
	put(t, n.Lock, "copy", "7")
	put(t, n.Lock, catalog.EpochsKey, "1")
	for _, c := range []struct{ key, value, back, why string }{
		{"copy", "6", "7", "is older than the store"},
		{catalog.EpochsKey, "2", "1", "was recovered"},
		{catalog.TransferKey, `{"ID": "x", "Source": true, "State": "complete", "Peer": "a directory"}`, "{}", "cluster c is not served: it was copied to a directory"},
	} {
		n := join(t, at)
		check(t, n, "lock service", "")
		if err := n.Err(); err != nil {
			t.Fatal(err)
		}
		put(t, n.Lock, c.key, c.value)
		wantFailure(t, n, c.why)
		check(t, n, "lock service", c.why)
		put(t, n.Lock, c.key, c.back)
	}
	put(t, n.Lock, catalog.TransferKey, `{"ID": "x", "Source": true, "State": "complete", "Peer": "a directory"}`)
	if err := join(t, at).Err(); fault.KindOf(err) != fault.FailedPrecondition {
		t.Errorf("a node that joins what is not served: %v", err)
	}
}

// A server knows of copies of the lock service.
type server struct {
	rpc.TabletServer
	copies uint64
}

func (s server) Status(context.Context) (*rpc.Status, error) { return &rpc.Status{Copy: s.copies}, nil }

// TestOlderThanServers: a process without a store does not go on with a lock service
// that is older than that of the tablet server which it is led to.
func TestOlderThanServers(t *testing.T) {
	t.Parallel()
	n := join(t, startEtcd(t))
	put(t, n.Lock, "copy", "7")
	schemas, err := catalog.WatchSchemas(t.Context(), n.Context(), n.Lock)
	if err != nil {
		t.Fatal(err)
	}
	c := client.New(client.Options{Lock: n.Lock, Dialer: n.Dialer, Schemas: schemas})
	n.MonitorRollback(c) // nobody can be asked
	row := &metadata.Row{Table: metastore.Table, Tablet: 1, Assignment: &metadata.Assignment{Addr: "here", State: metadata.Open}}
	if err := c.Metadata().CAS(t.Context(), row); err != nil {
		t.Fatal(err)
	}
	n.Dialer.Here("here", server{copies: 7})
	n.MonitorRollback(c)
	if err := n.Err(); err != nil {
		t.Fatal(err)
	}
	n.Dialer.Here("here", server{copies: 8})
	n.MonitorRollback(c)
	wantFailure(t, n, "there is copy 8")
}

// TestCheckExists: a cluster that nobody has begun is told from others, by name.
func TestCheckExists(t *testing.T) {
	t.Parallel()
	at := startEtcd(t)
	n := join(t, at)
	if err := n.CheckExists(t.Context()); err == nil || !strings.Contains(err.Error(), `knows of no cluster "c" (--cluster)`) || strings.Contains(err.Error(), "it knows of") {
		t.Errorf("of an empty etcd: %v", err)
	}
	cl, err := clientv3.New(clientv3.Config{Endpoints: []string{at}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for _, name := range []string{"one", "two"} {
		if _, err := catalog.ClaimIncarnation(t.Context(), etcd.New([]*clientv3.Client{cl}, etcdRoot+name+"/")); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.CheckExists(t.Context()); err == nil || !strings.HasSuffix(err.Error(), "it knows of one, two") {
		t.Errorf("of an etcd of others: %v", err)
	}
	if _, err := catalog.ClaimIncarnation(t.Context(), n.Lock); err != nil {
		t.Fatal(err)
	}
	if err := n.CheckExists(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestEtcdCertificateIsReadAgain: etcd is shown the certificate that the file has when a
// connection is made.
func TestEtcdCertificateIsReadAgain(t *testing.T) {
	t.Parallel()
	f := TLSFiles{Cert: filepath.Join(t.TempDir(), "cert.pem"), Key: filepath.Join(t.TempDir(), "key.pem")}
	// renew writes another pair, and returns its certificate.
	renew := func(serial int64) []byte {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		c := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour)}
		der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		private, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		for file, b := range map[string]*pem.Block{f.Cert: {Type: "CERTIFICATE", Bytes: der}, f.Key: {Type: "PRIVATE KEY", Bytes: private}} {
			if err := os.WriteFile(file, pem.EncodeToMemory(b), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return der
	}
	renew(1)
	c, err := etcdTLS(f)
	if err != nil {
		t.Fatal(err)
	}
	want := renew(2)
	if got, err := c.GetClientCertificate(nil); err != nil || !bytes.Equal(got.Certificate[0], want) {
		t.Errorf("the certificate of before is shown: %v", err)
	}
}

// TestJoinFails: what keeps a process from joining names the setting, or says that it
// waits.
func TestJoinFails(t *testing.T) {
	t.Parallel()
	none := filepath.Join(t.TempDir(), "none.pem")
	if err := os.WriteFile(none, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{EtcdTLS: TLSFiles{CA: none}}, "read etcd-ca: " + none + " has no certificate"},
		{Options{EtcdTLS: TLSFiles{CA: none + "x"}}, "read etcd-ca: open"},
		{Options{EtcdTLS: TLSFiles{Cert: none, Key: none}}, "read etcd-cert: "},
		{Options{PeerTLS: TLSFiles{CA: none, Cert: none, Key: none}}, "of the cluster"},
	} {
		c.o.Etcd, c.o.Log = []string{"http://127.0.0.1:1"}, quiet
		if _, err := Join(t.Context(), c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c.o, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	told := 0
	_, err := Join(ctx, Options{Etcd: []string{"http://127.0.0.1:1"}, Log: quiet, Waiting: func(error) {
		told++
		cancel()
	}})
	if !errors.Is(err, context.Canceled) || told != 1 {
		t.Errorf("without an etcd: %v, told %d times", err, told)
	}
}

// TestMonitorMaster: a cluster without a master is not ready.
func TestMonitorMaster(t *testing.T) {
	t.Parallel()
	n := join(t, startEtcd(t))
	n.MonitorMaster()
	check(t, n, "master", "start trestle master")
	put(t, n.Lock, catalog.MasterKey, "{}")
	check(t, n, "master", "")
}

// TestStore: a store is of one cluster, a share that is not mounted is not taken for
// it, and nobody else reads what is in it.
func TestStore(t *testing.T) {
	t.Parallel()
	ctx, dir := t.Context(), t.TempDir()
	o := StoreOptions{URL: "file://" + filepath.Join(dir, "the%20store"), Cluster: "c", Owner: "server-1", CacheDir: filepath.Join(dir, "cache"), Log: quiet}
	if _, err := OpenMarkedStore(ctx, o); err == nil || !strings.Contains(err.Error(), "the store "+o.URL) {
		t.Errorf("a command opens a store that is not there: %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, "the store"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenMarkedStore(ctx, o); err == nil || !strings.Contains(err.Error(), "does not say that it is of cluster c") {
		t.Errorf("a command opens a store that nobody has marked: %v", err)
	}
	n := join(t, startEtcd(t))
	s, err := n.OpenStore(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for name, part := range map[string]interface {
		PutIfAbsent(context.Context, string, []byte) error
	}{"sst/x": s.SSTables, "log/x": s.Logs, "etcd/x": s.Copies} {
		if err := part.PutIfAbsent(ctx, "x", []byte(name)); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(filepath.Join(dir, "the store", name)); err != nil || string(b) != name {
			t.Errorf("%s has %q, %v", name, b, err)
		}
	}
	if b, err := s.Cached.Get(ctx, "x"); err != nil || string(b) != "sst/x" {
		t.Errorf("through the disk cache: %q, %v", b, err)
	}
	for _, name := range []string{"the store", "cache"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	if _, err := OpenMarkedStore(ctx, o); err != nil {
		t.Error(err)
	}
	other := o
	other.Cluster = "other"
	for _, open := range []func(context.Context, StoreOptions) (*Store, error){n.OpenStore, OpenMarkedStore} {
		if _, err := open(ctx, other); err == nil || !strings.Contains(err.Error(), `the store is of cluster "c", not of "other"`) {
			t.Errorf("the store of another cluster: %v", err)
		}
	}
	n.MonitorStore(s)
	check(t, n, "shared store", "")
	if err := os.Rename(filepath.Join(dir, "the store", "cluster"), filepath.Join(dir, "mark")); err != nil {
		t.Fatal(err)
	}
	check(t, n, "shared store", "does not say that it is of cluster c")
	// With METADATA there is something to lose: an empty store is another one, or
	// the directory on which it was mounted.
	root := metadata.Row{Table: metastore.Table, Tablet: 1, Assignment: &metadata.Assignment{}}
	put(t, n.Lock, metastore.RootPrefix+"00", string(root.Marshal()))
	const empty = `it has no object "cluster" that says so, and cluster c has tables: mount the share, or correct --store`
	if _, err := n.OpenStore(ctx, o); fault.KindOf(err) != fault.FailedPrecondition || !strings.Contains(err.Error(), empty) {
		t.Errorf("an empty store of a cluster with tables: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "the store", "cluster")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it was marked: %v", err)
	}
	if err := os.Rename(filepath.Join(dir, "mark"), filepath.Join(dir, "the store", "cluster")); err != nil {
		t.Fatal(err)
	}
	again, err := n.OpenStore(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

// TestCacheOfOtherStore: a disk cache has nothing of the store that was there before, be it that
// of a cluster of the same name; what it has of its own store stays.
func TestCacheOfOtherStore(t *testing.T) {
	t.Parallel()
	ctx, dir := t.Context(), t.TempDir()
	n := join(t, startEtcd(t))
	o := StoreOptions{URL: FileURL(filepath.Join(dir, "store")), Cluster: "c", Owner: "server-1", CacheDir: filepath.Join(dir, "cache"), Log: quiet}
	for _, c := range []struct{ value, want string }{{"before", "before"}, {"", "before"}, {"now", "now"}, {"", "now"}} {
		if c.value == "now" {
			if err := os.RemoveAll(filepath.Join(dir, "store")); err != nil {
				t.Fatal(err)
			}
		}
		s, err := n.OpenStore(ctx, o)
		if err != nil {
			t.Fatal(err)
		}
		if c.value != "" {
			if _, err := s.Cached.Get(ctx, "x"); !errors.Is(err, fault.NotFound) {
				t.Errorf("an empty store has something: %v", err)
			}
			w, err := s.Cached.Create(ctx, "x")
			if err == nil {
				err = errors.Join(w.Write([]byte(c.value)), w.Finish())
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if b, err := os.ReadFile(filepath.Join(o.CacheDir, "sst,x")); err != nil || string(b) != c.want {
			t.Errorf("the copy is %q, %v", b, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
