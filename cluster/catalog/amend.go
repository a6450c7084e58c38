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
	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/stamp"
	"github.com/trestledb/trestle/engine/tablet"
)

// The numbers given out after the copy are not known, so new ones skip this many.
const (
	skippedIncarnations = 1 << 10
	skippedEpochs       = 1 << 20
	skippedVersions     = 1 << 10
	skippedFamilies     = 8
	skippedCopies       = 1 << 10
	// skippedLogs is how many incarnations begun since the copy are provided for. Tablets
	// may name their logs, of which the store has nothing if nothing was written to them.
	skippedLogs = 64
)

// Amend adds to a copy what the store shows to have happened since: which commit logs
// there are, and how far they were trimmed. METADATA and the commit logs have everything
// else, with two exceptions. METADATA may have been written to after the copy for another
// tablet or to another log, or flushed and its log trimmed. Then Amend returns
// fault.FailedPrecondition. It goes by no clock. No process of the cluster may be running.
func (cp *Copy) Amend(ctx context.Context, objects, logs objectstore.Store) error {
	set := func(key string, v any) error {
		b, err := json.Marshal(v)
		cp.Items[key] = b
		return err
	}
	roots, err := metastore.RootsOf(cp.Items)
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
		for _, form := range []string{"%016x.sst", "%016x.chg", "%016x.chx"} {
			if _, err := fmt.Sscanf(i.Name, form, &id); err == nil {
				last = max(last, id>>32)
			}
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
			continue // the rest of one that was deleted
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

// checkMetadataUnchanged looks for changes of METADATA, whose tablets were roots at the
// time of the copy, that a start from the copy would not read. It returns
// fault.FailedPrecondition if a METADATA log shows any.
//
// Each row of METADATA is in one tablet at a time. Moving, splitting or merging that
// tablet keeps its sequence numbers and flushes everything before. The log of a server
// that died is flushed by the server that takes over. So take a record in another log than
// that of the tablet in the copy, or of another tablet. It is older than the copy if the
// tablet had been flushed beyond it, and else newer. Neither times nor the numbers of
// tablets tell that. A copy may be stored long after it was made, and a tablet may move
// back after it.
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
		if last := stamp.Last(cell.Seq(rec.FirstSeq), rec.N); last > roots[i].FlushedSeq {
			return fault.New(fault.FailedPrecondition, "METADATA tablet %x was written to log %v after it (change %d; tablet %v had been flushed up to %d)",
				rec.Tablet, l.ID, last, roots[i].Tablet, roots[i].FlushedSeq)
		}
		return nil
	})
}
