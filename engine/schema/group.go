package schema

import (
	"slices"

	"github.com/trestledb/trestle/engine/cell"
)

// DefaultGroup is the name of the locality group of the families that are in no
// other. Every table has it; its id is 0.
const DefaultGroup = "default"

// MaxGroups bounds the locality groups of a table, the default one included: a
// flush writes an SSTable of each at the same time.
const MaxGroups = 16

// A Group is a locality group: families whose cells lie in SSTables of their
// own, so that a read of other families does not touch them (paper §6). The
// settings apply to SSTables written from now on; their zero values stand for
// the server's.
type Group struct {
	// ID is never reused in the table.
	ID   uint16
	Name string
	// BlockBytes is the length of a data block before compression.
	BlockBytes int `json:",omitempty"`
	// Compression is none, snappy, minlz or zstd.
	Compression string `json:",omitempty"`
	// BloomBits is the size of the Bloom filter in bits per row. Negative means
	// that there is none.
	BloomBits int `json:",omitempty"`
	// InMemory keeps the SSTables in memory, as far as the server's budget for
	// that goes.
	InMemory bool `json:",omitempty"`
	// Since is the Version of the table in which what SSTables get last changed.
	Since uint64 `json:",omitempty"`
}

// AllGroups returns the locality groups of t, the default one first, by id.
func (t *Table) AllGroups() []Group {
	out := slices.Clone(t.Groups)
	if !slices.ContainsFunc(out, func(g Group) bool { return g.ID == 0 }) {
		out = append(out, Group{Name: DefaultGroup})
	}
	slices.SortFunc(out, func(a, b Group) int { return int(a.ID) - int(b.ID) })
	return out
}

// Group returns the locality group of that name.
func (t *Table) Group(name string) (Group, bool) {
	for _, g := range t.AllGroups() {
		if g.Name == name {
			return g, true
		}
	}
	return Group{}, false
}

// PutGroup replaces the group of g's id, or adds it. A new group has the id 0,
// which is replaced by the next one; only the default group keeps it. It returns
// the id.
func (t *Table) PutGroup(g Group) uint16 {
	if g.ID == 0 && g.Name != DefaultGroup {
		t.NextGroup = max(t.NextGroup, 1)
		g.ID = t.NextGroup
		t.NextGroup++
	}
	if i := slices.IndexFunc(t.Groups, func(o Group) bool { return o.ID == g.ID }); i >= 0 {
		t.Groups[i] = g
	} else {
		t.Groups = append(t.Groups, g)
	}
	return g.ID
}

// FamiliesOf returns the names of the families in a group, ascending.
func (t *Table) FamiliesOf(group uint16) []string {
	var out []string
	for _, n := range t.FamilyNames() {
		if t.Families[n].Group == group {
			out = append(out, n)
		}
	}
	return out
}

// GroupOf returns the locality group of a family by id. Families that t does not
// have, those of the system among them, are in the default group.
func (t *Table) GroupOf(id cell.FamilyID) uint16 {
	for _, f := range t.Families {
		if f.ID == id {
			return f.Group
		}
	}
	return 0
}

// KeepGroups gives t the locality groups of old, an earlier version of it, and
// its families those that they had. So a caller that knows of no groups changes
// none.
func (t *Table) KeepGroups(old *Table) {
	t.Groups, t.NextGroup, t.Layout = old.Groups, old.NextGroup, old.Layout
	before := old.byID()
	for n, f := range t.Families {
		f.Group = before[f.ID].Group
		t.Families[n] = f
	}
}
