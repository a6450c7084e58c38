package ops

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/matview"
	"github.com/trestledb/trestle/engine/schema"
)

// viewOperator keeps views of which a row more than is told differs.
type viewOperator struct {
	fakeOperator
	views  []string
	status matview.Status
	check  func() // within CheckView
}

func (o *viewOperator) ListViews(_ context.Context, instance string) (out []*schema.Table, _ error) {
	for _, n := range o.views {
		if strings.HasPrefix(n, instance+"/") {
			out = append(out, &schema.Table{Name: n, View: &schema.View{Name: n, Source: "projects/p/instances/i/tables/t"}})
		}
	}
	return out, nil
}

func (o *viewOperator) ViewStatus(_ context.Context, name string) (*matview.Status, error) {
	if strings.HasSuffix(name, "/gone") {
		return nil, fault.New(fault.NotFound, "gone")
	}
	return &o.status, nil
}

func (o *viewOperator) WaitView(_ context.Context, name string) error {
	if strings.HasSuffix(name, "/gone") {
		return fault.New(fault.NotFound, "Materialized view not found: %s", name)
	}
	return nil
}

func (o *viewOperator) CheckView(_ context.Context, _ *schema.Table, report func(ViewFinding)) (int, error) {
	o.check()
	for range maxViewFindings + 1 {
		report(ViewFinding{Where: "there", What: "it differs", Do: "something"})
	}
	return 5000, nil
}

// TestViews: views are shown, awaited and checked, by their names or the last part of them.
func TestViews(t *testing.T) {
	a := NewAdmin()
	s := service{t, Gate{}.Handler(a.Routes())}
	o := &viewOperator{check: func() {}, views: []string{"projects/p/instances/i/materializedViews/gone", "projects/p/instances/i/materializedViews/v",
		"projects/p/instances/i/materializedViews/w", "projects/p/instances/j/materializedViews/w"},
		status: matview.Status{Tablets: 3, Lag: 1234567 * time.Microsecond, RowBytes: 7, StateBytes: 9, Failed: 2, LastFailure: "bad cast"}}
	a.Start(o, nobody(t))
	phase := func() (phases []string) {
		code, got := s.ask("GET", "/admin/views", "")
		if code != http.StatusOK {
			t.Fatalf("%d %v", code, got)
		}
		for _, v := range got["views"].([]any) {
			phases = append(phases, v.(map[string]any)["phase"].(string))
		}
		return phases
	}
	if _, got := s.ask("GET", "/admin/views", ""); !strings.Contains(string(must(json.Marshal(got))),
		`{"errors":0,"failed_rows":2,"lag_seconds":1.235,"last_failure":"bad cast","phase":"live","row_bytes":7,"source":"projects/p/instances/i/tables/t","state_bytes":9,"tablets":3,"view":"projects/p/instances/i/materializedViews/v"}`) {
		t.Errorf("%s", must(json.Marshal(got)))
	}
	if got := strings.Join(phase(), " "); got != "live live live" {
		t.Error(got)
	}
	o.status.Building = 1
	if got := phase()[0]; got != ViewBuilding {
		t.Error(got)
	}
	o.status.Behind = 1
	if got := phase()[0]; got != ViewBehind {
		t.Error(got)
	}
	for _, c := range []struct {
		path, body string
		code       int
		want       string
	}{
		{"wait", `{"view":"v"}`, 200, `{"view":"projects/p/instances/i/materializedViews/v"}`},
		{"wait", `{"view":"projects/p/instances/j/materializedViews/w"}`, 200, `"projects/p/instances/j/materializedViews/w"`},
		{"wait", `{"view":"w"}`, 400, "give the full name"},
		{"wait", `{"view":"x"}`, 404, "Materialized view not found: x"},
		{"wait", `{"view":"gone"}`, 404, "not found"},
		{"wait", `{"name":"v"}`, 400, "decode"},
		{"check", `{"view":"projects/p/instances/i/materializedViews/x"}`, 404, "not found"},
		{"check", `{"view":"v"}`, 200, `"differ":1001`},
		{"check", `{"view":"v"}`, 200, `"rows":5000`},
	} {
		code, got := s.ask("POST", "/admin/views/"+c.path, c.body)
		if b := string(must(json.Marshal(got))); code != c.code || !strings.Contains(b, c.want) {
			t.Errorf("%s %s: %d %.300s, want %d %s", c.path, c.body, code, b, c.code, c.want)
		}
	}
	if _, got := s.ask("POST", "/admin/views/check", `{"view":"v"}`); len(got["findings"].([]any)) != maxViewFindings {
		t.Errorf("%d findings", len(got["findings"].([]any)))
	}
	// One at a time.
	code := 0
	o.check = func() {
		o.check = func() {}
		code, _ = s.ask("POST", "/admin/views/check", `{"view":"v"}`)
	}
	if s.ask("POST", "/admin/views/check", `{"view":"v"}`); code != http.StatusConflict {
		t.Errorf("a check during another: %d", code)
	}
	// A store without views.
	b := NewAdmin()
	b.Start(&fakeOperator{}, nobody(t))
	plain := service{t, Gate{}.Handler(b.Routes())}
	if code, got := plain.ask("GET", "/admin/views", ""); code != http.StatusNotImplemented {
		t.Errorf("%d %v", code, got)
	}
}
