package objectstore_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/trestledb/trestle/engine/datadir/datadirtest"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/objectstore"
)

// A turns gives the calls of several parties to a file system their turns, one at
// a time, at random.
type turns struct {
	mu      sync.Mutex
	parties int // that run, or wait for their turn
	waiting []turn
	given   int // turns
	rng     *rand.Rand
}

type turn struct {
	due  int // the least is the next
	turn chan struct{}
}

// join adds n parties. The first turn is given when all wait.
func (s *turns) join(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.parties += n
}

// leave takes a party out: it has ended, or waits for another.
func (s *turns) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.parties--
	s.give()
}

func (s *turns) wait() {
	s.mu.Lock()
	mine := turn{s.given + s.rng.IntN(4), make(chan struct{})}
	if s.rng.IntN(8) == 0 {
		mine.due += s.rng.IntN(80) // much may happen meanwhile
	}
	s.waiting = append(s.waiting, mine)
	s.give()
	s.mu.Unlock()
	<-mine.turn
}

func (s *turns) give() {
	// Who makes files for the writer is no party.
	if n := len(s.waiting); n > 0 && n >= s.parties {
		next := slices.MinFunc(s.waiting, func(a, b turn) int { return cmp.Compare(a.due, b.due) })
		s.waiting = slices.DeleteFunc(s.waiting, func(t turn) bool { return t == next })
		s.given++
		close(next.turn)
	}
}

// TestBundleInterleaved interleaves, call by call of the file system, a Sequence with
// others who put objects of its indexes, read and list, and cuts the power. What a
// put has returned of stays true to all, for ever.
func TestBundleInterleaved(t *testing.T) {
	seeds := 1000
	if v, err := strconv.Atoi(os.Getenv("TRESTLE_TEST_SEEDS")); err == nil {
		seeds = v
	}
	var acked, fenced, lost, crashes int
	for seed := range uint64(seeds) {
		a, f, l, c := interleaveBundle(t, seed)
		acked, fenced, lost, crashes = acked+a, fenced+f, lost+l, crashes+c
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	t.Logf("%d objects of the writer, %d of others, %d puts that found another's, %d power failures", acked, fenced, lost, crashes)
	if acked < seeds || fenced < seeds/2 || lost < seeds/4 || crashes < seeds/4 {
		t.Error("that is too few")
	}
}

func interleaveBundle(t *testing.T, seed uint64) (acked, fenced, lost, crashes int) {
	ctx := context.Background()
	rng := rand.New(rand.NewPCG(seed, 3))
	mem := datadirtest.NewCrashableMem()
	sched := &turns{rng: rand.New(rand.NewPCG(seed, 4))}
	type truth struct {
		data  string
		store string // who put it
	}
	var mu sync.Mutex
	known := map[uint64]truth{} // what puts have returned of
	cut := -1
	if rng.IntN(2) == 0 {
		cut = rng.IntN(400)
	}
	var crashed *datadirtest.CrashableMem
	var survives map[uint64]truth
	calls := 0
	var armed atomic.Bool
	fsys := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if !armed.Load() {
			return nil
		}
		sched.wait()
		mu.Lock()
		defer mu.Unlock()
		if calls++; calls == cut {
			crashed = mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: int(seed % 101), RNG: rand.New(rand.NewPCG(seed, 5))})
			survives = map[uint64]truth{}
			for i, k := range known {
				survives[i] = k
			}
		}
		return nil
	}))
	name := func(i uint64) string { return fmt.Sprintf("log/%015d", i) }
	open := func(owner string) *objectstore.Local {
		s, err := objectstore.OpenLocal(fsys, "objects", objectstore.LocalOptions{Owner: owner})
		if err != nil {
			t.Fatal(err)
		}
		// Now the directory is there for all: who makes it keeps others of the process
		// from their turn.
		if err := s.PutIfAbsent(ctx, "log/"+owner, nil); err != nil {
			t.Fatal(err)
		}
		if err := s.Delete(ctx, "log/"+owner); err != nil {
			t.Fatal(err)
		}
		return s
	}
	writer, others, reader := open("writer"), []*objectstore.Local{open("a"), open("b")}, open("reader")
	armed.Store(true)
	tell := func(i uint64, v truth) {
		mu.Lock()
		defer mu.Unlock()
		if was, ok := known[i]; ok && was != v {
			t.Errorf("object %d was put by %s, and by %s", i, was.store, v.store)
		}
		known[i] = v
	}
	var wg sync.WaitGroup
	party := func(do func(rng *rand.Rand)) {
		own := rand.New(rand.NewPCG(seed, rng.Uint64()))
		wg.Go(func() {
			defer sched.leave()
			do(own)
		})
	}
	// see checks one object, or tells that it is there.
	see := func(who string, s *objectstore.Local, i uint64) (string, bool) {
		mu.Lock()
		want, sure := known[i]
		mu.Unlock()
		got, err := s.Get(ctx, name(i))
		switch {
		case errors.Is(err, fault.NotFound) && !sure:
			return "", false
		case err != nil:
			t.Errorf("%s: get of object %d, put by %q: %v", who, i, want.store, err)
		case sure && string(got) != want.data:
			t.Errorf("%s: object %d, put by %s, is another", who, i, want.store)
		}
		return string(got), err == nil
	}
	sched.join(4)
	party(func(rng *rand.Rand) {
		q := objectstore.NewSequence(writer, "log", 1)
		for i := uint64(1); i <= 12; i++ {
			data := fmt.Sprintf("writer %d %s", i, strings.Repeat("x", rng.IntN(2)*rng.IntN(300<<10)))
			err := q.PutIfAbsent(ctx, i, []byte(data))
			if errors.Is(err, fault.AlreadyExists) {
				got, ok := see("writer", writer, i)
				if !ok {
					t.Errorf("object %d exists, and is not there", i)
				}
				if got != data {
					lost++
					break
				}
				// The closer of the bundle found it there.
			} else if err != nil {
				t.Errorf("put %d: %v", i, err)
				break
			}
			tell(i, truth{data, "writer"})
			acked++
		}
		if err := q.Close(); err != nil {
			t.Error(err)
		}
	})
	for n, s := range others {
		party(func(rng *rand.Rand) {
			who := fmt.Sprint("other ", n)
			for i := uint64(1 + rng.IntN(14)); i <= 16; i++ {
				err := s.PutIfAbsent(ctx, name(i), []byte(who))
				if err == nil {
					tell(i, truth{who, who})
					mu.Lock()
					fenced++
					mu.Unlock()
					if rng.IntN(2) == 0 {
						break
					}
					continue
				}
				if !errors.Is(err, fault.AlreadyExists) {
					t.Errorf("%s, object %d: %v", who, i, err)
					break
				}
				if got, ok := see(who, s, i); !ok {
					t.Errorf("%s: object %d exists, and is not there", who, i)
				} else if strings.HasPrefix(got, "writer") {
					// What exists is durable, acknowledged or not.
					tell(i, truth{got, "writer"})
					if rng.IntN(4) == 0 {
						mu.Lock()
						cut = calls + 1
						mu.Unlock()
					}
				}
			}
		})
	}
	party(func(rng *rand.Rand) {
		s := reader
		for range 6 {
			mu.Lock()
			sure := map[uint64]truth{}
			for i, k := range known {
				sure[i] = k
			}
			mu.Unlock()
			infos, err := s.List(ctx, "log/", "", 0)
			if err != nil {
				t.Error(err)
			}
			for _, info := range infos {
				var i uint64
				if _, err := fmt.Sscanf(info.Name, "log/%d", &i); err != nil {
					t.Error(err)
				}
				if k, ok := sure[i]; ok && info.Size != int64(len(k.data)) {
					t.Errorf("object %d, put by %s, is listed with %d bytes", i, k.store, info.Size)
				}
				delete(sure, i)
			}
			for i, k := range sure {
				t.Errorf("object %d, put by %s, is not listed", i, k.store)
			}
			see("reader", s, 1+rng.Uint64N(12))
		}
	})
	wg.Wait()
	armed.Store(false)
	check := func(when string, fsys vfs.FS, known map[uint64]truth) {
		s, err := objectstore.OpenLocal(fsys, "objects", objectstore.LocalOptions{Owner: "check"})
		if err != nil {
			t.Fatal(err)
		}
		for pass := range 2 {
			for i, k := range known {
				if got, err := s.Get(ctx, name(i)); err != nil || string(got) != k.data {
					t.Errorf("%s, pass %d: object %d, put by %s: %v", when, pass, i, k.store, err)
				}
			}
			infos, err := s.List(ctx, "", "", 0)
			if err != nil {
				t.Errorf("%s, pass %d: %v", when, pass, err)
			}
			for _, info := range infos {
				if got, err := s.Get(ctx, info.Name); err != nil || int64(len(got)) != info.Size {
					t.Errorf("%s: %s is listed with %d bytes and has %d: %v", when, info.Name, info.Size, len(got), err)
				}
			}
			// Whoever takes over puts an object at the first index that is free.
			for i := uint64(1); pass == 0; i++ {
				err := s.PutIfAbsent(ctx, name(i), []byte("the end"))
				if err == nil {
					break
				}
				if !errors.Is(err, fault.AlreadyExists) {
					t.Fatalf("%s: %v", when, err)
				}
			}
		}
	}
	check("in the end", mem, known)
	if crashed != nil {
		crashes = 1
		check("after a power failure", crashed, survives)
	}
	return acked, fenced, lost, crashes
}

// TestBundleReuse: objects of bundles are there, again and again, across stores that
// are opened anew, and files are used again.
func TestBundleReuse(t *testing.T) {
	for name, fsys := range map[string]vfs.FS{"memory": vfs.NewMem(), "disk": vfs.Default} {
		t.Run(name, func(t *testing.T) {
			dir := "objects"
			if name == "disk" {
				dir = filepath.Join(t.TempDir(), dir)
			}
			s := openLocal(t, fsys, dir)
			q := objectstore.NewSequence(s, "log", 1)
			object := func(i uint64) []byte { return bytes.Repeat(binary.LittleEndian.AppendUint64(nil, i), 12_500) } // 100 KB
			for i := uint64(1); i <= 600; i++ {
				if err := q.PutIfAbsent(t.Context(), i, object(i)); err != nil {
					t.Fatal(err)
				}
				if i%100 == 0 {
					trimmed := i - 50
					if err := q.Trim(t.Context(), trimmed); err != nil {
						t.Fatal(err)
					}
					again := openLocalAs(t, fsys, dir, "again")
					for k := trimmed; k <= i; k++ {
						if got, err := again.Get(t.Context(), fmt.Sprintf("log/%015d", k)); err != nil || !bytes.Equal(got, object(k)) {
							t.Fatalf("object %d of %d: %v", k, i, err)
						}
					}
				}
			}
			if err := q.Close(); err != nil {
				t.Fatal(err)
			}
			files, err := fsys.List(fsys.PathJoin(dir, "log"))
			if err != nil {
				t.Fatal(err)
			}
			// 60 MB in files of 8 MiB, of which those with the last 50 are there.
			if len(files) > 3*5 {
				t.Errorf("left are %v", files)
			}
		})
	}
}

// TestBundleDeletedMeanwhile: a bundle that another deletes, before its token is taken, is
// deleted.
func TestBundleDeletedMeanwhile(t *testing.T) {
	fsys := vfs.NewMem()
	q := objectstore.NewSequence(openLocalAs(t, fsys, "objects", "writer"), "log", 1)
	if err := q.PutIfAbsent(t.Context(), 1, []byte("object")); err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("log/%015d", 1)
	other := openLocalAs(t, fsys, "objects", "other")
	hooked := &beforeRename{FS: fsys, do: sync.OnceFunc(func() {
		if err := other.Delete(t.Context(), name); err != nil {
			t.Error(err)
		}
	})}
	if err := openLocalAs(t, hooked, "objects", "sweeper").Delete(t.Context(), name); err != nil {
		t.Error(err)
	}
	if files, err := fsys.List("objects/log"); err != nil || len(files) > 0 {
		t.Errorf("left are %v, %v", files, err)
	}
	if err := q.Close(); err != nil {
		t.Error(err)
	}
}

// A beforeRename calls do before a file is renamed.
type beforeRename struct {
	vfs.FS
	do func()
}

func (f *beforeRename) Rename(from, to string) error {
	f.do()
	return f.FS.Rename(from, to)
}

// TestBundleDeleted: what a writer has left behind, its bundle open, can be deleted, and
// leaves nothing; a writer that is there after all goes on.
func TestBundleDeleted(t *testing.T) {
	fsys := vfs.NewMem()
	q := objectstore.NewSequence(openLocalAs(t, fsys, "objects", "writer"), "log", 1)
	var names []string
	for i := range uint64(6) {
		if err := q.PutIfAbsent(t.Context(), i+1, []byte("object")); err != nil {
			t.Fatal(err)
		}
		names = append(names, fmt.Sprintf("log/%015d", i+1))
	}
	s := openLocalAs(t, fsys, "objects", "sweeper")
	if err := objectstore.DeleteAll(t.Context(), s, names[:5]); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Get(t.Context(), names[5]); err != nil || string(got) != "object" {
		t.Fatalf("%q, %v", got, err)
	}
	if err := objectstore.DeleteAll(t.Context(), s, names); err != nil {
		t.Fatal(err)
	}
	if files, err := fsys.List("objects/log"); err != nil || len(files) > 0 {
		t.Errorf("left are %v, %v", files, err)
	}
	if err := q.PutIfAbsent(t.Context(), 7, []byte("more")); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Get(t.Context(), fmt.Sprintf("log/%015d", 7)); err != nil || string(got) != "more" {
		t.Errorf("%q, %v", got, err)
	}
	if err := q.Close(); err != nil {
		t.Error(err)
	}
}

// openLocalAs opens a store as one of several processes.
func openLocalAs(t *testing.T, fsys vfs.FS, dir, owner string) *objectstore.Local {
	t.Helper()
	s, err := objectstore.OpenLocal(fsys, dir, objectstore.LocalOptions{Owner: owner})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestBundleDamage flips the bytes of a bundle, open and closed: the object is damaged
// that has the byte, or all if it says what the bundle is, and it is told so of each,
// but for the last object of an open bundle, which may not have been stored. Others
// can put objects behind it.
func TestBundleDamage(t *testing.T) {
	const n = 5
	object := func(i int) []byte { return bytes.Repeat([]byte{byte(i)}, 40+i) }
	name := func(i int) string { return fmt.Sprintf("log/%015d", i) }
	build := func(closed bool) *vfs.MemFS {
		mem := vfs.NewMem()
		s := openLocal(t, mem, "objects")
		q := objectstore.NewSequence(s, "log", 1)
		for i := 1; i <= n; i++ {
			if err := q.PutIfAbsent(t.Context(), uint64(i), object(i)); err != nil {
				t.Fatal(err)
			}
		}
		if closed {
			if err := s.PutIfAbsent(t.Context(), name(n+1), nil); err != nil {
				t.Fatal(err)
			}
		}
		return mem
	}
	size := func(mem *vfs.MemFS, file string) int64 {
		info, err := mem.Stat(file)
		if errors.Is(err, fs.ErrNotExist) {
			return 0
		}
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	for _, closed := range []bool{false, true} {
		for _, file := range []string{"objects/" + name(1), fmt.Sprintf("objects/log/.%015d.end", 1)} {
			for at := range size(build(closed), file) {
				mem := build(closed)
				f, err := mem.OpenReadWrite(file, vfs.WriteCategoryUnspecified)
				if err != nil {
					t.Fatal(err)
				}
				b := make([]byte, 1)
				if _, err := f.ReadAt(b, at); err != nil {
					t.Fatal(err)
				}
				b[0] ^= 0x41
				if _, err := f.WriteAt(b, at); err != nil {
					t.Fatal(err)
				}
				_ = f.Close()
				s := openLocal(t, mem, "objects")
				if err := s.PutIfAbsent(t.Context(), name(n+2), nil); err != nil {
					t.Fatalf("byte %d of %s, closed %t: %v", at, file, closed, err)
				}
				if _, err := s.List(t.Context(), "", "", 0); err != nil {
					t.Fatalf("byte %d of %s, closed %t: %v", at, file, closed, err)
				}
				var bad []int
				for i := 1; i <= n; i++ {
					got, err := s.Get(t.Context(), name(i))
					if err == nil && bytes.Equal(got, object(i)) {
						continue
					}
					switch {
					case errors.Is(err, fault.Corruption), err == nil && len(got) == len(object(i)): // as if it had a file of its own
					case i == n && !closed && errors.Is(err, fault.NotFound):
					default:
						t.Errorf("byte %d of %s, closed %t: object %d has %d bytes, %v", at, file, closed, i, len(got), err)
					}
					bad = append(bad, i)
				}
				if at >= 64 && len(bad) > 1 {
					t.Errorf("byte %d of %s, closed %t: objects %v are damaged", at, file, closed, bad)
				}
				if len(bad) == 0 && !(closed && at >= 64) {
					t.Errorf("byte %d of %s, closed %t: nobody sees it", at, file, closed)
				}
			}
		}
	}
}

// FuzzBundle reads, closes and deletes whatever lies where a bundle would: no answer is
// an object that its checksums do not tell, and nothing is read that is not there.
func FuzzBundle(f *testing.F) {
	ctx := context.Background()
	file := "objects/log/" + fmt.Sprintf("%015d", 1)
	beside := func(kind string) string { return fmt.Sprintf("objects/log/.%015d.%s", 1, kind) }
	mem := vfs.NewMem()
	s, err := objectstore.OpenLocal(mem, "objects", objectstore.LocalOptions{})
	if err != nil {
		f.Fatal(err)
	}
	q := objectstore.NewSequence(s, "log", 1)
	for i := range uint64(4) {
		if err := q.PutIfAbsent(ctx, i+1, bytes.Repeat([]byte{byte(i)}, 10)); err != nil {
			f.Fatal(err)
		}
	}
	open := content(f, mem, file)
	if err := s.PutIfAbsent(ctx, fmt.Sprintf("log/%015d", 9), nil); err != nil {
		f.Fatal(err)
	}
	f.Add(open, []byte(nil), true)
	f.Add(open, []byte(nil), false)
	f.Add(content(f, mem, file), content(f, mem, beside("end")), true)
	f.Add(open[:len(open)-5], []byte{}, true)
	f.Fuzz(func(t *testing.T, run, end []byte, mend bool) {
		if mend {
			mendChecksums(run)
			mendChecksums(end)
		}
		mem := vfs.NewMem()
		s := openLocal(t, mem, "objects")
		if err := s.PutIfAbsent(ctx, "log/x", nil); err != nil {
			t.Fatal(err)
		}
		for name, data := range map[string][]byte{file: run, beside("run"): run, beside("open0"): {}, beside("end"): end} {
			if name == beside("end") && len(end) == 0 {
				continue
			}
			w, err := mem.Create(name, vfs.WriteCategoryUnspecified)
			if err == nil {
				_, err = w.Write(bytes.Clone(data))
			}
			if err = errors.Join(err, w.Close()); err != nil {
				t.Fatal(err)
			}
		}
		before := map[string][]byte{}
		infos, err := s.List(ctx, "log/0", "", 0)
		for _, info := range infos {
			if info.Size > int64(len(run)+len(end)) {
				t.Fatalf("%s is listed with %d bytes", info.Name, info.Size)
			}
			got, e := s.Get(ctx, info.Name)
			if e == nil && int64(len(got)) != info.Size {
				t.Fatalf("%s is listed with %d bytes and has %d", info.Name, info.Size, len(got))
			}
			if e == nil {
				before[info.Name] = got
			}
		}
		_ = s.PutIfAbsent(ctx, fmt.Sprintf("log/%015d", 1<<40), nil)
		for name, data := range before {
			if got, e := s.Get(ctx, name); err == nil && e == nil && !bytes.Equal(got, data) {
				t.Fatalf("%s changed", name)
			}
			_ = s.Delete(ctx, name)
		}
	})
}

func content(t testing.TB, fsys vfs.FS, name string) []byte {
	t.Helper()
	f, err := fsys.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// mendChecksums gives the headers in b, as far as they can be followed, their
// checksums.
func mendChecksums(b []byte) {
	table := crc32.MakeTable(crc32.Castagnoli)
	if len(b) < 64 {
		return
	}
	binary.LittleEndian.PutUint32(b[60:], crc32.Checksum(b[:60], table))
	for b = b[64:]; len(b) >= 32; {
		n := min(uint64(binary.LittleEndian.Uint32(b[4:])), uint64(len(b)-32))
		binary.LittleEndian.PutUint32(b[24:], crc32.Checksum(b[32:32+n], table))
		binary.LittleEndian.PutUint32(b[28:], crc32.Checksum(b[:28], table))
		b = b[32+n:]
	}
}
