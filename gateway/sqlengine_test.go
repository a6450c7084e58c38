package gateway

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"cloud.google.com/go/bigtable"
	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/trestledb/trestle/conformance/streamcheck"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// newEngineFixture is newSQLFixture with the engine of the server.
func newEngineFixture(t testing.TB) *sqlFixture {
	t.Helper()
	f := &sqlFixture{check: streamcheck.New(), dir: t.TempDir()}
	o := Options{}
	o.Query.Dir = f.dir
	f.fixture = newFixture(t, o)
	conn, err := grpc.NewClient(f.addr, append(f.check.Options(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	f.conn, f.raw = conn, bigtablepb.NewBigtableClient(conn)
	t.Cleanup(func() {
		_ = conn.Close()
		for _, v := range f.check.Violations() {
			t.Error(v)
		}
	})
	return f
}

// fill writes n rows, of which column cf:n is the number and cf:text so many letters.
func (f *sqlFixture) fill(n, width int) {
	f.t.Helper()
	var entries []row.Entry
	text := []byte(strings.Repeat("x", width))
	for i := range n {
		entries = append(entries, row.Entry{Key: fmt.Appendf(nil, "row%06d", i), Mutations: []row.Mutation{
			{Op: row.SetCell, Family: "cf", Qualifier: []byte("n"), Timestamp: 1000, Value: fmt.Appendf(nil, "%06d", i)},
			{Op: row.SetCell, Family: "cf", Qualifier: []byte("text"), Timestamp: 1000, Value: text}}})
	}
	err := f.stub.MutateRows(context.Background(), testTable, entries, func(_ int, err error) {
		if err != nil {
			f.t.Error(err)
		}
	})
	if err != nil {
		f.t.Fatal(err)
	}
}

// A scan and a sort go on from each of their tokens, also when the tablet is away for
// a while.
func TestSQLResumesRows(t *testing.T) {
	f, ctx := newEngineFixture(t), t.Context()
	const n = 12_000
	f.fill(n, 1000)
	var reads atomic.Int64 // of scans that run side by side
	f.stub.readRows = func(ctx context.Context, req *scan.Request, w scan.Writer) (scan.Stats, error) {
		if reads.Add(1)%5 == 3 {
			return scan.Stats{}, fault.New(fault.Unavailable, "the tablet moves")
		}
		return f.stub.Backend.ReadRows(ctx, req, w)
	}
	for _, q := range []string{"SELECT cf['n'], cf['text'] FROM t", "SELECT cf['n'], cf['text'] FROM t ORDER BY cf['n'] DESC"} {
		token := f.mustPrepare(q)
		var all *result
		var err error
		for range 5 { // what fails before the first row is the client's to try again
			if all, err = f.execute(ctx, &bigtablepb.ExecuteQueryRequest{PreparedQuery: token}, nil); status.Code(err) != codes.Unavailable {
				break
			}
		}
		if err != nil || len(all.values) != 2*n || len(all.tokens) < 3 {
			t.Fatalf("%s: %d values, %d tokens, %v", q, len(all.values), len(all.tokens), err)
		}
		for i, tok := range all.tokens {
			var rest *result
			for range 5 {
				if rest, err = f.execute(ctx, &bigtablepb.ExecuteQueryRequest{PreparedQuery: token, ResumeToken: tok}, nil); status.Code(err) != codes.Unavailable {
					break
				}
			}
			if err != nil || len(rest.values) != 2*(n-all.after[i]) {
				t.Fatalf("%s: token %d, behind %d rows: %d values, %v", q, i, all.after[i], len(rest.values), err)
			}
			for j, v := range rest.values {
				if !proto.Equal(v, all.values[2*all.after[i]+j]) {
					t.Fatalf("%s: token %d, value %d: %v", q, i, j, v)
				}
			}
		}
	}
}

func TestSQLClient(t *testing.T) {
	f, ctx := newEngineFixture(t), t.Context()
	f.fill(100, 10)
	c := f.client()
	run := func(q string, types map[string]bigtable.SQLType, values map[string]any, row func(bigtable.ResultRow)) error {
		ps, err := c.PrepareStatement(ctx, q, types)
		if err != nil {
			return err
		}
		bs, err := ps.Bind(values)
		if err != nil {
			return err
		}
		return bs.Execute(ctx, func(r bigtable.ResultRow) bool {
			row(r)
			return true
		})
	}
	var got []string
	err := run("SELECT _key, cf['n'] AS n FROM t WHERE _key IN UNNEST(@keys) OR _key = @key", map[string]bigtable.SQLType{
		"keys": bigtable.ArraySQLType{ElemType: bigtable.BytesSQLType{}}, "key": bigtable.BytesSQLType{}},
		map[string]any{"keys": [][]byte{[]byte("row000007"), []byte("row000050")}, "key": []byte("row000001")}, func(r bigtable.ResultRow) {
			var key, n []byte
			if err := r.GetByIndex(0, &key); err != nil {
				t.Error(err)
			}
			if err := r.GetByName("n", &n); err != nil {
				t.Error(err)
			}
			got = append(got, string(key)+" "+string(n))
		})
	if err != nil || strings.Join(got, ", ") != "row000001 000001, row000007 000007, row000050 000050" {
		t.Error(got, err)
	}
	for q, want := range map[string]struct {
		code codes.Code
		text string
	}{
		"SELECT foo FROM t":                     {codes.InvalidArgument, "Unrecognized name: foo [at 1:8]"},
		"SELECT * FROM tt":                      {codes.InvalidArgument, "Table not found: tt"},
		"SELECT":                                {codes.InvalidArgument, "[at 1:"},
		"SELECT 1/0":                            {codes.OutOfRange, "division by zero: 1 / 0"},
		"SELECT cf['n'] + 1 FROM t":             {codes.InvalidArgument, "No matching signature for operator +"},
		"SELECT _key FROM t WHERE _key = 'é' +": {codes.InvalidArgument, "[at 1:"},
		"SELECT @p":                             {codes.InvalidArgument, "Query parameter 'p' not found"},
	} {
		err := run(q, nil, nil, func(bigtable.ResultRow) {})
		if status.Code(err) != want.code || !strings.Contains(err.Error(), want.text) {
			t.Errorf("%s: %v, want %v: %s", q, err, want.code, want.text)
		}
	}
	// What is written is there, and counted.
	rows := 0
	count := func(q string) (n int64) {
		t.Helper()
		if err := run(q, nil, nil, func(r bigtable.ResultRow) {
			rows++
			if err := r.GetByIndex(0, &n); err != nil {
				t.Error(err)
			}
		}); err != nil {
			t.Error(q, err)
		}
		return n
	}
	if n := count("DELETE FROM t WHERE _key < 'row000010'"); n != 10 {
		t.Errorf("deleted %d rows", n)
	}
	if n := count("SELECT COUNT(*) FROM t"); n != 90 {
		t.Errorf("%d rows are left", n)
	}
	if n := count("UPDATE t SET cf['new'] = b'v' WHERE _key < 'row000020'"); n != 10 {
		t.Errorf("updated %d rows", n)
	}
	if n := count("SELECT COUNT(*) FROM t WHERE cf['new'] = 'v'"); n != 10 {
		t.Errorf("%d rows were updated", n)
	}
}

// A profile for reading does not write.
func TestSQLReadOnlyProfile(t *testing.T) {
	f, ctx := newEngineFixture(t), t.Context()
	f.fill(3, 1)
	inst := adminpb.NewBigtableInstanceAdminClient(f.conn)
	if _, err := inst.CreateInstance(ctx, &adminpb.CreateInstanceRequest{Parent: "projects/p", InstanceId: "inst-1", Instance: &adminpb.Instance{DisplayName: "instance"},
		Clusters: map[string]*adminpb.Cluster{"cl-1": {Location: "projects/p/locations/local", ServeNodes: 1}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := inst.CreateAppProfile(ctx, &adminpb.CreateAppProfileRequest{Parent: testInstance, AppProfileId: "boost", IgnoreWarnings: true, AppProfile: &adminpb.AppProfile{
		RoutingPolicy: &adminpb.AppProfile_SingleClusterRouting_{SingleClusterRouting: &adminpb.AppProfile_SingleClusterRouting{ClusterId: "cl-1"}},
		Isolation: &adminpb.AppProfile_DataBoostIsolationReadOnly_{DataBoostIsolationReadOnly: &adminpb.AppProfile_DataBoostIsolationReadOnly{
			ComputeBillingOwner: adminpb.AppProfile_DataBoostIsolationReadOnly_HOST_PAYS.Enum()}}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.execute(ctx, &bigtablepb.ExecuteQueryRequest{AppProfileId: "boost", PreparedQuery: f.mustPrepare("SELECT COUNT(*) FROM t")}, nil); err != nil {
		t.Error(err)
	}
	_, err := f.execute(ctx, &bigtablepb.ExecuteQueryRequest{AppProfileId: "boost", PreparedQuery: f.mustPrepare("DELETE FROM t WHERE TRUE")}, nil)
	if status.Code(err) != codes.FailedPrecondition || expiredBy(err) {
		t.Error(err)
	}
	if _, err := f.execute(ctx, &bigtablepb.ExecuteQueryRequest{AppProfileId: "none", PreparedQuery: f.mustPrepare("SELECT 1")}, nil); status.Code(err) != codes.NotFound {
		t.Error(err)
	}
}

// Structured keys and schema bundles are what they are to tables' own services.
func TestSQLSchemas(t *testing.T) {
	f, ctx := newEngineFixture(t), t.Context()
	tables := adminpb.NewBigtableTableAdminClient(f.conn)
	text := &adminpb.Type{Kind: &adminpb.Type_StringType{StringType: &adminpb.Type_String{Encoding: &adminpb.Type_String_Encoding{
		Encoding: &adminpb.Type_String_Encoding_Utf8Bytes_{Utf8Bytes: &adminpb.Type_String_Encoding_Utf8Bytes{}}}}}}
	number := &adminpb.Type{Kind: &adminpb.Type_Int64Type{Int64Type: &adminpb.Type_Int64{Encoding: &adminpb.Type_Int64_Encoding{
		Encoding: &adminpb.Type_Int64_Encoding_OrderedCodeBytes_{OrderedCodeBytes: &adminpb.Type_Int64_Encoding_OrderedCodeBytes{}}}}}}
	if _, err := tables.CreateTable(ctx, &adminpb.CreateTableRequest{Parent: testInstance, TableId: "keyed", Table: &adminpb.Table{
		ColumnFamilies: map[string]*adminpb.ColumnFamily{"f": {}, "words": {ValueType: text}},
		RowKeySchema: &adminpb.Type_Struct{Fields: []*adminpb.Type_Struct_Field{{FieldName: "city", Type: text}, {FieldName: "n", Type: number}},
			Encoding: &adminpb.Type_Struct_Encoding{Encoding: &adminpb.Type_Struct_Encoding_OrderedCodeBytes_{OrderedCodeBytes: &adminpb.Type_Struct_Encoding_OrderedCodeBytes{}}}}}}); err != nil {
		t.Fatal(err)
	}
	enum := &descriptorpb.EnumDescriptorProto{Name: proto.String("Genre"), Value: []*descriptorpb.EnumValueDescriptorProto{
		{Name: proto.String("POP"), Number: proto.Int32(0)}, {Name: proto.String("JAZZ"), Number: proto.Int32(1)}}}
	field := func(name string, n int32, k descriptorpb.FieldDescriptorProto_Type, typ string) *descriptorpb.FieldDescriptorProto {
		f := &descriptorpb.FieldDescriptorProto{Name: &name, Number: &n, Type: &k, Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(), JsonName: &name}
		if typ != "" {
			f.TypeName = &typ
		}
		return f
	}
	file := &descriptorpb.FileDescriptorProto{Name: proto.String("a.proto"), Package: proto.String("pkg"), Syntax: proto.String("proto3"), EnumType: []*descriptorpb.EnumDescriptorProto{enum},
		MessageType: []*descriptorpb.DescriptorProto{{Name: proto.String("Singer"), Field: []*descriptorpb.FieldDescriptorProto{
			field("name", 1, descriptorpb.FieldDescriptorProto_TYPE_STRING, ""), field("genre", 2, descriptorpb.FieldDescriptorProto_TYPE_ENUM, ".pkg.Genre"),
			field("next", 3, descriptorpb.FieldDescriptorProto_TYPE_MESSAGE, ".pkg.Singer")}}}}
	if _, err := protodesc.NewFile(file, nil); err != nil {
		t.Fatal(err)
	}
	set, err := proto.Marshal(&descriptorpb.FileDescriptorSet{File: []*descriptorpb.FileDescriptorProto{file}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tables.CreateSchemaBundle(ctx, &adminpb.CreateSchemaBundleRequest{Parent: testInstance + "/tables/keyed", SchemaBundleId: "b.1", SchemaBundle: &adminpb.SchemaBundle{
		Type: &adminpb.SchemaBundle_ProtoSchema{ProtoSchema: &adminpb.ProtoSchema{ProtoDescriptors: set}}}}); err != nil {
		t.Fatal(err)
	}
	singer := []byte("\x0a\x04Ella\x10\x01\x1a\x07\x0a\x05Louis")
	// Key: the text, its end, and the number, as OrderedCode has them.
	key := append([]byte("Rome"), 0, 1, 0x85)
	if err := f.stub.Backend.MutateRow(ctx, testInstance+"/tables/keyed", &row.Entry{Key: key, Mutations: []row.Mutation{
		{Op: row.SetCell, Family: "f", Qualifier: []byte("s"), Timestamp: 1000, Value: singer},
		{Op: row.SetCell, Family: "words", Qualifier: []byte("w"), Timestamp: 1000, Value: []byte("word")}}}); err != nil {
		t.Fatal(err)
	}
	for q, want := range map[string]string{
		"SELECT city, n FROM keyed":                                         `string_value:"Rome" int_value:5`,
		"SELECT words['w'] FROM keyed":                                      `string_value:"word"`,
		"SELECT _key FROM keyed WHERE city = 'Rome'":                        `bytes_value:"Rome\x00\x01\x85"`,
		"SELECT CAST(f['s'] AS `b.1.pkg.Singer`).name FROM keyed":           `string_value:"Ella"`,
		"SELECT CAST(f['s'] AS `b.1.pkg.Singer`).genre FROM keyed":          `int_value:1`,
		"SELECT CAST(f['s'] AS `b.1.pkg.Singer`).next.name FROM keyed":      `string_value:"Louis"`,
		"SELECT CAST('JAZZ' AS `b.1.pkg.Genre`) FROM keyed":                 `int_value:1`,
		"SELECT CAST(f['s'] AS `b.1.pkg.Singer`).genre = 'JAZZ' FROM keyed": `bool_value:true`,
	} {
		p, err := f.prepare(q)
		if err != nil {
			t.Errorf("%s: %v", q, err)
			continue
		}
		r, err := f.execute(ctx, &bigtablepb.ExecuteQueryRequest{PreparedQuery: p.GetPreparedQuery()}, nil)
		var got []string
		if err == nil {
			for _, v := range r.values {
				got = append(got, strings.ReplaceAll(fmt.Sprint(v), "  ", " "))
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %v, %v, want %s", q, got, err, want)
		}
	}
	// A row whose key has no end of the text, and a message of which half is there.
	if err := f.stub.Backend.MutateRow(ctx, testInstance+"/tables/keyed", &row.Entry{Key: []byte("Rome"), Mutations: []row.Mutation{
		{Op: row.SetCell, Family: "f", Qualifier: []byte("s"), Timestamp: 1000, Value: singer[:3]}}}); err != nil {
		t.Fatal(err)
	}
	for q, want := range map[string]string{
		"SELECT city FROM keyed":                                                           "Failed to decode row key with the table's row key schema",
		"SELECT n FROM keyed WHERE city > 'A' GROUP BY n":                                  "Failed to decode row key with the table's row key schema",
		"SELECT CAST(f['s'] AS `b.1.pkg.Singer`).name FROM keyed WHERE _key = b'Rome'":     "proto",
		"SELECT COUNT(*) FROM keyed WHERE CAST(f['s'] AS `b.1.pkg.Singer`).genre = 'JAZZ'": "proto",
	} {
		_, err := f.execute(ctx, &bigtablepb.ExecuteQueryRequest{PreparedQuery: f.mustPrepare(q)}, nil)
		if status.Code(err) != codes.OutOfRange || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", q, err, want)
		}
	}
	// The bundle's columns are its own types, and its end is that of the statement.
	p, err := f.prepare("SELECT CAST(f['s'] AS `b.1.pkg.Singer`) AS s FROM keyed")
	if err != nil {
		t.Fatal(err)
	}
	if k := p.GetMetadata().GetProtoSchema().GetColumns()[0].GetType().GetProtoType(); k.GetSchemaBundleId() != "b.1" || k.GetMessageName() != "pkg.Singer" {
		t.Error(k)
	}
	if _, err := tables.DeleteSchemaBundle(ctx, &adminpb.DeleteSchemaBundleRequest{Name: testInstance + "/tables/keyed/schemaBundles/b.1"}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.execute(ctx, &bigtablepb.ExecuteQueryRequest{PreparedQuery: p.GetPreparedQuery()}, nil); !expiredBy(err) {
		t.Errorf("without the bundle: %v", err)
	}
	if _, err := f.prepare("SELECT CAST(f['s'] AS `b.1.pkg.Singer`) AS s FROM keyed"); status.Code(err) != codes.InvalidArgument {
		t.Error(err)
	}
}

// Views are there for SQL, with parameters of their own.
func TestSQLViews(t *testing.T) {
	f, ctx := newEngineFixture(t), t.Context()
	f.fill(20, 1)
	inst := adminpb.NewBigtableInstanceAdminClient(f.conn)
	create := func(id, q string) error {
		_, err := inst.CreateLogicalView(ctx, &adminpb.CreateLogicalViewRequest{Parent: testInstance, LogicalViewId: id, LogicalView: &adminpb.LogicalView{Query: q}})
		return err
	}
	if err := create("one", "SELECT 1 AS value"); err != nil {
		t.Fatal(err)
	}
	if err := create("v", "SELECT _key AS k, cf['n'] AS n FROM t WHERE _key < 'row000005'"); err != nil {
		t.Fatal(err)
	}
	if err := create("w", "SELECT n FROM v WHERE n > b'000001'"); err != nil {
		t.Fatal(err)
	}
	if err := create("bad", "SELECT x FROM v"); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "Unrecognized name: x") {
		t.Error(err)
	}
	if err := create("write", "DELETE FROM t WHERE TRUE"); status.Code(err) != codes.InvalidArgument {
		t.Error(err)
	}
	// What the client says of its user reaches the view, by its name as it is written.
	if err := create("mine", "SELECT _key AS k FROM t WHERE cf['n'] = CAST(VIEW_PARAMETERS()['Mine'] AS BYTES)"); err != nil {
		t.Fatal(err)
	}
	mine := &bigtablepb.ExecuteQueryRequest{PreparedQuery: f.mustPrepare("SELECT k FROM mine"),
		ViewParameters: map[string]*bigtablepb.Value{"Mine": {Kind: &bigtablepb.Value_StringValue{StringValue: "000007"}}, "mine": {}}}
	if r, err := f.execute(ctx, mine, nil); err != nil || len(r.values) != 1 || string(r.values[0].GetBytesValue()) != "row000007" {
		t.Error(r, err)
	}
	mine.ViewParameters["Mine"] = &bigtablepb.Value{Kind: &bigtablepb.Value_IntValue{IntValue: 7}}
	if _, err := f.execute(ctx, mine, nil); status.Code(err) != codes.InvalidArgument {
		t.Error(err)
	}
	q := f.mustPrepare("SELECT COUNT(*), MIN(n) FROM w")
	r, err := f.execute(ctx, &bigtablepb.ExecuteQueryRequest{PreparedQuery: q}, nil)
	if err != nil || r.values[0].GetIntValue() != 3 || string(r.values[1].GetBytesValue()) != "000002" {
		t.Fatal(r, err)
	}
	if _, err := inst.UpdateLogicalView(ctx, &adminpb.UpdateLogicalViewRequest{LogicalView: &adminpb.LogicalView{Name: testInstance + "/logicalViews/v", Query: "SELECT 1 AS value FROM w"}}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a cycle: %v", err)
	}
	if _, err := inst.UpdateLogicalView(ctx, &adminpb.UpdateLogicalViewRequest{LogicalView: &adminpb.LogicalView{Name: testInstance + "/logicalViews/v", Query: "SELECT cf['n'] AS n FROM t"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.execute(ctx, &bigtablepb.ExecuteQueryRequest{PreparedQuery: q}, nil); !expiredBy(err) {
		t.Errorf("after a change: %v", err)
	}
}
