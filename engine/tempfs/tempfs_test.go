package tempfs

import (
	"io"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/datadir/datadirtest"
)

// Whatever way a file is opened, its syncs do not reach the file system below.
func TestNothingIsSynced(t *testing.T) {
	mem := datadirtest.NewCrashableMem()
	fs := New(mem)
	write := func(f vfs.File, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		full, err := f.SyncTo(1)
		if err != nil || full {
			t.Errorf("SyncTo: %v, %v", full, err)
		}
		for _, sync := range []func() error{f.Sync, f.SyncData, f.Close} {
			if err := sync(); err != nil {
				t.Error(err)
			}
		}
	}
	write(fs.Create("a", ""))
	write(fs.OpenReadWrite("b", ""))
	write(fs.ReuseForWrite("b", "c", ""))
	d, err := fs.OpenDir("")
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Sync(); err != nil {
		t.Error(err)
	}
	for name, want := range map[string]string{"a": "x", "c": "x"} {
		f, err := fs.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(f); err != nil || string(b) != want {
			t.Errorf("%s holds %q, %v", name, b, err)
		}
		f.Close()
	}
	if left, err := mem.CrashClone(vfs.CrashCloneCfg{}).List(""); err != nil || len(left) != 0 {
		t.Errorf("after a power cut: %v, %v", left, err)
	}
	if fs.Unwrap() != vfs.FS(mem) {
		t.Error("Unwrap")
	}
}
