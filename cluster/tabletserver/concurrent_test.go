package tabletserver_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/datadir/datadirtest"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/leaktest"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
)

// restlessStore is a Store that flushes, compacts, splits and merges all the time until
// stop is called.
func restlessStore(t testing.TB, o Options, table func() string) (s *Store, stop func()) {
	o.Dir = "d"
	o.Tablet.MemtableBytes = 64<<10 + 1
	o.Tablet.FileBytes = 8 << 10
	o.Tablet.MaxRuns = 1000
	s = mustOpen(t, o)
	done := make(chan struct{})
	var running sync.WaitGroup
	for i := range 2 {
		rng := rand.New(rand.NewPCG(uint64(i), rand.Uint64()))
		running.Go(func() {
			if err := churn(s, rng, done); err != nil {
				t.Errorf("churn: %v", err)
			}
		})
	}
	running.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(time.Duration(rand.IntN(3000)) * time.Microsecond):
			}
			// Refusals are fine: the tablet is too small, has no neighbour, or both
			// sides were busy.
			key := fmt.Appendf(nil, "row%d", rand.IntN(10))
			if rand.IntN(2) == 0 {
				_ = s.SplitTablet(ctx, table(), key)
			} else {
				_ = s.MergeTablets(ctx, table(), key)
			}
		}
	})
	return s, func() {
		close(done)
		running.Wait()
	}
}

// TestI10_RowsAreReadInOneState: a row is read in one state, across families,
// locality groups, tablets' changes, flushes and whatever else goes on meanwhile
// (invariant I10).
func TestI10_RowsAreReadInOneState(t *testing.T) {
	for how, name := range []string{oneGroup: "one group", eachOwn: "a group for each family", moving: "families that move"} {
		if name != "" {
			t.Run(name, func(t *testing.T) { testAtomicRows(t, how) })
		}
	}
}

func testAtomicRows(t *testing.T, how int) {
	table := parent + "t"
	s, stop := restlessStore(t, Options{FS: vfs.NewMem()}, func() string { return table })
	defer mustClose(t, s)
	mustCreate(t, s, arrange(newSchema("t", 1000, "a", "b", "c"), how))
	families := []string{"a", "b", "c"}
	var over atomic.Bool
	var running sync.WaitGroup
	const columns = 30 // so many that a change takes its time
	muts := func(rng *rand.Rand, v string) []row.Mutation {
		var out []row.Mutation
		switch rng.IntN(5) {
		case 4: // nothing of the row may be left, in any family
			return []row.Mutation{{Op: row.DeleteRow}}
		case 0:
			out = append(out, row.Mutation{Op: row.DeleteRow})
		case 1:
			for _, f := range families {
				out = append(out, row.Mutation{Op: row.DeleteFamily, Family: f})
			}
		case 2:
			for _, f := range families {
				for q := range columns {
					out = append(out, row.Mutation{Op: row.DeleteColumn, Family: f, Qualifier: fmt.Append(nil, q), Times: cell.AllTime})
				}
			}
		}
		for _, f := range families {
			for q := range columns {
				out = append(out, setCell(f, fmt.Sprint(q), 1000, v))
			}
		}
		return out
	}
	for w := range 3 {
		running.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 3))
			for i := 0; !over.Load(); i++ {
				v := fmt.Sprintf("%d-%d-%s", w, i, strings.Repeat("x", rng.IntN(30)))
				if rng.IntN(3) > 0 {
					if err := s.MutateRow(ctx, table, &row.Entry{Key: fmt.Appendf(nil, "row%d", rng.IntN(10)), Mutations: muts(rng, v)}); err != nil {
						t.Errorf("mutate: %v", err)
					}
					continue
				}
				var entries []row.Entry
				for r := range 10 {
					entries = append(entries, row.Entry{Key: fmt.Appendf(nil, "row%d", r), Mutations: muts(rng, v)})
				}
				err := s.MutateRows(ctx, table, entries, func(_ int, err error) {
					if err != nil {
						t.Errorf("entry: %v", err)
					}
				})
				if err != nil {
					t.Errorf("mutate rows: %v", err)
				}
			}
		})
	}
	var reads atomic.Int64
	for r := range 3 {
		running.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(r), 4))
			for !over.Load() {
				req := &scan.Request{Table: table, Ranges: []row.Range{row.All}, Reversed: rng.IntN(2) == 0}
				if rng.IntN(2) == 0 {
					req.Ranges = []row.Range{row.Single(fmt.Appendf(nil, "row%d", rng.IntN(10)))}
				}
				want := 3 * columns
				if rng.IntN(3) == 0 { // of some families
					req.Filter = &filter.Node{Op: filter.FamilyRegex, Pattern: []byte("a|c")}
					want = 2 * columns
				}
				rows, err := readRows(s, req)
				if err != nil {
					t.Errorf("read: %v", err)
				}
				for _, r := range rows {
					reads.Add(1)
					for i := range r.Cells {
						if len(r.Cells) != want || string(r.Cells[i].Value) != string(r.Cells[0].Value) {
							t.Errorf("a torn row:\n%s", show(rows))
							return
						}
					}
				}
			}
		})
	}
	time.Sleep(1500 * time.Millisecond)
	eventually(t, "rows are read", func() bool { return reads.Load() >= 100 || t.Failed() })
	over.Store(true)
	running.Wait()
	stop()
	// A deletion of a row takes it away in all families, wherever what it deletes is.
	flush := func() {
		if err := s.Flush(ctx); err != nil {
			t.Error(err)
		}
	}
	flush()
	for r := range 10 {
		mustPut(t, s, table, fmt.Sprintf("row%d", r), row.Mutation{Op: row.DeleteRow})
	}
	flush()
	if got := content(s, table, row.All); got != "" {
		t.Errorf("of deleted rows there is left\n%.300s", got)
	}
}

// TestReadIsDurable: what a reader has seen is there after a power cut right
// then (invariant I3).
func TestReadIsDurable(t *testing.T) {
	fs := datadirtest.NewCrashableMem()
	table := parent + "t"
	s, stop := restlessStore(t, Options{FS: fs, SegmentBytes: 64 << 10}, func() string { return table })
	mustCreate(t, s, newSchema("t", 1000, "f"))
	var over atomic.Bool
	var running sync.WaitGroup
	for w := range 3 {
		running.Go(func() {
			for i := 0; !over.Load(); i++ {
				key := fmt.Appendf(nil, "row%d", (w+i)%4)
				if _, err := s.ReadModifyWriteRow(ctx, table, key, []row.Rule{{Family: "f", Qualifier: []byte("n"), Increment: 1}}); err != nil {
					t.Errorf("increment: %v", err)
					return
				}
			}
		})
	}
	count := func(s *Store) map[string]uint64 {
		rows, err := readRows(s, &scan.Request{Table: table, Ranges: []row.Range{row.All}})
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]uint64{}
		for _, r := range rows {
			out[r.Key] = binary.BigEndian.Uint64(r.Cells[0].Value)
		}
		return out
	}
	for range 20 {
		time.Sleep(20 * time.Millisecond)
		seen := count(s)
		crashed := fs.CrashClone(vfs.CrashCloneCfg{})
		s := mustOpen(t, Options{FS: crashed, Dir: "d", NoBackground: true})
		found := count(s)
		for k, n := range seen {
			if found[k] < n {
				t.Errorf("%s was read as %d, and is %d after a crash", k, n, found[k])
			}
		}
		mustClose(t, s)
	}
	over.Store(true)
	running.Wait()
	stop()
	mustClose(t, s)
}

// An op is an operation on one row with one cell, as porcupine sees it.
type op struct {
	key  string
	kind string // set, read, append, check (append if there is a cell), drop
	arg  string
}

// TestLinearizable checks histories of single rows (invariant I4); DropRowRange
// of a row is part of them.
func TestLinearizable(t *testing.T) {
	table := parent + "t"
	s, stop := restlessStore(t, Options{FS: vfs.NewMem()}, func() string { return table })
	defer mustClose(t, s)
	sch := mustCreate(t, s, newSchema("t", 1000, "f"))
	var mu sync.Mutex
	var history []porcupine.Operation
	var running sync.WaitGroup
	begin := time.Now()
	for w := range 6 {
		running.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 77))
			for i := range 150 {
				o := op{key: fmt.Sprintf("row%d", rng.IntN(4)), kind: []string{"set", "read", "append", "append", "check", "drop"}[rng.IntN(6)], arg: fmt.Sprintf("%c%d.", 'a'+w, i)}
				call := time.Since(begin).Nanoseconds()
				got, err := do(s, sch, o)
				end := time.Since(begin).Nanoseconds()
				if err != nil {
					t.Errorf("%v: %v", o, err)
					return
				}
				mu.Lock()
				history = append(history, porcupine.Operation{ClientId: w, Input: o, Call: call, Output: got, Return: end})
				mu.Unlock()
			}
		})
	}
	running.Wait()
	stop()
	m := porcupine.Model{
		Partition: func(h []porcupine.Operation) [][]porcupine.Operation {
			by := map[string][]porcupine.Operation{}
			for _, o := range h {
				k := o.Input.(op).key
				by[k] = append(by[k], o)
			}
			var out [][]porcupine.Operation
			for _, p := range by {
				out = append(out, p)
			}
			return out
		},
		Init: func() any { return "" },
		Step: func(state, input, output any) (bool, any) {
			old, o, got := state.(string), input.(op), output.(string)
			switch o.kind {
			case "set":
				return true, o.arg
			case "read":
				return got == old, old
			case "append":
				return got == old+o.arg, old + o.arg
			case "check":
				if old == "" {
					return got == "false", ""
				}
				return got == "true", o.arg
			}
			return true, ""
		},
	}
	if r := porcupine.CheckOperationsTimeout(m, history, 5*time.Minute); r != porcupine.Ok {
		t.Errorf("%d operations: %v", len(history), r)
	}
}

func do(s *Store, table string, o op) (string, error) {
	key := []byte(o.key)
	// At a time that is not to come, so that what appends finds is overwritten.
	set := []row.Mutation{setCell("f", "q", 1<<52/1000*1000, o.arg)}
	switch o.kind {
	case "set":
		return "", s.MutateRow(ctx, table, &row.Entry{Key: key, Mutations: set})
	case "append":
		cells, err := s.ReadModifyWriteRow(ctx, table, key, []row.Rule{{Family: "f", Qualifier: []byte("q"), IsAppend: true, Append: []byte(o.arg)}})
		if err != nil {
			return "", err
		}
		return string(cells[0].Value), nil
	case "check":
		ok, err := s.CheckAndMutateRow(ctx, table, key, nil, append([]row.Mutation{{Op: row.DeleteRow}}, set...), nil)
		return fmt.Sprint(ok), err
	case "drop":
		return "", s.DropRowRange(ctx, table, key)
	}
	rows, err := readRows(s, &scan.Request{Table: table, Ranges: []row.Range{row.Single(key)}})
	if err != nil || len(rows) == 0 {
		return "", err
	}
	return string(rows[0].Cells[0].Value), nil
}

// TestCloseUnderLoad: Close may come at any time. Calls are done, or
// Unavailable; nothing that was acknowledged is lost, nothing is left running.
func TestCloseUnderLoad(t *testing.T) {
	defer leaktest.None(t, goleak.IgnoreCurrent())
	for i := range 6 {
		fs := vfs.NewMem()
		o := Options{FS: fs, Dir: "d", MemtableBytes: 4 << 20}
		o.Tablet.MemtableBytes = []int64{1, 64<<10 + 1, 1 << 20}[i%3]
		o.Tablet.FileBytes = 4 << 10
		s := mustOpen(t, o)
		table := mustCreate(t, s, newSchema("t", 1000, "f"), "c", "e", "g")
		var running sync.WaitGroup
		var mu sync.Mutex
		acked := map[string]bool{}
		var begun atomic.Int64
		closed := make(chan struct{})
		work := func(what string, f func(n int) error) {
			running.Go(func() {
				for n := 0; ; n++ {
					begun.Add(1)
					if err := f(n); err != nil {
						if fault.KindOf(err) != fault.Unavailable {
							t.Errorf("%s: %v", what, err)
						}
						<-closed
						if f(n) == nil {
							t.Errorf("%s: works after the end", what)
						}
						return
					}
				}
			})
		}
		for w := range 2 {
			work("mutate", func(n int) error {
				key := fmt.Sprintf("%c%d-%d", 'a'+n%8, w, n)
				err := s.MutateRow(ctx, table, entry(key, setCell("f", "q", 1000, strings.Repeat("v", n%1000))))
				if err == nil {
					mu.Lock()
					acked[key] = true
					mu.Unlock()
				}
				return err
			})
			work("read", func(n int) error {
				_, err := readRows(s, &scan.Request{Table: table, Ranges: []row.Range{row.All}, Reversed: n%2 == 0, Limit: 500})
				return err
			})
		}
		work("increment", func(n int) error {
			_, err := s.ReadModifyWriteRow(ctx, table, []byte("n"), []row.Rule{{Family: "f", Qualifier: []byte("n"), Increment: 1}})
			return err
		})
		work("record", func(n int) error {
			_, err := s.PutRecord(ctx, fmt.Sprint(n), []byte("v"), 0)
			return ignoreAborted(err)
		})
		work("admin", func(n int) error {
			name := fmt.Sprintf("t%d", n)
			_, err := s.CreateTable(ctx, newSchema(name, 1000, "f"), [][]byte{[]byte("m")})
			if errors.Is(err, fault.AlreadyExists) {
				err = s.DeleteTable(ctx, parent+name)
			}
			return err
		})
		work("schema", func(n int) error {
			_, err := s.UpdateTable(ctx, table, func(s *schema.Table) error {
				if n < 1000 {
					s.AddFamily(schema.Family{Name: fmt.Sprint("f", n)})
				}
				return nil
			})
			return err
		})
		work("drop", func(n int) error { return s.DropRowRange(ctx, table, []byte("zz")) })
		work("split", func(n int) error {
			err := s.SplitTablet(ctx, table, fmt.Appendf(nil, "a%d", n))
			if refusal(err) {
				err = nil
			}
			return err
		})
		work("flush", func(n int) error { return s.Flush(ctx) })
		for begun.Load() < 200 {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
		if err := s.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
		close(closed)
		running.Wait()
		o.NoBackground, o.Tend = true, 10*time.Millisecond
		s = mustOpen(t, o)
		rows, err := readRows(s, &scan.Request{Table: table, Ranges: []row.Range{row.All}})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rows {
			delete(acked, r.Key)
		}
		if len(acked) > 0 {
			t.Errorf("%d acknowledged rows are lost", len(acked))
		}
		checkStore(t, s)
		mustClose(t, s)
		if t.Failed() {
			return
		}
	}
}

func ignoreAborted(err error) error {
	if errors.Is(err, fault.Aborted) {
		return nil
	}
	return err
}

// TestOpenClose leaves no goroutine behind, also when Open fails.
func TestOpenClose(t *testing.T) {
	defer leaktest.None(t, goleak.IgnoreCurrent())
	fs := vfs.NewMem()
	for range 5 {
		s := mustOpen(t, Options{FS: fs, Dir: "d"})
		mustClose(t, s)
		if err := s.Close(ctx); err != nil {
			t.Errorf("a second close: %v", err)
		}
	}
	s := mustOpen(t, Options{FS: fs, Dir: "d"})
	table := filled(t, s, "t", 10)
	object := s.tabletsOf(table)[0].Row().Files[0].Object
	mustClose(t, s)
	if err := fs.Remove("d/sst/" + object); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, Options{FS: fs, Dir: "d", Log: loud()})
	if _, err := readRows(s, &scan.Request{Table: table, Ranges: []row.Range{row.All}}); fault.KindOf(err) != fault.Corruption {
		t.Errorf("without an SSTable: %v", err)
	}
	mustClose(t, s)
	if err := fs.Remove("d/lock/ROOT"); err != nil {
		t.Fatal(err)
	}
	if s, err := Open(ctx, Options{FS: fs, Dir: "d"}); err == nil {
		mustClose(t, s)
		t.Error("opened without ROOT")
	}
}
