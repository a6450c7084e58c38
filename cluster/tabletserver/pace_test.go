package tabletserver_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

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
			for _, tt := range s.tabletsOf(bulk) {
				// The same again: a row of each SSTable is deleted.
				if err := s.MutateRow(ctx, bulk, entry(string(tt.Bounds().Start)+"a", row.Mutation{Op: row.DeleteRow})); err != nil {
					b.Error(err)
				}
			}
		}
	})
	b.ReportMetric(float64(s.Stats().CompactionIn-before.CompactionIn)/4e6, "compacted-MB/s")
}

// TestWritersSlowDown: as compactions fall behind, writes take longer and
// longer, before they are stopped at MaxRuns; once there are few runs they are
// as fast as ever.
func TestWritersSlowDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustOpen(t, Options{FS: vfs.NewMem(), Dir: "d", NoBackground: true, Log: loud()})
		defer mustClose(t, s)
		table := mustCreate(t, s, newSchema("t", 1000, "f"))
		tt := s.tabletsOf(table)[0]
		big := strings.Repeat("x", 1<<20)
		var took [25]time.Duration // of 8 MiB by four writers, at that number of runs
		for n := range 25 {
			if tt.Runs() != n {
				t.Fatalf("%d runs, want %d", tt.Runs(), n)
			}
			start := time.Now()
			var writers sync.WaitGroup
			for w := range 4 {
				writers.Go(func() {
					for i := range 2 {
						err := s.MutateRow(ctx, table, entry(fmt.Sprint("row", w, i), setCell("f", "q", 1000, big)))
						if kindOf(err) != "none" && (n < 24 || kindOf(err) != "exhausted") {
							t.Errorf("write with %d runs: %v", n, err)
						}
					}
				})
			}
			synctest.Wait()
			if n == 24 && !tt.Delayed() {
				t.Errorf("%d runs: writers are not said to wait", n)
			}
			writers.Wait()
			if tt.Delayed() {
				t.Errorf("%d runs: writers are said to wait, and have ended", n)
			}
			took[n] = time.Since(start)
			if err := s.flush(ctx, tt); err != nil {
				t.Fatal(err)
			}
		}
		t.Log(took)
		for n := range 10 {
			if took[n] > 10*time.Millisecond {
				t.Errorf("%d runs: %v", n, took[n])
			}
		}
		if took[12] == 0 || took[23] < 10*took[12] || took[24] < 10*time.Second {
			t.Errorf("the delay does not grow as it should: %v", took)
		}
		if !slices.IsSorted(took[11:]) {
			t.Errorf("the delay does not grow steadily: %v", took)
		}
		if s.Stats().Stalled == 0 {
			t.Error("nobody has waited")
		}
		for {
			more, err := tt.Compact(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if !more {
				break
			}
		}
		time.Sleep(time.Minute) // what was taken is paid for
		start := time.Now()
		mustPut(t, s, table, "row", setCell("f", "q", 1000, big))
		if d := time.Since(start); d > 10*time.Millisecond {
			t.Errorf("with %d runs again a write takes %v", tt.Runs(), d)
		}
	})
}
