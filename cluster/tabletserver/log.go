package tabletserver

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/mutex"
	"github.com/trestledb/trestle/engine/objectstore"
)

// trimEvery is how often a log is trimmed at most: each time costs a change in
// the lock service.
const trimEvery = 2 * time.Second

// A guardedLog is a commit log whose trimming somebody else can stop.
type guardedLog struct {
	commitlog.Writer
	id   commitlog.ID
	lock lock.Service

	mu      mutex.Mutex
	version int64 // of the item
	kept    commitlog.Pos
	trimmed time.Time
	lost    bool // the item is frozen, or may be
}

func createLog(ctx context.Context, l lock.Service, store objectstore.Store, id commitlog.ID, o commitlog.SegmentOptions) (*guardedLog, error) {
	value, err := json.Marshal(catalog.LogState{})
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
	return &guardedLog{Writer: w, id: id, lock: l, version: version}, nil
}

// Trim implements commitlog.Writer.
func (g *guardedLog) Trim(before commitlog.Pos) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	// The first segment that is kept; a position within it trims no more.
	if g.lost || before.Log != g.id || before.Segment <= g.kept.Segment || time.Since(g.trimmed) < trimEvery {
		return nil
	}
	g.trimmed = time.Now()
	value, err := json.Marshal(catalog.LogState{Kept: before})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), trimEvery)
	defer cancel()
	version, err := g.lock.Put(ctx, catalog.LogKey(g.id), value, g.version)
	if err != nil {
		// An answer that was lost leaves the item's version unknown. The log is not
		// trimmed any more then; it is a matter of space only.
		g.lost = g.reread(ctx) != nil
		return fmt.Errorf("note how far commit log %v is trimmed: %w", g.id, err)
	}
	g.version, g.kept = version, before
	return g.Writer.Trim(before)
}

// reread finds out what became of the item.
func (g *guardedLog) reread(ctx context.Context) error {
	item, err := g.lock.Get(ctx, catalog.LogKey(g.id))
	if err != nil {
		return err
	}
	var state catalog.LogState
	if err := json.Unmarshal(item.Value, &state); err != nil {
		return err
	}
	if state.Frozen {
		return fault.New(fault.Fenced, "the log has been sealed")
	}
	g.version = item.Version
	return nil
}

// begin returns an error if the log was sealed before its owner was known to the
// cluster: the master takes an owner that it does not see for one that has
// ended.
func (g *guardedLog) begin(ctx context.Context) error {
	if err := g.reread(ctx); err != nil {
		return fmt.Errorf("commit log %v: %w", g.id, err)
	}
	return nil
}
