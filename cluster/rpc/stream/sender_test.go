package stream

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"
)

// TestSender: adding frames never waits for the other end, and each arrives once, those of one
// caller in order, whichever goroutine writes them.
func TestSender(t *testing.T) {
	for name, wrap := range map[string]func(net.Conn) net.Conn{
		"TCP": func(c net.Conn) net.Conn { return c },
		// As one of TLS, it cannot be written to without waiting.
		"other": func(c net.Conn) net.Conn { return struct{ net.Conn }{c} },
	} {
		t.Run(name, func(t *testing.T) {
			from, to := connected(t)
			s := newSender(wrap(to))
			ctx, cancel := context.WithCancel(t.Context())
			ran := make(chan error, 1)
			go func() { ran <- s.run(ctx) }()
			add := func(number uint64, body []byte) {
				charge, ok := s.add(number, nil, body)
				if !ok {
					t.Error("it has ended")
				}
				if charge {
					s.flush(number%2 == 0)
				}
			}

			// Nothing is read meanwhile, and this is more than the kernel takes.
			const large, small, callers = 400, 500, 8
			stuck := time.AfterFunc(30*time.Second, func() { _ = from.Close() })
			for i := range uint64(large) {
				add(i, bytes.Repeat([]byte{byte(i)}, 64<<10))
			}
			stuck.Stop()
			var adding sync.WaitGroup
			for c := range uint64(callers) {
				adding.Go(func() {
					for i := range uint64(small) {
						add(large+c*small+i, []byte{byte(i)})
					}
				})
			}
			next := make([]uint64, callers+1)
			r := &frameReader{from: from}
			for range large + callers*small {
				b, err := r.read()
				if err != nil {
					t.Fatal(err)
				}
				d := decoderOf(b)
				number := d.Uvarint()
				c, i := 0, number
				if number >= large {
					c, i = 1+int(number-large)/small, (number-large)%small
				}
				if i != next[c] || bytes.Count(b[len(b)-d.Len():], []byte{byte(i)}) != d.Len() {
					t.Fatalf("caller %d: frame %d, want %d", c, i, next[c])
				}
				next[c]++
			}
			adding.Wait()

			// A goroutine that adds to a connection which takes it needs no other.
			for s.inCharge() {
				time.Sleep(time.Millisecond)
			}
			cancel()
			if err := <-ran; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			if s.try == nil {
				return
			}
			add(1<<40, []byte("by itself"))
			if b, err := r.read(); err != nil || !bytes.HasSuffix(b, []byte("by itself")) {
				t.Error(b, err)
			}
			if taken := s.end(); taken != 1<<40 {
				t.Error(taken)
			}
			if _, ok := s.add(1<<41, nil, nil); ok {
				t.Error("it has ended, and takes more")
			}
		})
	}
}

// inCharge tells whether a goroutine is in charge of frames.
func (s *sender) inCharge() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.charged
}

// connected returns both ends of a connection.
func connected(t *testing.T) (a, b net.Conn) {
	t.Helper()
	l := listen(t)
	defer l.Close()
	var err error
	if a, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if b, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = a.Close(), b.Close() })
	return a, b
}

// TestSenderEnds: what end did not count leaves no more, also if a goroutine is in charge of it.
func TestSenderEnds(t *testing.T) {
	_, to := connected(t)
	s := newSender(to)
	if charge, ok := s.add(7, nil, nil); !charge || !ok {
		t.Fatal(charge, ok)
	}
	if n := s.end(); n != 0 {
		t.Fatalf("frame %d has left", n)
	}
	if b := s.take(); b != nil {
		t.Errorf("%x leaves after the end", b)
	}
}
