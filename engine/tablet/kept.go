package tablet

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/stamp"
)

// Kept is what is kept of the changes of a tablet, or of a table's tablets, in change files.
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
	k.Since, k.Files = stamp.Time(r.Stream.Since), len(r.Stream.Files)
	for i := range r.Stream.Files {
		f := &r.Stream.Files[i]
		k.Bytes += f.Bytes
		if at := stamp.Time(f.Hi); at.After(k.Newest) {
			k.Newest = at
		}
	}
	return k
}

// A TableKept is what the tablets of a server keep of the changes of a table.
type TableKept struct {
	Table string // full resource name
	Kept
}

// KeptBy adds up what tablets keep, by table, in the order of names. A file that two tablets
// share, after a split, counts once.
func KeptBy(tablets []*Tablet) (out []TableKept) {
	tables, seen := map[string]*Kept{}, map[uint64]bool{}
	for _, t := range tablets {
		r := t.Row()
		if r.Stream == nil {
			continue
		}
		name := t.schema().Name
		sum := tables[name]
		if sum == nil {
			sum = new(Kept)
			tables[name] = sum
		}
		k := KeptOf(r)
		if sum.Since.IsZero() || k.Since.Before(sum.Since) {
			sum.Since = k.Since
		}
		if k.Newest.After(sum.Newest) {
			sum.Newest = k.Newest
		}
		for i := range r.Stream.Files {
			if f := &r.Stream.Files[i]; !seen[f.ID] {
				seen[f.ID] = true
				sum.Files++
				sum.Bytes += f.Bytes
			}
		}
	}
	for name, k := range tables {
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

// DropOldChanges lets go of the oldest change files of tablets until they have no more than
// most bytes, whatever the retention. Readers that are behind get changes.Expired. It returns
// what it did for each tablet that has lost something, or was to.
func DropOldChanges(ctx context.Context, tablets []*Tablet, most int64) (out []Dropped) {
	type file struct {
		hi    cell.Seq
		bytes int64
	}
	var files []file
	var all int64
	seen := map[uint64]bool{}
	for _, t := range tablets {
		if s := t.Row().Stream; s != nil {
			for i := range s.Files {
				if f := &s.Files[i]; !seen[f.ID] {
					seen[f.ID] = true
					files = append(files, file{f.Hi, f.Bytes})
					all += f.Bytes
				}
			}
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
		if d := t.dropChanges(ctx, before); d.Files > 0 || d.Err != nil {
			out = append(out, d)
		}
	}
	return out
}

// dropChanges lets go of the change files with no stamp above before.
func (t *Tablet) dropChanges(ctx context.Context, before cell.Seq) Dropped {
	d := Dropped{Tablet: t}
	if s := t.Row().Stream; s == nil || !s.Clone().Forget(before) {
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
	for i := range next.Stream.Files {
		if f := &next.Stream.Files[i]; f.Hi <= before {
			d.Files++
			d.Bytes += f.Bytes
			if at := stamp.Time(f.Hi); at.After(d.Until) {
				d.Until = at
			}
		}
	}
	if d.Files == 0 {
		return d
	}
	events := next.Stream.Lineage // what readers are told of the tablets' past costs nothing
	next.Stream.Forget(before)
	next.Stream.Lineage = events
	d.Err = t.change1(ctx, next)
	return d
}
