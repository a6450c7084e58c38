package locality

import (
	"regexp"
	"slices"
	"strings"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/sstable"
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

// Check returns what is wrong with the locality groups of a schema.
func Check(t *schema.Table) error {
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

func group(t *schema.Table, name string) (schema.Group, error) {
	g, ok := t.Group(name)
	if !ok {
		return g, fault.New(fault.NotFound, "table %s has no locality group %s", t.Name, name)
	}
	return g, nil
}

// Create adds a locality group without families. It is AlreadyExists if there is
// one of that name. g.ID is given out.
func Create(t *schema.Table, g schema.Group) error {
	if _, ok := t.Group(g.Name); ok {
		return fault.New(fault.AlreadyExists, "table %s has a locality group %s already", t.Name, g.Name)
	}
	g.ID, g.Since = 0, 0
	t.PutGroup(g)
	return Check(t)
}

// Set changes the settings of a locality group. SSTables that are written from
// now on get them, and all others in the next major compaction that is asked
// for. Whether they are in memory goes for all at once. The change makes the
// schema's next version.
func Set(t *schema.Table, name string, change func(*schema.Group) error) error {
	g, err := group(t, name)
	if err != nil {
		return err
	}
	old := g
	if err := change(&g); err != nil {
		return err
	}
	g.ID, g.Name, g.Since = old.ID, name, old.Since
	if g.BlockBytes != old.BlockBytes || g.Compression != old.Compression || g.BloomBits != old.BloomBits {
		g.Since = t.Version + 1
	}
	t.PutGroup(g)
	return Check(t)
}

// Delete removes a locality group that has no families.
func Delete(t *schema.Table, name string) error {
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
	return Check(t)
}

// Assign makes families those of a locality group. Nothing is rewritten for it
// at once: SSTables that are there serve on, and compactions divide them anew.
// newLayout gives out a number that no Layout ever had.
func Assign(t *schema.Table, name string, families []string, newLayout func() uint64) error {
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
		t.Layout = newLayout()
	}
	return Check(t)
}

// FullName returns the full name of the table that an operator means: name is
// that, or the last part of it if no other of the names has the same.
func FullName(name string, names func(yield func(string) bool)) (string, error) {
	var found []string
	for full := range names {
		if full == name {
			return full, nil
		}
		if full[strings.LastIndexByte(full, '/')+1:] == name {
			found = append(found, full)
		}
	}
	switch len(found) {
	case 0:
		return "", fault.New(fault.NotFound, "Table not found: %s", name)
	case 1:
		return found[0], nil
	}
	slices.Sort(found)
	return "", fault.New(fault.Invalid, "several tables are called %s; give the full name of one: %s", name, strings.Join(found, ", "))
}

// Misplaced returns a family of t whose cells are in an SSTable where reads of it do
// not look, if there is one. The SSTable was written for a group under a layout.
func Misplaced(t *schema.Table, group uint16, layout uint64, info *sstable.Info) (family string, ok bool) {
	if layout != t.Layout {
		return "", false // reads look into it
	}
	for n, fam := range t.Families {
		if fam.Group != group && slices.ContainsFunc(info.Families, func(i sstable.FamilyInfo) bool { return i.ID == fam.ID }) {
			return n, true
		}
	}
	return "", false
}
