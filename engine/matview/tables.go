package matview

import (
	"strings"
	"time"

	"github.com/trestledb/trestle/engine/schema"
)

// stateAge is for how long it is remembered which updates a row of a view has seen,
// that has no source rows any more.
const stateAge = 7 * 24 * time.Hour

// stateSuffix ends the name of the table of a view's contributions. No client can name
// a table so.
const stateSuffix = "/~state"

// StateName returns the name of the table of a view's contributions.
func StateName(view string) string { return view + stateSuffix }

// Hidden tells whether a family of a view's table is none of those that clients see.
func Hidden(family string) bool { return strings.HasPrefix(family, "~") }

// Tables returns the schemas of the two tables of a view: that of its rows, which has
// the view's name, and that of contributions. What a backend sets of a new table is not
// set. Clients see families of the first unless they are Hidden.
func Tables(v *schema.View) (rows, state *schema.Table) {
	rows = newTable(v, v.Name, false)
	visible := map[string]bool{defaultFamily: true}
	for _, c := range v.Columns {
		visible[c.Family] = true
	}
	for name := range visible {
		rows.Families[name] = schema.Family{Name: name}
	}
	hidden := rows.PutGroup(schema.Group{Name: "state"})
	rows.Families[StateFamily] = schema.Family{Name: StateFamily, Group: hidden, GC: &schema.GCRule{MaxVersions: 1}}
	rows.Families[GoneFamily] = schema.Family{Name: GoneFamily, Group: hidden, GC: &schema.GCRule{MaxAge: stateAge}}
	rows.Families[CountsFamily] = schema.Family{Name: CountsFamily, Group: rows.PutGroup(schema.Group{Name: "counts"}), GC: &schema.GCRule{MaxVersions: 1}}

	state = newTable(v, StateName(v.Name), true)
	for _, name := range []string{ContributionFamily, ExpiryFamily, OutboxFamily} {
		state.Families[name] = schema.Family{Name: name, Group: state.PutGroup(schema.Group{Name: name}), GC: &schema.GCRule{MaxVersions: 1}}
	}
	for _, t := range []*schema.Table{rows, state} {
		number(t)
	}
	return rows, state
}

func newTable(v *schema.View, name string, state bool) *schema.Table {
	v = v.Clone()
	v.State = state
	return &schema.Table{Name: name, Families: map[string]schema.Family{}, Granularity: 1, View: v}
}

// number gives the families of a new table their ids, by name.
func number(t *schema.Table) {
	for i, name := range t.FamilyNames() {
		f := t.Families[name]
		f.ID = 0
		delete(t.Families, name)
		_ = i
		t.AddFamily(f)
	}
}

// defaultFamily is the family of columns whose names have no dot, and of the cell that
// each row of a view has.
const defaultFamily = "default"
