package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/cluster/node"
	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
	"github.com/trestledb/trestle/cmd/trestle/internal/settings"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/tablet"
	"github.com/trestledb/trestle/gateway"
	"github.com/trestledb/trestle/gateway/auth"
)

// An adminVerb is a command that asks ops.Admin: that of a server, or with --etcd
// one of its own over the cluster.
type adminVerb struct {
	use, short, long string
	flags            *pflag.FlagSet // its own; nil: none
	// limit is how long it takes at most unless --timeout says otherwise; 0: as long as
	// it takes.
	limit time.Duration
	// store says that it reads and writes the store, which a cluster is given for.
	store bool
	// fresh is the argument or the value of a flag that names what is not there yet.
	fresh string
	// check, if not nil, is what is wrong with its flags and arguments.
	check func(args []string) error
	run   func(c *adminClient, args []string) error
}

// changeLimit is how long a change of a tablet takes at most: what is to serve it
// may not live.
const changeLimit = 5 * time.Minute

const reachHelp = `

It asks the server of this machine (http-listen), or that of --admin; with --etcd
it acts on the cluster itself.`

// A reach is how an adminVerb gets at an ops.Admin, by its flags.
type reach struct {
	p     *process
	flags *settings.Flags
	at    *string // --admin
	login login
}

// load returns the settings, and whether they make the command act on the cluster itself.
func (r *reach) load() (cfg *settings.Set, cluster bool, err error) {
	if cfg, err = r.flags.Load(r.p.environ); err != nil {
		return nil, false, err
	}
	cluster = *r.at == "" && cfg.Origin("etcd") != settings.Default
	switch {
	case r.flags.Changed("etcd") && *r.at != "":
		err = errors.New("--admin and --etcd exclude each other: a server is asked, or the cluster")
	case cluster && (r.login.given() || r.login.ca != ""):
		err = fmt.Errorf("--credentials and --ca are for an admin service, and etcd (%s) makes this command act on the cluster itself: give --admin too", cfg.Origin("etcd"))
	case !cluster && *r.at == "" && cfg.HTTPListen == "":
		err = fmt.Errorf("http-listen (%s) is off, so there is no admin service: give --admin, or --etcd", cfg.Origin("http-listen"))
	}
	return cfg, cluster, err
}

// open makes c speak with the server, or with the cluster and, if so said, its store.
func (r *reach) open(c *adminClient, cfg *settings.Set, cluster, store bool) (release func(), err error) {
	if cluster {
		return c.overCluster(cfg, store)
	}
	if c.base = strings.TrimSuffix(*r.at, "/"); c.base == "" {
		scheme, _, _ := strings.Cut(httpURL(&cfg.Serve), ":")
		c.base = scheme + "://" + dialable(cfg.HTTPListen)
	}
	return func() {}, c.logIn(&r.login, cfg.Insecure)
}

// asks returns the command of an adminVerb.
func (p *process) asks(v adminVerb) *cobra.Command {
	flags := settings.NewClusterFlags(v.use, settings.Admin)
	if v.store {
		flags.Lookup("export-store").Hidden, flags.Lookup("emulator").Hidden = false, false
	} else {
		flags.Lookup("store").Hidden = true
	}
	own := pflag.NewFlagSet(v.use, pflag.ContinueOnError)
	own.SortFlags = false
	if v.flags != nil {
		own.AddFlagSet(v.flags)
	}
	r := &reach{p: p, flags: flags}
	r.at = own.String("admin", "", "`URL` of the server's admin service; by default that of http-listen")
	asJSON := own.Bool("json", false, "print JSON")
	timeout := own.Duration("timeout", v.limit, "how long to wait; 0: as long as it takes")
	r.login.flags(own, p)
	own.AddFlagSet(flags.FlagSet)
	if v.long == "" {
		v.long = sentence(v.short)
	}
	cmd := p.verb(v.use, v.short, v.long+reachHelp, own, func(cmd *cobra.Command, args []string) int {
		cfg, cluster, err := r.load()
		if err == nil && v.check != nil {
			err = v.check(args)
		}
		if err == nil && cluster && v.store && (cfg.Store == "" || cfg.ExportStore == "") {
			err = fmt.Errorf("%s needs --store and --export-store with --etcd, as the servers have them, or --admin of a tablet server", cmd.CommandPath())
		}
		if err != nil {
			return p.misused(err)
		}
		ctx, stop := commandContext(*timeout)
		defer stop()
		c := &adminClient{p: p, ctx: ctx, json: *asJSON, verb: cmd.Name()}
		var release func()
		err = p.telling(c.verb, func(*progress) (err error) {
			release, err = r.open(c, cfg, cluster, v.store)
			return err
		})
		if err != nil {
			return p.failed(explain(ctx, err))
		}
		defer release()
		if err := v.run(c, args); err != nil {
			return p.failed(explain(ctx, err))
		}
		return exitOK
	})
	r.complete(cmd, v.fresh)
	return cmd
}

// An adminClient speaks with ops.Admin.
type adminClient struct {
	p    *process
	ctx  context.Context
	base string
	http http.Client
	key  *auth.KeyCredentials // nil: none
	verb string
	json bool
}

// overCluster makes c speak with an ops.Admin in this process, which acts on the
// cluster. Who can reach the lock service may do everything.
func (c *adminClient) overCluster(cfg *settings.Set, withStore bool) (_ func(), err error) {
	var undo []func()
	release := func() {
		for i := len(undo) - 1; i >= 0; i-- {
			undo[i]()
		}
	}
	defer func() {
		if err != nil {
			release()
		}
	}()
	n, err := joinNow(c.ctx, cfg)
	if err != nil {
		return nil, err
	}
	undo = append(undo, n.Close)
	schemas, err := watchSchemas(c.ctx, cfg, n)
	if err != nil {
		return nil, err
	}
	quiet := slog.New(slog.DiscardHandler)
	tables := client.New(client.Options{Lock: n.Lock, Dialer: n.Dialer, Schemas: schemas})
	who, err := auth.Open(c.ctx, tables, auth.Options{Off: true, Log: quiet})
	if err != nil {
		return nil, err
	}
	undo = append(undo, who.Close)
	x := &exports{tables: tables, at: cfg.ExportStore}
	if withStore {
		host, _ := os.Hostname()
		x.owner = objectstore.OnceOwner(plainName(host)) // no other process's unfinished files are its own
		store, err := openSharedStore(c.ctx, cfg, x.owner)
		if err != nil {
			return nil, err
		}
		x.objects = store.SSTables
		if x.front, err = gateway.New(tables, gateway.Options{Zone: cfg.Zone, Cluster: cfg.Cluster, Emulator: cfg.Emulator, Auth: who, Log: quiet}); err != nil {
			return nil, err
		}
		undo = append(undo, func() { _ = x.front.Stop(context.WithoutCancel(c.ctx)) })
	}
	admin := ops.NewAdmin()
	undo = append(undo, admin.Close)
	admin.ShowHeat(ops.AskHeat(func(ctx context.Context, question []byte) ([]byte, error) {
		return tables.AskAny(ctx, ops.HeatQuestion, question)
	}))
	admin.Start(clusterOperator{tables, x, func() []tablet.TableDamage { return nil }}, who)
	c.base, c.http.Transport = "http://localhost", inProcess{ops.Gate{}.Handler(admin.Routes())}
	return release, nil
}

// commandContext returns what a command does its work within: it ends with an
// interrupt, or after --timeout unless that is 0.
func commandContext(timeout time.Duration) (context.Context, func()) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	if timeout <= 0 {
		return ctx, stop
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("it was not done within %v (--timeout)", timeout))
	return ctx, func() { cancel(); stop() }
}

// whyEnded says what ended ctx, which may be below that of commandContext; nil if it
// goes on.
func whyEnded(ctx context.Context) error {
	switch {
	case ctx.Err() == nil:
		return nil
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return context.Cause(ctx)
	}
	return errors.New("interrupted")
}

// explain returns the error of a command with what ended its context in place of the
// words that Go has for that.
func explain(ctx context.Context, err error) error {
	why := whyEnded(ctx)
	if why == nil || !strings.Contains(err.Error(), ctx.Err().Error()) {
		return err
	}
	return errors.New(strings.ReplaceAll(err.Error(), ctx.Err().Error(), why.Error()))
}

// reachLimit is how long a command tries to reach the lock service. Tests have less
// time.
var reachLimit = 15 * time.Second

// joinAny connects to the lock service for a command, even if it knows nothing of
// the cluster.
func joinAny(ctx context.Context, cfg *settings.Set) (*node.Node, error) {
	reach, cancel := context.WithTimeout(ctx, reachLimit)
	defer cancel()
	n, err := join(reach, cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, unreached(ctx, cfg, err)
	}
	return n, nil
}

// unreached is the error of a command that asked the lock service within ctx, and was
// not answered. Who gave it little time, or no more, is not told that it is away.
func unreached(ctx context.Context, cfg *settings.Set, err error) error {
	if why := whyEnded(ctx); why != nil {
		return fmt.Errorf("the lock service, etcd at %s, has not answered: %w", cfg.Etcd, why)
	}
	return fmt.Errorf("the lock service, etcd at %s, cannot be reached: %w", cfg.Etcd, err)
}

// watchSchemas reads the schemas of a cluster's tables for a command.
func watchSchemas(ctx context.Context, cfg *settings.Set, n *node.Node) (*catalog.Schemas, error) {
	reach, cancel := context.WithTimeout(ctx, reachLimit)
	defer cancel()
	schemas, err := catalog.WatchSchemas(reach, n.Context(), n.Lock)
	if err != nil && reach.Err() != nil {
		err = unreached(ctx, cfg, err)
	}
	return schemas, err
}

// joinNow is joinAny of a cluster that there is.
func joinNow(ctx context.Context, cfg *settings.Set) (*node.Node, error) {
	n, err := joinAny(ctx, cfg)
	if err != nil {
		return nil, err
	}
	reach, cancel := context.WithTimeout(ctx, reachLimit)
	defer cancel()
	if err := n.CheckExists(reach); err != nil {
		n.Close()
		if reach.Err() != nil {
			err = unreached(ctx, cfg, err)
		}
		return nil, err
	}
	return n, nil
}

// inProcess answers requests by a handler in this process.
type inProcess struct{ h http.Handler }

// RoundTrip implements http.RoundTripper.
func (t inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	in := r.Clone(r.Context())
	in.RemoteAddr, in.Host, in.RequestURI = "127.0.0.1:0", r.URL.Host, r.URL.RequestURI()
	if in.Body == nil {
		in.Body = http.NoBody
	}
	a := &answer{header: http.Header{}, code: http.StatusOK}
	t.h.ServeHTTP(a, in)
	return &http.Response{StatusCode: a.code, Status: fmt.Sprintf("%d %s", a.code, http.StatusText(a.code)), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: a.header, Body: io.NopCloser(&a.body), ContentLength: int64(a.body.Len()), Request: r}, nil
}

// An answer is what a handler has answered.
type answer struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) WriteHeader(code int)        { a.code = code }
func (a *answer) Write(b []byte) (int, error) { return a.body.Write(b) }

// logIn makes c use what l says. Keys' tokens go to other machines over TLS only,
// unless insecure allows otherwise.
func (c *adminClient) logIn(l *login, insecure bool) (err error) {
	at, err := url.Parse(c.base)
	if err != nil || at.Host == "" || at.Scheme != "http" && at.Scheme != "https" {
		return fmt.Errorf("--admin %q is not of the form http://HOST:PORT or https://HOST:PORT", c.base)
	}
	if c.key, err = l.key(true); err != nil && l.given() {
		return err // what the environment names may be for Google, and not be needed here
	}
	if c.key != nil && at.Scheme == "http" && !settings.IsLoopback(net.JoinHostPort(at.Hostname(), "0")) && !insecure {
		return fmt.Errorf("%s has no TLS: who listens on the way could use --credentials too (give an https address, or --insecure)", c.base)
	}
	security, err := l.tls()
	if err != nil {
		return err
	}
	c.http.Transport = &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: security}
	return nil
}

// call is request, which shows its progress as that of the verb.
func (c *adminClient) call(ctx context.Context, method, path string, in, out any) error {
	return c.callFor(ctx, c.verb, method, path, in, out)
}

// callFor is request, which shows its progress as that of what.
func (c *adminClient) callFor(ctx context.Context, what, method, path string, in, out any) error {
	return c.p.telling(what, func(*progress) error { return c.request(ctx, method, path, in, out) })
}

// request makes a request and decodes the answer into out.
func (c *adminClient) request(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if c.key != nil {
		headers, err := c.key.GetRequestMetadata(ctx)
		if err != nil {
			return err
		}
		for name, value := range headers {
			req.Header.Set(name, value)
		}
	}
	resp, err := c.http.Do(req)
	var answer []byte
	if err != nil {
		err = fmt.Errorf("reach the admin service: %w", err)
	} else {
		defer resp.Body.Close()
		if answer, err = io.ReadAll(io.LimitReader(resp.Body, 256<<20)); err != nil {
			err = fmt.Errorf("read the answer: %w", err)
		}
	}
	if why := whyEnded(ctx); why != nil && (err != nil || resp.StatusCode >= 300) {
		return why // what was answered, or by whom, tells no more than that
	}
	if err != nil {
		return err
	}
	if resp.StatusCode >= 300 {
		var e struct{ Error string }
		if json.Unmarshal(answer, &e) != nil || e.Error == "" {
			e.Error = fmt.Sprintf("%s is no admin service: it answers %s", c.base, resp.Status)
		}
		if resp.StatusCode == http.StatusUnauthorized {
			e.Error = strings.TrimSuffix(e.Error, ".") + "; see --credentials"
		}
		return errors.New(e.Error)
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return fmt.Errorf("decode the answer: %w", err)
	}
	return nil
}

// print prints an answer as JSON.
func (c *adminClient) print(v any) error { return printJSON(c.p.stdout, v) }

// await starts a job, which is what, waits for its end and prints it.
func (c *adminClient) await(path string, body any, what string) error {
	var j ops.Job
	if err := c.call(c.ctx, http.MethodPost, path, body, &j); err != nil {
		return err
	}
	if err := c.p.telling(what, func(g *progress) error { return c.follow(&j, g) }); err != nil {
		return err
	}
	if c.json {
		if err := c.print(j); err != nil {
			return err
		}
	} else {
		for _, d := range j.Damaged {
			fmt.Fprintf(c.p.stdout, "damage  %s of tablet %s of %s, rows [%s, %s): %s\n", d.Object, d.Tablet, d.Table, d.Start, d.End, d.Error)
		}
		if j.State == ops.Done {
			size := ""
			if j.BytesTotal > 0 {
				size = ", " + byteSize(j.BytesTotal)
			}
			fmt.Fprintf(c.p.stdout, "%s: done%s in %v\n", what, size, j.Ended.Sub(j.Started).Round(time.Millisecond))
		}
	}
	switch {
	case j.State != ops.Done:
		return fmt.Errorf("%s: %s", what, j.Error)
	case len(j.Damaged) > 0:
		return fmt.Errorf("%d SSTables are damaged: rows in the blocks concerned answer DATA_LOSS", len(j.Damaged))
	}
	return nil
}

// follow waits for the end of a job.
func (c *adminClient) follow(j *ops.Job, g *progress) error {
	for j.State == ops.Running {
		err := c.request(c.ctx, http.MethodGet, "/admin/jobs/"+j.ID+"?wait=1", nil, j)
		if c.ctx.Err() != nil {
			// The interrupt is meant for the job.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), 5*time.Second)
			defer cancel()
			return errors.Join(whyEnded(c.ctx), c.request(ctx, http.MethodDelete, "/admin/jobs/"+j.ID, nil, j))
		}
		if err != nil {
			return err
		}
		switch {
		case j.BytesTotal > 0:
			g.bytes(j.BytesDone, j.BytesTotal)
		case j.TabletsLeft > 0:
			g.far("%d tablets left", j.TabletsLeft)
		}
	}
	return nil
}
