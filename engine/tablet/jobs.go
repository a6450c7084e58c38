package tablet

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/mutex"
)

// maxJobs is how many compactions of one tablet are under way at most: a long
// one, and one of what has been flushed since it began.
const maxJobs = 2

// jobs are the compactions of a tablet that are under way.
type jobs struct {
	// begin is held while one is chosen.
	begin mutex.Mutex
	// last is the locality group of the last one chosen, and overMemory says that
	// not all of the tablet is in memory that should be; begin guards them.
	last       uint16
	overMemory bool

	// fruitless is the state of the version that no compaction can help, though
	// flushes wait.
	fruitless atomic.Uint64
	// later says that a long one was left for later.
	later atomic.Bool
	// held says that flushes wait for compactions, and still counts the callers of
	// quiesce that want none to begin. It grows with begin held.
	held  atomic.Bool
	still atomic.Int32

	mu    sync.Mutex
	works []*work
	ended chan struct{} // closed when one ends, or may begin again; nil if no caller waits
}

// groupRun names a run in a METADATA row.
type groupRun struct {
	run   uint64
	group uint16
}

// running returns the compactions that are under way.
func (j *jobs) running() []*work {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.works)
}

// add adds one. The caller holds the change lock.
func (j *jobs) add(w *work) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.works = append(j.works, w)
}

// narrow says that w rewrites no other files than these.
func (j *jobs) narrow(w *work, files []*metadata.FileRef) {
	j.mu.Lock()
	defer j.mu.Unlock()
	w.files = files
}

// remove takes one away again. What was only thought of has not ended: a
// caller that waits for a compaction to end would think of one again, at once.
func (j *jobs) remove(w *work, thought bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.works = slices.DeleteFunc(j.works, func(x *work) bool { return x == w })
	if !thought {
		j.wakeLocked()
	}
}

func (j *jobs) wakeLocked() {
	if j.ended != nil {
		close(j.ended)
		j.ended = nil
	}
}

// wait returns a channel that is closed when the next compaction ends, or may begin
// again after quiesce, and how many are under way.
func (j *jobs) wait() (<-chan struct{}, int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.ended == nil {
		j.ended = make(chan struct{})
	}
	return j.ended, len(j.works)
}

// files returns those that are being rewritten.
func (j *jobs) files() []*metadata.FileRef {
	j.mu.Lock()
	defer j.mu.Unlock()
	var out []*metadata.FileRef
	for _, w := range j.works {
		out = append(out, w.files...)
	}
	return out
}

// takes tells whether u, a run of some version, is an input of w.
func (w *work) takes(u *run) bool {
	return slices.ContainsFunc(w.job.Runs, func(i uint64) bool {
		return w.from.runs[i].id == u.id && w.from.runs[i].group == u.group
	})
}

// quiesce waits until no compaction is under way and keeps it so until the caller
// calls resume. Others find nothing to compact meanwhile: they have other tablets.
func (t *Tablet) quiesce() (resume func()) {
	t.jobs.begin.Lock()
	t.jobs.still.Add(1)
	t.jobs.begin.Unlock()
	for {
		ended, n := t.jobs.wait()
		if n == 0 {
			return t.resume
		}
		<-ended
	}
}

// resume ends what quiesce began.
func (t *Tablet) resume() {
	t.jobs.still.Add(-1)
	t.jobs.mu.Lock()
	t.jobs.wakeLocked()
	t.jobs.mu.Unlock()
	t.env.Work(t)
}

// Room tells whether the tablet may get another run now. While compactions are
// under way, or will be, that leave fewer than Options.TargetRuns, it is better
// to wait for them: a read costs less for a memtable more.
func (t *Tablet) Room() bool {
	t.mu.Lock()
	v := t.mu.version
	room := v == nil || v.depth < t.env.Options.TargetRuns || len(v.mems) == 1
	if !room {
		_, n := t.jobs.wait()
		room = t.jobs.still.Load() > 0 || n == 0 && t.jobs.fruitless.Load() == v.state
	}
	t.mu.Unlock()
	t.jobs.held.Store(!room)
	return room
}

// Held tells whether flushes wait for room.
func (t *Tablet) Held() bool { return t.waiting() > 0 }

// Delayed tells whether writers wait for compactions.
func (t *Tablet) Delayed() bool { return t.delayed.Load() > 0 }

// Behind returns how many runs there would be if no flush waited.
func (t *Tablet) Behind() int { return t.Runs() + t.waiting() }

// waiting returns how many memtables wait for room.
func (t *Tablet) waiting() int {
	if !t.jobs.held.Load() {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.version == nil {
		return 0
	}
	return len(t.mu.version.mems) - 1
}

// heldDebt returns how much of the memory that a tablet may use whose flushes
// wait is used. It goes from 0, when one memtable waits and the next is half
// full, to 1, when two wait.
func (t *Tablet) heldDebt() float64 {
	n := t.waiting()
	if n == 0 {
		return 0
	}
	filled := min(1, float64(t.MemtableBytes())/float64(t.env.Options.MemtableBytes))
	return 2*(float64(n-1)+filled) - 1
}

// Later tells whether a long compaction was left for later, since it was last
// asked.
func (t *Tablet) Later() bool { return t.jobs.later.Swap(false) }
