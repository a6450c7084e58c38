package gateway

import (
	"context"
	"time"

	"google.golang.org/grpc"
	_ "google.golang.org/grpc/encoding/gzip" // clients may compress
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/tap"

	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway/transport"
)

const (
	// connWindow is given back as bytes arrive, and so limits what is under way, not what is held.
	connWindow = 8 << 20
	// maxStreams of a connection are open at a time.
	maxStreams = 1000
	// maxHeaderBytes bounds the header list of a request.
	maxHeaderBytes = 64 << 10
	// connectionTimeout is how long a client may take to shake hands.
	connectionTimeout = 20 * time.Second
)

// newGRPC returns what serves gRPC, with all that o, the gate and the interceptors of c ask for.
func newGRPC(o Options, g *gate, c *calls) grpcServer {
	// Clients ping every 30 to 61 seconds, also without a stream.
	enforcement := keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}
	params := keepalive.ServerParameters{
		MaxConnectionIdle:     30 * time.Minute,
		MaxConnectionAge:      o.MaxConnectionAge,
		MaxConnectionAgeGrace: 10 * time.Minute,
		Time:                  2 * time.Minute,
		Timeout:               20 * time.Second,
	}
	workers := max(o.Workers, 0)
	if !o.GRPCGo && len(o.ServerOptions) == 0 {
		return transport.New(transport.Options{
			Codec: g.codec, Buffers: g, Memory: o.Memory, Account: g.account, Admit: c.admit, Unary: c.unary, Stream: c.stream, Credentials: o.Credentials,
			StreamWindow: streamWindow, ConnWindow: connWindow,
			MaxRecvBytes: o.MaxRequestBytes, MaxSendBytes: schema.MaxRow,
			MaxStreams: maxStreams, MaxHeaderBytes: maxHeaderBytes, Workers: workers, HandshakeTimeout: connectionTimeout,
			Keepalive: params, Enforcement: enforcement, Log: o.Log,
		})
	}
	opts := []grpc.ServerOption{
		experimental.BufferPool(g),
		grpc.InTapHandle(func(ctx context.Context, info *tap.Info) (context.Context, error) {
			return c.admit(ctx, info.FullMethodName)
		}),
		grpc.ForceServerCodecV2(g.codec),
		grpc.UnaryInterceptor(c.unary),
		grpc.StreamInterceptor(c.stream),
		// Windows of fixed size spare a ping and its answer per request, by which
		// gRPC would measure the path. A stream gets the window for more of its
		// message as receive asks for it.
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connWindow),
		grpc.MaxRecvMsgSize(o.MaxRequestBytes),
		grpc.MaxSendMsgSize(schema.MaxRow),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.NumStreamWorkers(uint32(workers)),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.ConnectionTimeout(connectionTimeout),
		grpc.KeepaliveEnforcementPolicy(enforcement),
		grpc.KeepaliveParams(params),
		// Handlers use the backend: Stop returns after the last of them.
		grpc.WaitForHandlers(true),
	}
	if o.Credentials != nil {
		opts = append(opts, grpc.Creds(o.Credentials))
	}
	return grpc.NewServer(append(opts, o.ServerOptions...)...)
}
