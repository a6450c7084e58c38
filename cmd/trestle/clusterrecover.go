package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/lock"
	cmeta "github.com/trestledb/trestle/cluster/metadata"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/objectstore"
)

// What was given out after the copy is not known: numbers begin so much later.
const (
	skippedIncarnations = 1 << 10
	skippedEpochs       = 1 << 20
	skippedVersions     = 1 << 10
	skippedFamilies     = 8
	// skippedLogs is of how many incarnations that have begun since tablets may name
	// a log of which there is nothing in the store, as nothing was written to it.
	skippedLogs = 64
)

// recover gives the lock service what the store's newest copy of it has, when it
// was lost or restored from an older snapshot, and so much more as the store
// knows: which commit logs there are, and how far they were trimmed. METADATA
// and the commit logs have everything else, provided that METADATA was not
// written to another log, or flushed and its log trimmed, after the copy: then
// it refuses.
func (o *operator) recover(ctx context.Context, _ []string) error {
	if o.n.cfg.Store == "" {
		return errors.New("recover needs --store, as the servers have it")
	}
	store, err := openObjects(ctx, &o.n.cfg.Node, "recover")
	if err == nil {
		err = checkMark(ctx, store, o.n.cfg.Cluster)
	}
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
	cp, info, err := copier.Newest(ctx)
	if err != nil {
		return err
	}
	if err := amend(ctx, cp, info.Modified, objectstore.Sub(store, partSSTables), objectstore.Sub(store, partLogs)); err != nil {
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
	fmt.Fprintf(o.p.stdout, "the lock service has what it had at %s: start masters and servers, then run `trestle cluster check`\n", cp.Taken.Format(time.RFC3339))
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

// amend changes a copy, stored at a time by the clock of the store, to what the
// store shows to have happened since.
func amend(ctx context.Context, cp *catalog.Copy, stored time.Time, objects, logs objectstore.Store) error {
	set := func(key string, v any) error {
		b, err := json.Marshal(v)
		cp.Items[key] = b
		return err
	}
	roots, err := cmeta.RootsOf(cp.Items)
	if err != nil {
		return err
	}
	if !metadata.Tile(roots) {
		return fault.New(fault.Corruption, "its METADATA tablets do not tile")
	}
	var last uint64
	if err := json.Unmarshal(cp.Items[catalog.IncarnationKey], &last); err != nil {
		return fault.New(fault.Corruption, "item %s: %w", catalog.IncarnationKey, err)
	}
	known := last
	infos, err := objects.List(ctx, "", "", 0)
	if err != nil {
		return err
	}
	there := map[string]bool{}
	for _, i := range infos {
		there[i.Name] = true
		var id uint64
		if _, err := fmt.Sscanf(i.Name, "%016x.sst", &id); err == nil {
			last = max(last, id>>32)
		}
	}
	named := map[commitlog.ID]bool{} // METADATA's logs
	for _, r := range roots {
		for _, f := range r.Files {
			if !there[f.Object] {
				return fault.New(fault.Corruption, "SSTable %s of METADATA tablet %x is not in the store", f.Object, uint64(r.Tablet))
			}
		}
		if r.Assignment != nil {
			named[commitlog.ID(r.Assignment.Log)] = true
		}
	}
	found, err := commitlog.ListRemains(ctx, logs)
	if err != nil {
		return err
	}
	for _, l := range found {
		last = max(last, catalog.LogOwner(l.ID))
		var state catalog.LogState
		if item, ok := cp.Items[catalog.LogKey(l.ID)]; ok {
			if err := json.Unmarshal(item, &state); err != nil {
				return fault.New(fault.Corruption, "item of commit log %v: %w", l.ID, err)
			}
		}
		trimmed := l.First > max(state.Kept.Segment, 1)
		if l.ID == catalog.MetadataLog(catalog.LogOwner(l.ID)) {
			switch {
			case named[l.ID] && trimmed:
				return fault.New(fault.FailedPrecondition, "METADATA was flushed after it, and its log %v trimmed: the copy does not name the SSTable", l.ID)
			case !named[l.ID] && l.Segments > 0 && l.Newest.After(stored.Add(-2*time.Second)):
				return fault.New(fault.FailedPrecondition, "METADATA was written to log %v after it, by a server that had no METADATA tablet then", l.ID)
			}
		}
		if l.Segments == 0 {
			continue // what is left of one that was deleted
		}
		if trimmed {
			state.Kept = commitlog.Pos{Log: l.ID, Segment: l.First}
		}
		if err := set(catalog.LogKey(l.ID), state); err != nil {
			return err
		}
	}
	for n := known + 1; n <= last+skippedLogs; n++ {
		if key := catalog.LogKey(catalog.UserLog(n)); cp.Items[key] == nil {
			if err := set(key, catalog.LogState{}); err != nil {
				return err
			}
		}
	}
	for key, value := range cp.Items {
		if !strings.HasPrefix(key, catalog.TablesPrefix) {
			continue
		}
		n, err := catalog.ParseName(lock.Item{Key: key, Value: value})
		if err != nil {
			return err
		}
		n = slices.Clone(n)
		for i, t := range n {
			if !catalog.IsMaking(t) {
				n[i] = t.Clone()
				n[i].Version += skippedVersions
				n[i].NextFamily = min(n[i].NextFamily+skippedFamilies, cell.FirstSystemFamily)
			}
		}
		if err := set(key, n); err != nil {
			return err
		}
	}
	var before int64
	if b, ok := cp.Items[catalog.EpochsKey]; ok {
		if err := json.Unmarshal(b, &before); err != nil {
			return fault.New(fault.Corruption, "item %s: %w", catalog.EpochsKey, err)
		}
	}
	return errors.Join(set(catalog.IncarnationKey, last+skippedIncarnations), set(catalog.EpochsKey, before+cp.Revision+skippedEpochs))
}
