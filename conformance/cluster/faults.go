package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"time"
)

// A Fault does something to a cluster, waits, and puts it right again. It
// returns what it did.
type Fault struct {
	Name string
	// Network says that it takes namespaces.
	Network bool
	// Store says that it takes a store that is a process.
	Store bool
	// Durable says that it takes a store that outlives kill -9.
	Durable bool
	do      func(ctx context.Context, c *Cluster, r *rand.Rand) (string, error)
}

// Faults are those that a round of the suite chooses from.
var Faults = []Fault{
	{Name: "kill a tablet server", do: func(ctx context.Context, c *Cluster, r *rand.Rand) (string, error) {
		p := pick(c.Servers, r)
		return p.Name, c.kill(ctx, r, p)
	}},
	{Name: "kill two tablet servers", do: func(ctx context.Context, c *Cluster, r *rand.Rand) (string, error) {
		n := r.Perm(len(c.Servers))
		a, b := c.Servers[n[0]], c.Servers[n[1]]
		return a.Name + ", " + b.Name, c.kill(ctx, r, a, b)
	}},
	{Name: "kill the master", do: func(ctx context.Context, c *Cluster, r *rand.Rand) (string, error) {
		p, err := c.master(ctx)
		if err != nil {
			return "", err
		}
		return p.Name, c.kill(ctx, r, p)
	}},
	{Name: "kill a tablet server and the master", do: func(ctx context.Context, c *Cluster, r *rand.Rand) (string, error) {
		m, err := c.master(ctx)
		if err != nil {
			return "", err
		}
		p := pick(c.Servers, r)
		return p.Name + ", " + m.Name, c.kill(ctx, r, p, m)
	}},
	{Name: "kill the gateway", do: func(ctx context.Context, c *Cluster, r *rand.Rand) (string, error) {
		return "", c.kill(ctx, r, c.Gateway)
	}},
	{Name: "kill etcd", do: func(ctx context.Context, c *Cluster, r *rand.Rand) (string, error) {
		return "", c.kill(ctx, r, c.Etcd...)
	}},
	{Name: "kill the store", Store: true, Durable: true, do: func(ctx context.Context, c *Cluster, r *rand.Rand) (string, error) {
		return "", c.kill(ctx, r, c.Store)
	}},
	{Name: "a zombie", do: zombie},
	{Name: "stop a tablet server for a moment", do: func(ctx context.Context, c *Cluster, r *rand.Rand) (string, error) {
		p := pick(c.Servers, r)
		d := between(r, c.o.TTL/10, c.o.TTL)
		return fmt.Sprintf("%s for %v", p.Name, d), freeze(ctx, d, p)
	}},
	{Name: "stop etcd", do: func(ctx context.Context, c *Cluster, r *rand.Rand) (string, error) {
		d := between(r, c.o.TTL/4, 3*c.o.TTL)
		return d.String(), freeze(ctx, d, c.Etcd...)
	}},
	{Name: "stop the store", Store: true, do: func(ctx context.Context, c *Cluster, r *rand.Rand) (string, error) {
		d := between(r, c.o.TTL/4, 3*c.o.TTL)
		return d.String(), freeze(ctx, d, c.Store)
	}},
	cut("tablet server from etcd", false, func(c *Cluster, r *rand.Rand) (a, b *Process) { return pick(c.Servers, r), pick(c.Etcd, r) }),
	cut("tablet server from the store", true, func(c *Cluster, r *rand.Rand) (a, b *Process) { return pick(c.Servers, r), c.Store }),
	cut("tablet server from a master", false, func(c *Cluster, r *rand.Rand) (a, b *Process) { return pick(c.Servers, r), pick(c.Masters, r) }),
	cut("gateway from a tablet server", false, func(c *Cluster, r *rand.Rand) (a, b *Process) { return c.Gateway, pick(c.Servers, r) }),
	cut("gateway from etcd", false, func(c *Cluster, r *rand.Rand) (a, b *Process) { return c.Gateway, pick(c.Etcd, r) }),
	cut("master from etcd", false, func(c *Cluster, r *rand.Rand) (a, b *Process) { return pick(c.Masters, r), pick(c.Etcd, r) }),
	cut("two tablet servers from each other", false, func(c *Cluster, r *rand.Rand) (a, b *Process) {
		n := r.Perm(len(c.Servers))
		return c.Servers[n[0]], c.Servers[n[1]]
	}),
	{Name: "cut a tablet server from everything but clients", Network: true, do: func(ctx context.Context, c *Cluster, r *rand.Rand) (string, error) {
		p := pick(c.Servers, r)
		var err error
		for _, q := range c.Processes() {
			if q != p {
				err = errors.Join(err, c.o.Network.Cut(p.Host, q.Host), c.o.Network.Cut(q.Host, p.Host))
			}
		}
		d := between(r, c.o.TTL/4, 4*c.o.TTL)
		wait(ctx, d)
		return fmt.Sprintf("%s for %v", p.Name, d), errors.Join(err, c.o.Network.Heal())
	}},
	{Name: "tablets on the move while a tablet server is killed", do: func(ctx context.Context, c *Cluster, r *rand.Rand) (string, error) {
		p, away := pick(c.Servers, r), pick(c.Servers, r)
		done := make(chan error, 1)
		go func() {
			// It fails if it is away that is killed, and leaves the mark.
			_, drained := c.Run(ctx, "server", "drain", away.Name, "--timeout=10s")
			_, err := c.Run(ctx, "server", "undrain", away.Name)
			if drained != nil && err != nil && (strings.Contains(err.Error(), "is not being drained") || strings.Contains(err.Error(), "there is no tablet server")) {
				err = nil // it did not come so far
			}
			done <- err
		}()
		wait(ctx, between(r, 50*time.Millisecond, time.Second))
		return fmt.Sprintf("%s, from %s", p.Name, away.Name), errors.Join(c.kill(ctx, r, p), <-done)
	}},
}

// Possible returns the faults that can be done to c.
func (c *Cluster) Possible() (out []Fault) {
	for _, f := range Faults {
		durable := c.o.Store != Memory && c.o.Store != Careless
		if f.Network && c.o.Network == nil || f.Store && c.Store == nil || f.Durable && !durable {
			continue
		}
		out = append(out, f)
	}
	return out
}

// Do does a fault.
func (c *Cluster) Do(ctx context.Context, f Fault, r *rand.Rand) (string, error) {
	what, err := f.do(ctx, c, r)
	if err != nil {
		err = fmt.Errorf("%s: %w", f.Name, err)
	}
	return strings.TrimSuffix(f.Name+": "+what, ": "), err
}

func pick(from []*Process, r *rand.Rand) *Process { return from[r.IntN(len(from))] }

func between(r *rand.Rand, least, most time.Duration) time.Duration {
	return (least + time.Duration(r.Int64N(int64(most-least)+1))).Round(time.Millisecond)
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// kill kills processes, and starts them again after a while.
func (c *Cluster) kill(ctx context.Context, r *rand.Rand, ps ...*Process) error {
	var errs []error
	for _, p := range ps {
		_, err := p.End(syscall.SIGKILL, time.Minute)
		errs = append(errs, err)
	}
	wait(ctx, between(r, 0, 3*c.o.TTL))
	for _, p := range ps {
		errs = append(errs, p.Start())
	}
	return errors.Join(errs...)
}

// master returns the process that is the master.
func (c *Cluster) master(ctx context.Context) (*Process, error) {
	st, err := c.Status(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range c.Masters {
		if p.Name == st.Master {
			return p, nil
		}
	}
	return nil, fmt.Errorf("the master is %q", st.Master)
}

// freeze stops processes for a while.
func freeze(ctx context.Context, d time.Duration, ps ...*Process) error {
	var errs []error
	for _, p := range ps {
		errs = append(errs, p.Freeze())
	}
	wait(ctx, d)
	for _, p := range ps {
		errs = append(errs, p.Signal(syscall.SIGCONT))
	}
	return errors.Join(errs...)
}

// zombie stops a tablet server until its tablets are somebody else's. When it
// goes on it must end by itself.
func zombie(ctx context.Context, c *Cluster, r *rand.Rand) (string, error) {
	p := pick(c.Servers, r)
	p.Exits()
	d := between(r, c.o.TTL*3/2+time.Second, 4*c.o.TTL)
	if err := freeze(ctx, d, p); err != nil {
		return p.Name, err
	}
	what := fmt.Sprintf("%s for %v", p.Name, d)
	for limit := time.Now().Add(time.Minute); time.Now().Before(limit); wait(ctx, 10*time.Millisecond) {
		if e := p.Exits(); len(e) > 0 {
			if e[0].Code == 0 {
				return what, fmt.Errorf("the zombie ended with exit code 0: %s", e[0].Last)
			}
			return what, nil
		}
	}
	return what, fmt.Errorf("%s was stopped for %v and goes on\n%s", p.Name, d, p.Log(2<<10))
}

// cut makes a fault of cutting two processes off from each other, half of the
// time in one direction only.
func cut(name string, store bool, which func(*Cluster, *rand.Rand) (a, b *Process)) Fault {
	return Fault{Name: "cut " + name, Network: true, Store: store, do: func(ctx context.Context, c *Cluster, r *rand.Rand) (string, error) {
		a, b := which(c, r)
		d := between(r, c.o.TTL/4, 4*c.o.TTL)
		how, err := "both ways", error(nil)
		direction := r.IntN(4)
		if direction != 0 {
			err = c.o.Network.Cut(a.Host, b.Host)
		}
		if direction != 1 {
			err = errors.Join(err, c.o.Network.Cut(b.Host, a.Host))
		}
		switch direction {
		case 0:
			how = fmt.Sprintf("what %s sends is lost", b.Name)
		case 1:
			how = fmt.Sprintf("what %s sends is lost", a.Name)
		}
		wait(ctx, d)
		return fmt.Sprintf("%s, %s for %v, %s", a.Name, b.Name, d, how), errors.Join(err, c.o.Network.Heal())
	}}
}
