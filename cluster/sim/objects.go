package sim

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/objstorage"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/objectstore"
)

// objects is a Store in memory. A directory of files in memory does it too, but lists
// itself for every object of a commit log, which is a quarter of a storm's time.
type objects struct {
	mu    sync.Mutex
	names []string // in order
	held  map[string]heldObject
}

// A heldObject does not change.
type heldObject struct {
	data     []byte
	modified time.Time
}

var _ objectstore.Store = (*objects)(nil)

func newObjects() *objects { return &objects{held: map[string]heldObject{}} }

// checkName returns why nothing is done with an object, if so.
func checkName(ctx context.Context, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return objectstore.CheckName(name)
}

// PutIfAbsent implements objectstore.Store.
func (s *objects) PutIfAbsent(ctx context.Context, name string, data []byte) error {
	if err := checkName(ctx, name); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	i, found := slices.BinarySearch(s.names, name)
	if found {
		return fault.New(fault.AlreadyExists, "object %s already exists", name)
	}
	s.names = slices.Insert(s.names, i, name)
	s.held[name] = heldObject{bytes.Clone(data), time.Now()}
	return nil
}

// Create implements objectstore.Store.
func (s *objects) Create(ctx context.Context, name string) (objstorage.Writable, error) {
	if err := checkName(ctx, name); err != nil {
		return nil, err
	}
	return &written{ctx: ctx, to: s, name: name}, nil
}

// get returns an object, or fault.NotFound.
func (s *objects) get(ctx context.Context, name string) (heldObject, error) {
	if err := checkName(ctx, name); err != nil {
		return heldObject{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.held[name]
	if !ok {
		return o, fault.New(fault.NotFound, "object %s does not exist", name)
	}
	return o, nil
}

// Open implements objectstore.Store.
func (s *objects) Open(ctx context.Context, name string) (objstorage.Readable, error) {
	o, err := s.get(ctx, name)
	if err != nil {
		return nil, err
	}
	return objectstore.NewRanged(name, int64(len(o.data)), func(_ context.Context, p []byte, off int64) error {
		copy(p, o.data[off:])
		return nil
	}), nil
}

// Get implements objectstore.Store.
func (s *objects) Get(ctx context.Context, name string) ([]byte, error) {
	o, err := s.get(ctx, name)
	return bytes.Clone(o.data), err
}

// List implements objectstore.Store.
func (s *objects) List(ctx context.Context, prefix, after string, n int) (out []objectstore.Info, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	i, _ := slices.BinarySearch(s.names, max(prefix, after))
	for _, name := range s.names[i:] {
		if !strings.HasPrefix(name, prefix) || n > 0 && len(out) == n {
			break
		}
		if name > after {
			o := s.held[name]
			out = append(out, objectstore.Info{Name: name, Size: int64(len(o.data)), Modified: o.modified})
		}
	}
	return out, nil
}

// Delete implements objectstore.Store.
func (s *objects) Delete(ctx context.Context, name string) error {
	if err := checkName(ctx, name); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if i, found := slices.BinarySearch(s.names, name); found {
		s.names = slices.Delete(s.names, i, i+1)
		delete(s.held, name)
	}
	return nil
}

// Probe implements objectstore.Store.
func (s *objects) Probe(ctx context.Context) error { return objectstore.Probe(ctx, s) }

// written is an object that is stored as a whole when it is finished.
type written struct {
	ctx  context.Context //nolint:containedctx // objstorage.Writable has none
	to   objectstore.Store
	name string
	data bytes.Buffer
}

func (o *written) StartMetadataPortion() error { return nil }

func (o *written) Write(p []byte) error {
	_, err := o.data.Write(p)
	return err
}

func (o *written) Finish() error { return o.to.PutIfAbsent(o.ctx, o.name, o.data.Bytes()) }

func (o *written) Abort() {}
