package chunk

import (
	"runtime"
	"sync"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc/mem"
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
	charge charge // zero if the segment counts against nobody
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

// Get implements mem.BufferPool; nobody calls it.
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

// A Budget bounds the memory of large rows that all streams of a server
// together hold beyond what each may hold freely. A nil Budget has no bound.
type Budget struct{ sem *semaphore.Weighted }

// NewBudget returns a Budget of n bytes. A row that does not fit alone can
// never be read: n should be well above schema.MaxRow.
func NewBudget(n int64) *Budget { return &Budget{sem: semaphore.NewWeighted(n)} }

// A charge is what one segment takes of a Budget.
type charge struct {
	budget *Budget
	n      int64
}

func (c charge) release() { c.budget.sem.Release(c.n) }

// charge takes cap(s.buf) of the budget for s and reports whether it was
// there.
func (b *Budget) charge(s *segment) bool {
	if b == nil {
		return true
	}
	c := charge{budget: b, n: int64(cap(s.buf))}
	if !b.sem.TryAcquire(c.n) {
		return false
	}
	s.charge = c
	s.cleanup = runtime.AddCleanup(s, charge.release, c)
	return true
}
