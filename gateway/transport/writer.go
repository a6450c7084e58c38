package transport

import (
	"encoding/binary"
	"runtime"
	"time"

	"golang.org/x/net/http2"
)

const (
	// outBytes of frames may wait for the socket. Answers wait beyond it, with their messages
	// in memory that is accounted for.
	outBytes = 32 << 10
	// largeBytes of them may if a large message is among them, on maxLarge connections of a
	// server. A write costs as much as copying 30 KiB, and a large message is a sixth faster.
	largeBytes = 128 << 10
	maxLarge   = 32
	// maxControl is how much the reader may add to them before it reads no more: a client that
	// asks and does not read is not worth memory.
	maxControl = maxFrame + 1<<10
	// maxWrites bounds what a goroutine writes that has something else to do.
	maxWrites = 4
	// linger is how long a client may take to read the last of a connection.
	linger = time.Second

	frameHeaderBytes = 9
	maxFrame         = 16 << 10 // payload of a frame that is sent or received
)

// appendFrameHeader appends the header of a frame, RFC 9113 4.1.
func appendFrameHeader(b []byte, length int, t http2.FrameType, flags http2.Flags, stream uint32) []byte {
	b = append(b, byte(length>>16), byte(length>>8), byte(length), byte(t), byte(flags))
	return binary.BigEndian.AppendUint32(b, stream)
}

// control appends a frame of four bytes. The caller holds c.mu.
func (c *conn) control(t http2.FrameType, stream, value uint32) {
	if c.mu.closed {
		return
	}
	c.grow(0)
	c.mu.out = binary.BigEndian.AppendUint32(appendFrameHeader(c.mu.out, 4, t, 0, stream), value)
}

// grow gives c.mu.out its memory for a part of a message of so many bytes: a large buffer for
// a large one, if it may. The caller holds c.mu.
func (c *conn) grow(message int) {
	was := c.mu.out
	if was != nil && (message <= outBytes || c.mu.room == largeBytes) {
		return
	}
	from, room := &c.s.buffers, outBytes
	if message > outBytes {
		if c.s.lent.Add(1) <= maxLarge {
			from, room = &c.s.large, largeBytes
			c.mu.lent++
		} else if c.s.lent.Add(-1); was != nil {
			return
		}
	}
	old := c.mu.buffer
	c.mu.buffer, _ = from.Get().(*[]byte)
	if c.mu.out, c.mu.room = append((*c.mu.buffer)[:0], was...), room; was != nil {
		c.s.buffers.Put(old)
	}
}

// flush writes what has gathered, unless another goroutine is about to. It does not wait for
// the client: what the socket does not take at once is left to c.run. So is everything where a
// connection cannot tell, as with TLS. The caller holds no lock.
func (c *conn) flush() {
	c.mu.Lock()
	if c.mu.charged || c.mu.closed || len(c.mu.out) == 0 && !c.mu.finish {
		c.mu.Unlock()
		return
	}
	c.mu.charged = true
	others := c.mu.handlers > 1 && len(c.mu.out) < maxFrame
	c.mu.Unlock()
	if c.try != nil {
		if others {
			// Other answers are about to be ready: a write costs more than anything else here.
			runtime.Gosched()
		}
		for range maxWrites {
			b := c.take()
			if b == nil {
				return
			}
			if n := c.try.Write(b); n < len(b) {
				c.left = b[n:]
				break
			}
			c.keep()
		}
	}
	c.wake <- struct{}{} // one goroutine is in charge, so there is room
}

// take returns the frames to write. If there are none the caller is no longer in charge. The
// caller gives them back with keep.
func (c *conn) take() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.mu.out
	if c.mu.closed || len(b) == 0 {
		c.mu.charged = false
		if c.mu.finish && !c.mu.closed {
			c.mu.finish, c.mu.hung = false, true
			go c.hangUp()
		}
		return nil
	}
	c.taken, c.mu.buffer, c.mu.out = c.mu.buffer, nil, nil
	c.roomLocked()
	return b
}

// keep gives back the memory of frames that were written.
func (c *conn) keep() {
	if cap(*c.taken) < largeBytes {
		c.s.buffers.Put(c.taken)
	} else {
		c.s.large.Put(c.taken)
		c.mu.Lock()
		if c.mu.lent > 0 { // else close was before
			c.mu.lent--
			c.s.lent.Add(-1)
		}
		c.mu.Unlock()
	}
	c.taken = nil
}

// roomLocked tells that frames can be added: the reader, and the stream that has waited for the
// longest. That one tells the next, so that all get their turn.
func (c *conn) roomLocked() {
	if c.mu.throttled {
		c.room.Signal()
	}
	for len(c.mu.queue) > 0 && len(c.mu.out) < c.mu.room && c.mu.window > 0 {
		s := c.mu.queue[0]
		c.mu.queue[0] = nil
		if c.mu.queue = c.mu.queue[1:]; s.queued {
			s.queued = false
			s.cond.Broadcast() // its handler may receive beside
			return
		}
	}
}

// run writes what is left to it until the connection is closed.
func (c *conn) run() {
	for {
		select {
		case <-c.wake:
		case <-c.done:
			return
		}
		b := c.left
		if c.left = nil; b == nil {
			runtime.Gosched() // as in flush
			b = c.take()
		}
		for ; b != nil; b = c.take() {
			if _, err := c.nc.Write(b); err != nil {
				c.close()
				return
			}
			c.keep()
		}
	}
}

// finishLocked ends the connection once everything was written. The caller flushes.
func (c *conn) finishLocked() {
	if !c.mu.finish && !c.mu.hung {
		c.mu.finish = true
		// However slow the client is.
		time.AfterFunc(finishTimeout, c.close)
	}
}

// finishTimeout bounds the writing of what a connection has left.
const finishTimeout = 20 * time.Second

// hangUp tells the client that no more comes, and gives it a moment to read that. To close at
// once would drop what it has not read if it has sent something meanwhile.
func (c *conn) hangUp() {
	if w, ok := c.nc.(interface{ CloseWrite() error }); ok {
		_ = w.CloseWrite()
	}
	_ = c.nc.SetReadDeadline(time.Now().Add(linger))
}
