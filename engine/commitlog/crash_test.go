package commitlog

import (
	"bytes"
	"context"
	"encoding/binary"
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

	"github.com/trestledb/trestle/engine/datadir/datadirtest"
	"github.com/trestledb/trestle/engine/fault"
)

// TestCrash appends, rotates and trims at random, loses power at random, and
// opens again, over and over: what is replayed is a prefix of what was
// appended since the redo point, whole, and holds all that was acknowledged.
func TestCrash(t *testing.T) {
	first, end := simSeeds(150)
	var reused int64
	for seed := first; seed < end; seed++ {
		n, err := crashRun(t, seed, noPlant)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		reused += n
	}
	t.Logf("%d segments were files used again", reused)
	if end-first >= 15 && reused < int64(end-first) {
		t.Errorf("only %d segments were files used again", reused)
	}
}

// TestCrashPlanted: TestCrash finds the mistakes that files which are used again
// make possible.
func TestCrashPlanted(t *testing.T) {
	for what, plant := range map[string]crashPlant{
		"accept a frame of an earlier use of the file":   {anyFrame: true},
		"use a file again before its new name is synced": {noRenameSync: true},
	} {
		t.Run(what, func(t *testing.T) {
			for seed := range uint64(400) {
				if _, err := crashRun(t, seed, plant); err != nil {
					msg, _, _ := strings.Cut(err.Error(), "\n")
					t.Logf("seed %d: %s", seed, msg)
					return
				}
			}
			t.Error("not found")
		})
	}
}

// A crashPlant makes the file system behave as if the log made a mistake.
type crashPlant struct {
	// anyFrame shows every frame in a segment as one of that segment.
	anyFrame bool
	// noRenameSync makes a sync of the directory behind a rename do nothing.
	noRenameSync bool
}

var noPlant crashPlant

// plantedFS is a file system with a crashPlant.
type plantedFS struct {
	vfs.FS
	plant   crashPlant
	renamed *atomic.Bool
}

func (fs plantedFS) Rename(from, to string) error {
	fs.renamed.Store(true)
	return fs.FS.Rename(from, to)
}

func (fs plantedFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := fs.FS.Open(name, opts...)
	if err != nil || !fs.plant.anyFrame || !strings.HasSuffix(name, segmentSuffix) {
		return f, err
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	number, _ := parseSegmentName(fs.PathBase(name))
	h, _, _ := parseSegmentHeader(b, number)
	for off := 0; off+frameHeaderLen <= len(b); off++ {
		of := uint64(binary.LittleEndian.Uint32(b[off+16:]))
		if f, ok := parseFrameHeader(window{data: b}, of, off); ok && string(b[off:off+4]) == frameMagic {
			f.payload = b[off+frameHeaderLen:]
			f.payload = f.payload[:min(len(f.payload), int(f.length))]
			binary.LittleEndian.PutUint64(b[off+8:], h.incarnation)
			binary.LittleEndian.PutUint32(b[off+16:], uint32(number))
			binary.LittleEndian.PutUint32(b[off+4:], checksum(b[off+8:off+frameHeaderLen]))
		}
	}
	return vfs.NewMemFile(b), nil
}

func (fs plantedFS) OpenDir(name string) (vfs.File, error) {
	f, err := fs.FS.OpenDir(name)
	if err == nil && fs.plant.noRenameSync {
		f = noRenameSync{f, fs.renamed}
	}
	return f, err
}

type noRenameSync struct {
	vfs.File
	renamed *atomic.Bool
}

func (f noRenameSync) Sync() error {
	if f.renamed.Swap(false) {
		return nil
	}
	return f.File.Sync()
}

// crashRun returns how many segments were files used again, and what is wrong.
func crashRun(t *testing.T, seed uint64, plant crashPlant) (reused int64, err error) {
	rng := rand.New(rand.NewPCG(seed, 77))
	opts := Options{SegmentBytes: 4 << 10 << rng.IntN(5), Durability: Durability(rng.IntN(2))}
	opts.SyncInterval = time.Duration(rng.IntN(3)) * time.Millisecond
	mem := datadirtest.NewCrashableMem()
	// Where blocks cannot be allocated zeros are written; only then has a file in
	// memory its full length from the start.
	zeros := rng.IntN(2) == 0
	var uses atomic.Int64
	defer func() { reused = uses.Load() }()
	on := func(fs *datadirtest.CrashableMem) vfs.FS {
		return plantedFS{errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind == errorfs.OpRename && strings.HasSuffix(op.Path, freeSuffix) {
				uses.Add(1)
			}
			if op.Kind == errorfs.OpFilePreallocate && zeros {
				return syscall.EOPNOTSUPP
			}
			return nil
		})), plant, new(atomic.Bool)}
	}
	l, err := Open(mem, "log", opts) // its directory is there
	if err != nil {
		return 0, err
	}
	l.Close()
	var kept []rec // what a replay must begin with
	var redo Pos   // where it starts
	seq := uint64(0)
	torn := map[uint64]bool{} // what a log that ends behind it has half of
	for range 6 {
		l, err := Open(on(mem), "log", opts)
		if err != nil {
			return 0, fmt.Errorf("open: %w", err)
		}
		defer l.Close()
		got, err := replay(l, redo)
		if err != nil {
			return 0, fmt.Errorf("replay from %v: %w", redo, err)
		}
		if !slices.Equal(got, kept) {
			return 0, fmt.Errorf("replayed %d records from %v, want %d", len(got), redo, len(kept))
		}
		started, err := l.Start()
		if err != nil {
			return 0, fmt.Errorf("start: %w", err)
		}
		w := started.(*FileWriter)
		// The power may go while this goroutine appends.
		var acked atomic.Int64 // of appended, how many must survive
		var appended []rec
		acked.Store(int64(len(kept)))
		appended = append(appended, kept...)
		crash := make(chan struct{})
		type cut struct {
			fs    *datadirtest.CrashableMem
			acked int64
		}
		cuts := make(chan cut, 1)
		cfg := vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 20, 50, 90, 100}[rng.IntN(5)], RNG: rand.New(rand.NewPCG(seed, rng.Uint64()))}
		killed := cfg.UnsyncedDataPercent == 100 // not a power cut: nothing written is lost
		go func() {
			<-crash
			n := acked.Load()
			cuts <- cut{mem.CrashClone(cfg), n}
		}()
		cutNow := sync.OnceFunc(func() { close(crash) })
		defer cutNow()
		steps := rng.IntN(90)
		at := rng.IntN(steps + 1)
		newRedo := redo
		for i := range steps {
			if i == at {
				cutNow()
			}
			together := make([]rec, 1+max(0, rng.IntN(8)-4))
			tablet := uint64(rng.IntN(3))
			for k := range together {
				seq++
				r := rec{tablet: tablet, seq: seq, size: rng.IntN(1500)}
				if rng.IntN(20) == 0 {
					r.size = rng.IntN(60 << 10)
				}
				together[k] = r
				torn[seq] = k < len(together)-1
			}
			appendTogether(t, w, together)
			r := together[0]
			if r.pos.Less(redo) {
				return 0, fmt.Errorf("appended at %v, before the redo point %v", r.pos, redo)
			}
			appended = append(appended, together...)
			switch rng.IntN(12) {
			case 0, 1, 2, 3:
				mustWait(t, w, r.pos)
				if opts.Durability == Sync || killed {
					acked.Store(int64(len(appended)))
				}
			case 4:
				if err := w.Rotate(context.Background()); err != nil {
					return 0, err
				}
			case 5, 6:
				// The redo point moves before the power is cut, or not at all:
				// the manifest is written before the log is trimmed. It may be
				// ahead of what the log has synced.
				if i < at {
					if p := appended[rng.IntN(len(appended))].pos; newRedo.Less(p) {
						newRedo = p
					}
					if err := w.Trim(newRedo); err != nil {
						return 0, err
					}
				}
			}
		}
		cutNow()
		c := <-cuts
		if err := l.Close(); err != nil {
			return 0, err
		}
		// What a crash left is found by looking once; it must be legal, and
		// every later look must find the same.
		redo = newRedo
		must := slices.IndexFunc(appended, func(r rec) bool { return !r.pos.Less(redo) })
		if must < 0 {
			must = len(appended)
		}
		mem = c.fs
		l, err = Open(on(mem), "log", opts)
		if err != nil {
			return 0, fmt.Errorf("open after the crash: %w\n%s", err, dumpString(mem))
		}
		got, err = replay(l, redo)
		l.Close()
		if err != nil {
			return 0, fmt.Errorf("replay from %v after the crash: %w\n%s", redo, err, dumpString(mem))
		}
		want := appended[must:]
		if len(got) > len(want) || !slices.Equal(got, want[:len(got)]) {
			return 0, fmt.Errorf("replay is not a prefix of what was appended")
		}
		if len(got) > 0 && torn[got[len(got)-1].seq] {
			return 0, fmt.Errorf("of what was appended together only a part is replayed")
		}
		if need := int(c.acked) - must; len(got) < need {
			return 0, fmt.Errorf("replayed %d records, %d were acknowledged (%d%% kept)\n%s", len(got), need, cfg.UnsyncedDataPercent, dumpString(mem))
		}
		kept = got
	}
	return 0, nil
}

// appendTogether appends recs, which are of one tablet, and gives them their
// positions.
func appendTogether(t testing.TB, w Writer, recs []rec) {
	t.Helper()
	size := (len(recs) - 1) * RecordBytes
	for _, r := range recs {
		size += r.size
	}
	r, err := w.Reserve(context.Background(), size)
	if err != nil {
		t.Fatal(err)
	}
	pos := w.Append(r, recs[0].tablet, recs[0].seq, recsOf(recs), nil)
	for i := range recs {
		recs[i].pos = pos
		pos.Offset += uint32(RecordBytes + recs[i].size)
	}
}

type recsOf []rec

func (r recsOf) Records() int { return len(r) }

func (r recsOf) AppendRecord(dst []byte, i int) ([]byte, int) {
	return payload(dst, r[i].tablet, r[i].seq, r[i].size), 1
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
func written(t testing.TB, fs *datadirtest.CrashableMem, clean bool) (*datadirtest.CrashableMem, []rec) {
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

// rewritten makes a log like written, of files that were all used before.
func rewritten(t testing.TB, clean bool) (*datadirtest.CrashableMem, []rec) {
	fs := datadirtest.NewCrashableMem()
	l := open(t, noBlocks(fs), "log", Options{SegmentBytes: 4 << 10})
	w := start(t, l)
	var recs []rec
	for i := range 200 {
		r := rec{tablet: 7, seq: uint64(i), size: 50 + 97*i%700}
		r.pos = appendRecord(t, w, r.tablet, r.seq, r.size, nil)
		mustWait(t, w, r.pos)
		recs = append(recs, r)
		if i == 100 || i > 120 && i < 180 {
			if err := w.Trim(r.pos); err != nil {
				t.Fatal(err)
			}
		}
	}
	crashed := fs.CrashClone(vfs.CrashCloneCfg{})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if !clean {
		fs = crashed
	}
	files := segmentsOf(t, fs)
	i := slices.IndexFunc(recs, func(r rec) bool { return files[segmentName(r.pos.Segment)] != nil })
	return fs, recs[i:]
}

// noBlocks is a file system that cannot allocate blocks.
func noBlocks(fs vfs.FS) vfs.FS {
	return errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFilePreallocate {
			return syscall.EOPNOTSUPP
		}
		return nil
	}))
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
	for i := range 4 {
		clean := i%2 == 0
		fs, recs := written(t, datadirtest.NewCrashableMem(), clean)
		if i >= 2 {
			fs, recs = rewritten(t, clean)
		}
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
	fs, recs := written(t, datadirtest.NewCrashableMem(), true)
	holes(t, fs, recs)
	fs, recs = rewritten(t, true)
	holes(t, fs, recs)
}

func holes(t *testing.T, fs *datadirtest.CrashableMem, recs []rec) {
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
	mem := datadirtest.NewCrashableMem()
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
	rewritten.Store(0)
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
	fs, _ := written(t, datadirtest.NewCrashableMem(), true)
	files := segmentsOf(t, fs)
	copied := bytes.Join([][]byte{files[segmentName(1)], files[segmentName(2)]}, nil)
	fs2 := datadirtest.NewCrashableMem()
	l := open(t, fs2, "log", small())
	w := start(t, l)
	r, err := w.Reserve(t.Context(), len(copied))
	if err != nil {
		t.Fatal(err)
	}
	mustWait(t, w, w.Append(r, 1, 1, record(func(b []byte) []byte { return append(b, copied...) }), nil))
	l.Close()
	got := segmentsOf(t, fs2)[segmentName(1)]
	if off := nextFrameHeader(window{data: got}, segmentHeader{segment: 1}, segmentHeaderLen+1); off != segmentHeaderLen+frameHeaderLen+recordHeaderLen+len(copied) {
		t.Fatalf("frame header found at %d", off)
	}
}

// Frames of another log do not pass for this one's, although they name the
// same segment and offset. Nothing but what follows can tell that they are not
// what was there.
func TestForeignFrames(t *testing.T) {
	a, recs := written(t, datadirtest.NewCrashableMem(), true)
	b, _ := written(t, datadirtest.NewCrashableMem(), true)
	files, other := segmentsOf(t, a), segmentsOf(t, b)
	for name := range files {
		last := name == slices.Max(slices.Collect(maps.Keys(files)))
		must := len(recs)
		if last {
			must = slices.IndexFunc(recs, func(r rec) bool { return segmentName(r.pos.Segment) == name })
		}
		mixed := maps.Clone(files)
		mixed[name] = append(slices.Clone(files[name][:segmentHeaderLen]), other[name][segmentHeaderLen:]...)
		fs := logOf(t, mixed)
		if err := check(fs, recs, must); err != nil {
			t.Fatal(err)
		}
		if err := Dump(io.Discard, fs, "log", DumpOptions{}); !last && !errors.Is(err, fault.Corruption) {
			t.Fatalf("dump of %s with foreign frames: %v", name, err)
		}
	}
}

func FuzzSegment(f *testing.F) {
	fs, _ := written(f, datadirtest.NewCrashableMem(), true)
	for _, b := range segmentsOf(f, fs) {
		f.Add(b, uint16(0), byte(0))
	}
	fs, _ = rewritten(f, false)
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

// forged returns a segment full of frames that claim to be of the segments from
// number on, and that all before them is durable: what a client can write into
// values that knows everything but the incarnation.
func forged(number uint64, size int) []byte {
	b := make([]byte, size)
	for off := segmentHeaderLen; off+frameHeaderLen+8 <= size; off += frameHeaderLen + 8 {
		putFrameHeader(b[off:off+frameHeaderLen+8], 4711, number+uint64(off/(frameHeaderLen+8))%3, uint32(off), uint32(off), 1)
	}
	return b
}

// FuzzReuse lets a segment be written into a file with anything in it: what is
// replayed after a crash is what was appended, no less and no more.
func FuzzReuse(f *testing.F) {
	fs, _ := rewritten(f, false)
	for _, b := range segmentsOf(f, fs) {
		f.Add(b, uint16(100))
	}
	for n := range uint64(3) {
		f.Add(forged(n+1, 4<<10), uint16(1000*n))
	}
	f.Fuzz(func(t *testing.T, stale []byte, size uint16) {
		const segment = 4 << 10
		fs := datadirtest.NewCrashableMem()
		opts := Options{SegmentBytes: segment}
		l := open(t, noBlocks(fs), "log", opts)
		w := start(t, l)
		want := []rec{{tablet: 1, seq: 1, size: 10}}
		want[0].pos = appendRecord(t, w, 1, 1, 10, nil)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		// The log goes on in the segment 2, of which this is to be the file.
		file, err := fs.Create("log/"+freeName(0), WriteCategory)
		if err != nil {
			t.Fatal(err)
		}
		file.Write(append(slices.Clone(stale), make([]byte, segment)...)[:segment])
		file.Sync()
		file.Close()
		l = open(t, noBlocks(fs), "log", opts)
		l.free = []uint64{0} // which no writer makes: it is older than segment 1
		w = start(t, l)
		crashed := fs.CrashClone(vfs.CrashCloneCfg{}) // nothing was written into it
		again := open(t, crashed, "log", opts)
		equal(t, mustReplay(t, again, Pos{}), want)
		start(t, again)
		for i := range 3 {
			r := rec{tablet: 1, seq: uint64(i + 2), size: int(size) * i % 3000}
			r.pos = appendRecord(t, w, 1, r.seq, r.size, nil)
			mustWait(t, w, r.pos)
			want = append(want, r)
			crashed := fs.CrashClone(vfs.CrashCloneCfg{})
			again := open(t, crashed, "log", opts)
			equal(t, mustReplay(t, again, Pos{}), want)
			if err := Dump(io.Discard, crashed, "log", DumpOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := fs.Stat("log/" + freeName(0)); err == nil {
			t.Fatal("the file was not used")
		}
	})
}

// TestWaitSynced: what was acknowledged before it survives a power cut, with durability async
// too, and whether or not the flusher has more to write.
func TestWaitSynced(t *testing.T) {
	for _, busy := range []bool{false, true} {
		fs := datadirtest.NewCrashableMem()
		l := open(t, fs, "log", Options{SegmentBytes: 64 << 10, Durability: Async, SyncInterval: 10 * time.Millisecond})
		if !busy {
			l.opts.SyncInterval = time.Hour
		}
		w := start(t, l)
		var want []rec
		put := func() {
			r := rec{tablet: 7, seq: uint64(len(want) + 1), size: 100}
			r.pos = appendRecord(t, w, r.tablet, r.seq, r.size, nil)
			mustWait(t, w, r.pos)
			want = append(want, r)
		}
		put() // a segment is synced as it begins
		stop := make(chan struct{})
		var writing sync.WaitGroup
		for range 3 {
			put()
			if busy {
				writing.Go(func() {
					for seq := uint64(1000); ; seq++ {
						select {
						case <-stop:
							return
						default:
							appendRecord(t, w, 8, seq, 10, nil)
						}
					}
				})
			}
			if err := w.WaitSynced(t.Context()); err != nil {
				t.Fatal(err)
			}
			crashed := fs.CrashClone(vfs.CrashCloneCfg{})
			close(stop)
			writing.Wait()
			stop = make(chan struct{})
			got := mustReplay(t, open(t, crashed, "log", Options{SegmentBytes: 64 << 10}), Pos{})
			equal(t, slices.DeleteFunc(got, func(r rec) bool { return r.tablet != 7 }), want)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if err := w.WaitSynced(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
