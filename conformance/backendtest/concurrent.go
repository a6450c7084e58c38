package backendtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway/backend"
)

func everything(table string) *scan.Request {
	return &scan.Request{Table: table, Ranges: []row.Range{row.All}}
}

// newest returns the newest cell of each column of a row.
func (s *suite) newest(table, key string) ([]row.Cell, error) {
	w := &Collector{}
	_, err := s.ReadRows(s.ctx, &scan.Request{Table: table, Ranges: []row.Range{row.Single([]byte(key))},
		Filter: &filter.Node{Op: filter.CellsPerColumnLimit, N: 1}}, w)
	if err != nil || len(w.Rows) == 0 {
		return nil, err
	}
	return w.Rows[0].Cells, nil
}

const (
	workers = 8
	rounds  = 50
)

// race runs f in workers goroutines at once.
func race(f func(worker int)) {
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}

var concurrentTests = []test{
	{"IncrementsAreExact", func(s *suite) {
		t := s.create("t", "f")
		race(func(int) {
			for range rounds {
				if _, err := s.ReadModifyWriteRow(s.ctx, t, []byte("r"), []row.Rule{{Family: "f", Qualifier: []byte("n"), Increment: 1}}); err != nil {
					s.Errorf("unexpected error: %v", err)
				}
			}
		})
		got, err := s.newest(t, "r")
		s.ok(err)
		if len(got) != 1 || string(got[0].Value) != int64be(workers*rounds) {
			s.Errorf("%d increments gave %s", workers*rounds, renderCells(got))
		}
	}},
	{"UpdatesAreExact", func(s *suite) {
		u, ok := s.Backend.(backend.RowUpdater)
		if !ok {
			s.Skip("not a RowUpdater")
		}
		t := s.create("t", "f", "g")
		s.put(t, "r", set("g", "q", 1000, "other"))
		only := &filter.Node{Op: filter.FamilyRegex, Pattern: []byte("f")}
		race(func(worker int) {
			for i := range rounds {
				_, err := u.UpdateRow(s.ctx, t, []byte("r"), nil, only, func(cells []row.Cell) ([]row.Mutation, error) {
					text := ""
					if len(cells) > 0 {
						text = string(cells[0].Value)
					}
					if len(cells) > 1 || len(cells) == 1 && cells[0].Family != "f" {
						return nil, fmt.Errorf("saw %s", renderCells(cells))
					}
					return []row.Mutation{deleteColumn("f", "q"), set("f", "q", 1000, text+string(rune('a'+worker)))}, nil
				})
				if err != nil {
					s.Errorf("unexpected error: %v", err)
				}
				if i%10 == 0 { // which changes nothing that decides
					s.put(t, "r", set("g", "q", 1000, "changed"))
				}
			}
		})
		got, err := s.newest(t, "r")
		s.ok(err)
		if len(got) != 2 || len(got[0].Value) != workers*rounds {
			s.Fatalf("%d updates gave %s", workers*rounds, renderCells(got))
		}
		for w := range workers {
			if n := strings.Count(string(got[0].Value), string(rune('a'+w))); n != rounds {
				s.Errorf("%d of %d updates of one worker are there", n, rounds)
			}
		}
		refused := errors.New("refused")
		for _, want := range []error{refused, nil} { // neither changes anything
			if _, err := u.UpdateRow(s.ctx, t, []byte("r"), nil, nil, func([]row.Cell) ([]row.Mutation, error) { return nil, want }); !errors.Is(err, want) {
				s.Errorf("got error %v, want %v", err, want)
			}
		}
		again, err := s.newest(t, "r")
		s.ok(err)
		if renderCells(again) != renderCells(got) {
			s.Errorf("%s became %s", renderCells(got), renderCells(again))
		}
		_, err = u.UpdateRow(s.ctx, t, []byte("r"), nil, nil, func([]row.Cell) ([]row.Mutation, error) { return []row.Mutation{set("none", "q", 0, "")}, nil })
		s.fails(err, fault.NotFound)
	}},
	{"UpdatesAreMadeOnce", func(s *suite) {
		u, ok := s.Backend.(backend.RowUpdater)
		if !ok {
			s.Skip("not a RowUpdater")
		}
		t := s.create("t", "f")
		s.put(t, "r", set("f", "q", 1000, "-"))
		update := func(token, text string) (repeated bool) {
			repeated, err := u.UpdateRow(s.ctx, t, []byte("r"), []byte(token), nil, func(cells []row.Cell) ([]row.Mutation, error) {
				if text == "" {
					return nil, nil
				}
				return []row.Mutation{deleteColumn("f", "q"), set("f", "q", 1000, string(cells[0].Value)+text)}, nil
			})
			s.ok(err)
			return repeated
		}
		for range 2 {
			if update("token--0", "") {
				s.Errorf("an update that changes nothing is remembered")
			}
		}
		var first atomic.Int64
		race(func(worker int) {
			for i := range rounds {
				// Each of these is asked for by every worker.
				if !update(fmt.Sprintf("token-%02d", i), string(rune('a'+i%26))) {
					first.Add(1)
				}
			}
		})
		got, err := s.newest(t, "r")
		s.ok(err)
		if len(got) != 1 || len(got[0].Value) != 1+rounds || first.Load() != rounds {
			s.Errorf("%d updates, of which %d were the first, gave %s", rounds, first.Load(), renderCells(got))
		}
		// A token is the row's.
		repeated, err := u.UpdateRow(s.ctx, t, []byte("s"), []byte("token-00"), nil, func([]row.Cell) ([]row.Mutation, error) {
			return []row.Mutation{set("f", "q", 1000, "other")}, nil
		})
		s.ok(err)
		if repeated {
			s.Errorf("another row has the token")
		}
		_, err = u.UpdateRow(s.ctx, t, []byte("r"), []byte("short"), nil, func([]row.Cell) ([]row.Mutation, error) { return nil, nil })
		s.fails(err, fault.Invalid)
	}},
	{"SumsAreExact", func(s *suite) {
		t := s.create("t", "sum=sum")
		race(func(int) {
			for range rounds {
				if err := s.try(t, "r", add("sum", "q", 1000, 1), add("sum", "q", 1000, 1)); err != nil {
					s.Errorf("unexpected error: %v", err)
				}
			}
		})
		s.want(t, "r sum:q@1000="+plain(int64be(2*workers*rounds)))
	}},
	{"OneCheckAndMutateWins", func(s *suite) {
		t := s.create("t", "f")
		for i := range rounds {
			var won atomic.Int32
			key := fmt.Appendf(nil, "r%d", i)
			race(func(int) {
				matched, err := s.CheckAndMutateRow(s.ctx, t, key, nil, nil, []row.Mutation{set("f", "q", 1000, "mine")})
				if err != nil {
					s.Errorf("unexpected error: %v", err)
				}
				if !matched {
					won.Add(1)
				}
			})
			if won.Load() != 1 {
				s.Fatalf("%d of %d took the row", won.Load(), workers)
			}
		}
	}},
	{"ReadersSeeWholeRows", func(s *suite) {
		t := s.create("t", "f", "g", "h")
		stop := make(chan struct{})
		var wg sync.WaitGroup
		defer wg.Wait()
		defer close(stop)
		for w := range 3 {
			wg.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					v := fmt.Sprintf("%d-%d", w, i)
					muts := []row.Mutation{set("f", "q", 0, v), set("g", "q", 0, v), set("h", "q", 0, v)}
					if i%7 == 3 {
						muts = append([]row.Mutation{deleteRow()}, muts...)
					}
					if i%11 == 5 {
						muts = []row.Mutation{deleteRow()}
					}
					if err := s.try(t, "r", muts...); err != nil {
						s.Errorf("unexpected error: %v", err)
						return
					}
				}
			})
		}
		for i := range 500 {
			w := &Collector{}
			if _, err := s.ReadRows(s.ctx, &scan.Request{Table: t, Ranges: []row.Range{row.Single([]byte("r"))}, Reversed: i%2 == 1}, w); err != nil {
				s.Fatalf("unexpected error: %v", err)
			}
			if len(w.Rows) == 0 {
				continue
			}
			c := w.Rows[0].Cells
			if len(c) != 3 || string(c[0].Value) != string(c[1].Value) || string(c[1].Value) != string(c[2].Value) {
				s.Fatalf("read a torn row:\n%s", renderCells(c))
			}
		}
	}},
	{"AWriteThatReturnedIsSeen", func(s *suite) {
		t := s.create("t", "f")
		race(func(w int) {
			key := fmt.Sprintf("r%d", w)
			for i := range rounds {
				v := fmt.Sprint(i)
				if err := s.try(t, key, set("f", "q", 0, v)); err != nil {
					s.Errorf("unexpected error: %v", err)
					return
				}
				got, err := s.newest(t, key)
				if err != nil || len(got) != 1 || string(got[0].Value) != v {
					s.Errorf("wrote %s, read %s, %v", v, renderCells(got), err)
					return
				}
			}
		})
	}},
	{"ScansDuringWritesAreOrdered", func(s *suite) {
		t := s.createTable("t", 1000, [][]byte{[]byte("r3"), []byte("r6")}, "f")
		for i := range 200 {
			s.put(t, fmt.Sprintf("r%d", i), set("f", "always", 0, "v"))
		}
		stop := make(chan struct{})
		var wg sync.WaitGroup
		defer wg.Wait()
		defer close(stop)
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				key := fmt.Sprintf("r%d", i*37%400)
				muts := []row.Mutation{set("f", "sometimes", int64(i%3)*1000, "v")}
				if i%3 == 0 {
					muts = []row.Mutation{deleteColumn("f", "sometimes")}
				}
				if err := s.try(t, key, muts...); err != nil {
					s.Errorf("unexpected error: %v", err)
					return
				}
			}
		})
		for i := range 20 {
			got := s.read(&scan.Request{Table: t, Ranges: []row.Range{row.All}, Reversed: i%2 == 1})
			if n := strings.Count(got, "always"); n != 200 {
				s.Fatalf("a scan saw %d of 200 rows that were there all the time", n)
			}
		}
	}},
	{"DropRowRangeAmidWrites", func(s *suite) {
		t := s.create("t", "f")
		race(func(w int) {
			key := fmt.Sprintf("w%d", w)
			for i := range rounds {
				if w == 0 {
					if err := s.DropRowRange(s.ctx, t, []byte("x")); err != nil && !errors.Is(err, fault.Unavailable) {
						s.Errorf("unexpected error: %v", err)
					}
					continue
				}
				if err := s.try(t, key, set("f", fmt.Sprint(i), 0, "v")); err != nil {
					s.Errorf("unexpected error: %v", err)
				}
			}
		})
		if n := strings.Count(s.all(t), "\n"); n != (workers-1)*rounds {
			s.Errorf("%d cells, want %d", n, (workers-1)*rounds)
		}
	}},
	{"SchemaChangesAmidWrites", func(s *suite) {
		t := s.create("t", "f", "g")
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				err := s.try(t, fmt.Sprintf("r%d", i%10), set("f", "q", 0, "v"), set("g", "q", 0, "v"))
				if err != nil && !errors.Is(err, fault.NotFound) {
					s.Errorf("unexpected error: %v", err)
					return
				}
			}
		})
		for range 10 {
			_, err := s.UpdateTable(s.ctx, t, func(t *schema.Table) error { delete(t.Families, "g"); return nil })
			s.ok(err)
			if got := s.all(t); strings.Contains(got, " g:") {
				s.Errorf("read cells of a dropped family:\n%s", got)
			}
			_, err = s.UpdateTable(s.ctx, t, func(t *schema.Table) error { t.AddFamily(schema.Family{Name: "g"}); return nil })
			s.ok(err)
		}
		close(stop)
		wg.Wait()
	}},
}

var recordTests = []test{
	{"CompareAndSet", func(s *suite) {
		_, _, err := s.GetRecord(s.ctx, "k")
		s.fails(err, fault.NotFound)
		v1, err := s.PutRecord(s.ctx, "k", []byte("one"), 0)
		s.ok(err)
		if v1 == 0 {
			s.Error("a stored record has version 0")
		}
		_, err = s.PutRecord(s.ctx, "k", []byte("other"), 0)
		s.fails(err, fault.Aborted)
		v2, err := s.PutRecord(s.ctx, "k", []byte("two"), v1)
		s.ok(err)
		_, err = s.PutRecord(s.ctx, "k", []byte("three"), v1)
		s.fails(err, fault.Aborted)
		value, version, err := s.GetRecord(s.ctx, "k")
		s.ok(err)
		if string(value) != "two" || version != v2 || v2 == v1 {
			s.Errorf("got %q version %d", value, version)
		}
		_, err = s.PutRecord(s.ctx, "absent", []byte("x"), 3)
		s.fails(err, fault.Aborted)
		s.fails(s.DeleteRecord(s.ctx, "k", v1), fault.Aborted)
		s.ok(s.DeleteRecord(s.ctx, "k", v2))
		_, _, err = s.GetRecord(s.ctx, "k")
		s.fails(err, fault.NotFound)
		s.fails(s.DeleteRecord(s.ctx, "k", v2), fault.Aborted)
		_, err = s.PutRecord(s.ctx, "k", nil, 0)
		s.ok(err)
		value, _, err = s.GetRecord(s.ctx, "k")
		s.ok(err)
		if len(value) != 0 {
			s.Errorf("got %q", value)
		}
	}},
	{"ListIsSortedByKey", func(s *suite) {
		for _, k := range []string{"b/2", "a/1", "b/1", "b", "c/1", "b/10", "b0"} {
			_, err := s.PutRecord(s.ctx, k, []byte("v"+k), 0)
			s.ok(err)
		}
		list := func(prefix string) (out string) {
			s.ok(s.ListRecords(s.ctx, prefix, func(k string, v []byte, version uint64) error {
				if string(v) != "v"+k || version == 0 {
					s.Errorf("record %s is %q, version %d", k, v, version)
				}
				out += k + " "
				return nil
			}))
			return out
		}
		for prefix, want := range map[string]string{"b/": "b/1 b/10 b/2 ", "": "a/1 b b/1 b/10 b/2 b0 c/1 ", "d": "", "b": "b b/1 b/10 b/2 b0 "} {
			if got := list(prefix); got != want {
				s.Errorf("prefix %q: got %q, want %q", prefix, got, want)
			}
		}
		mine, n := errors.New("enough"), 0
		err := s.ListRecords(s.ctx, "", func(string, []byte, uint64) error { n++; return mine })
		if !errors.Is(err, mine) || n != 1 {
			s.Errorf("emit's error came back as %v after %d", err, n)
		}
	}},
	{"OneWriterWinsEachVersion", func(s *suite) {
		race(func(w int) {
			for range rounds {
				for {
					value, version, err := s.GetRecord(s.ctx, "k")
					if err != nil && !errors.Is(err, fault.NotFound) {
						s.Errorf("unexpected error: %v", err)
						return
					}
					_, err = s.PutRecord(s.ctx, "k", append(value, 'x'), version)
					if err == nil {
						break
					}
					if !errors.Is(err, fault.Aborted) {
						s.Errorf("unexpected error: %v", err)
						return
					}
				}
			}
		})
		value, _, err := s.GetRecord(s.ctx, "k")
		s.ok(err)
		if len(value) != workers*rounds {
			s.Errorf("%d of %d updates are there", len(value), workers*rounds)
		}
	}},
	{"RecordsAreNotTables", func(s *suite) {
		_, err := s.PutRecord(s.ctx, parent+"/tables/t", []byte("v"), 0)
		s.ok(err)
		list, err := s.ListTables(s.ctx, parent)
		s.ok(err)
		if len(list) != 0 {
			s.Errorf("listed %v", list)
		}
		t := s.create("t", "f")
		s.ok(s.DeleteTable(s.ctx, t))
		_, _, err = s.GetRecord(s.ctx, t)
		s.ok(err)
	}},
}

var contextTests = []test{
	{"ADoneContextIsAnError", func(s *suite) {
		t := s.create("t", "f")
		s.put(t, "r", set("f", "q", 0, "v"))
		ctx, cancel := context.WithCancel(s.ctx)
		cancel()
		muts := []row.Mutation{deleteRow()}
		_, read := s.ReadRows(ctx, everything(t), &Collector{})
		_, cas := s.CheckAndMutateRow(ctx, t, []byte("r"), nil, muts, muts)
		_, rmw := s.ReadModifyWriteRow(ctx, t, []byte("r"), []row.Rule{{Family: "f", Qualifier: []byte("q"), IsAppend: true, Append: []byte("x")}})
		for name, err := range map[string]error{
			"ReadRows": read, "CheckAndMutateRow": cas, "ReadModifyWriteRow": rmw,
			"MutateRow": s.MutateRow(ctx, t, &row.Entry{Key: []byte("r"), Mutations: muts}),
		} {
			if !errors.Is(err, context.Canceled) {
				s.Errorf("%s with a cancelled context: %v", name, err)
			}
		}
	}},
}
