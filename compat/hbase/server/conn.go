package server

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/compat/hbase/wire"
	"github.com/trestledb/trestle/engine/budget"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/request"
)

// A conn is one connection. serve reads it; write writes it.
type conn struct {
	s      *Server
	nc     net.Conn
	r      *bufio.Reader
	client Client
	// service is what the header asked for.
	service    Service
	compressor wire.Compressor

	slots chan struct{} // of calls under way
	out   chan response
	calls sync.WaitGroup
	// writing is when the client was given the piece of a response that it has not taken
	// yet, in nanoseconds; 0 if there is none.
	writing atomic.Int64
}

// A response is a frame on its way to the client: the cell block comes behind b.
// The block is the response's own, and used again when it is written.
type response struct {
	b, block []byte
	reserved int64 // of Options.ResponseMemory
	taken    int64 // of Options.Memory
}

// A connection has buffers of smallBuffer until a request, or an answer, is larger or
// several are on their way at a time.
const (
	smallBuffer = 4 << 10
	largeBuffer = 64 << 10
)

func newConn(s *Server, nc net.Conn) *conn {
	if s.o.TLS != nil {
		nc = tls.Server(nc, s.o.TLS)
	}
	return &conn{s: s, nc: nc, r: bufio.NewReaderSize(nc, smallBuffer), slots: make(chan struct{}, s.o.MaxCalls), out: make(chan response, s.o.MaxCalls)}
}

// drain makes serve stop reading. Code that sets another deadline asks afterwards
// whether the server is stopping, since that replaces this one.
func (c *conn) drain() { _ = c.nc.SetReadDeadline(time.Unix(1, 0)) }

func (c *conn) serve() {
	ctx, cancel := context.WithCancel(c.s.ctx)
	defer cancel()
	defer c.nc.Close()
	// When the server is cut off, reads and writes end.
	defer context.AfterFunc(c.s.ctx, func() { _ = c.nc.Close() })()
	_ = c.nc.SetDeadline(time.Now().Add(c.s.o.Handshake))
	if c.s.isStopping() {
		return
	}
	again, err := c.handshake(ctx)
	if err != nil || !again {
		if e := (*wire.Exception)(nil); errors.As(err, &e) {
			c.fatal(e)
		}
		return
	}
	_ = c.nc.SetDeadline(time.Time{})
	if c.s.isStopping() {
		return
	}
	written := make(chan struct{})
	go func() {
		defer close(written)
		if c.write() != nil {
			cancel()
			_ = c.nc.Close()
		}
	}()
	err = c.read(ctx)
	if !errors.Is(err, errDrained) {
		cancel() // no client waits for the answers
	}
	c.calls.Wait()
	if e := (*wire.Exception)(nil); errors.As(err, &e) {
		// The bytes behind a bad frame mean nothing.
		if b, err := wire.AppendResponse(nil, &pb.ResponseHeader{CallId: proto.Uint32(wire.NoCall), Exception: e.Proto()}, nil, 0); err == nil {
			c.slots <- struct{}{}
			c.out <- response{b: b}
		}
	}
	close(c.out)
	<-written
}

func (s *Server) isStopping() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.stopping
}

// fatal tells the client why the connection ends.
func (c *conn) fatal(e *wire.Exception) {
	c.s.o.Log.Debug("HBase connection refused", "client", c.nc.RemoteAddr().String(), "error", e.Error())
	b, err := wire.AppendResponse(nil, &pb.ResponseHeader{CallId: proto.Uint32(wire.NoCall), Exception: e.Proto()}, nil, 0)
	if err == nil {
		_, _ = c.nc.Write(b)
	}
}

// handshake reads preamble and header. ok is false if the connection has had
// its answer.
func (c *conn) handshake(ctx context.Context) (ok bool, err error) {
	if t, isTLS := c.nc.(*tls.Conn); isTLS {
		if err := t.HandshakeContext(ctx); err != nil {
			return false, err
		}
		if certs := t.ConnectionState().VerifiedChains; len(certs) > 0 {
			c.client.Certificate, c.client.Expires = c.s.o.Name(certs[0][0]), certs[0][0].NotAfter
		}
	}
	for range 2 {
		var p [wire.PreambleLen]byte
		if _, err := io.ReadFull(c.r, p[:]); err != nil {
			return false, err
		}
		switch string(p[:]) {
		case wire.RegistryMagic:
			b, err := wire.AppendResponse(nil, &pb.ResponseHeader{CallId: proto.Uint32(wire.NoCall)},
				&pb.GetConnectionRegistryResponse{ClusterId: proto.String(c.s.catalog.ClusterID())}, 0)
			if err == nil {
				_, err = c.nc.Write(b)
			}
			return false, err
		case wire.SecurityMagic:
			c.fatal(wire.SecurityNotEnabled.New("this server has no Kerberos"))
			continue // the client begins anew on the same connection
		}
		if string(p[:4]) != wire.Magic {
			return false, wire.FatalConnection.New("Expected HEADER=%s but received HEADER=%q from %v", wire.Magic, p[:4], c.nc.RemoteAddr())
		}
		if p[4] != wire.Version {
			return false, wire.WrongVersion.New("version %d is not supported; expected version %d", p[4], wire.Version)
		}
		if p[5] != wire.AuthSimple {
			return false, wire.BadAuth.New("authentication %d is not supported; use SIMPLE (%d)", p[5], wire.AuthSimple)
		}
		return true, c.header()
	}
	return false, wire.FatalConnection.New("Expected HEADER=%s", wire.Magic)
}

func (c *conn) header() error {
	n, err := wire.ReadLength(c.r)
	if err != nil {
		return refusal(err)
	}
	if n > wire.MaxHeader {
		return wire.FatalConnection.New("connection header of %d bytes", n)
	}
	b, err := wire.ReadBody(c.r, n)
	if err != nil {
		return err
	}
	var h pb.ConnectionHeader
	if err := proto.Unmarshal(b, &h); err != nil {
		return wire.FatalConnection.New("malformed connection header: %v", err)
	}
	if n := len(h.GetUserInfo().GetEffectiveUser()); n > wire.MaxUser {
		return wire.FatalConnection.New("effective user of %d bytes; at most %d are taken", n, wire.MaxUser)
	}
	c.client.User, c.client.Addr, c.client.Service = h.GetUserInfo().GetEffectiveUser(), c.nc.RemoteAddr().String(), h.GetServiceName()
	c.client.Versioned, c.client.Blocks = h.GetVersionInfo() != nil, h.GetCellBlockCodecClass() != ""
	if c.service = c.s.services[h.GetServiceName()]; c.service == nil {
		return wire.FatalConnection.New("unknown service %q", shorten(h.GetServiceName()))
	}
	switch class := h.GetCellBlockCodecClass(); class {
	case "", "org.apache.hadoop.hbase.codec.KeyValueCodec", "org.apache.hadoop.hbase.codec.KeyValueCodecWithTags":
	default:
		return wire.UnsupportedCodec.New("cell block codec %q; there is org.apache.hadoop.hbase.codec.KeyValueCodec", shorten(class))
	}
	var ok bool
	if c.compressor, ok = wire.CompressorOf(h.GetCellBlockCompressorClass()); !ok {
		return wire.UnsupportedCompr.New("cell block compressor %q; there is org.apache.hadoop.io.compress.SnappyCodec", shorten(h.GetCellBlockCompressorClass()))
	}
	if h.GetRpcCryptoCipherTransformation() != "" {
		return wire.FatalConnection.New("no encryption of this kind; use TLS")
	}
	return nil
}

// refusal makes a connection's exception of a fault; other errors stay.
func refusal(err error) error {
	if fault.KindOf(err) != 0 {
		return wire.FatalConnection.New("%s", err.Error())
	}
	return err
}

var errDrained = errors.New("no more calls are read")

// read reads calls until the connection ends, or the server stops: what it has
// of a call then will not be made. An Exception is for the client.
func (c *conn) read(ctx context.Context) error {
	for {
		n, err := wire.ReadLength(c.r)
		if c.s.isStopping() {
			return errDrained
		}
		if err != nil {
			return refusal(err)
		}
		if n > c.s.o.MaxRequestBytes {
			return c.unread(nil, n, wire.RequestTooBig.New("request of %d bytes; at most %d", n, c.s.o.MaxRequestBytes))
		}
		if c.r.Size() < largeBuffer && (n > c.r.Size() || c.r.Buffered() > c.r.Size()/2) {
			c.widen()
		}
		if err := c.begun(n); err != nil {
			return err
		}
		select {
		case c.slots <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		cost := requestCost * int64(n)
		if !c.s.o.Memory.Try(cost) {
			if err := c.s.o.Memory.Acquire(ctx, cost); err != nil {
				<-c.slots
				if ctx.Err() != nil {
					return err
				}
				return c.unread(nil, n, wire.CallQueueTooBig.New("%v", err))
			}
		}
		frame, err := c.body(n)
		if err != nil {
			c.s.o.Memory.Release(cost)
			<-c.slots
			if errors.Is(err, errLate) {
				return c.unread(frame, n, wire.CallQueueTooBig.New("%v", err))
			}
			return err
		}
		req := new(wire.Request)
		err = wire.ParseRequest(frame, req)
		if err != nil && req.Header.CallId == nil {
			c.s.o.Memory.Release(cost)
			<-c.slots
			return refusal(err)
		}
		c.calls.Add(1)
		go func() {
			defer c.calls.Done()
			r := c.answer(ctx, req, cost, err)
			c.s.o.Memory.Release(cost)
			c.out <- r // has room for every slot
		}()
	}
}

// widen gives the connection a large buffer to read into.
func (c *conn) widen() {
	head, _ := c.r.Peek(c.r.Buffered())
	c.r = bufio.NewReaderSize(io.MultiReader(bytes.NewReader(head), c.nc), largeBuffer)
}

// begun waits for the first 64 KiB of a frame of n bytes, or all of it: what a client
// only claims to send takes no memory.
func (c *conn) begun(n int) error {
	if n = min(n, c.r.Size()); c.r.Buffered() >= n {
		return nil
	}
	if err := c.until(time.Now().Add(c.s.o.Transfer)); err != nil {
		return err
	}
	_, err := c.r.Peek(n)
	return c.arrived(err)
}

// until sets the deadline of reads.
func (c *conn) until(t time.Time) error {
	if _ = c.nc.SetReadDeadline(t); c.s.isStopping() {
		return errDrained
	}
	return nil
}

// arrived ends the deadline of reads, the last of which returned err.
func (c *conn) arrived(err error) error {
	if err != nil && c.s.isStopping() {
		return errDrained
	}
	if _ = c.nc.SetReadDeadline(time.Time{}); c.s.isStopping() {
		c.drain()
	}
	return err
}

// body reads the frame of a call, the first bytes of which are here. With an error it
// returns what it has of it.
func (c *conn) body(n int) ([]byte, error) {
	if n <= c.r.Buffered() {
		return wire.ReadBody(c.r, n)
	}
	now := time.Now()
	a := &arrival{c: c, end: now.Add(c.s.o.Transfer), piece: max(c.r.Size(), n/pieces)}
	if err := a.renew(now); err != nil {
		return nil, err
	}
	frame, err := wire.ReadBody(a, n)
	return frame, c.arrived(err)
}

// A request that has its memory arrives in so many pieces at most. While memory is short
// each has a second: a client that sends nothing is ended then, and one
// that sends slowly before those that wait give up.
const (
	pieces   = 32
	shortage = time.Second
)

var errLate = errors.New("the request did not arrive in time while others wait for memory, try again")

// An arrival reads the bytes of a request.
type arrival struct {
	c     *conn
	end   time.Time
	piece int
	left  int // of the piece
}

// renew begins a piece.
func (a *arrival) renew(now time.Time) error {
	a.left = a.piece
	next := now.Add(shortage)
	if a.end.Before(next) {
		next = a.end
	}
	return a.c.until(next)
}

// Read implements io.Reader.
func (a *arrival) Read(p []byte) (int, error) {
	for {
		n, err := a.c.r.Read(p)
		if a.left -= n; n > 0 {
			if a.left <= 0 {
				err = a.renew(time.Now())
			}
			return n, err
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return 0, err
		}
		now := time.Now()
		switch {
		case !now.Before(a.end):
			return 0, err
		case a.c.s.o.Memory.Short():
			return 0, errLate
		}
		if err := a.renew(now); err != nil {
			return 0, err
		}
	}
}

// unread answers a request of n bytes that will not be read with e. HBase reads
// the header and answers that call; then, the rest being unread, the connection
// ends. head is what was read of it, if it is not in the buffer.
func (c *conn) unread(head []byte, n int, e *wire.Exception) error {
	if head == nil {
		// Its header is likely to be here, or soon.
		_ = c.nc.SetReadDeadline(time.Now().Add(time.Second))
		head, _ = c.r.Peek(min(n, c.r.Size(), 1024))
	}
	var r wire.Request
	_ = wire.ParseRequest(head, &r) // fails, as not all of it is there
	id := r.Header.GetCallId()
	if r.Header.CallId == nil {
		id = wire.NoCall
	}
	if b, err := wire.AppendResponse(nil, &pb.ResponseHeader{CallId: proto.Uint32(id), Exception: e.Proto()}, nil, 0); err == nil {
		c.slots <- struct{}{}
		c.out <- response{b: b}
	}
	return io.ErrShortBuffer
}

// answer makes the frame of a response to a request, which has cost bytes of memory.
func (c *conn) answer(ctx context.Context, req *wire.Request, cost int64, err error) response {
	call := &Call{Client: &c.client, Method: req.Header.GetMethodName(), Timeout: time.Duration(req.Header.GetTimeout()) * time.Millisecond,
		room: room{memory: c.s.o.Memory, request: cost, free: getBytes}}
	var resp proto.Message
	start := time.Now()
	record := c.observed(call, req.Header.GetTraceInfo().GetHeaders()["traceparent"])
	if err == nil {
		resp, err = c.handle(request.With(ctx, record), call, req)
	}
	failed := err
	h := &pb.ResponseHeader{CallId: proto.Uint32(req.Header.GetCallId())}
	r := response{block: call.Block, reserved: call.reserved, taken: call.room.taken}
	if err != nil {
		h.Exception = c.s.exception(ctx, call, err).Proto()
		r.block = r.block[:0]
	}
	if c.compressor != nil && len(r.block) > 0 {
		r.block = c.compressor.Compress(newBuffer(), call.Block)
		recycle(call.Block)
	}
	size := 64
	if resp != nil {
		size += proto.Size(resp)
	}
	if r.b, err = wire.AppendResponse(make([]byte, 0, size), h, resp, len(r.block)); err != nil {
		h.Exception, r.block = c.s.exception(ctx, call, err).Proto(), r.block[:0]
		if r.b, err = wire.AppendResponse(nil, h, nil, 0); err != nil {
			panic(fmt.Sprintf("an exception cannot be encoded: %v", err))
		}
	}
	if o := c.s.o.Observer; o != nil {
		o.CallDone(record, call, failed, start, time.Since(start), int64(len(req.Param)+len(req.Block)), int64(len(r.b)+len(r.block)))
	}
	return r
}

// exception returns what the client is told, and notes what it is not told.
func (s *Server) exception(ctx context.Context, call *Call, err error) *wire.Exception {
	e := wire.ExceptionOf(err)
	if k := fault.KindOf(err); k == fault.Internal || k == fault.Corruption || e.Class == wire.IO && ctx.Err() == nil {
		s.o.Log.Error("HBase call failed", "method", call.Service+"."+shorten(call.Method), "error", err)
	}
	return e
}

// handle runs a call. A panic is that call's failure.
func (c *conn) handle(ctx context.Context, call *Call, req *wire.Request) (resp proto.Message, err error) {
	defer func() {
		if p := recover(); p != nil {
			c.s.o.Log.Error("panic in an HBase call", "method", call.Service+"."+shorten(call.Method), "panic", p, "stack", string(debug.Stack()))
			resp, err = nil, fault.New(fault.Internal, "internal error")
		}
	}()
	if req.Param == nil {
		return nil, wire.DoNotRetryIO.New("%s without a message", shorten(call.Method))
	}
	if call.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, call.Timeout)
		defer cancel()
	}
	block := req.Block
	if c.compressor != nil && len(block) > 0 {
		n, err := c.compressor.DecompressedLen(block, c.s.o.MaxRequestBytes)
		if errors.Is(err, fault.Exhausted) {
			return nil, wire.RequestTooBig.New("%v", err)
		} else if err != nil {
			return nil, err
		}
		// For the block as it came there is room already.
		more := requestCost * int64(max(n-len(block), 0))
		if !c.s.o.Memory.Try(more) {
			return nil, wire.CallQueueTooBig.New("%v", budget.Busy())
		}
		defer c.s.o.Memory.Release(more)
		if block, err = c.compressor.Decompress(block, n); err != nil {
			return nil, err
		}
	}
	if len(block) > 0 && !c.client.Blocks {
		return nil, wire.DoNotRetryIO.New("a cell block on a connection without a codec")
	}
	call.Cells = wire.NewCells(block)
	return c.service.call(ctx, call, req.Param)
}

// Responses are written in pieces. While others wait for the memory that responses have, a
// client takes each within this time: one that reads nothing is ended long before those
// that wait give up, and one that pauses for a moment is not.
const (
	pieceBytes = 64 << 10
	stall      = 5 * time.Second
)

// A departure writes pieces, and notes since when the client has had one to take.
type departure struct{ c *conn }

// Write implements io.Writer.
func (d departure) Write(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		d.c.writing.Store(time.Now().UnixNano())
		var m int
		m, err = d.c.nc.Write(p[n:min(n+pieceBytes, len(p))])
		n += m
	}
	d.c.writing.Store(0)
	return n, err
}

// write writes responses until out is closed. Those that wait for one another
// go out together.
func (c *conn) write() error {
	w := bufio.NewWriterSize(departure{c}, smallBuffer)
	var failed error
	for r := range c.out {
		if failed == nil {
			_ = c.nc.SetWriteDeadline(time.Now().Add(c.s.o.Transfer))
			if w.Size() < largeBuffer && len(r.b)+len(r.block) > w.Available() {
				failed = w.Flush()
				w = bufio.NewWriterSize(departure{c}, largeBuffer)
			}
			if failed == nil {
				_, failed = w.Write(r.b)
			}
			if failed == nil {
				_, failed = w.Write(r.block)
			}
			if failed == nil && len(c.out) == 0 {
				failed = w.Flush()
			}
			if failed != nil {
				// The calls under way end, and their responses come here to be dropped.
				_ = c.nc.Close()
			}
		}
		recycle(r.block)
		if r.reserved > 0 {
			c.s.answers.Release(r.reserved)
		}
		c.s.o.Memory.Release(r.taken)
		<-c.slots
	}
	if failed == nil {
		failed = w.Flush()
	}
	return failed
}
