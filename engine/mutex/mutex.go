//go:build !sim

package mutex

import "sync"

// Mutex is a sync.Mutex.
type Mutex = sync.Mutex
