package tabletserver_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

// values is a pool of bytes that do not compress; values of 1,000 bytes are
// cut from it at random offsets.
var values = sync.OnceValue(func() []byte {
	b := make([]byte, 8<<20)
	r := rand.NewChaCha8([32]byte{1})
	r.Read(b)
	return b
})

func benchKey(buf []byte, n int) []byte { return fmt.Appendf(buf[:0], "user%016d", n) }

func benchStore(b *testing.B, o Options) (*Store, string) {
	b.Helper()
	if o.Dir == "" {
		o.Dir = b.TempDir()
	}
	s := mustOpen(b, o)
	b.Cleanup(func() { mustClose(b, s) })
	if _, err := s.Table(ctx, parent+"usertable"); err == nil {
		return s, parent + "usertable"
	}
	return s, mustCreate(b, s, newSchema("usertable", 1000, "cf"))
}

func rate(b *testing.B, n int, unit string) {
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), unit)
	b.ReportMetric(0, "ns/op")
}

// BenchmarkMutateRow writes rows of one cell of 1,000 bytes to a real directory,
// each acknowledged after fdatasync.
func BenchmarkMutateRow(b *testing.B) {
	for _, writers := range []int{1, 64, 256} {
		b.Run(fmt.Sprint(writers), func(b *testing.B) {
			s, table := benchStore(b, Options{})
			pool := values()
			var next atomic.Int64
			b.ReportAllocs()
			b.ResetTimer()
			var done sync.WaitGroup
			for w := range writers {
				done.Go(func() {
					r := rand.New(rand.NewPCG(uint64(w), 42))
					e := &row.Entry{Mutations: []row.Mutation{{Op: row.SetCell, Family: "cf", Qualifier: []byte("field0"), Timestamp: 1_700_000_000_000_000}}}
					for next.Add(1) <= int64(b.N) {
						e.Key = benchKey(e.Key, r.IntN(100_000_000))
						at := r.IntN(len(pool) - 1000)
						e.Mutations[0].Value = pool[at : at+1000]
						if err := s.MutateRow(ctx, table, e); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			done.Wait()
			rate(b, b.N, "rows/s")
		})
	}
}

// BenchmarkMutateRows is BenchmarkMutateRow with requests of 100 rows; an op is a
// row.
func BenchmarkMutateRows(b *testing.B) {
	const writers, batch = 64, 100
	for _, keys := range []string{"ascending", "random"} {
		b.Run(keys, func(b *testing.B) {
			s, table := benchStore(b, Options{MemtableBytes: 512 << 20})
			pool := values()
			var next atomic.Int64
			b.ReportAllocs()
			used := cpu(b)
			b.ResetTimer()
			var done sync.WaitGroup
			for w := range writers {
				done.Go(func() {
					r := rand.New(rand.NewPCG(uint64(w), 42))
					entries := make([]row.Entry, batch)
					for i := range entries {
						entries[i].Mutations = []row.Mutation{{Op: row.SetCell, Family: "cf", Qualifier: []byte("field0"), Timestamp: 1_700_000_000_000_000}}
					}
					for {
						first := int(next.Add(batch)) - batch
						if first >= b.N {
							return
						}
						for i := range entries {
							e, n := &entries[i], first+i
							if keys == "random" {
								n = r.IntN(100_000_000)
							}
							e.Key = benchKey(e.Key, n)
							at := r.IntN(len(pool) - 1000)
							e.Mutations[0].Value = pool[at : at+1000]
						}
						if err := s.MutateRows(ctx, table, entries, func(_ int, err error) {
							if err != nil {
								b.Error(err)
							}
						}); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			done.Wait()
			rate(b, b.N, "rows/s")
			used(b.N)
		})
	}
}

// fill writes n rows of 1,000 bytes.
func fillBench(b testing.TB, s *Store, table string, n int) {
	b.Helper()
	pool := values()
	const batch = 200
	for i := 0; i < n; i += batch {
		entries := make([]row.Entry, 0, batch)
		for k := i; k < min(i+batch, n); k++ {
			at := k * 997 % (len(pool) - 1000)
			entries = append(entries, row.Entry{Key: benchKey(nil, k), Mutations: []row.Mutation{{Op: row.SetCell, Family: "cf",
				Qualifier: []byte("field0"), Timestamp: 1_700_000_000_000_000, Value: pool[at : at+1000]}}})
		}
		mustPutAll(b, s, table, entries)
	}
}

// sink takes rows and keeps nothing.
type sinkWriter struct{ rows, bytes int }

func (w *sinkWriter) StartRow(key []byte)   { w.rows++ }
func (w *sinkWriter) Cell(c *row.Cell)      { w.bytes += len(c.Value) }
func (w *sinkWriter) EndRow() (bool, error) { return false, nil }
func (w *sinkWriter) Scanned([]byte)        {}
func (w *sinkWriter) Flush() error          { return nil }

// BenchmarkRead reads 100,000 rows of 1,000 bytes that are in SSTables and in
// the block cache.
func BenchmarkRead(b *testing.B) {
	const n = 100_000
	s, table := benchStore(b, Options{CacheBytes: 512 << 20})
	fillBench(b, s, table, n)
	if err := s.Flush(ctx); err != nil {
		b.Fatal(err)
	}
	all := &scan.Request{Table: table, Ranges: []row.Range{row.All}}
	var w sinkWriter
	if _, err := s.ReadRows(ctx, all, &w); err != nil || w.rows != n {
		b.Fatal(w.rows, err)
	}
	for _, readers := range []int{1, 2, 16} {
		b.Run(fmt.Sprintf("point/%d", readers), func(b *testing.B) {
			var next atomic.Int64
			b.ReportAllocs()
			var done sync.WaitGroup
			for g := range readers {
				done.Go(func() {
					r := rand.New(rand.NewPCG(uint64(g), 1))
					var w sinkWriter
					req := &scan.Request{Table: table, Limit: 1}
					for next.Add(1) <= int64(b.N) {
						req.Ranges = []row.Range{row.Single(benchKey(nil, r.IntN(n)))}
						if _, err := s.ReadRows(ctx, req, &w); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			done.Wait()
			rate(b, b.N, "rows/s")
		})
	}
	b.Run("absent", func(b *testing.B) {
		r := rand.New(rand.NewPCG(1, 1))
		for b.Loop() {
			req := &scan.Request{Table: table, Limit: 1, Ranges: []row.Range{row.Single(append(benchKey(nil, r.IntN(n)), 'x'))}}
			if _, err := s.ReadRows(ctx, req, &w); err != nil {
				b.Fatal(err)
			}
		}
		rate(b, b.N, "rows/s")
	})
	for _, reversed := range []bool{false, true} {
		b.Run(fmt.Sprintf("scan/reversed=%v", reversed), func(b *testing.B) {
			rows := 0
			for b.Loop() {
				w := sinkWriter{}
				req := *all
				req.Reversed = reversed
				if _, err := s.ReadRows(ctx, &req, &w); err != nil {
					b.Fatal(err)
				}
				rows += w.rows
			}
			rate(b, rows, "rows/s")
		})
	}
}

// BenchmarkReplay opens a directory whose rows are in the commit log only.
func BenchmarkReplay(b *testing.B) {
	const n = 100_000
	o := Options{Dir: b.TempDir(), NoBackground: true, MemtableBytes: 1 << 30}
	s := mustOpen(b, o)
	table := mustCreate(b, s, newSchema("usertable", 1000, "cf"))
	fillBench(b, s, table, n)
	mustClose(b, s) // does not flush
	var took time.Duration
	for b.Loop() {
		start := time.Now()
		s, err := Open(context.Background(), o)
		if err != nil {
			b.Fatal(err)
		}
		took += time.Since(start)
		mustClose(b, s)
	}
	b.ReportMetric(float64(n*b.N)/took.Seconds(), "rows/s")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkIncrement: what it costs to remember an update's token with its row,
// on rows that are many and on one that is hot.
func BenchmarkIncrement(b *testing.B) {
	for _, rows := range []int{1, 10_000} {
		for _, tokens := range []bool{false, true} {
			b.Run(fmt.Sprintf("rows=%d/tokens=%v", rows, tokens), func(b *testing.B) {
				s, name := benchStore(b, Options{FS: vfs.NewMem(), Dir: "data"})
				newest := &filter.Node{Op: filter.CellsPerColumnLimit, N: 1}
				var n uint64
				decide := func(cells []row.Cell) ([]row.Mutation, error) {
					n = 0
					if len(cells) > 0 {
						n = binary.BigEndian.Uint64(cells[0].Value)
					}
					return []row.Mutation{{Op: row.SetCell, Family: "cf", Qualifier: []byte("n"), Timestamp: 1000, Value: binary.BigEndian.AppendUint64(nil, n+1)}}, nil
				}
				var token []byte
				b.ResetTimer()
				for i := range b.N {
					if tokens {
						token = binary.BigEndian.AppendUint64([]byte("hbase---"), uint64(i)*0x9E3779B97F4A7C15)
					}
					if _, err := s.UpdateRow(ctx, name, fmt.Appendf(nil, "row%06d", i%rows), token, newest, decide); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// mustPutAll writes rows, all of them.
func mustPutAll(b testing.TB, s *Store, table string, entries []row.Entry) {
	b.Helper()
	if err := s.MutateRows(ctx, table, entries, func(_ int, err error) {
		if err != nil {
			b.Error(err)
		}
	}); err != nil {
		b.Fatal(err)
	}
}
