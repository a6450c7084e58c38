package catalog

import (
	"context"
	"sync"

	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/engine/fault"
)

// A RollbackGuard is what a process has seen of the lock service. By that it recognizes a
// lock service that was put back to an earlier state, or recovered, while the process ran.
// It reads the number of the newest copy, which only rises, and EpochsKey, which only
// Restore changes. It needs no store: a process without one learns the number from one
// that has it (Observe). It is safe for concurrent use.
type RollbackGuard struct {
	l lock.Service

	mu     sync.Mutex
	known  bool
	number uint64
	epochs int64
}

// NewRollbackGuard returns a RollbackGuard that has seen nothing yet.
func NewRollbackGuard(l lock.Service) *RollbackGuard { return &RollbackGuard{l: l} }

// Check returns fault.FailedPrecondition if the lock service is not the one that was seen
// before. What was read of it before Check returned nil is of a lock service that was not
// put back.
func (a *RollbackGuard) Check(ctx context.Context) error {
	a.mu.Lock()
	known, number, epochs := a.known, a.number, a.epochs
	a.mu.Unlock()
	n, _, err := copyNumber(ctx, a.l)
	if err != nil {
		return err
	}
	e, err := Epochs(ctx, a.l)
	switch {
	case err != nil:
		return err
	case n < number:
		return rolledBackError(n, number)
	case known && e != epochs:
		return fault.New(fault.FailedPrecondition, "the lock service (etcd) was recovered from a copy while this process ran, which cannot go on with what it knew: start it again")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.known {
		a.known, a.epochs = true, e
	}
	a.number = max(a.number, n)
	return nil
}

// Number returns the highest number of a copy that was seen.
func (a *RollbackGuard) Number() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.number
}

// Observe notes that a process with access to the store has seen a copy of a number.
func (a *RollbackGuard) Observe(number uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.number = max(a.number, number)
}
