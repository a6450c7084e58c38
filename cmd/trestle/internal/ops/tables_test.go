package ops

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/tablet"
)

// manyTablets has a table of so many tablets, of which the last is the busiest.
type manyTablets struct {
	fakeOperator
	n int
}

func (m *manyTablets) EachTablet(_ context.Context, _ string, each func(*tablet.Info) error) error {
	for i := range m.n {
		t := tablet.Info{Table: "t", Rows: row.Range{Start: fmt.Appendf(nil, "%06d", i)}, State: tablet.State{Bytes: 2}}
		if i%2 == 0 {
			t.Server = "s"
		}
		if i == m.n-1 {
			t.Load.RowsRead = 5
		}
		if err := each(&t); err != nil {
			return err
		}
	}
	return nil
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
	sum := Sum{Tablets: n, Unserved: n / 2, Bytes: 2 * n, RowsReadPerSecond: 5}
	var got TabletList
	if get("/admin/tablets?limit=1", &got); got.Sum != sum {
		t.Errorf("in all %+v, want %+v", got.Sum, sum)
	}
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
	if want := (TableSum{"t", sum}); len(sums.Tables) != 1 || sums.Tables[0] != want {
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
		for _, list := range []string{"tablets?", "tables?", "backups?"} {
			if code, body := do("/admin/" + list + bad); code != 400 {
				t.Errorf("%s%s: %d %.200s", list, bad, code, body)
			}
		}
	}
	if code, body := do("/admin/backups?order=load"); code != 400 {
		t.Errorf("backups by load: %d %.200s", code, body)
	}
	a.Start(&manyTablets{}, nobody(t))
	for path, want := range map[string]string{"tablets": `{"tablets":[],"total":0,"sum":{"tablets":0,"unserved":0,"bytes":0,"rows_read_per_second":0,"rows_written_per_second":0}}`, "tables": `{"tables":[],"total":0,"instances":[]}`, "backups": `{"backups":[],"total":0}`} {
		if _, body := do("/admin/" + path + "?limit=50"); strings.TrimSpace(body) != want {
			t.Errorf("a page of no %s: %s", path, body)
		}
	}
}

// manyTables has tables of two instances and METADATA, with random loads.
type manyTables struct {
	fakeOperator
	tablets []tablet.Info
}

func (m *manyTables) EachTablet(_ context.Context, _ string, each func(*tablet.Info) error) error {
	for _, t := range m.tablets {
		if err := each(&t); err != nil {
			return err
		}
	}
	return nil
}

// TestPagesByLoad: pages of tables, and of tablets, are those of the whole list in its order,
// of which many have the same load. Instances have the sums of all.
func TestPagesByLoad(t *testing.T) {
	m := &manyTables{}
	want := map[string]*InstanceSum{}
	for i := range 300 {
		name := fmt.Sprintf("projects/p/instances/%d/tables/%03d", i/200, i)
		if i == 299 {
			name = "METADATA"
		}
		for range 1 + rand.IntN(3) {
			one := tablet.Info{Table: name, Tablet: metadata.TabletID(len(m.tablets)), State: tablet.State{Bytes: 3}, Load: tablet.Load{RowsRead: float64(rand.IntN(5))}}
			m.tablets = append(m.tablets, one)
			if i < 299 {
				instance := name[:len("projects/p/instances/0")]
				if want[instance] == nil {
					want[instance] = &InstanceSum{Instance: instance, Tables: 200 - 101*(i/200)}
				}
				want[instance].add(&one)
			}
		}
	}
	a := NewAdmin()
	a.Start(m, nobody(t))
	h := Gate{}.Handler(a.Routes())
	get := func(path string, out any) {
		t.Helper()
		r := httptest.NewRequest(http.MethodGet, "http://localhost/admin/"+path, nil)
		r.RemoteAddr = "127.0.0.1:4"
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if err := json.Unmarshal(w.Body.Bytes(), out); w.Code != 200 || err != nil {
			t.Fatalf("%s: %d %v %.200s", path, w.Code, err, w.Body)
		}
	}
	for _, order := range []string{"key", "load"} {
		var tables TableList
		var tablets TabletList
		get("tables?order="+order, &tables)
		get("tablets?order="+order, &tablets)
		if tables.Total != 300 || len(tables.Tables) != 300 || tablets.Total != len(m.tablets) || len(tablets.Tablets) != len(m.tablets) {
			t.Fatalf("%d of %d tables, %d of %d tablets", len(tables.Tables), tables.Total, len(tablets.Tablets), tablets.Total)
		}
		if order == "load" && !slices.IsSortedFunc(tables.Tables, func(a, b TableSum) int { return cmp.Compare(b.RowsReadPerSecond, a.RowsReadPerSecond) }) {
			t.Error("tables are not by load")
		}
		for _, at := range [][2]int{{0, 1}, {0, 7}, {7, 7}, {90, 100}, {295, 10}, {400, 3}} {
			page := fmt.Sprintf("?order=%s&offset=%d&limit=%d", order, at[0], at[1])
			var some TableList
			get("tables"+page, &some)
			if all := tables.Tables; some.Total != 300 || !slices.Equal(some.Tables, all[min(at[0], len(all)):min(at[0]+at[1], len(all))]) {
				t.Errorf("tables%s: %+v", page, some)
			}
			if len(some.Instances) != 2 || some.Instances[0] != *want["projects/p/instances/0"] || some.Instances[1] != *want["projects/p/instances/1"] {
				t.Errorf("tables%s: instances %+v, want %+v and %+v", page, some.Instances, want["projects/p/instances/0"], want["projects/p/instances/1"])
			}
			var few TabletList
			get("tablets"+page, &few)
			if all := tablets.Tablets; few.Total != len(all) || !slices.Equal(few.Tablets, all[min(at[0], len(all)):min(at[0]+at[1], len(all))]) {
				t.Errorf("tablets%s: %+v", page, few.Tablets)
			}
		}
	}
}
