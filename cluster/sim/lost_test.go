//go:build sim

package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/cluster/lock/memory"
	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/tablet"
)

// TestLostLockService: in the middle of a storm everybody ends at once and the
// lock service is put back to an earlier state, or emptied. Nobody begins with
// it; recovered from the store it has what is needed for every acknowledged row,
// and the invariants hold before, between and after. Where the recovery refuses,
// as METADATA is newer than the newest copy, the lock service is brought back as
// it was, and they hold too. Before most losses METADATA is split and moved,
// before half of these while no copy is stored. TRESTLE_SIM_RUNS runs are twice as
// many losses.
func TestLostLockService(t *testing.T) {
	first, runs := seeds(6)
	var sum lostLocks
	for seed := first; seed < first+uint64(runs); seed++ {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			h := new(history)
			synctest.Test(t, func(t *testing.T) { lostRun(t, seed, h, &sum) })
			h.check(t)
		})
		if t.Failed() {
			return
		}
	}
	t.Logf("%d losses: %+v", sum.recovered+sum.refused+sum.unnoticed, sum)
	if runs >= 6 && sum.recovered == 0 {
		t.Error("nothing was recovered")
	}
}

// lostLocks counts what became of lock services that were put back.
type lostLocks struct {
	recovered, refused, unnoticed int
	// split is how often METADATA had several tablets then, moved how often it was
	// on its way before the loss, and stale how often one of them had another place
	// than in the newest copy; splitMoved is how often it was split and moved.
	split, moved, splitMoved, stale int
	staleRecovered                  int // of those that were stale
}

func lostRun(t *testing.T, seed uint64, h *history, sum *lostLocks) {
	rng := rand.New(rand.NewPCG(seed, 3))
	st := newStorm(seed, rng)
	full := new(atomic.Bool)
	o := Options{TTL: 2 * time.Second, Interval: 200 * time.Millisecond, Net: st.net, Twice: st.twiceIs, Clocks: st.clock, Witness: NewWitness(), Log: logger(), LogBytes: 64 << 10,
		Tablet:    tablet.Options{MemtableBytes: 192 << 10, FileBytes: 16 << 10},
		WrapStore: func(_ string, s objectstore.Store) objectstore.Store { return noCopies{s, full} },
		Copy:      2 * time.Second, Sweep: 2 * time.Second, Purge: time.Second, Rest: time.Second, MakeLimit: 20 * time.Second}
	if rng.IntN(4) > 0 {
		o.MetadataSplitBytes, o.SplitCheck = 130<<10, time.Second
	}
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		c.Close()
		time.Sleep(time.Minute)
	}()
	ctx := t.Context()
	var regs []*register
	for i := range 9 {
		regs = append(regs, &register{key: fmt.Sprint("k", i), t: t})
	}
	next := 1
	for round := range 3 {
		c.StartMaster("master-1")
		c.StartMaster("master-2")
		for range 3 {
			if _, err := c.StartServer(ctx, fmt.Sprint("server-", next)); err != nil {
				t.Fatal(err)
			}
			next++
		}
		admin, err := c.Client(ctx, "admin")
		if err != nil {
			t.Fatal(err)
		}
		if round == 0 {
			newTable(t, admin)
			time.Sleep(time.Second) // a table that no copy has is lost
		}
		clients := make([]*client.Client, 3)
		for i := range clients {
			if clients[i], err = c.Client(ctx, fmt.Sprint("client-", i)); err != nil {
				t.Fatal(err)
			}
		}
		for i, r := range regs {
			r.client = clients[i%3]
			r.read(ctx, true)
		}
		var working sync.WaitGroup
		stop := make(chan struct{})
		for i, r := range regs {
			mine := rand.New(rand.NewPCG(seed, uint64(1000*round+i)))
			working.Go(func() { r.work(ctx, mine, stop) })
		}
		for i := range clients {
			mine := rand.New(rand.NewPCG(seed, uint64(1000*round+200+i)))
			working.Go(func() { h.work(ctx, t, clients[i], 100*round+i, mine, stop) })
		}
		st.rage()
		disturbances := 8 + rng.IntN(8)
		snapshotAt := rng.IntN(disturbances)
		snapshot := map[string][]byte{}
		for i := range disturbances {
			time.Sleep(time.Duration(rng.IntN(1500)) * time.Millisecond)
			if i == snapshotAt && rng.IntN(2) == 0 {
				snapshot = c.lockItems(t)
			}
			c.disturb(ctx, t, rng, st, admin, &next)
		}
		if round < 2 {
			before := c.rootPlaces(t, c.lockItems(t))
			if rng.IntN(8) > 0 {
				full.Store(rng.IntN(2) == 0)
				c.shuffleMetadata(ctx, rng, admin)
			}
			moved := !maps.Equal(before, c.rootPlaces(t, c.lockItems(t)))
			for _, name := range append(c.names(), "master-1", "master-2", "client-0", "client-1", "client-2", "admin") {
				c.Kill(name)
			}
			close(stop)
			working.Wait()
			st.calmDown()
			time.Sleep(time.Duration(rng.IntN(10)) * time.Second) // what was sent may arrive later
			c.loseLock(ctx, t, snapshot, moved, sum)
			full.Store(false)
			continue
		}
		st.calmDown()
		time.Sleep(5 * time.Second)
		close(stop)
		working.Wait()
		if len(c.names()) == 0 {
			if _, err := c.StartServer(ctx, fmt.Sprint("server-", next)); err != nil {
				t.Fatal(err)
			}
		}
		writes := 0
		for _, r := range regs {
			r.read(ctx, true)
			writes += r.done
		}
		tile(ctx, t, admin)
		c.verify(t, admin)
		t.Logf("%d writes acknowledged; %d messages", writes, st.sent)
	}
}

// shuffleMetadata splits METADATA, and moves each of its tablets a few times.
func (c *Cluster) shuffleMetadata(ctx context.Context, rng *rand.Rand, admin *client.Client) {
	for range 2 + rng.IntN(3) {
		// Any of it may fail: it is a storm.
		short, cancel := context.WithTimeout(ctx, 5*time.Second)
		roots, err := admin.Metadata().Roots(short)
		if err == nil && len(roots) < 4 && roots[0].Assignment != nil {
			if table, err := admin.Table(short, tableName); err == nil {
				at := metastore.Key(rpc.TabletKey{Table: table.ID, End: fmt.Append(nil, "k", rng.IntN(9))})
				r := roots[rng.IntN(len(roots))]
				if r.Assignment != nil {
					_ = c.Dialer("admin").Dial(r.Assignment.Addr).Split(short, r.Tablet, at)
				}
			}
		}
		names := c.names()
		for _, r := range roots {
			if len(names) > 0 && rng.IntN(3) > 0 {
				_ = c.want(short, "admin", r.Tablet, names[rng.IntN(len(names))])
			}
		}
		cancel()
		time.Sleep(time.Duration(200+rng.IntN(1500)) * time.Millisecond)
	}
}

// rootPlaces returns the log of each METADATA tablet, 0 if it has none.
func (c *Cluster) rootPlaces(t *testing.T, items map[string][]byte) map[metadata.TabletID]uint64 {
	t.Helper()
	roots, err := metastore.RootsOf(items)
	if err != nil {
		t.Fatal(err)
	}
	out := map[metadata.TabletID]uint64{}
	for _, r := range roots {
		if r.Assignment != nil {
			out[r.Tablet] = r.Assignment.Log
		} else {
			out[r.Tablet] = 0
		}
	}
	return out
}

// lockItems returns what the lock service holds that goes with no session.
func (c *Cluster) lockItems(t *testing.T) map[string][]byte {
	t.Helper()
	items, _, err := c.lock.Client(nil, nil).List(context.Background(), "")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]byte{}
	for _, i := range items {
		switch {
		case i.Key == catalog.MasterKey, strings.HasPrefix(i.Key, catalog.ServersPrefix), strings.HasPrefix(i.Key, catalog.AppliedPrefix),
			strings.HasPrefix(i.Key, catalog.DrainingPrefix) && len(i.Value) == 0:
		default:
			out[i.Key] = i.Value
		}
	}
	return out
}

// loseLock puts the lock service back to what it held earlier, and recovers it
// from the store. Nobody lives.
func (c *Cluster) loseLock(ctx context.Context, t *testing.T, earlier map[string][]byte, moved bool, sum *lostLocks) {
	t.Helper()
	was, places := c.lock, c.rootPlaces(t, c.lockItems(t))
	c.lock = memory.New()
	l := c.lock.Client(nil, nil)
	for key, value := range earlier {
		if _, err := l.Put(ctx, key, value, 0); err != nil {
			t.Fatal(err)
		}
	}
	if len(places) > 1 {
		sum.split++
	}
	if moved {
		sum.moved++
	}
	if moved && len(places) > 1 {
		sum.splitMoved++
	}
	copier := &catalog.Copier{Lock: l, Store: c.copies(c.objects)}
	err := copier.Check(ctx)
	if err == nil {
		sum.unnoticed++ // it is not older than the newest copy
		c.lock = was
		return
	}
	if !errors.Is(err, fault.FailedPrecondition) {
		t.Fatal(err)
	}
	if _, err := c.StartServer(ctx, "early"); !errors.Is(err, fault.FailedPrecondition) {
		t.Fatalf("a server begins with an old lock service: %v", err)
	}
	cp, err := copier.Newest(ctx)
	if err != nil {
		t.Fatal(err)
	}
	stale := !maps.Equal(places, c.rootPlaces(t, cp.Items))
	if stale {
		sum.stale++
	}
	switch err := cp.Amend(ctx, c.objects, onlyLogs{c.objects}); {
	case errors.Is(err, fault.FailedPrecondition), errors.Is(err, fault.Corruption):
		t.Logf("copy %d of %v: %v", cp.Number, cp.Taken, err)
		sum.refused++
		c.lock = was
	case err != nil:
		t.Fatal(err)
	default:
		if err := copier.Restore(ctx, cp); err != nil {
			t.Fatal(err)
		}
		sum.recovered++
		if stale {
			sum.staleRecovered++
		}
	}
}

// onlyLogs is the part of a store that has commit logs.
type onlyLogs struct{ objectstore.Store }

func (s onlyLogs) List(ctx context.Context, prefix, after string, n int) (out []objectstore.Info, err error) {
	infos, err := s.Store.List(ctx, prefix, after, 0)
	for _, i := range infos {
		if _, _, ok := commitlog.ParseObject(i.Name); ok && (n <= 0 || len(out) < n) {
			out = append(out, i)
		}
	}
	return out, err
}
