package tablet

import (
	"sync/atomic"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/memtable"
	"github.com/trestledb/trestle/engine/merge"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/sstable"
)

// A mem is a memtable with its place in the commit log.
type mem struct {
	*memtable.Memtable
	first commitlog.Pos // of the oldest record in it; unset while empty
	last  commitlog.Pos // of the newest
}

// An object is an SSTable in the object store that some version refers to.
type object struct {
	name   string
	env    *Env
	reader *sstable.Reader
	refs   atomic.Int32
	// dead says that the METADATA row no longer names the object: whoever lets
	// go of it last removes it.
	dead atomic.Bool
}

func (o *object) release() {
	if o.refs.Add(-1) > 0 {
		return
	}
	if err := o.reader.Close(); err != nil {
		o.env.Log.Error("close SSTable", "object", o.name, "error", err)
	}
	if o.dead.Load() {
		o.env.Remove(o.name)
	}
}

// A file is an SSTable as one version places it.
type file struct {
	*object
	ref *metadata.FileRef
}

// A run is a sequence of files that do not overlap, in key order.
type run struct {
	id    uint64
	files []file
}

// A version is everything that a reader needs, at one instant. It does not
// change, except that entries beyond the visible sequence number appear in its
// first memtable.
type version struct {
	refs     atomic.Int32
	row      *metadata.Row
	mems     []*mem // newest first; the first takes the writes
	runs     []run  // newest first
	rangeDel []merge.RangeTombstone
}

// newVersion builds the version of a METADATA row, sharing with old (which may
// be nil) the objects that both name. Objects that only old names are dead.
func newVersion(env *Env, r *metadata.Row, mems []*mem, old *version) *version {
	have := map[string]*object{}
	if old != nil {
		for _, u := range old.runs {
			for _, f := range u.files {
				have[f.name] = f.object
			}
		}
	}
	v := &version{row: r, mems: mems}
	v.refs.Store(1)
	for i := range r.Files {
		ref := &r.Files[i]
		o := have[ref.Object]
		if o == nil {
			o = &object{name: ref.Object, env: env, reader: env.Cache.Acquire(ref.Object, env.open)}
		}
		delete(have, ref.Object)
		o.refs.Add(1)
		if n := len(v.runs); n == 0 || v.runs[n-1].id != ref.Run {
			v.runs = append(v.runs, run{id: ref.Run})
		}
		u := &v.runs[len(v.runs)-1]
		u.files = append(u.files, file{o, ref})
	}
	for _, o := range have {
		o.dead.Store(true)
	}
	for _, d := range r.RangeDel {
		v.rangeDel = append(v.rangeDel, merge.RangeTombstone{Rows: row.Range{Start: d.Start, End: d.End}, Seq: d.Seq})
	}
	return v
}

func (v *version) release() {
	if v.refs.Add(-1) > 0 {
		return
	}
	for _, u := range v.runs {
		for _, f := range u.files {
			f.release()
		}
	}
}

// bytes returns the size of the SSTables and memtables.
func (v *version) bytes() int64 {
	var n int64
	for _, f := range v.row.Files {
		n += f.Size
	}
	for _, m := range v.mems {
		n += m.Bytes()
	}
	return n
}

// minMemSeq returns the smallest sequence number of an entry that only memtables
// hold, or cell.MaxSeq.
func (v *version) minMemSeq() cell.Seq {
	least := cell.MaxSeq
	for _, m := range v.mems {
		if !m.Empty() {
			least = min(least, m.MinSeq())
		}
	}
	return least
}
