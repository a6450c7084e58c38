package sim

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/objstorage"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/objectstore"
)

// A farStore is the store at the other end of the network. A change may be made though its
// answer was lost or its caller has given up. It may be made twice, as clients of stores
// repeat calls without an answer.
type farStore struct {
	objectstore.Store
	c *Cluster
	n *node
}

func farAsk[T any](ctx context.Context, s *farStore, kind string, do func(context.Context) (T, error)) (T, error) {
	changes := kind == "PutIfAbsent" || kind == "Delete"
	out, err := exchange(ctx, s.c, s.n, Message{From: s.n.name, To: Store, Kind: kind, Changes: changes, Twice: changes}, do)
	if isLost(err) {
		err = fault.New(fault.Unavailable, "store: %w", err)
	}
	return out, err
}

func (s *farStore) PutIfAbsent(ctx context.Context, name string, data []byte) error {
	data = slices.Clone(data) // it may travel for longer than its sender waits
	var mine atomic.Bool      // clients of stores know what they have put
	_, err := farAsk(ctx, s, "PutIfAbsent", func(ctx context.Context) (struct{}, error) {
		err := s.Store.PutIfAbsent(ctx, name, data)
		if err == nil {
			mine.Store(true)
		}
		if mine.Load() && errors.Is(err, fault.AlreadyExists) {
			err = nil
		}
		return struct{}{}, err
	})
	return err
}

func (s *farStore) Get(ctx context.Context, name string) ([]byte, error) {
	return farAsk(ctx, s, "Get", func(ctx context.Context) ([]byte, error) { return s.Store.Get(ctx, name) })
}

func (s *farStore) List(ctx context.Context, prefix, after string, n int) ([]objectstore.Info, error) {
	return farAsk(ctx, s, "List", func(ctx context.Context) ([]objectstore.Info, error) { return s.Store.List(ctx, prefix, after, n) })
}

func (s *farStore) Delete(ctx context.Context, name string) error {
	_, err := farAsk(ctx, s, "Delete", func(ctx context.Context) (struct{}, error) { return struct{}{}, s.Store.Delete(ctx, name) })
	return err
}

// Open implements objectstore.Store. The object itself is read without the
// network.
func (s *farStore) Open(ctx context.Context, name string) (objstorage.Readable, error) {
	return farAsk(ctx, s, "Open", func(ctx context.Context) (objstorage.Readable, error) { return s.Store.Open(ctx, name) })
}

// Create implements objectstore.Store: what is written travels when it is
// finished.
func (s *farStore) Create(ctx context.Context, name string) (objstorage.Writable, error) {
	return &written{ctx: ctx, to: s, name: name}, nil
}
