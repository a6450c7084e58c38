package backendtest

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/trestledb/trestle/engine/aggregate"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

var mutateTests = []test{
	{"SameTimestampReplaces", func(s *suite) {
		t := s.create("t", "f")
		s.put(t, "r", set("f", "q", 1000, "a"))
		s.put(t, "r", set("f", "q", 1000, "b"), set("f", "q", 2000, "c"))
		s.put(t, "r", set("f", "q", 2000, "d"), set("f", "q", 2000, "e"))
		s.want(t, "r f:q@2000=e", "r f:q@1000=b")
	}},
	{"MutationsApplyInOrder", func(s *suite) {
		t := s.create("t", "f", "g")
		s.put(t, "r", set("f", "q", 1000, "a"), deleteRow(), set("f", "q", 1000, "b"))
		s.want(t, "r f:q@1000=b")
		s.put(t, "r", set("f", "q", 5000, "c"), deleteColumn("f", "q"), set("f", "q", 4000, "d"), set("f", "p", 1000, "e"))
		s.want(t, "r f:p@1000=e", "r f:q@4000=d")
		s.put(t, "r", set("g", "q", 1000, "x"), deleteFamily("f"), set("f", "z", 1000, "y"), deleteTimes("g", "q", 0, 1000))
		s.want(t, "r f:z@1000=y", "r g:q@1000=x")
		s.put(t, "r", deleteFamily("g"), deleteFamily("f"))
		s.want(t)
		s.put(t, "r", set("f", "q", 1000, "a"), set("g", "q", 1000, "b"), deleteRow())
		s.want(t)
		s.put(t, "r", deleteRow(), set("f", "q", 1000, "a"), deleteFamily("f"), set("f", "q", 2000, "b"), deleteTimes("f", "q", 2000, 3000), set("f", "q", 3000, "c"))
		s.want(t, "r f:q@3000=c")
	}},
	{"AnOlderTimestampAfterADeleteIsVisible", func(s *suite) {
		t := s.create("t", "f", "g")
		for _, d := range []row.Mutation{deleteRow(), deleteFamily("f"), deleteColumn("f", "q"), deleteTimes("f", "q", 0, 10_000)} {
			s.put(t, "r", set("f", "q", 9000, "new"))
			s.put(t, "r", d)
			s.want(t)
			s.put(t, "r", set("f", "q", 1000, "old"))
			s.want(t, "r f:q@1000=old")
			s.put(t, "r", set("f", "q", 9000, "same"))
			s.want(t, "r f:q@9000=same", "r f:q@1000=old")
			s.put(t, "r", deleteRow())
		}
	}},
	{"DeleteColumnHonoursItsRange", func(s *suite) {
		t := s.create("t", "f")
		fill := func() {
			s.put(t, "r", deleteRow(), set("f", "q", 0, "0"), set("f", "q", 1000, "1"), set("f", "q", 2000, "2"), set("f", "q", 3000, "3"), set("f", "qq", 1000, "other"))
		}
		for _, tc := range []struct {
			start, end int64
			left       string
		}{
			{1000, 3000, "30"}, {0, 1000, "321"}, {0, math.MaxInt64, ""}, {math.MinInt64, math.MaxInt64, ""}, {3000, math.MaxInt64, "210"},
			{4000, 9000, "3210"}, {2000, 3000, "310"},
		} {
			fill()
			s.put(t, "r", deleteTimes("f", "q", tc.start, tc.end))
			var want []string
			for _, c := range tc.left {
				want = append(want, fmt.Sprintf("r f:q@%d=%c", (c-'0')*1000, c))
			}
			s.want(t, append(want, "r f:qq@1000=other")...)
		}
	}},
	{"DeletesTouchNothingElse", func(s *suite) {
		t := s.create("t", "f", "fa")
		cells := []row.Mutation{set("f", "q", 1000, "1"), set("f", "q\x00", 1000, "2"), set("f", "", 1000, "3"), set("fa", "q", 1000, "4"), set("f", "qa", 1000, "5")}
		for _, k := range []string{"r", "r\x00", "ra"} {
			s.put(t, k, cells...)
		}
		s.put(t, "r", deleteColumn("f", "q"))
		s.put(t, "r\x00", deleteFamily("f"))
		s.put(t, "ra", deleteColumn("f", ""))
		s.want(t, "r f:@1000=3", `r f:q\x00@1000=2`, "r f:qa@1000=5", "r fa:q@1000=4",
			`r\x00 fa:q@1000=4`,
			"ra f:q@1000=1", `ra f:q\x00@1000=2`, "ra f:qa@1000=5", "ra fa:q@1000=4")
		s.put(t, "r", deleteRow())
		s.want(t, `r\x00 fa:q@1000=4`, "ra f:q@1000=1", `ra f:q\x00@1000=2`, "ra f:qa@1000=5", "ra fa:q@1000=4")
	}},
	{"DeletesOfNothing", func(s *suite) {
		t := s.create("t", "f")
		s.put(t, "r", deleteRow())
		s.put(t, "r", deleteFamily("f"), deleteColumn("f", "q"), deleteRow())
		s.want(t)
	}},
	{"ServerTime", func(s *suite) {
		for _, granularity := range []int64{1000, 1} {
			t := s.createTable(fmt.Sprint("t", granularity), granularity, nil, "f")
			s.put(t, "r", set("f", "a", row.ServerTime, "1"), set("f", "b", row.ServerTime, "2"), set("f", "c", 0, "3"))
			w := &Collector{}
			_, err := s.ReadRows(s.ctx, everything(t), w)
			s.ok(err)
			c := w.Rows[0].Cells
			if len(c) != 3 || !isNow(c[0].Timestamp) || c[0].Timestamp != c[1].Timestamp || c[0].Timestamp%granularity != 0 || c[2].Timestamp != 0 {
				s.Errorf("got %s", renderCells(c))
			}
		}
	}},
	{"Granularity", func(s *suite) {
		t := s.create("t", "f")
		s.failsWith(s.try(t, "r", set("f", "q", 1001, "v")), fault.Invalid, "Timestamp granularity mismatch")
		s.fails(s.try(t, "r", deleteTimes("f", "q", 1, 2000)), fault.Invalid)
		s.want(t)
		m := set("f", "q", 1999, "v")
		m.Truncate = true
		s.put(t, "r", m)
		s.want(t, "r f:q@1000=v")
		u := s.createTable("u", 1, nil, "f")
		s.put(u, "r", set("f", "q", 1001, "v"), set("f", "q", 1000, "w"), deleteTimes("f", "q", 1000, 1001))
		s.want(u, "r f:q@1001=v")
	}},
	{"AFailingEntryChangesNothing", func(s *suite) {
		t := s.create("t", "f")
		s.put(t, "r", set("f", "q", 1000, "kept"))
		for _, bad := range []row.Mutation{set("none", "q", 1000, "v"), deleteFamily("none"), deleteColumn("none", "q")} {
			err := s.try(t, "r", set("f", "q", 2000, "v"), deleteRow(), bad, set("f", "q", 3000, "v"))
			s.lacks(err, "none")
		}
		s.fails(s.try(t, "r", deleteRow(), set("f", "q", 1, "v")), fault.Invalid)
		s.want(t, "r f:q@1000=kept")
	}},
	{"TheEntryIsNotKept", func(s *suite) {
		t := s.create("t", "f")
		e := &row.Entry{Key: []byte("row"), Mutations: []row.Mutation{set("f", "qua", 1000, "value")}}
		s.ok(s.MutateRow(s.ctx, t, e))
		copy(e.Key, "xxx")
		copy(e.Mutations[0].Qualifier, "xxx")
		copy(e.Mutations[0].Value, "xxxxx")
		s.want(t, "row f:qua@1000=value")
	}},
	{"ManyMutationsOfOneRow", func(s *suite) {
		t := s.create("t", "f")
		muts := make([]row.Mutation, schema.MaxMutations)
		for i := range muts {
			muts[i] = set("f", "q", int64(i/2)*1000, fmt.Sprint(i))
		}
		s.put(t, "r", muts...)
		w := &Collector{}
		_, err := s.ReadRows(s.ctx, everything(t), w)
		s.ok(err)
		s.ok(w.Check())
		if c := w.Rows[0].Cells; len(c) != schema.MaxMutations/2 || string(c[0].Value) != fmt.Sprint(schema.MaxMutations-1) {
			s.Errorf("%d cells, the newest is %q", len(c), c[0].Value)
		}
	}},
	{"BatchReportsEachEntry", func(s *suite) {
		t := s.create("t", "f")
		entries := []row.Entry{
			{Key: []byte("c"), Mutations: []row.Mutation{set("f", "q", 1000, "0")}},
			{Key: []byte("a"), Mutations: []row.Mutation{set("f", "q", 1000, "1"), set("none", "q", 1000, "1")}},
			{Key: []byte("b"), Mutations: []row.Mutation{set("f", "q", 1000, "2")}},
			{Key: []byte("a"), Mutations: []row.Mutation{set("f", "p", 1000, "3")}},
			{Key: []byte("a"), Mutations: []row.Mutation{set("f", "q", 1000, "4")}},
		}
		got := map[int]error{}
		s.ok(s.MutateRows(s.ctx, t, entries, func(i int, err error) {
			if _, twice := got[i]; twice {
				s.Errorf("entry %d was reported twice", i)
			}
			got[i] = err
		}))
		for i := range entries {
			err, reported := got[i]
			switch {
			case !reported:
				s.Errorf("entry %d was not reported", i)
			case i == 1:
				s.fails(err, fault.NotFound)
			default:
				s.ok(err)
			}
		}
		s.want(t, "a f:p@1000=3", "a f:q@1000=4", "b f:q@1000=2", "c f:q@1000=0")
	}},
	{"BatchWithAnImpossibleEntryChangesNothing", func(s *suite) {
		t := s.create("t", "f", "sum=sum")
		good := row.Entry{Key: []byte("a"), Mutations: []row.Mutation{set("f", "q", 1000, "v")}}
		for _, bad := range []row.Mutation{set("f", "q", 7, "v"), set("sum", "q", 1000, "v"), deleteTimes("f", "q", 1, 3)} {
			err := s.MutateRows(s.ctx, t, []row.Entry{good, {Key: []byte("b"), Mutations: []row.Mutation{bad}}, good}, func(i int, err error) {
				s.Errorf("done(%d, %v) was called", i, err)
			})
			s.fails(err, fault.Invalid)
		}
		s.want(t)
	}},
	{"BatchOfNone", func(s *suite) {
		t := s.create("t", "f")
		s.ok(s.MutateRows(s.ctx, t, nil, func(i int, err error) { s.Errorf("done(%d, %v) was called", i, err) }))
	}},
	{"BatchInOrderWithinARow", func(s *suite) {
		t := s.createTable("t", 1000, [][]byte{[]byte("m")}, "f", "sum=sum")
		var entries []row.Entry
		for _, k := range []string{"z", "a", "n"} {
			for _, m := range []row.Mutation{add("sum", "q", 1000, 3), set("f", "q", 1000, "1"), {Op: row.DeleteRow}, add("sum", "q", 1000, 4),
				set("f", "q", 1000, "2"), add("sum", "q", 1000, 5), set("f", "q", 1000, "3")} {
				entries = append(entries, row.Entry{Key: []byte(k), Mutations: []row.Mutation{m}})
			}
		}
		s.ok(s.MutateRows(s.ctx, t, entries, func(_ int, err error) { s.ok(err) }))
		nine := plain(int64be(9))
		s.want(t, "a f:q@1000=3", "a sum:q@1000="+nine, "n f:q@1000=3", "n sum:q@1000="+nine, "z f:q@1000=3", "z sum:q@1000="+nine)
	}},
	{"BatchOfMany", func(s *suite) {
		t := s.createTable("t", 1000, [][]byte{[]byte("r3"), []byte("r5"), []byte("r7")}, "f")
		const n = 20_000
		entries := make([]row.Entry, n)
		for i := range entries {
			entries[i] = row.Entry{Key: fmt.Appendf(nil, "r%d", i*7919%n), Mutations: []row.Mutation{set("f", "q", 0, fmt.Sprint(i))}}
		}
		seen := make([]bool, n)
		count := 0
		s.ok(s.MutateRows(s.ctx, t, entries, func(i int, err error) {
			s.ok(err)
			if !seen[i] {
				seen[i] = true
				count++
			}
		}))
		if got := strings.Count(s.all(t), "\n"); count != n || got != n {
			s.Errorf("%d entries reported, %d rows read", count, got)
		}
	}},
}

func add(family, qualifier string, ts, n int64) row.Mutation {
	return row.Mutation{Op: row.AddToCell, Family: family, Qualifier: []byte(qualifier), Timestamp: ts, Input: row.Input{Kind: row.IntInput, Int: n}}
}

func merge(family, qualifier string, ts int64, state string) row.Mutation {
	return row.Mutation{Op: row.MergeToCell, Family: family, Qualifier: []byte(qualifier), Timestamp: ts, Input: row.Input{Kind: row.BytesInput, Bytes: []byte(state)}}
}

var aggregateTests = []test{
	{"SumMinMax", func(s *suite) {
		t := s.create("t", "sum=sum", "min=min", "max=max")
		for _, n := range []int64{5, -7, 3} {
			s.put(t, "r", add("sum", "q", 1000, n), add("min", "q", 1000, n), add("max", "q", 1000, n))
		}
		line := func(f string, n int64) string { return fmt.Sprintf("r %s:q@1000=%s", f, plain(int64be(n))) }
		s.want(t, line("max", 5), line("min", -7), line("sum", 1))
		s.put(t, "r", merge("sum", "q", 1000, int64be(41)), merge("min", "q", 1000, int64be(-8)), merge("max", "q", 1000, int64be(4)))
		s.want(t, line("max", 5), line("min", -8), line("sum", 42))
		s.put(t, "r", add("sum", "q", 1000, 1), add("sum", "q", 1000, 2), add("max", "q", 1000, 6), add("max", "q", 1000, 4))
		s.want(t, line("max", 6), line("min", -8), line("sum", 45))
	}},
	{"SketchesCountDistinct", func(s *suite) {
		t := s.create("t", "hll=hll")
		value := func(v string) row.Mutation {
			return row.Mutation{Op: row.AddToCell, Family: "hll", Qualifier: []byte("q"), Timestamp: 1000, Input: row.Input{Kind: row.StringInput, Bytes: []byte(v)}}
		}
		estimate := func() int64 {
			s.Helper()
			c, err := s.newest(t, "r")
			s.ok(err)
			if len(c) != 1 {
				s.Fatalf("got %s", renderCells(c))
			}
			n, err := aggregate.Estimate(c[0].Value)
			s.ok(err)
			return n
		}
		for i := range 30 {
			s.put(t, "r", value(fmt.Sprint(i%10)))
		}
		if n := estimate(); n != 10 {
			s.Errorf("10 values among 30 are counted as %d", n)
		}
		c, err := s.newest(t, "r")
		s.ok(err)
		state := string(c[0].Value)
		s.put(t, "r", deleteRow(), value("3"), value("11"), merge("hll", "q", 1000, state))
		if n := estimate(); n != 11 {
			s.Errorf("merged, 11 values are counted as %d", n)
		}
		s.fails(s.try(t, "r", merge("hll", "q", 1000, "no sketch")), fault.Invalid)
		if n := estimate(); n != 11 {
			s.Errorf("after a refusal, 11 values are counted as %d", n)
		}
	}},
	{"EachTimestampIsItsOwnCell", func(s *suite) {
		t := s.create("t", "sum=sum")
		s.put(t, "r", add("sum", "q", 1000, 1), add("sum", "q", 2000, 10), add("sum", "p", 1000, 100))
		s.put(t, "r", add("sum", "q", 1000, 1), add("sum", "q", 2000, 10))
		s.want(t, "r sum:p@1000="+plain(int64be(100)), "r sum:q@2000="+plain(int64be(20)), "r sum:q@1000="+plain(int64be(2)))
	}},
	{"SumWraps", func(s *suite) {
		t := s.create("t", "sum=sum")
		s.put(t, "r", add("sum", "q", 1000, math.MaxInt64))
		s.put(t, "r", add("sum", "q", 1000, 1))
		s.want(t, "r sum:q@1000="+plain(int64be(math.MinInt64)))
	}},
	{"NullChangesNothing", func(s *suite) {
		t := s.create("t", "sum=sum")
		null := row.Mutation{Op: row.MergeToCell, Family: "sum", Qualifier: []byte("q"), Timestamp: 1000}
		s.put(t, "r", null)
		s.want(t)
		s.put(t, "r", add("sum", "q", 1000, 3), null)
		s.want(t, "r sum:q@1000="+plain(int64be(3)))
	}},
	{"ADeleteStartsAfresh", func(s *suite) {
		t := s.create("t", "sum=sum")
		for _, d := range []row.Mutation{deleteRow(), deleteFamily("sum"), deleteColumn("sum", "q"), deleteTimes("sum", "q", 1000, 2000)} {
			s.put(t, "r", add("sum", "q", 1000, 5))
			s.put(t, "r", add("sum", "q", 1000, 5), d, add("sum", "q", 1000, 2))
			s.want(t, "r sum:q@1000="+plain(int64be(2)))
			s.put(t, "r", d)
			s.want(t)
		}
	}},
	{"Refused", func(s *suite) {
		t := s.create("t", "f", "sum=sum")
		input := func(op row.Op, in row.Input) row.Mutation {
			return row.Mutation{Op: op, Family: "sum", Qualifier: []byte("q"), Timestamp: 1000, Input: in}
		}
		for name, m := range map[string]row.Mutation{
			"SetCell in an aggregate family":   set("sum", "q", 1000, int64be(1)),
			"AddToCell in an ordinary family":  add("f", "q", 1000, 1),
			"MergeToCell in an ordinary one":   merge("f", "q", 1000, int64be(1)),
			"AddToCell of a string":            input(row.AddToCell, row.Input{Kind: row.StringInput, Bytes: []byte("x")}),
			"AddToCell of a float":             input(row.AddToCell, row.Input{Kind: row.FloatInput, Float: 1}),
			"MergeToCell of 7 bytes":           merge("sum", "q", 1000, "1234567"),
			"AddToCell off the grid":           add("sum", "q", 1001, 1),
			"MergeToCell with no family there": {},
		} {
			want := fault.Invalid
			if m.Op == 0 {
				m, want = merge("none", "q", 1000, int64be(1)), fault.NotFound
			}
			err := s.try(t, "r", m)
			if fault.KindOf(err) != want {
				s.Errorf("%s: got %v, want %v", name, err, want)
			}
		}
		s.want(t)
		_, err := s.ReadModifyWriteRow(s.ctx, t, []byte("r"), []row.Rule{{Family: "sum", Qualifier: []byte("q"), Increment: 1}})
		s.fails(err, fault.Invalid)
	}},
	{"TokensCountOnce", func(s *suite) {
		t := s.create("t", "sum=sum")
		entry := func(key, token string) row.Entry {
			return row.Entry{Key: []byte(key), Mutations: []row.Mutation{add("sum", "q", 1000, 1)}, Token: row.Token{Token: []byte(token), Start: time.Now()}}
		}
		apply := func(key, token string) {
			s.Helper()
			e := entry(key, token)
			s.ok(s.MutateRow(s.ctx, t, &e))
		}
		apply("r", "token-001")
		apply("r", "token-001")
		s.ok(s.MutateRows(s.ctx, t, []row.Entry{entry("r", "token-001")}, func(_ int, err error) { s.ok(err) }))
		s.want(t, "r sum:q@1000="+plain(int64be(1)))
		apply("r", "token-002")
		apply("r", "")
		apply("r", "")
		s.want(t, "r sum:q@1000="+plain(int64be(4)))
		apply("other", "token-001")
		s.want(t, "other sum:q@1000="+plain(int64be(1)), "r sum:q@1000="+plain(int64be(4)))
		s.put(t, "r", deleteRow())
		apply("r", "token-002")
		s.want(t, "other sum:q@1000="+plain(int64be(1)))
		old := entry("r", "token-003")
		old.Token.Start = time.Now().Add(-schema.TokenWindow - time.Minute)
		s.fails(s.MutateRow(s.ctx, t, &old), fault.FailedPrecondition)
		s.want(t, "other sum:q@1000="+plain(int64be(1)))
	}},
}

var casTests = []test{
	{"WithoutAPredicateAsksForTheRow", func(s *suite) {
		t := s.create("t", "f")
		for i, want := range []bool{false, true} {
			got, err := s.CheckAndMutateRow(s.ctx, t, []byte("r"), nil,
				[]row.Mutation{set("f", "then", 1000, "v")}, []row.Mutation{set("f", "else", 1000, "v")})
			s.ok(err)
			if got != want {
				s.Errorf("round %d matched: %v", i, got)
			}
		}
		s.want(t, "r f:else@1000=v", "r f:then@1000=v")
	}},
	{"ThePredicateIsAFilter", func(s *suite) {
		t := s.create("t", "f", "g")
		s.put(t, "r", set("f", "q", 1000, "old"), set("f", "q", 2000, "new"))
		try := func(f *filter.Node) bool {
			s.Helper()
			got, err := s.CheckAndMutateRow(s.ctx, t, []byte("r"), f, []row.Mutation{set("g", "q", 1000, "yes")}, []row.Mutation{set("g", "q", 1000, "no")})
			s.ok(err)
			return got
		}
		latest := func(v string) *filter.Node {
			return &filter.Node{Op: filter.Chain, Children: []*filter.Node{keepFamily("f"), keepQualifier("q"),
				{Op: filter.CellsPerColumnLimit, N: 1}, keepValue(v)}}
		}
		if !try(latest("new")) {
			s.Error("the newest value did not match")
		}
		s.want(t, "r f:q@2000=new", "r f:q@1000=old", "r g:q@1000=yes")
		if try(latest("old")) {
			s.Error("an old value matched as the newest")
		}
		s.want(t, "r f:q@2000=new", "r f:q@1000=old", "r g:q@1000=no")
		if try(&filter.Node{Op: filter.BlockAll}) {
			s.Error("block all matched")
		}
		if !try(&filter.Node{Op: filter.Chain, Children: []*filter.Node{{Op: filter.StripValue}, {Op: filter.ApplyLabel, Label: "l"}}}) {
			s.Error("stripped and labelled cells did not match")
		}
	}},
	{"AnEmptyBranchChangesNothing", func(s *suite) {
		t := s.create("t", "f")
		s.put(t, "r", set("f", "q", 1000, "v"))
		got, err := s.CheckAndMutateRow(s.ctx, t, []byte("r"), nil, nil, []row.Mutation{deleteRow()})
		s.ok(err)
		if !got {
			s.Error("did not match")
		}
		s.want(t, "r f:q@1000=v")
	}},
	{"BothBranchesAreChecked", func(s *suite) {
		t := s.create("t", "f")
		s.put(t, "r", set("f", "q", 1000, "v"))
		good := []row.Mutation{deleteRow()}
		for _, key := range []string{"r", "absent"} {
			_, err := s.CheckAndMutateRow(s.ctx, t, []byte(key), nil, good, []row.Mutation{set("none", "q", 1000, "v")})
			s.fails(err, fault.NotFound)
			_, err = s.CheckAndMutateRow(s.ctx, t, []byte(key), nil, []row.Mutation{set("none", "q", 1000, "v")}, good)
			s.fails(err, fault.NotFound)
			_, err = s.CheckAndMutateRow(s.ctx, t, []byte(key), nil, good, []row.Mutation{set("f", "q", 7, "v")})
			s.fails(err, fault.Invalid)
		}
		s.want(t, "r f:q@1000=v")
	}},
	{"ABranchAppliesInOrder", func(s *suite) {
		t := s.create("t", "f")
		s.put(t, "r", set("f", "q", 9000, "v"))
		_, err := s.CheckAndMutateRow(s.ctx, t, []byte("r"), nil, []row.Mutation{set("f", "p", 1000, "x"), deleteRow(), set("f", "q", 1000, "y")}, nil)
		s.ok(err)
		s.want(t, "r f:q@1000=y")
	}},
}

var rmwTests = []test{
	{"IncrementAndAppend", func(s *suite) {
		t := s.create("t", "f", "g")
		rules := []row.Rule{
			{Family: "g", Qualifier: []byte("log"), IsAppend: true, Append: []byte("ab")},
			{Family: "f", Qualifier: []byte("n"), Increment: 5},
			{Family: "f", Qualifier: []byte("n"), Increment: -7},
			{Family: "g", Qualifier: []byte("log"), IsAppend: true, Append: []byte("c")},
		}
		for round, want := range []struct{ n, log string }{{int64be(-2), "abc"}, {int64be(-4), "abcabc"}} {
			got, err := s.ReadModifyWriteRow(s.ctx, t, []byte("r"), rules)
			s.ok(err)
			if len(got) != 2 || got[0].Family != "f" || string(got[0].Value) != want.n || got[1].Family != "g" || string(got[1].Value) != want.log {
				s.Fatalf("round %d: got\n%s", round, renderCells(got))
			}
			for _, c := range got {
				if !isNow(c.Timestamp) || c.Timestamp%1000 != 0 {
					s.Errorf("timestamp is %d", c.Timestamp)
				}
			}
			w := &Collector{}
			_, err = s.ReadRows(s.ctx, everything(t), w)
			s.ok(err)
			newest, err := s.newest(t, "r")
			s.ok(err)
			if renderCells(newest) != renderCells(got) {
				s.Errorf("returned\n%sbut stored\n%s", renderCells(got), renderCells(newest))
			}
		}
	}},
	{"TheNewestCellCounts", func(s *suite) {
		t := s.create("t", "f")
		s.put(t, "r", set("f", "q", 1000, "old"), set("f", "q", 2000, "new"), set("f", "q", 0, "older"))
		got, err := s.ReadModifyWriteRow(s.ctx, t, []byte("r"), []row.Rule{{Family: "f", Qualifier: []byte("q"), IsAppend: true, Append: []byte("!")}})
		s.ok(err)
		if len(got) != 1 || string(got[0].Value) != "new!" {
			s.Errorf("got %s", renderCells(got))
		}
		if n := strings.Count(s.all(t), "\n"); n != 4 {
			s.Errorf("%d cells, the old ones are gone", n)
		}
	}},
	{"AFutureCellIsReplaced", func(s *suite) {
		t := s.create("t", "f")
		s.put(t, "r", set("f", "q", future, int64be(1)), set("f", "q", future-1000, int64be(100)))
		for range 2 {
			_, err := s.ReadModifyWriteRow(s.ctx, t, []byte("r"), []row.Rule{{Family: "f", Qualifier: []byte("q"), Increment: 1}})
			s.ok(err)
		}
		s.want(t, fmt.Sprintf("r f:q@%d=%s", future, plain(int64be(3))), fmt.Sprintf("r f:q@%d=%s", future-1000, plain(int64be(100))))
	}},
	{"ADeletedCellDoesNotCount", func(s *suite) {
		t := s.create("t", "f")
		s.put(t, "r", set("f", "q", future, int64be(41)))
		s.put(t, "r", deleteColumn("f", "q"))
		got, err := s.ReadModifyWriteRow(s.ctx, t, []byte("r"), []row.Rule{{Family: "f", Qualifier: []byte("q"), Increment: 1}})
		s.ok(err)
		if len(got) != 1 || string(got[0].Value) != int64be(1) || !isNow(got[0].Timestamp) {
			s.Errorf("got %s", renderCells(got))
		}
	}},
	{"IncrementWraps", func(s *suite) {
		t := s.create("t", "f")
		s.put(t, "r", set("f", "q", 1000, int64be(math.MaxInt64)))
		got, err := s.ReadModifyWriteRow(s.ctx, t, []byte("r"), []row.Rule{{Family: "f", Qualifier: []byte("q"), Increment: 1}})
		s.ok(err)
		if len(got) != 1 || string(got[0].Value) != int64be(math.MinInt64) {
			s.Errorf("got %s", renderCells(got))
		}
	}},
	{"OnlyEightBytesCanBeIncremented", func(s *suite) {
		t := s.create("t", "f")
		for _, v := range []string{"1234567", "123456789", "", "x"} {
			s.put(t, "r", deleteRow(), set("f", "q", 1000, v))
			_, err := s.ReadModifyWriteRow(s.ctx, t, []byte("r"), []row.Rule{
				{Family: "f", Qualifier: []byte("other"), Increment: 1},
				{Family: "f", Qualifier: []byte("q"), Increment: 1}})
			s.failsWith(err, fault.FailedPrecondition, "can only be performed on 64-bit values")
			s.want(t, "r f:q@1000="+v)
		}
	}},
	{"AnAppendCanMakeANumber", func(s *suite) {
		t := s.create("t", "f")
		s.put(t, "r", set("f", "q", future, int64be(7)[:4]))
		got, err := s.ReadModifyWriteRow(s.ctx, t, []byte("r"), []row.Rule{
			{Family: "f", Qualifier: []byte("q"), IsAppend: true, Append: []byte(int64be(7)[4:])},
			{Family: "f", Qualifier: []byte("q"), Increment: 3}})
		s.ok(err)
		if len(got) != 1 || string(got[0].Value) != int64be(10) {
			s.Errorf("got %s", renderCells(got))
		}
	}},
	{"AnUnknownFamilyChangesNothing", func(s *suite) {
		t := s.create("t", "f")
		_, err := s.ReadModifyWriteRow(s.ctx, t, []byte("r"), []row.Rule{
			{Family: "f", Qualifier: []byte("q"), Increment: 1}, {Family: "none", Qualifier: []byte("q"), Increment: 1}})
		s.lacks(err, "none")
		s.want(t)
	}},
}
