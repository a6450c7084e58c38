package data

import (
	"context"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"

	"github.com/trestledb/trestle/gateway/wire"
)

// A request is decoded by itself and aliases the receive buffer until Release.
type request interface {
	wire.Decoder
	Release()
}

// unary returns the handler of a method whose requests are of type *R. What
// call returns must not alias the request, which is gone when it is sent.
func unary[R any, P interface {
	*R
	request
}](method string, call func(*Service, context.Context, P) (any, error)) func(any, context.Context, func(any) error, grpc.UnaryServerInterceptor) (any, error) {
	pool := sync.Pool{New: func() any { return P(new(R)) }}
	// What an interceptor is told is the same for each call of a service. There
	// is one service in a process, so the latest is worth keeping.
	type told struct {
		service *Service
		info    grpc.UnaryServerInfo
		handler grpc.UnaryHandler
	}
	var latest atomic.Pointer[told]
	return func(srv any, ctx context.Context, dec func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		req := pool.Get().(P)
		defer func() {
			req.Release()
			pool.Put(req)
		}()
		if err := dec(req); err != nil {
			return nil, err
		}
		s := srv.(*Service)
		if interceptor == nil {
			return call(s, ctx, req)
		}
		t := latest.Load()
		if t == nil || t.service != s {
			t = &told{s, grpc.UnaryServerInfo{Server: srv, FullMethod: method}, func(ctx context.Context, req any) (any, error) {
				return call(s, ctx, req.(P))
			}}
			latest.Store(t)
		}
		return interceptor(ctx, req, &t.info, t.handler)
	}
}

// serverStream returns the handler of a method that takes one request of type
// *R and sends many answers.
func serverStream[R any, P interface {
	*R
	request
}](call func(*Service, P, grpc.ServerStream) error) grpc.StreamHandler {
	pool := sync.Pool{New: func() any { return P(new(R)) }}
	return func(srv any, stream grpc.ServerStream) error {
		req := pool.Get().(P)
		defer func() {
			req.Release()
			pool.Put(req)
		}()
		if err := stream.RecvMsg(req); err != nil {
			return err
		}
		return call(srv.(*Service), req, stream)
	}
}
