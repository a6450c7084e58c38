package loopback

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"syscall"
	"testing"
)

// Ports of hosts begin at a multiple of block. All are below 32768, where the
// ports begin that Linux gives to a listener that asks for none; other systems
// begin at 49152.
const (
	lowest = 10_000
	blocks = 220
	block  = 100
)

// A Host is an IP address and some ports that no other Host has until Close. Its
// methods must not be called at once.
type Host struct {
	// IP is a loopback address.
	IP string

	own  net.Listener // tells others that the ports that follow are taken
	next int          // port
	end  int
}

// Take returns a Host that no other process has. The caller closes it.
func Take() (*Host, error) { return take(true) }

// TakeLocal is Take with the address 127.0.0.1, for programs that look for
// others where their connections come from.
func TakeLocal() (*Host, error) { return take(false) }

func take(wide bool) (*Host, error) {
	var err error
	for range 100 {
		h := &Host{IP: "127.0.0.1"}
		if wide {
			h.IP = fmt.Sprintf("127.%d.%d.%d", 64+rand.IntN(64), rand.IntN(256), 1+rand.IntN(254))
		}
		first := lowest + block*rand.IntN(blocks)
		if h.own, err = net.Listen("tcp", h.at(first)); err == nil {
			h.next, h.end = first+1, first+block
			return h, nil
		}
		if errors.Is(err, syscall.EADDRNOTAVAIL) {
			wide = false
		}
	}
	return nil, fmt.Errorf("no loopback address is free: %w", err)
}

func (h *Host) at(port int) string { return net.JoinHostPort(h.IP, strconv.Itoa(port)) }

// Addr returns HOST:PORT with a port that Addr has not returned before and no
// process listens on, not even on all addresses.
func (h *Host) Addr() (string, error) {
	for ; h.next < h.end; h.next++ {
		if l, err := net.Listen("tcp", h.at(h.next)); err == nil {
			h.next++
			return l.Addr().String(), l.Close()
		}
	}
	return "", fmt.Errorf("all %d ports of %s are given away", block-1, h.IP)
}

// Ports returns the first of n consecutive ports for which the same holds.
func (h *Host) Ports(n int) (first int, err error) {
	for got := 0; got < n; {
		at, err := h.Addr()
		if err != nil {
			return 0, err
		}
		_, text, _ := net.SplitHostPort(at)
		port, err := strconv.Atoi(text)
		if err != nil {
			return 0, err
		}
		if port != first+got {
			first, got = port, 0
		}
		got++
	}
	return first, nil
}

// Close gives the address back.
func (h *Host) Close() error { return h.own.Close() }

// Addr returns HOST:PORT that is the test's own until it ends.
func Addr(t testing.TB) string {
	t.Helper()
	h, err := Take()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	at, err := h.Addr()
	if err != nil {
		t.Fatal(err)
	}
	return at
}
