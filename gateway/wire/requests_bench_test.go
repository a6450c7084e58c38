package wire

import (
	"fmt"
	"testing"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

func BenchmarkDecodeReadRows(b *testing.B) {
	for _, n := range []int{1, 100} {
		b.Run(fmt.Sprintf("%dkeys", n), func(b *testing.B) {
			m := &bigtablepb.ReadRowsRequest{TableName: "projects/p/instances/i/tables/t", Rows: &bigtablepb.RowSet{},
				Filter: &bigtablepb.RowFilter{Filter: &bigtablepb.RowFilter_CellsPerColumnLimitFilter{CellsPerColumnLimitFilter: 1}}}
			for i := range n {
				m.Rows.RowKeys = append(m.Rows.RowKeys, fmt.Appendf(nil, "user%016d", i))
			}
			data, err := proto.Marshal(m)
			if err != nil {
				b.Fatal(err)
			}
			var r ReadRowsRequest
			b.ReportAllocs()
			for b.Loop() {
				if err := r.DecodeWire(mem.BufferSlice{mem.SliceBuffer(data)}, mem.NopBufferPool{}, nil); err != nil {
					b.Fatal(err)
				}
				r.Release()
			}
		})
	}
}
