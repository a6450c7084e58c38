package client

import (
	"context"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
)

var errNoBackups = fault.New(fault.Unimplemented, "a cluster does not make backups yet")

// CreateBackup implements backend.Backups.
func (c *Client) CreateBackup(context.Context, string, *schema.Backup) (*schema.Backup, error) {
	return nil, errNoBackups
}

// CopyBackup implements backend.Backups.
func (c *Client) CopyBackup(context.Context, string, *schema.Backup) (*schema.Backup, error) {
	return nil, errNoBackups
}

// Backup implements backend.Backups.
func (c *Client) Backup(_ context.Context, name string) (*schema.Backup, error) {
	return nil, fault.New(fault.NotFound, "Backup not found: %s", name)
}

// ListBackups implements backend.Backups.
func (c *Client) ListBackups(context.Context, string) ([]*schema.Backup, error) { return nil, nil }

// UpdateBackup implements backend.Backups.
func (c *Client) UpdateBackup(_ context.Context, name string, _ func(*schema.Backup) error) (*schema.Backup, error) {
	return nil, fault.New(fault.NotFound, "Backup not found: %s", name)
}

// DeleteBackup implements backend.Backups.
func (c *Client) DeleteBackup(_ context.Context, name string) error {
	return fault.New(fault.NotFound, "Backup not found: %s", name)
}

// RestoreTable implements backend.Backups.
func (c *Client) RestoreTable(_ context.Context, backup, _ string, _ func(*schema.Table) error) (*schema.Table, error) {
	return nil, fault.New(fault.NotFound, "Backup not found: %s", backup)
}
