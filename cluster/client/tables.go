package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

// changeTables replaces the tables of a name by what do makes of them, and waits until
// every tablet server knows. It tries again when another client was faster.
func (c *Client) changeTables(ctx context.Context, name string, do func(catalog.Name) (catalog.Name, error)) error {
	return c.writeTables(ctx, name, do, true)
}

// writeTables is changeTables; it waits for servers only if wait is true.
func (c *Client) writeTables(ctx context.Context, name string, do func(catalog.Name) (catalog.Name, error), wait bool) error {
	for {
		n, version, err := catalog.ReadName(ctx, c.o.Lock, name)
		if err != nil {
			return err
		}
		if n, err = do(n); err != nil {
			return err
		}
		item, err := catalog.WriteName(ctx, c.o.Lock, name, n, version)
		if errors.Is(err, fault.Aborted) {
			continue
		}
		if err != nil {
			return err
		}
		if err := c.o.Schemas.Apply(item); err != nil || !wait {
			return err
		}
		return c.waitApplied(ctx, item.Version)
	}
}

// waitApplied returns when every tablet server that lives judges by the schemas of a
// revision of the lock service. A server that does not learn of it loses its session, so
// the wait ends.
func (c *Client) waitApplied(ctx context.Context, revision int64) error {
	for wait := 100 * time.Microsecond; ; wait = min(2*wait, 5*time.Millisecond) {
		servers, _, err := catalog.Servers(ctx, c.o.Lock)
		if err != nil {
			return err
		}
		applied, _, err := c.o.Lock.List(ctx, catalog.AppliedPrefix)
		if err != nil {
			return err
		}
		at := map[string]int64{}
		for _, i := range applied {
			var revision int64
			if err := json.Unmarshal(i.Value, &revision); err != nil {
				return fault.New(fault.Corruption, "item %s: %w", i.Key, err)
			}
			at[i.Key] = revision
		}
		behind := false
		for incarnation := range servers {
			behind = behind || at[catalog.AppliedKey(incarnation)] < revision
		}
		if !behind {
			return nil
		}
		select {
		case <-time.After(wait):
		case <-c.o.Ended:
			return rpc.ErrEnded
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func checkNameFree(n catalog.Name, name string) error {
	if n.Live() != nil {
		return fault.New(fault.AlreadyExists, "Table already exists: %s", name)
	}
	return nil
}

// CreateTable implements backend.Tables.
func (c *Client) CreateTable(ctx context.Context, want *schema.Table, splits [][]byte) (*schema.Table, error) {
	newID, err := c.newIDs(ctx)
	if err != nil {
		return nil, err
	}
	sch := want.Clone()
	sch.ID, sch.NextFamily, sch.Version, sch.CreateTime = newID(), 0, 1, c.o.Now()
	names, fams := sch.FamilyNames(), sch.Families
	sch.Families = make(map[string]schema.Family, len(fams))
	for _, n := range names {
		f := fams[n]
		f.Name = n
		sch.AddFamily(f)
	}
	if err := sch.CheckFamilies(nil); err != nil {
		return nil, err
	}
	return c.makeTable(ctx, sch, func() ([]*metadata.Row, error) {
		var rows []*metadata.Row
		var start []byte
		for i := range len(splits) + 1 {
			r := &metadata.Row{Table: sch.ID, Tablet: metadata.TabletID(newID()), Start: start, MajorTime: sch.CreateTime.Unix(),
				Assignment: &metadata.Assignment{}}
			if i < len(splits) {
				r.End, start = splits[i], splits[i]
			}
			rows = append(rows, r)
		}
		return rows, nil
	})
}

// makeTable makes a table with the tablets whose METADATA rows tablets returns. First the
// table is noted under its name as pending (see catalog.Entry), so that its rows are not
// garbage. Then come the rows, then the schema. From that moment on the table exists and
// its tablets are served.
func (c *Client) makeTable(ctx context.Context, sch *schema.Table, tablets func() ([]*metadata.Row, error)) (*schema.Table, error) {
	at := func(n catalog.Name) int {
		return slices.IndexFunc(n, func(t catalog.Entry) bool { return t.ID == sch.ID })
	}
	// A change that was made comes again if its answer was lost and another client has changed
	// the name since.
	err := c.writeTables(ctx, sch.Name, func(n catalog.Name) (catalog.Name, error) {
		if at(n) >= 0 {
			return n, nil
		}
		return append(slices.Clone(n), catalog.NewPending(sch, time.Now())), checkNameFree(n, sch.Name)
	}, false)
	if err != nil {
		return nil, err
	}
	rows, err := tablets()
	if err == nil {
		err = c.addRows(ctx, rows)
	}
	if err == nil {
		err = c.changeTables(ctx, sch.Name, func(n catalog.Name) (catalog.Name, error) {
			i := at(n)
			if i < 0 {
				return nil, fault.New(fault.Unavailable, "making table %s took too long", sch.Name)
			}
			if !n[i].Pending {
				return n, nil
			}
			n = slices.Clone(n)
			n[i] = catalog.Entry{Table: sch}
			return n, checkNameFree(slices.Delete(slices.Clone(n), i, i+1), sch.Name)
		})
	}
	if err == nil {
		return sch, nil
	}
	// The master later deletes what this leaves.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	var made bool
	gone := c.writeTables(ctx, sch.Name, func(n catalog.Name) (catalog.Name, error) {
		made = slices.ContainsFunc(n, func(t catalog.Entry) bool { return t.ID == sch.ID && !t.Pending })
		return slices.DeleteFunc(slices.Clone(n), func(t catalog.Entry) bool { return t.ID == sch.ID && t.Pending }), nil
	}, false)
	if gone == nil && !made {
		_ = c.dropRows(ctx, sch.ID)
	}
	return nil, err
}

// addRows stores METADATA rows that are new, many at a time: each is a durable
// write.
func (c *Client) addRows(ctx context.Context, rows []*metadata.Row) error {
	return inParallel(ctx, rows, func(ctx context.Context, r *metadata.Row) error { return c.meta.CAS(ctx, r) })
}

// dropRows deletes the METADATA rows of a table that is not served.
func (c *Client) dropRows(ctx context.Context, table uint64) error {
	var rows []*metadata.Row
	err := c.tabletRows(ctx, table, row.All, func(r *metadata.Row) error {
		rows = append(rows, r)
		return nil
	})
	if err != nil && !errors.Is(err, fault.NotFound) {
		return err
	}
	return inParallel(ctx, rows, func(ctx context.Context, r *metadata.Row) error { return c.meta.Delete(ctx, r) })
}

// inParallel calls do for rows, up to 32 at a time, until one fails.
func inParallel(ctx context.Context, rows []*metadata.Row, do func(context.Context, *metadata.Row) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var doing sync.WaitGroup
	slots := make(chan struct{}, 32)
	for _, r := range rows {
		slots <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		doing.Go(func() {
			defer func() { <-slots }()
			if err := do(ctx, r); err != nil {
				cancel(err)
			}
		})
	}
	doing.Wait()
	return context.Cause(ctx)
}

// Table implements backend.Tables.
func (c *Client) Table(ctx context.Context, name string) (*schema.Table, error) {
	t, err := c.o.Schemas.Named(ctx, name)
	if err != nil {
		return nil, err
	}
	return t.Schema(), nil
}

// ListTables implements backend.Tables.
func (c *Client) ListTables(_ context.Context, parent string) ([]*schema.Table, error) {
	var out []*schema.Table
	for _, t := range c.o.Schemas.All() {
		if sch := t.Schema(); sch.DeleteTime.IsZero() && sch.View == nil && strings.HasPrefix(sch.Name, parent+"/") {
			out = append(out, sch)
		}
	}
	slices.SortFunc(out, func(a, b *schema.Table) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// changeLive changes the live table of a name.
func (c *Client) changeLive(ctx context.Context, name string, do func(*schema.Table) error) (*schema.Table, error) {
	var out *schema.Table
	err := c.changeTables(ctx, name, func(n catalog.Name) (catalog.Name, error) {
		n = slices.Clone(n)
		for i, t := range n {
			if !t.DeleteTime.IsZero() {
				continue
			}
			next := t.Clone()
			if err := do(next); err != nil {
				return nil, err
			}
			next.Version = t.Version + 1
			if err := next.CheckFamilies(t.Table); err != nil {
				return nil, err
			}
			if err := next.CheckViews(t.Table); err != nil {
				return nil, err
			}
			next.KeepForViews(c.o.Now())
			next.NoteRules(t.Table)
			n[i].Table, out = next, next
			return n, nil
		}
		return nil, fault.New(fault.NotFound, "Table not found: %s", name)
	})
	return out, err
}

// UpdateTable implements backend.Tables.
func (c *Client) UpdateTable(ctx context.Context, name string, change func(*schema.Table) error) (*schema.Table, error) {
	return c.changeLive(ctx, name, func(t *schema.Table) error {
		if err := t.CheckWritable(); err != nil {
			return err
		}
		old := t.Clone()
		if err := change(t); err != nil {
			return err
		}
		t.KeepGroups(old)
		return nil
	})
}

// DeleteTable implements backend.Tables.
func (c *Client) DeleteTable(ctx context.Context, name string) error {
	if err := c.forgetViews(ctx, name, ""); err != nil {
		return err
	}
	_, err := c.changeLive(ctx, name, func(t *schema.Table) error {
		if t.View != nil {
			return fault.New(fault.NotFound, "Table not found: %s", name)
		}
		if len(t.Views) > 0 {
			return fault.New(fault.FailedPrecondition, "The table %s cannot be deleted: materialized view %s is made of it", name, t.Views[0].Name)
		}
		if t.DeletionProtection {
			return fault.New(fault.FailedPrecondition, "The table %s is protected against deletion.", name)
		}
		t.DeleteTime = c.o.Now()
		return nil
	})
	return err
}

// UndeleteTable implements backend.Tables.
func (c *Client) UndeleteTable(ctx context.Context, name string) (*schema.Table, error) {
	var out *schema.Table
	err := c.changeTables(ctx, name, func(n catalog.Name) (catalog.Name, error) {
		if err := checkNameFree(n, name); err != nil {
			return nil, err
		}
		// Of several the last to be made was the last to be deleted.
		newest := -1
		for i, t := range n {
			if !t.Pending && c.o.Now().Sub(t.DeleteTime) < schema.UndeleteWindow && (newest < 0 || t.ID > n[newest].ID) {
				newest = i
			}
		}
		if newest < 0 {
			return nil, fault.New(fault.NotFound, "Table not found, or deleted too long ago: %s", name)
		}
		n = slices.Clone(n)
		out = n[newest].Clone()
		out.DeleteTime = time.Time{}
		out.Version++
		n[newest].Table = out
		return n, nil
	})
	return out, err
}

// DropRowRange implements backend.Tables.
func (c *Client) DropRowRange(ctx context.Context, name string, prefix []byte) error {
	t, err := c.writable(ctx, name)
	if err != nil {
		return err
	}
	was := t.Schema()
	for rest := row.Prefix(prefix); !rest.Empty(); {
		var end []byte
		err := c.withTablet(ctx, t, rest.Start, func(s rpc.TabletServer, at rpc.Target, l location) error {
			end = l.rows.End
			return s.DropRange(ctx, at, rest.Intersect(l.rows))
		})
		if err != nil && bytes.Equal(rest.Start, prefix) && c.schemaChanged(ctx, was, err) {
			return c.DropRowRange(ctx, name, prefix)
		}
		if err != nil || len(end) == 0 {
			return err
		}
		rest.Start = end
	}
	return nil
}

// TableBytes implements backend.Tables.
func (c *Client) TableBytes(ctx context.Context, name string) (int64, error) {
	t, err := c.o.Schemas.Named(ctx, name)
	if err != nil {
		return 0, err
	}
	var n int64
	err = c.tabletSizes(ctx, t.Schema().ID, func(_ *metadata.Row, size int64) error {
		n += size
		return nil
	})
	return n, err
}

// tabletSizes calls each with the tablets of a table, in order, and how many bytes each
// has. Memtables count if its server can be asked.
func (c *Client) tabletSizes(ctx context.Context, table uint64, each func(r *metadata.Row, size int64) error) error {
	asked := map[string]map[metadata.TabletID]int64{}
	return c.tabletRows(ctx, table, row.All, func(r *metadata.Row) error {
		var addr string
		if a := r.Assignment; a != nil {
			addr = a.Addr
		}
		if asked[addr] == nil {
			asked[addr] = map[metadata.TabletID]int64{}
			if s, err := c.o.Dialer.Dial(addr).Status(ctx); err == nil {
				for _, t := range s.Tablets {
					asked[addr][t.Tablet] = t.Bytes
				}
			}
		}
		size, ok := asked[addr][r.Tablet]
		if !ok {
			for _, f := range r.Files {
				size += f.Size
			}
		}
		return each(r, size)
	})
}

// TableIDs implements backend.Tables. It asks the lock service: a caller deletes what
// belongs to no table, and another process may have made one that is not known here yet.
func (c *Client) TableIDs(ctx context.Context) ([]uint64, error) {
	if _, err := c.o.Schemas.Refresh(ctx, ""); err != nil {
		return nil, err
	}
	var out []uint64
	for _, t := range c.o.Schemas.All() {
		if !t.Pending() {
			out = append(out, t.Schema().ID)
		}
	}
	return out, nil
}
