package transport

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// A Stream is one call. It is the call's context too, so that what is known of it costs one
// allocation. It is not used again, since a holder of a context may keep it.
type Stream struct {
	c        *conn
	id       uint32
	method   string
	fields   []hpack.HeaderField // of the request, those that are metadata
	encoding string              // grpc-encoding
	subtype  string              // of its content type
	deadline time.Time           // zero is none
	ctx      context.Context     // the handler's: this stream, and what Admit put around it
	server   serverStream
	send     encoding.Compressor // of answers; nil: they are not compressed

	once sync.Once
	md   metadata.MD // made of fields when asked for

	// last says that the message which is sent next is the last. It belongs to the handler.
	last bool
	only bool // the client sends one message, as it is unless the method says otherwise

	ended atomic.Uint32 // why the context is done: one of the below
	armed atomic.Bool   // there is a timer
	asked atomic.Uint32 // calls of Err without it

	// What follows is guarded by c.mu.

	cond    sync.Cond // of c.mu: bytes, a window, room, or the end
	in      mem.BufferSlice
	tail    *[]byte // of Buffers, behind in: small frames gather there
	inBytes int     // with tail
	arrived int64   // bytes of messages, with those that were read
	inEnd   bool    // the client sends no more
	heading uint32  // bytes of headers that are accounted for
	allowed int64   // bytes that the client may send unasked
	window  int64   // bytes that the client takes
	heads   []metadata.MD
	tails   []metadata.MD
	begun   bool // headers were sent
	closed  bool // nothing more is sent
	handled bool // the handler has returned
	queued  bool // in c.mu.queue
	timer   *time.Timer
	done    chan struct{} // made when a caller asks
	after   []*afterEnd   // to be called when the context is done
}

var (
	_ context.Context            = (*Stream)(nil)
	_ grpc.ServerTransportStream = (*Stream)(nil)
	_ grpc.ServerStream          = (*serverStream)(nil)
)

// Context returns the context of the handler.
func (s *Stream) Context() context.Context { return s.ctx }

// Method implements grpc.ServerTransportStream.
func (s *Stream) Method() string { return s.method }

// RecvCompress returns how the client's messages are compressed: the name of an
// encoding.Compressor, or "".
func (s *Stream) RecvCompress() string { return s.encoding }

// compression finds what messages are compressed by. Answers are as requests.
func (s *Stream) compression() error {
	if s.encoding == "" || s.encoding == encoding.Identity {
		return nil
	}
	if s.send = encoding.GetCompressor(s.encoding); s.send == nil {
		return status.Errorf(codes.Unimplemented, "grpc: Decompressor is not installed for grpc-encoding %q", s.encoding)
	}
	return nil
}

// A serverStream is a Stream as its handler sees it.
type serverStream struct{ s *Stream }

func (s *serverStream) SetHeader(md metadata.MD) error  { return s.s.SetHeader(md) }
func (s *serverStream) SendHeader(md metadata.MD) error { return s.s.SendHeader(md) }
func (s *serverStream) SetTrailer(md metadata.MD)       { _ = s.s.SetTrailer(md) }
func (s *serverStream) Context() context.Context        { return s.s.ctx }
func (s *serverStream) SendMsg(m any) error             { return s.s.SendMsg(m) }
func (s *serverStream) RecvMsg(m any) error             { return s.s.RecvMsg(m) }
