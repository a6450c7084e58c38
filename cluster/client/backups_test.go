package client_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/objstorage"

	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

// unevenStore takes longer for each object than a backup may hold up writes, once slow is
// set.
type unevenStore struct {
	objectstore.Store
	slow atomic.Bool
}

func (s *unevenStore) Create(ctx context.Context, name string) (objstorage.Writable, error) {
	if s.slow.Load() && strings.HasPrefix(name, "sst/") {
		time.Sleep(1200 * time.Millisecond)
	}
	return s.Store.Create(ctx, name)
}

// TestBackupOfUnevenServers: a table that is written to all the time has a backup of one
// instant, though one of its servers takes longer for a flush than writes may be held up.
func TestBackupOfUnevenServers(t *testing.T) {
	n := newNetwork(t, 1)
	slow := &unevenStore{Store: n.objects}
	n.objects = slow
	n.start("server-2", "127.0.0.1:0")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	c := n.client()
	sch, err := c.CreateTable(ctx, &schema.Table{Name: table, Granularity: 1000, Families: map[string]schema.Family{"f": {Name: "f"}}}, [][]byte{[]byte("m")})
	if err != nil {
		t.Fatal(err)
	}
	for i, at := range []string{"a", "z"} {
		eventually(t, func() error { return c.MoveAt(ctx, sch.Name, []byte(at), fmt.Sprintf("server-%d", i+1)) })
	}
	var done sync.WaitGroup
	stop := make(chan struct{})
	written := make(chan struct{})
	done.Go(func() {
		for i := 1; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			for _, key := range []string{"a", "z"} {
				set := row.Mutation{Op: row.SetCell, Family: "f", Timestamp: 1000, Value: fmt.Append(nil, i)}
				if err := c.MutateRow(t.Context(), sch.Name, &row.Entry{Key: []byte(key), Mutations: []row.Mutation{set}}); err != nil {
					t.Error(err)
					return
				}
			}
			if i == 1 {
				close(written)
			}
		}
	})
	defer done.Wait()
	defer close(stop)
	select {
	case <-written:
	case <-ctx.Done():
		t.Fatal("nothing can be written")
	}
	slow.slow.Store(true)
	b, err := c.CreateBackup(ctx, sch.Name, &schema.Backup{Name: restoreParent + "/clusters/c/backups/b", ExpireTime: time.Now().Add(time.Hour)})
	slow.slow.Store(false)
	if err != nil {
		t.Fatal(err)
	}
	to := restoreParent + "/tables/u"
	if _, err := c.RestoreTable(ctx, b.Name, to, func(*schema.Table) error { return nil }); err != nil {
		t.Fatal(err)
	}
	held := map[string]int64{}
	for cell := range strings.Lines(cellsOf(t, c, to)) {
		key, hex, _ := strings.Cut(strings.TrimSpace(cell), " f:@1000=")
		var text []byte
		if _, err := fmt.Sscanf(hex, "%x", &text); err != nil {
			t.Fatalf("cell %q: %v", cell, err)
		}
		if held[key], err = strconv.ParseInt(string(text), 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	// A write of z follows each of a.
	if z := held["z"]; z == 0 || held["a"] != z && held["a"] != z+1 {
		t.Errorf("the backup holds %v", held)
	}
}
