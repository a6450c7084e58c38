package trestletest

import (
	"net"
	"sync"
)

// A lent listener accepts connections of another one, and leaves that open
// when it is closed: only its own Accept ends.
type lent struct {
	net.Listener
	conns  chan net.Conn
	errs   chan error
	closed chan struct{}
	once   sync.Once
}

func lend(l net.Listener) *lent {
	n := &lent{Listener: l, conns: make(chan net.Conn), errs: make(chan error, 1), closed: make(chan struct{})}
	go n.loop()
	return n
}

// loop ends with the first Accept that returns after Close.
func (n *lent) loop() {
	for {
		c, err := n.Listener.Accept()
		if err != nil {
			n.errs <- err
			return
		}
		select {
		case n.conns <- c:
		case <-n.closed:
			_ = c.Close()
			return
		}
	}
}

func (n *lent) Accept() (net.Conn, error) {
	select {
	case c := <-n.conns:
		return c, nil
	case err := <-n.errs:
		return nil, err
	case <-n.closed:
		return nil, net.ErrClosed
	}
}

func (n *lent) Close() error {
	n.once.Do(func() { close(n.closed) })
	return nil
}
