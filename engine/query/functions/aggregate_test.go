package functions

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/types"
)

var (
	infinity  = math.Inf(1)
	notNumber = math.NaN()
	int64sArg = []*types.Type{types.Int64Type}
	floatsArg = []*types.Type{types.Float64Type}
	textsArg  = []*types.Type{types.StringType}
	blobsArg  = []*types.Type{types.BytesType}
	boolsArg  = []*types.Type{types.BoolType}
)

// sqlValue makes a Value of a Go value.
func sqlValue(x any) types.Value {
	switch x := x.(type) {
	case nil:
		return types.Null
	case types.Value:
		return x
	case bool:
		return types.NewBool(x)
	case int:
		return types.NewInt(int64(x))
	case int64:
		return types.NewInt(x)
	case float64:
		return types.NewFloat(x)
	case string:
		return types.NewString(x)
	case []any:
		list := make([]types.Value, len(x))
		for i, e := range x {
			list[i] = sqlValue(e)
		}
		return types.NewList(list)
	}
	panic(fmt.Sprintf("no value of a %T", x))
}

// columnOf makes rows of one argument.
func columnOf(xs ...any) [][]types.Value {
	rows := make([][]types.Value, len(xs))
	for i, x := range xs {
		rows[i] = []types.Value{sqlValue(x)}
	}
	return rows
}

// rowsOf makes rows of several arguments.
func rowsOf(xs ...[]any) [][]types.Value {
	rows := make([][]types.Value, len(xs))
	for i, x := range xs {
		rows[i] = sqlValue(x).List
	}
	return rows
}

func valueText(t *types.Type, v types.Value) string {
	if !v.Valid {
		return "NULL"
	}
	switch t.Kind {
	case types.Float32, types.Float64:
		return strconv.FormatFloat(v.Float, 'g', -1, 64)
	case types.String, types.Bytes:
		return strconv.Quote(v.Str)
	case types.Array, types.Struct:
		var b strings.Builder
		for i, e := range v.List {
			if i > 0 {
				b.WriteByte(' ')
			}
			b.WriteString(valueText(typeOfElement(t, i), e))
		}
		return "[" + b.String() + "]"
	case types.Bool:
		return strconv.FormatBool(v.Bool())
	}
	return strconv.FormatInt(v.Int, 10)
}

// aggregateSignature returns the signature of function for arguments of exactly these
// types, or of any.
func aggregateSignature(t testing.TB, function string, args []*types.Type) (*Function, *Signature) {
	f := Lookup(function)
	if f == nil {
		t.Fatalf("there is no %s", function)
	}
	for _, s := range f.Signatures {
		ok := len(args) <= len(s.Args)
		for i := 0; ok && i < len(s.Args); i++ {
			switch want := s.Args[i].Type; {
			case i >= len(args):
				ok = s.Args[i].Optional
			case want.Type != nil:
				ok = want.Type.Equal(args[i])
			case want.Kind != types.Invalid:
				ok = want.Kind == args[i].Kind
			}
		}
		if ok {
			return f, s
		}
	}
	t.Fatalf("%s has no signature for %v", function, args)
	return nil, nil
}

func aggregateResult(s *Signature, args []*types.Type) *types.Type {
	switch r := s.Result; {
	case s.ResultOf != nil:
		return s.ResultOf(args)
	case r.Type != nil:
		return r.Type
	case r.Kind == types.Array && args[0].Kind == types.Array:
		return args[0]
	case r.Kind == types.Array:
		return types.ArrayOf(args[0])
	}
	return args[0]
}

// notIgnored leaves out rows that the function ignores.
func notIgnored(f *Function, s *Signature, rows [][]types.Value) [][]types.Value {
	var out [][]types.Value
	for _, row := range rows {
		ignored := false
		for i, v := range row {
			ignored = ignored || f.IgnoreNulls && !v.Valid && !s.Args[i].Const
		}
		if !ignored {
			out = append(out, row)
		}
	}
	return out
}

// aggregateRows computes function by New: in one state, and in parts that are merged.
func aggregateRows(t testing.TB, function string, args []*types.Type, rows [][]types.Value, parts int) (string, error) {
	f, s := aggregateSignature(t, function, args)
	call := &Call{Types: args, Result: aggregateResult(s, args)}
	all := s.New(call)
	for p := range parts {
		part := all
		if parts > 1 {
			part = s.New(call)
		}
		for i, row := range notIgnored(f, s, rows) {
			if i%parts != p {
				continue
			}
			if err := part.Add(row); err != nil {
				return "", err
			}
		}
		if part != all {
			if err := all.MergeState(part.AppendState(nil)); err != nil {
				return "", err
			}
		}
	}
	if all.Size() <= 0 {
		t.Errorf("%s: the state has a size of %d", function, all.Size())
	}
	v, err := all.Result()
	return valueText(call.Result, v), err
}

// batchOf makes a batch of rows, with NULLs only where there are some.
func batchOf(args []*types.Type, rows [][]types.Value) []*types.Vector {
	out := make([]*types.Vector, len(args))
	for i, t := range args {
		out[i] = types.NewVector(t, len(rows))
		for k, row := range rows {
			out[i].Set(k, row[i])
		}
	}
	return out
}

// groupRows computes function by Grouped, in group 1 of 3. With sel, every row has
// one before it that does not count.
func groupRows(t testing.TB, s *Signature, args []*types.Type, rows [][]types.Value, sel, constant bool) (string, error) {
	call := &Call{Types: args, Result: aggregateResult(s, args)}
	g := s.Grouped(call)
	g.Resize(3)
	var selected []int32
	if sel {
		var more [][]types.Value
		for _, row := range rows {
			selected = append(selected, int32(len(more)+1))
			more = append(more, row, row)
		}
		rows = more
		if selected == nil {
			selected = []int32{}
		}
	}
	groups := make([]int32, len(rows))
	for i := range groups {
		groups[i] = 1
	}
	batch := batchOf(args, rows)
	if constant {
		for i, a := range batch {
			batch[i] = types.NewConst(a.Type, rows[0][i])
		}
	}
	n := len(rows)
	if sel {
		groups = groups[:len(selected)]
	}
	if err := g.AddBatch(groups, batch, selected, n); err != nil {
		return "", err
	}
	other := s.Grouped(call)
	other.Resize(1)
	if err := other.MergeState(0, g.AppendState(1, nil)); err != nil {
		return "", err
	}
	out := types.NewVector(call.Result, 1)
	err := other.Results(0, out, 1)
	merged := ""
	if err == nil {
		merged = valueText(call.Result, out.Value(0))
	}
	if err := g.Results(1, out, 1); err != nil {
		return "", err
	}
	if got := valueText(call.Result, out.Value(0)); got != merged {
		t.Errorf("merged: %s, directly: %s", merged, got)
	}
	return merged, err
}

func TestAggregates(t *testing.T) {
	huge := math.MaxInt64
	pairs := []*types.Type{types.Float64Type, types.Float64Type}
	bitRows := columnOf(nil, "\x01\x02", "\x01", "\x01\x02\x03")
	withMode := func(mode string) [][]types.Value {
		rows := columnOf("\x01\x02", "\x01", "\x01\x02\x03")
		for i := range rows {
			rows[i] = append(rows[i], sqlValue(mode))
		}
		return rows
	}
	modes := []*types.Type{types.BytesType, types.StringType}
	for _, tt := range []struct {
		function string
		args     []*types.Type
		rows     [][]types.Value
		want     string // "!" and a message for an error
	}{
		{"$count_star", nil, [][]types.Value{{}, {}}, "2"},
		{"COUNT", int64sArg, nil, "0"},
		{"COUNT", int64sArg, columnOf(1, nil, 1), "2"},
		{"COUNTIF", boolsArg, columnOf(true, nil, false, true), "2"},
		{"COUNTIF", boolsArg, nil, "0"},
		{"SUM", int64sArg, nil, "NULL"},
		{"SUM", int64sArg, columnOf(nil, nil), "NULL"},
		{"SUM", int64sArg, columnOf(1, nil, -3), "-2"},
		{"SUM", int64sArg, columnOf(huge, huge, -huge), "9223372036854775807"},
		{"SUM", int64sArg, columnOf(huge, 1), "!int64 overflow"},
		{"SUM", int64sArg, columnOf(-huge, -1, -1), "!int64 overflow"},
		{"SUM", floatsArg, nil, "NULL"},
		{"SUM", floatsArg, columnOf(0.1, 0.2, 0.3, nil), "0.6"},
		{"SUM", floatsArg, columnOf(1e100, 1.0, -1e100), "1"},
		{"SUM", floatsArg, columnOf(1.5e308, 1.5e308, -1.5e308), "1.5e+308"},
		{"SUM", floatsArg, columnOf(1.1e308, 1.2e308), "!double overflow"},
		{"SUM", floatsArg, columnOf(infinity, 1.0), "+Inf"},
		{"SUM", floatsArg, columnOf(-infinity, 1.5e308), "-Inf"},
		{"SUM", floatsArg, columnOf(infinity, -infinity), "NaN"},
		{"SUM", floatsArg, columnOf(notNumber, 1.0), "NaN"},
		{"AVG", int64sArg, nil, "NULL"},
		{"AVG", int64sArg, columnOf(1, 2, nil), "1.5"},
		{"AVG", int64sArg, columnOf(huge, 1), "4.611686018427388e+18"},
		{"AVG", int64sArg, columnOf(huge, huge, huge), "9.223372036854776e+18"},
		{"AVG", int64sArg, columnOf(-huge, -huge, -huge), "-9.223372036854776e+18"},
		{"AVG", int64sArg, columnOf(1, 1, 2), "1.3333333333333333"},
		{"AVG", floatsArg, columnOf(0.1, 0.2, 0.3), "0.2"},
		{"AVG", floatsArg, columnOf(1.5e308, 1.5e308), "1.5e+308"},
		{"AVG", floatsArg, columnOf(infinity, -infinity), "NaN"},
		{"AVG", floatsArg, columnOf(infinity, infinity), "NaN"},
		{"AVG", floatsArg, columnOf(1.0, infinity), "+Inf"},
		{"AVG", floatsArg, columnOf(-infinity, 1.0), "NaN"},
		{"MIN", int64sArg, columnOf(3, nil, -2, 7), "-2"},
		{"MAX", int64sArg, columnOf(3, nil, -2, 7), "7"},
		{"MAX", int64sArg, columnOf(nil), "NULL"},
		{"MIN", floatsArg, columnOf(3.0, infinity, -2.0), "-2"},
		{"MAX", floatsArg, columnOf(3.0, -infinity, 4.0), "4"},
		{"MIN", floatsArg, columnOf(3.0, notNumber, -2.0), "NaN"},
		{"MAX", floatsArg, columnOf(notNumber, 3.0, infinity), "NaN"},
		{"MIN", textsArg, columnOf("b", nil, "", "c"), `""`},
		{"MAX", textsArg, columnOf("b", nil, "", "c"), `"c"`},
		{"MAX", textsArg, columnOf(nil), "NULL"},
		{"MIN", blobsArg, columnOf("b", "\xFF", "\x00"), `"\x00"`},
		{"MIN", boolsArg, columnOf(true, false), "false"},
		{"ANY_VALUE", int64sArg, nil, "NULL"},
		{"ANY_VALUE", int64sArg, columnOf(nil, 1), "NULL"},
		{"ANY_VALUE", textsArg, columnOf("a", "a"), `"a"`},
		{"ARRAY_AGG", int64sArg, nil, "NULL"},
		{"ARRAY_AGG", int64sArg, columnOf(nil, nil), "[NULL NULL]"},
		{"ARRAY_AGG", textsArg, columnOf("a", "a"), `["a" "a"]`},
		{"ARRAY_CONCAT_AGG", []*types.Type{types.ArrayOf(types.Int64Type)}, columnOf(nil, nil), "NULL"},
		{"ARRAY_CONCAT_AGG", []*types.Type{types.ArrayOf(types.Int64Type)}, columnOf([]any{}, nil), "[]"},
		{"ARRAY_CONCAT_AGG", []*types.Type{types.ArrayOf(types.Int64Type)}, columnOf([]any{1, nil}, []any{}), "[1 NULL]"},
		{"STRING_AGG", textsArg, nil, "NULL"},
		{"STRING_AGG", textsArg, columnOf("", nil, ""), `","`},
		{"STRING_AGG", blobsArg, columnOf("\xFF", "\xFF"), `"\xff,\xff"`},
		{"STRING_AGG", []*types.Type{types.StringType, types.StringType}, rowsOf([]any{"a", " : "}, []any{"a", " : "}), `"a : a"`},
		{"STRING_AGG", []*types.Type{types.StringType, types.StringType}, rowsOf([]any{"a", nil}), "!Illegal NULL separator in STRING_AGG"},
		{"BIT_AND", int64sArg, columnOf(nil, 5, 6), "4"},
		{"BIT_OR", int64sArg, columnOf(nil, 5, 6), "7"},
		{"BIT_XOR", int64sArg, columnOf(nil, 5, 6), "3"},
		{"BIT_XOR", int64sArg, columnOf(nil), "NULL"},
		{"BIT_AND", blobsArg, columnOf("\x0F", "\xF1", nil), `"\x01"`},
		{"BIT_OR", blobsArg, nil, "NULL"},
		{"BIT_OR", blobsArg, bitRows[:3], "!Bitwise binary operator for BYTES requires equal length of the inputs. Got 2 bytes on the left hand side and 1 bytes on the right hand side."},
		{"BIT_AND", modes, withMode("PAD"), `"\x01\x00\x00"`},
		{"BIT_OR", modes, withMode("PAD"), `"\x01\x02\x03"`},
		{"BIT_XOR", modes, withMode("PAD"), `"\x01\x00\x03"`},
		{"BIT_XOR", modes, withMode("TRUNCATE"), `"\x01"`},
		{"BIT_XOR", modes, withMode("x"), "!Invalid mode of BIT_XOR: x"},
		{"LOGICAL_AND", boolsArg, columnOf(nil, true), "true"},
		{"LOGICAL_AND", boolsArg, columnOf(false, true), "false"},
		{"LOGICAL_AND", boolsArg, columnOf(nil), "NULL"},
		{"LOGICAL_OR", boolsArg, columnOf(nil, true, false), "true"},
		{"LOGICAL_OR", boolsArg, columnOf(nil, false), "false"},
		{"LOGICAL_OR", boolsArg, nil, "NULL"},
		{"VAR_POP", floatsArg, nil, "NULL"},
		{"VAR_POP", floatsArg, columnOf(1.0), "0"},
		{"VAR_SAMP", floatsArg, columnOf(1.0), "NULL"},
		{"VARIANCE", floatsArg, columnOf(50.0, 60.0, 70.0), "100"},
		{"STDDEV", floatsArg, columnOf(10.0, 14.0, 18.0), "4"},
		{"STDDEV_POP", floatsArg, columnOf(1.0, 1.0, nil), "0"},
		{"STDDEV_POP", floatsArg, columnOf(infinity), "NaN"},
		{"STDDEV_SAMP", floatsArg, columnOf(infinity), "NULL"},
		{"STDDEV_SAMP", floatsArg, columnOf(infinity, 1.0), "NaN"},
		{"VAR_POP", floatsArg, columnOf(1.0, 2.2e304, -2.2e304), "+Inf"},
		{"STDDEV_SAMP", floatsArg, columnOf(1.0, 2.2e304, -2.2e304), "2.2e+304"},
		{"STDDEV_SAMP", floatsArg, columnOf(0x1p-700, 0x3p-700), strconv.FormatFloat(math.Sqrt2*0x1p-700, 'g', -1, 64)},
		{"VAR_SAMP", floatsArg, columnOf(1e9+4, 1e9+7, 1e9+13, 1e9+16), "30"},
		{"COVAR_SAMP", pairs, rowsOf([]any{1.0, 5.0}, []any{3.0, 9.0}, []any{4.0, 7.0}, []any{5.0, 1.0}, []any{7.0, 13.0}), "4"},
		{"COVAR_POP", pairs, rowsOf([]any{1.0, 5.0}, []any{3.0, 9.0}, []any{4.0, 7.0}, []any{5.0, 1.0}, []any{7.0, 13.0}), "3.2"},
		{"CORR", pairs, rowsOf([]any{1.0, 5.0}, []any{3.0, 9.0}, []any{4.0, 7.0}, []any{5.0, 1.0}, []any{7.0, 13.0}), "0.4"},
		{"CORR", pairs, rowsOf([]any{1.0, 1.0}, []any{nil, 9.0}, []any{2.0, 2.0}, []any{3.0, 3.0}, []any{7.0, nil}), "1"},
		{"CORR", pairs, rowsOf([]any{1.0, -1.0}, []any{2.2e154, -2.2e154}), "-1"},
		{"CORR", pairs, rowsOf([]any{1e-300, 1.0}, []any{2e-300, 2.0}, []any{3e-300, 3.0}), "1"},
		{"CORR", pairs, rowsOf([]any{1.0, 2.0}, []any{1.0, 2.0}), "NaN"},
		{"CORR", pairs, rowsOf([]any{1.0, infinity}), "NULL"},
		{"COVAR_SAMP", pairs, rowsOf([]any{1.0, 1.0}, []any{2.2e304, -2.2e304}), "-Inf"},
		{"COVAR_POP", pairs, rowsOf([]any{1.0, 1.7317579696886923e+308}, []any{2.0, 1.7317579696886923e+308}), "0"},
		{"COVAR_POP", pairs, rowsOf([]any{1.0, 2.0}, []any{3.0, notNumber}), "NaN"},
		{"APPROX_COUNT_DISTINCT", int64sArg, nil, "0"},
		{"APPROX_COUNT_DISTINCT", int64sArg, columnOf(1, 2, 3, nil, 2), "3"},
		{"APPROX_COUNT_DISTINCT", floatsArg, columnOf(0.0, math.Copysign(0, -1), notNumber, notNumber), "2"},
		{"APPROX_COUNT_DISTINCT", []*types.Type{types.ArrayOf(types.Int64Type)}, columnOf([]any{1}, []any{1}, []any{nil}), "2"},
	} {
		for _, parts := range []int{1, 2} {
			got, err := aggregateRows(t, tt.function, tt.args, tt.rows, parts)
			if err != nil {
				got = "!" + err.Error()
			}
			if got != tt.want && !(parts > 1 && strings.HasPrefix(tt.want, "!Bitwise")) {
				t.Errorf("%s%v of %v in %d parts is %s, want %s", tt.function, tt.args, tt.rows, parts, got, tt.want)
			}
			if err != nil && !errors.Is(err, fault.OutOfRange) {
				t.Errorf("%s: the error is %v", tt.function, err)
			}
		}
		_, s := aggregateSignature(t, tt.function, tt.args)
		if s.Grouped == nil {
			continue
		}
		for _, sel := range []bool{false, true} {
			got, err := groupRows(t, s, tt.args, tt.rows, sel, false)
			if err != nil {
				got = "!" + err.Error()
			}
			if got != tt.want {
				t.Errorf("%s%v of %v, grouped (selection %v), is %s, want %s", tt.function, tt.args, tt.rows, sel, got, tt.want)
			}
		}
	}
}

// TestGroupedConst: a constant argument counts for every row.
func TestGroupedConst(t *testing.T) {
	for _, tt := range []struct {
		function string
		args     []*types.Type
		x        any
		want     string
	}{
		{"COUNT", int64sArg, 7, "3"},
		{"COUNT", int64sArg, nil, "0"},
		{"SUM", int64sArg, 7, "21"},
		{"SUM", int64sArg, nil, "NULL"},
		{"SUM", floatsArg, 0.5, "1.5"},
		{"MAX", int64sArg, 7, "7"},
		{"MIN", floatsArg, 0.5, "0.5"},
		{"MIN", textsArg, "x", `"x"`},
		{"COUNTIF", boolsArg, true, "3"},
		{"VAR_POP", floatsArg, 0.5, "0"},
	} {
		_, s := aggregateSignature(t, tt.function, tt.args)
		got, err := groupRows(t, s, tt.args, columnOf(tt.x, tt.x, tt.x), false, true)
		if got != tt.want || err != nil {
			t.Errorf("%s of a constant is %s, %v, want %s", tt.function, got, err, tt.want)
		}
	}
}

// TestGroupedModel: for random batches of many groups, Grouped gives what New
// gives for the rows of each group.
func TestGroupedModel(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	const groups = 5
	for _, tt := range []struct {
		function string
		args     []*types.Type
	}{
		{"$count_star", nil}, {"COUNT", int64sArg}, {"COUNT", textsArg}, {"SUM", int64sArg}, {"SUM", floatsArg}, {"AVG", int64sArg}, {"AVG", floatsArg},
		{"MIN", int64sArg}, {"MAX", int64sArg}, {"MIN", floatsArg}, {"MAX", floatsArg}, {"MIN", textsArg}, {"MAX", textsArg}, {"COUNTIF", boolsArg},
		{"LOGICAL_AND", boolsArg}, {"LOGICAL_OR", boolsArg}, {"STDDEV", floatsArg},
	} {
		f, s := aggregateSignature(t, tt.function, tt.args)
		call := &Call{Types: tt.args, Result: aggregateResult(s, tt.args)}
		g := s.Grouped(call)
		single := make([]Accumulator, groups)
		for i := range single {
			single[i] = s.New(call)
		}
		for b := range 20 {
			n := random.IntN(100)
			rows := make([][]types.Value, n)
			for i := range rows {
				rows[i] = make([]types.Value, len(tt.args))
				for k, t := range tt.args {
					switch {
					case b%2 == 0 && random.IntN(4) == 0:
					case t.Kind == types.Int64:
						rows[i][k] = sqlValue(random.Int64N(1000) - 500)
					case t.Kind == types.Float64:
						rows[i][k] = sqlValue(float64(random.IntN(1000)) / 8)
					case t.Kind == types.Bool:
						rows[i][k] = sqlValue(random.IntN(2) == 0)
					default:
						rows[i][k] = sqlValue(strconv.Itoa(random.IntN(1000)))
					}
				}
			}
			var sel []int32
			if b%3 == 0 {
				sel = []int32{}
				for i := range n {
					if random.IntN(2) == 0 {
						sel = append(sel, int32(i))
					}
				}
			}
			var list []int32
			each := func(i int) {
				group := int32(0)
				if b%5 != 0 {
					group = int32(random.IntN(groups))
				}
				list = append(list, group)
				for _, row := range notIgnored(f, s, rows[i:i+1]) {
					if err := single[group].Add(row); err != nil {
						t.Fatal(err)
					}
				}
			}
			if sel != nil {
				for _, i := range sel {
					each(int(i))
				}
			} else {
				for i := range n {
					each(i)
				}
			}
			if b%5 == 0 {
				list = nil
			}
			g.Resize(groups)
			if err := g.AddBatch(list, batchOf(tt.args, rows), sel, n); err != nil {
				t.Fatal(err)
			}
		}
		out := types.NewVector(call.Result, groups)
		if err := g.Results(0, out, groups); err != nil {
			t.Fatal(err)
		}
		for i, a := range single {
			want, err := a.Result()
			if err != nil {
				t.Fatal(err)
			}
			if got := valueText(call.Result, out.Value(i)); got != valueText(call.Result, want) {
				t.Errorf("%s: group %d is %s, want %s", tt.function, i, got, valueText(call.Result, want))
			}
			if got, want := g.AppendState(i, nil), a.AppendState(nil); string(got) != string(want) {
				t.Errorf("%s: the state of group %d is %x, want %x", tt.function, i, got, want)
			}
		}
	}
}

func TestAggregateRemove(t *testing.T) {
	for _, tt := range []struct {
		function string
		args     []*types.Type
		rows     [][]types.Value
		want     string
	}{
		{"COUNT", int64sArg, columnOf(1, nil, 2), "1"},
		{"COUNTIF", boolsArg, columnOf(true, nil, false), "0"},
		{"SUM", int64sArg, columnOf(math.MaxInt64, 5, nil), "5"},
		{"SUM", int64sArg, columnOf(math.MinInt64, -5), "-5"},
		{"AVG", int64sArg, columnOf(-8, 1, 2), "1.5"},
		{"SUM", int64sArg, columnOf(3), "NULL"},
	} {
		_, s := aggregateSignature(t, tt.function, tt.args)
		a, ok := s.New(&Call{Types: tt.args, Result: s.Result.Type}).(Remover)
		if !ok {
			t.Errorf("%s cannot take rows away", tt.function)
			continue
		}
		for _, row := range tt.rows {
			if err := a.Add(row); err != nil {
				t.Fatal(err)
			}
		}
		if err := a.Remove(tt.rows[0]); err != nil {
			t.Fatal(err)
		}
		v, err := a.Result()
		if got := valueText(s.Result.Type, v); got != tt.want || err != nil {
			t.Errorf("%s without the first of %v is %s, %v, want %s", tt.function, tt.rows, got, err, tt.want)
		}
	}
}

// TestSumOrder: the sum of floatsArg is the same in any order and any parts.
func TestSumOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	rows := make([][]types.Value, 2000)
	for i := range rows {
		rows[i] = []types.Value{sqlValue(math.Ldexp(random.Float64()-0.5, random.IntN(100)-50))}
	}
	want, err := aggregateRows(t, "SUM", floatsArg, rows, 1)
	if err != nil {
		t.Fatal(err)
	}
	for parts := range 5 {
		random.Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
		if got, err := aggregateRows(t, "SUM", floatsArg, rows, parts+1); got != want || err != nil {
			t.Errorf("in another order the sum is %s, %v, not %s", got, err, want)
		}
	}
}

func TestAggregateChecks(t *testing.T) {
	array := types.ArrayOf(types.Int64Type)
	mapping := types.MapOf(types.StringType, types.Int64Type)
	for _, tt := range []struct {
		function, want string
		arg            *types.Type
	}{
		{"MIN", "", array},
		{"MIN", "MIN is not defined for arguments of type MAP<STRING, INT64>", mapping},
		{"MAX", "", types.BytesType},
		{"ARRAY_AGG", "The argument to ARRAY_AGG must not be an array type but was ARRAY<INT64>", array},
		{"APPROX_COUNT_DISTINCT", "APPROX_COUNT_DISTINCT is not defined for arguments of type MAP<STRING, INT64>", mapping},
		{"APPROX_QUANTILES", "APPROX_QUANTILES is not defined for arguments of type MAP<STRING, INT64>", mapping},
		{"PERCENTILE_DISC", "Unsupported argument type for percentile_disc.", array},
		{"APPROX_TOP_COUNT", "", array},
	} {
		f := Lookup(tt.function)
		check := f.Refuse
		if check == nil {
			check = f.Signatures[0].Check
		}
		if got := check([]*types.Type{tt.arg, types.Int64Type}); got != tt.want {
			t.Errorf("%s of %v: %q, want %q", tt.function, tt.arg, got, tt.want)
		}
	}
}

// stateCases are functions with arguments, for which states are made.
var stateCases = []struct {
	function string
	args     []*types.Type
	rows     [][]types.Value
}{
	{"COUNT", int64sArg, columnOf(1, 2)},
	{"SUM", int64sArg, columnOf(1, -2)},
	{"AVG", floatsArg, columnOf(1.5, infinity, 1e308)},
	{"MIN", int64sArg, columnOf(5)},
	{"MAX", floatsArg, columnOf(5.0)},
	{"MIN", textsArg, columnOf("five")},
	{"MAX", []*types.Type{types.ArrayOf(types.Int64Type)}, columnOf([]any{1, nil}, []any{1})},
	{"ANY_VALUE", []*types.Type{types.StructOf(types.Field{Type: types.StringType}, types.Field{Type: types.BoolType})}, columnOf([]any{"a", true})},
	{"ARRAY_AGG", []*types.Type{types.MapOf(types.BytesType, types.Float32Type)}, columnOf([]any{"k", 1.5}, nil)},
	{"ARRAY_CONCAT_AGG", []*types.Type{types.ArrayOf(types.TimestampType)}, columnOf([]any{1, nil, 3})},
	{"STRING_AGG", textsArg, columnOf("a", "b")},
	{"BIT_AND", int64sArg, columnOf(5, 6)},
	{"BIT_OR", blobsArg, columnOf("ab", "cd")},
	{"CORR", []*types.Type{types.Float64Type, types.Float64Type}, rowsOf([]any{1.0, 2e300}, []any{2.0, 1e300})},
	{"APPROX_COUNT_DISTINCT", textsArg, columnOf("a", "b", "c")},
	{"HLL_COUNT.INIT", int64sArg, columnOf(1, 2, 3)},
	{"APPROX_QUANTILES", []*types.Type{types.StringType, types.Int64Type}, rowsOf([]any{"x", 2}, []any{"y", 2}, []any{"z", 2})},
	{"APPROX_TOP_COUNT", []*types.Type{types.Int64Type, types.Int64Type}, rowsOf([]any{1, 2}, []any{nil, 2}, []any{1, 2})},
	{"APPROX_TOP_SUM", []*types.Type{types.StringType, types.Float64Type, types.Int64Type}, rowsOf([]any{"a", 1.5, 2}, []any{"b", nil, 2})},
}

// TestAggregateStates: a state survives being written and read, and nothing shorter or longer is
// one.
func TestAggregateStates(t *testing.T) {
	for _, tt := range stateCases {
		_, s := aggregateSignature(t, tt.function, tt.args)
		call := &Call{Types: tt.args, Result: aggregateResult(s, tt.args)}
		a := s.New(call)
		for _, row := range tt.rows {
			if err := a.Add(row); err != nil {
				t.Fatal(err)
			}
		}
		state := a.AppendState([]byte("before"))
		if string(state[:6]) != "before" {
			t.Errorf("%s overwrites what is before the state", tt.function)
		}
		state = state[6:]
		b := s.New(call)
		if err := b.MergeState(s.New(call).AppendState(nil)); err != nil {
			t.Errorf("%s: the state of no rows: %v", tt.function, err)
		}
		if err := b.MergeState(state); err != nil {
			t.Errorf("%s: %v", tt.function, err)
		}
		if got := b.AppendState(nil); string(got) != string(state) {
			t.Errorf("%s: the state %x became %x", tt.function, state, got)
		}
		for _, bad := range [][]byte{nil, state[1:], {0}, append([]byte{255}, state[1:]...)} {
			if err := s.New(call).MergeState(bad); !errors.Is(err, fault.Invalid) {
				t.Errorf("%s: a state %x: %v", tt.function, bad, err)
			}
		}
		if tt.function == "STRING_AGG" || strings.HasPrefix(tt.function, "MIN") || tt.function == "BIT_OR" {
			continue // their last part has no length of its own
		}
		for i := range state {
			if err := s.New(call).MergeState(state[:i]); err == nil && i > 1 {
				t.Errorf("%s: %d bytes of a state of %d are a state", tt.function, i, len(state))
			}
		}
		if err := s.New(call).MergeState(append(slices.Clone(state), 0)); err == nil {
			t.Errorf("%s: a state with a byte more is one", tt.function)
		}
	}
}

func FuzzAggregateState(f *testing.F) {
	for i, tt := range stateCases {
		_, s := aggregateSignature(f, tt.function, tt.args)
		a := s.New(&Call{Types: tt.args, Result: aggregateResult(s, tt.args)})
		for _, row := range tt.rows {
			if err := a.Add(row); err != nil {
				f.Fatal(err)
			}
		}
		f.Add(uint8(i), a.AppendState(nil))
	}
	f.Fuzz(func(t *testing.T, which uint8, state []byte) {
		tt := stateCases[int(which)%len(stateCases)]
		_, s := aggregateSignature(t, tt.function, tt.args)
		a := s.New(&Call{Types: tt.args, Result: aggregateResult(s, tt.args)})
		for _, row := range tt.rows {
			if err := a.Add(row); err != nil {
				t.Fatal(err)
			}
		}
		if err := a.MergeState(state); err != nil {
			return
		}
		if _, err := a.Result(); err != nil && !errors.Is(err, fault.OutOfRange) {
			t.Fatal(err)
		}
	})
}

// BenchmarkGrouped is the time of one row, of batches of 1,024 rows of 1,000
// groups, and of one group.
func BenchmarkGrouped(b *testing.B) {
	random := rand.New(rand.NewPCG(9, 10))
	groups := make([]int32, types.BatchRows)
	ints := types.NewVector(types.Int64Type, types.BatchRows)
	numbers := types.NewVector(types.Float64Type, types.BatchRows)
	strs := types.NewVector(types.StringType, types.BatchRows)
	for i := range groups {
		groups[i] = int32(random.IntN(1000))
		ints.Ints[i] = random.Int64()
		numbers.Floats[i] = random.Float64()
		strs.Strs[i] = strconv.Itoa(int(random.Int32()))
	}
	for _, tt := range []struct {
		function string
		arg      *types.Vector
	}{
		{"$count_star", nil}, {"COUNT", ints}, {"SUM", ints}, {"SUM", numbers}, {"AVG", ints}, {"AVG", numbers},
		{"MIN", ints}, {"MAX", numbers}, {"MAX", strs}, {"STDDEV", numbers},
	} {
		var args []*types.Type
		var vectors []*types.Vector
		kind := ""
		if tt.arg != nil {
			args, vectors = []*types.Type{tt.arg.Type}, []*types.Vector{tt.arg}
			kind = tt.arg.Type.String()
		}
		_, s := aggregateSignature(b, tt.function, args)
		for _, name := range []string{"1000", "1"} {
			b.Run(fmt.Sprintf("%s(%s)/groups=%s", tt.function, kind, name), func(b *testing.B) {
				g := s.Grouped(&Call{Types: args})
				g.Resize(1000)
				list := groups
				if name == "1" {
					list = nil
				}
				for b.Loop() {
					if err := g.AddBatch(list, vectors, nil, types.BatchRows); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/types.BatchRows, "ns/row")
			})
		}
	}
}
