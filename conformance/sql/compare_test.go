package sql

import (
	"math"
	"strings"
	"testing"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
)

func TestCompare(t *testing.T) {
	row := func(v ...types.Value) []types.Value { return v }
	ints := []algebra.OutputColumn{{Name: "a", Type: types.Int64Type}}
	three := [][]types.Value{row(types.NewInt(1)), row(types.NewInt(2)), row(types.Null)}
	list := []algebra.OutputColumn{{Type: types.ArrayOf(types.StringType)}}
	floats := []algebra.OutputColumn{{Type: types.Float64Type}}
	value := []algebra.OutputColumn{{Type: types.StructOf(types.Field{Name: "a", Type: types.Int64Type})}}
	for _, c := range []struct {
		expected string
		cols     []algebra.OutputColumn
		rows     [][]types.Value
		want     string // a part of the difference
	}{
		{"ARRAY<STRUCT<a INT64>>[unknown order:{NULL}, {2}, {1}]", ints, three, ""},
		{"ARRAY<STRUCT<a UINT32>>[known order:{1}, {2}, {NULL}]", ints, three, ""},
		{"ARRAY<STRUCT<a INT64>>[known order:{2}, {1}, {NULL}]", ints, three, "got 1, want 2"},
		{"ARRAY<STRUCT<a INT64>>[unknown order:{1}, {1}, {NULL}]", ints, three, "no element"},
		{"ARRAY<STRUCT<a INT64>>[{1}]", ints, three, "3 elements, want 1"},
		{"ARRAY<STRUCT<b INT64>>[]", ints, nil, `called "a", want "b"`},
		{"ARRAY<STRUCT<INT64>>[]", ints, nil, `called "a", want ""`},
		{"ARRAY<STRUCT<a STRING>>[]", ints, nil, "got INT64, want STRING"},
		{"ARRAY<STRUCT<a INT64, INT64>>[]", ints, nil, "1 columns, want 2"},
		{"ARRAY<INT64>[known order:1, 2, NULL]", ints, three, ""},
		{"ARRAY<STRUCT<a INT64>>[{7}]", value, [][]types.Value{row(types.NewList(row(types.NewInt(7))))}, ""},
		{"ARRAY<STRUCT<ARRAY<>>>[{ARRAY<STRING>[unknown order:\"y\", \"x\"]}]", list, [][]types.Value{row(types.NewList(row(types.NewString("x"), types.NewString("y"))))}, ""},
		{"ARRAY<STRUCT<ARRAY<>>>[{ARRAY<STRING>(NULL)}]", list, [][]types.Value{row(types.NewList(nil))}, "want NULL"},
		{"ARRAY<STRUCT<DOUBLE>>[known order:{0.1}, {nan}, {-inf}, {0}]", floats,
			[][]types.Value{row(types.NewFloat(math.Nextafter(0.1, 1))), row(types.NewFloat(math.NaN())), row(types.NewFloat(math.Inf(-1))), row(types.NewFloat(math.Copysign(0, -1)))}, ""},
		{"ARRAY<STRUCT<DOUBLE>>[{0.1}]", floats, [][]types.Value{row(types.NewFloat(0.1000000001))}, "got 0.1000000001, want 0.1"},
		{"ARRAY<STRUCT<DOUBLE>>[{inf}]", floats, [][]types.Value{row(types.NewFloat(math.MaxFloat64))}, "want inf"},
		{"ARRAY<STRUCT<d DATE, t TIMESTAMP, b BYTES>>[{2014-02-04, 2014-01-01 00:00:00.5+00, b\"\\xff\"}]",
			[]algebra.OutputColumn{{Name: "d", Type: types.DateType}, {Name: "t", Type: types.TimestampType}, {Name: "b", Type: types.BytesType}},
			[][]types.Value{row(types.NewInt(16105), types.NewInt(1388534400500000), types.NewString("\xff"))}, ""},
	} {
		r, err := Notation(c.expected)
		if err != nil {
			t.Errorf("%s: %v", c.expected, err)
			continue
		}
		got := r.Compare(c.cols, c.rows)
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.expected, got, c.want)
		}
	}
}
