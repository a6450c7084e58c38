package exec

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/fragment"
	"github.com/trestledb/trestle/engine/query/functions"
	"github.com/trestledb/trestle/engine/query/types"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

// groupedFragment is SELECT a:q1, COUNT(*), MAX(_key) … WHERE b:q2 IS NULL GROUP BY 1,
// and its rows alone.
func groupedFragment(t testing.TB, table *algebra.Table) (groups, rows *fragment.Fragment) {
	s := scanOf(table, nil, "_key", "a:q1", "b:q2")
	ref := func(i int) algebra.Expr { return &algebra.ColumnRef{Column: s.Uses[i].Column} }
	null := functions.Lookup("$is_null")
	filter := &algebra.Filter{Input: s, Cond: &algebra.Call{Function: null, Signature: null.Signatures[0], Args: []algebra.Expr{ref(2)}, T: types.BoolType}}
	count, most := functions.Lookup("$count_star"), functions.Lookup("MAX")
	agg := &algebra.Aggregate{Input: filter, Keys: []algebra.Computed{{Column: algebra.Column{ID: 10, Type: types.BytesType}, Expr: ref(1)}},
		Aggs: []algebra.AggregateCall{
			{Column: algebra.Column{ID: 11, Type: types.Int64Type}, Function: count, Signature: count.Signatures[0]},
			{Column: algebra.Column{ID: 12, Type: types.BytesType}, Function: most, Signature: signatureFor(t, most, types.Bytes), Args: []algebra.Expr{ref(0)}}}}
	return fragment.Of(agg), fragment.Of(filter)
}

func signatureFor(t testing.TB, f *functions.Function, k types.Kind) *functions.Signature {
	for _, s := range f.Signatures {
		if len(s.Args) == 1 && (s.Args[0].Type.Any != "" || s.Args[0].Type.Type != nil && s.Args[0].Type.Type.Kind == k) {
			return s
		}
	}
	t.Fatalf("%s has no signature for %s", f.Name, k)
	return nil
}

// TestFragmentGathers sees that a server passes on nothing before it is worth it, tells
// no position before that, and takes rows in batches.
func TestFragmentGathers(t *testing.T) {
	_, table := storedTable(t)
	groups, _ := groupedFragment(t, table)
	encoded, ok := groups.Append(nil, nil)
	if !ok {
		t.Fatal("the fragment cannot be sent")
	}
	pool := NewPool(Limits{})
	var pieces []scan.Piece
	var bytes [][]byte
	e, err := NewFragmentEncoder(pool, encoded, func(p *scan.Piece, b []byte) error {
		q := *p
		q.Key = []byte(string(p.Key))
		pieces, bytes = append(pieces, q), append(bytes, b)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	const n = 10_000
	for i := range n {
		e.StartRow(fmt.Appendf(nil, "k%05d", i))
		e.Cell(&row.Cell{Family: "a", Qualifier: []byte("q1"), Timestamp: 5, Value: fmt.Append(nil, i%3)})
		e.Cell(&row.Cell{Family: "a", Qualifier: []byte("q1"), Timestamp: 4, Value: []byte("old")})
		if i%5 == 0 {
			e.Cell(&row.Cell{Family: "b", Qualifier: []byte("q2"), Timestamp: 4, Value: []byte("x")})
		}
		if full, err := e.EndRow(); err != nil || full {
			t.Fatal(full, err)
		}
		if i%1000 == 0 {
			if err := e.Flush(); err != nil || !e.Holds() {
				t.Fatal(err, e.Holds())
			}
		}
	}
	e.StartRow([]byte("z"))
	e.Cell(&row.Cell{Family: "a", Qualifier: []byte("q1"), Timestamp: 5, Value: []byte("cut off")})
	if err := e.Flush(); err != nil || len(pieces) > 0 {
		t.Fatalf("%d pieces were passed on early, %v", len(pieces), err)
	}
	if err := e.Finish(); err != nil || len(pieces) != 1 || e.Holds() {
		t.Fatal(err, pieces, e.Holds())
	}
	e.Close()
	if used, _ := pool.Used(); used != 0 {
		t.Errorf("%d bytes are still taken", used)
	}
	if p := pieces[0]; p.Rows != n || p.Cells != 2*n+n/5 || string(p.Key) != "k09999" || p.Open {
		t.Errorf("the piece is %+v", p)
	}
	in, err := openPiece(bytes[0])
	if err != nil {
		t.Fatal(err)
	}
	b := types.Batch{Cols: newVectors(groups.ResultTypes())}
	if in, err = nextBatch(in, groups.ResultTypes(), &b); err != nil || in != "" || b.Len != 3 {
		t.Fatalf("%d groups, %d bytes more, %v", b.Len, len(in), err)
	}
	bytes[0][9]++
	if _, err := openPiece(bytes[0]); err == nil {
		t.Error("a piece with a flipped byte is taken")
	}
}

// TestHostileFragments runs what is left of fragments whose bytes were changed: whatever
// happens, it ends soon. A server answers a panic with an error.
func TestHostileFragments(t *testing.T) {
	_, table := storedTable(t)
	r := rand.New(rand.NewPCG(3, 3))
	groups, rows := groupedFragment(t, table)
	pool := NewPool(Limits{Query: 8 << 20})
	ran := 0
	began := time.Now()
	for _, f := range []*fragment.Fragment{groups, rows} {
		good, _ := f.Append(nil, nil)
		for range 3000 {
			bad := append([]byte(nil), good...)
			for range 1 + r.IntN(3) {
				bad[9+r.IntN(len(bad)-9)] = byte(r.IntN(256))
			}
			func() {
				var e *FragmentEncoder
				defer func() {
					_ = recover()
					if e != nil {
						e.Close()
					}
				}()
				var err error
				if e, err = NewFragmentEncoder(pool, bad, func(*scan.Piece, []byte) error { return nil }); err != nil {
					return
				}
				ran++
				for i := range 20 {
					e.StartRow(fmt.Appendf(nil, "k%d", i))
					e.Cell(&row.Cell{Family: "a", Qualifier: []byte("q1"), Value: []byte("value")})
					if _, err := e.EndRow(); err != nil {
						return
					}
				}
				_ = e.Finish()
			}()
		}
	}
	if ran < 100 {
		t.Errorf("only %d changed fragments ran", ran)
	}
	if d := time.Since(began); d > 30*time.Second {
		t.Errorf("it took %v", d)
	}
	if used, _ := pool.Used(); used != 0 {
		t.Errorf("%d bytes are still taken", used)
	}
}

func FuzzPiece(f *testing.F) {
	ts := []*types.Type{types.BytesType, types.Int64Type, historyType(types.BytesType), types.Float64Type}
	v := newVectors(ts)
	for _, c := range v {
		c.Resize(2)
	}
	v[0].Set(0, types.NewString("x"))
	v[0].SetNull(1)
	v[1].Set(0, types.NewInt(-5))
	v[1].Set(1, types.NewInt(1<<40))
	v[2].Set(0, types.NewList([]types.Value{types.NewList([]types.Value{types.NewInt(1), types.NewString("v")})}))
	v[2].Set(1, types.NewList(nil))
	v[3].Set(0, types.NewFloat(1.5))
	v[3].SetNull(1)
	var scratch []byte
	f.Add(appendPieceBatch(nil, ts, v, nil, 2, &scratch))
	f.Fuzz(func(t *testing.T, b []byte) {
		in := string(b)
		batch := types.Batch{Cols: newVectors(ts)}
		for in != "" {
			var err error
			if in, err = nextBatch(in, ts, &batch); err != nil {
				return
			}
			for i := range batch.Len {
				for _, c := range batch.Cols {
					_ = show(c.Type, c.Value(i))
				}
			}
		}
	})
}
