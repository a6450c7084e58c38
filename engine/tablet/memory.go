package tablet

import (
	"context"
	"sync"
	"time"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/request"
)

// Memory is the budget that the memtables of all tablets share. Writers wait
// for room, so that a burst that outruns the disk slows down instead of
// growing the process.
type Memory struct {
	limit int64
	// pressure is called, without a lock, when the use passes half the limit, or
	// changes and leaves writers waiting: the largest memtable should be flushed.
	pressure func()

	mu      sync.Mutex
	used    int64
	waiting chan struct{} // closed when room appears; nil if no write waits
	stalled time.Duration // spent waiting, over all writers
}

// NewMemory returns a budget of limit bytes.
func NewMemory(limit int64, pressure func()) *Memory {
	return &Memory{limit: limit, pressure: pressure}
}

// stallLimit is how long a writer waits for room. Longer than any healthy
// flush takes, shorter than a client's patience.
const stallLimit = 10 * time.Second

// Used returns the bytes in memtables and the time writers have waited.
func (m *Memory) Used() (int64, time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used, m.stalled
}

// Limit returns the budget in bytes.
func (m *Memory) Limit() int64 { return m.limit }

// add changes the use by n bytes.
func (m *Memory) add(n int64) {
	if n == 0 {
		return
	}
	m.mu.Lock()
	m.used += n
	if m.waiting != nil && m.used < m.limit {
		close(m.waiting)
		m.waiting = nil
	}
	press := n > 0 && m.used > m.limit/2 || m.waiting != nil
	m.mu.Unlock()
	if press && m.pressure != nil {
		m.pressure()
	}
}

// wait blocks while the budget is used up. It returns the part of it that is.
func (m *Memory) wait(ctx context.Context) (float64, error) {
	m.mu.Lock()
	if m.used < m.limit {
		part := float64(m.used) / float64(m.limit)
		m.mu.Unlock()
		return part, nil
	}
	start := time.Now()
	defer func() {
		m.mu.Lock()
		m.stalled += time.Since(start)
		m.mu.Unlock()
		request.From(ctx).AddMemoryWait(time.Since(start))
	}()
	timeout := time.NewTimer(stallLimit)
	defer timeout.Stop()
	for m.used >= m.limit {
		if m.waiting == nil {
			m.waiting = make(chan struct{})
		}
		c := m.waiting
		m.mu.Unlock()
		if m.pressure != nil {
			m.pressure()
		}
		select {
		case <-c:
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-timeout.C:
			return 0, &fault.Error{Kind: fault.Exhausted, RetryAfter: time.Second, Reason: "MEMTABLES_FULL",
				Msg: "the server's memtables are full and flushing them does not keep up"}
		}
		m.mu.Lock()
	}
	m.mu.Unlock()
	return 1, nil
}
