package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/trestledb/trestle/cmd/trestle/internal/settings"
)

// TestRESTReach asks who gets to the REST API by where it listens.
func TestRESTReach(t *testing.T) {
	served := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	for _, tc := range []struct {
		name     string
		cfg      settings.Serve
		host     string
		origin   string
		want     int
		wantElse int // of the metrics
	}{
		{"this machine", settings.Serve{HTTPListen: "127.0.0.1:1"}, "localhost:1", "", 204, 204},
		{"a page of another site", settings.Serve{HTTPListen: "127.0.0.1:1"}, "localhost:1", "http://evil.example", 403, 204},
		{"a name that was made to lead here", settings.Serve{HTTPListen: "127.0.0.1:1"}, "evil.example:1", "", 403, 204},
		{"others, without login", settings.Serve{HTTPListen: "10.0.0.1:1", TLSAuto: true}, "10.0.0.1:1", "", 403, 204},
		{"others, with login", settings.Serve{HTTPListen: "10.0.0.1:1", TLSAuto: true, Auth: settings.On}, "db.example:1", "", 204, 204},
		{"others, as they were told", settings.Serve{HTTPListen: "10.0.0.1:1", Insecure: true}, "db.example:1", "", 204, 204},
		{"a page, with login", settings.Serve{HTTPListen: "10.0.0.1:1", TLSAuto: true, Auth: settings.On}, "db.example:1", "http://evil.example", 403, 204},
	} {
		h := withAPI(&tc.cfg, served, served, served)
		for path, want := range map[string]int{"/v2/projects/p/instances": tc.want, "/v1/projects/p:getIamPolicy": tc.want, "/metrics": tc.wantElse, "/token": tc.wantElse} {
			r := httptest.NewRequest(http.MethodGet, "http://"+tc.host+path, nil)
			if tc.origin != "" {
				r.Header.Set("Origin", tc.origin)
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != want {
				t.Errorf("%s: %s got %d, want %d", tc.name, path, w.Code, want)
			}
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
