package transport

import (
	"slices"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// errHeaders refuses headers that come too late.
var errHeaders = status.Error(codes.Internal, "transport: headers were sent already")

// SetHeader implements grpc.ServerTransportStream. It keeps md, which may not change any more.
func (s *Stream) SetHeader(md metadata.MD) error {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	return s.setHeaderLocked(md)
}

func (s *Stream) setHeaderLocked(md metadata.MD) error {
	switch {
	case s.closed:
		return s.closedErrLocked()
	case s.begun:
		return errHeaders
	}
	if len(md) > 0 {
		s.heads = append(s.heads, md)
	}
	return nil
}

// SendHeader implements grpc.ServerTransportStream. Headers that are set instead leave together
// with the first message. It keeps md, which may not change any more.
func (s *Stream) SendHeader(md metadata.MD) error {
	err := s.sendHeader(md)
	s.c.flush()
	return err
}

func (s *Stream) sendHeader(md metadata.MD) error {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if err := s.setHeaderLocked(md); err != nil {
		return err
	}
	return s.beginLocked()
}

// closedErrLocked returns what a caller is told that comes too late.
func (s *Stream) closedErrLocked() error {
	s.c.mu.Unlock()
	defer s.c.mu.Lock()
	return s.err()
}

// beginLocked adds the headers of the answer.
func (s *Stream) beginLocked() error {
	s.begun = true
	h := s.c.headersLocked()
	h.add(":status", "200")
	h.add("content-type", contentType(s.subtype))
	if s.send != nil {
		h.add("grpc-encoding", s.encoding)
	}
	h.addAll(s.heads)
	s.heads = nil
	return s.sendHeadersLocked(h, false)
}

// errHeaderList refuses headers that the client does not take.
var errHeaderList = status.Error(codes.Internal, "transport: the headers are larger than the client takes")

func (s *Stream) sendHeadersLocked(h *headers, end bool) error {
	if !h.fit() {
		s.c.resetLocked(s, http2.ErrCodeInternal)
		return errHeaderList
	}
	h.write(s.id, end)
	return nil
}

// SetTrailer implements grpc.ServerTransportStream. It keeps md, which may not change any more.
func (s *Stream) SetTrailer(md metadata.MD) error {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if len(md) > 0 && !s.closed {
		s.tails = append(s.tails, md)
	}
	return nil
}

// Last says that the next message is the last, so that it leaves together with the status.
func (s *Stream) Last() { s.last = true }

// SendMsg sends a message. It returns when the message was taken, by the socket or into the
// buffer of the connection.
func (s *Stream) SendMsg(m any) error {
	o := &s.c.s.o
	data, err := o.Codec.Marshal(m)
	if err != nil {
		return status.Errorf(codes.Internal, "grpc: error while marshaling: %v", err)
	}
	defer func() { data.Free() }()
	out := data
	var head [5]byte
	if s.send != nil && data.Len() > 0 {
		p, err := pack(s.send, data, o.Memory)
		defer p.free() // its charge lasts as long as the message waits
		if err != nil {
			return status.Errorf(codes.Internal, "grpc: error while compressing: %v", err)
		}
		out, head[0] = p.data(), 1
		if !p.short { // else the charge of the original stands for both, until they are written
			data.Free()
			data = nil
		}
	}
	n := out.Len()
	if o.MaxSendBytes > 0 && n > o.MaxSendBytes {
		return status.Errorf(codes.ResourceExhausted, "grpc: trying to send message larger than max (%d vs. %d)", n, o.MaxSendBytes)
	}
	head[1], head[2], head[3], head[4] = byte(n>>24), byte(n>>16), byte(n>>8), byte(n)
	if err := s.write(head[:], out); err != nil {
		return err
	}
	if !s.last {
		s.c.flush()
	}
	return nil
}

// write adds a message to what is to be written, waiting for windows and room.
func (s *Stream) write(head []byte, data mem.BufferSlice) error {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.roomLocked()
	if !s.begun && !s.closed {
		if err := s.beginLocked(); err != nil {
			return err
		}
	}
	next, rest := head, data
	size := len(head) + data.Len()
	for left := size; left > 0; {
		if s.closed || s.ended.Load() != 0 {
			return s.closedErrLocked()
		}
		n := min(left, maxFrame, int(max(0, min(s.window, c.mu.window))))
		if n > 0 {
			c.grow(size)
		}
		if n == 0 || len(c.mu.out) >= c.mu.room {
			s.awaitLocked()
			continue
		}
		b := appendFrameHeader(c.mu.out, n, http2.FrameData, 0, s.id)
		for k := n; k > 0; {
			for len(next) == 0 {
				next, rest = rest[0].ReadOnlyData(), rest[1:]
			}
			m := min(k, len(next))
			b, next, k = append(b, next[:m]...), next[m:], k-m
		}
		c.mu.out = b
		c.mu.answered = true
		s.window -= int64(n)
		c.mu.window -= int64(n)
		left -= n
	}
	return nil
}

// awaitLocked sends what there is, and waits until the windows and the buffer may have room.
func (s *Stream) awaitLocked() {
	c := s.c
	s.armLocked()
	own := s.window <= 0 // else it waits for its turn
	if own {
		c.roomLocked()
	} else {
		s.queued = true
		c.mu.queue = append(c.mu.queue, s)
	}
	c.mu.Unlock()
	c.flush()
	c.mu.Lock()
	for !s.closed && s.ended.Load() == 0 && (own && s.window <= 0 || !own && s.queued) {
		s.cond.Wait()
	}
	if s.queued { // it has ended, and would stay there until the window is given
		s.queued = false
		c.mu.queue = slices.DeleteFunc(c.mu.queue, func(q *Stream) bool { return q == s })
	}
}

// WriteStatus ends the stream with st, nil for OK. It does nothing if the stream has ended. It
// may be called by others than the handler, whose context is done then.
func (s *Stream) WriteStatus(st *status.Status) error {
	c := s.c
	c.mu.Lock()
	if s.closed {
		c.mu.Unlock()
		c.flush() // why it was closed may be to be told
		return nil
	}
	var err error
	if !s.begun && len(s.heads) > 0 {
		err = s.beginLocked()
	}
	if err == nil {
		h := c.headersLocked()
		if !s.begun {
			h.add(":status", "200")
			h.add("content-type", contentType(s.subtype))
		}
		h.status(st)
		h.addAll(s.tails)
		err = s.sendHeadersLocked(h, true)
	}
	if err == nil {
		if !s.inEnd {
			c.control(http2.FrameRSTStream, s.id, uint32(http2.ErrCodeNo))
		}
		c.closeLocked(s)
	}
	c.mu.Unlock()
	c.flush()
	return err
}
