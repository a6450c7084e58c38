package backend

import (
	"context"

	"github.com/trestledb/trestle/engine/schema"
)

// Backups keeps copies of tables as they were at one instant. Names are full
// resource names, of whatever kind: the backend only compares them. A backup
// has nothing to do any more with the table that it was made of, which may
// change and be deleted.
//
// An expired backup is not there for any of these methods; what it holds is
// freed soon after.
type Backups interface {
	// CreateBackup makes a backup of a table, with want's Name, ExpireTime and
	// Extra. Of two writes of which one began after the other was acknowledged,
	// the second is in it only if the first is. Every write that was
	// acknowledged before the call is in it. Its cost is that of flushing what
	// is in memory: no data is copied. AlreadyExists if the name is taken,
	// NotFound if the table is not there.
	CreateBackup(ctx context.Context, table string, want *schema.Backup) (*schema.Backup, error)
	// CopyBackup makes a backup of the same rows under another name, with want's
	// Name, ExpireTime and Extra. It does not depend on the source any more.
	CopyBackup(ctx context.Context, source string, want *schema.Backup) (*schema.Backup, error)
	// Backup returns a backup, or NotFound.
	Backup(ctx context.Context, name string) (*schema.Backup, error)
	// ListBackups returns the backups whose names start with prefix, sorted by
	// name.
	ListBackups(ctx context.Context, prefix string) ([]*schema.Backup, error)
	// UpdateBackup applies change to a copy of the backup and stores its
	// ExpireTime and Extra, atomically and durably; an error of change is returned
	// as it is and stores nothing.
	UpdateBackup(ctx context.Context, name string, change func(*schema.Backup) error) (*schema.Backup, error)
	// DeleteBackup removes a backup.
	DeleteBackup(ctx context.Context, name string) error
	// RestoreTable makes a table called name of a backup: its rows, with its
	// schema as change leaves it. change may set DeletionProtection and Extra. The
	// table's tablets are cut where those of the backup are. AlreadyExists if the
	// name is taken. Its cost does not depend on the number of rows.
	RestoreTable(ctx context.Context, backup, name string, change func(*schema.Table) error) (*schema.Table, error)
}
