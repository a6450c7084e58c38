package tablet

import (
	"testing"
	"time"

	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/schema"
)

// TestCompactionBesideReplay: while a tablet is replayed, the log may still have a delete
// of the newest version. So an older one is not judged as if the SSTables were all there is.
func TestCompactionBesideReplay(t *testing.T) {
	one, _ := flushable(t)
	ctx := t.Context()
	one.env.Meta = &busyMeta{fill: func() {}}
	now := time.Now()
	one.env.Now = func() time.Time { return now }
	sch := one.schema()
	sch.Families["f"] = schema.Family{Name: "f", GC: &schema.GCRule{Intersection: []*schema.GCRule{{MaxVersions: 1}, {MaxAge: time.Hour}}}}
	for i := range 2 {
		b := NewBatch([]byte("r"))
		b.Set(0, []byte("q"), now.UnixMicro()+int64(i), []byte("v"))
		if err := applyAndWait(ctx, one, b); err != nil {
			t.Fatal(err)
		}
		b.Free()
		if err := one.FlushAll(ctx); err != nil {
			t.Fatal(err)
		}
	}
	now = now.Add(2 * time.Hour)
	entries := func(r *metadata.Row) (n uint64) {
		for i := range r.Files {
			n += r.Files[i].Entries
		}
		return n
	}
	before := entries(one.Row())
	again := Open(one.env, one.Row().Clone(), func() *schema.Table { return sch })
	t.Cleanup(again.Close)
	if err := again.CompactMajor(ctx); err != nil {
		t.Fatal(err)
	}
	if n := entries(again.Row()); n != before {
		t.Errorf("%d entries are left of %d: an older version went while the tablet was replayed", n, before)
	}
	again.Start()
	if err := again.CompactMajor(ctx); err != nil {
		t.Fatal(err)
	}
	if n := entries(again.Row()); n >= before {
		t.Errorf("%d entries are left of %d once it was replayed", n, before)
	}
}

// TestEndedCellsGo: cells that are past their end go with the next major compaction, also
// from a file that nothing overlaps.
func TestEndedCellsGo(t *testing.T) {
	one, _ := flushable(t)
	ctx := t.Context()
	one.env.Meta = &busyMeta{fill: func() {}}
	now := time.Now()
	one.env.Now = func() time.Time { return now }
	for i := range 4 {
		b := NewBatch([]byte{'a' + byte(i)})
		b.SetUntil(0, []byte("q"), now.UnixMicro(), []byte("v"), now.Add(time.Duration(1+i/2)*time.Hour).UnixMicro())
		if err := applyAndWait(ctx, one, b); err != nil {
			t.Fatal(err)
		}
		b.Free()
	}
	for i, want := range []uint64{4, 2, 0} { // of each hour
		if err := one.CompactMajor(ctx); err != nil {
			t.Fatal(err)
		}
		var n uint64
		for _, f := range one.Row().Files {
			n += f.Ends
		}
		if n != want {
			t.Errorf("after %d hours %d cells are left, not %d", i, n, want)
		}
		now = now.Add(time.Hour + time.Minute)
	}
}
