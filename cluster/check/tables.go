package check

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/locality"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/stamp"
)

// tables are the content of a lock service and METADATA, of one process or of a cluster.
type tables struct {
	*reporter
	// incarnation is the last one, which is in the id of whatever a tablet server
	// named; 0 if it is not known.
	incarnation uint64
	names       map[uint64]string        // of tables and backups, by id
	schemas     map[uint64]*schema.Table // of tables
	// rows are those of each table; nil if they cannot be read.
	rows map[uint64][]*metadata.Row
	// items is the row of the tablet of a lock service of one process.
	items *metadata.Row
	// objects are the SSTables, change files and index objects that rows name, by path.
	objects map[string]*usedObject
	// unread says that an index object cannot be read: any change file may be one of its.
	unread bool
}

// A usedObject is an SSTable, a change file or an index object, with the rows that name it:
// several after a split.
type usedObject struct {
	ref metadata.FileRef
	// changes is that of a change file, and index that of an index object: ref has object
	// and size only.
	changes *changes.Ref
	index   *changes.IndexRef
	// through is the index object by which rows name it, empty if they do themselves.
	through string
	by      []*metadata.Row
}

// kind says what it is.
func (u *usedObject) kind() string {
	switch {
	case u.changes != nil:
		return "a change file"
	case u.index != nil:
		return "an index object"
	}
	return "an SSTable"
}

func newTables(r *reporter) *tables {
	return &tables{reporter: r, names: map[uint64]string{}, schemas: map[uint64]*schema.Table{}, objects: map[string]*usedObject{}}
}

// readItems reads the tables and backups of the lock service.
func (t *tables) readItems(ctx context.Context, l lock.Service) error {
	t.names[metastore.Table] = "METADATA"
	known := func(id uint64, name string) {
		if other := t.names[id]; other != "" {
			t.damage(name, t.doRestore, "has the id of %s", other)
		}
		t.names[id] = name
	}
	err := catalog.Names(ctx, l, func(_ lock.Item, n catalog.Name) error {
		live := 0
		for _, s := range n {
			if s.Pending {
				continue // and its tablets are being made
			}
			if s.DeleteTime.IsZero() {
				live++
			}
			known(s.ID, "table "+s.Name)
			t.schemas[s.ID] = s.Table
			t.sum.Tables++
		}
		if live > 1 {
			t.damage("table "+n[0].Name, t.doRestore, "is the name of %d tables", live)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := catalog.CheckTransfer(ctx, l); fault.KindOf(err) == fault.FailedPrecondition {
		t.note("transfer", "what it says, before anything else here", "%v", err)
	} else if err != nil {
		return err
	}
	backups, err := catalog.Backups(ctx, l, "")
	for _, b := range backups {
		if b.Made {
			known(catalog.BackupTable(b.ID), "backup "+b.Name)
			t.sum.Backups++
		}
	}
	return err
}

// readIncarnation reads the last incarnation, after whatever has one in its id.
func (t *tables) readIncarnation(ctx context.Context, l lock.Service) error {
	i, err := l.Get(ctx, catalog.IncarnationKey)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(i.Value, &t.incarnation); err != nil {
		return fmt.Errorf("item %s: %w", i.Key, err)
	}
	return nil
}

// readRows takes METADATA rows from all, which calls each with them. If it cannot
// be read to its end that is a finding, and rows are nil.
func (t *tables) readRows(ctx context.Context, all func(context.Context, func(*metadata.Row) error) error) error {
	rows := map[uint64][]*metadata.Row{}
	there := map[metadata.TabletID]bool{}
	err := all(ctx, func(r *metadata.Row) error {
		if there[r.Tablet] && !catalog.IsBackupTable(r.Table) {
			t.damage(t.tabletName(r), t.doRestore, "has two METADATA rows")
		}
		there[r.Tablet] = there[r.Tablet] || !catalog.IsBackupTable(r.Table)
		rows[r.Table] = append(rows[r.Table], r)
		for i := range r.Files {
			f := &r.Files[i]
			t.noteUse(tabletsDir, f, r)
			if sch := t.schemas[r.Table]; sch != nil {
				if family, ok := locality.Misplaced(sch, f.Group, f.Layout, &f.Info); ok {
					t.damage(t.tabletName(r), t.doRestore, "SSTable %s holds cells of the family %s, which is in another locality group", f.Object, family)
				}
			}
		}
		if r.Stream != nil {
			for i := range r.Stream.Files {
				t.noteChanges(tabletsDir, &r.Stream.Files[i], r, "")
			}
			for i := range r.Stream.Indexes {
				t.noteIndex(tabletsDir, &r.Stream.Indexes[i], r)
			}
		}
		return nil
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, fault.Unavailable) {
		return fmt.Errorf("read METADATA: %w", err) // not now
	}
	if err != nil {
		t.damage("METADATA", t.doRestore, "cannot be read to its end: %v", err)
		return nil
	}
	t.rows = rows
	return nil
}

// checkRows compares the rows of each table and backup with its item.
func (t *tables) checkRows() {
	for id, s := range t.schemas {
		t.checkID(t.names[id], "its id", s.ID)
	}
	for _, id := range slices.Sorted(maps.Keys(t.rows)) {
		for _, r := range t.rows[id] {
			t.checkID(t.tabletName(r), "its id", uint64(r.Tablet))
			t.checkID(t.tabletName(r), "SSTable", maxOf(r.Files, func(f metadata.FileRef) uint64 { return f.ID }))
		}
		t.checkTable(id, t.rows[id])
	}
	for _, id := range slices.Sorted(maps.Keys(t.names)) {
		if t.rows != nil && t.rows[id] == nil && id != metastore.Table {
			t.damage(t.names[id], t.doRestore, "has no tablets")
		}
	}
}

func maxOf[T any](list []T, id func(T) uint64) uint64 {
	var most uint64
	for _, x := range list {
		most = max(most, id(x))
	}
	return most
}

// checkID reports an id that no server so far can have given out.
func (t *tables) checkID(where, what string, id uint64) {
	if t.incarnation != 0 && id>>32 > t.incarnation {
		t.damage(where, t.doRestore, "%s %x is of start %d, and the lock service knows of %d: it is older than the rest", what, id, id>>32, t.incarnation)
	}
}

// noteUse notes that row r names an SSTable.
func (t *tables) noteUse(dir string, f *metadata.FileRef, r *metadata.Row) {
	where, path := t.tabletName(r), dir+"/"+f.Object
	u := t.objects[path]
	if u == nil {
		u = &usedObject{ref: *f}
		t.objects[path] = u
	} else if slices.Contains(u.by, r) {
		t.damage(where, t.doRestore, "names SSTable %s twice", f.Object)
		return
	} else if !u.ref.Info.Equal(&f.Info) || u.ref.ID != f.ID {
		t.damage(where, t.doRestore, "says other things of SSTable %s than %s does", f.Object, t.tabletName(u.by[0]))
	}
	u.by = append(u.by, r)
	if want := metadata.ObjectName(f.ID); f.Object != want {
		t.damage(where, t.doRestore, "calls SSTable %x %s instead of %s", f.ID, f.Object, want)
	}
}

// noteChanges notes that row r names a change file, through an index object if that is
// not empty.
func (t *tables) noteChanges(dir string, f *changes.Ref, r *metadata.Row, through string) {
	where, path := t.tabletName(r), dir+"/"+f.Object
	u := t.objects[path]
	if u == nil {
		u = &usedObject{changes: f, through: through, ref: metadata.FileRef{Object: f.Object, ID: f.ID}}
		u.ref.Size = f.Bytes
		t.objects[path] = u
	} else if slices.Contains(u.by, r) {
		// Index objects of two tablets that were merged may have the same.
		if through == "" {
			t.damage(where, t.doRestore, "names change file %s twice", f.Object)
		}
		return
	} else if u.changes == nil || !u.changes.Equal(f) {
		t.damage(where, t.doRestore, "says other things of change file %s than %s does", f.Object, t.tabletName(u.by[0]))
	}
	u.by = append(u.by, r)
	if want := changes.FileName(f.ID); f.Object != want {
		t.damage(where, t.doRestore, "calls change file %x %s instead of %s", f.ID, f.Object, want)
	}
	t.checkID(where, "change file", f.ID)
}

// noteIndex notes that row r names an index object.
func (t *tables) noteIndex(dir string, x *changes.IndexRef, r *metadata.Row) {
	where, path := t.tabletName(r), dir+"/"+x.Object
	u := t.objects[path]
	if u == nil {
		u = &usedObject{index: x, ref: metadata.FileRef{Object: x.Object, ID: x.ID}}
		u.ref.Size = x.Size
		t.objects[path] = u
	} else if slices.Contains(u.by, r) {
		t.damage(where, t.doRestore, "names index object %s twice", x.Object)
		return
	}
	u.by = append(u.by, r)
	if want := changes.IndexName(x.ID); x.Object != want {
		t.damage(where, t.doRestore, "calls index object %x %s instead of %s", x.ID, x.Object, want)
	}
	t.checkID(where, "index object", x.ID)
}

// readIndexes notes the change files of the index objects that rows name, in a store whose
// objects are those of a path. Each is read whole, and must be what its rows say. That one is
// missing is not its to report.
func (t *tables) readIndexes(ctx context.Context, dir string, s objectstore.Store) error {
	for _, path := range slices.Sorted(maps.Keys(t.objects)) {
		u := t.objects[path]
		if u.index == nil || !strings.HasPrefix(path, dir+"/") {
			continue
		}
		f, err := objectstore.OpenStored(ctx, s, u.ref.Object)
		var files []changes.Ref
		if err == nil {
			files, err = changes.ReadIndex(ctx, f, u.ref.Object)
		}
		for _, r := range u.by {
			for i := range r.Stream.Indexes {
				if x := &r.Stream.Indexes[i]; err == nil && x.Object == u.ref.Object {
					err = x.Verify(files)
				}
			}
		}
		switch fault.KindOf(err) {
		case fault.Corruption:
			t.damage(path, t.doRestore+"; until then "+readersMiss(u.index.Lo, u.index.Hi), "%v; it is %s of %s", err, u.kind(), t.users(u))
			fallthrough
		case fault.NotFound:
			t.unread = true
			continue
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}
		for _, r := range u.by {
			for i := range files {
				if f := &files[i]; f.Hi > r.Stream.Since {
					t.noteChanges(dir, f, r, u.ref.Object)
				}
			}
		}
	}
	return nil
}

// readersMiss says what it means to readers of changes that something is damaged.
func readersMiss(lo, hi cell.Seq) string {
	return "readers of changes between " + stamp.Time(lo).Format(time.RFC3339) + " and " + stamp.Time(hi).Format(time.RFC3339) + " answer DATA_LOSS, and all rows are served"
}

func (t *tables) tabletName(r *metadata.Row) string {
	if r == t.items {
		return "the lock service"
	}
	name := t.names[r.Table]
	if name == "" {
		name = fmt.Sprintf("table %x", r.Table)
	}
	return fmt.Sprintf("tablet %v of %s", r.Tablet, name)
}

// checkTable checks the rows of a table or backup.
func (t *tables) checkTable(id uint64, rows []*metadata.Row) {
	if t.names[id] == "" {
		for _, r := range rows {
			t.note(t.tabletName(r), doDeleteOld, "neither table nor backup has it: it was being made or deleted")
		}
		return
	}
	if id != metastore.Table && !catalog.IsBackupTable(id) {
		t.sum.Tablets += len(rows)
	}
	for _, r := range rows {
		if r.Op != nil {
			what := map[metadata.OpKind]string{metadata.Split: "split", metadata.Merge: "merge", metadata.Leave: "merge"}[r.Op.Kind]
			if what == "" {
				t.damage(t.tabletName(r), t.doRestore, "an operation of unknown kind %d is under way", r.Op.Kind)
				return
			}
			t.note(t.tabletName(r), "nothing: whoever serves it next finishes or forgets it", "a %s was under way", what)
		}
	}
	if !Tiled(rows) {
		t.damage(t.names[id], t.doRestore, "its %d tablets do not tile the key space", len(rows))
	}
}

// Tiled tells whether rows, ascending, will be those of all tablets of a table. Every
// split and merge that has happened counts as finished, and every other one as forgotten.
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
