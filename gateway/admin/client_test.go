package admin

import (
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	adminapi "cloud.google.com/go/bigtable/admin/apiv2"
	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"google.golang.org/api/iterator"
	"google.golang.org/api/option"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/conformance/model"
)

// The official clients see what they see in production. What they expect is in
// their integration tests; this is the part of it that needs no data service.
func TestOfficialClients(t *testing.T) {
	s := serve(t, model.New(model.Options{}), Options{})
	ctx := t.Context()
	iac := must(bigtable.NewInstanceAdminClient(ctx, "p", option.WithGRPCConn(s.conn)))(t)
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	fails := func(err error, code codes.Code, text string) {
		t.Helper()
		if err == nil || status.Code(err) != code || !strings.Contains(err.Error(), text) {
			t.Fatalf("got %v, want %v: %s", err, code, text)
		}
	}

	// Instances and clusters.
	ok(iac.CreateInstance(ctx, &bigtable.InstanceConf{
		InstanceId: "inst-one", ClusterId: "cluster-one", DisplayName: "inst-one", Zone: "us-central1-b",
		InstanceType: bigtable.DEVELOPMENT, Labels: map[string]string{"k": "v"}, Edition: bigtable.Enterprise,
	}))
	info := must(iac.InstanceInfo(ctx, "inst-one"))(t)
	if info.Name != "inst-one" || info.DisplayName != "inst-one" || info.InstanceType != bigtable.DEVELOPMENT || info.Labels["k"] != "v" || info.InstanceState != bigtable.Ready || info.Edition != bigtable.Enterprise {
		t.Errorf("%+v", info)
	}
	conf := &bigtable.InstanceWithClustersConfig{
		InstanceID: "inst-one", DisplayName: "new name", InstanceType: bigtable.PRODUCTION, Labels: map[string]string{"n": "w"},
		Clusters: []bigtable.ClusterConfig{{ClusterID: "cluster-one", NumNodes: 5}},
	}
	res := must(bigtable.UpdateInstanceAndSyncClusters(ctx, iac, conf))(t)
	if !res.InstanceUpdated || !slices.Equal(res.UpdatedClusters, []string{"cluster-one"}) {
		t.Errorf("%+v", res)
	}
	res = must(bigtable.UpdateInstanceAndSyncClusters(ctx, iac, &bigtable.InstanceWithClustersConfig{InstanceID: "inst-one", Clusters: []bigtable.ClusterConfig{
		{ClusterID: "cluster-one"}, {ClusterID: "cluster-two", NumNodes: 3, StorageType: bigtable.SSD, Zone: "us-east1-c"},
	}}))(t)
	if res.InstanceUpdated || !slices.Equal(res.CreatedClusters, []string{"cluster-two"}) {
		t.Errorf("%+v", res)
	}
	res = must(bigtable.UpdateInstanceAndSyncClusters(ctx, iac, &bigtable.InstanceWithClustersConfig{InstanceID: "inst-one", Clusters: []bigtable.ClusterConfig{
		{ClusterID: "cluster-one", NumNodes: 4},
	}}))(t)
	if !slices.Equal(res.DeletedClusters, []string{"cluster-two"}) {
		t.Errorf("%+v", res)
	}
	cs := must(iac.Clusters(ctx, "inst-one"))(t)
	if len(cs) != 1 || *cs[0] != (bigtable.ClusterInfo{Name: "cluster-one", Zone: "us-central1-b", ServeNodes: 4, State: "READY"}) {
		t.Errorf("%+v", cs[0])
	}
	for _, l := range []struct{ in, out map[string]string }{
		{map[string]string{"a": "1", "b": "2"}, map[string]string{"a": "1", "b": "2"}}, {nil, map[string]string{"a": "1", "b": "2"}}, {map[string]string{}, nil},
	} {
		ok(iac.UpdateInstanceWithClusters(ctx, &bigtable.InstanceWithClustersConfig{InstanceID: "inst-one", Labels: l.in}))
		if got := must(iac.InstanceInfo(ctx, "inst-one"))(t).Labels; len(got) != len(l.out) || got["a"] != l.out["a"] {
			t.Errorf("labels %v, want %v", got, l.out)
		}
	}
	ok(iac.CreateInstanceWithClusters(ctx, &bigtable.InstanceWithClustersConfig{InstanceID: "scaled", DisplayName: "scaled", Clusters: []bigtable.ClusterConfig{
		{ClusterID: "cluster-one", Zone: "us-central1-b", AutoscalingConfig: &bigtable.AutoscalingConfig{MinNodes: 4, MaxNodes: 8, CPUTargetPercent: 60}, NodeScalingFactor: bigtable.NodeScalingFactor2X},
	}}))
	c := must(iac.GetCluster(ctx, "scaled", "cluster-one"))(t)
	if c.ServeNodes != 4 || c.AutoscalingConfig.MinNodes != 4 || c.AutoscalingConfig.CPUTargetPercent != 60 || c.NodeScalingFactor != bigtable.NodeScalingFactor2X {
		t.Errorf("%+v", c)
	}
	ok(iac.UpdateCluster(ctx, "scaled", "cluster-one", 2))
	if c = must(iac.GetCluster(ctx, "scaled", "cluster-one"))(t); c.ServeNodes != 2 || c.AutoscalingConfig != nil {
		t.Errorf("%+v", c)
	}
	ok(iac.SetAutoscaling(ctx, "scaled", "cluster-one", bigtable.AutoscalingConfig{MinNodes: 4, MaxNodes: 6, CPUTargetPercent: 80}))
	if c = must(iac.GetCluster(ctx, "scaled", "cluster-one"))(t); c.ServeNodes != 2 || c.AutoscalingConfig.MaxNodes != 6 {
		t.Errorf("%+v", c)
	}
	if is := must(iac.Instances(ctx))(t); len(is) != 2 {
		t.Errorf("%v", is)
	}
	ok(iac.DeleteInstance(ctx, "scaled"))
	fails(drop(iac.InstanceInfo(ctx, "scaled")), codes.NotFound, "Instance not found")

	// App profiles: what is read is what was made, with no etag, and HIGH.
	want := &adminpb.AppProfile{
		Name: testInstance + "/appProfiles/prof", Description: "d", RoutingPolicy: multi("cluster-one").RoutingPolicy,
	}
	want = standard(want, adminpb.AppProfile_PRIORITY_HIGH)
	made := must(iac.CreateAppProfile(ctx, bigtable.ProfileConf{
		ProfileID: "prof", InstanceID: "inst-one", Description: "d", RoutingConfig: &bigtable.MultiClusterRoutingUseAnyConfig{ClusterIDs: []string{"cluster-one"}},
	}))(t)
	if got := must(iac.GetAppProfile(ctx, "inst-one", "prof"))(t); !proto.Equal(made, want) || !proto.Equal(got, want) {
		t.Errorf("made %v, got %v", made, got)
	}
	fails(iac.UpdateAppProfile(ctx, "inst-one", "prof", bigtable.ProfileAttrsToUpdate{}), codes.InvalidArgument, "A non-empty 'update_mask' must be specified")
	ok(iac.UpdateAppProfile(ctx, "inst-one", "prof", bigtable.ProfileAttrsToUpdate{Description: ""}))
	ok(iac.UpdateAppProfile(ctx, "inst-one", "prof", bigtable.ProfileAttrsToUpdate{RoutingConfig: &bigtable.SingleClusterRoutingConfig{ClusterID: "cluster-one"}}))
	ok(iac.UpdateAppProfile(ctx, "inst-one", "prof", bigtable.ProfileAttrsToUpdate{Isolation: &bigtable.DataBoostIsolationReadOnly{ComputeBillingOwner: bigtable.HostPays}}))
	if got := must(iac.GetAppProfile(ctx, "inst-one", "prof"))(t); got.Description != "" || got.GetSingleClusterRouting() == nil || got.GetDataBoostIsolationReadOnly() == nil {
		t.Errorf("%v", got)
	}
	var profiles []string
	for it := iac.ListAppProfiles(ctx, "inst-one"); ; {
		p, err := it.Next()
		if err == iterator.Done {
			break
		}
		ok(err)
		profiles = append(profiles, p.Name)
	}
	if len(profiles) != 2 {
		t.Error(profiles)
	}
	ok(iac.DeleteAppProfile(ctx, "inst-one", "prof"))

	// Tables.
	ac := must(bigtable.NewAdminClient(ctx, "p", "inst-one", option.WithGRPCConn(s.conn)))(t)
	ok(ac.CreateTableFromConf(ctx, &bigtable.TableConf{
		TableID: "t", SplitKeys: []string{"b", "a"}, DeletionProtection: bigtable.Protected, ChangeStreamRetention: 24 * time.Hour,
		AutomatedBackupConfig: &bigtable.TableAutomatedBackupPolicy{RetentionPeriod: 72 * time.Hour, Frequency: 24 * time.Hour},
		TieredStorageConfig:   &bigtable.TieredStorageConfig{InfrequentAccess: &bigtable.TieredStorageIncludeIfOlderThan{Duration: 30 * day}},
		RowKeySchema:          &bigtable.StructType{Fields: []bigtable.StructField{{FieldName: "id", FieldType: bigtable.StringType{Encoding: bigtable.StringUtf8BytesEncoding{}}}}, Encoding: bigtable.StructSingletonEncoding{}},
		ColumnFamilies: map[string]bigtable.Family{
			"ruled": {GCPolicy: bigtable.IntersectionPolicy(bigtable.MaxVersionsPolicy(1), bigtable.MaxAgePolicy(3*day))},
			"plain": {},
			"sum":   {ValueType: bigtable.AggregateType{Input: bigtable.Int64Type{}, Aggregator: bigtable.SumAggregator{}}},
		},
	}))
	ti := must(ac.TableInfo(ctx, "t"))(t)
	policies := map[string]string{}
	for _, f := range ti.FamilyInfos {
		policies[f.Name] = f.GCPolicy
	}
	if len(ti.FamilyInfos) != 3 || policies["ruled"] != "(versions() > 1 && age() > 3d)" || policies["plain"] != "" || ti.DeletionProtection != bigtable.Protected ||
		ti.ChangeStreamRetention != 24*time.Hour || ti.TieredStorageConfig == nil || ti.RowKeySchema == nil || ti.EffectiveAutomatedBackupPolicy == nil {
		t.Errorf("%+v", ti)
	}
	fails(ac.DeleteTable(ctx, "t"), codes.FailedPrecondition, "deletion protection")
	fails(ac.DeleteColumnFamily(ctx, "t", "plain"), codes.FailedPrecondition, "deletion protection")
	ok(ac.UpdateTableWithDeletionProtection(ctx, "t", bigtable.Unprotected))
	ok(ac.UpdateTableWithChangeStream(ctx, "t", 70*time.Hour))
	ok(ac.UpdateTableDisableChangeStream(ctx, "t"))
	ok(ac.UpdateTableWithAutomatedBackupPolicy(ctx, "t", bigtable.TableAutomatedBackupPolicy{Frequency: 24 * time.Hour}))
	ok(ac.UpdateTableWithAutomatedBackupPolicy(ctx, "t", bigtable.TableAutomatedBackupPolicy{RetentionPeriod: 96 * time.Hour, KeepHotDuration: 48 * time.Hour}))
	ok(ac.UpdateTableWithAutomatedBackupPolicy(ctx, "t", bigtable.TableAutomatedBackupPolicy{Disabled: true}))
	ok(ac.UpdateTableDisableAutomatedBackupPolicy(ctx, "t"))
	ok(ac.UpdateTableWithTieredStorageConfig(ctx, "t", &bigtable.TieredStorageConfig{InfrequentAccess: &bigtable.TieredStorageIncludeIfOlderThan{Duration: 45 * day}}))
	ok(ac.UpdateTableRemoveTieredStorageConfig(ctx, "t"))
	ok(ac.UpdateTableRemoveRowKeySchema(ctx, "t"))
	ok(ac.UpdateTableWithRowKeySchema(ctx, "t", bigtable.StructType{
		Fields:   []bigtable.StructField{{FieldName: "a", FieldType: bigtable.Int64Type{}}, {FieldName: "b", FieldType: bigtable.BytesType{}}},
		Encoding: bigtable.StructDelimitedBytesEncoding{Delimiter: []byte("#")},
	}))
	if ti = must(ac.TableInfo(ctx, "t"))(t); ti.DeletionProtection != bigtable.Unprotected || ti.ChangeStreamRetention != nil || ti.AutomatedBackupConfig != nil || ti.TieredStorageConfig != nil || len(ti.RowKeySchema.Fields) != 2 {
		t.Errorf("%+v", ti)
	}
	ok(ac.CreateColumnFamily(ctx, "t", "cf"))
	fails(ac.CreateColumnFamily(ctx, "t", "cf"), codes.AlreadyExists, "Column family already exists")
	ok(ac.SetGCPolicy(ctx, "t", "cf", bigtable.MaxVersionsPolicy(2)))
	ok(ac.SetGCPolicy(ctx, "t", "cf", bigtable.NoGcPolicy()))
	ok(ac.UpdateFamily(ctx, "t", "cf", bigtable.Family{ValueType: bigtable.StringType{Encoding: bigtable.StringUtf8BytesEncoding{}}}))
	fails(ac.UpdateFamily(ctx, "t", "sum", bigtable.Family{ValueType: bigtable.StringType{}}), codes.InvalidArgument, "Immutable fields 'value_type.aggregate_type.*' cannot be updated")
	ok(ac.DeleteColumnFamily(ctx, "t", "cf"))
	ok(ac.DropRowRange(ctx, "t", "x"))
	ok(ac.DropAllRows(ctx, "t"))
	ok(ac.WaitForReplication(ctx, "t"))
	enc := must(ac.EncryptionInfo(ctx, "t"))(t)
	if len(enc) != 1 || enc["cluster-one"][0].Type != bigtable.GoogleDefaultEncryption || enc["cluster-one"][0].KMSKeyVersion != "" {
		t.Errorf("%v", enc)
	}
	h := ac.TableIAM("t")
	policy := must(h.Policy(ctx))(t)
	policy.Add("user:a@example.com", "roles/bigtable.reader")
	ok(h.SetPolicy(ctx, policy))
	if !must(h.Policy(ctx))(t).HasRole("user:a@example.com", "roles/bigtable.reader") {
		t.Error("the policy was lost")
	}
	if ps := must(iac.InstanceIAM("inst-one").TestPermissions(ctx, []string{"bigtable.tables.get"}))(t); len(ps) != 1 {
		t.Error(ps)
	}
	if ts := must(ac.Tables(ctx))(t); !slices.Equal(ts, []string{"t"}) {
		t.Error(ts)
	}
	ok(ac.DeleteTable(ctx, "t"))
	fails(ac.DeleteTable(ctx, "t"), codes.NotFound, "Table not found")

	// The generated client, whose operations resume by name.
	gac := must(adminapi.NewBigtableTableAdminClient(ctx, option.WithGRPCConn(s.conn)))(t)
	op := must(gac.UndeleteTable(ctx, &adminpb.UndeleteTableRequest{Name: testTable}))(t)
	if tbl := must(gac.UndeleteTableOperation(op.Name()).Wait(ctx))(t); tbl.Name != testTable {
		t.Error(tbl)
	}
}
