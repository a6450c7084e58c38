package objectstore_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/objectstore"
)

// TestReuse: an object in the room of another is what was put, the other one is
// gone, and no room is taken twice.
func TestReuse(t *testing.T) {
	fs := vfs.NewMem()
	whole := openLocal(t, fs, "objects")
	s := objectstore.Sub(whole, "log")
	ctx := t.Context()
	size := objectstore.ReuseSize(s, 5000)
	if size < 5000 || size != objectstore.ReuseSize(s, size) {
		t.Fatalf("an object of 5000 bytes is to have %d", size)
	}
	object := func(i int) []byte { return bytes.Repeat([]byte{byte(i)}, size) }
	for i := range 10 {
		if err := s.PutIfAbsent(ctx, fmt.Sprint("old", i), object(i)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 10 {
		if err := objectstore.ReuseAll(ctx, s, []string{fmt.Sprint("old", i)}); err != nil {
			t.Fatal(err)
		}
		// Again, as after a lost answer.
		if err := objectstore.ReuseAll(ctx, s, []string{fmt.Sprint("old", i)}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Get(ctx, fmt.Sprint("old", i)); !errors.Is(err, fault.NotFound) {
			t.Fatalf("a deleted object: %v", err)
		}
	}
	if n := len(temps(t, fs, "objects")); n != 10 {
		t.Fatalf("%d files are kept, want 10", n)
	}
	for i := range 12 {
		if err := s.PutIfAbsent(ctx, fmt.Sprint("new", i), object(100+i)); err != nil {
			t.Fatal(err)
		}
	}
	if left := temps(t, fs, "objects"); len(left) != 0 {
		t.Errorf("files are left: %v", left)
	}
	for i := range 12 {
		if got, err := s.Get(ctx, fmt.Sprint("new", i)); err != nil || !bytes.Equal(got, object(100+i)) {
			t.Errorf("object %d is wrong: %v", i, err)
		}
	}
	if err := s.PutIfAbsent(ctx, "new0", object(1)); !errors.Is(err, fault.AlreadyExists) {
		t.Errorf("put of an object that is there: %v", err)
	}
	// What an earlier process kept is not in the way.
	if err := objectstore.ReuseAll(ctx, s, []string{"new1"}); err != nil {
		t.Fatal(err)
	}
	again := openLocal(t, fs, "objects")
	if left := temps(t, fs, "objects"); len(left) != 0 {
		t.Errorf("files are left after a restart: %v", left)
	}
	if _, err := again.Get(ctx, "log/new0"); err != nil {
		t.Error(err)
	}
}

// TestReuseCrash: whatever a power failure takes, at whatever moment, an object
// whose put has returned is there and whole, and what else is there is what its
// name says.
func TestReuseCrash(t *testing.T) {
	const size = 4 << 10
	object := func(i int) []byte { return bytes.Repeat([]byte{byte(i + 1)}, size) }
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		mem := vfs.NewCrashableMem()
		kept := map[string]bool{}
		ops, crashAt := 0, 50+rng.IntN(150)
		var crashed *vfs.MemFS
		var survives []string
		s := openLocal(t, errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind.ReadOrWrite() == errorfs.OpIsRead {
				return nil
			}
			if ops++; ops == crashAt {
				crashed = mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: int(seed % 101), RNG: rng})
				survives = slices.Collect(maps.Keys(kept))
			}
			return nil
		})), "objects")
		ctx := t.Context()
		for i := 0; crashed == nil; i++ {
			name := fmt.Sprint("o", i)
			if err := s.PutIfAbsent(ctx, name, object(i)); err != nil {
				t.Fatal(err)
			}
			kept[name] = true
			for _, old := range slices.Sorted(maps.Keys(kept)) {
				if rng.IntN(4) == 0 {
					delete(kept, old)
					if err := s.Reuse(ctx, old); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		after := openLocal(t, crashed, "objects")
		for _, name := range survives {
			if _, err := after.Get(ctx, name); err != nil {
				t.Fatalf("seed %d: object %s after a crash: %v", seed, name, err)
			}
		}
		found, err := after.List(ctx, "", "", 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range found {
			var i int
			if _, err := fmt.Sscanf(o.Name, "o%d", &i); err != nil {
				t.Fatal(err)
			}
			if got, err := after.Get(ctx, o.Name); err != nil || !bytes.Equal(got, object(i)) {
				t.Fatalf("seed %d: object %s is not what was put: %v", seed, o.Name, err)
			}
		}
	}
}
