package engine

import (
	"context"

	"github.com/trestledb/trestle/engine/locality"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/tablet"
)

// updateGroups changes the locality groups of a table, of which the last part of
// the name is enough.
func (s *Store) updateGroups(ctx context.Context, table string, change func(*schema.Table) error) (*schema.Table, error) {
	name, err := s.userTable(table)
	if err != nil {
		return nil, err
	}
	return s.updateTable(ctx, name, change)
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

// Groups describes the locality groups of a table, the default one first, of
// which the last part of the name is enough. A last one without a name is what
// was written under an earlier assignment of families, if anything is left of
// that.
func (s *Store) Groups(ctx context.Context, table string) (name string, groups []tablet.GroupInfo, err error) {
	sch, err := s.Schema(ctx, table)
	if err != nil {
		return "", nil, err
	}
	t, err := s.table(sch.Name)
	if err != nil {
		return "", nil, err
	}
	sum := tablet.NewGroupSum(sch)
	for _, tt := range t.list() {
		states, earlier := tt.GroupStates()
		sum.Add(states, earlier)
	}
	return sch.Name, sum.Groups(), nil
}

// CreateGroup adds a locality group without families to a table. It is
// AlreadyExists if there is one of that name. g.ID is given out.
func (s *Store) CreateGroup(ctx context.Context, table string, g schema.Group) (*schema.Table, error) {
	return s.updateGroups(ctx, table, func(t *schema.Table) error { return locality.Create(t, g) })
}

// SetGroup changes the settings of a locality group, which SSTables get that are
// written from now on, and all others in the next major compaction that is asked
// for; whether they are in memory goes for all at once.
func (s *Store) SetGroup(ctx context.Context, table, name string, change func(*schema.Group) error) (*schema.Table, error) {
	t, err := s.updateGroups(ctx, table, func(t *schema.Table) error { return locality.Set(t, name, change) })
	if err == nil {
		s.workOn(t.Name)
	}
	return t, err
}

// DeleteGroup removes a locality group that has no families.
func (s *Store) DeleteGroup(ctx context.Context, table, name string) (*schema.Table, error) {
	return s.updateGroups(ctx, table, func(t *schema.Table) error { return locality.Delete(t, name) })
}

// AssignFamilies makes families of a table those of a locality group. Nothing is
// rewritten before it returns: SSTables that are there serve on, and compactions
// divide them anew in the background.
func (s *Store) AssignFamilies(ctx context.Context, table, name string, families []string) (*schema.Table, error) {
	t, err := s.updateGroups(ctx, table, func(t *schema.Table) error { return locality.Assign(t, name, families, s.newID) })
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
