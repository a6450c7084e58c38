package check_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/trestledb/trestle/cluster/standalone"
	"github.com/trestledb/trestle/engine/datadir/datadirtest"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
)

// logged is a directory whose log of all tables has 40 rows in each of two tablets,
// in several segments and in no SSTable, and one row in an SSTable.
func logged(t testing.TB) *vfs.MemFS {
	t.Helper()
	fs := vfs.NewMem()
	s := mustOpen(t, fs)
	_, err := s.CreateTable(t.Context(), &schema.Table{Name: parent + "one", Granularity: 1000, Families: map[string]schema.Family{"f": {Name: "f"}}}, [][]byte{[]byte("m")})
	must(t, err)
	put(t, s, "one", "a-flushed", "in an SSTable")
	flush(t, s)
	for i := range 40 {
		for _, half := range []string{"a", "z"} {
			put(t, s, "one", fmt.Sprintf("%s%02d", half, i), strings.Repeat("v", 1500))
		}
	}
	end(t, s)
	return fs
}

// TestDropDamagedLog: a start on a damaged commit log of all tables is refused and
// names it; given up, everything else is served, and nothing of the directory is
// damaged. What is damaged is kept.
func TestDropDamagedLog(t *testing.T) {
	healthy := logged(t)
	if _, err := standalone.FindDamagedLog(t.Context(), healthy, "d"); fault.KindOf(err) != fault.NotFound {
		t.Errorf("of a sound log: %v", err)
	}
	if _, err := standalone.DropDamagedLog(t.Context(), healthy, "d"); fault.KindOf(err) != fault.NotFound {
		t.Errorf("a sound log is given up: %v", err)
	}
	s := mustOpen(t, healthy)
	if _, err := standalone.FindDamagedLog(t.Context(), healthy, "d"); fault.KindOf(err) != fault.FailedPrecondition {
		t.Errorf("beside a server: %v", err)
	}
	all := rowsOf(t, s, "one")
	end(t, s)
	ulogs := segments(t, healthy, "d/ulog")
	if len(all) != 81 || len(ulogs) < 4 {
		t.Fatalf("%d rows in %v", len(all), ulogs)
	}
	for _, c := range []struct {
		name  string
		do    func(fs *vfs.MemFS)
		where string // of the first gap
		rows  int    // that are lost at most
	}{
		{"bit of a record", func(fs *vfs.MemFS) { rewrite(t, fs, ulogs[1], datadirtest.Flip(300)) }, "000000000002.log, bytes 64 to", 1},
		{"bit of a frame header", func(fs *vfs.MemFS) { rewrite(t, fs, ulogs[1], datadirtest.Flip(70)) }, "000000000002.log, bytes 64 to", 1},
		{"bit of a segment header", func(fs *vfs.MemFS) { rewrite(t, fs, ulogs[1], datadirtest.Flip(9)) }, "000000000002.log, bytes 0 to 64", 0},
		{"cut", func(fs *vfs.MemFS) { rewrite(t, fs, ulogs[1], func(b []byte) []byte { return b[:2000] }) }, "000000000002.log, bytes", 12},
		{"missing segment", func(fs *vfs.MemFS) { must(t, fs.Remove(ulogs[1])) }, "000000000002.log: is missing", 12},
		{"missing directory", func(fs *vfs.MemFS) { must(t, fs.RemoveAll("d/ulog")) }, "ulog: is missing", 80},
		{"two places", func(fs *vfs.MemFS) {
			rewrite(t, fs, ulogs[1], datadirtest.Flip(300))
			rewrite(t, fs, ulogs[2], datadirtest.Flip(300))
		}, "000000000002.log, bytes", 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			fs := copyAll(t, healthy)
			c.do(fs)
			_, err := open(t, fs)
			if fault.KindOf(err) != fault.Corruption || !strings.Contains(err.Error(), "ulog") || !strings.Contains(err.Error(), "trestle check d") && !strings.Contains(err.Error(), "log drop-damaged d") {
				t.Errorf("a start says %v", err)
			}
			if damage, _, _ := checked(t, fs); len(damage) != 1 || !strings.Contains(damage[0], "ulog") {
				t.Errorf("check says %q", damage)
			}
			before := tree(t, fs, "d")
			d, err := standalone.FindDamagedLog(t.Context(), fs, "d")
			must(t, err)
			if tree(t, fs, "d") != before {
				t.Error("looking changes something")
			}
			if len(d.Gaps) == 0 || !strings.HasPrefix(d.Gaps[0].String(), c.where) || d.Interrupted {
				t.Errorf("found %+v", d)
			}
			old := ""
			if c.rows < 80 {
				old = tree(t, fs, "d/ulog")
			}
			aside, err := standalone.DropDamagedLog(t.Context(), fs, "d")
			must(t, err)
			if c.rows < 80 && (aside != "d/ulog.damaged-1" || strings.ReplaceAll(tree(t, fs, aside), aside, "d/ulog") != old) {
				t.Errorf("the damaged log is not kept as it was, in %q", aside)
			}
			if damage, _, _ := checked(t, fs); len(damage) > 0 {
				t.Errorf("given up, check says %q", damage)
			}
			s := mustOpen(t, fs)
			got := rowsOf(t, s, "one")
			lost := 0
			for key, value := range all {
				if v, ok := got[key]; !ok {
					lost++
				} else if v != value {
					t.Errorf("row %s holds %.20q", key, v)
				}
			}
			told := len(d.Lost) > 0
			for _, l := range d.Lost {
				if !l.Before.After(l.After) || time.Since(l.Before) > time.Hour {
					t.Errorf("what was committed after %v and before %v is told to be lost", l.After, l.Before)
				}
			}
			if lost > c.rows || lost < min(c.rows, 1) || c.rows < 80 && lost > 0 && !told || len(got)+lost != len(all) {
				t.Errorf("%d rows are lost, of %d at most; told: %v", lost, c.rows, told)
			}
			put(t, s, "one", "a-new", "after")
			end(t, s)
			s = mustOpen(t, fs)
			if now := rowsOf(t, s, "one"); len(now) != len(got)+1 || now["a-new"] != "after" {
				t.Errorf("after another start there are %d rows instead of %d", len(now), len(got)+1)
			}
			end(t, s)
			if damage, _, _ := checked(t, fs); len(damage) > 0 {
				t.Errorf("after two starts check says %q", damage)
			}
		})
	}
}

// TestNoWayOn: when METADATA or the lock service have lost something the log of
// tables is not given up, and no start goes on without.
func TestNoWayOn(t *testing.T) {
	healthy := logged(t)
	logs, mlogs, ulogs := segments(t, healthy, "d/lock/log"), segments(t, healthy, "d/mlog"), segments(t, healthy, "d/ulog")
	for name, c := range map[string]struct {
		do   func(fs *vfs.MemFS)
		want string // of the start
	}{
		"METADATA's log":              {func(fs *vfs.MemFS) { rewrite(t, fs, mlogs[0], datadirtest.Flip(70)) }, "mlog"},
		"METADATA's log, missing":     {func(fs *vfs.MemFS) { must(t, fs.RemoveAll("d/mlog")) }, "has no mlog, the commit log of METADATA"},
		"lock service's log":          {func(fs *vfs.MemFS) { rewrite(t, fs, logs[0], datadirtest.Flip(70)) }, "lock/log"},
		"lock service's log, missing": {func(fs *vfs.MemFS) { must(t, fs.RemoveAll("d/lock/log")) }, "has no lock/log, the commit log of the lock service"},
		"ROOT":                        {func(fs *vfs.MemFS) { rewrite(t, fs, "d/lock/ROOT", datadirtest.Flip(60)) }, "copy lock/ROOT.copy"},
		"ROOT, missing":               {func(fs *vfs.MemFS) { must(t, fs.Remove("d/lock/ROOT")) }, "copy lock/ROOT.copy"},
	} {
		fs := copyAll(t, healthy)
		c.do(fs)
		if _, err := open(t, fs); fault.KindOf(err) != fault.Corruption || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: a start says %v", name, err)
		}
		if damage, _, _ := checked(t, fs); len(damage) == 0 {
			t.Errorf("%s: check finds nothing", name)
		}
		rewrite(t, fs, ulogs[1], datadirtest.Flip(300))
		before := tree(t, fs, "d/ulog")
		if _, err := standalone.DropDamagedLog(t.Context(), fs, "d"); err == nil || !strings.Contains(name, "ROOT") && fault.KindOf(err) != fault.FailedPrecondition {
			t.Errorf("%s: the log of tables is given up: %v", name, err)
		}
		if tree(t, fs, "d/ulog") != before {
			t.Errorf("%s: it was changed", name)
		}
	}
}

// TestDropDamagedLogCrash cuts the power at each write: a start is refused until it
// is done, and calling it again does it.
func TestDropDamagedLogCrash(t *testing.T) {
	healthy := logged(t)
	fs := datadirtest.NewCrashableMem()
	if ok, err := vfs.Clone(healthy, fs, "d", "d", vfs.CloneSync); err != nil || !ok {
		t.Fatal(ok, err)
	}
	root, err := fs.OpenDir("")
	must(t, err)
	must(t, root.Sync())
	rewrite(t, fs, segments(t, fs, "d/ulog")[1], datadirtest.Flip(300))
	f, err := fs.Open(segments(t, fs, "d/ulog")[1])
	must(t, err)
	must(t, f.Sync())
	dir, err := fs.OpenDir("d/ulog")
	must(t, err)
	must(t, dir.Sync())
	var mu sync.Mutex
	crashed := []*datadirtest.CrashableMem{fs.CrashClone(vfs.CrashCloneCfg{})}
	wrapped := errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			mu.Lock()
			defer mu.Unlock()
			crashed = append(crashed, fs.CrashClone(vfs.CrashCloneCfg{}))
		}
		return nil
	}))
	_, err = standalone.DropDamagedLog(t.Context(), wrapped, "d")
	must(t, err)
	crashed = append(crashed, fs.CrashClone(vfs.CrashCloneCfg{}))
	done := 0
	for i, fs := range crashed {
		s, err := open(t, fs)
		if err == nil {
			done++
		} else {
			if fault.KindOf(err) != fault.Corruption {
				t.Fatalf("crash %d: %v", i, err)
			}
			_, err := standalone.DropDamagedLog(t.Context(), fs, "d")
			if err != nil {
				t.Fatalf("crash %d: again: %v", i, err)
			}
			s = mustOpen(t, fs)
		}
		if n := len(rowsOf(t, s, "one")); n != 80 {
			t.Errorf("crash %d: %d rows", i, n)
		}
		end(t, s)
		names, err := fs.List("d")
		must(t, err)
		if !slices.Contains(names, "ulog.damaged-1") || slices.Contains(names, "ulog.new") {
			t.Errorf("crash %d: %v", i, names)
		}
	}
	if done == 0 || done > len(crashed)/2 {
		t.Errorf("%d of %d crashes left it done", done, len(crashed))
	}
}

// TestDropDamagedLogFails: what a call wrote that failed, or was killed, is not taken
// for a whole log when the damaged one is not in its place any more.
func TestDropDamagedLogFails(t *testing.T) {
	fs := logged(t)
	rewrite(t, fs, segments(t, fs, "d/ulog")[1], datadirtest.Flip(300))
	full := errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileSync && strings.Contains(op.Path, "ulog.") {
			return errors.New("the disk is full")
		}
		return nil
	}))
	if _, err := standalone.DropDamagedLog(t.Context(), full, "d"); err == nil {
		t.Fatal("a log is rewritten on a full disk")
	}
	names, err := fs.List("d")
	must(t, err)
	if slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, "ulog.") }) {
		t.Errorf("left behind: %v", names)
	}
	// As a kill leaves it; then the operator makes room.
	must(t, fs.MkdirAll("d/ulog.part", 0o700))
	datadirtest.WriteFile(t, fs, "d/ulog.part/000000000009.log", []byte("half"))
	must(t, fs.Rename("d/ulog", "elsewhere"))
	if d, err := standalone.FindDamagedLog(t.Context(), fs, "d"); err != nil || d.Interrupted || len(d.Gaps) != 1 || !strings.Contains(d.Gaps[0].String(), "is missing") {
		t.Errorf("half a log is found: %+v, %v", d, err)
	}
	must(t, fs.Rename("elsewhere", "d/ulog"))
	_, err = standalone.DropDamagedLog(t.Context(), fs, "d")
	must(t, err)
	s := mustOpen(t, fs)
	if n := len(rowsOf(t, s, "one")); n != 80 {
		t.Errorf("%d rows", n)
	}
	end(t, s)
}

// rowsOf returns the values of a table of one cell a row.
func rowsOf(t testing.TB, s *standalone.Server, table string) map[string]string {
	t.Helper()
	all, err := contents(t, s, table)
	must(t, err)
	out, key := map[string]string{}, ""
	for line := range strings.Lines(all) {
		line = strings.TrimSuffix(line, "\n")
		if cell, ok := strings.CutPrefix(line, " "); ok {
			_, out[key], _ = strings.Cut(cell, "=")
		} else {
			key = line
		}
	}
	return out
}

// TestHardlyBegun: a directory whose server was killed before its master made the
// first tablet of METADATA is not damaged.
func TestHardlyBegun(t *testing.T) {
	for range 10 {
		fs := vfs.NewMem()
		end(t, mustOpen(t, fs))
		if damage, _, _ := checked(t, fs); len(damage) > 0 {
			t.Fatal(damage)
		}
	}
}
