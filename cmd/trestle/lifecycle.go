package main

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"sync"
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

// Closers end what was opened, the last first: when a server stops, and when it
// fails to start.
type closers []func(context.Context) error

func (c *closers) add(end func()) {
	c.addStop(func(context.Context) error {
		end()
		return nil
	})
}

// addStop adds what may take until the context ends, and then breaks off.
func (c *closers) addStop(end func(context.Context) error) { *c = append(*c, end) }

func (c *closers) close(ctx context.Context) error {
	var errs []error
	for _, end := range slices.Backward(*c) {
		errs = append(errs, end(ctx))
	}
	*c = nil
	return errors.Join(errs...)
}

// ended returns a context for what is not to be waited for.
func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
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
