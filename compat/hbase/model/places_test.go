package model

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
)

// TestPlaces: regions are at the servers that have their tablets, or else at any
// that live, and stay there while these live.
func TestPlaces(t *testing.T) {
	ctx := t.Context()
	store := openStore(t)
	me := Server{Host: "a", Port: 1, StartCode: 1}
	c, err := Open(ctx, store, Mapping{Project: "p", Instance: "i"}, me)
	if err != nil {
		t.Fatal(err)
	}
	owners := []string{"one", "two", "three", ""}
	c.Spread(func(_ context.Context, _ string, each func([]byte, string) error) error {
		for i, end := range []string{"b", "c", "d", ""} {
			if err := each([]byte(end), owners[i]); err != nil {
				return err
			}
		}
		return nil
	})
	name := ParseName("t")
	if _, err := store.CreateTable(ctx, &schema.Table{Name: c.Mapping().Resource(name)}, [][]byte{[]byte("b"), []byte("c"), []byte("d")}); err != nil {
		t.Fatal(err)
	}
	table, err := c.Table(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	at := func() (hosts []string) {
		t.Helper()
		regions, err := c.Regions(ctx, table)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range regions {
			hosts = append(hosts, c.At(r).Host)
		}
		return hosts
	}
	if got := fmt.Sprint(at(), c.Servers()); got != "[a a a a] [a,1,1]" {
		t.Errorf("alone: %s", got)
	}
	places := []Place{{me, "one"}, {Server{"b", 1, 1}, "two"}, {Server{"g", 1, 1}, ""}}
	c.SetPlaces(places)
	first := at()
	if first[0] != "a" || first[1] != "b" {
		t.Errorf("with others: %v", first)
	}
	if got := at(); fmt.Sprint(got) != fmt.Sprint(first) {
		t.Errorf("%v became %v", first, got)
	}
	owners[0], owners[1] = "two", "one"
	if got := at(); got[0] != "b" || got[1] != "a" || fmt.Sprint(got[2:]) != fmt.Sprint(first[2:]) {
		t.Errorf("after moves: %v, was %v", got, first)
	}
	c.SetPlaces(places[:1])
	if got := fmt.Sprint(at()); got != "[a a a a]" {
		t.Errorf("after deaths: %s", got)
	}
	if got := c.At(MetaRegion); got != me {
		t.Errorf("hbase:meta is at %v", got)
	}
}

// TestOthers: what one server does to a table and its regions is true for whoever
// asks another one next.
func TestOthers(t *testing.T) {
	ctx := t.Context()
	store := openStore(t)
	mapping := Mapping{Project: "p", Instance: "i"}
	var each [2]*Catalog
	for i := range each {
		c, err := Open(ctx, store, mapping, Server{Host: fmt.Sprint(i), Port: 1, StartCode: 1})
		if err != nil {
			t.Fatal(err)
		}
		c.Spread(func(ctx context.Context, table string, each func([]byte, string) error) error {
			return store.SampleRowKeys(ctx, table, row.All, func(s scan.Sample) error { return each(bytes.Clone(s.Key), "") })
		})
		each[i] = c
	}
	one, other := each[0], each[1]
	name := ParseName("t")
	sch, err := store.CreateTable(ctx, &schema.Table{Name: mapping.Resource(name)}, [][]byte{[]byte("m")})
	if err != nil {
		t.Fatal(err)
	}
	regions := func(c *Catalog) []*Region {
		t.Helper()
		table, err := c.Table(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		list, err := c.Regions(ctx, table)
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	for _, state := range []pb.TableState_State{pb.TableState_DISABLED, pb.TableState_ENABLED} {
		if _, err := other.Table(ctx, name); err != nil {
			t.Fatal(err)
		}
		if err := one.Update(ctx, sch, func(s *Stored) error { s.State = int32(state); return nil }); err != nil {
			t.Fatal(err)
		}
		table, err := other.Table(ctx, name)
		if err != nil || table.Stored.State != int32(state) {
			t.Errorf("%v, and another server has %+v, %v", state, table, err)
		}
	}
	before := regions(other)
	if err := store.SplitAt(ctx, sch.Name, []byte("c")); err != nil {
		t.Fatal(err)
	}
	after := regions(one)
	named := func(r *Region, encoded bool) *pb.RegionSpecifier {
		if encoded {
			return &pb.RegionSpecifier{Type: pb.RegionSpecifier_ENCODED_REGION_NAME.Enum(), Value: []byte(r.Encoded())}
		}
		return r.Specifier()
	}
	// Clients come with the new name at once, be it to a row of the region or, under
	// another name, to the region itself.
	if got, _, err := other.Region(ctx, named(after[0], false)); err != nil || got.ID != after[0].ID {
		t.Errorf("a new region is %v, %v", got, err)
	}
	for _, encoded := range []bool{true, false} {
		if err := store.SplitAt(ctx, sch.Name, []byte{'f', byte(len(regions(one)))}); err != nil {
			t.Fatal(err)
		}
		after = regions(one)
		if got, _, err := other.RegionNow(ctx, named(after[1], encoded)); err != nil || got.ID != after[1].ID {
			t.Errorf("encoded %v: a new region is %v, %v", encoded, got, err)
		}
		if got, _, err := other.RegionNow(ctx, named(before[0], encoded)); !errors.Is(err, ErrMoved) {
			t.Errorf("encoded %v: the region that was split is %v, %v", encoded, got, err)
		}
	}
	for _, none := range []string{"", "t", "t,,x", "no such table,,1.e.", "hbase:meta,,2.e.", ",,,..,", "a:b:c,,1.e."} {
		for _, kind := range []pb.RegionSpecifier_RegionSpecifierType{pb.RegionSpecifier_REGION_NAME, pb.RegionSpecifier_ENCODED_REGION_NAME} {
			if got, _, err := other.RegionNow(ctx, &pb.RegionSpecifier{Type: &kind, Value: []byte(none)}); !errors.Is(err, ErrMoved) {
				t.Errorf("%v %q is %v, %v", kind, none, got, err)
			}
		}
	}
}
