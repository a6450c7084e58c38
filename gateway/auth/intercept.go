package auth

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"cloud.google.com/go/iam/apiv1/iampb"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/gateway/auth/iam"
	"github.com/trestledb/trestle/gateway/auth/servertls"
	"github.com/trestledb/trestle/gateway/wire"
)

// A call is one RPC. It is the RPC's context, so that what is known of it costs
// one allocation.
type call struct {
	context.Context
	principal *Principal
	rule      *rule
	method    string
	start     time.Time
	resource  string
	addr      string // of a peer that the context does not know
	// read and write are the families that may be.
	read, write families
	denied      atomic.Bool
	inert       bool // the handler is not for this caller, see handle
	keep        bool // fill checked
	checked     []checked
	of          *call // whose work this is with other rights, see As
	uses        *uses // of a query; nil if it is not asked again
}

// A checked is a name that was authorized.
type checked struct {
	check *check
	name  string
}

type callKey struct{}

func (c *call) Value(key any) any {
	if _, ok := key.(callKey); ok {
		return c
	}
	return c.Context.Value(key)
}

func callOf(ctx context.Context) *call {
	c, _ := ctx.Value(callKey{}).(*call)
	return c
}

// Tap verifies the credentials of a stream as its headers arrive. It does not
// wait for anything. The context that it returns is the stream's.
func (a *Auth) Tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	return a.begin(ctx, info.FullMethodName, info.Header["authorization"])
}

func (a *Auth) begin(ctx context.Context, method string, headers []string) (*call, error) {
	c := &call{Context: ctx, method: method, rule: rules[method], start: a.now()}
	switch {
	case a.o.Off:
		c.principal = anonymous
		return c, nil
	case c.rule != nil && c.rule.open:
		c.principal = &Principal{}
		return c, nil
	}
	p, err := a.authenticate(ctx, headers, c.start)
	if err != nil {
		if a.o.Refused != nil {
			a.o.Refused(err.reason)
		}
		a.audit.refused(c, err)
		return nil, a.unauthenticated(ctx, err)
	}
	c.principal = p
	return c, nil
}

// authenticate returns whose credentials a request has. A token counts before a
// certificate: a proxy has one of its own.
func (a *Auth) authenticate(ctx context.Context, headers []string, now time.Time) (*Principal, *refusal) {
	if len(headers) > 1 {
		return nil, errTwice
	}
	if len(headers) == 1 {
		tok, err := token(headers[0])
		if err != nil {
			return nil, err
		}
		return a.verify(tok)
	}
	if p, ok := peer.FromContext(ctx); ok {
		if t, ok := p.AuthInfo.(*servertls.Conn); ok && t.Client != "" {
			if !now.Before(t.Expires) {
				return nil, errExpired
			}
			return &Principal{Member: iam.User(t.Client), scopes: allScopes, expires: t.Expires}, nil
		}
	}
	if a.o.Anonymous {
		return anonymous, nil
	}
	return nil, errNone
}

// unauthenticated is the status of a refusal.
func (a *Auth) unauthenticated(_ context.Context, r *refusal) error {
	info := &errdetails.ErrorInfo{Reason: "CREDENTIALS_INVALID", Domain: wire.ErrorDomain, Metadata: map[string]string{"cause": r.reason}}
	if r == errNone {
		info.Reason = "CREDENTIALS_MISSING"
	}
	st := status.New(codes.Unauthenticated, r.message())
	if r.retry {
		st = status.New(codes.Unavailable, r.message())
		if s, err := st.WithDetails(info, &errdetails.RetryInfo{RetryDelay: durationpb.New(time.Second)}); err == nil {
			st = s
		}
		return st.Err()
	}
	if s, err := st.WithDetails(info); err == nil {
		st = s
	}
	return st.Err()
}

// enter returns the call of ctx, which Tap made, or begins it if there was no
// tap.
func (a *Auth) enter(ctx context.Context, method string) (*call, error) {
	c := callOf(ctx)
	if c == nil {
		md, _ := metadata.FromIncomingContext(ctx)
		var err error
		if c, err = a.begin(ctx, method, md["authorization"]); err != nil {
			return nil, err
		}
	}
	if c.rule == nil || c.method != method {
		a.o.Log.LogAttrs(ctx, slog.LevelError, "no rule for the method", slog.String("method", method))
		return nil, fault.New(fault.PermissionDenied, "This method cannot be authorized.")
	}
	return c, nil
}

// Unary authorizes a call once its message is decoded.
func (a *Auth) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if a.o.Off && rules[info.FullMethod] == nil {
		return handler(ctx, req)
	}
	c, err := a.enter(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	if callOf(ctx) == nil {
		ctx = c
	}
	var resp any
	if err = a.authorize(ctx, c, req); err == nil {
		resp, err = a.handle(ctx, c, req, handler)
	}
	if a.audit.wants(c, err) {
		sent := 0
		if err == nil {
			sent = wire.Size(resp)
		}
		a.audit.done(c, err, int64(wire.Size(req)), int64(sent))
	}
	return resp, err
}

// handle calls the handler. What it changes about accounts and policies is in
// force before the caller is told.
func (a *Auth) handle(ctx context.Context, c *call, req any, handler grpc.UnaryHandler) (any, error) {
	if c.inert {
		// Clients open no connection that they cannot warm, also where their caller
		// was granted a table only. Being told so is worth nothing to others, since
		// the answer does not depend on what is there.
		if c.method == bigtablepb.Bigtable_PingAndWarm_FullMethodName {
			return &bigtablepb.PingAndWarmResponse{}, nil
		}
		return nil, fault.New(fault.Unimplemented, "There is no configuration for this client")
	}
	if c.rule.test {
		in := req.(*iampb.TestIamPermissionsRequest)
		ok, err := a.seen(ctx, c, in.GetResource())
		if err != nil {
			return nil, err
		}
		if !ok {
			// The handler would tell whether the resource is there.
			held, err := a.TestPermissions(ctx, in.GetResource(), in.GetPermissions())
			return &iampb.TestIamPermissionsResponse{Permissions: held}, err
		}
	}
	resp, err := handler(ctx, req)
	// Also after an error: the change may have been made.
	if c.rule.changes {
		a.policies.forget()
	}
	if c.rule.changes && c.rule.accounts {
		if rerr := a.Reload(ctx); rerr != nil && err == nil {
			a.o.Log.LogAttrs(ctx, slog.LevelWarn, "service accounts cannot be read", slog.String("error", rerr.Error()))
		}
	}
	return resp, err
}

// Stream authorizes a call at its first message.
func (a *Auth) Stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if a.o.Off && rules[info.FullMethod] == nil {
		return handler(srv, ss)
	}
	ctx := ss.Context()
	c, err := a.enter(ctx, info.FullMethod)
	if err != nil {
		return err
	}
	c.keep = true
	if c.rule.tables {
		c.uses = new(uses)
	}
	s := &stream{ServerStream: ss, a: a, c: c, ctx: ctx, checked: c.start}
	if callOf(ctx) == nil {
		s.ctx = c
	}
	err = handler(srv, s)
	if s.denied {
		c.denied.Store(true)
	}
	if a.audit.wants(c, err) {
		a.audit.done(c, err, s.received, s.sent)
	}
	return err
}

// recheck is how often it is asked whether a stream may go on.
const recheck = 2 * time.Second

// A stream authorizes the first message, and then now and then whether what was
// allowed still is: some streams never end. It asks before it sends, but in a
// session, where requests come later too, before it gives a request out.
type stream struct {
	grpc.ServerStream
	a              *Auth
	c              *call
	ctx            context.Context
	changed        atomic.Pointer[call] // c of a session with other families; nil before they change
	first          bool                 // message was seen
	checked        time.Time
	received, sent int64
	denied         bool // later than at the first message
}

// Context may be called while a message is received.
func (s *stream) Context() context.Context {
	if c := s.changed.Load(); c != nil {
		return c
	}
	return s.ctx
}

func (s *stream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	s.received += int64(wire.Size(m))
	if s.first && s.c.rule.session {
		return s.recheck()
	}
	if s.first {
		return nil
	}
	s.first = true
	return s.a.authorize(s.ctx, s.c, m)
}

func (s *stream) SendMsg(m any) error {
	s.sent += int64(wire.Size(m))
	if !s.c.rule.session {
		if err := s.recheck(); err != nil {
			return err
		}
	}
	return s.ServerStream.SendMsg(m)
}

func (s *stream) recheck() error {
	now := s.a.now()
	if now.Sub(s.checked) < recheck || s.c.rule.open {
		return nil
	}
	s.checked = now
	return s.again(now)
}

// again asks whether the call would still be allowed, as it was.
func (s *stream) again(now time.Time) error {
	if s.c.principal == anonymous {
		return nil
	}
	if !s.c.principal.good(now) {
		// A token may end during a long read, as with Google; it may not be revoked.
		if r := s.c.principal.revoked; r != nil && r.Load() {
			return s.a.unauthenticated(s.ctx, errSignature)
		}
	}
	// The families of a read cannot change under way; when there are fewer now,
	// that is as good as a refusal.
	c := &call{Context: s.c.Context, principal: s.c.principal, rule: s.c.rule, method: s.c.method, start: now}
	for _, k := range s.c.checked {
		if err := s.a.checkInto(c, c, k.check, k.name); err != nil {
			s.denied = c.denied.Load()
			return err
		}
	}
	if s.c.uses != nil {
		if err := s.a.usesAgain(c, s.c.uses); err != nil {
			s.denied = c.denied.Load()
			return err
		}
	}
	if s.c.rule.session {
		// Each of its requests is held to what is allowed when it comes.
		last := s.changed.Load()
		if last == nil {
			last = s.c
		}
		if !last.read.equal(&c.read) || !last.write.equal(&c.write) {
			c.Context, c.resource = s.ServerStream.Context(), s.c.resource
			s.changed.Store(c)
		}
		return nil
	}
	if !s.c.read.within(&c.read) || !s.c.write.within(&c.write) {
		return s.a.narrowed(s.c)
	}
	return nil
}

// narrowed refuses what reads families that its caller may not read any more.
func (a *Auth) narrowed(c *call) error {
	return a.denied(c, "What the request may read was changed.", "IAM_PERMISSION_DENIED", nil)
}
