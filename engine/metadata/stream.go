package metadata

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/row"
)

// A StreamState is what a tablet keeps of its changes: schema.Stream.
type StreamState struct {
	// Life is that of the schema.Stream. What is kept is of no other.
	Life uint64
	// Since says that every change with a larger stamp is kept.
	Since cell.Seq
	// Whole says that Since is where the stream began: nothing that was kept was let go of.
	Whole bool `json:",omitempty"`
	// Lost is the stamp at which the tablet last lost rows without a record: a damaged SSTable
	// was dropped. What was made of the rows before that is to be made anew. 0: it never did.
	Lost cell.Seq `json:",omitempty"`
	// Files are change files, ascending by Lo.
	Files []changes.Ref `json:",omitempty"`
	// Indexes name more, ascending by Lo: of each those with Hi above Since. A file that is
	// in several, or in Files too, is the same: two children of one tablet may have put it
	// where they liked, before they were merged.
	Indexes []changes.IndexRef `json:",omitempty"`
	// Lineage are the splits and merges that made the tablet, and its parents: the
	// oldest first, MaxLineage at most.
	Lineage []Event `json:",omitempty"`
}

// An Event is a split or a merge of tablets. All changes of Parents have stamps up to
// Stamp, all of Children larger ones.
type Event struct {
	Stamp             cell.Seq
	Parents, Children []row.Range
}

// MaxLineage bounds StreamState.Lineage.
const MaxLineage = 64

// Clone returns a copy whose lists can be changed; nil of nil.
func (s *StreamState) Clone() *StreamState {
	if s == nil {
		return nil
	}
	c := *s
	c.Files = slices.Clone(s.Files)
	c.Indexes = slices.Clone(s.Indexes)
	c.Lineage = slices.Clone(s.Lineage)
	return &c
}

// Add puts a file into its place.
func (s *StreamState) Add(f changes.Ref) {
	s.Files = append(s.Files, f)
	s.sort()
}

// Index puts an index object of the first n of Files into their place, and into that of the
// index objects that replaced names.
func (s *StreamState) Index(x changes.IndexRef, n int, replaced ...string) {
	s.Files = slices.Delete(s.Files, 0, n)
	s.Indexes = slices.DeleteFunc(s.Indexes, func(o changes.IndexRef) bool { return slices.Contains(replaced, o.Object) })
	s.Indexes = append(s.Indexes, x)
	s.sort()
}

func (s *StreamState) sort() {
	slices.SortStableFunc(s.Files, changes.CompareRefs)
	slices.SortStableFunc(s.Indexes, func(a, b changes.IndexRef) int { return cmp.Or(cmp.Compare(a.Lo, b.Lo), cmp.Compare(a.ID, b.ID)) })
}

// Clip lets go of the files and index objects that have no row of a range.
func (s *StreamState) Clip(rows row.Range) {
	s.Files = slices.DeleteFunc(s.Files, func(f changes.Ref) bool { return f.Rows.Intersect(rows).Empty() })
	s.Indexes = slices.DeleteFunc(s.Indexes, func(x changes.IndexRef) bool { return x.Rows.Intersect(rows).Empty() })
}

// Note adds an event that has just happened.
func (s *StreamState) Note(e Event) {
	s.Lineage = append(s.Lineage, e)
	if n := len(s.Lineage) - MaxLineage; n > 0 {
		s.Lineage = slices.Delete(s.Lineage, 0, n)
	}
}

// Forget is ForgetFiles that lets go of the events up to before, too.
func (s *StreamState) Forget(before cell.Seq) bool {
	n := len(s.Lineage)
	s.Lineage = slices.DeleteFunc(s.Lineage, func(e Event) bool { return e.Stamp <= before })
	return s.ForgetFiles(before) || len(s.Lineage) < n
}

// ForgetFiles lets go of the files in which no stamp is above before. It tells whether
// there was any. Of an index object with later files too, it lets go by Since.
func (s *StreamState) ForgetFiles(before cell.Seq) bool {
	n, since := len(s.Files), s.Since
	s.Indexes = slices.DeleteFunc(s.Indexes, func(x changes.IndexRef) bool {
		if x.Lo <= before {
			s.Since = max(s.Since, min(x.Hi, before))
		}
		return x.Hi <= before
	})
	s.Files = slices.DeleteFunc(s.Files, func(f changes.Ref) bool {
		if f.Hi <= before {
			s.Since = max(s.Since, f.Hi)
			return true
		}
		return false
	})
	if s.Since > since {
		s.Whole = false
	}
	return len(s.Files) < n || s.Since > since
}

// Ended returns the event that ended the tablet of rows, after a reader of its changes had
// come to a stamp; nil if there is none, or it has been forgotten.
func (s *StreamState) Ended(rows row.Range, after cell.Seq) *Event {
	for i := range s.Lineage {
		e := &s.Lineage[i]
		if e.Stamp >= after && slices.ContainsFunc(e.Parents, func(p row.Range) bool {
			return bytes.Equal(p.Start, rows.Start) && bytes.Equal(p.End, rows.End)
		}) {
			return e
		}
	}
	return nil
}

// MergeStreams returns what is kept of the changes of two tablets of one life.
func MergeStreams(a, b *StreamState) *StreamState {
	m := a.Clone()
	m.Since, m.Lost = max(a.Since, b.Since), max(a.Lost, b.Lost)
	m.Whole = a.Whole && b.Whole && a.Since == b.Since
	for _, f := range b.Files {
		// Two children of one parent share its files.
		if !slices.ContainsFunc(a.Files, func(o changes.Ref) bool { return o.Object == f.Object }) {
			m.Files = append(m.Files, f)
		}
	}
	for _, x := range b.Indexes {
		if !slices.ContainsFunc(a.Indexes, func(o changes.IndexRef) bool { return o.Object == x.Object }) {
			m.Indexes = append(m.Indexes, x)
		}
	}
	m.sort()
	for _, e := range b.Lineage {
		if !slices.ContainsFunc(a.Lineage, e.equal) {
			m.Lineage = append(m.Lineage, e)
		}
	}
	slices.SortStableFunc(m.Lineage, func(a, b Event) int { return cmp.Compare(a.Stamp, b.Stamp) })
	if n := len(m.Lineage) - MaxLineage; n > 0 {
		m.Lineage = slices.Delete(m.Lineage, 0, n)
	}
	return m
}

func (e Event) equal(o Event) bool {
	same := func(a, b row.Range) bool { return bytes.Equal(a.Start, b.Start) && bytes.Equal(a.End, b.End) }
	return e.Stamp == o.Stamp && slices.EqualFunc(e.Parents, o.Parents, same) && slices.EqualFunc(e.Children, o.Children, same)
}

// check reports what no sound row has of a stream.
func (s *StreamState) check(r *Row) string {
	if s.Life == 0 {
		return "a stream without a life"
	}
	if err := errors.Join(changes.Check(s.Files), changes.CheckIndexes(s.Indexes)); err != nil {
		return err.Error()
	}
	if s.Lost > r.MaxSeq {
		return fmt.Sprintf("rows were lost at stamp %d, the largest is %d", s.Lost, r.MaxSeq)
	}
	for i, x := range s.Indexes {
		switch {
		case x.Hi > r.MaxSeq:
			return fmt.Sprintf("index object %s has stamp %d, the largest is %d", x.Object, x.Hi, r.MaxSeq)
		case i > 0 && s.Indexes[i-1].Lo > x.Lo:
			return fmt.Sprintf("index objects %s and %s are out of order", s.Indexes[i-1].Object, x.Object)
		}
	}
	for i, f := range s.Files {
		switch {
		case f.Hi > r.MaxSeq:
			return fmt.Sprintf("change file %s has stamp %d, the largest is %d", f.Object, f.Hi, r.MaxSeq)
		case i > 0 && s.Files[i-1].Lo > f.Lo:
			return fmt.Sprintf("change files %s and %s are out of order", s.Files[i-1].Object, f.Object)
		}
	}
	return ""
}
