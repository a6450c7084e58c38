//go:build sim

package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/cluster/lock/memory"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/tablet"
)

// TestLostLockService: in the middle of a storm everybody ends at once and the
// lock service is put back to an earlier state, or emptied. Nobody begins with
// it; recovered from the store it has what is needed for every acknowledged row,
// and the invariants hold before, between and after. Where the recovery refuses,
// as METADATA is newer than the newest copy, the lock service is brought back as
// it was, and they hold too.
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
	t.Logf("%+v", sum)
	if runs >= 6 && sum.recovered == 0 {
		t.Error("nothing was recovered")
	}
}

// lostLocks counts what became of lock services that were put back.
type lostLocks struct{ recovered, refused, unnoticed int }

func lostRun(t *testing.T, seed uint64, h *history, sum *lostLocks) {
	rng := rand.New(rand.NewPCG(seed, 3))
	st := newStorm(seed, rng)
	o := Options{TTL: 2 * time.Second, Interval: 200 * time.Millisecond, Net: st.net, Twice: st.twiceIs, Clocks: st.clock, Witness: NewWitness(), Log: logger(), LogBytes: 64 << 10,
		Tablet: tablet.Options{MemtableBytes: 192 << 10, FileBytes: 16 << 10},
		Copy:   2 * time.Second, Sweep: 2 * time.Second, Purge: time.Second, Rest: time.Second, MakeLimit: 20 * time.Second}
	if rng.IntN(2) == 0 {
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
			for _, name := range append(c.names(), "master-1", "master-2", "client-0", "client-1", "client-2", "admin") {
				c.Kill(name)
			}
			close(stop)
			working.Wait()
			st.calmDown()
			time.Sleep(time.Duration(rng.IntN(10)) * time.Second) // what was sent may arrive later
			c.loseLock(ctx, t, snapshot, sum)
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
		t.Logf("%d writes acknowledged", writes)
	}
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
func (c *Cluster) loseLock(ctx context.Context, t *testing.T, earlier map[string][]byte, sum *lostLocks) {
	t.Helper()
	was := c.lock
	c.lock = memory.New()
	l := c.lock.Client(nil, nil)
	for key, value := range earlier {
		if _, err := l.Put(ctx, key, value, 0); err != nil {
			t.Fatal(err)
		}
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
