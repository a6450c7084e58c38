package main

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
	"github.com/trestledb/trestle/cmd/trestle/internal/settings"
	"github.com/trestledb/trestle/conformance/model"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/tablet"
	"github.com/trestledb/trestle/gateway/auth"
)

// routesFor says of every path that http-listen answers whom it is for.
var routesFor = map[string]ops.Audience{
	"GET /admin/keyvis": ops.LoggedIn, "GET /admin/history": ops.LoggedIn, "GET /admin/processes": ops.LoggedIn, "GET /admin/debug": ops.LoggedIn,
	"GET /metrics": ops.Everybody, "GET /metrics/tablets": ops.Everybody, "GET /readyz": ops.Everybody, "GET /healthz": ops.Everybody, "GET /livez": ops.Everybody,
	"/token": ops.Everybody, "/v1/": ops.LoggedIn, "/v2/": ops.LoggedIn,
	"POST /admin/tablets/move": ops.LoggedIn, "GET /admin/servers": ops.LoggedIn, "POST /admin/servers/drain": ops.LoggedIn, "POST /admin/servers/undrain": ops.LoggedIn,
	"GET /admin/tables": ops.LoggedIn, "GET /admin/tablets": ops.LoggedIn, "POST /admin/tablets/split": ops.LoggedIn, "POST /admin/tablets/merge": ops.LoggedIn,
	"POST /admin/tablets/drop-damaged": ops.LoggedIn, "POST /admin/tablets/compact": ops.LoggedIn, "POST /admin/tablets/flush": ops.LoggedIn,
	"POST /admin/tablets/verify": ops.LoggedIn, "GET /admin/table": ops.LoggedIn, "POST /admin/table/create-group": ops.LoggedIn,
	"POST /admin/table/set-group": ops.LoggedIn, "POST /admin/table/delete-group": ops.LoggedIn, "POST /admin/table/assign": ops.LoggedIn,
	"GET /admin/backups": ops.LoggedIn, "POST /admin/backups/export": ops.LoggedIn, "POST /admin/backups/import": ops.LoggedIn,
	"GET /admin/views": ops.LoggedIn, "POST /admin/views/wait": ops.LoggedIn, "POST /admin/views/check": ops.LoggedIn,
	"GET /admin/settings": ops.LoggedIn, "GET /admin/slow": ops.LoggedIn, "GET /admin/principals": ops.LoggedIn, "GET /admin/jobs": ops.LoggedIn, "GET /admin/jobs/{id}": ops.LoggedIn, "DELETE /admin/jobs/{id}": ops.LoggedIn,
}

// probe asks for a pattern, as somebody from elsewhere or on this machine.
func probe(h http.Handler, pattern, peer, origin string) int {
	method, path, ok := strings.Cut(pattern, " ")
	if !ok {
		method, path = http.MethodGet, pattern
	}
	path = strings.ReplaceAll(path, "{id}", "1")
	r := httptest.NewRequest(method, "http://localhost:8087"+path, strings.NewReader("{}"))
	r.RemoteAddr = peer
	r.Header.Set("Content-Type", "application/json")
	if origin != "" {
		r.Header.Set("Origin", origin)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code
}

// TestHTTPRoutes: whom each path is for was thought of, and it is for nobody else.
// A path that is new must be added to routesFor.
func TestHTTPRoutes(t *testing.T) {
	served := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	admin := ops.NewAdmin()
	defer admin.Close()
	who, err := auth.Open(t.Context(), model.New(model.Options{}), auth.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer who.Close()
	admin.Start(struct{ ops.Operator }{}, who)
	routes := httpRoutes(ops.NewMetrics(), new(ops.Health), admin, served, served)
	off, on, insecure := ops.Gate{}.Handler(routes), ops.Gate{Login: true}.Handler(routes), ops.Gate{Insecure: true}.Handler(routes)
	const here, elsewhere, page = "127.0.0.1:4", "10.0.0.9:4", "http://evil.example"
	found := map[string]bool{}
	for _, r := range routes {
		audience, ok := routesFor[r.Pattern]
		if !ok || audience != r.For || found[r.Pattern] {
			t.Errorf("%s is for %v, which nobody has thought of", r.Pattern, r.For)
		}
		found[r.Pattern] = true
		if r.For == ops.Everybody {
			for _, h := range []http.Handler{off, on, insecure} {
				if code := probe(h, r.Pattern, elsewhere, ""); code == 401 || code == 403 {
					t.Errorf("%s answers %d", r.Pattern, code)
				}
			}
			continue
		}
		for _, h := range []http.Handler{off, on, insecure} {
			if code := probe(h, r.Pattern, here, page); code != 403 {
				t.Errorf("%s answers %d to a page", r.Pattern, code)
			}
		}
		if code := probe(off, r.Pattern, elsewhere, ""); code != 403 {
			t.Errorf("%s answers %d to others, without login", r.Pattern, code)
		}
		for _, h := range []http.Handler{off, insecure} {
			if code := probe(h, r.Pattern, here, ""); code == 403 {
				t.Errorf("%s answers %d to this machine", r.Pattern, code)
			}
		}
		// The REST API finds out by itself who calls: see gateway/rest.
		if strings.Contains(r.Pattern, "/admin/") {
			for _, peer := range []string{here, elsewhere} {
				if code := probe(on, r.Pattern, peer, ""); code != 401 {
					t.Errorf("%s answers %d without credentials", r.Pattern, code)
				}
			}
		}
	}
	for pattern := range routesFor {
		if !found[pattern] {
			t.Errorf("%s is not there any more", pattern)
		}
	}
}

// damagedStore is a store with damage.
type damagedStore struct{ ops.Operator }

func (damagedStore) Damage() []tablet.TableDamage {
	rows := row.Range{Start: []byte("secret-a"), End: []byte("secret-b")}
	return []tablet.TableDamage{
		{Table: "t", Rows: rows, Damage: tablet.Damage{Tablet: 7, Object: "x.sst", Reads: 5}},
		{Table: "t", Rows: rows, Damage: tablet.Damage{Tablet: 8, Failed: true, Err: errors.New("its flush panicked: secret-c is out of order")}},
	}
}

// TestReadyNamesNoRows: everybody may ask for /readyz. What it tells of damage names tablets,
// and no row keys.
func TestReadyNamesNoRows(t *testing.T) {
	admin, health := ops.NewAdmin(), new(ops.Health)
	defer admin.Close()
	admin.Start(damagedStore{}, nil)
	logs := []catalog.DamagedLog{{Server: "s", Tablets: []catalog.WaitingTablet{{Table: "t", Tablet: 9, Start: []byte("secret-a"), Object: "l/1", Error: "a checksum"}}}}
	health.SetWarnings(func() []string { return append(admin.Warnings(), damageWarnings(logs)...) })
	w := httptest.NewRecorder()
	ops.Gate{Login: true}.Handler(httpRoutes(ops.NewMetrics(), health, admin, http.NotFoundHandler(), http.NotFoundHandler())).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
	body := w.Body.String()
	for _, want := range []string{"x.sst of tablet 7 of t", "tablet 8 of t failed", "l/1 of s is damaged (a checksum)", "tablet 9 of t"} {
		if !strings.Contains(body, want) {
			t.Errorf("there is no %q in\n%s", want, body)
		}
	}
	if w.Code != http.StatusOK || strings.Contains(body, "secret") {
		t.Errorf("%d\n%s", w.Code, body)
	}
}

// TestMoreTabletsWait: where more tablets wait for a damaged log than are noted, readers of
// it is told so.
func TestMoreTabletsWait(t *testing.T) {
	for _, more := range []bool{false, true} {
		logs := []catalog.DamagedLog{{Log: 6, Server: "s", Tablets: []catalog.WaitingTablet{{Table: "t", Tablet: 9, Object: "l/1", Error: "a checksum"}}, More: more}}
		warnings := strings.Join(damageWarnings(logs), "\n")
		if strings.Contains(warnings, "more tablets wait for commit log 0000000000000006 of s") != more {
			t.Errorf("more: %v, and the warnings are\n%s", more, warnings)
		}
		var out bytes.Buffer
		status := clusterStatus{Damaged: []damagedStatus{{Table: "t", Tablet: "9", Object: "l/1"}}, DamagedMore: more}
		if err := status.print(&out, false); err != nil || strings.Contains(out.String(), "More tablets wait") != more {
			t.Errorf("more: %v, and the status is\n%s, %v", more, out.String(), err)
		}
	}
}

// TestAutoTLSForHBase: the certificate is for the host that HBase clients connect
// to as well.
func TestAutoTLSForHBase(t *testing.T) {
	for _, c := range []struct{ listen, advertise, want string }{
		{"", "", "127.0.0.1"},
		{"", "db.example.org", "127.0.0.1"},
		{"127.9.9.9:16020", "", "127.0.0.1 127.9.9.9"},
		{"127.0.0.1:16020", "", "127.0.0.1"},
		{":16020", "db.example.org", "127.0.0.1 db.example.org"},
		{":16020", "db.example.org:1", "127.0.0.1 db.example.org"},
		{":16020", "", "127.0.0.1"},
	} {
		cfg := &settings.Serve{DataDir: t.TempDir(), Listen: "127.0.0.1:1", HBaseListen: c.listen, HBaseName: c.advertise}
		if got := strings.Join(autoTLS(cfg).Hosts, " "); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}
