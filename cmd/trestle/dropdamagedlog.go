package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trestledb/trestle/cluster/standalone"
	"github.com/trestledb/trestle/cmd/trestle/internal/settings"
	"github.com/trestledb/trestle/engine/commitlog"
)

const dropLogHelp = `Gives up what is damaged in a commit log, so that what waits for it is served
without. Without --yes it prints what that would lose, and changes nothing.

  trestle log drop-damaged DIR
      of the log of all tables of a data directory (DIR/ulog), which trestle
      serve refuses to start on and no server may have open. The log is written
      anew, of what can be read of it; the damaged one is kept as
      DIR/ulog.damaged-N
  trestle log drop-damaged LOG/SEGMENT... --etcd E --store S
      of the log of a tablet server of a cluster that is gone, so that the
      tablets which wait for it are served. trestle cluster status names the
      segments; LOG alone stands for all that is damaged of it`

// logCommand gives up what is damaged in commit logs.
func logCommand(p *process) *cobra.Command {
	flags := settings.NewClusterFlags("drop-damaged", settings.Operator)
	own := pflag.NewFlagSet("drop-damaged", pflag.ContinueOnError)
	own.SortFlags = false
	o := &operator{p: p}
	own.BoolVar(&o.yes, "yes", false, "do it")
	timeout := own.Duration("timeout", 5*time.Minute, "of a cluster, how long to wait until the tablets are served; 0: as long as it takes")
	own.AddFlagSet(flags.FlagSet)
	return p.group("log", "give up what is damaged in a commit log", "Repairs commit logs. trestle inspect log prints one.",
		p.verb("drop-damaged DIR|LOG/SEGMENT...", "give up what is damaged in the commit log of a data directory or a cluster", dropLogHelp, own, func(_ *cobra.Command, args []string) int {
			cfg, err := flags.Load(p.environ)
			if err != nil {
				return p.misused(err)
			}
			if ofCluster(flags, cfg, args) {
				return o.over(cfg, *timeout, clusterVerb{run: (*operator).dropDamagedLog}, args)
			}
			if _, _, segment := commitlog.ParseObject(args[0]); segment || len(args) != 1 {
				return p.misused(errors.New("trestle log drop-damaged takes one data directory, or LOG/SEGMENT... with --etcd and --store of a cluster"))
			}
			return p.dropDamagedLog(args[0], o.yes)
		}))
}

// ofCluster tells whether arguments name logs of a cluster: settings say which. A
// directory is one all the same, if they come from the environment or the file.
func ofCluster(flags *settings.Flags, cfg *settings.Set, args []string) bool {
	if flags.Changed("etcd") || flags.Changed("store") {
		return true
	}
	if cfg.Origin("etcd") == settings.Default && cfg.Store == "" {
		return false
	}
	info, err := os.Stat(args[0])
	return len(args) != 1 || err != nil || !info.IsDir()
}

// dropDamagedLog gives up what is damaged in the commit log of all tables of a
// data directory.
func (p *process) dropDamagedLog(dir string, yes bool) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var d *standalone.DamagedLog
	err := p.telling("read the log of "+dir, func(*progress) (err error) {
		d, err = standalone.FindDamagedLog(ctx, vfs.Default, dir)
		return err
	})
	if err != nil {
		return p.failed(err)
	}
	p.printDamagedLog(d)
	if !yes {
		fmt.Fprintln(p.stdout, "The loss is for good. A copy of the files that is brought back to its place loses nothing. To give it up all the same, give --yes.")
		return p.failed(errors.New("nothing was changed"))
	}
	if err := checkStopped(dir); err != nil {
		return p.failed(err)
	}
	var aside string
	err = p.telling("write the log of "+dir+" anew", func(*progress) (err error) {
		aside, err = standalone.DropDamagedLog(ctx, vfs.Default, dir)
		return err
	})
	if err != nil {
		return p.failed(err)
	}
	fmt.Fprintf(p.stdout, "gave up what is damaged in commit log %s\n", d.Log)
	if aside != "" {
		fmt.Fprintf(p.stdout, "the damaged log is kept as %s\n", aside)
	}
	return exitOK
}

func (p *process) printDamagedLog(d *standalone.DamagedLog) {
	if d.Interrupted {
		fmt.Fprintf(p.stdout, "an earlier drop-damaged has put %s aside and was interrupted: --yes ends it\n", d.Log)
		return
	}
	fmt.Fprintf(p.stdout, "commit log %s of all tables; %d records of it can be read, and are kept\n", d.Log, d.Kept)
	for _, g := range d.Gaps {
		fmt.Fprintf(p.stdout, "%v\n", g)
	}
	for _, l := range d.Lost {
		after := ""
		if !l.After.IsZero() {
			after = " after " + l.After.Format(time.RFC3339Nano)
		}
		fmt.Fprintf(p.stdout, "  lost: what was committed%s and before %s of %v; deletions among it too: older values show again\n",
			after, l.Before.Format(time.RFC3339Nano), l.Tablet)
	}
	fmt.Fprintln(p.stdout, "  lost: what it has there of any other tablet, of which no later record tells: changes that were acknowledged and are in no SSTable; nobody can tell which. Deletions among them too")
}
