package chunk

import (
	"runtime"
	"sync"

	"google.golang.org/grpc/mem"

	"github.com/trestledb/trestle/engine/budget"
)

// Segment sizes. The small one is for point reads; a cell that fits neither
// gets a segment of its own size, which is not pooled.
const (
	smallSegment = 16 << 10
	largeSegment = 256 << 10
)

var smallPool, largePool sync.Pool

// A segment is a buffer of chunks. It is a mem.BufferPool for the one buffer
// that is made of it, to learn when gRPC has no more use for it.
type segment struct {
	buf    []byte
	out    []byte // the part of buf that a Row's buffer is of
	charge charge // zero if the segment is not charged
	// cleanup gives the charge back if the segment is garbage before it is
	// freed: when a connection breaks, gRPC drops queued buffers without Free.
	cleanup runtime.Cleanup
}

// newSegment returns a segment with room for at least n bytes, which has the
// size of a large one if large is set and n allows.
func newSegment(n int, large bool) *segment {
	switch {
	case n <= smallSegment && !large:
		if s, ok := smallPool.Get().(*segment); ok {
			return s
		}
		return &segment{buf: make([]byte, 0, smallSegment)}
	case n <= largeSegment:
		if s, ok := largePool.Get().(*segment); ok {
			return s
		}
		return &segment{buf: make([]byte, 0, largeSegment)}
	}
	return &segment{buf: make([]byte, 0, n)}
}

// buffer hands the segment over to the returned buffer.
func (s *segment) buffer() mem.Buffer { return mem.NewBuffer(&s.buf, s) }

// Get implements mem.BufferPool; it is not called.
func (s *segment) Get(n int) *[]byte { b := make([]byte, n); return &b }

// Put implements mem.BufferPool: the buffer is free.
func (s *segment) Put(*[]byte) { s.free() }

func (s *segment) free() {
	if s.charge.budget != nil {
		s.cleanup.Stop()
		s.charge.release()
		s.charge = charge{}
	}
	s.buf, s.out = s.buf[:0], nil
	switch cap(s.buf) {
	case smallSegment:
		smallPool.Put(s)
	case largeSegment:
		largePool.Put(s)
	}
}

// A charge is what one segment takes of a budget.
type charge struct {
	budget *budget.Budget
	n      int64
}

func (c charge) release() { c.budget.Release(c.n) }

// take has s take its capacity of b, and reports whether it was there. A nil
// budget has everything.
func (s *segment) take(b *budget.Budget) bool {
	if b == nil {
		return true
	}
	c := charge{budget: b, n: int64(cap(s.buf))}
	if !b.Try(c.n) {
		return false
	}
	s.charge = c
	s.cleanup = runtime.AddCleanup(s, charge.release, c)
	return true
}
