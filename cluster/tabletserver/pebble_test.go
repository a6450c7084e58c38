//go:build unix

package tabletserver_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/sstable"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/cputime"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
)

// The benchmarks of this file put the same rows into a Store and into a bare
// pebble.DB, whose SSTables and block cache we share, and ask both for the same.
// What the Store loses against it is what rows, families and versions cost.

// openPebble opens a pebble.DB with keys and blocks like ours.
func openPebble(b *testing.B, cache int64) *pebble.DB {
	b.Helper()
	c := *pebble.DefaultComparer
	c.Name, c.Split = "rows", cell.RowPrefixLen
	c.CompareRangeSuffixes, c.ComparePointSuffixes = bytes.Compare, bytes.Compare
	block := pebble.NewCache(cache)
	defer block.Unref()
	o := &pebble.Options{
		Comparer: &c, Cache: block, FormatMajorVersion: pebble.FormatNewest, DisableAutomaticCompactions: true,
		MemTableSize: 1 << 30, MemTableStopWritesThreshold: 4, L0StopWritesThreshold: 1000, Logger: silent{},
		TargetFileSizes: [7]int64{64 << 20, 64 << 20, 64 << 20, 64 << 20, 64 << 20, 64 << 20, 64 << 20},
	}
	o.EnsureDefaults()
	for i := range o.Levels {
		o.Levels[i].BlockSize = 32 << 10
		o.Levels[i].IndexBlockSize = 256 << 10
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
		o.Levels[i].Compression = func() *sstable.CompressionProfile { return sstable.SnappyCompression }
	}
	db, err := pebble.Open(b.TempDir(), o)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := db.Close(); err != nil {
			b.Error(err)
		}
	})
	return db
}

// cpu reports the processor time per op of what the returned function ends: the
// time that passes says little on a machine that does something else as well.
func cpu(b *testing.B) func(ops int) {
	before := cputime.Used()
	return func(ops int) { b.ReportMetric(float64(cputime.Used()-before)/float64(ops), "cpu-ns/op") }
}

type silent struct{}

func (silent) Infof(string, ...any)              {}
func (silent) Errorf(string, ...any)             {}
func (silent) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

const benchTime = 1_700_000_000_000_000

// benchCell returns the key of a cell as the engine stores it.
func benchCell(dst []byte, n int, qualifier string) []byte {
	return cell.AppendCell(cell.AppendRow(dst[:0], benchKey(nil, n)), 0, []byte(qualifier), benchTime)
}

// benchValue returns the value of row n in generation g.
func benchValue(n, g, size int) []byte {
	pool := values()
	at := (n*997 + g*31) % (len(pool) - size)
	return pool[at : at+size]
}

// fillRuns writes, in each of the given number of runs, one column of each of n
// rows, of size bytes, to both.
func fillRuns(b *testing.B, s *Store, table string, db *pebble.DB, n, runs, size int) {
	b.Helper()
	const batch = 500
	for g := range runs {
		q := []byte(fmt.Sprintf("field%d", g))
		for i := 0; i < n; i += batch {
			entries := make([]row.Entry, 0, batch)
			pb := db.NewBatch()
			for k := i; k < min(i+batch, n); k++ {
				v := benchValue(k, g, size)
				entries = append(entries, row.Entry{Key: benchKey(nil, k), Mutations: []row.Mutation{{Op: row.SetCell, Family: "cf", Qualifier: q, Timestamp: benchTime, Value: v}}})
				if err := pb.Set(benchCell(nil, k, string(q)), v, nil); err != nil {
					b.Fatal(err)
				}
			}
			if err := pb.Commit(pebble.NoSync); err != nil {
				b.Fatal(err)
			}
			mustPutAll(b, s, table, entries)
		}
		if err := s.Flush(ctx); err != nil {
			b.Fatal(err)
		}
		if err := db.Flush(); err != nil {
			b.Fatal(err)
		}
	}
}

// warm fills the caches.
func warm(b *testing.B, s *Store, table string, db *pebble.DB) {
	b.Helper()
	if _, err := s.ReadRows(ctx, &scan.Request{Table: table, Ranges: []row.Range{row.All}}, &sinkWriter{}); err != nil {
		b.Fatal(err)
	}
	it, err := db.NewIter(nil)
	if err != nil {
		b.Fatal(err)
	}
	for ok := it.First(); ok; ok = it.Next() {
	}
	if err := it.Close(); err != nil {
		b.Fatal(err)
	}
}

// prefixRead reads a row as whoever stores rows in pebble.DB would.
func prefixRead(b *testing.B, db *pebble.DB, prefix []byte) (cells, size int) {
	it, err := db.NewIter(nil)
	if err != nil {
		b.Fatal(err)
	}
	for ok := it.SeekPrefixGE(prefix); ok; ok = it.Next() {
		cells++
		size += len(it.Value())
	}
	if err := it.Close(); err != nil {
		b.Fatal(err)
	}
	return cells, size
}

// BenchmarkAgainstPebblePoint reads rows with a cell of 1,000 bytes in each of
// one or six runs, all in the block cache.
func BenchmarkAgainstPebblePoint(b *testing.B) {
	for _, runs := range []int{1, 6} {
		const n = 50_000
		s, table := benchStore(b, Options{CacheBytes: 1 << 30, NoBackground: true, MemtableBytes: 1 << 30})
		db := openPebble(b, 1<<30)
		fillRuns(b, s, table, db, n, runs, 1000)
		warm(b, s, table, db)
		for _, hot := range []int{n, 1000} {
			b.Run(fmt.Sprintf("runs=%d/rows=%d/trestle", runs, hot), func(b *testing.B) {
				r := rand.New(rand.NewPCG(1, 1))
				var w sinkWriter
				req := &scan.Request{Table: table, Limit: 1}
				b.ReportAllocs()
				done := cpu(b)
				defer func() { done(b.N) }()
				for b.Loop() {
					req.Ranges = []row.Range{row.Single(benchKey(nil, r.IntN(hot)))}
					if _, err := s.ReadRows(ctx, req, &w); err != nil {
						b.Fatal(err)
					}
				}
				if w.bytes != w.rows*runs*1000 {
					b.Fatal(w)
				}
			})
			b.Run(fmt.Sprintf("runs=%d/rows=%d/pebble-prefix", runs, hot), func(b *testing.B) {
				r := rand.New(rand.NewPCG(1, 1))
				var k []byte
				b.ReportAllocs()
				done := cpu(b)
				defer func() { done(b.N) }()
				for b.Loop() {
					k = cell.AppendRow(k[:0], benchKey(nil, r.IntN(hot)))
					if cells, _ := prefixRead(b, db, k); cells != runs {
						b.Fatal(cells)
					}
				}
			})
			b.Run(fmt.Sprintf("runs=%d/rows=%d/pebble-get", runs, hot), func(b *testing.B) {
				r := rand.New(rand.NewPCG(1, 1))
				b.ReportAllocs()
				done := cpu(b)
				defer func() { done(b.N) }()
				for b.Loop() {
					// One Get per cell: a Get finds one key.
					n := r.IntN(hot)
					for g := range runs {
						_, c, err := db.Get(benchCell(nil, n, fmt.Sprintf("field%d", g)))
						if err != nil {
							b.Fatal(err)
						}
						_ = c.Close()
					}
				}
			})
		}
	}
}

// BenchmarkAgainstPebbleScan reads 100,000 rows of one cell of 1,000 bytes that
// are in the block cache, and of 100 bytes.
func BenchmarkAgainstPebbleScan(b *testing.B) {
	for _, size := range []int{100, 1000} {
		const n = 100_000
		s, table := benchStore(b, Options{CacheBytes: 1 << 30, NoBackground: true, MemtableBytes: 1 << 30})
		db := openPebble(b, 1<<30)
		fillRuns(b, s, table, db, n, 1, size)
		warm(b, s, table, db)
		b.Run(fmt.Sprintf("bytes=%d/trestle", size), func(b *testing.B) {
			rows := 0
			done := cpu(b)
			defer func() { done(rows) }()
			for b.Loop() {
				w := sinkWriter{}
				if _, err := s.ReadRows(ctx, &scan.Request{Table: table, Ranges: []row.Range{row.All}}, &w); err != nil {
					b.Fatal(err)
				}
				rows += w.rows
			}
			rate(b, rows, "rows/s")
		})
		b.Run(fmt.Sprintf("bytes=%d/pebble", size), func(b *testing.B) {
			rows := 0
			done := cpu(b)
			defer func() { done(rows) }()
			for b.Loop() {
				it, err := db.NewIter(nil)
				if err != nil {
					b.Fatal(err)
				}
				sum := 0
				for ok := it.First(); ok; ok = it.Next() {
					rows++
					sum += len(it.Value())
				}
				if err := it.Close(); err != nil || sum != n*size {
					b.Fatal(sum, err)
				}
			}
			rate(b, rows, "rows/s")
		})
	}
}

// BenchmarkAgainstPebbleCommit writes rows of 1,000 bytes, each durable before
// its writer goes on.
func BenchmarkAgainstPebbleCommit(b *testing.B) {
	for _, writers := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("writers=%d/trestle", writers), func(b *testing.B) {
			var commits, took atomic.Int64
			s, table := benchStore(b, Options{MemtableBytes: 512 << 20, OnCommit: func(c commitlog.Commit) {
				commits.Add(1)
				took.Add(int64(c.Write + c.Sync))
			}})
			before, done := commits.Load(), cpu(b)
			start := took.Load()
			writeTogether(b, writers, func(n int, v []byte) error {
				return s.MutateRow(ctx, table, &row.Entry{Key: benchKey(nil, n), Mutations: []row.Mutation{{Op: row.SetCell, Family: "cf", Qualifier: []byte("field0"), Timestamp: benchTime, Value: v}}})
			})
			done(b.N)
			b.ReportMetric(float64(b.N)/float64(commits.Load()-before), "rows/commit")
			b.ReportMetric(float64(took.Load()-start)/1e3/float64(commits.Load()-before), "us/commit")
		})
		b.Run(fmt.Sprintf("writers=%d/pebble", writers), func(b *testing.B) {
			db := openPebble(b, 128<<20)
			done := cpu(b)
			writeTogether(b, writers, func(n int, v []byte) error { return db.Set(benchCell(nil, n, "field0"), v, pebble.Sync) })
			done(b.N)
		})
	}
}

// writeTogether has so many writers put b.N random rows of 1,000 bytes.
func writeTogether(b *testing.B, writers int, put func(n int, v []byte) error) {
	var next atomic.Int64
	var done sync.WaitGroup
	b.ResetTimer()
	for w := range writers {
		done.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 42))
			for next.Add(1) <= int64(b.N) {
				n := r.IntN(100_000_000)
				if err := put(n, benchValue(n, 0, 1000)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	done.Wait()
	rate(b, b.N, "rows/s")
}

// BenchmarkFlush and BenchmarkCompaction are of cells of 1,000 bytes that do not
// compress; MB/s are those of the input.
func BenchmarkFlush(b *testing.B) {
	const n = 60_000
	var took time.Duration
	var size int64
	for range b.N {
		s, table := benchStore(b, Options{NoBackground: true, MemtableBytes: 1 << 30})
		fillBench(b, s, table, n)
		before := s.Stats().FlushBytes
		start := time.Now()
		if err := s.Flush(ctx); err != nil {
			b.Fatal(err)
		}
		took += time.Since(start)
		size += s.Stats().FlushBytes - before
	}
	b.ReportMetric(float64(size)/1e6/took.Seconds(), "MB/s")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkCompaction has versions in six runs, of which a rule collects half.
func BenchmarkCompaction(b *testing.B) {
	const n, runs, batch = 30_000, 6, 500
	var took time.Duration
	var size int64
	for range b.N {
		s := mustOpen(b, Options{Dir: b.TempDir(), NoBackground: true, MemtableBytes: 1 << 30})
		sch := newSchema("usertable", 1000, "cf")
		sch.Families["cf"] = schema.Family{Name: "cf", GC: &schema.GCRule{MaxVersions: runs / 2}}
		table := mustCreate(b, s, sch)
		for g := range runs {
			for i := 0; i < n; i += batch {
				entries := make([]row.Entry, batch)
				for k := range entries {
					entries[k] = row.Entry{Key: benchKey(nil, i+k), Mutations: []row.Mutation{{Op: row.SetCell, Family: "cf",
						Qualifier: []byte("q"), Timestamp: benchTime + int64(g)*1000, Value: benchValue(i+k, g, 1000)}}}
				}
				if err := s.MutateRows(ctx, table, entries, func(int, error) {}); err != nil {
					b.Fatal(err)
				}
			}
			if err := s.Flush(ctx); err != nil {
				b.Fatal(err)
			}
		}
		start := time.Now()
		if err := s.CompactTablets(ctx, table, row.All, nil); err != nil {
			b.Fatal(err)
		}
		took += time.Since(start)
		st := s.Stats()
		size += st.CompactionIn
		if st.Collected != n*runs/2 {
			b.Fatalf("%d cells collected", st.Collected)
		}
		mustClose(b, s)
	}
	b.ReportMetric(float64(size)/1e6/took.Seconds(), "MB/s")
	b.ReportMetric(0, "ns/op")
}
