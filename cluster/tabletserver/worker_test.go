package tabletserver_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/cputime"
	"github.com/trestledb/trestle/engine/datadir/datadirtest"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
)

// TestManyTablets: hundreds of small memtables share a budget that none of them
// would fill.
func TestManyTablets(t *testing.T) {
	o := Options{FS: vfs.NewMem(), Dir: "d", MemtableBytes: 4 << 20}
	s := mustOpen(t, o)
	sch := newSchema("t", 1000, "f")
	var splits []string
	for i := range 300 {
		splits = append(splits, fmt.Sprintf("%03d", i+1))
	}
	table := mustCreate(t, s, sch, splits...)
	start := time.Now()
	for i := range 1000 {
		mustPut(t, s, table, fmt.Sprintf("%03d-%d", i%300, i), setCell("f", "q", 1000, strings.Repeat("x", 100)))
	}
	if d := time.Since(start); d > time.Minute {
		t.Errorf("1000 writes took %v", d)
	}
	if used, _ := s.env.Memory.Used(); used > 2*o.MemtableBytes {
		t.Errorf("%d bytes in memtables", used)
	}
	start = time.Now()
	mustClose(t, s)
	if d := time.Since(start); d > time.Minute {
		t.Errorf("closing took %v", d)
	}
	s = mustOpen(t, o)
	defer mustClose(t, s)
	rows, err := readRows(s, &scan.Request{Table: table, Ranges: []row.Range{row.All}, Reversed: true})
	if err != nil || len(rows) != 1000 {
		t.Errorf("%d rows, %v", len(rows), err)
	}
}

// TestHugeRow: a change larger than the whole budget goes through, and so does
// what comes after it.
func TestHugeRow(t *testing.T) {
	s := mustOpen(t, Options{FS: vfs.NewMem(), Dir: "d", MemtableBytes: 1 << 20})
	defer mustClose(t, s)
	table := mustCreate(t, s, newSchema("t", 1000, "f"))
	big := strings.Repeat("x", 3<<20)
	for i := range 4 {
		mustPut(t, s, table, "huge", setCell("f", fmt.Sprint(i), 1000, big), setCell("f", fmt.Sprint("x", i), 1000, big))
		mustPut(t, s, table, "small", setCell("f", "q", 1000, "v"))
	}
	rows, err := readRows(s, &scan.Request{Table: table, Ranges: []row.Range{row.All}})
	if err != nil || len(rows) != 2 || len(rows[0].Cells) != 8 || len(rows[0].Cells[7].Value) != len(big) {
		t.Errorf("%d rows, %v", len(rows), err)
	}
}

// TestAggregatesAfterDeletes: each addition sees what the same request deleted
// before it, at a cost that does not grow with the request.
func TestAggregatesAfterDeletes(t *testing.T) {
	s := mustOpen(t, Options{FS: vfs.NewMem(), Dir: "d"})
	defer mustClose(t, s)
	table := mustCreate(t, s, newSchema("t", 1000, "f", "sum=sum"))
	add := func(n int64) row.Mutation {
		return row.Mutation{Op: row.AddToCell, Family: "sum", Qualifier: []byte("q"), Input: row.Input{Kind: row.IntInput, Int: n}}
	}
	mustPut(t, s, table, "r", add(1000))
	var muts []row.Mutation
	for i := range 10_000 {
		muts = append(muts, row.Mutation{Op: row.DeleteFamily, Family: "f"}, add(1))
		if i == 5000 {
			muts = append(muts, row.Mutation{Op: row.DeleteFamily, Family: "sum"})
		}
	}
	start := cputime.Used()
	mustPut(t, s, table, "r", muts...)
	if d := cputime.Used() - start; d > 5*time.Second {
		t.Errorf("%d mutations took %v of processor", len(muts), d)
	}
	rows, err := readRows(s, &scan.Request{Table: table, Ranges: []row.Range{row.All}})
	if err != nil || len(rows) != 1 || string(rows[0].Cells[0].Value) != "\x00\x00\x00\x00\x00\x00\x13\x87" {
		t.Errorf("%v, %v", show(rows), err)
	}
}

// TestFullMetadata: a METADATA tablet that was left full, with rows to bring into line,
// does not keep the directory from being opened.
func TestFullMetadata(t *testing.T) {
	fs := datadirtest.NewCrashableMem()
	o := Options{FS: fs, Dir: "d", NoBackground: true}
	s := mustOpen(t, o)
	table := mustCreate(t, s, newSchema("t", 1000, "f"), "m")
	// What a crash in the middle of making a table leaves.
	orphan := *s.tabletsOf(table)[0].Row()
	full := func() bool {
		used, _ := s.metaEnv.Memory.Used()
		return used >= s.metaEnv.Memory.Limit()
	}
	for i := 0; !full(); i++ {
		r := *orphan.Clone()
		r.Table, r.Tablet, r.Version, r.End = 1<<60, metadata.TabletID(1<<60+i), 0, fmt.Appendf(make([]byte, 0, 60_000), "%060000d", i)
		if err := s.env.Meta.CAS(ctx, &r); err != nil {
			t.Fatalf("row %d: %v", i, err)
		}
	}
	if n := s.meta.Runs(); n > 0 {
		t.Fatalf("METADATA has %d runs: it was flushed", n)
	}
	o.FS = fs.CrashClone(vfs.CrashCloneCfg{})
	mustClose(t, s)
	start := time.Now()
	o.NoBackground = false
	s = mustOpen(t, o)
	defer mustClose(t, s)
	mustPut(t, s, table, "r", setCell("f", "q", 1000, "v"))
	mustCreate(t, s, newSchema("another", 1000, "f"))
	if d := time.Since(start); d > time.Minute {
		t.Errorf("opening took %v", d)
	}
}

// TestManyFamilies: the ids of families end before those of the system begin.
func TestManyFamilies(t *testing.T) {
	s := mustOpen(t, Options{FS: vfs.NewMem(), Dir: "d", NoBackground: true})
	defer mustClose(t, s)
	table := mustCreate(t, s, newSchema("t", 1000, "f"))
	change := func(n int) error {
		_, err := s.UpdateTable(ctx, table, func(s *schema.Table) error {
			for range n {
				delete(s.Families, "g")
				s.AddFamily(schema.Family{Name: "g"})
			}
			return nil
		})
		return err
	}
	if err := change(65000); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{600, 700, 70000} {
		if err := change(n); kindOf(err) != "failed precondition" {
			t.Errorf("%d more: %v", n, err)
		}
	}
	mustPut(t, s, table, "r", setCell("g", "q", 1000, "v"))
	if got := content(s, table, row.All); !strings.Contains(got, `"v"`) {
		t.Errorf("got %q", got)
	}
}

// TestUndelete: the last table of a name comes back, even if the clock was set
// back meanwhile; earlier ones, and those that were purged, do not.
func TestUndelete(t *testing.T) {
	now := &hand{now: time.Unix(1_700_000_000, 0)}
	o := Options{FS: vfs.NewMem(), Dir: "d", NoBackground: true, Now: now.Now, Tend: 10 * time.Millisecond}
	s := mustOpen(t, o)
	var table string
	for i := range 3 {
		table = mustCreate(t, s, newSchema("t", 1000, fmt.Sprint("f", i)), "m")
		mustPut(t, s, table, "a", setCell(fmt.Sprint("f", i), "q", 1000, fmt.Sprint("table ", i)))
		mustPut(t, s, table, "z", setCell(fmt.Sprint("f", i), "q", 1000, fmt.Sprint("table ", i)))
		if err := s.Flush(ctx); err != nil {
			t.Fatal(err)
		}
		now.advance(-time.Hour)
		if err := s.DeleteTable(ctx, table); err != nil {
			t.Fatal(err)
		}
		now.advance(-time.Hour)
		if _, err := s.CreateTable(ctx, newSchema("other", 1000), nil); err != nil && i == 0 {
			t.Fatal(err)
		}
	}
	if err := s.MutateRow(ctx, table, entry("a", setCell("f2", "q", 1000, "v"))); kindOf(err) != "not found" {
		t.Errorf("a write to a deleted table: %v", err)
	}
	mustClose(t, s)
	s = mustOpen(t, o)
	if _, err := s.UndeleteTable(ctx, table); err != nil {
		t.Fatal(err)
	}
	if got := content(s, table, row.All); strings.Count(got, "table 2") != 2 {
		t.Errorf("undeleted: %q", got)
	}
	if _, err := s.UndeleteTable(ctx, table); kindOf(err) != "already exists" {
		t.Errorf("again: %v", err)
	}
	if err := s.DeleteTable(ctx, table); err != nil {
		t.Fatal(err)
	}
	now.advance(schema.UndeleteWindow - time.Second)
	s.purged(t)
	if _, err := s.UndeleteTable(ctx, table); err != nil {
		t.Errorf("within the window: %v", err)
	}
	if err := s.DeleteTable(ctx, table); err != nil {
		t.Fatal(err)
	}
	now.advance(schema.UndeleteWindow + 100*time.Hour)
	s.purged(t)
	if _, err := s.UndeleteTable(ctx, table); kindOf(err) != "not found" {
		t.Errorf("after the window: %v", err)
	}
	checkStore(t, s)
	if n := len(s.allTablets()); n != 1 {
		t.Errorf("%d tablets are left", n)
	}
	mustClose(t, s)
	s = mustOpen(t, o)
	defer mustClose(t, s)
	if _, err := s.UndeleteTable(ctx, table); kindOf(err) != "not found" {
		t.Errorf("after a restart: %v", err)
	}
}
