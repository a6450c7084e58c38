package tablet

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/trestledb/trestle/engine/schema"
)

// TestMajorBesideFailure: a major compaction that fails ends what its caller asked for, and not what
// another one waits for. When no caller waits any more, none is left to be done.
func TestMajorBesideFailure(t *testing.T) {
	one := stored(t)
	sch := one.schema().Clone()
	sch.NextFamily = 2
	sch.Families["g"] = schema.Family{Name: "g", ID: 1, Group: sch.PutGroup(schema.Group{Name: "apart"})}
	one.schema = func() *schema.Table { return sch }
	write := func() {
		t.Helper()
		b := NewBatch([]byte("row"))
		defer b.Free()
		b.Set(0, []byte("q"), 1, nil)
		b.Set(1, []byte("q"), 1, nil)
		if err := applyAndWait(t.Context(), one, b); err != nil {
			t.Fatal(err)
		}
		flushed(t, one)
	}
	write()
	write()
	// files returns how many files each group has.
	files := func() (n [2]int) {
		for _, f := range one.Row().Files {
			n[f.Group]++
		}
		return n
	}
	if files() != [2]int{2, 2} {
		t.Fatalf("files of groups: %v", files())
	}
	reached, release := make(chan struct{}), make(chan struct{})
	before := blocked(reached, release)
	store := one.env.Objects
	var failing atomic.Bool
	failing.Store(true)
	one.env.Objects = &requestHook{store, func(what string) error {
		first := strings.HasPrefix(what, "create ") && failing.Swap(false)
		if err := before(what); err != nil || !first {
			return err
		}
		return context.Canceled
	}}
	var all sync.WaitGroup
	all.Go(func() {
		if err := one.CompactMajor(t.Context()); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	<-reached
	all.Go(func() {
		if err := one.CompactMajor(t.Context()); err != nil {
			t.Error(err)
		}
	})
	until(t, "the other group is compacted", func() bool { return files()[0] == 1 })
	close(release)
	all.Wait()
	if files() != [2]int{1, 1} {
		t.Errorf("files of groups after a major compaction: %v", files())
	}
	one.env.Objects = store
	write()
	one.env.Objects = &requestHook{store, func(string) error { return context.Canceled }}
	if err := one.CompactMajor(t.Context()); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	one.env.Objects = store
	if more, err := one.Compact(t.Context()); more || err != nil {
		t.Errorf("what its caller has given up goes on: %v, %v", more, err)
	}
}
