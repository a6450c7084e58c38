package diskcache

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/objstorage"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/objectstore"
)

const (
	tempPrefix = "." // of the names of copies that are being made
	// ofStore is the file that says whose copies there are: Options.Store. Without it they
	// may be of any store. No object has its name.
	ofStore = ".store"
	// fetchChunk is read from the store at a time.
	fetchChunk = 4 << 20
	// writeBuffer is written to a copy at a time.
	writeBuffer = 256 << 10
	// fetchQueue bounds the copies that wait to be made; what does not fit is
	// asked for again when it is read.
	fetchQueue = 1024
	// An object is fetched again once 1/refetch of its size was read from the store since
	// it was opened or evicted. With less, a cache that is too small would fetch all the
	// time.
	refetch = 8
)

// Options of a Cache.
type Options struct {
	// Store names the store. No other one ever has that name, be it at the same place. Copies
	// of another store are removed: objects of two stores may have one name.
	Store string
	// Bytes bounds the copies. Default 64 GiB.
	Bytes int64
	// Fetchers is how many objects are fetched at a time. Default 2.
	Fetchers int
	Log      *slog.Logger // component; nil discards
}

// Stats count what a Cache did.
type Stats struct {
	Hits, Misses         int64 // reads from the disk, from the store
	HitBytes, MissBytes  int64
	Files, Bytes         int64 // what is cached
	Fetched, Evicted     int64 // objects
	FailedCopies, Failed int64 // copies not made, reads of a copy that failed
}

// A Cache is an objectstore.Store with copies of what it holds.
type Cache struct {
	objectstore.Store
	fs  vfs.FS
	dir string
	o   Options

	clock    atomic.Int64
	lastTemp atomic.Uint64
	stats    struct {
		hits, misses, hitBytes, missBytes, fetched, evicted, failedCopies, failed atomic.Int64
	}

	ctx     context.Context // of fetches
	cancel  context.CancelFunc
	running sync.WaitGroup
	fetches chan string

	mu struct {
		sync.Mutex
		copies  map[string]*cached
		bytes   int64
		queued  map[string]bool
		readers map[string]map[*reader]bool
	}
}

var _ objectstore.Copying = (*Cache)(nil)

// cached is a copy.
type cached struct {
	size int64
	used atomic.Int64 // by the clock, which counts uses
}

// Open returns store with a cache in dir, which no other process uses. Copies
// of an earlier process are used again. Close the cache after the last object
// was closed; store stays open.
func Open(store objectstore.Store, fs vfs.FS, dir string, o Options) (*Cache, error) {
	if o.Bytes == 0 {
		o.Bytes = 64 << 30
	}
	if o.Fetchers == 0 {
		o.Fetchers = 2
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	c := &Cache{Store: store, fs: fs, dir: dir, o: o, fetches: make(chan string, fetchQueue)}
	c.mu.copies, c.mu.queued, c.mu.readers = map[string]*cached{}, map[string]bool{}, map[string]map[*reader]bool{}
	if err := c.load(); err != nil {
		return nil, fmt.Errorf("open disk cache %s: %w", dir, err)
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	for range o.Fetchers {
		c.running.Go(c.fetcher)
	}
	return c, nil
}

// load finds the copies that are there.
func (c *Cache) load() error {
	if err := c.fs.MkdirAll(c.dir, 0o755); err != nil {
		return err
	}
	names, err := c.fs.List(c.dir)
	if err != nil {
		return err
	}
	if names, err = c.claim(names); err != nil {
		return err
	}
	for _, file := range names {
		name := strings.ReplaceAll(file, ",", "/")
		if objectstore.CheckName(name) != nil {
			if err := c.fs.Remove(c.fs.PathJoin(c.dir, file)); err != nil {
				return err
			}
			continue
		}
		info, err := c.fs.Stat(c.path(name))
		if err != nil {
			return err
		}
		c.mu.copies[name] = &cached{size: info.Size()}
		c.mu.bytes += info.Size()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.evictLocked()
	return nil
}

// claim makes the directory, which has files of these names, one of copies of the store. It
// returns the names of those that may be.
func (c *Cache) claim(files []string) ([]string, error) {
	of, copies := "", slices.DeleteFunc(slices.Clone(files), func(f string) bool { return f == ofStore })
	if len(copies) < len(files) {
		f, err := c.fs.Open(c.fs.PathJoin(c.dir, ofStore))
		if err != nil {
			return nil, err
		}
		b, err := io.ReadAll(f)
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
		of = string(b)
	}
	if of == c.o.Store {
		return copies, nil
	}
	// The name is written last: one that is there is that of all copies, whenever the machine fails.
	for _, f := range files {
		if err := c.fs.Remove(c.fs.PathJoin(c.dir, f)); err != nil {
			return nil, err
		}
	}
	if len(copies) > 0 {
		c.o.Log.Info("removed copies of another store", "dir", c.dir, "files", len(copies))
	}
	if err := c.syncDir(); err != nil {
		return nil, err
	}
	f, err := c.fs.Create(c.fs.PathJoin(c.dir, ofStore), vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, err
	}
	_, err = f.Write([]byte(c.o.Store))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return nil, err
	}
	return nil, c.syncDir()
}

// syncDir makes the names in the directory survive a power cut.
func (c *Cache) syncDir() error {
	d, err := c.fs.OpenDir(c.dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// path returns where the copy of an object is; no name has a comma.
func (c *Cache) path(name string) string {
	return c.fs.PathJoin(c.dir, strings.ReplaceAll(name, "/", ","))
}

// Close ends what is being fetched.
func (c *Cache) Close() error {
	c.cancel()
	c.running.Wait()
	return nil
}

// Stats returns the counters.
func (c *Cache) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Stats{
		Hits: c.stats.hits.Load(), Misses: c.stats.misses.Load(),
		HitBytes: c.stats.hitBytes.Load(), MissBytes: c.stats.missBytes.Load(),
		Files: int64(len(c.mu.copies)), Bytes: c.mu.bytes,
		Fetched: c.stats.fetched.Load(), Evicted: c.stats.evicted.Load(),
		FailedCopies: c.stats.failedCopies.Load(), Failed: c.stats.failed.Load(),
	}
}

// Get implements objectstore.Store.
func (c *Cache) Get(ctx context.Context, name string) ([]byte, error) {
	c.mu.Lock()
	e := c.mu.copies[name]
	c.mu.Unlock()
	if e == nil || ctx.Err() != nil {
		return c.Store.Get(ctx, name)
	}
	r, err := c.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	data := make([]byte, r.Size())
	return data, errors.Join(r.ReadAt(ctx, data, 0), r.Close())
}

// Delete implements objectstore.Store.
func (c *Cache) Delete(ctx context.Context, name string) error {
	if err := c.Store.Delete(ctx, name); err != nil {
		return err
	}
	c.Distrust(name)
	return nil
}

// OpenStored implements objectstore.Copying.
func (c *Cache) OpenStored(ctx context.Context, name string) (objstorage.Readable, error) {
	return objectstore.OpenStored(ctx, c.Store, name)
}

// Distrust implements objectstore.Copying.
func (c *Cache) Distrust(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.mu.copies[name]; e != nil {
		c.dropLocked(name, e)
	}
}

// Probe implements objectstore.Store.
func (c *Cache) Probe(ctx context.Context) error { return c.Store.Probe(ctx) }

// Create implements objectstore.Store. The copy is made on the way.
func (c *Cache) Create(ctx context.Context, name string) (objstorage.Writable, error) {
	w, err := c.Store.Create(ctx, name)
	if err != nil {
		return nil, err
	}
	k := c.begin(name)
	k.written = true
	return &writer{c: c, name: name, w: w, copy: k}, nil
}

type writer struct {
	c    *Cache
	name string
	w    objstorage.Writable
	copy *copying
}

func (w *writer) Write(p []byte) error {
	w.copy.write(p)
	return w.w.Write(p)
}

func (w *writer) Finish() error {
	if err := w.w.Finish(); err != nil {
		w.copy.abort()
		return err
	}
	w.copy.finish()
	return nil
}

func (w *writer) Abort() {
	w.copy.abort()
	w.w.Abort()
}

// A copying is a copy that is being made. Its errors concern no caller.
type copying struct {
	c    *Cache
	name string
	tmp  string
	f    vfs.File
	buf  []byte // not written yet; also because a vfs.File may change what it is given
	size int64
	err  error
	// written says that the object is written by this process, and not fetched.
	written bool
}

func (c *Cache) begin(name string) *copying {
	k := &copying{c: c, name: name, tmp: c.fs.PathJoin(c.dir, fmt.Sprintf("%s%d", tempPrefix, c.lastTemp.Add(1)))}
	k.f, k.err = c.fs.Create(k.tmp, vfs.WriteCategoryUnspecified)
	return k
}

var errTooLarge = errors.New("the object is too large for the cache")

func (k *copying) write(p []byte) {
	k.size += int64(len(p))
	if k.err == nil && k.size > k.c.o.Bytes/2 {
		k.err = errTooLarge
	}
	for len(p) > 0 && k.err == nil {
		n := min(len(p), writeBuffer-len(k.buf))
		k.buf = append(k.buf, p[:n]...)
		p = p[n:]
		if len(k.buf) == writeBuffer {
			k.flush()
		}
	}
}

func (k *copying) flush() {
	if k.err == nil && len(k.buf) > 0 {
		_, k.err = k.f.Write(k.buf)
	}
	k.buf = k.buf[:0]
}

func (k *copying) abort() {
	if k.f != nil {
		_ = k.f.Close()
		_ = k.c.fs.Remove(k.tmp)
	}
}

// finish gives the copy its name, and hands it to the object's readers.
func (k *copying) finish() {
	k.flush()
	if k.err == nil {
		k.err = k.f.SyncData()
	}
	if k.err != nil {
		k.failed()
		return
	}
	c := k.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.mu.copies[k.name]; e != nil {
		if !k.written {
			k.abort()
			return
		}
		c.dropLocked(k.name, e) // whatever it is of, this is the object
	}
	k.err = errors.Join(k.f.Close(), c.fs.Rename(k.tmp, c.path(k.name)))
	if k.f = nil; k.err != nil {
		_ = c.fs.Remove(k.tmp)
		k.failed()
		return
	}
	e := &cached{size: k.size}
	e.used.Store(c.clock.Add(1))
	c.mu.copies[k.name] = e
	c.mu.bytes += e.size
	for r := range c.mu.readers[k.name] {
		r.attach(e)
	}
	c.evictLocked()
}

func (k *copying) failed() {
	k.abort()
	if !errors.Is(k.err, errTooLarge) {
		k.c.stats.failedCopies.Add(1)
		k.c.o.Log.Debug("no copy of an object", "object", k.name, "error", k.err)
	}
}

// evictLocked makes room.
func (c *Cache) evictLocked() {
	for c.mu.bytes > c.o.Bytes {
		oldest, name := int64(math.MaxInt64), ""
		for n, e := range c.mu.copies {
			if u := e.used.Load(); u < oldest {
				oldest, name = u, n
			}
		}
		c.stats.evicted.Add(1)
		c.dropLocked(name, c.mu.copies[name])
	}
}

// dropLocked forgets a copy. Readers of the object go on with the store, or its blocks
// would stay in use.
func (c *Cache) dropLocked(name string, e *cached) {
	delete(c.mu.copies, name)
	c.mu.bytes -= e.size
	for r := range c.mu.readers[name] {
		r.detach()
	}
	if err := c.fs.Remove(c.path(name)); err != nil {
		c.o.Log.Debug("remove a copy", "object", name, "error", err)
	}
}

// fetch asks for a copy.
func (c *Cache) fetch(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.copies[name] != nil || c.mu.queued[name] {
		return
	}
	select {
	case c.fetches <- name:
		c.mu.queued[name] = true
	default:
	}
}

func (c *Cache) fetcher() {
	for {
		select {
		case <-c.ctx.Done():
			return
		case name := <-c.fetches:
			c.makeCopy(name)
			c.mu.Lock()
			delete(c.mu.queued, name)
			c.mu.Unlock()
		}
	}
}

// makeCopy fetches an object.
func (c *Cache) makeCopy(name string) {
	r, err := c.Store.Open(c.ctx, name)
	if err != nil {
		return // deleted meanwhile, or the store is away
	}
	defer r.Close()
	if r.Size() > c.o.Bytes/2 {
		return
	}
	k := c.begin(name)
	buf := make([]byte, min(fetchChunk, r.Size()))
	for off := int64(0); off < r.Size() && k.err == nil; off += int64(len(buf)) {
		buf = buf[:min(int64(len(buf)), r.Size()-off)]
		if k.err = r.ReadAt(c.ctx, buf, off); k.err == nil {
			k.write(buf)
		}
	}
	if k.err == nil {
		c.stats.fetched.Add(1)
	}
	k.finish()
}

// Open implements objectstore.Store. With a copy the store is not asked.
func (c *Cache) Open(ctx context.Context, name string) (objstorage.Readable, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r := &reader{c: c, name: name}
	c.mu.Lock()
	if e := c.mu.copies[name]; e != nil {
		r.size = e.size
		r.attach(e)
		c.addLocked(r)
	}
	c.mu.Unlock()
	if r.local.file != nil {
		return r, nil
	}
	remote, err := c.Store.Open(ctx, name)
	if err != nil {
		c.remove(r)
		return nil, err
	}
	r.size, r.remote.r = remote.Size(), remote
	c.mu.Lock()
	c.addLocked(r)
	if e := c.mu.copies[name]; e != nil && r.local.file == nil {
		r.attach(e) // made meanwhile
	}
	c.mu.Unlock()
	c.fetch(name)
	return r, nil
}

func (c *Cache) addLocked(r *reader) {
	if c.mu.readers[r.name] == nil {
		c.mu.readers[r.name] = map[*reader]bool{}
	}
	c.mu.readers[r.name][r] = true
}

func (c *Cache) remove(r *reader) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if readers := c.mu.readers[r.name]; readers != nil {
		delete(readers, r)
		if len(readers) == 0 {
			delete(c.mu.readers, r.name)
		}
	}
}

// A reader reads an object: its copy while there is one.
type reader struct {
	c      *Cache
	name   string
	size   int64
	missed atomic.Int64 // bytes read from the store since the last request for a copy

	local struct {
		sync.RWMutex
		file vfs.File
		of   *cached
	}
	remote struct {
		sync.Mutex
		r objstorage.Readable // opened when needed
	}
}

// attach begins to read from a copy. The cache's lock is held.
func (r *reader) attach(e *cached) {
	f, err := r.c.fs.Open(r.c.path(r.name), vfs.RandomReadsOption)
	if err != nil {
		return // do without
	}
	r.local.Lock()
	defer r.local.Unlock()
	r.local.file, r.local.of = f, e
}

// detach ends reading from the copy.
func (r *reader) detach() {
	r.local.Lock()
	defer r.local.Unlock()
	if r.local.file != nil {
		_ = r.local.file.Close()
		r.local.file, r.local.of = nil, nil
	}
}

// readLocal reads from the copy; false if there is none that can be read.
func (r *reader) readLocal(p []byte, off int64) bool {
	r.local.RLock()
	defer r.local.RUnlock()
	if r.local.file == nil {
		return false
	}
	if n, err := r.local.file.ReadAt(p, off); n < len(p) {
		r.c.stats.failed.Add(1)
		r.c.o.Log.Debug("read of a copy failed", "object", r.name, "error", err)
		return false
	}
	r.local.of.used.Store(r.c.clock.Add(1))
	r.c.stats.hits.Add(1)
	r.c.stats.hitBytes.Add(int64(len(p)))
	return true
}

// readable returns the object in the store.
func (r *reader) readable(ctx context.Context) (objstorage.Readable, error) {
	r.remote.Lock()
	defer r.remote.Unlock()
	if r.remote.r == nil {
		remote, err := r.c.Store.Open(ctx, r.name)
		if err != nil {
			return nil, err
		}
		r.remote.r = remote
	}
	return r.remote.r, nil
}

// note counts n bytes that were read from the store.
func (r *reader) note(n int) {
	r.c.stats.misses.Add(1)
	r.c.stats.missBytes.Add(int64(n))
	if r.missed.Add(int64(n)) >= r.size/refetch {
		r.missed.Store(0)
		r.c.fetch(r.name)
	}
}

func (r *reader) Size() int64 { return r.size }

func (r *reader) ReadAt(ctx context.Context, p []byte, off int64) error {
	if err := r.check(p, off); err != nil {
		return err
	}
	if r.readLocal(p, off) {
		return nil
	}
	remote, err := r.readable(ctx)
	if err != nil {
		return err
	}
	r.note(len(p))
	return remote.ReadAt(ctx, p, off)
}

func (r *reader) check(p []byte, off int64) error {
	if off < 0 || off+int64(len(p)) > r.size {
		return fault.New(fault.Invalid, "read object %s: %d bytes at %d exceed its %d", r.name, len(p), off, r.size)
	}
	return nil
}

func (r *reader) Close() error {
	r.c.remove(r)
	r.detach()
	if r.remote.r != nil {
		return r.remote.r.Close()
	}
	return nil
}

func (r *reader) NewReadHandle(before objstorage.ReadBeforeSize) objstorage.ReadHandle {
	return &handle{r: r, before: before}
}

// handle implements objstorage.ReadHandle.
type handle struct {
	r          *reader
	before     objstorage.ReadBeforeSize
	compaction bool
	remote     objstorage.ReadHandle // made when needed
}

func (h *handle) ReadAt(ctx context.Context, p []byte, off int64) error {
	if err := h.r.check(p, off); err != nil {
		return err
	}
	if h.r.readLocal(p, off) {
		return nil
	}
	if h.remote == nil {
		remote, err := h.r.readable(ctx)
		if err != nil {
			return err
		}
		h.remote = remote.NewReadHandle(h.before)
		if h.compaction {
			h.remote.SetupForCompaction()
		}
	}
	h.r.note(len(p))
	return h.remote.ReadAt(ctx, p, off)
}

func (h *handle) Close() error {
	if h.remote != nil {
		return h.remote.Close()
	}
	return nil
}

func (h *handle) SetupForCompaction() {
	h.compaction = true
	if h.remote != nil {
		h.remote.SetupForCompaction()
	}
}

func (h *handle) RecordCacheHit(ctx context.Context, off, size int64) {
	if h.remote != nil {
		h.remote.RecordCacheHit(ctx, off, size)
	}
}
