package exec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
	"github.com/trestledb/trestle/engine/row"
)

// rest runs a statement behind a position, and returns its rows and the positions behind
// each of its batches, with the number of rows so far.
func rest(t *testing.T, s Source, stmt *algebra.Statement, from []byte) (rows [][]types.Value, at map[int][]byte) {
	t.Helper()
	pool := NewPool(Limits{})
	r, err := Query(t.Context(), Config{Source: s, Pool: pool, Parallel: 4, Resume: from}, stmt.Query, stmt.Columns)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	at = map[int][]byte{}
	for {
		b, err := r.Next(t.Context())
		if errors.Is(err, io.EOF) {
			return rows, at
		}
		if err != nil {
			t.Fatal(err)
		}
		for k := range b.Rows() {
			var list []types.Value
			for _, v := range b.Cols {
				list = append(list, v.Value(rowOf(b, k)).Clone())
			}
			rows = append(rows, list)
		}
		at[len(rows)] = r.Position()
	}
}

func mutate(t *testing.T, s Source, c tables, sql string) (int64, error) {
	t.Helper()
	stmt := prepare(t, c, sql, false)
	n, _, err := Mutate(t.Context(), Config{Source: s, Pool: NewPool(Limits{})}, stmt.Mutation)
	return n, err
}

func TestResume(t *testing.T) {
	b, table := storedTable(t, []byte("k1000"), []byte("k2000"))
	c := tables{"t": table}
	var entries []row.Entry
	for i := range 3000 {
		entries = append(entries, row.Entry{Key: fmt.Appendf(nil, "k%04d", i), Mutations: []row.Mutation{
			{Op: row.SetCell, Family: "a", Qualifier: []byte("q"), Timestamp: 1, Value: fmt.Append(nil, i)}}})
	}
	if err := b.MutateRows(t.Context(), table.FullName, entries, func(int, error) {}); err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		"SELECT _key, a['q'] FROM t",
		"SELECT a['q'] FROM t WHERE _key >= b'k0500' AND a['q'] != b'700'",
		"SELECT _key FROM t LIMIT 1700 OFFSET 600",
		"SELECT _key, e FROM t, UNNEST([1, 2, 3]) AS e",
		"SELECT _key, e FROM t, UNNEST(GENERATE_ARRAY(1, 1500)) AS e LIMIT 9000 OFFSET 700",
		"SELECT _key, e FROM t, UNNEST([1, 2]) AS e WHERE _key < b'k1500' AND e = 2",
	} {
		stmt := prepare(t, c, sql, false)
		if !Streams(stmt.Query) {
			t.Errorf("%s: has no positions", sql)
			continue
		}
		all, at := rest(t, b, stmt, nil)
		if len(all) < 1000 || len(at) < 2 {
			t.Errorf("%s: %d rows, %d batches", sql, len(all), len(at))
		}
		for n, p := range at {
			got, _ := rest(t, b, stmt, p)
			if want := all[n:]; !slices.Equal(text(stmt, got), text(stmt, want)) {
				t.Errorf("%s: %d rows behind row %d, want %d", sql, len(got), n, len(want))
			}
		}
	}
	for _, sql := range []string{
		"SELECT _key FROM t ORDER BY a['q']",
		"SELECT _key, e FROM (SELECT _key FROM t LIMIT 2000), UNNEST(GENERATE_ARRAY(1, 1500)) AS e",
		"SELECT _key, e.key, e.value FROM (SELECT _key, a FROM t LIMIT 100), UNNEST(MAP_ENTRIES(a)) AS e",
	} {
		stmt := prepare(t, c, sql, false)
		if !Streams(stmt.Query) {
			continue
		}
		t.Errorf("%s: has positions", sql)
		all, at := rest(t, b, stmt, nil)
		for n, p := range at {
			if got, _ := rest(t, b, stmt, p); len(got) != len(all)-n {
				t.Fatalf("%s: %d rows behind row %d, want %d", sql, len(got), n, len(all)-n)
			}
		}
	}
}

func TestMutate(t *testing.T) {
	b, table := storedTable(t)
	c := tables{"t": table}
	c.add("s", values([]modelRow{{"x1", "1"}, {"x2", nil}, {"x3", "3"}}), algebra.TableColumn{Name: "k", Type: types.BytesType},
		algebra.TableColumn{Name: "v", Type: types.BytesType})
	for _, q := range []struct {
		sql  string
		n    int64
		kind fault.Kind
	}{
		{"INSERT INTO t (_key, a['q'], a['r']) VALUES (b'k1', b'1', b'2'), (b'k2', b'3', NULL)", 2, 0},
		{"INSERT INTO t (_key, a['q']) VALUES (b'k1', b'9')", 0, fault.AlreadyExists},
		{"INSERT INTO t (_key, a['q']) VALUES (b'k9', b'9'), (b'k9', b'8')", 0, fault.AlreadyExists},
		{"INSERT OR IGNORE INTO t (_key, a['q']) VALUES (b'k1', b'9'), (b'k3', b'4')", 1, 0},
		{"INSERT OR REPLACE INTO t (_key, b['x']) VALUES (b'k3', b'5')", 1, 0},
		{"INSERT OR UPDATE INTO t (_key, b['x']) VALUES (b'k2', b'6')", 1, 0},
		{"INSERT INTO t (_key, a['q']) SELECT CONCAT(_key, b'c'), a['q'] FROM t WHERE _key < b'k2'", 1, 0},
		{"INSERT INTO t (_key, a['q']) SELECT k, v FROM s WHERE v IS NOT NULL", 2, 0},
		{"INSERT INTO t (_key, a['q']) VALUES (b'k8', NULL)", 0, fault.OutOfRange},
		{"INSERT INTO t (_key, a['q']) VALUES (b'k8', b'8'), (b'', b'8')", 0, fault.OutOfRange},
		{"INSERT INTO t (_key, a['q']) VALUES (REPEAT(b'k', 4097), b'8')", 0, fault.OutOfRange},
		{"INSERT INTO t (_key, a) VALUES (b'k8', MAP_FROM_ARRAY([(REPEAT(b'q', 16385), b'8')]))", 0, fault.OutOfRange},
		{"UPDATE t SET a['q'] = CONCAT(a['q'], b'!'), a['r'] = NULL WHERE _key = b'k1'", 1, 0},
		{"UPDATE t SET a = MAP_FROM_ARRAY([(b'z', b'7')]) WHERE _key = b'k1c'", 1, 0},
		{"DELETE FROM t WHERE _key LIKE b'x%' AND a['q'] = b'3'", 1, 0},
		{"DELETE FROM t WHERE _key = b'nothing'", 0, 0},
	} {
		n, err := mutate(t, b, c, q.sql)
		if n != q.n || fault.KindOf(err) != q.kind {
			t.Errorf("%s: %d rows, %v; want %d, %v", q.sql, n, err, q.n, q.kind)
		}
	}
	stmt := prepare(t, c, "SELECT _key, a['q'], a['r'], a['z'], b['x'] FROM t ORDER BY _key", false)
	rows, _ := rest(t, b, stmt, nil)
	var got []string
	for _, r := range rows {
		s := ""
		for i, v := range r {
			s += showValue(stmt.Columns[i].Type, v) + " "
		}
		got = append(got, s)
	}
	want := []string{"k1 1! NULL NULL NULL ", "k1c NULL NULL 7 NULL ", "k2 3 NULL NULL 6 ", "k3 NULL NULL NULL 5 ", "x1 1 NULL NULL NULL "}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	stmt = prepare(t, c, "DELETE FROM t WHERE true", false)
	if _, _, err := Mutate(ctx, Config{Source: b, Pool: NewPool(Limits{})}, stmt.Mutation); !errors.Is(err, context.Canceled) {
		t.Errorf("a canceled statement: %v", err)
	}
}
