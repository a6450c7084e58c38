package tablet

import (
	"slices"
	"sync"
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
	first atomic.Pointer[commitlog.Pos] // of the oldest record in it
	last  commitlog.Pos                 // of the newest; the write lock guards it until the memtable is immutable
	// life is that of the stream whose changes it records, 0 if it records none. All
	// that come behind since are in it, or in older ones of that life.
	life  uint64
	since cell.Seq
	// enabled is the schema.Stream's whose beginning later changes are behind.
	enabled uint64
	// instant is when it became immutable, its entries and older ones being all
	// there were. Not known of one that was filled by replay.
	instant metadata.Instant
}

// An object is an SSTable, a change file or an index object, in the object store that
// versions refer to, of one tablet or, after a split, of several.
type object struct {
	name   string
	reader *sstable.Reader // nil of all but an SSTable
	refs   int             // guarded by objects.mu, as what follows
	// indexed says, of a change file, that an index object names it too.
	indexed bool

	// resident is the whole file, nil if it is not in memory; the owner that replaces it
	// holds objects.mu. It was loaded for table.
	resident atomic.Pointer[[]byte]
	loading  bool
	table    uint64

	// largest is the file's largest row, once somebody has looked for it.
	largest atomic.Pointer[LargeRow]
}

// objects are those that the versions of a server's tablets refer to. The
// current version of every tablet refers to all that its METADATA row names. So
// what no version refers to is not named any more, unless tablets are being
// closed with their rows left as they are.
type objects struct {
	mu   sync.Mutex
	m    map[string]*object
	keep bool // nothing is to be removed any more
	// unnamed are those that flushes and compactions have begun to write, and whose
	// names are not known to be in a METADATA row, or never to be.
	unnamed map[string]bool
	// resident is the length of those in memory, or on their way there.
	resident int64
}

// acquire returns the object of an SSTable, with one reference more.
func (e *Env) acquire(name string) *object { return e.refer(name, true) }

// refer is acquire of an SSTable, or of a change file or index object.
func (e *Env) refer(name string, table bool) *object {
	e.objects.mu.Lock()
	defer e.objects.mu.Unlock()
	o := e.objects.m[name]
	if o == nil {
		if e.objects.m == nil {
			e.objects.m = map[string]*object{}
		}
		if o = (&object{name: name}); table {
			o.reader = e.Cache.Acquire(name, e.open)
		}
		e.objects.m[name] = o
	}
	o.refs++
	return o
}

// release gives a reference back. The last one removes the object.
func (e *Env) release(o *object) {
	e.objects.mu.Lock()
	o.refs--
	gone, keep := o.refs == 0, e.objects.keep || o.indexed
	if gone {
		delete(e.objects.m, o.name)
		e.dropResidentLocked(o)
	}
	e.objects.mu.Unlock()
	if !gone {
		return
	}
	if o.reader != nil {
		if err := o.reader.Close(); err != nil {
			e.Log.Error("close SSTable", "object", o.name, "error", err)
		}
	}
	if !keep {
		e.Remove(o.name)
	}
}

// begin notes that an object is about to be written.
func (e *Env) begin(object string) {
	e.objects.mu.Lock()
	defer e.objects.mu.Unlock()
	if e.objects.unnamed == nil {
		e.objects.unnamed = map[string]bool{}
	}
	e.objects.unnamed[object] = true
}

// decided notes that versions refer to those of objects that METADATA names, and
// that the others will never be named.
func (e *Env) decided(objects []string) {
	e.objects.mu.Lock()
	defer e.objects.mu.Unlock()
	for _, o := range objects {
		delete(e.objects.unnamed, o)
	}
}

// Refers tells whether a version, a reader or a Frozen refers to an object, or one
// may: it is being written, or was, and is to be named. After false, METADATA
// names the object only if it does so already.
func (e *Env) Refers(object string) bool {
	e.objects.mu.Lock()
	defer e.objects.mu.Unlock()
	return e.objects.m[object] != nil || e.objects.unnamed[object]
}

// KeepObjects ends the removal of objects: tablets that are closed from now on
// leave them behind for the next start.
func (e *Env) KeepObjects() {
	e.objects.mu.Lock()
	defer e.objects.mu.Unlock()
	e.objects.keep = true
}

// Drain waits until no reader uses tablets any more. They are closed, all of them,
// and none is opened.
func (e *Env) Drain() { e.readable.Wait() }

// A file is an SSTable as one version places it.
type file struct {
	*object
	ref *metadata.FileRef
}

// A run is a sequence of files of one locality group that do not overlap, in
// key order.
type run struct {
	id     uint64
	group  uint16
	layout uint64
	files  []file
	bytes  int64 // of files
}

// A version is everything that a reader needs, at one instant. It does not
// change, except that entries beyond the visible sequence number appear in its
// first memtable.
type version struct {
	env      *Env
	refs     atomic.Int32
	row      *metadata.Row
	state    uint64 // what the runs and rangeDel are; see rowcache.Key
	reads    *reads
	mems     []*mem // newest first; the first takes the writes
	runs     []run  // newest first
	depth    int    // how many runs a read of one group looks into at most
	rangeDel merge.Ranges
	changes  []*object // the change files and index objects of the row
}

// ends tells whether a cell may come to an end of its own.
func (v *version) ends() bool {
	for _, m := range v.mems {
		if m.Ends() {
			return true
		}
	}
	for i := range v.runs {
		for k := range v.runs[i].files {
			if v.runs[i].files[k].ref.Ends > 0 {
				return true
			}
		}
	}
	return false
}

// newVersion builds the version of a METADATA row.
func newVersion(env *Env, r *metadata.Row, mems []*mem) *version {
	v := &version{env: env, row: r, mems: mems, state: env.states.Add(1), reads: env.reads.of(r.Table)}
	v.refs.Store(1)
	env.readable.Add(1)
	for i := range r.Files {
		ref := &r.Files[i]
		if n := len(v.runs); n == 0 || v.runs[n-1].id != ref.Run || v.runs[n-1].group != ref.Group {
			v.runs = append(v.runs, run{id: ref.Run, group: ref.Group, layout: ref.Layout})
		}
		u := &v.runs[len(v.runs)-1]
		u.files = append(u.files, file{env.acquire(ref.Object), ref})
		u.bytes += ref.Size
	}
	if r.Stream != nil {
		for i := range r.Stream.Files {
			v.changes = append(v.changes, env.refer(r.Stream.Files[i].Object, false))
		}
		for i := range r.Stream.Indexes {
			v.changes = append(v.changes, env.refer(r.Stream.Indexes[i].Object, false))
		}
	}
	v.depth = depth(v.runs)
	dels := make([]merge.RangeTombstone, len(r.RangeDel))
	for i, d := range r.RangeDel {
		dels[i] = merge.RangeTombstone{Rows: row.Range{Start: d.Start, End: d.End}, Seq: d.Seq}
	}
	v.rangeDel = merge.NewRanges(dels)
	return v
}

// onFiles returns v without its memtables, for work of minutes on the SSTables. These
// are flushed meanwhile, and their memory is given to other writers. The caller releases both.
func (v *version) onFiles() *version {
	f := newVersion(v.env, v.row, nil)
	f.state = v.state
	return f
}

// depth returns how many of runs a read of one group looks into at most. Runs of
// an earlier layout are of all groups.
func depth(runs []run) int {
	if len(runs) == 0 {
		return 0
	}
	n := map[uint16]int{}
	earlier, most := 0, 0
	for _, u := range runs {
		if u.layout != runs[0].layout {
			earlier++
			continue
		}
		n[u.group]++
		most = max(most, n[u.group])
	}
	return earlier + most
}

func (v *version) release() {
	if v.refs.Add(-1) > 0 {
		return
	}
	for _, u := range v.runs {
		for _, f := range u.files {
			v.env.release(f.object)
		}
	}
	for _, o := range v.changes {
		v.env.release(o)
	}
	v.env.readable.Done()
}

// redo returns the position of the oldest log record that is in a memtable and in
// no SSTable; nil if there is none.
func (v *version) redo() *commitlog.Pos {
	for _, m := range slices.Backward(v.mems) {
		if first := m.first.Load(); first != nil {
			return first
		}
	}
	return nil
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
