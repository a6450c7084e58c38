//go:build unix

package tabletserver_test

import (
	"fmt"
	"testing"

	"github.com/trestledb/trestle/engine/request"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

// A messageWriter is full when it has message bytes of values.
type messageWriter struct {
	sinkWriter
	message, in int
}

func (w *messageWriter) EndRow() (bool, error) {
	w.in = w.bytes % w.message
	return w.bytes/w.message > (w.bytes-1000)/w.message, nil
}

// Space implements scan.SpaceWriter.
func (w *messageWriter) Space() int { return w.message - w.in }

// TestScanBeyondCacheReadsLittle: a scan that stops for each message takes its blocks from
// storage about once, and leaves those alone that other reads have in the cache.
func TestScanBeyondCacheReadsLittle(t *testing.T) {
	const n, hot = 16_000, 1000
	s := mustOpen(t, Options{Dir: t.TempDir(), NoBackground: true, CacheBytes: 4 << 20, MemtableBytes: 1 << 30, RowCacheBytes: -1})
	defer mustClose(t, s)
	table := mustCreate(t, s, newSchema("cold", 1000, "cf"))
	pool := values()
	for i := 0; i < n; i += 1000 {
		var es []row.Entry
		for k := i; k < i+1000; k++ {
			off := k * 997 % (len(pool) - 1000)
			es = append(es, row.Entry{Key: fmt.Appendf(nil, "row%06d", k), Mutations: []row.Mutation{
				{Op: row.SetCell, Family: "cf", Qualifier: []byte("q"), Timestamp: 1000, Value: pool[off : off+1000]}}})
		}
		mustPutAll(t, s, table, es)
	}
	if err := s.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	// read returns how many bytes it took from storage.
	read := func(rows row.Range, w scan.Writer) int64 {
		t.Helper()
		before := s.Stats().ReadBytes
		ctx := request.With(ctx, new(request.Record))
		if _, err := s.ReadRows(ctx, &scan.Request{Table: table, Ranges: []row.Range{rows}}, w); err != nil {
			t.Fatal(err)
		}
		return s.Stats().ReadBytes - before
	}
	few := row.Range{Start: []byte("row004000"), End: fmt.Appendf(nil, "row%06d", 4000+hot)}
	for range 30 {
		read(few, &sinkWriter{})
	}
	if got := read(few, &sinkWriter{}); got > 64<<10 {
		t.Fatalf("%d bytes of rows that are read often come from storage", got)
	}
	for range 3 {
		w := &messageWriter{message: 256 << 10}
		if got := read(row.All, w); w.rows != n || got > n*1000*23/20 {
			t.Errorf("a scan of %d rows took %d bytes from storage for %d", w.rows, got, w.bytes)
		}
	}
	if got := read(few, &sinkWriter{}); got > hot*1000/3 {
		t.Errorf("after scans %d bytes of rows that are read often come from storage", got)
	}
}
