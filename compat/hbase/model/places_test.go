package model

import (
	"context"
	"fmt"
	"testing"

	"github.com/trestledb/trestle/engine"
	"github.com/trestledb/trestle/engine/schema"
)

// TestPlaces: regions are at the servers that have their tablets, or else at any
// that live, and stay there while these live.
func TestPlaces(t *testing.T) {
	ctx := t.Context()
	store, err := engine.Open(ctx, engine.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close(context.Background())
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
