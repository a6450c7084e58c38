package standalone

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/lock"
)

// A plant is a mistake that TestStorm must find.
type plant struct {
	fs   func(vfs.FS) vfs.FS
	lock func(lock.Service) lock.Service
}

var plants = map[string]plant{
	"the log of the lock service is not synced":                         {fs: unsynced("d/lock/log/")},
	"the log of METADATA is not synced":                                 {fs: unsynced("d/mlog/")},
	"the log of tables is not synced":                                   {fs: unsynced("d/ulog/")},
	"SSTables are not synced":                                           {fs: unsynced("d/sst/")},
	"a change of the lock service is acknowledged before it is durable": {lock: func(l lock.Service) lock.Service { return &hastyLock{l} }},
	"a change of the lock service is acknowledged and not made":         {lock: func(l lock.Service) lock.Service { return &deafLock{l} }},
	"the master does not see backups":                                   {lock: func(l lock.Service) lock.Service { return &blindLock{l} }},
}

// planted is the mistake of this process: see TestPlantedBugs.
func planted() plant { return plants[os.Getenv("TRESTLE_SIM_PLANT")] }

func plantedFS(fs vfs.FS) vfs.FS {
	if p := planted(); p.fs != nil {
		return p.fs(fs)
	}
	return fs
}

func plantedLock(l lock.Service) lock.Service {
	if p := planted(); p.lock != nil {
		return p.lock(l)
	}
	return l
}

// unsynced makes file systems that do not sync what is below a directory.
func unsynced(below string) func(vfs.FS) vfs.FS {
	return func(fs vfs.FS) vfs.FS { return &unsyncedFS{fs, below} }
}

type unsyncedFS struct {
	vfs.FS
	below string
}

type unsyncedFile struct{ vfs.File }

func (unsyncedFile) Sync() error                { return nil }
func (unsyncedFile) SyncData() error            { return nil }
func (unsyncedFile) SyncTo(int64) (bool, error) { return true, nil }

func (fs *unsyncedFS) wrap(name string, f vfs.File, err error) (vfs.File, error) {
	if err == nil && strings.HasPrefix(name, fs.below) {
		f = unsyncedFile{f}
	}
	return f, err
}

func (fs *unsyncedFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.Create(name, c)
	return fs.wrap(name, f, err)
}

func (fs *unsyncedFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	f, err := fs.FS.OpenReadWrite(name, c, o...)
	return fs.wrap(name, f, err)
}

func (fs *unsyncedFS) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.ReuseForWrite(old, name, c)
	return fs.wrap(name, f, err)
}

// A hastyLock makes changes of records after it has said so.
type hastyLock struct{ lock.Service }

func (l *hastyLock) Put(ctx context.Context, key string, value []byte, version int64) (int64, error) {
	if version == 0 || !strings.HasPrefix(key, catalog.RecordsPrefix) {
		return l.Service.Put(ctx, key, value, version)
	}
	go func() {
		time.Sleep(10 * time.Millisecond)
		_, _ = l.Service.Put(context.WithoutCancel(ctx), key, value, version)
	}()
	return version + 1, nil
}

// A deafLock keeps no later value of a table's item.
type deafLock struct{ lock.Service }

func (l *deafLock) Put(ctx context.Context, key string, value []byte, version int64) (int64, error) {
	if version != 0 && strings.HasPrefix(key, catalog.TablesPrefix) && strings.Contains(string(value), "g0") {
		return version, nil
	}
	return l.Service.Put(ctx, key, value, version)
}

// A blindLock shows no backups to a caller that lists all of them, as the master does.
type blindLock struct{ lock.Service }

func (l *blindLock) List(ctx context.Context, prefix string) ([]lock.Item, int64, error) {
	items, revision, err := l.Service.List(ctx, prefix)
	if prefix == catalog.BackupsPrefix {
		items = nil
	}
	return items, revision, err
}

// TestPlantedBugs: TestStorm finds each of the mistakes. TRESTLE_SIM_PLANTS is how
// many seeds it has for that.
func TestPlantedBugs(t *testing.T) {
	if os.Getenv("TRESTLE_SIM_PLANT") != "" {
		t.Skip("this process has a mistake")
	}
	if testing.Short() {
		t.Skip("starts a process for each seed and mistake")
	}
	runs := 100 // most need one or two; what needs more is not found in 20 where others use the processors
	if v := os.Getenv("TRESTLE_SIM_PLANTS"); v != "" {
		var err error
		if runs, err = strconv.Atoi(v); err != nil {
			t.Fatal("TRESTLE_SIM_PLANTS:", err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(plants)) {
		t.Run(name, func(t *testing.T) {
			var out []byte
			for seed := 1; seed <= runs; seed++ {
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestStorm$", "-test.v")
				cmd.Env = append(os.Environ(), "TRESTLE_SIM_PLANT="+name, fmt.Sprint("TRESTLE_SIM_SEED=", seed), "TRESTLE_SIM_RUNS=1")
				out, _ = cmd.CombinedOutput()
				cancel()
				if bytes.Contains(out, []byte("--- FAIL: TestStorm/seed=")) || bytes.Contains(out, []byte("panic: ")) {
					t.Logf("after %d seeds: %.600s", seed, out)
					return
				}
			}
			t.Fatalf("not found in %d seeds, the last of them:\n%s", runs, out[max(0, len(out)-2000):])
		})
	}
}
