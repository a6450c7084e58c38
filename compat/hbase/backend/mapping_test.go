package backend

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/model"
	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/compat/hbase/wire"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

func TestNames(t *testing.T) {
	p := place{"p", "i"}
	for _, c := range []struct{ resource, name string }{
		{"projects/p/instances/i/tables/t", "t"},
		{"projects/p/instances/other/tables/t.x-y", "other:t.x-y"},
		{"projects/p/instances/my-instance/tables/t", "my_2dinstance:t"},
		{"projects/p/instances/my_ns/tables/t", "my_ns:t"},
		{"projects/p/instances/default/tables/t", "_64efault:t"},
		{"projects/p/instances/hbase/tables/t", "_68base:t"},
		{"projects/q-1/instances/i/tables/t", "q_2d1__i:t"},
	} {
		n, err := p.table(c.resource)
		if err != nil || n.String() != c.name {
			t.Errorf("%s is %s, %v; want %s", c.resource, n, err, c.name)
		}
		if got := p.resource(n); got != c.resource {
			t.Errorf("%s comes back as %s", c.resource, got)
		}
	}
	for _, bad := range []string{"", "t", "projects/p/instances/i/tables/", "projects/p/instances/i/tables/.t", "projects/p/instances/i/tables/a:b"} {
		if n, err := p.table(bad); !errors.Is(err, fault.Invalid) {
			t.Errorf("%q is %v, %v", bad, n, err)
		}
	}
}

// FuzzNames: every instance has a namespace of its own, made of what HBase
// allows, and is found again.
func FuzzNames(f *testing.F) {
	for _, s := range []string{"a", "a-b", "a__b", "_", "a_", "_5f", "hbase", "default", "ä", "a_0", "__a"} {
		f.Add("p", s)
		f.Add("other-project", s)
	}
	f.Fuzz(func(t *testing.T, project, instance string) {
		p := place{"p", "i"}
		resource := "projects/" + project + "/instances/" + instance + "/tables/t"
		if resourceName.FindStringSubmatch(resource) == nil {
			return
		}
		n, err := p.table(resource)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []byte(n.Namespace) {
			if !plainByte(c) && c != '_' {
				t.Fatalf("%q has the namespace %q", resource, n.Namespace)
			}
		}
		if n.Namespace == model.SystemNamespace {
			t.Fatalf("%q is in HBase's own namespace", resource)
		}
		if got := p.resource(n); got != resource {
			t.Fatalf("%q is %q, which is %q", resource, n, got)
		}
	})
}

func TestDescriptor(t *testing.T) {
	const resource = "projects/p/instances/i/tables/t"
	s := newSchema(&schema.Table{Name: resource, Granularity: 1000, Extra: []byte{1}, Families: map[string]schema.Family{
		"plain": {}, "few": {GC: &schema.GCRule{MaxVersions: 3}}, "young": {GC: &schema.GCRule{MaxAge: time.Hour}},
		"odd": {GC: &schema.GCRule{MaxAge: 1500 * time.Millisecond}}, "sum": {Aggregate: schema.Sum, Extra: []byte("type")},
	}})
	d, err := descriptor(model.ParseName("t"), s, nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := describe(d, resource)
	if err != nil {
		t.Fatal(err)
	}
	if !got.versioned || got.unit != model.Millis || !reflect.DeepEqual(got.schema.Families, s.Families) || got.schema.ID != s.ID || !got.schema.CreateTime.Equal(s.CreateTime) {
		t.Errorf("comes back as %+v", got)
	}
	by := map[string]*pb.ColumnFamilySchema{}
	for _, f := range d.GetColumnFamilies() {
		by[string(f.GetName())] = f
		if v, _ := attribute(f.GetAttributes(), model.AttrNewVersions); v != "true" {
			t.Errorf("family %s has NEW_VERSION_BEHAVIOR %q", f.GetName(), v)
		}
	}
	for name, want := range map[string]model.Family{
		"few": {Versions: 3, TTL: model.Forever}, "young": {Versions: math.MaxInt32, TTL: 3600},
		"odd": {Versions: math.MaxInt32, TTL: model.Forever}, versionFamily: {Versions: 1, TTL: versionTTL},
	} {
		if m := familyOf(by[name]); m != want {
			t.Errorf("family %s keeps %+v, want %+v", name, m, want)
		}
	}
	// What HBase's shell changes is seen.
	by["few"].Attributes = setAttribute(by["few"].Attributes, model.AttrVersions, "7")
	d.ColumnFamilies = append(d.ColumnFamilies, &pb.ColumnFamilySchema{Name: []byte("new")})
	if got, err = describe(d, resource); err != nil || got.schema.Families["few"].GC.MaxVersions != 7 || got.schema.Families["new"].GC.MaxVersions != 1 {
		t.Errorf("after a change through HBase: %+v, %v", got.schema, err)
	}
	// A table of microseconds has no TTL: HBase would take them for
	// milliseconds.
	s.Granularity = 1
	if d, err = descriptor(model.ParseName("t"), s, nil); err != nil {
		t.Fatal(err)
	}
	for _, f := range d.GetColumnFamilies() {
		if string(f.GetName()) == "young" && familyOf(f).TTL != model.Forever {
			t.Errorf("a table of microseconds has the TTL %d", familyOf(f).TTL)
		}
	}
	s.AddFamily(schema.Family{Name: versionFamily})
	if _, err := descriptor(model.ParseName("t"), s, nil); !errors.Is(err, fault.Invalid) {
		t.Errorf("a family called %s: %v", versionFamily, err)
	}
}

// FuzzDescribe: whatever a descriptor says, it is read or refused.
func FuzzDescribe(f *testing.F) {
	d, err := descriptor(model.ParseName("t"), newSchema(&schema.Table{Name: "projects/p/instances/i/tables/t",
		Families: map[string]schema.Family{"f": {GC: &schema.GCRule{MaxVersions: 1}}}}), nil)
	if err != nil {
		f.Fatal(err)
	}
	b, err := proto.Marshal(d)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		d := &pb.TableSchema{}
		if proto.Unmarshal(b, d) != nil {
			return
		}
		got, err := describe(d, "projects/p/instances/i/tables/t")
		if err != nil {
			if !errors.Is(err, fault.Corruption) {
				t.Fatal(err)
			}
			return
		}
		if got.versioned {
			delete(got.schema.Families, versionFamily)
		}
		again, err := descriptor(got.name, got.schema, d)
		if err != nil {
			t.Fatal(err)
		}
		back, err := describe(again, got.schema.Name)
		if err != nil || len(back.schema.Families) != len(got.schema.Families) || back.versioned != got.versioned {
			t.Fatalf("%+v comes back as %+v, %v", got.schema, back, err)
		}
	})
}

func chain(nodes ...*filter.Node) *filter.Node {
	return &filter.Node{Op: filter.Chain, Children: nodes}
}

func TestPushDown(t *testing.T) {
	tab := &table{schema: &schema.Table{Granularity: 1000, Families: map[string]schema.Family{"a": {}, "b": {}}}}
	family := &filter.Node{Op: filter.FamilyRegex, Pattern: []byte("a")}
	one := &filter.Node{Op: filter.CellsPerColumnLimit, N: 1}
	value := &filter.Node{Op: filter.ValueRegex, Pattern: []byte("v")}
	times := &filter.Node{Op: filter.TimestampRange, Times: cell.TimeRange{Start: 1500, End: 3001}}
	strip := &filter.Node{Op: filter.StripValue}
	for name, c := range map[string]struct {
		f        *filter.Node
		families int
		versions uint32
		filter   string
		from, to uint64
	}{
		"nothing":                    {nil, 2, math.MaxInt32, "", 0, 0},
		"a family":                   {family, 1, math.MaxInt32, "", 0, 0},
		"the newest":                 {one, 2, 1, "", 0, 0},
		"the newest of a family":     {chain(family, one), 1, 1, "", 0, 0},
		"the newest with a value":    {chain(one, value), 2, 1, "", 0, 0},
		"the newest of a value":      {chain(value, one), 2, math.MaxInt32, "", 0, 0},
		"a time":                     {times, 2, math.MaxInt32, "", 2, 4},
		"the newest of a time":       {chain(times, one), 2, 1, "", 2, 4},
		"the time of the newest":     {chain(one, times), 2, 1, "", 0, 0},
		"no values":                  {chain(family, strip), 1, math.MaxInt32, filters + "KeyOnlyFilter", 0, 0},
		"no values, but looked at":   {chain(value, strip), 2, math.MaxInt32, "", 0, 0},
		"a range of qualifiers":      {&filter.Node{Op: filter.ColumnRange, Family: "b", Start: filter.Bound{Key: []byte("m"), Set: true}}, 1, math.MaxInt32, filters + "ColumnRangeFilter", 0, 0},
		"a family that is not there": {&filter.Node{Op: filter.FamilyRegex, Pattern: []byte("c")}, 0, math.MaxInt32, "", 0, 0},
	} {
		q, err := newQuery(tab, c.f)
		if err != nil {
			t.Fatal(err)
		}
		if len(q.scan.GetColumn()) != c.families || q.scan.GetMaxVersions() != c.versions || q.scan.GetFilter().GetName() != c.filter ||
			q.scan.GetTimeRange().GetFrom() != c.from || q.scan.GetTimeRange().GetTo() != c.to || q.none != (c.families == 0) {
			t.Errorf("%s is asked for as %v", name, q.scan)
		}
	}
}

// TestApply: the change leads from before to what the mutations make of it, and
// nothing in it depends on the order.
func TestApply(t *testing.T) {
	tab := &table{versioned: true, schema: &schema.Table{Granularity: 1000, Families: map[string]schema.Family{"f": {Name: "f"}, "n": {Name: "n", Aggregate: schema.Sum}}}}
	q := column{"f", "q"}
	before := content{q: {1000: []byte("a"), 2000: []byte("b")}}
	set := func(ts int64, v string) row.Mutation {
		return row.Mutation{Op: row.SetCell, Family: "f", Qualifier: []byte("q"), Timestamp: ts, Value: []byte(v)}
	}
	muts := []row.Mutation{{Op: row.DeleteRow}, set(1000, "a"), set(3000, "c")}
	s := scope{}
	s.add(tab, muts)
	c, err := apply(tab, s, before, muts, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := newChange()
	want.cells[q] = []int64{2000}
	want.sets.put(q, 3000, []byte("c"))
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got %+v, want %+v", c, want)
	}
	if _, ok := blind(tab, muts, 0); ok {
		t.Error("a deletion of what is written is taken for blind")
	}
	if c, ok := blind(tab, []row.Mutation{set(1000, "x"), {Op: row.DeleteFamily, Family: "f"}}, 0); !ok || len(c.sets) != 0 || !c.families["f"] {
		t.Errorf("got %+v, %v", c, ok)
	}
	got, err := apply(tab, scope{"n": nil}, content{}, []row.Mutation{
		{Op: row.AddToCell, Family: "n", Timestamp: 1000, Input: row.Input{Kind: row.IntInput, Int: 2}},
		{Op: row.AddToCell, Family: "n", Timestamp: 1000, Input: row.Input{Kind: row.IntInput, Int: 3}}}, 0)
	if err != nil || !bytes.Equal(got.sets[column{"n", ""}][1000], []byte{0, 0, 0, 0, 0, 0, 0, 5}) {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestTranslate(t *testing.T) {
	err := translate(errors.New("HBase Java exception org.apache.hadoop.hbase.TableExistsException:\norg.apache.hadoop.hbase.TableExistsException: t\n\tat x.y"))
	if !is(err, "TableExistsException") || !errors.Is(err, fault.AlreadyExists) || err.Error() != "HBase: org.apache.hadoop.hbase.TableExistsException: t" {
		t.Errorf("got %v", err)
	}
	if err := translate(errors.New("HBase Java exception java.io.IOException:\ntrouble")); !errors.Is(err, fault.Unavailable) {
		t.Errorf("got %v", err)
	}
}

// FuzzQualifier: names of columns keep their order, and come back.
func FuzzQualifier(f *testing.F) {
	f.Add([]byte(nil), []byte{0})
	f.Add([]byte{0, 0}, []byte{0, 1})
	f.Fuzz(func(t *testing.T, a, b []byte) {
		tab := &table{versioned: true}
		x, y := tab.toHBase(a), tab.toHBase(b)
		if len(x) == 0 || !bytes.Equal(tab.fromHBase(x), a) || bytes.Compare(a, b) != bytes.Compare(x, y) {
			t.Fatalf("%q and %q are %q and %q", a, b, x, y)
		}
	})
}

func TestLiteral(t *testing.T) {
	for in, want := range map[string]string{"abc": "abc", `a\.b`: "a.b", `a\-b`: "a-b"} {
		if got, ok := literal([]byte(in)); !ok || got != want {
			t.Errorf("%s is %q, %v", in, got, ok)
		}
	}
	for _, in := range []string{"a.b", "a*", `\d`, `\C`, "(a)", "a|b", `\`} {
		if got, ok := literal([]byte(in)); ok {
			t.Errorf("%s is %q", in, got)
		}
	}
}

// FuzzResult: an answer to a scan is read or refused, within its own size.
func FuzzResult(f *testing.F) {
	block := wire.AppendCell(nil, []byte("r"), "f", []byte("q"), 1, wire.TypePut, []byte("v"))
	f.Add(block, uint32(1))
	f.Add(block, uint32(1<<31))
	f.Fuzz(func(t *testing.T, b []byte, n uint32) {
		cells := wire.NewCells(b)
		p, err := nextResult(&cells, &pb.ScanResponse{CellsPerResult: []uint32{n}}, 0)
		if err != nil {
			if !errors.Is(err, fault.Corruption) {
				t.Fatal(err)
			}
			return
		}
		if len(p.cells) != int(n) {
			t.Fatalf("%d cells, not %d", len(p.cells), n)
		}
	})
}
