package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"cloud.google.com/go/bigtable"

	"github.com/trestledb/trestle/cluster/master"
	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
	"github.com/trestledb/trestle/engine/loopback"
)

// TestClusterOperate: `trestle tablet` and `trestle table` work on a cluster
// through any of its processes, and without one.
func TestClusterOperate(t *testing.T) {
	if testing.Short() {
		t.Skip("starts six processes")
	}
	admins := map[string]string{"server-1": loopback.Addr(t), "server-2": loopback.Addr(t)}
	c := startCluster(t, 2, func(c *testCluster) {
		c.extra = func(name string) []string {
			return []string{"--http-listen=" + admins[name]}
		}
	})
	gateway := startTrestle(t, "real", c.dir, c.args("gateway", "--emulator", "--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0",
		"--data-dir="+filepath.Join(c.dir, "gateway-1"))...)
	url, _, _ := strings.Cut(gateway.line("metrics and health"), "/metrics")
	ways := [][]string{{"--admin", "http://" + admins["server-2"]}, {"--admin", url}, {"--etcd", c.etcd, "--cluster=test"}}
	turn := 0
	want := func(code int, pattern string, args ...string) {
		t.Helper()
		turn++ // one way sees at once what was done on another
		out, errs, got := tool(t, c.dir, append(args, ways[turn%len(ways)]...)...)
		if got != code || !regexp.MustCompile(pattern).MatchString(out+errs) {
			t.Errorf("%v: exit code %d\n%s%s\nwant %d %s", args, got, out, errs, code, pattern)
		}
	}
	tbl := c.table(c.addrs["server-1"])
	for i := range 200 {
		m := bigtable.NewMutation()
		m.Set("f", "a", 1000, []byte(strings.Repeat("v", 200)))
		if err := tbl.Apply(t.Context(), fmt.Sprintf("%c%03d", 'a'+i%26, i), m); err != nil {
			t.Fatal(err)
		}
	}
	const full = "projects/project/instances/instance/tables/table-of-test"
	want(exitOK, full+`: 8 tablets, (?s).* SERVER\n.*server-[12]\n.*METADATA: 1 tablet, .*server-[12]\n$`, "tablet", "list")
	want(exitOK, `split at k\\x00\n`, "tablet", "split", "--table=table-of-test", "--key", `k\x00`)
	want(exitOK, `: 9 tablets, (?s).*\[j +k\\x00\).*\[k\\x00 +m\)`, "tablet", "list", "--table=table-of-test")
	want(exitFailure, ``, "tablet", "split", "--table=table-of-test", "--key", `k\x00`)
	want(exitOK, `merged`, "tablet", "merge", "--table", full, "--key=e")
	want(exitOK, `"server": "server-[12]"`, "tablet", "list", "--table=table-of-test", "--json")
	want(exitOK, `: 8 tablets, (?s).*\[d +j\)`, "tablet", "list", "--table=table-of-test")
	want(exitOK, `flush table-of-test: done`, "tablet", "flush", "--table=table-of-test", "--all")
	want(exitOK, `flush METADATA: done`, "tablet", "flush", "--table=METADATA", "--all")
	want(exitOK, `compact table-of-test: done, [0-9.]+ KiB`, "tablet", "compact", "--table=table-of-test", "--all")
	want(exitOK, `compact table-of-test: done, [0-9.]+ KiB`, "tablet", "compact", "--table=table-of-test", "--key=x")
	want(exitOK, `verify table-of-test: done, [0-9.]+ KiB`, "tablet", "verify", "--table=table-of-test", "--all")
	want(exitFailure, `Table not found: none`, "tablet", "verify", "--table=none", "--all")
	want(exitFailure, `no tablet of .* has an SSTable`, "tablet", "drop-damaged", "--table=table-of-test", "--object=x.sst", "--yes")

	want(exitOK, full+`\n.*\n  default +f +default +default +default +- +[0-9.]+ KiB +1 +[0-9]+\n$`, "table", "describe", "--table=table-of-test")
	want(exitOK, `big +f +16.0 KiB +zstd +off +- `, "table", "create-group", "--table=table-of-test", "--group=big", "--families=f", "--block-size=16KiB", "--compression=zstd", "--bloom=off")
	want(exitFailure, `has a locality group big already`, "table", "create-group", "--table=table-of-test", "--group=big")
	want(exitFailure, `still has the families`, "table", "delete-group", "--table=table-of-test", "--group=big")
	want(exitOK, `big +f +16.0 KiB +default +12 bits +[0-9]`, "table", "set-group", "--table=table-of-test", "--group=big", "--compression=default", "--bloom=12", "--in-memory")
	want(exitOK, `done`, "tablet", "compact", "--table=table-of-test", "--all")
	want(exitOK, `  default +- .* 0 +0\n  big +f +16.0 KiB +default +12 bits +[0-9.]+ [KM]?i?B +[0-9.]+ KiB +1 +[0-9]+\n$`, "table", "describe", "--table=table-of-test")
	want(exitOK, `default +f `, "table", "assign", "--table=table-of-test", "--group=default", "--families=f")
	want(exitOK, `default +f `, "table", "delete-group", "--table=table-of-test", "--group=big")
	for _, path := range []string{"/metrics", "/metrics/tablets"} {
		if got := httpGet(t, "http://"+admins["server-1"]+path); !strings.Contains(got, `bigtable_tablet_runs{table="`+full+`",tablet="`) {
			t.Errorf("%s tells nothing of tablets:\n%.2000s", path, got)
		}
	}
	for _, way := range ways {
		line := strings.Join(way, " ")
		if got := completion(t, "server drain "+line+" "); !slices.Equal(got, []string{"server-1", "server-2"}) {
			t.Errorf("%s: a shell is offered the servers %v", line, got)
		}
		if got := completion(t, "table describe "+line+" --table tab"); !slices.Equal(got, []string{"table-of-test"}) {
			t.Errorf("%s: a shell is offered the tables %v", line, got)
		}
	}
	// By each way the same commands say the same.
	var first []string
	for _, way := range ways {
		if got := operateRound(t, c.dir, way); first == nil {
			first = got
			t.Logf("%s", strings.Join(got, "\n"))
		} else if !slices.Equal(got, first) {
			t.Errorf("%v says\n%s\n%v said\n%s", way, strings.Join(got, "\n"), ways[0], strings.Join(first, "\n"))
		}
	}
	want(exitFailure, `there is no tablet server "typo"`, "server", "drain", "typo")
	want(exitFailure, `no living server is called "typo"`, "tablet", "move", "--table=table-of-test", "--key=a", "typo")
	n := 0
	if err := tbl.ReadRows(t.Context(), bigtable.InfiniteRange(""), func(bigtable.Row) bool { n++; return true }); err != nil || n != 200 {
		t.Errorf("%d rows, %v", n, err)
	}
}

// operateRound runs commands that leave the cluster as it was, each in one way, and
// returns what they say, without what time changes.
func operateRound(t *testing.T, dir string, way []string) (said []string) {
	t.Helper()
	do := func(args ...string) string {
		t.Helper()
		out, errs, code := tool(t, dir, append(args, way...)...)
		if code != exitOK {
			t.Errorf("%v %v: exit code %d\n%s%s", args, way, code, out, errs)
		}
		return out
	}
	say := func(args ...string) {
		t.Helper()
		out := regexp.MustCompile(` in [0-9.ms]+\n`).ReplaceAllString(do(args...), " in TIME\n")
		said = append(said, regexp.MustCompile(`split at r[0-9]+\n`).ReplaceAllString(out, "split in its middle\n"))
	}
	tablets := func() (all []ops.Tablet) {
		t.Helper()
		var list ops.TabletList
		if err := json.Unmarshal([]byte(do("tablet", "list", "--table=table-of-test", "--json")), &list); err != nil {
			t.Fatal(err)
		}
		return list.Tablets
	}
	show := func() {
		t.Helper()
		line := ""
		for _, x := range tablets() {
			line += fmt.Sprintf("[%s, %s) ", x.Start, x.End)
		}
		said = append(said, line)
	}
	id := func(start string) string {
		t.Helper()
		for _, x := range tablets() {
			if x.Start == start {
				return x.Tablet
			}
		}
		t.Errorf("no tablet begins with %s", start)
		return ""
	}
	say("tablet", "split", id("j"), "--key=jj")
	show()
	say("tablet", "merge", id("j"))
	say("tablet", "split", "--table=table-of-test", "--key=e")
	say("tablet", "merge", "--table=table-of-test", "--key=d")
	say("tablet", "split", id("p"))
	say("tablet", "merge", id("p"))
	say("tablet", "flush", id("s"))
	show()
	say("tablet", "move", "--table=table-of-test", "--key=a", "server-1")
	say("tablet", "move", id("m"), "server-2", "--pin")
	say("tablet", "move", id("m"), "server-1")
	say("server", "drain", "server-1")
	for _, x := range tablets() {
		if x.Server != "server-2" {
			t.Errorf("after a drain tablet %s is on %q", x.Tablet, x.Server)
		}
	}
	if out := do("server", "list"); !regexp.MustCompile(`(?m)^SERVER +ADDRESS .*\nserver-1 .* 0 +0 B .* draining\nserver-2 .* serves$`).MatchString(out) {
		t.Errorf("after a drain:\n%s", out)
	}
	say("server", "undrain", "server-1")
	var servers ops.ServerList
	if err := json.Unmarshal([]byte(do("server", "list", "--json")), &servers); err != nil || len(servers.Servers) != 2 || servers.Servers[0].Draining {
		t.Errorf("%v %v", servers, err)
	}
	for _, table := range strings.Split(do("table", "list"), "\n")[1:] {
		if f := strings.Fields(table); len(f) > 0 {
			said = append(said, f[0]+" "+f[len(f)-1])
		}
	}
	for _, args := range [][]string{{"tablet", "list"}, {"table", "describe", "--table=table-of-test"}, {"server", "list"}} {
		for _, line := range strings.Split(do(args...), "\n") {
			if utf8.RuneCountInString(line) > 80 {
				t.Errorf("%v prints %d columns: %s", args, utf8.RuneCountInString(line), line)
			}
		}
	}
	return said
}

// TestMasterMetrics: every metric of a master is there from the beginning.
func TestMasterMetrics(t *testing.T) {
	m, c := ops.NewMetrics(), new(master.Counters)
	observeMaster(m, c)
	c.TakenOver.Store(3)
	c.RoundNanos.Store(2_500_000_000)
	got, err := m.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range got {
		if strings.HasPrefix(f.GetName(), "bigtable_master_") {
			for _, one := range f.Metric {
				values[f.GetName()] += one.GetCounter().GetValue() + one.GetGauge().GetValue()
			}
		}
	}
	if len(values) != 24 || values["bigtable_master_takeovers_total"] != 3 || values["bigtable_master_round_seconds_total"] != 2.5 {
		t.Errorf("%d metrics: %v", len(values), values)
	}
}
