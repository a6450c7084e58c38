package memory

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/engine/fault"
)

// A Service is a lock service that lives as long as the process. Who uses it
// gets a Client, so that each can be cut off by itself.
type Service struct {
	mu       sync.Mutex
	revision int64
	items    map[string]*entry
	changes  []lock.Event  // all of them, in order
	changed  chan struct{} // closed by the next change
}

type entry struct {
	lock.Item
	session *session // nil if it outlives its maker
}

// New returns a Service without items.
func New() *Service {
	return &Service{items: map[string]*entry{}, changed: make(chan struct{})}
}

// Faults disturb a client. Such a function is asked before each call reaches the service and again
// before its answer leaves it. It may wait; an error loses the call or the
// answer.
type Faults func(ctx context.Context) error

// Client returns the service as one of its users sees it.
func (s *Service) Client(f Faults) lock.Service {
	if f == nil {
		f = func(context.Context) error { return nil }
	}
	return &client{s, f}
}

type client struct {
	s *Service
	f Faults
}

var _ lock.Service = (*client)(nil)

// call does f between the faults.
func (c *client) call(ctx context.Context, do func() error) error {
	if err := c.f(ctx); err != nil {
		return fault.New(fault.Unavailable, "lock service: %w", err)
	}
	c.s.mu.Lock()
	err := do()
	c.s.mu.Unlock()
	if ferr := c.f(ctx); ferr != nil {
		return fault.New(fault.Unavailable, "lock service: %w", ferr)
	}
	return err
}

func (s *Service) changeLocked(e lock.Event) {
	s.changes = append(s.changes, e)
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *Service) put(key string, value []byte, version int64, owner *session) (lock.Item, error) {
	old := s.items[key]
	have := int64(0)
	if old != nil {
		have = old.Version
	}
	if have != version {
		return lock.Item{}, fault.New(fault.Aborted, "item %s has version %d, not %d", key, have, version)
	}
	s.revision++
	e := &entry{lock.Item{Key: key, Value: slices.Clone(value), Version: s.revision, Created: s.revision}, owner}
	if old != nil {
		e.Created, e.session = old.Created, old.session
	}
	s.items[key] = e
	s.changeLocked(lock.Event{Item: e.Item})
	return e.Item, nil
}

func (s *Service) remove(key string) {
	s.revision++
	delete(s.items, key)
	s.changeLocked(lock.Event{Item: lock.Item{Key: key, Version: s.revision}, Deleted: true})
}

// Get implements lock.Service.
func (c *client) Get(ctx context.Context, key string) (out lock.Item, err error) {
	err = c.call(ctx, func() error {
		e := c.s.items[key]
		if e == nil {
			return fault.New(fault.NotFound, "item %s does not exist", key)
		}
		out = e.Item
		return nil
	})
	return out, err
}

// List implements lock.Service.
func (c *client) List(ctx context.Context, prefix string) (out []lock.Item, revision int64, err error) {
	err = c.call(ctx, func() error {
		for key, e := range c.s.items {
			if strings.HasPrefix(key, prefix) {
				out = append(out, e.Item)
			}
		}
		revision = c.s.revision
		return nil
	})
	slices.SortFunc(out, func(a, b lock.Item) int { return strings.Compare(a.Key, b.Key) })
	return out, revision, err
}

// Put implements lock.Service.
func (c *client) Put(ctx context.Context, key string, value []byte, version int64) (next int64, err error) {
	err = c.call(ctx, func() error {
		i, err := c.s.put(key, value, version, nil)
		next = i.Version
		return err
	})
	return next, err
}

// Delete implements lock.Service.
func (c *client) Delete(ctx context.Context, key string, version int64) error {
	return c.call(ctx, func() error {
		e := c.s.items[key]
		if e == nil || e.Version != version {
			return fault.New(fault.Aborted, "item %s has not version %d", key, version)
		}
		c.s.remove(key)
		return nil
	})
}

// Watch implements lock.Service.
func (c *client) Watch(ctx context.Context, prefix string, revision int64, each func(lock.Event) error) error {
	for {
		if err := c.f(ctx); err != nil {
			return fault.New(fault.Unavailable, "lock service: %w", err)
		}
		c.s.mu.Lock()
		at, _ := slices.BinarySearchFunc(c.s.changes, revision+1, func(e lock.Event, v int64) int { return int(e.Version - v) })
		news, changed := slices.Clone(c.s.changes[at:]), c.s.changed
		c.s.mu.Unlock()
		for _, e := range news {
			revision = e.Version
			if !strings.HasPrefix(e.Key, prefix) {
				continue
			}
			if err := each(e); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// A session is kept alive by a goroutine that calls the service every third of
// its ttl.
type session struct {
	c    *client
	ttl  time.Duration
	stop context.CancelFunc
	done chan struct{}

	mu       sync.Mutex
	deadline time.Time // of the holder
	expires  time.Time // at the service; the service's mu guards it
	ended    bool      // the same
}

// NewSession implements lock.Service.
func (c *client) NewSession(ctx context.Context, ttl time.Duration) (lock.Session, error) {
	s := &session{c: c, ttl: ttl, done: make(chan struct{})}
	if err := s.beat(ctx); err != nil {
		return nil, err
	}
	kept, stop := context.WithCancel(context.Background())
	s.stop = stop
	go s.keep(kept)
	go s.expire()
	return s, nil
}

// beat tells the service that the holder lives.
func (s *session) beat(ctx context.Context) error {
	sent := time.Now()
	err := s.c.call(ctx, func() error {
		if s.ended {
			return fault.New(fault.NotFound, "the session has ended")
		}
		s.expires = time.Now().Add(s.ttl)
		return nil
	})
	if err == nil {
		s.mu.Lock()
		s.deadline = sent.Add(s.ttl)
		s.mu.Unlock()
	}
	return err
}

func (s *session) keep(ctx context.Context) {
	defer close(s.done)
	for ctx.Err() == nil && time.Now().Before(s.Deadline()) {
		select {
		case <-time.After(min(s.ttl/3, time.Until(s.Deadline()))):
		case <-ctx.Done():
			return
		}
		one, cancel := context.WithDeadline(ctx, s.Deadline())
		err := s.beat(one)
		cancel()
		if fault.KindOf(err) == fault.NotFound {
			return
		}
	}
}

// expire is the service's side: it ends the session in time.
func (s *session) expire() {
	for {
		s.c.s.mu.Lock()
		left := time.Until(s.expires)
		if s.ended || left <= 0 {
			s.endLocked()
			s.c.s.mu.Unlock()
			return
		}
		s.c.s.mu.Unlock()
		time.Sleep(left)
	}
}

func (s *session) endLocked() {
	if s.ended {
		return
	}
	s.ended = true
	for key, e := range s.c.s.items {
		if e.session == s {
			s.c.s.remove(key)
		}
	}
}

// Hold implements lock.Session.
func (s *session) Hold(ctx context.Context, key string, value []byte) (item lock.Item, err error) {
	err = s.c.call(ctx, func() error {
		if s.ended {
			return fault.New(fault.Unavailable, "the session has ended")
		}
		var err error
		item, err = s.c.s.put(key, value, 0, s)
		return err
	})
	return item, err
}

// Deadline implements lock.Session.
func (s *session) Deadline() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.deadline
}

// Done implements lock.Session.
func (s *session) Done() <-chan struct{} { return s.done }

// Close implements lock.Session.
func (s *session) Close(ctx context.Context) error {
	s.stop()
	<-s.done
	return s.c.call(ctx, func() error {
		s.endLocked()
		return nil
	})
}
