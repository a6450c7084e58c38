package auth

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/gateway/auth/iam"
)

// A Peer is a caller that does not come over gRPC.
type Peer struct {
	// User is the name that the caller has proved, such as that of a TLS certificate, or
	// that is believed; empty if there is none.
	User string
	// Expires is when the proof ends; zero is never.
	Expires time.Time
	// Authorization are the request's headers of that name, for a caller
	// that has proved nothing else.
	Authorization []string
	// Addr is where the caller is, for the audit log.
	Addr string
}

// Member returns the name of a caller as policies and the audit log write it, "" if it has
// none.
func (p Peer) Member() string {
	if p.User == "" {
		return ""
	}
	return iam.User(p.User)
}

// Enter authorizes a request that did not come as an RPC. It is judged as
// method, an RPC's full name, of the resource with the given name, which stands
// for every name that the RPC's message must have. An empty name asks for no
// more than that the caller is known. The context that Enter returns is for
// Guard. The audit log has what Enter decided, whatever becomes of the request.
func (a *Auth) Enter(ctx context.Context, p Peer, method, name string) (context.Context, error) {
	r, err := a.Begin(ctx, p, method, method)
	if err != nil {
		return nil, err
	}
	if name != "" {
		err = r.On(name)
	}
	r.Done(err)
	if err != nil {
		return nil, err
	}
	return r.c, nil
}

// A Request is one that did not come as an RPC, of a caller that is known. It is
// not safe for concurrent use.
type Request struct {
	a     *Auth
	c     *call
	notes []slog.Attr
}

// Begin finds the caller of a request. method is the full name of the RPC that
// asks for the same permissions, as is what the audit log calls the request. It
// is PermissionDenied, and Unauthenticated, if what p has lets no caller in.
func (a *Auth) Begin(ctx context.Context, p Peer, method, as string) (*Request, error) {
	c := &call{Context: ctx, method: as, rule: rules[method], start: a.now(), addr: p.Addr}
	if c.rule == nil {
		a.o.Log.LogAttrs(ctx, slog.LevelError, "no rule for the method", slog.String("method", method))
		return nil, fault.New(fault.PermissionDenied, "This method cannot be authorized.")
	}
	var no *refusal
	switch {
	case a.o.Off:
		c.principal = anonymous
	case p.User == "":
		c.principal, no = a.authenticate(ctx, p.Authorization, c.start)
	case !p.Expires.IsZero() && !c.start.Before(p.Expires):
		no = errExpired
	default:
		c.principal = &Principal{Member: p.Member(), scopes: allScopes, expires: p.Expires}
	}
	if no != nil {
		return nil, a.refuse(c, no)
	}
	r := &Request{a: a, c: c}
	if c.principal.scopes&c.rule.class != c.rule.class {
		err := a.scope(c, as)
		r.Done(err)
		return nil, err
	}
	return r, nil
}

// Context is the request's context, for Guard and for Sees.
func (r *Request) Context() context.Context { return r.c }

// On returns nil if the caller may do what it asks for to the named resource.
func (r *Request) On(name string) error {
	if r.c.resource == "" {
		r.c.resource = name
	}
	if r.a.o.Off {
		return nil
	}
	for i := range r.c.rule.checks {
		k := &r.c.rule.checks[i]
		if k.optional && k.source != sourceTable {
			continue
		}
		if err := r.a.checkInto(r.c, r.c, k, name); err != nil {
			return err
		}
	}
	return nil
}

// Missing is what a caller is told of err about something, if it is not to
// learn what its name stands for. A caller that may not do everything is
// refused in the same words whether or not it is there.
func (r *Request) Missing(name string, err error) error {
	if r.c.resource == "" {
		r.c.resource = name
	}
	if r.c.principal.Root || len(r.c.rule.checks) == 0 || fault.KindOf(err) == fault.Unavailable {
		return err
	}
	return r.a.deniedOn(r.c, r.c.rule.checks[0].perm, name)
}

// Note adds what the request is about, beside its resource, to its line of the audit
// log: a tablet or a server, for example. value may be whatever the caller sent, but no
// row key.
func (r *Request) Note(name, value string) {
	r.notes = append(r.notes, slog.String(name, shorten(value)))
}

// Done writes the request's line of the audit log, if it gets one, with its
// outcome. It is to be called once.
func (r *Request) Done(err error) {
	if r.a.audit.wants(r.c, err) {
		r.a.audit.done(r.c, err, 0, 0, r.notes...)
	}
}

// Sees tells whether the caller of ctx may know that a table is there: it may
// look at the table, or read or write rows of it. Work of no caller sees all.
func (a *Auth) Sees(ctx context.Context, table string) (bool, error) {
	c := callOf(ctx)
	if c == nil || c.principal.Root {
		return true, nil
	}
	res, ok := parseResource(table)
	if !ok {
		return false, nil
	}
	for _, perm := range []iam.Permission{getTable, readRows, mutateRows} {
		always, some, err := a.held(ctx, c.principal, perm, &res, c.start)
		if always || len(some) > 0 || err != nil {
			return err == nil, err
		}
	}
	return false, nil
}

// Unauthenticated tells whether err is about who the caller is, not about what
// it may do.
func Unauthenticated(err error) bool {
	_, ok := errors.AsType[*refusal](err)
	return ok
}

func (a *Auth) refuse(c *call, r *refusal) error {
	if a.o.Refused != nil {
		a.o.Refused(r.reason)
	}
	a.audit.refused(c, r)
	kind := fault.PermissionDenied
	if r.retry {
		kind = fault.Unavailable
	}
	return &fault.Error{Kind: kind, Msg: r.message(), Cause: r}
}
