package auth

import (
	"context"
	"regexp"
	"strings"
	"time"

	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway/auth/iam"
	"github.com/trestledb/trestle/gateway/backend"
)

// Guard returns b held to what was decided about the request of a context. It
// reads and writes only the families that the caller may, and a query reads
// only tables that its caller may read. A context without a request, such as
// that of work in the background, is not held to anything.
//
// The rules are kept here rather than in the handlers so that there is one
// place for them, whatever form a request came in.
func (a *Auth) Guard(b backend.Backend) backend.Backend {
	return &guard{b, backend.ViewsOf(b), a}
}

// What a caller may do with materialized views, beside reading them, is checked before.
type guard struct {
	backend.Backend
	backend.MaterializedViews
	a *Auth
}

// table checks a table that a query uses, for readRows or mutateRows. It may be a
// materialized view, which is read with a permission of its own.
func (g *guard) table(ctx context.Context, c *call, perm iam.Permission, name string) (families, error) {
	if res, ok := parseResource(name); ok && res.kind == materializedViews && perm == readRows {
		perm = readMaterialized
	}
	if perm == mutateRows && c.principal.scopes&dataWrite == 0 {
		return families{}, g.a.scope(c, "statements that write")
	}
	return g.a.use(ctx, c, perm, name)
}

// Table returns the schema of a table; to a query, of one that its caller may
// read.
func (g *guard) Table(ctx context.Context, name string) (*schema.Table, error) {
	if c := callOf(ctx); c != nil && c.rule.tables {
		f, err := g.table(ctx, c, readRows, name)
		if err != nil {
			return nil, err
		}
		t, err := g.Backend.Table(ctx, name)
		if err != nil || !f.some {
			return t, err
		}
		// Families that may not be read look absent.
		t = t.Clone()
		for n := range t.Families {
			if !f.allows(n) {
				delete(t.Families, n)
			}
		}
		return t, nil
	}
	return g.Backend.Table(ctx, name)
}

// ListTables returns, to a query, the tables that its caller may read.
func (g *guard) ListTables(ctx context.Context, parent string) ([]*schema.Table, error) {
	ts, err := g.Backend.ListTables(ctx, parent)
	c := callOf(ctx)
	if err != nil || c == nil || !c.rule.tables || c.principal.Root {
		return ts, err
	}
	var out []*schema.Table
	for _, t := range ts {
		res, ok := parseResource(t.Name)
		if !ok {
			continue
		}
		always, some, err := g.a.held(ctx, c.principal, readRows, &res, g.a.now())
		if err != nil {
			return nil, err
		}
		if always || len(some) > 0 {
			out = append(out, t)
		}
	}
	return out, nil
}

// SampleRowKeys gives a query the boundaries of a table that its caller may read.
func (g *guard) SampleRowKeys(ctx context.Context, table string, within row.Range, emit func(scan.Sample) error) error {
	if c := callOf(ctx); c != nil && c.rule.tables {
		if _, err := g.table(ctx, c, readRows, table); err != nil {
			return err
		}
	}
	return g.Backend.SampleRowKeys(ctx, table, within, emit)
}

// TabletCuts gives a query the rows at which tablets of a table may be cut that its caller
// may read.
func (g *guard) TabletCuts(ctx context.Context, table string, within row.Range) ([][]byte, error) {
	if c := callOf(ctx); c != nil && c.rule.tables {
		if _, err := g.table(ctx, c, readRows, table); err != nil {
			return nil, err
		}
	}
	return g.Backend.TabletCuts(ctx, table, within)
}

// ReadRows leaves out the cells that may not be read.
func (g *guard) ReadRows(ctx context.Context, req *scan.Request, w scan.Writer) (scan.Stats, error) {
	c := callOf(ctx)
	if c == nil {
		return g.Backend.ReadRows(ctx, req, w)
	}
	f := c.read
	if c.rule.tables {
		var err error
		if f, err = g.table(ctx, c, readRows, req.Table); err != nil {
			return scan.Stats{}, err
		}
	}
	if f.some {
		r := *req
		r.Filter = f.filter(req.Filter)
		req = &r
	}
	return g.Backend.ReadRows(ctx, req, w)
}

// filter puts f before n.
func (f *families) filter(n *filter.Node) *filter.Node {
	if len(f.list) == 0 {
		return &filter.Node{Op: filter.BlockAll}
	}
	quoted := make([]string, len(f.list))
	for i, name := range f.list {
		quoted[i] = regexp.QuoteMeta(name)
	}
	only := &filter.Node{Op: filter.FamilyRegex, Pattern: []byte(strings.Join(quoted, "|"))}
	if n == nil {
		return only
	}
	return &filter.Node{Op: filter.Chain, Children: []*filter.Node{only, n}}
}

// outside is the refusal of a write.
func (g *guard) outside(c *call, family string) error {
	if family == "" {
		return g.a.denied(c, "The caller may not write to every column family of the table, which deleting a row does.",
			"COLUMN_FAMILY_DENIED", nil)
	}
	return g.a.denied(c, "The caller may not use the column family '"+shorten(family)+"' so.", "COLUMN_FAMILY_DENIED", map[string]string{"family": shorten(family)})
}

// writable returns the families of a table that the call may write.
func (g *guard) writable(ctx context.Context, c *call, table string) (families, error) {
	if c.rule.tables {
		return g.table(ctx, c, mutateRows, table)
	}
	return c.write, nil
}

// check returns nil if muts touch only families of f.
func (g *guard) check(c *call, f *families, muts []row.Mutation) error {
	for i := range muts {
		m := &muts[i]
		if m.Op == row.DeleteRow {
			return g.outside(c, "")
		}
		if !f.allows(m.Family) {
			return g.outside(c, m.Family)
		}
	}
	return nil
}

// MutateRow refuses a change of what may not be written.
func (g *guard) MutateRow(ctx context.Context, table string, e *row.Entry) error {
	if c := callOf(ctx); c != nil {
		f, err := g.writable(ctx, c, table)
		if err == nil && f.some {
			err = g.check(c, &f, e.Mutations)
		}
		if err != nil {
			return err
		}
	}
	return g.Backend.MutateRow(ctx, table, e)
}

// MutateRows refuses the entries that change what may not be written.
func (g *guard) MutateRows(ctx context.Context, table string, entries []row.Entry, done func(int, error)) error {
	c := callOf(ctx)
	if c == nil {
		return g.Backend.MutateRows(ctx, table, entries, done)
	}
	f, err := g.writable(ctx, c, table)
	if err != nil {
		return err
	}
	if !f.some {
		return g.Backend.MutateRows(ctx, table, entries, done)
	}
	refused := map[int]error{}
	var allowed []row.Entry
	var index []int
	for i := range entries {
		if err := g.check(c, &f, entries[i].Mutations); err != nil {
			refused[i] = err
			continue
		}
		allowed = append(allowed, entries[i])
		index = append(index, i)
	}
	if len(allowed) > 0 {
		if err := g.Backend.MutateRows(ctx, table, allowed, func(i int, err error) { done(index[i], err) }); err != nil {
			return err
		}
	} else if _, err := g.Backend.Table(ctx, table); err != nil {
		return err
	}
	for i := range entries {
		if err := refused[i]; err != nil {
			done(i, err)
		}
	}
	return nil
}

// CheckAndMutateRow lets the predicate see only what may be read.
func (g *guard) CheckAndMutateRow(ctx context.Context, table string, key []byte, predicate *filter.Node, then, otherwise []row.Mutation) (bool, error) {
	if c := callOf(ctx); c != nil {
		if c.write.some {
			for _, muts := range [][]row.Mutation{then, otherwise} {
				if err := g.check(c, &c.write, muts); err != nil {
					return false, err
				}
			}
		}
		if c.read.some {
			predicate = c.read.filter(predicate)
		}
	}
	return g.Backend.CheckAndMutateRow(ctx, table, key, predicate, then, otherwise)
}

// UpdateRow shows decide what may be read, and refuses a change of what may not
// be written.
func (g *guard) UpdateRow(ctx context.Context, table string, key, token []byte, read *filter.Node, decide func([]row.Cell) ([]row.Mutation, error)) (repeated bool, err error) {
	u, ok := g.Backend.(backend.RowUpdater)
	if !ok {
		return false, fault.New(fault.Unimplemented, "This store cannot update rows by what is in them.")
	}
	c := callOf(ctx)
	if c == nil || !c.read.some && !c.write.some {
		return u.UpdateRow(ctx, table, key, token, read, decide)
	}
	if c.read.some {
		read = c.read.filter(read)
	}
	return u.UpdateRow(ctx, table, key, token, read, func(cells []row.Cell) ([]row.Mutation, error) {
		muts, err := decide(cells)
		if err == nil && c.write.some {
			err = g.check(c, &c.write, muts)
		}
		return muts, err
	})
}

// ReadModifyWriteRow needs families that may be read and written.
func (g *guard) ReadModifyWriteRow(ctx context.Context, table string, key []byte, rules []row.Rule) ([]row.Cell, error) {
	if c := callOf(ctx); c != nil {
		for i := range rules {
			if f := rules[i].Family; !c.read.allows(f) || !c.write.allows(f) {
				return nil, g.outside(c, f)
			}
		}
	}
	return g.Backend.ReadModifyWriteRow(ctx, table, key, rules)
}

// HotTablets implements backend.HotTabletLister as far as the backend does. It shows keys
// of tables to who may list hot tablets: the rules see to it.
func (g *guard) HotTablets(ctx context.Context, parent string) ([]backend.HotTablet, error) {
	if b, ok := g.Backend.(backend.HotTabletLister); ok {
		return b.HotTablets(ctx, parent)
	}
	return nil, fault.New(fault.Unimplemented, "The load of tablets is not measured")
}

// StreamPartitions and ReadChanges implement backend.ChangeStreamer as far as the
// backend does. Their callers may read every family of the table: the rules see to it.
func (g *guard) StreamPartitions(ctx context.Context, table string) ([]row.Range, error) {
	if b, ok := g.Backend.(backend.ChangeStreamer); ok {
		return b.StreamPartitions(ctx, table)
	}
	return nil, errNoChanges
}

// ReadChanges is described at StreamPartitions.
func (g *guard) ReadChanges(ctx context.Context, req *changes.Request, w changes.Writer) (*changes.Close, error) {
	if b, ok := g.Backend.(backend.ChangeStreamer); ok {
		return b.ReadChanges(ctx, req, w)
	}
	return nil, errNoChanges
}

// RestorableAt needs a table whose rows may all be read: changes of it that the backup does
// not have come out.
func (g *guard) RestorableAt(ctx context.Context, backup string, at time.Time) error {
	b, ok := g.Backend.(backend.TimeRestorer)
	if !ok {
		return errNoChanges
	}
	if c := callOf(ctx); c != nil && !c.principal.Root {
		of, err := g.Backend.Backup(ctx, backup)
		if err != nil {
			return err
		}
		f, err := g.table(ctx, c, readRows, of.Table.Name)
		if err == nil && f.some {
			err = g.a.deniedOn(c, readRows, of.Table.Name)
		}
		if err != nil {
			return err
		}
	}
	return b.RestorableAt(ctx, backup, at)
}

// RestoreTableAt implements backend.TimeRestorer as far as the backend does: see
// RestorableAt.
func (g *guard) RestoreTableAt(ctx context.Context, from, name string, at time.Time, change func(*schema.Table) error) (*schema.Table, error) {
	if b, ok := g.Backend.(backend.TimeRestorer); ok {
		return b.RestoreTableAt(ctx, from, name, at, change)
	}
	return nil, errNoChanges
}

var errNoChanges = fault.New(fault.Unimplemented, "This server does not keep changes")
