package main

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/trestledb/trestle/conformance/target"
	"github.com/trestledb/trestle/engine/loopback"
	"github.com/trestledb/trestle/gateway/auth/servertls"
)

// TestDevCluster: a cluster on an address of its own says when it serves, and
// ends in order; its servers take further flags.
func TestDevCluster(t *testing.T) {
	if testing.Short() {
		t.Skip("starts six processes")
	}
	host, err := loopback.Take()
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	first, err := host.Ports(2 + 20 + 5)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "data #1?") // which a URL must escape
	p := startTrestle(t, "real", t.TempDir(), "dev-cluster", "-servers=2", "--gateways=1", "--host", host.IP, "--port", strconv.Itoa(first+2), "--memory=64MiB", "--ttl", target.Patience.String(), "--hbase", "--dir", dir,
		"--", "--http-listen=off", "--tls-auto", "--auth=on", "--audit-log=off")
	p.line("the cluster serves")
	keys, err := filepath.Glob(filepath.Join(dir, "*", "root-key.json"))
	if err != nil || len(keys) != 1 {
		t.Fatalf("keys %v, %v", keys, err)
	}
	// What it says to type next reaches it over TLS, with the key.
	at := net.JoinHostPort(host.IP, strconv.Itoa(first+2))
	p.line("  export SSL_CERT_FILE=" + servertls.Quote(filepath.Join(dir, "server-1", "tls", "ca.pem")) + " ")
	p.line("  export GOOGLE_APPLICATION_CREDENTIALS=" + servertls.Quote(keys[0]) + " ")
	p.line("  alias bt='cbt -admin-endpoint " + at + " -data-endpoint " + at + ` -creds "$GOOGLE_APPLICATION_CREDENTIALS" `)
	p.line("  bt createtable t ")
	if _, err := os.Stat(filepath.Join(dir, "store")); err != nil {
		t.Errorf("the store is elsewhere: %v", err)
	}
	for _, port := range []int{2, 4, 5, 6, 12, 14, 15, 16, 22, 25, 26} {
		c, err := net.Dial("tcp", net.JoinHostPort(host.IP, strconv.Itoa(first+port)))
		if err != nil {
			t.Error(err)
			continue
		}
		c.Close()
	}
	if c, err := net.Dial("tcp", net.JoinHostPort(host.IP, strconv.Itoa(first+3))); err == nil {
		t.Error("there is HTTP")
		c.Close()
	}
	p.signal(syscall.SIGTERM)
	if rest, code, _ := p.exit(); code != 0 || strings.Contains(rest, "has ended") {
		t.Errorf("exit code %d\n%s\n%s", code, rest, p.stderr)
	}
	for _, args := range [][]string{{"--host", "10.0.0.1"}, {"x"}, {"x", "--", "--memory=1MiB"}} {
		p := startTrestle(t, "real", dir, append([]string{"dev-cluster"}, args...)...)
		if _, code, _ := p.exit(); code != exitUsage {
			t.Errorf("%q: exit code %d", args, code)
		}
	}
}
