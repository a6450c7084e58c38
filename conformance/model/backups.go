package model

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
)

// A backup is a copy of a table.
type backup struct {
	*schema.Backup
	table *table
}

// clone copies t. Rows are shared, as they never change.
func (t *table) clone() *table {
	c := &table{schema: t.schema.Clone(), splits: slices.Clone(t.splits), keys: slices.Clone(t.keys), rows: maps.Clone(t.rows),
		tokens: map[string]map[string]time.Time{}}
	for key, seen := range t.tokens {
		c.tokens[key] = maps.Clone(seen)
	}
	return c
}

func (b *Backend) backupLocked(name string) (*backup, error) {
	if k := b.mu.backups[name]; k != nil && !k.Expired(b.now()) {
		return k, nil
	}
	delete(b.mu.backups, name)
	return nil, fault.New(fault.NotFound, "Backup not found: %s", name)
}

// CreateBackup implements backend.Backups.
func (b *Backend) CreateBackup(ctx context.Context, name string, want *schema.Backup) (*schema.Backup, error) {
	t, unlock, err := b.lockedTable(ctx, name)
	if err != nil {
		return nil, err
	}
	defer unlock()
	k := &backup{want.Clone(), t.clone()}
	k.StartTime, k.EndTime = b.now(), b.now()
	for _, key := range t.keys {
		k.Bytes += t.bytes(key)
	}
	return b.keepLocked(k)
}

// keepLocked adds a backup that is new.
func (b *Backend) keepLocked(k *backup) (*schema.Backup, error) {
	if _, err := b.backupLocked(k.Name); err == nil {
		return nil, fault.New(fault.AlreadyExists, "Backup already exists: %s", k.Name)
	}
	k.ID, k.Table, k.CreateTime = b.mu.nextID, k.table.schema, b.now()
	b.mu.nextID++
	b.mu.backups[k.Name] = k
	return k.Backup.Clone(), nil
}

// CopyBackup implements backend.Backups.
func (b *Backend) CopyBackup(ctx context.Context, source string, want *schema.Backup) (*schema.Backup, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	from, err := b.backupLocked(source)
	if err != nil {
		return nil, err
	}
	k := &backup{want.Clone(), from.table}
	k.StartTime, k.EndTime, k.Bytes = from.StartTime, from.EndTime, from.Bytes
	return b.keepLocked(k)
}

// Backup implements backend.Backups.
func (b *Backend) Backup(ctx context.Context, name string) (*schema.Backup, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	k, err := b.backupLocked(name)
	if err != nil {
		return nil, err
	}
	return k.Backup.Clone(), nil
}

// ListBackups implements backend.Backups.
func (b *Backend) ListBackups(ctx context.Context, prefix string) ([]*schema.Backup, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []*schema.Backup
	for _, name := range slices.Sorted(maps.Keys(b.mu.backups)) {
		if k, err := b.backupLocked(name); err == nil && strings.HasPrefix(name, prefix) {
			out = append(out, k.Backup.Clone())
		}
	}
	return out, nil
}

// UpdateBackup implements backend.Backups.
func (b *Backend) UpdateBackup(ctx context.Context, name string, change func(*schema.Backup) error) (*schema.Backup, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	k, err := b.backupLocked(name)
	if err != nil {
		return nil, err
	}
	c := k.Backup.Clone()
	if err := change(c); err != nil {
		return nil, err
	}
	k.Backup = k.Backup.Clone()
	k.ExpireTime, k.Extra = c.ExpireTime, c.Extra
	return k.Backup.Clone(), nil
}

// DeleteBackup implements backend.Backups.
func (b *Backend) DeleteBackup(ctx context.Context, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	_, err := b.backupLocked(name)
	delete(b.mu.backups, name)
	return err
}

// RestoreTable implements backend.Backups.
func (b *Backend) RestoreTable(ctx context.Context, from, name string, change func(*schema.Table) error) (*schema.Table, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	k, err := b.backupLocked(from)
	if err != nil {
		return nil, err
	}
	if b.mu.live[name] != nil {
		return nil, fault.New(fault.AlreadyExists, "Table already exists: %s", name)
	}
	t := k.table.clone()
	if err := change(t.schema); err != nil {
		return nil, err
	}
	t.schema.Name, t.schema.ID, t.schema.CreateTime = name, b.mu.nextID, b.now()
	t.schema.Version++
	b.mu.nextID++
	b.mu.live[name] = t
	return t.schema.Clone(), nil
}
