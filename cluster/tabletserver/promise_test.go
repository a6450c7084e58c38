package tabletserver

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/lock/memory"
	"github.com/trestledb/trestle/engine/fault"
)

// A promising server has a session and an item, and keeps promises.
type promising struct {
	*Server
	t     *testing.T
	admin lock.Service
	cut   atomic.Bool // the server's way to the lock service, but for its session
	echo  map[int64]time.Duration
}

func startPromising(t *testing.T) *promising {
	t.Helper()
	all := memory.New()
	p := &promising{t: t, admin: all.Client(nil, nil), echo: map[int64]time.Duration{}}
	o := Options{Name: "s", TTL: 5 * time.Second, Log: slog.New(slog.DiscardHandler)}
	o.Lock = all.Client(func(_ context.Context, kind string, do func()) error {
		if p.cut.Load() && kind != memory.Heartbeat {
			return errors.New("cut off")
		}
		do()
		return nil
	}, nil)
	s := &Server{o: o.WithDefaults(), incarnation: 7, owner: 7, failed: make(chan struct{})}
	s.promise.wake = make(chan struct{}, 1)
	s.promise.until.Store(unbound)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	p.Server = s
	var err error
	if s.session, err = o.Lock.NewSession(t.Context(), o.TTL); err != nil {
		t.Fatal(err)
	}
	item, err := s.session.Hold(t.Context(), catalog.ServersPrefix+o.Name, []byte(`{"Name":"s","Incarnation":7}`))
	if err != nil {
		t.Fatal(err)
	}
	s.running.Go(func() { s.keepPromise(item.Version) })
	return p
}

func (p *promising) end() {
	p.cancel()
	p.running.Wait()
	_ = p.session.Close(context.Background())
	time.Sleep(time.Minute) // timers of the session
}

// attend calls the server as the master of an epoch does, for a while.
func (p *promising) attend(epoch int64, d time.Duration) {
	p.t.Helper()
	for began := time.Now(); time.Since(began) < d; time.Sleep(200 * time.Millisecond) {
		r, err := p.Attend(p.t.Context(), 7, epoch, p.echo[epoch])
		if err != nil {
			p.t.Fatal(err)
		}
		p.echo[epoch] = r
		if err := p.alive(); err != nil {
			p.t.Fatal(err)
		}
	}
}

// promised returns the item, and the epoch of the master it has a promise to.
func (p *promising) promised() (catalog.Registration, int64) {
	p.t.Helper()
	all, _, err := catalog.Servers(p.t.Context(), p.admin)
	if err != nil {
		p.t.Fatal(err)
	}
	r, ok := all[7]
	switch {
	case !ok:
		p.t.Fatal("the item is gone")
	case r.Promise == nil:
		return r, 0
	}
	return r, r.Promise.Master
}

func (p *promising) want(epoch int64) {
	p.t.Helper()
	if _, to := p.promised(); to != epoch {
		p.t.Fatalf("there is a promise to %d, not to %d", to, epoch)
	}
}

// refuses waits for d, and returns when in it the server was not alive any more.
func (p *promising) refuses(d time.Duration) (after time.Duration) {
	began := time.Now()
	for ; time.Since(began) < d; time.Sleep(time.Millisecond) {
		if p.alive() != nil {
			return time.Since(began)
		}
	}
	return d
}

func promisingTest(t *testing.T, do func(t *testing.T, p *promising)) {
	synctest.Test(t, func(t *testing.T) {
		p := startPromising(t)
		defer p.end()
		p.want(0)
		p.attend(1, 5*time.Second)
		p.want(1)
		do(t, p)
	})
}

// TestPromiseTakenBack: a server that no master attends to any more takes its
// promise back, and serves all the while.
func TestPromiseTakenBack(t *testing.T) {
	promisingTest(t, func(t *testing.T, p *promising) {
		const d = 10 * time.Second
		if after := p.refuses(d); after < d {
			t.Fatalf("the server serves nothing after %v", after)
		}
		p.want(0)
		p.attend(1, 5*time.Second)
		p.want(1)
	})
}

// TestPromiseKept: a server that cannot take its promise back serves nothing when
// the term is over, until it can.
func TestPromiseKept(t *testing.T) {
	promisingTest(t, func(t *testing.T, p *promising) {
		p.cut.Store(true)
		// A call that is late, and one whose echo is old, change nothing.
		go func() {
			for range 20 {
				time.Sleep(100 * time.Millisecond)
				_, _ = p.Attend(t.Context(), 7, 1, p.echo[1])
				_, _ = p.Attend(t.Context(), 7, 1, p.echo[1]/2)
			}
		}()
		if after := p.refuses(time.Minute); after > p.promiseTerm() {
			t.Fatalf("the server serves for %v after the last call; it has promised %v", after, p.promiseTerm())
		}
		p.want(1)
		time.Sleep(3 * time.Second)
		p.cut.Store(false)
		time.Sleep(time.Second)
		p.want(0)
		if err := p.alive(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestPromiseUsed: a server that was given up by its promise never serves again.
func TestPromiseUsed(t *testing.T) {
	promisingTest(t, func(t *testing.T, p *promising) {
		p.cut.Store(true)
		r, _ := p.promised()
		time.Sleep(2 * p.promiseTerm())
		if err := p.admin.Delete(t.Context(), catalog.ServersPrefix+"s", r.Version); err != nil {
			t.Fatal(err)
		}
		p.cut.Store(false)
		if after := p.refuses(time.Second); after > 0 {
			t.Fatalf("the server serves for %v", after)
		}
		<-p.Failed()
	})
}

// TestPromiseToSuccessor: each master has a promise of its own, which the one
// before cannot use.
func TestPromiseToSuccessor(t *testing.T) {
	promisingTest(t, func(t *testing.T, p *promising) {
		r, _ := p.promised()
		p.attend(2, 200*time.Millisecond)
		p.want(0)
		if _, err := p.Attend(t.Context(), 7, 1, p.echo[1]); !errors.Is(err, fault.FailedPrecondition) {
			t.Errorf("an earlier master: %v", err)
		}
		if _, err := p.Attend(t.Context(), 6, 2, 0); !errors.Is(err, fault.FailedPrecondition) {
			t.Errorf("another incarnation: %v", err)
		}
		p.attend(2, 5*time.Second)
		p.want(2)
		if err := p.admin.Delete(t.Context(), catalog.ServersPrefix+"s", r.Version); !errors.Is(err, fault.Aborted) {
			t.Errorf("the promise to the master before was used: %v", err)
		}
	})
}
