package sql

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
)

// names are GoogleSQL's names of types in results, and what they are here: integers
// of all widths are INT64.
var names = map[string]types.Kind{
	"BOOL": types.Bool, "INT32": types.Int64, "INT64": types.Int64, "UINT32": types.Int64, "UINT64": types.Int64,
	"FLOAT": types.Float32, "DOUBLE": types.Float64, "STRING": types.String, "BYTES": types.Bytes, "DATE": types.Date,
	"TIMESTAMP": types.Timestamp, "ARRAY": types.Array, "STRUCT": types.Struct, "MAP": types.Map, "PROTO": types.Proto, "ENUM": types.Enum,
}

// Compare tells how rows differ from what r expects, "" if they do not.
func (r *Result) Compare(cols []algebra.OutputColumn, rows [][]types.Value) string {
	row, list := rowType(cols), rows
	if r.Type.Name != "ARRAY" || r.Type.Elem == nil {
		return "the expected result is no ARRAY"
	}
	if d := sameType(r.Type.Elem, row); d != "" {
		if len(cols) != 1 {
			return "type: " + d
		}
		// Rows of SELECT AS STRUCT and SELECT AS VALUE are values.
		if sameType(r.Type.Elem, cols[0].Type) != "" {
			return "type: " + d
		}
		row = cols[0].Type
	} else {
		list = make([][]types.Value, len(rows))
		for i, v := range rows {
			list[i] = []types.Value{types.NewList(v)}
		}
	}
	var all []types.Value
	for _, v := range list {
		all = append(all, v[0])
	}
	return sameList(r.Rows, func(int) *types.Type { return row }, all)
}

func rowType(cols []algebra.OutputColumn) *types.Type {
	row := &types.Type{Kind: types.Struct}
	for _, c := range cols {
		row.Fields = append(row.Fields, types.Field{Name: c.Name, Type: c.Type})
	}
	return row
}

func sameType(want *Type, got *types.Type) string {
	kind, ok := names[want.Name]
	if !ok || kind != got.Kind {
		return fmt.Sprintf("got %s, want %s", got, want.Name)
	}
	if kind != types.Struct {
		return ""
	}
	if len(want.Fields) != len(got.Fields) {
		return fmt.Sprintf("%d columns, want %d", len(got.Fields), len(want.Fields))
	}
	for i, f := range want.Fields {
		if f.Name != got.Fields[i].Name {
			return fmt.Sprintf("column %d is called %q, want %q", i+1, got.Fields[i].Name, f.Name)
		}
		if d := sameType(f.Type, got.Fields[i].Type); d != "" {
			return fmt.Sprintf("column %d: %s", i+1, d)
		}
	}
	return ""
}

// sameList compares the elements of an array or a struct, of which typ gives the types.
func sameList(want *Value, typ func(int) *types.Type, got []types.Value) string {
	if len(want.List) != len(got) {
		return fmt.Sprintf("%d elements, want %d", len(got), len(want.List))
	}
	if !want.Unordered {
		for i, w := range want.List {
			if d := sameValue(w, typ(i), got[i]); d != "" {
				return fmt.Sprintf("element %d: %s", i+1, d)
			}
		}
		return ""
	}
	used := make([]bool, len(got))
	for i, w := range want.List {
		first := ""
		found := false
		for j := range got {
			if used[j] {
				continue
			}
			d := sameValue(w, typ(j), got[j])
			if d == "" {
				used[j], found = true, true
				break
			}
			if first == "" {
				first = d
			}
		}
		if !found {
			return fmt.Sprintf("no element is the expected one of index %d; the first that is left: %s", i, first)
		}
	}
	return ""
}

func sameValue(want *Value, t *types.Type, got types.Value) string {
	differs := func() string { return fmt.Sprintf("got %s, want %s", Print(t, got), want) }
	if want.Kind == "null" || !got.Valid {
		if want.Kind == "null" && !got.Valid {
			return ""
		}
		return differs()
	}
	same := false
	switch t.Kind {
	case types.Array:
		if want.Kind == "array" {
			return sameList(want, func(int) *types.Type { return t.Elem }, got.List)
		}
	case types.Struct:
		if want.Kind == "struct" {
			return sameList(want, func(i int) *types.Type { return t.Fields[i].Type }, got.List)
		}
	case types.Map:
		if want.Kind == "map" || want.Kind == "struct" && len(want.List) == 0 {
			return sameList(want, func(i int) *types.Type {
				if i%2 == 0 {
					return t.Key
				}
				return t.Elem
			}, got.List)
		}
	case types.String:
		same = want.Kind == "string" && want.Text == got.Str
	case types.Bytes:
		same = want.Kind == "bytes" && want.Text == got.Str
	case types.Float32, types.Float64:
		same = want.Kind == "word" && sameFloat(want.Text, t.Kind, got.Float)
	default:
		same = want.Kind == "word" && want.Text == Print(t, got)
	}
	if !same {
		return differs()
	}
	return ""
}

// ulps is how many floating point numbers a result may be away from the expected one.
// GoogleSQL's own comparison allows as many: sums and logarithms depend on their order.
const ulps = 16

func sameFloat(want string, k types.Kind, got float64) bool {
	w, err := strconv.ParseFloat(want, 64)
	switch {
	case err != nil:
		return false
	case w != w || math.IsInf(w, 0) || got != got || math.IsInf(got, 0):
		return w == got || w != w && got != got
	case k == types.Float32:
		return distance(int64(ordered32(float32(w))), int64(ordered32(float32(got)))) <= ulps
	}
	return distance(ordered64(w), ordered64(got)) <= ulps
}

// ordered64 numbers floats in their order, with 0 and -0 as 0.
func ordered64(f float64) int64 {
	if i := int64(math.Float64bits(f)); i >= 0 {
		return i
	}
	return -int64(math.Float64bits(-f))
}

func ordered32(f float32) int32 {
	if i := int32(math.Float32bits(f)); i >= 0 {
		return i
	}
	return -int32(math.Float32bits(-f))
}

func distance(a, b int64) uint64 {
	if a > b {
		a, b = b, a
	}
	return uint64(b) - uint64(a)
}

// Print writes a value nearly as GoogleSQL does.
func Print(t *types.Type, v types.Value) string {
	if !v.Valid {
		return "NULL"
	}
	switch t.Kind {
	case types.Bool:
		return strconv.FormatBool(v.Int != 0)
	case types.Date:
		return time.Unix(v.Int*86400, 0).UTC().Format("2006-01-02")
	case types.Timestamp:
		return time.UnixMicro(v.Int).UTC().Format("2006-01-02 15:04:05.999999") + "+00"
	case types.Enum:
		for _, e := range t.Enumeration.Values {
			if int64(e.Number) == v.Int {
				return e.Name
			}
		}
	case types.Float32:
		return strconv.FormatFloat(v.Float, 'g', -1, 32)
	case types.Float64:
		return strconv.FormatFloat(v.Float, 'g', -1, 64)
	case types.String:
		return strconv.Quote(v.Str)
	case types.Bytes, types.Proto:
		return "b" + strconv.Quote(v.Str)
	case types.Array, types.Map:
		s := "["
		for i, e := range v.List {
			if i > 0 {
				s += ", "
			}
			et := t.Elem
			if t.Kind == types.Map && i%2 == 0 {
				et = t.Key
			}
			s += Print(et, e)
		}
		return s + "]"
	case types.Struct:
		s := "{"
		for i, e := range v.List {
			if i > 0 {
				s += ", "
			}
			s += Print(t.Fields[i].Type, e)
		}
		return s + "}"
	}
	return strconv.FormatInt(v.Int, 10)
}
