package check

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/lock"
	cmeta "github.com/trestledb/trestle/cluster/metadata"
	"github.com/trestledb/trestle/cluster/standalone"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/datadir"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/locality"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/sstable"
	"github.com/trestledb/trestle/engine/tablet"
)

// A Finding is something in a data directory that is not as a server that ended
// in order leaves it.
type Finding struct {
	// Harmless findings are what a crash leaves behind; the next start deals with
	// them. All others are damage.
	Harmless bool
	// Where is the file, relative to the data directory, or the tablet or table
	// in METADATA.
	Where string
	// What is wrong, and what to do about it, each a phrase in one line.
	What, Do string
}

// A Summary says how much was looked at.
type Summary struct {
	Tables, Tablets   int // deleted tables that can be undeleted included
	Backups           int // snapshots included
	SSTables          int
	SSTableBytes      int64
	Entries           int64 // of SSTables
	LogRecords        int64 // of the commit logs
	Damaged, Harmless int   // findings
}

// What to do about damage. But for ROOT none of it can be computed from what is
// left.
const (
	doRestore   = "restore the data directory from a backup"
	doDeleteOld = "nothing: a server deletes it"
)

// Directory looks at everything in a data directory that no process has open and
// reports what is wrong with it: checksums, the structure of every file, and
// whether the files agree with each other. It calls report with each finding,
// changes nothing but the LOCK file, and goes on behind damage as far as that
// makes sense. It reads every SSTable whole.
//
// It fails with fault.FailedPrecondition if a process has the directory open or
// it is none, or with what kept it from reading.
func Directory(ctx context.Context, fs vfs.FS, dir string, report func(Finding)) (Summary, error) {
	c := &checker{fs: fs, dir: dir, objects: map[string]*usedObject{}}
	c.report = func(f Finding) {
		if f.Harmless {
			c.sum.Harmless++
		} else {
			c.sum.Damaged++
		}
		f.What = strings.Join(strings.Fields(f.What), " ")
		report(f)
	}
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
	fs     vfs.FS
	dir    string
	report func(Finding)
	sum    Summary

	root *metadata.Root // the lock service's; nil if it cannot be read
	// incarnation is the tablet server's last one, which is in the id of whatever
	// it named; 0 if it is not known.
	incarnation uint64
	// roots are the rows of METADATA tablets, rows those of all others, as the last
	// process left them; nil if they cannot be read.
	roots, rows map[metadata.TabletID]*metadata.Row
	names       map[uint64]string        // of tables and backups, by id
	schemas     map[uint64]*schema.Table // of tables
	// objects are the SSTables that rows name, by path.
	objects map[string]*usedObject
}

// A usedObject is an SSTable with the rows that name it: several after a split.
type usedObject struct {
	ref metadata.FileRef
	by  []*metadata.Row
}

func (c *checker) path(elem ...string) string {
	return c.fs.PathJoin(append([]string{c.dir}, elem...)...)
}

func (c *checker) damage(where, do, format string, args ...any) {
	c.report(Finding{Where: where, What: fmt.Sprintf(format, args...), Do: do})
}

func (c *checker) note(where, do, format string, args ...any) {
	c.report(Finding{Harmless: true, Where: where, What: fmt.Sprintf(format, args...), Do: do})
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
		return err // or it is of a version that this program knows nothing about
	}
	if err := c.readRoot(); err != nil {
		return err
	}
	if c.root != nil {
		for i := range c.root.Row.Files {
			c.use(itemsDir, &c.root.Row.Files[i], c.root.Row)
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
		c.damage(standalone.FormatName, "use the version of trestle that wrote it, or "+doRestore, "%v", err)
		return true, nil
	case fault.KindOf(err) == fault.Corruption:
		c.damage(standalone.FormatName, fmt.Sprintf("write \"trestle data format %d\" and a line feed into it if the directory was written by this version, else ", catalog.FormatVersion)+doRestore,
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
			way = doRestore
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
	if most := maxOf(r.Files, func(f metadata.FileRef) uint64 { return f.ID }); most>>32 > c.root.Incarnation {
		c.damage(where, doRestore, "names SSTable %x, which is of a later start than the %d that it counts", most, c.root.Incarnation)
	}
	if len(r.Start) > 0 || len(r.End) > 0 {
		c.damage(where, doRestore, "names tablet %v with rows [%q, %q) instead of the lock service's tablet", r.Tablet, r.Start, r.End)
	}
	return nil
}

func maxOf[T any](list []T, id func(T) uint64) uint64 {
	var most uint64
	for _, x := range list {
		most = max(most, id(x))
	}
	return most
}

// named reports an id that no server so far can have given out.
func (c *checker) named(where, what string, id uint64) {
	if c.incarnation != 0 && id>>32 > c.incarnation {
		c.damage(where, doRestore, "%s %x is of start %d, and the lock service knows of %d: it is older than the rest", what, id, id>>32, c.incarnation)
	}
}

// use notes that row r names an SSTable.
func (c *checker) use(dir string, f *metadata.FileRef, r *metadata.Row) {
	where, path := c.tabletName(r), dir+"/"+f.Object
	u := c.objects[path]
	if u == nil {
		u = &usedObject{ref: *f}
		c.objects[path] = u
	} else if slices.Contains(u.by, r) {
		c.damage(where, doRestore, "names SSTable %s twice", f.Object)
		return
	} else if !u.ref.Info.Equal(&f.Info) || u.ref.ID != f.ID {
		c.damage(where, doRestore, "says other things of SSTable %s than %s does", f.Object, c.tabletName(u.by[0]))
	}
	u.by = append(u.by, r)
	if want := fmt.Sprintf("%016x.sst", f.ID); f.Object != want {
		c.damage(where, doRestore, "calls SSTable %x %s instead of %s", f.ID, f.Object, want)
	}
}

func (c *checker) tabletName(r *metadata.Row) string {
	if c.root != nil && r == c.root.Row {
		return "the lock service"
	}
	name := c.names[r.Table]
	if name == "" {
		name = fmt.Sprintf("table %x", r.Table)
	}
	return fmt.Sprintf("tablet %v of %s", r.Tablet, name)
}

// metadata checks what the lock service and METADATA hold, which it recovers as a
// start would, in memory.
func (c *checker) metadata(ctx context.Context) error {
	// The logs first, by themselves: what is wrong there has a file and an offset.
	var last cell.Seq
	sound, err := c.log(ctx, itemsLog, func(rec *commitlog.Record) {
		last = cell.Seq(rec.FirstSeq) + cell.Seq(rec.N) - 1
		if metadata.TabletID(rec.Tablet) != c.root.Row.Tablet {
			c.damage(itemsLog, doRestore, "a record at %v is of tablet %x instead of the lock service", rec.Pos, rec.Tablet)
		}
	})
	if err != nil {
		return err
	}
	if sound {
		c.logEnd(itemsLog, c.root.Row, last)
		if err := c.covers(itemsLog, c.root.Row); err != nil {
			return err
		}
	}
	if !c.exists(itemsLog) && c.root.Row.Version == 1 {
		c.rows, c.roots = map[metadata.TabletID]*metadata.Row{}, map[metadata.TabletID]*metadata.Row{} // nothing was ever in it
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
		c.damage("METADATA", doRestore, "cannot be recovered, so no tablet can be found: %v", err)
		return nil
	}
	defer func() {
		now, cancel := context.WithCancel(context.Background())
		cancel()
		_ = s.Close(now) // what it wrote was in memory only
	}()
	if err := c.items(ctx, s); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		c.damage(standalone.LockDir, doRestore, "%v", err)
		return nil
	}
	rows, roots := map[metadata.TabletID]*metadata.Row{}, map[metadata.TabletID]*metadata.Row{}
	byTable := map[uint64][]*metadata.Row{}
	err = s.Rows(ctx, func(r *metadata.Row) error {
		in := rows
		if r.Table == cmeta.Table {
			in = roots
		}
		if in[r.Tablet] != nil && !catalog.IsBackupTable(r.Table) {
			c.damage(c.tabletName(r), doRestore, "has two METADATA rows")
		}
		in[r.Tablet] = r
		byTable[r.Table] = append(byTable[r.Table], r)
		for i := range r.Files {
			f := &r.Files[i]
			c.use(tabletsDir, f, r)
			if sch := c.schemas[r.Table]; sch != nil {
				if family, ok := locality.Misplaced(sch, f.Group, f.Layout, &f.Info); ok {
					c.damage(c.tabletName(r), doRestore, "SSTable %s holds cells of the family %s, which is in another locality group", f.Object, family)
				}
			}
		}
		c.named(c.tabletName(r), "its id", uint64(r.Tablet))
		c.named(c.tabletName(r), "SSTable", maxOf(r.Files, func(f metadata.FileRef) uint64 { return f.ID }))
		return nil
	})
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		c.damage("METADATA", doRestore, "cannot be read to its end: %v", err)
		return nil
	}
	c.roots, c.rows = roots, rows
	for _, id := range slices.Sorted(maps.Keys(byTable)) {
		c.table(id, byTable[id])
	}
	for id, name := range c.names {
		if byTable[id] == nil {
			c.damage(name, doRestore, "has no tablets")
		}
	}
	if !sound {
		return nil
	}
	return c.covers(metaLog, slices.Collect(maps.Values(c.roots))...)
}

// items reads what the lock service knows of tables and backups.
func (c *checker) items(ctx context.Context, s *standalone.Server) error {
	c.names, c.schemas = map[uint64]string{cmeta.Table: "METADATA"}, map[uint64]*schema.Table{}
	known := func(id uint64, name string) {
		if other := c.names[id]; other != "" {
			c.damage(name, doRestore, "has the id of %s", other)
		}
		c.names[id] = name
	}
	i, err := s.Lock().Get(ctx, catalog.IncarnationKey)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(i.Value, &c.incarnation); err != nil {
		return fmt.Errorf("item %s: %w", i.Key, err)
	}
	err = catalog.Names(ctx, s.Lock(), func(_ lock.Item, n catalog.Name) error {
		live := 0
		for _, t := range n {
			if catalog.IsMaking(t) {
				continue // and its tablets are being made
			}
			if t.DeleteTime.IsZero() {
				live++
			}
			known(t.ID, "table "+t.Name)
			c.schemas[t.ID] = t
			c.named("table "+t.Name, "its id", t.ID)
			c.sum.Tables++
		}
		if live > 1 {
			c.damage("table "+n[0].Name, doRestore, "is the name of %d tables", live)
		}
		return nil
	})
	if err != nil {
		return err
	}
	backups, err := catalog.Backups(ctx, s.Lock(), "")
	for _, b := range backups {
		if b.Made {
			known(catalog.BackupTable(b.ID), "backup "+b.Name)
			c.sum.Backups++
		}
	}
	return err
}

// table checks the rows of a table or backup.
func (c *checker) table(id uint64, rows []*metadata.Row) {
	if c.names[id] == "" {
		for _, r := range rows {
			c.note(c.tabletName(r), doDeleteOld, "neither table nor backup has it: it was being made or deleted")
		}
		return
	}
	if id != cmeta.Table && !catalog.IsBackupTable(id) {
		c.sum.Tablets += len(rows)
	}
	for _, r := range rows {
		if r.Op != nil {
			what := map[metadata.OpKind]string{metadata.Split: "split", metadata.Merge: "merge", metadata.Leave: "merge"}[r.Op.Kind]
			if what == "" {
				c.damage(c.tabletName(r), doRestore, "an operation of unknown kind %d is under way", r.Op.Kind)
				return
			}
			c.note(c.tabletName(r), "nothing: the next start finishes or forgets it", "a %s was under way", what)
		}
	}
	if !Tiled(rows) {
		c.damage(c.names[id], doRestore, "its %d tablets do not tile the key space", len(rows))
	}
}

// Tiled tells whether rows, ascending, are those of all tablets of a table once every
// split and merge that has happened is finished, and every other one forgotten.
func Tiled(rows []*metadata.Row) bool {
	there, merged := map[metadata.TabletID]bool{}, map[metadata.TabletID]bool{}
	for _, r := range rows {
		there[r.Tablet] = true
		if r.Op != nil && r.Op.Kind == metadata.Merge {
			merged[r.Op.Left] = true
		}
	}
	var out []*metadata.Row
	for _, r := range rows {
		if merged[r.Tablet] {
			continue
		}
		if r.Op != nil && r.Op.Kind == metadata.Split && there[r.Op.Left] {
			r = r.Clone()
			r.Start = r.Op.At
		}
		out = append(out, r)
	}
	return metadata.Tile(out)
}

// openLog opens a commit log to read it, nil if it is damaged.
func (c *checker) openLog(name string) (*commitlog.FileLog, error) {
	l, err := commitlog.Open(datadir.Overlay(c.fs), c.path(name), commitlog.Options{})
	return l, c.damagedLog(name, err)
}

// damagedLog reports err if it says that a commit log is damaged, else returns it.
func (c *checker) damagedLog(name string, err error) error {
	if fault.KindOf(err) != fault.Corruption {
		return err
	}
	c.damage(name, doRestore+"; a start would refuse the directory, as acknowledged changes may be lost", "%v", err)
	return nil
}

// log reads a commit log from end to end. It returns false if it is not sound.
func (c *checker) log(ctx context.Context, name string, each func(*commitlog.Record)) (bool, error) {
	if !c.exists(name) {
		if c.root != nil && c.root.Row.Version > 1 || len(c.rows) > 0 {
			c.damage(name, doRestore, "the directory is missing, and with it all changes that are in no SSTable")
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

var errEnough = errors.New("enough")

// covers checks that a commit log, which is sound, has what rows have yet to replay.
func (c *checker) covers(name string, rows ...*metadata.Row) error {
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
		if err = l.Replay(from, func(commitlog.Record) error { return errEnough }); !errors.Is(err, errEnough) && err != nil {
			break
		}
		err = nil
	}
	return errors.Join(c.damagedLog(name, err), l.Close())
}

// replayable checks the commit log of all tablets but METADATA, and that its
// records are what the tablets can replay.
func (c *checker) replayable(ctx context.Context) error {
	last := map[metadata.TabletID]cell.Seq{}
	seen := map[metadata.TabletID]cell.Seq{} // of all records
	for _, r := range c.rows {
		last[r.Tablet] = r.FlushedSeq
	}
	bad := map[metadata.TabletID]bool{} // one complaint a tablet is enough
	complain := func(rec *commitlog.Record, format string, args ...any) {
		id := metadata.TabletID(rec.Tablet)
		if !bad[id] {
			bad[id] = true
			c.damage(tablesLog, doRestore, "record of tablet %x at %v: %s", rec.Tablet, rec.Pos, fmt.Sprintf(format, args...))
		}
	}
	sound, err := c.log(ctx, tablesLog, func(rec *commitlog.Record) {
		first := cell.Seq(rec.FirstSeq)
		sink := new(countingSink)
		if err := tablet.DecodeRecord(rec.Payload, first, rec.N, sink); err != nil {
			complain(rec, "%v", err)
			return
		}
		c.named(tablesLog, "the tablet of a record", rec.Tablet)
		r := c.rows[metadata.TabletID(rec.Tablet)]
		end := first + cell.Seq(rec.N) - 1
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
	if err := c.covers(tablesLog, slices.Collect(maps.Values(c.rows))...); err != nil {
		return err
	}
	for id, seq := range seen {
		if r := c.rows[id]; r != nil {
			c.logEnd(tablesLog, r, seq)
			if seq < r.FlushedSeq {
				break // it is the same end for all
			}
		}
	}
	return nil
}

// logEnd notes a log that ends before changes that are in SSTables already. last
// is the last change of r's tablet that it holds, 0 for none. Logs are trimmed
// from the front, so later changes than those in the log never were in it, or
// are gone from its end.
func (c *checker) logEnd(name string, r *metadata.Row, last cell.Seq) {
	if last > 0 && last < r.FlushedSeq {
		c.note(name, "nothing after a power cut with durability async; else "+doRestore+", as acknowledged changes may be lost",
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

// sstables checks every SSTable of a directory that a row names, and notes the
// others, if all rows are known.
func (c *checker) sstables(ctx context.Context, dir string, known bool) error {
	names, err := c.fs.List(c.path(dir))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	slices.Sort(names)
	there := map[string]bool{}
	cache := sstable.NewCache(4<<20, 4)
	defer cache.Close()
	for _, n := range names {
		path := dir + "/" + n
		there[path] = true
		switch {
		case n == ".tmp":
			left, err := c.fs.List(c.path(path))
			if err != nil {
				return err
			}
			for _, f := range left {
				c.note(path+"/"+f, doDeleteOld, "was being written when the server ended")
			}
		case c.objects[path] != nil:
		case known:
			c.note(path, doDeleteOld, "no tablet or backup names it: it was written, or was to be deleted, when the server ended")
		case strings.HasSuffix(n, ".sst"):
			if err := c.sstable(ctx, cache, path, nil); err != nil {
				return err
			}
		}
	}
	for _, path := range slices.Sorted(maps.Keys(c.objects)) {
		u := c.objects[path]
		if !strings.HasPrefix(path, dir+"/") {
			continue
		}
		if !there[path] {
			c.damage(path, doRestore, "is missing; %s needs it", c.users(u))
			continue
		}
		if err := c.sstable(ctx, cache, path, u); err != nil {
			return err
		}
	}
	return nil
}

// users names the tablets that an SSTable belongs to.
func (c *checker) users(u *usedObject) string {
	var list []string
	for _, r := range u.by {
		list = append(list, c.tabletName(r))
	}
	return strings.Join(list, ", ")
}

// sstable checks one SSTable; u is nil if METADATA cannot tell about it.
func (c *checker) sstable(ctx context.Context, cache *sstable.Cache, path string, u *usedObject) error {
	f, err := c.fs.Open(c.path(path))
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	info, err := f.Stat()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	c.sum.SSTables++
	c.sum.SSTableBytes += info.Size()
	of, says := "", (*sstable.Info)(nil)
	if u != nil {
		of, says = " of "+c.users(u), &u.ref.Info
		if info.Size() != u.ref.Size {
			c.damage(path, doRestore, "has %d bytes instead of %d, an SSTable%s", info.Size(), u.ref.Size, of)
			return f.Close()
		}
	}
	v, err := sstable.Check(ctx, cache, fileReadable{f, info.Size()}, c.fs.PathBase(path), says)
	c.sum.Entries += int64(v.Entries)
	switch {
	case err != nil || v.Wrong == "":
		return err
	case v.Rows:
		c.damage(path, doRestore+"; until then the rows concerned answer DATA_LOSS and all others are served", "%s; it is an SSTable%s", v.Wrong, of)
	default:
		c.damage(path, doRestore, "%s; an SSTable%s", v.Wrong, of)
	}
	return nil
}

// fileReadable is a file as an sstable.Readable.
type fileReadable struct {
	f    vfs.File
	size int64
}

func (r fileReadable) Size() int64  { return r.size }
func (r fileReadable) Close() error { return r.f.Close() }
func (r fileReadable) ReadAt(_ context.Context, p []byte, off int64) error {
	if n, err := r.f.ReadAt(p, off); n < len(p) {
		return fmt.Errorf("read %d bytes at %d: %w", len(p), off, err)
	}
	return nil
}
