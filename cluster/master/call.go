package master

import (
	"context"
	"time"
)

// call makes a call to a tablet server in the background, unless one of that name is under
// way. It starts a round when the call is done.
func (m *master) call(name string, do func(context.Context) error) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.busy[name] {
		return false
	}
	m.busy[name] = true
	m.calls.Go(func() {
		// The server goes on with it by itself, so nothing is lost with this master.
		ctx, cancel := context.WithTimeout(m.term, time.Minute)
		defer cancel()
		m.o.Counters.Calls.Add(1)
		if err := do(ctx); err != nil && m.term.Err() == nil {
			m.o.Counters.CallsFailed.Add(1)
			if m.shouldLog(name, err) {
				m.o.Log.Warn("a tablet server could not do what the master asked for, and is asked again", "call", name, "error", err)
			}
			select {
			case <-time.After(m.o.Interval / 10):
			case <-m.term.Done():
			}
		}
		m.mu.Lock()
		delete(m.busy, name)
		m.mu.Unlock()
		m.lookSoon()
	})
	return true
}

// retellEvery is how often the same failure of a call is logged.
const retellEvery = 10 * time.Second

// A logged is a failure that was logged.
type logged struct {
	what string
	when time.Time
}

// shouldLog tells whether the failure of a call is to be logged: what fails is called
// again several times a second.
func (m *master) shouldLog(call string, err error) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t := m.lastLogged[call]; t.what == err.Error() && time.Since(t.when) < retellEvery {
		return false
	}
	m.lastLogged[call] = logged{err.Error(), time.Now()}
	return true
}

// isBusy tells whether a call of a name is under way: another of that name would
// not be made.
func (m *master) isBusy(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.busy[name]
}
