package node

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/lock/etcd"
	"github.com/trestledb/trestle/cluster/rpc/stream"
	"github.com/trestledb/trestle/engine/fault"
)

// TLSFiles name PEM files. An empty name is a file that is not used.
type TLSFiles struct {
	CA, Cert, Key string
}

// Options say which cluster a process joins.
type Options struct {
	// Cluster is its name.
	Cluster string
	// Etcd are the URLs of the lock service's members; EtcdTLS are the authority that
	// they are checked against and the certificate that they are shown. With neither of
	// the two etcd is spoken to in plain text.
	Etcd    []string
	EtcdTLS TLSFiles
	// PeerTLS are the certificate that the processes of the cluster show each other,
	// and its authority. Without an authority they speak plain text.
	PeerTLS TLSFiles
	// TTL is how long the sessions of the cluster last without a renewal. A connection
	// to another process on which nothing arrives for half of it, 2 s at least, is
	// given up.
	TTL time.Duration
	// Waiting, if set, is called once if the lock service cannot be reached at first.
	Waiting func(error)
	Log     *slog.Logger
}

// A Node is a process's place in a cluster.
type Node struct {
	Lock   lock.Service
	Dialer *stream.Dialer
	// TLS is for a server that other processes of the cluster call; nil: plain text.
	TLS *tls.Config

	o          Options
	etcd       []*clientv3.Client // one for each member
	ctx        context.Context
	cancel     context.CancelFunc
	monitoring sync.WaitGroup
	checks     []Check
	rollback   *catalog.RollbackGuard
	damaged    atomic.Pointer[[]catalog.DamagedLog]

	failOnce sync.Once
	failed   chan struct{}
	failure  error
}

// Join connects to the lock service and waits for it until ctx ends. It returns
// fault.FailedPrecondition if this program cannot use what the lock service holds.
// The node may have failed already: see Err.
func Join(ctx context.Context, o Options) (_ *Node, err error) {
	n := &Node{o: o, failed: make(chan struct{})}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			n.Close()
		}
	}()
	peers := stream.Options{Silence: max(2*time.Second, o.TTL/2)}
	if o.PeerTLS.CA != "" {
		if n.TLS, peers.TLS, err = stream.TLS(o.PeerTLS.Cert, o.PeerTLS.Key, o.PeerTLS.CA); err != nil {
			return nil, err
		}
	}
	n.Dialer = stream.NewDialer(peers)
	if err := n.connect(); err != nil {
		return nil, err
	}
	n.Lock = etcd.New(n.etcd, etcdRoot+o.Cluster+"/")
	n.rollback = catalog.NewRollbackGuard(n.Lock)
	if err := n.awaitLockService(ctx); err != nil {
		return nil, err
	}
	n.monitor("lock service", n.checkLockService)
	return n, nil
}

// etcdRoot is what the keys of all clusters begin with.
const etcdRoot = "trestle/"

// connect makes a client for each member of the lock service.
func (n *Node) connect() error {
	security, err := etcdTLS(n.o.EtcdTLS)
	if err != nil {
		return err
	}
	for _, endpoint := range n.o.Etcd {
		c, err := clientv3.New(clientv3.Config{
			Endpoints: []string{endpoint}, TLS: security, Logger: zap.NewNop(), Context: n.ctx,
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
			return fmt.Errorf("connect to etcd at %s: %w", endpoint, err)
		}
		n.etcd = append(n.etcd, c)
	}
	return nil
}

// etcdTLS returns nil for etcd without TLS.
func etcdTLS(f TLSFiles) (*tls.Config, error) {
	if f.CA == "" && f.Cert == "" {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.CA != "" {
		b, err := os.ReadFile(f.CA)
		if err != nil {
			return nil, fmt.Errorf("read etcd-ca: %w", err)
		}
		if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(b) {
			return nil, fmt.Errorf("read etcd-ca: %s has no certificate", f.CA)
		}
	}
	if f.Cert != "" {
		pair := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			p, err := tls.LoadX509KeyPair(f.Cert, f.Key)
			if err != nil {
				return nil, fmt.Errorf("read etcd-cert: %w", err)
			}
			return &p, nil
		}
		if _, err := pair(nil); err != nil {
			return nil, err
		}
		c.GetClientCertificate = pair // the files are read again with each connection
	}
	return c, nil
}

// awaitLockService returns when the lock service has answered, with what a rollback is
// known by, and in which format it holds its items.
func (n *Node) awaitLockService(ctx context.Context) error {
	for first := true; ; first = false {
		once, cancel := context.WithTimeout(ctx, 3*time.Second)
		err := errors.Join(n.rollback.Check(once), catalog.CheckFormat(once, n.Lock))
		cancel()
		if err == nil || fault.KindOf(err) == fault.FailedPrecondition {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if first {
			n.o.Log.Warn("waiting for the lock service", "etcd", strings.Join(n.o.Etcd, ","), "error", err)
			if n.o.Waiting != nil {
				n.o.Waiting(err)
			}
		}
		select {
		case <-time.After(500 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// CheckExists returns an error if the lock service has no cluster of this name: the
// name is wrong, perhaps.
func (n *Node) CheckExists(ctx context.Context) error {
	if _, err := n.Lock.Get(ctx, catalog.IncarnationKey); !errors.Is(err, fault.NotFound) {
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
	err = fmt.Errorf("etcd at %s knows of no cluster %q (--cluster): no master has begun there, or etcd was emptied", strings.Join(n.o.Etcd, ","), n.o.Cluster)
	if len(others) > 0 {
		err = fmt.Errorf("%w; it knows of %s", err, strings.Join(slices.Sorted(maps.Keys(others)), ", "))
	}
	return err
}

// Context ends with Close.
func (n *Node) Context() context.Context { return n.ctx }

// Close ends the checks and all connections.
func (n *Node) Close() {
	n.cancel()
	n.monitoring.Wait()
	if n.Dialer != nil {
		n.Dialer.Close()
	}
	for _, c := range n.etcd {
		_ = c.Close()
	}
}
