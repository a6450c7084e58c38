//go:build sim

package sim

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/cluster/lock/memory"
	"github.com/trestledb/trestle/engine/cputime"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/schema"
)

// A large cluster has a network that is a data center's: half a millisecond each
// way, 4 ms for what is made durable. Everything is real but that and the lock
// service and the store; tablets hold nothing.
type large struct {
	*Cluster
	t                *testing.T
	admin            *client.Client
	table            uint64
	servers, tablets int

	reads, cas, root, other, beats atomic.Int64 // questions
	mu                             sync.Mutex
	per                            map[string]int64 // METADATA questions by server
}

func (g *large) net(ctx context.Context, m Message) error {
	d := 500 * time.Microsecond
	if !m.Answer {
		switch {
		case m.Kind == memory.Heartbeat:
			g.beats.Add(1)
		case m.To == Lock:
			g.root.Add(1)
		case m.Kind == "CheckAndMutateRow":
			g.cas.Add(1)
		case m.Kind == "ReadRows":
			g.reads.Add(1)
		default:
			g.other.Add(1)
		}
		if m.Kind == "CheckAndMutateRow" || m.Kind == "ReadRows" {
			g.mu.Lock()
			g.per[m.To]++
			g.mu.Unlock()
		}
		if m.To == Store && m.Changes || m.To == Lock && m.Changes && m.Kind != memory.Heartbeat {
			d += 4 * time.Millisecond
		}
	}
	return wait(ctx, d)
}

// phase measures do.
func (g *large) phase(name string, do func()) {
	start, used := time.Now(), cputime.Used()
	before := [5]int64{g.reads.Load(), g.cas.Load(), g.root.Load(), g.other.Load(), g.beats.Load()}
	g.mu.Lock()
	clear(g.per)
	g.mu.Unlock()
	do()
	took := time.Since(start)
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	g.mu.Lock()
	var most, all int64
	for _, n := range g.per {
		most, all = max(most, n), all+n
	}
	n := len(g.per)
	g.mu.Unlock()
	secs := max(took.Seconds(), 1e-9)
	fmt.Printf("%4d servers %6d tablets  %-28s %8.2f s simulated  %7.2f s cpu  %5d MiB heap %5d MiB sys | METADATA %7d reads (%6.0f/s) %7d CAS (%6.0f/s) on %d servers, most %3.0f %% | %6d of the lock service, %6d other\n",
		g.servers, g.tablets, name, took.Seconds(), (cputime.Used() - used).Seconds(), mem.HeapInuse>>20, mem.Sys>>20,
		g.reads.Load()-before[0], float64(g.reads.Load()-before[0])/secs, g.cas.Load()-before[1], float64(g.cas.Load()-before[1])/secs, n,
		100*float64(most)/float64(max(all, 1)), g.root.Load()-before[2], g.other.Load()-before[3])
}

// open counts the tablets of living servers, without the network.
func (g *large) open() int {
	n := 0
	for _, name := range g.names() {
		if s := g.Server(name); s != nil {
			n += s.Tablets()
		}
	}
	return n
}

// spread returns how many tablets the living servers have, least and most.
func (g *large) spread() (least, most int) {
	least = -1
	for _, name := range g.names() {
		if s := g.Server(name); s != nil {
			n := s.Tablets()
			if most = max(most, n); least < 0 || n < least {
				least = n
			}
		}
	}
	return least, most
}

// all waits until every tablet is served, those of METADATA included.
func (g *large) all() {
	g.t.Helper()
	for range 60000 {
		roots, err := g.admin.Metadata().Roots(context.Background())
		if err == nil && g.open() >= g.tablets+len(roots) {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	g.t.Fatalf("%d tablets are served", g.open())
}

// TestScale: TRESTLE_SIM_SCALE has pairs of servers and tablets, as in
// 50x10000,500x100000. Without it a small one shows that nothing is broken.
func TestScale(t *testing.T) {
	sizes := os.Getenv("TRESTLE_SIM_SCALE")
	if sizes == "" {
		sizes = "10x500"
	}
	for size := range strings.SplitSeq(sizes, ",") {
		g := &large{t: t, per: map[string]int64{}}
		if _, err := fmt.Sscanf(size, "%dx%d", &g.servers, &g.tablets); err != nil {
			t.Fatal(err)
		}
		t.Run(size, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { g.t = t; g.run() }) })
	}
}

func (g *large) startServers(from, to int) {
	var starting sync.WaitGroup
	for i := from; i < to; i++ {
		starting.Go(func() {
			if _, err := g.StartServer(context.Background(), fmt.Sprintf("server-%03d", i)); err != nil {
				g.t.Error(err)
			}
		})
	}
	starting.Wait()
}

func (g *large) run() {
	ctx := g.t.Context()
	c, err := New(Options{TTL: 10 * time.Second, Interval: time.Second, Balance: 10 * time.Second, Purge: time.Minute, Net: g.net, Log: logger(), CacheBytes: 1 << 20})
	if err != nil {
		g.t.Fatal(err)
	}
	g.Cluster = c
	defer func() {
		c.Close()
		time.Sleep(time.Minute)
	}()
	c.StartMaster("master-1")
	if g.admin, err = c.Client(ctx, "admin"); err != nil {
		g.t.Fatal(err)
	}
	g.startServers(0, 1)
	var splits [][]byte
	for i := range g.tablets - 1 {
		splits = append(splits, fmt.Appendf(nil, "user%08d", (i+1)*1000))
	}
	g.phase("make METADATA rows", func() {
		c.StopMaster("master-1") // assigns nothing yet
		c.StartMaster("master-1")
		sch, err := g.admin.CreateTable(ctx, &schema.Table{Name: tableName, Granularity: 1000, Families: map[string]schema.Family{"a": {Name: "a"}}}, splits)
		if err != nil {
			g.t.Fatal(err)
		}
		g.table = sch.ID
	})
	c.KillMaster("master-1")
	c.KillServer("server-000")
	time.Sleep(20 * time.Second)
	g.phase("cold start", func() {
		c.StartMaster("master-2")
		g.startServers(1, g.servers+1)
		g.all()
	})
	least, most := g.spread()
	fmt.Printf("%4d servers %6d tablets  after the cold start a server has %d to %d tablets\n", g.servers, g.tablets, least, most)
	if mean := g.tablets / g.servers; mean > 100 && (most > mean+mean/4 || least < mean/2) {
		g.t.Errorf("a server has %d to %d tablets after the cold start, %d on average", least, most, mean)
	}
	g.phase("at rest for 60 s", func() { time.Sleep(time.Minute) })
	if name := os.Getenv("TRESTLE_SIM_HEAP"); name != "" {
		if f, err := os.Create(name); err == nil {
			runtime.GC()
			_ = pprof.WriteHeapProfile(f)
			_ = f.Close()
		}
	}
	roots, err := g.admin.Metadata().Roots(ctx)
	if err != nil {
		g.t.Fatal(err)
	}
	meta := map[string]bool{}
	for _, r := range roots {
		meta[r.Assignment.Server] = true
	}
	victim := ""
	for _, name := range c.names() {
		if !meta[name] {
			victim = name
		}
	}
	g.phase("a server dies", func() {
		c.KillServer(victim)
		g.all()
	})
	time.Sleep(5 * time.Second)
	g.phase("METADATA's server dies", func() {
		c.KillServer(roots[0].Assignment.Server)
		g.all()
	})
	time.Sleep(5 * time.Second)
	g.phase("master and a server die", func() {
		for _, name := range c.names() {
			if !meta[name] && name != victim {
				victim = name
			}
		}
		c.StartMaster("master-3")
		c.KillMaster("master-2")
		c.KillServer(victim)
		g.all()
	})
	time.Sleep(5 * time.Second)
	g.phase("a server is drained", func() {
		for _, name := range c.names() {
			if !meta[name] {
				victim = name
			}
		}
		ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
		defer cancel()
		if err := c.StopServer(ctx, victim); err != nil {
			g.t.Error(err)
		}
		g.all()
	})
	g.phase("lookups of all rows, cold", func() {
		cl, err := c.Client(ctx, "client")
		if err != nil {
			g.t.Fatal(err)
		}
		var looking sync.WaitGroup
		for w := range 64 {
			looking.Go(func() {
				for i := w; i < g.tablets; i += 64 {
					if _, err := cl.Metadata().Lookup(ctx, g.table, fmt.Appendf(nil, "user%08d", i*1000), 16); err != nil {
						g.t.Error(err)
						return
					}
				}
			})
		}
		looking.Wait()
	})
	var bytes int64
	var files int
	if err := g.admin.Metadata().Scan(ctx, func(r *metadata.Row) error {
		bytes += int64(len(r.Marshal()))
		files += len(r.Files)
		return nil
	}); err != nil {
		g.t.Error(err)
	}
	rs, err := g.admin.Metadata().Roots(ctx)
	fmt.Printf("%4d servers %6d tablets  METADATA: %d tablets, %d bytes of rows %v\n", g.servers, g.tablets, len(rs), bytes, err)
}
