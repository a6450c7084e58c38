package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/trestledb/trestle/cluster/standalone"
	"github.com/trestledb/trestle/cluster/tabletserver"
	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
	"github.com/trestledb/trestle/cmd/trestle/internal/settings"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/gateway"
	"github.com/trestledb/trestle/gateway/auth"
	"github.com/trestledb/trestle/gateway/auth/servertls"
	"github.com/trestledb/trestle/gateway/backend"
)

// autoTLS is where --tls-auto keeps its authority and certificate.
func autoTLS(cfg *settings.Serve) servertls.Auto {
	hosts := append(hostsOf(cfg), cfg.ServerNames()...)
	if host := hbaseHost(cfg); host != "" && !slices.Contains(hosts, host) {
		hosts = append(hosts, host)
	}
	return servertls.Auto{Dir: absolute(cfg.DataDir, "tls"), Hosts: hosts}
}

// hbaseHost returns the host that HBase clients are told to connect to unless
// that is one of the server's names, empty if it is not known or there are none.
func hbaseHost(cfg *settings.Serve) string {
	switch {
	case cfg.HBaseListen == "":
		return ""
	case cfg.HBaseName == "":
		host, _, _ := net.SplitHostPort(cfg.HBaseListen)
		return host
	}
	if host, _, err := net.SplitHostPort(cfg.HBaseName); err == nil {
		return host
	}
	return cfg.HBaseName
}

// hostsOf returns the hosts that the server listens on.
func hostsOf(cfg *settings.Serve) (out []string) {
	for _, addr := range []string{cfg.Listen, cfg.HTTPListen} {
		if host, _, err := net.SplitHostPort(addr); err == nil && host != "" && !slices.Contains(out, host) {
			out = append(out, host)
		}
	}
	return out
}

// authorityRecord is where the processes of a cluster have the authority of
// --tls-auto. It is a secret (catalog.SecretsPrefix), so it is in no copy of the
// lock service.
const authorityRecord = "secrets/tls-authority"

// shareTLS makes the authority of --tls-auto that of all processes of r, before
// openTLS.
func shareTLS(ctx context.Context, cfg *settings.Serve, r backend.Records) error {
	if !cfg.TLSAuto {
		return nil
	}
	err := autoTLS(cfg).Join(func(own []byte) ([]byte, error) {
		for {
			all, _, err := r.GetRecord(ctx, authorityRecord)
			if !errors.Is(err, fault.NotFound) {
				return all, err
			}
			if _, err := r.PutRecord(ctx, authorityRecord, own, 0); !errors.Is(err, fault.Aborted) {
				return own, err
			}
		}
	})
	if err != nil {
		return fmt.Errorf("tls-auto: the authority of the cluster: %w", err)
	}
	return nil
}

// openTLS returns the server's certificates, nil if TLS is off.
func openTLS(cfg *settings.Serve, log *slog.Logger) (*servertls.Server, error) {
	o := servertls.Options{CertFile: cfg.TLSCert, KeyFile: cfg.TLSKey}
	switch {
	case !cfg.TLS():
		return nil, nil
	case cfg.TLSAuto:
		o = autoTLS(cfg).Options()
	}
	o.ClientCAFile, o.Log = cfg.TLSClientCA, log
	return servertls.New(o)
}

// rootKey is where the first start with authentication writes the key of the
// account that may do everything.
func rootKey(cfg *settings.Serve) string { return absolute(cfg.DataDir, "root-key.json") }

// absolute joins a path that is shown to people, who may be elsewhere.
func absolute(elem ...string) string {
	path := filepath.Join(elem...)
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

// openAuth returns what decides who may do what or, if authentication is off, only
// audits it. It notes in notices what an administrator should be told. Close it
// before r.
func openAuth(ctx context.Context, cfg *settings.Serve, r backend.Records, m *ops.Metrics, log *slog.Logger) (a *auth.Auth, notices []string, release func(), err error) {
	if !cfg.AuthOn() {
		lines, closeLines, err := openAudit(cfg.AuditLog, log)
		if err != nil {
			return nil, nil, nil, err
		}
		a, err := auth.Open(ctx, r, auth.Options{Off: true, Audit: lines, AuditData: cfg.AuditData, Log: log})
		if err != nil {
			closeLines()
			return nil, nil, nil, err
		}
		return a, nil, closeLines, nil
	}
	failures := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "bigtable_auth_failures_total",
		Help: "Requests refused for their credentials, by reason, or (permission) for what their caller may do."}, []string{"reason"})
	m.Registry.MustRegister(failures)
	o := auth.Options{
		Names:     append(append(hostsOf(cfg), "localhost", "127.0.0.1", "::1"), cfg.ServerNames()...),
		TokenURI:  tokenURI(cfg),
		TokenFile: cfg.TokenFile,
		AuditData: cfg.AuditData,
		Refused:   func(reason string) { failures.WithLabelValues(reason).Inc() },
		Log:       log,
	}
	if name, err := os.Hostname(); err == nil {
		o.Names = append(o.Names, name)
	}
	if cfg.OIDCIssuer != "" {
		o.Issuers = []auth.Issuer{{URL: cfg.OIDCIssuer, Audience: cfg.OIDCAudience}}
	}
	var closeLines func()
	if o.Audit, closeLines, err = openAudit(cfg.AuditLog, log); err != nil {
		return nil, nil, nil, err
	}
	made, err := (&auth.Accounts{Records: r, TokenURI: o.TokenURI}).Bootstrap(ctx, rootKey(cfg))
	if err == nil {
		a, err = auth.Open(ctx, r, o)
	}
	if err != nil {
		closeLines()
		return nil, nil, nil, err
	}
	if made {
		notices = append(notices, fmt.Sprintf("The key of an account that may do everything was made: %s\nMake accounts for others with `trestle iam`, then move it to a safe place.",
			rootKey(cfg)))
	}
	return a, notices, func() {
		a.Close()
		closeLines()
	}, nil
}

// openAudit opens what the setting audit-log says, nil for nothing. In the
// process's log its lines are written whatever the level and the number of
// others.
func openAudit(where string, log *slog.Logger) (lines *slog.Logger, release func(), err error) {
	switch where {
	case "", settings.Off:
		return nil, func() {}, nil
	case settings.AuditToLog:
		return unbounded(log), func() {}, nil
	}
	f, err := os.OpenFile(where, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("open the audit log: %w", err)
	}
	return slog.New(slog.NewJSONHandler(f, nil)), func() { _ = f.Close() }, nil
}

// tokenURI is the token endpoint as clients reach it.
func tokenURI(cfg *settings.Serve) string {
	scheme := "http"
	if cfg.TLS() && !settings.IsLoopback(cfg.HTTPListen) {
		scheme = "https"
	}
	host, port, err := net.SplitHostPort(dialable(cfg.HTTPListen))
	if err != nil { // no HTTP: clients that need the endpoint cannot be served
		host, port = "localhost", "8087"
	}
	if names := cfg.ServerNames(); len(names) > 0 && !settings.IsLoopback(cfg.HTTPListen) {
		host = names[0]
	}
	return scheme + "://" + net.JoinHostPort(host, port) + "/token"
}

// A lateHandler answers 503 until there is a handler.
type lateHandler struct {
	what string
	h    atomic.Pointer[http.Handler]
}

func (l *lateHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h := l.h.Load(); h != nil {
		(*h).ServeHTTP(w, r)
		return
	}
	http.Error(w, "there is no "+l.what+", or not yet", http.StatusServiceUnavailable)
}

// httpRoutes are what http-listen answers. The token endpoint is for everybody,
// since credentials come from it.
func httpRoutes(m *ops.Metrics, h *ops.Health, admin *ops.Admin, token, rest http.Handler) []ops.Route {
	return append(slices.Concat(ops.Routes(m, h), admin.Routes()),
		ops.Route{Pattern: "/token", For: ops.Everybody, Handler: token},
		ops.Route{Pattern: "/v1/", For: ops.LoggedIn, Handler: rest}, ops.Route{Pattern: "/v2/", For: ops.LoggedIn, Handler: rest})
}

// checkStopped returns an error unless dir is a data directory, and one that the caller may
// change while its server is stopped.
func checkStopped(dir string) error {
	fresh, err := standalone.CheckFormat(vfs.Default, dir)
	if err != nil {
		return err
	}
	if fresh {
		return fmt.Errorf("%s is no data directory: trestle serve never kept anything there", dir)
	}
	return checkOwner(filepath.Join(dir, standalone.FormatName), os.Geteuid())
}

// offline returns a connection to a server over the data directory of one that
// is stopped. Its caller owns the directory, and so may do everything.
func offline(ctx context.Context, dir, tokenURI string) (*grpc.ClientConn, func() error, error) {
	if err := checkStopped(dir); err != nil {
		return nil, nil, err
	}
	quiet := slog.New(slog.DiscardHandler)
	store, err := standalone.Open(ctx, standalone.Options{Dir: dir, Logger: quiet, TabletServer: tabletserver.Options{CacheBytes: 16 << 20, MemtableBytes: 8 << 20}})
	if err != nil {
		return nil, nil, fmt.Errorf("open %s (is its server stopped?): %w", dir, err)
	}
	a, err := auth.Open(ctx, store, auth.Options{Anonymous: true, TokenURI: tokenURI, Log: quiet})
	if err != nil {
		return nil, nil, errors.Join(err, store.Close(ctx))
	}
	front, err := gateway.New(store, gateway.Options{Auth: a, Log: quiet})
	if err != nil {
		a.Close()
		return nil, nil, errors.Join(err, store.Close(ctx))
	}
	l := bufconn.Listen(1 << 20)
	served := make(chan error, 1)
	go func() { served <- front.Serve(l) }()
	conn, err := grpc.NewClient("passthrough:///offline", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	done := func() error {
		var errs []error
		if conn != nil {
			errs = append(errs, conn.Close())
		}
		errs = append(errs, front.Stop(ctx), <-served)
		a.Close()
		return errors.Join(append(errs, store.Close(ctx))...)
	}
	if err != nil {
		return nil, nil, errors.Join(err, done())
	}
	return conn, done, nil
}
