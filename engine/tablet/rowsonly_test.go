package tablet

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/stamp"
)

// TestRowsForViews: of a table whose changes are kept for views only, files say which rows have
// changed, and which had a cell collected. Nothing is looked through for cells that were written
// again.
func TestRowsForViews(t *testing.T) {
	for _, compact := range []bool{false, true} {
		t.Run(fmt.Sprint("compaction ", compact), func(t *testing.T) {
			s, from := oneVersion(t)
			s.stream(&schema.Stream{Life: 1, Hidden: true, Retention: time.Hour, Since: s.sch.Load().Stream.Since})
			const rows = 10
			for _, ts := range []int64{5000, 9000} {
				for i := range rows {
					b := NewBatch(fmt.Append(nil, "row", i))
					b.Set(1, []byte("q"), ts, make([]byte, 10_000))
					b.Set(1, []byte("other"), ts, []byte("v"))
					s.apply(b)
				}
				if compact {
					s.flush()
				}
			}
			if compact {
				s.RequestMajor()
				if more, err := s.Compact(t.Context()); err != nil || !more {
					t.Fatal(more, err)
				}
			} else {
				s.flush()
			}
			var size int64
			for _, f := range s.Row().Stream.Files {
				size += f.Bytes
			}
			if size > 2000 {
				t.Errorf("change files have %d bytes for %d rows", size, rows)
			}
			s.Promise(s.write.seq)
			written, collected := map[string]int{}, map[string]int{}
			if _, _, err := s.ReadChangedRows(t.Context(), from, row.All, func(r *changes.Record) (bool, error) {
				if r.Collected {
					collected[string(r.Key)]++
				} else {
					written[string(r.Key)]++
				}
				return true, nil
			}); err != nil {
				t.Fatal(err)
			}
			for i := range rows {
				if k := fmt.Sprint("row", i); written[k] != 2 || collected[k] != 1 {
					t.Errorf("%s: %d records of writes, %d of what was collected", k, written[k], collected[k])
				}
			}
			// Clients who have a stream now are told that they come too late for these.
			s.stream(&schema.Stream{Life: 1, Enabled: 2, Retention: time.Hour, Since: s.sch.Load().Stream.Since, EnabledSince: time.Now()})
			b := NewBatch([]byte("row5"))
			b.Set(1, []byte("q"), 1000, []byte("for clients"))
			s.apply(b)
			s.flush()
			s.Promise(s.write.seq)
			files, told := len(s.Row().Stream.Files)-1, 0
			for {
				var got []string
				_, _, err := s.ReadChanges(t.Context(), from, row.All, func(r *changes.Record) (bool, error) {
					if len(r.Changes) == 0 {
						t.Errorf("a client gets a record of %s that tells nothing", r.Key)
					}
					got = append(got, string(r.Key))
					return true, nil
				})
				if err == nil {
					if told == 0 || !slices.Equal(got, []string{"row5"}) {
						t.Errorf("a client gets %q, when it has begun anew %d times", got, told)
					}
					break
				}
				// It begins anew where it is told to, behind a whole file.
				begin, ok := changes.BeginOf(err)
				if !ok {
					t.Fatalf("a client who reads what was kept for views gets %v", err)
				}
				if from = begin; told == files {
					t.Fatalf("a client is told more than once for each of %d files to begin later", files)
				}
				told++
			}
		})
	}
}

// TestUncoveredForViews: a row has changed for views when a compaction forgets a deletion of HBase
// that hid a cell which was written after it.
func TestUncoveredForViews(t *testing.T) {
	s, from := oneVersion(t)
	s.stream(&schema.Stream{Life: 1, Hidden: true, Retention: time.Hour, Since: s.sch.Load().Stream.Since})
	set := func(ts int64) {
		b := NewBatch([]byte("row"))
		b.Set(1, []byte("q"), ts, []byte("v"))
		s.apply(b)
	}
	set(1000)
	s.flush()
	b := NewBatch([]byte("row"))
	b.CoverColumn(1, []byte("q"), cell.TimeRange{End: 9000}, true)
	s.apply(b)
	s.flush()
	set(5000)
	if got := s.content(); len(got) != 0 {
		t.Fatalf("the deletion leaves %v", got)
	}
	from.Through = s.Visible()
	s.RequestMajor()
	if more, err := s.Compact(t.Context()); err != nil || !more {
		t.Fatal(more, err)
	}
	if got := s.content(); len(got) != 1 {
		t.Fatalf("when the deletion is forgotten there is %v", got)
	}
	s.Promise(s.write.seq)
	var got []string
	if _, _, err := s.ReadChangedRows(t.Context(), from, row.All, func(r *changes.Record) (bool, error) {
		got = append(got, fmt.Sprint(string(r.Key), " ", r.Collected))
		return true, nil
	}); err != nil || !slices.Equal(got, []string{"row true"}) {
		t.Errorf("views are told of %q, %v", got, err)
	}
}

// TestStreamBeginsWhileCollected: clients who get a stream while garbage collection runs are told
// what it took, and not that a cell is gone that was written again. It is so whether changes were
// kept for views before, for clients with a stream of another life, or for nobody.
func TestStreamBeginsWhileCollected(t *testing.T) {
	for n := range 6 {
		compact, before := n%2 == 1, []string{"views", "clients", "nobody"}[n/2]
		t.Run(fmt.Sprintf("kept for %s, compaction %t", before, compact), func(t *testing.T) {
			s, _ := oneVersion(t)
			since := s.sch.Load().Stream.Since
			then := &schema.Stream{Life: 5, Retention: time.Hour, Since: time.Now()}
			switch before {
			case "views":
				s.stream(&schema.Stream{Life: 1, Hidden: true, Retention: time.Hour, Since: since})
				then = &schema.Stream{Life: 1, Enabled: 2, Retention: time.Hour, Since: since, EnabledSince: time.Now()}
			case "nobody":
				s.stream(nil)
			}
			const rows = 3
			set := func(i int, ts int64, value string) {
				b := NewBatch(fmt.Append(nil, "row", i))
				b.Set(1, []byte("q"), ts, []byte(value))
				s.apply(b)
			}
			for _, ts := range []int64{5000, 9000} {
				for i := range rows {
					set(i, ts, "v")
				}
				if compact {
					s.flush()
				}
			}
			var begun changes.Position
			var base map[string]string
			id := s.env.NewID
			s.env.NewID = func() uint64 {
				if base == nil {
					s.stream(then)
					// The first write that knows of the stream.
					set(9, 1000, "first")
					base, begun = s.content(), changes.Position{Through: cell.Seq(s.visible.Load())}
					b := NewBatch([]byte("row1"))
					b.DeleteColumn(1, []byte("q"), cell.TimeRange{Start: 9000, End: 10_000})
					b.Set(1, []byte("q"), 5000, []byte("again"))
					s.apply(b)
				}
				return id()
			}
			if compact {
				s.RequestMajor()
				for base == nil || s.majors.wants(0, s.majors.asked.Load()) {
					if _, err := s.Compact(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
			} else {
				s.flush()
			}
			s.env.NewID = id
			if n := len(s.Row().Files); n != 1 {
				t.Errorf("%d SSTables", n)
			}
			s.flush()
			s.Promise(s.write.seq + 10*stamp.Stride)
			want := s.content()
			got, collected, _ := s.replayedOn(base, begun, -1)
			if !maps.Equal(got, want) || want["row1 f1:q@5000"] != "again" || want["row2 f1:q@5000"] != "" || collected == 0 {
				t.Errorf("the stream leads to %v, the table has %v; %d records of what was collected", got, want, collected)
			}
			s.tidy()
		})
	}
}

// TestWrittenForViews: a collection that is told to clients suspects all that it took, if all that
// is known of what was written since is which rows it was in.
func TestWrittenForViews(t *testing.T) {
	s, _ := oneVersion(t)
	since := s.sch.Load().Stream.Since
	s.stream(&schema.Stream{Life: 1, Hidden: true, Retention: time.Hour, Since: since})
	b := NewBatch([]byte("row"))
	b.Set(1, []byte("q"), 5000, []byte("v"))
	s.apply(b)
	s.flush()
	s.stream(&schema.Stream{Life: 1, Enabled: 2, Retention: time.Hour, Since: since, EnabledSince: time.Now()})
	c := s.newCollection()
	c.looked = stamp.At(since)
	if n, err := c.lookThrough(t.Context(), s.Tablet, s.lastGiven()); err != nil || n != 1 || !c.all {
		t.Errorf("%d records, %v; all are suspected: %v", n, err, c.all)
	}
}
