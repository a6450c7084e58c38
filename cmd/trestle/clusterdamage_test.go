package main

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
)

// TestClusterDropDamagedLog: a server dies and two segments of its log are
// damaged. Everybody tells which tablets wait for which segment; what is not
// damaged is not given up; given up, the tablets are served without what the two
// segments had, and with everything else.
func TestClusterDropDamagedLog(t *testing.T) {
	if testing.Short() {
		t.Skip("starts five processes")
	}
	c := startCluster(t, 2, mortal, func(c *testCluster) {
		c.extra = func(string) []string { return []string{"--http-listen=127.0.0.1:0"} }
	})
	dir, store := strings.TrimPrefix(c.store, "file://"), "--store="+c.store
	tbl := c.table(c.addrs["server-2"])
	var inc uint64
	mine := map[string]bool{} // first letters of the rows that server-1 has
	eventually(t, func() string {
		s := c.status()
		clear(mine)
		for _, x := range s.Servers {
			if x.Name == "server-1" {
				inc = x.Incarnation
			}
		}
		for _, tt := range s.Tables {
			for _, x := range tt.Tablets {
				if !strings.Contains(tt.Table, "table-of-test") {
					continue
				}
				if x.State != "open" {
					return "a tablet is not open"
				}
				for l := 'a'; x.Server == "server-1" && l <= 'z'; l++ {
					if string(l) >= x.Start && (x.End == "" || string(l) < x.End) {
						mine[string(l)] = true
					}
				}
			}
		}
		if len(mine) == 0 {
			return "server-1 has no tablet"
		}
		return ""
	})
	log := catalog.UserLog(inc).String()
	newest := func() string {
		t.Helper()
		names := segments(t, dir, log)
		if len(names) == 0 {
			t.Fatal("no segments")
		}
		return names[len(names)-1]
	}
	write := func(row string) {
		t.Helper()
		if err := writeWithin(t, tbl, row, "in a log", time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	letters := slices.Sorted(maps.Keys(mine))
	all := map[string]bool{}
	for _, l := range letters { // one segment each, as nobody else writes
		write(l + "1")
		all[l+"1"] = true
	}
	lost := [2]string{letters[0] + "2", letters[len(letters)-1] + "2"}
	var damaged [2]string
	for i, row := range lost {
		write(row)
		damaged[i] = newest()
		write(letters[0] + fmt.Sprint("3", i))
		all[letters[0]+fmt.Sprint("3", i)] = true
	}
	name := func(i int) string { return damaged[i] }
	damageSegment(t, dir, name(0))
	damageSegment(t, dir, name(1))
	if out, code := c.try("log", "drop-damaged", name(0), "--yes", store); code != 1 || !strings.Contains(out, "lives and has in memory what is in it") {
		t.Errorf("of a living server: exit code %d\n%s", code, out)
	}
	c.servers["server-1"].signal(os.Kill)
	c.servers["server-1"].exit()

	// Everybody tells.
	url := strings.TrimSuffix(strings.Fields(c.addrsHTTP["server-2"])[0], "/metrics")
	waits := regexp.MustCompile(`commit log segment ` + name(0) + ` of server-1 is damaged \(.*\) since .*; not served without it: tablet [0-9a-f]+ of projects/project/instances/instance/tables/table-of-test`)
	eventually(t, func() string {
		if body := httpGet(t, url+"/readyz"); !waits.MatchString(body) {
			return "readyz: " + body
		}
		return ""
	})
	if body := httpGet(t, url+"/metrics"); !regexp.MustCompile(`bigtable_cluster_tablet_waits_for_damaged_log\{object="` + name(0) + `",table="projects/project/instances/instance/tables/table-of-test",tablet="[0-9a-f]+"\} 1`).MatchString(body) {
		t.Error("the metrics do not tell of it")
	}
	if d := c.status().Damaged; len(d) == 0 || d[0].Object != name(0) || d[0].Server != "server-1" || d[0].Error == "" || d[0].Tablet == "" {
		t.Errorf("status: %+v", d)
	}
	if out := c.run("cluster", "status"); !regexp.MustCompile(`not served: .*\n.*\n[0-9a-f]+ .* server-1 +` + name(0)).MatchString(out) {
		t.Errorf("status:\n%s", out)
	}
	if out, code := c.check(store); code != 1 || !regexp.MustCompile(`damage    log/`+name(0)+`: of server-1, is damaged .* is not served without it`).MatchString(out) {
		t.Errorf("check: exit code %d\n%s", code, out)
	}

	// What is refused.
	for _, r := range []struct {
		why  string
		args []string
	}{
		{"is neither LOG/SEGMENT nor LOG", []string{"users"}},
		{"is of METADATA", []string{catalog.MetadataLog(inc).String()}},
		{"there is no commit log", []string{catalog.UserLog(inc + 1000).String()}},
		{"is not damaged", []string{log + "/" + fmt.Sprintf("%015d", 999), "--yes"}},
		{`(?s)\d+ tablets wait for it:.*segment ` + name(0) + ` .*damaged index.*lost: .*segment ` + name(1) + ` .*damaged index.*give --yes.*nothing was changed`, []string{log}},
	} {
		if out, code := c.try(append(append([]string{"log", "drop-damaged"}, r.args...), store)...); code != 1 || !regexp.MustCompile(r.why).MatchString(out) {
			t.Errorf("%v: exit code %d\n%s", r.args, code, out)
		}
	}
	if out, code := c.try("log", "drop-damaged", name(0), "--yes", store); code != 1 || !strings.Contains(out, "gave up commit log segment "+name(0)) || !strings.Contains(out, "waits for segment "+name(1)+" too") {
		t.Errorf("of one of two: exit code %d\n%s", code, out)
	}
	if out, code := c.try("log", "drop-damaged", log, "--yes", store); code != 0 || !strings.Contains(out, "gave up commit log segment "+name(1)) || !strings.Contains(out, "served again") || strings.Contains(out, name(0)) {
		t.Fatalf("of the rest: exit code %d\n%s", code, out)
	}
	for row := range all {
		if got, err := rowWithin(t, tbl, row, time.Minute); err != nil || got != "in a log" {
			t.Errorf("row %s: %q, %v", row, got, err)
		}
	}
	for _, row := range lost {
		if got, err := rowWithin(t, tbl, row, time.Minute); err != nil || got != "" {
			t.Errorf("row %s, which was given up: %q, %v", row, got, err)
		}
	}
	write(lost[0])
	if d := c.status().Damaged; len(d) > 0 {
		t.Errorf("status: %+v", d)
	}
	for _, args := range [][]string{{store}, {"--blocks", "--rate=0", store}} {
		unused := regexp.MustCompile(`harmless  log/` + log + `: [1-9]\d* bytes, .* old: no tablet needs its [1-9]\d* segments, and its server is gone`)
		if out, code := c.check(args...); code != 0 || !unused.MatchString(out) {
			t.Errorf("%v: exit code %d\n%s", args, code, out)
		}
	}
	if out, code := c.try("log", "drop-damaged", log, "--yes", store); code != 1 || !strings.Contains(out, "no tablet waits for commit log") {
		t.Errorf("again: exit code %d\n%s", code, out)
	}
	eventually(t, func() string {
		if body := httpGet(t, url+"/readyz"); strings.Contains(body, "[!]") {
			return "readyz: " + body
		}
		return ""
	})
}
