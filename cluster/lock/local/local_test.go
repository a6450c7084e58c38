package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/lock/locktest"
	"github.com/trestledb/trestle/engine/datadir"
	"github.com/trestledb/trestle/engine/datadir/datadirtest"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func mustOpen(t *testing.T, fs vfs.FS) *Service {
	t.Helper()
	s, err := Open(t.Context(), Options{Dir: "d/lock", FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustClose(t *testing.T, s *Service) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func mustPut(t *testing.T, s *Service, key, value string, version int64) int64 {
	t.Helper()
	v, err := s.Put(t.Context(), key, []byte(value), version)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// newFS returns a file system that forgets what was not synced, with the
// directory above the service's.
func newFS(t *testing.T) *datadirtest.CrashableMem {
	fs := datadirtest.NewCrashableMem()
	if err := fs.MkdirAll("d", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := datadir.Sync(fs, "/"); err != nil {
		t.Fatal(err)
	}
	return fs
}

func TestService(t *testing.T) {
	locktest.Run(t, func(t *testing.T) lock.Service {
		s := mustOpen(t, newFS(t))
		t.Cleanup(func() { mustClose(t, s) })
		return s
	}, 0, nil)
}

// TestReopen: what was put is there after a restart, with its versions; what a
// session held is not; versions grow over restarts.
func TestReopen(t *testing.T) {
	fs := newFS(t)
	s := mustOpen(t, fs)
	v1 := mustPut(t, s, "a", "1", 0)
	v2 := mustPut(t, s, "a", "2", v1)
	gone := mustPut(t, s, "gone", "x", 0)
	if err := s.Delete(t.Context(), "gone", gone); err != nil {
		t.Fatal(err)
	}
	session, err := s.NewSession(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	held, err := session.Hold(t.Context(), "held", []byte("h"))
	if err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
	<-session.Done()
	if !session.Deadline().IsZero() {
		t.Error("a session outlives its service")
	}
	if _, err := s.Get(t.Context(), "a"); !errors.Is(err, fault.Unavailable) {
		t.Errorf("Get of a closed service: %v", err)
	}
	s = mustOpen(t, fs)
	defer mustClose(t, s)
	items, revision, err := s.List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	if len(items) != 1 || items[0].Key != "a" || string(items[0].Value) != "2" || items[0].Version != v2 || items[0].Created != v1 {
		t.Errorf("after a restart: %+v", items)
	}
	if revision <= held.Version {
		t.Errorf("revision %d after %d", revision, held.Version)
	}
	if v := mustPut(t, s, "gone", "y", 0); v <= held.Version {
		t.Errorf("version %d after %d", v, held.Version)
	}
	if err := s.Watch(t.Context(), "", v1, nil); !errors.Is(err, fault.Unavailable) {
		t.Errorf("Watch from before the restart: %v", err)
	}
}

// TestLocked: a directory is open in one process at a time.
func TestLocked(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(t.Context(), Options{Dir: dir + "/lock"})
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, s)
	if _, err := Open(t.Context(), Options{Dir: dir + "/lock"}); !errors.Is(err, fault.FailedPrecondition) {
		t.Errorf("a second process opens the directory: %v", err)
	}
}

// TestWatchMissed: a watcher that is too far behind is told to list again,
// rather than of some changes only.
func TestWatchMissed(t *testing.T) {
	s := mustOpen(t, newFS(t))
	defer mustClose(t, s)
	session, err := s.NewSession(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	_, first, err := s.List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for range keptEvents {
		i, err := session.Hold(t.Context(), "k", nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Delete(t.Context(), "k", i.Version); err != nil {
			t.Fatal(err)
		}
	}
	told := 0
	enough := errors.New("told of all")
	each := func(lock.Event) error {
		if told++; told == keptEvents {
			return enough
		}
		return nil
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.Watch(ctx, "", first, each); !errors.Is(err, fault.Unavailable) || told != 0 {
		t.Errorf("told of %d changes, then %v", told, err)
	}
	if err := s.Watch(ctx, "", first+keptEvents, each); !errors.Is(err, enough) {
		t.Errorf("told of %d changes, then %v", told, err)
	}
}

// TestFullDisk: a disk without room refuses changes, keeps what is there, and
// the service goes on when there is room again.
func TestFullDisk(t *testing.T) {
	var full atomic.Bool
	mem := newFS(t)
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if full.Load() && op.Kind == errorfs.OpCreate {
			return syscall.ENOSPC
		}
		return nil
	}))
	s := mustOpen(t, fs)
	defer mustClose(t, s)
	v := mustPut(t, s, "a", "1", 0)
	full.Store(true)
	var err error
	big := bytes.Repeat([]byte("x"), 1<<20)
	puts := 0
	for ; err == nil && puts < 100; puts++ {
		_, err = s.Put(t.Context(), fmt.Sprint("big", puts), big, 0)
	}
	if !errors.Is(err, fault.Exhausted) {
		t.Fatalf("after %d puts: %v", puts, err)
	}
	if i, err := s.Get(t.Context(), "a"); err != nil || i.Version != v {
		t.Errorf("on a full disk: %+v, %v", i, err)
	}
	full.Store(false)
	for until := time.Now().Add(30 * time.Second); err != nil && time.Now().Before(until); time.Sleep(time.Millisecond) {
		_, err = s.Put(t.Context(), "b", big, 0)
	}
	if err != nil {
		t.Errorf("when there is room again: %v", err)
	}
}

// a state is what a caller may find in the service: item values by key.
type state map[string]string

// TestCrash cuts the power at random writes: everything that was acknowledged
// is there, and of the one change that was under way all or nothing.
func TestCrash(t *testing.T) {
	for seed := range uint64(40) {
		crash(t, seed)
	}
}

func crash(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 0))
	fs := newFS(t)
	acked, versions := state{}, map[string]int64{}
	for range 4 {
		var mu sync.Mutex
		left := rng.IntN(120) + 1
		var clone *datadirtest.CrashableMem
		cfg := vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 20, 50, 90, 100}[rng.IntN(5)], RNG: rand.New(rand.NewPCG(rng.Uint64(), 1))}
		cut := make(chan struct{})
		mem := fs
		failing := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			if left--; left == 0 {
				clone = mem.CrashClone(cfg)
				close(cut)
			}
			if left <= 0 {
				return errors.New("the power is off")
			}
			return nil
		}))
		off := func() bool {
			select {
			case <-cut:
				return true
			default:
				return false
			}
		}
		before := maps.Clone(acked)
		after := maps.Clone(acked)
		s, err := Open(t.Context(), Options{Dir: "d/lock", FS: failing})
		if err != nil && !off() {
			t.Fatalf("seed %d: open: %v", seed, err)
		}
		// Background work may meet the cut behind a change that was acknowledged: that
		// one is the last.
		for step := 0; err == nil && !off() && step < 60; step++ {
			key := fmt.Sprint("k", rng.IntN(5))
			after = maps.Clone(acked)
			version := int64(0)
			if rng.IntN(4) == 0 {
				delete(after, key)
				err = s.Delete(t.Context(), key, versions[key])
				if _, there := acked[key]; !there && errors.Is(err, fault.Aborted) {
					err = nil
				}
			} else {
				size := rng.IntN(100)
				if rng.IntN(8) == 0 {
					size = 300 << 10 // so that memtables are flushed and segments end
				}
				value := fmt.Sprint(seed, step, string(bytes.Repeat([]byte{'v'}, size)))
				after[key] = value
				version, err = s.Put(t.Context(), key, []byte(value), versions[key])
			}
			if err == nil && !off() {
				acked, before = after, after
				versions[key] = version
			}
		}
		if s != nil {
			_ = s.Close() // the power may be off
		}
		if off() {
			fs = clone
		}
		s = mustOpen(t, fs)
		items, revision, err := s.List(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		got := state{}
		for _, i := range items {
			if i.Version > revision {
				t.Errorf("seed %d: item %s has version %d of revision %d", seed, i.Key, i.Version, revision)
			}
			got[i.Key] = string(i.Value)
		}
		if !maps.Equal(got, before) && !maps.Equal(got, after) {
			t.Fatalf("seed %d: got keys %v, acknowledged are %v, under way was %v", seed, keys(got), keys(before), keys(after))
		}
		acked, versions = got, map[string]int64{}
		for _, i := range items {
			versions[i.Key] = i.Version
		}
		mustClose(t, s)
	}
}

func keys(s state) []string { return slices.Sorted(maps.Keys(s)) }

func FuzzDecode(f *testing.F) {
	f.Add(encode(lock.Item{Version: 7, Created: 5, Value: []byte("v")}))
	f.Add([]byte{0x80})
	f.Add([]byte{5, 7})
	f.Fuzz(func(t *testing.T, b []byte) {
		var i lock.Item
		if err := decode(b, &i); err != nil {
			if !errors.Is(err, fault.Corruption) {
				t.Fatal(err)
			}
			return
		}
		var again lock.Item
		if err := decode(encode(i), &again); err != nil || again.Version != i.Version || again.Created != i.Created || !bytes.Equal(again.Value, i.Value) {
			t.Fatalf("%+v became %+v, %v", i, again, err)
		}
	})
}
