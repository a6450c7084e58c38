package tablet

import (
	"slices"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/sstable"
)

// A layout is how one version of a schema arranges families in locality groups.
type layout struct {
	schema *schema.Table
	// groups are those that have families, and the default one, by id.
	groups []schema.Group
	ids    []uint16 // of groups
	// slots gives the index in groups of each family by id.
	slots []uint8
}

func newLayout(s *schema.Table) *layout {
	l := &layout{schema: s, slots: make([]uint8, s.NextFamily)}
	for _, g := range s.AllGroups() {
		used := g.ID == 0
		for _, f := range s.Families {
			if f.Group == g.ID {
				l.slots[f.ID] = uint8(len(l.groups))
				used = true
			}
		}
		if used {
			l.groups, l.ids = append(l.groups, g), append(l.ids, g.ID)
		}
	}
	return l
}

// slot returns the index in l.groups of a family. Families that the table does
// not have, those of the system among them, are in the default group.
func (l *layout) slot(f cell.FamilyID) int {
	if int(f) < len(l.slots) {
		return int(l.slots[f])
	}
	return 0
}

// group returns the group of an id; one that has no families any more has the
// default settings.
func (l *layout) group(id uint16) schema.Group {
	if i := slices.Index(l.ids, id); i >= 0 {
		return l.groups[i]
	}
	return schema.Group{ID: id}
}

// layout returns that of the schema as it is now.
func (t *Tablet) layout() *layout {
	s := t.schema()
	l := t.layouts.Load()
	if l == nil || l.schema != s {
		l = newLayout(s)
		t.layouts.Store(l)
	}
	return l
}

// stale tells whether a file of v was written under another layout: it may hold
// any family.
func (l *layout) stale(v *version) bool {
	return slices.ContainsFunc(v.runs, func(u run) bool { return u.layout != l.schema.Layout })
}

// mayHold tells whether a file of v may hold entries of a group.
func (l *layout) mayHold(v *version, group uint16) bool {
	return slices.ContainsFunc(v.runs, func(u run) bool { return u.group == group || u.layout != l.schema.Layout })
}

// A choice says which runs a read looks into: those that may hold cells of
// certain families. The zero choice is of all.
type choice struct {
	some   bool
	layout uint64
	groups []uint16
}

// takes tells whether a read looks into u. Under another layout than that of the
// choice any family may be in it.
func (c *choice) takes(u *run) bool {
	return !c.some || u.layout != c.layout || slices.Contains(c.groups, u.group)
}

// choose returns the choice of the families for which want is true.
func choose(s *schema.Table, want func(schema.Family) bool) choice {
	c := choice{layout: s.Layout}
	if len(s.Groups) == 0 {
		return c // there is one
	}
	for _, f := range s.Families {
		if !want(f) {
			c.some = true
		} else if !slices.Contains(c.groups, f.Group) {
			c.groups = append(c.groups, f.Group)
		}
	}
	return c
}

// chooseFamily returns the choice of one family.
func (l *layout) chooseFamily(f cell.FamilyID) choice {
	i := l.slot(f)
	return choice{some: len(l.groups) > 1, layout: l.schema.Layout, groups: l.ids[i : i+1]}
}

// tableOptions returns the settings of SSTables of a group.
func (e *Env) tableOptions(g *schema.Group) (sstable.Options, error) {
	o := e.Options.Table
	if g.BlockBytes != 0 {
		o.BlockBytes = g.BlockBytes
	}
	if g.BloomBits != 0 {
		o.BloomBitsPerKey = g.BloomBits
	}
	if g.Compression != "" {
		c, err := sstable.ParseCompression(g.Compression)
		if err != nil {
			return o, fault.New(fault.Corruption, "locality group %s: %w", g.Name, err)
		}
		o.Compression = c
	}
	return o, nil
}
