package sim

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/lock/memory"
	"github.com/trestledb/trestle/cluster/master"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/cluster/tabletserver"
	"github.com/trestledb/trestle/cluster/views"
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
	// Attend is how often the master calls each server. Default: never.
	Attend time.Duration
	// Balance is how often the master evens out servers. Default: never.
	Balance time.Duration
	// Merge is that of masters. Default: never.
	Merge time.Duration
	// Tablet are the settings of tablets; SplitBytes, MetadataSplitBytes and
	// SplitCheck those of servers.
	Tablet                         tablet.Options
	SplitBytes, MetadataSplitBytes int64
	SplitCheck                     time.Duration
	LogBytes                       int64
	// CacheBytes is the size of a server's cache. Default 8 MiB.
	CacheBytes int64
	// Copy, if set, is how often masters copy the lock service into the store. Then no
	// process works with a lock service that is older than the store.
	Copy time.Duration
	// Sweep, Purge, Rest and MakeLimit are those of masters. Default: never sweep.
	Sweep, Purge, Rest, MakeLimit time.Duration
	// Now is the clock of cells.
	Now func() time.Time
	Log *slog.Logger
	// Segments are the settings of commit logs.
	Segments commitlog.SegmentOptions
	// Net disturbs calls; Twice, of those that may arrive twice, says which do.
	// Default: none.
	Net   Net
	Twice func(Message) bool
	// Clocks returns the clock of a node, before Now. Default: true time.
	Clocks func(node string) *Clock
	// WrapReading, if set, returns what a tablet server is given in the place of its
	// clock to keep promises by.
	WrapReading func(node string, reading func() time.Duration) func() time.Duration
	// WrapLock, WrapStore and WrapDialer, if set, wrap the lock service, the store and the
	// network of a tablet server, a master or a client.
	WrapLock   func(node string, l lock.Service) lock.Service
	WrapStore  func(node string, s objectstore.Store) objectstore.Store
	WrapDialer func(node string, d rpc.Dialer) rpc.Dialer
	// Views, if set, returns the settings of the workers of materialized views that tablet
	// servers run; Cluster is c if it is not set.
	Views func(c *client.Client) views.Options

	// Masters, if set, count what masters do.
	Masters *master.Counters
	// Witness, if set, watches the store and METADATA.
	Witness *Witness

	direct   bool // calls arrive at once
	twiceAll bool // whatever it is may arrive twice
}

// A Cluster is what a test has.
type Cluster struct {
	o       Options
	lock    *memory.Service
	objects objectstore.Store

	mu      sync.Mutex
	servers map[string]*process // by name; addresses are names
	dead    sync.WaitGroup      // of what is put away of processes that have ended
	late    sync.WaitGroup      // messages
	idle    chan func()         // taken from by those that carry messages and have none
	masters map[string]*masterProcess
	clients map[string]*node // the newest of each name
	life    context.Context
	end     context.CancelFunc
}

// A process is one of a tablet server.
type process struct {
	*tabletserver.Server
	*node
	// stopping says that it is ending in order; stopped is closed when it has.
	stopping atomic.Bool
	stopped  chan struct{}
}

// node returns a process of a name, as the network knows it.
func (c *Cluster) node(name string) *node {
	n := &node{name: name, clock: NewClock(1, 0)}
	if c.o.Clocks != nil {
		n.clock = c.o.Clocks(name)
	}
	return n
}

// now is the clock of cells and schemas of a node.
func (c *Cluster) now(n *node) func() time.Time {
	if c.o.Clocks == nil && c.o.Now != nil {
		return c.o.Now
	}
	return n.clock.Now
}

type masterProcess struct {
	*node
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
	if o.Attend == 0 {
		o.Attend = -1
	}
	if o.Balance == 0 {
		o.Balance = -1
	}
	if o.Sweep == 0 {
		o.Sweep = -1
	}
	if o.Net == nil {
		o.Net, o.direct = func(context.Context, Message) error { return nil }, true
	}
	var store objectstore.Store = newObjects()
	if o.Witness != nil {
		store = &witnessedStore{store, o.Witness}
	}
	c := &Cluster{o: o, lock: memory.New(), objects: store, idle: make(chan func()), servers: map[string]*process{}, masters: map[string]*masterProcess{}, clients: map[string]*node{}}
	c.life, c.end = context.WithCancel(context.Background())
	return c, nil
}

// copiesPart is what names of copies of the lock service begin with.
const copiesPart = "etcd"

// copies returns the part of a store for copies of the lock service, nil if there
// are none.
func (c *Cluster) copies(s objectstore.Store) objectstore.Store {
	if c.o.Copy == 0 {
		return nil
	}
	return objectstore.Sub(s, copiesPart)
}

// Lock returns the lock service as a node that is no tablet server sees it.
func (c *Cluster) Lock(node string) lock.Service { return c.lockOf(c.node(node)) }

// world is what a process is given.
func (c *Cluster) world(n *node) (lock.Service, objectstore.Store, rpc.Dialer) {
	var store objectstore.Store = &farStore{c.objects, c, n}
	l, dial := c.lockOf(n), rpc.Dialer(dialer{c, n})
	if c.o.WrapLock != nil {
		l = c.o.WrapLock(n.name, l)
	}
	if c.o.WrapStore != nil {
		store = c.o.WrapStore(n.name, store)
	}
	if c.o.WrapDialer != nil {
		dial = c.o.WrapDialer(n.name, dial)
	}
	return l, store, dial
}

// StartServer starts a tablet server of a name that no living one has.
func (c *Cluster) StartServer(ctx context.Context, name string) (*tabletserver.Server, error) {
	p := &process{node: c.node(name), stopped: make(chan struct{})}
	l, store, dial := c.world(p.node)
	reading := p.clock.Reading
	if c.o.WrapReading != nil {
		reading = c.o.WrapReading(name, reading)
	}
	s, err := tabletserver.Start(ctx, tabletserver.Options{
		Name: name, Addr: name, Lock: l, Dialer: dial, Objects: store, Logs: store, Copies: c.copies(store), TTL: c.o.TTL,
		Segments: c.o.Segments, CacheBytes: cmp.Or(c.o.CacheBytes, 8<<20), MemtableBytes: 32 << 20, LogBytes: c.o.LogBytes,
		SplitBytes: c.o.SplitBytes, MetadataSplitBytes: c.o.MetadataSplitBytes, SplitCheck: c.o.SplitCheck, Tablet: c.o.Tablet, Now: c.now(p.node), Reading: reading, Log: c.o.Log,
	})
	if err != nil {
		p.ended.Store(true)
		return nil, err
	}
	p.Server = s
	if c.o.Views != nil {
		cl := client.New(client.Options{Lock: l, Dialer: dial, Schemas: s.Schemas(), Ended: s.Failed(), Now: c.now(p.node)})
		vo := c.o.Views(cl)
		if vo.Cluster == nil {
			vo.Cluster = cl
		}
		s.FollowViews(vo)
	}
	c.mu.Lock()
	c.servers[name] = p
	c.mu.Unlock()
	c.dead.Go(func() {
		// A server that fails ends its process.
		<-s.Failed()
		if p.stopping.Load() && !p.ended.Load() {
			<-p.stopped
		}
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

// served returns a living server as those see it that ask it, or nil.
func (c *Cluster) served(name string) rpc.TabletServer {
	s := c.Server(name)
	switch {
	case s == nil:
		return nil
	case c.o.Witness != nil:
		return &witnessedServer{s, c.o.Witness, catalog.UserLog(s.Incarnation())}
	}
	return s
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
	c.mu.Lock()
	p := c.servers[name]
	c.mu.Unlock()
	if p == nil || !p.stopping.CompareAndSwap(false, true) {
		return fmt.Errorf("there is no server %s", name)
	}
	defer close(p.stopped)
	return p.Close(ctx)
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
	p := &masterProcess{c.node(name), stop, make(chan struct{})}
	c.mu.Lock()
	c.masters[name] = p
	c.mu.Unlock()
	l, store, dial := c.world(p.node)
	go func() {
		defer close(p.done)
		for ctx.Err() == nil && !p.ended.Load() {
			err := master.Run(ctx, master.Options{Name: name, Lock: l, Dialer: dial, TTL: c.o.TTL,
				// What is waited for by the master's clock takes so long by the true one.
				ServerTTL: time.Duration(float64(c.o.TTL) / p.clock.Rate()),
				Interval:  c.o.Interval, Balance: c.o.Balance, Attend: c.o.Attend, Reading: p.clock.Reading, Merge: cmp.Or(c.o.Merge, -1), Objects: store, Logs: store, Copies: c.copies(store), Copy: c.o.Copy, Sweep: c.o.Sweep, Purge: c.o.Purge,
				Counters: c.o.Masters, Rest: c.o.Rest, MakeLimit: c.o.MakeLimit, Now: c.now(p.node), Log: c.o.Log})
			if err != nil && ctx.Err() == nil && !p.ended.Load() && c.o.Log != nil {
				c.o.Log.Warn("master", "name", name, "error", err)
			}
		}
	}()
}

// takeMaster forgets such a process.
func (c *Cluster) takeMaster(name string) *masterProcess {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.masters[name]
	delete(c.masters, name)
	return p
}

// StopMaster ends such a process in order and waits until it has ended.
func (c *Cluster) StopMaster(name string) {
	if p := c.takeMaster(name); p != nil {
		p.stop()
		<-p.done
	}
}

// KillMaster ends it as a crash does: its session ends by itself.
func (c *Cluster) KillMaster(name string) {
	if p := c.takeMaster(name); p != nil {
		p.ended.Store(true)
		p.stop()
	}
}

// Kill ends the process of a name, whatever it is, as a crash does.
func (c *Cluster) Kill(name string) {
	c.KillServer(name)
	c.KillMaster(name)
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.clients[name]; n != nil {
		n.ended.Store(true)
	}
}

// Client returns a client of a node of its own.
func (c *Cluster) Client(ctx context.Context, name string) (*client.Client, error) {
	n := c.node(name)
	c.mu.Lock()
	c.clients[name] = n
	c.mu.Unlock()
	l, _, dial := c.world(n)
	schemas, err := catalog.WatchSchemas(ctx, c.life, l)
	if err != nil {
		return nil, err
	}
	return client.New(client.Options{Lock: l, Dialer: dial, Schemas: schemas, Now: c.now(n)}), nil
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
	c.late.Wait()
}

// Dialer returns the network as a node sees it.
func (c *Cluster) Dialer(name string) rpc.Dialer { return dialer{c, c.node(name)} }
