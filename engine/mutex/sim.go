//go:build sim

package mutex

import "sync"

// Mutex is a mutex for which testing/synctest knows that goroutines wait.
type Mutex struct {
	mu   sync.Mutex
	wait sync.Cond
	held bool
}

// Lock takes the mutex.
func (m *Mutex) Lock() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.wait.L == nil {
		m.wait.L = &m.mu
	}
	for m.held {
		m.wait.Wait()
	}
	m.held = true
}

// TryLock takes the mutex if it is free.
func (m *Mutex) TryLock() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.held {
		return false
	}
	m.held = true
	return true
}

// Unlock gives the mutex back.
func (m *Mutex) Unlock() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.held {
		panic("unlock of a mutex that is free")
	}
	m.held = false
	if m.wait.L != nil {
		m.wait.Signal()
	}
}
