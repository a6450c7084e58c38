package admin

import (
	"context"
	"strings"
	"testing"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
)

func TestMemoryLayers(t *testing.T) {
	s, ctx := strict(t), t.Context()
	one, two := testInstance+"/clusters/cluster-one", testInstance+"/clusters/cluster-two"
	get := func(cluster string) *adminpb.MemoryLayer {
		t.Helper()
		return must(s.inst.GetMemoryLayer(ctx, &adminpb.GetMemoryLayerRequest{Name: cluster + "/memoryLayer"}))(t)
	}
	unset := get(one)
	if unset.Name != one+"/memoryLayer" || unset.State != adminpb.MemoryLayer_DISABLED || unset.MemoryConfig != nil || unset.Etag == "" {
		t.Fatal(unset)
	}
	update := func(l *adminpb.MemoryLayer, m *fieldmaskpb.FieldMask) (*adminpb.MemoryLayer, error) {
		if l.Name == "" {
			l.Name = one + "/memoryLayer"
		}
		req := &adminpb.UpdateMemoryLayerRequest{MemoryLayer: l, UpdateMask: m}
		op, err := s.inst.UpdateMemoryLayer(ctx, req)
		if err != nil {
			return nil, err
		}
		md := new(adminpb.UpdateMemoryLayerMetadata)
		got := response(t, op, md, new(adminpb.MemoryLayer))
		if !proto.Equal(md.OriginalRequest, req) || md.RequestTime == nil || md.FinishTime == nil {
			t.Error(md)
		}
		if !proto.Equal(got, get(one)) {
			t.Errorf("got %v, stored %v", got, get(one))
		}
		return got, nil
	}
	on := &adminpb.MemoryLayer_MemoryConfig{StorageSizeGib: 7}
	l := must(update(&adminpb.MemoryLayer{MemoryConfig: on, Etag: unset.Etag, State: adminpb.MemoryLayer_RESIZING}, nil))(t)
	if l.State != adminpb.MemoryLayer_READY || l.MemoryConfig == nil || l.MemoryConfig.StorageSizeGib != 0 || l.Etag == unset.Etag {
		t.Error(l)
	}
	if l = must(update(&adminpb.MemoryLayer{}, nil))(t); l.State != adminpb.MemoryLayer_READY {
		t.Error("nothing was set, but something changed: ", l)
	}
	for _, path := range []string{"memory_config", "*"} {
		must(update(&adminpb.MemoryLayer{MemoryConfig: on}, mask("*")))(t)
		if l = must(update(&adminpb.MemoryLayer{Etag: get(one).Etag}, mask(path)))(t); l.State != adminpb.MemoryLayer_DISABLED || l.MemoryConfig != nil {
			t.Error(path, l)
		}
	}
	must(update(&adminpb.MemoryLayer{MemoryConfig: on}, mask("memory_config")))(t)
	if l := get(two); l.State != adminpb.MemoryLayer_DISABLED {
		t.Error(l)
	}

	list := func(cluster string) string {
		t.Helper()
		req, names := &adminpb.ListMemoryLayersRequest{Parent: testInstance + "/clusters/" + cluster, PageSize: 1}, ""
		for {
			resp := must(s.inst.ListMemoryLayers(ctx, req))(t)
			for _, l := range resp.MemoryLayers {
				names += " " + strings.TrimPrefix(l.Name, testInstance+"/clusters/") + "=" + l.State.String()
			}
			if req.PageToken = resp.NextPageToken; req.PageToken == "" {
				return names[1:]
			}
		}
	}
	if got := list("-"); got != "cluster-one/memoryLayer=READY cluster-two/memoryLayer=DISABLED" {
		t.Error(got)
	}
	if got := list("cluster-two"); got != "cluster-two/memoryLayer=DISABLED" {
		t.Error(got)
	}

	getting := func(name string) func(context.Context, *server) error {
		return func(ctx context.Context, s *server) error {
			return drop(s.inst.GetMemoryLayer(ctx, &adminpb.GetMemoryLayerRequest{Name: name}))
		}
	}
	listing := func(parent string, size int32) func(context.Context, *server) error {
		return func(ctx context.Context, s *server) error {
			return drop(s.inst.ListMemoryLayers(ctx, &adminpb.ListMemoryLayersRequest{Parent: parent, PageSize: size}))
		}
	}
	updating := func(l *adminpb.MemoryLayer, paths ...string) func(context.Context, *server) error {
		return func(context.Context, *server) error { return drop(update(l, mask(paths...))) }
	}
	checkRefusals(t, s, []refusal{
		{"cluster", getting(one + "x/memoryLayer"), codes.NotFound, "Cluster not found: " + one + "x", ""},
		{"instance", getting(testInstance + "x/clusters/cluster-one/memoryLayer"), codes.NotFound, "Instance not found", ""},
		{"name", getting(one), codes.InvalidArgument, "expected in the form 'projects/<project_id>/instances/<instance_id>/clusters/<cluster_id>/memoryLayer'", "name"},
		{"list cluster", listing(one+"x", 0), codes.NotFound, "Cluster not found", ""},
		{"list size", listing(one, -1), codes.InvalidArgument, "Must not be negative", "page_size"},
		{"list parent", listing(testInstance, 0), codes.InvalidArgument, "Cluster name expected", "parent"},
		{"etag", updating(&adminpb.MemoryLayer{Etag: unset.Etag}, "memory_config"), codes.Aborted, "changed since it was read", ""},
		{"mask", updating(&adminpb.MemoryLayer{}, "size"), codes.InvalidArgument, "Unknown field 'size'", "update_mask"},
		{"update cluster", updating(&adminpb.MemoryLayer{Name: one + "x/memoryLayer"}, "memory_config"), codes.NotFound, "Cluster not found", ""},
		{"update name", updating(&adminpb.MemoryLayer{Name: "x"}, "memory_config"), codes.InvalidArgument, "Memory layer name expected", "memory_layer.name"},
	})

	// A cluster made again under its name begins without a memory layer.
	must(update(&adminpb.MemoryLayer{MemoryConfig: on}, nil))(t)
	must(s.inst.UpdateAppProfile(ctx, &adminpb.UpdateAppProfileRequest{AppProfile: &adminpb.AppProfile{Name: testInstance + "/appProfiles/default",
		RoutingPolicy: &adminpb.AppProfile_SingleClusterRouting_{SingleClusterRouting: &adminpb.AppProfile_SingleClusterRouting{ClusterId: "cluster-two", AllowTransactionalWrites: true}}},
		UpdateMask: mask("single_cluster_routing"), IgnoreWarnings: true}))(t)
	must(s.inst.DeleteCluster(ctx, &adminpb.DeleteClusterRequest{Name: one}))(t)
	must(s.inst.CreateCluster(ctx, &adminpb.CreateClusterRequest{Parent: testInstance, ClusterId: "cluster-one", Cluster: cluster(1)}))(t)
	if l := get(one); l.State != adminpb.MemoryLayer_DISABLED {
		t.Error(l)
	}
}
