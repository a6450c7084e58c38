package transport

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// Why a context is done.
const (
	canceled = 1 + iota
	expired
)

// Keys by which gRPC's packages look for what a context has. They are private, so that a
// context has to be wrapped once for each: four allocations a call. A stream answers to them
// itself; askedFor learns them.
var (
	metadataKey = askedFor(func(ctx context.Context) { metadata.FromIncomingContext(ctx) })
	peerKey     = askedFor(func(ctx context.Context) { peer.FromContext(ctx) })
	streamKey   = askedFor(func(ctx context.Context) { grpc.ServerTransportStreamFromContext(ctx) })
)

// An afterEnd is a function that waits for the end of a context.
type afterEnd struct{ f func() }

// askedFor returns the key for which f asks a context.
func askedFor(f func(context.Context)) any {
	k := &keyNoter{Context: context.Background()}
	f(k)
	if k.key == nil {
		panic("gRPC does not ask the context any more") // a newer one is to be looked at
	}
	return k.key
}

type keyNoter struct {
	context.Context
	key any
}

func (k *keyNoter) Value(key any) any {
	k.key = key
	return nil
}

// Value implements context.Context.
func (s *Stream) Value(key any) any {
	switch key {
	case streamKey:
		return s
	case metadataKey:
		return s.metadata()
	case peerKey:
		return s.c.peer
	}
	return nil
}

// metadata returns the request's metadata.
func (s *Stream) metadata() metadata.MD {
	s.once.Do(func() {
		values := make([]string, len(s.fields))
		s.md = make(metadata.MD, len(s.fields))
		for i, f := range s.fields {
			values[i] = f.Value
			if v, ok := s.md[f.Name]; ok {
				s.md[f.Name] = append(v, f.Value)
			} else {
				s.md[f.Name] = values[i : i+1 : i+1]
			}
		}
	})
	return s.md
}

// Deadline implements context.Context.
func (s *Stream) Deadline() (time.Time, bool) { return s.deadline, !s.deadline.IsZero() }

// Done implements context.Context.
func (s *Stream) Done() <-chan struct{} {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if s.done == nil {
		s.done = make(chan struct{})
		if s.ended.Load() != 0 {
			close(s.done)
		} else {
			s.armLocked()
		}
	}
	return s.done
}

// armLocked has a timer end the context at its deadline, now that a caller waits or works long.
func (s *Stream) armLocked() {
	if s.timer == nil && !s.deadline.IsZero() && s.ended.Load() == 0 {
		s.armed.Store(true)
		s.timer = time.AfterFunc(time.Until(s.deadline), func() { s.end(expired) })
	}
}

// askedOften is from how many calls of Err on the timer costs less than looking at the clock:
// a scan asks for each row, and spent 6 % of its time so.
const askedOften = 16

// Err implements context.Context.
func (s *Stream) Err() error {
	switch s.ended.Load() {
	case canceled:
		return context.Canceled
	case expired:
		return context.DeadlineExceeded
	}
	if s.deadline.IsZero() || s.armed.Load() {
		return nil
	}
	if !time.Now().Before(s.deadline) {
		s.end(expired)
		return s.Err()
	}
	if s.asked.Add(1) == askedOften {
		s.c.mu.Lock()
		s.armLocked()
		s.c.mu.Unlock()
	}
	return nil
}

// AfterFunc is context.AfterFunc's, so that a context derived from this one takes no goroutine.
func (s *Stream) AfterFunc(f func()) (stop func() bool) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if s.ended.Load() != 0 {
		go f()
		return func() bool { return false }
	}
	a := &afterEnd{f}
	s.after = append(s.after, a)
	s.armLocked()
	return func() bool {
		s.c.mu.Lock()
		defer s.c.mu.Unlock()
		i := slices.Index(s.after, a)
		if i < 0 {
			return false
		}
		s.after = slices.Delete(s.after, i, i+1)
		return true
	}
}

// end ends the context.
func (s *Stream) end(why uint32) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.endLocked(why)
}

// Cancel ends the context of the stream: its handler receives and sends no more messages.
func (s *Stream) Cancel() { s.end(canceled) }

func (s *Stream) endLocked(why uint32) {
	if !s.ended.CompareAndSwap(0, why) {
		return
	}
	if s.timer != nil {
		s.timer.Stop()
	}
	if s.done != nil {
		close(s.done)
	}
	for _, a := range s.after {
		go a.f()
	}
	s.after = nil
	s.cond.Broadcast()
}

// err is Err as a status.
func (s *Stream) err() error {
	if err := s.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	return status.FromContextError(context.Canceled).Err()
}
