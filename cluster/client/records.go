package client

import (
	"context"
	"errors"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/engine/fault"
)

// GetRecord implements backend.Records.
func (c *Client) GetRecord(ctx context.Context, key string) ([]byte, uint64, error) {
	i, err := c.o.Lock.Get(ctx, catalog.RecordsPrefix+key)
	if errors.Is(err, fault.NotFound) {
		return nil, 0, fault.New(fault.NotFound, "record %q does not exist", key)
	}
	return i.Value, uint64(i.Version), err
}

func aborted(key string, err error) error {
	if errors.Is(err, fault.Aborted) {
		return fault.New(fault.Aborted, "record %q has another version", key)
	}
	return err
}

// PutRecord implements backend.Records.
func (c *Client) PutRecord(ctx context.Context, key string, value []byte, version uint64) (uint64, error) {
	next, err := c.o.Lock.Put(ctx, catalog.RecordsPrefix+key, value, int64(version))
	return uint64(next), aborted(key, err)
}

// DeleteRecord implements backend.Records.
func (c *Client) DeleteRecord(ctx context.Context, key string, version uint64) error {
	if version == 0 {
		// It must not exist, as it will.
		if _, _, err := c.GetRecord(ctx, key); errors.Is(err, fault.NotFound) {
			return nil
		}
		return fault.New(fault.Aborted, "record %q exists", key)
	}
	return aborted(key, c.o.Lock.Delete(ctx, catalog.RecordsPrefix+key, int64(version)))
}

// ListRecords implements backend.Records.
func (c *Client) ListRecords(ctx context.Context, prefix string, emit func(key string, value []byte, version uint64) error) error {
	items, _, err := c.o.Lock.List(ctx, catalog.RecordsPrefix+prefix)
	if err != nil {
		return err
	}
	for _, i := range items {
		if err := emit(i.Key[len(catalog.RecordsPrefix):], i.Value, uint64(i.Version)); err != nil {
			return err
		}
	}
	return nil
}
