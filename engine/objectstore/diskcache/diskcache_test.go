package diskcache_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/objstorage"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/objectstore/diskcache"
	"github.com/trestledb/trestle/engine/objectstore/storetest"
)

func local(t testing.TB) objectstore.Store {
	t.Helper()
	s, err := objectstore.OpenLocal(vfs.NewMem(), "d", objectstore.LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func open(t testing.TB, s objectstore.Store, fs vfs.FS, o diskcache.Options) *diskcache.Cache {
	t.Helper()
	c, err := diskcache.Open(s, fs, "cache", o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestStore: a store with a cache is a store, also with one that is too small,
// and on a disk that fails half of the time.
func TestStore(t *testing.T) {
	t.Run("large", func(t *testing.T) {
		storetest.Run(t, func(t *testing.T) objectstore.Store { return open(t, local(t), vfs.NewMem(), diskcache.Options{}) })
	})
	t.Run("small", func(t *testing.T) {
		storetest.Run(t, func(t *testing.T) objectstore.Store {
			return open(t, local(t), vfs.NewMem(), diskcache.Options{Bytes: 7 << 20})
		})
	})
	t.Run("failing disk", func(t *testing.T) {
		storetest.Run(t, func(t *testing.T) objectstore.Store {
			var n atomic.Int64
			fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
				if op.Kind != errorfs.OpMkdirAll && op.Kind != errorfs.OpList && n.Add(1)%2 == 0 {
					return errors.New("injected")
				}
				return nil
			}))
			return open(t, local(t), fs, diskcache.Options{})
		})
	})
}

// counted counts what is asked of a store.
type counted struct {
	objectstore.Store
	opens, reads atomic.Int64
}

func (s *counted) Open(ctx context.Context, name string) (objstorage.Readable, error) {
	s.opens.Add(1)
	r, err := s.Store.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	return &countedReadable{r, s}, nil
}

type countedReadable struct {
	objstorage.Readable
	s *counted
}

func (r *countedReadable) ReadAt(ctx context.Context, p []byte, off int64) error {
	r.s.reads.Add(1)
	return r.Readable.ReadAt(ctx, p, off)
}

func create(t testing.TB, s objectstore.Store, name string, data []byte) {
	t.Helper()
	w, err := s.Create(t.Context(), name)
	if err == nil {
		err = errors.Join(w.Write(bytes.Clone(data)), w.Finish())
	}
	if err != nil {
		t.Fatal(err)
	}
}

func content(i, n int) []byte {
	b := make([]byte, n)
	rng := rand.New(rand.NewPCG(uint64(i), 1))
	for j := range b {
		b[j] = byte(rng.Uint32())
	}
	return b
}

func read(t testing.TB, r objstorage.Readable, want []byte, off, n int) {
	t.Helper()
	p := make([]byte, n)
	if err := r.ReadAt(context.Background(), p, int64(off)); err != nil || !bytes.Equal(p, want[off:off+n]) {
		t.Errorf("read %d bytes at %d: wrong bytes, %v", n, off, err)
	}
}

// TestWriteThrough: what was written here is never read from the store, also
// after a restart.
func TestWriteThrough(t *testing.T) {
	store, fs := &counted{Store: local(t)}, vfs.NewMem()
	data := content(1, 100_000)
	c := open(t, store, fs, diskcache.Options{})
	create(t, c, "dir/a", data)
	for range 2 {
		r, err := c.Open(t.Context(), "dir/a")
		if err != nil {
			t.Fatal(err)
		}
		read(t, r, data, 5000, 3000)
		r.Close()
		c.Close()
		c = open(t, store, fs, diskcache.Options{})
	}
	if store.opens.Load()+store.reads.Load() > 0 {
		t.Errorf("%d opens, %d reads of the store", store.opens.Load(), store.reads.Load())
	}
	if err := c.Delete(t.Context(), "dir/a"); err != nil {
		t.Fatal(err)
	}
	if s := c.Stats(); s.Files != 0 || s.Bytes != 0 {
		t.Errorf("after the deletion: %+v", s)
	}
	if names, _ := fs.List("cache"); len(names) != 0 {
		t.Errorf("files left: %v", names)
	}
}

// TestOtherStore: copies of another store are not taken for objects of the same names. Those of
// the store itself are used again.
func TestOtherStore(t *testing.T) {
	fs, one, two := vfs.NewMem(), local(t), local(t)
	for _, c := range []struct {
		store  objectstore.Store
		id     string
		copies int64 // at the beginning
	}{{one, "one", 0}, {one, "one", 1}, {two, "two", 0}, {two, "two", 1}, {one, "one", 0}} {
		cache := open(t, c.store, fs, diskcache.Options{Store: c.id})
		if n := cache.Stats().Files; n != c.copies {
			t.Errorf("store %s: %d copies, want %d", c.id, n, c.copies)
		}
		if _, err := c.store.Get(t.Context(), "dir/x"); err != nil {
			create(t, cache, "dir/x", []byte(c.id))
		}
		if b, err := cache.Get(t.Context(), "dir/x"); err != nil || string(b) != c.id {
			t.Errorf("store %s: %q, %v", c.id, b, err)
		}
		cache.Close()
	}
}

// TestWrittenIsBelieved: what is written here is read, whatever copy of that name there was.
func TestWrittenIsBelieved(t *testing.T) {
	fs := vfs.NewMem()
	c := open(t, local(t), fs, diskcache.Options{})
	create(t, c, "x", []byte("of another store"))
	c.Close()
	c = open(t, local(t), fs, diskcache.Options{})
	create(t, c, "x", []byte("of this one"))
	if b, err := c.Get(t.Context(), "x"); err != nil || string(b) != "of this one" {
		t.Errorf("%q, %v", b, err)
	}
	if s := c.Stats(); s.Files != 1 || s.Bytes != int64(len("of this one")) {
		t.Errorf("%+v", s)
	}
}

// TestFetch: an object that somebody else wrote is read from the store until
// there is a copy, then, by those who have it open, from the copy.
func TestFetch(t *testing.T) {
	store := &counted{Store: local(t)}
	data := content(1, 10<<20)
	create(t, store, "a", data)
	c := open(t, store, vfs.NewMem(), diskcache.Options{})
	r, err := c.Open(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	h := r.NewReadHandle(0)
	defer h.Close()
	for start := time.Now(); c.Stats().Fetched == 0 || c.Stats().Files == 0; time.Sleep(time.Millisecond) {
		read(t, r, data, 77, 1000)
		if time.Since(start) > time.Minute {
			t.Fatal("no copy is made")
		}
	}
	n := store.reads.Load()
	for range 10 {
		read(t, r, data, 9<<20, 1000)
		p := make([]byte, 100)
		if err := h.ReadAt(t.Context(), p, 5); err != nil || !bytes.Equal(p, data[5:105]) {
			t.Errorf("read by handle: %v", err)
		}
	}
	if store.reads.Load() != n {
		t.Errorf("%d reads of the store with a copy", store.reads.Load()-n)
	}
}

// TestEvict: the cache keeps within its size while objects are open, and what
// was read last stays.
func TestEvict(t *testing.T) {
	store, fs := local(t), vfs.NewMem()
	const n, size = 20, 100_000
	c := open(t, store, fs, diskcache.Options{Bytes: 5 * size})
	var rs []objstorage.Readable
	var data [][]byte
	for i := range n {
		data = append(data, content(i, size))
		create(t, c, fmt.Sprintf("o%d", i), data[i])
		r, err := c.Open(t.Context(), fmt.Sprintf("o%d", i))
		if err != nil {
			t.Fatal(err)
		}
		rs = append(rs, r)
		read(t, rs[0], data[0], 0, 10) // in use all the time
	}
	if s := c.Stats(); s.Bytes > 5*size || s.Evicted != n-5 {
		t.Errorf("%+v", s)
	}
	hits := c.Stats().Hits
	read(t, rs[0], data[0], 0, 10)
	if c.Stats().Hits != hits+1 {
		t.Error("the object that was always in use is gone")
	}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 2))
			for range 300 {
				i, off := rng.IntN(n), rng.IntN(size-5000)
				read(t, rs[i], data[i], off, 5000)
			}
		})
	}
	wg.Wait()
	for _, r := range rs {
		r.Close()
	}
	c.Close()
	var sum int64
	names, _ := fs.List("cache")
	for _, name := range names {
		info, err := fs.Stat("cache/" + name)
		if err != nil || strings.HasPrefix(name, ".") {
			t.Errorf("%s: %v", name, err)
			continue
		}
		sum += info.Size()
	}
	if s := c.Stats(); sum != s.Bytes || sum > 5*size {
		t.Errorf("%d bytes of files, the cache says %d", sum, s.Bytes)
	}
}
