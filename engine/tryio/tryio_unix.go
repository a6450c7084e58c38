//go:build unix

package tryio

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
)

// rawConn returns what c's descriptor is reached by, or nil: a TLS connection has bytes of
// its own between the caller and the descriptor.
func rawConn(c net.Conn) syscall.RawConn {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}

// Read reads what is there from a descriptor that does not block. Its error is
// syscall.EAGAIN if nothing is there yet; at the end it is 0 bytes without an error.
func Read(fd uintptr, p []byte) (int, error) {
	for {
		n, err := read(fd, p)
		switch {
		case err == nil:
			return n, nil
		case !errors.Is(err, syscall.EINTR):
			return 0, err
		}
	}
}

// A reader is a connection's, whose deadlines it keeps.
type reader struct {
	raw  syscall.RawConn
	call func(fd uintptr) bool // reads to p, and sets n and err
	p    []byte
	n    int
	err  error
}

// NewReader returns a reader of c, for one goroutine at a time. It is c itself if that
// cannot be read so.
func NewReader(c net.Conn) io.Reader {
	raw := rawConn(c)
	if raw == nil {
		return c
	}
	r := &reader{raw: raw}
	r.call = func(fd uintptr) bool {
		r.n, r.err = Read(fd, r.p)
		return !errors.Is(r.err, syscall.EAGAIN)
	}
	return r
}

// Read implements io.Reader. It waits in Go's poller, not in the system.
func (r *reader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	r.p = p
	err := r.raw.Read(r.call)
	r.p = nil
	switch {
	case err != nil:
		return 0, err
	case r.err != nil:
		return 0, os.NewSyscallError("read", r.err)
	case r.n == 0:
		return 0, io.EOF
	}
	return r.n, nil
}

// A Writer writes to a connection without waiting for it. One goroutine at a time
// uses it.
type Writer struct {
	raw  syscall.RawConn
	call func(fd uintptr) bool // writes p, and sets n to how much of it was
	p    []byte
	n    int
}

// NewWriter returns nil if c cannot be written to so.
func NewWriter(c net.Conn) *Writer {
	raw := rawConn(c)
	if raw == nil {
		return nil
	}
	w := &Writer{raw: raw}
	w.call = func(fd uintptr) bool {
		for w.n < len(w.p) {
			n, err := write(fd, w.p[w.n:])
			if err != nil && !errors.Is(err, syscall.EINTR) {
				break // whatever it was: the writer of the rest meets it too
			}
			w.n += max(n, 0)
		}
		return true
	}
	return w
}

// Write returns how much of p was written. An error is 0: the caller of the next Write
// meets it.
func (w *Writer) Write(p []byte) int {
	w.p, w.n = p, 0
	_ = w.raw.Write(w.call) // the connection is closed, and n is 0
	w.p = nil
	return w.n
}
