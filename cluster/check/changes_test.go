package check_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/datadir/datadirtest"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/schema"
)

// TestChangeFiles: a change file that is damaged or missing is found, and the rows of its
// table are served all the same.
func TestChangeFiles(t *testing.T) {
	healthy := vfs.NewMem()
	s := mustOpen(t, healthy)
	_, err := s.CreateTable(t.Context(), &schema.Table{Name: parent + "one", Granularity: 1000, Families: map[string]schema.Family{"f": {Name: "f"}},
		Stream: &schema.Stream{Life: 1, Retention: 24 * time.Hour, Since: time.Now()}}, nil)
	must(t, err)
	for _, k := range []string{"a", "b", "c"} {
		put(t, s, "one", k, "value of "+k)
	}
	flush(t, s)
	var object string
	must(t, s.Rows(t.Context(), func(r *metadata.Row) error {
		if r.Stream != nil && len(r.Stream.Files) > 0 {
			object = "d/sst/" + r.Stream.Files[0].Object
		}
		return nil
	}))
	end(t, s)
	damage, harmless, sum := checked(t, healthy)
	if len(damage)+len(harmless) > 0 || sum.ChangeFiles != 1 || sum.ChangeFileBytes == 0 || object == "" {
		t.Fatalf("found %q and %q, %+v", damage, harmless, sum)
	}
	for name, c := range map[string]struct {
		do   func(fs *vfs.MemFS)
		want string
	}{
		"flipped": {func(fs *vfs.MemFS) { rewrite(t, fs, object, datadirtest.Flip(20)) }, "it is a change file of tablet"},
		"cut":     {func(fs *vfs.MemFS) { rewrite(t, fs, object, func(b []byte) []byte { return b[:len(b)-5] }) }, "a change file of tablet"},
		"missing": {func(fs *vfs.MemFS) { must(t, fs.Remove(object)) }, "is missing; tablet"},
	} {
		fs := copyAll(t, healthy)
		c.do(fs)
		if damage, _, _ := checked(t, fs); len(damage) == 0 || !strings.Contains(damage[0], c.want) || !strings.HasPrefix("d/"+damage[0], object) {
			t.Errorf("%s: %q", name, damage)
		}
		s := mustOpen(t, fs)
		if rows := rowsOf(t, s, "one"); len(rows) != 3 {
			t.Errorf("%s: %d rows are served", name, len(rows))
		}
		end(t, s)
	}
}

// TestIndexObjects: change files that an index object names are looked at, and an index object
// that is damaged or missing is found. None of its files counts as unused then.
func TestIndexObjects(t *testing.T) {
	healthy := vfs.NewMem()
	s := mustOpen(t, healthy)
	_, err := s.CreateTable(t.Context(), &schema.Table{Name: parent + "one", Granularity: 1000, Families: map[string]schema.Family{"f": {Name: "f"}},
		Stream: &schema.Stream{Life: 1, Retention: 24 * time.Hour, Since: time.Now()}}, nil)
	must(t, err)
	const n = 66
	for i := range n {
		put(t, s, "one", fmt.Sprint(i), "value")
		flush(t, s)
	}
	index, file := "", ""
	must(t, s.Rows(t.Context(), func(r *metadata.Row) error {
		if r.Stream == nil || len(r.Stream.Indexes) == 0 {
			return nil
		}
		x := r.Stream.Indexes[0].Object
		f, err := s.Objects().Open(t.Context(), x)
		must(t, err)
		refs, err := changes.ReadIndex(t.Context(), f, x)
		must(t, err)
		index, file = "d/sst/"+x, "d/sst/"+refs[3].Object
		return nil
	}))
	end(t, s)
	damage, harmless, sum := checked(t, healthy)
	if unused := about(harmless, ".chg") + about(harmless, ".chx"); len(damage) > 0 || unused > 0 || sum.ChangeFiles != n || index == "" {
		t.Fatalf("found %q and %q, %+v", damage, harmless, sum)
	}
	for name, c := range map[string]struct {
		object string
		do     func(fs *vfs.MemFS, object string)
		want   string
	}{
		"flipped":      {index, func(fs *vfs.MemFS, o string) { rewrite(t, fs, o, datadirtest.Flip(20)) }, "it is an index object of tablet"},
		"missing":      {index, func(fs *vfs.MemFS, o string) { must(t, fs.Remove(o)) }, "is missing; tablet"},
		"file flipped": {file, func(fs *vfs.MemFS, o string) { rewrite(t, fs, o, datadirtest.Flip(20)) }, "it is a change file of tablet"},
		"file missing": {file, func(fs *vfs.MemFS, o string) { must(t, fs.Remove(o)) }, "is missing; tablet"},
	} {
		fs := copyAll(t, healthy)
		c.do(fs, c.object)
		if damage, harmless, _ := checked(t, fs); len(damage) != 1 || !strings.Contains(damage[0], c.want) || !strings.HasPrefix("d/"+damage[0], c.object) || about(harmless, ".chg") > 0 {
			t.Errorf("%s: %q, %q", name, damage, harmless)
		}
	}
}

// about counts the findings about objects whose names end so.
func about(findings []string, suffix string) (n int) {
	for _, f := range findings {
		if strings.Contains(f, suffix+":") {
			n++
		}
	}
	return n
}
