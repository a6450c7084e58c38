package tabletserver_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
)

// TestRowCacheIsCoherent does the same to a Store with a row cache, which
// flushes, compacts, splits and merges all the time, and to one without: every
// read, of rows that are read often enough to be cached, finds the same in both.
func TestRowCacheIsCoherent(t *testing.T) {
	for name, bytes := range map[string]int64{"tiny": 96 << 10, "ample": 8 << 20} {
		t.Run(name, func(t *testing.T) {
			first, end := seeds(t, 20)
			hits := int64(0)
			for seed := first; seed < end && !t.Failed(); seed++ {
				hits += coherent(t, seed, bytes)
			}
			if hits == 0 && !t.Failed() {
				t.Error("the row cache was of no use")
			}
		})
	}
}

// coherent returns how many reads found their row in the row cache.
func coherent(t *testing.T, seed uint64, bytes int64) (hits int64) {
	o := Options{FS: vfs.NewMem(), Dir: "d", CacheBytes: 16 << 20, RowCacheBytes: bytes, NoBackground: true}
	o.Tablet.MaxRuns = 10_000
	o.Tablet.FileBytes = 2 << 10
	s := mustOpen(t, o)
	plain := mustOpen(t, Options{FS: vfs.NewMem(), Dir: "p", RowCacheBytes: -1})
	m := maker{Rand: rand.New(rand.NewPCG(seed, 3)), families: []string{"a", "b"}, aggregates: []string{"sum"},
		qualifiers: []string{"", "q", "q\x00", "z"}, big: 40}
	table := mustCreate(t, s, newSchema("t", 1000, "a", "b", "sum=sum"))
	mustCreate(t, plain, newSchema("t", 1000, "a", "b", "sum=sum"))

	stop := make(chan struct{})
	var churning sync.WaitGroup
	churning.Go(func() {
		if err := churn(s, rand.New(rand.NewPCG(seed, 5)), stop); err != nil {
			t.Errorf("seed %d: churn: %v", seed, err)
		}
	})
	defer func() {
		close(stop)
		churning.Wait()
		hits = s.Stats().Reads[0].RowHits
		mustClose(t, s)
		mustClose(t, plain)
	}()

	keys := []string{"k", "k\x00", "ka", "w0", "w0a", "w1", "w1a\x00\x01", "w2", "w2b", "x"}
	// What is asked for of a row. Cells of one column are a few versions.
	filters := []*filter.Node{
		nil,
		{Op: filter.CellsPerColumnLimit, N: 1},
		{Op: filter.QualifierRegex, Pattern: []byte("q")},
		{Op: filter.ColumnRange, Family: "b", Start: filter.Bound{Set: true, Key: []byte("q")}},
		{Op: filter.TimestampRange, Times: cell.TimeRange{Start: 1000, End: 3000}},
		{Op: filter.FamilyRegex, Pattern: []byte("b")},
	}
	both := func(what string, do func(s *Store) (string, error)) {
		got, err := do(s)
		for errors.Is(err, fault.Unavailable) {
			got, err = do(s)
		}
		want, werr := do(plain)
		if kindOf(err) != kindOf(werr) || got != want {
			t.Fatalf("seed %d: %s: got\n%s(%v), without the cache\n%s(%v)", seed, what, got, err, want, werr)
		}
	}
	grouped := seed%2 == 1
	if grouped {
		if _, err := s.CreateGroup(ctx, table, schema.Group{Name: "g"}); err != nil {
			t.Fatal(err)
		}
	}
	for range 400 {
		key := m.pick(keys)
		if grouped && m.IntN(40) == 0 {
			if _, err := s.AssignFamilies(ctx, table, m.pick([]string{"g", schema.DefaultGroup}), []string{m.pick(m.families)}); err != nil {
				t.Fatal(err)
			}
		}
		switch m.IntN(10) {
		case 0, 1:
			muts := m.mutations()
			both("mutate "+key, func(s *Store) (string, error) {
				return "", s.MutateRow(ctx, table, entry(key, muts...))
			})
		case 2:
			rules := m.rules()
			both("modify "+key, func(s *Store) (string, error) {
				cells, err := s.ReadModifyWriteRow(ctx, table, []byte(key), rules)
				for i := range cells {
					cells[i].Timestamp = 0 // the clocks differ
				}
				return fmt.Sprintf("%+v", cells), err
			})
			// Their timestamps are of the two clocks.
			both("delete "+key, func(s *Store) (string, error) {
				return "", s.MutateRow(ctx, table, entry(key, row.Mutation{Op: row.DeleteRow}))
			})
		case 3:
			f, muts := filters[m.IntN(len(filters))], m.mutations()
			both("check and mutate "+key, func(s *Store) (string, error) {
				matched, err := s.CheckAndMutateRow(ctx, table, []byte(key), f, muts, muts[:1])
				return fmt.Sprint(matched), err
			})
		case 4:
			if m.IntN(6) == 0 {
				prefix := key[:1+m.IntN(len(key))]
				both("drop "+prefix, func(s *Store) (string, error) { return "", s.DropRowRange(ctx, table, []byte(prefix)) })
			}
		default:
			req := scan.Request{Table: table, Filter: filters[m.IntN(len(filters))], Reversed: m.IntN(8) == 0}
			for _, k := range keys {
				if k == key || m.IntN(4) == 0 {
					req.Ranges = append(req.Ranges, row.Single([]byte(k)))
				}
			}
			if m.IntN(4) == 0 {
				req.Ranges = row.Union(append(req.Ranges, row.Range{Start: []byte("k"), End: []byte("w")}))
			}
			both(fmt.Sprintf("read %q", req.Ranges), func(s *Store) (string, error) {
				rows, err := readRows(s, &req)
				return show(rows), err
			})
		}
	}
	return hits
}

// A deletion in an SSTable that covers what is written after it does so when the
// row comes from the row cache, too.
func TestRowCacheKeepsStickyDeletions(t *testing.T) {
	s := mustOpen(t, Options{FS: vfs.NewMem(), Dir: "d", NoBackground: true})
	defer mustClose(t, s)
	table := mustCreate(t, s, newSchema("t", 1000, "f"))
	for _, m := range []row.Mutation{
		setCell("f", "q", 1000, "old"), setCell("f", "z", 1000, "stays"),
		{Op: row.DeleteColumn, Family: "f", Qualifier: []byte("q"), Times: cell.TimeRange{Start: 0, End: 5000}, Sticky: true},
	} {
		mustPut(t, s, table, "r", m)
		if err := s.Flush(ctx); err != nil {
			t.Fatal(err)
		}
	}
	r := row.Single([]byte("r"))
	want := "\"r\" f:\"z\"@1000=\"stays\"\n"
	for i := range 5 {
		if i == 3 {
			mustPut(t, s, table, "r", setCell("f", "q", 2000, "late"))
		}
		if got := content(s, table, r); got != want {
			t.Errorf("read %d: got %s, want %s", i, got, want)
		}
	}
	if s.Stats().Reads[0].RowHits == 0 {
		t.Error("the row cache was not asked")
	}
}

// TestRowCacheIsSpared: reads of many rows neither fill the row cache nor ask it, and find
// what others do.
func TestRowCacheIsSpared(t *testing.T) {
	s := mustOpen(t, Options{FS: vfs.NewMem(), Dir: "d", NoBackground: true})
	defer mustClose(t, s)
	table := mustCreate(t, s, newSchema("t", 1000, "f"))
	var all []row.Range
	for i := range 300 {
		key := fmt.Sprintf("r%03d", i)
		mustPut(t, s, table, key, setCell("f", "q", 1000, key))
		all = append(all, row.Single([]byte(key)))
	}
	if err := s.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	want := ""
	for i := range 4 {
		got := ""
		for part := all; len(part) > 0; {
			n := len(part)
			if i == 3 {
				n = 1 // rows by themselves
			}
			w := &rowsWriter{}
			if _, err := s.ReadRows(ctx, &scan.Request{Table: table, Ranges: part[:n]}, w); err != nil {
				t.Fatal(err)
			}
			got, part = got+w.text, part[n:]
		}
		if want == "" {
			want = got
		}
		if got != want {
			t.Fatalf("read %d: got %s, want %s", i, got, want)
		}
		r := s.Stats().Reads[0]
		if asked := r.RowHits + r.RowMisses; i < 3 && asked != 0 {
			t.Errorf("read %d of %d rows asked the row cache %d times", i, len(all), asked)
		} else if i == 3 && asked != int64(len(all)) {
			t.Errorf("reads of single rows asked the row cache %d times", asked)
		}
	}
}

// A rowsWriter takes rows as text. It is never full.
type rowsWriter struct{ text string }

func (w *rowsWriter) StartRow(key []byte)          { w.text += string(key) }
func (w *rowsWriter) Cell(c *row.Cell)             { w.text += "=" + string(c.Value) + "\n" }
func (*rowsWriter) EndRow() (full bool, err error) { return false, nil }
func (*rowsWriter) Scanned([]byte)                 {}
func (*rowsWriter) Flush() error                   { return nil }
