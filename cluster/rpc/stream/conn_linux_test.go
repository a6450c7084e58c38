package stream

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
)

// A keeper keeps the connections of a listener, in order.
type keeper struct {
	net.Listener
	mu    sync.Mutex
	conns []*net.TCPConn
}

func (k *keeper) Accept() (net.Conn, error) {
	c, err := k.Listener.Accept()
	if t, ok := c.(*net.TCPConn); ok {
		k.mu.Lock()
		k.conns = append(k.conns, t)
		k.mu.Unlock()
	}
	return c, err
}

// lose has the kernel drop all that comes to a connection, unacknowledged.
func lose(t *testing.T, c *net.TCPConn) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	nothing := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}
	e := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &nothing})
	})
	if err := errors.Join(e, err); err != nil {
		t.Fatal(err)
	}
}

// TestLostConnection: a path that loses one of the connections to a server, and not that of the
// pings, ends the calls on it, and the next ones take another.
func TestLostConnection(t *testing.T) {
	kept := &keeper{Listener: listen(t)}
	_, s, _ := serveOn(t, kept, &fake{}, Options{Silence: time.Second, Connect: time.Minute}, ServerOptions{}, func(*Server) {})
	large := &row.Entry{Key: make([]byte, 100_000)} // which goes over gRPC's connection
	write := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		return s.MutateRow(ctx, rpc.Target{}, large)
	}
	if err := write(); err != nil {
		t.Fatal(err)
	}
	kept.mu.Lock()
	conns := kept.conns
	kept.mu.Unlock()
	if len(conns) != 2 {
		t.Fatalf("%d connections", len(conns))
	}
	lose(t, conns[1])                       // the first is of the pings
	defer func() { _ = conns[1].Close() }() // the server does not hear of its end
	if err := write(); !errors.Is(err, fault.Unavailable) || !errors.Is(err, rpc.ErrUnknown) {
		t.Fatal(err)
	}
	if err := write(); err != nil {
		t.Fatal(err)
	}
}
