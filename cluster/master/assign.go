package master

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/metadata"
)

// changesAtOnce is how many METADATA rows are changed at a time: they share
// commits of the METADATA server's log.
const changesAtOnce = 128

// What assignUnserved has to do about a tablet.
type need int

const (
	needsNothing need = iota
	needsServer
	needsHint // its server is to open it
)

func (m *master) needs(v *view, r *tabletHint) need {
	a := r.Assignment
	switch {
	case !v.tables[r.Table] || a == nil:
		return needsNothing // of a table that is being made, or was purged
	case v.resting[r.Table] && a.State == metadata.Unassigned && a.Log == 0:
		return needsNothing
	case a.State == metadata.Unassigned && m.isMoving(r.Tablet):
		return needsNothing
	case a.State == metadata.Unassigned || m.dead(v, r):
		return needsServer
	case a.State == metadata.Opening:
		return needsHint
	}
	return needsNothing
}

// assignIfNeeded makes a tablet that of a server, if it still needs one, and returns its
// row as it is then.
func (m *master) assignIfNeeded(ctx context.Context, v *view, h *tabletHint, to catalog.Registration) (*tabletHint, error) {
	r := h.row
	if r == nil {
		now, err := m.meta.Get(ctx, keyOf(h))
		if err != nil {
			return nil, err
		}
		h = hintOf(now)
		m.needsMu.Lock()
		need := m.needs(v, h)
		m.needsMu.Unlock()
		if need != needsServer {
			return h, nil
		}
		r = now
	}
	over := r.Assignment.State != metadata.Unassigned
	r, err := m.assign(ctx, v.name(h), r, to)
	if err == nil && over {
		m.o.Counters.TakenOver.Add(1)
	}
	if err != nil {
		m.tablets.invalidate(keyOf(h)) // it changed since it was read, perhaps
		return nil, err
	}
	if r.Table == metastore.Table {
		return wholeHint(r), nil
	}
	return hintOf(r), nil
}

// assignUnserved gives a server to the tablets of rows that have none, and reminds
// servers of those that they have not opened yet. It changes rows to what they
// are then.
func (m *master) assignUnserved(ctx context.Context, v *view, rows []*tabletHint) error {
	for _, r := range rows {
		if a := r.Assignment; a != nil && a.State != metadata.Unassigned {
			v.load[a.Incarnation]++
		}
	}
	type change struct {
		at int
		to catalog.Registration
	}
	var changes []change
	type call struct{ verb, addr string }
	hints := map[call][]rpc.TabletKey{}
	hint := func(addr string, r *tabletHint) {
		c := call{"load", addr}
		if r.Assignment.Log != 0 {
			c.verb = "recover" // no other tablet waits for the replay of a log
		}
		hints[c] = append(hints[c], keyOf(r))
	}
	needs := make([]need, len(rows))
	without := 0
	for i, r := range rows {
		if needs[i] = m.needs(v, r); needs[i] == needsServer {
			without++
		}
	}
	what, most := " ", math.MaxInt
	if len(rows) > 0 && rows[0].Table == metastore.Table {
		// Loads of other tablets may be waiting for these.
		what = " METADATA "
	} else {
		most = m.start.most(v.servers, without, len(rows), m.o.Interval, time.Now())
	}
	full, hinted := false, 0
	for i, r := range rows {
		switch needs[i] {
		case needsServer:
			if full {
				continue
			}
			to, ok := m.pick(v, r)
			if full = !ok || v.load[to.Incarnation] >= most; full {
				m.lookAfter(m.o.Interval / 4)
				continue // until there is a server
			}
			v.load[to.Incarnation]++
			changes = append(changes, change{i, to})
		case needsHint:
			if s, ok := v.servers[r.Assignment.Incarnation]; ok {
				hint(s.Addr, r)
				hinted++
			}
		}
	}
	// Many at a time: each is a durable write.
	var mu sync.Mutex
	var errs []error
	var doing sync.WaitGroup
	slots := make(chan struct{}, changesAtOnce)
	for _, c := range changes {
		slots <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		doing.Go(func() {
			defer func() { <-slots }()
			r, err := m.assignIfNeeded(ctx, v, rows[c.at], c.to)
			mu.Lock()
			defer mu.Unlock()
			if r != nil {
				rows[c.at] = r
			}
			switch {
			case err != nil && len(errs) < 8:
				errs = append(errs, err)
			case err == nil && r.Assignment != nil && r.Assignment.Incarnation == c.to.Incarnation:
				hint(c.to.Addr, r)
			}
		})
	}
	doing.Wait()
	if ctx.Err() != nil {
		errs = append(errs, context.Cause(ctx))
	}
	opening := 0
	for _, keys := range hints {
		opening += len(keys)
	}
	m.o.Counters.Tablets.Store(int64(len(rows)))
	m.o.Counters.Opening.Store(int64(opening))
	m.o.Counters.Waiting.Store(int64(without - (opening - hinted)))
	for c, keys := range hints {
		m.call(c.verb+what+c.addr, func(ctx context.Context) error {
			err := m.o.Dialer.Dial(c.addr).Load(ctx, keys)
			if err == nil {
				m.noteOpened(keys)
			}
			return err
		})
	}
	if len(errs) > 0 {
		m.lookAfter(m.o.Interval / 4)
	}
	return errors.Join(errs...)
}

// pick returns the server that is to serve a tablet: the one it is pinned to or moved to,
// or the one with the fewest tablets. Only METADATA tablets go to a drained server rather
// than to none: without METADATA no server can give up what it has.
func (m *master) pick(v *view, r *tabletHint) (catalog.Registration, bool) {
	if n, ok := m.moveTargets[r.Tablet]; ok {
		if s, ok := v.servers[n]; ok && !v.drained[s.Name] && v.pins[r.Tablet].Key == "" {
			return s, true
		}
	}
	var best catalog.Registration
	found := false
	for _, drained := range []bool{false, true} {
		for n, s := range v.servers {
			if v.drained[s.Name] != drained {
				continue
			}
			if string(v.pins[r.Tablet].Value) == s.Name {
				return s, true
			}
			if !found || v.load[n] < v.load[best.Incarnation] || v.load[n] == v.load[best.Incarnation] && n < best.Incarnation {
				best, found = s, true
			}
		}
		if found || r.Table != metastore.Table {
			break
		}
	}
	return best, found
}

// assign makes a server the one that is to serve the tablet of a row and a name. It
// returns the row as it is then.
func (m *master) assign(ctx context.Context, name metadata.TabletName, r *metadata.Row, to catalog.Registration) (*metadata.Row, error) {
	r = r.Clone()
	old := r.Assignment
	r.Assignment = &metadata.Assignment{State: metadata.Opening, Epoch: old.Epoch + 1, Server: to.Name, Addr: to.Addr,
		Incarnation: to.Incarnation, Log: old.Log, Master: old.Master}
	err := m.meta.CAS(ctx, r)
	if err == nil {
		m.o.Counters.Assigned.Add(1)
		if old.State != metadata.Unassigned {
			m.o.Log.Info("tablet is taken over", "tablet", name, "from", old.Owner(), "to", to.ServerName(), "log", commitlog.ID(old.Log).String())
		} else {
			m.o.Log.Info("tablet is assigned", "tablet", name, "to", to.ServerName())
		}
	}
	return r, err
}
