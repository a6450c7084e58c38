package sdk

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/trestledb/trestle/conformance/target"
	"github.com/trestledb/trestle/engine/loopback"
)

// gohbase is the HBase client whose own integration tests run, at the version
// of go.mod.
const gohbase = "github.com/tsuna/gohbase"

// gohbaseTests is how many tests its package has with them: 41 need a server.
const gohbaseTests = 70

// serveHBase starts a server, or a cluster, and returns the addresses of its
// ZooKeeper. One of gohbase's tests calls a script in HBase's home that starts and
// stops region servers, and expects a read to succeed meanwhile. There it tells a
// tablet server to stop, which is started again a second later; to one server that
// has every region it does nothing.
func serveHBase(t *testing.T, bin, home string) string {
	t.Helper()
	script, quorum := "#!/bin/sh\n", ""
	if target.OnCluster() {
		c := target.ServeCluster(t, target.ClusterOptions{Binary: bin, Gateways: 1, HBase: true})
		script += "action=$1; shift\n[ \"$action\" = stop ] || exit 0\nfor server; do case $server in\n"
		for i := range c.Addrs {
			c.MayEnd(i)
			script += fmt.Sprintf("%d) kill -TERM %d ;;\n", i+1, c.Pid(i))
		}
		script += "esac; done\n"
		quorum = strings.Join(c.ZooKeeper, ",")
	} else {
		quorum = loopback.Addr(t)
		s, err := target.Start(t.Context(), target.Process{Binary: bin, Dir: t.TempDir(),
			Args: []string{"--emulator", "--hbase-listen", "127.0.0.1:0", "--hbase-zookeeper-listen", quorum}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Stop(10 * time.Second); err != nil {
				t.Errorf("stop the server: %v\n%s", err, s.Log())
			}
		})
	}
	if err := os.WriteFile(filepath.Join(home, "local-regionservers.sh"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return quorum
}

// TestGohbase runs gohbase's integration tests, unchanged.
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
	zk := serveHBase(t, bin, home)
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
