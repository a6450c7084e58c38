package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tsuna/gohbase/hrpc"

	"github.com/trestledb/trestle/compat/hbase/model"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/stamp"
)

var errRead = errors.New("everything was read")

// A streamTable is what changes make of an empty table: values by row, family, qualifier
// and milliseconds.
type streamTable struct {
	families map[cell.FamilyID]string
	cells    map[string]string
	ops      map[changes.Op]int
	until    cell.Seq
}

func (s *streamTable) Record(r *changes.Record, _ changes.Position) (bool, error) {
	for _, c := range r.Changes {
		s.ops[c.Op]++
		row := fmt.Sprintf("%s %s:", r.Key, s.families[c.Family])
		column := row + string(c.Qualifier) + "@"
		switch c.Op {
		case changes.SetCell:
			s.cells[column+fmt.Sprint(c.Timestamp/1000)] = string(c.Value)
		case changes.DeleteFamily:
			maps.DeleteFunc(s.cells, func(k, _ string) bool { return strings.HasPrefix(k, row) })
		case changes.DeleteColumn:
			maps.DeleteFunc(s.cells, func(k, _ string) bool {
				var ms int64
				if !strings.HasPrefix(k, column) {
					return false
				}
				_, _ = fmt.Sscan(k[len(column):], &ms)
				return ms*1000 >= c.Times.Start && (c.Times.End == 0 || ms*1000 < c.Times.End)
			})
		default:
			return false, fmt.Errorf("operation %d", c.Op)
		}
	}
	return false, nil
}

func (s *streamTable) Flush() error { return nil }

func (s *streamTable) Watermark(at changes.Position) error {
	if at.Through >= s.until {
		return errRead
	}
	return nil
}

// TestStreamOfHBase: the changes that gohbase makes, read as a stream, lead to the table: of a
// deletion up to a time they tell what it deletes, in memory and in files.
func TestStreamOfHBase(t *testing.T) {
	f := newFixture(t, Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	c := f.client()
	for name, attr := range map[string]map[string]string{"hbase": nil, "bigtable": {model.AttrDeletes: model.DeletesLikeBigtable}} {
		fam := model.Family{Versions: 1000, TTL: model.Forever}
		table := f.table(name, map[string]model.Family{"f": fam, "g": fam}, attr)
		begin := time.Now()
		sch, err := f.store.UpdateTable(ctx, table.Resource, func(s *schema.Table) error {
			s.Stream = &schema.Stream{Life: 1, Retention: 24 * time.Hour, Since: begin}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		families := map[cell.FamilyID]string{}
		for _, fam := range sch.Families {
			families[fam.ID] = fam.Name
		}
		future := time.Now().Add(time.Hour).UnixMilli()
		rnd := rand.New(rand.NewPCG(7, 7))
		deleted := map[string]int{}
		for n := int64(1); n <= 160; n++ {
			key := fmt.Sprint("row", rnd.IntN(4))
			family := []string{"f", "g"}[rnd.IntN(2)]
			var m *hrpc.Mutate
			ts := hrpc.TimestampUint64(uint64(n - int64(rnd.IntN(12)) - 1))
			kind := "put"
			switch rnd.IntN(16) {
			case 0:
				kind = "family up to a time"
				m, err = hrpc.NewDelStr(ctx, name, key, map[string]map[string][]byte{family: nil}, ts)
			case 1:
				kind = "family at a time"
				m, err = hrpc.NewDelStr(ctx, name, key, map[string]map[string][]byte{family: nil}, ts, hrpc.DeleteOneVersion())
			case 2:
				kind = "row up to a time"
				m, err = hrpc.NewDelStr(ctx, name, key, nil, ts)
			case 3:
				kind = "column up to a time"
				m, err = hrpc.NewDelStr(ctx, name, key, values(family, "a", ""), ts)
			case 4:
				kind = "row"
				// Not always, or nothing would be left. HBase's hides what is put with these times.
				if rnd.IntN(3) == 0 && attr != nil {
					m, err = hrpc.NewDelStr(ctx, name, key, nil)
				}
			case 5:
				kind = "a cell of the future"
				m, err = hrpc.NewPutStr(ctx, name, key, values(family, "b", fmt.Sprint(n)), hrpc.TimestampUint64(uint64(future+n)))
			default:
				// Later than every deletion: HBase's also hide what is written after them.
				m, err = hrpc.NewPutStr(ctx, name, key, values(family, string('a'+rune(rnd.IntN(3))), fmt.Sprint(n)), hrpc.TimestampUint64(uint64(n)))
			}
			if err != nil {
				t.Fatal(err)
			}
			if m == nil {
				continue
			}
			deleted[kind]++
			if kind == "put" || kind == "a cell of the future" {
				_, err = c.Put(m)
			} else {
				_, err = c.Delete(m)
			}
			if err != nil {
				t.Fatal(kind, err)
			}
			if n%60 == 0 {
				if err := f.store.TabletServer().FlushAll(ctx); err != nil {
					t.Fatal(err)
				}
			}
		}
		if len(deleted) < 6 {
			t.Fatalf("tried %v", deleted)
		}
		scan, err := hrpc.NewScanStr(ctx, name, hrpc.MaxVersions(1000))
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]string{}
		for _, r := range all(t, c.Scan(scan)) {
			for _, x := range r.Cells {
				want[fmt.Sprintf("%s %s:%s@%d", x.Row, x.Family, x.Qualifier, *x.Timestamp)] = string(x.Value)
			}
		}
		s := &streamTable{families: families, cells: map[string]string{}, ops: map[changes.Op]int{}, until: stamp.At(time.Now())}
		_, err = f.store.ReadChanges(ctx, &changes.Request{Table: table.Resource, Life: 1, From: changes.Position{Through: stamp.At(begin) - stamp.Stride}, Every: 20 * time.Millisecond}, s)
		if !errors.Is(err, errRead) {
			t.Fatal(err)
		}
		if !maps.Equal(s.cells, want) || len(want) == 0 {
			t.Errorf("%s: the stream leads to %q, the table has %q", name, slices.Sorted(maps.Keys(s.cells)), slices.Sorted(maps.Keys(want)))
		}
		if s.ops[changes.DeleteFamily] == 0 || s.ops[changes.DeleteColumn] == 0 {
			t.Errorf("%s: operations %v", name, s.ops)
		}
	}
}
