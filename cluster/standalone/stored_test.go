package standalone

import (
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/datadir/datadirtest"
	"github.com/trestledb/trestle/engine/schema"
)

// TestDumpMetadata: beside a server too, what is in a directory is printed, but no
// secret.
func TestDumpMetadata(t *testing.T) {
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
	dump := func() string {
		var out strings.Builder
		if err := DumpMetadata(t.Context(), &out, fs, "d"); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"item tables/" + table + " version", "value of plain", "(secret)", "of METADATA [", ` of ` + table + ` ["", "m") `, ` of ` + table + ` ["m", "") `} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("no word of %s in\n%s", want, out.String())
			}
		}
		if strings.Contains(out.String(), "value of secrets") {
			t.Errorf("it tells a secret:\n%s", out.String())
		}
		return out.String()
	}
	dump()
	closeNow(t, s)
	if before, after := dump(), dump(); before != after {
		t.Errorf("to look changes something:\n%s\n%s", before, after)
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
