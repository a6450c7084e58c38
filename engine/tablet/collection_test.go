package tablet

import (
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

// TestManyCollected: where more cells are collected than are told apart in memory, a compaction
// looks into those parts of what was collected that may have a cell that was written since, and
// writes those anew that have one. It holds up neither flushes for what was written while it
// read, nor readers of changes for cells that were never collected. Where such cells are written
// always, readers wait for the parts of those that were written last.
func TestManyCollected(t *testing.T) {
	for _, always := range []bool{false, true} {
		t.Run(fmt.Sprint("always ", always), func(t *testing.T) { manyCollected(t, always) })
	}
}

func manyCollected(t *testing.T, always bool) {
	const rows, parts, few = 500, 5, 18
	defer func(n, m int) { hashedCells, partCells = n, m }(hashedCells, partCells)
	hashedCells, partCells = 16, rows/parts
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
	// other writes a cell into the rows of a part that was never collected, and seems to have been.
	others := 0
	other := func(c *collection, part int) {
		for {
			others++
			row := fmt.Appendf(nil, "row%03d-%d", part*rows/parts, others)
			if c.cells.has(maphash.Bytes(c.seed, cell.AppendCell(cell.AppendRow(nil, row), 1, []byte("q"), 7000))) {
				set(row, 7000, "other")
				return
			}
		}
	}
	made := map[string]bool{} // change files of this compaction
	opened := 0
	var waited []int // parts that were opened while readers waited
	written := 0     // the part that was written to in the last inspection
	s.env.Objects = &requestHook{s.objects, func(what string) error {
		do, object, _ := strings.Cut(what, " ")
		if !changes.IsFile(object) {
			return nil
		}
		if do == "create" {
			if made[object] = true; len(made) == 1 {
				again(3) // while it reads
			}
			return nil
		}
		if do != "open" || !made[object] {
			return nil
		}
		c := s.jobs.running()[0].out.removed
		part := slices.IndexFunc(c.parts, func(p collectedPart) bool { return p.name() == object })
		if s.write.gate != 0 {
			waited = append(waited, part)
			if part != written {
				t.Errorf("readers wait for part %d, written is %d", part, written)
			}
		}
		if opened++; opened == 1 {
			if !s.change.TryLock() {
				t.Error("flushes wait for what was written while the compaction read")
			} else {
				s.change.Unlock()
			}
		}
		switch {
		case s.write.gate != 0 || !always && opened >= few:
		case c.inspections == mostInspections-1:
			// All that was written before the change lock is had.
			for i := range parts {
				other(c, i)
			}
		default:
			written = c.inspections % parts
			other(c, written)
		}
		return nil
	}}
	s.RequestMajor()
	if more, err := s.Compact(t.Context()); err != nil || !more {
		t.Fatal(more, err)
	}
	s.env.Objects = s.objects
	want, wait := few, 0
	if always {
		want, wait = mostInspections+parts+1, 1
	}
	if len(made) != parts+1 || opened != want || len(waited) != wait {
		t.Errorf("%d change files were written, and %d looked into, %d while readers waited; want %d, %d, and %d", len(made), opened, len(waited), parts+1, want, wait)
	}
	s.Promise(s.write.seq)
	table := s.content()
	got, collected, _ := s.replayed(start, -1)
	if !maps.Equal(got, table) || table["row003 f1:q@5000"] != "again" || collected != rows-1 {
		t.Errorf("the stream leads to %d cells, the table has %d; %d records of what was collected, want %d", len(got), len(table), collected, rows-1)
	}
	s.tidy()
}

// TestPartsOfCollected: however much is collected, a row names few parts of it, and index objects
// what would be too much beside them. A reader who goes on within it opens no part before that.
func TestPartsOfCollected(t *testing.T) {
	const rows, most = 500, mostParts
	defer func(n int) { partCells = n }(partCells)
	partCells = 1
	s, start := oneVersion(t)
	s.changeFiles = most
	s.reopen()
	for _, ts := range []int64{5000, 9000} {
		for i := range rows {
			b := NewBatch(fmt.Appendf(nil, "row%03d", i))
			b.Set(1, []byte("q"), ts, nil)
			s.apply(b)
		}
		s.flush()
	}
	s.RequestMajor()
	if more, err := s.Compact(t.Context()); err != nil || !more {
		t.Fatal(more, err)
	}
	st := s.Row().Stream
	var parts []string
	for _, f := range st.Files {
		if f.At != 0 {
			parts = append(parts, f.Object)
		}
	}
	if len(parts) != mostParts || len(st.Files) > most || len(st.Indexes) != 1 {
		t.Errorf("%d parts of %d files, %d index objects", len(parts), len(st.Files), len(st.Indexes))
	}
	s.Promise(s.write.seq)
	if got, collected, _ := s.replayed(start, 100); !maps.Equal(got, s.content()) || collected != rows {
		t.Errorf("%d records of what was collected, want %d", collected, rows)
	}
	at, _, err := s.ReadChanges(t.Context(), start, row.All, func(r *changes.Record) (bool, error) {
		return !r.Collected || string(r.Key) < "row300", nil // in the last part
	})
	if err != nil {
		t.Fatal(err)
	}
	opened := 0
	s.env.Objects = &requestHook{s.objects, func(what string) error {
		if do, object, _ := strings.Cut(what, " "); do == "open" && slices.Contains(parts, object) {
			opened++
		}
		return nil
	}}
	left := 0
	_, _, err = s.ReadChanges(t.Context(), at, row.All, func(*changes.Record) (bool, error) { left++; return true, nil })
	if s.env.Objects = s.objects; err != nil || opened != 1 || left != rows-301 {
		t.Errorf("%d parts were opened for %d records; %v", opened, left, err)
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
// and enabled meanwhile is removed: index object and changes. What was collected is told to the
// later one.
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
				for s.majors.wants(0, s.majors.asked.Load()) {
					if more, err := s.Compact(t.Context()); err != nil || !more {
						t.Fatal(more, err)
					}
				}
			} else {
				s.flush()
			}
			s.env.Objects = s.objects
			if st := s.Row().Stream; !done || st == nil || st.Life != 2 || len(st.Files) != 1 || st.Files[0].At == 0 {
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
