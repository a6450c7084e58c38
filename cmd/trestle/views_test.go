package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"cloud.google.com/go/bigtable"
	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
)

// TestViewsCommand: what `trestle views` tells of a running server's views.
func TestViewsCommand(t *testing.T) {
	o := operate(t)
	want := func(code int, pattern string, args ...string) {
		t.Helper()
		out, errs, got := tool(t, o.dir, append(append([]string{"views"}, args...), "--admin", o.url)...)
		if got != code || !regexp.MustCompile(pattern).MatchString(out+errs) {
			t.Errorf("%v: exit code %d\n%s%s\nwant %d %s", args, got, out, errs, code, pattern)
		}
	}
	want(exitOK, `^PHASE +LAG +ROWS +STATE +FAILED +VIEW\n$`, "list")
	want(exitOK, `^$`, "check")
	conn, err := grpc.NewClient(o.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	inst := adminpb.NewBigtableInstanceAdminClient(conn)
	for id, query := range map[string]string{
		"by-length": "SELECT LENGTH(f['q']) AS n, COUNT(*) AS c FROM users GROUP BY n",
		"failing":   "SELECT CAST(CAST(f['q'] AS STRING) AS INT64) AS n, COUNT(*) AS c FROM users GROUP BY n",
	} {
		if _, err := inst.CreateMaterializedView(t.Context(), &adminpb.CreateMaterializedViewRequest{Parent: "projects/project/instances/instance",
			MaterializedViewId: id, MaterializedView: &adminpb.MaterializedView{Query: query}}); err != nil {
			t.Fatal(err)
		}
	}
	want(exitOK, `materializedViews/by-length has caught up\n`, "wait", "by-length")
	want(exitOK, `materializedViews/failing has caught up\n`, "wait", "projects/project/instances/instance/materializedViews/failing")
	want(exitFailure, `not found: none`, "wait", "none")
	want(exitFailure, `Materialized view not found: .*/none`, "wait", "projects/project/instances/instance/materializedViews/none")
	want(exitUsage, `VIEW`, "wait")
	want(exitOK, `(?s)live +[0-9.ms]+ +[0-9.]+ .?i?B +[0-9.]+ .?i?B +0 +.*/by-length\n.* +400 +.*/failing\nfailing: Invalid cast`, "list")
	m := bigtable.NewMutation()
	m.DeleteRow()
	if err := o.table.Apply(t.Context(), rowOf(7), m); err != nil {
		t.Fatal(err)
	}
	want(exitOK, `/by-length: [0-9]+ rows, 0 differ\n`, "check", "by-length")
	want(exitOK, `(?s)/by-length: .*/failing: 0 rows, 0 differ\n`, "check")
	want(exitFailure, `not found: none`, "check", "none")
	out, _, _ := tool(t, o.dir, "views", "list", "--json", "--admin", o.url)
	var list ops.ViewList
	check := func(code int, pattern string, args ...string) {
		t.Helper()
		out, errs, got := tool(t, o.dir, append([]string{"check", "--views"}, args...)...)
		if got != code || !regexp.MustCompile(pattern).MatchString(out+errs) {
			t.Errorf("check --views %v: exit code %d\n%s%s\nwant %d %s", args, got, out, errs, code, pattern)
		}
	}
	check(exitOK, `(?s)/by-length: .* rows, 0 differ\n.*/failing: 0 rows, 0 differ\n`, "--online", "--admin", o.url)
	check(exitOK, `^\{"summary":\{"complete":true,"damaged":0,"harmless":0,"view_rows":[1-9][0-9]*,"view_rows_differ":0,"views":2\}\}\n$`, "--online", "--json", "--admin", o.url)
	check(exitUsage, `--admin goes with --views and --online`, "--admin", o.url)
	check(exitUsage, `--admin goes with --views and --online`, "--online", "--admin", o.url, "trestle-data")
	check(exitUsage, `give --online too`, "--store", "file:///nowhere")
	check(exitFailure, `open in another process`, "trestle-data")
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list.Views) != 2 || list.Views[1].FailedRows < 400 || list.Views[0].Tablets != 1 {
		t.Errorf("%v: %s", err, out)
	}
	o.stop(syscall.SIGKILL)
	check(exitOK, `no damage.*; 2 views with [1-9][0-9]* rows, of which 0 differ\n`, "trestle-data")
	check(exitOK, `"tables":[1-9],.*"view_rows":[1-9][0-9]*,"view_rows_differ":0,"views":2\}\}\n$`, "--json", "trestle-data")
}

// TestCheckViewsLines: `trestle check --json` prints the rows that a server finds to differ as
// those that it finds itself.
func TestCheckViewsLines(t *testing.T) {
	answers := map[string]string{
		"/admin/views":       `{"views":[{"view":"a"},{"view":"b"}]}`,
		"/admin/views/check": `{"view":"a","rows":7,"differ":2,"findings":[{"where":"row 1","what":"is not there","do":"delete it"}]}`,
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(answers[r.URL.Path]))
	}))
	defer s.Close()
	const finding = `{"do":"delete it","finding":"damage","what":"is not there","where":"row 1"}` + "\n"
	out, errs, code := typed("check", "--views", "--online", "--json", "--admin", s.URL)
	want := finding + finding + `{"summary":{"complete":true,"damaged":4,"harmless":0,"view_rows":14,"view_rows_differ":4,"views":2}}` + "\n"
	if code != exitFailure || out != want || !strings.Contains(errs, "4 rows of views are not what their queries make them") {
		t.Errorf("exit code %d, %s\n%s\nwant\n%s", code, errs, out, want)
	}
	delete(answers, "/admin/views/check")
	out, _, code = typed("check", "--views", "--online", "--json", "--admin", s.URL)
	if want = `{"summary":{"complete":false,"damaged":0,"harmless":0,"view_rows":0,"view_rows_differ":0,"views":0}}` + "\n"; code != exitFailure || out != want {
		t.Errorf("exit code %d\n%s\nwant\n%s", code, out, want)
	}
}
