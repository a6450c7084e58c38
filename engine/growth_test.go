//go:build unix

package engine

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

// growthRows are the sizes of table at which BenchmarkGrowth measures; the
// environment variable TRESTLE_BENCH_ROWS adds one, such as 10000000.
func growthRows() []int {
	sizes := []int{100_000}
	if n, err := strconv.Atoi(os.Getenv("TRESTLE_BENCH_ROWS")); err == nil {
		sizes = append(sizes, n)
	}
	return sizes
}

// BenchmarkGrowth reads and writes rows of one cell of 20 bytes in a table of
// 100,000 rows and in a larger one: what an operation costs should not depend on
// how much there is. The block cache holds all of it; rows are read at random
// from 10,000 neighbours, and from everywhere.
func BenchmarkGrowth(b *testing.B) {
	for _, n := range growthRows() {
		o := Options{CacheBytes: 2 << 30, RowCacheBytes: -1, MemtableBytes: 256 << 20}
		s, table := benchStore(b, o)
		pool := values()
		const batch = 1000
		for i := 0; i < n; i += batch {
			entries := make([]row.Entry, 0, batch)
			for k := i; k < min(i+batch, n); k++ {
				// In an order that spreads over the table.
				key := int(uint64(k) * 7_654_321 % uint64(n))
				at := key % (len(pool) - 20)
				entries = append(entries, row.Entry{Key: benchKey(nil, key), Mutations: []row.Mutation{{Op: row.SetCell, Family: "cf",
					Qualifier: []byte("q"), Timestamp: benchTime, Value: pool[at : at+20]}}})
			}
			if err := s.MutateRows(ctx, table, entries, func(_ int, err error) {
				if err != nil {
					b.Error(err)
				}
			}); err != nil {
				b.Fatal(err)
			}
		}
		if err := s.Flush(ctx); err != nil {
			b.Fatal(err)
		}
		if err := s.CompactTablets(ctx, table, row.All, nil); err != nil {
			b.Fatal(err)
		}
		var w sinkWriter
		if _, err := s.ReadRows(ctx, &scan.Request{Table: table, Ranges: []row.Range{row.All}}, &w); err != nil || w.rows != n {
			b.Fatal(w.rows, err)
		}
		st := s.Stats()
		b.Logf("%d rows: %d tablets, %d SSTables of %d MB, block cache of %d MB", n, st.Tablets, st.SSTables, st.SSTableBytes>>20, st.Cache.Bytes>>20)
		point := func(b *testing.B, within int) {
			r := rand.New(rand.NewPCG(1, 1))
			done := cpu(b)
			req := &scan.Request{Table: table, Limit: 1}
			for b.Loop() {
				req.Ranges = []row.Range{row.Single(benchKey(nil, n/2+r.IntN(within)-within/2))}
				if _, err := s.ReadRows(ctx, req, &w); err != nil {
					b.Fatal(err)
				}
			}
			done(b.N)
		}
		b.Run(fmt.Sprintf("rows=%d/hot point", n), func(b *testing.B) { point(b, 10_000) })
		b.Run(fmt.Sprintf("rows=%d/point", n), func(b *testing.B) { point(b, n) })
		b.Run(fmt.Sprintf("rows=%d/scan of 1000", n), func(b *testing.B) {
			r := rand.New(rand.NewPCG(1, 1))
			done := cpu(b)
			for b.Loop() {
				from := r.IntN(n - 1000)
				if _, err := s.ReadRows(ctx, &scan.Request{Table: table, Limit: 1000, Ranges: []row.Range{{Start: benchKey(nil, from)}}}, &w); err != nil {
					b.Fatal(err)
				}
			}
			done(b.N * 1000)
		})
		b.Run(fmt.Sprintf("rows=%d/write", n), func(b *testing.B) {
			r := rand.New(rand.NewPCG(1, 1))
			done := cpu(b)
			for i := 0; i < b.N; i += 100 {
				entries := make([]row.Entry, 100)
				for k := range entries {
					entries[k] = row.Entry{Key: benchKey(nil, r.IntN(n)), Mutations: []row.Mutation{{Op: row.SetCell, Family: "cf",
						Qualifier: []byte("q"), Timestamp: benchTime, Value: pool[k : k+20]}}}
				}
				if err := s.MutateRows(ctx, table, entries, func(int, error) {}); err != nil {
					b.Fatal(err)
				}
			}
			done(b.N)
		})
	}
}
