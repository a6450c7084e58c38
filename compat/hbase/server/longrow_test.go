package server

import (
	"bytes"
	"context"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/compat/hbase/wire"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

// TestLongRows: rows may be longer than Bigtable's, whatever their bytes, and
// are found in both directions, in memory and on disk.
func TestLongRows(t *testing.T) {
	f := newFixture(t, Options{})
	table := f.table("t", oneFamily, nil)
	region := f.regions(table)[0].Specifier()
	c := f.dial("ClientService", nil)
	keys := [][]byte{bytes.Repeat([]byte{0}, schema.MaxHBaseRowKey), []byte("short"), bytes.Repeat([]byte{0xFF}, schema.MaxHBaseRowKey)}
	for _, k := range keys {
		c.call("Mutate", &pb.MutateRequest{Region: region, Mutation: &pb.MutationProto{Row: k, MutateType: pb.MutationProto_PUT.Enum(), AssociatedCellCount: proto.Int32(1)}},
			nil, wire.AppendCell(nil, k, "f", []byte("q"), 1, wire.TypePut, []byte("v")))
	}
	for _, where := range []string{"memory", "disk"} {
		for _, reversed := range []bool{false, true} {
			var r pb.ScanResponse
			cells := wire.NewCells(c.call("Scan", &pb.ScanRequest{Region: region, Scan: &pb.Scan{Reversed: proto.Bool(reversed)}, NumberOfRows: proto.Uint32(9)}, &r, nil))
			for i := range keys {
				var k wire.Cell
				if err := cells.Next(&k); err != nil {
					t.Fatalf("%s, reversed %v: %v", where, reversed, err)
				}
				want := keys[i]
				if reversed {
					want = keys[len(keys)-1-i]
				}
				if !bytes.Equal(k.Row, want) {
					t.Errorf("%s, reversed %v: row %d is %.8x of %d bytes", where, reversed, i, k.Row, len(k.Row))
				}
			}
		}
		if err := f.store.FlushTablets(context.Background(), table.Resource, row.All); err != nil {
			t.Fatal(err)
		}
	}
}
