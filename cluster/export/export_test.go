package export

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/objstorage"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/check"
	"github.com/trestledb/trestle/cluster/master"
	"github.com/trestledb/trestle/cluster/standalone"
	"github.com/trestledb/trestle/cluster/tabletserver"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/datadir/datadirtest"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/tablet"
)

const (
	table  = "projects/p/instances/i/tables/t"
	backup = "projects/p/instances/i/clusters/c/backups/b"
)

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// A server may be closed before the end of its test.
type server struct {
	*standalone.Server
	once sync.Once
}

func (s *server) close(t *testing.T) {
	t.Helper()
	s.once.Do(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// openServer opens a single process that has small SSTables.
func openServer(t *testing.T, fs vfs.FS) *server { return openMaster(t, fs, master.Options{}) }

func openMaster(t *testing.T, fs vfs.FS, m master.Options) *server {
	t.Helper()
	s := &server{Server: must(standalone.Open(t.Context(), standalone.Options{Dir: "d", FS: fs, Master: m, TabletServer: tabletserver.Options{CacheBytes: 1 << 20, SplitRate: -1, SplitBytes: -1,
		Tablet: tablet.Options{MemtableBytes: 64 << 10, FileBytes: 16 << 10, TargetRuns: 3}}}))(t)}
	t.Cleanup(func() { s.close(t) })
	return s
}

// source has a backup of a table with every kind of cell and deletion, whose rows
// have changed since.
func source(t *testing.T, fs vfs.FS) *server {
	t.Helper()
	ctx := t.Context()
	s := openServer(t, fs)
	must(s.CreateTable(ctx, &schema.Table{Name: table, Granularity: 1000, Extra: []byte(`{}`), Families: map[string]schema.Family{
		"f": {Name: "f"}, "gc": {Name: "gc", GC: &schema.GCRule{MaxVersions: 2}}, "sum": {Name: "sum", Aggregate: schema.Sum}, "large": {Name: "large"}},
	}, [][]byte{[]byte("h"), []byte("q")}))(t)
	must(s.CreateGroup(ctx, table, schema.Group{Name: "g", Compression: "zstd"}))(t)
	must(s.AssignFamilies(ctx, table, "g", []string{"large"}))(t)
	rng := rand.New(rand.NewPCG(1, 2))
	write := func(key []byte, ms ...row.Mutation) {
		if err := s.MutateRow(ctx, table, &row.Entry{Key: key, Mutations: ms}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 260 {
		key := fmt.Appendf(nil, "%c%03d", 'a'+i%26, i)
		if i%50 == 0 {
			key = append(key, 0, 0xFF)
		}
		v := make([]byte, 200)
		for i := range v {
			v[i] = byte(rng.Uint32())
		}
		var ms []row.Mutation
		for n := range int64(4) {
			ms = append(ms, row.Mutation{Op: row.SetCell, Family: "f", Qualifier: []byte{byte(n)}, Timestamp: (n + 1) * 1000, Value: v},
				row.Mutation{Op: row.SetCell, Family: "gc", Qualifier: []byte("q"), Timestamp: (n + 1) * 1000, Value: v[:n]})
		}
		ms = append(ms, row.Mutation{Op: row.AddToCell, Family: "sum", Qualifier: []byte("n"), Timestamp: 1000, Input: row.Input{Int: int64(i)}},
			row.Mutation{Op: row.SetCell, Family: "large", Qualifier: []byte("q"), Timestamp: 5000, Value: v})
		write(key, ms...)
		if i == 130 {
			if err := s.FlushTablets(ctx, table, row.All); err != nil {
				t.Fatal(err)
			}
		}
		switch {
		case i%7 == 0: // what was deleted is in an SSTable, the deletion in another one
			write(key, row.Mutation{Op: row.DeleteColumn, Family: "f", Qualifier: []byte{1}, Times: cell.TimeRange{}})
		case i%11 == 0:
			write(key, row.Mutation{Op: row.DeleteFamily, Family: "gc"})
		case i%13 == 0:
			write(key, row.Mutation{Op: row.DeleteRow})
		}
	}
	if err := s.DropRowRange(ctx, table, []byte("k")); err != nil {
		t.Fatal(err)
	}
	must(s.CreateBackup(ctx, table, &schema.Backup{Name: backup, Extra: []byte(`{"hot":true}`), ExpireTime: time.Now().Add(time.Hour)}))(t)
	return s
}

// all returns every cell of a table, and its families.
func all(t *testing.T, s *server, name string) string {
	t.Helper()
	c := &collector{}
	if _, err := s.ReadRows(t.Context(), &scan.Request{Table: name, Ranges: []row.Range{row.All}}, c); err != nil {
		t.Fatal(err)
	}
	sch := must(s.Table(t.Context(), name))(t)
	for _, f := range slices.Sorted(maps.Keys(sch.Families)) {
		fmt.Fprintf(&c.out, "%+v %+v\n", sch.Families[f].GC, sch.Families[f].Aggregate)
	}
	for _, g := range sch.AllGroups() {
		fmt.Fprintf(&c.out, "%+v\n", g)
	}
	return c.out.String()
}

type collector struct{ out strings.Builder }

func (c *collector) StartRow(key []byte) { fmt.Fprintf(&c.out, "%q\n", key) }
func (c *collector) Cell(x *row.Cell) {
	fmt.Fprintf(&c.out, "\t%s %q %d %x %v\n", x.Family, x.Qualifier, x.Timestamp, x.Value, x.Labels)
}
func (*collector) EndRow() (bool, error) { return false, nil }
func (*collector) Scanned([]byte)        {}
func (*collector) Flush() error          { return nil }

func place(t *testing.T, fs vfs.FS) objectstore.Store {
	t.Helper()
	return objectstore.Sub(must(objectstore.OpenLocal(fs, "x", objectstore.LocalOptions{Owner: "test"}))(t), "e")
}

func copier(s *server) *Copier { return &Copier{Tables: s, Objects: s.Objects()} }

func restored(t *testing.T, s *server, from, name string) string {
	t.Helper()
	must(s.RestoreTable(t.Context(), from, name, func(*schema.Table) error { return nil }))(t)
	return all(t, s, name)
}

// sound closes s and looks at everything in its directory.
func sound(t *testing.T, fs vfs.FS) {
	t.Helper()
	must(check.Directory(t.Context(), fs, "d", nil, func(f check.Finding) {
		if !f.Harmless {
			t.Errorf("%+v", f)
		}
	}))(t)
}

// TestRoundTrip: a table that is restored of an imported backup has what the one
// that was backed up had, in a store that has given out the same ids.
func TestRoundTrip(t *testing.T) {
	ctx := t.Context()
	fs, out := vfs.NewMem(), place(t, vfs.NewMem())
	s := source(t, fs)
	want := restored(t, s, backup, table+"-here")
	if strings.Count(want, "\n") < 1500 {
		t.Fatalf("the table has little:\n%s", want)
	}
	var mu sync.Mutex
	var done, total int64
	c := copier(s)
	c.Report = func(d, n int64) {
		mu.Lock()
		defer mu.Unlock()
		done, total = max(done, d), n
	}
	m := must(c.Export(ctx, backup, out))(t)
	if len(m.Files) < 9 || len(m.Tablets) != 3 || done != total || total != m.Bytes() {
		t.Errorf("%d files of %d tablets, %d of %d bytes reported, %d are there", len(m.Files), len(m.Tablets), done, total, m.Bytes())
	}
	// Again it copies nothing, and changes nothing.
	again := must(c.Export(ctx, backup, out))(t)
	if !again.Exported.Equal(m.Exported) {
		t.Error("a complete export was made again")
	}

	other := vfs.NewMem()
	d := openServer(t, other)
	must(d.CreateTable(ctx, &schema.Table{Name: table, Granularity: 1000, Families: map[string]schema.Family{"f": {Name: "f"}}}, nil))(t)
	target := &schema.Backup{Name: backup + "2", Extra: []byte(`{}`), ExpireTime: time.Now().Add(2 * time.Hour)}
	b := must(copier(d).Import(ctx, out, must(Read(ctx, out))(t), target))(t)
	from := must(s.Backup(ctx, backup))(t)
	if b.Name != target.Name || !b.ExpireTime.Equal(target.ExpireTime) || string(b.Extra) != "{}" || b.Table.Name != table || b.Bytes != m.Bytes() ||
		!b.StartTime.Equal(from.StartTime) || !b.EndTime.Equal(from.EndTime) || b.CreateTime.Before(from.CreateTime) {
		t.Errorf("imported as %+v", b)
	}
	if got := restored(t, d, b.Name, table+"-there"); got != want {
		t.Errorf("restored\n%s\ninstead of\n%s", got, want)
	}
	// A name that is taken stays what it is.
	if _, err := copier(d).Import(ctx, out, must(Read(ctx, out))(t), target); !errors.Is(err, fault.AlreadyExists) {
		t.Errorf("imported under a name that is taken: %v", err)
	}
	// A copy, and an export of the import, are as good.
	second := place(t, vfs.NewMem())
	must(copier(d).Export(ctx, b.Name, second))(t)
	must(copier(s).Import(ctx, second, must(Read(ctx, second))(t), &schema.Backup{Name: backup + "3"}))(t)
	if got := restored(t, s, backup+"3", table+"-back"); got != want {
		t.Errorf("after two exports\n%s\ninstead of\n%s", got, want)
	}
	if err := d.CompactTablets(ctx, table+"-there", row.All, nil); err != nil {
		t.Fatal(err)
	}
	if got := all(t, d, table+"-there"); got != want {
		t.Errorf("after a major compaction\n%s\ninstead of\n%s", got, want)
	}
	// The export needs nothing of the store that it was of.
	s.close(t)
	d.close(t)
	sound(t, fs)
	sound(t, other)
}

// files returns the files of an export, by path.
func files(t *testing.T, fs vfs.FS) (out []string) {
	t.Helper()
	for _, dir := range []string{"x/e", "x/e/sst"} {
		for _, name := range must(fs.List(dir))(t) {
			if info := must(fs.Stat(path.Join(dir, name)))(t); !info.IsDir() {
				out = append(out, path.Join(dir, name))
			}
		}
	}
	return out
}

func readFile(t *testing.T, fs vfs.FS, name string) []byte {
	t.Helper()
	f := must(fs.Open(name))(t)
	defer f.Close()
	return must(io.ReadAll(f))(t)
}

func writeFile(t *testing.T, fs vfs.FS, name string, b []byte) {
	t.Helper()
	f := must(fs.Create(name, vfs.WriteCategoryUnspecified))(t)
	defer f.Close()
	must(f.Write(bytes.Clone(b)))(t)
}

// TestDamagedExport: a bit that is not what was written, an end that is missing
// and a file that is missing are found by an import, which names the file and
// leaves no backup.
func TestDamagedExport(t *testing.T) {
	ctx := t.Context()
	fs := vfs.NewMem()
	out := place(t, fs)
	s := source(t, vfs.NewMem())
	must(copier(s).Export(ctx, backup, out))(t)
	d := openServer(t, vfs.NewMem())
	rng := rand.New(rand.NewPCG(3, 4))
	imported := func() error {
		m, err := Read(ctx, out)
		if err == nil {
			_, err = copier(d).Import(ctx, out, m, &schema.Backup{Name: backup})
		}
		return err
	}
	for _, name := range files(t, fs) {
		if path.Base(name) == beginName {
			continue // a complete export does not need it
		}
		b := readFile(t, fs, name)
		for what, damage := range map[string]func() []byte{
			"first bit": func() []byte { c := bytes.Clone(b); c[0] ^= 1; return c },
			"last bit":  func() []byte { c := bytes.Clone(b); c[len(c)-1] ^= 128; return c },
			"some bit":  func() []byte { c := bytes.Clone(b); c[rng.IntN(len(c))] ^= 1 << rng.IntN(8); return c },
			"cut":       func() []byte { return b[:rng.IntN(len(b))] },
			"longer":    func() []byte { return append(bytes.Clone(b), 0) },
			"gone":      nil,
		} {
			if damage == nil {
				if err := fs.Remove(name); err != nil {
					t.Fatal(err)
				}
			} else {
				writeFile(t, fs, name, damage())
			}
			err := imported()
			if err == nil || !strings.Contains(err.Error(), path.Base(name)) || fault.KindOf(err) != fault.Corruption && (path.Base(name) != manifestName || what != "gone") {
				t.Errorf("%s, %s: %v", name, what, err)
			}
			if _, err := d.Backup(ctx, backup); !errors.Is(err, fault.NotFound) {
				t.Fatalf("%s, %s: there is a backup: %v", name, what, err)
			}
			writeFile(t, fs, name, b)
		}
	}
	if err := imported(); err != nil {
		t.Errorf("an export that is sound again: %v", err)
	}
}

// TestRepairedExport: what a complete export has lost, or has only a part of, is copied
// again from the backup, and is what the manifest says. Else an export fails, and names
// what is missing.
func TestRepairedExport(t *testing.T) {
	ctx := t.Context()
	fs, x := vfs.NewMem(), vfs.NewMem()
	out := place(t, x)
	s := source(t, fs)
	want := restored(t, s, backup, table+"-here")
	m := must(copier(s).Export(ctx, backup, out))(t)
	whole := map[string][]byte{}
	for _, name := range files(t, x) {
		whole[name] = readFile(t, x, name)
	}
	name := func(i int) string { return "x/e/" + filesPrefix + m.Files[i].Object }
	remove := func(i int) {
		t.Helper()
		if err := x.Remove(name(i)); err != nil {
			t.Fatal(err)
		}
	}
	remove(0)
	writeFile(t, x, name(1), whole[name(1)][:100])
	writeFile(t, x, name(2), append(bytes.Clone(whole[name(2)]), 0))
	must(copier(s).Export(ctx, backup, out))(t)
	for name, b := range whole {
		if !bytes.Equal(readFile(t, x, name), b) {
			t.Errorf("%s is not what it was", name)
		}
	}
	d := openServer(t, vfs.NewMem())
	must(copier(d).Import(ctx, out, m, &schema.Backup{Name: backup}))(t)
	if got := restored(t, d, backup, table+"-there"); got != want {
		t.Errorf("restored\n%s\ninstead of\n%s", got, want)
	}

	refused := func(what, file, todo string) {
		t.Helper()
		if _, err := copier(s).Export(ctx, backup, out); fault.KindOf(err) != fault.Corruption || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), todo) {
			t.Errorf("%s: %v", what, err)
		}
	}
	object := m.Files[0].Object
	b := readFile(t, fs, "d/sst/"+object)
	bad := bytes.Clone(b)
	bad[len(bad)/3] ^= 1
	remove(0)
	writeFile(t, fs, "d/sst/"+object, bad)
	refused("damaged in the store too", object, "is damaged in the store")
	if slices.Contains(files(t, x), name(0)) {
		t.Error("the damaged SSTable was copied")
	}
	writeFile(t, fs, "d/sst/"+object, b)
	// One that is not the backup's.
	other := *m
	other.Files = slices.Clone(m.Files)
	other.Files[0].Object = "other.sst"
	for _, r := range other.Tablets {
		for i := range r.Files {
			if r.Files[i].Object == object {
				r.Files[i].Object = "other.sst"
			}
		}
	}
	writeFile(t, x, "x/e/"+manifestName, must(encodeChecked(&other))(t))
	refused("not in the backup", filesPrefix+"other.sst", "delete the export")
	writeFile(t, x, "x/e/"+manifestName, []byte("{}"))
	refused("a damaged manifest", manifestName, "delete it, and export the backup again")
}

// TestDamagedSource: a backup with a damaged SSTable is not exported, the message
// names it, and the damage is not copied.
func TestDamagedSource(t *testing.T) {
	ctx := t.Context()
	fs, x := vfs.NewMem(), vfs.NewMem()
	s := source(t, fs)
	_, rows, err := s.FrozenBackup(ctx, backup)
	if err != nil {
		t.Fatal(err)
	}
	object := rows[1].Files[0].Object
	b := readFile(t, fs, "d/sst/"+object)
	for what, bad := range map[string][]byte{"bit": func() []byte { c := bytes.Clone(b); c[len(c)/3] ^= 1; return c }(), "cut": b[:len(b)-1], "gone": nil} {
		if bad == nil {
			if err := fs.Remove("d/sst/" + object); err != nil {
				t.Fatal(err)
			}
		} else {
			writeFile(t, fs, "d/sst/"+object, bad)
		}
		_, err := copier(s).Export(ctx, backup, place(t, x))
		if fault.KindOf(err) != fault.Corruption || !strings.Contains(err.Error(), object) {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := Read(ctx, place(t, x)); fault.KindOf(err) != fault.FailedPrecondition || !strings.Contains(err.Error(), "incomplete") {
			t.Errorf("%s: the export is read: %v", what, err)
		}
		if slices.Contains(files(t, x), "x/e/sst/"+object) {
			t.Errorf("%s: the damaged SSTable was copied", what)
		}
	}
	writeFile(t, fs, "d/sst/"+object, b)
	m := must(copier(s).Export(ctx, backup, place(t, x)))(t)
	// The copy of one that is exported half-way.
	second := vfs.NewMem()
	if err := func() error {
		_, err := (&Copier{Tables: s, Objects: failing{s.Objects(), m.Files[5].Object}}).Export(ctx, backup, place(t, second))
		return err
	}(); err == nil {
		t.Fatal("a store that fails goes unnoticed")
	}
	for _, name := range files(t, second) {
		if path.Base(name) == beginName {
			continue
		}
		b := readFile(t, second, name)
		c := bytes.Clone(b)
		c[len(c)/2] ^= 1
		writeFile(t, second, name, c)
		_, err := copier(s).Export(ctx, backup, place(t, second))
		if fault.KindOf(err) != fault.Corruption || !strings.Contains(err.Error(), path.Base(name)) {
			t.Errorf("gone on over a damaged %s: %v", name, err)
		}
		writeFile(t, second, name, b)
	}
	must(copier(s).Export(ctx, backup, place(t, second)))(t)
}

// failing is a store in which an object cannot be read.
type failing struct {
	objectstore.Store
	object string
}

var errFailing = errors.New("input/output error")

func (f failing) Open(ctx context.Context, name string) (objstorage.Readable, error) {
	if name == f.object {
		return nil, errFailing
	}
	return f.Store.Open(ctx, name)
}

// TestPlace: an export is never written over another one, nor beside something
// else, nor read by who does not understand it.
func TestPlace(t *testing.T) {
	ctx := t.Context()
	s, fs := source(t, vfs.NewMem()), vfs.NewMem()
	out := place(t, fs)
	if _, err := Read(ctx, out); fault.KindOf(err) != fault.NotFound {
		t.Errorf("an empty place: %v", err)
	}
	if _, err := copier(s).Export(ctx, backup+"-none", out); fault.KindOf(err) != fault.NotFound {
		t.Errorf("no backup: %v", err)
	}
	must(s.CopyBackup(ctx, backup, &schema.Backup{Name: backup + "2"}))(t)
	if err := out.PutIfAbsent(ctx, "notes", []byte("mine")); err != nil {
		t.Fatal(err)
	}
	if _, err := copier(s).Export(ctx, backup, out); fault.KindOf(err) != fault.AlreadyExists || !strings.Contains(err.Error(), "notes") {
		t.Errorf("beside something else: %v", err)
	}
	if err := out.Delete(ctx, "notes"); err != nil {
		t.Fatal(err)
	}
	m := must(copier(s).Export(ctx, backup, out))(t)
	if _, err := copier(s).Export(ctx, backup+"2", out); fault.KindOf(err) != fault.AlreadyExists || strings.Contains(err.Error(), backup) {
		t.Errorf("over another: %v", err)
	}
	// Of the same name, but another.
	if err := s.DeleteBackup(ctx, backup); err != nil {
		t.Fatal(err)
	}
	must(s.CopyBackup(ctx, backup+"2", &schema.Backup{Name: backup}))(t)
	if _, err := copier(s).Export(ctx, backup, out); fault.KindOf(err) != fault.AlreadyExists {
		t.Errorf("over another of the same name: %v", err)
	}
	changed := *m
	for what, change := range map[string]func(*Manifest){
		"a later format":        func(m *Manifest) { m.Format++ },
		"a tablet is missing":   func(m *Manifest) { m.Tablets = m.Tablets[1:] },
		"a file is missing":     func(m *Manifest) { m.Files = m.Files[1:] },
		"a file outside":        func(m *Manifest) { m.Files = append(slices.Clone(m.Files), File{Object: "../../secret"}) },
		"an SSTable of no size": func(m *Manifest) { m.Files = slices.Clone(m.Files); m.Files[0].Size = 0 },
		"no table":              func(m *Manifest) { m.Backup = &schema.Backup{Name: backup} },
	} {
		c := changed
		change(&c)
		data := must(encodeChecked(&c))(t)
		writeFile(t, fs, "x/e/"+manifestName, data)
		if _, err := Read(ctx, out); fault.KindOf(err) != fault.Corruption && fault.KindOf(err) != fault.FailedPrecondition {
			t.Errorf("%s: %v", what, err)
		}
	}
	type later struct {
		*Manifest
		Keys string
	}
	writeFile(t, fs, "x/e/"+manifestName, must(encodeChecked(later{m, "k"}))(t))
	if _, err := Read(ctx, out); fault.KindOf(err) != fault.FailedPrecondition || !strings.Contains(err.Error(), "Keys") {
		t.Errorf("a field that is not known: %v", err)
	}
}

// TestGone: an export of a backup that is deleted, or expires, meanwhile fails,
// and says why.
func TestGone(t *testing.T) {
	ctx := t.Context()
	for _, what := range []string{"deleted", "expired"} {
		fs, x := vfs.NewMem(), vfs.NewMem()
		s := source(t, fs)
		out := place(t, x)
		gone := false
		var once sync.Once
		c := &Copier{Tables: s, Objects: s.Objects(), Report: func(done, _ int64) {
			if done == 0 {
				return
			}
			once.Do(func() {
				gone = true
				if err := s.DeleteTable(ctx, table); err != nil {
					t.Error(err)
				}
				if what == "deleted" {
					if err := s.DeleteBackup(ctx, backup); err != nil {
						t.Error(err)
					}
				} else if _, err := s.UpdateBackup(ctx, backup, func(b *schema.Backup) error { b.ExpireTime = time.Now(); return nil }); err != nil {
					t.Error(err)
				}
				// As the sweeper does, sooner.
				for _, name := range must(fs.List("d/sst"))(t) {
					if strings.HasSuffix(name, ".sst") {
						_ = fs.Remove("d/sst/" + name)
					}
				}
			})
		}}
		_, err := c.Export(ctx, backup, out)
		if !gone || fault.KindOf(err) != fault.NotFound || !strings.Contains(err.Error(), "while it was exported") {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := Read(ctx, out); fault.KindOf(err) != fault.FailedPrecondition {
			t.Errorf("%s: the export is read: %v", what, err)
		}
	}
}

// TestCrash cuts the power of the place of an export, at each write: what is left
// is no export or all of it, and going on makes it one.
func TestCrash(t *testing.T) {
	ctx := t.Context()
	s := source(t, vfs.NewMem())
	want := restored(t, s, backup, table+"-here")
	fs := datadirtest.NewCrashableMem()
	var mu sync.Mutex
	var crashed []*datadirtest.CrashableMem
	rng := rand.New(rand.NewPCG(5, 6))
	n := 0
	wrapped := errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			mu.Lock()
			defer mu.Unlock()
			if n++; n%5 == 0 || op.Kind == errorfs.OpFileSync {
				crashed = append(crashed, fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: rng}))
			}
		}
		return nil
	}))
	must(copier(s).Export(ctx, backup, place(t, wrapped)))(t)
	crashed = append(crashed, fs.CrashClone(vfs.CrashCloneCfg{}))
	complete := 0
	d := openServer(t, vfs.NewMem())
	for i, fs := range crashed {
		out := place(t, fs)
		if _, err := Read(ctx, out); err == nil {
			complete++
		} else if k := fault.KindOf(err); k != fault.NotFound && k != fault.FailedPrecondition {
			t.Fatalf("crash %d: %v", i, err)
		}
		m := must(copier(s).Export(ctx, backup, out))(t)
		if i%10 == 0 {
			name := fmt.Sprintf("%s-%d", backup, i)
			must(copier(d).Import(ctx, out, m, &schema.Backup{Name: name}))(t)
			if got := restored(t, d, name, fmt.Sprintf("%s-%d", table, i)); got != want {
				t.Fatalf("crash %d: the restored table is another", i)
			}
		}
	}
	if complete == 0 || complete > len(crashed)/2 || len(crashed) < 20 {
		t.Errorf("%d of %d crashes left a complete export", complete, len(crashed))
	}
}

// TestCrashInImport cuts the power of the store that imports: there is no backup,
// or all of it.
func TestCrashInImport(t *testing.T) {
	ctx := t.Context()
	out := place(t, vfs.NewMem())
	s := source(t, vfs.NewMem())
	want := restored(t, s, backup, table+"-here")
	m := must(copier(s).Export(ctx, backup, out))(t)
	fs := datadirtest.NewCrashableMem()
	var mu sync.Mutex
	var crashed []*datadirtest.CrashableMem
	rng := rand.New(rand.NewPCG(7, 8))
	n, on := 0, false
	wrapped := errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			mu.Lock()
			defer mu.Unlock()
			if n++; on && n%12 == 0 {
				crashed = append(crashed, fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 30, RNG: rng}))
			}
		}
		return nil
	}))
	d := openServer(t, wrapped)
	must(d.CreateTable(ctx, &schema.Table{Name: table + "-first", Granularity: 1000, Families: map[string]schema.Family{}}, nil))(t)
	mu.Lock()
	on = true
	mu.Unlock()
	must(copier(d).Import(ctx, out, m, &schema.Backup{Name: backup}))(t)
	mu.Lock()
	on = false
	mu.Unlock()
	crashed = append(crashed, fs.CrashClone(vfs.CrashCloneCfg{}))
	made := 0
	for i, fs := range crashed {
		d := openServer(t, fs)
		_, err := d.Backup(ctx, backup)
		switch {
		case errors.Is(err, fault.NotFound):
			// Whoever was making it is gone; the name is free in a minute.
			if b := must(catalog.ReadBackup(ctx, d.Lock(), backup))(t); b != nil && b.Made {
				t.Errorf("crash %d: %+v", i, b)
			}
		case err != nil:
			t.Fatalf("crash %d: %v", i, err)
		default:
			made++
			if got := restored(t, d, backup, table); got != want {
				t.Fatalf("crash %d: the restored table is another", i)
			}
		}
		d.close(t)
		sound(t, fs)
	}
	if made == 0 || made == len(crashed) || len(crashed) < 10 {
		t.Errorf("%d of %d crashes left the backup", made, len(crashed))
	}
}

// slow is a store that takes a while to open an object.
type slow struct{ objectstore.Store }

func (s slow) Open(ctx context.Context, name string) (objstorage.Readable, error) {
	time.Sleep(50 * time.Millisecond)
	return s.Store.Open(ctx, name)
}

// TestSweep: what an import has stored is not garbage while it goes on, and is
// when it has failed.
func TestSweep(t *testing.T) {
	ctx := t.Context()
	x := vfs.NewMem()
	out := place(t, x)
	s := source(t, vfs.NewMem())
	want := restored(t, s, backup, table+"-here")
	m := must(copier(s).Export(ctx, backup, out))(t)
	fs := vfs.NewMem()
	d := openMaster(t, fs, master.Options{Sweep: 5 * time.Millisecond, Purge: 5 * time.Millisecond, Interval: 5 * time.Millisecond})
	// Another one's, so that the store has sequences of passes that count.
	must(d.CreateTable(ctx, &schema.Table{Name: table, Granularity: 1000, Families: map[string]schema.Family{"f": {Name: "f"}}}, nil))(t)
	must(copier(d).Import(ctx, slow{out}, m, &schema.Backup{Name: backup}))(t)
	time.Sleep(100 * time.Millisecond)
	if got := restored(t, d, backup, table+"-there"); got != want {
		t.Errorf("swept: restored\n%s", got)
	}
	sstables := func() (n int) {
		for _, name := range must(fs.List("d/sst"))(t) {
			if strings.HasSuffix(name, ".sst") {
				n++
			}
		}
		return n
	}
	before := sstables()
	last := "x/e/" + filesPrefix + m.Files[len(m.Files)-1].Object
	b := readFile(t, x, last)
	b[len(b)/2] ^= 1
	writeFile(t, x, last, b)
	if _, err := copier(d).Import(ctx, slow{out}, m, &schema.Backup{Name: backup + "2"}); fault.KindOf(err) != fault.Corruption {
		t.Errorf("a damaged export: %v", err)
	}
	for end := time.Now().Add(time.Minute); sstables() > before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d SSTables of a failed import are left", sstables()-before)
		}
	}
	if got := all(t, d, table+"-there"); got != want {
		t.Error("what was imported before is another")
	}
}
