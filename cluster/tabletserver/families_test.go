package tabletserver_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/lock/local"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
)

// TestFamiliesBeyondIDs: a directory in which an earlier version has given out
// more ids of families than there are, beginning again with the first, can be
// opened. Nothing of the table is served until the families without an id of
// their own are dropped; then the others are.
func TestFamiliesBeyondIDs(t *testing.T) {
	o := Options{FS: vfs.NewMem(), Dir: "d"}
	s := mustOpen(t, o)
	table := mustCreate(t, s, newSchema("t", 1000, "first", "second"))
	mustPut(t, s, table, "r", setCell("first", "q", 1000, "1"), setCell("second", "q", 1000, "2"))
	other := mustCreate(t, s, newSchema("u", 1000, "f"))
	mustPut(t, s, other, "r", setCell("f", "q", 1000, "v"))
	mustBackup(t, s, table, parent[:len(parent)-len("tables/")]+"clusters/c/backups/sound")

	// What an earlier version has stored of 65,538 families, but for most of them.
	item, err := s.Lock().Get(ctx, catalog.TablesPrefix+table)
	if err != nil {
		t.Fatal(err)
	}
	var stored []map[string]any
	if err := json.Unmarshal(item.Value, &stored); err != nil || len(stored) != 1 {
		t.Fatal(len(stored), err)
	}
	fams := stored[0]["Families"].(map[string]any)
	for name, id := range map[string]int{"system": int(cell.TokenFamily), "high": 65_535, "x-first": 0, "y-first": 0, "x-second": 1} {
		fams[name] = map[string]any{"Name": name, "ID": id}
	}
	stored[0]["NextFamily"] = 2
	value, err := json.Marshal(stored)
	if err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
	// Beside a server that is told of it.
	l, err := local.Open(ctx, local.Options{Dir: "d/lock", FS: o.FS, Log: quiet(t)})
	if err == nil {
		_, err = l.Put(ctx, item.Key, value, item.Version)
		err = errors.Join(err, l.Close())
	}
	if err != nil {
		t.Fatal(err)
	}

	o.Log = slog.New(slog.DiscardHandler) // it is told of
	s = mustOpen(t, o)
	if got := content(s, other, row.All); got != "\"r\" f:\"q\"@1000=\"v\"\n" {
		t.Errorf("another table: %s", got)
	}
	if err := s.FlushTablets(ctx, table, row.All); err != nil {
		t.Errorf("flush: %v", err)
	}
	if err := s.CompactTablets(ctx, table, row.All, nil); err != nil {
		t.Errorf("compact: %v", err)
	}
	wantRefused := func(when string) {
		t.Helper()
		put := entry("r", setCell("second", "q", 1000, "v"))
		_, readErr := readRows(s, &scan.Request{Table: table, Ranges: []row.Range{row.All}})
		_, changeErr := s.ReadModifyWriteRow(ctx, table, []byte("r"), []row.Rule{{Family: "first", Qualifier: []byte("q"), Append: []byte("x"), IsAppend: true}})
		for what, err := range map[string]error{"write": s.MutateRow(ctx, table, put), "read": readErr, "read-modify-write": changeErr} {
			if kindOf(err) != fault.FailedPrecondition.Error() {
				t.Errorf("%s %s: %v", what, when, err)
			}
		}
	}
	wantRefused("at first")
	drop := func(names ...string) error {
		_, err := s.UpdateTable(ctx, table, func(t *schema.Table) error {
			for _, n := range names {
				delete(t.Families, n)
			}
			return nil
		})
		return err
	}
	if err := drop("x-second"); kindOf(err) != fault.FailedPrecondition.Error() {
		t.Errorf("one of two families with one id was dropped: %v", err)
	}
	if err := drop("system", "x-first"); err != nil {
		t.Errorf("drop some: %v", err)
	}
	wantRefused("after some were dropped")
	mustBackup(t, s, table, parent[:len(parent)-len("tables/")]+"clusters/c/backups/unsound")
	if _, err := s.RestoreTable(ctx, parent[:len(parent)-len("tables/")]+"clusters/c/backups/unsound", parent+"v", asItIs); kindOf(err) != fault.FailedPrecondition.Error() {
		t.Errorf("restore what is not sound: %v", err)
	}
	if _, err := s.UpdateTable(ctx, table, func(t *schema.Table) error {
		t.AddFamily(schema.Family{Name: "new"})
		return nil
	}); kindOf(err) != fault.FailedPrecondition.Error() {
		t.Errorf("add one: %v", err)
	}
	if err := drop("high", "first", "y-first"); err != nil {
		t.Errorf("drop the others of the first: %v", err)
	}
	wantRefused("with two left")
	// The last family that shares an id goes with its twin, so an empty table is left.
	if err := drop("second", "x-second"); err != nil {
		t.Errorf("drop the last: %v", err)
	}
	if got := content(s, table, row.All); got != "" {
		t.Errorf("without families there is: %s", got)
	}
	mustRestore(t, s, parent[:len(parent)-len("tables/")]+"clusters/c/backups/sound", parent+"w")
	if got, want := content(s, parent+"w", row.All), "\"r\" first:\"q\"@1000=\"1\"\n\"r\" second:\"q\"@1000=\"2\"\n"; got != want {
		t.Errorf("restored: %s", got)
	}
	mustClose(t, s)
	s = mustOpen(t, o)
	if got := content(s, table, row.All); got != "" {
		t.Errorf("after another start: %s", got)
	}
	mustClose(t, s)
}

// TestManyFamiliesFromBefore: a table of more families than may be made loses some
// and serves all that it has, and so does what is restored of its backup.
func TestManyFamiliesFromBefore(t *testing.T) {
	s := mustOpen(t, Options{FS: vfs.NewMem(), Dir: "d"})
	defer mustClose(t, s)
	table := mustCreate(t, s, newSchema("t", 1000, "f0"))
	names, version, err := catalog.ReadName(ctx, s.Lock(), table)
	if err != nil || len(names) != 1 {
		t.Fatal(len(names), err)
	}
	sch := names[0]
	for i := 1; i <= 2*schema.MaxFamilies; i++ {
		sch.AddFamily(schema.Family{Name: fmt.Sprint("f", i)})
	}
	sch.Version++
	if _, err := catalog.WriteName(ctx, s.Lock(), table, names, version); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the schema is known", func() bool { return len(must(s.Table(ctx, table))(t).Families) > schema.MaxFamilies })
	mustPut(t, s, table, "r", setCell("f1999", "q", 1000, "v"))
	change := func(do func(t *schema.Table)) error {
		_, err := s.UpdateTable(ctx, table, func(t *schema.Table) error {
			do(t)
			return nil
		})
		return err
	}
	if err := change(func(t *schema.Table) { delete(t.Families, "f7") }); err != nil {
		t.Errorf("drop one: %v", err)
	}
	if err := change(func(t *schema.Table) {
		delete(t.Families, "f8")
		t.AddFamily(schema.Family{Name: "new"})
	}); kindOf(err) != fault.FailedPrecondition.Error() {
		t.Errorf("exchange one: %v", err)
	}
	backup := parent[:len(parent)-len("tables/")] + "clusters/c/backups/b"
	mustBackup(t, s, table, backup)
	mustRestore(t, s, backup, parent+"u")
	want := "\"r\" f1999:\"q\"@1000=\"v\"\n"
	for _, name := range []string{table, parent + "u"} {
		if got := content(s, name, row.All); got != want {
			t.Errorf("%s: %s", name, got)
		}
	}
	made, err := s.Table(ctx, parent+"u")
	if err != nil || !slices.Equal(slices.Sorted(maps.Keys(made.Families)), must(s.Table(ctx, table))(t).FamilyNames()) {
		t.Errorf("restored families differ: %v", err)
	}
}
