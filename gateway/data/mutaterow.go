package data

import (
	"context"
	"sync"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"

	"github.com/trestledb/trestle/gateway/wire"
)

var mutateRowRequests = sync.Pool{New: func() any { return new(wire.MutateRowRequest) }}

// mutateRowResponse is the empty message, ready to be sent.
var mutateRowResponse any = wire.Encoded(nil)

func mutateRowHandler(srv any, ctx context.Context, dec func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
	req := mutateRowRequests.Get().(*wire.MutateRowRequest)
	defer func() {
		req.Release()
		mutateRowRequests.Put(req)
	}()
	if err := dec(req); err != nil {
		return nil, err
	}
	s := srv.(*Service)
	if interceptor == nil {
		return s.mutateRow(ctx, req)
	}
	info := &grpc.UnaryServerInfo{Server: srv, FullMethod: bigtablepb.Bigtable_MutateRow_FullMethodName}
	return interceptor(ctx, req, info, func(ctx context.Context, req any) (any, error) {
		return s.mutateRow(ctx, req.(*wire.MutateRowRequest))
	})
}

func (s *Service) mutateRow(ctx context.Context, req *wire.MutateRowRequest) (any, error) {
	if err := s.open(ctx, req.Table, req.View, "", req.Profile, write); err != nil {
		return nil, err
	}
	if err := req.Check(); err != nil {
		return nil, err
	}
	if err := s.backend.MutateRow(ctx, req.Table, &req.Entry); err != nil {
		return nil, err
	}
	return mutateRowResponse, nil
}
