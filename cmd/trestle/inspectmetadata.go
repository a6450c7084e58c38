package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/cluster/standalone"
	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/stamp"
)

// storedMetadata is what inspect metadata prints. Ids are hexadecimal, keys as
// ops.EscapeKey writes them.
type storedMetadata struct {
	Items  []storedItem   `json:"items"`
	Tables []*storedTable `json:"tables"`
}

type storedItem struct {
	Item    string `json:"item"`
	Version int64  `json:"version"`
	Value   any    `json:"value"` // JSON as it is, all else escaped as a key is
}

// A storedTable is a table, a backup, or METADATA.
type storedTable struct {
	Table    string         `json:"table"`
	ID       string         `json:"id"`
	Created  *time.Time     `json:"created,omitempty"`
	Deleted  *time.Time     `json:"deleted,omitempty"`
	Families []storedFamily `json:"families,omitempty"`
	Tablets  []storedTablet `json:"tablets"`

	groups map[uint16]string
}

type storedFamily struct {
	Name  string        `json:"name"`
	ID    cell.FamilyID `json:"id"`
	Group string        `json:"group"`
}

type storedTablet struct {
	Tablet      string     `json:"tablet"`
	Start       string     `json:"start"`
	End         string     `json:"end"`
	Version     uint64     `json:"version"`
	State       string     `json:"state,omitempty"`
	Server      string     `json:"server,omitempty"`
	Epoch       uint64     `json:"epoch,omitempty"`
	Incarnation uint64     `json:"incarnation,omitempty"`
	Log         string     `json:"log,omitempty"`
	Redo        string     `json:"redo"`
	FlushedSeq  cell.Seq   `json:"flushed_seq"`
	MaxSeq      cell.Seq   `json:"max_seq"`
	LastMajor   *time.Time `json:"last_major,omitempty"`
	// Operation is a split or a merge that is under way.
	Operation string          `json:"operation,omitempty"`
	Deleted   []storedDeleted `json:"deleted_ranges,omitempty"`
	SSTables  []storedSSTable `json:"sstables,omitempty"`
	Changes   *storedChanges  `json:"changes,omitempty"`
	Followed  *storedFollowed `json:"followed,omitempty"`
}

// storedDeleted are rows of which all that is older than Seq is deleted.
type storedDeleted struct {
	Start string   `json:"start"`
	End   string   `json:"end"`
	Seq   cell.Seq `json:"seq"`
}

type storedSSTable struct {
	Object     string   `json:"object"`
	First      string   `json:"first"`
	Last       string   `json:"last"`
	Bytes      int64    `json:"bytes"`
	Entries    uint64   `json:"entries"`
	Tombstones uint64   `json:"tombstones"`
	Run        uint64   `json:"run"`
	Group      string   `json:"group"`
	MinSeq     cell.Seq `json:"min_seq"`
	MaxSeq     cell.Seq `json:"max_seq"`
}

// storedChanges is what is kept of changes: all with stamps above Since.
type storedChanges struct {
	Since cell.Seq           `json:"since"`
	Files []storedChangeFile `json:"files,omitempty"`
}

// A storedChangeFile is a change file, or an index object of Files.
type storedChangeFile struct {
	Object string   `json:"object"`
	Start  string   `json:"start"`
	End    string   `json:"end"`
	Bytes  int64    `json:"bytes"`
	Files  int      `json:"files,omitempty"`
	MinSeq cell.Seq `json:"min_seq"`
	MaxSeq cell.Seq `json:"max_seq"`
}

// storedFollowed says up to which stamp a tablet of a materialized view knows the changes of
// the view's source; of rows before Before only, if that is not empty.
type storedFollowed struct {
	Through cell.Seq `json:"through"`
	Before  string   `json:"before,omitempty"`
}

// inspectMetadata prints the METADATA of the data directory dir.
func (p *process) inspectMetadata(dir string, wide, asJSON bool) error {
	var stored *standalone.Stored
	failed := p.telling("inspect metadata", func(*progress) (err error) {
		stored, err = standalone.ReadMetadata(context.Background(), vfs.Default, dir)
		return err
	})
	out, err := describeStored(stored)
	// What could be read is shown also when the rest could not.
	if failed = errors.Join(failed, err); len(out.Items) == 0 {
		return failed
	}
	if asJSON {
		return errors.Join(printJSON(p.stdout, out), failed)
	}
	return errors.Join(out.print(p.stdout, wide), failed)
}

// describeStored returns what is printed of a directory. Of an item that cannot be decoded
// it returns an error, and describes the rest.
func describeStored(s *standalone.Stored) (*storedMetadata, error) {
	out := &storedMetadata{Items: []storedItem{}, Tables: []*storedTable{}}
	byID := map[uint64]*storedTable{}
	add := func(id uint64, t *storedTable) *storedTable {
		t.ID, t.Tablets = fmt.Sprintf("%x", id), []storedTablet{}
		out.Tables, byID[id] = append(out.Tables, t), t
		return t
	}
	add(metastore.Table, &storedTable{Table: metastore.Schema.Name})
	var errs []error
	for _, i := range s.Items {
		item := storedItem{i.Key, i.Version, ops.EscapeKey(i.Value)}
		if json.Valid(i.Value) {
			item.Value = json.RawMessage(i.Value)
		}
		out.Items = append(out.Items, item)
		errs = append(errs, describeTables(i, add))
	}
	for _, r := range s.Rows {
		t := byID[r.Table]
		if t == nil {
			t = add(r.Table, &storedTable{Table: fmt.Sprintf("table %x, which does not exist", r.Table)})
		}
		t.Tablets = append(t.Tablets, t.tablet(r))
	}
	return out, errors.Join(errs...)
}

// describeTables calls add with the tables, or the backup, of an item.
func describeTables(i lock.Item, add func(uint64, *storedTable) *storedTable) error {
	switch {
	case strings.HasPrefix(i.Key, catalog.TablesPrefix):
		tables, err := catalog.ParseName(i)
		for _, t := range tables {
			add(t.ID, describeSchema(t.Name, t.Table))
		}
		return err
	case strings.HasPrefix(i.Key, catalog.BackupsPrefix):
		b, err := catalog.ParseBackup(i)
		if err == nil {
			add(catalog.BackupTable(b.ID), describeSchema("backup "+b.Name, b.Table))
		}
		return err
	}
	return nil
}

func describeSchema(name string, s *schema.Table) *storedTable {
	t := &storedTable{Table: name, Created: timeOr(s.CreateTime), Deleted: timeOr(s.DeleteTime), groups: map[uint16]string{}}
	for _, g := range s.AllGroups() {
		t.groups[g.ID] = g.Name
	}
	for _, f := range s.Families {
		t.Families = append(t.Families, storedFamily{f.Name, f.ID, t.groups[f.Group]})
	}
	slices.SortFunc(t.Families, func(a, b storedFamily) int { return int(a.ID) - int(b.ID) })
	return t
}

// timeOr returns a time, nil if it is not known.
func timeOr(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func (t *storedTable) tablet(r *metadata.Row) storedTablet {
	key := ops.EscapeKey
	out := storedTablet{Tablet: r.Tablet.String(), Start: key(r.Start), End: key(r.End), Version: r.Version,
		Redo: r.Redo.String(), FlushedSeq: r.FlushedSeq, MaxSeq: r.MaxSeq}
	if a := r.Assignment; a != nil {
		out.State, out.Server, out.Epoch, out.Incarnation = a.State.String(), a.Server, a.Epoch, a.Incarnation
		if a.Log != 0 {
			out.Log = fmt.Sprintf("%016x", a.Log)
		}
	}
	if r.MajorTime != 0 {
		out.LastMajor = timeOr(time.Unix(r.MajorTime, 0).UTC())
	}
	if o := r.Op; o != nil {
		switch o.Kind {
		case metadata.Split:
			out.Operation = fmt.Sprintf("is being split at %s into %v and %v", key(o.At), o.Left, o.Right)
		case metadata.Merge:
			out.Operation = fmt.Sprintf("was merged with %v, which had the rows [%s, %s)", o.Left, key(o.Start), key(o.At))
		case metadata.Leave:
			out.Operation = fmt.Sprintf("is about to be merged into %v", o.Right)
		}
	}
	for _, d := range r.RangeDel {
		out.Deleted = append(out.Deleted, storedDeleted{key(d.Start), key(d.End), d.Seq})
	}
	for i := range r.Files {
		f := &r.Files[i]
		group := t.groups[f.Group]
		if group == "" {
			group = fmt.Sprint(f.Group)
		}
		out.SSTables = append(out.SSTables, storedSSTable{f.Object, rowOfPrefix(f.Lo), rowOfPrefix(f.Hi), f.Size, f.Entries, f.Tombstones, f.Run, group, f.MinSeq, f.MaxSeq})
	}
	if s := r.Stream; s != nil {
		out.Changes = &storedChanges{Since: s.Since}
		add := func(object string, rows row.Range, bytes int64, files int, lo, hi cell.Seq) {
			out.Changes.Files = append(out.Changes.Files, storedChangeFile{object, key(rows.Start), key(rows.End), bytes, files, lo, hi})
		}
		for i := range s.Indexes {
			x := &s.Indexes[i]
			add(x.Object, x.Rows, x.Size, x.Files, x.Lo, x.Hi)
		}
		for i := range s.Files {
			f := &s.Files[i]
			add(f.Object, f.Rows, f.Bytes, 0, f.Lo, f.Hi)
		}
	}
	if f := r.Follows(); f != nil {
		out.Followed = &storedFollowed{f.Through, key(f.Before)}
	}
	return out
}

// rowOfPrefix returns the key of a row prefix; of what is none, its bytes.
func rowOfPrefix(prefix []byte) string {
	if key, err := cell.RowOf(nil, prefix); err == nil {
		return ops.EscapeKey(key)
	}
	return fmt.Sprintf("%x", prefix)
}

// print prints what fits a terminal of 80 columns, unless it is to be wide.
func (s *storedMetadata) print(out io.Writer, wide bool) error {
	most := 0
	if !wide {
		most = widthOf(out)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, i := range s.Items {
		if strings.HasPrefix(i.Item, catalog.TablesPrefix) && !wide {
			continue // shown as a table
		}
		line := fmt.Sprintf("%s: %s", i.Item, i.Value)
		if most > 0 {
			line = shortKey(line, most)
		}
		fmt.Fprintln(w, line)
	}
	key := keysFor(out, wide, 0)
	for _, t := range s.Tables {
		t.print(w, key, wide)
	}
	return w.Flush()
}

func (t *storedTable) print(w io.Writer, key func(string) string, wide bool) {
	size := int64(0)
	for i := range t.Tablets {
		for _, f := range t.Tablets[i].SSTables {
			size += f.Bytes
		}
	}
	fmt.Fprintf(w, "\n%s: %s, %s in SSTables\n", t.Table, several(len(t.Tablets), "tablet", "s"), byteSize(size))
	fmt.Fprintf(w, "  id %s", t.ID)
	if t.Created != nil {
		fmt.Fprintf(w, ", created %s", t.Created.UTC().Format(clockTime))
	}
	if t.Deleted != nil {
		fmt.Fprintf(w, ", deleted %s", t.Deleted.UTC().Format(clockTime))
	}
	fmt.Fprintln(w)
	for _, f := range t.Families {
		fmt.Fprintf(w, "  family %s: f%d, locality group %s\n", f.Name, f.ID, f.Group)
	}
	for i := range t.Tablets {
		t.Tablets[i].print(w, key, wide)
	}
}

func (t *storedTablet) print(w io.Writer, key func(string) string, wide bool) {
	fmt.Fprintf(w, "  tablet %s [%s, %s)", t.Tablet, key(t.Start), key(t.End))
	if t.State != "" {
		fmt.Fprintf(w, ": %s", t.State)
	}
	if t.Server != "" {
		fmt.Fprintf(w, " on %s", t.Server)
	}
	fmt.Fprintln(w)
	if wide {
		fmt.Fprintf(w, "    version %d, epoch %d, incarnation %d\n", t.Version, t.Epoch, t.Incarnation)
		fmt.Fprintf(w, "    log %s, redo from %s, in SSTables up to %s\n", cmp.Or(t.Log, "-"), t.Redo, commitTime(t.FlushedSeq))
		if t.LastMajor != nil {
			fmt.Fprintf(w, "    last major compaction %s\n", t.LastMajor.Format(clockTime))
		}
	}
	if t.Operation != "" {
		fmt.Fprintf(w, "    %s\n", t.Operation)
	}
	for _, d := range t.Deleted {
		fmt.Fprintf(w, "    rows [%s, %s) deleted up to %s\n", key(d.Start), key(d.End), commitTime(d.Seq))
	}
	if f := t.Followed; f != nil {
		fmt.Fprintf(w, "    knows the changes of its view's source up to %s", commitTime(f.Through))
		if f.Before != "" {
			fmt.Fprintf(w, ", of rows before %s", key(f.Before))
		}
		fmt.Fprintln(w)
	}
	if len(t.SSTables) > 0 {
		head := "    SSTABLE\tFIRST\tLAST\tSIZE\tENTRIES\tRUN"
		if wide {
			head += "\tTOMBSTONES\tGROUP\tOLDEST\tNEWEST"
		}
		fmt.Fprintln(w, head)
	}
	for _, f := range t.SSTables {
		fmt.Fprintf(w, "    %s\t%s\t%s\t%s\t%d\t%d", f.Object, key(f.First), key(f.Last), byteSize(f.Bytes), f.Entries, f.Run)
		if wide {
			fmt.Fprintf(w, "\t%d\t%s\t%s\t%s", f.Tombstones, f.Group, commitTime(f.MinSeq), commitTime(f.MaxSeq))
		}
		fmt.Fprintln(w)
	}
	t.printChanges(w, key, wide)
}

func (t *storedTablet) printChanges(w io.Writer, key func(string) string, wide bool) {
	if t.Changes == nil {
		return
	}
	fmt.Fprintf(w, "    changes kept since %s\n", commitTime(t.Changes.Since))
	if len(t.Changes.Files) > 0 {
		head := "    CHANGE FILE\tFROM\tTO\tSIZE\tFILES"
		if wide {
			head += "\tOLDEST\tNEWEST"
		}
		fmt.Fprintln(w, head)
	}
	for _, f := range t.Changes.Files {
		files := "-"
		if f.Files > 0 {
			files = fmt.Sprint(f.Files)
		}
		fmt.Fprintf(w, "    %s\t[%s\t%s)\t%s\t%s", f.Object, key(f.Start), key(f.End), byteSize(f.Bytes), files)
		if wide {
			fmt.Fprintf(w, "\t%s\t%s", commitTime(f.MinSeq), commitTime(f.MaxSeq))
		}
		fmt.Fprintln(w)
	}
}

// commitTime shows a sequence number: as the commit time that it is, as the counter that a
// format before 3 had, or as "-" if there is none.
func commitTime(s cell.Seq) string {
	switch {
	case s == 0:
		return "-"
	case s < stamp.Least:
		return fmt.Sprint(s)
	}
	return stamp.Time(s).Format(clockTime)
}
