package master

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
)

// Run waits until this process is the master and then is, until ctx ends or the
// lock service no longer agrees; it returns why.
func Run(ctx context.Context, o Options) error {
	o = o.WithDefaults()
	var copier *catalog.Copier
	if o.Copies != nil {
		copier = &catalog.Copier{Lock: o.Lock, Store: o.Copies}
		if err := copier.Check(ctx); err != nil {
			return err
		}
	}
	session, err := o.Lock.NewSession(ctx, o.TTL)
	if err != nil {
		return fmt.Errorf("begin a session: %w", err)
	}
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.TTL)
		defer cancel()
		if err := session.Close(end); err != nil {
			o.Log.Warn("end the master's session", "error", err)
		}
	}()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-session.Done():
			cancel(fault.New(fault.Unavailable, "the session with the lock service has ended"))
		case <-ctx.Done():
		}
	}()
	value, err := json.Marshal(catalog.Registration{Name: o.Name})
	if err != nil {
		return err
	}
	item, err := lock.Acquire(ctx, o.Lock, session, Key, value)
	if err != nil {
		return fmt.Errorf("become the master: %w", err)
	}
	before, err := catalog.Epochs(ctx, o.Lock)
	if err != nil {
		return err
	}
	epoch := before + item.Created
	if copier != nil {
		// Before anything else is done: it may have been put back while another was the
		// master.
		if err := copier.Take(ctx, time.Now()); errors.Is(err, fault.FailedPrecondition) {
			return err
		} else if err != nil {
			o.Log.Warn("the lock service was not copied, and will be in a while", "error", err)
		}
	}
	age := catalog.NewRollbackGuard(o.Lock)
	if err := age.Check(ctx); err != nil {
		return err
	}
	o.Log.Info("this process is the master", "name", o.Name, "epoch", epoch)
	m := &master{o: o, copier: copier, age: age, term: ctx, endTerm: cancel, epoch: epoch, meta: metastore.New(o.Lock, o.Dialer).ForMaster(epoch),
		missing: map[uint64]time.Time{}, merging: map[metadata.TabletID]time.Time{}, pendingSince: map[[2]int64]time.Time{}, busy: map[string]bool{}, lastLogged: map[string]logged{}, moving: map[metadata.TabletID]bool{}, wake: make(chan struct{}, 1)}
	o.Counters.Terms.Add(1)
	o.Counters.Leading.Store(1)
	defer o.Counters.end()
	var watching sync.WaitGroup
	for _, prefix := range []string{catalog.ServersPrefix, catalog.TablesPrefix, catalog.DrainingPrefix, catalog.PinsPrefix} {
		watching.Go(func() { m.watch(ctx, prefix, m.wake) })
	}
	watching.Go(func() { m.sweepAlways(ctx) })
	if o.Attend > 0 {
		watching.Go(func() { m.attendAlways(ctx) })
	}
	if copier != nil {
		watching.Go(func() { m.copyAlways(ctx, copier) })
	}
	m.run(ctx)
	watching.Wait()
	m.calls.Wait()
	return context.Cause(ctx)
}
