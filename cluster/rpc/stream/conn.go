package stream

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// greeting is what both ends of a Mux connection send first, greetingScan those
// of one for scans. Whatever else begins a connection is gRPC's.
const (
	greeting     = "trestle\x01"
	greetingScan = "trestle\x02"
)

// errGreeting is wrapped by the errors of a client that did not get the greeting it
// expected.
var errGreeting = errors.New("the server does not greet")

// muxProtocol names a Mux connection in the TLS handshake.
const muxProtocol = "trestle-mux/1"

const (
	// chunkBytes is how much is read from a connection at a time.
	chunkBytes = 32 << 10
	// greetingLimit is how long a connection may take to send its greeting.
	greetingLimit = 10 * time.Second
)

// A frameReader reads frames from a connection.
type frameReader struct {
	from io.Reader
	// buf[:end] was read, and up to next frames were taken of it. Their contents point
	// into buf, which is therefore not written to again before end.
	buf       []byte
	next, end int
}

// read returns the next frame, without its length.
func (r *frameReader) read() ([]byte, error) {
	for {
		have := r.buf[r.next:r.end]
		n, k := binary.Uvarint(have)
		if k < 0 || n > maxMessage {
			return nil, errMalformed
		}
		if k > 0 && n <= uint64(len(have)-k) {
			r.next += k + int(n)
			return have[k : k+int(n) : k+int(n)], nil
		}
		need := 1
		if k > 0 {
			need = k + int(n)
		}
		if r.next+need > len(r.buf) || r.end == len(r.buf) {
			// Memory comes as bytes do, whatever a length says.
			buf := make([]byte, max(chunkBytes, min(need, 2*len(have)+chunkBytes)))
			r.next, r.end, r.buf = 0, copy(buf, have), buf
		}
		m, err := r.from.Read(r.buf[r.end:])
		r.end += m
		if m == 0 && err != nil {
			if errors.Is(err, io.EOF) && len(have) > 0 {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
}

// dialMux connects to a server and exchanges a greeting.
func dialMux(ctx context.Context, d *net.Dialer, addr string, security *tls.Config, greeting string) (net.Conn, error) {
	var c net.Conn
	var err error
	if security == nil {
		c, err = d.DialContext(ctx, "tcp", addr)
	} else {
		security = security.Clone()
		security.NextProtos = []string{muxProtocol}
		c, err = (&tls.Dialer{NetDialer: d, Config: security}).DialContext(ctx, "tcp", addr)
	}
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Now()) })
	if _, err = c.Write([]byte(greeting)); err == nil {
		err = readGreeting(c, greeting)
	}
	if err != nil {
		err = errors.Join(errGreeting, err)
	}
	if !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// readGreeting reads a greeting.
func readGreeting(c net.Conn, greeting string) error {
	b := make([]byte, len(greeting))
	if _, err := io.ReadFull(c, b); err != nil {
		return err
	}
	if string(b) != greeting {
		return errMalformed
	}
	return nil
}

// keepAlive finds out, about half a minute after it happened, that a machine
// has vanished.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 4}

// A demuxListener accepts connections for gRPC and others on one address. It is the
// listener of gRPC.
type demuxListener struct {
	net.Listener
	tls *tls.Config // nil: plain text
	// handlers answer greetings and serve the connections, by greeting; one without is gRPC's.
	handlers map[string]func(net.Conn)

	grpc   chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newDemuxListener(l net.Listener, security *tls.Config, greeted map[string]func(net.Conn)) *demuxListener {
	if security != nil {
		security = security.Clone()
		security.NextProtos = []string{"h2", muxProtocol}
	}
	return &demuxListener{Listener: l, tls: security, handlers: greeted, grpc: make(chan net.Conn), closed: make(chan struct{})}
}

// run accepts connections until the listener is closed.
func (s *demuxListener) run() error {
	lc := s.Listener
	for {
		c, err := lc.Accept()
		if err != nil {
			select {
			case <-s.closed:
				return nil
			default:
			}
			var temporary interface{ Temporary() bool }
			if errors.As(err, &temporary) && temporary.Temporary() { // out of file descriptors, say
				time.Sleep(10 * time.Millisecond)
				continue
			}
			return err
		}
		go s.route(c)
	}
}

// route hands a connection to its handler, by its first bytes.
func (s *demuxListener) route(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetKeepAliveConfig(keepAlive)
	}
	_ = c.SetDeadline(time.Now().Add(greetingLimit))
	if s.tls != nil {
		c = tls.Server(c, s.tls)
	}
	first := make([]byte, len(greeting))
	if _, err := io.ReadFull(c, first); err != nil {
		_ = c.Close()
		return
	}
	if serve := s.handlers[string(first)]; serve != nil {
		serve(c)
		return
	}
	_ = c.SetDeadline(time.Time{})
	select {
	case s.grpc <- &peekedConn{c, io.MultiReader(bytes.NewReader(first), c)}:
	case <-s.closed:
		_ = c.Close()
	}
}

// Accept implements net.Listener.
func (s *demuxListener) Accept() (net.Conn, error) {
	select {
	case c := <-s.grpc:
		return c, nil
	case <-s.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (s *demuxListener) Close() error {
	s.once.Do(func() { close(s.closed) })
	return s.Listener.Close()
}

// peekedConn is a connection of which something has been read.
type peekedConn struct {
	net.Conn
	r io.Reader
}

func (b *peekedConn) Read(p []byte) (int, error) { return b.r.Read(p) }
