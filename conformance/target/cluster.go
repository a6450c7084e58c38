package target

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/trestledb/trestle/engine/loopback"
)

// ClusterOptions say what StartCluster starts.
type ClusterOptions struct {
	// Binary is trestle.
	Binary string
	// Dir is the data directory.
	Dir string
	// Listen is where the first tablet server serves gRPC; the ports of the others
	// follow, and etcd's come before. Empty means an address of the cluster's own.
	Listen string
	// Servers is the number of tablet servers. Zero means 3.
	Servers int
	// Gateways is the number of processes that answer without serving tablets.
	Gateways int
	// HBase serves HBase's clients too.
	HBase bool
	// Args are further flags of each tablet server and gateway.
	Args []string
	// TTL is the time after which a server that is not heard of is given up, and
	// ends. Zero means what is usual for dev-cluster.
	TTL time.Duration
	// Ready is how long the cluster may take until it serves. Zero means three minutes.
	Ready time.Duration
}

// A Cluster is a running `trestle dev-cluster`: etcd, two masters, tablet servers
// and gateways, which are started again when they end.
type Cluster struct {
	// Addrs are where the tablet servers, then the gateways, serve gRPC, HTTP where
	// REST and metrics, HBase where HBase's RPC, and ZooKeeper where its clients find
	// them; the latter two are empty without ClusterOptions.HBase. Each answers for
	// all rows.
	Addrs, HTTP, HBase, ZooKeeper []string
	// Etcd is the URL of the lock service, Dir the data directory.
	Etcd, Dir string

	child
	servers int // without gateways
	mu      struct {
		sync.Mutex
		pids   map[string]int  // by the name of the process
		killed map[string]bool // by KillServer or with leave, and not ended yet
		ended  []error         // processes that ended though nobody had killed them
	}
}

// StartCluster runs a cluster on a loopback address of its own and returns when
// it serves. ctx ends the wait only.
func StartCluster(ctx context.Context, o ClusterOptions) (*Cluster, error) {
	if o.Servers == 0 {
		o.Servers = 3
	}
	if o.Ready == 0 {
		o.Ready = 3 * time.Minute
	}
	c, all := &Cluster{Dir: o.Dir, servers: o.Servers}, o.Servers+o.Gateways
	c.mu.pids, c.mu.killed = map[string]int{}, map[string]bool{}
	var ip string
	var first int
	if o.Listen != "" {
		host, port, err := net.SplitHostPort(o.Listen)
		if err != nil {
			return nil, err
		}
		ip = host
		if first, err = strconv.Atoi(port); err != nil {
			return nil, fmt.Errorf("port of %s: %w", o.Listen, err)
		}
	} else {
		host, err := loopback.Take()
		if err != nil {
			return nil, err
		}
		ip, c.end = host.IP, func() { _ = host.Close() }
		// Two ports of etcd, then five of each process, 10 apart.
		if first, err = host.Ports(2 + 10*(all-1) + 5); err != nil {
			c.end()
			return nil, err
		}
		first += 2
	}
	at := func(server, n int) string { return net.JoinHostPort(ip, strconv.Itoa(first+10*server+n)) }
	c.Etcd = "http://" + at(0, -2)
	args := []string{"dev-cluster", "--dir", o.Dir, "--servers", strconv.Itoa(o.Servers), "--gateways", strconv.Itoa(o.Gateways),
		"--host", ip, "--port", strconv.Itoa(first), "--memory=2GiB"} // for requests of 100 MiB
	for i := range all {
		c.Addrs, c.HTTP = append(c.Addrs, at(i, 0)), append(c.HTTP, at(i, 1))
		if o.HBase {
			c.HBase, c.ZooKeeper = append(c.HBase, at(i, 3)), append(c.ZooKeeper, at(i, 4))
		}
	}
	if o.HBase {
		args = append(args, "--hbase")
	}
	if o.TTL > 0 {
		args = append(args, "--ttl", o.TTL.String())
	}
	ready := make(chan struct{})
	announce := sync.OnceFunc(func() { close(ready) })
	err := c.start(func(line string) {
		if name, pid, ok := strings.Cut(line, " is process "); ok {
			if n, err := strconv.Atoi(pid); err == nil {
				c.mu.Lock()
				c.mu.pids[name] = n
				c.mu.Unlock()
			}
		} else if name, _, ok := strings.Cut(line, " has ended"); ok {
			c.mu.Lock()
			delete(c.mu.pids, name)
			if !c.mu.killed[name] {
				c.mu.ended = append(c.mu.ended, errors.New(line))
			}
			delete(c.mu.killed, name)
			c.mu.Unlock()
		} else if line == announcedCluster {
			announce()
		}
	}, o.Binary, append(append(args, "--"), o.Args...)...)
	if err != nil {
		if c.end != nil {
			c.end()
		}
		return nil, err
	}
	if err := c.wait(ctx, ready, o.Ready); err != nil {
		return nil, err
	}
	return c, nil
}

// announcedCluster is what a cluster prints when it serves.
const announcedCluster = "the cluster serves"

// Pid returns the process id of a tablet server or gateway, 0 if it does not run.
// They are numbered as in Addrs.
func (c *Cluster) Pid(i int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.pids[c.name(i)]
}

func (c *Cluster) name(i int) string {
	if i >= c.servers {
		return fmt.Sprintf("gateway-%d", i-c.servers+1)
	}
	return fmt.Sprintf("server-%d", i+1)
}

// MayEnd says that somebody may end a tablet server or gateway once.
func (c *Cluster) MayEnd(i int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.killed[c.name(i)] = true
}

// KillServer sends SIGKILL to a tablet server or gateway, which is started again.
func (c *Cluster) KillServer(i int) error {
	name := c.name(i)
	c.mu.Lock()
	defer c.mu.Unlock()
	pid := c.mu.pids[name]
	if pid == 0 {
		return fmt.Errorf("%s does not run", name)
	}
	c.mu.killed[name] = true
	return syscall.Kill(pid, syscall.SIGKILL)
}

// Ended returns an error if a process has ended that nobody was said to end: it
// was started again, and nobody would notice what it stopped for.
func (c *Cluster) Ended() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return errors.Join(c.mu.ended...)
}

// Stop sends SIGTERM and waits for a clean exit; after timeout it kills. What
// Ended returns is an error then too.
func (c *Cluster) Stop(timeout time.Duration) error {
	err := c.child.Stop(timeout)
	return errors.Join(c.Ended(), err)
}

// Check holds METADATA against the tables and the store, every byte of which it
// reads, and returns a summary.
func (c *Cluster) Check(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, c.cmd.Path, "check", "--online", "--blocks", "--rate=0", "--cluster=dev", "--etcd="+c.Etcd,
		"--store=file://"+filepath.Join(c.Dir, "store"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("trestle check: %w\n%s", err, out)
	}
	return string(out), err
}

// ServeCluster starts a cluster of the binary that the environment names, and
// stops it at the end of the test. The zero Binary and Dir of o mean that
// binary, and a directory of the test.
func ServeCluster(t testing.TB, o ClusterOptions) *Cluster {
	t.Helper()
	if o.Binary == "" {
		o.Binary = os.Getenv(BinaryEnv)
	}
	if o.Binary == "" {
		t.Fatalf("%s is set, %s is not", ClusterEnv, BinaryEnv)
	}
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	c, err := StartCluster(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(time.Minute); err != nil {
			t.Errorf("stop the cluster: %v\n%s", err, c.Log())
		} else if t.Failed() {
			t.Logf("the cluster's log:\n%s", c.Log())
		}
	})
	return c
}
