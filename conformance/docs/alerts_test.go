package docs

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestAlerts: each alert rule has a section in the operator's document, which its runbook leads
// to, and the other way round.
func TestAlerts(t *testing.T) {
	const page = "docs/operations.md"
	text := read(t, page)
	rules := strings.Split(read(t, "packaging/dashboards/alerts.yaml"), "- alert: ")[1:]
	var names []string
	for _, r := range rules {
		name, _, _ := strings.Cut(r, "\n")
		names = append(names, name)
		if want := "runbook_url: https://github.com/trestledb/trestle/blob/main/" + page + "#" + strings.ToLower(name) + "\n"; !strings.Contains(r, want) {
			t.Errorf("%s has no line %q", name, want)
		}
		if _, section, ok := strings.Cut(text, "\n### "+name+"\n\n"); !ok || len(section) < 100 || strings.HasPrefix(section, "#") {
			t.Errorf("%s says nothing of %s", page, name)
		}
	}
	if len(names) < 15 {
		t.Errorf("only %d alerts were found", len(names))
	}
	for _, m := range regexp.MustCompile(`(?m)^### (Trestle\w+)$`).FindAllStringSubmatch(text, -1) {
		if !slices.Contains(names, m[1]) {
			t.Errorf("%s has a section of %s, and there is no such alert", page, m[1])
		}
	}
}
