package session

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/trestledb/trestle/engine/budget"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/request"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/gateway/wire"
)

// Rows are the rows that a session was opened on. Its methods are safe for
// concurrent use and mean what ReadRows of one row and MutateRow mean. They are
// held to what is allowed at the time of the call, not of the open.
type Rows interface {
	ReadRow(ctx context.Context, key []byte, f *filter.Node, w scan.Writer) (scan.Stats, error)
	MutateRow(ctx context.Context, e *row.Entry) error
}

// A Target is what a session is to be opened on. One of Table, View and Materialized
// is set.
type Target struct {
	Table, View, Materialized string
	Profile                   string
	// Writes asks for more than reading.
	Writes bool
}

// Methods under which virtual calls are reported.
const (
	MethodReadRow   = "/google.bigtable.v2.Bigtable/SessionReadRow"
	MethodMutateRow = "/google.bigtable.v2.Bigtable/SessionMutateRow"
)

// An Observer is told of what goes on in sessions. Its methods are called on
// the goroutines of the calls.
type Observer interface {
	// SessionOpened is called for each session that was to be opened by a method,
	// with the outcome; SessionClosed when one that was opened ends.
	SessionOpened(method string, err error, elapsed time.Duration)
	SessionClosed()
	// CallStarted is called before a virtual call, with the record that its context has.
	CallStarted(r *request.Record)
	// CallDone is called after it. received and sent are bytes of messages.
	CallDone(ctx context.Context, r *request.Record, err error, start time.Time, elapsed time.Duration, received, sent int64)
	// CallPanicked returns what the client is told of a call that panicked.
	CallPanicked(ctx context.Context, method string, p any) error
}

// Options configure a Service.
type Options struct {
	// Open resolves what a session is about, or says why it cannot be opened.
	Open func(ctx context.Context, t Target) (Rows, error)
	// Frontend stands for this process: what opens a session is told it, and finds
	// it in the headers of the stream, which others set.
	Frontend int64
	// Zone and Cluster are what answers name as their origin unless Served says
	// otherwise.
	Zone, Cluster string
	// Budget bounds the memory of large rows on their way to clients.
	Budget *budget.Budget
	// Cancel returns what ends the stream of ctx from outside of its handler.
	Cancel func(ctx context.Context) context.CancelFunc
	// Short tells whether the memory of requests is used up. Nil is never.
	Short    func() bool
	Observer Observer

	// MaxSessions bounds the open sessions. Zero means 10,000: some 30 KiB each.
	MaxSessions int
	// MaxPerConnection bounds those of one connection. Zero means 500, which
	// leaves room for other calls among the connection's streams.
	MaxPerConnection int
	// MaxInFlight bounds the calls of one session that are worked on; those
	// beyond wait in the stream, whose flow control stops the client. Zero means
	// 64. Google's clients have one.
	MaxInFlight int
	// KeepAlive is how long a client waits for any frame while a call is in
	// flight before it gives the session up. Zero means 5 s.
	KeepAlive time.Duration
	// MaxAge is when a session is told to go away, so that clients show fresh
	// credentials. A part of it is random. Zero means 9 minutes, which is below
	// the grace that gRPC gives the streams of an old connection.
	MaxAge time.Duration
	// Quiet is how long a session that was told to go away may stay without a
	// call, Grace how long it may stay at all. Zero means 2 s and 30 s.
	Quiet, Grace time.Duration
	// Log is slog.Default if nil.
	Log *slog.Logger
}

// WithDefaults fills in what is zero.
func (o Options) WithDefaults() Options {
	count := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	span := func(p *time.Duration, v time.Duration) {
		if *p == 0 {
			*p = v
		}
	}
	count(&o.MaxSessions, 10_000)
	count(&o.MaxPerConnection, 500)
	count(&o.MaxInFlight, 64)
	span(&o.KeepAlive, 5*time.Second)
	span(&o.MaxAge, 9*time.Minute)
	span(&o.Quiet, 2*time.Second)
	span(&o.Grace, 30*time.Second)
	if o.Short == nil {
		o.Short = func() bool { return false }
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return o
}

// A Service serves sessions. It is safe for concurrent use.
type Service struct {
	o      Options
	opened []byte // the frame that answers open_session
	params []byte // session_parameters
	tick   time.Duration

	mu struct {
		sync.Mutex
		sessions map[*session]struct{}
		conns    map[net.Addr]int
		draining bool
	}
	stop chan struct{}
	done chan struct{}
}

// New returns a Service. Close it after its handlers have returned.
func New(o Options) (*Service, error) {
	o = o.WithDefaults()
	s := &Service{o: o, tick: max(min(o.KeepAlive/20, o.Quiet/4), time.Millisecond),
		stop: make(chan struct{}), done: make(chan struct{})}
	s.mu.sessions = map[*session]struct{}{}
	s.mu.conns = map[net.Addr]int{}
	var err error
	if s.opened, err = proto.Marshal(&bigtablepb.SessionResponse{Payload: &bigtablepb.SessionResponse_OpenSession{
		OpenSession: &bigtablepb.OpenSessionResponse{Backend: &bigtablepb.BackendIdentifier{ApplicationFrontendId: o.Frontend, ApplicationFrontendZone: o.Zone}}}}); err != nil {
		return nil, err
	}
	if s.params, err = proto.Marshal(&bigtablepb.SessionResponse{Payload: &bigtablepb.SessionResponse_SessionParameters{
		SessionParameters: &bigtablepb.SessionParametersResponse{KeepAlive: durationpb.New(o.KeepAlive)}}}); err != nil {
		return nil, err
	}
	go s.watch()
	return s, nil
}

// Close ends what New began.
func (s *Service) Close() {
	close(s.stop)
	<-s.done
}

// Drain tells every session to go away and lets no other be opened.
func (s *Service) Drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.draining = true
	for ss := range s.mu.sessions {
		ss.sendAway("SERVER_SHUTDOWN", "The server is shutting down")
	}
}

// Configuration is what a client of these features is told about sessions:
// only those that say that they know them are to use them.
func Configuration(f *bigtablepb.FeatureFlags) *bigtablepb.ClientConfiguration {
	if !f.GetSessionsCompatible() {
		return &bigtablepb.ClientConfiguration{
			SessionConfiguration: &bigtablepb.SessionClientConfiguration{SessionLoad: 0},
			Polling:              &bigtablepb.ClientConfiguration_StopPolling{StopPolling: true},
		}
	}
	least := &bigtablepb.LoadBalancingOptions{LoadBalancingStrategy: &bigtablepb.LoadBalancingOptions_LeastInFlight_{
		LeastInFlight: &bigtablepb.LoadBalancingOptions_LeastInFlight{RandomSubsetSize: 2}}}
	return &bigtablepb.ClientConfiguration{
		SessionConfiguration: &bigtablepb.SessionClientConfiguration{
			SessionLoad: 1,
			ChannelConfiguration: &bigtablepb.SessionClientConfiguration_ChannelPoolConfiguration{
				MinServerCount: 2, MaxServerCount: 10, PerServerSessionCount: 20,
				Mode: &bigtablepb.SessionClientConfiguration_ChannelPoolConfiguration_CloudPathOnly_{
					CloudPathOnly: &bigtablepb.SessionClientConfiguration_ChannelPoolConfiguration_CloudPathOnly{}},
			},
			// A session has one call at a time: there must be as many as calls. A
			// session that is refused takes one of the budget for as long as the
			// penalty. When none is left a call waits for the next, since only
			// failures of sessions, the threshold of them, fail calls. With 50 and
			// 5 s, reads of a table that is not there took up to 5 s. Clients try
			// again for ever, so budget and penalty bound that too: 40 a second
			// for each such table.
			SessionPoolConfiguration: &bigtablepb.SessionClientConfiguration_SessionPoolConfiguration{
				Headroom: 0.5, MinSessionCount: 2, MaxSessionCount: 200, NewSessionQueueLength: 10,
				NewSessionCreationBudget: 10, NewSessionCreationPenalty: durationpb.New(250 * time.Millisecond),
				ConsecutiveSessionFailureThreshold: 10, LoadBalancingOptions: least,
			},
		},
		Polling: &bigtablepb.ClientConfiguration_PollingConfiguration_{PollingConfiguration: &bigtablepb.ClientConfiguration_PollingConfiguration{
			PollingInterval: durationpb.New(5 * time.Minute), ValidityDuration: durationpb.New(30 * time.Minute), MaxRpcRetryCount: 5,
		}},
	}
}

// OpenTable is the handler of that method.
func (s *Service) OpenTable(stream grpc.ServerStream) error {
	return s.serve(stream, bigtablepb.Bigtable_OpenTable_FullMethodName, func(t *Target) *string { return &t.Table })
}

// OpenAuthorizedView is the handler of that method.
func (s *Service) OpenAuthorizedView(stream grpc.ServerStream) error {
	return s.serve(stream, bigtablepb.Bigtable_OpenAuthorizedView_FullMethodName, func(t *Target) *string { return &t.View })
}

// OpenMaterializedView is the handler of that method.
func (s *Service) OpenMaterializedView(stream grpc.ServerStream) error {
	return s.serve(stream, bigtablepb.Bigtable_OpenMaterializedView_FullMethodName, func(t *Target) *string { return &t.Materialized })
}

// serve serves a stream of method, whose requests name what field returns.
func (s *Service) serve(stream grpc.ServerStream, method string, field func(*Target) *string) error {
	start := time.Now()
	ss := &session{svc: s, stream: stream, work: make(chan *call), slots: make(chan struct{}, s.o.MaxInFlight)}
	err := ss.open(field)
	s.o.Observer.SessionOpened(method, err, time.Since(start))
	if err != nil {
		return err
	}
	defer func() {
		s.remove(ss)
		s.o.Observer.SessionClosed()
	}()
	return ss.run()
}

// add counts a session in, or refuses it.
func (s *Service) add(ss *session) error {
	if p, ok := peer.FromContext(ss.stream.Context()); ok {
		ss.conn = p.Addr
	}
	ss.cancel = s.o.Cancel(ss.stream.Context())
	now := time.Now()
	ss.leaves = now.Add(s.o.MaxAge - rand.N(s.o.MaxAge/3+1))
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.mu.draining:
		return &fault.Error{Kind: fault.Unavailable, Reason: "SERVER_SHUTDOWN", RetryAfter: time.Second, Msg: "The server is shutting down"}
	case len(s.mu.sessions) >= s.o.MaxSessions:
		return &fault.Error{Kind: fault.Exhausted, Reason: "TOO_MANY_SESSIONS", RetryAfter: time.Second, Msg: "Too many sessions are open"}
	case s.mu.conns[ss.conn] >= s.o.MaxPerConnection:
		return &fault.Error{Kind: fault.Exhausted, Reason: "TOO_MANY_SESSIONS", RetryAfter: time.Second, Msg: "Too many sessions are open on this connection"}
	}
	s.mu.sessions[ss] = struct{}{}
	s.mu.conns[ss.conn]++
	return nil
}

func (s *Service) remove(ss *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.mu.sessions, ss)
	if s.mu.conns[ss.conn]--; s.mu.conns[ss.conn] == 0 {
		delete(s.mu.conns, ss.conn)
	}
}

// watch looks after sessions: heartbeats, deadlines, age.
func (s *Service) watch() {
	defer close(s.done)
	tick := time.NewTicker(s.tick)
	defer tick.Stop()
	var shortSince time.Time
	for {
		select {
		case <-s.stop:
			return
		case now := <-tick.C:
			switch short := s.o.Short(); {
			case !short:
				shortSince = time.Time{}
			case shortSince.IsZero():
				shortSince = now
			}
			s.mu.Lock()
			for ss := range s.mu.sessions {
				ss.look(now, shortSince)
			}
			s.mu.Unlock()
		}
	}
}

var requests = sync.Pool{New: func() any { return new(wire.SessionRequest) }}
