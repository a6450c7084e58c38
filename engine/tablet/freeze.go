package tablet

import (
	"context"

	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/metadata"
)

// A Frozen is what a tablet held at one instant: SSTables and range tombstones,
// and nothing in a log, nor the record of changes. Its objects stay until it is released.
type Frozen struct{ v *version }

// Hold returns the Frozen of a METADATA row that does not change any more. All
// objects that the row names are there.
func Hold(env *Env, r *metadata.Row) *Frozen { return &Frozen{newVersion(env, r, nil)} }

// Row returns the METADATA row. It has version 0 and no redo point.
func (f *Frozen) Row() *metadata.Row { return f.v.row }

// Release lets go of the objects. Those that nothing else refers to are removed.
func (f *Frozen) Release() { f.v.release() }

// A Paused is tablets that take no writes and stay what they are: none is
// flushed, compacted, split, merged or given up. Reads go on. It may be used by
// one goroutine at a time, and must be released.
//
// What Pause, Cut and Freeze return of them is what all held at one instant. Of
// two writes of which one began after the other was acknowledged, the second is
// held only if the first is. No data is copied: what is in memory is flushed,
// and the rest is SSTables already.
//
// The caller sees to it that none of the tablets is split or merged, and that
// no other caller pauses them. It has most of what is in memory flushed before:
// Freeze keeps each tablet from flushes of what comes meanwhile, until it has
// flushed that one.
type Paused struct {
	ts     []*Tablet // those not let go yet
	behind []int     // how many memtables each has to flush, once they were cut
}

// Pause holds up the writes of ts, which ascend. Tablets of several servers that
// are all paused at one instant hold what they would if they were of one. So
// Pause flushes nothing: the others' writes would wait for that.
func Pause(ctx context.Context, ts []*Tablet) (*Paused, error) {
	p := &Paused{ts: ts}
	for _, t := range ts {
		t.pauses.Add(1) // before any is waited for
	}
	for _, t := range ts {
		t.change.Lock()
	}
	for _, t := range ts {
		t.write.Lock()
	}
	err := ctx.Err()
	for _, t := range ts {
		if t.write.closed {
			err = t.gone()
		}
	}
	if err != nil {
		p.Release()
		return nil, err
	}
	return p, nil
}

// Cut makes the memtables immutable and lets writes go on.
func (p *Paused) Cut() {
	p.behind = make([]int, len(p.ts))
	for i, t := range p.ts {
		if !t.write.mem.Empty() {
			t.rotateLocked()
		}
		t.mu.Lock()
		p.behind[i] = len(t.mu.version.mems) - 1
		t.mu.Unlock()
	}
	for _, t := range p.ts {
		t.write.Unlock()
	}
}

// Freeze flushes what was cut and returns what the tablets held then, in their
// order. It lets each go as soon as that is known, as it may take long for all.
func (p *Paused) Freeze(ctx context.Context) (_ []*Frozen, err error) {
	var out []*Frozen
	for len(p.ts) > 0 {
		t := p.ts[0]
		// Not one more: newer memtables may have come, with what came later.
		for range p.behind[0] {
			if _, err = t.flushLocked(ctx, false); err != nil {
				break
			}
		}
		if err != nil {
			break
		}
		// Held before the change lock is given back, when a compaction may put
		// other files in the place of these.
		r := t.Row().Clone()
		r.Version, r.Redo, r.Op, r.Assignment, r.Stream = 0, commitlog.Pos{}, nil, nil, nil
		out = append(out, Hold(t.env, r))
		t.letGo()
		p.ts, p.behind = p.ts[1:], p.behind[1:]
	}
	if err != nil {
		for _, f := range out {
			f.Release()
		}
		return nil, err
	}
	return out, nil
}

// Release lets the tablets go that Freeze has not.
func (p *Paused) Release() {
	if p.behind == nil {
		for _, t := range p.ts {
			t.write.Unlock()
		}
	}
	for _, t := range p.ts {
		t.letGo()
	}
}

// letGo ends the pause of a tablet whose writes go on already, and asks for the
// work that was left out meanwhile.
func (t *Tablet) letGo() {
	t.change.Unlock()
	t.pauses.Add(-1)
	t.env.Work(t)
}

// Paused tells whether Flush and Compact would wait until a pause is over. That takes
// as long as flushes of many tablets. A caller that leaves out work for it is asked for it
// again by Env.Work.
func (t *Tablet) Paused() bool { return t.pauses.Load() > 0 }
