package schema

import (
	"bytes"
	"slices"
	"strings"
	"time"

	"github.com/trestledb/trestle/engine/fault"
)

// A ViewOf says in the schema of a source that a materialized view is made of it.
type ViewOf struct {
	// Name and Life are those of the View.
	Name string
	Life uint64
	// Families are those that the view reads.
	Families []string `json:",omitempty"`
	// Since is when the view was made, by the clock of the gateway.
	Since time.Time
}

func cloneViews(vs []ViewOf) []ViewOf {
	out := slices.Clone(vs)
	for i := range out {
		out[i].Families = slices.Clone(out[i].Families)
	}
	return out
}

// ViewRetention is for how long the changes of a table are kept that has views and no
// stream. A view that is further behind looks at all rows of its source again.
const ViewRetention = time.Hour

// ChangeStream returns the stream that clients have enabled, nil if there is none.
func (t *Table) ChangeStream() *Stream {
	if t.Stream != nil && t.Stream.Hidden {
		return nil
	}
	return t.Stream
}

// ForClients returns the life of the stream that clients see, and when it began.
func (s *Stream) ForClients() (life uint64, since time.Time) {
	if s.Enabled != 0 {
		return s.Enabled, s.EnabledSince
	}
	return s.Life, s.Since
}

// EnableStream gives clients a stream of the table, which is to be stored as its next
// version, or another retention to the one that they have. now is when a stream begins. What
// is kept for views stays.
func (t *Table) EnableStream(retention time.Duration, now time.Time) {
	now = now.UTC().Truncate(time.Microsecond)
	next := t.Version + 1 // no version comes twice, so no life does
	switch s := t.Stream; {
	case s == nil:
		t.Stream = &Stream{Life: next, Retention: retention, Since: now}
	case s.Hidden:
		t.Stream = &Stream{Life: s.Life, Retention: retention, Since: s.Since, Enabled: next, EnabledSince: now}
	default:
		c := *s
		c.Retention = retention
		t.Stream = &c
	}
}

// DisableStream takes the stream of the table from clients. What is kept for views stays.
func (t *Table) DisableStream() {
	switch s := t.ChangeStream(); {
	case s == nil:
	case len(t.Views) == 0:
		t.Stream = nil
	default:
		t.Stream = &Stream{Life: s.Life, Retention: ViewRetention, Since: s.Since, Hidden: true}
	}
}

// KeepForViews keeps the table's changes as long as its views take it, if it has any: with
// a Stream that is Hidden, unless clients have one. now is when one begins.
func (t *Table) KeepForViews(now time.Time) {
	switch {
	case len(t.Views) > 0 && t.Stream == nil:
		t.Stream = &Stream{Life: t.Version, Retention: ViewRetention, Since: now.UTC().Truncate(time.Microsecond), Hidden: true}
	case len(t.Views) == 0 && t.Stream != nil && t.Stream.Hidden:
		t.Stream = nil
	}
}

// ViewLife is another number, which is greater, each time that the views of the table have to
// look at all its rows again: when changes begin to be kept anew, and when a family is dropped.
// A row may have had cells of that family alone, and no change says that it is gone. It grows
// when a lost lock service is recovered, too, as that leaves out ids of families. It is 0 if no
// changes are kept.
func (t *Table) ViewLife() uint64 {
	if t.Stream == nil {
		return 0
	}
	// A family that is added counts on both sides; one that is dropped keeps its id.
	return t.Stream.Life + uint64(t.NextFamily) - uint64(len(t.Families))
}

// AddView notes a view of the table: NotFound of a family that it lacks, AlreadyExists
// if there is one of the name.
func (t *Table) AddView(v ViewOf) error {
	for _, f := range v.Families {
		if _, ok := t.Families[f]; !ok {
			return fault.New(fault.FailedPrecondition, "Table %s has no column family %s, which the query of materialized view %s reads", t.Name, f, v.Name)
		}
	}
	if slices.ContainsFunc(t.Views, func(o ViewOf) bool { return o.Name == v.Name }) {
		return fault.New(fault.AlreadyExists, "Materialized view already exists: %s", v.Name)
	}
	t.Views = append(t.Views, v)
	slices.SortFunc(t.Views, func(a, b ViewOf) int { return strings.Compare(a.Name, b.Name) })
	return nil
}

// RemoveView forgets a view of the table.
func (t *Table) RemoveView(name string, life uint64) {
	t.Views = slices.DeleteFunc(t.Views, func(o ViewOf) bool { return o.Name == name && o.Life == life })
}

// ForgetViews makes the schema one of a table that has no views: a copy of what a source held.
func (t *Table) ForgetViews() {
	t.Views = nil
	t.KeepForViews(time.Time{})
}

// CheckWritable refuses what a client would change of a table that belongs to a materialized
// view: FailedPrecondition. The servers of the table's tablets alone write to it.
func (t *Table) CheckWritable() error {
	if t.View == nil {
		return nil
	}
	return fault.New(fault.FailedPrecondition, "%s is a materialized view, which cannot be written to: write to table %s", t.View.Name, t.View.Source)
}

// CheckViews reports a change of old that takes a family from a view which reads it, or
// changes what its cells are.
func (t *Table) CheckViews(old *Table) error {
	for i := range t.Views {
		v := &t.Views[i]
		for _, name := range v.Families {
			was, ok := old.Families[name]
			now, still := t.Families[name]
			if ok && (!still || now.ID != was.ID || now.Aggregate != was.Aggregate || !bytes.Equal(now.Extra, was.Extra)) {
				return fault.New(fault.FailedPrecondition, "Column family %s is read by materialized view %s: delete the view first", name, v.Name)
			}
		}
	}
	return nil
}
