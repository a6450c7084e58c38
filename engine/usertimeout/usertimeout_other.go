//go:build !linux

package usertimeout

import (
	"net"
	"syscall"
	"time"
)

// Set does nothing here: a dead peer is found by keep-alive.
func Set(net.Conn, time.Duration) {}

func set(syscall.RawConn, time.Duration) {}
