package tablet

import (
	"context"
	"runtime"
	"testing"
	"weak"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/memtable"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/sstable"
)

// busyMeta has somebody fill a memtable with each change of the row.
type busyMeta struct {
	changes int
	fill    func()
}

// CAS implements metadata.Store.
func (m *busyMeta) CAS(_ context.Context, r *metadata.Row) error {
	m.changes++
	m.fill()
	r.Version++
	return nil
}

// flushable returns a tablet that can be flushed, and what writes to it.
func flushable(t testing.TB) (*Tablet, func()) {
	t.Helper()
	cache := sstable.NewCache(1<<20, 0)
	t.Cleanup(cache.Close)
	one := lone(t)
	store, err := objectstore.OpenLocal(vfs.NewMem(), "store", objectstore.LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	next := uint64(0)
	one.env.Objects, one.env.Cache, one.env.NewID = store, cache, func() uint64 { next++; return next }
	return one, func() {
		b := NewBatch([]byte("r"))
		defer b.Free()
		b.Set(0, []byte("q"), 1, []byte("v"))
		if err := applyAndWait(t.Context(), one, b); err != nil {
			t.Error(err)
		}
	}
}

// TestFlushGivesMemoryBack: nothing keeps a memtable once it is flushed, as its memory is not
// counted any more. A tablet that is not written to would keep it for good.
func TestFlushGivesMemoryBack(t *testing.T) {
	one, write := flushable(t)
	one.env.Meta = &busyMeta{fill: func() {}}
	for _, memtables := range []int{1, 3} {
		var all []weak.Pointer[memtable.Memtable]
		for range memtables {
			write()
			all = append(all, weak.Make(one.write.mem.Memtable))
			one.Rotate()
		}
		if err := one.FlushAll(t.Context()); err != nil {
			t.Fatal(err)
		}
		for i, m := range all {
			// A pool keeps iterators of it through one collection.
			for n := 0; m.Value() != nil && n < 3; n++ {
				runtime.GC()
			}
			if m.Value() != nil {
				t.Errorf("memtable %d of %d is there when it is flushed", i, memtables)
			}
		}
	}
}

// TestLongWorkGivesMemoryBack: a compaction and a check of all files, which may take minutes,
// keep no memtable that is flushed meanwhile.
func TestLongWorkGivesMemoryBack(t *testing.T) {
	one, write := flushable(t)
	ctx := t.Context()
	one.env.Meta = &busyMeta{fill: func() {}}
	flushed := func() weak.Pointer[memtable.Memtable] {
		write()
		m := weak.Make(one.write.mem.Memtable)
		one.Rotate()
		if err := one.FlushAll(ctx); err != nil {
			t.Fatal(err)
		}
		return m
	}
	gone := func(work string, m weak.Pointer[memtable.Memtable]) {
		t.Helper()
		for n := 0; m.Value() != nil && n < 3; n++ {
			runtime.GC()
		}
		if m.Value() != nil {
			t.Errorf("%s keeps a memtable that was flushed", work)
		}
	}
	for range 2 {
		flushed()
	}
	one.RequestMajor()
	w, err := one.begin(ctx, false)
	if w == nil || err != nil {
		t.Fatal("no compaction began", err)
	}
	gone("a compaction", flushed())
	if err := one.rewrite(ctx, w); err != nil {
		t.Fatal(err)
	}
	if err := one.replace(ctx, w, w.out); err != nil {
		t.Fatal(err)
	}
	one.end(w)
	files := 0
	err = one.Verify(ctx, func(_ string, _ int64, err error) error {
		if files++; files == 1 {
			gone("a check", flushed())
		}
		return err
	})
	if err != nil || files != 2 {
		t.Errorf("%d files were checked, of 2: %v", files, err)
	}
}

// TestFlushAllEnds: who has a tablet flushed waits for what it held then, not for
// what is written while it is flushed.
func TestFlushAllEnds(t *testing.T) {
	one, write := flushable(t)
	ctx := t.Context()
	const enough = 20
	m := &busyMeta{}
	m.fill = func() {
		if m.changes < enough {
			write()
			one.Rotate()
		}
	}
	one.env.Meta = m
	for range 3 {
		write()
		one.Rotate()
	}
	if err := one.FlushAll(ctx); err != nil || m.changes != 3 {
		t.Errorf("%d memtables were flushed, of 3: %v", m.changes, err)
	}
}

// TestPauseFlushesNothing: a pause has to overlap with others', so it comes before
// what is in memory is flushed. That is in what the tablet is found to have held.
func TestPauseFlushesNothing(t *testing.T) {
	one, write := flushable(t)
	ctx := t.Context()
	m := &busyMeta{fill: func() {}}
	one.env.Meta = m
	for range 3 {
		write()
		one.Rotate()
	}
	write()
	p, err := Pause(ctx, []*Tablet{one})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Release()
	if m.changes != 0 {
		t.Errorf("a pause came after %d flushes", m.changes)
	}
	p.Cut()
	write()
	held, err := p.Freeze(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if files := len(held[0].Row().Files); files != 4 || m.changes != 4 {
		t.Errorf("%d files of 4 memtables are held after %d flushes", files, m.changes)
	}
	held[0].Release()
}
