package master

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/trestledb/trestle/compat/hbase/model"
	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway/backend"
)

// A racer is a backend on which others do something right before and right after the
// next change of a schema.
type racer struct {
	backend.Backend
	before, after func()
}

func (r *racer) UpdateTable(ctx context.Context, name string, change func(*schema.Table) error) (*schema.Table, error) {
	before, after := r.before, r.after
	r.before, r.after = nil, nil
	if before != nil {
		before()
	}
	t, err := r.Backend.UpdateTable(ctx, name, change)
	if after != nil {
		after()
	}
	return t, err
}

// TestAlterAmidChanges: an alteration changes what it names. What others change at the
// same time stays, with the rows that are written there.
func TestAlterAmidChanges(t *testing.T) {
	add := func(m *Master, f *fixture, d *pb.ColumnFamilySchema) error {
		_, err := m.addColumn(f.t.Context(), f.c, &pb.AddColumnRequest{TableName: tn("t"), ColumnFamilies: d})
		return err
	}
	for name, alter := range map[string]func(f *fixture) error{
		"add": func(f *fixture) error { return add(f.Master, f, fam("mine", "BLOOMFILTER", "ROWCOL")) },
		"modify": func(f *fixture) error {
			_, err := f.modifyTable(f.t.Context(), f.c, &pb.ModifyTableRequest{TableName: tn("t"),
				TableSchema: tableSchema("t", fam("f", "VERSIONS", "4"), fam("mine", "BLOOMFILTER", "ROWCOL"))})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t)
			ctx := t.Context()
			f.create(tableSchema("t", fam("f", "VERSIONS", "2"), fam("old")))
			resource := f.catalog.Mapping().Resource(model.ParseName("t"))
			cat, err := model.Open(ctx, f.store, f.catalog.Mapping(), model.Server{Host: "h", Port: 2, StartCode: 1})
			if err != nil {
				t.Fatal(err)
			}
			other := New(cat, Options{})
			t.Cleanup(other.Close)
			f.b = &racer{
				Backend: f.b,
				before: func() {
					_, err := f.store.UpdateTable(ctx, resource, func(s *schema.Table) error {
						s.AddFamily(schema.Family{Name: "theirs"})
						x := s.Families["f"]
						x.GC = &schema.GCRule{MaxVersions: 4}
						s.Families["f"] = x
						return nil
					})
					if err != nil {
						t.Error(err)
					}
					e := &row.Entry{Key: []byte("r"), Mutations: []row.Mutation{{Op: row.SetCell, Family: "theirs", Timestamp: 1000, Value: []byte("v")}}}
					if err := f.store.MutateRow(ctx, resource, e); err != nil {
						t.Error(err)
					}
				},
				after: func() {
					if err := add(other, f, fam("late", "BLOOMFILTER", "NONE")); err != nil {
						t.Error(err)
					}
				},
			}
			if err := alter(f); err != nil {
				t.Fatal(err)
			}
			want := []string{"f", "late", "mine", "old", "theirs"}
			if name == "modify" {
				want = slices.DeleteFunc(want, func(n string) bool { return n == "old" })
			}
			var got []string
			for _, d := range f.describe("t").GetColumnFamilies() {
				n := string(d.GetName())
				got = append(got, n)
				bloom, _ := attribute(d.GetAttributes(), "BLOOMFILTER")
				if w := map[string]string{"mine": "ROWCOL", "late": "NONE"}[n]; w != "" && bloom != w {
					t.Errorf("BLOOMFILTER of %s is %q", n, bloom)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("families %q, want %q", got, want)
			}
			if n := f.count("t"); n != 1 {
				t.Errorf("%d rows", n)
			}
			if s, err := f.store.Table(ctx, resource); err != nil || s.Families["f"].GC.MaxVersions != 4 {
				t.Errorf("rule of f: %v, %v", ruleText(s.Families["f"].GC), err)
			}
		})
	}
}

// TestAlterKeepsDeletes: a table that was made through Bigtable keeps its kind of deletes
// when it is altered, unless the alteration names another one.
func TestAlterKeepsDeletes(t *testing.T) {
	f := start(t)
	ctx := t.Context()
	for i, attributes := range []map[string]string{nil, {"OWNER": "x"}, {model.AttrDeletes: model.DeletesLikeHBase}} {
		name := model.ParseName(fmt.Sprint("t", i))
		if _, err := f.store.CreateTable(ctx, &schema.Table{Name: f.catalog.Mapping().Resource(name), Granularity: 1000,
			Families: map[string]schema.Family{"f": {Name: "f", ID: 1}}, NextFamily: 2}, nil); err != nil {
			t.Fatal(err)
		}
		d := f.describe(name.String())
		for k, v := range attributes {
			d.Attributes = setAttribute(d.Attributes, k, v)
		}
		if _, err := f.modifyTable(ctx, f.c, &pb.ModifyTableRequest{TableName: name.Proto(), TableSchema: d}); err != nil {
			t.Fatal(err)
		}
		if _, err := f.modifyColumn(ctx, f.c, &pb.ModifyColumnRequest{TableName: name.Proto(), ColumnFamilies: fam("f", "VERSIONS", "3")}); err != nil {
			t.Fatal(err)
		}
		table, err := f.catalog.Table(ctx, name)
		if err != nil || table.Sticky != (attributes[model.AttrDeletes] == model.DeletesLikeHBase) || table.Attribute("OWNER") != attributes["OWNER"] {
			t.Errorf("%v: %+v, %v", attributes, table, err)
		}
	}
	f.create(tableSchema("h", fam("f")))
	if _, err := f.modifyColumn(ctx, f.c, &pb.ModifyColumnRequest{TableName: tn("h"), ColumnFamilies: fam("f", "VERSIONS", "3")}); err != nil {
		t.Fatal(err)
	}
	if table, err := f.catalog.Table(ctx, model.ParseName("h")); err != nil || !table.Sticky {
		t.Errorf("made through HBase: %+v, %v", table, err)
	}
}
