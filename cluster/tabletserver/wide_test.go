//go:build unix

package tabletserver_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
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

// TestWideRowsReadLittle: a read of few cells of a row that has many, in each of
// its runs, reads the blocks with those cells, and no others.
func TestWideRowsReadLittle(t *testing.T) {
	const n, runs = 60_000, 3 // 2 MB a run
	s := mustOpen(t, Options{Dir: t.TempDir(), NoBackground: true, MemtableBytes: 1 << 30, RowCacheBytes: -1})
	defer mustClose(t, s)
	table := mustCreate(t, s, newSchema("wide", 1000, "cf"))
	for r := range runs {
		putWide(t, s, table, "columns", n/runs, func(i int) (string, int64) { return column(i*runs + r), 1000 })
		putWide(t, s, table, "versions", n/runs, func(i int) (string, int64) { return column(0), int64(i*runs+r) * 1000 })
		if err := s.Flush(ctx); err != nil {
			t.Fatal(err)
		}
	}
	times := func(from, to int64) *filter.Node {
		return &filter.Node{Op: filter.TimestampRange, Times: cell.TimeRange{Start: from * 1000, End: to * 1000}}
	}
	chain := func(f ...*filter.Node) *filter.Node { return &filter.Node{Op: filter.Chain, Children: f} }
	limit := func(n int32) *filter.Node { return &filter.Node{Op: filter.CellsPerColumnLimit, N: n} }
	columns := func(from, to int) *filter.Node {
		return &filter.Node{Op: filter.ColumnRange, Family: "cf", Start: filter.Bound{Key: []byte(column(from)), Set: true},
			End: filter.Bound{Key: []byte(column(to)), Set: true, Open: true}}
	}
	for _, c := range []struct {
		name, row string
		filter    *filter.Node
		cells     int64
	}{
		{"newest version", "versions", limit(1), 1},
		{"ten newest versions", "versions", limit(10), 10},
		{"newest of a column", "versions", oneColumn(column(0)), 1},
		{"versions of a time", "versions", times(30_000, 30_050), 50},
		{"oldest versions", "versions", times(0, 10), 10},
		{"newest before a time", "versions", chain(times(0, 500), limit(1)), 1},
		{"versions of no time", "versions", times(90_000, 90_050), 0},
		{"a column", "columns", oneColumn(column(12_345)), 1},
		{"an absent column", "columns", oneColumn(column(12_345) + "x"), 0},
		{"columns", "columns", columns(40_000, 40_100), 100},
		{"last columns", "columns", columns(n-10, n+10), 10},
	} {
		before := s.Stats().Reads[0]
		st, err := s.ReadRows(ctx, &scan.Request{Table: table, Ranges: []row.Range{row.Single([]byte(c.row))}, Filter: c.filter}, &sinkWriter{})
		if err != nil {
			t.Fatal(err)
		}
		// In each run one or two blocks of 32 KiB, and the index.
		after := s.Stats().Reads[0]
		if got := (after.BlockBytes - before.BlockBytes) / runs; st.CellsReturned != c.cells || got > 96<<10 {
			t.Errorf("%s: %d cells from %d bytes of blocks of each run, want %d from at most 98304", c.name, st.CellsReturned, got, c.cells)
		}
	}
}

// blocking is a writer that waits within its first cell.
type blocking struct {
	sinkWriter
	once    sync.Once
	in, out chan struct{}
}

func (w *blocking) Cell(c *row.Cell) {
	w.once.Do(func() { close(w.in); <-w.out })
	w.sinkWriter.Cell(c)
}

// TestUnsortedRowsAreHeld: a row whose families are not in the order of their
// names is copied by each reader. That has a bound for all readers together,
// and is given back.
func TestUnsortedRowsAreHeld(t *testing.T) { testHeldRows(t, "ba", nil) }

// TestHeldBackRowsAreHeld: so it is for a row that a condition holds back to its end.
func TestHeldBackRowsAreHeld(t *testing.T) {
	all := &filter.Node{Op: filter.PassAll}
	testHeldRows(t, "ab", &filter.Node{Op: filter.Condition,
		Children: []*filter.Node{{Op: filter.ValueRegex, Pattern: []byte("neither")}, all, all}})
}

// testHeldRows reads rows of families that are made in that order.
func testHeldRows(t *testing.T, families string, f *filter.Node) {
	s := mustOpen(t, Options{Dir: t.TempDir(), NoBackground: true, MemtableBytes: 1 << 30, RowCacheBytes: -1, LargeBlockBytes: 16 << 20})
	defer mustClose(t, s)
	table := mustCreate(t, s, newSchema("rows", 1000, families[:1]))
	if _, err := s.UpdateTable(ctx, table, func(t *schema.Table) error { t.AddFamily(schema.Family{Name: families[1:]}); return nil }); err != nil {
		t.Fatal(err)
	}
	const value = 100 << 10 // less than a large block
	put := func(key string, n, value int) {
		var muts []row.Mutation
		for i := range n {
			family := "ab"[i%2 : i%2+1]
			if muts = append(muts, setCell(family, column(i), 1000, strings.Repeat(family, value))); len(muts) == 50 || i == n-1 {
				mustPut(t, s, table, key, muts...)
				muts = nil
			}
		}
	}
	put("small", 10, 100)
	put("large", 100, value)  // 10 MiB
	put("larger", 200, value) // 20 MiB
	put("cells", 4000, 1)     // their cells are what needs memory
	read := func(key string, w scan.Writer) (int64, error) {
		st, err := s.ReadRows(ctx, &scan.Request{Table: table, Filter: f, Ranges: []row.Range{row.Single([]byte(key))}}, w)
		return st.CellsReturned, err
	}
	for range 3 { // each gives back what it held
		if n, err := read("large", &sinkWriter{}); n != 100 || err != nil {
			t.Fatalf("%d cells, %v", n, err)
		}
		if _, err := read("larger", &sinkWriter{}); fault.KindOf(err) != fault.Exhausted {
			t.Fatalf("a row for which there never is room: %v", err)
		}
		if n, err := read("cells", &sinkWriter{}); n != 4000 || err != nil {
			t.Fatalf("%d cells, %v", n, err)
		}
	}
	if got, err := readRows(s, &scan.Request{Table: table, Filter: f, Ranges: []row.Range{row.Single([]byte("large"))}}); err != nil || len(got) != 1 ||
		!slices.IsSortedFunc(got[0].Cells, func(a, b row.Cell) int { return strings.Compare(a.Family, b.Family) }) {
		t.Errorf("the row is not in the order of families: %v", err)
	}
	slow := &blocking{in: make(chan struct{}), out: make(chan struct{})}
	var reading sync.WaitGroup
	reading.Go(func() {
		if n, err := read("large", slow); n != 100 || err != nil {
			t.Errorf("the slow read: %d cells, %v", n, err)
		}
	})
	<-slow.in
	if _, err := read("large", &sinkWriter{}); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("a row beside another one: %v", err)
	}
	if n, err := read("small", &sinkWriter{}); n != 10 || err != nil {
		t.Errorf("a small row beside it: %d cells, %v", n, err)
	}
	close(slow.out)
	reading.Wait()
	if n, err := read("large", &sinkWriter{}); n != 100 || err != nil {
		t.Errorf("after it: %d cells, %v", n, err)
	}
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
