package tabletserver_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/conformance/backendtest"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/tablet"
	"github.com/trestledb/trestle/gateway/backend"
)

// The arrangements of families in locality groups that tests try.
const (
	oneGroup  = iota
	eachOwn   // every family has a group
	mixed     // some share one, some are in the default group
	moving    // mixed, and churn moves them about
	arranging // how many there are
)

// arrange puts the families of a new table in locality groups.
func arrange(s *schema.Table, how int) *schema.Table {
	s = s.Clone()
	assign := func(family string, group uint16) {
		f := s.Families[family]
		f.Group = group
		s.Families[family] = f
	}
	names := s.FamilyNames()
	switch how {
	case eachOwn:
		for i, n := range names[:min(len(names), schema.MaxGroups-1)] {
			assign(n, s.PutGroup(schema.Group{Name: fmt.Sprint("own-", i), InMemory: i%2 == 0}))
		}
	case mixed, moving:
		a := s.PutGroup(schema.Group{Name: "a", Compression: "zstd", BloomBits: -1})
		b := s.PutGroup(schema.Group{Name: "b", BlockBytes: 512, Compression: "none", InMemory: true})
		for i, n := range names {
			assign(n, []uint16{a, 0, b, a}[i%4])
		}
		if how == moving {
			s.PutGroup(schema.Group{Name: "moving"})
		}
	}
	return s
}

// move moves a family of a table to another group, if arrange has said so.
func move(s *Store, rng *rand.Rand, table string) error {
	sch, err := s.Table(ctx, table)
	if err != nil {
		return err
	}
	if _, ok := sch.Group("moving"); !ok {
		return nil
	}
	groups, families := sch.AllGroups(), sch.FamilyNames()
	if len(families) == 0 {
		return nil
	}
	_, err = s.AssignFamilies(ctx, table, groups[rng.IntN(len(groups))].Name, []string{families[rng.IntN(len(families))]})
	return err
}

// A groupedStore makes tables with locality groups.
type groupedStore struct {
	*Store
	how int
}

func (s groupedStore) CreateTable(ctx context.Context, t *schema.Table, splits [][]byte) (*schema.Table, error) {
	return s.Store.CreateTable(ctx, arrange(t, s.how), splits)
}

// TestBackendGroups: locality groups make no difference to any answer.
func TestBackendGroups(t *testing.T) {
	backendtest.Run(t, func(t testing.TB) backend.Backend {
		o := Options{FS: vfs.NewMem(), Dir: "data", MemtableBytes: 1 << 20}
		o.Tablet.MemtableBytes = 64 << 10
		o.Tablet.FileBytes = 64 << 10
		s := mustOpen(t, o)
		t.Cleanup(func() { mustClose(t, s) })
		return groupedStore{s, mixed}
	})
}

// readFamilies reads all rows of a table with a filter on families.
func readFamilies(t testing.TB, s *Store, table, pattern string) string {
	t.Helper()
	rows, err := readRows(s, &scan.Request{Table: table, Ranges: []row.Range{row.All},
		Filter: &filter.Node{Op: filter.FamilyRegex, Pattern: []byte(pattern)}})
	if err != nil {
		t.Fatal(err)
	}
	return show(rows)
}

// groupsOf returns the groups of the tablet's files, newest first.
func groupsOf(s *Store, table string) []uint16 {
	var out []uint16
	for _, f := range s.tabletsOf(table)[0].Row().Files {
		out = append(out, f.Group)
	}
	return out
}

// TestGroups follows a table through flushes, compactions and changes of its
// locality groups.
func TestGroups(t *testing.T) {
	fs := vfs.NewMem()
	o := Options{FS: fs, Dir: "d", NoBackground: true, Now: clock}
	s := mustOpen(t, o)
	table := mustCreate(t, s, newSchema("t", 1000, "anchor", "contents", "language"))
	tt := s.tabletsOf(table)[0]
	flush := func() {
		t.Helper()
		if err := s.flush(ctx, tt); err != nil {
			t.Fatal(err)
		}
	}
	want := func(what string, got, want any) {
		t.Helper()
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: got %v, want %v", what, got, want)
		}
	}
	// One group: one file.
	mustPut(t, s, table, "r1", setCell("anchor", "x", 1000, "a1"), setCell("contents", "", 1000, "c1"), setCell("language", "", 1000, "EN"))
	flush()
	want("groups", groupsOf(s, table), []uint16{0})

	// A group for contents, one for language. The old file serves on.
	for _, g := range []string{"big", "small"} {
		if _, err := s.CreateGroup(ctx, "t", schema.Group{Name: g}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.AssignFamilies(ctx, "t", "big", []string{"contents"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.AssignFamilies(ctx, "t", "small", []string{"language"}); err != nil {
		t.Fatal(err)
	}
	mustPut(t, s, table, "r2", setCell("anchor", "x", 1000, "a2"), setCell("contents", "", 1000, "c2"), setCell("language", "", 1000, "DE"))
	mustPut(t, s, table, "r3", setCell("language", "", 1000, "FR"))
	flush()
	want("groups", groupsOf(s, table), []uint16{0, 1, 2, 0})
	const languages = "\"r1\" language:\"\"@1000=\"EN\"\n\"r2\" language:\"\"@1000=\"DE\"\n\"r3\" language:\"\"@1000=\"FR\"\n"
	want("languages", readFamilies(t, s, table, "language"), languages)
	all := content(s, table, row.All)

	// A compaction divides the old file.
	for more := true; more; {
		var err error
		if more, err = tt.Compact(ctx); err != nil {
			t.Fatal(err)
		}
	}
	want("groups", groupsOf(s, table), []uint16{0, 1, 2})
	want("all", content(s, table, row.All), all)
	want("languages", readFamilies(t, s, table, "language"), languages)

	// A row marker must be seen from each group that has something older, though
	// the memtable has nothing else of that group.
	mustPut(t, s, table, "r1", row.Mutation{Op: row.DeleteRow})
	mustPut(t, s, table, "r2", row.Mutation{Op: row.DeleteFamily, Family: "contents"}, setCell("anchor", "y", 1000, "b2"))
	flush()
	want("groups", groupsOf(s, table), []uint16{0, 1, 2, 0, 1, 2})
	want("languages", readFamilies(t, s, table, "language"), languages[strings.IndexByte(languages, '\n')+1:])
	want("contents", readFamilies(t, s, table, "contents"), "")
	want("anchors", readFamilies(t, s, table, "anchor"), "\"r2\" anchor:\"x\"@1000=\"a2\"\n\"r2\" anchor:\"y\"@1000=\"b2\"\n")
	// Whether a row exists does not depend on the groups that a filter asks for.
	for _, c := range []struct {
		row, family string
		want        bool
	}{{"r1", "", false}, {"r2", "", true}, {"r2", "contents", false}, {"r3", "language", true}, {"r3", "anchor", false}, {"r3", "", true}} {
		var f *filter.Node
		if c.family != "" {
			f = &filter.Node{Op: filter.FamilyRegex, Pattern: []byte(c.family)}
		}
		got, err := s.CheckAndMutateRow(ctx, table, []byte(c.row), f, nil, []row.Mutation{setCell("anchor", "none", 1000, "x")})
		if err != nil {
			t.Fatal(err)
		}
		want(fmt.Sprintf("row %s has %q", c.row, c.family), got, c.want)
		if !got {
			mustPut(t, s, table, c.row, row.Mutation{Op: row.DeleteColumn, Family: "anchor", Qualifier: []byte("none"), Times: cell.AllTime})
		}
	}
	flush()
	all = content(s, table, row.All)
	if err := tt.CompactMajor(ctx); err != nil {
		t.Fatal(err)
	}
	// Nothing is left of contents.
	want("groups", groupsOf(s, table), []uint16{0, 2})
	want("all", content(s, table, row.All), all)

	// A group that is used cannot be deleted; one that is not can.
	if _, err := s.DeleteGroup(ctx, "t", "small"); fault.KindOf(err) != fault.FailedPrecondition {
		t.Errorf("delete a group with families: %v", err)
	}
	if _, err := s.AssignFamilies(ctx, "t", schema.DefaultGroup, []string{"language", "contents"}); err != nil {
		t.Fatal(err)
	}
	for _, g := range []string{"big", "small"} {
		if _, err := s.DeleteGroup(ctx, "t", g); err != nil {
			t.Error(err)
		}
	}
	want("all", content(s, table, row.All), all)
	mustClose(t, s)
	s = mustOpen(t, o)
	defer mustClose(t, s)
	tt = s.tabletsOf(table)[0]
	want("all after a restart", content(s, table, row.All), all)
	if err := tt.CompactMajor(ctx); err != nil {
		t.Fatal(err)
	}
	want("groups", groupsOf(s, table), []uint16{0})
	want("all", content(s, table, row.All), all)
	checkStore(t, s)
}

// TestGroupSettings: what groups can be told, and what not.
func TestGroupSettings(t *testing.T) {
	o := Options{FS: vfs.NewMem(), Dir: "d", NoBackground: true}
	s := mustOpen(t, o)
	table := mustCreate(t, s, newSchema("t", 1000, "f"))
	for _, c := range []struct {
		g    schema.Group
		kind error
	}{
		{schema.Group{Name: "default"}, fault.AlreadyExists},
		{schema.Group{Name: "a b"}, fault.Invalid},
		{schema.Group{Name: ""}, fault.Invalid},
		{schema.Group{Name: "g", Compression: "lzma"}, fault.Invalid},
		{schema.Group{Name: "g", BlockBytes: 1}, fault.Invalid},
		{schema.Group{Name: "g", BlockBytes: 1 << 30}, fault.Invalid},
		{schema.Group{Name: "g", BloomBits: 1000}, fault.Invalid},
		{schema.Group{Name: "g", Compression: "zstd", BlockBytes: 4096, BloomBits: -1}, nil},
		{schema.Group{Name: "g"}, fault.AlreadyExists},
	} {
		if _, err := s.CreateGroup(ctx, "t", c.g); c.kind == nil && err != nil || c.kind != nil && fault.KindOf(err) != c.kind {
			t.Errorf("create %+v: %v, want %v", c.g, err, c.kind)
		}
	}
	if _, err := s.AssignFamilies(ctx, "t", "g", []string{"f", "nope"}); fault.KindOf(err) != fault.NotFound {
		t.Errorf("assign a family that does not exist: %v", err)
	}
	if _, err := s.AssignFamilies(ctx, "t", "nope", []string{"f"}); fault.KindOf(err) != fault.NotFound {
		t.Errorf("assign to a group that does not exist: %v", err)
	}
	if _, err := s.AssignFamilies(ctx, table, "g", []string{"f"}); err != nil {
		t.Error(err)
	}
	if _, err := s.SetGroup(ctx, "t", schema.DefaultGroup, func(g *schema.Group) error { g.Compression = "none"; return nil }); err != nil {
		t.Error(err)
	}
	// Others' changes of the schema leave the groups alone.
	if _, err := s.UpdateTable(ctx, table, func(t *schema.Table) error {
		t.Families["f"] = schema.Family{Name: "f", ID: t.Families["f"].ID}
		t.AddFamily(schema.Family{Name: "new"})
		t.Groups = nil
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
	s = mustOpen(t, o)
	defer mustClose(t, s)
	sch, err := s.Table(ctx, table)
	if err != nil {
		t.Fatal(err)
	}
	g, _ := sch.Group("g")
	if g.Compression != "zstd" || g.BlockBytes != 4096 || g.BloomBits != -1 || g.ID == 0 {
		t.Errorf("group g is %+v", g)
	}
	if d, _ := sch.Group(schema.DefaultGroup); d.Compression != "none" || d.ID != 0 {
		t.Errorf("the default group is %+v", d)
	}
	if fams := sch.FamiliesOf(g.ID); !slices.Equal(fams, []string{"f"}) {
		t.Errorf("families of g: %v", fams)
	}
	for i := len(sch.AllGroups()); i < schema.MaxGroups; i++ {
		if _, err := s.CreateGroup(ctx, "t", schema.Group{Name: fmt.Sprint("x", i)}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.CreateGroup(ctx, "t", schema.Group{Name: "many"}); fault.KindOf(err) != fault.FailedPrecondition {
		t.Errorf("more than %d groups: %v", schema.MaxGroups, err)
	}
}

// TestNewSettings: SSTables get the settings of now, older ones when a major
// compaction is asked for.
func TestNewSettings(t *testing.T) {
	s := mustOpen(t, Options{FS: vfs.NewMem(), Dir: "d", NoBackground: true})
	defer mustClose(t, s)
	table := mustCreate(t, s, newSchema("t", 1000, "a", "f"))
	if _, err := s.CreateGroup(ctx, "t", schema.Group{Name: "g", Compression: "none"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.AssignFamilies(ctx, "t", "g", []string{"f"}); err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		mustPut(t, s, table, fmt.Sprintf("row%03d", i), setCell("f", "q", 1000, strings.Repeat("x", 1000)), setCell("a", "q", 1000, "a"))
	}
	size := func(compact bool) int64 {
		t.Helper()
		if compact {
			if err := s.CompactTablets(ctx, table, row.All, nil); err != nil {
				t.Fatal(err)
			}
		}
		_, groups, err := s.Groups(ctx, "t")
		if err != nil || len(groups) != 2 || groups[1].Name != "g" || groups[1].Files != 1 {
			t.Fatalf("%+v, %v", groups, err)
		}
		return groups[1].Bytes
	}
	large := size(true)
	if large < 100_000 {
		t.Errorf("%d bytes without compression", large)
	}
	if _, err := s.SetGroup(ctx, "t", "g", func(g *schema.Group) error { g.Compression = "zstd"; return nil }); err != nil {
		t.Fatal(err)
	}
	before := s.Stats().CompactionOut
	if n := size(false); n != large {
		t.Errorf("%d bytes before a compaction, %d at first", n, large)
	}
	small := size(true)
	if small > large/4 {
		t.Errorf("%d bytes with compression, %d without", small, large)
	}
	if n := s.Stats().CompactionOut - before; n > 2*small {
		t.Errorf("%d bytes were written for %d: the other group too", n, small)
	}
	before = s.Stats().CompactionOut
	if size(true); s.Stats().CompactionOut != before {
		t.Error("what has the settings of now is written anew")
	}
}

// TestGroupsInBackups: a table made from a backup has the backup's groups.
func TestGroupsInBackups(t *testing.T) {
	s := mustOpen(t, Options{FS: vfs.NewMem(), Dir: "d", NoBackground: true, Now: clock})
	defer mustClose(t, s)
	table := mustCreate(t, s, arrange(newSchema("t", 1000, "a", "b", "c"), eachOwn))
	put := func(v string) {
		t.Helper()
		for _, k := range []string{"k", "l"} {
			mustPut(t, s, table, k, setCell("a", "q", 1000, v), setCell("b", "q", 1000, v), setCell("c", "q", 1000, v))
		}
	}
	put("old")
	// Some files of an earlier layout, some of the present one.
	if err := s.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := s.AssignFamilies(ctx, table, "own-0", []string{"b"}); err != nil {
		t.Fatal(err)
	}
	mustPut(t, s, table, "l", row.Mutation{Op: row.DeleteRow}, setCell("b", "q", 2000, "new"))
	want, wantB := content(s, table, row.All), readFamilies(t, s, table, "b")
	if _, err := s.CreateBackup(ctx, table, &schema.Backup{Name: "projects/p/instances/i/clusters/c/backups/b", ExpireTime: clock().Add(1000 * time.Hour)}); err != nil {
		t.Fatal(err)
	}
	// The table goes on to another layout.
	if _, err := s.AssignFamilies(ctx, table, "default", []string{"a", "b", "c"}); err != nil {
		t.Fatal(err)
	}
	put("newer")
	if err := s.CompactTablets(ctx, table, row.All, nil); err != nil {
		t.Fatal(err)
	}
	restored, err := s.RestoreTable(ctx, "projects/p/instances/i/clusters/c/backups/b", parent+"u", func(*schema.Table) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	check := func() {
		t.Helper()
		if got := content(s, restored.Name, row.All); got != want {
			t.Errorf("restored\n%swant\n%s", got, want)
		}
		if got := readFamilies(t, s, restored.Name, "b"); got != wantB {
			t.Errorf("restored family b\n%swant\n%s", got, wantB)
		}
	}
	check()
	if g, ok := restored.Group("own-0"); !ok || !slices.Equal(restored.FamiliesOf(g.ID), []string{"a", "b"}) {
		t.Errorf("groups %+v", restored.Groups)
	}
	mustPut(t, s, restored.Name, "m", setCell("b", "q", 1000, "more"))
	want, wantB = content(s, restored.Name, row.All), readFamilies(t, s, restored.Name, "b")
	if err := s.CompactTablets(ctx, restored.Name, row.All, nil); err != nil {
		t.Fatal(err)
	}
	check()
}

// TestInMemoryGroup: the SSTables of a group that is to be in memory are read
// from storage once, and no more than there is room for.
func TestInMemoryGroup(t *testing.T) {
	var o Options
	o.FS, o.Dir, o.NoBackground, o.CacheBytes = vfs.NewMem(), "d", true, 1 // no block stays in the cache
	o.Tablet.FileBytes = 4 << 10
	s := mustOpen(t, o)
	sch := newSchema("t", 1000, "big", "loc")
	f := sch.Families["loc"]
	f.Group = sch.PutGroup(schema.Group{Name: "hot", InMemory: true})
	sch.Families["loc"] = f
	table := mustCreate(t, s, sch)
	pool := values()
	for i := range 200 {
		mustPut(t, s, table, fmt.Sprintf("row%03d", i), setCell("big", "q", 1000, string(pool[i*500:i*500+500])),
			setCell("loc", "q", 1000, string(pool[i*300:i*300+100])))
	}
	load := func() {
		t.Helper()
		for _, tt := range s.tabletsOf(table) {
			for more := true; more; {
				var err error
				if more, err = tt.Compact(ctx); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	// read returns what a read of a family takes from storage.
	read := func(family string) int64 {
		t.Helper()
		readFamilies(t, s, table, "big") // who looks for a tablet reads METADATA
		before := s.Stats().ReadBytes
		if n := strings.Count(readFamilies(t, s, table, family), "\n"); n != 200 {
			t.Errorf("%d rows", n)
		}
		return s.Stats().ReadBytes - before
	}
	sizes := func() map[string]tablet.GroupInfo {
		t.Helper()
		_, groups, err := s.Groups(ctx, "t")
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]tablet.GroupInfo{}
		for _, g := range groups {
			out[g.Name] = g
		}
		return out
	}
	if err := s.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	load()
	if g := sizes()["hot"]; g.Resident != g.Bytes || g.Bytes == 0 || s.Stats().InMemoryBytes != g.Bytes {
		t.Errorf("%d of %d bytes are in memory, %d in all", g.Resident, g.Bytes, s.Stats().InMemoryBytes)
	}
	if n := read("loc"); n != 0 {
		t.Errorf("%d bytes read from storage for what is in memory", n)
	}
	if n := read("big"); n < 200*500 {
		t.Errorf("only %d bytes read of what is not", n)
	}
	// A split shares them, a compaction replaces them.
	if err := s.SplitTablet(ctx, table, []byte("row100")); err != nil {
		t.Fatal(err)
	}
	if n := read("loc"); n != 0 {
		t.Errorf("%d bytes read after a split", n)
	}
	load()
	if n := read("loc"); n != 0 {
		t.Errorf("%d bytes read after compactions", n)
	}
	for _, tt := range s.tabletsOf(table) {
		if err := tt.Verify(ctx, func(_ string, _ int64, err error) error { return err }); err != nil {
			t.Error(err)
		}
	}
	set := func(on bool) {
		t.Helper()
		if _, err := s.SetGroup(ctx, "t", "hot", func(g *schema.Group) error { g.InMemory = on; return nil }); err != nil {
			t.Fatal(err)
		}
		load()
	}
	set(false)
	if n := s.Stats().InMemoryBytes; n != 0 {
		t.Errorf("%d bytes are in memory still", n)
	}
	none := read("loc")
	if none == 0 {
		t.Error("nothing was read from storage")
	}
	set(true)
	mustClose(t, s)
	// With room for half of them.
	o.InMemoryBytes = 15_000
	o.Log = slog.New(slog.DiscardHandler)
	s = mustOpen(t, o)
	defer mustClose(t, s)
	load()
	if g := sizes()["hot"]; g.Resident == 0 || g.Resident > 15_000 || g.Resident == g.Bytes || s.Stats().InMemoryBytes != g.Resident {
		t.Errorf("%d of %d bytes are in memory, %d in all", g.Resident, g.Bytes, s.Stats().InMemoryBytes)
	}
	part := read("loc")
	if part == 0 || part >= none {
		t.Errorf("%d bytes read from storage, %d without memory", part, none)
	}
	checkStore(t, s)
}
