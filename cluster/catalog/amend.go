package catalog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

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
	skippedCopies       = 1 << 10
	// skippedLogs is of how many incarnations that have begun since tablets may name
	// a log of which there is nothing in the store, as nothing was written to it.
	skippedLogs = 64
)

// Amend changes a copy, stored at a time by the clock of the store, to what the
// store shows to have happened since: which commit logs there are, and how far
// they were trimmed. METADATA and the commit logs have everything else, provided
// that METADATA was not written to another log, or flushed and its log trimmed,
// after the copy: then it returns fault.FailedPrecondition.
func (cp *Copy) Amend(ctx context.Context, stored time.Time, objects, logs objectstore.Store) error {
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
	if err := json.Unmarshal(cp.Items[IncarnationKey], &last); err != nil {
		return fault.New(fault.Corruption, "item %s: %w", IncarnationKey, err)
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
	named := map[commitlog.ID]map[uint64]bool{} // METADATA's logs, and the tablets that are written to each
	for _, r := range roots {
		for _, f := range r.Files {
			if !there[f.Object] {
				return fault.New(fault.Corruption, "SSTable %s of METADATA tablet %x is not in the store", f.Object, uint64(r.Tablet))
			}
		}
		if a := r.Assignment; a != nil {
			id := commitlog.ID(a.Log)
			if named[id] == nil {
				named[id] = map[uint64]bool{}
			}
			named[id][uint64(r.Tablet)] = true
		}
	}
	found, err := commitlog.ListRemains(ctx, logs)
	if err != nil {
		return err
	}
	for _, l := range found {
		last = max(last, LogOwner(l.ID))
		var state LogState
		if item, ok := cp.Items[LogKey(l.ID)]; ok {
			if err := json.Unmarshal(item, &state); err != nil {
				return fault.New(fault.Corruption, "item of commit log %v: %w", l.ID, err)
			}
		}
		trimmed := l.First > max(state.Kept.Segment, 1)
		if l.ID == MetadataLog(LogOwner(l.ID)) {
			since := stored.Add(-2 * time.Second)
			switch mine := named[l.ID]; {
			case mine != nil && trimmed:
				return fault.New(fault.FailedPrecondition, "METADATA was flushed after it, and its log %v trimmed: the copy does not name the SSTable", l.ID)
			case mine == nil && l.Segments > 0 && l.Newest.After(since):
				return fault.New(fault.FailedPrecondition, "METADATA was written to log %v after it, by a server that had no METADATA tablet then", l.ID)
			case mine != nil:
				written, err := commitlog.TabletsSince(ctx, logs, l.ID, since)
				if err != nil {
					return err
				}
				for tablet := range written {
					if !mine[tablet] {
						return fault.New(fault.FailedPrecondition, "METADATA tablet %x was written to log %v after it, by a server that did not have it then", tablet, l.ID)
					}
				}
			}
		}
		if l.Segments == 0 {
			continue // what is left of one that was deleted
		}
		if trimmed {
			state.Kept = commitlog.Pos{Log: l.ID, Segment: l.First}
		}
		if err := set(LogKey(l.ID), state); err != nil {
			return err
		}
	}
	for n := known + 1; n <= last+skippedLogs; n++ {
		if key := LogKey(UserLog(n)); cp.Items[key] == nil {
			if err := set(key, LogState{}); err != nil {
				return err
			}
		}
	}
	for key, value := range cp.Items {
		if !strings.HasPrefix(key, TablesPrefix) {
			continue
		}
		n, err := ParseName(lock.Item{Key: key, Value: value})
		if err != nil {
			return err
		}
		n = slices.Clone(n)
		for i, t := range n {
			if !IsMaking(t) {
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
	if b, ok := cp.Items[EpochsKey]; ok {
		if err := json.Unmarshal(b, &before); err != nil {
			return fault.New(fault.Corruption, "item %s: %w", EpochsKey, err)
		}
	}
	return errors.Join(set(IncarnationKey, last+skippedIncarnations), set(EpochsKey, before+cp.Revision+skippedEpochs))
}
