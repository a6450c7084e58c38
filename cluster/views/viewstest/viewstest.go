package viewstest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"

	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/matview"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
)

// The families of a source: of each row's column Group the newest cell is its group, of
// Value the newest is a number of eight bytes. Sum is an aggregate of the same name.
const (
	Family = "f"
	Sums   = "s"
)

// Group and Value are columns of Family, and of Sums Value.
var (
	Group = []byte("g")
	Value = []byte("v")
)

// Families returns the families of a source.
func Families() map[string]schema.Family {
	return map[string]schema.Family{Family: {}, Sums: {Aggregate: schema.Sum}}
}

// A Reader reads tables.
type Reader interface {
	ReadRows(ctx context.Context, req *scan.Request, w scan.Writer) (scan.Stats, error)
}

// Groups returns a view that has a row for each group: how many rows it has, and sum, least
// and largest of their values. A row without a group, or whose value is not of eight bytes,
// is in none; the latter cannot be evaluated.
func Groups(name string, source *schema.Table) *schema.View {
	column := func(name string, f schema.ViewAggregate, arg, typ schema.ViewType) schema.ViewColumn {
		return schema.ViewColumn{Name: name, Family: "default", Qualifier: name, Aggregate: f, Arg: arg, Type: typ}
	}
	return &schema.View{Name: name, Source: source.Name, SourceID: source.ID, Query: "groups", Families: []string{Family, Sums}, RawKey: true,
		Key: []schema.ViewColumn{{Name: "g", Type: schema.ViewBytes}},
		Columns: []schema.ViewColumn{
			column("rows", schema.ViewCountRows, 0, schema.ViewInt),
			column("sum", schema.ViewSum, schema.ViewInt, schema.ViewInt),
			column("least", schema.ViewMin, schema.ViewBytes, schema.ViewBytes),
			column("most", schema.ViewMax, schema.ViewBytes, schema.ViewBytes),
			column("sums", schema.ViewSum, schema.ViewInt, schema.ViewInt),
		}}
}

// Evaluators evaluates the views of this package. It is matview.Evaluators.
type Evaluators struct{ Reader }

// Evaluator implements matview.Evaluators.
func (e Evaluators) Evaluator(_ context.Context, v *schema.View) (matview.Evaluator, error) {
	return evaluator{from: e.Reader, view: v}, nil
}

type evaluator struct {
	from Reader
	view *schema.View
	tell bool // of some rows that contribute nothing
}

// Keys implements matview.Evaluator.
func (e evaluator) Keys(ctx context.Context, keys [][]byte, emit func(*matview.Row) error) error {
	ranges := make([]row.Range, len(keys))
	for i, k := range keys {
		ranges[i] = row.Single(k)
	}
	return e.ranges(ctx, ranges, emit)
}

// Range implements matview.Evaluator.
func (e evaluator) Range(ctx context.Context, within row.Range, emit func(*matview.Row) error) error {
	e.tell = true
	return e.ranges(ctx, []row.Range{within}, emit)
}

func (e evaluator) ranges(ctx context.Context, ranges []row.Range, emit func(*matview.Row) error) error {
	return Read(ctx, e.from, e.view.Source, ranges, func(r *Row) error {
		out := matview.Row{Key: r.Key}
		var err error
		group, n, sums, err := r.contribution()
		switch {
		case err != nil:
			out.Err = err
		case group == nil:
			if !e.tell || crc32.ChecksumIEEE(r.Key)%2 == 0 {
				return nil
			}
		default:
			args := []matview.Arg{{}, {Valid: n != nil}, {Valid: n != nil, Text: string(n)}, {Valid: n != nil, Text: string(n)}, {Valid: sums != nil}}
			if n != nil {
				args[1].Int = int64(binary.BigEndian.Uint64(n))
			}
			if sums != nil {
				args[4].Int = int64(binary.BigEndian.Uint64(sums))
			}
			if out.Contribution, out.Err = matview.AppendItem(nil, e.view, group, args); out.Err != nil {
				out.Contribution = nil
			}
		}
		return emit(&out)
	})
}

// A Row is a row that was read: its newest cells by family and qualifier.
type Row struct {
	Key   []byte
	Cells map[string][]byte
}

func (r *Row) contribution() (group, value, sums []byte, err error) {
	group, value, sums = r.Cells[Family+":"+string(Group)], r.Cells[Family+":"+string(Value)], r.Cells[Sums+":"+string(Value)]
	if value != nil && len(value) != 8 {
		return nil, nil, nil, errors.New("a value is not of eight bytes")
	}
	return group, value, sums, nil
}

// Read calls each with rows of a table, which are its own.
func Read(ctx context.Context, from Reader, table string, ranges []row.Range, each func(*Row) error) error {
	_, err := from.ReadRows(ctx, &scan.Request{Table: table, Ranges: ranges, Filter: &filter.Node{Op: filter.CellsPerColumnLimit, N: 1}}, &rowReader{each: each})
	return err
}

type rowReader struct {
	each func(*Row) error
	row  *Row
}

func (r *rowReader) StartRow(key []byte) {
	r.row = &Row{Key: bytes.Clone(key), Cells: map[string][]byte{}}
}
func (r *rowReader) Cell(c *row.Cell) {
	r.row.Cells[c.Family+":"+string(c.Qualifier)] = append([]byte{}, c.Value...)
}
func (r *rowReader) EndRow() (bool, error) { return false, r.each(r.row) }
func (*rowReader) Scanned([]byte)          {}
func (*rowReader) Flush() error            { return nil }

// Check returns how a view of Groups differs from what its source says, nil if it does not.
func Check(ctx context.Context, from Reader, view, source string) error {
	want := map[string]string{}
	type group struct {
		rows, sum, sums int64
		valued, summed  bool
		least, most     []byte
	}
	groups := map[string]*group{}
	err := Read(ctx, from, source, []row.Range{row.All}, func(r *Row) error {
		g, v, s, err := r.contribution()
		if err != nil || g == nil {
			return nil
		}
		x := groups[string(g)]
		if x == nil {
			x = &group{}
			groups[string(g)] = x
		}
		x.rows++
		if v != nil {
			x.sum += int64(binary.BigEndian.Uint64(v))
			if !x.valued || bytes.Compare(v, x.least) < 0 {
				x.least = v
			}
			if !x.valued || bytes.Compare(v, x.most) > 0 {
				x.most = v
			}
			x.valued = true
		}
		if s != nil {
			x.sums, x.summed = x.sums+int64(binary.BigEndian.Uint64(s)), true
		}
		return nil
	})
	if err != nil {
		return err
	}
	for g, x := range groups {
		out := fmt.Sprintf("rows=%d", x.rows)
		if x.valued {
			out += fmt.Sprintf(" sum=%d least=%x most=%x", x.sum, x.least, x.most)
		}
		if x.summed {
			out += fmt.Sprintf(" sums=%d", x.sums)
		}
		want[g] = out
	}
	got := map[string]string{}
	err = Read(ctx, from, view, []row.Range{row.All}, func(r *Row) error {
		number := func(name string) (string, bool) {
			b, ok := r.Cells["default:"+name]
			if !ok {
				return "", false
			}
			if len(b) != 8 {
				return fmt.Sprintf("%x", b), true
			}
			return fmt.Sprint(int64(binary.BigEndian.Uint64(b))), true
		}
		n, ok := number("rows")
		if !ok {
			for name := range r.Cells {
				if strings.HasPrefix(name, "default:") {
					return fmt.Errorf("row %q of the view has a cell %q and no count", r.Key, name)
				}
			}
			return nil // what remains of a group that is gone
		}
		out := "rows=" + n
		if n, ok := number("sum"); ok {
			out += fmt.Sprintf(" sum=%s least=%x most=%x", n, r.Cells["default:least"], r.Cells["default:most"])
		}
		if n, ok := number("sums"); ok {
			out += " sums=" + n
		}
		got[string(r.Key)] = out
		return nil
	})
	if err != nil {
		return err
	}
	var diffs []string
	for g, w := range want {
		if got[g] != w {
			diffs = append(diffs, fmt.Sprintf("group %q is %q, not %q", g, got[g], w))
		}
	}
	for g, x := range got {
		if want[g] == "" {
			diffs = append(diffs, fmt.Sprintf("group %q is %q, and should not be there", g, x))
		}
	}
	if len(diffs) > 0 {
		slices.Sort(diffs)
		return fmt.Errorf("%d of %d groups differ: %s", len(diffs), len(want), strings.Join(diffs[:min(5, len(diffs))], "; "))
	}
	return nil
}
