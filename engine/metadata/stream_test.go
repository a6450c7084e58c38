package metadata

import (
	"fmt"
	"strings"
	"testing"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
)

func ref(id uint64, lo, hi cell.Seq) changes.Ref {
	return changes.Ref{Object: changes.FileName(id), ID: id, Lo: lo, Hi: hi, Records: 1, Bytes: 10}
}

func index(id uint64, lo, hi cell.Seq) changes.IndexRef {
	return changes.IndexRef{Object: changes.IndexName(id), ID: id, Lo: lo, Hi: hi, Files: 2, Bytes: 20, Size: 5}
}

func rows(start, end string) row.Range { return row.Range{Start: []byte(start), End: []byte(end)} }

// TestStream: a row with a stream is stored and read as it is, a clone is one's own, and
// what is kept too long goes.
func TestStream(t *testing.T) {
	s := &StreamState{Life: 3, Since: 5}
	s.Add(ref(2, 20, 30))
	s.Add(ref(1, 6, 10))
	s.Note(Event{Stamp: 12, Parents: []row.Range{rows("", "")}, Children: []row.Range{rows("", "m"), rows("m", "")}})
	r := &Row{Table: 1, Tablet: 2, MaxSeq: 30, Files: []FileRef{}, Stream: s}
	got, err := Unmarshal(r.Marshal())
	if err != nil || fmt.Sprint(got.Stream) != fmt.Sprint(s) || got.Stream.Files[0].ID != 1 {
		t.Fatalf("%+v, %v", got.Stream, err)
	}
	c := r.Clone()
	c.Stream.Files[0].ID, c.Stream.Since = 9, 9
	c.Stream.Note(Event{Stamp: 40})
	if r.Stream.Files[0].ID != 1 || len(r.Stream.Lineage) != 1 || r.Stream.Since != 5 {
		t.Error("a clone is not its own")
	}
	var objects []string
	r.Objects(func(o string) { objects = append(objects, o) })
	if strings.Join(objects, " ") != changes.FileName(1)+" "+changes.FileName(2) {
		t.Errorf("it names %q", objects)
	}
	if e := s.Ended(rows("", ""), 12); e == nil || len(e.Children) != 2 || s.Ended(rows("", ""), 13) != nil || s.Ended(rows("", "m"), 0) != nil {
		t.Error("what became of a partition")
	}
	if s.Whole = true; s.Forget(9) || s.Since != 5 || !s.Whole || !s.Forget(12) || s.Since != 10 || s.Whole || len(s.Files) != 1 || len(s.Lineage) != 0 {
		t.Errorf("%+v", s)
	}
	for n := range MaxLineage + 5 {
		s.Note(Event{Stamp: cell.Seq(100 + n)})
	}
	if len(s.Lineage) != MaxLineage || s.Lineage[0].Stamp != 105 {
		t.Errorf("%d events from %d", len(s.Lineage), s.Lineage[0].Stamp)
	}
	for name, change := range map[string]func(s *StreamState){
		"no life":      func(s *StreamState) { s.Life = 0 },
		"beyond":       func(s *StreamState) { s.Files[0].Hi = 31 },
		"inverted":     func(s *StreamState) { s.Files[0].Lo = 31 },
		"out of order": func(s *StreamState) { s.Files = append(s.Files, ref(7, 1, 2)) },
		"no files":     func(s *StreamState) { s.Indexes = []changes.IndexRef{{Object: "x", Lo: 1, Hi: 2, Size: 1}} },
		"index beyond": func(s *StreamState) { s.Indexes = []changes.IndexRef{index(1, 2, 31)} },
		"indexes out of order": func(s *StreamState) {
			s.Indexes = []changes.IndexRef{index(1, 20, 21), index(2, 10, 11)}
		},
	} {
		bad := r.Clone()
		change(bad.Stream)
		if _, err := Unmarshal(bad.Marshal()); fault.KindOf(err) != fault.Corruption {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestMergeStreams: what two tablets share is there once, in order.
func TestMergeStreams(t *testing.T) {
	split := Event{Stamp: 10, Parents: []row.Range{rows("", "")}, Children: []row.Range{rows("", "m"), rows("m", "")}}
	a := &StreamState{Life: 1, Since: 3, Files: []changes.Ref{ref(1, 4, 9), ref(3, 15, 20)}, Lineage: []Event{split}}
	b := &StreamState{Life: 1, Since: 2, Files: []changes.Ref{ref(1, 4, 9), ref(2, 11, 14)}, Lineage: []Event{split, {Stamp: 8}}}
	for _, s := range []*StreamState{a, b} {
		s.Whole = true
		if m := MergeStreams(s, s.Clone()); !m.Whole {
			t.Errorf("of tablets whose streams began together: %+v", m)
		}
	}
	m := MergeStreams(a, b)
	if m.Whole {
		t.Error("nothing of what a tablet kept between its beginning and the other's is there, it says")
	}
	part := b.Clone()
	if part.Since = 3; MergeStreams(a, part).Whole == false {
		t.Error("both are whole")
	}
	if part.Whole = false; MergeStreams(a, part).Whole || MergeStreams(part, a).Whole {
		t.Error("one is not whole")
	}
	var ids []uint64
	for _, f := range m.Files {
		ids = append(ids, f.ID)
	}
	if fmt.Sprint(ids) != "[1 2 3]" || m.Since != 3 || len(m.Lineage) != 2 || m.Lineage[0].Stamp != 8 || len(a.Files) != 2 {
		t.Errorf("%+v", m)
	}
}

// TestIndexes: an index object takes the place of files, is let go of by Since and as a whole,
// and by a child that has none of its rows.
func TestIndexes(t *testing.T) {
	s := &StreamState{Life: 3, Since: 5}
	for n := range cell.Seq(6) {
		s.Add(ref(uint64(n), 10+10*n, 15+10*n))
	}
	x := index(9, 20, 35)
	s.Index(x, 2) // of 10 to 25, it may be
	s.Index(index(8, 10, 25), 2, "none")
	show := func() (out string) {
		for _, x := range s.Indexes {
			out += fmt.Sprint(x.ID, " ")
		}
		for _, f := range s.Files {
			out += fmt.Sprint("f", f.ID, " ")
		}
		return out + fmt.Sprint("since ", s.Since)
	}
	want := func(what, want string) {
		t.Helper()
		if got := show(); got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	want("indexed", "8 9 f4 f5 since 5")
	c := s.Clone()
	c.Indexes[0].ID, c.Files[0].ID = 77, 77
	want("a clone is changed", "8 9 f4 f5 since 5")
	if s.Forget(9) {
		t.Error("there was something before all")
	}
	if !s.Forget(22) || s.Forget(22) {
		t.Error("a part is not let go of once")
	}
	want("partly", "8 9 f4 f5 since 22")
	if !s.Forget(30) {
		t.Error("a whole one is not let go of")
	}
	want("one", "9 f4 f5 since 30")
	m := MergeStreams(s, &StreamState{Life: 3, Since: 7, Indexes: []changes.IndexRef{index(7, 15, 40), index(9, 20, 35)}})
	s = m
	want("merged", "7 9 f4 f5 since 30")
	s.Index(index(11, 15, 55), 1, changes.IndexName(7))
	want("in the place of one", "11 9 f5 since 30")
	s.Indexes[0].Rows, s.Files[0].Rows = rows("a", "c"), rows("c", "")
	left := s.Clone()
	left.Clip(rows("", "c"))
	s.Clip(rows("c", ""))
	want("the right child", "9 f5 since 30")
	s = left
	want("the left child", "11 9 since 30")
}
