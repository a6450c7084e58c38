package main

import (
	"context"

	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/gateway/backend"
)

// A counted backend counts the rows that pass through it.
type counted struct {
	backend.Backend
	m *ops.Metrics
}

func (c counted) ReadRows(ctx context.Context, req *scan.Request, w scan.Writer) (scan.Stats, error) {
	s, err := c.Backend.ReadRows(ctx, req, w)
	c.m.RowsRead(s.RowsReturned, s.RowsSeen, s.CellsSeen)
	return s, err
}

func (c counted) MutateRow(ctx context.Context, table string, e *row.Entry) error {
	err := c.Backend.MutateRow(ctx, table, e)
	if err == nil {
		c.m.RowsModified(1)
	}
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
	c.m.RowsModified(modified)
	return err
}

func (c counted) CheckAndMutateRow(ctx context.Context, table string, key []byte, predicate *filter.Node, then, otherwise []row.Mutation) (bool, error) {
	matched, err := c.Backend.CheckAndMutateRow(ctx, table, key, predicate, then, otherwise)
	if err == nil && (matched && len(then) > 0 || !matched && len(otherwise) > 0) {
		c.m.RowsModified(1)
	}
	return matched, err
}

func (c counted) ReadModifyWriteRow(ctx context.Context, table string, key []byte, rules []row.Rule) ([]row.Cell, error) {
	cells, err := c.Backend.ReadModifyWriteRow(ctx, table, key, rules)
	if err == nil {
		c.m.RowsModified(1)
	}
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
	if err == nil && changes && !repeated {
		c.m.RowsModified(1)
	}
	return repeated, err
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

var errNoChanges = fault.New(fault.Unimplemented, "This server does not keep changes")

var (
	_ backend.HotTabletLister = counted{}
	_ backend.RowUpdater      = counted{}
	_ backend.ChangeStreamer  = counted{}
)
