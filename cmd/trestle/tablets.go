package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
	"github.com/trestledb/trestle/cmd/trestle/internal/settings"
	"github.com/trestledb/trestle/gateway/auth"
)

// A tabletVerb is a command below `trestle tablets`.
type tabletVerb struct {
	help string
	run  func(c *adminClient, sel ops.Selection) error
}

var tabletVerbs = map[string]tabletVerb{
	"list":         {"print the tablets of --table, or all", (*adminClient).list},
	"split":        {"split the tablet of --table that serves --key there: --key becomes the first row of the second", (*adminClient).split},
	"merge":        {"merge the tablet of --table that serves --key with the next one", (*adminClient).merge},
	"compact":      {"rewrite the tablet of --key, or --all of --table, without what is deleted or expired", (*adminClient).job},
	"flush":        {"write memtables to SSTables: the tablet of --key, or --all of --table", (*adminClient).job},
	"drop-damaged": {"forget the damaged SSTable --object of --table: what only it holds is lost, and --yes confirms that", (*adminClient).dropDamaged},
	"verify":       {"check the checksums of all SSTables: the tablet of --key, or --all of --table", (*adminClient).job},
}

// tablets asks a server about its tablets, or to do something to them.
func tablets(p *process, args []string) int {
	help := "Usage: trestle tablets VERB [--table TABLE] [--key KEY | --all | --object NAME] [--admin URL] [--ca FILE] [--credentials FILE] [--json]\n\n"
	for _, v := range slices.Sorted(maps.Keys(tabletVerbs)) {
		help += fmt.Sprintf("  %-12s %s\n", v, tabletVerbs[v].help)
	}
	help += "\nTABLE is the full name of a table or, if no other is called so, the last part of it. In KEY, \\xNN stands for any byte\nand \\\\ for a backslash. An interrupt cancels what was begun."
	verb := ""
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		verb, args = args[0], args[1:]
	}
	flags := settings.NewFlags("tablets " + verb)
	sel := ops.Selection{}
	flags.StringVar(&sel.Table, "table", "", "the table")
	key := flags.String("key", "", "a row key: the tablet that serves it is meant")
	flags.BoolVar(&sel.All, "all", false, "all tablets of the table")
	object := flags.String("object", "", "an SSTable, as verify names it")
	yes := flags.Bool("yes", false, "lose what the SSTable holds")
	admin := flags.String("admin", "", "where the server's admin service is; by default http-listen")
	asJSON := flags.Bool("json", false, "print what the server answers")
	var l login
	l.flags(flags.FlagSet, p)
	cfg, err := flags.Resolve(args, p.environ)
	if helpAsked(err) {
		printHelp(p, flags.FlagSet, help)
		return exitOK
	}
	v, ok := tabletVerbs[verb]
	if err == nil && !ok {
		err = fmt.Errorf("tablets takes a verb: %s", strings.Join(slices.Sorted(maps.Keys(tabletVerbs)), ", "))
	}
	if err != nil {
		return p.misused(err)
	}
	if flags.Changed("key") {
		sel.Key = key
	}
	return p.withAdmin(cfg, *admin, &l, func(c *adminClient) error {
		c.verb, c.json = verb, *asJSON
		c.object, c.yes = *object, *yes
		return v.run(c, sel)
	})
}

// withAdmin calls do with a client of the admin service at an address, or at
// http-listen if that is empty.
func (p *process) withAdmin(cfg *settings.Set, at string, l *login, do func(c *adminClient) error) int {
	if at == "" {
		if cfg.HTTPListen == "" {
			return p.misused(fmt.Errorf("http-listen (%s) is off, so there is no admin service", cfg.Origin("http-listen")))
		}
		scheme, _, _ := strings.Cut(httpURL(&cfg.Serve), ":")
		at = scheme + "://" + dialable(cfg.HTTPListen)
	}
	c := &adminClient{p: p, base: strings.TrimSuffix(at, "/")}
	if err := c.logIn(l, cfg.Insecure); err != nil {
		return p.failed(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c.ctx = ctx
	if err := do(c); err != nil {
		return p.failed(err)
	}
	return exitOK
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
	// object and yes are those of drop-damaged.
	object string
	yes    bool
}

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

// call makes a request and decodes the answer into out.
func (c *adminClient) call(ctx context.Context, method, path string, in, out any) error {
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
	if err != nil {
		return fmt.Errorf("reach the admin service: %w", err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 256<<20))
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
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
func (c *adminClient) print(v any) error {
	e := json.NewEncoder(c.p.stdout)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

func (c *adminClient) list(sel ops.Selection) error {
	var got ops.TabletList
	if err := c.call(c.ctx, http.MethodGet, "/admin/tablets?table="+url.QueryEscape(sel.Table), nil, &got); err != nil {
		return err
	}
	if c.json {
		return c.print(got)
	}
	for rest := got.Tablets; len(rest) > 0; {
		n, size := 0, int64(0)
		for n < len(rest) && rest[n].Table == rest[0].Table {
			size += rest[n].Bytes
			n++
		}
		if len(rest) < len(got.Tablets) {
			fmt.Fprintln(c.p.stdout)
		}
		plural := "s"
		if n == 1 {
			plural = ""
		}
		fmt.Fprintf(c.p.stdout, "%s: %d tablet%s, %s\n", rest[0].Table, n, plural, byteSize(size))
		if err := printTablets(c.p.stdout, rest[:n]); err != nil {
			return err
		}
		rest = rest[n:]
	}
	return nil
}

func printTablets(out io.Writer, list []ops.Tablet) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	cluster := slices.ContainsFunc(list, func(t ops.Tablet) bool { return t.Server != "" })
	head := "  TABLET\tFROM\tTO\tSIZE\tMEMORY\tRUNS\tFILES\tREAD/S\tWRITTEN/S\tLAST MAJOR\tREDO"
	if cluster {
		head += "\tSERVER"
	}
	fmt.Fprintln(w, head)
	for _, t := range list {
		major, redo := "-", "-"
		if t.LastMajor != nil {
			major = t.LastMajor.UTC().Format("2006-01-02 15:04:05Z")
		}
		if t.Redo != "" {
			redo = t.Redo
		}
		fmt.Fprintf(w, "  %s\t[%s\t%s)\t%s\t%s\t%d\t%d\t%s\t%s\t%s\t%s", t.Tablet, t.Start, t.End, byteSize(t.Bytes), byteSize(t.MemtableBytes),
			t.Runs, t.Files, rate(t.RowsReadPerSecond), rate(t.RowsWrittenPerSecond), major, redo)
		if cluster {
			server := t.Server
			if server == "" {
				server = "-"
			}
			fmt.Fprintf(w, "\t%s", server)
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}

func rate(r float64) string {
	if r > 0 && r < 10 {
		return fmt.Sprintf("%.1f", r)
	}
	return fmt.Sprintf("%.0f", r)
}

func (c *adminClient) split(sel ops.Selection) error { return c.change(sel, "split at") }
func (c *adminClient) merge(sel ops.Selection) error {
	return c.change(sel, "merged with the next one the tablet of")
}

func (c *adminClient) change(sel ops.Selection, done string) error {
	var got struct{}
	if err := c.call(c.ctx, http.MethodPost, "/admin/tablets/"+c.verb, sel, &got); err != nil {
		return err
	}
	if c.json {
		return c.print(got)
	}
	_, err := fmt.Fprintf(c.p.stdout, "%s: %s %s\n", sel.Table, done, *sel.Key)
	return err
}

// dropDamaged has a damaged SSTable forgotten.
func (c *adminClient) dropDamaged(sel ops.Selection) error {
	in := ops.Drop{Table: sel.Table, Object: c.object}
	if c.yes {
		in.Confirm = c.object
	}
	var got ops.Dropped
	if err := c.call(c.ctx, http.MethodPost, "/admin/tablets/"+c.verb, in, &got); err != nil {
		if !c.yes && c.object != "" {
			err = fmt.Errorf("%w with --yes", err)
		}
		return err
	}
	if c.json {
		return c.print(got)
	}
	_, err := fmt.Fprintf(c.p.stdout, "%s: dropped %s: %d entries (%s) of rows from %s to %s are lost, where no other SSTable has them; deletions among them too\n",
		sel.Table, c.object, got.Entries, byteSize(got.Bytes), got.First, got.Last)
	return err
}

// job has something done to tablets.
func (c *adminClient) job(sel ops.Selection) error {
	return c.await("/admin/tablets/"+c.verb, sel, c.verb+" "+sel.Table)
}

// await starts a job, which is what, and waits for its end, telling on stderr how
// far it is.
func (c *adminClient) await(path string, body any, what string) error {
	var j ops.Job
	if err := c.call(c.ctx, http.MethodPost, path, body, &j); err != nil {
		return err
	}
	for j.State == ops.Running {
		err := c.call(c.ctx, http.MethodGet, "/admin/jobs/"+j.ID+"?wait=1", nil, &j)
		if c.ctx.Err() != nil {
			// The interrupt is meant for the job.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), 5*time.Second)
			defer cancel()
			return errors.Join(errors.New("interrupted"), c.call(ctx, http.MethodDelete, "/admin/jobs/"+j.ID, nil, &j))
		}
		if err != nil {
			return err
		}
		if j.State == ops.Running && j.BytesTotal > 0 {
			fmt.Fprintf(c.p.stderr, "%s: %s of %s\n", what, byteSize(j.BytesDone), byteSize(j.BytesTotal))
		}
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
