package server

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/wire"
	"github.com/trestledb/trestle/engine/budget"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/request"
)

// A Client is the other end of a connection.
type Client struct {
	// User is the name that the client gave; it is not verified.
	User string
	// Certificate is the subject of its TLS certificate, empty if it has none;
	// Expires is when that ends.
	Certificate string
	Expires     time.Time
	// Addr is its address.
	Addr string
	// Service is the service that the connection is for.
	Service string
	// Versioned tells whether the client said which version of HBase it is of.
	Versioned bool
	// Blocks tells whether it takes cells in cell blocks.
	Blocks bool

	waiting atomic.Int32 // calls that wait for Options.ResponseMemory
}

// A Call is one call of a method, beside its message.
type Call struct {
	*Client
	Method string
	// Timeout is how long the client will wait; 0 if it did not say.
	Timeout time.Duration
	// Cells are those of the request's cell block.
	Cells wire.Cells
	// Block is the cell block of the response. Only a client with Blocks may be
	// given one.
	Block []byte

	decoded  int64 // bytes that the request takes, but for filters
	reserved int64 // of Options.ResponseMemory
	room     room
	record   request.Record
}

// reserve waits until there is memory for a response of n bytes. It is given
// back when the response is written. A call reserves once.
func (c *Call) reserve(ctx context.Context, s *Server, n int) error {
	n = int(min(int64(n), s.o.ResponseMemory))
	if !s.answers.TryAcquire(int64(n)) {
		c.waiting.Add(1)
		err := s.answers.Acquire(ctx, int64(n))
		c.waiting.Add(-1)
		if err != nil {
			return err
		}
	}
	c.reserved = int64(n)
	c.room.free += int64(n)
	return nil
}

// decodedBytes is what a request may take, decoded, beyond what was taken for its bytes:
// that of some 400 gets.
const decodedBytes = 256 << 10

// Take takes n bytes for what the call is about to decode, until it is answered.
func (c *Call) Take(n int64) error { return c.room.decode(n) }

// A Method answers one kind of request.
type Method struct {
	shape   *shape
	request func() proto.Message
	handle  func(ctx context.Context, c *Call, req proto.Message) (proto.Message, error)
}

// A Service is the methods of a service by their names on the wire.
type Service map[string]Method

// Handle returns the Method that f is. What f returns becomes an exception as
// wire.ExceptionOf says.
func Handle[Req any, Resp proto.Message, M interface {
	*Req
	proto.Message
}](f func(ctx context.Context, c *Call, req M) (Resp, error)) Method {
	return Method{
		shape:   shapeOf(M(new(Req))),
		request: func() proto.Message { return M(new(Req)) },
		handle: func(ctx context.Context, c *Call, req proto.Message) (proto.Message, error) {
			resp, err := f(ctx, c, req.(M))
			if err != nil {
				return nil, err
			}
			return resp, nil
		},
	}
}

// Refuse returns a Method that always fails.
func Refuse[Req any, M interface {
	*Req
	proto.Message
}](err error) Method {
	return Handle(func(context.Context, *Call, M) (M, error) { return nil, err })
}

// call decodes a request and answers it.
func (s Service) call(ctx context.Context, c *Call, param []byte) (proto.Message, error) {
	m, ok := s[c.Method]
	if !ok {
		return nil, wire.DoNotRetryIO.New("%s has no method %q here", c.Service, shorten(c.Method))
	}
	c.decoded = m.shape.size(param)
	if more := c.decoded - requestCost*int64(len(param)) - decodedBytes; more > 0 {
		memory := c.room.memory
		if !memory.Try(more) {
			if more > memory.Limit() {
				return nil, wire.RequestTooBig.New("The request has so many parts that it needs %d bytes of memory, of %d that requests have; see --memory", more, memory.Limit())
			}
			return nil, wire.CallQueueTooBig.New("%v", budget.Busy())
		}
		defer memory.Release(more)
	}
	req := m.request()
	if err := proto.Unmarshal(param, req); err != nil {
		return nil, fault.New(fault.Invalid, "malformed %s request: %w", c.Method, err)
	}
	return m.handle(ctx, c, req)
}

// shorten cuts what a client sent to what may stand in a message.
func shorten(s string) string {
	if len(s) > 100 {
		return s[:100] + "..."
	}
	return s
}
