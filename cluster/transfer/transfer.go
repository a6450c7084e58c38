package transfer

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/tabletserver"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/objectstore"
)

// A Side is one end of a transfer.
type Side struct {
	// Name is what operators call it, such as `data directory /srv/a`.
	Name string
	Lock lock.Service
	// Objects keeps SSTables.
	Objects objectstore.Store
	// Logs and Copies keep commit logs and copies of the lock service. A data
	// directory has none: it has Private.
	Logs, Copies objectstore.Store
	// Private says where a data directory has its commit logs.
	Private *tabletserver.Private
	// TTL is that of the sessions of the transfer, and within which a gateway of a
	// cluster has heard of it. Default 5 s.
	TTL time.Duration
}

// Options are the settings of Run.
type Options struct {
	// Command is the command that errors tell the operator to run again.
	Command string
	// AtOnce is how many SSTables are copied at a time. Default 8.
	AtOnce int
	// Progress, if not nil, is called with how many bytes of SSTables are
	// there, of how many. Calls come one at a time.
	Progress func(bytes, of int64)
	// Log takes what happens. Default: nothing.
	Log *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.AtOnce == 0 {
		o.AtOnce = 8
	}
	if o.Progress == nil {
		o.Progress = func(int64, int64) {}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// A Result describes the content of the target.
type Result struct {
	Tables, Tablets, Backups, SSTables, Items int
	Bytes                                     int64 // of SSTables
	// Again says that an earlier run had completed the transfer.
	Again bool
}

// Run copies everything from one side to the other, which is empty, or goes on with a
// transfer between the two that was interrupted. One that was interrupted on its way to
// another target is given up, and that target is never served. It is
// fault.FailedPrecondition if a process serves either side, the target holds something
// else, or the source was given away for good. It is fault.Corruption if something of the
// source is damaged.
func Run(ctx context.Context, from, to Side, o Options) (r Result, err error) {
	o = o.withDefaults()
	from, to = from.withDefaults(), to.withDefaults()
	source, sourceVersion, err := catalog.ReadTransfer(ctx, from.Lock)
	if err != nil {
		return r, err
	}
	target, targetVersion, err := catalog.ReadTransfer(ctx, to.Lock)
	if err != nil {
		return r, err
	}
	if !source.Source {
		if err := source.Check(); err != nil { // half a copy
			return r, fmt.Errorf("%s: %w", from.Name, err)
		}
		source = catalog.Transfer{}
	}
	mine := source.ID != "" && target.ID == source.ID && !target.Source
	switch {
	case source.State == catalog.TransferDone:
		return r, fmt.Errorf("%s: %w", from.Name, source.Check())
	case mine && target.State == catalog.TransferComplete:
		r.Again = true
		return r, nil
	case source.State == catalog.TransferComplete && !mine:
		return r, fault.New(fault.FailedPrecondition, "%s: %w. %s does not know of that transfer", from.Name, source.Check(), to.Name)
	}
	// A process that serves tables has said so in the lock service before it looks for the
	// marks that are made here. So one of the two sees the other.
	ctx, free, err := holdMasters(ctx, from, to)
	if err != nil {
		return r, err
	}
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx) // why, and not only that, the work was given up
		}
		err = errors.Join(err, free())
	}()
	if !mine {
		if err := checkEmpty(ctx, to); err != nil {
			return r, err
		}
		// Always of a new ID: a target that an earlier transfer has begun to fill is given up
		// for this one, which the source's mark names.
		now := time.Now().UTC()
		source = catalog.Transfer{ID: rand.Text(), Source: true, State: catalog.TransferUnderWay, Peer: to.Name, Command: o.Command, Begun: now}
		if sourceVersion, err = catalog.WriteTransfer(ctx, from.Lock, source, sourceVersion); err != nil {
			return r, fmt.Errorf("note the transfer in %s: %w", from.Name, err)
		}
		target = catalog.Transfer{ID: source.ID, State: catalog.TransferUnderWay, Peer: from.Name, Command: o.Command, Begun: now}
		if targetVersion, err = catalog.WriteTransfer(ctx, to.Lock, target, targetVersion); err != nil {
			return r, fmt.Errorf("note the transfer in %s: %w", to.Name, err)
		}
	}
	for _, s := range []Side{from, to} {
		if err := s.waitUntilStopped(ctx); err != nil {
			return r, err
		}
	}
	if source.State == catalog.TransferUnderWay {
		if err := copyAll(ctx, from, to, source.Begun, o, &r); err != nil {
			return r, err
		}
		source.State, source.Ended = catalog.TransferComplete, time.Now().UTC()
		if _, err := catalog.WriteTransfer(ctx, from.Lock, source, sourceVersion); err != nil {
			return r, fmt.Errorf("note in %s that the copy is complete: %w", from.Name, err)
		}
	} else {
		r.Again = true
	}
	target.State, target.Ended = catalog.TransferComplete, source.Ended
	if _, err := catalog.WriteTransfer(ctx, to.Lock, target, targetVersion); err != nil {
		return r, fmt.Errorf("note in %s that it is complete: %w", to.Name, err)
	}
	return r, nil
}

// Done makes sure that the source of a transfer is never served again. It is
// fault.FailedPrecondition if the transfer is not complete.
func Done(ctx context.Context, from, to Side) error {
	source, version, err := catalog.ReadTransfer(ctx, from.Lock)
	if err != nil {
		return err
	}
	target, _, err := catalog.ReadTransfer(ctx, to.Lock)
	if err != nil {
		return err
	}
	if !source.Source || target.ID != source.ID || target.Source || target.State != catalog.TransferComplete {
		return fault.New(fault.FailedPrecondition, "%s does not have everything of %s: run the command without --done first", to.Name, from.Name)
	}
	// This copy serves until the first master makes one, so that the target does not
	// depend on etcd alone.
	if err := to.storeCopy(ctx); err != nil {
		return fmt.Errorf("copy the lock service of %s to its store: %w", to.Name, err)
	}
	source.State = catalog.TransferDone
	_, err = catalog.WriteTransfer(ctx, from.Lock, source, version)
	return err
}

// Abandon lets the source of a transfer be served again, and returns the transfer. The
// target keeps what it has by then, and is not served if it is incomplete. It is
// fault.FailedPrecondition after Done.
func Abandon(ctx context.Context, from Side) (catalog.Transfer, error) {
	source, version, err := catalog.ReadTransfer(ctx, from.Lock)
	switch {
	case err != nil:
		return source, err
	case !source.Source:
		return source, fault.New(fault.FailedPrecondition, "%s is not being transferred", from.Name)
	case source.State == catalog.TransferDone:
		return source, fmt.Errorf("%s: %w", from.Name, source.Check())
	}
	return source, from.Lock.Delete(ctx, catalog.TransferKey, version)
}

func (s Side) withDefaults() Side {
	if s.TTL == 0 {
		s.TTL = 5 * time.Second
	}
	return s
}

// holdMasters keeps masters away from both sides until free is called. The context that it
// returns ends when it cannot do so any more.
func holdMasters(ctx context.Context, sides ...Side) (held context.Context, free func() error, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	var sessions []lock.Session
	release := func() (err error) {
		for _, s := range sessions {
			end, stop := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			err = errors.Join(err, s.Close(end))
			stop()
		}
		cancel(nil)
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, release())
		}
	}()
	value, err := json.Marshal(catalog.Registration{Name: serverName})
	if err != nil {
		return nil, nil, err
	}
	for _, s := range sides {
		session, err := s.Lock.NewSession(ctx, s.TTL)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: begin a session: %w", s.Name, err)
		}
		sessions = append(sessions, session)
		go func() {
			select {
			case <-session.Done():
				cancel(fault.New(fault.Unavailable, "the session with the lock service of %s has ended: run the command again", s.Name))
			case <-ctx.Done():
			}
		}()
		// An earlier run that was killed is forgotten after its ttl.
		wait, stop := context.WithTimeout(ctx, 2*s.TTL)
		_, err = lock.Acquire(wait, s.Lock, session, catalog.MasterKey, value)
		if stop(); err != nil && wait.Err() != nil && ctx.Err() == nil {
			err = fault.New(fault.FailedPrecondition, "%s has a master: stop all its processes first. One that was killed counts for its ttl", s.Name)
		}
		if err != nil {
			return nil, nil, err
		}
	}
	for _, s := range sides {
		if err := s.waitUntilStopped(ctx); err != nil {
			return nil, nil, err
		}
	}
	return ctx, release, nil
}

// waitUntilStopped returns fault.FailedPrecondition if a process serves a side, and goes
// on to for twice the default ttl.
func (s Side) waitUntilStopped(ctx context.Context) error {
	for end := time.Now().Add(2 * s.TTL); ; {
		items, _, err := s.Lock.List(ctx, "")
		if err != nil {
			return err
		}
		living := ""
		for _, i := range items {
			// A recovery of an earlier version left items of HBase servers, which no session
			// holds, and no process.
			if i.Held && catalog.ClassOf(i.Key) == catalog.EphemeralItem && i.Key != catalog.MasterKey {
				living = i.Key
			}
		}
		if living == "" {
			return nil
		}
		if time.Now().After(end) {
			return fault.New(fault.FailedPrecondition, "%s is served (%s): stop all its processes first. One that was killed counts for its ttl", s.Name, living)
		}
		select {
		case <-time.After(s.TTL / 20):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// checkEmpty returns fault.FailedPrecondition if there is anything on a side.
func checkEmpty(ctx context.Context, s Side) error {
	items, _, err := s.Lock.List(ctx, "")
	if err != nil {
		return err
	}
	for _, i := range items {
		if catalog.ClassOf(i.Key) != catalog.EphemeralItem {
			return fault.New(fault.FailedPrecondition, "%s is not empty: its lock service has item %s. Give one that holds nothing", s.Name, i.Key)
		}
	}
	for _, store := range []objectstore.Store{s.Objects, s.Logs, s.Copies} {
		if store == nil {
			continue
		}
		infos, err := store.List(ctx, "", "", 1)
		if err != nil {
			return fmt.Errorf("list the store of %s: %w", s.Name, err)
		}
		if len(infos) > 0 {
			return fault.New(fault.FailedPrecondition, "%s is not empty: its store has object %s. Give one that holds nothing", s.Name, infos[0].Name)
		}
	}
	return nil
}
