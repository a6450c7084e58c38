package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/api/option"

	"github.com/trestledb/trestle/cmd/trestle/internal/bench"
	"github.com/trestledb/trestle/engine/loopback"
)

// These tests run the whole server, as a process.

// clients returns the official clients for a server at addr.
func clients(t *testing.T, addr string) (*bigtable.AdminClient, *bigtable.Client) {
	t.Helper()
	conn := dial(t, addr)
	admin, err := bigtable.NewAdminClient(t.Context(), "project", "instance", option.WithGRPCConn(conn))
	if err != nil {
		t.Fatal(err)
	}
	client, err := bigtable.NewClientWithConfig(t.Context(), "project", "instance", bigtable.ClientConfig{MetricsProvider: bigtable.NoopMetricsProvider{}}, option.WithGRPCConn(conn))
	if err != nil {
		t.Fatal(err)
	}
	return admin, client
}

func set(t *testing.T, tbl *bigtable.Table, row, value string) {
	t.Helper()
	m := bigtable.NewMutation()
	m.Set("f", "q", 1000, []byte(value))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := tbl.Apply(ctx, row, m); err != nil {
		t.Fatal(err)
	}
}

func value(t *testing.T, tbl *bigtable.Table, row string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := tbl.ReadRow(ctx, row)
	if err != nil {
		t.Fatal(err)
	}
	if len(r["f"]) != 1 {
		return ""
	}
	return string(r["f"][0].Value)
}

func httpGet(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// What was acknowledged outlives a kill and an orderly stop, and inspect shows
// where it is.
func TestDataOutlivesTheServer(t *testing.T) {
	dir := t.TempDir()
	start := func() (*proc, *bigtable.AdminClient, *bigtable.Table, string) {
		p := startTrestle(t, "real", dir, "serve", "--emulator", "--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0", "--memory=64MiB")
		url := strings.Fields(p.line("metrics and health"))[0]
		addr := p.line("export BIGTABLE_EMULATOR_HOST=")
		t.Logf("ready after %v", time.Since(p.start))
		admin, client := clients(t, addr)
		return p, admin, client.Open("table-of-test"), url
	}
	p, admin, tbl, _ := start()
	if err := admin.CreateTable(t.Context(), "table-of-test"); err != nil {
		t.Fatal(err)
	}
	if err := admin.CreateColumnFamily(t.Context(), "table-of-test", "f"); err != nil {
		t.Fatal(err)
	}
	set(t, tbl, "row-1", "before the kill")
	p.signal(syscall.SIGKILL)
	p.exit()

	p, _, tbl, url := start()
	if got := value(t, tbl, "row-1"); got != "before the kill" {
		t.Errorf("after SIGKILL: %q", got)
	}
	set(t, tbl, "row-2", "before the stop")
	metrics := httpGet(t, url)
	for _, want := range []string{
		`bigtable_server_requests_total{app_profile="default",code="OK",face="bigtable",instance="projects/project/instances/instance",method="MutateRow",table="projects/project/instances/instance/tables/table-of-test"} 1`,
		`bigtable_server_rows_modified_total{instance="projects/project/instances/instance",table="projects/project/instances/instance/tables/table-of-test"} 1`,
		`bigtable_server_rows_returned_total{instance="projects/project/instances/instance",table="projects/project/instances/instance/tables/table-of-test"} 1`, `bigtable_server_first_row_seconds_count 1`, `bigtable_tables 1`, `bigtable_wal_sync_seconds_count`,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("the metrics lack %q", want)
		}
	}
	// A second server must not open the same directory.
	second := startTrestle(t, "real", dir, "serve", "--listen=127.0.0.1:0", "--http-listen=off")
	if _, code, _ := second.exit(); code != exitFailure || !strings.Contains(second.stderr.String(), "open in another process") {
		t.Errorf("a second server: exit code %d; stderr:\n%s", code, second.stderr)
	}
	p.signal(syscall.SIGTERM)
	if _, code, elapsed := p.exit(); code != 0 {
		t.Errorf("SIGTERM: exit code %d after %v; stderr:\n%s", code, elapsed, p.stderr)
	}

	inspect := func(args ...string) string {
		p := startTrestle(t, "real", dir, append([]string{"inspect"}, args...)...)
		out, code, _ := p.exit()
		if code != 0 {
			t.Errorf("inspect %v: exit code %d; stderr:\n%s", args, code, p.stderr)
		}
		return out
	}
	data := filepath.Join(dir, "trestle-data")
	if out := inspect("metadata", data); !regexp.MustCompile(`(?m)^projects/project/instances/instance/tables/table-of-test: 1 tablet, .* in SSTables$`).MatchString(out) ||
		!regexp.MustCompile(`(?m)^    [0-9a-f]{16}\.sst +row-[12] +row-[12] +[0-9.]+ (K?i?B) `).MatchString(out) {
		t.Errorf("METADATA:\n%s", out)
	}
	var stored storedMetadata
	if out := inspect("metadata", "--json", data); json.Unmarshal([]byte(out), &stored) != nil || len(stored.Items) == 0 ||
		len(stored.Tables) != 2 || len(stored.Tables[1].Tablets) != 1 || len(stored.Tables[1].Tablets[0].SSTables) == 0 {
		t.Errorf("METADATA in JSON:\n%s", out)
	}
	if out := inspect("log", filepath.Join(data, "ulog")); !strings.Contains(out, ".log") {
		t.Errorf("log:\n%s", out)
	}
	// The stop wrote everything to SSTables.
	all := ""
	err := filepath.WalkDir(filepath.Join(data, "sst"), func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			all += inspect("sst", path)
		}
		return err
	})
	if err != nil || !strings.Contains(all, "row-1") || !strings.Contains(all, "row-2") {
		t.Errorf("SSTables: %v\n%s", err, all)
	}

	p, _, tbl, _ = start()
	if got := value(t, tbl, "row-1") + ", " + value(t, tbl, "row-2"); got != "before the kill, before the stop" {
		t.Errorf("after SIGTERM: %q", got)
	}
	// What is wrong in the directory is told, not mended.
	p.signal(syscall.SIGTERM)
	p.exit()
	if err := os.WriteFile(filepath.Join(data, "FORMAT"), []byte("trestle data format 99\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p = startTrestle(t, "real", dir, "serve", "--listen=127.0.0.1:0", "--http-listen=off")
	if _, code, _ := p.exit(); code != exitFailure || !strings.Contains(p.stderr.String(), "format 99") {
		t.Errorf("another format: exit code %d; stderr:\n%s", code, p.stderr)
	}
}

// Whoever starts cbtemulator, by itself or through gcloud, can start trestle, and
// finds what cbtemulator offers.
func TestDropIn(t *testing.T) {
	at := loopback.Addr(t)
	host, port, _ := net.SplitHostPort(at)
	for _, as := range []struct {
		name string
		args []string
	}{
		{"trestle", []string{"-host", "[" + host + "]", "-port", port}},
		// As the modules of testcontainers for Java, Go and .NET do.
		{"gcloud", []string{"beta", "emulators", "bigtable", "start", "--host-port", at}},
		{"/usr/bin/gcloud", []string{"beta", "emulators", "bigtable", "start", "--host-port", at, "--project=test-project"}},
		{"gcloud", []string{"--quiet", "emulators", "bigtable", "start", "--host-port=" + at}},
	} {
		t.Run(as.name+" "+strings.Join(as.args, " "), func(t *testing.T) { dropIn(t, as.name, as.args) })
	}
	for _, args := range [][]string{{}, {"auth", "login"}, {"beta", "emulators", "pubsub", "start"}, {"emulators", "bigtable", "start", "--host-port=8086"}, {"--data-dir=x"}} {
		p := startAs(t, "gcloud", "real", t.TempDir(), args...)
		if _, code, _ := p.exit(); code != exitUsage || p.stderr.String() == "" {
			t.Errorf("gcloud %q: exit code %d, %s", args, code, p.stderr)
		}
	}
}

func dropIn(t *testing.T, name string, args []string) {
	dir := t.TempDir()
	p := startAs(t, name, "real", dir, args...)
	addr := p.line("Cloud Bigtable emulator running on ")
	t.Logf("ready after %v", time.Since(p.start))
	t.Setenv("BIGTABLE_EMULATOR_HOST", addr)
	ctx := t.Context()
	admin, err := bigtable.NewAdminClient(ctx, "any", "instance-of-mine")
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	if err := admin.CreateTable(ctx, "t"); err != nil {
		t.Fatal(err)
	}
	if err := admin.CreateColumnFamily(ctx, "t", "f"); err != nil {
		t.Fatal(err)
	}
	client, err := bigtable.NewClient(ctx, "any", "instance-of-mine")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	set(t, client.Open("t"), "r", "v")
	if got := value(t, client.Open("t"), "r"); got != "v" {
		t.Errorf("read %q", got)
	}
	p.signal(syscall.SIGINT)
	if rest, code, _ := p.exit(); code != 0 || !strings.Contains(rest, "is now shutting down") {
		t.Errorf("exit code %d, %q; stderr:\n%s", code, rest, p.stderr)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// A request under way when SIGTERM comes is answered.
func TestDrainFinishesRequests(t *testing.T) {
	t.Setenv(envDrain, "30s") // a busy machine may take longer than drainLimit
	p := startTrestle(t, "real", t.TempDir(), "serve", "--emulator", "--temporary", "--listen=127.0.0.1:0", "--http-listen=off")
	addr := p.line("export BIGTABLE_EMULATOR_HOST=")
	admin, client := clients(t, addr)
	if err := admin.CreateTable(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	if err := admin.CreateColumnFamily(t.Context(), "t", "f"); err != nil {
		t.Fatal(err)
	}
	tbl := client.Open("t")
	big := strings.Repeat("x", 1<<20)
	for i := range 32 {
		set(t, tbl, fmt.Sprintf("row-%02d", i), big)
	}
	// A reader that is slow enough for the signal to come in between: the rows do
	// not fit into the buffers on the way.
	rows := 0
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // the client tries a server that has ended again
	defer cancel()
	err := tbl.ReadRows(ctx, bigtable.InfiniteRange(""), func(bigtable.Row) bool {
		if rows++; rows == 1 {
			p.signal(syscall.SIGTERM)
		}
		time.Sleep(10 * time.Millisecond)
		return true
	})
	if err != nil || rows != 32 {
		t.Errorf("%d rows, %v", rows, err)
	}
	if _, code, elapsed := p.exit(); code != 0 {
		t.Errorf("exit code %d after %v; stderr:\n%s", code, elapsed, p.stderr)
	}
}

// bench finds nothing wrong with the server, and measures the ceiling beside it.
func TestBench(t *testing.T) {
	p := startTrestle(t, "real", t.TempDir(), "serve", "--temporary", "--listen=127.0.0.1:0", "--http-listen=off")
	addr := p.line("export BIGTABLE_EMULATOR_HOST=")
	b := startTrestle(t, "real", t.TempDir(), "bench", "-endpoint", addr, "--workload=all", "--rows=200", "--scan-rows=50", "--splits=3",
		"--duration=1m", "--ops=48", "--warmup=20ms", "--slices=2", "--concurrency=8", "--ceiling", "--json", "--pid", fmt.Sprint(p.cmd.Process.Pid))
	out, code, _ := b.exit()
	if code != 0 {
		t.Fatalf("exit code %d; stderr:\n%s", code, b.stderr)
	}
	var rep bench.Report
	if err := json.Unmarshal([]byte(out), &rep); err != nil {
		t.Fatal(err)
	}
	if len(rep.Results) < 40 || len(rep.Ratios)*2 != len(rep.Results) {
		t.Errorf("%d results, %d ratios", len(rep.Results), len(rep.Ratios))
	}
	for _, r := range rep.Results {
		if r.Operations == 0 || len(r.Errors) > 0 {
			t.Errorf("%+v", r)
		}
	}
	p.signal(syscall.SIGTERM)
	if _, code, _ := p.exit(); code != 0 {
		t.Errorf("exit code %d; stderr:\n%s", code, p.stderr)
	}
	bad := startTrestle(t, "real", t.TempDir(), "bench", "--workload=none", "--value-bytes=1")
	if _, code, _ := bad.exit(); code != exitUsage || !strings.Contains(bad.stderr.String(), `"none" is not a workload`) || !strings.Contains(bad.stderr.String(), "value of 1 bytes") {
		t.Errorf("exit code %d; stderr:\n%s", code, bad.stderr)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := bench.Run(ctx, bench.Options{Endpoint: addr, Workloads: []string{"scan"}}); err == nil {
		t.Error("a dead server is measured without an error")
	}
}
