package sql

import (
	"context"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/materialize"
	"github.com/trestledb/trestle/engine/schema"
)

var _ materialize.Catalog = (*catalog)(nil)

// Views implements materialize.Catalog. A view that the caller may not read is none.
func (c *catalog) Views(ctx context.Context, t *algebra.Table) ([]*schema.View, error) {
	ctx, err := c.with(ctx)
	if err != nil {
		return nil, err
	}
	var out []*schema.View
	for _, of := range t.Schema.Views {
		rows, err := c.s.o.Tables.Table(ctx, of.Name)
		switch k := fault.KindOf(err); {
		case k == fault.PermissionDenied:
			if c.definer == "" {
				c.mu.Lock()
				c.lacks = true
				c.mu.Unlock()
			}
			continue
		case k == fault.NotFound:
			continue
		case err != nil:
			return nil, err
		}
		if v := rows.View; v != nil && !v.State && v.Life == of.Life {
			out = append(out, v)
		}
	}
	return out, nil
}
