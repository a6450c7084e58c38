package filter

import (
	"fmt"
	"math"
	"testing"

	"github.com/trestledb/trestle/engine/row"
)

type discard struct{ cells int }

func (d *discard) Cell(*row.Cell) { d.cells++ }

// The row has 3 families of 10 columns of 5 cells of 100 bytes.
func benchmarkRow() []row.Cell {
	var cells []row.Cell
	value := make([]byte, 100)
	for i := range value {
		value[i] = byte('a' + i%26)
	}
	for f := range 3 {
		for q := range 10 {
			for ts := range 5 {
				cells = append(cells, row.Cell{Family: fmt.Sprintf("cf%d", f), Qualifier: fmt.Appendf(nil, "column-%02d", q), Timestamp: int64(5 - ts), Value: value})
			}
		}
	}
	return cells
}

func BenchmarkPipeline(b *testing.B) {
	latest := count(CellsPerColumnLimit, 1)
	for _, bench := range []struct {
		name   string
		filter *Node
	}{
		{"passAll", nil},
		{"latest1", latest},
		{"familyColumnLatest1", chain(regex(FamilyRegex, "cf1"), regex(QualifierRegex, `column\-05`), latest)},
		{"columnRange", columns("cf1", closed("column-02"), open("column-05"))},
		{"timeRange", times(2, math.MaxInt64)},
		{"qualifierRegex", regex(QualifierRegex, "column-0[2-4]|x.*")},
		{"valueRegex", regex(ValueRegex, ".*(xyz|zyx).*")},
		{"valueRegexLiteral", regex(ValueRegex, "nothing")},
		{"interleave", interleaved(latest, chain(regex(FamilyRegex, "cf1"), label("one")), op(StripValue))},
		{"condition", conditional(regex(ValueRegex, "none"), op(PassAll), latest)},
		{"interleaveCondition", interleaved(latest, conditional(columns("cf2", Bound{}, Bound{}), chain(latest, op(StripValue)), nil))},
	} {
		b.Run(bench.name, func(b *testing.B) {
			cells := benchmarkRow()
			var out discard
			pl := mustCompile(b, bench.filter).Pipeline(&out, nil)
			key := []byte("row")
			b.ReportAllocs()
			for b.Loop() {
				if !pl.StartRow(key) {
					b.Fatal("the row is not wanted")
				}
				for i := range cells {
					pl.Cell(&cells[i])
				}
				if err := pl.EndRow(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(cells)), "ns/cell")
		})
	}
}

func BenchmarkCompile(b *testing.B) {
	n := chain(regex(FamilyRegex, "cf1"), regex(QualifierRegex, `column\-05`), count(CellsPerColumnLimit, 1))
	b.ReportAllocs()
	for b.Loop() {
		p, err := Compile(n)
		if err != nil {
			b.Fatal(err)
		}
		p.Pipeline(new(discard), nil)
	}
}

func BenchmarkRegex(b *testing.B) {
	value := benchmarkRow()[0].Value
	for _, p := range []string{"abc.*", `\C*`, "[a-z]*", ".*xyz.*", "(abc|def)*.*", "(?i)ABC.*[0-9]?"} {
		b.Run(p, func(b *testing.B) {
			budget := maxProgram
			c, err := compilePattern([]byte(p), &budget)
			if err != nil {
				b.Fatal(err)
			}
			m := newMachine(c, dfaMaxMemory, &effort{left: math.MaxInt})
			b.SetBytes(int64(len(value)))
			b.ReportAllocs()
			for b.Loop() {
				m.match(value)
			}
		})
	}
}
