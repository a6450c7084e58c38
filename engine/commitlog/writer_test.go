package commitlog

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/trestledb/trestle/engine/datadir/datadirtest"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// small options make segments change often.
func small() Options { return Options{SegmentBytes: 16 << 10} }

func open(t testing.TB, fs vfs.FS, dir string, opts Options) *FileLog {
	t.Helper()
	l, err := Open(fs, dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func start(t testing.TB, l *FileLog) *FileWriter {
	t.Helper()
	w, err := l.Start()
	if err != nil {
		t.Fatal(err)
	}
	return w.(*FileWriter)
}

// payload is a record's content, told by its tablet, sequence number and size.
func payload(dst []byte, tablet, seq uint64, size int) []byte {
	rng := rand.New(rand.NewPCG(tablet, seq))
	for range size / 8 {
		dst = binary.LittleEndian.AppendUint64(dst, rng.Uint64())
	}
	for range size % 8 {
		dst = append(dst, byte(rng.Uint32()))
	}
	return dst
}

// record is one record, with one sequence number, whose payload it appends.
type record func(dst []byte) []byte

func (r record) Records() int { return 1 }

func (r record) AppendRecord(dst []byte, _ int) ([]byte, int) { return r(dst), 1 }

func appendRecord(t testing.TB, w Writer, tablet, seq uint64, size int, sink Sink) Pos {
	t.Helper()
	r, err := w.Reserve(context.Background(), size)
	if err != nil {
		t.Fatal(err)
	}
	return w.Append(r, tablet, seq, record(func(dst []byte) []byte { return payload(dst, tablet, seq, size) }), sink)
}

// eventually returns when done does, which background work brings about.
func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	for limit := time.Now().Add(time.Minute); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("not after a minute: %s", what)
		}
	}
}

// healed returns when the writer has noticed that its disk has room again, and
// has appended the record of size bytes that tried it.
func healed(t testing.TB, w Writer, tablet, seq uint64, size int) (pos Pos) {
	t.Helper()
	eventually(t, "there is room for the log", func() bool {
		r, err := w.Reserve(t.Context(), size)
		if err == nil {
			pos = w.Append(r, tablet, seq, record(func(dst []byte) []byte { return payload(dst, tablet, seq, size) }), nil)
		} else if !errors.Is(err, fault.Exhausted) {
			t.Fatal(err)
		}
		return err == nil
	})
	return pos
}

func mustWait(t testing.TB, w Writer, pos Pos) {
	t.Helper()
	if err := w.Wait(context.Background(), pos); err != nil {
		t.Fatal(err)
	}
}

type rec struct {
	tablet, seq uint64
	size        int
	pos         Pos
}

// replay returns the records of the log, checking that their content is what
// payload makes of them.
func replay(l *FileLog, from Pos) (recs []rec, err error) {
	last := Pos{}
	err = l.Replay(from, func(r Record) error {
		if want := payload(nil, r.Tablet, r.FirstSeq, len(r.Payload)); string(want) != string(r.Payload) {
			return fmt.Errorf("record %v has wrong content", r.Pos)
		}
		if r.Pos.Less(from) || !last.Less(r.Pos) {
			return fmt.Errorf("record at %v after %v, replayed from %v", r.Pos, last, from)
		}
		last = r.Pos
		recs = append(recs, rec{r.Tablet, r.FirstSeq, len(r.Payload), r.Pos})
		return nil
	})
	return recs, err
}

func mustReplay(t testing.TB, l *FileLog, from Pos) []rec {
	t.Helper()
	recs, err := replay(l, from)
	if err != nil {
		t.Fatal(err)
	}
	return recs
}

func equal(t testing.TB, got, want []rec) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("replayed %d records, want %d", len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("record %d is %+v, want %+v", i, got[i], want[i])
		}
	}
}

func TestAppendReplay(t *testing.T) {
	for _, fs := range []struct {
		name string
		fs   vfs.FS
		dir  string
	}{{"mem", vfs.NewMem(), "log"}, {"disk", vfs.Default, filepath.Join(t.TempDir(), "log")}} {
		for _, durability := range []Durability{Sync, Async} {
			t.Run(fmt.Sprintf("%s/%d", fs.name, durability), func(t *testing.T) {
				dir := fmt.Sprintf("%s%d", fs.dir, durability)
				opts := small()
				opts.Durability = durability
				var want []rec
				rng := rand.New(rand.NewPCG(1, 2))
				for range 4 { // each round a process
					l := open(t, fs.fs, dir, opts)
					equal(t, mustReplay(t, l, Pos{}), want)
					for _, from := range []int{0, len(want) / 2, len(want) - 1} {
						if from >= 0 && from < len(want) {
							equal(t, mustReplay(t, l, want[from].pos), want[from:])
						}
					}
					w := start(t, l)
					for range 50 {
						r := rec{tablet: uint64(rng.IntN(3)), seq: uint64(len(want) + 1), size: rng.IntN(3000)}
						r.pos = appendRecord(t, w, r.tablet, r.seq, r.size, nil)
						want = append(want, r)
						if rng.IntN(4) == 0 {
							mustWait(t, w, r.pos)
						}
					}
					if !want[len(want)-1].pos.Less(w.End()) {
						t.Fatalf("end %v is not after %v", w.End(), want[len(want)-1].pos)
					}
					if err := l.Close(); err != nil {
						t.Fatal(err)
					}
				}
			})
		}
	}
}

// TestReplayPanics: a replay whose function panics leaves nothing behind that goes
// on reading: neither a goroutine, as TestMain finds, nor a race with the next one.
func TestReplayPanics(t *testing.T) {
	fs := vfs.NewMem()
	l := open(t, fs, "log", Options{SegmentBytes: 4 << 20})
	w := start(t, l)
	for seq := uint64(1); seq <= 600; seq++ { // a frame each, more than may wait to be replayed
		mustWait(t, w, appendRecord(t, w, 1, seq, 1<<10, nil))
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = open(t, fs, "log", Options{SegmentBytes: 4 << 20})
	func() {
		defer func() { _ = recover() }()
		_ = l.Replay(Pos{}, func(Record) error { panic("a mistake") })
	}()
	if recs := mustReplay(t, l, Pos{}); len(recs) != 600 {
		t.Errorf("%d records", len(recs))
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

func TestHugeRecord(t *testing.T) {
	t.Run("mem", func(t *testing.T) { hugeRecord(t, vfs.NewMem(), "log") })
	t.Run("disk", func(t *testing.T) { hugeRecord(t, vfs.Default, t.TempDir()) })
	// Without preallocation zeros are written instead.
	unsupported := errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFilePreallocate {
			return syscall.EOPNOTSUPP
		}
		return nil
	})
	t.Run("zeros/mem", func(t *testing.T) { hugeRecord(t, errorfs.Wrap(vfs.NewMem(), unsupported), "log") })
	t.Run("zeros/disk", func(t *testing.T) { hugeRecord(t, errorfs.Wrap(vfs.Default, unsupported), t.TempDir()) })
}

func hugeRecord(t *testing.T, fs vfs.FS, dir string) {
	l := open(t, fs, dir, small())
	w := start(t, l)
	var want []rec
	for i, size := range []int{10, 1 << 20, 10, 5 << 20, 0, 16 << 10, 100} {
		r := rec{tablet: 1, seq: uint64(i), size: size}
		r.pos = appendRecord(t, w, 1, r.seq, size, nil)
		want = append(want, r)
	}
	mustWait(t, w, want[len(want)-1].pos)
	l.Close()
	l = open(t, fs, dir, small())
	equal(t, mustReplay(t, l, Pos{}), want)

	w = start(t, l)
	if _, err := w.Reserve(context.Background(), MaxRecordBytes+1); !errors.Is(err, fault.Invalid) {
		t.Fatalf("oversized reservation: %v", err)
	}
}

func TestLock(t *testing.T) {
	dir := t.TempDir()
	l := open(t, vfs.Default, dir, Options{})
	if _, err := Open(vfs.Default, dir, Options{}); !errors.Is(err, fault.Unavailable) {
		t.Fatalf("second open: %v", err)
	}
	l.Close()
	open(t, vfs.Default, dir, Options{})
}

// orderSink checks that Durable comes in order and before the waiter wakes.
type orderSink struct{ last atomic.Uint64 }

func (s *orderSink) Durable(seq uint64) {
	if old := s.last.Swap(seq); old >= seq {
		panic(fmt.Sprintf("Durable(%d) after Durable(%d)", seq, old))
	}
}

func TestConcurrentAppend(t *testing.T) {
	fs := datadirtest.NewCrashableMem()
	opts := Options{SegmentBytes: 256 << 10, PendingBytes: 64 << 10}
	l := open(t, fs, "log", opts)
	w := start(t, l)
	const tablets, workers, each = 3, 16, 200
	var tablet [tablets]struct {
		sync.Mutex
		seq  uint64
		sink orderSink
	}
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(3, uint64(i)))
			for range each {
				id := rng.IntN(tablets)
				tab := &tablet[id]
				size := rng.IntN(2000)
				r, err := w.Reserve(t.Context(), size)
				if err != nil {
					t.Error(err)
					return
				}
				if rng.IntN(20) == 0 {
					w.Release(r)
					continue
				}
				tab.Lock()
				tab.seq++
				seq := tab.seq
				pos := w.Append(r, uint64(id), seq, record(func(dst []byte) []byte { return payload(dst, uint64(id), seq, size) }), &tab.sink)
				tab.Unlock()
				if err := w.Wait(t.Context(), pos); err != nil {
					t.Error(err)
					return
				}
				if tab.sink.last.Load() < seq {
					t.Errorf("waiter of %d woke before its sink", seq)
				}
			}
		})
	}
	wg.Wait()
	// The last group is accounted when the flusher looks for the next.
	eventually(t, "nothing is reserved or pending at rest", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.mu.reserved == 0 && w.mu.pending == 0
	})
	l = open(t, fs.CrashClone(vfs.CrashCloneCfg{}), "log", opts)
	var next [tablets]uint64
	for _, r := range mustReplay(t, l, Pos{}) {
		if next[r.tablet]++; r.seq != next[r.tablet] {
			t.Fatalf("tablet %d: record %d, want %d", r.tablet, r.seq, next[r.tablet])
		}
	}
	for i := range next {
		if next[i] != tablet[i].seq {
			t.Fatalf("tablet %d: replayed %d of %d", i, next[i], tablet[i].seq)
		}
	}
}

func TestTrimRotate(t *testing.T) {
	fs := vfs.NewMem()
	l := open(t, fs, "log", small())
	w := start(t, l)
	if err := w.Rotate(t.Context()); err != nil {
		t.Fatal(err)
	}
	var recs []rec
	for i := range 20 {
		r := rec{tablet: 1, seq: uint64(i), size: 100}
		r.pos = appendRecord(t, w, 1, r.seq, r.size, nil)
		recs = append(recs, r)
		if err := w.Rotate(t.Context()); err != nil {
			t.Fatal(err)
		}
		if r.pos.Segment != uint64(i+1) {
			t.Fatalf("record %d in segment %d", i, r.pos.Segment)
		}
	}
	mustWait(t, w, recs[19].pos)
	before := w.Bytes()
	if err := w.Trim(recs[10].pos); err != nil {
		t.Fatal(err)
	}
	if w.Bytes() >= before {
		t.Fatalf("%d bytes after trim, %d before", w.Bytes(), before)
	}
	if err := w.Trim(Pos{Segment: 1 << 31}); err != nil { // beyond the end keeps the last
		t.Fatal(err)
	}
	l.Close()
	l = open(t, fs, "log", small())
	equal(t, mustReplay(t, l, recs[19].pos), recs[19:])
	equal(t, mustReplay(t, l, Pos{}), recs[19:])
	if _, err := replay(l, recs[5].pos); !errors.Is(err, fault.Corruption) {
		t.Fatalf("replay from a trimmed redo point: %v", err)
	}
	if _, err := replay(l, Pos{Segment: 99}); !errors.Is(err, fault.Corruption) {
		t.Fatalf("replay from beyond the end: %v", err)
	}
}

// What is reserved in a large segment must fit into the next one before the
// large one is left.
func TestRotateReserved(t *testing.T) {
	l := open(t, vfs.NewMem(), "log", small())
	w := start(t, l)
	const size = 100 << 10
	r, err := w.Reserve(t.Context(), size)
	if err != nil {
		t.Fatal(err)
	}
	appendRecord(t, w, 1, 1, 10, nil)
	for spare := uint64(0); spare == 0; { // a small one, before Rotate asks for more
		w.mu.Lock()
		spare = w.mu.spare.room()
		w.mu.Unlock()
		time.Sleep(time.Millisecond)
	}
	if err := w.Rotate(t.Context()); err != nil {
		t.Fatal(err)
	}
	pos := w.Append(r, 1, 2, record(func(dst []byte) []byte { return payload(dst, 1, 2, size) }), nil)
	mustWait(t, w, pos)
	if pos.Segment != 2 {
		t.Fatalf("record in segment %d", pos.Segment)
	}
}

// TestReuse: a log whose end moves on while its front is trimmed creates no more
// files than it has at a time, over restarts too.
func TestReuse(t *testing.T) {
	t.Run("mem", func(t *testing.T) { reuse(t, noBlocks(datadirtest.NewCrashableMem()), "log") })
	t.Run("disk", func(t *testing.T) { reuse(t, vfs.Default, filepath.Join(t.TempDir(), "log")) })
}

func reuse(t *testing.T, base vfs.FS, dir string) {
	var created, renamed atomic.Int64
	fs := errorfs.Wrap(base, errorfs.InjectorFunc(func(op errorfs.Op) error {
		switch op.Kind {
		case errorfs.OpCreate:
			if !strings.HasSuffix(op.Path, lockName) {
				created.Add(1)
			}
		case errorfs.OpRename:
			renamed.Add(1)
		}
		return nil
	}))
	count := func() (live, free int) {
		names, err := base.List(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range names {
			if _, ok := parseSegmentName(n); ok {
				live++
			}
			if strings.HasSuffix(n, freeSuffix) {
				free++
			}
		}
		return live, free
	}
	opts := small()
	seq := uint64(0)
	var want []rec
	fill := func(w *FileWriter, n int) {
		for range n {
			seq++
			r := rec{tablet: 1, seq: seq, size: 1000}
			r.pos = appendRecord(t, w, 1, r.seq, r.size, nil)
			want = append(want, r)
		}
		mustWait(t, w, want[len(want)-1].pos)
	}
	for round := range 3 {
		l := open(t, fs, dir, opts)
		var from Pos
		if len(want) > 0 {
			from = want[0].pos
		}
		equal(t, mustReplay(t, l, from), want)
		w := start(t, l)
		created.Store(0)
		if round == 0 {
			fill(w, 150) // ten segments
		}
		made := created.Load()
		for range 40 {
			fill(w, 20)
			keep := max(0, len(want)-100)
			if err := w.Trim(want[keep].pos); err != nil {
				t.Fatal(err)
			}
			want = want[keep:]
			if live, free := count(); free > keepFree+1 || live > 12 { // one may be about to become a segment
				t.Fatalf("%d segments and %d files to be used again", live, free)
			}
		}
		if n := created.Load() - made; n > 4 {
			t.Errorf("round %d: %d files were created", round, n)
		}
		if n := renamed.Swap(0); n < 60 {
			t.Errorf("round %d: %d renames", round, n)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	// What is of no use goes.
	for i := range uint64(6) {
		f, err := base.Create(base.PathJoin(dir, freeName(1000+i)), WriteCategory)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	l := open(t, fs, dir, Options{SegmentBytes: 32 << 10})
	start(t, l)
	if _, free := count(); free != 0 {
		t.Errorf("%d files of another size are kept", free)
	}
}

// A full disk gets the files back that wait to be used again, at once for a
// segment of another size, and with the next Trim for others.
func TestReuseFullDisk(t *testing.T) {
	var full atomic.Bool
	mem := vfs.NewMem()
	fs := &lowDisk{FS: mem, low: &full}
	l := open(t, fs, "log", small())
	w := start(t, l)
	free := func() int {
		names, _ := mem.List("log")
		return len(slices.DeleteFunc(names, func(n string) bool { return !strings.HasSuffix(n, freeSuffix) }))
	}
	fill := func() Pos {
		var pos Pos
		for i := range 200 {
			pos = appendRecord(t, w, 1, uint64(i), 1000, nil)
		}
		mustWait(t, w, pos)
		return pos
	}
	if err := w.Trim(fill()); err != nil {
		t.Fatal(err)
	}
	if n := free(); n < keepFree-1 {
		t.Fatalf("%d files are kept", n)
	}
	full.Store(true)
	if _, err := w.Reserve(t.Context(), 100<<10); !errors.Is(err, fault.Exhausted) {
		t.Fatalf("a large record on a full disk: %v", err)
	}
	eventually(t, "no file is kept on a full disk", func() bool { return free() == 0 })
	full.Store(false)
	healed(t, w, 2, 1, 20<<10) // more than any segment has room for
	if err := w.Trim(fill()); err != nil {
		t.Fatal(err)
	}
	pos := fill()
	full.Store(true)
	if err := w.Trim(pos); err != nil {
		t.Fatal(err)
	}
	// One may be on its way to be the next segment.
	eventually(t, "no file is kept after Trim on a full disk", func() bool { return free() == 0 })
}

// lowDisk says that nothing is free.
type lowDisk struct {
	vfs.FS
	low *atomic.Bool
}

func (d *lowDisk) GetDiskUsage(string) (vfs.DiskUsage, error) {
	if d.low.Load() {
		return vfs.DiskUsage{}, nil
	}
	return vfs.DiskUsage{AvailBytes: 1 << 40}, nil
}

func TestMissingSegment(t *testing.T) {
	fs := vfs.NewMem()
	l := open(t, fs, "log", small())
	w := start(t, l)
	for i := range 5 {
		appendRecord(t, w, 1, uint64(i), 10, nil)
		w.Rotate(t.Context())
	}
	l.Close()
	fs.Remove("log/" + segmentName(3))
	l = open(t, fs, "log", small())
	for _, from := range []Pos{{}, {Segment: 1}, {Segment: 3, Offset: 64}} {
		if _, err := replay(l, from); !errors.Is(err, fault.Corruption) || !strings.Contains(err.Error(), segmentName(3)) {
			t.Fatalf("replay from %v: %v", from, err)
		}
	}
	if recs := mustReplay(t, l, Pos{Segment: 4}); len(recs) != 2 {
		t.Fatalf("replayed %d records", len(recs))
	}
}

func TestWaitContext(t *testing.T) {
	block := make(chan struct{})
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileSyncData {
			<-block
		}
		return nil
	}))
	opts := small()
	opts.PendingBytes = 1000
	l := open(t, fs, "log", opts)
	w := start(t, l)
	pos := appendRecord(t, w, 1, 1, 2000, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := w.Wait(ctx, pos); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("wait: %v", err)
	}
	if _, err := w.Reserve(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("reserve with too much pending: %v", err)
	}
	close(block)
	mustWait(t, w, pos)
	appendRecord(t, w, 1, 2, 10, nil)
}

func TestFailedSync(t *testing.T) {
	for _, kind := range []errorfs.OpKind{errorfs.OpFileWriteAt, errorfs.OpFileSyncData} {
		for round := range 50 {
			var armed, fired atomic.Bool
			var after atomic.Int64
			skip := rand.New(rand.NewPCG(uint64(round), uint64(kind))).IntN(30)
			mem := datadirtest.NewCrashableMem()
			fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
				if fired.Load() && (op.Kind == errorfs.OpFileWriteAt || op.Kind == errorfs.OpFileSyncData) {
					after.Add(1)
				}
				if armed.Load() && op.Kind == kind {
					if skip--; skip < 0 && !fired.Swap(true) {
						return syscall.EIO
					}
				}
				return nil
			}))
			l := open(t, fs, "log", Options{SegmentBytes: 1 << 20})
			w := start(t, l)
			armed.Store(true)
			var acked atomic.Uint64
			sink := &orderSink{}
			var order sync.Mutex
			var seq uint64
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					for {
						r, err := w.Reserve(context.Background(), 100)
						if err != nil {
							return
						}
						order.Lock()
						seq++
						s := seq
						pos := w.Append(r, 1, s, record(func(dst []byte) []byte { return payload(dst, 1, s, 100) }), sink)
						order.Unlock()
						if err := w.Wait(context.Background(), pos); err != nil {
							if !errors.Is(err, fault.Unavailable) || !errors.Is(err, syscall.EIO) {
								t.Errorf("wait: %v", err)
							}
							return
						}
						for {
							old := acked.Load()
							if s <= old || acked.CompareAndSwap(old, s) {
								break
							}
						}
					}
				})
			}
			wg.Wait()
			<-w.Failed()
			if !errors.Is(w.Err(), syscall.EIO) {
				t.Fatalf("err: %v", w.Err())
			}
			if err := l.Close(); !errors.Is(err, syscall.EIO) {
				t.Fatalf("close: %v", err)
			}
			if n := after.Load(); n != 0 {
				t.Fatalf("%d writes or syncs after the failure", n)
			}
			l2 := open(t, mem.CrashClone(vfs.CrashCloneCfg{}), "log", Options{SegmentBytes: 1 << 20})
			recs := mustReplay(t, l2, Pos{})
			if uint64(len(recs)) < acked.Load() || uint64(len(recs)) < sink.last.Load() {
				t.Fatalf("%d records after the crash, %d acknowledged, sink told %d", len(recs), acked.Load(), sink.last.Load())
			}
			l2.Close()
		}
	}
}

// fullDisk injects ENOSPC into what allocates.
func fullDisk(full *atomic.Bool) errorfs.Injector {
	return errorfs.InjectorFunc(func(op errorfs.Op) error {
		if full.Load() && (op.Kind == errorfs.OpFilePreallocate || op.Kind == errorfs.OpCreate) {
			return syscall.ENOSPC
		}
		return nil
	})
}

func TestFullDisk(t *testing.T) {
	var full atomic.Bool
	fs := errorfs.Wrap(vfs.NewMem(), fullDisk(&full))
	fillAndHeal(t, fs, "log", func() { full.Store(true) }, func() { full.Store(false) })
}

// fillAndHeal writes until the disk is full, checks that only Reserve says
// so and that writing goes on after heal, and that all of it is replayed.
func fillAndHeal(t *testing.T, fs vfs.FS, dir string, fill, heal func()) {
	opts := Options{SegmentBytes: 64 << 10}
	l := open(t, fs, dir, opts)
	w := start(t, l)
	var mu sync.Mutex
	var want []rec
	var refused atomic.Int64
	write := func(rng *rand.Rand) error {
		size := rng.IntN(8000)
		r, err := w.Reserve(t.Context(), size)
		if err != nil {
			return err
		}
		mu.Lock()
		seq := uint64(len(want) + 1)
		pos := w.Append(r, 1, seq, record(func(dst []byte) []byte { return payload(dst, 1, seq, size) }), nil)
		want = append(want, rec{1, seq, size, pos})
		mu.Unlock()
		return w.Wait(t.Context(), pos)
	}
	for round := range 3 {
		fill()
		refused.Store(0)
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(round), uint64(i)))
				for n := 0; n < 10; {
					if err := write(rng); err != nil {
						if !errors.Is(err, fault.Exhausted) {
							t.Errorf("write on a full disk: %v", err)
							return
						}
						refused.Add(1)
						n++
					}
				}
			})
		}
		wg.Wait()
		if w.Err() != nil || refused.Load() == 0 {
			t.Fatalf("refused %d, err %v", refused.Load(), w.Err())
		}
		heal()
		healed := time.Now()
		for write(rand.New(rand.NewPCG(9, 9))) != nil {
			if time.Since(healed) > time.Minute {
				t.Fatal("not healed after a minute")
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	l.Close()
	l = open(t, fs, dir, opts)
	equal(t, mustReplay(t, l, Pos{}), want)
	l.Close()
}

func TestFullDiskTmpfs(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("cannot mount a small file system: %v", err)
	}
	defer syscall.Unmount(dir, 0)
	ballast := filepath.Join(dir, "ballast")
	fillAndHeal(t, vfs.Default, filepath.Join(dir, "log"), func() {
		f, err := os.Create(ballast)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for buf := make([]byte, 4096); ; {
			if _, err := f.Write(buf); err != nil {
				return
			}
		}
	}, func() { os.Remove(ballast) })
}

const (
	killDir   = "COMMITLOG_TEST_KILL_DIR"
	killAsync = "COMMITLOG_TEST_KILL_ASYNC" // empty or one character
)

// TestKill kills a process that appends and finds what it acknowledged.
func TestKill(t *testing.T) {
	if dir := os.Getenv(killDir); dir != "" {
		l := open(t, vfs.Default, dir, Options{SegmentBytes: 64 << 10, Durability: Durability(len(os.Getenv(killAsync)))})
		seq := uint64(len(mustReplay(t, l, Pos{})))
		for w := start(t, l); ; seq++ {
			mustWait(t, w, appendRecord(t, w, 1, seq, int(seq*131%2000), nil))
			fmt.Printf("acked %d\n", seq)
		}
	}
	dir := t.TempDir()
	for i := range 4 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestKill$")
		cmd.Env = append(os.Environ(), killDir+"="+dir, killAsync+"="+"1"[:i%2])
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		acked := -1
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if _, err := fmt.Sscanf(lines.Text(), "acked %d", &acked); err != nil {
				t.Error(lines.Text())
			}
			if acked%200 == 199 {
				cmd.Process.Kill()
			}
		}
		cmd.Wait()
		l := open(t, vfs.Default, dir, Options{})
		recs := mustReplay(t, l, Pos{})
		if len(recs) <= acked || acked < 0 {
			t.Fatalf("%d records replayed, %d acknowledged", len(recs), acked+1)
		}
		for i, r := range recs {
			if r.seq != uint64(i) {
				t.Fatalf("record %d has sequence number %d", i, r.seq)
			}
		}
		l.Close()
	}
}

func TestDump(t *testing.T) {
	fs := vfs.NewMem()
	l := open(t, fs, "log", small())
	w := start(t, l)
	mustWait(t, w, appendRecord(t, w, 3, 41, 100, nil))
	mustWait(t, w, appendRecord(t, w, 4, 42, 200, nil))
	w.Rotate(t.Context())
	mustWait(t, w, appendRecord(t, w, 3, 43, 300, nil))
	l.Close()
	files := segmentsOf(t, fs)
	files[segmentName(1)][segmentHeaderLen+frameHeaderLen+50] ^= 1 // in record 41
	var b strings.Builder
	err := Dump(&b, logOf(t, files), "log", DumpOptions{Records: true, Describe: func(r Record) string { return fmt.Sprintf("<%d>", r.FirstSeq) }})
	if !errors.Is(err, fault.Corruption) {
		t.Errorf("dump: %v", err)
	}
	got := regexp.MustCompile("incarnation [0-9a-f]{16}").ReplaceAllString(b.String(), "incarnation X")
	const want = `000000000001.log  492 bytes, incarnation X, after 0:0
  CORRUPT at offset 64: frame payload does not match its checksum
  ...     at offset 228 a frame follows
  frame   at offset 228: 224 bytes, 1 records, durable below 228: ok
  record  at offset 268: tablet 4, seq 42+1, 200 bytes <42>
  end     at offset 492
000000000002.log  468 bytes, incarnation X, after 1:492
  frame   at offset 64: 324 bytes, 1 records, durable below 0: ok
  record  at offset 104: tablet 3, seq 43+1, 300 bytes <43>
  mark    at offset 428: closed cleanly
  end     at offset 468
`
	if got != want {
		t.Errorf("dump:\n%s\nwant:\n%s", got, want)
	}
}

// TestReservations holds several reservations over appends, rotations and a
// disk that fills and empties, and spends them in any order: Append panics if
// one of them does not fit into what is allocated.
func TestReservations(t *testing.T) {
	var full atomic.Bool
	fs := errorfs.Wrap(vfs.NewMem(), fullDisk(&full))
	l := open(t, fs, "log", small())
	w := start(t, l)
	rng := rand.New(rand.NewPCG(8, 8))
	type held struct {
		r    Reservation
		size int
	}
	var holding []held
	var want []rec
	refused := 0
	for range 4000 {
		switch k := rng.IntN(20); {
		case k == 0:
			full.Store(rng.IntN(2) == 0)
		case k == 1:
			if err := w.Rotate(t.Context()); err != nil && !errors.Is(err, fault.Exhausted) {
				t.Fatal(err)
			}
		case k < 12 && len(holding) < 12:
			size := rng.IntN(4000)
			if rng.IntN(30) == 0 {
				size = rng.IntN(100 << 10)
			}
			r, err := w.Reserve(t.Context(), size)
			if errors.Is(err, fault.Exhausted) {
				refused++
				time.Sleep(time.Millisecond)
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			holding = append(holding, held{r, size})
		case len(holding) > 0:
			i := rng.IntN(len(holding))
			h := holding[i]
			holding = append(holding[:i], holding[i+1:]...)
			if rng.IntN(8) == 0 {
				w.Release(h.r)
				continue
			}
			size := h.size
			if rng.IntN(3) == 0 {
				size = rng.IntN(size + 1) // less than reserved
			}
			seq := uint64(len(want))
			pos := w.Append(h.r, 1, seq, record(func(dst []byte) []byte { return payload(dst, 1, seq, size) }), nil)
			want = append(want, rec{1, seq, size, pos})
		}
		w.mu.Lock()
		reserved, cur, spare := w.mu.reserved, w.mu.cur.room(), w.mu.spare.room()
		w.mu.Unlock()
		if reserved > max(cur, spare) {
			t.Fatalf("%d bytes reserved, room for %d and %d", reserved, cur, spare)
		}
	}
	if refused == 0 {
		t.Error("the disk was never full")
	}
	l.Close()
	full.Store(false)
	l = open(t, fs, "log", small())
	equal(t, mustReplay(t, l, Pos{}), want)
}

// A log that starts on a full disk is up and refuses.
func TestStartFull(t *testing.T) {
	var full atomic.Bool
	full.Store(true)
	l := open(t, errorfs.Wrap(vfs.NewMem(), fullDisk(&full)), "log", small())
	w := start(t, l)
	if _, err := w.Reserve(t.Context(), 10); !errors.Is(err, fault.Exhausted) {
		t.Fatalf("reserve: %v", err)
	}
	full.Store(false)
	mustWait(t, w, healed(t, w, 1, 1, 10))
}
