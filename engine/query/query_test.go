package query

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/trestledb/trestle/conformance/model"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

// catalog has one stored table, t with the family f.
type catalog struct{ t *algebra.Table }

func (c catalog) Table(_ context.Context, name string) (*algebra.Table, error) {
	if strings.EqualFold(name, "t") {
		return c.t, nil
	}
	return nil, fault.New(fault.NotFound, "Table not found: %s", name)
}
func (c catalog) Tables(context.Context) ([]string, error) { return []string{"t"}, nil }
func (c catalog) Type(context.Context, []string) (*types.Type, error) {
	return nil, fault.New(fault.NotFound, "no types")
}

func newEngine(t *testing.T, o Options) (*Engine, catalog) {
	t.Helper()
	b := model.New(model.Options{})
	s := &schema.Table{Name: "projects/p/instances/i/tables/t", Granularity: 1, Families: map[string]schema.Family{}}
	s.AddFamily(schema.Family{Name: "f"})
	s, err := b.CreateTable(t.Context(), s, nil)
	if err != nil {
		t.Fatal(err)
	}
	o.Dir = t.TempDir()
	return New(b, o), catalog{&algebra.Table{Name: "t", FullName: s.Name, Schema: s, Columns: []algebra.TableColumn{
		{Name: "_key", Type: types.BytesType, Kind: algebra.RowKeyColumn},
		{Name: "f", Type: types.MapOf(types.BytesType, types.BytesType), Kind: algebra.FamilyColumn, Family: "f"}}}}
}

// all runs text and returns its rows, columns apart by "|".
func all(t *testing.T, e *Engine, c catalog, text string, params map[string]types.Value, r Request) ([]string, error) {
	t.Helper()
	declared := map[string]*types.Type{}
	for name := range params {
		declared[name] = types.BytesType
	}
	p, err := e.Prepare(t.Context(), c, text, declared)
	if err != nil {
		return nil, err
	}
	r.Params.Values = params
	rows, err := e.Execute(t.Context(), p, r)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err := rows.Close(); err != nil {
			t.Error(err)
		}
		if m, s := e.Used(); m != 0 || s != 0 {
			t.Errorf("%s: %d bytes of memory and %d of disk were not given back", text, m, s)
		}
	}()
	var out []string
	for {
		b, err := rows.Next(t.Context())
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		if len(b.Cols) != len(p.Columns()) {
			t.Fatalf("%s: %d columns, want %d", text, len(b.Cols), len(p.Columns()))
		}
		for k := range b.Rows() {
			i := k
			if b.Sel != nil {
				i = int(b.Sel[k])
			}
			var cols []string
			for _, v := range b.Cols {
				switch x := v.Value(i); {
				case !x.Valid:
					cols = append(cols, "NULL")
				case v.Strs != nil:
					cols = append(cols, x.Str)
				default:
					cols = append(cols, fmt.Sprint(x.Int))
				}
			}
			out = append(out, strings.Join(cols, "|"))
		}
	}
}

func TestEngine(t *testing.T) {
	e, c := newEngine(t, Options{})
	for _, q := range []struct{ text, want string }{
		{"INSERT INTO t (_key, f['q']) VALUES (b'a', b'1'), (b'b', b'2')", "2"},
		{"SELECT _key, f['q'] FROM t", "a|1;b|2"},
		{"SELECT f['q'] FROM t WHERE _key = @k", "2"},
		{"UPDATE t SET f['q'] = @k WHERE _key = b'a'", "1"},
		{"SELECT COUNT(*), MAX(f['q']) FROM t", "2|b"},
		{"DELETE FROM t WHERE _key > b'a'", "1"},
		{"SELECT _key FROM t", "a"},
	} {
		got, err := all(t, e, c, q.text, map[string]types.Value{"k": types.NewString("b")}, Request{})
		if s := strings.Join(got, ";"); err != nil || s != q.want {
			t.Errorf("%s: %s, %v, want %s", q.text, s, err, q.want)
		}
	}
	if _, err := all(t, e, c, "DELETE FROM t WHERE true", nil, Request{ReadOnly: true}); fault.KindOf(err) != fault.PermissionDenied {
		t.Errorf("DML where only reading is allowed: %v", err)
	}
	if _, err := all(t, e, c, "SELECT x FROM t", nil, Request{}); fault.KindOf(err) != fault.Invalid {
		t.Errorf("an unknown column: %v", err)
	}
	long := "SELECT COUNT(*) FROM UNNEST(GENERATE_ARRAY(1, 10000)) a, UNNEST(GENERATE_ARRAY(1, 10000)) b, UNNEST(GENERATE_ARRAY(1, 10000)) c WHERE a + b + c < 0"
	if _, err := all(t, e, c, long, nil, Request{Deadline: time.Now().Add(20 * time.Millisecond)}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("behind the deadline: %v", err)
	}
}

func TestPosition(t *testing.T) {
	e, c := newEngine(t, Options{})
	if _, err := all(t, e, c, "INSERT INTO t (_key, f['q']) VALUES (b'a', b'1'), (b'b', b'2')", nil, Request{}); err != nil {
		t.Fatal(err)
	}
	p, err := e.Prepare(t.Context(), c, "SELECT _key FROM t", nil)
	if err != nil || !p.Streams() {
		t.Fatalf("%v, streams: %v", err, p.Streams())
	}
	rows, err := e.Execute(t.Context(), p, Request{})
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	if _, err := rows.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err := all(t, e, c, "SELECT _key FROM t", nil, Request{Resume: rows.Position()}); err != nil || len(got) != 0 {
		t.Errorf("behind the last row: %v, %v", got, err)
	}
	if _, err := all(t, e, c, "SELECT _key FROM t", nil, Request{Resume: []byte("x")}); fault.KindOf(err) != fault.Invalid {
		t.Errorf("a position of nothing: %v", err)
	}
	if p, err := e.Prepare(t.Context(), c, "SELECT COUNT(*) FROM t", nil); err != nil || p.Streams() {
		t.Errorf("an aggregate streams: %v", err)
	}
}

// A statement keeps what was built for a run that has ended, for the next one: that must
// not see anything of the one before, nor of one that is still under way.
func TestRunsAgain(t *testing.T) {
	e, c := newEngine(t, Options{})
	var entries []row.Entry
	for i := range 20 {
		entries = append(entries, row.Entry{Key: fmt.Appendf(nil, "k%02d", i), Mutations: []row.Mutation{
			{Op: row.SetCell, Family: "f", Qualifier: []byte("q"), Timestamp: 1, Value: fmt.Append(nil, "v", i)}}})
	}
	if err := e.source.MutateRows(t.Context(), c.t.FullName, entries, func(int, error) {}); err != nil {
		t.Fatal(err)
	}
	p, err := e.Prepare(t.Context(), c, "SELECT _key, f['q'], f['none'] FROM t WHERE _key = @k", map[string]*types.Type{"k": types.BytesType})
	if err != nil {
		t.Fatal(err)
	}
	scan, err := e.Prepare(t.Context(), c, "SELECT _key FROM t WHERE _key >= @k", map[string]*types.Type{"k": types.BytesType})
	if err != nil {
		t.Fatal(err)
	}
	begin := func(p *Prepared, key types.Value) Rows {
		rows, err := e.Execute(t.Context(), p, Request{Params: algebra.Params{Values: map[string]types.Value{"k": key}}})
		if err != nil {
			t.Fatal(err)
		}
		return rows
	}
	count := func(p *Prepared, key types.Value) (n int) {
		rows := begin(p, key)
		defer rows.Close()
		for {
			b, err := rows.Next(t.Context())
			if err == io.EOF {
				return n
			}
			if err != nil {
				t.Fatal(err)
			}
			n += b.Rows()
		}
	}
	for i := range 100 {
		k := i % 20
		first, second := begin(p, types.NewString(fmt.Sprintf("k%02d", k))), begin(p, types.NewString("k19"))
		b, err := first.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := second.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got, want := b.Cols[1].Value(0).Str, fmt.Sprint("v", k); b.Rows() != 1 || got != want || b.Cols[2].Value(0).Valid {
			t.Fatalf("run %d: %d rows, %q, want %q", i, b.Rows(), got, want)
		}
		if _, err := first.Next(t.Context()); err != io.EOF {
			t.Fatalf("a second row, or %v", err)
		}
		first.Close()
		first.Close() // it must not be given back twice
		second.Close()
		if n := count(p, types.NewString("nothing")); n != 0 {
			t.Fatalf("%d rows of no row", n)
		}
		if n := count(p, types.Null); n != 0 {
			t.Fatalf("%d rows of NULL", n)
		}
		if n := count(scan, types.NewString(fmt.Sprintf("k%02d", k))); n != 20-k {
			t.Fatalf("%d rows from %d on", n, k)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	rows, err := e.Execute(ended, p, Request{Params: algebra.Params{Values: map[string]types.Value{"k": types.NewString("k01")}}})
	if err == nil {
		_, err = rows.Next(ended)
		rows.Close()
	}
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that is gone gets %v", err)
	}
	if n := count(p, types.NewString("k01")); n != 1 {
		t.Errorf("%d rows after a run that failed", n)
	}
	if used, spilled := e.Used(); used != 0 || spilled != 0 {
		t.Errorf("%d bytes of memory and %d of disk are held when all is done", used, spilled)
	}
}
