package filter

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
)

func chain(ns ...*Node) *Node       { return &Node{Op: Chain, Children: ns} }
func interleaved(ns ...*Node) *Node { return &Node{Op: Interleave, Children: ns} }
func conditional(predicate, then, otherwise *Node) *Node {
	return &Node{Op: Condition, Children: []*Node{predicate, then, otherwise}}
}
func op(o Op) *Node              { return &Node{Op: o} }
func regex(o Op, p string) *Node { return &Node{Op: o, Pattern: []byte(p)} }
func count(o Op, n int32) *Node  { return &Node{Op: o, N: n} }
func label(l string) *Node       { return &Node{Op: ApplyLabel, Label: l} }
func times(start, end int64) *Node {
	return &Node{Op: TimestampRange, Times: cell.TimeRange{Start: start, End: end}}
}
func closed(k string) Bound              { return Bound{Key: []byte(k), Set: true} }
func open(k string) Bound                { return Bound{Key: []byte(k), Set: true, Open: true} }
func columns(f string, s, e Bound) *Node { return &Node{Op: ColumnRange, Family: f, Start: s, End: e} }
func values(s, e Bound) *Node            { return &Node{Op: ValueRange, Start: s, End: e} }

// parseCells reads cells like "a:q@3=v a:q@2=w".
func parseCells(s string) []row.Cell {
	var cells []row.Cell
	for _, f := range strings.Fields(s) {
		family, rest, _ := strings.Cut(f, ":")
		qualifier, rest, _ := strings.Cut(rest, "@")
		ts, value, _ := strings.Cut(rest, "=")
		var t int64
		fmt.Sscan(ts, &t)
		cells = append(cells, row.Cell{Family: family, Qualifier: []byte(qualifier), Timestamp: t, Value: []byte(value)})
	}
	return cells
}

func format(cells []row.Cell) string {
	var out []string
	for _, c := range cells {
		s := fmt.Sprintf("%s:%s@%d=%s", c.Family, c.Qualifier, c.Timestamp, c.Value)
		if len(c.Labels) > 0 {
			s += fmt.Sprint(c.Labels)
		}
		out = append(out, s)
	}
	return strings.Join(out, " ")
}

func mustCompile(t testing.TB, n *Node) *Program {
	t.Helper()
	p, err := Compile(n)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

const input = "a:p@9=x a:q@5=v1 a:q@3=v2 a:q@1=v3 a:r@2=\xf0 b:q@4=v2 b:q@2= c:z@7=x"

func TestEachFilter(t *testing.T) {
	block := op(BlockAll)
	for _, test := range []struct {
		name   string
		filter *Node
		want   string
	}{
		{"none", nil, input},
		{"pass all", op(PassAll), input},
		{"block all", block, ""},
		{"chain", chain(regex(FamilyRegex, "a"), times(3, math.MaxInt64)), "a:p@9=x a:q@5=v1 a:q@3=v2"},
		{"chain in its order: limit, then filter", chain(count(CellsPerRowLimit, 2), regex(QualifierRegex, "q")), "a:q@5=v1"},
		{"chain in its order: filter, then limit", chain(regex(QualifierRegex, "q"), count(CellsPerRowLimit, 2)), "a:q@5=v1 a:q@3=v2"},
		{"chain with an unset filter", chain(nil, regex(FamilyRegex, "c")), "c:z@7=x"},
		{"interleave", interleaved(regex(FamilyRegex, "c"), columns("a", closed("r"), Bound{})), "a:r@2=\xf0 c:z@7=x"},
		{"interleave keeps copies", interleaved(regex(FamilyRegex, "c"), regex(QualifierRegex, "z"), block), "c:z@7=x c:z@7=x"},
		{"interleave: copies count each", chain(interleaved(nil, nil), count(CellsPerRowLimit, 3)), "a:p@9=x a:p@9=x a:q@5=v1"},
		{"interleave: copies count each in columns", chain(interleaved(nil, nil), count(CellsPerColumnLimit, 3), regex(FamilyRegex, "b")), "b:q@4=v2 b:q@4=v2 b:q@2="},
		{"interleave labels apart", chain(regex(FamilyRegex, "c"), interleaved(label("one"), label("two"))), "c:z@7=x[one] c:z@7=x[two]"},
		{"interleave with a condition sorts", interleaved(regex(FamilyRegex, "[bc]"), conditional(nil, regex(FamilyRegex, "a|c"), nil)), "a:p@9=x a:q@5=v1 a:q@3=v2 a:q@1=v3 a:r@2=\xf0 b:q@4=v2 b:q@2= c:z@7=x c:z@7=x"},
		{"condition true", conditional(regex(ValueRegex, "v3"), regex(FamilyRegex, "c"), label("no")), "c:z@7=x"},
		{"condition true by a late cell", conditional(regex(FamilyRegex, "c"), count(CellsPerColumnLimit, 1), nil), "a:p@9=x a:q@5=v1 a:r@2=\xf0 b:q@4=v2 c:z@7=x"},
		{"condition false", conditional(regex(ValueRegex, "v4"), nil, regex(FamilyRegex, "c")), "c:z@7=x"},
		{"condition without true branch", conditional(regex(ValueRegex, "v3"), nil, op(PassAll)), ""},
		{"condition without false branch", conditional(regex(ValueRegex, "v4"), op(PassAll), nil), ""},
		{"condition without predicate", conditional(nil, regex(FamilyRegex, "c"), regex(FamilyRegex, "a")), "c:z@7=x"},
		{"condition on its own input", chain(block, conditional(nil, op(PassAll), op(PassAll))), ""},
		{"condition ends a predicate that lost interest", conditional(
			chain(count(CellsPerRowLimit, 1), conditional(regex(ValueRegex, "no"), nil, op(PassAll))),
			regex(FamilyRegex, "c"), nil), "c:z@7=x"},
		{"condition on the row key", conditional(regex(RowKeyRegex, "other"), nil, regex(FamilyRegex, "c")), "c:z@7=x"},
		{"sink alone", op(Sink), input},
		{"sink yields nothing to its parent", chain(op(Sink), op(PassAll)), input},
		{"sink before block", chain(regex(FamilyRegex, "c"), op(Sink), block), "c:z@7=x"},
		{"sink of a row that a later filter drops", chain(interleaved(chain(regex(FamilyRegex, "c"), op(Sink)), nil), regex(RowKeyRegex, "other")), "c:z@7=x"},
		{"sink next to a condition", chain(interleaved(chain(regex(QualifierRegex, "q"), op(Sink)), nil), conditional(regex(FamilyRegex, "c"), regex(QualifierRegex, "p|z"), nil)),
			"a:p@9=x a:q@5=v1 a:q@3=v2 a:q@1=v3 b:q@4=v2 b:q@2= c:z@7=x"},
		{"row key", regex(RowKeyRegex, "k.y"), input},
		{"row key differs", regex(RowKeyRegex, "ke"), ""},
		{"sample in", &Node{Op: RowSample, P: 0.6}, input},
		{"sample out", &Node{Op: RowSample, P: 0.4}, ""},
		{"family", regex(FamilyRegex, "b"), "b:q@4=v2 b:q@2="},
		{"families", regex(FamilyRegex, "[bd]|c"), "b:q@4=v2 b:q@2= c:z@7=x"},
		{"family is a full match", regex(FamilyRegex, ""), ""},
		{"qualifier", regex(QualifierRegex, "[pz]"), "a:p@9=x c:z@7=x"},
		{"columns closed", columns("a", closed("p"), closed("q")), "a:p@9=x a:q@5=v1 a:q@3=v2 a:q@1=v3"},
		{"columns open", columns("a", open("p"), open("r")), "a:q@5=v1 a:q@3=v2 a:q@1=v3"},
		{"columns unbounded", columns("b", Bound{}, Bound{}), "b:q@4=v2 b:q@2="},
		{"columns to the empty qualifier", columns("b", Bound{}, open("")), ""},
		{"columns empty", columns("a", open("q"), closed("q")), ""},
		{"times", times(2, 5), "a:q@3=v2 a:r@2=\xf0 b:q@4=v2 b:q@2="},
		{"times from", times(5, math.MaxInt64), "a:p@9=x a:q@5=v1 c:z@7=x"},
		{"times empty", times(5, 5), ""},
		{"value", regex(ValueRegex, "v[13]"), "a:q@5=v1 a:q@1=v3"},
		{"value empty", regex(ValueRegex, ""), "b:q@2="},
		{"values closed", values(closed("v1"), closed("v2")), "a:q@5=v1 a:q@3=v2 b:q@4=v2"},
		{"values open", values(open("v1"), open("v3")), "a:q@3=v2 b:q@4=v2"},
		{"values unset", values(Bound{}, Bound{}), input},
		{"bitmask", regex(ValueBitmask, "\x70"), "a:p@9=x a:r@2=\xf0 c:z@7=x"},
		{"bitmask all bits", regex(ValueBitmask, "\xf0"), "a:r@2=\xf0"},
		{"bitmask empty", regex(ValueBitmask, ""), "b:q@2="},
		{"bitmask of two bytes", regex(ValueBitmask, "\x00\x02"), "a:q@3=v2 a:q@1=v3 b:q@4=v2"},
		{"offset", count(CellsPerRowOffset, 6), "b:q@2= c:z@7=x"},
		{"offset 0", count(CellsPerRowOffset, 0), input},
		{"offset beyond", count(CellsPerRowOffset, 99), ""},
		{"offset, then limit", chain(count(CellsPerRowOffset, 4), count(CellsPerRowLimit, 2)), "a:r@2=\xf0 b:q@4=v2"},
		{"row limit", count(CellsPerRowLimit, 1), "a:p@9=x"},
		{"column limit", count(CellsPerColumnLimit, 1), "a:p@9=x a:q@5=v1 a:r@2=\xf0 b:q@4=v2 c:z@7=x"},
		{"column limit 2", chain(count(CellsPerColumnLimit, 2), regex(QualifierRegex, "q")), "a:q@5=v1 a:q@3=v2 b:q@4=v2 b:q@2="},
		{"strip", chain(regex(FamilyRegex, "b"), op(StripValue)), "b:q@4= b:q@2="},
		{"strip goes before what follows", chain(op(StripValue), regex(ValueRegex, "x")), ""},
		{"label", chain(regex(FamilyRegex, "c"), label("a-0")), "c:z@7=x[a-0]"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := mustCompile(t, test.filter)
			cells := parseCells(input)
			if got := format(evaluate(test.filter, []byte("key"), cells, 0.5)); got != test.want {
				t.Errorf("the reference gives %s, want %s", got, test.want)
			}
			for _, how := range readers {
				var out collector
				pl := p.Pipeline(&out, func() float64 { return 0.5 })
				for range 2 {
					if got := format(read(pl, p.Hints(), &out, how, []byte("key"), cells)); got != test.want {
						t.Errorf("%s reader got %s, want %s", how.name, got, test.want)
					}
				}
			}
		})
	}
}

// The example in the comment of RowFilter.sink in google/bigtable/v2/data.proto.
func TestSinkExample(t *testing.T) {
	n := chain(
		regex(FamilyRegex, "A"),
		interleaved(op(PassAll), chain(label("foo"), op(Sink))),
		regex(QualifierRegex, "B"),
	)
	p := mustCompile(t, n)
	cells := parseCells("A:A@1=w A:B@2=x B:B@4=z")
	for _, how := range readers {
		var out collector
		got := canonical(read(p.Pipeline(&out, nil), p.Hints(), &out, how, []byte("k"), cells))
		want := "A:\"A\"@1=\"w\"[foo]\nA:\"B\"@2=\"x\"[]\nA:\"B\"@2=\"x\"[foo]\n"
		if got != want {
			t.Errorf("%s reader got\n%swant\n%s", how.name, got, want)
		}
	}
}

func nested(o Op, depth int) *Node {
	n := op(PassAll)
	for range depth - 1 {
		switch o {
		case Condition:
			n = conditional(n, nil, nil)
		default:
			n = &Node{Op: o, Children: []*Node{n, nil}}
		}
	}
	return n
}

func TestValidate(t *testing.T) {
	doubling := func(n int) *Node {
		c := chain(nil, nil)
		for range n {
			c.Children = append(c.Children, interleaved(nil, nil))
		}
		return c
	}
	const tooDeep = "Row filter exceeds maximum nesting depth of 20"
	for _, test := range []struct {
		name        string
		filter      *Node
		field, text string // text is empty for a valid filter
	}{
		{"nil", nil, "", ""},
		{"depth 20", nested(Chain, 20), "", ""},
		{"depth 21", nested(Chain, 21), "filter", tooDeep},
		{"interleaves at depth 21", nested(Interleave, 21), "filter", tooDeep},
		{"conditions at depth 20", nested(Condition, 20), "", ""},
		{"conditions at depth 21", nested(Condition, 21), "filter", tooDeep},
		{"very deep", nested(Chain, 1_000_000), "filter", tooDeep},
		{"chain of 0", chain(), "filter.chain", "Chain must contain at least two RowFilters"},
		{"chain of 1", chain(nil), "filter.chain", "Chain must contain at least two RowFilters"},
		{"interleave of 1", chain(nil, interleaved(nil)), "filter.chain.filters[1].interleave", "Interleave must contain at least two RowFilters"},
		{"condition of 2", &Node{Op: Condition, Children: make([]*Node, 2)}, "filter.condition", "condition has 2 filters instead of 3"},
		{"sink in a predicate", conditional(op(Sink), nil, nil), "filter.condition.predicate_filter.sink", "sink cannot be nested in a condition filter"},
		{"sink in a true branch", conditional(nil, op(Sink), nil), "filter.condition.true_filter.sink", "sink cannot be nested in a condition filter"},
		{"sink in a false branch", conditional(nil, nil, chain(nil, op(Sink))), "filter.condition.false_filter.chain.filters[1].sink", "sink cannot be nested in a condition filter"},
		{"sink after a condition", chain(conditional(nil, nil, nil), op(Sink)), "", ""},
		{"no row key regex", op(RowKeyRegex), "filter.row_key_regex_filter", "Error in field 'row_key_regex_filter' : argument must not be empty"},
		{"bad row key regex", regex(RowKeyRegex, "("), "filter.row_key_regex_filter", "Error in field 'row_key_regex_filter' : error parsing regexp: missing closing ): `(`"},
		{"bad family regex", regex(FamilyRegex, "*"), "filter.family_name_regex_filter", "Error in field 'family_name_regex_filter' : error parsing regexp: missing argument to repetition operator: `*`"},
		{"family regex with a colon", regex(FamilyRegex, "a|[b:]"), "filter.family_name_regex_filter", "Error in field 'family_name_regex_filter' : argument must not contain ':'"},
		{"bad qualifier regex", regex(QualifierRegex, "a)|(b"), "filter.column_qualifier_regex_filter", "Error in field 'column_qualifier_regex_filter' : error parsing regexp: unexpected ): `a)|(b`"},
		{"bad value regex", regex(ValueRegex, `a\`), "filter.value_regex_filter", "Error in field 'value_regex_filter' : error parsing regexp: trailing backslash at end of expression: ``"},
		{"repetition over 1000", regex(ValueRegex, `a{1001}`), "filter.value_regex_filter", "Error in field 'value_regex_filter' : error parsing regexp: invalid repeat count: `{1001}`"},
		{"huge program", regex(ValueRegex, `(`+strings.Repeat("a.", 100)+`){1000}`), "filter.value_regex_filter", "Error in field 'value_regex_filter' : pattern too large - compile failed"},
		{"huge programs together", &Node{Op: Interleave, Children: repeat(regex(ValueRegex, `.{1000}b`), 100)}, "filter.interleave.filters[65].value_regex_filter", "Error in field 'value_regex_filter' : pattern too large - compile failed"},
		{"groups nested too deeply", regex(ValueRegex, strings.Repeat("(", 2000)+"a"+strings.Repeat(")", 2000)), "filter.value_regex_filter", "Error in field 'value_regex_filter' : expression nests too deeply"},
		{"column range without family", columns("", closed("a"), Bound{}), "filter.column_range_filter.family_name", "Error in field 'column_range_filter' : family_name must not be empty"},
		{"column range inverted", columns("f", closed("b"), open("a")), "filter.column_range_filter", "Error in field 'column_range_filter' : start_qualifier must not be greater than end_qualifier"},
		{"column range empty", columns("f", open("b"), open("b")), "", ""},
		{"value range inverted", values(closed("b"), open("a")), "filter.value_range_filter", "Error in field 'value_range_filter' : start_value must not be greater than end_value"},
		{"times inverted", times(2, 1), "filter.timestamp_range_filter", "Error in field 'timestamp_range_filter' : start_timestamp_micros must not be greater than end_timestamp_micros"},
		{"sample 0", &Node{Op: RowSample}, "filter.row_sample_filter", "row_sample_filter argument must be between 0.0 and 1.0"},
		{"sample 1", &Node{Op: RowSample, P: 1}, "filter.row_sample_filter", "row_sample_filter argument must be between 0.0 and 1.0"},
		{"sample NaN", &Node{Op: RowSample, P: math.NaN()}, "filter.row_sample_filter", "row_sample_filter argument must be between 0.0 and 1.0"},
		{"offset -1", count(CellsPerRowOffset, -1), "filter.cells_per_row_offset_filter", "Error in field 'cells_per_row_offset_filter' : argument must be >= 0"},
		{"row limit 0", count(CellsPerRowLimit, 0), "filter.cells_per_row_limit_filter", "Error in field 'cells_per_row_limit_filter' : argument must be > 0"},
		{"column limit 0", count(CellsPerColumnLimit, 0), "filter.cells_per_column_limit_filter", "Error in field 'cells_per_column_limit_filter' : argument must be > 0"},
		{"label with a space", label("A B"), "filter.apply_label_transformer", `apply_label_transformer must match RE2([a-z0-9\\-]+), but found A B`},
		{"label empty", label(""), "filter.apply_label_transformer", `apply_label_transformer must match RE2([a-z0-9\\-]+), but found `},
		{"label of 15", label("a23456789012345"), "", ""},
		{"label of 16", label("a234567890123456"), "filter.apply_label_transformer", "apply_label_transformer must be at most 15 characters long, but found a234567890123456"},
		{"two labels in a chain", chain(label("a"), nil, label("b")), "filter.chain", "Chain must contain at most one RowFilter with an apply_label_transformer"},
		{"two labels, one inside", chain(label("a"), interleaved(nil, label("b"))), "filter.chain", "Chain must contain at most one RowFilter with an apply_label_transformer"},
		{"two labels in an interleave", interleaved(label("a"), label("b")), "", ""},
		{"labels in an interleave in a chain", chain(nil, interleaved(label("a"), label("b"))), "", ""},
		{"2048 copies of a cell", doubling(11), "", ""},
		{"too many copies of a cell", doubling(13), "filter", "Row filter multiplies cells too often: a cell may pass at most 10000 filters, copies counted"},
		{"copies without end", doubling(4000), "filter", "Row filter multiplies cells too often: a cell may pass at most 10000 filters, copies counted"},
		{"unknown", op(99), "filter", "unknown filter 99"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, cerr := Compile(test.filter)
			for _, err := range []error{test.filter.Validate(), cerr} {
				if test.text == "" {
					if err != nil {
						t.Error("refused: ", err)
					}
					continue
				}
				var f *fault.Error
				if !errors.As(err, &f) {
					t.Fatalf("got %v, want a fault", err)
				}
				if f.Kind != fault.Invalid || f.Field != test.field || f.Msg != test.text {
					t.Errorf("got %v, field %q: %s\nwant field %q: %s", f.Kind, f.Field, f.Msg, test.field, test.text)
				}
			}
		})
	}
	err := chain(nil).ValidateAs("predicate_filter").(*fault.Error)
	if err.Field != "predicate_filter.chain" {
		t.Error("field is ", err.Field)
	}
}

func repeat(n *Node, times int) []*Node {
	out := make([]*Node, times)
	for i := range out {
		out[i] = n
	}
	return out
}

func TestLiteralFamilies(t *testing.T) {
	n := chain(
		regex(FamilyRegex, "cf"),
		regex(FamilyRegex, `cf\-1`),
		regex(FamilyRegex, "c.*"),
		regex(FamilyRegex, "a|b"),
		regex(FamilyRegex, ""),
		conditional(columns("x", Bound{}, Bound{}), interleaved(regex(FamilyRegex, "cf"), regex(FamilyRegex, "y")), nil),
		regex(QualifierRegex, "q"),
	)
	if got := fmt.Sprint(n.LiteralFamilies()); got != "[cf cf-1 x y]" {
		t.Error("got ", got)
	}
	if got := (*Node)(nil).LiteralFamilies(); got != nil {
		t.Error("got ", got)
	}
}

func TestIsPassAll(t *testing.T) {
	for want, ns := range map[bool][]*Node{
		true:  {nil, op(PassAll), chain(nil, op(PassAll)), chain(nil, chain(nil, count(CellsPerRowOffset, 0)))},
		false: {op(BlockAll), op(Sink), interleaved(nil, nil), chain(nil, op(StripValue)), regex(ValueRegex, `\C*`)},
	} {
		for _, n := range ns {
			if got := mustCompile(t, n).IsPassAll(); got != want {
				t.Errorf("%v: got %v", n, got)
			}
		}
	}
}

func TestNext(t *testing.T) {
	latest := count(CellsPerColumnLimit, 1)
	for _, test := range []struct {
		filter *Node
		want   string // per cell of the row below: . cell, c column, f family, r row
	}{
		{nil, "......"},
		{latest, "cccccc"},
		{count(CellsPerColumnLimit, 2), ".cc..."},
		{count(CellsPerRowLimit, 2), ".rrrrr"},
		{regex(FamilyRegex, "b"), "ffff.r"},
		{regex(FamilyRegex, "b|x"), "ffff.f"},
		{regex(QualifierRegex, "q"), "ccc..f"},
		{regex(QualifierRegex, "q+"), "ccc..c"},
		{regex(QualifierRegex, "qq*"), "ccc..f"},
		{columns("a", closed("q"), Bound{}), "ccc.rr"},
		{columns("a", Bound{}, open("q")), "...rrr"},
		{times(3, 5), "...c.c"},
		{chain(regex(FamilyRegex, "a"), regex(QualifierRegex, "q"), latest), "cccrrr"},
		{chain(regex(QualifierRegex, "q"), regex(FamilyRegex, "a"), latest), "cccfrf"},
		{chain(count(CellsPerRowLimit, 5), regex(FamilyRegex, "b")), "....rr"},
		{chain(count(CellsPerRowOffset, 1), latest), ".ccccc"},
		{interleaved(latest, regex(FamilyRegex, "b")), "cccc.c"},
		{interleaved(latest, nil), "......"},
		{interleaved(columns("a", Bound{}, closed("p")), regex(FamilyRegex, "a")), "....rr"},
		{conditional(regex(FamilyRegex, "b"), latest, nil), "ccccc" + "c"},
		{conditional(regex(FamilyRegex, "b"), latest, op(PassAll)), "....cc"},
		{op(BlockAll), "rrrrrr"},
	} {
		p := mustCompile(t, test.filter)
		pl := p.Pipeline(new(collector), nil)
		pl.StartRow([]byte("k"))
		var got []byte
		for _, c := range parseCells("a:p@6= a:p@5= a:p@4= a:q@2= b:q@3= c:r@1=") {
			got = append(got, ".cfr"[pl.Cell(&c)])
		}
		if string(got) != test.want {
			t.Errorf("%v: got %s, want %s", test.filter, got, test.want)
		}
	}
}

func TestHints(t *testing.T) {
	families := func(h Hints) string {
		if h.Families == nil {
			return "*"
		}
		s := ""
		for _, f := range []string{"a", "b", "c"} {
			if h.Families(f) {
				s += f
			}
		}
		return s
	}
	a, b, q := regex(FamilyRegex, "a"), regex(FamilyRegex, "b"), regex(QualifierRegex, "q")
	for _, test := range []struct {
		filter *Node
		want   string
	}{
		{nil, `* ["","") all rows ["","")`},
		{chain(a, q, times(1, 3)), `a ["q","q\x00") 1-3 rows ["","")`},
		{chain(count(CellsPerColumnLimit, 1), a, q, times(1, 3)), `a ["q","q\x00") all rows ["","")`},
		{chain(a, count(CellsPerRowLimit, 1), q, times(1, 3)), `a ["","") all rows ["","")`},
		{interleaved(chain(a, times(1, 3)), chain(b, times(5, 9))), `ab ["","") 1-9 rows ["","")`},
		{interleaved(a, op(BlockAll)), `a ["","") all rows ["","")`},
		{interleaved(a, nil), `* ["","") all rows ["","")`},
		{columns("b", closed("p"), closed("q")), `b ["p","q\x00") all rows ["","")`},
		{columns("b", open("p"), open("q")), `b ["p\x00","q") all rows ["","")`},
		{columns("b", open("p"), closed("p")), "none"},
		{columns("b", Bound{}, open("")), "none"},
		{times(5, 5), "none"},
		{chain(times(1, 3), times(3, 5)), "none"},
		{op(BlockAll), "none"},
		{regex(QualifierRegex, "ab.*"), `* ["ab","ac") all rows ["","")`},
		{regex(RowKeyRegex, `user\-\C*`), `* ["","") all rows ["user-","user.")`},
		{chain(count(CellsPerRowLimit, 1), regex(RowKeyRegex, "k")), `* ["","") all rows ["k","k\x00")`},
		{conditional(a, b, nil), `ab ["","") all rows ["","")`},
		{conditional(regex(RowKeyRegex, "k"), nil, nil), "none"},
		{conditional(regex(RowKeyRegex, "k"), a, b), `* ["","") all rows ["","")`},
		{chain(conditional(a, b, nil), q), `ab ["","") all rows ["","")`},
		{chain(interleaved(nil, chain(label("s"), op(Sink))), a), `* ["","") all rows ["","")`},
		{chain(a, interleaved(nil, op(Sink)), b), `a ["","") all rows ["","")`},
	} {
		h := mustCompile(t, test.filter).Hints()
		times := "all"
		if h.Times != cell.AllTime {
			times = fmt.Sprintf("%d-%d", h.Times.Start, h.Times.End)
		}
		got := fmt.Sprintf("%s [%q,%q) %s rows [%q,%q)", families(h), h.Qualifiers.Start, h.Qualifiers.End, times, h.Rows.Start, h.Rows.End)
		if h.None {
			got = "none"
		}
		if got != test.want {
			t.Errorf("%v: got %s, want %s", test.filter, got, test.want)
		}
	}
}

// What is held back of a row is limited, and shared by all who hold it.
func TestRowBuffer(t *testing.T) {
	hold := conditional(regex(ValueRegex, "no"), nil, op(PassAll))
	p := mustCompile(t, interleaved(hold, hold, hold))
	value := make([]byte, 1<<10)
	var out collector
	pl := p.Pipeline(&out, nil)
	pl.store.limit = 100 << 10
	run := func(n int) error {
		out.cells = nil
		if !pl.StartRow([]byte("k")) {
			t.Fatal("the row is not wanted")
		}
		for i := range n {
			pl.Cell(&row.Cell{Family: "f", Qualifier: []byte{byte(i)}, Value: value})
		}
		return pl.EndRow()
	}
	for range 2 {
		if err := run(200); fault.KindOf(err) != fault.FailedPrecondition {
			t.Fatalf("200 KiB: got %v", err)
		}
		if err := run(80); err != nil || len(out.cells) != 240 {
			t.Fatalf("80 KiB: got %d cells, %v", len(out.cells), err)
		}
	}
}

// Patterns that take too long on a row fail it, wherever they are, and no other.
func TestRowEffort(t *testing.T) {
	slow := strings.Repeat(".?", 2000) + `\b`
	long := bytes.Repeat([]byte("a"), 2000)
	for _, n := range []*Node{
		regex(ValueRegex, slow),
		regex(RowKeyRegex, slow),
		conditional(regex(ValueRegex, slow), op(PassAll), nil),
		interleaved(regex(QualifierRegex, slow), op(Sink), conditional(nil, nil, nil)),
	} {
		var out collector
		pl := mustCompile(t, n).Pipeline(&out, nil)
		pl.effort.limit = 100_000
		for i, s := range [][]byte{long, []byte("a"), long} {
			out.cells = nil
			if !pl.StartRow(s) {
				t.Fatalf("%.40s: row %d is not wanted", n, i)
			}
			pl.Cell(&row.Cell{Family: "f", Qualifier: s, Value: s})
			err := pl.EndRow()
			if i == 1 && (err != nil || len(out.cells) == 0) || i != 1 && fault.KindOf(err) != fault.FailedPrecondition {
				t.Errorf("%.40s: row %d: got %d cells, %v", n, i, len(out.cells), err)
			}
		}
	}
}

func TestPredicate(t *testing.T) {
	for _, test := range []struct {
		filter *Node
		want   string // per cell: does it end the row; then the verdict
	}{
		{nil, "rr true"},
		{op(BlockAll), "rr false"},
		{regex(ValueRegex, "w"), ".r true"},
		{regex(ValueRegex, "no"), ".. false"},
		{chain(op(StripValue), op(Sink)), "rr true"},
		{interleaved(nil, regex(ValueRegex, "w")), "rr true"},
		{conditional(regex(ValueRegex, "no"), nil, op(PassAll)), ".. true"},
		{interleaved(op(Sink), conditional(regex(ValueRegex, "no"), nil, op(PassAll))), "rr true"},
	} {
		pl := mustCompile(t, test.filter).Predicate(nil)
		for range 2 {
			got := ""
			pl.StartRow([]byte("k"))
			for _, c := range parseCells("f:q@1=v f:r@1=w") {
				if pl.Cell(&c) == NextRow {
					got += "r"
				} else {
					got += "."
				}
			}
			if err := pl.EndRow(); err != nil {
				t.Fatal(err)
			}
			if got += fmt.Sprint(" ", pl.Found()); got != test.want {
				t.Errorf("%v: got %s, want %s", test.filter, got, test.want)
			}
		}
		pl.StartRow([]byte("k"))
		if pl.EndRow(); pl.Found() {
			t.Errorf("%v: found a cell in an empty row", test.filter)
		}
	}
}

func TestUnwantedRow(t *testing.T) {
	var out collector
	pl := mustCompile(t, regex(RowKeyRegex, "a")).Pipeline(&out, nil)
	c := &row.Cell{Family: "f"}
	if pl.Cell(c) != NextRow {
		t.Error("a cell outside of any row passed")
	}
	if pl.StartRow([]byte("b")) || pl.Cell(c) != NextRow || pl.EndRow() != nil || out.cells != nil {
		t.Error("row b passed")
	}
	if !pl.StartRow([]byte("a")) || pl.Cell(c) != NextCell || pl.EndRow() != nil || len(out.cells) != 1 {
		t.Error("row a did not pass")
	}
}
