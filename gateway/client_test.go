package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

// The whole data API as the official client uses it.
func TestOfficialClient(t *testing.T) {
	f := newFixture(t, Options{})
	tbl, ctx := f.table(), context.Background()

	mut := bigtable.NewMutation()
	mut.Set("cf", "a", 1000, []byte("one"))
	mut.Set("cf", "a", 2000, []byte("two"))
	mut.Set("cf2", "", 3000, bytes.Repeat([]byte("x"), 300_000))
	if err := tbl.Apply(ctx, "row1", mut); err != nil {
		t.Fatal(err)
	}
	r, err := tbl.ReadRow(ctx, "row1")
	if err != nil {
		t.Fatal(err)
	}
	if len(r["cf"]) != 2 || string(r["cf"][0].Value) != "two" || r["cf"][1].Timestamp != 1000 || len(r["cf2"][0].Value) != 300_000 {
		t.Fatalf("read %v", r)
	}
	if r, err := tbl.ReadRow(ctx, "row1", bigtable.RowFilter(bigtable.ChainFilters(bigtable.FamilyFilter("cf"), bigtable.LatestNFilter(1)))); err != nil || len(r) != 1 || len(r["cf"]) != 1 {
		t.Fatalf("filtered %v, %v", r, err)
	}
	if r, err := tbl.ReadRow(ctx, "absent"); err != nil || r != nil {
		t.Fatalf("absent row: %v, %v", r, err)
	}

	// One entry of the batch names a family that is not there.
	var keys []string
	var muts []*bigtable.Mutation
	for i := range 5000 {
		m := bigtable.NewMutation()
		family := "cf"
		if i == 77 {
			family = "nope"
		}
		m.Set(family, "q", 1000, fmt.Appendf(nil, "%d", i))
		keys, muts = append(keys, fmt.Sprintf("bulk%05d", i)), append(muts, m)
	}
	errs, err := tbl.ApplyBulk(ctx, keys, muts)
	if err != nil {
		t.Fatal(err)
	}
	for i, err := range errs {
		if (status.Code(err) == codes.NotFound) != (i == 77) {
			t.Fatalf("entry %d: %v", i, err)
		}
	}
	n := 0
	last := ""
	var stats *bigtable.FullReadStats
	err = tbl.ReadRows(ctx, bigtable.PrefixRange("bulk"), func(r bigtable.Row) bool {
		n++
		if r.Key() <= last {
			t.Fatalf("%q after %q", r.Key(), last)
		}
		last = r.Key()
		return true
	}, bigtable.WithFullReadStats(func(s *bigtable.FullReadStats) { stats = s }))
	if err != nil || n != 4999 || stats == nil || stats.ReadIterationStats.RowsReturnedCount != 4999 {
		t.Fatalf("%d rows, stats %+v, %v", n, stats, err)
	}
	stats = nil
	err = tbl.ReadRows(ctx, bigtable.PrefixRange("nothing"), func(bigtable.Row) bool { return true },
		bigtable.WithFullReadStats(func(s *bigtable.FullReadStats) { stats = s }))
	if err != nil || stats == nil || stats.ReadIterationStats.RowsReturnedCount != 0 {
		t.Fatalf("empty read: stats %+v, %v", stats, err)
	}
	var got []string
	err = tbl.ReadRows(ctx, bigtable.PrefixRange("bulk"), func(r bigtable.Row) bool { got = append(got, r.Key()); return true },
		bigtable.ReverseScan(), bigtable.LimitRows(3))
	if err != nil || strings.Join(got, " ") != "bulk04999 bulk04998 bulk04997" {
		t.Fatalf("reversed: %v, %v", got, err)
	}

	rmw := bigtable.NewReadModifyWrite()
	rmw.Increment("cf", "n", 5)
	rmw.Increment("cf", "n", 6)
	rmw.AppendValue("cf", "s", []byte("abc"))
	if r, err = tbl.ApplyReadModifyWrite(ctx, "counter", rmw); err != nil || len(r["cf"]) != 2 || r["cf"][0].Value[7] != 11 {
		t.Fatalf("read-modify-write: %v, %v", r, err)
	}
	rmw = bigtable.NewReadModifyWrite()
	rmw.Increment("cf", "s", 1)
	if _, err = tbl.ApplyReadModifyWrite(ctx, "counter", rmw); status.Code(err) != codes.FailedPrecondition {
		t.Fatalf("increment of a string: %v", err)
	}

	yes, no := bigtable.NewMutation(), bigtable.NewMutation()
	yes.Set("cf", "yes", 0, nil)
	no.Set("cf", "no", 0, nil)
	var matched bool
	if err := tbl.Apply(ctx, "row1", bigtable.NewCondMutation(bigtable.ValueFilter("two"), yes, no), bigtable.GetCondMutationResult(&matched)); err != nil || !matched {
		t.Fatalf("conditional: %v, %v", matched, err)
	}
	agg := bigtable.NewMutation()
	agg.AddIntToCell("agg", "q", 1000, 40)
	agg.AddIntToCell("agg", "q", 1000, 2)
	if err := tbl.Apply(ctx, "sum", agg); err != nil {
		t.Fatal(err)
	}
	if r, err := tbl.ReadRow(ctx, "sum"); err != nil || r["agg"][0].Value[7] != 42 {
		t.Fatalf("sum: %v, %v", r, err)
	}
	if ks, err := tbl.SampleRowKeys(ctx); err != nil || len(ks) != 1 || ks[0] != "m" {
		t.Fatalf("samples: %q, %v", ks, err)
	}

	f.seen.mu.Lock()
	defer f.seen.mu.Unlock()
	if f.seen.received < 300_000 || f.seen.sent < 300_000 || len(f.seen.codes["/google.bigtable.v2.Bigtable/ReadRows"]) < 5 {
		t.Errorf("observed %+v", f.seen)
	}
}

// scripted answers ReadRows with fixed rows.
func scripted(rows []scriptedRow) func(context.Context, *scan.Request, scan.Writer) (scan.Stats, error) {
	return func(_ context.Context, _ *scan.Request, w scan.Writer) (st scan.Stats, err error) {
		full := false
		for _, r := range rows {
			if full {
				if err := w.Flush(); err != nil {
					return st, err
				}
			}
			w.StartRow([]byte(r.key))
			for i := range r.cells {
				w.Cell(&r.cells[i])
			}
			if full, err = w.EndRow(); err != nil {
				return st, err
			}
			st.RowsReturned++
		}
		return st, nil
	}
}

type scriptedRow struct {
	key   string
	cells []row.Cell
}

// read reads everything with the official client's chunk reader.
func (f *fixture) read(tbl *bigtable.Table) ([]scriptedRow, error) {
	var got []scriptedRow
	err := tbl.ReadRows(context.Background(), bigtable.InfiniteRange(""), func(r bigtable.Row) bool {
		s := scriptedRow{key: r.Key()}
		for _, fam := range slices.Sorted(maps.Keys(r)) {
			for _, it := range r[fam] {
				s.cells = append(s.cells, row.Cell{Family: fam, Qualifier: []byte(strings.TrimPrefix(it.Column, fam+":")),
					Timestamp: int64(it.Timestamp), Value: it.Value, Labels: it.Labels})
			}
		}
		got = append(got, s)
		return true
	})
	return got, err
}

func sameScript(t *testing.T, got, want []scriptedRow) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("got %d rows, want %d", len(got), len(want))
	}
	for i := range want {
		if got[i].key != want[i].key || len(got[i].cells) != len(want[i].cells) {
			t.Fatalf("row %d: got %q with %d cells, want %q with %d", i, got[i].key, len(got[i].cells), want[i].key, len(want[i].cells))
		}
		for j := range want[i].cells {
			a, b := got[i].cells[j], want[i].cells[j]
			if a.Family != b.Family || !bytes.Equal(a.Qualifier, b.Qualifier) || a.Timestamp != b.Timestamp || !bytes.Equal(a.Value, b.Value) ||
				len(a.Labels)+len(b.Labels) > 0 && !reflect.DeepEqual(a.Labels, b.Labels) {
				t.Fatalf("row %q cell %d: got %+v, want %+v", want[i].key, j, a, b)
			}
		}
	}
}

// Every result that Google's conformance cases describe can be encoded so that
// the official client reads just that result. The file is the client's own.
func TestReadRowsConformance(t *testing.T) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "cloud.google.com/go/bigtable").Output()
	if err != nil {
		t.Skipf("go list: %v", err)
	}
	b, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "internal/conformance/testdata/readrows.json"))
	if err != nil {
		t.Skip(err)
	}
	var file struct {
		ReadRowsTests []struct {
			Description string
			Results     []struct {
				RowKey, FamilyName, Qualifier, Value, Label string
				TimestampMicros                             json.Number
				Error                                       bool
			}
		}
	}
	if err := json.Unmarshal(b, &file); err != nil {
		t.Fatal(err)
	}
	f := newFixture(t, Options{})
	tbl := f.table()
	ran := 0
	for _, c := range file.ReadRowsTests {
		var rows []scriptedRow
		for _, r := range c.Results {
			if r.Error {
				continue // what comes before the client's error is a legal result too
			}
			ts, _ := r.TimestampMicros.Int64()
			cell := row.Cell{Family: r.FamilyName, Qualifier: []byte(r.Qualifier), Timestamp: ts, Value: []byte(r.Value)}
			if r.Label != "" {
				cell.Labels = []string{r.Label}
			}
			if n := len(rows); n > 0 && rows[n-1].key == r.RowKey {
				rows[n-1].cells = append(rows[n-1].cells, cell)
			} else {
				rows = append(rows, scriptedRow{key: r.RowKey, cells: []row.Cell{cell}})
			}
		}
		if len(rows) == 0 {
			continue
		}
		ran++
		t.Run(c.Description, func(t *testing.T) {
			f.stub.readRows = scripted(rows)
			got, err := f.read(tbl)
			if err != nil {
				t.Fatal(err)
			}
			sameScript(t, got, rows)
		})
	}
	if ran < 25 {
		t.Errorf("only %d of %d cases have results", ran, len(file.ReadRowsTests))
	}
}

// Rows of every size between nothing and several messages.
func TestRandomRowsThroughClient(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	sizes := []int{0, 1, 100, 1000, 16<<10 - 40, 100 << 10, 256 << 10, 1 << 20, 5 << 20}
	f := newFixture(t, Options{})
	tbl := f.table()
	for range 10 {
		var rows []scriptedRow
		for i := range rnd.IntN(300) {
			r := scriptedRow{key: fmt.Sprintf("%06d", i)}
			for _, fam := range []string{"A", "B", "cf"} {
				for q := range rnd.IntN(3) {
					for v := range 1 + rnd.IntN(2) {
						k := rnd.IntN(len(sizes))
						if rnd.IntN(20) > 0 {
							k = rnd.IntN(4)
						}
						value := make([]byte, sizes[k])
						for j := range min(len(value), 8) {
							value[j] = byte(rnd.Uint32())
						}
						c := row.Cell{Family: fam, Qualifier: fmt.Appendf(nil, "q%d", q), Timestamp: int64(10-v) * 1000, Value: value}
						if rnd.IntN(5) == 0 {
							c.Labels = []string{"label"}
						}
						r.cells = append(r.cells, c)
					}
				}
			}
			if len(r.cells) > 0 {
				rows = append(rows, r)
			}
		}
		f.stub.readRows = scripted(rows)
		got, err := f.read(tbl)
		if err != nil {
			t.Fatal(err)
		}
		sameScript(t, got, rows)
	}
}
