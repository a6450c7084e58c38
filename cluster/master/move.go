package master

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/metadata"
)

// A server is asked to give up maxMovesPerServer tablets at most before the next round,
// and gives up parallelMoves of them at a time.
const parallelMoves, maxMovesPerServer = 4, 64

// rebalance moves tablets away from servers that are being drained, to the servers that
// they are pinned to, and from the busiest servers to the least busy.
func (m *master) rebalance(ctx context.Context, v *view, rows []*tabletHint) {
	leave := map[uint64][]*tabletHint{}
	ask := func(r *tabletHint) {
		n := r.Assignment.Incarnation
		if len(leave[n]) < maxMovesPerServer {
			leave[n] = append(leave[n], r)
		}
	}
	if m.o.Balance > 0 && time.Since(m.balanced) >= m.o.Balance {
		m.balanced = time.Now()
		m.moveTargets = map[metadata.TabletID]uint64{}
		for _, o := range m.balance(ctx, v, rows) {
			m.moveTargets[o.row.Tablet] = o.to
			ask(o.row)
			m.o.Counters.MovedEven.Add(1)
			m.o.Log.Info("tablet is moved", "tablet", v.name(o.row), "from", v.servers[o.from].ServerName(), "to", v.servers[o.to].ServerName(), "why", "balance")
		}
	}
	living := 0
	for _, s := range v.servers {
		if !v.drained[s.Name] {
			living++
		}
	}
	begun := func(r *tabletHint, why string, count *atomic.Int64) {
		if !m.isMoving(r.Tablet) && len(leave[r.Assignment.Incarnation]) < maxMovesPerServer && !m.isBusy("unload "+v.servers[r.Assignment.Incarnation].Addr) {
			count.Add(1)
			m.o.Log.Info("tablet is moved", "tablet", v.name(r), "from", r.Assignment.Owner(), "why", why)
		}
		ask(r)
	}
	for _, r := range rows {
		a := r.Assignment
		// A row that names a split or merge may do so because that was given up. Unloading
		// the tablet waits for what is really under way.
		if a == nil || a.State != metadata.Open {
			continue
		}
		s, ok := v.servers[a.Incarnation]
		if !ok {
			continue
		}
		wanted := string(v.pins[r.Tablet].Value)
		switch {
		case v.resting[r.Table]:
			begun(r, "its table was deleted", &m.o.Counters.MovedAway)
		case wanted != "" && wanted != s.Name && !v.drained[wanted] && m.isLiving(v, wanted):
			begun(r, "an operator wants it on "+wanted, &m.o.Counters.MovedWanted)
		case v.drained[s.Name] && living > 0:
			begun(r, "its server is drained", &m.o.Counters.MovedAway)
		}
	}
	m.moveOff(v, leave)
}

// A relocation is a tablet that is to leave its server.
type relocation struct {
	row  *tabletHint
	name metadata.TabletName
	to   catalog.Registration // the server that is to get it; the zero value for none
}

// moveOff asks servers, by incarnation, to give up tablets.
func (m *master) moveOff(v *view, leave map[uint64][]*tabletHint) {
	for n, rows := range leave {
		from, ok := v.servers[n]
		if !ok {
			continue
		}
		var all []relocation
		for _, r := range rows {
			p := relocation{row: r, name: v.name(r)}
			if v.tables[r.Table] && !v.resting[r.Table] {
				if to, ok := m.pick(v, r); ok {
					v.load[to.Incarnation]++
					p.to = to
				}
			}
			all = append(all, p)
		}
		m.call("unload "+from.Addr, func(ctx context.Context) error { return m.moveAll(ctx, from, all) })
	}
}

// moveAll moves tablets, each by itself. A tablet is without a server only while its own
// one gives it up and the next one opens it. A round, which looks at all tablets, would
// take longer than both. Tablets of METADATA come first.
func (m *master) moveAll(ctx context.Context, from catalog.Registration, all []relocation) error {
	var mu sync.Mutex
	var errs []error
	one := func(p relocation) {
		if err := m.moveOne(ctx, from, p); err != nil {
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
		}
	}
	var moving sync.WaitGroup
	slots := make(chan struct{}, parallelMoves)
	for _, p := range all {
		if ctx.Err() != nil {
			break
		}
		if p.row.Table == metastore.Table {
			one(p) // while METADATA moves, nothing else can
			continue
		}
		slots <- struct{}{}
		moving.Go(func() {
			defer func() { <-slots }()
			one(p)
		})
	}
	moving.Wait()
	return errors.Join(errs...)
}

func (m *master) moveOne(ctx context.Context, from catalog.Registration, p relocation) error {
	id := p.row.Tablet
	m.mu.Lock()
	m.moving[id] = true
	m.mu.Unlock()
	defer func() {
		m.tablets.invalidate(keyOf(p.row))
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.moving, id)
	}()
	if err := m.o.Dialer.Dial(from.Addr).Unload(ctx, []metadata.TabletID{id}); err != nil {
		m.o.Counters.MovesFailed.Add(1)
		return err
	}
	if p.to.Addr == "" {
		return nil
	}
	key := rpc.TabletKey{Table: p.row.Table, End: p.row.End}
	r, err := m.meta.Get(ctx, key)
	if err != nil {
		return err
	}
	if r.Tablet != id || r.Assignment == nil || r.Assignment.State != metadata.Unassigned {
		return nil // it was split or merged instead: the next round sees to it
	}
	if _, err := m.assign(ctx, p.name, r, p.to); err != nil {
		return err
	}
	return m.o.Dialer.Dial(p.to.Addr).Load(ctx, []rpc.TabletKey{key})
}

// isMoving tells whether a tablet is being moved.
func (m *master) isMoving(id metadata.TabletID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.moving[id]
}
