package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/cluster/master"
	cmeta "github.com/trestledb/trestle/cluster/metadata"
	"github.com/trestledb/trestle/cluster/node"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
	"github.com/trestledb/trestle/cmd/trestle/internal/settings"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
)

// A clusterVerb is a command below `trestle cluster`.
type clusterVerb struct {
	args, help string
	flags      []string // those that it has beside the settings and --timeout
	run        func(o *operator, ctx context.Context, args []string) error
	// empty says that the lock service may know nothing of the cluster, alone that
	// it is not asked, and long that --timeout bounds nothing if it is not given.
	empty, alone, long bool
}

var clusterVerbs = map[string]clusterVerb{
	"status":           {help: "print master, servers and tables; with --tablets each tablet", flags: []string{"json", "tablets"}, run: (*operator).status},
	"recover":          {help: "give an etcd that was lost, or restored from an older snapshot, the store's newest copy of it; with --yes", flags: []string{"yes", "store"}, run: (*operator).recover, empty: true},
	"drop-damaged-log": {args: "LOG/SEGMENT...", help: "give up what is damaged in the commit log of a server that is gone, so that the tablets which wait for it are served (--store); with --yes", flags: []string{"yes", "store"}, run: (*operator).dropDamagedLog},
	"adopt": {help: "make the cluster, which is empty, one with the tables of --data-dir, the directory of a `trestle serve` that was stopped (--store)",
		flags: []string{"data-dir", "done", "abandon", "store"}, run: (*operator).adopt, empty: true, long: true},
	"release": {help: "make --data-dir, which is empty, the directory of a `trestle serve` with the tables of the cluster, all of whose processes were stopped (--store)",
		flags: []string{"data-dir", "done", "abandon", "store"}, run: (*operator).release, long: true},
	"certs":   {args: "DIR NAME...", help: "make the certificates that servers show each other: DIR/NAME.pem and DIR/NAME-key.pem for each name, and the authority DIR/ca.pem; what ends within 30 days is made anew", run: (*operator).certs, alone: true},
	"drain":   {args: "SERVER", help: "move all tablets away from a server and give it none, and wait for that", run: (*operator).drain},
	"undrain": {args: "SERVER", help: "let a server have tablets again", run: (*operator).undrain},
	"move":    {args: "TABLET SERVER", help: "move a tablet; with --pin it is kept there", flags: []string{"pin"}, run: (*operator).move},
	"split":   {args: "TABLET", help: "split a tablet at --key, or in its middle", flags: []string{"key"}, run: (*operator).split},
	"merge":   {args: "TABLET", help: "merge a tablet with the next one, which is moved to its server first", run: (*operator).merge},
	"flush":   {args: "TABLET...", help: "write memtables to SSTables; of all tablets of --table if none is named", flags: []string{"table"}, run: (*operator).flush},
	"compact": {args: "TABLET...", help: "rewrite tablets without what is deleted or expired; all of --table if none is named", flags: []string{"table"}, run: (*operator).compact},
}

// movedVerbs are those of earlier builds that have another place now.
var movedVerbs = map[string]string{"check": "trestle check --online"}

// An operator asks a cluster.
type operator struct {
	p       *process
	n       *node.Node
	cfg     *settings.Set
	client  *client.Client
	meta    *cmeta.Store
	table   string
	key     string
	keySet  bool
	json    bool
	tablets bool
	pin     bool
	yes     bool
	// Of adopt and release.
	dataDir, command string
	done, abandon    bool
}

// clusterCommand shows and changes a cluster.
func clusterCommand(p *process, args []string) int {
	verb := ""
	var words []string
	for len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		if verb == "" {
			verb = args[0]
		} else {
			words = append(words, args[0])
		}
		args = args[1:]
	}
	flags := settings.NewClusterFlags("cluster "+verb, settings.Operator)
	o := &operator{p: p}
	flags.StringVar(&o.table, "table", "", "the table, for flush and compact")
	flags.StringVar(&o.key, "key", "", "first row of the right part, for split")
	flags.BoolVar(&o.json, "json", false, "print status as JSON")
	flags.BoolVar(&o.tablets, "tablets", false, "print every tablet")
	flags.BoolVar(&o.pin, "pin", false, "keep the tablet where it is moved to")
	flags.BoolVar(&o.yes, "yes", false, "do it, for recover and drop-damaged-log")
	flags.StringVar(&o.dataDir, "data-dir", "", "the data directory, for adopt and release")
	flags.BoolVar(&o.done, "done", false, "make sure that what adopt or release copied is never served again where it was")
	flags.BoolVar(&o.abandon, "abandon", false, "let what adopt or release copied, or began to copy, be served again where it is")
	timeout := flags.Duration("timeout", 5*time.Minute, "how long to wait; adopt and release wait for ever if it is not given")
	cfg, err := flags.Resolve(args, p.environ)
	if helpAsked(err) {
		clusterHelp(p, flags.FlagSet, verb)
		return exitOK
	}
	v, ok := clusterVerbs[verb]
	if err == nil && !ok {
		err = fmt.Errorf("cluster takes a verb: %s", strings.Join(slices.Sorted(maps.Keys(clusterVerbs)), ", "))
		if now := movedVerbs[verb]; now != "" {
			err = fmt.Errorf("trestle cluster %s is %s now", verb, now)
		} else if verb != "" {
			err = fmt.Errorf("there is no verb %q: %w", verb, err)
		}
	}
	if want := strings.Fields(v.args); err == nil && len(words) != len(want) && !strings.HasSuffix(v.args, "...") {
		err = fmt.Errorf("cluster %s takes %d arguments: %s", verb, len(want), v.args)
	}
	if err != nil {
		return p.misused(err)
	}
	o.keySet = flags.Changed("key")
	if o.done && o.abandon {
		return p.misused(errors.New("done and abandon exclude each other"))
	}
	o.command = fmt.Sprintf("trestle cluster %s --data-dir %s --cluster %s --etcd %s --store %s", verb, absolute(o.dataDir), cfg.Cluster, cfg.Etcd, cfg.Store)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if !v.long || flags.Changed("timeout") {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, *timeout)
		defer cancel()
	}
	reach, cancelReach := context.WithTimeout(ctx, 15*time.Second)
	defer cancelReach()
	if v.alone || verb == "adopt" && o.abandon {
		if err := v.run(o, ctx, words); err != nil {
			return p.failed(err)
		}
		return exitOK
	}
	o.cfg = cfg
	if o.n, err = join(reach, cfg, slog.New(slog.DiscardHandler)); err != nil {
		return p.failed(fmt.Errorf("the lock service, etcd at %s, cannot be reached: %w", cfg.Etcd, err))
	}
	defer o.n.Close()
	if !v.empty {
		if err := o.n.CheckExists(reach); err != nil {
			return p.failed(err)
		}
	}
	schemas, err := catalog.WatchSchemas(reach, o.n.Context(), o.n.Lock)
	if err != nil {
		return p.failed(err)
	}
	o.client = client.New(client.Options{Lock: o.n.Lock, Dialer: o.n.Dialer, Schemas: schemas})
	o.meta = o.client.Metadata()
	if err := v.run(o, ctx, words); err != nil {
		return p.failed(err)
	}
	return exitOK
}

// clusterHelp explains a verb, its own flags first; all verbs if there is none of
// that name.
func clusterHelp(p *process, flags *pflag.FlagSet, verb string) {
	const words = "\nTABLET is an id as status prints it, TABLE the full name of a table or the last part of it. In KEY, \\xNN stands for any byte."
	of := map[string]bool{"timeout": true} // of all verbs, without the settings
	help := "Usage: trestle cluster VERB [ARGUMENTS] [flags]\n\n"
	for _, name := range slices.Sorted(maps.Keys(clusterVerbs)) {
		v := clusterVerbs[name]
		help += fmt.Sprintf("  %-32s %s\n", name+" "+v.args, v.help)
		for _, f := range v.flags {
			of[f] = true
		}
	}
	v, ok := clusterVerbs[verb]
	if !ok {
		printHelp(p, flags, help+words)
		return
	}
	usage := strings.Join(strings.Fields("Usage: trestle cluster "+verb+" "+v.args+" [flags]"), " ")
	own, settings := pflag.NewFlagSet(verb, pflag.ContinueOnError), pflag.NewFlagSet(verb, pflag.ContinueOnError)
	own.SortFlags, settings.SortFlags = false, false
	for _, name := range append(slices.Clone(v.flags), "timeout") {
		own.AddFlag(flags.Lookup(name))
	}
	flags.VisitAll(func(f *pflag.Flag) {
		if !of[f.Name] {
			settings.AddFlag(f)
		}
	})
	printHelp(p, own, usage+"\n\n"+strings.ToUpper(v.help[:1])+v.help[1:]+".\n"+words)
	if !v.alone {
		fmt.Fprintf(p.stdout, "\nSettings of every verb, which can be in the environment and in --config too:\n\n%s", settings.FlagUsagesWrapped(110))
	}
}

// A clusterStatus is what status prints.
type clusterStatus struct {
	Master  string
	Servers []serverStatus
	Tables  []tableStatus
	// Damaged are segments of commit logs of servers that are gone, which tablets
	// wait for.
	Damaged []damagedStatus `json:",omitempty"`
}

type damagedStatus struct {
	Object, Server, Error string
	Since                 time.Time
	Table, Tablet         string
	Start, End            string
}

type serverStatus struct {
	Name, Address string
	Incarnation   uint64
	Draining      bool
	Error         string `json:",omitempty"`
	Tablets       int
	Bytes         int64
	Reads, Writes float64
}

type tableStatus struct {
	Name    string
	Tablets []clusterTablet
}

type clusterTablet struct {
	ID            string
	Start, End    string
	State, Server string
	Epoch         uint64
	Bytes         int64
	Operation     bool `json:",omitempty"`
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
	servers, _, err := catalog.Servers(ctx, o.n.Lock)
	if err != nil {
		return err
	}
	drained, err := catalog.Drained(ctx, o.n.Lock)
	if err != nil {
		return err
	}
	sizes := map[metadata.TabletID]int64{}
	for _, r := range servers {
		s := serverStatus{Name: r.Name, Address: r.Addr, Incarnation: r.Incarnation, Draining: drained[r.Name]}
		one, cancel := context.WithTimeout(ctx, 5*time.Second)
		st, err := o.n.Dialer.Dial(r.Addr).Status(one)
		cancel()
		if err != nil {
			s.Error = err.Error()
		} else {
			s.Tablets = len(st.Tablets)
			for _, t := range st.Tablets {
				s.Bytes += t.Bytes
				s.Reads += t.Reads
				s.Writes += t.Writes
				sizes[t.Tablet] = t.Bytes
			}
		}
		out.Servers = append(out.Servers, s)
	}
	slices.SortFunc(out.Servers, func(a, b serverStatus) int { return cmp.Compare(a.Name, b.Name) })
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
		if n := len(out.Tables); n == 0 || out.Tables[n-1].Name != name {
			out.Tables = append(out.Tables, tableStatus{Name: name})
		}
		t := clusterTablet{ID: r.Tablet.String(), Start: ops.EscapeKey(r.Start), End: ops.EscapeKey(r.End), Operation: r.Op != nil, Bytes: sizes[r.Tablet]}
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
		for _, t := range d.Tablets {
			out.Damaged = append(out.Damaged, damagedStatus{Object: t.Object, Server: d.Server, Error: t.Error, Since: t.Since, Table: t.Table,
				Tablet: t.Tablet.String(), Start: ops.EscapeKey(t.Start), End: ops.EscapeKey(t.End)})
		}
	}
	slices.SortFunc(out.Damaged, func(a, b damagedStatus) int {
		return cmp.Or(cmp.Compare(a.Object, b.Object), cmp.Compare(a.Table, b.Table), cmp.Compare(a.Start, b.Start))
	})
	if o.json {
		enc := json.NewEncoder(o.p.stdout)
		enc.SetIndent("", "  ")
		return errors.Join(enc.Encode(out), missing)
	}
	if err := out.print(o.p.stdout, o.tablets); err != nil {
		return err
	}
	if missing != nil {
		return fmt.Errorf("read METADATA: %w", missing)
	}
	return nil
}

func (c *clusterStatus) print(out io.Writer, tablets bool) error {
	if c.Master == "" {
		fmt.Fprintln(out, "master: none")
	} else {
		fmt.Fprintf(out, "master: %s\n", c.Master)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "\nserver\tincarnation\taddress\ttablets\tbytes\treads/s\twrites/s\t\n")
	for _, s := range c.Servers {
		note := s.Error
		if s.Draining {
			note = strings.TrimSuffix("draining, "+note, ", ")
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%d\t%s\t%.0f\t%.0f\t%s\n", s.Name, s.Incarnation, s.Address, s.Tablets, byteSize(s.Bytes), s.Reads, s.Writes, note)
	}
	fmt.Fprint(w, "\ntable\ttablets\tbytes\tnot open\t\n")
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
		if strings.HasSuffix(t.Name, deletedMark) {
			notOpen = "-" // they are not served after a while
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t\n", t.Name, len(t.Tablets), byteSize(bytes), notOpen)
	}
	if len(c.Damaged) > 0 {
		fmt.Fprint(w, "\nnot served: a segment of the commit log of a server that is gone is damaged\ntablet\tstart\tend\ttable\tserver\tsegment\n")
		for _, d := range c.Damaged {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", d.Tablet, d.Start, d.End, d.Table, d.Server, d.Object)
		}
		fmt.Fprintf(w, "Bring the segment back to its place in the store (log/%s), or ask what it costs to give it up: trestle cluster drop-damaged-log %[1]s\n", c.Damaged[0].Object)
	}
	if tablets {
		for _, t := range c.Tables {
			fmt.Fprintf(w, "\n%s\ntablet\tstart\tend\tserver\tstate\tepoch\tbytes\n", t.Name)
			for _, x := range t.Tablets {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%s\n", x.ID, x.Start, x.End, x.Server, x.State, x.Epoch, byteSize(x.Bytes))
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
	names := map[uint64]string{cmeta.Table: "METADATA"}
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

// find returns the row of a tablet.
func (o *operator) find(ctx context.Context, id string) (*metadata.Row, error) {
	n, err := strconv.ParseUint(id, 16, 64)
	if err != nil {
		return nil, fmt.Errorf("%q is not the id of a tablet: trestle cluster status --tablets prints them", id)
	}
	return o.client.RowOf(ctx, metadata.TabletID(n))
}

// poll calls do until it is done or ctx ends.
func (o *operator) poll(ctx context.Context, what string, do func() (bool, error)) error {
	for {
		done, err := do()
		if done || err != nil && !errors.Is(err, fault.Unavailable) {
			return err
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%s: it goes on, but was not done in time (is there a master?)", what)
		}
	}
}

func (o *operator) drain(ctx context.Context, args []string) error {
	name := args[0]
	if err := o.client.Drain(ctx, name); err != nil {
		return err
	}
	last := -1
	err := o.poll(ctx, "drain "+name, func() (bool, error) {
		left := 0
		err := o.rows(ctx, func(r *metadata.Row) error {
			if a := r.Assignment; a != nil && a.Server == name && a.State != metadata.Unassigned {
				left++
			}
			return nil
		})
		if err != nil {
			return false, err
		}
		if left != last && left > 0 {
			fmt.Fprintf(o.p.stdout, "%s has %d tablets left\n", name, left)
			last = left
		}
		return left == 0, nil
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(o.p.stdout, "%s has no tablets and gets none: stop it, or `trestle cluster undrain %[1]s`\n", name)
	return nil
}

func (o *operator) undrain(ctx context.Context, args []string) error {
	if err := o.client.Undrain(ctx, args[0]); err != nil {
		return err
	}
	fmt.Fprintf(o.p.stdout, "%s gets tablets again\n", args[0])
	return nil
}

func (o *operator) move(ctx context.Context, args []string) error {
	r, err := o.find(ctx, args[0])
	if err != nil {
		return err
	}
	if err := o.client.Move(ctx, r, args[1], o.pin); err != nil {
		return err
	}
	fmt.Fprintf(o.p.stdout, "tablet %s is served by %s\n", args[0], args[1])
	return nil
}

func (o *operator) split(ctx context.Context, args []string) error {
	r, err := o.find(ctx, args[0])
	if err != nil {
		return err
	}
	var key []byte
	if o.keySet {
		if key, err = ops.UnescapeKey(o.key); err != nil {
			return err
		}
	}
	return o.client.Split(ctx, r, key)
}

func (o *operator) merge(ctx context.Context, args []string) error {
	left, err := o.find(ctx, args[0])
	if err != nil {
		return err
	}
	return o.client.Merge(ctx, left)
}

// each calls do with the servers of the tablets that are meant, and what of
// these they serve.
func (o *operator) each(ctx context.Context, args []string, do func(rpc.TabletServer, []metadata.TabletID) error) error {
	if len(args) == 0 && o.table == "" {
		return errors.New("say which tablets are meant, or --table")
	}
	wanted := map[string]bool{}
	for _, a := range args {
		wanted[strings.TrimLeft(a, "0")] = true
	}
	var table uint64
	if len(args) == 0 {
		names, err := o.tableNames(ctx)
		if err != nil {
			return err
		}
		for id, name := range names {
			if name == o.table || strings.HasSuffix(name, "/tables/"+o.table) {
				if table != 0 {
					return fmt.Errorf("more than one table is called %s: give the full name", o.table)
				}
				table = id
			}
		}
		if table == 0 {
			return fmt.Errorf("no table is called %s", o.table)
		}
	}
	byAddr := map[string][]metadata.TabletID{}
	n := 0
	err := o.rows(ctx, func(r *metadata.Row) error {
		if !wanted[r.Tablet.String()] && (table == 0 || r.Table != table) {
			return nil
		}
		if r.Assignment == nil || r.Assignment.State != metadata.Open {
			return fmt.Errorf("tablet %v is not served at the moment", r.Tablet)
		}
		n++
		byAddr[r.Assignment.Addr] = append(byAddr[r.Assignment.Addr], r.Tablet)
		return nil
	})
	if err != nil {
		return err
	}
	if n < len(wanted) {
		return fmt.Errorf("%d of %d tablets are not there", len(wanted)-n, len(wanted))
	}
	for addr, ids := range byAddr {
		if err := do(o.n.Dialer.Dial(addr), ids); err != nil {
			return fmt.Errorf("server at %s: %w", addr, err)
		}
	}
	fmt.Fprintf(o.p.stdout, "%d tablets done\n", n)
	return nil
}

func (o *operator) flush(ctx context.Context, args []string) error {
	return o.each(ctx, args, func(s rpc.TabletServer, ids []metadata.TabletID) error { return s.Flush(ctx, ids) })
}

func (o *operator) compact(ctx context.Context, args []string) error {
	return o.each(ctx, args, func(s rpc.TabletServer, ids []metadata.TabletID) error { return s.Compact(ctx, ids) })
}
