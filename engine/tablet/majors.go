package tablet

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/trestledb/trestle/engine/fault"
)

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
