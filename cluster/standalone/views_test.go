package standalone

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/cluster/master"
	"github.com/trestledb/trestle/cluster/tabletserver"
	"github.com/trestledb/trestle/cluster/views"
	"github.com/trestledb/trestle/cluster/views/viewstest"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/datadir/datadirtest"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/tablet"
)

const viewName = "projects/p/instances/i/materializedViews/v"

// viewWorld is a server with a table and a view of it.
type viewWorld struct {
	t   *testing.T
	fs  *datadirtest.CrashableMem
	s   *Server
	rnd *rand.Rand
	o   views.Options
	// long is how many bytes the names of groups have more than they need: a pass over all
	// rows has several batches if it is large.
	long int
	// disk, if it is set, returns what the server has of fs; now is its clock.
	disk func(vfs.FS) vfs.FS
	now  func() time.Time

	client atomic.Pointer[client.Client] // of the server that runs, also while it is opened
}

func newViewWorld(t *testing.T, o views.Options, set ...func(*viewWorld)) *viewWorld {
	seed := rand.Uint64()
	if text := os.Getenv("VIEWS_SEED"); text != "" {
		seed, _ = strconv.ParseUint(text, 10, 64)
	}
	t.Logf("VIEWS_SEED=%d", seed)
	w := &viewWorld{t: t, fs: datadirtest.NewCrashableMem(), rnd: rand.New(rand.NewPCG(seed, 1)), o: o}
	for _, f := range set {
		f(w)
	}
	if w.o.Linger = time.Millisecond; w.o.Watermark == 0 {
		w.o.Watermark = 20 * time.Millisecond
	}
	w.open()
	if _, err := w.s.CreateTable(t.Context(), &schema.Table{Name: table, Granularity: 1000, Families: viewstest.Families()}, nil); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *viewWorld) open() {
	w.t.Helper()
	var err error
	var fs vfs.FS = w.fs
	if w.disk != nil {
		fs = w.disk(fs)
	}
	w.s, err = Open(w.t.Context(), Options{Dir: "d", FS: fs, NoReserve: true, Log: commitlog.Options{SegmentBytes: 1 << 20},
		TabletServer: tabletserver.Options{Now: w.now, ClockEvery: 10 * time.Millisecond, MetadataMemtableBytes: 4 << 20, Tablet: tablet.Options{MemtableBytes: 64 << 10}},
		Master:       master.Options{Purge: 100 * time.Millisecond, Interval: 50 * time.Millisecond, MakeLimit: 3 * time.Second},
		Views: func(c *client.Client) views.Options {
			w.client.Store(c)
			o := w.o
			o.Evaluators, o.Cluster = viewstest.Evaluators{Reader: c}, &lossy{Cluster: c}
			if x, ok := w.o.Cluster.(interface{ wrap(views.Cluster) }); ok {
				x.wrap(o.Cluster)
				o.Cluster = w.o.Cluster
			}
			return o
		}})
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *viewWorld) close() {
	w.t.Helper()
	if err := w.s.Close(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

// crash goes on with what a crash at this moment would leave.
func (w *viewWorld) crash() {
	after := w.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: w.rnd.IntN(101), RNG: w.rnd})
	w.close()
	w.fs = after
	w.open()
}

func (w *viewWorld) create() {
	w.t.Helper()
	source, err := w.s.Table(w.t.Context(), table)
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.s.CreateView(w.t.Context(), viewstest.Groups(viewName, source), nil); err != nil {
		w.t.Fatal(err)
	}
}

// diff waits until the view has caught up and returns how it differs from its source.
func (w *viewWorld) diff() error {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	if err := w.s.WaitView(ctx, viewName); err != nil {
		st, serr := w.s.ViewStatus(w.t.Context(), viewName)
		begins, berr := w.s.ChangesBegin(w.t.Context(), table, row.All)
		tablets, _ := w.s.TabletServer().Status(w.t.Context())
		for _, x := range tablets.Tablets {
			if x.Changes != 0 || x.View != nil {
				w.t.Logf("tablet %v of %x, %q to %q: changes %d, %+v", x.Tablet, x.Table, x.Start, x.End, x.Changes, x.View)
			}
		}
		w.t.Fatalf("wait: %v; %+v, %v; %v, %v", err, st, serr, begins, berr)
	}
	// A step of a look that the wait was for may have written once more.
	if err := w.s.WaitView(ctx, viewName); err != nil {
		w.t.Fatal(err)
	}
	return viewstest.Check(ctx, w.s, viewName, table)
}

func (w *viewWorld) check() {
	w.t.Helper()
	if err := w.diff(); err != nil {
		w.t.Fatal(err)
	}
}

// settle waits until the view has some groups, as its source has: where cells have ended, they
// leave the view a moment later. A view with a planted mistake fails at once.
func (w *viewWorld) settle(groups string) error {
	w.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		err, got := w.diff(), w.groups()
		switch {
		case err == nil && got == groups:
			return nil
		case err == nil:
			err = fmt.Errorf("the view has %q, not %q", got, groups)
		case w.o.Mistake != "":
			return err
		}
		if time.Now().After(end) {
			return err
		}
	}
}

func number(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }

func (w *viewWorld) key() []byte { return fmt.Appendf(nil, "row%03d", w.rnd.IntN(200)) }

func (w *viewWorld) groupName() []byte {
	return fmt.Appendf(nil, "group%d%s", w.rnd.IntN(6), strings.Repeat("x", w.long))
}

func (w *viewWorld) set(q, v []byte) row.Mutation {
	return row.Mutation{Op: row.SetCell, Family: viewstest.Family, Qualifier: q, Timestamp: int64(1+w.rnd.IntN(5)) * 1000, Value: v}
}

// changeAll gives all rows other groups and values.
func (w *viewWorld) changeAll() {
	w.t.Helper()
	var entries []row.Entry
	for i := range 200 {
		entries = append(entries, row.Entry{Key: fmt.Appendf(nil, "row%03d", i), Mutations: []row.Mutation{w.set(viewstest.Group, w.groupName()), w.set(viewstest.Value, number(int64(w.rnd.IntN(1000))))}})
	}
	if err := w.s.MutateRows(w.t.Context(), table, entries, func(_ int, err error) {
		if err != nil {
			w.t.Error(err)
		}
	}); err != nil {
		w.t.Fatal(err)
	}
}

// change makes a random change of the source.
func (w *viewWorld) change() {
	w.t.Helper()
	ctx, key, set := w.t.Context(), w.key(), w.set
	group := w.groupName()
	var err error
	mutate := func(m ...row.Mutation) { err = w.s.MutateRow(ctx, table, &row.Entry{Key: key, Mutations: m}) }
	switch w.rnd.IntN(14) {
	case 0, 1, 2, 3:
		mutate(set(viewstest.Group, group), set(viewstest.Value, number(int64(w.rnd.IntN(1000)))))
	case 4:
		mutate(set(viewstest.Value, number(-int64(w.rnd.IntN(1000)))))
	case 5:
		mutate(row.Mutation{Op: row.DeleteRow})
	case 6:
		mutate(row.Mutation{Op: row.DeleteFamily, Family: viewstest.Family})
	case 7:
		m := row.Mutation{Op: row.DeleteColumn, Family: viewstest.Family, Qualifier: viewstest.Value}
		m.Times.Start, m.Times.End = 2000, 4000
		mutate(m)
	case 8:
		mutate(row.Mutation{Op: row.AddToCell, Family: viewstest.Sums, Qualifier: viewstest.Value, Timestamp: 1000, Input: row.Input{Kind: row.IntInput, Int: int64(w.rnd.IntN(9))}})
	case 9:
		_, err = w.s.CheckAndMutateRow(ctx, table, key, nil, []row.Mutation{set(viewstest.Group, group)}, []row.Mutation{set(viewstest.Value, number(7))})
	case 10:
		_, err = w.s.ReadModifyWriteRow(ctx, table, key, []row.Rule{{Family: viewstest.Family, Qualifier: viewstest.Value, Increment: 3}})
		if fault.KindOf(err) == fault.FailedPrecondition {
			err = nil // the value is not a number
		}
	case 11:
		mutate(set(viewstest.Value, []byte("none")))
	case 12:
		if w.rnd.IntN(8) == 0 {
			err = w.s.DropRowRange(ctx, table, fmt.Appendf(nil, "row%02d", w.rnd.IntN(20)))
		}
	case 13:
		var entries []row.Entry
		for range 1 + w.rnd.IntN(40) {
			entries = append(entries, row.Entry{Key: w.key(), Mutations: []row.Mutation{set(viewstest.Group, group), set(viewstest.Value, number(int64(w.rnd.IntN(1000))))}})
		}
		err = w.s.MutateRows(ctx, table, entries, func(_ int, one error) {
			if one != nil {
				w.t.Error(one)
			}
		})
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// operate splits, merges or flushes a tablet of any table.
func (w *viewWorld) operate() {
	w.t.Helper()
	ctx := w.t.Context()
	var rows []*metadata.Row
	if err := w.s.Rows(ctx, func(r *metadata.Row) error {
		if r.Table>>32 != 0 {
			rows = append(rows, r)
		}
		return nil
	}); err != nil {
		w.t.Fatal(err)
	}
	r := rows[w.rnd.IntN(len(rows))]
	ts := w.s.TabletServer()
	switch w.rnd.IntN(4) {
	case 0, 1:
		at := w.key()
		if w.rnd.IntN(3) == 0 {
			at = fmt.Appendf(nil, "group%d", w.rnd.IntN(6))
		}
		if err := ts.Split(ctx, r.Tablet, at); err != nil && fault.KindOf(err) != fault.Invalid {
			w.t.Fatal(err)
		}
	case 2:
		for _, n := range rows {
			if n.Table == r.Table && len(r.End) > 0 && string(n.Start) == string(r.End) {
				if err := ts.Merge(ctx, r.Tablet, n.Tablet); err != nil {
					w.t.Fatal(err)
				}
			}
		}
	case 3:
		if err := ts.Compact(ctx, []metadata.TabletID{r.Tablet}); err != nil {
			w.t.Fatal(err)
		}
	}
}

// TestView: a view is its query's result at every quiet moment of a random history, with
// crashes, splits and merges in it, and was from its backfill on.
func TestView(t *testing.T) {
	w := newViewWorld(t, views.Options{})
	for range 300 {
		w.change()
	}
	w.create()
	w.check()
	for round := range 8 {
		for range 20 + w.rnd.IntN(200) {
			w.change()
		}
		switch round % 4 {
		case 1:
			w.crash()
		case 3:
			w.close()
			w.open()
		default:
			w.operate()
		}
		for range w.rnd.IntN(20) {
			w.change()
		}
		w.check()
	}
	w.close()
}
