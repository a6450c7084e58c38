package data

import (
	"context"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway/backend"
	"github.com/trestledb/trestle/gateway/view"
	"github.com/trestledb/trestle/gateway/wire"
)

// A target is the table of a request, whole or as an authorized view shows it, or a
// materialized view.
type target struct {
	table        string
	view         *view.View    // nil for the whole table
	schema       *schema.Table // beside a view only
	materialized bool          // table is the name of a materialized view
}

// openMaterialized is open for a request that names a materialized view.
func (s *Service) openMaterialized(ctx context.Context, name, profile string, a access) (target, error) {
	instance, err := wire.CheckMaterializedView("materialized_view_name", name, s.opt.LaxNames)
	if err != nil {
		return target{}, err
	}
	if a != read {
		return target{}, fault.InvalidField("permission", "A materialized view can only be read: the permission must be PERMISSION_READ")
	}
	return target{table: name, materialized: true}, s.profile(ctx, instance, profile, a)
}

// refusal returns err, of the backend, in the words that are true of the target.
func (t *target) refusal(err error) error {
	if t.materialized && fault.KindOf(err) == fault.NotFound {
		return &fault.Error{Kind: fault.NotFound, Field: "materialized_view_name", Msg: "Materialized view not found: " + t.table, Cause: err}
	}
	return err
}

// openView is open for a request that names an authorized view.
func (s *Service) openView(ctx context.Context, name, profile string, a access) (target, error) {
	instance, err := wire.CheckView("authorized_view_name", name, s.opt.LaxNames)
	if err != nil {
		return target{}, err
	}
	if err := s.profile(ctx, instance, profile, a); err != nil {
		return target{}, err
	}
	if s.opt.View == nil {
		return target{}, fault.New(fault.NotFound, "Authorized view not found: %s", name)
	}
	t, v, err := s.opt.View(ctx, name)
	if err != nil {
		return target{}, err
	}
	return target{table: t.Name, view: v, schema: t}, nil
}

// ranges returns those of the ranges that the target has.
func (t *target) ranges(ranges []row.Range) []row.Range {
	if t.view == nil {
		return ranges
	}
	return t.view.Intersect(ranges)
}

// filter returns the client's filter for what the target has of a row, or why it
// may not be asked for.
func (t *target) filter(client *filter.Node) (*filter.Node, error) {
	switch {
	case t.materialized:
		return backend.Visible(client), nil
	case t.view == nil:
		return client, nil
	}
	return t.view.Filter(client)
}

// check refuses mutations of a row that reach outside of the target.
func (t *target) check(key []byte, muts []row.Mutation) error {
	if t.view == nil {
		return nil
	}
	return t.view.Check(key, muts, t.schema.Families)
}

// split reports the entries that reach outside of the target to done, and
// returns the others with the places that they had; no places if all are left.
func (t *target) split(entries []row.Entry, done func(int, error)) (rest []row.Entry, places []int) {
	if t.view == nil {
		return entries, nil
	}
	refused := false
	for i := range entries {
		err := t.check(entries[i].Key, entries[i].Mutations)
		if err != nil {
			done(i, err)
		}
		if err != nil && !refused {
			refused = true
			rest = append(rest, entries[:i]...)
			for j := range i {
				places = append(places, j)
			}
		}
		if err == nil && refused {
			rest, places = append(rest, entries[i]), append(places, i)
		}
	}
	if !refused {
		return entries, nil
	}
	return rest, places
}
