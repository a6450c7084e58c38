package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/mem"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/cluster/master"
	"github.com/trestledb/trestle/cluster/rpc/stream"
	"github.com/trestledb/trestle/cluster/tabletserver"
	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
	"github.com/trestledb/trestle/cmd/trestle/internal/settings"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/objectstore"
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

// runTabletServer serves tablets, and clients, until it is told to stop.
func runTabletServer(p *process, args []string) int {
	return runNode(p, args, settings.TabletServer, openTabletServer, "Runs a tablet server of a cluster, which answers every client, whichever server its rows are on.")
}

// runGateway answers clients by asking tablet servers.
func runGateway(p *process, args []string) int {
	if slices.ContainsFunc(args, func(a string) bool {
		return strings.HasPrefix(strings.TrimLeft(a, "-"), "backend") && strings.HasPrefix(a, "-")
	}) {
		return gatewayOverHBase(p, args)
	}
	return runNode(p, args, settings.Gateway, openGateway, "Answers clients of a cluster without serving tablets.")
}

func runNode(p *process, args []string, role settings.Role, open func(*settings.Set) opener, help string) int {
	flags := settings.NewClusterFlags(string(role), role)
	usage := fmt.Sprintf("Usage: trestle %s [flags]\n\n%s Each flag can be given as\nTRESTLE_NAME in the environment too, or as a line \"name: value\" of the file --config.", role, help)
	return p.until(flags, args, usage, leaveLimit, func(ctx context.Context, cfg *settings.Set, log *slog.Logger) error {
		return runServer(ctx, cfg.Serve, log, open(cfg), func(at announcement) {
			fmt.Fprintf(p.stdout, "cluster              %s, %s\n", cfg.Cluster, cfg.Etcd)
			if role == settings.TabletServer {
				fmt.Fprintf(p.stdout, "tablet server        %s at %s\n", cfg.Name, cfg.ClusterAddress)
			}
			p.printAddresses(at)
		}, nil)
	})
}

// printAddresses tells where a gateway that has no data of its own is to be
// found.
func (p *process) printAddresses(at announcement) {
	fmt.Fprintf(p.stdout, "%-20s %s\n", announcedAPI, at.grpc)
	if at.http != "" {
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

// gatewayOverCluster opens the gateway of a process of a cluster. name is that of
// its tablet server, empty if it has none.
// Its objects are nil then.
func gatewayOverCluster(ctx context.Context, n *node, cfg *settings.Serve, name string, objects objectstore.Store, schemas *catalog.Schemas, m *ops.Metrics, log *slog.Logger) (*stack, *client.Client, error) {
	if err := makeDataDir(cfg, log); err != nil {
		return nil, nil, err
	}
	c := client.New(client.Options{Lock: n.lock, Dialer: n.dialer, Schemas: schemas, Waited: m.Waited})
	n.observe(m, c)
	n.watchMetadata(c)
	limitMemory(cfg)
	if err := shareTLS(ctx, cfg, c); err != nil {
		return nil, nil, err
	}
	st, front, err := gatewayOver(ctx, cfg, hbaseTables{Backend: c, tablets: c, backups: c, locate: c.Owners, join: n.joinHBase(name)}, m, log)
	if err != nil {
		return nil, nil, err
	}
	st.operator = clusterOperator{c, newExports(cfg, c, objects, front), func() []tablet.TableDamage { return nil }}
	st.stats = func() ops.Stats { return ops.Stats{Tables: int64(len(schemas.All()))} }
	st.warnings = n.warnings
	return st, c, nil
}

func openGateway(set *settings.Set) opener {
	return func(ctx context.Context, cfg *settings.Serve, m *ops.Metrics, log *slog.Logger) (*stack, error) {
		n, err := join(ctx, set, log)
		if err != nil {
			return nil, err
		}
		if err := n.err(); err != nil {
			n.close()
			return nil, err
		}
		m.InCluster()
		n.watchMaster()
		schemas, err := catalog.WatchSchemas(ctx, n.life, n.lock)
		if err != nil {
			n.close()
			return nil, err
		}
		st, c, err := gatewayOverCluster(ctx, n, cfg, "", nil, schemas, m, log)
		if err != nil {
			n.close()
			return nil, err
		}
		closeFront := st.close
		st.close = func(ctx context.Context) error {
			defer n.close()
			return closeFront(ctx)
		}
		n.watchAge(c)
		if err := n.err(); err != nil {
			return nil, errors.Join(err, st.drain(ctx), st.close(ctx))
		}
		st.checks, st.failed, st.ready = n.checks, n.failed, n.err
		st.whatFailed = "the gateway cannot go on"
		return st, nil
	}
}

func openTabletServer(set *settings.Set) opener {
	return func(ctx context.Context, cfg *settings.Serve, m *ops.Metrics, log *slog.Logger) (_ *stack, err error) {
		l, err := net.Listen("tcp", set.ClusterListen)
		if err != nil {
			return nil, fmt.Errorf("listen for the cluster: %w; choose another address with --cluster-listen", err)
		}
		var undo []func()
		undo = append(undo, func() { _ = l.Close() })
		defer func() {
			if err != nil {
				for i := len(undo) - 1; i >= 0; i-- {
					undo[i]()
				}
			}
		}()
		set.Name = nameOf(set.Name, l)
		if set.ClusterAddress == "" {
			set.ClusterAddress = l.Addr().String()
		}
		if host, _, _ := net.SplitHostPort(set.ClusterAddress); host == "" || net.ParseIP(host).IsUnspecified() {
			return nil, fmt.Errorf("cluster-address: other servers cannot reach this one at %s: say by which name they can", set.ClusterAddress)
		}
		tell(ctx, "opening the store")
		store, cached, closeStore, err := openStore(ctx, &set.Node, set.Cluster, log)
		if err != nil {
			return nil, err
		}
		undo = append(undo, closeStore)
		n, err := join(ctx, set, log)
		if err != nil {
			return nil, err
		}
		undo = append(undo, n.close)
		if err := n.err(); err != nil {
			return nil, err
		}
		n.watchMaster()
		n.watchStore(store)
		m.InCluster()
		tell(ctx, "registering with the lock service")
		to := tabletServerOptions(cfg)
		to.Name, to.Addr, to.Lock, to.Dialer, to.TTL, to.Held, to.Log = set.Name, set.ClusterAddress, n.lock, n.dialer, set.TTL, m.Held, log
		to.Objects, to.Logs, to.Copies = objectstore.Sub(cached, partSSTables), objectstore.Sub(store, partLogs), objectstore.Sub(store, partCopies)
		to.Segments = commitlog.SegmentOptions{CommitInterval: set.CommitInterval, Log: log,
			Observe: func(c commitlog.Commit) { m.Committed(c.Records, c.Bytes, c.Write, c.Sync) }}
		tuneTabletServer(&to)
		ts, err := tabletserver.Start(ctx, to)
		if err != nil {
			return nil, err
		}
		undo = append(undo, func() {
			now, cancel := context.WithCancel(context.Background())
			cancel()
			_ = ts.Close(now)
		})
		// Who transfers notes that first, and looks for servers then.
		if err := n.untransferred(ctx); err != nil {
			return nil, err
		}
		n.dialer.Here(set.ClusterAddress, ts)
		srv := stream.NewServer(ts, stream.ServerOptions{TLS: n.serverTLS, Log: log, Encoders: encoders})
		served := make(chan error, 1)
		go func() { served <- srv.Serve(l) }()
		stopServer := func(ctx context.Context) {
			srv.Stop(ctx)
			if err := <-served; err != nil {
				log.Error("the server for the cluster ended", "error", err)
			}
		}
		st, _, err := gatewayOverCluster(ctx, n, cfg, set.Name, objectstore.Sub(store, partSSTables), ts.Schemas(), m, log)
		if err != nil {
			now, cancel := context.WithCancel(context.Background())
			cancel()
			stopServer(now)
			return nil, err
		}
		closeFront := st.close
		st.stopLimit = leaveLimit
		st.close = func(ctx context.Context) error {
			err := closeFront(ctx)
			// First the tablets go to others, who answer for them from then on; then the
			// calls that came late are told so.
			err = errors.Join(err, ts.Close(ctx))
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			stopServer(last)
			n.close()
			closeStore()
			return err
		}
		op := st.operator.(clusterOperator)
		op.damage = ts.Damage
		st.operator = op
		st.whatFailed = "the tablet server cannot go on, and has to be started again"
		st.ready, st.failed = ts.Err, ts.Failed()
		st.checks = append(n.checks, namedCheck{"commit log", ts.Full})
		st.stats, st.tablets = func() ops.Stats { return statsOf(ts.Stats()) }, ts.Infos
		return st, nil
	}
}

// runMaster is the master, or waits to be it.
func runMaster(p *process, args []string) int {
	usage := "Usage: trestle master [flags]\n\nAssigns tablets to the tablet servers of a cluster. Run two or more: one is the master, the others wait."
	return p.until(settings.NewClusterFlags("master", settings.Master), args, usage, stopLimit, func(ctx context.Context, cfg *settings.Set, log *slog.Logger) error {
		return masterUntil(ctx, p, cfg, log)
	})
}

func masterUntil(ctx context.Context, p *process, cfg *settings.Set, log *slog.Logger) error {
	metrics, health := ops.NewMetrics(), new(ops.Health)
	phase := newPhase("waiting for the lock service")
	health.Set("process", phase.check)
	at, stop, err := serveHTTP(cfg.HTTPListen, "http-listen", ops.Gate{}.Handler(ops.Routes(metrics, health)), log)
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
	defer n.close()
	health.SetWarnings(n.warnings)
	metrics.Registry.MustRegister(damageCollector{n})
	name := cfg.Name
	if name == "" {
		host, _ := os.Hostname()
		name = fmt.Sprintf("%s-%d", plainName(host), os.Getpid())
	}
	fmt.Fprintf(p.stdout, "cluster              %s, %s\n", cfg.Cluster, cfg.Etcd)
	if at != "" {
		fmt.Fprintf(p.stdout, "metrics and health   http://%s/metrics http://%[1]s/readyz\n", at)
	}
	if err := n.err(); err != nil {
		return err
	}
	phase.set("opening the store")
	// A cache would only have to be told of what is deleted.
	cfg.Name, cfg.CacheDir = name, ""
	store, _, _, err := openStore(ctx, &cfg.Node, cfg.Cluster, log)
	if err != nil {
		return err
	}
	n.watchStore(store)
	for _, c := range n.checks {
		health.Set(c.name, c.fn)
	}
	o := master.Options{Name: name, Lock: n.lock, Dialer: n.dialer, TTL: cfg.TTL, Log: log, Counters: new(master.Counters),
		Objects: objectstore.Sub(store, partSSTables), Logs: objectstore.Sub(store, partLogs), Copies: objectstore.Sub(store, partCopies)}
	tuneMaster(&o)
	observeMaster(metrics, o.Counters)
	phase.set("")
	notifySystemd("READY=1")
	term, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-n.failed: // also of one that waits to be the master
			cancel(n.failure)
		case <-term.Done():
		}
	}()
	for ctx.Err() == nil {
		err := master.Run(term, o)
		switch {
		case n.err() != nil:
			return n.err()
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

// encoders encode rows as the gateways of a cluster send them to their clients.
func encoders(encoding uint64, pass func(*scan.Piece, mem.BufferSlice) error) stream.Encoder {
	if encoding != chunk.Encoding {
		return nil
	}
	return chunk.NewWriter(chunk.Options{Piece: pass})
}
