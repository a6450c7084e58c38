package main

import (
	"archive/zip"
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
	"github.com/trestledb/trestle/engine/loopback"
)

// TestClusterDoctor: the key visualizer, history, top, doctor and debug zip of a cluster, by
// each way to ask it, and with a server that is stopped and one that answers no questions.
func TestClusterDoctor(t *testing.T) {
	if testing.Short() {
		t.Skip("starts six processes")
	}
	admins := map[string]string{"server-1": loopback.Addr(t), "server-2": loopback.Addr(t)}
	c := startCluster(t, 2, func(c *testCluster) {
		c.extra = func(name string) []string { return []string{"--http-listen=" + admins[name]} }
		c.ttl = 8 * time.Second // for which a dead server is taken for a living one
	})
	gateway := startTrestle(t, "real", c.dir, c.args("gateway", "--emulator", "--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0",
		"--data-dir="+filepath.Join(c.dir, "gateway-1"))...)
	at, _, _ := strings.Cut(gateway.line("metrics and health"), "/metrics")
	byServer, byGateway, byEtcd := []string{"--admin", "http://" + admins["server-1"]}, []string{"--admin", at}, []string{"--etcd", c.etcd, "--cluster=test"}
	ways := [][]string{byServer, byGateway, byEtcd}
	tbl := c.table(c.addrs["server-1"])
	put := func(n int) {
		t.Helper()
		var keys []string
		var muts []*bigtable.Mutation
		for i := range n {
			m := bigtable.NewMutation()
			m.Set("f", "a", 1000, []byte("v"))
			keys, muts = append(keys, string(rune('a'+i%26))+"-secret-row"), append(muts, m)
		}
		if errs, err := tbl.ApplyBulk(t.Context(), keys, muts); err != nil || len(errs) > 0 {
			t.Fatal(err, errs)
		}
	}
	const full, rows = "projects/project/instances/instance/tables/table-of-test", 520
	written := func(base string) (n int64, took time.Duration) {
		t.Helper()
		begin := time.Now()
		var m ops.HeatMap
		if err := json.Unmarshal([]byte(httpGet(t, base+"/admin/keyvis?metric=rows_written&table="+url.QueryEscape(full))), &m); err != nil {
			t.Fatal(err)
		}
		for _, column := range m.Values {
			for _, v := range column {
				n += v
			}
		}
		return n, time.Since(begin)
	}
	restart := func(name string) {
		t.Helper()
		c.servers[name].signal(syscall.SIGTERM)
		if _, code, _ := c.servers[name].exit(); code != 0 {
			t.Fatalf("%s: exit code %d\n%s", name, code, c.servers[name].stderr)
		}
		c.launch(name)
		c.ready(name)
	}
	doctor := func(way []string) (checks []string, processes int, text string) {
		t.Helper()
		out, errs, _ := tool(t, c.dir, append([]string{"doctor", "--json"}, way...)...)
		var got struct {
			Findings  []diagnosis `json:"findings"`
			Processes int         `json:"processes"`
		}
		if err := json.Unmarshal([]byte(out), &got); err != nil {
			t.Fatalf("doctor %v: %v\n%s%s", way, err, out, errs)
		}
		for _, f := range got.Findings {
			// The machine may be slow, or short of something.
			if !slices.Contains([]string{"files", "sync", "disk", "memory", "etcd", "health", "tablets"}, f.Check) {
				checks = append(checks, f.Check+" "+f.Where)
			}
		}
		return checks, got.Processes, out
	}

	// What each of the servers has recorded when it stops is there, whoever is asked.
	put(rows)
	for _, name := range []string{"server-2", "server-1"} {
		restart(name)
	}
	for _, base := range []string{"http://" + admins["server-1"], at} {
		if n, _ := written(base); n != rows {
			t.Errorf("%s has a heat map of %d rows, %d were written", base, n, rows)
		}
		var h ops.HistoryList
		if err := json.Unmarshal([]byte(httpGet(t, base+"/admin/history?names=memory")), &h); err != nil || len(h.Series) != 1 || len(h.Series[0].Points) == 0 {
			t.Errorf("%s has the history %+v, %v", base, h, err)
		}
	}
	for i, way := range ways {
		if out, errs, code := tool(t, c.dir, append([]string{"top"}, way...)...); code != exitOK || !regexp.MustCompile(`(?m)^8 .*  `+full+`$`).MatchString(out) {
			t.Errorf("top %v: exit code %d\n%s%s", way, code, out, errs)
		}
		got, processes, text := doctor(way)
		if want := []int{2, 3, 2}[i]; len(got) > 0 || processes != want {
			t.Errorf("doctor %v looks at %d processes, not %d, and finds %v:\n%s", way, processes, want, got, text)
		}
		name := filepath.Join(c.dir, "out"+string(rune('0'+i))+".zip")
		if out, errs, code := tool(t, c.dir, append([]string{"debug", "zip", name, "--profile=0"}, way...)...); code != exitOK {
			t.Errorf("debug zip %v: exit code %d\n%s%s", way, code, out, errs)
			continue
		}
		files := unzipped(t, name)
		for _, server := range []string{"server-1", "server-2"} {
			if log := files["processes/"+server+"/log.txt"]; !strings.Contains(log, "msg=") {
				t.Errorf("%v: the log of %s is %q", way, server, log)
			}
		}
		for name, b := range files {
			if strings.Contains(b, "secret-row") {
				t.Errorf("%v: %s has a row's key", way, name)
			}
		}
	}

	// A table that is deleted leaves nothing to one of the same name.
	admin, _ := clients(t, c.addrs["server-1"])
	if err := admin.DeleteTable(t.Context(), "table-of-test"); err != nil {
		t.Fatal(err)
	}
	tbl = c.table(c.addrs["server-1"])
	if n, _ := written(at); n != 0 {
		t.Errorf("a new table has a heat map of %d rows of a deleted one", n)
	}
	put(rows)

	// A server of an earlier version answers no questions. Others do.
	restart("server-1")
	t.Setenv(envNoAnswers, "1")
	restart("server-2")
	if err := os.Unsetenv(envNoAnswers); err != nil {
		t.Fatal(err)
	}
	for range 8 { // they are asked in any order
		if n, _ := written(at); n != rows {
			t.Errorf("with a server that answers nothing there is a heat map of %d rows", n)
		}
	}
	for _, way := range ways {
		if got, _, text := doctor(way); !slices.Equal(got, []string{"servers server-2"}) || !strings.Contains(text, "earlier version") {
			t.Errorf("doctor %v of a server that answers nothing finds %v\n%s", way, got, text)
		}
	}

	// While a server hangs another is asked. Then it is taken for dead.
	c.servers["server-2"].signal(syscall.SIGSTOP)
	for range 3 {
		if n, took := written(at); n != rows || took > time.Minute {
			t.Errorf("with a server that hangs the heat map has %d rows, after %v", n, took)
		}
	}
	c.servers["server-2"].signal(syscall.SIGKILL)
	// Of two processes it is no longer one: the machine was so busy that its session has ended.
	if got, processes, text := doctor(byGateway); processes < 2 || slices.Contains(got, "servers server-1") || processes > 2 && len(got) == 0 {
		t.Errorf("doctor of a dead server finds %v\n%s", got, text)
	}
	name := filepath.Join(c.dir, "dead.zip")
	if out, errs, code := tool(t, c.dir, append([]string{"debug", "zip", name, "--profile=0"}, byGateway...)...); code != exitOK {
		t.Errorf("debug zip with a dead server: exit code %d\n%s%s", code, out, errs)
	} else if files := unzipped(t, name); len(files["processes/server-1/process.json"]) == 0 {
		t.Errorf("debug zip with a dead server has nothing of the other")
	}
}

// unzipped returns the files of a zip file.
func unzipped(t *testing.T, name string) map[string]string {
	t.Helper()
	z, err := zip.OpenReader(name)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	out := map[string]string{}
	for _, f := range z.File {
		b, err := readZipFile(f)
		if err != nil {
			t.Fatal(err)
		}
		out[f.Name] = string(b)
	}
	return out
}
