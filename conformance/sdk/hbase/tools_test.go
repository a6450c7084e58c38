package hbase

import (
	"context"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"
)

// tool runs a main class of HBase's test jars and returns what it prints.
func tool(t *testing.T, zookeeper, class string, args ...string) []byte {
	t.Helper()
	jars := jars(t, "tools")
	conf := t.TempDir()
	configuration(t, conf, map[string]string{"hbase.zookeeper.quorum": zookeeper, "hbase.client.retries.number": "5"})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	java := append([]string{"-Xmx1g"}, javaFlags...)
	out, err := exec.CommandContext(ctx, "java", append(append(java, "-cp", conf+":"+jars+"/*", class), args...)...).CombinedOutput()
	if err != nil {
		t.Errorf("%s %q: %v\n%s", class, args, err, out[max(len(out)-3000, 0):])
	}
	return out
}

// TestPerformanceEvaluation runs every command of HBase's own benchmark that
// needs no more of a cluster than tables.
func TestPerformanceEvaluation(t *testing.T) {
	jars(t, "tools")
	_, zookeeper := serve(t)
	for _, command := range []string{
		"sequentialWrite", "randomWrite", "sequentialRead", "randomRead", "scan", "filterScan", "scanRange10", "scanRange100", "randomSeekScan",
		"increment", "append", "checkAndMutate", "checkAndPut", "checkAndDelete",
		"asyncRandomWrite", "asyncSequentialWrite", "asyncRandomRead", "asyncSequentialRead", "asyncScan",
		"metaRandomRead", "cleanMeta", "randomDelete", "sequentialDelete",
	} {
		t.Run(command, func(t *testing.T) {
			out := tool(t, zookeeper, "org.apache.hadoop.hbase.PerformanceEvaluation", "--nomapred", "--rows=300", "--presplit=4", "--table=pe", command, "2")
			if m := regexp.MustCompile(`Finished TestClient-\d+ in \d+ms over 300 rows`).FindAll(out, -1); !t.Failed() && len(m) != 2 {
				t.Errorf("%d of 2 clients finished\n%s", len(m), out[max(len(out)-3000, 0):])
			}
		})
	}
}

// TestBigLinkedList writes linked lists of 80,000 nodes and looks for holes,
// both as local MapReduce jobs.
func TestBigLinkedList(t *testing.T) {
	jars(t, "tools")
	_, zookeeper := serve(t)
	out := tool(t, zookeeper, "org.apache.hadoop.hbase.test.IntegrationTestBigLinkedList", "loop", "1", "2", "40000", filepath.Join(t.TempDir(), "itbll"), "1", "1000", "10")
	if !regexp.MustCompile(`REFERENCED=80000\s`).Match(out) || regexp.MustCompile(`(UNDEFINED|UNREFERENCED|LOST_FAMILIES|CORRUPT)=`).Match(out) {
		t.Errorf("nodes are lost\n%s", out[max(len(out)-3000, 0):])
	}
}
