package tabletserver_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/datadir/datadirtest"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

// loud is a logger that nobody minds.
func loud() *slog.Logger { return slog.New(slog.DiscardHandler) }

// A faulty file system fails what a switch says.
type faulty struct {
	vfs.FS
	fail atomic.Pointer[func(errorfs.Op) error]
}

func newFaulty(fs vfs.FS) *faulty {
	f := new(faulty)
	f.FS = errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if fail := f.fail.Load(); fail != nil {
			return (*fail)(op)
		}
		return nil
	}))
	return f
}

// set makes what fail gives an error for fail; nil heals.
func (f *faulty) set(fail func(errorfs.Op) error) {
	if fail == nil {
		f.fail.Store(nil)
		return
	}
	f.fail.Store(&fail)
}

// full is a disk without space, for the files whose path begins with part. The
// blocks of log segments were allocated before.
func full(part string) func(errorfs.Op) error {
	return func(op errorfs.Op) error {
		switch op.Kind {
		case errorfs.OpFileWrite, errorfs.OpFileWriteAt:
			if strings.Contains(op.Path, "log/") {
				return nil
			}
			fallthrough
		case errorfs.OpCreate, errorfs.OpFilePreallocate, errorfs.OpMkdirAll:
			if strings.HasPrefix(op.Path, part) {
				return syscall.ENOSPC
			}
		}
		return nil
	}
}

// table makes a table of n rows and flushes it.
func filled(t testing.TB, s *Store, name string, n int) string {
	t.Helper()
	table := mustCreate(t, s, newSchema(name, 1000, "f"))
	for i := range n {
		mustPut(t, s, table, fmt.Sprintf("row%05d", i), setCell("f", "q", 1000, fmt.Sprintf("value %d of %s", i, name)))
	}
	if err := s.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	return table
}

// TestFlushedSurvives: with Async durability too, what was flushed and trimmed
// from the log survives a power cut, since METADATA is always synced.
func TestFlushedSurvives(t *testing.T) {
	fs := datadirtest.NewCrashableMem()
	o := Options{FS: fs, Dir: "d", Durability: commitlog.Async, NoBackground: true, SegmentBytes: 4 << 10}
	s := mustOpen(t, o)
	table := filled(t, s, "t", 200)
	want := content(s, table, row.All)
	o.FS = fs.CrashClone(vfs.CrashCloneCfg{})
	mustClose(t, s)
	s = mustOpen(t, o)
	defer mustClose(t, s)
	if got := content(s, table, row.All); got != want {
		t.Errorf("after a power cut %d bytes of %d are left", len(got), len(want))
	}
}

// TestDamagedRoot: a directory without its ROOT or FORMAT, or with damaged ones,
// is refused, and nothing in it is touched.
func TestDamagedRoot(t *testing.T) {
	build := func(t *testing.T) (*vfs.MemFS, Options, string, string) {
		fs := vfs.NewMem()
		o := Options{FS: fs, Dir: "d", NoBackground: true}
		s := mustOpen(t, o)
		table := filled(t, s, "t", 10)
		want := content(s, table, row.All)
		mustClose(t, s)
		return fs, o, table, want
	}
	read := func(fs vfs.FS, name string) []byte { return datadirtest.ReadFile(t, fs, name) }
	write := func(fs vfs.FS, name string, b []byte) { datadirtest.WriteFile(t, fs, name, b) }
	refused := func(t *testing.T, o Options, kinds ...fault.Kind) {
		t.Helper()
		s, err := Open(ctx, o)
		if err == nil {
			s.Close(ctx)
		}
		if !slices.Contains(kinds, fault.KindOf(err)) {
			t.Errorf("open: %v", err)
		}
	}
	for what, damage := range map[string]func(fs vfs.FS) error{
		"missing": func(fs vfs.FS) error { return fs.Remove("d/lock/ROOT") },
		"empty":   func(fs vfs.FS) error { write(fs, "d/lock/ROOT", nil); return nil },
		"flipped": func(fs vfs.FS) error {
			b := read(fs, "d/lock/ROOT")
			b[len(b)/2] ^= 1
			write(fs, "d/lock/ROOT", b)
			return nil
		},
	} {
		t.Run("the way on from a ROOT that is "+what, func(t *testing.T) {
			fs, o, table, want := build(t)
			if err := damage(fs); err != nil {
				t.Fatal(err)
			}
			if _, err := Open(ctx, o); fault.KindOf(err) != fault.Corruption || !strings.Contains(err.Error(), "copy lock/ROOT.copy, which is sound, over lock/ROOT") {
				t.Errorf("open: %v", err)
			}
			write(fs, "d/lock/ROOT", read(fs, "d/lock/ROOT.copy"))
			s := mustOpen(t, o)
			defer mustClose(t, s)
			if got := content(s, table, row.All); got != want {
				t.Errorf("got %s", got)
			}
		})
	}
	for _, name := range []string{"d/lock/ROOT", "d/FORMAT"} {
		t.Run("missing "+name, func(t *testing.T) {
			fs, o, table, want := build(t)
			b := read(fs, name)
			if err := fs.Remove(name); err != nil {
				t.Fatal(err)
			}
			refused(t, o, fault.Corruption)
			write(fs, name, b) // found again
			s := mustOpen(t, o)
			defer mustClose(t, s)
			if got := content(s, table, row.All); got != want {
				t.Errorf("got %s", got)
			}
		})
		t.Run("empty "+name, func(t *testing.T) {
			fs, o, _, _ := build(t)
			write(fs, name, nil)
			refused(t, o, fault.Corruption, fault.FailedPrecondition)
		})
		t.Run("flips in "+name, func(t *testing.T) {
			fs, o, table, want := build(t)
			good := read(fs, name)
			for i := 0; i < len(good); i += 1 + len(good)/40 {
				bad := slices.Clone(good)
				bad[i] ^= 1 << rand.IntN(8)
				write(fs, name, bad)
				s, err := Open(ctx, o)
				if err != nil {
					if k := fault.KindOf(err); k != fault.Corruption && k != fault.FailedPrecondition {
						t.Errorf("flip at %d: %v", i, err)
					}
					continue
				}
				// White space, say.
				if got := content(s, table, row.All); got != want {
					t.Errorf("flip at %d: got %s", i, got)
				}
				mustClose(t, s)
				good = read(fs, name)
			}
		})
	}
	t.Run("another version", func(t *testing.T) {
		fs, o, _, _ := build(t)
		write(fs, "d/FORMAT", []byte("trestle data format 7\n"))
		_, err := Open(ctx, o)
		if fault.KindOf(err) != fault.FailedPrecondition || !strings.Contains(err.Error(), "format 7") || !strings.Contains(err.Error(), "d ") {
			t.Errorf("open: %v", err)
		}
	})
	t.Run("another program's", func(t *testing.T) {
		fs, o, _, _ := build(t)
		write(fs, "d/FORMAT", []byte("rhubarb\n"))
		refused(t, o, fault.FailedPrecondition)
	})
	t.Run("missing SSTable", func(t *testing.T) {
		fs, o, table, _ := build(t)
		names, _ := fs.List("d/sst")
		for _, n := range names {
			if strings.HasSuffix(n, ".sst") {
				if err := fs.Remove("d/sst/" + n); err != nil {
					t.Fatal(err)
				}
			}
		}
		o.Log = loud()
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		s, err := Open(ctx, o)
		if err == nil { // METADATA was in its log alone
			_, err = readRows(s, &scan.Request{Table: table, Ranges: []row.Range{row.All}})
			s.Close(ctx)
		}
		if k := fault.KindOf(err); k != fault.Corruption {
			t.Errorf("without SSTables: %v", err)
		}
	})
}

func TestSecondProcess(t *testing.T) {
	for name, o := range map[string]Options{
		"memory": {FS: vfs.NewMem(), Dir: "d"},
		"disk":   {Dir: t.TempDir() + "/d"},
	} {
		s := mustOpen(t, o)
		if _, err := Open(ctx, o); fault.KindOf(err) != fault.FailedPrecondition || !strings.Contains(err.Error(), "another process") {
			t.Errorf("%s: a second open: %v", name, err)
		}
		mustPut(t, s, mustCreate(t, s, newSchema("t", 1000, "f")), "a", setCell("f", "q", 0, "v"))
		mustClose(t, s)
		s = mustOpen(t, o)
		mustClose(t, s)
	}
}

// TestFailingSync: once the commit log cannot be synced nothing is acknowledged,
// the store says that it has failed, and a restart has all that was
// acknowledged.
func TestFailingSync(t *testing.T) {
	for _, log := range []string{"d/ulog/", "d/mlog/", "d/lock/log/"} {
		t.Run(log, func(t *testing.T) {
			mem := datadirtest.NewCrashableMem()
			fs := newFaulty(mem)
			o := Options{FS: fs, Dir: "d", Log: loud()}
			s := mustOpen(t, o)
			table := filled(t, s, "t", 3)
			mustPut(t, s, table, "acked", setCell("f", "q", 1000, "v"))
			want := content(s, table, row.All)
			fs.set(func(op errorfs.Op) error {
				if strings.HasPrefix(op.Path, log) && (op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData) {
					return syscall.EIO
				}
				return nil
			})
			write := func() error { return s.MutateRow(ctx, table, entry("lost", setCell("f", "q", 1000, "v"))) }
			switch log {
			case "d/mlog/": // of METADATA, which a flush changes
				write = func() error { return s.Flush(ctx) }
				mustPut(t, s, table, "acked", setCell("f", "q", 1000, "w"))
				want = content(s, table, row.All)
			case "d/lock/log/":
				write = func() error { _, err := s.PutRecord(ctx, "lost", []byte("v"), 0); return err }
			}
			for range 3 {
				if err := write(); fault.KindOf(err) != fault.Unavailable {
					t.Errorf("write: %v", err)
				}
			}
			select {
			case <-s.Failed():
			case <-time.After(time.Minute):
				t.Error("the store has not failed")
			}
			if s.Err() == nil {
				t.Error("no reason given")
			}
			// What has failed may refuse to be read.
			if rows, err := readRows(s, &scan.Request{Table: table, Ranges: []row.Range{row.All}}); err == nil && show(rows) != want ||
				err != nil && fault.KindOf(err) != fault.Unavailable {
				t.Errorf("a reader sees what is not durable:\n%s%v", show(rows), err)
			}
			if _, _, err := s.GetRecord(ctx, "lost"); fault.KindOf(err) != fault.NotFound && fault.KindOf(err) != fault.Unavailable {
				t.Errorf("a record that is not durable: %v", err)
			}
			fs.set(nil) // the disk is well, the incarnation is over
			if err := write(); err == nil {
				t.Error("a write was acknowledged after the failure")
			}
			crashed := mem.CrashClone(vfs.CrashCloneCfg{})
			_ = s.Close(ctx) // says why
			for _, fs := range []vfs.FS{mem, crashed} {
				o.FS = fs
				s = mustOpen(t, o)
				got := content(s, table, row.Range{End: []byte("lost")})
				got += content(s, table, row.Range{Start: []byte("m")})
				if got != want {
					t.Errorf("after a restart:\n%swant:\n%s", got, want)
				}
				mustClose(t, s)
			}
		})
	}
}

// TestFullDisk fills the disk under one part of the data directory after the
// other: writes are Exhausted in the end, reads go on, and all is well by itself
// once there is room.
func TestFullDisk(t *testing.T) {
	for name, part := range map[string]string{
		"SSTables": "d/sst/", "ROOT": "d/lock/ROOT", "METADATA log": "d/mlog/", "lock service's log": "d/lock/log/", "log": "d/ulog/", "all": "d/",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { fullDisk(t, part) })
		})
	}
}

func fullDisk(t *testing.T, part string) {
	mem := datadirtest.NewCrashableMem()
	fs := newFaulty(mem)
	o := Options{FS: fs, Dir: "d", Log: loud(), MemtableBytes: 8 << 20, SegmentBytes: 1 << 20, LogBytes: 4 << 20}
	o.Tablet.MemtableBytes = 256 << 10
	o.Tablet.TargetRuns, o.Tablet.MaxRuns = 2, 8
	s := mustOpen(t, o)
	table := filled(t, s, "t", 10)
	fs.set(full(part))
	if part == "d/mlog/" { // it is flushed and used again as long as there is room for that
		fs.set(func(op errorfs.Op) error { return errors.Join(full(part)(op), full("d/sst/")(op)) })
	}
	big := strings.Repeat("x", 100_000)
	acked := map[string]bool{}
	records := map[string]bool{}
	exhausted := false
	for i := 0; i < 400 && !exhausted; i++ {
		key := fmt.Sprintf("big%05d", i)
		if part == "d/mlog/" {
			r := metadata.Row{Table: 1 << 60, Tablet: metadata.TabletID(1<<60 + i), End: fmt.Appendf(nil, "%060000d", i), Assignment: &metadata.Assignment{}}
			err := s.env.Meta.CAS(ctx, &r)
			if exhausted = fault.KindOf(err) == fault.Exhausted; !exhausted && err != nil {
				t.Fatalf("METADATA row: %v", err)
			}
			continue
		}
		if strings.HasPrefix(part, "d/lock/") {
			_, err := s.PutRecord(ctx, key, []byte(big), 0)
			if exhausted = fault.KindOf(err) == fault.Exhausted; err == nil {
				records[key] = true
			} else if !exhausted {
				t.Fatalf("record: %v", err)
			}
			continue
		}
		err := s.MutateRow(ctx, table, entry(key, setCell("f", "q", 1000, big)))
		if exhausted = fault.KindOf(err) == fault.Exhausted; err == nil {
			acked[key] = true
		} else if !exhausted {
			t.Fatalf("write: %v", err)
		}
	}
	if !exhausted {
		t.Fatal("writes never were Exhausted")
	}
	check := func(s *Store) {
		t.Helper()
		rows, err := readRows(s, &scan.Request{Table: table, Ranges: []row.Range{row.All}})
		if err != nil {
			t.Fatalf("read: %v", err)
		}
		found := map[string]bool{}
		for _, r := range rows {
			found[r.Key] = true
		}
		for k := range acked {
			if !found[k] {
				t.Errorf("row %s is lost", k)
			}
		}
		for k := range records {
			if _, _, err := s.GetRecord(ctx, k); err != nil {
				t.Errorf("record %s: %v", k, err)
			}
		}
	}
	check(s)
	if err := s.Err(); err != nil {
		t.Fatalf("the store failed: %v", err)
	}
	// A restart from here loses nothing either.
	crashed := mem.CrashClone(vfs.CrashCloneCfg{})
	fs.set(nil)
	time.Sleep(5 * time.Second)
	mustPut(t, s, table, "after", setCell("f", "q", 1000, big))
	if _, err := s.PutRecord(ctx, "after", []byte(big), 0); err != nil {
		t.Errorf("record: %v", err)
	}
	check(s)
	for i := range 100 { // goes on for good
		mustPut(t, s, table, fmt.Sprint("more", i), setCell("f", "q", 1000, big))
	}
	check(s)
	if err := s.Err(); err != nil {
		t.Errorf("the store failed: %v", err)
	}
	mustClose(t, s)
	o.FS = crashed
	s = mustOpen(t, o)
	check(s)
	mustClose(t, s)
}

// TestFullDiskInSplit: a disk that fills up in the middle of a split or merge
// holds it up, and neither loses anything nor ends the process.
func TestFullDiskInSplit(t *testing.T) {
	for n := range 6 {
		synctest.Test(t, func(t *testing.T) {
			fs := newFaulty(vfs.NewMem())
			s := mustOpen(t, Options{FS: fs, Dir: "d", Log: loud(), NoBackground: true})
			table := filled(t, s, "t", 10)
			want := content(s, table, row.All)
			// METADATA's log refuses from its n-th record on.
			left := n
			var full atomic.Bool
			full.Store(true)
			s.watchMeta(func(cas casFunc) casFunc {
				return func(c context.Context, r *metadata.Row) error {
					if left--; left < 0 && full.Load() {
						return errors.Join(fault.New(fault.Exhausted, "disk full"), metadata.ErrNotApplied)
					}
					return cas(c, r)
				}
			})
			go func() {
				time.Sleep(time.Minute)
				full.Store(false)
			}()
			try := func(do func() error) {
				for {
					err := do()
					if err == nil {
						return
					}
					if fault.KindOf(err) != fault.Exhausted {
						t.Fatal(err)
					}
					time.Sleep(time.Second)
				}
			}
			try(func() error { return s.SplitTablet(ctx, table, []byte("row00005")) })
			if got := content(s, table, row.All); got != want {
				t.Errorf("after the split: %s", got)
			}
			try(func() error { return s.MergeTablets(ctx, table, nil) })
			if got := content(s, table, row.All); got != want {
				t.Errorf("after the merge: %s", got)
			}
			if err := s.Err(); err != nil {
				t.Errorf("the store failed: %v", err)
			}
			time.Sleep(2 * time.Minute)
			mustClose(t, s)
		})
	}
}

// TestFlippedSSTable: a damaged block is Corruption for whoever needs it, never a
// wrong row, and other tablets serve on.
func TestFlippedSSTable(t *testing.T) {
	mem := vfs.NewMem()
	o := Options{FS: mem, Dir: "d", Log: loud(), NoBackground: true}
	s := mustOpen(t, o)
	bad, good := filled(t, s, "bad", 300), filled(t, s, "good", 300)
	wantBad, wantGood := content(s, bad, row.All), content(s, good, row.All)
	tt := s.tabletsOf(bad)[0]
	object := tt.Row().Files[0].Object
	mustClose(t, s)
	f, err := mem.OpenReadWrite("d/sst/"+object, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, _ := f.Stat()
	whole := make([]byte, info.Size())
	if _, err := f.ReadAt(whole, 0); err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	corrupt := 0
	for range 60 {
		at := rng.Int64N(info.Size())
		f.WriteAt([]byte{whole[at] ^ 1<<rng.IntN(8)}, at)
		s := mustOpen(t, o)
		rows, err := readRows(s, &scan.Request{Table: bad, Ranges: []row.Range{row.All}})
		switch {
		case err == nil && show(rows) == wantBad: // nobody needs that byte
		case fault.KindOf(err) == fault.Corruption:
			corrupt++
			if got := show(rows); !strings.HasPrefix(wantBad, got) {
				t.Errorf("flip at %d: wrong rows before the error:\n%s", at, got)
			}
			if s.Stats().Corruptions == 0 {
				t.Error("the corruption was not counted")
			}
		default:
			t.Errorf("flip at %d: %v\n%s", at, err, show(rows))
		}
		// A compaction does not launder it.
		bt := s.tabletsOf(bad)[0]
		bt.RequestMajor()
		if _, err := bt.Compact(ctx); err != nil && fault.KindOf(err) != fault.Corruption {
			t.Errorf("flip at %d: compaction: %v", at, err)
		}
		if got := content(s, good, row.All); got != wantGood {
			t.Errorf("flip at %d: another table gives %s", at, got)
		}
		mustPut(t, s, good, "row00000", setCell("f", "q", 1000, "value 0 of good"))
		if err := s.Err(); err != nil {
			t.Errorf("flip at %d: the store failed: %v", at, err)
		}
		mustClose(t, s)
		f.WriteAt(whole[at:at+1], at)
	}
	if corrupt < 30 {
		t.Errorf("only %d of 60 flips were noticed", corrupt)
	}
}

// TestReadErrors: a disk that cannot read is an error, not a missing row.
func TestReadErrors(t *testing.T) {
	fs := newFaulty(vfs.NewMem())
	s := mustOpen(t, Options{FS: fs, Dir: "d", Log: loud(), NoBackground: true})
	table := filled(t, s, "t", 300)
	want := content(s, table, row.All)
	mustClose(t, s)
	s = mustOpen(t, Options{FS: fs, Dir: "d", Log: loud(), NoBackground: true})
	defer mustClose(t, s)
	failures := 0
	for i := range 30 {
		n := i
		var mu sync.Mutex
		fs.set(func(op errorfs.Op) error {
			if op.Kind != errorfs.OpFileReadAt && op.Kind != errorfs.OpOpen || !strings.Contains(op.Path, "/sst/") {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			if n--; n < 0 {
				return syscall.EIO
			}
			return nil
		})
		rows, err := readRows(s, &scan.Request{Table: table, Ranges: []row.Range{row.All}, Reversed: i%2 == 1})
		if err != nil {
			failures++
		} else if len(rows) != 300 {
			t.Errorf("%d rows without an error", len(rows))
		}
		if _, err := s.ReadModifyWriteRow(ctx, table, []byte("row00007"), []row.Rule{{Family: "f", Qualifier: []byte("other"), IsAppend: true, Append: []byte("x")}}); err != nil {
			if errors.Is(err, syscall.EIO) == (fault.KindOf(err) == 0) {
				continue
			}
			t.Errorf("read-modify-write: %v", err)
		}
	}
	fs.set(nil)
	if failures == 0 {
		t.Error("nothing failed")
	}
	if got := content(s, table, row.Range{Start: []byte("row00008")}); !strings.HasSuffix(want, got) || got == "" {
		t.Errorf("after the disk has healed:\n%s", got)
	}
}

// TestAsyncKeepsOrder: with durability async a power cut takes the end of all writes. It does
// not take one and leave a later one, whose tablet was flushed.
func TestAsyncKeepsOrder(t *testing.T) {
	fs := datadirtest.NewCrashableMem()
	o := Options{FS: fs, Dir: "d", Durability: commitlog.Async, NoBackground: true}
	s := mustOpen(t, o)
	first, second := mustCreate(t, s, newSchema("first", 1000, "f")), mustCreate(t, s, newSchema("second", 1000, "f"))
	mustPut(t, s, first, "before", setCell("f", "q", 1000, "x")) // the first is synced
	mustPut(t, s, first, "r", setCell("f", "q", 1000, "x"))
	mustPut(t, s, second, "r", setCell("f", "q", 1000, "y"))
	if err := s.flush(ctx, s.tabletsOf(second)[0]); err != nil {
		t.Fatal(err)
	}
	o.FS = fs.CrashClone(vfs.CrashCloneCfg{})
	mustClose(t, s)
	s = mustOpen(t, o)
	defer mustClose(t, s)
	for _, table := range []string{second, first} {
		if got, err := readRows(s, &scan.Request{Table: table, Ranges: []row.Range{row.Single([]byte("r"))}}); err != nil || len(got) != 1 {
			t.Errorf("%s has %d rows, %v", table, len(got), err)
		}
	}
}
