//go:build sim

package sim

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trestledb/trestle/cluster/master"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/row"
)

// onStage runs a test on a stage.
func onStage(t *testing.T, g *stage, do func(*stage)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		g.t = t
		defer func() {
			if g.Cluster != nil {
				g.Close()
			}
			time.Sleep(time.Minute)
		}()
		g.start()
		do(g)
	})
}

// TestI6_VersionsAndEpochsGrow: whatever is done to tablets, the versions and
// epochs of their METADATA rows grow, and sequence numbers never fall. The
// Witness, which sees each change, says so. It is also what shows that each of
// the operations, which other tests disturb, does something if nobody does.
func TestI6_VersionsAndEpochsGrow(t *testing.T) {
	for _, o := range operations() {
		onStage(t, new(stage), func(g *stage) {
			if o.before != nil {
				o.before(g)
			}
			before := g.o.Witness.Changes()
			o.do(g)
			g.waitServed()
			if n := g.o.Witness.Changes() - before; n < o.changes || !o.did(g) {
				g.t.Errorf("%s: not done, or the witness has seen only %d changes", o.name, n)
			}
			g.check(o.name)
		})
	}
	// It tells what is wrong.
	w := NewWitness()
	r := func(version, epoch uint64, seq cell.Seq) *metadata.Row {
		return &metadata.Row{Tablet: 1, Version: version, MaxSeq: seq, Assignment: &metadata.Assignment{Epoch: epoch}}
	}
	w.changed("k", 1, r(1, 5, 9))
	w.changed("k", 2, r(2, 5, 9))
	if err := w.Check(); err != nil {
		t.Error(err)
	}
	for i, bad := range []*metadata.Row{r(2, 5, 9), r(3, 4, 9), r(3, 5, 8)} {
		w.changed("k", bad.Version, bad)
		if len(w.errs) <= i {
			t.Errorf("%+v is not noticed", bad)
		}
		delete(w.rows["k"], 3)
	}
}

// TestI8_LogsAreWhole: of a commit log that tablets need nothing is missing, and
// no fence goes, while logs are trimmed and sealed.
func TestI8_LogsAreWhole(t *testing.T) {
	onStage(t, &stage{options: func(o *Options) { o.LogBytes = 1 << 10 }}, func(g *stage) {
		for round := range 6 {
			for k := range g.want {
				if err := g.set(k, g.want[k]); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(3 * time.Second) // logs are trimmed every 2 s at most
			if err := g.i8(g.admin); err != nil {
				t.Error(err)
			}
			if round == 3 {
				g.KillServer("server-2")
				g.waitServed()
			}
		}
		time.Sleep(15 * time.Second) // what is left of the dead server's log goes
		g.check("at the end")
	})
}

// reads reads a row at one server, whoever serves it by METADATA, until stop.
func (g *stage) reads(server string, tablet metadata.TabletID, key string, each func(began time.Time, got int)) {
	for {
		began := time.Now()
		w := new(collector)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		_, _, err := g.Dialer("reader").Dial(server).ReadRows(ctx, rpc.Target{Tablet: tablet}, &rpc.Read{Ranges: []row.Range{row.Single([]byte(key))}, Filter: newest}, w)
		cancel()
		if err == nil && len(w.values) == 1 {
			n, _ := strconv.Atoi(w.values[0])
			each(began, n)
		}
		if errors.Is(err, rpc.ErrNotServing) || g.Server(server) == nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// stale cuts server-2, whose clock runs at a rate, off from the lock service,
// and returns how often it was read from it what had been overwritten already
// when the read began, and whether all that was acknowledged is there. Further
// options may make the master attend to it, which it is cut off from too then.
func stale(t *testing.T, rate float64, more ...func(*Options)) (old, answered int, all bool) {
	g := &stage{clocks: map[string]*Clock{}, alone: true, options: func(o *Options) {
		for _, m := range more {
			m(o)
		}
	}}
	synctest.Test(t, func(t *testing.T) {
		g.t = t
		g.clocks["server-2"] = NewClock(1, 0)
		defer func() {
			g.Close()
			time.Sleep(time.Minute)
		}()
		g.start()
		const key = "k"
		tablet := g.of(key).Tablet
		g.mu.Lock()
		g.victim, g.apart, g.cut = "server-2", true, time.Now().Add(20*time.Second)
		g.mu.Unlock()
		g.clocks["server-2"].Run(rate)
		var mu sync.Mutex
		acked := map[int]time.Time{}
		done := make(chan struct{})
		go func() {
			defer close(done)
			g.reads("server-2", tablet, key, func(began time.Time, got int) {
				answered++
				mu.Lock()
				defer mu.Unlock()
				for n, at := range acked {
					if n > got && at.Before(began) {
						old++
						break
					}
				}
			})
		}()
		last := 0
		for n := 10; n < 600; n++ {
			if err := g.set(key, fmt.Sprint(n)); err == nil {
				mu.Lock()
				acked[n], last = time.Now(), n
				mu.Unlock()
			}
			time.Sleep(10 * time.Millisecond)
		}
		<-done
		got := contents(t, g.admin, tableName)
		all = got[key] == fmt.Sprint(last)
	})
	return old, answered, all
}

// TestI14_ZombieReads: a server that has lost touch with the lock service answers
// no read with what was overwritten elsewhere, as long as its clock runs at a
// rate that the margins allow for: at least 0.88 of the lock service's. Beyond
// that reads may be old, as this test is able to tell, and what was acknowledged
// is still there.
func TestI14_ZombieReads(t *testing.T) {
	for _, rate := range []float64{0.89, 0.95, 1, 1.1} {
		old, answered, all := stale(t, rate)
		if old > 0 || answered == 0 || !all {
			t.Errorf("rate %v: %d of %d answers are old; all that was acknowledged is there: %v", rate, old, answered, all)
		}
	}
	old, answered, all := stale(t, 0.25)
	if old == 0 || !all {
		t.Errorf("a clock at a quarter of its rate: %d of %d answers are old; all that was acknowledged is there: %v", old, answered, all)
	}
}

// TestI14_PromisedReads: a server that the master gives up before its session has
// ended answers no read with what was overwritten elsewhere either. One that
// does not keep what it has promised does.
func TestI14_PromisedReads(t *testing.T) {
	n := new(master.Counters)
	attend := func(o *Options) { o.Attend, o.Masters = o.TTL/25, n }
	for _, rate := range []float64{0.81, 0.9, 1, 1.1} {
		before := n.GivenUp.Load()
		old, answered, all := stale(t, rate, attend)
		if old > 0 || answered == 0 || !all || n.GivenUp.Load() == before {
			t.Errorf("rate %v: %d of %d answers are old; all that was acknowledged is there: %v; %d servers were given up", rate, old, answered, all, n.GivenUp.Load()-before)
		}
	}
	// Its clock stands still after a while: by that it is never too late.
	faithless := func(o *Options) {
		o.WrapReading = func(_ string, reading func() time.Duration) func() time.Duration {
			begun := reading()
			return func() time.Duration { return min(reading(), begun+700*time.Millisecond) }
		}
	}
	if old, answered, all := stale(t, 1, attend, faithless); old == 0 || !all {
		t.Errorf("a server that does not keep its promise: %d of %d answers are old; all that was acknowledged is there: %v", old, answered, all)
	}
}

// TestSilentLock: a lock service that is silent for nearly as long as a ttl ends
// nobody, and nobody waits for it who writes and reads.
func TestSilentLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = 5 * time.Second
		var mu sync.Mutex
		var silent time.Time
		n := new(master.Counters)
		g := &stage{t: t}
		g.options = func(o *Options) {
			o.TTL, o.Attend, o.Masters, o.Balance, o.Merge = ttl, ttl/25, n, -1, -1
			o.Net = func(ctx context.Context, m Message) error {
				mu.Lock()
				left := time.Until(silent)
				mu.Unlock()
				if m.To == Lock || m.From == Lock {
					if err := wait(ctx, left); err != nil {
						return err
					}
				}
				return wait(ctx, time.Millisecond)
			}
		}
		defer func() {
			g.Close()
			time.Sleep(time.Minute)
		}()
		g.start()
		time.Sleep(2 * ttl)
		var numbers []uint64
		for i := range 3 {
			numbers = append(numbers, g.Server(fmt.Sprint("server-", i+1)).Incarnation())
		}
		for range 5 {
			mu.Lock()
			silent = time.Now().Add(ttl * 4 / 5)
			mu.Unlock()
			var longest time.Duration
			for began := time.Now(); time.Since(began) < 2*ttl; {
				start := time.Now()
				if err := g.set("k", "3"); err != nil {
					t.Fatal(err)
				}
				longest = max(longest, time.Since(start))
			}
			g.want["k"] = "3"
			if longest > 500*time.Millisecond {
				t.Errorf("a write took %v", longest)
			}
		}
		for i, want := range numbers {
			if s := g.Server(fmt.Sprint("server-", i+1)); s == nil || s.Incarnation() != want {
				t.Errorf("server-%d has ended", i+1)
			}
		}
		if n.GivenUp.Load() > 0 || n.Terms.Load() != 1 {
			t.Errorf("%d servers were given up, in %d terms", n.GivenUp.Load(), n.Terms.Load())
		}
	})
}

// TestI15_CarelessStore: a store that ignores the condition of a put is refused
// before anything is kept in it; what it would do to a cluster the first of the
// planted mistakes shows.
func TestI15_CarelessStore(t *testing.T) {
	store := newObjects()
	if err := store.Probe(t.Context()); err != nil {
		t.Error(err)
	}
	if err := objectstore.Probe(t.Context(), &carelessStore{Store: store}); !errors.Is(err, fault.FailedPrecondition) {
		t.Errorf("a store that overwrites: %v", err)
	}
}
