package master

import (
	"context"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/metadata"
)

// maxMoves is how many of n tablets are moved to even out servers, each time. So a large
// cluster takes as many steps to balance as a small one.
func maxMoves(n int) int { return max(8, n/200) }

// firstTablets is how many tablets a server has at most as long as a cold start
// waits for more servers.
const firstTablets = 64

// A coldStart is the time in which most tablets have no server. Servers come one after the
// other, and the first would get all there is. It lasts until all tablets have a server,
// but not longer than ten intervals. A server that ends and comes back again and again
// must not hold it up.
type coldStart struct {
	since, came time.Time // when it began, and when a server came last
	servers     map[uint64]bool
}

// most returns how many tablets a server may have, when without of all tablets
// have none.
func (c *coldStart) most(servers map[uint64]catalog.Registration, without, all int, interval time.Duration, now time.Time) int {
	switch {
	case c.since.IsZero() && without > all/2:
		c.since = now
	case without == 0:
		c.since = time.Time{}
	}
	for n := range servers {
		if !c.servers[n] {
			c.came = now
		}
	}
	c.servers = map[uint64]bool{}
	for n := range servers {
		c.servers[n] = true
	}
	if c.since.IsZero() || now.Sub(c.came) >= interval || now.Sub(c.since) >= 10*interval {
		return math.MaxInt
	}
	return firstTablets
}

// imbalanceTolerance is how much more than the least busy server another may have, as a part
// of the mean, before anything is moved. A move costs a flush, a pause of the
// tablet and cold caches.
const imbalanceTolerance = 0.2

// A weighed is a tablet with its weight. The weights of all tablets are 1
// together.
type weighed struct {
	id     metadata.TabletID
	server uint64 // incarnation
	weight float64
	fixed  bool // it is to stay
}

// A move takes a tablet to the server of an incarnation.
type move struct {
	tablet   metadata.TabletID
	row      *tabletHint
	from, to uint64
}

// weigh makes a tablet's weight the mean of its shares of the bytes, of the load and of
// the number of tablets, as far as there are any.
func weigh(statuses map[uint64]*rpc.Status, fixed func(rpc.TabletStatus) bool) []weighed {
	var n, bytes, load float64
	for _, s := range statuses {
		for _, t := range s.Tablets {
			n, bytes, load = n+1, bytes+float64(t.Bytes), load+t.CPU
		}
	}
	parts := 1.0
	if bytes > 0 {
		parts++
	}
	if load > 0 {
		parts++
	}
	var out []weighed
	for _, server := range slices.Sorted(maps.Keys(statuses)) {
		for _, t := range statuses[server].Tablets {
			w := 1 / n
			if bytes > 0 {
				w += float64(t.Bytes) / bytes
			}
			if load > 0 {
				w += t.CPU / load
			}
			out = append(out, weighed{t.Tablet, server, w / parts, fixed(t)})
		}
	}
	return out
}

// plan chooses up to most moves, each from the server that has most to the one that has
// least. It moves the tablet that brings the two closest together.
func plan(servers []uint64, tablets []weighed, most int) []move {
	if len(servers) < 2 {
		return nil
	}
	have, of := map[uint64]float64{}, map[uint64][]int{}
	for i, t := range tablets {
		have[t.server] += t.weight
		of[t.server] = append(of[t.server], i)
	}
	mean := 0.0
	for _, s := range servers {
		mean += have[s] / float64(len(servers))
	}
	tablets = slices.Clone(tablets)
	var moves []move
	for range most {
		from, to := servers[0], servers[0]
		for _, s := range servers {
			if have[s] > have[from] {
				from = s
			}
			if have[s] < have[to] {
				to = s
			}
		}
		gap := have[from] - have[to]
		if gap <= imbalanceTolerance*mean {
			break
		}
		best := -1
		for _, i := range of[from] {
			t := &tablets[i]
			// A tablet of the gap's weight or more would only change their places.
			if t.server != from || t.fixed || t.weight >= gap*0.99 {
				continue
			}
			if best < 0 || abs(gap/2-t.weight) < abs(gap/2-tablets[best].weight) {
				best = i
			}
		}
		if best < 0 {
			break
		}
		t := &tablets[best]
		have[from] -= t.weight
		have[to] += t.weight
		t.server, t.fixed = to, true
		moves = append(moves, move{tablet: t.id, from: from, to: to})
	}
	return moves
}

func abs(x float64) float64 { return max(x, -x) }

// balance asks all servers what they have, begins merges, and returns what is to be moved.
// It returns nothing if one of them cannot be asked, or a tablet is being moved.
func (m *master) balance(ctx context.Context, v *view, rows []*tabletHint) []move {
	m.o.Counters.Balanced.Add(1)
	movable := map[metadata.TabletID]*tabletHint{}
	for _, r := range rows {
		a := r.Assignment
		if a == nil || !v.tables[r.Table] || v.resting[r.Table] {
			continue
		}
		if a.State != metadata.Open || v.servers[a.Incarnation].Name == "" {
			m.o.Counters.BalanceSkipped.Add(1)
			return nil
		}
		if r.Op == nil && v.pins[r.Tablet].Key == "" {
			movable[r.Tablet] = r
		}
	}
	statuses, ok := m.ask(ctx, v)
	if !ok {
		m.o.Counters.BalanceSkipped.Add(1)
		return nil
	}
	moves := m.merge(v, rows, movable, statuses)
	// What has just moved stays: its load is not known yet.
	young := func(t rpc.TabletStatus) bool {
		return movable[t.Tablet] == nil || time.Since(t.Since) < 2*m.o.Balance
	}
	tablets := weigh(statuses, young)
	for _, o := range plan(slices.Sorted(maps.Keys(statuses)), tablets, maxMoves(len(tablets))) {
		o.row = movable[o.tablet]
		moves = append(moves, o)
	}
	return moves
}

// ask asks all servers that are to have tablets what they have. ok is false if
// one does not answer.
func (m *master) ask(ctx context.Context, v *view) (statuses map[uint64]*rpc.Status, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, max(m.o.Interval, time.Second))
	defer cancel()
	statuses, ok = map[uint64]*rpc.Status{}, true
	var mu sync.Mutex
	var asking sync.WaitGroup
	for n, s := range v.servers {
		if v.drained[s.Name] {
			continue
		}
		asking.Go(func() {
			status, err := m.o.Dialer.Dial(s.Addr).Status(ctx)
			mu.Lock()
			defer mu.Unlock()
			if err != nil || status.Incarnation != n {
				ok = false
				return
			}
			statuses[n] = status
		})
	}
	asking.Wait()
	return statuses, ok
}
