package standalone

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/cluster/views"
	"github.com/trestledb/trestle/cluster/views/viewstest"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/datadir/datadirtest"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/logtest"
	"github.com/trestledb/trestle/engine/matview"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/tablet"
)

// fill writes rows, each of a group of its own with a long name, so that a pass over them has
// many batches.
func (w *viewWorld) fill(rows int) {
	w.t.Helper()
	w.put(rows, func(i int) row.Mutation { return w.set(viewstest.Group, fmt.Appendf(nil, "group%04000d", i)) })
}

// put makes rows of a cell each.
func (w *viewWorld) put(rows int, cell func(i int) row.Mutation) {
	w.t.Helper()
	entries := make([]row.Entry, rows)
	for i := range entries {
		entries[i] = row.Entry{Key: fmt.Appendf(nil, "row%05d", i), Mutations: []row.Mutation{cell(i)}}
	}
	if err := w.s.MutateRows(w.t.Context(), table, entries, func(i int, err error) {
		if err != nil {
			w.t.Errorf("row %d: %v", i, err)
		}
	}); err != nil {
		w.t.Fatal(err)
	}
}

// forgetful is the cluster of workers, which keeps changes from before a look at all rows until
// some batches have been stored.
type forgetful struct {
	troubled
	stored atomic.Int64
	mu     sync.Mutex
	begun  map[cell.Seq]int64 // how many batches were stored at a stamp
	looks  atomic.Int64
}

func (f *forgetful) ChangesBegin(ctx context.Context, table string, within row.Range) ([]views.Begin, error) {
	b, err := f.Cluster.ChangesBegin(ctx, table, within)
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range b {
		f.begun[b[i].Stamp] = f.stored.Load()
	}
	return b, err
}

func (f *forgetful) ReadChanges(ctx context.Context, req *changes.Request, w changes.Writer) (*changes.Close, error) {
	f.mu.Lock()
	begun, ok := f.begun[req.From.Through]
	f.mu.Unlock()
	if ok && f.stored.Load()-begun > 4 {
		return nil, &fault.Error{Kind: fault.OutOfRange, Reason: changes.ExpiredReason, Msg: "changes are kept no longer"}
	}
	return f.Cluster.ReadChanges(ctx, req, w)
}

// TestViewLongLook: a look at all rows may take longer than changes are kept, goes on after a
// crash where it was, and has what is written and deleted meanwhile, before and behind where
// it is.
func TestViewLongLook(t *testing.T) {
	f := &forgetful{begun: map[cell.Seq]int64{}}
	var w *viewWorld
	crash := make(chan struct{})
	var once sync.Once
	w = newViewWorld(t, views.Options{Cluster: f, Turn: time.Nanosecond, SaveEvery: time.Nanosecond, Step: func(_ *tablet.Tablet, step string) error {
		switch step {
		case "position taken":
			f.looks.Add(1)
		case "stored":
			f.stored.Add(1)
			late := row.Mutation{Op: row.SetCell, Family: viewstest.Family, Qualifier: viewstest.Group, Timestamp: 9000, Value: []byte("late")}
			for _, key := range []string{"row00001", "row00398"} {
				if err := w.client.Load().MutateRow(context.Background(), table, &row.Entry{Key: []byte(key), Mutations: []row.Mutation{late}}); err != nil {
					return err
				}
			}
		case "position noted":
			if f.stored.Load() >= 5 {
				once.Do(func() { close(crash) })
			}
		}
		return nil
	}})
	defer func() { w.close() }()
	w.fill(400)
	w.create()
	<-crash
	w.crash()
	w.check()
	if n := f.looks.Load(); n != 1 {
		t.Errorf("%d looks at all rows were begun", n)
	}
	if n := f.stored.Load(); n < 9 {
		t.Errorf("%d batches were stored: the test needs more", n)
	}
}

// stuckOne is the cluster of workers, in which one of two views cannot be written to.
type stuckOne struct {
	troubled
	view string
	now  atomic.Bool
}

func (s *stuckOne) ApplyView(ctx context.Context, view string, life uint64, rows []rpc.ViewRow) error {
	if s.now.Load() && view == s.view {
		return fault.New(fault.Unavailable, "not now")
	}
	return s.Cluster.ApplyView(ctx, view, life, rows)
}

// TestViewStuckLook: a view that cannot be written to while it is built does not keep others
// from being built.
func TestViewStuckLook(t *testing.T) {
	s := &stuckOne{view: viewName}
	var looks atomic.Int64
	w := newViewWorld(t, views.Options{Cluster: s, Memory: views.NewMemory(1 << 20), Step: func(_ *tablet.Tablet, step string) error {
		if step == "position taken" {
			looks.Add(1)
		}
		return nil
	}})
	defer w.close()
	w.fill(1000)
	s.now.Store(true)
	w.create()
	for looks.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	source, err := w.s.Table(t.Context(), table)
	if err != nil {
		t.Fatal(err)
	}
	other := viewName + "2"
	if _, err := w.s.CreateView(t.Context(), viewstest.Groups(other, source), nil); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := w.s.WaitView(ctx, other); err != nil {
		t.Fatalf("wait for the other view: %v", err)
	}
	if err := viewstest.Check(ctx, w.s, other, table); err != nil {
		t.Error(err)
	}
	s.now.Store(false)
	w.check()
}

// full is the cluster of workers, in which reads of ends find no room for a time.
type full struct {
	troubled
	n       atomic.Int64 // reads that find none
	changes atomic.Int64 // reads of changes that were begun
}

func (f *full) ReadRows(ctx context.Context, req *scan.Request, w scan.Writer) (scan.Stats, error) {
	if req.Filter != nil && req.Filter.Op == filter.Ends && f.n.Add(-1) >= 0 {
		return scan.Stats{}, &fault.Error{Kind: fault.Exhausted, Reason: "REQUEST_MEMORY_EXHAUSTED", Msg: "no room"}
	}
	return f.Cluster.ReadRows(ctx, req, w)
}

func (f *full) ReadChanges(ctx context.Context, req *changes.Request, w changes.Writer) (*changes.Close, error) {
	f.changes.Add(1)
	return f.Cluster.ReadChanges(ctx, req, w)
}

// TestViewNoRoom: a read of ends that finds no room is made again, and nothing else is.
func TestViewNoRoom(t *testing.T) {
	f := &full{}
	w := newViewWorld(t, views.Options{Cluster: f})
	defer w.close()
	f.n.Store(2)
	w.create()
	w.check()
	before := f.changes.Load()
	f.n.Store(3)
	w.changeAll()
	w.check()
	if f.n.Load() >= 0 {
		t.Error("all reads found room")
	}
	if n := f.changes.Load() - before; n != 0 {
		t.Errorf("changes were read anew %d times", n)
	}
}

// missing is the cluster of workers, in which the view seems to be gone for a moment.
type missing struct {
	troubled
	n atomic.Int64
}

func (m *missing) ApplyView(ctx context.Context, view string, life uint64, rows []rpc.ViewRow) error {
	if m.n.Add(-1) >= 0 {
		return fault.New(fault.NotFound, "the table of the view is not there")
	}
	return m.Cluster.ApplyView(ctx, view, life, rows)
}

// TestViewMissing: a view goes on after its table was not found.
func TestViewMissing(t *testing.T) {
	m := &missing{}
	outlives(t, m, &m.n)
}

// TestViewLosesRows: what a damaged SSTable of the source held leaves the view when it is
// dropped, also if the process ends at once.
func TestViewLosesRows(t *testing.T) {
	w := newViewWorld(t, views.Options{})
	defer func() { w.close() }()
	ctx := t.Context()
	w.create()
	source, err := w.s.Table(ctx, table)
	if err != nil {
		t.Fatal(err)
	}
	of := func() *metadata.Row {
		t.Helper()
		tablets, err := w.s.Tablets(ctx, table)
		if err != nil {
			t.Fatal(err)
		}
		r, err := w.s.RowOf(ctx, tablets[0].Tablet)
		if err != nil || r.Table != source.ID {
			t.Fatalf("%v, %v", r, err)
		}
		return r
	}
	for _, crashed := range []bool{false, true} {
		w.group("a", "kept", time.Now(), time.Time{})
		w.compact()
		w.group("b", "lost", time.Now(), time.Time{})
		if err := w.s.FlushTablets(ctx, table, row.All); err != nil {
			t.Fatal(err)
		}
		w.check()
		w.shows("kept lost")
		object := ""
		for _, f := range of().Files {
			if last, err := cell.RowOf(nil, f.Hi); err != nil {
				t.Fatal(err)
			} else if string(last) == "b" {
				object = f.Object
			}
		}
		w.close()
		name := "d/sst/" + object
		datadirtest.WriteFile(t, w.fs, name, datadirtest.Flip(10)(datadirtest.ReadFile(t, w.fs, name)))
		w.open()
		loss, err := w.s.DropDamaged(ctx, table, object)
		if err != nil || string(loss.Last) != "b" {
			t.Fatalf("%+v, %v", loss, err)
		}
		if crashed {
			w.crash()
		}
		w.check()
		want := "kept"
		if string(loss.First) == "a" { // they were in one file already
			want = ""
		}
		w.shows(want)
		w.changeAll()
		w.check()
		if err := w.s.DropRowRange(ctx, table, []byte("row")); err != nil {
			t.Fatal(err)
		}
		w.check()
		w.compact()
	}
}

// TestViewClockSetBack: a row of a view without source rows has seen what it has seen, though
// the clock was set back.
func TestViewClockSetBack(t *testing.T) {
	var back atomic.Int64
	w := newViewWorld(t, views.Options{}, func(w *viewWorld) {
		w.now = func() time.Time { return time.Now().Add(-time.Duration(back.Load())) }
	})
	defer w.close()
	w.create()
	w.check()
	all, err := w.s.ListViews(t.Context(), "projects/p/instances/i")
	if err != nil || len(all) != 1 {
		t.Fatalf("%d views, %v", len(all), err)
	}
	v := all[0].View
	args := make([]matview.Arg, len(v.Columns))
	item, err := matview.AppendItem(nil, v, []byte("g"), args)
	if err != nil {
		t.Fatal(err)
	}
	apply := func(seqs ...uint64) {
		t.Helper()
		var us []matview.Update
		for _, n := range seqs {
			d := matview.NewDeltas(v)
			before, now := item, []byte(nil)
			if n%2 == 1 {
				before, now = nil, item
			}
			if err := d.Change([]byte("row"), before, now); err != nil {
				t.Fatal(err)
			}
			if err := d.Each(func(_, payload []byte) error {
				us = append(us, matview.Update{Shard: 1 << 40, Seq: n, Payload: append([]byte{}, payload...)})
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.s.ApplyView(t.Context(), viewName, v.Life, []rpc.ViewRow{{Key: []byte("g"), Updates: us}}); err != nil {
			t.Fatal(err)
		}
	}
	apply(1, 2)
	back.Store(int64(time.Hour))
	apply(3, 4)
	apply(3)
	w.shows("")
	apply(5)
	w.shows("g")
}

// TestViewEndsKept: a cell that seems to have ended when ends are read, and is there when its
// row is evaluated, leaves the view when it ends.
func TestViewEndsKept(t *testing.T) {
	kept := func(lead time.Duration) bool {
		e := &early{}
		w := newViewWorld(t, views.Options{Cluster: e})
		defer w.close()
		now := time.Now()
		w.group("a", "soon", now, now.Add(lead))
		w.group("b", "long", now, time.Time{})
		w.create()
		w.check()
		e.armed.Store(true)
		if err := w.s.MutateRow(t.Context(), table, &row.Entry{Key: []byte("a"), Mutations: []row.Mutation{
			{Op: row.SetCell, Family: viewstest.Family, Qualifier: viewstest.Value, Timestamp: 1000, Value: number(1)}}}); err != nil {
			t.Fatal(err)
		}
		if err := w.diff(); !time.Now().Before(now.Add(lead)) {
			return false // too slow: the cell has ended
		} else if err != nil || e.armed.Load() {
			t.Fatalf("no ends were read: %v, %v", e.armed.Load(), err)
		}
		if err := w.settle("long"); err != nil {
			t.Error(err)
		}
		return true
	}
	for lead := time.Second; !kept(lead); lead *= 2 {
	}
}

// TestViewEndsAhead: a row that a look is still to see gets a cell that ends, between two turns:
// the view forgets the row when the cell has ended.
func TestViewEndsAhead(t *testing.T) {
	left := func(lead time.Duration) bool {
		var w *viewWorld
		var stored atomic.Int64
		now := time.Now()
		soon := now.Add(lead)
		w = newViewWorld(t, views.Options{Turn: time.Nanosecond, Step: func(_ *tablet.Tablet, step string) error {
			if step == "stored" && stored.Add(1) == 2 {
				w.group("row00398", "soon", now, soon)
			}
			return nil
		}})
		defer w.close()
		w.fill(400)
		w.create()
		if err := w.diff(); !time.Now().Before(soon) {
			return false // too slow: the cell has ended
		} else if err != nil {
			t.Fatal(err)
		}
		if n := stored.Load(); n < 4 {
			t.Fatalf("%d batches were stored: the test needs more", n)
		}
		for end := soon.Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
			err := w.diff()
			if err == nil && time.Now().After(soon.Add(500*time.Millisecond)) {
				return true
			}
			if time.Now().After(end) {
				t.Fatal(err)
			}
		}
	}
	for lead := 2 * time.Second; !left(lead); lead *= 2 {
	}
}

// early is the cluster of workers, in which all cells have ended for a read of ends, once.
type early struct {
	troubled
	armed atomic.Bool
}

func (e *early) ReadRows(ctx context.Context, req *scan.Request, w scan.Writer) (scan.Stats, error) {
	if req.Filter != nil && req.Filter.Op == filter.Ends && e.armed.CompareAndSwap(true, false) {
		return scan.Stats{}, nil
	}
	return e.Cluster.ReadRows(ctx, req, w)
}

// slowDisk takes its time to sync a file.
type slowDisk struct{ vfs.FS }

type slowFile struct{ vfs.File }

func (f slowFile) SyncData() error {
	time.Sleep(10 * time.Millisecond)
	return f.File.SyncData()
}

func (d slowDisk) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := d.FS.Create(name, c)
	return slowFile{f}, err
}

func (d slowDisk) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := d.FS.OpenReadWrite(name, c, opts...)
	return slowFile{f}, err
}

func (d slowDisk) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := d.FS.ReuseForWrite(from, to, c)
	return slowFile{f}, err
}

// TestViewNumbers: no two entries of the outbox have one number, however long a batch is on its
// way to the disk. A worker that takes a number too early is found out before it stores it.
func TestViewNumbers(t *testing.T) {
	run := func(t *testing.T, m views.Mistake) string {
		var text logtest.Buffer
		w := newViewWorld(t, views.Options{Mistake: m, Log: slog.New(slog.NewTextHandler(&text, nil))}, func(w *viewWorld) { w.disk = func(fs vfs.FS) vfs.FS { return slowDisk{fs} } })
		defer w.close()
		w.fill(250)
		w.create()
		w.check()
		return text.String()
	}
	const found = "would have number"
	if log := run(t, views.NoMistake); strings.Contains(log, found) {
		t.Errorf("without a mistake: %s", log)
	}
	if log := run(t, views.NumberTooEarly); !strings.Contains(log, found) {
		t.Errorf("the mistake was not found: %q", log)
	}
}
