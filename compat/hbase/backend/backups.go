package backend

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

// A backup is a snapshot, which copies of the backup share.
type backup struct {
	Backup   json.RawMessage // schema.Backup
	Snapshot string
}

// backupsLock is held by a call that changes backups.
const backupsLock = "\x00backups"

func noBackup(name string) error { return fault.New(fault.NotFound, "Backup not found: %s", name) }

// loadBackup reads a backup and the version of its record.
func (b *Backend) loadBackup(ctx context.Context, name string) (*schema.Backup, string, uint64, error) {
	value, version, err := b.record(ctx, backupRecord+name)
	if errors.Is(err, fault.NotFound) {
		return nil, "", 0, noBackup(name)
	}
	if err != nil {
		return nil, "", 0, err
	}
	s, snapshot, err := decodeBackup(name, value)
	return s, snapshot, version, err
}

func decodeBackup(name string, value []byte) (*schema.Backup, string, error) {
	var x backup
	err := json.Unmarshal(value, &x)
	var s *schema.Backup
	if err == nil {
		s, err = schema.UnmarshalBackup(x.Backup)
	}
	if err != nil {
		return nil, "", fault.New(fault.Corruption, "record of the backup %s: %w", name, err)
	}
	return s, x.Snapshot, nil
}

// storeBackup writes a backup's record over that of a version. One that has
// expired counts as absent.
func (b *Backend) storeBackup(ctx context.Context, s *schema.Backup, snapshot string, version uint64) error {
	value, err := json.Marshal(backup{s.Marshal(), snapshot})
	if err == nil {
		_, err = b.setRecord(ctx, backupRecord+s.Name, value, version, false)
	}
	return err
}

// dropBackup removes a backup's record, and the snapshot if no other has it.
func (b *Backend) dropBackup(ctx context.Context, name, snapshot string, version uint64) error {
	if _, err := b.setRecord(ctx, backupRecord+name, nil, version, true); err != nil {
		return err
	}
	shared := false
	err := b.records(ctx, row.Prefix([]byte(backupRecord)), func(key string, value []byte, _ uint64) error {
		_, other, err := decodeBackup(key[1:], value)
		shared = shared || other == snapshot
		return err
	})
	if err != nil || shared {
		return err
	}
	return b.dropSnapshot(ctx, snapshot)
}

// free makes sure that a backup's name is not taken: an expired one goes.
func (b *Backend) free(ctx context.Context, name string) error {
	old, snapshot, version, err := b.loadBackup(ctx, name)
	switch {
	case errors.Is(err, fault.NotFound):
		return nil
	case err != nil:
		return err
	case old.Expired(time.Now()):
		return b.dropBackup(ctx, name, snapshot, version)
	}
	return fault.New(fault.AlreadyExists, "Backup already exists: %s", name)
}

// CreateBackup implements backend.Backups, but for one thing: HBase takes the
// regions of a table that is written one by one. So a write may be in the
// snapshot while one to another region, acknowledged before it, is not.
func (b *Backend) CreateBackup(ctx context.Context, resource string, want *schema.Backup) (*schema.Backup, error) {
	var out *schema.Backup
	err := b.locked(ctx, backupsLock, func(ctx context.Context) error {
		t, _, err := b.load(ctx, resource)
		if err != nil {
			return err
		}
		if err := b.free(ctx, want.Name); err != nil {
			return err
		}
		size, err := b.TableBytes(ctx, resource)
		if err != nil {
			return err
		}
		out = want.Clone()
		out.ID, out.Table, out.Bytes = random()>>1|1, t.schema, max(size, 1)
		out.CreateTime = time.Now()
		out.StartTime = out.CreateTime
		snapshot := fmt.Sprintf("trestle-backup-%016x", out.ID)
		if err := b.takeSnapshot(ctx, t.name, snapshot, 0, pb.SnapshotDescription_FLUSH); err != nil {
			return err
		}
		out.EndTime = time.Now()
		return b.storeBackup(ctx, out, snapshot, 0)
	})
	return out, err
}

// CopyBackup implements backend.Backups.
func (b *Backend) CopyBackup(ctx context.Context, source string, want *schema.Backup) (*schema.Backup, error) {
	var out *schema.Backup
	err := b.locked(ctx, backupsLock, func(ctx context.Context) error {
		from, snapshot, err := b.liveBackup(ctx, source)
		if err != nil {
			return err
		}
		if err := b.free(ctx, want.Name); err != nil {
			return err
		}
		out = from.Clone()
		out.Name, out.ExpireTime, out.Extra = want.Name, want.ExpireTime, slices.Clone(want.Extra)
		out.ID, out.CreateTime = random()>>1|1, time.Now()
		return b.storeBackup(ctx, out, snapshot, 0)
	})
	return out, err
}

// liveBackup is loadBackup of one that has not expired.
func (b *Backend) liveBackup(ctx context.Context, name string) (*schema.Backup, string, error) {
	s, snapshot, _, err := b.loadBackup(ctx, name)
	if err == nil && s.Expired(time.Now()) {
		err = noBackup(name)
	}
	return s, snapshot, err
}

// Backup implements backend.Backups.
func (b *Backend) Backup(ctx context.Context, name string) (*schema.Backup, error) {
	s, _, err := b.liveBackup(ctx, name)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// ListBackups implements backend.Backups.
func (b *Backend) ListBackups(ctx context.Context, prefix string) ([]*schema.Backup, error) {
	var out []*schema.Backup
	err := b.records(ctx, row.Prefix([]byte(backupRecord+prefix)), func(key string, value []byte, _ uint64) error {
		s, _, err := decodeBackup(key[1:], value)
		if err == nil && !s.Expired(time.Now()) {
			out = append(out, s)
		}
		return err
	})
	return out, err
}

// UpdateBackup implements backend.Backups.
func (b *Backend) UpdateBackup(ctx context.Context, name string, change func(*schema.Backup) error) (*schema.Backup, error) {
	var out *schema.Backup
	err := b.locked(ctx, backupsLock, func(ctx context.Context) error {
		s, snapshot, version, err := b.loadBackup(ctx, name)
		if err == nil && s.Expired(time.Now()) {
			err = noBackup(name)
		}
		if err != nil {
			return err
		}
		c := s.Clone()
		if err := change(c); err != nil {
			return err
		}
		out = s.Clone()
		out.ExpireTime, out.Extra = c.ExpireTime, c.Extra
		return b.storeBackup(ctx, out, snapshot, version)
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// DeleteBackup implements backend.Backups.
func (b *Backend) DeleteBackup(ctx context.Context, name string) error {
	return b.locked(ctx, backupsLock, func(ctx context.Context) error {
		s, snapshot, version, err := b.loadBackup(ctx, name)
		if err != nil {
			return err
		}
		if err := b.dropBackup(ctx, name, snapshot, version); err != nil {
			return err
		}
		if s.Expired(time.Now()) {
			return noBackup(name)
		}
		return nil
	})
}

// RestoreTable implements backend.Backups.
func (b *Backend) RestoreTable(ctx context.Context, backup, resource string, change func(*schema.Table) error) (*schema.Table, error) {
	from, snapshot, err := b.liveBackup(ctx, backup)
	if err != nil {
		return nil, err
	}
	name, err := b.place.table(resource)
	if err != nil {
		return nil, err
	}
	// Families keep their ids: nothing but this table knows them.
	s := from.Table.Clone()
	s.Name, s.ID, s.Version, s.CreateTime, s.DeleteTime = resource, random()>>1|1, 1, time.Now().Truncate(time.Microsecond), time.Time{}
	if err := change(s); err != nil {
		return nil, err
	}
	err = b.locked(ctx, resource, func(ctx context.Context) error {
		if _, _, err := b.load(ctx, resource); !errors.Is(err, fault.NotFound) {
			if err == nil {
				err = exists(resource)
			}
			return err
		}
		if err := b.ensureNamespace(ctx, name.Namespace); err != nil {
			return err
		}
		if err := b.cloneSnapshot(ctx, snapshot, name); err != nil {
			return err
		}
		_, old, err := b.load(ctx, resource)
		if err != nil {
			return err
		}
		d, err := descriptor(name, s, old)
		if err != nil {
			return err
		}
		return b.modify(ctx, d)
	})
	b.remember(resource, nil)
	if err != nil {
		return nil, err
	}
	return b.Table(ctx, resource)
}
