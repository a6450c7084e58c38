package formats

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/check"
	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/conformance/backendtest"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/stamp"
)

// testdata/crashed-2.zip is the data directory of a server of the last build of format 2, which
// was killed (SIGKILL) under the load of 4 official clients after it had been stopped and
// started once. Each client wrote numbers that only grow, n to the row whose key ends with n
// modulo 100. crashed-2.txt has the largest number of each row that was acknowledged.
const crashedTable = instance + "/tables/t"

// crashedRows returns what a table of such a directory holds.
func crashedRows(t *testing.T, c *client.Client) map[string]int {
	t.Helper()
	w := &backendtest.Collector{}
	if _, err := c.ReadRows(t.Context(), &scan.Request{Table: crashedTable, Ranges: []row.Range{row.All}}, w); err != nil || w.Check() != nil {
		t.Fatal(err, w.Check())
	}
	out := map[string]int{}
	for _, r := range w.Rows {
		var n int
		if _, err := fmt.Sscan(string(r.Cells[0].Value), &n); err != nil || len(r.Cells) != 1 {
			t.Errorf("row %q: %+v", r.Key, r.Cells)
		}
		out[r.Key] = n
	}
	return out
}

// A firstRecord is a changes.Writer that ends a read after a record.
type firstRecord struct{ rec changes.Record }

var errRecord = errors.New("there it is")

func (f *firstRecord) Record(r *changes.Record, _ changes.Position) (bool, error) {
	f.rec = changes.Record{Stamp: r.Stamp, Key: append([]byte(nil), r.Key...)}
	return false, errRecord
}

func (f *firstRecord) Flush() error                     { return nil }
func (f *firstRecord) Watermark(changes.Position) error { return nil }

// TestCrashedDirectory: a server that was killed under load by the last build of format 2 is
// gone on with: nothing that was acknowledged is lost, and its tablets count on by commit time.
func TestCrashedDirectory(t *testing.T) {
	dir := unpack(t, "testdata/crashed-2.zip")
	sum, err := check.Directory(t.Context(), vfs.Default, dir, nil, func(f check.Finding) { tell(t, f) })
	if err != nil || sum.LogRecords < 1000 {
		t.Errorf("check: %+v, %v", sum, err)
	}
	s, end := openDirectory(t, dir)
	acked, err := os.ReadFile("testdata/crashed-2.txt")
	if err != nil {
		t.Fatal(err)
	}
	got := crashedRows(t, s.Client)
	rows := 0
	for line := range strings.Lines(string(acked)) {
		var key string
		var n, slot int
		if _, err := fmt.Sscan(line, &key, &n); err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Sscan(strings.TrimLeft(key[strings.Index(key, "-")+1:], "0")+" ", &slot); err != nil {
			slot = 0
		}
		// The write after it was sent, perhaps, and not acknowledged.
		if has, ok := got[key]; !ok || has != n && has != n+100 || has%100 != slot {
			t.Errorf("row %s has %d, %d was acknowledged", key, has, n)
		}
		rows++
	}
	if rows != 400 || len(got) != rows {
		t.Errorf("%d rows, %d were acknowledged", len(got), rows)
	}
	since := time.Now()
	if _, err := s.UpdateTable(t.Context(), crashedTable, func(t *schema.Table) error {
		t.Stream = &schema.Stream{Life: 1, Retention: 24 * time.Hour, Since: since}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	follow := func(c *client.Client) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var w firstRecord
		parts, err := c.StreamPartitions(ctx, crashedTable)
		if err != nil || len(parts) != 2 {
			t.Fatal(parts, err)
		}
		if _, err := c.ReadChanges(ctx, &changes.Request{Table: crashedTable, Life: 1, Within: parts[0], From: changes.Position{Through: stamp.At(since) - 1}, Every: time.Second}, &w); !errors.Is(err, errRecord) {
			t.Fatal(err)
		}
		if string(w.rec.Key) != "k0-00" || stamp.Time(w.rec.Stamp).Before(since.Truncate(time.Microsecond)) {
			t.Errorf("the first change is of row %q, at %v", w.rec.Key, stamp.Time(w.rec.Stamp))
		}
	}
	if err := s.MutateRow(t.Context(), crashedTable, &row.Entry{Key: []byte("k0-00"), Mutations: []row.Mutation{{Op: row.SetCell, Family: "f", Qualifier: []byte("q"), Timestamp: 1000, Value: []byte("9000000")}}}); err != nil {
		t.Fatal(err)
	}
	got["k0-00"] = 9000000
	follow(s.Client)
	end()
	s, _ = openDirectory(t, dir)
	for key, n := range crashedRows(t, s.Client) {
		if got[key] != n {
			t.Errorf("row %s has %d after another start, and had %d", key, n, got[key])
		}
	}
	follow(s.Client)
}
