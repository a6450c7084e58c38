package views

import (
	"context"

	"github.com/trestledb/trestle/engine/budget"
	"github.com/trestledb/trestle/engine/fault"
)

// passBytes is what a pass over rows may hold: their keys, the batch, what the batch means
// to rows of the view, what the one before means, and contributions that were read ahead.
const passBytes = 3*commitBytes + maxKeyBytes + portionBytes

// Memory bounds what all Workers of a process hold. The zero Memory has no bound. Beyond it each
// Worker whose view cannot be written to holds one entry of its outbox.
type Memory struct {
	// Looks at all rows take long, so they have a part of their own. Nobody waits for
	// memory of keys or entries while it holds some of that.
	keys, entries, passes, scans *budget.Budget
}

// NewMemory returns a Memory of limit bytes.
func NewMemory(limit int64) *Memory {
	return &Memory{keys: budget.New(limit / 8), entries: budget.New(limit / 4), passes: budget.New(limit * 3 / 8), scans: budget.New(limit / 4)}
}

// hold waits for the memory of a pass, and returns what gives it back.
func hold(ctx context.Context, b *budget.Budget) (release func(), err error) {
	n := int64(passBytes)
	if b != nil {
		n = min(n, b.Limit())
	}
	for {
		err := b.Acquire(ctx, n)
		if err == nil {
			return func() { b.Release(n) }, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if fault.KindOf(err) != fault.Exhausted {
			return nil, err
		}
	}
}

// spare tells whether there is room for another batch.
func spare(b *budget.Budget) bool { return b == nil || b.Limit()-b.Used() >= commitBytes }
