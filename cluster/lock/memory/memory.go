package memory

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/engine/fault"
)

// A Service is a lock service that lives as long as the process. Each user gets a Client,
// so that each can be cut off by itself.
type Service struct {
	mu       sync.Mutex
	revision int64
	items    map[string]*entry
	changes  []lock.Event // all of them, in order
	watchers map[*watcher]bool
}

type entry struct {
	lock.Item
	session *session // nil if it outlives its maker
}

// New returns a Service without items.
func New() *Service {
	return &Service{items: map[string]*entry{}, watchers: map[*watcher]bool{}}
}

// A Carrier takes a call to the service, which is do, and its answer back. It may wait. It
// may call do once, twice or never, also after it has returned. If it returns an error the
// answer was lost. kind names the call; Heartbeat is the kind of what keeps a session
// alive.
type Carrier func(ctx context.Context, kind string, do func()) error

// Heartbeat is the kind of the calls that keep a session alive.
const Heartbeat = "heartbeat"

// A Clock is the monotonic clock of a client's node, which may run at another
// rate than that of the service.
type Clock interface {
	// Reading returns what the clock shows.
	Reading() time.Duration
	// After is time.After.
	After(d time.Duration) <-chan time.Time
}

type systemClock struct{ start time.Time }

func (c systemClock) Reading() time.Duration               { return time.Since(c.start) }
func (systemClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

// Client returns the service as one of its users sees it. Without a Carrier
// calls arrive at once; without a Clock the user's is right.
func (s *Service) Client(carry Carrier, clock Clock) lock.Service {
	if carry == nil {
		carry = func(_ context.Context, _ string, do func()) error {
			do()
			return nil
		}
	}
	if clock == nil {
		clock = systemClock{time.Now()}
	}
	return &client{s, carry, clock}
}

type client struct {
	s     *Service
	carry Carrier
	clock Clock
}

var _ lock.Service = (*client)(nil)

// ask has do done by the service and returns what it returned, the first time.
func ask[T any](ctx context.Context, c *client, kind string, do func() (T, error)) (out T, err error) {
	type answer struct {
		v   T
		err error
	}
	got := make(chan answer, 2)
	err = c.carry(ctx, kind, func() {
		c.s.mu.Lock()
		v, err := do()
		c.s.mu.Unlock()
		got <- answer{v, err}
	})
	if err != nil {
		return out, fault.New(fault.Unavailable, "lock service: %w", err)
	}
	a := <-got
	return a.v, a.err
}

// askError is ask for what has no answer but an error.
func askError(ctx context.Context, c *client, kind string, do func() error) error {
	_, err := ask(ctx, c, kind, func() (struct{}, error) { return struct{}{}, do() })
	return err
}

func (s *Service) changeLocked(e lock.Event) {
	s.changes = append(s.changes, e)
	for w := range s.watchers {
		if strings.HasPrefix(e.Key, w.prefix) {
			select {
			case w.changed <- struct{}{}:
			default:
			}
		}
	}
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
	e.Held = e.session != nil
	s.items[key] = e
	s.changeLocked(lock.Event{Item: e.Item})
	return e.Item, nil
}

// Elect stores again what sessions hold, as that on etcd does when there was an
// election.
func (s *Service) Elect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(s.items)) {
		if e := s.items[key]; e.session != nil {
			_, _ = s.put(key, e.Value, e.Version, nil) // of this version it is
		}
	}
}

func (s *Service) remove(key string) {
	s.revision++
	delete(s.items, key)
	s.changeLocked(lock.Event{Item: lock.Item{Key: key, Version: s.revision}, Deleted: true})
}

// Get implements lock.Service.
func (c *client) Get(ctx context.Context, key string) (lock.Item, error) {
	return ask(ctx, c, "Get", func() (lock.Item, error) {
		e := c.s.items[key]
		if e == nil {
			return lock.Item{}, fault.New(fault.NotFound, "item %s does not exist", key)
		}
		return e.Clone(), nil
	})
}

// A list is what List returns.
type list struct {
	items    []lock.Item
	revision int64
}

// List implements lock.Service.
func (c *client) List(ctx context.Context, prefix string) ([]lock.Item, int64, error) {
	l, err := ask(ctx, c, "List", func() (list, error) {
		l := list{revision: c.s.revision}
		for key, e := range c.s.items {
			if strings.HasPrefix(key, prefix) {
				l.items = append(l.items, e.Clone())
			}
		}
		return l, nil
	})
	slices.SortFunc(l.items, func(a, b lock.Item) int { return strings.Compare(a.Key, b.Key) })
	return l.items, l.revision, err
}

// Put implements lock.Service.
func (c *client) Put(ctx context.Context, key string, value []byte, version int64) (int64, error) {
	i, err := ask(ctx, c, "Put", func() (lock.Item, error) { return c.s.put(key, value, version, nil) })
	return i.Version, err
}

// Delete implements lock.Service.
func (c *client) Delete(ctx context.Context, key string, version int64) error {
	return askError(ctx, c, "Delete", func() error {
		e := c.s.items[key]
		if e == nil || e.Version != version {
			return fault.New(fault.Aborted, "item %s has not version %d", key, version)
		}
		c.s.remove(key)
		return nil
	})
}

// A watcher sees the changes of the items whose keys start with prefix.
type watcher struct {
	prefix  string
	changed chan struct{} // has one when there are changes
}

// A changeSet has the changes that a watcher is to see, up to a revision.
type changeSet struct {
	events   []lock.Event
	revision int64
}

// Watch implements lock.Service.
func (c *client) Watch(ctx context.Context, prefix string, revision int64, each func(lock.Event) error) error {
	w := &watcher{prefix, make(chan struct{}, 1)}
	c.s.mu.Lock()
	c.s.watchers[w] = true
	c.s.mu.Unlock()
	defer func() {
		c.s.mu.Lock()
		delete(c.s.watchers, w)
		c.s.mu.Unlock()
	}()
	for {
		n, err := ask(ctx, c, "Watch", func() (changeSet, error) {
			at, _ := slices.BinarySearchFunc(c.s.changes, revision+1, func(e lock.Event, v int64) int { return int(e.Version - v) })
			n := changeSet{revision: c.s.revision}
			for _, e := range c.s.changes[at:] {
				if strings.HasPrefix(e.Key, prefix) {
					n.events = append(n.events, e)
				}
			}
			return n, nil
		})
		if err != nil {
			return err
		}
		for _, e := range n.events {
			e.Item = e.Clone()
			if err := each(e); err != nil {
				return err
			}
		}
		revision = n.revision
		select {
		case <-w.changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// A session is kept alive by a goroutine that calls the service every tenth of
// its ttl, whatever became of the calls before.
type session struct {
	c    *client
	ttl  time.Duration
	stop context.CancelFunc
	done chan struct{}

	mu      sync.Mutex
	sent    time.Duration // when the service was asked, by the holder's clock, the last time that it answered
	expires time.Time     // at the service; the service's mu guards it
	ended   bool          // the same
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
	sent := s.c.clock.Reading()
	err := askError(ctx, s.c, Heartbeat, func() error {
		if s.ended {
			return fault.New(fault.NotFound, "the session has ended")
		}
		s.expires = time.Now().Add(s.ttl)
		return nil
	})
	if err == nil {
		s.mu.Lock()
		s.sent = max(s.sent, sent)
		s.mu.Unlock()
	}
	return err
}

// left is how long the session lasts by the holder's clock.
func (s *session) left() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent + s.ttl - s.c.clock.Reading()
}

func (s *session) keep(ctx context.Context) {
	defer close(s.done)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for ctx.Err() == nil {
		left := s.left()
		if left <= 0 {
			return
		}
		select {
		case <-s.c.clock.After(min(s.ttl/10, left)):
		case <-ctx.Done():
			return
		}
		go func() {
			if fault.KindOf(s.beat(ctx)) == fault.NotFound {
				cancel()
			}
		}()
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
func (s *session) Hold(ctx context.Context, key string, value []byte) (lock.Item, error) {
	return ask(ctx, s.c, "Hold", func() (lock.Item, error) {
		if s.ended {
			return lock.Item{}, fault.New(fault.Unavailable, "the session has ended")
		}
		return s.c.s.put(key, value, 0, s)
	})
}

// Deadline implements lock.Session. By the clock of this process, which is not
// that of the holder, it may be another instant each time.
func (s *session) Deadline() time.Time { return time.Now().Add(s.left()) }

// Done implements lock.Session.
func (s *session) Done() <-chan struct{} { return s.done }

// Close implements lock.Session.
func (s *session) Close(ctx context.Context) error {
	s.stop()
	<-s.done
	return askError(ctx, s.c, "Close", func() error {
		s.endLocked()
		return nil
	})
}
