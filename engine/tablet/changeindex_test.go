package tablet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/objstorage"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/cputime"
	"github.com/trestledb/trestle/engine/datadir/datadirtest"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/stamp"
)

// The settings of Options.ChangeFiles by default: how many files a row names, how few when it
// has just named others by an index object, and how many that has.
const mostNamed, leastNamed, mostIndexed = 64, 16, 1024

// fill writes and flushes n rows, each of which becomes a change file, from row first on.
func (s *streamed) fill(first, n int) {
	s.t.Helper()
	for i := first; i < first+n; i++ {
		b := NewBatch(fmt.Appendf(nil, "row%04d", i))
		b.Set(1, []byte("q"), 1000, fmt.Append(nil, i))
		s.apply(b)
		s.flush()
		for more := i%10 == 9; more; {
			var err error
			if more, err = s.Compact(s.t.Context()); err != nil {
				s.t.Fatal(err)
			}
		}
	}
}

// filled is what fill wrote, as all gives it.
func filled(first, n int) (out []string) {
	for i := first; i < first+n; i++ {
		out = append(out, fmt.Sprintf(`"row%04d" set 1:"q"@1000="%d"`, i, i))
	}
	return out
}

// indexed returns the change files that a stored row names through index objects, in order.
func (s *streamed) indexed(r *metadata.Row) (files []changes.Ref) {
	s.t.Helper()
	for i := range r.Stream.Indexes {
		x := &r.Stream.Indexes[i]
		f, err := s.objects.Open(context.Background(), x.Object)
		if err != nil {
			s.t.Errorf("a row names %s: %v", x.Object, err)
			continue
		}
		refs, err := changes.ReadIndex(context.Background(), f, x.Object)
		if err = errors.Join(err, x.Verify(refs)); err != nil {
			s.t.Error(err)
		}
		for _, f := range refs {
			if f.Hi > r.Stream.Since {
				files = append(files, f)
			}
		}
	}
	return files
}

// sound reports whatever stored rows name and is not there, and files that are named twice.
func (s *streamed) sound(twice bool) {
	s.t.Helper()
	s.meta.mu.Lock()
	defer s.meta.mu.Unlock()
	for _, b := range s.meta.rows {
		r, err := metadata.Unmarshal(b)
		if err != nil {
			s.t.Fatal(err)
		}
		s.soundRow(r, twice)
	}
}

func (s *streamed) soundRow(r *metadata.Row, twice bool) {
	s.t.Helper()
	named := map[string]bool{}
	r.Objects(func(object string) { named[object] = true })
	if r.Stream != nil {
		for _, f := range s.indexed(r) {
			if named[f.Object] && !twice {
				s.t.Errorf("tablet %v names %s twice", r.Tablet, f.Object)
			}
			named[f.Object] = true
		}
	}
	for object := range named {
		f, err := s.objects.Open(context.Background(), object)
		if err != nil {
			s.t.Errorf("tablet %v names %s: %v", r.Tablet, object, err)
			continue
		}
		_ = f.Close()
	}
}

// TestChangeIndex: a row names few change files, all others through index objects, and readers
// get all of them, in pieces of any length and after a restart.
func TestChangeIndex(t *testing.T) {
	s := newStreamed(t)
	start := changes.Position{Through: stamp.At(s.sch.Load().Stream.Since)}
	const n = 200
	most := 0
	s.meta.before = func(r *metadata.Row) {
		s.soundRow(r, false)
		if r.Stream != nil {
			most = max(most, len(r.Stream.Files))
		}
	}
	s.fill(0, n)
	st := s.Row().Stream
	if most > mostNamed || len(st.Indexes) != 1 || len(s.indexed(s.Row()))+len(st.Files) != n {
		t.Fatalf("a row named %d change files itself; at the end %d, and %d index objects with %d", most, len(st.Files), len(st.Indexes), len(s.indexed(s.Row())))
	}
	if k := KeptOf(s.Row()); k.Files != n {
		t.Errorf("%+v is kept", k)
	}
	want := filled(0, n)
	for _, size := range []int{-1, 1, 7} {
		if got, _ := s.all(start, row.All, size, nil); !slices.Equal(got, want) {
			t.Errorf("%d at once: %d changes of %d", size, len(got), n)
		}
	}
	for _, i := range []int{0, 1, 70, n - 1} {
		_, at := s.all(start, row.All, -1, nil)
		next, _, err := s.ReadChanges(t.Context(), start, row.All, func(r *changes.Record) (bool, error) {
			return string(r.Key) != fmt.Sprintf("row%04d", i), nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if got, end := s.all(next, row.All, 3, nil); !slices.Equal(got, want[i+1:]) || end.Through != at.Through {
			t.Errorf("behind row %d there are %d changes, up to %d", i, len(got), end.Through)
		}
	}
	s.reopen()
	if got, _ := s.all(start, row.Range{Start: []byte("row0050"), End: []byte("row0052")}, 1, nil); !slices.Equal(got, want[50:52]) {
		t.Errorf("of two rows: %q", got)
	}
	// Retention comes to the middle of the index object.
	files := s.indexed(s.Row())
	mid := files[len(files)/2].Hi
	late := stamp.Time(mid).Add(24*time.Hour + time.Microsecond)
	s.env.Now = func() time.Time { return late }
	if err := s.TrimStream(t.Context()); err != nil {
		t.Fatal(err)
	}
	at := changes.Position{Through: mid}
	if got, _ := s.all(at, row.All, -1, nil); s.Row().Stream.Since < mid || s.Row().Stream.Since >= files[len(files)/2+1].Lo || len(got) != n-len(files)/2-1 {
		t.Errorf("behind the retention, %d, since %d: %d changes", mid, s.Row().Stream.Since, len(got))
	}
	if k := KeptOf(s.Row()); k.Files >= n || k.Files < n-len(files) {
		t.Errorf("after the retention of %d files %+v is kept", len(files)/2, k)
	}
	if _, _, err := s.ReadChanges(t.Context(), start, row.All, nil); fault.KindOf(err) != fault.OutOfRange {
		t.Errorf("before the retention: %v", err)
	}
	// The index object goes as a whole, once its last file does.
	object := s.Row().Stream.Indexes[0].Object
	late = stamp.Time(s.Row().Stream.Indexes[0].Hi).Add(24*time.Hour + time.Microsecond)
	if err := s.TrimStream(t.Context()); err != nil || len(s.Row().Stream.Indexes) != 0 {
		t.Errorf("%+v, %v", s.Row().Stream, err)
	}
	if _, err := s.objects.Get(t.Context(), object); fault.KindOf(err) != fault.NotFound {
		t.Errorf("the index object is still there: %v", err)
	}
}

// TestChangeIndexRace: what a reader has in hand and is deleted, as it is kept no longer, is
// told so.
func TestChangeIndexRace(t *testing.T) {
	for _, what := range []string{"file", "index"} {
		s := newStreamed(t)
		start := changes.Position{Through: stamp.At(s.sch.Load().Stream.Since)}
		s.fill(0, mostNamed+1)
		gone := s.Row().Stream.Indexes[0].Object
		if what == "file" {
			gone = s.indexed(s.Row())[0].Object
		}
		once := sync.Once{}
		s.env.Objects = &openHook{s.objects, func(name string) {
			if name != gone {
				return
			}
			once.Do(func() {
				late := time.Now().Add(30 * time.Hour)
				s.env.Now = func() time.Time { return late }
				if err := s.TrimStream(t.Context()); err != nil {
					t.Error(err)
				}
				_ = s.objects.Delete(context.Background(), gone) // as a sweep does
			})
		}}
		_, _, err := s.ReadChanges(t.Context(), start, row.All, func(*changes.Record) (bool, error) { return true, nil })
		var f *fault.Error
		if !errors.As(err, &f) || f.Reason != changes.ExpiredReason {
			t.Errorf("%s: %v", what, err)
		}
		if len(s.env.Damage()) > 0 {
			t.Errorf("damage %+v", s.env.Damage())
		}
	}
}

// A refusingStore does not store rows, which is certain.
type refusingStore struct{ metadata.Store }

func (refusingStore) CAS(context.Context, *metadata.Row) error {
	return fmt.Errorf("%w: refused", metadata.ErrNotApplied)
}

// TestChangeIndexNotNamed: an index object that no row came to name is removed, and what it
// was to name is named by the next.
func TestChangeIndexNotNamed(t *testing.T) {
	s := newStreamed(t)
	start := changes.Position{Through: stamp.At(s.sch.Load().Stream.Since)}
	s.fill(0, mostNamed)
	b := NewBatch([]byte("row"))
	b.Set(1, []byte("q"), 1000, nil)
	s.apply(b)
	objects := func() (n int) {
		infos, err := s.objects.List(t.Context(), "", "", 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range infos {
			if changes.IsIndex(i.Name) {
				n++
			}
		}
		return n
	}
	s.env.Meta = refusingStore{s.meta}
	if err := s.FlushAll(t.Context()); !errors.Is(err, metadata.ErrNotApplied) || objects() != 0 {
		t.Errorf("%d index objects, %v", objects(), err)
	}
	if err := s.Split(t.Context(), []byte("row0005"), 2, 3, nil); !errors.Is(err, metadata.ErrNotApplied) || objects() != 0 {
		t.Errorf("%d index objects, %v", objects(), err)
	}
	s.env.Meta = s.meta
	s.flush()
	if got, _ := s.all(start, row.All, -1, nil); objects() != 1 || !slices.Equal(got, append(filled(0, mostNamed), `"row" set 1:"q"@1000=""`)) {
		t.Errorf("%d index objects, %d changes", objects(), len(got))
	}
	s.sound(false)
	if n := len(s.env.objects.unnamed); n > 0 {
		t.Errorf("%d objects are not decided about", n)
	}
}

// TestChangeIndexDamaged: an index object that is missing, or a file of one that is damaged,
// costs readers of its time, and others nothing: the next ones are put beside it.
func TestChangeIndexDamaged(t *testing.T) {
	s := newStreamed(t)
	start := changes.Position{Through: stamp.At(s.sch.Load().Stream.Since)}
	s.fill(0, mostNamed+1)
	x := s.Row().Stream.Indexes[0]
	// A file that it names.
	f := s.indexed(s.Row())[5]
	name := "sst/" + f.Object
	whole := datadirtest.ReadFile(t, s.fs, name)
	datadirtest.WriteFile(t, s.fs, name, datadirtest.Flip(20)(slices.Clone(whole)))
	if _, _, err := s.ReadChanges(t.Context(), start, row.All, func(*changes.Record) (bool, error) { return true, nil }); fault.KindOf(err) != fault.Corruption || !strings.Contains(err.Error(), f.Object) {
		t.Errorf("a reader of its time: %v", err)
	}
	if met := s.env.Damage(); len(met) != 1 || met[0].Object != x.Object || !strings.Contains(met[0].Err.Error(), f.Object) {
		t.Errorf("damage %+v", met)
	}
	datadirtest.WriteFile(t, s.fs, name, whole)
	if err := s.objects.Delete(t.Context(), x.Object); err != nil {
		t.Fatal(err)
	}
	s.reopen()
	s.fill(mostNamed+1, mostNamed)
	if got := s.Row().Stream; len(got.Indexes) != 2 || len(got.Files) > mostNamed {
		t.Errorf("%d index objects, %d files", len(got.Indexes), len(got.Files))
	}
	if _, _, err := s.ReadChanges(t.Context(), start, row.All, func(*changes.Record) (bool, error) { return true, nil }); fault.KindOf(err) != fault.Corruption {
		t.Errorf("a reader of its time: %v", err)
	}
	if met := s.env.Damage(); len(met) != 1 || met[0].Object != x.Object {
		t.Errorf("damage %+v", met)
	}
	if got, _ := s.all(changes.Position{Through: x.Hi}, row.All, -1, nil); !slices.Equal(got, filled(mostNamed+1-leastNamed, mostNamed+leastNamed)) {
		t.Errorf("behind it there are %d changes", len(got))
	}
}

// TestChangeIndexSplitMerge: children share the index objects of their parent, but for those
// that have none of their rows. What they add themselves they add to their own.
func TestChangeIndexSplitMerge(t *testing.T) {
	s := newStreamed(t)
	start := changes.Position{Through: stamp.At(s.sch.Load().Stream.Since)}
	s.fill(0, 120)
	var left, right *Tablet
	if err := s.Split(t.Context(), []byte("row0060"), 2, 3, func(c ...*Tablet) { left, right = c[0], c[1] }); err != nil {
		t.Fatal(err)
	}
	for _, c := range []*Tablet{left, right} {
		if st := c.Row().Stream; len(st.Files) != 0 || len(st.Indexes) != 1 {
			t.Errorf("tablet %v names %d files and %d index objects", c.ID(), len(st.Files), len(st.Indexes))
		}
	}
	if k := KeptBy([]*Tablet{left, right}); len(k) != 1 || k[0].Files != 120 {
		t.Errorf("%+v is kept", k)
	}
	opened := 0
	s.env.Objects = &openHook{s.objects, func(name string) {
		if changes.IsFile(name) {
			opened++
		}
	}}
	given := 0
	if _, _, err := left.ReadChanges(t.Context(), start, row.All, func(*changes.Record) (bool, error) { given++; return true, nil }); err != nil || given != 60 || opened != 60 {
		t.Errorf("the left child gives %d changes of %d files, %v", given, opened, err)
	}
	s.env.Objects = s.objects
	parent := s.Tablet
	s.meta.mu.Lock()
	delete(s.meta.rows, 1)
	s.meta.mu.Unlock()
	for i, c := range []*Tablet{left, right} {
		s.Tablet = c
		s.fill(200+i*100-200*(1-i), mostNamed+1) // row0000 on, row0300 on
		s.sound(false)
	}
	if k := KeptBy([]*Tablet{left, right}); k[0].Files != 120+2*(mostNamed+1) {
		t.Errorf("%+v is kept", k)
	}
	shared := left.Row().Stream.Indexes[0]
	if shared.Object != right.Row().Stream.Indexes[0].Object || len(left.Row().Stream.Indexes) != 2 {
		t.Errorf("%+v and %+v", left.Row().Stream.Indexes, right.Row().Stream.Indexes)
	}
	var merged *Tablet
	forget := func(*metadata.Row) error {
		s.meta.mu.Lock()
		defer s.meta.mu.Unlock()
		delete(s.meta.rows, 2)
		return nil
	}
	if err := Merge(t.Context(), left, right, 4, forget, func(m ...*Tablet) { merged = m[0] }); err != nil {
		t.Fatal(err)
	}
	s.Tablet = merged
	if st := merged.Row().Stream; len(st.Indexes) != 3 {
		t.Errorf("%d index objects", len(st.Indexes))
	}
	want := append(append(filled(0, 120), filled(0, mostNamed+1)...), filled(300, mostNamed+1)...)
	for _, size := range []int{-1, 1} {
		if got, _ := s.all(start, row.All, size, nil); !slices.Equal(got, want) {
			t.Errorf("%d at once: %d changes, not %d", size, len(got), len(want))
		}
	}
	s.fill(400, 1)
	if st := merged.Row().Stream; len(st.Files) > mostNamed {
		t.Errorf("%d files", len(st.Files))
	}
	s.sound(false)
	if k := KeptBy([]*Tablet{merged}); k[0].Files != len(want)+1 {
		t.Errorf("%+v is kept", k)
	}
	parent.env.objects.mu.Lock()
	defer parent.env.objects.mu.Unlock()
	if n := len(parent.env.objects.unnamed); n > 0 {
		t.Errorf("%d objects are not decided about", n)
	}
}

// TestDropSharedIndex: of an index object that two children share, as much counts as the one
// keeps that keeps more, whichever comes first.
func TestDropSharedIndex(t *testing.T) {
	s := newStreamed(t)
	s.fill(0, 120)
	var left, right *Tablet
	if err := s.Split(t.Context(), []byte("row0060"), 2, 3, func(c ...*Tablet) { left, right = c[0], c[1] }); err != nil {
		t.Fatal(err)
	}
	x := left.Row().Stream.Indexes[0]
	if d := left.dropChanges(t.Context(), x.Lo+(x.Hi-x.Lo)*3/4); d.Err != nil || d.Bytes == 0 {
		t.Fatalf("%+v", d)
	}
	most := x.Bytes / 2
	if KeptOf(left.Row()).Bytes >= most || KeptOf(right.Row()).Bytes != x.Bytes {
		t.Fatalf("%+v and %+v are kept of %d bytes", KeptOf(left.Row()), KeptOf(right.Row()), x.Bytes)
	}
	if n := KeptBy([]*Tablet{left, right})[0].Bytes; n != x.Bytes {
		t.Errorf("%d bytes are said to be kept of %d", n, x.Bytes)
	}
	DropOldChanges(t.Context(), []*Tablet{left, right}, most)
	if n := KeptOf(right.Row()).Bytes; n > most || n < most-x.Bytes/dropSteps-1 {
		t.Errorf("%d bytes are kept, where %d are to be", n, most)
	}
}

// TestChangesNamedTwice: a file that a row names twice, after its two children have put it into
// index objects of their own, is read once.
func TestChangesNamedTwice(t *testing.T) {
	s := newStreamed(t)
	start := changes.Position{Through: stamp.At(s.sch.Load().Stream.Since)}
	s.fill(0, 10)
	next := s.Row().Clone()
	one, err := s.indexChanges(t.Context(), next, 0)
	if err != nil {
		t.Fatal(err)
	}
	two := s.Row().Clone()
	three, err := s.indexChanges(t.Context(), two, 0)
	if err != nil {
		t.Fatal(err)
	}
	next.Stream = metadata.MergeStreams(metadata.MergeStreams(next.Stream, two.Stream), s.Row().Stream)
	if len(next.Stream.Indexes) != 2 || len(next.Stream.Files) != 10 {
		t.Fatalf("%+v", next.Stream)
	}
	if err := s.change1(t.Context(), next); err != nil {
		t.Fatal(err)
	}
	one.named()
	three.named()
	opened := 0
	s.env.Objects = &openHook{s.objects, func(name string) {
		if changes.IsFile(name) {
			opened++
		}
	}}
	given := 0
	if _, _, err := s.ReadChanges(t.Context(), start, row.All, func(*changes.Record) (bool, error) { given++; return true, nil }); err != nil || given != 10 || opened != 10 {
		t.Errorf("%d changes of %d files, %v", given, opened, err)
	}
}

// TestFullChangeIndex: a row may name so many change files itself that an index object does not
// take 16 times as many: it takes those that can be read.
func TestFullChangeIndex(t *testing.T) {
	s := newStreamed(t)
	s.changeFiles = 2000
	s.reopen()
	s.fill(0, 1)
	next := s.Row().Clone()
	const n = changes.MaxIndexFiles + 4000
	one := next.Stream.Files[0]
	next.Stream.Files = nil
	for i := range n {
		f := one
		f.ID = uint64(i + 1)
		f.Object = changes.FileName(f.ID)
		next.Stream.Files = append(next.Stream.Files, f)
	}
	for _, want := range []struct{ indexed, named int }{{changes.MaxIndexFiles, 4000}, {3500, 500}} {
		x, err := s.indexChanges(t.Context(), next, s.env.Options.ChangeFiles)
		if x.named(); err != nil {
			t.Fatal(err)
		}
		last := &next.Stream.Indexes[len(next.Stream.Indexes)-1]
		files, err := s.env.changeFiles(t.Context(), last)
		if err != nil || len(files) != want.indexed || len(next.Stream.Files) != want.named {
			t.Errorf("an index object of %d change files, and %d that are named: %v", len(files), len(next.Stream.Files), err)
		}
	}
}

// A requestHook is called before each request to the store, which it may refuse.
type requestHook struct {
	objectstore.Store
	before func(what string) error
}

func (h *requestHook) Open(ctx context.Context, name string) (objstorage.Readable, error) {
	if err := h.before("open " + name); err != nil {
		return nil, err
	}
	return h.Store.Open(ctx, name)
}

func (h *requestHook) Create(ctx context.Context, name string) (objstorage.Writable, error) {
	if err := h.before("create " + name); err != nil {
		return nil, err
	}
	w, err := h.Store.Create(ctx, name)
	return &hookedFile{w, h, name}, err
}

type hookedFile struct {
	objstorage.Writable
	h    *requestHook
	name string
}

func (f *hookedFile) Write(p []byte) error {
	if err := f.h.before("write " + f.name); err != nil {
		return err
	}
	return f.Writable.Write(p)
}

func (f *hookedFile) Finish() error {
	if err := f.h.before("finish " + f.name); err != nil {
		f.Abort()
		return err
	}
	return f.Writable.Finish()
}

// TestChangeIndexRequests: at every request of a flush that writes an index object, what the
// stored row names is there. If the request fails, nothing of the stream is lost, and the
// server does not end; the same if it ends there.
func TestChangeIndexRequests(t *testing.T) {
	const before = 4 + mostNamed
	for _, crash := range []bool{false, true} {
		indexes := map[string]bool{}
		for at := 0; ; at++ {
			s := newStreamed(t)
			start := changes.Position{Through: stamp.At(s.sch.Load().Stream.Since)}
			s.fill(0, 4)
			next := s.Row().Clone()
			x, err := s.indexChanges(t.Context(), next, 0)
			if err == nil {
				err = s.change1(t.Context(), next)
			}
			if x.ended(err); err != nil {
				t.Fatal(err)
			}
			s.fill(4, mostNamed) // the next flush adds to the index object
			b := NewBatch([]byte("row"))
			b.Set(1, []byte("q"), 1000, nil)
			s.apply(b)
			s.env.indexes = indexCache{}
			n, failed := 0, ""
			s.meta.before = func(r *metadata.Row) { s.soundRow(r, false) }
			s.env.Objects = &requestHook{s.objects, func(what string) error {
				s.sound(false)
				if n++; n <= at || !crash && n > at+1 {
					return nil
				}
				if failed == "" {
					failed = what
				}
				return fault.New(fault.Unavailable, "refused")
			}}
			err = s.FlushAll(t.Context())
			if failed == "" {
				if err != nil || len(indexes) == 0 {
					t.Errorf("%d requests, %v, of index objects %v", n, err, indexes)
				}
				break
			}
			if name := failed[len(failed)-20:]; changes.IsIndex(name) {
				indexes[failed[:5]] = true
				if err != nil && !crash {
					t.Errorf("%s: %v", failed, err)
				}
			}
			s.env.Objects = s.objects
			if !crash {
				s.flush()
				s.fill(before, 1)
				if st := s.Row().Stream; len(st.Files) > mostNamed {
					t.Errorf("%s: %d files", failed, len(st.Files))
				}
			}
			s.reopen()
			s.sound(false)
			want := append(filled(0, before), `"row" set 1:"q"@1000=""`)
			if !crash {
				want = append(want, filled(before, 1)...)
			}
			if got, _ := s.all(start, row.All, -1, nil); !slices.Equal(got, want) {
				t.Errorf("%s failed: %d changes, not %d", failed, len(got), len(want))
			}
		}
		t.Logf("crash %v: requests of index objects: %v", crash, indexes)
	}
}

// TestFirstOfManyFiles: the first record behind a token of long ago costs a tablet with 100,000
// change files few requests, and its METADATA row stays small.
func TestFirstOfManyFiles(t *testing.T) {
	s := newStreamed(t)
	const n = 100_000
	week := time.Now().Add(-7 * 24 * time.Hour)
	s.stream(&schema.Stream{Life: 1, Retention: 8 * 24 * time.Hour, Since: week})
	s.reopen()
	s.fill(0, 1)
	f := s.Row().Stream.Files[0]
	// As if this file had been written 100,000 times, one each 6 s.
	st := &metadata.StreamState{Life: 1, Since: stamp.At(week)}
	data, err := s.objects.Get(t.Context(), f.Object)
	if err != nil {
		t.Fatal(err)
	}
	var batch []changes.Ref
	for i := range n {
		c := f
		c.ID = uint64(i + 1)
		c.Object = changes.FileName(c.ID)
		c.Lo = stamp.At(week.Add(time.Duration(i+1) * 6 * time.Second))
		c.Records, c.Bytes = uint64(1e6+i*7919%1e5), int64(6e7+i*104729%1e6)
		c.Rows = row.Range{Start: fmt.Appendf(nil, "row%08x", i*7919%1000), End: fmt.Appendf(nil, "user%08x", 1<<31-i*104729%1000)}
		c.Hi, c.At = c.Lo, c.Lo
		if i%1024 < 2 {
			if err := s.objects.PutIfAbsent(t.Context(), c.Object, data); err != nil {
				t.Fatal(err)
			}
		}
		if n-i <= mostNamed {
			st.Files = append(st.Files, c)
			continue
		}
		if batch = append(batch, c); len(batch) == mostIndexed || n-i == mostNamed+1 {
			id := uint64(i + 1)
			w, err := s.objects.Create(t.Context(), changes.IndexName(id))
			if err != nil {
				t.Fatal(err)
			}
			x, err := changes.WriteIndex(w, batch)
			if err != nil {
				t.Fatal(err)
			}
			x.Object, x.ID, x.Tablet = changes.IndexName(id), id, 1
			st.Indexes, batch = append(st.Indexes, x), nil
		}
	}
	s.env.indexed([]changes.Ref{f})
	next := s.Row().Clone()
	next.Stream = st
	if err := s.change1(t.Context(), next); err != nil {
		t.Fatal(err)
	}
	size := len(s.meta.rows[1])
	t.Logf("the row has %d bytes, %d index objects of about %d bytes", size, len(st.Indexes), st.Indexes[0].Size)
	if k := KeptOf(s.Row()); size > 48<<10 || k.Files != n {
		t.Errorf("%d bytes, %+v is kept", size, k)
	}
	requests := 0
	s.env.Objects = &openHook{s.objects, func(string) { requests++ }}
	for _, age := range []time.Duration{0, 3 * 24 * time.Hour, 6*24*time.Hour + 22*time.Hour} {
		s.env.indexes = indexCache{}
		requests = 0
		i := int(age/(6*time.Second)) / mostIndexed * mostIndexed
		from := changes.Position{Through: stamp.At(week.Add(time.Duration(i) * 6 * time.Second))}
		before, begin := cputime.Used(), time.Now()
		var got cell.Seq
		if _, _, err := s.ReadChanges(t.Context(), from, row.All, func(r *changes.Record) (bool, error) {
			got = r.Stamp
			return false, nil
		}); err != nil {
			t.Fatal(err)
		}
		t.Logf("from %v on: %d objects opened, %v of processor time, %v", age, requests, cputime.Used()-before, time.Since(begin))
		if want := stamp.At(week.Add(time.Duration(i+1) * 6 * time.Second)); got != want || requests > 4 {
			t.Errorf("from %v on: the first record is of %v, not %v, after %d requests", age, stamp.Time(got), stamp.Time(want), requests)
		}
	}
}

// TestManyOverlappingFiles: a file whose records lie between those of more files than a reader
// considers at a time, after a merge, is read in order with them, from any place in it.
func TestManyOverlappingFiles(t *testing.T) {
	s := newStreamed(t)
	start := changes.Position{Through: stamp.At(s.sch.Load().Stream.Since)}
	var left, right *Tablet
	s.fill(500, 1)
	if err := s.Split(t.Context(), []byte("row0500"), 2, 3, func(c ...*Tablet) { left, right = c[0], c[1] }); err != nil {
		t.Fatal(err)
	}
	want := filled(500, 1)
	const n = 2*changesWindow + 20
	for i := range n {
		b := NewBatch(fmt.Appendf(nil, "row%04d", i))
		b.Set(1, []byte("q"), 1000, fmt.Append(nil, i))
		s.Tablet = left
		s.apply(b)
		s.Tablet = right
		s.fill(600+i, 1)
		want = append(want, filled(i, 1)...)
		want = append(want, filled(600+i, 1)...)
	}
	s.Tablet = left
	s.flush()
	within, _, err := s.ReadChanges(t.Context(), start, row.All, func(*changes.Record) (bool, error) { return false, nil })
	if err != nil || within.ChunkEnd == 0 {
		t.Fatal(within, err)
	}
	forget := func(*metadata.Row) error {
		s.meta.mu.Lock()
		defer s.meta.mu.Unlock()
		delete(s.meta.rows, 2)
		return nil
	}
	if err := Merge(t.Context(), left, right, 4, forget, func(m ...*Tablet) { s.Tablet = m[0] }); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{-1, 1, 50} {
		if got, _ := s.all(start, row.All, size, nil); !slices.Equal(got, want) {
			t.Errorf("%d at once: %d changes, not %d", size, len(got), len(want))
		}
		// The chunk of before ends behind them all.
		if got, _ := s.all(within, row.All, size, nil); len(got) != len(want)-1 || slices.Contains(got, filled(0, 1)[0]) {
			t.Errorf("from within a chunk, %d at once: %d changes, not %d", size, len(got), len(want)-1)
		}
	}
}
