package tabletserver_test

import (
	"testing"

	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

// A full scan, of ten times what the block cache holds, leaves in it the blocks
// that are read again and again, which are half of what it holds. What is
// scanned again and again is in the cache in the end.
func TestScansAndTheBlockCache(t *testing.T) {
	const n, hot, stride = 120_000, 240, 450
	// No compaction puts other blocks in the place of those that are hot.
	s := mustOpen(t, Options{Dir: t.TempDir(), CacheBytes: 16 << 20, RowCacheBytes: -1, MemtableBytes: 512 << 20, NoBackground: true})
	defer mustClose(t, s)
	table := mustCreate(t, s, newSchema("usertable", 1000, "cf"))
	fillBench(t, s, table, n)
	if err := s.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	var w sinkWriter
	read := func(r ...row.Range) {
		t.Helper()
		if _, err := s.ReadRows(ctx, &scan.Request{Table: table, Ranges: r}, &w); err != nil {
			t.Fatal(err)
		}
	}
	// cached is the part of what do reads that is in the block cache.
	cached := func(do func()) float64 {
		before := s.Stats().Reads[0]
		do()
		after := s.Stats().Reads[0]
		return float64(after.CachedBytes-before.CachedBytes) / float64(after.BlockBytes-before.BlockBytes)
	}
	readHot := func() {
		for i := range hot {
			read(row.Single(benchKey(nil, i*stride)))
		}
	}
	for range 5 {
		readHot()
	}
	for round := range 3 {
		w.rows = 0
		if read(row.All); w.rows != n {
			t.Fatalf("%d rows of %d", w.rows, n)
		}
		// With what Pebble's clock does alone it is 0.84 to 0.89.
		if part := cached(readHot); part < 0.93 {
			t.Errorf("scan %d left %.2f of the hot blocks", round, part)
		}
	}
	part := 0.0
	for range 60 {
		part = cached(func() { read(row.Range{Start: benchKey(nil, 50_000), End: benchKey(nil, 56_000)}) })
		if part > 0.95 {
			break
		}
	}
	if part < 0.95 {
		t.Errorf("of what is scanned again and again only %.2f is in the cache", part)
	}
}
