package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/trestledb/trestle/cluster/node"
	"github.com/trestledb/trestle/cmd/trestle/internal/settings"
	"github.com/trestledb/trestle/gateway/auth/servertls"
)

const devClusterHelp = `Runs a cluster for development and tests: etcd, two masters and some tablet
servers, each a process of its own that can be killed. Everything listens on a
loopback address only. FLAGS are further ones of each tablet server and gateway.`

// devClusterCommand runs a whole cluster on this machine: etcd in this process, a
// pair of masters and the tablet servers as children, which are started again when
// they end.
func devClusterCommand(p *process) *cobra.Command {
	f := pflag.NewFlagSet("dev-cluster", pflag.ContinueOnError)
	f.SortFlags = false
	dir := f.String("dir", "", "directory that holds all data; empty for a temporary one")
	servers := f.Int("servers", 3, "tablet servers")
	gateways := f.Int("gateways", 0, "processes that answer clients without serving tablets")
	host := f.IP("host", net.IPv4(127, 0, 0, 1), "loopback address that everything listens on")
	port := f.Int("port", 8086, "port of the first tablet server's Bigtable API; each server takes three ports from here on, 10 apart, then each gateway, and etcd two below")
	hbase := f.Bool("hbase", false, "serve HBase's clients too, and those that look for ZooKeeper: each server takes two ports more")
	ttl := f.Duration("ttl", 2*time.Second, "time after which a server that is not heard of is given up")
	memory := f.String("memory", "512MiB", "memory of each tablet server; a request may have a fifteenth")
	return p.verb("dev-cluster [--] [FLAGS...]", "run a whole cluster on this machine, each server a process", devClusterHelp, f, func(c *cobra.Command, more []string) int {
		if len(more) > 0 && c.ArgsLenAtDash() != 0 {
			return p.misused(fmt.Errorf("%q is no flag; flags of the processes follow --", more[0]))
		}
		d := &devRun{p: p, dir: *dir, host: host.String(), port: *port, hbase: *hbase, ttl: *ttl, memory: *memory, more: more}
		return d.start(*host, *servers, *gateways)
	})
}

// start checks what was asked for, and runs it until a signal ends it.
func (d *devRun) start(host net.IP, servers, gateways int) int {
	p := d.p
	if servers < 1 || servers > 50 || gateways < 0 || gateways > 50 {
		return p.misused(fmt.Errorf("%d servers are not between 1 and 50, or %d gateways not between 0 and 50", servers, gateways))
	}
	if !host.IsLoopback() {
		return p.misused(fmt.Errorf("--host %s is no loopback address", host))
	}
	log := newLogger(p.stderr, settings.Text, slog.LevelWarn)
	ctx, release := untilSignal(log, leaveLimit)
	defer release()
	if d.dir == "" {
		dir, err := os.MkdirTemp("", "trestle-cluster-")
		if err != nil {
			return p.failed(err)
		}
		defer atExit(func() { _ = os.RemoveAll(dir) })()
		d.dir = dir
	}
	d.dir = absolute(d.dir)
	if err := d.run(ctx, servers, gateways); err != nil {
		return p.failed(err)
	}
	return exitOK
}

type devRun struct {
	p      *process
	dir    string
	host   string
	port   int
	hbase  bool
	ttl    time.Duration
	memory string
	more   []string // flags of tablet servers and gateways
	etcd   string
}

// at returns the address of a port.
func (d *devRun) at(port int) string { return net.JoinHostPort(d.host, strconv.Itoa(port)) }

func (d *devRun) run(ctx context.Context, servers, gateways int) error {
	e, err := startEtcd(filepath.Join(d.dir, "etcd"), d.at(d.port-2), d.at(d.port-1))
	if err != nil {
		return err
	}
	defer e.Close()
	d.etcd = "http://" + e.Clients[0].Addr().String()
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	common := []string{"--etcd=" + d.etcd, "--cluster=dev", "--ttl=" + d.ttl.String(), "--log-level=warn", "--memory=" + d.memory}
	// Children end before etcd does: they hand over their tablets.
	var running sync.WaitGroup
	mastersEnd, stopMasters := context.WithCancel(context.WithoutCancel(ctx))
	defer stopMasters()
	var masters, starting sync.WaitGroup
	for i := range 2 {
		name := fmt.Sprintf("master-%d", i+1)
		masters.Go(func() {
			d.keep(mastersEnd, nil, exe, name, append([]string{"master", "--name=" + name, "--http-listen=off", "--data-dir=" + filepath.Join(d.dir, name), "--store=" + node.FileURL(filepath.Join(d.dir, "store"))}, common...))
		})
	}
	for i := range servers + gateways {
		at := func(n int) string { return d.at(d.port + 10*i + n) }
		name := processName(i, servers)
		args := []string{"tabletserver", "--name=" + name, "--cluster-listen=" + at(2), "--store=" + node.FileURL(filepath.Join(d.dir, "store"))}
		if i >= servers {
			args = []string{"gateway"}
		}
		args = append(append(args, "--emulator", "--data-dir="+filepath.Join(d.dir, name), "--listen="+at(0), "--http-listen="+at(1)), common...)
		if d.hbase {
			args = append(args, "--hbase-listen="+at(3), "--hbase-zookeeper-listen="+at(4), "--hbase-instance=p/i")
		}
		starting.Add(1)
		running.Go(func() { d.keep(ctx, sync.OnceFunc(starting.Done), exe, name, append(args, d.more...)) })
	}
	d.p.sayf("cluster dev: %d tablet servers, %d gateways, two masters, etcd at %s, data in %s\n\n", servers, gateways, d.etcd, d.dir)
	running.Go(func() {
		starting.Wait()
		d.announce(ctx, exe, servers, gateways)
	})
	<-ctx.Done()
	running.Wait()
	stopMasters()
	masters.Wait()
	return nil
}

// processName names a tablet server, or after so many of them a gateway.
func processName(i, servers int) string {
	if i >= servers {
		return fmt.Sprintf("gateway-%d", i-servers+1)
	}
	return fmt.Sprintf("server-%d", i+1)
}

func (p *process) sayf(format string, args ...any) { fmt.Fprintf(p.stdout, format, args...) }

// announce says so when the cluster can be used: its servers serve, and METADATA
// can be read, which takes a master.
func (d *devRun) announce(ctx context.Context, exe string, servers, gateways int) {
	for ctx.Err() == nil {
		cmd := exec.CommandContext(ctx, exe, "cluster", "status", "--etcd="+d.etcd, "--cluster=dev")
		cmd.SysProcAttr = childAttr()
		if cmd.Run() == nil {
			d.p.sayf("the cluster serves\n\n")
			d.tellNext(d.secrets(servers, gateways))
			return
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// secrets returns what clients need if the servers were told to ask for TLS or login: the
// authority of all, and the first key, which one of them has made.
func (d *devRun) secrets(servers, gateways int) (ca, key string) {
	found := func(path, before string) string {
		if _, err := os.Stat(path); err != nil || before != "" {
			return before
		}
		return path
	}
	for i := range servers + gateways {
		cfg := &settings.Serve{DataDir: filepath.Join(d.dir, processName(i, servers))}
		ca, key = found(autoTLS(cfg).CA(), ca), found(rootKey(cfg), key)
	}
	return ca, key
}

// tellNext says what can be typed, now that it works.
func (d *devRun) tellNext(ca, key string) {
	at, cbt := d.at(d.port), "cbt -project p -instance i"
	d.p.sayf("Type next, in another terminal:\n\n")
	if ca == "" && key == "" {
		d.p.sayf("  export BIGTABLE_EMULATOR_HOST=%s   # any server will do: they are 10 ports apart\n", at)
	} else {
		reach := "-admin-endpoint " + at + " -data-endpoint " + at
		if ca != "" {
			d.p.sayf("  export SSL_CERT_FILE=%s   # the authority of all\n", servertls.Quote(ca))
		}
		if key != "" {
			d.p.sayf("  export GOOGLE_APPLICATION_CREDENTIALS=%s   # of an account that may do everything\n", servertls.Quote(key))
			reach += ` -creds "$GOOGLE_APPLICATION_CREDENTIALS"`
		}
		d.p.sayf("  alias bt='cbt %s -project p -instance i'\n", reach)
		cbt = "bt"
	}
	d.p.sayf("  %s createtable t families=f\n  %[1]s set t row f:q=value\n  %[1]s read t\n", cbt)
	d.p.sayf("  trestle cluster status --cluster dev --etcd %s\n  kill -9 PID                                   # of a server, as told above; it is started again\n", d.etcd)
	if d.hbase {
		d.p.sayf("\n  hbase.zookeeper.quorum: %s            # as for any server\n", d.at(d.port+4))
	}
}

// keep runs a process until ctx ends, again when it has ended. served, if not
// nil, is called each time that it serves clients, and at the end.
func (d *devRun) keep(ctx context.Context, served func(), exe, name string, args []string) {
	if served == nil {
		served = func() {}
	}
	defer served()
	for ctx.Err() == nil {
		cmd := exec.Command(exe, args...)
		cmd.Env = os.Environ()
		cmd.Stderr = d.p.stderr
		cmd.SysProcAttr = ownGroup(childAttr())
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			d.p.report(err)
			return
		}
		d.p.sayf("%s is process %d\n", name, cmd.Process.Pid)
		ended := make(chan error, 1)
		go func() {
			for in := bufio.NewScanner(out); in.Scan(); {
				if strings.HasPrefix(in.Text(), announcedAPI) {
					served()
				}
			}
			_, _ = io.Copy(io.Discard, out)
			ended <- cmd.Wait()
		}()
		select {
		case err := <-ended:
			if err == nil {
				err = errors.New("exit code 0")
			}
			d.p.sayf("%s has ended: %v\n", name, err)
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		case <-ctx.Done():
			_ = cmd.Process.Signal(syscall.SIGTERM)
			if err := <-ended; err != nil {
				d.p.sayf("%s has ended: %v\n", name, err)
			}
		}
	}
}

// startEtcd runs an etcd of one member in this process.
func startEtcd(dir string, client, peer string) (*embed.Etcd, error) {
	c := embed.NewConfig()
	c.Dir = dir
	c.LogLevel = "fatal" // it shouts when it is closed
	local := func(host string) []url.URL { return []url.URL{{Scheme: "http", Host: host}} }
	c.ListenClientUrls, c.AdvertiseClientUrls = local(client), local(client)
	c.ListenPeerUrls, c.AdvertisePeerUrls = local(peer), local(peer)
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	e, err := embed.StartEtcd(c)
	if err != nil {
		return nil, fmt.Errorf("start etcd: %w", err)
	}
	select {
	case <-e.Server.ReadyNotify():
		return e, nil
	case err := <-e.Err():
		e.Close()
		return nil, fmt.Errorf("start etcd: %w", err)
	case <-time.After(30 * time.Second):
		e.Close()
		return nil, errors.New("etcd does not get ready")
	}
}
