package local

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/datadir"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/sstable"
	"github.com/trestledb/trestle/engine/tablet"
	"github.com/trestledb/trestle/engine/varint"
	"github.com/trestledb/trestle/engine/worker"
)

// The tablet of items. Its schema never changes.
const tabletID = metadata.TabletID(math.MaxUint32)

var tabletSchema = &schema.Table{
	Name: "LOCK", Granularity: 1, NextFamily: 1, Version: 1,
	Families: map[string]schema.Family{"i": {Name: "i", ID: 0, GC: &schema.GCRule{MaxVersions: 1}}},
}

// Bounds of what the tablet takes. Items are few and small: one for each table,
// record and METADATA tablet.
const (
	cacheBytes    = 4 << 20
	memtableBytes = 16 << 20
	rotateBytes   = 2 << 20
	segmentBytes  = 4 << 20
	logBytes      = 16 << 20
)

// items are the durable items: a tablet with a commit log of its own.
type items struct {
	lock    io.Closer
	root    *metadata.RootFile
	objects objectstore.Store
	cache   *sstable.Cache
	log     *commitlog.FileLog
	env     *tablet.Env
	work    *worker.Worker
	tablet  *tablet.Tablet
	lastID  atomic.Uint64
	removes sync.WaitGroup
}

// openItems opens the directory and replays the commit log. fatal is called with
// what ends the service; failed returns it.
func openItems(ctx context.Context, o Options, fatal func(error), failed func() error) (_ *items, err error) {
	fs := o.FS
	if err := fs.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of the lock service: %w", err)
	}
	if err := datadir.Sync(fs, fs.PathDir(o.Dir)); err != nil {
		return nil, fmt.Errorf("sync the directory above the lock service's: %w", err)
	}
	s := &items{}
	if s.lock, err = fs.Lock(fs.PathJoin(o.Dir, "LOCK")); err != nil {
		return nil, fault.New(fault.FailedPrecondition, "%s is open in another process: %w", o.Dir, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if s.root, err = metadata.OpenRoot(fs, o.Dir, &metadata.Row{Tablet: tabletID}); err != nil {
		return nil, fmt.Errorf("open root file: %w", err)
	}
	s.lastID.Store(s.root.Incarnation() << 32)
	if s.objects, err = objectstore.OpenLocal(fs, fs.PathJoin(o.Dir, "sst"), objectstore.LocalOptions{}); err != nil {
		return nil, fmt.Errorf("open SSTables: %w", err)
	}
	s.cache = sstable.NewCache(cacheBytes, 0)
	s.env = &tablet.Env{
		Options: tablet.Options{MemtableBytes: rotateBytes}.WithDefaults(),
		Meta:    s.root, Objects: s.objects, Cache: s.cache, Log: o.Log, Now: time.Now,
		NewID: func() uint64 { return s.lastID.Add(1) },
		Remove: func(object string) {
			s.removes.Go(func() {
				if err := s.objects.Delete(context.Background(), object); err != nil {
					o.Log.Warn("delete object of the lock service", "object", object, "error", err)
				}
			})
		},
		Fatal: fatal,
	}
	s.work = worker.New(worker.Options{
		Tablets:  func() []*tablet.Tablet { return []*tablet.Tablet{s.tablet} },
		LogBytes: logBytes, MajorCheck: time.Minute, Failed: failed, Log: o.Log,
	}, s.env, memtableBytes)
	s.tablet = tablet.Open(s.env, s.root.Row(), func() *schema.Table { return tabletSchema })
	if s.log, err = commitlog.Open(fs, fs.PathJoin(o.Dir, "log"), commitlog.Options{SegmentBytes: segmentBytes, Log: o.Log}); err != nil {
		return nil, fmt.Errorf("open commit log: %w", err)
	}
	var first, last uint64 // segments with records
	err = s.log.Replay(commitlog.Pos{}, func(rec commitlog.Record) error {
		if last = rec.Pos.Segment; first == 0 {
			first = last
		}
		if metadata.TabletID(rec.Tablet) != tabletID {
			return fault.New(fault.Corruption, "the log holds a record of tablet %x", rec.Tablet)
		}
		return s.tablet.Replay(&rec)
	})
	if err != nil {
		return nil, fmt.Errorf("replay commit log: %w", err)
	}
	if s.env.Commit, err = s.log.Start(); err != nil {
		return nil, fmt.Errorf("start commit log: %w", err)
	}
	s.tablet.Start()
	if err := s.sweep(ctx); err != nil {
		return nil, fmt.Errorf("sweep SSTables: %w", err)
	}
	s.work.Start()
	if first < last {
		// Each process has begun a segment. On a full disk there are no more than these.
		if err := s.tablet.FlushAll(ctx); err != nil && fault.KindOf(err) != fault.Exhausted {
			return nil, fmt.Errorf("flush: %w", err)
		}
		s.work.Trim()
	}
	return s, nil
}

// sweep deletes the SSTables of flushes and compactions that a crash
// interrupted.
func (s *items) sweep(ctx context.Context) error {
	named := map[string]bool{}
	for _, f := range s.tablet.Row().Files {
		named[f.Object] = true
	}
	found, err := s.objects.List(ctx, "", "", math.MaxInt)
	if err != nil {
		return err
	}
	for _, o := range found {
		if !named[o.Name] {
			if err := s.objects.Delete(ctx, o.Name); err != nil {
				return err
			}
		}
	}
	return nil
}

// each calls emit with all items.
func (s *items) each(ctx context.Context, emit func(lock.Item)) error {
	q, err := tablet.NewQuery(tabletSchema, nil, false)
	if err != nil {
		return err
	}
	w := &reader{emit: emit}
	var stats scan.Stats
	for rest := []row.Range{{}}; len(rest) > 0; {
		if rest, _, err = s.tablet.Read(ctx, q, rest, 0, w, &stats); err != nil {
			return err
		}
	}
	return nil
}

// A reader decodes the rows of a scan.
type reader struct {
	emit func(lock.Item)
	item lock.Item
	err  error
}

func (r *reader) StartRow(key []byte) { r.item, r.err = lock.Item{Key: string(key)}, nil }
func (r *reader) Cell(c *row.Cell)    { r.err = decode(c.Value, &r.item) }
func (r *reader) EndRow() (bool, error) {
	if r.err == nil {
		r.emit(r.item)
	}
	return false, r.err
}
func (*reader) Scanned([]byte) {}
func (*reader) Flush() error   { return nil }

func encode(i lock.Item) []byte {
	b := make([]byte, 0, 2*binary.MaxVarintLen64+len(i.Value))
	b = binary.AppendUvarint(b, uint64(i.Version))
	b = binary.AppendUvarint(b, uint64(i.Created))
	return append(b, i.Value...)
}

// decode sets everything of i but its key.
func decode(b []byte, i *lock.Item) error {
	d := varint.Of(b)
	version, created := d.UvarintMax(math.MaxInt64), d.Uvarint()
	if d.Bad() || created == 0 || created > version {
		return fault.New(fault.Corruption, "item %s of the lock service: %d bytes that cannot be decoded", i.Key, len(b))
	}
	i.Version, i.Created, i.Value = int64(version), int64(created), append([]byte(nil), d.Rest()...)
	return nil
}

// put makes an item durable. After an error it may or may not be.
func (s *items) put(ctx context.Context, i lock.Item) error {
	return s.apply(ctx, i.Key, func(b *tablet.Batch) { b.Set(0, nil, 0, encode(i)) })
}

// remove deletes an item, durably, as put makes one.
func (s *items) remove(ctx context.Context, key string) error {
	return s.apply(ctx, key, (*tablet.Batch).DeleteRow)
}

func (s *items) apply(ctx context.Context, key string, change func(*tablet.Batch)) error {
	b := tablet.NewBatch([]byte(key))
	defer b.Free()
	change(b)
	pos, err := s.tablet.ApplyAsync(ctx, b)
	if err != nil {
		return errors.Join(err, errUnchanged)
	}
	return s.tablet.Wait(ctx, pos)
}

// errUnchanged says that a change was refused before it was in the log.
var errUnchanged = errors.New("the lock service has changed nothing")

// close ends everything that openItems began, as far as it came.
func (s *items) close() error {
	var errs []error
	if s.work != nil {
		s.work.Stop()
	}
	if s.tablet != nil {
		s.env.KeepObjects()
		s.tablet.Close()
		s.env.Drain()
	}
	if s.log != nil {
		errs = append(errs, s.log.Close())
	}
	s.removes.Wait()
	if s.cache != nil {
		s.cache.Close()
	}
	return errors.Join(append(errs, s.lock.Close())...)
}

// Options are the settings of a Service. Dir is needed.
type Options struct {
	// Dir is the directory, which is made if it is not there. The one above it
	// must be durable.
	Dir string
	// FS is the file system. Default: the operating system's.
	FS vfs.FS
	// Log takes what happens. Default: nothing.
	Log *slog.Logger
}
