package etcd

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/engine/fault"
)

// A Service keeps its items in etcd, below a prefix.
type Service struct {
	members []*member
	prefix  string
	// limit bounds a call whose context has no earlier end: one that is not
	// answered by then may have been carried out.
	limit time.Duration
	// first is the member that answered last when there was a choice.
	first atomic.Int32
}

// New returns a Service that keeps its items below prefix, which ends with "/". Each of
// members is a client of one member of etcd, so a silent one can be told from those that
// answer. The caller closes them after all else.
func New(members []*clientv3.Client, prefix string) *Service {
	s := &Service{prefix: prefix, limit: 5 * time.Second}
	for _, c := range members {
		s.members = append(s.members, &member{c: c})
	}
	return s
}

var _ lock.Service = (*Service)(nil)

// failed translates an error of etcd.
func failed(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, context.Canceled) {
		return err
	}
	return fault.New(fault.Unavailable, "etcd: %w", err)
}

func (s *Service) item(key []byte, value []byte, version, created, lease int64) lock.Item {
	return lock.Item{Key: strings.TrimPrefix(string(key), s.prefix), Value: value, Version: version, Created: created, Held: lease != 0}
}

// Get implements lock.Service.
func (s *Service) Get(ctx context.Context, key string) (lock.Item, error) {
	ctx, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	r, err := hedged(ctx, s, func(ctx context.Context, m *member) (*clientv3.GetResponse, error) { return m.c.Get(ctx, s.prefix+key) })
	if err != nil {
		return lock.Item{}, failed(err)
	}
	if len(r.Kvs) == 0 {
		return lock.Item{}, fault.New(fault.NotFound, "item %s does not exist", key)
	}
	kv := r.Kvs[0]
	return s.item(kv.Key, kv.Value, kv.ModRevision, kv.CreateRevision, kv.Lease), nil
}

// List implements lock.Service. It reads pages of one revision.
func (s *Service) List(ctx context.Context, prefix string) ([]lock.Item, int64, error) {
	const page = 1000
	from, end := s.prefix+prefix, clientv3.GetPrefixRangeEnd(s.prefix+prefix)
	var out []lock.Item
	var revision int64
	for {
		one, cancel := context.WithTimeout(ctx, s.limit)
		r, err := hedged(one, s, func(ctx context.Context, m *member) (*clientv3.GetResponse, error) {
			return m.c.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(page), clientv3.WithRev(revision),
				clientv3.WithSort(clientv3.SortByKey, clientv3.SortAscend))
		})
		cancel()
		if err != nil {
			return nil, 0, failed(err)
		}
		if revision == 0 {
			revision = r.Header.Revision
		}
		for _, kv := range r.Kvs {
			out = append(out, s.item(kv.Key, kv.Value, kv.ModRevision, kv.CreateRevision, kv.Lease))
		}
		if !r.More {
			return out, revision, nil
		}
		from = string(r.Kvs[len(r.Kvs)-1].Key) + "\x00"
	}
}

// Put implements lock.Service. etcd refuses what is too large as if it could not be reached,
// and clients would try again for ever.
func (s *Service) Put(ctx context.Context, key string, value []byte, version int64) (int64, error) {
	if len(value) > lock.MaxValue {
		return 0, fault.New(fault.FailedPrecondition, "item %s would have %d bytes; the limit is %d, which etcd takes", key, len(value), lock.MaxValue)
	}
	return s.change(ctx, key, version, clientv3.OpPut(s.prefix+key, string(value), clientv3.WithIgnoreLease()), clientv3.OpPut(s.prefix+key, string(value)))
}

// Delete implements lock.Service.
func (s *Service) Delete(ctx context.Context, key string, version int64) error {
	op := clientv3.OpDelete(s.prefix + key)
	if version == 0 {
		return fault.New(fault.Aborted, "item %s: nothing has version 0", key)
	}
	_, err := s.change(ctx, key, version, op, op)
	return err
}

// change does op to an item that exists, or fresh to one that does not.
func (s *Service) change(ctx context.Context, key string, version int64, op, fresh clientv3.Op) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	if version == 0 {
		op = fresh
	}
	m, err := s.liveMember(ctx)
	if err != nil {
		return 0, failed(err)
	}
	r, err := m.c.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(s.prefix+key), "=", version)).Then(op).Commit()
	if err != nil {
		return 0, failed(err)
	}
	if !r.Succeeded {
		return 0, fault.New(fault.Aborted, "item %s has not version %d", key, version)
	}
	return r.Header.Revision, nil
}

// Watch implements lock.Service. When the watched member becomes silent, another one goes
// on where it was.
func (s *Service) Watch(ctx context.Context, prefix string, revision int64, each func(lock.Event) error) error {
	for {
		m := s.members[s.first.Load()]
		next, lost, err := s.watchAt(ctx, m, prefix, revision, each)
		if !lost {
			return err
		}
		s.demote(m)
		revision = next
	}
}

// errSilent is why a watch ends whose member does not answer.
var errSilent = errors.New("the member does not answer")

// watchAt watches at one member. It returns the last revision that was passed to each, and
// whether the watch ended because the member is silent.
func (s *Service) watchAt(ctx context.Context, m *member, prefix string, revision int64, each func(lock.Event) error) (last int64, silent bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if len(s.members) > 1 {
		defer m.monitor(s, func() { cancel(errSilent) })()
	}
	// Without a leader the stream would be silent: an error is better.
	ch := m.c.Watch(clientv3.WithRequireLeader(ctx), s.prefix+prefix, clientv3.WithPrefix(), clientv3.WithRev(revision+1))
	for r := range ch {
		if err := r.Err(); err != nil {
			return revision, errors.Is(context.Cause(ctx), errSilent), failed(err)
		}
		for _, e := range r.Events {
			event := lock.Event{Item: s.item(e.Kv.Key, e.Kv.Value, e.Kv.ModRevision, e.Kv.CreateRevision, e.Kv.Lease), Deleted: e.Type == clientv3.EventTypeDelete}
			if event.Deleted {
				event.Value, event.Created = nil, 0
			}
			if err := each(event); err != nil {
				return revision, false, err
			}
		}
		// A response has all changes of its last revision: they are not fragmented.
		if n := len(r.Events); n > 0 {
			revision = r.Events[n-1].Kv.ModRevision
		}
	}
	if err := ctx.Err(); err != nil {
		return revision, errors.Is(context.Cause(ctx), errSilent), err
	}
	return revision, false, fault.New(fault.Unavailable, "etcd: the watch ended")
}

// A session is a lease, a later one after each election of etcd's members: see
// move.
type session struct {
	s    *Service
	ttl  time.Duration
	stop context.CancelFunc
	done chan struct{}
	// base is an instant of the monotonic clock; deadline is after it.
	base     time.Time
	deadline atomic.Int64
	current  atomic.Pointer[lease]
	// mu is held while an item is made or the session moves. leases are all that it has
	// had. held are the items that it was asked to hold.
	mu     sync.Mutex
	leases map[clientv3.LeaseID]bool
	held   map[string]bool
}

// A lease was granted in a term of etcd's, or in a later one. Once the session has begun
// to leave it, its items may be on another lease: renewals of this one no longer count.
type lease struct {
	id        clientv3.LeaseID
	term      uint64
	abandoned atomic.Bool
}

// NewSession implements lock.Service. etcd counts in seconds: ttl is rounded up there, and
// the session's holder counts with ttl itself.
func (s *Service) NewSession(ctx context.Context, ttl time.Duration) (lock.Session, error) {
	ctx, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	m, term, err := s.probe(ctx)
	if err != nil {
		return nil, failed(err)
	}
	sent, id, err := m.grant(ctx, ttl)
	if err != nil {
		return nil, err
	}
	kept, stop := context.WithCancel(context.Background())
	l := &session{s: s, ttl: ttl, stop: stop, done: make(chan struct{}), base: sent, leases: map[clientv3.LeaseID]bool{}, held: map[string]bool{}}
	l.current.Store(&lease{id: id, term: term})
	l.renewed(sent)
	go l.keep(kept)
	return l, nil
}

// renewed notes that a renewal which was sent at an instant was answered: the
// service counts from later on.
func (l *session) renewed(sent time.Time) {
	d := int64(sent.Sub(l.base) + l.ttl)
	for {
		old := l.deadline.Load()
		if d <= old || l.deadline.CompareAndSwap(old, d) {
			return
		}
	}
}

// keep begins to renew the lease each tenth of the ttl, at least each second, until the
// ttl is over. The time since the last renewal is lost when the service becomes silent. It
// does not wait for the renewals before: etcd answers one that came while it had no leader
// a second after it has one.
func (l *session) keep(ctx context.Context) {
	defer close(l.done)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	tick := time.NewTicker(min(l.ttl/10, time.Second))
	defer tick.Stop()
	for {
		left := time.Until(l.Deadline())
		if left <= 0 {
			return
		}
		select {
		case <-tick.C:
			go func() {
				if err := l.renew(ctx); errors.Is(err, rpctypes.ErrLeaseNotFound) {
					cancel(err)
				}
			}()
		case <-time.After(left):
		case <-ctx.Done():
			return
		}
	}
}

// renew renews the lease once, at whatever member answers, or moves to another
// one. ErrLeaseNotFound if the session has ended.
func (l *session) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, l.ttl/2)
	defer cancel()
	old := l.current.Load()
	_, err := hedged(ctx, l.s, func(ctx context.Context, m *member) (struct{}, error) {
		sent := time.Now()
		term, err := m.renew(ctx, old)
		switch {
		case err != nil:
		case term > old.term:
			err = l.moveToNewLease(ctx, old)
		case !old.abandoned.Load():
			l.renewed(sent)
		}
		return struct{}{}, err
	})
	if err != nil {
		l.mu.Lock() // for the end of a move
		defer l.mu.Unlock()
		if l.current.Load() != old {
			return nil // whatever became of the old one
		}
	}
	return err
}

// moveToNewLease puts the session's items on a new lease when etcd has elected a leader.
// The leader before may have stopped, and revoke every lease that it knew when it goes on.
// It finds them all expired before it hears of its successor, which carries the
// revocations out (https://github.com/etcd-io/etcd/issues/15247). The fix there does not
// help if the leader's clock has ticked again. It takes a ttl for a lease to expire, so
// there is time, and it has heard of no later one.
func (l *session) moveToNewLease(ctx context.Context, old *lease) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current.Load() != old {
		return nil
	}
	old.abandoned.Store(true) // before the new one is asked for: what counted was sent before
	m, term, err := l.s.probe(ctx)
	if err != nil {
		return err
	}
	sent, id, err := m.grant(ctx, l.ttl)
	if err != nil {
		return err
	}
	l.leases[old.id], l.leases[id] = true, true
	var as []clientv3.Cmp
	var puts []clientv3.Op
	for key := range l.held {
		r, err := m.c.Get(ctx, l.s.prefix+key)
		if err != nil {
			return err
		}
		if len(r.Kvs) == 0 || !l.leases[clientv3.LeaseID(r.Kvs[0].Lease)] {
			continue // no longer there, or another session's: its holder finds out
		}
		as = append(as, clientv3.Compare(clientv3.ModRevision(l.s.prefix+key), "=", r.Kvs[0].ModRevision))
		puts = append(puts, clientv3.OpPut(l.s.prefix+key, "", clientv3.WithIgnoreValue(), clientv3.WithLease(id)))
	}
	// An attempt without an answer cannot be carried out after this one: the items'
	// revisions are others then.
	if len(puts) > 0 {
		r, err := m.c.Txn(ctx).If(as...).Then(puts...).Commit()
		if err != nil {
			return errors.New("move to a new lease: " + err.Error()) // not of the old one
		}
		if !r.Succeeded {
			return errors.New("what the session holds has just changed") // the next renewal tries again
		}
	}
	l.current.Store(&lease{id: id, term: term})
	l.renewed(sent)
	return nil
}

// Hold implements lock.Session.
func (l *session) Hold(ctx context.Context, key string, value []byte) (lock.Item, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// Without an answer the item may be there.
	l.held[key] = true
	op := clientv3.OpPut(l.s.prefix+key, string(value), clientv3.WithLease(l.current.Load().id))
	v, err := l.s.change(ctx, key, 0, op, op)
	if err != nil {
		return lock.Item{}, err
	}
	return lock.Item{Key: key, Value: value, Version: v, Created: v, Held: true}, nil
}

// Deadline implements lock.Session.
func (l *session) Deadline() time.Time {
	return l.base.Add(time.Duration(l.deadline.Load()))
}

// Done implements lock.Session.
func (l *session) Done() <-chan struct{} { return l.done }

// Close implements lock.Session.
func (l *session) Close(ctx context.Context) error {
	limit := l.s.limit
	select {
	case <-l.done:
		// Probably etcd cannot be reached, and the caller wants to begin another session.
		limit = min(limit, time.Second/10)
	default:
	}
	l.stop()
	<-l.done
	one, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	_, err := hedged(one, l.s, func(ctx context.Context, m *member) (struct{}, error) {
		_, err := m.c.Revoke(ctx, l.current.Load().id)
		return struct{}{}, err
	})
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return nil
	}
	return failed(err)
}
