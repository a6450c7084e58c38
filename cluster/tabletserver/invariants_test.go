package tabletserver_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/datadir/datadirtest"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/tablet"
)

// TestI3_WhatWasReadStays: a value that a read returned is there after a power
// cut that comes right after the read: only what is durable is read.
func TestI3_WhatWasReadStays(t *testing.T) {
	fs := datadirtest.NewCrashableMem()
	o := Options{FS: fs, Dir: "d"}
	s := mustOpen(t, o)
	defer func() { mustClose(t, s) }()
	table := mustCreate(t, s, newSchema("t", 1000, "f"))
	read := func(s *Store) uint64 {
		t.Helper()
		rows, err := readRows(s, &scan.Request{Table: table, Ranges: []row.Range{row.Single([]byte("r"))}})
		if err != nil {
			t.Error(err)
		}
		if len(rows) == 0 {
			return 0
		}
		return binary.BigEndian.Uint64(rows[0].Cells[0].Value)
	}
	ctx, cancel := context.WithCancel(ctx)
	var writer sync.WaitGroup
	writer.Go(func() {
		for n := uint64(1); ctx.Err() == nil; n++ {
			if err := s.MutateRow(context.Background(), table, entry("r", setCell("f", "q", 1000, string(binary.BigEndian.AppendUint64(nil, n))))); err != nil {
				t.Error(err)
			}
			if n%500 == 0 {
				if err := s.Flush(context.Background()); err != nil {
					t.Error(err)
				}
			}
		}
	})
	for n := range 30 {
		time.Sleep(time.Millisecond)
		seen := read(s)
		o.FS = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50 * (n % 2), RNG: rand.New(rand.NewPCG(uint64(n), 1))})
		after := mustOpen(t, o)
		if got := read(after); got < seen {
			t.Errorf("%d was read, and after a power cut %d", seen, got)
		}
		mustClose(t, after)
	}
	cancel()
	writer.Wait()
}

// tiles reports tablets of a table that do not tile the key space.
func tiles(t *testing.T, s *Store, table string) int {
	t.Helper()
	list := s.tabletsOf(table)
	var end []byte
	for i, tt := range list {
		r := tt.Row()
		if !bytes.Equal(r.Start, end) || i > 0 && len(r.Start) == 0 || r.Op != nil {
			t.Errorf("tablet %d of %d begins at %q, the one before ends at %q; op %+v", i, len(list), r.Start, end, r.Op)
		}
		end = r.End
	}
	if len(end) > 0 {
		t.Errorf("the last tablet ends at %q", end)
	}
	return len(list)
}

// TestI5_TabletsTile and TestI13_RecoveryIsIdempotent: METADATA changes stop at
// every step of a split and of a merge in turn, as a crash there does; whoever
// opens what is left, cut off again at every step of that, finds tablets that tile
// the key space, none of them in the middle of anything, and all rows.
func TestI5_TabletsTile(t *testing.T)           { interrupted(t, false) }
func TestI13_RecoveryIsIdempotent(t *testing.T) { interrupted(t, true) }

func interrupted(t *testing.T, again bool) {
	for _, merge := range []bool{false, true} {
		for step := range 16 { // before the first change, after it, before the second, and so on
			if testing.Short() && step%4 != 1 {
				continue
			}
			fs := datadirtest.NewCrashableMem()
			o := Options{FS: fs, Dir: "d", NoBackground: true, Log: loud(), Tend: 10 * time.Millisecond}
			s := mustOpen(t, o)
			table := filled(t, s, "t", 20)
			if merge {
				if err := s.SplitTablet(ctx, table, []byte("row00010")); err != nil {
					t.Fatal(err)
				}
			}
			// A row whose SSTable is dropped, with what says so, while it is in the log.
			if err := s.Flush(ctx); err != nil {
				t.Fatal(err)
			}
			mustPut(t, s, table, "row00010x", setCell("f", "q", 1000, "dropped"))
			if err := s.Flush(ctx); err != nil {
				t.Fatal(err)
			}
			if err := s.DropRowRange(ctx, table, []byte("row00010x")); err != nil {
				t.Fatal(err)
			}
			mustPut(t, s, table, "row00003", setCell("f", "q2", 1000, "in the log"))
			want := content(s, table, row.All)
			var clone *datadirtest.CrashableMem
			left := step
			moment := func() {
				if left == 0 && clone == nil {
					clone = fs.CrashClone(vfs.CrashCloneCfg{})
				}
				left--
			}
			s.watchMeta(func(cas casFunc) casFunc {
				return func(c context.Context, r *metadata.Row) error {
					moment()
					defer moment()
					return cas(c, r)
				}
			})
			var err error
			if merge {
				err = s.MergeTablets(ctx, table, nil)
			} else {
				err = s.SplitTablet(ctx, table, []byte("row00010"))
			}
			if err != nil {
				t.Fatal(err)
			}
			if clone == nil { // there are fewer steps
				clone = fs.CrashClone(vfs.CrashCloneCfg{})
			}
			mustClose(t, s)
			images := []*datadirtest.CrashableMem{clone}
			if again {
				// Whatever a recovery had written when it was cut off itself.
				for n := range 30 {
					o.FS = images[len(images)-1]
					c, cut := context.WithCancel(ctx)
					if n%3 == 0 {
						cut()
					}
					if s, err := Open(c, o); err == nil {
						images = append(images, o.FS.(*datadirtest.CrashableMem).CrashClone(vfs.CrashCloneCfg{
							UnsyncedDataPercent: n % 101, RNG: rand.New(rand.NewPCG(uint64(n), 2))}))
						mustClose(t, s)
					}
					cut()
				}
			}
			for _, image := range images {
				o.FS = image
				s := mustOpen(t, o)
				n := tiles(t, s, table)
				if n != 1 && n != 2 {
					t.Errorf("merge=%v step %d: %d tablets", merge, step, n)
				}
				if got := content(s, table, row.All); got != want {
					t.Errorf("merge=%v step %d: got %s", merge, step, got)
				}
				checkStore(t, s)
				mustClose(t, s)
			}
		}
	}
}

// TestI6_VersionsGrow: over writes, flushes, compactions, dropped ranges and power
// cuts, the version of a METADATA row grows with every change, what it says of
// sequence numbers never falls, and a record after a replay is newer than all that
// was replayed.
func TestI6_VersionsGrow(t *testing.T) {
	fs := datadirtest.NewCrashableMem()
	o := Options{FS: fs, Dir: "d", NoBackground: true}
	r := rand.New(rand.NewPCG(6, 6))
	rows := map[metadata.TabletID]metadata.Row{}
	var table string
	var s *Store
	seen := func(what string, next *metadata.Row) {
		t.Helper()
		old := rows[next.Tablet]
		if next.Version < old.Version || next.MaxSeq < old.MaxSeq || next.FlushedSeq < old.FlushedSeq || next.NextRun < old.NextRun {
			t.Errorf("%s: version %d, MaxSeq %d, FlushedSeq %d, run %d come after %d, %d, %d, %d", what, next.Version, next.MaxSeq, next.FlushedSeq, next.NextRun,
				old.Version, old.MaxSeq, old.FlushedSeq, old.NextRun)
		}
		for _, f := range next.Files {
			if f.MaxSeq > next.MaxSeq {
				t.Errorf("%s: a file has sequence number %d, MaxSeq is %d", what, f.MaxSeq, next.MaxSeq)
			}
		}
		rows[next.Tablet] = *next.Clone()
	}
	start := func() {
		s = mustOpen(t, o)
		for _, tt := range s.allTablets() {
			seen("open", tt.Row())
		}
		s.watchMeta(func(cas casFunc) casFunc {
			return func(c context.Context, r *metadata.Row) error {
				before := r.Version
				err := cas(c, r)
				if err == nil && before == rows[r.Tablet].Version && r.Version != before+1 {
					t.Errorf("version %d follows %d", r.Version, before)
				}
				if err == nil {
					seen("change", r)
				}
				return err
			}
		})
	}
	start()
	table = mustCreate(t, s, newSchema("t", 1000, "f"))
	floor := metadata.Row{} // as it was before the last write
	for n := range 400 {
		tt := s.tabletsOf(table)[0]
		switch k := r.IntN(20); {
		case k < 9:
			// An overwrite at the same timestamp shows only if its record is newer.
			v := fmt.Sprint(n)
			floor = *tt.Row()
			mustPut(t, s, table, "r", setCell("f", "q", 1000, v))
			if got := content(s, table, row.Single([]byte("r"))); !strings.Contains(got, `="`+v+`"`) {
				t.Fatalf("wrote %s, read %s", v, got)
			}
		case k < 12:
			if err := s.flush(ctx, tt); err != nil {
				t.Fatal(err)
			}
			if now := tt.Row(); floor.Version > 0 && now.FlushedSeq <= floor.MaxSeq {
				t.Errorf("a write has sequence number %d, %d was used before it", now.FlushedSeq, floor.MaxSeq)
			}
		case k < 14:
			if err := tt.CompactMajor(ctx); err != nil {
				t.Fatal(err)
			}
		case k < 17:
			if err := tt.DropRange(ctx, row.Single([]byte("r"))); err != nil {
				t.Fatal(err)
			}
		default:
			o.FS = o.FS.(*datadirtest.CrashableMem).CrashClone(vfs.CrashCloneCfg{})
			mustClose(t, s)
			start()
		}
	}
	mustClose(t, s)
}

// TestI9_CompactionsAreInvisible: whatever compactions do, in whatever order they
// come between the writes, a read before and after each is the same, and neither
// overwritten nor deleted values come back. (TestGC is the same with rules, under
// which a read may return less.)
func TestI9_CompactionsAreInvisible(t *testing.T) {
	first, end := seeds(t, 20)
	for seed := first; seed < end; seed++ {
		r := rand.New(rand.NewPCG(seed, 9))
		o := Options{FS: vfs.NewMem(), Dir: "d", NoBackground: true}
		o.Tablet.TargetRuns, o.Tablet.MaxRuns = 2+r.IntN(4), 100
		o.Tablet.FileBytes = int64(1 + r.IntN(4<<10))
		s := mustOpen(t, o)
		table := mustCreate(t, s, newSchema("t", 1000, "f", "g"))
		tt := s.tabletsOf(table)[0]
		m := &maker{Rand: r, families: []string{"f", "g"}, qualifiers: []string{"a", "b"}}
		model := map[string]string{} // by row and timestamp of one column nobody else writes
		for n := range 150 {
			key := fmt.Sprintf("row%d", r.IntN(8))
			switch r.IntN(6) {
			case 0:
				mustPut(t, s, table, key, row.Mutation{Op: row.DeleteRow})
				for at := range 4 {
					delete(model, fmt.Sprintf("%s@%d", key, at*1000))
				}
			case 1, 2:
				ts := int64(r.IntN(4)) * 1000
				mustPut(t, s, table, key, setCell("f", "mine", ts, fmt.Sprint(n)))
				model[fmt.Sprintf("%s@%d", key, ts)] = fmt.Sprint(n)
			default:
				muts := m.mutations()
				for i := range muts {
					if muts[i].Op == row.DeleteRow || muts[i].Op == row.DeleteFamily {
						muts[i] = setCell("g", "a", 1000, "x")
					}
				}
				mustPut(t, s, table, key, muts...)
			}
			if r.IntN(4) > 0 {
				continue
			}
			if err := s.flush(ctx, tt); err != nil {
				t.Fatal(err)
			}
			before := content(s, table, row.All)
			if r.IntN(6) == 0 {
				tt.RequestMajor()
			}
			for range r.IntN(3) {
				if _, err := tt.Compact(ctx); err != nil {
					t.Fatal(err)
				}
				if got := content(s, table, row.All); got != before {
					t.Fatalf("seed %d: a compaction changed\n%sto\n%s", seed, before, got)
				}
			}
			found := 0
			for _, line := range strings.Split(before, "\n") {
				if !strings.Contains(line, `f:"mine"`) {
					continue
				}
				found++
				var key, v string
				var ts int64
				if _, err := fmt.Sscanf(line, `%q f:"mine"@%d=%q`, &key, &ts, &v); err != nil {
					t.Fatal(err)
				}
				if want := model[fmt.Sprintf("%s@%d", key, ts)]; v != want {
					t.Fatalf("seed %d: %s at %d is %q, want %q", seed, key, ts, v, want)
				}
			}
			if found != len(model) {
				t.Fatalf("seed %d: %d cells, want %d", seed, found, len(model))
			}
		}
		for s.meta.Runs() > 6 {
			if _, err := s.meta.Compact(ctx); err != nil {
				t.Fatal(err)
			}
		}
		mustClose(t, s)
	}
}

// TestLogCap: a log beyond its cap makes the tablet with the oldest redo point
// flush, however little it holds, and then has room again.
func TestLogCap(t *testing.T) {
	fs := datadirtest.NewCrashableMem()
	o := Options{FS: fs, Dir: "d", SegmentBytes: 256 << 10, LogBytes: 1 << 20, MemtableBytes: 256 << 20}
	s := mustOpen(t, o)
	old := mustCreate(t, s, newSchema("old", 1000, "f"))
	busy := mustCreate(t, s, newSchema("busy", 1000, "f"))
	tablet := func(s *Store, name string) *tablet.Tablet { return s.tabletsOf(name)[0] }
	mustPut(t, s, old, "r", setCell("f", "q", 1000, "v"))
	first, ok := tablet(s, old).RedoPoint()
	if !ok {
		t.Fatal("no redo point")
	}
	big := strings.Repeat("x", 10_000)
	for i := range 100 { // less than the cap
		mustPut(t, s, busy, fmt.Sprint(i), setCell("f", "q", 1000, big))
	}
	if pos, ok := tablet(s, busy).RedoPoint(); !ok || !first.Less(pos) {
		t.Errorf("redo points: %v, then %v", first, pos)
	}
	for i := range 300 {
		mustPut(t, s, busy, fmt.Sprint(i), setCell("f", "q", 1000, big))
	}
	deadline := time.Now().Add(time.Minute)
	for s.env.Commit.Bytes() > o.LogBytes+2*o.SegmentBytes && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
	}
	if n := s.env.Commit.Bytes(); n > o.LogBytes+2*o.SegmentBytes {
		t.Errorf("the log has %d bytes", n)
	}
	if _, ok := tablet(s, old).RedoPoint(); ok || len(tablet(s, old).Row().Files) != 1 {
		t.Error("the tablet with the oldest redo point was not flushed")
	}
	want := content(s, old, row.All) + content(s, busy, row.All)
	o.FS = fs.CrashClone(vfs.CrashCloneCfg{})
	mustClose(t, s)
	s = mustOpen(t, o)
	defer mustClose(t, s)
	if got := content(s, old, row.All) + content(s, busy, row.All); got != want {
		t.Error("a power cut lost something")
	}
}

// TestDiskIsFreed: what expires by age, is deleted or dropped as a range leaves
// the disk without anybody asking for it, as the size of the directory shows. What
// has expired but is too little for that goes when somebody asks, who sees how far
// it has come.
func TestDiskIsFreed(t *testing.T) {
	const rows = 1000
	for what, remove := range map[string]func(*Store, string) error{
		"age":     func(*Store, string) error { return nil },
		"deletes": nil,
		"range":   func(s *Store, table string) error { return s.DropRowRange(ctx, table, []byte("row")) },
		"asked":   func(*Store, string) error { return nil },
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			now := &hand{now: time.Unix(1_700_000_000, 0)}
			s := mustOpen(t, Options{Dir: dir, NoBackground: true, Now: now.Now, Tend: 10 * time.Millisecond})
			defer mustClose(t, s)
			sch := newSchema("t", 1000, "f")
			if what == "age" || what == "asked" {
				f := sch.Families["f"]
				f.GC = &schema.GCRule{MaxAge: time.Hour}
				sch.Families["f"] = f
			}
			table := mustCreate(t, s, sch)
			tt := s.tabletsOf(table)[0]
			size := func() (n int64) {
				files, err := os.ReadDir(filepath.Join(dir, "sst"))
				if err != nil {
					t.Fatal(err)
				}
				for _, f := range files {
					if info, err := f.Info(); err == nil && !info.IsDir() {
						n += info.Size()
					}
				}
				return n
			}
			r := rand.New(rand.NewPCG(1, 1))
			for i := range rows {
				mustPut(t, s, table, fmt.Sprintf("row%05d", i), setCell("f", "q", now.Now().UnixMicro(), randomValue(r, 1000)))
			}
			if err := s.flush(ctx, tt); err != nil {
				t.Fatal(err)
			}
			if err := compactAll(t, tt); err != nil {
				t.Fatal(err)
			}
			full := size()
			if full < rows*700 {
				t.Fatalf("%d bytes are stored", full)
			}
			if what == "asked" {
				now.advance(61 * time.Minute)
				for i := range 4 * rows { // what has expired is a fifth, too little to go by itself
					mustPut(t, s, table, fmt.Sprintf("new%05d", i), setCell("f", "q", now.Now().UnixMicro(), randomValue(r, 1000)))
				}
				if err := s.flush(ctx, tt); err != nil {
					t.Fatal(err)
				}
				if err := compactAll(t, tt); err != nil {
					t.Fatal(err)
				}
				if n := size(); n < full*9/2 {
					t.Errorf("%d bytes are stored: something went by itself", n)
				}
				var steps, done, total int64
				if err := s.CompactTablets(ctx, table, row.All, func(d, n int64) {
					if d < done || n < d {
						t.Errorf("%d of %d bytes are done, before it was %d", d, n, done)
					}
					steps, done, total = steps+1, d, n
				}); err != nil || steps == 0 || done != total || total == 0 {
					t.Errorf("%v; reported %d times, at last %d of %d bytes", err, steps, done, total)
				}
				deadline := time.Now().Add(time.Minute)
				for size() > full*21/5 && time.Now().Before(deadline) {
					time.Sleep(time.Millisecond)
				}
				if n := size(); n > full*21/5 || n < full*19/5 {
					t.Errorf("%d bytes are stored, want four times %d", n, full)
				}
				return
			}
			now.advance(2 * time.Hour) // more than the age, and the pause between compactions for estimates
			if remove != nil {
				if err := remove(s, table); err != nil {
					t.Fatal(err)
				}
			} else {
				for i := range rows {
					mustPut(t, s, table, fmt.Sprintf("row%05d", i), row.Mutation{Op: row.DeleteRow})
				}
				if err := s.flush(ctx, tt); err != nil {
					t.Fatal(err)
				}
			}
			if err := compactAll(t, tt); err != nil {
				t.Fatal(err)
			}
			deadline := time.Now().Add(time.Minute)
			for size() > full/10 && time.Now().Before(deadline) {
				time.Sleep(time.Millisecond) // objects are removed by somebody else
			}
			if n := size(); n > full/10 {
				t.Errorf("%d bytes of %d are stored still", n, full)
			}
			if got := content(s, table, row.All); got != "" {
				t.Errorf("got %.200s", got)
			}
		})
	}
}
