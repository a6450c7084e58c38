package standalone

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/cluster/views"
	"github.com/trestledb/trestle/cluster/views/viewstest"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/matview"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/tablet"
)

// TestViewLife: what a view forbids of its source, what shows of it, and that nothing is left
// when it is deleted, also by a process that died meanwhile.
func TestViewLife(t *testing.T) {
	var reconciled atomic.Int64
	w := newViewWorld(t, views.Options{Step: func(_ *tablet.Tablet, step string) error {
		if step == "position taken" {
			reconciled.Add(1)
		}
		return nil
	}})
	defer func() { w.close() }()
	ctx := t.Context()
	for range 50 {
		w.change()
	}
	w.create()
	w.check()
	refused := func(what string, err error, kind fault.Kind) {
		t.Helper()
		if fault.KindOf(err) != kind {
			t.Errorf("%s: %v", what, err)
		}
	}
	source, err := w.s.Table(ctx, table)
	if err != nil || source.ChangeStream() != nil || source.Stream == nil {
		t.Fatalf("the source's stream: %+v, %v", source.Stream, err)
	}
	_, err = w.s.CreateView(ctx, viewstest.Groups(viewName, source), nil)
	refused("the same view again", err, fault.AlreadyExists)
	refused("the source is deleted", w.s.DeleteTable(ctx, table), fault.FailedPrecondition)
	_, err = w.s.UpdateTable(ctx, table, func(t *schema.Table) error { delete(t.Families, viewstest.Sums); return nil })
	refused("a family of the query is removed", err, fault.FailedPrecondition)
	other := viewstest.Groups(viewName+"2", source)
	other.Families = append(other.Families, "none")
	_, err = w.s.CreateView(ctx, other, nil)
	refused("a family that is not there", err, fault.FailedPrecondition)
	other = viewstest.Groups(viewName+"2", source)
	other.SourceID++
	_, err = w.s.CreateView(ctx, other, nil)
	refused("another table", err, fault.FailedPrecondition)
	view, err := w.s.Table(ctx, viewName)
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.s.CreateView(ctx, viewstest.Groups(viewName+"2", view), nil)
	refused("a view of a view", err, fault.FailedPrecondition)
	refused("a view is no table", w.s.DeleteTable(ctx, viewName), fault.NotFound)
	for _, name := range []string{viewName, matview.StateName(viewName)} {
		key, set := []byte("group1"), []row.Mutation{{Op: row.DeleteRow}}
		refused("MutateRow", w.s.MutateRow(ctx, name, &row.Entry{Key: key, Mutations: set}), fault.FailedPrecondition)
		refused("MutateRows", w.s.MutateRows(ctx, name, []row.Entry{{Key: key, Mutations: set}}, func(int, error) {}), fault.FailedPrecondition)
		_, err = w.s.CheckAndMutateRow(ctx, name, key, nil, set, set)
		refused("CheckAndMutateRow", err, fault.FailedPrecondition)
		_, err = w.s.ReadModifyWriteRow(ctx, name, key, []row.Rule{{Family: "default", Qualifier: key, Append: key}})
		refused("ReadModifyWriteRow", err, fault.FailedPrecondition)
		_, err = w.s.UpdateRow(ctx, name, key, nil, nil, func([]row.Cell) ([]row.Mutation, error) { return set, nil })
		refused("UpdateRow", err, fault.FailedPrecondition)
		refused("DropRowRange", w.s.DropRowRange(ctx, name, nil), fault.FailedPrecondition)
		_, err = w.s.UpdateTable(ctx, name, func(t *schema.Table) error { t.AddFamily(schema.Family{Name: "x"}); return nil })
		refused("a family is added", err, fault.FailedPrecondition)
		refused("DeleteTable", w.s.DeleteTable(ctx, name), fault.NotFound)
		_, err = w.s.UndeleteTable(ctx, name)
		refused("UndeleteTable", err, fault.AlreadyExists)
		_, err = w.s.CreateBackup(ctx, name, &schema.Backup{Name: "projects/p/instances/i/clusters/c/backups/b", ExpireTime: time.Now().Add(time.Hour)})
		refused("a backup", err, fault.FailedPrecondition)
	}
	w.check()
	if list, err := w.s.ListTables(ctx, "projects/p/instances/i"); err != nil || len(list) != 1 {
		t.Errorf("%d tables, %v", len(list), err)
	}
	if list, err := w.s.ListViews(ctx, "projects/p/instances/i"); err != nil || len(list) != 1 || list[0].Name != viewName {
		t.Errorf("%d views, %v", len(list), err)
	}
	if _, err := w.s.StreamPartitions(ctx, table); fault.KindOf(err) != fault.FailedPrecondition {
		t.Errorf("a client sees a stream: %v", err)
	}
	// Servers refuse what a gateway should have refused.
	if err := w.s.Rows(ctx, func(r *metadata.Row) error {
		at := rpc.Target{Tablet: r.Tablet}
		if r.Table>>32 == 0 || r.Table == source.ID {
			return nil
		}
		ts, key, set := w.s.TabletServer(), append(slices.Clone(r.Start), 'x'), []row.Mutation{{Op: row.DeleteRow}}
		refused("MutateRow of a server", ts.MutateRow(ctx, at, &row.Entry{Key: key, Mutations: set}), fault.FailedPrecondition)
		_, err := ts.MutateRows(ctx, at, []row.Entry{{Key: key, Mutations: set}})
		refused("MutateRows of a server", err, fault.FailedPrecondition)
		_, err = ts.CheckAndMutateRow(ctx, at, key, nil, set, set)
		refused("CheckAndMutateRow of a server", err, fault.FailedPrecondition)
		_, err = ts.ReadModifyWriteRow(ctx, at, key, []row.Rule{{Family: "default", Qualifier: key, Append: key}})
		refused("ReadModifyWriteRow of a server", err, fault.FailedPrecondition)
		_, _, err = ts.UpdateRow(ctx, at, key, nil, nil, nil, set)
		refused("UpdateRow of a server", err, fault.FailedPrecondition)
		_, err = ts.Update(ctx, at, key, nil, nil, func([]row.Cell) ([]row.Mutation, error) { return set, nil })
		refused("Update of a server", err, fault.FailedPrecondition)
		refused("DropRange of a server", ts.DropRange(ctx, at, row.Range{Start: r.Start, End: r.End}), fault.FailedPrecondition)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	w.check()
	// A client's stream takes the place of what is kept for views, and the other way round. The
	// view goes on where it was.
	looked := reconciled.Load()
	stream := func(on bool) {
		t.Helper()
		got, err := w.s.UpdateTable(ctx, table, func(t *schema.Table) error {
			if on {
				t.EnableStream(24*time.Hour, time.Now())
			} else {
				t.DisableStream()
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if (got.ChangeStream() != nil) != on {
			t.Errorf("on: %t, and clients see %+v", on, got.ChangeStream())
		}
		for range 20 {
			w.change()
		}
		w.check()
	}
	stream(true)
	w.crash()
	stream(false)
	w.crash()
	stream(true)
	stream(false)
	if n := reconciled.Load(); n != looked {
		t.Errorf("the view has looked at all rows %d times more", n-looked)
	}
	_, err = w.s.UpdateView(ctx, viewName, func(t *schema.Table) error { t.DeletionProtection = true; return nil })
	if err != nil {
		t.Fatal(err)
	}
	refused("a protected view", w.s.DeleteView(ctx, viewName), fault.FailedPrecondition)
	if _, err = w.s.UpdateView(ctx, viewName, func(t *schema.Table) error { t.DeletionProtection = false; return nil }); err != nil {
		t.Fatal(err)
	}
	if err := w.s.DeleteView(ctx, viewName); err != nil {
		t.Fatal(err)
	}
	refused("a view that is deleted", w.s.DeleteView(ctx, viewName), fault.NotFound)
	refused("to wait for one", w.s.WaitView(ctx, viewName), fault.NotFound)
	if source, err = w.s.Table(ctx, table); err != nil || source.Stream != nil || len(source.Views) != 0 {
		t.Errorf("the source has %+v, %+v, %v", source.Stream, source.Views, err)
	}
	// Again, and deleted while it looks at rows.
	w.create()
	if err := w.s.DeleteView(ctx, viewName); err != nil {
		t.Fatal(err)
	}
	w.create()
	w.check()
	w.noneLeft(2)
	if err := w.s.DeleteView(ctx, viewName); err != nil {
		t.Fatal(err)
	}
	w.noneLeft(0)
	if err := w.s.DeleteTable(ctx, table); err != nil {
		t.Error(err)
	}
}

// TestViewWait: a view is waited for no longer than it takes, however seldom an idle source
// tells up to where there is nothing.
func TestViewWait(t *testing.T) {
	w := newViewWorld(t, views.Options{Watermark: time.Hour})
	defer func() { w.close() }()
	caughtUp := func(what string) {
		t.Helper()
		begin := time.Now()
		w.check()
		t.Logf("%s: %v", what, time.Since(begin))
	}
	w.create()
	caughtUp("an empty table")
	caughtUp("nothing new")
	for range 20 {
		w.change()
	}
	caughtUp("after changes")
	w.split(table, "row100")
	for range 20 {
		w.change()
	}
	caughtUp("after a split of the source")
	w.split(matview.StateName(viewName), "row050")
	caughtUp("after a split of contributions")
}

// TestViewDroppedFamily: a family that a view does not name can be dropped, again and again. What
// its cells meant to the view, as the rows that count which have others or none, leaves it.
func TestViewDroppedFamily(t *testing.T) {
	w := newViewWorld(t, views.Options{})
	defer func() { w.close() }()
	ctx := t.Context()
	for range 100 {
		w.change()
	}
	source, err := w.s.Table(ctx, table)
	if err != nil {
		t.Fatal(err)
	}
	view := viewstest.Groups(viewName, source)
	view.Families = []string{viewstest.Family}
	if _, err := w.s.CreateView(ctx, view, nil); err != nil {
		t.Fatal(err)
	}
	w.check()
	for i, crashed := range []bool{false, true, false} {
		if _, err := w.s.UpdateTable(ctx, table, func(t *schema.Table) error {
			t.DisableStream()
			if delete(t.Families, viewstest.Sums); i == 2 {
				t.EnableStream(time.Hour, time.Now())
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if crashed {
			w.crash()
		}
		w.check()
		if _, err := w.s.UpdateTable(ctx, table, func(t *schema.Table) error {
			t.AddFamily(schema.Family{Name: viewstest.Sums, Aggregate: schema.Sum})
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		w.changeAll()
		for range 100 {
			w.change()
		}
		w.split(matview.StateName(viewName), fmt.Sprintf("row%03d", 50*(3-i)))
		w.check()
	}
}

// split splits the first tablet of a table.
func (w *viewWorld) split(name, at string) {
	w.t.Helper()
	tablets, err := w.s.Tablets(w.t.Context(), name)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := w.s.TabletServer().Split(w.t.Context(), tablets[0].Tablet, []byte(at)); err != nil {
		w.t.Fatal(err)
	}
}

// noneLeft waits until METADATA has the tablets of some tables of views, and of no others.
func (w *viewWorld) noneLeft(tables int) {
	w.t.Helper()
	var left []uint64
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		source, err := w.s.Table(w.t.Context(), table)
		if err != nil {
			w.t.Fatal(err)
		}
		left = left[:0]
		if err := w.s.Rows(w.t.Context(), func(r *metadata.Row) error {
			if r.Table>>32 != 0 && r.Table != source.ID && !slices.Contains(left, r.Table) {
				left = append(left, r.Table)
			}
			return nil
		}); err != nil {
			w.t.Fatal(err)
		}
		if len(left) == tables {
			return
		}
	}
	w.t.Errorf("METADATA has tablets of %d tables of views, not %d", len(left), tables)
}

// TestViewExpiry: what a rule of garbage collection removes leaves the view when it is
// collected, as readers see it until then, and a cell with an end of its own when it ends.
func TestViewExpiry(t *testing.T) {
	t.Run("rule", func(t *testing.T) {
		w := newViewWorld(t, views.Options{})
		defer func() { w.close() }()
		ctx := t.Context()
		w.create()
		now := time.Now()
		w.group("a", "old", now.Add(-time.Hour), time.Time{})
		w.group("b", "old", now.Add(-time.Hour), time.Time{})
		w.group("b", "new", now, time.Time{})
		w.check()
		if _, err := w.s.UpdateTable(ctx, table, func(t *schema.Table) error {
			f := t.Families[viewstest.Family]
			f.GC = &schema.GCRule{MaxAge: time.Minute}
			t.Families[viewstest.Family] = f
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		w.check() // collected already, or not
		w.compact()
		w.check()
		w.shows("new")
	})
	// ends tells whether cells were there for lead before they ended, and what is wrong.
	ends := func(t *testing.T, o views.Options, lead time.Duration) (bool, error) {
		w := newViewWorld(t, o)
		defer func() { w.close() }()
		now := time.Now()
		soon, later, last := now.Add(lead), now.Add(2*lead), now.Add(3*lead)
		w.group("a", "long", now, now.Add(24*time.Hour))
		w.group("b", "before", now, soon)
		w.group("c", "flushed", now, soon)
		w.compact()
		w.create()
		w.group("d", "after", now, soon)
		w.group("e", "again", now, soon)
		w.group("e", "again", now, last)
		w.group("f", "good", now, soon)
		w.group("f", "good", now, time.Time{})
		w.group("g", "late", now, later)
		err, got := w.diff(), w.groups()
		if !time.Now().Before(soon) {
			return false, nil
		}
		const all = "after again before flushed good late long"
		if err != nil || got != all {
			t.Errorf("the view has %q, not %q: %v", got, all, err)
		}
		w.crash()
		return true, w.settle("good long")
	}
	// all calls ends with a lead that is enough.
	all := func(t *testing.T, o views.Options) error {
		for lead := 700 * time.Millisecond; ; lead *= 2 {
			if there, err := ends(t, o, lead); there {
				return err
			}
		}
	}
	t.Run("end", func(t *testing.T) {
		if err := all(t, views.Options{}); err != nil {
			t.Error(err)
		}
	})
	t.Run(string(views.ForgetsEnds), func(t *testing.T) {
		err := all(t, views.Options{Mistake: views.ForgetsEnds})
		if !strings.Contains(fmt.Sprint(err), `group "before" is "rows=1", and should not be there`) {
			t.Errorf("the mistake was not found: %v", err)
		}
	})
}

// group sets the group of a row of the source, until a moment if that is not zero.
func (w *viewWorld) group(key, group string, ts, until time.Time) {
	w.t.Helper()
	m := row.Mutation{Op: row.SetCell, Family: viewstest.Family, Qualifier: viewstest.Group, Timestamp: ts.UnixMilli() * 1000, Value: []byte(group)}
	if !until.IsZero() {
		m.Until = until.UnixMicro()
	}
	if err := w.s.MutateRow(w.t.Context(), table, &row.Entry{Key: []byte(key), Mutations: []row.Mutation{m}}); err != nil {
		w.t.Fatal(err)
	}
}

// compact does a major compaction of all tablets.
func (w *viewWorld) compact() {
	w.t.Helper()
	ctx := w.t.Context()
	if err := w.s.Rows(ctx, func(r *metadata.Row) error {
		if r.Table>>32 == 0 {
			return nil
		}
		return w.s.TabletServer().Compact(ctx, []metadata.TabletID{r.Tablet})
	}); err != nil {
		w.t.Fatal(err)
	}
}

// shows checks which groups the view has.
func (w *viewWorld) shows(want string) {
	w.t.Helper()
	if got := w.groups(); got != want {
		w.t.Errorf("the view has %q, not %q", got, want)
	}
}

// groups returns which groups the view has.
func (w *viewWorld) groups() string {
	w.t.Helper()
	var groups []string
	if err := viewstest.Read(w.t.Context(), w.s, viewName, []row.Range{row.All}, func(r *viewstest.Row) error {
		if r.Cells["default:rows"] != nil {
			groups = append(groups, string(r.Key))
		}
		return nil
	}); err != nil {
		w.t.Fatal(err)
	}
	return strings.Join(groups, " ")
}
