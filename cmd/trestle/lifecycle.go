package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A phase is what a server is busy with while it is not ready.
type phase struct {
	mu struct {
		sync.Mutex
		what string // empty: serving
	}
}

func newPhase(what string) *phase {
	p := new(phase)
	p.mu.what = what
	return p
}

func (p *phase) set(what string) {
	p.mu.Lock()
	p.mu.what = what
	p.mu.Unlock()
}

type phaseKey struct{}

// withPhase lets what is called with the context say what it waits for.
func withPhase(ctx context.Context, p *phase) context.Context {
	return context.WithValue(ctx, phaseKey{}, p)
}

// tell says what the process is busy with, for who asks whether it is ready.
func tell(ctx context.Context, what string) {
	if p, ok := ctx.Value(phaseKey{}).(*phase); ok {
		p.set(what)
	}
}

func (p *phase) check() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.what == "" {
		return nil
	}
	return errors.New(p.mu.what)
}

// diskSpace returns the free and used bytes of the file system with dir, or
// zeros if it does not tell.
func diskSpace(dir string) (free, used int64) {
	u, err := vfs.Default.GetDiskUsage(dir)
	if err != nil {
		return 0, 0
	}
	return int64(u.AvailBytes), int64(u.UsedBytes)
}

// diskCheck fails if fewer than minFree bytes are free.
func diskCheck(dir string, minFree int64) error {
	u, err := vfs.Default.GetDiskUsage(dir)
	if err != nil {
		return fmt.Errorf("look at %s: %w", dir, err)
	}
	if free := int64(u.AvailBytes); free < minFree {
		return fmt.Errorf("%d bytes free in %s, fewer than %d: writes may be refused", free, dir, minFree)
	}
	return nil
}

// exitHooks clean up what must not stay behind, also when the process ends
// without unwinding.
var exitHooks struct {
	sync.Mutex
	fns []func()
}

// atExit registers fn. The returned function runs it at once instead.
func atExit(fn func()) (runNow func()) {
	once := sync.OnceFunc(fn)
	exitHooks.Lock()
	exitHooks.fns = append(exitHooks.fns, once)
	exitHooks.Unlock()
	return once
}

func runExitHooks() {
	exitHooks.Lock()
	defer exitHooks.Unlock()
	for _, fn := range exitHooks.fns {
		fn()
	}
}

// notifySystemd tells a service manager of Type=notify about the state; without
// one it does nothing.
func notifySystemd(state string) {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return // the manager's time-out speaks for itself
	}
	defer c.Close()
	_, _ = c.Write([]byte(state))
}
