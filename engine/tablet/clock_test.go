package tablet

import (
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/stamp"
)

// setForward returns t as a clock says it that was set forward by d: the monotonic reading of t
// stays. A Time with such a reading has its seconds in the bits of the first word from 30 on.
func setForward(t time.Time, d time.Duration) time.Time {
	*(*uint64)(unsafe.Pointer(&t)) += uint64(d/time.Second) << 30
	return t
}

// TestNothingGoesByAWrongClock: while the clock is set forward, neither a flush nor a compaction
// collects cells that are not old, and no row says that it had a major compaction at that time.
func TestNothingGoesByAWrongClock(t *testing.T) {
	one := stored(t)
	sch := one.schema().Clone()
	sch.Families["f"] = schema.Family{Name: "f", GC: &schema.GCRule{MaxAge: time.Hour}}
	one.schema = func() *schema.Table { return sch }
	var ahead atomic.Int64
	one.env.Clock = new(stamp.Clock)
	one.env.Now = func() time.Time { return setForward(time.Now(), time.Duration(ahead.Load())) }
	written := time.Now().UnixMicro()
	write := func(qualifier string) {
		t.Helper()
		b := NewBatch([]byte("r"))
		defer b.Free()
		b.Set(0, []byte(qualifier), written, []byte("v"))
		if err := applyAndWait(t.Context(), one, b); err != nil {
			t.Fatal(err)
		}
	}
	write("compacted")
	flushed(t, one)
	write("flushed")
	ahead.Store(int64(48 * time.Hour))
	flushed(t, one)
	if err := one.CompactMajor(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, q := range []string{"compacted", "flushed"} {
		if _, v, ok, err := one.View(t.Context(), []byte("r")).Newest(nil, 0, []byte(q)); string(v) != "v" || !ok || err != nil {
			t.Errorf("a cell of now that was %s: %q, %t, %v", q, v, ok, err)
		}
	}
	if last := time.Unix(one.Row().Major(0), 0); time.Until(last) > time.Minute {
		t.Errorf("the last major compaction was at %v", last)
	}
}
