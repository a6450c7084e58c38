package data

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/gateway/sql"
	"github.com/trestledb/trestle/gateway/wire"
)

// readOnlyHeader is why the request may only read: a front of this server sets it.
const readOnlyHeader = "trestle-read-only"

// executeQuery implements D11.
func (s *Service) executeQuery(req *wire.ExecuteQueryRequest, stream grpc.ServerStream) error {
	if s.opt.SQL == nil {
		return errNoSQL
	}
	ctx := stream.Context()
	if err := s.instance(ctx, "instance_name", req.GetInstanceName(), req.GetAppProfileId()); err != nil {
		return err
	}
	// Only the statement tells whether it writes.
	readOnly := s.profile(ctx, req.GetInstanceName(), req.GetAppProfileId(), write)
	if readOnly != nil && fault.KindOf(readOnly) != fault.FailedPrecondition {
		return readOnly
	}
	if why := metadata.ValueFromIncomingContext(ctx, readOnlyHeader); len(why) > 0 {
		readOnly = fault.New(fault.PermissionDenied, "The statement writes, and %s", why[0])
	}
	return s.opt.SQL.Execute(ctx, &sql.Request{ExecuteQueryRequest: &req.ExecuteQueryRequest, ReadOnly: readOnly, Send: func(b mem.BufferSlice) error {
		m := wire.NewBuffers(b)
		defer m.Free()
		return stream.SendMsg(m)
	}})
}
