package model

import (
	"context"
	"errors"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/cluster/standalone"
	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
)

// TestRegionName: the example that HBase's own documentation gives.
func TestRegionName(t *testing.T) {
	r := NewRegion(Name{DefaultNamespace, "TestTable"}, 1, []byte("0094429456"), nil, 1289497600452)
	const want = "TestTable,0094429456,1289497600452.527db22f95c8a9e0116f0cc13c680396."
	if string(r.Name()) != want || r.Encoded() != "527db22f95c8a9e0116f0cc13c680396" {
		t.Errorf("got %s", r.Name())
	}
}

func TestNames(t *testing.T) {
	m := Mapping{Project: "p", Instance: "main"}
	for _, c := range []struct{ name, resource string }{
		{"t", "projects/p/instances/main/tables/t"},
		{"ns:t", "projects/p/instances/ns/tables/t"},
	} {
		n := ParseName(c.name)
		if got := m.Resource(n); got != c.resource {
			t.Errorf("%s: got %s", c.name, got)
		}
		if got, ok := m.Name(c.resource); !ok || got != n || got.String() != c.name {
			t.Errorf("%s: got %v, %v", c.resource, got, ok)
		}
	}
	for _, r := range []string{"projects/q/instances/main/tables/t", "projects/p/instances/hbase/tables/meta", "projects/p/instances/default/tables/t", "x"} {
		if n, ok := m.Name(r); ok {
			t.Errorf("%s is %v", r, n)
		}
	}
}

func TestFamilyRule(t *testing.T) {
	for _, f := range []Family{
		{Versions: 1, TTL: Forever}, {Versions: math.MaxInt32, TTL: Forever}, {Versions: 3, TTL: 60},
		{Versions: math.MaxInt32, TTL: 60}, {Versions: 3, MinVersions: 1, TTL: 60}, {Versions: math.MaxInt32, MinVersions: 2, TTL: 1},
	} {
		if got, ok := FamilyOf(f.Rule()); !ok || got != f {
			t.Errorf("%+v comes back as %+v, %v", f, got, ok)
		}
	}
	for _, r := range []*schema.GCRule{
		{Union: []*schema.GCRule{{MaxVersions: 1}, {MaxVersions: 2}}},
		{Intersection: []*schema.GCRule{{MaxVersions: 1}, {MaxAge: time.Hour}}},
		{MaxAge: 1500 * time.Millisecond},
		{},
	} {
		if f, ok := FamilyOf(r); ok {
			t.Errorf("%+v is %+v", r, f)
		}
	}
}

func TestUnits(t *testing.T) {
	for _, ts := range []int64{0, 1, 1700000000000, maxMicros / 1000, math.MaxInt64, math.MaxInt64 - 1} {
		got := Millis.HBase(Millis.Micros(ts))
		if want := ts; got != want && !(ts >= maxMicros/1000 && got == Latest) {
			t.Errorf("%d comes back as %d", ts, got)
		}
		if got := Raw.HBase(Raw.Micros(ts)); got != ts {
			t.Errorf("raw %d comes back as %d", ts, got)
		}
	}
	if got := Millis.HBase(-1); got != -1 {
		t.Errorf("-1 µs is %d ms", got)
	}
}

// openStore opens a store that the test closes.
func openStore(t *testing.T) *standalone.Server {
	t.Helper()
	store, err := standalone.Open(t.Context(), standalone.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close(context.Background()) })
	return store
}

func TestCatalog(t *testing.T) {
	ctx := context.Background()
	store := openStore(t)
	m := Mapping{Project: "p", Instance: "i"}
	server := Server{Host: "h", Port: 1, StartCode: 1}
	c, err := Open(ctx, store, m, server)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := Open(ctx, store, m, server); err != nil || again.ClusterID() != c.ClusterID() || len(c.ClusterID()) != 36 {
		t.Errorf("cluster id %q, then %q, %v", c.ClusterID(), again.ClusterID(), err)
	}
	name := ParseName("t")
	if _, err := c.Table(ctx, name); !errors.Is(err, fault.NotFound) {
		t.Errorf("no table: %v", err)
	}
	s := &schema.Table{Name: m.Resource(name), Families: map[string]schema.Family{}, Granularity: 1000}
	s.AddFamily(schema.Family{Name: "f", GC: Family{Versions: 2, TTL: Forever}.Rule()})
	if s, err = store.CreateTable(ctx, s, [][]byte{[]byte("m")}); err != nil {
		t.Fatal(err)
	}
	table, err := c.Table(ctx, name)
	if err != nil || table.Sticky || !table.Enabled() || table.Families["f"].Versions != 2 {
		t.Fatalf("table %+v, %v", table, err)
	}
	regions, err := c.Regions(ctx, table)
	if err != nil || len(regions) != 2 || string(regions[0].End) != "m" || string(regions[1].Start) != "m" {
		t.Fatalf("regions %v, %v", regions, err)
	}
	for _, r := range regions {
		for _, spec := range []*pb.RegionSpecifier{r.Specifier(), {Type: pb.RegionSpecifier_ENCODED_REGION_NAME.Enum(), Value: []byte(r.Encoded())}} {
			if got, _, err := c.Region(ctx, spec); err != nil || got != r {
				t.Errorf("%v: %v, %v", r, got, err)
			}
		}
	}
	// A split gives new names to what changed, and takes the old one away.
	if err := store.SplitAt(ctx, s.Name, []byte("c")); err != nil {
		t.Fatal(err)
	}
	split, err := c.Regions(ctx, table)
	if err != nil || len(split) != 3 || split[2] != regions[1] || split[0].ID <= regions[0].ID {
		t.Fatalf("regions %v, %v", split, err)
	}
	if _, _, err := c.Region(ctx, regions[0].Specifier()); !errors.Is(err, ErrMoved) {
		t.Errorf("the region that was split: %v", err)
	}

	// After a restart, and in another process, the names are the same.
	again, err := Open(ctx, store, m, Server{Host: "h", Port: 1, StartCode: 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range split {
		if got, _, err := again.Region(ctx, r.Specifier()); err != nil || !reflect.DeepEqual(got, r) {
			t.Errorf("after a restart %v: %v, %v", r, got, err)
		}
	}
	if _, _, err := again.Region(ctx, regions[0].Specifier()); !errors.Is(err, ErrMoved) {
		t.Errorf("after a restart, the region that was split: %v", err)
	}
	// What a merge brings back is newer than what was there before the split.
	if err := store.MergeAt(ctx, s.Name, []byte("a")); err != nil {
		t.Fatal(err)
	}
	merged, err := again.Regions(ctx, table)
	if err != nil || len(merged) != 2 || merged[0].ID <= split[0].ID || merged[1].Encoded() != regions[1].Encoded() {
		t.Fatalf("regions %v, %v", merged, err)
	}
	// The first process learns it from requests to the regions that are gone.
	c.mu.Lock()
	c.mu.layouts[s.ID].checked = time.Now().Add(-2 * relayout)
	c.mu.Unlock()
	if _, _, err := c.Region(ctx, split[0].Specifier()); !errors.Is(err, ErrMoved) {
		t.Errorf("a region that was merged: %v", err)
	}
	if got, _, err := c.Region(ctx, merged[0].Specifier()); err != nil || got.ID != merged[0].ID {
		t.Errorf("the merged region: %v, %v", got, err)
	}
	split = merged

	d, _ := proto.Marshal(&pb.TableSchema{Attributes: []*pb.BytesBytesPair{{First: []byte("X"), Second: []byte("y")}}})
	if err := c.Update(ctx, s, func(s *Stored) error {
		s.State, s.Descriptor = int32(pb.TableState_DISABLED), d
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	table, err = c.Table(ctx, name)
	if err != nil || !table.Sticky || table.Enabled() || table.Attribute("X") != "y" {
		t.Errorf("table %+v, %v", table, err)
	}
	if _, _, err := c.Region(ctx, split[0].Specifier()); !errors.Is(err, ErrMoved) {
		t.Errorf("a region of a disabled table: %v", err)
	}
	if list, err := c.Tables(ctx, DefaultNamespace); err != nil || !reflect.DeepEqual(list, []*Table{table}) {
		t.Errorf("tables %v, %v", list, err)
	}
	if err := c.Remove(ctx, s.ID); err != nil {
		t.Error(err)
	}
	if _, _, err := store.GetRecord(ctx, regionsOf(s.ID)); !errors.Is(err, fault.NotFound) {
		t.Errorf("the names of the regions of a table that is gone: %v", err)
	}
	if table, err = c.Table(ctx, name); err != nil || table.Sticky {
		t.Errorf("table %+v, %v", table, err)
	}
}

// TestOneName: a table has the name that its instance has as a namespace, and the instance
// of the namespace "default" is no namespace.
func TestOneName(t *testing.T) {
	ctx := context.Background()
	store := openStore(t)
	m := Mapping{Project: "p", Instance: "main"}
	c, err := Open(ctx, store, m, Server{Host: "h", Port: 1, StartCode: 1})
	if err != nil {
		t.Fatal(err)
	}
	name := ParseName("t")
	if _, err := store.CreateTable(ctx, &schema.Table{Name: m.Resource(name), Granularity: 1000}, nil); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Table(ctx, ParseName("main:t")); !errors.Is(err, fault.NotFound) {
		t.Errorf("by its instance: %v, %v", got, err)
	}
	table, err := c.Table(ctx, name)
	if err != nil || table.Name != name {
		t.Fatalf("%v, %v", table, err)
	}
	if regions, err := c.Regions(ctx, table); err != nil || len(regions) != 1 || regions[0].Table != name {
		t.Errorf("regions %v, %v", regions, err)
	}
}

// A purger is a store in which a table can no longer be undeleted.
type purger struct {
	*standalone.Server
	purged uint64
}

func (p *purger) TableIDs(ctx context.Context) ([]uint64, error) {
	ids, err := p.Server.TableIDs(ctx)
	return slices.DeleteFunc(ids, func(id uint64) bool { return id == p.purged }), err
}

// TestSweep: what is stored of a table stays as long as it can be undeleted.
func TestSweep(t *testing.T) {
	ctx := context.Background()
	store := openStore(t)
	p := &purger{Server: store}
	m := Mapping{Project: "p", Instance: "i"}
	c, err := Open(ctx, p, m, Server{Host: "h", Port: 1, StartCode: 1})
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]uint64{}
	for _, n := range []string{"live", "deleted", "purged"} {
		name := ParseName(n)
		s, err := store.CreateTable(ctx, &schema.Table{Name: m.Resource(name), Granularity: 1000}, nil)
		if err != nil {
			t.Fatal(err)
		}
		ids[n] = s.ID
		if err := c.Update(ctx, s, func(*Stored) error { return nil }); err != nil {
			t.Fatal(err)
		}
		table, err := c.Table(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Regions(ctx, table); err != nil {
			t.Fatal(err)
		}
		if n == "live" {
			continue
		}
		if err := store.DeleteTable(ctx, s.Name); err != nil {
			t.Fatal(err)
		}
	}
	p.purged = ids["purged"]
	if err := c.Sweep(ctx); err != nil {
		t.Fatal(err)
	}
	for n, id := range ids {
		for _, key := range []string{recordOf(id), regionsOf(id)} {
			if _, _, err := store.GetRecord(ctx, key); errors.Is(err, fault.NotFound) != (n == "purged") {
				t.Errorf("%s: %s: %v", n, key, err)
			}
		}
		if _, ok := c.mu.layouts[id]; ok == (n == "purged") {
			t.Errorf("%s: layout: %v", n, ok)
		}
	}
}
