package hbase

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tsuna/gohbase"
	"github.com/tsuna/gohbase/filter"
	"github.com/tsuna/gohbase/hrpc"

	"github.com/trestledb/trestle/conformance/target"
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
	bigLinkedList(t, zookeeper, 80_000)
}

// bigLinkedList writes and verifies that many nodes, a multiple of 20,000.
func bigLinkedList(t *testing.T, zookeeper string, nodes int) {
	t.Helper()
	out := tool(t, zookeeper, "org.apache.hadoop.hbase.test.IntegrationTestBigLinkedList", "loop", "1", "2", strconv.Itoa(nodes/2), filepath.Join(t.TempDir(), "itbll"), "1", "1000", "10")
	if !regexp.MustCompile(fmt.Sprintf(`\sREFERENCED=%d\s`, nodes)).Match(out) || regexp.MustCompile(`(UNDEFINED|UNREFERENCED|LOST_FAMILIES|CORRUPT)=`).Match(out) {
		t.Errorf("nodes are lost\n%s", out[max(len(out)-3000, 0):])
	}
}

// TestBigLinkedListKilled kills each tablet server of a cluster once while nodes
// are written: the client's own retries get it through.
func TestBigLinkedListKilled(t *testing.T) {
	jars(t, "tools")
	if !target.OnCluster() {
		t.Skip(target.ClusterEnv + " is not set")
	}
	c := target.ServeCluster(t, target.ClusterOptions{Gateways: 1, HBase: true})
	zookeeper := strings.Join(c.ZooKeeper, ",")
	done := make(chan struct{})
	go func() {
		defer close(done)
		bigLinkedList(t, zookeeper, 400_000)
	}()
	defer func() { <-done }()
	client := gohbase.NewClient(zookeeper)
	defer client.Close()
	for i := range c.Addrs {
		if !newNodes(t, client, done) {
			t.Errorf("the job has ended before server %d was killed", i)
			return
		}
		if err := c.KillServer(i); err != nil {
			t.Error(err)
			return
		}
		t.Logf("server %d is killed", i)
	}
	if !newNodes(t, client, done) {
		t.Error("the job has ended before it wrote to a cluster that has lost all its servers once")
	}
}

// newNodes returns when many more nodes were written, or false if the job has ended
// before.
func newNodes(t *testing.T, client gohbase.Client, done <-chan struct{}) bool {
	var first int
	for seen := false; ; {
		n, err := nodes(t.Context(), client)
		switch {
		case err == nil && !seen:
			first, seen = n, true
		case err == nil && n >= first+2000:
			return true
		}
		select {
		case <-done:
			return false
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// nodes counts the nodes of the list.
func nodes(ctx context.Context, client gohbase.Client) (n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	s, err := hrpc.NewScanStr(ctx, "IntegrationTestBigLinkedList", hrpc.NumberOfRows(10_000), hrpc.Filters(filter.NewFirstKeyOnlyFilter()))
	if err != nil {
		return 0, err
	}
	for rows := client.Scan(s); ; n++ {
		if _, err := rows.Next(); errors.Is(err, io.EOF) {
			return n, nil
		} else if err != nil {
			return 0, err
		}
	}
}
