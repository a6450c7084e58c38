package transport_test

import (
	"context"
	"log/slog"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/tap"

	"github.com/trestledb/trestle/gateway/transport"
)

func init() {
	kinds = append(kinds, kind{name: "own", own: true, make: func(c config) server {
		return transport.New(transport.Options{
			Codec:            rawCodec{},
			Admit:            admit(c),
			Unary:            c.unary,
			Stream:           c.stream,
			Credentials:      c.creds,
			StreamWindow:     c.streamWindow,
			ConnWindow:       c.connWindow,
			MaxRecvBytes:     c.maxRecv,
			MaxSendBytes:     c.maxSend,
			MaxStreams:       c.maxStreams,
			MaxHeaderBytes:   c.maxHeader,
			Workers:          c.workers,
			HandshakeTimeout: c.handshake,
			Keepalive:        c.keepalive,
			Enforcement:      c.enforcement,
			Log:              slog.New(slog.DiscardHandler),
		})
	}})
}

func admit(c config) func(context.Context, string) (context.Context, error) {
	if c.admit == nil {
		return nil
	}
	return func(ctx context.Context, method string) (context.Context, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		return c.admit(ctx, &tap.Info{FullMethodName: method, Header: md})
	}
}
