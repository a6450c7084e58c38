package catalog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
)

// BackupsPrefix is where the lock service has the backups, by name. The METADATA
// rows of a backup's tablets are in METADATA, as of the table BackupTable.
//
// The item exists before the first of the rows and while any of them counts. First it says
// that the backup is being made, which keeps the sweeper from deleting anything. Then one
// compare-and-set says that it is made. Rows of a backup without an item are garbage. So
// is an item that has said for too long that the backup is being made.
const BackupsPrefix = "backups/"

// A Backup is the value of such an item.
type Backup struct {
	*schema.Backup
	// Made says that the backup is there.
	Made bool
	// Renewed is when the backup's creator last renewed its claim to the name. Another one
	// that wants the name waits ReservationTTL after that.
	Renewed time.Time
	// Version is that of the item.
	Version int64 `json:"-"`
}

// ReservationTTL is how long the creator of a backup may go without renewing before
// another one may take the name. It saves work only and safety does not rest on it: the
// first creator then loses the compare-and-set.
const ReservationTTL = time.Minute

// BackupTable returns the id of the table in METADATA that has the rows of a
// backup. No real table has such an id.
func BackupTable(id uint64) uint64 { return id | backupBit }

const backupBit = 1 << 63

// IsBackupTable tells whether a table's id is that of a backup.
func IsBackupTable(id uint64) bool { return id&backupBit != 0 }

// ReadBackup returns the backup of a name, nil if there is none.
func ReadBackup(ctx context.Context, l lock.Service, name string) (*Backup, error) {
	i, err := l.Get(ctx, BackupsPrefix+name)
	if errors.Is(err, fault.NotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return ParseBackup(i)
}

// ParseBackup decodes the item of a backup.
func ParseBackup(i lock.Item) (*Backup, error) {
	b := &Backup{Version: i.Version}
	if err := json.Unmarshal(i.Value, b); err != nil {
		if fault.KindOf(err) == fault.FailedPrecondition {
			return nil, fmt.Errorf("item %s: %w", i.Key, err) // a later version's
		}
		return nil, fault.New(fault.Corruption, "item %s: %w", i.Key, err)
	}
	if b.Backup == nil {
		return nil, fault.New(fault.Corruption, "item %s is no backup", i.Key)
	}
	if b.Table == nil {
		b.Table = new(schema.Table)
	}
	if b.Table.Families == nil {
		b.Table.Families = map[string]schema.Family{}
	}
	return b, nil
}

// Backups returns the backups whose names begin with prefix, in the order of names. Those
// that are being made and those that have expired are included.
func Backups(ctx context.Context, l lock.Service, prefix string) ([]*Backup, error) {
	items, _, err := l.List(ctx, BackupsPrefix+prefix)
	if err != nil {
		return nil, err
	}
	var out []*Backup
	for _, i := range items {
		b, err := ParseBackup(i)
		if err != nil {
			return nil, err
		}
		out = append(out, b)
	}
	return out, nil
}

// Write stores the item of b if its version is still that of b, and sets it;
// else Aborted.
func (b *Backup) Write(ctx context.Context, l lock.Service) error {
	value, err := json.Marshal(b)
	if err != nil {
		return err
	}
	next, err := Put(ctx, l, BackupsPrefix+b.Name, value, b.Version)
	if err == nil {
		b.Version = next
	}
	return err
}

// Put is that of the lock service, repeated while its outcome is unknown. Its error is
// Aborted, and nothing was changed, lock.ErrEnded, or the context's.
func Put(ctx context.Context, l lock.Service, key string, value []byte, version int64) (int64, error) {
	unsure := false
	for {
		next, err := l.Put(ctx, key, value, version)
		switch {
		case err == nil:
			return next, nil
		case ctx.Err() != nil:
			return 0, context.Cause(ctx)
		case errors.Is(err, fault.Aborted):
			if unsure {
				i, gerr := l.Get(ctx, key)
				if gerr == nil && string(i.Value) == string(value) {
					return i.Version, nil
				}
				if gerr != nil && !errors.Is(gerr, fault.NotFound) {
					break // ask once more
				}
			}
			return 0, err
		case !errors.Is(err, fault.Unavailable), errors.Is(err, lock.ErrEnded):
			return 0, err
		}
		unsure = true
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}
