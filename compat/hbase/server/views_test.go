package server

import (
	"context"
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"github.com/tsuna/gohbase/hrpc"

	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/cluster/standalone"
	"github.com/trestledb/trestle/cluster/views"
	"github.com/trestledb/trestle/cluster/views/viewstest"
	"github.com/trestledb/trestle/compat/hbase/model"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

// TestGohbaseView: a materialized view is got and scanned as any table, shows its columns
// only, and takes no change.
func TestGohbaseView(t *testing.T) {
	f := fixtureOver(t, standalone.Options{Views: func(c *client.Client) views.Options {
		return views.Options{Evaluators: viewstest.Evaluators{Reader: c}}
	}}, Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	mapping := f.catalog.Mapping()
	source, err := f.store.CreateTable(ctx, &schema.Table{Name: mapping.Resource(model.ParseName("t")), Granularity: 1000, Families: viewstest.Families()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	view := strings.Replace(mapping.Resource(model.ParseName("v")), "/tables/", "/materializedViews/", 1)
	if _, err := f.store.CreateView(ctx, viewstest.Groups(view, source), nil); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"r1", "r2", "r3"} {
		set := func(q, v []byte) row.Mutation {
			return row.Mutation{Op: row.SetCell, Family: viewstest.Family, Qualifier: q, Value: v}
		}
		if err := f.store.MutateRow(ctx, source.Name, &row.Entry{Key: []byte(key), Mutations: []row.Mutation{
			set(viewstest.Group, []byte("g-"+key)), set(viewstest.Value, binary.BigEndian.AppendUint64(nil, 5))}}); err != nil {
			t.Fatal(err)
		}
	}
	// Of a group that is gone hidden cells are left.
	if err := f.store.MutateRow(ctx, source.Name, &row.Entry{Key: []byte("r3"), Mutations: []row.Mutation{{Op: row.DeleteRow}}}); err != nil {
		t.Fatal(err)
	}
	if err := f.store.WaitView(ctx, view); err != nil {
		t.Fatal(err)
	}
	c := f.client()
	must := func(call *hrpc.Get, err error) *hrpc.Result {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		r, err := c.Get(call)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	columns := func(r *hrpc.Result) (names string) {
		for _, x := range r.Cells {
			names += string(x.Family) + ":" + string(x.Qualifier) + " "
		}
		return names
	}
	const shown = "default: default:least default:most default:rows default:sum "
	if got := columns(must(hrpc.NewGetStr(ctx, "v", "g-r1"))); got != shown {
		t.Errorf("got %q", got)
	}
	if got := must(hrpc.NewGetStr(ctx, "v", "g-r3")); len(got.Cells) != 0 {
		t.Errorf("a group that is gone: %v", got)
	}
	if got := must(hrpc.NewGetStr(ctx, "v", "g-r3", hrpc.Families(map[string][]string{"default": nil}))); len(got.Cells) != 0 {
		t.Errorf("a family of a group that is gone: %v", got)
	}
	s, err := hrpc.NewScanStr(ctx, "v")
	if err != nil {
		t.Fatal(err)
	}
	scanned := ""
	for _, r := range all(t, c.Scan(s)) {
		scanned += string(r.Cells[0].Row) + " "
	}
	if scanned != "g-r1 g-r2 " {
		t.Errorf("scanned %q", scanned)
	}
	put, err := hrpc.NewPutStr(ctx, "v", "g-r1", values("default", "rows", "x"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Put(put); err == nil || !strings.Contains(err.Error(), "can only be read") {
		t.Errorf("put: %v", err)
	}
	del, err := hrpc.NewDelStr(ctx, "v", "g-r1", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Delete(del); err == nil || !strings.Contains(err.Error(), "can only be read") {
		t.Errorf("delete: %v", err)
	}
	inc, err := hrpc.NewIncStrSingle(ctx, "v", "g-r1", "default", "rows", 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Increment(inc); err == nil || !strings.Contains(err.Error(), "can only be read") {
		t.Errorf("increment: %v", err)
	}
	if _, err := c.CheckAndPut(put, "default", "none", nil); err == nil || !strings.Contains(err.Error(), "can only be read") {
		t.Errorf("check and put: %v", err)
	}
	if got := columns(must(hrpc.NewGetStr(ctx, "v", "g-r1"))); got != shown {
		t.Errorf("after changes that were refused %q", got)
	}
}
