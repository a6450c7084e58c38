package tablet

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/schema"
)

// A modelRow is what a row has: values by timestamp, of a column.
type modelRow map[string]map[int64]string

// newest is the value of a column's newest cell.
func (r modelRow) newest(qualifier string) (value string, ok bool) {
	best := int64(-1)
	for ts, v := range r[qualifier] {
		if ts > best {
			best, value = ts, v
		}
	}
	return value, best >= 0
}

// TestColumnReader compares the newest cells of columns with a model, while cells are written and
// deleted in each way and the tablet is flushed: read one after the other, read alone, and where
// all columns or some are asked for.
func TestColumnReader(t *testing.T) {
	one, _ := flushable(t)
	one.env.Meta = &busyMeta{fill: func() {}}
	one.schema = func() *schema.Table {
		return &schema.Table{ID: 5, NextFamily: 2, Families: map[string]schema.Family{"f": {Name: "f"}, "g": {Name: "g", ID: 1}}}
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	qualifiers := []string{"", "\x00", "\x00\x01", "a", "a\x00", "a\x00b", "aa", "b", "b\xff", "c", "\xff", "\xff\xff"}
	slices.Sort(qualifiers)
	rows := []string{"q", "r", "r\x00", "s"}
	model := map[string]*[2]modelRow{}
	for _, key := range rows {
		model[key] = &[2]modelRow{{}, {}}
	}
	found, missed := 0, 0
	for step := range 2000 {
		key, f := rows[random.IntN(len(rows))], cell.FamilyID(random.IntN(2))
		q, ts := qualifiers[random.IntN(len(qualifiers))], int64(random.IntN(4))
		row := &model[key][f]
		b := NewBatch([]byte(key))
		switch n := random.IntN(100); {
		case n < 80:
			newest := ""
			if step%7 > 0 {
				newest = fmt.Sprint(step)
			}
			b.Set(f, []byte(q), ts, []byte(newest))
			if (*row)[q] == nil {
				(*row)[q] = map[int64]string{}
			}
			(*row)[q][ts] = newest
		case n < 94:
			times := cell.AllTime
			if random.IntN(2) == 0 {
				times = cell.TimeRange{Start: ts, End: ts + 2}
			}
			b.DeleteColumn(f, []byte(q), times)
			for ts := range (*row)[q] {
				if times.Contains(ts) {
					delete((*row)[q], ts)
				}
			}
		case n < 98:
			b.DeleteFamily(f)
			*row = modelRow{}
		default:
			b.DeleteRow()
			model[key] = &[2]modelRow{{}, {}}
		}
		if err := applyAndWait(t.Context(), one, b); err != nil {
			t.Fatal(err)
		}
		b.Free()
		if step%130 == 129 {
			one.Rotate()
			if err := one.FlushAll(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		view := one.View(t.Context(), []byte(key))
		columns, err := view.Family(f)
		if err != nil {
			t.Fatal(err)
		}
		some := 1 + random.IntN(4)
		for _, q := range qualifiers {
			if random.IntN(some) > 0 {
				continue
			}
			want, ok := model[key][f].newest(q)
			got, err := columns.Newest([]byte(q))
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != want || (got != nil) != ok {
				t.Fatalf("step %d: the newest of row %q, family %d, column %q is %q among others, want %q, %t", step, key, f, q, got, want, ok)
			}
			_, alone, is, err := view.Newest(nil, f, []byte(q))
			if err != nil {
				t.Fatal(err)
			}
			if string(alone) != want || is != ok {
				t.Fatalf("step %d: the newest of row %q, family %d, column %q is %q, %t alone, want %q, %t", step, key, f, q, alone, is, want, ok)
			}
			at := int64(random.IntN(4))
			want, ok = model[key][f][q][at]
			if v, is, err := view.Cell(nil, f, []byte(q), at); err != nil || string(v) != want || is != ok {
				t.Fatalf("step %d: row %q, family %d, column %q has %q, %t at %d, want %q, %t: %v", step, key, f, q, v, is, at, want, ok, err)
			}
			if found++; !ok {
				missed++
			}
		}
		if err := columns.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if found < 5000 || missed < 500 {
		t.Errorf("%d columns were compared, %d of them without a cell at a time", found, missed)
	}
}

// BenchmarkColumns reads the newest cells of 1,000 columns of a row: with a read of its own for
// each, and one after the other.
func BenchmarkColumns(b *testing.B) {
	one, _ := flushable(b)
	one.env.Meta = &busyMeta{fill: func() {}}
	const n = 1000
	var names [n][]byte
	for part := range 2 {
		batch := NewBatch([]byte("row"))
		for i := range n {
			names[i] = fmt.Appendf(nil, "column-%06d", i)
			if i%2 == part {
				batch.Set(0, names[i], 1, []byte("value"))
			}
		}
		if err := applyAndWait(b.Context(), one, batch); err != nil {
			b.Fatal(err)
		}
		batch.Free()
		if part == 0 {
			one.Rotate()
			if err := one.FlushAll(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	}
	view := one.View(b.Context(), []byte("row"))
	perColumn := func(b *testing.B) {
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/column")
	}
	b.Run("alone", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			for _, q := range names {
				if _, _, ok, err := view.Newest(nil, 0, q); !ok || err != nil {
					b.Fatal(ok, err)
				}
			}
		}
		perColumn(b)
	})
	b.Run("together", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			columns, err := view.Family(0)
			if err != nil {
				b.Fatal(err)
			}
			for _, q := range names {
				if v, err := columns.Newest(q); v == nil || err != nil {
					b.Fatal(v, err)
				}
			}
			if err := columns.Close(); err != nil {
				b.Fatal(err)
			}
		}
		perColumn(b)
	})
}
