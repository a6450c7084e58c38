package materialize_test

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/trestledb/trestle/conformance/model"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/matview"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

const instance = "projects/p/instances/i"

// catalog has tables by name.
type catalog map[string]*algebra.Table

func (c catalog) Table(_ context.Context, name string) (*algebra.Table, error) {
	if t := c[strings.ToLower(name)]; t != nil {
		return t, nil
	}
	return nil, fault.New(fault.NotFound, "no table %s", name)
}
func (c catalog) Tables(context.Context) ([]string, error) {
	return slices.Sorted(maps.Keys(c)), nil
}
func (c catalog) Type(context.Context, []string) (*types.Type, error) {
	return nil, fault.New(fault.NotFound, "no types")
}

// source returns a backend with the table t, which has families f and m, and n of
// numbers, and its catalog.
func source(t testing.TB) (*model.Backend, catalog) {
	t.Helper()
	b := model.New(model.Options{})
	s := &schema.Table{Name: instance + "/tables/t", Granularity: 1, Families: map[string]schema.Family{}}
	for _, f := range []string{"f", "m"} {
		s.AddFamily(schema.Family{Name: f})
	}
	s.AddFamily(schema.Family{Name: "n", Aggregate: schema.Sum})
	s, err := b.CreateTable(t.Context(), s, nil)
	if err != nil {
		t.Fatal(err)
	}
	table := func(name string) *algebra.Table {
		return &algebra.Table{Name: name, FullName: s.Name, Schema: s, Columns: []algebra.TableColumn{
			{Name: "_key", Type: types.BytesType, Kind: algebra.RowKeyColumn},
			{Name: "f", Type: types.MapOf(types.BytesType, types.BytesType), Kind: algebra.FamilyColumn, Family: "f"},
			{Name: "m", Type: types.MapOf(types.BytesType, types.BytesType), Kind: algebra.FamilyColumn, Family: "m"},
			{Name: "n", Type: types.MapOf(types.BytesType, types.Int64Type), Kind: algebra.FamilyColumn, Family: "n"},
		}}
	}
	view := table("mv")
	view.Schema = s.Clone()
	view.Schema.View = &schema.View{Name: "mv"}
	return b, catalog{"t": table("t"), "other": table("other"), "mv": view,
		"lv": {Name: "lv", FullName: instance + "/logicalViews/lv", View: &algebra.View{Query: "SELECT _key, f FROM t"}}}
}

func set(family, qualifier, value string) row.Mutation {
	return row.Mutation{Op: row.SetCell, Family: family, Qualifier: []byte(qualifier), Timestamp: 1000, Value: []byte(value)}
}

// A viewRow is the cells of a row of a view.
type viewRow map[string]map[string]string

func (v viewRow) Cell(family string, q []byte) ([]byte, error) {
	if x, ok := v[family][string(q)]; ok {
		return append([]byte{}, x...), nil
	}
	return nil, nil
}

func (v viewRow) Cells(from []byte, visit func(q, v []byte) bool) error {
	for _, q := range slices.Sorted(maps.Keys(v[matview.CountsFamily])) {
		if q >= string(from) && !visit([]byte(q), []byte(v[matview.CountsFamily][q])) {
			break
		}
	}
	return nil
}

func (v viewRow) apply(muts []row.Mutation) {
	for _, m := range muts {
		switch m.Op {
		case row.SetCell:
			if v[m.Family] == nil {
				v[m.Family] = map[string]string{}
			}
			v[m.Family][string(m.Qualifier)] = string(m.Value)
		case row.DeleteColumn:
			delete(v[m.Family], string(m.Qualifier))
		case row.DeleteFamily:
			delete(v, m.Family)
		}
	}
}

// visible returns the cells that clients see, by family:qualifier.
func (v viewRow) visible() map[string]string {
	out := map[string]string{}
	for f, cells := range v {
		if !matview.Hidden(f) {
			for q, x := range cells {
				out[f+":"+q] = x
			}
		}
	}
	return out
}

// collect returns what an evaluation gives.
func collect(t testing.TB, run func(emit func(*matview.Row) error) error) map[string]matview.Row {
	t.Helper()
	out := map[string]matview.Row{}
	last := []byte(nil)
	err := run(func(r *matview.Row) error {
		if last != nil && bytes.Compare(r.Key, last) <= 0 {
			t.Fatalf("%q comes after %q", r.Key, last)
		}
		last = bytes.Clone(r.Key)
		out[string(r.Key)] = matview.Row{Key: last, Contribution: bytes.Clone(r.Contribution), Err: r.Err}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
