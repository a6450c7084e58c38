package tabletserver_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/tablet"
)

// TestPanicFailsTablet: where the background work of one tablet panics, that
// tablet refuses all calls and says why; the others are served, restarts too, and
// the next start has all that was acknowledged.
func TestPanicFailsTablet(t *testing.T) {
	for _, work := range []string{"flush", "compaction"} {
		t.Run(work, func(t *testing.T) {
			fs := newFaulty(vfs.NewMem())
			// Of the compaction nobody else is to make it first.
			o := Options{FS: fs, Dir: "d", Log: loud(), NoBackground: work == "compaction", SegmentBytes: 64 << 10, LogBytes: 128 << 10, Tablet: tablet.Options{MemtableBytes: 32 << 10}}
			s := mustOpen(t, o)
			other := mustCreate(t, s, newSchema("u", 1000, "f"))
			table := mustCreate(t, s, newSchema("t", 1000, "f"))
			value := strings.Repeat("v", 1<<10)
			put := func(table string, i int) error {
				return s.MutateRow(ctx, table, entry(fmt.Sprintf("r%04d", i), setCell("f", "q", 1000, value)))
			}
			written := 0
			for ; written < 10; written++ {
				mustPut(t, s, table, fmt.Sprintf("r%04d", written), setCell("f", "q", 1000, value))
				if work == "compaction" && written%5 == 4 {
					if err := s.FlushTablets(ctx, table, row.All); err != nil {
						t.Fatal(err)
					}
				}
			}
			fs.set(func(op errorfs.Op) error {
				if op.Kind == errorfs.OpCreate && strings.Contains(op.Path, ".tmp/") {
					fs.set(nil)
					panic("planted")
				}
				return nil
			})
			if work == "compaction" {
				if err := s.CompactTablets(ctx, table, row.All, nil); fault.KindOf(err) != fault.Internal {
					t.Errorf("compact: %v", err)
				}
			}
			// Until the tablet refuses writes, all are acknowledged.
			var err error
			for end := time.Now().Add(time.Minute); err == nil && time.Now().Before(end); {
				if err = put(table, written); err == nil {
					written++
				}
			}
			wantFailed := func(what string, err error) {
				t.Helper()
				if fault.KindOf(err) != fault.Internal || !strings.Contains(fmt.Sprint(err), "planted") {
					t.Errorf("%s: %v", what, err)
				}
			}
			wantFailed("write", err)
			_, err = readRows(s, &scan.Request{Table: table, Ranges: []row.Range{row.All}})
			wantFailed("read", err)
			wantFailed("flush", s.FlushTablets(ctx, table, row.All))
			_, err = s.ReadModifyWriteRow(ctx, table, []byte("r0000"), []row.Rule{{Family: "f", Qualifier: []byte("q"), Append: []byte("x"), IsAppend: true}})
			wantFailed("read-modify-write", err)
			met := s.Damage()
			if len(met) != 1 || !met[0].Failed || met[0].Table != table {
				t.Errorf("told of: %+v", met)
			}
			if infos, err := s.Tablets(ctx, table); err != nil || len(infos) != 1 {
				t.Errorf("tablets: %+v, %v", infos, err)
			}
			// Several times the length that the log may have.
			for i := range 600 {
				if err := put(other, i); err != nil {
					t.Fatalf("another table: %v", err)
				}
			}
			want := content(s, other, row.All)
			mustClose(t, s)
			s = mustOpen(t, o)
			defer mustClose(t, s)
			if got := content(s, other, row.All); got != want {
				t.Errorf("another table has %d bytes of %d", len(got), len(want))
			}
			if rows, err := readRows(s, &scan.Request{Table: table, Ranges: []row.Range{row.All}}); err != nil || len(rows) != written {
				t.Errorf("after a start: %d rows of %d, %v", len(rows), written, err)
			}
			if met := s.Damage(); len(met) != 0 {
				t.Errorf("after a start: %+v", met)
			}
		})
	}
}
