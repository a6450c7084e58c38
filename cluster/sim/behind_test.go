package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
)

// behindLock is the lock service of a node which is told nothing of changes of
// tables. It counts what the node reads of them.
type behindLock struct {
	lock.Service
	reads    *atomic.Int64
	register func() // called before a session holds a server's name
}

func (l behindLock) Watch(ctx context.Context, prefix string, revision int64, each func(lock.Event) error) error {
	if prefix == catalog.TablesPrefix {
		<-ctx.Done()
		return ctx.Err()
	}
	return l.Service.Watch(ctx, prefix, revision, each)
}

func (l behindLock) Get(ctx context.Context, key string) (lock.Item, error) {
	l.count(key)
	return l.Service.Get(ctx, key)
}

func (l behindLock) List(ctx context.Context, prefix string) ([]lock.Item, int64, error) {
	l.count(prefix)
	return l.Service.List(ctx, prefix)
}

func (l behindLock) count(key string) {
	if l.reads != nil && strings.HasPrefix(key, catalog.TablesPrefix) {
		l.reads.Add(1)
	}
}

func (l behindLock) NewSession(ctx context.Context, ttl time.Duration) (lock.Session, error) {
	s, err := l.Service.NewSession(ctx, ttl)
	return behindSession{s, l.register}, err
}

type behindSession struct {
	lock.Session
	register func()
}

func (s behindSession) Hold(ctx context.Context, key string, value []byte) (lock.Item, error) {
	if s.register != nil && strings.HasPrefix(key, catalog.ServersPrefix) {
		s.register()
	}
	return s.Session.Hold(ctx, key, value)
}

// behind makes the nodes of these names learn of no change of tables.
func behind(l behindLock, names ...string) func(string, lock.Service) lock.Service {
	return func(node string, s lock.Service) lock.Service {
		for _, n := range names {
			if n == node {
				l.Service = s
				return l
			}
		}
		return s
	}
}

func addFamily(name string) func(*schema.Table) error {
	return func(t *schema.Table) error {
		t.Families[name] = schema.Family{Name: name}
		t.AddFamily(t.Families[name])
		return nil
	}
}

func setIn(family, key string) row.Entry {
	return row.Entry{Key: []byte(key), Mutations: []row.Mutation{{Op: row.SetCell, Family: family, Qualifier: []byte("q"), Timestamp: 1000, Value: []byte("v")}}}
}

// TestAsksBeforeNotFound: what one gateway has acknowledged is there for
// another one that has not heard of it: a table, one that was made anew under
// the name of another, and a family.
func TestAsksBeforeNotFound(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	c := start(t, Options{WrapLock: behind(behindLock{}, "behind")}, 2)
	admin, b := clientOf(t, c, "admin"), clientOf(t, c, "behind")
	const name = upkeepTable
	for round := range 3 {
		create(t, admin, name, "m")
		switch round {
		case 0: // it is asked for by name
			if sch, err := b.Table(ctx, name); err != nil || sch.Name != name {
				t.Fatal(sch, err)
			}
			put(t, b, name, "a", "v")
		case 1: // its servers say that the one that is known is not there
			put(t, b, name, "a", "v")
		case 2:
			entries := []row.Entry{setIn("f", "a"), setIn("f", "x")}
			if err := b.MutateRows(ctx, name, entries, func(i int, err error) {
				if err != nil {
					t.Errorf("entry %d: %v", i, err)
				}
			}); err != nil {
				t.Fatal(err)
			}
		}
		if got := contents(t, b, name); got["a"] != "v" {
			t.Errorf("round %d: the table holds %v", round, got)
		}
		if _, err := admin.UpdateTable(ctx, name, addFamily("g")); err != nil {
			t.Fatal(err)
		}
		if e := setIn("g", "b"); round != 1 {
			if err := b.MutateRow(ctx, name, &e); err != nil {
				t.Errorf("a family that was made elsewhere: %v", err)
			}
		}
		if err := admin.DeleteTable(ctx, name); err != nil {
			t.Fatal(err)
		}
	}
	create(t, admin, name)
	if got := contents(t, b, name); len(got) != 0 {
		t.Errorf("a table that was made anew holds %v", got)
	}
	e := setIn("g", "b")
	if err := b.MutateRow(ctx, name, &e); !errors.Is(err, fault.NotFound) {
		t.Errorf("a family that is not there: %v", err)
	}
	if _, err := b.Table(ctx, name+"none"); !errors.Is(err, fault.NotFound) {
		t.Errorf("a table that is not there: %v", err)
	}
	if _, err := b.Tablets(ctx, "none"); !errors.Is(err, fault.NotFound) {
		t.Errorf("a table that is not there, for an operator: %v", err)
	}
	create(t, admin, name+"last")
	if ts, err := b.Tablets(ctx, name[strings.LastIndexByte(name, '/')+1:]+"last"); err != nil || len(ts) != 1 {
		t.Errorf("a table for an operator: %v, %v", ts, err)
	}
}

// TestTableIDsAreFresh: a gateway that has not heard of a table counts it among
// those that are there. Else it would delete the policies and views of the table as
// those of none.
func TestTableIDsAreFresh(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	c := start(t, Options{WrapLock: behind(behindLock{}, "behind")}, 1)
	admin, b := clientOf(t, c, "admin"), clientOf(t, c, "behind")
	create(t, admin, upkeepTable)
	want, err := admin.Table(ctx, upkeepTable)
	if err != nil {
		t.Fatal(err)
	}
	ids, err := b.TableIDs(ctx)
	if err != nil || !slices.Contains(ids, want.ID) {
		t.Errorf("%v, %v; want %d among them", ids, err, want.ID)
	}
}

// TestMissesAreBounded: however many call for tables that are not there, the
// lock service is asked once every 20 ms, for at most 16 names one by one.
func TestMissesAreBounded(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	var reads atomic.Int64
	c := start(t, Options{WrapLock: behind(behindLock{reads: &reads}, "behind")}, 1)
	b := clientOf(t, c, "behind")
	for _, names := range []int64{1, 64} {
		reads.Store(0)
		var calls atomic.Int64
		began := time.Now()
		var callers sync.WaitGroup
		for i := range int64(64) {
			callers.Go(func() {
				for time.Since(began) < time.Second {
					if _, err := b.Table(ctx, fmt.Sprint(upkeepTable, i%names)); !errors.Is(err, fault.NotFound) {
						t.Error(err)
					}
					calls.Add(1)
				}
			})
		}
		callers.Wait()
		// A question every 20 ms, and one that is under way. More than 16 names cost
		// one read; but a busy machine may let fewer callers reach a question.
		most := (int64(time.Since(began)/(20*time.Millisecond)) + 2) * min(names, 16)
		if n := reads.Load(); n > most || n < 1 || calls.Load() < 64 {
			t.Errorf("%d calls for %d tables that are not there made %d reads of the lock service", calls.Load(), names, n)
		}
		t.Logf("%d names: %d calls, %d reads", names, calls.Load(), reads.Load())
	}
}

// TestNewServerKnowsSchemas: a tablet server judges by what was acknowledged
// before it was registered, though nobody has waited for it and its watch is
// late.
func TestNewServerKnowsSchemas(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	var once sync.Once
	changed := func() {}
	c := start(t, Options{TTL: time.Second, WrapLock: behind(behindLock{register: func() { once.Do(changed) }}, "late", "behind")}, 1)
	admin, b := clientOf(t, c, "admin"), clientOf(t, c, "behind")
	create(t, admin, upkeepTable)
	put(t, b, upkeepTable, "a", "v") // it knows this schema and no later one
	changed = func() {
		if _, err := admin.UpdateTable(ctx, upkeepTable, addFamily("g")); err != nil {
			t.Error(err)
		}
	}
	if _, err := c.StartServer(ctx, "late"); err != nil {
		t.Fatal(err)
	}
	c.KillServer("server-1")
	e := setIn("g", "b")
	if err := b.MutateRow(ctx, upkeepTable, &e); err != nil {
		t.Error(err)
	}
}

// TestNewOwnerKnowsSchemas: the server that a tablet of a dead one goes to judges by all that
// the dead one did, though no call has waited for it and its watch is late.
func TestNewOwnerKnowsSchemas(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	c := start(t, Options{TTL: time.Second, WrapLock: behind(behindLock{}, "behind")}, 1)
	admin := clientOf(t, c, "admin")
	create(t, admin, upkeepTable)
	put(t, admin, upkeepTable, "b", "v") // it is served
	s, err := c.StartServer(ctx, "behind")
	if err != nil {
		t.Fatal(err)
	}
	l := c.Lock("admin")
	n, version, err := catalog.ReadName(ctx, l, upkeepTable)
	if err != nil {
		t.Fatal(err)
	}
	n[0].Table = n.Live().Clone()
	n[0].Version++
	n[0].AddFamily(schema.Family{Name: "g"})
	if _, err := catalog.WriteName(ctx, l, upkeepTable, n, version); err != nil {
		t.Fatal(err)
	}
	e := setIn("g", "a")
	calls, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	if err := admin.MutateRow(calls, upkeepTable, &e); err != nil {
		t.Fatal(err)
	}
	if table, err := s.Schemas().ByID(n[0].ID); err != nil || table.Schema().Version >= n[0].Version {
		t.Fatal("the server is not behind", err)
	}
	c.KillServer("server-1")
	w := &pairs{out: map[string]string{}}
	if _, err := admin.ReadRows(calls, &scan.Request{Table: upkeepTable, Ranges: []row.Range{row.All}}, w); err != nil || w.out["a"] != "v" {
		t.Errorf("after the other server took over: %v, %v", w.out, err)
	}
}
