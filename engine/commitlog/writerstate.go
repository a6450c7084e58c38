package commitlog

import (
	"context"
	"sync"

	"github.com/trestledb/trestle/engine/fault"
)

// A writerState is what a Writer of either form keeps under its lock: how it
// ends, the callers that wait for room, and buffers to use again. G is a group.
type writerState[G any] struct {
	sync.Mutex
	err     error // why the writer failed
	closing bool
	failed  chan struct{} // closed on failure; never changed, so it is read without the lock
	free    []*G          // groups whose buffers can be used again
	pending int64         // bytes appended and not yet acknowledged
	changed chan struct{} // wakes the callers of awaitChangeLocked; nil without any
}

// An outcome is what becomes of a group. It outlives the group, whose buffers
// are used again.
type outcome struct {
	done chan struct{} // closed when err is set
	err  error
}

func newOutcome() *outcome { return &outcome{done: make(chan struct{})} }

// wait returns what became of the group, or why ctx ended.
func (o *outcome) wait(ctx context.Context) error {
	if ctx.Done() == nil {
		<-o.done
		return o.err
	}
	select {
	case <-o.done:
		return o.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// stoppedLocked returns why the writer takes nothing more, or nil.
func (s *writerState[G]) stoppedLocked() error {
	if s.err == nil && s.closing {
		return fault.New(fault.Unavailable, "the commit log is closed")
	}
	return s.err
}

// failure returns why the writer failed, or nil.
func (s *writerState[G]) failure() error {
	s.Lock()
	defer s.Unlock()
	return s.err
}

// unknownLocked answers Wait for a position that no group holds.
func (s *writerState[G]) unknownLocked(pos Pos) error {
	if err := s.stoppedLocked(); err != nil {
		return err
	}
	return fault.New(fault.Internal, "wait for log position %v, which was not appended", pos)
}

// failLocked ends the writer, and tells the callers that wait for groups that are
// not acknowledged.
func (s *writerState[G]) failLocked(kind fault.Kind, reason string, cause error, unacked []*outcome) {
	err := fault.New(kind, "the commit log failed: %w", cause)
	err.Reason = reason
	s.err = err
	close(s.failed)
	for _, o := range unacked {
		o.err = err
		close(o.done)
	}
	s.changedLocked()
}

// beginClose stops appends. It returns false if that was done before.
func (s *writerState[G]) beginClose() bool {
	s.Lock()
	defer s.Unlock()
	if s.closing {
		return false
	}
	s.closing = true
	s.changedLocked()
	return true
}

// awaitChangeLocked waits for changedLocked, or returns why ctx ended. It gives
// up the lock meanwhile.
func (s *writerState[G]) awaitChangeLocked(ctx context.Context) error {
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	changed := s.changed
	s.Unlock()
	defer s.Lock()
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// changedLocked wakes the callers of awaitChangeLocked.
func (s *writerState[G]) changedLocked() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// takeLocked returns a group without records, with buffers of an earlier one if
// there is one.
func (s *writerState[G]) takeLocked() *G {
	n := len(s.free)
	if n == 0 {
		return new(G)
	}
	g := s.free[n-1]
	s.free = s.free[:n-1]
	return g
}
