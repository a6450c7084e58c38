package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/lock/memory"
	"github.com/trestledb/trestle/cluster/master"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/cluster/tabletserver"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/tablet"
)

// Options are the settings of a Cluster.
type Options struct {
	// TTL is that of sessions. Default 2 s.
	TTL time.Duration
	// Interval is how often the master looks at everything. Default 50 ms.
	Interval time.Duration
	// Balance is how often the master evens out servers. Default: never.
	Balance time.Duration
	// Tablet are the settings of tablets; SplitBytes that of servers.
	Tablet     tablet.Options
	SplitBytes int64
	LogBytes   int64
	// Now is the clock of cells.
	Now func() time.Time
	Log *slog.Logger
	// Net disturbs calls. Default: none.
	Net Net
}

// A Net says what becomes of the messages between nodes, the lock service
// ("lock") and the store ("store") among them. It may wait; an error loses the
// message. Answers go the other way.
type Net func(ctx context.Context, from, to string) error

// A Cluster is what a test has.
type Cluster struct {
	o       Options
	lock    *memory.Service
	objects objectstore.Store

	mu      sync.Mutex
	servers map[string]*tabletserver.Server // by name; addresses are names
	dead    []*tabletserver.Server          // killed, but not put away
	masters map[string]*masterProcess
	life    context.Context
	end     context.CancelFunc
}

type masterProcess struct {
	stop context.CancelFunc
	done chan struct{}
}

// New returns a cluster without servers.
func New(o Options) (*Cluster, error) {
	if o.TTL == 0 {
		o.TTL = 2 * time.Second
	}
	if o.Interval == 0 {
		o.Interval = 50 * time.Millisecond
	}
	if o.Balance == 0 {
		o.Balance = -1
	}
	if o.Net == nil {
		o.Net = func(context.Context, string, string) error { return nil }
	}
	store, err := objectstore.OpenLocal(vfs.NewMem(), "store", objectstore.LocalOptions{})
	if err != nil {
		return nil, err
	}
	c := &Cluster{o: o, lock: memory.New(), objects: store, servers: map[string]*tabletserver.Server{}, masters: map[string]*masterProcess{}}
	c.life, c.end = context.WithCancel(context.Background())
	return c, nil
}

// Lock returns the lock service as a node sees it.
func (c *Cluster) Lock(node string) lock.Service {
	return c.lock.Client(func(ctx context.Context) error {
		// A process that has ended keeps no session. What it had sent to the store
		// may still arrive.
		if c.ended(node) {
			return errors.New("the process has ended")
		}
		return c.o.Net(ctx, node, "lock")
	})
}

// StartServer starts a tablet server of a name that no living one has.
func (c *Cluster) StartServer(ctx context.Context, name string) (*tabletserver.Server, error) {
	store := &faultyStore{Store: c.objects, fault: func(ctx context.Context) error { return c.o.Net(ctx, name, "store") }}
	s, err := tabletserver.Start(ctx, tabletserver.Options{
		Name: name, Addr: name, Lock: c.Lock(name), Dialer: c.Dialer(name), Objects: store, Logs: store, TTL: c.o.TTL,
		Segments: commitlog.SegmentOptions{}, CacheBytes: 8 << 20, MemtableBytes: 32 << 20, LogBytes: c.o.LogBytes,
		SplitBytes: c.o.SplitBytes, Tablet: c.o.Tablet, Now: c.o.Now, Log: c.o.Log,
	})
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.servers[name] = s
	c.mu.Unlock()
	return s, nil
}

// ended tells whether a node is a tablet server that has failed.
func (c *Cluster) ended(node string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.servers[node]
	for _, d := range c.dead {
		if d.Name() == node {
			s = d
		}
	}
	return s != nil && s.Err() != nil
}

// KillServer ends a server as a crash does: its session ends by itself.
func (c *Cluster) KillServer(name string) {
	c.mu.Lock()
	s := c.servers[name]
	delete(c.servers, name)
	if s != nil {
		c.dead = append(c.dead, s)
	}
	c.mu.Unlock()
	if s != nil {
		s.Kill()
	}
}

// StopServer ends a server in order.
func (c *Cluster) StopServer(ctx context.Context, name string) error {
	c.mu.Lock()
	s := c.servers[name]
	c.mu.Unlock()
	if s == nil {
		return fmt.Errorf("there is no server %s", name)
	}
	err := s.Close(ctx)
	c.mu.Lock()
	if c.servers[name] == s {
		delete(c.servers, name)
	}
	c.mu.Unlock()
	return err
}

// Server returns a living server, or nil.
func (c *Cluster) Server(name string) *tabletserver.Server {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.servers[name]
}

// StartMaster starts a process that wants to be the master.
func (c *Cluster) StartMaster(name string) {
	ctx, stop := context.WithCancel(c.life)
	p := &masterProcess{stop, make(chan struct{})}
	c.mu.Lock()
	c.masters[name] = p
	c.mu.Unlock()
	go func() {
		defer close(p.done)
		for ctx.Err() == nil {
			err := master.Run(ctx, master.Options{Name: name, Lock: c.Lock(name), Dialer: c.Dialer(name), TTL: c.o.TTL,
				Interval: c.o.Interval, Balance: c.o.Balance, Log: c.o.Log})
			if err != nil && ctx.Err() == nil && c.o.Log != nil {
				c.o.Log.Warn("master", "name", name, "error", err)
			}
		}
	}()
}

// StopMaster ends such a process and waits until it has ended.
func (c *Cluster) StopMaster(name string) {
	c.mu.Lock()
	p := c.masters[name]
	delete(c.masters, name)
	c.mu.Unlock()
	if p != nil {
		p.stop()
		<-p.done
	}
}

// Client returns a client of a node of its own.
func (c *Cluster) Client(ctx context.Context, name string) (*client.Client, error) {
	l := c.Lock(name)
	ids, err := client.NewIDs(ctx, l)
	if err != nil {
		return nil, err
	}
	schemas, err := catalog.WatchSchemas(ctx, c.life, l)
	if err != nil {
		return nil, err
	}
	return client.New(client.Options{Lock: l, Dialer: c.Dialer(name), Schemas: schemas, NewID: ids, Now: c.o.Now}), nil
}

// Close ends everything, as crashes do.
func (c *Cluster) Close() {
	c.mu.Lock()
	servers, masters := c.servers, c.masters
	c.servers, c.masters = map[string]*tabletserver.Server{}, map[string]*masterProcess{}
	c.mu.Unlock()
	c.end()
	for _, p := range masters {
		p.stop()
		<-p.done
	}
	now, cancel := context.WithCancel(context.Background())
	cancel()
	for _, s := range servers {
		c.dead = append(c.dead, s)
	}
	for _, s := range c.dead {
		s.Kill()
		_ = s.Close(now) // it was killed
	}
}

// Dialer returns the network as a node sees it.
func (c *Cluster) Dialer(node string) rpc.Dialer { return dialer{c, node} }
