package tablet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/objectstore"
)

// A changeIndex is an index object that has been written, and that a row is to name.
type changeIndex struct {
	env    *Env
	object string
	files  []changes.Ref
}

// indexChanges puts change files of next, if it has more than most, into an index object.
// It is written here, and next changed to name it, unless there is an error. The caller
// holds the change lock, and calls ended.
func (t *Tablet) indexChanges(ctx context.Context, next *metadata.Row, most int) (_ *changeIndex, err error) {
	s := next.Stream
	if s == nil || len(s.Files) <= most {
		return nil, nil
	}
	full := min(16*t.env.Options.ChangeFiles, changes.MaxIndexFiles)
	n := min(len(s.Files)-most/4, full)
	files := slices.Clone(s.Files[:n])
	var replaced []string
	// One that another tablet may name stays as it is: a file in two would count twice.
	if i := lastOf(s.Indexes, t.id); i >= 0 && s.Indexes[i].Files+n <= full {
		x := &s.Indexes[i]
		old, err := t.env.changeFiles(ctx, x)
		if fault.KindOf(err) != fault.Corruption {
			if err != nil {
				return nil, err
			}
			for _, f := range old {
				if f.Hi > s.Since {
					files = append(files, f)
				}
			}
			replaced = append(replaced, x.Object)
		}
	}
	files = inOrder(files)
	id := t.env.NewID()
	x := &changeIndex{env: t.env, object: changes.IndexName(id), files: files}
	t.env.begin(x.object)
	defer func() {
		if err != nil {
			t.env.decided([]string{x.object})
		}
	}()
	object, err := t.env.Objects.Create(ctx, x.object)
	if err != nil {
		return nil, fmt.Errorf("create index object %s: %w", x.object, err)
	}
	ref, err := changes.WriteIndex(object, files)
	if err != nil {
		return nil, fmt.Errorf("index object %s: %w", x.object, err)
	}
	ref.Object, ref.ID, ref.Tablet = x.object, id, uint64(t.id)
	t.env.indexed(s.Files[:n])
	s.Index(ref, n, replaced...)
	return x, nil
}

// inOrder sorts files, and leaves each once.
func inOrder(files []changes.Ref) []changes.Ref {
	slices.SortFunc(files, changes.CompareRefs)
	return slices.CompactFunc(files, func(a, b changes.Ref) bool { return a.ID == b.ID })
}

// lastOf returns which of indexes is the last that a tablet wrote; -1 if there is none.
func lastOf(indexes []changes.IndexRef, id metadata.TabletID) int {
	for i := len(indexes) - 1; i >= 0; i-- {
		if indexes[i].Tablet == uint64(id) {
			return i
		}
	}
	return -1
}

// ended says what became of the change of the row: err is that of the compare-and-set.
// If it is not known, the process ends.
func (x *changeIndex) ended(err error) {
	switch {
	case err == nil:
		x.named()
	case notApplied(err):
		x.abort()
	}
}

// named says that the row names the object.
func (x *changeIndex) named() {
	if x != nil {
		x.env.decided([]string{x.object})
	}
}

// abort gives it up: no row names it.
func (x *changeIndex) abort() {
	if x != nil {
		x.env.Remove(x.object)
		x.env.decided([]string{x.object})
	}
}

// indexed says that an index object names files: they stay when no version refers to them.
func (e *Env) indexed(files []changes.Ref) {
	e.objects.mu.Lock()
	defer e.objects.mu.Unlock()
	for i := range files {
		if o := e.objects.m[files[i].Object]; o != nil {
			o.indexed = true
		}
	}
}

// An indexCache has the index objects that were read last. Readers of changes come back to
// the same one for each message.
type indexCache struct {
	mu    sync.Mutex
	files map[string][]changes.Ref
	order []string // oldest first
}

// cachedIndexes is how many index objects are kept in memory, 200 KB each.
const cachedIndexes = 32

// changeFiles returns the files that an index object has, which are shared. One that is
// missing is fault.Corruption.
func (e *Env) changeFiles(ctx context.Context, x *changes.IndexRef) ([]changes.Ref, error) {
	c := &e.indexes
	c.mu.Lock()
	files, ok := c.files[x.Object]
	c.mu.Unlock()
	if ok {
		return files, nil
	}
	o, err := e.Objects.Open(ctx, x.Object)
	if errors.Is(err, fault.NotFound) {
		return nil, missingChanges("index object", x.Object, x.Lo, x.Hi)
	}
	if err != nil {
		return nil, err
	}
	if files, err = changes.ReadIndex(ctx, o, x.Object); err == nil {
		err = x.Verify(files)
	}
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.files[x.Object]; ok {
		return files, nil
	}
	if c.files == nil {
		c.files = map[string][]changes.Ref{}
	}
	if len(c.order) == cachedIndexes {
		delete(c.files, c.order[0])
		c.order = slices.Delete(c.order, 0, 1)
	}
	c.files[x.Object], c.order = files, append(c.order, x.Object)
	return files, nil
}

// changesWindow is about how many change files a reader considers at a time.
const changesWindow = 64

// window returns the change files that have something behind at, up to a stamp, in the
// reader's rows: all of them, or those up to the stamp that it returns, which is smaller
// then. A chunk that is read in part is not cut.
func (r *changeReader) window(ctx context.Context, end cell.Seq) ([]changes.Ref, cell.Seq, error) {
	var found []changes.Ref
	least := max(r.at.Through+1, r.at.ChunkEnd) // it ends there at the earliest
	take := func(files []changes.Ref) {
		for i := range files {
			f := &files[i]
			if f.Lo > end {
				break
			}
			if f.Hi > r.at.Through && !f.Rows.Intersect(r.within).Empty() && !r.passed(f) {
				found = append(found, *f)
			}
		}
	}
	for i := range r.state.Indexes {
		x := &r.state.Indexes[i]
		if x.Lo > end {
			break
		}
		if x.Hi <= r.at.Through || x.Rows.Intersect(r.within).Empty() {
			continue
		}
		if len(found) >= changesWindow && x.Lo > least {
			end = x.Lo - 1
			break
		}
		files, err := r.t.env.changeFiles(ctx, x)
		if err != nil {
			return nil, 0, r.expired(err, x.Hi)
		}
		take(files)
	}
	take(r.state.Files)
	found = inOrder(found)
	for i := changesWindow; i < len(found); i++ {
		if found[i].Lo > least {
			return found[:i], min(end, found[i].Lo-1), nil
		}
	}
	return found, end, nil
}

// passed tells whether a file has nothing behind the reader, who is within a chunk.
func (r *changeReader) passed(f *changes.Ref) bool {
	return f.Hi <= r.at.ChunkEnd && len(f.Rows.End) > 0 && bytes.Compare(f.Rows.End, r.at.Row) <= 0
}

// damaged says in an error of reading one of files through which index object the row names
// it, if it does so. A copy of it that is not what was stored is not used again.
func (r *changeReader) damaged(ctx context.Context, err error, files []changes.Ref) error {
	text := err.Error()
	at := slices.IndexFunc(files, func(f changes.Ref) bool { return strings.Contains(text, f.Object) })
	if at < 0 {
		return err
	}
	is := func(f changes.Ref) bool { return f.ID == files[at].ID }
	if slices.ContainsFunc(r.state.Files, is) {
		return err
	}
	objectstore.Distrust(r.t.env.Objects, files[at].Object)
	for i := range r.state.Indexes {
		x := &r.state.Indexes[i]
		if x.Lo > files[at].Hi || x.Hi < files[at].Lo {
			continue
		}
		if in, ierr := r.t.env.changeFiles(ctx, x); ierr == nil && slices.ContainsFunc(in, is) {
			return fmt.Errorf("%w; index object %s names it", err, x.Object)
		}
	}
	return err
}

// expired returns what an error of reading an object with stamps up to hi is: it may be
// gone because what it has is kept no longer, since the reader's version was made.
func (r *changeReader) expired(err error, hi cell.Seq) error {
	if s := r.t.Row().Stream; fault.KindOf(err) == fault.Corruption && s != nil && s.Life == r.state.Life && s.Since >= hi {
		return changes.Expired(r.t.schema().Name, s.Since)
	}
	return err
}
