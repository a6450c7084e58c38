package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
	"github.com/trestledb/trestle/cmd/trestle/internal/settings"
)

// TestConsoleWhere: there is a console only where a loopback address, or login over TLS,
// protects it.
func TestConsoleWhere(t *testing.T) {
	for _, tc := range []struct {
		flags string
		want  ops.Pages
	}{
		{"", ops.AllPages},
		{"--console=read", ops.ReadPages},
		{"--console=off", ops.NoPages},
		{"--http-listen=off", ops.NoPages},
		{"--auth=on", ops.AllPages},
		{"--http-listen=:8087 --insecure", ops.NoPages},
		{"--http-listen=:8087 --insecure --auth=on", ops.NoPages},
		{"--http-listen=:8087 --insecure --tls-auto", ops.NoPages},
		{"--http-listen=:8087 --tls-auto --auth=on", ops.AllPages},
	} {
		f := settings.NewFlags("serve")
		if err := f.Parse(strings.Fields(tc.flags)); err != nil {
			t.Fatal(err)
		}
		set, err := f.Load(nil)
		if err != nil {
			t.Fatal(tc.flags, err)
		}
		if got := consolePages(&set.Serve); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.flags, got, tc.want)
		}
	}
}

// TestConsolePages: what pages of this origin may ask for, and that those of others may
// not, by whatever they say of themselves.
func TestConsolePages(t *testing.T) {
	served := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Had", r.Header.Get("Authorization"))
	})
	gate := func(login bool, p ops.Pages) http.Handler {
		return ops.Gate{Login: login, Pages: p}.Handler([]ops.Route{{Pattern: "/", For: ops.LoggedIn, Handler: served}})
	}
	const own, cookie = "same-origin", "__Host-trestle=secret"
	for _, tc := range []struct {
		name, request, host, headers string
		login                        bool
		pages                        ops.Pages
		want                         int
		had                          string
	}{
		{"a page of its own reads", "GET /v2/x", "", "Sec-Fetch-Site: " + own, false, ops.AllPages, 200, ""},
		{"… and writes", "POST /v2/x", "", "Sec-Fetch-Site: same-origin|Origin: http://localhost:8087", false, ops.AllPages, 200, ""},
		{"a tool", "POST /v2/x", "", "", false, ops.AllPages, 200, ""},
		{"another site's page", "POST /v2/x", "", "Sec-Fetch-Site: cross-site|Origin: http://evil.example", false, ops.AllPages, 403, ""},
		{"… that reads", "GET /v2/x", "", "Sec-Fetch-Site: cross-site|Sec-Fetch-Mode: no-cors", false, ops.AllPages, 403, ""},
		{"a form", "POST /v2/x", "", "Sec-Fetch-Site: cross-site|Origin: null|Sec-Fetch-Mode: navigate", false, ops.AllPages, 403, ""},
		{"an old browser's form", "POST /v2/x", "", "Origin: http://evil.example", false, ops.AllPages, 403, ""},
		{"a forged origin", "GET /v2/x", "", "Origin: http://localhost:8087.evil.example", false, ops.AllPages, 403, ""},
		{"another port", "POST /v2/x", "", "Sec-Fetch-Site: same-site|Origin: http://localhost:9999", false, ops.AllPages, 403, ""},
		{"a name that leads here", "GET /v2/x", "evil.example:8087", "Sec-Fetch-Site: " + own, false, ops.AllPages, 403, ""},
		{"a link", "GET /console/", "", "Sec-Fetch-Site: cross-site|Sec-Fetch-Mode: navigate", false, ops.AllPages, 200, ""},
		{"for reading only", "POST /v2/x", "", "Sec-Fetch-Site: " + own, false, ops.ReadPages, 403, ""},
		{"… a delete", "DELETE /v2/x", "", "Sec-Fetch-Site: " + own, false, ops.ReadPages, 403, ""},
		{"… a mutation", "POST /v2/x:mutateRow", "", "Sec-Fetch-Site: " + own, false, ops.ReadPages, 403, ""},
		{"… rows", "POST /v2/x:rows", "", "Sec-Fetch-Site: " + own, false, ops.ReadPages, 200, ""},
		{"… a tool", "POST /v2/x", "", "", false, ops.ReadPages, 200, ""},
		{"no console", "GET /v2/x", "", "Origin: http://localhost:8087", false, ops.NoPages, 403, ""},
		{"a session", "GET /v2/x", "", "Sec-Fetch-Site: same-origin|Cookie: " + cookie, true, ops.AllPages, 200, "Bearer secret"},
		{"a session of a link", "GET /v2/x", "", "Sec-Fetch-Site: cross-site|Sec-Fetch-Mode: navigate|Cookie: " + cookie, true, ops.AllPages, 200, ""},
		{"a session without a page", "GET /v2/x", "", "Cookie: " + cookie, true, ops.AllPages, 200, ""},
		{"a session beside a token", "GET /v2/x", "", "Sec-Fetch-Site: same-origin|Authorization: Bearer own|Cookie: " + cookie, true, ops.AllPages, 200, "Bearer own"},
		{"a session where nobody logs in", "GET /v2/x", "", "Sec-Fetch-Site: same-origin|Cookie: " + cookie, false, ops.AllPages, 200, ""},
	} {
		method, path, _ := strings.Cut(tc.request, " ")
		r := httptest.NewRequest(method, "http://localhost:8087"+path, nil)
		r.RemoteAddr = "127.0.0.1:4"
		if tc.host != "" {
			r.Host = tc.host
		}
		for h := range strings.SplitSeq(tc.headers, "|") {
			if name, value, ok := strings.Cut(h, ": "); ok {
				r.Header.Set(name, value)
			}
		}
		w := httptest.NewRecorder()
		gate(tc.login, tc.pages).ServeHTTP(w, r)
		if w.Code != tc.want || w.Header().Get("Had") != tc.had {
			t.Errorf("%s: %d with %q, want %d with %q: %s", tc.name, w.Code, w.Header().Get("Had"), tc.want, tc.had, w.Body)
		}
	}
}

// TestConsolePrincipals asks for every route below /admin/ and /console/ as nobody, as an
// account that may look at one table, and as root. Nobody gets nothing but the login
// page; what is the system's only root gets.
func TestConsolePrincipals(t *testing.T) {
	dir := t.TempDir()
	s := startSecured(t, func(flags ...string) *proc {
		return startTrestle(t, "real", dir, append([]string{"serve", "--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0", "--slow-request=1ms", "--memory=64MiB", "--data-dir=" + dir}, flags...)...)
	}, dir)
	ask := s.ask
	admin := ops.NewAdmin()
	defer admin.Close()
	// A body that each route takes: one that it does not would be refused before anything is
	// looked up.
	const two = "projects/p/instances/i/tables/two"
	all, of, one := `{"table":"`+two+`","all":true}`, `{"table":"`+two+`","group":"g"}`, `{"table":"`+two+`","key":"k"}`
	bodies := map[string]string{
		"POST /admin/tablets/split": one, "POST /admin/tablets/merge": one, "POST /admin/tablets/move": `{"table":"` + two + `","key":"k","server":"local"}`,
		"POST /admin/tablets/drop-damaged": `{"table":"` + two + `","object":"o","confirm":"o"}`,
		"POST /admin/tablets/compact":      all, "POST /admin/tablets/flush": all, "POST /admin/tablets/verify": all,
		"POST /admin/servers/drain": `{"server":"local"}`, "POST /admin/servers/undrain": `{"server":"local"}`,
		"POST /admin/views/wait":         `{"view":"projects/p/instances/i/materializedViews/v"}`,
		"POST /admin/views/check":        `{"view":"projects/p/instances/i/materializedViews/v"}`,
		"POST /admin/table/create-group": `{"table":"` + two + `","group":"g","families":["f"]}`, "POST /admin/table/set-group": `{"table":"` + two + `","group":"g","block_bytes":65536}`, "POST /admin/table/delete-group": of,
		"POST /admin/table/assign":   `{"table":"` + two + `","group":"g","families":["f"]}`,
		"POST /admin/backups/export": `{"backup":"projects/p/instances/i/clusters/c/backups/b","export":"e"}`,
		"POST /admin/backups/import": `{"backup":"projects/p/instances/i/clusters/c/backups/b","export":"e"}`,
	}
	// What is listed leaves out what the caller may not see.
	lists := map[string]bool{"GET /admin/backups": true, "GET /admin/jobs": true, "GET /admin/views": true, "GET /admin/slow": true}
	for _, r := range admin.Routes() {
		method, path, _ := strings.Cut(r.Pattern, " ")
		path = strings.ReplaceAll(path, "{id}", "77") + "?table=" + two
		send, ok := bodies[r.Pattern]
		if !ok && method == http.MethodPost {
			t.Errorf("%s needs a body in this test", r.Pattern)
		}
		if code, body, _ := ask("", method, path, send, nil); code != http.StatusUnauthorized {
			t.Errorf("%s answers %d to nobody: %s", r.Pattern, code, body)
		}
		code, body, _ := ask(s.onlooker, method, path, send, nil)
		if lists[r.Pattern] && (code != http.StatusOK || strings.Contains(body, "two")) || !lists[r.Pattern] && (code != http.StatusForbidden || !strings.Contains(body, "bigtable.")) {
			t.Errorf("%s answers %d to an account that may not: %s", r.Pattern, code, body)
		}
		if code, body, _ := ask(s.root, method, path, send, nil); code == http.StatusUnauthorized || code == http.StatusForbidden {
			t.Errorf("%s answers %d to root: %s", r.Pattern, code, body)
		}
	}
	// Slow requests are seen by those who see their table.
	slow := func(key string) string {
		_, body, _ := ask(key, "GET", "/admin/slow", "", nil)
		return body
	}
	value := base64.StdEncoding.EncodeToString(make([]byte, 1<<20))
	for _, id := range []string{"one", "two"} {
		name := "projects/p/instances/i/tables/" + id
		for range 50 {
			if code, body, _ := ask(s.root, "POST", "/v2/"+name+":mutateRow", `{"rowKey":"eA==","mutations":[{"setCell":{"familyName":"f","columnQualifier":"","timestampMicros":"1000","value":"`+value+`"}}]}`, nil); code != 200 {
				t.Fatal(code, body)
			}
			if strings.Contains(slow(s.root), name) {
				break
			}
		}
	}
	for key, want := range map[string][2]bool{s.root: {true, true}, s.onlooker: {true, false}, "": {false, false}} {
		body := slow(key)
		for i, id := range []string{"one", "two"} {
			if strings.Contains(body, "projects/p/instances/i/tables/"+id) != want[i] {
				t.Errorf("%q sees of table %s: %s", filepath.Base(key), id, body)
			}
		}
		if key == s.onlooker && (strings.Contains(body, `"table":""`) || strings.Contains(body, "CreateTable")) {
			t.Errorf("an onlooker sees the system's requests: %s", body)
		}
	}
	for _, path := range []string{"/admin/settings", "/admin/servers"} {
		if code, body, _ := ask(s.onlooker, "GET", path, "", nil); code != http.StatusForbidden || !strings.Contains(body, "bigtable.tables.get") {
			t.Errorf("%s answers %d: %s", path, code, body)
		}
	}

	// A session is its key's, and ends with it.
	k, err := (&login{creds: s.onlooker}).key(true)
	if err != nil {
		t.Fatal(err)
	}
	md, err := k.GetRequestMetadata(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var token string
	for _, v := range md {
		token = strings.TrimPrefix(v, "Bearer ")
	}
	begin := func(token string) (int, string, http.Header) {
		b, _ := json.Marshal(map[string]string{"token": token})
		return ask("", "POST", ops.SessionPath, string(b), http.Header{"Sec-Fetch-Site": {"same-origin"}})
	}
	code, body, h := begin(token)
	cookie, _, _ := strings.Cut(h.Get("Set-Cookie"), ";")
	if code != 200 || !strings.HasPrefix(cookie, ops.SessionCookie+"=") {
		t.Fatal(code, body, h)
	}
	for _, bad := range []string{strings.TrimPrefix(cookie, ops.SessionCookie+"="), "x.y.z", token[:len(token)-3] + "AAA"} {
		if code, body, _ := begin(bad); code != http.StatusUnauthorized {
			t.Errorf("a session of %.20s…: %d %s", bad, code, body)
		}
	}
	if code, body, _ := ask("", "POST", ops.SessionPath, `{"token":"`+strings.Repeat("x", 1<<20)+`"}`, http.Header{"Sec-Fetch-Site": {"same-origin"}}); code != http.StatusBadRequest {
		t.Errorf("a huge body: %d %s", code, body)
	}
	page := http.Header{"Sec-Fetch-Site": {"same-origin"}, "Cookie": {cookie}}
	var who struct{ Principal string }
	_, body, _ = ask("", "GET", ops.SessionPath, "", page)
	if err := json.Unmarshal([]byte(body), &who); err != nil || who.Principal != "serviceAccount:onlooker@p.iam.trestle.internal" {
		t.Errorf("%s", body)
	}
	if code, body, _ := ask("", "GET", "/admin/tablets?table=one", "", page); code != 200 {
		t.Errorf("a session: %d %s", code, body)
	}
	if code, body, _ := ask("", "GET", "/admin/tablets?table=two", "", page); code != 403 {
		t.Errorf("a session: %d %s", code, body)
	}
	for _, line := range strings.Split(s.iam("keys", "list", "--service-account=onlooker@p.iam.trestle.internal"), "\n") {
		if id := strings.Fields(line)[0]; !bytes.ContainsAny([]byte(id), " :") && len(id) > 10 {
			s.iam("keys", "delete", id, "--service-account=onlooker@p.iam.trestle.internal")
		}
	}
	if code, body, _ := ask("", "GET", "/admin/tablets?table=one", "", page); code != http.StatusUnauthorized {
		t.Errorf("a session whose key is gone: %d %s", code, body)
	}
	// The page itself is for everybody, and in no frame.
	code, _, h = ask("", "GET", "/console/", "", nil)
	if code != 200 || !strings.Contains(h.Get("Content-Security-Policy"), "frame-ancestors 'none'") || !strings.Contains(h.Get("Content-Security-Policy"), "default-src 'none'") {
		t.Error(code, h)
	}
}
