package catalog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"

	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/engine/fault"
)

// FormatVersion is the version of what this program keeps in the lock service, in
// METADATA, and in the store or data directory. docs/formats.md lists its parts. Version 1
// was never released. Of version 2 are data whose sequence numbers are counters;
// since version 3 they are commit times (engine/stamp), which programs that know
// version 2 only would count on from.
const FormatVersion = 3

// OldestFormat is the earliest version that this program reads. It writes
// FormatVersion: the first process that may change something says so before it does.
const OldestFormat = 2

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
	_, there, err := readFormat(ctx, l)
	if !there && empty && fault.KindOf(err) == fault.FailedPrecondition {
		return nil
	}
	return err
}

// readFormat returns the item, which may not be there, and what CheckFormat does.
func readFormat(ctx context.Context, l lock.Service) (item lock.Item, there bool, err error) {
	v := 1 // which had no such item
	i, err := l.Get(ctx, FormatKey)
	switch {
	case errors.Is(err, fault.NotFound):
	case err != nil:
		return i, false, err
	default:
		there = true
		if err := json.Unmarshal(i.Value, &v); err != nil {
			return i, true, fault.New(fault.Corruption, "item %s: %w", FormatKey, err)
		}
	}
	if v < OldestFormat || v > FormatVersion {
		return i, there, fault.New(fault.FailedPrecondition, "the lock service and the store hold data of format %d; this program reads format %d: "+
			"use the version of trestle that wrote it, or another cluster name and store", v, FormatVersion)
	}
	return i, there, nil
}

// raiseFormat says in a lock service of an earlier version that this program writes to
// it, so that programs of that version refuse it from now on. It refuses to while tablet
// servers of that version live.
func raiseFormat(ctx context.Context, l lock.Service) error {
	value, err := json.Marshal(FormatVersion)
	if err != nil {
		return err
	}
	for {
		item, _, err := readFormat(ctx, l)
		if err != nil || bytes.Equal(item.Value, value) {
			return err
		}
		// One of that version would count on from commit times, and no log of it could be
		// replayed then.
		servers, _, err := Servers(ctx, l)
		if err != nil {
			return err
		}
		for _, r := range servers {
			return fault.New(fault.FailedPrecondition, "tablet server %v, at %s, is of a version that writes format %s; this program writes format %d: "+
				"stop all processes of the cluster first, and wait until its session has ended", r.ServerName(), r.Addr, item.Value, FormatVersion)
		}
		if _, err = l.Put(ctx, FormatKey, value, item.Version); !errors.Is(err, fault.Aborted) {
			return err
		}
	}
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
