package cluster

import (
	"bufio"
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

// restartAfter is how long the supervisor waits before it starts a process that
// has ended again.
const restartAfter = 300 * time.Millisecond

// A Process is one that is started again when it ends, unless it was killed or
// told to stop through its methods.
type Process struct {
	Name string
	// Host is its address.
	Host string

	namespace string // empty: ours
	program   string
	args, env []string
	ready     string // begins the line of standard output that says it serves
	log       string // file

	// logged is the file, open also after the process has ended: it says why, even if the
	// directory was removed.
	logging sync.Mutex
	logged  *os.File

	mu    sync.Mutex
	cond  *sync.Cond
	cmd   *exec.Cmd // nil: it does not run
	up    bool      // ready
	rest  bool      // it is not to be started again
	shut  bool      // for good
	exits []Exit
}

// An Exit is the end of a process that nobody had asked for.
type Exit struct {
	When time.Time
	Code int
	// Last is the last line that it logged.
	Last string
}

func newProcess(name, host, namespace, dir, ready, program string, env []string, args ...string) *Process {
	p := &Process{Name: name, Host: host, namespace: namespace, program: program, args: args, env: env, ready: ready, log: filepath.Join(dir, name+".log")}
	p.cond = sync.NewCond(&p.mu)
	return p
}

// Start runs the process, and returns at once.
func (p *Process) Start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rest = false
	return p.startLocked()
}

func (p *Process) startLocked() error {
	if p.cmd != nil || p.shut {
		return nil
	}
	program, args := p.program, p.args
	if p.namespace != "" {
		// ip becomes the program, under the same process id.
		program, args = "ip", append([]string{"netns", "exec", p.namespace, program}, args...)
	}
	log, err := p.openLog()
	if err != nil {
		return err
	}
	cmd := exec.Command(program, args...)
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "TRESTLE_") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Env = append(cmd.Env, p.env...)
	cmd.Stderr = log
	// It dies with us, and a signal from the terminal reaches us alone.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	fmt.Fprintf(log, "--- %s is started\n", time.Now().Format("15:04:05.000"))
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	p.cmd, p.up = cmd, p.ready == ""
	go p.watch(cmd, out)
	return nil
}

func (p *Process) openLog() (*os.File, error) {
	p.logging.Lock()
	defer p.logging.Unlock()
	var err error
	if p.logged == nil {
		p.logged, err = os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o644)
	}
	return p.logged, err
}

func (p *Process) watch(cmd *exec.Cmd, out io.Reader) {
	for in := bufio.NewScanner(out); in.Scan(); {
		if p.ready != "" && strings.HasPrefix(in.Text(), p.ready) {
			p.mu.Lock()
			p.up = true
			p.cond.Broadcast()
			p.mu.Unlock()
		}
	}
	_, _ = io.Copy(io.Discard, out)
	_ = cmd.Wait()
	p.mu.Lock()
	p.cmd, p.up = nil, false
	p.cond.Broadcast()
	again := !p.rest && !p.shut
	if again {
		p.exits = append(p.exits, Exit{time.Now(), cmd.ProcessState.ExitCode(), p.lastLine()})
	}
	p.mu.Unlock()
	if !again {
		return
	}
	time.Sleep(restartAfter)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.rest {
		_ = p.startLocked()
	}
}

// Ready waits until the process serves.
func (p *Process) Ready(within time.Duration) error {
	timer := time.AfterFunc(within, p.cond.Broadcast)
	defer timer.Stop()
	limit := time.Now().Add(within)
	p.mu.Lock()
	defer p.mu.Unlock()
	for !p.up {
		if !time.Now().Before(limit) {
			return fmt.Errorf("%s does not serve after %v\n%s", p.Name, within, p.Log(4<<10))
		}
		p.cond.Wait()
	}
	return nil
}

// Signal sends a signal to the process, which it must outlive, or be started
// again.
func (p *Process) Signal(s syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return nil // it has just ended
	}
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// Freeze stops the process and returns when none of its threads runs any more:
// kill(2) returns before that, and what is still running answers meanwhile.
func (p *Process) Freeze() error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for limit := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		pid := p.Pid()
		running, err := running(pid)
		if pid == 0 || err == nil && running == "" {
			return nil
		}
		if time.Now().After(limit) {
			return fmt.Errorf("%s has not stopped: %s, %w", p.Name, running, err)
		}
	}
}

// running returns a thread of a process that is not stopped, as proc(5) shows
// it in stat, or nothing.
func running(pid int) (string, error) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err == nil && len(threads) == 0 {
		err = os.ErrProcessDone
	}
	for _, t := range threads {
		b, err := os.ReadFile(t)
		if err != nil {
			continue // it has ended
		}
		// The state follows the name, which may have spaces and brackets.
		line := string(b)
		if state := line[strings.LastIndexByte(line, ')')+1:]; !strings.HasPrefix(state, " T") {
			return line, nil
		}
	}
	return "", err
}

// End sends s and waits for the end. The process is not started again before
// Start is called. It returns the exit code, -1 after a signal.
func (p *Process) End(s syscall.Signal, within time.Duration) (int, error) {
	limit := time.Now().Add(within)
	timer := time.AfterFunc(within, p.cond.Broadcast)
	defer timer.Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rest = true
	cmd := p.cmd
	if cmd == nil {
		return 0, nil
	}
	if err := cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return 0, err
	}
	for p.cmd == cmd {
		if !time.Now().Before(limit) {
			return 0, fmt.Errorf("%s has not ended %v after %v\n%s", p.Name, within, s, p.Log(4<<10))
		}
		p.cond.Wait()
	}
	return cmd.ProcessState.ExitCode(), nil
}

// Pid returns the process id, 0 if it does not run.
func (p *Process) Pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

// Exits returns how the process ended by itself since it was asked last.
func (p *Process) Exits() []Exit {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := p.exits
	p.exits = nil
	return out
}

func (p *Process) close() {
	p.mu.Lock()
	p.shut = true
	p.mu.Unlock()
	_, _ = p.End(syscall.SIGKILL, time.Minute)
}

// Log returns the last n bytes that the process wrote to standard error.
func (p *Process) Log(n int64) string {
	p.logging.Lock()
	defer p.logging.Unlock()
	if p.logged == nil {
		return "" // it was never started
	}
	info, err := p.logged.Stat()
	if err != nil {
		return err.Error()
	}
	b, err := io.ReadAll(io.NewSectionReader(p.logged, max(0, info.Size()-n), n))
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func (p *Process) lastLine() string {
	lines := strings.Split(strings.TrimSpace(p.Log(2<<10)), "\n")
	return lines[len(lines)-1]
}
