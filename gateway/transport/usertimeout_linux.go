package transport

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// setUserTimeout has the kernel end a connection whose peer has not acknowledged data for d.
func setUserTimeout(c net.Conn, d time.Duration) {
	t, ok := c.(syscall.Conn)
	if !ok {
		return
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return
	}
	// Without it a dead peer is found later, by keep-alive.
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
	})
}
