package backendtest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/trestledb/trestle/conformance/model"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
)

var readTests = []test{
	{"EmptyTable", func(s *suite) {
		t := s.create("t", "f")
		s.want(t)
		st, err := s.ReadRows(s.ctx, &scan.Request{Table: t, Ranges: []row.Range{row.All}}, &Collector{})
		s.ok(err)
		if st != (scan.Stats{}) {
			s.Errorf("stats are %+v", st)
		}
	}},
	{"OrderInARow", func(s *suite) {
		t := s.create("t", "z", "a", "m")
		s.put(t, "r", set("m", "b", 1000, "1"), set("z", "", 0, "2"), set("m", "", 5000, "3"), set("m", "b", 2000, "4"),
			set("a", "\xff", 0, "5"), set("m", "b\x00", 0, "6"), set("m", "a", 3000, "7"), set("m", "b", 0, "8"), set("a", "\x00", 0, "9"),
			set("m", "b", math.MaxInt64/1000*1000, "far"))
		s.want(t, `r a:\x00@0=9`, `r a:\xff@0=5`, "r m:@5000=3", "r m:a@3000=7",
			"r m:b@9223372036854775000=far", "r m:b@2000=4", "r m:b@1000=1", "r m:b@0=8", `r m:b\x00@0=6`, "r z:@0=2")
	}},
	{"AnyBytes", func(s *suite) {
		t := s.create("t", "f")
		keys := []string{"\x00", "\x00\x00", "\x00\x01", "\x00\xff", "\x01", "a", "a\x00", "a\x00\x01", "a\x00\x01b", "a\x00\xff", "a\x01", "a\xff", "\xfe", "\xff", "\xff\x00", "\xff\xff"}
		var want []string
		for _, i := range rand.New(rand.NewPCG(3, 4)).Perm(len(keys)) {
			s.put(t, keys[i], set("f", keys[i], 0, keys[i]), set("f", "", 0, ""))
		}
		for _, k := range keys {
			want = append(want, plain(k)+" f:@0=", fmt.Sprintf("%s f:%[1]s@0=%[1]s", plain(k)))
		}
		s.want(t, want...)
		for _, k := range keys {
			same(s.T, s.read(&scan.Request{Table: t, Ranges: []row.Range{row.Single([]byte(k))}, Filter: keepQualifier(".+|\\n")}),
				fmt.Sprintf("%s f:%[1]s@0=%[1]s", plain(k)))
		}
	}},
	{"Ranges", func(s *suite) {
		t := s.create("t", "f")
		for _, k := range []string{"a", "b", "c", "d", "e"} {
			s.put(t, k, set("f", "q", 0, ""))
		}
		for _, tc := range []struct {
			ranges []row.Range
			limit  int64
			want   string
		}{
			{[]row.Range{row.All}, 0, "abcde"},
			{nil, 0, ""},
			{[]row.Range{keyRange("b", "d")}, 0, "bc"},
			{[]row.Range{keyRange("", "c")}, 0, "ab"},
			{[]row.Range{keyRange("c", "")}, 0, "cde"},
			{[]row.Range{keyRange("b\x00", "d\x00")}, 0, "cd"},
			{[]row.Range{keyRange("aa", "az")}, 0, ""},
			{[]row.Range{keyRange("x", "")}, 0, ""},
			{[]row.Range{row.Single([]byte("c"))}, 0, "c"},
			{[]row.Range{row.Single([]byte("cc"))}, 0, ""},
			{[]row.Range{keyRange("", "b"), keyRange("c", "d"), keyRange("e", "")}, 0, "ace"},
			{[]row.Range{row.Single([]byte("a")), row.Single([]byte("aa")), row.Single([]byte("d"))}, 0, "ad"},
			{[]row.Range{row.All}, 1, "a"},
			{[]row.Range{row.All}, 5, "abcde"},
			{[]row.Range{row.All}, 100, "abcde"},
			{[]row.Range{keyRange("b", "c"), keyRange("d", "")}, 2, "bd"},
		} {
			for _, reversed := range []bool{false, true} {
				w := &Collector{Reversed: reversed}
				req := &scan.Request{Table: t, Ranges: tc.ranges, Limit: tc.limit, Reversed: reversed}
				st, err := s.ReadRows(s.ctx, req, w)
				s.ok(err)
				s.ok(w.Check())
				got := ""
				for _, r := range w.Rows {
					got += r.Key
				}
				want := tc.want
				if reversed {
					all := &Collector{}
					_, err := s.ReadRows(s.ctx, &scan.Request{Table: t, Ranges: tc.ranges}, all)
					s.ok(err)
					want = ""
					for i := len(all.Rows) - 1; i >= 0 && (tc.limit == 0 || int64(len(want)) < tc.limit); i-- {
						want += all.Rows[i].Key
					}
				}
				if got != want {
					s.Errorf("ranges %q limit %d reversed %v: got %q, want %q", tc.ranges, tc.limit, reversed, got, want)
				}
				if st.RowsReturned != int64(len(got)) || st.CellsReturned != int64(len(got)) || st.RowsSeen < st.RowsReturned || st.CellsSeen < st.CellsReturned {
					s.Errorf("%d rows returned, stats are %+v", len(got), st)
				}
			}
		}
	}},
	{"ReversedKeepsTheOrderOfCells", func(s *suite) {
		t := s.create("t", "f", "g")
		for _, k := range []string{"a", "b"} {
			s.put(t, k, set("g", "y", 1000, "1"), set("g", "y", 2000, "2"), set("f", "z", 1000, "3"), set("f", "x", 1000, "4"))
		}
		same(s.T, s.read(&scan.Request{Table: t, Ranges: []row.Range{row.All}, Reversed: true}),
			"b f:x@1000=4", "b f:z@1000=3", "b g:y@2000=2", "b g:y@1000=1",
			"a f:x@1000=4", "a f:z@1000=3", "a g:y@2000=2", "a g:y@1000=1")
	}},
	{"DeletedRowsAreNotRows", func(s *suite) {
		t := s.create("t", "f", "g")
		for _, k := range []string{"a", "b", "c", "d", "e"} {
			s.put(t, k, set("f", "q", 1000, "v"))
		}
		s.put(t, "a", deleteRow())
		s.put(t, "b", deleteFamily("f"))
		s.put(t, "d", deleteColumn("f", "q"))
		s.want(t, "c f:q@1000=v", "e f:q@1000=v")
		same(s.T, s.read(&scan.Request{Table: t, Ranges: []row.Range{row.All}, Limit: 1}), "c f:q@1000=v")
		same(s.T, s.read(&scan.Request{Table: t, Ranges: []row.Range{row.All}, Limit: 2, Reversed: true}), "e f:q@1000=v", "c f:q@1000=v")
	}},
	{"LimitCountsRowsThatTheFilterLeaves", func(s *suite) {
		t := s.create("t", "f")
		for i := range 20 {
			s.put(t, fmt.Sprintf("r%02d", i), set("f", "q", 0, fmt.Sprint(i%5)))
		}
		req := &scan.Request{Table: t, Ranges: []row.Range{row.All}, Limit: 3, Filter: keepValue("4")}
		same(s.T, s.read(req), "r04 f:q@0=4", "r09 f:q@0=4", "r14 f:q@0=4")
		req.Reversed = true
		same(s.T, s.read(req), "r19 f:q@0=4", "r14 f:q@0=4", "r09 f:q@0=4")
	}},
	{"ManyRows", func(s *suite) {
		t := s.create("t", "f")
		const n = 5000
		var entries []row.Entry
		for _, i := range rand.New(rand.NewPCG(5, 6)).Perm(n) {
			entries = append(entries, row.Entry{Key: fmt.Appendf(nil, "r%06d", i), Mutations: []row.Mutation{set("f", "q", 0, fmt.Sprint(i))}})
		}
		s.ok(s.MutateRows(s.ctx, t, entries, func(_ int, err error) { s.ok(err) }))
		for _, reversed := range []bool{false, true} {
			w := &Collector{Reversed: reversed, FullEvery: 100}
			st, err := s.ReadRows(s.ctx, &scan.Request{Table: t, Ranges: []row.Range{row.All}, Reversed: reversed}, w)
			s.ok(err)
			s.ok(w.Check())
			if len(w.Rows) != n || st.RowsReturned != n || w.Flushes < n/100-1 {
				s.Fatalf("%d rows, %d flushes, stats %+v", len(w.Rows), w.Flushes, st)
			}
			for i, r := range w.Rows {
				if reversed {
					i = n - 1 - i
				}
				if want := fmt.Sprint(i); r.Key != fmt.Sprintf("r%06d", i) || len(r.Cells) != 1 || string(r.Cells[0].Value) != want {
					s.Fatalf("row %d is %v", i, r)
				}
			}
		}
	}},
	{"WideRow", func(s *suite) {
		t := s.create("t", "f", "g")
		const n = 20_000
		muts := make([]row.Mutation, 0, n)
		for _, i := range rand.New(rand.NewPCG(7, 8)).Perm(n) {
			muts = append(muts, set([]string{"f", "g"}[i%2], fmt.Sprintf("%06d", i/4), int64(i/2%2)*1000, fmt.Sprint(i)))
		}
		s.put(t, "a", set("f", "q", 0, "before"))
		s.put(t, "wide", muts...)
		s.put(t, "z", set("f", "q", 0, "after"))
		w := &Collector{}
		_, err := s.ReadRows(s.ctx, &scan.Request{Table: t, Ranges: []row.Range{row.All}}, w)
		s.ok(err)
		s.ok(w.Check())
		if len(w.Rows) != 3 || len(w.Rows[1].Cells) != n {
			s.Fatalf("%d rows", len(w.Rows))
		}
	}},
	{"LargeCell", func(s *suite) {
		t := s.create("t", "f")
		big := strings.Repeat("0123456789abcdef", 1<<20) // 16 MiB
		s.put(t, "a", set("f", "q", 0, "before"))
		s.put(t, "big", set("f", "q", 0, big), set("f", "r", 0, "beside"))
		s.put(t, "z", set("f", "q", 0, "after"))
		w := &Collector{}
		_, err := s.ReadRows(s.ctx, &scan.Request{Table: t, Ranges: []row.Range{row.All}}, w)
		s.ok(err)
		if len(w.Rows) != 3 || len(w.Rows[1].Cells) != 2 || string(w.Rows[1].Cells[0].Value) != big || string(w.Rows[1].Cells[1].Value) != "beside" {
			s.Error("the large cell is not what was written")
		}
	}},
	{"LargestKeys", func(s *suite) {
		t := s.create("t", "f")
		for _, b := range []string{"\x00", "k", "\xff"} {
			key, q := strings.Repeat(b, schema.MaxRowKey), strings.Repeat(b, schema.MaxQualifier)
			s.put(t, key, set("f", q, 0, "v"))
			w := &Collector{}
			_, err := s.ReadRows(s.ctx, &scan.Request{Table: t, Ranges: []row.Range{row.Single([]byte(key))}}, w)
			s.ok(err)
			if len(w.Rows) != 1 || w.Rows[0].Key != key || len(w.Rows[0].Cells) != 1 || string(w.Rows[0].Cells[0].Qualifier) != q {
				s.Errorf("the largest key of %q is not what was written", b)
			}
		}
	}},
	{"AWritersErrorEndsTheRead", func(s *suite) {
		t := s.create("t", "f")
		for i := range 10 {
			s.put(t, fmt.Sprintf("r%d", i), set("f", "q", 0, "v"))
		}
		mine := errors.New("client is gone")
		w := &Collector{Fail: mine}
		if _, err := s.ReadRows(s.ctx, &scan.Request{Table: t, Ranges: []row.Range{row.All}}, w); !errors.Is(err, mine) || len(w.Rows) != 1 {
			s.Errorf("EndRow failed: got error %v after %d rows", err, len(w.Rows))
		}
		f := &failingFlush{Collector: Collector{FullEvery: 1}, err: mine}
		if _, err := s.ReadRows(s.ctx, &scan.Request{Table: t, Ranges: []row.Range{row.All}}, f); !errors.Is(err, mine) || len(f.Rows) != 1 {
			s.Errorf("Flush failed: got error %v after %d rows", err, len(f.Rows))
		}
	}},
	{"NothingIsHeldInFlush", func(s *suite) {
		t := s.create("t", "f")
		for i := range 10 {
			s.put(t, fmt.Sprintf("r%d", i), set("f", "q", 0, "v"))
		}
		w := &writingFlush{Collector: Collector{FullEvery: 1}, s: s, table: t}
		_, err := s.ReadRows(s.ctx, &scan.Request{Table: t, Ranges: []row.Range{row.All}}, w)
		s.ok(err)
		s.ok(w.Check())
		if len(w.Rows) < 10 {
			s.Errorf("%d rows", len(w.Rows))
		}
	}},
	{"CancelEndsTheRead", func(s *suite) {
		t := s.create("t", "f")
		var entries []row.Entry
		for i := range 3000 {
			entries = append(entries, row.Entry{Key: fmt.Appendf(nil, "r%06d", i), Mutations: []row.Mutation{set("f", "q", 0, "v")}})
		}
		s.ok(s.MutateRows(s.ctx, t, entries, func(_ int, err error) { s.ok(err) }))
		ctx, cancel := context.WithCancel(s.ctx)
		defer cancel()
		w := &Collector{Each: func(*Row) { cancel() }}
		_, err := s.ReadRows(ctx, &scan.Request{Table: t, Ranges: []row.Range{row.All}}, w)
		if !errors.Is(err, context.Canceled) || len(w.Rows) > 2 {
			s.Errorf("got error %v after %d rows", err, len(w.Rows))
		}
	}},
}

type failingFlush struct {
	Collector
	err error
}

func (w *failingFlush) Flush() error { return w.err }

// writingFlush writes to the table it reads.
type writingFlush struct {
	Collector
	s     *suite
	table string
}

func (w *writingFlush) Flush() error {
	w.s.put(w.table, "r5", set("f", "q", int64(w.Flushes)*1000, "w"))
	w.s.put(w.table, "zz", deleteRow())
	return w.Collector.Flush()
}

var filterTests = []test{
	{"GiveWhatTheModelGives", func(s *suite) {
		t := s.create("t", "a", "b", "c")
		r := rand.New(rand.NewPCG(9, 10))
		for _, k := range []string{"r0", "r1", "r2", "x\x00\xff", "y\n"} {
			var muts []row.Mutation
			for range 40 {
				muts = append(muts, set([]string{"a", "b", "c"}[r.IntN(3)], []string{"", "q", "q1", "q\x00", "\xff", "z\n"}[r.IntN(6)],
					int64(r.IntN(5))*1000, []string{"", "v", "vv", "\x00", "\xff\x0f", "12345678", "a.b", "\n"}[r.IntN(8)]))
			}
			s.put(t, k, muts...)
		}
		for _, f := range Filters() {
			for _, req := range []*scan.Request{
				{Ranges: []row.Range{row.All}},
				{Ranges: []row.Range{row.All}, Reversed: true, Limit: 3},
				{Ranges: []row.Range{row.Single([]byte("r1")), keyRange("x", "")}},
			} {
				req.Table = t
				req.Filter = nil
				want := sortLines(s.filtered(req, f))
				req.Filter = f
				if got := sortLines(s.read(req)); got != want {
					s.Fatalf("filter %s, request %+v:\ngot:\n%swant:\n%s", Describe(f), req, got, want)
				}
			}
		}
	}},
	{"SampleKeepsSomeRows", func(s *suite) {
		t := s.create("t", "f")
		var entries []row.Entry
		for i := range 2000 {
			entries = append(entries, row.Entry{Key: fmt.Appendf(nil, "r%06d", i), Mutations: []row.Mutation{set("f", "q", 0, "1"), set("f", "r", 0, "2")}})
		}
		s.ok(s.MutateRows(s.ctx, t, entries, func(_ int, err error) { s.ok(err) }))
		w := &Collector{}
		_, err := s.ReadRows(s.ctx, &scan.Request{Table: t, Ranges: []row.Range{row.All}, Filter: &filter.Node{Op: filter.RowSample, P: 0.5}}, w)
		s.ok(err)
		if n := len(w.Rows); n < 700 || n > 1300 { // 13 standard deviations
			s.Errorf("a sample of one half of 2000 rows has %d", n)
		}
		for _, r := range w.Rows {
			if len(r.Cells) != 2 {
				s.Errorf("row %s has %d of its cells", r.Key, len(r.Cells))
			}
		}
	}},
	{"AnUnknownFamilyInARegexMatchesNothing", func(s *suite) {
		t := s.create("t", "f")
		s.put(t, "r", set("f", "q", 0, "v"))
		same(s.T, s.read(&scan.Request{Table: t, Ranges: []row.Range{row.All}, Filter: keepFamily("g.*")}))
	}},
}

// sortLines forgets the mutual order of equal cells, which is not specified;
// the Collector has checked the rest of the order.
func sortLines(s string) string {
	lines := strings.SplitAfter(s, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// filtered reads everything that req asks for and filters here.
func (s *suite) filtered(req *scan.Request, f *filter.Node) string {
	s.Helper()
	w := &Collector{Reversed: req.Reversed}
	_, err := s.ReadRows(s.ctx, &scan.Request{Table: req.Table, Ranges: req.Ranges, Reversed: req.Reversed}, w)
	s.ok(err)
	var rows []Row
	for _, r := range w.Rows {
		out, err := model.Filter(f, []byte(r.Key), r.Cells)
		s.ok(err)
		if len(out) > 0 {
			rows = append(rows, Row{Key: r.Key, Cells: out})
		}
		if int64(len(rows)) == req.Limit && req.Limit > 0 {
			break
		}
	}
	return render(rows)
}

// Filters returns valid filters of every kind but RowSample, with the bounds
// and nestings that pushing them down to the store could get wrong.
func Filters() []*filter.Node {
	op := func(o filter.Op, children ...*filter.Node) *filter.Node {
		return &filter.Node{Op: o, Children: children}
	}
	n := func(o filter.Op, n int32) *filter.Node { return &filter.Node{Op: o, N: n} }
	closed := func(k string) filter.Bound { return filter.Bound{Key: []byte(k), Set: true} }
	open := func(k string) filter.Bound { return filter.Bound{Key: []byte(k), Set: true, Open: true} }
	columns := func(start, end filter.Bound) *filter.Node {
		return &filter.Node{Op: filter.ColumnRange, Family: "b", Start: start, End: end}
	}
	values := func(start, end filter.Bound) *filter.Node {
		return &filter.Node{Op: filter.ValueRange, Start: start, End: end}
	}
	times := func(start, end int64) *filter.Node {
		return &filter.Node{Op: filter.TimestampRange, Times: cell.TimeRange{Start: start, End: end}}
	}
	pattern := func(o filter.Op, p string) *filter.Node { return &filter.Node{Op: o, Pattern: []byte(p)} }
	label := func(l string) *filter.Node { return &filter.Node{Op: filter.ApplyLabel, Label: l} }
	type cols = map[string][]row.Range
	inside := func(c cols, child *filter.Node) *filter.Node {
		return &filter.Node{Op: filter.Columns, Columns: c, Children: []*filter.Node{child}}
	}
	q, qs := row.Single([]byte("q")), row.Prefix([]byte("q"))
	pass, block, strip, sink := op(filter.PassAll), op(filter.BlockAll), op(filter.StripValue), op(filter.Sink)
	var none filter.Bound
	return []*filter.Node{
		nil, pass, block, strip, label("x"), sink,
		pattern(filter.RowKeyRegex, "r[01]"), pattern(filter.RowKeyRegex, `x\C\C`), pattern(filter.RowKeyRegex, `y.`), pattern(filter.RowKeyRegex, "r1"),
		pattern(filter.RowKeyRegex, "x\\\x00\\\xff"),
		keepFamily("b"), keepFamily("[ab]"), keepFamily("x*"), keepFamily("a|c"),
		keepQualifier("q"), keepQualifier("q.*"), keepQualifier(`q\x00`), keepQualifier("\xff"), keepQualifier("(?s:.*)"), keepQualifier(".*"), keepQualifier("z\\\n"),
		keepValue("v+"), keepValue(`\xff\C`), keepValue(`a\.b`), keepValue(`\C{8}`), keepValue(`.*\C`), keepValue("\x00"),
		columns(none, none), columns(closed("q"), none), columns(open("q"), none), columns(none, closed("q")), columns(none, open("q")),
		columns(closed("q"), closed("q")), columns(open("q"), open("q1")), columns(open(""), none), columns(closed(""), open("\xff")),
		values(none, none), values(closed("v"), none), values(open("v"), none), values(none, open("v")), values(none, closed("v")),
		values(closed(""), closed("")), values(open(""), closed("\xff\x0f")),
		times(0, 3000), times(1000, 2000), times(2000, math.MaxInt64), times(math.MinInt64, 1000), times(4000, math.MaxInt64), times(3, 1001),
		pattern(filter.ValueBitmask, "\x0f"), pattern(filter.ValueBitmask, "\x0f\x0f"), pattern(filter.ValueBitmask, ""), pattern(filter.ValueBitmask, "1\x00\x00\x00\x00\x00\x008"),
		n(filter.CellsPerRowOffset, 0), n(filter.CellsPerRowOffset, 3), n(filter.CellsPerRowOffset, 1000),
		n(filter.CellsPerRowLimit, 1), n(filter.CellsPerRowLimit, 7), n(filter.CellsPerRowLimit, math.MaxInt32),
		n(filter.CellsPerColumnLimit, 1), n(filter.CellsPerColumnLimit, 2), n(filter.CellsPerColumnLimit, math.MaxInt32),
		op(filter.Chain, keepFamily("b"), n(filter.CellsPerColumnLimit, 1)),
		op(filter.Chain, n(filter.CellsPerColumnLimit, 1), times(0, 2000)),
		op(filter.Chain, times(0, 2000), n(filter.CellsPerColumnLimit, 1)),
		op(filter.Chain, keepValue("v"), n(filter.CellsPerColumnLimit, 1), strip),
		op(filter.Chain, n(filter.CellsPerRowOffset, 2), n(filter.CellsPerRowLimit, 3)),
		op(filter.Chain, n(filter.CellsPerRowLimit, 3), n(filter.CellsPerRowOffset, 2)),
		op(filter.Chain, strip, values(none, closed(""))),
		op(filter.Chain, keepFamily("a|b"), keepFamily("b|c"), columns(closed("q"), none), label("l")),
		op(filter.Chain, block, label("l")),
		op(filter.Interleave, keepFamily("a"), keepFamily("c")),
		op(filter.Interleave, pass, pass),
		op(filter.Interleave, op(filter.Chain, keepFamily("a"), label("x")), op(filter.Chain, keepQualifier("q"), label("y")), strip),
		op(filter.Chain, op(filter.Interleave, pass, keepFamily("b")), n(filter.CellsPerColumnLimit, 3)),
		op(filter.Chain, op(filter.Interleave, pass, pass), n(filter.CellsPerRowLimit, 5)),
		op(filter.Interleave, n(filter.CellsPerRowLimit, 1), n(filter.CellsPerRowOffset, 1)),
		op(filter.Condition, keepValue("v"), keepFamily("a"), keepFamily("b")),
		op(filter.Condition, keepValue("v"), nil, keepFamily("b")),
		op(filter.Condition, keepValue("nowhere"), pass, nil),
		op(filter.Condition, keepFamily("c"), n(filter.CellsPerColumnLimit, 1), strip),
		op(filter.Condition, pattern(filter.RowKeyRegex, "r1"), label("one"), label("other")),
		op(filter.Condition, op(filter.Chain, keepFamily("a"), keepQualifier("q"), n(filter.CellsPerColumnLimit, 1), keepValue("v.*")), pass, block),
		op(filter.Chain, keepFamily("b"), op(filter.Interleave, pass, sink), label("z")),
		op(filter.Chain, keepFamily("a|b"), op(filter.Interleave, op(filter.Chain, label("foo"), sink), pass), keepQualifier("q.*"), strip),
		op(filter.Interleave, op(filter.Chain, keepFamily("a"), sink), keepFamily("b")),
		op(filter.Chain, sink, pass),
		op(filter.Chain, op(filter.Chain, keepFamily("a"), keepQualifier("q.*")), op(filter.Chain, n(filter.CellsPerColumnLimit, 2), strip)),
		inside(nil, nil), inside(cols{"b": {row.All}}, nil), inside(cols{"a": {q}, "c": {qs}}, nil), inside(cols{"b": {row.Single(nil), q}, "a": {qs}}, pass),
		inside(cols{"b": {q}, "c": {row.All}}, n(filter.CellsPerRowOffset, 2)),
		inside(cols{"b": {qs}}, op(filter.Condition, keepFamily("a"), pass, label("not-there"))),
		inside(cols{"a": {qs}, "nowhere": {row.All}}, op(filter.Interleave, keepFamily("b|a"), op(filter.Chain, keepQualifier("q"), sink))),
	}
}

// Describe writes a filter on one line.
func Describe(f *filter.Node) string {
	if f == nil {
		return "nil"
	}
	out := fmt.Sprintf("op%d", f.Op)
	switch {
	case len(f.Children) > 0:
		var cs []string
		for _, c := range f.Children {
			cs = append(cs, Describe(c))
		}
		return out + "(" + strings.Join(cs, ", ") + ")"
	case len(f.Pattern) > 0:
		return fmt.Sprintf("%s %q", out, f.Pattern)
	}
	return fmt.Sprintf("%s %+v", out, *f)
}
