package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"os"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/datadir"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/rowcache"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/sstable"
	"github.com/trestledb/trestle/engine/tablet"
	"github.com/trestledb/trestle/engine/worker"
)

// FormatVersion is the version of the data directory that this program writes
// and reads.
const FormatVersion = 1

// Options are the settings of a Store. The zero value of a field stands for
// its default, except Dir.
type Options struct {
	// Dir is the data directory; it is made if it does not exist.
	Dir string
	// FS is the file system. Default: the operating system's.
	FS vfs.FS
	// Objects, if set, is a store that outlives this machine: SSTables and, in
	// their segment-object form, the commit logs are kept there, and only FORMAT,
	// LOCK and ROOT in Dir. No other data directory may use it. SegmentBytes,
	// KeepFreeBytes and Durability then mean nothing: what is acknowledged is in
	// the store.
	Objects objectstore.Store
	// CommitInterval is the least time between two puts of a commit log into
	// Objects. Default 0: one follows the other.
	CommitInterval time.Duration
	// Durability says when a change is acknowledged. Default commitlog.Sync.
	Durability commitlog.Durability
	// CacheBytes is the size of the caches: of blocks of SSTables, and of rows
	// that are read often. Default 128 MiB.
	CacheBytes int64
	// RowCacheBytes is how much of CacheBytes rows may take from blocks. Negative
	// means nothing. Default a quarter.
	RowCacheBytes int64
	// LargeBlockBytes bounds the blocks of large cells that reads are in, for which
	// the block cache makes room: see sstable.Cache.BoundLarge. Default no bound.
	LargeBlockBytes int64
	// MemtableBytes bounds all memtables together. Default 128 MiB.
	MemtableBytes int64
	// InMemoryBytes bounds the SSTables that locality groups keep in memory; those
	// beyond it are read like others. Default 64 MiB.
	InMemoryBytes int64
	// LogBytes is the size of the commit log at which the tablet that holds it
	// back is flushed. Default 512 MiB.
	LogBytes int64
	// SegmentBytes is the size of a commit log segment. Default 64 MiB.
	SegmentBytes int64
	// KeepFreeBytes is disk space that the commit log leaves for flushes.
	// Default 0.
	KeepFreeBytes int64
	// SplitBytes is the size beyond which a tablet is split. Default 1 GiB.
	SplitBytes int64
	// SplitCheck is how often tablets are looked at for that. Default 5 s.
	SplitCheck time.Duration
	// SplitRate is the number of rows read or written per second from which on a
	// tablet is split that takes most of the load for SplitHotAfter, 1 minute by
	// default. Negative means never. Default 10 000.
	SplitRate     float64
	SplitHotAfter time.Duration
	// Tablet are the settings of tablets.
	Tablet tablet.Options
	// MajorCheck is how often idle tablets are looked at for something to
	// collect. Default 1 min.
	MajorCheck time.Duration
	// NoBackground leaves flushes and compactions to explicit calls, for tests
	// that drive them.
	NoBackground bool
	// Now is the clock. Default time.Now.
	Now func() time.Time
	// Log takes what happens. Default: nothing.
	Log *slog.Logger
	// OnCommit, if set, is called after every group commit.
	OnCommit func(commitlog.Commit)
}

// WithDefaults returns o with every zero field set.
func (o Options) WithDefaults() Options {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	set := func(v *int64, d int64) {
		if *v == 0 {
			*v = d
		}
	}
	set(&o.CacheBytes, 128<<20)
	set(&o.RowCacheBytes, o.CacheBytes/4)
	set(&o.MemtableBytes, 128<<20)
	set(&o.InMemoryBytes, 64<<20)
	set(&o.LogBytes, 512<<20)
	set(&o.SegmentBytes, 64<<20)
	set(&o.SplitBytes, 1<<30)
	if o.Tablet.MemtableBytes == 0 {
		o.Tablet.MemtableBytes = min(64<<20, o.MemtableBytes/4)
	}
	o.Tablet = o.Tablet.WithDefaults()
	if o.MajorCheck == 0 {
		o.MajorCheck = time.Minute
	}
	if o.SplitRate == 0 {
		o.SplitRate = 10_000
	}
	if o.SplitHotAfter == 0 {
		o.SplitHotAfter = time.Minute
	}
	if o.SplitCheck == 0 {
		o.SplitCheck = 5 * time.Second
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// A Store keeps tables in a data directory. It is a gateway backend.
type Store struct {
	o    Options
	lock io.Closer
	root *metadata.RootFile
	// lastID is the last id given out; its upper half is the incarnation.
	lastID atomic.Uint64

	cache    *sstable.Cache
	rows     *rowcache.Cache // nil if there is none
	objects  objectstore.Store
	metaLog  commitlog.Log
	userLog  commitlog.Log
	metaEnv  *tablet.Env
	env      *tablet.Env
	meta     *tablet.Tablet
	metaWork *worker.Worker
	work     *worker.Worker

	// admin is held by whoever changes the catalog.
	admin   sync.Mutex
	stopped bool // no tablet may be made any more; admin guards it
	catalog struct {
		sync.RWMutex
		byName  map[string]*table // live ones
		byID    map[uint64]*table // all
		tablets map[metadata.TabletID]*tablet.Tablet
		backups map[string]*backup // expired ones included, until they are purged
	}

	removes   chan string
	removing  sync.WaitGroup
	closing   atomic.Bool
	failOnce  sync.Once
	failed    chan struct{}
	failure   error
	recovered time.Duration
}

// A table is a schema with its tablets.
type table struct {
	schema atomic.Pointer[schema.Table]
	// tablets ascend and tile the key space. A split or merge replaces the list.
	tablets atomic.Pointer[[]*tablet.Tablet]
	queries tablet.Queries
}

// metaSchema is the METADATA tablet's: rows with one column.
var metaSchema = &schema.Table{
	Name: "METADATA", Granularity: 1, NextFamily: 1, Version: 1,
	Families: map[string]schema.Family{"m": {Name: "m", ID: 0, GC: &schema.GCRule{MaxVersions: 1}}},
}

const metaTabletID = metadata.TabletID(math.MaxUint32)

// Open opens the data directory, recovering what a crash left in the commit
// log. It returns a fault.FailedPrecondition if another process has the
// directory open or another version wrote it, and fault.Corruption if what it
// finds there is not what was written. On a full disk it begins by using up the
// space that was kept for that; without any it is fault.Exhausted.
func Open(ctx context.Context, o Options) (*Store, error) {
	o = o.WithDefaults()
	return datadir.OpenWithReserve(o.FS, o.Dir, o.Log, func() (*Store, error) { return open(ctx, o) })
}

func open(ctx context.Context, o Options) (_ *Store, err error) {
	start := time.Now()
	s := &Store{o: o, failed: make(chan struct{}), removes: make(chan string, 1024)}
	s.catalog.byName = map[string]*table{}
	s.catalog.byID = map[uint64]*table{}
	s.catalog.tablets = map[metadata.TabletID]*tablet.Tablet{}
	fs := o.FS
	if err := datadir.Make(fs, o.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("make data directory: %w", err)
	}
	if s.lock, err = fs.Lock(fs.PathJoin(o.Dir, "LOCK")); err != nil {
		return nil, fault.New(fault.FailedPrecondition, "data directory %s is open in another process: %w", o.Dir, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.lock.Close())
		}
	}()
	var store string // its name, if it is a shared one
	if o.Objects != nil {
		if store, err = nameOf(ctx, o.Objects); err != nil {
			return nil, fmt.Errorf("open object store: %w", err)
		}
		if err := checkSharedRoot(ctx, fs, o.Dir, o.Objects); err != nil {
			return nil, err
		}
	}
	if err := checkFormat(fs, o.Dir, store); err != nil {
		return nil, err
	}
	if err = checkRoot(fs, o.Dir); err == nil {
		if s.root, err = metadata.OpenRoot(fs, o.Dir, &metadata.Row{Tablet: metaTabletID}); err != nil {
			err = fmt.Errorf("open root file: %w", err)
		}
	}
	if fault.KindOf(err) == fault.Corruption {
		if _, cerr := metadata.ReadRootCopy(fs, o.Dir); cerr == nil {
			err = fault.New(fault.Corruption, "%w; to go on copy ROOT.copy, which is sound, over ROOT", err)
		}
	}
	if err != nil {
		return nil, err
	}
	s.lastID.Store(s.root.Incarnation() << 32)
	if err := s.openObjects(ctx); err != nil {
		return nil, fmt.Errorf("open object store: %w", err)
	}
	s.cache = sstable.NewCache(o.CacheBytes, 0)
	if o.LargeBlockBytes > 0 {
		s.cache.BoundLarge(o.LargeBlockBytes)
	}
	if o.RowCacheBytes > 0 {
		s.rows = rowcache.New(o.RowCacheBytes, s.cache)
	}
	s.removing.Add(1)
	go s.remover()
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop())
		}
	}()
	if err := s.openMeta(ctx); err != nil {
		return nil, err
	}
	if err := s.openTables(ctx); err != nil {
		return nil, err
	}
	if err := s.sweep(ctx); err != nil {
		return nil, err
	}
	if !o.NoBackground {
		s.metaWork.Start()
		s.work.Start(s.splitting, s.sweepAlways, func(ctx context.Context) { datadir.KeepReserve(ctx, s.o.FS, s.o.Dir, s.o.Log) })
	}
	s.recovered = time.Since(start)
	o.Log.Info("data directory open", "dir", o.Dir, "incarnation", s.root.Incarnation(),
		"tables", len(s.catalog.byName), "tablets", len(s.catalog.tablets), "elapsed", s.recovered)
	return s, nil
}

// checkFormat refuses a directory of another format version, or whose logs and
// SSTables are in another shared store than the named one (in the directory
// itself, if it has no name), and marks a new one.
func checkFormat(fs vfs.FS, dir, store string) error {
	name := fs.PathJoin(dir, "FORMAT")
	_, err := fs.Stat(fs.PathJoin(dir, "ROOT"))
	fresh := errors.Is(err, os.ErrNotExist)
	f, err := fs.Open(name)
	if errors.Is(err, os.ErrNotExist) {
		if !fresh {
			return fault.New(fault.Corruption, "%s has no FORMAT file but is not new", dir)
		}
		return writeFormat(fs, dir, name, store)
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", name, err)
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	if len(b) == 0 && fresh {
		// A crash while the directory was made.
		return writeFormat(fs, dir, name, store)
	}
	var v int
	var in string
	_, err = fmt.Sscanf(string(b), "trestle data format %d\n", &v)
	if err != nil {
		_, err = fmt.Sscanf(string(b), "trestle data format %d in object store %s\n", &v, &in)
	}
	switch {
	case err != nil:
		return fault.New(fault.FailedPrecondition, "%s does not belong to a trestle data directory", name)
	case v != FormatVersion:
		return fault.New(fault.FailedPrecondition,
			"%s holds data of format %d; this program reads format %d: use the version of trestle that wrote it, or another directory", dir, v, FormatVersion)
	case in != store && in == "":
		return fault.New(fault.FailedPrecondition, "%s holds its logs and SSTables itself, not in an object store", dir)
	case in != store && store == "":
		return fault.New(fault.FailedPrecondition, "%s has its logs and SSTables in the object store %s, and cannot be used without it", dir, in)
	case in != store:
		return fault.New(fault.FailedPrecondition, "%s has its logs and SSTables in the object store %s, not in %s", dir, in, store)
	}
	return nil
}

func exists(fs vfs.FS, name string) (bool, error) {
	_, err := fs.Stat(name)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// checkRoot refuses a directory that has lost its ROOT file: a new one would
// know of no table, and all SSTables would be swept.
func checkRoot(fs vfs.FS, dir string) error {
	if _, err := fs.Stat(fs.PathJoin(dir, "ROOT")); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, sub := range []string{"log", "ulog", "sst"} {
		// They are made after ROOT.
		if _, err := fs.Stat(fs.PathJoin(dir, sub)); err == nil {
			return fault.New(fault.Corruption, "%s has no ROOT file but is not new", dir)
		}
	}
	return nil
}

func writeFormat(fs vfs.FS, dir, name, store string) error {
	f, err := fs.Create(name, "trestle-metadata")
	if err != nil {
		return fmt.Errorf("create %s: %w", name, err)
	}
	line := fmt.Sprintf("trestle data format %d", FormatVersion)
	if store != "" {
		line += " in object store " + store
	}
	_, err = fmt.Fprintln(f, line)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	// Whoever made the directory may have died before it synced its name. One
	// that an operator made need not be in a directory that can be read.
	if err := datadir.Sync(fs, fs.PathDir(dir)); err != nil && !errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("sync the parent of %s: %w", dir, err)
	}
	return datadir.Sync(fs, dir)
}

func (s *Store) newID() uint64 { return s.lastID.Add(1) }

// newEnv returns the Env of the tablets on one log. Its Commit is set once the
// log has been replayed.
func (s *Store) newEnv(meta metadata.Store, memory int64, tablets func() []*tablet.Tablet, checked func(context.Context)) (*tablet.Env, *worker.Worker) {
	e := &tablet.Env{
		Options: s.o.Tablet,
		Meta:    meta,
		Objects: s.objects,
		Cache:   s.cache,

		InMemoryBytes: s.o.InMemoryBytes,
		Log:           s.o.Log,
		Now:           s.o.Now,
		NewID:         s.newID,
		Remove:        s.remove,
		Fatal:         s.fail,
	}
	return e, worker.New(worker.Options{Tablets: tablets, LogBytes: s.o.LogBytes, MajorCheck: s.o.MajorCheck, Checked: checked, Failed: s.Err, Log: s.o.Log}, e, memory)
}

// openMeta recovers the METADATA tablet.
func (s *Store) openMeta(ctx context.Context) (err error) {
	s.metaEnv, s.metaWork = s.newEnv(s.root, 16<<20, func() []*tablet.Tablet { return []*tablet.Tablet{s.meta} }, nil)
	s.metaEnv.Options.MemtableBytes = 2 << 20
	s.meta = tablet.Open(s.metaEnv, s.root.Row(), func() *schema.Table { return metaSchema })
	// Always synced: the other log is trimmed, and objects are deleted, once this
	// one no longer needs them.
	if s.metaLog, err = s.openLog(ctx, "log", 4<<20, commitlog.Sync); err != nil {
		return fmt.Errorf("open METADATA log: %w", err)
	}
	err = s.metaLog.Replay(commitlog.Pos{}, func(rec commitlog.Record) error {
		if metadata.TabletID(rec.Tablet) != metaTabletID {
			return fault.New(fault.Corruption, "METADATA log holds a record of tablet %x", rec.Tablet)
		}
		return s.meta.Replay(&rec)
	})
	if err == nil {
		err = covered(s.metaLog, s.root.Row())
	}
	if err != nil {
		return fmt.Errorf("replay METADATA log: %w", err)
	}
	if s.metaEnv.Commit, err = s.metaLog.Start(); err != nil {
		return fmt.Errorf("start METADATA log: %w", err)
	}
	s.watch(s.metaEnv.Commit)
	s.meta.Start()
	return s.relieveMeta(ctx)
}

// relieveMeta makes room in a METADATA tablet that its workers left full, since
// settling METADATA rows takes writes before the workers begin.
func (s *Store) relieveMeta(ctx context.Context) error {
	if used, _ := s.metaEnv.Memory.Used(); used > s.metaEnv.Memory.Limit()/2 {
		if err := s.flush(ctx, s.meta); err != nil {
			return fmt.Errorf("flush METADATA: %w", err)
		}
	}
	for s.meta.Runs() > s.metaEnv.Options.MaxRuns/2 {
		if more, err := s.meta.Compact(ctx); err != nil {
			return fmt.Errorf("compact METADATA: %w", err)
		} else if !more {
			break
		}
	}
	return nil
}

// openTables recovers all other tablets.
func (s *Store) openTables(ctx context.Context) (err error) {
	s.env, s.work = s.newEnv(metaRows{s}, s.o.MemtableBytes, s.allTablets, s.purge)
	s.env.Rows = s.rows
	if err := s.loadCatalog(ctx); err != nil {
		return err
	}
	if s.userLog, err = s.openLog(ctx, "ulog", s.o.SegmentBytes, s.o.Durability); err != nil {
		return fmt.Errorf("open commit log: %w", err)
	}
	var last *tablet.Tablet
	err = s.userLog.Replay(commitlog.Pos{}, func(rec commitlog.Record) error {
		id := metadata.TabletID(rec.Tablet)
		if last == nil || last.ID() != id {
			if last = s.catalog.tablets[id]; last == nil {
				return nil // of a table that was purged
			}
		}
		return last.Replay(&rec)
	})
	if err == nil {
		var rows []*metadata.Row
		for _, t := range s.catalog.tablets {
			rows = append(rows, t.Row())
		}
		err = covered(s.userLog, rows...)
	}
	if err != nil {
		return fmt.Errorf("replay commit log: %w", err)
	}
	for _, t := range s.catalog.tablets {
		if err := t.SettleRedo(ctx); err != nil {
			return fmt.Errorf("settle redo point of %v: %w", t.Name(), err)
		}
	}
	if s.env.Commit, err = s.userLog.Start(); err != nil {
		return fmt.Errorf("start commit log: %w", err)
	}
	s.watch(s.env.Commit)
	for _, t := range s.catalog.tablets {
		t.Start()
	}
	return nil
}

// watch ends the incarnation when a log has failed: what it did not
// acknowledge may or may not be on disk, and only a restart can tell.
func (s *Store) watch(w commitlog.Writer) {
	go func() {
		select {
		case <-w.Failed():
			if !s.closing.Load() {
				s.fail(fmt.Errorf("commit log: %w", w.Err()))
			}
		case <-s.failed:
		}
	}()
}

// fail ends the incarnation.
func (s *Store) fail(err error) {
	s.failOnce.Do(func() {
		s.failure = err
		s.o.Log.Error("the store has failed", "error", err)
		close(s.failed)
	})
}

// Failed is closed when the store can no longer be trusted with data. The
// process should end: a restart recovers what was acknowledged.
func (s *Store) Failed() <-chan struct{} { return s.failed }

// Err returns why Failed is closed.
func (s *Store) Err() error {
	select {
	case <-s.failed:
		return s.failure
	default:
		return nil
	}
}

// remove deletes an object soon.
func (s *Store) remove(object string) {
	select {
	case s.removes <- object:
	default:
		s.removing.Go(func() { s.deleteObject(object) })
	}
}

func (s *Store) deleteObject(object string) {
	if err := s.objects.Delete(context.Background(), object); err != nil {
		s.o.Log.Warn("delete object", "object", object, "error", err)
	}
}

func (s *Store) remover() {
	defer s.removing.Done()
	for object := range s.removes {
		s.deleteObject(object)
	}
}

// Close flushes what it can until ctx ends, then closes the data directory.
// Calls that are under way, or come later, are Unavailable unless they were done
// in time. What was acknowledged is safe in any case.
func (s *Store) Close(ctx context.Context) error {
	if s.closing.Swap(true) {
		return nil
	}
	// The flushes of tablets change METADATA rows, so that tablet's go on till
	// the last.
	s.work.Stop()
	err := s.lastFlush(ctx, s.allTablets()...)
	s.metaWork.Stop()
	err = errors.Join(err, s.lastFlush(ctx, s.meta))
	return errors.Join(err, s.stop(), s.lock.Close())
}

// lastFlush spares the next start the replay of what ts hold in memory.
func (s *Store) lastFlush(ctx context.Context, ts ...*tablet.Tablet) error {
	if s.o.NoBackground {
		return nil
	}
	var errs []error
	for _, t := range ts {
		if s.Err() != nil || ctx.Err() != nil {
			break
		}
		if err := s.flush(ctx, t); err != nil && t.Failure() == nil && ctx.Err() == nil && s.Err() == nil {
			errs = append(errs, err)
			break // the others would fail alike
		}
	}
	if s.Err() == nil {
		s.work.Trim()
		s.metaWork.Trim()
	}
	return errors.Join(errs...)
}

// Flush writes all memtables to SSTables.
func (s *Store) Flush(ctx context.Context) error {
	for _, t := range append(s.allTablets(), s.meta) {
		if err := s.flush(ctx, t); err != nil {
			return err
		}
	}
	s.work.Trim()
	s.metaWork.Trim()
	return nil
}

func (s *Store) flush(ctx context.Context, t *tablet.Tablet) error {
	err := t.FlushAll(ctx)
	if errors.Is(err, tablet.ErrReplaced) {
		return nil // and flushed before that
	}
	return err
}

// stop closes what Open has opened so far, except the lock.
func (s *Store) stop() error {
	var errs []error
	// Whoever changes the catalog may be making tablets.
	s.admin.Lock()
	s.stopped = true
	s.admin.Unlock()
	if s.env != nil {
		s.env.KeepObjects()
		for _, t := range s.allTablets() {
			t.Close()
		}
		for _, b := range s.allBackups() {
			b.release()
		}
		s.env.Drain()
	}
	if s.meta != nil {
		s.metaEnv.KeepObjects()
		s.meta.Close()
		s.metaEnv.Drain()
	}
	for _, l := range []commitlog.Log{s.userLog, s.metaLog} {
		if l != nil {
			errs = append(errs, l.Close())
		}
	}
	close(s.removes)
	s.removing.Wait()
	if s.rows != nil {
		s.rows.Close()
	}
	s.cache.Close()
	s.failOnce.Do(func() {
		s.failure = errors.New("the store is closed")
		close(s.failed)
	})
	return errors.Join(errs...)
}
