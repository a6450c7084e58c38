package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/mem"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/cluster/master"
	"github.com/trestledb/trestle/cluster/node"
	"github.com/trestledb/trestle/cluster/rpc/stream"
	"github.com/trestledb/trestle/cluster/tabletserver"
	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
	"github.com/trestledb/trestle/cmd/trestle/internal/settings"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/keyvis"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/query/exec"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/tablet"
	"github.com/trestledb/trestle/gateway/chunk"
)

// announcedAPI begins the line of stdout with the address of the Bigtable API.
const announcedAPI = "Bigtable gRPC API"

// leaveLimit is how long a tablet server takes at most to give its tablets to
// others when it is told to stop. What it was not able to give up is recovered
// from its log.
const leaveLimit = time.Minute

// tuneTabletServer and tuneMaster change settings that have no flag, for tests.
var (
	tuneTabletServer = func(*tabletserver.Options) {}
	tuneMaster       = func(*master.Options) {}
)

const nodeHelp = ` Each flag can be given as
TRESTLE_NAME in the environment too, or as a line "name: value" of the file
--config.`

// tabletServerCommand serves tablets, and clients, until it is told to stop.
func tabletServerCommand(p *process) *cobra.Command {
	flags := settings.NewClusterFlags("tabletserver", settings.TabletServer)
	return p.process("tabletserver", "run a tablet server of a cluster", "Runs a tablet server of a cluster, which answers every client, whichever server\nits rows are on."+nodeHelp,
		flags, leaveLimit, p.node(settings.TabletServer, openTabletServer))
}

// gatewayCommand answers clients by asking tablet servers, or from the tables of an
// HBase.
func gatewayCommand(p *process) *cobra.Command {
	flags := settings.NewClusterFlags("gateway", settings.Gateway)
	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	backend := own.String("backend", "", "where the tables are, if not in a cluster: "+hbaseScheme+"HOST:PORT,HOST:PORT/ROOT, the ZooKeeper servers of an HBase and its root node (/hbase)")
	own.AddFlagSet(flags.FlagSet)
	return p.verb("gateway", "answer clients of a cluster, or from the tables of an HBase (--backend)", gatewayHelp+nodeHelp, own, func(c *cobra.Command, _ []string) int {
		if c.Flags().Changed("backend") {
			return gatewayOverHBase(p, flags, *backend)
		}
		return p.until(flags, leaveLimit, p.node(settings.Gateway, openGateway))
	})
}

// node returns what runs a process of a cluster that answers clients.
func (p *process) node(role settings.Role, open func(*settings.Set) opener) func(context.Context, *settings.Set, *slog.Logger) error {
	return func(ctx context.Context, cfg *settings.Set, log *slog.Logger) error {
		return runServer(ctx, cfg.Serve, log, open(cfg), func(at announcement) {
			p, flush := p.atOnce()
			defer flush()
			fmt.Fprintf(p.stdout, "cluster              %s, %s\n", cfg.Cluster, cfg.Etcd)
			if role == settings.TabletServer {
				fmt.Fprintf(p.stdout, "tablet server        %s at %s\n", cfg.Name, cfg.ClusterAddress)
			}
			p.printAddresses(at)
		}, nil)
	}
}

// printAddresses tells where a gateway that has no data of its own is to be
// found.
func (p *process) printAddresses(at announcement) {
	fmt.Fprintf(p.stdout, "%-20s %s\n", announcedAPI, at.grpc)
	if at.http != "" {
		printConsole(p.stdout, at.cfg)
		fmt.Fprintf(p.stdout, "metrics and health   %s/metrics %[1]s/readyz\n", httpURL(at.cfg))
	}
	for _, n := range at.notices {
		fmt.Fprintf(p.stdout, "\n%s\n", n)
	}
	if at.cfg.TLSAuto {
		ca := autoTLS(at.cfg)
		fmt.Fprintf(p.stdout, "\ncertificate authority %s\n\n%s\n", ca.CA(), strings.Join(ca.Exports(), "\n"))
	}
	if !at.cfg.AuthOn() && !at.cfg.TLS() {
		fmt.Fprintf(p.stdout, "\nexport BIGTABLE_EMULATOR_HOST=%s\n", dialable(at.grpc))
	}
}

// clusterOperator is a cluster for those who run it: any process can be asked about all
// tablets. Of the damage that reads have met a process knows its own.
type clusterOperator struct {
	*client.Client
	*exports
	damage func() []tablet.TableDamage
}

// Damage implements ops.Operator.
func (o clusterOperator) Damage() []tablet.TableDamage { return o.damage() }

var _ ops.Operator = clusterOperator{}

// join joins the cluster that the settings name.
func join(ctx context.Context, cfg *settings.Set, log *slog.Logger) (*node.Node, error) {
	return node.Join(ctx, node.Options{
		Cluster: cfg.Cluster, Etcd: strings.Split(cfg.Etcd, ","), TTL: cfg.TTL, Log: log,
		EtcdTLS: node.TLSFiles{CA: cfg.EtcdCA, Cert: cfg.EtcdCert, Key: cfg.EtcdKey},
		PeerTLS: node.TLSFiles{CA: cfg.ClusterCA, Cert: cfg.ClusterCert, Key: cfg.ClusterKey},
		Waiting: func(err error) { tell(ctx, "waiting for the lock service: "+err.Error()) },
	})
}

// joinToServe is join for a process that serves: not at all if it must not.
func joinToServe(ctx context.Context, cfg *settings.Set, log *slog.Logger) (*node.Node, error) {
	n, err := join(ctx, cfg, log)
	if err != nil {
		return nil, err
	}
	if err := n.Err(); err != nil {
		n.Close()
		return nil, err
	}
	n.MonitorMaster()
	return n, nil
}

// clusterStore says where the store of the cluster is.
func clusterStore(cfg *settings.Set, log *slog.Logger) node.StoreOptions {
	return node.StoreOptions{URL: cfg.Store, Cluster: cfg.Cluster, Owner: cfg.Name, CacheDir: cfg.CacheDir, CacheBytes: cfg.CacheSize, Log: log}
}

// gatewayOverCluster opens the gateway of a process of a cluster. name is that of
// its tablet server and sstables are its SSTables: empty and nil if it has none.
func gatewayOverCluster(ctx context.Context, n *node.Node, set *settings.Set, cfg *settings.Serve, name string, sstables objectstore.Store, schemas *catalog.Schemas, m *ops.Metrics, log *slog.Logger, below *closers) (*stack, error) {
	c := client.New(client.Options{Lock: n.Lock, Dialer: n.Dialer, Schemas: schemas, Waited: m.Waited})
	m.InCluster()
	observeNode(m, n, c)
	n.MonitorMetadata(c)
	if sstables == nil {
		n.MonitorRollback(c)
		if err := n.Err(); err != nil {
			return nil, err
		}
	}
	if err := shareTLS(ctx, cfg, c); err != nil {
		return nil, err
	}
	st, front, err := gatewayOver(ctx, cfg, hbaseTables{Backend: c, tablets: c, backups: c, locate: c.Owners, join: joinHBase(n, name, set.TTL, log)}, m, log, below)
	if err != nil {
		return nil, err
	}
	st.heat = ops.AskHeat(func(ctx context.Context, question []byte) ([]byte, error) {
		return c.AskAny(ctx, ops.HeatQuestion, question)
	})
	st.operator = clusterOperator{c, newExports(cfg, c, sstables, front), func() []tablet.TableDamage { return nil }}
	st.stats = func() ops.Stats { return ops.Stats{Tables: int64(len(schemas.All()))} }
	st.warnings = func() []string { return damageWarnings(n.DamagedLogs()) }
	st.checks, st.failed, st.ready = n.Checks(), n.Failed(), n.Err
	return st, nil
}

func openGateway(set *settings.Set) opener {
	return func(ctx context.Context, cfg *settings.Serve, m *ops.Metrics, log *slog.Logger, below *closers) (*stack, error) {
		n, err := joinToServe(ctx, set, log)
		if err != nil {
			return nil, err
		}
		below.add(n.Close)
		schemas, err := catalog.WatchSchemas(ctx, n.Context(), n.Lock)
		if err != nil {
			return nil, err
		}
		st, err := gatewayOverCluster(ctx, n, set, cfg, "", nil, schemas, m, log, below)
		if err != nil {
			return nil, err
		}
		st.whatFailed = "the gateway cannot go on"
		return st, nil
	}
}

func openTabletServer(set *settings.Set) opener {
	return func(ctx context.Context, cfg *settings.Serve, m *ops.Metrics, log *slog.Logger, below *closers) (*stack, error) {
		l, err := net.Listen("tcp", set.ClusterListen)
		if err != nil {
			return nil, fmt.Errorf("listen for the cluster: %w; choose another address with --cluster-listen", err)
		}
		below.add(func() { _ = l.Close() })
		set.Name = nameOf(set.Name, l)
		if set.ClusterAddress == "" {
			set.ClusterAddress = l.Addr().String()
		}
		if host, _, _ := net.SplitHostPort(set.ClusterAddress); host == "" || net.ParseIP(host).IsUnspecified() {
			return nil, fmt.Errorf("cluster-address: other servers cannot reach this one at %s: say by which name they can", set.ClusterAddress)
		}
		n, err := joinToServe(ctx, set, log)
		if err != nil {
			return nil, err
		}
		below.add(n.Close)
		tell(ctx, "opening the store")
		store, err := n.OpenStore(ctx, clusterStore(set, log))
		if err != nil {
			return nil, err
		}
		below.add(func() {
			if err := store.Close(); err != nil {
				log.Warn("close the disk cache", "error", err)
			}
		})
		n.MonitorStore(store)
		tell(ctx, "registering with the lock service")
		to := tabletServerOptions(cfg)
		to.Name, to.Addr, to.Lock, to.Dialer, to.TTL, to.Held, to.Log = set.Name, set.ClusterAddress, n.Lock, n.Dialer, set.TTL, m.Held, log
		to.Objects, to.Logs, to.Copies = store.Cached, store.Logs, store.Copies
		to.Segments = commitlog.SegmentOptions{CommitInterval: set.CommitInterval, Log: log,
			Observe: func(c commitlog.Commit) { m.Committed(c.Records, c.Bytes, c.Write, c.Sync) }}
		h, admin := keyvis.OpenHistory(store.History, nil), adminOf(ctx)
		to.Ask = func(ctx context.Context, what string, question []byte) ([]byte, error) {
			return admin.Answer(ctx, what, question)
		}
		tuneTabletServer(&to)
		// First the tablets go to others, who answer for them from then on; then the
		// calls that came late are told so.
		stopServer := func() {}
		to.CutReaders = func() { stopServer() }
		ts, err := tabletserver.Start(ctx, to)
		if err != nil {
			return nil, err
		}
		below.addStop(func(ctx context.Context) error {
			if n.Err() != nil { // METADATA may not be what it was: nothing is to be written to it
				ctx = ended()
			}
			return ts.Close(ctx)
		})
		below.add(startRecorder(h, set.Name, ts, log))
		// Who transfers notes that first, and looks for servers then.
		if err := n.CheckNotTransferred(ctx); err != nil {
			return nil, err
		}
		n.Dialer.Here(set.ClusterAddress, ts)
		workers := client.New(client.Options{Lock: n.Lock, Dialer: n.Dialer, Schemas: ts.Schemas(), Ended: ts.Failed()})
		vo := viewOptions(cfg, workers)
		vo.Cluster = workers
		ts.FollowViews(vo)
		srv := stream.NewServer(ts, stream.ServerOptions{TLS: n.TLS, Log: log, Encoders: encoders, Fragments: fragments(exec.NewPool(exec.Limits{})), Tracer: m.Tracer})
		served := make(chan error, 1)
		go func() { served <- srv.Serve(l) }()
		stopServer = func() {
			last, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			srv.Stop(last)
			if err := <-served; err != nil {
				log.Error("the server for the cluster ended", "error", err)
			}
		}
		st, err := gatewayOverCluster(ctx, n, set, cfg, set.Name, store.SSTables, ts.Schemas(), m, log, below)
		if err != nil {
			return nil, err
		}
		st.server, st.heat = set.Name, heatOf(h, ts.Schemas(), to.SplitRate)
		op := st.operator.(clusterOperator)
		op.damage = ts.Damage
		st.operator = op
		st.stopLimit = leaveLimit
		st.whatFailed = "the tablet server cannot go on, and has to be started again"
		failed := make(chan struct{})
		go func() { // which ends with ts
			defer close(failed)
			select {
			case <-n.Failed():
			case <-ts.Failed():
			}
		}()
		st.failed, st.ready = failed, func() error { return cmp.Or(n.Err(), ts.Err()) }
		st.checks = append(st.checks, node.Check{Name: "commit log", Err: ts.Full})
		st.stats, st.tablets = func() ops.Stats { return statsOf(ts.Stats()) }, ts.Infos
		st.changes = func() ops.ChangeStats { return changesOf(ts.Changes()) }
		st.views = func() []ops.ViewStats { return viewsOf(ts.Views()) }
		return st, nil
	}
}

// masterCommand runs a process that is the master, or waits to be it.
func masterCommand(p *process) *cobra.Command {
	return p.process("master", "run a master of a cluster, or one that waits to be it",
		"Assigns tablets to the tablet servers of a cluster. Run two or more: one is the\nmaster, the others wait."+nodeHelp,
		settings.NewClusterFlags("master", settings.Master), stopLimit, func(ctx context.Context, cfg *settings.Set, log *slog.Logger) error {
			return masterUntil(ctx, p, cfg, log)
		})
}

func masterUntil(ctx context.Context, p *process, cfg *settings.Set, log *slog.Logger) error {
	metrics, health := ops.NewMetrics(), new(ops.Health)
	phase := newPhase("waiting for the lock service")
	health.Set("process", phase.check)
	metrics.ObserveHealth(health, certificateFiles(&cfg.Serve, shownSettings(ctx)))
	at, stop, err := serveHTTP(httpListener{setting: "http-listen", addr: cfg.HTTPListen, what: "metrics and health", handler: ops.Gate{}.Handler(ops.Routes(metrics, health))}, nil, log)
	if err != nil {
		return err
	}
	defer stop()
	n, err := join(withPhase(ctx, phase), cfg, log)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	defer n.Close()
	health.SetWarnings(func() []string { return damageWarnings(n.DamagedLogs()) })
	metrics.Registry.MustRegister(damageCollector{n.DamagedLogs})
	name := cfg.Name
	if name == "" {
		host, _ := os.Hostname()
		name = fmt.Sprintf("%s-%d", plainName(host), os.Getpid())
	}
	fmt.Fprintf(p.stdout, "cluster              %s, %s\n", cfg.Cluster, cfg.Etcd)
	if at != "" {
		fmt.Fprintf(p.stdout, "metrics and health   http://%s/metrics http://%[1]s/readyz\n", at)
	}
	if err := n.Err(); err != nil {
		return err
	}
	phase.set("opening the store")
	// A cache would only have to be told of what is deleted.
	cfg.Name, cfg.CacheDir = name, ""
	store, err := n.OpenStore(ctx, clusterStore(cfg, log))
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	n.MonitorStore(store)
	for _, c := range n.Checks() {
		health.Set(c.Name, c.Err)
	}
	o := master.Options{Name: name, Lock: n.Lock, Dialer: n.Dialer, TTL: cfg.TTL, Log: log, Counters: new(master.Counters),
		Objects: store.SSTables, Logs: store.Logs, Copies: store.Copies}
	tuneMaster(&o)
	observeMaster(metrics, o.Counters)
	phase.set("")
	notifySystemd("READY=1")
	term, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-n.Failed(): // also of one that waits to be the master
			cancel(n.Err())
		case <-term.Done():
		}
	}()
	for ctx.Err() == nil {
		err := master.Run(term, o)
		switch {
		case n.Err() != nil:
			return n.Err()
		case errors.Is(err, fault.FailedPrecondition): // the lock service is older than the store
			return err
		case ctx.Err() == nil:
			log.Warn("this process is not the master any more", "error", err)
			select {
			case <-time.After(500 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}
	return nil
}

// fragments runs parts of queries over the rows of this server's tablets. All of them
// together take the memory of pool at most.
func fragments(pool *exec.Pool) stream.Fragments {
	return func(fragment []byte, pass func(*scan.Piece, mem.BufferSlice) error) stream.Encoder {
		e, err := exec.NewFragmentEncoder(pool, fragment, func(p *scan.Piece, b []byte) error {
			return pass(p, mem.BufferSlice{mem.SliceBuffer(b)})
		})
		if err != nil {
			return nil // it is of another version: rows are sent
		}
		return e
	}
}

// encoders encode rows as the gateways of a cluster send them to their clients.
func encoders(encoding uint64, pass func(*scan.Piece, mem.BufferSlice) error) stream.Encoder {
	if encoding != chunk.Encoding {
		return nil
	}
	return chunk.NewWriter(chunk.Options{Piece: pass})
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
