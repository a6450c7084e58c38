package formats

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/check"
	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/lock/memory"
	"github.com/trestledb/trestle/cluster/master"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/cluster/standalone"
	"github.com/trestledb/trestle/cluster/tabletserver"
	"github.com/trestledb/trestle/conformance/backendtest"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/datadir"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
)

// write has the tests write testdata of this build's version anew. It is for a new
// version: what is there of a version that was released never changes.
var write = flag.Bool("formats.write", false, "write testdata")

const (
	instance = "projects/p/instances/i"
	backup   = instance + "/clusters/c/backups/before"
)

func tableName(id string) string { return instance + "/tables/" + id }

// fill puts something into every kind of thing that is durable: SSTables of several
// locality groups and levels, a log of what is in none of them, range tombstones,
// schemas, deleted tables, backups, records. pages has three tablets of which one
// is split.
func fill(ctx context.Context, c *client.Client) error {
	// Its changes are kept.
	stream := &schema.Stream{Life: 1, Retention: 7 * 24 * time.Hour, Since: time.Now()}
	pages := &schema.Table{Name: tableName("pages"), Granularity: 1000, Stream: stream, Families: map[string]schema.Family{
		"contents": {GC: &schema.GCRule{MaxVersions: 2}},
		"anchor":   {GC: &schema.GCRule{Union: []*schema.GCRule{{MaxVersions: 3}, {Intersection: []*schema.GCRule{{MaxVersions: 1}, {MaxAge: 1 << 62 / 1000 * 1000}}}}}},
		"hits":     {Aggregate: schema.Sum},
	}}
	set := func(family, qualifier string, version int, value string) row.Mutation {
		return row.Mutation{Op: row.SetCell, Family: family, Qualifier: []byte(qualifier), Timestamp: int64(version) * 1_000_000, Value: []byte(value)}
	}
	put := func(table, key string, muts ...row.Mutation) error {
		return c.MutateRow(ctx, tableName(table), &row.Entry{Key: []byte(key), Mutations: muts})
	}
	hit := func(n int64) row.Mutation {
		return row.Mutation{Op: row.AddToCell, Family: "hits", Qualifier: []byte("total"), Timestamp: 1000, Input: row.Input{Kind: row.IntInput, Int: n}}
	}
	rows := func(from, to, version int) func() error {
		return func() error {
			for i := from; i < to; i++ {
				err := put("pages", fmt.Sprintf("com.example/%03d", i), set("contents", "", version, strings.Repeat(fmt.Sprintf("page %d, version %d; ", i, version), 6)),
					set("anchor", fmt.Sprintf("com.other/%d", i%7), version, "link"), hit(int64(i)))
				if err != nil {
					return err
				}
			}
			return nil
		}
	}
	flush := func() error { return c.FlushTablets(ctx, tableName("pages"), row.All) }
	for _, do := range []func() error{
		func() error {
			_, err := c.CreateTable(ctx, pages, [][]byte{[]byte("com.example/100"), {0xFF, 0}})
			return err
		},
		rows(0, 150, 1), flush, rows(50, 200, 2), flush,
		func() error {
			_, err := c.CreateGroup(ctx, pages.Name, schema.Group{Name: "small", InMemory: true})
			return err
		},
		func() error {
			_, err := c.AssignFamilies(ctx, pages.Name, "small", []string{"anchor", "hits"})
			return err
		},
		rows(100, 160, 3), flush,
		func() error { return c.CompactTablets(ctx, pages.Name, row.All, nil) },
		func() error {
			_, err := c.CreateBackup(ctx, pages.Name, &schema.Backup{Name: backup, ExpireTime: time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)})
			return err
		},
		func() error { return c.SplitAt(ctx, pages.Name, []byte("com.example/150")) },
		rows(0, 20, 4), flush,
		func() error { return c.DropRowRange(ctx, pages.Name, []byte("com.example/03")) },
		func() error {
			return put("pages", "com.example/041", row.Mutation{Op: row.DeleteRow}, set("anchor", "again", 5, "after it was deleted"))
		},
		func() error {
			return put("pages", "com.example/042", row.Mutation{Op: row.DeleteFamily, Family: "anchor"},
				row.Mutation{Op: row.DeleteColumn, Family: "contents", Times: cell.TimeRange{Start: 2_000_000}})
		},
		flush,
		rows(195, 205, 6), // these are in the log only
		func() error { return put("pages", "\xff\xff", set("contents", "\x00", 1, "\x00\xff")) },
		func() error { _, err := c.PutRecord(ctx, "instances/"+instance, []byte("an instance"), 0); return err },
		func() error {
			v, err := c.PutRecord(ctx, "policies/"+pages.Name, []byte("a policy"), 0)
			if err == nil {
				_, err = c.PutRecord(ctx, "policies/"+pages.Name, []byte("another one"), v)
			}
			return err
		},
		func() error {
			_, err := c.CreateTable(ctx, &schema.Table{Name: tableName("deleted"), Granularity: 1000, Families: map[string]schema.Family{"f": {}}}, nil)
			return err
		},
		func() error { return put("deleted", "r", set("f", "q", 1, "a deleted table")) },
		func() error { return c.DeleteTable(ctx, tableName("deleted")) },
	} {
		if err := do(); err != nil {
			return err
		}
	}
	return nil
}

// content tells what clients see, restores and undeletions included.
func content(t *testing.T, c *client.Client) string {
	t.Helper()
	ctx := t.Context()
	var b strings.Builder
	if _, err := c.UndeleteTable(ctx, tableName("deleted")); err != nil {
		fmt.Fprintf(&b, "undelete: %v\n", err)
	}
	if _, err := c.RestoreTable(ctx, backup, tableName("restored"), func(*schema.Table) error { return nil }); err != nil {
		fmt.Fprintf(&b, "restore: %v\n", err)
	}
	tables, err := c.ListTables(ctx, instance)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range tables {
		fmt.Fprintf(&b, "table %s\n", s.Name)
		for _, name := range s.FamilyNames() {
			f := s.Families[name]
			fmt.Fprintf(&b, "family %s aggregate %d group %d gc %v\n", name, f.Aggregate, f.Group, rule(f.GC))
		}
		if err := c.SampleRowKeys(ctx, s.Name, row.All, func(m scan.Sample) error { return nil }); err != nil {
			t.Fatal(err)
		}
		w := &backendtest.Collector{}
		if _, err := c.ReadRows(ctx, &scan.Request{Table: s.Name, Ranges: []row.Range{row.All}}, w); err != nil || w.Check() != nil {
			t.Fatal(err, w.Check())
		}
		for _, r := range w.Rows {
			for _, v := range r.Cells {
				if s.Families[v.Family].Aggregate == schema.NotAggregate && len(v.Value) > 40 {
					v.Value = fmt.Appendf(nil, "%s… %d, crc %08x", v.Value[:20], len(v.Value), crc32.ChecksumIEEE(v.Value))
				}
				fmt.Fprintf(&b, "%q %s:%q @%d %q\n", r.Key, v.Family, v.Qualifier, v.Timestamp, v.Value)
			}
		}
	}
	err = c.ListRecords(ctx, "", func(key string, value []byte, _ uint64) error {
		fmt.Fprintf(&b, "record %s %q\n", key, value)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func rule(r *schema.GCRule) string {
	if r == nil {
		return "none"
	}
	s := fmt.Sprint(r.MaxVersions, " ", int64(r.MaxAge))
	for _, k := range r.Union {
		s += " or (" + rule(k) + ")"
	}
	for _, k := range r.Intersection {
		s += " and (" + rule(k) + ")"
	}
	return s
}

// judge compares content with what is expected of a version.
func judge(t *testing.T, version int, c *client.Client) {
	t.Helper()
	want, err := os.ReadFile(fmt.Sprintf("testdata/content-%d.txt", version))
	if err != nil {
		t.Fatal(err)
	}
	got := content(t, c)
	if got == string(want) {
		return
	}
	g, w := strings.Split(got, "\n"), strings.Split(string(want), "\n")
	for i := range max(len(g), len(w)) {
		if i >= len(g) || i >= len(w) || g[i] != w[i] {
			t.Fatalf("line %d of %d differs: %q, of %d %q", i+1, len(g), g[min(i, len(g)-1)], len(w), w[min(i, len(w)-1)])
		}
	}
}

func openDirectory(t *testing.T, dir string) (*standalone.Server, func()) {
	t.Helper()
	o := standalone.Options{Dir: dir, Logger: slog.New(slog.DiscardHandler)}
	o.Log.SegmentBytes = 1 << 20
	o.Master.Merge = -1
	o.TabletServer.Tablet.FileBytes = 16 << 10
	s, err := standalone.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	end := func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(end)
	return s, end
}

// directly is the Dialer of servers in this process.
type directly struct {
	mu sync.Mutex
	s  rpc.TabletServer
}

// Dial implements rpc.Dialer.
func (d *directly) Dial(string) rpc.TabletServer {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.s
}

// openStore begins the processes of a cluster: one tablet server and a master.
func openStore(t *testing.T, l lock.Service, dir string) (*client.Client, *tabletserver.Server, func()) {
	t.Helper()
	store, err := objectstore.OpenLocal(vfs.Default, dir, objectstore.LocalOptions{Owner: "s"})
	if err != nil {
		t.Fatal(err)
	}
	ssts, logs, copies := objectstore.Sub(store, "sst"), objectstore.Sub(store, "log"), objectstore.Sub(store, "etcd")
	d := &directly{}
	o := tabletserver.Options{Name: "s", Addr: "s", Lock: l, Dialer: d, Objects: ssts, Logs: logs, Copies: copies}
	o.Tablet.FileBytes = 16 << 10
	s, err := tabletserver.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	d.s = s
	d.mu.Unlock()
	term, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		err := master.Run(term, master.Options{Name: "m", Lock: l, Dialer: d, Objects: ssts, Logs: logs, Copies: copies, Copy: 20 * time.Millisecond, Merge: -1})
		if term.Err() == nil {
			t.Errorf("the master ended: %v", err)
		}
	})
	end := sync.OnceFunc(func() {
		now, cancel := context.WithCancel(context.Background())
		cancel()
		_ = s.Close(now) // as if it was killed, but that its session ends at once
		stop()
		running.Wait()
	})
	t.Cleanup(end)
	return client.New(client.Options{Lock: l, Dialer: d, Schemas: s.Schemas()}), s, end
}

// recovered is a lock service as its last copy in a store says that it was.
func recovered(t *testing.T, dir string) lock.Service {
	t.Helper()
	ctx := t.Context()
	store, err := objectstore.OpenLocal(vfs.Default, dir, objectstore.LocalOptions{Owner: "recover"})
	if err != nil {
		t.Fatal(err)
	}
	l := memory.New().Client(nil, nil)
	copier := &catalog.Copier{Lock: l, Store: objectstore.Sub(store, "etcd")}
	cp, err := copier.Newest(ctx)
	if err == nil {
		err = errors.Join(cp.Amend(ctx, objectstore.Sub(store, "sst"), objectstore.Sub(store, "log")), copier.Restore(ctx, cp))
	}
	if err == nil {
		err = catalog.CheckFormat(ctx, l)
	}
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// versions are those of which there is something in testdata.
var versions = []int{2, 3}

// TestContent: what is expected is what this build stores and reads.
func TestContent(t *testing.T) {
	s, _ := openDirectory(t, t.TempDir())
	if err := fill(t.Context(), s.Client); err != nil {
		t.Fatal(err)
	}
	if *write {
		if err := os.WriteFile(fmt.Sprintf("testdata/content-%d.txt", catalog.FormatVersion), []byte(content(t, s.Client)), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if v := versions[len(versions)-1]; v != catalog.FormatVersion {
		t.Errorf("testdata ends with version %d, this build writes %d: see docs/formats.md", v, catalog.FormatVersion)
	}
	judge(t, catalog.FormatVersion, s.Client)
}

// TestDirectory: the data directory of every version is served as it was left.
func TestDirectory(t *testing.T) {
	if *write {
		dir := t.TempDir()
		s, _ := openDirectory(t, dir)
		if err := fill(t.Context(), s.Client); err != nil {
			t.Fatal(err)
		}
		pack(t, dir, fmt.Sprintf("testdata/directory-%d.zip", catalog.FormatVersion)) // as a crash leaves it
	}
	for _, v := range versions {
		t.Run(fmt.Sprint(v), func(t *testing.T) {
			dir := unpack(t, fmt.Sprintf("testdata/directory-%d.zip", v))
			sum, err := check.Directory(t.Context(), vfs.Default, dir, nil, func(f check.Finding) { tell(t, f) })
			if err != nil || sum.Tables != 2 || sum.Backups != 1 || sum.LogRecords == 0 {
				t.Errorf("check: %+v, %v", sum, err)
			}
			s, end := openDirectory(t, dir)
			judge(t, v, s.Client)
			end()
			s, _ = openDirectory(t, dir)
			again(t, s.Client)
		})
	}
}

// TestStore: the store of a cluster of every version is, too: the lock service from
// its copy, what is in no SSTable from the commit logs of a server that is gone.
func TestStore(t *testing.T) {
	if *write {
		dir := t.TempDir()
		c, _, _ := openStore(t, memory.New().Client(nil, nil), dir)
		if err := fill(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second) // for the copy
		pack(t, dir, fmt.Sprintf("testdata/store-%d.zip", catalog.FormatVersion))
	}
	for _, v := range versions {
		t.Run(fmt.Sprint(v), func(t *testing.T) {
			dir := unpack(t, fmt.Sprintf("testdata/store-%d.zip", v))
			store, err := objectstore.OpenLocal(vfs.Default, dir, objectstore.LocalOptions{Owner: "check"})
			if err != nil {
				t.Fatal(err)
			}
			sum, err := check.Stopped(t.Context(), check.ClusterOptions{Objects: objectstore.Sub(store, "sst"), Logs: objectstore.Sub(store, "log"), Blocks: true},
				objectstore.Sub(store, "etcd"), func(f check.Finding) { tell(t, f) })
			if err != nil || sum.Tables != 2 || sum.Backups != 1 || sum.LogSegments == 0 {
				t.Errorf("check: %+v, %v", sum, err)
			}
			l := recovered(t, dir)
			c, _, end := openStore(t, l, dir)
			judge(t, v, c)
			end()
			c, _, _ = openStore(t, l, dir)
			again(t, c)
		})
	}
}

// TestOtherVersions: a cluster of another version is refused by that name.
func TestOtherVersions(t *testing.T) {
	ctx := t.Context()
	for name, c := range map[string]struct {
		items map[string]string
		want  string
	}{
		"none yet":       {nil, ""},
		"this one":       {map[string]string{catalog.FormatKey: fmt.Sprint(catalog.FormatVersion), catalog.IncarnationKey: "7"}, ""},
		"being made":     {map[string]string{catalog.FormatKey: fmt.Sprint(catalog.FormatVersion)}, ""},
		"the first":      {map[string]string{catalog.IncarnationKey: "7"}, "format 1; this program reads format 3: use the version of trestle that wrote it"},
		"one to come":    {map[string]string{catalog.FormatKey: "4", catalog.IncarnationKey: "7"}, "format 4; this program reads format 3"},
		"damaged":        {map[string]string{catalog.FormatKey: "x", catalog.IncarnationKey: "7"}, "item format"},
		"the one before": {map[string]string{catalog.FormatKey: "2", catalog.IncarnationKey: "7"}, ""},
		"one being made": {map[string]string{catalog.FormatKey: "4"}, "format 4"},
	} {
		l := memory.New().Client(nil, nil)
		for k, v := range c.items {
			if _, err := l.Put(ctx, k, []byte(v), 0); err != nil {
				t.Fatal(err)
			}
		}
		if err := catalog.CheckFormat(ctx, l); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if c.items[catalog.IncarnationKey] != "" {
			continue
		}
		if _, err := catalog.ClaimIncarnation(ctx, l); (err == nil) != (c.want == "") {
			t.Errorf("%s: the first process: %v", name, err)
		}
	}
}

// tell fails the test on a finding that is damage.
func tell(t *testing.T, f check.Finding) {
	t.Helper()
	if !f.Harmless {
		t.Errorf("%+v", f)
	}
}

// again reads and writes what was restarted.
func again(t *testing.T, c *client.Client) {
	t.Helper()
	ctx, name := t.Context(), tableName("pages")
	err := c.MutateRow(ctx, name, &row.Entry{Key: []byte("new"), Mutations: []row.Mutation{{Op: row.SetCell, Family: "contents", Timestamp: 1000, Value: []byte("v")}}})
	if err == nil {
		err = c.CompactTablets(ctx, name, row.All, nil)
	}
	w := &backendtest.Collector{}
	if err == nil {
		_, err = c.ReadRows(ctx, &scan.Request{Table: name, Ranges: []row.Range{row.Single([]byte("new")), row.Single([]byte("\xff\xff"))}}, w)
	}
	if err != nil || len(w.Rows) != 2 {
		t.Errorf("%d rows after another start: %v", len(w.Rows), err)
	}
}

// pack writes the files of a directory, but for what only reserves space, into an
// archive.
func pack(t *testing.T, dir, name string) {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == ".tmp" {
			return fs.SkipDir
		}
		if err != nil || d.IsDir() || d.Name() == datadir.ReserveName || strings.HasSuffix(d.Name(), ".free") {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		within, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		w, err := z.Create(filepath.ToSlash(within))
		if err == nil {
			_, err = w.Write(content)
		}
		return err
	})
	if err = errors.Join(err, z.Close()); err == nil {
		err = os.WriteFile(name, b.Bytes(), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// unpack returns a directory with the files of an archive.
func unpack(t *testing.T, name string) string {
	t.Helper()
	dir := t.TempDir()
	z, err := zip.OpenReader(name)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	for _, f := range z.File {
		to := filepath.Join(dir, filepath.FromSlash(f.Name)) // an archive of our own
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err = errors.Join(err, r.Close(), os.MkdirAll(filepath.Dir(to), 0o700)); err == nil {
			err = os.WriteFile(to, content, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
