package check_test

import (
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

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
