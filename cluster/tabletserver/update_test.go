package tabletserver_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
)

// TestUpdateRow: no update is lost, an error changes nothing, and decide sees
// what the filter leaves.
func TestUpdateRow(t *testing.T) {
	ctx := context.Background()
	s, err := Open(ctx, Options{Dir: t.TempDir(), NoBackground: true}) // which would forget markers at any time
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(ctx)
	name := "projects/p/instances/i/tables/t"
	table := &schema.Table{Name: name, Families: map[string]schema.Family{}, Granularity: 1000}
	table.AddFamily(schema.Family{Name: "f"})
	if _, err := s.CreateTable(ctx, table, nil); err != nil {
		t.Fatal(err)
	}
	key := []byte("r")
	newest := &filter.Node{Op: filter.CellsPerColumnLimit, N: 1}
	increment := func(cells []row.Cell) ([]row.Mutation, error) {
		var n uint64
		if len(cells) > 1 {
			return nil, fmt.Errorf("%d cells", len(cells))
		}
		if len(cells) == 1 {
			n = binary.BigEndian.Uint64(cells[0].Value)
		}
		return []row.Mutation{{Op: row.SetCell, Family: "f", Qualifier: []byte("q"), Timestamp: int64(n+1) * 1000,
			Value: binary.BigEndian.AppendUint64(nil, n+1)}}, nil
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 25 {
				if _, err := s.UpdateRow(ctx, name, key, nil, newest, increment); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	_, err = s.UpdateRow(ctx, name, key, nil, newest, func(cells []row.Cell) ([]row.Mutation, error) {
		if len(cells) != 1 || binary.BigEndian.Uint64(cells[0].Value) != 200 {
			t.Errorf("%+v", cells)
		}
		return []row.Mutation{{Op: row.DeleteRow}}, io.EOF
	})
	if !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	_, err = s.UpdateRow(ctx, name, key, nil, nil, func(cells []row.Cell) ([]row.Mutation, error) {
		if len(cells) != 200 {
			t.Errorf("%d versions", len(cells))
		}
		return []row.Mutation{{Op: row.SetCell, Family: "g"}}, nil
	})
	if !errors.Is(err, fault.NotFound) {
		t.Error(err)
	}
	// Deletions of a family by time, of which one is sticky.
	cover := func(start, end int64, sticky bool) {
		t.Helper()
		if err := s.MutateRow(ctx, name, &row.Entry{Key: key, Mutations: []row.Mutation{
			{Op: row.DeleteFamily, Family: "f", Times: cell.TimeRange{Start: start, End: end}, Sticky: sticky}}}); err != nil {
			t.Fatal(err)
		}
	}
	set := func(ts int64) {
		t.Helper()
		if err := s.MutateRow(ctx, name, &row.Entry{Key: key, Mutations: []row.Mutation{{Op: row.SetCell, Family: "f", Qualifier: []byte("q"), Timestamp: ts}}}); err != nil {
			t.Fatal(err)
		}
	}
	count := func() int64 {
		t.Helper()
		st, err := s.ReadRows(ctx, &scan.Request{Table: name, Ranges: []row.Range{row.Single(key)}}, discard{})
		if err != nil {
			t.Fatal(err)
		}
		return st.CellsReturned
	}
	cover(11_000, 201_000, false)
	if got := count(); got != 10 {
		t.Errorf("%d cells left", got)
	}
	set(20_000)
	// There is an older run, so that the flush has to keep markers.
	if err := s.FlushTablets(ctx, name, row.All); err != nil {
		t.Fatal(err)
	}
	cover(1000, 6000, true)
	set(5000)
	if err := s.FlushTablets(ctx, name, row.All); err != nil {
		t.Fatal(err)
	}
	set(3000)
	set(6000)
	if got := count(); got != 6 { // 6 to 10, 20
		t.Errorf("%d cells left", got)
	}
	// What holds every older entry forgets the marker.
	if err := s.CompactTablets(ctx, name, row.All, nil); err != nil {
		t.Fatal(err)
	}
	set(3000)
	if got := count(); got != 7 {
		t.Errorf("%d cells left", got)
	}
}

type discard struct{}

func (discard) StartRow([]byte)       {}
func (discard) Cell(*row.Cell)        {}
func (discard) EndRow() (bool, error) { return false, nil }
func (discard) Scanned([]byte)        {}
func (discard) Flush() error          { return nil }

// TestUntil: a cell lives as long as it was told to, and takes what it replaced
// with it, wherever the two are.
func TestUntil(t *testing.T) {
	ctx := context.Background()
	s, err := Open(ctx, Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close(ctx) }()
	name := "projects/p/instances/i/tables/t"
	table := &schema.Table{Name: name, Families: map[string]schema.Family{}, Granularity: 1000}
	table.AddFamily(schema.Family{Name: "f"})
	if _, err := s.CreateTable(ctx, table, nil); err != nil {
		t.Fatal(err)
	}
	now := time.Now().UnixMicro()
	const short = 150 * time.Millisecond
	set := func(key string, ts, until int64, value string) {
		t.Helper()
		if err := s.MutateRow(ctx, name, &row.Entry{Key: []byte(key), Mutations: []row.Mutation{
			{Op: row.SetCell, Family: "f", Qualifier: []byte("q"), Timestamp: ts, Value: []byte(value), Until: until}}}); err != nil {
			t.Fatal(err)
		}
	}
	read := func(key string) (out string) {
		t.Helper()
		if _, err := s.UpdateRow(ctx, name, []byte(key), nil, nil, func(cells []row.Cell) ([]row.Mutation, error) {
			out = ""
			for _, c := range cells {
				out += fmt.Sprintf("%d=%s ", c.Timestamp, c.Value)
			}
			return nil, nil
		}); err != nil {
			t.Fatal(err)
		}
		return out
	}
	until := now + short.Microseconds()
	set("a", 1000, 0, "old")
	set("b", 1000, now-1, "over")
	if err := s.FlushTablets(ctx, name, row.All); err != nil {
		t.Fatal(err)
	}
	set("a", 2000, until, "new")
	set("c", 1000, until+time.Hour.Microseconds(), "stays")
	if got := read("a"); got != "2000=new 1000=old " && time.Now().UnixMicro() < until {
		t.Errorf("a: %q", got)
	}
	if got := read("b"); got != "" {
		t.Errorf("b: %q", got)
	}
	time.Sleep(short)
	check := func(when string) {
		t.Helper()
		for key, want := range map[string]string{"a": "3000=newest ", "b": "", "c": "1000=stays "} {
			if got := read(key); got != want {
				t.Errorf("%s, %s: got %q, want %q", when, key, got, want)
			}
		}
	}
	set("a", 3000, 0, "newest")
	check("at the end")
	if err := s.FlushTablets(ctx, name, row.All); err != nil {
		t.Fatal(err)
	}
	check("after a flush")
	if err := s.CompactTablets(ctx, name, row.All, nil); err != nil {
		t.Fatal(err)
	}
	check("after a major compaction")
}
