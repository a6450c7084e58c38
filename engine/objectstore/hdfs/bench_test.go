package hdfs_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/objectstore/hdfs/hdfstest"
)

// BenchmarkReal is one put, one read of 32 KiB of 16 MiB, or one object of 64 MiB
// stored piece by piece, on a real HDFS.
func BenchmarkReal(b *testing.B) {
	b.Run("stock", func(b *testing.B) { benchmarkReal(b, hdfstest.Real(b)) })
	b.Run("fast-close", func(b *testing.B) { benchmarkReal(b, hdfstest.Real(b, hdfstest.FastClose...)) })
	b.Run("committed", func(b *testing.B) {
		benchmarkReal(b, hdfstest.Real(b, "dfs.namenode.file.close.num-committed-allowed", "1"))
	})
}

func benchmarkReal(b *testing.B, c *hdfstest.Cluster) {
	s := open(b, c.Options("/bench"))
	ctx := b.Context()
	run := func(name string, callers int, do func(i int64) error) {
		b.Run(fmt.Sprintf("%s/callers=%d", name, callers), func(b *testing.B) {
			var n atomic.Int64
			var mu sync.Mutex
			var took []time.Duration
			var wg sync.WaitGroup
			for range callers {
				wg.Go(func() {
					for i := n.Add(1); i <= int64(b.N); i = n.Add(1) {
						start := time.Now()
						if err := do(i); err != nil {
							b.Error(err)
							return
						}
						mu.Lock()
						took = append(took, time.Since(start))
						mu.Unlock()
					}
				})
			}
			wg.Wait()
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "op/s")
		})
	}
	var names atomic.Int64
	name := func() string { return fmt.Sprintf("o/%d", names.Add(1)) }
	data := bytes.Repeat([]byte("x"), 1060)
	for _, callers := range []int{1, 8, 64} {
		run("put-1KB", callers, func(int64) error { return s.PutIfAbsent(ctx, name(), data) })
	}
	big := bytes.Repeat([]byte("x"), 16<<20)
	if err := s.PutIfAbsent(ctx, "big", big); err != nil {
		b.Fatal(err)
	}
	r, err := s.Open(ctx, "big")
	if err != nil {
		b.Fatal(err)
	}
	for _, callers := range []int{1, 8} {
		run("read-32KiB", callers, func(i int64) error {
			return r.ReadAt(ctx, make([]byte, 32<<10), i%500*(32<<10))
		})
	}
	run("create-64MiB", 1, func(int64) error { return create(ctx, s, name(), big, 4) })
}

func create(ctx context.Context, s objectstore.Store, name string, piece []byte, pieces int) error {
	w, err := s.Create(ctx, name)
	if err != nil {
		return err
	}
	for range pieces {
		if err := w.Write(piece); err != nil {
			w.Abort()
			return err
		}
	}
	return w.Finish()
}
