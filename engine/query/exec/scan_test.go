package exec

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/trestledb/trestle/conformance/model"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

const scanTable = "projects/p/instances/i/tables/t"

// historyType is the type of a value of a family with its history.
func historyType(v *types.Type) *types.Type {
	return types.ArrayOf(types.StructOf(types.Field{Name: "timestamp", Type: types.TimestampType}, types.Field{Name: "value", Type: v}))
}

// storedTable makes a table of two plain families and one of sums in a model.
func storedTable(t testing.TB, splits ...[]byte) (*model.Backend, *algebra.Table) {
	t.Helper()
	b := model.New(model.Options{})
	s := &schema.Table{Name: scanTable, Granularity: 1, Families: map[string]schema.Family{}}
	s.AddFamily(schema.Family{Name: "a"})
	s.AddFamily(schema.Family{Name: "b"})
	s.AddFamily(schema.Family{Name: "n", Aggregate: schema.Sum})
	s, err := b.CreateTable(t.Context(), s, splits)
	if err != nil {
		t.Fatal(err)
	}
	return b, describe(s)
}

func describe(s *schema.Table) *algebra.Table {
	out := &algebra.Table{Name: "t", FullName: s.Name, Schema: s, Columns: []algebra.TableColumn{{Name: "_key", Type: types.BytesType, Kind: algebra.RowKeyColumn}}}
	for _, name := range s.FamilyNames() {
		v := types.BytesType
		if a := s.Families[name].Aggregate; a != schema.NotAggregate && a != schema.HLL {
			v = types.Int64Type
		}
		out.Columns = append(out.Columns, algebra.TableColumn{Name: name, Type: types.MapOf(types.BytesType, v), Kind: algebra.FamilyColumn, Family: name})
	}
	return out
}

// use returns a column of a Scan: spec is _key, a family, family:qualifier, and behind
// it ? for existence or @ for the time it was written.
func use(t *algebra.Table, h *algebra.History, id int, spec string) algebra.ScanColumn {
	u := algebra.ScanColumn{}
	if spec == "_timestamp" {
		u.Column, u.Index = algebra.Column{ID: algebra.ColumnID(id), Type: types.TimestampType}, algebra.TimestampColumn
		return u
	}
	if s, ok := strings.CutSuffix(spec, "?"); ok {
		spec, u.Existence = s, true
	}
	if s, ok := strings.CutSuffix(spec, "@"); ok {
		spec, u.WriteTime = s, true
	}
	name, qualifier, one := strings.Cut(spec, ":")
	u.Index = slices.IndexFunc(t.Columns, func(c algebra.TableColumn) bool { return c.Name == name })
	typ := t.Columns[u.Index].Type
	if h != nil && h.WithHistory && !h.Unpack && typ.Kind == types.Map {
		typ = types.MapOf(typ.Key, historyType(typ.Elem))
	}
	if one {
		u.Qualifier, typ = &qualifier, typ.Elem
	}
	if u.WriteTime {
		typ = types.TimestampType
	}
	u.Column = algebra.Column{ID: algebra.ColumnID(id), Name: spec, Type: typ}
	return u
}

func scanOf(t *algebra.Table, h *algebra.History, specs ...string) *algebra.Scan {
	s := &algebra.Scan{Table: t, History: h}
	for i, spec := range specs {
		s.Uses = append(s.Uses, use(t, h, i+1, spec))
	}
	return s
}

func newTestExecution(ctx context.Context, s Source, parallel int) *execution {
	x := &execution{Config: Config{Source: s, Pool: NewPool(Limits{}), Parallel: parallel}, ctx: ctx, stats: map[algebra.Rel]*algebra.Stats{}}
	x.account.pool = x.Pool
	return x
}

// rowsOf returns the rows of a Scan, each as text.
func rowsOf(t testing.TB, x *execution, s *algebra.Scan) []string {
	t.Helper()
	op, err := newScan(x, s, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := op.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := op.Close(); err != nil {
			t.Error(err)
		}
		if used, _ := x.Pool.Used(); used != 0 {
			t.Errorf("%d bytes of memory are still taken", used)
		}
	}()
	var out []string
	for {
		b, err := op.Next(t.Context())
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		if b.Len == 0 || b.Len > types.BatchRows {
			t.Fatalf("a batch of %d rows", b.Len)
		}
		for i := range b.Len {
			var cells []string
			for k, v := range b.Cols {
				if s.Uses[k].Existence {
					cells = append(cells, fmt.Sprint(!v.IsNull(i)))
				} else {
					cells = append(cells, show(v.Type, v.Value(i)))
				}
			}
			out = append(out, strings.Join(cells, " "))
		}
	}
}

func show(t *types.Type, v types.Value) string {
	if !v.Valid {
		return "NULL"
	}
	switch t.Kind {
	case types.Int64, types.Timestamp:
		return fmt.Sprint(v.Int)
	case types.Bytes:
		return fmt.Sprintf("%q", v.Str)
	}
	var parts []string
	for i, e := range v.List {
		switch {
		case t.Kind == types.Struct:
			parts = append(parts, show(t.Fields[i].Type, e))
		case t.Kind == types.Array:
			parts = append(parts, show(t.Elem, e))
		case i%2 == 0:
			parts = append(parts, show(t.Key, e)+":"+show(t.Elem, v.List[i+1]))
		}
	}
	return "[" + strings.Join(parts, ",") + "]"
}

// A storedCell is a cell as the tests know it.
type storedCell struct {
	family, qualifier string
	timestamp         int64
	value             string
}

// fillTable writes n random rows and returns them by key, cells in read order.
func fillTable(t testing.TB, b *model.Backend, r *rand.Rand, n int) map[string][]storedCell {
	t.Helper()
	rows := map[string][]storedCell{}
	for range n {
		key := fmt.Sprintf("k%05d\x00%d", r.IntN(10*n), r.IntN(2))
		if rows[key] != nil {
			continue
		}
		e := &row.Entry{Key: []byte(key)}
		for range 1 + r.IntN(8) {
			c := storedCell{[]string{"a", "b"}[r.IntN(2)], fmt.Sprint("q", r.IntN(3)), int64(r.IntN(5) * 1000), fmt.Sprint(r.IntN(1000))}
			if slices.ContainsFunc(rows[key], func(o storedCell) bool {
				return o.family == c.family && o.qualifier == c.qualifier && o.timestamp == c.timestamp
			}) {
				continue
			}
			rows[key] = append(rows[key], c)
			e.Mutations = append(e.Mutations, row.Mutation{Op: row.SetCell, Family: c.family, Qualifier: []byte(c.qualifier), Timestamp: c.timestamp, Value: []byte(c.value)})
		}
		if r.IntN(3) == 0 {
			v := int64(r.IntN(100) - 50)
			rows[key] = append(rows[key], storedCell{"n", "sum", 1000, string(binary.BigEndian.AppendUint64(nil, uint64(v)))})
			e.Mutations = append(e.Mutations, row.Mutation{Op: row.AddToCell, Family: "n", Qualifier: []byte("sum"), Timestamp: 1000, Input: row.Input{Kind: row.IntInput, Int: v}})
		}
		slices.SortFunc(rows[key], func(a, b storedCell) int {
			if c := strings.Compare(a.family+"\x00"+a.qualifier, b.family+"\x00"+b.qualifier); c != 0 {
				return c
			}
			return int(b.timestamp - a.timestamp)
		})
		if err := b.MutateRow(t.Context(), scanTable, e); err != nil {
			t.Fatal(err)
		}
	}
	return rows
}

// naive evaluates a Scan over rows.
func naive(s *algebra.Scan, rows map[string][]storedCell, times cell.TimeRange, versions int) []string {
	var out []string
	var keys []string
	for k := range rows {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, key := range keys {
		var cells []storedCell
		n := map[string]int{}
		for _, c := range rows[key] {
			if !times.Contains(c.timestamp) {
				continue
			}
			if n[c.family+":"+c.qualifier]++; versions == 0 || n[c.family+":"+c.qualifier] <= versions {
				cells = append(cells, c)
			}
		}
		if len(cells) == 0 {
			continue
		}
		if s.History == nil || !s.History.Unpack {
			out = append(out, naiveRow(s, key, cells, 0))
			continue
		}
		var stamps []int64
		for _, c := range cells {
			stamps = append(stamps, c.timestamp)
		}
		slices.Sort(stamps)
		for _, ts := range slices.Backward(slices.Compact(stamps)) {
			var at []storedCell
			for _, c := range cells {
				if c.timestamp == ts {
					at = append(at, c)
				}
			}
			out = append(out, naiveRow(s, key, at, ts))
		}
	}
	return out
}

func naiveRow(s *algebra.Scan, key string, cells []storedCell, ts int64) string {
	history := s.History != nil && s.History.WithHistory && !s.History.Unpack
	var out []string
	for _, u := range s.Uses {
		if u.Index == algebra.TimestampColumn {
			out = append(out, fmt.Sprint(ts))
			continue
		}
		c := s.Table.Columns[u.Index]
		if c.Kind == algebra.RowKeyColumn {
			if u.Existence {
				out = append(out, "true")
			} else {
				out = append(out, fmt.Sprintf("%q", key))
			}
			continue
		}
		text := func(v string) string {
			if c.Family == "n" {
				return fmt.Sprint(int64(binary.BigEndian.Uint64([]byte(v))))
			}
			return fmt.Sprintf("%q", v)
		}
		var entries []string
		for i := 0; i < len(cells); {
			k := i
			for k < len(cells) && cells[k].family == cells[i].family && cells[k].qualifier == cells[i].qualifier {
				k++
			}
			if cells[i].family == c.Family {
				newest := cells[i]
				var list []string
				for _, v := range cells[i:k] {
					list = append(list, fmt.Sprintf("[%d,%s]", v.timestamp, text(v.value)))
				}
				v := text(newest.value)
				if history {
					v = "[" + strings.Join(list, ",") + "]"
				}
				switch {
				case u.Qualifier == nil:
					entries = append(entries, fmt.Sprintf("%q:%s", newest.qualifier, v))
				case *u.Qualifier != newest.qualifier:
				case u.Existence:
					entries = append(entries, "true")
				case u.WriteTime:
					entries = append(entries, fmt.Sprint(newest.timestamp))
				default:
					entries = append(entries, v)
				}
			}
			i = k
		}
		switch {
		case u.Qualifier == nil && u.Existence:
			out = append(out, "true")
		case u.Qualifier == nil:
			out = append(out, "["+strings.Join(entries, ",")+"]")
		case len(entries) > 0:
			out = append(out, entries[0])
		case u.Existence:
			out = append(out, "false")
		default:
			out = append(out, "NULL")
		}
	}
	return strings.Join(out, " ")
}

func literal(t *types.Type, v types.Value) algebra.Expr { return &algebra.Literal{T: t, Value: v} }

func TestScan(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	b, table := storedTable(t, []byte("k01"), []byte("k02500"))
	rows := fillTable(t, b, r, 1500)
	ts := func(n int64) algebra.Expr { return literal(types.TimestampType, types.NewInt(n)) }
	all := cell.AllTime
	for _, c := range []struct {
		specs    string
		history  *algebra.History
		times    cell.TimeRange
		versions int
	}{
		{"", nil, all, 1},
		{"_key", nil, all, 1},
		{"_key a:q1", nil, all, 1},
		{"a:q1", nil, all, 1},
		{"b:q2 a:q1 a:q0 b:q0", nil, all, 1},
		{"a:q1 a:q1@ a:q1? a:none", nil, all, 1},
		{"_key? a? b:q0@ n:sum?", nil, all, 1},
		{"n:sum _key n:sum@", nil, all, 1},
		{"_key a b n", nil, all, 1},
		{"b a:q2 b:q1", nil, all, 1},
		{"n", nil, all, 1},
		{"_key a", &algebra.History{AsOf: ts(2000)}, cell.TimeRange{End: 2001}, 1},
		{"_key a b n a:q0", &algebra.History{WithHistory: true}, all, 0},
		{"_key a:q0 n:sum", &algebra.History{WithHistory: true, LatestN: literal(types.Int64Type, types.NewInt(2))}, all, 2},
		{"a b:q1", &algebra.History{WithHistory: true, After: ts(1000), BeforeOrEqual: ts(3000)}, cell.TimeRange{Start: 1001, End: 3001}, 0},
		{"_key _timestamp a b:q1", &algebra.History{WithHistory: true, Unpack: true}, all, 0},
		{"_timestamp", &algebra.History{WithHistory: true, Unpack: true, AfterOrEqual: ts(2000)}, cell.TimeRange{Start: 2000, End: all.End}, 0},
		{"_key a:q1? b n", &algebra.History{WithHistory: true, Unpack: true, LatestN: literal(types.Int64Type, types.NewInt(1))}, all, 1},
	} {
		s := scanOf(table, c.history, strings.Fields(c.specs)...)
		want := naive(s, rows, c.times, c.versions)
		for _, parallel := range []int{0, 3} {
			x := newTestExecution(t.Context(), b, parallel)
			s.Access = &algebra.Access{Unordered: parallel > 0}
			got := rowsOf(t, x, s)
			if parallel > 0 {
				slices.Sort(got)
				slices.Sort(want)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%q, parallel %d: got %d rows, want %d", c.specs, parallel, len(got), len(want))
				for i := range min(len(got), len(want)) {
					if got[i] != want[i] {
						t.Errorf("row %d is %s, want %s", i, got[i], want[i])
						break
					}
				}
			}
		}
	}
}

// TestScanCancel sees that a scan ends, and frees what it has, wherever it is left.
func TestScanCancel(t *testing.T) {
	b, table := storedTable(t)
	fillTable(t, b, rand.New(rand.NewPCG(3, 4)), 12000)
	for _, batches := range []int{0, 1, 3} {
		x := newTestExecution(t.Context(), b, 1)
		op, err := newScan(x, scanOf(table, nil, "_key", "a"), nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		if err := op.Open(ctx); err != nil {
			t.Fatal(err)
		}
		for range batches {
			if _, err := op.Next(ctx); err != nil {
				t.Fatal(err)
			}
		}
		cancel()
		for range 100 {
			if _, err = op.Next(ctx); err != nil {
				break
			}
		}
		if err != context.Canceled {
			t.Errorf("after %d batches the error is %v", batches, err)
		}
		if err := op.Close(); err != nil {
			t.Error(err)
		}
		if used, _ := x.Pool.Used(); used != 0 {
			t.Errorf("%d bytes of memory are still taken", used)
		}
	}
}

func TestCutRanges(t *testing.T) {
	rg := func(s, e string) row.Range { return row.Range{Start: []byte(s), End: []byte(e)} }
	for _, c := range []struct {
		all  []row.Range
		ends string
		want string
	}{
		{[]row.Range{rg("", "")}, "", "[,)"},
		{[]row.Range{rg("", "")}, "c f", "[,c) | [c,f) | [f,)"},
		{[]row.Range{rg("a", "b"), rg("d", "g")}, "c f", "[a,b) | [d,f) | [f,g)"},
		{[]row.Range{rg("a", "b"), rg("bb", "c")}, "c f", "[a,b) [bb,c)"},
		{nil, "c", ""},
	} {
		var ends [][]byte
		for _, e := range strings.Fields(c.ends) {
			ends = append(ends, []byte(e))
		}
		var parts []string
		for _, p := range cutRanges(c.all, ends) {
			var list []string
			for _, r := range p {
				list = append(list, fmt.Sprintf("[%s,%s)", r.Start, r.End))
			}
			parts = append(parts, strings.Join(list, " "))
		}
		if got := strings.Join(parts, " | "); got != c.want {
			t.Errorf("%v cut by %q is %s, want %s", c.all, c.ends, got, c.want)
		}
	}
}

func TestArena(t *testing.T) {
	var a arena
	r := rand.New(rand.NewPCG(5, 6))
	for range 3 {
		var want [][]byte
		var got []string
		for range 500 {
			b := bytes.Repeat([]byte{byte(r.IntN(256))}, r.IntN(3000))
			want, got = append(want, b), append(got, a.text(b))
		}
		for i := range want {
			if got[i] != string(want[i]) {
				t.Fatalf("text %d has changed", i)
			}
		}
		a.reset()
		if len(a.full) != 0 || a.held != cap(a.now) || a.used != 0 {
			t.Fatalf("after reset: %d chunks, %d bytes held, %d used", 1+len(a.full), a.held, a.used)
		}
	}
}

// TestSinkBeginsEmpty: a reader that begins late may take a batch that another has filled.
func TestSinkBeginsEmpty(t *testing.T) {
	b, tab := storedTable(t)
	x := newTestExecution(t.Context(), b, 2)
	l, q := newScanLayout(scanOf(tab, nil, "a:x"), 4), newScanQueue()
	first := newScanSink(t.Context(), l, q, x.share("Scan"))
	first.StartRow([]byte("1"))
	first.Cell(&row.Cell{Family: "a", Qualifier: []byte("x"), Value: []byte("value")})
	if _, err := first.EndRow(); err != nil {
		t.Fatal(err)
	}
	if err := first.end(); err != nil {
		t.Fatal(err)
	}
	q.free, q.ready = append(q.free, q.ready...), nil
	late := newScanSink(t.Context(), l, q, x.share("Scan"))
	late.StartRow([]byte("2"))
	if _, err := late.EndRow(); err != nil {
		t.Fatal(err)
	}
	if err := late.end(); err != nil {
		t.Fatal(err)
	}
	if got := q.ready[0].batch; got.Len != 1 || !got.Cols[0].IsNull(0) {
		t.Errorf("%d rows, the first has %q", got.Len, got.Cols[0].Strs[0])
	}
}
