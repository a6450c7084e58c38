package tabletserver

import (
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/mutex"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/stamp"
)

// trimEvery is how often a log is trimmed at most: each time costs a change in
// the lock service.
const trimEvery = 2 * time.Second

// A guardedLog is a commit log whose trimming the next owner of its tablets can stop.
type guardedLog struct {
	*commitlog.SegmentWriter
	id   commitlog.ID
	lock lock.Service
	// server is the owner's name.
	server string

	// needed is the position that Trim was called with last. What is before it is there
	// only because it was not trimmed yet.
	needed atomic.Pointer[commitlog.Pos]

	mu       mutex.Mutex
	version  int64 // of the item; 0 if it must be read again
	kept     commitlog.Pos
	trimmed  time.Time
	promised cell.Seq // that of the item, or less
	frozen   bool
}

func createLog(ctx context.Context, l lock.Service, store objectstore.Store, id commitlog.ID, server string, o commitlog.SegmentOptions) (*guardedLog, error) {
	value, err := json.Marshal(catalog.LogState{Server: server})
	if err != nil {
		return nil, err
	}
	version, err := l.Put(ctx, catalog.LogKey(id), value, 0)
	if err != nil {
		return nil, err
	}
	w, err := commitlog.CreateSegments(ctx, store, id, o)
	if err != nil {
		return nil, err
	}
	return &guardedLog{SegmentWriter: w, id: id, lock: l, server: server, version: version}, nil
}

// ID implements ownLog.
func (g *guardedLog) ID() commitlog.ID { return g.id }

// Bytes implements commitlog.Writer. It counts what tablets need, whether or not
// the rest could be trimmed.
func (g *guardedLog) Bytes() int64 {
	if p := g.needed.Load(); p != nil {
		return g.SegmentWriter.BytesFrom(*p)
	}
	return g.SegmentWriter.Bytes()
}

// Trim implements commitlog.Writer.
func (g *guardedLog) Trim(before commitlog.Pos) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.needed.Store(&before)
	// Segments are trimmed whole: a position within the first kept one trims nothing.
	if g.frozen || before.Log != g.id || before.Segment <= g.kept.Segment || time.Since(g.trimmed) < trimEvery {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), trimEvery)
	defer cancel()
	defer func() { g.trimmed = time.Now() }()
	if err := g.recordTrim(ctx, before); err != nil {
		return fmt.Errorf("note how far commit log %v is trimmed: %w", g.id, err)
	}
	return g.SegmentWriter.Trim(before)
}

// promiseSteps are those by which the bound of promises grows: a change in the lock service
// each minute while there are readers of changes. If clock records cannot be read, commit
// times go on up to that far ahead of the clock.
const promiseSteps = time.Minute

// allow implements ownLog.
func (g *guardedLog) allow(ctx context.Context, w cell.Seq) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if w <= g.promised {
		return nil
	}
	if err := g.writeState(ctx, g.kept, stamp.At(stamp.Time(w).Add(promiseSteps))); err != nil {
		return fmt.Errorf("note how far commit log %v promises: %w", g.id, err)
	}
	return nil
}

// recordTrim writes down that the log is trimmed up to a position.
func (g *guardedLog) recordTrim(ctx context.Context, before commitlog.Pos) error {
	return g.writeState(ctx, before, g.promised)
}

// writeState changes the item. The caller holds mu.
func (g *guardedLog) writeState(ctx context.Context, kept commitlog.Pos, promised cell.Seq) error {
	if g.version == 0 {
		if err := g.reloadState(ctx); err != nil {
			return err
		}
	}
	value, err := json.Marshal(catalog.LogState{Kept: kept, Promised: promised, Server: g.server})
	if err != nil {
		return err
	}
	version, err := g.lock.Put(ctx, catalog.LogKey(g.id), value, g.version)
	if err != nil {
		g.version = 0 // the change may have been made, or another process's was
		return err
	}
	g.version, g.kept, g.promised = version, kept, promised
	return nil
}

// reloadState finds out what became of the item.
func (g *guardedLog) reloadState(ctx context.Context) error {
	state, version, err := catalog.ReadLog(ctx, g.lock, g.id)
	if err != nil {
		return err
	}
	if g.frozen = state.Frozen; g.frozen {
		return fault.New(fault.Fenced, "the log has been sealed")
	}
	g.version = version
	return nil
}

// begin returns an error if the log was sealed before its owner was known to the cluster.
// The master takes an owner that it does not see for one that has ended.
func (g *guardedLog) begin(ctx context.Context, _ func(*commitlog.FileLog) error) error {
	if err := g.reloadState(ctx); err != nil {
		return fmt.Errorf("begin commit log %v: %w", g.id, err)
	}
	return nil
}
