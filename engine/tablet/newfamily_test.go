package tablet

import (
	"testing"

	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/schema"
)

// TestFamilyNotKnownYet: an owner of a tablet that hears late of a new family keeps the family's
// cells, which a former owner has acknowledged. They are read once it has heard of it.
func TestFamilyNotKnownYet(t *testing.T) {
	batch := func() *Batch {
		b := NewBatch([]byte("r"))
		b.Set(1, []byte("q"), 1, []byte("v"))
		return b
	}
	compact := func(one *Tablet) error {
		for range 2 {
			if err := applyAndWait(t.Context(), one, batch()); err != nil {
				return err
			}
			flushed(t, one)
		}
		return one.CompactMajor(t.Context())
	}
	replay := func(one *Tablet) error {
		payload, n := batch().AppendRecord(nil, 0)
		if err := one.Replay(&commitlog.Record{Tablet: 1, FirstSeq: 1, N: n, Payload: payload}); err != nil {
			return err
		}
		return one.FlushAll(t.Context())
	}
	for name, work := range map[string]func(*Tablet) error{"compaction": compact, "replay": replay} {
		one := stored(t)
		behind := one.schema()
		newest := behind.Clone()
		newest.AddFamily(schema.Family{Name: "g"})
		if err := work(one); err != nil {
			t.Fatal(name, err)
		}
		if files := one.Row().Files; len(files) != 1 {
			t.Errorf("%s leaves %d files", name, len(files))
		}
		if more, err := one.Compact(t.Context()); more || err != nil {
			t.Errorf("%s: the cells are worth another compaction: %v, %v", name, more, err)
		}
		one.schema = func() *schema.Table { return newest }
		_, v, ok, err := one.View(t.Context(), []byte("r")).Newest(nil, 1, []byte("q"))
		if string(v) != "v" || !ok || err != nil {
			t.Errorf("%s: the cell of the new family is %q, %t, %v", name, v, ok, err)
		}
		// It is an ordinary family from now on.
		one.schema = func() *schema.Table {
			dropped := newest.Clone()
			delete(dropped.Families, "g")
			return dropped
		}
		if err := one.CompactMajor(t.Context()); err != nil {
			t.Fatal(name, err)
		}
		if files := one.Row().Files; len(files) != 0 {
			t.Errorf("%s: the family was dropped, and %d files are left", name, len(files))
		}
	}
}
