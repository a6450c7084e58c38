package reference

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
)

// noTables is a Catalog of nothing: the queries bring their rows along.
type noTables struct{}

func (noTables) Table(_ context.Context, name string) (*algebra.Table, error) {
	return nil, fault.New(fault.NotFound, "Table not found: %s", name)
}
func (noTables) Tables(context.Context) ([]string, error) { return nil, nil }
func (noTables) Type(_ context.Context, path []string) (*types.Type, error) {
	return nil, fault.New(fault.NotFound, "Type not found: %s", strings.Join(path, "."))
}

// Ours evaluates a query with Trestle.
func Ours(ctx context.Context, e *query.Engine, sql string) (*Result, error) {
	r := new(Result)
	refused := func(err error) (*Result, error) {
		if k := fault.KindOf(err); k == fault.Invalid || k == fault.OutOfRange || k == fault.NotFound || k == fault.Exhausted {
			return &Result{Error: err.Error()}, nil
		}
		return nil, err
	}
	p, err := e.Prepare(ctx, noTables{}, sql, nil)
	if err != nil {
		return refused(err)
	}
	for _, c := range p.Columns() {
		r.Columns = append(r.Columns, [2]string{c.Name, typeName(c.Type)})
	}
	rows, err := e.Execute(ctx, p, query.Request{Params: algebra.Params{Now: time.Unix(1_700_000_000, 0)}})
	if err != nil {
		return refused(err)
	}
	defer rows.Close()
	for {
		b, err := rows.Next(ctx)
		if errors.Is(err, io.EOF) {
			return r, nil
		}
		if err != nil {
			return refused(err)
		}
		for i := range b.Rows() {
			at := i
			if b.Sel != nil {
				at = int(b.Sel[i])
			}
			row := make([]any, len(b.Cols))
			for c, v := range b.Cols {
				row[c] = plain(v.Type, v.Value(at))
			}
			r.Rows = append(r.Rows, row)
		}
	}
}

func typeName(t *types.Type) string {
	switch t.Kind {
	case types.Array:
		return "ARRAY<" + typeName(t.Elem) + ">"
	case types.Struct:
		names := make([]string, len(t.Fields))
		for i, f := range t.Fields {
			names[i] = typeName(f.Type)
		}
		return "STRUCT<" + strings.Join(names, ", ") + ">"
	}
	return t.String()
}

// plain returns a value in the form of Result, that JSON gives.
func plain(t *types.Type, v types.Value) any {
	if !v.Valid {
		return nil
	}
	switch t.Kind {
	case types.Bool:
		return v.Bool()
	case types.Float32, types.Float64:
		if v.Float != v.Float {
			return "nan"
		}
		return fmt.Sprintf("%016x", math.Float64bits(v.Float))
	case types.String:
		return strings.Clone(v.Str)
	case types.Bytes:
		return hex.EncodeToString([]byte(v.Str))
	case types.Array, types.Struct:
		list := make([]any, len(v.List))
		for i, e := range v.List {
			elem := t.Elem
			if t.Kind == types.Struct {
				elem = t.Fields[i].Type
			}
			list[i] = plain(elem, e)
		}
		return list
	}
	return strconv.FormatInt(v.Int, 10)
}

// A Kind is one of the differences that are explained: each has a reason why it stays.
type Kind string

const (
	// Digits differ at the end in functions of the mathematical library and in sums, by
	// 4e-15 of the number at most, and by 1e-13 where there are logarithms: that of a number
	// near 1 makes more of a difference. So do strings that show such numbers, and how many
	// rows DISTINCT leaves of them.
	Digits Kind = "last digits of floating point numbers"
	// Signatures are what some functions of Trestle have more of than the reference
	// implementation, as GoogleSQL's manual has them: EDIT_DISTANCE of BYTES, CAST FORMAT 'BASE32'.
	Signatures Kind = "signatures of the manual"
	// Literals of type STRING that are not ASCII become BYTES, as row keys are written so.
	Literals Kind = "STRING literals as BYTES"
	// Unneeded is an expression that the result does not need, or the other operand of an AND
	// that is FALSE: Trestle does not evaluate it, so it does not meet an error there.
	Unneeded Kind = "errors of what is not needed"
)

// A Difference is how two results differ, "" if they do not, and of which Kind it is, ""
// if it is not explained.
type Difference struct {
	Text string
	Kind Kind
}

// explain returns the Kind of a difference in whether a query is refused.
func explain(sql string, got, want *Result) Kind {
	if got.Error != "" {
		return ""
	}
	analysis := strings.HasSuffix(want.Error, "]") && strings.Contains(want.Error, "[at ")
	switch {
	case strings.HasPrefix(want.Error, "No matching signature for function EDIT_DISTANCE\n  Argument types: BYTES"), want.Error == "Invalid format 'BASE32'":
		return Signatures
	case analysis && strings.Contains(want.Error, "BYTES") && strings.Contains(want.Error, "STRING") && strings.ContainsFunc(sql, func(r rune) bool { return r > 127 }):
		return Literals
	case !analysis && lazy.MatchString(sql):
		return Unneeded
	}
	return ""
}

// lazy finds where an expression may not be needed.
var lazy = regexp.MustCompile(`\b(AND|OR|LIMIT|EXISTS|JOIN|IF|CASE|COALESCE|IFNULL)\b|\(SELECT`)

// Compare compares what Trestle answered to sql with what it should have. ordered says
// that the order of rows counts.
func Compare(sql string, got, want *Result, ordered bool) Difference {
	switch {
	case (got.Error == "") != (want.Error == ""):
		return Difference{Text: fmt.Sprintf("error %q, want %q", got.Error, want.Error), Kind: explain(sql, got, want)}
	case got.Error != "":
		return Difference{}
	case len(got.Columns) != len(want.Columns):
		return Difference{Text: fmt.Sprintf("columns %v, want %v", got.Columns, want.Columns)}
	case len(got.Rows) != len(want.Rows):
		d := Difference{Text: fmt.Sprintf("%d rows, want %d", len(got.Rows), len(want.Rows))}
		if merges.MatchString(sql) && allFound(sql, got.Rows, want.Rows, want) && allFound(sql, want.Rows, got.Rows, want) {
			d.Kind = Digits
		}
		return d
	}
	for i, c := range want.Columns {
		if got.Columns[i][1] != c[1] {
			return Difference{Text: fmt.Sprintf("column %d is of type %s, want %s", i, got.Columns[i][1], c[1])}
		}
	}
	a, b := got.Rows, want.Rows
	if !ordered {
		byText := func(x, y []any) int { return strings.Compare(fmt.Sprint(x), fmt.Sprint(y)) }
		a, b = slices.SortedFunc(slices.Values(a), byText), slices.SortedFunc(slices.Values(b), byText)
	}
	explained := false
	for i := range a {
		c, same := compareRow(sql, a[i], b[i], want)
		if c >= 0 && !ordered {
			// Rows whose floats differ in the last digits may be sorted in another way.
			for k := i + 1; k < len(a) && c >= 0; k++ {
				if c, same = compareRow(sql, a[k], b[i], want); c < 0 {
					a[i], a[k] = a[k], a[i]
				}
			}
			if c >= 0 {
				c, _ = compareRow(sql, a[i], b[i], want)
			}
		}
		if c >= 0 {
			return Difference{Text: fmt.Sprintf("row %d, column %d is %s, want %s", i, c, readable(a[i][c], want.Columns[c][1]), readable(b[i][c], want.Columns[c][1]))}
		}
		explained = explained || !same
	}
	if explained {
		return Difference{Text: "floating point numbers differ in the last digits", Kind: Digits}
	}
	return Difference{}
}

// merges finds what makes one row of equal ones: numbers that differ in the last digit make
// two.
var merges = regexp.MustCompile(`\b(DISTINCT|GROUP BY)\b`)

// allFound tells whether each row is among others, but for last digits.
func allFound(sql string, rows, others [][]any, want *Result) bool {
	for _, a := range rows {
		if !slices.ContainsFunc(others, func(b []any) bool { c, _ := compareRow(sql, a, b, want); return c < 0 }) {
			return false
		}
	}
	return true
}

// compareRow returns the number of a column that differs, -1 if none does. same is false
// if some differ in the last digits.
func compareRow(sql string, a, b []any, want *Result) (column int, same bool) {
	all, digits := true, 4e-15
	if logarithms.MatchString(sql) {
		digits = 1e-13
	}
	for c := range b {
		same, near := equal(a[c], b[c], want.Columns[c][1], digits)
		if !same && !near && !(moments.MatchString(sql) && bothZero(a[c], b[c])) {
			return c, false
		}
		all = all && same
	}
	return -1, all
}

// moments finds the aggregate functions that work with means, of which a result that is
// zero is a rounding error.
var moments = regexp.MustCompile(`\b(AVG|CORR|COVAR_POP|COVAR_SAMP|VAR_POP|VAR_SAMP|STDDEV_POP|STDDEV_SAMP)\(`)

// logarithms finds the functions whose results near zero show the last digit of what they
// are given.
var logarithms = regexp.MustCompile(`\b(LN|LOG|LOG10)\(`)

func bothZero(a, b any) bool {
	s, okS := a.(string)
	t, okT := b.(string)
	if !okS || !okT {
		return false
	}
	x, okX := float(s)
	y, okY := float(t)
	return okX && okY && math.Abs(x) < 4e-15 && math.Abs(y) < 4e-15
}

// equal compares two plain values; near says that they differ in the last digits of
// floating point numbers only: by that part of them.
func equal(a, b any, typ string, digits float64) (same, near bool) {
	switch a := a.(type) {
	case []any:
		b, ok := b.([]any)
		if !ok || len(a) != len(b) {
			return false, false
		}
		same, near = true, true
		for i := range a {
			s, n := equal(a[i], b[i], typ, digits)
			same, near = same && s, near && (s || n)
		}
		return same, near
	case string:
		b, ok := b.(string)
		if !ok {
			return false, false
		}
		if a == b {
			return true, true
		}
		if strings.Contains(typ, "STRING") {
			return false, nearText(a, b)
		}
		if !strings.Contains(typ, "FLOAT") {
			return false, false
		}
		x, okX := float(a)
		y, okY := float(b)
		return okX && okY && x == y, okX && okY && (x == y || math.Abs(x-y) <= digits*max(math.Abs(x), math.Abs(y)))
	}
	return a == b, a == b
}

// number finds numbers in a text, as SQL writes them.
var number = regexp.MustCompile(`[0-9]+\.[0-9]+(e[+-][0-9]+)?`)

// nearText tells whether two texts differ in the last digits of numbers only.
func nearText(a, b string) bool {
	x, y := number.FindAllString(a, -1), number.FindAllString(b, -1)
	if len(x) != len(y) || number.ReplaceAllString(a, "#") != number.ReplaceAllString(b, "#") {
		return false
	}
	for i := range x {
		f, errF := strconv.ParseFloat(x[i], 64)
		g, errG := strconv.ParseFloat(y[i], 64)
		if errF != nil || errG != nil || math.Abs(f-g) > 4e-15*max(math.Abs(f), math.Abs(g)) {
			return false
		}
	}
	return true
}

func float(s string) (float64, bool) {
	u, err := strconv.ParseUint(s, 16, 64)
	return math.Float64frombits(u), err == nil && len(s) == 16
}

func readable(v any, typ string) string {
	if s, ok := v.(string); ok && strings.HasPrefix(typ, "FLOAT") {
		if f, ok := float(s); ok {
			return strconv.FormatFloat(f, 'g', -1, 64)
		}
	}
	return fmt.Sprintf("%q", fmt.Sprint(v))
}
