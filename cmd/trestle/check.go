package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trestledb/trestle/cluster/check"
	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/cluster/node"
	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
	"github.com/trestledb/trestle/cmd/trestle/internal/settings"
	"github.com/trestledb/trestle/engine/matview"
	"github.com/trestledb/trestle/gateway"
)

const checkHelp = `Prints what is wrong, a line each: where, what, and what to do. It changes
nothing.

  trestle check DIR
      the data directory of a server that is stopped; reads everything in it
  trestle check --online --store S [--etcd E] [--cluster C]
      a cluster that serves: METADATA, the tables, who serves them, the store;
      with --blocks reads every SSTable and commit log that METADATA names
  trestle check --store S [--etcd E] [--cluster C]
      a cluster that is stopped. METADATA is recovered in memory. Without --etcd
      it goes by the newest copy of etcd in the store, as trestle cluster
      recover does
  trestle check --views DIR
  trestle check --views --online --store S [--etcd E] [--cluster C]
      beside that, evaluates the query of each materialized view over the whole
      source, and names the rows that differ. A directory is served in memory,
      which takes as much as its commit log has
  trestle check --views --online --admin URL
      only that, by a server that serves

Views of a directory with damage are not compared.

Exits with 0 if there is no damage and no row differs, with 1 if not, or if it
could not be found out.`

// A checking is a call of trestle check.
type checking struct {
	p      *process
	line   *json.Encoder // nil: for a person
	what   string        // is checked
	online bool
	views  bool
	o      check.ClusterOptions
	// viewed is what was found out of materialized views, nil if they were not compared.
	viewed *check.ViewSummary
	told   *progress
}

// checkCommand verifies a data directory or a cluster.
func checkCommand(p *process) *cobra.Command {
	flags := settings.NewClusterFlags("check", settings.Operator)
	c := &checking{p: p, o: check.ClusterOptions{Rate: 64 << 20}}
	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	own.SortFlags = false
	asJSON := own.Bool("json", false, "print each finding, and last the summary, as a line of JSON")
	own.BoolVar(&c.online, "online", false, "the cluster serves")
	own.BoolVar(&c.views, "views", false, "also compare materialized views with their queries")
	at := own.String("admin", "", "with --views --online: `URL` of the admin service of a server")
	var l login
	l.flags(own, p)
	own.BoolVar(&c.o.Blocks, "blocks", false, "of a cluster, verify every checksum of SSTables and commit logs")
	own.Var((*settings.ByteRate)(&c.o.Rate), "rate", "bytes per second that --blocks reads at most, as in 50MiB; 0: as fast as it goes")
	timeout := own.Duration("timeout", 5*time.Minute, "how long it may take to look at a cluster; with --blocks or --views there is no bound unless it is given")
	own.AddFlagSet(flags.FlagSet)
	return p.verb("check [DIR]", "verify a data directory that no server has open, or a cluster, serving or stopped", checkHelp, own, func(v *cobra.Command, args []string) int {
		cfg, err := flags.Load(p.environ)
		if err == nil && *at != "" {
			if !c.views || !c.online || len(args) > 0 || flags.Changed("store") || c.o.Blocks {
				return p.misused(errors.New("--admin goes with --views and --online, and without a directory, --store or --blocks: a server compares its views"))
			}
			limit := *timeout
			if !v.Flags().Changed("timeout") {
				limit = 0
			}
			return c.ask(*at, &l, cfg.Insecure, *asJSON, limit)
		}
		cluster := err == nil && len(args) == 0 && (c.online || cfg.Store != "")
		if err == nil && cluster && c.views && !c.online {
			err = errors.New("--views compares what a cluster serves: give --online too")
		}
		if err == nil && !cluster && len(args) != 1 || err == nil && len(args) == 1 && c.online {
			err = errors.New("check takes one data directory, or --store of a cluster, with --online if that serves")
		}
		if err != nil {
			return p.misused(err)
		}
		if !cluster {
			return c.run(cfg, args[0], 0, *asJSON)
		}
		if err := cfg.ValidateNode(); err != nil {
			return p.misused(err)
		}
		limit := *timeout
		if (c.o.Blocks || c.views) && !v.Flags().Changed("timeout") {
			limit = 0
		}
		return c.run(cfg, "", limit, *asJSON)
	})
}

// run checks a directory, or a cluster if that is empty; within limit, unless that
// is 0.
func (c *checking) run(cfg *settings.Set, dir string, limit time.Duration, asJSON bool) int {
	p := c.p
	c.printLines(asJSON)
	ctx, stop := commandContext(limit)
	defer stop()
	if c.what = dir; dir == "" {
		c.what = "cluster " + cfg.Cluster
	}
	var sum check.Summary
	err := p.telling("check "+c.what, func(g *progress) (err error) {
		c.told = g
		if dir == "" {
			sum, err = c.cluster(ctx, cfg)
			return err
		}
		sum, err = check.Directory(ctx, vfs.Default, dir, g.bytes, c.report)
		if c.views && err == nil && sum.Damaged == 0 {
			g.far("views")
			err = c.directoryViews(ctx, &sum)
		}
		return err
	})
	c.end(&sum, err == nil)
	if err != nil {
		return p.failed(fmt.Errorf("check %s: %w", c.what, explain(ctx, err)))
	}
	if sum.Damaged > 0 {
		return exitFailure
	}
	return exitOK
}

// printLines has lines of JSON printed, if that is wanted.
func (c *checking) printLines(asJSON bool) {
	if asJSON {
		c.line = json.NewEncoder(c.p.stdout)
		c.line.SetEscapeHTML(false)
	}
}

// ask has the server of an admin service compare its views.
func (c *checking) ask(at string, l *login, insecure, asJSON bool, limit time.Duration) int {
	ctx, stop := commandContext(limit)
	defer stop()
	c.told = new(progress)
	a := &adminClient{p: c.p, ctx: ctx, base: strings.TrimSuffix(at, "/"), verb: "check"}
	c.printLines(asJSON)
	err := a.logIn(l, insecure)
	if err == nil && c.line == nil {
		err = a.checkViews(nil)
	} else if err == nil {
		c.viewed = &check.ViewSummary{}
		err = a.eachView(nil, func(v *ops.ViewChecked) {
			for _, f := range v.Findings {
				c.report(check.Finding{Where: f.Where, What: f.What, Do: f.Do})
			}
			c.viewed.Views, c.viewed.Rows, c.viewed.Differ = c.viewed.Views+1, c.viewed.Rows+v.Rows, c.viewed.Differ+v.Differ
		})
	}
	if c.line != nil {
		c.end(nil, err == nil)
		if err == nil && c.viewed.Differ > 0 {
			err = viewsDiffer(c.viewed.Differ)
		}
	}
	if err != nil {
		return c.p.failed(explain(ctx, err))
	}
	return exitOK
}

// directoryViews compares the views of a directory in which nothing is damaged.
func (c *checking) directoryViews(ctx context.Context, sum *check.Summary) error {
	spill, err := os.MkdirTemp("", "trestle-check-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(spill) }()
	viewed, err := check.DirectoryViews(ctx, vfs.Default, c.what, func(tables *client.Client) matview.Evaluators {
		return gateway.ViewEvaluators(tables, viewCheckMemory, spill)
	}, c.counted(sum))
	c.viewed = &viewed
	return err
}

// clusterViews compares the views of a cluster that serves.
func (c *checking) clusterViews(ctx context.Context, cfg *settings.Set, n *node.Node, sum *check.Summary) error {
	schemas, err := watchSchemas(ctx, cfg, n)
	if err != nil {
		return err
	}
	tables := client.New(client.Options{Lock: n.Lock, Dialer: n.Dialer, Schemas: schemas})
	all, err := tables.ListViews(ctx, "projects")
	if err != nil {
		return err
	}
	spill, err := os.MkdirTemp("", "trestle-check-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(spill) }()
	viewed, err := viewChecks(tables, spill).CheckAll(ctx, all, c.counted(sum))
	c.viewed = &viewed
	return err
}

// counted returns report, which counts what it reports in sum.
func (c *checking) counted(sum *check.Summary) func(check.Finding) {
	return func(f check.Finding) {
		if f.Harmless {
			sum.Harmless++
		} else {
			sum.Damaged++
		}
		c.report(f)
	}
}

// cluster checks a cluster, of which a process serves or none lives.
func (c *checking) cluster(ctx context.Context, cfg *settings.Set) (check.Summary, error) {
	var n *node.Node
	if c.online || cfg.Origin("etcd") != settings.Default {
		var err error
		if n, err = joinNow(ctx, cfg); err != nil {
			return check.Summary{}, err
		}
		defer n.Close()
		c.o.Lock, c.o.Dialer = n.Lock, n.Dialer
	}
	store, err := openSharedStore(ctx, cfg, "check")
	if err != nil {
		return check.Summary{}, err
	}
	c.o.Objects, c.o.Logs = store.SSTables, store.Logs
	if c.o.Blocks && c.o.Rate > 0 {
		c.told.aside(func() { fmt.Fprintf(c.p.stderr, "reads %s/s at most\n", byteSize(c.o.Rate)) })
	}
	c.o.Tell = c.told.bytes
	if c.online {
		sum, err := check.Cluster(ctx, c.o, c.report)
		if c.views && err == nil {
			c.told.far("views")
			err = c.clusterViews(ctx, cfg, n, &sum)
		}
		return sum, err
	}
	return check.Stopped(ctx, c.o, store.Copies, c.report)
}

// report prints a finding.
func (c *checking) report(f check.Finding) {
	kind := "damage"
	if f.Harmless {
		kind = "harmless"
	}
	c.told.aside(func() {
		if c.line != nil {
			_ = c.line.Encode(map[string]string{"finding": kind, "where": f.Where, "what": f.What, "do": f.Do})
			return
		}
		fmt.Fprintf(c.p.screen(), "%-8s  %s: %s. To do: %s%s\n", kind, f.Where, f.What, f.Do, flaw(!f.Harmless))
	})
}

// viewsSpared is why --views compares none.
const viewsSpared = "there is damage"

// end prints the summary. sum is nil if only views were looked at. What was not looked at has no
// numbers.
func (c *checking) end(sum *check.Summary, complete bool) {
	if c.line != nil {
		out := map[string]any{"complete": complete, "damaged": 0, "harmless": 0}
		if sum != nil {
			maps.Copy(out, map[string]any{"damaged": sum.Damaged, "harmless": sum.Harmless,
				"tables": sum.Tables, "tablets": sum.Tablets, "backups": sum.Backups, "sstables": sum.SSTables, "sstable_bytes": sum.SSTableBytes,
				"entries": sum.Entries, "log_records": sum.LogRecords, "log_segments": sum.LogSegments, "unused": sum.Unused, "unused_bytes": sum.UnusedBytes})
		} else if c.viewed != nil {
			out["damaged"] = c.viewed.Differ
		}
		switch {
		case c.viewed != nil:
			maps.Copy(out, map[string]any{"views": c.viewed.Views, "view_rows": c.viewed.Rows, "view_rows_differ": c.viewed.Differ})
		case c.views && complete:
			out["views_not_compared"] = viewsSpared
		}
		_ = c.line.Encode(map[string]any{"summary": out})
		return
	}
	if !complete {
		return
	}
	verdict := "no damage"
	if sum.Damaged > 0 {
		verdict = fmt.Sprintf("%d damaged", sum.Damaged)
	}
	logs := fmt.Sprintf("%d log records", sum.LogRecords)
	if c.o.Objects != nil {
		logs = fmt.Sprintf("%d log segments read; %d objects (%s) are named by none", sum.LogSegments, sum.Unused, byteSize(sum.UnusedBytes))
	}
	switch {
	case c.viewed != nil:
		logs += fmt.Sprintf("; %d views with %d rows, of which %d differ", c.viewed.Views, c.viewed.Rows, c.viewed.Differ)
	case c.views:
		logs += "; views were not compared, as " + viewsSpared
	}
	fmt.Fprintf(c.p.screen(), "%s: %s, %s; %s, %s, %s, %s (%s, %d entries), %s%s\n", c.what, verdict, several(sum.Harmless, "harmless finding", "s"),
		several(sum.Tables, "table", "s"), several(sum.Tablets, "tablet", "s"), several(sum.Backups, "backup", "s"), several(sum.SSTables, "SSTable", "s"),
		byteSize(sum.SSTableBytes), sum.Entries, logs, flaw(sum.Damaged > 0))
}

// byteSize writes n as a person reads it.
func byteSize(n int64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	v, i := float64(n)/1024, 0
	for ; v >= 1024 && i < len(units)-1; i++ {
		v /= 1024
	}
	return fmt.Sprintf("%.1f %ciB", v, units[i])
}
