package transport

import (
	"bytes"
	"io"
	"net"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

func (c *conn) frame(f http2.Frame) error {
	switch f := f.(type) {
	case *http2.HeadersFrame:
		return c.headersFrame(f)
	case *http2.ContinuationFrame:
		return c.continued(f)
	case *http2.RSTStreamFrame:
		return c.rst(f)
	case *http2.SettingsFrame:
		return c.settings(f)
	case *http2.PingFrame:
		return c.ping(f)
	case *http2.WindowUpdateFrame:
		return c.windowUpdate(f)
	case *http2.PushPromiseFrame:
		return failed(http2.ErrCodeProtocol, "a client pushes nothing")
	}
	return nil // GOAWAY, PRIORITY, and what is unknown
}

// data reads a DATA frame.
func (c *conn) data(h http2.FrameHeader) error {
	size := int64(h.Length)
	if h.StreamID == 0 {
		return failed(http2.ErrCodeProtocol, "DATA on stream 0")
	}
	if h.StreamID > c.maxID || h.StreamID%2 == 0 {
		return failed(http2.ErrCodeProtocol, "DATA on stream %d, which is idle", h.StreamID)
	}
	if size > c.allowed {
		return failed(http2.ErrCodeFlowControl, "more than the window of the connection")
	}
	pad := int64(0)
	if h.Flags.Has(http2.FlagDataPadded) {
		if size == 0 {
			return failed(http2.ErrCodeFrameSize, "no length of the padding")
		}
		b, err := c.br.ReadByte()
		if err != nil {
			return err
		}
		if pad = int64(b) + 1; pad > size {
			return failed(http2.ErrCodeProtocol, "the padding is longer than the frame")
		}
	}
	// The connection's window is given back as bytes arrive: it limits what is under way,
	// not what is held.
	c.allowed -= size
	if more := int64(c.s.o.ConnWindow) - c.allowed; more >= int64(c.s.o.ConnWindow)/4 {
		c.allowed += more
		c.mu.Lock()
		c.control(http2.FrameWindowUpdate, 0, uint32(more))
		c.mu.Unlock()
	}
	end := h.Flags.Has(http2.FlagDataEndStream)
	c.mu.Lock()
	s := c.mu.streams[h.StreamID]
	if s != nil {
		switch {
		case s.inEnd:
			c.resetLocked(s, http2.ErrCodeStreamClosed)
			s = nil
		case size > s.allowed:
			c.resetLocked(s, http2.ErrCodeFlowControl)
			s = nil
		default:
			s.allowed -= size
		}
	}
	c.mu.Unlock()
	n := int(size - pad)
	if s == nil { // it has ended, and the client may not know yet
		return c.br.Discard(n + int(max(pad-1, 0)))
	}
	var b mem.Buffer
	var small []byte
	var err error
	if n > smallFrame {
		b, err = c.buffer(n)
	} else {
		small, err = c.br.Peek(n)
	}
	if err != nil {
		return err
	}
	c.mu.Lock()
	s.arrived += int64(n)
	switch {
	case s.closed || s.handled:
		if b != nil {
			b.Free()
		}
	case b != nil:
		s.sealLocked()
		s.in = append(s.in, b)
		s.inBytes += n
	case n > 0:
		s.addLocked(small)
	}
	if end {
		s.inEnd = true
	} else if pad > 0 && !s.closed {
		s.allowed += pad
		c.control(http2.FrameWindowUpdate, s.id, uint32(pad))
	}
	s.cond.Broadcast()
	c.mu.Unlock()
	return c.br.Discard(len(small) + int(max(pad-1, 0)))
}

const (
	// smallFrame bounds frames that take no buffer of the pool if there is nothing else to
	// read: all that most messages have.
	smallFrame = 1 << 10
	// gatherBytes is the size of the buffers of the pool that other small frames gather in.
	gatherBytes = 4 << 10
)

// addLocked adds the bytes of a small frame.
func (s *Stream) addLocked(p []byte) {
	s.inBytes += len(p)
	if len(s.in) == 0 && s.tail == nil {
		s.in = append(s.in, mem.SliceBuffer(bytes.Clone(p)))
		return
	}
	for len(p) > 0 {
		if s.tail == nil {
			s.tail = s.c.s.o.Buffers.Get(gatherBytes)
			*s.tail = (*s.tail)[:0]
		}
		n := min(len(p), gatherBytes-len(*s.tail))
		*s.tail = append(*s.tail, p[:n]...)
		if p = p[n:]; len(*s.tail) == gatherBytes {
			s.sealLocked()
		}
	}
}

// sealLocked adds the tail to what can be read.
func (s *Stream) sealLocked() {
	if s.tail != nil {
		s.in = append(s.in, mem.NewBuffer(s.tail, s.c.s.o.Buffers))
		s.tail = nil
	}
}

// buffer reads n bytes of a message.
func (c *conn) buffer(n int) (mem.Buffer, error) {
	p := c.s.o.Buffers.Get(n)
	b := mem.NewBuffer(p, c.s.o.Buffers)
	if _, err := io.ReadFull(c.br, *p); err != nil {
		b.Free()
		return nil, err
	}
	return b, nil
}

func (c *conn) headersFrame(f *http2.HeadersFrame) error {
	if f.HasPriority() && f.Priority.StreamDep == f.StreamID {
		return failed(http2.ErrCodeProtocol, "stream %d depends on itself", f.StreamID)
	}
	if f.HeadersEnded() {
		return c.request(f.StreamID, f.HeaderBlockFragment(), f.StreamEnded())
	}
	c.block, c.pieces = append(c.block[:0], f.HeaderBlockFragment()...), 1
	c.blockOf, c.blockEnd = f.StreamID, f.StreamEnded()
	return nil
}

func (c *conn) continued(f *http2.ContinuationFrame) error {
	c.block = append(c.block, f.HeaderBlockFragment()...)
	if c.pieces++; len(c.block) > 2*int(c.s.o.MaxHeaderBytes) || c.pieces > maxFragments {
		return failed(http2.ErrCodeEnhanceYourCalm, "headers of more than %d bytes, or in more than %d frames", 2*c.s.o.MaxHeaderBytes, maxFragments)
	}
	if !f.HeadersEnded() {
		return nil
	}
	err := c.request(c.blockOf, c.block, c.blockEnd)
	c.block = nil
	return err
}

// field gets a header of the block that is being decoded.
func (c *conn) field(f hpack.HeaderField) {
	h := &c.head
	if h.size += uint64(f.Size()); h.size > uint64(c.s.o.MaxHeaderBytes) {
		h.truncated = true
		c.dec.SetEmitEnabled(false) // what follows is decoded still, for those after it
		return
	}
	h.fields = append(h.fields, f)
}

// request opens a stream by a header block, or ends what a stream sends.
func (c *conn) request(id uint32, block []byte, end bool) error {
	h := &c.head
	clear(h.fields)
	*h = requestHead{fields: h.fields[:0]}
	c.dec.SetEmitEnabled(true)
	_, err := c.dec.Write(block)
	if err == nil {
		err = c.dec.Close()
	}
	if err != nil {
		return failed(http2.ErrCodeCompression, "%v", err)
	}
	switch {
	case id%2 == 0:
		return failed(http2.ErrCodeProtocol, "stream %d is not a client's", id)
	case id <= c.maxID:
		return c.trailers(id, end)
	}
	c.maxID = id
	if h.truncated {
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeFrameSize}
	}
	malformed, bad := h.parse()
	if malformed != nil {
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeProtocol}
	}
	switch {
	case h.authorities > 1 || h.hosts > 1:
		return c.refuse(id, end, "400", status.New(codes.Internal, "more than one :authority or host"))
	case !h.typed:
		return c.refuse(id, end, "415", status.Newf(codes.InvalidArgument, "invalid gRPC request content-type %q", h.contentType))
	case bad != nil:
		return c.refuse(id, end, "400", status.New(codes.Internal, bad.Error()))
	case h.authorities+h.hosts == 0:
		return c.refuse(id, end, "400", status.New(codes.Internal, "no host or :authority header present"))
	case h.method != "POST":
		return c.refuse(id, end, "405", status.Newf(codes.Internal, "Received a HEADERS frame with :method %q which should be POST", h.method))
	}
	return c.open(id, end)
}

// trailers handles headers that end what a stream sends. gRPC has no use for them.
func (c *conn) trailers(id uint32, end bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.mu.streams[id]
	pseudo := len(c.head.fields) > 0 && strings.HasPrefix(c.head.fields[0].Name, ":")
	switch {
	case s == nil:
		return failed(http2.ErrCodeProtocol, "headers of stream %d, which is closed or was passed over", id)
	case s.inEnd:
		c.resetLocked(s, http2.ErrCodeStreamClosed)
	case !end || pseudo || c.head.truncated:
		c.resetLocked(s, http2.ErrCodeProtocol)
	default:
		s.inEnd = true
		s.cond.Broadcast()
	}
	return nil
}

// refuse answers a request with an HTTP status and why.
func (c *conn) refuse(id uint32, end bool, http string, st *status.Status) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.headersLocked()
	h.add(":status", http)
	h.add("content-type", contentType(c.head.subtype))
	h.status(st)
	if !h.fit() {
		c.control(http2.FrameRSTStream, id, uint32(http2.ErrCodeInternal))
		return nil
	}
	h.write(id, true)
	if !end {
		c.control(http2.FrameRSTStream, id, uint32(http2.ErrCodeNo))
	}
	return nil
}

// smallHeaders bounds header lists that are not accounted for: a stream costs more than that.
const smallHeaders = 4 << 10

// open opens the stream of the request in c.head.
func (c *conn) open(id uint32, end bool) error {
	h, o := &c.head, &c.s.o
	s := &Stream{c: c, id: id, method: h.path, encoding: h.encoding, subtype: h.subtype, allowed: int64(o.StreamWindow), inEnd: end}
	s.fields = append(make([]hpack.HeaderField, 0, len(h.fields)), h.fields...)
	s.cond.L = &c.mu.Mutex
	s.ctx, s.server.s = s, s
	if h.timed {
		s.deadline = time.Now().Add(h.timeout)
	}
	c.mu.Lock()
	if c.mu.closed { // while requests were buffered: nothing would end the stream
		c.mu.Unlock()
		return net.ErrClosed
	}
	refused := len(c.mu.streams) >= int(o.MaxStreams) || c.mu.handlers >= 2*int(o.MaxStreams) || c.mu.refusing
	if refused {
		// A stream that was reset counts until its handler has returned, so that to open
		// and reset streams does not make handlers without end.
		c.control(http2.FrameRSTStream, id, uint32(http2.ErrCodeRefusedStream))
		c.mu.Unlock()
		return nil
	}
	s.window = c.mu.initial
	c.mu.streams[id], c.mu.lastID = s, id
	c.mu.handlers++
	c.mu.Unlock()
	var err error
	if o.Admit != nil {
		if s.ctx, err = o.Admit(s, s.method); err != nil {
			s.ctx = s
		}
	}
	if err == nil && s.Err() != nil {
		err = status.FromContextError(s.Err()).Err()
	}
	if err != nil {
		st, ok := status.FromError(err)
		if !ok {
			st = status.New(codes.PermissionDenied, err.Error())
		}
		_ = s.WriteStatus(st)
		s.release()
		return nil
	}
	if h.size > smallHeaders && o.Account != nil {
		s.heading = uint32(h.size)
		o.Account(int64(h.size))
	}
	if c.fresh = s; end {
		c.dispatch()
	}
	return nil
}

func (c *conn) rst(f *http2.RSTStreamFrame) error {
	if f.StreamID > c.maxID {
		return failed(http2.ErrCodeProtocol, "RST_STREAM of stream %d, which is idle", f.StreamID)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.mu.streams[f.StreamID]; s != nil {
		c.closeLocked(s)
	}
	return nil
}

func (c *conn) settings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	err := f.ForeachSetting(func(s http2.Setting) error {
		if err := s.Valid(); err != nil {
			return err
		}
		switch s.ID {
		case http2.SettingInitialWindowSize:
			more := int64(s.Val) - c.mu.initial
			c.mu.initial = int64(s.Val)
			for _, st := range c.mu.streams {
				if st.window += more; st.window > maxWindow {
					return failed(http2.ErrCodeFlowControl, "the window of stream %d is too large", st.id)
				}
				st.cond.Broadcast()
			}
		case http2.SettingMaxHeaderListSize:
			c.mu.maxHeaderBytes = uint64(s.Val)
		case http2.SettingHeaderTableSize:
			c.mu.headers.enc.SetMaxDynamicTableSizeLimit(min(s.Val, tableBytes))
		}
		return nil
	})
	if err == nil && !c.mu.closed {
		c.grow(0)
		c.mu.out = appendFrameHeader(c.mu.out, 0, http2.FrameSettings, http2.FlagSettingsAck, 0)
	}
	return err
}

func (c *conn) windowUpdate(f *http2.WindowUpdateFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.StreamID == 0 {
		if c.mu.window += int64(f.Increment); c.mu.window > maxWindow {
			return failed(http2.ErrCodeFlowControl, "the window of the connection is too large")
		}
		c.roomLocked()
		return nil
	}
	if f.StreamID > c.maxID {
		return failed(http2.ErrCodeProtocol, "WINDOW_UPDATE of stream %d, which is idle", f.StreamID)
	}
	if s := c.mu.streams[f.StreamID]; s != nil {
		if s.window += int64(f.Increment); s.window > maxWindow {
			c.resetLocked(s, http2.ErrCodeFlowControl)
			return nil
		}
		s.cond.Broadcast()
	}
	return nil
}
