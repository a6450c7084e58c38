package datadir_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/datadir"
	"github.com/trestledb/trestle/engine/datadir/datadirtest"
)

// tree shows a directory with everything in it.
func tree(t *testing.T, fs vfs.FS, dir string) string {
	t.Helper()
	names, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	var out strings.Builder
	for _, n := range names {
		path := fs.PathJoin(dir, n)
		info, err := fs.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.IsDir() {
			fmt.Fprintf(&out, "%s/\n%s", path, tree(t, fs, path))
			continue
		}
		fmt.Fprintf(&out, "%s=%s\n", path, datadirtest.ReadFile(t, fs, path))
	}
	return out.String()
}

// TestOverlay does the same at random to an overlay, whose lower file system is on
// disk, and to a copy: both show the same, and the disk is as it was.
func TestOverlay(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		root := t.TempDir()
		dirs := []string{root, filepath.Join(root, "a"), filepath.Join(root, "b"), filepath.Join(root, "a", "c")}
		model := vfs.NewMem()
		for _, d := range dirs {
			for _, fs := range []vfs.FS{vfs.Default, model} {
				if err := fs.MkdirAll(d, 0o755); err != nil {
					t.Fatal(err)
				}
			}
		}
		name := func() string {
			return filepath.Join(dirs[rng.IntN(len(dirs))], string(rune('x'+rng.IntN(3))))
		}
		for range 6 {
			n, text := name(), fmt.Sprint(rng.IntN(1000))
			datadirtest.WriteFile(t, vfs.Default, n, []byte(text))
			datadirtest.WriteFile(t, model, n, []byte(text))
		}
		before := tree(t, vfs.Default, root)
		o := datadir.Overlay(vfs.Default)
		for step := range 60 {
			what, n, m, text := rng.IntN(8), name(), name(), []byte(fmt.Sprint(rng.IntN(1000)))
			if _, err := model.Stat(filepath.Dir(m)); err != nil && what != 4 {
				continue // the model loses a file that it cannot rename
			}
			do := func(fs vfs.FS) error {
				switch what {
				case 0:
					return fs.Remove(n)
				case 1:
					if n == m {
						return nil
					}
					return fs.Rename(n, m)
				case 2:
					return fs.Link(n, m)
				case 3:
					f, err := fs.OpenReadWrite(n, "test")
					if err != nil {
						return err
					}
					_, err = f.WriteAt(bytes.Clone(text), 1)
					return errors.Join(err, f.Close())
				case 4:
					return fs.MkdirAll(dirs[3], 0o755)
				case 5:
					if n == m {
						return nil
					}
					f, err := fs.ReuseForWrite(n, m, "test")
					if err != nil {
						return err
					}
					_, err = f.Write(bytes.Clone(text))
					return errors.Join(err, f.Close())
				case 6:
					if step%10 == 0 {
						return fs.RemoveAll(dirs[3])
					}
				}
				f, err := fs.Create(n, "test")
				if err != nil {
					return err
				}
				_, err = f.Write(bytes.Clone(text))
				return errors.Join(err, f.Close())
			}
			got, want := do(o), do(model)
			if (got == nil) != (want == nil) || errors.Is(got, os.ErrNotExist) != errors.Is(want, os.ErrNotExist) || errors.Is(got, os.ErrExist) != errors.Is(want, os.ErrExist) {
				t.Fatalf("seed %d, step %d: operation %d on %s and %s: %v, want %v", seed, step, what, n, m, got, want)
			}
			if a, b := tree(t, o, root), tree(t, model, root); a != b {
				t.Fatalf("seed %d, step %d: operation %d on %s and %s: it shows\n%s\nwant\n%s", seed, step, what, n, m, a, b)
			}
		}
		if after := tree(t, vfs.Default, root); after != before {
			t.Fatalf("seed %d: the disk was changed:\n%s\nwas\n%s", seed, after, before)
		}
	}
}

// TestOverlayLocks: who reads takes no lock of who writes.
func TestOverlayLocks(t *testing.T) {
	name := filepath.Join(t.TempDir(), "LOCK")
	held, err := vfs.Default.Lock(name)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	o := datadir.Overlay(vfs.Default)
	l, err := o.Lock(name)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if again, err := o.Lock(name); err == nil {
		again.Close()
		t.Error("locked twice")
	}
}
