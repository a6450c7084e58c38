package ops

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
)

// An Exporter is the part of an Operator that copies backups out of its store and
// into it. Where exports are is up to the server; callers choose their names.
type Exporter interface {
	// ListBackups returns the backups, and snapshots, whose full names start with prefix, by name.
	ListBackups(ctx context.Context, prefix string) ([]*schema.Backup, error)
	ExportBackup(ctx context.Context, backup, export string, report func(done, total int64)) error
	OpenExport(ctx context.Context, export string) (Export, error)
}

// An Export is a backup outside of a store.
type Export interface {
	// Source is the full name of the backup in the store that it is of.
	Source() string
	// Import makes it a backup of this store, which expires after life.
	Import(ctx context.Context, backup string, life time.Duration, report func(done, total int64)) error
}

// DefaultLife is how long an imported backup lives if nobody says.
const DefaultLife = 30 * 24 * time.Hour

// Backup is a backup of a store.
type Backup struct {
	Backup string `json:"backup"`
	// Table is the full name of the table that it is of.
	Table   string    `json:"table"`
	Created time.Time `json:"created"`
	// Expires is when it ceases to exist; nil for never.
	Expires *time.Time `json:"expires,omitempty"`
	// Bytes are those of its SSTables, which it may share with its table.
	Bytes int64 `json:"bytes"`
}

// BackupList is the answer of GET /admin/backups.
type BackupList struct {
	Backups []Backup `json:"backups"`
	// Total is how many there are, of which a page has some.
	Total int `json:"total"`
}

// toSeeBackup asks for backups.get.
const toSeeBackup = adminpb.BigtableTableAdmin_GetBackup_FullMethodName

// listBackups shows the backups that the caller may know of, the newest first: all of them,
// or a page.
func (a *Admin) listBackups(q *request) (any, error) {
	page, err := pageOf(q)
	if err == nil && page.byLoad {
		err = fault.New(fault.Invalid, "order cannot be load: a backup has none")
	}
	if err != nil {
		return nil, err
	}
	all, err := q.op.ListBackups(q.Context(), "projects/")
	if err != nil {
		return nil, err
	}
	var seen []*schema.Backup
	for _, b := range all {
		if strings.Contains(b.Name, "/snapshots/") {
			continue // other calls of the API are for those
		}
		held, err := q.who.TestPermissions(q.caller.Context(), b.Name, []string{"bigtable.backups.get"})
		if err != nil {
			return nil, err
		}
		if len(held) > 0 {
			seen = append(seen, b)
		}
	}
	slices.SortStableFunc(seen, func(a, b *schema.Backup) int {
		return cmp.Or(b.CreateTime.Compare(a.CreateTime), strings.Compare(a.Name, b.Name))
	})
	out := BackupList{Backups: []Backup{}}
	seen, out.Total = on(page, seen)
	for _, b := range seen {
		x := Backup{Backup: b.Name, Table: b.Table.Name, Created: b.CreateTime.UTC(), Bytes: b.Bytes}
		if !b.ExpireTime.IsZero() {
			at := b.ExpireTime.UTC()
			x.Expires = &at
		}
		out.Backups = append(out.Backups, x)
	}
	return out, nil
}

// BackupCopy is the body of a request to export or import a backup.
type BackupCopy struct {
	// Backup is the full name of a backup. Of an import the last part is enough: it is
	// in the cluster then whose backup was exported.
	Backup string `json:"backup"`
	// Export is the name of the export.
	Export string `json:"export"`
	// LifeSeconds is how long an imported backup lives; 0: DefaultLife.
	LifeSeconds int64 `json:"life_seconds,omitempty"`
}

func (q *request) backupCopy() (c BackupCopy, err error) {
	if err := q.decode(&c); err != nil {
		return c, err
	}
	switch {
	case c.Backup == "":
		return c, fault.New(fault.Invalid, "name a backup")
	case c.Export == "":
		return c, fault.New(fault.Invalid, "name the export")
	}
	q.caller.Note("export", c.Export)
	return c, nil
}

func (a *Admin) exportBackup(q *request) (any, error) {
	c, err := q.backupCopy()
	if err != nil {
		return nil, err
	}
	if !strings.HasPrefix(c.Backup, "projects/") {
		return nil, fault.New(fault.Invalid, "give the full name of the backup, projects/P/instances/I/clusters/C/backups/B, and not %q", c.Backup)
	}
	if err := q.caller.On(c.Backup); err != nil {
		return nil, err
	}
	op := q.op
	return a.jobs.start(Job{What: "export", Backup: c.Backup, Export: c.Export}, c.Backup, func(ctx context.Context, j *running) error {
		return op.ExportBackup(ctx, c.Backup, c.Export, j.report)
	})
}

// importBackup makes a backup of an export. The caller must be allowed to copy the
// backup that was exported: an export has its rows.
func (a *Admin) importBackup(q *request) (any, error) {
	c, err := q.backupCopy()
	if err != nil {
		return nil, err
	}
	life := time.Duration(c.LifeSeconds) * time.Second
	if c.LifeSeconds == 0 {
		life = DefaultLife
	}
	full := strings.HasPrefix(c.Backup, "projects/")
	if full {
		if err := q.caller.On(c.Backup); err != nil {
			return nil, err
		}
	}
	e, err := q.op.OpenExport(q.Context(), c.Export)
	if err != nil {
		return nil, q.caller.Missing(c.Export, err)
	}
	if err := q.caller.On(e.Source()); err != nil {
		return nil, err
	}
	if !full {
		if c.Backup = e.Source()[:strings.LastIndex(e.Source(), "/")+1] + c.Backup; strings.Contains(c.Backup, "/snapshots/") {
			return nil, fault.New(fault.Invalid, "a snapshot was exported: give the full name of the backup that it is to be")
		}
		if err := q.caller.On(c.Backup); err != nil {
			return nil, err
		}
	}
	return a.jobs.start(Job{What: "import", Backup: c.Backup, Export: c.Export}, c.Backup, func(ctx context.Context, j *running) error {
		return e.Import(ctx, c.Backup, life, j.report)
	})
}
