package main

import (
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/trestledb/trestle/engine/objectstore/hdfs/hdfstest"
)

// TestClusterHDFS: a cluster on a real HDFS loses nothing while tablet servers
// and the HDFS's own processes are killed.
func TestClusterHDFS(t *testing.T) {
	h := hdfstest.Real(t, hdfstest.FastClose...)
	// The processes refuse what they take for a setting.
	t.Setenv(hdfstest.Jars, "")
	if err := os.Unsetenv(hdfstest.Jars); err != nil {
		t.Fatal(err)
	}
	c := startCluster(t, 3, mortal, func(c *testCluster) {
		o := h.Options("/trestle")
		c.store = fmt.Sprintf("hdfs://%s%s?user=%s&insecure=true", o.NameNodes[0], o.Dir, o.User)
	})
	gateway := startTrestle(t, "real", c.dir, c.args("gateway", "--emulator", "--listen=127.0.0.1:0", "--http-listen=off", "--data-dir="+c.dir+"/gateway")...)
	tbl := c.table(gateway.line("export BIGTABLE_EMULATOR_HOST="))
	t.Cleanup(func() {
		if t.Failed() {
			c.logs()
		}
	})
	w := startWorkload(t, tbl)
	w.progress()
	step := func(what string, do func()) {
		t.Helper()
		start, failed := time.Now(), w.failed.Load()
		do()
		w.progress()
		w.progress()
		t.Logf("%s: %v, %d calls failed", what, time.Since(start), w.failed.Load()-failed)
	}
	step("nothing", func() {})
	for _, victim := range []string{"server-1", "server-2"} {
		step("kill -9 of "+victim, func() {
			c.servers[victim].signal(syscall.SIGKILL)
			c.servers[victim].exit()
			w.progress()
			c.launch(victim)
			c.ready(victim)
		})
	}
	step("flush and compact", func() {
		c.run("tablet", "flush", "--table=table-of-test", "--all")
		c.run("tablet", "compact", "--table=table-of-test", "--all")
	})
	step("kill -9 of the DataNode", func() {
		h.KillDataNode()
		time.Sleep(2 * time.Second)
		h.StartDataNode()
	})
	step("kill -9 of the NameNode", func() {
		h.KillNameNode()
		time.Sleep(2 * time.Second)
		h.StartNameNode()
		h.Wait()
	})
	step("kill -9 of both, and of a tablet server", func() {
		const victim = "server-3"
		c.servers[victim].signal(syscall.SIGKILL)
		h.KillNameNode()
		h.KillDataNode()
		c.servers[victim].exit()
		h.StartNameNode()
		h.StartDataNode()
		h.Wait()
		c.launch(victim)
		c.ready(victim)
	})
	w.end()
	t.Logf("%d writes, %d calls failed, the first: %v", w.ops.Load(), w.failed.Load(), w.first)
}
