package admin

import (
	"context"
	"sort"
	"strings"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trestledb/trestle/engine/fault"
)

// A memory layer is a setting of a cluster: whether rows that are read often
// are to be kept in memory. The engine keeps blocks in memory for everyone and
// has nothing to allocate, so that the layer is ready at once and reports no
// size of its own.

const memoryLayerSuffix = "/memoryLayer"

// unsetLayerETag is the etag of a memory layer that was never set.
const unsetLayerETag = "unset"

// memoryLayer returns the memory layer of a cluster, by the cluster's id.
func (i *instance) memoryLayer(id string) *adminpb.MemoryLayer {
	if l := i.layers[id]; l != nil {
		return l
	}
	return &adminpb.MemoryLayer{Name: i.clusters[id].GetName() + memoryLayerSuffix, Etag: unsetLayerETag, State: adminpb.MemoryLayer_DISABLED}
}

// parseMemoryLayer returns the ids of the cluster of a memory layer.
func (a *Admin) parseMemoryLayer(field, name string) ([]string, error) {
	c, ok := strings.CutSuffix(name, memoryLayerSuffix)
	if ok {
		if ids, err := a.parse(field, clusterForm, c); err == nil {
			return ids, nil
		}
	}
	return nil, refuse(fault.Invalid, field, "When parsing '%s' : Memory layer name expected in the form '%s%s'.", name, clusterForm, memoryLayerSuffix)
}

var layerMask = maskRule{allowed: []string{"memory_config"}, ignored: []string{"name", "etag", "state"}}

// UpdateMemoryLayer implements I13.
func (s *instanceServer) UpdateMemoryLayer(ctx context.Context, req *adminpb.UpdateMemoryLayerRequest) (*longrunningpb.Operation, error) {
	start := timestamppb.New(s.o.Now())
	in := req.GetMemoryLayer()
	mask, err := optionalMask(req.GetUpdateMask(), in, layerMask)
	if err != nil {
		return nil, err
	}
	ids, err := s.parseMemoryLayer("memory_layer.name", in.GetName())
	if err != nil {
		return nil, err
	}
	var l *adminpb.MemoryLayer
	_, err = s.changeInstance(ctx, "memory_layer.name", parent(ids, clusterForm, 2), func(i *instance) error {
		if i.clusters[ids[2]] == nil {
			return missing("memory_layer.name", "Cluster", parent(ids, clusterForm, 3))
		}
		l = proto.Clone(i.memoryLayer(ids[2])).(*adminpb.MemoryLayer)
		if e := in.GetEtag(); e != "" && e != l.GetEtag() {
			return refuse(fault.Aborted, "memory_layer.etag", "Memory layer was changed since it was read: %s", l.GetName())
		}
		applyMask(l, in, mask, layerMask)
		l.State = adminpb.MemoryLayer_DISABLED
		if l.MemoryConfig != nil {
			l.MemoryConfig = new(adminpb.MemoryLayer_MemoryConfig) // its only field is for output
			l.State = adminpb.MemoryLayer_READY
		}
		l.Etag = randomText()
		i.layers[ids[2]] = l
		return nil
	})
	if err != nil {
		return nil, err
	}
	return s.finished(ctx, l.GetName(), &adminpb.UpdateMemoryLayerMetadata{
		OriginalRequest: req, RequestTime: start, FinishTime: timestamppb.New(s.o.Now()),
	}, l)
}

// ListMemoryLayers implements I14.
func (s *instanceServer) ListMemoryLayers(ctx context.Context, req *adminpb.ListMemoryLayersRequest) (*adminpb.ListMemoryLayersResponse, error) {
	ids, err := s.parse("parent", clusterForm, req.GetParent(), true)
	if err != nil {
		return nil, err
	}
	p, err := s.newPage(ctx, "memoryLayers "+req.GetParent(), req.GetPageSize(), req.GetPageToken())
	if err != nil {
		return nil, err
	}
	i, err := s.instanceAt(ctx, "parent", parent(ids, clusterForm, 2))
	if err != nil {
		return nil, err
	}
	all := make([]*adminpb.MemoryLayer, 0, len(i.clusters))
	if ids[2] == "-" {
		for _, id := range i.clusterIDs() {
			all = append(all, i.memoryLayer(id))
		}
		sort.Slice(all, func(x, y int) bool { return all[x].GetName() < all[y].GetName() })
	} else if i.clusters[ids[2]] == nil {
		return nil, missing("parent", "Cluster", req.GetParent())
	} else {
		all = append(all, i.memoryLayer(ids[2]))
	}
	resp := new(adminpb.ListMemoryLayersResponse)
	resp.MemoryLayers, resp.NextPageToken, err = cut(ctx, s.Admin, p, all, (*adminpb.MemoryLayer).GetName)
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// GetMemoryLayer implements I15.
func (s *instanceServer) GetMemoryLayer(ctx context.Context, req *adminpb.GetMemoryLayerRequest) (*adminpb.MemoryLayer, error) {
	ids, err := s.parseMemoryLayer("name", req.GetName())
	if err != nil {
		return nil, err
	}
	i, err := s.instanceAt(ctx, "name", parent(ids, clusterForm, 2))
	if err != nil {
		return nil, err
	}
	if i.clusters[ids[2]] == nil {
		return nil, missing("name", "Cluster", parent(ids, clusterForm, 3))
	}
	return i.memoryLayer(ids[2]), nil
}
