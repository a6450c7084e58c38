package engine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/tablet"
)

// A backup is a schema and frozen METADATA rows. In the METADATA tablet:
//
//	"b" backup u64                     the backup, with its schema
//	"b" backup u64 00 end of range     frozen METADATA row of a tablet
//	"b" backup u64 01                  the same, of the last tablet
//
// The rows are stored before the backup and deleted after it, so a backup that
// is there has all of them. In memory it holds its objects like a reader does,
// and that is all that keeps them: a table and its backups share SSTables, and
// the last to let go of one removes it.
type backup struct {
	*schema.Backup
	tablets []*tablet.Frozen
}

func backupKey(id uint64) []byte { return binary.BigEndian.AppendUint64([]byte{'b'}, id) }

func frozenKey(id uint64, r *metadata.Row) []byte {
	k := tabletKey(r)
	return append(backupKey(id), k[9:]...)
}

func (b *backup) release() {
	for _, f := range b.tablets {
		f.Release()
	}
}

// loadBackups reads the backups and takes hold of their objects.
func (s *Store) loadBackups(ctx context.Context) error {
	s.catalog.backups = map[string]*backup{}
	var last *backup
	var orphans [][]byte
	err := s.list(ctx, []byte{'b'}, func(key, value []byte) error {
		if len(key) < 9 {
			return fault.New(fault.Corruption, "METADATA row %q is of no backup", key)
		}
		if len(key) == 9 {
			b, err := schema.UnmarshalBackup(value)
			if err != nil {
				return fault.New(fault.Corruption, "decode backup %x: %w", key, err)
			}
			last = &backup{Backup: b}
			s.catalog.backups[b.Name] = last
			return nil
		}
		if last == nil || binary.BigEndian.Uint64(key[1:]) != last.ID {
			orphans = append(orphans, slices.Clone(key)) // a crash came while it was made or deleted
			return nil
		}
		r, err := metadata.Unmarshal(value)
		if err != nil {
			return err
		}
		last.tablets = append(last.tablets, tablet.Hold(s.env, r))
		return nil
	})
	if err != nil {
		return fmt.Errorf("read backups: %w", err)
	}
	for _, key := range orphans {
		if err := s.drop(ctx, key); err != nil {
			return fmt.Errorf("delete METADATA row of a backup: %w", err)
		}
	}
	return nil
}

// drop deletes a row of the METADATA tablet.
func (s *Store) drop(ctx context.Context, key []byte) error {
	return s.put(ctx, key, func([]byte) ([]byte, error) { return nil, nil })
}

// allBackups returns the backups, expired ones included.
func (s *Store) allBackups() []*backup {
	s.catalog.RLock()
	defer s.catalog.RUnlock()
	out := make([]*backup, 0, len(s.catalog.backups))
	for _, b := range s.catalog.backups {
		out = append(out, b)
	}
	return out
}

// backup returns a backup by name.
func (s *Store) backup(name string) (*backup, error) {
	s.catalog.RLock()
	b := s.catalog.backups[name]
	s.catalog.RUnlock()
	if b == nil || b.Expired(s.o.Now()) {
		return nil, fault.New(fault.NotFound, "Backup not found: %s", name)
	}
	return b, nil
}

// CreateBackup implements backend.Backups. It takes one flush of what the table
// has in memory, and a durable METADATA row for each tablet.
func (s *Store) CreateBackup(ctx context.Context, name string, want *schema.Backup) (*schema.Backup, error) {
	start := s.o.Now()
	t, err := s.table(name)
	if err != nil {
		return nil, err
	}
	// The bulk of it before the catalog is locked.
	for _, tt := range t.list() {
		if err := s.flush(ctx, tt); err != nil {
			return nil, err
		}
	}
	if err := s.lockAdmin(); err != nil {
		return nil, err
	}
	defer s.admin.Unlock()
	if t, err = s.table(name); err != nil {
		return nil, err
	}
	if err := s.freeBackupName(ctx, want.Name); err != nil {
		return nil, err
	}
	b := &backup{Backup: want.Clone()}
	b.ID, b.Table, b.CreateTime, b.StartTime = s.newID(), t.schema.Load(), start, start
	if b.tablets, err = tablet.Freeze(ctx, t.list()); err != nil {
		return nil, err
	}
	b.EndTime = s.o.Now()
	seen := map[string]bool{}
	for _, f := range b.tablets {
		for _, o := range f.Row().Files {
			if !seen[o.Object] {
				seen[o.Object] = true
				b.Bytes += o.Size
			}
		}
	}
	if err := s.keep(ctx, b); err != nil {
		return nil, err
	}
	s.o.Log.Info("backup made", "backup", b.Name, "table", name, "tablets", len(b.tablets), "bytes", b.Bytes, "elapsed", time.Since(start))
	return b.Backup, nil
}

// freeBackupName refuses a name that a backup has. An expired one gives way.
func (s *Store) freeBackupName(ctx context.Context, name string) error {
	s.catalog.RLock()
	old := s.catalog.backups[name]
	s.catalog.RUnlock()
	switch {
	case old == nil:
		return nil
	case old.Expired(s.o.Now()):
		return s.deleteBackup(ctx, old)
	}
	return fault.New(fault.AlreadyExists, "Backup already exists: %s", name)
}

// keep stores b, which holds its objects, and lets go of them if it cannot. Its
// caller holds the admin lock.
func (s *Store) keep(ctx context.Context, b *backup) error {
	err := s.storeBackup(ctx, b)
	if err == nil {
		s.catalog.Lock()
		defer s.catalog.Unlock()
		s.catalog.backups[b.Name] = b
		return nil
	}
	if !errors.Is(err, metadata.ErrNotApplied) {
		// It may be there after a restart, and must have its objects then.
		s.env.KeepObjects()
	}
	b.release()
	return fmt.Errorf("store backup %s: %w", b.Name, err)
}

func (s *Store) storeBackup(ctx context.Context, b *backup) (err error) {
	stored := 0
	defer func() {
		if errors.Is(err, metadata.ErrNotApplied) {
			// If this fails too the next start does it.
			_ = s.dropFrozen(context.WithoutCancel(ctx), b.ID, b.tablets[:stored])
		}
	}()
	for _, f := range b.tablets {
		err := s.put(ctx, frozenKey(b.ID, f.Row()), func([]byte) ([]byte, error) { return f.Row().Marshal(), nil })
		if err != nil {
			return err
		}
		stored++
	}
	return s.put(ctx, backupKey(b.ID), func([]byte) ([]byte, error) { return b.Marshal(), ctx.Err() })
}

func (s *Store) dropFrozen(ctx context.Context, id uint64, fs []*tablet.Frozen) error {
	for _, f := range fs {
		if err := s.drop(ctx, frozenKey(id, f.Row())); err != nil {
			return err
		}
	}
	return nil
}

// CopyBackup implements backend.Backups.
func (s *Store) CopyBackup(ctx context.Context, source string, want *schema.Backup) (*schema.Backup, error) {
	if err := s.lockAdmin(); err != nil {
		return nil, err
	}
	defer s.admin.Unlock()
	from, err := s.backup(source)
	if err != nil {
		return nil, err
	}
	if err := s.freeBackupName(ctx, want.Name); err != nil {
		return nil, err
	}
	b := &backup{Backup: want.Clone()}
	b.ID, b.Table, b.CreateTime = s.newID(), from.Table, s.o.Now()
	b.StartTime, b.EndTime, b.Bytes = from.StartTime, from.EndTime, from.Bytes
	for _, f := range from.tablets {
		b.tablets = append(b.tablets, tablet.Hold(s.env, f.Row()))
	}
	if err := s.keep(ctx, b); err != nil {
		return nil, err
	}
	return b.Backup, nil
}

// Backup implements backend.Backups.
func (s *Store) Backup(_ context.Context, name string) (*schema.Backup, error) {
	b, err := s.backup(name)
	if err != nil {
		return nil, err
	}
	return b.Backup, nil
}

// ListBackups implements backend.Backups.
func (s *Store) ListBackups(_ context.Context, prefix string) ([]*schema.Backup, error) {
	now := s.o.Now()
	var out []*schema.Backup
	for _, b := range s.allBackups() {
		if strings.HasPrefix(b.Name, prefix) && !b.Expired(now) {
			out = append(out, b.Backup)
		}
	}
	slices.SortFunc(out, func(a, b *schema.Backup) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// UpdateBackup implements backend.Backups.
func (s *Store) UpdateBackup(ctx context.Context, name string, change func(*schema.Backup) error) (*schema.Backup, error) {
	s.admin.Lock()
	defer s.admin.Unlock()
	old, err := s.backup(name)
	if err != nil {
		return nil, err
	}
	b := &backup{Backup: old.Clone(), tablets: old.tablets}
	if err := change(b.Backup); err != nil {
		return nil, err
	}
	b.Name, b.ID, b.Table = old.Name, old.ID, old.Table
	if err := s.put(ctx, backupKey(b.ID), func([]byte) ([]byte, error) { return b.Marshal(), nil }); err != nil {
		return nil, err
	}
	s.catalog.Lock()
	defer s.catalog.Unlock()
	s.catalog.backups[name] = b
	return b.Backup, nil
}

// DeleteBackup implements backend.Backups.
func (s *Store) DeleteBackup(ctx context.Context, name string) error {
	s.admin.Lock()
	defer s.admin.Unlock()
	b, err := s.backup(name)
	if err != nil {
		return err
	}
	return s.deleteBackup(ctx, b)
}

// deleteBackup is DeleteBackup for who holds the admin lock.
func (s *Store) deleteBackup(ctx context.Context, b *backup) error {
	// From here on the rows are orphans.
	if err := s.drop(ctx, backupKey(b.ID)); err != nil {
		return err
	}
	s.catalog.Lock()
	delete(s.catalog.backups, b.Name)
	s.catalog.Unlock()
	b.release()
	if err := s.dropFrozen(context.WithoutCancel(ctx), b.ID, b.tablets); err != nil {
		s.o.Log.Warn("delete METADATA rows of a deleted backup", "backup", b.Name, "error", err)
	}
	return nil
}

// purgeBackups deletes the backups that have expired. Its caller holds the admin
// lock.
func (s *Store) purgeBackups(ctx context.Context) {
	now := s.o.Now()
	for _, b := range s.allBackups() {
		if !b.Expired(now) {
			continue
		}
		if err := s.deleteBackup(ctx, b); err != nil {
			s.o.Log.Warn("delete expired backup", "backup", b.Name, "error", err)
			return
		}
		s.o.Log.Info("deleted expired backup", "backup", b.Name, "expired", b.ExpireTime)
	}
}

// RestoreTable implements backend.Backups. It takes a durable METADATA row for
// each tablet; the SSTables are shared until compactions replace them.
func (s *Store) RestoreTable(ctx context.Context, from, name string, change func(*schema.Table) error) (*schema.Table, error) {
	if err := s.lockAdmin(); err != nil {
		return nil, err
	}
	defer s.admin.Unlock()
	b, err := s.backup(from)
	if err != nil {
		return nil, err
	}
	if _, err := s.table(name); err == nil {
		return nil, fault.New(fault.AlreadyExists, "Table already exists: %s", name)
	}
	sch := b.Table.Clone()
	if err := change(sch); err != nil {
		return nil, err
	}
	sch.Name, sch.ID, sch.CreateTime, sch.DeleteTime = name, s.newID(), s.o.Now(), time.Time{}
	// Versions go on from those that the SSTables speak of.
	sch.NextFamily, sch.Version = b.Table.NextFamily, b.Table.Version+1
	if err := sch.CheckRestored(b.Table); err != nil {
		return nil, err
	}
	sch.NoteRules(b.Table)
	rows := make([]*metadata.Row, len(b.tablets))
	ranges := make([]row.Range, len(b.tablets))
	for i, f := range b.tablets {
		rows[i] = f.Row().Clone()
		rows[i].Table, rows[i].Tablet = sch.ID, metadata.TabletID(s.newID())
		ranges[i] = row.Range{Start: rows[i].Start, End: rows[i].End}
	}
	if err := checkTiles(ranges); err != nil {
		return nil, fmt.Errorf("backup %s: %w", from, err)
	}
	if err := s.addTable(ctx, sch, rows); err != nil {
		return nil, err
	}
	return sch, nil
}
