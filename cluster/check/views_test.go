package check

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/cluster/standalone"
	"github.com/trestledb/trestle/cluster/views"
	"github.com/trestledb/trestle/cluster/views/viewstest"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

// TestViews: a view that is right is reported as such, also if it is looked at in parts, and each
// row of one that is not is named.
func TestViews(t *testing.T) {
	ctx := t.Context()
	s, err := standalone.Open(ctx, standalone.Options{Dir: "d", FS: vfs.NewMem(), NoReserve: true,
		Views: func(c *client.Client) views.Options {
			return views.Options{Evaluators: viewstest.Evaluators{Reader: c}}
		}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(ctx)
	source, err := s.CreateTable(ctx, &schema.Table{Name: "projects/p/instances/i/tables/t", Granularity: 1000, Families: viewstest.Families()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	set := func(q []byte, v []byte) row.Mutation {
		return row.Mutation{Op: row.SetCell, Family: viewstest.Family, Qualifier: q, Value: v}
	}
	for i := range 300 {
		if err := s.MutateRow(ctx, source.Name, &row.Entry{Key: fmt.Appendf(nil, "r%d", i), Mutations: []row.Mutation{
			set(viewstest.Group, fmt.Appendf(nil, "g%d", i%40)), set(viewstest.Value, binary.BigEndian.AppendUint64(nil, uint64(i)))}}); err != nil {
			t.Fatal(err)
		}
	}
	view, err := s.CreateView(ctx, viewstest.Groups("projects/p/instances/i/materializedViews/v", source), nil)
	if err != nil {
		t.Fatal(err)
	}
	c := Views{Read: s.ReadRows, Wait: s.WaitView, Evaluators: viewstest.Evaluators{Reader: s}}
	look := func() (findings []string) {
		t.Helper()
		for _, memory := range []int64{0, 4 << 10} {
			c.Memory = memory
			findings = nil
			rows, err := c.Check(ctx, view, func(f Finding) { findings = append(findings, f.Where+" "+f.What) })
			if err != nil || rows != 40 {
				t.Fatalf("%d rows, %v", rows, err)
			}
		}
		return findings
	}
	if got := look(); len(got) > 0 {
		t.Errorf("a view that is right: %q", got)
	}
	// What no client may do, a server that has gone wrong could.
	tablets, err := s.Tablets(ctx, view.Name)
	if err != nil || len(tablets) != 1 {
		t.Fatalf("%d tablets, %v", len(tablets), err)
	}
	at := rpc.Target{Tablet: tablets[0].Tablet, Schema: view.Version}
	for key, m := range map[string]row.Mutation{
		"g7":   {Op: row.SetCell, Family: "default", Qualifier: []byte("rows"), Value: []byte("12345678")},
		"g8":   {Op: row.DeleteFamily, Family: "default"},
		"none": {Op: row.SetCell, Family: "default", Qualifier: []byte("rows"), Value: []byte("12345678")},
	} {
		if err := s.TabletServer().MutateRow(ctx, at, &row.Entry{Key: []byte(key), Mutations: []row.Mutation{m}}); err != nil {
			t.Fatal(err)
		}
	}
	if got := look(); len(got) != 3 {
		t.Errorf("a view with three wrong rows: %q", got)
	}
}
