package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/trestledb/trestle/compat/hbase/model"
	"github.com/trestledb/trestle/engine/budget"
	"github.com/trestledb/trestle/gateway/backend"
)

// Options configure a Server. The zero value is a good server without TLS.
type Options struct {
	// Services are added to ClientService and ClientMetaService, by name.
	Services map[string]Service
	// TLS wraps every connection, if it is set.
	TLS *tls.Config
	// Name returns the subject of a client's certificate, which TLS has verified.
	// Nil means its common name.
	Name func(*x509.Certificate) string
	// Authorize is called before each call. It returns the context of the call,
	// or why the client may not make it; table is empty for what is not about a
	// table. Nil allows everything.
	Authorize func(ctx context.Context, c *Call, what Action, table string) (context.Context, error)
	// Sees tells whether the client whose context Authorize returned may know that a
	// table is there, by its resource name. The others are not in hbase:meta for
	// it. Nil shows all to every caller.
	Sees func(ctx context.Context, table string) (bool, error)

	// Observer is told of every call; nil: there is none.
	Observer Observer

	// Memory bounds the requests of all connections together, and large rows that are
	// read. Nil means 768 MiB of their own.
	Memory *budget.Budget
	// MaxRequestBytes bounds one request. Zero means 256 MiB. It is no more than
	// Memory allows, which is a third of it.
	MaxRequestBytes int
	// ResponseMemory bounds the responses of reads that are being made or
	// written, in bytes, by what the reads may return. What a larger row takes beyond
	// that is of Memory. Zero means 512 MiB.
	ResponseMemory int64
	// MaxCalls bounds the calls of one connection that are under way or not
	// written yet. Zero means 256.
	MaxCalls int
	// MaxConnections bounds the connections. Zero means 10,000. It is no more than
	// one for each 16 KiB of Memory.
	MaxConnections int
	// MaxResultBytes is the size of a scan's response at which it ends, whatever
	// the client asked for. Zero means 16 MiB. It is a quarter of ResponseMemory at
	// most.
	MaxResultBytes int
	// MaxScanners bounds the scanners that are open. Zero means 10,000. It is no more
	// than one for each 8 KiB of Memory.
	MaxScanners int
	// ScannerLease is how long a scanner lives between two calls. Zero means a
	// minute.
	ScannerLease time.Duration
	// Handshake is how long a client may take for preamble and header, and
	// Transfer for sending a request or taking responses. Zero means 30 seconds
	// and 5 minutes.
	Handshake, Transfer time.Duration

	// Log is slog.Default if nil.
	Log *slog.Logger
}

// WithDefaults fills in what is zero.
func (o Options) WithDefaults() Options {
	for _, d := range []struct {
		v *int
		n int
	}{{&o.MaxRequestBytes, 256 << 20}, {&o.MaxCalls, 256}, {&o.MaxConnections, 10_000}, {&o.MaxResultBytes, 16 << 20}, {&o.MaxScanners, 10_000}} {
		if *d.v == 0 {
			*d.v = d.n
		}
	}
	if o.Memory == nil {
		o.Memory = budget.New(768 << 20)
	}
	if o.ResponseMemory == 0 {
		o.ResponseMemory = 512 << 20
	}
	o.MaxResultBytes = int(min(int64(o.MaxResultBytes), max(o.ResponseMemory/4, 1<<20)))
	o.ResponseMemory = max(o.ResponseMemory, int64(o.MaxResultBytes))
	o.MaxConnections = int(min(int64(o.MaxConnections), o.Memory.Limit()/connectionBytes))
	o.MaxScanners = int(min(int64(o.MaxScanners), o.Memory.Limit()/2/scannerBytes))
	o.MaxRequestBytes = int(min(int64(o.MaxRequestBytes), o.Memory.Limit()/requestCost))
	for _, d := range []struct {
		v *time.Duration
		n time.Duration
	}{{&o.ScannerLease, time.Minute}, {&o.Handshake, 30 * time.Second}, {&o.Transfer, 5 * time.Minute}} {
		if *d.v == 0 {
			*d.v = d.n
		}
	}
	if o.Name == nil {
		o.Name = func(c *x509.Certificate) string { return c.Subject.CommonName }
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return o
}

// connectionBytes is how much of Memory there is for a connection, of which most are
// idle.
const connectionBytes = 16 << 10

// requestCost is how many bytes a byte of a request takes: as received, in the
// commit log's queue, and in the memtable beyond what that may have.
const requestCost = 3

// multiBytes is the size of the block from which on the gets of a Multi are put
// off to another.
func (o *Options) multiBytes() int64 { return min(64<<20, o.ResponseMemory) }

// An Action is what a call does to a table.
type Action uint8

// The actions.
const (
	Read Action = iota + 1
	Write
	ReadWrite
)

// A Server answers HBase clients.
type Server struct {
	o        Options
	catalog  *model.Catalog
	b        backend.Backend
	services map[string]Service
	answers  *semaphore.Weighted // of responses
	scanners *scanners

	// ctx ends when calls are to be cut off.
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup // connections and the reaper

	mu struct {
		sync.Mutex
		stopping  bool
		listeners map[net.Listener]struct{}
		conns     map[*conn]struct{}
	}
}

// New returns a server of the catalog's tables, whose rows are in b: the
// catalog's own backend, or that held to what callers may do.
func New(catalog *model.Catalog, b backend.Backend, o Options) (*Server, error) {
	if _, ok := b.(backend.RowUpdater); !ok {
		return nil, errors.New("HBase needs a store that can update rows by what is in them")
	}
	s := &Server{o: o.WithDefaults(), catalog: catalog, b: model.ReadOnlyViews(b), services: map[string]Service{}}
	s.answers = semaphore.NewWeighted(s.o.ResponseMemory)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.mu.listeners, s.mu.conns = map[net.Listener]struct{}{}, map[*conn]struct{}{}
	s.scanners = newScanners(s.o.MaxScanners, s.o.ScannerLease, s.o.Memory)
	s.services["ClientService"] = s.clientService()
	s.services["ClientMetaService"] = s.metaService()
	for name, svc := range o.Services {
		if s.services[name] != nil {
			return nil, fmt.Errorf("service %s is there twice", name)
		}
		s.services[name] = svc
	}
	s.work.Go(s.reap)
	return s, nil
}

// reap ends what no client has asked for in time.
func (s *Server) reap() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case now := <-tick.C:
			s.scanners.expire(now)
			s.endStalled(now)
		}
	}
}

// endStalled ends the connections of clients that do not take their responses while
// others wait for memory that these may hold.
func (s *Server) endStalled(now time.Time) {
	type stalled struct {
		c       *conn
		waiting int32
	}
	var list []stalled
	var waiting int32
	s.mu.Lock()
	for c := range s.mu.conns {
		n := c.client.waiting.Load()
		waiting += n
		if since := c.writing.Load(); since != 0 && now.Sub(time.Unix(0, since)) >= stall {
			list = append(list, stalled{c, n})
		}
	}
	s.mu.Unlock()
	for _, x := range list {
		if waiting > x.waiting || s.o.Memory.Short() {
			s.o.Log.Info("HBase client does not take its responses while others wait for memory: connection ended", "client", x.c.nc.RemoteAddr().String())
			_ = x.c.nc.Close()
		}
	}
}

// ErrStopped is what Serve returns after Stop.
var ErrStopped = errors.New("the HBase server is stopped")

// Serve serves connections of l until Stop, and closes l. It returns nil then.
func (s *Server) Serve(l net.Listener) error {
	s.mu.Lock()
	if s.mu.stopping {
		s.mu.Unlock()
		_ = l.Close()
		return ErrStopped
	}
	s.mu.listeners[l] = struct{}{}
	s.mu.Unlock()
	defer l.Close()
	pause := 5 * time.Millisecond
	for {
		nc, err := l.Accept()
		if err != nil {
			s.mu.Lock()
			stopping := s.mu.stopping
			s.mu.Unlock()
			if stopping {
				return nil
			}
			if errors.Is(err, net.ErrClosed) {
				return fmt.Errorf("accept HBase connections: %w", err)
			}
			// Out of file descriptors, most likely: others will be closed.
			s.o.Log.Warn("accept HBase connection", "error", err)
			select {
			case <-time.After(pause):
			case <-s.ctx.Done():
				return nil
			}
			pause = min(2*pause, time.Second)
			continue
		}
		pause = 5 * time.Millisecond
		s.start(nc)
	}
}

func (s *Server) start(nc net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.stopping || len(s.mu.conns) >= s.o.MaxConnections {
		_ = nc.Close()
		return
	}
	if t, ok := nc.(*net.TCPConn); ok {
		// Half-open connections end in about two minutes.
		_ = t.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Minute, Interval: 15 * time.Second, Count: 4})
	}
	c := newConn(s, nc)
	s.mu.conns[c] = struct{}{}
	s.work.Go(func() {
		c.serve()
		s.mu.Lock()
		delete(s.mu.conns, c)
		s.mu.Unlock()
	})
}

// Stop ends the server: no new connections and calls; calls under way may
// finish until ctx is done, then they are cut off, and Stop returns the
// context's error. It returns after the last of them.
func (s *Server) Stop(ctx context.Context) error {
	s.mu.Lock()
	s.mu.stopping = true
	for l := range s.mu.listeners {
		_ = l.Close()
	}
	conns := make([]*conn, 0, len(s.mu.conns))
	for c := range s.mu.conns {
		conns = append(conns, c)
	}
	s.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, c := range conns {
			c.drain()
		}
		s.mu.Lock()
		for len(s.mu.conns) > 0 {
			s.mu.Unlock()
			select {
			case <-s.ctx.Done():
			case <-time.After(5 * time.Millisecond):
				s.mu.Lock()
				continue
			}
			s.mu.Lock()
			break
		}
		s.mu.Unlock()
		s.cancel()
		s.work.Wait()
	}()
	var err error
	select {
	case <-done:
	case <-ctx.Done():
		err = ctx.Err()
		s.cancel()
		for _, c := range conns {
			_ = c.nc.Close()
		}
		<-done
	}
	return err
}
