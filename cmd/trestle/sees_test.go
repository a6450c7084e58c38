package main

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

// TestOperatorsSee: who may see a table sees its key visualizer, and nobody else. What tells
// of processes is the system's.
func TestOperatorsSee(t *testing.T) {
	dir := t.TempDir()
	s := startSecured(t, func(flags ...string) *proc {
		return startTrestle(t, "real", dir, append([]string{"serve", "--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0", "--memory=64MiB", "--data-dir=" + dir}, flags...)...)
	}, dir)
	account := func(name, on string) (key string) {
		key = filepath.Join(s.dir, name+".json")
		email := s.iam("service-accounts", "create", name, "--project=p")
		s.iam("keys", "create", "--service-account="+email, "--out="+key)
		if on != "" {
			s.iam("policy", "add-binding", on, "--role=roles/bigtable.viewer", "--member=serviceAccount:"+email)
		}
		return key
	}
	viewer, stranger := account("viewer", "projects/p/instances/i"), account("stranger", "")
	ask := func(key, path string) (int, string) {
		t.Helper()
		code, body, _ := s.ask(key, http.MethodGet, path, "", nil)
		return code, body
	}
	const one, two, none = "projects/p/instances/i/tables/one", "projects/p/instances/i/tables/two", "projects/p/instances/i/tables/none"
	const ok, denied, login, missing = http.StatusOK, http.StatusForbidden, http.StatusUnauthorized, http.StatusNotFound
	who := []string{s.root, viewer, s.onlooker, stranger, ""}
	names := []string{"root", "a viewer of the instance", "a viewer of table one", "an account that may nothing", "nobody"}
	for _, x := range []struct {
		path string
		want [5]int
	}{
		{"/admin/keyvis?table=" + one, [5]int{ok, ok, ok, denied, login}},
		{"/admin/keyvis?table=" + two, [5]int{ok, ok, denied, denied, login}},
		{"/admin/keyvis?table=two", [5]int{ok, ok, denied, denied, login}},
		{"/admin/keyvis?table=" + none, [5]int{missing, missing, denied, denied, login}},
		{"/admin/keyvis?table=METADATA", [5]int{ok, denied, denied, denied, login}},
		{"/admin/keyvis", [5]int{400, 400, 400, 400, login}},
		{"/admin/history", [5]int{ok, denied, denied, denied, login}},
		{"/admin/processes", [5]int{ok, denied, denied, denied, login}},
		{"/admin/debug", [5]int{ok, denied, denied, denied, login}},
		{"/admin/debug?keys=true", [5]int{ok, denied, denied, denied, login}},
		{"/admin/debug?seconds=31", [5]int{400, denied, denied, denied, login}},
	} {
		for i, key := range who {
			code, body := ask(key, x.path)
			if code != x.want[i] {
				t.Errorf("%s answers %d to %s, want %d: %.300s", x.path, code, names[i], x.want[i], body)
			}
			if i > 1 && code != http.StatusBadRequest && strings.Contains(strings.ReplaceAll(body, x.path[strings.IndexByte(x.path, '=')+1:], ""), "two") {
				t.Errorf("%s tells %s of a table: %s", x.path, names[i], body)
			}
			if code == denied && !strings.Contains(body, "bigtable.tables.") {
				t.Errorf("%s does not name the permission: %s", x.path, body)
			}
		}
	}
	// What there is and what there is not is refused alike.
	_, there := ask(s.onlooker, "/admin/keyvis?table="+two)
	_, missed := ask(s.onlooker, "/admin/keyvis?table="+none)
	if strings.ReplaceAll(there, "/two", "") != strings.ReplaceAll(missed, "/none", "") {
		t.Errorf("a table that is there is refused with %s, one that is not with %s", there, missed)
	}
	if out, code := s.tool(s.onlooker, "top"); code != exitOK || !strings.Contains(out, one) || strings.Contains(out, two) || strings.Contains(out, "METADATA") {
		t.Errorf("top of a viewer of table one: %d\n%s", code, out)
	}
	for _, args := range [][]string{{"doctor"}, {"debug", "zip", filepath.Join(s.dir, "out.zip")}} {
		s.want(exitFailure, "denied", viewer, args...)
	}
}
