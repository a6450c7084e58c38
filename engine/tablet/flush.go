package tablet

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/schema"
)

// Flush writes the oldest immutable memtable to SSTables (a minor compaction).
// It returns false if there was none.
func (t *Tablet) Flush(ctx context.Context) (bool, error) {
	t.change.Lock()
	defer t.change.Unlock()
	return t.flushLocked(ctx, false)
}

// flushLocked is Flush for a caller that holds the change lock, and with still the write
// lock too.
func (t *Tablet) flushLocked(ctx context.Context, still bool) (bool, error) {
	for {
		if did, err := t.flushOnce(ctx, still); !errors.Is(err, errStreamBegan) {
			return did, err
		}
	}
}

func (t *Tablet) flushOnce(ctx context.Context, still bool) (bool, error) {
	v := t.pin()
	if v == nil {
		return false, t.gone()
	}
	defer v.release()
	if len(v.mems) == 1 {
		return false, nil
	}
	m, newer := v.mems[len(v.mems)-1], v.mems[:len(v.mems)-1:len(v.mems)-1]
	// What is in a file must be durable in the log first, or a crash could leave
	// an unacknowledged change half in the file, half nowhere. And a reader's
	// visible sequence number must not be behind a file in which an older
	// version has been dropped for a newer one.
	if err := t.env.Commit.Wait(ctx, m.last); err != nil {
		return false, err
	}
	var out *output
	var recorded *changes.Ref
	err := t.guard("flush", func() (err error) {
		out = t.newOutput(v, t.layout(), v.row.NextRun, m.instant)
		out.byFamily(v)
		out.pace = t.env.Pace.pacer(1)
		if err := out.take(ctx, m.Iterator(cell.MaxSeq), len(v.runs) == 0); err != nil {
			return err
		}
		if err := out.cut(); err != nil {
			return err
		}
		if err = out.removed.finish(ctx, m.MaxSeq()); err != nil {
			return err
		}
		if out.recorded = t.newChangeFile(m.life); m.life == 0 || out.recorded == nil {
			out.recorded = nil
			return nil
		}
		if err := out.recorded.record(ctx, m); err != nil {
			return err
		}
		recorded, err = out.recorded.finish()
		return err
	})
	if err != nil {
		t.abort(out)
		return false, fmt.Errorf("flush %v: %w", t.Name(), err)
	}
	next := v.row.Clone()
	next.Files = append(out.files, next.Files...)
	metadata.SortFiles(next.Files)
	next.NextRun++
	for _, f := range out.files {
		if _, ok := next.GroupMajors[f.Group]; !ok && f.Group != 0 {
			next.SetMajor(f.Group, t.env.now().Unix())
		}
	}
	next.FlushedSeq = max(next.FlushedSeq, m.MaxSeq())
	next.MaxSeq = max(next.MaxSeq, next.FlushedSeq)
	next.Redo = commitlog.Pos{}
	for _, n := range slices.Backward(newer) {
		if first := n.first.Load(); first != nil {
			next.Redo = *first
			break
		}
	}
	// A redo point names a record that is in the log: one that a crash took could
	// not be told from one that is missing.
	if next.Redo != (commitlog.Pos{}) {
		if err := t.env.Commit.Wait(ctx, next.Redo); err != nil {
			out.abort()
			return false, err
		}
	}
	t.trimRanges(next, newer)
	t.keep(next, m.life, recorded)
	if err := t.placeFollowed(ctx, next); err != nil {
		out.abort()
		return false, err
	}
	if !still {
		t.makeRoom(ctx, next, out) // left for the next flush while writes wait
	}
	pass, err := t.placeRemoved(ctx, next, out, still)
	defer pass()
	if err != nil {
		out.abort()
		return false, err
	}
	if err := t.env.Meta.CAS(ctx, next); err != nil {
		return false, t.lost(out, err)
	}
	t.install(func(old *version) *version {
		// A part of old.mems would keep the memory of m.
		return newVersion(t.env, next, slices.Clone(old.mems[:len(old.mems)-1]))
	})
	out.named(next)
	t.env.Memory.add(-m.Bytes())
	var size int64
	for _, f := range out.files {
		size += f.Size
	}
	t.env.Stats.Collected.Add(out.gc.Collected)
	t.env.Stats.Flushes.Add(1)
	t.env.Stats.FlushBytes.Add(size)
	t.env.Log.Debug("flushed", "tablet", t.Name(), "entries", m.Count(), "bytes", size, "files", len(out.files))
	return true, nil
}

// makeRoom puts change files of next into an index object, if they are too many with what was
// collected. If that fails it is left for the next flush.
func (t *Tablet) makeRoom(ctx context.Context, next *metadata.Row, out *output) {
	most := t.env.Options.ChangeFiles
	if out.removed != nil {
		most = max(0, most-len(out.removed.parts))
	}
	var err error
	if out.index, err = t.indexChanges(ctx, next, most); err != nil {
		t.env.Log.Warn("index change files", "tablet", t.Name(), "error", err)
	}
}

// mostRewrites is how often what was collected is written anew before readers wait for it, where
// writers come back to cells that were collected all the time, and mostInspections how often it
// is read.
const mostRewrites, mostInspections = 6, 32

// errStreamBegan says that readers of changes have come since something was collected of which
// less was kept than is to be told to them. It is to be done again.
var errStreamBegan = errors.New("a change stream has begun meanwhile")

// tells tells whether what was collected was kept as readers of the stream want it.
func (o *output) tells(s *schema.Stream) bool {
	switch c := o.removed; {
	case s == nil || o.gc.Collected+o.gc.Ended+o.gc.Uncovered == 0:
		return true
	case c == nil || c.life != s.Life:
		return false
	default:
		return !c.rows || s.Hidden
	}
}

// placeRemoved gives what was collected a stamp of its own and adds it to next, but for cells that
// were written again since. pass is called once next is the tablet's row, or will not be: readers
// of changes wait in between. They wait for what was written in a moment to be looked through, in
// memory. If that fails again and again they wait also for parts to be inspected, for what was
// written since the last inspection. The caller holds the change lock, and with still the write lock.
func (t *Tablet) placeRemoved(ctx context.Context, next *metadata.Row, out *output, still bool) (pass func(), err error) {
	lock, unlock := t.write.Lock, t.write.Unlock
	if still {
		lock, unlock = func() {}, func() {}
	}
	nothing := func() {}
	pass = func() {
		lock()
		defer unlock()
		t.passLocked()
	}
	if !out.tells(t.schema().Stream) {
		return nothing, errStreamBegan
	}
	c := out.removed
	for c != nil && len(c.parts) > 0 {
		if err := c.settle(ctx, t, lock, unlock); err != nil {
			return nothing, err
		}
		lock()
		if !t.write.closed {
			t.recordLocked() // so that the stream begins before the stamp
		}
		at := t.instantLocked()
		last := t.write.last
		s := t.schema().Stream
		unlock()
		if !out.tells(s) {
			return pass, errStreamBegan
		}
		if _, err := c.lookThrough(ctx, t, at); err != nil {
			return pass, err
		}
		if c.suspectsAny() {
			if c.patient() {
				pass() // readers go on, and this stamp is nothing's
				continue
			}
			if err := c.inspect(ctx, t, last); err != nil {
				return pass, err
			}
		}
		next.MaxSeq = max(next.MaxSeq, at)
		for i := range c.parts {
			place(c.parts[i].ref, at)
			t.keep(next, c.life, c.parts[i].ref)
		}
		return pass, nil
	}
	return nothing, nil
}

// lost handles a failed compare-and-set. Unless the row is certain not to
// name the new files, only a restart can tell.
func (t *Tablet) lost(out *output, err error) error {
	err = fmt.Errorf("change METADATA row of %v: %w", t.Name(), err)
	if notApplied(err) {
		if out != nil {
			out.abort()
		}
		return err
	}
	t.env.Fatal(err)
	return err
}

// FlushAll writes the memtables that the tablet has when it is called to SSTables.
// What is written meanwhile stays in memory: under steady writes it would never
// end otherwise.
func (t *Tablet) FlushAll(ctx context.Context) error {
	t.Rotate()
	t.mu.Lock()
	n := 0
	if t.mu.version != nil {
		n = len(t.mu.version.mems) - 1
	}
	t.mu.Unlock()
	// A closed tablet says so in Flush.
	for range max(n, 1) {
		if more, err := t.Flush(ctx); err != nil || !more {
			return err
		}
	}
	return nil
}

// SettleRedo ends recovery: it makes the redo point in the METADATA row that of
// the first record replayed. They differ if a power cut took records that were
// acknowledged but not synced.
func (t *Tablet) SettleRedo(ctx context.Context) error {
	t.change.Lock()
	defer t.change.Unlock()
	r := t.Row()
	pos, _ := t.RedoPoint()
	if r.Redo == (commitlog.Pos{}) || r.Redo == pos {
		return nil
	}
	next := r.Clone()
	next.Redo = pos
	return t.change1(ctx, next)
}
