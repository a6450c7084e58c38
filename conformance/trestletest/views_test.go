package trestletest_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/trestledb/trestle/conformance/trestletest"
)

// A materialized view by the official client: what is read of it follows its source, and
// shows no hidden cell, whatever the filter.
func TestMaterializedView(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	srv, err := trestletest.NewServer("localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	conn, err := grpc.NewClient(srv.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const instance = "projects/p/instances/inst-1"
	admin, err := bigtable.NewAdminClient(ctx, "p", "inst-1", option.WithGRPCConn(conn))
	if err != nil {
		t.Fatal(err)
	}
	client, err := bigtable.NewClientWithConfig(ctx, "p", "inst-1", bigtable.ClientConfig{MetricsProvider: bigtable.NoopMetricsProvider{}}, option.WithGRPCConn(conn))
	if err != nil {
		t.Fatal(err)
	}
	if err := admin.CreateTableFromConf(ctx, &bigtable.TableConf{TableID: "t", Families: map[string]bigtable.GCPolicy{"f": bigtable.MaxVersionsGCPolicy(1)}}); err != nil {
		t.Fatal(err)
	}
	set := func(key, value string) {
		t.Helper()
		m := bigtable.NewMutation()
		m.Set("f", "cat", bigtable.Now(), []byte(value))
		if err := client.Open("t").Apply(ctx, key, m); err != nil {
			t.Fatal(err)
		}
	}
	for _, k := range []string{"a", "b", "c"} {
		set(k, "x")
	}
	inst := adminpb.NewBigtableInstanceAdminClient(conn)
	op, err := inst.CreateMaterializedView(ctx, &adminpb.CreateMaterializedViewRequest{Parent: instance, MaterializedViewId: "v", MaterializedView: &adminpb.MaterializedView{
		Query: "SELECT f['cat'] AS _key, COUNT(*) AS n, MAX(f['cat']) AS m FROM t GROUP BY _key"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Log(op)
	rows := func(opts ...bigtable.ReadOption) map[string]bigtable.Row {
		t.Helper()
		out := map[string]bigtable.Row{}
		if err := client.OpenMaterializedView("v").ReadRows(ctx, bigtable.InfiniteRange(""), func(r bigtable.Row) bool { out[r.Key()] = r; return true }, opts...); err != nil {
			t.Fatal(err)
		}
		return out
	}
	until := func(ok func(map[string]bigtable.Row) bool) {
		t.Helper()
		for !ok(rows()) {
			if ctx.Err() != nil {
				t.Fatal(rows())
			}
		}
	}
	n := func(r bigtable.Row) uint64 {
		for _, it := range r["default"] {
			if it.Column == "default:n" {
				return binary.BigEndian.Uint64(it.Value)
			}
		}
		return 0
	}
	until(func(r map[string]bigtable.Row) bool { return len(r) == 1 && n(r["x"]) == 3 })
	set("b", "y")
	if err := client.Open("t").Apply(ctx, "c", func() *bigtable.Mutation { m := bigtable.NewMutation(); m.DeleteRow(); return m }()); err != nil {
		t.Fatal(err)
	}
	until(func(r map[string]bigtable.Row) bool { return len(r) == 2 && n(r["x"]) == 1 && n(r["y"]) == 1 })
	if err := client.Open("t").Apply(ctx, "b", func() *bigtable.Mutation { m := bigtable.NewMutation(); m.DeleteRow(); return m }()); err != nil {
		t.Fatal(err)
	}
	until(func(r map[string]bigtable.Row) bool { return len(r) == 1 })
	// SQL shows the columns of the query, those of the key first, and not the groups of
	// which hidden cells are left.
	query := func(text string) (columns []string, values [][]any) {
		t.Helper()
		p, err := client.PrepareStatement(ctx, text, nil)
		if err != nil {
			t.Fatal(err)
		}
		b, err := p.Bind(nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Execute(ctx, func(r bigtable.ResultRow) bool {
			columns = nil
			var of []any
			for i, c := range r.Metadata.Columns {
				var v any
				if err := r.GetByIndex(i, &v); err != nil {
					t.Error(err)
				}
				columns, of = append(columns, c.Name), append(of, v)
			}
			values = append(values, of)
			return true
		}); err != nil {
			t.Fatal(err)
		}
		return columns, values
	}
	for text, want := range map[string]string{
		"SELECT * FROM v":                              "[_key n m] [[[120] 1 [120]]]",
		"SELECT COUNT(*) AS c FROM v":                  "[c] [[1]]",
		"SELECT n FROM v WHERE _key = b'y'":            "[] []",
		"SELECT v.n, t._key FROM v JOIN t ON TRUE":     "[n _key] [[1 [97]]]",
		"SELECT SUM(n) AS s FROM v WHERE _key >= b'a'": "[s] [[1]]",
	} {
		if columns, values := query(text); fmt.Sprint(columns, values) != want {
			t.Errorf("%s: %v %v, want %s", text, columns, values, want)
		}
	}
	for text, want := range map[string]codes.Code{"DELETE FROM v WHERE TRUE": codes.InvalidArgument, "SELECT `default` FROM v": codes.InvalidArgument, "SELECT * FROM none": codes.InvalidArgument} {
		if _, err := client.PrepareStatement(ctx, text, nil); status.Code(err) != want {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, plan := query("EXPLAIN SELECT n FROM v WHERE _key = b'x'"); !strings.Contains(fmt.Sprint(plan), "x") {
		t.Error(plan)
	}

	for name, f := range map[string]bigtable.Filter{
		"none": bigtable.PassAllFilter(), "family": bigtable.FamilyFilter(".*"), "hidden": bigtable.FamilyFilter("~.*"), "qualifier": bigtable.ColumnFilter("(?s).*"),
		"either": bigtable.InterleaveFilters(bigtable.PassAllFilter(), bigtable.FamilyFilter("~state")),
		"if":     bigtable.ConditionFilter(bigtable.FamilyFilter("~.*"), bigtable.PassAllFilter(), bigtable.BlockAllFilter()),
	} {
		for _, r := range rows(bigtable.RowFilter(f)) {
			for family := range r {
				if family != "default" || name == "hidden" || name == "if" {
					t.Errorf("%s shows %v", name, r)
				}
			}
		}
	}
	data := bigtablepb.NewBigtableClient(conn)
	name := instance + "/materializedViews/v"
	stream, err := data.SampleRowKeys(ctx, &bigtablepb.SampleRowKeysRequest{MaterializedViewName: name})
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil {
		t.Error(err)
	}
	for what, table := range map[string]string{"by its own name": name, "as a table": instance + "/tables/v"} {
		if _, err := data.MutateRow(ctx, &bigtablepb.MutateRowRequest{TableName: table, RowKey: []byte("x"), Mutations: []*bigtablepb.Mutation{
			{Mutation: &bigtablepb.Mutation_DeleteFromRow_{DeleteFromRow: &bigtablepb.Mutation_DeleteFromRow{}}}}}); status.Code(err) != codes.InvalidArgument && status.Code(err) != codes.NotFound {
			t.Errorf("write %s: %v", what, err)
		}
	}
	if err := admin.DeleteTable(ctx, "t"); status.Code(err) != codes.FailedPrecondition {
		t.Error(err)
	}
	if err := admin.DeleteColumnFamily(ctx, "t", "f"); status.Code(err) != codes.FailedPrecondition {
		t.Error(err)
	}
	missing, err := data.ReadRows(ctx, &bigtablepb.ReadRowsRequest{MaterializedViewName: instance + "/materializedViews/none"})
	if err == nil {
		_, err = missing.Recv()
	}
	if status.Code(err) != codes.NotFound {
		t.Error(err)
	}
	if _, err := inst.DeleteMaterializedView(ctx, &adminpb.DeleteMaterializedViewRequest{Name: name}); err != nil {
		t.Fatal(err)
	}
	if err := admin.DeleteTable(ctx, "t"); err != nil {
		t.Error(err)
	}
}

// TestMaterializedViewOfAllRows: a view that counts rows whatever cells they have loses those of
// a family that is dropped, which it does not name.
func TestMaterializedViewOfAllRows(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	srv, err := trestletest.NewServer("localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	conn, err := grpc.NewClient(srv.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	admin, err := bigtable.NewAdminClient(ctx, "p", "inst-1", option.WithGRPCConn(conn))
	if err != nil {
		t.Fatal(err)
	}
	client, err := bigtable.NewClientWithConfig(ctx, "p", "inst-1", bigtable.ClientConfig{MetricsProvider: bigtable.NoopMetricsProvider{}}, option.WithGRPCConn(conn))
	if err != nil {
		t.Fatal(err)
	}
	if err := admin.CreateTableFromConf(ctx, &bigtable.TableConf{TableID: "t", ColumnFamilies: map[string]bigtable.Family{"f": {}, "g": {}}}); err != nil {
		t.Fatal(err)
	}
	for key, families := range map[string]string{"a": "f", "b": "g", "c": "fg", "d": "g"} {
		m := bigtable.NewMutation()
		for _, f := range families {
			m.Set(string(f), "q", bigtable.Now(), []byte("x"))
		}
		if err := client.Open("t").Apply(ctx, key, m); err != nil {
			t.Fatal(err)
		}
	}
	inst := adminpb.NewBigtableInstanceAdminClient(conn)
	if _, err := inst.CreateMaterializedView(ctx, &adminpb.CreateMaterializedViewRequest{Parent: "projects/p/instances/inst-1", MaterializedViewId: "v", MaterializedView: &adminpb.MaterializedView{
		Query: "SELECT '*' AS _key, COUNT(*) AS n FROM t GROUP BY _key"}}); err != nil {
		t.Fatal(err)
	}
	counts := func(want uint64) {
		t.Helper()
		for {
			r, err := client.OpenMaterializedView("v").ReadRow(ctx, "*")
			if err != nil {
				t.Fatal(err)
			}
			var n uint64
			for _, it := range r["default"] {
				if it.Column == "default:n" {
					n = binary.BigEndian.Uint64(it.Value)
				}
			}
			if n == want {
				return
			}
		}
	}
	counts(4)
	if err := admin.DeleteColumnFamily(ctx, "t", "g"); err != nil {
		t.Fatal(err)
	}
	counts(2)
}
