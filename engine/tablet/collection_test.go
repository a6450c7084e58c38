package tablet

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/schema"
)

// TestManyCollected: where more cells are collected than are told apart in memory, a compaction
// looks into those parts of what was collected that may have a cell that was written since, and
// writes those anew that have one. It holds up neither flushes for what was written while it
// read, nor readers of changes for cells that were never collected.
func TestManyCollected(t *testing.T) {
	const rows, parts = 500, 5
	defer func(n, m int) { hashedCells, partCells = n, m }(hashedCells, partCells)
	hashedCells, partCells = 2, rows/parts
	s, start := oneVersion(t)
	key := func(i int) []byte { return fmt.Appendf(nil, "row%03d", i) }
	set := func(key []byte, ts int64, value string) {
		b := NewBatch(key)
		b.Set(1, []byte("q"), ts, []byte(value))
		s.apply(b)
	}
	again := func(i int) {
		b := NewBatch(key(i))
		b.DeleteColumn(1, []byte("q"), cell.TimeRange{Start: 9000, End: 10_000})
		b.Set(1, []byte("q"), 5000, []byte("again"))
		s.apply(b)
	}
	for _, ts := range []int64{5000, 9000} {
		for i := range rows {
			set(key(i), ts, "first")
		}
		s.flush()
	}
	made := map[string]bool{} // change files of this compaction
	opened := 0
	s.env.Objects = &requestHook{s.objects, func(what string) error {
		do, object, _ := strings.Cut(what, " ")
		if !changes.IsFile(object) {
			return nil
		}
		if s.write.gate != 0 {
			t.Error("readers wait for", what)
		}
		switch {
		case do == "create":
			if made[object] = true; len(made) == 1 {
				again(3) // while it reads
			}
		case do == "open" && made[object]:
			if opened++; opened == 1 {
				if !s.change.TryLock() {
					t.Error("flushes wait for what was written while the compaction read")
				} else {
					s.change.Unlock()
				}
			}
			// As it looks, cells are written that were never collected, and seem to have been.
			if opened < 3*spares {
				set(fmt.Appendf(nil, "row%03d-%d", opened, opened), 7000, "other")
			}
		}
		return nil
	}}
	s.RequestMajor()
	if more, err := s.Compact(t.Context()); err != nil || !more {
		t.Fatal(more, err)
	}
	s.env.Objects = s.objects
	if len(made) != parts+1 || opened < 3*spares || opened > suspicions+spares {
		t.Errorf("%d change files were written, and %d looked into; want %d, and %d or few more", len(made), opened, parts+1, 3*spares)
	}
	s.Promise(s.write.seq)
	want := s.content()
	got, collected, _ := s.replayed(start, -1)
	if !maps.Equal(got, want) || want["row003 f1:q@5000"] != "again" || collected != rows-1 {
		t.Errorf("the stream leads to %d cells, the table has %d; %d records of what was collected, want %d", len(got), len(want), collected, rows-1)
	}
	s.tidy()
}

// tidy reports change files and index objects that are stored, and that the row does not name.
func (s *streamed) tidy() {
	s.t.Helper()
	named := map[string]bool{}
	s.Row().Objects(func(object string) { named[object] = true })
	if s.Row().Stream != nil {
		for _, f := range s.indexed(s.Row()) {
			named[f.Object] = true
		}
	}
	infos, err := s.objects.List(s.t.Context(), "", "", 0)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, i := range infos {
		if !named[i.Name] {
			s.t.Errorf("%s is left behind", i.Name)
		}
	}
	if n := len(s.env.objects.unnamed); n > 0 {
		s.t.Errorf("%d objects are not decided about", n)
	}
}

// TestLifeChangesMeanwhile: what a flush or a compaction has written of a stream that is disabled
// and enabled meanwhile is removed: index object, changes, and what was collected.
func TestLifeChangesMeanwhile(t *testing.T) {
	for _, c := range []struct {
		name, at string // what is being written when it happens
		compact  bool
	}{{"index object of a flush", "finish .chx", false}, {"collected by a flush", "finish .chg", false}, {"collected by a compaction", "finish .chg", true}} {
		t.Run(c.name, func(t *testing.T) {
			s, _ := oneVersion(t)
			set := func(key string, ts int64) {
				b := NewBatch([]byte(key))
				b.Set(1, []byte("q"), ts, []byte("v"))
				s.apply(b)
			}
			files := 2
			if c.at == "finish .chx" {
				files = mostNamed
			}
			for i := range files {
				set(fmt.Sprint(i), 1000)
				s.flush()
				if i%10 == 9 {
					if _, err := s.Compact(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
			}
			for _, ts := range []int64{990_000, 991_000} {
				if set("row", ts); c.compact {
					s.flush()
				}
			}
			// What an index object has named is left to sweepers.
			kept := map[string]bool{}
			for _, f := range s.Row().Stream.Files {
				kept[f.Object] = c.at == "finish .chx"
			}
			done := false
			s.env.Objects = &requestHook{s.objects, func(what string) error {
				do, object, _ := strings.Cut(what, " ")
				if !done && do+" "+object[strings.Index(object, "."):] == c.at {
					done = true
					s.stream(&schema.Stream{Life: 2, Enabled: 2, Retention: 24 * time.Hour, Since: time.Now()})
				}
				return nil
			}}
			if c.compact {
				s.RequestMajor()
				if more, err := s.Compact(t.Context()); err != nil || !more {
					t.Fatal(more, err)
				}
			} else {
				s.flush()
			}
			s.env.Objects = s.objects
			if st := s.Row().Stream; !done || st != nil && st.Life != 2 {
				t.Fatalf("changed: %v, %+v", done, st)
			}
			for object := range kept {
				if kept[object] {
					_ = s.objects.Delete(t.Context(), object)
				}
			}
			s.tidy()
		})
	}
}
