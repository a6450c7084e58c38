package tabletserver_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/master"
	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/cluster/standalone"
	"github.com/trestledb/trestle/cluster/tabletserver"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/locality"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/tablet"
	"github.com/trestledb/trestle/engine/worker"
	"github.com/trestledb/trestle/gateway/backend"
)

// Options are the settings of a Store, each that of the part that it is named
// after.
type Options struct {
	Dir string
	FS  vfs.FS
	Log *slog.Logger
	Now func() time.Time

	// Of the commit log of tables.
	SegmentBytes, KeepFreeBytes int64
	Durability                  commitlog.Durability
	OnCommit                    func(commitlog.Commit)

	// Of the tablet server.
	CacheBytes, RowCacheBytes, LargeBlockBytes int64
	MemtableBytes, InMemoryBytes, LogBytes     int64
	SplitBytes                                 int64
	SplitRate                                  float64
	SplitCheck, SplitHotAfter                  time.Duration
	MajorCheck                                 time.Duration
	// NoBackground leaves flushes, compactions and splits to the test.
	NoBackground bool
	Tablet       tablet.Options

	// Tend is how often the master purges and sweeps. Default: never.
	Tend time.Duration
}

// A Store is the server of a single process: its client, and what tests look at
// behind it.
type Store struct {
	*standalone.Server
	o              Options
	env, metaEnv   *tablet.Env
	work, metaWork *worker.Worker
	objects        objectstore.Store
	meta           *tablet.Tablet // of METADATA, which has one
}

// Open opens the data directory and waits until METADATA is served.
func Open(ctx context.Context, o Options) (*Store, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	mo := master.Options{Balance: -1, Merge: -1, Sweep: -1, Purge: -1, Rest: time.Millisecond, Now: o.Now}
	if o.Tend > 0 {
		mo.Sweep, mo.Purge, mo.Interval = o.Tend, o.Tend, o.Tend
	}
	server, err := standalone.Open(ctx, standalone.Options{
		Dir: o.Dir, FS: o.FS, Logger: o.Log,
		Log: commitlog.Options{SegmentBytes: o.SegmentBytes, KeepFreeBytes: o.KeepFreeBytes, Durability: o.Durability, Observe: o.OnCommit},
		TabletServer: tabletserver.Options{
			CacheBytes: o.CacheBytes, RowCacheBytes: o.RowCacheBytes, LargeBlockBytes: o.LargeBlockBytes,
			MemtableBytes: o.MemtableBytes, InMemoryBytes: o.InMemoryBytes, LogBytes: o.LogBytes,
			SplitBytes: o.SplitBytes, SplitRate: o.SplitRate, SplitCheck: o.SplitCheck, SplitHotAfter: o.SplitHotAfter,
			MajorCheck: o.MajorCheck, NoBackground: o.NoBackground, Tablet: o.Tablet, Now: o.Now,
			MetadataMemtableBytes: 2 << 20, // not that of tables, which may be tiny
		},
		Master: mo,
	})
	if err != nil {
		return nil, err
	}
	s := &Store{Server: server, o: o}
	ts := server.TabletServer()
	s.env, s.work = ts.Users()
	s.metaEnv, s.metaWork = ts.System()
	s.objects = s.env.Objects
	for {
		if list := ts.SystemTablets(); len(list) > 0 {
			s.meta = list[0]
			return s, nil
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ts.Failed():
			return nil, errors.Join(ts.Err(), s.Close(ctx))
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), s.Close(ctx))
		}
	}
}

// Close closes the data directory; without background work it flushes nothing.
func (s *Store) Close(ctx context.Context) error {
	if s.o.NoBackground {
		now, cancel := context.WithCancel(ctx)
		cancel()
		ctx = now
	}
	return s.Server.Close(ctx)
}

// Failed is closed when the tablet server has failed, for which Err has the reason.
func (s *Store) Failed() <-chan struct{} { return s.TabletServer().Failed() }
func (s *Store) Err() error              { return s.TabletServer().Err() }

// Stats returns the tablet server's counters, Damage what it has met.
func (s *Store) Stats() tablet.Summary        { return s.TabletServer().Stats() }
func (s *Store) Damage() []tablet.TableDamage { return s.TabletServer().Damage() }

// Flush writes all memtables to SSTables.
func (s *Store) Flush(ctx context.Context) error { return s.TabletServer().FlushAll(ctx) }

// flush writes the memtables of one tablet.
func (s *Store) flush(ctx context.Context, t *tablet.Tablet) error {
	err := t.FlushAll(ctx)
	if errors.Is(err, tablet.ErrReplaced) {
		return nil // and flushed before that
	}
	return err
}

// SplitTablet and MergeTablets are the operator's calls, which take METADATA too.
func (s *Store) SplitTablet(ctx context.Context, table string, key []byte) error {
	return s.SplitAt(ctx, table, key)
}
func (s *Store) MergeTablets(ctx context.Context, table string, key []byte) error {
	return s.MergeAt(ctx, table, key)
}

// refusal tells whether a split or merge was refused because there is nothing to
// split or merge there, or because another one came first.
func refusal(err error) bool {
	switch fault.KindOf(err) {
	case fault.Invalid, fault.NotFound, fault.FailedPrecondition, fault.Aborted:
		return true
	}
	return false
}

// Schema returns the schema of a table by its full name.
func (s *Store) Schema(ctx context.Context, table string) (*schema.Table, error) {
	return s.Table(ctx, table)
}

// allTablets returns the tablets of tables that are served.
func (s *Store) allTablets() []*tablet.Tablet { return s.TabletServer().UserTablets() }

// tabletsOf returns the tablets of a table in order, once all are served: the
// master has a new one served in its own time.
func (s *Store) tabletsOf(table string) []*tablet.Tablet {
	sch, err := s.Table(ctx, table)
	if err != nil {
		panic(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		var list []*tablet.Tablet
		var rows []*metadata.Row
		for _, t := range s.allTablets() {
			if r := t.Row(); r.Table == sch.ID {
				list = append(list, t)
			}
		}
		slices.SortFunc(list, func(a, b *tablet.Tablet) int { return bytes.Compare(a.Bounds().Start, b.Bounds().Start) })
		for _, t := range list {
			rows = append(rows, t.Row())
		}
		if metadata.Tile(rows) {
			return list
		}
		if time.Now().After(end) {
			panic("the tablets of " + table + " are not served")
		}
	}
}

// rows returns all METADATA rows as they are stored: of METADATA, tables and
// backups.
func (s *Store) rows() ([]*metadata.Row, error) {
	rows, err := s.Metadata().Roots(ctx)
	if err != nil {
		return nil, err
	}
	err = s.Metadata().Scan(ctx, func(r *metadata.Row) error {
		rows = append(rows, r)
		return nil
	})
	return rows, err
}

// backupRows returns the rows of backups.
func (s *Store) backupRows(t testing.TB) (out []*metadata.Row) {
	t.Helper()
	rows, err := s.rows()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		if catalog.IsBackupTable(r.Table) {
			out = append(out, r)
		}
	}
	return out
}

// watchMeta has the changes that tablets of tables make of METADATA rows made by
// what change makes of the way they are made.
func (s *Store) watchMeta(change func(cas casFunc) casFunc) {
	env := s.env.Meta.(metadataStore)
	s.env.Meta = watched{env, change(env.CAS)}
}

type casFunc func(context.Context, *metadata.Row) error

type metadataStore interface {
	metadata.Store
	metadata.Retirer
}

type watched struct {
	metadataStore
	cas casFunc
}

func (w watched) CAS(ctx context.Context, r *metadata.Row) error { return w.cas(ctx, r) }

// purged waits until the master has purged what is to be purged now.
func (s *Store) purged(t testing.TB) {
	t.Helper()
	now := s.o.Now()
	eventually(t, "the master purges", func() bool {
		known := map[uint64]bool{metastore.Table: true}
		backups, err := catalog.Backups(ctx, s.Lock(), "")
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range backups {
			if b.Expired(now) {
				return false
			}
			known[catalog.BackupTable(b.ID)] = true
		}
		items, _, err := s.Lock().List(ctx, catalog.TablesPrefix)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range items {
			n, err := catalog.ParseName(i)
			if err != nil {
				t.Fatal(err)
			}
			for _, sch := range n {
				if !sch.DeleteTime.IsZero() && now.Sub(sch.DeleteTime) >= schema.UndeleteWindow {
					return false
				}
				known[sch.ID] = true
			}
		}
		rows, err := s.rows()
		if err != nil {
			t.Fatal(err)
		}
		return !slices.ContainsFunc(rows, func(r *metadata.Row) bool { return !known[r.Table] })
	})
}

// checkStore checks what holds of any store that was just opened, and, if its
// master tends it, that nothing is left that nobody names.
func checkStore(t testing.TB, s *Store) {
	t.Helper()
	var wrong []string
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		// Names first: what was let go of meanwhile may be on its way out.
		rows, err := s.rows()
		if err != nil {
			t.Error(err)
			return
		}
		used := map[string]bool{}
		tables := map[uint64][]*metadata.Row{}
		for _, r := range rows {
			checkRow(t, s, r)
			tables[r.Table] = append(tables[r.Table], r)
			for _, f := range r.Files {
				used[f.Object] = true
			}
		}
		list, err := s.objects.List(ctx, "", "", 0)
		if err != nil {
			t.Error(err)
			return
		}
		wrong = nil
		for _, o := range list {
			if !used[o.Name] && s.o.Tend > 0 {
				wrong = append(wrong, "object "+o.Name+" is named by nobody and was not swept")
			}
			delete(used, o.Name)
		}
		for o := range maps.Keys(used) {
			wrong = append(wrong, "object "+o+" is missing")
		}
		for id, rows := range tables {
			if _, err := s.TabletServer().Schemas().ByID(id); err == nil && !metadata.Tile(rows) {
				wrong = append(wrong, "the tablets of a table do not tile the key space")
			}
		}
		if len(wrong) == 0 || time.Now().After(end) {
			break
		}
	}
	if len(wrong) > 0 {
		t.Error(strings.Join(wrong, "\n"))
	}
}

func checkRow(t testing.TB, s *Store, r *metadata.Row) {
	t.Helper()
	if err := r.Check(); err != nil {
		t.Error(err)
	}
	mine := map[string]bool{}
	of, err := s.TabletServer().Schemas().ByID(r.Table)
	for _, f := range r.Files {
		if err == nil {
			if family, ok := locality.Misplaced(of.Schema(), f.Group, f.Layout, &f.Info); ok {
				t.Errorf("object %s in group %d holds cells of the family %s", f.Object, f.Group, family)
			}
		}
		if mine[f.Object] {
			t.Errorf("object %s is named twice by tablet %d", f.Object, r.Tablet)
		}
		mine[f.Object] = true
	}
}

var _ backend.Backend = (*Store)(nil)
