package gateway

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/tap"

	"github.com/trestledb/trestle/engine/request"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway/admin"
	"github.com/trestledb/trestle/gateway/auth"
	"github.com/trestledb/trestle/gateway/backend"
	"github.com/trestledb/trestle/gateway/data"
	"github.com/trestledb/trestle/gateway/session"
	"github.com/trestledb/trestle/gateway/sql"
)

// A Server serves a backend over gRPC.
type Server struct {
	grpc     grpcServer
	health   *health.Server
	gate     *gate
	calls    calls
	data     *data.Service
	sessions *session.Service // nil if there are none
	log      *slog.Logger
	admin    *admin.Admin
	sql      *sql.Service
	stop     sync.Once
}

// A grpcServer is what serves gRPC: transport.Server, or gRPC-Go's.
type grpcServer interface {
	grpc.ServiceRegistrar
	GetServiceInfo() map[string]grpc.ServiceInfo
	Serve(net.Listener) error
	GracefulStop()
	Stop()
}

// New returns a Server of b. It does not own b: stop the Server before b is
// closed.
func New(b backend.Backend, o Options) (*Server, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o = o.WithDefaults()
	g := newGate(o)
	in := newInterceptor(g, o)
	unary, stream := []grpc.UnaryServerInterceptor{in.unary}, []grpc.StreamServerInterceptor{in.stream}
	admit := g.admit
	switch {
	case o.Auth.On():
		// The caller is known before anything of a request is read, what it may do
		// before any handler sees the request.
		admit = func(ctx context.Context, method string) (context.Context, error) {
			ctx, err := o.Auth.Tap(ctx, &tap.Info{FullMethodName: method, Header: metadata.MD{"authorization": metadata.ValueFromIncomingContext(ctx, "authorization")}})
			if err != nil {
				return nil, err
			}
			admitted, err := g.admit(ctx, method)
			if a, ok := admitted.(*arrival); ok {
				a.record.Principal = auth.Member(ctx)
			}
			return admitted, err
		}
		unary, stream = append(unary, o.Auth.Unary), append(stream, o.Auth.Stream)
		b = o.Auth.Guard(b)
		o.Admin.Permissions, o.Admin.Member = o.Auth.TestPermissions, auth.Member
	case o.Auth.AuditsData():
		unary, stream = append(unary, o.Auth.Unary), append(stream, o.Auth.Stream)
	case o.Auth != nil:
		in.admin = o.Auth.Unary
	}
	unary, stream = append(unary, o.Unary...), append(stream, o.Stream...)
	s := &Server{health: health.NewServer(), gate: g, log: o.Log,
		calls: calls{unary: chain(unary), stream: chainStreams(stream), admit: admit, methods: map[string]method{}, streams: map[string]streamMethod{}}}
	s.grpc = newGRPC(o, g, &s.calls)
	s.calls.cut, s.calls.cancel = context.WithCancel(context.Background())
	services := registrar{s.grpc, g, s.calls.methods, s.calls.streams}
	a := admin.Register(services, b, o.Admin)
	s.admin = a
	s.sql = newSQL(b, a, o)
	a.CheckViews(s.sql.CheckView)
	a.CompileViews(s.sql.CompileView)
	d := data.New(b, data.Options{
		Profile:  profileOf(a, in),
		Instance: a.Instance,
		View:     a.View,
		LaxNames: o.Emulator,
		Cluster:  o.Cluster,
		TokenKey: a.TokenKey,
		Budget:   o.Memory,
		SQL:      s.sql,
		Log:      o.Log,

		MaxChangeStreams: int64(o.MaxChangeStreams),
		Streams:          o.Streams,
	})
	s.data = d
	data.Register(services, d)
	if !o.Emulator && !o.NoSessions {
		var err error
		if s.sessions, err = newSessions(d, in, o); err != nil {
			g.close()
			return nil, err
		}
		d.UseSessions(sessions{s.sessions})
	}
	if o.Auth.On() {
		o.Auth.UsePolicies(a.Policy)
		o.Auth.Register(services)
	}
	for _, register := range o.Register {
		register(services)
	}
	for name := range s.grpc.GetServiceInfo() {
		s.health.SetServingStatus(name, healthpb.HealthCheckResponse_SERVING)
	}
	healthpb.RegisterHealthServer(services, s.health)
	if o.Reflection {
		reflection.Register(s.grpc)
	}
	a.Start()
	return s, nil
}

// profileOf asks the admin services for an app profile, and notes where it
// routes to.
func profileOf(a *admin.Admin, in *interceptor) func(context.Context, string, string) (data.Profile, error) {
	return func(ctx context.Context, instance, id string) (data.Profile, error) {
		p, err := a.Profile(ctx, instance, id)
		if err != nil {
			return data.Profile{}, err
		}
		in.served(ctx, place{p.Zone, p.ClusterID})
		if r := request.From(ctx); r != nil {
			r.Profile = id
		}
		return data.Profile{Transactions: p.AllowTransactionalWrites, ReadOnly: p.ReadOnly, SingleCluster: p.SingleCluster, Cluster: p.ClusterID}, nil
	}
}

// Hints tells the operator why its first callers would be refused.
func (s *Server) Hints(ctx context.Context, cbt string) ([]string, error) {
	return s.admin.Hints(ctx, cbt)
}

// ImportedBackup is Admin's.
func (s *Server) ImportedBackup(ctx context.Context, name string, source *schema.Backup, life time.Duration) (*schema.Backup, func(), error) {
	return s.admin.ImportedBackup(ctx, name, source, life)
}

// Serve serves connections of l until Stop. It may be called for several
// listeners. It closes l, and returns nil after Stop.
func (s *Server) Serve(l net.Listener) error { return s.grpc.Serve(l) }

// SetServing sets what the health service answers.
func (s *Server) SetServing(ok bool) {
	if ok {
		s.health.Resume()
	} else {
		s.health.Shutdown()
	}
}

// ChangeStreams returns how many change streams are read, and by how much the one whose
// watermark is farthest behind the clock is.
func (s *Server) ChangeStreams() (streams int64, lag time.Duration) { return s.data.Streams() }

// Stop drains the server. Health turns NOT_SERVING, clients are told to go
// elsewhere, and requests in flight may finish until ctx is done. Then they are
// cut off, and so is what goes on in the background. It returns after the last
// of it. When it had to cut requests off it returns the context's error.
func (s *Server) Stop(ctx context.Context) error {
	var err error
	s.stop.Do(func() {
		s.health.Shutdown()
		// Streams that would not end by themselves.
		s.data.Drain()
		if s.sessions != nil {
			s.sessions.Drain()
		}
		drained := make(chan struct{})
		go func() {
			s.calls.stop()
			s.grpc.GracefulStop()
			s.calls.running.Wait()
			close(drained)
		}()
		select {
		case <-drained:
		case <-ctx.Done():
			err = ctx.Err()
			s.calls.cancel()
			s.grpc.Stop()
			<-drained
		}
		if s.sessions != nil {
			s.sessions.Close()
		}
		s.calls.cancel()
		s.sql.Close()
		s.admin.Close()
		s.gate.close()
	})
	return err
}
