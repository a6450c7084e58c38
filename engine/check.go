package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"os"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
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

// CheckSummary says how much Check looked at.
type CheckSummary struct {
	Tables, Tablets   int // deleted tables that can be undeleted included
	Backups           int // snapshots included
	SSTables          int
	SSTableBytes      int64
	Entries           int64 // of SSTables
	LogRecords        int64 // of both commit logs
	Damaged, Harmless int   // findings
}

// What to do about damage. But for ROOT none of it can be computed from what is
// left.
const (
	doRestore   = "restore the data directory from a backup"
	doCopyRoot  = "copy ROOT.copy, which is sound, over ROOT"
	doDeleteOld = "nothing: the next start deletes it"
)

// Check looks at everything in a data directory that no process has open and
// reports what is wrong with it: checksums, the structure of every file, and
// whether the files agree with each other. It calls report with each finding,
// changes nothing but the LOCK file, and goes on behind damage as far as that
// makes sense. It reads every SSTable whole.
//
// It fails with fault.FailedPrecondition if a process has the directory open or
// it is none of a store, or with what kept it from reading.
func Check(ctx context.Context, fs vfs.FS, dir string, report func(Finding)) (CheckSummary, error) {
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

type checker struct {
	fs     vfs.FS
	dir    string
	report func(Finding)
	sum    CheckSummary

	root *metadata.Root // nil if it cannot be read
	// rows are the METADATA rows that a start would work with, by tablet; nil if
	// METADATA cannot be read.
	rows  map[metadata.TabletID]*metadata.Row
	names map[uint64]string // of tables, by id
	// frozen are the rows of backups, with the backup's name.
	frozen map[*metadata.Row]string
	// objects are the SSTables that rows name.
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
	if !slices.ContainsFunc([]string{"FORMAT", "ROOT", "log", "ulog", "sst"}, c.exists) {
		return nil, fault.New(fault.FailedPrecondition, "%s is not a trestle data directory: it has neither FORMAT nor ROOT", c.dir)
	}
	lock, err := c.fs.Lock(c.path("LOCK"))
	if err != nil {
		return nil, fault.New(fault.FailedPrecondition, "data directory %s is open in another process, or cannot be locked: %w; stop the server first", c.dir, err)
	}
	return lock, nil
}

func (c *checker) check(ctx context.Context) error {
	if !c.format() {
		return nil // of a version that this program knows nothing about
	}
	if err := c.readRoot(); err != nil {
		return err
	}
	if c.root != nil {
		for i := range c.root.Row.Files {
			c.use(&c.root.Row.Files[i], c.root.Row)
		}
		if err := c.metadata(ctx); err != nil {
			return err
		}
	} else if !c.exists("log") && !c.exists("ulog") && !c.exists("sst") {
		return nil // new, and nothing was ever in it
	}
	if err := c.sstables(ctx); err != nil {
		return err
	}
	return c.userLog(ctx)
}

// format checks FORMAT and tells whether the rest can be checked.
func (c *checker) format() bool {
	err := checkFormatFile(c.fs, c.dir)
	switch {
	case err == nil:
		return true
	case errors.Is(err, errNewDirectory):
		c.note("FORMAT", "nothing: the next start writes it", "is missing or empty, in a directory that is new")
		return true
	case fault.KindOf(err) == fault.FailedPrecondition:
		c.damage("FORMAT", "use the version of trestle that wrote it, or "+doRestore, "%v", err)
		return false
	}
	c.damage("FORMAT", "write \"trestle data format 1\" and a line feed into it if the directory was written by this version, else "+doRestore, "%v", err)
	return true
}

var errNewDirectory = errors.New("the directory is new")

// checkFormatFile is checkFormat that writes nothing.
func checkFormatFile(fs vfs.FS, dir string) error {
	f, err := fs.Open(fs.PathJoin(dir, "FORMAT"))
	var b []byte
	if err == nil {
		b, err = io.ReadAll(f)
		err = errors.Join(err, f.Close())
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if len(b) == 0 {
		if _, err := fs.Stat(fs.PathJoin(dir, "ROOT")); errors.Is(err, os.ErrNotExist) {
			return errNewDirectory
		}
		return fault.New(fault.Corruption, "is missing or empty")
	}
	return checkFormat(fs, dir, "")
}

// readRoot reads ROOT.
func (c *checker) readRoot() error {
	do := doRestore
	if _, err := metadata.ReadRootCopy(c.fs, c.dir); err == nil {
		do = doCopyRoot
	}
	root, err := metadata.ReadRoot(c.fs, c.dir)
	switch {
	case err == nil:
		c.root = root
	case fault.KindOf(err) == fault.NotFound:
		if err := checkRoot(c.fs, c.dir); err != nil {
			c.damage("ROOT", do, "is missing; without it no table can be found")
		} else {
			c.note("ROOT", "nothing: the next start writes it", "is missing, in a directory that is new")
		}
	case fault.KindOf(err) == fault.Corruption:
		c.damage("ROOT", do, "%v", err)
	default:
		return err
	}
	if c.root == nil {
		return nil
	}
	r := c.root.Row
	c.incarnation("ROOT", "SSTable", maxOf(r.Files, func(f metadata.FileRef) uint64 { return f.ID }))
	if len(r.Start) > 0 || len(r.End) > 0 || r.Tablet != metaTabletID {
		c.damage("ROOT", doRestore, "names tablet %v with rows [%q, %q) instead of the METADATA tablet", r.Tablet, r.Start, r.End)
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

// incarnation reports an id that no incarnation so far can have given out.
func (c *checker) incarnation(where, what string, id uint64) {
	if c.root != nil && id>>32 > c.root.Incarnation {
		c.damage(where, doRestore, "%s %x is of incarnation %d, ROOT says there were %d: ROOT is older than the rest", what, id, id>>32, c.root.Incarnation)
	}
}

// use notes that row r names an SSTable.
func (c *checker) use(f *metadata.FileRef, r *metadata.Row) {
	where := c.tabletName(r)
	u := c.objects[f.Object]
	if u == nil {
		u = &usedObject{ref: *f}
		c.objects[f.Object] = u
	} else if slices.Contains(u.by, r) {
		c.damage(where, doRestore, "names SSTable %s twice", f.Object)
		return
	} else if !sameInfo(&u.ref.Info, &f.Info) || u.ref.ID != f.ID {
		c.damage(where, doRestore, "says other things of SSTable %s than %s does", f.Object, c.tabletName(u.by[0]))
	}
	u.by = append(u.by, r)
	if want := fmt.Sprintf("%016x.sst", f.ID); f.Object != want {
		c.damage(where, doRestore, "calls SSTable %x %s instead of %s", f.ID, f.Object, want)
	}
}

func sameInfo(a, b *sstable.Info) bool {
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	return bytes.Equal(x, y)
}

func (c *checker) tabletName(r *metadata.Row) string {
	if r.Tablet == metaTabletID {
		return "METADATA tablet"
	}
	if name := c.frozen[r]; name != "" {
		return fmt.Sprintf("tablet %v of backup %s", r.Tablet, name)
	}
	name := c.names[r.Table]
	if name == "" {
		name = fmt.Sprintf("%x", r.Table)
	}
	return fmt.Sprintf("tablet %v of table %s", r.Tablet, name)
}

// metadata checks what the METADATA tablet holds, on a copy in memory.
func (c *checker) metadata(ctx context.Context) error {
	// Its log first, by itself: what is wrong there has a file and an offset.
	var seen cell.Seq
	whole, err := c.log(ctx, "log", []*metadata.Row{c.root.Row}, func(rec *commitlog.Record) {
		seen = cell.Seq(rec.FirstSeq) + cell.Seq(rec.N) - 1
		if metadata.TabletID(rec.Tablet) != metaTabletID {
			c.damage("log", doRestore, "a record at %v is of tablet %x instead of METADATA", rec.Pos, rec.Tablet)
		}
	})
	if err != nil {
		return err
	}
	if whole {
		c.logEnd("log", c.root.Row, seen)
	}
	if !c.exists("log") && c.root.Row.Version == 1 {
		c.rows = map[metadata.TabletID]*metadata.Row{} // nothing was ever in it
		return nil
	}
	s, err := copyOfMetadata(ctx, c.fs, c.dir, c.root)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		c.damage("METADATA tablet", doRestore, "cannot be recovered, so no tablet can be found: %v", err)
		return nil
	}
	defer func() { _ = s.stop() }() // a copy: nothing is lost with it
	sound := true
	bad := func(key []byte, err error) {
		sound = false
		c.damage(fmt.Sprintf("METADATA row %q", key), doRestore, "%v", err)
	}
	c.names, c.frozen = map[uint64]string{}, map[*metadata.Row]string{}
	var backup *schema.Backup // the last
	tiles := map[string][]row.Range{}
	live := map[string]uint64{}
	schemas := map[uint64]*schema.Table{}
	byID := map[metadata.TabletID]bool{}
	var rows []*metadata.Row
	err = s.list(ctx, nil, func(key, value []byte) error {
		switch {
		case len(key) == 9 && key[0] == 's':
			t, err := schema.Unmarshal(value)
			switch {
			case err != nil:
				bad(key, fmt.Errorf("decode schema: %w", err))
				return nil
			case !bytes.Equal(schemaKey(t.ID), key):
				bad(key, fmt.Errorf("holds the schema of table %x", t.ID))
			case t.DeleteTime.IsZero() && live[t.Name] != 0:
				bad(key, fmt.Errorf("table %x has the name %s of table %x", t.ID, t.Name, live[t.Name]))
			}
			c.names[t.ID], schemas[t.ID] = t.Name, t
			if t.DeleteTime.IsZero() {
				live[t.Name] = t.ID
			}
			c.incarnation("table "+t.Name, "its id", t.ID)
		case len(key) >= 10 && key[0] == 't':
			r, err := metadata.Unmarshal(value)
			switch {
			case err != nil:
				bad(key, err)
				return nil
			case !bytes.Equal(tabletKey(r), key):
				bad(key, fmt.Errorf("holds the row of tablet %v of table %x with end %q", r.Tablet, r.Table, r.End))
			case byID[r.Tablet]:
				bad(key, fmt.Errorf("tablet %v has two rows", r.Tablet))
			}
			byID[r.Tablet] = true
			rows = append(rows, r)
		case len(key) == 9 && key[0] == 'b':
			b, err := schema.UnmarshalBackup(value)
			if err == nil && !bytes.Equal(backupKey(b.ID), key) {
				err = fmt.Errorf("holds backup %x", b.ID)
			}
			if err != nil {
				bad(key, fmt.Errorf("decode backup: %w", err))
				return nil
			}
			backup, tiles[b.Name] = b, nil
			c.incarnation("backup "+b.Name, "its id", b.ID)
		case len(key) >= 10 && key[0] == 'b':
			r, err := metadata.Unmarshal(value)
			switch {
			case err != nil:
				bad(key, err)
			case backup == nil || !bytes.Equal(frozenKey(backup.ID, r), key):
				c.note(fmt.Sprintf("METADATA row %q", key), doDeleteOld, "its backup does not exist: it was being made or deleted")
			default:
				c.frozen[r] = backup.Name
				tiles[backup.Name] = append(tiles[backup.Name], row.Range{Start: r.Start, End: r.End})
			}
		case len(key) > 0 && key[0] == 'r':
			if _, _, err := splitRecord(string(key[1:]), value); err != nil {
				bad(key, err)
			}
		default:
			bad(key, errors.New("there is no such kind of row"))
		}
		return nil
	})
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		c.damage("METADATA tablet", doRestore, "cannot be read to its end: %v", err)
		return nil
	}
	for _, r := range rows {
		if r.Op != nil {
			what := map[metadata.OpKind]string{metadata.Split: "split", metadata.Merge: "merge", metadata.Leave: "merge"}[r.Op.Kind]
			if what == "" {
				sound = false
				c.damage(c.tabletName(r), doRestore, "an operation of unknown kind %d is under way", r.Op.Kind)
				continue
			}
			c.note(c.tabletName(r), "nothing: the next start finishes or forgets it", "a %s was under way", what)
		}
		if c.names[r.Table] == "" {
			c.note(c.tabletName(r), doDeleteOld, "its table does not exist: it was being made or removed")
		}
	}
	if sound {
		if rows, err = c.settle(ctx, s); err != nil {
			return err
		}
	} else if len(rows) == 0 {
		return nil
	}
	c.rows = map[metadata.TabletID]*metadata.Row{}
	for _, r := range rows {
		c.rows[r.Tablet] = r
		c.incarnation(c.tabletName(r), "its id", uint64(r.Tablet))
		c.incarnation(c.tabletName(r), "SSTable", maxOf(r.Files, func(f metadata.FileRef) uint64 { return f.ID }))
		for i := range r.Files {
			c.use(&r.Files[i], r)
			if t := schemas[r.Table]; t != nil {
				if family, ok := misplaced(t, &r.Files[i]); ok {
					c.damage(c.tabletName(r), doRestore, "SSTable %s holds cells of the family %s, which is in another locality group", r.Files[i].Object, family)
				}
			}
		}
	}
	for r := range c.frozen {
		for i := range r.Files {
			c.use(&r.Files[i], r)
		}
	}
	for name, ranges := range tiles {
		if err := checkTiles(ranges); err != nil {
			c.damage("backup "+name, "delete the backup", "%v", err)
		}
	}
	c.sum.Tables, c.sum.Tablets, c.sum.Backups = len(c.names), len(c.rows), len(tiles)
	return nil
}

// settle has s do to its copy of METADATA what a start would, and returns the
// rows as they are then. It reports tables whose tablets do not tile the key
// space.
func (c *checker) settle(ctx context.Context, s *Store) ([]*metadata.Row, error) {
	s.catalog.byName = map[string]*table{}
	s.catalog.byID = map[uint64]*table{}
	s.catalog.tablets = map[metadata.TabletID]*tablet.Tablet{}
	s.env, s.work = s.newEnv(metaRows{s}, s.o.MemtableBytes, s.allTablets, nil)
	err := s.loadCatalog(ctx)
	if err != nil && ctx.Err() != nil {
		return nil, err
	}
	told := false
	for _, t := range s.catalog.byID {
		if err := t.check(); err != nil {
			told = true
			c.damage("table "+t.schema.Load().Name, doRestore, "%v", err)
		}
	}
	if err != nil && !told {
		c.damage("METADATA tablet", doRestore, "%v", err)
	}
	var rows []*metadata.Row
	for _, tt := range s.catalog.tablets {
		rows = append(rows, tt.Row())
	}
	slices.SortFunc(rows, func(a, b *metadata.Row) int { return bytes.Compare(tabletKey(a), tabletKey(b)) })
	return rows, nil
}

// log reads a commit log from end to end and decodes every record. rows are the
// tablets that must find in it what they have yet to replay. It returns false if
// it is not sound.
func (c *checker) log(ctx context.Context, name string, rows []*metadata.Row, each func(*commitlog.Record)) (bool, error) {
	if !c.exists(name) {
		if c.root != nil && c.root.Row.Version > 1 || len(c.rows) > 0 {
			c.damage(name, doRestore, "the directory is missing, and with it all changes that are in no SSTable")
			return false, nil
		}
		c.note(name, "nothing: the next start makes it", "the directory is missing; nothing was ever in it")
		return true, nil
	}
	do := doRestore + "; a start would refuse the directory, as acknowledged changes may be lost"
	l, err := commitlog.Open(c.fs, c.path(name), commitlog.Options{})
	if err != nil {
		if fault.KindOf(err) != fault.Corruption {
			return false, err
		}
		c.damage(name, do, "%v", err)
		return false, nil
	}
	sound := true
	err = l.Replay(commitlog.Pos{}, func(rec commitlog.Record) error {
		c.sum.LogRecords++
		each(&rec)
		return ctx.Err()
	})
	if err == nil {
		err = uncovered(l, rows)
	}
	if err != nil && fault.KindOf(err) == fault.Corruption {
		sound = false
		c.damage(name, do, "%v", err)
		err = nil
	}
	return sound, errors.Join(err, l.Close())
}

var errEnough = errors.New("enough")

// uncovered fails if the log does not hold what is behind the redo point of a
// row.
func uncovered(l *commitlog.FileLog, rows []*metadata.Row) error {
	var redo []commitlog.Pos
	for _, r := range rows {
		if r.Redo != (commitlog.Pos{}) {
			redo = append(redo, r.Redo)
		}
	}
	if len(redo) == 0 {
		return nil
	}
	// It covers the points between the first and the last if it covers these.
	for _, from := range []commitlog.Pos{slices.MinFunc(redo, commitlog.Pos.Compare), slices.MaxFunc(redo, commitlog.Pos.Compare)} {
		err := l.Replay(from, func(commitlog.Record) error { return errEnough })
		if err != nil && !errors.Is(err, errEnough) {
			return err
		}
	}
	return nil
}

// userLog checks the commit log of all tablets but METADATA, and that its
// records are what the tablets can replay.
func (c *checker) userLog(ctx context.Context) error {
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
			c.damage("ulog", doRestore, "record of tablet %x at %v: %s", rec.Tablet, rec.Pos, fmt.Sprintf(format, args...))
		}
	}
	whole, err := c.log(ctx, "ulog", slices.Collect(maps.Values(c.rows)), func(rec *commitlog.Record) {
		first := cell.Seq(rec.FirstSeq)
		sink := new(countingSink)
		if err := tablet.DecodeRecord(rec.Payload, first, rec.N, sink); err != nil {
			complain(rec, "%v", err)
			return
		}
		c.incarnation("ulog", "the tablet of a record", rec.Tablet)
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
	if err != nil || !whole {
		return err
	}
	for id, seq := range seen {
		if r := c.rows[id]; r != nil {
			c.logEnd("ulog", r, seq)
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

// sstables checks every SSTable that a METADATA row names, and notes the others.
func (c *checker) sstables(ctx context.Context) error {
	names, err := c.fs.List(c.path("sst"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	there := map[string]bool{}
	for _, n := range names {
		there[n] = true
	}
	// One whose rows are known by no tablet may be damage, if METADATA is.
	known := c.rows != nil
	for _, n := range slices.Sorted(slices.Values(names)) {
		switch {
		case n == ".tmp":
			left, err := c.fs.List(c.path("sst", n))
			if err != nil {
				return err
			}
			for _, f := range left {
				c.note("sst/.tmp/"+f, doDeleteOld, "was being written when the server ended")
			}
		case c.objects[n] != nil || !known:
		default:
			c.note("sst/"+n, doDeleteOld, "no tablet or backup names it: it was written, or was to be deleted, when the server ended")
		}
	}
	cache := sstable.NewCache(4<<20, 4)
	defer cache.Close()
	for _, name := range slices.Sorted(maps.Keys(c.objects)) {
		u := c.objects[name]
		if !there[name] {
			c.damage("sst/"+name, doRestore, "is missing; %s needs it", c.users(u))
			continue
		}
		if err := c.sstable(ctx, cache, name, u); err != nil {
			return err
		}
	}
	if known {
		return nil
	}
	for _, name := range slices.Sorted(slices.Values(names)) {
		if c.objects[name] == nil && strings.HasSuffix(name, ".sst") {
			if err := c.sstable(ctx, cache, name, nil); err != nil {
				return err
			}
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
func (c *checker) sstable(ctx context.Context, cache *sstable.Cache, name string, u *usedObject) error {
	where := "sst/" + name
	f, err := c.fs.Open(c.path("sst", name))
	if err != nil {
		return fmt.Errorf("open %s: %w", where, err)
	}
	info, err := f.Stat()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	c.sum.SSTables++
	c.sum.SSTableBytes += info.Size()
	of := ""
	if u != nil {
		of = " of " + c.users(u)
		if info.Size() != u.ref.Size {
			c.damage(where, doRestore, "has %d bytes instead of %d, an SSTable%s", info.Size(), u.ref.Size, of)
			return f.Close()
		}
	}
	do := doRestore + "; until then the rows concerned answer DATA_LOSS and all others are served"
	r, err := sstable.Open(ctx, cache, fileReadable{f, info.Size()}, name)
	if err != nil {
		if fault.KindOf(err) == fault.Corruption {
			c.damage(where, do, "%v; it is an SSTable%s", err, of)
			return nil
		}
		return err
	}
	err = c.entries(ctx, r, where, of, do, u)
	return errors.Join(err, r.Close())
}

// entries reads an open SSTable from end to end.
func (c *checker) entries(ctx context.Context, r *sstable.Reader, where, of, do string, u *usedObject) error {
	var says *sstable.Info
	if u != nil {
		says = &u.ref.Info
	}
	entries, w, err := checkSSTable(ctx, r, says)
	c.sum.Entries += int64(entries)
	switch {
	case err != nil || w.what == "":
		return err
	case w.blocks:
		c.damage(where, do, "%s; it is an SSTable%s", w.what, of)
	default:
		c.damage(where, doRestore, "%s; an SSTable%s", w.what, of)
	}
	return nil
}

// A wrong says what is wrong with an SSTable: with some of its blocks, or with
// all of it.
type wrong struct {
	what   string
	blocks bool
}

// CheckSSTable reads an SSTable from end to end: every checksum, that METADATA
// and the file say the same of it, and that its entries are those that it says
// it has, in order. It returns how many there are, and what is wrong, "" if
// nothing is; an error means that it could not be found out. cache is for what
// is read, and f is closed.
func CheckSSTable(ctx context.Context, cache *sstable.Cache, f sstable.Readable, name string, info *sstable.Info) (entries uint64, what string, err error) {
	r, err := sstable.Open(ctx, cache, f, name)
	if err != nil {
		if fault.KindOf(err) == fault.Corruption {
			return 0, err.Error(), nil
		}
		return 0, "", err
	}
	entries, w, err := checkSSTable(ctx, r, info)
	return entries, w.what, errors.Join(err, r.Close())
}

func checkSSTable(ctx context.Context, r *sstable.Reader, info *sstable.Info) (entries uint64, w wrong, err error) {
	says, err := r.Info(ctx)
	switch {
	case err != nil && fault.KindOf(err) == fault.Corruption:
		return 0, wrong{what: err.Error(), blocks: true}, nil
	case err != nil:
		return 0, w, err
	}
	if info != nil && !sameInfo(&says, info) {
		return 0, wrong{what: "METADATA says other things of it than it says itself: it is not the one that was written"}, nil
	}
	damaged := func(err error) wrong {
		return wrong{what: fmt.Sprintf("%v; %s", err, readable(ctx, r, &says)), blocks: true}
	}
	if err := r.VerifyChecksums(ctx); err != nil {
		if fault.KindOf(err) != fault.Corruption {
			return 0, w, err
		}
		return 0, damaged(err), nil
	}
	got, what, err := readEntries(ctx, r)
	switch {
	case err != nil && fault.KindOf(err) != fault.Corruption:
		return got.Entries, w, err
	case err != nil:
		return got.Entries, damaged(err), nil
	case what != "":
	case got.Entries != says.Entries || got.Tombstones != says.Tombstones || got.Shadowed != says.Shadowed || got.RawBytes != says.RawBytes ||
		got.MinSeq != says.MinSeq || got.MaxSeq != says.MaxSeq || !bytes.Equal(got.Lo, says.Lo) || !bytes.Equal(got.Hi, says.Hi):
		what = fmt.Sprintf("holds %d entries with sequence numbers %d to %d and says it holds %d with %d to %d",
			got.Entries, got.MinSeq, got.MaxSeq, says.Entries, says.MinSeq, says.MaxSeq)
	case says.PlainRows && !got.PlainRows:
		what = "says that no row key has a byte 00, and has one that does"
	}
	return got.Entries, wrong{what: what}, nil
}

// readEntries counts the entries of r. wrong is the first that is out of order
// or makes no sense, "" if there is none.
func readEntries(ctx context.Context, r *sstable.Reader) (got sstable.Info, wrong string, err error) {
	it, err := r.CompactionIterator(ctx)
	if err != nil {
		return got, "", err
	}
	defer func() {
		if cerr := it.Close(); err == nil {
			err = cerr
		}
	}()
	var last cell.Entry
	got.MinSeq, got.PlainRows = cell.MaxSeq, true
	for ok := it.First(); ok; ok = it.Next() {
		if got.Entries%1024 == 0 && ctx.Err() != nil {
			return got, "", ctx.Err()
		}
		e := it.Entry()
		n, plain := cell.EscapedPart(e.Key)
		got.PlainRows = got.PlainRows && plain
		if n < 0 {
			return got, fmt.Sprintf("key %x has no row", e.Key), nil
		}
		suffix, err := cell.ParseSuffix(e.Key[n:])
		if err != nil {
			return got, fmt.Sprintf("key %x: %v", e.Key, err), nil
		}
		if got.Entries > 0 {
			if cell.Compare(&last, e) >= 0 {
				return got, fmt.Sprintf("key %x #%d is followed by %x #%d, which is not behind it", last.Key, last.Seq, e.Key, e.Seq), nil
			}
			if bytes.Equal(last.Key, e.Key) {
				got.Shadowed++
			}
		} else {
			got.Lo = bytes.Clone(e.Key[:n])
		}
		if suffix.Shape == cell.ColumnMarker || suffix.Shape == cell.FamilyMarker && len(e.Value) > 0 {
			if _, _, err := cell.ParseMarker(nil, e.Value); err != nil {
				return got, fmt.Sprintf("deletion at key %x: %v", e.Key, err), nil
			}
		}
		if suffix.Shape != cell.Cell || e.Kind == cell.Delete {
			got.Tombstones++
		}
		got.Entries++
		got.RawBytes += uint64(len(e.Key) + len(e.Value))
		got.MinSeq, got.MaxSeq = min(got.MinSeq, e.Seq), max(got.MaxSeq, e.Seq)
		got.Hi = append(got.Hi[:0], e.Key[:n]...)
		last = cell.Entry{Key: append(last.Key[:0], e.Key...), Seq: e.Seq, Kind: e.Kind}
	}
	return got, "", it.Error()
}

// readable says which rows of a damaged SSTable can be read before the damage.
func readable(ctx context.Context, r *sstable.Reader, says *sstable.Info) string {
	lo, hi := shownRow(says.Lo), shownRow(says.Hi)
	got, _, err := readEntries(ctx, r)
	switch {
	case err == nil:
		return fmt.Sprintf("the rows from %s to %s can be read", lo, hi)
	case got.Entries == 0:
		return fmt.Sprintf("of its rows from %s to %s the first cannot be read", lo, hi)
	}
	return fmt.Sprintf("of its rows from %s to %s those after %s cannot all be read", lo, hi, shownRow(got.Hi))
}

func shownRow(prefix []byte) string {
	key, err := cell.RowOf(nil, prefix)
	if err != nil {
		return fmt.Sprintf("%x", prefix)
	}
	return fmt.Sprintf("%q", key)
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
