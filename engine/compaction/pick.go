package compaction

import (
	"bytes"
	"slices"
	"time"
)

// Pick returns the next compaction of runs (newest first), or false if there is
// nothing to do. It depends on nothing but its arguments. Carrying out what it
// returns, again and again, comes to an end.
func Pick(runs []Run, o Options) (Job, bool) {
	o = o.WithDefaults()
	due := false // a major compaction is, once those that are under way have ended
	if reason := majorReason(runs, &o); reason != "" {
		j := newJob(Major, reason, runs, 0, len(runs), &o)
		if len(runs) > 1 || j.RewriteBytes() > 0 {
			due = compacting(runs)
			if !due && (!o.Short || j.RewriteBytes() < o.Long) {
				return j, true
			}
		}
	}
	return merging(runs, due, &o)
}

// compacting tells whether a compaction of one of runs is under way.
func compacting(runs []Run) bool {
	return slices.ContainsFunc(runs, func(r Run) bool { return r.Compacting })
}

// A Group is what Pick goes by in one locality group of a tablet. The groups are
// compacted independently: none holds an older entry of another's keys, as what
// concerns whole rows is in each.
type Group struct {
	Runs []Run // newest first
	// LastMajor, Force and Major are those of Options.
	LastMajor time.Time
	Force     bool
	Major     bool
}

// PickGroup returns the next compaction in one of groups, and that group's
// place. A group that reads suffer from most, by having more than
// Options.MaxRuns with those that wait, comes first; else they come in the order
// given.
func PickGroup(groups []Group, o Options) (int, Job, bool) {
	o = o.WithDefaults()
	order := make([]int, len(groups))
	for i := range order {
		order[i] = i
	}
	excess := func(i int) int { return max(0, len(groups[i].Runs)+o.Waiting-o.MaxRuns) }
	slices.SortStableFunc(order, func(a, b int) int { return excess(b) - excess(a) })
	for _, i := range order {
		o.LastMajor, o.Force, o.Major = groups[i].LastMajor, groups[i].Force, groups[i].Major
		if job, ok := Pick(groups[i].Runs, o); ok {
			return i, job, true
		}
	}
	return 0, Job{}, false
}

// Relayout returns a major compaction of all runs of a tablet (newest first),
// whatever their groups, that leaves no file as it is: families have gone to
// other groups.
func Relayout(runs []Run, o Options) Job {
	o = o.WithDefaults()
	runs = slices.Clone(runs)
	for i := range runs {
		runs[i].Files = slices.Clone(runs[i].Files)
		for k := range runs[i].Files {
			runs[i].Files[k].Rewrite = true
		}
	}
	return newJob(Major, "layout", runs, 0, len(runs), &o)
}

// majorReason returns why all runs should be compacted, or "". Some of them may
// be compacted already.
func majorReason(runs []Run, o *Options) string {
	if o.Major {
		return ""
	}
	var total, entries, dirty, sure int64 // of the runs that are older, to begin with
	rewrite, clean, dense, spent := false, true, false, false
	for i := len(runs) - 1; i >= 0; i-- {
		if runs[i].Busy {
			return ""
		}
		olderBytes, olderEntries := total, entries
		var hidden int64
		for k := range runs[i].Files {
			f := &runs[i].Files[k]
			if f.Tombstones > 0 && olderEntries > 0 {
				// What a tombstone deletes is, for all we know, an entry like others
				// in older runs.
				hidden += int64(float64(f.Tombstones) * float64(olderBytes) / float64(olderEntries))
			}
			total += f.Bytes
			entries += f.Entries
			dirty += f.dirty()
			sure += f.dirty() - min(f.Garbage, f.dirty())
			rewrite = rewrite || f.Rewrite
			clean = clean && f.clean()
			dense = dense || f.dense(o)
			spent = spent || f.spent(o)
		}
		hidden = min(hidden, olderBytes)
		dirty += hidden
		sure += hidden
	}
	dirty, sure = min(dirty, total), min(sure, total)
	age := o.Now.Sub(o.LastMajor)
	if age < -o.MajorPause {
		// The clock was wrong then, or is now. Waiting until that time would be for ever.
		age = max(o.MajorEvery, o.MajorPause, o.DensePause)
	}
	limit := int64(o.MajorRatio * float64(total))
	switch {
	case total == 0:
	case o.Force:
		return "on demand"
	case rewrite:
		return "rewrite"
	case sure > limit:
		return "tombstones"
	case o.LastMajor.IsZero():
		if dirty > limit {
			return "garbage"
		}
	case (dirty > limit || spent) && age >= o.MajorPause:
		return "garbage"
	case dense && age >= o.DensePause:
		return "dense tombstones"
	case !clean && age >= o.MajorEvery:
		return "age"
	}
	return ""
}

// demand returns the growth that a window must have when there are n runs.
func demand(n int, o *Options) float64 {
	switch {
	case n > o.MaxRuns:
		return 0
	case n == o.MaxRuns:
		return min(2, o.Growth)
	case n == o.MaxRuns-1:
		return (min(2, o.Growth) + o.Growth) / 2
	}
	return o.Growth
}

// besideGrowth is the least growth of a window beside a compaction that is
// under way, however many runs there are. With less it is better to wait for
// that one, which has them all after it.
const besideGrowth = 1.5

// longRuns is how many runs fewer there are when a long compaction is begun.
const longRuns = 2

// needs returns the growths that a window must have: if it is short, and if it is
// long.
func needs(runs []Run, due bool, o *Options) (short, long float64) {
	n := len(runs) + o.Waiting
	short, long = demand(n, o), demand(n+longRuns, o)
	if short > 0 {
		long = max(long, demand(o.MaxRuns, o))
	}
	if compacting(runs) {
		if due && short > 0 {
			return free + 1, free + 1 // else the major compaction's turn may never come
		}
		short, long = max(short, besideGrowth), max(long, besideGrowth)
	}
	if o.Short {
		long = free + 1
	}
	return short, long
}

// merging returns the best window of runs, if one is good enough. due says that
// a major compaction waits.
func merging(runs []Run, due bool, o *Options) (Job, bool) {
	short, long := needs(runs, due, o)
	// The windows of hundreds of runs, as merges of tablets can leave them, are
	// too many to look at: the newest will do, again and again.
	among := runs[:min(len(runs), 4*o.MaxRuns)]
	files := sorted(among)
	bestLo, bestHi, bestGrowth := 0, 0, 0.0
	for lo := range among {
		for hi := lo + 2; hi <= len(among) && !among[hi-1].taken() && !among[lo].taken(); hi++ {
			g, bytes := growth(files, lo, hi)
			if bytes < o.Long && g < short || bytes >= o.Long && g < long {
				continue
			}
			// Of equal growth take the widest window: it removes most runs.
			if bestHi == 0 || g > bestGrowth || g == bestGrowth && hi-lo > bestHi-bestLo {
				bestLo, bestHi, bestGrowth = lo, hi, g
			}
		}
	}
	if bestHi == 0 {
		return Job{}, false
	}
	reason := "growth"
	switch {
	case bestGrowth == free:
		reason = "no overlap"
	case short == 0:
		reason = "too many runs"
	}
	return newJob(Merging, reason, runs, bestLo, bestHi, o), true
}

// A source is a file and where it is from.
type source struct {
	run  int // index in the list of runs
	file *File
}

// sorted returns the files of all runs, ascending by their first rows.
func sorted(runs []Run) []source {
	var files []source
	for i := range runs {
		for k := range runs[i].Files {
			files = append(files, source{i, &runs[i].Files[k]})
		}
	}
	slices.SortStableFunc(files, func(a, b source) int { return bytes.Compare(a.file.Lo, b.file.Lo) })
	return files
}

// free is the growth of a window that rewrites nothing, except to join files.
const free = 1e18

// growth returns the growth of the window [lo, hi) of runs, and how many bytes
// are rewritten.
func growth(files []source, lo, hi int) (float64, int64) {
	var buf [32]int64
	per := append(buf[:0], make([]int64, hi-lo)...)
	var total int64
	var prev source // alone in its group so far if prev.file != nil
	var end []byte
	started := false
	add := func(s source) {
		per[s.run-lo] += s.file.Bytes
		total += s.file.Bytes
	}
	for _, s := range files {
		if s.run < lo || s.run >= hi {
			continue
		}
		if !started || bytes.Compare(s.file.Lo, end) > 0 {
			started, prev, end = true, s, s.file.Hi
			if s.file.Rewrite {
				add(s)
				prev.file = nil
			}
			continue
		}
		if prev.file != nil {
			add(prev)
			prev.file = nil
		}
		add(s)
		if bytes.Compare(s.file.Hi, end) > 0 {
			end = s.file.Hi
		}
	}
	if total == 0 {
		return free, 0
	}
	return float64(total) / float64(slices.Max(per)), total
}

// newJob cuts the window [lo, hi) of runs into parts.
func newJob(kind Kind, reason string, runs []Run, lo, hi int, o *Options) Job {
	j := Job{Kind: kind, Reason: reason}
	window := runs[lo:hi]
	for i := range window {
		j.Runs = append(j.Runs, window[i].ID)
	}
	var groups []group
	var end []byte
	for i, s := range sorted(window) {
		if i == 0 || bytes.Compare(s.file.Lo, end) > 0 {
			groups = append(groups, group{})
			end = nil
		}
		g := &groups[len(groups)-1]
		g.files = append(g.files, s)
		g.bytes += s.file.Bytes
		if end == nil || bytes.Compare(s.file.Hi, end) > 0 {
			end = s.file.Hi
		}
	}
	for i := range groups {
		g := &groups[i]
		f := g.files[0].file
		g.move = len(g.files) == 1 && !f.Rewrite && (kind == Merging || !f.dirtyFor(reason, o))
	}
	for _, g := range joinSmall(groups, o.SmallFile) {
		p := Part{Move: g.move}
		slices.SortStableFunc(g.files, func(a, b source) int { return a.run - b.run })
		for i, s := range g.files {
			if i == 0 || g.files[i-1].run != s.run {
				p.Inputs = append(p.Inputs, Input{Run: window[s.run].ID})
			}
			in := &p.Inputs[len(p.Inputs)-1]
			in.Files = append(in.Files, *s.file)
		}
		p.Complete = complete(&p, runs[hi:])
		j.Parts = append(j.Parts, p)
	}
	return j
}

// dirtyFor tells whether a major compaction for that reason rewrites f though
// it overlaps nothing. Compactions for much garbage go after the files that
// have it; the others leave nothing behind.
func (f *File) dirtyFor(reason string, o *Options) bool {
	switch reason {
	case "rewrite":
		return f.Rewrite
	case "dense tombstones":
		return f.dense(o)
	case "garbage", "tombstones":
		return float64(f.dirty()) > o.MajorRatio/2*float64(f.Bytes)
	}
	return !f.clean()
}

// complete tells whether no file of the older runs overlaps p.
func complete(p *Part, older []Run) bool {
	lo, hi := p.first(), p.last()
	for i := range older {
		fs := older[i].Files
		at, _ := slices.BinarySearchFunc(fs, lo, func(f File, lo []byte) int {
			if bytes.Compare(f.Hi, lo) < 0 {
				return -1
			}
			return 1
		})
		if at < len(fs) && bytes.Compare(fs[at].Lo, hi) <= 0 {
			return false
		}
	}
	return true
}

// A group is files that overlap each other and no others.
type group struct {
	files []source
	bytes int64
	move  bool
}

// joinSmall joins small files, which could stay as they are, to their
// neighbours. It does so where that at least doubles the file that a byte is
// in, or is no more work than what the neighbour costs anyway. Ascending loads
// would otherwise leave a file per flush forever.
func joinSmall(groups []group, small int64) []group {
	var out []group
	for i := 0; i < len(groups); {
		if !groups[i].small(small) {
			out = append(out, groups[i])
			i++
			continue
		}
		end := i
		for end < len(groups) && groups[end].small(small) {
			end++
		}
		out = joinDoubling(out, groups[i:end])
		i = end
	}
	// A small file between rewritten groups would cut their output in two.
	for i := range out {
		if !out[i].small(small) {
			continue
		}
		if i > 0 && !out[i-1].move && out[i-1].bytes >= out[i].bytes ||
			i+1 < len(out) && !out[i+1].move && out[i+1].bytes >= out[i].bytes {
			out[i].move = false
		}
	}
	return out
}

func (g *group) small(limit int64) bool { return g.move && g.bytes < limit }

// joinDoubling appends gs to out, joining all of them if none has more than
// half of the bytes, and else treating what is on either side of the largest
// alike.
func joinDoubling(out, gs []group) []group {
	if len(gs) == 0 {
		return out
	}
	var sum int64
	largest := 0
	for i := range gs {
		sum += gs[i].bytes
		if gs[i].bytes > gs[largest].bytes {
			largest = i
		}
	}
	if len(gs) > 1 && sum >= 2*gs[largest].bytes {
		var all group
		for _, g := range gs {
			all.files = append(all.files, g.files...)
			all.bytes += g.bytes
		}
		return append(out, all)
	}
	out = joinDoubling(out, gs[:largest])
	out = append(out, gs[largest])
	return joinDoubling(out, gs[largest+1:])
}
