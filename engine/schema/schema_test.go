package schema

import (
	"bytes"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trestledb/trestle/engine/fault"
)

func example() *Table {
	t := &Table{Name: "projects/p/instances/i/tables/t", ID: 1 << 40, Families: map[string]Family{}, Granularity: 1000,
		CreateTime: time.Unix(1700000000, 123).UTC(), Version: 3, Extra: []byte{0, 0xFF}}
	t.AddFamily(Family{Name: "a", GC: &GCRule{Union: []*GCRule{{MaxVersions: 2}, {Intersection: []*GCRule{{MaxAge: time.Hour}, {MaxVersions: 1}}}}}})
	t.AddFamily(Family{Name: "b", Aggregate: HLL, Extra: []byte("x"), GCVersion: 3})
	return t
}

func TestMarshal(t *testing.T) {
	want := example()
	got, err := Unmarshal(want.Marshal())
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}

// TestClone: no change of a clone shows in the original.
func TestClone(t *testing.T) {
	o := example()
	c := o.Clone()
	if !reflect.DeepEqual(c, o) {
		t.Errorf("got %+v", c)
	}
	c.AddFamily(Family{Name: "c"})
	c.Families["a"].GC.Union[0].MaxVersions = 9
	c.Families["a"].GC.Union[1].Intersection[0].MaxAge = 1
	c.Families["b"].Extra[0] = 'y'
	c.Extra[0] = 1
	if !reflect.DeepEqual(o, example()) {
		t.Errorf("the original has changed: %+v", o)
	}
}

func TestFamilies(t *testing.T) {
	o := example()
	if o.Families["a"].ID != 0 || o.Families["b"].ID != 1 || o.NextFamily != 2 {
		t.Errorf("ids %+v", o.Families)
	}
	delete(o.Families, "a")
	o.AddFamily(Family{Name: "a"})
	if o.Families["a"].ID != 2 {
		t.Errorf("an id was used again: %+v", o.Families["a"])
	}
	if got := o.FamilyNames(); !reflect.DeepEqual(got, []string{"a", "b"}) {
		t.Errorf("names %v", got)
	}
}

func TestCollects(t *testing.T) {
	const now = 1_000_000
	age := &GCRule{MaxAge: 100 * time.Microsecond}
	two := &GCRule{MaxVersions: 2}
	for name, tc := range map[string]struct {
		rule *GCRule
		rank int
		ts   int64
		want bool
	}{
		"none":                        {nil, 1000, 0, false},
		"versions, second":            {two, 1, 0, false},
		"versions, third":             {two, 2, now, true},
		"age, at the limit":           {age, 1000, now - 100, false},
		"age, beyond":                 {age, 0, now - 101, true},
		"age, in the future":          {age, 0, now + 1, false},
		"union of neither":            {&GCRule{Union: []*GCRule{age, two}}, 1, now, false},
		"union of one":                {&GCRule{Union: []*GCRule{age, two}}, 2, now, true},
		"intersection of one":         {&GCRule{Intersection: []*GCRule{age, two}}, 2, now, false},
		"intersection of both":        {&GCRule{Intersection: []*GCRule{age, two}}, 2, 0, true},
		"empty union":                 {&GCRule{Union: []*GCRule{}}, 9, 0, false},
		"empty intersection":          {&GCRule{Intersection: []*GCRule{}}, 9, 0, false},
		"intersection with no rule":   {&GCRule{Intersection: []*GCRule{two, nil}}, 9, 0, false},
		"union with no rule":          {&GCRule{Union: []*GCRule{two, nil}}, 9, 0, true},
		"union within intersection":   {&GCRule{Intersection: []*GCRule{two, {Union: []*GCRule{age, two}}}}, 2, now, true},
		"intersection within a union": {&GCRule{Union: []*GCRule{{Intersection: []*GCRule{age, two}}, age}}, 0, 0, true},
	} {
		if got := tc.rule.Collects(tc.rank, tc.ts, now); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func FuzzUnmarshal(f *testing.F) {
	f.Add(example().Marshal())
	f.Add([]byte(`{"Families":null}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := Unmarshal(b)
		if err != nil {
			return
		}
		again, err := Unmarshal(s.Marshal())
		if err != nil || !bytes.Equal(again.Marshal(), s.Marshal()) {
			t.Errorf("%s became %s, %v", s.Marshal(), again.Marshal(), err)
		}
		for _, f := range s.Clone().Families {
			f.GC.Collects(1, 2, 3)
		}
	})
}

// TestGroups: every table has the default group, also one that was stored before
// there were groups; ids are not used twice.
func TestGroups(t *testing.T) {
	old, err := Unmarshal([]byte(`{"Name":"t","ID":7,"Families":{"f":{"Name":"f","ID":0},"g":{"Name":"g","ID":1}},"NextFamily":2,"Granularity":1000,"Version":3}`))
	if err != nil {
		t.Fatal(err)
	}
	if gs := old.AllGroups(); !reflect.DeepEqual(gs, []Group{{Name: DefaultGroup}}) || old.Layout != 0 || old.GroupOf(1) != 0 {
		t.Errorf("an old table has the groups %+v", gs)
	}
	if fams := old.FamiliesOf(0); !slices.Equal(fams, []string{"f", "g"}) {
		t.Errorf("default group: %v", fams)
	}
	if b := string(old.Marshal()); strings.Contains(b, "Group") || strings.Contains(b, "Layout") {
		t.Errorf("a table without groups is stored as %s", b)
	}
	a := old.PutGroup(Group{Name: "a"})
	old.Groups = nil
	b := old.PutGroup(Group{Name: "b", BlockBytes: 9, InMemory: true})
	if a == 0 || a == b {
		t.Errorf("ids %d and %d", a, b)
	}
	c := old.Clone()
	c.PutGroup(Group{ID: b, Name: "b", BlockBytes: 8})
	if id := c.PutGroup(Group{Name: DefaultGroup, Compression: "none"}); id != 0 {
		t.Errorf("the default group got the id %d", id)
	}
	if g, ok := old.Group("b"); !ok || g.BlockBytes != 9 {
		t.Errorf("a change of a clone shows in the original: %+v", g)
	}
	got, err := Unmarshal(c.Marshal())
	if err != nil || !reflect.DeepEqual(got, c) {
		t.Errorf("got %+v, %v, want %+v", got, err, c)
	}
	if gs := got.AllGroups(); len(gs) != 2 || gs[0].Compression != "none" || gs[1].ID != b {
		t.Errorf("groups %+v", gs)
	}
}

// TestUnknownField: a schema that a later version has written is refused, wherever it has
// something that this one does not know. Its change would drop that.
func TestUnknownField(t *testing.T) {
	good := `{"Name":"t","ID":7,"Families":{"f":{"Name":"f","ID":0}},"NextFamily":1,"Granularity":1}`
	if _, err := Unmarshal([]byte(good)); err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{
		strings.Replace(good, `"ID":7`, `"ID":7,"Later":{}`, 1),
		strings.Replace(good, `"Name":"f"`, `"Name":"f","Later":1`, 1),
		strings.Replace(good, `"ID":7`, `"ID":7,"Views":[{"Name":"v","Later":true}]`, 1),
	} {
		if _, err := Unmarshal([]byte(s)); fault.KindOf(err) != fault.FailedPrecondition || !strings.Contains(err.Error(), "later version") {
			t.Errorf("%s: %v", s, err)
		}
		if _, err := UnmarshalBackup([]byte(`{"Name":"b","Table":` + s + `}`)); fault.KindOf(err) != fault.FailedPrecondition {
			t.Errorf("a backup of %s: %v", s, err)
		}
	}
}
