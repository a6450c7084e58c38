package sql

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
	"github.com/trestledb/trestle/engine/schema"
)

// maxViewDepth is how many views can be on top of each other.
const maxViewDepth = 16

// A dependencyKind is what sort of thing a statement depends on.
type dependencyKind byte

const (
	onTable dependencyKind = iota + 1
	onView
	onBundle
)

// A dependency is something that the meaning of a statement depends on, as it
// was when the statement was analyzed.
type dependency struct {
	kind dependencyKind
	// name is the resource name; for a bundle that of its table, and its id.
	name string
	// incarnation tells it from others of that name, before and after it; version
	// changes whenever it does.
	incarnation, version string

	// What a token does not have.
	definer string        // with whose rights it is used
	table   *schema.Table // as it was seen
}

// A catalog shows the tables, views and schema bundles of an instance to the
// analysis of one statement, and notes which of them it looked at.
type catalog struct {
	*analysis
	definer string // "" for the caller
	path    []string
}

// An analysis is what the catalogs of one statement share.
type analysis struct {
	s        *Service
	instance string
	// refused is the name of the view that is being defined: a view that refers to
	// itself, by whatever way, is in a cycle.
	refused string

	mu     sync.Mutex
	deps   []dependency
	tables []*schema.Table // that were looked at, in that order
	// lacks says that there are materialized views which the caller may not read.
	lacks bool
	// text is how many bytes are analyzed, due what that takes, and taken what the budget
	// gave for it.
	text       int
	due, taken int64
}

func newCatalog(s *Service, instance string) *catalog {
	return &catalog{analysis: &analysis{s: s, instance: instance}}
}

func (a *analysis) note(d dependency) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !slices.ContainsFunc(a.deps, func(o dependency) bool { return o.kind == d.kind && o.name == d.name && o.definer == d.definer }) {
		a.deps = append(a.deps, d)
	}
	if d.kind == onTable && !slices.ContainsFunc(a.tables, func(t *schema.Table) bool { return t.Name == d.name }) {
		a.tables = append(a.tables, d.table)
	}
}

// with returns ctx with the rights that c looks at things with.
func (c *catalog) with(ctx context.Context) (context.Context, error) { return c.s.as(ctx, c.definer) }

// Table implements algebra.Catalog.
func (c *catalog) Table(ctx context.Context, name string) (*algebra.Table, error) {
	ctx, err := c.with(ctx)
	if err != nil {
		return nil, err
	}
	full := c.instance + "/tables/" + name
	t, err := c.s.o.Tables.Table(ctx, full)
	if k := fault.KindOf(err); k == fault.NotFound || k == fault.PermissionDenied {
		// A caller that may not see whether there is such a table may have a view of that
		// name.
		v, viewErr := c.view(ctx, name)
		if fault.KindOf(viewErr) != fault.NotFound {
			return v, viewErr
		}
		v, viewErr = c.materialized(ctx, name)
		if v := fault.KindOf(viewErr); v == fault.NotFound || v == fault.PermissionDenied && k == v {
			return nil, err
		}
		return v, viewErr
	}
	if err != nil {
		return nil, err
	}
	out, err := c.s.table(t, name)
	if err != nil {
		return nil, err
	}
	out.Definer = c.definer
	c.note(dependencyOf(t, c.definer))
	return out, nil
}

func dependencyOf(t *schema.Table, definer string) dependency {
	return dependency{kind: onTable, name: t.Name, incarnation: fmt.Sprint(t.ID), version: versionOf(t), definer: definer, table: t}
}

// versionOf changes whenever a table's columns do. Callers that may see some
// families only have versions of their own.
func versionOf(t *schema.Table) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d", t.Version)
	for _, n := range t.FamilyNames() {
		fmt.Fprintf(&b, " %d", t.Families[n].ID)
	}
	return b.String()
}

// sameTable tells whether two schemas of a table are one, with the same families to be
// seen.
func sameTable(t, u *schema.Table) bool {
	if t.ID != u.ID || t.Version != u.Version || len(t.Families) != len(u.Families) {
		return false
	}
	for n := range t.Families {
		if _, ok := u.Families[n]; !ok {
			return false
		}
	}
	return true
}

// view returns a logical view. ctx has the rights of c.
func (c *catalog) view(ctx context.Context, name string) (*algebra.Table, error) {
	v, err := c.s.o.Resources.LogicalView(ctx, c.instance, name)
	if err != nil {
		return nil, err
	}
	full := v.Name
	if err := c.s.readView(ctx, full); err != nil {
		return nil, err
	}
	if full == c.refused || slices.Contains(c.path, full) {
		return nil, fault.New(fault.Invalid, "Logical view %s refers to itself", name)
	}
	if len(c.path) == maxViewDepth {
		return nil, fault.New(fault.Invalid, "More than %d logical views are on top of each other", maxViewDepth)
	}
	c.note(dependency{kind: onView, name: full, incarnation: v.Incarnation, version: v.Etag, definer: c.definer})
	if err := c.charge(v.Query); err != nil {
		return nil, err
	}
	inner := &catalog{analysis: c.analysis, definer: cmp.Or(v.Definer, c.definer), path: append(slices.Clip(c.path), full)}
	return &algebra.Table{Name: name, FullName: full, View: &algebra.View{Query: v.Query, Definer: v.Definer, Etag: v.Etag, Catalog: inner}}, nil
}

// Tables implements algebra.Catalog.
func (c *catalog) Tables(ctx context.Context) ([]string, error) {
	ctx, err := c.with(ctx)
	if err != nil {
		return nil, err
	}
	var names []string
	ts, err := c.s.o.Tables.ListTables(ctx, c.instance)
	if err != nil {
		return nil, err
	}
	for _, t := range ts {
		names = append(names, lastPart(t.Name))
	}
	views, err := c.s.o.Resources.LogicalViews(ctx, c.instance)
	if err != nil {
		return nil, err
	}
	for _, id := range views {
		if c.s.readView(ctx, c.instance+"/logicalViews/"+id) == nil {
			names = append(names, id)
		}
	}
	materialized, err := c.s.o.Resources.MaterializedViews(ctx, c.instance)
	if err != nil {
		return nil, err
	}
	for _, id := range materialized {
		if _, err := c.s.o.Tables.Table(ctx, c.instance+"/materializedViews/"+id); err == nil {
			names = append(names, id)
		}
	}
	slices.Sort(names)
	return names, nil
}

func lastPart(name string) string { return name[strings.LastIndexByte(name, '/')+1:] }

// Type implements algebra.Catalog. The bundles are those of the tables that the
// statement has named so far, and then those of other tables.
func (c *catalog) Type(ctx context.Context, path []string) (*types.Type, error) {
	ctx, err := c.with(ctx)
	if err != nil {
		return nil, err
	}
	full := strings.Join(path, ".")
	c.mu.Lock()
	tables := slices.Clone(c.tables)
	c.mu.Unlock()
	others, err := c.s.o.Tables.ListTables(ctx, c.instance)
	if err != nil {
		return nil, err
	}
	for _, t := range others {
		if !slices.ContainsFunc(tables, func(o *schema.Table) bool { return o.Name == t.Name }) {
			tables = append(tables, t)
		}
	}
	for _, t := range tables {
		// The longest id of a bundle that there is counts.
		for at := len(full); at > 0; at = strings.LastIndexByte(full[:at], '.') {
			if at == len(full) {
				continue // an id alone is no type
			}
			b, err := c.s.bundle(ctx, t, full[:at])
			if fault.KindOf(err) == fault.NotFound {
				continue
			}
			if err != nil {
				return nil, err
			}
			c.note(dependency{kind: onBundle, name: t.Name + "/schemaBundles/" + b.id, incarnation: fmt.Sprint(t.ID), version: b.etag, definer: c.definer, table: t})
			typ, ok := b.typeOf(full[at+1:])
			if !ok {
				return nil, fault.New(fault.NotFound, "Schema bundle %s has no message and no enum %s", b.id, full[at+1:])
			}
			return typ, nil
		}
	}
	return nil, fault.New(fault.NotFound, "Type not found: %s", full)
}

// state is whether what a statement depends on is as it was.
type state uint8

const (
	unchanged state = iota
	changed         // the statement may mean something else
	replaced        // it is about something else of that name, or of nothing
)

// look tells whether d is as it was. Errors are those of permissions, and of the
// store.
func (s *Service) look(ctx context.Context, d *dependency) (state, error) {
	ctx, err := s.as(ctx, d.definer)
	if err != nil {
		return 0, err
	}
	switch d.kind {
	case onTable:
		t, err := s.o.Tables.Table(ctx, d.name)
		switch {
		case fault.KindOf(err) == fault.NotFound:
			return replaced, nil
		case err != nil:
			return 0, err
		case t == d.table || d.table != nil && sameTable(t, d.table):
			return unchanged, nil
		}
		now := dependencyOf(t, d.definer)
		return compare(d, &now), nil
	case onView:
		instance, id, _ := strings.Cut(d.name, "/logicalViews/")
		v, err := s.o.Resources.LogicalView(ctx, instance, id)
		if fault.KindOf(err) == fault.NotFound {
			return replaced, nil
		}
		if err == nil {
			err = s.readView(ctx, d.name)
		}
		if err != nil {
			return 0, err
		}
		// Its query is another one: that the columns may be the same is chance.
		if v.Incarnation != d.incarnation || v.Etag != d.version {
			return replaced, nil
		}
		return unchanged, nil
	case onBundle:
		table, id, _ := strings.Cut(d.name, "/schemaBundles/")
		t, err := s.o.Tables.Table(ctx, table)
		if err == nil {
			var etag string
			if etag, err = s.o.Resources.BundleETag(ctx, t, id); err == nil {
				return compare(d, &dependency{incarnation: fmt.Sprint(t.ID), version: etag}), nil
			}
		}
		if fault.KindOf(err) == fault.NotFound {
			return replaced, nil
		}
		return 0, err
	}
	return replaced, nil
}

// replacedSince tells whether a statement that was analyzed with was, and now is with
// now, is about something else. A token has no definers: what a view reads can only be
// compared with what an analysis has seen with the rights of the view.
func replacedSince(was, now []dependency) bool {
	for i := range was {
		w := &was[i]
		if !slices.ContainsFunc(now, func(n dependency) bool {
			return n.kind == w.kind && n.name == w.name && n.incarnation == w.incarnation && (n.kind != onView || n.version == w.version)
		}) {
			return true
		}
	}
	return false
}

func compare(was, now *dependency) state {
	switch {
	case was.incarnation != now.incarnation:
		return replaced
	case was.version != now.version:
		return changed
	}
	return unchanged
}

// table returns the columns of a stored table: the fields of its key, its key,
// and its families by name.
func (s *Service) table(t *schema.Table, name string) (*algebra.Table, error) {
	settings, err := s.settings.Settings(t)
	if err != nil {
		return nil, err
	}
	var key *algebra.KeySchema
	if k := settings.GetRowKeySchema(); k != nil {
		if key, err = keySchema(k); err != nil {
			return nil, err
		}
	}
	return s.columns(t, name, key)
}

// columns is table for a table whose keys are made so, nil if they have no structure.
func (s *Service) columns(t *schema.Table, name string, k *algebra.KeySchema) (*algebra.Table, error) {
	out := &algebra.Table{Name: name, FullName: t.Name, Schema: t, Version: t.Version, Key: k}
	key := algebra.TableColumn{Name: "_key", Type: types.BytesType, Kind: algebra.RowKeyColumn}
	if k != nil {
		for i, f := range k.Fields {
			out.Columns = append(out.Columns, algebra.TableColumn{Name: f.Name, Type: f.Type, Kind: algebra.KeyColumn, Field: i})
		}
		key.Pseudo = true
	}
	out.Columns = append(out.Columns, key)
	for _, n := range slices.Sorted(maps.Keys(t.Families)) {
		f := t.Families[n]
		v, err := s.valueType(f)
		if err != nil {
			return nil, err
		}
		out.Columns = append(out.Columns, algebra.TableColumn{Name: n, Type: types.MapOf(types.BytesType, v), Kind: algebra.FamilyColumn, Family: n})
	}
	return out, nil
}

// valueType returns the type of a family's values: numbers of sums, minima and
// maxima, text where the family says so, else bytes.
func (s *Service) valueType(f schema.Family) (*types.Type, error) {
	switch f.Aggregate {
	case schema.Sum, schema.Min, schema.Max:
		return types.Int64Type, nil
	case schema.HLL:
		return types.BytesType, nil
	}
	t, err := s.settings.ValueType(f)
	if err == nil && t.GetStringType() != nil {
		return types.StringType, nil
	}
	return types.BytesType, err
}

// keySchema translates the schema of structured row keys.
func keySchema(pb *adminpb.Type_Struct) (*algebra.KeySchema, error) {
	k := new(algebra.KeySchema)
	switch e := pb.GetEncoding().GetEncoding().(type) {
	case *adminpb.Type_Struct_Encoding_DelimitedBytes_:
		k.Encoding, k.Delimiter = algebra.Delimited, string(e.DelimitedBytes.GetDelimiter())
	case *adminpb.Type_Struct_Encoding_OrderedCodeBytes_:
		k.Encoding = algebra.OrderedCode
	}
	for _, f := range pb.GetFields() {
		out := algebra.KeyField{Name: f.GetFieldName()}
		number := func(e *adminpb.Type_Int64_Encoding) algebra.ValueEncoding {
			if e.GetOrderedCodeBytes() != nil {
				return algebra.OrderedInt
			}
			return algebra.BigEndian
		}
		switch t := f.GetType().GetKind().(type) {
		case *adminpb.Type_BytesType:
			out.Type, out.Encoding = types.BytesType, algebra.RawBytes
		case *adminpb.Type_StringType:
			out.Type, out.Encoding = types.StringType, algebra.UTF8
		case *adminpb.Type_Int64Type:
			out.Type, out.Encoding = types.Int64Type, number(t.Int64Type.GetEncoding())
		case *adminpb.Type_TimestampType:
			out.Type, out.Encoding = types.TimestampType, number(t.TimestampType.GetEncoding().GetUnixMicrosInt64())
		default:
			return nil, fault.New(fault.Unimplemented, "The type of field %s of the row key is not supported", out.Name)
		}
		k.Fields = append(k.Fields, out)
	}
	return k, nil
}
