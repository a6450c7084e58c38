package query

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/trestledb/trestle/conformance/model"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/analyze"
	"github.com/trestledb/trestle/engine/query/plan"
	"github.com/trestledb/trestle/engine/query/syntax"
	"github.com/trestledb/trestle/engine/query/types"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
)

// storedCatalog has tables of a model.
type storedCatalog map[string]*algebra.Table

func (c storedCatalog) Table(_ context.Context, name string) (*algebra.Table, error) {
	if t := c[name]; t != nil {
		return t, nil
	}
	return nil, fault.New(fault.NotFound, "no table %s", name)
}

func (c storedCatalog) Tables(context.Context) ([]string, error) { return nil, nil }

func (c storedCatalog) Type(context.Context, []string) (*types.Type, error) {
	return nil, fault.New(fault.NotFound, "no such type")
}

// counting counts what is read from a source.
type counting struct {
	*model.Backend
	mu    sync.Mutex
	reads int
	rows  int64
}

func (c *counting) ReadRows(ctx context.Context, req *scan.Request, w scan.Writer) (scan.Stats, error) {
	st, err := c.Backend.ReadRows(ctx, req, w)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reads++
	c.rows += st.RowsSeen
	return st, err
}

// stored makes tables t and u, and k with structured keys.
func stored(t testing.TB) (*counting, storedCatalog) {
	t.Helper()
	b := model.New(model.Options{})
	cat := storedCatalog{}
	r := rand.New(rand.NewPCG(7, 8))
	keys := &algebra.KeySchema{Encoding: algebra.OrderedCode, Fields: []algebra.KeyField{
		{Name: "region", Type: types.StringType, Encoding: algebra.UTF8}, {Name: "id", Type: types.Int64Type, Encoding: algebra.OrderedInt},
		{Name: "tag", Type: types.BytesType, Encoding: algebra.RawBytes}}}
	for _, name := range []string{"t", "u", "k"} {
		s := &schema.Table{Name: "projects/p/instances/i/tables/" + name, Granularity: 1000, Families: map[string]schema.Family{}}
		s.AddFamily(schema.Family{Name: "f"})
		s.AddFamily(schema.Family{Name: "g"})
		s.AddFamily(schema.Family{Name: "n", Aggregate: schema.Sum})
		if name != "u" {
			s.Groups = []schema.Group{{Name: "other", ID: 1}}
			g := s.Families["g"]
			g.Group = 1
			s.Families["g"] = g
		}
		s, err := b.CreateTable(t.Context(), s, [][]byte{[]byte("r03"), []byte("r07")})
		if err != nil {
			t.Fatal(err)
		}
		tab := &algebra.Table{Name: name, FullName: s.Name, Schema: s, Columns: []algebra.TableColumn{{Name: "_key", Type: types.BytesType, Kind: algebra.RowKeyColumn}}}
		if name == "k" {
			tab.Key = keys
			tab.Columns[0].Pseudo = true
			for i, f := range keys.Fields {
				tab.Columns = append(tab.Columns, algebra.TableColumn{Name: f.Name, Type: f.Type, Kind: algebra.KeyColumn, Field: i})
			}
		}
		for _, f := range s.FamilyNames() {
			v := types.BytesType
			if f == "n" {
				v = types.Int64Type
			}
			tab.Columns = append(tab.Columns, algebra.TableColumn{Name: f, Type: types.MapOf(types.BytesType, v), Kind: algebra.FamilyColumn, Family: f})
		}
		cat[name] = tab
		for i := range 120 {
			e := &row.Entry{Key: fmt.Appendf(nil, "r%02d#%d", r.IntN(12), i)}
			if name == "k" {
				key, _ := keys.Encode(nil, []types.Value{types.NewString([]string{"", "eu", "us", "us-east"}[r.IntN(4)]), types.NewInt(int64(r.IntN(20) - 10)),
					types.NewString([]string{"", "a", "b\x00"}[r.IntN(3)])})
				e.Key = key
			}
			set := func(f, q, v string, ts int64) {
				e.Mutations = append(e.Mutations, row.Mutation{Op: row.SetCell, Family: f, Qualifier: []byte(q), Timestamp: ts * 1000, Value: []byte(v)})
			}
			for ts := range int64(1 + r.IntN(3)) {
				if r.IntN(3) > 0 {
					set("f", "a", fmt.Sprint(r.IntN(10)), ts)
				}
				if r.IntN(3) > 0 {
					set("f", "ref", fmt.Sprintf("r%02d#%d", r.IntN(12), r.IntN(120)), ts)
				}
				if r.IntN(2) > 0 {
					set("g", fmt.Sprint("q", r.IntN(4)), fmt.Sprint(r.IntN(100)), ts)
				}
			}
			if r.IntN(2) > 0 || len(e.Mutations) == 0 {
				e.Mutations = append(e.Mutations, row.Mutation{Op: row.AddToCell, Family: "n", Qualifier: []byte("c"), Timestamp: 1000, Input: row.Input{Kind: row.IntInput, Int: int64(r.IntN(9) - 4)}})
			}
			if err := b.MutateRow(t.Context(), s.Name, e); err != nil {
				t.Fatal(err)
			}
		}
	}
	return &counting{Backend: b}, cat
}

var queryParams = map[string]struct {
	t *types.Type
	v types.Value
}{
	"k":    {types.BytesType, types.NewString("r03#7")},
	"lo":   {types.BytesType, types.NewString("r02")},
	"hi":   {types.BytesType, types.NewString("r08")},
	"null": {types.BytesType, types.Null},
	"keys": {types.ArrayOf(types.BytesType), types.NewList([]types.Value{types.NewString("r01#1"), types.NewString("r03#7"), types.Null})},
	"n":    {types.Int64Type, types.NewInt(3)},
	"p":    {types.BytesType, types.NewString("r0%")},
	"x":    {types.StringType, types.NewString("us")},
}

func prepare(t testing.TB, cat algebra.Catalog, text string, o plan.Options) (*Prepared, error) {
	tree, err := syntax.Parse(text)
	if err != nil {
		return nil, err
	}
	declared := map[string]*types.Type{}
	for n, p := range queryParams {
		declared[n] = p.t
	}
	stmt, err := analyze.Statement(t.Context(), cat, tree, text, declared)
	if err != nil {
		return nil, err
	}
	return newPrepared(text, stmt, o), nil
}

func request() Request {
	values := map[string]types.Value{}
	for n, p := range queryParams {
		values[n] = p.v
	}
	return Request{Params: algebra.Params{Values: values, Now: time.Unix(1_700_000_000, 0)}}
}

// result runs a query and returns its rows as text.
func result(t testing.TB, e *Engine, p *Prepared) ([]string, error) {
	rows, err := e.Execute(t.Context(), p, request())
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []string
	for {
		b, err := rows.Next(t.Context())
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		out = append(out, batchText(p, b)...)
	}
}

// batchText returns rows of p as text.
func batchText(p *Prepared, b *types.Batch) []string {
	var out []string
	for i := range b.Len {
		if b.Sel != nil && !slices.Contains(b.Sel, int32(i)) {
			continue
		}
		var cols []string
		for k, v := range b.Cols {
			cols = append(cols, valueText(p.Columns()[k].Type, v.Value(i)))
		}
		out = append(out, strings.Join(cols, " | "))
	}
	return out
}

func valueText(t *types.Type, v types.Value) string {
	if !v.Valid {
		return "NULL"
	}
	switch t.Kind {
	case types.String, types.Bytes:
		return fmt.Sprintf("%q", v.Str)
	case types.Float64:
		return fmt.Sprint(v.Float)
	case types.Array, types.Map, types.Struct:
		var parts []string
		for i, e := range v.List {
			et := t.Elem
			if t.Kind == types.Struct {
				et = t.Fields[i].Type
			} else if t.Kind == types.Map && i%2 == 0 {
				et = t.Key
			}
			parts = append(parts, valueText(et, e))
		}
		return "[" + strings.Join(parts, " ") + "]"
	}
	return fmt.Sprint(v.Int)
}

// pushdownQueries have the same result with and without a plan. Those with ORDER BY
// have it in the same order.
var pushdownQueries = []string{
	"SELECT * FROM t",
	"SELECT _key FROM t",
	"SELECT COUNT(*) FROM t",
	"SELECT COUNT(f['a']), COUNT(*) FROM t",
	"SELECT COUNT(f['a']) FROM t",
	"SELECT SUM(n['c']), MIN(n['c']), MAX(f['a']) FROM t",
	"SELECT _key, f['a'] FROM t",
	"SELECT f['a'], f['none'], g FROM t WHERE f['a'] IS NOT NULL",
	"SELECT _key FROM t WHERE f['a'] IS NULL",
	"SELECT _key FROM t WHERE f['a'] = '3' OR g['q1'] = '50'",
	"SELECT _key FROM t WHERE f['a'] = '3' OR g['q1'] IS NULL",
	"SELECT _key FROM t WHERE NOT (f['a'] = '3')",
	"SELECT _key FROM t WHERE COALESCE(f['a'], '3') = '3'",
	"SELECT _key, WRITE_TIMESTAMP(f, 'a') FROM t",
	"SELECT _key FROM t WHERE MAP_CONTAINS_KEY(f, 'a')",
	"SELECT _key, MAP_CONTAINS_KEY(g, 'q1') FROM t",
	"SELECT _key FROM t WHERE _key = @k",
	"SELECT f['a'] FROM t WHERE _key = @k",
	"SELECT f['none'] FROM t WHERE _key = @k",
	"SELECT * FROM t WHERE _key = @null",
	"SELECT * FROM t WHERE _key = 'r03#7' OR _key IN ('r01#1', 'r04#6')",
	"SELECT _key FROM t WHERE _key IN UNNEST(@keys)",
	"SELECT _key FROM t WHERE _key NOT IN UNNEST(@keys)",
	"SELECT _key FROM t WHERE _key BETWEEN @lo AND @hi AND f['a'] > '4'",
	"SELECT _key FROM t WHERE _key NOT BETWEEN @lo AND @hi",
	"SELECT _key FROM t WHERE _key >= 'r02' AND _key < 'r03' OR _key > 'r10'",
	"SELECT _key FROM t WHERE 'r05' <= _key AND 'r06' > _key",
	"SELECT _key FROM t WHERE _key LIKE 'r0_#%'",
	"SELECT _key FROM t WHERE _key LIKE 'r05%'",
	"SELECT _key FROM t WHERE _key LIKE @p",
	"SELECT _key FROM t WHERE STARTS_WITH(_key, 'r11')",
	"SELECT _key FROM t WHERE REGEXP_CONTAINS(_key, '^r0[35]#')",
	"SELECT _key FROM t WHERE REGEXP_CONTAINS(_key, '#7$')",
	"SELECT _key FROM t WHERE CAST(_key AS STRING) > 'r10'",
	"SELECT _key FROM t WHERE _key < 'r02' AND _key > 'r05'",
	"SELECT _key FROM t WHERE FALSE",
	"SELECT _key FROM t WHERE _key > 'r01' AND TRUE",
	"SELECT _key, f['a'] FROM t ORDER BY _key",
	"SELECT _key, f['a'] FROM t ORDER BY _key DESC",
	"SELECT _key FROM t ORDER BY _key DESC LIMIT 5",
	"SELECT _key FROM t WHERE _key < 'r06' ORDER BY _key DESC LIMIT 5 OFFSET 2",
	"SELECT _key FROM t WHERE f['a'] = '3' ORDER BY _key LIMIT 3",
	"SELECT _key FROM t ORDER BY _key LIMIT @n",
	"SELECT MIN(_key), MIN(_key) FROM t",
	"SELECT MAX(_key) FROM t WHERE _key < 'r05'",
	"SELECT MAX(_key), MIN(_key) FROM t",
	"SELECT MAX(_key) FROM t WHERE _key < 'a'",
	"SELECT MIN(_key) FROM t WHERE f['a'] = '9'",
	"SELECT f['a'] AS a, COUNT(*), SUM(n['c']) FROM t GROUP BY a ORDER BY a",
	"SELECT f['a'] AS a, COUNT(*) FROM t GROUP BY a HAVING a > '5' AND COUNT(*) > 1 ORDER BY a",
	"SELECT DISTINCT f['a'] FROM t ORDER BY 1",
	"SELECT * FROM (SELECT _key AS k, f['a'] AS a, g FROM t) WHERE k > 'r05' AND a = '4'",
	"SELECT k FROM (SELECT _key AS k, CONCAT(f['a'], 'x') AS a FROM t) WHERE a = '4x' AND k LIKE 'r0%'",
	"WITH w AS (SELECT _key AS k, f['a'] AS a FROM t) SELECT a FROM w WHERE k = @k",
	"WITH w AS (SELECT _key AS k, f AS m FROM t) SELECT m['a'] FROM w WHERE k < 'r03'",
	"WITH w AS (SELECT _key AS k, f['a'] AS a FROM t) SELECT COUNT(*) FROM w AS x JOIN w AS y ON x.a = y.a",
	"SELECT COUNT(*) FROM t, u WHERE t._key = u._key",
	"SELECT t._key, u.f['a'] FROM t JOIN u ON t.f['ref'] = u._key WHERE t._key < 'r05' AND u._key > 'r02'",
	"SELECT t._key, u.f['a'], u._key FROM t LEFT JOIN u ON t.f['ref'] = u._key AND u.f['a'] > '3'",
	"SELECT t._key, u.f['a'] FROM t LEFT JOIN u ON t.f['ref'] = u._key WHERE u.f['a'] > '3'",
	"SELECT t._key, u.f['a'] FROM t LEFT JOIN u ON t.f['ref'] = u._key WHERE u.f['a'] IS NULL AND t._key > 'r06'",
	"SELECT t._key, MAP_CONTAINS_KEY(u.f, 'a') FROM t LEFT JOIN u ON t.f['ref'] = u._key",
	"SELECT t._key, u._key FROM t FULL JOIN u ON t.f['ref'] = u._key AND t._key < 'r03' WHERE u._key < 'r04'",
	"SELECT t._key, u._key FROM t RIGHT JOIN u ON t.f['ref'] = u._key WHERE t._key < 'r04'",
	"SELECT _key FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u._key = t.f['ref'] AND u.f['a'] > '2')",
	"SELECT _key FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u._key = t.f['ref'])",
	"SELECT _key FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u._key > t._key AND u._key LIKE 'r11%')",
	"SELECT _key FROM t WHERE EXISTS (SELECT 1 FROM u WHERE _key = 'r00#1')",
	"SELECT _key FROM t WHERE f['ref'] IN (SELECT _key FROM u WHERE f['a'] = '3')",
	"SELECT _key FROM t WHERE f['ref'] NOT IN (SELECT _key FROM u WHERE f['a'] > '3')",
	"SELECT _key, (SELECT COUNT(*) FROM u WHERE u.f['ref'] = t._key) FROM t",
	"SELECT _key, (SELECT u.f['a'] FROM u WHERE u._key = t.f['ref']) FROM t",
	"SELECT _key, ARRAY(SELECT u.f['a'] FROM u WHERE u._key < t._key ORDER BY u._key LIMIT 2) FROM t",
	"SELECT _key, e.key, e.value FROM t, UNNEST(MAP_ENTRIES(g)) AS e WHERE _key < 'r04' AND e.value > '3'",
	"SELECT _key, e.key FROM t LEFT JOIN UNNEST(MAP_ENTRIES(g)) AS e WHERE _key < 'r04'",
	"SELECT _key FROM t WHERE _key < 'r01' UNION ALL SELECT _key FROM u WHERE _key > 'r10'",
	"SELECT * FROM (SELECT _key AS k, f['a'] AS a FROM t UNION ALL SELECT _key, f['ref'] FROM u) WHERE k < 'r03' AND a > '4'",
	"SELECT k FROM (SELECT _key AS k, f['a'] AS a FROM t UNION ALL SELECT _key, f['ref'] FROM u) WHERE k < 'r03'",
	"SELECT k FROM (SELECT f['a'] AS k FROM t EXCEPT DISTINCT SELECT f['a'] FROM u WHERE _key < 'r02') WHERE k > '2'",
	"SELECT k FROM (SELECT _key AS k FROM t INTERSECT DISTINCT SELECT _key FROM u) WHERE k < 'r06'",
	"SELECT COUNT(*) FROM (SELECT _key FROM t UNION ALL SELECT _key FROM u LIMIT 100)",
	"SELECT _key, ROW_NUMBER() OVER (PARTITION BY f['a'] ORDER BY _key) AS r FROM t WHERE _key < 'r06'",
	"SELECT _key, r FROM (SELECT _key, ROW_NUMBER() OVER (PARTITION BY f['a'] ORDER BY _key) AS r FROM t) WHERE r = 1 AND _key > 'r01'",
	"SELECT _key, f['a'] FROM t(with_history => TRUE)",
	"SELECT _key, f, n FROM t(with_history => TRUE, latest_n => 2) WHERE f['a'] IS NOT NULL",
	"SELECT _key, f FROM t(as_of => TIMESTAMP_MILLIS(1))",
	"SELECT _key, f['a'] FROM t(with_history => TRUE, after => TIMESTAMP_MILLIS(0)) WHERE _key < 'r03'",
	"SELECT _key, _timestamp, f['a'] FROM UNPACK(t(with_history => TRUE)) WHERE _key < 'r02'",
	"SELECT _key, _timestamp FROM UNPACK(t(with_history => TRUE)) WHERE f['a'] > '4'",
	"SELECT COUNT(*) FROM UNPACK(t(with_history => TRUE)) LIMIT 3",
	"SELECT region, id, tag FROM k",
	"SELECT region, id, f['a'] FROM k WHERE region = 'us'",
	"SELECT region, id FROM k WHERE region = @x AND id > -3 AND id <= @n",
	"SELECT region, id FROM k WHERE region IN ('us', '') AND id = 3",
	"SELECT region, id, tag FROM k WHERE region = '' AND id BETWEEN -5 AND 5 AND tag = ''",
	"SELECT region, id, tag FROM k WHERE region > 'eu' AND tag > 'a'",
	"SELECT region, id, tag FROM k WHERE region LIKE 'us%' AND id = 2",
	"SELECT region, id FROM k WHERE (region = 'us' AND id < 0) OR (region = 'eu' AND id > 5)",
	"SELECT region, id, tag FROM k WHERE region = 'us' AND (id = 1 OR id = 2 OR id IN (4, 5)) AND STARTS_WITH(tag, 'b')",
	"SELECT region, COUNT(*) FROM k WHERE id < 5 GROUP BY region ORDER BY region",
	"SELECT _key FROM k WHERE region = 'eu' ORDER BY _key DESC",
	"SELECT COUNT(*) FROM k WHERE id = 3",
	"SELECT region, id FROM k ORDER BY region, id, tag",
	"SELECT region, id, f['a'] FROM k ORDER BY region DESC, id DESC, tag DESC LIMIT 7",
	"SELECT region, id, tag FROM k WHERE id > 0 ORDER BY region, id, tag, f['a']",
	"SELECT region, id, tag FROM k ORDER BY region, id DESC, tag",
	"SELECT id, region, tag FROM k ORDER BY id, region, tag",
	"SELECT t._key, u._key FROM t JOIN u ON t.f['ref'] = u.f['ref'] WHERE t._key < 'r04'",
}

// A cutSource has tables of large tablets.
type cutSource struct{ Source }

func (c cutSource) SampleRowKeys(ctx context.Context, table string, within row.Range, emit func(scan.Sample) error) error {
	return c.Source.SampleRowKeys(ctx, table, within, func(s scan.Sample) error {
		s.Offset += scan.MinCutBytes
		return emit(s)
	})
}

func (cutSource) TabletCuts(context.Context, string, row.Range) ([][]byte, error) {
	return [][]byte{[]byte("r01"), []byte("r03#5"), []byte("r07"), []byte("us")}, nil
}

// TestPushdown compares the results of plans with those of the same queries without.
func TestPushdown(t *testing.T) {
	src, cat := stored(t)
	for _, e := range []*Engine{New(src, Options{Parallel: 1}), New(src, Options{Parallel: 3}), New(cutSource{src}, Options{Parallel: 6})} {
		for _, q := range pushdownQueries {
			plain, err := prepare(t, cat, q, plan.Options{Plain: true})
			if err != nil {
				t.Errorf("%s: %v", q, err)
				continue
			}
			want, err := result(t, e, plain)
			if err != nil {
				t.Errorf("%s: %v", q, err)
				continue
			}
			p, err := prepare(t, cat, q, plan.Options{})
			if err != nil {
				t.Fatal(err)
			}
			got, err := result(t, e, p)
			if err != nil {
				t.Errorf("%s: with a plan: %v", q, err)
				continue
			}
			if !p.Statement.Ordered {
				slices.Sort(got)
				slices.Sort(want)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: got %d rows, want %d\n got %.300q\nwant %.300q", q, len(got), len(want), got, want)
				text, _ := plan.Explain(p.plan, plan.Explanation{})
				for _, l := range text {
					t.Logf("%s %s", l[0].Str, l[1].Str)
				}
			}
			if used, _ := e.Used(); used != 0 {
				t.Fatalf("%s: %d bytes are still taken", q, used)
			}
		}
	}
}

// TestReadsParts: a table of fewer tablets than are read at a time is read in parts of them.
func TestReadsParts(t *testing.T) {
	src, cat := stored(t)
	p, err := prepare(t, cat, "SELECT COUNT(*) FROM t", plan.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for parallel, reads := range map[int]int{1: 1, 3: 3, 4: 6} {
		src.reads = 0
		got, err := result(t, New(cutSource{src}, Options{Parallel: parallel}), p)
		if err != nil {
			t.Fatal(err)
		}
		if want == nil {
			want = got
		}
		if src.reads != reads || !slices.Equal(got, want) {
			t.Errorf("%d at a time: %d reads, want %d; %v, want %v", parallel, src.reads, reads, got, want)
		}
	}
}

// TestReadsAgainWhole: what is read for each row of others is read by tablets only.
func TestReadsAgainWhole(t *testing.T) {
	src, cat := stored(t)
	p, err := prepare(t, cat, "SELECT _key, (SELECT COUNT(*) FROM u WHERE u._key > t._key) FROM t WHERE _key < 'r01'", plan.Options{})
	if err != nil {
		t.Fatal(err)
	}
	src.reads = 0
	got, err := result(t, New(cutSource{src}, Options{Parallel: 4}), p)
	if err != nil {
		t.Fatal(err)
	}
	if want := 1 + 6 + 3*(len(got)-1); len(got) < 3 || src.reads != want {
		t.Errorf("%d rows: %d reads, want %d", len(got), src.reads, want)
	}
}

// TestReadsNoMore counts how often a table is asked, and the rows that are read.
func TestReadsNoMore(t *testing.T) {
	src, cat := stored(t)
	e := New(src, Options{Parallel: 1})
	for _, c := range []struct {
		query string
		reads int
		rows  int64
	}{
		{"SELECT * FROM t WHERE _key = @k", 1, 0},
		{"SELECT f['a'] FROM t WHERE _key = @k", 2, 0}, // nor is there a row without the column
		{"SELECT _key FROM t WHERE _key = 'r01#79'", 1, 1},
		{"SELECT * FROM t WHERE _key < 'a' AND _key > 'b'", 0, 0},
		{"SELECT * FROM t WHERE _key = @null", 0, 0},
		{"SELECT * FROM t WHERE _key IN UNNEST(@keys) AND _key > 'z'", 0, 0},
		{"SELECT * FROM t WHERE FALSE", 0, 0},
		{"SELECT * FROM t WHERE f['a'] = '3' AND NULL", 0, 0},
		{"SELECT _key FROM t LIMIT 5", 1, 5},
		{"SELECT _key FROM t ORDER BY _key DESC LIMIT 5", 1, 5},
		{"SELECT _key FROM t LIMIT 0", 0, 0},
		{"SELECT MIN(_key) FROM t", 1, 1},
		{"SELECT MAX(_key) FROM t WHERE _key < 'r05'", 1, 1},
		{"SELECT EXISTS(SELECT 1 FROM t)", 1, 1},
		{"SELECT COUNT(*) FROM t WHERE _key LIKE 'zz%'", 1, 0},
		{"SELECT COUNT(*) FROM t WHERE _key BETWEEN 'r01#79' AND 'r01#79'", 1, 1},
	} {
		p, err := prepare(t, cat, c.query, plan.Options{})
		if err != nil {
			t.Errorf("%s: %v", c.query, err)
			continue
		}
		src.reads, src.rows = 0, 0
		if _, err := result(t, e, p); err != nil {
			t.Errorf("%s: %v", c.query, err)
		}
		if src.reads != c.reads || src.rows != c.rows {
			t.Errorf("%s: %d reads of %d rows, want %d of %d", c.query, src.reads, src.rows, c.reads, c.rows)
		}
	}
}
