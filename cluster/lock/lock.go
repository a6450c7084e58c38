package lock

import (
	"context"
	"errors"
	"slices"
	"time"
)

// An Item is a named value.
type Item struct {
	Key   string
	Value []byte
	// Version changes with every change of the item, and only grows, over all
	// items of a service. It is at least 1.
	Version int64
	// Created is the Version with which the item came into being.
	Created int64
	// Held says that it vanishes with a session.
	Held bool
}

// Clone returns the item with a Value of its own.
func (i Item) Clone() Item {
	i.Value = slices.Clone(i.Value)
	return i
}

// An Event is a change of an item.
type Event struct {
	Item
	// Deleted says that the item is gone; its Value is nil.
	Deleted bool
}

// MaxValue is the largest value that every service takes, in bytes. It is less than the
// 1.5 MiB that etcd accepts by default.
const MaxValue = 1_500_000

// A Service keeps items. Keys are paths of printable characters. All methods are safe for
// concurrent use. A Value that a method returns or passes on is the caller's to change.
//
// Errors wrap a fault.Kind: NotFound, Aborted, FailedPrecondition for a value that the
// service is too small for, and Unavailable for a service that cannot be reached. After any
// other error than the first three a change may or may not have been made.
type Service interface {
	// Get returns an item as it is now, or NotFound.
	Get(ctx context.Context, key string) (Item, error)
	// List returns the items whose keys start with prefix, in the order of keys,
	// and the revision from which Watch tells of later changes.
	List(ctx context.Context, prefix string) ([]Item, int64, error)
	// Put stores value if the item's version is still version (0: it must not
	// exist) and returns the new version; else Aborted.
	Put(ctx context.Context, key string, value []byte, version int64) (int64, error)
	// Delete removes the item if its version is still version; else Aborted.
	Delete(ctx context.Context, key string, version int64) error
	// Watch calls each with every change, after the revision that List returned,
	// of the items whose keys start with prefix, in order. It returns when ctx
	// ends, when each returns an error, or when changes were missed: the caller
	// lists again.
	Watch(ctx context.Context, prefix string, revision int64, each func(Event) error) error
	// NewSession begins a session that ends when the service has not heard of its
	// holder for ttl.
	NewSession(ctx context.Context, ttl time.Duration) (Session, error)
}

// A Session is the life of one holder of items.
type Session interface {
	// Hold makes an item that vanishes with the session. Aborted if there is one of that
	// name. The service may store it again as it is, with a later Version, as etcd's does
	// after an election. A caller whose change is Aborted by that gets the item and tries
	// again.
	Hold(ctx context.Context, key string, value []byte) (Item, error)
	// Deadline returns the instant, of the monotonic clock, until which the service is
	// certain to keep the session. The service heard of it ttl before that, or later.
	Deadline() time.Time
	// Done is closed when the session may have ended.
	Done() <-chan struct{}
	// Close ends the session and removes what it holds. If the session has ended already
	// and the service does not answer, it does not wait for long: the items vanish by
	// themselves.
	Close(ctx context.Context) error
}

// Acquire makes an item that vanishes with the session as soon as there is none of that
// name. Of all callers one gets it at a time.
func Acquire(ctx context.Context, s Service, session Session, key string, value []byte) (Item, error) {
	for {
		items, revision, err := s.List(ctx, key)
		if err != nil {
			return Item{}, err
		}
		held := false
		for _, i := range items {
			held = held || i.Key == key
		}
		if !held {
			item, err := session.Hold(ctx, key, value)
			if err == nil || !isAborted(err) {
				return item, err
			}
			continue
		}
		free := errFree
		err = s.Watch(ctx, key, revision, func(e Event) error {
			if e.Key == key && e.Deleted {
				return free
			}
			return nil
		})
		if ctx.Err() != nil {
			return Item{}, context.Cause(ctx)
		}
		if err != nil && !errors.Is(err, free) {
			// Missed changes, or an unreachable service: look again, in a while.
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
				return Item{}, context.Cause(ctx)
			}
		}
	}
}
