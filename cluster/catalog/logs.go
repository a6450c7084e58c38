package catalog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/objectstore"
)

// A LogState is the value of a commit log's item in the lock service. It stands
// between the log's owner, who trims it, and who seals it: a fence that lands
// where segments have been trimmed away would fence nothing. So the owner
// writes down how far it is going to trim before it does, and whoever seals
// freezes the item first, after which the owner can trim no more.
type LogState struct {
	Kept   commitlog.Pos // everything at or after it is there; zero: everything
	Frozen bool
}

// LogsPrefix is where the lock service has the items of commit logs.
const LogsPrefix = "logs/"

// LogKey returns the key of a log's item.
func LogKey(id commitlog.ID) string { return LogsPrefix + id.String() }

// Each incarnation of a server has two logs, of users' tablets and of
// METADATA's.

// UserLog returns the log of users' tablets of an incarnation.
func UserLog(incarnation uint64) commitlog.ID { return commitlog.ID(2 * incarnation) }

// MetadataLog returns the log of METADATA tablets of an incarnation.
func MetadataLog(incarnation uint64) commitlog.ID { return commitlog.ID(2*incarnation + 1) }

// LogOwner returns the incarnation that a log is of.
func LogOwner(id commitlog.ID) uint64 { return uint64(id) / 2 }

// Logs returns the items of commit logs, by log.
func Logs(ctx context.Context, l lock.Service) (map[commitlog.ID]lock.Item, error) {
	items, _, err := l.List(ctx, LogsPrefix)
	if err != nil {
		return nil, err
	}
	logs := map[commitlog.ID]lock.Item{}
	for _, i := range items {
		var id uint64
		if _, err := fmt.Sscanf(strings.TrimPrefix(i.Key, LogsPrefix), "%x", &id); err != nil || LogKey(commitlog.ID(id)) != i.Key {
			return nil, fault.New(fault.Corruption, "item %s is of no commit log", i.Key)
		}
		logs[commitlog.ID(id)] = i
	}
	return logs, nil
}

// LogKept returns from where on a log is there, NotFound if it has no item.
func LogKept(ctx context.Context, l lock.Service, id commitlog.ID) (commitlog.Pos, error) {
	item, err := l.Get(ctx, LogKey(id))
	if err != nil {
		return commitlog.Pos{}, fmt.Errorf("commit log %v: %w", id, err)
	}
	var state LogState
	if err := json.Unmarshal(item.Value, &state); err != nil {
		return commitlog.Pos{}, fault.New(fault.Corruption, "item of commit log %v: %w", id, err)
	}
	return state.Kept, nil
}

// SealLog makes sure that nobody writes to a log any more and returns what is
// to be replayed of it.
func SealLog(ctx context.Context, l lock.Service, store objectstore.Store, id commitlog.ID) (from, end commitlog.Pos, err error) {
	var state LogState
	for {
		item, err := l.Get(ctx, LogKey(id))
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
		if _, err = l.Put(ctx, LogKey(id), value, item.Version); err == nil {
			break
		} else if !errors.Is(err, fault.Aborted) {
			return from, end, err
		}
	}
	end, err = commitlog.Seal(ctx, store, id, state.Kept)
	return state.Kept, end, err
}
