package main

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"github.com/sirupsen/logrus"
	"github.com/tsuna/gohbase"
	"github.com/tsuna/gohbase/hrpc"
	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/engine/logtest"
	"github.com/trestledb/trestle/engine/loopback"
)

const dashboards = "../../packaging/dashboards"

// alertGroups is a file of alert rules, as far as the tests change it.
type alertGroups struct {
	Groups []struct {
		Name  string `yaml:"name"`
		Rules []struct {
			Alert  string            `yaml:"alert"`
			Expr   string            `yaml:"expr"`
			For    string            `yaml:"for,omitempty"`
			Labels map[string]string `yaml:"labels"`
		} `yaml:"rules"`
	} `yaml:"groups"`
}

func readAlerts(t *testing.T) (rules alertGroups) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dashboards, "alerts.yaml"))
	if err == nil {
		err = yaml.Unmarshal(b, &rules)
	}
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

// A panelQuery is what a panel of a dashboard asks Prometheus for.
type panelQuery struct{ dashboard, panel, expr string }

// readPanels returns the queries of the dashboards.
func readPanels(t *testing.T, names ...string) (all []panelQuery) {
	t.Helper()
	for _, name := range names {
		b, err := os.ReadFile(filepath.Join(dashboards, name+".json"))
		var d struct {
			UID    string
			Panels []struct {
				Type, Title string
				Targets     []struct{ Expr string }
			}
		}
		if err == nil {
			err = json.Unmarshal(b, &d)
		}
		if err != nil || d.UID != "trestle-"+name {
			t.Fatalf("%s: %v, uid %q", name, err, d.UID)
		}
		for _, p := range d.Panels {
			if p.Type != "row" && len(p.Targets) == 0 {
				t.Errorf("%s, %s: it asks for nothing", name, p.Title)
			}
			for _, q := range p.Targets {
				all = append(all, panelQuery{name, p.Title, q.Expr})
			}
		}
	}
	return all
}

var (
	metricInQuery = regexp.MustCompile(`\b(?:bigtable|process|go)_[a-z_]+\b`)
	quotedInQuery = regexp.MustCompile(`"[^"]*"`)
	byInQuery     = regexp.MustCompile(`\b(?:by|on|ignoring) *\([^)]*\)`)
	windowInQuery = regexp.MustCompile(`\[(?:5m|10m|\$__rate_interval)\]`)
)

func metricsOf(expr string) []string {
	return metricInQuery.FindAllString(byInQuery.ReplaceAllString(quotedInQuery.ReplaceAllString(expr, ""), ""), -1)
}

// A scraped is a process that Prometheus scrapes.
type scraped struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels"`
}

// A watcher is a Prometheus that scrapes servers of a test each second, and evaluates the
// alert rules five times as often. Rules do not wait there, and their short windows are seconds;
// their conditions are as they are.
type watcher struct {
	t       *testing.T
	dir     string
	url     string
	targets []scraped
	seen    map[string]bool // alerts that have fired
}

func startWatcher(t *testing.T) *watcher {
	t.Helper()
	program, err := exec.LookPath("prometheus")
	if err != nil {
		t.Skip("prometheus is not installed: no alert was made to fire")
	}
	w := &watcher{t: t, dir: t.TempDir(), seen: map[string]bool{}}
	rules := readAlerts(t)
	for i := range rules.Groups {
		for j := range rules.Groups[i].Rules {
			r := &rules.Groups[i].Rules[j]
			r.For, r.Expr = "", windowInQuery.ReplaceAllString(r.Expr, "[5s]")
		}
	}
	text, err := yaml.Marshal(rules)
	if err != nil {
		t.Fatal(err)
	}
	config := `global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 200ms}
rule_files: [rules.yaml]
scrape_configs:
- job_name: trestle
  tls_config: {insecure_skip_verify: true}
  file_sd_configs: [{files: [targets.json], refresh_interval: 1s}]
`
	for name, text := range map[string]string{"rules.yaml": string(text), "prometheus.yaml": config, "targets.json": "[]"} {
		if err := os.WriteFile(filepath.Join(w.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	addr := loopback.Addr(t)
	w.url = "http://" + addr
	cmd := exec.Command(program, "--config.file="+filepath.Join(w.dir, "prometheus.yaml"), "--storage.tsdb.path="+filepath.Join(w.dir, "data"), "--web.listen-address="+addr, "--log.level=warn")
	said := new(logtest.Buffer)
	cmd.Stdout, cmd.Stderr = said, said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("prometheus:\n%s", said)
		}
	})
	eventually(t, func() string {
		resp, err := http.Get(w.url + "/-/ready")
		if err != nil {
			return err.Error()
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return resp.Status
		}
		return ""
	})
	return w
}

// scrape adds a server by the address of its metrics, and waits until it is up.
func (w *watcher) scrape(metrics string) {
	w.t.Helper()
	u, err := url.Parse(metrics)
	if err != nil {
		w.t.Fatal(err)
	}
	w.targets = append(w.targets, scraped{[]string{u.Host}, map[string]string{"__scheme__": u.Scheme}})
	b, err := json.Marshal(w.targets)
	if err == nil {
		err = os.WriteFile(filepath.Join(w.dir, "targets.new"), b, 0o600)
	}
	if err == nil {
		err = os.Rename(filepath.Join(w.dir, "targets.new"), filepath.Join(w.dir, "targets.json"))
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.has(fmt.Sprintf("up{instance=%q} == 1", u.Host))
}

// query returns the labels of what expr gives now.
func (w *watcher) query(expr string) (series []map[string]string) {
	w.t.Helper()
	resp, err := http.Get(w.url + "/api/v1/query?query=" + url.QueryEscape(expr))
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	var got struct {
		Error string
		Data  struct {
			ResultType string
			Result     json.RawMessage
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&got); err != nil || got.Error != "" {
		w.t.Fatalf("%s: %v %s", expr, err, got.Error)
	}
	if got.Data.ResultType != "vector" {
		w.t.Fatalf("%s gives a %s", expr, got.Data.ResultType)
	}
	var rows []struct{ Metric map[string]string }
	if err := json.Unmarshal(got.Data.Result, &rows); err != nil {
		w.t.Fatal(err)
	}
	for _, r := range rows {
		series = append(series, r.Metric)
	}
	return series
}

// has waits until expr gives something.
func (w *watcher) has(expr string) {
	w.t.Helper()
	eventually(w.t, func() string {
		if len(w.query(expr)) == 0 {
			return "there is no " + expr
		}
		return ""
	})
}

// fired asks whether an alert has fired.
func fired(alert string) string {
	return fmt.Sprintf("max_over_time(ALERTS{alertname=%q,alertstate=\"firing\"}[10m])", alert)
}

// fires waits for alerts.
func (w *watcher) fires(alerts ...string) {
	w.t.Helper()
	for _, a := range alerts {
		w.has(fired(a))
		w.seen[a] = true
	}
}

// ofMachine are the alerts that a machine which is slow, or whose disk is full of other things,
// causes by itself.
const ofMachine = "TrestleDown|TrestleDiskFills|TrestleDiskFull|TrestleSlowReads|TrestleSlowSync|TrestleSlowWrites"

// silent checks that no other alert has fired.
func (w *watcher) silent() {
	w.t.Helper()
	if got := w.query(`max_over_time(ALERTS{alertstate="firing",alertname!~"` + ofMachine + `"}[10m])`); len(got) > 0 {
		w.t.Errorf("an alert for nothing: %v", got)
	}
}

// caused are the alerts whose condition TestAlerts causes, and causedInCluster those that
// TestClusterAlerts does.
var (
	caused = []string{"TrestleDown", "TrestleNotReady", "TrestleCertificateEnds", "TrestleRestarts", "TrestleOpenFiles", "TrestleSeveralBuilds", "TrestleErrors", "TrestleSlowWrites",
		"TrestleRefusedLogins", "TrestleDiskFull", "TrestleDiskFills", "TrestleCorruption", "TrestleDamagedSSTable", "TrestleWritesStall", "TrestleSlowSync",
		"TrestleChangesDropped", "TrestleStreamBroken", "TrestleViewErrors"}
	causedInCluster = []string{"TrestleNoMaster", "TrestleTwoMasters", "TrestleTabletsWait", "TrestleDamagedLog", "TrestleServersMissing", "TrestleServerGivenUp",
		"TrestleMasterChanges", "TrestleMasterFails", "TrestleCallsLost"}
)

// notCaused are the others, with why. Their rules have tests beside them.
var notCaused = map[string]string{
	"TrestleSlowReads":     "reads that wait for a disk are too few among those that memory answers",
	"TrestleMemtablesFull": "writes wait for the log or for compactions sooner, with a slow disk too",
	"TrestlePanic":         "no request is known to panic",
	"TrestleFailedTablet":  "no background work is known to panic",
	"TrestleClockAhead":    "it wants the machine's clock set, which all tests go by",
	"TrestleStreamBehind":  "a reader has to be behind for twelve hours, and none can begin before the stream does",
	"TrestleViewBehind":    "a change has to wait for ten minutes",
	"TrestleViewFails":     "views wait for tables that cannot be written, and refuse what else would fail",
}

// What causes alerts takes three minutes, and hangs on the speed of disks and processors.
var causeAlerts = flag.Bool("alerts", false, "cause the conditions of the alert rules on running servers")

// TestAlertsCaused: each alert is in one of the lists.
func TestAlertsCaused(t *testing.T) {
	all := map[string]bool{}
	for _, g := range readAlerts(t).Groups {
		for _, r := range g.Rules {
			all[r.Alert] = true
			if is := slices.Contains(caused, r.Alert) || slices.Contains(causedInCluster, r.Alert); is == (notCaused[r.Alert] != "") {
				t.Errorf("%s: caused %v, why not %q", r.Alert, is, notCaused[r.Alert])
			}
		}
	}
	if len(all) < 15 {
		t.Errorf("%d alerts", len(all))
	}
	for name := range notCaused {
		if !all[name] {
			t.Errorf("there is no alert %s", name)
		}
	}
}

// conditional are metrics that a server has only in a state that a sound one is not in.
var conditional = map[string]string{
	"bigtable_corrupt_sstable_reads_total":          "of a damaged SSTable",
	"bigtable_failed_tablet":                        "of a failed tablet",
	"bigtable_cluster_tablet_waits_for_damaged_log": "of a damaged log",
	"bigtable_auth_failures_total":                  "of a server with login that refused one",
	"bigtable_certificate_end_seconds":              "of a process with a certificate",
	"bigtable_tablet_held_seconds_bucket":           "of tablets that were moved or split",
	"bigtable_server_table_request_seconds_bucket":  "native buckets are not in the text",
}

// haveMetrics checks that pages, the texts of /metrics of servers, have the metrics that exprs
// ask for.
func haveMetrics(t *testing.T, pages string, exprs map[string]string) {
	t.Helper()
	names := map[string]string{}
	for expr, where := range exprs {
		for _, name := range metricsOf(expr) {
			names[name] = where
		}
	}
	if len(names) < 10 {
		t.Errorf("only %d metrics are asked for", len(names))
	}
	for name, where := range names {
		if conditional[name] == "" && !regexp.MustCompile(`(?m)^`+name+`[{ ]`).MatchString(pages) {
			t.Errorf("%s asks for %s, and no server has it", where, name)
		}
	}
}

// showPanels runs the queries of dashboards. Panels that are named in empty may show nothing.
func (w *watcher) showPanels(table string, empty []string, names ...string) {
	w.t.Helper()
	for _, q := range readPanels(w.t, names...) {
		expr := windowInQuery.ReplaceAllString(q.expr, "[1m]")
		expr = strings.NewReplacer("$job", "trestle", "$table", table).Replace(expr)
		if strings.Contains(expr, "$") {
			w.t.Errorf("%s, %s: a variable that is not known: %s", q.dashboard, q.panel, expr)
		}
		eventually(w.t, func() string {
			if len(w.query(expr)) == 0 && !slices.Contains(empty, q.panel) {
				return fmt.Sprintf("%s, %s: nothing is shown by %s", q.dashboard, q.panel, expr)
			}
			return ""
		})
	}
}

// flipByte changes a byte of a file.
func flipByte(t *testing.T, path string, at int) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := []byte{0}
	if _, err := f.ReadAt(b, int64(at)); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1
	if _, err := f.WriteAt(b, int64(at)); err != nil {
		t.Fatal(err)
	}
}

// TestAlerts: what dashboards and rules ask for is what a server has. A sound server causes
// no alert; each of those above fires when its condition is caused.
func TestAlerts(t *testing.T) {
	logrus.SetOutput(io.Discard)
	at := loopback.Addr(t)
	zk := loopback.Addr(t)
	o := &operated{t: t, dir: t.TempDir(), flags: []string{"--http-listen=" + at, "--hbase-listen=" + loopback.Addr(t), "--hbase-zookeeper-listen=" + zk, "--hbase-instance=project/instance"}}
	o.start()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(o.admin.CreateTable(t.Context(), "users"))
	must(o.admin.CreateColumnFamily(t.Context(), "users", "f"))
	const parent = "projects/project/instances/instance"
	const users = parent + "/tables/users"
	conn := dial(t, o.addr)
	_, err := adminpb.NewBigtableInstanceAdminClient(conn).CreateMaterializedView(t.Context(), &adminpb.CreateMaterializedViewRequest{Parent: parent, MaterializedViewId: "v",
		MaterializedView: &adminpb.MaterializedView{Query: "SELECT f['kind'] AS kind, SUM(CAST(CAST(f['n'] AS STRING) AS INT64)) AS n FROM users GROUP BY kind"}})
	must(err)
	// A view of the same rows allows for what is no number.
	_, err = adminpb.NewBigtableInstanceAdminClient(conn).CreateMaterializedView(t.Context(), &adminpb.CreateMaterializedViewRequest{Parent: parent, MaterializedViewId: "safe",
		MaterializedView: &adminpb.MaterializedView{Query: "SELECT f['kind'] AS kind, SUM(SAFE_CAST(CAST(f['n'] AS STRING) AS INT64)) AS n FROM users GROUP BY kind"}})
	must(err)
	must(o.admin.UpdateTableWithChangeStream(t.Context(), "users", 24*time.Hour))
	for i := range 400 {
		set(t, o.table, rowOf(i), valueOf(i))
	}
	begin := time.Now()
	hbase := gohbase.NewClient(zk)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	load := func() {
		t.Helper()
		for i := range 20 {
			set(t, o.table, rowOf(i), valueOf(i))
			value(t, o.table, rowOf(i))
			g, err := hrpc.NewGetStr(ctx, "users", rowOf(i))
			must(err)
			_, err = hbase.Get(g)
			must(err)
		}
	}
	load()
	if out, code := o.tablets("flush", "--table=users", "--all"); code != exitOK {
		t.Fatal(out)
	}
	exprs := map[string]string{}
	for _, g := range readAlerts(t).Groups {
		for _, r := range g.Rules {
			if g.Name != "trestle-cluster" {
				exprs[r.Expr] = r.Alert
			}
		}
	}
	one := []string{"overview", "table", "engine", "hbase"}
	for _, q := range readPanels(t, one...) {
		exprs[q.expr] = q.dashboard + ", " + q.panel
	}
	haveMetrics(t, httpGet(t, o.url+"/metrics"), exprs)

	w := startWatcher(t)
	w.scrape(o.url)
	w.has(`count_over_time(up[1m]) > 5`)
	w.silent()
	load()
	w.showPanels(users, []string{"Alerts", "Processes that do not answer", "Requests that did not succeed", "Calls that did not succeed", "Refused credentials and permissions",
		"Bytes of change files"}, one...)
	hbase.Close()
	if !*causeAlerts {
		t.Skip("metrics and dashboards are as they should be; alerts are not caused without -alerts")
	}

	// A value that the view cannot make a number of.
	m := bigtable.NewMutation()
	m.Set("f", "kind", bigtable.Now(), []byte("k"))
	m.Set("f", "n", bigtable.Now(), []byte("no number"))
	must(o.table.Apply(t.Context(), "view-row", m))
	w.fires("TrestleViewErrors")
	if got := w.query(`bigtable_materialized_view_user_errors_total{view=~".*/safe"} > 0`); len(got) > 0 {
		t.Errorf("SAFE_CAST fails: %v", got)
	}

	// Compactions are slower than the writes, the process is held up while writes are under
	// way, and the disk is slow.
	must(o.admin.CreateTableFromConf(t.Context(), &bigtable.TableConf{TableID: "load", SplitKeys: strings.Split("bcdefghijklmnop", ""),
		Families: map[string]bigtable.GCPolicy{"f": bigtable.MaxVersionsPolicy(1)}}))
	writing, stop := context.WithCancel(t.Context())
	defer stop()
	var writers sync.WaitGroup
	direct := bigtablepb.NewBigtableClient(conn)
	for i := range 16 {
		writers.Go(func() {
			for writing.Err() == nil {
				ctx, cancel := context.WithTimeout(writing, 30*time.Second)
				_, _ = direct.MutateRow(ctx, &bigtablepb.MutateRowRequest{TableName: parent + "/tables/load", RowKey: []byte{'a' + byte(i)},
					Mutations: []*bigtablepb.Mutation{{Mutation: &bigtablepb.Mutation_SetCell_{SetCell: &bigtablepb.Mutation_SetCell{FamilyName: "f", TimestampMicros: 1000, Value: make([]byte, 1<<20)}}}}})
				cancel()
			}
		})
	}
	w.fires("TrestleWritesStall")
	// Of the writes in five seconds, those that one pause holds up are too few where disks are fast.
	eventually(t, func() string {
		o.proc.signal(syscall.SIGSTOP)
		time.Sleep(1500 * time.Millisecond)
		o.proc.signal(syscall.SIGCONT)
		time.Sleep(time.Second) // for a scrape
		if len(w.query(fired("TrestleSlowWrites"))) == 0 {
			return "no alert"
		}
		return ""
	})
	w.fires("TrestleSlowWrites")
	slowDisk(t, o.proc.cmd.Process.Pid, func() { w.fires("TrestleSlowSync") })
	stop()
	writers.Wait()

	// Of the files that it may open, nine of ten are open.
	limit := func(files string) {
		t.Helper()
		if out, err := exec.Command("prlimit", "--pid="+strconv.Itoa(o.proc.cmd.Process.Pid), "--nofile="+files).CombinedOutput(); err != nil {
			t.Fatalf("prlimit: %v %s", err, out)
		}
	}
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", o.proc.cmd.Process.Pid))
	must(err)
	limit(fmt.Sprintf("%d:", len(fds)*10/9))
	w.fires("TrestleOpenFiles")
	limit("1024:")

	// Starts, one of them without room for changes, of which a reader then misses some.
	o.stop(syscall.SIGTERM)
	w.fires("TrestleDown")
	restart := func() {
		t.Helper()
		before := float64(time.Now().UnixMilli()) / 1000
		o.start()
		w.has(fmt.Sprintf("bigtable_start_time_seconds > %f", before))
	}
	o.flags = append(o.flags, "--change-stream-max=1")
	restart()
	w.fires("TrestleChangesDropped")
	ctx, cancel = context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	s, err := bigtablepb.NewBigtableClient(dial(t, o.addr)).ReadChangeStream(ctx, &bigtablepb.ReadChangeStreamRequest{TableName: users,
		StartFrom: &bigtablepb.ReadChangeStreamRequest_StartTime{StartTime: timestamppb.New(begin)}})
	for err == nil {
		_, err = s.Recv()
	}
	if status.Code(err) != codes.OutOfRange {
		t.Errorf("a reader that is behind: %v", err)
	}
	w.fires("TrestleStreamBroken")
	for range 2 {
		o.stop(syscall.SIGTERM)
		restart()
	}
	w.fires("TrestleRestarts")

	// A byte of an SSTable changes.
	path, offset := sstableWith(t, o.dir, valueOf(200)[:100])
	flipByte(t, path, offset+50)
	eventually(t, func() string {
		if _, err := o.table.ReadRow(t.Context(), rowOf(200)); status.Code(err) != codes.DataLoss {
			return fmt.Sprintf("a damaged row: %v", err)
		}
		if len(w.query(`ALERTS{alertname="TrestleErrors",alertstate="firing"}`)) == 0 {
			return "no alert"
		}
		return ""
	})
	w.fires("TrestleErrors", "TrestleCorruption", "TrestleDamagedSSTable")

	// Another server, with login, is asked by strangers.
	o.stop(syscall.SIGTERM)
	p := startTrestle(t, "real", t.TempDir(), "serve", "--emulator", "--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0", "--memory=64MiB", "--auth=on")
	strange := bigtablepb.NewBigtableClient(dial(t, p.line(announcedAPI)))
	w.scrape(strings.Fields(p.line("metrics and health"))[0])
	out := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer nobody")
	eventually(t, func() string {
		for range 10 {
			if _, err := strange.MutateRow(out, &bigtablepb.MutateRowRequest{TableName: users}); status.Code(err) != codes.Unauthenticated {
				t.Fatalf("a stranger: %v", err)
			}
		}
		if len(w.query(`ALERTS{alertname="TrestleRefusedLogins",alertstate="firing"}`)) == 0 {
			return "no alert"
		}
		return ""
	})
	w.fires("TrestleRefusedLogins")

	w.fillDisk()

	// A server's certificate ends tomorrow, and it is of another build.
	dir := t.TempDir()
	writeCertificate(t, dir, 24*time.Hour)
	w.scrape(strings.Fields(otherBuild(t, dir, "serve", "--tls-cert=cert.pem", "--tls-key=key.pem", "--emulator", "--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0", "--memory=64MiB"))[0])
	w.fires("TrestleCertificateEnds", "TrestleSeveralBuilds")
	w.all(caused)
}

// slowDisk runs f while each sync of a process takes half a second.
func slowDisk(t *testing.T, pid int, f func()) {
	t.Helper()
	cmd := exec.Command("strace", "-f", "-q", "-o", "/dev/null", "-p", strconv.Itoa(pid), "-e", "trace=fsync,fdatasync", "-e", "inject=fsync,fdatasync:delay_enter=500000")
	said := new(logtest.Buffer)
	cmd.Stderr = said
	if err := cmd.Start(); err != nil {
		t.Fatalf("strace, which makes a disk slow: %v", err)
	}
	f()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Errorf("strace: %v %s", err, said)
	}
	_ = cmd.Wait()
}

// fillDisk fills the disk of a server, slowly.
func (w *watcher) fillDisk() {
	w.t.Helper()
	dir := w.t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=512m", "none", dir).CombinedOutput(); err != nil {
		w.t.Fatalf("a file system of 512 MiB cannot be mounted: %v %s", err, out)
	}
	w.t.Cleanup(func() {
		if out, err := exec.Command("umount", "-l", dir).CombinedOutput(); err != nil {
			w.t.Errorf("umount: %v %s", err, out)
		}
	})
	p := startTrestle(w.t, "real", dir, "serve", "--emulator", "--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0", "--memory=64MiB")
	w.scrape(strings.Fields(p.line("metrics and health"))[0])
	w.has(`count_over_time(bigtable_disk_free_bytes[1m]) > 3`)
	f, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		w.t.Fatal(err)
	}
	defer f.Close()
	for zeros := make([]byte, 16<<20); err == nil; time.Sleep(100 * time.Millisecond) {
		_, err = f.Write(zeros)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		w.t.Fatal(err)
	}
	w.fires("TrestleDiskFull", "TrestleDiskFills", "TrestleNotReady")
	p.signal(syscall.SIGKILL)
	p.exit()
}

// writeCertificate writes a certificate that signs itself, and its key.
func writeCertificate(t *testing.T, dir string, life time.Duration) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(life), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string]*pem.Block{"cert.pem": {Type: "CERTIFICATE", Bytes: der}, "key.pem": {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// otherBuild builds the program with another version, runs it, and returns where its metrics
// are.
func otherBuild(t *testing.T, dir string, args ...string) (metrics string) {
	t.Helper()
	exe := filepath.Join(dir, "other-build")
	if out, err := exec.Command("go", "build", "-ldflags=-X github.com/trestledb/trestle/cmd/trestle/internal/ops.stampedVersion=v0.0.1-other", "-o", exe, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.Command(exe, args...)
	cmd.Dir = dir
	said := new(logtest.Buffer)
	cmd.Stderr = said
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if at, ok := strings.CutPrefix(lines.Text(), "metrics and health"); ok {
			go func() { _, _ = io.Copy(io.Discard, out) }()
			return at
		}
	}
	t.Fatalf("another build does not start: %s", said)
	return ""
}

// all checks that the alerts which a test says it causes have fired.
func (w *watcher) all(alerts []string) {
	w.t.Helper()
	for _, a := range alerts {
		if !w.seen[a] {
			w.t.Errorf("%s was not caused", a)
		}
	}
}

// lead returns which of the masters of a cluster is the master.
func (c *testCluster) lead(w *watcher) (name string) {
	c.t.Helper()
	eventually(c.t, func() string {
		for master, at := range c.masterHTTP {
			if len(w.query(fmt.Sprintf("bigtable_master_leading{instance=%q} == 1", at))) > 0 {
				name = master
				return ""
			}
		}
		return "there is no master"
	})
	return name
}

// TestClusterAlerts is TestAlerts for what is of clusters.
func TestClusterAlerts(t *testing.T) {
	logrus.SetOutput(io.Discard)
	c := startCluster(t, 2, func(c *testCluster) {
		c.extra = func(string) []string { return []string{"--http-listen=127.0.0.1:0"} }
		c.ttl = 5 * time.Second // a server is given up sooner, if it is not for the machine's other work
		c.masterHTTP = map[string]string{"master-1": loopback.Addr(t), "master-2": loopback.Addr(t)}
	})
	tbl := c.table(c.addrs["server-1"])
	for i := range 26 {
		if err := writeWithin(t, tbl, string(rune('a'+i)), "v", 20*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	exprs := map[string]string{}
	for _, g := range readAlerts(t).Groups {
		for _, r := range g.Rules {
			if g.Name == "trestle-cluster" {
				exprs[r.Expr] = r.Alert
			}
		}
	}
	for _, q := range readPanels(t, "cluster") {
		exprs[q.expr] = q.dashboard + ", " + q.panel
	}
	var pages strings.Builder
	for _, at := range c.masterHTTP {
		pages.WriteString(httpGet(t, "http://"+at+"/metrics"))
	}
	for _, at := range c.addrsHTTP {
		pages.WriteString(httpGet(t, strings.Fields(at)[0]))
	}
	haveMetrics(t, pages.String(), exprs)

	w := startWatcher(t)
	for _, at := range c.masterHTTP {
		w.scrape("http://" + at)
	}
	for _, at := range c.addrsHTTP {
		w.scrape(strings.Fields(at)[0])
	}
	w.has(`count_over_time(up[1m]) > 5`)
	c.lead(w)
	w.silent()
	w.showPanels("", []string{"Time that tablets were held up, 99 of 100", "Tablets that wait for a damaged log"}, "cluster")
	if !*causeAlerts {
		t.Skip("metrics and dashboard are as they should be; alerts are not caused without -alerts")
	}

	// A server stands still while others wait for its answers, and dies, with a segment of
	// its log damaged.
	var incarnation uint64
	for _, x := range c.status().Servers {
		if x.Name == "server-2" {
			incarnation = x.Incarnation
		}
	}
	dir := strings.TrimPrefix(c.store, "file://")
	logged := segments(t, dir, catalog.UserLog(incarnation).String())
	if len(logged) == 0 {
		t.Fatal("server-2 has written nothing")
	}
	c.servers["server-2"].signal(syscall.SIGSTOP)
	var calls sync.WaitGroup
	for i := range 26 {
		calls.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			_, _ = tbl.ReadRow(ctx, string(rune('a'+i)))
		})
	}
	time.Sleep(300 * time.Millisecond)
	undo := damageSegment(t, dir, logged[0])
	c.servers["server-2"].signal(syscall.SIGKILL)
	c.servers["server-2"].exit()
	w.fires("TrestleCallsLost", "TrestleServerGivenUp", "TrestleServersMissing", "TrestleDamagedLog", "TrestleTabletsWait")
	calls.Wait()
	undo()
	c.launch("server-2")
	c.ready("server-2")
	w.scrape(strings.Fields(c.addrsHTTP["server-2"])[0])
	w.has(`sum(bigtable_master_tablets_waiting + bigtable_master_tablets_opening) == 0`)

	// The master of another cluster is in the same job.
	other := startTrestle(t, "real", c.dir, "master", "--name=other", "--http-listen=127.0.0.1:0", "--etcd="+c.etcd, "--cluster=other", "--ttl=2s", "--store=file://"+filepath.Join(c.dir, "other"), "--memory=128MiB")
	w.scrape(strings.Fields(other.line("metrics and health"))[0])
	w.fires("TrestleTwoMasters")
	other.signal(syscall.SIGTERM)
	other.exit()

	// The master ends, again and again.
	for range 3 {
		name := c.lead(w)
		c.masters[name].signal(syscall.SIGTERM)
		c.masters[name].exit()
		w.has(fmt.Sprintf("bigtable_master_leading{instance!=%q} == 1", c.masterHTTP[name]))
		c.startMaster(name)
		w.has(fmt.Sprintf("bigtable_master_leading{instance=%q} == 0", c.masterHTTP[name]))
	}
	w.fires("TrestleMasterChanges")

	// No master is there, and then METADATA cannot be read.
	for _, m := range c.masters {
		m.signal(syscall.SIGKILL)
		m.exit()
	}
	w.fires("TrestleNoMaster")
	c.run("tablet", "flush", "--table=METADATA", "--all")
	for _, p := range c.servers {
		p.signal(syscall.SIGKILL)
		p.exit()
	}
	files, err := filepath.Glob(filepath.Join(dir, "sst", "*.sst"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		damage(t, name)
	}
	for name := range c.masters {
		c.startMaster(name)
	}
	for name := range c.servers {
		c.launch(name)
	}
	w.fires("TrestleMasterFails")
	w.all(causedInCluster)
}
