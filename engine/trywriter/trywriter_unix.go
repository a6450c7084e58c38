//go:build unix

package trywriter

import (
	"errors"
	"net"
	"syscall"
)

// A Writer writes to a connection without waiting for it. One goroutine at a time
// uses it.
type Writer struct {
	raw  syscall.RawConn
	call func(fd uintptr) bool // writes p, and sets n to how much of it was
	p    []byte
	n    int
}

// New returns nil if c cannot be written to so.
func New(c net.Conn) *Writer {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return nil
	}
	w := &Writer{raw: raw}
	w.call = func(fd uintptr) bool {
		for {
			n, err := syscall.Write(int(fd), w.p)
			if w.n = max(n, 0); !errors.Is(err, syscall.EINTR) {
				return true // whatever it was: who writes the rest meets it too
			}
		}
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
