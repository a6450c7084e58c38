package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
	"github.com/trestledb/trestle/cmd/trestle/internal/settings"
)

const backupHelp = `Usage: trestle backup export BACKUP EXPORT [--admin URL] [--ca FILE] [--credentials FILE] [--json]
       trestle backup import EXPORT BACKUP [--expire TIME] [--admin URL] [--ca FILE] [--credentials FILE] [--json]

  export  copy a backup to EXPORT, or go on where that was interrupted
  import  make a backup of EXPORT, which tables are restored from as from any other

The server copies, to and from --export-store, its setting: a directory on its machine or a bucket. EXPORT is a name there.
BACKUP is a full name, projects/P/instances/I/clusters/C/backups/B; of an import the last part is enough if the rest
is that of the backup that was exported. In a cluster ask a tablet server. An interrupt cancels what was begun.`

var backupVerbs = []string{"export", "import"}

// backupCommand copies backups out of a server's store, and into it.
func backupCommand(p *process, args []string) int {
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
	flags := settings.NewFlags("backup " + verb)
	life := flags.Duration("expire", ops.DefaultLife, "how long an imported backup lives, from 6h to 2160h (90 days)")
	admin := flags.String("admin", "", "where the server's admin service is; by default http-listen")
	asJSON := flags.Bool("json", false, "print what the server answers")
	var l login
	l.flags(flags.FlagSet, p)
	cfg, err := flags.Resolve(args, p.environ)
	if helpAsked(err) {
		printHelp(p, flags.FlagSet, backupHelp)
		return exitOK
	}
	var c ops.BackupCopy
	if err == nil {
		switch {
		case verb != "export" && verb != "import":
			err = errors.New("backup takes a verb: " + strings.Join(backupVerbs, ", "))
		case len(words) != 2 && verb == "export":
			err = errors.New("backup export takes 2 arguments: BACKUP EXPORT")
		case len(words) != 2:
			err = errors.New("backup import takes 2 arguments: EXPORT BACKUP")
		case verb == "export" && flags.Changed("expire"):
			err = errors.New("--expire is for import: an export stays until it is deleted")
		case *life < time.Second:
			err = fmt.Errorf("--expire %v: give a time from 6h to 2160h", *life)
		case verb == "export":
			c = ops.BackupCopy{Backup: words[0], Export: words[1]}
		default:
			c = ops.BackupCopy{Export: words[0], Backup: words[1], LifeSeconds: int64(*life / time.Second)}
		}
	}
	if err != nil {
		return p.misused(err)
	}
	return p.withAdmin(cfg, *admin, &l, func(a *adminClient) error {
		a.json = *asJSON
		return a.await("/admin/backups/"+verb, c, verb+" "+strings.Join(words, " to "))
	})
}
