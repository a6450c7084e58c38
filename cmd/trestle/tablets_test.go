package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
)

// tool runs a command to its end.
func tool(t *testing.T, dir string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	p := startTrestle(t, "real", dir, args...)
	out, code, _ := p.exit()
	return out, p.stderr.String(), code
}

// An operated server has a table of 400 rows with values that do not compress.
type operated struct {
	t     *testing.T
	dir   string
	flags []string // more of serve
	proc  *proc
	url   string // of the ops listener
	addr  string // of the API
	table *bigtable.Table
	admin *bigtable.AdminClient
}

func (o *operated) start() {
	o.proc = startTrestle(o.t, "real", o.dir, append([]string{"serve", "--emulator", "--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0", "--memory=64MiB"}, o.flags...)...)
	o.url = strings.TrimSuffix(strings.Fields(o.proc.line("metrics and health"))[0], "/metrics")
	o.addr = o.proc.line("export BIGTABLE_EMULATOR_HOST=")
	admin, client := clients(o.t, o.addr)
	o.admin, o.table = admin, client.Open("users")
}

func (o *operated) stop(how syscall.Signal) {
	o.t.Helper()
	o.proc.signal(how)
	o.proc.exit()
}

func (o *operated) tablets(args ...string) (string, int) {
	o.t.Helper()
	out, errs, code := tool(o.t, o.dir, append([]string{"tablet"}, append(args, "--admin", o.url)...)...)
	return out + errs, code
}

// valueOf is what row i holds.
func valueOf(i int) string {
	r := rand.New(rand.NewPCG(uint64(i), 5))
	b := make([]byte, 1000)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return fmt.Sprintf("value-%05d-", i) + string(b)
}

func rowOf(i int) string { return fmt.Sprintf("user%05d", i) }

func operate(t *testing.T) *operated {
	o := &operated{t: t, dir: t.TempDir()}
	o.start()
	if err := o.admin.CreateTable(t.Context(), "users"); err != nil {
		t.Fatal(err)
	}
	if err := o.admin.CreateColumnFamily(t.Context(), "users", "f"); err != nil {
		t.Fatal(err)
	}
	var rows []string
	var muts []*bigtable.Mutation
	for i := range 400 {
		m := bigtable.NewMutation()
		m.Set("f", "q", 1000, []byte(valueOf(i)))
		rows, muts = append(rows, rowOf(i)), append(muts, m)
	}
	if errs, err := o.table.ApplyBulk(t.Context(), rows, muts); err != nil || errs != nil {
		t.Fatal(err, errs)
	}
	return o
}

// TestTablets: what `trestle tablet` does to a running server, and that reads
// do not notice.
func TestTablets(t *testing.T) {
	o := operate(t)
	defer o.stop(syscall.SIGTERM)
	all := func() {
		t.Helper()
		n := 0
		err := o.table.ReadRows(t.Context(), bigtable.InfiniteRange(""), func(r bigtable.Row) bool {
			if r.Key() != rowOf(n) || string(r["f"][0].Value) != valueOf(n) {
				t.Errorf("row %d is %q", n, r.Key())
			}
			n++
			return true
		})
		if n != 400 || err != nil {
			t.Errorf("%d rows, %v", n, err)
		}
	}
	want := func(pattern string, args ...string) {
		t.Helper()
		out, code := o.tablets(args...)
		if code != exitOK || !regexp.MustCompile(pattern).MatchString(out) {
			t.Errorf("%v: exit code %d\n%s\nwant %s", args, code, out, pattern)
		}
	}
	refused := func(pattern string, args ...string) {
		t.Helper()
		out, code := o.tablets(args...)
		if code == exitOK || !regexp.MustCompile(pattern).MatchString(out) {
			t.Errorf("%v: exit code %d\n%s\nwant %s", args, code, out, pattern)
		}
	}
	want(`tables/users: 1 tablet, [0-9.]+ MiB\n  TABLET .*\n  [0-9a-f]+ +\[ +\) +[0-9.]+ MiB +[0-9.]+ MiB +0 +0 `, "list", "--table=users", "--wide")
	want(`METADATA: 1 tablet,`, "list")
	want(`flush users: done`, "flush", "--table=users", "--all")
	want(`users: split at user00100`, "split", "--table=users", "--key=user00100")
	want(`split at user\\x00\\\\`, "split", "--table=users", `--key=user\x00\\`)
	want(`(?s)3 tablets.*\[ +user\\x00\\\\\).*\[user\\x00\\\\ +user00100\).*\[user00100 +\)`, "list", "--table=users")
	all()
	want(`merged with the next one the tablet of user\n`, "merge", "--table=users", "--key=user")
	all()
	want(`verify users: done, [0-9.]+ KiB in`, "verify", "--table=users", "--all")
	want(`compact users: done, [0-9.]+ KiB in`, "compact", "--table=users", "--all")
	want(`compact METADATA: done`, "compact", "--table=METADATA", "--all")
	all()
	out, code := o.tablets("list", "--json", "--table=users")
	var list ops.TabletList
	if err := json.Unmarshal([]byte(out), &list); err != nil || code != 0 || len(list.Tablets) != 2 || list.Tablets[0].End != "user00100" ||
		list.Tablets[0].Runs != 1 || list.Tablets[0].LastMajor == nil || list.Tablets[1].Bytes < 100_000 {
		t.Errorf("%v %s", err, out)
	}
	refused(`Table not found: nobody`, "list", "--table=nobody")
	refused(`Table not found: nobody`, "verify", "--table=nobody", "--all")
	refused(`give --key or --all`, "compact", "--table=users")
	refused(`--all is not a flag of trestle tablet split`, "split", "--table=users", "--all")
	refused(`give --key: which tablet`, "split", "--table=users")
	refused(`empty`, "split", "--table=users", "--key=user00100")
	refused(`last of`, "merge", "--table=users", "--key=z")
	refused(`backslash`, "split", "--table=users", `--key=\q`)
	refused(`tablet takes a verb`, "shuffle")
	refused(`there is one server`, "move", "--table=users", "--key=user", "server-1")
	for want, args := range map[string][]string{`(?m)^SERVER .*\n.* 3 .* serves$`: {"list"}, `^trestle: there is one server`: {"drain", "server-1"}, `^trestle: there is one server,`: {"undrain", "server-1"}} {
		if out, errs, code := tool(t, o.dir, append(append([]string{"server"}, args...), "--admin", o.url)...); !regexp.MustCompile(want).MatchString(out+errs) || (code == exitOK) != (args[0] == "list") {
			t.Errorf("server %v: exit code %d\n%s%s", args, code, out, errs)
		}
	}

	// Foreign web pages get nothing.
	for name, change := range map[string]func(*http.Request){
		"a form":            func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") },
		"another origin":    func(r *http.Request) { r.Header.Set("Origin", "http://example.com") },
		"a rebound name":    func(r *http.Request) { r.Host = "example.com" },
		"too much":          func(r *http.Request) { r.Body = http.NoBody },
		"an unknown member": func(r *http.Request) {},
	} {
		req, err := http.NewRequest(http.MethodPost, o.url+"/admin/tablets/split", strings.NewReader(`{"table":"users","key":"user00050","extra":1}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		change(req)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusForbidden && resp.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: %s", name, resp.Status)
		}
	}
	if out, _ := o.tablets("list", "--table=users"); !strings.Contains(out, "2 tablets") {
		t.Errorf("after all that was refused:\n%s", out)
	}
	// What the load is made of shows, here and through the API.
	conn := dial(t, o.addr)
	if _, err := adminpb.NewBigtableInstanceAdminClient(conn).CreateInstance(t.Context(), &adminpb.CreateInstanceRequest{Parent: "projects/project", InstanceId: "instance",
		Instance: &adminpb.Instance{DisplayName: "instance"}, Clusters: map[string]*adminpb.Cluster{"trestle": {Location: "projects/project/locations/local-a", ServeNodes: 1}}}); err != nil {
		t.Fatal(err)
	}
	hot := func() []*adminpb.HotTablet {
		resp, err := adminpb.NewBigtableInstanceAdminClient(conn).ListHotTablets(t.Context(), &adminpb.ListHotTabletsRequest{Parent: "projects/project/instances/instance/clusters/trestle"})
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetHotTablets()
	}
	hot()
	for end := time.Now().Add(time.Minute); ; {
		for turn := time.Now().Add(1500 * time.Millisecond); time.Now().Before(turn); {
			all()
		}
		list = ops.TabletList{}
		out, _ = o.tablets("list", "--json", "--table=users")
		if err := json.Unmarshal([]byte(out), &list); err != nil || len(list.Tablets) != 2 {
			t.Fatalf("%v %s", err, out)
		}
		if list.Tablets[1].RowsReadPerSecond > list.Tablets[0].RowsReadPerSecond && list.Tablets[0].RowsReadPerSecond > 10 {
			break
		}
		if time.Now().After(end) {
			t.Fatal(out)
		}
	}
	if got := hot(); len(got) != 2 || got[0].GetStartKey() != "user00100" || !(got[0].GetNodeCpuUsagePercent() > got[1].GetNodeCpuUsagePercent()) || got[1].GetNodeCpuUsagePercent() <= 0 {
		t.Errorf("%v", got)
	}
	if body := httpGet(t, o.url+"/readyz"); strings.Contains(body, "[!]") || !strings.HasSuffix(body, "\nready\n") {
		t.Errorf("readyz: %s", body)
	}
}

// sstableWith returns the SSTable that holds value, and where in it.
func sstableWith(t *testing.T, dir, value string) (path string, at int) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "trestle-data", "sst", "*.sst"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if i := bytes.Index(b, []byte(value)); i >= 0 {
			return f, i
		}
	}
	t.Fatalf("none of %d SSTables holds the value as it is", len(files))
	return "", 0
}

// TestCorruption: a byte of an SSTable changes under a running server. The rows
// of its block answer DATA_LOSS, again and again; all others are served; metrics,
// health, verify and check name the SSTable.
func TestCorruption(t *testing.T) {
	o := operate(t)
	if out, _, code := tool(t, o.dir, "check", "trestle-data"); code != exitFailure {
		t.Errorf("check beside a server: %d %s", code, out)
	}
	o.stop(syscall.SIGTERM) // which flushes
	if out, errs, code := tool(t, o.dir, "check", "trestle-data"); code != exitOK || !strings.Contains(out, "trestle-data: no damage, 0 harmless findings; 1 table, 1 tablet,") {
		t.Errorf("check after a stop: %d\n%s%s", code, out, errs)
	}
	o.start() // with nothing in the cache
	path, at := sstableWith(t, o.dir, valueOf(200)[:100])
	object := filepath.Base(path)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := []byte{0}
	if _, err := f.ReadAt(b, int64(at+50)); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1
	if _, err := f.WriteAt(b, int64(at+50)); err != nil {
		t.Fatal(err)
	}

	lost := map[int]bool{}
	for range 3 {
		for i := range 400 {
			r, err := o.table.ReadRow(t.Context(), rowOf(i))
			switch {
			case status.Code(err) == codes.DataLoss:
				lost[i] = true
				if strings.Contains(err.Error(), object) {
					t.Errorf("row %d: the client is told of files: %v", i, err)
				}
			case err != nil:
				t.Errorf("row %d: %v", i, err)
			case lost[i]:
				t.Errorf("row %d is back", i)
			case len(r["f"]) != 1 || string(r["f"][0].Value) != valueOf(i):
				t.Errorf("row %d is not what was written", i)
			}
		}
	}
	if !lost[200] || len(lost) > 100 {
		t.Errorf("lost are %d rows, the damaged one among them: %v", len(lost), lost[200])
	}
	first, last := 400, 0
	for i := range lost {
		first, last = min(first, i), max(last, i)
	}
	if last-first+1 != len(lost) {
		t.Errorf("lost are %d rows between %d and %d: not one block", len(lost), first, last)
	}
	// A scan serves what comes before, and what comes after.
	n := 0
	err = o.table.ReadRows(t.Context(), bigtable.InfiniteRange(""), func(bigtable.Row) bool { n++; return true })
	if status.Code(err) != codes.DataLoss || n > first {
		t.Errorf("a scan of all gives %d rows and %v", n, err)
	}
	n = 0
	err = o.table.ReadRows(t.Context(), bigtable.NewRange(rowOf(last+1), ""), func(bigtable.Row) bool { n++; return true })
	if err != nil || n != 400-last-1 {
		t.Errorf("a scan behind gives %d rows and %v", n, err)
	}
	n = 0
	err = o.table.ReadRows(t.Context(), bigtable.InfiniteRange(""), func(bigtable.Row) bool { n++; return true }, bigtable.ReverseScan())
	if status.Code(err) != codes.DataLoss || n > 400-last {
		t.Errorf("a reversed scan of all gives %d rows and %v", n, err)
	}
	// What depends on the lost row fails, and changes nothing.
	rmw := bigtable.NewReadModifyWrite()
	rmw.AppendValue("f", "q", []byte("x"))
	if _, err := o.table.ApplyReadModifyWrite(t.Context(), rowOf(200), rmw); status.Code(err) != codes.DataLoss {
		t.Errorf("read-modify-write: %v", err)
	}
	m := bigtable.NewMutation()
	m.Set("f", "q", 2000, []byte("x"))
	if err := o.table.Apply(t.Context(), rowOf(200), bigtable.NewCondMutation(bigtable.PassAllFilter(), nil, m)); status.Code(err) != codes.DataLoss {
		t.Errorf("check-and-mutate: %v", err)
	}
	// Plain writes go on.
	for _, i := range []int{200, 399} {
		set(t, o.table, rowOf(i), "new")
	}
	if got := value(t, o.table, "nobody"); got != "" {
		t.Errorf("a row that never was: %q", got)
	}

	resp, err := http.Get(o.url + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	body := httpGet(t, o.url+"/readyz")
	if resp.StatusCode != http.StatusOK || !regexp.MustCompile(`\[!\] corruption in `+object+` of tablet [0-9a-f]+ of projects/project/instances/instance/tables/users: .* got DATA_LOSS`).MatchString(body) {
		t.Errorf("readyz: %s\n%s", resp.Status, body)
	}
	metrics := httpGet(t, o.url+"/metrics")
	for _, want := range []string{`bigtable_corrupt_sstable_reads_total\{object="` + object + `",table="projects/project/instances/instance/tables/users",tablet="[0-9a-f]+"\} [1-9]`,
		`bigtable_corruption_total [1-9]`, `bigtable_panics_recovered_total 0`, `bigtable_server_requests_total\{[^}]*code="DataLoss"[^}]*method="ReadRows"`} {
		if !regexp.MustCompile(want).MatchString(metrics) {
			t.Errorf("the metrics lack %s", want)
		}
	}
	if out, code := o.tablets("verify", "--table=users", "--all"); code != exitFailure || !strings.Contains(out, "damage  "+object) || !strings.Contains(out, "1 SSTables are damaged") {
		t.Errorf("verify: exit code %d\n%s", code, out)
	}
	// A compaction must not make sound-looking files of it.
	if out, code := o.tablets("compact", "--table=users", "--all"); code != exitFailure || !strings.Contains(out, "leave out what is damaged: "+object) {
		t.Errorf("compact: exit code %d\n%s", code, out)
	}
	o.stop(syscall.SIGKILL)
	out, errs, code := tool(t, o.dir, "check", "trestle-data")
	if code != exitFailure || !strings.Contains(out, "damage    sst/"+object+": ") || !strings.Contains(out, "trestle-data: 1 damaged,") {
		t.Errorf("check: exit code %d\n%s%s", code, out, errs)
	}
	out, _, code = tool(t, o.dir, "check", "--json", "trestle-data")
	var line struct {
		Finding, Where, What, Do string
	}
	if err := json.Unmarshal([]byte(strings.SplitN(out, "\n", 2)[0]), &line); err != nil || code != exitFailure || line.Where == "" || line.Do == "" {
		t.Errorf("check --json: %v %s", err, out)
	}
	for flag, want := range map[string]string{
		"--json=false": `1 damaged,.*; views were not compared, as there is damage\n$`,
		"--json":       `"damaged":1,.*"views_not_compared":"there is damage"\}\}\n$`,
	} {
		out, _, code := tool(t, o.dir, "check", "--views", flag, "trestle-data")
		if code != exitFailure || !regexp.MustCompile(want).MatchString(out) || strings.Contains(out, "view_rows") || strings.Contains(out, "0 views") {
			t.Errorf("check --views %s: exit code %d\n%s\nwant %s", flag, code, out, want)
		}
	}
	// The server starts all the same.
	o.start()
	if r, err := o.table.ReadRow(t.Context(), rowOf(0)); err != nil || string(r["f"][0].Value) != valueOf(0) {
		t.Errorf("after a restart: %v", err)
	}
	if _, err := o.table.ReadRow(t.Context(), rowOf(200)); status.Code(err) != codes.DataLoss {
		t.Errorf("after a restart: %v", err)
	}
	// What an operator does who has no backup.
	if out, code := o.tablets("drop-damaged", "--table=users", "--object="+object); code != exitFailure || !strings.Contains(out, "confirm that with --yes") {
		t.Errorf("drop-damaged without --yes: exit code %d\n%s", code, out)
	}
	if out, code := o.tablets("drop-damaged", "--table=users", "--yes", "--object="+object); code != exitOK || !strings.Contains(out, "of rows from "+rowOf(0)+" to ") {
		t.Errorf("drop-damaged: exit code %d\n%s", code, out)
	}
	if _, err := o.table.ReadRow(t.Context(), rowOf(200)); err != nil {
		t.Errorf("after the SSTable was dropped: %v", err)
	}
	if out, code := o.tablets("verify", "--table=users", "--all"); code != exitOK {
		t.Errorf("verify: exit code %d\n%s", code, out)
	}
	o.stop(syscall.SIGTERM)
}

// TestCheckAfterKill: a server that was killed under load leaves no damage.
func TestCheckAfterKill(t *testing.T) {
	o := operate(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for i := 0; ; i++ {
			m := bigtable.NewMutation()
			m.Set("f", "q", 1000, []byte(valueOf(i)))
			if o.table.Apply(ctx, rowOf(i%1000), m) != nil {
				return
			}
		}
	}()
	o.tablets("split", "--table=users", "--key=user00100")
	o.tablets("flush", "--table=users", "--all")
	time.Sleep(300 * time.Millisecond)
	o.proc.signal(syscall.SIGKILL)
	o.proc.exit()
	cancel() // the client would try again for ever
	<-ended
	if out, errs, code := tool(t, o.dir, "check", "trestle-data"); code != exitOK || !strings.Contains(out, "no damage") {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
	if _, errs, code := tool(t, o.dir, "check", "nowhere"); code != exitFailure || !strings.Contains(errs, "nowhere") {
		t.Errorf("exit code %d: %s", code, errs)
	}
	if _, errs, code := tool(t, o.dir, "check"); code != exitUsage || !strings.Contains(errs, "takes one data directory") {
		t.Errorf("exit code %d: %s", code, errs)
	}
}

// TestTabletsInterrupted: an interrupt cancels the job.
func TestTabletsInterrupted(t *testing.T) {
	running, cancelled := make(chan struct{}), make(chan struct{})
	var once, twice sync.Once
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Method {
		case http.MethodGet:
			once.Do(func() { close(running) })
			<-r.Context().Done()
		case http.MethodDelete:
			twice.Do(func() { close(cancelled) })
		}
		fmt.Fprint(w, `{"id":"7","state":"running"}`)
	}))
	defer srv.Close()
	p := startTrestle(t, "real", t.TempDir(), "tablet", "compact", "--table=t", "--all", "--admin", srv.URL)
	<-running
	p.signal(syscall.SIGINT)
	if _, code, _ := p.exit(); code != exitFailure || !strings.Contains(p.stderr.String(), "interrupted") {
		t.Errorf("exit code %d: %s", code, p.stderr)
	}
	select {
	case <-cancelled:
	default:
		t.Error("the job was not cancelled")
	}
	// What answers there need not be an admin service.
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	if _, errs, code := tool(t, t.TempDir(), "tablet", "list", "--admin", other.URL); code != exitFailure || !strings.Contains(errs, "is no admin service") {
		t.Errorf("exit code %d: %s", code, errs)
	}
}
