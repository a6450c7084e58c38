package exec

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/analyze"
	"github.com/trestledb/trestle/engine/query/plan"
	"github.com/trestledb/trestle/engine/query/syntax"
	"github.com/trestledb/trestle/engine/query/types"
)

// tables is a Catalog of relations in memory.
type tables map[string]*algebra.Table

func (c tables) Table(_ context.Context, name string) (*algebra.Table, error) {
	if t := c[strings.ToLower(name)]; t != nil {
		return t, nil
	}
	return nil, fault.New(fault.NotFound, "Table not found: %s", name)
}
func (c tables) Tables(context.Context) ([]string, error) { return nil, nil }
func (c tables) Type(context.Context, []string) (*types.Type, error) {
	return nil, fault.New(fault.NotFound, "no types")
}

// add adds a table with columns, such as "a INT64".
func (c tables) add(name string, rows [][]types.Value, columns ...algebra.TableColumn) {
	if rows == nil {
		rows = [][]types.Value{}
	}
	c[name] = &algebra.Table{Name: name, Columns: columns, Rows: rows}
}

// prepare returns the algebra of sql. Plain leaves out what plan does.
func prepare(t testing.TB, c tables, sql string, plain bool) *algebra.Statement {
	t.Helper()
	tree, err := syntax.Parse(sql)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	stmt, err := analyze.Statement(t.Context(), c, tree, sql, nil)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return plan.Make(stmt, plan.Options{Plain: plain})
}

// result is what a query gave.
type result struct {
	rows    [][]types.Value
	spilled int64
	peak    int64
}

// run runs a statement with limits, and checks that all was given back.
func run(t testing.TB, stmt *algebra.Statement, l Limits) (result, error) {
	t.Helper()
	if l.Dir == "" {
		l.Dir = t.TempDir()
	}
	pool := NewPool(l)
	r, err := Query(t.Context(), Config{Pool: pool, Params: algebra.Params{Now: time.Unix(1_700_000_000, 0)}}, stmt.Query, stmt.Columns)
	if err != nil {
		return result{}, err
	}
	defer func() {
		if err := r.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if m, s := pool.Used(); m != 0 || s != 0 {
			t.Errorf("%d bytes of memory and %d of disk were not given back", m, s)
		}
	}()
	var out result
	for {
		b, err := r.Next(t.Context())
		m, _ := pool.Used()
		out.peak = max(out.peak, m)
		if errors.Is(err, io.EOF) {
			for _, s := range r.x.stats {
				out.spilled += s.Spilled
			}
			return out, nil
		}
		if err != nil {
			return out, err
		}
		if b.Rows() == 0 {
			t.Fatal("a batch without rows")
		}
		for k := range b.Rows() {
			row := make([]types.Value, len(b.Cols))
			for c, v := range b.Cols {
				row[c] = v.Value(rowOf(b, k)).Clone()
			}
			out.rows = append(out.rows, row)
		}
	}
}

// text returns rows as text, for comparison.
func text(stmt *algebra.Statement, rows [][]types.Value) []string {
	var out []string
	for _, r := range rows {
		var b []byte
		for i, v := range r {
			b = types.AppendKey(b, stmt.Columns[i].Type, v)
		}
		out = append(out, string(b))
	}
	return out
}

// batchRel is a relation of batches that are there.
type batchRel struct {
	cols    []algebra.Column
	batches []*types.Batch
}

func (b *batchRel) Columns() []algebra.Column { return b.cols }
func (b *batchRel) operator() Operator        { return &batchOp{rel: b} }

type batchOp struct {
	rel *batchRel
	at  int
}

func (b *batchOp) Open(context.Context) error { b.at = 0; return nil }
func (b *batchOp) Close() error               { return nil }
func (b *batchOp) Next(context.Context) (*types.Batch, error) {
	if b.at == len(b.rel.batches) {
		return nil, io.EOF
	}
	b.at++
	return b.rel.batches[b.at-1], nil
}
