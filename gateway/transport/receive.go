package transport

import (
	"encoding/binary"
	"errors"
	"io"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

// ReadMessageHeader reads the prefix of a message into b. It returns io.EOF if the client sends
// no more.
func (s *Stream) ReadMessageHeader(b []byte) error {
	s.c.mu.Lock()
	err := s.waitLocked(len(b))
	if err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) && s.inBytes == 0 {
			err = io.EOF
		}
		s.c.mu.Unlock()
		return err
	}
	for n := 0; n < len(b); {
		var k int
		if k, s.in[0] = mem.ReadUnsafe(b[n:], s.in[0]); s.in[0] == nil {
			s.in = s.in[1:]
		}
		n += k
	}
	flush := s.readLocked(len(b))
	s.c.mu.Unlock()
	if flush {
		s.c.flush()
	}
	return nil
}

// Read returns the next n bytes that the client sends, and lets it send as many. The caller
// frees them. It returns io.ErrUnexpectedEOF if the client sends fewer.
func (s *Stream) Read(n int) (mem.BufferSlice, error) {
	if n == 0 {
		return nil, nil
	}
	s.c.mu.Lock()
	if err := s.waitLocked(n); err != nil {
		s.c.mu.Unlock()
		return nil, err
	}
	var out mem.BufferSlice
	if len(s.in) == 1 && s.in[0].Len() == n {
		out, s.in = s.in, nil
	} else {
		for left := n; left > 0; {
			b := s.in[0]
			if b.Len() <= left {
				s.in = s.in[1:]
			} else {
				b, s.in[0] = mem.SplitUnsafe(b, left)
			}
			left -= b.Len()
			out = append(out, b)
		}
	}
	flush := s.readLocked(n)
	s.c.mu.Unlock()
	if flush {
		s.c.flush()
	}
	return out, nil
}

// Received returns how many bytes of messages have arrived so far.
func (s *Stream) Received() int64 {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	return s.arrived
}

// waitLocked waits until n bytes are here, in s.in.
func (s *Stream) waitLocked(n int) error {
	for s.inBytes < n {
		switch {
		case s.ended.Load() != 0:
			s.c.mu.Unlock()
			err := s.err()
			s.c.mu.Lock()
			return err
		case s.inEnd:
			return io.ErrUnexpectedEOF
		}
		// A client may wait until a frame of its own choice fits, of which this is the beginning.
		need, spare := int64(n-s.inBytes), int64(s.c.s.o.StreamWindow)
		if more := need + spare - s.allowed; s.allowed-need < min(spare, maxFrame) {
			s.allowed += more
			s.c.control(http2.FrameWindowUpdate, s.id, uint32(more))
			s.c.mu.Unlock()
			s.c.flush()
			s.c.mu.Lock()
			continue
		}
		s.armLocked()
		s.cond.Wait()
	}
	s.sealLocked()
	return nil
}

// readLocked notes that n bytes were read, and lets the client send more if it is a quarter
// of a window short of that. It tells whether there is something to flush.
func (s *Stream) readLocked(n int) bool {
	s.inBytes -= n
	window := int64(s.c.s.o.StreamWindow)
	more := window - s.allowed - int64(s.inBytes)
	if s.inEnd || s.closed || more < window/4 {
		return false
	}
	s.allowed += more
	s.c.control(http2.FrameWindowUpdate, s.id, uint32(more))
	return true
}

// release frees what was not read, when the handler has returned.
func (s *Stream) release() {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.sealLocked()
	s.in.Free()
	s.in, s.inBytes, s.handled = nil, 0, true
	s.c.mu.handlers--
	if s.heading > 0 {
		s.c.s.o.Account(-int64(s.heading))
	}
}

// RecvMsg reads the next message into m. A caller that accounts for memory reads messages
// itself, with ReadMessageHeader and Read.
func (s *Stream) RecvMsg(m any) error {
	err := s.receive(m)
	if err == nil && s.only {
		var head [5]byte
		switch err := s.ReadMessageHeader(head[:]); {
		case err == nil:
			return status.Error(codes.Internal, "a second request message")
		case !errors.Is(err, io.EOF):
			return readError(err)
		}
	}
	return err
}

func (s *Stream) receive(m any) error {
	var head [5]byte
	if err := s.ReadMessageHeader(head[:]); err != nil {
		if errors.Is(err, io.EOF) && s.only {
			return status.Error(codes.Internal, "no request message")
		}
		return readError(err)
	}
	o := &s.c.s.o
	n := int64(binary.BigEndian.Uint32(head[1:]))
	if n > int64(o.MaxRecvBytes) {
		return tooLarge(n, o.MaxRecvBytes)
	}
	data, err := s.Read(int(n))
	if err != nil {
		return readError(err)
	}
	defer func() { data.Free() }()
	if head[0] != 0 {
		if head[0] != 1 || s.send == nil {
			return status.Errorf(codes.Internal, "grpc: received unexpected payload format %d", head[0])
		}
		plain, err := decompress(s.send, data, o.MaxRecvBytes, o.Buffers)
		if err != nil {
			return err
		}
		data.Free()
		data = plain
	}
	if err := o.Codec.Unmarshal(data, m); err != nil {
		return status.Errorf(codes.Internal, "grpc: failed to unmarshal the received message: %v", err)
	}
	return nil
}

func tooLarge(n int64, most int) error {
	return status.Errorf(codes.ResourceExhausted, "grpc: received message larger than max (%d vs. %d)", n, most)
}

func decompress(c encoding.Compressor, data mem.BufferSlice, most int, pool mem.BufferPool) (mem.BufferSlice, error) {
	r, err := c.Decompress(data.Reader())
	if err == nil {
		var out mem.BufferSlice
		if out, err = mem.ReadAll(io.LimitReader(r, int64(most)+1), pool); err == nil && out.Len() <= most {
			return out, nil
		}
		n := out.Len()
		if out.Free(); err == nil {
			return nil, tooLarge(int64(n), most)
		}
	}
	return nil, status.Errorf(codes.Internal, "grpc: failed to decompress the message: %v", err)
}

func readError(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return status.Error(codes.Internal, err.Error())
	}
	return err
}
