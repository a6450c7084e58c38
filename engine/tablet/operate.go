package tablet

import (
	"context"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/compaction"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

// progress is how far a compaction has come, in bytes of keys and values read.
type progress struct{ done, total atomic.Int64 }

// advance notes that n bytes more were read. A flush has no progress.
func (p *progress) advance(n int64) {
	if p != nil {
		p.done.Add(n)
	}
}

// left returns how many bytes are still to be read.
func (p *progress) left() int64 { return p.total.Load() - p.done.Load() }

// rawBytes returns how many bytes of keys and values a job reads.
func rawBytes(job *compaction.Job, files map[uint64]file) int64 {
	var total int64
	for i := range job.Parts {
		p := &job.Parts[i]
		for _, in := range p.Inputs {
			for _, f := range in.Files {
				if !p.Move {
					total += int64(files[f.ID].ref.RawBytes)
				}
			}
		}
	}
	return total
}

// Progress returns how many bytes of keys and values, of how many, the
// compactions that are under way have read; zeros if there is none.
func (t *Tablet) Progress() (done, total int64) {
	for _, w := range t.jobs.running() {
		n := w.progress.total.Load()
		done, total = done+min(w.progress.done.Load(), n), total+n
	}
	return done, total
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

// CompactMajor flushes the tablet and does a major compaction.
func (t *Tablet) CompactMajor(ctx context.Context) error {
	if err := t.FlushAll(ctx); err != nil {
		return err
	}
	t.RequestMajor()
	return t.compactRequested(ctx)
}

// compactRequested compacts until no major compaction is asked for any more. One
// that is not a major one may come first, or another goroutine do it. It is
// Corruption if a damaged SSTable had to be left out.
func (t *Tablet) compactRequested(ctx context.Context) error {
	for t.majors.pending() {
		ended, _ := t.jobs.wait()
		more, err := t.compact(ctx, false)
		if err != nil {
			t.majors.forget()
			return err
		}
		if more || !t.majors.pending() {
			continue
		}
		select {
		case <-ended: // those that are under way come first
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := t.Failure(); err != nil {
		return err // it was the compaction of another goroutine
	}
	if names := t.Quarantined(); len(names) > 0 {
		return fault.New(fault.Corruption, "compactions of %v leave out what is damaged: %s", t.Name(), strings.Join(names, ", "))
	}
	return nil
}

// majors are the major compactions that were asked for: each request is for all
// locality groups, which are compacted one by one.
type majors struct {
	asked, done atomic.Uint64 // requests so far, and those that need nothing more

	mu sync.Mutex
	// groups has the last request done in each group.
	groups map[uint16]uint64
}

func (m *majors) ask()          { m.asked.Add(1) }
func (m *majors) pending() bool { return m.done.Load() < m.asked.Load() }
func (m *majors) forget()       { m.done.Store(m.asked.Load()) }

// wants tells whether a group is to be compacted for a request up to n.
func (m *majors) wants(group uint16, n uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.groups[group] < n && m.done.Load() < n
}

// did notes that requests up to n need nothing more in a group.
func (m *majors) did(group uint16, n uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.groups == nil {
		m.groups = map[uint16]uint64{}
	}
	m.groups[group] = max(m.groups[group], n)
}

// finish notes that requests up to n need nothing more.
func (m *majors) finish(n uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done.Store(max(m.done.Load(), n))
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

// A State is what an operator wants to know of a tablet.
type State struct {
	Bytes, MemtableBytes int64 // of SSTables and memtables together; of memtables
	Runs, Files          int
	LastMajor            time.Time // of the locality group where it is longest ago; zero if there was none
}

// State returns the tablet's state; ok is false if it is closed.
func (t *Tablet) State() (s State, ok bool) {
	v := t.pin()
	if v == nil {
		if v = t.pinStopped(); v == nil {
			return s, false
		}
	}
	defer v.release()
	s.Bytes, s.Runs, s.Files = v.bytes(), len(v.runs), len(v.row.Files)
	for _, m := range v.mems {
		if !m.Empty() {
			s.MemtableBytes += m.Bytes()
		}
	}
	major := int64(math.MaxInt64)
	for _, u := range v.runs {
		major = min(major, v.row.Major(u.group))
	}
	if len(v.runs) == 0 {
		major = v.row.MajorTime
	}
	if major > 0 {
		s.LastMajor = time.Unix(major, 0).UTC()
	}
	return s, true
}

// Verify reads every SSTable of the tablet from storage, past the cache, and
// checks all checksums. It calls each with every object and what is wrong with
// it, or nil; an error of each ends it.
func (t *Tablet) Verify(ctx context.Context, each func(object string, bytes int64, err error) error) error {
	v := t.pin()
	if v == nil {
		return t.gone()
	}
	defer v.release()
	for _, u := range v.runs {
		for _, f := range u.files {
			err := t.env.verify(ctx, f.object)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err := each(f.name, f.ref.Size, t.readError(err)); err != nil {
				return err
			}
		}
	}
	return nil
}

// An Info is what an operator is told of a tablet.
type Info struct {
	Table  string // full name
	Tablet metadata.TabletID
	Rows   row.Range
	State
	// Server names the tablet server that has the tablet, in a cluster; empty if
	// none has.
	Server string
	// Redo is the place in the commit log from which on a restart would replay
	// for this tablet, as "segment:offset", "" if nothing would be.
	Redo string
	// Load is per second, lately. It is zero when first asked for.
	Load Load
}

// An ObjectDamage is an SSTable that is not what was written.
type ObjectDamage struct {
	Table  string
	Tablet metadata.TabletID
	Rows   row.Range // of the tablet
	Object string
	Err    error
}

// A GroupInfo is what an operator is told of a locality group.
type GroupInfo struct {
	schema.Group
	Families []string
	// The sums over all tablets; Runs is the largest of any.
	GroupState
}

// A GroupSum adds up the states of the locality groups of a table's tablets.
type GroupSum struct {
	groups []GroupInfo
	before GroupInfo
}

// NewGroupSum returns the sum of no tablets.
func NewGroupSum(t *schema.Table) *GroupSum {
	s := new(GroupSum)
	for _, g := range t.AllGroups() {
		s.groups = append(s.groups, GroupInfo{Group: g, Families: t.FamiliesOf(g.ID)})
	}
	return s
}

// Add adds what GroupStates returned of a tablet.
func (s *GroupSum) Add(states map[uint16]GroupState, earlier GroupState) {
	s.before.add(earlier)
	for id, state := range states {
		to := &s.before // of a group that was deleted
		for i := range s.groups {
			if s.groups[i].ID == id {
				to = &s.groups[i]
			}
		}
		to.add(state)
	}
}

func (s *GroupState) add(o GroupState) {
	s.Bytes += o.Bytes
	s.Resident += o.Resident
	s.Files += o.Files
	s.Runs = max(s.Runs, o.Runs)
}

// Groups returns the locality groups, the default one first. A last one without
// a name is what was written under an earlier assignment of families, if anything
// is left of that.
func (s *GroupSum) Groups() []GroupInfo {
	if s.before.Files > 0 {
		return append(s.groups, s.before)
	}
	return s.groups
}
