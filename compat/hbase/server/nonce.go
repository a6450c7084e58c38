package server

import (
	"context"
	"sync"
	"time"

	"github.com/trestledb/trestle/compat/hbase/wire"
)

// A nonce says that two calls are the same one, sent twice.
type nonce struct{ group, n uint64 }

// nonceGrace is how long a nonce is remembered after it has succeeded, and
// maxNonces how many are.
const (
	nonceGrace = 30 * time.Minute
	maxNonces  = 1 << 20
)

// nonces remember what was done already.
type nonces struct {
	mu struct {
		sync.Mutex
		seen map[nonce]*seen
		// done are those that succeeded, in the order in which they did.
		done []nonce
	}
}

type seen struct {
	running chan struct{} // closed at the end
	ok      bool
	at      time.Time
}

func newNonces() *nonces {
	n := new(nonces)
	n.mu.seen = map[nonce]*seen{}
	return n
}

// begin waits until no call with the nonce is under way. done is true if it has
// succeeded before; else the caller calls end. The nonce 0 is none.
func (n *nonces) begin(ctx context.Context, k nonce) (done bool, end func(ok bool), err error) {
	if k.n == 0 {
		return false, func(bool) {}, nil
	}
	for {
		n.mu.Lock()
		s := n.mu.seen[k]
		if s == nil {
			if len(n.mu.seen) >= maxNonces {
				n.mu.Unlock()
				return false, nil, wire.RegionTooBusy.New("too many operations with nonces in %v", nonceGrace)
			}
			s = &seen{running: make(chan struct{})}
			n.mu.seen[k] = s
			n.mu.Unlock()
			return false, func(ok bool) { n.end(k, s, ok) }, nil
		}
		ok := s.ok
		n.mu.Unlock()
		if ok {
			return true, nil, nil
		}
		select {
		case <-s.running:
		case <-ctx.Done():
			return false, nil, ctx.Err()
		}
	}
}

func (n *nonces) end(k nonce, s *seen, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if s.ok = ok; ok {
		s.at = time.Now()
		n.mu.done = append(n.mu.done, k)
	} else {
		delete(n.mu.seen, k)
	}
	close(s.running)
}

func (n *nonces) expire(now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	i := 0
	for ; i < len(n.mu.done) && now.Sub(n.mu.seen[n.mu.done[i]].at) > nonceGrace; i++ {
		delete(n.mu.seen, n.mu.done[i])
	}
	n.mu.done = n.mu.done[i:]
}
