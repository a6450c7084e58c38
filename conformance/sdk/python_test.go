package sdk

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// pythonClient is the release of Python's client whose system tests run, pythonTools what
// runs them.
const pythonClient = "google-cloud-bigtable==2.50.2"

var pythonTools = []string{"pytest==7.4.4", "pytest-asyncio==0.21.2"}

var pythonResult = regexp.MustCompile(`(?m)^(PASSED|FAILED|SKIPPED|ERROR) tests/system/data/(test_\w+)\.py::\w+::(\S+)(?: - (.*))?$`)

// TestPythonSystem runs what the system tests of Python's client have about SQL, unchanged,
// as against the service itself: Google's names, TLS, a service account's key. They are in
// its source distribution only.
func TestPythonSystem(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("python3 is not installed")
	}
	s, host := startAsGoogle(t)
	dir := filepath.Join(workspace(t).Dir, "python")
	do := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s %q: %v\n%s", name, args, err, out)
		}
	}
	pip := filepath.Join(dir, "venv", "bin", "pip")
	if _, err := os.Stat(pip); err != nil {
		do("python3", "-m", "venv", filepath.Join(dir, "venv"))
	}
	do(pip, append([]string{"-q", "install", pythonClient}, pythonTools...)...)
	module := filepath.Join(dir, strings.Replace(strings.ReplaceAll(pythonClient, "-", "_"), "==", "-", 1))
	if _, err := os.Stat(module); err != nil {
		do(pip, "-q", "download", "--no-deps", "--no-binary", ":all:", "-d", dir, pythonClient)
		do("tar", "-C", dir, "-xf", module+".tar.gz")
	}
	wrap, err := leadHere(host, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	wrap = append(wrap, filepath.Join(dir, "venv", "bin", "python"), "-P", "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "-k", "execute", "tests/system/data")
	cmd := exec.CommandContext(t.Context(), wrap[0], wrap[1:]...)
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "GOOGLE_CLOUD_PROJECT="+Project, "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH="+s.ca, "GOOGLE_APPLICATION_CREDENTIALS="+s.root)
	out, err := cmd.CombinedOutput()
	var results []Result
	for _, m := range pythonResult.FindAllStringSubmatch(string(out), -1) {
		outcome := map[string]string{"PASSED": "pass", "SKIPPED": "skip"}[m[1]]
		if outcome == "" {
			outcome = "fail"
		}
		results = append(results, Result{Name: m[2] + "." + m[3], Outcome: outcome, Why: m[4]})
	}
	if compare(t, "python.txt", results); err != nil || t.Failed() {
		t.Errorf("%v\n%s", err, out)
	}
}
