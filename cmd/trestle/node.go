package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/lock/etcd"
	"github.com/trestledb/trestle/cluster/master"
	"github.com/trestledb/trestle/cluster/rpc/stream"
	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
	"github.com/trestledb/trestle/cmd/trestle/internal/settings"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/objectstore/diskcache"
	"github.com/trestledb/trestle/engine/objectstore/hdfs"
	"github.com/trestledb/trestle/engine/objectstore/s3"
)

// A node is what every process of a cluster has.
type node struct {
	cfg       *settings.Set
	log       *slog.Logger
	etcd      []*clientv3.Client // one for each member
	lock      lock.Service
	dialer    *stream.Dialer
	serverTLS *tls.Config // nil: plain text
	life      context.Context
	end       context.CancelFunc
	watching  sync.WaitGroup
	checks    []namedCheck
	age       *catalog.Age
	damaged   atomic.Pointer[[]catalog.DamagedLog]
	// failed is closed when the lock service is not what it was, or the cluster is not
	// to be served: failure says why.
	failOnce sync.Once
	failed   chan struct{}
	failure  error
}

// join connects to the lock service, which it waits for.
func join(ctx context.Context, cfg *settings.Set, log *slog.Logger) (_ *node, err error) {
	n := &node{cfg: cfg, log: log, failed: make(chan struct{})}
	n.life, n.end = context.WithCancel(context.Background())
	o := stream.Options{Silence: max(2*time.Second, cfg.TTL/2)}
	if cfg.ClusterCA != "" {
		if n.serverTLS, o.TLS, err = stream.TLS(cfg.ClusterCert, cfg.ClusterKey, cfg.ClusterCA); err != nil {
			return nil, err
		}
	}
	security, err := etcdTLS(&cfg.Node)
	if err != nil {
		return nil, err
	}
	for _, endpoint := range strings.Split(cfg.Etcd, ",") {
		c, err := clientv3.New(clientv3.Config{
			Endpoints: []string{endpoint}, TLS: security, Logger: zap.NewNop(), Context: n.life,
			// The timeout also bounds how long what was sent is not acknowledged: a
			// connection that was cut off is made anew before a session ends.
			DialTimeout: 3 * time.Second, DialKeepAliveTime: 5 * time.Second, DialKeepAliveTimeout: 2 * time.Second,
			// gRPC by itself waits for up to two minutes before it tries to connect again,
			// and for twenty seconds for a member that does not answer.
			DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
				MinConnectTimeout: 2 * time.Second})},
		})
		if err != nil {
			n.close()
			return nil, fmt.Errorf("connect to etcd at %s: %w", endpoint, err)
		}
		n.etcd = append(n.etcd, c)
	}
	n.lock = etcd.New(n.etcd, etcdRoot+cfg.Cluster+"/")
	n.dialer = stream.NewDialer(o)
	n.age = catalog.NewAge(n.lock)
	for waits := false; ; waits = true {
		one, cancel := context.WithTimeout(ctx, 3*time.Second)
		err := errors.Join(n.age.Look(one), catalog.CheckFormat(one, n.lock))
		cancel()
		if err == nil {
			break
		}
		if fault.KindOf(err) == fault.FailedPrecondition {
			n.close()
			return nil, err
		}
		if ctx.Err() != nil {
			n.close()
			return nil, ctx.Err()
		}
		if !waits {
			log.Warn("waiting for the lock service", "etcd", cfg.Etcd, "error", err)
			tell(ctx, "waiting for the lock service: "+err.Error())
		}
		select {
		case <-time.After(500 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	n.watch("lock service", func(ctx context.Context) error {
		err := n.believe(n.age.Look(ctx))
		if err == nil {
			err = n.believe(n.untransferred(ctx))
		}
		if err == nil {
			var logs []catalog.DamagedLog
			if logs, err = catalog.DamagedLogs(ctx, n.lock); err == nil {
				n.damaged.Store(&logs)
			}
		}
		return err
	})
	return n, nil
}

// untransferred returns fault.FailedPrecondition if the tables of the cluster are, or
// were, moved to another place, or come from one and are not all there.
func (n *node) untransferred(ctx context.Context) error {
	err := catalog.CheckTransfer(ctx, n.lock)
	if errors.Is(err, fault.FailedPrecondition) {
		err = fmt.Errorf("cluster %s is not served: %w", n.cfg.Cluster, err)
	}
	return err
}

// etcdRoot is what the keys of all clusters begin with.
const etcdRoot = "trestle/"

// known returns an error if the lock service knows nothing of the cluster: the
// name is wrong, perhaps.
func (n *node) known(ctx context.Context) error {
	if _, err := n.lock.Get(ctx, catalog.IncarnationKey); !errors.Is(err, fault.NotFound) {
		return err
	}
	others := map[string]bool{}
	items, _, err := etcd.New(n.etcd, etcdRoot).List(ctx, "")
	if err != nil {
		return err
	}
	for _, i := range items {
		if name, key, _ := strings.Cut(i.Key, "/"); key == catalog.IncarnationKey {
			others[name] = true
		}
	}
	err = fmt.Errorf("etcd at %s knows of no cluster %q (--cluster): no master has begun there, or etcd was emptied", n.cfg.Etcd, n.cfg.Cluster)
	if len(others) > 0 {
		err = fmt.Errorf("%w; it knows of %s", err, strings.Join(slices.Sorted(maps.Keys(others)), ", "))
	}
	return err
}

// believe ends the process if err says that the lock service was put back to an
// earlier state. It returns err.
func (n *node) believe(err error) error {
	if errors.Is(err, fault.FailedPrecondition) {
		n.failOnce.Do(func() {
			n.failure = err
			close(n.failed)
		})
	}
	return err
}

// err returns why failed is closed.
func (n *node) err() error {
	select {
	case <-n.failed:
		return n.failure
	default:
		return nil
	}
}

// askAge asks the server of a METADATA tablet how old the lock service has to
// be, for a process that has no store to ask. Who is led to a server is served by
// it, so it is the one that counts, however old the lock service is that led
// there. A server that cannot be reached says nothing.
func (n *node) askAge(ctx context.Context, c *client.Client) error {
	roots, err := c.Metadata().Roots(ctx)
	if err != nil {
		return nil // another check tells
	}
	for _, r := range roots {
		if r.Assignment == nil || r.Assignment.Addr == "" {
			continue
		}
		if st, err := n.dialer.Dial(r.Assignment.Addr).Status(ctx); err == nil {
			n.age.Learn(st.Copy)
			return n.believe(n.age.Look(ctx))
		}
	}
	return nil
}

// watchAge keeps asking, at first before anybody is answered.
func (n *node) watchAge(c *client.Client) {
	ask := func() {
		ctx, cancel := context.WithTimeout(n.life, 2*time.Second)
		defer cancel()
		_ = n.askAge(ctx, c)
	}
	ask()
	n.watching.Go(func() {
		tick := time.NewTicker(askAgeEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				ask()
			case <-n.life.Done():
				return
			}
		}
	})
}

// askAgeEvery is how often a process without a store asks one that has it.
const askAgeEvery = 10 * time.Second

// etcdTLS returns nil for etcd without TLS.
func etcdTLS(n *settings.Node) (*tls.Config, error) {
	if n.EtcdCA == "" && n.EtcdCert == "" {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if n.EtcdCA != "" {
		b, err := os.ReadFile(n.EtcdCA)
		if err != nil {
			return nil, fmt.Errorf("read etcd-ca: %w", err)
		}
		if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(b) {
			return nil, fmt.Errorf("read etcd-ca: %s has no certificate", n.EtcdCA)
		}
	}
	if n.EtcdCert != "" {
		pair, err := tls.LoadX509KeyPair(n.EtcdCert, n.EtcdKey)
		if err != nil {
			return nil, fmt.Errorf("read etcd-cert: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// watch makes a check of do, which is called at once, and then now and then.
func (n *node) watch(name string, do func(context.Context) error) { n.watchFrom(0, name, do) }

// watchFrom is watch, which calls do for the first time after a while and takes
// it for failing until then.
func (n *node) watchFrom(first time.Duration, name string, do func(context.Context) error) {
	var mu sync.Mutex
	last := errors.New("not known yet")
	n.checks = append(n.checks, namedCheck{name, func() error {
		mu.Lock()
		defer mu.Unlock()
		return last
	}})
	look := func() {
		ctx, cancel := context.WithTimeout(n.life, 2*time.Second)
		defer cancel()
		err := do(ctx)
		mu.Lock()
		last = err
		mu.Unlock()
	}
	if first == 0 {
		look()
		first = 2 * time.Second
	}
	n.watching.Go(func() {
		for wait := first; ; wait = 2 * time.Second {
			select {
			case <-time.After(wait):
				look()
			case <-n.life.Done():
				return
			}
		}
	})
}

// watchStore makes a check of the store being that of the cluster, and having
// room, as far as that can be asked: of a directory.
func (n *node) watchStore(store objectstore.Store) {
	n.watch("shared store", func(ctx context.Context) error {
		err := checkMark(ctx, store, n.cfg.Cluster)
		if dir, ok := strings.CutPrefix(n.cfg.Store, "file://"); ok && err == nil {
			free, used := diskSpace(dir)
			err = diskCheck(dir, keepFree(free+used))
		}
		return err
	})
}

// watchMaster makes a check of there being a master.
func (n *node) watchMaster() {
	n.watch("master", func(ctx context.Context) error {
		_, err := n.lock.Get(ctx, master.Key)
		if errors.Is(err, fault.NotFound) {
			return errors.New("no process is the master: start trestle master")
		}
		return err
	})
}

// watchMetadata makes a check of METADATA being served. The process does not
// wait for it to start: METADATA may wait for the process.
func (n *node) watchMetadata(c *client.Client) {
	n.watchFrom(time.Millisecond, "METADATA", func(ctx context.Context) error {
		roots, err := c.Metadata().Roots(ctx)
		if err != nil {
			return err
		}
		if len(roots) == 0 {
			return errors.New("there is no METADATA tablet yet: the first master makes it")
		}
		for _, r := range roots {
			if a := r.Assignment; a == nil || a.State != metadata.Open {
				return fmt.Errorf("METADATA tablet %v is not served", r.Tablet)
			}
		}
		if _, err = c.Metadata().Lookup(ctx, 1<<63-1, nil, 1); errors.Is(err, fault.NotFound) {
			err = nil // it was read all the same
		}
		return err
	})
}

func (n *node) close() {
	n.end()
	n.watching.Wait()
	if n.dialer != nil {
		n.dialer.Close()
	}
	for _, c := range n.etcd {
		_ = c.Close()
	}
}

// observe adds the metrics of a client and the way to other servers.
func (n *node) observe(m *ops.Metrics, c *client.Client) {
	m.Registry.MustRegister(damageCollector{n})
	for _, r := range []struct {
		name, help string
		get        func() int64
	}{
		{"bigtable_cluster_location_hits_total", "Requests whose tablet was at a remembered place.", c.Counters.Hits.Load},
		{"bigtable_cluster_location_lookups_total", "Requests that looked a tablet up in METADATA.", c.Counters.Lookups.Load},
		{"bigtable_cluster_location_wrong_total", "Requests that a server refused because the tablet had moved.", c.Counters.Wrong.Load},
		{"bigtable_cluster_metadata_reads_total", "Reads of METADATA tablets.", c.Metadata().Reads.Load},
		{"bigtable_cluster_root_reads_total", "Reads of the METADATA tablets' own rows in the lock service.", c.Metadata().RootReads.Load},
		{"bigtable_cluster_forwarded_total", "Calls to tablet servers in other processes.", n.dialer.Forwarded.Load},
		{"bigtable_cluster_local_total", "Calls to the tablet server in this process.", n.dialer.Local.Load},
		{"bigtable_cluster_lost_total", "Calls whose answer did not come.", n.dialer.Lost.Load},
	} {
		m.Registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: r.name, Help: r.help}, func() float64 { return float64(r.get()) }))
	}
}

// The parts of the store.
const (
	partSSTables = "sst"
	partLogs     = "log"
	partCopies   = "etcd" // copies of what the lock service holds
)

// openObjects opens the store at a URL. owner tells apart who write to it.
func openObjects(ctx context.Context, at, owner string) (objectstore.Store, error) {
	u, err := url.Parse(at)
	if err != nil {
		return nil, err
	}
	q := u.Query()
	switch u.Scheme {
	case "file":
		return objectstore.OpenLocal(vfs.Default, u.Path, objectstore.LocalOptions{Owner: owner})
	case "hdfs":
		return hdfs.Open(ctx, hdfs.Options{NameNodes: append([]string{u.Host}, q["namenode"]...), Insecure: q.Get("insecure") == "true",
			User: q.Get("user"), Dir: u.Path, Owner: owner})
	}
	return s3.Open(ctx, s3.Options{Endpoint: q.Get("endpoint"), Insecure: q.Get("insecure") == "true", Region: q.Get("region"),
		Bucket: u.Host, Prefix: strings.Trim(u.Path, "/")})
}

// storeMark is the object that says of which cluster a store is.
const storeMark = "cluster"

// markStore says in the store that it is of a cluster, unless it is of another.
func markStore(ctx context.Context, store objectstore.Store, cluster string) error {
	if err := store.PutIfAbsent(ctx, storeMark, []byte(cluster)); !errors.Is(err, fault.AlreadyExists) {
		return err
	}
	return checkMark(ctx, store, cluster)
}

// checkMark returns an error unless the store is there and is that of a
// cluster: a share that is not mounted is an empty directory.
func checkMark(ctx context.Context, store objectstore.Store, cluster string) error {
	b, err := store.Get(ctx, storeMark)
	if err != nil {
		return fmt.Errorf("the store does not say that it is of cluster %s: %w", cluster, err)
	}
	if string(b) != cluster {
		return fmt.Errorf("the store is of cluster %q, not of %q", b, cluster)
	}
	return nil
}

// openStore opens the store that the servers of the cluster share, and refuses
// one that does not keep its promises.
func openStore(ctx context.Context, n *settings.Node, cluster string, log *slog.Logger) (store, cached objectstore.Store, release func(), err error) {
	if store, err = openObjects(ctx, n.Store, n.Name); err == nil {
		err = store.Probe(ctx)
	}
	if err == nil {
		err = markStore(ctx, store, cluster)
	}
	if err != nil {
		return nil, nil, nil, fmt.Errorf("open the store %s: %w", n.Store, err)
	}
	if u, err := url.Parse(n.Store); err == nil && u.Scheme == "file" {
		if err := closeToOthers(u.Path, inStore); err != nil {
			log.Warn("the store is open to others", "error", err)
		}
	}
	if n.CacheDir == "" {
		return store, store, func() {}, nil
	}
	c, err := diskcache.Open(store, vfs.Default, n.CacheDir, diskcache.Options{Bytes: n.CacheSize, Log: log})
	if err != nil {
		return nil, nil, nil, err
	}
	if copies, err := os.ReadDir(n.CacheDir); err == nil {
		var names []string
		for _, e := range copies {
			names = append(names, e.Name())
		}
		if err := closeToOthers(n.CacheDir, names); err != nil {
			log.Warn("the disk cache is open to others", "error", err)
		}
	}
	return store, c, func() {
		if err := c.Close(); err != nil {
			log.Warn("close the disk cache", "error", err)
		}
	}, nil
}

// nameOf returns the name of a server that was given none.
func nameOf(name string, l net.Listener) string {
	if name != "" {
		return name
	}
	host, err := os.Hostname()
	if err != nil {
		host = "server"
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return plainName(host) + "-" + port
}

// plainName makes a part of a server's name of a host's.
func plainName(host string) string {
	host, _, _ = strings.Cut(host, ".")
	name := strings.Map(func(r rune) rune {
		if r == '-' || r == '_' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' {
			return r
		}
		return '-'
	}, host)
	if name = strings.Trim(name[:min(len(name), 50)], "-_"); name == "" {
		return "server"
	}
	return name
}

// serveHTTP answers on addr until the function that it returns is called.
func serveHTTP(addr, setting string, h http.Handler, log *slog.Logger) (at string, stop func(), err error) {
	if addr == "" {
		return "", func() {}, nil
	}
	l, err := listen(addr)
	if err != nil {
		return "", nil, fmt.Errorf("listen for HTTP: %w; choose another address with --%s, or %q", err, setting, settings.Off)
	}
	srv := ops.Server(h, httpErrors(log))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("HTTP server ended", "error", err)
		}
	}()
	return l.Addr().String(), func() {
		_ = srv.Close()
		<-done
	}, nil
}
