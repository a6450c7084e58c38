package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestRemovedDirectory: what a process logged is known also when its directory was
// removed while it ran, and that it was.
func TestRemovedDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	p := newProcess("server-1", "", "", dir, "ready", "/bin/sh", nil, "-c", "echo why >&2; echo ready; sleep 60")
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.close)
	if err := p.Ready(time.Minute); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	c := &Cluster{o: Options{Dir: dir}, Servers: []*Process{p}}
	got := c.why()
	for _, want := range []string{"was removed while it ran", "server-1, process ", "\n  why\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q does not say %q", got, want)
		}
	}
}
