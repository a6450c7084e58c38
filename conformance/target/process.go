package target

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
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
	// Ready is how long the server may take to announce itself. Zero means two minutes.
	Ready time.Duration
}

// A Server is a running child process.
type Server struct {
	// Addr is where it serves gRPC.
	Addr string
	// REST is the URL of the admin API as REST, empty if there is none.
	REST string
	// Pid is its process id.
	Pid int

	cmd  *exec.Cmd
	dead chan struct{} // closed when the process has ended
	exit error         // of the process, once dead is closed
	log  tail
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
	s := &Server{cmd: exec.Command(p.Binary, args...), dead: make(chan struct{})}
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "TRESTLE_") {
			s.cmd.Env = append(s.cmd.Env, kv)
		}
	}
	// The server dies with the test, and a signal from the terminal reaches
	// the test alone.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	s.cmd.Stderr = &s.log
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", p.Binary, err)
	}
	s.Pid = s.cmd.Process.Pid
	type addresses struct{ grpc, rest string }
	ready := make(chan addresses, 1)
	go func() {
		var at addresses
		in := bufio.NewScanner(out)
		for in.Scan() {
			if rest, ok := strings.CutPrefix(in.Text(), announced); ok {
				at.grpc = strings.TrimSpace(rest)
			} else if rest, ok := strings.CutPrefix(in.Text(), announcedREST); ok {
				at.rest = strings.TrimSpace(rest)
			} else if strings.HasPrefix(in.Text(), announcedLast) && at.grpc != "" {
				select {
				case ready <- at:
				default:
				}
			}
		}
		_, _ = io.Copy(io.Discard, out)
		s.exit = s.cmd.Wait()
		close(s.dead)
	}()
	select {
	case at := <-ready:
		s.Addr, s.REST = at.grpc, at.rest
		return s, nil
	case <-s.dead:
		return nil, fmt.Errorf("%s ended before it served (%s)\n%s", p.Binary, s.cmd.ProcessState, s.Log())
	case <-ctx.Done():
		err = ctx.Err()
	case <-time.After(p.Ready):
		err = fmt.Errorf("no line %q within %v", announced, p.Ready)
	}
	_ = s.Kill()
	return nil, fmt.Errorf("start %s: %w\n%s", p.Binary, err, s.Log())
}

// Kill sends SIGKILL and waits for the end of the process.
func (s *Server) Kill() error {
	err := s.cmd.Process.Kill()
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	<-s.dead
	return err
}

// Stop sends SIGTERM and waits for a clean exit; after timeout it kills.
func (s *Server) Stop(timeout time.Duration) error {
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-s.dead:
		return s.exit
	case <-time.After(timeout):
		_ = s.Kill()
		return fmt.Errorf("the server did not stop within %v of SIGTERM", timeout)
	}
}

// Dead is closed when the process has ended.
func (s *Server) Dead() <-chan struct{} { return s.dead }

// Log returns the end of what the server wrote to standard error.
func (s *Server) Log() string { return s.log.String() }

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
