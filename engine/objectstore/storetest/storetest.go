package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/objstorage"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/objectstore"
)

// Run checks the store that open returns; open is called once for each test
// and must return an empty one.
func Run(t *testing.T, open func(t *testing.T) objectstore.Store) {
	for _, tt := range []struct {
		name string
		test func(t *testing.T, s objectstore.Store)
	}{
		{"put", testPut},
		{"names", testNames},
		{"create", testCreate},
		{"abort", testAbort},
		{"read", testRead},
		{"list", testList},
		{"list pages", testListPages},
		{"race", testRace},
		{"probe", testProbe},
		{"cancelled", testCancelled},
		{"delete all", testDeleteAll},
		{"sequence", testSequence},
	} {
		t.Run(tt.name, func(t *testing.T) { tt.test(t, open(t)) })
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantKind(t *testing.T, what string, err error, kind fault.Kind) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("%s: error is %v, want %v", what, err, kind)
	}
}

func wantObject(t *testing.T, s objectstore.Store, name string, want []byte) {
	t.Helper()
	got, err := s.Get(t.Context(), name)
	if err != nil {
		t.Errorf("get %s: %v", name, err)
	} else if !bytes.Equal(got, want) {
		t.Errorf("%s holds %d bytes %.40q, want %d bytes %.40q", name, len(got), got, len(want), want)
	}
}

func names(t *testing.T, s objectstore.Store, prefix, after string, n int) []string {
	t.Helper()
	infos, err := s.List(t.Context(), prefix, after, n)
	must(t, err)
	out := []string{}
	for _, i := range infos {
		out = append(out, i.Name)
	}
	return out
}

func testPut(t *testing.T, s objectstore.Store) {
	ctx := t.Context()
	_, err := s.Get(ctx, "a/b")
	wantKind(t, "get of nothing", err, fault.NotFound)
	_, err = s.Open(ctx, "a/b")
	wantKind(t, "open of nothing", err, fault.NotFound)
	must(t, s.Delete(ctx, "a/b"))

	data := []byte("first")
	must(t, s.PutIfAbsent(ctx, "a/b", data))
	if string(data) != "first" {
		t.Errorf("a put changed its argument to %q", data)
	}
	must(t, s.PutIfAbsent(ctx, "empty", nil))
	wantKind(t, "second put", s.PutIfAbsent(ctx, "a/b", []byte("second")), fault.AlreadyExists)
	wantObject(t, s, "a/b", []byte("first"))
	wantObject(t, s, "empty", nil)

	must(t, s.Delete(ctx, "a/b"))
	_, err = s.Get(ctx, "a/b")
	wantKind(t, "get after delete", err, fault.NotFound)
	must(t, s.PutIfAbsent(ctx, "a/b", []byte("third")))
	wantObject(t, s, "a/b", []byte("third"))
}

func testNames(t *testing.T, s objectstore.Store) {
	ctx := t.Context()
	for _, name := range []string{"", "/", "/a", "a/", "a//b", ".", "..", "a/../b", ".tmp/x", "a/.b", "a b", "a\x00", "ä",
		strings.Repeat("x", 256)} {
		wantKind(t, fmt.Sprintf("put %q", name), s.PutIfAbsent(ctx, name, nil), fault.Invalid)
		_, err := s.Create(ctx, name)
		wantKind(t, fmt.Sprintf("create %q", name), err, fault.Invalid)
		_, err = s.Open(ctx, name)
		wantKind(t, fmt.Sprintf("open %q", name), err, fault.Invalid)
		_, err = s.Get(ctx, name)
		wantKind(t, fmt.Sprintf("get %q", name), err, fault.Invalid)
		wantKind(t, fmt.Sprintf("delete %q", name), s.Delete(ctx, name), fault.Invalid)
	}
	for _, name := range []string{"a", "A.b-c_0", "1/2/3/4/5", strings.Repeat("x", 255)} {
		must(t, s.PutIfAbsent(ctx, name, []byte(name)))
		wantObject(t, s, name, []byte(name))
	}
}

// random returns n bytes that differ between seeds.
func random(n int, seed uint64) []byte {
	b := make([]byte, n)
	var s [32]byte
	s[0] = byte(seed)
	_, _ = rand.NewChaCha8(s).Read(b)
	return b
}

func write(w objstorage.Writable, data []byte, piece int) error {
	for len(data) > 0 {
		n := min(piece, len(data))
		// Write may change what it is given.
		if err := w.Write(bytes.Clone(data[:n])); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

func testCreate(t *testing.T, s objectstore.Store) {
	ctx := t.Context()
	for i, n := range []int{0, 1, 512<<10 - 1, 512 << 10, 512<<10 + 1, 9<<20 + 7} {
		name := fmt.Sprintf("dir/%d", n)
		data := random(n, uint64(i))
		w, err := s.Create(ctx, name)
		must(t, err)
		must(t, write(w, data, 100_003))
		if got := names(t, s, "", "", 0); slices.Contains(got, name) {
			t.Errorf("%s is listed before it is finished", name)
		}
		_, err = s.Get(ctx, name)
		wantKind(t, "get before finish", err, fault.NotFound)
		must(t, w.Finish())
		wantObject(t, s, name, data)

		w, err = s.Create(ctx, name)
		if err == nil {
			must(t, write(w, []byte("other"), 5))
			err = w.Finish()
		}
		wantKind(t, "create over an object", err, fault.AlreadyExists)
		wantObject(t, s, name, data)
	}
}

func testAbort(t *testing.T, s objectstore.Store) {
	ctx := t.Context()
	w, err := s.Create(ctx, "x")
	must(t, err)
	must(t, write(w, random(1<<20, 1), 1<<20))
	w.Abort()
	if got := names(t, s, "", "", 0); len(got) != 0 {
		t.Errorf("an aborted object left %v", got)
	}
	must(t, s.PutIfAbsent(ctx, "x", []byte("y")))
	wantObject(t, s, "x", []byte("y"))
}

func testRead(t *testing.T, s objectstore.Store) {
	ctx := t.Context()
	data := random(3<<20+5, 1)
	must(t, s.PutIfAbsent(ctx, "x", data))
	r, err := s.Open(ctx, "x")
	must(t, err)
	defer func() { must(t, r.Close()) }()
	if r.Size() != int64(len(data)) {
		t.Errorf("size is %d, want %d", r.Size(), len(data))
	}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(g), 0))
			h := r.NewReadHandle(objstorage.NoReadBefore)
			defer h.Close()
			if g%2 == 1 {
				h.SetupForCompaction()
			}
			for range 200 {
				off := rnd.IntN(len(data))
				p := make([]byte, rnd.IntN(min(64<<10, len(data)-off)+1))
				if err := r.ReadAt(ctx, p, int64(off)); err != nil || !bytes.Equal(p, data[off:off+len(p)]) {
					t.Errorf("read %d bytes at %d: wrong bytes, error %v", len(p), off, err)
				}
				clear(p)
				if err := h.ReadAt(ctx, p, int64(off)); err != nil || !bytes.Equal(p, data[off:off+len(p)]) {
					t.Errorf("read %d bytes at %d by handle: wrong bytes, error %v", len(p), off, err)
				}
			}
			// All of it in order, as a compaction does.
			var got []byte
			for len(got) < len(data) {
				p := make([]byte, min(32<<10, len(data)-len(got)))
				if err := h.ReadAt(ctx, p, int64(len(got))); err != nil {
					t.Errorf("read in order: %v", err)
					return
				}
				got = append(got, p...)
			}
			if !bytes.Equal(got, data) {
				t.Error("reading in order gives other bytes")
			}
		})
	}
	wg.Wait()
	if err := r.ReadAt(ctx, make([]byte, 2), int64(len(data)-1)); err == nil {
		t.Error("a read over the end succeeds")
	}
}

var listed = []string{"a", "b/a", "b/b/c", "b-c", "b.c", "b0", "c/1", "c/10", "c/2", "d.e/f", "d/e", "d_e"}

func fill(t *testing.T, s objectstore.Store) []string {
	for _, name := range listed {
		must(t, s.PutIfAbsent(t.Context(), name, []byte(name)))
	}
	sorted := slices.Clone(listed)
	slices.Sort(sorted)
	return sorted
}

func testList(t *testing.T, s objectstore.Store) {
	if got := names(t, s, "", "", 0); len(got) != 0 {
		t.Fatalf("an empty store lists %v", got)
	}
	sorted := fill(t, s)
	infos, err := s.List(t.Context(), "", "", 0)
	must(t, err)
	for _, i := range infos {
		if i.Size != int64(len(i.Name)) || i.Modified.IsZero() {
			t.Errorf("%s is listed with size %d, modified %v", i.Name, i.Size, i.Modified)
		}
	}
	points := append([]string{"", "b", "b/", "b/b", "b/b/", "c/", "c/1", "d", "e", "a/b", "zz", "b/zz", "0", "no/such"}, listed...)
	for _, prefix := range points {
		for _, after := range points {
			for _, n := range []int{0, 1, 2, 5, 100} {
				want := []string{}
				for _, name := range sorted {
					if strings.HasPrefix(name, prefix) && name > after && (n == 0 || len(want) < n) {
						want = append(want, name)
					}
				}
				if got := names(t, s, prefix, after, n); !slices.Equal(got, want) {
					t.Errorf("list prefix %q after %q at most %d: %q, want %q", prefix, after, n, got, want)
				}
			}
		}
	}
}

func testListPages(t *testing.T, s objectstore.Store) {
	sorted := fill(t, s)
	var got []string
	for after := ""; ; after = got[len(got)-1] {
		page := names(t, s, "", after, 3)
		got = append(got, page...)
		if len(page) < 3 {
			break
		}
	}
	if !slices.Equal(got, sorted) {
		t.Errorf("pages give %q, want %q", got, sorted)
	}
}

// testRace lets both ways of storing race for each of several names.
func testRace(t *testing.T, s objectstore.Store) {
	ctx := t.Context()
	const objects, racers = 10, 8
	var mu sync.Mutex
	winners := map[string][]int{}
	var wg sync.WaitGroup
	for r := range racers {
		wg.Go(func() {
			for o := range objects {
				name := fmt.Sprintf("race/%d", o)
				var err error
				if data := fmt.Appendf(nil, "%d", r); r%2 == 0 {
					err = s.PutIfAbsent(ctx, name, data)
				} else {
					var w objstorage.Writable
					if w, err = s.Create(ctx, name); err == nil {
						if err = w.Write(data); err != nil {
							w.Abort()
						} else {
							err = w.Finish()
						}
					}
				}
				if err == nil {
					mu.Lock()
					winners[name] = append(winners[name], r)
					mu.Unlock()
				} else {
					wantKind(t, "racing put", err, fault.AlreadyExists)
				}
			}
		})
	}
	wg.Wait()
	for o := range objects {
		name := fmt.Sprintf("race/%d", o)
		if w := winners[name]; len(w) != 1 {
			t.Errorf("%s has winners %v", name, w)
		} else {
			wantObject(t, s, name, fmt.Appendf(nil, "%d", w[0]))
		}
	}
}

func testProbe(t *testing.T, s objectstore.Store) {
	must(t, s.Probe(t.Context()))
	if got := names(t, s, "", "", 0); len(got) != 0 {
		t.Errorf("a probe left %v", got)
	}
}

func testCancelled(t *testing.T, s objectstore.Store) {
	must(t, s.PutIfAbsent(t.Context(), "a", nil))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, errCreate := s.Create(ctx, "x")
	_, errOpen := s.Open(ctx, "a")
	_, errGet := s.Get(ctx, "a")
	_, errList := s.List(ctx, "", "", 0)
	for _, err := range []error{s.PutIfAbsent(ctx, "x", nil), errCreate, errOpen, errGet, errList, s.Delete(ctx, "a")} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("with a cancelled context the error is %v", err)
		}
	}
	wantObject(t, s, "a", nil)
}

func testDeleteAll(t *testing.T, s objectstore.Store) {
	part := objectstore.Sub(objectstore.Sub(s, "p"), "q")
	var names []string
	for i := range 21 {
		names = append(names, fmt.Sprintf("delete/%d", i))
		must(t, part.PutIfAbsent(t.Context(), names[i], make([]byte, 4096)))
	}
	must(t, s.PutIfAbsent(t.Context(), names[0], []byte("another")))
	for _, some := range [][]string{nil, names[:1], append(names[2:], "delete/missing")} {
		if err := objectstore.DeleteAll(t.Context(), part, some); err != nil {
			t.Errorf("delete of %d objects: %v", len(some), err)
		}
	}
	infos, err := part.List(t.Context(), "delete/", "", 0)
	must(t, err)
	if len(infos) != 1 || infos[0].Name != names[1] {
		t.Errorf("left are %v", infos)
	}
	wantObject(t, s, names[0], []byte("another"))
	wantKind(t, "delete of a wrong name", objectstore.DeleteAll(t.Context(), part, []string{names[1], "delete//x"}), fault.Invalid)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := objectstore.DeleteAll(ctx, part, names[:2]); !errors.Is(err, context.Canceled) {
		t.Errorf("delete, cancelled: %v", err)
	}
}

// testSequence: objects that a Sequence puts are like others, to this store and to one
// opened later, and another writer's object ends the Sequence.
func testSequence(t *testing.T, s objectstore.Store) {
	part := objectstore.Sub(s, "log")
	q := objectstore.NewSequence(part, "7", 1)
	name := func(i int) string { return fmt.Sprintf("7/%015d", i) }
	object := func(i int) []byte { return bytes.Repeat([]byte{byte(i)}, i*i*13%50_000) }
	const n = 300
	for i := 1; i <= n; i++ {
		must(t, q.PutIfAbsent(t.Context(), uint64(i), object(i)))
		if i%40 == 0 {
			wantObject(t, s, "log/"+name(i-7), object(i-7))
			wantObject(t, part, name(i), object(i))
		}
	}
	wantKind(t, "second put", q.PutIfAbsent(t.Context(), 5, nil), fault.AlreadyExists)
	infos, err := part.List(t.Context(), "7/", name(20), 0)
	must(t, err)
	if len(infos) != n-20 {
		t.Fatalf("%d objects are listed, want %d", len(infos), n-20)
	}
	for i, info := range infos {
		if info.Name != name(21+i) || info.Size != int64(len(object(21+i))) || info.Modified.IsZero() {
			t.Fatalf("object %d is listed as %+v", 21+i, info)
		}
	}
	if got := names(t, part, "7/", name(100), 3); !slices.Equal(got, []string{name(101), name(102), name(103)}) {
		t.Errorf("a page is %v", got)
	}
	r, err := part.Open(t.Context(), name(200))
	must(t, err)
	p := make([]byte, 100)
	must(t, r.ReadAt(t.Context(), p, 50))
	if r.Size() != int64(len(object(200))) || !bytes.Equal(p, object(200)[50:150]) {
		t.Errorf("object 200 has %d bytes, or not these", r.Size())
	}
	must(t, r.Close())

	// Another puts an object that is there, one behind the next, and the next.
	wantKind(t, "put of an object of the sequence", part.PutIfAbsent(t.Context(), name(n), []byte("x")), fault.AlreadyExists)
	must(t, part.PutIfAbsent(t.Context(), name(n+3), []byte("fence")))
	must(t, q.PutIfAbsent(t.Context(), n+1, []byte("one more")))
	must(t, part.PutIfAbsent(t.Context(), name(n+2), []byte("another")))
	wantKind(t, "put where another has put", q.PutIfAbsent(t.Context(), n+2, []byte("mine")), fault.AlreadyExists)
	wantObject(t, part, name(n+1), []byte("one more"))
	wantObject(t, part, name(n+2), []byte("another"))
	wantKind(t, "put where another has put", q.PutIfAbsent(t.Context(), n+3, []byte("mine")), fault.AlreadyExists)

	must(t, q.Trim(t.Context(), 150))
	for i := 150; i <= n; i++ {
		wantObject(t, part, name(i), object(i))
	}
	must(t, q.Trim(t.Context(), n+2))
	must(t, q.Close())
	var rest []string
	for i := 1; i < n+3; i++ {
		rest = append(rest, name(i))
	}
	must(t, objectstore.DeleteAll(t.Context(), part, rest))
	if got := names(t, s, "", "", 0); !slices.Equal(got, []string{"log/" + name(n+3)}) {
		t.Errorf("left are %v", got)
	}
}
