package hbase

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tsuna/gohbase"
	"github.com/tsuna/gohbase/hrpc"

	"github.com/trestledb/trestle/engine/loopback"
)

// javaFlags are what HBase's own scripts give a Java of 17.
var javaFlags = strings.Fields(`-Dorg.apache.hbase.thirdparty.io.netty.tryReflectionSetAccessible=true --add-modules jdk.unsupported
	--add-opens java.base/java.io=ALL-UNNAMED --add-opens java.base/java.nio=ALL-UNNAMED --add-opens java.base/sun.nio.ch=ALL-UNNAMED
	--add-opens java.base/java.lang=ALL-UNNAMED --add-opens java.base/jdk.internal.ref=ALL-UNNAMED --add-opens java.base/java.lang.reflect=ALL-UNNAMED
	--add-opens java.base/java.util=ALL-UNNAMED --add-opens java.base/java.util.concurrent=ALL-UNNAMED --add-opens java.base/java.net=ALL-UNNAMED
	--add-exports java.base/jdk.internal.misc=ALL-UNNAMED --add-exports java.security.jgss/sun.security.krb5=ALL-UNNAMED
	--add-exports java.base/sun.net.dns=ALL-UNNAMED --add-exports java.base/sun.net.util=ALL-UNNAMED`)

// configuration writes an hbase-site.xml into a directory.
func configuration(t *testing.T, dir string, of map[string]string) {
	t.Helper()
	var b strings.Builder
	b.WriteString("<configuration>\n")
	for k, v := range of {
		fmt.Fprintf(&b, "<property><name>%s</name><value>%s</value></property>\n", k, v)
	}
	b.WriteString("</configuration>\n")
	if err := os.WriteFile(filepath.Join(dir, "hbase-site.xml"), []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

// first returns the file of a directory that a pattern names.
func first(t *testing.T, dir, pattern string) string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(list) == 0 {
		t.Fatalf("there is no %s in %s: %v", pattern, dir, err)
	}
	return list[0]
}

// startHBase runs HBase as one process, with its log synced to disk, and
// returns the address of its ZooKeeper and its process id.
func startHBase(t *testing.T) (zookeeper string, pid int) {
	t.Helper()
	return startHBaseOf(t, jars(t, "server"), nil)
}

// startHBaseOf is startHBase of other jars, with more settings.
func startHBaseOf(t *testing.T, jars string, more map[string]string) (zookeeper string, pid int) {
	t.Helper()
	dir := t.TempDir()
	host, err := loopback.TakeLocal()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = host.Close() })
	port := func() string {
		at, err := host.Addr()
		if err != nil {
			t.Fatal(err)
		}
		_, p, _ := net.SplitHostPort(at)
		return p
	}
	zk := port()
	settings := map[string]string{
		"hbase.cluster.distributed": "false", "hbase.rootdir": "file://" + dir + "/hbase", "hbase.tmp.dir": dir + "/tmp",
		"hbase.zookeeper.property.dataDir": dir + "/zk", "hbase.zookeeper.property.clientPort": zk, "hbase.zookeeper.quorum": "127.0.0.1",
		"hbase.unsafe.stream.capability.enforce": "false", "hbase.wal.hsync": "true",
		"hbase.master.port": port(), "hbase.regionserver.port": port(), "hbase.master.info.port": "-1", "hbase.regionserver.info.port": "-1",
		"hbase.master.hostname": "localhost", "hbase.regionserver.hostname": "localhost",
		"hbase.master.ipc.address": "127.0.0.1", "hbase.regionserver.ipc.address": "127.0.0.1",
		"hbase.localcluster.assign.random.ports": "false",
	}
	maps.Copy(settings, more)
	configuration(t, dir, settings)
	out, err := os.Create(filepath.Join(dir, "out.log"))
	if err != nil {
		t.Fatal(err)
	}
	args := javaFlags
	if *heap != "" {
		args = append([]string{"-Xmx" + *heap}, args...)
	}
	cmd := exec.CommandContext(context.Background(), "java", append(args, "-cp", dir+":"+jars+"/*", "org.apache.hadoop.hbase.master.HMaster", "start")...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = out, out, dir
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = out.Close()
	})
	zookeeper = "127.0.0.1:" + zk
	deadline := time.Now().Add(2 * time.Minute)
	for {
		if table(t.Context(), zookeeper, "ready") == nil {
			return zookeeper, cmd.Process.Pid
		}
		if time.Now().After(deadline) {
			log, _ := os.ReadFile(out.Name())
			t.Fatalf("HBase does not serve: %s", log[max(len(log)-2000, 0):])
		}
		time.Sleep(time.Second)
	}
}

// table makes a table with the family f.
func table(ctx context.Context, zookeeper, name string) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	c := gohbase.NewAdminClient(zookeeper)
	return c.CreateTable(hrpc.NewCreateTable(ctx, []byte(name), map[string]map[string]string{"f": nil}))
}
