package gateway

import (
	"context"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"

	"github.com/trestledb/trestle/engine/request"
	"github.com/trestledb/trestle/gateway/auth"
	"github.com/trestledb/trestle/gateway/data"
	"github.com/trestledb/trestle/gateway/session"
	"github.com/trestledb/trestle/gateway/wire"
)

// A SessionObserver is an Observer that is told of sessions too. That they are
// opened, and their requests, are told to it as RPCs.
type SessionObserver interface {
	// SessionOpened and SessionClosed are called for each session.
	SessionOpened()
	SessionClosed()
}

// newSessions returns the sessions of a server. The requests that they carry
// are held to what d holds RPCs to, and are reported as RPCs are.
func newSessions(d *data.Service, in *interceptor, o Options) (*session.Service, error) {
	so := o.Session
	so.Open = func(ctx context.Context, t session.Target) (session.Rows, error) {
		return d.Rows(ctx, data.Names{Table: t.Table, View: t.View, Materialized: t.Materialized, Profile: t.Profile}, t.Writes)
	}
	so.Frontend, so.Zone, so.Cluster, so.Budget, so.Log = in.frontend, o.Zone, o.Cluster, o.Memory, o.Log
	so.Cancel, so.Short = cancelOf, in.gate.short
	so.Observer = &sessionObserver{in: in, auth: o.Auth}
	in.sessions = map[string]bool{bigtablepb.Bigtable_OpenTable_FullMethodName: true, bigtablepb.Bigtable_OpenAuthorizedView_FullMethodName: true,
		bigtablepb.Bigtable_OpenMaterializedView_FullMethodName: true}
	in.gate.sessions = in.sessions
	return session.New(so)
}

// sessions are what the data service asks of a session.Service.
type sessions struct{ *session.Service }

// Configuration implements data.Sessions.
func (sessions) Configuration(ctx context.Context) *bigtablepb.ClientConfiguration {
	return session.Configuration(wire.Features(ctx))
}

// A sessionObserver tells the server's observer and the audit log.
type sessionObserver struct {
	in   *interceptor
	auth *auth.Auth // may be nil
}

func (s *sessionObserver) SessionOpened(method string, err error, elapsed time.Duration) {
	if s.in.observer != nil {
		r := &request.Record{Method: method}
		s.in.observer.RPCStarted(r)
		s.in.observer.RPCDone(r, wire.Code(err), elapsed, 0, 0)
	}
	if so, ok := s.in.observer.(SessionObserver); ok && err == nil {
		so.SessionOpened()
	}
}

func (s *sessionObserver) SessionClosed() {
	if so, ok := s.in.observer.(SessionObserver); ok {
		so.SessionClosed()
	}
}

func (s *sessionObserver) CallStarted(r *request.Record) {
	r.Keys = s.in.gate.keys
	if s.in.tracer != nil {
		r.Span = s.in.tracer.Sample(r.Method, "")
	}
	if s.in.observer != nil {
		s.in.observer.RPCStarted(r)
	}
}

func (s *sessionObserver) CallDone(ctx context.Context, r *request.Record, err error, start time.Time, elapsed time.Duration, received, sent int64) {
	if s.auth != nil {
		r.Principal = auth.Member(ctx)
	}
	if s.in.observer != nil {
		s.in.observer.RPCDone(r, wire.Code(err), elapsed, received, sent)
	}
	if s.in.slow.isSlow(elapsed) {
		s.in.slow.tell(r, wire.Code(err), start, elapsed, received, sent)
	}
	EndSpan(r, err)
	if s.auth != nil {
		s.auth.VirtualCall(ctx, r.Method, err, start, received, sent)
	}
}

func (s *sessionObserver) CallPanicked(ctx context.Context, method string, p any) error {
	return s.in.panicked(ctx, method, p)
}
