package gateway

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/gateway/wire"
)

const (
	// streamWindow is what a client may send of a message before the handler asks
	// for it. Messages that fit arrive whatever the server does, as frames of the
	// gate's pool.
	streamWindow = 64 << 10
	// pieceBytes of a larger message are asked for at a time.
	pieceBytes = 256 << 10
	// messageCost is how many bytes a byte of a large message takes: as received,
	// in the commit log's queue, and in the memtable beyond what that may have.
	messageCost = 3
	// openPrefix begins the methods that need no credentials: their messages have no
	// memory of the budget.
	openPrefix = "/grpc.health.v1.Health/"
)

// A rawStream is a stream below the messages, that of gateway/transport or of gRPC-Go. RecvMsg reads
// length and body at once; between them is the only place where the memory of a
// message can be asked for before the client sends it.
type rawStream interface {
	ReadMessageHeader([]byte) error
	Read(n int) (mem.BufferSlice, error)
	RecvCompress() string
	Method() string
}

// A counter is a rawStream that tells how many bytes it has received. Of others, a
// message's pieces are counted.
type counter interface{ Received() int64 }

// A receiver is gRPC's own RecvMsg, for what is not called over gRPC.
type receiver interface{ RecvMsg(m any) error }

// A decoder is the receiver of a unary call.
type decoder func(m any) error

func (d decoder) RecvMsg(m any) error { return d(m) }

// A head is the format and the length of a message.
type head [5]byte

// An incoming is the message that a call receives, or has received.
type incoming struct {
	head head
	kept *wire.Kept
}

// receive is RecvMsg of the stream of ctx. A message above streamWindow waits
// for its memory before the client may send it; it has it until its buffers are
// freed. only says that the stream has one message, and ends behind it. The caller
// releases what in keeps when it is done with m.
func (g *gate) receive(ctx context.Context, only bool, m any, in *incoming, fallback receiver) error {
	s, ok := grpc.ServerTransportStreamFromContext(ctx).(rawStream)
	if !ok {
		return fallback.RecvMsg(m)
	}
	head := &in.head
	switch err := s.ReadMessageHeader(head[:]); {
	case errors.Is(err, io.EOF) && only:
		return status.Error(codes.Internal, "no request message")
	case errors.Is(err, io.EOF):
		return io.EOF
	case err != nil:
		return received(ctx, err)
	}
	n := int64(binary.BigEndian.Uint32(head[1:]))
	data, err := g.body(ctx, s, head[0], n)
	if err != nil {
		return received(ctx, err)
	}
	in.kept, err = g.codec.Decode(data, m)
	data.Free()
	switch {
	case fault.KindOf(err) == fault.Exhausted:
		return received(ctx, err)
	case err != nil:
		return status.Errorf(codes.Internal, "grpc: failed to unmarshal the received message: %v", err)
	case !only:
		if head[0] != 0 || n > streamWindow {
			g.arrived(ctx)
		}
		return nil
	}
	switch err := s.ReadMessageHeader(head[:]); {
	case err == nil:
		return status.Error(codes.Internal, "a second request message")
	case errors.Is(err, io.EOF):
		return nil
	default:
		return received(ctx, err)
	}
}

// received returns the status of a stream that broke with err.
func received(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return status.Error(codes.Internal, io.ErrUnexpectedEOF.Error())
	}
	if _, ok := errors.AsType[*fault.Error](err); ok {
		// Nothing else makes a status of it for a unary call: no interceptor has begun.
		return wire.Status(ctx, slog.Default(), err).Err()
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.Error(codes.Unavailable, err.Error())
}

// body reads the n bytes of a message, and decompresses them.
func (g *gate) body(ctx context.Context, s rawStream, format byte, n int64) (mem.BufferSlice, error) {
	most := g.maxMessage
	if strings.HasPrefix(s.Method(), openPrefix) {
		most = min(most, streamWindow)
	}
	if n > int64(most) {
		return nil, g.tooLong(n, most)
	}
	data, err := g.read(ctx, s, n)
	if err != nil || format == 0 {
		return data, err
	}
	defer data.Free()
	if format != 1 {
		return nil, status.Errorf(codes.Internal, "grpc: received unexpected payload format %d", format)
	}
	name := s.RecvCompress()
	c := encoding.GetCompressor(name)
	if c == nil {
		return nil, status.Errorf(codes.Unimplemented, "grpc: Decompressor is not installed for grpc-encoding %q", name)
	}
	return g.decompress(ctx, c, data, most)
}

func (g *gate) tooLong(n int64, most int) error {
	if int64(most) == g.memory.Limit()/messageCost {
		return fault.New(fault.Exhausted, "The request is larger than the %d bytes that one may have; see --memory", most)
	}
	return status.Errorf(codes.ResourceExhausted, "grpc: received message larger than max (%d vs. %d)", n, most)
}

// read reads n bytes, a large message into one buffer.
func (g *gate) read(ctx context.Context, s rawStream, n int64) (mem.BufferSlice, error) {
	if n <= streamWindow {
		return s.Read(int(n))
	}
	var at atomic.Int64
	received := at.Load
	if c, ok := s.(counter); ok {
		received = c.Received
	}
	whole, err := g.acquire(ctx, n, received)
	if err != nil {
		return nil, err
	}
	out := mem.BufferSlice{mem.NewBuffer(&whole.data, whole)}
	for at.Load() < n {
		piece, err := s.Read(int(min(n-at.Load(), pieceBytes)))
		if err != nil {
			out.Free()
			return nil, err
		}
		at.Add(int64(piece.CopyTo(whole.data[at.Load():])))
		piece.Free()
	}
	return out, nil
}

// decompress returns what data decompresses to. How much that is is known at
// the end only. The memory is asked for as for a message of the most that it
// can be by then. A request that has some of it already does not wait for more.
func (g *gate) decompress(ctx context.Context, c encoding.Compressor, data mem.BufferSlice, most int) (mem.BufferSlice, error) {
	n, err := decompressed(c, data, most)
	if err != nil {
		return nil, err
	}
	if n > int64(most) {
		return nil, g.tooLong(n, most)
	}
	r, err := c.Decompress(data.Reader())
	if err != nil {
		return nil, status.Errorf(codes.Internal, "grpc: failed to decompress the message: %v", err)
	}
	var whole *charged
	switch {
	case n <= streamWindow:
		whole = g.charge(n, 0)
	case data.Len() > streamWindow:
		if !g.memory.Try(messageCost * n) {
			return nil, errBusy
		}
		whole = g.charge(n, messageCost*n)
	default:
		if whole, err = g.acquire(ctx, n, nothing); err != nil {
			return nil, err
		}
	}
	out := mem.BufferSlice{mem.NewBuffer(&whole.data, whole)}
	if _, err := io.ReadFull(r, whole.data); err != nil {
		out.Free()
		return nil, status.Errorf(codes.Internal, "grpc: failed to decompress the message: %v", err)
	}
	return out, nil
}

// decompressed returns how many bytes data decompresses to, or more than most.
func decompressed(c encoding.Compressor, data mem.BufferSlice, most int) (int64, error) {
	r, err := c.Decompress(data.Reader())
	if err == nil {
		var n int64
		if n, err = io.Copy(io.Discard, io.LimitReader(r, int64(most)+1)); err == nil {
			return n, nil
		}
	}
	return 0, status.Errorf(codes.Internal, "grpc: failed to decompress the message: %v", err)
}

// A charged is the buffer of a large message. It is the mem.BufferPool of
// itself, to learn when it is free.
type charged struct {
	g       *gate
	data    []byte
	pooled  *counted // what has data, nil if that is not of the pool
	charge  *charge
	cleanup runtime.Cleanup
}

// A charge is what a buffer has of the budget, until it is taken back.
type charge struct {
	g *gate
	n atomic.Int64
}

func (c *charge) release() { c.g.memory.Release(c.n.Swap(0)) }

// acquire returns a buffer of n bytes that has its memory. A stream that waits
// for that is not one that sends too slowly. received tells what it has sent.
func (g *gate) acquire(ctx context.Context, n int64, received func() int64) (*charged, error) {
	if !g.memory.Try(messageCost * n) {
		g.arrived(ctx)
		if err := g.memory.Acquire(ctx, messageCost*n); err != nil {
			return nil, err
		}
	}
	g.holding(ctx, &holder{size: n, received: received, due: time.Now().Add(shortage)})
	return g.charge(n, messageCost*n), nil
}

// nothing is received of a message that is here, but its end.
func nothing() int64 { return 0 }

// charge returns a buffer of n bytes that gives cost back when it is free, or
// garbage: gRPC drops what a stream had received and the handler had not read.
func (g *gate) charge(n, cost int64) *charged {
	c := &charged{g: g, charge: &charge{g: g}}
	if tier := tierOf(int(n)); tier <= maxTier {
		c.pooled = g.pooled(tier)
		c.data = c.pooled.full[:n]
	} else {
		c.data = make([]byte, n)
	}
	if cost > 0 {
		c.charge.n.Store(cost)
		c.cleanup = runtime.AddCleanup(c, (*charge).release, c.charge)
	}
	return c
}

// Get implements mem.BufferPool; it is not called.
func (c *charged) Get(n int) *[]byte { b := make([]byte, n); return &b }

// Put implements mem.BufferPool: the buffer is free.
func (c *charged) Put(*[]byte) {
	c.cleanup.Stop()
	c.charge.release()
	if c.data = nil; c.pooled != nil {
		c.g.repool(c.pooled)
	}
}
