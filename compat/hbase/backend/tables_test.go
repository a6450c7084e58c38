package backend

import (
	"context"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/model"
	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/compat/hbase/server"
	"github.com/trestledb/trestle/conformance/backendtest"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

// TestTableIsServedAfterAFailure: when HBase refuses a part of what removes a table or all its
// rows, or the caller gives up, the table is as enabled as it was.
func TestTableIsServedAfterAFailure(t *testing.T) {
	remove := func(ctx context.Context, b *Backend, table string) error { return b.DeleteTable(ctx, table) }
	for _, c := range []struct {
		name, refused string
		do            func(ctx context.Context, b *Backend, table string) error
		cancelled     bool // the caller gives up then
		disabled      bool // the table was disabled before
	}{
		{name: "Snapshot", refused: "Snapshot", do: remove},
		{name: "GivenUp", refused: "Snapshot", do: remove, cancelled: true},
		{name: "Removal", refused: "DeleteTable", do: remove},
		{name: "Truncation", refused: "truncateTable", do: func(ctx context.Context, b *Backend, table string) error { return b.DropRowRange(ctx, table, nil) }},
		{name: "DisabledBefore", refused: "Snapshot", do: remove, disabled: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			caller, giveUp := context.WithCancel(t.Context())
			defer giveUp()
			quorum, _ := startChanged(t, changes{methods: map[string]server.Method{c.refused: server.Handle(
				func(ctx context.Context, call *server.Call, req *pb.GetCompletedSnapshotsRequest) (*pb.GetCompletedSnapshotsResponse, error) {
					if c.cancelled {
						giveUp()
					}
					return refuse(ctx, call, req)
				})}})
			b := open(t, quorum)
			table := made(t, b, "t")
			ctx := t.Context()
			if err := b.MutateRow(ctx, table, &row.Entry{Key: []byte("r"), Mutations: setCell("v")}); err != nil {
				t.Fatal(err)
			}
			name := model.Name{Namespace: model.DefaultNamespace, Qualifier: "t"}
			if c.disabled {
				if was, err := b.disable(ctx, name); err != nil || !was {
					t.Fatal(was, err)
				}
			}
			if err := c.do(caller, b, table); err == nil {
				t.Fatal("it was done")
			}
			if c.disabled {
				r, err := ask[*pb.GetTableStateResponse](ctx, b, "GetTableState", &pb.GetTableStateRequest{TableName: name.Proto()},
					func() proto.Message { return new(pb.GetTableStateResponse) })
				if err != nil || r.GetTableState().GetState() != pb.TableState_DISABLED {
					t.Errorf("state %v, %v", r.GetTableState(), err)
				}
				return
			}
			w := &backendtest.Collector{}
			if _, err := b.ReadRows(ctx, &scan.Request{Table: table, Ranges: []row.Range{row.All}}, w); err != nil || len(w.Rows) != 1 {
				t.Errorf("rows %+v, %v", w.Rows, err)
			}
		})
	}
}
