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
	var out *output
	err := t.guard("flush", func() error {
		out = t.newOutput(v, t.layout(), v.row.NextRun, m.instant)
		out.byFamily(v)
		out.pace = t.env.Pace.pacer(1)
		if err := out.take(ctx, m.Iterator(cell.MaxSeq), len(v.runs) == 0); err != nil {
			return err
		}
		return out.cut()
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
			next.SetMajor(f.Group, t.env.Now().Unix())
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
	if err := t.env.Meta.CAS(ctx, next); err != nil {
		return false, t.lost(out, err)
	}
	t.install(func(old *version) *version {
		return newVersion(t.env, next, old.mems[:len(old.mems)-1:len(old.mems)-1])
	})
	t.env.decided(out.begun)
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

// trimRanges drops the range tombstones of next that have nothing left to
// delete: neither a file, nor what a compaction makes of one, nor one of mems
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
// whether it did one. Before that it loads what is to be in memory. Others may
// call it meanwhile: their compactions are of other runs.
func (t *Tablet) Compact(ctx context.Context) (bool, error) { return t.compact(ctx, true) }

// compact is Compact; polite says to leave a long compaction for later while
// there are enough of them on the server.
func (t *Tablet) compact(ctx context.Context, polite bool) (bool, error) {
	var w *work
	err := t.guard("choice of a compaction", func() (err error) {
		w, err = t.begin(ctx, polite)
		return err
	})
	if w == nil || err != nil {
		return false, err
	}
	defer t.end(w)
	job := &w.job
	start := time.Now()
	err = t.guard(job.Kind.String()+" compaction", func() error { return t.rewrite(ctx, w) })
	out := w.out
	if err != nil {
		t.abort(out)
		t.jobs.fruitless.Store(w.from.state)
		return false, fmt.Errorf("%s compaction of %v: %w", job.Kind, t.Name(), err)
	}
	if err := t.replace(ctx, w, out); err != nil {
		return false, err
	}
	switch {
	case w.relayout:
		t.majors.finish(w.asked)
	case job.Kind == compaction.Major:
		t.majors.did(w.group.ID, w.asked)
		if !slices.ContainsFunc(w.from.runs, func(u run) bool { return t.majors.wants(u.group, w.asked) }) {
			t.majors.finish(w.asked)
		}
	}
	t.env.Stats.Collected.Add(out.gc.Collected)
	t.env.Stats.Compactions.Add(1)
	t.env.Log.Debug("compacted", "tablet", t.Name(), "kind", job.Kind.String(), "reason", job.Reason,
		"group", w.group.Name, "runs", len(job.Runs), "bytes", job.RewriteBytes(), "files", len(out.files), "collected", out.gc.Collected,
		"elapsed", time.Since(start))
	return true, nil
}

// A work is one compaction.
type work struct {
	from *version
	now  time.Time // when it began
	// files are those of from that it may rewrite, and after the choice those that
	// it does. jobs.mu guards it.
	files []*metadata.FileRef

	job    compaction.Job // its runs are places in from.runs
	layout *layout
	group  schema.Group // whose runs they are, unless relayout
	// relayout says that they are all runs of the tablet, to be divided among the
	// groups anew.
	relayout bool
	asked    uint64 // the last request for a major compaction before it
	long     bool   // it has a place among the server's long ones
	out      *output
	progress progress
}

// begin chooses the next compaction, which is under way until end is called;
// nil if there is none.
func (t *Tablet) begin(ctx context.Context, polite bool) (_ *work, err error) {
	t.jobs.begin.Lock()
	defer t.jobs.begin.Unlock()
	others := t.jobs.running()
	if len(others) >= maxJobs {
		return nil, nil
	}
	w := t.enlist()
	if w == nil {
		return nil, t.gone()
	}
	v := w.from
	chosen := false
	defer func() {
		if !chosen {
			t.jobs.remove(w, true)
			v.release()
		}
	}()
	if err := t.settleResidents(ctx, v); err != nil {
		t.jobs.fruitless.Store(v.state)
		return nil, err
	}
	short := false
	for !chosen {
		if chosen = t.pick(w, others, short); !chosen {
			if len(others) > 0 {
				return nil, nil // it may be otherwise once they have ended
			}
			if t.waiting() > 0 {
				t.jobs.fruitless.Store(v.state)
			}
			if !short {
				t.majors.finish(w.asked)
			}
			return nil, nil
		}
		if short || w.job.RewriteBytes() < t.long() {
			break
		}
		if w.long = t.env.Pace.beginLong(polite); !w.long {
			t.jobs.later.Store(true)
			chosen, short = false, true
		}
	}
	var files []*metadata.FileRef
	for _, i := range w.job.Runs {
		for _, f := range v.runs[i].files {
			files = append(files, f.ref)
		}
	}
	t.jobs.narrow(w, files)
	return w, nil
}

// enlist returns a compaction, under way, of what the tablet holds now; nil if the
// tablet is closed. It is known before anything can change what it knows: a range
// tombstone that comes later must outlive what it makes of these files. Its layout
// is none from before theirs.
func (t *Tablet) enlist() *work {
	t.change.Lock()
	defer t.change.Unlock()
	l := t.layout()
	v := t.pin()
	if v == nil {
		return nil
	}
	w := &work{from: v, now: t.env.Now(), layout: l, asked: t.majors.asked.Load()}
	for i := range v.row.Files {
		w.files = append(w.files, &v.row.Files[i])
	}
	t.jobs.add(w)
	return w
}

// end says that w is under way no more.
func (t *Tablet) end(w *work) {
	t.jobs.remove(w, false)
	if w.long {
		t.env.Pace.endLong()
	}
	w.from.release()
}

// long is the number of bytes from which a compaction is a long one.
func (t *Tablet) long() int64 { return 8 * t.env.Options.MemtableBytes }

// pick chooses the next compaction of w.from beside others. With short it is
// none that is long.
func (t *Tablet) pick(w *work, others []*work, short bool) bool {
	v := w.from
	o := compaction.Options{MaxRuns: t.env.Options.TargetRuns, SmallFile: t.env.Options.FileBytes / 8,
		MajorEvery: t.env.Options.MajorInterval, Now: w.now, Waiting: t.waiting(), Long: t.long(), Short: short}
	runs := t.pickRuns(v, w.layout.schema, w.now)
	compacting := false
	for i := range runs {
		for _, other := range others {
			runs[i].Compacting = runs[i].Compacting || other.takes(&v.runs[i])
		}
		compacting = compacting || runs[i].Compacting
	}
	stale := w.layout.stale(v)
	w.relayout = stale && !compacting && !short && !slices.ContainsFunc(runs, func(r compaction.Run) bool { return r.Busy })
	if w.relayout {
		w.job = compaction.Relayout(runs, o)
		return true
	}
	// The groups take turns.
	var ids []uint16
	for _, u := range v.runs {
		if !slices.Contains(ids, u.group) {
			ids = append(ids, u.group)
		}
	}
	slices.Sort(ids)
	if i := slices.Index(ids, t.jobs.last); i >= 0 {
		ids = append(ids[i+1:len(ids):len(ids)], ids[:i+1]...)
	}
	groups := make([]compaction.Group, len(ids))
	for i, id := range ids {
		g := &groups[i]
		g.LastMajor, g.Force = time.Unix(v.row.Major(id), 0), t.majors.wants(id, w.asked)
		g.Major = slices.ContainsFunc(others, func(other *work) bool {
			return other.relayout || other.job.Kind == compaction.Major && other.group.ID == id
		})
		since := w.layout.group(id).Since
		for k, u := range v.runs {
			// Where something keeps runs from being divided anew, those are in the way
			// of every group: they may hold older entries of it.
			if stale && u.layout != w.layout.schema.Layout {
				runs[k].Busy = true
			} else if u.group != id {
				continue
			}
			g.Runs = append(g.Runs, runs[k])
			// Who asks for a major compaction wants the settings of now.
			for n := range u.files {
				runs[k].Files[n].Rewrite = runs[k].Files[n].Rewrite || g.Force && u.files[n].ref.Schema < since
			}
		}
	}
	i, job, ok := compaction.PickGroup(groups, o)
	if !ok {
		return false
	}
	w.job, w.group, t.jobs.last = job, w.layout.group(ids[i]), ids[i]
	return true
}

// instantOf returns the latest instant at which the newest run of w and all
// older ones of its group were everything that the tablet held of the group.
func (t *Tablet) instantOf(v *version, w *work) metadata.Instant {
	at := int(w.job.Runs[0])
	if w.relayout || slices.IndexFunc(v.runs, func(u run) bool { return u.group == w.group.ID }) == at {
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

// RequestMajor makes the next Compact a major one, of one locality group, the
// next after that one of another, until all have had theirs.
func (t *Tablet) RequestMajor() { t.majors.ask() }

// pickRuns describes the runs of v to the picker, which knows them by their
// places.
func (t *Tablet) pickRuns(v *version, s *schema.Table, now time.Time) []compaction.Run {
	fams := families(s)
	runs := make([]compaction.Run, len(v.runs))
	for i, u := range v.runs {
		r := compaction.Run{ID: uint64(i), MinSeq: cell.MaxSeq, Files: make([]compaction.File, len(u.files)), Busy: t.quarantined(&v.runs[i])}
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

// rewrite writes the output of a compaction. When it fails, what it has written
// is in w.out too.
func (t *Tablet) rewrite(ctx context.Context, w *work) error {
	v, job := w.from, &w.job
	files := map[uint64]file{}
	for _, u := range v.runs {
		for _, f := range u.files {
			files[f.ref.ID] = f
		}
	}
	w.progress.total.Store(rawBytes(job, files))
	out := t.newOutput(v, w.layout, v.runs[job.Runs[0]].id, t.instantOf(v, w))
	w.out, out.progress = out, &w.progress
	out.pace = t.env.Pace.compaction(t.env.Options.CompactionShare, &w.progress)
	defer out.pace.end()
	if w.relayout {
		out.byFamily(v)
	} else {
		out.groups = []groupOutput{{group: w.group}}
	}
	for i := range job.Parts {
		p := &job.Parts[i]
		if p.Move {
			if err := out.carry(files[p.Inputs[0].Files[0].ID].ref); err != nil {
				return err
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
		if err := out.take(ctx, merge.New(sources), p.Complete); err != nil {
			return err
		}
		t.env.Stats.CompactionIn.Add(p.Bytes())
	}
	if err := out.cut(); err != nil {
		return err
	}
	for _, f := range out.files {
		if !out.carried[f.Object] {
			t.env.Stats.CompactionOut.Add(f.Size)
		}
	}
	return nil
}

// replace puts the output of a job in the place of its inputs. Meanwhile newer
// runs may have come, and files of the inputs may have been dropped whole; what
// was made of those goes by the range tombstone that dropped them.
func (t *Tablet) replace(ctx context.Context, w *work, out *output) error {
	t.change.Lock()
	defer t.change.Unlock()
	v := t.pin()
	if v == nil {
		out.abort()
		return t.gone()
	}
	defer v.release()
	next := v.row.Clone()
	inputs := map[groupRun]bool{}
	for _, i := range w.job.Runs {
		inputs[groupRun{w.from.runs[i].id, w.from.runs[i].group}] = true
	}
	present := map[string]bool{}
	next.Files = slices.DeleteFunc(next.Files, func(f metadata.FileRef) bool {
		present[f.Object] = true
		return inputs[groupRun{f.Run, f.Group}]
	})
	for _, f := range out.files {
		if out.carried[f.Object] && !present[f.Object] {
			continue // dropped whole, and perhaps deleted
		}
		next.Files = append(next.Files, f)
	}
	metadata.SortFiles(next.Files)
	switch {
	case w.job.Kind != compaction.Major:
	case w.relayout:
		next.GroupMajors = nil
		for _, id := range w.layout.ids {
			next.SetMajor(id, w.now.Unix())
		}
	default:
		next.SetMajor(w.group.ID, w.now.Unix())
	}
	t.jobs.narrow(w, nil) // its output is in next
	t.trimRanges(next, v.mems)
	if err := t.env.Meta.CAS(ctx, next); err != nil {
		return t.lost(out, err)
	}
	t.install(func(old *version) *version { return newVersion(t.env, next, old.mems) })
	t.env.decided(out.begun)
	return nil
}

// An output writes the SSTables of one run, or of one in each locality group, in
// key order, beginning a new one where a row begins and the last is long enough.
type output struct {
	t      *Tablet
	layout *layout
	run    uint64
	gc     merge.GC
	// groups are those of layout, or a single one that takes everything.
	groups []groupOutput
	files  []metadata.FileRef
	// cleared is the sequence number of the newest range tombstone that the
	// output has been held against.
	cleared cell.Seq
	// instant is the newest input's.
	instant metadata.Instant
	// pace holds it back while there are requests.
	pace *pacer
	// progress is told how far it has come, unless it is nil.
	progress *progress
	// carried names the files that it did not write, begun all others.
	carried map[string]bool
	begun   []string
}

type groupOutput struct {
	group schema.Group
	// rows says that row markers are written: something older may be in the group.
	rows bool
	w    *tableWriter
	last []byte // row prefix of the last entry written
}

func (t *Tablet) newOutput(v *version, l *layout, run uint64, instant metadata.Instant) *output {
	o := &output{t: t, layout: l, run: run, instant: instant, carried: map[string]bool{}}
	o.gc = merge.GC{Families: map[cell.FamilyID]merge.Rule{}, Now: t.env.Now().UnixMicro(), AsOf: instant.Time}
	for _, f := range l.schema.Families {
		rule := merge.Rule{GCRule: f.GC, New: f.GCVersion > instant.Schema}
		if _, shared := o.gc.Families[f.ID]; shared {
			rule.GCRule = nil // whose cells they are is not known: see schema.Table.Unsound
		}
		o.gc.Families[f.ID] = rule
	}
	o.gc.Ranges = v.rangeDel
	for _, d := range v.row.RangeDel {
		o.cleared = max(o.cleared, d.Seq)
	}
	o.gc.Rows = t.bounds
	return o
}

// byFamily makes o write every entry to the group of its family. What concerns a
// whole row goes to each group, so that none needs to know of another: reads of
// one family look into its group alone, and a group's compactions may drop what
// hides nothing older in the group.
func (o *output) byFamily(v *version) {
	o.groups = make([]groupOutput, len(o.layout.groups))
	for i, g := range o.layout.groups {
		o.groups[i] = groupOutput{group: g, rows: o.layout.mayHold(v, g.ID)}
	}
}

// take is add that closes it.
func (o *output) take(ctx context.Context, it cell.Iterator, complete bool) (err error) {
	defer func() { err = errors.Join(err, it.Close()) }()
	return o.add(ctx, it, complete)
}

// add writes what the garbage collection leaves of it. complete says that no
// entry outside of it is older than one in it.
func (o *output) add(ctx context.Context, it cell.Iterator, complete bool) error {
	o.gc.Complete = complete
	n, done := 0, int64(0)
	for ok := it.First(); ok; ok = it.Next() {
		// Entries in blocks of 32 KiB, so that huge values are not a long time.
		if n++; n == 1024 || done >= 32<<10 {
			if err := ctx.Err(); err != nil {
				return err
			}
			o.progress.advance(done)
			if err := o.pace.worked(ctx, done); err != nil {
				return err
			}
			n, done = 0, 0
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
		if action == merge.Bury {
			e = &cell.Entry{Key: e.Key, Seq: e.Seq, Kind: cell.Delete}
		}
		if err := o.write(ctx, e); err != nil {
			return err
		}
	}
	return o.t.readError(it.Error())
}

// write writes an entry to the group, or the groups, where it belongs.
func (o *output) write(ctx context.Context, e *cell.Entry) error {
	if len(o.groups) == 1 {
		return o.writeTo(ctx, &o.groups[0], e)
	}
	if s := e.Key[len(o.gc.Prefix()):]; len(s) >= 2 {
		f := cell.FamilyID(uint16(s[0])<<8 | uint16(s[1]))
		return o.writeTo(ctx, &o.groups[o.layout.slot(f)], e)
	}
	for i := range o.groups {
		if g := &o.groups[i]; g.rows {
			if err := o.writeTo(ctx, g, e); err != nil {
				return err
			}
		}
	}
	return nil
}

func (o *output) writeTo(ctx context.Context, g *groupOutput, e *cell.Entry) error {
	row := o.gc.Prefix()
	if g.w != nil && int64(g.w.EstimatedSize()) >= o.t.env.Options.FileBytes && !bytes.Equal(row, g.last) {
		if err := o.cutGroup(g); err != nil {
			return err
		}
	}
	if g.w == nil {
		var err error
		if g.w, err = o.newTable(ctx, &g.group); err != nil {
			return err
		}
	}
	g.last = append(g.last[:0], row...)
	return g.w.Add(e)
}

// cut finishes the SSTables that are being written.
func (o *output) cut() error {
	for i := range o.groups {
		if err := o.cutGroup(&o.groups[i]); err != nil {
			return err
		}
	}
	return nil
}

func (o *output) cutGroup(g *groupOutput) error {
	if g.w == nil {
		return nil
	}
	w := g.w
	g.w = nil
	ref, err := w.finish(o.run)
	if err == nil {
		ref.Group, ref.Layout, ref.Schema = g.group.ID, o.layout.schema.Layout, o.layout.schema.Version
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

// abort gives up what work on the tablet has written when it failed, which may be
// nothing.
func (t *Tablet) abort(out *output) {
	if out == nil {
		return
	}
	// Nobody knows in which state a panic has left it.
	_ = t.guard("abort", func() error {
		out.abort()
		return nil
	})
}

// abort gives up. Files that were carried over belong to their old runs still.
func (o *output) abort() {
	for i := range o.groups {
		if g := &o.groups[i]; g.w != nil {
			g.w.Abort()
			g.w = nil
		}
	}
	for _, f := range o.files {
		if !o.carried[f.Object] {
			o.t.env.Remove(f.Object)
		}
	}
	o.files = nil
	o.t.env.decided(o.begun)
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

func (o *output) newTable(ctx context.Context, g *schema.Group) (*tableWriter, error) {
	e := o.t.env
	opts, err := e.tableOptions(g)
	if err != nil {
		return nil, err
	}
	id := e.NewID()
	name := fmt.Sprintf("%016x.sst", id)
	e.begin(name)
	o.begun = append(o.begun, name)
	object, err := e.Objects.Create(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("create SSTable %s: %w", name, err)
	}
	w, err := sstable.NewWriter(object, opts)
	if err != nil {
		object.Abort()
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
