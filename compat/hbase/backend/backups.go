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

// storeBackup writes a backup's record over that of a version, and returns the new one.
func (b *Backend) storeBackup(ctx context.Context, s *schema.Backup, snapshot string, version uint64) (uint64, error) {
	value, err := json.Marshal(backup{s.Marshal(), snapshot})
	if err != nil {
		return 0, err
	}
	return b.setRecord(ctx, backupRecord+s.Name, value, version, false)
}

// dropBackup removes a backup. First it expires, so that a sweep ends what this call does
// not come to.
func (b *Backend) dropBackup(ctx context.Context, s *schema.Backup, snapshot string, version uint64) error {
	if now := time.Now(); !s.Expired(now) {
		gone := s.Clone()
		gone.ExpireTime = now
		var err error
		if version, err = b.storeBackup(ctx, gone, snapshot, version); err != nil {
			return err
		}
	}
	users := 0
	err := b.records(ctx, row.Prefix([]byte(backupRecord)), func(key string, value []byte, _ uint64) error {
		_, other, err := decodeBackup(key[1:], value)
		if other == snapshot {
			users++
		}
		return err
	})
	if err != nil {
		return err
	}
	return b.removeBackup(ctx, backupRecord+s.Name, snapshot, version, users > 1)
}

// removeBackup removes the record of a backup that has expired, and before it the snapshot,
// unless that is shared with another backup.
func (b *Backend) removeBackup(ctx context.Context, key, snapshot string, version uint64, shared bool) error {
	if !shared {
		if err := b.dropSnapshot(ctx, snapshot); err != nil {
			return err
		}
	}
	_, err := b.setRecord(ctx, key, nil, version, true)
	return err
}

// sweepEvery is how often expired backups are removed, and how long they stay at least:
// a table may still be made of one, or HBase may still take the snapshot of one that failed.
const sweepEvery = time.Hour

// sweep removes expired backups until ctx ends.
func (b *Backend) sweep(ctx context.Context) {
	// The first time soon: a gateway may never run for an hour.
	for pause := time.Minute; sleep(ctx, pause) == nil; pause = sweepEvery {
		if err := b.sweepBackups(ctx, time.Now()); err != nil && ctx.Err() == nil {
			b.o.Log.Warn("expired backups stay for now", "error", err)
		}
	}
}

// sweepBackups removes the backups that had expired sweepEvery before now.
func (b *Backend) sweepBackups(ctx context.Context, now time.Time) error {
	return b.locked(ctx, backupsLock, func(ctx context.Context) error {
		type record struct {
			key, snapshot string
			version       uint64
		}
		var expired []record
		users := map[string]int{} // by snapshot
		err := b.records(ctx, row.Prefix([]byte(backupRecord)), func(key string, value []byte, version uint64) error {
			s, snapshot, err := decodeBackup(key[1:], value)
			if err != nil {
				return err
			}
			users[snapshot]++
			if s.Expired(now.Add(-sweepEvery)) {
				expired = append(expired, record{key, snapshot, version})
			}
			return nil
		})
		if err != nil {
			return err
		}
		var failed []error // one that cannot be removed does not keep the others
		for _, r := range expired {
			if ctx.Err() != nil {
				break
			}
			if err := b.removeBackup(ctx, r.key, r.snapshot, r.version, users[r.snapshot] > 1); err != nil {
				failed = append(failed, err)
				continue
			}
			users[r.snapshot]--
		}
		return errors.Join(failed...)
	})
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
		return b.dropBackup(ctx, old, snapshot, version)
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
		// Until it is made, it is one that has expired, so that a sweep finds the snapshot.
		unmade := out.Clone()
		unmade.Name, unmade.ExpireTime = "\x00"+snapshot, out.CreateTime
		version, err := b.storeBackup(ctx, unmade, snapshot, 0)
		if err != nil {
			return err
		}
		if err := b.takeSnapshot(ctx, t.name, snapshot, 0, pb.SnapshotDescription_FLUSH); err != nil {
			return err
		}
		out.EndTime = time.Now()
		if _, err := b.storeBackup(ctx, out, snapshot, 0); err != nil {
			return err
		}
		if err := b.removeBackup(ctx, backupRecord+unmade.Name, snapshot, version, true); err != nil {
			b.o.Log.Warn("the record of a backup's making stays for now", "backup", out.Name, "error", err)
		}
		return nil
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
		_, err = b.storeBackup(ctx, out, snapshot, 0)
		return err
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
		_, err = b.storeBackup(ctx, out, snapshot, version)
		return err
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
		if err := b.dropBackup(ctx, s, snapshot, version); err != nil {
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
