package ops

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/tablet"
)

// manyTablets has a table of so many tablets, of which the last is the busiest.
type manyTablets struct {
	fakeOperator
	n int
}

func (m *manyTablets) Tablets(context.Context, string) ([]tablet.Info, error) {
	out := make([]tablet.Info, m.n)
	for i := range out {
		out[i].Table, out[i].Rows.Start, out[i].Bytes = "t", fmt.Appendf(nil, "%06d", i), 2
		if i%2 == 0 {
			out[i].Server = "s"
		}
	}
	if m.n > 0 {
		out[m.n-1].Load.RowsRead = 5
	}
	return out, nil
}

// ListBackups returns as many backups, each with its place in its name, and one snapshot. The
// first is the newest; some were made at one time.
func (m *manyTablets) ListBackups(context.Context, string) ([]*schema.Backup, error) {
	var out []*schema.Backup
	for i := range m.n {
		out = append(out, &schema.Backup{Name: fmt.Sprintf("projects/p/instances/i/clusters/c/backups/%06d", i), Table: &schema.Table{}, CreateTime: time.Unix(int64(m.n-i)/2, 0)})
	}
	if m.n > 0 {
		slices.Reverse(out[:m.n/2])
		out = append(out, &schema.Backup{Name: "projects/p/instances/i/clusters/c/snapshots/s", Table: &schema.Table{}})
	}
	return out, nil
}

// TestPages: of many tablets, or backups, a caller gets those that it asks for, and their sums.
func TestPages(t *testing.T) {
	const n = 100_000
	a := NewAdmin()
	h := Gate{}.Handler(a.Routes())
	do := func(path string) (int, string) {
		r := httptest.NewRequest(http.MethodGet, "http://localhost"+path, nil)
		r.RemoteAddr = "127.0.0.1:4"
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	a.Start(&manyTablets{n: n}, nobody(t))
	get := func(path string, out any) {
		t.Helper()
		code, body := do(path)
		if err := json.Unmarshal([]byte(body), out); code != 200 || err != nil {
			t.Fatalf("%s: %d %v %.200s", path, code, err, body)
		}
	}
	for path, want := range map[string][3]string{
		"?limit=2":                    {"000000", "000001", "100000"},
		"?limit=2&offset=99998":       {"099998", "099999", "100000"},
		"?limit=2&order=load":         {"099999", "000000", "100000"},
		"?limit=2&offset=1&order=key": {"000001", "000002", "100000"},
	} {
		var got TabletList
		get("/admin/tablets"+path, &got)
		if len(got.Tablets) != 2 || got.Tablets[0].Start != want[0] || got.Tablets[1].Start != want[1] || fmt.Sprint(got.Total) != want[2] {
			t.Errorf("%s: %+v", path, got)
		}
	}
	var got TabletList
	if get("/admin/tablets?limit=10&offset=200000", &got); len(got.Tablets) != 0 || got.Total != n {
		t.Errorf("behind the end: %d of %d", len(got.Tablets), got.Total)
	}
	var all TabletList
	if get("/admin/tablets", &all); len(all.Tablets) != n || all.Total != n {
		t.Errorf("without a page: %d of %d", len(all.Tablets), all.Total)
	}
	for path, want := range map[string][3]int{
		"":                       {n, 0, n},
		"?limit=50":              {50, 0, n},
		"?limit=50&offset=99990": {10, 99_990, n},
	} {
		var got BackupList
		get("/admin/backups"+path, &got)
		if len(got.Backups) != want[0] || got.Backups[0].Backup != fmt.Sprintf("projects/p/instances/i/clusters/c/backups/%06d", want[1]) || got.Total != want[2] {
			t.Errorf("backups%s: %d of %d", path, len(got.Backups), got.Total)
		}
	}
	var sums TableList
	get("/admin/tables", &sums)
	if want := (TableSum{Table: "t", Tablets: n, Unserved: n / 2, Bytes: 2 * n, RowsReadPerSecond: 5}); len(sums.Tables) != 1 || sums.Tables[0] != want {
		t.Errorf("%+v, want %+v", sums.Tables, want)
	}
	var names TableNameList
	if get("/admin/tables?view=names", &names); !slices.Equal(names.Tables, []TableName{{"t"}}) {
		t.Errorf("%+v", names.Tables)
	}
	if code, body := do("/admin/tables?view=sums"); code != 400 {
		t.Errorf("another view: %d %s", code, body)
	}
	for _, bad := range []string{"limit=0", "limit=1001", "limit=x", "limit=1&offset=-1", "offset=3", "order=size"} {
		for _, list := range []string{"tablets?", "backups?"} {
			if code, body := do("/admin/" + list + bad); code != 400 {
				t.Errorf("%s%s: %d %.200s", list, bad, code, body)
			}
		}
	}
	if code, body := do("/admin/backups?order=load"); code != 400 {
		t.Errorf("backups by load: %d %.200s", code, body)
	}
	a.Start(&manyTablets{}, nobody(t))
	for path, want := range map[string]string{"tablets": `{"tablets":[],"total":0}`, "backups": `{"backups":[],"total":0}`} {
		if _, body := do("/admin/" + path + "?limit=50"); strings.TrimSpace(body) != want {
			t.Errorf("a page of no %s: %s", path, body)
		}
	}
}
