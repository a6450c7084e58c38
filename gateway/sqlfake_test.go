package gateway

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
)

// A fakeEngine has a language of its own, in which a test says what a query
// gives:
//
//	numbers N WIDTH         N rows of a number and so many letters, which can be
//	                        gone on with behind each batch
//	sorted N WIDTH          the same, from a plan that has to see everything first
//	params                  one row of the parameters, by name
//	table NAME              no rows, with the columns of a table or view
//	write                   DML
//	nothing                 no rows
type fakeEngine struct {
	prepared atomic.Int32
	// next, if not nil, may fail the n'th batch of a query.
	next func(n int) error
	// values, if not nil, are the one row of "values".
	values *types.Batch
	cols   []algebra.OutputColumn

	mu   sync.Mutex
	open int // rows that are not closed
}

func (f *fakeEngine) opened() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.open
}

func (f *fakeEngine) Prepare(ctx context.Context, c algebra.Catalog, text string, params map[string]*types.Type) (*query.Prepared, error) {
	f.prepared.Add(1)
	st := &algebra.Statement{Query: &algebra.OneRow{}}
	words := strings.Fields(text)
	switch words[0] {
	case "numbers", "sorted":
		st.Columns = []algebra.OutputColumn{{Name: "n", Type: types.Int64Type}, {Name: "text", Type: types.StringType}}
	case "params":
		for _, name := range sortedKeys(params) {
			st.Columns = append(st.Columns, algebra.OutputColumn{Name: name, Type: params[name]})
		}
	case "values":
		st.Columns = f.cols
	case "table", "nothing", "write":
		if words[0] == "write" {
			st.Mutation = &algebra.Mutation{Kind: algebra.DeleteRows}
		}
		st.Columns = []algebra.OutputColumn{{Name: "n", Type: types.Int64Type}}
		if words[0] != "table" {
			break
		}
		t, err := c.Table(ctx, words[1])
		if err != nil {
			if fault.KindOf(err) == fault.NotFound {
				return nil, fault.New(fault.Invalid, "Table not found: %s [at 1:7]", words[1])
			}
			return nil, err
		}
		for t.View != nil {
			if t, err = t.View.Catalog.Table(ctx, strings.Fields(t.View.Query)[1]); err != nil {
				return nil, err
			}
		}
		st.Columns = nil
		for _, col := range t.Columns {
			if !col.Pseudo {
				st.Columns = append(st.Columns, algebra.OutputColumn{Name: col.Name, Type: col.Type})
			}
		}
	default:
		return nil, fault.New(fault.Invalid, "Syntax error: Unexpected identifier %q [at 1:1]", words[0])
	}
	return &query.Prepared{Text: text, Statement: st}, nil
}

func (f *fakeEngine) streams(p *query.Prepared) bool { return strings.HasPrefix(p.Text, "numbers") }

func sortedKeys(m map[string]*types.Type) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	for i := range out {
		for j := i + 1; j < len(out); j++ {
			if out[j] < out[i] {
				out[i], out[j] = out[j], out[i]
			}
		}
	}
	return out
}

func (f *fakeEngine) Execute(ctx context.Context, p *query.Prepared, r query.Request) (query.Rows, error) {
	words := strings.Fields(p.Text)
	rows := &fakeRows{f: f, ctx: ctx}
	switch words[0] {
	case "numbers", "sorted":
		fmt.Sscan(words[1], &rows.n)
		fmt.Sscan(words[2], &rows.width)
		rows.positions = words[0] == "numbers"
		if len(r.Resume) == 8 {
			rows.at = int(binary.BigEndian.Uint64(r.Resume))
		} else if len(r.Resume) > 0 {
			return nil, fault.New(fault.Invalid, "not a position")
		}
	case "params":
		b := &types.Batch{Len: 1}
		for _, c := range p.Columns() {
			v := types.NewVector(c.Type, 1)
			v.Set(0, r.Params.Values[c.Name])
			b.Cols = append(b.Cols, v)
		}
		rows.one = b
	case "values":
		rows.one = f.values
	}
	f.mu.Lock()
	f.open++
	f.mu.Unlock()
	return rows, nil
}

type fakeRows struct {
	f         *fakeEngine
	ctx       context.Context
	one       *types.Batch
	n, width  int
	at        int
	batches   int
	positions bool
	closed    bool
}

func (r *fakeRows) Next(ctx context.Context) (*types.Batch, error) {
	if err := r.ctx.Err(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if r.f.next != nil {
		if err := r.f.next(r.batches); err != nil {
			return nil, err
		}
	}
	r.batches++
	if b := r.one; b != nil {
		r.one = nil
		return b, nil
	}
	if r.at >= r.n {
		return nil, io.EOF
	}
	n := min(1000, r.n-r.at)
	b := &types.Batch{Len: 2 * n, Cols: []*types.Vector{types.NewVector(types.Int64Type, 2*n), types.NewConst(types.StringType, types.NewString(strings.Repeat("x", r.width)))}}
	for i := range n {
		b.Sel = append(b.Sel, int32(2*i+1))
		b.Cols[0].Ints[2*i+1] = int64(r.at + i)
	}
	r.at += n
	return b, nil
}

func (r *fakeRows) Position() []byte {
	if !r.positions {
		return nil
	}
	return binary.BigEndian.AppendUint64(nil, uint64(r.at))
}

func (r *fakeRows) Close() error {
	if !r.closed {
		r.closed = true
		r.f.mu.Lock()
		r.f.open--
		r.f.mu.Unlock()
	}
	return nil
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for range 6000 { // a minute
		if ok() {
			return
		}
		sleepABit()
	}
	t.Errorf("not in time: %s", what)
}
