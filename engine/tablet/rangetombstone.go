package tablet

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
)

// trimRanges drops the range tombstones of next that have nothing left to
// delete. Neither a file, nor what a compaction makes of one, nor one of mems
// holds an older entry of their rows. The caller holds the change lock.
func (t *Tablet) trimRanges(next *metadata.Row, mems []*mem) {
	if !t.started.Load() {
		return // what is still to be replayed may hold older entries
	}
	rewriting := t.jobs.files()
	least := cell.MaxSeq
	for _, m := range mems {
		if !m.Empty() {
			least = min(least, m.MinSeq())
		}
	}
	next.RangeDel = slices.DeleteFunc(next.RangeDel, func(d metadata.RangeTombstone) bool {
		if least < d.Seq {
			return false
		}
		for i := range next.Files {
			if deletes(d, &next.Files[i]) {
				return false
			}
		}
		return !slices.ContainsFunc(rewriting, func(f *metadata.FileRef) bool { return deletes(d, f) })
	})
}

// deletes tells whether d may delete entries of f.
func deletes(d metadata.RangeTombstone, f *metadata.FileRef) bool {
	return f.MinSeq < d.Seq && f.Cleared < d.Seq && overlaps(f, d)
}

// overlaps tells whether f may hold rows that d names.
func overlaps(f *metadata.FileRef, d metadata.RangeTombstone) bool {
	lo := cell.AppendRow(nil, d.Start)
	if bytes.Compare(f.Hi, lo) < 0 {
		return false
	}
	return len(d.End) == 0 || bytes.Compare(f.Lo, cell.AppendRow(nil, d.End)) < 0
}

// within tells whether d names every row that f may hold.
func within(f *metadata.FileRef, d metadata.RangeTombstone) bool {
	if bytes.Compare(f.Lo, cell.AppendRow(nil, d.Start)) < 0 {
		return false
	}
	return len(d.End) == 0 || bytes.Compare(f.Hi, cell.AppendRow(nil, d.End)) < 0
}

// covers tells whether d, which is newer, deletes all that old does.
func covers(d, old metadata.RangeTombstone) bool {
	return bytes.Compare(d.Start, old.Start) <= 0 &&
		(len(d.End) == 0 || len(old.End) > 0 && bytes.Compare(old.End, d.End) <= 0)
}

// DropRange deletes the rows in r that were written before it was called, by a
// range tombstone in the METADATA row: no data is read or written. Files that
// hold nothing else go at once.
//
// If the table has a stream, the rows that are there are listed first, for readers of
// changes. That reads the data, while writes go on.
func (t *Tablet) DropRange(ctx context.Context, r row.Range) error {
	for {
		list, err := t.list(ctx, r)
		if err != nil {
			return err
		}
		if done, err := t.drop(ctx, r, list); done || err != nil {
			return err
		}
	}
}

// drop is DropRange after the rows were listed. It is not done, and has done nothing, if the
// stream was enabled or disabled since.
func (t *Tablet) drop(ctx context.Context, r row.Range, list *dropList) (done bool, err error) {
	named := false
	defer func() {
		if !named {
			list.abort()
		}
	}()
	t.change.Lock()
	defer t.change.Unlock()
	// Nothing is flushed from here on, so what is written from here on is read from memory
	// below, with rows locked.
	if _, err := list.catchUp(ctx, t.lastGiven()); err != nil {
		return false, fmt.Errorf("list the rows that are dropped: %w", err)
	}
	// Whatever got a smaller sequence number was written before; a write that
	// comes in between gets a larger one and stays. But none may be computed from
	// what is deleted here, so rows are locked until no write sees that any more.
	for i := range t.rows {
		t.rows[i].Lock()
		defer t.rows[i].Unlock()
	}
	t.write.Lock()
	if t.write.closed {
		t.write.Unlock()
		return false, t.gone()
	}
	if t.recordLocked(); t.write.mem.life != list.life {
		t.write.Unlock()
		return false, nil
	}
	d := metadata.RangeTombstone{Start: r.Start, End: r.End, Seq: t.instantLocked()}
	t.write.Unlock()
	defer func() {
		t.write.Lock()
		defer t.write.Unlock()
		t.passLocked()
	}()
	v := t.pin()
	defer v.release()
	next := v.row.Clone()
	next.RangeDel = slices.DeleteFunc(next.RangeDel, func(old metadata.RangeTombstone) bool { return covers(d, old) })
	next.RangeDel = append(next.RangeDel, d)
	next.MaxSeq = max(next.MaxSeq, d.Seq)
	next.Files = slices.DeleteFunc(next.Files, func(f metadata.FileRef) bool { return f.MaxSeq < d.Seq && within(&f, d) })
	t.trimRanges(next, v.mems)
	if list.life != 0 {
		if _, err := list.catchUp(ctx, d.Seq-1); err != nil {
			return false, fmt.Errorf("list the rows that are dropped: %w", err)
		}
		t.keep(next, list.life, list.place(d.Seq)...)
	}
	if err := t.env.Meta.CAS(ctx, next); err != nil {
		err = t.lost(nil, err)
		named = !notApplied(err) // perhaps
		return false, err
	}
	named = true
	defer list.decided()
	t.install(func(old *version) *version { return newVersion(t.env, next, old.mems) })
	t.env.Work(t)
	return true, nil
}

// dropped estimates the bytes of f in the rows of a range tombstone. It is never
// 0, so that some compaction makes an end of the tombstone.
func dropped(f file, d metadata.RangeTombstone) int64 {
	if within(f.ref, d) {
		return f.ref.Size
	}
	var end []byte
	if len(d.End) > 0 {
		end = cell.AppendRow(nil, d.End)
	}
	// One that cannot be read shows when it is compacted.
	n, _ := f.reader.ApproximateBytes(context.Background(), cell.AppendRow(nil, d.Start), end)
	return max(n, 1)
}
