package tablet

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/compaction"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/stamp"
)

// oneVersion is a streamed tablet whose families keep one version of a column.
func oneVersion(t testing.TB) (*streamed, changes.Position) {
	s := newStreamed(t)
	next := s.sch.Load().Clone()
	next.Granularity = 1000
	next.Families = map[string]schema.Family{"f1": {Name: "f1", ID: 1, GC: &schema.GCRule{MaxVersions: 1}}}
	s.sch.Store(next)
	s.reopen()
	return s, changes.Position{Through: stamp.At(next.Stream.Since)}
}

// TestWrittenWhileCollected: a cell that is written again while garbage collection takes an older
// one of its key is there, and a stream does not tell that it is gone. Others are told to be.
func TestWrittenWhileCollected(t *testing.T) {
	const rows = 3
	set := func(s *streamed, ts int64, value string) {
		for i := range rows {
			b := NewBatch(fmt.Append(nil, "row", i))
			b.Set(1, []byte("q"), ts, []byte(value))
			s.apply(b)
		}
	}
	for name, c := range map[string]struct {
		flush bool // it is a flush that collects
		many  bool // more cells than are hashed
		since bool // what was written is not kept any more
		lost  bool // the change file of what was written is not there for a time
		some  bool // not all cells are written again
		none  bool
	}{
		"flush": {flush: true}, "compaction": {}, "some of them": {some: true}, "many": {some: true, many: true}, "not kept": {some: true, since: true}, "lost": {some: true, lost: true}, "nothing": {none: true},
	} {
		t.Run(name, func(t *testing.T) {
			s, start := oneVersion(t)
			set(s, 5000, "old")
			if !c.flush {
				s.flush()
			}
			set(s, 9000, "new")
			if !c.flush {
				s.flush()
			}
			var lost string
			var file []byte
			armed, id := true, s.env.NewID
			s.env.NewID = func() uint64 {
				if armed && !c.none {
					armed = false
					for i := range rows {
						if c.some && i == 0 {
							continue
						}
						b := NewBatch(fmt.Append(nil, "row", i))
						b.DeleteColumn(1, []byte("q"), cell.TimeRange{Start: 9000, End: 10_000})
						b.Set(1, []byte("q"), 5000, []byte("again"))
						s.apply(b)
					}
					if c.lost {
						s.env.NewID = id
						s.flush()
						files := s.Row().Stream.Files
						lost = files[len(files)-1].Object
						var err error
						if file, err = s.objects.Get(t.Context(), lost); err != nil {
							t.Error(err)
						}
						if err := s.objects.Delete(t.Context(), lost); err != nil {
							t.Error(err)
						}
					}
					if c.since {
						s.env.NewID = id
						s.flush()
						for _, d := range DropOldChanges(t.Context(), []*Tablet{s.Tablet}, 1) {
							if d.Err != nil {
								t.Error(d.Err)
							}
						}
					}
				}
				return id()
			}
			// Readers of changes wait for memory only.
			s.env.Objects = &requestHook{s.objects, func(what string) error {
				if s.write.gate != 0 {
					t.Error("readers wait for", what)
				}
				return nil
			}}
			if c.many {
				defer func(n int) { hashedCells = n }(hashedCells)
				hashedCells = 1
			}
			if c.flush {
				s.flush()
			} else {
				s.RequestMajor()
				if more, err := s.Compact(t.Context()); err != nil || !more {
					t.Fatal(more, err)
				}
			}
			s.env.NewID, s.env.Objects = id, s.objects
			if c.lost {
				if err := s.objects.PutIfAbsent(t.Context(), lost, file); err != nil {
					t.Fatal(err)
				}
			}
			s.Promise(s.write.seq)
			want := s.content()
			if v := want["row1 f1:q@5000"]; (v == "again") == c.none || (want["row0 f1:q@5000"] == "") != (c.some || c.none) {
				t.Fatalf("the table has %v", want)
			}
			if c.since {
				start.Through = s.Row().Stream.Since
			}
			got, collected, _ := s.replayed(start, -1)
			if !maps.Equal(got, want) && !c.since {
				t.Errorf("the stream leads to %v, the table has %v", got, want)
			}
			if wanted := map[bool]int{c.some: 1, c.none: rows}[true]; collected != wanted {
				t.Errorf("%d records of what was collected, want %d", collected, wanted)
			}
			for _, f := range s.Row().Stream.Files {
				if _, err := s.objects.Get(t.Context(), f.Object); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestStreamBesideWriter: the changes lead to the table whenever nothing is written, though cells
// are written again and again while they are collected.
func TestStreamBesideWriter(t *testing.T) {
	s, start := oneVersion(t)
	rnd := rand.New(rand.NewPCG(1, 1))
	var got map[string]string
	collected := 0
	for round := range 60 {
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := range 60 {
				b := NewBatch(fmt.Append(nil, "row", rnd.IntN(3)))
				if rnd.IntN(3) == 0 {
					b.DeleteColumn(1, []byte("q"), cell.TimeRange{Start: 9000, End: 10_000})
				} else {
					b.Set(1, []byte("q"), []int64{5000, 9000}[rnd.IntN(2)], fmt.Append(nil, round, i))
				}
				pos, err := s.ApplyAsync(s.t.Context(), b)
				if b.Free(); err == nil {
					err = s.Wait(s.t.Context(), pos)
				}
				if err != nil {
					t.Error(err)
				}
			}
		}()
		for writing := true; writing; {
			select {
			case <-done:
				writing = false
			default:
			}
			s.flush()
			s.RequestMajor()
			if _, err := s.Compact(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		s.Promise(s.write.seq)
		want := s.content()
		if got, collected, _ = s.replayed(start, -1); !maps.Equal(got, want) {
			t.Fatalf("round %d: the stream leads to %v, the table has %v", round, got, want)
		}
	}
	if collected == 0 {
		t.Error("nothing was collected")
	}
}

// TestWrittenAgainAlways: cells that are written again whenever what was collected is written
// anew are seen, though readers have to wait for that at last.
func TestWrittenAgainAlways(t *testing.T) {
	const rows = mostRewrites + 5
	s, start := oneVersion(t)
	for _, ts := range []int64{5000, 9000} {
		for i := range rows {
			b := NewBatch(fmt.Append(nil, "row", i))
			b.Set(1, []byte("q"), ts, []byte("first"))
			s.apply(b)
		}
		s.flush()
	}
	files, waited, id := 0, 0, s.env.NewID
	s.env.NewID = func() uint64 {
		if s.write.gate != 0 {
			waited++
		}
		b := NewBatch(fmt.Append(nil, "row", files))
		b.DeleteColumn(1, []byte("q"), cell.TimeRange{Start: 9000, End: 10_000})
		b.Set(1, []byte("q"), 5000, []byte("again"))
		s.apply(b)
		files++
		return id()
	}
	s.RequestMajor()
	if more, err := s.Compact(t.Context()); err != nil || !more {
		t.Fatal(more, err)
	}
	s.env.NewID = id
	// An SSTable, what was collected, and that anew: once more with the change lock held.
	if files != 4+mostRewrites || waited != 1 {
		t.Errorf("%d files, %d of them while readers wait", files, waited)
	}
	s.Promise(s.write.seq)
	want := s.content()
	got, collected, _ := s.replayed(start, -1)
	if !maps.Equal(got, want) || want[fmt.Sprintf("row%d f1:q@5000", files-1)] != "again" {
		t.Errorf("the stream leads to %v, the table has %v", got, want)
	}
	// The last was written behind the stamp of what was collected.
	if collected != rows-files+1 {
		t.Errorf("%d records of what was collected", collected)
	}
}

// A hookedContext calls a function each time that it is asked whether it has ended.
type hookedContext struct {
	context.Context
	asked func()
}

func (c hookedContext) Err() error {
	c.asked()
	return c.Context.Err()
}

// TestWrittenBeforeStamp: also a cell is seen that is written again after most of what was written
// has been looked through, and before what was collected has its stamp.
func TestWrittenBeforeStamp(t *testing.T) {
	for at := 1; ; at++ {
		s, start := oneVersion(t)
		for _, ts := range []int64{5000, 9000} {
			b := NewBatch([]byte("row"))
			b.Set(1, []byte("q"), ts, []byte("first"))
			s.apply(b)
			s.flush()
		}
		files, asked, id := 0, 0, s.env.NewID
		s.env.NewID = func() uint64 {
			if files++; files == 1 { // there is something to look through
				b := NewBatch([]byte("other"))
				b.Set(1, []byte("q"), 1000, nil)
				s.apply(b)
			}
			return id()
		}
		ctx := hookedContext{t.Context(), func() {
			if files < 2 { // an SSTable, and what was collected
				return
			}
			if asked++; asked == at {
				b := NewBatch([]byte("row"))
				b.DeleteColumn(1, []byte("q"), cell.TimeRange{Start: 9000, End: 10_000})
				b.Set(1, []byte("q"), 5000, []byte("again"))
				s.apply(b)
			}
		}}
		s.RequestMajor()
		if more, err := s.Compact(ctx); err != nil || !more {
			t.Fatal(more, err)
		}
		s.Promise(s.write.seq)
		want := s.content()
		if got, _, _ := s.replayed(start, -1); !maps.Equal(got, want) || (want["row f1:q@5000"] == "again") != (asked >= at) {
			t.Errorf("written at %d of %d: the stream leads to %v, the table has %v", at, asked, got, want)
		}
		if asked < at {
			if at < 3 {
				t.Errorf("the context was asked %d times", asked)
			}
			return
		}
	}
}

// TestCollectedBesideNewer: a compaction that leaves out newer runs collects nothing of a table
// with a stream, since they may have the same cells.
func TestCollectedBesideNewer(t *testing.T) {
	s, start := oneVersion(t)
	for _, do := range []func(b *Batch){
		func(b *Batch) { b.Set(1, []byte("q"), 5000, []byte("old")) },
		func(b *Batch) { b.Set(1, []byte("q"), 9000, []byte("new")) },
		func(b *Batch) {
			b.DeleteColumn(1, []byte("q"), cell.TimeRange{Start: 9000, End: 10_000})
			b.Set(1, []byte("q"), 5000, []byte("again"))
		},
	} {
		b := NewBatch([]byte("row"))
		do(b)
		s.apply(b)
		s.flush()
	}
	w := s.enlist()
	runs := s.pickRuns(w.from, w.layout.schema, w.now)
	if len(runs) != 3 {
		t.Fatalf("%d runs", len(runs))
	}
	for _, c := range []struct {
		runs []uint64
		want bool
	}{{[]uint64{0, 1, 2}, true}, {[]uint64{0, 1}, true}, {[]uint64{0, 2}, false}, {[]uint64{1, 2}, false}} {
		if w.job.Runs = c.runs; w.hasNewest() != c.want {
			t.Errorf("of runs %v: %v", c.runs, !c.want)
		}
	}
	w.group = w.layout.group(0)
	w.job = compaction.Job{Kind: compaction.Merging, Runs: []uint64{1, 2}, Parts: []compaction.Part{{Complete: true,
		Inputs: []compaction.Input{{Run: 1, Files: runs[1].Files}, {Run: 2, Files: runs[2].Files}}}}}
	if err := s.rewrite(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	if err := s.replace(t.Context(), w, w.out); err != nil {
		t.Fatal(err)
	}
	s.end(w)
	s.Promise(s.write.seq)
	want := s.content()
	if got, _, _ := s.replayed(start, -1); !maps.Equal(got, want) || want["row f1:q@5000"] != "again" {
		t.Errorf("the stream leads to %v, the table has %v", got, want)
	}
}
