package bench

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The methods of the echo server. A request begins with the number of response
// messages and the bytes of each, four bytes little-endian each; what follows
// only takes up room.
const (
	echoService = "trestle.bench.Echo"
	echoUnary   = "/" + echoService + "/Unary"
	echoStream  = "/" + echoService + "/Stream"
	echoHeader  = 8
	echoMax     = 256 << 20
)

// echoReply is what responses are cut from.
var echoReply = appendValue(nil, 1, 1, 1<<20)

// echoAnswer returns the number of responses that a request asks for, and one
// of them.
func echoAnswer(req []byte) (n int, msg []byte, err error) {
	if len(req) < echoHeader {
		return 0, nil, status.Errorf(codes.InvalidArgument, "a request of %d bytes has no header", len(req))
	}
	n, size := int(binary.LittleEndian.Uint32(req)), int(binary.LittleEndian.Uint32(req[4:]))
	if size > echoMax {
		return 0, nil, status.Errorf(codes.InvalidArgument, "a response of %d bytes is too large", size)
	}
	if size <= len(echoReply) {
		return n, echoReply[:size], nil
	}
	return n, slices.Repeat(echoReply, size/len(echoReply)+1)[:size], nil
}

// ServeEcho serves messages of any size on l, without doing anything for them,
// until ctx ends. opts should be those of the server that is measured.
func ServeEcho(ctx context.Context, l net.Listener, opts ...grpc.ServerOption) error {
	srv := grpc.NewServer(append(slices.Clone(opts), grpc.ForceServerCodecV2(rawCodec{}))...)
	srv.RegisterService(&grpc.ServiceDesc{
		ServiceName: echoService,
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Unary", Handler: func(_ any, ctx context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			in := raw{first: echoHeader}
			defer in.free()
			if err := dec(&in); err != nil {
				return nil, err
			}
			_, msg, err := echoAnswer(in.bytes)
			return &raw{bytes: msg}, err
		}}},
		Streams: []grpc.StreamDesc{{StreamName: "Stream", ServerStreams: true, Handler: func(_ any, s grpc.ServerStream) error {
			in := raw{first: echoHeader}
			defer in.free()
			if err := s.RecvMsg(&in); err != nil {
				return err
			}
			n, msg, err := echoAnswer(in.bytes)
			if err != nil {
				return err
			}
			out := raw{bytes: msg}
			for range n {
				if err := s.SendMsg(&out); err != nil {
					return err
				}
			}
			return nil
		}}},
	}, nil)
	stop := context.AfterFunc(ctx, srv.Stop)
	defer stop()
	if err := srv.Serve(l); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve echo: %w", err)
	}
	return nil
}

// A shape is what one operation of a workload sends and gets, on average: the
// echo server is asked for the same, and the client makes and checks as much.
// Only the server is another then.
type shape struct {
	unary, stream traffic
	ops           uint64
	samples       *samples
}

// samples are answers to reads, to be checked again in the place of echoes. They
// are gathered by one worker.
type samples struct {
	reads []sample
	bytes int
	next  sample // being received
}

// A sample is an answer and what it was checked for.
type sample struct {
	check    check
	messages [][]byte
}

const (
	sampleReads = 64
	sampleBytes = 4 << 20
)

func (s *samples) enough() bool { return len(s.reads) >= sampleReads || s.bytes >= sampleBytes }

// begin begins the sample of an answer that k will check.
func (s *samples) begin(k *check) {
	c := *k
	c.minimum, c.lastKey, c.sawRow = slices.Clone(k.minimum), nil, nil
	s.next = sample{check: c}
}

func (s *samples) message(b []byte) { s.next.messages = append(s.next.messages, slices.Clone(b)) }

// end keeps the sample.
func (s *samples) end() {
	s.reads = append(s.reads, s.next)
	for _, m := range s.next.messages {
		s.bytes += len(m)
	}
}

// recheck checks one of the samples, as the answer to a read is checked.
func (s *samples) recheck(w *worker) error {
	if len(s.reads) == 0 {
		return nil
	}
	one := &s.reads[w.rng.IntN(len(s.reads))]
	last := w.check.lastKey
	w.check = one.check
	w.check.lastKey = last
	w.check.begin()
	w.reader.reset()
	for _, m := range one.messages {
		if err := w.reader.message(m); err != nil {
			return err
		}
	}
	return w.reader.end()
}

// calls returns how many calls of a kind the next operation makes, so that the
// mean is right.
func (s *shape) calls(w *worker, t traffic) int {
	mean := float64(t.calls) / float64(max(s.ops, 1))
	n := int(mean)
	if w.rng.Float64() < mean-float64(n) {
		n++
	}
	return n
}

// op makes the calls of one operation to the echo server.
func (s *shape) op(ctx context.Context, w *worker) error {
	for _, k := range []struct {
		t    traffic
		call func(n, size uint64) error
	}{
		{s.stream, func(n, size uint64) error {
			got := uint64(0)
			err := w.stream(ctx, echoStream, func(b []byte) error {
				got++
				return echoCheck(b, size)
			})
			if err == nil && got != n {
				return wrong("%d echoes, want %d", got, n)
			}
			if err == nil && s.samples != nil {
				return s.samples.recheck(w)
			}
			return err
		}},
		{s.unary, func(n, size uint64) error {
			return w.unary(ctx, echoUnary, func(b []byte) error { return echoCheck(b, size) })
		}},
	} {
		if k.t.calls == 0 {
			continue
		}
		for range s.calls(w, k.t) {
			n := (k.t.messages + k.t.calls/2) / k.t.calls
			size := k.t.recvdBytes / max(k.t.messages, 1)
			req := max(echoHeader, int(k.t.sentBytes/k.t.calls))
			w.req = appendValue(w.req[:0], 1, w.rng.Uint64(), req)
			binary.LittleEndian.PutUint32(w.req, uint32(n))
			binary.LittleEndian.PutUint32(w.req[4:], uint32(size))
			if err := k.call(n, size); err != nil {
				return err
			}
		}
	}
	return nil
}

func echoCheck(b []byte, size uint64) error {
	if uint64(len(b)) != size {
		return wrong("an echo of %d bytes, want %d", len(b), size)
	}
	return nil
}
