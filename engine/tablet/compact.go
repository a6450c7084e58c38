package tablet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/compaction"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/merge"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/sstable"
)

// Flush writes the oldest immutable memtable to SSTables (a minor compaction).
// It returns false if there was none.
func (t *Tablet) Flush(ctx context.Context) (bool, error) {
	t.change.Lock()
	defer t.change.Unlock()
	return t.flushLocked(ctx)
}

// flushLocked is Flush for who holds the change lock.
func (t *Tablet) flushLocked(ctx context.Context) (bool, error) {
	v := t.pin()
	if v == nil {
		return false, t.gone()
	}
	defer v.release()
	if len(v.mems) == 1 {
		return false, nil
	}
	m, newer := v.mems[len(v.mems)-1], v.mems[:len(v.mems)-1:len(v.mems)-1]
	// What is in a file must be durable in the log first, or a crash could
	// leave an unacknowledged change half in the file, half nowhere; and a
	// reader's visible sequence number must not be behind a file in which an
	// older version has been dropped for a newer one.
	if err := t.env.Commit.Wait(ctx, m.last); err != nil {
		return false, err
	}
	it := m.Iterator(cell.MaxSeq)
	out := t.newOutput(v, v.row.NextRun, m.instant)
	err := out.add(ctx, it, len(v.runs) == 0)
	if err = errors.Join(err, it.Close()); err == nil {
		err = out.cut()
	}
	if err != nil {
		out.abort()
		return false, fmt.Errorf("flush tablet %d: %w", t.id, err)
	}
	next := v.row.Clone()
	next.Files = append(out.files, next.Files...)
	next.NextRun++
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
	if err := t.env.Meta.CAS(ctx, next); err != nil {
		return false, t.lost(out, err)
	}
	t.install(func(old *version) *version {
		return newVersion(t.env, next, old.mems[:len(old.mems)-1:len(old.mems)-1])
	})
	t.env.Memory.add(-m.Bytes())
	var size int64
	for _, f := range out.files {
		size += f.Size
	}
	t.env.Stats.Collected.Add(out.gc.Collected)
	t.env.Stats.Flushes.Add(1)
	t.env.Stats.FlushBytes.Add(size)
	t.env.Log.Debug("flushed", "tablet", uint64(t.id), "entries", m.Count(), "bytes", size, "files", len(out.files))
	return true, nil
}

// lost handles a failed compare-and-set. Unless the row is certain not to
// name the new files, only a restart can tell.
func (t *Tablet) lost(out *output, err error) error {
	err = fmt.Errorf("change METADATA row of tablet %d: %w", t.id, err)
	if errors.Is(err, metadata.ErrNotApplied) && !errors.Is(err, fault.Fenced) {
		if out != nil {
			out.abort()
		}
		return err
	}
	t.env.Fatal(err)
	return err
}

// trimRanges drops the range tombstones of next that have nothing left to
// delete: neither a file nor one of mems holds an older entry of their rows.
func (t *Tablet) trimRanges(next *metadata.Row, mems []*mem) {
	if t.rewriting {
		// What a compaction is writing may hold older entries.
		return
	}
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
		return true
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
func (t *Tablet) DropRange(ctx context.Context, r row.Range) error {
	t.change.Lock()
	defer t.change.Unlock()
	// Whatever got a smaller sequence number was written before; a write that
	// comes in between gets a larger one and stays. But none may be computed from
	// what is deleted here, so rows are locked until nobody sees that any more.
	for i := range t.rows {
		t.rows[i].Lock()
		defer t.rows[i].Unlock()
	}
	t.write.Lock()
	if t.write.closed {
		t.write.Unlock()
		return t.gone()
	}
	t.write.seq++
	d := metadata.RangeTombstone{Start: r.Start, End: r.End, Seq: t.write.seq}
	t.write.Unlock()
	v := t.pin()
	defer v.release()
	next := v.row.Clone()
	next.RangeDel = slices.DeleteFunc(next.RangeDel, func(old metadata.RangeTombstone) bool { return covers(d, old) })
	next.RangeDel = append(next.RangeDel, d)
	next.MaxSeq = max(next.MaxSeq, d.Seq)
	next.Files = slices.DeleteFunc(next.Files, func(f metadata.FileRef) bool { return f.MaxSeq < d.Seq && within(&f, d) })
	t.trimRanges(next, v.mems)
	if err := t.env.Meta.CAS(ctx, next); err != nil {
		return t.lost(nil, err)
	}
	t.install(func(old *version) *version { return newVersion(t.env, next, old.mems) })
	t.env.Work(t)
	return nil
}

// Compact does the next compaction that is worthwhile, if any, and tells
// whether it did one.
func (t *Tablet) Compact(ctx context.Context) (bool, error) {
	t.compacting.Lock()
	defer t.compacting.Unlock()
	// Before the version is pinned: a range tombstone that comes later must
	// outlive what this compaction makes of the files it knows.
	t.setRewriting(true)
	defer t.setRewriting(false)
	v := t.pin()
	if v == nil {
		return false, t.gone()
	}
	defer v.release()
	force := t.major.Load()
	now := t.env.Now()
	job, ok := compaction.Pick(t.pickRuns(v, now), compaction.Options{
		MaxRuns: t.env.Options.TargetRuns, SmallFile: t.env.Options.FileBytes / 8, MajorEvery: t.env.Options.MajorInterval,
		LastMajor: time.Unix(v.row.MajorTime, 0), Now: now, Force: force,
	})
	if !ok {
		if force {
			t.major.Store(false)
		}
		return false, nil
	}
	start := time.Now()
	out, err := t.rewrite(ctx, v, &job)
	if err != nil {
		out.abort()
		return false, fmt.Errorf("%s compaction of tablet %d: %w", job.Kind, t.id, err)
	}
	if err := t.replace(ctx, &job, out, now); err != nil {
		return false, err
	}
	if job.Kind == compaction.Major && force {
		t.major.Store(false)
	}
	t.env.Stats.Collected.Add(out.gc.Collected)
	t.env.Stats.Compactions.Add(1)
	t.env.Log.Debug("compacted", "tablet", uint64(t.id), "kind", job.Kind.String(), "reason", job.Reason,
		"runs", len(job.Runs), "bytes", job.RewriteBytes(), "files", len(out.files), "collected", out.gc.Collected,
		"elapsed", time.Since(start))
	return true, nil
}

// instantOf returns the latest instant at which a run of v and all older ones
// were everything that the tablet held.
func (t *Tablet) instantOf(v *version, id uint64) metadata.Instant {
	at := slices.IndexFunc(v.runs, func(u run) bool { return u.id == id })
	if at == 0 {
		s, now := t.schema(), t.env.Now()
		if t.holdsOnly(v) && t.schema() == s {
			return metadata.Instant{Time: now.UnixMicro(), Schema: s.Version}
		}
	}
	return v.runs[at].files[0].ref.Instant
}

// holdsOnly tells whether the SSTables and range tombstones of v are all there is.
func (t *Tablet) holdsOnly(v *version) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.version == v && !slices.ContainsFunc(v.mems, func(m *mem) bool { return !m.Empty() })
}

func (t *Tablet) setRewriting(on bool) {
	t.change.Lock()
	defer t.change.Unlock()
	t.rewriting = on
}

// RequestMajor makes the next Compact a major one.
func (t *Tablet) RequestMajor() { t.major.Store(true) }

// pickRuns describes the runs of v to the picker.
func (t *Tablet) pickRuns(v *version, now time.Time) []compaction.Run {
	fams := families(t.schema())
	runs := make([]compaction.Run, len(v.runs))
	for i, u := range v.runs {
		r := compaction.Run{ID: u.id, MinSeq: cell.MaxSeq, Files: make([]compaction.File, len(u.files))}
		for k, f := range u.files {
			r.Files[k] = compaction.File{ID: f.ref.ID, Lo: f.ref.Lo, Hi: f.ref.Hi, Bytes: f.ref.Size,
				Entries: int64(f.ref.Entries), Tombstones: int64(f.ref.Tombstones), Garbage: garbage(f, v, fams, now),
				Rewrite: t.exceeds(f.ref)}
			r.MinSeq, r.MaxSeq = min(r.MinSeq, f.ref.MinSeq), max(r.MaxSeq, f.ref.MaxSeq)
		}
		runs[i] = r
	}
	return runs
}

// exceeds tells whether f may hold rows of another tablet: it comes from before
// a split.
func (t *Tablet) exceeds(f *metadata.FileRef) bool {
	return !within(f, metadata.RangeTombstone{Start: t.bounds.Start, End: t.bounds.End})
}

// rewrite writes the output run of a job. It returns what it has written also
// when it fails.
func (t *Tablet) rewrite(ctx context.Context, v *version, job *compaction.Job) (*output, error) {
	files := map[uint64]file{}
	for _, u := range v.runs {
		for _, f := range u.files {
			files[f.ref.ID] = f
		}
	}
	t.progress.begin(rawBytes(job, files))
	defer t.progress.end()
	out := t.newOutput(v, job.Runs[0], t.instantOf(v, job.Runs[0]))
	for i := range job.Parts {
		p := &job.Parts[i]
		if p.Move {
			if err := out.carry(files[p.Inputs[0].Files[0].ID].ref); err != nil {
				return out, err
			}
			t.env.Stats.Moved.Add(1)
			continue
		}
		var sources []cell.Iterator
		for _, in := range p.Inputs {
			u := new(runIterator)
			var fs []file
			for _, f := range in.Files {
				fs = append(fs, files[f.ID])
			}
			u.reset(ctx, fs, sstable.IterOptions{})
			u.compaction = true
			sources = append(sources, u)
		}
		before := len(out.files)
		it := merge.New(sources)
		err := out.add(ctx, it, p.Complete)
		if err = errors.Join(err, it.Close()); err != nil {
			return out, err
		}
		t.env.Stats.CompactionIn.Add(p.Bytes())
		for _, f := range out.files[before:] {
			t.env.Stats.CompactionOut.Add(f.Size)
		}
	}
	return out, out.cut()
}

// replace puts the output of a job in the place of its inputs. Meanwhile newer
// runs may have come, and files of the inputs may have been dropped whole; what
// was made of those goes by the range tombstone that dropped them.
func (t *Tablet) replace(ctx context.Context, job *compaction.Job, out *output, now time.Time) error {
	t.change.Lock()
	defer t.change.Unlock()
	v := t.pin()
	if v == nil {
		out.abort()
		return t.gone()
	}
	defer v.release()
	next := v.row.Clone()
	inputs := map[uint64]bool{}
	for _, id := range job.Runs {
		inputs[id] = true
	}
	present := map[string]bool{}
	next.Files = slices.DeleteFunc(next.Files, func(f metadata.FileRef) bool {
		present[f.Object] = true
		return inputs[f.Run]
	})
	for _, f := range out.files {
		if out.carried[f.Object] && !present[f.Object] {
			continue // dropped whole, and perhaps deleted
		}
		next.Files = append(next.Files, f)
	}
	slices.SortStableFunc(next.Files, func(a, b metadata.FileRef) int {
		if a.Run != b.Run {
			if a.Run > b.Run {
				return -1
			}
			return 1
		}
		return bytes.Compare(a.Lo, b.Lo)
	})
	if job.Kind == compaction.Major {
		next.MajorTime = now.Unix()
	}
	t.rewriting = false
	t.trimRanges(next, v.mems)
	if err := t.env.Meta.CAS(ctx, next); err != nil {
		return t.lost(out, err)
	}
	t.install(func(old *version) *version { return newVersion(t.env, next, old.mems) })
	return nil
}

// An output writes the SSTables of one run, in key order, beginning a new one
// where a row begins and the last is long enough.
type output struct {
	t     *Tablet
	run   uint64
	gc    merge.GC
	w     *tableWriter
	last  []byte // row prefix of the last entry written
	files []metadata.FileRef
	// cleared is the sequence number of the newest range tombstone that the
	// output has been held against.
	cleared cell.Seq
	// instant is the newest input's.
	instant metadata.Instant
	// carried names the files that it did not write.
	carried map[string]bool
}

func (t *Tablet) newOutput(v *version, run uint64, instant metadata.Instant) *output {
	o := &output{t: t, run: run, instant: instant, carried: map[string]bool{}}
	o.gc = merge.GC{Families: map[cell.FamilyID]merge.Rule{}, Now: t.env.Now().UnixMicro(), AsOf: instant.Time}
	for _, f := range t.schema().Families {
		o.gc.Families[f.ID] = merge.Rule{GCRule: f.GC, New: f.GCVersion > instant.Schema}
	}
	o.gc.Ranges = v.rangeDel
	for _, d := range v.row.RangeDel {
		o.cleared = max(o.cleared, d.Seq)
	}
	o.gc.Rows = t.bounds
	return o
}

// add writes what the garbage collection leaves of it. complete says that no
// entry outside of it is older than one in it.
func (o *output) add(ctx context.Context, it cell.Iterator, complete bool) error {
	o.gc.Complete = complete
	n, done := 0, int64(0)
	for ok := it.First(); ok; ok = it.Next() {
		if n++; n%1024 == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
			o.t.progress.advance(done)
			done = 0
		}
		e := it.Entry()
		done += int64(len(e.Key) + len(e.Value))
		action, err := o.gc.Decide(e)
		if err != nil {
			return o.t.fatal(err)
		}
		if action == merge.Drop {
			continue
		}
		if o.w != nil && int64(o.w.EstimatedSize()) >= o.t.env.Options.FileBytes && !bytes.Equal(o.gc.Prefix(), o.last) {
			if err := o.cut(); err != nil {
				return err
			}
		}
		if o.w == nil {
			if o.w, err = o.t.env.newTable(ctx); err != nil {
				return err
			}
		}
		o.last = append(o.last[:0], o.gc.Prefix()...)
		if action == merge.Bury {
			e = &cell.Entry{Key: e.Key, Seq: e.Seq, Kind: cell.Delete}
		}
		if err := o.w.Add(e); err != nil {
			return err
		}
	}
	return o.t.readError(it.Error())
}

// cut finishes the SSTable that is being written.
func (o *output) cut() error {
	if o.w == nil {
		return nil
	}
	w := o.w
	o.w = nil
	ref, err := w.finish(o.run)
	if err == nil {
		ref.Cleared = max(ref.Cleared, o.cleared)
		ref.Instant = o.instant
		o.files = append(o.files, ref)
	}
	return err
}

// carry takes over a file that another run had.
func (o *output) carry(f *metadata.FileRef) error {
	if err := o.cut(); err != nil {
		return err
	}
	ref := *f
	ref.Run, ref.Instant = o.run, o.instant
	o.carried[ref.Object] = true
	o.files = append(o.files, ref)
	return nil
}

// abort gives up. Files that were carried over belong to their old runs still.
func (o *output) abort() {
	if o.w != nil {
		o.w.Abort()
		o.w = nil
	}
	for _, f := range o.files {
		if !o.carried[f.Object] {
			o.t.env.Remove(f.Object)
		}
	}
	o.files = nil
}

func families(s *schema.Table) map[cell.FamilyID]*schema.GCRule {
	m := make(map[cell.FamilyID]*schema.GCRule, len(s.Families))
	for _, f := range s.Families {
		m[f.ID] = f.GC
	}
	return m
}

// A tableWriter writes one SSTable object.
type tableWriter struct {
	*sstable.Writer
	name string
	id   uint64
}

func (e *Env) newTable(ctx context.Context) (*tableWriter, error) {
	id := e.NewID()
	name := fmt.Sprintf("%016x.sst", id)
	o, err := e.Objects.Create(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("create SSTable %s: %w", name, err)
	}
	w, err := sstable.NewWriter(o, e.Options.Table)
	if err != nil {
		o.Abort()
		return nil, fmt.Errorf("create SSTable %s: %w", name, err)
	}
	return &tableWriter{w, name, id}, nil
}

func (w *tableWriter) finish(run uint64) (metadata.FileRef, error) {
	info, err := w.Finish()
	if err != nil {
		return metadata.FileRef{}, fmt.Errorf("write SSTable %s: %w", w.name, err)
	}
	return metadata.FileRef{Object: w.name, ID: w.id, Run: run, Info: info}, nil
}

// garbage estimates the bytes of f that a major compaction would drop beside
// tombstones.
func garbage(f file, v *version, fams map[cell.FamilyID]*schema.GCRule, now time.Time) int64 {
	n := compaction.Garbage(&f.ref.Info, fams, now.UnixMicro())
	for _, d := range v.row.RangeDel {
		if deletes(d, f.ref) {
			n += dropped(f, d)
		}
	}
	return min(n, f.ref.Size)
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
