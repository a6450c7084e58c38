package sdk

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/trestledb/trestle/conformance/loopback"
	"github.com/trestledb/trestle/conformance/target"
)

// gohbase is the HBase client whose own integration tests run, at the version
// of go.mod.
const gohbase = "github.com/tsuna/gohbase"

// gohbaseTests is how many tests its package has with them: 41 need a server.
const gohbaseTests = 70

// TestGohbase runs gohbase's integration tests, unchanged, against a server.
// One of them calls a script of HBase that starts and stops region servers; the
// script here does nothing, as one server has every region.
func TestGohbase(t *testing.T) {
	bin := os.Getenv(target.BinaryEnv)
	if os.Getenv("CONFORMANCE_SDK") == "" || bin == "" {
		t.Skip("set CONFORMANCE_SDK=1 to run gohbase's own tests; `make conformance` does")
	}
	ctx := t.Context()
	dir := t.TempDir()
	source, err := run(exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", gohbase))
	if err != nil {
		t.Fatal(err)
	}
	module := filepath.Join(dir, "gohbase")
	if err := copyTree(module, strings.TrimSpace(string(source))); err != nil {
		t.Fatal(err)
	}
	home := filepath.Join(dir, "hbase", "bin")
	if err := os.MkdirAll(home, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, "local-regionservers.sh"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	zk := loopback.Addr(t)
	s, err := target.Start(ctx, target.Process{Binary: bin, Dir: filepath.Join(dir, "data"),
		Args: []string{"--emulator", "--hbase-listen", "127.0.0.1:0", "--hbase-zookeeper-listen", zk}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Stop(10 * time.Second); err != nil {
			t.Errorf("stop the server: %v\n%s", err, s.Log())
		}
	}()
	cmd := exec.CommandContext(ctx, "go", "test", "-count=1", "-tags=integration", "-v", ".", "-args", "-host", zk)
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "HBASE_HOME="+filepath.Dir(home), "GOFLAGS=-mod=mod")
	out, err := cmd.CombinedOutput()
	passed := bytes.Count(out, []byte("\n--- PASS:"))
	if err != nil || passed != gohbaseTests {
		for line := range strings.Lines(string(out)) {
			if strings.HasPrefix(line, "--- FAIL") || strings.HasPrefix(line, "    ") || strings.HasPrefix(line, "panic:") {
				t.Log(strings.TrimRight(line, "\n"))
			}
		}
		t.Errorf("%d of %d tests passed: %v", passed, gohbaseTests, err)
	}
}
