package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
)

// checked returns what Check finds, a line each, damage and what is harmless.
func checked(t testing.TB, fs vfs.FS, dir string) (damage, harmless []string, sum CheckSummary) {
	t.Helper()
	sum, err := Check(ctx, fs, dir, func(f Finding) {
		line := f.Where + ": " + f.What + "; " + f.Do
		if strings.Contains(line, "\n") {
			t.Errorf("more than a line: %q", line)
		}
		if f.Harmless {
			harmless = append(harmless, line)
		} else {
			damage = append(damage, line)
		}
	})
	if err != nil {
		t.Fatalf("check: %v", err)
	}
	if sum.Damaged != len(damage) || sum.Harmless != len(harmless) {
		t.Errorf("%d and %d findings, the summary says %+v", len(damage), len(harmless), sum)
	}
	return damage, harmless, sum
}

// lived makes a data directory with a bit of everything, closed in order.
func lived(t testing.TB) *vfs.MemFS {
	fs := vfs.NewMem()
	o := Options{FS: fs, Dir: "d", NoBackground: true, SegmentBytes: 16 << 10}
	o.Tablet.FileBytes = 16 << 10
	s := mustOpen(t, o)
	table := filled(t, s, "one", 800)
	if err := s.SplitTablet(ctx, table, []byte("row00300")); err != nil {
		t.Fatal(err)
	}
	if err := s.SplitTablet(ctx, table, []byte("row00500")); err != nil {
		t.Fatal(err)
	}
	if err := s.MergeTablets(ctx, table, []byte("row00300")); err != nil {
		t.Fatal(err)
	}
	if err := s.DropRowRange(ctx, table, []byte("row0001")); err != nil {
		t.Fatal(err)
	}
	mustPut(t, s, table, "row00700", setCell("f", "q", 2000, "newer"))
	gone := filled(t, s, "gone", 10)
	if err := s.DeleteTable(ctx, gone); err != nil {
		t.Fatal(err)
	}
	if _, err := s.PutRecord(ctx, "key", []byte("value"), 0); err != nil {
		t.Fatal(err)
	}
	if err := s.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	mustPut(t, s, table, "row00100", setCell("f", "q", 3000, "in the log only"))
	mustPut(t, s, table, "row00600", setCell("f", "q", 3000, "in the log only"))
	if _, err := s.PutRecord(ctx, "key2", []byte("in the log only"), 0); err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
	return fs
}

func TestCheckHealthy(t *testing.T) {
	fs := lived(t)
	damage, harmless, sum := checked(t, fs, "d")
	if len(damage)+len(harmless) > 0 {
		t.Errorf("found %q and %q", damage, harmless)
	}
	if sum.Tables != 2 || sum.Tablets != 3 || sum.SSTables < 3 || sum.Entries < 800 || sum.LogRecords < 3 || sum.SSTableBytes == 0 {
		t.Errorf("%+v", sum)
	}
	// It changed nothing: a store opens and is still the same.
	s := mustOpen(t, Options{FS: fs, Dir: "d", NoBackground: true})
	if _, err := Check(ctx, fs, "d", func(Finding) {}); fault.KindOf(err) != fault.FailedPrecondition {
		t.Errorf("beside a server: %v", err)
	}
	mustClose(t, s)
	for _, dir := range []string{"none", "empty"} {
		if dir == "empty" {
			if err := fs.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := Check(ctx, fs, dir, func(Finding) {}); err == nil {
			t.Errorf("%s: no error", dir)
		}
		if list, _ := fs.List(dir); len(list) > 0 {
			t.Errorf("%s: made %v", dir, list)
		}
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := Check(gone, fs, "d", func(f Finding) { t.Errorf("cancelled: found %+v", f) }); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func readAll(t testing.TB, fs vfs.FS, name string) []byte {
	t.Helper()
	f, err := fs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func writeAll(t testing.TB, fs vfs.FS, name string, b []byte) {
	t.Helper()
	f, err := fs.Create(name, "test")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// rewrite changes a file.
func rewrite(t testing.TB, fs vfs.FS, name string, change func([]byte) []byte) {
	t.Helper()
	writeAll(t, fs, name, change(slices.Clone(readAll(t, fs, name))))
}

func flip(at int) func([]byte) []byte {
	return func(b []byte) []byte {
		if at < 0 {
			at += len(b)
		}
		b[at] ^= 0x40
		return b
	}
}

// copyAll returns a copy of a directory.
func copyAll(t testing.TB, from *vfs.MemFS) *vfs.MemFS {
	to := vfs.NewMem()
	if ok, err := vfs.Clone(from, to, "d", "d"); err != nil || !ok {
		t.Fatalf("copy: %v %v", ok, err)
	}
	return to
}

// objectsOf lists the SSTables of METADATA itself and of all other tablets.
func objectsOf(t testing.TB, fs vfs.FS) (meta, user []string) {
	root, err := metadata.ReadRoot(fs, "d")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range root.Row.Files {
		meta = append(meta, f.Object)
	}
	all, err := fs.List("d/sst")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range all {
		if strings.HasSuffix(n, ".sst") && !slices.Contains(meta, n) {
			user = append(user, n)
		}
	}
	slices.Sort(user)
	return meta, user
}

func segments(t testing.TB, fs vfs.FS, dir string) []string {
	var out []string
	names, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if strings.HasSuffix(n, ".log") && len(readAll(t, fs, dir+"/"+n)) > 0 {
			out = append(out, dir+"/"+n)
		}
	}
	slices.Sort(out)
	return out
}

// editMetadata changes METADATA as nobody should.
func editMetadata(t testing.TB, fs vfs.FS, change func(s *Store, rows []*metadata.Row)) {
	t.Helper()
	s := mustOpen(t, Options{FS: fs, Dir: "d", NoBackground: true, Log: loud()})
	var rows []*metadata.Row
	if err := s.list(ctx, []byte{'t'}, func(_, value []byte) error {
		r, err := metadata.Unmarshal(value)
		rows = append(rows, r)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	change(s, rows)
	mustClose(t, s)
}

func putMeta(t testing.TB, s *Store, key, value []byte) {
	t.Helper()
	if err := s.put(ctx, key, func([]byte) ([]byte, error) { return value, nil }); err != nil {
		t.Fatal(err)
	}
}

// TestCheckDamage damages each kind of file and expects the right complaint.
func TestCheckDamage(t *testing.T) {
	healthy := lived(t)
	meta, user := objectsOf(t, healthy)
	logs, ulogs := segments(t, healthy, "d/log"), segments(t, healthy, "d/ulog")
	if len(meta) == 0 || len(user) < 3 || len(logs) == 0 || len(ulogs) == 0 {
		t.Fatalf("too little to damage: %v %v %v %v", meta, user, logs, ulogs)
	}
	for _, c := range []struct {
		name string
		do   func(t *testing.T, fs *vfs.MemFS)
		want []string // in one line of damage
		more bool     // other complaints may follow from the damage
	}{
		{name: "format of the future", do: func(t *testing.T, fs *vfs.MemFS) { writeAll(t, fs, "d/FORMAT", []byte("trestle data format 9\n")) },
			want: []string{"FORMAT", "format 9", "use the version"}},
		{name: "format is not ours", do: func(t *testing.T, fs *vfs.MemFS) { writeAll(t, fs, "d/FORMAT", []byte("something")) }, want: []string{"FORMAT: "}},
		{name: "format missing", do: func(t *testing.T, fs *vfs.MemFS) { fs.Remove("d/FORMAT") }, want: []string{"FORMAT: ", "missing"}},
		{name: "root flipped", do: func(t *testing.T, fs *vfs.MemFS) { rewrite(t, fs, "d/ROOT", flip(60)) }, want: []string{"ROOT: "}},
		{name: "root missing", do: func(t *testing.T, fs *vfs.MemFS) { fs.Remove("d/ROOT") }, want: []string{"ROOT: is missing"}},
		{name: "root empty", do: func(t *testing.T, fs *vfs.MemFS) { writeAll(t, fs, "d/ROOT", nil) }, want: []string{"ROOT: "}},
		{name: "METADATA log flipped", do: func(t *testing.T, fs *vfs.MemFS) { rewrite(t, fs, logs[len(logs)-1], flip(70)) }, want: []string{"log: ", "corruption in"}, more: true},
		{name: "METADATA log missing", do: func(t *testing.T, fs *vfs.MemFS) { fs.RemoveAll("d/log") }, want: []string{"log: the directory is missing"}, more: true},
		{name: "METADATA SSTable flipped", do: func(t *testing.T, fs *vfs.MemFS) { rewrite(t, fs, "d/sst/"+meta[0], flip(40)) }, want: []string{"sst/" + meta[0], "checksum", "METADATA tablet"}, more: true},
		{name: "METADATA SSTable missing", do: func(t *testing.T, fs *vfs.MemFS) { fs.Remove("d/sst/" + meta[0]) }, want: []string{"sst/" + meta[0], "missing", "METADATA tablet"}, more: true},
		{name: "SSTable data flipped", do: func(t *testing.T, fs *vfs.MemFS) { rewrite(t, fs, "d/sst/"+user[0], flip(100)) }, want: []string{"sst/" + user[0], "wrong checksum", "DATA_LOSS", "of its rows from"}},
		{name: "SSTable filter or index flipped", do: func(t *testing.T, fs *vfs.MemFS) { rewrite(t, fs, "d/sst/"+user[1], flip(-2000)) }, want: []string{"sst/" + user[1], "checksum"}},
		{name: "SSTable footer flipped", do: func(t *testing.T, fs *vfs.MemFS) { rewrite(t, fs, "d/sst/"+user[0], flip(-20)) }, want: []string{"sst/" + user[0]}},
		{name: "SSTable cut", do: func(t *testing.T, fs *vfs.MemFS) {
			rewrite(t, fs, "d/sst/"+user[0], func(b []byte) []byte { return b[:len(b)-1] })
		}, want: []string{"sst/" + user[0], "bytes instead of"}},
		{name: "SSTable empty", do: func(t *testing.T, fs *vfs.MemFS) { writeAll(t, fs, "d/sst/"+user[0], nil) }, want: []string{"sst/" + user[0], "0 bytes instead of"}},
		{name: "SSTable missing", do: func(t *testing.T, fs *vfs.MemFS) { fs.Remove("d/sst/" + user[2]) }, want: []string{"sst/" + user[2], "missing", "tablet ", "of table " + parent}},
		{name: "SSTable of another", do: func(t *testing.T, fs *vfs.MemFS) {
			writeAll(t, fs, "d/sst/"+user[0], readAll(t, fs, "d/sst/"+user[1]))
			editMetadata(t, fs, func(s *Store, rows []*metadata.Row) {
				for _, r := range rows {
					for i := range r.Files {
						if r.Files[i].Object == user[0] {
							r.Files[i].Size = int64(len(readAll(t, fs, "d/sst/"+user[0])))
						}
					}
					putMeta(t, s, tabletKey(r), r.Marshal())
				}
			})
		}, want: []string{"sst/" + user[0], "not the one that was written"}},
		{name: "log flipped", do: func(t *testing.T, fs *vfs.MemFS) { rewrite(t, fs, ulogs[len(ulogs)-1], flip(70)) }, want: []string{"ulog: ", "corruption in", "refuse"}},
		{name: "log missing", do: func(t *testing.T, fs *vfs.MemFS) { fs.RemoveAll("d/ulog") }, want: []string{"ulog: the directory is missing"}},
		{name: "row missing", do: func(t *testing.T, fs *vfs.MemFS) {
			editMetadata(t, fs, func(s *Store, rows []*metadata.Row) { putMeta(t, s, tabletKey(rows[0]), nil) })
		}, want: []string{"do not tile the key space"}},
		{name: "row damaged", do: func(t *testing.T, fs *vfs.MemFS) {
			editMetadata(t, fs, func(s *Store, rows []*metadata.Row) { putMeta(t, s, tabletKey(rows[0]), flip(20)(rows[0].Marshal())) })
		}, want: []string{"METADATA row", "checksum"}, more: true},
		{name: "row names a file beyond the incarnation", do: func(t *testing.T, fs *vfs.MemFS) {
			editMetadata(t, fs, func(s *Store, rows []*metadata.Row) {
				rows[0].Files = append([]metadata.FileRef(nil), rows[0].Files...)
				rows[0].Files[0].ID += 99 << 32
				putMeta(t, s, tabletKey(rows[0]), rows[0].Marshal())
			})
		}, want: []string{"ROOT is older"}, more: true},
		{name: "row says other things than the file", do: func(t *testing.T, fs *vfs.MemFS) {
			editMetadata(t, fs, func(s *Store, rows []*metadata.Row) {
				rows[0].Files[0].Entries++
				putMeta(t, s, tabletKey(rows[0]), rows[0].Marshal())
			})
		}, want: []string{"METADATA says other things"}, more: true},
		{name: "file of another group", do: func(t *testing.T, fs *vfs.MemFS) {
			editMetadata(t, fs, func(s *Store, rows []*metadata.Row) {
				for i := range rows[0].Files {
					rows[0].Files[i].Group = 1
				}
				putMeta(t, s, tabletKey(rows[0]), rows[0].Marshal())
			})
		}, want: []string{"which is in another locality group"}, more: true},
		{name: "redo point beyond the log", do: func(t *testing.T, fs *vfs.MemFS) {
			editMetadata(t, fs, func(s *Store, rows []*metadata.Row) {
				rows[1].Redo = commitlog.Pos{Segment: 1 << 20, Offset: 100}
				putMeta(t, s, tabletKey(rows[1]), rows[1].Marshal())
			})
		}, want: []string{"ulog: ", "redo point"}},
		{name: "log trimmed too far", do: func(t *testing.T, fs *vfs.MemFS) {
			editMetadata(t, fs, func(s *Store, rows []*metadata.Row) {
				rows[1].Redo = commitlog.Pos{Segment: 1, Offset: 100}
				putMeta(t, s, tabletKey(rows[1]), rows[1].Marshal())
			})
		}, want: []string{"ulog: ", "missing", "redo point"}},
		{name: "no such row", do: func(t *testing.T, fs *vfs.MemFS) {
			editMetadata(t, fs, func(s *Store, rows []*metadata.Row) { putMeta(t, s, []byte("x"), []byte("y")) })
		}, want: []string{`METADATA row "x"`}},
		{name: "record too short", do: func(t *testing.T, fs *vfs.MemFS) {
			editMetadata(t, fs, func(s *Store, rows []*metadata.Row) { putMeta(t, s, recordKey("a"), []byte("y")) })
		}, want: []string{`METADATA row "ra"`}},
		{name: "schema damaged", do: func(t *testing.T, fs *vfs.MemFS) {
			editMetadata(t, fs, func(s *Store, rows []*metadata.Row) { putMeta(t, s, schemaKey(rows[0].Table), []byte("{")) })
		}, want: []string{"METADATA row", "schema"}, more: true},
		{name: "record of a row elsewhere", do: func(t *testing.T, fs *vfs.MemFS) {
			editMetadata(t, fs, func(s *Store, rows []*metadata.Row) {
				// Two tablets of the table change places.
				a, b := rows[0], rows[1]
				a.Tablet, b.Tablet = b.Tablet, a.Tablet
				a.FlushedSeq, b.FlushedSeq = 0, 0
				putMeta(t, s, tabletKey(a), a.Marshal())
				putMeta(t, s, tabletKey(b), b.Marshal())
			})
		}, want: []string{"ulog: ", "is not one of the tablet's"}, more: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			fs := copyAll(t, healthy)
			c.do(t, fs)
			damage, harmless, _ := checked(t, fs, "d")
			found := slices.ContainsFunc(damage, func(line string) bool {
				for _, w := range c.want {
					if !strings.Contains(line, w) {
						return false
					}
				}
				return true
			})
			if !found || len(damage) > 1 && !c.more {
				t.Errorf("found\n%s\nand\n%s\nwant %q", strings.Join(damage, "\n"), strings.Join(harmless, "\n"), c.want)
			}
		})
	}
}

// TestCheckHarmless: what crashes leave behind is no damage.
func TestCheckHarmless(t *testing.T) {
	fs := lived(t)
	_, user := objectsOf(t, fs)
	writeAll(t, fs, "d/sst/00000000000000ff.sst", readAll(t, fs, "d/sst/"+user[0]))
	writeAll(t, fs, "d/sst/.tmp/.abc", []byte("unfinished"))
	editMetadata(t, fs, func(s *Store, rows []*metadata.Row) {
		r := rows[0].Clone()
		r.Op = &metadata.Op{Kind: metadata.Split, At: []byte("row00200"), Left: metadata.TabletID(s.newID()), Right: metadata.TabletID(s.newID())}
		putMeta(t, s, tabletKey(r), r.Marshal())
		orphan := &metadata.Row{Table: s.newID(), Tablet: metadata.TabletID(s.newID()), Version: 1}
		putMeta(t, s, tabletKey(orphan), orphan.Marshal())
	})
	writeAll(t, fs, "d/sst/00000000000000ff.sst", []byte("an orphan")) // the store has swept the first
	writeAll(t, fs, "d/sst/.tmp/.abc", []byte("unfinished"))
	damage, harmless, _ := checked(t, fs, "d")
	if len(damage) > 0 {
		t.Errorf("found %q", damage)
	}
	for _, want := range []string{"sst/00000000000000ff.sst", "sst/.tmp/.abc", "split was under way", "its table does not exist"} {
		if !slices.ContainsFunc(harmless, func(l string) bool { return strings.Contains(l, want) }) {
			t.Errorf("no word of %q in %q", want, harmless)
		}
	}
	mustClose(t, mustOpen(t, Options{FS: fs, Dir: "d", NoBackground: true}))
	if damage, harmless, _ := checked(t, fs, "d"); len(damage)+len(harmless) > 0 {
		t.Errorf("after a start %q %q", damage, harmless)
	}
}

// TestCheckAfterCrash: whatever a crash at any write leaves, a kill or a power
// cut, is not called damage.
func TestCheckAfterCrash(t *testing.T) {
	first, end := seeds(t, 40)
	for seed := first; seed < end; seed++ {
		rng := rand.New(rand.NewPCG(seed, 99))
		fs := vfs.NewCrashableMem()
		for round := range 2 {
			c := newCrasher(fs, 1+rng.IntN(600), rng, &history{})
			if rng.IntN(2) == 0 {
				c.cfg.UnsyncedDataPercent = 100 // a kill
			}
			o := crashOptions(rng)
			o.FS, o.Log = c.wrap(), loud()
			s := mustOpen(t, o)
			table := newSchema("t", 1000, "f")
			if round == 0 {
				mustCreate(t, s, table, "k", "p")
			}
			stop := make(chan struct{})
			var busy sync.WaitGroup
			for w := range 3 {
				r := rand.New(rand.NewPCG(seed, uint64(round*10+w)))
				busy.Go(func() {
					for i := 0; i < 300 && !c.crashed(); i++ {
						key := fmt.Sprintf("%c%d", 'a'+r.IntN(26), r.IntN(40))
						switch r.IntN(40) {
						case 0:
							_ = s.SplitTablet(ctx, table.Name, []byte(key))
						case 1:
							_ = s.MergeTablets(ctx, table.Name, []byte(key))
						case 2:
							_ = s.DropRowRange(ctx, table.Name, []byte(key[:1]))
						default:
							_ = s.MutateRow(ctx, table.Name, entry(key, setCell("f", "q", int64(r.IntN(9))*1000, strings.Repeat(key, r.IntN(50)))))
						}
					}
				})
			}
			churner := rand.New(rand.NewPCG(seed, 77))
			var churning sync.WaitGroup
			churning.Go(func() { _ = churn(s, churner, stop) })
			busy.Wait()
			close(stop)
			churning.Wait()
			c.crash()
			mustClose(t, s)
			fs = c.clone
			if _, err := fs.Stat(o.Dir); err != nil {
				break // the power was cut before there was anything
			}
			if _, err := Check(ctx, fs, o.Dir, func(f Finding) {
				if !f.Harmless {
					t.Errorf("seed %d, round %d: %s: %s", seed, round, f.Where, f.What)
				}
			}); err != nil && fault.KindOf(err) != fault.FailedPrecondition {
				t.Errorf("seed %d: %v", seed, err)
			}
			if t.Failed() {
				return
			}
			s = mustOpen(t, Options{FS: fs, Dir: o.Dir, NoBackground: true, Log: loud()})
			_, missing := s.Table(ctx, table.Name)
			got := content(s, table.Name, row.All)
			mustClose(t, s)
			if missing != nil {
				break
			}
			if strings.HasPrefix(got, "error") {
				t.Fatalf("seed %d: %s", seed, got)
			}
			if damage, _, _ := checked(t, fs, o.Dir); len(damage) > 0 {
				t.Fatalf("seed %d: after the recovery %q", seed, damage)
			}
		}
	}
}

// TestCheckRandomDamage: whatever byte of whatever file is changed, or wherever
// a file ends, either Check complains or the store is as it was. The one thing
// it cannot see is that the end of a log is gone as a whole: it looks like
// changes that were never acknowledged.
func TestCheckRandomDamage(t *testing.T) {
	healthy := lived(t)
	show := func(fs vfs.FS) (string, error) {
		s, err := Open(ctx, Options{FS: fs, Dir: "d", NoBackground: true, Log: loud()})
		if err != nil {
			return "", err
		}
		defer mustClose(t, s)
		all := content(s, parent+"one", row.All)
		for _, k := range []string{"key", "key2"} {
			v, _, err := s.GetRecord(ctx, k)
			all += fmt.Sprintf("%s=%s %v\n", k, v, err)
		}
		return all, nil
	}
	want, err := show(copyAll(t, healthy))
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, dir := range []string{"d", "d/log", "d/ulog", "d/sst"} {
		names, err := healthy.List(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range names {
			if info, err := healthy.Stat(dir + "/" + n); err == nil && !info.IsDir() && info.Size() > 0 {
				files = append(files, dir+"/"+n)
			}
		}
	}
	slices.Sort(files)
	found := 0
	first, end := seeds(t, 400)
	for seed := first; seed < end; seed++ {
		rng := rand.New(rand.NewPCG(seed, 3))
		fs := copyAll(t, healthy)
		name := files[rng.IntN(len(files))]
		what, endless := "", false
		isLog := strings.HasSuffix(name, ".log")
		rewrite(t, fs, name, func(b []byte) []byte {
			switch at := rng.IntN(len(b)); rng.IntN(4) {
			case 0:
				what, endless = fmt.Sprintf("cut at %d", at), isLog
				return b[:at]
			case 1:
				n := min(1+rng.IntN(4096), len(b)-at)
				endless = isLog && at+n == len(b)
				what = fmt.Sprintf("%d bytes zeroed at %d", n, at)
				clear(b[at : at+n])
			default:
				what = fmt.Sprintf("changed at %d", at)
				b[at] ^= byte(1 + rng.IntN(255))
			}
			return b
		})
		damage, harmless, _ := checked(t, fs, "d")
		if len(damage)+len(harmless) > 0 {
			found++
			continue
		}
		if endless {
			continue
		}
		if got, err := show(fs); err != nil || got != want {
			t.Errorf("seed %d: %s (%d bytes) %s: no complaint, but %v, %d bytes of content instead of %d", seed, name, len(readAll(t, healthy, name)), what, err, len(got), len(want))
		}
	}
	if found == 0 {
		t.Error("no damage was found at all")
	}
	t.Logf("%d of %d found", found, end-first)
}
