package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/engine/fault"
)

// keptEvents is how many changes a watcher may be behind. One that is further
// behind lists again.
const keptEvents = 4096

// A Service is the lock service of one process.
type Service struct {
	o     Options
	items *items

	// changing is held by the caller that changes an item, until the change is durable and
	// visible. So changes become visible in the order in which they became durable.
	changing sync.Mutex

	mu       sync.Mutex
	byKey    map[string]entry
	revision int64
	events   []lock.Event // the last ones, ascending
	missed   int64        // events up to this version are not kept
	changed  chan struct{}

	failOnce sync.Once
	failed   chan struct{}
	failure  error
}

// An entry is an item as callers see it.
type entry struct {
	lock.Item
	holder *session // nil if the item outlives its maker
}

var _ lock.Service = (*Service)(nil)

// Open opens the service in a directory. It returns fault.FailedPrecondition if another
// process has it open, fault.Exhausted if the disk is full, and fault.Corruption if its
// files are not what was written.
func Open(ctx context.Context, o Options) (*Service, error) {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Service{o: o, byKey: map[string]entry{}, changed: make(chan struct{}), failed: make(chan struct{})}
	var err error
	if s.items, err = openItems(ctx, o, s.fail, s.Err); err != nil {
		return nil, err
	}
	incarnation := s.items.root.Incarnation()
	if incarnation >= 1<<31 {
		return nil, errors.Join(fault.New(fault.Internal, "%s has used all incarnations", o.Dir), s.items.close())
	}
	s.revision = int64(incarnation) << 32
	s.missed = s.revision
	err = s.items.each(ctx, func(i lock.Item) { s.byKey[i.Key] = entry{Item: i} })
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read the items of the lock service: %w", err), s.items.close())
	}
	return s, nil
}

// Incarnation returns how often the directory was opened. No other process that
// opens it gets the same number.
func (s *Service) Incarnation() uint64 { return s.items.root.Incarnation() }

// fail ends the service: changes that it did not acknowledge may or may not be durable,
// and only the next process can tell.
func (s *Service) fail(err error) {
	s.failOnce.Do(func() {
		s.failure = err
		close(s.failed)
	})
}

// Failed is closed when the service can no longer be used. The process should end.
func (s *Service) Failed() <-chan struct{} { return s.failed }

// Err returns why Failed is closed, nil if it is not.
func (s *Service) Err() error {
	select {
	case <-s.failed:
		return s.failure
	default:
		return nil
	}
}

// Close ends the service and lets go of the directory.
func (s *Service) Close() error {
	s.changing.Lock() // a change that is under way ends first
	defer s.changing.Unlock()
	s.fail(errors.New("the lock service is closed"))
	return s.items.close()
}

// usable returns lock.ErrEnded once the service has failed or was closed.
func (s *Service) usable() error {
	if err := s.Err(); err != nil {
		return fmt.Errorf("%w: %w", lock.ErrEnded, err)
	}
	return nil
}

// Get implements lock.Service.
func (s *Service) Get(_ context.Context, key string) (lock.Item, error) {
	if err := s.usable(); err != nil {
		return lock.Item{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.byKey[key]
	if !ok {
		return lock.Item{}, fault.New(fault.NotFound, "item %s does not exist", key)
	}
	return e.Clone(), nil
}

// List implements lock.Service.
func (s *Service) List(_ context.Context, prefix string) ([]lock.Item, int64, error) {
	if err := s.usable(); err != nil {
		return nil, 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []lock.Item
	for key, e := range s.byKey {
		if strings.HasPrefix(key, prefix) {
			out = append(out, e.Clone())
		}
	}
	slices.SortFunc(out, func(a, b lock.Item) int { return strings.Compare(a.Key, b.Key) })
	return out, s.revision, nil
}

// Put implements lock.Service.
func (s *Service) Put(ctx context.Context, key string, value []byte, version int64) (int64, error) {
	i, err := s.put(ctx, key, value, version, nil)
	return i.Version, err
}

func (s *Service) put(ctx context.Context, key string, value []byte, version int64, holder *session) (lock.Item, error) {
	s.changing.Lock()
	defer s.changing.Unlock()
	if err := s.usable(); err != nil {
		return lock.Item{}, err
	}
	if holder != nil && holder.ended() {
		return lock.Item{}, fault.New(fault.Unavailable, "the session has ended")
	}
	s.mu.Lock()
	old, next := s.byKey[key], s.revision+1
	s.mu.Unlock()
	if old.Version != version {
		return lock.Item{}, fault.New(fault.Aborted, "item %s has version %d, not %d", key, old.Version, version)
	}
	e := entry{lock.Item{Key: key, Value: slices.Clone(value), Version: next, Created: next}, holder}
	if old.Version != 0 {
		e.Created, e.holder = old.Created, old.holder
	}
	e.Held = e.holder != nil
	if e.holder == nil {
		if err := s.makeDurable(ctx, func(ctx context.Context) error { return s.items.put(ctx, e.Item) }); err != nil {
			return lock.Item{}, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byKey[key] = e
	s.publishLocked(lock.Event{Item: e.Item})
	return e.Item, nil
}

// makeDurable makes a durable change. A caller that gave up waiting would not know whether
// the change is stored, and neither would the service. So the change does not end with
// ctx, and an error that leaves it unknown ends the service.
func (s *Service) makeDurable(ctx context.Context, change func(context.Context) error) error {
	err := change(context.WithoutCancel(ctx))
	if err != nil && !errors.Is(err, errUnchanged) {
		s.fail(fmt.Errorf("change an item of the lock service: %w", err))
	}
	return err
}

// Delete implements lock.Service.
func (s *Service) Delete(ctx context.Context, key string, version int64) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	if err := s.usable(); err != nil {
		return err
	}
	s.mu.Lock()
	old := s.byKey[key]
	s.mu.Unlock()
	if old.Version == 0 || old.Version != version {
		return fault.New(fault.Aborted, "item %s has not version %d", key, version)
	}
	if old.holder == nil {
		if err := s.makeDurable(ctx, func(ctx context.Context) error { return s.items.remove(ctx, key) }); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetLocked(key)
	return nil
}

func (s *Service) forgetLocked(key string) {
	delete(s.byKey, key)
	s.publishLocked(lock.Event{Item: lock.Item{Key: key, Version: s.revision + 1}, Deleted: true})
}

// publishLocked tells watchers of a change, whose version is the next revision.
func (s *Service) publishLocked(e lock.Event) {
	s.revision = e.Version
	s.events = append(s.events, e)
	if len(s.events) == 2*keptEvents {
		s.missed = s.events[keptEvents-1].Version
		s.events = slices.Clone(s.events[keptEvents:])
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// Watch implements lock.Service.
func (s *Service) Watch(ctx context.Context, prefix string, revision int64, each func(lock.Event) error) error {
	for {
		s.mu.Lock()
		changed, missed, now := s.changed, s.missed, s.revision
		at, _ := slices.BinarySearchFunc(s.events, revision+1, func(e lock.Event, v int64) int { return int(e.Version - v) })
		events := s.events[at:]
		s.mu.Unlock()
		if revision < missed {
			return fault.New(fault.Unavailable, "changes after revision %d are not kept: list again", revision)
		}
		for _, e := range events {
			if !strings.HasPrefix(e.Key, prefix) {
				continue
			}
			e.Item = e.Clone()
			if err := each(e); err != nil {
				return err
			}
		}
		revision = max(revision, now)
		select {
		case <-changed:
		case <-s.failed:
			return s.usable()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// forever is the deadline of a session: it ends with the process.
const forever = time.Duration(math.MaxInt64 / 2)

// A session lasts until it is closed or the process ends.
type session struct {
	s        *Service
	deadline time.Time
	stop     sync.Once
	done     chan struct{}
}

// NewSession implements lock.Service. It needs no heartbeat, so ttl means
// nothing.
func (s *Service) NewSession(context.Context, time.Duration) (lock.Session, error) {
	if err := s.usable(); err != nil {
		return nil, err
	}
	n := &session{s: s, deadline: time.Now().Add(forever), done: make(chan struct{})}
	go func() {
		select {
		case <-s.failed:
			n.end()
		case <-n.done:
		}
	}()
	return n, nil
}

func (n *session) end() { n.stop.Do(func() { close(n.done) }) }

func (n *session) ended() bool {
	select {
	case <-n.done:
		return true
	default:
		return false
	}
}

// Hold implements lock.Session.
func (n *session) Hold(ctx context.Context, key string, value []byte) (lock.Item, error) {
	return n.s.put(ctx, key, value, 0, n)
}

// Deadline implements lock.Session.
func (n *session) Deadline() time.Time {
	if n.ended() {
		return time.Time{}
	}
	return n.deadline
}

// Done implements lock.Session.
func (n *session) Done() <-chan struct{} { return n.done }

// Close implements lock.Session.
func (n *session) Close(context.Context) error {
	n.s.changing.Lock()
	defer n.s.changing.Unlock()
	n.end()
	n.s.mu.Lock()
	defer n.s.mu.Unlock()
	var held []string
	for key, e := range n.s.byKey {
		if e.holder == n {
			held = append(held, key)
		}
	}
	slices.Sort(held)
	for _, key := range held {
		n.s.forgetLocked(key)
	}
	return nil
}
