package transport

import (
	"errors"
	"fmt"
	"net"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/trestledb/trestle/engine/usertimeout"
)

// A Server serves the services that are registered with it on the connections of its
// listeners. Services are registered before Serve.
type Server struct {
	o        Options
	services map[string]grpc.ServiceInfo
	methods  map[string]*method
	work     chan *Stream // to waiting workers
	buffers  sync.Pool    // of *[]byte that answers gather in
	large    sync.Pool    // the same, larger
	lent     atomic.Int64 // of those
	reading  sync.Pool    // of *[]byte that requests are read through

	workers  sync.WaitGroup
	handlers sync.WaitGroup // of streams under way
	stop     sync.Once

	mu struct {
		sync.Mutex
		ending    bool
		listeners map[net.Listener]bool
		conns     map[*conn]bool
		// gone is told when there is one connection less, or one less that begins.
		gone     sync.Cond
		raw      map[net.Conn]bool // connections that shake hands
		draining bool
	}
}

// A method is what a call is handed to. Either unary or stream is set.
type method struct {
	service any
	unary   grpc.MethodHandler
	stream  grpc.StreamHandler
	info    grpc.StreamServerInfo // of stream
}

// New returns a Server.
func New(o Options) *Server {
	s := &Server{o: o.withDefaults(), services: map[string]grpc.ServiceInfo{}, methods: map[string]*method{}, work: make(chan *Stream)}
	s.buffers.New = func() any { b := make([]byte, 0, outBytes+outBytes/4); return &b }
	s.large.New = func() any { b := make([]byte, 0, largeBytes+maxControl); return &b }
	s.reading.New = func() any { b := make([]byte, readBytes); return &b }
	s.mu.listeners, s.mu.conns, s.mu.raw = map[net.Listener]bool{}, map[*conn]bool{}, map[net.Conn]bool{}
	s.mu.gone.L = &s.mu.Mutex
	for range s.o.Workers {
		s.workers.Go(func() {
			for st := range s.work {
				s.handle(st)
			}
		})
	}
	return s
}

// RegisterService implements grpc.ServiceRegistrar. It panics if impl does not implement d, or
// if there is such a service already.
func (s *Server) RegisterService(d *grpc.ServiceDesc, impl any) {
	if impl != nil && d.HandlerType != nil {
		if t := reflect.TypeOf(d.HandlerType).Elem(); !reflect.TypeOf(impl).Implements(t) {
			panic(fmt.Sprintf("%T does not implement %v", impl, t))
		}
	}
	if _, ok := s.services[d.ServiceName]; ok {
		panic("service " + d.ServiceName + " is registered twice")
	}
	info := grpc.ServiceInfo{Metadata: d.Metadata}
	for _, m := range d.Methods {
		s.methods["/"+d.ServiceName+"/"+m.MethodName] = &method{service: impl, unary: m.Handler}
		info.Methods = append(info.Methods, grpc.MethodInfo{Name: m.MethodName})
	}
	for _, m := range d.Streams {
		full := "/" + d.ServiceName + "/" + m.StreamName
		s.methods[full] = &method{service: impl, stream: m.Handler,
			info: grpc.StreamServerInfo{FullMethod: full, IsClientStream: m.ClientStreams, IsServerStream: m.ServerStreams}}
		info.Methods = append(info.Methods, grpc.MethodInfo{Name: m.StreamName, IsClientStream: m.ClientStreams, IsServerStream: m.ServerStreams})
	}
	s.services[d.ServiceName] = info
}

// GetServiceInfo returns the services by name, for gRPC's reflection.
func (s *Server) GetServiceInfo() map[string]grpc.ServiceInfo { return s.services }

// Serve serves the connections of l until Stop or GracefulStop, and closes it. It returns nil
// then, else the error of l.
func (s *Server) Serve(l net.Listener) error {
	s.mu.Lock()
	if s.mu.ending {
		s.mu.Unlock()
		_ = l.Close()
		return grpc.ErrServerStopped
	}
	s.mu.listeners[l] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.mu.listeners[l] {
			delete(s.mu.listeners, l)
			_ = l.Close()
		}
	}()
	for wait := time.Duration(0); ; {
		nc, err := l.Accept()
		if err != nil {
			s.mu.Lock()
			ending := s.mu.ending
			s.mu.Unlock()
			if ending {
				return nil
			}
			// Too many files are open, for one; grpc.Server waits as long.
			if t, ok := errors.AsType[interface {
				error
				Temporary() bool
			}](err); ok && t.Temporary() {
				wait = min(max(2*wait, 5*time.Millisecond), time.Second)
				time.Sleep(wait)
				continue
			}
			return err
		}
		wait = 0
		if s.begins(nc) {
			go s.serve(nc)
		}
	}
}

// begins counts a connection that shakes hands, and closes it if there are to be no more.
func (s *Server) begins(nc net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.ending {
		_ = nc.Close()
		return false
	}
	s.mu.raw[nc] = true
	return true
}

// serve serves a connection until it ends.
func (s *Server) serve(nc net.Conn) {
	c, err := s.begin(nc)
	s.mu.Lock()
	delete(s.mu.raw, nc)
	if err == nil {
		if s.mu.ending && !s.mu.draining {
			err = grpc.ErrServerStopped
		} else {
			s.mu.conns[c] = true
			if s.mu.draining {
				c.drain("graceful_stop")
			}
		}
	}
	s.mu.gone.Broadcast()
	s.mu.Unlock()
	if err != nil {
		if !errors.Is(err, credentials.ErrConnDispatched) {
			_ = nc.Close()
		}
		s.o.Log.Debug("a connection was not begun", "from", nc.RemoteAddr(), "err", err)
		return
	}
	if err := c.serve(); err != nil {
		s.o.Log.Debug("a connection has ended", "from", nc.RemoteAddr(), "err", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.mu.conns, c)
	s.mu.gone.Broadcast()
}

// begin shakes hands.
func (s *Server) begin(nc net.Conn) (*conn, error) {
	if err := nc.SetDeadline(time.Now().Add(s.o.HandshakeTimeout)); err != nil {
		return nil, err
	}
	usertimeout.Set(nc, s.o.Keepalive.Timeout)
	var auth credentials.AuthInfo
	secure := nc
	if s.o.Credentials != nil {
		var err error
		if secure, auth, err = s.o.Credentials.ServerHandshake(nc); err != nil {
			return nil, err
		}
	}
	c := newConn(s, secure, auth)
	if err := c.handshake(); err != nil {
		return nil, err
	}
	if err := secure.SetDeadline(time.Time{}); err != nil {
		return nil, err
	}
	return c, nil
}

// GracefulStop closes the listeners, asks clients to go elsewhere, and returns when the last
// stream has ended.
func (s *Server) GracefulStop() { s.end(true) }

// Stop closes listeners and connections, and returns when the last handler has returned.
func (s *Server) Stop() { s.end(false) }

func (s *Server) end(graceful bool) {
	s.mu.Lock()
	s.mu.ending = true
	for l := range s.mu.listeners {
		delete(s.mu.listeners, l)
		_ = l.Close()
	}
	if graceful {
		s.mu.draining = true
		for c := range s.mu.conns {
			c.drain("graceful_stop")
		}
	} else {
		s.mu.draining = false
		for c := range s.mu.conns {
			c.close()
		}
	}
	for nc := range s.mu.raw { // those that shake hands have no call yet
		_ = nc.Close()
	}
	for len(s.mu.conns)+len(s.mu.raw) > 0 {
		s.mu.gone.Wait()
	}
	s.mu.Unlock()
	s.handlers.Wait()
	s.stop.Do(func() { close(s.work) })
	s.workers.Wait()
}

// dispatch hands a stream to a worker.
func (s *Server) dispatch(st *Stream) {
	s.handlers.Add(1)
	select {
	case s.work <- st:
	default:
		go s.handle(st)
	}
}

// handle calls the handler of a stream and sends what it returns.
func (s *Server) handle(st *Stream) {
	defer s.handlers.Done()
	if st.ended.Load() == canceled { // the client has gone meanwhile, or another caller of Cancel waits no more
		_ = st.WriteStatus(status.FromContextError(st.ctx.Err()))
		st.release()
		return
	}
	err := s.call(st)
	if err == nil {
		_ = st.WriteStatus(nil)
	} else {
		_ = st.WriteStatus(statusOf(err))
	}
	st.release()
}

func (s *Server) call(st *Stream) error {
	m := s.methods[st.method]
	if m == nil {
		return s.unknown(st.method)
	}
	if err := st.compression(); err != nil {
		return err
	}
	st.only = !m.info.IsClientStream
	switch {
	case m.unary != nil:
		reply, err := m.unary(m.service, st.ctx, st.RecvMsg, s.o.Unary)
		if err != nil {
			return err
		}
		st.last = true
		return st.SendMsg(reply)
	case s.o.Stream != nil:
		return s.o.Stream(m.service, &st.server, &m.info, m.stream)
	default:
		return m.stream(m.service, &st.server)
	}
}

func (s *Server) unknown(full string) error {
	rest, ok := strings.CutPrefix(full, "/")
	at := strings.LastIndexByte(rest, '/')
	if !ok || at < 0 {
		return status.Errorf(codes.Unimplemented, "malformed method name: %q", full)
	}
	if _, ok := s.services[rest[:at]]; !ok {
		return status.Errorf(codes.Unimplemented, "unknown service %v", rest[:at])
	}
	return status.Errorf(codes.Unimplemented, "unknown method %v for service %v", rest[at+1:], rest[:at])
}

// statusOf returns what a client is told of a handler's error.
func statusOf(err error) *status.Status {
	if st, ok := status.FromError(err); ok {
		return st
	}
	return status.FromContextError(err)
}

var _ grpc.ServiceRegistrar = (*Server)(nil)
