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
	return t.compactMajor(ctx)
}

// compactMajor asks for a major compaction and compacts until that is done. One
// that is not a major one may come first, or another goroutine do it. It is
// Corruption if a damaged SSTable had to be left out.
func (t *Tablet) compactMajor(ctx context.Context) error {
	n := t.majors.enter()
	defer t.majors.leave()
	for t.majors.done.Load() < n {
		ended, _ := t.jobs.wait()
		more, err := t.compact(ctx, false)
		if err != nil {
			return err
		}
		if more || t.majors.done.Load() >= n {
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
	// waiting counts the callers that wait for their requests, and last is the last
	// of those.
	waiting int
	last    uint64
}

// enter returns the request of a caller that waits for it until leave.
func (m *majors) enter() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waiting++
	m.last = m.asked.Add(1)
	return m.last
}

// leave forgets what failed, when no caller waits any more.
func (m *majors) leave() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.waiting--; m.waiting == 0 {
		m.done.Store(max(m.done.Load(), m.last))
	}
}

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
