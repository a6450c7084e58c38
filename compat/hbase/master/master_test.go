package master

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/cluster/standalone"
	"github.com/trestledb/trestle/compat/hbase/model"
	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/compat/hbase/server"
	"github.com/trestledb/trestle/compat/hbase/wire"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
)

type fixture struct {
	*Master
	t     *testing.T
	store *standalone.Server
	c     *server.Call
	made  map[string]bool // instances
}

func start(t *testing.T) *fixture {
	t.Helper()
	return startWith(t, standalone.Options{})
}

func startWith(t *testing.T, o standalone.Options) *fixture {
	t.Helper()
	o.Dir = t.TempDir()
	s, err := standalone.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	cat, err := model.Open(t.Context(), s, model.Mapping{Project: "p", Instance: "main"}, model.Server{Host: "h", Port: 1, StartCode: uint64(time.Now().UnixMilli())})
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{t: t, store: s, c: &server.Call{Client: &server.Client{User: "me"}}, made: map[string]bool{}}
	f.Master = New(cat, Options{Tablets: s, Backups: s, Ensure: func(_ context.Context, name string) error {
		f.made[name] = true
		return nil
	}})
	t.Cleanup(func() {
		f.Master.Close()
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return f
}

func fam(name string, attrs ...string) *pb.ColumnFamilySchema {
	f := &pb.ColumnFamilySchema{Name: []byte(name)}
	for i := 0; i < len(attrs); i += 2 {
		f.Attributes = setAttribute(f.Attributes, attrs[i], attrs[i+1])
	}
	return f
}

func tableSchema(name string, families ...*pb.ColumnFamilySchema) *pb.TableSchema {
	return &pb.TableSchema{TableName: model.ParseName(name).Proto(), ColumnFamilies: families}
}

// namespace makes a namespace.
func (f *fixture) namespace(name string) {
	f.t.Helper()
	if _, err := f.createNamespace(f.t.Context(), f.c, &pb.CreateNamespaceRequest{NamespaceDescriptor: &pb.NamespaceDescriptor{Name: []byte(name)}}); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) create(d *pb.TableSchema, splits ...string) {
	f.t.Helper()
	req := &pb.CreateTableRequest{TableSchema: d}
	for _, s := range splits {
		req.SplitKeys = append(req.SplitKeys, []byte(s))
	}
	resp, err := f.createTable(f.t.Context(), f.c, req)
	if err != nil {
		f.t.Fatal(err)
	}
	r, err := f.getProcedureResult(f.t.Context(), f.c, &pb.GetProcedureResultRequest{ProcId: resp.ProcId})
	if err != nil || r.GetState() != pb.GetProcedureResultResponse_FINISHED {
		f.t.Errorf("procedure %d: %v, %v", resp.GetProcId(), r, err)
	}
}

func tn(name string) *pb.TableName { return model.ParseName(name).Proto() }

func (f *fixture) disable(name string) {
	f.t.Helper()
	if _, err := f.disableTable(f.t.Context(), f.c, &pb.DisableTableRequest{TableName: tn(name)}); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) wants(what string, err error, class wire.Class) {
	f.t.Helper()
	if err == nil || wire.ExceptionOf(err).Class != class {
		f.t.Errorf("%s: got %v, want %s", what, err, class.Name)
	}
}

func (f *fixture) describe(name string) *pb.TableSchema {
	f.t.Helper()
	resp, err := f.getTableDescriptors(f.t.Context(), f.c, &pb.GetTableDescriptorsRequest{TableNames: []*pb.TableName{tn(name)}})
	if err != nil || len(resp.GetTableSchema()) != 1 {
		f.t.Fatalf("%v, %v", resp, err)
	}
	return resp.GetTableSchema()[0]
}

func (f *fixture) regions(name string) int {
	f.t.Helper()
	tab, err := f.table(f.t.Context(), model.ParseName(name))
	if err != nil {
		f.t.Fatal(err)
	}
	list, err := f.catalog.Regions(f.t.Context(), tab)
	if err != nil {
		f.t.Fatal(err)
	}
	return len(list)
}

func (f *fixture) put(name string, keys ...string) {
	f.t.Helper()
	for _, k := range keys {
		e := &row.Entry{Key: []byte(k), Mutations: []row.Mutation{{Op: row.SetCell, Family: "f", Qualifier: []byte("q"), Timestamp: 1000, Value: []byte("v")}}}
		if err := f.store.MutateRow(f.t.Context(), f.catalog.Mapping().Resource(model.ParseName(name)), e); err != nil {
			f.t.Fatal(err)
		}
	}
}

// rowCounter counts the rows of a read.
type rowCounter struct{ rows, cells int }

func (w *rowCounter) StartRow([]byte) { w.cells = 0 }
func (w *rowCounter) Cell(*row.Cell)  { w.cells++ }
func (w *rowCounter) Scanned([]byte)  {}
func (w *rowCounter) Flush() error    { return nil }

func (w *rowCounter) EndRow() (bool, error) {
	if w.cells > 0 {
		w.rows++
	}
	return false, nil
}

func TestTableLifeCycle(t *testing.T) {
	f := start(t)
	ctx := t.Context()
	d := tableSchema("t", fam("g", "VERSIONS", "3", "COMPRESSION", "SNAPPY", "X", "y"), fam("f", "VERSIONS", "2147483647", "TTL", "60", "MIN_VERSIONS", "1"))
	d.Attributes = []*pb.BytesBytesPair{{First: []byte("OWNER"), Second: []byte("me")}}
	d.Configuration = []*pb.NameStringPair{{Name: proto.String("a"), Value: proto.String("b")}}
	f.create(proto.Clone(d).(*pb.TableSchema), "m", "d")
	if n := f.regions("t"); n != 3 {
		t.Errorf("%d regions", n)
	}
	// Everything comes back as it was given, families sorted.
	d.ColumnFamilies[0], d.ColumnFamilies[1] = d.ColumnFamilies[1], d.ColumnFamilies[0]
	if got := f.describe("t"); !proto.Equal(got, d) {
		t.Errorf("got  %v\nwant %v", got, d)
	}
	s, err := f.store.Table(ctx, "projects/p/instances/main/tables/t")
	if err != nil {
		t.Fatal(err)
	}
	if g := s.Families["g"].GC; g == nil || g.MaxVersions != 3 {
		t.Errorf("rule of g: %v", ruleText(g))
	}
	if g := ruleText(s.Families["f"].GC); g != "(maxage=1m0s && maxversions=1)" {
		t.Errorf("rule of f: %s", g)
	}

	_, err = f.createTable(ctx, f.c, &pb.CreateTableRequest{TableSchema: d})
	f.wants("create again", err, wire.TableExists)
	_, err = f.deleteTable(ctx, f.c, &pb.DeleteTableRequest{TableName: tn("t")})
	f.wants("delete enabled", err, wire.TableNotDisabled)
	_, err = f.truncateTable(ctx, f.c, &pb.TruncateTableRequest{TableName: tn("t")})
	f.wants("truncate enabled", err, wire.TableNotDisabled)
	_, err = f.enableTable(ctx, f.c, &pb.EnableTableRequest{TableName: tn("t")})
	f.wants("enable enabled", err, wire.TableNotDisabled)
	f.disable("t")
	_, err = f.disableTable(ctx, f.c, &pb.DisableTableRequest{TableName: tn("t")})
	f.wants("disable disabled", err, wire.TableNotEnabled)
	st, err := f.getTableState(ctx, f.c, &pb.GetTableStateRequest{TableName: tn("t")})
	if err != nil || st.GetTableState().GetState() != pb.TableState_DISABLED {
		t.Errorf("state %v, %v", st, err)
	}
	if l, err := f.listTableNamesByState(ctx, f.c, &pb.ListTableNamesByStateRequest{IsEnabled: proto.Bool(false)}); err != nil || len(l.GetTableNames()) != 1 {
		t.Errorf("disabled tables: %v, %v", l, err)
	}
	if _, err := f.enableTable(ctx, f.c, &pb.EnableTableRequest{TableName: tn("t")}); err != nil {
		t.Error(err)
	}
	f.disable("t")
	if _, err := f.deleteTable(ctx, f.c, &pb.DeleteTableRequest{TableName: tn("t")}); err != nil {
		t.Error(err)
	}
	_, err = f.disableTable(ctx, f.c, &pb.DisableTableRequest{TableName: tn("t")})
	f.wants("disable deleted", err, wire.TableNotFound)
	_, err = f.getTableState(ctx, f.c, &pb.GetTableStateRequest{TableName: tn("t")})
	f.wants("state of deleted", err, wire.TableNotFound)
	if l, err := f.getTableDescriptors(ctx, f.c, &pb.GetTableDescriptorsRequest{TableNames: []*pb.TableName{tn("t")}}); err != nil || len(l.GetTableSchema()) != 0 {
		t.Errorf("descriptor of deleted: %v, %v", l, err)
	}
	// It can be made anew, as something else.
	f.create(tableSchema("t", fam("f")))
	if got := f.describe("t"); len(got.GetColumnFamilies()) != 1 || len(got.GetAttributes()) != 0 {
		t.Errorf("got %v", got)
	}
}

// TestUndelete: a table that HBase clients delete comes back as it was, and enabled.
func TestUndelete(t *testing.T) {
	f := start(t)
	ctx := t.Context()
	d := tableSchema("t", fam("f", "VERSIONS", "3", "X", "y"))
	d.Attributes = setAttribute(nil, model.AttrTimestampUnit, model.TimestampUnitRaw)
	f.create(proto.Clone(d).(*pb.TableSchema), "m")
	name := model.ParseName("t")
	was, err := f.catalog.Table(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	before, err := f.catalog.Regions(ctx, was)
	if err != nil {
		t.Fatal(err)
	}
	f.disable("t")
	if _, err := f.deleteTable(ctx, f.c, &pb.DeleteTableRequest{TableName: tn("t")}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.catalog.Table(ctx, name); !errors.Is(err, fault.NotFound) {
		t.Errorf("deleted: %v", err)
	}
	if _, err := f.store.UndeleteTable(ctx, was.Resource); err != nil {
		t.Fatal(err)
	}
	now, err := f.catalog.Table(ctx, name)
	if err != nil || now.Unit != model.Raw || !now.Sticky || !now.Enabled() {
		t.Errorf("undeleted: %+v, %v", now, err)
	}
	if got := f.describe("t"); !proto.Equal(got, d) {
		t.Errorf("got  %v\nwant %v", got, d)
	}
	if after, err := f.catalog.Regions(ctx, now); err != nil || !reflect.DeepEqual(after, before) {
		t.Errorf("regions %v, were %v, %v", after, before, err)
	}
}

func TestTruncate(t *testing.T) {
	f := start(t)
	for _, preserve := range []bool{true, false} {
		name := map[bool]string{true: "keep", false: "lose"}[preserve]
		f.create(tableSchema(name, fam("f")), "b", "c")
		f.put(name, "a", "b", "c")
		f.disable(name)
		if _, err := f.truncateTable(t.Context(), f.c, &pb.TruncateTableRequest{TableName: tn(name), PreserveSplits: &preserve}); err != nil {
			t.Fatal(err)
		}
		if n, want := f.regions(name), map[bool]int{true: 3, false: 1}[preserve]; n != want {
			t.Errorf("%s: %d regions, want %d", name, n, want)
		}
		if st, err := f.getTableState(t.Context(), f.c, &pb.GetTableStateRequest{TableName: tn(name)}); err != nil || st.GetTableState().GetState() != pb.TableState_ENABLED {
			t.Errorf("%s: %v, %v", name, st, err)
		}
		if n := f.count(name); n != 0 {
			t.Errorf("%s has %d rows", name, n)
		}
	}
}

// count returns the number of rows of a table.
func (f *fixture) count(name string) int {
	f.t.Helper()
	w := &rowCounter{}
	req := &scan.Request{Table: f.catalog.Mapping().Resource(model.ParseName(name)), Ranges: []row.Range{row.All}}
	if _, err := f.store.ReadRows(f.t.Context(), req, w); err != nil {
		f.t.Fatal(err)
	}
	return w.rows
}

// TestTooManyFamilies: what HBase's clients ask for is bounded like what others do,
// and they are told so that they do not try again.
func TestTooManyFamilies(t *testing.T) {
	f := start(t)
	ctx := t.Context()
	wants := func(what string, err error) {
		t.Helper()
		if e := wire.ExceptionOf(err); e.Class != wire.DoNotRetryIO || !strings.Contains(e.Msg, "column families; the limit is 1000") {
			t.Errorf("%s: %v", what, e)
		}
	}
	var fams []*pb.ColumnFamilySchema
	for i := range schema.MaxFamilies + 1 {
		fams = append(fams, fam(fmt.Sprint("f", i)))
	}
	_, err := f.createTable(ctx, f.c, &pb.CreateTableRequest{TableSchema: tableSchema("t", fams...)})
	wants("create", err)
	f.create(tableSchema("t", fams[:schema.MaxFamilies]...))
	_, err = f.addColumn(ctx, f.c, &pb.AddColumnRequest{TableName: tn("t"), ColumnFamilies: fam("g")})
	wants("add", err)
	_, err = f.modifyTable(ctx, f.c, &pb.ModifyTableRequest{TableName: tn("t"), TableSchema: tableSchema("t", fams...)})
	wants("modify", err)
	if s, err := f.store.Table(ctx, "projects/p/instances/main/tables/t"); err != nil || len(s.Families) != schema.MaxFamilies {
		t.Errorf("%d families, %v", len(s.Families), err)
	}
}

func TestModify(t *testing.T) {
	f := start(t)
	ctx := t.Context()
	f.create(tableSchema("t", fam("f", "VERSIONS", "1")))
	col := func(name string, attrs ...string) *pb.ColumnFamilySchema { return fam(name, attrs...) }
	if _, err := f.addColumn(ctx, f.c, &pb.AddColumnRequest{TableName: tn("t"), ColumnFamilies: col("g", "VERSIONS", "2")}); err != nil {
		t.Fatal(err)
	}
	_, err := f.addColumn(ctx, f.c, &pb.AddColumnRequest{TableName: tn("t"), ColumnFamilies: col("g")})
	f.wants("add again", err, wire.InvalidFamily)
	if _, err := f.modifyColumn(ctx, f.c, &pb.ModifyColumnRequest{TableName: tn("t"), ColumnFamilies: col("g", "VERSIONS", "5", "BLOOMFILTER", "ROWCOL")}); err != nil {
		t.Fatal(err)
	}
	if v, _ := attribute(f.describe("t").GetColumnFamilies()[1].GetAttributes(), "BLOOMFILTER"); v != "ROWCOL" {
		t.Errorf("BLOOMFILTER %q", v)
	}
	s, err := f.store.Table(ctx, "projects/p/instances/main/tables/t")
	if err != nil || s.Families["g"].GC.MaxVersions != 5 {
		t.Errorf("%v, %v", s, err)
	}
	_, err = f.modifyColumn(ctx, f.c, &pb.ModifyColumnRequest{TableName: tn("t"), ColumnFamilies: col("h")})
	f.wants("modify missing", err, wire.InvalidFamily)
	_, err = f.deleteColumn(ctx, f.c, &pb.DeleteColumnRequest{TableName: tn("t"), ColumnName: []byte("h")})
	f.wants("delete missing", err, wire.InvalidFamily)
	if _, err := f.deleteColumn(ctx, f.c, &pb.DeleteColumnRequest{TableName: tn("t"), ColumnName: []byte("g")}); err != nil {
		t.Fatal(err)
	}
	_, err = f.deleteColumn(ctx, f.c, &pb.DeleteColumnRequest{TableName: tn("t"), ColumnName: []byte("f")})
	f.wants("delete the last", err, wire.InvalidFamily)
	if _, err := f.modifyTable(ctx, f.c, &pb.ModifyTableRequest{TableName: tn("t"), TableSchema: tableSchema("t", fam("x"), fam("f", "TTL", "FOREVER"))}); err != nil {
		t.Fatal(err)
	}
	if got := f.describe("t"); len(got.GetColumnFamilies()) != 2 || string(got.GetColumnFamilies()[1].GetName()) != "x" {
		t.Errorf("%v", got)
	}
	for attrs, d := range map[string]*pb.ColumnFamilySchema{
		"TTL": fam("f", "TTL", "-1"), "VERSIONS": fam("f", "VERSIONS", "0"), "MIN": fam("f", "MIN_VERSIONS", "4", "VERSIONS", "2"),
		"number": fam("f", "VERSIONS", "many"), "block": fam("f", "BLOCKSIZE", "10"),
	} {
		_, err := f.modifyTable(ctx, f.c, &pb.ModifyTableRequest{TableName: tn("t"), TableSchema: tableSchema("t", d)})
		f.wants(attrs, err, wire.SanityCheck)
	}
	_, err = f.modifyTable(ctx, f.c, &pb.ModifyTableRequest{TableName: tn("t"), TableSchema: tableSchema("t")})
	f.wants("no family", err, wire.SanityCheck)
	raw := tableSchema("t", fam("f"))
	raw.Attributes = setAttribute(nil, model.AttrTimestampUnit, model.TimestampUnitRaw)
	_, err = f.modifyTable(ctx, f.c, &pb.ModifyTableRequest{TableName: tn("t"), TableSchema: raw})
	f.wants("unit", err, wire.SanityCheck)
}

// What another API changes is shown.
func TestForeignChanges(t *testing.T) {
	f := start(t)
	f.create(tableSchema("t", fam("f", "VERSIONS", "3", "COMPRESSION", "GZ"), fam("gone")))
	if _, err := f.store.UpdateTable(t.Context(), "projects/p/instances/main/tables/t", func(s *schema.Table) error {
		delete(s.Families, "gone")
		x := s.Families["f"]
		x.GC = &schema.GCRule{MaxAge: time.Hour}
		s.Families["f"] = x
		s.AddFamily(schema.Family{Name: "new", GC: &schema.GCRule{Intersection: []*schema.GCRule{{MaxVersions: 1}, {MaxAge: time.Hour}, {MaxAge: time.Minute}}}})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	got := f.describe("t")
	if len(got.GetColumnFamilies()) != 2 {
		t.Fatalf("%v", got)
	}
	for i, want := range [][2]string{{"VERSIONS", "2147483647"}, {"TTL", "3600"}, {"COMPRESSION", "GZ"}} {
		if v, _ := attribute(got.GetColumnFamilies()[0].GetAttributes(), want[0]); v != want[1] {
			t.Errorf("%d: %s is %q", i, want[0], v)
		}
	}
	if v, _ := attribute(got.GetColumnFamilies()[1].GetAttributes(), model.AttrGCRule); v != "(maxversions=1 && maxage=1h0m0s && maxage=1m0s)" {
		t.Errorf("rule %q", v)
	}
	// A change of something else leaves a rule that HBase has no words for.
	got.Attributes = setAttribute(got.Attributes, "OWNER", "x")
	if _, err := f.modifyTable(t.Context(), f.c, &pb.ModifyTableRequest{TableName: tn("t"), TableSchema: got}); err != nil {
		t.Fatal(err)
	}
	s, err := f.store.Table(t.Context(), "projects/p/instances/main/tables/t")
	if err != nil || len(s.Families["new"].GC.Intersection) != 3 {
		t.Errorf("%v, %v", s.Families["new"].GC, err)
	}
}

func TestNames(t *testing.T) {
	f := start(t)
	for _, name := range []string{"", ".t", "-t", "t!", "a b", strings.Repeat("x", 256), "t\xff"} {
		_, err := f.createTable(t.Context(), f.c, &pb.CreateTableRequest{TableSchema: &pb.TableSchema{
			TableName: &pb.TableName{Namespace: []byte("default"), Qualifier: []byte(name)}, ColumnFamilies: []*pb.ColumnFamilySchema{fam("f")}}})
		f.wants(name, err, wire.DoNotRetryIO)
	}
	for _, name := range []string{"", ".f", "a:b", "a/b", "a\x01", strings.Repeat("f", 128), "recovered.edits"} {
		_, err := f.createTable(t.Context(), f.c, &pb.CreateTableRequest{TableSchema: tableSchema("t", fam(name))})
		f.wants(name, err, wire.DoNotRetryIO)
	}
	for _, splits := range [][][]byte{{{}}, {[]byte("a"), []byte("a")}} {
		_, err := f.createTable(t.Context(), f.c, &pb.CreateTableRequest{TableSchema: tableSchema("t", fam("f")), SplitKeys: splits})
		f.wants("splits", err, wire.DoNotRetryIO)
	}
	_, err := f.createTable(t.Context(), f.c, &pb.CreateTableRequest{TableSchema: tableSchema("none:t", fam("f"))})
	f.wants("namespace", err, wire.NamespaceNotFound)
	_, err = f.createTable(t.Context(), f.c, &pb.CreateTableRequest{TableSchema: tableSchema("hbase:t", fam("f"))})
	f.wants("computed", err, wire.DoNotRetryIO)
}

func TestListing(t *testing.T) {
	f := start(t)
	ctx := t.Context()
	f.namespace("ns")
	for _, n := range []string{"apple", "banana", "ns:apple"} {
		f.create(tableSchema(n, fam("f")))
	}
	for _, c := range []struct {
		regex     *string
		namespace string
		system    bool
		want      string
	}{
		{nil, "", false, "apple banana ns:apple"},
		{nil, "", true, "hbase:meta hbase:namespace apple banana ns:apple"},
		{proto.String(""), "", true, ""},
		{proto.String("a"), "", false, ""},
		{proto.String("a.*"), "", false, "apple"},
		{proto.String("default:.*"), "", false, "apple banana"},
		{proto.String(".*:apple"), "", false, "apple ns:apple"},
		{proto.String("apple|banana"), "", false, "apple banana"},
		{nil, "ns", false, "ns:apple"},
		{nil, "hbase", true, "hbase:meta hbase:namespace"},
	} {
		req := &pb.GetTableNamesRequest{Regex: c.regex, IncludeSysTables: &c.system}
		req2 := &pb.GetTableDescriptorsRequest{Regex: c.regex, IncludeSysTables: &c.system}
		if c.namespace != "" {
			req.Namespace, req2.Namespace = &c.namespace, &c.namespace
		}
		l, err := f.getTableNames(ctx, f.c, req)
		if err != nil {
			t.Fatal(err)
		}
		d, err := f.getTableDescriptors(ctx, f.c, req2)
		if err != nil {
			t.Fatal(err)
		}
		var names, described []string
		for _, n := range l.GetTableNames() {
			names = append(names, model.NameOf(n).String())
		}
		for _, s := range d.GetTableSchema() {
			described = append(described, model.NameOf(s.GetTableName()).String())
		}
		if got := strings.Join(names, " "); got != c.want || !slices.Equal(names, described) {
			t.Errorf("regex %v: names %q, descriptors %q, want %q", c.regex, names, described, c.want)
		}
	}
	_, err := f.getTableNames(ctx, f.c, &pb.GetTableNamesRequest{Regex: proto.String("(")})
	f.wants("bad regex", err, wire.DoNotRetryIO)
}

func TestNamespaces(t *testing.T) {
	f := start(t)
	ctx := t.Context()
	d := &pb.NamespaceDescriptor{Name: []byte("ns"), Configuration: []*pb.NameStringPair{{Name: proto.String("k"), Value: proto.String("v")}}}
	if _, err := f.createNamespace(ctx, f.c, &pb.CreateNamespaceRequest{NamespaceDescriptor: d}); err != nil {
		t.Fatal(err)
	}
	if !f.made["projects/p/instances/ns"] {
		t.Error("the instance was not made")
	}
	got, err := f.getNamespaceDescriptor(ctx, f.c, &pb.GetNamespaceDescriptorRequest{NamespaceName: proto.String("ns")})
	if err != nil || !proto.Equal(got.GetNamespaceDescriptor(), d) {
		t.Errorf("%v, %v", got, err)
	}
	for _, name := range []string{"ns", "default", "hbase", "main"} {
		_, err := f.createNamespace(ctx, f.c, &pb.CreateNamespaceRequest{NamespaceDescriptor: &pb.NamespaceDescriptor{Name: []byte(name)}})
		f.wants(name, err, wire.NamespaceExists)
	}
	_, err = f.createNamespace(ctx, f.c, &pb.CreateNamespaceRequest{NamespaceDescriptor: &pb.NamespaceDescriptor{Name: []byte("a-b")}})
	f.wants("bad name", err, wire.DoNotRetryIO)
	d.Configuration = nil
	if _, err := f.modifyNamespace(ctx, f.c, &pb.ModifyNamespaceRequest{NamespaceDescriptor: d}); err != nil {
		t.Error(err)
	}
	_, err = f.modifyNamespace(ctx, f.c, &pb.ModifyNamespaceRequest{NamespaceDescriptor: &pb.NamespaceDescriptor{Name: []byte("x")}})
	f.wants("modify missing", err, wire.NamespaceNotFound)
	l, err := f.listNamespaceDescriptors(ctx, f.c, &pb.ListNamespaceDescriptorsRequest{})
	if err != nil || len(l.GetNamespaceDescriptor()) != 3 || len(l.GetNamespaceDescriptor()[2].GetConfiguration()) != 0 {
		t.Errorf("%v, %v", l, err)
	}
	names, err := f.listNamespaces(ctx, f.c, &pb.ListNamespacesRequest{})
	if err != nil || !slices.Equal(names.GetNamespaceName(), []string{"default", "hbase", "ns"}) {
		t.Errorf("%v, %v", names, err)
	}
	f.create(tableSchema("ns:t", fam("f")))
	_, err = f.deleteNamespace(ctx, f.c, &pb.DeleteNamespaceRequest{NamespaceName: proto.String("ns")})
	f.wants("delete full", err, constraint)
	_, err = f.deleteNamespace(ctx, f.c, &pb.DeleteNamespaceRequest{NamespaceName: proto.String("default")})
	f.wants("delete reserved", err, constraint)
	f.disable("ns:t")
	if _, err := f.deleteTable(ctx, f.c, &pb.DeleteTableRequest{TableName: tn("ns:t")}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.deleteNamespace(ctx, f.c, &pb.DeleteNamespaceRequest{NamespaceName: proto.String("ns")}); err != nil {
		t.Fatal(err)
	}
	_, err = f.deleteNamespace(ctx, f.c, &pb.DeleteNamespaceRequest{NamespaceName: proto.String("ns")})
	f.wants("delete again", err, wire.NamespaceNotFound)
}

func TestNonces(t *testing.T) {
	f := start(t)
	req := &pb.CreateTableRequest{TableSchema: tableSchema("t", fam("f")), NonceGroup: proto.Uint64(1), Nonce: proto.Uint64(2)}
	var mu sync.Mutex
	ids := map[uint64]bool{}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			r, err := f.createTable(t.Context(), f.c, req)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			ids[r.GetProcId()] = true
		})
	}
	wg.Wait()
	if len(ids) != 1 {
		t.Errorf("procedures %v", ids)
	}
	req.Nonce = proto.Uint64(3)
	_, err := f.createTable(t.Context(), f.c, req)
	f.wants("another nonce", err, wire.TableExists)
	r, err := f.getProcedureResult(t.Context(), f.c, &pb.GetProcedureResultRequest{ProcId: proto.Uint64(1)})
	if err != nil || r.GetState() != pb.GetProcedureResultResponse_NOT_FOUND {
		t.Errorf("%v, %v", r, err)
	}
}

func TestSnapshots(t *testing.T) {
	f := start(t)
	ctx := t.Context()
	f.create(tableSchema("t", fam("f", "COMPRESSION", "GZ")), "b")
	f.put("t", "a", "b")
	snap := &pb.SnapshotDescription{Name: proto.String("s"), Table: proto.String("t"), CreationTime: proto.Int64(0)}
	if _, err := f.snapshot(ctx, f.c, &pb.SnapshotRequest{Snapshot: snap}); err != nil {
		t.Fatal(err)
	}
	_, err := f.snapshot(ctx, f.c, &pb.SnapshotRequest{Snapshot: snap})
	f.wants("again", err, wire.SnapshotExists)
	_, err = f.snapshot(ctx, f.c, &pb.SnapshotRequest{Snapshot: &pb.SnapshotDescription{Name: proto.String("s2"), Table: proto.String("none")}})
	f.wants("of nothing", err, wire.SnapshotCreation)
	l, err := f.getCompletedSnapshots(ctx, f.c, &pb.GetCompletedSnapshotsRequest{})
	if err != nil || len(l.GetSnapshots()) != 1 || l.GetSnapshots()[0].GetTable() != "t" || l.GetSnapshots()[0].GetOwner() != "me" || l.GetSnapshots()[0].GetCreationTime() == 0 {
		t.Errorf("%v, %v", l, err)
	}
	done, err := f.isSnapshotDone(ctx, f.c, &pb.IsSnapshotDoneRequest{Snapshot: snap})
	if err != nil || !done.GetDone() {
		t.Errorf("%v, %v", done, err)
	}
	// A clone has the rows, the regions and the descriptor.
	if _, err := f.restoreSnapshot(ctx, f.c, &pb.RestoreSnapshotRequest{Snapshot: &pb.SnapshotDescription{Name: proto.String("s"), Table: proto.String("clone")}}); err != nil {
		t.Fatal(err)
	}
	if n := f.count("clone"); n != 2 || f.regions("clone") != 2 {
		t.Errorf("clone has %d rows in %d regions", n, f.regions("clone"))
	}
	if v, _ := attribute(f.describe("clone").GetColumnFamilies()[0].GetAttributes(), "COMPRESSION"); v != "GZ" {
		t.Errorf("COMPRESSION %q", v)
	}
	// A restored table is what it was, and disabled.
	f.put("t", "c", "d")
	_, err = f.restoreSnapshot(ctx, f.c, &pb.RestoreSnapshotRequest{Snapshot: snap})
	f.wants("restore enabled", err, wire.DoNotRetryIO)
	f.disable("t")
	if _, err := f.restoreSnapshot(ctx, f.c, &pb.RestoreSnapshotRequest{Snapshot: snap}); err != nil {
		t.Fatal(err)
	}
	if tab, err := f.table(ctx, model.ParseName("t")); err != nil || tab.Enabled() {
		t.Errorf("%+v, %v", tab, err)
	}
	if n := f.count("t"); n != 2 {
		t.Errorf("restored table has %d rows", n)
	}
	if _, err := f.deleteSnapshot(ctx, f.c, &pb.DeleteSnapshotRequest{Snapshot: snap}); err != nil {
		t.Fatal(err)
	}
	_, err = f.deleteSnapshot(ctx, f.c, &pb.DeleteSnapshotRequest{Snapshot: snap})
	f.wants("delete again", err, wire.SnapshotMissing)
	_, err = f.restoreSnapshot(ctx, f.c, &pb.RestoreSnapshotRequest{Snapshot: snap})
	f.wants("restore deleted", err, wire.SnapshotMissing)
}

func TestRegions(t *testing.T) {
	f := start(t)
	ctx := t.Context()
	f.create(tableSchema("t", fam("f")))
	f.put("t", "a", "b", "c")
	list := func() []*model.Region {
		tab, err := f.table(ctx, model.ParseName("t"))
		if err != nil {
			t.Fatal(err)
		}
		l, err := f.catalog.Regions(ctx, tab)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	split := func(r *model.Region, key string) error {
		_, err := f.splitRegion(ctx, f.c, &pb.SplitTableRegionRequest{RegionInfo: r.Info(), SplitRow: []byte(key)})
		return err
	}
	whole := list()[0]
	if err := split(whole, "b"); err != nil {
		t.Fatal(err)
	}
	f.wants("split what is gone", split(whole, "b"), wire.UnknownRegion)
	f.wants("split outside", split(list()[0], "c"), wire.DoNotRetryIO)
	f.wants("split a small one in the middle", split(list()[0], ""), wire.DoNotRetryIO)
	l := list()
	if len(l) != 2 {
		t.Fatalf("%v", l)
	}
	if _, err := f.moveRegion(ctx, f.c, &pb.MoveRegionRequest{Region: l[0].Specifier(), DestServerName: f.catalog.Server().Proto()}); err != nil {
		t.Error(err)
	}
	_, err := f.moveRegion(ctx, f.c, &pb.MoveRegionRequest{Region: whole.Specifier()})
	f.wants("move what is gone", err, wire.UnknownRegion)
	_, err = f.moveRegion(ctx, f.c, &pb.MoveRegionRequest{Region: l[0].Specifier(), DestServerName: &pb.ServerName{HostName: proto.String("x")}})
	f.wants("move away", err, wire.DoNotRetryIO)
	fl, err := f.flushRegion(ctx, f.c, &pb.FlushRegionRequest{Region: l[0].Specifier()})
	if err != nil || !fl.GetFlushed() {
		t.Errorf("%v, %v", fl, err)
	}
	if _, err := f.flushTable(ctx, f.c, &pb.FlushTableRequest{TableName: tn("t")}); err != nil {
		t.Error(err)
	}
	if _, err := f.compactRegion(ctx, f.c, &pb.CompactRegionRequest{Region: l[0].Specifier(), Major: proto.Bool(true)}); err != nil {
		t.Error(err)
	}
	info, err := f.getRegionInfo(ctx, f.c, &pb.GetRegionInfoRequest{Region: l[0].Specifier(), CompactionState: proto.Bool(true)})
	if err != nil || !proto.Equal(info.GetRegionInfo(), l[0].Info()) || info.CompactionState == nil {
		t.Errorf("%v, %v", info, err)
	}
	_, err = f.getRegionInfo(ctx, f.c, &pb.GetRegionInfoRequest{Region: whole.Specifier()})
	f.wants("info of what is gone", err, wire.NotServingRegion)
	if on, err := f.getOnlineRegion(ctx, f.c, &pb.GetOnlineRegionRequest{}); err != nil || len(on.GetRegionInfo()) != 3 {
		t.Errorf("%v, %v", on, err)
	}
	if rl, err := f.getRegionLoad(ctx, f.c, &pb.GetRegionLoadRequest{TableName: tn("t")}); err != nil || len(rl.GetRegionLoads()) != 2 {
		t.Errorf("%v, %v", rl, err)
	}
	if _, err := f.mergeTableRegions(ctx, f.c, &pb.MergeTableRegionsRequest{Region: []*pb.RegionSpecifier{l[1].Specifier(), l[0].Specifier()}}); err != nil {
		t.Error(err)
	}
	if n := len(list()); n != 1 {
		t.Errorf("%d regions after the merge", n)
	}
	if n := f.count("t"); n != 3 {
		t.Errorf("%d rows", n)
	}
	_, err = f.mergeTableRegions(ctx, f.c, &pb.MergeTableRegionsRequest{Region: []*pb.RegionSpecifier{list()[0].Specifier()}})
	f.wants("merge one", err, wire.DoNotRetryIO)
}

// A region that has grown is split where its middle is.
func TestSplitInTheMiddle(t *testing.T) {
	f := start(t)
	f.create(tableSchema("t", fam("f")))
	var keys []string
	for i := range 200 {
		keys = append(keys, fmt.Sprintf("%03d", i))
	}
	f.put("t", keys...)
	big := &row.Entry{Mutations: []row.Mutation{{Op: row.SetCell, Family: "f", Qualifier: []byte("big"), Timestamp: 1000, Value: bytes.Repeat([]byte("v"), 64<<10)}}}
	for _, k := range keys {
		big.Key = []byte(k)
		if err := f.store.MutateRow(t.Context(), "projects/p/instances/main/tables/t", big); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.flush(t.Context(), model.ParseName("t")); err != nil {
		t.Fatal(err)
	}
	tab, err := f.table(t.Context(), model.ParseName("t"))
	if err != nil {
		t.Fatal(err)
	}
	l, err := f.catalog.Regions(t.Context(), tab)
	if err != nil {
		t.Fatal(err)
	}
	info, err := f.getRegionInfo(t.Context(), f.c, &pb.GetRegionInfoRequest{Region: l[0].Specifier(), BestSplitRow: proto.Bool(true)})
	if err != nil || len(info.GetBestSplitRow()) == 0 {
		t.Fatalf("%v, %v", info, err)
	}
	if _, err := f.splitRegion(t.Context(), f.c, &pb.SplitTableRegionRequest{RegionInfo: l[0].Info()}); err != nil {
		t.Fatal(err)
	}
	if n := f.regions("t"); n != 2 {
		t.Errorf("%d regions", n)
	}
}

func TestCluster(t *testing.T) {
	f := start(t)
	ctx := t.Context()
	f.create(tableSchema("t", fam("f")), "b")
	f.create(tableSchema("off", fam("f")))
	f.disable("off")
	s, err := f.getClusterStatus(ctx, f.c, &pb.GetClusterStatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	st := s.GetClusterStatus()
	if len(st.GetLiveServers()) != 1 || len(st.GetLiveServers()[0].GetServerLoad().GetRegionLoads()) != 3 || len(st.GetTableRegionStatesCount()) != 2 ||
		!st.GetBalancerOn() || st.GetClusterId().GetClusterId() == "" || st.GetMaster().GetHostName() != "h" {
		t.Errorf("%v", st)
	}
	if s, err = f.getClusterStatus(ctx, f.c, &pb.GetClusterStatusRequest{Options: []pb.Option{pb.Option_MASTER}}); err != nil || s.GetClusterStatus().GetLiveServers() != nil {
		t.Errorf("%v, %v", s, err)
	}
	for _, on := range []bool{false, false, true} {
		if _, err := f.turnOne(ctx, f.c, on, true, "balancer"); err != nil {
			t.Fatal(err)
		}
		if got, err := f.isOn(ctx, f.c, "balancer", true); err != nil || got != on {
			t.Errorf("balancer %v, %v", got, err)
		}
	}
	was, err := f.setSplitOrMergeEnabled(ctx, f.c, &pb.SetSplitOrMergeEnabledRequest{Enabled: proto.Bool(false), SwitchTypes: []pb.MasterSwitchType{pb.MasterSwitchType_SPLIT, pb.MasterSwitchType_MERGE}})
	if err != nil || !slices.Equal(was.GetPrevValue(), []bool{true, true}) {
		t.Errorf("%v, %v", was, err)
	}
	if p, err := f.execProcedure(ctx, f.c, &pb.ExecProcedureRequest{Procedure: &pb.ProcedureDescription{Signature: proto.String(flushProcedure), Instance: proto.String("t")}}); err != nil {
		t.Errorf("%v, %v", p, err)
	}
	_, err = f.execProcedure(ctx, f.c, &pb.ExecProcedureRequest{Procedure: &pb.ProcedureDescription{Signature: proto.String("x")}})
	f.wants("another procedure", err, wire.DoNotRetryIO)
	if n := len(f.masterService()) + len(f.adminService()); n < 80 {
		t.Errorf("%d methods", n)
	}
}

// Without the backend's own work by hand, and without backups, such calls are
// refused.
func TestPlainBackend(t *testing.T) {
	f := start(t)
	f.create(tableSchema("t", fam("f")))
	f.tablets, f.backups = nil, nil
	_, err := f.flushTable(t.Context(), f.c, &pb.FlushTableRequest{TableName: tn("t")})
	f.wants("flush", err, wire.DoNotRetryIO)
	_, err = f.snapshot(t.Context(), f.c, &pb.SnapshotRequest{Snapshot: &pb.SnapshotDescription{Name: proto.String("s"), Table: proto.String("t")}})
	f.wants("snapshot", err, wire.DoNotRetryIO)
	if l, err := f.getCompletedSnapshots(t.Context(), f.c, &pb.GetCompletedSnapshotsRequest{}); err != nil || len(l.GetSnapshots()) != 0 {
		t.Errorf("%v, %v", l, err)
	}
}

func TestAuthorize(t *testing.T) {
	f := start(t)
	f.create(tableSchema("t", fam("f")))
	var asked []string
	allow := map[string]bool{toSee: true, toList: true, toVisit: true}
	f.o.Authorize = func(ctx context.Context, _ *server.Call, rpc, resource string) (context.Context, error) {
		asked = append(asked, rpc[strings.LastIndexByte(rpc, '/')+1:]+" "+resource)
		if !allow[rpc] {
			return ctx, wire.AccessDenied.New("no")
		}
		return ctx, nil
	}
	_, err := f.disableTable(t.Context(), f.c, &pb.DisableTableRequest{TableName: tn("t")})
	f.wants("disable", err, wire.AccessDenied)
	_, err = f.createTable(t.Context(), f.c, &pb.CreateTableRequest{TableSchema: tableSchema("x", fam("f"))})
	f.wants("create", err, wire.AccessDenied)
	_, err = f.deleteTable(t.Context(), f.c, &pb.DeleteTableRequest{TableName: tn("t")})
	f.wants("delete", err, wire.AccessDenied)
	_, err = f.createNamespace(t.Context(), f.c, &pb.CreateNamespaceRequest{NamespaceDescriptor: &pb.NamespaceDescriptor{Name: []byte("n")}})
	f.wants("namespace", err, wire.AccessDenied)
	_, err = f.turnOne(t.Context(), f.c, true, true, "balancer")
	f.wants("switch", err, wire.AccessDenied)
	if _, err := f.getTableState(t.Context(), f.c, &pb.GetTableStateRequest{TableName: tn("t")}); err != nil {
		t.Error(err)
	}
	if want := []string{
		"ModifyColumnFamilies projects/p/instances/main/tables/t", "CreateTable projects/p/instances/main", "DeleteTable projects/p/instances/main/tables/t",
		"CreateInstance projects/p", "PartialUpdateInstance projects/p/instances/main", "GetTable projects/p/instances/main/tables/t",
	}; !slices.Equal(asked, want) {
		t.Errorf("asked about %q", asked)
	}
}

// TestListingWithoutPolicies: a list leaves out the namespaces that the caller may not see,
// and fails while it cannot be told which these are.
func TestListingWithoutPolicies(t *testing.T) {
	f := start(t)
	ctx := t.Context()
	f.namespace("ns")
	f.create(tableSchema("t", fam("f")))
	f.create(tableSchema("ns:t", fam("f")))
	var refusal error
	f.o.Authorize = func(ctx context.Context, _ *server.Call, _, resource string) (context.Context, error) {
		if strings.HasSuffix(resource, "/ns") {
			return ctx, refusal
		}
		return ctx, nil
	}
	refusal = fault.New(fault.PermissionDenied, "no")
	if l, err := f.getTableNames(ctx, f.c, &pb.GetTableNamesRequest{}); err != nil || len(l.GetTableNames()) != 1 {
		t.Errorf("%v, %v", l, err)
	}
	refusal = fault.New(fault.Unavailable, "no policies")
	if l, err := f.getTableNames(ctx, f.c, &pb.GetTableNamesRequest{}); !errors.Is(err, fault.Unavailable) {
		t.Errorf("%v, %v", l, err)
	}
}

// TestSnapshotsOfHiddenTables: to a caller that may not know of a table, a snapshot of it is
// not there.
func TestSnapshotsOfHiddenTables(t *testing.T) {
	f := start(t)
	ctx := t.Context()
	snap := func(of string) *pb.SnapshotDescription {
		return &pb.SnapshotDescription{Name: proto.String("of-" + of)}
	}
	for _, name := range []string{"seen", "hidden"} {
		f.create(tableSchema(name, fam("f")))
		s := snap(name)
		s.Table = proto.String(name)
		if _, err := f.snapshot(ctx, f.c, &pb.SnapshotRequest{Snapshot: s}); err != nil {
			t.Fatal(err)
		}
	}
	f.o.Sees = func(_ context.Context, table string) (bool, error) { return strings.HasSuffix(table, "/seen"), nil }
	l, err := f.getCompletedSnapshots(ctx, f.c, &pb.GetCompletedSnapshotsRequest{})
	if err != nil || len(l.GetSnapshots()) != 1 || l.GetSnapshots()[0].GetTable() != "seen" {
		t.Errorf("%v, %v", l, err)
	}
	if d, err := f.isSnapshotDone(ctx, f.c, &pb.IsSnapshotDoneRequest{Snapshot: snap("seen")}); err != nil || d.GetSnapshot().GetTable() != "seen" {
		t.Errorf("%v, %v", d, err)
	}
	for what, call := range map[string]func(*pb.SnapshotDescription) error{
		"is done": func(s *pb.SnapshotDescription) error {
			_, err := f.isSnapshotDone(ctx, f.c, &pb.IsSnapshotDoneRequest{Snapshot: s})
			return err
		},
		"restore": func(s *pb.SnapshotDescription) error {
			_, err := f.restoreSnapshot(ctx, f.c, &pb.RestoreSnapshotRequest{Snapshot: s})
			return err
		},
		"clone": func(s *pb.SnapshotDescription) error {
			s.Table = proto.String("copy")
			_, err := f.restoreSnapshot(ctx, f.c, &pb.RestoreSnapshotRequest{Snapshot: s})
			return err
		},
		"delete": func(s *pb.SnapshotDescription) error {
			_, err := f.deleteSnapshot(ctx, f.c, &pb.DeleteSnapshotRequest{Snapshot: s})
			return err
		},
	} {
		hidden, none := call(snap("hidden")), call(snap("none"))
		if hidden == nil || none == nil || strings.ReplaceAll(hidden.Error(), "of-hidden", "of-none") != none.Error() {
			t.Errorf("%s: %v, and of one that is not there %v", what, hidden, none)
		}
	}
}

// TestSnapshotRights: rows go into a snapshot, and out of one, for a caller that may copy
// all of its table, whatever it may do elsewhere.
func TestSnapshotRights(t *testing.T) {
	f := start(t)
	ctx := t.Context()
	f.namespace("dev")
	f.create(tableSchema("secret", fam("f")))
	f.put("secret", "a")
	f.create(tableSchema("dev:old", fam("f")))
	f.disable("dev:old")
	snapshot := func(name string) error {
		_, err := f.snapshot(ctx, f.c, &pb.SnapshotRequest{Snapshot: &pb.SnapshotDescription{Name: proto.String(name), Table: proto.String("secret")}})
		return err
	}
	restore := func(table string) error {
		_, err := f.restoreSnapshot(ctx, f.c, &pb.RestoreSnapshotRequest{Snapshot: &pb.SnapshotDescription{Name: proto.String("s"), Table: proto.String(table)}})
		return err
	}
	if err := snapshot("s"); err != nil {
		t.Fatal(err)
	}
	const main, dev = "projects/p/instances/main", "projects/p/instances/dev"
	var may []string
	f.o.Authorize = func(ctx context.Context, _ *server.Call, rpc, resource string) (context.Context, error) {
		if what := rpc[strings.LastIndexByte(rpc, '/')+1:] + " " + resource; !slices.Contains(may, what) {
			return ctx, wire.AccessDenied.New("%s", what)
		}
		return ctx, nil
	}
	denied := func(what string, err error, missing string) {
		t.Helper()
		if f.wants(what, err, wire.AccessDenied); err != nil && !strings.HasSuffix(err.Error(), missing) {
			t.Errorf("%s: %v, not %s", what, err, missing)
		}
	}
	const copies = "CreateBackup " + main + "/tables/secret"
	may = []string{"ModifyColumnFamilies " + main + "/tables/secret", "ReadRows " + main + "/tables/secret"}
	denied("snapshot", snapshot("mine"), copies)
	may = []string{copies}
	if err := snapshot("mine"); err != nil {
		t.Error(err)
	}
	denied("restore where no tables may be made", restore("dev:copy"), "CreateTable "+dev)
	denied("restore to an unknown place", restore(""), "GetInstance ")

	// An administrator of dev, but for what it lacks.
	may = []string{"CreateTable " + dev, "DeleteTable " + dev + "/tables/old", "ModifyColumnFamilies " + dev + "/tables/copy"}
	denied("restore", restore("dev:copy"), copies)
	denied("restore over a table", restore("dev:old"), copies)
	may = []string{copies, "CreateTable " + dev, "ModifyColumnFamilies " + dev + "/tables/old"}
	denied("restore over a table", restore("dev:old"), "DeleteTable "+dev+"/tables/old")
	if n := f.count("dev:old"); n != 0 {
		t.Errorf("the table has %d rows", n)
	}
	may = append(may, "DeleteTable "+dev+"/tables/old")
	for _, table := range []string{"dev:copy", "dev:old"} {
		if err := restore(table); err != nil || f.count(table) != 1 {
			t.Errorf("restore to %s: %v", table, err)
		}
	}

	// The name is asked about when the table is gone.
	may = []string{"CreateTable " + dev}
	authorize := f.o.Authorize
	f.o.Authorize = nil
	f.disable("secret")
	if _, err := f.deleteTable(ctx, f.c, &pb.DeleteTableRequest{TableName: tn("secret")}); err != nil {
		t.Fatal(err)
	}
	f.o.Authorize = authorize
	denied("restore of a table that is gone", restore("dev:last"), copies)
}

func TestFamilyDefaults(t *testing.T) {
	m, err := family(fam("f"))
	if err != nil || m != (model.Family{Versions: 1, TTL: model.Forever}) {
		t.Errorf("%+v, %v", m, err)
	}
	m, err = family(fam("f", "VERSIONS", "2147483647", "TTL", "2147483647"))
	if err != nil || m.Versions != math.MaxInt32 || m.Rule() != nil {
		t.Errorf("%+v, %v", m, err)
	}
}
