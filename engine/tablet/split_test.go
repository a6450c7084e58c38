package tablet

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/sstable"
)

// Splitting and merging over and over must not use up the numbers of runs: a
// split gives both sides the next number, and merges once added them.
func TestMergeNumbersRunsAnew(t *testing.T) {
	file := func(run uint64, lo, hi string) metadata.FileRef {
		return metadata.FileRef{Object: lo, Run: run, Info: sstable.Info{Lo: []byte(lo), Hi: []byte(hi)}}
	}
	a := &metadata.Row{End: []byte("m"), NextRun: 1 << 63, Files: []metadata.FileRef{
		file(1<<63-1, "a", "c"), file(7, "a", "b"), file(7, "c", "d"), file(2, "b", "c")}}
	b := &metadata.Row{Start: []byte("m"), NextRun: 1 << 63, Files: []metadata.FileRef{
		file(7, "n", "o"), file(7, "p", "q"), file(2, "n", "q")}}
	m := mergeRows(a, b)
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	if m.NextRun != 5 || len(m.Files) != 7 {
		t.Errorf("%d files, next run %d", len(m.Files), m.NextRun)
	}
	want := []uint64{4, 4, 3, 2, 1, 1, 0}
	for i, f := range m.Files {
		if f.Run != want[i] {
			t.Errorf("file %d (%s) has run %d, want %d", i, f.Object, f.Run, want[i])
		}
	}
	if a.Files[0].Run != 1<<63-1 || b.Files[0].Run != 7 {
		t.Error("the rows that were merged have changed")
	}
}

// TestFlushBesideMerge: while a merge waits for a compaction of one tablet the other is flushed, and
// what that takes meanwhile is flushed before its writes are held up.
func TestFlushBesideMerge(t *testing.T) {
	one := stored(t)
	a := Open(one.env, &metadata.Row{Table: 5, Tablet: 2, Version: 1, End: []byte("m")}, one.schema)
	b := Open(one.env, &metadata.Row{Table: 5, Tablet: 3, Version: 1, Start: []byte("m")}, one.schema)
	write := func(to *Tablet, key string, size int) {
		t.Helper()
		w := NewBatch([]byte(key))
		defer w.Free()
		w.Set(0, []byte("q"), 1, make([]byte, size))
		if err := applyAndWait(t.Context(), to, w); err != nil {
			t.Fatal(err)
		}
	}
	for _, to := range []*Tablet{a, b} {
		to.Start()
		defer to.Close()
	}
	for range 8 {
		write(b, "n", 1)
		flushed(t, b)
	}
	reached, release := make(chan struct{}), make(chan struct{})
	before := blocked(reached, release)
	one.env.Objects = &requestHook{one.env.Objects, func(what string) error {
		if a.write.TryLock() {
			a.write.Unlock()
		} else {
			t.Errorf("%s while writes are held up", what)
		}
		return before(what)
	}}
	var all sync.WaitGroup
	all.Go(func() {
		if more, err := b.Compact(t.Context()); err != nil || !more {
			t.Error(more, err)
		}
	})
	<-reached
	all.Go(func() {
		if err := Merge(t.Context(), a, b, 4, func(*metadata.Row) error { return nil }, func(ts ...*Tablet) { ts[0].Close() }); err != nil {
			t.Error(err)
		}
	})
	until(t, "the merge waits for the compaction", func() bool { return b.jobs.still.Load() > 0 })
	write(a, "a", 1)
	a.Rotate()
	var done atomic.Bool
	all.Go(func() {
		if more, err := a.Flush(t.Context()); err != nil || !more {
			t.Error(more, err)
		}
		done.Store(true)
	})
	func() {
		defer all.Wait()
		defer close(release)
		until(t, "the other tablet is flushed", done.Load)
		write(a, "a", 2*stillBytes)
	}()
	if _, err := still(t.Context(), a, b); err != ErrReplaced || a.jobs.still.Load()+b.jobs.still.Load() != 0 {
		t.Errorf("%v, and %d and %d callers want no compaction", err, a.jobs.still.Load(), b.jobs.still.Load())
	}
}
