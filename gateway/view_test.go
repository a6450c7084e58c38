package gateway

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"cloud.google.com/go/bigtable"
	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/api/option"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trestledb/trestle/engine/schema"
)

// view creates an authorized view and opens it with the official client.
func (f *fixture) view(id string, sub *adminpb.AuthorizedView_SubsetView) bigtable.TableAPI {
	f.t.Helper()
	_, err := adminpb.NewBigtableTableAdminClient(f.conn).CreateAuthorizedView(context.Background(), &adminpb.CreateAuthorizedViewRequest{
		Parent: testTable, AuthorizedViewId: id,
		AuthorizedView: &adminpb.AuthorizedView{AuthorizedView: &adminpb.AuthorizedView_SubsetView_{SubsetView: sub}},
	})
	if err != nil {
		f.t.Fatal(err)
	}
	c, err := bigtable.NewClientWithConfig(context.Background(), "p", "inst-1",
		bigtable.ClientConfig{MetricsProvider: bigtable.NoopMetricsProvider{}}, option.WithGRPCConn(f.conn))
	if err != nil {
		f.t.Fatal(err)
	}
	return c.OpenAuthorizedView("t", id)
}

func bytesOf(ss ...string) [][]byte {
	var out [][]byte
	for _, s := range ss {
		out = append(out, []byte(s))
	}
	return out
}

type subsets = map[string]*adminpb.AuthorizedView_FamilySubsets

// columnsOf shows rows as "key: family:qualifier …".
func columnsOf(t *testing.T, tbl bigtable.TableAPI, set bigtable.RowSet, opts ...bigtable.ReadOption) string {
	t.Helper()
	var out []string
	err := tbl.ReadRows(t.Context(), set, func(r bigtable.Row) bool {
		s := r.Key() + ":"
		for _, fam := range slices.Sorted(maps.Keys(r)) {
			for _, it := range r[fam] {
				s += " " + it.Column
			}
		}
		out = append(out, s)
		return true
	}, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(out, "; ")
}

func set(columns ...string) *bigtable.Mutation {
	m := bigtable.NewMutation()
	for _, c := range columns {
		family, q, _ := strings.Cut(c, ":")
		m.Set(family, q, 1000, []byte("1"))
	}
	return m
}

func change(fill func(m *bigtable.Mutation)) *bigtable.Mutation {
	m := bigtable.NewMutation()
	fill(m)
	return m
}

// Every data RPC through a view, with the official client.
func TestAuthorizedView(t *testing.T) {
	f := newFixture(t, Options{})
	tbl, ctx := f.table(), t.Context()
	v := f.view("v", &adminpb.AuthorizedView_SubsetView{
		RowPrefixes: bytesOf("b", "d/", "b1"),
		FamilySubsets: subsets{
			"cf":  {Qualifiers: bytesOf("x", ""), QualifierPrefixes: bytesOf("p")},
			"agg": {QualifierPrefixes: bytesOf("")},
		},
	})
	for _, key := range []string{"a", "b", "b1", "c", "d", "d/1", "d0"} {
		m := set("cf:", "cf:a", "cf:p", "cf:pq", "cf:q", "cf:x", "cf2:x")
		m.AddIntToCell("agg", "n", 1000, 1)
		if err := tbl.Apply(ctx, key, m); err != nil {
			t.Fatal(err)
		}
	}
	all := bigtable.InfiniteRange("")

	t.Run("ReadRows", func(t *testing.T) {
		const cols = ": agg:n cf: cf:p cf:pq cf:x"
		for _, c := range []struct {
			name string
			rows bigtable.RowSet
			opts []bigtable.ReadOption
			want string
		}{
			{"all", all, nil, "b" + cols + "; b1" + cols + "; d/1" + cols},
			{"reversed", all, []bigtable.ReadOption{bigtable.ReverseScan(), bigtable.LimitRows(2)}, "d/1" + cols + "; b1" + cols},
			{"limit", all, []bigtable.ReadOption{bigtable.LimitRows(1)}, "b" + cols},
			{"range", bigtable.NewRange("b0", "d/2"), nil, "b1" + cols + "; d/1" + cols},
			{"range outside", bigtable.NewRange("c", "d/"), nil, ""},
			{"keys", bigtable.RowList{"a", "b1", "d", "d/1"}, nil, "b1" + cols + "; d/1" + cols},
			{"key outside", bigtable.SingleRow("d"), nil, ""},
			{"families", all, []bigtable.ReadOption{bigtable.RowFilter(bigtable.FamilyFilter("cf2|agg")), bigtable.LimitRows(1)}, "b: agg:n"},
			{"families outside", all, []bigtable.ReadOption{bigtable.RowFilter(bigtable.FamilyFilter("cf2|nope"))}, ""},
			{"offset", bigtable.SingleRow("b"), []bigtable.ReadOption{bigtable.RowFilter(bigtable.CellsPerRowOffsetFilter(3))}, "b: cf:pq cf:x"},
			{"interleave", bigtable.SingleRow("b"), []bigtable.ReadOption{bigtable.RowFilter(bigtable.InterleaveFilters(
				bigtable.ColumnFilter("q|x"), bigtable.ColumnFilter("a|pq")))}, "b: cf:pq cf:x"},
			{"condition", bigtable.SingleRow("b"), []bigtable.ReadOption{bigtable.RowFilter(bigtable.ConditionFilter(
				bigtable.ColumnFilter("q"), bigtable.PassAllFilter(), bigtable.ColumnFilter("x")))}, "b: cf:x"},
		} {
			t.Run(c.name, func(t *testing.T) {
				if got := columnsOf(t, v, c.rows, c.opts...); got != c.want {
					t.Errorf("got  %s\nwant %s", got, c.want)
				}
			})
		}
	})

	outsideOf := func(view, name string, err error) {
		t.Helper()
		want := "Cannot mutate from " + testTable + "/authorizedViews/" + view + " because the mutation contains cells outside the Authorized View."
		if status.Code(err) != codes.PermissionDenied || status.Convert(err).Message() != want {
			t.Errorf("%s: got %v", name, err)
		}
	}
	outside := func(name string, err error) {
		t.Helper()
		outsideOf("v", name, err)
	}
	inside := func(name string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	before := columnsOf(t, tbl, all)
	for name, c := range map[string]struct {
		key string
		mut *bigtable.Mutation
	}{
		"row":                   {"a", set("cf:x")},
		"row before the prefix": {"d", set("cf:x")},
		"column":                {"b", set("cf:y")},
		"family":                {"b", set("cf2:x")},
		"no family":             {"b", set("nope:x")},
		"one of two":            {"b", set("cf:x", "cf:y")},
		"delete column":         {"b", change(func(m *bigtable.Mutation) { m.DeleteCellsInColumn("cf", "q") })},
		"part of a family":      {"b", change(func(m *bigtable.Mutation) { m.DeleteCellsInFamily("cf") })},
		"part of a row":         {"b", change((*bigtable.Mutation).DeleteRow)},
		"sum":                   {"a", change(func(m *bigtable.Mutation) { m.AddIntToCell("agg", "n", 1000, 1) })},
		"merge":                 {"a", change(func(m *bigtable.Mutation) { m.MergeBytesToCell("agg", "n", 1000, make([]byte, 8)) })},
	} {
		outside("MutateRow "+name, v.Apply(ctx, c.key, c.mut))
		for _, cond := range []*bigtable.Mutation{
			bigtable.NewCondMutation(bigtable.PassAllFilter(), c.mut, set("cf:x")), bigtable.NewCondMutation(bigtable.PassAllFilter(), set("cf:x"), c.mut),
		} {
			outside("CheckAndMutateRow "+name, v.Apply(ctx, c.key, cond))
		}
		errs, err := v.ApplyBulk(ctx, []string{c.key}, []*bigtable.Mutation{c.mut})
		if err != nil || len(errs) != 1 {
			t.Fatal(name, errs, err)
		}
		outside("MutateRows "+name, errs[0])
	}
	for name, c := range map[string]struct{ key, family, q string }{"row": {"a", "cf", "x"}, "column": {"b", "cf", "y"}, "family": {"b", "cf2", "x"}} {
		rmw := bigtable.NewReadModifyWrite()
		rmw.AppendValue("cf", "x", []byte("1"))
		rmw.AppendValue(c.family, c.q, []byte("1"))
		_, err := v.ApplyReadModifyWrite(ctx, c.key, rmw)
		outside("ReadModifyWriteRow "+name, err)
	}
	// A filter may name what is in the view only; what is outside is not told from
	// what does not exist.
	for name, filter := range map[string]bigtable.Filter{
		"family": bigtable.FamilyFilter("cf2"), "no family": bigtable.FamilyFilter("nope"), "range": bigtable.ColumnRangeFilter("nope", "a", "b"),
		"deep":      bigtable.ChainFilters(bigtable.PassAllFilter(), bigtable.InterleaveFilters(bigtable.FamilyFilter("cf"), bigtable.FamilyFilter("cf2"))),
		"condition": bigtable.ConditionFilter(bigtable.FamilyFilter("cf2"), bigtable.PassAllFilter(), nil),
	} {
		refused := func(method string, err error) {
			t.Helper()
			if status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "outside the Authorized View") {
				t.Errorf("%s with a %s outside: %v", method, name, err)
			}
		}
		_, err := v.ReadRow(ctx, "b", bigtable.RowFilter(filter))
		refused("ReadRow", err)
		refused("ReadRows", v.ReadRows(ctx, all, func(bigtable.Row) bool { return true }, bigtable.RowFilter(filter)))
		refused("CheckAndMutateRow", v.Apply(ctx, "b", bigtable.NewCondMutation(filter, set("cf:x"), set("cf:x"))))
	}
	if after := columnsOf(t, tbl, all); after != before {
		t.Errorf("refused writes changed\n%s\nto\n%s", before, after)
	}

	// What is inside is written; a batch has its entries refused one by one.
	inside("set", v.Apply(ctx, "b2", set("cf:x", "cf:", "cf:pp")))
	inside("sum", v.Apply(ctx, "b2", change(func(m *bigtable.Mutation) { m.AddIntToCell("agg", "n", 1000, 1) })))
	inside("delete family", v.Apply(ctx, "b2", change(func(m *bigtable.Mutation) { m.DeleteCellsInFamily("agg") })))
	inside("delete column", v.Apply(ctx, "b2", change(func(m *bigtable.Mutation) { m.DeleteCellsInColumn("cf", "pp") })))
	errs, err := v.ApplyBulk(ctx, []string{"b3", "a", "b4", "b5", "d"},
		[]*bigtable.Mutation{set("cf:x"), set("cf:x"), set("cf:p"), set("cf:x", "cf2:x"), set("cf:x")})
	if err != nil || len(errs) != 5 {
		t.Fatal(errs, err)
	}
	for i, err := range errs {
		if i == 0 || i == 2 {
			inside(fmt.Sprint("entry ", i), err)
		} else {
			outside(fmt.Sprint("entry ", i), err)
		}
	}
	if got := columnsOf(t, tbl, bigtable.NewRange("b2", "b9")); got != "b2: cf: cf:x; b3: cf:x; b4: cf:p" {
		t.Error(got)
	}
	rmw := bigtable.NewReadModifyWrite()
	rmw.AppendValue("cf", "p", []byte("2"))
	if r, err := v.ApplyReadModifyWrite(ctx, "b4", rmw); err != nil || len(r["cf"]) != 1 || string(r["cf"][0].Value) != "12" {
		t.Error(r, err)
	}
	// The predicate does not see what is outside.
	for filter, want := range map[string]bool{"x": true, "q": false} {
		var matched bool
		cond := bigtable.NewCondMutation(bigtable.ColumnFilter(filter), set("cf:x"), set("cf:x"))
		if err := v.Apply(ctx, "b", cond, bigtable.GetCondMutationResult(&matched)); err != nil || matched != want {
			t.Errorf("predicate %s: %v, %v", filter, matched, err)
		}
	}
	only2 := f.view("only2", &adminpb.AuthorizedView_SubsetView{RowPrefixes: bytesOf("e"), FamilySubsets: subsets{"cf2": {QualifierPrefixes: bytesOf("")}}})
	inside("table", tbl.Apply(ctx, "e", set("cf:x")))
	var matched bool
	inside("no predicate", only2.Apply(ctx, "e", bigtable.NewCondMutation(bigtable.PassAllFilter(), nil, set("cf2:no")), bigtable.GetCondMutationResult(&matched)))
	if got := columnsOf(t, tbl, bigtable.SingleRow("e")); matched || got != "e: cf:x cf2:no" {
		t.Error(matched, got)
	}

	// A view of whole rows deletes them, as long as it has every family.
	whole := f.view("whole", &adminpb.AuthorizedView_SubsetView{RowPrefixes: bytesOf(""), FamilySubsets: subsets{
		"cf": {QualifierPrefixes: bytesOf("", "a")}, "cf2": {QualifierPrefixes: bytesOf("")}, "agg": {QualifierPrefixes: bytesOf("")}}})
	inside("delete row", whole.Apply(ctx, "a", change((*bigtable.Mutation).DeleteRow)))
	if got := columnsOf(t, tbl, bigtable.SingleRow("a")); got != "" {
		t.Error(got)
	}
	_, err = f.stub.UpdateTable(ctx, testTable, func(t *schema.Table) error {
		t.AddFamily(schema.Family{Name: "new"})
		return nil
	})
	inside("add family", err)
	outsideOf("whole", "delete row", whole.Apply(ctx, "c", change((*bigtable.Mutation).DeleteRow)))

	nothing := f.view("nothing", &adminpb.AuthorizedView_SubsetView{})
	if got := columnsOf(t, nothing, all); got != "" {
		t.Error(got)
	}
	if keys, err := nothing.SampleRowKeys(ctx); err != nil || len(keys) != 0 {
		t.Error(keys, err)
	}
	outsideOf("nothing", "set", nothing.Apply(ctx, "a", set("cf:x")))

	// A view that is deleted is gone at once, and so is one of a deleted table.
	admin := adminpb.NewBigtableTableAdminClient(f.conn)
	if _, err := admin.DeleteAuthorizedView(ctx, &adminpb.DeleteAuthorizedViewRequest{Name: testTable + "/authorizedViews/v"}); err != nil {
		t.Fatal(err)
	}
	if _, err := v.ReadRow(ctx, "b"); status.Code(err) != codes.NotFound {
		t.Error(err)
	}
	if err := v.Apply(ctx, "b", set("cf:x")); status.Code(err) != codes.NotFound {
		t.Error(err)
	}
	_, err = admin.DeleteTable(ctx, &adminpb.DeleteTableRequest{Name: testTable})
	inside("delete table", err)
	_, err = f.stub.CreateTable(ctx, &schema.Table{Name: testTable, Families: map[string]schema.Family{"cf": {Name: "cf"}}, Granularity: 1000}, nil)
	inside("create table", err)
	if _, err := whole.ReadRow(ctx, "b"); status.Code(err) != codes.NotFound {
		t.Error("a view outlived its table: ", err)
	}
}

func TestSampleRowKeysOfView(t *testing.T) {
	f := newFixture(t, Options{})
	ctx := t.Context()
	if err := f.stub.DeleteTable(ctx, testTable); err != nil {
		t.Fatal(err)
	}
	_, err := f.stub.CreateTable(ctx, &schema.Table{Name: testTable, Families: map[string]schema.Family{"cf": {Name: "cf"}}, Granularity: 1000}, bytesOf("r0", "r11", "r12", "r2", "s5"))
	if err != nil {
		t.Fatal(err)
	}
	for id, c := range map[string]struct {
		prefixes string
		within   *bigtablepb.RowRange
		want     []string
	}{
		"one":     {"r1", nil, []string{"r11", "r12", "r2"}},
		"two":     {"s r1", nil, []string{"r11", "r12", "r2", "s5", "t"}},
		"touch":   {"r1 r2", nil, []string{"r11", "r12", "r2", "r3"}},
		"last":    {"\xff", nil, []string{""}},
		"part":    {"r1 s", &bigtablepb.RowRange{StartKey: &bigtablepb.RowRange_StartKeyClosed{StartKeyClosed: []byte("r115")}, EndKey: &bigtablepb.RowRange_EndKeyOpen{EndKeyOpen: []byte("s1")}}, []string{"r12", "r2", "s1"}},
		"outside": {"r1", &bigtablepb.RowRange{StartKey: &bigtablepb.RowRange_StartKeyClosed{StartKeyClosed: []byte("r2")}}, nil},
	} {
		f.view(id, &adminpb.AuthorizedView_SubsetView{RowPrefixes: bytesOf(strings.Fields(c.prefixes)...)})
		s, err := f.raw.SampleRowKeys(ctx, &bigtablepb.SampleRowKeysRequest{AuthorizedViewName: testTable + "/authorizedViews/" + id, RowRange: c.within})
		if err != nil {
			t.Fatal(err)
		}
		got, err := recvAll(s.Recv)
		if err != nil {
			t.Fatal(err)
		}
		var keys []string
		for _, r := range got {
			keys = append(keys, string(r.RowKey))
		}
		if !slices.Equal(keys, c.want) {
			t.Errorf("%s: got %q, want %q", id, keys, c.want)
		}
	}
}

// A view costs no client its limits, and clients of another table's name none.
func TestViewAndLimits(t *testing.T) {
	f := newFixture(t, Options{})
	v := f.view("v", &adminpb.AuthorizedView_SubsetView{RowPrefixes: bytesOf(""), FamilySubsets: subsets{"cf": {Qualifiers: bytesOf("x", "y", "z")}}})
	if err := f.table().Apply(t.Context(), "a", set("cf:x", "cf:w")); err != nil {
		t.Fatal(err)
	}
	deep := bigtable.StripValueFilter()
	for range 19 {
		deep = bigtable.InterleaveFilters(deep, bigtable.BlockAllFilter())
	}
	if got := columnsOf(t, v, bigtable.InfiniteRange(""), bigtable.RowFilter(deep)); got != "a: cf:x" {
		t.Error(got)
	}
	err := v.ReadRows(t.Context(), bigtable.InfiniteRange(""), func(bigtable.Row) bool { return true },
		bigtable.RowFilter(bigtable.InterleaveFilters(deep, deep)))
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "nesting depth of 20") {
		t.Error(err)
	}
}
