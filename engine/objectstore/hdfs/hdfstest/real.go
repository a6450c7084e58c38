package hdfstest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/trestledb/trestle/engine/loopback"
	"github.com/trestledb/trestle/engine/objectstore/hdfs"
)

// Jars is the environment variable that names a directory with the jars of an
// HDFS. testdata/fetch.sh fills one.
const Jars = "TRESTLE_TEST_HDFS"

// A Cluster is a real HDFS on loopback: a NameNode and a DataNode.
type Cluster struct {
	t        testing.TB
	dir      string
	jars     string
	user     string
	addr     map[string]string
	nameNode *exec.Cmd
	dataNode *exec.Cmd
}

// FastClose are the properties that keep a DataNode from sleeping for 400 ms
// whenever the NameNode has not heard yet that the last block of a file is there.
var FastClose = []string{"dfs.client.block.write.locateFollowingBlock.initial.delay.ms", "5"}

// Real starts an HDFS with the jars that the environment names, and skips the
// test if it names none. Names and values of more properties may be given.
func Real(t testing.TB, properties ...string) *Cluster {
	t.Helper()
	jars := os.Getenv(Jars)
	if jars == "" {
		t.Skipf("%s does not name a directory with the jars of HDFS (make hdfs)", Jars)
	}
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	c := &Cluster{t: t, dir: t.TempDir(), jars: jars, user: me.Username, addr: map[string]string{}}
	// A NameNode takes the address that a DataNode calls from for the one it
	// listens on.
	host, err := loopback.TakeLocal()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = host.Close() })
	for _, what := range []string{"rpc", "http", "data", "data-http", "data-ipc"} {
		if c.addr[what], err = host.Addr(); err != nil {
			t.Fatal(err)
		}
	}
	c.configure(properties)
	if out, err := c.java("namenode.NameNode", "-format", "-nonInteractive").CombinedOutput(); err != nil {
		t.Fatalf("format: %v\n%s", err, out)
	}
	t.Cleanup(func() {
		c.KillDataNode()
		c.KillNameNode()
	})
	c.StartNameNode()
	c.StartDataNode()
	c.Wait()
	return c
}

func (c *Cluster) configure(more []string) {
	for _, d := range []string{"webapps/hdfs", "webapps/datanode", "webapps/static"} {
		if err := os.MkdirAll(filepath.Join(c.dir, "conf", d), 0o755); err != nil {
			c.t.Fatal(err)
		}
	}
	site := func(file string, properties ...string) {
		var b strings.Builder
		b.WriteString("<configuration>\n")
		for i := 0; i < len(properties); i += 2 {
			fmt.Fprintf(&b, "<property><name>%s</name><value>%s</value></property>\n", properties[i], properties[i+1])
		}
		b.WriteString("</configuration>\n")
		if err := os.WriteFile(filepath.Join(c.dir, "conf", file), []byte(b.String()), 0o644); err != nil {
			c.t.Fatal(err)
		}
	}
	site("core-site.xml",
		"fs.defaultFS", "hdfs://"+c.addr["rpc"],
		"hadoop.tmp.dir", c.dir+"/tmp")
	site("hdfs-site.xml", append([]string{
		"dfs.replication", "1",
		"dfs.namenode.name.dir", "file://" + c.dir + "/name",
		"dfs.datanode.data.dir", "file://" + c.dir + "/data",
		"dfs.namenode.rpc-address", c.addr["rpc"],
		"dfs.namenode.http-address", c.addr["http"],
		"dfs.datanode.address", c.addr["data"],
		"dfs.datanode.http.address", c.addr["data-http"],
		"dfs.datanode.ipc.address", c.addr["data-ipc"],
		"dfs.datanode.hostname", "127.0.0.1",
		"dfs.namenode.safemode.extension", "0",
		"dfs.heartbeat.interval", "1s"}, more...)...)
	log := "log4j.rootLogger=WARN,stderr\nlog4j.appender.stderr=org.apache.log4j.ConsoleAppender\n" +
		"log4j.appender.stderr.target=System.err\nlog4j.appender.stderr.layout=org.apache.log4j.PatternLayout\n" +
		"log4j.appender.stderr.layout.ConversionPattern=%d %p %c: %m%n\n"
	if err := os.WriteFile(filepath.Join(c.dir, "conf", "log4j.properties"), []byte(log), 0o644); err != nil {
		c.t.Fatal(err)
	}
}

func (c *Cluster) java(class string, args ...string) *exec.Cmd {
	jvm := []string{"-Xmx512m", "-XX:+UseSerialGC", "--add-opens", "java.base/java.lang=ALL-UNNAMED"}
	if _, ok := c.t.(*testing.B); !ok {
		jvm = append(jvm, "-XX:TieredStopAtLevel=1") // for a start in half the time
	}
	jvm = append(jvm, "-cp", filepath.Join(c.dir, "conf")+":"+c.jars+"/*", "org.apache.hadoop.hdfs.server."+class)
	return exec.Command("java", append(jvm, args...)...)
}

func (c *Cluster) start(class string) *exec.Cmd {
	out, err := os.OpenFile(filepath.Join(c.dir, class+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		c.t.Fatal(err)
	}
	defer out.Close()
	cmd := c.java(class)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	return cmd
}

func kill(cmd **exec.Cmd) {
	if *cmd != nil {
		_ = (*cmd).Process.Kill()
		_ = (*cmd).Wait()
		*cmd = nil
	}
}

// StartNameNode starts the NameNode. It serves after some seconds.
func (c *Cluster) StartNameNode() { c.nameNode = c.start("namenode.NameNode") }

// StartDataNode starts the DataNode.
func (c *Cluster) StartDataNode() { c.dataNode = c.start("datanode.DataNode") }

// KillNameNode kills the NameNode with SIGKILL.
func (c *Cluster) KillNameNode() { kill(&c.nameNode) }

// KillDataNode kills the DataNode with SIGKILL.
func (c *Cluster) KillDataNode() { kill(&c.dataNode) }

// DataNode returns the process of the DataNode.
func (c *Cluster) DataNode() *os.Process { return c.dataNode.Process }

// NameNode returns the process of the NameNode.
func (c *Cluster) NameNode() *os.Process { return c.nameNode.Process }

// Options returns those of a store in the directory dir.
func (c *Cluster) Options(dir string) hdfs.Options {
	return hdfs.Options{NameNodes: []string{c.addr["http"]}, Insecure: true, User: c.user, Dir: dir}
}

// Wait returns when files can be stored.
func (c *Cluster) Wait() {
	c.t.Helper()
	var err error
	for start := time.Now(); time.Since(start) < 3*time.Minute; time.Sleep(200 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		var s *hdfs.Store
		if s, err = hdfs.Open(ctx, c.Options("/ready")); err == nil {
			name := fmt.Sprint(start.UnixNano())
			if err = s.PutIfAbsent(ctx, name, nil); err == nil {
				err = s.PutIfAbsent(ctx, name+"-data", []byte("x"))
			}
		}
		cancel()
		if err == nil {
			return
		}
	}
	for _, class := range []string{"namenode.NameNode", "datanode.DataNode"} {
		b, _ := os.ReadFile(filepath.Join(c.dir, class+".log"))
		c.t.Logf("%s: %s", class, b[max(0, len(b)-4000):])
	}
	c.t.Fatalf("HDFS does not store: %v", err)
}
