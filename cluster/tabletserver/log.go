package tabletserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/mutex"
	"github.com/trestledb/trestle/engine/objectstore"
)

// A logState is the value of a log's item in the lock service. It stands
// between the log's owner, who trims it, and who seals it: a fence that lands
// where segments have been trimmed away would fence nothing. So the owner
// writes down how far it is going to trim before it does, and whoever seals
// freezes the item first, after which the owner can trim no more.
type logState struct {
	Kept   commitlog.Pos // everything at or after it is there; zero: everything
	Frozen bool
}

// LogsPrefix is where the lock service has the items of commit logs.
const LogsPrefix = "logs/"

func logKey(id commitlog.ID) string { return LogsPrefix + id.String() }

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
	value, err := json.Marshal(logState{})
	if err != nil {
		return nil, err
	}
	version, err := l.Put(ctx, logKey(id), value, 0)
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
	value, err := json.Marshal(logState{Kept: before})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), trimEvery)
	defer cancel()
	version, err := g.lock.Put(ctx, logKey(g.id), value, g.version)
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
	item, err := g.lock.Get(ctx, logKey(g.id))
	if err != nil {
		return err
	}
	var state logState
	if err := json.Unmarshal(item.Value, &state); err != nil {
		return err
	}
	if state.Frozen {
		return fault.New(fault.Fenced, "the log has been sealed")
	}
	g.version = item.Version
	return nil
}

// sealLog makes sure that nobody writes to a log any more and returns what is
// to be replayed of it.
func sealLog(ctx context.Context, l lock.Service, store objectstore.Store, id commitlog.ID) (from, end commitlog.Pos, err error) {
	var state logState
	for {
		item, err := l.Get(ctx, logKey(id))
		if err != nil {
			return from, end, fmt.Errorf("commit log %v: %w", id, err)
		}
		if err := json.Unmarshal(item.Value, &state); err != nil {
			return from, end, fault.New(fault.Corruption, "item of commit log %v: %w", id, err)
		}
		if state.Frozen {
			break
		}
		state.Frozen = true
		value, err := json.Marshal(state)
		if err != nil {
			return from, end, err
		}
		if _, err = l.Put(ctx, logKey(id), value, item.Version); err == nil {
			break
		} else if !errors.Is(err, fault.Aborted) {
			return from, end, err
		}
	}
	end, err = commitlog.Seal(ctx, store, id, state.Kept)
	return state.Kept, end, err
}
