//go:build unix

package tryio

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// pair returns the ends of a connection.
func pair(t *testing.T) (a, b *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dialed, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		dialed.Close()
		accepted.Close()
	})
	return dialed.(*net.TCPConn), accepted.(*net.TCPConn)
}

// TestMoves sends bytes from a Writer to a reader, in pieces of many sizes, while memory is
// collected and stacks move.
func TestMoves(t *testing.T) {
	a, b := pair(t)
	sent := make([]byte, 8<<20)
	rnd := rand.NewChaCha8([32]byte{1})
	rnd.Read(sent)
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-done:
				return
			default:
				runtime.GC()
			}
		}
	}()
	defer close(done)
	go func() {
		w := NewWriter(a)
		for rest, r := sent, rand.New(rnd); len(rest) > 0; {
			n := w.Write(rest[:min(len(rest), 1+r.IntN(1<<r.IntN(20)))])
			if rest = rest[n:]; n == 0 {
				time.Sleep(100 * time.Microsecond) // it is full
			}
		}
		a.CloseWrite()
	}()
	var got bytes.Buffer
	r := NewReader(b)
	if r == io.Reader(b) {
		t.Fatal("a TCP connection is read in the usual way")
	}
	sizes := rand.New(rand.NewPCG(1, 2))
	for {
		p := make([]byte, 1+sizes.IntN(1<<sizes.IntN(20)))
		n, err := r.Read(p)
		got.Write(p[:n])
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil || n == 0 {
			t.Fatalf("%d bytes, %v", n, err)
		}
	}
	if !bytes.Equal(got.Bytes(), sent) {
		t.Fatalf("%d bytes came of %d, or others", got.Len(), len(sent))
	}
}

// TestWriteDoesNotWait fills a connection whose other end does not read.
func TestWriteDoesNotWait(t *testing.T) {
	a, b := pair(t)
	w, p := NewWriter(a), make([]byte, 1<<20)
	total := 0
	for range 100 { // 100 MiB are more than a connection takes
		n := w.Write(p)
		if total += n; n == 0 {
			break
		}
	}
	if w.Write(p) != 0 || total == 0 || total == 100<<20 {
		t.Fatalf("%d bytes taken", total)
	}
	if _, err := io.CopyN(io.Discard, b, int64(total)); err != nil {
		t.Fatal(err)
	}
	if n := w.Write(p); n == 0 {
		t.Fatal("nothing is taken although all was read")
	}
	a.Close()
	if n := w.Write(p); n != 0 {
		t.Fatalf("a closed connection took %d bytes", n)
	}
}

// TestReadEnds shows the errors of a reader: they are what the connection's own are.
func TestReadEnds(t *testing.T) {
	p := make([]byte, 10)
	t.Run("deadline", func(t *testing.T) {
		_, b := pair(t)
		b.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		if n, err := NewReader(b).Read(p); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(n, err)
		}
	})
	t.Run("closed", func(t *testing.T) {
		_, b := pair(t)
		time.AfterFunc(20*time.Millisecond, func() { b.Close() })
		if n, err := NewReader(b).Read(p); n != 0 || !errors.Is(err, net.ErrClosed) {
			t.Fatal(n, err)
		}
	})
	t.Run("end", func(t *testing.T) {
		a, b := pair(t)
		a.Close()
		if n, err := NewReader(b).Read(p); n != 0 || !errors.Is(err, io.EOF) {
			t.Fatal(n, err)
		}
	})
	t.Run("reset", func(t *testing.T) {
		a, b := pair(t)
		a.SetLinger(0)
		a.Close()
		if n, err := NewReader(b).Read(p); n != 0 || !errors.Is(err, syscall.ECONNRESET) {
			t.Fatal(n, err)
		}
	})
	t.Run("nothing", func(t *testing.T) {
		_, b := pair(t)
		if n, err := NewReader(b).Read(nil); n != 0 || err != nil {
			t.Fatal(n, err)
		}
	})
}

// lent counts how often a buffer was lent and taken back.
type lent struct {
	b           []byte
	times, back atomic.Int32
}

func (l *lent) Lend() []byte {
	l.times.Add(1)
	return l.b
}

func (l *lent) TakeBack() { l.back.Add(1) }

// TestReadLent: a reader that waits has no buffer.
func TestReadLent(t *testing.T) {
	a, b := pair(t)
	r, l := NewReader(b).(*Reader), &lent{b: make([]byte, 10)}
	wrote := make(chan struct{})
	defer func() { <-wrote }()
	go func() {
		defer close(wrote)
		for end := time.Now().Add(time.Minute); l.back.Load() == 0 && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		if l.times.Load() != 1 || l.back.Load() != 1 {
			t.Errorf("while it waits the buffer was lent %d times and taken back %d times", l.times.Load(), l.back.Load())
		}
		a.Write([]byte("hello"))
	}()
	n, err := r.ReadLent(l)
	if err != nil || string(l.b[:n]) != "hello" || l.times.Load() != 2 || l.back.Load() != 1 {
		t.Fatalf("%q, %v, lent %d times, taken back %d times", l.b[:n], err, l.times.Load(), l.back.Load())
	}
}

// TestTLS leaves a connection alone that keeps bytes of its own.
func TestTLS(t *testing.T) {
	a, _ := pair(t)
	c := tls.Client(a, &tls.Config{ServerName: "x"})
	if NewReader(c) != io.Reader(c) || NewWriter(c) != nil {
		t.Fatal("its descriptor is used")
	}
}
