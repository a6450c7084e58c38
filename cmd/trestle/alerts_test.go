package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
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

// A watcher is a Prometheus that scrapes servers of a test and evaluates the alert rules, a
// few times each second. Rules do not wait there, and their short windows are seconds;
// their conditions are as they are.
type watcher struct {
	t       *testing.T
	dir     string
	url     string
	targets []string
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
			r.For, r.Expr = "", windowInQuery.ReplaceAllString(r.Expr, "[3s]")
		}
	}
	text, err := yaml.Marshal(rules)
	if err != nil {
		t.Fatal(err)
	}
	config := `global: {scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 200ms}
rule_files: [rules.yaml]
scrape_configs:
- job_name: trestle
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
	said := new(syncBuffer)
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
	w.targets = append(w.targets, u.Host)
	b, err := json.Marshal([]map[string]any{{"targets": w.targets}})
	if err == nil {
		err = os.WriteFile(filepath.Join(w.dir, "targets.json"), b, 0o600)
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

// fires waits for alerts.
func (w *watcher) fires(alerts ...string) {
	w.t.Helper()
	for _, a := range alerts {
		w.has(fmt.Sprintf("max_over_time(ALERTS{alertname=%q,alertstate=\"firing\"}[10m])", a))
		w.seen[a] = true
	}
}

// silent checks that no alert has fired, but for one that tells the future from hours.
func (w *watcher) silent() {
	w.t.Helper()
	if got := w.query(`max_over_time(ALERTS{alertstate="firing",alertname!="TrestleDiskFills"}[10m])`); len(got) > 0 {
		w.t.Errorf("an alert for nothing: %v", got)
	}
}

// caused are the alerts whose condition TestAlerts causes.
var caused = []string{"TrestleDown", "TrestleRestarts", "TrestleErrors", "TrestleSlowWrites", "TrestleRefusedLogins", "TrestleCorruption",
	"TrestleDamagedSSTable", "TrestleWritesStall", "TrestleChangesDropped", "TrestleStreamBroken", "TrestleViewErrors"}

// notCaused are the others, with why. Their rules have tests beside them.
var notCaused = map[string]string{
	"TrestlePanic":          "no request is known to panic",
	"TrestleOpenFiles":      "a process raises its limit",
	"TrestleClockAhead":     "it wants the machine's clock set",
	"TrestleSeveralBuilds":  "it wants a second build",
	"TrestleSlowReads":      "a read waits for nothing that a test can hold up",
	"TrestleDiskFull":       "it wants a disk",
	"TrestleDiskFills":      "it takes hours",
	"TrestleMemtablesFull":  "memtables are written out sooner, unless the disk is slow",
	"TrestleFailedTablet":   "background work is not known to panic",
	"TrestleSlowSync":       "it wants a slow disk",
	"TrestleStreamBehind":   "it takes hours",
	"TrestleViewBehind":     "it takes minutes",
	"TrestleViewFails":      "it wants a view that the server cannot keep",
	"TrestleTwoMasters":     "etcd excludes it",
	"TrestleDamagedLog":     "TestClusterDropDamagedLog causes the condition",
	"TrestleMasterChanges":  "it takes three takeovers",
	"TrestleMasterFails":    "it wants METADATA that cannot be read",
	"TrestleCallsLost":      "it depends on what is under way when a server dies",
	"TrestleServerGivenUp":  "it wants a cluster of processes, of which one is killed",
	"TrestleServersMissing": "the same",
	"TrestleTabletsWait":    "the same, for longer than a takeover takes",
	"TrestleNoMaster":       "it wants a cluster whose masters are killed",
}

// TestAlertsCaused: each alert is in one of the lists.
func TestAlertsCaused(t *testing.T) {
	all := map[string]bool{}
	for _, g := range readAlerts(t).Groups {
		for _, r := range g.Rules {
			all[r.Alert] = true
			if is := slices.Contains(caused, r.Alert); is == (notCaused[r.Alert] != "") {
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
		if len(w.query(expr)) == 0 && !slices.Contains(empty, q.panel) {
			w.t.Errorf("%s, %s: nothing is shown by %s", q.dashboard, q.panel, expr)
		}
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
	time.Sleep(time.Second)
	w.showPanels(users, []string{"Alerts", "Processes that do not answer", "Requests that did not succeed", "Calls that did not succeed", "Refused credentials and permissions",
		"Bytes of change files"}, one...)
	hbase.Close()
	if testing.Short() {
		t.Skip("metrics and dashboards are as they should be; alerts are not caused")
	}

	// A value that the view cannot make a number of.
	m := bigtable.NewMutation()
	m.Set("f", "kind", bigtable.Now(), []byte("k"))
	m.Set("f", "n", bigtable.Now(), []byte("no number"))
	must(o.table.Apply(t.Context(), "view-row", m))
	w.fires("TrestleViewErrors")

	// Memtables fill faster than they are written out, and the process is held up
	// while writes are under way.
	must(o.admin.CreateTableFromConf(t.Context(), &bigtable.TableConf{TableID: "load", SplitKeys: strings.Split("bcdefghijklmnop", ""),
		Families: map[string]bigtable.GCPolicy{"f": bigtable.MaxVersionsPolicy(1)}}))
	stop := make(chan struct{})
	var writers sync.WaitGroup
	direct := bigtablepb.NewBigtableClient(conn)
	for i := range 16 {
		writers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				_, _ = direct.MutateRow(ctx, &bigtablepb.MutateRowRequest{TableName: parent + "/tables/load", RowKey: []byte{'a' + byte(i)},
					Mutations: []*bigtablepb.Mutation{{Mutation: &bigtablepb.Mutation_SetCell_{SetCell: &bigtablepb.Mutation_SetCell{FamilyName: "f", TimestampMicros: 1000, Value: make([]byte, 1<<20)}}}}})
				cancel()
			}
		})
	}
	w.fires("TrestleWritesStall")
	o.proc.signal(syscall.SIGSTOP)
	time.Sleep(1500 * time.Millisecond)
	o.proc.signal(syscall.SIGCONT)
	w.fires("TrestleSlowWrites")
	close(stop)
	writers.Wait()

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
	w.all()
}

// all checks that the alerts which a test says it causes have fired.
func (w *watcher) all() {
	w.t.Helper()
	for _, a := range caused {
		if !w.seen[a] {
			w.t.Errorf("%s was not caused", a)
		}
	}
}
