//go:build sim

package sim

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/objstorage"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/schema"
)

// swept waits until every object is named.
func swept(t *testing.T, c *Cluster, b *client.Client) {
	t.Helper()
	eventually(t, func() error {
		others, err := I7(t, c, b)
		if err != nil {
			t.Fatal(err)
		}
		if others > 0 {
			return fmt.Errorf("%d objects are left that nothing names", others)
		}
		return nil
	})
}

// TestI7_Sweep: what compactions, dead servers and deleted backups leave behind is
// deleted, what backups and tables share is not, and of logs the fence stays.
func TestI7_Sweep(t *testing.T) { synctest.Test(t, sweepRun) }

func sweepRun(t *testing.T) {
	t.Cleanup(func() { time.Sleep(time.Minute) }) // what a cluster leaves behind ends
	ctx := context.Background()
	c := start(t, upkeep(), 3)
	b := clientOf(t, c, "client")
	sch := create(t, b, upkeepTable, "h", "p")
	want := map[string]string{}
	for i := range 60 {
		k := fmt.Sprintf("%c%d", 'a'+i%26, i)
		put(t, b, upkeepTable, k, "old")
		want[k] = "old"
	}
	const backup = "projects/p/instances/i/clusters/c/backups/b"
	made, err := b.CreateBackup(ctx, upkeepTable, &schema.Backup{Name: backup})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		for k := range want {
			put(t, b, upkeepTable, k, "new")
		}
		everyTablet(t, c, b, sch.ID, func(s rpc.TabletServer, r *metadata.Row) error { return s.Compact(ctx, []metadata.TabletID{r.Tablet}) })
	}
	// A segment and a fence of a log that is no more.
	gone := catalog.UserLog(1 << 20)
	for i, size := range []int{100, 64} {
		if err := c.objects.PutIfAbsent(ctx, fmt.Sprintf("%v/%015d", gone, i+1), make([]byte, size)); err != nil {
			t.Fatal(err)
		}
	}
	// One server dies with rows in memory.
	put(t, b, upkeepTable, "a0", "last")
	dead := c.Server("server-1").Incarnation()
	c.KillServer("server-1")
	// What the dead one wrote, and what servers that live wrote and forgot.
	swept(t, c, b)
	eventually(t, func() error {
		logs, err := catalog.Logs(ctx, c.Lock("test"))
		if err != nil {
			return err
		}
		for _, id := range []commitlog.ID{catalog.UserLog(dead), catalog.MetadataLog(dead)} {
			if _, ok := logs[id]; ok {
				return fmt.Errorf("log %v still has an item", id)
			}
			objects, err := c.objects.List(ctx, id.String()+"/", "", 0)
			if err != nil || len(objects) != 1 {
				t.Fatalf("of log %v there are %d objects, %v: want its fence", id, len(objects), err)
			}
		}
		return nil
	})
	eventually(t, func() error {
		objects, err := c.objects.List(ctx, gone.String()+"/", "", 0)
		if err == nil && (len(objects) != 1 || objects[0].Size != 64) {
			err = fmt.Errorf("of a log without an item there is %v", objects)
		}
		return err
	})
	if got := contents(t, b, upkeepTable); got["a0"] != "last" || got["b1"] != "new" || len(got) != len(want) {
		t.Errorf("the table holds %v", got)
	}
	const restored = "projects/p/instances/i/tables/r"
	if _, err := b.RestoreTable(ctx, backup, restored, func(*schema.Table) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if err := b.DeleteBackup(ctx, backup); err != nil {
		t.Fatal(err)
	}
	if err := b.Metadata().Scan(ctx, func(r *metadata.Row) error {
		if r.Table == catalog.BackupTable(made.ID) {
			return fmt.Errorf("row %q of the deleted backup is left", r.End)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	time.Sleep(300 * time.Millisecond)
	if _, err := I7(t, c, b); err != nil {
		t.Error(err)
	}
	if got := contents(t, b, restored); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the restored table holds %v", got)
	}
	// The check finds a deletion that is wrong.
	for name := range named(t, b) {
		if err := c.objects.Delete(ctx, name); err != nil {
			t.Fatal(err)
		}
		break
	}
	if _, err := I7(t, c, b); err == nil {
		t.Error("an object that is named was deleted, and nobody noticed")
	}
}

// tardyStore lets time pass, if late says so, when an object has been written and
// nobody knows yet.
type tardyStore struct {
	objectstore.Store
	late *atomic.Int64
}

type tardyObject struct {
	objstorage.Writable
	late *atomic.Int64
}

func (s tardyStore) Create(ctx context.Context, name string) (objstorage.Writable, error) {
	w, err := s.Store.Create(ctx, name)
	return tardyObject{w, s.late}, err
}

func (w tardyObject) Finish() error {
	err := w.Writable.Finish()
	time.Sleep(time.Duration(w.late.Load()))
	return err
}

// TestI7_SweepSparesWhatIsToBeNamed: an object that a compaction has written, and
// has not named for many passes, is not taken for one that nothing names.
func TestI7_SweepSparesWhatIsToBeNamed(t *testing.T) { synctest.Test(t, spareRun) }

func spareRun(t *testing.T) {
	t.Cleanup(func() { time.Sleep(time.Minute) }) // what a cluster leaves behind ends
	ctx := context.Background()
	var late atomic.Int64
	o := upkeep()
	o.WrapStore = func(_ string, s objectstore.Store) objectstore.Store { return tardyStore{s, &late} }
	c := start(t, o, 2)
	b := clientOf(t, c, "client")
	sch := create(t, b, upkeepTable, "m")
	late.Store(int64(time.Second))
	for i := range 3 {
		put(t, b, upkeepTable, "a", fmt.Sprint(i))
		put(t, b, upkeepTable, "z", fmt.Sprint(i))
		everyTablet(t, c, b, sch.ID, func(s rpc.TabletServer, r *metadata.Row) error { return s.Compact(ctx, []metadata.TabletID{r.Tablet}) })
		if _, err := I7(t, c, b); err != nil {
			t.Fatal(err)
		}
	}
	late.Store(0)
	swept(t, c, b)
	if got := contents(t, b, upkeepTable); got["a"] != "2" || got["z"] != "2" {
		t.Errorf("the table holds %v", got)
	}
}
