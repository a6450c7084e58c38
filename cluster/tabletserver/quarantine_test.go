package tabletserver_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/datadir/datadirtest"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/tablet"
)

// randomValue does not compress.
func randomValue(r *rand.Rand, n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte('0' + r.IntN(75))
	}
	return string(b)
}

// compactAll compacts until there is nothing to do. It returns the first error that
// is Corruption; there may be one for each SSTable that is found damaged.
func compactAll(t *testing.T, tt *tablet.Tablet) (corrupt error) {
	t.Helper()
	for range 1000 {
		more, err := tt.Compact(ctx)
		switch {
		case fault.KindOf(err) == fault.Corruption:
			if corrupt != nil {
				t.Fatalf("met again: %v", err)
			}
			corrupt = err
		case err != nil:
			t.Fatal(err)
		case !more:
			return corrupt
		}
	}
	t.Fatal("compactions do not come to an end")
	return nil
}

// TestQuarantine: a damaged SSTable is left where it is by compactions, which go
// on with all others; nothing that was deleted comes back for it; an operator can
// drop it.
func TestQuarantine(t *testing.T) {
	for _, how := range []string{"block", "missing"} {
		for _, groups := range []bool{false, true} {
			for _, older := range []int{0, 1} {
				t.Run(fmt.Sprintf("%s groups=%v older=%d", how, groups, older), func(t *testing.T) { quarantine(t, how, groups, older) })
			}
		}
	}
}

// quarantine damages the run above that many older ones.
func quarantine(t *testing.T, how string, groups bool, older int) {
	r := rand.New(rand.NewPCG(1, 1))
	fs := vfs.NewMem()
	o := Options{FS: fs, Dir: "d", NoBackground: true, Log: loud(), Tend: 10 * time.Millisecond}
	s := mustOpen(t, o)
	table := mustCreate(t, s, newSchema("t", 1000, "f", "g"))
	const rows = 300
	put := func(s *Store, i int) {
		t.Helper()
		mustPut(t, s, table, fmt.Sprintf("row%05d", i), setCell("f", "q", 1000, randomValue(r, 1000)), setCell("g", "q", 1000, "v"))
	}
	list := func(s *Store) *tablet.Tablet { return s.tabletsOf(table)[0] }
	for range 1 + older {
		for i := range rows {
			put(s, i)
		}
		if err := s.flush(ctx, list(s)); err != nil {
			t.Fatal(err)
		}
	}
	object := list(s).Row().Files[0].Object
	name := "d/sst/" + object
	mustClose(t, s)
	if how == "block" {
		datadirtest.WriteFile(t, fs, name, datadirtest.Flip(100)(datadirtest.ReadFile(t, fs, name)))
	}
	s = mustOpen(t, o)
	defer func() { mustClose(t, s) }()
	if how == "missing" { // a start would refuse
		if err := fs.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	tt := list(s)
	// Rows that other blocks have are deleted; that must hold.
	gone := fmt.Sprintf("row%05d", rows-1)
	mustPut(t, s, table, gone, row.Mutation{Op: row.DeleteRow})
	tt.Rotate()
	tt.RequestMajor()
	if err := tt.CompactMajor(ctx); fault.KindOf(err) != fault.Corruption || !strings.Contains(err.Error(), object) {
		t.Fatalf("major compaction: %v", err)
	}
	if err := tt.CompactMajor(ctx); fault.KindOf(err) != fault.Corruption || !strings.Contains(err.Error(), object) {
		t.Fatalf("major compaction again: %v", err)
	}
	if q := tt.Quarantined(); len(q) != 1 || q[0] != object {
		t.Fatalf("quarantined: %v", q)
	}
	if groups { // the damaged run cannot be divided anew
		if _, err := s.CreateGroup(ctx, table, schema.Group{Name: "other"}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.AssignFamilies(ctx, table, "other", []string{"g"}); err != nil {
			t.Fatal(err)
		}
	}
	mustPut(t, s, table, fmt.Sprintf("row%05d", rows-2), row.Mutation{Op: row.DeleteRow})
	most := 0
	for n := range 60 {
		for i := range 5 {
			put(s, 1000+n*3+i)
			put(s, 100+i)
		}
		if err := s.flush(ctx, tt); err != nil {
			t.Fatal(err)
		}
		if err := compactAll(t, tt); err != nil {
			t.Fatalf("met again: %v", err)
		}
		most = max(most, tt.Runs())
		for s.meta.Runs() > 6 {
			if _, err := s.meta.Compact(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	if most > 8 {
		t.Errorf("%d runs", most)
	}
	if how == "block" {
		// What is in other blocks is served, or deleted.
		for _, family := range []string{".*", "f", "g"} {
			got, err := readRows(s, &scan.Request{Table: table, Ranges: []row.Range{{Start: []byte("row00200")}},
				Filter: &filter.Node{Op: filter.FamilyRegex, Pattern: []byte(family)}})
			if err != nil || len(got) != rows-200-2+60*3+2 {
				t.Errorf("family %s: %d rows, %v", family, len(got), err)
			}
		}
	}
	if _, err := readRows(s, &scan.Request{Table: table, Ranges: []row.Range{row.All}}); fault.KindOf(err) != fault.Corruption {
		t.Errorf("a read of the damaged rows: %v", err)
	}
	if d := s.Damage(); len(d) != 1 || d[0].Object != object {
		t.Errorf("damage: %+v", d)
	}
	for _, f := range tt.Row().Files {
		if f.Object == object {
			continue
		}
		if _, err := s.DropDamaged(ctx, "t", f.Object); kindOf(err) != "failed precondition" {
			t.Errorf("drop a sound SSTable: %v", err)
		}
	}
	if _, err := s.DropDamaged(ctx, "t", "0000000000000000.sst"); kindOf(err) != "not found" {
		t.Errorf("drop an unknown SSTable: %v", err)
	}
	// What the operator does about it, after a restart if there can be one.
	if how == "block" {
		mustClose(t, s)
		s = mustOpen(t, o)
		tt = list(s)
	}
	loss, err := s.DropDamaged(ctx, "t", object)
	if err != nil || string(loss.First) != "row00000" || string(loss.Last) != gone || loss.Entries != 2*rows {
		t.Fatalf("drop: %s to %s, %d entries, %v", loss.First, loss.Last, loss.Entries, err)
	}
	if err := tt.CompactMajor(ctx); err != nil {
		t.Errorf("major compaction: %v", err)
	}
	if tt.Runs() != 1 || len(tt.Quarantined()) != 0 || len(s.Damage()) != 0 {
		t.Errorf("%d runs, %v, %v", tt.Runs(), tt.Quarantined(), s.Damage())
	}
	got, err := readRows(s, &scan.Request{Table: table, Ranges: []row.Range{row.All}})
	left := 5 // that were written again
	if older > 0 {
		left = rows - 2
	}
	if err != nil || len(got) != left+60*3+2 {
		t.Errorf("%d rows, %v", len(got), err)
	}
	for deadline := time.Now().Add(time.Minute); how == "block"; time.Sleep(time.Millisecond) {
		if _, err := fs.Stat(name); err != nil {
			break
		}
		if time.Now().After(deadline) {
			t.Error("the object is there still")
			break
		}
	}
	if err := s.Err(); !errors.Is(err, nil) {
		t.Errorf("the store failed: %v", err)
	}
}
