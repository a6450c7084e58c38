package membership

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/trestledb/trestle/cluster/lock"
)

// Options say who joins which list.
type Options struct {
	Lock lock.Service
	// Prefix begins the keys of all members' items; Key is that of this one's, and
	// Value what it tells the others.
	Prefix, Key string
	Value       []byte
	// TTL is how long the item of a process that was killed stays.
	TTL time.Duration
	// Changed is called with the items of all members by Join, and then, by one
	// goroutine, whenever they have changed. If it returns an error Join fails, or it is
	// called again after a moment.
	Changed func([]lock.Item) error
	Log     *slog.Logger
}

type member struct{ o Options }

// Join makes the item of a member, and replaces it when its session ends, until leave
// is called, which deletes it.
func Join(ctx context.Context, o Options) (leave func(), err error) {
	m := &member{o}
	session, err := m.register(ctx)
	if err != nil {
		return nil, fmt.Errorf("make item %s: %w", o.Key, err)
	}
	revision, err := m.list(ctx)
	if err != nil {
		return nil, errors.Join(err, closeSession(session))
	}
	life, end := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() { m.hold(life, session) })
	work.Go(func() { m.follow(life, revision) })
	return func() {
		end()
		work.Wait()
	}, nil
}

// closeSession takes a second at most: a session ends by itself, too.
func closeSession(s lock.Session) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return s.Close(ctx)
}

// register makes the item.
func (m *member) register(ctx context.Context) (lock.Session, error) {
	session, err := m.o.Lock.NewSession(ctx, m.o.TTL)
	if err != nil {
		return nil, err
	}
	if _, err := session.Hold(ctx, m.o.Key, m.o.Value); err != nil {
		return nil, errors.Join(err, closeSession(session))
	}
	return session, nil
}

// hold keeps the item until life ends. A session that ends is replaced: the process
// serves on, and others are to find it again.
func (m *member) hold(life context.Context, session lock.Session) {
	for {
		select {
		case <-session.Done():
		case <-life.Done():
		}
		_ = closeSession(session)
		for {
			if life.Err() != nil {
				return
			}
			var err error
			if session, err = m.register(life); err == nil {
				break
			}
			m.o.Log.Warn("this process is not in the lock service, will try again", "item", m.o.Key, "error", err)
			pause(life)
		}
	}
}

// list tells who lives, and returns from which revision to watch.
func (m *member) list(ctx context.Context) (int64, error) {
	items, revision, err := m.o.Lock.List(ctx, m.o.Prefix)
	if err != nil {
		return 0, fmt.Errorf("list items %s: %w", m.o.Prefix, err)
	}
	return revision, m.o.Changed(items)
}

// follow tells of changes until life ends.
func (m *member) follow(life context.Context, revision int64) {
	changed := errors.New("changed")
	for life.Err() == nil {
		err := m.o.Lock.Watch(life, m.o.Prefix, revision, func(lock.Event) error { return changed })
		if !errors.Is(err, changed) {
			pause(life)
		}
		for life.Err() == nil {
			if revision, err = m.list(life); err == nil {
				break
			}
			pause(life)
		}
	}
}

// pause waits a moment before the lock service is asked again.
func pause(ctx context.Context) {
	select {
	case <-time.After(500 * time.Millisecond):
	case <-ctx.Done():
	}
}
