package keyvis

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/trestledb/trestle/engine/tablet"
)

// thousand makes a world of a table with 1,000 tablets, all of which have load.
func thousand(t testing.TB) (w *world, load func()) {
	w = newWorld(t)
	var all []*fake
	key := func(i, j int) string { return fmt.Sprintf("row-%06d-%06d", i, j) }
	for i := range 1000 {
		start, end := key(i, 0), key(i+1, 0)
		if i == 0 {
			start = ""
		}
		if i == 999 {
			end = ""
		}
		f := w.add("t", start, end)
		f.bytes = 1 << 30
		all = append(all, f)
	}
	return w, func() {
		for i, f := range all {
			f.window.RowsWritten, f.window.BytesWritten = 10_000, 1_000_000
			for range 64 {
				f.window.Sample = append(f.window.Sample, tablet.Sampled{Key: []byte(key(i, w.rng.IntN(1_000_000))), Written: true})
			}
		}
	}
}

// TestMemory: a Recorder of 1,000 busy tablets takes less than 8 MiB.
func TestMemory(t *testing.T) {
	w, load := thousand(t)
	heap := func() uint64 {
		var s runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&s)
		return s.HeapAlloc
	}
	before := heap()
	for range 3 { // the column is full then
		load()
		w.r.take(w.now, false)
	}
	if n := heap() - before; n > 8<<20 {
		t.Errorf("%d bytes", n)
	} else {
		t.Logf("%d bytes", n)
	}
	runtime.KeepAlive(w)
}

// BenchmarkMinute is what a minute of 1,000 busy tablets costs: 0.3 % of a processor is
// 180 ms.
func BenchmarkMinute(b *testing.B) {
	w, load := thousand(b)
	for b.Loop() {
		for range 4 {
			b.StopTimer()
			load()
			b.StartTimer()
			w.r.take(w.now, false)
		}
		if _, err := w.r.column(b.Context()).encode(); err != nil {
			b.Fatal(err)
		}
	}
}
