package admin

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/trestledb/trestle/conformance/model"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
)

func maxAge(d time.Duration) *adminpb.GcRule {
	return &adminpb.GcRule{Rule: &adminpb.GcRule_MaxAge{MaxAge: durationpb.New(d)}}
}

func maxVersions(n int32) *adminpb.GcRule {
	return &adminpb.GcRule{Rule: &adminpb.GcRule_MaxNumVersions{MaxNumVersions: n}}
}

func union(rs ...*adminpb.GcRule) *adminpb.GcRule {
	return &adminpb.GcRule{Rule: &adminpb.GcRule_Union_{Union: &adminpb.GcRule_Union{Rules: rs}}}
}

func intersection(rs ...*adminpb.GcRule) *adminpb.GcRule {
	return &adminpb.GcRule{Rule: &adminpb.GcRule_Intersection_{Intersection: &adminpb.GcRule_Intersection{Rules: rs}}}
}

func int64Type() *adminpb.Type {
	return &adminpb.Type{Kind: &adminpb.Type_Int64Type{Int64Type: &adminpb.Type_Int64{Encoding: &adminpb.Type_Int64_Encoding{
		Encoding: &adminpb.Type_Int64_Encoding_BigEndianBytes_{BigEndianBytes: new(adminpb.Type_Int64_Encoding_BigEndianBytes)},
	}}}}
}

func stringType() *adminpb.Type {
	return &adminpb.Type{Kind: &adminpb.Type_StringType{StringType: &adminpb.Type_String{Encoding: &adminpb.Type_String_Encoding{
		Encoding: &adminpb.Type_String_Encoding_Utf8Bytes_{Utf8Bytes: new(adminpb.Type_String_Encoding_Utf8Bytes)},
	}}}}
}

func bytesType() *adminpb.Type {
	return &adminpb.Type{Kind: &adminpb.Type_BytesType{BytesType: &adminpb.Type_Bytes{Encoding: &adminpb.Type_Bytes_Encoding{
		Encoding: &adminpb.Type_Bytes_Encoding_Raw_{Raw: new(adminpb.Type_Bytes_Encoding_Raw)},
	}}}}
}

func aggregateType(a *adminpb.Type_Aggregate) *adminpb.Type {
	return &adminpb.Type{Kind: &adminpb.Type_AggregateType{AggregateType: a}}
}

func sumType() *adminpb.Type {
	return aggregateType(&adminpb.Type_Aggregate{InputType: int64Type(), Aggregator: &adminpb.Type_Aggregate_Sum_{Sum: new(adminpb.Type_Aggregate_Sum)}})
}

func keySchema(encoding *adminpb.Type_Struct_Encoding, fields ...*adminpb.Type_Struct_Field) *adminpb.Type_Struct {
	return &adminpb.Type_Struct{Fields: fields, Encoding: encoding}
}

func keyField(name string, t *adminpb.Type) *adminpb.Type_Struct_Field {
	return &adminpb.Type_Struct_Field{FieldName: name, Type: t}
}

func orderedCode() *adminpb.Type_Struct_Encoding {
	return &adminpb.Type_Struct_Encoding{Encoding: &adminpb.Type_Struct_Encoding_OrderedCodeBytes_{OrderedCodeBytes: new(adminpb.Type_Struct_Encoding_OrderedCodeBytes)}}
}

func delimited(d string) *adminpb.Type_Struct_Encoding {
	return &adminpb.Type_Struct_Encoding{Encoding: &adminpb.Type_Struct_Encoding_DelimitedBytes_{DelimitedBytes: &adminpb.Type_Struct_Encoding_DelimitedBytes{Delimiter: []byte(d)}}}
}

func singleton() *adminpb.Type_Struct_Encoding {
	return &adminpb.Type_Struct_Encoding{Encoding: &adminpb.Type_Struct_Encoding_Singleton_{Singleton: new(adminpb.Type_Struct_Encoding_Singleton)}}
}

func tiered(d time.Duration) *adminpb.TieredStorageConfig {
	return &adminpb.TieredStorageConfig{InfrequentAccess: &adminpb.TieredStorageRule{
		Rule: &adminpb.TieredStorageRule_IncludeIfOlderThan{IncludeIfOlderThan: durationpb.New(d)},
	}}
}

func backups(p *adminpb.Table_AutomatedBackupPolicy) *adminpb.Table_AutomatedBackupPolicy_ {
	return &adminpb.Table_AutomatedBackupPolicy_{AutomatedBackupPolicy: p}
}

func TestCreateTable(t *testing.T) {
	s := strict(t)
	hll := aggregateType(&adminpb.Type_Aggregate{InputType: bytesType(), Aggregator: &adminpb.Type_Aggregate_HllppUniqueCount{HllppUniqueCount: new(adminpb.Type_Aggregate_HyperLogLogPlusPlusUniqueCount)}})
	rule := union(maxVersions(3), intersection(maxAge(time.Hour+1500*time.Nanosecond), maxVersions(1)))
	key := keySchema(delimited("#"), keyField("id", stringType()), keyField("n", int64Type()))
	got := must(s.CreateTable(t.Context(), &adminpb.CreateTableRequest{
		Parent: testInstance, TableId: "made",
		Table: &adminpb.Table{
			ColumnFamilies: map[string]*adminpb.ColumnFamily{
				"plain": {}, "ruled": {GcRule: rule}, "text": {ValueType: stringType()}, "sum": {ValueType: sumType()}, "hll": {ValueType: hll},
			},
			Granularity: adminpb.Table_MICROS, DeletionProtection: true,
			ChangeStreamConfig:    &adminpb.ChangeStreamConfig{RetentionPeriod: durationpb.New(day + 1500*time.Nanosecond)},
			AutomatedBackupConfig: backups(&adminpb.Table_AutomatedBackupPolicy{RetentionPeriod: durationpb.New(3 * day), Frequency: durationpb.New(0)}),
			TieredStorageConfig:   tiered(30 * day), RowKeySchema: key,
		},
		InitialSplits: []*adminpb.CreateTableRequest_Split{{Key: []byte("m")}, {Key: []byte("c")}, {Key: []byte("m")}},
	}))(t)

	completeSum, completeHLL := sumType(), proto.Clone(hll).(*adminpb.Type)
	completeSum.GetAggregateType().StateType = int64Type()
	completeHLL.GetAggregateType().StateType = bytesType()
	policy := &adminpb.Table_AutomatedBackupPolicy{RetentionPeriod: durationpb.New(3 * day), Frequency: durationpb.New(day)}
	want := &adminpb.Table{
		Name: testInstance + "/tables/made",
		ColumnFamilies: map[string]*adminpb.ColumnFamily{
			"plain": {GcRule: &adminpb.GcRule{}},
			"ruled": {GcRule: union(maxVersions(3), intersection(maxAge(time.Hour+time.Microsecond), maxVersions(1)))},
			"text":  {GcRule: &adminpb.GcRule{}, ValueType: stringType()},
			"sum":   {GcRule: &adminpb.GcRule{}, ValueType: completeSum},
			"hll":   {GcRule: &adminpb.GcRule{}, ValueType: completeHLL},
		},
		Granularity: adminpb.Table_MICROS, DeletionProtection: true,
		ChangeStreamConfig:    &adminpb.ChangeStreamConfig{RetentionPeriod: durationpb.New(day + time.Microsecond)},
		AutomatedBackupConfig: backups(policy), EffectiveAutomatedBackupPolicy: policy,
		TieredStorageConfig: tiered(30 * day), RowKeySchema: key,
	}
	if !proto.Equal(got, want) {
		t.Errorf("created\n%v\nwant\n%v", got, want)
	}
	read := must(s.GetTable(t.Context(), &adminpb.GetTableRequest{Name: got.Name}))(t)
	if !proto.Equal(read, want) {
		t.Errorf("read\n%v\nwant\n%v", read, want)
	}

	stored := must(s.b.Table(t.Context(), got.Name))(t)
	if stored.Granularity != 1 || !stored.DeletionProtection || stored.Families["sum"].Aggregate != schema.Sum || stored.Families["hll"].Aggregate != schema.HLL ||
		stored.Families["plain"].GC != nil || stored.Families["ruled"].GC.Union[1].Intersection[0].MaxAge != time.Hour+time.Microsecond {
		t.Errorf("stored %+v", stored)
	}
	var splits []string
	if err := s.b.SampleRowKeys(t.Context(), got.Name, row.Range{}, func(x scan.Sample) error {
		splits = append(splits, string(x.Key))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(splits, ","); got != "c,m," {
		t.Errorf("splits %q", got)
	}
	if x := must(Settings(stored))(t); !proto.Equal(x.RowKeySchema, key) || x.GetChangeStreamConfig().GetRetentionPeriod().AsDuration() != day+time.Microsecond {
		t.Errorf("settings %v", x)
	}
}

func TestCreateTableDefaults(t *testing.T) {
	s := strict(t)
	got := must(s.CreateTable(t.Context(), &adminpb.CreateTableRequest{Parent: testInstance, TableId: "_x", Table: &adminpb.Table{}}))(t)
	if got.Granularity != adminpb.Table_MILLIS || got.DeletionProtection || got.AutomatedBackupConfig != nil || got.ChangeStreamConfig != nil {
		t.Errorf("%v", got)
	}
}

func TestCreateTableRefusals(t *testing.T) {
	s := strict(t)
	create := func(change func(*adminpb.CreateTableRequest)) func(context.Context, *server) error {
		return func(ctx context.Context, s *server) error {
			req := &adminpb.CreateTableRequest{Parent: testInstance, TableId: "new", Table: &adminpb.Table{}}
			change(req)
			return drop(s.CreateTable(ctx, req))
		}
	}
	table := func(change func(*adminpb.Table)) func(context.Context, *server) error {
		return create(func(r *adminpb.CreateTableRequest) { change(r.Table) })
	}
	family := func(name string, f *adminpb.ColumnFamily) func(context.Context, *server) error {
		return table(func(t *adminpb.Table) { t.ColumnFamilies = map[string]*adminpb.ColumnFamily{name: f} })
	}
	key := func(s *adminpb.Type_Struct) func(context.Context, *server) error {
		return table(func(t *adminpb.Table) {
			t.ColumnFamilies = map[string]*adminpb.ColumnFamily{"f": {}}
			t.RowKeySchema = s
		})
	}
	policy := func(p *adminpb.Table_AutomatedBackupPolicy) func(context.Context, *server) error {
		return table(func(t *adminpb.Table) { t.AutomatedBackupConfig = backups(p) })
	}
	stream := func(d *durationpb.Duration) func(context.Context, *server) error {
		return table(func(t *adminpb.Table) { t.ChangeStreamConfig = &adminpb.ChangeStreamConfig{RetentionPeriod: d} })
	}
	long := make([]*adminpb.GcRule, 200)
	for i := range long {
		long[i] = maxVersions(1)
	}
	deep := stringType()
	for range 2 * maxTypeDepth {
		deep = &adminpb.Type{Kind: &adminpb.Type_StructType{StructType: &adminpb.Type_Struct{Fields: []*adminpb.Type_Struct_Field{{Type: deep}}}}}
	}
	const invalid = codes.InvalidArgument
	policyField := "table.automated_backup_policy."
	checkRefusals(t, s, []refusal{
		{"too many families", table(func(t *adminpb.Table) {
			t.ColumnFamilies = map[string]*adminpb.ColumnFamily{}
			for i := range schema.MaxFamilies + 1 {
				t.ColumnFamilies[fmt.Sprint("f", i)] = nil
			}
		}), codes.InvalidArgument, "At most 1000 column families are allowed, but found 1001", "table.column_families"},
		{"bad parent", create(func(r *adminpb.CreateTableRequest) { r.Parent = "projects/p/instances/abc_123" }), invalid,
			"When parsing 'projects/p/instances/abc_123' : Instance name expected in the form 'projects/<project_id>/instances/<instance_id>'.", "parent"},
		{"no parent", create(func(r *adminpb.CreateTableRequest) { r.Parent = "" }), invalid, "When parsing ''", "parent"},
		{"no instance", create(func(r *adminpb.CreateTableRequest) { r.Parent = testProject + "/instances/nobody" }), codes.NotFound, "Instance not found: projects/p/instances/nobody", ""},
		{"no id", create(func(r *adminpb.CreateTableRequest) { r.TableId = "" }), invalid, "Length should be between [1,50], but found 0 ''", "table_id"},
		{"long id", create(func(r *adminpb.CreateTableRequest) { r.TableId = strings.Repeat("x", 51) }), invalid, "Length should be between [1,50], but found 51", "table_id"},
		{"bad id", create(func(r *adminpb.CreateTableRequest) { r.TableId = "-x" }), invalid, "Should match [_a-zA-Z0-9][-_.a-zA-Z0-9]* but found '-x'", "table_id"},
		{"slash in id", create(func(r *adminpb.CreateTableRequest) { r.TableId = "a/b" }), invalid, "Should match", "table_id"},
		{"exists", create(func(r *adminpb.CreateTableRequest) { r.TableId = "t" }), codes.AlreadyExists, "Table already exists: " + testTable, ""},
		{"empty split", create(func(r *adminpb.CreateTableRequest) {
			r.InitialSplits = []*adminpb.CreateTableRequest_Split{{Key: []byte("a")}, {}}
		}), invalid, "Error in field 'initial_splits' : Error in element #1 : Row keys must be non-empty", "initial_splits[1].key"},
		{"long split", create(func(r *adminpb.CreateTableRequest) {
			r.InitialSplits = []*adminpb.CreateTableRequest_Split{{Key: make([]byte, 4097)}}
		}), invalid, "at most 4096 bytes, but found 4097", "initial_splits[0].key"},
		{"many splits", create(func(r *adminpb.CreateTableRequest) {
			r.InitialSplits = make([]*adminpb.CreateTableRequest_Split, schema.MaxInitialSplit+1)
			for i := range r.InitialSplits {
				r.InitialSplits[i] = &adminpb.CreateTableRequest_Split{Key: []byte("k")}
			}
		}), invalid, "At most 10000 keys", "initial_splits"},
		{"granularity", table(func(t *adminpb.Table) { t.Granularity = 9 }), invalid, "Unknown value 9", "table.granularity"},
		{"family name", family("a:b", nil), invalid, "Should match [-_.a-zA-Z0-9]+ but found 'a:b'", "table.column_families"},
		{"family length", family(strings.Repeat("f", 65), nil), invalid, "[1,64], but found 65", "table.column_families"},
		{"empty family", family("", nil), invalid, "Should match", "table.column_families"},
		{"gc size", family("f", &adminpb.ColumnFamily{GcRule: union(long...)}), invalid, "Must serialize to at most 500 bytes, but found", "table.column_families.gc_rule"},
		{"gc versions", family("f", &adminpb.ColumnFamily{GcRule: maxVersions(0)}), invalid, "Must be at least 1, but found 0", "table.column_families.gc_rule.max_num_versions"},
		{"gc age", family("f", &adminpb.ColumnFamily{GcRule: maxAge(999 * time.Microsecond)}), invalid, "Must be at least 1 millisecond, but found 999µs", "table.column_families.gc_rule.max_age"},
		{"gc age invalid", family("f", &adminpb.ColumnFamily{GcRule: &adminpb.GcRule{Rule: &adminpb.GcRule_MaxAge{MaxAge: &durationpb.Duration{Seconds: 1, Nanos: -1}}}}), invalid, "max_age", "table.column_families.gc_rule.max_age"},
		{"gc nested", family("f", &adminpb.ColumnFamily{GcRule: union(maxVersions(1), maxVersions(-1))}), invalid,
			"Error in field 'union' : Error in field 'rules' : Error in element #1", "table.column_families.gc_rule.union.rules[1].max_num_versions"},
		{"gc empty union", family("f", &adminpb.ColumnFamily{GcRule: union()}), invalid, "Needs at least one rule", "table.column_families.gc_rule.union"},
		{"gc empty part", family("f", &adminpb.ColumnFamily{GcRule: intersection(&adminpb.GcRule{})}), invalid, "must not be empty", "table.column_families.gc_rule.intersection.rules[0]"},
		{"aggregate of text", family("f", &adminpb.ColumnFamily{ValueType: aggregateType(&adminpb.Type_Aggregate{InputType: stringType(), Aggregator: &adminpb.Type_Aggregate_Max_{Max: new(adminpb.Type_Aggregate_Max)}})}), invalid,
			"Must be int64 for this aggregator", "table.column_families.value_type.aggregate_type.input_type"},
		{"aggregate without input", family("f", &adminpb.ColumnFamily{ValueType: aggregateType(&adminpb.Type_Aggregate{Aggregator: &adminpb.Type_Aggregate_Min_{Min: new(adminpb.Type_Aggregate_Min)}})}), invalid,
			"Error in field 'input_type' : Must be specified", "table.column_families.value_type.aggregate_type.input_type"},
		{"aggregate without aggregator", family("f", &adminpb.ColumnFamily{ValueType: aggregateType(&adminpb.Type_Aggregate{InputType: int64Type()})}), invalid,
			"Error in field 'aggregator' : Must be specified", "table.column_families.value_type.aggregate_type.aggregator"},
		{"type too deep", family("f", &adminpb.ColumnFamily{ValueType: deep}), invalid, "nested too deeply", "table.column_families.value_type" + strings.Repeat(".struct_type.fields[0].type", maxTypeDepth+1)},
		{"stream short", stream(durationpb.New(day - 1)), invalid, "Must be between 24h0m0s and 168h0m0s", "table.change_stream_config.retention_period"},
		{"stream long", stream(durationpb.New(7*day + time.Second)), invalid, "Must be between", "table.change_stream_config.retention_period"},
		{"stream none", stream(nil), invalid, "Must be specified", "table.change_stream_config.retention_period"},
		{"backups without retention", policy(&adminpb.Table_AutomatedBackupPolicy{}), invalid, "'retention_period' : Must be specified", policyField + "retention_period"},
		{"backups retention", policy(&adminpb.Table_AutomatedBackupPolicy{RetentionPeriod: durationpb.New(91 * day)}), invalid, "Must be between 72h0m0s and 2160h0m0s", policyField + "retention_period"},
		{"backups frequency", policy(&adminpb.Table_AutomatedBackupPolicy{RetentionPeriod: durationpb.New(3 * day), Frequency: durationpb.New(time.Hour)}), invalid, "Must be 24h0m0s, but found 1h0m0s", policyField + "frequency"},
		{"backups hot", policy(&adminpb.Table_AutomatedBackupPolicy{RetentionPeriod: durationpb.New(3 * day), KeepHotDuration: durationpb.New(time.Hour)}), invalid, "Must be between 24h0m0s and 240h0m0s", policyField + "keep_hot_duration"},
		{"backups hotter than kept", policy(&adminpb.Table_AutomatedBackupPolicy{RetentionPeriod: durationpb.New(3 * day), KeepHotDuration: durationpb.New(4 * day)}), invalid, "Must not exceed retention_period 72h0m0s", policyField + "keep_hot_duration"},
		{"backups locations", policy(&adminpb.Table_AutomatedBackupPolicy{RetentionPeriod: durationpb.New(3 * day), Locations: []string{"projects/p/locations/z1"}}), invalid, "ENTERPRISE_PLUS", policyField + "locations"},
		{"tiered short", table(func(t *adminpb.Table) { t.TieredStorageConfig = tiered(29 * day) }), invalid, "Must be at least 720h0m0s", "table.tiered_storage_config.infrequent_access.include_if_older_than"},
		{"tiered none", table(func(t *adminpb.Table) { t.TieredStorageConfig = new(adminpb.TieredStorageConfig) }), invalid, "'infrequent_access' : Must be specified", "table.tiered_storage_config.infrequent_access"},
		{"key without fields", key(keySchema(orderedCode())), invalid, "Needs at least one field", "table.row_key_schema.fields"},
		{"key field unnamed", key(keySchema(orderedCode(), keyField("", stringType()))), invalid, "Must not be empty", "table.row_key_schema.fields[0].field_name"},
		{"key field reserved", key(keySchema(orderedCode(), keyField("a", stringType()), keyField("_key", stringType()))), invalid, "'_key' is reserved", "table.row_key_schema.fields[1].field_name"},
		{"key field twice", key(keySchema(orderedCode(), keyField("a", stringType()), keyField("a", stringType()))), invalid, "Duplicate name 'a'", "table.row_key_schema.fields[1].field_name"},
		{"key field is family", key(keySchema(orderedCode(), keyField("f", stringType()))), invalid, "'f' is the name of a column family", "table.row_key_schema.fields[0].field_name"},
		{"key field type", key(keySchema(orderedCode(), keyField("a", sumType()))), invalid, "Must be bytes, string, int64 or timestamp", "table.row_key_schema.fields[0].type"},
		{"key field untyped", key(keySchema(orderedCode(), keyField("a", nil))), invalid, "Must be bytes", "table.row_key_schema.fields[0].type"},
		{"key field not encoded", key(keySchema(orderedCode(), keyField("a", &adminpb.Type{Kind: &adminpb.Type_Int64Type{Int64Type: new(adminpb.Type_Int64)}}))), invalid, "Must have an encoding", "table.row_key_schema.fields[0].type"},
		{"key not encoded", key(keySchema(nil, keyField("a", stringType()))), invalid, "'encoding' : Must be specified", "table.row_key_schema.encoding"},
		{"key singleton of two", key(keySchema(singleton(), keyField("a", stringType()), keyField("b", stringType()))), invalid, "exactly one field, but found 2", "table.row_key_schema.encoding.singleton"},
		{"key without delimiter", key(keySchema(delimited(""), keyField("a", stringType()))), invalid, "Length should be between [1,50], but found 0", "table.row_key_schema.encoding.delimited_bytes.delimiter"},
		{"key long delimiter", key(keySchema(delimited(strings.Repeat("#", 51)), keyField("a", stringType()))), invalid, "[1,50], but found 51", "table.row_key_schema.encoding.delimited_bytes.delimiter"},
	})
	if n := len(must(s.ListTables(t.Context(), &adminpb.ListTablesRequest{Parent: testInstance}))(t).Tables); n != 1 {
		t.Errorf("%d tables after refusals", n)
	}
}

func TestSSDOnly(t *testing.T) {
	s := strict(t)
	c := cluster(3)
	c.DefaultStorageType = adminpb.StorageType_HDD
	must(s.inst.CreateCluster(t.Context(), &adminpb.CreateClusterRequest{Parent: testInstance, ClusterId: "cluster-hdd", Cluster: c}))(t)
	create := func(tbl *adminpb.Table) func(context.Context, *server) error {
		return func(ctx context.Context, s *server) error {
			return drop(s.CreateTable(ctx, &adminpb.CreateTableRequest{Parent: testInstance, TableId: "x", Table: tbl}))
		}
	}
	checkRefusals(t, s, []refusal{
		{"tiered", create(&adminpb.Table{TieredStorageConfig: tiered(30 * day)}), codes.InvalidArgument, "Only SSD", "table.tiered_storage_config"},
		{"hot", create(&adminpb.Table{AutomatedBackupConfig: backups(&adminpb.Table_AutomatedBackupPolicy{RetentionPeriod: durationpb.New(3 * day), KeepHotDuration: durationpb.New(day)})}),
			codes.InvalidArgument, "Only SSD", "table.automated_backup_policy.keep_hot_duration"},
	})
}

func TestListTables(t *testing.T) {
	s := strict(t)
	want := []string{testTable}
	for i := range 6 {
		id := fmt.Sprintf("u%d", i)
		must(s.CreateTable(t.Context(), &adminpb.CreateTableRequest{Parent: testInstance, TableId: id}))(t)
		want = append(want, testInstance+"/tables/"+id)
	}
	list := func(req *adminpb.ListTablesRequest) *adminpb.ListTablesResponse {
		t.Helper()
		req.Parent = testInstance
		return must(s.ListTables(t.Context(), req))(t)
	}
	all := list(&adminpb.ListTablesRequest{})
	var got []string
	for _, x := range all.Tables {
		got = append(got, x.Name)
		if x.ColumnFamilies != nil || x.ClusterStates != nil || x.Granularity != 0 {
			t.Errorf("NAME_ONLY shows %v", x)
		}
	}
	if strings.Join(got, " ") != strings.Join(want, " ") || all.NextPageToken != "" {
		t.Errorf("got %v, token %q", got, all.NextPageToken)
	}

	got = nil
	req, pages := &adminpb.ListTablesRequest{PageSize: 3}, 0
	for {
		resp := list(req)
		pages++
		for _, x := range resp.Tables {
			got = append(got, x.Name)
		}
		if resp.NextPageToken == "" {
			break
		}
		req = &adminpb.ListTablesRequest{PageToken: resp.NextPageToken}
		if pages == 1 {
			// A table that comes or goes between pages disturbs nothing.
			must(s.DeleteTable(t.Context(), &adminpb.DeleteTableRequest{Name: got[len(got)-1]}))(t)
		}
	}
	if strings.Join(got, " ") != strings.Join(want, " ") || pages != 3 {
		t.Errorf("%d pages: %v", pages, got)
	}

	x := list(&adminpb.ListTablesRequest{View: adminpb.Table_REPLICATION_VIEW, PageSize: 1}).Tables[0]
	if x.ClusterStates["cluster-one"].GetReplicationState() != adminpb.Table_ClusterState_READY || len(x.ClusterStates) != 2 || x.ColumnFamilies != nil {
		t.Errorf("REPLICATION_VIEW shows %v", x)
	}

	token := list(&adminpb.ListTablesRequest{PageSize: 2}).NextPageToken
	call := func(req *adminpb.ListTablesRequest) func(context.Context, *server) error {
		return func(ctx context.Context, s *server) error {
			if req.Parent == "" {
				req.Parent = testInstance
			}
			return drop(s.ListTables(ctx, req))
		}
	}
	s.createInstance(t, "inst-two", "cluster-one")
	checkRefusals(t, s, []refusal{
		{"view", call(&adminpb.ListTablesRequest{View: adminpb.Table_FULL}), codes.InvalidArgument, "Must be NAME_ONLY or REPLICATION_VIEW, but found FULL", "view"},
		{"negative size", call(&adminpb.ListTablesRequest{PageSize: -1}), codes.InvalidArgument, "Must not be negative, but found -1", "page_size"},
		{"garbage token", call(&adminpb.ListTablesRequest{PageToken: "garbage"}), codes.InvalidArgument, "Not a token of this listing", "page_token"},
		{"forged token", call(&adminpb.ListTablesRequest{PageToken: forged(token)}), codes.InvalidArgument, "Not a token", "page_token"},
		{"token of another parent", call(&adminpb.ListTablesRequest{Parent: testProject + "/instances/inst-two", PageToken: token}), codes.InvalidArgument, "Not a token", "page_token"},
		{"other size", call(&adminpb.ListTablesRequest{PageToken: token, PageSize: 5}), codes.InvalidArgument, "Must be 2 as in the first request, but found 5", "page_size"},
		{"no instance", call(&adminpb.ListTablesRequest{Parent: testProject + "/instances/nobody"}), codes.NotFound, "Instance not found", ""},
		{"bad parent", call(&adminpb.ListTablesRequest{Parent: "x"}), codes.InvalidArgument, "When parsing 'x'", "parent"},
	})
}

func TestGetTableViews(t *testing.T) {
	s := strict(t)
	schemaOf := func(x *adminpb.Table) bool {
		return len(x.ColumnFamilies) == 3 && x.Granularity == adminpb.Table_MILLIS
	}
	for view, ok := range map[adminpb.Table_View]func(*adminpb.Table) bool{
		adminpb.Table_VIEW_UNSPECIFIED: func(x *adminpb.Table) bool { return schemaOf(x) && x.ClusterStates == nil },
		adminpb.Table_SCHEMA_VIEW:      func(x *adminpb.Table) bool { return schemaOf(x) && x.ClusterStates == nil },
		adminpb.Table_NAME_ONLY:        func(x *adminpb.Table) bool { return proto.Equal(x, &adminpb.Table{Name: testTable}) },
		adminpb.Table_REPLICATION_VIEW: func(x *adminpb.Table) bool {
			st := x.ClusterStates["cluster-two"]
			return x.ColumnFamilies == nil && len(x.ClusterStates) == 2 && st.GetReplicationState() == adminpb.Table_ClusterState_READY && st.EncryptionInfo == nil
		},
		adminpb.Table_ENCRYPTION_VIEW: func(x *adminpb.Table) bool {
			st := x.ClusterStates["cluster-one"]
			return x.ColumnFamilies == nil && len(x.ClusterStates) == 2 && st.GetReplicationState() == 0 &&
				st.EncryptionInfo[0].EncryptionType == adminpb.EncryptionInfo_GOOGLE_DEFAULT_ENCRYPTION
		},
		adminpb.Table_FULL: func(x *adminpb.Table) bool {
			st := x.ClusterStates["cluster-one"]
			return schemaOf(x) && len(x.ClusterStates) == 2 && st.GetReplicationState() == adminpb.Table_ClusterState_READY && len(st.EncryptionInfo) == 1
		},
	} {
		x := must(s.GetTable(t.Context(), &adminpb.GetTableRequest{Name: testTable, View: view}))(t)
		if x.Name != testTable || !ok(x) {
			t.Errorf("%v shows %v", view, x)
		}
	}
	checkRefusals(t, s, []refusal{
		{"view", func(ctx context.Context, s *server) error {
			return drop(s.GetTable(ctx, &adminpb.GetTableRequest{Name: testTable, View: 77}))
		}, codes.InvalidArgument, "Unknown value 77", "view"},
		{"missing", func(ctx context.Context, s *server) error {
			return drop(s.GetTable(ctx, &adminpb.GetTableRequest{Name: testTable + "x"}))
		}, codes.NotFound, "Table not found: " + testTable + "x", ""},
		{"malformed", func(ctx context.Context, s *server) error {
			return drop(s.GetTable(ctx, &adminpb.GetTableRequest{Name: testInstance + "/table/t"}))
		}, codes.InvalidArgument, "Table name expected in the form 'projects/<project_id>/instances/<instance_id>/tables/<table_id>'.", "name"},
	})
}

func TestUpdateTable(t *testing.T) {
	s := strict(t)
	update := func(tbl *adminpb.Table, paths ...string) *adminpb.Table {
		t.Helper()
		tbl.Name = testTable
		op := must(s.UpdateTable(t.Context(), &adminpb.UpdateTableRequest{Table: tbl, UpdateMask: mask(paths...)}))(t)
		meta := new(adminpb.UpdateTableMetadata)
		got := response(t, op, meta, new(adminpb.Table))
		if meta.Name != testTable || meta.StartTime == nil || meta.EndTime == nil {
			t.Errorf("metadata %v", meta)
		}
		read := must(s.GetTable(t.Context(), &adminpb.GetTableRequest{Name: testTable}))(t)
		if !proto.Equal(got, read) {
			t.Errorf("the operation says\n%v\nbut GetTable\n%v", got, read)
		}
		return read
	}
	stream := func(d time.Duration) *adminpb.Table {
		return &adminpb.Table{ChangeStreamConfig: &adminpb.ChangeStreamConfig{RetentionPeriod: durationpb.New(d)}}
	}
	policy := func(p *adminpb.Table_AutomatedBackupPolicy) *adminpb.Table {
		return &adminpb.Table{AutomatedBackupConfig: backups(p)}
	}

	if !update(&adminpb.Table{DeletionProtection: true}, "deletion_protection").DeletionProtection {
		t.Error("not protected")
	}
	if got := update(&adminpb.Table{}, "deletion_protection"); got.DeletionProtection {
		t.Error("still protected")
	}
	if got := update(stream(70*time.Hour), "change_stream_config.retention_period"); got.ChangeStreamConfig.RetentionPeriod.AsDuration() != 70*time.Hour {
		t.Error(got)
	}
	if got := update(stream(2*day), "change_stream_config"); got.ChangeStreamConfig.RetentionPeriod.AsDuration() != 2*day {
		t.Error(got)
	}
	if got := update(&adminpb.Table{}, "change_stream_config"); got.ChangeStreamConfig != nil {
		t.Error(got)
	}

	got := update(policy(&adminpb.Table_AutomatedBackupPolicy{RetentionPeriod: durationpb.New(4 * day), Frequency: durationpb.New(0)}), "automated_backup_policy.retention_period")
	if p := got.GetAutomatedBackupPolicy(); p.RetentionPeriod.AsDuration() != 4*day || p.Frequency.AsDuration() != day || !proto.Equal(p, got.EffectiveAutomatedBackupPolicy) {
		t.Error(got)
	}
	got = update(policy(&adminpb.Table_AutomatedBackupPolicy{RetentionPeriod: durationpb.New(0), Frequency: durationpb.New(day)}), "automated_backup_policy.frequency")
	if p := got.GetAutomatedBackupPolicy(); p.RetentionPeriod.AsDuration() != 4*day || p.Frequency.AsDuration() != day {
		t.Error(got)
	}
	got = update(policy(&adminpb.Table_AutomatedBackupPolicy{KeepHotDuration: durationpb.New(2 * day)}), "automated_backup_policy.keep_hot_duration")
	if p := got.GetAutomatedBackupPolicy(); p.RetentionPeriod.AsDuration() != 4*day || p.KeepHotDuration.AsDuration() != 2*day {
		t.Error(got)
	}
	got = update(policy(&adminpb.Table_AutomatedBackupPolicy{Disabled: true}), "automated_backup_policy.disabled")
	if !proto.Equal(got.GetAutomatedBackupPolicy(), &adminpb.Table_AutomatedBackupPolicy{Disabled: true}) {
		t.Error(got)
	}
	if got := update(&adminpb.Table{}, "automated_backup_policy"); got.AutomatedBackupConfig != nil || got.EffectiveAutomatedBackupPolicy != nil {
		t.Error(got)
	}

	if got := update(&adminpb.Table{TieredStorageConfig: tiered(45 * day)}, "tiered_storage_config"); !proto.Equal(got.TieredStorageConfig, tiered(45*day)) {
		t.Error(got)
	}
	if got := update(&adminpb.Table{}, "tiered_storage_config"); got.TieredStorageConfig != nil {
		t.Error(got)
	}

	key := keySchema(singleton(), keyField("id", int64Type()))
	if got := update(&adminpb.Table{RowKeySchema: key}, "row_key_schema"); !proto.Equal(got.RowKeySchema, key) {
		t.Error(got)
	}
	update(&adminpb.Table{RowKeySchema: key}, "row_key_schema") // no change
	call := func(tbl *adminpb.Table, ignore bool, paths ...string) func(context.Context, *server) error {
		return func(ctx context.Context, s *server) error {
			if tbl != nil && tbl.Name == "" {
				tbl.Name = testTable
			}
			return drop(s.UpdateTable(ctx, &adminpb.UpdateTableRequest{Table: tbl, UpdateMask: mask(paths...), IgnoreWarnings: ignore}))
		}
	}
	before := must(s.GetTable(t.Context(), &adminpb.GetTableRequest{Name: testTable}))(t)
	checkRefusals(t, s, []refusal{
		{"no mask", call(&adminpb.Table{}, false), codes.InvalidArgument, "A non-empty 'update_mask' must be specified", "update_mask"},
		{"families", call(&adminpb.Table{}, false, "column_families"), codes.Unimplemented, "ModifyColumnFamilies", ""},
		{"families below", call(&adminpb.Table{}, false, "deletion_protection", "column_families.f"), codes.Unimplemented, "ModifyColumnFamilies", ""},
		{"wildcard", call(&adminpb.Table{}, false, "*"), codes.InvalidArgument, "Unknown field '*'", "update_mask"},
		{"unknown", call(&adminpb.Table{}, false, "colour"), codes.InvalidArgument, "Unknown field 'colour'", "update_mask"},
		{"unknown below", call(&adminpb.Table{}, false, "change_stream_config.colour"), codes.InvalidArgument, "Unknown field 'change_stream_config.colour'", "update_mask"},
		{"immutable", call(&adminpb.Table{}, false, "granularity"), codes.InvalidArgument, "Immutable fields 'granularity' cannot be updated", "update_mask"},
		{"no table", call(nil, false, "deletion_protection"), codes.InvalidArgument, "When parsing ''", "table.name"},
		{"missing table", call(&adminpb.Table{Name: testTable + "2"}, false, "deletion_protection"), codes.NotFound, "Table not found: " + testTable + "2", ""},
		{"missing instance", call(&adminpb.Table{Name: testProject + "/instances/nobody/tables/t"}, false, "deletion_protection"), codes.NotFound, "Instance not found", ""},
		{"retention", call(stream(8*day), false, "change_stream_config"), codes.InvalidArgument, "Must be between", "table.change_stream_config.retention_period"},
		{"retention unset", call(&adminpb.Table{ChangeStreamConfig: new(adminpb.ChangeStreamConfig)}, false, "change_stream_config.retention_period", "change_stream_config"), codes.InvalidArgument, "Must be specified", "table.change_stream_config.retention_period"},
		{"frequency alone", call(policy(&adminpb.Table_AutomatedBackupPolicy{Frequency: durationpb.New(day)}), false, "automated_backup_policy.frequency"), codes.InvalidArgument, "'retention_period' : Must be specified", "table.automated_backup_policy.retention_period"},
		{"key replaced", call(&adminpb.Table{RowKeySchema: keySchema(singleton(), keyField("other", int64Type()))}, true, "row_key_schema"), codes.InvalidArgument, "cannot be changed, only removed", "table.row_key_schema"},
		{"key removed", call(&adminpb.Table{}, false, "row_key_schema"), codes.InvalidArgument, "Set 'ignore_warnings'", "table.row_key_schema"},
		{"key is family", call(&adminpb.Table{RowKeySchema: keySchema(singleton(), keyField("f", int64Type()))}, false, "row_key_schema"), codes.InvalidArgument, "is the name of a column family", "table.row_key_schema.fields[0].field_name"},
	})
	if after := must(s.GetTable(t.Context(), &adminpb.GetTableRequest{Name: testTable}))(t); !proto.Equal(before, after) {
		t.Errorf("refusals changed\n%v\nto\n%v", before, after)
	}
	if err := call(&adminpb.Table{}, true, "row_key_schema")(t.Context(), s); err != nil {
		t.Error(err)
	}
	if x := must(s.GetTable(t.Context(), &adminpb.GetTableRequest{Name: testTable}))(t); x.RowKeySchema != nil {
		t.Error(x)
	}
}

// put writes a cell.
func (s *server) put(t testing.TB, table, key, family string) {
	t.Helper()
	e := &row.Entry{Key: []byte(key), Mutations: []row.Mutation{{Op: row.SetCell, Family: family, Qualifier: []byte("q"), Timestamp: 1000, Value: []byte("v")}}}
	if err := s.b.MutateRow(t.Context(), table, e); err != nil {
		t.Fatal(err)
	}
}

// keys is a scan.Writer that keeps row keys.
type keys []string

func (k *keys) StartRow(key []byte)        { *k = append(*k, string(key)) }
func (*keys) Cell(*row.Cell)               {}
func (*keys) EndRow() (full bool, _ error) { return false, nil }
func (*keys) Scanned([]byte)               {}
func (*keys) Flush() error                 { return nil }

// rows returns the keys of a table's rows.
func (s *server) rows(t testing.TB, table string) string {
	t.Helper()
	var k keys
	must(s.b.ReadRows(t.Context(), &scan.Request{Table: table, Ranges: []row.Range{row.All}}, &k))(t)
	return strings.Join(k, " ")
}

func TestDeleteAndUndelete(t *testing.T) {
	s := strict(t)
	ctx := t.Context()
	s.put(t, testTable, "r", "f")
	del := func(ctx context.Context, s *server) error {
		return drop(s.DeleteTable(ctx, &adminpb.DeleteTableRequest{Name: testTable}))
	}
	undelete := func(ctx context.Context, s *server) error {
		return drop(s.UndeleteTable(ctx, &adminpb.UndeleteTableRequest{Name: testTable}))
	}
	protect := func(on bool) {
		must(s.UpdateTable(ctx, &adminpb.UpdateTableRequest{Table: &adminpb.Table{Name: testTable, DeletionProtection: on}, UpdateMask: mask("deletion_protection")}))(t)
	}
	protect(true)
	checkRefusals(t, s, []refusal{
		{"protected", del, codes.FailedPrecondition, "has deletion protection", ""},
		{"not deleted", undelete, codes.NotFound, "Deleted table not found: " + testTable, ""},
	})
	protect(false)
	if err := del(ctx, s); err != nil {
		t.Fatal(err)
	}
	checkRefusals(t, s, []refusal{
		{"deleted", del, codes.NotFound, "Table not found: " + testTable, ""},
		{"get", func(ctx context.Context, s *server) error {
			return drop(s.GetTable(ctx, &adminpb.GetTableRequest{Name: testTable}))
		}, codes.NotFound, "Table not found", ""},
		{"malformed delete", func(ctx context.Context, s *server) error {
			return drop(s.DeleteTable(ctx, &adminpb.DeleteTableRequest{Name: "t"}))
		}, codes.InvalidArgument, "When parsing 't'", "name"},
		{"malformed undelete", func(ctx context.Context, s *server) error {
			return drop(s.UndeleteTable(ctx, &adminpb.UndeleteTableRequest{Name: "t"}))
		}, codes.InvalidArgument, "When parsing 't'", "name"},
		{"undelete elsewhere", func(ctx context.Context, s *server) error {
			return drop(s.UndeleteTable(ctx, &adminpb.UndeleteTableRequest{Name: testProject + "/instances/nobody/tables/t"}))
		}, codes.NotFound, "Instance not found", ""},
	})
	meta := new(adminpb.UndeleteTableMetadata)
	got := response(t, must(s.UndeleteTable(ctx, &adminpb.UndeleteTableRequest{Name: testTable}))(t), meta, new(adminpb.Table))
	if got.Name != testTable || len(got.ColumnFamilies) != 3 || meta.Name != testTable || meta.EndTime == nil {
		t.Errorf("%v %v", got, meta)
	}
	if got := s.rows(t, testTable); got != "r" {
		t.Errorf("rows %q", got)
	}
	if err := del(ctx, s); err != nil {
		t.Fatal(err)
	}
	must(s.CreateTable(ctx, &adminpb.CreateTableRequest{Parent: testInstance, TableId: "t"}))(t)
	checkRefusals(t, s, []refusal{{"name taken", undelete, codes.AlreadyExists, "Table already exists: " + testTable, ""}})
}

type modification = adminpb.ModifyColumnFamiliesRequest_Modification

func create(id string, f *adminpb.ColumnFamily) *modification {
	return &modification{Id: id, Mod: &adminpb.ModifyColumnFamiliesRequest_Modification_Create{Create: f}}
}

func update(id string, f *adminpb.ColumnFamily, paths ...string) *modification {
	m := &modification{Id: id, Mod: &adminpb.ModifyColumnFamiliesRequest_Modification_Update{Update: f}}
	if len(paths) > 0 {
		m.UpdateMask = mask(paths...)
	}
	return m
}

func remove(id string) *modification {
	return &modification{Id: id, Mod: &adminpb.ModifyColumnFamiliesRequest_Modification_Drop{Drop: true}}
}

func modify(ms ...*modification) func(context.Context, *server) error {
	return func(ctx context.Context, s *server) error {
		return drop(s.ModifyColumnFamilies(ctx, &adminpb.ModifyColumnFamiliesRequest{Name: testTable, Modifications: ms}))
	}
}

func TestModifyColumnFamilies(t *testing.T) {
	s := strict(t)
	s.put(t, testTable, "r", "f")
	do := func(ms ...*modification) map[string]*adminpb.ColumnFamily {
		t.Helper()
		x := must(s.ModifyColumnFamilies(t.Context(), &adminpb.ModifyColumnFamiliesRequest{Name: testTable, Modifications: ms}))(t)
		if x.Name != testTable || x.Granularity != adminpb.Table_MILLIS {
			t.Errorf("answer %v", x)
		}
		if read := must(s.GetTable(t.Context(), &adminpb.GetTableRequest{Name: testTable}))(t); !proto.Equal(x, read) {
			t.Errorf("answer\n%v\nbut GetTable\n%v", x, read)
		}
		return x.ColumnFamilies
	}
	// In order: later ones see what earlier ones did.
	fs := do(create("a", nil), update("a", &adminpb.ColumnFamily{GcRule: maxVersions(2)}), create("b", &adminpb.ColumnFamily{ValueType: sumType()}), remove("b"), create("b", nil))
	if !proto.Equal(fs["a"].GcRule, maxVersions(2)) || fs["b"].ValueType != nil || len(fs) != 5 {
		t.Error(fs)
	}
	// An empty mask is gc_rule.
	fs = do(update("a", &adminpb.ColumnFamily{GcRule: maxAge(time.Hour), ValueType: stringType()}))
	if !proto.Equal(fs["a"].GcRule, maxAge(time.Hour)) || fs["a"].ValueType != nil {
		t.Error(fs)
	}
	fs = do(update("a", &adminpb.ColumnFamily{ValueType: stringType()}, "value_type"))
	if !proto.Equal(fs["a"].GcRule, maxAge(time.Hour)) || !proto.Equal(fs["a"].ValueType, stringType()) {
		t.Error(fs)
	}
	raw := &adminpb.Type{Kind: &adminpb.Type_StringType{StringType: &adminpb.Type_String{Encoding: &adminpb.Type_String_Encoding{
		Encoding: &adminpb.Type_String_Encoding_Utf8Raw_{Utf8Raw: new(adminpb.Type_String_Encoding_Utf8Raw)}, //nolint:staticcheck // what old clients send
	}}}}
	if fs = do(update("f", &adminpb.ColumnFamily{ValueType: raw}, "value_type")); !proto.Equal(fs["f"].ValueType, stringType()) {
		t.Error(fs)
	}
	if fs = do(update("f", nil, "value_type")); fs["f"].ValueType != nil {
		t.Error(fs)
	}
	// The same aggregate again is no change.
	if fs = do(update("sum", &adminpb.ColumnFamily{ValueType: sumType(), GcRule: maxVersions(1)}, "value_type", "gc_rule")); !proto.Equal(fs["sum"].GcRule, maxVersions(1)) {
		t.Error(fs)
	}
	// A family that comes back is empty.
	do(remove("f"), create("f", nil))
	if got := s.rows(t, testTable); got != "" {
		t.Errorf("rows %q", got)
	}
}

func TestModifyColumnFamiliesRefusals(t *testing.T) {
	s := strict(t)
	must(s.UpdateTable(t.Context(), &adminpb.UpdateTableRequest{
		Table:      &adminpb.Table{Name: testTable, DeletionProtection: true, RowKeySchema: keySchema(orderedCode(), keyField("id", stringType()))},
		UpdateMask: mask("deletion_protection", "row_key_schema"),
	}))(t)
	before := must(s.GetTable(t.Context(), &adminpb.GetTableRequest{Name: testTable}))(t)
	const invalid = codes.InvalidArgument
	immutable := "Immutable fields 'value_type.aggregate_type.*' cannot be updated"
	gc := &adminpb.ColumnFamily{GcRule: maxVersions(1)}
	var tooMany []*modification
	for i := range schema.MaxFamilies {
		tooMany = append(tooMany, create(fmt.Sprint("new", i), nil))
	}
	err := modify(tooMany...)(t.Context(), s)
	details := map[string]bool{}
	for _, d := range status.Convert(err).Details() {
		switch d := d.(type) {
		case *errdetails.PreconditionFailure:
			details["field "+d.GetViolations()[0].GetSubject()] = true
		case *errdetails.ErrorInfo:
			details["reason "+d.GetReason()+" "+d.GetMetadata()["limit"]] = true
		}
	}
	if !details["field modifications"] || !details["reason TOO_MANY_COLUMN_FAMILIES 1000"] {
		t.Errorf("too many families are refused with %v", details)
	}
	checkRefusals(t, s, []refusal{
		{"none", modify(), invalid, "No modifications provided", "modifications"},
		{"empty", modify(new(modification)), invalid, "One of 'create', 'update' and 'drop'", "modifications[0].mod"},
		{"create existing", modify(create("new", nil), create("f", nil)), codes.AlreadyExists, "Error in field 'modifications' : Error in element #1 : Column family already exists: f", ""},
		{"create twice", modify(create("new", nil), create("new", nil)), codes.AlreadyExists, "already exists: new", ""},
		{"create bad name", modify(create("new", nil), create("a/b", nil)), invalid, "found 'a/b'", "modifications[1].create"},
		{"create bad rule", modify(create("new", &adminpb.ColumnFamily{GcRule: maxVersions(0)})), invalid, "Must be at least 1", "modifications[0].create.gc_rule.max_num_versions"},
		{"create key field", modify(create("id", nil)), invalid, "has the name of a field of the row key schema", "modifications"},
		{"update missing", modify(create("new", nil), update("nobody", gc)), codes.NotFound, "Requested column family not found: nobody", ""},
		{"update bad mask", modify(create("new", nil), update("f", gc, "colour")), invalid, "Unknown field 'colour'", "modifications[1].update_mask"},
		{"update bad rule", modify(update("f", &adminpb.ColumnFamily{GcRule: union()})), invalid, "Needs at least one rule", "modifications[0].update.gc_rule.union"},
		{"aggregate to text", modify(create("new", nil), update("sum", &adminpb.ColumnFamily{ValueType: stringType()}, "value_type")), invalid, immutable, "modifications[1].update.value_type"},
		{"aggregate to none", modify(update("sum", nil, "value_type")), invalid, immutable, "modifications[0].update.value_type"},
		{"plain to aggregate", modify(update("f", &adminpb.ColumnFamily{ValueType: sumType()}, "value_type")), invalid, immutable, "modifications[0].update.value_type"},
		{"drop missing", modify(create("new", nil), remove("nobody")), codes.NotFound, "Requested column family not found: nobody", ""},
		{"drop false", modify(&modification{Id: "f", Mod: &adminpb.ModifyColumnFamiliesRequest_Modification_Drop{}}), invalid, "Must be true", "modifications[0].drop"},
		{"drop protected", modify(create("new", nil), remove("f")), codes.FailedPrecondition, "has deletion protection", ""},
		{"relax age", modify(create("new", nil), update("aged", &adminpb.ColumnFamily{GcRule: maxAge(2 * time.Hour)})), codes.FailedPrecondition,
			"Cannot relax pure age-based GC for a replicated family (aged). If you must relax the age constraint, unreplicate the instance and try again.", ""},
		{"no more age", modify(update("aged", gc)), codes.FailedPrecondition, "Cannot relax", ""},
		{"too many", modify(tooMany...), codes.FailedPrecondition, "column families; the limit is 1000", ""},
		{"no table", func(ctx context.Context, s *server) error {
			return drop(s.ModifyColumnFamilies(ctx, &adminpb.ModifyColumnFamiliesRequest{Name: testTable + "2", Modifications: []*modification{create("a", nil)}}))
		}, codes.NotFound, "Table not found: " + testTable + "2", ""},
		{"bad table", func(ctx context.Context, s *server) error {
			return drop(s.ModifyColumnFamilies(ctx, &adminpb.ModifyColumnFamiliesRequest{Name: "t", Modifications: []*modification{create("a", nil)}}))
		}, invalid, "When parsing 't'", "name"},
	})
	if after := must(s.GetTable(t.Context(), &adminpb.GetTableRequest{Name: testTable}))(t); !proto.Equal(before, after) {
		t.Errorf("refusals changed\n%v\nto\n%v", before, after)
	}
	for _, m := range []*modification{
		update("aged", &adminpb.ColumnFamily{GcRule: maxAge(time.Minute)}),
		update("aged", &adminpb.ColumnFamily{GcRule: union(maxAge(time.Minute), maxVersions(3))}),
		update("aged", &adminpb.ColumnFamily{GcRule: maxVersions(3)}), // not purely by age any more
	} {
		if err := modify(m)(t.Context(), s); err != nil {
			t.Error(err)
		}
	}
	must(s.ModifyColumnFamilies(t.Context(), &adminpb.ModifyColumnFamiliesRequest{Name: testTable, Modifications: []*modification{update("aged", &adminpb.ColumnFamily{GcRule: maxAge(time.Hour)})}}))(t)
	must(s.ModifyColumnFamilies(t.Context(), &adminpb.ModifyColumnFamiliesRequest{Name: testTable, IgnoreWarnings: true, Modifications: []*modification{update("aged", nil)}}))(t)
}

func TestDropRowRange(t *testing.T) {
	s := strict(t)
	for _, k := range []string{"a1", "a2", "b1", "c1"} {
		s.put(t, testTable, k, "f")
	}
	prefix := func(name, p string) func(context.Context, *server) error {
		return func(ctx context.Context, s *server) error {
			return drop(s.DropRowRange(ctx, &adminpb.DropRowRangeRequest{Name: name, Target: &adminpb.DropRowRangeRequest_RowKeyPrefix{RowKeyPrefix: []byte(p)}}))
		}
	}
	all := func(yes bool) func(context.Context, *server) error {
		return func(ctx context.Context, s *server) error {
			return drop(s.DropRowRange(ctx, &adminpb.DropRowRangeRequest{Name: testTable, Target: &adminpb.DropRowRangeRequest_DeleteAllDataFromTable{DeleteAllDataFromTable: yes}}))
		}
	}
	checkRefusals(t, s, []refusal{
		{"empty prefix", prefix(testTable, ""), codes.InvalidArgument, "Row key prefixes must be non-empty", "row_key_prefix"},
		{"long prefix", prefix(testTable, strings.Repeat("x", 4097)), codes.InvalidArgument, "at most 4096 bytes", "row_key_prefix"},
		{"no target", func(ctx context.Context, s *server) error {
			return drop(s.DropRowRange(ctx, &adminpb.DropRowRangeRequest{Name: testTable}))
		}, codes.InvalidArgument, "One of 'row_key_prefix' and 'delete_all_data_from_table'", "target"},
		{"missing", prefix(testTable+"2", "a"), codes.NotFound, "Table not found: " + testTable + "2", ""},
		{"malformed", prefix("t", "a"), codes.InvalidArgument, "When parsing 't'", "name"},
	})
	for _, step := range []struct {
		do   func(context.Context, *server) error
		want string
	}{
		{all(false), "a1 a2 b1 c1"},
		{prefix(testTable, "x"), "a1 a2 b1 c1"},
		{prefix(testTable, "a"), "b1 c1"},
		{all(true), ""},
	} {
		if err := step.do(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if got := s.rows(t, testTable); got != step.want {
			t.Fatalf("rows %q, want %q", got, step.want)
		}
	}
}

func TestConsistency(t *testing.T) {
	c := newClock()
	b := model.New(model.Options{Now: c.now})
	s := serve(t, b, Options{Now: c.now})
	s.createInstance(t, "inst-one", "cluster-one")
	newTable := func(id string) {
		must(s.CreateTable(t.Context(), &adminpb.CreateTableRequest{Parent: testInstance, TableId: id}))(t)
	}
	newTable("t")
	newTable("u")
	generate := func(s *server) string {
		return must(s.GenerateConsistencyToken(t.Context(), &adminpb.GenerateConsistencyTokenRequest{Name: testTable}))(t).ConsistencyToken
	}
	check := func(table, token string) func(context.Context, *server) error {
		return func(ctx context.Context, s *server) error {
			resp, err := s.CheckConsistency(ctx, &adminpb.CheckConsistencyRequest{Name: table, ConsistencyToken: token})
			if err == nil && !resp.Consistent {
				t.Error("not consistent")
			}
			return err
		}
	}
	token := generate(s)
	if err := check(testTable, token)(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	// The key is durable: another gateway of the same store takes the token.
	if err := check(testTable, token)(t.Context(), serve(t, b, Options{Now: c.now})); err != nil {
		t.Fatal(err)
	}
	checkRefusals(t, s, []refusal{
		{"garbage", check(testTable, "garbage"), codes.InvalidArgument, "Not a token of table " + testTable, "consistency_token"},
		{"empty", check(testTable, ""), codes.InvalidArgument, "Not a token", "consistency_token"},
		{"forged", check(testTable, token[:len(token)-2]+"AA"), codes.InvalidArgument, "Not a token", "consistency_token"},
		{"other table", check(testInstance+"/tables/u", token), codes.InvalidArgument, "Not a token", "consistency_token"},
		{"missing table", check(testTable+"2", token), codes.NotFound, "Table not found", ""},
		{"generate for missing", func(ctx context.Context, s *server) error {
			return drop(s.GenerateConsistencyToken(ctx, &adminpb.GenerateConsistencyTokenRequest{Name: testTable + "2"}))
		}, codes.NotFound, "Table not found", ""},
		{"generate for malformed", func(ctx context.Context, s *server) error {
			return drop(s.GenerateConsistencyToken(ctx, &adminpb.GenerateConsistencyTokenRequest{Name: "t"}))
		}, codes.InvalidArgument, "When parsing", "name"},
	})
	c.add(90*day + time.Second)
	checkRefusals(t, s, []refusal{{"old", check(testTable, token), codes.InvalidArgument, "older than 90 days", "consistency_token"}})
	token = generate(s)
	must(s.DeleteTable(t.Context(), &adminpb.DeleteTableRequest{Name: testTable}))(t)
	newTable("t")
	checkRefusals(t, s, []refusal{{"table made again", check(testTable, token), codes.InvalidArgument, "Not a token", "consistency_token"}})
}

// forged returns token with another first character.
func forged(token string) string {
	if token[0] == 'A' {
		return "B" + token[1:]
	}
	return "A" + token[1:]
}

// What is not built says so at once.
func TestUnimplemented(t *testing.T) {
	s := strict(t)
	for _, desc := range []struct {
		service string
		methods []string
	}{
		{"google.longrunning.Operations", []string{"WaitOperation"}},
	} {
		for _, m := range desc.methods {
			var out adminpb.Table
			err := s.conn.Invoke(t.Context(), "/"+desc.service+"/"+m, new(adminpb.Table), &out)
			if status.Code(err) != codes.Unimplemented {
				t.Errorf("%s: %v", m, err)
			}
		}
	}
}

func TestEmulator(t *testing.T) {
	s := serve(t, model.New(model.Options{}), Options{Emulator: true})
	ctx := t.Context()
	for _, in := range []string{"projects/{{projectId}}/instances/x", "projects/p/instances/ABC_123", testInstance} {
		must(s.CreateTable(ctx, &adminpb.CreateTableRequest{Parent: in, TableId: "t", Table: &adminpb.Table{
			ColumnFamilies: map[string]*adminpb.ColumnFamily{"f": {}}, TieredStorageConfig: tiered(30 * day),
		}}))(t)
		x := must(s.GetTable(ctx, &adminpb.GetTableRequest{Name: in + "/tables/t", View: adminpb.Table_FULL}))(t)
		if x.ClusterStates["default"].GetReplicationState() != adminpb.Table_ClusterState_READY {
			t.Error(x)
		}
		must(s.ModifyColumnFamilies(ctx, &adminpb.ModifyColumnFamiliesRequest{Name: in + "/tables/t", Modifications: []*modification{create("g", nil)}}))(t)
		must(s.UpdateTable(ctx, &adminpb.UpdateTableRequest{Table: &adminpb.Table{Name: in + "/tables/t"}, UpdateMask: mask("deletion_protection")}))(t)
		if n := len(must(s.ListTables(ctx, &adminpb.ListTablesRequest{Parent: in}))(t).Tables); n != 1 {
			t.Errorf("%d tables", n)
		}
		if err := s.admin.Instance(ctx, in); err != nil {
			t.Error(err)
		}
		p := must(s.admin.Profile(ctx, in, "whatever"))(t)
		if !p.AllowTransactionalWrites || p.ClusterID != "default" || p.Zone != "local" {
			t.Error(p)
		}
		// It has tables, so it is shown, with the cluster that tables are told to be in.
		if i := must(s.inst.GetInstance(ctx, &adminpb.GetInstanceRequest{Name: in}))(t); i.GetName() != in || i.GetState() != adminpb.Instance_READY {
			t.Error(i)
		}
		if got := must(s.inst.ListInstances(ctx, &adminpb.ListInstancesRequest{Parent: in[:strings.Index(in, "/instances/")]}))(t); len(got.Instances) != 1 || got.Instances[0].GetName() != in {
			t.Error(got)
		}
		if got := must(s.inst.ListClusters(ctx, &adminpb.ListClustersRequest{Parent: in}))(t); len(got.Clusters) != 1 || got.Clusters[0].GetName() != in+"/clusters/default" {
			t.Error(got)
		}
		must(s.inst.GetCluster(ctx, &adminpb.GetClusterRequest{Name: in + "/clusters/default"}))(t)
		// Beam's reader of change streams looks at the profile first.
		profile := must(s.inst.GetAppProfile(ctx, &adminpb.GetAppProfileRequest{Name: in + "/appProfiles/default"}))(t)
		if r := profile.GetSingleClusterRouting(); r.GetClusterId() != "default" || !r.GetAllowTransactionalWrites() {
			t.Error(profile)
		}
		if got := must(s.inst.ListAppProfiles(ctx, &adminpb.ListAppProfilesRequest{Parent: in}))(t); len(got.AppProfiles) != 1 {
			t.Error(got)
		}
		must(s.DeleteTable(ctx, &adminpb.DeleteTableRequest{Name: in + "/tables/t"}))(t)
	}
	if got := must(s.inst.ListInstances(ctx, &adminpb.ListInstancesRequest{Parent: testProject}))(t); len(got.Instances) != 0 {
		t.Errorf("instances without tables: %v", got)
	}
	checkRefusals(t, s, []refusal{
		{"no instance id", func(ctx context.Context, s *server) error {
			return drop(s.ListTables(ctx, &adminpb.ListTablesRequest{Parent: "projects/p/instances/"}))
		}, codes.InvalidArgument, "When parsing", "parent"},
		{"instance that was not created", func(ctx context.Context, s *server) error {
			return drop(s.inst.GetInstance(ctx, &adminpb.GetInstanceRequest{Name: testInstance}))
		}, codes.NotFound, "Instance not found", ""},
	})
	// One that was created is as real as in strict mode.
	s.createInstance(t, "inst-one", "cluster-one")
	must(s.CreateTable(ctx, &adminpb.CreateTableRequest{Parent: testInstance, TableId: "t"}))(t)
	x := must(s.GetTable(ctx, &adminpb.GetTableRequest{Name: testTable, View: adminpb.Table_FULL}))(t)
	if x.ClusterStates["cluster-one"] == nil {
		t.Error(x)
	}
	if _, err := s.admin.Profile(ctx, testInstance, "whatever"); err == nil {
		t.Error("an app profile that was not created")
	}
}

// A table that is created while its instance is deleted does not survive it.
func TestCreateTableRacesDeleteInstance(t *testing.T) {
	s := strict(t)
	for i := range 30 {
		id := fmt.Sprintf("racing-%d", i)
		s.createInstance(t, id, "cluster-one")
		name := testProject + "/instances/" + id
		done := make(chan error, 1)
		go func() {
			_, err := s.CreateTable(context.Background(), &adminpb.CreateTableRequest{Parent: name, TableId: "t"})
			done <- err
		}()
		must(s.inst.DeleteInstance(t.Context(), &adminpb.DeleteInstanceRequest{Name: name}))(t)
		if err := <-done; err != nil && status.Code(err) != codes.NotFound {
			t.Fatal(err)
		}
		if ts := must(s.b.ListTables(t.Context(), name))(t); len(ts) > 0 {
			t.Fatalf("%d tables left", len(ts))
		}
	}
}
