package recovery

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/objectstore"
)

// Logs are the commit logs of a cluster, and the tablets that may wait for them.
type Logs struct {
	Lock lock.Service
	// Store has the logs' segments.
	Store objectstore.Store
	// Rows calls each with the METADATA rows of all tablets.
	Rows func(ctx context.Context, each func(*metadata.Row) error) error
}

// A Loss is what giving up segments of a commit log loses.
type Loss struct {
	Log commitlog.ID
	// Owner is the tablet server that wrote the log; its name is empty if nobody knows
	// that.
	Owner metadata.ServerName
	// Waiting are the tablets that are not served without the log.
	Waiting []*metadata.Row
	// Segments are those that are damaged and that one of these tablets needs.
	Segments []commitlog.Damage
}

// FindLoss finds what is damaged of a commit log: of all of it if segments is nil,
// else of those. It returns fault.NotFound if there is no such log, and
// fault.FailedPrecondition if nothing of it may be given up: it is of METADATA, its
// server lives, or no tablet waits for a damaged segment.
func (l *Logs) FindLoss(ctx context.Context, log commitlog.ID, segments []uint64) (*Loss, error) {
	if log == catalog.MetadataLog(catalog.LogOwner(log)) {
		return nil, refuse("commit log %v is of METADATA: without its changes METADATA would name SSTables that were deleted since, and not name others that have rows. "+
			"Bring the segment back from a copy of the store; without one, restore all of the store from a copy", log)
	}
	state, _, err := catalog.ReadLog(ctx, l.Lock, log)
	if errors.Is(err, fault.NotFound) {
		return nil, fault.New(fault.NotFound, "there is no commit log %v", log)
	}
	if err != nil {
		return nil, err
	}
	servers, _, err := catalog.Servers(ctx, l.Lock)
	if err != nil {
		return nil, err
	}
	if s, ok := servers[catalog.LogOwner(log)]; ok {
		return nil, refuse("commit log %v is that of tablet server %s, which lives and has in memory what is in it: nothing is lost. `trestle tablet flush` its tablets, and the log is needed no more", log, s.Name)
	}
	loss := &Loss{Log: log, Owner: metadata.ServerName{Name: state.Server, Incarnation: catalog.LogOwner(log)}}
	err = l.Rows(ctx, func(r *metadata.Row) error {
		if catalog.WaitsFor(r, log) {
			loss.Waiting = append(loss.Waiting, r)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read METADATA: %w", err)
	}
	if len(loss.Waiting) == 0 {
		return nil, refuse("no tablet waits for commit log %v: it stays", log)
	}
	if !state.Frozen {
		return nil, refuse("nobody has taken tablets over from commit log %v yet: is there a master, and a tablet server?", log)
	}
	found, err := commitlog.FindDamage(ctx, l.Store, log, state.Kept, state.GivenUp)
	if err != nil {
		return nil, err
	}
	for _, d := range found {
		if loss.needs(d) && (segments == nil || slices.Contains(segments, d.Index)) {
			loss.Segments = append(loss.Segments, d)
		}
	}
	for _, index := range segments {
		if !loss.has(index) {
			return nil, refuse("segment %d of commit log %v is not damaged, or no tablet that waits needs what is damaged in it: it stays", index, log)
		}
	}
	if len(loss.Segments) == 0 {
		return nil, refuse("nothing is damaged in commit log %v: it stays", log)
	}
	return loss, nil
}

func refuse(format string, args ...any) error {
	return fault.New(fault.FailedPrecondition, format, args...)
}

// needs tells whether a tablet that waits may have changes in a damaged segment.
func (l *Loss) needs(d commitlog.Damage) bool {
	return d.Lost == nil || slices.ContainsFunc(l.Waiting, func(r *metadata.Row) bool {
		_, lost := d.Lost[uint64(r.Tablet)]
		return lost
	})
}

func (l *Loss) has(index uint64) bool {
	return slices.ContainsFunc(l.Segments, func(d commitlog.Damage) bool { return d.Index == index })
}

// GiveUp has the tablets that wait be opened without what is lost. The loss is for
// good.
func (l *Logs) GiveUp(ctx context.Context, loss *Loss) error {
	var g commitlog.GivenUp
	for _, d := range loss.Segments {
		g = g.With(d.Index, slices.Sorted(maps.Keys(d.Lost)))
	}
	return catalog.GiveUp(ctx, l.Lock, loss.Log, g)
}

// CountWaiting returns how many tablets wait for logs of which something was given up.
// It returns fault.FailedPrecondition if one waits for another damaged segment, which
// was not.
func (l *Logs) CountWaiting(ctx context.Context, given []*Loss) (n int, err error) {
	err = l.Rows(ctx, func(r *metadata.Row) error {
		for _, loss := range given {
			if catalog.WaitsFor(r, loss.Log) {
				n++
			}
		}
		return nil
	})
	if err != nil || n == 0 {
		return n, err
	}
	logs, err := catalog.DamagedLogs(ctx, l.Lock)
	if err != nil {
		return n, err
	}
	for _, d := range logs {
		for _, loss := range given {
			if d.Log != loss.Log {
				continue
			}
			for _, t := range d.Tablets {
				if id, index, ok := commitlog.ParseObject(t.Object); ok && id == loss.Log && !loss.has(index) {
					return n, refuse("%s waits for segment %s too: %s", t.Name(), t.Object, strings.TrimSuffix(t.Error, "\n"))
				}
			}
		}
	}
	return n, nil
}
