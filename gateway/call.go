package gateway

import (
	"context"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/request"
	"github.com/trestledb/trestle/gateway/wire"
)

// calls are the requests that come by Server.Call.
type calls struct {
	unary   grpc.UnaryServerInterceptor // all of the server's
	stream  grpc.StreamServerInterceptor
	admit   func(ctx context.Context, method string) (context.Context, error)
	methods map[string]method       // by full name
	streams map[string]streamMethod // likewise, those of one request and many answers

	cut     context.Context // ends those that are under way
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu struct {
		sync.Mutex
		stopped bool
	}
}

// A method is a unary method and the service that has it.
type method struct {
	service any
	handler grpc.MethodHandler
}

// A registrar notes the unary methods of the services that a server gets, and
// tells the gate when one of them begins. Streams begin with the interceptor,
// unary methods receive their message before that.
type registrar struct {
	grpcServer
	gate    *gate
	methods map[string]method
	streams map[string]streamMethod
}

func (r registrar) RegisterService(d *grpc.ServiceDesc, service any) {
	own := *d
	own.Methods = slices.Clone(d.Methods)
	for i := range own.Methods {
		m := &own.Methods[i]
		handler := m.Handler
		r.methods["/"+d.ServiceName+"/"+m.MethodName] = method{service, handler}
		m.Handler = func(service any, ctx context.Context, dec func(any) error, in grpc.UnaryServerInterceptor) (any, error) {
			r.gate.begun(ctx)
			var message incoming
			defer func() { message.kept.Release() }()
			return handler(service, ctx, func(m any) error { return r.gate.receive(ctx, true, m, &message, decoder(dec)) }, in)
		}
	}
	for i := range own.Streams {
		if m := &own.Streams[i]; m.ServerStreams && !m.ClientStreams {
			r.streams["/"+d.ServiceName+"/"+m.StreamName] = streamMethod{service, m.Handler}
		}
	}
	r.grpcServer.RegisterService(&own, service)
}

// chain returns an interceptor that runs all, the first outermost.
func chain(all []grpc.UnaryServerInterceptor) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		for i := len(all) - 1; i >= 0; i-- {
			in, next := all[i], handler
			handler = func(ctx context.Context, req any) (any, error) { return in(ctx, req, info, next) }
		}
		return handler(ctx, req)
	}
}

// begin counts a call, unless there are to be no more.
func (c *calls) begin() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.stopped {
		return fault.New(fault.Unavailable, "The server is stopping")
	}
	c.running.Add(1)
	return nil
}

// stop refuses further calls.
func (c *calls) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.stopped = true
}

// errNotUnary refuses methods that have no single message of either kind.
var errNotUnary = fault.New(fault.Unimplemented, "The method can be called over gRPC only")

// Call serves a unary method to a caller that did not ask over gRPC, but is
// treated as if: the same credentials, permissions, limits, metrics and audit
// count. fullMethod is /service/method, md the request's metadata with keys in
// lower case; the peer of ctx is the caller. decode fills in the request. It is
// called once when the caller is known, and not if it stays unknown. Errors are
// gRPC statuses written for clients.
func (s *Server) Call(ctx context.Context, fullMethod string, md metadata.MD, decode func(proto.Message) error) (proto.Message, error) {
	resp, err := s.call(ctx, fullMethod, md, decode)
	if err != nil {
		return nil, wire.Status(ctx, s.log, err).Err()
	}
	return resp, nil
}

func (s *Server) call(ctx context.Context, fullMethod string, md metadata.MD, decode func(proto.Message) error) (proto.Message, error) {
	if err := s.calls.begin(); err != nil {
		return nil, err
	}
	defer s.calls.running.Done()
	m, ok := s.calls.methods[fullMethod]
	if !ok {
		return nil, status.Errorf(codes.Unimplemented, "unknown method %s", fullMethod)
	}
	ctx, cancel := context.WithCancel(metadata.NewIncomingContext(ctx, md))
	defer cancel()
	defer context.AfterFunc(s.calls.cut, cancel)()
	ctx, err := s.calls.admit(ctx, fullMethod)
	if err != nil {
		return nil, err
	}
	request.From(ctx).SetFace(request.REST)
	s.gate.cancelBy(ctx, cancel)
	defer s.gate.arrived(ctx) // also if nothing could be decoded
	resp, err := m.handler(m.service, ctx, func(req any) error {
		return fillIn(fullMethod, req, decode, s.gate.codec)
	}, s.calls.unary)
	if err != nil {
		return nil, err
	}
	return readOut(fullMethod, resp, s.gate)
}
