package transport

import (
	"context"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
)

// Options configure a Server. Codec is required; what is zero has a default.
type Options struct {
	// Codec encodes and decodes messages.
	Codec encoding.CodecV2
	// Buffers has the memory that frames are read into, but for one below a KiB that is all
	// there is of a stream. Nil: gRPC's default.
	Buffers mem.BufferPool
	// Memory bounds compressed answers while their clients do not take them. When it has nothing
	// left, an answer is held uncompressed too, which has memory of its own. Nil: nothing does.
	Memory Memory
	// Account is told of the bytes of a request's header list above 4 KiB once it is admitted,
	// and of as many less when its handler has returned. Nil: nothing is.
	Account func(bytes int64)
	// Admit decides on a stream before anything of it is read, by its context, which has the
	// metadata, and its full method. The handler gets the context that it returns. It is called
	// on the goroutine that reads the connection. Nil admits all.
	Admit func(ctx context.Context, method string) (context.Context, error)
	// Unary and Stream are around all handlers; nil: nothing is.
	Unary  grpc.UnaryServerInterceptor
	Stream grpc.StreamServerInterceptor
	// Credentials are the transport's; nil is plain text.
	Credentials credentials.TransportCredentials
	// StreamWindow and ConnWindow are how many bytes a client may send before it is told to
	// go on: of a stream (zero: 64 KiB), of a connection (zero: 1 MiB).
	StreamWindow, ConnWindow int32
	// MaxRecvBytes bounds a message of a client (zero: 4 MiB), MaxSendBytes one of the server's
	// (zero: none).
	MaxRecvBytes, MaxSendBytes int
	// MaxStreams bounds the streams of a connection that are open at a time. Zero is 100.
	MaxStreams uint32
	// MaxHeaderBytes bounds the header list of a request, as RFC 9113 6.5.2 counts it. Zero is
	// 64 KiB.
	MaxHeaderBytes uint32
	// Workers is how many goroutines wait for calls. A call that finds none gets a goroutine of
	// its own.
	Workers int
	// HandshakeTimeout is how long a client may take from connecting to its first settings. Zero
	// is 20 s.
	HandshakeTimeout time.Duration
	// Keepalive ends connections that are old, idle or dead. Zero fields mean never, but for
	// Time (2 hours) and Timeout (20 s).
	Keepalive keepalive.ServerParameters
	// Enforcement is how often a client may ping. Zero MinTime is 5 minutes.
	Enforcement keepalive.EnforcementPolicy
	// Log is slog.Default if nil. It is told of connections that broke the protocol, as debug.
	Log *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.Buffers == nil {
		o.Buffers = mem.DefaultBufferPool()
	}
	if o.StreamWindow < defaultWindow {
		o.StreamWindow = 64 << 10
	}
	if o.ConnWindow < defaultWindow {
		o.ConnWindow = 1 << 20
	}
	if o.MaxRecvBytes == 0 {
		o.MaxRecvBytes = 4 << 20
	}
	if o.MaxStreams == 0 {
		o.MaxStreams = 100
	}
	if o.MaxHeaderBytes == 0 {
		o.MaxHeaderBytes = 64 << 10
	}
	if o.HandshakeTimeout == 0 {
		o.HandshakeTimeout = 20 * time.Second
	}
	if o.Keepalive.Time == 0 {
		o.Keepalive.Time = 2 * time.Hour
	}
	o.Keepalive.Time = max(o.Keepalive.Time, time.Second)
	if o.Keepalive.Timeout == 0 {
		o.Keepalive.Timeout = 20 * time.Second
	}
	if o.Enforcement.MinTime == 0 {
		o.Enforcement.MinTime = 5 * time.Minute
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return o
}
