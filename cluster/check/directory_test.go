package check_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/check"
	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/cluster/standalone"
	"github.com/trestledb/trestle/cluster/tabletserver"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/datadir/datadirtest"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/tablet"
)

const parent = "projects/p/instances/i/tables/"

// seeds returns a range of seeds for a test that takes n of them by default.
func seeds(t *testing.T, n uint64) uint64 {
	t.Helper()
	if testing.Short() {
		n = max(n/10, 1)
	}
	if v := os.Getenv("TRESTLE_TEST_SEEDS"); v != "" {
		var err error
		if n, err = strconv.ParseUint(v, 10, 32); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// checked returns what Directory finds, a line each, damage and what is harmless.
func checked(t testing.TB, fs vfs.FS) (damage, harmless []string, sum check.Summary) {
	t.Helper()
	sum, err := check.Directory(t.Context(), fs, "d", nil, func(f check.Finding) {
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

// open opens the directory d. Nothing happens to it by itself.
func open(t testing.TB, fs vfs.FS) (*standalone.Server, error) {
	o := standalone.Options{Dir: "d", FS: fs, Log: commitlog.Options{SegmentBytes: 16 << 10}}
	o.TabletServer = tabletserver.Options{CacheBytes: 1 << 20, SplitRate: -1, SplitBytes: -1, Tablet: tablet.Options{FileBytes: 16 << 10}}
	o.Master.Sweep, o.Master.Merge, o.Master.Balance = -1, -1, -1
	return standalone.Open(t.Context(), o)
}

func mustOpen(t testing.TB, fs vfs.FS) *standalone.Server {
	t.Helper()
	s, err := open(t, fs)
	must(t, err)
	return s
}

// end closes a server and leaves to the logs what is in them.
func end(t testing.TB, s *standalone.Server) {
	t.Helper()
	now, cancel := context.WithCancel(context.Background())
	cancel()
	must(t, s.Close(now))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func put(t testing.TB, s *standalone.Server, table, key, value string) {
	t.Helper()
	must(t, s.MutateRow(t.Context(), parent+table, &row.Entry{Key: []byte(key), Mutations: []row.Mutation{
		{Op: row.SetCell, Family: "f", Qualifier: []byte("q"), Timestamp: 1000, Value: []byte(value)}}}))
}

func flush(t testing.TB, s *standalone.Server) {
	t.Helper()
	var all []metadata.TabletID
	must(t, s.Rows(t.Context(), func(r *metadata.Row) error {
		if r.Table != metastore.Table && r.Assignment != nil && r.Assignment.State == metadata.Open {
			all = append(all, r.Tablet)
		}
		return nil
	}))
	must(t, s.TabletServer().Flush(t.Context(), all))
}

func filled(t testing.TB, s *standalone.Server, name string, n int) {
	t.Helper()
	_, err := s.CreateTable(t.Context(), &schema.Table{Name: parent + name, Granularity: 1000, Families: map[string]schema.Family{"f": {Name: "f"}}}, nil)
	must(t, err)
	for i := range n {
		put(t, s, name, fmt.Sprintf("row%05d", i), fmt.Sprintf("value %d of %s", i, name))
	}
	flush(t, s)
}

// contents reads a table: a line for each cell.
func contents(t testing.TB, s *standalone.Server, table string) (string, error) {
	w := &collector{}
	_, err := s.ReadRows(t.Context(), &scan.Request{Table: parent + table, Ranges: []row.Range{row.All}}, w)
	return w.out.String(), err
}

type collector struct{ out strings.Builder }

func (c *collector) StartRow(key []byte) { fmt.Fprintf(&c.out, "%s\n", key) }
func (c *collector) Cell(x *row.Cell) {
	fmt.Fprintf(&c.out, " %s:%s@%d=%s\n", x.Family, x.Qualifier, x.Timestamp, x.Value)
}
func (*collector) EndRow() (bool, error) { return false, nil }
func (*collector) Scanned([]byte)        {}
func (*collector) Flush() error          { return nil }

// lived makes a data directory with a bit of everything.
func lived(t testing.TB) *vfs.MemFS {
	fs := vfs.NewMem()
	s := mustOpen(t, fs)
	ctx := t.Context()
	filled(t, s, "one", 800)
	must(t, s.SplitAt(ctx, parent+"one", []byte("row00300")))
	must(t, s.SplitAt(ctx, parent+"one", []byte("row00500")))
	must(t, s.MergeAt(ctx, parent+"one", []byte("row00300")))
	must(t, s.DropRowRange(ctx, parent+"one", []byte("row0001")))
	put(t, s, "one", "row00700", "newer")
	filled(t, s, "gone", 10)
	must(t, s.DeleteTable(ctx, parent+"gone"))
	filled(t, s, "kept", 10)
	_, err := s.CreateBackup(ctx, parent+"kept", &schema.Backup{Name: "the-backup", ExpireTime: time.Now().Add(time.Hour)})
	must(t, err)
	put(t, s, "kept", "row00003", "newer")
	must(t, s.CompactTablets(ctx, parent+"kept", row.All, nil))
	_, err = s.PutRecord(ctx, "key", []byte("value"), 0)
	must(t, err)
	flush(t, s)
	must(t, s.Close(ctx))
	end(t, mustOpen(t, fs))
	s = mustOpen(t, fs) // which writes the lock service's items to an SSTable
	put(t, s, "one", "row00100", "in the log only")
	put(t, s, "one", "row00600", "in the log only")
	_, err = s.PutRecord(ctx, "key2", []byte("in the log only"), 0)
	must(t, err)
	end(t, s)
	// The sweeper did not run.
	_, err = check.Directory(ctx, fs, "d", nil, func(f check.Finding) {
		if f.Harmless && strings.Contains(f.What, "no tablet or backup names it") {
			must(t, fs.Remove("d/"+f.Where))
		}
	})
	must(t, err)
	return fs
}

func TestHealthy(t *testing.T) {
	fs := lived(t)
	before := tree(t, fs, "d")
	damage, harmless, sum := checked(t, fs)
	if len(damage)+len(harmless) > 0 {
		t.Errorf("found %q and %q", damage, harmless)
	}
	if sum.Tables != 3 || sum.Tablets != 4 || sum.Backups != 1 || sum.SSTables < 6 || sum.Entries < 800 || sum.LogRecords < 3 || sum.SSTableBytes == 0 {
		t.Errorf("%+v", sum)
	}
	if tree(t, fs, "d") != before {
		t.Error("it changed something")
	}
	s := mustOpen(t, fs)
	if _, err := check.Directory(t.Context(), fs, "d", nil, func(check.Finding) {}); fault.KindOf(err) != fault.FailedPrecondition {
		t.Errorf("beside a server: %v", err)
	}
	end(t, s)
	for _, dir := range []string{"none", "empty"} {
		if dir == "empty" {
			must(t, fs.MkdirAll(dir, 0o755))
		}
		if _, err := check.Directory(t.Context(), fs, dir, nil, func(check.Finding) {}); err == nil {
			t.Errorf("%s: no error", dir)
		}
		if list, _ := fs.List(dir); len(list) > 0 {
			t.Errorf("%s: made %v", dir, list)
		}
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := check.Directory(gone, fs, "d", nil, func(f check.Finding) { t.Errorf("cancelled: found %+v", f) }); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// tree lists all files with their contents.
func tree(t testing.TB, fs vfs.FS, dir string) string {
	t.Helper()
	names, err := fs.List(dir)
	must(t, err)
	slices.Sort(names)
	var out strings.Builder
	for _, n := range names {
		path := dir + "/" + n
		info, err := fs.Stat(path)
		must(t, err)
		if info.IsDir() {
			out.WriteString(tree(t, fs, path))
		} else {
			fmt.Fprintf(&out, "%s %q\n", path, datadirtest.ReadFile(t, fs, path))
		}
	}
	return out.String()
}

// rewrite changes a file.
func rewrite(t testing.TB, fs vfs.FS, name string, change func([]byte) []byte) {
	t.Helper()
	datadirtest.WriteFile(t, fs, name, change(slices.Clone(datadirtest.ReadFile(t, fs, name))))
}

// copyAll returns a copy of a directory.
func copyAll(t testing.TB, from *vfs.MemFS) *vfs.MemFS {
	to := vfs.NewMem()
	if ok, err := vfs.Clone(from, to, "d", "d"); err != nil || !ok {
		t.Fatalf("copy: %v %v", ok, err)
	}
	return to
}

// sstables lists those of a directory.
func sstables(t testing.TB, fs vfs.FS, dir string) (out []string) {
	names, err := fs.List(dir)
	must(t, err)
	for _, n := range names {
		if strings.HasSuffix(n, ".sst") {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out
}

func segments(t testing.TB, fs vfs.FS, dir string) []string {
	var out []string
	names, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if strings.HasSuffix(n, ".log") && len(datadirtest.ReadFile(t, fs, dir+"/"+n)) > 0 {
			out = append(out, dir+"/"+n)
		}
	}
	slices.Sort(out)
	return out
}

// edit changes METADATA as nobody should. rows are those of the table one.
func edit(t testing.TB, fs vfs.FS, change func(s *standalone.Server, rows []*metadata.Row)) {
	t.Helper()
	s := mustOpen(t, fs)
	one, err := s.Table(t.Context(), parent+"one")
	must(t, err)
	var rows []*metadata.Row
	must(t, s.Rows(t.Context(), func(r *metadata.Row) error {
		if r.Table == one.ID {
			rows = append(rows, r.Clone())
		}
		return nil
	}))
	change(s, rows)
	end(t, s)
}

func cas(t testing.TB, s *standalone.Server, r *metadata.Row) {
	t.Helper()
	must(t, s.Metadata().CAS(t.Context(), r))
}

// TestDamage damages each kind of file and expects the right complaint.
func TestDamage(t *testing.T) {
	healthy := lived(t)
	items, user := sstables(t, healthy, "d/lock/sst"), named(t, healthy)
	logs, mlogs, ulogs := segments(t, healthy, "d/lock/log"), segments(t, healthy, "d/mlog"), segments(t, healthy, "d/ulog")
	if len(items) == 0 || len(user) < 2 || len(logs) == 0 || len(mlogs) == 0 || len(ulogs) == 0 {
		t.Fatalf("too little to damage: %v %v %v %v %v", items, user, logs, mlogs, ulogs)
	}
	for _, c := range []struct {
		name string
		do   func(t *testing.T, fs *vfs.MemFS)
		want []string // in one line of damage
		more bool     // other complaints may follow from the damage
	}{
		{name: "format of the future", do: func(t *testing.T, fs *vfs.MemFS) {
			datadirtest.WriteFile(t, fs, "d/FORMAT", []byte("trestle data format 9\n"))
		},
			want: []string{"FORMAT", "format 9", "use the version"}},
		{name: "format of the past", do: func(t *testing.T, fs *vfs.MemFS) {
			datadirtest.WriteFile(t, fs, "d/FORMAT", []byte("trestle data format 1\n"))
		},
			want: []string{"FORMAT", "format 1", "use the version"}},
		{name: "format is not ours", do: func(t *testing.T, fs *vfs.MemFS) { datadirtest.WriteFile(t, fs, "d/FORMAT", []byte("something")) }, want: []string{"FORMAT: "}},
		{name: "format missing", do: func(t *testing.T, fs *vfs.MemFS) { must(t, fs.Remove("d/FORMAT")) }, want: []string{"FORMAT: ", "missing"}},
		{name: "root flipped", do: func(t *testing.T, fs *vfs.MemFS) { rewrite(t, fs, "d/lock/ROOT", datadirtest.Flip(60)) }, want: []string{"lock/ROOT: ", "copy lock/ROOT.copy"}},
		{name: "root missing", do: func(t *testing.T, fs *vfs.MemFS) { must(t, fs.Remove("d/lock/ROOT")) }, want: []string{"lock/ROOT: ", "no lock/ROOT", "copy lock/ROOT.copy"}},
		{name: "root and its copy empty", do: func(t *testing.T, fs *vfs.MemFS) {
			datadirtest.WriteFile(t, fs, "d/lock/ROOT", nil)
			datadirtest.WriteFile(t, fs, "d/lock/ROOT.copy", nil)
		}, want: []string{"lock/ROOT: ", "restore"}},
		{name: "lock service's log flipped", do: func(t *testing.T, fs *vfs.MemFS) { rewrite(t, fs, logs[len(logs)-1], datadirtest.Flip(70)) }, want: []string{"lock/log: ", "corruption in"}, more: true},
		{name: "lock service's log missing", do: func(t *testing.T, fs *vfs.MemFS) { must(t, fs.RemoveAll("d/lock/log")) }, want: []string{"lock/log: the directory is missing"}, more: true},
		{name: "lock service's SSTable flipped", do: func(t *testing.T, fs *vfs.MemFS) { rewrite(t, fs, "d/lock/sst/"+items[0], datadirtest.Flip(40)) }, want: []string{"lock/sst/" + items[0], "checksum", "the lock service"}, more: true},
		{name: "lock service's SSTable missing", do: func(t *testing.T, fs *vfs.MemFS) { must(t, fs.Remove("d/lock/sst/"+items[0])) }, want: []string{"lock/sst/" + items[0], "missing", "the lock service"}, more: true},
		{name: "METADATA log flipped", do: func(t *testing.T, fs *vfs.MemFS) { rewrite(t, fs, mlogs[len(mlogs)-1], datadirtest.Flip(70)) }, want: []string{"mlog", "corruption in"}, more: true},
		{name: "METADATA log missing", do: func(t *testing.T, fs *vfs.MemFS) { must(t, fs.RemoveAll("d/mlog")) }, want: []string{"mlog: the directory is missing"}, more: true},
		{name: "METADATA SSTable flipped", do: func(t *testing.T, fs *vfs.MemFS) { rewrite(t, fs, "d/sst/"+user["METADATA"], datadirtest.Flip(40)) }, want: []string{"sst/" + user["METADATA"], "checksum", "METADATA"}, more: true},
		{name: "METADATA SSTable missing", do: func(t *testing.T, fs *vfs.MemFS) { must(t, fs.Remove("d/sst/"+user["METADATA"])) }, want: []string{"METADATA"}, more: true},
		{name: "SSTable data flipped", do: func(t *testing.T, fs *vfs.MemFS) { rewrite(t, fs, "d/sst/"+user["one"], datadirtest.Flip(100)) }, want: []string{"sst/" + user["one"], "wrong checksum", "DATA_LOSS", "of its rows from"}},
		{name: "SSTable filter or index flipped", do: func(t *testing.T, fs *vfs.MemFS) { rewrite(t, fs, "d/sst/"+user["one"], datadirtest.Flip(-2000)) }, want: []string{"sst/" + user["one"], "checksum"}},
		{name: "SSTable footer flipped", do: func(t *testing.T, fs *vfs.MemFS) { rewrite(t, fs, "d/sst/"+user["one"], datadirtest.Flip(-20)) }, want: []string{"sst/" + user["one"]}},
		{name: "SSTable cut", do: func(t *testing.T, fs *vfs.MemFS) {
			rewrite(t, fs, "d/sst/"+user["one"], func(b []byte) []byte { return b[:len(b)-1] })
		}, want: []string{"sst/" + user["one"], "bytes instead of"}},
		{name: "SSTable empty", do: func(t *testing.T, fs *vfs.MemFS) { datadirtest.WriteFile(t, fs, "d/sst/"+user["one"], nil) }, want: []string{"sst/" + user["one"], "0 bytes instead of"}},
		{name: "SSTable missing", do: func(t *testing.T, fs *vfs.MemFS) { must(t, fs.Remove("d/sst/"+user["one"])) }, want: []string{"sst/" + user["one"], "missing", "tablet ", "of table " + parent + "one"}},
		{name: "SSTable of a backup missing", do: func(t *testing.T, fs *vfs.MemFS) { must(t, fs.Remove("d/sst/"+user["the-backup"])) }, want: []string{"sst/" + user["the-backup"], "missing", "of backup the-backup"}},
		{name: "SSTable of another", do: func(t *testing.T, fs *vfs.MemFS) {
			other := datadirtest.ReadFile(t, fs, "d/sst/"+user["kept"])
			edit(t, fs, func(s *standalone.Server, rows []*metadata.Row) {
				for _, r := range rows {
					for i := range r.Files {
						if r.Files[i].Object == user["one"] {
							r.Files[i].Size = int64(len(other))
						}
					}
					cas(t, s, r)
				}
			})
			datadirtest.WriteFile(t, fs, "d/sst/"+user["one"], other)
		}, want: []string{"sst/" + user["one"], "not the one that was written"}},
		{name: "log flipped", do: func(t *testing.T, fs *vfs.MemFS) { rewrite(t, fs, ulogs[len(ulogs)-1], datadirtest.Flip(70)) }, want: []string{"ulog: ", "corruption in", "refuse"}},
		{name: "log missing", do: func(t *testing.T, fs *vfs.MemFS) { must(t, fs.RemoveAll("d/ulog")) }, want: []string{"ulog: the directory is missing"}},
		{name: "row missing", do: func(t *testing.T, fs *vfs.MemFS) {
			edit(t, fs, func(s *standalone.Server, rows []*metadata.Row) { must(t, s.Metadata().Delete(t.Context(), rows[0])) })
		}, want: []string{"table " + parent + "one", "do not tile the key space"}},
		{name: "all rows missing", do: func(t *testing.T, fs *vfs.MemFS) {
			edit(t, fs, func(s *standalone.Server, rows []*metadata.Row) {
				for _, r := range rows {
					must(t, s.Metadata().Delete(t.Context(), r))
				}
			})
		}, want: []string{"table " + parent + "one", "has no tablets"}, more: true},
		{name: "row damaged", do: func(t *testing.T, fs *vfs.MemFS) {
			edit(t, fs, func(s *standalone.Server, rows []*metadata.Row) {
				roots, err := s.Metadata().Roots(t.Context())
				must(t, err)
				must(t, s.TabletServer().MutateRow(t.Context(), rpc.Target{Tablet: roots[0].Tablet}, &row.Entry{
					Key:       metastore.Key(rpc.TabletKey{Table: rows[0].Table, End: rows[0].End}),
					Mutations: []row.Mutation{{Op: row.SetCell, Family: "m", Qualifier: []byte("r"), Value: datadirtest.Flip(20)(rows[0].Marshal())}}}))
			})
		}, want: []string{"METADATA: cannot be read", "checksum"}, more: true},
		{name: "row names a file of a start that never was", do: func(t *testing.T, fs *vfs.MemFS) {
			edit(t, fs, func(s *standalone.Server, rows []*metadata.Row) {
				rows[0].Files = slices.Clone(rows[0].Files)
				rows[0].Files[0].ID += 99 << 32
				cas(t, s, rows[0])
			})
		}, want: []string{"is older than the rest"}, more: true},
		{name: "row says other things than the file", do: func(t *testing.T, fs *vfs.MemFS) {
			edit(t, fs, func(s *standalone.Server, rows []*metadata.Row) {
				rows[0].Files[0].Entries++
				cas(t, s, rows[0])
			})
		}, want: []string{"METADATA says other things"}, more: true},
		{name: "file of another group", do: func(t *testing.T, fs *vfs.MemFS) {
			edit(t, fs, func(s *standalone.Server, rows []*metadata.Row) {
				for i := range rows[0].Files {
					rows[0].Files[i].Group = 1
				}
				cas(t, s, rows[0])
			})
		}, want: []string{"which is in another locality group"}, more: true},
		{name: "redo point beyond the log", do: func(t *testing.T, fs *vfs.MemFS) {
			edit(t, fs, func(s *standalone.Server, rows []*metadata.Row) {
				rows[1].Redo = commitlog.Pos{Segment: 1 << 20, Offset: 100}
				cas(t, s, rows[1])
			})
		}, want: []string{"ulog: ", "redo point"}},
		{name: "log trimmed too far", do: func(t *testing.T, fs *vfs.MemFS) {
			edit(t, fs, func(s *standalone.Server, rows []*metadata.Row) {
				rows[1].Redo = commitlog.Pos{Segment: 1, Offset: 100}
				cas(t, s, rows[1])
			})
		}, want: []string{"ulog: ", "missing", "redo point"}},
		{name: "record of a row elsewhere", do: func(t *testing.T, fs *vfs.MemFS) {
			edit(t, fs, func(s *standalone.Server, rows []*metadata.Row) {
				// Two tablets of the table change places.
				a, b := rows[0], rows[1]
				a.Tablet, b.Tablet = b.Tablet, a.Tablet
				a.FlushedSeq, b.FlushedSeq = 0, 0
				cas(t, s, a)
				cas(t, s, b)
			})
		}, want: []string{"ulog: ", "is not one of the tablet's"}, more: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			fs := copyAll(t, healthy)
			c.do(t, fs)
			damage, harmless, _ := checked(t, fs)
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

// named returns the largest SSTable of each table that only it has, and of the
// backup.
func named(t testing.TB, fs *vfs.MemFS) map[string]string {
	t.Helper()
	s, err := standalone.OpenMetadata(t.Context(), fs, "d")
	must(t, err)
	defer end(t, s)
	users, sizes := map[string]map[string]bool{}, map[string]int64{}
	add := func(name string, r *metadata.Row) {
		for _, f := range r.Files {
			sizes[f.Object] = f.Size
			if users[f.Object] == nil {
				users[f.Object] = map[string]bool{}
			}
			users[f.Object][name] = true
		}
	}
	ids := map[uint64]string{metastore.Table: "METADATA"}
	for _, name := range []string{"one", "kept"} {
		st, err := s.Table(t.Context(), parent+name)
		must(t, err)
		ids[st.ID] = name
	}
	must(t, s.Rows(t.Context(), func(r *metadata.Row) error {
		name, ok := ids[r.Table]
		if !ok && r.Table>>63 == 1 {
			name = "the-backup"
		}
		add(name, r)
		return nil
	}))
	out := map[string]string{}
	for object, names := range users {
		if len(names) == 1 {
			for n := range names {
				if sizes[object] > sizes[out[n]] {
					out[n] = object
				}
			}
		}
	}
	return out
}

// TestHarmless: what crashes leave behind is no damage.
func TestHarmless(t *testing.T) {
	fs := lived(t)
	edit(t, fs, func(s *standalone.Server, rows []*metadata.Row) {
		r := rows[0]
		r.Op = &metadata.Op{Kind: metadata.Split, At: []byte("row00200"), Left: 99, Right: 98}
		cas(t, s, r)
		cas(t, s, &metadata.Row{Table: 77, Tablet: 97})
	})
	datadirtest.WriteFile(t, fs, "d/sst/00000000000000ff.sst", []byte("an orphan"))
	datadirtest.WriteFile(t, fs, "d/sst/.tmp/.abc", []byte("unfinished"))
	damage, harmless, _ := checked(t, fs)
	if len(damage) > 0 {
		t.Errorf("found %q", damage)
	}
	for _, want := range []string{"sst/00000000000000ff.sst", "sst/.tmp/.abc", "split was under way", "neither table nor backup has it"} {
		if !slices.ContainsFunc(harmless, func(l string) bool { return strings.Contains(l, want) }) {
			t.Errorf("no word of %q in %q", want, harmless)
		}
	}
	end(t, mustOpen(t, fs))
	damage, harmless, _ = checked(t, fs)
	if len(damage) > 0 || slices.ContainsFunc(harmless, func(l string) bool { return strings.Contains(l, "under way") || strings.Contains(l, ".tmp") }) {
		t.Errorf("after a start %q %q", damage, harmless)
	}
}

// TestSplitsUnderWay: tablets are judged by what becomes of them, at each step of a
// split and of a merge.
func TestSplitsUnderWay(t *testing.T) {
	split := &metadata.Op{Kind: metadata.Split, At: []byte("m"), Left: 2, Right: 3}
	left := &metadata.Row{Table: 9, Tablet: 2, Start: []byte("a"), End: []byte("m")}
	right := &metadata.Row{Table: 9, Tablet: 3, Start: []byte("m"), Op: &metadata.Op{Kind: metadata.Merge, Start: []byte("a"), At: []byte("m"), Left: 2, Right: 4}}
	first := &metadata.Row{Table: 9, Tablet: 7, End: []byte("a")}
	whole := &metadata.Row{Table: 9, Tablet: 1, Start: []byte("a"), Op: split}
	merged := right.Clone()
	merged.Start = []byte("a")
	leaving := left.Clone()
	leaving.Op = &metadata.Op{Kind: metadata.Leave, Right: 3}
	plain := right.Clone()
	plain.Op = nil
	for name, c := range map[string]struct {
		rows []*metadata.Row
		ok   bool
	}{
		"the split has begun":        {[]*metadata.Row{first, whole}, true},
		"the left half is there":     {[]*metadata.Row{first, left, whole}, true},
		"the merge has begun":        {[]*metadata.Row{first, leaving, plain}, true},
		"the right one has it all":   {[]*metadata.Row{first, leaving, merged}, true},
		"the left one is gone":       {[]*metadata.Row{first, merged}, true},
		"a gap":                      {[]*metadata.Row{first, plain}, false},
		"an overlap without a split": {[]*metadata.Row{first, left, merged2(merged)}, false},
	} {
		if got := check.Tiled(c.rows); got != c.ok {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func merged2(r *metadata.Row) *metadata.Row {
	r = r.Clone()
	r.Op = nil
	return r
}

// TestAfterCrash: whatever a power cut or a kill leaves is not called damage.
func TestAfterCrash(t *testing.T) {
	for seed := range seeds(t, 40) {
		rng := rand.New(rand.NewPCG(seed, 99))
		fs := datadirtest.NewCrashableMem()
		s := mustOpen(t, fs)
		filled(t, s, "one", 40)
		for range 1 + rng.IntN(60) {
			key := fmt.Sprintf("row%05d", rng.IntN(40))
			switch rng.IntN(12) {
			case 0:
				_ = s.SplitAt(t.Context(), parent+"one", []byte(key))
			case 1:
				_ = s.MergeAt(t.Context(), parent+"one", []byte(key))
			case 2:
				must(t, s.DropRowRange(t.Context(), parent+"one", []byte(key)))
			case 3:
				flush(t, s)
			case 4:
				must(t, s.CompactTablets(t.Context(), parent+"one", row.All, nil))
			default:
				put(t, s, "one", key, strings.Repeat(key, rng.IntN(50)))
			}
		}
		want, err := contents(t, s, "one")
		must(t, err)
		after := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 50, 100}[rng.IntN(3)], RNG: rand.New(rand.NewPCG(seed, 1))})
		end(t, s)
		for range 2 {
			if damage, _, _ := checked(t, after); len(damage) > 0 {
				t.Fatalf("seed %d: %q", seed, damage)
			}
			s = mustOpen(t, after)
			if got, err := contents(t, s, "one"); err != nil || got != want {
				t.Fatalf("seed %d: %v, %d bytes instead of %d", seed, err, len(got), len(want))
			}
			end(t, s)
		}
	}
}

// TestRandomDamage: whatever byte of whatever file is changed, or wherever a file
// ends, either the check complains or the tables are as they were. The one thing it
// cannot see is that the end of a log is gone as a whole: it looks like changes
// that were never acknowledged.
func TestRandomDamage(t *testing.T) {
	healthy := lived(t)
	show := func(fs vfs.FS) (string, error) {
		s, err := open(t, fs)
		if err != nil {
			return "", err
		}
		defer end(t, s)
		var all string
		for _, table := range []string{"one", "kept"} {
			c, err := contents(t, s, table)
			if err != nil {
				return "", err
			}
			all += c
		}
		for _, k := range []string{"key", "key2"} {
			v, _, err := s.GetRecord(t.Context(), k)
			all += fmt.Sprintf("%s=%s %v\n", k, v, err)
		}
		return all, nil
	}
	want, err := show(copyAll(t, healthy))
	must(t, err)
	var files []string
	for _, dir := range []string{"d", "d/lock", "d/lock/log", "d/lock/sst", "d/mlog", "d/ulog", "d/sst"} {
		names, err := healthy.List(dir)
		must(t, err)
		for _, n := range names {
			if info, err := healthy.Stat(dir + "/" + n); err == nil && !info.IsDir() && info.Size() > 0 && !strings.HasSuffix(n, ".free") {
				files = append(files, dir+"/"+n)
			}
		}
	}
	slices.Sort(files)
	found, all := 0, seeds(t, 400)
	for seed := range all {
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
		damage, harmless, _ := checked(t, fs)
		if len(damage)+len(harmless) > 0 {
			found++
			continue
		}
		if endless {
			continue
		}
		if got, err := show(fs); err != nil || got != want {
			t.Errorf("seed %d: %s (%d bytes) %s: no complaint, but %v, %d bytes of content instead of %d", seed, name, len(datadirtest.ReadFile(t, healthy, name)), what, err, len(got), len(want))
		}
	}
	if found == 0 {
		t.Error("no damage was found at all")
	}
	t.Logf("%d of %d found", found, all)
}

// TestMetadataAsItIs: METADATA that a start would compact at once is looked at as it
// is.
func TestMetadataAsItIs(t *testing.T) {
	fs := vfs.NewMem()
	s := mustOpen(t, fs)
	for i := range 4 {
		filled(t, s, fmt.Sprintf("t%d", i), 1)
	}
	must(t, s.TabletServer().FlushAll(t.Context()))
	end(t, s)
	for i := range 40 {
		// Whoever ends at once compacts nothing.
		s := mustOpen(t, fs)
		_, err := s.CreateTable(t.Context(), &schema.Table{Name: fmt.Sprintf("%sx%d", parent, i), Granularity: 1000, Families: map[string]schema.Family{"f": {Name: "f"}}}, nil)
		must(t, err)
		roots, err := s.Metadata().Roots(t.Context())
		must(t, err)
		must(t, s.TabletServer().Flush(t.Context(), []metadata.TabletID{roots[0].Tablet}))
		end(t, s)
		if damage, _, _ := checked(t, fs); len(damage) > 0 {
			t.Fatalf("found %q", damage)
		}
	}
}
