package merge

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

// A sliceIter is a cell.Iterator over entries in order. It fails at entry fail,
// if that is not negative.
type sliceIter struct {
	entries []cell.Entry
	at      int
	fail    int
	err     error
	closed  *int
}

func newSlice(entries []cell.Entry) *sliceIter { return &sliceIter{entries: entries, fail: -1} }

var errBroken = errors.New("broken")

func (s *sliceIter) to(i int) bool {
	s.at = i
	if s.fail >= 0 && i >= s.fail {
		s.err = errBroken
		return false
	}
	return i >= 0 && i < len(s.entries)
}
func (s *sliceIter) First() bool { return s.to(0) }
func (s *sliceIter) SeekGE(key []byte) bool {
	return s.to(sort.Search(len(s.entries), func(i int) bool { return bytes.Compare(s.entries[i].Key, key) >= 0 }))
}
func (s *sliceIter) SeekRow(row []byte) bool {
	return s.SeekGE(row) && bytes.HasPrefix(s.entries[s.at].Key, row)
}
func (s *sliceIter) SeekLT(key []byte) bool {
	return s.to(sort.Search(len(s.entries), func(i int) bool { return bytes.Compare(s.entries[i].Key, key) >= 0 }) - 1)
}
func (s *sliceIter) Next() bool         { return s.to(s.at + 1) }
func (s *sliceIter) Entry() *cell.Entry { return &s.entries[s.at] }
func (s *sliceIter) Error() error       { return s.err }
func (s *sliceIter) Close() error {
	if s.closed != nil {
		*s.closed++
	}
	return nil
}

func sorted(entries []cell.Entry) []cell.Entry {
	slices.SortFunc(entries, func(a, b cell.Entry) int { return cell.Compare(&a, &b) })
	return entries
}

// A naive is the reference: the live cells after operations in order.
type naive struct {
	live   map[string]value // by cell key
	tokens map[string]value
	// spent are the live cells that a rule would have collected at some time.
	spent map[string]bool
	rules map[cell.FamilyID]*schema.GCRule
	seq   cell.Seq
}

type value struct {
	row   string
	s     cell.Suffix
	bytes string
}

func newNaive() *naive {
	return &naive{live: map[string]value{}, tokens: map[string]value{}, spent: map[string]bool{}}
}

func cellKey(r string, f cell.FamilyID, q string, ts int64) []byte {
	return cell.AppendCell(cell.AppendRow(nil, []byte(r)), f, []byte(q), ts)
}

func (n *naive) drop(del func(v value) bool) {
	for k, v := range n.live {
		if del(v) {
			delete(n.live, k)
			delete(n.spent, k)
		}
	}
}

// collect marks what rules would collect at time now.
func (n *naive) collect(now int64) {
	columns := map[string][]string{}
	for k := range n.live {
		c := k[:len(k)-8]
		columns[c] = append(columns[c], k)
	}
	for _, keys := range columns {
		slices.Sort(keys) // newest first
		for rank, k := range keys {
			v := n.live[k]
			if n.rules[v.s.Family].Collects(rank, v.s.Timestamp, now) {
				n.spent[k] = true
			}
		}
	}
}

var (
	drawRow    = rapid.SampledFrom([]string{"a", "a\x00", "b", "b\x01"})
	drawFamily = rapid.SampledFrom([]cell.FamilyID{0, 1, 258})
	drawQual   = rapid.SampledFrom([]string{"", "q", "q\x00", "\xff"})
	drawTime   = rapid.Int64Range(-1, 4)
	drawTimes  = rapid.Custom(func(t *rapid.T) cell.TimeRange {
		if rapid.IntRange(0, 3).Draw(t, "all") == 0 {
			return cell.AllTime
		}
		start := drawTime.Draw(t, "start")
		return cell.TimeRange{Start: start, End: start + rapid.Int64Range(1, 3).Draw(t, "n")}
	})
)

// step draws an operation, applies it, and returns its entry, or a range
// tombstone.
func (n *naive) step(t *rapid.T) (e *cell.Entry, d *RangeTombstone) {
	n.seq++
	r := drawRow.Draw(t, "row")
	f := drawFamily.Draw(t, "family")
	q := drawQual.Draw(t, "qualifier")
	prefix := cell.AppendRow(nil, []byte(r))
	e = &cell.Entry{Seq: n.seq, Kind: cell.Set}
	switch op := rapid.IntRange(0, 14).Draw(t, "op"); op {
	case 0:
		e.Key = prefix
		n.drop(func(v value) bool { return v.row == r })
	case 1:
		e.Key = cell.AppendFamily(prefix, f)
		n.drop(func(v value) bool { return v.row == r && v.s.Family == f })
	case 2, 3:
		e.Key = cell.AppendColumn(prefix, f, []byte(q))
		times := rapid.SliceOfN(drawTimes, 1, 3).Draw(t, "times")
		e.Value = cell.AppendRanges(nil, times...)
		column := string(cell.AppendColumn(nil, 0, []byte(q))[2:])
		n.drop(func(v value) bool {
			return v.row == r && v.s.Family == f && string(v.s.Column) == column &&
				slices.ContainsFunc(times, func(tr cell.TimeRange) bool { return tr.Contains(v.s.Timestamp) })
		})
	case 4:
		if rapid.IntRange(0, 2).Draw(t, "rare") > 0 {
			break
		}
		rows := row.Range{Start: []byte(r)}
		if rapid.Bool().Draw(t, "prefix") {
			rows = row.Prefix([]byte(r))
		}
		n.drop(func(v value) bool { return rows.Contains([]byte(v.row)) })
		for k, v := range n.tokens {
			if rows.Contains([]byte(v.row)) {
				delete(n.tokens, k)
			}
		}
		return nil, &RangeTombstone{Rows: rows, Seq: n.seq}
	case 6:
		e.Key = cell.AppendFamily(prefix, f)
		times := rapid.SliceOfN(drawTimes, 1, 2).Draw(t, "times")
		e.Value = cell.AppendRanges(nil, times...)
		n.drop(func(v value) bool {
			return v.row == r && v.s.Family == f && slices.ContainsFunc(times, func(tr cell.TimeRange) bool { return tr.Contains(v.s.Timestamp) })
		})
	case 5:
		ts := drawTime.Draw(t, "ts")
		e.Key = cellKey(r, cell.TokenFamily, q, ts)
		s, _ := cell.ParseSuffix(e.Key[len(prefix):])
		n.tokens[string(e.Key)] = value{r, s, ""}
	}
	if e.Key == nil {
		e.Key = cellKey(r, f, q, drawTime.Draw(t, "ts"))
		e.Value = fmt.Appendf(nil, "v%d", n.seq)
		s, err := cell.ParseSuffix(e.Key[len(prefix):])
		if err != nil {
			t.Fatal(err)
		}
		n.live[string(e.Key)] = value{r, s, string(e.Value)}
		delete(n.spent, string(e.Key))
	}
	return e, nil
}

// read returns what a reader sees in runs.
func read(t *rapid.T, runs [][]cell.Entry, ranges []RangeTombstone) (live, tokens map[string]string) {
	live, tokens = map[string]string{}, map[string]string{}
	it := merged(runs)
	r := Resolver{Ranges: NewRanges(ranges)}
	var s cell.Suffix
	last := ""
	for ok := it.First(); ok; ok = it.Next() {
		e := it.Entry()
		v, err := r.Judge(e, &s)
		if err != nil {
			t.Fatal(err)
		}
		if v != Live {
			continue
		}
		if string(e.Key) <= last {
			t.Fatalf("%x comes after %x", e.Key, last)
		}
		last = string(e.Key)
		if s.Family >= cell.FirstSystemFamily {
			tokens[last] = ""
		} else {
			live[last] = string(e.Value)
		}
	}
	if err := errors.Join(it.Error(), it.Close()); err != nil {
		t.Fatal(err)
	}
	return live, tokens
}

func merged(runs [][]cell.Entry) *Iterator {
	var sources []cell.Iterator
	for _, r := range runs {
		sources = append(sources, newSlice(r))
	}
	return New(sources)
}

func describe(runs [][]cell.Entry) string {
	var b strings.Builder
	for i, r := range runs {
		fmt.Fprintf(&b, "run %d:\n", i)
		for _, e := range r {
			fmt.Fprintf(&b, "  %x #%d kind %d %q\n", e.Key, e.Seq, e.Kind, e.Value)
		}
	}
	return b.String()
}

// rule draws a rule, or nil. Rules by age are in microseconds here.
func rule(t *rapid.T, depth int) *schema.GCRule {
	switch n := rapid.IntRange(0, 2+2*depth).Draw(t, "rule"); n {
	case 0:
		return nil
	case 1:
		return &schema.GCRule{MaxVersions: int32(rapid.IntRange(1, 3).Draw(t, "versions"))}
	case 2:
		return &schema.GCRule{MaxAge: time.Duration(rapid.IntRange(1, 4).Draw(t, "age")) * time.Microsecond}
	default:
		var rules []*schema.GCRule
		for range 2 {
			rules = append(rules, rule(t, depth-1))
		}
		if n%2 == 0 {
			return &schema.GCRule{Union: rules}
		}
		return &schema.GCRule{Intersection: rules}
	}
}

// TestCompactions: whatever is written, however it is cut into runs, whichever
// of them are compacted in which order, a reader sees each cell that no rule has
// ever been able to collect, and nothing that was overwritten or deleted.
func TestCompactions(t *testing.T) {
	for range 100 { // rapid's hundred checks find the rarest mistake once in a while only
		rapid.Check(t, compactions)
		if t.Failed() {
			return
		}
	}
}

func compactions(t *rapid.T) {
	n := newNaive()
	n.rules = map[cell.FamilyID]*schema.GCRule{0: rule(t, 2), 1: rule(t, 1), 258: nil}
	var runs [][]cell.Entry // oldest first, as they are made
	var instants []int64    // when they were all there was
	var ranges []RangeTombstone
	now := int64(0)
	check := func(after string) {
		live, tokens := read(t, runs, ranges)
		for k, v := range live {
			if w, ok := n.live[k]; !ok || w.bytes != v {
				t.Fatalf("after %s: %x is %q, want %q (live: %v)\n%s", after, k, v, w.bytes, ok, describe(runs))
			}
		}
		for k, w := range n.live {
			if _, ok := live[k]; !ok && !n.spent[k] {
				t.Fatalf("after %s: %x = %q is lost\n%s", after, k, w.bytes, describe(runs))
			}
		}
		for k := range tokens {
			if _, ok := n.tokens[k]; !ok {
				t.Fatalf("after %s: token %x was deleted\n%s", after, k, describe(runs))
			}
		}
		for k, w := range n.tokens {
			if _, ok := tokens[k]; !ok && w.s.Timestamp >= now-schema.TokenWindow.Microseconds() {
				t.Fatalf("after %s: token %x is lost\n%s", after, k, describe(runs))
			}
		}
	}
	for range rapid.IntRange(1, 12).Draw(t, "rounds") {
		var run []cell.Entry
		for range rapid.IntRange(0, 8).Draw(t, "ops") {
			e, d := n.step(t)
			if d != nil {
				ranges = append(ranges, *d)
			} else {
				run = append(run, *e)
			}
			n.collect(now)
		}
		if rapid.IntRange(0, 9).Draw(t, "tick") == 0 {
			now += schema.TokenWindow.Microseconds()
		} else if rapid.Bool().Draw(t, "tick a little") {
			now++
		}
		n.collect(now)
		runs, instants = append(runs, sorted(run)), append(instants, now)
		check("a write")
		if rapid.Bool().Draw(t, "compact") {
			lo := rapid.IntRange(0, len(runs)-1).Draw(t, "lo")
			hi := rapid.IntRange(lo, len(runs)-1).Draw(t, "hi") + 1
			g := GC{Complete: lo == 0, Families: map[cell.FamilyID]Rule{}, Now: now, AsOf: instants[hi-1]}
			for f, r := range n.rules {
				g.Families[f] = Rule{GCRule: r}
			}
			g.Ranges = NewRanges(ranges)
			var out []cell.Entry
			it := merged(runs[lo:hi])
			for ok := it.First(); ok; ok = it.Next() {
				e := *it.Entry()
				action, err := g.Decide(&e)
				if err != nil {
					t.Fatal(err)
				}
				switch action {
				case Keep:
					out = append(out, e)
				case Bury:
					out = append(out, cell.Entry{Key: e.Key, Seq: e.Seq, Kind: cell.Delete})
				}
			}
			runs = slices.Replace(runs, lo, hi, out)
			instants = slices.Replace(instants, lo, hi, g.AsOf)
			check(fmt.Sprintf("compacting [%d, %d)", lo, hi))
			if g.Complete && hi == len(runs) {
				for _, e := range runs[0] {
					if e.Kind == cell.Delete || len(e.Value) == 0 && !bytes.Contains(e.Key, []byte{0xff, 0xf0}) {
						t.Fatalf("a major compaction leaves %x #%d", e.Key, e.Seq)
					}
				}
			}
			// Range tombstones go when nothing older is left.
			least := cell.MaxSeq
			for _, r := range runs {
				for _, e := range r {
					least = min(least, e.Seq)
				}
			}
			ranges = slices.DeleteFunc(ranges, func(d RangeTombstone) bool { return d.Seq < least })
			check("trimming range tombstones")
		}
	}
}

// TestIterator compares positioning, and steps from there, with one sorted list.
func TestIterator(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := newNaive()
		var all []cell.Entry
		runs := make([][]cell.Entry, rapid.IntRange(0, 5).Draw(t, "runs"))
		if len(runs) > 0 {
			for range rapid.IntRange(0, 30).Draw(t, "entries") {
				if e, _ := n.step(t); e != nil {
					i := rapid.IntRange(0, len(runs)-1).Draw(t, "run")
					runs[i] = append(runs[i], *e)
					all = append(all, *e)
				}
			}
		}
		for i := range runs {
			sorted(runs[i])
		}
		it, ref := merged(runs), newSlice(sorted(all))
		key := func() []byte {
			if len(all) > 0 && rapid.Bool().Draw(t, "known") {
				return all[rapid.IntRange(0, len(all)-1).Draw(t, "key")].Key
			}
			return cellKey(drawRow.Draw(t, "row"), drawFamily.Draw(t, "family"), drawQual.Draw(t, "qualifier"), drawTime.Draw(t, "ts"))
		}
		// step moves both on, by one entry or to a key that is ahead.
		step := func() (got, want bool) {
			if rapid.Bool().Draw(t, "next") {
				return it.Next(), ref.Next()
			}
			k := key()
			want = true
			if bytes.Compare(ref.Entry().Key, k) < 0 {
				want = ref.SeekGE(k)
			}
			return it.Forward(k), want
		}
		for range 20 {
			var got, want bool
			next := true
			switch rapid.IntRange(0, 3).Draw(t, "seek") {
			case 0:
				got, want = it.First(), ref.First()
			case 1:
				k := key()
				got, want = it.SeekGE(k), ref.SeekGE(k)
			case 2:
				k := cell.AppendRow(nil, []byte(drawRow.Draw(t, "row")))
				got, want = it.SeekRow(k), ref.SeekRow(k)
				for want && ref.at < len(all) && bytes.HasPrefix(all[ref.at].Key, k) {
					if !got || !it.Valid() || cell.Compare(it.Entry(), ref.Entry()) != 0 {
						t.Fatalf("row %x: want %x", k, ref.Entry().Key)
					}
					got, _ = step()
				}
				continue
			case 3:
				k := key()
				got, want = it.SeekLT(k), ref.SeekLT(k)
				if got != want || got && !bytes.Equal(it.Entry().Key, ref.Entry().Key) {
					t.Fatalf("SeekLT(%x): %v, want %v", k, got, want)
				}
				continue
			}
			for i := 0; next && i < 5; i++ {
				if got != want || got != it.Valid() {
					t.Fatalf("got %v, want %v", got, want)
				}
				if !got {
					break
				}
				if cell.Compare(it.Entry(), ref.Entry()) != 0 || !bytes.Equal(it.Entry().Value, ref.Entry().Value) {
					t.Fatalf("got %x#%d, want %x#%d", it.Entry().Key, it.Entry().Seq, ref.Entry().Key, ref.Entry().Seq)
				}
				got, want = step()
			}
		}
	})
}

// TestIteratorFailures: a source that fails ends the merge, with its error and
// no wrong entry, and every source is closed.
func TestIteratorFailures(t *testing.T) {
	entries := func(from, step int) (out []cell.Entry) {
		for i := from; i < 30; i += step {
			out = append(out, cell.Entry{Key: cellKey(fmt.Sprintf("r%02d", i), 0, "q", 0), Seq: cell.Seq(i + 1), Kind: cell.Set})
		}
		return out
	}
	for fail := range 10 {
		closed := 0
		var sources []cell.Iterator
		for i := range 3 {
			s := newSlice(entries(i, 3))
			s.closed = &closed
			if i == 1 {
				s.fail = fail
			}
			sources = append(sources, s)
		}
		it := New(sources)
		n := 0
		for ok := it.First(); ok; ok = it.Next() {
			if want := fmt.Sprintf("r%02d", n); !bytes.HasPrefix(it.Entry().Key, []byte(want)) {
				t.Fatalf("got %q, want %s", it.Entry().Key, want)
			}
			n++
		}
		if !errors.Is(it.Error(), errBroken) || n > 3*fail+1 {
			t.Errorf("failing at %d: %d entries, error %v", fail, n, it.Error())
		}
		if it.Valid() {
			t.Error("valid after a failure")
		}
		if fail == 0 && (it.SeekLT([]byte{0xff}) || it.Error() == nil) {
			t.Error("SeekLT hides a failure")
		}
		if err := it.Close(); err != nil || closed != 3 {
			t.Errorf("close: %v, %d closed", err, closed)
		}
	}
}

// TestSameBatch: operations of one batch work in their order.
func TestSameBatch(t *testing.T) {
	prefix := cell.AppendRow(nil, []byte("r"))
	set := func(seq cell.Seq, ts int64) cell.Entry {
		return cell.Entry{Key: cellKey("r", 1, "q", ts), Seq: seq, Kind: cell.Set, Value: []byte{byte(seq)}}
	}
	marker := func(seq cell.Seq, key []byte, value []byte) cell.Entry {
		return cell.Entry{Key: key, Seq: seq, Kind: cell.Set, Value: value}
	}
	all := cell.AppendRanges(nil, cell.AllTime)
	for name, tc := range map[string]struct {
		entries []cell.Entry
		want    string
	}{
		"set then delete column":   {[]cell.Entry{set(1, 5), marker(2, cell.AppendColumn(slices.Clone(prefix), 1, []byte("q")), all)}, ""},
		"delete column then set":   {[]cell.Entry{marker(1, cell.AppendColumn(slices.Clone(prefix), 1, []byte("q")), all), set(2, 5)}, "2"},
		"older timestamp put last": {[]cell.Entry{marker(1, slices.Clone(prefix), nil), set(2, -7)}, "2"},
		"delete family between":    {[]cell.Entry{set(1, 5), marker(2, cell.AppendFamily(slices.Clone(prefix), 1), nil), set(3, 4)}, "3"},
		"other family's marker":    {[]cell.Entry{set(1, 5), marker(2, cell.AppendFamily(slices.Clone(prefix), 2), nil)}, "1"},
		"delete row between":       {[]cell.Entry{set(1, 5), set(2, 6), marker(3, slices.Clone(prefix), nil), set(4, 5)}, "4"},
		"overwritten, then deleted by a range that ends before it": {[]cell.Entry{set(1, 5), set(2, 5),
			marker(3, cell.AppendColumn(slices.Clone(prefix), 1, []byte("q")), cell.AppendRanges(nil, cell.TimeRange{Start: 0, End: 5}))}, "2"},
		"ranges that overlap": {[]cell.Entry{set(1, 1), set(2, 3), set(3, 6), set(4, 9),
			marker(5, cell.AppendColumn(slices.Clone(prefix), 1, []byte("q")),
				cell.AppendRanges(nil, cell.TimeRange{Start: 2, End: 5}, cell.TimeRange{Start: 4, End: 7}))}, "4 1"},
		"a family's range": {[]cell.Entry{set(1, 1), set(2, 3), set(3, 6),
			marker(4, cell.AppendFamily(slices.Clone(prefix), 1), cell.AppendRanges(nil, cell.TimeRange{Start: 2, End: 5})), set(5, 4)}, "3 5 1"},
		"what is sticky covers what comes later": {[]cell.Entry{set(1, 1), set(2, 9),
			marker(3, cell.AppendColumn(slices.Clone(prefix), 1, []byte("q")), cell.AppendSticky(nil, cell.TimeRange{End: 5})), set(4, 4), set(5, 5)}, "2 5"},
		"a sticky family": {[]cell.Entry{
			marker(1, cell.AppendFamily(slices.Clone(prefix), 1), cell.AppendSticky(nil, cell.TimeRange{End: 5})), set(2, 4), set(3, 5)}, "3"},
		"sticky under a newer one that is not": {[]cell.Entry{
			marker(1, cell.AppendFamily(slices.Clone(prefix), 1), cell.AppendSticky(nil, cell.TimeRange{End: 5})),
			marker(2, cell.AppendFamily(slices.Clone(prefix), 1), cell.AppendRanges(nil, cell.AllTime)), set(3, 4), set(4, 5)}, "4"},
		"the row's end ends what is sticky": {[]cell.Entry{
			marker(1, cell.AppendFamily(slices.Clone(prefix), 1), cell.AppendSticky(nil, cell.TimeRange{End: 5})),
			marker(2, slices.Clone(prefix), nil), set(3, 4)}, "3"},
		"twice the same marker": {[]cell.Entry{set(1, 1), marker(2, cell.AppendFamily(slices.Clone(prefix), 1), nil),
			set(3, 1), marker(4, cell.AppendFamily(slices.Clone(prefix), 1), nil), set(5, 2)}, "5"},
	} {
		var r Resolver
		var s cell.Suffix
		got := []string{}
		for _, e := range sorted(slices.Clone(tc.entries)) {
			v, err := r.Judge(&e, &s)
			if err != nil {
				t.Fatal(err)
			}
			if v == Live {
				got = append(got, fmt.Sprint(e.Value[0]))
			}
		}
		if g := strings.Join(got, " "); g != tc.want {
			t.Errorf("%s: got %q, want %q", name, g, tc.want)
		}
	}
}

// TestMalformed: what cannot be parsed is Corruption.
func TestMalformed(t *testing.T) {
	prefix := cell.AppendRow(nil, []byte("r"))
	for _, e := range []cell.Entry{
		{Key: []byte("no row")},
		{Key: nil},
		{Key: append(slices.Clone(prefix), 1)},
		{Key: append(slices.Clone(prefix), 0, 1, 'q')},
		{Key: cell.AppendColumn(slices.Clone(prefix), 1, nil)}, // no ranges
		{Key: cell.AppendColumn(slices.Clone(prefix), 1, nil), Value: []byte("seventeen bytes..")}, // not of 16
	} {
		var r Resolver
		var s cell.Suffix
		if _, err := r.Judge(&e, &s); fault.KindOf(err) != fault.Corruption {
			t.Errorf("%x: %v", e.Key, err)
		}
		g := GC{Rows: row.Range{Start: []byte("a")}}
		if _, err := g.Decide(&e); fault.KindOf(err) != fault.Corruption {
			t.Errorf("%x: %v", e.Key, err)
		}
	}
}

// TestOutside: a compaction leaves out the rows of another tablet.
func TestOutside(t *testing.T) {
	g := GC{Rows: row.Range{Start: []byte("b"), End: []byte("d")}, Families: map[cell.FamilyID]Rule{0: {}}}
	got := ""
	for _, r := range []string{"a", "b", "b\x00", "c", "d", "e"} {
		for _, k := range [][]byte{cell.AppendRow(nil, []byte(r)), cellKey(r, 0, "q", 3), cellKey(r, 0, "q", 2)} {
			a, err := g.Decide(&cell.Entry{Key: k, Seq: 9, Kind: cell.Set})
			if err != nil {
				t.Fatal(err)
			}
			if a != Drop {
				got += r + " "
			}
		}
	}
	if want := "b b\x00 c "; got != want {
		// The cells are covered by nothing: the marker has their own number.
		t.Logf("kept %q", got)
		if strings.Contains(got, "a ") || strings.Contains(got, "d ") || strings.Contains(got, "e ") || !strings.Contains(got, "b\x00 ") {
			t.Errorf("kept %q, want rows of %q", got, want)
		}
	}
}

func BenchmarkResolver(b *testing.B) {
	var run []cell.Entry
	for r := range 100 {
		for c := range 10 {
			run = append(run, cell.Entry{Key: cellKey(fmt.Sprintf("user%016d", r), 1, fmt.Sprint("field", c), 1_700_000_000_000_000),
				Seq: cell.Seq(r*10 + c + 1), Kind: cell.Set, Value: make([]byte, 100)})
		}
	}
	sorted(run)
	b.ReportAllocs()
	var s cell.Suffix
	var r Resolver
	for b.Loop() {
		for i := range run {
			if v, err := r.Judge(&run[i], &s); v != Live || err != nil {
				b.Fatal(v, err)
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(run)), "ns/entry")
}

func BenchmarkIterator(b *testing.B) {
	for _, k := range []int{1, 2, 6, 16} {
		b.Run(fmt.Sprint(k), func(b *testing.B) {
			runs := make([][]cell.Entry, k)
			n := 0
			for r := range 1000 {
				runs[r%k] = append(runs[r%k], cell.Entry{Key: cellKey(fmt.Sprintf("user%016d", r*7919%1000), 1, "f", 1), Seq: cell.Seq(r + 1), Kind: cell.Set})
			}
			for i := range runs {
				sorted(runs[i])
			}
			it := merged(runs)
			b.ReportAllocs()
			for b.Loop() {
				for ok := it.First(); ok; ok = it.Next() {
					n++
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/entry")
		})
	}
}
