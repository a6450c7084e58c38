package model

import (
	"context"
	"errors"
	"strings"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway/backend"
)

// A materialized view is a table that can only be read. It has the name that a table of
// its id would have, which there is none of.

// viewOf returns the resource name of the materialized view that a table which is not there
// stands for.
func viewOf(resource string) string {
	return strings.Replace(resource, "/tables/", "/materializedViews/", 1)
}

func lastPart(name string) string { return name[strings.LastIndexByte(name, '/')+1:] }

// ReadOnlyViews returns b with materialized views that show their columns only and cannot be
// changed. b is a backend.RowUpdater, or none is asked for.
func ReadOnlyViews(b backend.Backend) backend.Backend { return views{b, backend.ViewsOf(b)} }

type views struct {
	backend.Backend
	backend.MaterializedViews
}

// check refuses a change of a materialized view.
func (v views) check(table string) error {
	if backend.IsMaterializedView(table) {
		return fault.New(fault.Invalid, "%s is a materialized view: it can only be read", table)
	}
	return nil
}

func (v views) ReadRows(ctx context.Context, req *scan.Request, w scan.Writer) (scan.Stats, error) {
	if backend.IsMaterializedView(req.Table) {
		r := *req
		r.Filter = backend.Visible(req.Filter)
		req = &r
	}
	return v.Backend.ReadRows(ctx, req, w)
}

func (v views) MutateRow(ctx context.Context, table string, e *row.Entry) error {
	if err := v.check(table); err != nil {
		return err
	}
	return v.Backend.MutateRow(ctx, table, e)
}

func (v views) MutateRows(ctx context.Context, table string, entries []row.Entry, done func(int, error)) error {
	if err := v.check(table); err != nil {
		return err
	}
	return v.Backend.MutateRows(ctx, table, entries, done)
}

func (v views) UpdateRow(ctx context.Context, table string, key, token []byte, read *filter.Node, decide func([]row.Cell) ([]row.Mutation, error)) (repeated bool, err error) {
	if err := v.check(table); err != nil {
		return false, err
	}
	u, ok := v.Backend.(backend.RowUpdater)
	if !ok {
		return false, fault.New(fault.Unimplemented, "this store cannot update rows by what is in them")
	}
	return u.UpdateRow(ctx, table, key, token, read, decide)
}

// CreateTable makes no table that would have the name of a materialized view.
func (v views) CreateTable(ctx context.Context, t *schema.Table, splits [][]byte) (*schema.Table, error) {
	if err := v.free(ctx, t.Name); err != nil {
		return nil, err
	}
	made, err := v.Backend.CreateTable(ctx, t, splits)
	if err != nil {
		return nil, err
	}
	// A view of that name may have come meanwhile.
	if err := v.free(ctx, t.Name); err != nil {
		return nil, errors.Join(err, v.Backend.DeleteTable(context.WithoutCancel(ctx), t.Name))
	}
	return made, nil
}

// free returns AlreadyExists if there is a materialized view that a table would have the
// name of.
func (v views) free(ctx context.Context, table string) error {
	switch _, err := v.Backend.Table(ctx, viewOf(table)); {
	case errors.Is(err, fault.NotFound):
		return nil
	case err != nil:
		return err
	}
	return fault.New(fault.AlreadyExists, "%s would have the name of a materialized view", table)
}

func (v views) DeleteTable(ctx context.Context, name string) error {
	if err := v.check(name); err != nil {
		return err
	}
	return v.Backend.DeleteTable(ctx, name)
}

func (v views) UpdateTable(ctx context.Context, name string, change func(*schema.Table) error) (*schema.Table, error) {
	if err := v.check(name); err != nil {
		return nil, err
	}
	return v.Backend.UpdateTable(ctx, name, change)
}

func (v views) DropRowRange(ctx context.Context, table string, prefix []byte) error {
	if err := v.check(table); err != nil {
		return err
	}
	return v.Backend.DropRowRange(ctx, table, prefix)
}
