package model

import (
	"bytes"
	"context"
	"sort"
	"strings"

	"github.com/trestledb/trestle/engine/fault"
)

type record struct {
	value   []byte
	version uint64
}

// GetRecord implements backend.Records.
func (b *Backend) GetRecord(ctx context.Context, key string) ([]byte, uint64, error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	r, ok := b.mu.records[key]
	if !ok {
		return nil, 0, fault.New(fault.NotFound, "Record not found: %s", key)
	}
	return bytes.Clone(r.value), r.version, nil
}

// PutRecord implements backend.Records.
func (b *Backend) PutRecord(ctx context.Context, key string, value []byte, version uint64) (uint64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.recordIsLocked(key, version); err != nil {
		return 0, err
	}
	b.mu.records[key] = record{value: bytes.Clone(value), version: version + 1}
	return version + 1, nil
}

// DeleteRecord implements backend.Records.
func (b *Backend) DeleteRecord(ctx context.Context, key string, version uint64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.recordIsLocked(key, version); err != nil {
		return err
	}
	delete(b.mu.records, key)
	return nil
}

// recordIsLocked checks that a record has the given version, 0 being absence.
func (b *Backend) recordIsLocked(key string, version uint64) error {
	if have := b.mu.records[key].version; have != version {
		return fault.New(fault.Aborted, "Record %s has version %d, not %d", key, have, version)
	}
	return nil
}

// ListRecords implements backend.Records.
func (b *Backend) ListRecords(ctx context.Context, prefix string, emit func(string, []byte, uint64) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	b.mu.Lock()
	all := make(map[string]record)
	var keys []string
	for k, r := range b.mu.records {
		if strings.HasPrefix(k, prefix) {
			all[k] = r
			keys = append(keys, k)
		}
	}
	b.mu.Unlock()
	sort.Strings(keys)
	for _, k := range keys {
		if err := emit(k, bytes.Clone(all[k].value), all[k].version); err != nil {
			return err
		}
	}
	return nil
}
