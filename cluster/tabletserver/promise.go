package tabletserver

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/engine/fault"
)

// A promise is what the server has promised to a master that attends to it
// (catalog.Promise). An attempt whose outcome is not known counts as made.
//
// The promise is about the past of the server's own clock. The master sends back
// a reading that the server gave out, so it has heard of the server since. No
// message that is late, or comes twice, makes it later than that.
type promise struct {
	// until is the reading of the server's clock after which it serves nothing,
	// unbound if nothing is promised.
	until atomic.Int64
	// wake has one when an earlier master's promise must be taken back.
	wake chan struct{}

	mu struct {
		sync.Mutex
		// epoch is that of the latest known master, echo the latest reading that it has
		// sent back. since is the reading with which it began to do so without a pause.
		epoch       int64
		echo, since time.Duration
		// to is the epoch of the master that a promise may have been made to, 0 if
		// there is none.
		to int64
	}
}

const unbound = math.MaxInt64

// promiseTerm is that of a promise. At the default ttl of 5 s it is 1 s. The master calls
// each 0.2 s, so the last reading that came back is 0.2 to 0.4 s old. The promise is taken
// back when it is 0.75 s old.
func (s *Server) promiseTerm() time.Duration { return s.o.TTL / 5 }

// promiseOverdue is an age of the last reading that came back: from then on the promise is
// taken back.
func (s *Server) promiseOverdue() time.Duration { return s.promiseTerm() * 3 / 4 }

// Attend implements rpc.Control.
func (s *Server) Attend(_ context.Context, incarnation uint64, epoch int64, echo time.Duration) (time.Duration, error) {
	if incarnation != s.owner {
		return 0, fault.New(fault.FailedPrecondition, "this is incarnation %d of the tablet server, not %d", s.owner, incarnation)
	}
	if err := s.Err(); err != nil {
		return 0, fault.New(fault.Unavailable, "this tablet server has failed: %w", err)
	}
	now := s.o.Reading()
	p := &s.promise
	p.mu.Lock()
	defer p.mu.Unlock()
	if epoch < p.mu.epoch {
		return 0, fault.New(fault.FailedPrecondition, "there is a later master, of epoch %d", p.mu.epoch)
	}
	if epoch > p.mu.epoch {
		p.mu.epoch, p.mu.echo, p.mu.since = epoch, 0, 0
		if p.mu.to != 0 {
			wake(p.wake)
		}
	}
	if echo > p.mu.echo && echo <= now {
		if p.mu.echo == 0 || echo-p.mu.echo > s.promiseOverdue() {
			p.mu.since = echo
		}
		p.mu.echo = echo
		if p.mu.to == epoch {
			p.until.Store(int64(echo + s.promiseTerm()))
		}
	}
	return now, nil
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// promiseTarget returns the epoch of the master to promise to, 0 for none. A promise binds
// from here on.
func (s *Server) promiseTarget() int64 {
	now := s.o.Reading()
	p := &s.promise
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.mu.to != 0 && (p.mu.to != p.mu.epoch || now-p.mu.echo > s.promiseOverdue()):
		return 0
	case p.mu.to != 0:
		return p.mu.to
	case p.mu.echo == 0 || now-p.mu.echo > s.promiseOverdue()/2 || p.mu.echo-p.mu.since < s.promiseTerm():
		return 0 // it has to go well for a while
	}
	p.mu.to = p.mu.epoch
	p.until.Store(int64(p.mu.echo + s.promiseTerm()))
	return p.mu.to
}

// release ends the promise: the item has none, and no attempt that is still under way can
// bring one back.
func (p *promise) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.to, p.mu.echo, p.mu.since = 0, 0, 0
	p.until.Store(unbound)
}

// keepPromise makes promises and takes them back. version is that of the
// server's item.
func (s *Server) keepPromise(version int64) {
	tick := time.NewTicker(max(s.promiseTerm()/16, time.Millisecond))
	defer tick.Stop()
	var has int64 // the epoch of the master that the item has a promise to
	for known := true; ; {
		select {
		case <-tick.C:
		case <-s.promise.wake:
		case <-s.ctx.Done():
			return
		}
		want := s.promiseTarget()
		if known && want == has {
			continue
		}
		next, err := s.writePromise(want, version, known)
		switch {
		case err == nil:
			known, has, version = true, want, next
			if want == 0 {
				s.promise.release()
			}
		case errors.Is(err, fault.NotFound):
			s.fail(fault.New(fault.Unavailable, "the master has given this tablet server up: it had heard nothing of it"))
			return
		default:
			known = false
		}
	}
}

// writePromise changes the server's item, which had a version, or some other if known
// is false. NotFound if it is gone.
//
// Each attempt compares the version: once one has succeeded, none before it can.
func (s *Server) writePromise(to, version int64, known bool) (int64, error) {
	ctx, cancel := context.WithTimeout(s.ctx, s.o.TTL/5)
	defer cancel()
	key := catalog.ServersPrefix + s.o.Name
	if !known {
		i, err := s.o.Lock.Get(ctx, key)
		if err != nil {
			return 0, err
		}
		var r catalog.Registration
		if err := json.Unmarshal(i.Value, &r); err != nil {
			return 0, err
		}
		if r.Incarnation != s.owner {
			return 0, fault.New(fault.NotFound, "item %s is of another incarnation", key)
		}
		version = i.Version
	}
	r := s.registration()
	if to != 0 {
		r.Promise = &catalog.Promise{Master: to, Term: s.promiseTerm()}
	}
	value, err := json.Marshal(r)
	if err != nil {
		return 0, err
	}
	return s.o.Lock.Put(ctx, key, value, version)
}

func (s *Server) registration() catalog.Registration {
	return catalog.Registration{Name: s.o.Name, Addr: s.o.Addr, Incarnation: s.owner}
}
