package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/cluster/master"
	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/cluster/node"
	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
	"github.com/trestledb/trestle/cmd/trestle/internal/settings"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
)

// A clusterVerb is what a command does that asks etcd, and perhaps the store,
// itself.
type clusterVerb struct {
	run func(o *operator, ctx context.Context, args []string) error
	// empty says that the lock service may know nothing of the cluster, and alone that
	// it is not asked.
	empty, alone bool
}

// An operator asks a cluster.
type operator struct {
	p       *process
	n       *node.Node
	cfg     *settings.Set
	client  *client.Client
	meta    *metastore.Store
	json    bool
	tablets bool
	yes     bool
	// Of adopt and release.
	dataDir, command string
	done, abandon    bool
}

const recoverHelp = `Gives an etcd that was lost, or restored from an older snapshot, the store's
newest copy of it. All processes are stopped. Without --yes it says what that
would lose, and changes nothing.`

const adoptHelp = `Makes the cluster, which is empty, one with the tables of --data-dir, the
directory of a trestle serve that was stopped. --store says where its data is to
be.`

const releaseHelp = `Makes --data-dir, which is empty, the directory of a trestle serve with the
tables of the cluster, all of whose processes were stopped. --store says where
its data is.`

const certsHelp = `Makes the certificates that servers show each other: DIR/NAME.pem and
DIR/NAME-key.pem for each name, and the authority DIR/ca.pem. What ends within
30 days is made anew.`

// clusterCommand shows a cluster, and does to it what takes etcd or the store
// itself: what tablets and servers do, other commands ask for.
func clusterCommand(p *process) *cobra.Command {
	o := &operator{p: p}
	verb := func(use, short, long string, limit time.Duration, v clusterVerb, bind func(f *pflag.FlagSet)) *cobra.Command {
		own := pflag.NewFlagSet(use, pflag.ContinueOnError)
		own.SortFlags = false
		bind(own)
		flags := settings.NewClusterFlags(use, settings.Operator)
		var timeout time.Duration
		if !v.alone {
			own.DurationVar(&timeout, "timeout", limit, "how long to wait; 0: as long as it takes")
			own.AddFlagSet(flags.FlagSet)
		}
		return p.verb(use, short, long, own, func(c *cobra.Command, args []string) int {
			cfg, err := flags.Load(p.environ)
			if err == nil && o.done && o.abandon {
				err = errors.New("done and abandon exclude each other")
			}
			if err != nil {
				return p.misused(err)
			}
			o.command = fmt.Sprintf("%s --data-dir %s --cluster %s --etcd %s --store %s", c.CommandPath(), absolute(o.dataDir), cfg.Cluster, cfg.Etcd, cfg.Store)
			return o.over(cfg, timeout, v, args)
		})
	}
	transfer := func(f *pflag.FlagSet) {
		f.StringVar(&o.dataDir, "data-dir", "", "the data directory")
		f.BoolVar(&o.done, "done", false, "make sure that what was copied is never served again where it was")
		f.BoolVar(&o.abandon, "abandon", false, "let what was copied, or began to be, be served again where it is")
		f.BoolVar(&o.json, "json", false, "print JSON")
	}
	const limit = 5 * time.Minute
	return p.group("cluster", "show a cluster, recover it, or move it to and from a data directory", "Shows a cluster, and does to it what takes its etcd or its store.",
		verb("status", "print master, servers and tables; with --tablets each tablet", "", limit, clusterVerb{run: (*operator).status}, func(f *pflag.FlagSet) {
			f.BoolVar(&o.tablets, "tablets", false, "print every tablet")
			f.BoolVar(&o.json, "json", false, "print JSON")
		}),
		verb("recover", "give an etcd that was lost the store's newest copy of it", recoverHelp, limit, clusterVerb{run: (*operator).recover, empty: true}, func(f *pflag.FlagSet) {
			f.BoolVar(&o.yes, "yes", false, "do it")
			f.BoolVar(&o.json, "json", false, "print JSON")
		}),
		verb("adopt", "make an empty cluster one with the tables of a data directory", adoptHelp, 0, clusterVerb{run: (*operator).adopt, empty: true}, transfer),
		verb("release", "make an empty data directory one with the tables of a cluster", releaseHelp, 0, clusterVerb{run: (*operator).release}, transfer),
		verb("certs DIR NAME...", "make the certificates that servers show each other", certsHelp, 0, clusterVerb{run: (*operator).certs, alone: true}, func(f *pflag.FlagSet) {
			f.BoolVar(&o.json, "json", false, "print JSON")
		}),
	)
}

// over does what a verb does to the cluster that cfg says, within limit unless that
// is 0.
func (o *operator) over(cfg *settings.Set, limit time.Duration, v clusterVerb, args []string) int {
	p := o.p
	ctx, stop := commandContext(limit)
	defer stop()
	o.cfg = cfg
	// Who abandons an adoption asks no etcd, which may be gone.
	if !v.alone && !(v.empty && o.abandon) {
		err := cfg.ValidateNode()
		if err != nil {
			return p.misused(err)
		}
		if v.empty {
			o.n, err = joinAny(ctx, cfg)
		} else {
			o.n, err = joinNow(ctx, cfg)
		}
		if err != nil {
			return p.failed(err)
		}
		defer o.n.Close()
		schemas, err := watchSchemas(ctx, cfg, o.n)
		if err != nil {
			return p.failed(err)
		}
		o.client = client.New(client.Options{Lock: o.n.Lock, Dialer: o.n.Dialer, Schemas: schemas})
		o.meta = o.client.Metadata()
	}
	if err := v.run(o, ctx, args); err != nil {
		return p.failed(explain(ctx, err))
	}
	return exitOK
}

// A clusterStatus is what status prints.
type clusterStatus struct {
	Master  string             `json:"master"`
	Servers []ops.TabletServer `json:"servers"`
	Tables  []tableStatus      `json:"tables"`
	// Damaged are segments of commit logs of servers that are gone, which tablets
	// wait for.
	Damaged []damagedStatus `json:"damaged,omitempty"`
	// DamagedMore says that more tablets wait than Damaged names.
	DamagedMore bool `json:"damaged_more,omitempty"`
}

type damagedStatus struct {
	Object string    `json:"object"`
	Server string    `json:"server"`
	Error  string    `json:"error"`
	Since  time.Time `json:"since"`
	Table  string    `json:"table"`
	Tablet string    `json:"tablet"`
	Start  string    `json:"start"`
	End    string    `json:"end"`
}

type tableStatus struct {
	Table   string          `json:"table"`
	Tablets []clusterTablet `json:"tablets"`
}

type clusterTablet struct {
	Tablet    string `json:"tablet"`
	Start     string `json:"start"`
	End       string `json:"end"`
	State     string `json:"state"`
	Server    string `json:"server"`
	Epoch     uint64 `json:"epoch"`
	Bytes     int64  `json:"bytes"`
	Operation bool   `json:"operation,omitempty"`
}

func (o *operator) status(ctx context.Context, _ []string) error {
	var out clusterStatus
	item, err := o.n.Lock.Get(ctx, master.Key)
	switch {
	case err == nil:
		var r catalog.Registration
		if err := json.Unmarshal(item.Value, &r); err != nil {
			return err
		}
		out.Master = r.Name
	case !errors.Is(err, fault.NotFound):
		return err
	}
	servers, err := o.client.Servers(ctx)
	if err != nil {
		return err
	}
	for _, s := range servers {
		out.Servers = append(out.Servers, describeServer(s))
	}
	sizes, err := o.client.Sizes(ctx)
	if err != nil {
		return err
	}
	names, err := o.tableNames(ctx)
	if err != nil {
		return err
	}
	one, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	rows := map[metadata.TabletID]*metadata.Row{}
	err = o.rows(one, func(r *metadata.Row) error {
		rows[r.Tablet] = r
		name := names[r.Table]
		if name == "" {
			name = fmt.Sprintf("table %x", r.Table)
		}
		if n := len(out.Tables); n == 0 || out.Tables[n-1].Table != name {
			out.Tables = append(out.Tables, tableStatus{Table: name})
		}
		t := clusterTablet{Tablet: r.Tablet.String(), Start: ops.EscapeKey(r.Start), End: ops.EscapeKey(r.End), Operation: r.Op != nil, Bytes: sizes[r.Tablet]}
		if a := r.Assignment; a != nil {
			t.State, t.Server, t.Epoch = a.State.String(), a.Server, a.Epoch
		}
		if _, ok := sizes[r.Tablet]; !ok {
			for _, f := range r.Files {
				t.Bytes += f.Size
			}
		}
		last := &out.Tables[len(out.Tables)-1]
		last.Tablets = append(last.Tablets, t)
		return nil
	})
	missing := err
	damaged, err := catalog.DamagedLogs(ctx, o.n.Lock)
	if err != nil {
		return err
	}
	if missing == nil {
		damaged = catalog.StillWaiting(damaged, rows)
	}
	for _, d := range damaged {
		out.DamagedMore = out.DamagedMore || d.More
		for _, t := range d.Tablets {
			out.Damaged = append(out.Damaged, damagedStatus{Object: t.Object, Server: d.Server, Error: t.Error, Since: t.Since, Table: t.Table,
				Tablet: t.Tablet.String(), Start: ops.EscapeKey(t.Start), End: ops.EscapeKey(t.End)})
		}
	}
	slices.SortFunc(out.Damaged, func(a, b damagedStatus) int {
		return cmp.Or(cmp.Compare(a.Object, b.Object), cmp.Compare(a.Table, b.Table), cmp.Compare(a.Start, b.Start))
	})
	if o.json {
		return errors.Join(o.print(out), missing)
	}
	if err := out.print(o.p.screen(), o.tablets); err != nil {
		return err
	}
	if missing != nil {
		return fmt.Errorf("read METADATA: %w", missing)
	}
	return nil
}

// print writes what --json prints.
func (o *operator) print(v any) error { return printJSON(o.p.stdout, v) }

func (c *clusterStatus) print(out io.Writer, tablets bool) error {
	if c.Master == "" {
		fmt.Fprintln(out, "master: none"+wrong)
	} else {
		fmt.Fprintf(out, "master: %s\n", c.Master)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out)
	if err := printServers(out, c.Servers); err != nil {
		return err
	}
	fmt.Fprint(w, "\nTABLETS\tSIZE\tNOT OPEN\tTABLE\n") // the name, which can be long, last
	for _, t := range c.Tables {
		var bytes int64
		closed := 0
		for _, x := range t.Tablets {
			bytes += x.Bytes
			if x.State != metadata.Open.String() {
				closed++
			}
		}
		notOpen := strconv.Itoa(closed)
		if strings.HasSuffix(t.Table, deletedMark) {
			notOpen = "-" // they are not served after a while
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%s%s\n", len(t.Tablets), byteSize(bytes), notOpen, t.Table, flaw(notOpen != "-" && closed > 0))
	}
	if len(c.Damaged) > 0 {
		fmt.Fprint(w, "\nnot served: a segment of the commit log of a server that is gone is damaged"+wrong+"\nTABLET\tSTART\tEND\tTABLE\tSERVER\tSEGMENT\n")
		for _, d := range c.Damaged {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s%s\n", d.Tablet, d.Start, d.End, d.Table, d.Server, d.Object, wrong)
		}
		if c.DamagedMore {
			fmt.Fprintln(w, "More tablets wait than are named here.")
		}
		fmt.Fprintf(w, "Bring the segment back to its place in the store (log/%s), or ask what it costs to give it up: trestle log drop-damaged %[1]s\n", c.Damaged[0].Object)
	}
	if tablets {
		key := keysFor(out, false, 0)
		for _, t := range c.Tables {
			fmt.Fprintf(w, "\n%s\nTABLET\tSTART\tEND\tSERVER\tSTATE\tEPOCH\tSIZE\n", t.Table)
			for _, x := range t.Tablets {
				fmt.Fprintf(w, "%s\t[%s\t%s)\t%s\t%s\t%d\t%s%s\n", x.Tablet, key(x.Start), key(x.End), x.Server, x.State, x.Epoch, byteSize(x.Bytes),
					flaw(x.State != metadata.Open.String() && !strings.HasSuffix(t.Table, deletedMark)))
			}
		}
	}
	return w.Flush()
}

// openStore opens the store for a verb, which makes nothing of it.
func (o *operator) openStore(ctx context.Context, verb string) (*node.Store, error) {
	return openSharedStore(ctx, o.cfg, verb)
}

// openSharedStore opens the store of a cluster for a command, which makes nothing of
// it.
func openSharedStore(ctx context.Context, cfg *settings.Set, command string) (*node.Store, error) {
	if cfg.Store == "" {
		return nil, fmt.Errorf("%s needs --store, as the servers have it", command)
	}
	return node.OpenMarkedStore(ctx, node.StoreOptions{URL: cfg.Store, Cluster: cfg.Cluster, Owner: command})
}

// tableNames returns the names of tables, by id.
func (o *operator) tableNames(ctx context.Context) (map[uint64]string, error) {
	items, _, err := o.n.Lock.List(ctx, catalog.TablesPrefix)
	if err != nil {
		return nil, err
	}
	names := map[uint64]string{metastore.Table: "METADATA"}
	for _, i := range items {
		n, err := catalog.ParseName(i)
		if err != nil {
			return nil, err
		}
		for _, t := range n {
			if names[t.ID] = t.Name; !t.DeleteTime.IsZero() {
				names[t.ID] += deletedMark
			}
		}
	}
	return names, nil
}

// deletedMark ends the names of tables that can be undeleted.
const deletedMark = " (deleted)"

// rows calls each with the METADATA rows of all tablets, METADATA's own first.
func (o *operator) rows(ctx context.Context, each func(*metadata.Row) error) error {
	return o.client.Rows(ctx, each)
}

// poll calls do until it is done or ctx ends.
func (o *operator) poll(ctx context.Context, what string, do func(g *progress) (bool, error)) error {
	return o.p.telling(what, func(g *progress) error {
		for {
			done, err := do(g)
			if done || err != nil && !errors.Is(err, fault.Unavailable) {
				return err
			}
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
				return fmt.Errorf("%s: it goes on, but was not done in time (is there a master?)", what)
			}
		}
	})
}
