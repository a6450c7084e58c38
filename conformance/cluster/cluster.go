package cluster

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/trestledb/trestle/cluster/node"
	"github.com/trestledb/trestle/engine/loopback"
)

// What the store is.
const (
	// Memory is a process that speaks S3 and keeps objects in memory.
	Memory = "memory"
	// Careless is Memory that ignores the condition of a PUT.
	Careless = "careless"
	// Directory is a directory that all processes share.
	Directory = "directory"
	// Anything else is the path of a MinIO program.
)

const (
	bucket = "trestle"
	key    = "trestle-test-key"
	secret = "trestle-test-secret"
)

// DefaultTTL is that of sessions by Trestle's own settings: processes with it are
// not told of it.
const DefaultTTL = 5 * time.Second

// Options say what Start starts.
type Options struct {
	// Trestle is the program.
	Trestle string
	// Dir is where everything lies.
	Dir string
	// Servers is the number of tablet servers, Masters that of masters. Zero means
	// 3 and 2.
	Servers, Masters int
	// Store is what the store is. Empty means Memory.
	Store string
	// Etcd is the path of an etcd program. Empty means Main's. Members is how many
	// there are of it; zero means 1.
	Etcd    string
	Members int
	// Network, if not nil, has a host for each process.
	Network *Network
	// Host is where all processes are if there is no Network. The cluster closes
	// it. Nil means one of its own.
	Host *loopback.Host
	// TTL of sessions. Zero means 2 s.
	TTL time.Duration
	// Security, if not nil, gives certificates to all, and makes clients log in.
	Security *Security
	// Args are further flags of tablet servers, GatewayArgs of the gateway.
	Args, GatewayArgs []string
	// Fill, if not nil, is called when etcd and the store run, and nothing else does.
	Fill func(*Cluster) error
}

// A Cluster is the processes of a cluster.
type Cluster struct {
	o                      Options
	Store, Gateway         *Process // Store is nil if it is a directory
	Etcd, Masters, Servers []*Process

	etcdURLs, storeURL string
	addrs              map[string]string // by process and service
}

// newCluster is a cluster none of whose processes run yet.
func newCluster(o Options) (*Cluster, error) {
	if o.Servers == 0 {
		o.Servers = 3
	}
	if o.Masters == 0 {
		o.Masters = 2
	}
	if o.Members == 0 {
		o.Members = 1
	}
	if o.Store == "" {
		o.Store = Memory
	}
	if o.TTL == 0 {
		o.TTL = 2 * time.Second
	}
	c := &Cluster{o: o, addrs: map[string]string{}}
	var err error
	if o.Network == nil && o.Host == nil {
		c.o.Host, err = loopback.Take()
	}
	return c, err
}

// Start starts everything and returns when it serves. The caller closes the
// cluster even after an error.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	c, err := newCluster(o)
	if err != nil {
		return c, err
	}
	if err := c.start(); err != nil {
		return c, err
	}
	for limit := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		st, err := c.Status(ctx)
		if err == nil && st.Master != "" && len(st.Servers) == c.o.Servers {
			return c, nil
		}
		if time.Now().After(limit) {
			return c, fmt.Errorf("the cluster does not come to life: %+v, %w", st, err)
		}
	}
}

func (c *Cluster) start() error {
	if err := c.startEtcd(); err != nil {
		return err
	}
	if err := c.startStore(); err != nil {
		return err
	}
	if c.o.Fill != nil {
		if err := c.o.Fill(c); err != nil {
			return err
		}
	}
	var err error
	for i := range c.o.Masters {
		p, e := c.trestle(fmt.Sprintf("master-%d", i+1), "", "master", "--http-listen=off", "--store="+c.storeURL)
		c.Masters, err = append(c.Masters, p), errors.Join(err, e)
	}
	for i := range c.o.Servers {
		p, e := c.trestle(fmt.Sprintf("server-%d", i+1), announced, "tabletserver", append([]string{"--store=" + c.storeURL}, c.o.Args...)...)
		c.Servers, err = append(c.Servers, p), errors.Join(err, e)
	}
	if err != nil {
		return err
	}
	for _, p := range c.Servers {
		if err := p.Ready(time.Minute); err != nil {
			return err
		}
	}
	if c.Gateway, err = c.trestle("gateway-1", announced, "gateway", c.o.GatewayArgs...); err != nil {
		return err
	}
	return c.Gateway.Ready(time.Minute)
}

// announced begins the line that a server prints when it serves.
const announced = "Bigtable gRPC API"

// host returns where a process called name is, and the namespace, if any.
func (c *Cluster) host(name string) (addr, namespace string, err error) {
	if c.o.Network == nil {
		return c.o.Host.IP, "", nil
	}
	namespace, addr, err = c.o.Network.Host(name)
	return addr, namespace, err
}

// at returns the address of a service: the same for a service of a process as
// long as the cluster lives.
func (c *Cluster) at(host, process, service string, usual int) (string, error) {
	if c.o.Network != nil {
		return net.JoinHostPort(host, strconv.Itoa(usual)), nil
	}
	k := process + " " + service
	if c.addrs[k] == "" {
		var err error
		if c.addrs[k], err = c.o.Host.Addr(); err != nil {
			return "", err
		}
	}
	return c.addrs[k], nil
}

func (c *Cluster) startEtcd() error {
	type member struct{ name, host, namespace, client, peer string }
	var all []member
	var urls, peers []string
	scheme := "http"
	var files []string
	if s := c.o.Security; s != nil {
		scheme, files = "https", []string{s.Cert, s.Key, s.CA}
	}
	for i := range c.o.Members {
		m := member{name: "etcd"}
		if i > 0 {
			m.name += fmt.Sprintf("-%d", i+1)
		}
		var errs [3]error
		m.host, m.namespace, errs[0] = c.host(m.name)
		m.client, errs[1] = c.at(m.host, m.name, "client", 2379)
		m.peer, errs[2] = c.at(m.host, m.name, "peer", 2380)
		if err := errors.Join(errs[:]...); err != nil {
			return err
		}
		m.client, m.peer = scheme+"://"+m.client, "http://"+m.peer
		all, urls, peers = append(all, m), append(urls, m.client), append(peers, m.name+"="+m.peer)
	}
	c.etcdURLs = strings.Join(urls, ",")
	initial := strings.Join(peers, ",")
	for _, m := range all {
		dir := filepath.Join(c.o.Dir, m.name)
		var p *Process
		if c.o.Etcd == "" {
			exe, err := os.Executable()
			if err != nil {
				return err
			}
			p = newProcess(m.name, m.host, m.namespace, c.o.Dir, ready, exe, []string{actAs + "=etcd"}, append([]string{m.name, dir, m.client, m.peer, initial}, files...)...)
		} else {
			args := []string{"--name", m.name, "--data-dir", dir, "--log-level=error", "--listen-client-urls", m.client, "--advertise-client-urls", m.client,
				"--listen-peer-urls", m.peer, "--initial-advertise-peer-urls", m.peer, "--initial-cluster", initial}
			if files != nil {
				args = append(args, "--cert-file", files[0], "--key-file", files[1], "--trusted-ca-file", files[2], "--client-cert-auth")
			}
			p = newProcess(m.name, m.host, m.namespace, c.o.Dir, "", c.o.Etcd, nil, args...)
		}
		c.Etcd = append(c.Etcd, p)
		if err := p.Start(); err != nil {
			return err
		}
	}
	for _, p := range c.Etcd {
		if err := p.Ready(time.Minute); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) startStore() error {
	if c.o.Store == Directory {
		c.storeURL = node.FileURL(filepath.Join(c.o.Dir, "store"))
		return nil
	}
	host, ns, err := c.host("store")
	if err != nil {
		return err
	}
	addr, err := c.at(host, "store", "s3", 9000)
	if err != nil {
		return err
	}
	c.storeURL = "s3://" + bucket + "/data?endpoint=" + addr + "&insecure=true"
	switch c.o.Store {
	case Memory, Careless:
		exe, err := os.Executable()
		if err != nil {
			return err
		}
		as := "s3"
		if c.o.Store == Careless {
			as = "careless-s3"
		}
		c.Store = newProcess("store", host, ns, c.o.Dir, ready, exe, []string{actAs + "=" + as}, addr)
	default:
		// MinIO takes a directory of its drive for a bucket.
		drive := filepath.Join(c.o.Dir, "minio")
		if err := os.MkdirAll(filepath.Join(drive, bucket), 0o755); err != nil {
			return err
		}
		console, err := c.at(host, "store", "console", 9001)
		if err != nil {
			return err
		}
		args := []string{"server", "--quiet", "--address", addr, "--console-address", console}
		if s := c.o.Security; s != nil {
			certs := filepath.Join(c.o.Dir, "minio-certs")
			if err := os.MkdirAll(filepath.Join(certs, "CAs"), 0o755); err != nil {
				return err
			}
			for from, to := range map[string]string{s.Cert: "public.crt", s.Key: "private.key", s.CA: "CAs/ca.crt"} {
				b, err := os.ReadFile(from)
				if err != nil {
					return err
				}
				if err := os.WriteFile(filepath.Join(certs, to), b, 0o600); err != nil {
					return err
				}
			}
			args = append(args, "--certs-dir", certs)
			c.storeURL = "s3://" + bucket + "/data?endpoint=" + addr
		}
		c.Store = newProcess("store", host, ns, c.o.Dir, "", c.o.Store,
			[]string{"MINIO_ROOT_USER=" + key, "MINIO_ROOT_PASSWORD=" + secret, "MINIO_UPDATE=off", "MINIO_BROWSER=off",
				"MINIO_PROMETHEUS_AUTH_TYPE=public"}, append(args, drive)...)
	}
	if err := c.Store.Start(); err != nil {
		return err
	}
	if err := c.Store.Ready(time.Minute); err != nil {
		return err
	}
	for limit := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if conn, err := net.DialTimeout("tcp", addr, time.Second); err == nil {
			return conn.Close()
		} else if time.Now().After(limit) {
			return fmt.Errorf("the store does not answer: %w\n%s", err, c.Store.Log(4<<10))
		}
	}
}

// trestle starts a process of the cluster.
func (c *Cluster) trestle(name, ready, role string, more ...string) (*Process, error) {
	host, ns, err := c.host(name)
	if err != nil {
		return nil, err
	}
	args := append([]string{role, "--etcd=" + c.etcdURLs, "--cluster=test", "--memory=128MiB", "--data-dir=" + filepath.Join(c.o.Dir, name)}, more...)
	if c.o.TTL != DefaultTTL {
		args = append(args, "--ttl="+c.o.TTL.String())
	}
	if role != "gateway" {
		args = append(args, "--name="+name)
	}
	at := func(flag, service string, usual int) {
		addr, e := c.at(host, name, service, usual)
		err = errors.Join(err, e)
		args = append(args, "--"+flag+"="+addr)
	}
	if role == "tabletserver" {
		at("cluster-listen", "cluster", 8085)
	}
	if role != "master" {
		at("listen", "api", 8086)
		at("http-listen", "http", 8087)
	}
	if err != nil {
		return nil, err
	}
	if c.o.Security != nil {
		args = append(args, c.o.Security.flags()...)
		if role != "master" {
			args = append(args, "--tls-cert="+c.o.Security.Cert, "--tls-key="+c.o.Security.Key, "--auth=on", "--audit-log=off")
		}
	} else {
		args = append(args, "--insecure")
		if role != "master" {
			args = append(args, "--emulator")
		}
	}
	p := newProcess(name, host, ns, c.o.Dir, ready, c.o.Trestle, c.env(), args...)
	return p, p.Start()
}

// env are credentials for the store, whose certificate is of an authority that
// the machine does not know.
func (c *Cluster) env() []string {
	env := []string{"AWS_ACCESS_KEY_ID=" + key, "AWS_SECRET_ACCESS_KEY=" + secret, "GORACE=atexit_sleep_ms=0"}
	if c.o.Security != nil {
		env = append(env, "SSL_CERT_FILE="+c.o.Security.CA)
	}
	return env
}

// StoreURL returns what processes know as --store.
func (c *Cluster) StoreURL() string { return c.storeURL }

// StopServing stops the processes of Trestle: etcd and the store go on.
func (c *Cluster) StopServing(limit time.Duration) error {
	var err error
	for _, p := range slices.Concat([]*Process{c.Gateway}, c.Servers, c.Masters) {
		_, e := p.End(syscall.SIGTERM, limit)
		err = errors.Join(err, e)
	}
	return err
}

// API returns the address of a process's Bigtable API.
func (c *Cluster) API(p *Process) string { return c.address(p, "api", 8086) }

// HTTP returns the address of a process's HTTP.
func (c *Cluster) HTTP(p *Process) string { return c.address(p, "http", 8087) }

func (c *Cluster) address(p *Process, service string, usual int) string {
	addr, _ := c.at(p.Host, p.Name, service, usual) // it has one since it started
	return addr
}

// Requests returns how many requests MinIO has answered, by kind.
func (c *Cluster) Requests() (map[string]float64, error) {
	resp, err := http.Get("http://" + c.address(c.Store, "s3", 9000) + "/minio/metrics/v3/api/requests")
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	out := map[string]float64{}
	for in := bufio.NewScanner(resp.Body); in.Scan(); {
		name, value, _ := strings.Cut(in.Text(), "} ")
		if !strings.HasPrefix(name, "minio_api_requests_total{") {
			continue
		}
		_, api, _ := strings.Cut(name, `name="`)
		api, _, _ = strings.Cut(api, `"`)
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return nil, err
		}
		out[api] += n
	}
	return out, nil
}

// Processor returns the processor time that a process has used.
func (p *Process) Processor() time.Duration {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid()))
	if err != nil {
		return 0
	}
	// What is before the parenthesis may have spaces in it.
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	user, _ := strconv.Atoi(f[11])
	system, _ := strconv.Atoi(f[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

// Processes returns all of them, those of Trestle last.
func (c *Cluster) Processes() (all []*Process) {
	for _, p := range slices.Concat(c.Etcd, []*Process{c.Store}, c.Masters, c.Servers, []*Process{c.Gateway}) {
		if p != nil {
			all = append(all, p)
		}
	}
	return all
}

// Close kills what runs, and gives the addresses back.
func (c *Cluster) Close() {
	all := c.Processes()
	slices.Reverse(all)
	for _, p := range all {
		p.close()
	}
	if c.o.Host != nil {
		_ = c.o.Host.Close()
	}
}

// Run runs a command about the cluster and returns what it prints.
func (c *Cluster) Run(ctx context.Context, args ...string) (string, error) {
	args = append(slices.Clone(args), "--etcd="+c.etcdURLs, "--cluster=test")
	if c.o.Security != nil {
		args = append(args, c.o.Security.flags()...)
	} else {
		args = append(args, "--insecure")
	}
	cmd := exec.CommandContext(ctx, c.o.Trestle, args...)
	cmd.Env = append(os.Environ(), c.env()...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("trestle %s: %w: %s", strings.Join(args[:2], " "), err, strings.TrimSpace(stderr.String()))
	}
	return string(out), err
}

// A Status is what `trestle cluster status --json` prints of what is of use
// here.
type Status struct {
	Master  string
	Servers []struct {
		Name    string
		Tablets int
		Error   string
	}
	Tables []struct {
		Name    string `json:"table"`
		Tablets []Tablet
	}
}

// A Tablet is one of a Status.
type Tablet struct {
	ID                        string `json:"tablet"`
	Start, End, State, Server string
	Bytes                     int64
}

// Status asks the cluster.
func (c *Cluster) Status(ctx context.Context) (*Status, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	out, err := c.Run(ctx, "cluster", "status", "--tablets", "--json")
	if err != nil {
		return nil, err
	}
	st := new(Status)
	return st, json.Unmarshal([]byte(out), st)
}

// Tablets returns those of the table whose name ends in /name.
func (s *Status) Tablets(name string) []Tablet {
	for _, t := range s.Tables {
		if strings.HasSuffix(t.Name, "/"+name) {
			return t.Tablets
		}
	}
	return nil
}
