package docs

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A dashboard is what Grafana imports, as far as it is checked.
type dashboard struct {
	UID, Title string
	Panels     []struct {
		ID          int
		Type        string
		Title       string
		Datasource  struct{ UID string }
		GridPos     struct{ X, Y, W, H int }
		FieldConfig struct{ Defaults struct{ Unit string } }
		Targets     []struct{ Expr string }
	}
}

// TestDashboards: panels have ids and places of their own, a title, a unit and the data source
// that is chosen, and Prometheus can parse what they ask for.
func TestDashboards(t *testing.T) {
	files, err := filepath.Glob(root + "/packaging/dashboards/*.json")
	if err != nil || len(files) != 5 {
		t.Fatal(files, err)
	}
	uids := map[string]string{}
	var rules strings.Builder
	rules.WriteString("groups:\n- name: panels\n  rules:\n")
	exprs := 0
	for _, file := range files {
		b, err := os.ReadFile(file)
		var d dashboard
		if err == nil {
			err = json.Unmarshal(b, &d)
		}
		if err != nil || d.UID == "" || d.Title == "" || uids[d.UID] != "" {
			t.Errorf("%s: %v, uid %q, title %q", file, err, d.UID, d.Title)
		}
		uids[d.UID] = file
		ids, taken := map[int]bool{}, map[[2]int]string{}
		for _, p := range d.Panels {
			if ids[p.ID] || p.Title == "" || p.GridPos.X < 0 || p.GridPos.X+p.GridPos.W > 24 {
				t.Errorf("%s, %q: id %d, at %+v", file, p.Title, p.ID, p.GridPos)
			}
			ids[p.ID] = true
			for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
				for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
					if other := taken[[2]int{x, y}]; other != "" {
						t.Fatalf("%s: %q covers %q", file, p.Title, other)
					}
					taken[[2]int{x, y}] = p.Title
				}
			}
			if p.Type == "row" {
				continue
			}
			if p.Datasource.UID != "${datasource}" || p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 {
				t.Errorf("%s, %q: data source %q, unit %q, %d queries", file, p.Title, p.Datasource.UID, p.FieldConfig.Defaults.Unit, len(p.Targets))
			}
			for _, q := range p.Targets {
				exprs++
				expr := strings.NewReplacer("$__rate_interval", "5m", "$job", "trestle", "$table", "t").Replace(q.Expr)
				fmt.Fprintf(&rules, "  - {record: 'panel:%d', expr: %q}\n", exprs, expr)
			}
		}
	}
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("NOT TESTED: promtool is not installed: the queries of the dashboards were not parsed")
	}
	name := filepath.Join(t.TempDir(), "panels.yaml")
	if err := os.WriteFile(name, []byte(rules.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(promtool, "check", "rules", "--lint=none", name).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	t.Logf("%d queries of %d dashboards", exprs, len(files))
}
