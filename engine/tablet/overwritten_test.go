package tablet

import (
	"fmt"
	"slices"
	"testing"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

// TestOverwritten: of a cell that was overwritten many times the last value is read, and
// nothing else of its row is missed: not older cells of its column either, nor markers.
func TestOverwritten(t *testing.T) {
	one, ctx := lone(t), t.Context()
	const times = 5 * nearby
	for i := range times {
		b := NewBatch([]byte("row"))
		for _, q := range []string{"a", "b"} {
			b.Set(0, []byte(q), 2, fmt.Append(nil, "two", i))
			b.Set(0, []byte(q), 1, fmt.Append(nil, "one", i))
		}
		b.DeleteColumn(0, []byte("c"), cell.TimeRange{Start: int64(i), End: int64(i) + 1})
		b.Set(0, []byte("d"), 1, fmt.Append(nil, i))
		b.Row([]byte("row2"))
		b.Set(0, []byte("a"), 1, fmt.Append(nil, i))
		pos, err := one.ApplyAsync(ctx, b)
		if err == nil {
			err = one.Wait(ctx, pos)
		}
		b.Free()
		if err != nil {
			t.Fatal(err)
		}
	}
	last := times - 1
	row1 := []string{fmt.Sprint("row a 2 two", last), fmt.Sprint("row a 1 one", last), fmt.Sprint("row b 2 two", last), fmt.Sprint("row b 1 one", last), fmt.Sprint("row d 1 ", last)}
	row2 := fmt.Sprint("row2 a 1 ", last)
	for _, c := range []struct {
		name string
		f    *filter.Node
		want []string
	}{
		{"all", nil, append(slices.Clone(row1), row2)},
		{"families", &filter.Node{Op: filter.FamilyRegex, Pattern: []byte("[^~].*")}, append(slices.Clone(row1), row2)},
		{"no family", &filter.Node{Op: filter.FamilyRegex, Pattern: []byte("[^f].*")}, nil},
		{"families and versions", &filter.Node{Op: filter.Chain, Children: []*filter.Node{{Op: filter.FamilyRegex, Pattern: []byte("f|g")}, {Op: filter.CellsPerColumnLimit, N: 1}}},
			[]string{row1[0], row1[2], row1[4], row2}},
		{"families, versions and cells", &filter.Node{Op: filter.Chain, Children: []*filter.Node{{Op: filter.FamilyRegex, Pattern: []byte("f|g")}, {Op: filter.CellsPerColumnLimit, N: 1}, {Op: filter.CellsPerRowOffset, N: 1}}},
			[]string{row1[2], row1[4]}},
		{"no family, and versions", &filter.Node{Op: filter.Chain, Children: []*filter.Node{{Op: filter.FamilyRegex, Pattern: []byte("g")}, {Op: filter.CellsPerColumnLimit, N: 1}}}, nil},
	} {
		sch := one.schema().Clone()
		fam := sch.Families["f"]
		fam.Name, fam.ID = "g", 1
		sch.Families["g"], sch.NextFamily = fam, 2
		q, err := NewQuery(sch, c.f, false)
		if err != nil {
			t.Fatal(c.name, err)
		}
		var got []string
		w := &cellWriter{each: func(key []byte, x *row.Cell) {
			got = append(got, fmt.Sprintf("%s %s %d %s", key, x.Qualifier, x.Timestamp, x.Value))
		}}
		for rest := []row.Range{row.All}; len(rest) > 0; {
			if rest, _, err = one.Read(ctx, q, rest, 0, w, new(scan.Stats)); err != nil {
				t.Fatal(c.name, err)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// A cellWriter gives cells to a function.
type cellWriter struct {
	each func(key []byte, c *row.Cell)
	full func() bool // after a row; nil: never
	key  []byte
}

func (w *cellWriter) StartRow(key []byte)   { w.key = append(w.key[:0], key...) }
func (w *cellWriter) Cell(c *row.Cell)      { w.each(w.key, c) }
func (w *cellWriter) EndRow() (bool, error) { return w.full != nil && w.full(), nil }
func (w *cellWriter) Scanned([]byte)        {}
func (w *cellWriter) Flush() error          { return nil }
