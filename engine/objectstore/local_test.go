package objectstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/trestledb/trestle/engine/datadir/datadirtest"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/objectstore/storetest"
)

func openLocal(t testing.TB, fs vfs.FS, dir string) *objectstore.Local {
	t.Helper()
	s, err := objectstore.OpenLocal(fs, dir, objectstore.LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestLocal(t *testing.T) {
	t.Run("memory", func(t *testing.T) {
		storetest.Run(t, func(t *testing.T) objectstore.Store { return openLocal(t, vfs.NewMem(), "objects") })
	})
	t.Run("disk", func(t *testing.T) {
		storetest.Run(t, func(t *testing.T) objectstore.Store {
			return openLocal(t, vfs.Default, filepath.Join(t.TempDir(), "a", "objects"))
		})
	})
}

// temps returns the files that unfinished objects left behind.
func temps(t *testing.T, fs vfs.FS, dir string) []string {
	t.Helper()
	names, err := fs.List(fs.PathJoin(dir, ".tmp"))
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestLeftoversAreRemoved(t *testing.T) {
	fs := vfs.NewMem()
	open := func(owner string) *objectstore.Local {
		s, err := objectstore.OpenLocal(fs, "objects", objectstore.LocalOptions{Owner: owner})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for _, owner := range []string{"ts1", "ts10"} {
		w, err := open(owner).Create(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Write([]byte("unfinished")); err != nil {
			t.Fatal(err)
		}
	}
	open("ts1")
	if left := temps(t, fs, "objects"); len(left) != 1 || !strings.HasPrefix(left[0], "ts10.") {
		t.Errorf("after ts1 came back there are %v, want only what ts10 writes", left)
	}
	s := open("")
	if left := temps(t, fs, "objects"); len(left) != 0 {
		t.Errorf("after the only owner came back there are %v", left)
	}
	if err := s.PutIfAbsent(t.Context(), "x", nil); err != nil {
		t.Error(err)
	}
	if left := temps(t, fs, "objects"); len(left) != 0 {
		t.Errorf("a finished object left %v", left)
	}
	if _, err := objectstore.OpenLocal(fs, "objects", objectstore.LocalOptions{Owner: "a.b"}); !errors.Is(err, fault.Invalid) {
		t.Errorf("an owner with a dot: %v", err)
	}
}

// TestAbandoned: what a command leaves unfinished that was killed is removed a day
// later, by any process; nothing else of others is.
func TestAbandoned(t *testing.T) {
	dir := t.TempDir()
	open := func(owner string) *objectstore.Local {
		s, err := objectstore.OpenLocal(vfs.Default, dir, objectstore.LocalOptions{Owner: owner})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for _, owner := range []string{objectstore.OnceOwner("host"), objectstore.OnceOwner("host"), "ts1"} {
		w, err := open(owner).Create(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Write([]byte("unfinished")); err != nil {
			t.Fatal(err)
		}
	}
	all := temps(t, vfs.Default, dir)
	slices.Sort(all)
	for i, name := range all { // the first, of a command, is younger
		at := time.Now().Add(-25 * time.Hour)
		if i == 0 {
			at = time.Now().Add(-23 * time.Hour)
		}
		if err := os.Chtimes(filepath.Join(dir, ".tmp", name), at, at); err != nil {
			t.Fatal(err)
		}
	}
	open("ts2")
	left := temps(t, vfs.Default, dir)
	slices.Sort(left)
	if len(left) != 2 || !strings.HasPrefix(left[0], "_host-") || !strings.HasPrefix(left[1], "ts1.") {
		t.Errorf("there are %v, want a young one of a command and that of ts1", left)
	}
}

// TestCrash stops the machine after each of many operations, with none, some
// and all of what was not synced on the disk.
func TestCrash(t *testing.T) {
	const seed = 1
	rnd := rand.New(rand.NewPCG(seed, 0))
	fs := datadirtest.NewCrashableMem()
	s := openLocal(t, fs, "data/objects")
	stored := map[string][]byte{}
	unfinished := 0
	for i := range 150 {
		name := fmt.Sprintf("d%d/e%d/%d", i%3, i%7, i)
		data := bytes.Repeat(fmt.Appendf(nil, "%d.", i), rnd.IntN(200_000)+1)
		switch i % 3 {
		case 0:
			if err := s.PutIfAbsent(t.Context(), name, data); err != nil {
				t.Fatal(err)
			}
			stored[name] = data
		default:
			w, err := s.Create(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			if err := w.Write(bytes.Clone(data)); err != nil {
				t.Fatal(err)
			}
			if i%3 == 1 {
				unfinished++
				break
			}
			if err := w.Finish(); err != nil {
				t.Fatal(err)
			}
			stored[name] = data
		}
		if i%10 != 9 {
			continue
		}
		for _, percent := range []int{0, 50, 100} {
			crashed := openLocal(t, fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rnd}), "data/objects")
			infos, err := crashed.List(t.Context(), "", "", 0)
			if err != nil {
				t.Fatal(err)
			}
			if len(infos) != len(stored) {
				t.Errorf("after operation %d and a crash there are %d objects, want %d", i, len(infos), len(stored))
			}
			for name, want := range stored {
				if got, err := crashed.Get(t.Context(), name); err != nil || !bytes.Equal(got, want) {
					t.Fatalf("after operation %d and a crash (%d%%) %s holds %d bytes, want %d; error %v", i, percent, name, len(got), len(want), err)
				}
			}
		}
	}
	if unfinished == 0 {
		t.Error("nothing was unfinished at a crash")
	}
}

// TestCrashDuringPut cuts a put short at each of its file operations, then
// crashes: the object is there whole, or not at all, and a put that succeeded
// is there.
func TestCrashDuringPut(t *testing.T) {
	data := bytes.Repeat([]byte("0123456789"), 100_000)
	rnd := rand.New(rand.NewPCG(1, 0))
	var seen []string
	for step := int32(0); ; step++ {
		mem := datadirtest.NewCrashableMem()
		s := openLocal(t, mem, "objects")
		if err := s.PutIfAbsent(t.Context(), "d/other", []byte("other")); err != nil {
			t.Fatal(err)
		}
		inj := errorfs.OnIndex(step)
		var failed errorfs.OpKind = -1
		var mu sync.Mutex
		armed := false
		fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			mu.Lock()
			defer mu.Unlock()
			if !armed {
				return nil
			}
			err := inj.MaybeError(op)
			if err != nil {
				failed = op.Kind
			}
			return err
		}))
		s = openLocal(t, fs, "objects")
		mu.Lock()
		armed = true
		mu.Unlock()
		putErr := s.PutIfAbsent(t.Context(), "d/x", data)
		mu.Lock()
		armed = false
		mu.Unlock()
		if putErr != nil && failed < 0 {
			t.Fatalf("step %d: %v without a fault", step, putErr)
		}
		seen = append(seen, fmt.Sprintf("%d:%v", failed, putErr == nil))
		for _, percent := range []int{0, 50, 100} {
			crashed := openLocal(t, mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rnd}), "objects")
			got, err := crashed.Get(t.Context(), "d/x")
			switch {
			case err == nil && !bytes.Equal(got, data):
				t.Errorf("step %d: after a crash the object holds %d other bytes", step, len(got))
			case err != nil && !errors.Is(err, fault.NotFound):
				t.Error(err)
			case err != nil && putErr == nil:
				t.Errorf("step %d: the put succeeded and after a crash the object is gone", step)
			}
			if got, err := crashed.Get(t.Context(), "d/other"); err != nil || string(got) != "other" {
				t.Errorf("step %d: another object became %q, %v", step, got, err)
			}
		}
		if failed < 0 {
			break // the put has no such step
		}
	}
	if len(seen) < 8 {
		t.Errorf("only these operations were made to fail: %v", seen)
	}
}

// TestLoserIsDurable: whoever is told that an object exists can rely on it
// even if the winner died between its link and its sync.
func TestLoserIsDurable(t *testing.T) {
	mem := datadirtest.NewCrashableMem()
	openLocal(t, mem, "objects")
	linked := false
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpLink {
			linked = true
		} else if linked && op.Kind == errorfs.OpOpenDir {
			return errorfs.ErrInjected
		}
		return nil
	}))
	winner := openLocal(t, fs, "objects")
	if err := winner.PutIfAbsent(t.Context(), "x", []byte("winner")); err == nil {
		t.Fatal("the winner's sync was not stopped")
	}
	crashed := openLocal(t, mem.CrashClone(vfs.CrashCloneCfg{}), "objects")
	if _, err := crashed.Get(t.Context(), "x"); !errors.Is(err, fault.NotFound) {
		t.Fatalf("the test proves nothing: before the loser's put the object is durable (%v)", err)
	}
	loser := openLocal(t, mem, "objects")
	if err := loser.PutIfAbsent(t.Context(), "x", []byte("loser")); !errors.Is(err, fault.AlreadyExists) {
		t.Fatal(err)
	}
	crashed = openLocal(t, mem.CrashClone(vfs.CrashCloneCfg{}), "objects")
	if got, err := crashed.Get(t.Context(), "x"); err != nil || string(got) != "winner" {
		t.Errorf("after a crash the object is %q, %v", got, err)
	}
}

func TestFullDisk(t *testing.T) {
	for _, kind := range []errorfs.OpKind{errorfs.OpCreate, errorfs.OpFileWrite, errorfs.OpFileSyncData, errorfs.OpLink} {
		for _, cause := range []error{syscall.ENOSPC, syscall.EIO} {
			mem := vfs.NewMem()
			inject := false
			fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
				if inject && op.Kind == kind {
					return &os.PathError{Op: "op", Path: op.Path, Err: cause}
				}
				return nil
			}))
			s := openLocal(t, fs, "objects")
			inject = true
			err := s.PutIfAbsent(t.Context(), "x", make([]byte, 600<<10))
			if !errors.Is(err, cause) {
				t.Errorf("operation %d: %v, want %v", kind, err, cause)
			}
			if got, want := errors.Is(err, fault.Exhausted), cause == syscall.ENOSPC; got != want {
				t.Errorf("operation %d: %v is exhausted: %v", kind, err, got)
			}
			inject = false
			if left := temps(t, mem, "objects"); len(left) != 0 {
				t.Errorf("operation %d: the failed put left %v", kind, left)
			}
			if _, err := s.Get(t.Context(), "x"); !errors.Is(err, fault.NotFound) {
				t.Errorf("operation %d: after the failed put: %v", kind, err)
			}
			if err := s.PutIfAbsent(t.Context(), "x", []byte("again")); err != nil {
				t.Errorf("operation %d: with space again: %v", kind, err)
			}
		}
	}
}

// lax is a store that forgets the condition of a put, as some S3 gateways do.
type lax struct {
	*objectstore.Local
	every int // ignores the condition of every n-th put
	mu    sync.Mutex
	puts  int
}

func (l *lax) PutIfAbsent(ctx context.Context, name string, data []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.puts++; l.puts%l.every == 0 {
		if err := l.Delete(ctx, name); err != nil {
			return err
		}
	}
	return l.Local.PutIfAbsent(ctx, name, data)
}

func TestProbeRefusesLaxStore(t *testing.T) {
	for _, every := range []int{1, 2, 64, 65} {
		s := &lax{Local: openLocal(t, vfs.NewMem(), "objects"), every: every}
		if err := objectstore.Probe(t.Context(), s); !errors.Is(err, fault.FailedPrecondition) {
			t.Errorf("a store that ignores the condition of one put in %d passes the probe: %v", every, err)
		}
		if left, err := s.List(t.Context(), "", "", 0); err != nil || len(left) != 0 {
			t.Errorf("the probe left %v, %v", left, err)
		}
	}
}

func TestCheckName(t *testing.T) {
	if err := objectstore.CheckName("sst/0001.sst"); err != nil {
		t.Error(err)
	}
	if err := objectstore.CheckName("sst/../x"); !errors.Is(err, fault.Invalid) {
		t.Error(err)
	}
}

func BenchmarkPutIfAbsent(b *testing.B) {
	for _, size := range []int{100, 64 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			s := openLocal(b, vfs.Default, b.TempDir())
			data := slices.Repeat([]byte("x"), size)
			i := 0
			for b.Loop() {
				i++
				if err := s.PutIfAbsent(b.Context(), fmt.Sprintf("x/%d", i), data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkCreate(b *testing.B) {
	const size = 64 << 20
	s := openLocal(b, vfs.Default, b.TempDir())
	block := make([]byte, 32<<10)
	b.SetBytes(size)
	b.ReportAllocs()
	for b.Loop() {
		w, err := s.Create(b.Context(), "x")
		if err != nil {
			b.Fatal(err)
		}
		for range size / len(block) {
			if err := w.Write(block); err != nil {
				b.Fatal(err)
			}
		}
		if err := w.Finish(); err != nil {
			b.Fatal(err)
		}
		if err := s.Delete(b.Context(), "x"); err != nil {
			b.Fatal(err)
		}
	}
}
