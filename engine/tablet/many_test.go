package tablet

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/sstable"
)

// stored opens a tablet that can be flushed.
func stored(t testing.TB) *Tablet {
	t.Helper()
	ctx := t.Context()
	objects, err := objectstore.OpenLocal(vfs.NewMem(), "store", objectstore.LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	log, err := commitlog.CreateSegments(ctx, objects, 7, commitlog.SegmentOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	cache := sstable.NewCache(64<<20, 0)
	t.Cleanup(cache.Close)
	var ids atomic.Uint64
	env := &Env{Options: Options{}.WithDefaults(), Commit: log, Meta: &lossyMeta{}, Objects: objects, Cache: cache, Memory: NewMemory(1<<30, func() {}),
		Log: slog.New(slog.DiscardHandler), Now: time.Now, NewID: func() uint64 { return ids.Add(1) }, Remove: func(string) {}, Work: func(*Tablet) {},
		Fatal: func(err error) { t.Error(err) }}
	sch := &schema.Table{ID: 5, NextFamily: 1, Families: map[string]schema.Family{"f": {Name: "f"}}}
	one := Open(env, &metadata.Row{Table: 5, Tablet: 1, Version: 1}, func() *schema.Table { return sch })
	one.Start()
	t.Cleanup(one.Close)
	return one
}

// flushed puts what was written into a run of its own.
func flushed(t testing.TB, one *Tablet) {
	t.Helper()
	one.Rotate()
	if _, err := one.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// BenchmarkManyRows reads 500 rows at a time, neighbours and others, of a tablet of four runs.
func BenchmarkManyRows(b *testing.B) {
	one, ctx := stored(b), b.Context()
	const keys, parts = 400_000, 4
	key := func(i int) []byte { return fmt.Appendf(nil, "%08d", i) }
	for part := range parts {
		for at := part; at < keys; {
			batch := NewBatch(key(at))
			for i := 0; i < 1000 && at < keys; i, at = i+1, at+parts {
				if i > 0 {
					batch.Row(key(at))
				}
				batch.Set(0, []byte("a"), 1, fmt.Append(nil, at))
				batch.Set(0, []byte("b"), 1, fmt.Append(nil, at))
			}
			if err := applyAndWait(ctx, one, batch); err != nil {
				b.Fatal(err)
			}
			batch.Free()
		}
		flushed(b, one)
	}
	q, err := NewQuery(one.schema(), nil, false)
	if err != nil {
		b.Fatal(err)
	}
	for _, step := range []int{1, 2, 100} {
		b.Run(fmt.Sprint("each", step), func(b *testing.B) {
			const rows = 500
			n, w := 0, &cellWriter{each: func([]byte, *row.Cell) {}}
			for b.Loop() {
				ranges := make([]row.Range, rows)
				for i := range ranges {
					ranges[i] = row.Single(key((n + i*step) % keys))
				}
				n = (n + rows*step) % (keys - rows*step)
				for len(ranges) > 0 {
					if ranges, _, err = one.Read(ctx, q, ranges, 0, w, new(scan.Stats)); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/rows, "ns/row")
		})
	}
}

// TestManyRows: a read of many rows, and ranges between them, gives what reads of each give,
// whether the rows are near each other or not, are there or were deleted, in memory or in runs,
// and however often the writer is full.
func TestManyRows(t *testing.T) {
	one, ctx := stored(t), t.Context()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	const keys = 6000
	key := func(i int) []byte { return fmt.Appendf(nil, "%06d", i) }
	for part := range 4 {
		for range 30 {
			at := r.IntN(keys)
			b := NewBatch(key(at))
			for i := range 100 {
				if i > 0 {
					at += 1 + r.IntN(1+r.IntN(3))
					b.Row(key(at))
				}
				switch r.IntN(24) {
				case 0:
					b.DeleteFamily(0)
					continue
				case 1:
					b.DeleteRow()
					continue
				case 2:
					b.DeleteColumn(0, []byte("b"), cell.TimeRange{Start: 1, End: 2})
				}
				for _, q := range []string{"a", "b", "c"}[r.IntN(3):] {
					b.Set(0, []byte(q), int64(r.IntN(3)), fmt.Append(nil, part, at))
				}
			}
			if err := applyAndWait(ctx, one, b); err != nil {
				t.Fatal(err)
			}
			b.Free()
		}
		for range 3 {
			at := r.IntN(keys)
			if err := one.DropRange(ctx, row.Range{Start: key(at), End: key(at + r.IntN(100))}); err != nil {
				t.Fatal(err)
			}
		}
		if part < 3 {
			flushed(t, one)
		}
	}
	column := &filter.Node{Op: filter.Chain, Children: []*filter.Node{{Op: filter.ColumnRange, Family: "f", Start: filter.Bound{Key: []byte("b"), Set: true}}, {Op: filter.CellsPerColumnLimit, N: 1}}}
	for _, f := range []*filter.Node{nil, column} {
		q, err := NewQuery(one.schema(), f, false)
		if err != nil {
			t.Fatal(err)
		}
		read := func(ranges []row.Range, full func() bool) (got []string) {
			w := &cellWriter{full: full, each: func(key []byte, c *row.Cell) {
				got = append(got, fmt.Sprintf("%s %s %d %s", key, c.Qualifier, c.Timestamp, c.Value))
			}}
			for rest := slices.Clone(ranges); len(rest) > 0; {
				var err error
				if rest, _, err = one.Read(ctx, q, rest, 0, w, new(scan.Stats)); err != nil {
					t.Fatal(err)
				}
			}
			return got
		}
		for range 20 {
			var ranges []row.Range
			var want []string
			// Stretches of rows that are near each other, and of others.
			for at := r.IntN(10); at < keys; {
				step := 1 + r.IntN(30)*r.IntN(2)
				for range r.IntN(2 * farRows) {
					one := row.Single(key(at))
					if r.IntN(20) == 0 {
						one = row.Range{Start: key(at), End: key(at + 1 + r.IntN(2*step))}
						at += 2 * step
					}
					ranges, want = append(ranges, one), append(want, read([]row.Range{one}, nil)...)
					at += 1 + r.IntN(step)
				}
				at++
			}
			every := 1 + r.IntN(300)
			if got := read(ranges, func() bool { return r.IntN(every) == 0 }); len(ranges) < manyRows || !slices.Equal(got, want) {
				t.Fatalf("seed %d: a read of %d rows gives %d cells, reads of each %d", seed, len(ranges), len(got), len(want))
			}
		}
	}
	v := one.pin()
	defer v.release()
	if n := len(v.runs); n < 3 {
		t.Errorf("%d runs were read", n)
	}
}

// TestManyLargeRows: a read of one small cell of many rows does not read the large ones between.
func TestManyLargeRows(t *testing.T) {
	one, ctx := stored(t), t.Context()
	const rows, large = manyRows + 10, 60 << 10
	value := make([]byte, large)
	r := rand.NewChaCha8([32]byte{})
	var ranges []row.Range
	for i := range rows {
		b := NewBatch(fmt.Appendf(nil, "%06d", i))
		b.Set(0, []byte("a"), 1, []byte("small"))
		for q := range nearby - 2 {
			_, _ = r.Read(value)
			b.Set(0, fmt.Append(nil, "b", q), 1, value)
		}
		if err := applyAndWait(ctx, one, b); err != nil {
			t.Fatal(err)
		}
		b.Free()
		ranges = append(ranges, row.Single(fmt.Appendf(nil, "%06d", i)))
	}
	flushed(t, one)
	q, err := NewQuery(one.schema(), &filter.Node{Op: filter.ColumnRange, Family: "f", Start: filter.Bound{Key: []byte("a"), Set: true}, End: filter.Bound{Key: []byte("b"), Set: true}}, false)
	if err != nil {
		t.Fatal(err)
	}
	v := one.pin()
	defer v.release()
	before, n := v.reads.blockBytes.Load(), 0
	for w := (&cellWriter{each: func([]byte, *row.Cell) { n++ }}); len(ranges) > 0; {
		if ranges, _, err = one.Read(ctx, q, ranges, 0, w, new(scan.Stats)); err != nil {
			t.Fatal(err)
		}
	}
	if read := v.reads.blockBytes.Load() - before; n != rows || read > rows*large*(nearby-2)/2 {
		t.Errorf("%d cells; %d bytes of blocks read of some %d", n, read, rows*large*(nearby-2))
	}
}
