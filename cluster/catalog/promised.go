package catalog

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
)

// PromisedKey is where the lock service of one process has the bound of its promises to
// readers of changes. It is what LogState.Promised is to a log of segment objects: for a log
// whose clock records cannot all be read.
const PromisedKey = "promised"

type promisedState struct{ Promised cell.Seq }

// ReadPromised returns the bound of promises of one process, 0 if it has made none, and the
// version of the item.
func ReadPromised(ctx context.Context, l lock.Service) (w cell.Seq, version int64, err error) {
	i, err := l.Get(ctx, PromisedKey)
	if errors.Is(err, fault.NotFound) {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, err
	}
	var s promisedState
	if err := json.Unmarshal(i.Value, &s); err != nil {
		return 0, 0, fault.New(fault.Corruption, "item %s: %w", PromisedKey, err)
	}
	return s.Promised, i.Version, nil
}

// WritePromised changes the bound and returns the new version of the item.
func WritePromised(ctx context.Context, l lock.Service, w cell.Seq, version int64) (int64, error) {
	value, err := json.Marshal(promisedState{w})
	if err != nil {
		return 0, err
	}
	return l.Put(ctx, PromisedKey, value, version)
}
