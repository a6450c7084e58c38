//go:build sim

package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/conformance/changefollow"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/stamp"
	"github.com/trestledb/trestle/engine/tablet"
)

// streamed makes a table whose changes are kept.
func streamed(t *testing.T, c *client.Client, splits ...[]byte) *schema.Table {
	t.Helper()
	sch, err := c.CreateTable(t.Context(), &schema.Table{Name: tableName, Granularity: 1000, Families: map[string]schema.Family{"a": {Name: "a"}},
		Stream: &schema.Stream{Life: 1, Retention: 24 * time.Hour, Since: time.Now()}}, splits)
	if err != nil {
		t.Fatal(err)
	}
	return sch
}

func putValue(ctx context.Context, c *client.Client, key, value string) error {
	return within(ctx, func(ctx context.Context) error {
		return c.MutateRow(ctx, tableName, &row.Entry{Key: []byte(key), Mutations: []row.Mutation{{Op: row.SetCell, Family: "a", Timestamp: 1000, Value: []byte(value)}}})
	})
}

// A trimmedLock calls then when a server has noted that more of its log of users' tablets is
// trimmed.
type trimmedLock struct {
	lock.Service
	kept commitlog.Pos
	then func()
}

func (l *trimmedLock) Put(ctx context.Context, key string, value []byte, version int64) (int64, error) {
	next, err := l.Service.Put(ctx, key, value, version)
	var state catalog.LogState
	if err != nil || !strings.HasPrefix(key, catalog.LogsPrefix) || json.Unmarshal(value, &state) != nil {
		return next, err
	}
	if log := state.Kept.Log; log == catalog.UserLog(catalog.LogOwner(log)) && l.kept.Less(state.Kept) {
		l.kept = state.Kept
		l.then()
	}
	return next, nil
}

// TestPromises: what a server whose clock is ahead has promised to readers holds, whatever
// becomes of the tablet. A store that says of a clock record that it is stored, and does
// not store it, is found out.
func TestPromises(t *testing.T) {
	const ahead = 10 * time.Minute
	for _, end := range []string{"killed", "killed twice", "moved", "split", "merged", "split and killed", "killed in a split", "killed when the log was trimmed", "damaged log", "lying store"} {
		t.Run(end, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				var lies, dies, trims atomic.Bool
				var c *Cluster
				var err error
				c, err = New(Options{TTL: 2 * time.Second, Interval: 100 * time.Millisecond, Log: logger(),
					Clocks: func(node string) *Clock {
						clock := NewClock(1, 0)
						if node == "server-1" {
							clock.Jump(ahead)
						}
						return clock
					},
					WrapStore: func(node string, s objectstore.Store) objectstore.Store {
						if node != "server-1" {
							return s
						}
						return &slowStore{s, func(_ context.Context, name string, do func() error) error {
							if lies.Load() && strings.Contains(name, "/") {
								return nil
							}
							return do()
						}}
					},
					// It dies when it has noted how far its log is trimmed, before the next clock record.
					WrapLock: func(node string, l lock.Service) lock.Service {
						if node != "server-1" {
							return l
						}
						return &trimmedLock{Service: l, then: func() {
							if trims.Swap(false) {
								c.KillServer(node)
							}
						}}
					},
					// It dies when it is about to add the row of a split's left child.
					WrapDialer: metaPlant("server-1", func(s rpc.TabletServer) rpc.TabletServer {
						return &metaServer{s, func(m *cas) {
							if len(m.then) == 0 && dies.Swap(false) {
								c.KillServer("server-1")
								m.otherwise = nil
							}
						}}
					})})
				if err != nil {
					t.Fatal(err)
				}
				defer func() { c.Close(); time.Sleep(time.Minute) }()
				c.StartMaster("master")
				for _, name := range []string{"server-0", "server-1"} {
					if _, err := c.StartServer(ctx, name); err != nil {
						t.Fatal(err)
					}
				}
				cl, err := c.Client(ctx, "client")
				if err != nil {
					t.Fatal(err)
				}
				sch := streamed(t, cl, []byte("m"))
				rowsOf := func() []*metadata.Row {
					for {
						rows, err := cl.Metadata().Lookup(ctx, sch.ID, nil, 10)
						if err == nil {
							return rows
						}
						time.Sleep(10 * time.Millisecond)
					}
				}
				must := func(err error) {
					t.Helper()
					if err != nil {
						t.Fatal(err)
					}
				}
				for _, r := range rowsOf() {
					must(cl.Move(ctx, r, "server-1", true))
				}
				for _, r := range rowsOf() {
					must(c.want(ctx, "admin", r.Tablet, "server-1"))
				}
				var newest atomic.Uint64
				f, err := changefollow.Follow(ctx, cl, changefollow.Options{Table: tableName, Life: 1, From: stamp.At(sch.Stream.Since) - 1, Every: 200 * time.Millisecond,
					Bad:    t.Errorf,
					Record: func(r *changes.Record) { newest.Store(uint64(r.Stamp)) }})
				must(err)
				defer f.Stop()
				lies.Store(end == "lying store")
				begin := time.Now()
				for f.Watermark() < stamp.At(begin.Add(ahead)) {
					time.Sleep(10 * time.Millisecond)
				}
				mark := f.Watermark()
				switch end {
				case "killed", "lying store":
					c.KillServer("server-1")
				case "killed twice":
					c.KillServer("server-1")
					// Each of the tablets is taken over before the next death.
					for slices.ContainsFunc(rowsOf(), func(r *metadata.Row) bool {
						return r.Assignment.State != metadata.Open || r.Assignment.Server != "server-0"
					}) {
						time.Sleep(10 * time.Millisecond)
					}
					_, err := c.StartServer(ctx, "server-2")
					must(err)
					c.KillServer("server-0")
				case "killed when the log was trimmed":
					trims.Store(true)
					for c.Server("server-1") != nil {
						time.Sleep(10 * time.Millisecond)
					}
					mark = f.Watermark()
				case "damaged log":
					log := catalog.UserLog(c.Server("server-1").Incarnation())
					c.KillServer("server-1")
					segments, err := c.objects.List(ctx, log.String()+"/", "", 0)
					if err != nil || len(segments) == 0 {
						t.Fatal(segments, err)
					}
					// All that is in it are clock records, at its end.
					for _, i := range segments {
						c.damageAt(t, i.Name, int(i.Size)-1)
					}
				case "killed in a split":
					dies.Store(true)
					if err := cl.Split(ctx, rowsOf()[0], []byte("c")); err == nil || dies.Load() {
						t.Errorf("a split by a server that dies in it: %v", err)
					}
				case "moved":
					for _, r := range rowsOf() {
						must(cl.Move(ctx, r, "server-0", true))
					}
				case "split", "split and killed":
					must(cl.Split(ctx, rowsOf()[0], []byte("c")))
					if end != "split" {
						c.KillServer("server-1")
					}
				case "merged":
					must(cl.Merge(ctx, rowsOf()[0]))
				}
				if end == "split" || end == "merged" {
					// With a clock that is right again.
					for _, r := range rowsOf() {
						must(cl.Move(ctx, r, "server-0", true))
					}
				}
				for putValue(ctx, cl, "b", "1") != nil {
					time.Sleep(100 * time.Millisecond)
				}
				// A change that overtakes a watermark is behind its readers: it never comes.
				for n := 0; newest.Load() == 0 && n < 600; n++ {
					time.Sleep(50 * time.Millisecond)
				}
				if lost := newest.Load() == 0; lost != (end == "lying store") || !lost && newest.Load() <= uint64(mark) {
					t.Errorf("after watermark %v comes a change of %v; %s", stamp.Time(mark), stamp.Time(cell.Seq(newest.Load())), f.State())
				}
			})
		})
	}
}

// values is a changes.Writer that keeps the values of what was written.
type values struct {
	mu   sync.Mutex
	list []string
}

func (v *values) Record(r *changes.Record, _ changes.Position) (bool, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, c := range r.Changes {
		v.list = append(v.list, string(c.Value))
	}
	return false, nil
}
func (*values) Flush() error                     { return nil }
func (*values) Watermark(changes.Position) error { return nil }

func (v *values) String() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return strings.Join(v.list, " ")
}

// TestEarlierLife: a stream that is turned off and on is another one. A reader of the earlier
// one gets nothing of it, neither if it reads all the time, nor if it comes later or elsewhere.
func TestEarlierLife(t *testing.T) {
	for _, dies := range []bool{false, true} {
		t.Run(fmt.Sprint("server dies=", dies), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				c, err := New(Options{TTL: 2 * time.Second, Interval: 100 * time.Millisecond, Log: logger()})
				if err != nil {
					t.Fatal(err)
				}
				defer func() { c.Close(); time.Sleep(time.Minute) }()
				c.StartMaster("master")
				if _, err := c.StartServer(ctx, "server-0"); err != nil {
					t.Fatal(err)
				}
				cl, err := c.Client(ctx, "client")
				if err != nil {
					t.Fatal(err)
				}
				other, err := c.Client(ctx, "reader")
				if err != nil {
					t.Fatal(err)
				}
				sch := streamed(t, cl)
				read := func(cl *client.Client, life uint64, at time.Time) (*values, func() error) {
					v, done := new(values), make(chan error, 1)
					ctx, cancel := context.WithTimeout(ctx, time.Minute)
					go func() {
						defer cancel()
						_, err := cl.ReadChanges(ctx, &changes.Request{Table: tableName, Life: life, From: changes.Position{Through: stamp.At(at) - 1}, Every: 200 * time.Millisecond}, v)
						done <- err
					}()
					return v, func() error { return <-done }
				}
				write := func(value string) {
					for putValue(ctx, cl, "a", value) != nil {
						time.Sleep(100 * time.Millisecond)
					}
				}
				set := func(s *schema.Stream) {
					t.Helper()
					if _, err := cl.UpdateTable(ctx, tableName, func(t *schema.Table) error { t.Stream = s; return nil }); err != nil {
						t.Fatal(err)
					}
				}
				all, end := read(other, 1, sch.Stream.Since)
				write("first")
				for all.String() == "" {
					time.Sleep(10 * time.Millisecond)
				}
				if dies {
					if _, err := c.StartServer(ctx, "server-1"); err != nil {
						t.Fatal(err)
					}
					c.KillServer("server-0")
				}
				set(nil)
				time.Sleep(time.Millisecond)
				since := time.Now()
				set(&schema.Stream{Life: 2, Retention: 24 * time.Hour, Since: since})
				write("second")
				if err := end(); fault.KindOf(err) != fault.FailedPrecondition || all.String() != "first" {
					t.Errorf("the reader gets %q, %v", all, err)
				}
				for _, cl := range []*client.Client{cl, other} {
					if v, end := read(cl, 1, since); fault.KindOf(end()) != fault.FailedPrecondition || v.String() != "" {
						t.Errorf("a reader that comes later gets %q", v)
					}
				}
				if v, end := read(other, 2, since); !errors.Is(end(), context.DeadlineExceeded) || v.String() != "second" {
					t.Errorf("a reader of the new stream gets %q", v)
				}
			})
		})
	}
}

// TestStreamStorm: in a storm, with servers that die and tablets that are split, merged and
// moved, readers get every acknowledged change once, those of a row in order, and no
// watermark is overtaken.
func TestStreamStorm(t *testing.T) {
	usual := 6
	if testing.Short() {
		usual = 2
	}
	first, runs := seeds(usual)
	for seed := first; seed < first+uint64(runs); seed++ {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { streamStorm(t, seed) })
		})
	}
}

func streamStorm(t *testing.T, seed uint64) {
	ctx := t.Context()
	rng := rand.New(rand.NewPCG(seed, 1))
	s := newStorm(seed, rng)
	c, err := New(Options{TTL: 2 * time.Second, Interval: 100 * time.Millisecond, Net: s.net, Twice: s.twiceIs, Clocks: s.clock, Log: logger(), Tablet: tablet.Options{ChangeFiles: 2}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { c.Close(); time.Sleep(time.Minute) }()
	c.StartMaster("master")
	servers := []string{"server-0", "server-1", "server-2"}
	for _, name := range servers {
		if _, err := c.StartServer(ctx, name); err != nil {
			t.Fatal(err)
		}
	}
	cl, err := c.Client(ctx, "client")
	if err != nil {
		t.Fatal(err)
	}
	sch := streamed(t, cl, []byte("k3"), []byte("k6"))
	var mu sync.Mutex
	seen := map[string]int{}
	f, err := changefollow.Follow(ctx, cl, changefollow.Options{Table: tableName, Life: 1, From: stamp.At(sch.Stream.Since) - 1, Every: 300 * time.Millisecond, Cut: 61, Bad: t.Errorf,
		Record: func(r *changes.Record) {
			mu.Lock()
			defer mu.Unlock()
			for _, c := range r.Changes {
				seen[string(r.Key)+"="+string(c.Value)]++
			}
		}})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Stop()
	s.rage()
	stop := make(chan struct{})
	var working sync.WaitGroup
	acked, maybe := map[string]bool{}, map[string]bool{}
	for w := range 3 {
		mine := rand.New(rand.NewPCG(seed, uint64(10+w)))
		working.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				case <-time.After(time.Duration(mine.IntN(100)) * time.Millisecond):
				}
				key, value := fmt.Sprintf("k%d%d", mine.IntN(10), w), fmt.Sprintf("%d-%d", w, n)
				err := putValue(ctx, cl, key, value)
				mu.Lock()
				maybe[key+"="+value] = true
				if err == nil {
					acked[key+"="+value] = true
				}
				mu.Unlock()
				if err != nil && !may(err) && !errors.Is(err, rpc.ErrUnknown) {
					t.Errorf("write: %v", err)
				}
			}
		})
	}
	startDead := func() {
		for _, name := range servers {
			for n := 0; c.Server(name) == nil && n < 100; n++ {
				if _, err := c.StartServer(ctx, name); err != nil && !may(err) && fault.KindOf(err) == 0 {
					t.Errorf("start %s: %v", name, err)
				}
				time.Sleep(100 * time.Millisecond)
			}
		}
	}
	const rounds = 40
	disturbed := 0
	for range rounds {
		time.Sleep(time.Duration(rng.IntN(1500)) * time.Millisecond)
		name := servers[rng.IntN(len(servers))]
		var rows []*metadata.Row
		err := within(ctx, func(ctx context.Context) (err error) {
			rows, err = cl.Metadata().Lookup(ctx, sch.ID, nil, 50)
			return err
		})
		if err == nil && len(rows) > 0 {
			disturbed++
			of := rows[rng.IntN(len(rows))]
			_ = within(ctx, func(ctx context.Context) error {
				switch rng.IntN(6) {
				case 0:
					return cl.Split(ctx, of, fmt.Appendf(nil, "k%d", rng.IntN(100)))
				case 1:
					return cl.Merge(ctx, of)
				case 2:
					return cl.Move(ctx, of, name, false)
				case 3:
					c.KillServer(name)
					time.Sleep(time.Duration(rng.IntN(5000)) * time.Millisecond)
				case 4:
					s.pause(name, time.Duration(rng.IntN(5000))*time.Millisecond)
				case 5:
					if a := of.Assignment; a != nil && a.State == metadata.Open {
						return c.Dialer("admin").Dial(a.Addr).Flush(ctx, []metadata.TabletID{of.Tablet})
					}
				}
				return nil
			})
		}
		// Also if METADATA was not read: maybe no server is left.
		startDead()
	}
	s.calmDown()
	close(stop)
	working.Wait()
	if disturbed < rounds*3/4 {
		t.Errorf("METADATA was read in %d of %d rounds only", disturbed, rounds)
	}
	// Until then the storm may have ended a session, or a late message does.
	time.Sleep(10 * time.Second)
	startDead()
	for n := 0; ; n++ {
		for _, name := range servers {
			if c.Server(name) == nil {
				t.Fatalf("%s has died in calm weather", name)
			}
		}
		mu.Lock()
		missing := ""
		for v := range acked {
			if seen[v] == 0 {
				missing = v
			}
		}
		mu.Unlock()
		if missing == "" {
			break
		}
		if n == 2000 {
			t.Fatalf("%s, which was acknowledged, does not come: %s", missing, f.State())
		}
		time.Sleep(100 * time.Millisecond)
	}
	mu.Lock()
	defer mu.Unlock()
	for v, n := range seen {
		if n > 1 || !maybe[v] {
			t.Errorf("%s comes %d times; written: %v", v, n, maybe[v])
		}
	}
	t.Logf("%d changes acknowledged, %d partitions closed", len(acked), f.Closes())
}
