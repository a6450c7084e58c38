package views

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trestledb/trestle/engine/changes"
)

// TestMemory: Workers share a bound; one whose view cannot be written to does not stop
// others, and what is held is given back.
func TestMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory(8 << 20)
		stuck, other := newOutbox(nil, m.entries), newOutbox(nil, m.entries)
		big := func() *entry { return &entry{value: make([]byte, commitBytes)} }
		admitted := 0
		ctx, end := context.WithTimeout(t.Context(), time.Second)
		defer end()
		for ; stuck.admit(ctx) == nil; admitted++ {
			stuck.add(big())
		}
		if admitted == 0 || int64(admitted*commitBytes) > m.entries.Limit() {
			t.Errorf("a stuck outbox has %d batches, of %d bytes that all have", admitted, m.entries.Limit())
		}
		if err := other.admit(t.Context()); err != nil {
			t.Error(err)
		}
		other.add(big())
		other.arrive(1)
		stuck.close()
		if n := m.entries.Used(); n != 0 {
			t.Errorf("%d bytes are held", n)
		}

		release, err := hold(t.Context(), m.passes)
		if err != nil {
			t.Fatal(err)
		}
		late, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if _, err := hold(late, m.passes); err == nil {
			t.Error("two passes have the memory of one")
		}
		release()
		if release, err = hold(t.Context(), m.passes); err != nil {
			t.Fatal(err)
		}
		release()

		in := newIntake(m.keys)
		w := &taker{in: in, p: &reading{}, ctx: t.Context()}
		keys := 0
		for full := false; !full; keys++ {
			if full, err = w.Record(&changes.Record{Key: append(make([]byte, 2000), byte(keys), byte(keys>>8))}, changes.Position{}); err != nil {
				t.Fatal(err)
			}
		}
		if keys*2000 > 1<<20 || keys < 100 {
			t.Errorf("%d keys of 2,000 bytes are held", keys)
		}
		if got, _, _ := in.take(); len(got.list) != keys {
			t.Errorf("%d keys of %d", len(got.list), keys)
		}
		if n := m.keys.Used(); n != 0 {
			t.Errorf("%d bytes of keys are held", n)
		}
	})
}
