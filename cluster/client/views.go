package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/cluster/views"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/matview"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

var _ views.Cluster = (*Client)(nil)

// CreateView implements backend.MaterializedViews. First the source notes the view: from
// then on its changes are kept, and it is not deleted. Then come the two tables of the view.
func (c *Client) CreateView(ctx context.Context, v *schema.View, set func(*schema.Table)) (*schema.Table, error) {
	newID, err := c.newIDs(ctx)
	if err != nil {
		return nil, err
	}
	v = v.Clone()
	v.Life = newID()
	rows, state := matview.Tables(v)
	for _, t := range []*schema.Table{rows, state} {
		t.ID, t.Version, t.CreateTime = newID(), 1, c.o.Now()
		if err := t.CheckFamilies(nil); err != nil {
			return nil, err
		}
	}
	if set != nil {
		set(rows)
	}
	if err := c.forgetViews(ctx, v.Source, v.Name); err != nil {
		return nil, err
	}
	_, err = c.changeLive(ctx, v.Source, func(t *schema.Table) error {
		if t.View != nil {
			return fault.New(fault.FailedPrecondition, "%s is a materialized view: a view of a view cannot be made", t.Name)
		}
		if t.ID != v.SourceID {
			return fault.New(fault.FailedPrecondition, "Table %s was made anew since the query was analyzed", t.Name)
		}
		return t.AddView(schema.ViewOf{Name: v.Name, Life: v.Life, Families: v.Families, Since: c.o.Now()})
	})
	if err != nil {
		return nil, err
	}
	made, err := c.makeViewTables(ctx, v, rows, state, newID)
	if err != nil {
		after, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		return nil, errors.Join(err, c.dropView(after, v))
	}
	return made, nil
}

// makeViewTables makes the tables of a view: that of contributions has the tablets that the
// source has.
func (c *Client) makeViewTables(ctx context.Context, v *schema.View, rows, state *schema.Table, newID func() uint64) (*schema.Table, error) {
	one := func(table uint64, within row.Range) *metadata.Row {
		return &metadata.Row{Table: table, Tablet: metadata.TabletID(newID()), Start: within.Start, End: within.End, MajorTime: rows.CreateTime.Unix(), Assignment: &metadata.Assignment{}}
	}
	made, err := c.makeTable(ctx, rows, func() ([]*metadata.Row, error) { return []*metadata.Row{one(rows.ID, row.All)}, nil })
	if err != nil {
		return nil, err
	}
	_, err = c.makeTable(ctx, state, func() ([]*metadata.Row, error) {
		var out []*metadata.Row
		err := c.retryNotServing(ctx, func() error {
			t, err := c.o.Schemas.ByID(v.SourceID)
			if err != nil {
				return err
			}
			tablets, err := c.overlapping(ctx, t, row.All)
			out = out[:0]
			for _, r := range tablets {
				out = append(out, one(state.ID, row.Range{Start: r.Start, End: r.End}))
			}
			return err
		})
		return out, err
	})
	return made, err
}

// UpdateView implements backend.MaterializedViews.
func (c *Client) UpdateView(ctx context.Context, name string, change func(*schema.Table) error) (*schema.Table, error) {
	if _, err := c.view(ctx, name); err != nil {
		return nil, err
	}
	return c.changeLive(ctx, name, func(t *schema.Table) error {
		next := t.Clone()
		if err := change(next); err != nil {
			return err
		}
		t.DeletionProtection, t.Extra = next.DeletionProtection, next.Extra
		return nil
	})
}

// writable is Schemas.Named of a table that clients may write to.
func (c *Client) writable(ctx context.Context, name string) (*catalog.Table, error) {
	t, err := c.o.Schemas.Named(ctx, name)
	if err != nil {
		return nil, err
	}
	return t, t.Schema().CheckWritable()
}

// view returns the table of a view's rows.
func (c *Client) view(ctx context.Context, name string) (*catalog.Table, error) {
	t, err := c.o.Schemas.Named(ctx, name)
	if fault.KindOf(err) == fault.NotFound || err == nil && (t.Schema().View == nil || t.Schema().View.State) {
		return nil, fault.New(fault.NotFound, "Materialized view not found: %s", name)
	}
	return t, err
}

// DeleteView implements backend.MaterializedViews. The view is gone with the table of its
// rows; what is left after a crash is removed by the master.
func (c *Client) DeleteView(ctx context.Context, name string) error {
	var v *schema.View
	err := c.changeTables(ctx, name, func(n catalog.Name) (catalog.Name, error) {
		v = nil
		left := slices.DeleteFunc(slices.Clone(n), func(t catalog.Entry) bool {
			if t.DeleteTime.IsZero() && t.View != nil {
				v = t.View
				return !t.DeletionProtection
			}
			return false
		})
		switch {
		case v == nil:
			return nil, fault.New(fault.NotFound, "Materialized view not found: %s", name)
		case len(left) == len(n):
			return nil, fault.New(fault.FailedPrecondition, "The materialized view %s is protected against deletion.", name)
		}
		return left, nil
	})
	if err != nil {
		return err
	}
	return c.dropView(ctx, v)
}

// dropView removes the tables of a view, as far as they are there, and its source's note.
func (c *Client) dropView(ctx context.Context, v *schema.View) error {
	for _, name := range []string{v.Name, matview.StateName(v.Name)} {
		err := c.changeTables(ctx, name, func(n catalog.Name) (catalog.Name, error) {
			return slices.DeleteFunc(slices.Clone(n), func(t catalog.Entry) bool { return t.View != nil && t.View.Life == v.Life }), nil
		})
		if err != nil {
			return err
		}
	}
	_, err := c.changeLive(ctx, v.Source, func(t *schema.Table) error {
		t.RemoveView(v.Name, v.Life)
		return nil
	})
	if fault.KindOf(err) == fault.NotFound {
		return nil
	}
	return err
}

// viewMaking is for how long a view of which there is no table may still be one that is being made.
const viewMaking = 10 * time.Minute

// forgetView removes a source's note of a view that is not there: the process that made or
// deleted it has died meanwhile.
func (c *Client) forgetViews(ctx context.Context, source, name string) error {
	t, err := c.o.Schemas.Named(ctx, source)
	if err != nil {
		return err
	}
	for _, v := range t.Schema().Views {
		if name != "" && v.Name != name {
			continue
		}
		if there, err := c.viewThere(ctx, &v); err != nil || there {
			if err != nil {
				return err
			}
			continue
		}
		if err := c.dropView(ctx, &schema.View{Name: v.Name, Life: v.Life, Source: source}); err != nil {
			return err
		}
	}
	return nil
}

// viewThere tells whether a view that a source notes is there, or may be being made.
func (c *Client) viewThere(ctx context.Context, v *schema.ViewOf) (bool, error) {
	t, err := c.view(ctx, v.Name)
	switch {
	case err == nil && t.Schema().View.Life == v.Life:
		return true, nil
	case err == nil || fault.KindOf(err) == fault.NotFound:
		return c.o.Now().Sub(v.Since) < viewMaking, nil
	}
	return false, err
}

// ListViews implements backend.MaterializedViews.
func (c *Client) ListViews(_ context.Context, instance string) ([]*schema.Table, error) {
	var out []*schema.Table
	for _, t := range c.o.Schemas.All() {
		if sch := t.Schema(); sch.DeleteTime.IsZero() && sch.View != nil && !sch.View.State && strings.HasPrefix(sch.Name, instance+"/") {
			out = append(out, sch)
		}
	}
	slices.SortFunc(out, func(a, b *schema.Table) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// ChangesBegin implements views.Cluster.
func (c *Client) ChangesBegin(ctx context.Context, table string, within row.Range) ([]views.Begin, error) {
	t, err := c.o.Schemas.Named(ctx, table)
	if err != nil {
		return nil, err
	}
	var out []views.Begin
	err = c.retryNotServing(ctx, func() error {
		out = out[:0]
		return c.tabletStatuses(ctx, t, within, func(r *metadata.Row, s *rpc.TabletStatus) error {
			if s == nil || s.Changes == 0 {
				return fmt.Errorf("changes of tablet %v: %w at the moment", r.Tablet, rpc.ErrNotServing)
			}
			out = append(out, views.Begin{Rows: row.Range{Start: r.Start, End: r.End}, Stamp: s.Changes})
			return nil
		})
	})
	return out, err
}

// tabletStatuses calls each with the tablets of a table that have rows of within, ascending, and
// what their servers say of them: nil if they do not answer, or do not have them.
func (c *Client) tabletStatuses(ctx context.Context, t *catalog.Table, within row.Range, each func(*metadata.Row, *rpc.TabletStatus) error) error {
	rows, err := c.overlapping(ctx, t, within)
	if err != nil {
		return err
	}
	servers := map[string]map[metadata.TabletID]*rpc.TabletStatus{}
	for _, r := range rows {
		a := r.Assignment
		if a == nil || a.State != metadata.Open {
			if err := each(r, nil); err != nil {
				return err
			}
			continue
		}
		by := servers[a.Addr]
		if by == nil {
			by = map[metadata.TabletID]*rpc.TabletStatus{}
			servers[a.Addr] = by
			if s, err := c.o.Dialer.Dial(a.Addr).Status(ctx); err == nil {
				for i := range s.Tablets {
					by[s.Tablets[i].Tablet] = &s.Tablets[i]
				}
			} else if ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
		if err := each(r, by[r.Tablet]); err != nil {
			return err
		}
	}
	return nil
}

// ApplyView implements views.Cluster.
func (c *Client) ApplyView(ctx context.Context, view string, life uint64, rows []rpc.ViewRow) error {
	t, err := c.view(ctx, view)
	if err != nil {
		return err
	}
	if v := t.Schema().View; v.Life != life {
		return fault.New(fault.NotFound, "materialized view %s was made anew", view)
	}
	for len(rows) > 0 {
		n := 0
		err := c.withTablet(ctx, t, rows[0].Key, func(s rpc.TabletServer, at rpc.Target, l location) error {
			n = 1
			for n < len(rows) && l.rows.Contains(rows[n].Key) {
				n++
			}
			return s.ApplyView(ctx, at, rows[:n])
		})
		if err != nil {
			return err
		}
		rows = rows[n:]
	}
	return nil
}

// WaitView implements backend.MaterializedViews.
func (c *Client) WaitView(ctx context.Context, name string) error {
	t, err := c.view(ctx, name)
	if err != nil {
		return err
	}
	v := t.Schema().View
	begins, err := c.ChangesBegin(ctx, v.Source, row.All)
	if err != nil {
		return err
	}
	var asked time.Time
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		caught, err := c.caughtUp(ctx, name, v, begins)
		if err != nil || caught {
			return err
		}
		// Workers that begin meanwhile were not there to be told.
		if time.Since(asked) > askEvery {
			asked = time.Now()
			c.askWatermarks(ctx, v, begins)
		}
		select {
		case <-time.After(wait):
		case <-c.o.Ended:
			return rpc.ErrEnded
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// askEvery is how often servers are asked to tell workers up to where there is nothing.
const askEvery = 50 * time.Millisecond

// askWatermarks has the readers of a view's source told at once up to where there is nothing,
// which they would hear in time: it saves waiting.
func (c *Client) askWatermarks(ctx context.Context, v *schema.View, begins []views.Begin) {
	t, err := c.o.Schemas.ByID(v.SourceID)
	if err != nil {
		return
	}
	for i := range begins {
		b := &begins[i]
		l, err := c.locate(ctx, v.SourceID, b.Rows.Start)
		if err != nil {
			continue
		}
		read := rpc.ChangesRead{Within: b.Rows, From: changes.Position{Through: b.Stamp}, Until: b.Stamp, Every: askEvery}
		_ = c.o.Dialer.Dial(l.addr).ReadChanges(ctx, rpc.Target{Tablet: l.tablet, Schema: t.Schema().Version}, &read, nothing{})
	}
}

// nothing is a changes.Writer of a read that gives nothing.
type nothing struct{}

func (nothing) Record(*changes.Record, changes.Position) (bool, error) { return false, nil }
func (nothing) Flush() error                                           { return nil }
func (nothing) Watermark(changes.Position) error                       { return nil }

// caughtUp tells whether a view shows all changes up to some stamps of its source's tablets.
func (c *Client) caughtUp(ctx context.Context, name string, v *schema.View, begins []views.Begin) (bool, error) {
	t, err := c.view(ctx, name)
	if err != nil {
		return false, err
	}
	if t.Schema().View.Life != v.Life {
		return false, fault.New(fault.NotFound, "Materialized view not found: %s was made anew", name)
	}
	source, err := c.o.Schemas.Named(ctx, v.Source)
	if err != nil {
		return false, err
	}
	state, err := c.o.Schemas.Named(ctx, matview.StateName(name))
	if err != nil {
		return false, err
	}
	caught := true
	err = c.tabletStatuses(ctx, state, row.All, func(r *metadata.Row, s *rpc.TabletStatus) error {
		// A worker that begins anew has told nothing yet of what it shows.
		if s == nil || s.View == nil || source.Schema().Stream == nil || s.View.Life != source.Schema().ViewLife() {
			caught = false
			return nil
		}
		mine := row.Range{Start: r.Start, End: r.End}
		for i := range begins {
			if !begins[i].Rows.Intersect(mine).Empty() && s.View.Through < begins[i].Stamp {
				caught = false
			}
		}
		return nil
	})
	if errors.Is(err, rpc.ErrNotServing) {
		return false, nil
	}
	return caught, err
}

func bytesOf(s *rpc.TabletStatus, r *metadata.Row) (n int64) {
	if s != nil {
		return s.Bytes
	}
	for _, f := range r.Files {
		n += f.Size
	}
	return n
}

// ViewStatus implements backend.MaterializedViews.
func (c *Client) ViewStatus(ctx context.Context, name string) (*matview.Status, error) {
	t, err := c.view(ctx, name)
	if err != nil {
		return nil, err
	}
	state, err := c.o.Schemas.Named(ctx, matview.StateName(name))
	if err != nil {
		return nil, err
	}
	var out matview.Status
	err = c.retryNotServing(ctx, func() error {
		out = matview.Status{}
		err := c.tabletStatuses(ctx, t, row.All, func(r *metadata.Row, s *rpc.TabletStatus) error {
			out.RowBytes += bytesOf(s, r)
			return nil
		})
		if err != nil {
			return err
		}
		return c.tabletStatuses(ctx, state, row.All, func(r *metadata.Row, s *rpc.TabletStatus) error {
			out.Tablets++
			out.StateBytes += bytesOf(s, r)
			if s == nil || s.View == nil || s.View.Stopped {
				out.Behind++
			} else if s.View.Through == 0 {
				out.Building++
			}
			if s != nil && s.View != nil {
				noteProgress(&out, s.View)
			}
			return nil
		})
	})
	return &out, err
}

// noteProgress adds what a tablet says to a status.
func noteProgress(out *matview.Status, p *rpc.ViewProgress) {
	out.Lag = max(out.Lag, p.Lag)
	out.Failed, out.Errors = out.Failed+p.Failed, out.Errors+p.Errors
	if p.LastFailure != "" {
		out.LastFailure = p.LastFailure
	}
	if p.LastError != "" {
		out.LastError = p.LastError
	}
}
