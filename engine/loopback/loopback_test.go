package loopback

import (
	"errors"
	"net"
	"strconv"
	"syscall"
	"testing"
)

func listen(t *testing.T, at string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestHosts: hosts that are held at once have no address in common, and an
// address is free again and again, also after connections to it that its server
// has ended.
func TestHosts(t *testing.T) {
	for _, wide := range []bool{true, false} {
		seen := map[string]bool{}
		for range 20 {
			h, err := take(wide)
			if err != nil {
				t.Fatal(err)
			}
			defer h.Close()
			for range 3 {
				at, err := h.Addr()
				if err != nil || seen[at] {
					t.Fatalf("%s: a second time %v, %v", at, seen[at], err)
				}
				seen[at] = true
				for range 3 {
					l := listen(t, at)
					c, err := net.Dial("tcp", at)
					if err != nil {
						t.Fatal(err)
					}
					s, err := l.Accept()
					if err != nil {
						t.Fatal(err)
					}
					if host, _, _ := net.SplitHostPort(c.LocalAddr().String()); wide && h.IP != "127.0.0.1" && host == h.IP {
						t.Errorf("a connection to %s takes a port of it", at)
					}
					// Who ends a connection first keeps its port for a minute.
					s.Close()
					c.Close()
					l.Close()
				}
			}
		}
	}
}

// TestTaken: nobody takes a host that is taken, nor gets a port that another
// listens on.
func TestTaken(t *testing.T) {
	h, err := Take()
	if err != nil {
		t.Fatal(err)
	}
	if l, err := net.Listen("tcp", h.own.Addr().String()); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("%v, %v", l, err)
	}
	for _, host := range []string{h.IP, ""} { // also one on all addresses
		if l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(h.next))); err == nil {
			defer l.Close()
			if at, err := h.Addr(); err != nil || at == h.at(h.next-2) {
				t.Errorf("%s, %v", at, err)
			}
		}
	}
	first, err := h.Ports(3)
	if err != nil {
		t.Fatal(err)
	}
	l := listen(t, h.at(first+4)) // leaves one before it
	defer l.Close()
	if next, err := h.Ports(3); err != nil || next != first+5 {
		t.Errorf("ports from %d, %v, want %d", next, err, first+5)
	}
	for range block {
		if _, err = h.Addr(); err != nil {
			break
		}
	}
	if err == nil {
		t.Error("ports without end")
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	listen(t, h.own.Addr().String()).Close()
	listen(t, Addr(t)).Close()
}
