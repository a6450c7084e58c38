package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"cloud.google.com/go/bigtable"
	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
)

// A secured server has the tables one and two, and an account that may look at
// the first.
type secured struct {
	t                  *testing.T
	proc               *proc
	dir, audit         string
	addr, url          string
	ca, root, onlooker string // files
}

// ask sends a request of JSON with the key in a file, or without credentials, and returns
// what is answered.
func (s *secured) ask(key, method, path, body string, header http.Header) (int, string, http.Header) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	if header != nil {
		req.Header = header.Clone()
	}
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		k, err := (&login{creds: key}).key(true)
		if err != nil {
			s.t.Fatal(err)
		}
		md, err := k.GetRequestMetadata(s.t.Context())
		if err != nil {
			s.t.Fatal(err)
		}
		for name, value := range md {
			req.Header.Set(name, value)
		}
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp.StatusCode, string(b), resp.Header
}

func startSecured(t *testing.T, start func(flags ...string) *proc, dataDir string) *secured {
	t.Helper()
	s := &secured{t: t, dir: t.TempDir()}
	s.audit = filepath.Join(s.dir, "audit.log")
	s.proc = start("--emulator", "--tls-auto", "--auth=on", "--audit-log="+s.audit)
	s.addr = s.proc.line(announcedAPI)
	s.url = strings.TrimSuffix(strings.Fields(s.proc.line("metrics and health"))[0], "/metrics")
	s.ca, s.root = filepath.Join(dataDir, "tls", "ca.pem"), filepath.Join(dataDir, "root-key.json")
	l := login{ca: s.ca, creds: s.root}
	security, err := l.tls()
	if err != nil {
		t.Fatal(err)
	}
	key, err := l.key(false)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(s.addr, grpc.WithTransportCredentials(credentials.NewTLS(security)), grpc.WithPerRPCCredentials(key))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, id := range []string{"one", "two"} {
		if _, err := adminpb.NewBigtableTableAdminClient(conn).CreateTable(t.Context(), &adminpb.CreateTableRequest{Parent: "projects/p/instances/i", TableId: id,
			Table: &adminpb.Table{ColumnFamilies: map[string]*adminpb.ColumnFamily{"f": {}}}}); err != nil {
			t.Fatal(err)
		}
	}
	s.onlooker = filepath.Join(s.dir, "onlooker.json")
	email := s.iam("service-accounts", "create", "onlooker", "--project=p")
	s.iam("keys", "create", "--service-account="+email, "--out="+s.onlooker)
	s.iam("policy", "add-binding", "projects/p/instances/i/tables/one", "--role=roles/bigtable.viewer", "--member=serviceAccount:"+email)
	return s
}

func (s *secured) iam(args ...string) string {
	s.t.Helper()
	var out, errs strings.Builder
	args = append([]string{"trestle", "iam"}, append(args, "--server="+s.addr, "--ca="+s.ca, "--credentials="+s.root)...)
	if code := run(&process{&out, &errs, nil}, args); code != exitOK {
		s.t.Fatalf("%v: exit code %d\n%s", args, code, errs.String())
	}
	return strings.TrimSpace(out.String())
}

// tool runs a command as the account of a key, of nobody if that is empty.
func (s *secured) tool(key string, args ...string) (string, int) {
	s.t.Helper()
	var out strings.Builder
	args = append([]string{"trestle"}, append(args, "--admin="+s.url, "--ca="+s.ca)...)
	if key != "" {
		args = append(args, "--credentials="+key)
	}
	code := run(&process{&out, &out, nil}, args)
	return out.String(), code
}

func (s *secured) want(code int, text, key string, args ...string) {
	s.t.Helper()
	out, got := s.tool(key, args...)
	if got != code || !strings.Contains(out, text) {
		s.t.Errorf("%v: exit code %d, want %d and %q:\n%s", args, got, code, text, out)
	}
}

// operators tries what operators may, and what others may not.
func (s *secured) operators() {
	s.t.Helper()
	list := func(key string) (tables []string) {
		out, code := s.tool(key, "tablet", "list")
		if code != exitOK {
			s.t.Errorf("list: exit code %d\n%s", code, out)
		}
		for _, line := range strings.Split(out, "\n") {
			if name, _, ok := strings.Cut(line, ": "); ok && !strings.HasPrefix(line, " ") {
				tables = append(tables, name)
			}
		}
		return tables
	}
	const one, two = "projects/p/instances/i/tables/one", "projects/p/instances/i/tables/two"
	if got := list(s.root); !slices.Equal(got, []string{one, two, "METADATA"}) {
		s.t.Errorf("root sees %q", got)
	}
	if got := list(s.onlooker); !slices.Equal(got, []string{one}) {
		s.t.Errorf("who may look at one table sees %q", got)
	}
	for _, args := range [][]string{{"tablet", "list"}, {"tablet", "flush", "--table=one", "--all"}, {"table", "describe", "--table=one"}, {"tablet", "flush", "--table=none", "--all"}} {
		s.want(exitFailure, "--credentials", "", args...)
	}
	s.want(exitOK, "default", s.onlooker, "table", "describe", "--table="+one)
	s.want(exitFailure, "'bigtable.tables.update' denied", s.onlooker, "tablet", "flush", "--table="+one, "--all")
	s.want(exitFailure, "'bigtable.tables.update' denied", s.onlooker, "table", "create-group", "--table="+one, "--group=g")
	s.want(exitFailure, "'bigtable.tables.delete' denied", s.onlooker, "tablet", "drop-damaged", "--table=one", "--object=x.sst", "--yes")
	// Whether or not it is there.
	for _, table := range []string{two, "two", "none", "METADATA", "projects/p/instances/i/tables/none"} {
		s.want(exitFailure, "(or it may not exist)", s.onlooker, "tablet", "list", "--table="+table)
		s.want(exitFailure, "(or it may not exist)", s.onlooker, "table", "describe", "--table="+table)
	}
	// A tablet's id tells no more than its table's name would.
	out, _ := s.tool(s.root, "tablet", "list", "--table=two", "--json")
	var tablets ops.TabletList
	if err := json.Unmarshal([]byte(out), &tablets); err != nil || len(tablets.Tablets) != 1 {
		s.t.Fatal(err, out)
	}
	for _, id := range []string{tablets.Tablets[0].Tablet, "fffffff"} {
		s.want(exitFailure, "(or it may not exist)", s.onlooker, "tablet", "flush", id)
		s.want(exitFailure, "(or it may not exist)", s.onlooker, "tablet", "move", id, "server-1")
	}
	s.want(exitOK, "done", s.root, "tablet", "flush", tablets.Tablets[0].Tablet)
	s.want(exitFailure, "there is no tablet fffffff", s.root, "tablet", "flush", "fffffff")
	// Servers are the system's.
	s.want(exitOK, "serves", s.root, "server", "list")
	for _, args := range [][]string{{"server", "list"}, {"server", "drain", "server-1"}, {"server", "undrain", "server-1"}} {
		s.want(exitFailure, "denied", s.onlooker, args...)
		s.want(exitFailure, "--credentials", "", args...)
	}
	if out, _ := s.tool(s.onlooker, "tablet", "list", "--table=two"); strings.Contains(out, two) {
		s.t.Errorf("who may not know of a table is told its name: %s", out)
	}
	s.want(exitFailure, "none", s.root, "tablet", "flush", "--table=none", "--all")
	s.want(exitOK, "done", s.root, "tablet", "flush", "--table=one", "--all")
	s.want(exitOK, "done", s.root, "tablet", "flush", "--table=two", "--all")
	s.want(exitOK, "  g ", s.root, "table", "create-group", "--table=two", "--group=g")
}

// TestOperatorsLogIn: the admin service knows its callers where others do, and so
// does the tool.
func TestOperatorsLogIn(t *testing.T) {
	dir := t.TempDir()
	s := startSecured(t, func(flags ...string) *proc {
		return startTrestle(t, "real", dir, append([]string{"serve", "--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0", "--memory=64MiB", "--data-dir=" + dir}, flags...)...)
	}, dir)
	s.operators()
	// A page that a browser on this machine shows.
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+"/admin/tablets/flush", strings.NewReader(`{"table":"one","all":true}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Origin", "http://evil.example")
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if resp.Body.Close(); resp.StatusCode != http.StatusForbidden {
		t.Errorf("a page got %s", resp.Status)
	}
	// Jobs are those of the tables that a caller may know of.
	for key, want := range map[string]int{s.root: 3, s.onlooker: 1} {
		var got struct{ Jobs []struct{ ID, Table string } }
		c := &adminClient{ctx: t.Context(), base: s.url}
		if err := c.logIn(&login{creds: key}, false); err != nil {
			t.Fatal(err)
		}
		if err := c.request(t.Context(), http.MethodGet, "/admin/jobs", nil, &got); err != nil || len(got.Jobs) != want {
			t.Errorf("%s: %+v %v", key, got, err)
		}
		err := c.request(t.Context(), http.MethodGet, "/admin/jobs/3", nil, &struct{}{})
		if (err == nil) != (key == s.root) || err != nil && strings.Contains(err.Error(), "tables/two") {
			t.Errorf("%s: the job of table two: %v", key, err)
		}
	}
	s.want(exitOK, "split at m", s.root, "tablet", "split", "--table=one", "--key=m")
	for _, c := range []struct{ line, want string }{
		{"service-accounts list --project=p", `{"service_accounts":[{"email":"onlooker@p.iam.trestle.internal","display_name":"","disabled":false}]}`},
		{"service-accounts create another --project=p --display-name=<x>", `{"email":"another@p.iam.trestle.internal","display_name":"<x>","disabled":false}`},
		{"keys list --service-account=another@p.iam.trestle.internal", `{"keys":[]}`},
		{"keys create --service-account=another@p.iam.trestle.internal --out=" + s.dir + "/another.json", `{"file":"` + s.dir + `/another.json","key":"projects/`},
		{"policy get projects/p/instances/i/tables/one", `{"bindings":[{"role":"roles/bigtable.viewer","members":["serviceAccount:onlooker@p.iam.trestle.internal"]}]}`},
	} {
		got := s.iam(append(strings.Fields(c.line), "--json")...)
		var b bytes.Buffer
		if err := json.Compact(&b, []byte(got)); err != nil || !strings.Contains(b.String(), c.want) {
			t.Errorf("%s: %v\n%s\nwant %s", c.line, err, got, c.want)
		}
	}
	s.proc.signal(syscall.SIGTERM)
	s.proc.exit()
	// A line names what the request was about, and no row.
	for method, want := range map[string]string{
		"POST /admin/servers/drain":        `"server":"server-1"`,
		"POST /admin/tablets/move":         `"server":"server-1","tablet":"fffffff"`,
		"POST /admin/tablets/flush":        `"tablet":"fffffff"`,
		"POST /admin/tablets/split":        `,"tablet":"[0-9a-f]+"}`,
		"POST /admin/tablets/drop-damaged": `"object":"x.sst"`,
		"POST /admin/table/create-group":   `"group":"g"`,
		"GET /admin/jobs/{id}":             `"job":"3"`,
	} {
		log, err := os.ReadFile(s.audit)
		if err != nil {
			t.Fatal(err)
		}
		if !regexp.MustCompile(`(?m)^.*"method":"` + regexp.QuoteMeta(method) + `".*` + want).Match(log) {
			t.Errorf("no line of %s has %s:\n%s", method, want, log)
		}
	}
	lines := auditLines(t, s.audit)
	for _, want := range []string{
		"serviceAccount:trestle-root@trestle-system.iam.trestle.internal POST /admin/tablets/flush projects/p/instances/i/tables/one OK",
		"serviceAccount:trestle-root@trestle-system.iam.trestle.internal POST /admin/table/create-group projects/p/instances/i/tables/two OK",
		"serviceAccount:onlooker@p.iam.trestle.internal POST /admin/tablets/flush projects/p/instances/i/tables/one PermissionDenied",
		"serviceAccount:onlooker@p.iam.trestle.internal GET /admin/tablets projects/p/instances/i/tables/two PermissionDenied",
		"serviceAccount:trestle-root@trestle-system.iam.trestle.internal POST /admin/tablets/flush none NotFound",
		"<nil> POST /admin/tablets/flush <nil> Unauthenticated",
	} {
		if !slices.Contains(lines, want) {
			t.Errorf("the audit log has no %q in\n%s", want, strings.Join(lines, "\n"))
		}
	}
}

// auditLines returns "principal method resource code" of each line.
func auditLines(t *testing.T, file string) (out []string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		var l map[string]any
		if err := json.Unmarshal(s.Bytes(), &l); err != nil {
			t.Fatal(err)
		}
		method := fmt.Sprint(l["method"])
		if !strings.HasPrefix(fmt.Sprint(l["peer"]), "127.0.0.1:") {
			t.Errorf("no peer: %v", l)
		}
		out = append(out, fmt.Sprintf("%v %s %v %v", l["principal"], method[max(strings.LastIndex(method, "google."), 0):], l["resource"], l["code"]))
	}
	return out
}

// TestOperatorsOfPublicAddress: an address that others can reach is good for
// operators too.
func TestOperatorsOfPublicAddress(t *testing.T) {
	dir := t.TempDir()
	s := startSecured(t, func(flags ...string) *proc {
		return startTrestle(t, "real", dir, append([]string{"serve", "--listen=127.0.0.1:0", "--http-listen=0.0.0.0:0", "--names=localhost", "--memory=64MiB", "--data-dir=" + dir}, flags...)...)
	}, dir)
	if !strings.HasPrefix(s.url, "https://") {
		t.Fatal(s.url)
	}
	s.url = strings.Replace(s.url, "[::]", "localhost", 1)
	s.operators()
	plain := strings.Replace(s.url, "https://localhost", "http://db.example", 1)
	out, code := (&secured{t: t, url: plain, ca: s.ca}).tool(s.root, "tablet", "list")
	if code != exitFailure || !strings.Contains(out, "no TLS") {
		t.Errorf("credentials in plain text: %d %s", code, out)
	}
	s.proc.signal(syscall.SIGTERM)
	s.proc.exit()
}

// TestOperatorsOfCluster is TestOperatorsLogIn at a tablet server.
func TestOperatorsOfCluster(t *testing.T) {
	if testing.Short() {
		t.Skip("starts four processes")
	}
	c := startCluster(t, 0)
	s := startSecured(t, func(flags ...string) *proc {
		c.extra = func(string) []string { return append(flags, "--http-listen=127.0.0.1:0") }
		c.launch("server-1")
		return c.servers["server-1"]
	}, filepath.Join(c.dir, "server-1"))
	s.operators()
	if lines := auditLines(t, s.audit); !slices.Contains(lines,
		"serviceAccount:onlooker@p.iam.trestle.internal POST /admin/tablets/flush projects/p/instances/i/tables/one PermissionDenied") {
		t.Errorf("the audit log has\n%s", strings.Join(lines, "\n"))
	}
}

// TestAuditOfAnybody: where nobody logs in each change leaves a line all the same,
// in the file that was given, or in the log whatever its level.
func TestAuditOfAnybody(t *testing.T) {
	const instance, table = "projects/project/instances/instance", "projects/project/instances/instance/tables/users"
	change := func(flags ...string) *proc {
		t.Helper()
		dir := t.TempDir()
		p := startTrestle(t, "real", dir, append([]string{"serve", "--emulator", "--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0", "--memory=64MiB"}, flags...)...)
		addr := p.line(announcedAPI)
		url := strings.TrimSuffix(strings.Fields(p.line("metrics and health"))[0], "/metrics")
		conn := dial(t, addr)
		tables := adminpb.NewBigtableTableAdminClient(conn)
		if _, err := tables.CreateTable(t.Context(), &adminpb.CreateTableRequest{Parent: instance, TableId: "users",
			Table: &adminpb.Table{ColumnFamilies: map[string]*adminpb.ColumnFamily{"f": {}}}}); err != nil {
			t.Fatal(err)
		}
		_, client := clients(t, addr)
		set(t, client.Open("users"), "secret-row-key", "v")
		if err := client.Open("users").ReadRows(t.Context(), bigtable.InfiniteRange(""), func(bigtable.Row) bool { return true }); err != nil {
			t.Fatal(err)
		}
		if _, err := tables.DropRowRange(t.Context(), &adminpb.DropRowRangeRequest{Name: table, Target: &adminpb.DropRowRangeRequest_RowKeyPrefix{RowKeyPrefix: []byte("secret")}}); err != nil {
			t.Fatal(err)
		}
		if out, errs, code := tool(t, dir, "tablet", "flush", "--table=users", "--all", "--admin="+url); code != exitOK {
			t.Fatal(out, errs)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, url+"/v2/"+table, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Fatal(resp.Status)
		}
		p.signal(syscall.SIGTERM)
		p.exit()
		return p
	}
	want := []string{"anonymous google.bigtable.admin.v2.BigtableTableAdmin/CreateTable " + instance + " OK",
		"anonymous google.bigtable.admin.v2.BigtableTableAdmin/DropRowRange " + table + " OK",
		"anonymous POST /admin/tablets/flush " + table + " OK",
		"anonymous google.bigtable.admin.v2.BigtableTableAdmin/DeleteTable " + table + " OK"}
	file := filepath.Join(t.TempDir(), "audit.log")
	p := change("--audit-log=" + file)
	if got := auditLines(t, file); !slices.Equal(got, want) {
		t.Errorf("the file has\n%s", strings.Join(got, "\n"))
	}
	if strings.Contains(p.stderr.String(), "msg=audit") {
		t.Error("the audit log is in the other log too")
	}
	p = change("--log-level=error")
	if log := p.stderr.String(); strings.Count(log, "msg=audit principal=anonymous peer=127.0.0.1:") != len(want) || strings.Contains(log, "secret-row-key") {
		t.Errorf("the log has\n%s", log)
	}
	p = change("--audit-log=off")
	if strings.Contains(p.stderr.String(), "msg=audit") {
		t.Error("it was told not to")
	}
}
