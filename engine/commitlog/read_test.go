package commitlog

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/trestledb/trestle/engine/datadir/datadirtest"
)

// TestWindows: how much of a segment is read at a time changes nothing that is found, in
// sound logs, in those that a power cut leaves and in damaged ones.
func TestWindows(t *testing.T) {
	usual := windowBytes
	defer func() { windowBytes = usual }()
	found := func(files map[string][]byte, window int) (s string) {
		windowBytes = window
		l, err := Open(logOf(t, files), "log", Options{SegmentBytes: 4 << 10})
		if err != nil {
			return err.Error()
		}
		defer l.Close()
		recs, err := replay(l, Pos{})
		return fmt.Sprint(l.end, l.proven, l.unused, len(recs), recs, err)
	}
	kinds := map[bool]int{} // of outcomes: whether the log is refused
	for _, clean := range []bool{true, false} {
		var logs [2]map[string][]byte
		fs, _ := written(t, datadirtest.NewCrashableMem(), clean)
		logs[0] = segmentsOf(t, fs)
		fs, _ = rewritten(t, clean)
		logs[1] = segmentsOf(t, fs)
		for seed := range uint64(400) {
			rng := rand.New(rand.NewPCG(seed, 0))
			files := map[string][]byte{}
			for name, b := range logs[seed%2] {
				files[name] = slices.Clone(b)
			}
			names := slices.Sorted(func(yield func(string) bool) {
				for name := range files {
					if !yield(name) {
						return
					}
				}
			})
			for range rng.IntN(3) {
				b := files[names[len(names)-1-rng.IntN(min(2, len(names)))]]
				at := rng.IntN(len(b) + 1)
				switch b = b[at:]; rng.IntN(3) {
				case 0:
					clear(b[:min(len(b), rng.IntN(600))])
				case 1:
					clear(b) // what a power cut takes
				default:
					if len(b) > 0 {
						b[0] ^= 1 << rng.IntN(8)
					}
				}
			}
			want := found(files, 1<<20)
			kinds[len(want) > 0 && want[0] == 'o']++ // "open commit log"
			for _, window := range []int{frameHeaderLen, frameHeaderLen + 1, 300, 1000, 4095} {
				if got := found(files, window); got != want {
					t.Fatalf("clean %v, seed %d: in windows of %d bytes\n%s\nat once\n%s", clean, seed, window, got, want)
				}
			}
		}
	}
	if kinds[true] < 20 || kinds[false] < 200 {
		t.Errorf("outcomes: %v", kinds)
	}
}

// sizesIn returns the sizes of a log's files.
func sizesIn(t testing.TB, dir string) map[string]int64 {
	found := map[string]int64{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && e.Name() != lockName {
			found[e.Name()] = info.Size()
		}
	}
	return found
}

// killed returns a log as a process leaves it that is killed now.
func killed(t testing.TB, dir string) string {
	to := filepath.Join(t.TempDir(), "log")
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return to
}

// allocated returns once a log has the segment ahead.
func allocated(t testing.TB, w *FileWriter) {
	eventually(t, "the next segment is allocated", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.mu.spare != nil
	})
}

// TestLeftByKill: a start uses the segment that a process allocated which was killed, and
// gives back the blocks behind the end. However many are killed, they leave no more than one.
func TestLeftByKill(t *testing.T) {
	low := &lowDisk{FS: vfs.Default, low: new(atomic.Bool)}
	dir, size := filepath.Join(t.TempDir(), "log"), small().SegmentBytes
	end := int64(segmentHeaderLen + frameHeaderLen + recordHeaderLen + 100)
	want := map[string]int64{}
	for i := range uint64(6) {
		l := open(t, low, dir, small())
		if recs := mustReplay(t, l, Pos{}); len(recs) != int(i) {
			t.Fatalf("%d records of %d", len(recs), i)
		}
		low.low.Store(i == 4) // then the blocks are there when the file is opened
		w := start(t, l)
		low.low.Store(false)
		pos := appendRecord(t, w, 1, i, 100, nil)
		mustWait(t, w, pos)
		if pos.Segment != i+1 {
			t.Errorf("process %d writes to segment %d", i, pos.Segment)
		}
		allocated(t, w)
		want[segmentName(i+1)], want[segmentName(i+2)] = size, size
		if i > 0 {
			want[segmentName(i)] = end
		}
		if got := sizesIn(t, dir); !reflect.DeepEqual(got, want) {
			t.Fatalf("process %d: files of %v bytes, want %v", i, got, want)
		}
		dir = killed(t, dir)
	}
}

// TestLeftTorn: a segment that was begun and never durable is not used again, and neither is
// one before a file that is kept.
func TestLeftTorn(t *testing.T) {
	for _, kept := range []bool{false, true} {
		dir := filepath.Join(t.TempDir(), "log")
		w := start(t, open(t, vfs.Default, dir, small()))
		mustWait(t, w, appendRecord(t, w, 1, 0, 100, nil))
		allocated(t, w)
		dir = killed(t, dir)
		if kept { // its header damaged
			b := make([]byte, small().SegmentBytes)
			copy(b, "damaged")
			if err := os.WriteFile(filepath.Join(dir, segmentName(3)), b, 0o600); err != nil {
				t.Fatal(err)
			}
		} else { // the frame came to the disk, the header did not
			b := make([]byte, frameHeaderLen+8)
			putFrameHeader(b, 7, 2, 9000, 0, 1)
			f, err := os.OpenFile(filepath.Join(dir, segmentName(2)), os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt(b, 9000); err != nil {
				t.Fatal(err)
			}
			f.Close()
		}
		l := open(t, vfs.Default, dir, small())
		mustReplay(t, l, Pos{})
		w = start(t, l)
		pos := appendRecord(t, w, 1, 1, 100, nil)
		mustWait(t, w, pos)
		b, err := os.ReadFile(filepath.Join(dir, segmentName(pos.Segment)))
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := parseFrameHeader(window{data: b}, 2, 9000); ok || kept && pos.Segment != 4 {
			t.Errorf("segment %d is made of what was there", pos.Segment)
		}
		l.Close()
		l = open(t, vfs.Default, dir, small())
		if recs := mustReplay(t, l, Pos{}); len(recs) != 2 {
			t.Errorf("%d records", len(recs))
		}
	}
}

// quotaFS has room for so many bytes, and only tells when a file is made.
type quotaFS struct {
	vfs.FS
	dir   string
	bytes int64
	t     testing.TB
}

func (q *quotaFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	used := small().SegmentBytes
	for _, n := range sizesIn(q.t, q.dir) {
		used += n
	}
	if used > q.bytes {
		return nil, syscall.EDQUOT
	}
	return q.FS.Create(name, c)
}

// TestLeftOnQuota: where there is no room for another file a start goes on with that which is
// there, however often.
func TestLeftOnQuota(t *testing.T) {
	q := &quotaFS{FS: vfs.Default, dir: filepath.Join(t.TempDir(), "log"), bytes: 5 * small().SegmentBytes / 2, t: t}
	w := start(t, open(t, q, q.dir, small()))
	for i := range uint64(14) {
		mustWait(t, w, appendRecord(t, w, 1, i, 1000, nil))
	}
	allocated(t, w)
	for range 3 {
		q = &quotaFS{FS: vfs.Default, dir: killed(t, q.dir), bytes: q.bytes, t: t}
		l := open(t, q, q.dir, small())
		mustReplay(t, l, Pos{})
		w = start(t, l)
		r, err := w.Reserve(t.Context(), 100)
		if err != nil {
			t.Fatal(err)
		}
		w.Release(r)
	}
}

// TestStartAgain: a start that failed leaves no file open, and can be tried again.
func TestStartAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	w := start(t, open(t, vfs.Default, dir, small()))
	mustWait(t, w, appendRecord(t, w, 1, 0, 100, nil))
	allocated(t, w)
	dir = killed(t, dir)
	var denied atomic.Bool
	l := open(t, errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if denied.Load() && op.Kind == errorfs.OpFileSync {
			return syscall.EACCES
		}
		return nil
	})), dir, small())
	mustReplay(t, l, Pos{})
	opened := func() int {
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip("no /proc")
		}
		return len(fds)
	}
	before := opened()
	denied.Store(true)
	for range 3 {
		if _, err := l.Start(); err == nil {
			t.Fatal("started")
		}
	}
	if n := opened(); n != before {
		t.Errorf("%d files were open, and %d are", before, n)
	}
	denied.Store(false)
	mustWait(t, start(t, l), Pos{})
}

// TestReplayLargeFrames: of frames larger than a window few are in memory at a time.
func TestReplayLargeFrames(t *testing.T) {
	fs := vfs.NewMem()
	opts := Options{SegmentBytes: 1 << 20}
	l := open(t, fs, "log", opts)
	w := start(t, l)
	for i := range uint64(12) {
		mustWait(t, w, appendRecord(t, w, 1, i, int(1+i%2*11)<<20, nil))
	}
	l.Close()
	l = open(t, fs, "log", opts)
	var most, before uint64
	n := 0
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	before = m.HeapAlloc
	err := l.Replay(Pos{}, func(r Record) error {
		n++
		runtime.GC()
		runtime.ReadMemStats(&m)
		most = max(most, m.HeapAlloc-before)
		return nil
	})
	if err != nil || n != 12 {
		t.Fatalf("%d records, %v", n, err)
	}
	if most > 32<<20 {
		t.Errorf("%d MiB for frames of 12", most>>20)
	}
}
