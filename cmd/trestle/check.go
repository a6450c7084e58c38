package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/spf13/pflag"

	"github.com/trestledb/trestle/cluster/check"
	"github.com/trestledb/trestle/cmd/trestle/internal/settings"
)

// checkDirectory verifies a data directory that no server has open.
func checkDirectory(p *process, args []string) int {
	flags := pflag.NewFlagSet("check", pflag.ContinueOnError)
	flags.Usage = func() {}
	flags.SetOutput(discard{})
	asJSON := flags.Bool("json", false, "print each finding, and last the summary, as a line of JSON")
	err := flags.Parse(settings.DoubleDash(flags, args))
	if helpAsked(err) {
		printHelp(p, flags, "Usage: trestle check [--json] DIR\n\nReads everything in the data directory DIR and prints what is wrong with it, a line each: where, what,\nand what to do. It changes nothing. No server may have the directory open.\n\nExits with 0 if there is no damage, with 1 if there is, or if it could not be found out.")
		return exitOK
	}
	if err == nil && flags.NArg() != 1 {
		err = fmt.Errorf("check takes one data directory")
	}
	if err != nil {
		return p.misused(settings.FlagError(flags, err))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	line := json.NewEncoder(p.stdout)
	line.SetEscapeHTML(false)
	sum, err := check.Directory(ctx, vfs.Default, flags.Arg(0), func(f check.Finding) {
		kind := "damage"
		if f.Harmless {
			kind = "harmless"
		}
		if *asJSON {
			_ = line.Encode(map[string]string{"finding": kind, "where": f.Where, "what": f.What, "do": f.Do})
			return
		}
		fmt.Fprintf(p.stdout, "%-8s  %s: %s. To do: %s\n", kind, f.Where, f.What, f.Do)
	})
	if *asJSON {
		_ = line.Encode(map[string]any{"summary": map[string]any{"damaged": sum.Damaged, "harmless": sum.Harmless, "complete": err == nil,
			"tables": sum.Tables, "tablets": sum.Tablets, "backups": sum.Backups, "sstables": sum.SSTables, "sstable_bytes": sum.SSTableBytes,
			"entries": sum.Entries, "log_records": sum.LogRecords}})
	} else if err == nil {
		verdict := "no damage"
		if sum.Damaged > 0 {
			verdict = fmt.Sprintf("%d damaged", sum.Damaged)
		}
		fmt.Fprintf(p.stdout, "%s: %s, %d harmless findings; %d tables, %d tablets, %d backups, %d SSTables (%s, %d entries), %d log records\n",
			flags.Arg(0), verdict, sum.Harmless, sum.Tables, sum.Tablets, sum.Backups, sum.SSTables, byteSize(sum.SSTableBytes), sum.Entries, sum.LogRecords)
	}
	if err != nil {
		return p.failed(fmt.Errorf("check %s: %w", flags.Arg(0), err))
	}
	if sum.Damaged > 0 {
		return exitFailure
	}
	return exitOK
}

// discard takes what pflag would print by itself.
type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }

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
