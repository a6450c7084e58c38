package recovery

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/objectstore"
)

// A LockService is one that was lost, or restored from an older snapshot, and the
// parts of the store from which it is recovered.
type LockService struct {
	Lock                   lock.Service
	SSTables, Logs, Copies objectstore.Store
}

// FindCopy returns the copy of the lock service that Restore is to be given, nil if
// the lock service is not older than the store: the newest one in the store, and so
// much more as the store knows (catalog.Copy.Amend), which is which commit logs there
// are, and how far they were trimmed. METADATA and the commit logs have everything
// else, provided that METADATA was not written to another log, or flushed and its log
// trimmed, after the copy. It returns fault.FailedPrecondition if it was, and if a
// process of the cluster is registered.
func (s *LockService) FindCopy(ctx context.Context) (*catalog.Copy, error) {
	copier := &catalog.Copier{Lock: s.Lock, Store: s.Copies}
	if err := copier.Check(ctx); err == nil || !errors.Is(err, fault.FailedPrecondition) {
		return nil, err
	}
	if err := s.checkStopped(ctx); err != nil {
		return nil, err
	}
	cp, err := copier.Newest(ctx)
	if err != nil {
		return nil, err
	}
	if err := cp.Amend(ctx, s.SSTables, s.Logs); err != nil {
		return nil, fmt.Errorf("copy %d of %s: %w", cp.Number, cp.Taken.Format(time.RFC3339), err)
	}
	return cp, nil
}

// Restore makes the lock service hold what a copy of FindCopy has. Whatever was made
// after that is lost, of tables also their rows, but no row of another table.
func (s *LockService) Restore(ctx context.Context, cp *catalog.Copy) error {
	return (&catalog.Copier{Lock: s.Lock, Store: s.Copies}).Restore(ctx, cp)
}

// checkStopped returns fault.FailedPrecondition if a process is registered: after a
// restore, for as long as the session that the snapshot had goes on.
func (s *LockService) checkStopped(ctx context.Context) error {
	servers, _, err := catalog.Servers(ctx, s.Lock)
	if err != nil {
		return err
	}
	for _, r := range servers {
		return fault.New(fault.FailedPrecondition, "tablet server %s is registered: stop all processes, and wait for the end of its session (--ttl)", r.Name)
	}
	if _, err := s.Lock.Get(ctx, catalog.MasterKey); err == nil {
		return fault.New(fault.FailedPrecondition, "a master is registered: stop all processes, and wait for the end of its session (--ttl)")
	} else if !errors.Is(err, fault.NotFound) {
		return err
	}
	return nil
}
