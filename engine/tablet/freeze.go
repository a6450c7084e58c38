package tablet

import (
	"context"

	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/metadata"
)

// A Frozen is what a tablet held at one instant: SSTables and range tombstones,
// and nothing in a log. Its objects stay until it is released.
type Frozen struct{ v *version }

// Hold returns the Frozen of a METADATA row that nobody changes any more. All
// objects that the row names are there.
func Hold(env *Env, r *metadata.Row) *Frozen { return &Frozen{newVersion(env, r, nil)} }

// Row returns the METADATA row. It has version 0 and no redo point.
func (f *Frozen) Row() *metadata.Row { return f.v.row }

// Release lets go of the objects. Those that nothing else refers to are removed.
func (f *Frozen) Release() { f.v.release() }

// Freeze returns what ts hold, all of them at one instant, in their order: of
// two writes of which one began after the other was acknowledged, the second is
// held only if the first is. No data is copied: what is in memory is flushed,
// most of it before anything is locked, and the rest is SSTables already. Reads
// and writes go on meanwhile; flushes, compactions and range deletions of ts
// wait.
//
// The caller sees to it that none of ts is split or merged, and that nobody else
// freezes tablets.
func Freeze(ctx context.Context, ts []*Tablet) (_ []*Frozen, err error) {
	for _, t := range ts {
		t.Rotate()
		for more := true; more; {
			if more, err = t.Flush(ctx); err != nil {
				return nil, err
			}
		}
	}
	for _, t := range ts {
		t.change.Lock()
		defer t.change.Unlock()
	}
	behind, err := cut(ts)
	if err != nil {
		return nil, err
	}
	var out []*Frozen
	for i, t := range ts {
		// Not one more: newer memtables may have come, with what came later.
		for range behind[i] {
			if _, err = t.flushLocked(ctx); err != nil {
				break
			}
		}
		if err != nil {
			break
		}
		// Held before the change lock is given back, when a compaction may put
		// other files in the place of these.
		r := t.Row().Clone()
		r.Version, r.Redo, r.Op = 0, commitlog.Pos{}, nil
		out = append(out, Hold(t.env, r))
	}
	if err != nil {
		for _, f := range out {
			f.Release()
		}
		return nil, err
	}
	return out, nil
}

// cut makes the memtables of ts immutable, all at one instant, and returns how
// many each has to flush. Its caller holds the change locks.
func cut(ts []*Tablet) ([]int, error) {
	for _, t := range ts {
		t.write.Lock()
		defer t.write.Unlock()
	}
	behind := make([]int, len(ts))
	for i, t := range ts {
		if t.write.closed {
			return nil, t.gone()
		}
		if !t.write.mem.Empty() {
			t.rotateLocked()
		}
		t.mu.Lock()
		behind[i] = len(t.mu.version.mems) - 1
		t.mu.Unlock()
	}
	return behind, nil
}
