package tablet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/compaction"
	"github.com/trestledb/trestle/engine/merge"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/sstable"
)

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
	if err := t.replace(ctx, w, out); errors.Is(err, errStreamBegan) {
		return true, nil // it is still worthwhile
	} else if err != nil {
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
	from    *version         // after the choice without memtables
	now     time.Time        // when it began
	instant metadata.Instant // see instantOf
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
// nil if there is none, or none is to begin.
func (t *Tablet) begin(ctx context.Context, polite bool) (_ *work, err error) {
	t.jobs.begin.Lock()
	defer t.jobs.begin.Unlock()
	others := t.jobs.running()
	if len(others) >= maxJobs || t.jobs.still.Load() > 0 {
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
	w.instant = t.instantOf(v, w)
	w.from = v.onFiles()
	v.release()
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
	w := &work{from: v, now: t.env.now(), layout: l, asked: t.majors.asked.Load()}
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
			// A major compaction that was asked for goes by the current settings.
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
		s, now := t.schema(), t.env.now()
		if t.holdsOnly(v) && t.schema() == s {
			return metadata.Instant{Time: now.UnixMicro(), Schema: s.Version}
		}
	}
	return v.runs[at].files[0].ref.Instant
}

// holdsOnly tells whether the SSTables and range tombstones of v are all there is.
// While the tablet is replayed there is more in the log.
func (t *Tablet) holdsOnly(v *version) bool {
	if !t.started.Load() {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.version == v && !slices.ContainsFunc(v.mems, func(m *mem) bool { return !m.Empty() })
}

// RequestMajor makes the next Compact a major one, of one locality group, the
// next after that one of another, until all have had theirs.
func (t *Tablet) RequestMajor() { t.majors.asked.Add(1) }

// pickRuns describes the runs of v to the picker, which knows them by their
// places.
func (t *Tablet) pickRuns(v *version, s *schema.Table, now time.Time) []compaction.Run {
	fams := families(s)
	runs := make([]compaction.Run, len(v.runs))
	for i, u := range v.runs {
		r := compaction.Run{ID: uint64(i), MinSeq: cell.MaxSeq, Files: make([]compaction.File, len(u.files)), Busy: t.quarantined(&v.runs[i])}
		for k, f := range u.files {
			r.Files[k] = compaction.File{ID: f.ref.ID, Lo: f.ref.Lo, Hi: f.ref.Hi, Bytes: f.ref.Size,
				Entries: int64(f.ref.Entries), Tombstones: int64(f.ref.Tombstones), Garbage: garbage(f, v, fams, s.NextFamily, now),
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
	out := t.newOutput(v, w.layout, v.runs[job.Runs[0]].id, w.instant)
	w.out, out.progress = out, &w.progress
	out.gc.CollectNothing = out.removed != nil && !out.removed.rows && !w.hasNewest()
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
	if err := out.removed.finish(ctx, v.row.FlushedSeq); err != nil {
		return err
	}
	for _, f := range out.files {
		if !out.carried[f.Object] {
			t.env.Stats.CompactionOut.Add(f.Size)
		}
	}
	if c := out.removed; c != nil && len(c.parts) > 0 {
		// What was written while it read. Less is left to do with the change lock held.
		return c.settle(ctx, t, t.write.Lock, t.write.Unlock)
	}
	return nil
}

// hasNewest tells whether no file beside the inputs has something newer than they have.
func (w *work) hasNewest() bool {
	if w.relayout {
		return true
	}
	last := w.job.Runs[len(w.job.Runs)-1]
	for i, u := range w.from.runs[:last] {
		if !slices.Contains(w.job.Runs, uint64(i)) && (u.group == w.group.ID || u.layout != w.layout.schema.Layout) {
			return false
		}
	}
	return true
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
	t.makeRoom(ctx, next, out)
	pass, err := t.placeRemoved(ctx, next, out, false)
	defer pass()
	if err != nil {
		out.abort()
		return err
	}
	if err := t.env.Meta.CAS(ctx, next); err != nil {
		return t.lost(out, err)
	}
	t.install(func(old *version) *version { return newVersion(t.env, next, old.mems) })
	out.named(next)
	return nil
}

// garbage estimates the bytes of f that a major compaction would drop beside
// tombstones.
func garbage(f file, v *version, fams map[cell.FamilyID]*schema.GCRule, next uint32, now time.Time) int64 {
	n := compaction.Garbage(&f.ref.Info, fams, next, now.UnixMicro())
	for _, d := range v.row.RangeDel {
		if deletes(d, f.ref) {
			n += dropped(f, d)
		}
	}
	return min(n, f.ref.Size)
}
