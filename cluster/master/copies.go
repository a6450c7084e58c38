package master

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/engine/fault"
)

// checkNotRolledBack returns an error if the lock service was put back to an earlier
// state: what it does not know of is not garbage then.
func (m *master) checkNotRolledBack(ctx context.Context) error {
	if m.copier == nil {
		return nil
	}
	return m.copier.Check(ctx)
}

// copyAlways copies the lock service into the store. A lock service that is
// older than the store ends the term.
func (m *master) copyAlways(ctx context.Context, c *catalog.Copier) {
	tick := time.NewTicker(m.o.Copy)
	defer tick.Stop()
	// What cannot be found out from the store is copied soon.
	soon := make(chan struct{}, 1)
	var watching sync.WaitGroup
	defer watching.Wait()
	for _, prefix := range []string{metastore.RootPrefix, catalog.TablesPrefix, catalog.BackupsPrefix} {
		watching.Go(func() { m.watch(ctx, prefix, soon) })
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-soon:
			select { // with what changes together with it
			case <-ctx.Done():
				return
			case <-time.After(min(m.o.Copy, 200*time.Millisecond)):
			}
		}
		err := c.Take(ctx, time.Now())
		switch {
		case err == nil || ctx.Err() != nil:
		case errors.Is(err, fault.FailedPrecondition):
			m.endTerm(err)
		default:
			m.o.Log.Warn("the lock service was not copied, and will be in a while", "error", err)
		}
	}
}
