package tabletserver_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/conformance/backendtest"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway/backend"
)

// restless is a Store whose tablets are split and merged all the time.
func restless(t testing.TB, o Options) *Store {
	s := open(t, o)
	stop := make(chan struct{})
	var done sync.WaitGroup
	done.Add(1)
	go func() {
		defer done.Done()
		ctx := context.Background()
		var cuts [][2]string
		for {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
			}
			tables, err := s.ListTables(ctx, "projects/p/instances/i")
			if err != nil || len(tables) == 0 {
				continue
			}
			name := tables[rand.IntN(len(tables))].Name
			key := []byte(string("abcr\x00\xff"[rand.IntN(6)]))
			if rand.IntN(2) == 0 {
				key = fmt.Appendf(key, "%d", rand.IntN(500))
			}
			// Refusals are part of it: the table may be gone, the tablet too small.
			// What counts is that nobody else notices.
			if rand.IntN(2) == 0 {
				if s.SplitTablet(ctx, name, key) == nil {
					cuts = append(cuts, [2]string{name, string(key)})
				}
			} else if len(cuts) > 0 {
				// Only our own cuts are mended: tests ask for the others.
				cut := cuts[len(cuts)-1]
				cuts = cuts[:len(cuts)-1]
				start := ""
				_ = s.SampleRowKeys(ctx, cut[0], row.All, func(m scan.Sample) error {
					if k := string(m.Key); k < cut[1] && k > start {
						start = k
					}
					return nil
				})
				_ = s.MergeTablets(ctx, cut[0], []byte(start))
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		done.Wait()
		if err := s.Err(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestBackendUnderSplitsAndMerges(t *testing.T) {
	backendtest.Run(t, func(t testing.TB) backend.Backend {
		o := Options{FS: vfs.NewMem(), Dir: "data", MemtableBytes: 1 << 20}
		o.Tablet.MemtableBytes = 64 << 10
		o.Tablet.FileBytes = 64 << 10
		return restless(t, o)
	})
}

const table = "projects/p/instances/i/tables/t"

func fill(t testing.TB, s *Store, from, to int) {
	t.Helper()
	ctx := context.Background()
	for i := from; i < to; i++ {
		e := row.Entry{Key: fmt.Appendf(nil, "row%06d", i), Mutations: []row.Mutation{
			{Op: row.SetCell, Family: "f", Qualifier: []byte("q"), Timestamp: 1000, Value: fmt.Appendf(nil, "%0100d", i)}}}
		if err := s.MutateRow(ctx, table, &e); err != nil {
			t.Fatal(err)
		}
	}
}

type keys struct{ got []string }

func (k *keys) StartRow(key []byte)   { k.got = append(k.got, string(key)) }
func (k *keys) Cell(*row.Cell)        {}
func (k *keys) EndRow() (bool, error) { return len(k.got)%7 == 0, nil }
func (k *keys) Scanned([]byte)        {}
func (k *keys) Flush() error          { return nil }

func read(t testing.TB, s *Store, reversed bool) []string {
	t.Helper()
	var k keys
	if _, err := s.ReadRows(context.Background(), &scan.Request{Table: table, Ranges: []row.Range{row.All}, Reversed: reversed}, &k); err != nil {
		t.Fatal(err)
	}
	return k.got
}

func boundaries(t testing.TB, s *Store) (out []string) {
	t.Helper()
	err := s.SampleRowKeys(context.Background(), table, row.All, func(m scan.Sample) error {
		out = append(out, string(m.Key))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// A split copies no byte; both children refer to the parent's files until they
// are compacted; a restart finds the same tablets; a merge undoes it.
func TestSplitSharesFilesAndMergeUndoesIt(t *testing.T) {
	ctx := context.Background()
	fs := vfs.NewMem()
	o := Options{FS: fs, Dir: "data", NoBackground: true}
	s, err := Open(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.CreateTable(ctx, &schema.Table{Name: table, Granularity: 1000, Families: map[string]schema.Family{"f": {}}}, nil); err != nil {
		t.Fatal(err)
	}
	const n = 2000
	fill(t, s, 0, n)
	if err := s.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	want := read(t, s, false)
	if len(want) != n {
		t.Fatalf("%d rows", len(want))
	}
	wrote := s.Stats().FlushBytes
	for _, key := range []string{"row000500", "row001500", "row001000"} {
		if err := s.SplitTablet(ctx, table, []byte(key)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.SplitTablet(ctx, table, []byte("row001000")); err == nil {
		t.Error("a split at a boundary succeeded")
	}
	if now := s.Stats().FlushBytes; now != wrote {
		t.Errorf("splits wrote %d bytes of SSTables", now-wrote)
	}
	check := func(bounds ...string) {
		t.Helper()
		if got := boundaries(t, s); !slices.Equal(got, append(bounds, "")) {
			t.Errorf("boundaries %q, want %q", got, bounds)
		}
		if got := read(t, s, false); !slices.Equal(got, want) {
			t.Errorf("%d rows differ from the %d before", len(got), len(want))
		}
		back := read(t, s, true)
		slices.Reverse(back)
		if !slices.Equal(back, want) {
			t.Errorf("%d rows in reverse differ from the %d before", len(back), len(want))
		}
	}
	check("row000500", "row001000", "row001500")
	if err := s.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if s, err = Open(ctx, o); err != nil {
		t.Fatal(err)
	}
	check("row000500", "row001000", "row001500")
	fill(t, s, 0, n) // overwrite everything
	for _, key := range []string{"row000000", "row000000", "row000000"} {
		if err := s.MergeTablets(ctx, table, []byte(key)); err != nil {
			t.Fatal(err)
		}
	}
	check()
	if err := s.MergeTablets(ctx, table, []byte("row000000")); err == nil {
		t.Error("the last tablet was merged with nothing")
	}
	if err := s.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if s, err = Open(ctx, o); err != nil {
		t.Fatal(err)
	}
	check()
	if err := s.Close(ctx); err != nil {
		t.Fatal(err)
	}
}

// binaryRows is how many rows a binaryStore has.
const binaryRows = 9000

func binaryKey(i int) []byte { return binary.BigEndian.AppendUint64([]byte{0}, uint64(i)) }

// binaryStore returns a store with binaryRows rows of 500 bytes in memtables.
func binaryStore(t *testing.T, o Options) *Store {
	t.Helper()
	ctx := context.Background()
	o.FS, o.Dir, o.NoBackground = vfs.NewMem(), "data", true
	s, err := Open(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(ctx) })
	if _, err := s.CreateTable(ctx, &schema.Table{Name: table, Granularity: 1000, Families: map[string]schema.Family{"f": {}}}, nil); err != nil {
		t.Fatal(err)
	}
	writeBinary(t, s, 0, binaryRows)
	return s
}

// writeBinary writes rows from one on, before another, of 500 bytes.
func writeBinary(t *testing.T, s *Store, from, to int) {
	t.Helper()
	value := rand.NewChaCha8([32]byte{})
	for i := from; i < to; i++ {
		v := make([]byte, 500)
		_, _ = value.Read(v)
		if err := s.MutateRow(t.Context(), table, &row.Entry{Key: binaryKey(i), Mutations: []row.Mutation{{Op: row.SetCell, Family: "f", Timestamp: 1000, Value: v}}}); err != nil {
			t.Fatal(err)
		}
	}
}

// A tablet is cut into parts of about one size, be its rows in one SSTable, in some, in many or
// in a memtable, and if the second half of them is.
func TestTabletCuts(t *testing.T) {
	for _, fileBytes := range []int64{64 << 20, 1 << 20, 32 << 10} {
		t.Run(fmt.Sprint(fileBytes), func(t *testing.T) {
			o := Options{}
			o.Tablet.FileBytes = fileBytes
			s, ctx := binaryStore(t, o), t.Context()
			cuts := func(within row.Range) (at []int) {
				keys, err := s.TabletCuts(ctx, table, within)
				if err != nil {
					t.Fatal(err)
				}
				for _, k := range keys {
					if len(k) != 9 {
						t.Fatalf("a cut at %x", k)
					}
					at = append(at, int(binary.BigEndian.Uint64(k[1:])))
				}
				return at
			}
			rows := binaryRows
			even := func(all []int) {
				t.Helper()
				if len(all) < 5 || len(all) > 7 {
					t.Fatalf("cuts of a large tablet: %v", all)
				}
				for i, at := range append(all, rows) {
					if last := append([]int{0}, all...)[i]; at-last < rows/24 || at-last > rows/4 {
						t.Errorf("a part of %d of %d rows: %v", at-last, rows, all)
					}
				}
			}
			even(cuts(row.All))
			if err := s.Flush(ctx); err != nil {
				t.Fatal(err)
			}
			all := cuts(row.All)
			even(all)
			if some := cuts(row.Range{Start: binaryKey(all[1] + 1), End: binaryKey(all[4])}); !slices.Equal(some, all[2:4]) {
				t.Errorf("cuts within %d and %d: %v, want %v", all[1]+1, all[4], some, all[2:4])
			}
			writeBinary(t, s, binaryRows, 2*binaryRows)
			rows = 2 * binaryRows
			even(cuts(row.All))
			// Runs that overlap: one has all rows, others those of the first half again.
			if err := s.Flush(ctx); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				writeBinary(t, s, 0, binaryRows)
				if err := s.Flush(ctx); err != nil {
					t.Fatal(err)
				}
			}
			if all := cuts(row.All); len(all) < 5 || len(all) > 7 || all[4] > binaryRows || all[len(all)-1] < binaryRows {
				t.Errorf("cuts where the first half of %d rows was written three times: %v", rows, all)
			}
		})
	}
}

// The middle of a tablet is a row key, whatever bytes it has, and that of a child
// of a split is its own, though the file is its sibling's too.
func TestSplitKeyOfBinaryKeys(t *testing.T) {
	s, ctx := binaryStore(t, Options{}), t.Context()
	if err := s.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	var split func(from, to int)
	split = func(from, to int) {
		at, ok, err := s.SplitKey(ctx, table, binaryKey(from))
		if err != nil || !ok || len(at) != 9 {
			t.Fatalf("the middle of %d to %d is %x, %v, %v", from, to, at, ok, err)
		}
		mid := int(binary.BigEndian.Uint64(at[1:]))
		if part := float64(mid-from) / float64(to-from); part < 0.3 || part > 0.7 {
			t.Fatalf("the middle of %d to %d is %d", from, to, mid)
		}
		if err := s.SplitTablet(ctx, table, at); err != nil {
			t.Fatal(err)
		}
		if to-from > binaryRows/4 {
			split(from, mid)
			split(mid, to)
		}
	}
	split(0, binaryRows)
}
