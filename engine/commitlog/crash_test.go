package commitlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/trestledb/trestle/engine/fault"
)

// TestCrash appends, rotates and trims at random, loses power at random, and
// opens again, over and over: what is replayed is a prefix of what was
// appended since the redo point, whole, and holds all that was acknowledged.
func TestCrash(t *testing.T) {
	rounds := 150
	if testing.Short() {
		rounds = 20
	}
	for seed := range rounds {
		crashRun(t, uint64(seed))
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func crashRun(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 77))
	opts := Options{SegmentBytes: 4 << 10 << rng.IntN(5), Durability: Durability(rng.IntN(2))}
	opts.SyncInterval = time.Duration(rng.IntN(3)) * time.Millisecond
	fs := vfs.NewCrashableMem()
	var kept []rec // what a replay must begin with
	var redo Pos   // where it starts
	seq := uint64(0)
	for range 6 {
		l, err := Open(fs, "log", opts)
		if err != nil {
			t.Errorf("open: %v", err)
			return
		}
		got, err := replay(l, redo)
		if err != nil {
			t.Errorf("replay from %v: %v", redo, err)
			return
		}
		if !slices.Equal(got, kept) {
			t.Errorf("replayed %d records from %v, want %d", len(got), redo, len(kept))
			return
		}
		started, err := l.Start()
		if err != nil {
			t.Errorf("start: %v", err)
			return
		}
		w := started.(*FileWriter)
		// The power may go while this goroutine appends.
		var acked atomic.Int64 // of appended, how many must survive
		var appended []rec
		acked.Store(int64(len(kept)))
		appended = append(appended, kept...)
		crash := make(chan struct{})
		type cut struct {
			fs    *vfs.MemFS
			acked int64
		}
		cuts := make(chan cut)
		cfg := vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 20, 50, 90, 100}[rng.IntN(5)], RNG: rand.New(rand.NewPCG(seed, rng.Uint64()))}
		killed := cfg.UnsyncedDataPercent == 100 // not a power cut: nothing written is lost
		go func() {
			<-crash
			n := acked.Load()
			cuts <- cut{fs.CrashClone(cfg), n}
		}()
		steps := rng.IntN(60)
		at := rng.IntN(steps + 1)
		newRedo := redo
		var redoFrom int
		for i := range steps {
			if i == at {
				close(crash)
			}
			seq++
			r := rec{tablet: uint64(rng.IntN(3)), seq: seq, size: rng.IntN(1500)}
			if rng.IntN(20) == 0 {
				r.size = rng.IntN(60 << 10)
			}
			r.pos = appendRecord(t, w, r.tablet, r.seq, r.size, nil)
			if r.pos.Less(redo) {
				t.Errorf("appended at %v, before the redo point %v", r.pos, redo)
				return
			}
			appended = append(appended, r)
			switch rng.IntN(12) {
			case 0, 1, 2, 3:
				mustWait(t, w, r.pos)
				if opts.Durability == Sync || killed {
					acked.Store(int64(len(appended)))
				}
			case 4:
				if err := w.Rotate(context.Background()); err != nil {
					t.Error(err)
				}
			case 5:
				// The redo point moves before the power is cut, or not at all:
				// the manifest is written before the log is trimmed. It may be
				// ahead of what the log has synced.
				if i < at {
					redoFrom = rng.IntN(len(appended))
					if p := appended[redoFrom].pos; newRedo.Less(p) {
						newRedo = p
					}
					if err := w.Trim(newRedo); err != nil {
						t.Error(err)
					}
				}
			}
		}
		if at >= steps {
			close(crash)
		}
		c := <-cuts
		if err := l.Close(); err != nil {
			t.Error(err)
			return
		}
		// What a crash left is found by looking once; it must be legal, and
		// every later look must find the same.
		redo = newRedo
		must := slices.IndexFunc(appended, func(r rec) bool { return !r.pos.Less(redo) })
		if must < 0 {
			must = len(appended)
		}
		fs = c.fs
		l, err = Open(fs, "log", opts)
		if err != nil {
			t.Errorf("open after the crash: %v\n%s", err, dumpString(fs))
			return
		}
		got, err = replay(l, redo)
		l.Close()
		if err != nil {
			t.Errorf("replay from %v after the crash: %v\n%s", redo, err, dumpString(fs))
			return
		}
		want := appended[must:]
		if len(got) > len(want) || !slices.Equal(got, want[:len(got)]) {
			t.Errorf("replay is not a prefix of what was appended")
			return
		}
		if need := int(c.acked) - must; len(got) < need {
			t.Errorf("replayed %d records, %d were acknowledged (%d%% kept)\n%s", len(got), need, cfg.UnsyncedDataPercent, dumpString(fs))
			return
		}
		kept = got
	}
}

func dumpString(fs vfs.FS) string {
	var b strings.Builder
	if err := Dump(&b, fs, "log", DumpOptions{}); err != nil {
		fmt.Fprintf(&b, "%v\n", err)
	}
	return b.String()
}

// written makes a log of several segments and returns its records. Unless it
// ends cleanly nothing proves the last of them durable.
func written(t testing.TB, fs *vfs.MemFS, clean bool) (*vfs.MemFS, []rec) {
	var recs []rec
	for _, n := range []int{12, 15} {
		l := open(t, fs, "log", Options{SegmentBytes: 4 << 10})
		w := start(t, l)
		for i := range n {
			r := rec{tablet: 7, seq: uint64(len(recs)), size: 50 + 97*i%700}
			r.pos = appendRecord(t, w, r.tablet, r.seq, r.size, nil)
			mustWait(t, w, r.pos)
			recs = append(recs, r)
		}
		crashed := fs.CrashClone(vfs.CrashCloneCfg{})
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if !clean {
			fs = crashed
		}
	}
	return fs, recs
}

// segmentsOf reads the segments of a log.
func segmentsOf(t testing.TB, fs vfs.FS) map[string][]byte {
	names, err := fs.List("log")
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string][]byte)
	for _, name := range names {
		if _, ok := parseSegmentName(name); !ok {
			continue
		}
		f, err := fs.Open("log/" + name)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		files[name] = b
	}
	return files
}

func logOf(t testing.TB, files map[string][]byte) vfs.FS {
	fs := vfs.NewMem()
	fs.MkdirAll("log", 0o755)
	for name, b := range files {
		f, err := fs.Create("log/"+name, WriteCategory)
		if err != nil {
			t.Fatal(err)
		}
		f.Write(slices.Clone(b))
		f.Close()
	}
	return fs
}

// check opens and replays a damaged log: it is refused as corrupt, or gives a
// prefix that holds at least must records.
func check(fs vfs.FS, recs []rec, must int) error {
	l, err := Open(fs, "log", Options{})
	if err == nil {
		defer l.Close()
		var got []rec
		got, err = replay(l, Pos{})
		if len(got) > len(recs) || !slices.Equal(got, recs[:len(got)]) {
			return fmt.Errorf("%d records replayed are not a prefix (%v)", len(got), err)
		}
		if err == nil && len(got) < must {
			return fmt.Errorf("%d of %d proven records replayed without an error", len(got), must)
		}
	}
	if err != nil && !errors.Is(err, fault.Corruption) {
		return fmt.Errorf("refused with %v", err)
	}
	if err != nil && !strings.Contains(err.Error(), segmentSuffix) {
		return fmt.Errorf("refusal does not name the file: %v", err)
	}
	// Dump says the same.
	var out strings.Builder
	dumpErr := Dump(&out, fs, "log", DumpOptions{Records: true})
	if (err != nil) != (dumpErr != nil) || dumpErr != nil && !errors.Is(dumpErr, fault.Corruption) {
		return fmt.Errorf("open and replay say %v, dump says %v:\n%s", err, dumpErr, out.String())
	}
	return nil
}

func TestBitFlips(t *testing.T) {
	for _, clean := range []bool{true, false} {
		fs, recs := written(t, vfs.NewCrashableMem(), clean)
		proven := len(recs)
		if !clean {
			proven--
		}
		files := segmentsOf(t, fs)
		step := 3
		if testing.Short() {
			step = 17
		}
		for name := range files {
			for i := rand.IntN(step); i < len(files[name]); i += step {
				damaged := maps.Clone(files)
				damaged[name] = slices.Clone(files[name])
				damaged[name][i] ^= 1 << rand.IntN(8)
				if err := check(logOf(t, damaged), recs, proven); err != nil {
					t.Fatalf("bit flip in %s at %d, clean end %v: %v", name, i, clean, err)
				}
			}
		}
	}
}

// TestHoles zeroes and cuts instead of flipping.
func TestHoles(t *testing.T) {
	fs, recs := written(t, vfs.NewCrashableMem(), true)
	files := segmentsOf(t, fs)
	rng := rand.New(rand.NewPCG(5, 5))
	last := ""
	for n := range files {
		last = max(last, n)
	}
	for range 400 {
		damaged := maps.Clone(files)
		var what string
		victim := rng.IntN(len(files))
		must := len(recs)
		for n, b := range files {
			b = slices.Clone(b)
			if victim--; victim == -1 {
				i := rng.IntN(len(b))
				switch rng.IntN(3) {
				case 0:
					what = fmt.Sprintf("%s zero from %d", n, i)
					clear(b[i:min(len(b), i+1+rng.IntN(600))])
				case 1:
					what = fmt.Sprintf("%s cut to %d", n, i)
					b = b[:i]
				case 2:
					what = fmt.Sprintf("%s noise at %d", n, i)
					for j := i; j < min(len(b), i+60); j++ {
						b[j] = byte(rng.Uint32())
					}
				}
				if n == last {
					must = 0 // its end, and all that proves it, may be what is gone
				}
			}
			damaged[n] = b
		}
		if err := check(logOf(t, damaged), recs, must); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
}

// TestSettleTail is the page cache after a failed fsync: bytes are read back
// that the disk does not have. What was replayed once must stay, and a sync
// alone does not write pages that the kernel believes to be clean.
func TestSettleTail(t *testing.T) {
	mem := vfs.NewCrashableMem()
	var broken atomic.Bool
	var rewritten atomic.Int64
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if broken.Load() && op.Kind == errorfs.OpFileSyncData {
			return syscall.EIO
		}
		if op.Kind == errorfs.OpFileWriteAt {
			rewritten.Store(op.Offset + 1)
		}
		return nil
	}))
	l := open(t, fs, "log", Options{})
	w := start(t, l)
	mustWait(t, w, appendRecord(t, w, 1, 1, 100, nil))
	proven := w.End()
	broken.Store(true)
	if err := w.Wait(t.Context(), appendRecord(t, w, 1, 2, 100, nil)); !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	l.Close()

	broken.Store(false)
	l = open(t, fs, "log", Options{})
	if n := len(mustReplay(t, l, Pos{})); n != 2 {
		t.Fatalf("%d records after the failure", n)
	}
	start(t, l)
	if n := rewritten.Load(); n == 0 || n > int64(proven.Offset)+1 {
		t.Fatalf("the tail was written again from offset %d, not from %v", n-1, proven)
	}
	l = open(t, mem.CrashClone(vfs.CrashCloneCfg{}), "log", Options{})
	if n := len(mustReplay(t, l, Pos{})); n != 2 {
		t.Fatalf("%d records after a power cut", n)
	}
}

// A segment whose records are not synced yet is not removed.
func TestTrimUnsynced(t *testing.T) {
	block := make(chan struct{})
	unblock := sync.OnceFunc(func() { close(block) })
	mem := vfs.NewMem()
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileSyncData {
			<-block
		}
		return nil
	}))
	l := open(t, fs, "log", small())
	w := start(t, l)
	t.Cleanup(unblock) // before Close, whatever happens
	appendRecord(t, w, 1, 1, 100, nil)
	if err := w.Rotate(t.Context()); err != nil {
		t.Fatal(err)
	}
	pos := appendRecord(t, w, 1, 2, 100, nil)
	if err := w.Trim(pos); err != nil {
		t.Fatal(err)
	}
	if _, err := mem.Stat("log/" + segmentName(1)); err != nil {
		t.Fatal(err)
	}
	unblock()
	mustWait(t, w, pos)
	if err := w.Trim(pos); err != nil {
		t.Fatal(err)
	}
	if _, err := mem.Stat("log/" + segmentName(1)); err == nil {
		t.Fatal("the segment is still there")
	}
}

// A value that is a copy of the log does not pass for the log.
func TestLogInsideLog(t *testing.T) {
	fs, _ := written(t, vfs.NewCrashableMem(), true)
	files := segmentsOf(t, fs)
	copied := bytes.Join([][]byte{files[segmentName(1)], files[segmentName(2)]}, nil)
	fs2 := vfs.NewCrashableMem()
	l := open(t, fs2, "log", small())
	w := start(t, l)
	r, err := w.Reserve(t.Context(), len(copied))
	if err != nil {
		t.Fatal(err)
	}
	mustWait(t, w, w.Append(r, 1, 1, 1, func(b []byte) []byte { return append(b, copied...) }, nil))
	l.Close()
	got := segmentsOf(t, fs2)[segmentName(1)]
	if off := nextFrameHeader(got, 1, segmentHeaderLen+1); off != segmentHeaderLen+frameHeaderLen+recordHeaderLen+len(copied) {
		t.Fatalf("frame header found at %d", off)
	}
}

// Frames of another log do not pass for this one's, although they name the
// same segment and offset.
func TestForeignFrames(t *testing.T) {
	a, recs := written(t, vfs.NewCrashableMem(), true)
	b, _ := written(t, vfs.NewCrashableMem(), true)
	files, other := segmentsOf(t, a), segmentsOf(t, b)
	for name := range files {
		mixed := maps.Clone(files)
		mixed[name] = append(slices.Clone(files[name][:segmentHeaderLen]), other[name][segmentHeaderLen:]...)
		fs := logOf(t, mixed)
		if err := check(fs, recs, len(recs)); err != nil {
			t.Fatal(err)
		}
		if err := Dump(io.Discard, fs, "log", DumpOptions{}); !errors.Is(err, fault.Corruption) {
			t.Fatalf("dump of %s with foreign frames: %v", name, err)
		}
	}
}

func FuzzSegment(f *testing.F) {
	fs, _ := written(f, vfs.NewCrashableMem(), true)
	for _, b := range segmentsOf(f, fs) {
		f.Add(b, uint16(0), byte(0))
	}
	f.Add([]byte{}, uint16(0), byte(0))
	f.Fuzz(func(t *testing.T, data []byte, at uint16, with byte) {
		data = slices.Clone(data) // a fuzz target must not change its input
		if int(at) < len(data) {
			data[at] = with
		}
		number := uint64(1)
		if h, state, _ := parseSegmentHeader(data, 2); state == headerValid {
			number = h.segment
		}
		fs := logOf(t, map[string][]byte{segmentName(number): data})
		l, err := Open(fs, "log", Options{})
		if err == nil {
			err = l.Replay(Pos{}, func(r Record) error {
				if r.Pos.Segment != number || int(r.Pos.Offset)+recordHeaderLen+len(r.Payload) > len(data) {
					t.Fatalf("record at %v", r.Pos)
				}
				return nil
			})
			// What opens can be started and opened again, the same.
			end := l.End()
			if w, err := l.Start(); err == nil {
				mustWait(t, w, appendRecord(t, w, 1, 1, 10, nil))
			} else {
				t.Fatal(err)
			}
			l.Close()
			if err == nil {
				l, err := Open(fs, "log", Options{})
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				n := 0
				if err := l.Replay(Pos{Segment: end.Segment, Offset: end.Offset}, func(r Record) error { n++; return nil }); err != nil || n != 1 {
					t.Fatalf("%d records after the old end, %v", n, err)
				}
			}
		}
		if k := fault.KindOf(err); err != nil && k != fault.Corruption && k != fault.FailedPrecondition {
			t.Fatalf("error %v", err)
		}
		Dump(io.Discard, fs, "log", DumpOptions{Records: true})
	})
}
