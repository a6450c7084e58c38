package target

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A Process says how to run a trestle binary.
type Process struct {
	Binary string
	// Dir is the data directory.
	Dir string
	// Listen is the gRPC address. Empty means any free port of 127.0.0.1.
	Listen string
	// HTTP is the address of REST, metrics and health. Empty means none of them.
	HTTP string
	// Args are further flags of serve.
	Args []string
	// Ready is how long the server may take to announce itself. Zero means two
	// minutes, or three for a cluster.
	Ready time.Duration
	// Cluster runs `trestle dev-cluster` instead: Dir is the cluster's, Listen and
	// Args are for its tablet servers, of which Server is the first. HTTP is ignored.
	Cluster bool
	// TTL is a cluster's. Zero means Patience; who kills it waits for that long.
	TTL time.Duration
}

// A Server is a running child process.
type Server struct {
	// Addr is where it serves gRPC.
	Addr string
	// REST is the URL of the admin API as REST, empty if there is none.
	REST string
	// Pid is its process id.
	Pid int
	// Dir is its data directory.
	Dir string
	// Cluster is what the server is one of, nil if it is alone. Kill and Stop are
	// those of the whole cluster.
	Cluster *Cluster

	*child
}

// Stop sends SIGTERM and waits for a clean exit; after timeout it kills.
func (s *Server) Stop(timeout time.Duration) error {
	if s.Cluster != nil {
		return s.Cluster.Stop(timeout)
	}
	return s.child.Stop(timeout)
}

// A child is a process that ends with the test.
type child struct {
	cmd  *exec.Cmd
	dead chan struct{} // closed when the process has ended
	exit error         // of the process, once dead is closed
	end  func()        // called when the process has ended, if not nil
	log  tail
}

// start runs a command, and calls line with each line of its standard output.
func (c *child) start(line func(string), binary string, args ...string) error {
	c.cmd, c.dead = exec.Command(binary, args...), make(chan struct{})
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "TRESTLE_") {
			c.cmd.Env = append(c.cmd.Env, kv)
		}
	}
	// The process dies with the test, and a signal from the terminal reaches
	// the test alone.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	c.cmd.Stderr = &c.log
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := c.cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", binary, err)
	}
	go func() {
		for in := bufio.NewScanner(out); in.Scan(); {
			line(in.Text())
		}
		_, _ = io.Copy(io.Discard, out)
		c.exit = c.cmd.Wait()
		if c.end != nil {
			c.end()
		}
		close(c.dead)
	}()
	return nil
}

// wait returns when ready is closed. If that does not come about within the
// limit, it kills the process.
func (c *child) wait(ctx context.Context, ready <-chan struct{}, limit time.Duration) error {
	var err error
	select {
	case <-ready:
		return nil
	case <-c.dead:
		return fmt.Errorf("%s ended before it served (%s)\n%s", c.cmd.Path, c.cmd.ProcessState, c.Log())
	case <-ctx.Done():
		err = ctx.Err()
	case <-time.After(limit):
		err = fmt.Errorf("it does not say within %v that it serves", limit)
	}
	_ = c.Kill()
	return fmt.Errorf("start %s: %w\n%s", c.cmd.Path, err, c.Log())
}

// What begins the lines of standard output that name the gRPC address and the
// URL of REST, and a line that comes after both.
const (
	announced     = "Bigtable gRPC API"
	announcedREST = "admin API as REST"
	announcedLast = "data directory"
)

// Start runs the server and returns when it has announced itself. ctx ends the
// wait only.
func Start(ctx context.Context, p Process) (*Server, error) {
	if p.Cluster {
		c, err := StartCluster(ctx, ClusterOptions{Binary: p.Binary, Dir: p.Dir, Listen: p.Listen, Ready: p.Ready, TTL: cmp.Or(p.TTL, Patience),
			Args: append([]string{"--emulator=false"}, p.Args...)})
		if err != nil {
			return nil, err
		}
		return &Server{Addr: c.Addrs[0], REST: "http://" + c.HTTP[0] + "/v2/", Pid: c.cmd.Process.Pid, Dir: filepath.Join(p.Dir, "server-1"), Cluster: c, child: &c.child}, nil
	}
	if p.Listen == "" {
		p.Listen = "127.0.0.1:0"
	}
	if p.HTTP == "" {
		p.HTTP = "off"
	}
	if p.Ready == 0 {
		p.Ready = 2 * time.Minute
	}
	args := append([]string{"serve", "--data-dir", p.Dir, "--listen", p.Listen, "--http-listen", p.HTTP, "--log-level", "warn"}, p.Args...)
	s := &Server{Dir: p.Dir, child: new(child)}
	var addr, rest string
	ready := make(chan struct{})
	announce := sync.OnceFunc(func() { close(ready) })
	err := s.start(func(line string) {
		if at, ok := strings.CutPrefix(line, announced); ok {
			addr = strings.TrimSpace(at)
		} else if at, ok := strings.CutPrefix(line, announcedREST); ok {
			rest = strings.TrimSpace(at)
		} else if strings.HasPrefix(line, announcedLast) && addr != "" {
			announce()
		}
	}, p.Binary, args...)
	if err != nil {
		return nil, err
	}
	if err := s.wait(ctx, ready, p.Ready); err != nil {
		return nil, err
	}
	s.Addr, s.REST, s.Pid = addr, rest, s.cmd.Process.Pid
	return s, nil
}

// Kill sends SIGKILL and waits for the end of the process.
func (c *child) Kill() error {
	err := c.cmd.Process.Kill()
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	<-c.dead
	return err
}

// Stop sends SIGTERM and waits for a clean exit; after timeout it kills.
func (c *child) Stop(timeout time.Duration) error {
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-c.dead:
		return c.exit
	case <-time.After(timeout):
		_ = c.Kill()
		return fmt.Errorf("the server did not stop within %v of SIGTERM", timeout)
	}
}

// Dead is closed when the process has ended.
func (c *child) Dead() <-chan struct{} { return c.dead }

// Log returns the end of what the server wrote to standard error.
func (c *child) Log() string { return c.log.String() }

// A tail keeps the last 64 KiB written.
type tail struct {
	mu struct {
		sync.Mutex
		buf []byte
	}
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.buf = append(t.mu.buf, p...)
	if n := len(t.mu.buf) - 64<<10; n > 0 {
		t.mu.buf = append(t.mu.buf[:0], t.mu.buf[n:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.mu.buf)
}
