//go:build unix

package tabletserver_test

import (
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

// heapWriter notes how large the heap gets while rows come.
type heapWriter struct {
	sinkWriter
	cells int
	peak  uint64
}

func (w *heapWriter) Cell(c *row.Cell) {
	w.sinkWriter.Cell(c)
	if w.cells++; w.cells%16 == 1 {
		w.look()
	}
}

func (w *heapWriter) look() {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	w.peak = max(w.peak, m.HeapInuse)
}

// A row of 256 MiB, and one of 100,000 columns in six runs, pass without being
// held in memory.
func TestWideRowsStream(t *testing.T) {
	const mib = 1 << 20
	s := mustOpen(t, Options{Dir: t.TempDir(), CacheBytes: 8 * mib, MemtableBytes: 64 * mib, NoBackground: true})
	defer mustClose(t, s)
	table := mustCreate(t, s, newSchema("t", 1000, "cf"))
	value := make([]byte, mib)
	for i := range 256 {
		copy(value, values()[i*997:])
		mustPut(t, s, table, "large", row.Mutation{Op: row.SetCell, Family: "cf", Qualifier: []byte(column(i)), Timestamp: 1000, Value: value})
		if i%32 == 31 {
			if err := s.Flush(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	for r := range 6 {
		putWide(t, s, table, "wide", 100_000/6+1, func(i int) (string, int64) { return column(i*6 + r), 1000 })
		if err := s.Flush(ctx); err != nil {
			t.Fatal(err)
		}
	}
	defer debug.SetGCPercent(debug.SetGCPercent(10))
	for _, tc := range []struct {
		key          string
		cells, bytes int
	}{{"large", 256, 256 * mib}, {"wide", 100_002, 10_000_200}} {
		for _, ranges := range [][]row.Range{{row.Single([]byte(tc.key))}, {row.Prefix([]byte(tc.key))}} {
			for _, reversed := range []bool{false, true} {
				runtime.GC()
				var w heapWriter
				w.look()
				before := w.peak
				if _, err := s.ReadRows(ctx, &scan.Request{Table: table, Ranges: ranges, Reversed: reversed}, &w); err != nil {
					t.Fatal(err)
				}
				if w.cells != tc.cells || w.bytes != tc.bytes {
					t.Errorf("%s: %d cells, %d bytes", tc.key, w.cells, w.bytes)
				}
				// Of each of eight runs a block or two, and the block cache.
				if w.peak > before+48*mib {
					t.Errorf("%s: the heap grew from %d to %d MiB", tc.key, before/mib, w.peak/mib)
				}
				t.Logf("%s: the heap grew from %d to %d MiB", tc.key, before/mib, w.peak/mib)
			}
		}
	}
}
