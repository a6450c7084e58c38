package catalog

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/engine/fault"
)

// FormatVersion is the version of what this program keeps in the lock service, in
// METADATA, and in the store or data directory. docs/formats.md lists its parts. Version 1
// was never released.
const FormatVersion = 2

// FormatKey is the item of the format version of a lock service and its store.
const FormatKey = "format"

// CheckFormat returns fault.FailedPrecondition if this program does not read the format
// version of the lock service and its store. An empty lock service has none.
func CheckFormat(ctx context.Context, l lock.Service) error {
	// In this order: the format is written before anything else.
	_, err := l.Get(ctx, IncarnationKey)
	empty := errors.Is(err, fault.NotFound)
	if err != nil && !empty {
		return err
	}
	v := 1 // which had no such item
	i, err := l.Get(ctx, FormatKey)
	switch {
	case errors.Is(err, fault.NotFound) && empty:
		return nil
	case errors.Is(err, fault.NotFound):
	case err != nil:
		return err
	default:
		if err := json.Unmarshal(i.Value, &v); err != nil {
			return fault.New(fault.Corruption, "item %s: %w", FormatKey, err)
		}
	}
	if v != FormatVersion {
		return fault.New(fault.FailedPrecondition, "the lock service and the store hold data of format %d; this program reads format %d: "+
			"use the version of trestle that wrote it, or another cluster name and store", v, FormatVersion)
	}
	return nil
}

// markFormat writes the format version into an empty lock service.
func markFormat(ctx context.Context, l lock.Service) error {
	value, err := json.Marshal(FormatVersion)
	if err != nil {
		return err
	}
	if _, err = l.Put(ctx, FormatKey, value, 0); errors.Is(err, fault.Aborted) {
		return CheckFormat(ctx, l) // another process has said so
	}
	return err
}
