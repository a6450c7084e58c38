package transport

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/trestledb/trestle/engine/tryio"
)

const (
	defaultWindow = 64<<10 - 1 // RFC 9113 6.9.2
	maxWindow     = math.MaxInt32
	// maxFragments is how many frames one header block may be cut into.
	maxFragments = 64
	// drainTimeout is how long a client may take to answer that it will go elsewhere.
	drainTimeout = 5 * time.Second
	// maxPingStrikes is how many pings may come too early.
	maxPingStrikes = 2
)

// A conn is a connection.
type conn struct {
	s    *Server
	nc   net.Conn
	peer *peer.Peer
	done chan struct{} // closed with it
	born time.Time     // by the monotonic clock, like all that is reckoned from it
	last atomic.Int64  // when something was read: nanoseconds after born

	// The goroutine that reads has these.
	br       *reader
	fr       *http2.Framer
	dec      *hpack.Decoder
	head     requestHead
	block    []byte // of headers that have not ended
	blockOf  uint32 // their stream
	blockEnd bool   // END_STREAM
	pieces   int    // frames of block
	maxID    uint32
	fresh    *Stream // not handed to a worker yet: its message may be read already
	allowed  int64   // bytes that the client may send on the connection
	pinged   time.Time
	strikes  int

	// The goroutine in charge of writing has these. left was taken and is to be written first.
	try   *tryio.Writer // nil: run alone writes
	left  []byte
	taken *[]byte
	wake  chan struct{} // puts run in charge

	room sync.Cond // of mu: the reader may add frames

	mu struct {
		sync.Mutex
		streams  map[uint32]*Stream
		handlers int       // that have not returned
		queue    []*Stream // that wait for room, or the window of the connection
		window   int64
		initial  int64 // window of a new stream

		maxHeaderBytes uint64 // that the client takes
		headers        headers
		out            []byte // frames to write
		buffer         *[]byte
		room           int  // how much of it may be filled
		lent           int  // buffers of Server.large
		answered       bool // since the last ping
		charged        bool // a goroutine is in charge of writing
		throttled      bool // the reader waits for room
		finish, hung   bool // hang up once everything was written, or soon
		closed         bool

		// Draining is GOAWAY for all streams, then GOAWAY for those after lastID.
		draining, refusing bool
		lastID             uint32
		drainBy            time.Time

		idle  time.Time // since when there is no stream
		age   time.Duration
		asked time.Time // when keep-alive pinged
		timer *time.Timer
	}
}

func newConn(s *Server, nc net.Conn, auth credentials.AuthInfo) *conn {
	c := &conn{s: s, nc: nc, done: make(chan struct{}), wake: make(chan struct{}, 1), try: tryio.NewWriter(nc),
		peer:    &peer.Peer{Addr: nc.RemoteAddr(), LocalAddr: nc.LocalAddr(), AuthInfo: auth},
		allowed: int64(s.o.ConnWindow)}
	c.br = newReader(c, nc)
	c.fr = http2.NewFramer(io.Discard, c.br)
	c.fr.SetMaxReadFrameSize(maxFrame)
	c.fr.SetReuseFrames()
	c.dec = hpack.NewDecoder(tableBytes, c.field)
	c.dec.SetMaxStringLength(int(s.o.MaxHeaderBytes))
	c.room.L = &c.mu.Mutex
	c.mu.streams, c.mu.room = map[uint32]*Stream{}, outBytes
	c.mu.window, c.mu.initial, c.mu.maxHeaderBytes = defaultWindow, defaultWindow, math.MaxUint64
	h := &c.mu.headers
	h.c, h.binary = c, map[string]string{}
	h.enc = hpack.NewEncoder(&h.buf)
	now := time.Now()
	c.born, c.mu.idle = now, now
	if c.mu.age = s.o.Keepalive.MaxConnectionAge; c.mu.age > 0 {
		c.mu.age += time.Duration((rand.Float64() - 0.5) / 5 * float64(c.mu.age)) // so that not all end at once
	}
	return c
}

// handshake sends the server's settings and reads the client's.
func (c *conn) handshake() error {
	o := &c.s.o
	var b []byte
	settings := []http2.Setting{{ID: http2.SettingMaxConcurrentStreams, Val: o.MaxStreams}, {ID: http2.SettingMaxHeaderListSize, Val: o.MaxHeaderBytes}}
	if o.StreamWindow != defaultWindow {
		settings = append(settings, http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(o.StreamWindow)})
	}
	b = appendFrameHeader(b, 6*len(settings), http2.FrameSettings, 0, 0)
	for _, s := range settings {
		b = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(b, uint16(s.ID)), s.Val)
	}
	if more := o.ConnWindow - defaultWindow; more > 0 {
		b = binary.BigEndian.AppendUint32(appendFrameHeader(b, 4, http2.FrameWindowUpdate, 0, 0), uint32(more))
	}
	if _, err := c.nc.Write(b); err != nil {
		return err
	}
	var preface [len(http2.ClientPreface)]byte
	if _, err := io.ReadFull(c.br, preface[:]); err != nil {
		return fmt.Errorf("read the preface: %w", err)
	}
	if string(preface[:]) != http2.ClientPreface {
		return fmt.Errorf("%q is no preface of HTTP/2", preface[:])
	}
	f, err := c.fr.ReadFrame()
	if err != nil {
		return fmt.Errorf("read the first frame: %w", err)
	}
	set, ok := f.(*http2.SettingsFrame)
	if !ok || set.IsAck() {
		return fmt.Errorf("the first frame is %v", f.Header())
	}
	return c.settings(set)
}

// serve reads the connection until it ends.
func (c *conn) serve() error {
	go c.run()
	c.mu.Lock()
	c.mu.timer = time.AfterFunc(time.Hour, c.tick)
	c.nextLocked(time.Now())
	c.mu.Unlock()
	c.flush() // the answer to the client's settings
	err := c.read()
	if ce, ok := errors.AsType[http2.ConnectionError](err); ok {
		c.fail(http2.ErrCode(ce), c.fr.ErrorDetail())
	} else if fe, ok := errors.AsType[*failure](err); ok {
		c.fail(fe.code, errors.New(fe.what)) // clients know some of the words
	} else if errors.Is(err, http2.ErrFrameTooLarge) {
		c.fail(http2.ErrCodeFrameSize, err)
	}
	c.close()
	c.dispatch() // a request that was cut short has memory to give back
	if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// A failure ends a connection with a code, and words for the client's developer.
type failure struct {
	code http2.ErrCode
	what string
}

func (f *failure) Error() string { return fmt.Sprintf("%v: %s", f.code, f.what) }

func failed(code http2.ErrCode, format string, args ...any) error {
	return &failure{code, fmt.Sprintf(format, args...)}
}

// fail tells the client why the connection ends.
func (c *conn) fail(code http2.ErrCode, why error) {
	c.mu.Lock()
	var debug string
	if why != nil {
		debug = why.Error()
	}
	c.goAwayLocked(c.maxID, code, debug)
	for _, s := range c.mu.streams {
		c.closeLocked(s)
	}
	c.finishLocked()
	c.mu.Unlock()
	_ = c.nc.SetDeadline(time.Now().Add(linger))
	c.flush()
	_, _ = io.Copy(io.Discard, c.br)
}

func (c *conn) goAwayLocked(last uint32, code http2.ErrCode, debug string) {
	if c.mu.closed {
		return
	}
	c.grow(0)
	b := appendFrameHeader(c.mu.out, 8+len(debug), http2.FrameGoAway, 0, 0)
	b = binary.BigEndian.AppendUint32(b, last)
	b = binary.BigEndian.AppendUint32(b, uint32(code))
	c.mu.out = append(b, debug...)
}

// close ends the connection and its streams at once.
func (c *conn) close() {
	c.mu.Lock()
	if c.mu.closed {
		c.mu.Unlock()
		return
	}
	for _, s := range c.mu.streams {
		c.closeLocked(s)
	}
	c.mu.closed = true
	c.mu.out = nil
	c.s.lent.Add(-int64(c.mu.lent))
	c.mu.lent = 0
	if c.mu.timer != nil {
		c.mu.timer.Stop()
	}
	c.room.Broadcast()
	c.mu.Unlock()
	close(c.done)
	_ = c.nc.Close()
}

// closeLocked takes a stream from the connection: nothing more is sent or received. Its context
// is done.
func (c *conn) closeLocked(s *Stream) {
	if s.closed {
		return
	}
	s.closed = true
	s.heads, s.tails = nil, nil
	delete(c.mu.streams, s.id)
	s.endLocked(canceled)
	c.idleLocked()
}

// idleLocked looks whether the connection has no more to do. The caller flushes.
func (c *conn) idleLocked() {
	if len(c.mu.streams) > 0 {
		return
	}
	c.mu.idle = time.Now()
	if c.mu.refusing && !c.mu.closed {
		c.finishLocked()
	}
}

// resetLocked ends a stream, and tells the client.
func (c *conn) resetLocked(s *Stream, code http2.ErrCode) {
	c.control(http2.FrameRSTStream, s.id, uint32(code))
	c.closeLocked(s)
}

// reset is resetLocked of a stream that may not be there.
func (c *conn) reset(id uint32, code http2.ErrCode) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.mu.streams[id]; s != nil {
		c.resetLocked(s, code)
	} else {
		c.control(http2.FrameRSTStream, id, uint32(code))
	}
}

// read handles frames until the connection ends.
func (c *conn) read() error {
	for {
		if !c.br.HasFrame() {
			// It may wait now, also within the frame.
			c.dispatch()
			c.flush()
		}
		h, err := c.fr.ReadFrameHeader()
		if err != nil {
			return err
		}
		if c.fresh != nil && (h.StreamID != c.fresh.id || h.Type != http2.FrameData) {
			c.dispatch()
		}
		if h.Type == http2.FrameData {
			err = c.data(h)
		} else {
			var f http2.Frame
			switch f, err = c.fr.ReadFrameForHeader(h); {
			case err == nil:
				err = c.frame(f)
			case errors.Is(err, io.ErrUnexpectedEOF):
				// Of the frame's payload, or of the connection.
				err = failed(http2.ErrCodeFrameSize, "a frame is shorter than it says")
			case h.Type == http2.FrameHeaders && errors.As(err, new(http2.StreamError)):
				// The block is not decoded: the table for those after it is lost.
				err = failed(http2.ErrCodeProtocol, "malformed HEADERS on stream %d", h.StreamID)
			}
		}
		if se, ok := errors.AsType[http2.StreamError](err); ok {
			if se.StreamID > c.maxID || se.StreamID == 0 {
				return failed(http2.ErrCodeProtocol, "stream %d is idle", se.StreamID)
			}
			c.reset(se.StreamID, se.Code)
			err = nil
		}
		if err != nil {
			return err
		}
		c.throttle()
	}
}

// throttle waits for a client that does not read what it asked for.
func (c *conn) throttle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.mu.out) > c.mu.room+maxControl && !c.mu.closed {
		c.mu.throttled = true
		c.mu.Unlock()
		c.flush()
		c.mu.Lock()
		if len(c.mu.out) > c.mu.room+maxControl && !c.mu.closed {
			c.room.Wait()
		}
		c.mu.throttled = false
	}
}

// dispatch hands the stream that was opened last to a worker.
func (c *conn) dispatch() {
	if s := c.fresh; s != nil {
		c.fresh = nil
		c.s.dispatch(s)
	}
}
