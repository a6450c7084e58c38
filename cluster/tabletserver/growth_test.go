//go:build unix

package tabletserver_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/cockroachdb/pebble/v2"

	"github.com/trestledb/trestle/engine/cell"
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
		benchGrowth(b, n)
	}
}

const growthBatch = 1000

func growthValue(key int) []byte {
	pool := values()
	at := key % (len(pool) - 20)
	return pool[at : at+20]
}

func benchGrowth(b *testing.B, n int) {
	o := Options{CacheBytes: 2 << 30, RowCacheBytes: -1, MemtableBytes: 256 << 20}
	s, table := benchStore(b, o)
	const batch = growthBatch
	for i := 0; i < n; i += batch {
		entries := make([]row.Entry, 0, batch)
		for k := i; k < min(i+batch, n); k++ {
			// In an order that spreads over the table.
			key := int(uint64(k) * 7_654_321 % uint64(n))
			entries = append(entries, row.Entry{Key: benchKey(nil, key), Mutations: []row.Mutation{{Op: row.SetCell, Family: "cf",
				Qualifier: []byte("q"), Timestamp: benchTime, Value: growthValue(key)}}})
		}
		mustPutAll(b, s, table, entries)
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
					Qualifier: []byte("q"), Timestamp: benchTime, Value: growthValue(k)}}}
			}
			if err := s.MutateRows(ctx, table, entries, func(int, error) {}); err != nil {
				b.Fatal(err)
			}
		}
		done(b.N)
	})
}

// BenchmarkGrowthOfPebble is BenchmarkGrowth of a bare pebble.DB, which shows how
// much of the growth is the processor's caches, in which a large table is not.
func BenchmarkGrowthOfPebble(b *testing.B) {
	for _, n := range growthRows() {
		benchPebbleGrowth(b, n)
	}
}

func benchPebbleGrowth(b *testing.B, n int) {
	db := openPebble(b, 2<<30)
	for i := 0; i < n; i += growthBatch {
		batch := db.NewBatch()
		for k := i; k < min(i+growthBatch, n); k++ {
			if err := batch.Set(benchCell(nil, k, "q"), growthValue(k), nil); err != nil {
				b.Fatal(err)
			}
		}
		if err := batch.Commit(pebble.NoSync); err != nil {
			b.Fatal(err)
		}
	}
	if err := db.Flush(); err != nil {
		b.Fatal(err)
	}
	if err := db.Compact(ctx, []byte{0}, []byte{0xFF}, false); err != nil {
		b.Fatal(err)
	}
	scan := func(lower []byte, rows int) {
		it, err := db.NewIter(&pebble.IterOptions{LowerBound: lower})
		if err != nil {
			b.Fatal(err)
		}
		size := 0
		ok := it.First()
		for range rows {
			if !ok {
				b.Fatal("rows are missing")
			}
			size += len(it.Value())
			ok = it.Next()
		}
		if err := it.Close(); err != nil || size != rows*20 {
			b.Fatal(size, err)
		}
	}
	scan(nil, n)
	m := db.Metrics()
	b.Logf("%d rows: %d SSTables of %d MB, block cache of %d MB", n, m.Total().TablesCount, m.Total().TablesSize>>20, m.BlockCache.Size>>20)
	point := func(b *testing.B, within int) {
		r := rand.New(rand.NewPCG(1, 1))
		done := cpu(b)
		var k []byte
		for b.Loop() {
			k = cell.AppendRow(k[:0], benchKey(nil, n/2+r.IntN(within)-within/2))
			if cells, _ := prefixRead(b, db, k); cells != 1 {
				b.Fatal(cells)
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
			scan(cell.AppendRow(nil, benchKey(nil, r.IntN(n-1000))), 1000)
		}
		done(b.N * 1000)
	})
	b.Run(fmt.Sprintf("rows=%d/write", n), func(b *testing.B) {
		r := rand.New(rand.NewPCG(1, 1))
		done := cpu(b)
		for i := 0; i < b.N; i += 100 {
			batch := db.NewBatch()
			for k := range 100 {
				if err := batch.Set(benchCell(nil, r.IntN(n), "q"), growthValue(k), nil); err != nil {
					b.Fatal(err)
				}
			}
			if err := batch.Commit(pebble.Sync); err != nil {
				b.Fatal(err)
			}
		}
		done(b.N)
	})
}
