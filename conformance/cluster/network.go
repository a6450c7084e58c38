package cluster

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// A Network has a network namespace for each host and one more in which
// packets go from host to host. The process that makes it is a host too. The
// zero Network is nil: all hosts are one, and nothing can be cut.
type Network struct {
	id     string // of its namespaces: the process that made them and a number
	subnet string // its first three numbers

	mu    sync.Mutex
	hosts int
	cuts  map[[2]string]bool // by address
}

// prefix begins the names of namespaces. Those of a process that is gone are
// removed by the next one.
const prefix = "trestle-"

var networks struct {
	sync.Mutex
	made int
}

// NewNetwork returns an error that says why if the machine, or the user, cannot
// make namespaces.
func NewNetwork() (*Network, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("network namespaces take root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return nil, errors.New("network namespaces take the program ip (Debian: iproute2)")
	}
	removeOrphans()
	networks.Lock()
	networks.made++
	n := &Network{id: fmt.Sprintf("%s%d-%d-", prefix, os.Getpid(), networks.made), cuts: map[[2]string]bool{}}
	networks.Unlock()
	var err error
	if n.subnet, err = freeSubnet(); err != nil {
		return nil, err
	}
	// The switch has the same address on every port: hosts have no net in common.
	if err := ip("netns", "add", n.swtch()); err != nil {
		return nil, err
	}
	err = errors.Join(
		ip("-n", n.swtch(), "link", "set", "lo", "up"),
		run("ip", "netns", "exec", n.swtch(), "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"))
	// We are host 2.
	here := n.here()
	if err == nil {
		err = errors.Join(
			ip("link", "add", here, "type", "veth", "peer", "name", "port2", "netns", n.swtch()),
			ip("addr", "add", n.subnet+".2/32", "dev", here),
			ip("link", "set", here, "up"),
			ip("route", "add", n.subnet+".1/32", "dev", here),
			ip("route", "add", n.subnet+".0/24", "via", n.subnet+".1", "src", n.subnet+".2"),
			n.port(2))
	}
	n.hosts = 2
	if err != nil {
		n.Close()
		return nil, err
	}
	return n, nil
}

func (n *Network) swtch() string { return n.id + "switch" }

// here names our end of the wire: at most 15 bytes.
func (n *Network) here() string {
	_, rest, _ := strings.Cut(n.subnet, ".")
	return "trestle" + strings.ReplaceAll(rest, ".", "x")
}

// port makes the switch's end of the wire to host i work.
func (n *Network) port(i int) error {
	dev := fmt.Sprintf("port%d", i)
	return errors.Join(
		ip("-n", n.swtch(), "addr", "add", n.subnet+".1/32", "dev", dev),
		ip("-n", n.swtch(), "link", "set", dev, "up"),
		ip("-n", n.swtch(), "route", "add", fmt.Sprintf("%s.%d/32", n.subnet, i), "dev", dev))
}

// Host makes a host and returns its namespace and address.
func (n *Network) Host(name string) (namespace, address string, err error) {
	n.mu.Lock()
	n.hosts++
	i := n.hosts
	n.mu.Unlock()
	ns, addr := n.id+name, fmt.Sprintf("%s.%d", n.subnet, i)
	if err := ip("netns", "add", ns); err != nil {
		return "", "", err
	}
	return ns, addr, errors.Join(
		ip("-n", ns, "link", "set", "lo", "up"),
		ip("link", "add", "eth0", "netns", ns, "type", "veth", "peer", "name", fmt.Sprintf("port%d", i), "netns", n.swtch()),
		ip("-n", ns, "addr", "add", addr+"/32", "dev", "eth0"),
		ip("-n", ns, "link", "set", "eth0", "up"),
		ip("-n", ns, "route", "add", n.subnet+".1/32", "dev", "eth0"),
		ip("-n", ns, "route", "add", "default", "via", n.subnet+".1"),
		n.port(i))
}

// Cut makes the switch drop what one address sends to the other, silently.
// What is sent the other way still arrives.
func (n *Network) Cut(from, to string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	k := [2]string{from, to}
	if n.cuts[k] {
		return nil
	}
	n.cuts[k] = true
	return ip("-n", n.swtch(), "rule", "add", "from", from, "to", to, "blackhole")
}

// Heal ends all cuts.
func (n *Network) Heal() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var errs []error
	for k := range n.cuts {
		errs = append(errs, ip("-n", n.swtch(), "rule", "del", "from", k[0], "to", k[1], "blackhole"))
	}
	clear(n.cuts)
	return errors.Join(errs...)
}

// Close removes the namespaces, and with them everything in between.
func (n *Network) Close() {
	removeNamespaces(func(ns string) bool { return strings.HasPrefix(ns, n.id) })
}

func removeNamespaces(which func(string) bool) {
	entries, err := os.ReadDir("/run/netns")
	if err != nil {
		return
	}
	for _, e := range entries {
		if which(e.Name()) {
			_ = ip("netns", "del", e.Name())
		}
	}
}

// removeOrphans removes the namespaces of processes that were killed.
func removeOrphans() {
	removeNamespaces(func(ns string) bool {
		rest, ok := strings.CutPrefix(ns, prefix)
		pid, _, _ := strings.Cut(rest, "-")
		n, err := strconv.Atoi(pid)
		return ok && err == nil && errors.Is(syscall.Kill(n, 0), syscall.ESRCH)
	})
}

// freeSubnet returns a net of 256 private addresses that nobody here uses.
func freeSubnet() (string, error) {
	out, err := exec.Command("ip", "route").Output()
	if err != nil {
		return "", fmt.Errorf("list routes: %w", err)
	}
	for i := range 256 {
		s := fmt.Sprintf("10.211.%d", (os.Getpid()+i)%256)
		if !strings.Contains(string(out), s+".") && net.ParseIP(s+".1") != nil {
			return s, nil
		}
	}
	return "", errors.New("all of 10.211.0.0/16 is in use")
}

func ip(args ...string) error { return run("ip", args...) }

func run(program string, args ...string) error {
	if out, err := exec.Command(program, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
