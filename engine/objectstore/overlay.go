package objectstore

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2/objstorage"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/fault"
)

// Overlay returns a store that shows what lower holds and keeps every change in memory.
// lower is only read; the caller makes sure that nothing writes to it. It lets a tool
// recover what servers have left, and change nothing.
func Overlay(lower Store) (Store, error) {
	upper, err := OpenLocal(vfs.NewMem(), "overlay", LocalOptions{})
	return &overlay{lower: lower, upper: upper, deleted: map[string]bool{}}, err
}

var _ Copying = (*overlay)(nil)

type overlay struct {
	lower Store
	upper *Local

	mu sync.Mutex
	// deleted are the objects of lower that are not shown.
	deleted map[string]bool
}

// below tells whether lower shows an object. It is called with mu held.
func (o *overlay) below(ctx context.Context, name string) (bool, error) {
	if o.deleted[name] {
		return false, nil
	}
	r, err := o.lower.Open(ctx, name)
	if errors.Is(err, fault.NotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, r.Close()
}

// absent calls do unless lower has an object of the name.
func (o *overlay) absent(ctx context.Context, name string, do func() error) error {
	if err := CheckName(name); err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	there, err := o.below(ctx, name)
	if err == nil && there {
		err = fault.New(fault.AlreadyExists, "object %s exists", name)
	}
	if err != nil {
		return err
	}
	return do()
}

// PutIfAbsent implements Store.
func (o *overlay) PutIfAbsent(ctx context.Context, name string, data []byte) error {
	return o.absent(ctx, name, func() error { return o.upper.PutIfAbsent(ctx, name, data) })
}

// Create implements Store.
func (o *overlay) Create(ctx context.Context, name string) (objstorage.Writable, error) {
	w, err := o.upper.Create(ctx, name)
	if err != nil {
		return nil, err
	}
	return &overlayWriter{w, o, ctx, name}, nil
}

type overlayWriter struct {
	objstorage.Writable
	o    *overlay
	ctx  context.Context // of Create
	name string
}

// Finish implements objstorage.Writable.
func (w *overlayWriter) Finish() error {
	finished := false
	err := w.o.absent(w.ctx, w.name, func() error {
		finished = true
		return w.Writable.Finish()
	})
	if !finished {
		w.Abort()
	}
	return err
}

// pick returns the store that has an object.
func (o *overlay) pick(ctx context.Context, name string) Store {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.deleted[name] {
		return o.upper
	}
	if r, err := o.upper.Open(ctx, name); err == nil {
		_ = r.Close()
		return o.upper
	}
	return o.lower
}

// Open implements Store.
func (o *overlay) Open(ctx context.Context, name string) (objstorage.Readable, error) {
	return o.pick(ctx, name).Open(ctx, name)
}

// OpenStored implements Copying.
func (o *overlay) OpenStored(ctx context.Context, name string) (objstorage.Readable, error) {
	return OpenStored(ctx, o.pick(ctx, name), name)
}

// Distrust implements Copying.
func (o *overlay) Distrust(name string) { Distrust(o.lower, name) }

// Get implements Store.
func (o *overlay) Get(ctx context.Context, name string) ([]byte, error) {
	return o.pick(ctx, name).Get(ctx, name)
}

// List implements Store.
func (o *overlay) List(ctx context.Context, prefix, after string, n int) ([]Info, error) {
	lower, err := o.lower.List(ctx, prefix, after, 0)
	if err != nil {
		return nil, err
	}
	upper, err := o.upper.List(ctx, prefix, after, 0)
	if err != nil {
		return nil, err
	}
	o.mu.Lock()
	deleted := maps.Clone(o.deleted)
	o.mu.Unlock()
	out := append(slices.DeleteFunc(lower, func(i Info) bool { return deleted[i.Name] }), upper...)
	slices.SortFunc(out, func(a, b Info) int { return strings.Compare(a.Name, b.Name) })
	if n > 0 && len(out) > n {
		out = out[:n]
	}
	return out, nil
}

// Delete implements Store.
func (o *overlay) Delete(ctx context.Context, name string) error {
	if err := o.upper.Delete(ctx, name); err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.deleted[name] = true
	return nil
}

// Probe implements Store.
func (o *overlay) Probe(ctx context.Context) error { return o.upper.Probe(ctx) }
