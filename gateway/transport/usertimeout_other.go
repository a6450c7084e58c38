//go:build !linux

package transport

import (
	"net"
	"time"
)

// setUserTimeout does nothing here: a dead peer is found by keep-alive.
func setUserTimeout(net.Conn, time.Duration) {}
