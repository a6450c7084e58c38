//go:build unix

package engine

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

// putWide adds to a row n cells of 100 bytes, whose columns and timestamps at
// says.
func putWide(b testing.TB, s *Store, table, key string, n int, at func(i int) (qualifier string, ts int64)) {
	b.Helper()
	pool := values()
	const batch = 10_000
	for i := 0; i < n; i += batch {
		e := &row.Entry{Key: []byte(key)}
		for k := i; k < min(i+batch, n); k++ {
			q, ts := at(k)
			off := k * 131 % (len(pool) - 100)
			e.Mutations = append(e.Mutations, row.Mutation{Op: row.SetCell, Family: "cf", Qualifier: []byte(q), Timestamp: ts, Value: pool[off : off+100]})
		}
		if err := s.MutateRow(ctx, table, e); err != nil {
			b.Fatal(err)
		}
	}
}

func column(i int) string { return fmt.Sprintf("col%06d", i) }

// oneColumn passes the newest cell of a column.
func oneColumn(q string) *filter.Node {
	return &filter.Node{Op: filter.Chain, Children: []*filter.Node{
		{Op: filter.QualifierRegex, Pattern: []byte(q)}, {Op: filter.CellsPerColumnLimit, N: 1}}}
}

// BenchmarkWideRow reads one cell: of a row that has no other, of a column with
// 100,000 versions, of a row with 100,000 columns, in one run and in six. Rows of
// few cells are also read without the row cache, which does not take wide ones.
func BenchmarkWideRow(b *testing.B) {
	b.Run("row cache", func(b *testing.B) { benchWide(b, 0) })
	b.Run("no row cache", func(b *testing.B) { benchWide(b, -1) })
}

func benchWide(b *testing.B, rowCache int64) {
	const n = 100_000
	for _, runs := range []int{1, 6} {
		s, table := benchStore(b, Options{NoBackground: true, MemtableBytes: 1 << 30, RowCacheBytes: rowCache})
		for r := range runs {
			putWide(b, s, table, "one", 1, func(int) (string, int64) { return column(0), int64(1+r) * 1000 })
			putWide(b, s, table, "columns", n/runs, func(i int) (string, int64) { return column(i*runs + r), 1000 })
			putWide(b, s, table, "small", 100/runs, func(i int) (string, int64) { return column(i*runs + r), 1000 })
			putWide(b, s, table, "versions", n/runs, func(i int) (string, int64) { return column(0), int64(i*runs+r) * 1000 })
			if err := s.Flush(ctx); err != nil {
				b.Fatal(err)
			}
		}
		rng := rand.New(rand.NewPCG(1, 1))
		for _, bench := range []struct {
			name, key string
			filter    func() *filter.Node
			cells     int
		}{
			{"one", "one", func() *filter.Node { return oneColumn(column(0)) }, 1},
			{"newest of versions", "versions", func() *filter.Node { return oneColumn(column(0)) }, 1},
			{"newest of versions, no column", "versions", func() *filter.Node { return &filter.Node{Op: filter.CellsPerColumnLimit, N: 1} }, 1},
			{"one of 100 columns", "small", func() *filter.Node { return oneColumn(column(rng.IntN(96))) }, 1},
			{"one of columns", "columns", func() *filter.Node { return oneColumn(column(rng.IntN(n / runs * runs))) }, 1},
			{"absent of columns", "columns", func() *filter.Node { return oneColumn(column(rng.IntN(n)) + "x") }, 0},
		} {
			b.Run(fmt.Sprintf("runs=%d/%s", runs, bench.name), func(b *testing.B) {
				cells := 0
				b.ReportAllocs()
				done := cpu(b)
				for b.Loop() {
					st, err := s.ReadRows(ctx, &scan.Request{Table: table, Ranges: []row.Range{row.Single([]byte(bench.key))}, Filter: bench.filter()}, &sinkWriter{})
					if err != nil {
						b.Fatal(err)
					}
					cells += int(st.CellsReturned)
				}
				done(b.N)
				if cells != b.N*bench.cells {
					b.Fatalf("%d cells in %d reads", cells, b.N)
				}
			})
		}
	}
}
