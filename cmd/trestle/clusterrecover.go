package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/objectstore"
)

// recover gives the lock service what the store's newest copy of it has, when it
// was lost or restored from an older snapshot, and so much more as the store
// knows: which commit logs there are, and how far they were trimmed. METADATA
// and the commit logs have everything else, provided that METADATA was not
// written to another log, or flushed and its log trimmed, after the copy: then
// it refuses.
func (o *operator) recover(ctx context.Context, _ []string) error {
	store, err := o.openStore(ctx, "recover")
	if err != nil {
		return err
	}
	copier := &catalog.Copier{Lock: o.n.lock, Store: objectstore.Sub(store, partCopies)}
	if err := copier.Check(ctx); err == nil {
		fmt.Fprintln(o.p.stdout, "the lock service is not older than the store: there is nothing to recover")
		return nil
	} else if !errors.Is(err, fault.FailedPrecondition) {
		return err
	}
	if err := o.nobodyLives(ctx); err != nil {
		return err
	}
	cp, err := copier.Newest(ctx)
	if err != nil {
		return err
	}
	if err := cp.Amend(ctx, objectstore.Sub(store, partSSTables), objectstore.Sub(store, partLogs)); err != nil {
		return fmt.Errorf("copy %d of %s: %w", cp.Number, cp.Taken.Format(time.RFC3339), err)
	}
	if !o.yes {
		fmt.Fprintf(o.p.stdout, "copy %d was taken at %s and has %d items. Whatever was made after that is lost: tables with their rows, column families, backups, policies. "+
			"No row of another table is. Give --yes to go on.\n", cp.Number, cp.Taken.Format(time.RFC3339), len(cp.Items))
		return errors.New("nothing was changed")
	}
	if err := copier.Restore(ctx, cp); err != nil {
		return err
	}
	fmt.Fprintf(o.p.stdout, "the lock service has what it had at %s: start masters and servers, then run `trestle check --online`\n", cp.Taken.Format(time.RFC3339))
	return nil
}

// nobodyLives returns an error if a process is registered: after a restore, for
// as long as the session that the snapshot had goes on.
func (o *operator) nobodyLives(ctx context.Context) error {
	servers, _, err := catalog.Servers(ctx, o.n.lock)
	if err != nil {
		return err
	}
	for _, s := range servers {
		return fmt.Errorf("tablet server %s is registered: stop all processes, and wait for the end of its session (--ttl)", s.Name)
	}
	if _, err := o.n.lock.Get(ctx, catalog.MasterKey); err == nil {
		return errors.New("a master is registered: stop all processes, and wait for the end of its session (--ttl)")
	} else if !errors.Is(err, fault.NotFound) {
		return err
	}
	return nil
}
