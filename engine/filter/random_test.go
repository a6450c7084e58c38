package filter

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/trestledb/trestle/engine/row"
)

// How a reader may use what the filter tells it.
type reader struct {
	name  string
	skip  bool // as far as each Next allows
	hints bool // leave out what Hints allows
}

var readers = []reader{{name: "plain"}, {name: "skipping", skip: true},
	{name: "hinted", hints: true}, {name: "both", skip: true, hints: true}}

type collector struct{ cells []row.Cell }

func (c *collector) Cell(x *row.Cell) { c.cells = append(c.cells, x.Clone()) }

// read runs one row through pl the way a reader would. Cells
// share buffers, as a reader's do.
func read(pl *Pipeline, h Hints, out *collector, how reader, key []byte, cells []row.Cell) []row.Cell {
	out.cells = nil
	if how.hints && (h.None || !h.Rows.Contains(key)) {
		return nil
	}
	if !pl.StartRow(slices.Clone(key)) {
		return nil
	}
	var reused row.Cell
	skip, last := NextCell, -1
	for i := range cells {
		c := &cells[i]
		if how.skip && last >= 0 {
			l := &cells[last]
			if skip == NextRow || skip >= NextFamily && c.Family == l.Family ||
				skip >= NextColumn && c.Family == l.Family && bytes.Equal(c.Qualifier, l.Qualifier) {
				continue
			}
		}
		if how.hints && (h.Families != nil && !h.Families(c.Family) || !h.Qualifiers.Contains(c.Qualifier) || !h.Times.Contains(c.Timestamp)) {
			continue
		}
		reused.Family, reused.Timestamp = c.Family, c.Timestamp
		reused.Qualifier = append(reused.Qualifier[:0], c.Qualifier...)
		reused.Value = append(reused.Value[:0], c.Value...)
		skip, last = pl.Cell(&reused), i
	}
	reused.Family = "!"
	for _, b := range [][]byte{reused.Qualifier, reused.Value} {
		for j := range b {
			b[j] = '!'
		}
	}
	if err := pl.EndRow(); err != nil {
		panic(err)
	}
	return out.cells
}

// canonical orders copies, whose order is not specified, and prints.
func canonical(cells []row.Cell) string {
	cells = slices.Clone(cells)
	slices.SortStableFunc(cells, func(a, b row.Cell) int {
		return cmp.Or(compare(&a, &b), bytes.Compare(a.Value, b.Value), slices.Compare(a.Labels, b.Labels))
	})
	var b strings.Builder
	for _, c := range cells {
		fmt.Fprintf(&b, "%s:%q@%d=%q%v\n", c.Family, c.Qualifier, c.Timestamp, c.Value, c.Labels)
	}
	return b.String()
}

func (n *Node) String() string {
	if n == nil {
		return "nil"
	}
	var args []string
	for _, c := range n.Children {
		args = append(args, c.String())
	}
	if n.Pattern != nil {
		args = append(args, fmt.Sprintf("%q", n.Pattern))
	}
	if n.Start.Set || n.End.Set || n.Family != "" {
		args = append(args, fmt.Sprintf("%s %v %v", n.Family, n.Start, n.End))
	}
	switch n.Op {
	case TimestampRange:
		args = append(args, fmt.Sprint(n.Times))
	case RowSample:
		args = append(args, fmt.Sprint(n.P))
	}
	if n.N != 0 {
		args = append(args, fmt.Sprint(n.N))
	}
	if n.Label != "" {
		args = append(args, n.Label)
	}
	return fmt.Sprintf("%s(%s)", opNames[n.Op], strings.Join(args, ", "))
}

var opNames = [...]string{PassAll: "all", BlockAll: "block", Chain: "chain", Interleave: "interleave",
	Condition: "condition", Sink: "sink", RowKeyRegex: "row", RowSample: "sample", FamilyRegex: "family",
	QualifierRegex: "qualifier", ColumnRange: "columns", TimestampRange: "times", ValueRegex: "value",
	ValueRange: "values", ValueBitmask: "bitmask", CellsPerRowOffset: "offset", CellsPerRowLimit: "rowlimit",
	CellsPerColumnLimit: "columnlimit", StripValue: "strip", ApplyLabel: "label"}

var (
	someFamilies   = []string{"a", "b", "bb", "c"}
	someQualifiers = []string{"", "q", "q1", "q2", "r", "\xff\n"}
	someValues     = []string{"", "v", "vw", "\x00\xff", "\n"}
	somePatterns   = []string{"", "q", "q.*", "q\\C*", ".*", "\\C*", "a|b", "b+", "v?", "[qr]1?", "^v", "\\x00\xff", "(?i)Q1", "r\\z|q\\A", ".", "\\C"}
)

func genBytes(from []string) *rapid.Generator[[]byte] {
	return rapid.Map(rapid.SampledFrom(from), func(s string) []byte { return []byte(s) })
}

func genBounds(t *rapid.T, from []string) (start, end Bound) {
	b := func() Bound {
		return Bound{Key: genBytes(from).Draw(t, "key"), Set: rapid.Bool().Draw(t, "set"), Open: rapid.Bool().Draw(t, "open")}
	}
	start, end = b(), b()
	if inverted(start, end) {
		start, end = end, start
	}
	return start, end
}

// genNode makes valid filters, except that chains may label twice.
func genNode(t *rapid.T, depth int, inCondition bool) *Node {
	ops := []Op{PassAll, BlockAll, RowKeyRegex, RowSample, FamilyRegex, FamilyRegex, QualifierRegex, QualifierRegex,
		ColumnRange, TimestampRange, TimestampRange, ValueRegex, ValueRange, ValueBitmask, CellsPerRowOffset, CellsPerRowLimit,
		CellsPerColumnLimit, CellsPerColumnLimit, StripValue, ApplyLabel}
	if !inCondition {
		ops = append(ops, Sink, Sink)
	}
	if depth > 0 {
		ops = append(ops, Chain, Chain, Chain, Chain, Interleave, Interleave, Interleave, Condition, Condition, Condition)
	}
	n := &Node{Op: rapid.SampledFrom(ops).Draw(t, "op")}
	switch n.Op {
	case Chain, Interleave:
		for range rapid.IntRange(2, 4).Draw(t, "children") {
			n.Children = append(n.Children, genNode(t, depth-1, inCondition))
		}
	case Condition:
		for range 3 {
			var k *Node
			if rapid.IntRange(0, 4).Draw(t, "unset") > 0 {
				k = genNode(t, depth-1, true)
			}
			n.Children = append(n.Children, k)
		}
	case RowKeyRegex:
		n.Pattern = genBytes([]string{"k.*", "k1", "x|k1", "[^k].*"}).Draw(t, "pattern")
	case RowSample:
		n.P = rapid.SampledFrom([]float64{0.25, 0.75}).Draw(t, "p")
	case FamilyRegex, QualifierRegex, ValueRegex:
		n.Pattern = genBytes(somePatterns).Draw(t, "pattern")
	case ColumnRange:
		n.Family = rapid.SampledFrom(someFamilies).Draw(t, "family")
		n.Start, n.End = genBounds(t, someQualifiers)
	case TimestampRange:
		n.Times.Start = rapid.Int64Range(0, 6).Draw(t, "start")
		n.Times.End = n.Times.Start + rapid.Int64Range(0, 4).Draw(t, "length")
		if rapid.Bool().Draw(t, "forever") {
			n.Times.End = math.MaxInt64
		}
	case ValueRange:
		n.Start, n.End = genBounds(t, someValues)
	case ValueBitmask:
		n.Pattern = genBytes([]string{"", "\x00", "r", "\x00\x0f"}).Draw(t, "mask")
	case CellsPerRowOffset:
		n.N = rapid.Int32Range(0, 4).Draw(t, "n")
	case CellsPerRowLimit, CellsPerColumnLimit:
		n.N = rapid.Int32Range(1, 4).Draw(t, "n")
	case ApplyLabel:
		n.Label = rapid.SampledFrom([]string{"x", "y"}).Draw(t, "label")
	}
	return n
}

// genRow returns the cells of a row, in order.
func genRow(t *rapid.T) []row.Cell {
	type id struct {
		family, qualifier string
		ts                int64
	}
	seen := map[id]bool{}
	var cells []row.Cell
	for range rapid.IntRange(0, 24).Draw(t, "cells") {
		c := id{rapid.SampledFrom(someFamilies).Draw(t, "family"), rapid.SampledFrom(someQualifiers).Draw(t, "qualifier"), rapid.Int64Range(0, 7).Draw(t, "ts")}
		if !seen[c] {
			seen[c] = true
			cells = append(cells, row.Cell{Family: c.family, Qualifier: []byte(c.qualifier), Timestamp: c.ts, Value: genBytes(someValues).Draw(t, "value")})
		}
	}
	return sorted(cells)
}

func TestPipelineAgreesWithReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := genNode(t, 4, false)
		p, err := Compile(n)
		if err != nil {
			if strings.Contains(err.Error(), "apply_label_transformer") {
				t.Skip("two labels in a chain")
			}
			t.Fatalf("%v: %v", n, err)
		}
		draw := rapid.SampledFrom([]float64{0.1, 0.5, 0.9}).Draw(t, "draw")
		pls := make([]*Pipeline, len(readers))
		outs := make([]collector, len(readers))
		for i := range readers {
			pls[i] = p.Pipeline(&outs[i], func() float64 { return draw })
		}
		for _, key := range []string{"k1", "k2", "k1"} {
			cells := genRow(t)
			want := canonical(evaluate(n, []byte(key), cells, draw))
			for i, how := range readers {
				got := read(pls[i], p.Hints(), &outs[i], how, []byte(key), cells)
				if !slices.IsSortedFunc(got, func(a, b row.Cell) int { return compare(&a, &b) }) {
					t.Fatalf("%s reader of %v\nrow %s\n%sgot out of order\n%v", how.name, n, key, canonical(cells), got)
				}
				if g := canonical(got); g != want {
					t.Fatalf("%s reader of %v\nrow %s\n%sgot\n%swant\n%s", how.name, n, key, canonical(cells), g, want)
				}
			}
		}
		if p.IsPassAll() {
			cells := genRow(t)
			if canonical(evaluate(n, []byte("k"), cells, draw)) != canonical(cells) {
				t.Fatalf("%v does not pass all", n)
			}
		}
	})
}
