package usertimeout

import (
	"syscall"
	"time"
)

// Control returns a net.Dialer's Control that does what Set does, before connecting.
func Control(d time.Duration) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		set(c, d)
		return nil
	}
}
