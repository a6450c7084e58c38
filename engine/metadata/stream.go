package metadata

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/row"
)

// ChangesName returns the name of the change file with an id. Its writer is known by
// it, as that of an SSTable.
func ChangesName(id uint64) string { return fmt.Sprintf("%016x.chg", id) }

// IsChanges tells whether an object is a change file, by its name.
func IsChanges(object string) bool { return strings.HasSuffix(object, ".chg") }

// A StreamState is what a tablet keeps of its changes: schema.Stream.
type StreamState struct {
	// Life is that of the schema.Stream. What is kept is of no other.
	Life uint64
	// Since says that every change with a larger stamp is kept.
	Since cell.Seq
	// Files are the change files, ascending by Lo.
	Files []changes.Ref `json:",omitempty"`
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
	c.Lineage = slices.Clone(s.Lineage)
	return &c
}

// Add puts a file into its place.
func (s *StreamState) Add(f changes.Ref) {
	s.Files = append(s.Files, f)
	s.sort()
}

func (s *StreamState) sort() {
	slices.SortStableFunc(s.Files, func(a, b changes.Ref) int {
		return cmp.Or(cmp.Compare(a.Lo, b.Lo), cmp.Compare(a.ID, b.ID))
	})
}

// Note adds an event that has just happened.
func (s *StreamState) Note(e Event) {
	s.Lineage = append(s.Lineage, e)
	if n := len(s.Lineage) - MaxLineage; n > 0 {
		s.Lineage = slices.Delete(s.Lineage, 0, n)
	}
}

// Forget lets go of the files in which no stamp is above before, and of the events up to
// it. It tells whether there was any.
func (s *StreamState) Forget(before cell.Seq) bool {
	n := len(s.Files) + len(s.Lineage)
	s.Files = slices.DeleteFunc(s.Files, func(f changes.Ref) bool {
		if f.Hi <= before {
			s.Since = max(s.Since, f.Hi)
			return true
		}
		return false
	})
	s.Lineage = slices.DeleteFunc(s.Lineage, func(e Event) bool { return e.Stamp <= before })
	return len(s.Files)+len(s.Lineage) < n
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
	m.Since = max(a.Since, b.Since)
	for _, f := range b.Files {
		// Two children of one parent share its files.
		if !slices.ContainsFunc(a.Files, func(o changes.Ref) bool { return o.Object == f.Object }) {
			m.Files = append(m.Files, f)
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
	if err := changes.Check(s.Files); err != nil {
		return err.Error()
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
