package view

import (
	"bytes"
	"slices"
	"sort"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

// A View is the definition of an authorized view. It does not change and is
// safe for concurrent use.
type View struct {
	name string
	// rows are as row.Union leaves them.
	rows []row.Range
	// columns are qualifiers by family, likewise. No list is empty.
	columns map[string][]row.Range
}

// New returns the view that a SubsetView defines. One without row prefixes has
// no rows, one without families no columns. name is its resource name.
func New(name string, s *adminpb.AuthorizedView_SubsetView) *View {
	v := &View{name: name, columns: make(map[string][]row.Range, len(s.GetFamilySubsets()))}
	for _, p := range s.GetRowPrefixes() {
		v.rows = append(v.rows, row.Prefix(p))
	}
	v.rows = row.Union(v.rows)
	for name, f := range s.GetFamilySubsets() {
		var ranges []row.Range
		for _, q := range f.GetQualifiers() {
			ranges = append(ranges, row.Single(q))
		}
		for _, p := range f.GetQualifierPrefixes() {
			ranges = append(ranges, row.Prefix(p))
		}
		if len(ranges) > 0 {
			v.columns[name] = row.Union(ranges)
		}
	}
	return v
}

// Covers tells whether everything in w is in v too, whatever families there are.
func (v *View) Covers(w *View) bool {
	if !covers(v.rows, w.rows) {
		return false
	}
	for name, ranges := range w.columns {
		if !covers(v.columns[name], ranges) {
			return false
		}
	}
	return true
}

// covers tells whether each of the inner ranges lies in one of the outer. Both
// are as row.Union leaves them, so that touching ranges are one.
func covers(outer, inner []row.Range) bool {
	for _, r := range inner {
		i := at(outer, r.Start)
		if i == len(outer) || bytes.Compare(outer[i].Start, r.Start) > 0 {
			return false
		}
		if end := outer[i].End; len(end) > 0 && (len(r.End) == 0 || bytes.Compare(r.End, end) > 0) {
			return false
		}
	}
	return true
}

// at returns the index of the first range that does not end before or at key.
func at(ranges []row.Range, key []byte) int {
	return sort.Search(len(ranges), func(i int) bool {
		end := ranges[i].End
		return len(end) == 0 || bytes.Compare(key, end) < 0
	})
}

func contains(ranges []row.Range, key []byte) bool {
	i := at(ranges, key)
	return i < len(ranges) && bytes.Compare(key, ranges[i].Start) >= 0
}

// Intersect returns what of ranges is in the view. Both ranges and the result
// are as row.Union leaves them.
func (v *View) Intersect(ranges []row.Range) []row.Range {
	var out []row.Range
	for _, r := range ranges {
		for i := at(v.rows, r.Start); i < len(v.rows); i++ {
			s := r.Intersect(v.rows[i])
			if s.Empty() {
				break // those behind begin later still
			}
			out = append(out, s)
		}
	}
	return out
}

// Filter returns client's filter for a row of which only what is in the view is
// there. It refuses a filter that names a column family outside of the view,
// whether the table has that family or not. client has been validated; it may be
// nil.
func (v *View) Filter(client *filter.Node) (*filter.Node, error) {
	for _, family := range client.LiteralFamilies() {
		if v.columns[family] == nil {
			return nil, fault.New(fault.PermissionDenied, "Cannot read from %s because the filter names the column family '%s' outside the Authorized View.", v.name, family)
		}
	}
	return &filter.Node{Op: filter.Columns, Columns: v.columns, Children: []*filter.Node{client}}, nil
}

// HasRow tells whether a row of that key is in the view.
func (v *View) HasRow(key []byte) bool { return contains(v.rows, key) }

// outside is the refusal of a change, in the words of Google's service.
func (v *View) outside() error {
	return fault.New(fault.PermissionDenied, "Cannot mutate from %s because the mutation contains cells outside the Authorized View.", v.name)
}

// Check refuses mutations of the row of key, unless all that they could change
// is in the view. families are those of the table.
func (v *View) Check(key []byte, muts []row.Mutation, families map[string]schema.Family) error {
	if !v.HasRow(key) {
		return v.outside()
	}
	for i := range muts {
		if !v.permits(&muts[i], families) {
			return v.outside()
		}
	}
	return nil
}

func (v *View) permits(m *row.Mutation, families map[string]schema.Family) bool {
	switch m.Op {
	case row.SetCell, row.DeleteColumn, row.AddToCell, row.MergeToCell:
		return contains(v.columns[m.Family], m.Qualifier)
	case row.DeleteFamily:
		return v.hasFamily(m.Family)
	case row.DeleteRow:
		for name := range families {
			if !v.hasFamily(name) {
				return false
			}
		}
		return true
	}
	return false
}

// hasFamily tells whether every column that a family can have is in the view.
func (v *View) hasFamily(name string) bool {
	return slices.ContainsFunc(v.columns[name], func(r row.Range) bool { return len(r.Start) == 0 && len(r.End) == 0 })
}

// CheckRules is Check for a read-modify-write.
func (v *View) CheckRules(key []byte, rules []row.Rule) error {
	if !v.HasRow(key) {
		return v.outside()
	}
	for i := range rules {
		if !contains(v.columns[rules[i].Family], rules[i].Qualifier) {
			return v.outside()
		}
	}
	return nil
}
