package sql

import (
	"context"
	"fmt"
	"strings"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/materialize"
	"github.com/trestledb/trestle/engine/query/types"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway/backend"
)

// To SQL a materialized view is what its query calls its columns, those of the row key
// first. It is expanded like a logical view, over a table of its own: the cells.

// materialized returns a materialized view. ctx has the rights of c.
func (c *catalog) materialized(ctx context.Context, name string) (*algebra.Table, error) {
	known, err := c.s.o.Resources.MaterializedView(ctx, c.instance, name)
	if err != nil {
		return nil, err
	}
	// Whether the caller may read it is asked of Tables.
	t, err := c.s.o.Tables.Table(ctx, known.Name)
	if err != nil {
		return nil, err
	}
	cells, err := c.s.cells(t, name)
	if err != nil {
		return nil, err
	}
	cells.Definer = c.definer
	c.note(dependencyOf(t, c.definer))
	query := cellsQuery(t.View)
	if err := c.charge(query); err != nil {
		return nil, err
	}
	return &algebra.Table{Name: name, FullName: t.Name, View: &algebra.View{
		Query: query, Etag: fmt.Sprint(t.View.Life), Definer: c.definer, Catalog: oneTable{c, cells}}}, nil
}

// cellsName is what the query of cellsQuery calls the table of cells.
const cellsName = "cells"

// cells returns the table of a materialized view's cells.
func (s *Service) cells(t *schema.Table, name string) (*algebra.Table, error) {
	var key *algebra.KeySchema
	if !t.View.RawKey {
		key = materialize.KeySchema(t.View)
	}
	out, err := s.columns(backend.Shown(t), name, key)
	if err != nil {
		return nil, err
	}
	// A column of the key may have the name of a family.
	for i := range out.Columns {
		switch c := &out.Columns[i]; c.Kind {
		case algebra.KeyColumn:
			c.Name = keyPrefix + c.Name
		case algebra.FamilyColumn:
			c.Name = familyPrefix + c.Name
		}
	}
	return out, nil
}

// What the names of columns of cells begin with.
const keyPrefix, familyPrefix = "key ", "family "

// quoted returns name as an identifier, also if it is a keyword.
func quoted(name string) string {
	return "`" + strings.NewReplacer(`\`, `\\`, "`", "\\`", "\n", `\n`, "\r", `\r`).Replace(name) + "`"
}

// cellsQuery returns the query by which the columns of a view are had of its cells.
func cellsQuery(v *schema.View) string {
	var b strings.Builder
	item := func(name, expr string) {
		if b.Len() == 0 {
			b.WriteString("SELECT ")
		} else {
			b.WriteString(", ")
		}
		b.WriteString(expr + " AS " + quoted(name))
	}
	for i := range v.Key {
		k := &v.Key[i]
		switch {
		case !v.RawKey:
			item(k.Name, quoted(keyPrefix+k.Name))
		case k.Type == schema.ViewString:
			item(k.Name, "CAST(_key AS STRING)")
		default:
			item(k.Name, "_key")
		}
	}
	for i := range v.Columns {
		c := &v.Columns[i]
		family := quoted(familyPrefix + c.Family)
		if c.Map {
			item(c.Name, family)
			continue
		}
		item(c.Name, decoded(c.Type, family+"["+bytesLiteral(c.Qualifier)+"]"))
	}
	b.WriteString(" FROM " + cellsName)
	return b.String()
}

// decoded returns the expression of a value of that type whose bytes are cell.
func decoded(t schema.ViewType, cell string) string {
	switch t {
	case schema.ViewString:
		return "CAST(" + cell + " AS STRING)"
	case schema.ViewInt:
		return "TO_INT64(" + cell + ")"
	case schema.ViewTimestamp:
		return "TIMESTAMP_MICROS(TO_INT64(" + cell + "))"
	case schema.ViewFloat:
		return "TO_FLOAT64(" + cell + ")"
	case schema.ViewFloat32:
		return "TO_FLOAT32(" + cell + ")"
	case schema.ViewBool:
		return cell + " = b'\\x01'"
	}
	return cell
}

// bytesLiteral returns the BYTES s in SQL.
func bytesLiteral(s string) string {
	var b strings.Builder
	b.WriteString("b'")
	for i := range len(s) {
		fmt.Fprintf(&b, `\x%02x`, s[i])
	}
	return b.String() + "'"
}

// oneTable is the catalog of cellsQuery.
type oneTable struct {
	*catalog
	t *algebra.Table
}

// Table implements algebra.Catalog.
func (o oneTable) Table(context.Context, string) (*algebra.Table, error) { return o.t, nil }

// A viewCatalog shows the query of a materialized view what it may use: tables.
type viewCatalog struct{ *catalog }

// Table implements algebra.Catalog.
func (v viewCatalog) Table(ctx context.Context, name string) (*algebra.Table, error) {
	t, err := v.catalog.Table(ctx, name)
	if err == nil && t.View != nil {
		return nil, fault.New(fault.Invalid, "%s is a view: a materialized view is made of a table", types.QuoteIdentifier(name))
	}
	return t, err
}

// Type implements algebra.Catalog.
func (viewCatalog) Type(context.Context, []string) (*types.Type, error) { return nil, errNoBundles }

var errNoBundles = fault.New(fault.Invalid, "The query of a materialized view cannot use types of schema bundles, which may change")

// CompileView returns the definition of a materialized view of that query, without its
// name, or why the query is not allowed. The source is read with the rights of definer.
func (s *Service) CompileView(ctx context.Context, instance, definer, query string) (*schema.View, error) {
	c := newCatalog(s, instance)
	c.definer = definer
	defer c.release()
	if err := c.charge(query); err != nil {
		return nil, err
	}
	v, err := materialize.Compile(ctx, viewCatalog{c}, query)
	if err != nil {
		return nil, err
	}
	return v.Definition, nil
}

// Sources returns the catalogs by which the queries of materialized views are analyzed
// where they are evaluated: of the tables in an instance, with all rights.
func Sources(tables backend.Tables, r Settings) func(ctx context.Context, v *schema.View) (algebra.Catalog, error) {
	s := &Service{settings: r}
	return func(_ context.Context, v *schema.View) (algebra.Catalog, error) {
		instance, _, ok := strings.Cut(v.Source, "/tables/")
		if !ok {
			return nil, fault.New(fault.Corruption, "materialized view %s is made of %q, which is no table", v.Name, v.Source)
		}
		return &sources{s: s, tables: tables, instance: instance}, nil
	}
}

type sources struct {
	s        *Service
	tables   backend.Tables
	instance string
}

// Table implements algebra.Catalog.
func (c *sources) Table(ctx context.Context, name string) (*algebra.Table, error) {
	t, err := c.tables.Table(ctx, c.instance+"/tables/"+name)
	if err != nil {
		return nil, err
	}
	return c.s.table(t, name)
}

// Tables implements algebra.Catalog.
func (c *sources) Tables(context.Context) ([]string, error) { return nil, nil }

// Type implements algebra.Catalog.
func (c *sources) Type(context.Context, []string) (*types.Type, error) { return nil, errNoBundles }

// Visible returns b without the hidden cells of materialized views, for queries.
func Visible(b backend.Backend) backend.Backend { return visible{b} }

type visible struct{ backend.Backend }

// ReadRows implements backend.Data.
func (v visible) ReadRows(ctx context.Context, req *scan.Request, w scan.Writer) (scan.Stats, error) {
	if backend.IsMaterializedView(req.Table) {
		r := *req
		r.Filter = backend.Visible(req.Filter)
		req = &r
	}
	return v.Backend.ReadRows(ctx, req, w)
}
