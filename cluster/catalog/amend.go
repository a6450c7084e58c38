package catalog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/trestledb/trestle/cluster/lock"
	cmeta "github.com/trestledb/trestle/cluster/metadata"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/tablet"
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

// Amend changes a copy to what the store shows to have happened since: which
// commit logs there are, and how far they were trimmed. METADATA and the commit
// logs have everything else, provided that METADATA was not written to for another
// tablet or to another log, or flushed and its log trimmed, after the copy: then it
// returns fault.FailedPrecondition. It goes by no clock. Nobody may live.
func (cp *Copy) Amend(ctx context.Context, objects, logs objectstore.Store) error {
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
	for _, r := range roots {
		for _, f := range r.Files {
			if !there[f.Object] {
				return fault.New(fault.Corruption, "SSTable %s of METADATA tablet %v is not in the store", f.Object, r.Tablet)
			}
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
			if err := cp.checkMetadataUnchanged(ctx, logs, roots, l, state.GivenUp, trimmed); err != nil {
				return err
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
			if !t.Pending {
				n[i].Table = t.Clone()
				n[i].Version += skippedVersions
				// Families stop there; a table that has had more keeps its number.
				n[i].NextFamily = max(t.NextFamily, min(t.NextFamily+skippedFamilies, uint32(cell.FirstSystemFamily)))
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

// newest returns fault.FailedPrecondition if a METADATA log shows that METADATA,
// whose tablets were roots at the time of the copy, was changed since by what
// nobody would read who begins with the copy.
//
// Each row of METADATA is in one tablet at a time. What becomes of that when it is
// moved, split or merged goes on with its sequence numbers, and everything is
// flushed before, but for the log of a server that died, which is flushed by whoever
// takes over. So a record in another log than that of the tablet in the copy, or of
// another tablet, is older than the copy if the tablet had been flushed beyond it,
// and else newer. Neither times nor the numbers of tablets tell that: a copy may be
// stored long after it was made, and be followed by a tablet's way back.
func (cp *Copy) checkMetadataUnchanged(ctx context.Context, logs objectstore.Store, roots []*metadata.Row, l commitlog.Remains, givenUp commitlog.GivenUp, trimmed bool) error {
	mine := map[uint64]bool{}
	for _, r := range roots {
		if a := r.Assignment; a != nil && commitlog.ID(a.Log) == l.ID {
			mine[uint64(r.Tablet)] = true
		}
	}
	_, known := cp.Items[LogKey(l.ID)]
	switch {
	case trimmed && len(mine) > 0:
		return fault.New(fault.FailedPrecondition, "METADATA was flushed after it, and its log %v trimmed: the copy does not name the SSTable", l.ID)
	case trimmed && known && cp.newerDamaged && l.Segments == 0:
		// The sweeper waits for a copy that does not need a log, and the one it waited
		// for may be the damaged one.
		return fault.New(fault.FailedPrecondition, "a newer copy is damaged, and METADATA log %v was deleted after this one", l.ID)
	}
	return commitlog.ReadRemains(ctx, logs, l.ID, givenUp, func(id uint64) bool { return !mine[id] }, func(rec commitlog.Record) error {
		key, err := tablet.RecordRow(&rec)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(roots, func(r *metadata.Row) bool { return len(r.End) == 0 || bytes.Compare(key, r.End) < 0 })
		if last := rec.FirstSeq + uint64(rec.N) - 1; last > uint64(roots[i].FlushedSeq) {
			return fault.New(fault.FailedPrecondition, "METADATA tablet %x was written to log %v after it (change %d; tablet %v had been flushed up to %d)",
				rec.Tablet, l.ID, last, roots[i].Tablet, roots[i].FlushedSeq)
		}
		return nil
	})
}
