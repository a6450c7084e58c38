package stream

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"testing/iotest"
	"time"

	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
)

// FuzzFrames: however bytes arrive, the same frames are read, none of which
// changes when others are.
func FuzzFrames(f *testing.F) {
	f.Add(appendFrame(appendFrame(nil, 1, []byte{opPing, 0}, nil), 1<<40, []byte{opMutateRow, 0}, make([]byte, 100_000)))
	f.Add(binary.AppendUvarint(nil, maxMessage+1))
	f.Add(binary.AppendUvarint(nil, maxMessage))
	f.Add([]byte{0x80})
	f.Fuzz(func(t *testing.T, b []byte) {
		read := func(r io.Reader) (frames [][]byte, copies [][]byte, err error) {
			from := &frameReader{from: r}
			for {
				frame, err := from.read()
				if err != nil {
					return frames, copies, err
				}
				frames, copies = append(frames, frame), append(copies, bytes.Clone(frame))
			}
		}
		frames, copies, err := read(bytes.NewReader(b))
		slow, _, slowErr := read(iotest.OneByteReader(bytes.NewReader(b)))
		if len(frames) != len(slow) || !errors.Is(slowErr, err) {
			t.Fatalf("%d frames and %v at once, %d and %v by bytes", len(frames), err, len(slow), slowErr)
		}
		var again []byte
		for i := range frames {
			if !bytes.Equal(frames[i], copies[i]) || !bytes.Equal(frames[i], slow[i]) {
				t.Fatalf("frame %d has changed", i)
			}
			again = append(binary.AppendUvarint(again, uint64(len(frames[i]))), frames[i]...)
		}
		if errors.Is(err, io.EOF) && len(again) > len(b) {
			t.Fatal("more was read than there was")
		}
	})
}

// TestStrangers: a connection that says nothing, or nonsense, is nobody's
// concern but its own.
func TestStrangers(t *testing.T) {
	_, s, _ := serve(t, &fake{}, Options{}, ServerOptions{})
	for _, say := range []string{"", "GET / HTTP/1.1\r\n\r\n", greeting, greeting + "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", greeting + "\x02\x01\x05"} {
		c, err := net.Dial("tcp", s.(*peer).addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, say); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(50 * time.Millisecond)
	if err := s.MutateRow(t.Context(), rpc.Target{}, &row.Entry{Key: []byte("k")}); err != nil {
		t.Error(err)
	}
}

// TestStoppedGreetsNobody: a caller that is greeted asks at once, and has to take what it
// asked for lost if it is not served.
func TestStoppedGreetsNobody(t *testing.T) {
	server, s, _ := serve(t, &fake{}, Options{}, ServerOptions{})
	if err := s.MutateRow(t.Context(), rpc.Target{}, &row.Entry{Key: []byte("k")}); err != nil {
		t.Fatal(err) // Serve has begun
	}
	server.mu.Lock()
	server.stopping = true // as when Stop has begun: the listener still accepts
	server.mu.Unlock()
	for _, greeting := range []string{greeting, greetingScan} {
		c, err := dialMux(t.Context(), &net.Dialer{}, s.(*peer).addr, nil, greeting)
		if err == nil {
			_ = c.Close()
		}
		if !errors.Is(err, errGreeting) {
			t.Errorf("%q: %v", greeting, err)
		}
	}
	other := NewDialer(Options{})
	defer other.Close()
	err := other.Dial(s.(*peer).addr).MutateRow(t.Context(), rpc.Target{}, &row.Entry{Key: []byte("k")})
	if !errors.Is(err, fault.Unavailable) || errors.Is(err, rpc.ErrUnknown) {
		t.Error(err)
	}
}
