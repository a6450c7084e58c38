//go:build sim

package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/cluster/lock/memory"
	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

// A mishap is what becomes of the n-th message of a node, and of the node.
type mishap string

const (
	// crash: the node ends before the message is sent, or before it has the
	// answer.
	crash mishap = "crash"
	// lastWord: the node ends when the message is on its way.
	lastWord mishap = "last word"
	// zombie: the node is taken for dead, and does not know; the message arrives
	// when others have done what there was to do.
	zombie mishap = "zombie"
)

// A stage is a cluster on which an operation is interrupted. METADATA is on
// server-1, the table on server-2, nothing on server-3; master-1 is the master.
type stage struct {
	*Cluster
	t     *testing.T
	admin *client.Client // of node client
	table *schema.Table
	want  map[string]string

	mu      sync.Mutex
	victim  string
	how     mishap
	at, n   int // the message that it happens to, and how many there were
	armed   bool
	last    Message
	options func(*Options)
	clocks  map[string]*Clock // of nodes whose clock is not right
	apart   bool              // the victim is not reached by node admin
	cut     time.Time         // until when the victim does not reach the lock service
	alone   bool              // nor a master the victim meanwhile, which is told so
}

const takenFor = 6 * time.Second

// net implements Net.
func (g *stage) net(ctx context.Context, m Message) error {
	g.mu.Lock()
	cut := g.cut.After(time.Now()) && (m.From == g.victim && m.To == Lock || m.From == Lock && m.To == g.victim)
	if g.alone && m.Kind == Attend && m.To == g.victim && g.cut.After(time.Now()) {
		g.mu.Unlock()
		return ErrRefused
	}
	if g.apart && (m.From == "admin" && m.To == g.victim || m.From == g.victim && m.To == "admin") {
		g.mu.Unlock()
		return ErrRefused
	}
	mine := g.armed && (m.From == g.victim || m.To == g.victim) && m.Kind != memory.Heartbeat && m.Kind != "Watch" && !g.bystander(m.From) && !g.bystander(m.To)
	now := false
	if mine {
		g.n++
		if now = g.n == g.at; now {
			g.last = m
			if g.how == zombie {
				g.cut = time.Now().Add(takenFor)
			}
		}
	}
	g.mu.Unlock()
	if now {
		switch g.how {
		case crash:
			g.Kill(g.victim)
			return errors.New("lost in the crash")
		case lastWord:
			g.Kill(g.victim)
		case zombie:
			return wait(ctx, takenFor)
		}
	}
	if cut {
		if err := wait(ctx, 300*time.Millisecond); err != nil {
			return err
		}
		return errors.New("cut off")
	}
	return wait(ctx, time.Millisecond)
}

// bystander tells whether a node only looks on.
func (*stage) bystander(node string) bool { return node == "admin" || node == "operator" }

func (g *stage) set(key, value string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return g.admin.MutateRow(ctx, tableName, &row.Entry{Key: []byte(key), Mutations: []row.Mutation{
		{Op: row.SetCell, Family: "a", Qualifier: []byte("q"), Timestamp: 1000, Value: []byte(value)}}})
}

// place waits until what a table has is on a server.
func (g *stage) place(table uint64, server string) {
	g.t.Helper()
	ctx := g.t.Context()
	var rows []*metadata.Row
	var err error
	for range 200 {
		if table == metastore.Table {
			rows, err = g.admin.Metadata().Roots(ctx)
		} else {
			rows, err = g.admin.Metadata().Lookup(ctx, table, nil, 10)
		}
		there := err == nil && len(rows) > 0
		for _, r := range rows {
			if r.Assignment.State == metadata.Open && r.Assignment.Server == server {
				continue
			}
			there = false
			_ = g.Cluster.want(ctx, "operator", r.Tablet, server)
		}
		if there {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	g.t.Fatalf("table %d does not come to %s: %v", table, server, err)
}

func (g *stage) start() {
	g.t.Helper()
	o := Options{TTL: time.Second, Interval: 400 * time.Millisecond, Net: g.net, Witness: NewWitness(), Log: logger(),
		Balance: 300 * time.Millisecond, Merge: 2 * time.Second,
		Sweep: 700 * time.Millisecond, Purge: 300 * time.Millisecond, Rest: 500 * time.Millisecond, MakeLimit: 5 * time.Second}
	if g.clocks != nil {
		o.Clocks = func(name string) *Clock {
			if c := g.clocks[name]; c != nil {
				return c
			}
			return NewClock(1, 0)
		}
	}
	if g.options != nil {
		g.options(&o)
	}
	c, err := New(o)
	if err != nil {
		g.t.Fatal(err)
	}
	g.Cluster = c
	ctx := g.t.Context()
	c.StartMaster("master-1")
	run := func(name string) {
		if _, err := c.StartServer(ctx, name); err != nil {
			g.t.Fatal(err)
		}
	}
	run("server-1")
	if g.admin, err = c.Client(ctx, "admin"); err != nil {
		g.t.Fatal(err)
	}
	g.table, err = g.admin.CreateTable(ctx, &schema.Table{Name: tableName, Granularity: 1000, Families: map[string]schema.Family{"a": {Name: "a"}}},
		[][]byte{[]byte("h"), []byte("p")})
	if err != nil {
		g.t.Fatal(err)
	}
	run("server-2")
	g.place(g.table.ID, "server-2")
	run("server-3")
	c.StartMaster("master-2")
	g.want = map[string]string{}
	for i := range 26 {
		k := string(rune('a' + i))
		if err := g.set(k, "1"); err != nil {
			g.t.Fatal(err)
		}
		if i%3 == 0 { // some of it in SSTables
			if err := g.set(k, "2"); err != nil {
				g.t.Fatal(err)
			}
			g.want[k] = "2"
			continue
		}
		g.want[k] = "1"
	}
	time.Sleep(500 * time.Millisecond)
}

// arm makes the mishap happen to the n-th message from now on.
func (g *stage) arm(victim string, how mishap, n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.victim, g.how, g.at, g.n, g.armed = victim, how, n, 0, true
}

// disarm returns whether it happened.
func (g *stage) disarm() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.armed = false
	return g.n >= g.at
}

// tablets returns the rows of the table, all of them open; nil if they are not.
func (g *stage) tablets() []*metadata.Row {
	var rows []*metadata.Row
	ctx, cancel := context.WithTimeout(g.t.Context(), 2*time.Second)
	defer cancel()
	err := g.admin.Metadata().Scan(ctx, func(r *metadata.Row) error {
		if r.Table == g.table.ID {
			rows = append(rows, r)
		}
		return nil
	})
	if err != nil || !metadata.Tile(rows) {
		return nil
	}
	for _, r := range rows {
		if r.Assignment.State != metadata.Open || g.Server(r.Assignment.Server) == nil || r.Op != nil && r.Op.Kind == metadata.Merge {
			return nil
		}
	}
	return rows
}

// waitServed waits until all tablets are served by living servers.
func (g *stage) waitServed() []*metadata.Row {
	g.t.Helper()
	for range 400 {
		if rows := g.tablets(); rows != nil {
			return rows
		}
		time.Sleep(50 * time.Millisecond)
	}
	g.t.Errorf("tablets do not come to rest")
	return nil
}

// check checks that nothing was lost and that all goes on.
func (g *stage) check(ctx string) {
	g.t.Helper()
	fail := func(format string, args ...any) {
		g.t.Helper()
		g.t.Errorf("%s: %s", ctx, fmt.Sprintf(format, args...))
	}
	if g.waitServed() == nil {
		fail("not all tablets are served")
		return
	}
	got := contents(g.t, g.admin, tableName)
	if !maps.Equal(got, g.want) {
		fail("I2, I11: the table holds %v, not %v", got, g.want)
	}
	tiles := false
	for range 50 {
		if tiles = metadata.Tile(g.roots()); tiles {
			break
		}
		time.Sleep(100 * time.Millisecond) // small ones are being merged
	}
	if !tiles {
		fail("I5: METADATA tablets do not tile")
	}
	for k := range g.want {
		if err := g.set(k, "3"); err != nil {
			fail("write %s: %v", k, err)
		}
	}
	if err := g.o.Witness.Check(); err != nil {
		fail("%v", err)
	}
	if _, err := I7(g.t, g.Cluster, g.admin); err != nil {
		fail("%v", err)
	}
	if err := g.i8(g.admin); err != nil {
		fail("%v", err)
	}
	for k, v := range contents(g.t, g.admin, tableName) {
		if v != "3" {
			fail("row %s holds %s", k, v)
		}
	}
}

// An operation is what is interrupted at each of its steps.
type operation struct {
	name    string
	victims []string
	before  func(*stage)       // makes ready for it
	do      func(*stage)       // returns when it is done, or has come to nothing
	did     func(*stage) bool  // whether it was done, if nothing came in between
	changes int                // of METADATA rows that this takes, at least; tablets are three
	after   func(*stage) error // what must hold at the end
	// zombies are those of victims that may be taken for dead though they live.
	zombies []string
	ends    string // the server that do ends
}

func (g *stage) of(key string) *metadata.Row {
	g.t.Helper()
	rows, err := g.admin.Metadata().Lookup(g.t.Context(), g.table.ID, []byte(key), 1)
	if err != nil {
		g.t.Fatal(err)
	}
	return rows[0]
}

func (g *stage) ask(server string, do func(ctx context.Context, s rpc.TabletServer)) {
	ctx, cancel := context.WithTimeout(g.t.Context(), 10*time.Second)
	defer cancel()
	do(ctx, g.Dialer("caller").Dial(server))
}

func (g *stage) roots() []*metadata.Row {
	g.t.Helper()
	roots, err := g.admin.Metadata().Roots(g.t.Context())
	if err != nil {
		g.t.Fatal(err)
	}
	return roots
}

// splitMetadata cuts METADATA in the middle of the table's rows.
func (g *stage) splitMetadata() {
	at := metastore.Key(rpc.TabletKey{Table: g.table.ID, End: []byte("h")})
	first := g.roots()[0].Tablet
	g.ask("server-1", func(ctx context.Context, s rpc.TabletServer) { _ = s.Split(ctx, first, at) })
}

// client lets do ask the cluster for something as a client, for a while.
func (g *stage) client(do func(context.Context, *client.Client)) {
	ctx, cancel := context.WithTimeout(g.t.Context(), 10*time.Second)
	defer cancel()
	if b, err := g.Client(ctx, "client"); err == nil {
		do(ctx, b)
	}
}

func operations() []operation {
	servers, masters := []string{"server-1", "server-2", "server-3"}, []string{"master-1"}
	both := append(masters, servers...)
	return []operation{{
		name: "split", victims: []string{"server-1", "server-2"}, zombies: []string{"server-1", "server-2"},
		changes: 2, did: func(g *stage) bool { return len(g.tablets()) == 4 },
		do: func(g *stage) {
			r := g.of("k")
			g.ask("server-2", func(ctx context.Context, s rpc.TabletServer) { _ = s.Split(ctx, r.Tablet, []byte("k")) })
		},
	}, {
		name: "merge", victims: []string{"server-1", "server-2"}, zombies: []string{"server-1", "server-2"},
		changes: 2, did: func(g *stage) bool { return len(g.tablets()) == 2 },
		do: func(g *stage) {
			a, b := g.of("a"), g.of("k")
			g.ask("server-2", func(ctx context.Context, s rpc.TabletServer) { _ = s.Merge(ctx, a.Tablet, b.Tablet) })
		},
	}, {
		name: "move", victims: both, zombies: both,
		changes: 2, did: func(g *stage) bool { return g.of("k").Assignment.Server == "server-3" },
		do: func(g *stage) {
			r := g.of("k")
			_ = g.Cluster.want(g.t.Context(), "operator", r.Tablet, "server-3")
			g.until(func() bool {
				return g.of("k").Assignment.Server == "server-3" && g.of("k").Assignment.State == metadata.Open
			})
		},
	}, {
		name: "recovery of a server's tablets", ends: "server-2", victims: []string{"server-1", "server-3", "master-1"}, zombies: []string{"server-1", "server-3", "master-1"},
		changes: 3, did: func(g *stage) bool { return g.of("k").Assignment.Server != "server-2" },
		do: func(g *stage) {
			g.KillServer("server-2")
			g.until(func() bool { return g.tablets() != nil })
		},
	}, {
		name: "recovery of METADATA", ends: "server-1", victims: []string{"server-2", "server-3", "master-1"}, zombies: []string{"server-2", "server-3", "master-1"},
		did: func(g *stage) bool { return g.roots()[0].Assignment.Server != "server-1" },
		do: func(g *stage) {
			g.KillServer("server-1")
			g.until(func() bool { return g.tablets() != nil })
		},
	}, {
		name: "failover of the master, and recovery", ends: "server-2", victims: []string{"master-2"}, zombies: []string{"master-2"},
		changes: 3, did: func(g *stage) bool { return g.of("k").Assignment.Server != "server-2" },
		do: func(g *stage) {
			g.StartMaster("master-3")
			g.KillMaster("master-1")
			g.KillServer("server-2")
			g.until(func() bool { return g.tablets() != nil })
		},
	}, {
		name: "split of METADATA", victims: []string{"server-1"}, zombies: []string{"server-1"},
		did: func(g *stage) bool { return len(g.roots()) == 2 },
		do:  (*stage).splitMetadata,
	}, {
		name: "merge of METADATA", victims: []string{"server-1"}, zombies: []string{"server-1"},
		did:    func(g *stage) bool { return len(g.roots()) == 1 },
		before: (*stage).splitMetadata,
		do: func(g *stage) {
			roots := g.roots()
			if len(roots) != 2 {
				g.t.Fatalf("there are %d METADATA tablets", len(roots))
			}
			g.ask("server-1", func(ctx context.Context, s rpc.TabletServer) { _ = s.Merge(ctx, roots[0].Tablet, roots[1].Tablet) })
		},
	}, {
		name: "flush and compaction", victims: []string{"server-1", "server-2"}, zombies: []string{"server-1", "server-2"},
		changes: 3, did: func(g *stage) bool { r := g.of("k"); return len(r.Files) == 1 && r.NextRun > 1 },
		do: func(g *stage) {
			r := g.of("k")
			g.ask("server-2", func(ctx context.Context, s rpc.TabletServer) {
				_ = s.Flush(ctx, []metadata.TabletID{r.Tablet})
				_ = g.set("k", g.want["k"])
				_ = s.Flush(ctx, []metadata.TabletID{r.Tablet})
				_ = s.Compact(ctx, []metadata.TabletID{r.Tablet})
			})
		},
	}, {
		name: "end of a server in order", ends: "server-2", victims: both, zombies: both,
		changes: 3, did: func(g *stage) bool { return g.of("k").Assignment.Server != "server-2" },
		do: func(g *stage) {
			ctx, cancel := context.WithTimeout(g.t.Context(), 10*time.Second)
			defer cancel()
			_ = g.StopServer(ctx, "server-2")
			g.until(func() bool { return g.tablets() != nil })
		},
	}, {
		name: "backup and restore", victims: []string{"client", "server-1", "server-2", "server-3"}, zombies: []string{"server-1", "server-2"},
		changes: 3, did: func(g *stage) bool { _, err := g.admin.Table(g.t.Context(), tableName+"r"); return err == nil },
		do: func(g *stage) {
			g.client(func(ctx context.Context, b *client.Client) {
				if _, err := b.CreateBackup(ctx, tableName, &schema.Backup{Name: "backups/b"}); err != nil {
					return
				}
				if _, err := b.RestoreTable(ctx, "backups/b", tableName+"r", func(*schema.Table) error { return nil }); err != nil {
					return
				}
				_ = b.DeleteBackup(ctx, "backups/b")
			})
		},
		// What was begun is there whole, or goes.
		after: func(g *stage) error {
			if _, err := g.admin.Table(g.t.Context(), tableName+"r"); err == nil {
				if got := contents(g.t, g.admin, tableName+"r"); !maps.Equal(got, g.want) {
					return fmt.Errorf("restored is %v", got)
				}
			}
			if _, err := g.admin.Backup(g.t.Context(), "backups/b"); err == nil {
				if _, err := g.admin.RestoreTable(g.t.Context(), "backups/b", tableName+"s", func(*schema.Table) error { return nil }); err != nil {
					return err
				}
				if got := contents(g.t, g.admin, tableName+"s"); !maps.Equal(got, g.want) {
					return fmt.Errorf("restored is %v", got)
				}
			}
			return nil
		},
	}, {
		name: "sweep and merge of small neighbours", ends: "server-3", victims: []string{"master-1"}, zombies: masters,
		changes: 2, did: func(g *stage) bool { return len(g.tablets()) < 3 },
		do: func(g *stage) {
			ctx, cancel := context.WithTimeout(g.t.Context(), 20*time.Second)
			defer cancel()
			if _, err := g.admin.CreateBackup(ctx, tableName, &schema.Backup{Name: "backups/m"}); err != nil {
				g.t.Fatal(err)
			}
			for range 2 {
				for k, v := range g.want {
					if err := g.set(k, v); err != nil {
						g.t.Fatal(err)
					}
				}
				for _, k := range []string{"a", "k", "r"} {
					r := g.of(k)
					g.ask(r.Assignment.Server, func(ctx context.Context, s rpc.TabletServer) { _ = s.Compact(ctx, []metadata.TabletID{r.Tablet}) })
				}
			}
			for _, r := range g.tablets() { // they may be merged
				_ = g.Cluster.want(ctx, "operator", r.Tablet, "")
			}
			g.KillServer("server-3") // its objects and logs are garbage
			if err := g.admin.DeleteBackup(ctx, "backups/m"); err != nil {
				g.t.Fatal(err)
			}
			time.Sleep(4 * time.Second)
		},
	}, {
		name: "table made and deleted", victims: []string{"client", "server-1", "server-3", "master-1"}, zombies: []string{"server-1", "master-1"},
		changes: 2, did: func(*stage) bool { return true }, // that they were changed says it
		do: func(g *stage) {
			g.client(func(ctx context.Context, b *client.Client) {
				if _, err := b.CreateTable(ctx, &schema.Table{Name: tableName + "n", Granularity: 1000, Families: map[string]schema.Family{"a": {Name: "a"}}}, [][]byte{[]byte("h")}); err != nil {
					return
				}
				_ = b.DeleteTable(ctx, tableName+"n")
			})
		},
	}}
}

// until waits for done, for a while.
func (g *stage) until(done func() bool) {
	for range 200 {
		if done() {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// every is how far apart the messages are at which something happens, once the
// first 64 are done: later ones are those of masters that look again and again.
// With TRESTLE_SIM_STEPS=all no message is left out.
func every(n int) int {
	if n < 64 || os.Getenv("TRESTLE_SIM_STEPS") == "all" {
		return 1
	}
	return n / 16
}

// TestI13_EveryStep: invariants I2, I5, I11 and I13, and no other server ends. A node ends, or is taken for
// dead and is not, at each message that it sends or gets while an operation is
// under way: everything that was acknowledged is there, and tablets tile.
func TestI13_EveryStep(t *testing.T) {
	for _, o := range operations() {
		for _, victim := range o.victims {
			hows := []mishap{crash, lastWord}
			if slices.Contains(o.zombies, victim) && !strings.HasPrefix(victim, "master") {
				hows = append(hows, zombie)
			}
			t.Run(o.name+"/"+victim, func(t *testing.T) { steps(t, o, victim, hows) })
		}
	}
}

// TestI12_DeposedMaster: a master is deposed at each message that it sends, and
// that message arrives when its successor has seen to everything. What it can
// still change is what its successor would change as well.
func TestI12_DeposedMaster(t *testing.T) {
	for _, o := range operations() {
		for _, victim := range o.zombies {
			if strings.HasPrefix(victim, "master") {
				t.Run(o.name, func(t *testing.T) { steps(t, o, victim, []mishap{zombie}) })
			}
		}
	}
}

func steps(t *testing.T, o operation, victim string, hows []mishap) {
	t.Parallel()
	for _, how := range hows {
		n, runs := 1, 0
		for ; ; n += every(n) {
			reached := false
			runs++
			synctest.Test(t, func(t *testing.T) { reached = stepRun(t, o, victim, how, n) })
			if t.Failed() {
				t.Fatalf("%s of %s at message %d", how, victim, n)
			}
			if !reached {
				break
			}
		}
		t.Logf("%s: %d runs, up to message %d", how, runs, n)
	}
}

func stepRun(t *testing.T, o operation, victim string, how mishap, n int) (reached bool) {
	g := &stage{t: t}
	defer func() {
		if g.Cluster != nil {
			g.Close()
		}
		time.Sleep(time.Minute)
	}()
	g.start()
	if o.before != nil {
		o.before(g)
	}
	g.arm(victim, how, n)
	o.do(g)
	reached = g.disarm()
	if how == zombie && reached {
		time.Sleep(takenFor + 2*time.Second)
	} else {
		time.Sleep(3 * time.Second) // a session ends
	}
	if o.after != nil {
		g.waitServed()
		if err := o.after(g); err != nil {
			t.Error(err)
		}
	}
	g.check(fmt.Sprintf("%s of %s at message %d, %+v", how, victim, n, g.last))
	for _, name := range []string{"server-1", "server-2", "server-3"} {
		if name != victim && name != o.ends && g.Server(name) == nil {
			t.Errorf("%s has ended too, when %s of %s was at message %d, %+v", name, how, victim, n, g.last)
		}
	}
	return reached
}
