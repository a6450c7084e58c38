package main

import (
	"fmt"
	"net/http"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
)

const backupHelp = `The server copies, to and from --export-store, its setting: a directory on its
machine or a bucket. EXPORT is a name there. BACKUP is a full name,
projects/P/instances/I/clusters/C/backups/B; of an import the last part is
enough if the rest is that of the backup that was exported. In a cluster ask a
tablet server, or give --etcd, --store and --export-store. An interrupt cancels
what was begun.`

// backupCommand copies backups out of a server's store, and into it.
func backupCommand(p *process) *cobra.Command {
	flags := pflag.NewFlagSet("import", pflag.ContinueOnError)
	life := flags.Duration("expire", ops.DefaultLife, "how long an imported backup lives, from 6h to 2160h (90 days)")
	return p.group("backup", "list backups, export one out of a store, or import one into it", backupHelp,
		p.asks(adminVerb{use: "list", short: "print the backups", limit: time.Minute, run: (*adminClient).backups}),
		p.asks(adminVerb{use: "export BACKUP EXPORT", short: "copy a backup to EXPORT, or go on where that was interrupted", store: true, run: func(c *adminClient, args []string) error {
			return c.await("/admin/backups/export", ops.BackupCopy{Backup: args[0], Export: args[1]}, "export "+args[0]+" to "+args[1])
		}}),
		p.asks(adminVerb{use: "import EXPORT BACKUP", short: "make a backup of EXPORT, which tables are restored from as from any other", store: true, flags: flags, fresh: "BACKUP",
			check: func([]string) error {
				if *life < time.Second {
					return fmt.Errorf("--expire %v: give a time from 6h to 2160h", *life)
				}
				return nil
			},
			run: func(c *adminClient, args []string) error {
				return c.await("/admin/backups/import", ops.BackupCopy{Export: args[0], Backup: args[1], LifeSeconds: int64(*life / time.Second)}, "import "+args[0]+" to "+args[1])
			}}))
}

// backups prints the backups that the caller may know of.
func (c *adminClient) backups([]string) error {
	var got ops.BackupList
	if err := c.call(c.ctx, http.MethodGet, "/admin/backups", nil, &got); err != nil {
		return err
	}
	if c.json {
		return c.print(got)
	}
	w := tabwriter.NewWriter(c.p.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "CREATED\tEXPIRES\tSIZE\tBACKUP") // the name, which can be long, last
	for _, b := range got.Backups {
		expires := "never"
		if b.Expires != nil {
			expires = b.Expires.Format(clockTime)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", b.Created.Format(clockTime), expires, byteSize(b.Bytes), b.Backup)
	}
	return w.Flush()
}

// clockTime is how tables of commands show a time, which is UTC.
const clockTime = "2006-01-02 15:04:05Z"
