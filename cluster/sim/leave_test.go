package sim

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/objstorage"

	"github.com/trestledb/trestle/engine/objectstore"
)

var leaving = []string{"server-1", "server-2", "server-3"}

// A lateStore begins each SSTable late, unless its server is the quick one.
type lateStore struct {
	objectstore.Store
	node  string
	quick *string
	late  time.Duration
}

func (s lateStore) Create(ctx context.Context, name string) (objstorage.Writable, error) {
	if *s.quick != "" && s.node != *s.quick {
		time.Sleep(s.late)
	}
	return s.Store.Create(ctx, name)
}

// busyServers starts three servers with tablets to flush at each. That one which
// has METADATA, whose name is returned, is the first to have given up its own.
func busyServers(t *testing.T) (c *Cluster, metadata string) {
	t.Helper()
	quick := new(string)
	c = start(t, Options{WrapStore: func(node string, s objectstore.Store) objectstore.Store {
		return lateStore{s, node, quick, 300 * time.Millisecond}
	}}, len(leaving))
	b := clientOf(t, c, "client")
	rows := []string{"a", "d", "h", "m", "p", "t"}
	create(t, b, upkeepTable, rows[1:]...)
	for i, r := range rows {
		if err := b.MoveAt(t.Context(), upkeepTable, []byte(r), leaving[i%len(leaving)]); err != nil {
			t.Fatal(err)
		}
		put(t, b, upkeepTable, r, strings.Repeat("v", 100))
	}
	all, err := b.Tablets(t.Context(), "METADATA")
	if err != nil || len(all) != 1 {
		t.Fatalf("%d METADATA tablets, %v", len(all), err)
	}
	*quick = all[0].Server
	return c, all[0].Server
}

// stopAll ends all servers at once, and tells of those that do not end in order.
func stopAll(t *testing.T, c *Cluster, names ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var stops sync.WaitGroup
	for _, name := range leaving {
		stops.Go(func() {
			if err := c.StopServer(ctx, name); err != nil && slices.Contains(names, name) {
				t.Errorf("stop %s: %v", name, err)
			}
		})
	}
	stops.Wait()
}

// TestStopAll: when all servers of a cluster are told to stop at once, each gives
// up its tablets in order, and the one with METADATA stays until they have.
func TestStopAll(t *testing.T) {
	c, _ := busyServers(t)
	stopAll(t, c, leaving...)
	if t.Failed() {
		return
	}
	for _, name := range leaving {
		if _, err := c.StartServer(t.Context(), "new-"+name); err != nil {
			t.Fatal(err)
		}
	}
	b := clientOf(t, c, "another client")
	all, err := b.Tablets(t.Context(), "u")
	if err != nil || len(all) != 6 {
		t.Fatalf("%d tablets, %v", len(all), err)
	}
	if got := contents(t, b, upkeepTable); len(got) != 6 {
		t.Errorf("rows %v", got)
	}
}

// TestStopWithoutMetadata: servers that end do not wait for METADATA when it is
// gone for good.
func TestStopWithoutMetadata(t *testing.T) {
	c, metadata := busyServers(t)
	time.AfterFunc(100*time.Millisecond, func() { c.KillServer(metadata) })
	stopAll(t, c, slices.DeleteFunc(slices.Clone(leaving), func(name string) bool { return name == metadata })...)
}
