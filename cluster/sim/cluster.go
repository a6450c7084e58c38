package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
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
	// Sweep, Purge, Rest and MakeLimit are those of masters. Default: never sweep.
	Sweep, Purge, Rest, MakeLimit time.Duration
	// Now is the clock of cells.
	Now func() time.Time
	Log *slog.Logger
	// Segments are the settings of commit logs.
	Segments commitlog.SegmentOptions
	// Net disturbs calls. Default: none.
	Net Net
	// WrapLock, WrapStore and WrapDialer, if set, return what a tablet server is
	// given in the place of the lock service, of the store and of the network.
	WrapLock   func(server string, l lock.Service) lock.Service
	WrapStore  func(server string, s objectstore.Store) objectstore.Store
	WrapDialer func(server string, d rpc.Dialer) rpc.Dialer
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
	servers map[string]*process // by name; addresses are names
	dead    sync.WaitGroup      // of what is put away of processes that have ended
	masters map[string]*masterProcess
	life    context.Context
	end     context.CancelFunc
}

// A process is one of a tablet server. When it has ended it sends nothing more,
// and nobody hears of what it does.
type process struct {
	*tabletserver.Server
	ended atomic.Bool
}

var errEnded = errors.New("the process has ended")

// net is the network as a process sees it.
func (c *Cluster) net(p *process, from, to string) func(context.Context) error {
	return func(ctx context.Context) error {
		if p.ended.Load() {
			return errEnded
		}
		return c.o.Net(ctx, from, to)
	}
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
	if o.Sweep == 0 {
		o.Sweep = -1
	}
	if o.Net == nil {
		o.Net = func(context.Context, string, string) error { return nil }
	}
	store, err := objectstore.OpenLocal(vfs.NewMem(), "store", objectstore.LocalOptions{})
	if err != nil {
		return nil, err
	}
	c := &Cluster{o: o, lock: memory.New(), objects: store, servers: map[string]*process{}, masters: map[string]*masterProcess{}}
	c.life, c.end = context.WithCancel(context.Background())
	return c, nil
}

// Lock returns the lock service as a node that is no tablet server sees it.
func (c *Cluster) Lock(node string) lock.Service {
	return c.lock.Client(func(ctx context.Context) error { return c.o.Net(ctx, node, "lock") })
}

// StartServer starts a tablet server of a name that no living one has.
func (c *Cluster) StartServer(ctx context.Context, name string) (*tabletserver.Server, error) {
	p := new(process)
	var store objectstore.Store = &faultyStore{Store: c.objects, fault: c.net(p, name, "store")}
	l, dial := c.lock.Client(c.net(p, name, "lock")), rpc.Dialer(dialer{c, name, p})
	if c.o.WrapLock != nil {
		l = c.o.WrapLock(name, l)
	}
	if c.o.WrapStore != nil {
		store = c.o.WrapStore(name, store)
	}
	if c.o.WrapDialer != nil {
		dial = c.o.WrapDialer(name, dial)
	}
	s, err := tabletserver.Start(ctx, tabletserver.Options{
		Name: name, Addr: name, Lock: l, Dialer: dial, Objects: store, Logs: store, TTL: c.o.TTL,
		Segments: c.o.Segments, CacheBytes: 8 << 20, MemtableBytes: 32 << 20, LogBytes: c.o.LogBytes,
		SplitBytes: c.o.SplitBytes, Tablet: c.o.Tablet, Now: c.o.Now, Log: c.o.Log,
	})
	if err != nil {
		p.ended.Store(true)
		return nil, err
	}
	p.Server = s
	c.mu.Lock()
	c.servers[name] = p
	c.mu.Unlock()
	c.dead.Go(func() {
		// A server that fails ends its process.
		<-s.Failed()
		p.ended.Store(true)
		c.mu.Lock()
		if c.servers[name] == p {
			delete(c.servers, name)
		}
		c.mu.Unlock()
		now, cancel := context.WithCancel(context.Background())
		cancel()
		_ = s.Close(now) // nothing of it arrives anywhere
	})
	return s, nil
}

// KillServer ends a server as a crash does: its session ends by itself.
func (c *Cluster) KillServer(name string) {
	c.mu.Lock()
	p := c.servers[name]
	delete(c.servers, name)
	c.mu.Unlock()
	if p != nil {
		p.ended.Store(true)
		p.Kill()
	}
}

// StopServer ends a server in order.
func (c *Cluster) StopServer(ctx context.Context, name string) error {
	s := c.Server(name)
	if s == nil {
		return fmt.Errorf("there is no server %s", name)
	}
	return s.Close(ctx)
}

// Server returns a living server, or nil.
func (c *Cluster) Server(name string) *tabletserver.Server {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.servers[name]; p != nil {
		return p.Server
	}
	return nil
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
				Interval: c.o.Interval, Balance: c.o.Balance, Objects: c.objects, Logs: c.objects, Sweep: c.o.Sweep, Purge: c.o.Purge,
				Rest: c.o.Rest, MakeLimit: c.o.MakeLimit, Now: c.o.Now, Log: c.o.Log})
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
	c.servers, c.masters = map[string]*process{}, map[string]*masterProcess{}
	c.mu.Unlock()
	c.end()
	for _, p := range masters {
		p.stop()
		<-p.done
	}
	for _, p := range servers {
		p.ended.Store(true)
		p.Kill()
	}
	c.dead.Wait()
}

// Dialer returns the network as a node sees it.
func (c *Cluster) Dialer(node string) rpc.Dialer { return dialer{c, node, new(process)} }
