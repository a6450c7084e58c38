package master

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/engine/fault"
)

// An attended server is called each Options.Attend. What it answers goes back to
// it with the next call, so that it knows that it was heard (catalog.Promise).
type attended struct {
	m    *master
	r    atomic.Pointer[catalog.Registration] // as it is in the lock service
	stop context.CancelFunc
}

// attendAlways attends to all servers, until ctx ends.
func (m *master) attendAlways(ctx context.Context) {
	changed := make(chan struct{}, 1)
	var working sync.WaitGroup
	defer working.Wait()
	working.Go(func() { m.watch(ctx, catalog.ServersPrefix, changed) })
	all := map[uint64]*attended{}
	for {
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
		servers, _, err := catalog.Servers(ctx, m.o.Lock)
		if err != nil {
			select {
			case <-time.After(m.o.Attend):
				wake(changed)
			case <-ctx.Done():
			}
			continue
		}
		for n, r := range servers {
			a := all[n]
			if a == nil {
				a = &attended{m: m}
				one, stop := context.WithCancel(ctx)
				a.stop, all[n] = stop, a
				a.r.Store(&r)
				working.Go(func() { a.run(one) })
			}
			a.r.Store(&r)
		}
		for n, a := range all {
			if _, ok := servers[n]; !ok {
				a.stop()
				delete(all, n)
			}
		}
	}
}

// run calls the server, and ends it when it has promised that, until ctx ends.
func (a *attended) run(ctx context.Context) {
	tick := time.NewTicker(a.m.o.Attend)
	defer tick.Stop()
	var echo time.Duration
	// Every reading that the server has been sent back was heard of before heard.
	heard := a.m.o.Reading()
	broken := false // a call failed since, and not because its time was up
	for {
		r := a.r.Load()
		one, cancel := context.WithTimeout(ctx, 2*a.m.o.Attend)
		reading, err := a.m.o.Dialer.Dial(r.Addr).Attend(one, r.Incarnation, a.m.epoch, echo)
		late := one.Err() != nil
		cancel()
		now := a.m.o.Reading()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			echo, heard, broken = reading, now, false
		case !late:
			broken = true
		}
		if err != nil {
			a.end(ctx, now-heard, broken)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// end gives a server up that has not been heard of for so long, if it has promised to
// serve nothing then. A server whose connections are closed is dead, most likely. One that
// is only silent is given more time, as it may be about to go on.
func (a *attended) end(ctx context.Context, silent time.Duration, broken bool) {
	r := a.r.Load()
	p := r.Promise
	if p == nil || p.Master != a.m.epoch || silent <= p.Term+p.Term/4 || !broken && silent <= a.m.o.ServerTTL*2/3 {
		return
	}
	one, cancel := context.WithTimeout(ctx, a.m.o.ServerTTL/5)
	defer cancel()
	// With this version the promise is there. If the version is another, or the outcome is
	// not known, a later master or the end of its session ends the server.
	err := a.m.o.Lock.Delete(one, catalog.ServersPrefix+r.Name, r.Version)
	if err != nil {
		if !errors.Is(err, fault.Aborted) && ctx.Err() == nil {
			a.m.o.Log.Warn("a tablet server that is not heard of was not given up, and will be", "server", r.ServerName(), "error", err)
		}
		return
	}
	a.m.o.Counters.GivenUp.Add(1)
	a.m.o.Log.Info("tablet server is given up", "server", r.ServerName(), "silent", silent, "closed", broken)
	a.m.ended.Store(r.Incarnation, true)
	a.m.lookSoon()
}
