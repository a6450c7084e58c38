package master

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/cluster/standalone"
	"github.com/trestledb/trestle/cluster/views"
	"github.com/trestledb/trestle/cluster/views/viewstest"
	"github.com/trestledb/trestle/compat/hbase/model"
	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/compat/hbase/wire"
	"github.com/trestledb/trestle/engine/schema"
)

// TestMaterializedView: a view is a table among the others that cannot be changed, its name
// is taken, and the table that it is made of stays as it needs it.
func TestMaterializedView(t *testing.T) {
	f := startWith(t, standalone.Options{Views: func(c *client.Client) views.Options {
		return views.Options{Evaluators: viewstest.Evaluators{Reader: c}}
	}})
	ctx := t.Context()
	mapping := f.catalog.Mapping()
	resource := mapping.Resource(model.ParseName("t"))
	source, err := f.store.CreateTable(ctx, &schema.Table{Name: resource, Granularity: 1000, Families: viewstest.Families()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	view := strings.Replace(mapping.Resource(model.ParseName("v")), "/tables/", "/materializedViews/", 1)
	if _, err := f.store.CreateView(ctx, viewstest.Groups(view, source), nil); err != nil {
		t.Fatal(err)
	}

	list, err := f.getTableNames(ctx, f.c, &pb.GetTableNamesRequest{})
	if err != nil || len(list.GetTableNames()) != 2 || string(list.GetTableNames()[1].GetQualifier()) != "v" {
		t.Errorf("listed: %v, %v", list, err)
	}
	d := f.describe("v")
	if fs := d.GetColumnFamilies(); len(fs) != 1 || string(fs[0].GetName()) != "default" {
		t.Errorf("described: %v", d)
	}
	snap := &pb.SnapshotDescription{Name: proto.String("s"), Table: proto.String("v")}
	for what, call := range map[string]func() error{
		"disable": func() error {
			_, err := f.disableTable(ctx, f.c, &pb.DisableTableRequest{TableName: tn("v")})
			return err
		},
		"enable": func() error {
			_, err := f.enableTable(ctx, f.c, &pb.EnableTableRequest{TableName: tn("v")})
			return err
		},
		"delete": func() error {
			_, err := f.deleteTable(ctx, f.c, &pb.DeleteTableRequest{TableName: tn("v")})
			return err
		},
		"truncate": func() error {
			_, err := f.truncateTable(ctx, f.c, &pb.TruncateTableRequest{TableName: tn("v")})
			return err
		},
		"add a family": func() error {
			_, err := f.addColumn(ctx, f.c, &pb.AddColumnRequest{TableName: tn("v"), ColumnFamilies: fam("x")})
			return err
		},
		"snapshot": func() error {
			_, err := f.snapshot(ctx, f.c, &pb.SnapshotRequest{Snapshot: snap})
			return err
		},
	} {
		if err := call(); err == nil || wire.ExceptionOf(err).Class != wire.DoNotRetryIO || !strings.Contains(err.Error(), "can only be read") {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err = f.createTable(ctx, f.c, &pb.CreateTableRequest{TableSchema: tableSchema("v", fam("f"))})
	f.wants("create a table of its name", err, wire.TableExists)

	// What the view is made of.
	f.disable("t")
	if _, err := f.deleteTable(ctx, f.c, &pb.DeleteTableRequest{TableName: tn("t")}); err == nil || !strings.Contains(err.Error(), view) {
		t.Errorf("delete the source: %v", err)
	}
	if _, err := f.deleteColumn(ctx, f.c, &pb.DeleteColumnRequest{TableName: tn("t"), ColumnName: []byte(viewstest.Family)}); err == nil || !strings.Contains(err.Error(), view) {
		t.Errorf("delete a family of the source: %v", err)
	}

	// Once the view is gone its name can be had.
	if err := f.store.DeleteView(ctx, view); err != nil {
		t.Fatal(err)
	}
	f.create(tableSchema("v", fam("f")))
	if tab, err := f.table(ctx, model.ParseName("v")); err != nil || tab.Resource != mapping.Resource(model.ParseName("v")) {
		t.Errorf("a table where a view was: %v, %v", tab, err)
	}
}
