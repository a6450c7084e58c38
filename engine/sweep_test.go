package engine

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/tablet"
)

// TestSweepWhileServing: an object goes in the second pass in which nothing
// refers to it, if it was left by an incarnation that has ended; one of this
// incarnation not before a day has passed.
func TestSweepWhileServing(t *testing.T) {
	now := clock()
	o := Options{FS: vfs.NewMem(), Dir: "data", NoBackground: true, Now: func() time.Time { return now }}
	s := mustOpen(t, o)
	name := mustCreate(t, s, newSchema("t", 1000, "f"))
	mustPut(t, s, name, "r", setCell("f", "q", 1000, "v"))
	mustBackup(t, s, name, "b")
	mustClose(t, s)
	s = mustOpen(t, o)
	defer mustClose(t, s)
	mustPut(t, s, name, "r2", setCell("f", "q", 1000, "v"))
	if err := s.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	want := content(s, name)
	stray := func(incarnation, n uint64) string {
		object := fmt.Sprintf("%016x.sst", incarnation<<32+n)
		if err := s.objects.PutIfAbsent(ctx, object, []byte("left behind")); err != nil {
			t.Fatal(err)
		}
		return object
	}
	old, mine, pinned := stray(1, 1<<20), stray(s.root.Incarnation(), 1<<20), stray(1, 1<<20+1)
	w := sweeper{s: s}
	pass := func(step string, deleted int, there ...string) {
		t.Helper()
		n, err := w.pass(ctx)
		if err != nil || n != deleted {
			t.Errorf("%s: deleted %d objects, %v, want %d", step, n, err, deleted)
		}
		list := objects(t, s, 1<<20)
		for _, o := range append(there, mapKeys(referenced(s))...) {
			if !slices.Contains(list, o) {
				t.Errorf("%s: %s is gone", step, o)
			}
		}
		for _, o := range []string{old, mine, pinned} {
			if slices.Contains(list, o) && !slices.Contains(there, o) {
				t.Errorf("%s: %s is there", step, o)
			}
		}
	}
	pass("the first pass", 0, old, mine, pinned)
	// Somebody takes hold of one in between.
	f := tablet.Hold(s.env, &metadata.Row{Files: []metadata.FileRef{{Object: pinned}}})
	pass("the second", 1, mine, pinned)
	s.env.Remove = func(string) {} // and lets go: as if removing it had failed
	f.Release()
	s.env.Remove = s.remove
	pass("the third", 0, mine, pinned)
	pass("the fourth", 1, mine)
	now = now.Add(sweepAge)
	pass("a day later", 1)
	if got := content(s, name); got != want {
		t.Errorf("the table is\n%s\nwant\n%s", got, want)
	}
}

func mapKeys(m map[string]bool) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	return out
}
