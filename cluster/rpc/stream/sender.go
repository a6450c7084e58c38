package stream

import (
	"context"
	"net"
	"runtime"
	"sync"

	"github.com/trestledb/trestle/engine/tryio"
)

// A sender sends the frames of many callers.
//
// One goroutine at a time is in charge of what has gathered. It is the one that adds a frame
// when there is no other, and it stays in charge until it finds nothing more. To wake a
// goroutine for that instead cost a tenth of a call to another server. It never waits for
// the connection: what that does not take at once is left to the sender's own goroutine,
// run. So is everything where a connection cannot tell, as with TLS.
type sender struct {
	c   net.Conn
	try *tryio.Writer // nil: run alone writes

	mu      sync.Mutex
	frames  []byte
	last    uint64 // number of the last frame in frames
	taken   uint64 // number of the last frame that was handed to the connection
	charged bool   // a goroutine is in charge
	ended   bool

	// The goroutine in charge has these. left was taken and is to be written first; spare
	// is the memory of the next frames.
	left, spare []byte
	wake        chan struct{} // puts run in charge
}

// maxWrites bounds what a goroutine writes that has something else to do: each write takes
// it some 5 µs, and its own answer takes longer than four.
const maxWrites = 4

func newSender(c net.Conn) *sender {
	return &sender{c: c, try: tryio.NewWriter(c), wake: make(chan struct{}, 1)}
}

// add adds a frame, unless the sender has ended. The caller is in charge if it says so, and
// calls flush without a lock.
func (s *sender) add(number uint64, head, body []byte) (charge, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false, false
	}
	s.frames = appendFrame(s.frames, number, head, body)
	s.last = max(s.last, number)
	charge = !s.charged
	s.charged = true
	return charge, true
}

// tell adds a frame that belongs to no call and is not missed.
func (s *sender) tell(number uint64, head ...byte) {
	if charge, _ := s.add(number, head, nil); charge {
		s.flush(false)
	}
}

// flush writes frames, called by the goroutine in charge. If others may be about to add
// some, they do it first: a write costs more than anything else here.
func (s *sender) flush(others bool) {
	if s.try != nil {
		if others {
			runtime.Gosched()
		}
		for range maxWrites {
			b := s.take()
			if b == nil {
				return
			}
			if n := s.try.Write(b); n < len(b) {
				s.left = b[n:]
				break
			}
			s.keep(b)
		}
	}
	s.wake <- struct{}{} // one goroutine is in charge, so there is room
}

// take returns the frames to write. If there are none, or the sender has ended, the caller is
// no longer in charge: what end has said of the frames that left stays true.
func (s *sender) take() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.frames
	if s.ended || len(b) == 0 {
		s.charged = false
		return nil
	}
	s.frames, s.spare, s.taken = s.spare, nil, s.last
	return b
}

// keep keeps the memory of frames that were written.
func (s *sender) keep(b []byte) {
	if cap(b) <= batchBytes {
		s.spare = b[:0]
	}
}

// end makes add refuse. It returns the number of the last frame that may have
// been sent.
func (s *sender) end() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	return s.taken
}

// run writes what is left to it until ctx ends or the connection fails.
func (s *sender) run(ctx context.Context) error {
	for {
		select {
		case <-s.wake:
		case <-ctx.Done():
			return ctx.Err()
		}
		b := s.left
		if s.left = nil; b == nil {
			runtime.Gosched() // as in flush
			b = s.take()
		}
		for ; b != nil; b = s.take() {
			if _, err := s.c.Write(b); err != nil {
				return err
			}
			s.keep(b)
		}
	}
}
