package catalog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/objectstore"
)

// A LogState is the value of a commit log's item in the lock service. It stands between
// the log's owner, which trims it, and the server that seals it. A fence that lands where
// segments have been trimmed away would fence nothing. So the owner writes down how far it
// is going to trim before it does. The sealer freezes the item first, after which the
// owner can no longer trim.
type LogState struct {
	Kept   commitlog.Pos // everything at or after it is there; zero: everything
	Frozen bool
	// Promised is a bound of the promises to readers of changes that are in the log: no clock
	// record has a larger number. It is for a log whose clock records cannot all be read.
	Promised cell.Seq `json:",omitempty"`
	// Server is the name of its owner, for operators.
	Server string `json:",omitempty"`
	// GivenUp is the part of a frozen log that an operator has given up. Every server that
	// takes over one of its tablets leaves it out.
	GivenUp commitlog.GivenUp `json:",omitempty"`
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

// LogOwner returns the incarnation that writes a log.
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

// ReadLog returns the state of a log and the version of its item, NotFound if it
// has none.
func ReadLog(ctx context.Context, l lock.Service, id commitlog.ID) (state LogState, version int64, err error) {
	item, err := l.Get(ctx, LogKey(id))
	if err != nil {
		return state, 0, fmt.Errorf("commit log %v: %w", id, err)
	}
	if err := json.Unmarshal(item.Value, &state); err != nil {
		return state, 0, fault.New(fault.Corruption, "item of commit log %v: %w", id, err)
	}
	return state, item.Version, nil
}

// writeLog changes the state of a log.
func writeLog(ctx context.Context, l lock.Service, id commitlog.ID, state LogState, version int64) error {
	value, err := json.Marshal(state)
	if err == nil {
		_, err = l.Put(ctx, LogKey(id), value, version)
	}
	return err
}

// GiveUp gives up segments of a frozen log, in addition to those given up before.
func GiveUp(ctx context.Context, l lock.Service, id commitlog.ID, what commitlog.GivenUp) error {
	for {
		state, version, err := ReadLog(ctx, l, id)
		if err != nil {
			return err
		}
		if !state.Frozen {
			return fault.New(fault.FailedPrecondition, "commit log %v is written to, or nobody has taken over from its owner yet", id)
		}
		for index, tablets := range what {
			state.GivenUp = state.GivenUp.With(index, tablets)
		}
		if err := writeLog(ctx, l, id, state, version); !errors.Is(err, fault.Aborted) {
			return err
		}
	}
}

// A SealedLog is the part of a log to replay: [From, End) without what was given up.
type SealedLog struct {
	From, End commitlog.Pos
	GivenUp   commitlog.GivenUp
	// Promised is that of the LogState.
	Promised cell.Seq
}

// SealLog makes sure that no server writes to a log any more and returns the part to
// replay.
func SealLog(ctx context.Context, l lock.Service, store objectstore.Store, id commitlog.ID) (SealedLog, error) {
	for {
		state, version, err := ReadLog(ctx, l, id)
		if err == nil && !state.Frozen {
			state.Frozen = true
			err = writeLog(ctx, l, id, state, version)
			if errors.Is(err, fault.Aborted) {
				continue
			}
		}
		if err != nil {
			return SealedLog{}, err
		}
		s := SealedLog{From: state.Kept, GivenUp: state.GivenUp, Promised: state.Promised}
		s.End, err = commitlog.Seal(ctx, store, id, s.From, s.GivenUp)
		return s, err
	}
}
