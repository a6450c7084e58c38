package recovery

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/lock/memory"
	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/datadir/datadirtest"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/tablet"
)

const gone = 7 // the incarnation of a server that is gone

var (
	log    = catalog.UserLog(gone)
	object = func(index int) string { return fmt.Sprintf("%v/%015d", log, index) }
)

// A fixture is what a server left: a log with a segment for each of some records.
type fixture struct {
	fs   *vfs.MemFS
	lock lock.Service
	logs Logs
	rows []*metadata.Row
}

type sink struct{}

func (sink) Durable(uint64) {}

// eachAlone hides what would let segments share a file.
type eachAlone struct{ objectstore.Store }

// leave writes a record of each tablet, each into a segment of its own, and has the
// tablets wait for the log.
func leave(t *testing.T, tablets ...uint64) *fixture {
	t.Helper()
	ctx := t.Context()
	f := &fixture{fs: vfs.NewMem(), lock: memory.New().Client(nil, nil)}
	store, err := objectstore.OpenLocal(f.fs, "store", objectstore.LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := commitlog.CreateSegments(ctx, &eachAlone{store}, log, commitlog.SegmentOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	known := map[uint64]bool{}
	for i, id := range tablets {
		b := tablet.NewBatch([]byte("key"))
		b.Set(0, []byte("q"), 0, []byte(strings.Repeat("value", 20)))
		room, err := w.Reserve(ctx, b.Size())
		if err == nil {
			err = w.Wait(ctx, w.Append(room, id, uint64(i+1), b, sink{}))
		}
		if err != nil {
			t.Fatal(err)
		}
		if !known[id] {
			known[id] = true
			f.rows = append(f.rows, &metadata.Row{Table: 1, Tablet: metadata.TabletID(id), Assignment: &metadata.Assignment{Log: uint64(log), State: metadata.Opening}})
		}
	}
	f.logs = Logs{Lock: f.lock, Store: store, Rows: func(_ context.Context, each func(*metadata.Row) error) error {
		for _, r := range f.rows {
			if err := each(r); err != nil {
				return err
			}
		}
		return nil
	}}
	f.put(t, catalog.LogKey(log), catalog.LogState{Server: "server-1", Frozen: true})
	return f
}

func (f *fixture) put(t *testing.T, key string, v any) {
	t.Helper()
	value, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	i, _ := f.lock.Get(t.Context(), key)
	if _, err := f.lock.Put(t.Context(), key, value, i.Version); err != nil {
		t.Fatal(err)
	}
}

// damage flips a bit in the records of a segment.
func (f *fixture) damage(t *testing.T, index int) {
	t.Helper()
	path := "store/" + object(index)
	b := datadirtest.ReadFile(t, f.fs, path)
	at := strings.Index(string(b), "valuevalue")
	if at < 0 {
		t.Fatalf("%s has no value", path)
	}
	b[at] ^= 1
	datadirtest.WriteFile(t, f.fs, path, b)
}

// TestFindLoss: what is given up of a log is what is damaged and needed, as far as it
// was named, and nothing if there may be no need.
func TestFindLoss(t *testing.T) {
	f := leave(t, 1, 2, 1, 3)
	f.rows = f.rows[:2] // tablet 3 was flushed, and is open elsewhere
	none := func(why string, log commitlog.ID, segments ...uint64) {
		t.Helper()
		l, err := f.logs.FindLoss(t.Context(), log, segments)
		if kind := fault.KindOf(err); kind != fault.FailedPrecondition && kind != fault.NotFound || !strings.Contains(err.Error(), why) {
			t.Errorf("%+v, %v, want %s", l, err, why)
		}
	}
	none("is of METADATA", catalog.MetadataLog(gone))
	none("there is no commit log", catalog.UserLog(gone+1))
	none("nothing is damaged", log)
	f.damage(t, 1)
	f.damage(t, 3)
	f.damage(t, 4)
	none("segment 2 of commit log", log, 1, 2)
	none("segment 4 of commit log", log, 4)
	f.put(t, catalog.LogKey(log), catalog.LogState{Server: "server-1"})
	none("nobody has taken tablets over", log)
	f.put(t, catalog.LogKey(log), catalog.LogState{Server: "server-1", Frozen: true})
	f.put(t, catalog.ServersPrefix+"server-1", catalog.Registration{Name: "server-1", Incarnation: gone})
	none("which lives and has in memory", log)
	f.put(t, catalog.ServersPrefix+"server-1", catalog.Registration{Name: "server-1", Incarnation: gone + 1})
	waiting := f.rows
	f.rows = nil
	none("no tablet waits", log)
	f.rows = waiting

	l, err := f.logs.FindLoss(t.Context(), log, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(l.Segments) != 2 || l.Segments[0].Object != object(1) || l.Segments[1].Object != object(3) || l.Segments[0].Lost[1] != 1 || len(l.Waiting) != 2 || l.Owner != (metadata.ServerName{Name: "server-1", Incarnation: gone}) {
		t.Errorf("%+v", l)
	}
	if l, err = f.logs.FindLoss(t.Context(), log, []uint64{1}); err != nil || len(l.Segments) != 1 || l.Segments[0].Index != 1 {
		t.Errorf("%+v, %v", l, err)
	}
}

// TestGiveUp: what is given up is no damage any more, and what else tablets wait for
// is told.
func TestGiveUp(t *testing.T) {
	f := leave(t, 1, 2)
	f.damage(t, 1)
	f.damage(t, 2)
	first, err := f.logs.FindLoss(t.Context(), log, []uint64{1})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.logs.GiveUp(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	given := []*Loss{first}
	if n, err := f.logs.CountWaiting(t.Context(), given); err != nil || n != 2 {
		t.Errorf("%d tablets wait, %v", n, err)
	}
	// Who opens tablet 2 finds the other segment.
	if err := catalog.NoteWaiting(t.Context(), f.lock, log, []catalog.WaitingTablet{{Table: "t", Tablet: 2, Object: object(2), Error: "bad"}}); err != nil {
		t.Fatal(err)
	}
	f.rows = f.rows[1:]
	if n, err := f.logs.CountWaiting(t.Context(), given); fault.KindOf(err) != fault.FailedPrecondition || n != 1 || !strings.Contains(err.Error(), "waits for segment "+object(2)+" too: bad") {
		t.Errorf("%d tablets wait, %v", n, err)
	}
	rest, err := f.logs.FindLoss(t.Context(), log, nil)
	if err != nil || len(rest.Segments) != 1 || rest.Segments[0].Index != 2 {
		t.Fatalf("the rest: %+v, %v", rest, err)
	}
	if err := f.logs.GiveUp(t.Context(), rest); err != nil {
		t.Fatal(err)
	}
	if _, err := f.logs.FindLoss(t.Context(), log, nil); fault.KindOf(err) != fault.FailedPrecondition {
		t.Errorf("something is damaged when all was given up: %v", err)
	}
	f.rows = nil
	if n, err := f.logs.CountWaiting(t.Context(), append(given, rest)); n != 0 || err != nil {
		t.Errorf("%d tablets wait, %v", n, err)
	}
}

// TestRecoverLockService: a lock service that went back gets what the newest copy has,
// when nobody is registered with it any more.
func TestRecoverLockService(t *testing.T) {
	ctx := t.Context()
	f := leave(t, 1)
	store, err := objectstore.OpenLocal(f.fs, "store", objectstore.LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s := &LockService{Lock: f.lock, SSTables: objectstore.Sub(store, "sst"), Logs: objectstore.Sub(store, "log"), Copies: objectstore.Sub(store, "etcd")}
	if cp, err := s.FindCopy(ctx); cp != nil || err != nil {
		t.Errorf("of a store without copies: %+v, %v", cp, err)
	}
	if _, err := catalog.ClaimIncarnation(ctx, f.lock); err != nil {
		t.Fatal(err)
	}
	if err := metastore.New(f.lock, nil).CAS(ctx, &metadata.Row{Table: metastore.Table, Tablet: 1}); err != nil {
		t.Fatal(err)
	}
	f.put(t, catalog.RecordsPrefix+"r", "kept")
	if err := (&catalog.Copier{Lock: f.lock, Store: s.Copies}).Take(ctx, time.Now()); err != nil {
		t.Fatal(err)
	}
	if cp, err := s.FindCopy(ctx); cp != nil || err != nil {
		t.Errorf("of a lock service that is not older: %+v, %v", cp, err)
	}
	s.Lock = memory.New().Client(nil, nil) // an empty one
	f.lock = s.Lock
	for key, why := range map[string]string{catalog.ServersPrefix + "server-1": "tablet server server-1 is registered", catalog.MasterKey: "a master is registered"} {
		f.put(t, key, catalog.Registration{Name: "server-1", Incarnation: 1})
		if _, err := s.FindCopy(ctx); fault.KindOf(err) != fault.FailedPrecondition || !strings.Contains(err.Error(), why) {
			t.Errorf("%v, want %s", err, why)
		}
		i, err := f.lock.Get(ctx, key)
		if err == nil {
			err = f.lock.Delete(ctx, key, i.Version)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	cp, err := s.FindCopy(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.lock.Get(ctx, catalog.RecordsPrefix+"r"); fault.KindOf(err) != fault.NotFound {
		t.Errorf("FindCopy has changed the lock service: %v", err)
	}
	if err := s.Restore(ctx, cp); err != nil {
		t.Fatal(err)
	}
	if i, err := f.lock.Get(ctx, catalog.RecordsPrefix+"r"); err != nil || string(i.Value) != `"kept"` {
		t.Errorf("%s, %v", i.Value, err)
	}
	if cp, err := s.FindCopy(ctx); cp != nil || err != nil {
		t.Errorf("of a lock service that was recovered: %+v, %v", cp, err)
	}
}
