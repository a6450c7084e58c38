package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/node"
	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
	"github.com/trestledb/trestle/cmd/trestle/internal/settings"
	"github.com/trestledb/trestle/engine/datadir"
	"github.com/trestledb/trestle/engine/tablet"
	"github.com/trestledb/trestle/gateway/auth"
	"github.com/trestledb/trestle/gateway/auth/servertls"
)

// A server that is told to stop ends within stopLimit. Requests get
// drainLimit of it, the store's flush the rest. If the store has failed, or what
// it held is somebody else's by now, only the next start helps: requests get
// failedLimit.
var (
	stopLimit   = 5 * time.Second // tests have more for these two
	drainLimit  = 3 * time.Second
	failedLimit = 300 * time.Millisecond
)

// A stack is an open store with the gateway over it.
type stack struct {
	// serve answers on l until drain; it returns nil then.
	serve func(l net.Listener) error
	// drain turns health to NOT_SERVING, sends GOAWAY, and waits for the
	// requests under way; what is left when ctx ends is cancelled.
	drain func(ctx context.Context) error
	// stats reads the engine's counters.
	stats func() ops.Stats
	// changes tells what this process keeps of changes; nil if it has no tablets.
	changes func() ops.ChangeStats
	// views are the materialized views that the process has tablets of; nil if it can have none.
	views func() []ops.ViewStats
	// tablets describes the tablets of this process; nil if it has none.
	tablets func() []tablet.Info
	// ready tells why the store cannot take requests, or nil.
	ready func() error
	// failed is closed when the store can no longer be trusted: the process ends,
	// and the next start recovers what was acknowledged.
	failed <-chan struct{}
	// whatFailed says what that means, if not that the store has.
	whatFailed string
	// operator is the store for those who run it; nil if it cannot be operated.
	operator ops.Operator
	// operatedBy says what to use in place of the admin service, if there is none.
	operatedBy string
	// server is the name of the tablet server, empty if there is none.
	server string
	// heat returns heat maps of tables; nil if there are none.
	heat ops.HeatReader
	// minFree is the disk space in bytes below which writes may be refused.
	minFree int64
	// who knows callers and what they may do, where they log in, and audits it.
	who *auth.Auth
	// rest is the admin API over HTTP; nil if there is none.
	rest http.Handler
	// notices are what an administrator should be told once, hints why first callers
	// would be refused.
	notices, hints []string
	// warnings are what an operator should know, a line each; may be nil.
	warnings func() []string
	// checks tell what else keeps the server from being ready.
	checks []node.Check
	// stopLimit is how long stopping may take if that is not the constant.
	stopLimit time.Duration
}

// An opener opens a store and builds the gateway over it. What is to be closed it
// leaves to below, in the order in which it was opened, also if it fails.
type opener func(ctx context.Context, cfg *settings.Serve, m *ops.Metrics, log *slog.Logger, below *closers) (*stack, error)

// An announcement is where a server can be reached.
type announcement struct {
	grpc  string // as a client dials it
	http  string // empty if off
	debug string // empty if off
	dir   string
	// notices are what an administrator should be told once, hints why first callers
	// would be refused.
	notices, hints []string
	cfg            *settings.Serve
}

// runServer runs a server until ctx ends, then stops it in order. ready is
// called once, when requests are answered; stopping, if not nil, when that
// ends.
func runServer(ctx context.Context, cfg settings.Serve, log *slog.Logger, open opener, ready func(announcement), stopping func()) error {
	start := time.Now()
	var at announcement
	if cfg.Temporary {
		dir, err := os.MkdirTemp("", "trestle-")
		if err != nil {
			return fmt.Errorf("make a temporary data directory: %w", err)
		}
		cfg.DataDir = dir
		defer atExit(func() { _ = os.RemoveAll(dir) })()
	}
	at.dir = cfg.DataDir

	// Addresses that are taken are found before the store is opened, and clients
	// that are early wait in the listener's queue instead of being refused.
	l, err := listen(cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen for gRPC: %w", err)
	}
	defer l.Close()
	at.grpc = l.Addr().String()

	cfg.Listen, at.cfg = at.grpc, &cfg
	certificates, err := openTLS(&cfg, log)
	if err != nil {
		return err
	}
	token, rest := &lateHandler{what: "token endpoint"}, &lateHandler{what: "REST API"}
	metrics, health := ops.NewMetrics(), new(ops.Health)
	admin := ops.NewAdmin()
	defer admin.Close()
	health.SetWarnings(admin.Warnings)
	metrics.ObserveDamage(admin)
	stopMeasures, err := openMeasures(ctx, &cfg, metrics, admin, log)
	if err != nil {
		return err
	}
	defer stopMeasures()
	stopHistory := recordHistory(metrics, admin)
	defer stopHistory()
	phase := newPhase("opening the data directory")
	health.Set("server", phase.check)
	gate := ops.Gate{Login: cfg.AuthOn(), Insecure: cfg.Insecure, Pages: consolePages(&cfg)}
	routes := httpRoutes(metrics, health, admin, token, rest)
	pages, err := openConsole(&cfg)
	if err != nil {
		return err
	}
	if pages != nil {
		routes = append(routes, pages.Routes()...)
	}
	for _, h := range []struct {
		httpListener
		at *string
	}{
		{httpListener{"http-listen", cfg.HTTPListen, "metrics and health", gate.Handler(routes)}, &at.http},
		{httpListener{"debug-listen", cfg.DebugListen, "the profiler", ops.Gate{}.Handler(ops.DebugRoutes())}, &at.debug},
	} {
		addr, stop, err := serveHTTP(h.httpListener, certificates, log)
		if err != nil {
			return err
		}
		defer stop()
		*h.at = addr
	}
	cfg.HTTPListen = at.http

	// What the disk holds is asked of the directory, which therefore has to be there.
	if err := makeDataDir(&cfg, log); err != nil {
		return err
	}
	limitMemory(&cfg)
	var below closers
	self := selfOf(ctx, &cfg, metrics, health, log)
	admin.ShowSelf(self)
	metrics.ObserveHealth(health, self.Certificates)
	st, err := open(withAdmin(withPhase(ctx, phase), admin), &cfg, metrics, log, &below)
	if err != nil {
		err = errors.Join(err, below.close(ended()))
		if ctx.Err() != nil {
			return nil // told to stop while opening: nothing was promised
		}
		return fmt.Errorf("open %s: %w", cfg.DataDir, err)
	}
	metrics.ObserveStats(func() ops.Stats {
		s := st.stats()
		s.DiskFree, s.DiskUsed = datadir.Space(vfs.Default, cfg.DataDir)
		return s
	})
	if st.tablets != nil {
		metrics.ObserveTablets(st.tablets)
	}
	if st.changes != nil {
		metrics.ObserveChanges(st.changes)
	}
	if st.views != nil {
		metrics.ObserveViews(st.views)
	}
	if st.warnings != nil {
		health.SetWarnings(func() []string { return append(admin.Warnings(), st.warnings()...) })
	}
	health.Set("store", st.ready)
	health.Set("disk", func() error { return datadir.CheckFree(vfs.Default, cfg.DataDir, st.minFree) })

	for _, c := range st.checks {
		health.Set(c.Name, c.Err)
	}
	limit := max(st.stopLimit, stopLimit)
	if st.who.On() {
		h := st.who.TokenHandler()
		token.h.Store(&h)
	}
	if st.rest != nil {
		rest.h.Store(&st.rest)
	}
	at.notices, at.hints = st.notices, st.hints

	if st.operatedBy != "" {
		admin.Elsewhere(st.operatedBy)
	}
	if st.server != "" {
		named := *self
		named.Name = st.server
		admin.ShowSelf(&named)
	}
	if st.heat != nil {
		admin.ShowHeat(st.heat)
	}
	admin.Start(st.operator, st.who)
	admin.ShowSettings(shownSettings(ctx))
	if pages != nil {
		pages.Start(st.who, tokenURI(&cfg))
	}
	served := make(chan error, 1)
	go func() { served <- st.serve(l) }()
	phase.set("")
	ready(at)
	notifySystemd("READY=1")
	log.Info("serving", "grpc", at.grpc, "http", at.http, "data_dir", at.dir, "start_seconds", time.Since(start).Seconds())

	var serveErr error
	finish := drainLimit
	select {
	case <-ctx.Done():
	case serveErr = <-served:
		log.Error("gRPC server ended", "error", serveErr)
	case <-st.failed:
		finish = failedLimit
		serveErr = fmt.Errorf("%s: %w", cmp.Or(st.whatFailed, "the store has failed, restart to recover"), st.ready())
	}
	phase.set("draining")
	if stopping != nil {
		stopping()
	}
	notifySystemd("STOPPING=1")
	log.Info("draining")
	told := time.Now()

	stopCtx, cancel := context.WithTimeout(context.Background(), limit-200*time.Millisecond)
	defer cancel()
	drainCtx, cancelDrain := context.WithTimeout(stopCtx, finish)
	defer cancelDrain()
	if err := st.drain(drainCtx); err != nil {
		log.Warn("requests were cut off", "error", err)
	}
	admin.Close()
	if err := below.close(stopCtx); err != nil {
		return errors.Join(serveErr, fmt.Errorf("close the store: %w", err))
	}
	log.Info("stopped", "elapsed_seconds", time.Since(told).Seconds())
	return serveErr
}

// An httpListener is where HTTP is served, and what.
type httpListener struct {
	setting, addr, what string
	handler             http.Handler
}

// serveHTTP serves until the function that it returns is called; not at all if the
// address is empty. What others can reach has TLS if there are certificates.
func serveHTTP(h httpListener, certificates *servertls.Server, log *slog.Logger) (at string, stop func(), err error) {
	if h.addr == "" {
		return "", func() {}, nil
	}
	l, err := listen(h.addr)
	if err != nil {
		return "", nil, fmt.Errorf("listen for %s: %w; choose another address with --%s, or %q", h.what, err, h.setting, settings.Off)
	}
	at = l.Addr().String()
	l = ops.Listener(l)
	if certificates != nil && !settings.IsLoopback(at) {
		// Others can listen on the way, and what /token is given are secrets.
		l = tls.NewListener(l, certificates.HTTP())
	}
	srv := ops.Server(h.handler, httpErrors(log))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("HTTP server ended", "error", err)
		}
	}()
	return at, func() {
		_ = srv.Close()
		<-done
	}, nil
}

// listen listens on HOST:PORT, or on a unix socket if addr has a slash.
func listen(addr string) (net.Listener, error) {
	if !strings.Contains(addr, "/") {
		return net.Listen("tcp", addr)
	}
	l, err := net.Listen("unix", addr)
	if !errors.Is(err, syscall.EADDRINUSE) {
		return l, err
	}
	// A process that was killed leaves its socket, which then refuses everybody.
	left, statErr := os.Lstat(addr)
	if statErr != nil || left.Mode().Type() != os.ModeSocket {
		return nil, err
	}
	conn, refused := net.Dial("unix", addr)
	if refused == nil {
		return nil, errors.Join(err, conn.Close())
	}
	// Another process may have found it, too, and listen there by now.
	if now, statErr := os.Lstat(addr); statErr != nil || !os.SameFile(left, now) || !errors.Is(refused, syscall.ECONNREFUSED) {
		return nil, err
	}
	if err := os.Remove(addr); err != nil {
		return nil, err
	}
	return net.Listen("unix", addr)
}

// untilSignal returns a context that ends with the first SIGINT or SIGTERM. From
// then on a second signal, or the passing of limit, ends the process.
func untilSignal(log *slog.Logger, limit time.Duration) (ctx context.Context, release func()) {
	ctx, cancel := context.WithCancel(context.Background())
	// Whoever reads our output may go away; that must not end the server.
	signal.Ignore(syscall.SIGPIPE)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	released := make(chan struct{})
	go func() {
		select {
		case s := <-signals:
			log.Info("signal", "signal", s.String())
		case <-released:
			return
		}
		cancel()
		select {
		case s := <-signals:
			log.Warn("second signal, not waiting any longer", "signal", s.String())
		case <-time.After(limit):
			log.Error("could not stop in time", "limit_seconds", limit.Seconds())
		case <-released:
			return
		}
		runExitHooks()
		os.Exit(exitFailure)
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(released)
		cancel()
	}
}
