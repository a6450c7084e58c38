package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/spf13/pflag"

	"github.com/trestledb/trestle/cluster/standalone"
	"github.com/trestledb/trestle/cmd/trestle/internal/settings"
)

// dropDamagedLog gives up what is damaged in the commit log of all tables of a
// data directory, as `trestle cluster drop-damaged-log` does of a cluster.
func dropDamagedLog(p *process, args []string) int {
	flags := pflag.NewFlagSet("drop-damaged-log", pflag.ContinueOnError)
	flags.Usage = func() {}
	flags.SetOutput(discard{})
	yes := flags.Bool("yes", false, "do it")
	err := flags.Parse(settings.DoubleDash(flags, args))
	if helpAsked(err) {
		printHelp(p, flags, "Usage: trestle drop-damaged-log DIR [--yes]\n\nGives up what is damaged in the commit log of all tables of the data directory DIR (DIR/ulog), which a server refuses\nto start on. Without --yes it prints what that would lose, and changes nothing. With it the log is written anew, of what\ncan be read of it; the damaged log is kept beside it, as DIR/ulog.damaged-N. No server may have the directory open.")
		return exitOK
	}
	if err == nil && flags.NArg() != 1 {
		err = errors.New("drop-damaged-log takes one data directory")
	}
	if err != nil {
		return p.misused(settings.FlagError(flags, err))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	dir := flags.Arg(0)
	d, err := standalone.FindDamagedLog(ctx, vfs.Default, dir)
	if err != nil {
		return p.failed(err)
	}
	p.printDamagedLog(d)
	if !*yes {
		fmt.Fprintln(p.stdout, "The loss is for good. A copy of the files that is brought back to its place loses nothing. To give it up all the same, give --yes.")
		return p.failed(errors.New("nothing was changed"))
	}
	aside, err := standalone.DropDamagedLog(ctx, vfs.Default, dir)
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
		fmt.Fprintf(p.stdout, "an earlier drop-damaged-log has put %s aside and was interrupted: --yes ends it\n", d.Log)
		return
	}
	fmt.Fprintf(p.stdout, "commit log %s of all tables; %d records of it can be read, and are kept\n", d.Log, d.Kept)
	for _, g := range d.Gaps {
		fmt.Fprintf(p.stdout, "%v\n", g)
	}
	for _, l := range d.Lost {
		fmt.Fprintf(p.stdout, "  lost: up to %d changes of %v; deletions among them too: older values show again\n", l.Changes, l.Tablet)
	}
	fmt.Fprintln(p.stdout, "  lost: what it has there of any other tablet, of which no later record tells: changes that were acknowledged and are in no SSTable; nobody can tell which. Deletions among them too")
}
