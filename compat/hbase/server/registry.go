package server

import (
	"context"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/model"
	"github.com/trestledb/trestle/compat/hbase/pb"
)

// metaService is ClientMetaService: this server is the master and has
// hbase:meta, as the client has reached it. The others are named for the time
// when it does not.
func (s *Server) metaService() Service {
	me := s.catalog.Server().Proto()
	return Service{
		"GetClusterId": Handle(func(context.Context, *Call, *pb.GetClusterIdRequest) (*pb.GetClusterIdResponse, error) {
			return &pb.GetClusterIdResponse{ClusterId: proto.String(s.catalog.ClusterID())}, nil
		}),
		"GetActiveMaster": Handle(func(context.Context, *Call, *pb.GetActiveMasterRequest) (*pb.GetActiveMasterResponse, error) {
			return &pb.GetActiveMasterResponse{ServerName: me}, nil
		}),
		"GetMasters": Handle(func(context.Context, *Call, *pb.GetMastersRequest) (*pb.GetMastersResponse, error) {
			resp := &pb.GetMastersResponse{MasterServers: []*pb.GetMastersResponseEntry{{ServerName: me, IsActive: proto.Bool(true)}}}
			for _, o := range s.others() {
				resp.MasterServers = append(resp.MasterServers, &pb.GetMastersResponseEntry{ServerName: o, IsActive: proto.Bool(false)})
			}
			return resp, nil
		}),
		"GetMetaRegionLocations": Handle(func(context.Context, *Call, *pb.GetMetaRegionLocationsRequest) (*pb.GetMetaRegionLocationsResponse, error) {
			return &pb.GetMetaRegionLocationsResponse{MetaLocations: []*pb.RegionLocation{
				{RegionInfo: model.MetaRegion.Info(), ServerName: me, SeqNum: proto.Int64(0)}}}, nil
		}),
		"GetBootstrapNodes": Handle(func(context.Context, *Call, *pb.GetBootstrapNodesRequest) (*pb.GetBootstrapNodesResponse, error) {
			return &pb.GetBootstrapNodesResponse{ServerName: append([]*pb.ServerName{me}, s.others()...)}, nil
		}),
	}
}

// others returns the servers that live, without this one.
func (s *Server) others() []*pb.ServerName {
	var out []*pb.ServerName
	for _, o := range s.catalog.Servers() {
		if o != s.catalog.Server() {
			out = append(out, o.Proto())
		}
	}
	return out
}
