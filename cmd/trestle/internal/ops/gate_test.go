package ops

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/trestledb/trestle/conformance/model"
	"github.com/trestledb/trestle/gateway"
	"github.com/trestledb/trestle/gateway/rest"
)

// TestPagesReadOnly: where pages may only read, their statements that write are refused, by
// any way in which browsers say where a page is from. Other callers may write.
func TestPagesReadOnly(t *testing.T) {
	g, err := gateway.New(model.New(model.Options{}), gateway.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Stop(t.Context()) })
	api, err := rest.New(g, rest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	h := Gate{Pages: ReadPages}.Handler([]Route{{"/v2/", LoggedIn, api}})
	const here, instance = "http://localhost:8087", "/v2/projects/p/instances/inst-1"
	post := func(path, body string, headers ...string) (int, string) {
		r := httptest.NewRequest(http.MethodPost, here+path, strings.NewReader(body))
		r.RemoteAddr = "127.0.0.1:4"
		r.Header.Set("Content-Type", "application/json")
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	must := func(path, body, want string, headers ...string) {
		t.Helper()
		if code, got := post(path, body, headers...); code != http.StatusOK || !strings.Contains(got, want) {
			t.Fatalf("%s %s: %d %s", path, body, code, got)
		}
	}
	must("/v2/projects/p/instances", `{"instanceId":"inst-1","instance":{"displayName":"instance"},"clusters":{"cl-1":{"location":"projects/p/locations/local","serveNodes":1}}}`, "")
	must(instance+"/tables", `{"tableId":"t","table":{"columnFamilies":{"f":{}}}}`, "")
	must(instance+"/tables/t:mutateRow", `{"rowKey":"cg==","mutations":[{"setCell":{"familyName":"f","columnQualifier":"cQ==","timestampMicros":"1000","value":"dg=="}}]}`, "")
	const remove, count = `{"query":"DELETE FROM t WHERE TRUE"}`, `{"query":"SELECT COUNT(*) AS n FROM t"}`
	for _, page := range [][]string{
		{"Sec-Fetch-Site", "same-origin"},
		{"Sec-Fetch-Site", "same-origin", "Origin", here},
		{"Origin", here},
		{"Sec-Fetch-Site", "same-origin", "Authorization", "Bearer own"},
	} {
		for _, verb := range []string{":query", ":executeQuery"} {
			if code, body := post(instance+verb, remove, page...); code != http.StatusForbidden || !strings.Contains(body, "--console read") {
				t.Errorf("%s of a page %q: %d %s", verb, page, code, body)
			}
		}
		if code, body := post(instance+"/tables/t:mutateRow", `{}`, page...); code != http.StatusForbidden {
			t.Errorf("mutateRow of a page %q: %d %s", page, code, body)
		}
		must(instance+":query", count, "[1]", page...)
		must(instance+":query", `{"query":"EXPLAIN DELETE FROM t WHERE TRUE"}`, "columns", page...)
	}
	must(instance+":query", remove, "")
	must(instance+":query", count, "[0]")
}
