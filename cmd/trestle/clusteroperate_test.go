package main

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"cloud.google.com/go/bigtable"

	"github.com/trestledb/trestle/cluster/master"
	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
	"github.com/trestledb/trestle/conformance/loopback"
)

// TestClusterOperate: `trestle tablets` and `trestle table` work on a cluster
// through any of its processes.
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
	server := "http://" + admins["server-2"]
	want := func(code int, pattern string, args ...string) {
		t.Helper()
		url, server = server, url // one way sees at once what was done on the other
		out, errs, got := tool(t, c.dir, append(args, "--admin", url)...)
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
	want(exitOK, full+`: 8 tablets, (?s).* SERVER\n.*server-[12]\n.*METADATA: 1 tablet, .*server-[12]\n$`, "tablets", "list")
	want(exitOK, `split at k\\x00\n`, "tablets", "split", "--table=table-of-test", "--key", `k\x00`)
	want(exitOK, `: 9 tablets, (?s).*\[j +k\\x00\).*\[k\\x00 +m\)`, "tablets", "list", "--table=table-of-test")
	want(exitFailure, ``, "tablets", "split", "--table=table-of-test", "--key", `k\x00`)
	want(exitOK, `merged`, "tablets", "merge", "--table", full, "--key=e")
	want(exitOK, `"server": "server-[12]"`, "tablets", "list", "--table=table-of-test", "--json")
	want(exitOK, `: 8 tablets, (?s).*\[d +j\)`, "tablets", "list", "--table=table-of-test")
	want(exitOK, `flush table-of-test: done`, "tablets", "flush", "--table=table-of-test", "--all")
	want(exitOK, `flush METADATA: done`, "tablets", "flush", "--table=METADATA", "--all")
	want(exitOK, `compact table-of-test: done, [0-9.]+ KiB`, "tablets", "compact", "--table=table-of-test", "--all")
	want(exitOK, `compact table-of-test: done, [0-9.]+ KiB`, "tablets", "compact", "--table=table-of-test", "--key=x")
	want(exitOK, `verify table-of-test: done, [0-9.]+ KiB`, "tablets", "verify", "--table=table-of-test", "--all")
	want(exitFailure, `Table not found: none`, "tablets", "verify", "--table=none", "--all")
	want(exitFailure, `no tablet of .* has an SSTable`, "tablets", "drop-damaged", "--table=table-of-test", "--object=x.sst", "--yes")

	want(exitOK, full+`\n.*\n  default +f +default +default +default +- +[0-9.]+ KiB +1 +[0-9]+\n$`, "table", "describe", "--table=table-of-test")
	want(exitOK, `big +f +16.0 KiB +zstd +off +- `, "table", "create-group", "--table=table-of-test", "--group=big", "--families=f", "--block-size=16KiB", "--compression=zstd", "--bloom=off")
	want(exitFailure, `has a locality group big already`, "table", "create-group", "--table=table-of-test", "--group=big")
	want(exitFailure, `still has the families`, "table", "delete-group", "--table=table-of-test", "--group=big")
	want(exitOK, `big +f +16.0 KiB +default +12 bits +[0-9]`, "table", "set-group", "--table=table-of-test", "--group=big", "--compression=default", "--bloom=12", "--in-memory")
	want(exitOK, `done`, "tablets", "compact", "--table=table-of-test", "--all")
	want(exitOK, `  default +- .* 0 +0\n  big +f +16.0 KiB +default +12 bits +[0-9.]+ [KM]?i?B +[0-9.]+ KiB +1 +[0-9]+\n$`, "table", "describe", "--table=table-of-test")
	want(exitOK, `default +f `, "table", "assign", "--table=table-of-test", "--group=default", "--families=f")
	want(exitOK, `default +f `, "table", "delete-group", "--table=table-of-test", "--group=big")
	for _, path := range []string{"/metrics", "/metrics/tablets"} {
		if got := httpGet(t, "http://"+admins["server-1"]+path); !strings.Contains(got, `bigtable_tablet_runs{table="`+full+`",tablet="`) {
			t.Errorf("%s tells nothing of tablets:\n%.2000s", path, got)
		}
	}
	n := 0
	if err := tbl.ReadRows(t.Context(), bigtable.InfiniteRange(""), func(bigtable.Row) bool { n++; return true }); err != nil || n != 200 {
		t.Errorf("%d rows, %v", n, err)
	}
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
