package admin

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/iam/apiv1/iampb"
	"google.golang.org/genproto/googleapis/type/expr"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trestledb/trestle/conformance/model"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/gateway/backend"
)

func autoscaled(low, high, cpu, storage int32) *adminpb.Cluster {
	return &adminpb.Cluster{Location: "projects/p/locations/z1", Config: scaling(low, high, cpu, storage)}
}

func scaling(low, high, cpu, storage int32) *adminpb.Cluster_ClusterConfig_ {
	return &adminpb.Cluster_ClusterConfig_{ClusterConfig: &adminpb.Cluster_ClusterConfig{ClusterAutoscalingConfig: &adminpb.Cluster_ClusterAutoscalingConfig{
		AutoscalingLimits:  &adminpb.AutoscalingLimits{MinServeNodes: low, MaxServeNodes: high},
		AutoscalingTargets: &adminpb.AutoscalingTargets{CpuUtilizationPercent: cpu, StorageUtilizationGibPerNode: storage},
	}}}
}

func TestCreateInstance(t *testing.T) {
	c := newClock()
	s := serve(t, model.New(model.Options{}), Options{Now: c.now})
	req := &adminpb.CreateInstanceRequest{
		Parent: testProject, InstanceId: "inst-one",
		Instance: &adminpb.Instance{DisplayName: "Büro", Labels: map[string]string{"team": "été-1", "empty": ""}, Tags: map[string]string{"tagKeys/1": "tagValues/2", "123/environment": "production"}},
		Clusters: map[string]*adminpb.Cluster{"cluster-one": cluster(1), "cluster-two": autoscaled(3, 5, 60, 0)},
	}
	meta := new(adminpb.CreateInstanceMetadata)
	got := response(t, must(s.inst.CreateInstance(t.Context(), req))(t), meta, new(adminpb.Instance))
	want := &adminpb.Instance{
		Name: testInstance, DisplayName: "Büro", State: adminpb.Instance_READY, Type: adminpb.Instance_PRODUCTION, Edition: adminpb.Instance_ENTERPRISE,
		Labels: map[string]string{"team": "été-1", "empty": ""}, CreateTime: timestamppb.New(c.now()),
	}
	if !proto.Equal(got, want) {
		t.Errorf("created\n%v\nwant\n%v", got, want)
	}
	if !proto.Equal(meta.OriginalRequest, req) || meta.RequestTime == nil || meta.FinishTime == nil {
		t.Errorf("metadata %v", meta)
	}
	if read := must(s.inst.GetInstance(t.Context(), &adminpb.GetInstanceRequest{Name: testInstance}))(t); !proto.Equal(read, want) {
		t.Errorf("read %v", read)
	}
	one := must(s.inst.GetCluster(t.Context(), &adminpb.GetClusterRequest{Name: testInstance + "/clusters/cluster-one"}))(t)
	if !proto.Equal(one, &adminpb.Cluster{
		Name: testInstance + "/clusters/cluster-one", Location: "projects/p/locations/z1", State: adminpb.Cluster_READY, ServeNodes: 1, DefaultStorageType: adminpb.StorageType_SSD,
	}) {
		t.Error(one)
	}
	two := must(s.inst.GetCluster(t.Context(), &adminpb.GetClusterRequest{Name: testInstance + "/clusters/cluster-two"}))(t)
	if two.ServeNodes != 3 || two.DefaultStorageType != adminpb.StorageType_SSD || !proto.Equal(two.GetClusterConfig(), scaling(3, 5, 60, 2560).ClusterConfig) {
		t.Error(two)
	}
	// The default profile of an instance with several clusters uses any.
	p := must(s.inst.GetAppProfile(t.Context(), &adminpb.GetAppProfileRequest{Name: testInstance + "/appProfiles/default"}))(t)
	if p.GetMultiClusterRoutingUseAny() == nil || p.GetStandardIsolation().GetPriority() != adminpb.AppProfile_PRIORITY_HIGH {
		t.Error(p)
	}
	// A development instance says nothing about nodes.
	dev := cluster(1)
	dev.ServeNodes = 0
	must(s.inst.CreateInstance(t.Context(), &adminpb.CreateInstanceRequest{
		Parent: testProject, InstanceId: "devel-1", Instance: &adminpb.Instance{DisplayName: "devel", Type: adminpb.Instance_DEVELOPMENT},
		Clusters: map[string]*adminpb.Cluster{"cluster-one": dev},
	}))(t)
	p = must(s.inst.GetAppProfile(t.Context(), &adminpb.GetAppProfileRequest{Name: testProject + "/instances/devel-1/appProfiles/default"}))(t)
	if !p.GetSingleClusterRouting().GetAllowTransactionalWrites() || p.GetSingleClusterRouting().GetClusterId() != "cluster-one" {
		t.Error(p)
	}
	list := must(s.inst.ListInstances(t.Context(), &adminpb.ListInstancesRequest{Parent: testProject, PageToken: "ignored"}))(t)
	if len(list.Instances) != 2 || list.Instances[0].Name != testProject+"/instances/devel-1" || len(list.FailedLocations) != 0 || list.NextPageToken != "" {
		t.Error(list)
	}
	if n := len(must(s.inst.ListInstances(t.Context(), &adminpb.ListInstancesRequest{Parent: "projects/q"}))(t).Instances); n != 0 {
		t.Errorf("%d instances of another project", n)
	}
}

func TestCreateInstanceRefusals(t *testing.T) {
	s := strict(t)
	req := func(change func(*adminpb.CreateInstanceRequest)) func(context.Context, *server) error {
		return func(ctx context.Context, s *server) error {
			r := &adminpb.CreateInstanceRequest{
				Parent: testProject, InstanceId: "inst-new", Instance: &adminpb.Instance{DisplayName: "name"},
				Clusters: map[string]*adminpb.Cluster{"cluster-one": cluster(1)},
			}
			change(r)
			return drop(s.inst.CreateInstance(ctx, r))
		}
	}
	in := func(change func(*adminpb.Instance)) func(context.Context, *server) error {
		return req(func(r *adminpb.CreateInstanceRequest) { change(r.Instance) })
	}
	cl := func(change func(*adminpb.Cluster)) func(context.Context, *server) error {
		return req(func(r *adminpb.CreateInstanceRequest) { change(r.Clusters["cluster-one"]) })
	}
	scale := func(low, high, cpu, storage int32) func(context.Context, *server) error {
		return cl(func(c *adminpb.Cluster) { c.ServeNodes, c.Config = 0, scaling(low, high, cpu, storage) })
	}
	many := map[string]string{}
	for i := range 65 {
		many[fmt.Sprint("k", i)] = ""
	}
	const invalid = codes.InvalidArgument
	auto := "clusters.cluster_config.cluster_autoscaling_config."
	checkRefusals(t, s, []refusal{
		{"parent", req(func(r *adminpb.CreateInstanceRequest) { r.Parent = "p" }), invalid, "When parsing 'p' : Project name expected in the form 'projects/<project_id>'.", "parent"},
		{"short id", req(func(r *adminpb.CreateInstanceRequest) { r.InstanceId = "wandb" }), invalid,
			"Error in field 'instance_id' : Invalid id for collection instances : Length should be between [6,33], but found 5 'wandb'", "instance_id"},
		{"long id", req(func(r *adminpb.CreateInstanceRequest) { r.InstanceId = strings.Repeat("a", 34) }), invalid, "Length should be between [6,33], but found 34", "instance_id"},
		{"bad id", req(func(r *adminpb.CreateInstanceRequest) { r.InstanceId = "inst_one" }), invalid, `Should match [a-z][a-z0-9\\-]+[a-z0-9] but found 'inst_one'`, "instance_id"},
		{"id ends in -", req(func(r *adminpb.CreateInstanceRequest) { r.InstanceId = "inst-one-" }), invalid, "Should match", "instance_id"},
		{"exists", req(func(r *adminpb.CreateInstanceRequest) { r.InstanceId = "inst-one" }), codes.AlreadyExists, "Instance already exists: " + testInstance, ""},
		{"no instance", req(func(r *adminpb.CreateInstanceRequest) { r.Instance = nil }), invalid, "Must be specified", "instance"},
		{"no display name", in(func(i *adminpb.Instance) { i.DisplayName = "" }), invalid, "Length should be between [4,30], but found 0", "instance.display_name"},
		{"long display name", in(func(i *adminpb.Instance) { i.DisplayName = strings.Repeat("é", 31) }), invalid, "[4,30], but found 31", "instance.display_name"},
		{"type", in(func(i *adminpb.Instance) { i.Type = 9 }), invalid, "Unknown value 9", "instance.type"},
		{"edition", in(func(i *adminpb.Instance) { i.Edition = 9 }), invalid, "Unknown value 9", "instance.edition"},
		{"label key", in(func(i *adminpb.Instance) { i.Labels = map[string]string{"Team": ""} }), invalid, "Key 'Team' should match", "instance.labels"},
		{"empty label key", in(func(i *adminpb.Instance) { i.Labels = map[string]string{"": "x"} }), invalid, "Key ''", "instance.labels"},
		{"long label", in(func(i *adminpb.Instance) { i.Labels = map[string]string{strings.Repeat("é", 64): ""} }), invalid, "should match", "instance.labels"},
		{"label value", in(func(i *adminpb.Instance) { i.Labels = map[string]string{"k": "V"} }), invalid, "Value 'V' of key 'k'", "instance.labels"},
		{"many labels", in(func(i *adminpb.Instance) { i.Labels = many }), invalid, "At most 64 labels are allowed, but found 65", "instance.labels"},
		{"many tags", in(func(i *adminpb.Instance) { i.Tags = many }), invalid, "At most 50 tags are allowed, but found 65", "instance.tags"},
		{"tag key", in(func(i *adminpb.Instance) { i.Tags = map[string]string{"1/env": "x", "env": "x"} }), invalid, "Key 'env' should have the form", "instance.tags"},
		{"no tag key", in(func(i *adminpb.Instance) { i.Tags = map[string]string{"1/": "x"} }), invalid, "Key '1/'", "instance.tags"},
		{"tag value", in(func(i *adminpb.Instance) { i.Tags = map[string]string{"tagKeys/1": "x"} }), invalid, "Value 'x' of key 'tagKeys/1'", "instance.tags"},
		{"no tag value", in(func(i *adminpb.Instance) { i.Tags = map[string]string{"1/env": ""} }), invalid, "Value '' of key '1/env'", "instance.tags"},
		{"no clusters", req(func(r *adminpb.CreateInstanceRequest) { r.Clusters = nil }), invalid,
			"Error in field 'clusters' : Need to have at least one cluster map element in CreateInstanceRequest.", "clusters"},
		{"cluster id", req(func(r *adminpb.CreateInstanceRequest) { r.Clusters["-clstr2"] = cluster(2) }), invalid,
			`Error in field 'clusters' : Cluster Id : Invalid id for collection clusters : Should match [a-z][a-z0-9\\-]+[a-z0-9] but found '-clstr2'`, "clusters"},
		{"no location", cl(func(c *adminpb.Cluster) { c.Location = "" }), invalid, "Location name expected in the form 'projects/<project_id>/locations/<zone_id>'.", "clusters.location"},
		{"bad location", cl(func(c *adminpb.Cluster) { c.Location = "us-east1-b" }), invalid, "When parsing 'us-east1-b'", "clusters.location"},
		{"storage type", cl(func(c *adminpb.Cluster) { c.DefaultStorageType = 9 }), invalid, "Unknown value 9", "clusters.default_storage_type"},
		{"scaling factor", cl(func(c *adminpb.Cluster) { c.NodeScalingFactor = 9 }), invalid, "Unknown value 9", "clusters.node_scaling_factor"},
		{"odd nodes", cl(func(c *adminpb.Cluster) { c.NodeScalingFactor = adminpb.Cluster_NODE_SCALING_FACTOR_2X }), invalid, "Must be a multiple of 2 with NODE_SCALING_FACTOR_2X, but found 1", "clusters.serve_nodes"},
		{"own key", cl(func(c *adminpb.Cluster) { c.EncryptionConfig = &adminpb.Cluster_EncryptionConfig{KmsKeyName: "k"} }), codes.Unimplemented, "Customer-managed", ""},
		{"no nodes", cl(func(c *adminpb.Cluster) { c.ServeNodes = 0 }), invalid, "Must be at least 1 without 'cluster_config.cluster_autoscaling_config', but found 0", "clusters.serve_nodes"},
		{"negative nodes", cl(func(c *adminpb.Cluster) { c.ServeNodes = -1 }), invalid, "but found -1", "clusters.serve_nodes"},
		{"both", cl(func(c *adminpb.Cluster) { c.Config = scaling(1, 2, 50, 0) }), invalid, "Exactly one of 'serve_nodes' and 'cluster_config.cluster_autoscaling_config'", "clusters.serve_nodes"},
		{"scaling min", scale(0, 2, 50, 0), invalid, "Must be at least 1, but found 0", auto + "autoscaling_limits.min_serve_nodes"},
		{"scaling max", scale(3, 2, 50, 0), invalid, "Must be at least min_serve_nodes 3, but found 2", auto + "autoscaling_limits.max_serve_nodes"},
		{"scaling cpu low", scale(1, 2, 9, 0), invalid, "Must be between 10 and 80, but found 9", auto + "autoscaling_targets.cpu_utilization_percent"},
		{"scaling cpu high", scale(1, 2, 81, 0), invalid, "but found 81", auto + "autoscaling_targets.cpu_utilization_percent"},
		{"scaling storage", scale(1, 2, 50, 8192), invalid, "Must be between 2560 and 5120 for SSD, but found 8192", auto + "autoscaling_targets.storage_utilization_gib_per_node"},
		{"scaling storage hdd", cl(func(c *adminpb.Cluster) {
			c.ServeNodes, c.Config, c.DefaultStorageType = 0, scaling(1, 2, 50, 5120), adminpb.StorageType_HDD
		}), invalid, "Must be between 8192 and 16384 for HDD", auto + "autoscaling_targets.storage_utilization_gib_per_node"},
		{"scaling without limits", cl(func(c *adminpb.Cluster) {
			c.ServeNodes, c.Config = 0, scaling(1, 2, 50, 0)
			c.GetClusterConfig().ClusterAutoscalingConfig.AutoscalingLimits = nil
		}), invalid, "'autoscaling_limits' : Must be specified", auto + "autoscaling_limits"},
		{"scaling without targets", cl(func(c *adminpb.Cluster) {
			c.ServeNodes, c.Config = 0, scaling(1, 2, 50, 0)
			c.GetClusterConfig().ClusterAutoscalingConfig.AutoscalingTargets = nil
		}), invalid, "'autoscaling_targets' : Must be specified", auto + "autoscaling_targets"},
		{"scaling odd", cl(func(c *adminpb.Cluster) {
			c.ServeNodes, c.Config, c.NodeScalingFactor = 0, scaling(2, 3, 50, 0), adminpb.Cluster_NODE_SCALING_FACTOR_2X
		}), invalid, "Must be a multiple of 2", auto + "autoscaling_limits.max_serve_nodes"},
		{"get missing", func(ctx context.Context, s *server) error {
			return drop(s.inst.GetInstance(ctx, &adminpb.GetInstanceRequest{Name: testProject + "/instances/inst-new"}))
		}, codes.NotFound, "Instance not found: projects/p/instances/inst-new", ""},
		{"get malformed", func(ctx context.Context, s *server) error {
			return drop(s.inst.GetInstance(ctx, &adminpb.GetInstanceRequest{Name: "inst-new"}))
		}, invalid, "When parsing 'inst-new'", "name"},
		{"list malformed", func(ctx context.Context, s *server) error {
			return drop(s.inst.ListInstances(ctx, &adminpb.ListInstancesRequest{Parent: "p"}))
		}, invalid, "When parsing 'p'", "parent"},
	})
}

// What is output only in a request is ignored: clients send what they have read,
// or a name that their user made up.
func TestCreateIgnoresOutputs(t *testing.T) {
	s := serve(t, model.New(model.Options{}), Options{})
	in := cluster(1)
	in.Name, in.State = "what the user calls it", adminpb.Cluster_RESIZING
	got := response(t, must(s.inst.CreateInstance(t.Context(), &adminpb.CreateInstanceRequest{
		Parent: testProject, InstanceId: "inst-one",
		Instance: &adminpb.Instance{Name: "inst-one", DisplayName: "One of them", State: adminpb.Instance_CREATING, CreateTime: &timestamppb.Timestamp{Seconds: 1},
			SatisfiesPzs: proto.Bool(true)},
		Clusters: map[string]*adminpb.Cluster{"cluster-one": in},
	}))(t), new(adminpb.CreateInstanceMetadata), new(adminpb.Instance))
	if got.Name != testInstance || got.State != adminpb.Instance_READY || got.CreateTime.GetSeconds() == 1 || got.SatisfiesPzs != nil {
		t.Error(got)
	}
	in.Name = testInstance + "/clusters/another"
	response(t, must(s.inst.CreateCluster(t.Context(), &adminpb.CreateClusterRequest{Parent: testInstance, ClusterId: "cluster-two", Cluster: in}))(t),
		new(adminpb.CreateClusterMetadata), new(adminpb.Cluster))
	for _, id := range []string{"cluster-one", "cluster-two"} {
		name := testInstance + "/clusters/" + id
		if c := must(s.inst.GetCluster(t.Context(), &adminpb.GetClusterRequest{Name: name}))(t); c.Name != name || c.State != adminpb.Cluster_READY {
			t.Error(c)
		}
	}
}

// The nodes of an autoscaled cluster are the autoscaler's: no answer to its
// creation says how many, and no update changes them.
func TestAutoscaledNodes(t *testing.T) {
	s := serve(t, model.New(model.Options{}), Options{})
	s.createInstance(t, "inst-one", "cluster-one")
	ctx, name := t.Context(), testInstance+"/clusters/cluster-two"
	made := response(t, must(s.inst.CreateCluster(ctx, &adminpb.CreateClusterRequest{Parent: testInstance, ClusterId: "cluster-two", Cluster: autoscaled(3, 4, 50, 0)}))(t),
		new(adminpb.CreateClusterMetadata), new(adminpb.Cluster))
	if made.ServeNodes != 0 || !proto.Equal(made.GetClusterConfig(), scaling(3, 4, 50, 2560).ClusterConfig) {
		t.Errorf("created %v", made)
	}
	want := func(n int32) {
		t.Helper()
		if c := must(s.inst.GetCluster(ctx, &adminpb.GetClusterRequest{Name: name}))(t); c.ServeNodes != n {
			t.Error(c)
		}
	}
	want(3)
	update := func(c *adminpb.Cluster, paths ...string) {
		t.Helper()
		c.Name = name
		response(t, must(s.inst.PartialUpdateCluster(ctx, &adminpb.PartialUpdateClusterRequest{Cluster: c, UpdateMask: mask(paths...)}))(t),
			new(adminpb.PartialUpdateClusterMetadata), new(adminpb.Cluster))
	}
	update(&adminpb.Cluster{Config: scaling(5, 6, 53, 0)}, "cluster_config")
	want(3)
	update(&adminpb.Cluster{ServeNodes: 2}, "cluster_config", "serve_nodes")
	want(2)
	update(&adminpb.Cluster{Config: scaling(3, 4, 50, 0)}, "cluster_config")
	want(2)
}

func TestUpdateInstance(t *testing.T) {
	s := strict(t)
	ctx := t.Context()
	got := must(s.inst.UpdateInstance(ctx, &adminpb.Instance{Name: testInstance, DisplayName: "Other name", Labels: map[string]string{"ignored": ""}}))(t)
	if got.DisplayName != "Other name" || got.Type != adminpb.Instance_PRODUCTION || got.Labels != nil {
		t.Error(got)
	}
	got = must(s.inst.UpdateInstance(ctx, &adminpb.Instance{Name: testInstance, DisplayName: "Other name", Type: adminpb.Instance_DEVELOPMENT}))(t)
	if got.Type != adminpb.Instance_DEVELOPMENT {
		t.Error(got)
	}
	partial := func(in *adminpb.Instance, paths ...string) *adminpb.Instance {
		t.Helper()
		in.Name = testInstance
		meta := new(adminpb.UpdateInstanceMetadata)
		got := response(t, must(s.inst.PartialUpdateInstance(ctx, &adminpb.PartialUpdateInstanceRequest{Instance: in, UpdateMask: mask(paths...)}))(t), meta, new(adminpb.Instance))
		if meta.OriginalRequest.GetInstance().GetName() != testInstance || meta.RequestTime == nil || meta.FinishTime == nil {
			t.Error(meta)
		}
		if read := must(s.inst.GetInstance(ctx, &adminpb.GetInstanceRequest{Name: testInstance}))(t); !proto.Equal(read, got) {
			t.Errorf("the operation says\n%v\nbut GetInstance\n%v", got, read)
		}
		return got
	}
	got = partial(&adminpb.Instance{DisplayName: "Third name", Type: adminpb.Instance_PRODUCTION, Labels: map[string]string{"a": "b"}}, "display_name", "type", "labels")
	if got.DisplayName != "Third name" || got.Type != adminpb.Instance_PRODUCTION || got.Labels["a"] != "b" {
		t.Error(got)
	}
	if got = partial(&adminpb.Instance{}, "labels", "type"); len(got.Labels) != 0 || got.Type != adminpb.Instance_PRODUCTION {
		t.Error(got)
	}
	if got = partial(&adminpb.Instance{Edition: adminpb.Instance_ENTERPRISE_PLUS}, "edition"); got.Edition != adminpb.Instance_ENTERPRISE_PLUS {
		t.Error(got)
	}
	must(s.CreateTable(ctx, &adminpb.CreateTableRequest{Parent: testInstance, TableId: "plus", Table: &adminpb.Table{
		AutomatedBackupConfig: backups(&adminpb.Table_AutomatedBackupPolicy{RetentionPeriod: durationpb.New(3 * day), Locations: []string{"projects/p/locations/z1"}}),
	}}))(t)
	call := func(in *adminpb.Instance, paths ...string) func(context.Context, *server) error {
		return func(ctx context.Context, s *server) error {
			if in != nil && in.Name == "" {
				in.Name = testInstance
			}
			return drop(s.inst.PartialUpdateInstance(ctx, &adminpb.PartialUpdateInstanceRequest{Instance: in, UpdateMask: mask(paths...)}))
		}
	}
	put := func(in *adminpb.Instance) func(context.Context, *server) error {
		return func(ctx context.Context, s *server) error { return drop(s.inst.UpdateInstance(ctx, in)) }
	}
	checkRefusals(t, s, []refusal{
		{"no mask", call(&adminpb.Instance{}), codes.InvalidArgument, "A non-empty 'update_mask' must be specified", "update_mask"},
		{"immutable", call(&adminpb.Instance{}, "display_name", "create_time"), codes.InvalidArgument, "Immutable fields 'create_time' cannot be updated", "update_mask"},
		{"unknown", call(&adminpb.Instance{}, "colour"), codes.InvalidArgument, "Unknown field 'colour'", "update_mask"},
		{"display name", call(&adminpb.Instance{}, "display_name"), codes.InvalidArgument, "[4,30], but found 0", "instance.display_name"},
		{"no instance", call(nil, "labels"), codes.InvalidArgument, "When parsing ''", "instance.name"},
		{"missing", call(&adminpb.Instance{Name: testInstance + "x"}, "labels"), codes.NotFound, "Instance not found", ""},
		{"edition in use", call(&adminpb.Instance{Edition: adminpb.Instance_ENTERPRISE}, "edition"), codes.FailedPrecondition, "tables/plus has automated_backup_policy.locations", ""},
		{"put display name", put(&adminpb.Instance{Name: testInstance}), codes.InvalidArgument, "[4,30]", "display_name"},
		{"put missing", put(&adminpb.Instance{Name: testInstance + "x", DisplayName: "name"}), codes.NotFound, "Instance not found", ""},
		{"put malformed", put(&adminpb.Instance{Name: "x", DisplayName: "name"}), codes.InvalidArgument, "When parsing 'x'", "name"},
	})
}

func TestDeleteInstance(t *testing.T) {
	s := strict(t)
	ctx := t.Context()
	del := func(name string) func(context.Context, *server) error {
		return func(ctx context.Context, s *server) error {
			return drop(s.inst.DeleteInstance(ctx, &adminpb.DeleteInstanceRequest{Name: name}))
		}
	}
	protect := func(on bool) {
		must(s.UpdateTable(ctx, &adminpb.UpdateTableRequest{Table: &adminpb.Table{Name: testTable, DeletionProtection: on}, UpdateMask: mask("deletion_protection")}))(t)
	}
	must(s.inst.SetIamPolicy(ctx, &iampb.SetIamPolicyRequest{Resource: testInstance, Policy: aPolicy()}))(t)
	must(s.SetIamPolicy(ctx, &iampb.SetIamPolicyRequest{Resource: testTable, Policy: aPolicy()}))(t)
	protect(true)
	checkRefusals(t, s, []refusal{
		{"protected table", del(testInstance), codes.FailedPrecondition, "table " + testTable + " has deletion protection", ""},
		{"missing", del(testInstance + "x"), codes.NotFound, "Instance not found", ""},
		{"malformed", del("x"), codes.InvalidArgument, "When parsing 'x'", "name"},
	})
	protect(false)
	if err := s.admin.Instance(ctx, testInstance); err != nil {
		t.Fatal(err)
	}
	stream := func(c *adminpb.ChangeStreamConfig) {
		must(s.UpdateTable(ctx, &adminpb.UpdateTableRequest{Table: &adminpb.Table{Name: testTable, ChangeStreamConfig: c}, UpdateMask: mask("change_stream_config")}))(t)
	}
	stream(&adminpb.ChangeStreamConfig{RetentionPeriod: durationpb.New(24 * time.Hour)})
	checkRefusals(t, s, []refusal{
		{"stream on", del(testInstance), codes.FailedPrecondition, "disable the change stream of table " + testTable + " first", "name"},
	})
	if err := s.admin.Instance(ctx, testInstance); err != nil {
		t.Fatal(err)
	}
	stream(nil)
	if err := del(testInstance)(ctx, s); err != nil {
		t.Fatal(err)
	}
	if err := s.admin.Instance(ctx, testInstance); fault.KindOf(err) != fault.NotFound {
		t.Errorf("instance still known: %v", err)
	}
	checkRefusals(t, s, []refusal{
		{"again", del(testInstance), codes.NotFound, "Instance not found", ""},
		{"its table", func(ctx context.Context, s *server) error {
			return drop(s.GetTable(ctx, &adminpb.GetTableRequest{Name: testTable}))
		}, codes.NotFound, "Table not found", ""},
	})
	s.createInstance(t, "inst-one", "cluster-one")
	if p := must(s.inst.GetIamPolicy(ctx, &iampb.GetIamPolicyRequest{Resource: testInstance}))(t); len(p.Bindings) != 0 {
		t.Errorf("the new instance has the old policy: %v", p)
	}
	n := 0
	if err := s.b.ListRecords(ctx, policyPrefix, func(string, []byte, uint64) error { n++; return nil }); err != nil || n != 0 {
		t.Errorf("%d policies left, %v", n, err)
	}
}

// An instance whose deletion stopped half-way is gone for everyone, and can be
// deleted or created again.
func TestDeleteInstanceInterrupted(t *testing.T) {
	for _, again := range []string{"delete", "create"} {
		t.Run(again, func(t *testing.T) {
			s := strict(t)
			ctx := t.Context()
			must(s.UpdateTable(ctx, &adminpb.UpdateTableRequest{Table: &adminpb.Table{Name: testTable, DeletionProtection: true}, UpdateMask: mask("deletion_protection")}))(t)
			i := must(s.admin.readInstance(ctx, testInstance))(t)
			i.deleting = true
			if err := s.admin.putInstance(ctx, i); err != nil {
				t.Fatal(err)
			}
			if _, err := s.inst.GetInstance(ctx, &adminpb.GetInstanceRequest{Name: testInstance}); status.Code(err) != codes.NotFound {
				t.Fatal(err)
			}
			if _, err := s.CreateTable(ctx, &adminpb.CreateTableRequest{Parent: testInstance, TableId: "x"}); status.Code(err) != codes.NotFound {
				t.Fatal(err)
			}
			if l := must(s.inst.ListInstances(ctx, &adminpb.ListInstancesRequest{Parent: testProject}))(t); len(l.Instances) != 0 {
				t.Fatal(l)
			}
			if again == "delete" {
				must(s.inst.DeleteInstance(ctx, &adminpb.DeleteInstanceRequest{Name: testInstance}))(t)
			} else {
				s.createInstance(t, "inst-one", "cluster-one")
			}
			if ts := must(s.b.ListTables(ctx, testInstance))(t); len(ts) != 0 {
				t.Errorf("%d tables left", len(ts))
			}
		})
	}
}

// heldDeletes holds the first deletion of a table until it is let go.
type heldDeletes struct {
	backend.Backend
	once         sync.Once
	begun, letGo chan struct{}
}

func (b *heldDeletes) DeleteTable(ctx context.Context, name string) error {
	b.once.Do(func() {
		close(b.begun)
		<-b.letGo
	})
	return b.Backend.DeleteTable(ctx, name)
}

// TestDeleteInstanceOvertaken: a deletion that another gateway has finished, so that an
// instance of the same name is there again, leaves to that what it has.
func TestDeleteInstanceOvertaken(t *testing.T) {
	b := model.New(model.Options{})
	held := &heldDeletes{Backend: b, begun: make(chan struct{}), letGo: make(chan struct{})}
	slow, s := serve(t, held, Options{}), serve(t, b, Options{})
	ctx := t.Context()
	create := func(ids ...string) {
		s.createInstance(t, "inst-one", "cluster-one")
		for _, id := range ids {
			must(s.CreateTable(ctx, &adminpb.CreateTableRequest{Parent: testInstance, TableId: id, Table: &adminpb.Table{}}))(t)
		}
	}
	create("a", "b", "c")
	deleted := make(chan error, 1)
	go func() {
		_, err := slow.inst.DeleteInstance(ctx, &adminpb.DeleteInstanceRequest{Name: testInstance})
		deleted <- err
	}()
	<-held.begun
	create("b", "c")
	must(s.inst.SetIamPolicy(ctx, &iampb.SetIamPolicyRequest{Resource: testInstance, Policy: aPolicy()}))(t)
	close(held.letGo)
	if err := <-deleted; err != nil {
		t.Error(err)
	}
	if ts := must(s.b.ListTables(ctx, testInstance))(t); len(ts) != 2 {
		t.Errorf("%d tables of the new instance are left", len(ts))
	}
	if p := must(s.inst.GetIamPolicy(ctx, &iampb.GetIamPolicyRequest{Resource: testInstance}))(t); len(p.Bindings) == 0 {
		t.Error("the policy of the new instance is gone")
	}
}

func TestClusters(t *testing.T) {
	s := strict(t)
	ctx := t.Context()
	name := testInstance + "/clusters/cluster-one"
	meta := new(adminpb.CreateClusterMetadata)
	made := response(t, must(s.inst.CreateCluster(ctx, &adminpb.CreateClusterRequest{Parent: testInstance, ClusterId: "cluster-new", Cluster: cluster(3)}))(t), meta, new(adminpb.Cluster))
	if made.Name != testInstance+"/clusters/cluster-new" || made.State != adminpb.Cluster_READY || meta.Tables[testTable].GetState() != adminpb.CreateClusterMetadata_TableProgress_COMPLETED || meta.FinishTime == nil {
		t.Errorf("%v %v", made, meta)
	}
	if x := must(s.GetTable(ctx, &adminpb.GetTableRequest{Name: testTable, View: adminpb.Table_REPLICATION_VIEW}))(t); x.ClusterStates["cluster-new"].GetReplicationState() != adminpb.Table_ClusterState_READY {
		t.Error(x)
	}
	s.createInstance(t, "inst-two", "cluster-one")
	for parent, want := range map[string]int{testInstance: 3, testProject + "/instances/-": 4} {
		l := must(s.inst.ListClusters(ctx, &adminpb.ListClustersRequest{Parent: parent, PageToken: "ignored"}))(t)
		if len(l.Clusters) != want || len(l.FailedLocations) != 0 {
			t.Errorf("%s: %v", parent, l)
		}
	}

	put := response(t, must(s.inst.UpdateCluster(ctx, &adminpb.Cluster{Name: name, ServeNodes: 4, Location: "projects/p/locations/z1"}))(t), new(adminpb.UpdateClusterMetadata), new(adminpb.Cluster))
	if put.ServeNodes != 4 {
		t.Error(put)
	}
	partial := func(c *adminpb.Cluster, paths ...string) *adminpb.Cluster {
		t.Helper()
		c.Name = name
		meta := new(adminpb.PartialUpdateClusterMetadata)
		got := response(t, must(s.inst.PartialUpdateCluster(ctx, &adminpb.PartialUpdateClusterRequest{Cluster: c, UpdateMask: mask(paths...)}))(t), meta, new(adminpb.Cluster))
		if meta.OriginalRequest.GetCluster().GetName() != name || meta.RequestTime == nil || meta.FinishTime == nil {
			t.Error(meta)
		}
		if read := must(s.inst.GetCluster(ctx, &adminpb.GetClusterRequest{Name: name}))(t); !proto.Equal(read, got) {
			t.Errorf("the operation says\n%v\nbut GetCluster\n%v", got, read)
		}
		return got
	}
	const config = "cluster_config.cluster_autoscaling_config"
	if c := partial(&adminpb.Cluster{ServeNodes: 2}, "serve_nodes"); c.ServeNodes != 2 {
		t.Error(c)
	}
	// With autoscaling the number of nodes is an output, and stays what it was.
	if c := partial(&adminpb.Cluster{Config: scaling(3, 4, 60, 0)}, config); c.ServeNodes != 2 || autoscaling(c) == nil {
		t.Error(c)
	}
	if c := partial(&adminpb.Cluster{ServeNodes: 9}, "serve_nodes"); c.ServeNodes != 2 {
		t.Error(c)
	}
	if c := partial(&adminpb.Cluster{Config: scaling(1, 8, 10, 0)}, config+".autoscaling_limits.max_serve_nodes"); !proto.Equal(c.GetClusterConfig(), scaling(3, 8, 60, 2560).ClusterConfig) {
		t.Error(c)
	}
	if c := response(t, must(s.inst.UpdateCluster(ctx, &adminpb.Cluster{Name: name, ServeNodes: 7}))(t), new(adminpb.UpdateClusterMetadata), new(adminpb.Cluster)); c.ServeNodes != 2 || autoscaling(c) == nil {
		t.Error(c)
	}
	call := func(c *adminpb.Cluster, paths ...string) func(context.Context, *server) error {
		return func(ctx context.Context, s *server) error {
			if c != nil && c.Name == "" {
				c.Name = name
			}
			return drop(s.inst.PartialUpdateCluster(ctx, &adminpb.PartialUpdateClusterRequest{Cluster: c, UpdateMask: mask(paths...)}))
		}
	}
	checkRefusals(t, s, []refusal{
		{"disable without nodes", call(&adminpb.Cluster{}, config), codes.InvalidArgument, "'serve_nodes' must be in 'update_mask'", "cluster.serve_nodes"},
		{"disable with no nodes", call(&adminpb.Cluster{}, config, "serve_nodes"), codes.InvalidArgument, "Must be at least 1", "cluster.serve_nodes"},
		{"both", call(&adminpb.Cluster{ServeNodes: 3, Config: scaling(1, 2, 50, 0)}, config, "serve_nodes"), codes.InvalidArgument, "Exactly one of", "cluster.serve_nodes"},
	})
	if c := partial(&adminpb.Cluster{ServeNodes: 1}, "serve_nodes", config); c.ServeNodes != 1 || c.Config != nil {
		t.Error(c)
	}

	putCall := func(c *adminpb.Cluster) func(context.Context, *server) error {
		return func(ctx context.Context, s *server) error { return drop(s.inst.UpdateCluster(ctx, c)) }
	}
	add := func(change func(*adminpb.CreateClusterRequest)) func(context.Context, *server) error {
		return func(ctx context.Context, s *server) error {
			r := &adminpb.CreateClusterRequest{Parent: testInstance, ClusterId: "cluster-x", Cluster: cluster(1)}
			change(r)
			return drop(s.inst.CreateCluster(ctx, r))
		}
	}
	del := func(name string) func(context.Context, *server) error {
		return func(ctx context.Context, s *server) error {
			return drop(s.inst.DeleteCluster(ctx, &adminpb.DeleteClusterRequest{Name: name}))
		}
	}
	must(s.inst.CreateAppProfile(ctx, &adminpb.CreateAppProfileRequest{Parent: testInstance, AppProfileId: "to-new", AppProfile: single("cluster-new", false)}))(t)
	must(s.inst.CreateAppProfile(ctx, &adminpb.CreateAppProfileRequest{Parent: testInstance, AppProfileId: "to-two", AppProfile: multi("cluster-two")}))(t)
	checkRefusals(t, s, []refusal{
		{"no mask", call(&adminpb.Cluster{}), codes.InvalidArgument, "A non-empty 'update_mask' must be specified", "update_mask"},
		{"location", call(&adminpb.Cluster{}, "location"), codes.InvalidArgument, "Immutable fields 'location' cannot be updated", "update_mask"},
		{"unknown", call(&adminpb.Cluster{}, "cluster_config.colour"), codes.InvalidArgument, "Unknown field 'cluster_config.colour'", "update_mask"},
		{"missing", call(&adminpb.Cluster{Name: name + "x"}, "serve_nodes"), codes.NotFound, "Cluster not found: " + name + "x", ""},
		{"none", call(nil, "serve_nodes"), codes.InvalidArgument, "When parsing ''", "cluster.name"},
		{"cpu", call(&adminpb.Cluster{Config: scaling(1, 2, 5, 0)}, config), codes.InvalidArgument, "Must be between 10 and 80", "cluster." + config + ".autoscaling_targets.cpu_utilization_percent"},
		{"put no nodes", putCall(&adminpb.Cluster{Name: name}), codes.InvalidArgument, "Must be at least 1", "serve_nodes"},
		{"put location", putCall(&adminpb.Cluster{Name: name, ServeNodes: 1, Location: "projects/p/locations/z9"}), codes.InvalidArgument, "Immutable fields 'location'", "location"},
		{"put storage", putCall(&adminpb.Cluster{Name: name, ServeNodes: 1, DefaultStorageType: adminpb.StorageType_HDD}), codes.InvalidArgument, "Immutable fields 'default_storage_type'", "default_storage_type"},
		{"put missing", putCall(&adminpb.Cluster{Name: name + "x", ServeNodes: 1}), codes.NotFound, "Cluster not found", ""},
		{"put malformed", putCall(&adminpb.Cluster{Name: "x"}), codes.InvalidArgument, "Cluster name expected in the form 'projects/<project_id>/instances/<instance_id>/clusters/<cluster_id>'.", "name"},
		{"create existing", add(func(r *adminpb.CreateClusterRequest) { r.ClusterId = "cluster-one" }), codes.AlreadyExists, "Cluster already exists: " + name, ""},
		{"create bad id", add(func(r *adminpb.CreateClusterRequest) { r.ClusterId = "C" }), codes.InvalidArgument, "Should match", "cluster"},
		{"create nothing", add(func(r *adminpb.CreateClusterRequest) { r.Cluster = nil }), codes.InvalidArgument, "Must be specified", "cluster"},
		{"create bad", add(func(r *adminpb.CreateClusterRequest) { r.Cluster.ServeNodes = 0 }), codes.InvalidArgument, "Must be at least 1", "cluster.serve_nodes"},
		{"create nowhere", add(func(r *adminpb.CreateClusterRequest) { r.Parent += "x" }), codes.NotFound, "Instance not found", ""},
		{"create malformed", add(func(r *adminpb.CreateClusterRequest) { r.Parent = "x" }), codes.InvalidArgument, "When parsing", "parent"},
		{"get missing", func(ctx context.Context, s *server) error {
			return drop(s.inst.GetCluster(ctx, &adminpb.GetClusterRequest{Name: name + "x"}))
		}, codes.NotFound, "Cluster not found", ""},
		{"get malformed", func(ctx context.Context, s *server) error {
			return drop(s.inst.GetCluster(ctx, &adminpb.GetClusterRequest{Name: testInstance}))
		}, codes.InvalidArgument, "When parsing", "name"},
		{"list nowhere", func(ctx context.Context, s *server) error {
			return drop(s.inst.ListClusters(ctx, &adminpb.ListClustersRequest{Parent: testInstance + "x"}))
		}, codes.NotFound, "Instance not found", ""},
		{"list malformed", func(ctx context.Context, s *server) error {
			return drop(s.inst.ListClusters(ctx, &adminpb.ListClustersRequest{Parent: "-"}))
		}, codes.InvalidArgument, "When parsing", "parent"},
		{"delete routed to", del(testInstance + "/clusters/cluster-new"), codes.FailedPrecondition, "app profile 'to-new' routes to it", ""},
		{"delete in group", del(testInstance + "/clusters/cluster-two"), codes.FailedPrecondition, "app profile 'to-two' routes to it", ""},
		{"delete last", del(testProject + "/instances/inst-two/clusters/cluster-one"), codes.FailedPrecondition, "Cannot delete the last cluster", ""},
		{"delete missing", del(name + "x"), codes.NotFound, "Cluster not found", ""},
		{"delete malformed", del("x"), codes.InvalidArgument, "When parsing", "name"},
	})
	must(s.inst.DeleteAppProfile(ctx, &adminpb.DeleteAppProfileRequest{Name: testInstance + "/appProfiles/to-new"}))(t)
	must(s.inst.DeleteCluster(ctx, &adminpb.DeleteClusterRequest{Name: testInstance + "/clusters/cluster-new"}))(t)
	if n := len(must(s.inst.ListClusters(ctx, &adminpb.ListClustersRequest{Parent: testInstance}))(t).Clusters); n != 2 {
		t.Errorf("%d clusters", n)
	}
}

// Changes of one instance that come at once are all made.
func TestConcurrentChanges(t *testing.T) {
	s := strict(t)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			_, err := s.inst.CreateAppProfile(t.Context(), &adminpb.CreateAppProfileRequest{Parent: testInstance, AppProfileId: fmt.Sprint("p", i), AppProfile: multi()})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := len(must(s.inst.ListAppProfiles(t.Context(), &adminpb.ListAppProfilesRequest{Parent: testInstance}))(t).AppProfiles); n != 21 {
		t.Errorf("%d profiles", n)
	}
}

func TestEnsureDefaults(t *testing.T) {
	b := model.New(model.Options{})
	s := serve(t, b, Options{Zone: "here"})
	ctx := t.Context()
	ensure := func() {
		t.Helper()
		if err := s.admin.EnsureDefaults(ctx); err != nil {
			t.Fatal(err)
		}
	}
	ensure()
	ensure()
	must(s.CreateTable(ctx, &adminpb.CreateTableRequest{Parent: DefaultInstance, TableId: "t"}))(t)
	if c := must(s.inst.GetCluster(ctx, &adminpb.GetClusterRequest{Name: DefaultInstance + "/clusters/default"}))(t); c.Location != "projects/default/locations/here" {
		t.Error(c)
	}
	p := must(s.admin.Profile(ctx, DefaultInstance, ""))(t)
	if p != (Profile{AllowTransactionalWrites: true, SingleCluster: true, ClusterID: "default", Zone: "here"}) {
		t.Error(p)
	}
	must(s.inst.DeleteInstance(ctx, &adminpb.DeleteInstanceRequest{Name: DefaultInstance}))(t)
	ensure()
	if err := s.admin.Instance(ctx, DefaultInstance); fault.KindOf(err) != fault.NotFound {
		t.Errorf("came back: %v", err)
	}
}

func aPolicy() *iampb.Policy {
	return &iampb.Policy{Bindings: []*iampb.Binding{{Role: "roles/bigtable.reader", Members: []string{"user:a@example.com"}}}}
}

func TestPolicies(t *testing.T) {
	s := strict(t)
	ctx := t.Context()
	for name, c := range map[string]struct {
		resource string
		get      func(*iampb.GetIamPolicyRequest) (*iampb.Policy, error)
		set      func(*iampb.SetIamPolicyRequest) (*iampb.Policy, error)
		test     func(*iampb.TestIamPermissionsRequest) (*iampb.TestIamPermissionsResponse, error)
	}{
		"instance": {testInstance,
			func(r *iampb.GetIamPolicyRequest) (*iampb.Policy, error) { return s.inst.GetIamPolicy(ctx, r) },
			func(r *iampb.SetIamPolicyRequest) (*iampb.Policy, error) { return s.inst.SetIamPolicy(ctx, r) },
			func(r *iampb.TestIamPermissionsRequest) (*iampb.TestIamPermissionsResponse, error) {
				return s.inst.TestIamPermissions(ctx, r)
			}},
		"table": {testTable,
			func(r *iampb.GetIamPolicyRequest) (*iampb.Policy, error) { return s.GetIamPolicy(ctx, r) },
			func(r *iampb.SetIamPolicyRequest) (*iampb.Policy, error) { return s.SetIamPolicy(ctx, r) },
			func(r *iampb.TestIamPermissionsRequest) (*iampb.TestIamPermissionsResponse, error) {
				return s.TestIamPermissions(ctx, r)
			}},
	} {
		t.Run(name, func(t *testing.T) {
			get := func() *iampb.Policy {
				t.Helper()
				return must(c.get(&iampb.GetIamPolicyRequest{Resource: c.resource}))(t)
			}
			empty := get()
			if len(empty.Bindings) != 0 || len(empty.Etag) == 0 {
				t.Error(empty)
			}
			want := aPolicy()
			want.Etag = empty.Etag
			set := must(c.set(&iampb.SetIamPolicyRequest{Resource: c.resource, Policy: want}))(t)
			if !proto.Equal(set, get()) || string(set.Etag) == string(empty.Etag) || set.Bindings[0].Role != "roles/bigtable.reader" {
				t.Errorf("%v %v", set, get())
			}
			_, err := c.set(&iampb.SetIamPolicyRequest{Resource: c.resource, Policy: want})
			if status.Code(err) != codes.Aborted {
				t.Errorf("stale etag: %v", err)
			}
			next := aPolicy() // without an etag it is not held to one
			next.Version, next.Bindings[0].Role = 3, "roles/bigtable.admin"
			must(c.set(&iampb.SetIamPolicyRequest{Resource: c.resource, Policy: next, UpdateMask: mask("bindings", "etag")}))(t)
			if p := get(); p.Version != 0 || p.Bindings[0].Role != "roles/bigtable.admin" {
				t.Error(p)
			}
			held := must(c.test(&iampb.TestIamPermissionsRequest{Resource: c.resource, Permissions: []string{"bigtable.tables.get"}}))(t)
			if len(held.Permissions) != 1 {
				t.Error(held)
			}
			if p := must(s.admin.Policy(ctx, c.resource))(t); !proto.Equal(p, get()) {
				t.Error(p)
			}
			if held := must(c.test(&iampb.TestIamPermissionsRequest{Resource: c.resource}))(t); len(held.Permissions) != 0 {
				t.Error(held)
			}
			refuse := func(name, text, field string, code codes.Code, call func() error) refusal {
				return refusal{name, func(context.Context, *server) error { return call() }, code, text, field}
			}
			setting := func(p *iampb.Policy, paths ...string) func() error {
				return func() error {
					r := &iampb.SetIamPolicyRequest{Resource: c.resource, Policy: p}
					if len(paths) > 0 {
						r.UpdateMask = mask(paths...)
					}
					return drop(c.set(r))
				}
			}
			conditional := aPolicy()
			conditional.Bindings[0].Condition = &expr.Expr{Expression: "true"}
			checkRefusals(t, s, []refusal{
				refuse("missing", "not found", "", codes.NotFound, func() error {
					return drop(c.get(&iampb.GetIamPolicyRequest{Resource: c.resource + "x"}))
				}),
				refuse("malformed", "When parsing 'x'", "resource", codes.InvalidArgument, func() error {
					return drop(c.get(&iampb.GetIamPolicyRequest{Resource: "x"}))
				}),
				refuse("version", "Must be 0, 1 or 3, but found 2", "options.requested_policy_version", codes.InvalidArgument, func() error {
					return drop(c.get(&iampb.GetIamPolicyRequest{Resource: c.resource, Options: &iampb.GetPolicyOptions{RequestedPolicyVersion: 2}}))
				}),
				refuse("no policy", "Must be specified", "policy", codes.InvalidArgument, setting(nil)),
				refuse("policy version", "Must be 0, 1 or 3", "policy.version", codes.InvalidArgument, setting(&iampb.Policy{Version: 2})),
				refuse("no role", "Must not be empty", "policy.bindings[0].role", codes.InvalidArgument, setting(&iampb.Policy{Bindings: []*iampb.Binding{{}}})),
				refuse("condition", "Needs a policy of version 3", "policy.bindings[0].condition", codes.InvalidArgument, setting(conditional)),
				refuse("member of no kind", "'alice@example.com' is not a member", "policy.bindings[0].members[1]", codes.InvalidArgument,
					setting(&iampb.Policy{Bindings: []*iampb.Binding{{Role: "roles/viewer", Members: []string{"group:all@example.com", "alice@example.com"}}}})),
				refuse("member of no kind by a mask", "'users:x' is not a member", "policy.bindings[0].members[0]", codes.InvalidArgument,
					setting(&iampb.Policy{Bindings: []*iampb.Binding{{Role: "roles/viewer", Members: []string{"users:x"}}}}, "bindings")),
				refuse("mask", "Unknown field 'colour'", "update_mask", codes.InvalidArgument, setting(aPolicy(), "colour")),
				refuse("set missing", "not found", "", codes.NotFound, func() error {
					return drop(c.set(&iampb.SetIamPolicyRequest{Resource: c.resource + "x", Policy: aPolicy()}))
				}),
				refuse("test missing", "not found", "", codes.NotFound, func() error {
					return drop(c.test(&iampb.TestIamPermissionsRequest{Resource: c.resource + "x"}))
				}),
				refuse("wildcard", "wildcards", "permissions[0]", codes.InvalidArgument, func() error {
					return drop(c.test(&iampb.TestIamPermissionsRequest{Resource: c.resource, Permissions: []string{"bigtable.*"}}))
				}),
			})
		})
	}
	// A table made again under its name begins without a policy; an undeleted
	// one has its own.
	must(s.DeleteTable(ctx, &adminpb.DeleteTableRequest{Name: testTable}))(t)
	must(s.UndeleteTable(ctx, &adminpb.UndeleteTableRequest{Name: testTable}))(t)
	if p := must(s.GetIamPolicy(ctx, &iampb.GetIamPolicyRequest{Resource: testTable}))(t); len(p.Bindings) != 1 {
		t.Error(p)
	}
	must(s.DeleteTable(ctx, &adminpb.DeleteTableRequest{Name: testTable}))(t)
	must(s.CreateTable(ctx, &adminpb.CreateTableRequest{Parent: testInstance, TableId: "t"}))(t)
	if p := must(s.GetIamPolicy(ctx, &iampb.GetIamPolicyRequest{Resource: testTable}))(t); len(p.Bindings) != 0 {
		t.Error(p)
	}
	if _, err := s.GetIamPolicy(ctx, &iampb.GetIamPolicyRequest{Resource: testInstance + "/clusters/c/backups/b"}); status.Code(err) != codes.NotFound {
		t.Error(err)
	}
	for resource, tables := range map[string]bool{
		testTable + "/authorizedViews/v": true, testTable + "/schemaBundles/b": true,
		testInstance + "/logicalViews/v": false, testInstance + "/materializedViews/v": false,
	} {
		var err error
		if tables {
			_, err = s.GetIamPolicy(ctx, &iampb.GetIamPolicyRequest{Resource: resource})
		} else {
			_, err = s.inst.GetIamPolicy(ctx, &iampb.GetIamPolicyRequest{Resource: resource})
		}
		if status.Code(err) != codes.NotFound {
			t.Errorf("%s: %v", resource, err)
		}
	}
}

// What the caller holds is for whoever knows callers to say.
func TestPermissionsHook(t *testing.T) {
	s := serve(t, model.New(model.Options{}), Options{Permissions: func(_ context.Context, resource string, ps []string) ([]string, error) {
		if resource != testInstance {
			t.Errorf("resource %q", resource)
		}
		return ps[:1], nil
	}})
	s.createInstance(t, "inst-one", "cluster-one")
	held := must(s.inst.TestIamPermissions(t.Context(), &iampb.TestIamPermissionsRequest{Resource: testInstance, Permissions: []string{"a", "b"}}))(t)
	if strings.Join(held.Permissions, " ") != "a" {
		t.Error(held)
	}
}
