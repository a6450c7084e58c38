package exec

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
)

// fixedRows is a source of rows that cost nothing to read.
type fixedRows struct {
	Source
	n    int
	keys [][]byte
	cell row.Cell
}

func (f *fixedRows) ReadRows(ctx context.Context, req *scan.Request, w scan.Writer) (st scan.Stats, err error) {
	n := f.n
	if req.Limit > 0 {
		n = min(n, int(req.Limit))
	}
	for i := range n {
		w.StartRow(f.keys[i%len(f.keys)])
		w.Cell(&f.cell)
		full, err := w.EndRow()
		if err == nil && full {
			err = w.Flush()
		}
		if err != nil {
			return st, err
		}
	}
	st.RowsReturned, st.CellsReturned = int64(n), int64(n)
	return st, nil
}

// BenchmarkFill is what it costs to make columns of a row of one cell of 100 bytes, the
// hand-over to another goroutine included.
func BenchmarkFill(b *testing.B) {
	s := &schema.Table{Name: scanTable, Families: map[string]schema.Family{}}
	s.AddFamily(schema.Family{Name: "f"})
	src := &fixedRows{n: 100_000, cell: row.Cell{Family: "f", Qualifier: []byte("q"), Timestamp: 1000, Value: make([]byte, 100)}}
	for i := range 1000 {
		src.keys = append(src.keys, fmt.Appendf(nil, "user%016d", i))
	}
	table := describe(s)
	for _, specs := range []string{"", "_key", "f:q", "_key f:q", "_key f", "f:q? f:q@"} {
		b.Run(strings.ReplaceAll("columns="+specs, " ", ","), func(b *testing.B) {
			sc := scanOf(table, nil, strings.Fields(specs)...)
			sc.Access = &algebra.Access{}
			b.ReportAllocs()
			rows := 0
			for b.Loop() {
				op, err := newScan(newTestExecution(b.Context(), src, 1), sc, nil)
				if err != nil {
					b.Fatal(err)
				}
				if err := op.Open(b.Context()); err != nil {
					b.Fatal(err)
				}
				for {
					batch, err := op.Next(b.Context())
					if err == io.EOF {
						break
					}
					if err != nil {
						b.Fatal(err)
					}
					rows += batch.Len
				}
				if err := op.Close(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(rows), "ns/row")
			b.ReportMetric(0, "ns/op")
		})
	}
}
