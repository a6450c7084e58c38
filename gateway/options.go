package gateway

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"

	"github.com/trestledb/trestle/engine/budget"
	"github.com/trestledb/trestle/engine/query"
	"github.com/trestledb/trestle/engine/request"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway/admin"
	"github.com/trestledb/trestle/gateway/auth"
	"github.com/trestledb/trestle/gateway/data"
	"github.com/trestledb/trestle/gateway/session"
	"github.com/trestledb/trestle/gateway/sql"
)

// Options configure a Server. The zero value is a good server without TLS.
type Options struct {
	// Zone and Cluster are the ids that answers name as their origin where the
	// app profile of the request does not tell. Zone is also that of clusters
	// that was never created. Empty means "local" and "default".
	Zone, Cluster string
	// Emulator accepts any project and instance id, as Google's emulator does.
	Emulator bool
	// NoSessions leaves out sessions, which Emulator does too.
	NoSessions bool
	// Session tunes sessions; what connects them to the server is set here.
	Session session.Options
	// Reflection serves the gRPC reflection services.
	Reflection bool
	// Credentials are the transport's; nil is plain text.
	Credentials credentials.TransportCredentials

	// GRPCGo has gRPC-Go's transport serve connections instead of gateway/transport.
	GRPCGo bool
	// ServerOptions are gRPC-Go's, whose transport serves if there are any. They come after
	// the server's own, and win.
	ServerOptions []grpc.ServerOption
	// Workers is how many goroutines wait for requests. Zero means 256, less than zero none: a
	// goroutine for each request.
	Workers int

	// Memory bounds the memory of requests that are being received or handled and
	// of answers on their way to clients. Beyond it requests wait, or are refused.
	// Nil means a quarter of the machine's memory.
	Memory *budget.Budget
	// MaxRequestBytes bounds one request message. Zero means 256 MiB. It is no
	// more than Memory allows, which is a third of it.
	MaxRequestBytes int
	// RequestMemory bounds the memory of those requests, in bytes, that are too
	// small for Memory: beyond it new streams are refused. Zero means as much as
	// Memory.
	RequestMemory int64
	// ReceiveTimeout is how long a client may take to send one request message
	// after it opened the stream. Zero means 5 minutes.
	ReceiveTimeout time.Duration
	// MaxChangeStreams bounds the change streams that are read at a time. Zero means
	// 10,000.
	MaxChangeStreams int
	// Streams is told of change streams; nil: nothing is.
	Streams data.StreamObserver
	// MaxConnectionAge is how long a connection may live before the client is
	// asked to open another. Zero means 24 hours.
	MaxConnectionAge time.Duration

	// Query tunes the engine of queries, and SQL what is between it and clients. What
	// connects them to the server is set here, but for SQL.Engine: if it is nil the
	// engine is one over the backend.
	Query query.Options
	SQL   sql.Options

	// Admin are the options of the admin services. Its Emulator, Zone and Log
	// are set from those here.
	Admin admin.Options
	// Auth says who callers are and what they may do, or (auth.Options.Off) only
	// audits what they do. Nil allows everything. It is the caller's, to
	// be closed after the Server is stopped.
	Auth *auth.Auth
	// Register adds further services.
	Register []func(grpc.ServiceRegistrar)
	// Unary and Stream run inside the server's own interceptors, so that what
	// they refuse is reported like any refusal.
	Unary  []grpc.UnaryServerInterceptor
	Stream []grpc.StreamServerInterceptor

	// Observer is told of every RPC; nil: there is none.
	Observer Observer
	// Tracer samples requests for traces; nil: there are none.
	Tracer request.Tracer
	// Slow, if it is not zero, is the time from which on SlowRequest is told of a request.
	// Streams that last as long as the client wants are not told. SlowKeys keeps row keys for it.
	Slow        time.Duration
	SlowRequest func(request.Slow)
	SlowKeys    bool
	// Log is slog.Default if nil.
	Log *slog.Logger
}

// An Observer is told of RPCs. Its methods are called on their goroutines and
// must be quick and safe for concurrent use.
type Observer interface {
	// RPCStarted is called before the handler, with the record that the context of the
	// request has.
	RPCStarted(r *request.Record)
	// RPCDone is called after it. received and sent are bytes of messages
	// without framing.
	RPCDone(r *request.Record, code codes.Code, elapsed time.Duration, received, sent int64)
	// Panicked is called for a handler that panicked, before its RPCDone.
	Panicked(method string)
}

// A FirstObserver is an Observer that is told of the first message of each streamed answer.
type FirstObserver interface {
	// FirstMessage is called before the message is sent, with the time since the request
	// arrived.
	FirstMessage(r *request.Record, elapsed time.Duration)
}

// WithDefaults fills in what is zero.
func (o Options) WithDefaults() Options {
	if o.Zone == "" {
		o.Zone = "local"
	}
	if o.Cluster == "" {
		o.Cluster = "default"
	}
	if o.Memory == nil {
		o.Memory = budget.New(totalMemory() / 4)
	}
	if o.MaxRequestBytes == 0 {
		o.MaxRequestBytes = schema.MaxRow
	}
	o.MaxRequestBytes = int(min(int64(o.MaxRequestBytes), o.Memory.Limit()/messageCost))
	if o.RequestMemory == 0 {
		o.RequestMemory = o.Memory.Limit()
	}
	if o.ReceiveTimeout == 0 {
		o.ReceiveTimeout = 5 * time.Minute
	}
	if o.Workers == 0 {
		// One that has served a request has the stack for the next: growing a new one each
		// time costs a tenth of a point read.
		o.Workers = 256
	}
	if o.MaxConnectionAge == 0 {
		o.MaxConnectionAge = 24 * time.Hour
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	o.Admin.Emulator, o.Admin.Zone, o.Admin.Log = o.Emulator, o.Zone, o.Log
	return o
}

// Validate returns everything that is wrong with o.
func (o Options) Validate() error {
	var errs []error
	if o.MaxRequestBytes < 0 {
		errs = append(errs, fmt.Errorf("MaxRequestBytes is %d", o.MaxRequestBytes))
	}
	if o.RequestMemory < 0 {
		errs = append(errs, fmt.Errorf("RequestMemory is %d", o.RequestMemory))
	}
	if o.ReceiveTimeout < 0 {
		errs = append(errs, fmt.Errorf("ReceiveTimeout is %v", o.ReceiveTimeout))
	}
	if o.MaxChangeStreams < 0 {
		errs = append(errs, fmt.Errorf("MaxChangeStreams is %d", o.MaxChangeStreams))
	}
	if o.MaxConnectionAge < 0 {
		errs = append(errs, fmt.Errorf("MaxConnectionAge is %v", o.MaxConnectionAge))
	}
	return errors.Join(errs...)
}
