package bttest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
)

// CommandEnv names the environment variable with the command line of the
// server. Its words are separated by spaces; {dir} stands for an empty
// directory. The server prints a line "Bigtable gRPC API ADDRESS" when it
// serves.
const CommandEnv = "BTTEST_COMMAND"

const announced = "Bigtable gRPC API"

// A Server is a running server.
type Server struct {
	// Addr is its address.
	Addr string

	relay *relay
	cmd   *exec.Cmd
	dir   string
	close sync.Once
}

// NewServer starts a server. An address that asks for a certain port or a unix
// socket is relayed to it. The gRPC options concern a fake in this process and
// are ignored.
func NewServer(laddr string, _ ...grpc.ServerOption) (*Server, error) {
	if _, port, err := net.SplitHostPort(laddr); err == nil && port == "0" {
		return start()
	}
	network := "tcp"
	if strings.Contains(laddr, "/") {
		network = "unix"
	}
	l, err := net.Listen(network, laddr)
	if err != nil {
		return nil, err
	}
	s, err := NewServerWithListener(l)
	if err != nil {
		l.Close()
		return nil, err
	}
	return s, nil
}

// NewServerWithListener starts a server and relays the connections of l to it.
func NewServerWithListener(l net.Listener, _ ...grpc.ServerOption) (*Server, error) {
	s, err := start()
	if err != nil {
		return nil, err
	}
	s.relay = &relay{listener: l, to: s.Addr}
	s.Addr = l.Addr().String()
	go s.relay.run()
	return s, nil
}

func start() (*Server, error) {
	words := strings.Fields(os.Getenv(CommandEnv))
	if len(words) == 0 {
		return nil, fmt.Errorf("bttest: set %s", CommandEnv)
	}
	dir, err := os.MkdirTemp("", "bttest")
	if err != nil {
		return nil, err
	}
	for i := range words {
		words[i] = strings.ReplaceAll(words[i], "{dir}", dir)
	}
	s := &Server{dir: dir, cmd: exec.Command(words[0], words[1:]...)}
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	s.cmd.Stderr = os.Stderr
	out, err := s.cmd.StdoutPipe()
	if err == nil {
		err = s.cmd.Start()
	}
	if err != nil {
		os.RemoveAll(dir)
		return nil, fmt.Errorf("bttest: %w", err)
	}
	addr := make(chan string, 1)
	go func() {
		defer close(addr)
		in := bufio.NewScanner(out)
		for in.Scan() {
			if rest, ok := strings.CutPrefix(in.Text(), announced); ok {
				addr <- strings.TrimSpace(rest)
				break
			}
		}
		_, _ = io.Copy(io.Discard, out)
	}()
	select {
	case s.Addr = <-addr:
		if s.Addr != "" {
			return s, nil
		}
		err = errors.New("the server ended")
	case <-time.After(30 * time.Second):
		err = errors.New("the server took more than 30 s")
	}
	s.Close()
	return nil, fmt.Errorf("bttest: %q: %w before it announced its address", words, err)
}

// Close stops the server and removes its data.
func (s *Server) Close() {
	s.close.Do(func() {
		if s.relay != nil {
			s.relay.listener.Close()
		}
		_ = s.cmd.Process.Signal(syscall.SIGTERM)
		hard := time.AfterFunc(5*time.Second, func() { _ = s.cmd.Process.Kill() })
		_ = s.cmd.Wait()
		hard.Stop()
		os.RemoveAll(s.dir)
	})
}

// A relay copies connections.
type relay struct {
	listener net.Listener
	to       string
}

func (r *relay) run() {
	for {
		c, err := r.listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			d, err := net.Dial("tcp", r.to)
			if err != nil {
				return
			}
			defer d.Close()
			go func() {
				_, _ = io.Copy(d, c)
				d.Close()
			}()
			_, _ = io.Copy(c, d)
		}()
	}
}
