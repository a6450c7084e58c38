package usertimeout

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Set has the kernel end a connection whose peer has not acknowledged data for d: an option
// of TCP (RFC 5482, tcp(7)). It has no effect on others, nor on systems other than Linux. A
// peer that has no room for d long ends the connection too.
func Set(c net.Conn, d time.Duration) {
	if t, ok := c.(syscall.Conn); ok {
		if raw, err := t.SyscallConn(); err == nil {
			set(raw, d)
		}
	}
}

func set(c syscall.RawConn, d time.Duration) {
	// Without it a dead peer is found later.
	_ = c.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
	})
}
