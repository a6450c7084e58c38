package server

import (
	"context"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/model"
	"github.com/trestledb/trestle/compat/hbase/pb"
)

// metaService is ClientMetaService: all of it is this server.
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
			return &pb.GetMastersResponse{MasterServers: []*pb.GetMastersResponseEntry{{ServerName: me, IsActive: proto.Bool(true)}}}, nil
		}),
		"GetMetaRegionLocations": Handle(func(context.Context, *Call, *pb.GetMetaRegionLocationsRequest) (*pb.GetMetaRegionLocationsResponse, error) {
			return &pb.GetMetaRegionLocationsResponse{MetaLocations: []*pb.RegionLocation{
				{RegionInfo: model.MetaRegion.Info(), ServerName: me, SeqNum: proto.Int64(0)}}}, nil
		}),
		"GetBootstrapNodes": Handle(func(context.Context, *Call, *pb.GetBootstrapNodesRequest) (*pb.GetBootstrapNodesResponse, error) {
			return &pb.GetBootstrapNodesResponse{ServerName: []*pb.ServerName{me}}, nil
		}),
	}
}
