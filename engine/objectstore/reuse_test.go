package objectstore_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

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
		if err := objectstore.Reuse(ctx, s, fmt.Sprint("old", i)); err != nil {
			t.Fatal(err)
		}
		// Again, as after a lost answer.
		if err := objectstore.Reuse(ctx, s, fmt.Sprint("old", i)); err != nil {
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
	if err := objectstore.Reuse(ctx, s, "new1"); err != nil {
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

// TestReuseCrash: whatever a power failure takes, an object whose put has
// returned is there and whole, and what else is there is what its name says.
func TestReuseCrash(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		mem := vfs.NewCrashableMem()
		s := openLocal(t, mem, "objects")
		ctx := t.Context()
		const size = 4 << 10
		kept := map[string]byte{}
		for i := range 30 {
			name, b := fmt.Sprintf("o%d", i), byte(i+1)
			if err := s.PutIfAbsent(ctx, name, bytes.Repeat([]byte{b}, size)); err != nil {
				t.Fatal(err)
			}
			kept[name] = b
			for old := range kept {
				if rng.IntN(4) == 0 {
					delete(kept, old)
					if err := s.Reuse(ctx, old); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		crashed := openLocal(t, mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: int(seed % 101), RNG: rng}), "objects")
		found, err := crashed.List(ctx, "", "", 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range found {
			var i int
			if _, err := fmt.Sscanf(o.Name, "o%d", &i); err != nil {
				t.Fatal(err)
			}
			if got, err := crashed.Get(ctx, o.Name); err != nil || !bytes.Equal(got, bytes.Repeat([]byte{byte(i + 1)}, size)) {
				t.Fatalf("seed %d: object %s is another's after a crash: %v", seed, o.Name, err)
			}
		}
		for name, b := range kept {
			if got, err := crashed.Get(ctx, name); err != nil || !bytes.Equal(got, bytes.Repeat([]byte{b}, size)) {
				t.Fatalf("seed %d: object %s after a crash: %v", seed, name, err)
			}
		}
	}
}
