package etcd

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trestledb/trestle/engine/fault"
)

// hedgeDelay is how long one member is waited for before another one is asked too.
// Beside a connection that is alive it is long, for a request that waits it is
// short.
const hedgeDelay = 150 * time.Millisecond

// A member is one of etcd's.
type member struct {
	c *clientv3.Client

	mu sync.Mutex
	// watches are called when the member is silent. As long as there are some, it is
	// asked each pingInterval.
	watches map[*func()]bool
	stop    context.CancelFunc
}

// isAnswer tells whether an error is an answer: another member would say the same.
func isAnswer(err error) bool { return err == nil || errors.Is(err, rpctypes.ErrLeaseNotFound) }

// hedged asks the members, beginning with the one that answered last, until one has
// answered. It asks the next one after hedgeDelay, or as soon as one has failed. It is for
// calls that may be carried out more than once. ctx bounds it all.
func hedged[T any](ctx context.Context, s *Service, ask func(context.Context, *member) (T, error)) (T, error) {
	n := len(s.members)
	first := int(s.first.Load())
	if n == 1 {
		return ask(ctx, s.members[0])
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		at  int
		v   T
		err error
	}
	answers := make(chan answer, n)
	asked, waiting := 0, 0
	next := func() {
		at := (first + asked) % n
		asked++
		waiting++
		go func() {
			v, err := ask(ctx, s.members[at])
			answers <- answer{at, v, err}
		}()
	}
	next()
	more := time.NewTicker(hedgeDelay)
	defer more.Stop()
	var last answer
	for {
		select {
		case a := <-answers:
			waiting--
			if isAnswer(a.err) {
				s.first.CompareAndSwap(int32(first), int32(a.at))
				return a.v, a.err
			}
			if last = a; asked < n {
				next()
			} else if waiting == 0 {
				return last.v, last.err
			}
		case <-more.C:
			if asked < n {
				next()
			}
		}
	}
}

// liveMember returns a member that has just answered. A call that must not be made twice
// is made there and nowhere else: a member that is silent might carry it out later.
func (s *Service) liveMember(ctx context.Context) (*member, error) {
	if len(s.members) == 1 {
		return s.members[0], nil
	}
	m, _, err := s.probe(ctx)
	return m, err
}

// probe returns a member that has just answered, and etcd's term, which is another
// one after each election.
func (s *Service) probe(ctx context.Context) (*member, uint64, error) {
	type answer struct {
		m    *member
		term uint64
	}
	a, err := hedged(ctx, s, func(ctx context.Context, m *member) (answer, error) {
		r, err := m.c.Get(ctx, s.prefix, clientv3.WithKeysOnly())
		if err != nil {
			return answer{}, err
		}
		return answer{m, r.Header.RaftTerm}, nil
	})
	return a.m, a.term, err
}

// grant returns a new lease, and when it was asked for. etcd counts in seconds: ttl
// is rounded up.
func (m *member) grant(ctx context.Context, ttl time.Duration) (sent time.Time, id clientv3.LeaseID, err error) {
	sent = time.Now()
	r, err := m.c.Grant(ctx, int64((ttl+time.Second-1)/time.Second))
	if err != nil {
		return sent, 0, failed(err)
	}
	if granted := time.Duration(r.TTL) * time.Second; granted < ttl {
		return sent, 0, fault.New(fault.FailedPrecondition, "etcd granted a lease of %v, not %v", granted, ttl)
	}
	return sent, r.ID, nil
}

// errMemberBehind is the answer of a member that does not know a lease yet.
var errMemberBehind = errors.New("the member is behind the others")

// renew renews a lease, and returns the term of etcd's in which the member answers.
// Client.KeepAliveOnce would ask a member that cannot be reached again and again,
// without a pause, until ctx ends.
func (m *member) renew(ctx context.Context, l *lease) (term uint64, err error) {
	ctx, cancel := context.WithCancel(ctx) // ends the stream
	defer cancel()
	stream, err := pb.NewLeaseClient(m.c.ActiveConnection()).LeaseKeepAlive(ctx)
	if err != nil {
		return 0, clientv3.ContextError(ctx, err)
	}
	if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(l.id)}); err != nil && !errors.Is(err, io.EOF) {
		return 0, clientv3.ContextError(ctx, err)
	} // EOF: Recv tells why
	r, err := stream.Recv()
	if err != nil {
		return 0, clientv3.ContextError(ctx, err)
	}
	switch term = r.Header.RaftTerm; {
	case r.TTL > 0:
		return term, nil
	case term < l.term:
		return 0, errMemberBehind
	}
	return term, rpctypes.ErrLeaseNotFound
}

// demote makes another member the first to be asked.
func (s *Service) demote(m *member) {
	first := s.first.Load()
	if s.members[first] == m {
		s.first.CompareAndSwap(first, (first+1)%int32(len(s.members)))
	}
}

// A watched member is asked each pingInterval, and is silent if it has not answered after
// pingTimeout. It answers from its own state: whether it reaches another member does not
// matter.
const pingInterval, pingTimeout = time.Second, time.Second

// monitor calls gone once the member is silent, until the returned function is
// called.
func (m *member) monitor(s *Service, gone func()) (leave func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := &gone
	if m.watches == nil {
		m.watches = map[*func()]bool{}
	}
	if m.watches[w] = true; len(m.watches) == 1 {
		var ctx context.Context
		ctx, m.stop = context.WithCancel(context.Background())
		go m.pingLoop(ctx, s)
	}
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if delete(m.watches, w); len(m.watches) == 0 {
			m.stop()
		}
	}
}

func (m *member) pingLoop(ctx context.Context, s *Service) {
	tick := time.NewTicker(pingInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		one, cancel := context.WithTimeout(ctx, pingTimeout)
		_, err := m.c.Get(one, s.prefix, clientv3.WithSerializable(), clientv3.WithKeysOnly())
		cancel()
		if err == nil {
			continue
		}
		m.mu.Lock()
		if ctx.Err() == nil {
			for w := range m.watches {
				(*w)()
			}
		}
		m.mu.Unlock()
	}
}
