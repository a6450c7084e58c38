package fragment

import (
	"bytes"
	"strings"
	"testing"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/functions"
	"github.com/trestledb/trestle/engine/query/types"
	"github.com/trestledb/trestle/engine/schema"
)

func call(name string, t *types.Type, signature int, args ...algebra.Expr) algebra.Expr {
	f := functions.Lookup(name)
	return &algebra.Call{Function: f, Signature: f.Signatures[signature], Args: args, T: t}
}

func ref(c algebra.Column) algebra.Expr { return &algebra.ColumnRef{Column: c} }

// examples are fragments with all that there can be in one.
func examples() []*Fragment {
	q := "q"
	pairs := types.ArrayOf(types.StructOf(types.Field{Name: "timestamp", Type: types.TimestampType}, types.Field{Name: "value", Type: types.BytesType}))
	key := algebra.Column{ID: 1, Name: "_key", Type: types.BytesType}
	cell := algebra.Column{ID: 2, Name: "f['q']", Type: types.BytesType}
	time := algebra.Column{ID: 3, Type: types.TimestampType}
	field := algebra.Column{ID: 4, Name: "n", Type: types.Int64Type}
	family := algebra.Column{ID: 5, Type: types.MapOf(types.BytesType, types.BytesType)}
	table := &algebra.Table{Name: "t", Schema: &schema.Table{},
		Key: &algebra.KeySchema{Encoding: algebra.OrderedCode, Fields: []algebra.KeyField{{Name: "n", Type: types.Int64Type, Encoding: algebra.OrderedInt}}},
		Columns: []algebra.TableColumn{{Type: types.BytesType, Kind: algebra.RowKeyColumn}, {Type: types.Int64Type, Kind: algebra.KeyColumn},
			{Type: family.Type, Kind: algebra.FamilyColumn, Family: "f"}}}
	scan := &algebra.Scan{Table: table, Uses: []algebra.ScanColumn{{Column: key}, {Column: cell, Index: 2, Qualifier: &q},
		{Column: time, Index: 2, Qualifier: &q, WriteTime: true}, {Column: field, Index: 1}, {Column: family, Index: 2}}}
	some := &algebra.Filter{Input: scan, Cond: call("$and", types.BoolType, 0,
		call("$equal", types.BoolType, 0, ref(cell), &algebra.Param{Name: "p", T: types.BytesType}),
		call("$in", types.BoolType, 0, ref(field), &algebra.Literal{T: types.Int64Type, Value: types.NewInt(-7)}, &algebra.Literal{T: types.Int64Type}))}
	length := algebra.Column{ID: 6, Name: "l", Type: types.Int64Type}
	list := algebra.Column{ID: 7, Type: types.ArrayOf(types.Float64Type)}
	project := &algebra.Project{Input: some, Computed: []algebra.Computed{
		{Column: length, Expr: &algebra.Cast{X: &algebra.Cast{X: ref(cell), T: types.StringType, Safe: true}, T: types.Int64Type}},
		{Column: list, Expr: &algebra.MakeArray{T: list.Type, Elems: []algebra.Expr{&algebra.Literal{T: types.Float64Type, Value: types.NewFloat(1.5)}}}}}}
	keep := &algebra.Keep{Input: project, Cols: []algebra.Column{length, key, list}}
	count, sum := functions.Lookup("$count_star"), functions.Lookup("SUM")
	aggregate := &algebra.Aggregate{Input: keep, Keys: []algebra.Computed{{Column: algebra.Column{ID: 8, Type: types.BytesType}, Expr: ref(key)}},
		Aggs: []algebra.AggregateCall{{Column: algebra.Column{ID: 9, Type: types.Int64Type}, Function: count, Signature: count.Signatures[0]},
			{Column: algebra.Column{ID: 10, Type: types.Int64Type}, Function: sum, Signature: sum.Signatures[0], Args: []algebra.Expr{ref(length)}, Distinct: true,
				Where: call("$is_null", types.BoolType, 0, ref(key))}}}
	old := &algebra.Scan{Table: table, History: &algebra.History{WithHistory: true}, Uses: []algebra.ScanColumn{
		{Column: algebra.Column{ID: 1, Type: pairs}, Index: 2, Qualifier: &q}, {Column: algebra.Column{ID: 2, Type: types.MapOf(types.BytesType, pairs)}, Index: 2}}}
	top := &algebra.Limit{Input: &algebra.Sort{Input: keep, Keys: []algebra.SortKey{{Expr: ref(length), Descending: true, NullsLast: true}, {Expr: ref(key)}}},
		Count: &algebra.Literal{T: types.Int64Type, Value: types.NewInt(10)}}
	return []*Fragment{Of(some), Of(keep), Of(aggregate), Of(top),
		Of(&algebra.Filter{Input: old, Cond: call("$is_null", types.BoolType, 0, ref(old.Uses[0].Column))})}
}

func TestRoundTrip(t *testing.T) {
	params := map[string]types.Value{"p": types.NewString("value")}
	for i, f := range examples() {
		if f == nil {
			t.Fatalf("example %d is no fragment", i)
		}
		f.Now = 1_700_000_000_000_000
		b, ok := f.Append([]byte("before"), params)
		if !ok || !bytes.HasPrefix(b, []byte("before")) {
			t.Fatalf("example %d cannot be sent", i)
		}
		b = b[len("before"):]
		g, err := Decode(b)
		if err != nil {
			t.Fatalf("example %d: %v", i, err)
		}
		if g.Now != f.Now || g.IsAggregate() != f.IsAggregate() || len(g.ResultTypes()) != len(f.ResultTypes()) {
			t.Errorf("example %d has come as %+v", i, g)
		}
		for k, c := range g.ResultTypes() {
			if !c.Equal(f.ResultTypes()[k]) {
				t.Errorf("example %d: column %d is %s, want %s", i, k, c, f.ResultTypes()[k])
			}
		}
		again, ok := g.Append(nil, nil)
		if !ok || !bytes.Equal(again, b) {
			t.Errorf("example %d becomes another one on its way", i)
		}
		for n := range b {
			if _, err := Decode(b[:n]); err == nil {
				t.Errorf("%d of %d bytes of example %d are taken for a fragment", n, len(b), i)
			}
		}
		if _, err := Decode(append(b[:len(b):len(b)], 0)); err == nil {
			t.Error("a byte more is taken for a fragment")
		}
		b[0]++
		if _, err := Decode(b); err == nil {
			t.Error("a fragment of another version is read")
		}
	}
}

// TestRefused has what cannot be sent.
func TestRefused(t *testing.T) {
	f := examples()[0]
	if _, ok := f.Append(nil, nil); ok {
		t.Error("a parameter without a value is sent")
	}
	scan := f.Scan
	for what, cond := range map[string]algebra.Expr{
		"a column of the rows around": call("$is_null", types.BoolType, 0, ref(algebra.Column{ID: 99, Type: types.BytesType})),
		"a subquery":                  &algebra.Subquery{Kind: algebra.ExistsQuery, Query: &algebra.OneRow{}, T: types.BoolType},
		"RAND": call("$less", types.BoolType, 0, call("RAND", types.Float64Type, 0),
			&algebra.Literal{T: types.Float64Type, Value: types.NewFloat(1)}),
		"a long literal": call("$equal", types.BoolType, 0, ref(scan.Uses[1].Column),
			&algebra.Literal{T: types.BytesType, Value: types.NewString(strings.Repeat("x", MaxBytes))}),
	} {
		g := Of(&algebra.Filter{Input: scan, Cond: cond})
		if _, ok := g.Append(nil, map[string]types.Value{"p": types.Null}); ok {
			t.Errorf("%s is sent", what)
		}
	}
	agg := functions.Lookup("ARRAY_AGG")
	if Of(&algebra.Aggregate{Input: scan, Aggs: []algebra.AggregateCall{{Function: agg, Signature: agg.Signatures[0]}}}) != nil {
		t.Error("an aggregate that depends on the order of rows is a fragment")
	}
}

func FuzzDecode(f *testing.F) {
	for _, e := range examples() {
		b, _ := e.Append(nil, map[string]types.Value{"p": types.NewString("value")})
		f.Add(b[9:])
	}
	head, _ := examples()[4].Append(nil, nil)
	head = head[:9]
	f.Fuzz(func(t *testing.T, b []byte) {
		g, err := Decode(append(head[:9:9], b...))
		if err != nil {
			return
		}
		again, ok := g.Append(nil, nil)
		if !ok {
			return
		}
		h, err := Decode(again)
		if err != nil {
			t.Fatalf("what was read cannot be read again: %v", err)
		}
		if third, _ := h.Append(nil, nil); !bytes.Equal(third, again) {
			t.Error("what was read becomes another fragment each time")
		}
	})
}
