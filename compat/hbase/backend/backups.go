package backend

import (
	"context"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
)

var noBackups = fault.New(fault.Unimplemented, "Backups of tables in HBase are not implemented; use HBase's snapshots")

// CreateBackup implements backend.Backups.
func (b *Backend) CreateBackup(context.Context, string, *schema.Backup) (*schema.Backup, error) {
	return nil, noBackups
}

// CopyBackup implements backend.Backups.
func (b *Backend) CopyBackup(context.Context, string, *schema.Backup) (*schema.Backup, error) {
	return nil, noBackups
}

// Backup implements backend.Backups.
func (b *Backend) Backup(_ context.Context, name string) (*schema.Backup, error) {
	return nil, fault.New(fault.NotFound, "Backup not found: %s", name)
}

// ListBackups implements backend.Backups.
func (b *Backend) ListBackups(context.Context, string) ([]*schema.Backup, error) { return nil, nil }

// UpdateBackup implements backend.Backups.
func (b *Backend) UpdateBackup(_ context.Context, name string, _ func(*schema.Backup) error) (*schema.Backup, error) {
	return nil, fault.New(fault.NotFound, "Backup not found: %s", name)
}

// DeleteBackup implements backend.Backups.
func (b *Backend) DeleteBackup(_ context.Context, name string) error {
	return fault.New(fault.NotFound, "Backup not found: %s", name)
}

// RestoreTable implements backend.Backups.
func (b *Backend) RestoreTable(context.Context, string, string, func(*schema.Table) error) (*schema.Table, error) {
	return nil, noBackups
}
