package tablet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/sstable"
)

// Split replaces the tablet by two: left serves the rows before at, right those
// from at on. No row is copied: both refer to the same files, and compactions
// drop what is not theirs.
//
// The steps, each durable before the next begins:
//
//  1. the METADATA row says that a split is under way, and into what;
//  2. with writes held up, everything is flushed: the children begin without a
//     log of their parent's;
//  3. the left child's row is added: from here on the split has happened;
//  4. the parent's row becomes the right child's.
//
// A start finishes or forgets a split that a crash interrupted. adopt is called
// with the children before the parent refuses its first call.
func (t *Tablet) Split(ctx context.Context, at []byte, left, right metadata.TabletID, adopt func(children ...*Tablet)) error {
	if len(at) == 0 || !t.bounds.Contains(at) || bytes.Equal(at, t.bounds.Start) {
		return fault.New(fault.Invalid, "a split at %q would leave one side of %v empty", at, t.Name())
	}
	unlock, err := still(ctx, t)
	if err != nil {
		return err
	}
	defer unlock()
	next := t.Row().Clone()
	next.Op = &metadata.Op{Kind: metadata.Split, At: at, Left: left, Right: right}
	t.write.Lock()
	if !t.write.closed {
		next.Stream = t.streamNowLocked()
	}
	t.write.Unlock()
	if m, ok := t.env.Meta.(metadata.Retirer); ok {
		if next.Op.Version, err = m.RetiredVersion(ctx, next.Table, at); err != nil {
			return err
		}
	}
	// Files that both children name are in one index object, and so count once. Only what is
	// flushed from here on may come to be in two.
	x, err := t.indexChanges(ctx, next, 0)
	if err != nil {
		return err
	}
	err = t.change1(ctx, next)
	if x.ended(err); err != nil {
		return err
	}
	t.write.Lock()
	defer t.write.Unlock()
	defer t.env.held("split")()
	if err := t.emptyLocked(ctx); err != nil {
		return err // the mark in the row does no harm
	}
	// What was promised to readers of changes holds for the children.
	parent := t.Row().Clone()
	parent.MaxSeq = max(parent.MaxSeq, t.write.seq)
	if err := t.placeFollowed(ctx, parent); err != nil {
		return err
	}
	if parent.Stream != nil {
		// Each event has a stamp of its own, by which readers tell them apart.
		parent.MaxSeq = t.env.next(parent.MaxSeq)
	}
	l, r := SplitRows(parent)
	if err := t.env.Meta.CAS(ctx, l); err != nil {
		return t.leave(t.lost(nil, err))
	}
	if err := insist(ctx, func() error { return t.env.Meta.CAS(ctx, r) }); err != nil {
		return t.halfway(err)
	}
	t.replaceBy(adopt, Open(t.env, l, t.schema), Open(t.env, r, t.schema))
	return nil
}

// Release gives the tablet up: everything is flushed, then the METADATA row
// becomes what change makes of it, and the tablet refuses calls with
// ErrReplaced.
func (t *Tablet) Release(ctx context.Context, change func(*metadata.Row)) error {
	unlock, err := still(ctx, t)
	if err != nil {
		return err
	}
	defer unlock()
	t.write.Lock()
	defer t.write.Unlock()
	defer t.env.held("unload")()
	if err := t.emptyLocked(ctx); err != nil {
		return err
	}
	next := t.Row().Clone()
	next.Op = nil // a split or merge that was given up
	next.MaxSeq = max(next.MaxSeq, t.write.seq)
	change(next)
	if err := t.change1(ctx, next); err != nil {
		return t.leave(err)
	}
	t.replaced.Store(true)
	t.closeLocked()
	return nil
}

// leave closes the tablets unless err, of a change by which others are to serve
// their rows, says that nothing was changed. Perhaps others serve them, from
// what is in SSTables. Writes that were acknowledged here from now on would
// then be in a log that is never replayed. Its caller holds all locks; it
// returns err.
func (t *Tablet) leave(err error, too ...*Tablet) error {
	if !notApplied(err) {
		t.closeAll(too)
	}
	return err
}

func (t *Tablet) closeAll(too []*Tablet) {
	t.closeLocked()
	for _, t := range too {
		t.closeLocked()
	}
}

// notApplied tells whether an error says that a METADATA row is certain not to
// have been changed, neither here nor by another server.
func notApplied(err error) bool {
	return errors.Is(err, metadata.ErrNotApplied) && !errors.Is(err, fault.Fenced)
}

// Replace lets do put other rows in the place of the tablet's METADATA row, while
// nothing else changes it, and closes the tablet. Nothing may be in its
// memtables.
func (t *Tablet) Replace(do func(*metadata.Row) error) error {
	defer t.quiesce()()
	t.change.Lock()
	defer t.change.Unlock()
	if err := t.here(); err != nil {
		return err
	}
	if err := do(t.Row()); err != nil {
		return err
	}
	t.write.Lock()
	defer t.write.Unlock()
	t.replaced.Store(true)
	t.closeLocked()
	return nil
}

// here returns why the tablet is of no use any more, nil if it is.
func (t *Tablet) here() error {
	v := t.pin()
	if v == nil {
		return t.gone()
	}
	v.release()
	return nil
}

// Change stores the METADATA row as change makes it. It may change nothing that
// a version holds.
func (t *Tablet) Change(ctx context.Context, change func(*metadata.Row)) error {
	t.change.Lock()
	defer t.change.Unlock()
	if err := t.here(); err != nil {
		return err
	}
	next := t.Row().Clone()
	change(next)
	return t.change1(ctx, next)
}

// held returns what is called when writes are no longer held up.
func (e *Env) held(why string) func() {
	if e.Held == nil {
		return func() {}
	}
	start := time.Now()
	return func() { e.Held(why, time.Since(start)) }
}

// stillBytes is how much a memtable may hold that is flushed while writes wait.
const stillBytes = 512 << 10

// still waits until nothing works on tablets, which ascend, and keeps it so, reads and
// writes excepted. Then most of what is in memory is flushed: what was written during a
// long flush takes a shorter one. No change lock is held before, as it would keep the
// server's flushes waiting.
func still(ctx context.Context, ts ...*Tablet) (unlock func(), err error) {
	var undo []func()
	undoAll := func() {
		for _, f := range slices.Backward(undo) {
			f()
		}
	}
	defer func() {
		if err != nil {
			undoAll()
		}
	}()
	for _, t := range ts {
		undo = append(undo, t.quiesce())
	}
	for range 3 {
		for _, t := range ts {
			t.Rotate()
			for more := true; more; {
				if more, err = t.Flush(ctx); err != nil {
					return nil, err
				}
			}
		}
		if !slices.ContainsFunc(ts, func(t *Tablet) bool { return t.MemtableBytes() >= stillBytes }) {
			break
		}
	}
	for _, t := range ts {
		t.change.Lock()
		undo = append(undo, t.change.Unlock)
		if err := t.here(); err != nil { // it was closed meanwhile
			return nil, err
		}
	}
	return undoAll, nil
}

// change1 stores a METADATA row that differs from the present one in nothing
// that a version holds.
func (t *Tablet) change1(ctx context.Context, next *metadata.Row) error {
	if err := t.placeFollowed(ctx, next); err != nil {
		return err
	}
	if err := t.env.Meta.CAS(ctx, next); err != nil {
		return t.lost(nil, err)
	}
	t.install(func(old *version) *version { return newVersion(t.env, next, old.mems) })
	return nil
}

// emptyLocked flushes everything. Its caller holds the write lock and the
// change lock.
func (t *Tablet) emptyLocked(ctx context.Context) error {
	if t.write.closed {
		return t.gone()
	}
	if !t.write.mem.Empty() {
		t.rotateLocked()
	}
	for {
		if more, err := t.flushLocked(ctx, true); err != nil || !more {
			return err
		}
	}
}

// replaceBy hands over to other tablets. Its caller holds all locks.
func (t *Tablet) replaceBy(adopt func(...*Tablet), others ...*Tablet) {
	for _, o := range others {
		o.Start()
	}
	t.replaced.Store(true)
	adopt(others...)
	t.closeLocked()
}

// insist does what cannot be left undone, again while it changes nothing for
// want of room. A full disk must not end the process, which might not find the
// room to start again.
func insist(ctx context.Context, do func() error) error {
	for {
		err := do()
		if !errors.Is(err, metadata.ErrNotApplied) || !errors.Is(err, fault.Exhausted) {
			return err
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

// halfway ends the process between the first and the last step of a change that
// has happened already: only a restart finishes it. Until then no server serves the
// rows: see leave.
func (t *Tablet) halfway(err error, too ...*Tablet) error {
	err = fmt.Errorf("split or merge of %v is half done: %w", t.Name(), err)
	t.env.Fatal(err)
	t.closeAll(too)
	return err
}

// SplitRows returns the METADATA rows of the two children of a tablet whose row
// says that it is being split.
func SplitRows(parent *metadata.Row) (left, right *metadata.Row) {
	op := parent.Op
	left, right = parent.Clone(), parent.Clone()
	left.Version, left.Tablet, left.End, left.Op = op.Version, op.Left, op.At, nil
	right.Tablet, right.Start, right.Op = op.Right, op.At, nil
	clip(left)
	clip(right)
	left.ClipFollows()
	right.ClipFollows()
	if parent.Stream != nil {
		left.Stream.Clip(row.Range{Start: left.Start, End: left.End})
		right.Stream.Clip(row.Range{Start: right.Start, End: right.End})
		e := metadata.Event{Stamp: parent.MaxSeq, Parents: []row.Range{{Start: parent.Start, End: parent.End}},
			Children: []row.Range{{Start: left.Start, End: left.End}, {Start: right.Start, End: right.End}}}
		left.Stream.Note(e)
		right.Stream.Note(e)
	}
	return left, right
}

// clip leaves out of a row what has nothing to do with its range.
func clip(r *metadata.Row) {
	bounds := row.Range{Start: r.Start, End: r.End}
	whole := metadata.RangeTombstone{Start: r.Start, End: r.End}
	files := r.Files[:0:0]
	for _, f := range r.Files {
		if overlaps(&f, whole) {
			files = append(files, f)
		}
	}
	r.Files = files
	dels := r.RangeDel[:0:0]
	for _, d := range r.RangeDel {
		part := row.Range{Start: d.Start, End: d.End}.Intersect(bounds)
		d = metadata.RangeTombstone{Start: part.Start, End: part.End, Seq: d.Seq}
		// Nothing is in memory, so what it deletes is in files.
		if !part.Empty() && slices.ContainsFunc(files, func(f metadata.FileRef) bool { return deletes(d, &f) }) {
			dels = append(dels, d)
		}
	}
	r.RangeDel = dels
}

// Merge replaces two neighbouring tablets, a before b, by one. Files that still
// hold rows of both sides of their border are rewritten first, as the merged
// tablet cannot have one file in two places of its order.
//
// The steps, each durable before the next begins: a's row says what is about to
// happen; b's row becomes the merged tablet's and names a's as obsolete (from
// here on the merge has happened); a's row is deleted by forget; the mark is
// taken away.
func Merge(ctx context.Context, a, b *Tablet, id metadata.TabletID, forget func(*metadata.Row) error, adopt func(merged ...*Tablet)) error {
	if len(a.bounds.End) == 0 || !bytes.Equal(a.bounds.End, b.bounds.Start) {
		return fault.New(fault.Invalid, "tablets %d and %d are not neighbours", a.id, b.id)
	}
	for _, t := range []*Tablet{a, b} {
		for t.exceeding() {
			if err := t.compactMajor(ctx); err != nil {
				return err
			}
		}
	}
	unlock, err := still(ctx, a, b)
	if err != nil {
		return err
	}
	defer unlock()
	a.write.Lock()
	defer a.write.Unlock()
	if err := a.emptyLocked(ctx); err != nil {
		return err
	}
	b.write.Lock()
	defer b.write.Unlock()
	defer b.env.held("merge")()
	if err := b.emptyLocked(ctx); err != nil {
		return err
	}
	if a.exceeding() || b.exceeding() {
		return fault.New(fault.Unavailable, "tablets %d and %d are not ready to be merged", a.id, b.id)
	}
	leaving := a.Row().Clone()
	leaving.Op = &metadata.Op{Kind: metadata.Leave, At: a.bounds.End, Left: a.id, Right: b.id}
	if err := a.change1(ctx, leaving); err != nil {
		return err // the mark alone does no harm
	}
	old := a.Row()
	right := b.Row().Clone()
	if err := b.placeFollowed(ctx, right); err != nil {
		return err
	}
	m := mergeRows(old, right)
	m.Tablet = id
	m.MaxSeq = max(m.MaxSeq, a.write.seq, b.write.seq)
	if b.schema().Stream != nil {
		m.MaxSeq = b.env.next(m.MaxSeq)
	}
	if sa, sb := a.streamNowLocked(), b.streamNowLocked(); sa != nil && sb != nil && sa.Life == sb.Life {
		m.Stream = metadata.MergeStreams(sa, sb)
		m.Stream.Note(metadata.Event{Stamp: m.MaxSeq, Parents: []row.Range{a.bounds, b.bounds}, Children: []row.Range{{Start: m.Start, End: m.End}}})
	} else {
		m.Stream = nil
	}
	m.Op = &metadata.Op{Kind: metadata.Merge, Left: a.id, Start: old.Start, At: old.End}
	if err := b.env.Meta.CAS(ctx, m); err != nil {
		err = b.leave(b.lost(nil, err), a)
		if notApplied(err) {
			stay := a.Row().Clone()
			stay.Op = nil
			err = errors.Join(err, a.change1(ctx, stay))
		}
		return err
	}
	if err := insist(ctx, func() error { return forget(old) }); err != nil {
		return b.halfway(err, a)
	}
	m.Op = nil
	if err := insist(ctx, func() error { return b.env.Meta.CAS(ctx, m) }); err != nil {
		return b.halfway(err, a)
	}
	a.replaced.Store(true)
	b.replaceBy(adopt, Open(b.env, m, b.schema))
	a.closeLocked()
	return nil
}

// Large tells whether the tablet's own rows take limit bytes or more. Until its
// files from before a split are rewritten, which comes soon, it is not known.
func (t *Tablet) Large(limit int64) bool { return t.Bytes() >= limit && !t.exceeding() }

// exceeding tells whether a file may hold rows of another tablet.
func (t *Tablet) exceeding() bool {
	r := t.Row()
	for i := range r.Files {
		if t.exceeds(&r.Files[i]) {
			return true
		}
	}
	return false
}

// mergeRows returns the row of a and b together, under b's version. The runs of
// b come before those of a, with which they share no row; each side's keep their
// order. They are numbered anew, as numbers that only grow would double with
// each merge of what was split. So do sequence numbers stay, each side's being
// compared with its own only.
func mergeRows(a, b *metadata.Row) *metadata.Row {
	m := b.Clone()
	m.Start = a.Start
	m.NextRun = 0
	m.Files = append(slices.Clone(b.Files), a.Files...)
	for i := len(m.Files) - 1; i >= 0; {
		// Files come newest run first: count up from the last.
		run, side := m.Files[i].Run, i < len(b.Files)
		for ; i >= 0 && m.Files[i].Run == run && (i < len(b.Files)) == side; i-- {
			m.Files[i].Run = m.NextRun
		}
		m.NextRun++
	}
	m.RangeDel = append(m.RangeDel, a.RangeDel...)
	m.MaxSeq = max(a.MaxSeq, b.MaxSeq)
	m.FlushedSeq = max(a.FlushedSeq, b.FlushedSeq)
	m.MergeFollows(a, b)
	m.MajorTime = min(a.MajorTime, b.MajorTime)
	for group, at := range a.GroupMajors {
		if other, ok := b.GroupMajors[group]; !ok || at < other {
			m.SetMajor(group, at)
		}
	}
	return m
}

// SplitKey returns a row key that cuts the tablet's data in about two halves,
// or false if there is none.
func (t *Tablet) SplitKey(ctx context.Context) ([]byte, bool, error) {
	v := t.pin()
	if v == nil {
		return nil, false, t.gone()
	}
	defer v.release()
	var largest *file
	for _, u := range v.runs {
		for i := range u.files {
			if f := &u.files[i]; largest == nil || f.ref.Size > largest.ref.Size {
				largest = f
			}
		}
	}
	if largest == nil {
		return nil, false, nil
	}
	// With many files in the largest run their borders do; with few, the middle
	// of the largest file does.
	for _, u := range v.runs {
		if n := len(u.files); n >= 4 {
			key, err := cell.RowOf(nil, u.files[n/2].ref.Lo)
			if err != nil {
				return nil, false, fault.New(fault.Corruption, "%w", err)
			}
			if t.splits(key) {
				return key, true, nil
			}
		}
	}
	// It may be shared with the other child of a split: the middle of what this
	// one has of it counts.
	mid, err := largest.reader.MidRow(ctx, t.lower(), t.upper())
	if err != nil || len(mid) == 0 {
		return nil, false, err
	}
	key, err := cell.RowOf(nil, mid)
	if err != nil {
		return nil, false, fault.New(fault.Corruption, "%w", err)
	}
	return key, t.splits(key), nil
}

// cutParts is into how many parts Cuts cuts a tablet.
const cutParts = 8

// entryBytes is what an entry takes in a memtable beside its key and value. SSTables and
// memtables are weighed alike with it.
const entryBytes = 36

// A weight is a place between two rows, a row prefix, and the bytes of one file or memtable
// between the place before and this one.
type weight struct {
	row   []byte
	bytes float64
}

// Cuts returns ascending rows, fewer than cutParts, that cut what the tablet has in SSTables
// and memtables into parts of about one size, before compression.
func (t *Tablet) Cuts(ctx context.Context) ([][]byte, error) {
	v := t.pin()
	if v == nil {
		return nil, t.gone()
	}
	defer v.release()
	var all []weight
	for _, u := range v.runs {
		for _, f := range u.files {
			info, err := f.reader.Info(ctx)
			if err != nil {
				return nil, t.readError(err)
			}
			var marks []sstable.Mark
			if step := min(v.bytes()/(4*cutParts), u.bytes/(2*cutParts)); step < info.Size {
				if marks, err = f.reader.Marks(ctx, step); err != nil {
					return nil, t.readError(err)
				}
			}
			marks = append(marks, sstable.Mark{Row: info.Hi, Bytes: info.Size})
			each := (float64(info.RawBytes) + entryBytes*float64(info.Entries)) / float64(info.Size)
			var before int64
			for _, m := range marks {
				all = append(all, weight{m.Row, each * float64(m.Bytes-before)})
				before = m.Bytes
			}
		}
	}
	for _, m := range v.mems {
		// Their places are random: a part is 18 % too large or too small.
		keys := m.Sample(32 * cutParts)
		for _, key := range keys {
			all = append(all, weight{key[:cell.EscapedLen(key)], float64(m.Bytes()) / float64(len(keys))})
		}
	}
	lo, hi := t.lower(), t.upper()
	all = slices.DeleteFunc(all, func(w weight) bool {
		return bytes.Compare(w.row, lo) <= 0 || len(hi) > 0 && bytes.Compare(w.row, hi) >= 0
	})
	slices.SortFunc(all, func(a, b weight) int { return bytes.Compare(a.row, b.row) })
	var sum, passed float64
	for _, w := range all {
		sum += w.bytes
	}
	var cuts [][]byte
	for _, w := range all {
		if passed += w.bytes; passed < sum/cutParts*float64(len(cuts)+1) || len(cuts) == cutParts-1 {
			continue
		}
		at, err := cell.RowOf(nil, w.row)
		if err != nil {
			return nil, fault.New(fault.Corruption, "%w", err)
		}
		if t.splits(at) && (len(cuts) == 0 || bytes.Compare(cuts[len(cuts)-1], at) < 0) {
			cuts = append(cuts, at)
		}
	}
	return cuts, nil
}

// lower and upper are the keys that the tablet's are between; upper is nil if there is no
// bound.
func (t *Tablet) lower() []byte { return cell.AppendRow(nil, t.bounds.Start) }

func (t *Tablet) upper() []byte {
	if len(t.bounds.End) == 0 {
		return nil
	}
	return cell.AppendRow(nil, t.bounds.End)
}

func (t *Tablet) splits(key []byte) bool {
	return t.bounds.Contains(key) && !bytes.Equal(key, t.bounds.Start)
}
