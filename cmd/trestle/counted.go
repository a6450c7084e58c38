package main

import (
	"context"
	"time"

	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway/backend"
)

// A counted backend counts the rows that pass through it.
type counted struct {
	backend.Backend
	backend.MaterializedViews
	m *ops.Metrics
}

func (c counted) ReadRows(ctx context.Context, req *scan.Request, w scan.Writer) (scan.Stats, error) {
	var key []byte
	if len(req.Ranges) > 0 {
		key = req.Ranges[0].Start
	}
	s, err := c.Backend.ReadRows(ctx, req, w)
	c.m.RowsRead(ctx, req.Table, key, s, err)
	return s, err
}

func (c counted) MutateRow(ctx context.Context, table string, e *row.Entry) error {
	err := c.Backend.MutateRow(ctx, table, e)
	c.modified(ctx, table, e.Key, err, true)
	return err
}

func (c counted) MutateRows(ctx context.Context, table string, entries []row.Entry, done func(i int, err error)) error {
	modified := 0
	err := c.Backend.MutateRows(ctx, table, entries, func(i int, err error) {
		if err == nil {
			modified++
		}
		done(i, err)
	})
	var key []byte
	if len(entries) > 0 {
		key = entries[0].Key
	}
	c.m.RowsModified(ctx, table, key, modified, err)
	return err
}

func (c counted) CheckAndMutateRow(ctx context.Context, table string, key []byte, predicate *filter.Node, then, otherwise []row.Mutation) (bool, error) {
	matched, err := c.Backend.CheckAndMutateRow(ctx, table, key, predicate, then, otherwise)
	c.modified(ctx, table, key, err, matched && len(then) > 0 || !matched && len(otherwise) > 0)
	return matched, err
}

func (c counted) ReadModifyWriteRow(ctx context.Context, table string, key []byte, rules []row.Rule) ([]row.Cell, error) {
	cells, err := c.Backend.ReadModifyWriteRow(ctx, table, key, rules)
	c.modified(ctx, table, key, err, true)
	return cells, err
}

// UpdateRow implements backend.RowUpdater as far as the backend does.
func (c counted) UpdateRow(ctx context.Context, table string, key, token []byte, read *filter.Node, decide func([]row.Cell) ([]row.Mutation, error)) (repeated bool, err error) {
	b, ok := c.Backend.(backend.RowUpdater)
	if !ok {
		return false, fault.New(fault.Unimplemented, "this store cannot update rows by what is in them")
	}
	changes := false
	repeated, err = b.UpdateRow(ctx, table, key, token, read, func(cells []row.Cell) ([]row.Mutation, error) {
		muts, err := decide(cells)
		changes = len(muts) > 0
		return muts, err
	})
	c.modified(ctx, table, key, err, changes && !repeated)
	return repeated, err
}

// modified counts a call that changes a row, if changes says so and it did not fail.
func (c counted) modified(ctx context.Context, table string, key []byte, err error, changes bool) {
	rows := 0
	if err == nil && changes {
		rows = 1
	}
	c.m.RowsModified(ctx, table, key, rows, err)
}

// HotTablets implements backend.HotTabletLister as far as the backend does.
func (c counted) HotTablets(ctx context.Context, parent string) ([]backend.HotTablet, error) {
	if b, ok := c.Backend.(backend.HotTabletLister); ok {
		return b.HotTablets(ctx, parent)
	}
	return nil, fault.New(fault.Unimplemented, "this server does not measure the load of tablets")
}

// StreamPartitions and ReadChanges implement backend.ChangeStreamer as far as the
// backend does.
func (c counted) StreamPartitions(ctx context.Context, table string) ([]row.Range, error) {
	if b, ok := c.Backend.(backend.ChangeStreamer); ok {
		return b.StreamPartitions(ctx, table)
	}
	return nil, errNoChanges
}

// ReadChanges is described at StreamPartitions.
func (c counted) ReadChanges(ctx context.Context, req *changes.Request, w changes.Writer) (*changes.Close, error) {
	if b, ok := c.Backend.(backend.ChangeStreamer); ok {
		return b.ReadChanges(ctx, req, w)
	}
	return nil, errNoChanges
}

// RestorableAt and RestoreTableAt implement backend.TimeRestorer as far as the backend
// does.
func (c counted) RestorableAt(ctx context.Context, backup string, at time.Time) error {
	if b, ok := c.Backend.(backend.TimeRestorer); ok {
		return b.RestorableAt(ctx, backup, at)
	}
	return errNoChanges
}

// RestoreTableAt is described at RestorableAt.
func (c counted) RestoreTableAt(ctx context.Context, from, name string, at time.Time, change func(*schema.Table) error) (*schema.Table, error) {
	if b, ok := c.Backend.(backend.TimeRestorer); ok {
		return b.RestoreTableAt(ctx, from, name, at, change)
	}
	return nil, errNoChanges
}

var errNoChanges = fault.New(fault.Unimplemented, "This server does not keep changes")

var (
	_ backend.HotTabletLister = counted{}
	_ backend.RowUpdater      = counted{}
	_ backend.ChangeStreamer  = counted{}
	_ backend.TimeRestorer    = counted{}
)
