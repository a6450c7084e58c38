package standalone

import (
	"strings"
	"testing"
	"time"

	"github.com/trestledb/trestle/cluster/views"
	"github.com/trestledb/trestle/engine/datadir/datadirtest"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/matview"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
)

// TestViewDamaged: a damaged SSTable of a view's own tables is not dropped, as the view would
// not equal its query afterwards, and the error says what helps.
func TestViewDamaged(t *testing.T) {
	w := newViewWorld(t, views.Options{})
	defer func() { w.close() }()
	ctx := t.Context()
	w.create()
	for _, name := range []string{matview.StateName(viewName), viewName} {
		w.group("a", "kept", time.Now(), time.Time{})
		w.group("b", "other", time.Now(), time.Time{})
		w.check()
		// Into one SSTable, so that none is about to be compacted away.
		if err := w.s.CompactTablets(ctx, name, row.All, nil); err != nil {
			t.Fatal(err)
		}
		all, err := w.s.Tablets(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		var files []metadata.FileRef
		for i := range all {
			r, err := w.s.RowOf(ctx, all[i].Tablet)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, r.Files...)
		}
		if len(files) == 0 {
			t.Fatalf("%s has no SSTable", name)
		}
		object := files[0].Object
		if _, err := w.s.DropDamaged(ctx, name, object); fault.KindOf(err) != fault.FailedPrecondition || !strings.Contains(err.Error(), "is not damaged") {
			t.Fatalf("%s, sound: %v", name, err)
		}
		if _, err := w.s.DropDamaged(ctx, name, "nothing.sst"); fault.KindOf(err) != fault.NotFound {
			t.Fatalf("%s, unheard of: %v", name, err)
		}
		w.close()
		path := "d/sst/" + object
		datadirtest.WriteFile(t, w.fs, path, datadirtest.Flip(10)(datadirtest.ReadFile(t, w.fs, path)))
		w.open()
		_, err = w.s.DropDamaged(ctx, name, object)
		if fault.KindOf(err) != fault.FailedPrecondition || !strings.Contains(err.Error(), "delete the view and create it again") {
			t.Fatalf("%s: %v", name, err)
		}
		if err := w.s.DeleteView(ctx, viewName); err != nil {
			t.Fatal(err)
		}
		w.create()
		w.check()
		w.shows("kept other")
	}
}
