package check

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/cluster/standalone"
	"github.com/trestledb/trestle/cluster/tabletserver"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/datadir"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/stamp"
	"github.com/trestledb/trestle/engine/tablet"
)

// Directory looks at everything in a data directory that no process has open and reports
// what is wrong with it. It checks checksums, the structure of every file, and whether the
// files agree with each other. It calls report with each finding, changes nothing but the
// LOCK file, and goes on behind damage as far as that makes sense. It reads every SSTable
// whole. After each read it calls tell, unless that is nil, with how many bytes of how many
// it has read of the SSTables of a part.
//
// It fails with fault.FailedPrecondition if a process has the directory open or
// it is none, or with what kept it from reading.
func Directory(ctx context.Context, fs vfs.FS, dir string, tell func(bytes, of int64), report func(Finding)) (Summary, error) {
	c := &checker{fs: fs, dir: dir, tell: tell, tables: newTables(&reporter{report: report, doRestore: "restore the data directory from a backup"})}
	lock, err := c.lock()
	if err != nil {
		return c.sum, err
	}
	err = c.check(ctx)
	return c.sum, errors.Join(err, lock.Close())
}

// The parts of a data directory with a commit log or SSTables.
const (
	itemsLog   = standalone.LockDir + "/log" // of the lock service
	itemsDir   = standalone.LockDir + "/sst"
	metaLog    = "mlog"
	tablesLog  = "ulog"
	tabletsDir = standalone.SSTablesDir
)

type checker struct {
	*tables
	fs   vfs.FS
	dir  string
	tell func(bytes, of int64)

	root *metadata.Root // the lock service's; nil if it cannot be read
	// user and system are the rows of tables' and of METADATA's tablets.
	user, system map[metadata.TabletID]*metadata.Row
}

func (c *checker) path(elem ...string) string {
	return c.fs.PathJoin(append([]string{c.dir}, elem...)...)
}

func (c *checker) exists(name string) bool {
	_, err := c.fs.Stat(c.path(name))
	return err == nil
}

// lock takes the data directory's lock.
func (c *checker) lock() (io.Closer, error) {
	info, err := c.fs.Stat(c.dir)
	if err != nil {
		return nil, fmt.Errorf("look at data directory: %w", err)
	}
	if !info.IsDir() {
		return nil, fault.New(fault.FailedPrecondition, "%s is not a directory", c.dir)
	}
	if !slices.ContainsFunc(standalone.Files, c.exists) {
		return nil, fault.New(fault.FailedPrecondition, "%s is not a trestle data directory: it has neither %s nor %s", c.dir, standalone.FormatName, standalone.LockDir)
	}
	if !c.exists(standalone.LockDir) {
		return io.NopCloser(nil), nil // no process can have it open
	}
	lock, err := c.fs.Lock(c.path(standalone.LockDir, "LOCK"))
	if err != nil {
		return nil, fault.New(fault.FailedPrecondition, "data directory %s is open in another process, or cannot be locked: %w; stop the server first", c.dir, err)
	}
	return lock, nil
}

func (c *checker) check(ctx context.Context) error {
	if done, err := c.format(); done || err != nil {
		return err // or this program knows nothing about its version
	}
	if err := c.readRoot(); err != nil {
		return err
	}
	if c.root != nil {
		for i := range c.root.Row.Files {
			c.noteUse(itemsDir, &c.root.Row.Files[i], c.root.Row)
		}
		if err := c.metadata(ctx); err != nil {
			return err
		}
	} else if !c.exists(metaLog) && !c.exists(tablesLog) && !c.exists(tabletsDir) && !c.exists(itemsLog) {
		return nil // new, and nothing was ever in it
	}
	if err := errors.Join(c.sstables(ctx, itemsDir, c.root != nil), c.sstables(ctx, tabletsDir, c.rows != nil)); err != nil {
		return err
	}
	return c.replayable(ctx)
}

// format checks FORMAT. done says that nothing else can be checked.
func (c *checker) format() (done bool, err error) {
	fresh, err := standalone.CheckFormat(c.fs, c.dir)
	switch {
	case fault.KindOf(err) == fault.FailedPrecondition:
		c.damage(standalone.FormatName, "use the version of trestle that wrote it, or "+c.doRestore, "%v", err)
		return true, nil
	case fault.KindOf(err) == fault.Corruption:
		c.damage(standalone.FormatName, fmt.Sprintf("write \"trestle data format %d\" and a line feed into it if the directory was written by this version, else ", catalog.FormatVersion)+c.doRestore,
			"is missing or empty, in a directory that is not new")
	case err != nil:
		return true, err
	case fresh:
		c.note(standalone.FormatName, "nothing: the next start writes it", "is missing or empty, in a directory that is new")
	}
	return false, nil
}

// readRoot reads the lock service's ROOT.
func (c *checker) readRoot() error {
	way, err := standalone.CheckRoot(c.fs, c.dir)
	const where = standalone.LockDir + "/ROOT"
	switch {
	case fault.KindOf(err) == fault.Corruption:
		if way == "" {
			way = c.doRestore
		}
		c.damage(where, way, "%v; without it no table can be found", err)
		return nil
	case err != nil:
		return err
	case !c.exists(where):
		c.note(where, "nothing: the next start writes it", "is missing, in a directory that is new")
		return nil
	}
	if c.root, err = metadata.ReadRoot(c.fs, c.path(standalone.LockDir)); err != nil {
		return err
	}
	r := c.root.Row
	c.items = r
	if most := maxOf(r.Files, func(f metadata.FileRef) uint64 { return f.ID }); most>>32 > c.root.Incarnation {
		c.damage(where, c.doRestore, "names SSTable %x, which is of a later start than the %d that it counts", most, c.root.Incarnation)
	}
	if len(r.Start) > 0 || len(r.End) > 0 {
		c.damage(where, c.doRestore, "names tablet %v with rows [%q, %q) instead of the lock service's tablet", r.Tablet, r.Start, r.End)
	}
	return nil
}

// metadata checks the lock service and METADATA, which it recovers as a start would, in
// memory.
func (c *checker) metadata(ctx context.Context) error {
	// The logs first, by themselves: damage there has a file and an offset.
	var last cell.Seq
	sound, err := c.log(ctx, itemsLog, func(rec *commitlog.Record) {
		last = stamp.Last(cell.Seq(rec.FirstSeq), rec.N)
		if metadata.TabletID(rec.Tablet) != c.root.Row.Tablet {
			c.damage(itemsLog, c.doRestore, "a record at %v is of tablet %x instead of the lock service", rec.Pos, rec.Tablet)
		}
	})
	if err != nil {
		return err
	}
	if sound {
		c.checkLogEnd(itemsLog, c.root.Row, last)
		if err := c.checkCovers(itemsLog, c.root.Row); err != nil {
			return err
		}
	}
	if !c.exists(itemsLog) && c.root.Row.Version == 1 && !standalone.Served(c.fs, c.dir) {
		c.rows = map[uint64][]*metadata.Row{} // nothing was ever in it
		return nil
	}
	if sound, err = c.log(ctx, metaLog, func(*commitlog.Record) {}); err != nil {
		return err
	}
	s, err := standalone.OpenMetadata(ctx, c.fs, c.dir)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		c.damage("METADATA", c.doRestore, "cannot be recovered, so no tablet can be found: %v", err)
		return nil
	}
	defer func() {
		now, cancel := context.WithCancel(context.Background())
		cancel()
		_ = s.Close(now) // what it wrote was in memory only
	}()
	if err := errors.Join(c.readItems(ctx, s.Lock()), c.readIncarnation(ctx, s.Lock())); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		c.damage(standalone.LockDir, c.doRestore, "%v", err)
		return nil
	}
	if err := c.readRows(ctx, s.Rows); err != nil || c.rows == nil {
		return err
	}
	c.user, c.system = map[metadata.TabletID]*metadata.Row{}, map[metadata.TabletID]*metadata.Row{}
	for id, rows := range c.rows {
		for _, r := range rows {
			if id == metastore.Table {
				c.system[r.Tablet] = r
			} else {
				c.user[r.Tablet] = r
			}
		}
	}
	c.checkRows()
	if !sound {
		return nil
	}
	return c.checkCovers(metaLog, slices.Collect(maps.Values(c.system))...)
}

// openLog opens a commit log to read it, nil if it is damaged.
func (c *checker) openLog(name string) (*commitlog.FileLog, error) {
	l, err := commitlog.Open(datadir.Overlay(c.fs), c.path(name), commitlog.Options{})
	return l, c.damagedLog(name, err)
}

// remedy says what to do about a commit log that is damaged.
func (c *checker) remedy(name string) string {
	if name == tablesLog {
		return c.doRestore + ", or " + standalone.DropLog + c.dir
	}
	return c.doRestore
}

// damagedLog reports err if it says that a commit log is damaged, else returns it.
func (c *checker) damagedLog(name string, err error) error {
	if fault.KindOf(err) != fault.Corruption {
		return err
	}
	c.damage(name, c.remedy(name)+"; a start would refuse the directory, as acknowledged changes may be lost", "%v", err)
	return nil
}

// log reads a commit log from end to end. It returns false if it is not sound.
func (c *checker) log(ctx context.Context, name string, each func(*commitlog.Record)) (bool, error) {
	if !c.exists(name) {
		if c.root != nil && c.root.Row.Version > 1 || len(c.user) > 0 || standalone.Served(c.fs, c.dir) {
			c.damage(name, c.remedy(name), "the directory is missing, and with it all changes that are in no SSTable")
			return false, nil
		}
		c.note(name, "nothing: the next start makes it", "the directory is missing; nothing was ever in it")
		return true, nil
	}
	l, err := c.openLog(name)
	if l == nil || err != nil {
		return false, err
	}
	err = l.Replay(commitlog.Pos{}, func(rec commitlog.Record) error {
		c.sum.LogRecords++
		each(&rec)
		return ctx.Err()
	})
	return err == nil, errors.Join(c.damagedLog(name, err), l.Close())
}

var errStop = errors.New("enough")

// checkCovers checks that a commit log, which is sound, has what rows have yet to replay.
func (c *checker) checkCovers(name string, rows ...*metadata.Row) error {
	var redo []commitlog.Pos
	for _, r := range rows {
		if r.Redo != (commitlog.Pos{}) {
			redo = append(redo, r.Redo)
		}
	}
	if len(redo) == 0 || !c.exists(name) {
		return nil
	}
	l, err := c.openLog(name)
	if l == nil || err != nil {
		return err
	}
	// It covers the points between the first and the last if it covers these.
	for _, from := range []commitlog.Pos{slices.MinFunc(redo, commitlog.Pos.Compare), slices.MaxFunc(redo, commitlog.Pos.Compare)} {
		if err = l.Replay(from, func(commitlog.Record) error { return errStop }); !errors.Is(err, errStop) && err != nil {
			break
		}
		err = nil
	}
	return errors.Join(c.damagedLog(name, err), l.Close())
}

// replayable checks the commit log of all tablets but METADATA, and that the tablets can
// replay its records.
func (c *checker) replayable(ctx context.Context) error {
	last := map[metadata.TabletID]cell.Seq{}
	seen := map[metadata.TabletID]cell.Seq{} // of all records
	for _, r := range c.user {
		last[r.Tablet] = r.FlushedSeq
	}
	bad := map[metadata.TabletID]bool{} // one complaint a tablet is enough
	complain := func(rec *commitlog.Record, format string, args ...any) {
		id := metadata.TabletID(rec.Tablet)
		if !bad[id] {
			bad[id] = true
			c.damage(tablesLog, c.doRestore, "record of tablet %x at %v: %s", rec.Tablet, rec.Pos, fmt.Sprintf(format, args...))
		}
	}
	sound, err := c.log(ctx, tablesLog, func(rec *commitlog.Record) {
		if rec.Tablet == tabletserver.ClockTablet {
			return
		}
		first := cell.Seq(rec.FirstSeq)
		sink := new(countingSink)
		if err := tablet.DecodeRecord(rec.Payload, first, rec.N, sink); err != nil {
			complain(rec, "%v", err)
			return
		}
		c.checkID(tablesLog, "the tablet of a record", rec.Tablet)
		r := c.user[metadata.TabletID(rec.Tablet)]
		end := stamp.Last(first, rec.N)
		seen[metadata.TabletID(rec.Tablet)] = end
		if r == nil || end <= r.FlushedSeq {
			return // of a tablet that is gone, or in SSTables already
		}
		key, err := cell.RowOf(nil, sink.row)
		switch prev := last[r.Tablet]; {
		case err != nil:
			complain(rec, "%v", err)
		case rec.N > 0 && !(row.Range{Start: r.Start, End: r.End}).Contains(key):
			complain(rec, "row %q is not one of the tablet's", key)
		case first <= r.FlushedSeq:
			complain(rec, "its changes %d to %d straddle the redo point %d", first, end, r.FlushedSeq)
		case first <= prev:
			complain(rec, "its change %d follows %d", first, prev)
		}
		last[r.Tablet] = end
	})
	if err != nil || !sound {
		return err
	}
	if err := c.checkCovers(tablesLog, slices.Collect(maps.Values(c.user))...); err != nil {
		return err
	}
	for id, seq := range seen {
		if r := c.user[id]; r != nil {
			c.checkLogEnd(tablesLog, r, seq)
			if seq < r.FlushedSeq {
				break // it is the same end for all
			}
		}
	}
	return nil
}

// checkLogEnd notes a log that ends before changes that are in SSTables already. last is
// the last change of r's tablet that it holds, 0 for none. Logs are trimmed from the
// front, so later changes than those in the log never were in it, or are gone from its
// end.
func (c *checker) checkLogEnd(name string, r *metadata.Row, last cell.Seq) {
	if last > 0 && last < r.FlushedSeq {
		c.note(name, "nothing after a power cut with durability async; else "+c.doRestore+", as acknowledged changes may be lost",
			"ends at change %d of %s, of which %d are in SSTables: its end is missing", last, c.tabletName(r), r.FlushedSeq)
	}
}

// countingSink takes a decoded record.
type countingSink struct {
	row []byte
	n   int
}

func (s *countingSink) AddParts(prefix, _, _ []byte, _ cell.Seq, _ cell.Kind) {
	s.row, s.n = prefix, s.n+1
}

// sstables checks the SSTables of a directory, and notes those that no row names, if
// all rows are known.
func (c *checker) sstables(ctx context.Context, dir string, known bool) error {
	left, err := c.fs.List(c.path(dir, ".tmp"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	slices.Sort(left)
	for _, f := range left {
		c.note(dir+"/.tmp/"+f, doDeleteOld, "was being written when the server ended")
	}
	s, err := objectstore.OpenLocal(datadir.Overlay(c.fs), c.path(dir), objectstore.LocalOptions{})
	if err != nil {
		return err
	}
	if err := c.readIndexes(ctx, dir, s); err != nil {
		return err
	}
	there, err := c.stored(ctx, dir, s, known)
	if err != nil {
		return err
	}
	r := newPacedReader(0, c.tell)
	defer r.close()
	return c.read(ctx, dir, s, r, there, known, func(*usedObject) (bool, error) { return false, nil })
}
