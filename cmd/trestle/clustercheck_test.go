package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/objectstore"
)

// try runs a command that asks the cluster and returns what it prints, and its exit code.
func (c *testCluster) try(args ...string) (string, int) {
	c.t.Helper()
	p := startTrestle(c.t, "real", c.dir, append(slices.Clone(args), "--etcd="+c.etcd, "--cluster=test")...)
	out, code, _ := p.exit()
	return out + p.stderr.String(), code
}

// check runs `trestle check --online` and returns what it prints, and its exit code.
func (c *testCluster) check(args ...string) (string, int) {
	c.t.Helper()
	p := startTrestle(c.t, "real", c.dir, append(append([]string{"check", "--online"}, args...), "--etcd="+c.etcd, "--cluster=test")...)
	out, code, _ := p.exit()
	return out + p.stderr.String(), code
}

// status returns what `trestle cluster status` says.
func (c *testCluster) status() (s clusterStatus) {
	c.t.Helper()
	eventually(c.t, func() string {
		out, code := c.try("cluster", "status", "--json")
		if code != 0 { // METADATA is away for a moment
			return out
		}
		s = clusterStatus{}
		if err := json.Unmarshal([]byte(out), &s); err != nil {
			c.t.Fatal(err)
		}
		return ""
	})
	return s
}

// damage changes one byte of a file, and returns what puts it back.
func damage(t *testing.T, path string) (undo func()) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	at := int64(len(b) / 3)
	if _, err := f.WriteAt([]byte{b[at] ^ 1}, at); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Error(err)
		}
	}
}

// segments returns the names of the segments of a commit log in the store dir, in
// their order.
func segments(t *testing.T, dir, log string) (names []string) {
	t.Helper()
	infos, err := logStore(t, dir).List(t.Context(), log+"/", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range infos {
		if b, err := logStore(t, dir).Get(t.Context(), info.Name); err == nil && len(b) > 64 { // no fence
			names = append(names, info.Name)
		}
	}
	return names
}

func logStore(t *testing.T, dir string) objectstore.Store {
	t.Helper()
	s, err := objectstore.OpenLocal(vfs.Default, dir, objectstore.LocalOptions{Owner: "test"})
	if err != nil {
		t.Fatal(err)
	}
	return objectstore.Sub(s, "log")
}

// damageSegment changes a byte of the index of a segment, in each file that has it.
func damageSegment(t *testing.T, dir, name string) (undo func()) {
	t.Helper()
	data, err := logStore(t, dir).Get(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	parent := filepath.Join(dir, "log", filepath.Dir(name))
	files, err := os.ReadDir(parent)
	if err != nil {
		t.Fatal(err)
	}
	type place struct {
		path string
		at   int64
	}
	var places []place
	for _, file := range files {
		path := filepath.Join(parent, file.Name())
		if b, err := os.ReadFile(path); err == nil {
			if i := bytes.Index(b, data); i >= 0 {
				places = append(places, place{path, int64(i) + 70})
			}
		}
	}
	if len(places) == 0 {
		t.Fatalf("no file has segment %s", name)
	}
	set := func(b byte) {
		for _, p := range places {
			f, err := os.OpenFile(p.path, os.O_WRONLY, 0)
			if err == nil {
				_, err = f.WriteAt([]byte{b}, p.at)
				err = errors.Join(err, f.Close())
			}
			if err != nil {
				t.Error(err)
			}
		}
	}
	set(data[70] ^ 1)
	return func() { set(data[70]) }
}

// TestClusterCheck: check names what is wrong in the store of a cluster that
// serves, with --blocks each object of which a byte is not what was written, and
// what nothing refers to; it finds nothing else.
func TestClusterCheck(t *testing.T) {
	if testing.Short() {
		t.Skip("starts five processes")
	}
	c := startCluster(t, 2, mortal)
	tbl := c.table(c.addrs["server-1"])
	write := func(from, to int) {
		t.Helper()
		for i := from; i < to; i++ {
			m := bigtable.NewMutation()
			m.Set("f", "q", bigtable.Now(), []byte(strings.Repeat("v", 100)))
			if err := tbl.Apply(t.Context(), fmt.Sprintf("%c%03d", 'a'+i%26, i), m); err != nil {
				t.Fatal(err)
			}
		}
	}
	write(0, 200)
	c.run("tablet", "flush", "--table=table-of-test", "--all")
	write(200, 230) // in the commit logs
	store := "--store=" + c.store
	dir := strings.TrimPrefix(c.store, "file://")
	files := func(pattern string) []string {
		t.Helper()
		paths, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		return paths
	}
	expect := func(code int, args []string, parts ...string) {
		t.Helper()
		out, got := c.check(append(slices.Clone(args), store)...)
		for _, p := range parts {
			if !regexp.MustCompile(p).MatchString(out) {
				t.Errorf("check %v does not say %s", args, p)
				got = -1
			}
		}
		if got != code {
			t.Fatalf("check %v: exit code %d, not %d\n%s", args, got, code, out)
		}
	}
	blocks := []string{"--blocks", "--rate=0"}
	expect(0, nil, `cluster test: no damage`)
	expect(0, blocks, `cluster test: no damage, \d+ harmless findings?; 1 table, 8 tablets, 0 backups, [1-9]\d* SSTables \(.*, [1-9]\d+ entries\), [1-9]\d* log segments read`)
	expect(0, []string{"--blocks", "--rate=1MiB"}, `no damage`, `1.0 MiB/s at most`)

	sst := files("sst/*.sst")[0]
	undo := damage(t, sst)
	expect(0, nil, `no damage`)
	expect(1, blocks, `damage    sst/`+filepath.Base(sst)+`: .*checksum.* of tablet \w+ of `, `: 1 damaged,`)
	undo()
	var segment string
	for _, l := range files("log/*") {
		// The newest may not have been stored, if it is not whole.
		if names := segments(t, dir, filepath.Base(l)); len(names) > 1 {
			segment = names[len(names)-2]
		}
	}
	undo = damageSegment(t, dir, segment)
	expect(1, blocks, `damage    log/`+segment+`: .*corruption`, `: 1 damaged,`)
	undo()
	aside := filepath.Join(c.dir, "aside")
	if err := os.Rename(sst, aside); err != nil {
		t.Fatal(err)
	}
	missing := `damage    sst/` + filepath.Base(sst) + `: is missing; tablet \w+ of `
	expect(1, nil, missing, `: 1 damaged,`)
	expect(1, blocks, missing, `: 1 damaged,`)
	if err := os.Rename(aside, sst); err != nil {
		t.Fatal(err)
	}
	extra := filepath.Join(dir, "sst", "00000001000000ff.sst")
	if err := os.WriteFile(extra, []byte("left over"), 0o644); err != nil {
		t.Fatal(err)
	}
	// A log of a server long gone, and the fence of another, which stays for ever.
	for name, size := range map[string]int{"0000000000f00000/000000000000007": 100, "0000000000f00002/000000000000001": 64} {
		path := filepath.Join(dir, "log", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, make([]byte, size), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	expect(0, nil, `harmless  log/0000000000f00000: 100 bytes, \d+s old: no tablet needs its 1 segments, and its server is gone`,
		`harmless  sst/00000001000000ff.sst: 9 bytes, \d+s old: no tablet or backup names it`, `: no damage,.* 2 objects \(109 B\) are named by none`)
	stopped := func(code int, args []string, parts ...string) {
		t.Helper()
		p := startTrestle(t, "real", c.dir, append(append([]string{"check", store, "--cluster=test"}, args...), "--blocks", "--rate=0")...)
		out, got, _ := p.exit()
		out += p.stderr.String()
		for _, part := range parts {
			if !regexp.MustCompile(part).MatchString(out) {
				got = -1
			}
		}
		if got != code {
			t.Errorf("check %v: exit code %d, want %d and %q\n%s", args, got, code, parts, out)
		}
	}
	stopped(1, []string{"--etcd=" + c.etcd}, `tablet server server-\d.* lives: check what serves with --online`)
	if out, code := c.try("cluster", "check"); code != exitUsage || !strings.Contains(out, "trestle cluster check is trestle check --online now") {
		t.Errorf("the old spelling: exit code %d\n%s", code, out)
	}
	if out, code := c.check("--store=file://" + t.TempDir()); code != 1 || !strings.Contains(out, "does not say that it is of cluster") {
		t.Errorf("check of another store: exit code %d\n%s", code, out)
	}
	nowhere := filepath.Join(c.dir, "nowhere")
	if out, code := c.check("--store=file://" + nowhere); code != 1 || !strings.Contains(out, "no such file") {
		t.Errorf("check of no store: exit code %d\n%s", code, out)
	}
	if _, err := os.Stat(nowhere); !os.IsNotExist(err) {
		t.Errorf("check made a store: %v", err)
	}
	other := startTrestle(t, "real", c.dir, "cluster", "status", "--etcd="+c.etcd, "--cluster=other")
	if out, code, _ := other.exit(); code != 1 || !strings.Contains(other.stderr.String(), `knows of no cluster "other"`) || !strings.Contains(other.stderr.String(), "it knows of test") {
		t.Errorf("status of no cluster: exit code %d\n%s%s", code, out, other.stderr)
	}

	// Nobody lives: by etcd, and by its copy in the store. Nothing is changed, so
	// rows that were in no SSTable are there when the cluster begins again.
	for _, log := range []string{"0000000000f00000", "0000000000f00002"} { // no logs, but like such
		if err := os.RemoveAll(filepath.Join(dir, "log", log)); err != nil {
			t.Fatal(err)
		}
	}
	c.kill()
	eventually(t, func() string {
		p := startTrestle(t, "real", c.dir, "check", store, "--etcd="+c.etcd, "--cluster=test")
		if out, code, _ := p.exit(); code != 0 {
			return out + p.stderr.String() // sessions end by themselves
		}
		return ""
	})
	before := strings.Join(files("*/*"), "\n")
	good := `cluster test: no damage, \d+ harmless findings?; 1 table, 8 tablets, 0 backups, [1-9]\d* SSTables \(.*, [1-9]\d+ entries\), [1-9]\d* log segments read`
	stopped(0, []string{"--etcd=" + c.etcd}, good)
	stopped(0, nil, good)
	// The logs of the servers that were killed are needed, METADATA's among them.
	p := startTrestle(t, "real", c.dir, "check", store, "--cluster=test")
	if out, _, _ := p.exit(); strings.Contains(out, "no tablet needs its") {
		t.Errorf("a commit log of a cluster that was killed is called needless:\n%s", out)
	}
	if err := os.Rename(sst, aside); err != nil {
		t.Fatal(err)
	}
	stopped(1, nil, missing, `: 1 damaged,`)
	if err := os.Rename(aside, sst); err != nil {
		t.Fatal(err)
	}
	if after := strings.Join(files("*/*"), "\n"); after != before {
		t.Errorf("to check changes the store:\n%s\nwas\n%s", after, before)
	}
	c.startMaster("master-1")
	c.launch("server-1")
	c.ready("server-1")
	_, client := clients(t, c.addrs["server-1"])
	tbl = client.Open("table-of-test")
	for i := range 230 {
		key := fmt.Sprintf("%c%03d", 'a'+i%26, i)
		if got, err := rowWithin(t, tbl, key, time.Minute); err != nil || got == "" {
			t.Fatalf("row %s after the check: %q, %v", key, got, err)
		}
	}
}
