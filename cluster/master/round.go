package master

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
)

// watch signals a channel when items change.
func (m *master) watch(ctx context.Context, prefix string, whom chan struct{}) {
	for ctx.Err() == nil {
		_, revision, err := m.o.Lock.List(ctx, prefix)
		if err == nil {
			wake(whom)
			err = m.o.Lock.Watch(ctx, prefix, revision, func(lock.Event) error {
				wake(whom)
				return nil
			})
		}
		if err != nil {
			select {
			case <-time.After(200 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}
}

func wake(whom chan struct{}) {
	select {
	case whom <- struct{}{}:
	default:
	}
}

// lookSoon makes the master look at everything soon.
func (m *master) lookSoon() { wake(m.wake) }

func (m *master) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-m.wake:
		}
		start := time.Now()
		err := m.round(ctx)
		m.metadata()
		m.o.Counters.Rounds.Add(1)
		m.o.Counters.RoundNanos.Add(int64(time.Since(start)))
		if err != nil && ctx.Err() == nil {
			m.o.Counters.Failed.Add(1)
			m.o.Log.Warn("the master could not see to everything, and will try again", "error", err)
		}
		// In a large cluster there is always something new. What comes meanwhile is
		// seen to at once in the next round.
		rest := time.NewTimer(min(time.Since(start), m.o.Interval/4))
		select {
		case <-ctx.Done():
		case <-rest.C:
		}
		timer.Reset(m.o.Interval)
	}
}

// A view is what a round begins with.
type view struct {
	servers map[uint64]catalog.Registration
	drained map[string]bool
	pins    map[metadata.TabletID]lock.Item
	// tables are those whose tablets are to be served; resting those that were
	// deleted a while ago.
	tables, resting map[uint64]bool
	names           map[uint64]string // of tables, by id
	// load counts the tablets of a server, those included that it is about to get.
	load map[uint64]int
}

// round looks at every tablet once. What it does before it reads METADATA may take as long as
// patience, and so may what it does then. METADATA may take longer, as each row may.
func (m *master) round(term context.Context) error {
	patience := max(10*m.o.Interval, 10*time.Second)
	ctx, cancel := context.WithTimeout(term, patience)
	defer cancel()
	v := &view{load: map[uint64]int{}, tables: map[uint64]bool{metastore.Table: true}, resting: map[uint64]bool{}, names: map[uint64]string{metastore.Table: metastore.Schema.Name}, pins: map[metadata.TabletID]lock.Item{}}
	var err error
	if v.servers, _, err = catalog.Servers(ctx, m.o.Lock); err != nil {
		return err
	}
	if v.drained, err = catalog.Drained(ctx, m.o.Lock); err != nil {
		return err
	}
	if err := m.readPins(ctx, v); err != nil {
		return err
	}
	if err := m.readTables(ctx, v); err != nil {
		return err
	}
	m.o.Counters.Servers.Store(int64(len(v.servers)))
	for n := range m.missing {
		if _, ok := v.servers[n]; ok {
			delete(m.missing, n)
		}
	}
	m.tellServers(v)
	// METADATA first: everything else is in it.
	rootRows, err := m.meta.Roots(ctx)
	if err != nil {
		return err
	}
	// After what was read of the lock service, which is not older than it was then.
	if err := m.age.Check(ctx); err != nil {
		if errors.Is(err, fault.FailedPrecondition) {
			m.endTerm(err)
		}
		return err
	}
	if len(rootRows) == 0 {
		return m.bootstrap(ctx)
	}
	roots := make([]*tabletHint, len(rootRows))
	for i, r := range rootRows {
		roots[i] = wholeHint(r)
	}
	if err := m.assignUnserved(ctx, v, roots); err != nil {
		return err
	}
	if slices.ContainsFunc(roots, func(r *tabletHint) bool {
		_, living := v.servers[r.Assignment.Incarnation]
		return r.Assignment.State != metadata.Open || !living
	}) {
		m.lookAfter(50 * time.Millisecond)
		return nil
	}
	whole, err := m.refresh(term, patience, v)
	if err != nil {
		return err
	}
	ctx, cancel = context.WithTimeout(term, patience)
	defer cancel()
	if err := m.assignUnserved(ctx, v, m.tablets.rows); err != nil {
		return err
	}
	rows := slices.Concat(roots, m.tablets.rows)
	m.rebalance(ctx, v, rows)
	m.tellDrained(v)
	if !whole {
		return nil
	}
	m.tablets.shrink()
	if err := m.dropStalePins(ctx, v, rows); err != nil {
		return err
	}
	if m.o.Purge > 0 && time.Since(m.purged) >= m.o.Purge {
		m.purged = time.Now()
		if err := m.checkNotRolledBack(ctx); err != nil {
			return err
		}
		return m.purge(ctx, v, m.tablets.rows)
	}
	return nil
}

// dropStalePins removes the pins of tablets that were split, merged or deleted. Pins
// were read before rows, which are all there are, and no tablet comes back.
func (m *master) dropStalePins(ctx context.Context, v *view, rows []*tabletHint) error {
	if len(v.pins) == 0 {
		return nil
	}
	there := map[metadata.TabletID]bool{}
	for _, r := range rows {
		there[r.Tablet] = true
	}
	for id, i := range v.pins {
		if there[id] {
			continue
		}
		if err := m.o.Lock.Delete(ctx, i.Key, i.Version); err != nil && !errors.Is(err, fault.Aborted) && !errors.Is(err, fault.NotFound) {
			return err
		}
	}
	return nil
}

// lookAfter makes the master look once more after d.
func (m *master) lookAfter(d time.Duration) { time.AfterFunc(d, m.lookSoon) }

// bootstrap makes the METADATA tablet of a new cluster.
func (m *master) bootstrap(ctx context.Context) error {
	n, err := catalog.ClaimIncarnation(ctx, m.o.Lock)
	if err != nil {
		return err
	}
	r := &metadata.Row{Table: metastore.Table, Tablet: metadata.TabletID(n << 32), Assignment: &metadata.Assignment{}, MajorTime: time.Now().Unix()}
	if err := m.meta.CAS(ctx, r); err != nil {
		return err
	}
	m.lookSoon()
	return nil
}

func (m *master) readPins(ctx context.Context, v *view) error {
	items, _, err := m.o.Lock.List(ctx, catalog.PinsPrefix)
	if err != nil {
		return err
	}
	for _, i := range items {
		var id uint64
		if _, err := fmt.Sscanf(strings.TrimPrefix(i.Key, catalog.PinsPrefix), "%x", &id); err == nil {
			v.pins[metadata.TabletID(id)] = i
		}
	}
	return nil
}

func (m *master) readTables(ctx context.Context, v *view) error {
	return m.names.Names(ctx, m.o.Lock, func(_ lock.Item, n catalog.Name) error {
		for _, t := range n {
			v.tables[t.ID] = !t.Pending
			v.names[t.ID] = t.Name
			v.resting[t.ID] = !t.DeleteTime.IsZero() && m.o.Now().Sub(t.DeleteTime) >= m.o.Rest
		}
		return nil
	})
}

// dead tells whether the server that a row names is gone for good.
func (m *master) dead(v *view, r *tabletHint) bool {
	a := r.Assignment
	if a.State == metadata.Unassigned {
		return false
	}
	if _, ok := v.servers[a.Incarnation]; ok {
		return false
	}
	if _, ok := m.ended.Load(a.Incarnation); ok {
		return true
	}
	since, ok := m.missing[a.Incarnation]
	if !ok {
		since = time.Now()
		m.missing[a.Incarnation] = since
		m.o.Log.Warn("a tablet server that is gone has tablets, which others are to take over", "server", a.Owner())
	}
	margin := m.o.ServerTTL / 10 // see tabletserver.alive for the other clock
	if left := margin - time.Since(since); left > 0 {
		m.lookAfter(left)
		return false
	}
	return true
}

func (m *master) isLiving(v *view, name string) bool {
	for _, s := range v.servers {
		if s.Name == name {
			return true
		}
	}
	return false
}
