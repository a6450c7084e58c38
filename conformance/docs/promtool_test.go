package docs

import (
	"os/exec"
	"testing"
)

// TestAlertRules runs the tests of the alert rules.
func TestAlertRules(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed: the alert rules were not tested")
	}
	for _, args := range [][]string{{"check", "rules", "dashboards/alerts.yaml"}, {"test", "rules", "dashboards/alerts_test.yaml"}} {
		cmd := exec.Command(promtool, args...)
		cmd.Dir = root + "/packaging"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
}
