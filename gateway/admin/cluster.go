package admin

import (
	"context"
	"strings"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/gateway/wire"
)

// newCluster returns the cluster called id as it is stored, made from a
// request, or what is wrong with it. What is output only in the request is
// ignored, the name included.
func newCluster(i *instance, id string, in *adminpb.Cluster) (*adminpb.Cluster, error) {
	if !isNewLowerID(id) {
		return nil, refuse(fault.Invalid, "", "Cluster Id : Invalid id for collection clusters : Should match %s but found '%s'", lowerIDPattern, id)
	}
	c := &adminpb.Cluster{
		Name: i.pb.GetName() + "/clusters/" + id, State: adminpb.Cluster_READY, Location: in.GetLocation(), ServeNodes: in.GetServeNodes(),
		NodeScalingFactor: in.GetNodeScalingFactor(), DefaultStorageType: in.GetDefaultStorageType(),
	}
	if a := in.GetClusterConfig().GetClusterAutoscalingConfig(); a != nil {
		c.Config = &adminpb.Cluster_ClusterConfig_{ClusterConfig: &adminpb.Cluster_ClusterConfig{
			ClusterAutoscalingConfig: proto.Clone(a).(*adminpb.Cluster_ClusterAutoscalingConfig),
		}}
	}
	parts := strings.Split(c.Location, "/")
	if len(parts) != 4 || parts[0] != "projects" || parts[1] == "" || parts[2] != "locations" || !wire.LowerID(parts[3]) {
		return nil, refuse(fault.Invalid, "location", "Error in field 'location' : When parsing '%s' : Location name expected in the form 'projects/<project_id>/locations/<zone_id>'.", c.Location)
	}
	if c.DefaultStorageType == adminpb.StorageType_STORAGE_TYPE_UNSPECIFIED {
		c.DefaultStorageType = adminpb.StorageType_SSD
	}
	if _, ok := adminpb.StorageType_name[int32(c.DefaultStorageType)]; !ok {
		return nil, refuse(fault.Invalid, "default_storage_type", "Error in field 'default_storage_type' : Unknown value %d", c.DefaultStorageType)
	}
	if _, ok := adminpb.Cluster_NodeScalingFactor_name[int32(c.NodeScalingFactor)]; !ok {
		return nil, refuse(fault.Invalid, "node_scaling_factor", "Error in field 'node_scaling_factor' : Unknown value %d", c.NodeScalingFactor)
	}
	if k := in.GetEncryptionConfig().GetKmsKeyName(); k != "" {
		return nil, refuse(fault.Unimplemented, "encryption_config.kms_key_name", "Customer-managed encryption keys are not supported")
	}
	if autoscaling(c) != nil && c.ServeNodes != 0 {
		return nil, errBothNodes()
	}
	if autoscaling(c) == nil && c.ServeNodes == 0 && i.pb.GetType() == adminpb.Instance_DEVELOPMENT {
		c.ServeNodes = 1 // a development instance must not say
		if c.NodeScalingFactor == adminpb.Cluster_NODE_SCALING_FACTOR_2X {
			c.ServeNodes = 2
		}
	}
	if err := checkNodes(c); err != nil {
		return nil, err
	}
	if a := autoscaling(c); a != nil {
		c.ServeNodes = a.GetAutoscalingLimits().GetMinServeNodes()
	}
	return c, nil
}

func autoscaling(c *adminpb.Cluster) *adminpb.Cluster_ClusterAutoscalingConfig {
	return c.GetClusterConfig().GetClusterAutoscalingConfig()
}

func errBothNodes() error {
	return refuse(fault.Invalid, "serve_nodes", "Exactly one of 'serve_nodes' and 'cluster_config.cluster_autoscaling_config' must be set, but found both")
}

// checkNodes checks how many nodes c has, and completes an autoscaling
// configuration: a target of zero is the default. The number of nodes is not
// the configuration's to change: in Google's service the autoscaler does that,
// some time later.
func checkNodes(c *adminpb.Cluster) error {
	step := int32(1)
	if c.GetNodeScalingFactor() == adminpb.Cluster_NODE_SCALING_FACTOR_2X {
		step = 2
	}
	multiple := func(field string, n int32) error {
		if n%step != 0 {
			return refuse(fault.Invalid, field, "Error in field '%s' : Must be a multiple of %d with NODE_SCALING_FACTOR_2X, but found %d", leaf(field), step, n)
		}
		return nil
	}
	a := autoscaling(c)
	if a == nil {
		if c.GetServeNodes() < 1 {
			return refuse(fault.Invalid, "serve_nodes", "Error in field 'serve_nodes' : Must be at least 1 without 'cluster_config.cluster_autoscaling_config', but found %d", c.GetServeNodes())
		}
		c.Config = nil
		return multiple("serve_nodes", c.GetServeNodes())
	}
	const path = "cluster_config.cluster_autoscaling_config."
	l, t := a.GetAutoscalingLimits(), a.GetAutoscalingTargets()
	if l == nil {
		return refuse(fault.Invalid, path+"autoscaling_limits", "Error in field 'autoscaling_limits' : Must be specified")
	}
	if t == nil {
		return refuse(fault.Invalid, path+"autoscaling_targets", "Error in field 'autoscaling_targets' : Must be specified")
	}
	if n := l.GetMinServeNodes(); n < 1 {
		return refuse(fault.Invalid, path+"autoscaling_limits.min_serve_nodes", "Error in field 'min_serve_nodes' : Must be at least 1, but found %d", n)
	}
	if l.GetMaxServeNodes() < l.GetMinServeNodes() {
		return refuse(fault.Invalid, path+"autoscaling_limits.max_serve_nodes", "Error in field 'max_serve_nodes' : Must be at least min_serve_nodes %d, but found %d", l.GetMinServeNodes(), l.GetMaxServeNodes())
	}
	if err := multiple(path+"autoscaling_limits.min_serve_nodes", l.GetMinServeNodes()); err != nil {
		return err
	}
	if err := multiple(path+"autoscaling_limits.max_serve_nodes", l.GetMaxServeNodes()); err != nil {
		return err
	}
	if n := t.GetCpuUtilizationPercent(); n < 10 || n > 80 {
		return refuse(fault.Invalid, path+"autoscaling_targets.cpu_utilization_percent", "Error in field 'cpu_utilization_percent' : Must be between 10 and 80, but found %d", n)
	}
	low, high := int32(2560), int32(5120)
	if c.GetDefaultStorageType() == adminpb.StorageType_HDD {
		low, high = 8192, 16384
	}
	if t.StorageUtilizationGibPerNode == 0 {
		t.StorageUtilizationGibPerNode = low
	}
	if n := t.GetStorageUtilizationGibPerNode(); n < low || n > high {
		return refuse(fault.Invalid, path+"autoscaling_targets.storage_utilization_gib_per_node", "Error in field 'storage_utilization_gib_per_node' : Must be between %d and %d for %s, but found %d", low, high, c.GetDefaultStorageType(), n)
	}
	return nil
}

// leaf returns the last part of a field path.
func leaf(path string) string { return path[strings.LastIndexByte(path, '.')+1:] }

// CreateCluster implements I7. Every table has its data in the new cluster at
// once, since there is one copy for all of them.
func (s *instanceServer) CreateCluster(ctx context.Context, req *adminpb.CreateClusterRequest) (*longrunningpb.Operation, error) {
	start := timestamppb.New(s.o.Now())
	ids, err := s.parse("parent", instanceForm, req.GetParent())
	if err != nil {
		return nil, err
	}
	if req.GetCluster() == nil {
		return nil, refuse(fault.Invalid, "cluster", "Error in field 'cluster' : Must be specified")
	}
	name := parent(ids, instanceForm, 2)
	var c *adminpb.Cluster
	_, err = s.changeInstance(ctx, "parent", name, func(i *instance) error {
		if i.clusters[req.GetClusterId()] != nil {
			return alreadyThere("cluster_id", "Cluster", name+"/clusters/"+req.GetClusterId())
		}
		if c, err = newCluster(i, req.GetClusterId(), req.GetCluster()); err != nil {
			return within("cluster", -1, err)
		}
		i.clusters[req.GetClusterId()] = c
		return nil
	})
	if err != nil {
		return nil, err
	}
	ts, err := s.b.ListTables(ctx, name)
	if err != nil {
		return nil, err
	}
	progress := make(map[string]*adminpb.CreateClusterMetadata_TableProgress, len(ts))
	for _, t := range ts {
		n, err := s.b.TableBytes(ctx, t.Name)
		if err != nil {
			continue // deleted meanwhile; the cluster is there all the same
		}
		progress[t.Name] = &adminpb.CreateClusterMetadata_TableProgress{
			State: adminpb.CreateClusterMetadata_TableProgress_COMPLETED, EstimatedSizeBytes: n, EstimatedCopiedBytes: n,
		}
	}
	answer := c
	if autoscaling(c) != nil {
		// As in Google's service: it has its nodes when it is asked for.
		answer = proto.Clone(c).(*adminpb.Cluster)
		answer.ServeNodes = 0
	}
	return s.finished(ctx, c.GetName(), &adminpb.CreateClusterMetadata{
		OriginalRequest: req, RequestTime: start, FinishTime: timestamppb.New(s.o.Now()), Tables: progress,
	}, answer)
}

// GetCluster implements I8.
func (s *instanceServer) GetCluster(ctx context.Context, req *adminpb.GetClusterRequest) (*adminpb.Cluster, error) {
	ids, err := s.parse("name", clusterForm, req.GetName())
	if err != nil {
		return nil, err
	}
	i, err := s.instanceToShow(ctx, "name", parent(ids, clusterForm, 2))
	if err != nil {
		return nil, err
	}
	if c := i.clusters[ids[2]]; c != nil {
		return c, nil
	}
	return nil, missing("name", "Cluster", req.GetName())
}

// ListClusters implements I9. It gives everything, whatever page_token says.
func (s *instanceServer) ListClusters(ctx context.Context, req *adminpb.ListClustersRequest) (*adminpb.ListClustersResponse, error) {
	ids, err := s.parse("parent", instanceForm, req.GetParent(), true)
	if err != nil {
		return nil, err
	}
	is, err := s.instancesAt(ctx, "parent", ids)
	if err != nil {
		return nil, err
	}
	resp := new(adminpb.ListClustersResponse)
	for _, i := range is {
		for _, id := range i.clusterIDs() {
			resp.Clusters = append(resp.Clusters, i.clusters[id])
		}
	}
	return resp, nil
}

// changeCluster applies change to a cluster and returns it.
func (a *Admin) changeCluster(ctx context.Context, field, name string, ids []string, change func(*adminpb.Cluster) error) (*adminpb.Cluster, error) {
	var c *adminpb.Cluster
	_, err := a.changeInstance(ctx, field, parent(ids, clusterForm, 2), func(i *instance) error {
		if c = i.clusters[ids[2]]; c == nil {
			return missing(field, "Cluster", name)
		}
		return change(c)
	})
	return c, err
}

// UpdateCluster implements I10: it sets serve_nodes. With autoscaling that is
// an output and what the request says is ignored.
func (s *instanceServer) UpdateCluster(ctx context.Context, req *adminpb.Cluster) (*longrunningpb.Operation, error) {
	start := timestamppb.New(s.o.Now())
	ids, err := s.parse("name", clusterForm, req.GetName())
	if err != nil {
		return nil, err
	}
	c, err := s.changeCluster(ctx, "name", req.GetName(), ids, func(c *adminpb.Cluster) error {
		if l := req.GetLocation(); l != "" && l != c.GetLocation() {
			return refuse(fault.Invalid, "location", "Immutable fields 'location' cannot be updated")
		}
		if t := req.GetDefaultStorageType(); t != adminpb.StorageType_STORAGE_TYPE_UNSPECIFIED && t != c.GetDefaultStorageType() {
			return refuse(fault.Invalid, "default_storage_type", "Immutable fields 'default_storage_type' cannot be updated")
		}
		if autoscaling(c) == nil {
			c.ServeNodes = req.GetServeNodes()
		}
		return checkNodes(c)
	})
	if err != nil {
		return nil, err
	}
	return s.finished(ctx, c.GetName(), &adminpb.UpdateClusterMetadata{
		OriginalRequest: req, RequestTime: start, FinishTime: timestamppb.New(s.o.Now()),
	}, c)
}

var clusterMask = maskRule{allowed: []string{"serve_nodes", "cluster_config"}}

// PartialUpdateCluster implements I11.
func (s *instanceServer) PartialUpdateCluster(ctx context.Context, req *adminpb.PartialUpdateClusterRequest) (*longrunningpb.Operation, error) {
	start := timestamppb.New(s.o.Now())
	in, mask := req.GetCluster(), req.GetUpdateMask()
	ids, err := s.parse("cluster.name", clusterForm, in.GetName())
	if err != nil {
		return nil, err
	}
	if err := checkMask(mask, in, clusterMask); err != nil {
		return nil, err
	}
	nodes, scaling := masks(mask, "serve_nodes"), masks(mask, "cluster_config.cluster_autoscaling_config")
	if nodes && in.GetServeNodes() != 0 && scaling && autoscaling(in) != nil {
		return nil, within("cluster", -1, errBothNodes())
	}
	c, err := s.changeCluster(ctx, "cluster.name", in.GetName(), ids, func(c *adminpb.Cluster) error {
		was := proto.Clone(c).(*adminpb.Cluster)
		applyMask(c, in, mask, clusterMask)
		switch now := autoscaling(c); {
		case now != nil && nodes:
			// The number of nodes is an output now, and goes on from what it was.
			c.ServeNodes = was.GetServeNodes()
		case now == nil && autoscaling(was) != nil && !nodes:
			return refuse(fault.Invalid, "cluster.serve_nodes", "'serve_nodes' must be in 'update_mask' when autoscaling is disabled")
		}
		return within("cluster", -1, checkNodes(c))
	})
	if err != nil {
		return nil, err
	}
	return s.finished(ctx, c.GetName(), &adminpb.PartialUpdateClusterMetadata{
		OriginalRequest: req, RequestTime: start, FinishTime: timestamppb.New(s.o.Now()),
	}, c)
}

// DeleteCluster implements I12.
func (s *instanceServer) DeleteCluster(ctx context.Context, req *adminpb.DeleteClusterRequest) (*emptypb.Empty, error) {
	ids, err := s.parse("name", clusterForm, req.GetName())
	if err != nil {
		return nil, err
	}
	s.places.Lock()
	defer s.places.Unlock()
	_, err = s.changeInstance(ctx, "name", parent(ids, clusterForm, 2), func(i *instance) error {
		if i.clusters[ids[2]] == nil {
			return missing("name", "Cluster", req.GetName())
		}
		if err := s.noBackupsLocked(ctx, "Cluster", req.GetName(), req.GetName()+"/"); err != nil {
			return err
		}
		if len(i.clusters) == 1 {
			return refuse(fault.FailedPrecondition, "name", "Cannot delete the last cluster of an instance: %s", req.GetName())
		}
		for _, id := range i.profileIDs() {
			for _, c := range routedTo(i.profiles[id]) {
				if c == ids[2] {
					return refuse(fault.FailedPrecondition, "name", "Cannot delete cluster '%s': app profile '%s' routes to it", c, id)
				}
			}
		}
		delete(i.clusters, ids[2])
		delete(i.layers, ids[2])
		return nil
	})
	if err != nil {
		return nil, err
	}
	return new(emptypb.Empty), nil
}
