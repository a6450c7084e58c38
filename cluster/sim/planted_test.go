//go:build sim

package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
)

// A takeover is a cluster in which server-1 loses its tablet to server-2 though
// it lives: the lock service forgets it, as a careless operator might make it.
// METADATA is on server-0.
type takeover struct {
	*Cluster
	t      *testing.T
	client *client.Client
	tablet metadata.TabletID
	log    commitlog.ID // of server-1
	armed  atomic.Bool
}

func (k *takeover) start(o Options) {
	k.t.Helper()
	o.TTL, o.Interval, o.Log = 2*time.Second, 100*time.Millisecond, logger()
	c, err := New(o)
	if err != nil {
		k.t.Fatal(err)
	}
	k.Cluster = c
	ctx := k.t.Context()
	c.StartMaster("master")
	run := func(name string) {
		if _, err := c.StartServer(ctx, name); err != nil {
			k.t.Fatal(err)
		}
	}
	run("server-0")
	if k.client, err = c.Client(ctx, "client"); err != nil {
		k.t.Fatal(err)
	}
	sch, err := k.client.CreateTable(ctx, &schema.Table{Name: tableName, Granularity: 1000, Families: map[string]schema.Family{"a": {Name: "a"}}}, nil)
	if err != nil {
		k.t.Fatal(err)
	}
	run("server-1")
	rows, err := k.client.Metadata().Lookup(ctx, sch.ID, nil, 1)
	if err != nil {
		k.t.Fatal(err)
	}
	k.tablet, k.log = rows[0].Tablet, catalog.UserLog(c.Server("server-1").Incarnation())
	if err := c.want(ctx, "admin", k.tablet, "server-1"); err != nil {
		k.t.Fatal(err)
	}
	k.on(sch.ID, "server-1")
	run("server-2")
}

// on waits until the tablet is on a server.
func (k *takeover) on(table uint64, server string) {
	for range 1000 {
		rows, err := k.client.Metadata().Lookup(k.t.Context(), table, nil, 1)
		if err == nil && rows[0].Assignment.State == metadata.Open && rows[0].Assignment.Server == server {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	k.t.Fatalf("the tablet does not come to %s", server)
}

// forget makes the lock service forget server-1.
func (k *takeover) forget() {
	k.t.Helper()
	l := k.Lock("admin")
	i, err := l.Get(k.t.Context(), catalog.ServersPrefix+"server-1")
	if err == nil {
		err = l.Delete(k.t.Context(), i.Key, i.Version)
	}
	if err != nil {
		k.t.Fatal(err)
	}
}

// write writes a row by server-1 itself, whoever serves it by METADATA. What it
// returns becomes true if the write is acknowledged.
func (k *takeover) write(key string) *atomic.Bool {
	acked := new(atomic.Bool)
	s := k.Server("server-1")
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		err := s.MutateRow(ctx, rpc.Target{Tablet: k.tablet, Schema: 1}, &row.Entry{Key: []byte(key),
			Mutations: []row.Mutation{{Op: row.SetCell, Family: "a", Timestamp: 1000, Value: []byte("v")}}})
		acked.Store(err == nil)
	}()
	time.Sleep(50 * time.Millisecond)
	return acked
}

// has tells whether the cluster has a row. A tablet that cannot be opened, for a
// log that is not whole, has none.
func (k *takeover) has(key string) bool {
	w := new(collector)
	if _, err := k.client.ReadRows(k.t.Context(), &scan.Request{Table: tableName, Ranges: []row.Range{row.Single([]byte(key))}}, w); err != nil {
		k.t.Log(err)
		return false
	}
	return len(w.keys) > 0
}

// A slowStore may hold up the segments of a log.
type slowStore struct {
	objectstore.Store
	put func(ctx context.Context, name string, do func() error) error
}

func (s *slowStore) PutIfAbsent(ctx context.Context, name string, data []byte) error {
	return s.put(ctx, name, func() error { return s.Store.PutIfAbsent(ctx, name, data) })
}

// A frozenLock may hold up or skip the freezing of a log.
type frozenLock struct {
	lock.Service
	freeze func(do func() (int64, error)) (int64, error)
}

func (l *frozenLock) Put(ctx context.Context, key string, value []byte, version int64) (int64, error) {
	do := func() (int64, error) { return l.Service.Put(ctx, key, value, version) }
	var state catalog.LogState
	if strings.HasPrefix(key, catalog.LogsPrefix) && json.Unmarshal(value, &state) == nil && state.Frozen {
		return l.freeze(do)
	}
	return do()
}

// lyingDialer answers, while it is armed, that METADATA rows were changed, and
// changes none.
type lyingDialer struct {
	rpc.Dialer
	armed *atomic.Bool
}

type lyingServer struct {
	rpc.TabletServer
	armed *atomic.Bool
}

func (d lyingDialer) Dial(addr string) rpc.TabletServer {
	return lyingServer{d.Dialer.Dial(addr), d.armed}
}

func (s lyingServer) CheckAndMutateRow(ctx context.Context, at rpc.Target, key []byte, predicate *filter.Node, then, otherwise []row.Mutation) (bool, error) {
	if s.armed.Load() {
		return true, nil
	}
	return s.TabletServer.CheckAndMutateRow(ctx, at, key, predicate, then, otherwise)
}

// TestI1_SealRules: each rule by which logs are sealed matters in a cluster. With
// the rule broken an acknowledged write is lost, as these tests are able to
// tell; with the rule kept none is.
func TestI1_SealRules(t *testing.T) {
	const second = "trimming is frozen before the log is sealed"
	rules := map[string]func(k *takeover, broken bool) (lost bool){
		// A segment is said to be stored while it is on its way, so the one after it
		// is acknowledged.
		"acknowledged in the order of indexes": func(k *takeover, broken bool) bool {
			var held atomic.Bool
			k.start(Options{
				Segments: commitlog.SegmentOptions{CommitInterval: time.Millisecond, InFlight: 4},
				WrapStore: func(node string, s objectstore.Store) objectstore.Store {
					if node != "server-1" {
						return s
					}
					return &slowStore{s, func(ctx context.Context, name string, do func() error) error {
						if !k.armed.Load() || !strings.HasPrefix(name, k.log.String()) || !held.CompareAndSwap(false, true) {
							return do()
						}
						if broken {
							return nil
						}
						time.Sleep(8 * time.Second)
						return do()
					}}
				}})
			k.armed.Store(true)
			k.write("held")
			acked := k.write("next")
			k.forget()
			time.Sleep(5 * time.Second)
			return acked.Load() && !k.has("next")
		},
		// A segment arrives long after its log was sealed, and collected.
		"the fence is never deleted": func(k *takeover, broken bool) bool {
			k.start(Options{WrapStore: func(node string, s objectstore.Store) objectstore.Store {
				if node != "server-1" {
					return s
				}
				return &slowStore{s, func(ctx context.Context, name string, do func() error) error {
					if k.armed.Load() && strings.HasPrefix(name, k.log.String()) {
						time.Sleep(8 * time.Second)
					}
					return do()
				}}
			}})
			k.armed.Store(true)
			acked := k.write("late")
			k.forget()
			time.Sleep(5 * time.Second)
			ctx := k.t.Context()
			if k.has("late") {
				k.t.Error("a row that was not stored yet")
			}
			if err := commitlog.TrimSealed(ctx, k.objects, k.log, commitlog.Pos{Log: k.log, Segment: math.MaxUint64}); err != nil {
				k.t.Fatal(err)
			}
			if broken {
				infos, err := k.objects.List(ctx, k.log.String()+"/", "", 0)
				if err != nil || len(infos) == 0 {
					k.t.Fatal("no fence", err)
				}
				for _, i := range infos {
					if err := k.objects.Delete(ctx, i.Name); err != nil {
						k.t.Fatal(err)
					}
				}
			}
			time.Sleep(10 * time.Second)
			return acked.Load() && !k.has("late")
		},
		// The owner does not learn that its METADATA row is no longer its, and trims
		// what it believes to have flushed.
		"who has lost a tablet trims no more": func(k *takeover, broken bool) bool {
			k.start(Options{
				WrapLock: func(node string, l lock.Service) lock.Service {
					if node != "server-2" {
						return l
					}
					return &frozenLock{l, func(do func() (int64, error)) (int64, error) {
						if k.armed.Load() {
							time.Sleep(8 * time.Second)
						}
						return do()
					}}
				},
				WrapDialer: func(node string, d rpc.Dialer) rpc.Dialer {
					if node == "server-1" && broken {
						return lyingDialer{d, &k.armed}
					}
					return d
				}})
			acked := k.write("kept")
			k.armed.Store(true)
			k.forget()
			s := k.Server("server-1")
			time.Sleep(time.Second)
			if err := s.Flush(k.t.Context(), []metadata.TabletID{k.tablet}); err == nil != broken {
				k.t.Errorf("flush of a lost tablet: %v", err)
			}
			k.armed.Store(false)
			time.Sleep(20 * time.Second)
			return acked.Load() && !k.has("kept")
		},
		// The log is sealed without freezing how far it is trimmed, and trimmed when
		// that was read. That alone loses nothing: the newest acknowledged segment
		// stays, and says that those before it were. The log's own tests break both.
		second: func(k *takeover, broken bool) bool {
			k.start(Options{
				WrapLock: func(node string, l lock.Service) lock.Service {
					if node != "server-2" {
						return l
					}
					return &frozenLock{l, func(do func() (int64, error)) (int64, error) {
						if broken {
							time.Sleep(6 * time.Second)
							return 1, nil
						}
						defer time.Sleep(6 * time.Second)
						return do()
					}}
				}})
			k.write("first")
			if err := k.Server("server-1").Flush(k.t.Context(), []metadata.TabletID{k.tablet}); err != nil {
				k.t.Fatal(err)
			}
			acked := k.write("second")
			k.forget()
			time.Sleep(20 * time.Second)
			return acked.Load() && !k.has("second")
		},
	}
	for name, rule := range rules {
		for _, broken := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/broken=%v", name, broken), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					k := &takeover{t: t}
					defer func() {
						if k.Cluster != nil {
							k.Close()
						}
						time.Sleep(time.Minute)
					}()
					if lost := rule(k, broken); lost != (broken && name != second) {
						t.Errorf("an acknowledged write was lost: %v", lost)
					}
				})
			})
		}
	}
}
