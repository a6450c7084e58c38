package objectstore_test

import (
	"context"
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2/objstorage"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/objectstore/storetest"
)

func overlaid(t *testing.T) (over, lower objectstore.Store) {
	t.Helper()
	lower, err := objectstore.OpenLocal(vfs.NewMem(), "lower", objectstore.LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if over, err = objectstore.Overlay(lower); err != nil {
		t.Fatal(err)
	}
	return over, lower
}

func TestOverlay(t *testing.T) {
	storetest.Run(t, func(t *testing.T) objectstore.Store {
		over, _ := overlaid(t)
		return over
	})
}

// A checked store counts what is read past its copies.
type checked struct {
	objectstore.Store
	past, distrusted int
}

func (c *checked) OpenStored(ctx context.Context, name string) (objstorage.Readable, error) {
	c.past++
	return c.Open(ctx, name)
}

func (c *checked) Distrust(string) { c.distrusted++ }

// TestOverlayPastCopies: who looks at what is stored does so through an overlay, too.
func TestOverlayPastCopies(t *testing.T) {
	ctx := t.Context()
	_, lower := overlaid(t)
	c := &checked{Store: lower}
	over, err := objectstore.Overlay(c)
	if err == nil {
		err = errors.Join(lower.PutIfAbsent(ctx, "a", []byte("a")), over.PutIfAbsent(ctx, "b", []byte("b")))
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b"} {
		r, err := objectstore.OpenStored(ctx, over, name)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		objectstore.Distrust(over, name)
	}
	if c.past != 1 || c.distrusted != 2 {
		t.Errorf("%d objects were read past copies, %d distrusted", c.past, c.distrusted)
	}
}

// TestOverlayKeepsTheLower: what is below is shown, cannot be overwritten, and is
// what it was, whatever is done above.
func TestOverlayKeepsTheLower(t *testing.T) {
	ctx := t.Context()
	over, lower := overlaid(t)
	for _, name := range []string{"a", "b/1", "b/2"} {
		if err := lower.PutIfAbsent(ctx, name, []byte("lower "+name)); err != nil {
			t.Fatal(err)
		}
	}
	want := func(s objectstore.Store, what string, names ...string) {
		t.Helper()
		infos, err := s.List(ctx, "", "", 0)
		if err != nil || len(infos) != len(names) {
			t.Fatalf("%s: %v, %v", what, infos, err)
		}
		for i, info := range infos {
			b, err := s.Get(ctx, info.Name)
			if info.Name != names[i] || err != nil || int64(len(b)) != info.Size {
				t.Errorf("%s: object %d is %s of %d bytes, %q, %v; want %s", what, i, info.Name, info.Size, b, err, names[i])
			}
		}
	}
	want(over, "shown", "a", "b/1", "b/2")
	if err := over.PutIfAbsent(ctx, "a", []byte("x")); !errors.Is(err, fault.AlreadyExists) {
		t.Errorf("put over what is below: %v", err)
	}
	w, err := over.Create(ctx, "b/1")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Write([]byte("x")), w.Finish()); !errors.Is(err, fault.AlreadyExists) {
		t.Errorf("write over what is below: %v", err)
	}
	if err := errors.Join(over.Delete(ctx, "b/1"), over.PutIfAbsent(ctx, "c", []byte("c"))); err != nil {
		t.Fatal(err)
	}
	want(over, "after a deletion and a put", "a", "b/2", "c")
	if _, err := over.Get(ctx, "b/1"); !errors.Is(err, fault.NotFound) {
		t.Errorf("what was deleted: %v", err)
	}
	if err := over.PutIfAbsent(ctx, "b/1", []byte("again")); err != nil {
		t.Errorf("put what was deleted: %v", err)
	}
	if b, err := over.Get(ctx, "b/1"); string(b) != "again" {
		t.Errorf("%q, %v", b, err)
	}
	if two, err := over.List(ctx, "b/", "", 1); err != nil || len(two) != 1 || two[0].Name != "b/1" {
		t.Errorf("a page of the list: %v, %v", two, err)
	}
	want(lower, "below", "a", "b/1", "b/2")
}
