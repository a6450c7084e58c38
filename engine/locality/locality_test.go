package locality

import (
	"slices"
	"testing"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
)

func TestChanges(t *testing.T) {
	layouts := uint64(0)
	newLayout := func() uint64 { layouts++; return layouts }
	s := &schema.Table{Name: "t", Version: 7, NextFamily: 2, Families: map[string]schema.Family{"a": {Name: "a"}, "b": {Name: "b", ID: 1}}}
	try := func(kind fault.Kind, do func(*schema.Table) error) {
		t.Helper()
		next := s.Clone()
		err := do(next)
		if kind != 0 && fault.KindOf(err) != kind || kind == 0 && err != nil {
			t.Errorf("%v, want %v", err, kind)
		}
		if err == nil {
			s = next
		}
	}
	try(0, func(t *schema.Table) error { return Create(t, schema.Group{Name: "g", Since: 9, BlockBytes: 4096}) })
	if g, _ := s.Group("g"); g.ID != 1 || g.Since != 0 || g.BlockBytes != 4096 {
		t.Errorf("%+v", g)
	}
	try(fault.AlreadyExists, func(t *schema.Table) error { return Create(t, schema.Group{Name: "g"}) })
	try(fault.AlreadyExists, func(t *schema.Table) error { return Create(t, schema.Group{Name: schema.DefaultGroup}) })
	try(fault.Invalid, func(t *schema.Table) error { return Create(t, schema.Group{Name: "no name"}) })
	try(fault.Invalid, func(t *schema.Table) error { return Create(t, schema.Group{Name: "h", BlockBytes: 255}) })
	try(fault.Invalid, func(t *schema.Table) error { return Create(t, schema.Group{Name: "h", BloomBits: 65}) })
	try(fault.Invalid, func(t *schema.Table) error { return Create(t, schema.Group{Name: "h", Compression: "rar"}) })
	try(fault.NotFound, func(t *schema.Table) error { return Assign(t, "none", []string{"a"}, newLayout) })
	try(fault.NotFound, func(t *schema.Table) error { return Assign(t, "g", []string{"none"}, newLayout) })
	if layouts != 0 {
		t.Error("a refused change took a layout")
	}
	try(0, func(t *schema.Table) error { return Assign(t, "g", []string{"b"}, newLayout) })
	if s.Layout != 1 || !slices.Equal(s.FamiliesOf(1), []string{"b"}) {
		t.Errorf("layout %d, families %v", s.Layout, s.FamiliesOf(1))
	}
	try(0, func(t *schema.Table) error { return Assign(t, "g", []string{"b"}, newLayout) }) // nothing moves
	if s.Layout != 1 {
		t.Errorf("layout %d", s.Layout)
	}
	try(0, func(t *schema.Table) error {
		return Set(t, "g", func(g *schema.Group) error { g.InMemory = true; return nil })
	})
	if g, _ := s.Group("g"); g.Since != 0 || !g.InMemory {
		t.Errorf("%+v", g)
	}
	try(0, func(t *schema.Table) error {
		return Set(t, "g", func(g *schema.Group) error { g.Name, g.ID, g.Compression = "x", 9, "zstd"; return nil })
	})
	if g, _ := s.Group("g"); g.ID != 1 || g.Since != 8 || g.Compression != "zstd" {
		t.Errorf("%+v", g)
	}
	try(fault.NotFound, func(t *schema.Table) error { return Set(t, "none", func(*schema.Group) error { return nil }) })
	try(fault.FailedPrecondition, func(t *schema.Table) error { return Delete(t, "g") })
	try(fault.FailedPrecondition, func(t *schema.Table) error { return Delete(t, schema.DefaultGroup) })
	try(0, func(t *schema.Table) error { return Assign(t, schema.DefaultGroup, []string{"b"}, newLayout) })
	try(0, func(t *schema.Table) error { return Delete(t, "g") })
	for range schema.MaxGroups - 1 {
		try(0, func(t *schema.Table) error { return Create(t, schema.Group{Name: string(rune('a' + t.NextGroup))}) })
	}
	try(fault.FailedPrecondition, func(t *schema.Table) error { return Create(t, schema.Group{Name: "more"}) })
}

func TestFullName(t *testing.T) {
	names := slices.Values([]string{"p/i/tables/a", "p/i/tables/b", "p/j/tables/b", "METADATA"})
	for name, want := range map[string]string{"a": "p/i/tables/a", "p/j/tables/b": "p/j/tables/b", "METADATA": "METADATA"} {
		if got, err := FullName(name, names); got != want || err != nil {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
	if _, err := FullName("b", names); fault.KindOf(err) != fault.Invalid {
		t.Error(err)
	}
	if _, err := FullName("c", names); fault.KindOf(err) != fault.NotFound {
		t.Error(err)
	}
}
