package standalone

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/engine/datadir/datadirtest"
	"github.com/trestledb/trestle/engine/schema"
)

// TestReadMetadata: beside a server too, what is in a directory can be read, but no
// secret.
func TestReadMetadata(t *testing.T) {
	fs := vfs.NewMem()
	s := openOn(t, fs)
	if _, err := s.CreateTable(t.Context(), &schema.Table{Name: table, Granularity: 1000, Families: map[string]schema.Family{"f": {Name: "f"}}}, [][]byte{[]byte("m")}); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"secrets/one", "plain"} {
		if _, err := s.PutRecord(t.Context(), key, []byte("value of "+key), 0); err != nil {
			t.Fatal(err)
		}
	}
	read := func() *Stored {
		t.Helper()
		got, err := ReadMetadata(t.Context(), fs, "d")
		if err != nil {
			t.Fatal(err)
		}
		items := map[string]string{}
		for _, i := range got.Items {
			items[i.Key] = string(i.Value)
		}
		if items["records/plain"] != "value of plain" || items["records/secrets/one"] != "(secret)" || !strings.Contains(items["tables/"+table], table) {
			t.Errorf("items %q", items)
		}
		var ranges []string
		for _, r := range got.Rows {
			ranges = append(ranges, fmt.Sprintf("%v[%s, %s)", r.Table == metastore.Table, r.Start, r.End))
		}
		if want := []string{"true[, )", "false[, m)", "false[m, )"}; !slices.Equal(ranges, want) {
			t.Errorf("rows %q, want %q", ranges, want)
		}
		return got
	}
	read()
	closeNow(t, s)
	if before, after := read(), read(); !reflect.DeepEqual(before, after) {
		t.Errorf("to look changes something:\n%v\n%v", before, after)
	}
}

// TestFormat: a directory of another version, or one that has lost what says that
// it is not new, is refused and stays as it is.
func TestFormat(t *testing.T) {
	for name, c := range map[string]struct {
		make func(fs *vfs.MemFS) error
		want string
	}{
		"a version to come": {func(fs *vfs.MemFS) error {
			datadirtest.WriteFile(t, fs, "d/FORMAT", []byte("trestle data format 4\n"))
			return nil
		}, "use the version of trestle that wrote it"},
		"the version before": {func(fs *vfs.MemFS) error {
			datadirtest.WriteFile(t, fs, "d/FORMAT", []byte("trestle data format 1\n"))
			return nil
		}, "use the version of trestle that wrote it"},
		"of something else":    {func(fs *vfs.MemFS) error { datadirtest.WriteFile(t, fs, "d/FORMAT", []byte("x")); return nil }, "does not belong to a trestle data directory"},
		"FORMAT is lost":       {func(fs *vfs.MemFS) error { return fs.Remove("d/FORMAT") }, "has no FORMAT file but is not new"},
		"FORMAT is empty":      {func(fs *vfs.MemFS) error { datadirtest.WriteFile(t, fs, "d/FORMAT", []byte("")); return nil }, "has no FORMAT file but is not new"},
		"ROOT is lost":         {func(fs *vfs.MemFS) error { return fs.Remove("d/lock/ROOT") }, "to go on copy lock/ROOT.copy"},
		"ROOT is damaged":      {func(fs *vfs.MemFS) error { datadirtest.WriteFile(t, fs, "d/lock/ROOT", []byte("{}")); return nil }, "to go on copy lock/ROOT.copy"},
		"the lock dir is lost": {func(fs *vfs.MemFS) error { return fs.RemoveAll("d/lock") }, "has no lock/ROOT file but is not new"},
	} {
		t.Run(name, func(t *testing.T) {
			fs := vfs.NewMem()
			closeNow(t, openOn(t, fs))
			if err := c.make(fs); err != nil {
				t.Fatal(err)
			}
			before := fs.String()
			if _, err := Open(t.Context(), Options{Dir: "d", FS: fs}); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if after := fs.String(); after != before {
				t.Errorf("it changed something: %s\nwas %s", after, before)
			}
		})
	}
}
