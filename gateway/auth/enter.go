package auth

import (
	"context"
	"log/slog"
	"time"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/gateway/auth/iam"
)

// A Peer is a caller whom another protocol than gRPC has authenticated.
type Peer struct {
	// User is the name that the caller has proved, such as that of a TLS
	// certificate; empty if nothing was proved.
	User string
	// Expires is when the proof ends; zero is never.
	Expires time.Time
}

// Enter authorizes a request that did not come as an RPC: as method, an RPC's
// full name, of the resource with the given name, which stands for every name
// that the RPC's message must have. An empty name asks for no more than that
// the caller is known. The context that Enter returns is for Guard.
func (a *Auth) Enter(ctx context.Context, p Peer, method, name string) (context.Context, error) {
	c := &call{Context: ctx, method: method, rule: rules[method], start: a.now()}
	if c.rule == nil {
		a.o.Log.LogAttrs(ctx, slog.LevelError, "no rule for the method", slog.String("method", method))
		return nil, fault.New(fault.PermissionDenied, "This method cannot be authorized.")
	}
	switch {
	case p.User != "":
		c.principal = &Principal{Member: iam.User(p.User), scopes: allScopes, expires: p.Expires}
		if !p.Expires.IsZero() && !c.start.Before(p.Expires) {
			return nil, a.refuse(c, errExpired)
		}
	case a.o.Anonymous:
		c.principal = anonymous
	default:
		return nil, a.refuse(c, errNone)
	}
	var err error
	if name != "" {
		c.resource = name
		for i := range c.rule.checks {
			k := &c.rule.checks[i]
			if k.optional && k.source != sourceTable {
				continue
			}
			if err = a.checkInto(ctx, c, k, name); err != nil {
				break
			}
		}
	}
	if a.audit.wants(c, err) {
		a.audit.done(c, err, 0, 0)
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (a *Auth) refuse(c *call, r *refusal) error {
	if a.o.Refused != nil {
		a.o.Refused(r.reason)
	}
	a.audit.refused(c, r)
	return fault.New(fault.PermissionDenied, "%s", r.message())
}
