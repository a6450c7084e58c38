package engine

import (
	"context"
	"regexp"
	"slices"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/sstable"
	"github.com/trestledb/trestle/engine/tablet"
)

var groupName = regexp.MustCompile(`^[A-Za-z0-9_][-_.A-Za-z0-9]{0,63}$`)

// The least length of a block, and the most bits per row of a Bloom filter, that
// a group can ask for: beyond them there is nothing to gain.
const (
	minBlockBytes = 256
	maxBloomBits  = 64
)

// checkGroup returns what is wrong with the settings of g.
func checkGroup(g *schema.Group) error {
	if !groupName.MatchString(g.Name) {
		return fault.New(fault.Invalid, "%q is no name for a locality group: letters, digits, '-', '_' and '.', at most 64", g.Name)
	}
	o := sstable.Options{BlockBytes: g.BlockBytes}
	if g.Compression != "" {
		var err error
		if o.Compression, err = sstable.ParseCompression(g.Compression); err != nil {
			return err
		}
	}
	if g.BlockBytes != 0 && g.BlockBytes < minBlockBytes {
		return fault.New(fault.Invalid, "blocks of %d bytes are too short: at least %d", g.BlockBytes, minBlockBytes)
	}
	if g.BloomBits > maxBloomBits {
		return fault.New(fault.Invalid, "Bloom filters of %d bits per row are too large: at most %d", g.BloomBits, maxBloomBits)
	}
	return o.Validate()
}

// checkGroups returns what is wrong with the locality groups of a schema.
func checkGroups(t *schema.Table) error {
	all := t.AllGroups()
	if len(all) > schema.MaxGroups {
		return fault.New(fault.FailedPrecondition, "table %s would have %d locality groups; the limit is %d", t.Name, len(all), schema.MaxGroups)
	}
	for i := range all {
		g := &all[i]
		if err := checkGroup(g); err != nil {
			return err
		}
		if (g.ID == 0) != (g.Name == schema.DefaultGroup) || g.ID != 0 && g.ID >= t.NextGroup {
			return fault.New(fault.Invalid, "locality group %s of table %s cannot have the id %d", g.Name, t.Name, g.ID)
		}
		if slices.ContainsFunc(all[:i], func(o schema.Group) bool { return o.ID == g.ID || o.Name == g.Name }) {
			return fault.New(fault.AlreadyExists, "table %s has two locality groups called %s", t.Name, g.Name)
		}
	}
	for n, f := range t.Families {
		if !slices.ContainsFunc(all, func(g schema.Group) bool { return g.ID == f.Group }) {
			return fault.New(fault.Invalid, "family %s of table %s is in a locality group that does not exist", n, t.Name)
		}
	}
	return nil
}

// misplaced returns a family of t whose cells are in a file where reads of it do
// not look, if there is one.
func misplaced(t *schema.Table, f *metadata.FileRef) (family string, ok bool) {
	if f.Layout != t.Layout {
		return "", false // reads look into it
	}
	for n, fam := range t.Families {
		if fam.Group != f.Group && slices.ContainsFunc(f.Families, func(i sstable.FamilyInfo) bool { return i.ID == fam.ID }) {
			return n, true
		}
	}
	return "", false
}

// updateGroups changes the locality groups of a table, of which the last part of
// the name is enough.
func (s *Store) updateGroups(ctx context.Context, table string, change func(*schema.Table) error) (*schema.Table, error) {
	name, err := s.userTable(table)
	if err != nil {
		return nil, err
	}
	return s.updateTable(ctx, name, func(t *schema.Table) error {
		if err := change(t); err != nil {
			return err
		}
		return checkGroups(t)
	})
}

func group(t *schema.Table, name string) (schema.Group, error) {
	g, ok := t.Group(name)
	if !ok {
		return g, fault.New(fault.NotFound, "table %s has no locality group %s", t.Name, name)
	}
	return g, nil
}

// Schema returns the schema of a table, of which the last part of the name is
// enough.
func (s *Store) Schema(ctx context.Context, table string) (*schema.Table, error) {
	name, err := s.userTable(table)
	if err != nil {
		return nil, err
	}
	return s.Table(ctx, name)
}

// GroupInfo is what an operator wants to know of a locality group.
type GroupInfo struct {
	schema.Group
	Families []string
	// The sums over all tablets; Runs is the largest of any.
	tablet.GroupState
}

// Groups describes the locality groups of a table, the default one first, of
// which the last part of the name is enough. A last one without a name is what
// was written under an earlier assignment of families, if anything is left of
// that.
func (s *Store) Groups(ctx context.Context, table string) (name string, groups []GroupInfo, err error) {
	sch, err := s.Schema(ctx, table)
	if err != nil {
		return "", nil, err
	}
	t, err := s.table(sch.Name)
	if err != nil {
		return "", nil, err
	}
	for _, g := range sch.AllGroups() {
		groups = append(groups, GroupInfo{Group: g, Families: sch.FamiliesOf(g.ID)})
	}
	add := func(to *tablet.GroupState, s tablet.GroupState) {
		to.Bytes += s.Bytes
		to.Resident += s.Resident
		to.Files += s.Files
		to.Runs = max(to.Runs, s.Runs)
	}
	var before GroupInfo
	for _, tt := range t.list() {
		states, earlier := tt.GroupStates()
		for i := range groups {
			add(&groups[i].GroupState, states[groups[i].ID])
			delete(states, groups[i].ID)
		}
		add(&before.GroupState, earlier)
		for _, s := range states { // of groups that were deleted
			add(&before.GroupState, s)
		}
	}
	if before.Files > 0 {
		groups = append(groups, before)
	}
	return sch.Name, groups, nil
}

// CreateGroup adds a locality group without families to a table. It is
// AlreadyExists if there is one of that name. g.ID is given out.
func (s *Store) CreateGroup(ctx context.Context, table string, g schema.Group) (*schema.Table, error) {
	return s.updateGroups(ctx, table, func(t *schema.Table) error {
		if _, ok := t.Group(g.Name); ok {
			return fault.New(fault.AlreadyExists, "table %s has a locality group %s already", t.Name, g.Name)
		}
		g.ID, g.Since = 0, 0
		t.PutGroup(g)
		return nil
	})
}

// SetGroup changes the settings of a locality group, which SSTables get that are
// written from now on, and all others in the next major compaction that is asked
// for; whether they are in memory goes for all at once.
func (s *Store) SetGroup(ctx context.Context, table, name string, change func(*schema.Group) error) (*schema.Table, error) {
	t, err := s.updateGroups(ctx, table, func(t *schema.Table) error {
		g, err := group(t, name)
		if err != nil {
			return err
		}
		old := g
		if err := change(&g); err != nil {
			return err
		}
		g.ID, g.Name, g.Since = old.ID, name, old.Since
		if o := old; g.BlockBytes != o.BlockBytes || g.Compression != o.Compression || g.BloomBits != o.BloomBits {
			g.Since = t.Version + 1 // which the change makes it
		}
		t.PutGroup(g)
		return nil
	})
	if err == nil {
		s.workOn(t.Name)
	}
	return t, err
}

// DeleteGroup removes a locality group that has no families.
func (s *Store) DeleteGroup(ctx context.Context, table, name string) (*schema.Table, error) {
	return s.updateGroups(ctx, table, func(t *schema.Table) error {
		g, err := group(t, name)
		if err != nil {
			return err
		}
		if g.ID == 0 {
			return fault.New(fault.FailedPrecondition, "the locality group %s cannot be deleted", name)
		}
		if fams := t.FamiliesOf(g.ID); len(fams) > 0 {
			return fault.New(fault.FailedPrecondition, "locality group %s still has the families %v", name, fams)
		}
		t.Groups = slices.DeleteFunc(t.Groups, func(o schema.Group) bool { return o.ID == g.ID })
		return nil
	})
}

// AssignFamilies makes families of a table those of a locality group. Nothing is
// rewritten before it returns: SSTables that are there serve on, and compactions
// divide them anew in the background.
func (s *Store) AssignFamilies(ctx context.Context, table, name string, families []string) (*schema.Table, error) {
	t, err := s.updateGroups(ctx, table, func(t *schema.Table) error {
		g, err := group(t, name)
		if err != nil {
			return err
		}
		moved := false
		for _, n := range families {
			f, ok := t.Families[n]
			if !ok {
				return fault.New(fault.NotFound, "table %s has no family %s", t.Name, n)
			}
			moved = moved || f.Group != g.ID
			f.Group = g.ID
			t.Families[n] = f
		}
		if moved {
			t.Layout = s.newID()
		}
		return nil
	})
	if err == nil {
		s.workOn(t.Name)
	}
	return t, err
}

// workOn has the tablets of a table looked at for compactions.
func (s *Store) workOn(name string) {
	if t, err := s.table(name); err == nil {
		for _, tt := range t.list() {
			s.work.Add(tt)
		}
	}
}
