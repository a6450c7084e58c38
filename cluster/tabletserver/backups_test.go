package tabletserver_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/check"
	"github.com/trestledb/trestle/engine/datadir/datadirtest"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/tablet"
	"github.com/trestledb/trestle/gateway/backend"
)

func asItIs(*schema.Table) error { return nil }

func mustBackup(t testing.TB, b backend.Backend, table, name string) *schema.Backup {
	t.Helper()
	made, err := b.CreateBackup(ctx, table, &schema.Backup{Name: name})
	if err != nil {
		t.Fatalf("back up %s: %v", table, err)
	}
	return made
}

func mustRestore(t testing.TB, b backend.Backend, from, name string) {
	t.Helper()
	if _, err := b.RestoreTable(ctx, from, name, asItIs); err != nil {
		t.Fatalf("restore %s: %v", from, err)
	}
}

// objects returns the names of the objects that there are once those that were
// let go of are gone: at most most.
func objects(t testing.TB, s *Store, most int) []string {
	t.Helper()
	for start := time.Now(); ; time.Sleep(100 * time.Microsecond) {
		list, err := s.objects.List(ctx, "", "", 0)
		if err != nil {
			t.Fatal(err)
		}
		if len(list) > most && time.Since(start) < time.Minute {
			continue
		}
		var names []string
		for _, o := range list {
			names = append(names, o.Name)
		}
		return names
	}
}

// referenced returns the objects that METADATA rows name, those of backups among
// them.
func referenced(t testing.TB, s *Store) map[string]bool {
	t.Helper()
	rows, err := s.rows()
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	for _, r := range rows {
		for _, f := range r.Files {
			used[f.Object] = true
		}
	}
	return used
}

// TestI7_NothingReferencedIsDeleted: what METADATA, a backup or a pinned reader
// names is there, whatever happens to all others that name it too; and in the
// end nothing else is.
func TestI7_NothingReferencedIsDeleted(t *testing.T) {
	first, end := seeds(t, 20)
	for seed := first; seed < end; seed++ {
		rng := rand.New(rand.NewPCG(seed, 7))
		now := &hand{now: clock()}
		o := Options{FS: vfs.NewMem(), Dir: "data", NoBackground: true, Now: now.Now, Tend: 2 * time.Millisecond}
		o.Tablet.FileBytes = 1 << 10
		o.Tablet.TargetRuns = 1 + rng.IntN(3)
		s := mustOpen(t, o)
		var tables, backups []string
		wants := map[string]string{} // content of backups
		last := 0
		name := func(prefix string) string { last++; return fmt.Sprint(prefix, last) }
		pins := map[int][]*tablet.Frozen{}
		needed := func() map[string]bool {
			used := referenced(t, s)
			for _, fs := range pins {
				for _, f := range fs {
					for _, o := range f.Row().Files {
						used[o.Object] = true
					}
				}
			}
			return used
		}
		// The master purges tables, and has those that were deleted given up, and so
		// flushed, while this looks.
		check := func(what string) {
			t.Helper()
			for start := time.Now(); ; time.Sleep(100 * time.Microsecond) {
				before := needed()
				there := objects(t, s, math.MaxInt)
				after := needed()
				for o := range before {
					if after[o] && !slices.Contains(there, o) {
						t.Errorf("seed %d: after %s: object %s is gone; readers need it: %v", seed, what, o, s.env.Refers(o))
					}
				}
				left := slices.DeleteFunc(there, func(o string) bool { return before[o] || after[o] })
				if len(left) == 0 || t.Failed() {
					return
				}
				if time.Since(start) > time.Minute {
					t.Errorf("seed %d: after %s: objects %v are there, and nobody names them", seed, what, left)
					return
				}
			}
		}
		for step := range 120 {
			n := rng.IntN(20)
			switch {
			case n < 2 || len(tables) == 0:
				tables = append(tables, mustCreate(t, s, newSchema(name("t"), 1000, "f"), "m"))
			case n < 7:
				for range 20 {
					mustPut(t, s, tables[rng.IntN(len(tables))], fmt.Sprintf("%c%d", 'a'+rune(rng.IntN(26)), rng.IntN(20)),
						setCell("f", "q", int64(step)*1000, fmt.Sprintf("%0200d", step)))
				}
			case n < 9:
				tts := s.tabletsOf(tables[rng.IntN(len(tables))])
				tt := tts[rng.IntN(len(tts))]
				if rng.IntN(2) == 0 {
					tt.RequestMajor()
				}
				if err := s.flush(ctx, tt); err != nil {
					t.Fatal(err)
				}
				if _, err := tt.Compact(ctx); err != nil {
					t.Fatal(err)
				}
			case n < 10:
				from := tables[rng.IntN(len(tables))]
				var err error
				if rng.IntN(2) == 0 {
					err = s.SplitTablet(ctx, from, []byte{byte('b' + rng.IntN(24))})
				} else {
					err = s.MergeTablets(ctx, from, []byte("a"))
				}
				if err != nil && !refusal(err) {
					t.Fatal(err)
				}
			case n < 12:
				from := tables[rng.IntN(len(tables))]
				backups = append(backups, name("b"))
				mustBackup(t, s, from, backups[len(backups)-1])
				wants[backups[len(backups)-1]] = content(s, from, row.All)
			case n < 13 && len(backups) > 0:
				from := backups[rng.IntN(len(backups))]
				backups = append(backups, name("c"))
				to := backups[len(backups)-1]
				if _, err := s.CopyBackup(ctx, from, &schema.Backup{Name: to}); err != nil {
					t.Fatal(err)
				}
				wants[to] = wants[from]
			case n < 14 && len(backups) > 0:
				to := parent + name("r")
				from := backups[rng.IntN(len(backups))]
				mustRestore(t, s, from, to)
				if got := content(s, to, row.All); got != wants[from] {
					t.Fatalf("seed %d: %s restored is\n%s\nwant\n%s", seed, from, got, wants[from])
				}
				tables = append(tables, to)
			case n < 15 && len(backups) > 0:
				at := rng.IntN(len(backups))
				if rng.IntN(2) == 0 {
					if err := s.DeleteBackup(ctx, backups[at]); err != nil {
						t.Fatal(err)
					}
				} else {
					_, err := s.UpdateBackup(ctx, backups[at], func(b *schema.Backup) error { b.ExpireTime = now.Now().Add(time.Hour); return nil })
					if err != nil {
						t.Fatal(err)
					}
					now.advance(time.Hour)
					s.purged(t)
				}
				backups = slices.Delete(backups, at, at+1)
			case n < 17:
				at := rng.IntN(len(tables))
				s.tabletsOf(tables[at]) // a tablet that is to be opened keeps its row for long
				if err := s.DeleteTable(ctx, tables[at]); err != nil {
					t.Fatal(err)
				}
				tables = slices.Delete(tables, at, at+1)
				if rng.IntN(2) == 0 {
					now.advance(schema.UndeleteWindow)
					s.purged(t)
				}
			case n < 18: // a reader comes
				tts := s.tabletsOf(tables[rng.IntN(len(tables))])
				r := tts[rng.IntN(len(tts))].Row()
				pins[step] = append(pins[step], tablet.Hold(s.env, r))
			case n < 19: // and goes
				for at := range pins {
					for _, f := range pins[at] {
						f.Release()
					}
					delete(pins, at)
					break
				}
			default:
				for at := range pins {
					for _, f := range pins[at] {
						f.Release()
					}
				}
				clear(pins)
				mustClose(t, s)
				s = mustOpen(t, o)
			}
			check(fmt.Sprint("step ", step, " of kind ", n))
			if t.Failed() {
				t.FailNow()
			}
		}
		for _, fs := range pins {
			for _, f := range fs {
				f.Release()
			}
		}
		for _, b := range backups {
			if err := s.DeleteBackup(ctx, b); err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range tables {
			if err := s.DeleteTable(ctx, name); err != nil {
				t.Fatal(err)
			}
		}
		now.advance(schema.UndeleteWindow)
		s.purged(t)
		clear(pins)
		check("everything")
		if left := s.backupRows(t); len(left) > 0 {
			t.Errorf("seed %d: METADATA rows of backups are left: %v", seed, left)
		}
		if left, mine := objects(t, s, 0), s.meta.Row().Files; len(left) != len(mine) {
			t.Errorf("seed %d: objects %v are left, METADATA has %d", seed, left, len(mine))
		}
		mustClose(t, s)
	}
}

// scanHash is a hash over all cells of a table.
func scanHash(t testing.TB, b backend.Backend, table string) string {
	t.Helper()
	rows, err := readRows(b, &scan.Request{Table: table, Ranges: []row.Range{row.All}})
	if err != nil {
		t.Fatal(err)
	}
	h := sha256.New()
	for _, r := range rows {
		for _, c := range r.Cells {
			fmt.Fprintf(h, "%q %s:%q@%d=%q\n", r.Key, c.Family, c.Qualifier, c.Timestamp, c.Value)
		}
	}
	return fmt.Sprintf("%d rows %x", len(rows), h.Sum(nil))
}

// TestI11_ScanHashIsKept: a split, a merge, and a backup that outlives its table
// change no row.
func TestI11_ScanHashIsKept(t *testing.T) {
	first, end := seeds(t, 10)
	for seed := first; seed < end; seed++ {
		rng := rand.New(rand.NewPCG(seed, 11))
		m := maker{Rand: rng, families: []string{"f", "g"}, aggregates: []string{"n"}, qualifiers: []string{"", "q"}, big: 20}
		o := Options{FS: vfs.NewMem(), Dir: "data", NoBackground: true, Now: clock}
		o.Tablet.FileBytes = 4 << 10
		s := mustOpen(t, o)
		name := mustCreate(t, s, newSchema("t", 1000, "f", "g", "n=sum"), "300")
		_, err := s.UpdateTable(ctx, name, func(t *schema.Table) error {
			f := t.Families["g"]
			f.GC = &schema.GCRule{MaxVersions: 2}
			t.Families["g"] = f
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 1500 {
			if err := s.MutateRow(ctx, name, &row.Entry{Key: fmt.Appendf(nil, "%03d", rng.IntN(600)), Mutations: m.mutations()}); err != nil {
				t.Fatal(err)
			}
			if i%500 == 250 {
				if err := s.DropRowRange(ctx, name, fmt.Appendf(nil, "%02d", rng.IntN(60))); err != nil {
					t.Fatal(err)
				}
			}
			if i%400 == 399 {
				if err := s.Flush(ctx); err != nil {
					t.Fatal(err)
				}
			}
		}
		// What the rules collect is gone first.
		if err := s.CompactTablets(ctx, name, row.All, nil); err != nil {
			t.Fatal(err)
		}
		want := scanHash(t, s, name)
		same := func(what, table string) {
			t.Helper()
			if got := scanHash(t, s, table); got != want {
				t.Fatalf("seed %d: after %s: %s, want %s", seed, what, got, want)
			}
		}
		if err := s.SplitTablet(ctx, name, []byte("150")); err != nil {
			t.Fatal(err)
		}
		same("a split", name)
		mustBackup(t, s, name, "backup")
		if err := s.MergeTablets(ctx, name, []byte("150")); err != nil {
			t.Fatal(err)
		}
		same("a merge", name)
		if err := s.CompactTablets(ctx, name, row.All, nil); err != nil {
			t.Fatal(err)
		}
		same("a major compaction", name)
		// What one side of a merge has dropped stays dropped.
		whole := want
		if err := s.DropRowRange(ctx, name, []byte("14")); err != nil {
			t.Fatal(err)
		}
		if want = scanHash(t, s, name); want == whole {
			t.Fatalf("seed %d: nothing was dropped", seed)
		}
		if err := s.MergeTablets(ctx, name, []byte("000")); err != nil {
			t.Fatal(err)
		}
		same("a merge with a range that was dropped", name)
		want = whole
		mustPut(t, s, name, "later", setCell("f", "q", 1000, "v"))
		if err := s.DeleteTable(ctx, name); err != nil {
			t.Fatal(err)
		}
		written := s.env.Stats.FlushBytes.Load() + s.env.Stats.CompactionOut.Load()
		for i := range 2 {
			mustRestore(t, s, "backup", name+fmt.Sprint(i))
			same("a restore", name+fmt.Sprint(i))
		}
		if now := s.env.Stats.FlushBytes.Load() + s.env.Stats.CompactionOut.Load(); now != written {
			t.Errorf("seed %d: restoring wrote %d bytes", seed, now-written)
		}
		if n := len(s.tabletsOf(name + "0")); n != 3 {
			t.Errorf("seed %d: the restored table has %d tablets, want 3", seed, n)
		}
		mustPut(t, s, name+"0", "later", setCell("f", "q", 1000, "v"))
		same("a change of another restored table", name+"1")
		if err := s.DeleteBackup(ctx, "backup"); err != nil {
			t.Fatal(err)
		}
		same("the backup's end", name+"1")
		mustClose(t, s)
		s = mustOpen(t, o)
		same("a restart", name+"1")
		if err := s.CompactTablets(ctx, name+"1", row.All, nil); err != nil {
			t.Fatal(err)
		}
		same("a restored table's compaction", name+"1")
		mustClose(t, s)
	}
}

// TestCrashInBackup takes the power away at every operation of the file system
// during a backup's life, and again at every operation of the start after it.
func TestCrashInBackup(t *testing.T) {
	const name, restored = parent + "t", parent + "restored"
	step := 1
	if testing.Short() {
		step = 7
	}
	for at := 1; ; at += step {
		fs := datadirtest.NewCrashableMem()
		// What was done for sure.
		var done []string
		marks := &history{regs: map[string]*register{"done": {states: []string{""}}}}
		rng := rand.New(rand.NewPCG(uint64(at), 1))
		c := newCrasher(fs, 1<<40, rng, marks)
		o := Options{Dir: "data", FS: c.wrap(), NoBackground: true, Now: clock, Tend: 10 * time.Millisecond}
		o.Tablet.FileBytes = 1 << 10
		s := mustOpen(t, o)
		mustCreate(t, s, newSchema("t", 1000, "f"), "m")
		for i := range 20 {
			mustPut(t, s, name, fmt.Sprint(string(rune('a'+i)), i), setCell("f", "q", 1000, fmt.Sprintf("%0100d", i)))
		}
		want := content(s, name, row.All)
		c.n.Store(int64(at))
		mark := func(what string) {
			done = append(done, what)
			marks.begin("done", what)
			marks.ack("done")
		}
		mustBackup(t, s, name, "backup")
		mark("created")
		mustPut(t, s, name, "later", setCell("f", "q", 1000, "v"))
		if err := s.CompactTablets(ctx, name, row.All, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := s.CopyBackup(ctx, "backup", &schema.Backup{Name: "copy"}); err != nil {
			t.Fatal(err)
		}
		mark("copied")
		mustRestore(t, s, "backup", restored)
		mark("restored")
		if err := s.DeleteBackup(ctx, "backup"); err != nil {
			t.Fatal(err)
		}
		mark("deleted")
		finished := !c.crashed()
		c.crash()
		mustClose(t, s)
		acked := c.acked["done"] // 1 for created, and so on
		again := newCrasher(c.clone, 1+at%40, rng, &history{})
		for _, fs := range []vfs.FS{again.wrap(), nil} {
			if fs == nil {
				again.crash()
				fs = again.clone
			}
			o.FS = fs
			s := mustOpen(t, o)
			checkStore(t, s)
			has := func(b string) bool { _, err := s.Backup(ctx, b); return err == nil }
			exact := func(what string, must, may bool) {
				state := ""
				switch what {
				case "backup", "copy":
					if has(what) {
						state = content(s, mustScratch(t, s, what), row.All)
					}
				default:
					if _, err := s.Table(ctx, what); err == nil {
						state = content(s, what, row.All)
					}
				}
				if state != want && (state != "" || must) || state != "" && !may {
					t.Errorf("crash at operation %d, after %v: %s holds\n%s\nwant\n%s", at, done[:acked], what, state, want)
				}
			}
			exact("backup", acked >= 1 && acked < 3, acked < 4)
			exact("copy", acked >= 2, true)
			exact(restored, acked >= 3, true)
			mustClose(t, s)
			if t.Failed() {
				t.FailNow()
			}
		}
		if finished {
			t.Logf("%d operations", at)
			break
		}
	}
}

func mustScratch(t *testing.T, s *Store, backup string) string {
	t.Helper()
	name, err := restoreScratch(s, backup)
	if err != nil {
		t.Fatalf("restore %s: %v", backup, err)
	}
	return name
}

// TestExpiredBackupFreesTheDisk: once nothing else names them, the SSTables of
// an expired backup go.
func TestExpiredBackupFreesTheDisk(t *testing.T) {
	now := &hand{now: clock()}
	o := Options{FS: vfs.NewMem(), Dir: "data", NoBackground: true, Now: now.Now, Tend: 10 * time.Millisecond}
	s := mustOpen(t, o)
	defer mustClose(t, s)
	name := mustCreate(t, s, newSchema("t", 1000, "f"))
	mustPut(t, s, name, "r", setCell("f", "q", 1000, "v"))
	if _, err := s.CreateBackup(ctx, name, &schema.Backup{Name: "b", ExpireTime: now.Now().Add(8 * 24 * time.Hour)}); err != nil {
		t.Fatal(err)
	}
	file := slices.Collect(maps.Keys(referenced(t, s)))
	if err := s.DeleteTable(ctx, name); err != nil {
		t.Fatal(err)
	}
	now.advance(schema.UndeleteWindow)
	s.purged(t)
	if got := objects(t, s, 1); !slices.Contains(got, file[0]) {
		t.Fatalf("the backup's %v is gone: there is %v", file, got)
	}
	now.advance(24 * time.Hour)
	s.purged(t)
	if got := objects(t, s, 0); len(got) != 0 {
		t.Errorf("%v is left", got)
	}
}

// A fickle context ends after it was asked n times.
type fickle struct {
	context.Context
	n *int
}

func (c fickle) Err() error {
	if *c.n--; *c.n < 0 {
		return context.Canceled
	}
	return nil
}

// TestBackupGivenUp: a backup whose caller gives up at any point is there as a
// whole or has left nothing behind.
func TestBackupGivenUp(t *testing.T) {
	s := mustOpen(t, Options{FS: vfs.NewMem(), Dir: "data", NoBackground: true, Now: clock, Tend: 10 * time.Millisecond})
	defer mustClose(t, s)
	name := mustCreate(t, s, newSchema("t", 1000, "f"), "g", "m", "s")
	given := 0
	for n := 0; ; n++ {
		for _, k := range []string{"a", "h", "n", "t"} {
			mustPut(t, s, name, k, setCell("f", "q", 1000, fmt.Sprint(n)))
		}
		want := content(s, name, row.All)
		left := n
		_, err := s.CreateBackup(fickle{ctx, &left}, name, &schema.Backup{Name: "b"})
		there := content(s, mustScratchOrNot(t, s, "b"), row.All)
		if err == nil {
			if there != want {
				t.Errorf("backup made: %s\nwant %s", there, want)
			}
			break
		}
		given++
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("given up after %d questions: %v", n, err)
		}
		if _, err := s.Backup(ctx, "b"); !errors.Is(err, fault.NotFound) {
			t.Fatalf("given up after %d questions: %v", n, err)
		}
		if left := s.backupRows(t); len(left) > 0 {
			t.Errorf("given up after %d questions: METADATA rows are left: %v", n, left)
		}
		if s.Err() != nil {
			t.Fatal(s.Err())
		}
		used := referenced(t, s)
		for _, o := range objects(t, s, len(used)) {
			if !used[o] {
				t.Errorf("given up after %d questions: object %s is left", n, o)
			}
		}
	}
	if given < 3 {
		t.Errorf("given up %d times only", given)
	}
}

// mustScratchOrNot restores a backup that may not be there.
func mustScratchOrNot(t *testing.T, s *Store, backup string) string {
	t.Helper()
	name, err := restoreScratch(s, backup)
	if err != nil && !errors.Is(err, fault.NotFound) {
		t.Fatal(err)
	}
	return name
}

// TestFullDiskInBackup: what cannot be flushed is not backed up, and nothing else
// comes of it.
func TestFullDiskInBackup(t *testing.T) {
	fs := newFaulty(vfs.NewMem())
	s := mustOpen(t, Options{FS: fs, Dir: "d", Log: loud(), NoBackground: true})
	defer mustClose(t, s)
	name := filled(t, s, "t", 10)
	mustPut(t, s, name, "more", setCell("f", "q", 1000, "v"))
	want := content(s, name, row.All)
	fs.set(full("d/sst"))
	if _, err := s.CreateBackup(ctx, name, &schema.Backup{Name: "b"}); fault.KindOf(err) != fault.Exhausted {
		t.Fatalf("on a full disk: %v", err)
	}
	mustPut(t, s, name, "later", setCell("f", "q", 1000, "v"))
	fs.set(nil)
	if err := s.DropRowRange(ctx, name, []byte("later")); err != nil {
		t.Fatal(err)
	}
	mustBackup(t, s, name, "b")
	// A restore needs METADATA's log only.
	fs.set(full("d/sst"))
	mustRestore(t, s, "b", parent+"u")
	fs.set(nil)
	if got := content(s, parent+"u", row.All); got != want {
		t.Errorf("restored\n%s\nwant\n%s", got, want)
	}
	if err := s.Err(); err != nil {
		t.Error(err)
	}
}

// TestCheckKnowsBackups: the check of a directory looks at what backups need.
func TestCheckKnowsBackups(t *testing.T) {
	fs := vfs.NewMem()
	o := Options{FS: fs, Dir: "data", NoBackground: true}
	s := mustOpen(t, o)
	name := filled(t, s, "t", 10)
	mustBackup(t, s, name, "the-backup")
	mustPut(t, s, name, "more", setCell("f", "q", 1000, "v"))
	if err := s.CompactTablets(ctx, name, row.All, nil); err != nil {
		t.Fatal(err)
	}
	var only string // the backup's, and not the table's any more
	for _, f := range s.backupRows(t)[0].Files {
		only = f.Object
	}
	mustClose(t, s)
	if err := fs.Remove("data/sst/" + only); err != nil {
		t.Fatal(err)
	}
	var found []check.Finding
	if _, err := check.Directory(ctx, fs, "data", nil, func(f check.Finding) { found = append(found, f) }); err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(found, func(f check.Finding) bool { return !f.Harmless && strings.Contains(f.Where+f.What, only) }) {
		t.Errorf("without %s: %+v", only, found)
	}
}

// TestRestoreKeepsGroups: a restored table has the locality groups of the backup,
// whatever became of those of its source.
func TestRestoreKeepsGroups(t *testing.T) {
	o := Options{FS: vfs.NewMem(), Dir: "data", NoBackground: true}
	s := mustOpen(t, o)
	defer func() { mustClose(t, s) }()
	sch := newSchema("t", 1000, "f", "g")
	name := mustCreate(t, s, sch)
	group := func(table, family, group string) {
		t.Helper()
		if _, ok := must(s.Table(ctx, table))(t).Group(group); !ok {
			must(s.CreateGroup(ctx, table, schema.Group{Name: group}))(t)
		}
		must(s.AssignFamilies(ctx, table, group, []string{family}))(t)
	}
	group(name, "g", "apart")
	for i := range 50 {
		mustPut(t, s, name, fmt.Sprint("r", i), setCell("f", "q", 1000, "v"), setCell("g", "q", 1000, "w"))
	}
	want := content(s, name, row.All)
	mustBackup(t, s, name, "b")
	group(name, "f", "other")
	group(name, "g", schema.DefaultGroup)
	if err := s.CompactTablets(ctx, name, row.All, nil); err != nil {
		t.Fatal(err)
	}
	mustRestore(t, s, "b", parent+"u")
	for _, step := range []string{"restored", "compacted", "started again"} {
		switch step {
		case "compacted":
			mustPut(t, s, parent+"u", "r0", setCell("g", "q", 1000, "w"))
			if err := s.CompactTablets(ctx, parent+"u", row.All, nil); err != nil {
				t.Fatal(err)
			}
		case "started again":
			mustClose(t, s)
			s = mustOpen(t, o)
		}
		got, err := s.Table(ctx, parent+"u")
		if err != nil {
			t.Fatal(err)
		}
		if g, ok := got.Group("apart"); !ok || got.Families["g"].Group != g.ID || got.Families["f"].Group != 0 {
			t.Errorf("%s: families %+v in groups %+v", step, got.Families, got.AllGroups())
		}
		if now := content(s, parent+"u", row.All); now != want {
			t.Errorf("%s:\n%s\nwant\n%s", step, now, want)
		}
	}
}

// must fails the test on an error, else returns v.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
