package gateway

import (
	"context"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/engine/request"
	"github.com/trestledb/trestle/gateway/wire"
)

// A streamMethod is a method with one request and many answers, and the service that
// has it.
type streamMethod struct {
	service any
	handler grpc.StreamHandler
}

// chainStreams returns an interceptor that runs all, the first outermost.
func chainStreams(all []grpc.StreamServerInterceptor) grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		for i := len(all) - 1; i >= 0; i-- {
			in, next := all[i], handler
			handler = func(srv any, ss grpc.ServerStream) error { return in(srv, ss, info, next) }
		}
		return handler(srv, ss)
	}
}

// Stream is Call for a method with one request and many answers. Each answer is
// encoded when send gets it, which may not keep it. An error of send ends the
// call.
func (s *Server) Stream(ctx context.Context, fullMethod string, md metadata.MD, decode func(proto.Message) error, send func(encoded []byte) error) error {
	if err := s.streamCall(ctx, fullMethod, md, decode, send); err != nil {
		return wire.Status(ctx, s.log, err).Err()
	}
	return nil
}

func (s *Server) streamCall(ctx context.Context, fullMethod string, md metadata.MD, decode func(proto.Message) error, send func([]byte) error) error {
	if err := s.calls.begin(); err != nil {
		return err
	}
	defer s.calls.running.Done()
	m, ok := s.calls.streams[fullMethod]
	if !ok {
		return status.Errorf(codes.Unimplemented, "unknown method %s", fullMethod)
	}
	ctx, cancel := context.WithCancel(metadata.NewIncomingContext(ctx, md))
	defer cancel()
	defer context.AfterFunc(s.calls.cut, cancel)()
	ctx, err := s.calls.admit(ctx, fullMethod)
	if err != nil {
		return err
	}
	request.From(ctx).SetFace(request.REST)
	s.gate.cancelBy(ctx, cancel)
	defer s.gate.arrived(ctx) // also if nothing could be decoded
	ss := &callStream{ctx: ctx, method: fullMethod, decode: decode, send: send, gate: s.gate}
	return s.calls.stream(m.service, ss, &grpc.StreamServerInfo{FullMethod: fullMethod, IsServerStream: true}, m.handler)
}

// A callStream is the stream of a call that did not come over gRPC.
type callStream struct {
	ctx    context.Context
	method string
	decode func(proto.Message) error
	send   func([]byte) error
	gate   *gate
	got    bool
}

func (s *callStream) SetHeader(metadata.MD) error  { return nil }
func (s *callStream) SendHeader(metadata.MD) error { return nil }
func (s *callStream) SetTrailer(metadata.MD)       {}
func (s *callStream) Context() context.Context     { return s.ctx }

// RecvMsg gives the request, once.
func (s *callStream) RecvMsg(m any) error {
	if s.got {
		return io.EOF
	}
	s.got = true
	return fillIn(s.method, m, s.decode, s.gate.codec)
}

func (s *callStream) SendMsg(m any) error {
	if err := s.ctx.Err(); err != nil {
		return err
	}
	switch m := m.(type) {
	case wire.Encoder:
		b := m.TakeWire()
		data := b.MaterializeToBuffer(s.gate)
		b.Free()
		defer data.Free()
		return s.send(data.ReadOnlyData())
	case proto.Message:
		b, err := proto.Marshal(m)
		if err != nil {
			return err
		}
		return s.send(b)
	}
	return errNotUnary
}
