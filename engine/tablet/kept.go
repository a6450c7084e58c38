package tablet

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/stamp"
)

// Kept is what is kept of the changes of a tablet, or of a table's tablets, in change files.
// Of those that an index object names, while retention passes over them, it is an estimate:
// changes.IndexRef.Kept.
type Kept struct {
	Files int
	Bytes int64
	// Since is the commit time from which on all are kept, and Newest that of the last one in
	// a file. They are zero if there is no stream, or no file.
	Since, Newest time.Time
}

// KeptOf returns what a METADATA row says of change files.
func KeptOf(r *metadata.Row) (k Kept) {
	if r.Stream == nil {
		return k
	}
	k.Since = stamp.Time(r.Stream.Since)
	k.add(r.Stream)
	return k
}

// add adds what a stream has.
func (k *Kept) add(s *metadata.StreamState) {
	for i := range s.Files {
		k.addFile(&s.Files[i])
	}
	for i := range s.Indexes {
		k.addIndex(&s.Indexes[i], s.Since)
	}
}

func (k *Kept) addFile(f *changes.Ref) { k.count(1, f.Bytes, f.Hi) }

func (k *Kept) addIndex(x *changes.IndexRef, since cell.Seq) {
	files, size := x.Kept(since)
	k.count(files, size, x.Hi)
}

func (k *Kept) count(files int, size int64, hi cell.Seq) {
	k.Files, k.Bytes = k.Files+files, k.Bytes+size
	if at := stamp.Time(hi); at.After(k.Newest) {
		k.Newest = at
	}
}

// A keptChanges is what tablets keep of changes, each file and index object once: two tablets
// share those from before a split.
type keptChanges struct {
	files   map[uint64]*changes.Ref
	indexes map[uint64]keptIndex
}

// A keptIndex is an index object, of which a tablet keeps what is behind since, and no other
// more.
type keptIndex struct {
	*changes.IndexRef
	since cell.Seq
}

func (k *keptChanges) add(s *metadata.StreamState) {
	if k.files == nil {
		k.files, k.indexes = map[uint64]*changes.Ref{}, map[uint64]keptIndex{}
	}
	for i := range s.Files {
		k.files[s.Files[i].ID] = &s.Files[i]
	}
	for i := range s.Indexes {
		x := &s.Indexes[i]
		if other, ok := k.indexes[x.ID]; !ok || s.Since < other.since {
			k.indexes[x.ID] = keptIndex{x, s.Since}
		}
	}
}

// A TableKept is what the tablets of a server keep of the changes of a table.
type TableKept struct {
	Table string // full resource name
	Kept
}

// KeptBy adds up what tablets keep, by table, in the order of names. A file that two tablets
// share, after a split, counts once.
func KeptBy(tablets []*Tablet) (out []TableKept) {
	tables, all := map[string]*Kept{}, map[string]*keptChanges{}
	for _, t := range tablets {
		r := t.Row()
		if r.Stream == nil {
			continue
		}
		name := t.schema().Name
		sum := tables[name]
		if sum == nil {
			sum = new(Kept)
			tables[name], all[name] = sum, new(keptChanges)
		}
		if since := stamp.Time(r.Stream.Since); sum.Since.IsZero() || since.Before(sum.Since) {
			sum.Since = since
		}
		all[name].add(r.Stream)
	}
	for name, k := range tables {
		for _, f := range all[name].files {
			k.addFile(f)
		}
		for _, x := range all[name].indexes {
			k.addIndex(x.IndexRef, x.since)
		}
		out = append(out, TableKept{name, *k})
	}
	slices.SortFunc(out, func(a, b TableKept) int { return cmp.Compare(a.Table, b.Table) })
	return out
}

// StreamsToClients tells whether the tablet keeps changes that clients read.
func (t *Tablet) StreamsToClients() bool {
	s := t.schema().Stream
	return s != nil && !s.Hidden
}

// A Dropped is what DropOldChanges has let go of in a tablet.
type Dropped struct {
	Tablet *Tablet
	Files  int
	Bytes  int64
	// Until is the commit time of the last change that is gone.
	Until time.Time
	Err   error
}

// dropSteps is in how many steps DropOldChanges lets go of the files of an index object.
const dropSteps = 16

// DropOldChanges lets go of the oldest change files of tablets until they have no more than
// most bytes, whatever the retention. Of files that an index object names, it goes by the
// estimates of Kept. Readers that are behind get changes.Expired. It returns
// what it did for each tablet that has lost something, or was to.
func DropOldChanges(ctx context.Context, tablets []*Tablet, most int64) (out []Dropped) {
	type file struct {
		hi    cell.Seq
		bytes int64
	}
	var files []file
	var all int64
	var kept keptChanges
	for _, t := range tablets {
		if s := t.Row().Stream; s != nil {
			kept.add(s)
		}
	}
	for _, f := range kept.files {
		files = append(files, file{f.Hi, f.Bytes})
		all += f.Bytes
	}
	for _, x := range kept.indexes {
		_, size := x.Kept(x.since)
		all += size
		from := max(x.Lo, x.since)
		for n := range cell.Seq(dropSteps) {
			step := size / (dropSteps - int64(n))
			size -= step
			files = append(files, file{from + (x.Hi-from)*(n+1)/dropSteps, step})
		}
	}
	if all <= most {
		return nil
	}
	slices.SortFunc(files, func(a, b file) int { return cmp.Compare(a.hi, b.hi) })
	var before cell.Seq
	for _, f := range files {
		if all <= most && f.hi > before {
			break
		}
		before = f.hi
		all -= f.bytes
	}
	for _, t := range tablets {
		if d := t.dropChanges(ctx, before); d.Bytes > 0 || d.Err != nil {
			out = append(out, d)
		}
	}
	return out
}

// dropChanges lets go of the change files with no stamp above before.
func (t *Tablet) dropChanges(ctx context.Context, before cell.Seq) Dropped {
	d := Dropped{Tablet: t}
	if s := t.Row().Stream; s == nil || !s.Clone().ForgetFiles(before) {
		return d
	}
	t.change.Lock()
	defer t.change.Unlock()
	v := t.pin()
	if v == nil {
		return d // its new owner does it
	}
	defer v.release()
	next := v.row.Clone()
	if next.Stream == nil {
		return d
	}
	was := KeptOf(next)
	next.Stream.ForgetFiles(before) // what readers are told of the tablets' past costs nothing
	is := KeptOf(next)
	if is == was {
		return d
	}
	d.Files, d.Bytes, d.Until = was.Files-is.Files, was.Bytes-is.Bytes, is.Since
	d.Err = t.change1(ctx, next)
	return d
}
