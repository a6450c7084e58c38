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

// A Reader reads a connection, whose deadlines it keeps. One goroutine at a time uses it.
type Reader struct {
	raw  syscall.RawConn
	call func(fd uintptr) bool // reads to p or to what from lends, and sets n and err
	p    []byte
	from Lender
	n    int
	err  error
}

// NewReader returns a Reader of c, or c itself if that cannot be read so.
func NewReader(c net.Conn) io.Reader {
	raw := rawConn(c)
	if raw == nil {
		return c
	}
	r := &Reader{raw: raw}
	r.call = func(fd uintptr) bool {
		p := r.p
		if r.from != nil {
			p = r.from.Lend()
		}
		for {
			if r.n, r.err = read(fd, p); !errors.Is(r.err, syscall.EINTR) {
				break
			}
		}
		if !errors.Is(r.err, syscall.EAGAIN) {
			return true
		}
		if r.from != nil {
			r.from.TakeBack()
		}
		return false
	}
	return r
}

// Read implements io.Reader. It waits in Go's poller, not in the system.
func (r *Reader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	return r.read(p, nil)
}

// ReadLent is Read to a buffer that it has only once there is something to read.
func (r *Reader) ReadLent(from Lender) (int, error) { return r.read(nil, from) }

func (r *Reader) read(p []byte, from Lender) (int, error) {
	r.p, r.from = p, from
	err := r.raw.Read(r.call)
	r.p, r.from = nil, nil
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
