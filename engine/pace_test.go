package engine

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

// BenchmarkPace measures reads and writes of single rows of one table, at a
// steady rate, while another one is loaded in random order, and while that one
// is compacted afterwards: with compactions that take what they can get, and
// with the default.
func BenchmarkPace(b *testing.B) {
	for _, share := range []float64{1, 0.25, 1, 0.25} {
		b.Run(fmt.Sprintf("share=%v", share), func(b *testing.B) {
			o := Options{}
			o.Tablet.CompactionShare = share
			o.Tablet.MemtableBytes = 16 << 20
			for b.Loop() {
				benchPace(b, o)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

func benchPace(b *testing.B, o Options) {
	s, table := benchStore(b, o)
	bulk := mustCreate(b, s, newSchema("bulk", 1000, "cf"))
	const rows = 20_000
	fillBench(b, s, table, rows)
	if err := s.Flush(ctx); err != nil {
		b.Fatal(err)
	}
	phase := func(name string, background func(stop <-chan struct{})) {
		stop := make(chan struct{})
		var done sync.WaitGroup
		done.Go(func() { background(stop) })
		var reads, writes []time.Duration
		request := func(out *[]time.Duration, do func(n int) error) {
			// Requests come when they come, whatever became of those before.
			var mu sync.Mutex
			var all sync.WaitGroup
			tick := time.NewTicker(2 * time.Millisecond)
			defer tick.Stop()
			for n := 0; ; n++ {
				select {
				case <-stop:
					all.Wait()
					return
				case due := <-tick.C:
					all.Go(func() {
						if err := do(n); err != nil {
							b.Error(err)
						}
						mu.Lock()
						defer mu.Unlock()
						*out = append(*out, time.Since(due))
					})
				}
			}
		}
		done.Go(func() {
			request(&reads, func(n int) error {
				var w sinkWriter
				_, err := s.ReadRows(ctx, &scan.Request{Table: table, Limit: 1, Ranges: []row.Range{row.Single(benchKey(nil, n*7919%rows))}}, &w)
				return err
			})
		})
		done.Go(func() {
			request(&writes, func(n int) error {
				return s.MutateRow(ctx, table, entry(string(benchKey(nil, n*7919%rows)), setCell("cf", "field0", 1000, string(values()[:1000]))))
			})
		})
		time.Sleep(4 * time.Second)
		close(stop)
		done.Wait()
		for _, l := range []struct {
			name string
			ds   []time.Duration
		}{{"read", reads}, {"write", writes}} {
			slices.Sort(l.ds)
			b.ReportMetric(float64(l.ds[len(l.ds)/2].Microseconds())/1000, name+"-"+l.name+"-p50-ms")
			b.ReportMetric(float64(l.ds[len(l.ds)*99/100].Microseconds())/1000, name+"-"+l.name+"-p99-ms")
		}
	}
	phase("idle", func(stop <-chan struct{}) { <-stop })
	before := s.Stats()
	loaded := 0
	phase("load", func(stop <-chan struct{}) {
		r := rand.New(rand.NewPCG(1, 1))
		for {
			select {
			case <-stop:
				return
			default:
			}
			entries := make([]row.Entry, 200)
			for i := range entries {
				at := r.IntN(len(values()) - 1000)
				entries[i] = row.Entry{Key: benchKey(nil, r.IntN(1e8)), Mutations: []row.Mutation{setCell("cf", "field0", 1000, string(values()[at:at+1000]))}}
			}
			if err := s.MutateRows(ctx, bulk, entries, func(int, error) {}); err != nil {
				b.Error(err)
			}
			loaded += len(entries)
		}
	})
	b.ReportMetric(float64(loaded)/4, "loaded-rows/s")
	b.ReportMetric(float64(s.Stats().CompactionIn-before.CompactionIn)/4e6, "load-compacted-MB/s")
	before = s.Stats()
	phase("compact", func(stop <-chan struct{}) {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := s.CompactTablets(ctx, bulk, row.All, nil); err != nil {
				b.Error(err)
			}
			for _, tt := range s.catalog.byName[bulk].list() {
				// The same again: a row of each SSTable is deleted.
				if err := s.MutateRow(ctx, bulk, entry(string(tt.Bounds().Start)+"a", row.Mutation{Op: row.DeleteRow})); err != nil {
					b.Error(err)
				}
			}
		}
	})
	b.ReportMetric(float64(s.Stats().CompactionIn-before.CompactionIn)/4e6, "compacted-MB/s")
}
