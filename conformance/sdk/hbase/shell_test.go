package hbase

import (
	"bytes"
	"context"
	_ "embed"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"
)

//go:embed shell.txt
var script string

// TestShell types shell.txt into HBase's shell, which ends with the first
// command that fails.
func TestShell(t *testing.T) {
	jars := jars(t, "shell")
	_, zookeeper := serve(t)
	conf := t.TempDir()
	configuration(t, conf, map[string]string{"hbase.zookeeper.quorum": zookeeper, "hbase.client.retries.number": "5"})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	// JRuby comes before the parts of it that HBase's server has.
	java := append(append([]string{}, javaFlags...), "-cp", conf+":"+first(t, jars, "jruby-complete-*.jar")+":"+jars+"/*", "org.jruby.JarBootstrapMain", "-n")
	cmd := exec.CommandContext(ctx, "java", java...)
	cmd.Stdin = strings.NewReader(script)
	var problems bytes.Buffer
	cmd.Stderr = &problems
	out, err := cmd.Output()
	typed := strings.Count(script, "\n")
	if took := len(regexp.MustCompile(`(?m)^Took \d`).FindAll(out, -1)); err != nil || took != typed {
		t.Errorf("%d of %d commands: %v\n%s\n%s", took, typed, err, out[max(len(out)-2000, 0):], problems.Bytes()[:min(problems.Len(), 2000)])
	}
}
