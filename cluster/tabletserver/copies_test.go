package tabletserver_test

import (
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/datadir/datadirtest"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/objectstore/diskcache"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/tablet"
)

// TestDamagedCopy: a copy of an SSTable on a local disk that is not what the
// store has fails the read that meets it, and no other; verify looks at the
// store, and what was met is forgotten when that is sound. An SSTable that is
// gone from the store is damaged, though its copy can be read.
func TestDamagedCopy(t *testing.T) {
	fs := vfs.NewMem()
	o := Options{Dir: "d", FS: fs, NoBackground: true, Log: loud(), CacheBytes: 1}
	cached := func() (*Store, *diskcache.Cache) {
		t.Helper()
		s := mustOpen(t, o)
		cache, err := diskcache.Open(s.objects, fs, "cache", diskcache.Options{})
		if err != nil {
			t.Fatal(err)
		}
		s.env.Objects = cache
		return s, cache
	}
	s, cache := cached()
	table := filled(t, s, "t", 50)
	if err := s.FlushTablets(ctx, "t", row.All); err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
	cache.Close()
	s, cache = cached()
	defer cache.Close()
	defer mustClose(t, s)
	object := s.tabletsOf(table)[0].Row().Files[0].Object
	path := "cache/" + object
	f, err := fs.OpenReadWrite(path, "test")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(datadirtest.Flip(20)(datadirtest.ReadFile(t, fs, path))[:21], 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	verify := func() (found []tablet.ObjectDamage) {
		t.Helper()
		if err := s.VerifyTablets(ctx, "t", row.All, func(d tablet.ObjectDamage) { found = append(found, d) }, func(int64, int64) {}); err != nil {
			t.Fatal(err)
		}
		return found
	}
	read := func() error {
		_, err := readRows(s, &scan.Request{Table: table, Ranges: []row.Range{row.All}})
		return err
	}
	if found := verify(); len(found) > 0 {
		t.Errorf("verify reads the copy: %+v", found)
	}
	if err := read(); fault.KindOf(err) != fault.Corruption {
		t.Fatalf("a read of the copy: %v", err)
	}
	if err := read(); err != nil {
		t.Errorf("a read after it: %v", err)
	}
	if len(s.Damage()) != 1 {
		t.Errorf("damage %+v", s.Damage())
	}
	if _, err := s.DropDamaged(ctx, table, object); fault.KindOf(err) != fault.FailedPrecondition {
		t.Errorf("dropped what the store has: %v", err)
	}
	if len(verify()) > 0 || len(s.Damage()) > 0 {
		t.Errorf("damage %+v", s.Damage())
	}
	if err := s.objects.Delete(ctx, object); err != nil {
		t.Fatal(err)
	}
	if found := verify(); len(found) != 1 || !strings.Contains(found[0].Err.Error(), "is missing") {
		t.Errorf("of an SSTable that is gone: %+v", found)
	}
}
